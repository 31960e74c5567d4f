//! Compaction: space comes back.
//!
//! ```text
//! begin ...... stretch ...... reached ............................ tail
//! |  what lives is appended  |                                     | copies
//! ```
//! A stretch at the log's beginning is read once. A record lives if it is the newest of its key; then a copy of it is
//! appended and published, exactly as an update would be. When a durable line holds the copies, `begin` moves behind the
//! stretch and its space goes back: on the device as whole segment files, in memory as pages. One mechanism for both modes.
//!
//! * **Nothing is resurrected**: a copy is published only over the very entry under which the record was found to be the newest.
//! * **Deletions end here.** Older versions lie lower and went before, so a tombstone is dropped, and its entry with it. A record
//!   that has expired is a tombstone.
//! * **Whether a cold record is the newest** is known at once if its entry leads to it. If the entry leads to another cold
//!   record, that one is read: those reads are gathered for the stretch and done in the order of their addresses,
//!   some at a time. If the entry says that its chain is of one key, none is needed.
//! * **Snapshots** read what was superseded (`snapshot.rs`): while one is held a copy leads to the record that it was made of, and
//!   a stretch is given back when all who held while it was copied have let go. No other begins before. A cache, which drops what
//!   lives, begins none at all while anybody holds.
//! * **A reader** that was on its way to a record below `begin` finds nothing there, looks again, and finds the copy.
//!
//! **When**: dead bytes are counted where records are superseded or deleted. Above the space target, and by half a file on a device,
//! the driver compacts, a stretch at a time; of a store in memory also when its budget is nearly full, and whoever finds it full does it himself.

use crate::cache::Caching;
use crate::device::{DeviceRead, ReadSource, SECTOR_BYTES};
use crate::engine::{Engine, Layout, lock};
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result};
use crate::index::{Keys, Published, Seen};
use crate::log::{BLOCK_BYTES, NOWHERE, block_floor};
use crate::manifest::State;
use crate::record::{self, ABSENT, ADDRESS_MASK, NEVER, Record, VALID};
use crate::scars::Scar;
use crate::stats::SpaceStats;
use crate::store::chain;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard};
use crate::traverse::{Scanned, Span, Visitor};
use std::io;
use std::time::Duration;

/// A stretch is this part of the log's memory or this part of the log, whichever is more, within bounds: each has a line, after which whatever is
/// updated is copied once.
const STRETCH_PART: u64 = 32;
const STRETCH_LOG_PART: u64 = 128;
const STRETCH_BYTES_MIN: u64 = 1 << 20;
const STRETCH_BYTES_MAX: u64 = 64 << 20;
/// In memory those who find the store full wait for a stretch: a millisecond or two.
const STRETCH_IN_MEMORY_MAX: u64 = 512 << 10;
/// The part of the log's budget that doubts may take besides it.
const DOUBT_PART: u64 = 64;
/// A log is left alone for so much longer than the target, at most: what is given back within a file saves nothing yet.
const SLACK_BYTES_MAX: u64 = 32 << 20;
/// A log below this is left alone.
const LOG_BYTES_MIN: u64 = 4 << 20;
/// Blocks that are read at a time to settle doubts: others read from the device, too.
const DOUBT_READS: usize = 16;
/// Records between two looks at the room above the tail.
const VISITS_AHEAD: u64 = 256;
/// How long and how often a full store waits for those who hold what would make room.
const HELD_PAUSE: Duration = Duration::from_millis(1);
const HELD_PAUSES: u32 = 16;

/// How far a log in files of this length may go beyond its target before it is compacted.
pub(crate) fn slack(segment_bytes: u64) -> u64 {
    (segment_bytes / 2).min(SLACK_BYTES_MAX)
}

