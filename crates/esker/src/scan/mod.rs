//! Scans: every key with a value, once, as of one moment, while writers, growth, lines and compaction go on.
//!
//! A scan draws a snapshot (`snapshot.rs`), or is that of a transaction that has one, and goes through it one of three ways:
//!
//! | way        | reads                               | costs in memory, a key          | cold                         |
//! |------------|-------------------------------------|---------------------------------|------------------------------|
//! | `log.rs`   | the log from its beginning to the cut | a few ns; more where keys changed | streams                    |
//! | `index.rs` | the entries, and what they lead to  | two cache misses, overlapped    | a read each, many at a time  |
//! | `keys.rs`  | the keys of a list                  | the same                        | the same                     |
//!
//! Unless told, a scan takes the one that it estimates to be the cheapest (`plan.rs`), and can say so.
//!
//! **Closures run outside the store**, on copies: they may take their time, and use the store. Under the short pins in between
//! nothing of the user's runs but the test of which keys are asked for, to which the store answers `Invalid`.
//!
//! `page.rs` has what outlives a call: cursors, which draw no snapshot, and iterators, which keep one. `rayon.rs`, behind a
//! feature, gives a scan's shares to rayon's threads.

mod chains;
mod doubts;
mod index;
mod keys;
mod log;
mod page;
mod plan;
#[cfg(feature = "rayon")]
mod rayon;
mod rows;

#[cfg(feature = "rayon")]
pub use self::rayon::ParIter;
pub use page::{Cursor, Iter, Page};
pub use plan::{Plan, Strategy};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::record::{self, Record};
use crate::snapshot::{Snapshot, View};
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::thread;
use crate::types::{Key, Value};
use hashbrown::HashTable;
use index::ByIndex;
use keys::{ByKeys, Lent, List};
use log::ByLog;
use rows::Rows;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{ControlFlow, RangeInclusive};
use xxhash_rust::xxh3::xxh3_64;

/// So many bytes of records are read from the device between two questions whether the scan is to go on; a record counts as some at least.
const READ_UNASKED: usize = 1 << 20;
const READ_LEAST: usize = 256;
/// More threads only wait for each other.
const THREADS_MAX: usize = 256;

/// What is done with pairs, whichever way they are come by. The ways know it as `dyn`, so that each is compiled once for a store's types
/// and not once for each scan of a program; the loops over many pairs are here, where what is done with one is known.
trait Visit<K: Key + ?Sized, V: Value + ?Sized> {
    fn pair(&mut self, key: &[u8], value: &[u8]);

    /// Those that were copied.
    fn rows(&mut self, rows: &mut Rows);

    /// Those of a piece of the log in memory whose records are all the newest of their keys; how many bytes its whole records take.
    fn newest(&mut self, frame: &Frame<'_, K, V>, piece: &log::Piece<'_>) -> Result<usize>;
}

impl<K: Key + ?Sized, V: Value + ?Sized, F: FnMut(&[u8], &[u8])> Visit<K, V> for F {
    fn pair(&mut self, key: &[u8], value: &[u8]) {
        self(key, value);
    }

    fn rows(&mut self, rows: &mut Rows) {
        if Store::<K, V>::WORD {
            rows.drain_fixed(Store::<K, V>::KEY_WIDTH, Store::<K, V>::VALUE_WIDTH, self);
        } else {
            rows.drain(self);
        }
    }

    fn newest(&mut self, frame: &Frame<'_, K, V>, piece: &log::Piece<'_>) -> Result<usize> {
        log::newest(frame, piece, self)
    }
}

