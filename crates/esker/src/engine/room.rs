//! Room: one budget for the index and the log, and the boundaries that keep the log to its share.
//!
//! ```text
//! begin ...... head ............ flushed <= safe_read_only <= read_only ............ tail
//! | on the device | in memory, written  | frozen, to be written | fuzzy | mutable       |
//! ```
//! **Who needs room makes it**, under the lock of the boundaries: freeze, write, evict, each behind a drain. The driver does the same
//! earlier. In memory compaction makes it, in a cache eviction. Each step is a sixteenth of the log's share.
//!
//! **A loan** is memory of the log's share that a scan has for its lists: the log evicts before it is granted, and has it back when the
//! scan ends.

use super::Engine;
use crate::cache;
use crate::commit::Boundaries;
use crate::epoch::{Counter, Pin, Slot};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::log::{BLOCK_BYTES, FIRST_ADDRESS, LAST_ADDRESS, PIECE_BYTES, block_ceil, block_floor};
use crate::memory;
use crate::record::Record;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::thread;
use crate::sync::{lock, try_lock};

/// Buffers, slots, thread state: what is taken off the budget before log and index share it.
pub(super) const FIXED_BYTES: u64 = 2 << 20;
pub(crate) const BUDGET_BYTES_MIN: u64 = 16 << 20;
/// With less a log on a device would do nothing but make room.
const LOG_BYTES_MIN: u64 = BUDGET_BYTES_MIN / 4;
/// With so much it works: for an index that is a little larger than its share, as splits under way and recovery may leave it.
const LOG_BYTES_LEAST: u64 = LOG_BYTES_MIN / 4;
const VALUE_BYTES_MAX: u64 = 16 << 20;
/// Less is not worth the step.
const LOAN_BYTES_MIN: u64 = 1 << 20;
/// So often who needs room looks whether holes are ripe that somebody else has taken off the shelf.
const HOLE_PAUSES: u32 = 64;
/// Boundaries move by this part of the log's memory.
const STEP_PART: u64 = 16;
const SPARE_BYTES_MIN: u64 = 2 << 20;
/// Between the log's tail and, round the region, what is still in memory: the pages that tell of windows are given back for 32 MiB at a
/// time, and some records are placed whatever the budget.
const ADDRESS_SLACK_BYTES: u64 = 64 << 20;
/// The driver keeps this part of a store in memory free. Less, and those who write wait for it; more, and more is copied: the later a
/// stretch is compacted, the more of it is dead.
const SPARE_PART_IN_MEMORY: u64 = 64;
/// What is written ahead of a line goes in steps of so much at most, some milliseconds each, and in so many rounds: in each less has come
/// meanwhile.
const FLUSH_STEP_MAX: u64 = 8 << 20;
const FLUSH_ROUNDS: u32 = 4;

/// The budgets that were asked for, in this order, from the last one that was granted on: the last is in force. One that is refused goes,
/// or all who write would be refused for what they did not ask. No lock is held while it is tried: a listener may ask for another one.
pub(super) struct Budgets {
    turns: u64,
    asked: Vec<(u64, u64)>,
}

impl Budgets {
    pub(super) fn of(bytes: u64) -> Self {
        Self { turns: 0, asked: vec![(0, bytes)] }
    }

    fn granted(&self) -> u64 {
        self.asked.first().map_or(0, |(_, bytes)| *bytes)
    }

    fn ask(&mut self, bytes: u64, in_force: &AtomicU64) -> u64 {
        self.turns += 1;
        self.asked.push((self.turns, bytes));
        in_force.store(bytes, Relaxed);
        self.turns
    }

    fn answer(&mut self, turn: u64, is_granted: bool, in_force: &AtomicU64) {
        self.asked.retain(|(asked, _)| if is_granted { *asked >= turn } else { *asked != turn });
        if let Some((_, bytes)) = self.asked.last() {
            in_force.store(*bytes, Relaxed);
        }
    }
}

/// What came of looking for a hole in memory.
#[derive(Clone, Copy)]
struct Sought<'a> {
    is_in_vain: bool,
    /// Who looks again: the thread that makes room, or another one.
    by: Option<&'a Slot>,
}

impl Engine {
    /// What the index and the rest leave for the log must suffice to work with.
    pub(crate) fn check_index_fits(&self) -> Result<()> {
        self.check_fits(self.index.bytes())
    }

