//! Transactions that only read: the store as of one moment, whatever writers do.
//!
//! ```text
//! chain of a key:   entry -> newer -> newer -> | cut | -> the version as of the cut -> ...
//! ```
//! A [`ReadTransaction`] is a snapshot (`snapshot.rs`): a line is drawn without the device, and from then on each key is found as it
//! was at the cut, by walking its chain down to the first record that counts; on the device, if it leads there. Nothing is
//! validated and nothing can conflict: what lies below a cut does not change any more.
//!
//! **It is serializable with those that write**, at the moment of the cut: a transaction is on one side of a line, and so is each
//! plain call with all that could know of it. Nor is there a cycle through a mere read: who committed after the cut, having read
//! a key, held its latch or its version after the cut; whoever changed that key behind him finds the new line. (Plain calls hold
//! latches from the first transaction on. Before, one that the cut waits for may come behind a read of its key by somebody who has
//! written behind the cut.)
//! Ends of keys are judged by the clock as of the cut, which is read while no transaction is in its commit.

use super::super::Store;
use super::super::read::with_scratch;
use crate::descent;
use crate::epoch::Counter;
use crate::error::Result;
use crate::record::Record;
use crate::scan::{Scan, Strategy};
use crate::snapshot::{Newest, Snapshot};
use crate::sync::atomic::Ordering::*;
use crate::sync::hint;
use crate::types::{Key, Value};
use std::borrow::Borrow;

/// A transaction that only reads: the store as of the moment at which it began. It never conflicts, and once it has begun nobody waits for
/// it.
///
/// While it lives no space comes back that it could need, and each record that was there before is copied once when it changes: let it
/// end soon.
pub struct ReadTransaction<'s, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'s Store<K, V>,
    snapshot: Snapshot,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Runs `body` with a view of the store as of one moment: all that had returned before the call, transactions whole, nothing
    /// that begins after it. `body` runs once; it may write to this store, and does not see it.
    ///
    /// # Errors
    /// What `body` answers; else as [`Store::begin_read`].
    ///
    /// # Cost
    /// As [`Store::begin_read`].
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").in_memory()?;
    /// accounts.put_many(&[("ada", 70), ("ben", 30)])?;
    /// let sum = accounts.read_transaction(|tx| {
    ///     accounts.put("ben", &1_000)?;
    ///     Ok(tx.get("ada")?.unwrap_or(0) + tx.get("ben")?.unwrap_or(0))
    /// })?;
    /// assert_eq!(sum, 100);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn read_transaction<R>(&self, body: impl FnOnce(&ReadTransaction<'_, K, V>) -> Result<R>) -> Result<R> {
        body(&self.begin_read()?)
    }

    /// Begins a transaction that only reads, which ends when it is dropped.
    ///
    /// # Errors
    /// `Closed`; `Invalid` inside a closure that the store runs.
    ///
    /// # Cost
    /// A line without the device: some microseconds, and as long as the slowest call inside the store. Each record that was there before
    /// is copied once when it changes next, as after a [`Store::commit`]. While it lives the log's beginning stays: a store in memory
    /// that is full answers `Full` to writers, and so does a cache.
    pub fn begin_read(&self) -> Result<ReadTransaction<'_, K, V>> {
        Ok(ReadTransaction { store: self, snapshot: self.engine.snapshot()? })
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> ReadTransaction<'_, K, V> {
    /// The value of `key` as of the beginning.
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Cost
    /// As [`Store::get`], and a step for each version that is newer. A cold key is read each time it is asked for.
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        self.read_bytes(key, V::own)
    }

    /// What `read` makes of the value of `key`, as [`ReadTransaction::get`] gives it.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_with<R>(&self, key: &K, read: impl FnOnce(V::View<'_>) -> R) -> Result<Option<R>> {
        self.read_bytes(key, |bytes| read(V::view(bytes)))
    }

    /// True if `key` had a value at the beginning.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn contains(&self, key: &K) -> Result<bool> {
        Ok(self.read_bytes(key, |_| ())?.is_some())
    }

    /// The values of `keys` as of the beginning, shown to `visit` in any order, of those that had one. List each key once.
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Cost
    /// As that of [`Store::get_many`].
    pub fn get_many<Q: Borrow<K> + Sync>(&self, keys: &[Q], visit: impl for<'v> FnMut(K::View<'v>, V::View<'v>)) -> Result<()> {
        if K::WIDTH.is_none() {
            keys.iter().try_for_each(|key| Store::<K, V>::check_key(key.borrow().bytes()))?;
        }
        self.scan().keys(keys).by(Strategy::ByKeys).for_each(visit)
    }

    /// A scan through all keys with a value at the beginning; [`Scan::aggregate`] of it sums them up.
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").in_memory()?;
    /// accounts.put_many(&[("ada", 70), ("ben", 30)])?;
    /// let (ada, all) = accounts.read_transaction(|tx| {
    ///     accounts.put("ada", &1_000)?;
    ///     Ok((tx.get("ada")?, tx.scan().fold(|| 0, |sum, _, value| *sum += value, |sum, other| *sum += other)?))
    /// })?;
    /// assert_eq!((ada, all), (Some(70), 100));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn scan(&self) -> Scan<'_, K, V> {
        self.store.scan_as_of(Some(self.snapshot.view))
    }

    fn read_bytes<R>(&self, key: &K, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = key.bytes();
        Store::<K, V>::check_key(key)?;
        self.store.count(Counter::Get)?;
        with_scratch(|buffer| {
            buffer.clear();
            let is_there = self.find(key, buffer)?;
            if !is_there {
                self.store.count(Counter::Miss)?;
            }
            Ok(is_there.then(|| read(buffer)))
        })
    }

    /// Reads a key's value as of the cut, if it had one.
    fn find(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        let (engine, view) = (&self.store.engine, &self.snapshot.view);
        let hash = self.store.hash(key);
        loop {
            let pin = engine.epochs.pin()?;
            let seen = engine.index.lookup(hash);
            match engine.newest_in(view, seen.address(), 0, |record| self.store.is_of(*record, key)) {
                // The wrong bucket, or a shorter tag, if it was moving.
                Newest::Memory(_) if !engine.index.leads_surely(&seen) => hint::spin_loop(),
                Newest::Memory(record) => return Ok(self.read_record(record, into)),
                _ if !engine.index.is_settled(&seen) => hint::spin_loop(),
                Newest::Cold(at) => {
                    drop(pin);
                    return self.find_cold(at, key, into);
                }
                Newest::Nowhere { .. } => return Ok(false),
            }
        }
    }

    fn find_cold(&self, at: u64, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        let view = &self.snapshot.view;
        let mut is_value = false;
        descent::visit_in(&self.store.engine, view, at, key, Counter::DeviceRead, |record| {
            is_value = view.is_value(record.header, record.expires);
            into.extend_from_slice(record.value);
            false
        })?;
        Ok(is_value)
    }

    /// Under a pin.
    fn read_record(&self, record: Record, into: &mut Vec<u8>) -> bool {
        if !record.is_plain() && !self.snapshot.view.is_value(record.header().load(Acquire), self.store.engine.expiry_of(record)) {
            return false;
        }
        self.store.copy_value(record, into);
        true
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for ReadTransaction<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadTransaction").finish_non_exhaustive()
    }
}
