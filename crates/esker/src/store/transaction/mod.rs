//! Transactions: several keys or none, at one moment.
//!
//! ```text
//! begin ... get, put, rmw, delete, append ... commit
//!           reads note what they saw           latch - validate - carry out - let go
//!           writes stay here                   `commit.rs`; all of it under one pin
//! ```
//! Optimistic: nothing is held and nothing is changed before the commit. A commit that finds that something read has changed since
//! is a [`Error::Conflict`] and changes nothing; [`Store::transaction`] begins again then. What committed is strictly
//! serializable with all other transactions and with every plain operation on one key.
//!
//! * **No deadlock, by construction**: a transaction holds latches only inside its commit. There it waits for nothing but latches above
//!   all those that it holds, and for a while only, then it is a conflict. Plain operations hold one, and wait for no other.
//! * **No lost progress**: latches are taken in one order, so of transactions that get into each other's way while latching one
//!   gets through. Those that met while validating back off for random times.
//! * **Reads before the commit** are each of some moment, perhaps not the same. A transaction that saw a mixture cannot commit; until
//!   then its closure must do nothing that matters outside. Not even its errors count: [`Store::transaction`] passes them on only
//!   if what was read still stands.
//!
//! `witness.rs` says what a read has seen, `commit.rs` how many keys change at once, `latches.rs` (of the engine) who keeps
//! out of whose way. `reading.rs` has transactions that only read, and need none of that; `waiting.rs` the asynchronous calls.

mod backoff;
mod commit;
mod many;
mod reading;
mod waiting;
mod witness;

use super::Store;
use super::read::with_scratch;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::record::NEVER;
use crate::types::{Key, Value};
use backoff::Backoff;
use hashbrown::HashTable;
pub use reading::ReadTransaction;
use std::borrow::Borrow;
use std::time::Duration;
use witness::Read;

/// A transaction under way. It changes nothing before [`Transaction::commit`]; dropped without, it has changed nothing at all.
pub struct Transaction<'s, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'s Store<K, V>,
    /// Every key that was read or written, once.
    touched: Vec<Touched<K, V>>,
    by_key: HashTable<usize>,
}

struct Touched<K: Key + ?Sized, V: Value + ?Sized> {
    key: K::Owned,
    hash: u64,
    /// What the store held, if that was asked.
    read: Option<Read>,
    write: Option<Write<V>>,
    /// Its deletion was asked for, though it may have had no value.
    is_deleted: bool,
}

enum Write<V: Value + ?Sized> {
    Put(Put<V>),
    Delete,
}

/// A value that a key gets.
struct Put<V: Value + ?Sized> {
    value: V::Owned,
    /// Room in its record, in bytes.
    room: usize,
    /// When it ends: as the key's value that was read, or as the caller said.
    expires: u64,
}

impl<V: Value + ?Sized> Put<V> {
    fn bytes(&self) -> &[u8] {
        self.value.borrow().bytes()
    }
}

