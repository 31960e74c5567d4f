//! Models: small programs over the engine's own code, run by loom in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p esker --release --lib loom`. Each model stands beside its weakened twin: the same
//! program with one [`Rule`] broken, which must fail. A twin that passes would say that the model does not see the rule.
//!
//! Loom bounds the preemptions of an execution, not its length: two or three find nearly all known races, and keep a model
//! below a minute. Models of the index's insides are in `index/loom_models.rs`.

mod epoch;
mod log;
mod store;

use crate::sync::{Rule, Weakness};

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
        let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = executions.clone();
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            crate::epoch::set_thread_index(0);
            model();
        });
        println!("{} executions", executions.load(std::sync::atomic::Ordering::Relaxed));
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
