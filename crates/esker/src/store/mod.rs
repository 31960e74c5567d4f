//! The store: one operation on one key, and many of them at once.
//!
//! Each operation first tries what nearly always works: the entry's first record is the key's, in memory, and what is to be
//! done can be done there. Else it takes steps (`step.rs`) until one completes: pin, locate the key's newest record, act by
//! its region, publish; or say what is missing (room, the device, the end of the fuzzy region), wait for it unpinned, and
//! begin again.
//!
//! | record is          | get            | blind put           | rmw, append, delete                      |
//! |--------------------|----------------|---------------------|------------------------------------------|
//! | mutable            | read           | in place            | in place                                 |
//! | fuzzy (`safe_read_only <= a < read_only`) | read | copy to the tail | wait until it is safe: another thread may still write it |
//! | frozen in memory   | read           | copy to the tail    | copy to the tail                         |
//! | on the device      | read it        | append to the tail  | read it, then append to the tail         |
//!
//! Blocking calls wait themselves, asynchronous ones (`waiting.rs`) have it done by helper threads (`helpers.rs`).
//!
//! `find.rs` finds records, the engine's `descent.rs` those on the device, `read.rs` reads, `put.rs` puts in one attempt, `word.rs` and
//! `bytes.rs` change the two layouts, `batch.rs` does many keys, `cold.rs` changes those of them that are cold, `batch_async.rs` has their
//! futures,
//! `history.rs` reads older versions, `expire.rs` ends keys, `load.rs` loads what is missed, `promote.rs` keeps what a cache reads.

mod batch;
mod batch_async;
#[cfg(all(test, not(any(loom, shuttle))))]
mod batch_tests;
mod bytes;
mod cold;
mod conditional;
mod expire;
mod find;
mod helpers;
mod history;
mod load;
mod promote;
mod put;
mod read;
mod step;
mod transaction;
mod waiting;
mod word;

use crate::cache::{self, Ending, Flights};
use crate::engine::{BUDGET_BYTES_MIN, Engine};
use crate::epoch::Counter;
use crate::error::{Error, Result, about};
use crate::options::ByteCount;
use crate::record::{self, ABSENT, KEY_BYTES_MAX, TOMBSTONE};
use crate::stats::Stats;
use crate::sync::atomic::Ordering::AcqRel;
use crate::sync::{Mutex, Rule, broken, lock, try_lock};
use crate::types::{Key, Layout, Value, layout};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, take};
use std::process;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(crate) use conditional::Doomed;
pub use conditional::Version;
pub use expire::Ttl;
use helpers::Helpers;
pub use load::Loading;
use step::{Known, Step};
pub use transaction::{ReadTransaction, Transaction};

/// A key-value store, used through `&self` from any thread. Cloning it is cheap and gives the same store. Dropping the last clone closes
/// it, and swallows the error that [`Store::close`] would return. Inside a closure that it runs under a pin ([`crate::Error::Invalid`]
/// names them) the drop returns at once, and another thread closes when the closure has ended. A `static` is never dropped: close what is
/// in one before the program ends.
pub struct Store<K: Key + ?Sized, V: Value + ?Sized> {
    pub(crate) engine: Arc<Engine>,
    closer: Arc<Closer>,
    types: PhantomData<fn(&K, &V)>,
}

/// Closes the engine with the last clone of the store.
struct Closer {
    engine: Arc<Engine>,
    driver: Mutex<Option<JoinHandle<()>>>,
    helpers: Helpers,
    /// What the first close came to; held while it goes on.
    closed: Mutex<Option<Result<()>>>,
    /// In a cache the engine's.
    flights: Arc<Flights>,
    /// Whose threads and files these are: not those of a process that was forked from it.
    process: u32,
}

impl Closer {
    fn new(engine: Arc<Engine>, driver: Option<JoinHandle<()>>) -> Self {
        let flights = engine.caching.as_ref().map_or_else(|| Arc::new(Flights::new()), |caching| caching.flights.clone());
        let (driver, closed) = (Mutex::new(driver), Mutex::new(None));
        Self { engine, driver, helpers: Helpers::default(), closed, flights, process: process::id() }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if self.is_forked() {
            // Neither written to nor removed: all of it is the other process's.
            return std::mem::forget(self.engine.clone());
        }
        if self.engine.epochs.is_inside() {
            return self.close_elsewhere();
        }
        // A failure to flush was latched and told to every writer; a drop cannot return it. `close` can.
        let _ = self.close();
    }
}