impl<V: Value + ?Sized> Write<V> {
    /// The value, unless its end has passed.
    fn bytes(&self, now: impl FnOnce() -> u64) -> Option<&[u8]> {
        match self {
            Self::Put(put) if put.expires == NEVER || put.expires > now() => Some(put.bytes()),
            _ => None,
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Touched<K, V> {
    fn key(&self) -> &[u8] {
        self.key.borrow().bytes()
    }

    fn conflict(&self) -> Error {
        Error::Conflict { key: self.key().into() }
    }

    /// When the value ends that the transaction saw, if it saw one.
    fn expires_if(&self, is_there: bool) -> u64 {
        match &self.write {
            Some(Write::Put(put)) if is_there => put.expires,
            None if is_there => self.read.map_or(NEVER, |read| read.expires),
            _ => NEVER,
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Runs `body` in a transaction and commits it: all its changes at one moment, or none. When another writer was quicker,
    /// `body` runs again, up to a hundred times with growing pauses; so it must have no effects besides those through the transaction.
    ///
    /// It may also use this store directly; that is not part of the transaction. The first transaction makes the plain calls of this
    /// store somewhat slower from then on (`# Cost`).
    ///
    /// # Errors
    /// The error that `body` returned, if all it had read was so at one moment (else it runs again): nothing was changed. One of its own
    /// is [`Error::aborted`].
    /// [`Error::Conflict`] if others were quicker every time. `Full`, `Io`, `Invalid` as [`Store::put`]; `Invalid` also for a transaction
    /// that the log's memory cannot take at once, before it changes anything. With [`Durability::Always`](crate::Durability::Always) an
    /// `Io` may come after the change.
    ///
    /// # Cost
    /// A commit of n keys: what n puts cost, and some 40 ns a key. In a store where there ever was a transaction a plain call
    /// looks at its key's latch: some nanoseconds, more for a put in place.
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").in_memory()?;
    /// accounts.put("ada", &100)?;
    /// accounts.transaction(|tx| {
    ///     let ada = tx.get("ada")?.unwrap_or(0);
    ///     tx.put("ada", &(ada - 30))?;
    ///     tx.rmw("ben", |old| old.unwrap_or(0) + 30)
    /// })?;
    /// assert_eq!((accounts.get("ada")?, accounts.get("ben")?), (Some(70), Some(30)));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn transaction<R>(&self, mut body: impl FnMut(&mut Transaction<'_, K, V>) -> Result<R>) -> Result<R> {
        let mut backoff = Backoff::default();
        loop {
            let mut transaction = self.begin()?;
            let result = match body(&mut transaction) {
                Ok(result) => transaction.commit().map(|()| result),
                // What made the closure fail may never have been true.
                Err(error) => Err(transaction.validate().err().unwrap_or(error)),
            };
            match result {
                Err(Error::Conflict { .. }) if backoff.wait() => {}
                result => return result,
            }
        }
    }

    /// Begins a transaction, to be committed by hand.
    ///
    /// # Errors
    /// `Closed`; `Invalid` inside a closure that the store runs.
    ///
    /// # Cost
    /// The first one makes other calls heed latches from then on, as [`Store::transaction`] says.
    pub fn begin(&self) -> Result<Transaction<'_, K, V>> {
        self.engine.begin_latching()?;
        Ok(Transaction { store: self, touched: Vec::new(), by_key: HashTable::new() })
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// The value of `key`, as this transaction has made it, or else as the store holds it.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Conflict`] if another writer has changed what this transaction read of it before.
    ///
    /// # Cost
    /// As [`Store::get`]: a cold key is read by itself. [`Transaction::get_many`] reads many together.
    pub fn get(&mut self, key: &K) -> Result<Option<V::Owned>> {
        self.read_bytes(key, V::own)
    }

    /// What `read` makes of the value of `key`, as [`Transaction::get`] gives it.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_with<R>(&mut self, key: &K, read: impl FnOnce(V::View<'_>) -> R) -> Result<Option<R>> {
        self.read_bytes(key, |bytes| read(V::view(bytes)))
    }

    /// True if `key` has a value, as [`Transaction::get`] gives it.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains(&mut self, key: &K) -> Result<bool> {
        Ok(self.read_bytes(key, |_| ())?.is_some())
    }

    /// Sets the value of `key`, whatever it was, when the transaction commits. It stays: an end of the key goes.
    ///
    /// # Errors
    /// `Invalid` for a key or value that is too large.
    pub fn put(&mut self, key: &K, value: &V) -> Result<()> {
        let bytes = value.bytes();
        self.set(key, V::own(bytes), bytes.len(), |_| NEVER)
    }

    /// Sets the value of `key`, whatever it was, when the transaction commits; it ends so long after this call, as with
    /// [`Store::put_with_ttl`].
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_with_ttl(&mut self, key: &K, value: &V, ttl: Duration) -> Result<()> {
        let (bytes, end) = (value.bytes(), self.store.end_after(ttl));
        self.set(key, V::own(bytes), bytes.len(), |_| end)
    }

    /// Sets the value of `key` to what `update` makes of the old one; returns the new one. An end of the key stays as it is; should
    /// it pass before the commit, that is a conflict.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::put`].
    pub fn rmw(&mut self, key: &K, update: impl FnOnce(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        let mut update = Some(update);
        let mut run = |old: Option<V::View<'_>>| update.take().map(|update| update(old));
        let old = self.read_bytes(key, |bytes| run(Some(V::view(bytes))))?;
        let is_there = old.is_some();
        let Some(new) = old.unwrap_or_else(|| run(None)) else { unreachable!("the closure runs once, with the value or without") };
        let bytes = new.borrow().bytes();
        self.set(key, V::own(bytes), bytes.len(), |touched| touched.expires_if(is_there))?;
        Ok(new)
    }

    /// Removes `key` when the transaction commits; true if it has a value now, which is read for that.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn delete(&mut self, key: &K) -> Result<bool> {
        let is_there = self.contains(key)?;
        self.set_deleted(key, is_there)?;
        Ok(is_there)
    }

    fn set_deleted(&mut self, key: &K, is_there: bool) -> Result<()> {
        let at = self.touch(key)?;
        // What a cache drops may come back in a crash, and what has ended when the clock is set back: whether anything need be written the
        // commit knows.
        let may_come_back = self.store.engine.caching.is_some() || self.store.engine.expiry.has_ends();
        let touched = &mut self.touched[at];
        touched.is_deleted = true;
        // What it put before, with an end that has passed, goes as well.
        if is_there || may_come_back || touched.write.is_some() {
            touched.write = Some(Write::Delete);
        }
        Ok(())
    }

    /// Makes all changes at one moment.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the key that another writer was quicker with; else as [`Store::transaction`]. Nothing was changed
    /// then, unless it is `Io` or `Closed` with [`Durability::Always`](crate::Durability::Always): others may see the change already.
    ///
    /// # Cost
    /// As [`Store::transaction`].
    pub fn commit(self) -> Result<()> {
        self.store.change_together(&self.touched)?;
        self.store.count_end(Counter::Transaction);
        Ok(())
    }

    /// Ends without any change, as dropping it does.
    pub fn abort(self) {}

    /// An error unless all that was read was true at one moment.
    fn validate(&mut self) -> Result<()> {
        self.forget_writes();
        self.store.change_together(&self.touched)
    }

    fn forget_writes(&mut self) {
        for touched in &mut self.touched {
            (touched.write, touched.is_deleted) = (None, false);
        }
    }

    /// The place of a key among those touched.
    fn touch(&mut self, key: &K) -> Result<usize> {
        let bytes = key.bytes();
        Store::<K, V>::check_key(bytes)?;
        let hash = self.store.hash(bytes);
        let touched = &mut self.touched;
        if let Some(at) = self.by_key.find(hash, |at| touched[*at].key() == bytes) {
            return Ok(*at);
        }
        touched.push(Touched { key: K::own(bytes), hash, read: None, write: None, is_deleted: false });
        self.by_key.insert_unique(hash, touched.len() - 1, |at| touched[*at].hash);
        Ok(touched.len() - 1)
    }

    fn read_bytes<R>(&mut self, key: &K, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let at = self.touch(key)?;
        if let Some(write) = &self.touched[at].write {
            return Ok(write.bytes(|| self.store.engine.expiry.now()).map(read));
        }
        with_scratch(|buffer| {
            let touched = &self.touched[at];
            let (now, is_there) = self.store.read_witnessed(touched.key(), touched.hash, buffer)?;
            self.note(at, now)?;
            Ok(is_there.then(|| read(buffer)))
        })
    }

    /// Remembers a read, which must agree with what was read before.
    fn note(&mut self, at: usize, now: Read) -> Result<()> {
        let touched = &mut self.touched[at];
        match touched.read {
            // Counted when the attempt ends.
            Some(before) if !before.agrees_with(&now, self.store.engine.caching.is_some()) => return Err(touched.conflict()),
            Some(_) => {}
            None => touched.read = Some(now),
        }
        Ok(())
    }

    fn set(&mut self, key: &K, value: V::Owned, room: usize, expires: impl FnOnce(&Touched<K, V>) -> u64) -> Result<()> {
        self.store.check_value(value.borrow().bytes().len())?;
        let at = self.touch(key)?;
        let touched = &mut self.touched[at];
        touched.write = Some(Write::Put(Put { value, room, expires: expires(touched) }));
        Ok(())
    }
}

impl<K: Key + ?Sized> Transaction<'_, K, [u8]> {
    /// Appends `bytes` to the value of `key`, which is made if it does not exist; returns the new length in bytes. An end of the key
    /// stays, as with [`Transaction::rmw`].
    ///
    /// # Errors
    /// As [`Transaction::rmw`].
    ///
    /// # Cost
    /// Copies the value, here and again at the commit: O(new length), where [`Store::append`] is O(`bytes`).
    pub fn append(&mut self, key: &K, bytes: &[u8]) -> Result<usize> {
        let old = self.get(key)?;
        self.set_appended(key, old.as_deref(), bytes)
    }

    fn set_appended(&mut self, key: &K, old: Option<&[u8]>, bytes: &[u8]) -> Result<usize> {
        let (is_there, old) = (old.is_some(), old.unwrap_or_default());
        self.store.check_value(bytes.len())?;
        let new = [old, bytes].concat();
        let length = new.len();
        let room = Store::<K, [u8]>::room_to_grow(old, length, self.store.engine.value_bytes_max() as usize);
        self.set(key, new, room, |touched| touched.expires_if(is_there))?;
        Ok(length)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Transaction<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("keys", &self.touched.len()).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Counts a conflict.
    fn met_conflict(&self, conflict: Error) -> Error {
        self.count_end(Counter::Conflict);
        conflict
    }

    fn count_end(&self, how: Counter) {
        // Who took part in a transaction has a slot.
        if let Ok(slot) = self.engine.epochs.slot() {
            slot.count(how, 1);
        }
    }
}
