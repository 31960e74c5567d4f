//! Models: small programs over the engine's own code, run by loom in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p esker --release --lib loom`. Each model stands beside its weakened twin: the same
//! program with one [`Rule`] broken, which must fail. A twin that passes would say that the model does not see the rule.
//!
//! Loom bounds the preemptions of an execution, not its length; each model says how many it affords within a minute, and
//! `LOOM_MAX_PREEMPTIONS=4` sets all. Models of the index's insides are in `index/loom_models.rs`.
//!
//! What stands in for what, under `--cfg loom`:
//! * memory regions are 64 atomics of loom's, so keys have no bytes and values one word (`memory.rs`); a block is a record, a
//!   piece four of them (`log.rs`); a bucket has two entries, the table begins with two buckets (`index/`), and there are
//!   slots for four threads (`epoch/slots.rs`);
//! * `membarrier` and the compiler fence of a pin meet in one atomic per slot (`epoch/slots.rs`): all that the system call
//!   promises, and less than a fence in the reader would;
//! * loads announce themselves, for loom's search misses readers otherwise (`loom_atomic.rs`);
//! * the vector probe is left to its unit test; models run the portable one.
//!
//! Loom treats SeqCst accesses as AcqRel ones, which is weaker: fine here, as only fences are relied on to be more.

mod epoch;
mod log;
mod snapshot;
mod store;
mod transaction;

use crate::sync::{Rule, Weakness};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Everything a model varies.
pub(crate) struct Model {
    broken: Option<Rule>,
    preemptions: usize,
    fence_on_pin: bool,
}

pub(crate) fn sound() -> Model {
    Model { broken: None, preemptions: 3, fence_on_pin: false }
}

pub(crate) fn without(rule: Rule) -> Model {
    Model { broken: Some(rule), ..sound() }
}

impl Model {
    pub(crate) fn preemptions(self, preemptions: usize) -> Self {
        Self { preemptions, ..self }
    }

    /// As on systems without `membarrier`.
    pub(crate) fn fence_on_pin(self) -> Self {
        Self { fence_on_pin: true, ..self }
    }

    pub(crate) fn check(self, model: impl Fn() + Send + Sync + 'static) {
        Weakness::set(self.broken);
        Weakness::set_fence_on_pin(self.fence_on_pin);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(self.preemptions));
        builder.max_branches = 100_000;
        let executions = Arc::new(AtomicU64::new(0));
        let counted = executions.clone();
        builder.check(move || {
            counted.fetch_add(1, Relaxed);
            crate::epoch::set_thread_index(0);
            model();
        });
        println!("{} executions", executions.load(Relaxed));
    }
}

/// A thread of a model, with a number of its own: 1, 2 or 3.
pub(crate) fn spawn<T: 'static>(number: usize, run: impl FnOnce() -> T + 'static) -> Thread<T> {
    Thread(loom::thread::spawn(move || {
        crate::epoch::set_thread_index(number);
        run()
    }))
}

pub(crate) struct Thread<T>(loom::thread::JoinHandle<T>);

impl<T> Thread<T> {
    pub(crate) fn join(self) -> T {
        self.0.join().expect("a failing thread ends the model")
    }
}

/// What the threads of a model share. A failing thread leaves it alone: its drop could wait for threads that never run again.
pub(crate) struct Shared<T>(ManuallyDrop<Arc<T>>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(Arc::new(value)))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