impl Closer {
    /// From inside a closure that the store runs: the close waits for its end, so another thread closes. Without a thread the store stays
    /// open as long as the process.
    fn close_elsewhere(&mut self) {
        let (driver, helpers, closed) = (take(&mut self.driver), take(&mut self.helpers), take(&mut self.closed));
        let rest = Self { engine: self.engine.clone(), driver, helpers, closed, flights: self.flights.clone(), process: self.process };
        let rest = ManuallyDrop::new(rest);
        let _ = std::thread::Builder::new().name("esker-closer".into()).spawn(move || drop(ManuallyDrop::into_inner(rest)));
    }

    fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    fn close(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::invalid("the store belongs to the process from which this one was forked"));
        }
        // A store's own thread waits for none: two that closed each other's store would wait for each other. Nor does a listener, for which
        // a close waits.
        let may_wait = !helpers::is_own() && !cache::is_telling();
        let result = {
            let closed = if may_wait { Some(lock(&self.closed)) } else { try_lock(&self.closed) };
            // What is told is so: who closes beside another waits until all is written.
            let Some(mut closed) = closed else { return Err(Error::Closed) };
            let close = || {
                // Before anybody is waited for, who may wait for a load.
                self.flights.close();
                self.engine.close()
            };
            closed.get_or_insert_with(|| helpers::as_own(close)).clone()
        };
        // Who may not wait leaves the threads to a later close that may.
        let mut driver = self.driver.lock().unwrap_or_else(|e| e.into_inner());
        driver.as_ref().inspect(|driver| driver.thread().unpark());
        let waited_for = if may_wait { driver.take() } else { None };
        drop(driver);
        if let Some(driver) = waited_for {
            let _ = driver.join();
        }
        self.helpers.close(may_wait);
        result
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Store<K, V> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), closer: self.closer.clone(), types: PhantomData }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Store<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("layout", &self.engine.layout).finish_non_exhaustive()
    }
}

/// The longest values that a get has no buffer for.
const SHORT_BYTES: usize = 64;