#[derive(Default)]
pub(crate) struct Compaction {
    running: Mutex<()>,
    pub(crate) scars: Mutex<Vec<Scar>>,
    /// Dead bytes counted before this opening, and those given back since.
    known: AtomicU64,
    given_back: AtomicU64,
    pass: Mutex<Option<Pass>>,
    done: Mutex<Done>,
    /// A stretch that somebody held when it had been copied.
    copied: Mutex<Option<Copied>>,
    /// The tail when two chains could not be joined (`joining.rs`).
    pub(crate) joined_in_vain_at: AtomicU64,
}

/// A stretch from the log's beginning to `reached`, all of whose living records have copies.
#[derive(Clone, Copy)]
struct Copied {
    from: u64,
    reached: u64,
    moved: u64,
    /// Bytes that had been counted as dead.
    dead: u64,
}

/// A way through the whole log, as it was when it began: at its end nothing is left of what was dead then, whatever was
/// counted. So errors of the count do not add up, and where all lives compaction rests after one pass. What died since may have been given back,
/// too: of that no more than was counted.
struct Pass {
    until: u64,
    /// All dead bytes that had been counted.
    counted: u64,
}

/// What was done since the opening.
#[derive(Clone, Copy, Default)]
struct Done {
    stretches: u64,
    given_back_bytes: u64,
    moved_bytes: u64,
}

/// Where a key's newest record is.
pub(crate) enum Newest {
    At(u64),
    /// On the device, at this address or behind it in the chain.
    Cold(u64),
    Nowhere,
}

impl Engine {
    /// Bytes of log from its beginning to its tail.
    pub(crate) fn log_extent(&self) -> u64 {
        self.log.tail().saturating_sub(self.log.bounds.begin.load(Relaxed))
    }

    /// Bytes of records that are superseded, deleted or expired, as far as was noticed.
    pub(crate) fn dead_bytes(&self) -> u64 {
        (self.superseded_bytes() + self.expiry.expired_bytes()).min(self.log_extent())
    }

    /// Bytes of records that are superseded or deleted, as far as was noticed.
    pub(crate) fn superseded_bytes(&self) -> u64 {
        self.counted_dead_bytes().saturating_sub(self.compaction.given_back.load(Relaxed)).min(self.log_extent())
    }

    /// Those given back included.
    fn counted_dead_bytes(&self) -> u64 {
        let counted: u64 = self.epochs.slots().map(|slot| slot.counters[Counter::DeadByte as usize].load(Relaxed)).sum();
        self.compaction.known.load(Relaxed) + self.log.left_bytes.load(Relaxed) + counted
    }

    fn begin_pass(&self) -> Pass {
        Pass { until: block_floor(self.log.tail()), counted: self.counted_dead_bytes() }
    }

    /// Notes what a stretch gave back.
    fn note_stretch(&self, stretch: Copied) {
        let Compaction { given_back, pass, done, .. } = &self.compaction;
        let mut done = lock(done);
        done.stretches += 1;
        done.given_back_bytes += stretch.reached - stretch.from;
        done.moved_bytes += stretch.moved;
        let given = given_back.fetch_add(stretch.dead, Relaxed) + stretch.dead;
        if let Some(pass) = lock(pass).take_if(|pass| stretch.reached >= pass.until) {
            given_back.store(given.max(pass.counted).min(self.counted_dead_bytes()), Relaxed);
        }
    }

    pub(crate) fn start_dead_bytes(&self, known: u64) {
        self.compaction.known.store(known, Relaxed);
    }

    pub(crate) fn space_stats(&self) -> SpaceStats {
        let (log_bytes, dead_bytes) = (self.log_extent(), self.dead_bytes());
        let live_bytes = log_bytes.saturating_sub(dead_bytes);
        let Done { stretches, given_back_bytes, moved_bytes } = *lock(&self.compaction.done);
        SpaceStats {
            file_bytes: self.log.device.as_ref().and_then(|device| device.held_bytes().ok()).unwrap_or(0),
            log_bytes,
            dead_bytes,
            live_bytes,
            amplification: if log_bytes == 0 { 1.0 } else { log_bytes as f64 / live_bytes as f64 },
            amplification_target: self.space_amplification,
            stretches,
            given_back_bytes,
            moved_bytes,
        }
    }

