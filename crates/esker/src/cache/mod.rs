//! Cache mode: when the store is full, the oldest stretch of the log goes instead of a put being refused.
//!
//! ```text
//! in memory:  begin .... stretch .... | most of it: a read gives lives | the newest: reads are free | tail
//!             what was read goes to the tail, the rest is dropped
//! on disk:    begin .... stretch .... | on the device: a read appends a copy | memory, the oldest part: likewise | tail
//!             all of it is dropped: what was read is no longer here
//! ```
//! A log is a queue, and this is the second chance of FIFO-like caches (CLOCK; S3-FIFO, SOSP 2023) on it. Dropping a stretch is
//! compaction with another verdict (`compaction/mover.rs`), so an entry of the index that leads to a dropped record goes with it, and
//! who is on the way to one finds nothing, as behind any beginning of the log.
//!
//! * **Hot reads write next to nothing.** Fast reads end at `Bounds::near` instead of `head`: below it they take the longer way, which
//!   gives a record sixteen lives, up to 31, in its header: at most two writes in fifteen rounds. Stores that are no caches keep `near` at
//!   `head` and pay nothing.
//! * **A round through the log costs a life.** So what was read once outlives sixteen rounds without being read, and what nobody read
//!   gets none. What is never read cannot leave before its round is over, or there would be a hole; but the more is kept, the quicker the
//!   log comes round, and the smaller is the part of it that waits to be read for the first time: a quarter, then (S3-FIFO: a tenth).
//! * **How many lives are enough** is one, unless more than [`KEPT_PART`] of the log has them ([`Caching::adapt`]).
//! * **What is kept of a stretch is limited over several**: copies lie together, and so do puts, so one stretch is all favourites and
//!   the next all strangers. A limit for each alone dropped favourites, whatever lives they had, and cost up to four points of hits
//!   (docs/performance.md).
//! * **On a device** the directory has a bound, not the log alone: who would write more than there is room for asks for some (`evict.rs`);
//!   and there may be one on what is written (`writes.rs`).
//! * **Lossy, and says so**: `Stats::cache` counts what was dropped, and a listener may be told.

mod dropping;
mod evict;
mod flights;
mod writes;

pub(crate) use evict::spare_of;
pub(crate) use flights::{Ending, Flight, Flights, Joined, Landed, Lead, Rest};

use crate::error::{Error, Result};
use crate::log::Log;
use crate::options::ByteCount;
use crate::record::{self, ColdRecord};
use crate::stats::CacheStats;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, lock, swallow, try_lock};
use crate::types::Layout;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use writes::Writes;

/// The least a cache may have of a disk, in bytes.
pub(crate) const DISK_BYTES_MIN: u64 = 64 << 20;
/// Of a stretch about so much is kept when there is reason to: more keeps more of what is asked for, and copies more for each
/// new value.
const KEPT_PART: f64 = 0.75;
/// And in the long run never more than this, or stretches would make no room. What one does not use the next ones may, up to a
/// whole stretch.
const KEPT_EIGHTHS_MAX: u64 = 7;
/// How fast the threshold follows.
const GAIN: f64 = 0.5;

/// Why a pair left the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// There was no room for it any more.
    Full,
    /// Its end had come.
    Expired,
}

type Listener = Arc<dyn Fn(&[u8], &[u8], Eviction) + Send + Sync>;
type Worth = Arc<dyn Fn(&[u8], &[u8]) -> f64 + Send + Sync>;