/// A value of at most eight bytes as the atomic word that holds it.
#[inline(always)]
fn to_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    pub(crate) const WORD: bool = matches!(layout::<K, V>(), Layout::Word { .. });
    pub(crate) const KEY_WIDTH: usize = match K::WIDTH {
        Some(width) => width,
        None => 0,
    };
    pub(crate) const VALUE_WIDTH: usize = match V::WIDTH {
        Some(width) => width,
        None => 0,
    };
    /// Bytes records whose keys have one length, and their values one that is short: a get needs no buffer.
    const IS_SHORT: bool = !Self::WORD && K::WIDTH.is_some() && V::WIDTH.is_some() && Self::VALUE_WIDTH <= SHORT_BYTES;

    pub(crate) fn start(engine: Engine) -> Result<Self> {
        if engine.keeps_versions {
            engine.keep_versions();
            // From here on all take the steps, which ask for a record's region; and in no region does it change in place.
            engine.begin_latching()?;
        }
        let engine = Arc::new(engine);
        let driven = engine.clone();
        let drive = move || {
            helpers::belong_to_store();
            driven.run_driver();
        };
        let driver = std::thread::Builder::new().name("esker-driver".into());
        let refused = |error| about(error, "thread=esker-driver");
        let driver = if engine.in_background { Some(driver.spawn(drive).map_err(refused)?) } else { None };
        let closer = Arc::new(Closer::new(engine.clone(), driver));
        Ok(Self { engine, closer, types: PhantomData })
    }

    #[cfg(test)]
    pub(crate) fn engine_for_test(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// A store without a driver.
    #[cfg(all(loom, test))]
    pub(crate) fn for_model(engine: Arc<Engine>) -> Self {
        let closer = Arc::new(Closer::new(engine.clone(), None));
        Self { engine, closer, types: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hasher.hash(key, K::WIDTH.filter(|_| Self::WORD))
    }

    /// Gives a slow path a key of its own: the caller's may then live in a register and nowhere else.
    #[inline(always)]
    fn with_copy<R>(key: &[u8], slowly: impl FnOnce(&[u8]) -> R) -> R {
        match <[u8; 8]>::try_from(key) {
            Ok(copy) if Self::KEY_WIDTH == 8 => slowly(&copy),
            _ => slowly(key),
        }
    }

    /// A key whose length the compiler knows where keys have one: for functions that are not compiled into their callers.
    #[inline(always)]
    fn of_known_length(key: &[u8]) -> &[u8] {
        if K::WIDTH.is_some() { &key[..Self::KEY_WIDTH] } else { key }
    }

    /// The same for a value.
    #[inline(always)]
    fn value_of_known_length(value: &[u8]) -> &[u8] {
        if V::WIDTH.is_some() { &value[..Self::VALUE_WIDTH] } else { value }
    }

    /// A key is about to be deleted: what loads know of it is no longer so. Next to nothing where nothing is loaded. Not under a pin.
    ///
    /// # Errors
    /// `Closed`; `Invalid` inside a closure that the store runs, which could hold what is waited for.
    #[inline(always)]
    fn outdate_load(&self, key: &[u8], deletes: bool, hash: impl FnOnce() -> u64) -> Result<Option<Ending<'_>>> {
        if self.closer.flights.are_used() { self.begin_ending(key, hash(), deletes).map(Some) } else { Ok(None) }
    }

    fn begin_ending(&self, key: &[u8], hash: u64, deletes: bool) -> Result<Ending<'_>> {
        drop(self.engine.epochs.pin()?);
        Ok(self.closer.flights.begin_ending(key, hash, deletes))
    }

    fn delete_attempt<'s>(
        &'s self,
        key: &[u8],
        hash: u64,
        known: &Known,
        version: Option<Version>,
        ending: &mut Option<Ending<'s>>,
    ) -> Result<Step<bool>> {
        let step = self.delete_version_step(key, hash, known, version)?;
        self.seen_by_loads(step, key, hash, true, ending)
    }

    /// How an attempt at what ends a key ended. One that waits is seen by the first load of all, too, which may begin meanwhile.
    fn seen_by_loads<'s, T>(
        &'s self,
        step: Step<T>,
        key: &[u8],
        hash: u64,
        deletes: bool,
        ending: &mut Option<Ending<'s>>,
    ) -> Result<Step<T>> {
        if ending.is_none() && !matches!(step, Step::Done(_)) {
            *ending = Some(self.begin_ending(key, hash, deletes)?);
        }
        Ok(step)
    }

    /// The bytes of the log that a record with this room for a value takes.
    fn record_bytes_of(key: &[u8], room: usize, expires: u64) -> u64 {
        let own = if Self::WORD { Self::RECORD_BYTES } else { record::bytes_record_bytes(key.len(), room) };
        own + record::expiry_bytes(record::expiry_flags(expires))
    }

    fn count(&self, what: Counter) -> Result<()> {
        self.engine.epochs.count(what, 1)
    }

    #[inline(always)]
    fn check_key(key: &[u8]) -> Result<()> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!("a key has at most {KEY_BYTES_MAX} bytes key={}", key.len())));
        }
        Ok(())
    }

    #[inline(always)]
    fn check_value(&self, bytes: usize) -> Result<()> {
        if bytes as u64 <= BUDGET_BYTES_MIN / 4 { Ok(()) } else { self.check_long_value(bytes) }
    }

    #[cold]
    fn check_long_value(&self, bytes: usize) -> Result<()> {
        let most = self.engine.value_bytes_max();
        if bytes as u64 > most {
            return Err(Error::invalid(format!("a value has at most 16 MiB or a quarter of the budget max={most} value={bytes}")));
        }
        Ok(())
    }

    /// The end of every writing call: with `Durability::Always` its result waits for a line. (Words written at once need none:
    /// such stores write none at once.)
    #[inline(always)]
    fn written<T>(&self, result: T) -> Result<T> {
        if self.engine.is_always_durable {
            self.engine.commit()?;
        }
        Ok(result)
    }

    // ---- one key -------------------------------------------------------------------------------------------------

    /// The value of `key`.
    ///
    /// # Errors
    /// `Corruption` or `Io` when the record is cold and cannot be read; `Invalid` for a key above 64 KiB, and inside a closure that the
    /// store runs; `Closed`.
    ///
    /// # Cost
    /// Two cache misses in memory. Else one device read for each cold record that it passes on the key's chain: usually one, more where
    /// keys share an index entry.
    #[inline(always)]
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        if Self::WORD {
            return self.get_word(key.bytes(), |word| V::own(&word.to_ne_bytes()[..Self::VALUE_WIDTH]));
        }
        if Self::IS_SHORT {
            return self.get_short(key.bytes());
        }
        self.get_bytes(key.bytes(), V::own)
    }

    /// What `read` makes of the value of `key`. It runs on a copy, outside the store: it may take its time, and use the store.
    ///
    /// # Errors
    /// As [`Store::get`].
    #[inline(always)]
    pub fn get_with<R>(&self, key: &K, read: impl FnOnce(V::View<'_>) -> R) -> Result<Option<R>> {
        if Self::WORD {
            return self.get_word(key.bytes(), |word| read(V::view(&word.to_ne_bytes()[..Self::VALUE_WIDTH])));
        }
        if Self::IS_SHORT {
            return Ok(self.get_short(key.bytes())?.map(|value| read(V::view(value.borrow().bytes()))));
        }
        self.get_bytes(key.bytes(), |bytes| read(V::view(bytes)))
    }

    /// True if `key` has a value.
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Cost
    /// That of [`Store::get_with`]: the value is read.
    pub fn contains(&self, key: &K) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// Sets the value of `key`, whatever it was, without reading the old one from the device. An expiry that it had goes.
    ///
    /// # Errors
    /// `Full` in memory, and in a cache beside a scan; `Invalid` for a key or value that is too large and inside a closure that the store
    /// runs: nothing was changed then. `Io` when the log cannot be written any more, and `Closed`: the change may have been made, and may
    /// be there or not after a reopening.
    ///
    /// # Cost
    /// In place: two cache misses. Otherwise a record at the log's tail; where memory is full that waits until older log is written.
    #[inline(always)]
    pub fn put(&self, key: &K, value: &V) -> Result<()> {
        if Self::WORD {
            return self.put_word(key.bytes(), to_word(value.bytes()));
        }
        self.put_bytes(key.bytes(), value.bytes())
    }

    /// Sets the value of `key` to what `update` makes of the old one (`None` if there is none); returns the new one. An expiry stays.
    ///
    /// `update` may run again when another thread was quicker, or a commit began meanwhile; the last call counts. It runs inside the store,
    /// and must neither use it (`Invalid`) nor take long: nothing is evicted or committed until it returns.
    ///
    /// # Errors
    /// As [`Store::put`] and, for a cold key, as [`Store::get`].
    ///
    /// # Cost
    /// In place as [`Store::put`]; a cold key is read first, and gets a new record.
    ///
    /// # Examples
    /// ```
    /// let hits: esker::Store<str, u64> = esker::Options::new().memory("16MiB").in_memory()?;
    /// assert_eq!(hits.rmw("/index", |old| old.unwrap_or(0) + 1)?, 1);
    /// assert_eq!(hits.rmw("/index", |old| old.unwrap_or(0) + 1)?, 2);
    /// # Ok::<(), esker::Error>(())
    /// ```
    #[inline(always)]
    pub fn rmw(&self, key: &K, mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        if Self::WORD {
            let word = self.rmw_word(key.bytes(), &mut |old| Self::updated_word(old, &mut update))?;
            return Ok(V::own(&word.to_ne_bytes()[..Self::VALUE_WIDTH]));
        }
        let new = self.rmw_bytes(key.bytes(), update)?;
        self.written(new)
    }

    #[inline(always)]
    fn updated_word(old: Option<u64>, update: &mut impl FnMut(Option<V::View<'_>>) -> V::Owned) -> u64 {
        let old = old.map(u64::to_ne_bytes);
        to_word(update(old.as_ref().map(|bytes| V::view(&bytes[..Self::VALUE_WIDTH]))).borrow().bytes())
    }

    /// Removes `key`; true if it had a value.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Cost
    /// In place as [`Store::put`]; a cold key is read first, and gets a record that says so.
    pub fn delete(&self, key: &K) -> Result<bool> {
        self.delete_key(key.bytes())
    }

    pub(crate) fn delete_key(&self, key: &[u8]) -> Result<bool> {
        let mut ending = self.outdate_load(key, true, || self.hash(key))?;
        if !Self::WORD {
            Self::check_key(key)?;
        }
        let hash = self.hash(key);
        if self.delete_now(hash, || self.engine.index.first_match(hash), key) {
            return Ok(true);
        }
        let was_there = self.run(key, |known| self.delete_attempt(key, hash, known, None, &mut ending))?;
        self.written(was_there)
    }

    /// Counts a delete, and does it where the first record of the key's entry is the key's, and mutable. True if it had a value.
    #[inline(always)]
    fn delete_now(&self, hash: u64, first: impl FnOnce() -> u64, key: &[u8]) -> bool {
        let Some(pin) = self.engine.epochs.pin_to_write(Counter::Delete) else { return false };
        let first = first();
        let Some(record) = self.mutable_record_of(first, key) else { return false };
        // Held until the deletion is there: who supersedes the record meanwhile would not see it.
        let latched = (!Self::WORD).then(|| record.latch());
        if latched.as_ref().is_some_and(|latched| !latched.is_whole_truth()) {
            return false;
        }
        let latched = latched.filter(|_| !broken(Rule::DeletionIsLatched));
        let was_there = record.header().fetch_or(TOMBSTONE, AcqRel) & ABSENT == 0;
        drop(latched);
        if was_there {
            pin.slot.count(Counter::DeadByte, record.bytes(self.engine.layout));
            // Its lowest bits mean nothing.
            self.leave_place(&pin, hash, first & !7, record);
        }
        was_there
    }

    /// One attempt at a delete, in either layout. Done: whether a value was there.
    #[inline(always)]
    fn delete_step(&self, key: &[u8], hash: u64, known: &Known) -> Result<Step<bool>> {
        if Self::WORD { self.delete_word_step(key, hash, known) } else { self.delete_bytes_step(key, hash, known) }
    }

    // ---- the store itself ----------------------------------------------------------------------------------------

    /// Changes the memory budget while operations go on. Lowering it evicts before it returns; in memory it compacts, if that may be
    /// enough.
    ///
    /// # Errors
    /// `Invalid` for what is no number of bytes, below 16 MiB, above the address space that the system grants, or below what cannot be
    /// given back: over a device the index and 6 MiB (while a scan has borrowed of the log's memory that as well, and room for two and a
    /// half of the longest values); in memory all that lives in the store, or is held by a scan, and compaction's reserve. `Full` for a
    /// cache in memory whose oldest pairs a scan, an iterator or a read transaction will still show; `Io`; `Closed`. The budget is the old
    /// one then.
    pub fn set_memory(&self, budget: impl ByteCount) -> Result<()> {
        let bytes = budget.byte_count()?;
        self.engine.guarded(|| self.engine.set_budget(bytes))
    }

    /// Goes once through the whole log: live records are copied to its tail, the space of all others comes back. Returns the bytes that
    /// were given back less those that were copied, or 0 if these are more; 0 while a scan holds the log. It also happens by itself, in the
    /// background, when the log is longer than [`Options::space_amplification`](crate::Options::space_amplification) says; other operations
    /// go on meanwhile.
    ///
    /// # Errors
    /// `Io`, `Corruption` for a damaged block, by address; `Closed`; `Invalid` inside a closure that the store runs. Where a store in
    /// memory has no room to move anything it ends early, without one.
    ///
    /// # Cost
    /// Reads the log, and writes what is live.
    pub fn compact(&self) -> Result<u64> {
        self.engine.guarded(|| self.engine.compact_all())
    }

    /// One stretch of what the background does to win space back, due or not. What it would give back may wait for the next line.
    #[doc(hidden)]
    pub fn compact_stretch(&self) -> Result<bool> {
        self.engine.guarded(|| self.engine.compact_once())
    }

    /// Writes an image of the index, so that opening after a crash need not read the log that came before. It also happens by itself, in
    /// the background, when the log behind the last image is twice as long as the index, and at least 64 MiB. Other operations go on
    /// meanwhile; compaction and the index's growth wait. All that had returned before the call is durable afterwards. In a cache there may
    /// be no image while a scan, or a damaged block, keeps what was dropped from being given back: then this is a commit.
    ///
    /// # Errors
    /// As [`Store::commit`]; `Invalid`, after a commit, for a store on a bare device, which has no place for an image.
    ///
    /// # Cost
    /// Two commits, and the index's size in writes.
    pub fn save_index(&self) -> Result<()> {
        // Not from inside a closure that compaction runs, for it would wait for itself.
        drop(self.engine.epochs.pin()?);
        self.engine.take_image()
    }

    /// Figures about this store: memory, log, space, index, calls, warnings. Also after [`Store::close`].
    ///
    /// # Cost
    /// Reads a sample: some hundreds of buckets of the index, and their chains in memory; some tenths of a millisecond at most.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Returns when everything that had returned before this call is durable, as an exact cut: after a crash the store holds what came
    /// before some moment, and nothing from after it. Other operations go on meanwhile; commits at the same time share the work.
    ///
    /// # Errors
    /// `Io` when the device failed: from then on all writes refuse, or, if it was only full, until there is room; reads go on. Opening the
    /// store again recovers what was durable. `Invalid` for a store in memory, and inside a closure that the store runs. `Closed`.
    ///
    /// # Cost
    /// Writes what changed since the last commit, or next to nothing, and syncs once; the log's file and the manifest, one after the other,
    /// if that was more than about a mebibyte, and now and then otherwise; each further file of the log that was begun. Each record is
    /// copied once when it changes for the first time after a commit.
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let directory = folder.path();
    /// use esker::{Durability, Options, Store};
    /// use std::time::Duration;
    ///
    /// let options = Options::new().memory("16MiB").durability(Durability::Every(Duration::from_millis(100)));
    /// let store: Store<u64, u64> = options.open(directory)?;
    /// store.put(&1, &7)?; // durable within about 100 ms
    /// store.commit()?; // durable now
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn commit(&self) -> Result<()> {
        self.engine.commit()
    }

    /// Writes everything to the device, so that opening the directory again finds it. Later calls answer `Closed`, but for
    /// [`Store::stats`], [`Scan::explain`](crate::Scan::explain), batches of nothing, and another `close`, which waits for the first one
    /// and answers what that answered.
    ///
    /// # Errors
    /// `Io`: not all could be written. `Closed` from a waker or a listener while another thread closes, which they do not wait for.
    /// `Invalid` from inside a closure that the store runs, for the close would wait for itself: the store stays open then; and in a
    /// process that was forked from the one that opened it.
    ///
    /// # Cost
    /// Writes what of the log is in memory only, and an image of the index, with a few syncs. Nothing for a store that cannot be opened
    /// again: in memory, in a temporary directory, on a device of your own. Of such nothing is written, whatever failed before.
    pub fn close(&self) -> Result<()> {
        if self.engine.epochs.is_inside() {
            return Err(Error::invalid("the store was closed from inside a closure that it runs"));
        }
        self.closer.close()
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Appends `bytes` to the value of `key`, which is made if it does not exist; returns the new length in bytes.
    ///
    /// # Errors
    /// As [`Store::rmw`]; `Invalid` if the value would become too large.
    ///
    /// # Cost
    /// In place while the record has room, which each copy renews by half: amortised O(`bytes`). What a line has frozen, or lies on the
    /// device, is copied once before: a key costs O(its value) for each line that it grows behind, with `Durability::Always` for each call.
    pub fn append(&self, key: &K, bytes: &[u8]) -> Result<usize> {
        let length = self.append_bytes(key.bytes(), bytes)?;
        self.written(length)
    }
}