    /// True if more space is taken than the target allows.
    fn is_compaction_due(&self) -> bool {
        let extent = self.log_extent();
        // The log may have become longer since, and more of it dead.
        let dead = self.dead_bytes().min(extent);
        let budget = self.log.budget.load(Relaxed);
        let is_nearly_full = self.is_in_memory() && extent > budget / 8 * 7 && dead > budget / 16;
        let allowed = self.space_amplification * (extent - dead) as f64 + self.space_slack as f64;
        is_nearly_full || extent > LOG_BYTES_MIN && extent as f64 > allowed
    }

    /// The driver's share: one stretch, if that is due.
    pub(crate) fn compact_if_due(&self) -> Result<bool> {
        if !self.is_compaction_due() || self.check_writable().is_err() {
            return Ok(false);
        }
        self.compact_stretch()
    }

    /// Compacts once through all that was in the log when the call began; returns the bytes given back.
    pub(crate) fn compact_all(&self) -> Result<u64> {
        let (until, before) = (self.log.tail(), self.log_extent());
        *lock(&self.compaction.pass) = Some(self.begin_pass());
        while self.log.bounds.begin.load(Acquire) < until && self.compact_stretch()? {}
        while self.shrink_index(&lock(&self.compaction.running))? {}
        Ok(before.saturating_sub(self.log_extent()))
    }

    /// For a store in memory that is full: true if there is room for `bytes` now.
    pub(crate) fn reclaim(&self, bytes: u64) -> Result<bool> {
        let mut pauses = 0;
        let fits = || self.log_bytes() + bytes <= self.log.budget.load(Relaxed);
        let until = self.log.tail();
        self.sample_expired();
        while !fits() {
            // Once through the log at most; and not at all when next to nothing would come of it.
            let hopeless = self.dead_bytes() < self.log_extent() / 32 || self.log.bounds.begin.load(Relaxed) >= until;
            if hopeless {
                return Ok(fits());
            }
            if !self.compact_stretch()? {
                // A read-only transaction ends soon, a scan may not.
                let is_held = lock(&self.compaction.copied).is_some();
                if !is_held || pauses == HELD_PAUSES {
                    return Ok(fits());
                }
                pauses += 1;
                std::thread::sleep(HELD_PAUSE);
            }
            self.share_budget();
        }
        Ok(true)
    }

    fn compact_stretch(&self) -> Result<bool> {
        self.move_stretch(None, || true)
    }

