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
//! **Stretches wait for a line together**, between `begin` and `compacted`: after each line whatever is updated is copied once, so one is
//! drawn only when it lets a file go and a fair part of the log has gathered. Any other line that comes meanwhile serves as well.
//!
//! What lives, and what becomes of it, is the mover's matter (`compaction/mover.rs`); when a stretch is due, that of `compaction/due.rs`.
//!
//! * **Snapshots** read what was superseded (`snapshot.rs`): while one is held a copy leads to the record that it was made of, and a
//!   stretch is given back when all who held while it was copied have let go. Others are copied meanwhile, as far as the log went when the
//!   first of those began, and in memory as far as there is room for the copies: then scans that follow each other let it go, again and
//!   again. A cache, which drops what lives, begins none at all while there is a snapshot.
//! * **A reader** that was on its way to a record below `begin` finds nothing there, looks again, and finds the copy.

mod due;
mod mover;
mod pieces;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::cache::Caching;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::expiry::SMALL_SAMPLE;
use crate::joining::InVain;
use crate::log::{BLOCK_BYTES, block_ceil, block_floor, device_offset};
use crate::record::RECORD_BYTES_MIN;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::traverse::Span;
use due::Due;
use mover::{Mover, Tally};
use pieces::Pieces;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// A stretch is this part of the log's memory or this part of the log, whichever is more, within bounds: long ones for the doubts of many
/// records to be read together, short ones of those who wait for room meanwhile.
const STRETCH_PART: u64 = 32;
const STRETCH_LOG_PART: u64 = 16;
const SHORT_STRETCH_LOG_PART: u64 = 128;
const STRETCH_BYTES_MIN: u64 = 1 << 20;
const STRETCH_BYTES_MAX: u64 = 64 << 20;
/// Compaction draws a line for this part of the log at least.
const LINE_PART: u64 = 16;
/// A glance is at so much of the oldest part or this part of the log, whichever is more; and at twice as much as the time before while it
/// is dead.
const GLANCE_BYTES_MIN: u64 = 64 << 10;
const GLANCE_LOG_PART: u64 = 4096;
/// In memory those who find the store full wait for a stretch: a millisecond or two.
const STRETCH_IN_MEMORY_MAX: u64 = 512 << 10;
/// How long and how often those who need room wait for those who hold what would make it.
pub(crate) const HELD_PAUSE: Duration = Duration::from_millis(1);
const HELD_PAUSES: u32 = 16;
/// Buckets that are looked at under one pin.
const SWEPT_AT_ONCE: u64 = 64;
const SWEPT_AHEAD: u64 = 8;
/// Buckets between two looks at what the driver would do meanwhile: about a millisecond.
const SWEPT_BETWEEN_LOOKS: u64 = 64 << 10;
/// While others are dropped one in so many entries leads nowhere, at most, unless somebody holds what they led to; and at rest one in so
/// many.
const IDLE_PART: u64 = 4;
const IDLE_PART_AT_REST: u64 = 32;
/// Of fewer entries it does not matter how many lead nowhere: below a mebibyte of index.
const IDLE_MIN: u64 = 128 << 10;
/// Until samples tell what has expired.
const CLOSE_LOOKS: u32 = 8;
/// So many times through the log goes who needs room, as long as what is dead would suffice.
const ROUNDS: u32 = 32;
/// Between two looks whether a stretch that somebody else does has made room: a part of what one in memory takes.
const STRETCH_PAUSE: Duration = Duration::from_micros(50);

fn whole_stretch(bytes: u64) -> u64 {
    bytes.clamp(STRETCH_BYTES_MIN, STRETCH_BYTES_MAX)
}

/// In memory what lives in a stretch must fit the reserve.
fn stretch_in_memory(reserve: u64) -> u64 {
    (reserve / 2).min(STRETCH_IN_MEMORY_MAX)
}

