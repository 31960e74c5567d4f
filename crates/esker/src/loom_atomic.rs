//! Loom's atomics, with every load made known to its search.
//!
//! Loom (0.7) looks for races by the *last* access to each atomic. When A loads a word, and B loads and then stores it, the
//! last access before B's store is B's own load: loom never tries A's load after B's store, and a model whose reader only
//! reads is run once. Writers that load first are the rule here (every change of a bucket's link), so each load is preceded
//! by a store to a bystander that belongs to the word: bystanders conflict, and loom tries both orders. Nobody loads a
//! bystander, so it orders nothing in the memory model.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

/// Words share a bystander where their numbers agree in these bits: more executions, none fewer.
const BYSTANDERS: usize = 64;

loom::lazy_static! {
    static ref ALL: [loom::sync::atomic::AtomicU64; BYSTANDERS] = std::array::from_fn(|_| Default::default());
}

#[repr(transparent)]
#[derive(Default, Debug)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

// Offsets count words of eight bytes, in `memory.rs` and in `index/bucket.rs`.
const _: () = assert!(size_of::<AtomicU64>() == 8);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    /// Loom's atomic is the number of its state, the same in each execution; an address would not be.
    fn number(&self) -> usize {
        // SAFETY: eight bytes (asserted above), all of them a number that never changes.
        unsafe { std::ptr::from_ref(self).cast::<usize>().read() }
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        ALL[self.number() % BYSTANDERS].store(0, Ordering::Relaxed);
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_max(value, order)
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }

    pub(crate) fn fetch_update(&self, set: Ordering, fetch: Ordering, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.fetch_update(set, fetch, next)
    }

    pub(crate) fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }

    pub(crate) fn compare_exchange_weak(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange_weak(current, new, success, failure)
    }
}