    /// Gives the oldest stretch back, if that still `is_due` when nobody else does it; a cache drops from it what nobody
    /// asked for. False if there is nothing to give back.
    pub(crate) fn move_stretch(&self, caching: Option<&Caching>, is_due: impl Fn() -> bool) -> Result<bool> {
        let one = lock(&self.compaction.running);
        if !is_due() {
            return Ok(true);
        }
        let copied = *lock(&self.compaction.copied);
        if let Some(copied) = copied {
            return self.give_back(copied);
        }
        if caching.is_some() && self.holds.is_any() {
            return Ok(false);
        }
        let bounds = &self.log.bounds;
        let from = bounds.begin.load(Acquire);
        lock(&self.compaction.pass).get_or_insert_with(|| self.begin_pass());
        let mut stretch = match self.log.reserve.load(Relaxed) {
            0 => {
                let own = || (self.log.budget.load(Relaxed) / STRETCH_PART).max(self.log_extent() / STRETCH_LOG_PART);
                let part = caching.map_or_else(own, |caching| self.evicted_stretch(caching));
                part.clamp(STRETCH_BYTES_MIN, STRETCH_BYTES_MAX)
            }
            // In memory what lives in a stretch must fit the reserve.
            reserve => (reserve / 2).min(STRETCH_IN_MEMORY_MAX),
        };
        loop {
            let to = self.stretch_end(from + stretch)?;
            if to <= from {
                return Ok(false);
            }
            let (doubtful, keys) = (Vec::new(), Vec::new());
            let mut mover =
                Mover { engine: self, visited: 0, moved: 0, expired: 0, from, doubtful, keys, caching, stretch: to - from, ended_at: None };
            let reached = self.visit_stretch(from, to, &mut mover)?;
            mover.settle_all()?;
            let reached = mover.ended_at.unwrap_or(reached);
            if reached > from {
                if let Some(caching) = caching {
                    caching.adapt(mover.moved, reached - from);
                }
                let dead = (reached - from).saturating_sub(mover.moved + mover.expired);
                self.holds.set_copied(reached);
                let given = self.give_back(Copied { from, reached, moved: mover.moved, dead });
                // What could not be read is told when it is asked for.
                let _ = self.shrink_index(&one);
                return given;
            }
            // A record longer than the stretch, unless it is the log's last or there is no room for its copy.
            if from + stretch >= self.log.tail() || mover.ended_at.is_some() {
                return Ok(false);
            }
            stretch *= 2;
        }
    }

    /// Where a stretch may end: what lies below does not change any more, and on a device it is there.
    fn stretch_end(&self, wanted: u64) -> Result<u64> {
        let guard = lock(&self.boundaries);
        let bounds = &self.log.bounds;
        let to = if wanted < self.log.tail() { block_floor(wanted) } else { self.log.end_block() };
        if self.is_in_memory() && to > bounds.safe_read_only.load(Relaxed) {
            self.freeze(to);
        } else if !self.is_in_memory() && to > bounds.flushed_until.load(Relaxed) {
            self.freeze(to.max(bounds.safe_read_only.load(Relaxed)));
            self.flush()?;
        }
        drop(guard);
        Ok(to)
    }

    /// Visits the records that begin in `[from, to)` and end there; where the next one begins.
    fn visit_stretch(&self, from: u64, to: u64, mover: &mut Mover<'_>) -> Result<u64> {
        let state = State::for_walk(self.layout, to);
        let scars = lock(&self.compaction.scars).clone();
        let span = Span::open_ended(from, &state, &scars);
        if self.is_in_memory() {
            self.scan_memory(&span, mover)?
        } else {
            self.scan(&span, mover)?
        }
        Ok(span.reached())
    }

    /// Gives a stretch back that has been copied. False if the store was closed meanwhile, or somebody holds the stretch: then it is
    /// for later.
    fn give_back(&self, stretch: Copied) -> Result<bool> {
        let is_free = self.holds.let_go(stretch.reached, || self.log.bounds.compacted.store(stretch.reached, SeqCst));
        *lock(&self.compaction.copied) = if is_free { None } else { Some(stretch) };
        if !is_free || !self.begin_at(stretch.reached)? {
            return Ok(false);
        }
        self.note_stretch(stretch);
        Ok(true)
    }

    /// Nothing below `to` is needed any more. False if the store was closed meanwhile.
    fn begin_at(&self, to: u64) -> Result<bool> {
        let bounds = &self.log.bounds;
        let from = bounds.begin.load(Relaxed);
        if self.is_in_memory() {
            let _guard = lock(&self.boundaries);
            bounds.begin.store(to, SeqCst);
            self.evict(to);
            return Ok(true);
        }
        // What goes with the store needs no line.
        if !self.is_temporary() && !self.draw_line_now()? {
            return Ok(false);
        }
        bounds.begin.store(to, SeqCst);
        if let Some(device) = &self.log.device {
            let sectors = |address: u64| address / BLOCK_BYTES * SECTOR_BYTES as u64;
            device.discard(sectors(from), sectors(to)).map_err(|error| self.latch(error))?;
        }
        Ok(true)
    }