#[derive(Default)]
pub(crate) struct Compaction {
    running: Mutex<()>,
    /// Odd while a stretch is under way: what lives in it lies there twice then.
    turn: AtomicU64,
    pub(crate) pieces: Pieces,
    due: Due,
    done: Mutex<Done>,
    /// Stretches that somebody held when they had been copied, one behind the other from `compacted` to `copied`.
    copied: Mutex<VecDeque<Copied>>,
    /// So many buckets were looked at for entries that lead nowhere, again and again from the first to the last.
    swept: AtomicU64,
    /// Entries that lead nowhere as soon as the log begins at `compacted`, and those that do and have not been found yet.
    idle_soon: AtomicU64,
    idle: AtomicU64,
    /// Two chains that could not be joined.
    pub(crate) joined_in_vain: Mutex<InVain>,
    /// Why the last stretch failed.
    failure: Mutex<Option<Error>>,
}

/// Which stretch is gone through.
#[derive(Clone, Copy)]
enum Stretch {
    /// The driver's.
    Long,
    /// As long, but not beyond this: what lies behind are its own copies.
    UpTo(u64),
    /// Of who wants room, or to see that there is progress.
    Short,
    /// Though not enough of it was counted: to see how much lives.
    Glance,
}

/// A stretch under way. Whoever has it is the one who compacts.
struct Turn<'c>(&'c AtomicU64);

impl<'c> Turn<'c> {
    fn of(turn: &'c AtomicU64) -> Self {
        turn.fetch_add(1, AcqRel);
        Self(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: who waited finds the room.
        self.0.fetch_add(1, Release);
    }
}

/// A stretch that ends at `reached`, all of whose living records have copies.
#[derive(Clone, Copy, Default)]
struct Copied {
    reached: u64,
    moved: u64,
    /// Bytes that had been counted as dead, in it or by a wrong guess.
    dead: u64,
    /// Bytes that the copies leave unused: counted as dead.
    left: u64,
    /// Entries that will lead to nothing.
    idle_entries: u64,
}

/// What was done since the opening.
#[derive(Clone, Copy, Default)]
struct Done {
    stretches: u64,
    given_back_bytes: u64,
    moved_bytes: u64,
}

impl Engine {
    /// The driver's share: one stretch, if that is due.
    pub(crate) fn compact_if_due(&self) -> Result<bool> {
        match self.try_running()? {
            // What a line has given up already makes room where others find none.
            Some(one) if self.check_writable().is_err() => self.begin_if_told(&one).map(|()| false),
            Some(one) => self.compact_if_due_now(&one, Stretch::Long),
            None => Ok(false),
        }
    }

    fn compact_if_due_now(&self, one: &MutexGuard<'_, ()>, stretch: Stretch) -> Result<bool> {
        self.begin_if_told(one)?;
        let is_given = self.give_back(one)?;
        let moved = if is_given {
            Ok(true)
        } else if self.is_compaction_due() {
            self.move_stretch_now(one, None, stretch)
        } else if self.is_glance_due() {
            self.move_stretch_now(one, None, Stretch::Glance)
        } else {
            Ok(false)
        };
        // Where a block cannot be read, too, or somebody holds what was superseded: those who write cannot help it.
        if !matches!(moved, Ok(true)) {
            self.rest_compaction();
            self.sweep_what_is_left(one, true);
        }
        moved
    }

    /// For those who write then: a stretch, or a wait while others do one. Not for long, for it may be an image or a backup that holds
    /// compaction.
    pub(crate) fn help_compaction(&self) {
        for _ in 0..HELD_PAUSES {
            match self.try_running() {
                Ok(None) => std::thread::sleep(HELD_PAUSE),
                Ok(Some(one)) => {
                    // A failure to write is latched, and damage told to who reads it.
                    let _ = self.compact_if_due_now(&one, Stretch::Short);
                    break;
                }
                Err(_) => break,
            }
        }
    }

    /// One short stretch, due or not.
    pub(crate) fn compact_once(&self) -> Result<bool> {
        drop(self.epochs.pin()?);
        let one = self.running()?;
        self.begin_if_told(&one)?;
        let moved = self.move_stretch_now(&one, None, Stretch::Short);
        drop(one);
        self.tell_of_departed();
        moved
    }

    /// Unless the store has failed for good.
    fn begin_if_told(&self, one: &MutexGuard<'_, ()>) -> Result<()> {
        if self.is_told() && self.check_not_failed_for_good().is_ok() {
            self.begin_at_compacted(one)?;
        }
        Ok(())
    }