/// What makes a store a cache: it holds as much as there is room for, and drops what is old and unread for what is new.
///
/// Any pair may be gone at any time. Nothing is refused for lack of room, except while a scan, an iterator or a read transaction is alive,
/// or one call of `scan_page` or `history` takes long: what these may still show cannot be dropped, and calls that need more room answer
/// [`Error::Full`]. Without a disk the memory budget is the bound; with one the store needs a device, and is as warm after a restart as
/// its last commit or close left it.
///
/// # Examples
/// ```
/// use esker::{Cache, Options, Store};
///
/// let pages: Store<str, [u8]> = Options::new().memory("16MiB").cache(Cache::new()).in_memory()?;
/// let page = pages.get_or_insert_with("/index", || Ok::<_, std::io::Error>(b"<html>".to_vec()))?;
/// assert_eq!(page, b"<html>");
/// # Ok::<(), esker::Error>(())
/// ```
///
/// To invalidate a group of keys at once, however many they are, put a *stamp* into their names: the value of a key of the group's own,
/// never the same twice. When the stamp is deleted nobody asks for the old names any more, and they are dropped like all that is not read.
/// (A scan's [`delete`](crate::Scan::delete) takes them away; their room comes back at their turn, or by
/// [`Store::compact`](crate::Store::compact).)
/// ```
/// # use esker::{Cache, Options, Store};
/// # use std::{io, time::UNIX_EPOCH};
/// let pages: Store<str, [u8]> = Options::new().memory("16MiB").cache(Cache::new()).in_memory()?;
/// let now = || Ok::<_, io::Error>(UNIX_EPOCH.elapsed().map_err(io::Error::other)?.as_nanos().to_be_bytes().to_vec());
/// let key = |site: &str, page: &str| -> esker::Result<String> {
///     let stamp = pages.get_or_insert_with(site, now)?;
///     Ok(format!("{site} {stamp:x?} {page}"))
/// };
/// pages.put(&key("ada.example", "/index")?, b"<html>")?;
/// assert!(pages.contains(&key("ada.example", "/index")?)?);
/// pages.delete("ada.example")?;
/// assert!(!pages.contains(&key("ada.example", "/index")?)?);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Cache {
    disk: Option<Result<u64>>,
    listener: Option<Listener>,
    worth: Option<Worth>,
    disk_writes: Option<Result<u64>>,
    converts: bool,
}

impl Cache {
    /// A cache in memory only.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The directory may take this much of a disk, at least 64 MiB: the log, in whole files, and images of the index. In memory is the
    /// newest part of that log, so a memory budget above this is not used up. Less than 64 MiB is `Invalid` when the store is opened.
    #[must_use]
    pub fn disk(mut self, bytes: impl ByteCount) -> Self {
        self.disk = Some(bytes.byte_count());
        self
    }

    /// The weight of each pair, by its key and value, relative to the others: 1 is normal. A cache in memory keeps a pair as if it had been
    /// read *weight* times as often as it was. A good weight is what it costs to load the value again, or that cost divided by its length.
    /// A pair of weight 0 is dropped at the end of its round through the log. A pair of weight `f64::INFINITY` is pinned: it stays though
    /// nobody reads it, unless pinned pairs would leave less than an eighth of the memory.
    ///
    /// The closure is asked at the end of a pair's round, by whatever thread needs the room: keep it short. It must not use the store: its
    /// calls answer `Invalid` there. A panic in it is swallowed, and counts as 1. A cache over a device drops whole files in their order,
    /// and does not ask.
    ///
    /// # Examples
    /// ```
    /// use esker::{Cache, Options, Store};
    ///
    /// let worth = |key: &[u8], _: &[u8]| if key.starts_with(b"config/") { f64::INFINITY } else { 1.0 };
    /// let pages: Store<str, [u8]> = Options::new().memory("16MiB").cache(Cache::new().worth(worth)).in_memory()?;
    /// pages.put("config/title", b"Esker")?;
    /// for n in 0..100_000 {
    ///     pages.put(&format!("page/{n}"), &[0; 500])?;
    /// }
    /// assert!(pages.contains("config/title")? && !pages.contains("page/0")?);
    /// # Ok::<(), esker::Error>(())
    /// ```
    #[must_use]
    pub fn worth(mut self, worth: impl Fn(&[u8], &[u8]) -> f64 + Send + Sync + 'static) -> Self {
        self.worth = Some(Arc::new(worth));
        self
    }

    /// Opens the directory of a store that is no cache, too, which is a cache's from then on: what it holds beyond [`disk`](Cache::disk) is
    /// dropped. Without this it is refused, so that a slip of the pen drops nothing.
    #[must_use]
    pub fn convert(mut self) -> Self {
        self.converts = true;
        self
    }