    /// The same of an index of this shape.
    pub(crate) fn check_shape_fits(&self, shape: u64) -> Result<()> {
        self.check_fits(Index::buckets_of_shape(shape) * 64)
    }

    fn check_fits(&self, index_bytes: u64) -> Result<()> {
        let (least, budget) = (index_bytes + FIXED_BYTES + LOG_BYTES_LEAST, self.budget.load(Relaxed));
        if least > budget {
            return Err(Error::invalid(format!("the memory budget is below what this store's index needs budget={budget} least={least}")));
        }
        Ok(())
    }

    pub(crate) fn value_bytes_max(&self) -> u64 {
        value_bytes_max(self.budget.load(Relaxed))
    }

    pub(crate) fn set_budget(&self, bytes: u64) -> Result<()> {
        check_budget(bytes)?;
        drop(self.epochs.pin()?);
        self.check_address_space(bytes)?;
        let is_all_kept = self.is_in_memory() && self.caching.is_none();
        let granted = || lock(&self.budgets).granted();
        let is_lowered = bytes < granted();
        let check_held = || {
            // Compaction needs room before it makes some, and who deletes what is frozen does, too.
            let log = match self.lent.load(Relaxed) {
                _ if is_all_kept => self.log.share_least(self.log_bytes()),
                0 => LOG_BYTES_MIN,
                lent => self.log_bytes_to_work(bytes) + lent,
            };
            let held = self.index.bytes() + FIXED_BYTES + log;
            if bytes < held.min(granted()) {
                return Err(Error::invalid(format!("the memory budget is below what cannot be given back budget={bytes} held={held}")));
            }
            Ok(())
        };
        if let Err(refused) = check_held() {
            if !(is_all_kept && self.is_much_dead_above(bytes)) {
                return Err(refused);
            }
            self.compact_all()?;
            check_held()?;
        }
        let turn = lock(&self.budgets).ask(bytes, &self.budget);
        self.share_budget();
        let kept = match &self.caching {
            // What was backed ahead of the tail is there as well, until the tail has come there.
            Some(caching) if self.is_in_memory() => {
                let ahead = if is_lowered { self.log.bytes_ahead() } else { 0 };
                self.evict_for(caching, ahead.min(self.log.budget.load(Relaxed) / 2))
            }
            _ if self.is_in_memory() => {
                // Others may have taken room by the old one meanwhile.
                self.epochs.drain();
                check_held()
            }
            // A scan may have borrowed by the old one meanwhile.
            _ => check_held().and_then(|()| self.shift_unless_closed(&lock(&self.boundaries), 1)),
        };
        lock(&self.budgets).answer(turn, kept.is_ok(), &self.budget);
        self.share_budget();
        if is_lowered && is_all_kept && kept.is_ok() {
            self.log.note_lowered(self.log_bytes());
        }
        kept
    }

    /// True if a store in memory may fit so much when what has died is gone, or has not much that lives.
    fn is_much_dead_above(&self, budget: u64) -> bool {
        let (log, dead) = (self.log_bytes(), self.reclaimable_bytes());
        let held = self.index.bytes() + FIXED_BYTES + self.log.share_least(log.saturating_sub(dead));
        held <= budget || dead > log / 2
    }

