//! `dashmap`: shards of `hashbrown` tables under reader-writer locks.

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::{Appender, Engine, Session};

/// The map of integers.
pub(crate) struct Dashmap(DashMap<u64, u64, RandomState>);

impl Dashmap {
    /// An empty map.
    pub(crate) fn new(capacity: usize) -> Self {
        Self(DashMap::with_capacity_and_hasher(capacity, RandomState::default()))
    }
}

impl Engine for Dashmap {
    type Session<'a> = &'a DashMap<u64, u64, RandomState>;

    fn session(&self) -> Self::Session<'_> {
        &self.0
    }
}

impl Session for &DashMap<u64, u64, RandomState> {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        DashMap::get(self, &key).map(|entry| *entry)
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        self.insert(key, value);
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        if let Some(mut entry) = self.get_mut(&key) {
            *entry += 1;
            return *entry;
        }
        *self.entry(key).and_modify(|value| *value += 1).or_insert(first)
    }
}

/// The map of byte vectors.
pub(crate) struct DashVectors(DashMap<u64, Vec<u8>, RandomState>);

impl DashVectors {
    /// An empty map.
    pub(crate) fn new() -> Self {
        Self(DashMap::with_hasher(RandomState::default()))
    }
}

impl Appender for DashVectors {
    #[inline(always)]
    fn append(&mut self, key: u64, bytes: &[u8]) {
        self.0.entry(key).or_default().extend_from_slice(bytes);
    }

    fn read(&self, key: u64, f: &mut dyn FnMut(&[u8])) {
        match self.0.get(&key) {
            Some(entry) => f(&entry),
            None => f(&[]),
        }
    }
}