    /// True if compaction would wait now: for another, an image or a backup.
    pub(crate) fn is_compaction_held(&self) -> bool {
        self.compaction.running.try_lock().is_err()
    }

    /// The driver's share of shrinking the index. True if there is more to do.
    pub(crate) fn shrink_index_if_due(&self) -> bool {
        let Ok(running) = self.compaction.running.try_lock() else { return false };
        // What could not be read is told when it is asked for.
        self.shrink_index(&running).unwrap_or(false)
    }

    /// No compaction from here on, while the guard lives.
    pub(crate) fn hold_compaction(&self) -> MutexGuard<'_, ()> {
        lock(&self.compaction.running)
    }

    /// Under a pin.
    pub(crate) fn newest(&self, seen: &Seen, key: &[u8]) -> Newest {
        let bounds = &self.log.bounds;
        let (head, begin) = (bounds.head.load(Acquire), bounds.begin.load(Acquire));
        let mut at = seen.address();
        while at >= begin && at != 0 {
            if at < head {
                return Newest::Cold(at);
            }
            // SAFETY: `at >= head` under the caller's pin; entries and chains hold published addresses only.
            let record = unsafe { Record::new(self.log.pointer(at)) };
            let found = match self.layout {
                Layout::Word { key_bytes, .. } => record.word_key(key_bytes),
                Layout::Bytes => record.bytes_key(),
            };
            if found == key {
                return Newest::At(at);
            }
            at = record.previous();
        }
        Newest::Nowhere
    }
}

/// Moves what lives in a stretch.
struct Mover<'a> {
    engine: &'a Engine,
    visited: u64,
    /// Bytes of copies made.
    moved: u64,
    /// Bytes of expired records dropped: nobody counted them.
    expired: u64,
    /// Where the stretch begins.
    from: u64,
    /// Records whose entry leads to another cold record, and their keys.
    doubtful: Vec<Doubt>,
    keys: Vec<u8>,
    /// A cache, which drops what is not worth another round.
    caching: Option<&'a Caching>,
    stretch: u64,
    /// In memory the first record whose copy did not fit: the stretch ends before it.
    ended_at: Option<u64>,
}

/// Small, for there are many.
struct Doubt {
    /// The cold record that the entry leads to.
    other: u64,
    /// From the beginning of the stretch.
    at: u32,
    /// In `keys`.
    key_start: u32,
    key_bytes: u32,
    /// Nothing is behind it.
    ends_chain: bool,
}

impl Visitor for Mover<'_> {
    fn expect(&mut self, hash: u64) {
        self.engine.index.prefetch(hash);
    }

    fn visit(&mut self, scanned: &Scanned, bytes: &[u8]) -> Result<()> {
        if self.ended_at.is_some() {
            return Ok(());
        }
        self.visited += 1;
        if self.visited.is_multiple_of(VISITS_AHEAD) {
            // Who closes waits for this stretch.
            if self.engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            // The driver is here and not in its loop; without this lines wait, and those who write pay for page faults and flushes.
            self.engine.keep_up();
        }
        self.consider(scanned.at, scanned.hash, bytes, None)?;
        // Where most entries are shared nearly every record is in doubt; the doubts of a stretch may be as long as it is.
        if self.doubt_bytes() > self.engine.log.budget.load(Relaxed) / DOUBT_PART { self.settle_all() } else { Ok(()) }
    }
}

