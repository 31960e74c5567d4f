//! `papaya`: a lock-free table of nodes; an update allocates a new node and retires the old one.

use foldhash::fast::RandomState;
use papaya::{HashMap, HashMapRef, LocalGuard};

use super::{Engine, Session};

/// The map.
pub(crate) struct Papaya(HashMap<u64, u64, RandomState>);

impl Papaya {
    /// An empty map.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(capacity, RandomState::default()))
    }
}

/// The map and the guard of a thread.
pub(crate) struct Pinned<'a> {
    map: &'a HashMap<u64, u64, RandomState>,
    pin: HashMapRef<'a, u64, u64, RandomState, LocalGuard<'a>>,
}

impl Engine for Papaya {
    type Session<'a> = Pinned<'a>;

    fn session(&self) -> Pinned<'_> {
        Pinned { map: &self.0, pin: self.0.pin() }
    }
}

impl Session for Pinned<'_> {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        self.pin.get(&key).copied()
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        self.pin.insert(key, value);
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        *self.pin.update_or_insert(key, |old| old + 1, first)
    }

    fn refresh(&mut self) {
        self.pin = self.map.pin();
    }
}
