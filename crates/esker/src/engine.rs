//! The engine: epochs, index and log put together, and the driver that moves their boundaries.
//!
//! Operations (`store/`) run under a pin and never wait while they hold it. What needs waiting (room in the log) is
//! done by whoever waits: [`Engine::make_room`] does the driver's work itself. The driver thread only does it earlier.

use crate::cache::{Cache, Caching};
use crate::commit::{Commits, Durability};
use crate::compaction::Compaction;
use crate::device::{Device, Storage};
use crate::epoch::{Counter, Epochs, Pin};
use crate::error::{Error, Result};
use crate::expiry::{Clock, Expiry};
use crate::image::Images;
use crate::index::{Chain, Index, Records};
use crate::latches::Latches;
use crate::log::{BLOCK_BYTES, FIRST_ADDRESS, Log, PIECE_BYTES, block_ceil, block_floor};
use crate::manifest::{Identity, Manifest};
use crate::promotion::Lately;
use crate::record::Record;
use crate::recovery::Manner;
use crate::snapshot::Holds;
use crate::stats::{ExpiryStats, IndexStats, LoadStats, LogStats, MemoryStats, OperationStats, Stats};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, TryLockError};
pub(crate) use crate::types::Layout;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Buffers, slots, thread state: what is taken off the budget before log and index share it.
const FIXED_BYTES: u64 = 2 << 20;
pub(crate) const BUDGET_BYTES_MIN: u64 = 16 << 20;
/// With less a log on a device would do nothing but make room.
const LOG_BYTES_MIN: u64 = BUDGET_BYTES_MIN / 4;
const HUGE_PAGE_BUDGET_BYTES: u64 = 256 << 20;
const VALUE_BYTES_MAX: u64 = 16 << 20;
/// What is written ahead of a line goes in steps of so much at most, some milliseconds each, and in so many rounds: in each less has come meanwhile.
const FLUSH_STEP_MAX: u64 = 8 << 20;
const FLUSH_ROUNDS: u32 = 4;
const DRIVER_PAUSE: Duration = Duration::from_millis(1);
/// After which a slot of the manifest speaks of lines that told of themselves.
const SLOT_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at how much has expired.
const SAMPLE_PAUSE: Duration = Duration::from_millis(250);

pub(crate) struct Engine {
    pub(crate) epochs: Epochs,
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) latches: Latches,
    pub(crate) layout: Layout,
    /// The width of values where all have the same.
    value_width: Option<usize>,
    pub(crate) hasher: Hasher,
    /// Where the store lives, until it closes; none for a store in memory or on a bare device.
    pub(crate) home: Mutex<Option<Home>>,
    pub(crate) commits: Commits,
    pub(crate) compaction: Compaction,
    /// Cold records that are read again come back into memory (`promotion.rs`).
    pub(crate) is_promoting: bool,
    pub(crate) lately: Lately,
    /// Nothing changes in place, and each record leads to the one that it supersedes (`store/history.rs`).
    pub(crate) keeps_versions: bool,
    pub(crate) images: Images,
    pub(crate) expiry: Expiry,
    /// In a cache.
    pub(crate) caching: Option<Caching>,
    pub(crate) loads: Loads,
    pub(crate) holds: Holds,
    /// The driver compacts when the log is this many times as long as what lives in it, and a part of a file longer.
    pub(crate) space_amplification: f64,
    /// The length of a file of the log; 0 without files.
    pub(crate) segment_bytes: u64,
    /// Those who wait for the boundaries to find room.
    seekers: AtomicU32,
    pub(crate) boundaries: Mutex<()>,
    pub(crate) is_always_durable: bool,
    pub(crate) in_background: bool,
    durability: Durability,
    drawn: Mutex<Drawn>,
    budget: AtomicU64,
    /// The first failure of the device: nothing is written after it.
    latched: Mutex<Option<Error>>,
    is_latched: AtomicBool,
}

/// When a line was last drawn in the background, and a slot written for those that told of themselves.
struct Drawn {
    line: Instant,
    slot: Instant,
}

impl Drawn {
    fn now() -> Mutex<Self> {
        Mutex::new(Self { line: Instant::now(), slot: Instant::now() })
    }
}

