//! `scc::HashMap`: buckets of 32 entries, each with its own lock.
//!
//! A session holds an epoch guard over a block of operations, which makes the guards that the map
//! takes inside of each of them a mere counter.

use foldhash::fast::RandomState;
use scc::{Guard, HashMap};

use super::{Engine, Session};

/// The map.
pub(crate) struct Scc(HashMap<u64, u64, RandomState>);

impl Scc {
    /// An empty map.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(capacity, RandomState::default()))
    }
}

/// The map and the guard of a thread.
pub(crate) struct Guarded<'a> {
    map: &'a HashMap<u64, u64, RandomState>,
    guard: Option<Guard>,
}

impl Engine for Scc {
    type Session<'a> = Guarded<'a>;

    fn session(&self) -> Guarded<'_> {
        Guarded { map: &self.0, guard: Some(Guard::new()) }
    }
}

impl Session for Guarded<'_> {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        self.map.read_sync(&key, |_, &value| value)
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        self.map.upsert_sync(key, value);
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        let known = self.map.update_sync(&key, |_, value| {
            *value += 1;
            *value
        });
        known.unwrap_or_else(|| *self.map.entry_sync(key).and_modify(|value| *value += 1).or_insert(first).get())
    }

    fn refresh(&mut self) {
        self.guard = None;
        self.guard = Some(Guard::new());
    }
}
