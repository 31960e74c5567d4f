//! `papaya` over atomic integers: a node stays and its value changes in place.
//!
//! New keys are put with `insert`, not `get_or_insert_with`: a map of a million keys grown by the
//! latter without a hint was measured to load about six times slower and then to read more than
//! ten times slower. With a hint of its size there was no such loss.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use papaya::{HashMap, HashMapRef, LocalGuard};

use super::{Engine, Session};

/// The map.
pub(crate) struct PapayaAtomic(HashMap<u64, AtomicU64, RandomState>);

impl PapayaAtomic {
    /// An empty map.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(capacity, RandomState::default()))
    }
}

/// The map and the guard of a thread.
pub(crate) struct Pinned<'a> {
    map: &'a HashMap<u64, AtomicU64, RandomState>,
    pin: HashMapRef<'a, u64, AtomicU64, RandomState, LocalGuard<'a>>,
}

impl Engine for PapayaAtomic {
    type Session<'a> = Pinned<'a>;

    fn session(&self) -> Pinned<'_> {
        Pinned { map: &self.0, pin: self.0.pin() }
    }
}

impl Session for Pinned<'_> {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        self.pin.get(&key).map(|value| value.load(Relaxed))
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        match self.pin.get(&key) {
            Some(old) => old.store(value, Relaxed),
            None => {
                self.pin.insert(key, AtomicU64::new(value));
            }
        }
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        match self.pin.get(&key) {
            Some(old) => old.fetch_add(1, Relaxed) + 1,
            // Wraps where two threads create the key at once: the second adds to the first's value.
            None => {
                let start = first.wrapping_sub(1);
                let value = self.pin.get_or_insert_with(key, || AtomicU64::new(start));
                value.fetch_add(1, Relaxed).wrapping_add(1)
            }
        }
    }

    fn refresh(&mut self) {
        self.pin = self.map.pin();
    }
}