    pub(crate) fn check_converts(&self) -> Result<()> {
        if self.converts {
            return Ok(());
        }
        Err(Error::invalid("the store here is no cache, and would lose what is beyond a cache's bound: `Cache::convert` makes it one"))
    }

    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        self.disk.as_ref()?.as_ref().ok().copied()
    }

    /// Limits what is written to the disk to so many bytes a second in the long run, with bursts of a minute's worth. Puts are never
    /// refused, and may exceed it. Beyond it what [`Store::get_or_load`](crate::Store::get_or_load) and its kin load for a key without a
    /// value is handed out and not kept, and what was read from the disk is not copied into memory. `Stats::cache` counts both. A terabyte
    /// a day is 11 MiB a second. A cache in memory with such a bound is `Invalid` when it is opened.
    #[must_use]
    pub fn disk_writes(mut self, bytes_per_second: impl ByteCount) -> Self {
        self.disk_writes = Some(bytes_per_second.byte_count());
        self
    }

    /// `listener` is told of pairs that leave: their key, value, and why. Each pair at most once; not of those that were replaced or
    /// deleted, nor perhaps of those whose index entry another key shares.
    ///
    /// The listener runs on a thread that needed the room, or on the store's own. It may use the store, but must not wait for anybody who
    /// does, a loader on another thread included. One that puts a pair for each that it hears of is never done, for each of those puts
    /// makes another one leave. Threads that need room, or have loaded, wait for it, so keep it short; futures and the store's own threads
    /// do not, and what they drop meanwhile takes memory beside the budget until it is told. A panic in it is swallowed. A clone of the
    /// store that it holds keeps the store open for good: let it hold a `Weak` of an `Arc` of yours.
    #[must_use]
    pub fn on_eviction(mut self, listener: impl Fn(&[u8], &[u8], Eviction) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("disk", &self.disk)
            .field("disk_writes", &self.disk_writes)
            .field("listens", &self.listener.is_some())
            .field("weighs", &self.worth.is_some())
            .finish()
    }
}

/// A pair that left, or may have, until it is told.
pub(crate) struct Departed {
    pub(crate) key: Box<[u8]>,
    value: Box<[u8]>,
    why: Eviction,
    /// Of its record.
    bytes: u64,
}

/// Pairs of which no listener hears.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unheard {
    evictions: u64,
    expired: u64,
    bytes: u64,
}

impl Unheard {
    pub(crate) fn add(&mut self, is_expired: bool, bytes: u64) {
        *self = self.with(Self { evictions: u64::from(!is_expired), expired: u64::from(is_expired), bytes });
    }

    pub(crate) fn with(self, other: Self) -> Self {
        let Self { evictions, expired, bytes } = other;
        Self { evictions: self.evictions + evictions, expired: self.expired + expired, bytes: self.bytes + bytes }
    }
}

fn reason(is_expired: bool) -> Eviction {
    if is_expired { Eviction::Expired } else { Eviction::Full }
}

/// So much may be kept of a stretch, and what earlier ones might have kept and did not, or less by what they kept beyond it.
#[derive(Default)]
struct Allowance {
    /// As an `i64`.
    spared: AtomicU64,
    /// Bytes of this stretch.
    used: AtomicU64,
}

/// A record that is worth another round.
pub(crate) struct Kept {
    bytes: u64,
    is_pinned: bool,
}

impl Allowance {
    fn bytes(&self, stretch: u64) -> u64 {
        (stretch / 8 * KEPT_EIGHTHS_MAX).saturating_add_signed(self.spared.load(Relaxed) as i64)
    }

    fn suffices(&self, stretch: u64, bytes: u64) -> bool {
        self.used.load(Relaxed) + bytes <= self.bytes(stretch)
    }