impl Mover<'_> {
    /// `known`: the entry's head under which the record was found to be the newest by reading.
    fn consider(&mut self, at: u64, hash: u64, bytes: &[u8], known: Option<u64>) -> Result<()> {
        let engine = self.engine;
        let key = &bytes[record::key_range(engine.layout, bytes)];
        let mut has_room = true;
        loop {
            let pin = engine.epochs.pin_anyway()?;
            let seen = engine.index.lookup(hash);
            match engine.newest(&seen, key) {
                Newest::At(newest) if newest != at => return Ok(()),
                Newest::At(_) => {}
                Newest::Cold(other) if other == at || known == Some(seen.address()) => {}
                // It may be a bucket that moves: what follows says that the record is dead because it is not in this chain.
                Newest::Cold(_) if !engine.index.is_settled(&seen) => continue,
                // Chains descend; or this one is another key's, or its first record is a newer one of this key.
                Newest::Cold(other) if other < at || seen.is_sole() => return Ok(()),
                // A cache drops what is on a device anyway.
                Newest::Cold(_) if self.caching.is_some() => return Ok(()),
                Newest::Cold(other) => {
                    // A stretch and the keys of its doubts are far shorter than 4 GiB.
                    let (key_start, key_bytes) = (self.keys.len() as u32, key.len() as u32);
                    self.keys.extend_from_slice(key);
                    let ends_chain = engine.log.is_gone(record::word_at(bytes, 0) & ADDRESS_MASK);
                    self.doubtful.push(Doubt { other, at: (at - self.from) as u32, key_start, key_bytes, ends_chain });
                    return Ok(());
                }
                Newest::Nowhere if engine.index.is_settled(&seen) => return Ok(()),
                Newest::Nowhere => continue,
            }
            let is_tombstone = record::word_at(bytes, 0) & ABSENT != 0;
            let has_expired = !is_tombstone && self.has_expired(bytes);
            if is_tombstone || has_expired || !has_room || self.is_unwanted(bytes, hash) {
                // Its bytes stay if the stretch is not given back, and no entry leads to them: a scan must ask.
                self.mark_superseded(at);
                // As below: what lies behind it in the stretch may be another key's, and in doubt. Not in a cache.
                let previous = record::word_at(bytes, 0) & ADDRESS_MASK;
                // While doubts are settled those that are left are not on the list.
                let leads_nowhere =
                    self.caching.is_some() || engine.log.is_gone(previous) || known.is_none() && self.is_settled_down_to(previous);
                if seen.address() == at && leads_nowhere && !engine.index.remove(hash, &seen) {
                    continue;
                }
                drop(pin);
                if has_expired {
                    self.expired += bytes.len() as u64;
                    engine.expiry.drop_record(bytes.len() as u64);
                }
                if let Some(caching) = self.caching.filter(|_| !is_tombstone) {
                    caching.depart(engine.layout, bytes, has_expired);
                }
                return Ok(());
            }
            match self.copy(pin, at, hash, &seen, bytes) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Error::Full) if self.caching.is_some() => has_room = false,
                Err(Error::Full) => {
                    self.ended_at = Some(at);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// True if whatever lives between there and where we are has a copy above, and nobody needs the rest: then a chain that leads
    /// there leads to nothing.
    fn is_settled_down_to(&self, at: u64) -> bool {
        at >= self.from && self.doubtful.is_empty() && !self.engine.holds.is_any()
    }

    /// An expired record is a tombstone, unless a snapshot has it as a value: what is older lies lower and went before.
    fn has_expired(&self, bytes: &[u8]) -> bool {
        let expires = record::expiry_of(bytes);
        if expires == NEVER {
            return false;
        }
        self.engine.expiry.watch();
        self.engine.has_passed(expires) && self.engine.holds.have_seen(expires)
    }

    /// A cache does without it.
    fn is_unwanted(&self, bytes: &[u8], hash: u64) -> bool {
        self.caching.is_some_and(|caching| !caching.keeps(bytes, hash, self.moved, self.stretch))
    }

    /// Only what is in memory has a window: of a cold record the mark would be another address's, some laps later, and would take
    /// memory that nobody counts. Under a pin.
    fn mark_superseded(&self, at: u64) {
        let log = &self.engine.log;
        if at >= log.bounds.head.load(Acquire) {
            log.windows.mark_superseded(at);
        }
    }

    /// Appends a copy of a living record; false to look again.
    fn copy(&mut self, pin: Pin<'_>, at: u64, hash: u64, seen: &Seen, bytes: &[u8]) -> Result<bool> {
        let engine = self.engine;
        let Some(to) = engine.log.allocate_from_reserve(pin.slot, bytes.len() as u64) else {
            drop(pin);
            engine.make_room_for_copy(bytes.len() as u64)?;
            return Ok(false);
        };
        // SAFETY: just allocated under the pin: ours alone, in memory, with room for these bytes.
        let copy = unsafe { Record::new(engine.log.pointer(to)) };
        // A key that shares the entry may lie behind the record and still be in doubt: the copy leads there too.
        let is_held = at < engine.log.bounds.held.load(Acquire);
        let previous = if seen.address() == at && !is_held { record::word_at(bytes, 0) & ADDRESS_MASK } else { seen.address() };
        self.mark_superseded(at);
        copy.write_copy(bytes, previous, engine.log.line_flag() | record::lives_after(record::word_at(bytes, 0)));
        let keys = if engine.log.is_gone(previous) { Keys::OwnAlone } else { Keys::OwnIsThere };
        match engine.index.publish(hash, seen, to, keys, &mut false, |previous| copy.set_previous(previous)) {
            Published::Done => {
                self.moved += bytes.len() as u64;
                Ok(true)
            }
            _ => {
                copy.abandon();
                pin.slot.end.store(0, Relaxed);
                Ok(false)
            }
        }
    }

    fn key_of(&self, doubt: &Doubt) -> &[u8] {
        &self.keys[doubt.key_start as usize..(doubt.key_start + doubt.key_bytes) as usize]
    }

    /// Memory that doubts take.
    fn doubt_bytes(&self) -> u64 {
        (self.doubtful.len() * size_of::<Doubt>() + self.keys.len()) as u64
    }

    /// Leaves no doubt.
    fn settle_all(&mut self) -> Result<()> {
        self.settle()?;
        self.keys.clear();
        Ok(())
    }

    /// Reads, in the order of their addresses, the records that doubtful ones may have been superseded by.
    fn settle(&mut self) -> Result<()> {
        let mut doubtful = std::mem::take(&mut self.doubtful);
        doubtful.sort_unstable_by_key(|doubt| doubt.other);
        let Some(device) = self.engine.log.device.as_ref().filter(|_| !doubtful.is_empty()) else { return Ok(()) };
        let mut settling = Settling { mover: self, doubtful: &doubtful, next: 0, under_way: 0, slow: Vec::new(), result: Ok(()) };
        device.read_stream(&mut settling);
        let Settling { slow, result, .. } = settling;
        result?;
        slow.into_iter().try_for_each(|doubt| self.settle_slowly(doubt))
    }

    /// Another key's record, or one that reaches into the next block: walk the chain.
    fn settle_slowly(&mut self, doubt: &Doubt) -> Result<()> {
        let key = self.key_of(doubt).to_vec();
        let (at, hash) = (self.from + u64::from(doubt.at), self.engine.hash_of(&key));
        // From where the entry leads now: a newer record may have come and gone cold since the doubt arose.
        let Some((head, first)) = self.cold_part(hash, &key)? else { return Ok(()) };
        let found = chain::find(self.engine, first, &key)?;
        if found == Some(at) {
            let bytes = chain::record_bytes(self.engine, at)?;
            // Should the entry have changed since, it leads to something newer: doubtful again, or dead.
            self.consider(at, hash, &bytes, Some(head))?;
            return self.settle();
        }
        Ok(())
    }
}

impl Mover<'_> {
    /// The head of the key's entry and the first cold record of its chain; `None` if memory knows the key, or nobody does.
    fn cold_part(&self, hash: u64, key: &[u8]) -> Result<Option<(u64, u64)>> {
        let engine = self.engine;
        loop {
            let _pin = engine.epochs.pin_anyway()?;
            let seen = engine.index.lookup(hash);
            match engine.newest(&seen, key) {
                Newest::At(_) => return Ok(None),
                _ if !engine.index.is_settled(&seen) => {}
                Newest::Cold(first) => return Ok(Some((seen.address(), first))),
                Newest::Nowhere => return Ok(None),
            }
        }
    }
}