    /// One at a time compacts, and none when the store is closed: then there is no line that could tell of the copies, and the files may be
    /// another's.
    fn running(&self) -> Result<MutexGuard<'_, ()>> {
        self.while_open(lock(&self.compaction.running))
    }

    /// The same if nobody does.
    fn try_running(&self) -> Result<Option<MutexGuard<'_, ()>>> {
        try_lock(&self.compaction.running).map(|one| self.while_open(one)).transpose()
    }

    /// The close takes the guard too, when the flag is up.
    fn while_open<T>(&self, one: T) -> Result<T> {
        if self.epochs.is_closed() { Err(Error::Closed) } else { Ok(one) }
    }

    /// Compacts once through all that was in the log when the call began; returns the bytes given back.
    pub(crate) fn compact_all(&self) -> Result<u64> {
        // Not from inside a closure that compaction itself runs.
        drop(self.epochs.pin()?);
        let until = self.log.tail();
        // What is held by now was copied before.
        let (begin, copied) = (self.log.bounds.begin.load(Acquire), self.moved_bytes() + self.held_back().moved);
        self.begin_if_told(&self.running()?)?;
        self.begin_pass();
        while self.log.bounds.copied.load(Acquire) < until {
            let moved = self.move_stretch_now(&self.running()?, None, Stretch::UpTo(until));
            // Each time, as where a cache drops: all together they may be more than the budget.
            self.tell_of_departed();
            if !moved? {
                break;
            }
        }
        self.give_back(&self.running()?)?;
        if self.waiting_bytes() > 0 {
            self.begin_at_compacted(&self.running()?)?;
        }
        self.sweep_what_is_left(&self.running()?, false);
        while self.shrink_index(&self.running()?)? {}
        let given_back = self.log.bounds.begin.load(Acquire) - begin;
        Ok(given_back.saturating_sub(self.moved_bytes().saturating_sub(copied)))
    }

    /// A cache's listener, of what went. With no lock held.
    fn tell_of_departed(&self) {
        if let Some(caching) = &self.caching {
            caching.tell();
        }
    }

    /// Bytes that were copied of what has been given back since, or waits for a line.
    fn moved_bytes(&self) -> u64 {
        lock(&self.compaction.done).moved_bytes
    }

    /// For a store in memory that is full: true if there is room for `bytes` now.
    pub(crate) fn reclaim(&self, bytes: u64) -> Result<bool> {
        let mut pauses = 0;
        let fits = || self.has_log_room(bytes);
        let (mut until, mut rounds, mut waits) = (self.log.tail(), 1, 0);
        self.sample_expired(SMALL_SAMPLE);
        while !fits() {
            // Not at all when next to nothing would come of it, as far as a closer look can tell.
            let is_through = self.log.bounds.begin.load(Relaxed) >= until;
            let would_fit = || (self.log_bytes() + bytes).saturating_sub(self.reclaimable_bytes()) <= self.log.budget.load(Relaxed);
            let finds_more = || (0..CLOSE_LOOKS).any(|_| self.finds_expired()) || self.finds_unused();
            let is_hopeless = || !would_fit() && self.is_compaction_hopeless() && !finds_more();
            if is_hopeless() || is_through && (rounds == ROUNDS || !would_fit() || self.is_compaction_hopeless()) {
                if waits < ROUNDS && self.await_stretch() {
                    waits += 1;
                    continue;
                }
                return Ok(fits());
            }
            // Once through the log; and again where others, or the driver's copies, took what was given back.
            if is_through {
                (until, rounds) = (self.log.tail(), rounds + 1);
                self.sample_expired(SMALL_SAMPLE);
            }
            if !self.move_stretch_for_room(None, || !fits())? {
                // A read-only transaction ends soon, a scan may not.
                let is_held = !lock(&self.compaction.copied).is_empty();
                if !is_held || pauses >= self.hold_pauses(HELD_PAUSES) {
                    return Ok(fits());
                }
                pauses += 1;
                std::thread::sleep(HELD_PAUSE);
            }
            self.share_budget();
        }
        Ok(true)
    }

    /// Helps until the stretch that somebody else moves now is given back; false if there is none.
    fn await_stretch(&self) -> bool {
        let turn = || self.compaction.turn.load(Acquire);
        let seen = turn();
        while seen % 2 == 1 && turn() == seen {
            self.help_or_wait();
        }
        seen % 2 == 1
    }

    /// The driver's share where a cache drops what nobody asked for, if that still `is_due`. False if there is nothing to give back, or
    /// somebody else is at it: a backup may be for long, and lines must not wait for that.
    pub(crate) fn try_move_stretch(&self, caching: &Caching, is_due: impl Fn() -> bool) -> Result<bool> {
        match self.try_running()? {
            Some(one) if is_due() => self.move_stretch_now(&one, Some(caching), Stretch::Long),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// The oldest stretch for who needs room, if that still `is_due`, and who looks again whether there is some: while others are at it he
    /// helps, or waits a little. Not at the lock: the driver, who does one stretch after the other, has it again and again before somebody
    /// who sleeps there wakes up.
    pub(crate) fn move_stretch_for_room(&self, caching: Option<&Caching>, is_due: impl Fn() -> bool) -> Result<bool> {
        match self.try_running()? {
            Some(one) if is_due() => self.move_stretch_now(&one, caching, Stretch::Short),
            Some(_) => Ok(true),
            None => {
                self.help_or_wait();
                Ok(true)
            }
        }
    }

    /// A cache drops what is oldest up to there, or a first part of it; true if it dropped something.
    pub(crate) fn drop_oldest(&self, caching: &Caching, until: u64) -> Result<bool> {
        let dropped = self.move_stretch_now(&self.running()?, Some(caching), Stretch::UpTo(until));
        self.tell_of_departed();
        dropped
    }

    fn move_stretch_now(&self, one: &MutexGuard<'_, ()>, caching: Option<&Caching>, stretch: Stretch) -> Result<bool> {
        let moved = self.try_stretch(one, caching, stretch);
        self.compaction.pieces.tell();
        // What failed because nothing can be written is told as that, and ends with it.
        let is_own = |error: &&Error| !matches!(error, Error::Closed) && self.check_writable().is_ok();
        *lock(&self.compaction.failure) = moved.as_ref().err().filter(is_own).cloned();
        moved
    }

    /// Why the last stretch failed, if it did.
    pub(crate) fn compaction_failure(&self) -> Option<Error> {
        lock(&self.compaction.failure).clone()
    }

    fn try_stretch(&self, one: &MutexGuard<'_, ()>, caching: Option<&Caching>, kind: Stretch) -> Result<bool> {
        let _turn = Turn::of(&self.compaction.turn);
        if self.give_back(one)? {
            return Ok(true);
        }
        let is_any_held_back = !lock(&self.compaction.copied).is_empty();
        if is_any_held_back && !self.copies_what_is_held() || caching.is_some() && self.is_snapshot_held() {
            return Ok(false);
        }
        let from = self.log.bounds.copied.load(Acquire);
        self.be_on_a_pass();
        let mut stretch = self.stretch_of(kind, caching, from);
        loop {
            let to = self.stretch_end(from + stretch)?;
            if to <= from {
                return Ok(false);
            }
            let mut mover = Mover::new(self, from..to, caching);
            let visited = self.visit_stretch(from, to, &mut mover).and_then(|reached| mover.settle_all().map(|()| reached));
            let reached = match (visited, caching) {
                (Ok(reached), _) => mover.ended_at.unwrap_or(reached),
                // It would fail each time, and a cache that drops nothing takes nothing.
                (Err(error @ (Error::Corruption(_) | Error::Io(_))), Some(caching))
                    if !self.is_in_memory() && mover.ended_at.is_none() && !error.is_for_want() =>
                {
                    match self.pass_unread(caching, to) {
                        Ok(Some(reached)) => reached,
                        passed => {
                            self.note_unfinished(mover.tally, mover.taken_back.get());
                            return passed.map(|_| false);
                        }
                    }
                }
                (Err(error), _) => {
                    self.note_unfinished(mover.tally, mover.taken_back.get());
                    return Err(error);
                }
            };
            if reached > from {
                match caching {
                    Some(caching) => caching.adapt(reached - from),
                    None => self.note_glance(kind, mover.tally.moved, reached - from, mover.mean_bytes()),
                }
                return self.end_stretch(one, mover, from..reached, caching);
            }
            // A record longer than the stretch, unless it is the log's last or there is no room for its copy.
            if from + stretch >= self.log.tail() || mover.ended_at.is_some() {
                return Ok(false);
            }
            stretch *= 2;
        }
    }

    /// All that lives in the stretch lies above: it is given back when nobody holds it.
    fn end_stretch(&self, one: &MutexGuard<'_, ()>, mut mover: Mover<'_>, stretch: Range<u64>, caching: Option<&Caching>) -> Result<bool> {
        let Range { start: from, end: reached } = stretch;
        let Tally { moved, expired, expired_records, dropped, left, idle_entries, .. } = mover.tally;
        let dead = (reached - from).saturating_sub(moved + expired + dropped) + mover.taken_back.get();
        match caching {
            Some(caching) => {
                self.let_nobody_build_below(reached);
                let (gone, is_dropped) = (mover.judge_aside()?, self.drop_for_all(reached));
                // Else the rest lives on, and is dropped another time.
                let is_told = gone.into_iter().filter(|(_, is_unreachable)| is_dropped || *is_unreachable);
                is_told.for_each(|(departed, _)| caching.let_go(departed));
                if is_dropped {
                    caching.count_unheard(mover.tally.unheard);
                } else {
                    self.note_unfinished(mover.tally, mover.taken_back.get());
                    return Ok(false);
                }
            }
            None => {
                if self.caching.is_some() {
                    // Who found a pair alive before it ended may still renew it.
                    self.epochs.drain();
                }
                let gone = mover.judge_aside()?;
                self.log.bounds.copied.store(reached, SeqCst);
                if let Some(caching) = &self.caching {
                    gone.into_iter().for_each(|(departed, _)| caching.let_go(departed));
                    caching.count_unheard(mover.tally.unheard);
                }
            }
        }
        self.expiry.drop_records(expired_records, expired);
        // Who takes what was dropped here for a record of his chain has published when a later stretch says that the chain is of one key.
        self.epochs.drain();
        lock(&self.compaction.copied).push_back(Copied { reached, moved, dead, left, idle_entries });
        let given = self.give_back(one);
        // What could not be read is told when it is asked for.
        let _ = self.shrink_index(one);
        Ok(given? || self.copies_what_is_held())
    }

    /// How long a stretch from there on is.
    fn stretch_of(&self, kind: Stretch, caching: Option<&Caching>, from: u64) -> u64 {
        let of_log = |part: u64| whole_stretch((self.log.budget.load(Relaxed) / STRETCH_PART).max(self.log_extent() / part));
        let stretch = match (self.log.reserve_for_short(), caching, kind) {
            (0, Some(caching), _) => whole_stretch(self.evicted_stretch(caching)),
            (0, None, Stretch::Long | Stretch::UpTo(_)) => of_log(STRETCH_LOG_PART),
            (0, None, Stretch::Short) => of_log(SHORT_STRETCH_LOG_PART),
            // Each record of it may cost a read, while who writes needs the driver.
            (0, None, Stretch::Glance) => {
                let first = GLANCE_BYTES_MIN.max(self.log_extent() / GLANCE_LOG_PART);
                (first << self.dead_glances().min(STRETCH_BYTES_MAX.ilog2())).min(of_log(SHORT_STRETCH_LOG_PART))
            }
            (reserve, ..) => stretch_in_memory(reserve),
        };
        // What a listener is to hear of takes memory until it has.
        let stretch = match &self.caching {
            Some(caching) if caching.listens() => stretch.min(whole_stretch(self.evicted_stretch(caching))),
            _ => stretch,
        };
        match kind {
            Stretch::UpTo(until) => stretch.min(block_ceil(until).saturating_sub(from)).max(BLOCK_BYTES),
            _ => stretch,
        }
    }

    /// Where a stretch may end: what lies below does not change any more, and on a device it is there.
    pub(crate) fn stretch_end(&self, wanted: u64) -> Result<u64> {
        let guard = lock(&self.boundaries);
        let bounds = &self.log.bounds;
        let to = if wanted < self.log.tail() { block_floor(wanted) } else { self.log.end_block() };
        if self.is_in_memory() && to > bounds.safe_read_only.load(Relaxed) {
            self.freeze(to);
        } else if !self.is_in_memory() && to > bounds.flushed_until.load(Relaxed) {
            self.check_writable()?;
            self.freeze(to.max(bounds.safe_read_only.load(Relaxed)));
            self.flush()?;
        }
        drop(guard);
        Ok(to)
    }

    /// Visits the records that begin in `[from, to)` and end there; where the next one begins.
    fn visit_stretch(&self, from: u64, to: u64, mover: &mut Mover<'_>) -> Result<u64> {
        if self.is_in_memory() {
            return self.move_pieces(from..to, mover);
        }
        let scars = self.scars.all();
        let span = Span::open_ended(from..to, &scars);
        self.scan(&span, mover)?;
        Ok(span.reached())
    }

    /// Gives the stretches back that have been copied and that nobody holds, or lets them wait for a line. False if there are none, or the
    /// store was closed meanwhile.
    fn give_back(&self, one: &MutexGuard<'_, ()>) -> Result<bool> {
        let mut is_any = false;
        loop {
            let oldest = lock(&self.compaction.copied).front().copied();
            let Some(stretch) = oldest else { break };
            if !self.holds.let_go(stretch.reached, || self.log.bounds.compacted.store(stretch.reached, SeqCst)) {
                break;
            }
            lock(&self.compaction.copied).pop_front();
            self.compaction.idle_soon.fetch_add(stretch.idle_entries, Relaxed);
            self.note_stretch(stretch);
            is_any = true;
        }
        Ok(is_any && (self.is_line_worth_it() == Some(false) || self.begin_at_compacted(one)?))
    }

    /// True if there is more to copy for when the first of those who hold lets go: what was there when it began. The rest would not go
    /// then, and whoever holds for long would have his chains lead through copy after copy. In memory all those copies must fit the
    /// reserve, and half of what is free: the rest is for those who write meanwhile.
    fn copies_what_is_held(&self) -> bool {
        let (reserve, budget) = (self.log.reserve_for_short(), self.log.budget.load(Relaxed));
        let room = || reserve + budget.saturating_sub(self.log_bytes()) / 2;
        let has_room = || reserve == 0 || self.held_back().moved + stretch_in_memory(reserve) <= room();
        self.caching.is_none() && self.log.bounds.copied.load(Relaxed) < self.holds.first_tail() && has_room()
    }

    /// Whether a line for the stretches that wait would let a file go, and spare a fair part of the log; `None` where nothing waits for
    /// lines.
    fn is_line_worth_it(&self) -> Option<bool> {
        // What is dropped from a cache must make room.
        if self.segment_bytes == 0 || self.caching.is_some() || self.is_temporary {
            return None;
        }
        let waiting = self.waiting_bytes();
        let is_long = || self.freeable_bytes() > 0 && waiting >= self.log_extent() / LINE_PART;
        // Entries of what waits cannot be dropped.
        let has_many_idle = || self.compaction.idle_soon.load(Relaxed).saturating_mul(IDLE_PART) > self.index.entries().max(IDLE_MIN);
        Some(waiting >= STRETCH_BYTES_MIN && (is_long() || has_many_idle()))
    }

    /// True if stretches wait for a line, and a durable one has said by now that the log begins behind them.
    fn is_told(&self) -> bool {
        self.waiting_bytes() > 0 && self.told_begin() >= self.log.bounds.compacted.load(Relaxed)
    }

    /// Nothing below `compacted` is needed any more. False if the store was closed meanwhile.
    fn begin_at_compacted(&self, one: &MutexGuard<'_, ()>) -> Result<bool> {
        let bounds = &self.log.bounds;
        let (from, to) = (bounds.begin.load(Relaxed), bounds.compacted.load(Relaxed));
        let given_back = || lock(&self.compaction.done).given_back_bytes += to - from;
        if self.is_in_memory() {
            let guard = lock(&self.boundaries);
            bounds.begin.store(to, SeqCst);
            self.evict(to);
            drop(guard);
            given_back();
            self.sweep_index(one, to - from);
            return Ok(true);
        }
        // What goes with the store needs no line.
        if !self.is_temporary && !self.is_told() && !self.draw_line_now()? {
            return Ok(false);
        }
        bounds.begin.store(to, SeqCst);
        if !self.is_temporary {
            self.settle_begin()?;
        }
        if let Some(device) = &self.log.device {
            device.discard(device_offset(from), device_offset(to)).map_err(|error| self.latch(error))?;
        }
        bounds.discarded.store(to, Relaxed);
        given_back();
        self.sweep_index(one, to - from);
        Ok(true)
    }

    /// The entries of what is deleted outlive it: a deletion goes by its entry until the log begins above it. While the log's beginning
    /// goes once through the log, this goes once through the index, and [`IDLE_PART`] times as fast where all of that were deletions. And
    /// at once where there are more entries than the log can have records.
    fn sweep_index(&self, one: &MutexGuard<'_, ()>, given_back: u64) {
        let (buckets, extent, entries) = (self.index.buckets(), self.log_extent(), self.index.entries());
        let part = |of: u64, all: u64| (u128::from(buckets) * u128::from(of) / u128::from(all).max(1)) as u64;
        let idle = self.compaction.idle_soon.swap(0, Relaxed);
        self.compaction.idle.fetch_add(idle, Relaxed);
        let of_log = part(given_back, extent + given_back).max(part(IDLE_PART * idle, entries)) + 1;
        self.sweep(one, if entries > extent / RECORD_BYTES_MIN { buckets } else { of_log.min(buckets) }, || false);
    }

    /// All of the index, if any entry leads nowhere; `at_rest` if some of them do, and until something else is due.
    fn sweep_what_is_left(&self, one: &MutexGuard<'_, ()>, at_rest: bool) {
        let (idle, one_in) = (&self.compaction.idle, if at_rest { IDLE_PART_AT_REST } else { u64::MAX });
        if idle.load(Relaxed).saturating_mul(one_in) > self.index.entries() {
            self.sweep(one, self.index.buckets(), || at_rest && self.is_compaction_due());
        }
    }

    /// Drops entries of so many buckets that lead nowhere. The table does not shrink meanwhile. Ends early for a close, or where somebody
    /// says `ends`.
    fn sweep(&self, _: &MutexGuard<'_, ()>, count: u64, ends: impl Fn() -> bool) {
        let (buckets, begin) = (self.index.buckets(), self.log.bounds.begin.load(Relaxed));
        self.index.is_dead_below(begin);
        let (first, mut done, mut dropped) = (self.compaction.swept.load(Relaxed), 0, 0);
        while done < count {
            if done > 0 && done.is_multiple_of(SWEPT_BETWEEN_LOOKS) {
                if self.epochs.is_closed() || ends() {
                    break;
                }
                self.keep_up();
            }
            let Ok(_pin) = self.epochs.pin_anyway() else { break };
            let to = count.min(done + SWEPT_AT_ONCE);
            for n in first + done..first + to {
                self.index.prefetch_chain((n + SWEPT_AHEAD) % buckets);
                dropped += self.index.drop_below(n % buckets, begin);
            }
            done = to;
        }
        self.compaction.swept.store((first + done) % buckets, Relaxed);
        // What was swept has none any more, though some that were counted had led to something else by then: their keys were put again.
        // But of buckets that were split meanwhile the new ones were not.
        let now = self.index.buckets();
        let of_part = |idle: u64| (u128::from(idle) * u128::from(done.min(now)) / u128::from(now)) as u64;
        let _ = self.compaction.idle.fetch_update(Relaxed, Relaxed, |idle| Some(idle - dropped.max(of_part(idle)).min(idle)));
    }

    /// True if compaction would wait now: for another, an image or a backup.
    pub(crate) fn is_compaction_held(&self) -> bool {
        try_lock(&self.compaction.running).is_none()
    }

    /// The driver's share of shrinking the index. True if there is more to do.
    pub(crate) fn shrink_index_if_due(&self) -> bool {
        let Ok(Some(running)) = self.try_running() else { return false };
        // What could not be read is told when it is asked for.
        self.shrink_index(&running).unwrap_or(false)
    }

    /// No compaction from here on, while the guard lives.
    pub(crate) fn hold_compaction(&self) -> MutexGuard<'_, ()> {
        lock(&self.compaction.running)
    }
}