    /// The system may grant less address space than is asked for.
    pub(crate) fn check_address_space(&self, budget: u64) -> Result<()> {
        check_within(self.log.region_bytes(), budget)
    }

    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.held_bytes()
    }

    /// The log gets what the index and the rest leave. On a device the index may take three quarters, where that leaves the log room for
    /// some of the largest values and to work with; half of it at any rate. An entry more spares device reads, and so does a cold record
    /// kept in memory; where keys are more than entries, the entry spares more (`docs/performance.md`).
    pub(crate) fn share_budget(&self) {
        // Or what one thread makes of an old budget would outlast what another makes of the new one.
        let _sharing = lock(&self.sharing);
        let budget = self.budget.load(Relaxed);
        let index = self.index.bytes();
        set(&self.shared_index, index);
        let log = budget.saturating_sub(index + FIXED_BYTES);
        // The budget may be lower since, or the index larger.
        let log = log - self.lent.load(Relaxed).min(log.saturating_sub(self.log_bytes_to_work(budget)));
        let reserve = self.log.reserve_of(log);
        let log = log.saturating_sub(reserve);
        // What one of them gives the other is nobody's in between.
        if reserve > self.log.reserve.load(Relaxed) {
            set(&self.log.budget, log);
            set(&self.log.reserve, reserve);
        } else {
            set(&self.log.reserve, reserve);
            set(&self.log.budget, log);
        }
        self.log.forget_lowered();
        // The driver need not come before a quarter of what it keeps free is gone.
        set(&self.log.bell.little_room, log - self.spare_of(log) / 4 * 3);
        // A cache makes room for its index.
        let limit = if self.is_in_memory() && self.caching.is_some() {
            budget / 2
        } else if self.is_in_memory() {
            // Not of the reserve: an index that grew into it once left a log of 74 % dead bytes without room for a stretch's copies.
            let room = budget.saturating_sub(FIXED_BYTES + self.log_bytes() + index + reserve);
            index + room / 2
        } else {
            // Nor of what is lent, while the log has no more than it works with; but what it has it keeps.
            let lent = self.lent.load(Relaxed);
            let left = budget.saturating_sub(FIXED_BYTES + lent + self.log_bytes_to_work(budget));
            let half = if lent > 0 { left } else { budget };
            (budget / 4 * 3).min(left).max((budget / 2).min(half)).max(index)
        };
        self.index.set_limit(limit.min(self.index_bytes_max));
    }

    /// What scans have borrowed.
    pub(super) fn lent_bytes(&self) -> u64 {
        self.lent.load(Relaxed)
    }

    fn take_back(&self, lent: u64) {
        let sharing = lock(&self.sharing);
        self.lent.store(self.lent.load(Relaxed) - lent, Relaxed);
        drop(sharing);
        self.share_budget();
    }

    /// What of so many bytes the log can lend: half, if it can work with the rest.
    fn lendable(&self, log: u64) -> u64 {
        (log / 2).min(log.saturating_sub(self.log_bytes_to_work(self.budget.load(Relaxed))))
    }

    /// What a log over a device needs to work, with some of the longest values.
    fn log_bytes_to_work(&self, budget: u64) -> u64 {
        let value = self.value_width.map_or_else(|| value_bytes_max(budget), |width| width as u64);
        LOG_BYTES_MIN + value * 5 / 2
    }

    /// What the driver keeps free of the log's memory. Of a short one over a device more: while one part is written to the device another
    /// fills.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare_of(self.log.budget.load(Relaxed))
    }

    fn spare_of(&self, budget: u64) -> u64 {
        match &self.caching {
            _ if !self.is_in_memory() => (budget / STEP_PART).max((budget / 4).min(SPARE_BYTES_MIN)),
            Some(_) => cache::spare_of(budget),
            None => budget / SPARE_PART_IN_MEMORY,
        }
    }

    /// Waits until `bytes` more can be allocated. Must not be called under a pin.
    #[cold]
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        let slot = self.epochs.slot()?;
        let sought = Sought { is_in_vain: self.log.has_sought_hole(slot), by: Some(slot) };
        self.guarded(|| self.make_room_unguarded(bytes, sought))
    }

    /// The same for another thread, which may have sought a hole in vain.
    pub(crate) fn make_room_for(&self, bytes: u64, has_sought_hole: bool) -> Result<()> {
        let sought = Sought { is_in_vain: has_sought_hole, by: None };
        self.guarded(|| self.make_room_unguarded(bytes, sought))
    }

    fn make_room_unguarded(&self, bytes: u64, sought: Sought<'_>) -> Result<()> {
        if self.is_compaction_late() && !self.has_log_room(Self::with_piece(bytes)) {
            self.help_compaction();
        }
        let record_bytes = bytes;
        let bytes = Self::with_piece(bytes);
        let guard = self.seek_room(bytes)?;
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
        if self.is_in_memory() {
            drop(guard);
            if self.finds_hole(record_bytes, sought)? {
                return Ok(());
            }
            // What there is others may take at once: a second look must not end in evicting what nobody else has.
            return if self.reclaim(bytes)? { Ok(()) } else { Err(Error::Full) };
        }
        self.make_log_room(&guard, bytes)
    }

    /// Waits for room for a copy that compaction makes, which in memory comes out of its reserve. A cache on a device drops nothing for it:
    /// that would be compaction again.
    pub(crate) fn make_room_for_copy(&self, bytes: u64) -> Result<()> {
        if self.is_in_memory() {
            return Err(Error::Full);
        }
        let bytes = Self::with_piece(bytes);
        let guard = self.seek_room(bytes)?;
        if self.has_log_room(bytes) {
            return Ok(());
        }
        // One that is longer than all of the memory, which may be less since it was asked for, goes over that, but alone.
        self.shift_boundaries(&guard, bytes.min(self.log.budget.load(Relaxed)))
    }

    fn seek_room(&self, bytes: u64) -> Result<Boundaries<'_>> {
        if self.log.tail() + bytes > LAST_ADDRESS {
            return Err(Error::invalid(
                "the log has no addresses left, having had 256 TiB in its time: a copy of its pairs in a new store has them",
            ));
        }
        self.seekers.fetch_add(1, Relaxed);
        let guard = lock(&self.boundaries);
        self.seekers.fetch_sub(1, Relaxed);
        if self.epochs.is_closed() {
            return Err(Error::Closed);
        }
        self.share_budget();
        Ok(guard)
    }

    /// The caller tries again then, and comes back if others took the room.
    fn make_log_room(&self, boundaries: &Boundaries<'_>, bytes: u64) -> Result<()> {
        if self.has_log_room(bytes) {
            return Ok(());
        }
        let most = self.log.budget.load(Relaxed);
        if bytes > most {
            return Err(Error::invalid(format!(
                "what is written at once is more than the memory that the index leaves max={most} bytes={bytes}"
            )));
        }
        self.shift_boundaries(boundaries, bytes)
    }

    /// A place for a copy of a record that is there. One that was written with more memory than there is now goes over the budget until it
    /// is written again: one at a time.
    pub(crate) fn allocate_copy(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        let budget = self.log.budget.load(Relaxed);
        let is_too_long = || !self.is_in_memory() && Self::with_piece(bytes) > budget && self.log_bytes() <= budget;
        let anyway = || if is_too_long() && self.log.tail() + bytes <= LAST_ADDRESS { self.log.allocate_anyway(slot, bytes) } else { None };
        self.log.allocate_from_reserve(slot, bytes).or_else(anyway)
    }

    /// True if a record of so many bytes finds no place, however much room is made.
    pub(crate) fn never_has(&self, bytes: u64) -> bool {
        Self::with_piece(bytes) > self.log.budget.load(Relaxed)
    }

    /// What deletions have left may be filled by new records, when everybody has gone who may know it. Not under a pin.
    pub(crate) fn ripen_holes(&self) {
        self.log.ripen_holes(|| self.epochs.drain());
    }

    /// For who has found no room in memory for a record of so many bytes: true if there is a hole now for who has sought one, or if there
    /// was none and is one now. (Who can fill none comes back, and needs room.)
    fn finds_hole(&self, bytes: u64, sought: Sought<'_>) -> Result<bool> {
        let slot = self.epochs.slot()?;
        // What this thread has in hand is of no use to another one, which would come back for ever.
        let is_one_there = || sought.by.map_or_else(|| self.log.has_hole_on_shelf(bytes), |slot| self.log.has_hole(slot, bytes));
        if is_one_there() {
            return Ok(sought.is_in_vain);
        }
        self.weigh_holes();
        self.log.leave_holes(slot);
        self.ripen_holes();
        for _ in 0..HOLE_PAUSES {
            if is_one_there() || !self.log.are_holes_resting() {
                break;
            }
            // Somebody else waits for those who may know them.
            thread::yield_now();
        }
        Ok(is_one_there())
    }

    /// What this thread has left may ripen: for who waits for another to make room. True if it has just sought a hole in vain.
    pub(crate) fn leave_holes(&self) -> Result<bool> {
        let slot = self.epochs.slot()?;
        self.log.leave_holes(slot);
        Ok(self.log.has_sought_hole(slot))
    }

    /// A record was made that is not published: dead from the beginning.
    pub(crate) fn abandon(&self, pin: &Pin<'_>, record: Record) {
        record.abandon();
        pin.slot.count(Counter::DeadByte, record.bytes(self.layout));
    }

    /// The same where the reason may be that our piece lies below a newer record of another thread: chains descend.
    pub(crate) fn give_up(&self, pin: &Pin<'_>, record: Record) {
        self.abandon(pin, record);
        pin.slot.leave_piece();
    }

    pub(crate) fn has_log_room(&self, bytes: u64) -> bool {
        self.log_bytes() + bytes <= self.log.budget.load(Relaxed)
    }

    /// A record of up to a quarter piece makes the thread take a whole one, which begins in the next block.
    fn with_piece(bytes: u64) -> u64 {
        bytes.next_multiple_of(BLOCK_BYTES).max(PIECE_BYTES) + BLOCK_BYTES
    }

    /// What the driver does in its loop, for where it is away longer: lines that are due; the log's share, as the index grows; room for
    /// those who write, backed by memory. Under no lock but compaction's.
    pub(crate) fn keep_up(&self) {
        if self.in_background {
            self.draw_due_line();
        }
        self.share_budget();
        let budget = self.log.budget.load(Relaxed);
        // Half of what is spare is used up: each step is a drain, and pages given back are an interrupt to other processors.
        let is_due = !self.is_in_memory() && self.log_bytes() + budget / 32 > budget;
        if is_due && let Some(guard) = try_lock(&self.boundaries) {
            // A failure is latched; whoever writes hears of it.
            let _ = self.shift_unless_closed(&guard, 0);
        }
        self.log.populate_ahead();
    }

    /// The same, for who is in no call that a close waits for: whoever closes has written for the last time, and others may have the files.
    pub(super) fn shift_unless_closed(&self, boundaries: &Boundaries<'_>, room: u64) -> Result<()> {
        if self.epochs.is_closed() { Err(Error::Closed) } else { self.shift_boundaries(boundaries, room) }
    }

    /// Freezes, writes and evicts so that the log keeps to its share with `room` bytes to spare. The driver's one step.
    fn shift_boundaries(&self, _: &Boundaries<'_>, room: u64) -> Result<()> {
        debug_assert!(!self.is_in_memory(), "what is in memory is nowhere else");
        self.check_writable()?;
        let (bounds, budget) = (&self.log.bounds, self.log.budget.load(Relaxed));
        // Boundaries lie between blocks.
        let tail = block_floor(self.log.tail());
        // Where those who write are to help compaction they get what they ask for and no more.
        let spare = match room {
            _ if self.is_compaction_late() => room,
            0 => self.spare_bytes(),
            _ => room.max(budget / STEP_PART),
        };
        // What was backed ahead of the tail is there, though the budget may be lower since. It once was not counted: 8 MiB too many
        // after 128 MiB had become 32.
        let top = (tail + spare).max(bounds.populated.load(Relaxed));
        let head = block_ceil(top.saturating_sub(budget));
        // What begins below `head` may end so far above it, and must be written.
        let overlap = self.log.overlap_bytes();
        let last = block_floor(tail.saturating_sub(overlap));
        // Where somebody waits for more than lies below that, all is written, to the end of a block: no record lies across that.
        let is_all = room > 0 && (tail + room).saturating_sub(budget) > last;
        let (tail, head) = if is_all { (self.log.end_block(), head) } else { (tail, head.min(last)) };
        let head = head.min(tail);
        let lag = budget / 8 * 7;
        let read_only = bounds.read_only();
        // Freezing goes in steps of a sixteenth: a drain each time, not each block.
        let needed = if is_all { tail } else { block_ceil(head + overlap).min(tail) };
        let due = tail - read_only > lag || needed > bounds.flushed_until.load(Relaxed);
        if due {
            self.freeze(block_ceil((tail + budget / 16).saturating_sub(lag)).max(needed).min(tail).max(read_only));
            self.flush()?;
        }
        self.evict(head.min(bounds.flushed_until.load(Relaxed)));
        Ok(())
    }

    /// Writes, in steps, most of what a line would write at once, if those who write might have to wait for room meanwhile: between the
    /// steps they get some. Where memory holds all, freezing early would only make updates copy more; and where somebody waits already, the
    /// device is the bound, and one write after the other without steps is sooner done.
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
                // Whoever had the lock may have written all there was: a step more would lie beyond the tail.
                if unwritten() <= step {
                    break;
                }
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
        let bounds = &self.log.bounds;
        debug_assert!(to.is_multiple_of(BLOCK_BYTES) && to <= self.log.tail(), "what is frozen is whole blocks, and there");
        bounds.floor.store(to, SeqCst);
        bounds.set_read_only(to);
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
        let from = if crate::is_planted("rewritten_tail") { from.saturating_sub(BLOCK_BYTES).max(FIRST_ADDRESS) } else { from };
        let (reached, written) = self.log.flush(from, to, is_told);
        bounds.flushed_until.store(reached, Release);
        written.map_err(|error| self.latch_for_now(error))
    }

    pub(crate) fn evict(&self, to: u64) {
        let bounds = &self.log.bounds;
        if to > bounds.head.load(Relaxed) {
            // Nobody looks below `near` without asking `head`.
            bounds.raise_near(to);
            bounds.head.store(to, SeqCst);
            self.epochs.drain();
            self.log.release_below(to);
        }
    }
}