    fn use_up(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// A stretch is done; the part of it that was kept.
    fn settle(&self, stretch: u64) -> f64 {
        let (used, most) = (self.used.swap(0, Relaxed), stretch as i64);
        let spared = (stretch / 8 * KEPT_EIGHTHS_MAX) as i64 + self.spared.load(Relaxed) as i64 - used as i64;
        self.spared.store(spared.clamp(-most, most) as u64, Relaxed);
        used as f64 / stretch.max(1) as f64
    }
}

/// What an engine in cache mode knows besides.
pub(crate) struct Caching {
    /// Bytes of the device that the log may take; 0 in memory.
    disk_bytes: u64,
    /// How many lives keep a record, as the bits of an `f64`. Only who drops a stretch changes it.
    threshold: AtomicU64,
    /// What is kept of stretches, and of that what is pinned. As above.
    kept_bytes: Allowance,
    pinned_bytes: Allowance,
    /// Nothing is pinned now nor kept for its reads, for that left too little room.
    is_unpinned: AtomicBool,
    listener: Option<Listener>,
    worth: Option<Worth>,
    writes: Option<Writes>,
    departed: Mutex<VecDeque<Departed>>,
    telling: Mutex<()>,
    /// Loads of what was missed: they hear of what is dropped meanwhile.
    pub(crate) flights: Arc<Flights>,
    evictions: AtomicU64,
    evicted_bytes: AtomicU64,
    expired: AtomicU64,
    kept: AtomicU64,
}

thread_local! {
    /// Others wait for what this thread is at.
    static DUTIES: Cell<u32> = const { Cell::new(0) };
    /// This thread is inside a listener, of this cache or of another one.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

/// True inside a listener.
pub(crate) fn is_telling() -> bool {
    IS_TELLING.get()
}

/// While it lives this thread tells no listener, for that might wait for what others await of the thread. It ends where it began.
pub(crate) struct Duty;

impl Duty {
    pub(crate) fn begin() -> Self {
        DUTIES.set(DUTIES.get() + 1);
        Self
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        DUTIES.set(DUTIES.get() - 1);
    }
}

impl Caching {
    pub(crate) fn new(cache: Cache, has_device: bool) -> Result<Self> {
        let disk_bytes = match (cache.disk, has_device) {
            (None, false) => 0,
            (Some(bytes), true) => bytes?,
            (None, true) => return Err(Error::invalid("a cache on a device says how much of it it may take: `Cache::disk`")),
            (Some(_), false) => return Err(Error::invalid("a cache in memory has no disk to take of")),
        };
        if has_device && disk_bytes < DISK_BYTES_MIN {
            return Err(Error::invalid(format!("a cache takes at least 64 MiB of a disk disk={disk_bytes}")));
        }
        if cache.disk_writes.is_some() && !has_device {
            return Err(Error::invalid("a cache in memory writes nothing to a disk: `Cache::disk_writes`"));
        }
        let zero = || AtomicU64::new(0);
        Ok(Self {
            writes: cache.disk_writes.transpose()?.map(Writes::new),
            disk_bytes,
            threshold: AtomicU64::new(1f64.to_bits()),
            kept_bytes: Allowance::default(),
            pinned_bytes: Allowance::default(),
            is_unpinned: AtomicBool::new(false),
            listener: cache.listener,
            worth: cache.worth,
            departed: Mutex::new(VecDeque::new()),
            telling: Mutex::new(()),
            flights: Arc::new(Flights::new()),
            evictions: zero(),
            evicted_bytes: zero(),
            expired: zero(),
            kept: zero(),
        })
    }

    /// What it takes to keep the record in these bytes, of a stretch so long, if that is worth another round.
    pub(crate) fn keeps(&self, layout: Layout, record: &[u8], hash: u64, stretch: u64) -> Option<Kept> {
        if self.disk_bytes > 0 {
            return None;
        }
        let (worth, bytes) = (self.worth_of(layout, record), Log::share_of(record.len() as u64));
        let is_pinned = worth == f64::INFINITY;
        let keeps = !self.is_unpinned.load(Relaxed)
            && match is_pinned {
                true => self.pinned_bytes.suffices(stretch, bytes),
                false => self.kept_bytes.suffices(stretch, bytes) && self.is_wanted(record, hash, worth),
            };
        keeps.then_some(Kept { bytes, is_pinned })
    }

    /// It has a copy.
    pub(crate) fn have_kept(&self, kept: Kept) {
        self.kept.fetch_add(1, Relaxed);
        self.kept_bytes.use_up(kept.bytes);
        self.pinned_bytes.use_up(if kept.is_pinned { kept.bytes } else { 0 });
    }

    /// While this is so all goes.
    fn unpin(&self, is_unpinned: bool) {
        if self.is_unpinned.load(Relaxed) != is_unpinned {
            self.is_unpinned.store(is_unpinned, Relaxed);
        }
    }

    fn is_wanted(&self, record: &[u8], hash: u64, worth: f64) -> bool {
        let lives = record::lives_of(record::word_at(record, 0));
        // Between two counts the hash decides: another part of the equally popular each time the log comes round would do
        // no better.
        let part = (hash >> 11) as f64 / (1u64 << 53) as f64;
        let score = if lives == 0 { part } else { (lives as f64 + part) * worth };
        score >= f64::from_bits(self.threshold.load(Relaxed))
    }

    fn worth_of(&self, layout: Layout, record: &[u8]) -> f64 {
        let Some(worth) = &self.worth else { return 1.0 };
        // Foreign code.
        let worth = |record: ColdRecord<'_>| swallow(|| worth(record.key, record.value)).unwrap_or(1.0);
        record::parse(layout, record).map_or(1.0, worth)
    }

    /// A stretch is done: towards a threshold that keeps no more than the part wanted, and never what has no life.
    pub(crate) fn adapt(&self, stretch: u64) {
        let threshold = f64::from_bits(self.threshold.load(Relaxed));
        let error = self.kept_bytes.settle(stretch) - KEPT_PART;
        self.pinned_bytes.settle(stretch);
        let next = (threshold + GAIN * error).clamp(1.0, record::LIVES_MAX as f64 + 1.0);
        self.threshold.store(next.to_bits(), Relaxed);
    }

    /// What a listener is to hear of the pair in these bytes once it has gone.
    pub(crate) fn departed(&self, layout: Layout, record: &[u8], is_expired: bool) -> Option<Departed> {
        let (why, bytes) = (reason(is_expired), record.len() as u64);
        record::parse(layout, record).map(|record| Departed { key: record.key.into(), value: record.value.into(), why, bytes })
    }

    /// The pair in these bytes has gone: nobody finds it any more.
    pub(crate) fn let_go_record(&self, layout: Layout, record: &[u8], is_expired: bool) {
        match &self.listener {
            Some(_) => self.departed(layout, record, is_expired).into_iter().for_each(|departed| self.let_go(departed)),
            None => self.count_gone(reason(is_expired), record.len() as u64),
        }
    }

    /// The same of one of which it was not known at first. The listener is to hear of it.
    pub(crate) fn let_go(&self, departed: Departed) {
        self.count_gone(departed.why, departed.bytes);
        lock(&self.departed).push_back(departed);
    }

    fn count_gone(&self, why: Eviction, bytes: u64) {
        let mut one = Unheard::default();
        one.add(why == Eviction::Expired, bytes);
        self.count_unheard(one);
    }

    pub(crate) fn count_unheard(&self, gone: Unheard) {
        self.evictions.fetch_add(gone.evictions, Relaxed);
        self.expired.fetch_add(gone.expired, Relaxed);
        self.evicted_bytes.fetch_add(gone.bytes, Relaxed);
    }

    /// Tells the listener, and waits for who is at that: so nobody drops more than is told. But not who has a duty, who leaves it to
    /// others; nor who is inside a listener, whose own one it may be, or one that waits for it crosswise.
    pub(crate) fn tell(&self) {
        self.tell_if(|| if IS_TELLING.get() { try_lock(&self.telling) } else { Some(lock(&self.telling)) }, || ());
    }

    /// The same for the store's own threads, which wait for nobody: a listener may close the store, and that waits for them. What else
    /// there is to do is done `meanwhile`, behind each pair.
    pub(crate) fn tell_unless_told(&self, meanwhile: impl Fn()) {
        self.tell_if(|| try_lock(&self.telling), meanwhile);
    }

    /// Not under a pin nor with a lock held.
    fn tell_if<'m>(&'m self, lock: impl Fn() -> Option<MutexGuard<'m, ()>>, meanwhile: impl Fn()) {
        let Some(listener) = &self.listener else { return };
        // Whoever found it locked left it to the one who had it, who looks again when he has let go.
        while DUTIES.get() == 0
            && self.has_departed()
            && let Some(telling) = lock()
        {
            let was_telling = IS_TELLING.replace(true);
            while let Some(Departed { key, value, why, .. }) = self.next_departed() {
                // Foreign code: the thread may be the store's own.
                let _ = swallow(|| listener(&key, &value, why));
                meanwhile();
            }
            IS_TELLING.set(was_telling);
            drop(telling);
        }
    }

    /// Somebody is to be told of what left.
    pub(crate) fn has_departed(&self) -> bool {
        self.listener.is_some() && !lock(&self.departed).is_empty()
    }

    pub(crate) fn listens(&self) -> bool {
        self.listener.is_some()
    }

    fn next_departed(&self) -> Option<Departed> {
        lock(&self.departed).pop_front()
    }

    /// True if so many bytes more may be kept. `look`: where the log's tail is, and what time.
    pub(crate) fn admits(&self, bytes: u64, look: impl FnOnce() -> (u64, u64)) -> bool {
        self.writes.as_ref().is_none_or(|writes| writes.admits(bytes, look))
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.disk_bytes == 0
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            disk_bytes_max: self.disk_bytes,
            evictions: self.evictions.load(Relaxed),
            evicted_bytes: self.evicted_bytes.load(Relaxed),
            expired: self.expired.load(Relaxed),
            kept: self.kept.load(Relaxed),
            refused: self.writes.as_ref().map_or(0, Writes::refused),
            lives_to_stay: f64::from_bits(self.threshold.load(Relaxed)),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::record::LIFE;

    const STRETCH: u64 = 1 << 20;
    const RECORD: u64 = 64;

    /// Lets a stretch of records with so many lives pass; the part of it that is kept.
    fn pass(caching: &Caching, lives: u64) -> f64 {
        let record: Vec<u8> = (lives * LIFE).to_le_bytes().into_iter().chain([0; RECORD as usize - 8]).collect();
        let kept = (0..STRETCH / RECORD)
            .filter_map(|_| caching.keeps(Layout::Bytes, &record, 0, STRETCH).map(|kept| caching.have_kept(kept)))
            .count() as u64;
        caching.adapt(STRETCH);
        (kept * RECORD) as f64 / STRETCH as f64
    }

    /// Copies lie together in the log, and so do puts. A limit for each stretch alone dropped an eighth of the favourites each time
    /// they came round.
    #[test]
    fn favourites_stay_though_they_lie_together() {
        let caching = Caching::new(Cache::new(), false).unwrap();
        for _ in 0..100 {
            assert!(pass(&caching, 0).abs() < 1e-9);
            assert!((pass(&caching, record::LIVES_MAX) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn room_is_made_though_all_are_favourites() {
        let caching = Caching::new(Cache::new(), false).unwrap();
        pass(&caching, 0);
        let kept: Vec<f64> = (0..100).map(|_| pass(&caching, record::LIVES_MAX)).collect();
        // What the first stretch spared lasts for eight; from then on each makes room.
        assert!(kept.iter().take_while(|kept| **kept > 0.99).count() <= 8, "{kept:?}");
        assert!(kept.iter().sum::<f64>() / 100.0 < 0.9, "{kept:?}");
    }
    /// Also behind favourites that have taken all that a stretch may keep; they make up for it in the next one.
    #[test]
    fn what_is_pinned_stays_and_room_is_made() {
        let worth = |key: &[u8], _: &[u8]| if key == [1; 8] { f64::INFINITY } else { 1.0 };
        let caching = Caching::new(Cache::new().worth(worth), false).unwrap();
        let layout = Layout::Word { key_bytes: 8, value_bytes: 8 };
        let record = |lives: u64, key: u8| [(record::VALID | (lives * LIFE)).to_le_bytes(), [key; 8], [0; 8]].concat();
        let (favourite, pinned) = (record(record::LIVES_MAX, 0), record(0, 1));
        let keeps = |record: &[u8]| caching.keeps(layout, record, 0, STRETCH).map(|kept| caching.have_kept(kept)).is_some();
        let (mut kept, count) = (0, STRETCH / 24);
        for _ in 0..100 {
            let favourites = (0..count / 8 * 7).filter(|_| keeps(&favourite)).count();
            assert!((0..count / 8).all(|_| keeps(&pinned)));
            kept += favourites as u64 + count / 8;
            caching.adapt(STRETCH);
        }
        assert!(kept < count * 90, "{kept} of {}", count * 100);
        // Alone they are bounded, too.
        let kept = (0..100).flat_map(|_| {
            let kept = (0..count).filter(|_| keeps(&pinned)).count();
            caching.adapt(STRETCH);
            [kept as u64]
        });
        assert!(kept.sum::<u64>() < count * 90);
    }
}