/// Loads of values that were missed (`store/load.rs`).
#[derive(Default)]
pub(crate) struct Loads {
    pub(crate) count: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) nanoseconds: AtomicU64,
}

/// The files of a store.
pub(crate) struct Home {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) manifest: Manifest,
    /// They go with the store: nothing need be kept at its close.
    pub(crate) is_temporary: bool,
}

/// Keyed by the store's own random seed, so that nobody can choose colliding keys.
pub(crate) struct Hasher {
    seed: [u64; 2],
    secret: [u8; 192],
}

impl Hasher {
    pub(crate) fn new(seed: [u64; 2]) -> Self {
        let mut secret = [0; 192];
        for (i, part) in secret.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&fold(seed[0] ^ i as u64, seed[1] | 1).to_le_bytes());
        }
        Self { seed: [seed[0], fold(seed[1] ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93) | 1], secret }
    }

    /// `width` is a constant where the key type has one, so that eight bytes cost one multiplication.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8], width: Option<usize>) -> u64 {
        if width == Some(8) {
            let word = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
            return fold(word ^ self.seed[0], self.seed[1]);
        }
        xxhash_rust::xxh3::xxh3_64_with_secret(key, &self.secret)
    }

    /// Tells values apart: no two met so far have the same.
    pub(crate) fn fingerprint(&self, value: &[u8]) -> u128 {
        xxhash_rust::xxh3::xxh3_128_with_secret(value, &self.secret)
    }
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}

