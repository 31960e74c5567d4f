//! What a test brings about in a few steps though it takes a real store millions of keys: hashes that meet, an index that has spent its
//! share, a table that doubles, a log that leaves memory, a cache that is full. For `esker-sim`; no part of what the library promises.

use crate::engine::hasher::Hasher;
use crate::error::Result;
use crate::options::Options;
use crate::scan::Scan;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::sync::atomic::Ordering::Acquire;
use crate::sync::lock;
use crate::types::{Key, Value};

/// A store that is crowded from the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Crowding {
    /// What a new store's keys are hashed by, so that a test can choose keys that meet.
    pub hash_seed: [u64; 2],
    /// The index's share of the budget, at most.
    pub index_bytes: u64,
}

impl Options {
    /// Crowds the store.
    #[doc(hidden)]
    #[must_use]
    pub fn crowding(mut self, crowding: Crowding) -> Self {
        self.crowding = Some(crowding);
        self
    }
}

/// The hash of a key, by such a seed, from the first bit on that chooses a bucket. `width` is that of keys which all have the same.
pub fn hash(seed: [u64; 2], key: &[u8], width: Option<usize>) -> u64 {
    Hasher::new(seed).hash(key, width) >> crate::index::BUCKET_BITS
}

/// Doubles the table, as insertions would: up to the next power of two.
///
/// # Errors
/// `Closed`.
pub fn double_index<K: Key + ?Sized, V: Value + ?Sized>(store: &Store<K, V>) -> Result<()> {
    store.engine.double_index()
}

/// Shrinks the index as far as its entries allow, without compacting anything.
///
/// # Errors
/// As [`Store::compact`].
pub fn shrink_index<K: Key + ?Sized, V: Value + ?Sized>(store: &Store<K, V>) -> Result<()> {
    let compaction = store.engine.hold_compaction();
    while store.engine.shrink_index(&compaction)? {}
    Ok(())
}

/// Writes out all that is in memory, as a store does that is short of it, and lets go of it if it `evicts`. No line is drawn, and nothing
/// synced.
///
/// # Errors
/// `Io`.
pub fn spill<K: Key + ?Sized, V: Value + ?Sized>(store: &Store<K, V>, evicts: bool) -> Result<()> {
    let engine = &store.engine;
    let _boundaries = lock(&engine.boundaries);
    engine.check_writable()?;
    let end = engine.log.end_block();
    engine.freeze(end);
    engine.flush()?;
    if evicts {
        engine.evict(end);
    }
    Ok(())
}

/// Has a cache drop the oldest part of its log, of so many eighths, as one does that is full. Another store drops nothing.
///
/// # Errors
/// `Io`.
pub fn drop_oldest<K: Key + ?Sized, V: Value + ?Sized>(store: &Store<K, V>, eighths: u64) -> Result<()> {
    let engine = &store.engine;
    let Some(caching) = &engine.caching else { return Ok(()) };
    let (begin, tail) = (engine.log.bounds.begin.load(Acquire), engine.log.tail());
    engine.drop_oldest(caching, begin + (tail - begin) / 8 * eighths).map(drop)
}

/// A read transaction that can be kept beside its store.
pub struct Held<K: Key + ?Sized, V: Value + ?Sized> {
    store: Store<K, V>,
    snapshot: Snapshot,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Held<K, V> {
    /// Begins one.
    ///
    /// # Errors
    /// Those of [`Store::begin_read`].
    pub fn of(store: &Store<K, V>) -> Result<Self> {
        Ok(Self { store: store.clone(), snapshot: store.engine.snapshot()? })
    }

    /// A scan through what there was.
    pub fn scan(&self) -> Scan<'_, K, V> {
        self.store.scan_as_of(Some(self.snapshot.view))
    }
}