/// Memory of the log's share that somebody has for a while.
pub(crate) struct Loan<'a> {
    engine: &'a Engine,
    bytes: u64,
}

impl<'a> Loan<'a> {
    /// Nothing yet.
    pub(crate) fn of(engine: &'a Engine) -> Self {
        Self { engine, bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What may be lent now, all loans together. In memory nothing can give way.
    pub(crate) fn most(engine: &Engine) -> u64 {
        let log = engine.budget.load(Relaxed).saturating_sub(engine.index.bytes() + FIXED_BYTES);
        if engine.is_in_memory() { 0 } else { engine.lendable(log) }
    }

    /// So many bytes more, or what there is, or nothing if that is little, or the log cannot write. The log has let go of them by then. Not
    /// under a pin.
    pub(crate) fn add(&mut self, bytes: u64) {
        let engine = self.engine;
        let granted = {
            let _sharing = lock(&engine.sharing);
            let lent = engine.lent.load(Relaxed);
            let granted = bytes.min(Self::most(engine).saturating_sub(lent));
            if granted < LOAN_BYTES_MIN {
                return;
            }
            engine.lent.store(lent + granted, Relaxed);
            granted
        };
        // First: who panics there, in a device, gives it back, too.
        self.bytes += granted;
        engine.share_budget();
        if engine.guarded(|| engine.shift_unless_closed(&lock(&engine.boundaries), 1)).is_err() {
            self.bytes -= granted;
            engine.take_back(granted);
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.engine.take_back(self.bytes);
        }
    }
}

/// Most calls change nothing, and every operation reads what lies beside it.
fn set(number: &AtomicU64, to: u64) {
    if number.load(Relaxed) != to {
        number.store(to, Relaxed);
    }
}

/// Whole words: a record has room for so many, and a value may fill it.
fn value_bytes_max(budget: u64) -> u64 {
    VALUE_BYTES_MAX.min(budget / 4 / 8 * 8)
}

/// A quarter of so much memory, as far as a log has addresses for it.
pub(crate) fn default_budget(memory: u64) -> u64 {
    (memory / 4).clamp(BUDGET_BYTES_MIN, memory::LOG_SPACE_MAX - ADDRESS_SLACK_BYTES)
}

pub(crate) fn check_budget(bytes: u64) -> Result<()> {
    if bytes < BUDGET_BYTES_MIN {
        return Err(Error::invalid(format!("the memory budget is at least 16 MiB budget={bytes}")));
    }
    Ok(())
}

/// A budget for which no store would have address space enough.
pub(crate) fn check_space(budget: u64) -> Result<()> {
    check_within(memory::log_space(budget) as u64, budget)
}

/// The log goes round in its address space: what is in memory must not meet itself.
fn check_within(space: u64, budget: u64) -> Result<()> {
    let most = space.saturating_sub(ADDRESS_SLACK_BYTES);
    if budget > most {
        return Err(Error::invalid(format!(
            "the memory budget is more than the address space that the system grants allows max={most} budget={budget}"
        )));
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::minded::{Call, Minded};
    use crate::{MemoryDevice, MemoryStorage, Options, Store, Value};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// What lay behind them was acknowledged, and not found.
    #[test]
    fn a_log_without_addresses_takes_no_more() {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        let (log, from) = (&store.engine_for_test().log, block_floor(LAST_ADDRESS - (1 << 20)));
        log.begin_at(from);
        log.start_at(from, 0, from);
        let taken = (0..).take_while(|key| store.put(key, key).is_ok()).count() as u64;
        assert!((1 << 15..1 << 16).contains(&taken), "{taken}");
        assert!(store.put(&taken, &1).unwrap_err().to_string().contains("addresses"));
        assert!((0..taken).all(|key| store.get(&key).unwrap() == Some(key)));
        store.put(&(taken - 1), &1).unwrap();
        assert_eq!(store.get(&(taken - 1)).unwrap(), Some(1));
        // But for who can neither wait nor go back: a transaction in the midst of its commit panicked.
        let pin = store.engine_for_test().epochs.pin().unwrap();
        assert!(log.allocate_anyway(pin.slot, 1 << 16).is_some_and(|at| at + (1 << 16) > LAST_ADDRESS));
    }

    /// A copy of a long record at the end of the address space found no room in its reserve, of which what was left empty there had taken
    /// a part: nothing more was given back, and the store was full for good.
    #[test]
    fn a_long_copy_at_the_end_of_the_address_space_has_its_room() {
        const LONG: usize = 3 << 20;
        let open = || -> Store<u64, [u8]> { Options::new().memory("16MiB").background(false).in_memory().unwrap() };
        let fill = |store: &Store<u64, [u8]>| {
            let log = &store.engine_for_test().log;
            (0..3).for_each(|key| store.put(&key, &vec![1; LONG]).unwrap());
            for key in 3.. {
                if log.held_bytes() + (200 << 10) > log.most_of(LONG as u64) {
                    return log.held_bytes();
                }
                store.put(&key, &[2; 15_000]).unwrap();
            }
            unreachable!()
        };
        let held = fill(&open());
        // So that it is full before the end, by less than a copy takes.
        for left in [1 << 20, 3 << 19, 2 << 20, 5 << 19] {
            let store = open();
            let (engine, log) = (store.engine_for_test(), &store.engine_for_test().log);
            let from = block_floor(log.region_bytes() - left - held);
            log.begin_at(from);
            log.start_at(from, 0, from);
            assert_eq!(fill(&store), held);
            assert!(store.delete(&1).unwrap() && store.delete(&2).unwrap());
            (10..13).for_each(|key| store.put(&(key << 32), &vec![3; LONG / 2]).unwrap());
            assert!(log.tail() > log.region_bytes(), "it went round");
            assert_eq!(store.get(&0).unwrap().map(|value| value.len()), Some(LONG));
            assert!(engine.log_bytes() <= log.budget.load(SeqCst) + log.reserve.load(SeqCst));
        }
    }

    /// Each attempt of compaction made one more, until addresses came that no entry can hold.
    #[test]
    fn copies_of_records_longer_than_memory_keep_to_the_addresses_there_are() {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let engine = store.engine_for_test();
        let copied = |left: u64| {
            let from = block_floor(LAST_ADDRESS - left);
            engine.log.begin_at(from);
            engine.log.start_at(from, 0, from);
            engine.allocate_copy(engine.epochs.pin().unwrap().slot, 15 << 20)
        };
        assert!(copied(16 << 20).is_some());
        assert_eq!(copied(8 << 20), None);
    }

    /// It may write what a close has left unwritten, into files that are another's.
    #[test]
    fn nothing_is_moved_once_the_store_is_closed() {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(MemoryStorage::new())).unwrap();
        store.put(&1, &1).unwrap();
        store.close().unwrap();
        let engine = store.engine_for_test();
        assert!(matches!(engine.shift_unless_closed(&lock(&engine.boundaries), 1), Err(crate::Error::Closed)));
        let mut loan = Loan::of(engine);
        loan.add(1 << 20);
        assert_eq!(loan.bytes(), 0);
    }

    /// What a scan had borrowed stayed with it, and a budget was granted that was not kept.
    #[test]
    fn what_is_lent_is_not_given_back_by_a_smaller_budget() {
        let store: Store<u64, u64> = Options::new().memory("256MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let engine = store.engine_for_test();
        let mut loan = Loan::of(engine);
        loan.add(100 << 20);
        assert_eq!(loan.bytes(), 100 << 20);
        assert!(store.stats().memory.total_bytes >= 100 << 20);
        assert!(matches!(store.set_memory("16MiB"), Err(crate::Error::Invalid(why)) if why.contains("given back")));
        store.set_memory("128MiB").unwrap();
        let index = engine.index.bytes();
        assert!(engine.log.budget.load(SeqCst) + index + FIXED_BYTES + loan.bytes() <= 128 << 20);
        drop(loan);
        store.set_memory("16MiB").unwrap();
        // The longest value that the log must have room for is that of the new budget.
        let store: Store<u64, [u8]> = Options::new().memory("256MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let mut loan = Loan::of(store.engine_for_test());
        loan.add(1 << 20);
        assert_eq!(loan.bytes(), 1 << 20);
        store.set_memory("32MiB").unwrap();
    }

    #[test]
    fn a_machine_of_any_size_has_a_budget() {
        for memory in [0, 1 << 30, 24 << 40, u64::MAX] {
            let budget = default_budget(memory);
            assert!(check_budget(budget).is_ok() && check_within(memory::LOG_SPACE_MAX, budget).is_ok(), "{budget} of {memory}");
        }
    }

    /// An index that had room to grow when a scan borrowed grew over the budget.
    #[test]
    fn an_index_does_not_grow_into_what_is_lent() {
        grow_beside_a_loan::<u64>(&1, 16 << 20, 900_000);
        // A log of values of any length needs more to work with.
        grow_beside_a_loan::<[u8]>(&[1], 64 << 20, 3_000_000);
    }

    fn grow_beside_a_loan<V: Value + ?Sized>(value: &V, budget: u64, keys: u64) {
        let store: Store<u64, V> = Options::new().memory(budget).background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let engine = store.engine_for_test();
        let mut loan = Loan::of(engine);
        loan.add(6 << 20);
        assert_eq!(loan.bytes(), 6 << 20);
        (0..keys).for_each(|key| store.put(&key, value).unwrap());
        let held = || {
            engine.share_budget();
            engine.log.budget.load(SeqCst) + engine.index.bytes() + FIXED_BYTES
        };
        assert!(held() + loan.bytes() <= budget + BLOCK_BYTES, "{} and {}", held(), loan.bytes());
        let index = engine.index.bytes();
        drop(loan);
        (keys..keys / 3 * 4).for_each(|key| store.put(&key, value).unwrap());
        assert!(engine.index.bytes() > index && held() <= budget + BLOCK_BYTES, "{} of {index}, {}", engine.index.bytes(), held());
    }

    /// What is longer than all of the log's memory found a place whatever else was there, one after the other.
    #[test]
    fn copies_of_records_longer_than_memory_come_one_at_a_time() {
        const LONG: u64 = 15 << 20;
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let engine = store.engine_for_test();
        for _ in 0..4 {
            loop {
                let pin = engine.epochs.pin().unwrap();
                let Some(at) = engine.allocate_copy(pin.slot, LONG) else {
                    drop(pin);
                    engine.make_room_for_copy(LONG).unwrap();
                    continue;
                };
                // SAFETY: just allocated under the pin: ours alone, in memory.
                unsafe { Record::new(engine.log.pointer(at)) }.write_bytes(&[], &[], LONG as usize - 24, u64::MAX, 0, 0);
                break;
            }
            assert!(engine.log_bytes() <= engine.log.budget.load(SeqCst) + LONG + PIECE_BYTES, "{} bytes", engine.log_bytes());
        }
    }

    /// A device that panics while a scan borrows has failed as for any write: what it wrote is not known.
    #[test]
    fn a_device_that_panics_in_a_loan_stops_all_writing() {
        let panics = Arc::new(AtomicBool::new(false));
        let asked = panics.clone();
        let files = Minded::new(Arc::new(MemoryStorage::new()), move |_, call| {
            let is_due = matches!(call, Call::Write { .. }) && asked.swap(false, SeqCst);
            if is_due { panic!("as asked") } else { Ok(()) }
        });
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(files)).unwrap();
        (0..300_000).for_each(|key| store.put(&key, &key).unwrap());
        panics.store(true, SeqCst);
        let mut loan = Loan::of(store.engine_for_test());
        loan.add(6 << 20);
        assert_eq!(loan.bytes(), 0);
        assert!(matches!(store.commit(), Err(Error::Io(_))));
    }

    /// Whoever draws a line writes most of it in steps; who had the lock before one of them may have written all there was.
    #[test]
    fn nothing_is_frozen_that_is_not_there_yet() {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
        let engine = store.engine_for_test();
        let bounds = &engine.log.bounds;
        for key in 0.. {
            store.put(&key, &[1; 1000]).unwrap();
            let unwritten = engine.log.tail() - bounds.flushed_until.load(SeqCst);
            if unwritten > engine.log.budget.load(SeqCst) / 4 * 3 {
                break;
            }
        }
        let guard = lock(&engine.boundaries);
        std::thread::scope(|scope| {
            let line = scope.spawn(|| engine.flush_ahead());
            // It is at the lock by then.
            std::thread::sleep(std::time::Duration::from_millis(200));
            engine.freeze(engine.log.end_block());
            engine.flush().unwrap();
            drop(guard);
            line.join().unwrap().unwrap();
        });
        assert!(bounds.flushed_until.load(SeqCst) <= engine.log.tail() && bounds.read_only() <= engine.log.tail());
    }
}