/// Most calls change nothing, and every operation reads what lies beside it.
fn set(number: &AtomicU64, to: u64) {
    if number.load(Relaxed) != to {
        number.store(to, Relaxed);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The same if nobody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// What an engine is made of.
pub(crate) struct Parts {
    pub(crate) layout: Layout,
    /// The width of values where all have the same.
    pub(crate) value_width: Option<usize>,
    pub(crate) budget: u64,
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) home: Option<Home>,
    /// Where there is no home: a random one if `None`.
    pub(crate) identity: Option<Identity>,
    pub(crate) durability: Durability,
    pub(crate) in_background: bool,
    pub(crate) space_amplification: f64,
    /// Records that come from the device are checked before they are used.
    pub(crate) verifies_reads: bool,
    pub(crate) recovery: Manner,
    pub(crate) promotion: bool,
    pub(crate) keeps_versions: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cache: Option<Cache>,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        check_budget(parts.budget)?;
        let known = parts.home.as_ref().map(|home| home.manifest.state.identity).or(parts.identity);
        let identity = known.map_or_else(Identity::random, Ok)?;
        let huge = parts.budget >= HUGE_PAGE_BUDGET_BYTES;
        let (has_home, has_device) = (parts.home.is_some(), parts.device.is_some());
        let segment_bytes = parts.home.as_ref().map_or(0, |home| home.manifest.state.segment_bytes);
        let engine = Self {
            epochs: Epochs::new(),
            index: Index::new()?,
            log: Log::new(parts.device, identity.store_id, FIRST_ADDRESS, huge)?.verifying_reads(parts.verifies_reads),
            latches: Latches::default(),
            layout: parts.layout,
            value_width: parts.value_width,
            hasher: Hasher::new(identity.hash_seed),
            home: Mutex::new(parts.home),
            commits: Commits::default(),
            compaction: Compaction::default(),
            is_promoting: parts.promotion && has_device,
            keeps_versions: parts.keeps_versions,
            lately: Lately::default(),
            images: Images::default(),
            expiry: Expiry::new(parts.clock),
            caching: parts.cache.map(|cache| Caching::new(cache, has_device)).transpose()?,
            loads: Loads::default(),
            holds: Holds::default(),
            space_amplification: parts.space_amplification,
            segment_bytes,
            seekers: AtomicU32::new(0),
            boundaries: Mutex::new(()),
            is_always_durable: parts.durability == Durability::Always && has_device,
            in_background: parts.in_background,
            durability: parts.durability,
            drawn: Drawn::now(),
            budget: AtomicU64::new(parts.budget),
            latched: Mutex::new(None),
            is_latched: AtomicBool::new(false),
        };
        engine.share_budget();
        if engine.is_always_durable {
            engine.epochs.slow_writes_down();
        }
        if has_home {
            engine.recover(&parts.recovery)?;
            engine.share_budget();
            engine.rest_compaction();
        }
        Ok(engine)
    }

    /// What the index and the rest leave for the log must suffice to work with.
    pub(crate) fn check_index_fits(&self) -> Result<()> {
        let (index, budget) = (self.index.bytes(), self.budget.load(Relaxed));
        if index + FIXED_BYTES + LOG_BYTES_MIN > budget {
            return Err(Error::invalid(format!("the memory budget is below what this store's index needs budget={budget} index={index}")));
        }
        Ok(())
    }

    /// True if an index of this shape leaves enough for the rest.
    pub(crate) fn fits_shape(&self, shape: u64) -> bool {
        Index::buckets_of_shape(shape) * 64 + FIXED_BYTES + LOG_BYTES_MIN <= self.budget.load(Relaxed)
    }

    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        let width = if let Layout::Word { key_bytes, .. } = self.layout { Some(key_bytes) } else { None };
        self.hasher.hash(key, width)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.log.device.is_none()
    }

    pub(crate) fn value_bytes_max(&self) -> u64 {
        VALUE_BYTES_MAX.min(self.budget.load(Relaxed) / 4)
    }

    pub(crate) fn set_budget(&self, bytes: u64) -> Result<()> {
        check_budget(bytes)?;
        let held =
            self.index.bytes() + FIXED_BYTES + if self.is_in_memory() && self.caching.is_none() { self.log_bytes() } else { LOG_BYTES_MIN };
        if bytes < held {
            return Err(Error::invalid(format!("the memory budget is below what cannot be given back budget={bytes} held={held}")));
        }
        self.budget.store(bytes, Relaxed);
        self.share_budget();
        match &self.caching {
            Some(caching) if self.is_in_memory() => self.evict_for(caching, 0),
            _ if self.is_in_memory() => Ok(()),
            _ => self.shift_boundaries(&lock(&self.boundaries), 0),
        }
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.tail() - self.log.bounds.evicted.load(Acquire)
    }

    /// The log gets what the index and the rest leave. On a device the index may take three quarters, where that leaves the log room for some of
    /// the largest values and to work with; half of it at any rate. An entry more spares device reads, and so does a cold record kept in memory; where
    /// keys are more than entries, the entry spares more (`docs/performance.md`).
    pub(crate) fn share_budget(&self) {
        let budget = self.budget.load(Relaxed);
        let index = self.index.bytes();
        // A store in memory compacts into the reserve; on a device there is always room to be made.
        let log = budget.saturating_sub(index + FIXED_BYTES);
        let reserve = if self.is_in_memory() { (log / 32).max(512 << 10) } else { 0 };
        set(&self.log.reserve, reserve);
        set(&self.log.budget, log.saturating_sub(reserve));
        // A cache makes room for its index.
        let limit = if self.is_in_memory() && self.caching.is_none() {
            // Not of the reserve: an index that grew into it once left a log of 74 % dead bytes without room for a stretch's copies.
            let room = budget.saturating_sub(FIXED_BYTES + self.log_bytes() + index + reserve);
            index + room / 2
        } else {
            let value = self.value_width.map_or_else(|| self.value_bytes_max(), |width| width as u64);
            let left = budget.saturating_sub(FIXED_BYTES + LOG_BYTES_MIN + value * 5 / 2);
            (budget / 4 * 3).min(left).max(budget / 2)
        };
        self.index.set_limit(limit);
    }

    /// Waits until `bytes` more can be allocated. Must not be called under a pin.
    #[cold]
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        if self.is_compaction_late() {
            self.help_compaction();
        }
        self.make_room_now(bytes)
    }

    /// The same for compaction itself.
    fn make_room_now(&self, bytes: u64) -> Result<()> {
        self.seekers.fetch_add(1, Relaxed);
        let guard = lock(&self.boundaries);
        self.seekers.fetch_sub(1, Relaxed);
        if self.epochs.is_closed() {
            return Err(Error::Closed);
        }
        self.share_budget();
        // A record of up to a quarter piece makes the thread take a whole one, which begins in the next block.
        let bytes = bytes.next_multiple_of(BLOCK_BYTES).max(PIECE_BYTES) + BLOCK_BYTES;
        let guard = match &self.caching {
            Some(caching) => {
                drop(guard);
                self.evict_for(caching, bytes)?;
                if self.is_in_memory() {
                    // A listener or another thread may have been quicker: the caller tries again.
                    return Ok(());
                }
                lock(&self.boundaries)
            }
            None => guard,
        };
        if self.log_bytes() + bytes <= self.log.budget.load(Relaxed) {
            return Ok(());
        }
        if self.is_in_memory() {
            drop(guard);
            return if self.reclaim(bytes)? { Ok(()) } else { Err(Error::Full) };
        }
        self.shift_boundaries(&guard, bytes)?;
        // The caller tries again, and comes back if others took the room.
        Ok(())
    }

    /// Waits for room for a copy that compaction makes, which in memory comes out of its reserve.
    pub(crate) fn make_room_for_copy(&self, bytes: u64) -> Result<()> {
        if self.is_in_memory() {
            return Err(Error::Full);
        }
        self.make_room_now(bytes)
    }

    /// What the driver does in its loop, for where it is away longer: lines that are due; room for those who write, backed by memory.
    /// Under no lock but compaction's.
    pub(crate) fn keep_up(&self) {
        if self.in_background {
            self.draw_due_line();
        }
        let budget = self.log.budget.load(Relaxed);
        // Half of what is spare is used up: each step is a drain, and pages given back are an interrupt to other processors.
        let is_due = !self.is_in_memory() && self.log_bytes() + budget / 32 > budget;
        if is_due && let Ok(guard) = self.boundaries.try_lock() {
            // A failure is latched; whoever writes hears of it.
            let _ = self.shift_boundaries(&guard, 0);
        }
        self.log.populate_ahead();
    }

    /// Freezes, writes and evicts so that the log keeps to its share with `room` bytes to spare. The driver's one step.
    fn shift_boundaries(&self, _: &MutexGuard<'_, ()>, room: u64) -> Result<()> {
        self.check_writable()?;
        let (bounds, budget) = (&self.log.bounds, self.log.budget.load(Relaxed));
        // Boundaries lie between blocks.
        let tail = block_floor(self.log.tail());
        // Where those who write are to help compaction they get what they ask for and no more.
        let spare = if self.is_compaction_late() { room } else { room.max(budget / 16) };
        // What was backed ahead of the tail is there, though the budget may be lower since. It once was not counted: 8 MiB too many
        // after 128 MiB had become 32.
        let top = (tail + spare).max(bounds.populated.load(Relaxed));
        let overlap = self.log.overlap_bytes();
        let head = block_ceil(top.saturating_sub(budget)).min(block_floor(tail.saturating_sub(overlap)));
        let lag = budget / 8 * 7;
        let read_only = bounds.read_only.load(Relaxed);
        // Freezing goes in steps of a sixteenth: a drain each time, not each block.
        let needed = block_ceil(head + overlap).min(tail);
        let due = tail - read_only > lag || needed > bounds.flushed_until.load(Relaxed);
        if due {
            self.freeze(block_ceil((tail + budget / 16).saturating_sub(lag)).max(needed).min(tail).max(read_only));
            self.flush()?;
        }
        self.evict(head.min(bounds.flushed_until.load(Relaxed)));
        Ok(())
    }

    /// Writes, in steps, most of what a line would write at once, if those who write might have to wait for room meanwhile: between the steps
    /// they get some. Where memory holds all, freezing early would only make updates copy more; and where somebody waits already, the device is
    /// the bound, and one write after the other without steps is sooner done.
    pub(crate) fn flush_ahead(&self) -> Result<()> {
        let (bounds, budget) = (&self.log.bounds, self.log.budget.load(Relaxed));
        let step = (budget / 16).min(FLUSH_STEP_MAX);
        for _ in 0..FLUSH_ROUNDS {
            let until = block_floor(self.log.tail());
            let unwritten = || until.saturating_sub(bounds.flushed_until.load(Relaxed));
            let room = budget.saturating_sub(self.log_bytes());
            if unwritten() <= 2 * step || room >= unwritten() / 2 {
                break;
            }
            while unwritten() > step {
                if self.seekers.load(Relaxed) > 0 {
                    return Ok(());
                }
                let guard = lock(&self.boundaries);
                self.check_writable()?;
                let to = block_floor(bounds.flushed_until.load(Relaxed) + step);
                if to > bounds.safe_read_only.load(Relaxed) {
                    self.freeze(to);
                }
                self.flush()?;
                self.shift_boundaries(&guard, 0)?;
            }
        }
        Ok(())
    }

    /// Nobody writes below `to`, where a block ends, when this returns.
    pub(crate) fn freeze(&self, to: u64) {
        debug_assert!(to.is_multiple_of(BLOCK_BYTES), "what is frozen is whole blocks");
        let bounds = &self.log.bounds;
        bounds.floor.store(to, SeqCst);
        bounds.read_only.store(to, SeqCst);
        self.epochs.drain();
        bounds.safe_read_only.store(to, Release);
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.flush_line(false)
    }

    /// Writes what is frozen; its end is that of a line that tells of itself, or not.
    pub(crate) fn flush_line(&self, is_told: bool) -> Result<()> {
        let bounds = &self.log.bounds;
        let (from, to) = (bounds.flushed_until.load(Relaxed), bounds.safe_read_only.load(Relaxed));
        // The bug that the rule "nothing below a cut is ever written again" excludes: the last block goes out once more.
        let from = if cfg!(esker_planted_bug = "rewritten_tail") { from.saturating_sub(BLOCK_BYTES).max(FIRST_ADDRESS) } else { from };
        self.log.flush(from, to, is_told).map_err(|error| self.latch(error))?;
        bounds.flushed_until.store(to, Release);
        Ok(())
    }

    /// The device failed: what it holds now is unknown, so nothing more is written to it.
    pub(crate) fn latch(&self, error: impl Into<Error>) -> Error {
        let error = lock(&self.latched).get_or_insert_with(|| error.into()).clone();
        self.is_latched.store(true, Release);
        // Fast paths do not ask; the slow ones do.
        self.epochs.slow_down();
        error
    }

    /// The failure that stopped all writing, if one did.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_latched.load(Acquire) { self.refusal() } else { Ok(()) }
    }

    #[cold]
    fn refusal(&self) -> Result<()> {
        lock(&self.latched).clone().map_or(Ok(()), Err)
    }

    pub(crate) fn evict(&self, to: u64) {
        let bounds = &self.log.bounds;
        if to > bounds.head.load(Relaxed) {
            // Nobody looks below `near` without asking `head`.
            bounds.near.fetch_max(to, SeqCst);
            bounds.head.store(to, SeqCst);
            self.epochs.drain();
            self.log.release_below(to);
        }
    }

    /// A thread counted some new index entries: the index grows by as much as they ask for.
    #[cold]
    #[inline(never)]
    pub(crate) fn entries_added(&self, pin: &Pin<'_>) {
        let added = pin.slot.entries.load(Relaxed);
        pin.slot.entries.store(0, Relaxed);
        if self.index.grow(added, &PinnedRecords(self)) {
            self.share_budget();
        }
    }

    /// The driver thread's loop.
    pub(crate) fn run_driver(&self) {
        std::thread::scope(|scope| {
            let named = || std::thread::Builder::new().name("esker-image".into());
            // A failure is latched; without a thread there is no image, until one is due again.
            self.drive(|| named().spawn_scoped(scope, || _ = self.take_image()).is_ok());
        });
    }

    /// `take_image` takes one elsewhere: lines must not wait for it.
    fn drive(&self, take_image: impl Fn() -> bool) {
        let mut last_sample = Instant::now();
        while !self.epochs.is_closed() {
            self.share_budget();
            if !self.is_in_memory() {
                let guard = lock(&self.boundaries);
                // A failure is latched; whoever writes hears of it.
                let _ = self.shift_boundaries(&guard, 0);
            }
            self.draw_due_line();
            if last_sample.elapsed() >= SAMPLE_PAUSE {
                last_sample = Instant::now();
                self.sample_expired();
            }
            // A failure is latched.
            // A backup may hold it: lines must not wait for that.
            let busy = !self.is_compaction_held() && self.reclaim_if_due().unwrap_or(false) | self.shrink_index_if_due();
            if self.is_image_due() && !self.is_temporary() && self.check_writable().is_ok() {
                self.images.announce(true);
                if !take_image() {
                    self.images.announce(false);
                }
            }
            self.log.populate_ahead();
            self.index.populate_ahead();
            if !busy {
                std::thread::park_timeout(DRIVER_PAUSE);
            }
        }
    }

    /// A line, if durability asks for one by now, and a slot that speaks of those that told of themselves.
    fn draw_due_line(&self) {
        // Whoever is at it does it for all.
        let Ok(mut drawn) = self.drawn.try_lock() else { return };
        if let Durability::Every(interval) = self.durability
            && drawn.line.elapsed() >= interval
        {
            drawn.line = Instant::now();
            // A failure is latched; whoever writes hears of it.
            let _ = self.commit();
        }
        if drawn.slot.elapsed() >= SLOT_PAUSE {
            drawn.slot = Instant::now();
            self.settle_line();
        }
    }

    /// The driver's share of making space come back.
    fn reclaim_if_due(&self) -> Result<bool> {
        match &self.caching {
            Some(caching) => self.evict_if_due(caching),
            None => self.compact_if_due(),
        }
    }

    /// True if nothing need be kept at the close.
    pub(crate) fn is_temporary(&self) -> bool {
        lock(&self.home).as_ref().is_none_or(|home| home.is_temporary)
    }

    /// Makes everything durable, with an image of the index, so that opening is quick. Once; later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.epochs.close() || self.is_in_memory() {
            return Ok(());
        }
        self.end_commits();
        let _compaction = self.hold_compaction();
        let _growth = self.index.hold();
        let saved = if self.is_temporary() { Ok(()) } else { self.check_writable().and_then(|()| self.save_image(false)) };
        // Lets go of the directory, even if clones of the store live on.
        lock(&self.home).take();
        saved
    }

    /// Counts what recovery added, as `entries_added` does for everybody else.
    pub(crate) fn entries_recovered(&self, pin: &Pin<'_>, added: bool) {
        if added {
            pin.slot.entries.store(1, Relaxed);
            self.entries_added(pin);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let bounds = &self.log.bounds;
        let count = |what: Counter| self.epochs.slots().map(|slot| slot.counters[what as usize].load(Relaxed)).sum();
        let (log_bytes, index_bytes) = (self.log_bytes(), self.index.bytes());
        let waiting: u64 = self.epochs.slots().map(|slot| slot.entries.load(Relaxed)).sum();
        let mut stats = Stats {
            in_memory: self.is_in_memory(),
            memory: MemoryStats {
                budget_bytes: self.budget.load(Relaxed),
                total_bytes: log_bytes + index_bytes + FIXED_BYTES,
                log_bytes,
                index_bytes,
                fixed_bytes: FIXED_BYTES,
            },
            log: LogStats {
                begin: bounds.begin.load(Relaxed),
                head: bounds.head.load(Relaxed),
                flushed_until: bounds.flushed_until.load(Relaxed),
                safe_read_only: bounds.safe_read_only.load(Relaxed),
                read_only: bounds.read_only.load(Relaxed).min(self.log.tail()),
                tail: self.log.tail(),
            },
            space: self.space_stats(),
            index: IndexStats {
                buckets: self.index.buckets(),
                entries: self.index.entries_with(waiting),
                overflow_buckets: self.index.overflow_buckets(),
                chain_lengths: self.sample_chains(),
            },
            operations: OperationStats {
                gets: count(Counter::Get),
                misses: count(Counter::Miss),
                puts: count(Counter::Put),
                rmws: count(Counter::Rmw),
                appends: count(Counter::Append),
                deletes: count(Counter::Delete),
                transactions: count(Counter::Transaction),
                conflicts: count(Counter::Conflict),
                device_reads: count(Counter::DeviceRead),
                promotions: count(Counter::Promotion),
            },
            expiry: ExpiryStats { expired_bytes: self.expiry.expired_bytes(), dropped_records: self.expiry.dropped.load(Relaxed) },
            loads: LoadStats {
                loads: self.loads.count.load(Relaxed),
                failures: self.loads.failures.load(Relaxed),
                nanoseconds: self.loads.nanoseconds.load(Relaxed),
            },
            cache: self.caching.as_ref().map(Caching::stats),
            latched: lock(&self.latched).as_ref().map(ToString::to_string),
            warnings: Vec::new(),
        };
        stats.warn(self.index.is_shared(), self.epochs.watch.long_pin());
        stats
    }

    /// How many of some entries have a chain of one, two, ... records in memory.
    fn sample_chains(&self) -> Vec<u64> {
        let mut lengths = Vec::new();
        let buckets = self.index.buckets();
        for at in (0..buckets).step_by((buckets / 1024).max(1) as usize) {
            let Ok(_pin) = self.epochs.pin() else { return lengths };
            for address in self.index.addresses(at) {
                let length = self.chain_length(address);
                if length > 0 {
                    lengths.resize(lengths.len().max(length), 0);
                    lengths[length - 1] += 1;
                }
            }
        }
        lengths
    }

    /// Under a pin.
    fn chain_length(&self, mut at: u64) -> usize {
        let head = self.log.bounds.head.load(Acquire);
        let mut length = 0;
        while at != 0 && at >= head {
            length += 1;
            // SAFETY: `at >= head` under the caller's pin, and chains hold published addresses only.
            at = unsafe { Record::new(self.log.pointer(at)) }.previous();
        }
        length
    }
}