type Filter<'a, K, V> = dyn for<'v> Fn(<K as Value>::View<'v>, <V as Value>::View<'v>) -> bool + Send + Sync + 'a;
type KeyTest<'a, K> = dyn for<'v> Fn(<K as Value>::View<'v>) -> bool + Send + Sync + 'a;
type Progress<'a> = dyn Fn(f64) -> ControlFlow<Ends> + Send + Sync + 'a;

/// Whose share of a scan ends.
enum Ends {
    All,
    /// That of the thread that asked.
    #[cfg_attr(not(feature = "rayon"), allow(dead_code, reason = "said by a parallel iterator"))]
    Own,
}

/// A scan that is being described; [`Scan::for_each`] and its kin run it.
///
/// # Examples
/// ```
/// # let visits: esker::Store<str, u64> = esker::Options::new().memory("64MiB").in_memory()?;
/// for (page, count) in [("docs/a", 3), ("docs/b", 4), ("blog/a", 5)] {
///     visits.put(page, &count)?;
/// }
/// let mut docs = Vec::new();
/// visits.scan().prefix(b"docs/").for_each(|page, count| docs.push((page.to_owned(), count)))?;
/// docs.sort();
/// assert_eq!(docs, [("docs/a".to_owned(), 3), ("docs/b".to_owned(), 4)]);
/// # Ok::<(), esker::Error>(())
/// ```
#[must_use = "a scan does nothing until it is run"]
pub struct Scan<'a, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'a Store<K, V>,
    /// Of a snapshot that somebody holds for as long as `'a`.
    as_of: Option<View>,
    strategy: Option<Strategy>,
    threads: usize,
    keys: Option<Box<dyn List + 'a>>,
    /// Tells the listed keys from all others.
    is_listed: Option<Box<KeyTest<'a, K>>>,
    prefix: Option<Vec<u8>>,
    hashes: Option<RangeInclusive<u64>>,
    filter: Option<Box<Filter<'a, K, V>>>,
    progress: Option<Box<Progress<'a>>>,
}

/// What all ways of scanning need.
struct Frame<'a, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'a Store<K, V>,
    view: View,
    prefix: Option<Vec<u8>>,
    hashes: Option<RangeInclusive<u64>>,
    listed: Listed<'a, K>,
    control: Control<'a>,
}

/// Which keys are on a list, where it is not the list that is walked.
enum Listed<'a, K: Key + ?Sized> {
    All,
    /// By their places on the list.
    Of(HashTable<usize>, Box<dyn List + 'a>),
    If(Box<KeyTest<'a, K>>),
}

/// How far a scan is, and whether it is to go on: what ends one thread's share soon ends those of all.
struct Control<'a> {
    done: AtomicU64,
    total: u64,
    progress: Option<Box<Progress<'a>>>,
    is_over: AtomicBool,
    /// It is over by an error, or a panic, and whoever ended with that has told.
    has_failed: AtomicBool,
}

/// A thread's share, which fails unless it is said to have ended well.
struct Share<'c> {
    control: &'c Control<'c>,
    has_failed: bool,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            self.control.has_failed.store(true, Relaxed);
            // Release: who sees that it is over sees why.
            self.control.is_over.store(true, Release);
        }
    }
}

