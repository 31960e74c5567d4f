//! The plain answer: 64 mutexes over `hashbrown` tables.
//!
//! Raw tables with one hash per operation: the table uses the low bits and the top seven, the
//! choice of the mutex takes bits between.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use parking_lot::{Mutex, MutexGuard};

use super::{Appender, Engine, Session};

/// The number of mutexes.
const SHARDS: usize = 64;

/// A mutex and its table, away from the cache lines of its neighbours.
#[repr(align(128))]
struct Shard(Mutex<HashTable<(u64, u64)>>);

/// The map.
pub(crate) struct HashbrownMutex {
    shards: Vec<Shard>,
    hasher: RandomState,
}

impl HashbrownMutex {
    /// An empty map.
    pub(crate) fn new(capacity: usize) -> Self {
        // Keys spread over the shards with a deviation; an eighth more keeps all of them presized.
        let each = capacity.div_ceil(SHARDS) * 9 / 8;
        let shard = || Shard(Mutex::new(HashTable::with_capacity(each)));
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: RandomState::default() }
    }

    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline(always)]
    fn lock(&self, hash: u64) -> MutexGuard<'_, HashTable<(u64, u64)>> {
        self.shards[(hash >> 48) as usize % SHARDS].0.lock()
    }

    /// Changes the value of a key, or inserts `first`, and gives the new value.
    #[inline(always)]
    fn update(&self, key: u64, first: u64, change: impl FnOnce(&mut u64)) -> u64 {
        let hash = self.hash(key);
        let rehash = |pair: &(u64, u64)| self.hash(pair.0);
        match self.lock(hash).entry(hash, |pair| pair.0 == key, rehash) {
            Entry::Occupied(mut entry) => {
                let value = &mut entry.get_mut().1;
                change(value);
                *value
            }
            Entry::Vacant(entry) => {
                entry.insert((key, first));
                first
            }
        }
    }
}

impl Engine for HashbrownMutex {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl Session for &HashbrownMutex {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        let hash = self.hash(key);
        self.lock(hash).find(hash, |pair| pair.0 == key).map(|pair| pair.1)
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        self.update(key, value, |old| *old = value);
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        self.update(key, first, |old| *old += 1)
    }
}

/// An unshared map of byte vectors, for one thread.
pub(crate) struct HashbrownVectors(HashMap<u64, Vec<u8>, RandomState>);

impl HashbrownVectors {
    /// An empty map.
    pub(crate) fn new() -> Self {
        Self(HashMap::with_hasher(RandomState::default()))
    }
}

impl Appender for HashbrownVectors {
    #[inline(always)]
    fn append(&mut self, key: u64, bytes: &[u8]) {
        self.0.entry(key).or_default().extend_from_slice(bytes);
    }

    fn read(&self, key: u64, f: &mut dyn FnMut(&[u8])) {
        f(self.0.get(&key).map_or(&[], Vec::as_slice));
    }
}