/// The records that index entries point at, for a caller that holds a pin.
struct PinnedRecords<'a>(&'a Engine);

impl Records for PinnedRecords<'_> {
    fn prefetch(&self, address: u64) {
        crate::memory::prefetch(self.0.log.pointer(address));
    }

    fn chain(&self, address: u64) -> Chain {
        let engine = self.0;
        if address < engine.log.bounds.head.load(Acquire) {
            return Chain::Unknown;
        }
        // SAFETY: `address >= head` was read under the caller's pin, and index entries hold published addresses only.
        let record = unsafe { Record::new(engine.log.pointer(address)) };
        if record.previous() != 0 {
            return Chain::Unknown;
        }
        Chain::Alone(match engine.layout {
            Layout::Word { key_bytes, .. } => engine.hash_of(record.word_key(key_bytes)),
            Layout::Bytes => engine.hash_of(record.bytes_key()),
        })
    }
}

#[cfg(all(loom, test))]
impl Engine {
    /// An engine for keys without bytes and values of one word; no driver, no device, the same hashes every time.
    pub(crate) fn for_model() -> Self {
        let log = Log::new(None, 0, FIRST_ADDRESS, false).expect("a modelled region");
        log.budget.store(1 << 20, Relaxed);
        Self {
            epochs: Epochs::new(),
            index: Index::new().expect("a modelled region"),
            log,
            latches: Latches::default(),
            layout: Layout::Word { key_bytes: 0, value_bytes: 8 },
            value_width: Some(8),
            hasher: Hasher::new([1, 2]),
            home: Mutex::new(None),
            commits: Commits::default(),
            compaction: Compaction::default(),
            is_promoting: false,
            keeps_versions: false,
            lately: Lately::default(),
            images: Images::default(),
            expiry: Expiry::new(Arc::new(crate::expiry::SystemClock)),
            caching: None,
            loads: Loads::default(),
            holds: Holds::default(),
            seekers: AtomicU32::new(0),
            boundaries: Mutex::new(()),
            is_always_durable: false,
            in_background: false,
            space_amplification: 2.0,
            segment_bytes: 0,
            durability: Durability::None,
            drawn: Drawn::now(),
            budget: AtomicU64::new(1 << 20),
            latched: Mutex::new(None),
            is_latched: AtomicBool::new(false),
        }
    }
}

fn check_budget(bytes: u64) -> Result<()> {
    if bytes < BUDGET_BYTES_MIN {
        return Err(Error::invalid(format!("the memory budget is at least 16 MiB budget={bytes}")));
    }
    Ok(())
}