impl Control<'_> {
    /// Asks whether to go on, once for each mebibyte of records that come from the device.
    fn have_read(&self, since: &mut usize, bytes: usize) -> Result<()> {
        *since += READ_LEAST.max(bytes);
        if *since < READ_UNASKED {
            return Ok(());
        }
        *since = 0;
        self.advance(0)
    }

    fn advance(&self, by: u64) -> Result<()> {
        if self.is_over.load(Acquire) {
            return Err(Error::Cancelled);
        }
        let Some(progress) = &self.progress else { return Ok(()) };
        let done = self.done.fetch_add(by, Relaxed) + by;
        match progress((done as f64 / self.total.max(1) as f64).min(1.0)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(ends) => {
                if let Ends::All = ends {
                    self.is_over.store(true, Release);
                }
                Err(Error::Cancelled)
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Frame<'_, K, V> {
    fn engine(&self) -> &Engine {
        &self.store.engine
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        self.store.hash(key)
    }

    /// True if the view needs nothing of what lies below `copied`, where everything is dead now: who says that an entry's chain is of one
    /// key alone knows nothing of that. To be asked after the entry was read.
    fn sees_what_sole_means(&self) -> bool {
        // Acquire: it does not go back behind what he saw of it who says so.
        self.engine().log.bounds.copied.load(Acquire) <= self.view.begin
    }

    /// True unless all keys are asked for.
    fn selects(&self) -> bool {
        self.prefix.is_some() || self.hashes.is_some() || !matches!(self.listed, Listed::All)
    }

    /// True if a key is among those asked for.
    #[inline(always)]
    fn wants(&self, key: &[u8]) -> bool {
        let is_listed = match &self.listed {
            Listed::All => true,
            Listed::Of(set, keys) => set.find(self.hash(key), |at| keys.key(*at) == key).is_some(),
            Listed::If(is_listed) => is_listed(K::view(key)),
        };
        is_listed
            && self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
            && self.hashes.as_ref().is_none_or(|hashes| hashes.contains(&xxh3_64(key)))
    }

    /// Key and value of a record's bytes.
    #[inline(always)]
    fn pair<'r>(&self, bytes: &'r [u8]) -> (&'r [u8], &'r [u8]) {
        if Store::<K, V>::WORD {
            let record = record::parse_word(bytes, Store::<K, V>::KEY_WIDTH);
            return (record.key, &record.value[..Store::<K, V>::VALUE_WIDTH]);
        }
        // Lengths that do not fit were refused where the record's own was read.
        record::parse_bytes(bytes).map_or((&[], &[]), |record| (record.key, record.value))
    }

    #[inline(always)]
    fn key_of<'r>(&self, record: &'r Record) -> &'r [u8] {
        if Store::<K, V>::WORD { record.word_key(Store::<K, V>::KEY_WIDTH) } else { record.bytes_key() }
    }

    #[cold]
    fn is_special_value(&self, record: &Record) -> bool {
        self.view.is_value(record.header().load(Acquire), self.engine().expiry_of(*record))
    }

    /// Copies a record's key and value, if it has one. Under a pin.
    #[inline(always)]
    fn copy(&self, record: &Record, rows: &mut Rows) {
        let is_plain = record.is_plain();
        if Store::<K, V>::WORD {
            if is_plain || self.is_special_value(record) {
                let word = record.word_value(Store::<K, V>::KEY_WIDTH).load(Acquire).to_ne_bytes();
                rows.push_fixed(self.key_of(record), &word[..Store::<K, V>::VALUE_WIDTH]);
            }
            return;
        }
        if is_plain {
            record.read_value(&mut rows.value);
        } else if !self.read_special_value(record, &mut rows.value) {
            return;
        }
        rows.push_value(self.key_of(record));
    }

    /// The value of a bytes record that may have an end, if it is one: value and end of one moment.
    #[cold]
    fn read_special_value(&self, record: &Record, into: &mut Vec<u8>) -> bool {
        loop {
            let as_found = record.as_found();
            let is_value = self.is_special_value(record);
            if is_value {
                record.read_value(into);
            }
            if record.is_as_found(as_found) {
                return is_value;
            }
            // Whoever changes it may run a caller's closure.
            thread::yield_now();
        }
    }
}