/// Doubts that are settled by what the device has: a source of its reads, block by block.
struct Settling<'m, 'e, 'd> {
    mover: &'m Mover<'e>,
    /// In the order of the blocks that are read for them.
    doubtful: &'d [Doubt],
    /// The first one whose block was not asked for yet.
    next: usize,
    under_way: usize,
    /// Those that another key's record, or none that is whole, was read for.
    slow: Vec<&'d Doubt>,
    result: Result<()>,
}

impl<'d> Settling<'_, '_, 'd> {
    /// The doubts from there on that one block is read for.
    fn of_block(&self, from: usize) -> &'d [Doubt] {
        let rest = &self.doubtful[from..];
        let block = |doubt: &Doubt| doubt.other / BLOCK_BYTES;
        let count = rest.iter().take_while(|doubt| block(doubt) == block(&rest[0])).count();
        &rest[..count]
    }

    fn settle(&mut self, read: &DeviceRead) -> Result<()> {
        let Mover { engine, from, .. } = self.mover;
        let doubts = self.of_block(read.token() as usize);
        let payload = engine.log.verify_block(doubts[0].other / BLOCK_BYTES, read.bytes())?;
        for doubt in doubts {
            let other = &payload[(doubt.other % BLOCK_BYTES) as usize..];
            let key = self.mover.key_of(doubt);
            if !is_record_of(engine.layout, other, key) {
                self.slow.push(doubt);
            } else if doubt.ends_chain && record::word_at(other, 0) & ADDRESS_MASK == from + u64::from(doubt.at) {
                // These two are all of the chain, so the next one that dies need not be asked about.
                engine.index.confirm_sole(engine.hash_of(key), doubt.other);
            }
        }
        Ok(())
    }
}