/// The way a scan takes.
enum Way<'a, K: Key + ?Sized, V: Value + ?Sized> {
    Keys(ByKeys<'a, K, V>),
    Index(ByIndex<'a, K, V>),
    Log(ByLog<'a, K, V>),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Way<'_, K, V> {
    /// One thread's share; several may do theirs together.
    fn work(&self, visit: &mut dyn Visit<K, V>) -> Result<()> {
        let mut share = Share { control: self.control(), has_failed: true };
        let done = match self {
            Self::Keys(way) => way.work(visit),
            Self::Index(way) => way.work(visit),
            Self::Log(way) => way.work(visit),
        };
        share.has_failed = !matches!(done, Ok(()) | Err(Error::Cancelled));
        done
    }

    /// What a thread begins with, which is the caller's to make.
    fn begin<A>(&self, init: impl Fn() -> A) -> A {
        let mut share = Share { control: self.control(), has_failed: true };
        let state = init();
        share.has_failed = false;
        state
    }

    fn control(&self) -> &Control<'_> {
        match self {
            Self::Keys(way) => &way.frame.control,
            Self::Index(way) => &way.frame.control,
            Self::Log(way) => &way.frame.control,
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// A scan through all keys with a value, as of the moment it is run. Conditions of different kinds must all hold; of one kind the one
    /// that was given last counts.
    pub fn scan(&self) -> Scan<'_, K, V> {
        self.scan_as_of(None)
    }

    pub(crate) fn scan_as_of(&self, as_of: Option<View>) -> Scan<'_, K, V> {
        let (keys, is_listed, prefix, hashes, filter) = (None, None, None, None, None);
        Scan { store: self, as_of, strategy: None, threads: 1, keys, is_listed, prefix, hashes, filter, progress: None }
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Scan<'a, K, V> {
    /// Only these keys; list each once. One that is too long for a key is in no store. A scan that does not go by keys
    /// ([`Strategy::ByKeys`]) first gathers them in a set.
    pub fn keys<Q: Borrow<K> + Sync>(mut self, keys: &'a [Q]) -> Self {
        self.keys = Some(Box::new(Lent { keys, of: PhantomData::<fn(&K)> }));
        self.is_listed = None;
        self
    }

    /// Only these keys. `is_listed` must be true of exactly those of the store's keys that are in the list: a scan that goes by log or
    /// index asks it, instead of gathering a set. Where list and test disagree, either may count. It may run inside the store: keep it
    /// short, and do not use the store from it, which may be [`Error::Invalid`].
    pub fn keys_where<Q: Borrow<K> + Sync>(
        self,
        keys: &'a [Q],
        is_listed: impl for<'v> Fn(K::View<'v>) -> bool + Send + Sync + 'a,
    ) -> Self {
        Self { is_listed: Some(Box::new(is_listed)), ..self.keys(keys) }
    }

    /// Only keys that begin with these bytes. Keys are not ordered, so all keys are visited all the same; only the other keys' values are
    /// not looked at.
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Only keys whose hash lies in this range: the 64-bit xxh3 of the key's bytes, seed 0, the same in every store. So several workers, or
    /// machines, each take a part. Keys are in no order of it: what is saved is looking at the others' values.
    ///
    /// # Examples
    /// ```
    /// # let visits: esker::Store<u64, u64> = esker::Options::new().memory("64MiB").in_memory()?;
    /// # (0..1000).try_for_each(|n| visits.put(&n, &1))?;
    /// let half = u64::MAX / 2;
    /// let parts = [0..=half, half + 1..=u64::MAX].map(|part| visits.scan().hash_range(part).aggregate(esker::aggregate::Count));
    /// let [first, second] = parts;
    /// assert_eq!(first? + second?, 1000);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn hash_range(mut self, hashes: RangeInclusive<u64>) -> Self {
        self.hashes = Some(hashes);
        self
    }

    /// Only pairs for which this is true.
    pub fn filter(mut self, wanted: impl for<'v> Fn(K::View<'v>, V::View<'v>) -> bool + Send + Sync + 'a) -> Self {
        self.filter = Some(Box::new(wanted));
        self
    }

    /// The number of threads for [`Scan::fold`], [`Scan::collect`] and [`Scan::aggregate`], the calling one among them; at least one and at
    /// most 256, or as many as the system grants. What ends one of them (a `Break`, an error, a panic) soon ends all. Default: 1.
    pub fn parallel(mut self, threads: usize) -> Self {
        self.threads = threads.clamp(1, THREADS_MAX);
        self
    }

    /// Through the log, from its beginning on.
    pub fn by_log(self) -> Self {
        self.by(Strategy::ByLog)
    }

    /// Through the index. The cost follows its size, and each cold key is a device read.
    pub fn by_index(self) -> Self {
        self.by(Strategy::ByIndex)
    }

    /// This way, instead of the one estimated to be the cheapest. `ByKeys` needs a list of keys.
    pub fn by(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Calls this now and then, on any of the threads, with the part that is done, from 0 to 1. `Break` ends the scan with
    /// [`Error::Cancelled`].
    pub fn progress(mut self, report: impl Fn(f64) -> ControlFlow<()> + Send + Sync + 'a) -> Self {
        self.progress = Some(Box::new(move |part| report(part).map_break(|()| Ends::All)));
        self
    }

    /// Calls `visit` once for each key with a value, in no order, on this thread. It may use the store.
    ///
    /// What is visited is the store as of one moment: all that had returned before the call, nothing that begins after it. A key
    /// that had expired by then is absent; one that expires later is not.
    ///
    /// # Errors
    /// As [`Store::get`], [`Error::Cancelled`], and `Invalid` inside a closure that the store runs or for a strategy that
    /// cannot serve. Some keys may have been visited then.
    ///
    /// # Cost
    /// [`Scan::explain`] estimates it. While it runs no space is given back, and each record that was there before is copied once when it
    /// changes: a store in memory or a cache needs room for that, and answers `Full` to writers when it has none. Over a device, where keys
    /// share index entries, a scan by log takes up to half of the log's memory meanwhile, and reads the log several times.
    pub fn for_each(self, mut visit: impl for<'v> FnMut(K::View<'v>, V::View<'v>)) -> Result<()> {
        self.run(|way, filter| {
            way.work(&mut |key: &[u8], value: &[u8]| {
                if filter.is_none_or(|wanted| wanted(K::view(key), V::view(value))) {
                    visit(K::view(key), V::view(value));
                }
            })
        })
    }

    /// As [`Scan::for_each`], until `visit` breaks; what it broke with. It is not called again after that; the scan itself ends a little
    /// later (some ten thousand pairs, which a `filter` may still be asked about).
    ///
    /// # Errors
    /// As [`Scan::for_each`].
    pub fn try_for_each<B>(mut self, mut visit: impl for<'v> FnMut(K::View<'v>, V::View<'v>) -> ControlFlow<B>) -> Result<Option<B>> {
        let is_over = AtomicBool::new(false);
        let (is_over, mut broke) = (&is_over, None);
        let progress = self.progress.take();
        let stopped = Scan {
            progress: Some(Box::new(move |part| {
                if is_over.load(Relaxed) {
                    return ControlFlow::Break(Ends::All);
                }
                progress.as_ref().map_or(ControlFlow::Continue(()), |report| report(part))
            })),
            ..self
        };
        let result = stopped.for_each(|key, value| {
            if broke.is_none()
                && let ControlFlow::Break(with) = visit(key, value)
            {
                broke = Some(with);
                is_over.store(true, Relaxed);
            }
        });
        match result {
            Err(error) if broke.is_none() => Err(error),
            _ => Ok(broke),
        }
    }

    /// Folds all pairs: each thread begins with an `init()` of its own and adds what it meets, then they are merged.
    ///
    /// # Errors
    /// As [`Scan::for_each`].
    pub fn fold<A: Send>(
        self,
        init: impl Fn() -> A + Sync,
        add: impl for<'v> Fn(&mut A, K::View<'v>, V::View<'v>) + Sync,
        merge: impl FnMut(&mut A, A),
    ) -> Result<A> {
        self.gather(init, |state, key, value| add(state, K::view(key), V::view(value)), merge)
    }

    /// [`Scan::fold`] of bytes.
    #[inline(always)]
    fn gather<A: Send>(
        self,
        init: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &[u8], &[u8]) + Sync,
        mut merge: impl FnMut(&mut A, A),
    ) -> Result<A> {
        let threads = self.threads;
        self.run(|way, filter| {
            let work = || {
                let mut state = way.begin(&init);
                way.work(&mut |key: &[u8], value: &[u8]| {
                    if filter.is_none_or(|wanted| wanted(K::view(key), V::view(value))) {
                        add(&mut state, key, value);
                    }
                })?;
                Ok(state)
            };
            if threads == 1 {
                return work();
            }
            std::thread::scope(|scope| {
                let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
                let others: Vec<_> = (1..threads).map_while(spawn).collect();
                let mut all = work();
                for other in others {
                    let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    match (&mut all, other) {
                        (Ok(all), Ok(other)) => merge(all, other),
                        // Who was only told that it is over has nothing to say.
                        (Ok(_) | Err(Error::Cancelled), Err(error)) => all = Err(error),
                        (Err(_), _) => {}
                    }
                }
                all
            })
        })
    }

    /// All pairs, in no order.
    ///
    /// # Errors
    /// As [`Scan::for_each`].
    pub fn collect<C>(self) -> Result<C>
    where
        C: Default + Extend<(K::Owned, V::Owned)> + IntoIterator<Item = (K::Owned, V::Owned)> + Send,
    {
        self.gather(C::default, |all, key, value| all.extend([(K::own(key), V::own(value))]), C::extend)
    }

    /// The view, and its snapshot if it was drawn for this scan.
    fn snapshot(&self) -> Result<(View, Option<Snapshot>)> {
        match self.as_of {
            Some(view) => Ok((view, None)),
            None => self.store.engine.snapshot().map(|snapshot| (snapshot.view, Some(snapshot))),
        }
    }

    /// Draws the snapshot and runs the scan over it.
    #[inline(always)]
    fn run<R>(mut self, act: impl FnOnce(&Way<'_, K, V>, Option<&Filter<'_, K, V>>) -> Result<R>) -> Result<R> {
        let plan = self.plan()?;
        let (view, _snapshot) = self.snapshot()?;
        let filter = self.filter.take();
        let listed = if plan.strategy == Strategy::ByKeys { self.take_list() } else { None };
        let total = match plan.strategy {
            Strategy::ByKeys => listed.as_ref().map_or(0, |list| list.len() as u64),
            Strategy::ByIndex => index::PARTS,
            Strategy::ByLog => view.cut - view.begin,
        };
        let frame = self.frame(view, total);
        let way = match plan.strategy {
            Strategy::ByKeys => Way::Keys(ByKeys::new(&frame, listed.as_deref())),
            Strategy::ByIndex => Way::Index(ByIndex::new(&frame)),
            Strategy::ByLog => Way::Log(ByLog::new(&frame)?),
        };
        act(&way, filter.as_deref())
    }

    /// The list, to be walked.
    fn take_list(&mut self) -> Option<Box<dyn List + 'a>> {
        self.is_listed = None;
        self.keys.take()
    }

    fn frame(self, view: View, total: u64) -> Frame<'a, K, V> {
        let (is_over, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let control = Control { done: AtomicU64::new(0), total, progress: self.progress, is_over, has_failed };
        let listed = match (self.is_listed, self.keys) {
            (Some(is_listed), _) => Listed::If(is_listed),
            (None, Some(keys)) => Listed::Of(set(self.store, &*keys), keys),
            (None, None) => Listed::All,
        };
        Frame { store: self.store, view, prefix: self.prefix, hashes: self.hashes, listed, control }
    }
}

/// A set of keys, by the store's own hash.
fn set<K: Key + ?Sized, V: Value + ?Sized>(store: &Store<K, V>, keys: &dyn List) -> HashTable<usize> {
    let mut set = HashTable::with_capacity(keys.len());
    for at in 0..keys.len() {
        let key = keys.key(at);
        set.entry(store.hash(key), |listed| keys.key(*listed) == key, |listed| store.hash(keys.key(*listed))).or_insert(at);
    }
    set
}