impl ReadSource for Settling<'_, '_, '_> {
    fn next(&mut self) -> Option<DeviceRead> {
        if self.result.is_err() || self.next == self.doubtful.len() || self.under_way == DOUBT_READS {
            return None;
        }
        self.mover.engine.keep_up();
        let (first, block) = (self.next, self.doubtful[self.next].other / BLOCK_BYTES);
        self.next += self.of_block(first).len();
        self.under_way += 1;
        Some(DeviceRead::new(block * SECTOR_BYTES as u64, 1, first as u64))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        self.under_way -= 1;
        let settled = result.map_err(Error::from).and_then(|()| self.settle(&read));
        self.result = std::mem::replace(&mut self.result, Ok(())).and(settled);
    }
}

/// True if these bytes begin with a whole header and key, and the key is this one.
fn is_record_of(layout: Layout, bytes: &[u8], key: &[u8]) -> bool {
    if bytes.len() < record::BYTES_HEADER_BYTES as usize || record::word_at(bytes, 0) & VALID == 0 {
        return false;
    }
    bytes.get(record::key_range(layout, bytes)) == Some(key)
}

impl State {
    /// As much of a state as a walk through a running store's log needs: everything below `to` counts.
    fn for_walk(layout: Layout, to: u64) -> Self {
        Self {
            identity: crate::manifest::Identity { store_id: 0, hash_seed: [0; 2] },
            layout,
            widths: [0; 2],
            segment_bytes: 0,
            sequence: 0,
            line: 0,
            cut: to,
            window: NOWHERE,
            begin: 0,
            dead: 0,
            image: 0,
            image_until: 0,
            shape: 0,
            entries: 0,
            shared: false,
            is_backup: false,
            lineage: 0,
        }
    }
}
