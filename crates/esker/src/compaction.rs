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
//! **Stretches wait for a line together**, between `begin` and `compacted`: after each line whatever is updated is copied once, so one is drawn
//! only when it lets a file go and a fair part of the log has gathered. Any other line that comes meanwhile serves as well.
//!
//! What lives, and what becomes of it, is the mover's matter (`compaction/mover.rs`).
//!
//! * **Snapshots** read what was superseded (`snapshot.rs`): while one is held a copy leads to the record that it was made of, and
//!   a stretch is given back when all who held while it was copied have let go. Others are copied meanwhile, as far as the log went when the first
//!   of those began, and in memory as far as there is room for the copies: then scans that follow each other let it go, again and again. A cache, which drops
//!   what lives, begins none at all while there is a snapshot.
//! * **A reader** that was on its way to a record below `begin` finds nothing there, looks again, and finds the copy.
//!
//! **When**: dead bytes are counted where records are superseded or deleted. Above the space target, and by half a file on a device,
//! the driver compacts, a stretch at a time; of a store in memory also when its budget is nearly full, and whoever finds it full does it himself.
//! Who puts over a cold record does not know how long that was, and counts as much as he puts (a guess). So where there were guesses, and the log is half as long again
//! as when its oldest part was last found to live, a little of it is compacted, whatever the count says, and more and more from there until a part is found of which more lives than the target has.
//! On a device the driver may be too slow for those who write: where keys share entries most records are in doubt, the more the longer the log is. So it must not grow without end:
//! from twice the length on that it had when compaction had last done its work, whoever needs room does a stretch first, or waits a little.

mod mover;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

use crate::cache::Caching;
use crate::engine::{Engine, Layout, lock, try_lock};
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result};
use crate::index::{Keys, Published, Seen};
use crate::log::{BLOCK_BYTES, NOWHERE, block_ceil, block_floor, device_offset};
use crate::record::{self, ADDRESS_MASK, Record};
use crate::scars::Scar;
use crate::stats::SpaceStats;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard};
use crate::traverse::Span;
use mover::Mover;
use std::collections::VecDeque;
use std::ops::RangeBounds;
use std::time::Duration;

/// A stretch is this part of the log's memory or this part of the log, whichever is more, within bounds: long ones for the doubts of many records to be read
/// together, short ones of those who wait for room meanwhile.
const STRETCH_PART: u64 = 32;
const STRETCH_LOG_PART: u64 = 16;
const SHORT_STRETCH_LOG_PART: u64 = 128;
const STRETCH_BYTES_MIN: u64 = 1 << 20;
const STRETCH_BYTES_MAX: u64 = 64 << 20;
/// Compaction draws a line for this part of the log at least.
const LINE_PART: u64 = 16;
/// Those who write help when the log is so many times as long as when compaction was last done with it.
const LATE: u64 = 2;
/// The oldest part is looked at when the log is so many times as long as when that was last found to live.
const GLANCE: f64 = 1.5;
/// At so much of it or this part of the log, whichever is more; and at twice as much as the time before while it is dead.
const GLANCE_BYTES_MIN: u64 = 64 << 10;
const GLANCE_LOG_PART: u64 = 4096;
/// In memory those who find the store full wait for a stretch: a millisecond or two.
const STRETCH_IN_MEMORY_MAX: u64 = 512 << 10;
/// With less of the log dead compaction copies nearly all it reads.
const HOPELESS_PART: u64 = 32;
/// A log is left alone for so much longer than the target, at most: what is given back within a file saves nothing yet.
const SLACK_BYTES_MAX: u64 = 32 << 20;
/// A log below this is left alone.
const LOG_BYTES_MIN: u64 = 4 << 20;
/// How long and how often those who need room wait for those who hold what would make it.
pub(crate) const HELD_PAUSE: Duration = Duration::from_millis(1);
pub(crate) const HELD_PAUSES: u32 = 16;
/// No record is shorter; and buckets that are looked at under one pin.
const RECORD_BYTES_MIN: u64 = 16;
const SWEPT_AT_ONCE: usize = 64;
/// Until samples tell what has expired.
const CLOSE_LOOKS: u32 = 8;
/// So many times through the log goes who needs room, as long as what is dead would suffice.
const ROUNDS: u32 = 32;
/// Between two looks whether a stretch that somebody else does has made room: a part of what one in memory takes.
const STRETCH_PAUSE: Duration = Duration::from_micros(50);

/// How far a log in files of this length may go beyond its target before it is compacted.
fn slack(segment_bytes: u64) -> u64 {
    (segment_bytes / 2).min(SLACK_BYTES_MAX)
}

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
    pub(crate) scars: Mutex<Vec<Scar>>,
    /// Behind them there is no room for another one.
    pub(crate) lack_room: AtomicBool,
    /// Dead bytes counted before this opening, and those given back since.
    known: AtomicU64,
    given_back: AtomicU64,
    pass: Mutex<Option<Pass>>,
    done: Mutex<Done>,
    /// Stretches that somebody held when they had been copied, one behind the other from `compacted` to `copied`.
    copied: Mutex<VecDeque<Copied>>,
    /// The log's length when compaction was last not due, or what lived in it when compaction had been through all of it. 0: nobody has looked,
    /// as in recovery.
    rested_at: AtomicU64,
    /// The log's length when its oldest part was last found to live, and how many had guessed by then. 0: it was found dead.
    glanced_at: AtomicU64,
    guesses: AtomicU64,
    /// So many glances, one behind the other, found it dead.
    dead_glances: AtomicU64,
    /// So many buckets were looked at for entries that lead nowhere, again and again from the first to the last.
    swept: AtomicU64,
    /// The tail when two chains could not be joined (`joining.rs`).
    pub(crate) joined_in_vain_at: AtomicU64,
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
}

/// A way through the whole log, as it was when it began: at its end nothing is left of what was dead then, whatever was
/// counted. So errors of the count do not add up, and where all lives compaction rests after one pass. What died since may have been given back,
/// too: of that no more than was counted.
struct Pass {
    from: u64,
    until: u64,
    /// Bytes that lived, of those it went through.
    moved: u64,
    /// All dead bytes that had been counted; and since, those that its own copies leave, which it would only make again.
    counted: u64,
}

/// What was done since the opening.
#[derive(Clone, Copy, Default)]
struct Done {
    stretches: u64,
    given_back_bytes: u64,
    moved_bytes: u64,
}

/// A record that is appended once more.
pub(crate) struct Original<'a> {
    pub(crate) at: u64,
    pub(crate) hash: u64,
    /// All of it, perhaps without the room behind its value.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Original<'a> {
    pub(crate) fn key(&self, layout: Layout) -> &'a [u8] {
        &self.bytes[record::key_range(layout, self.bytes)]
    }

    /// The record that it leads to.
    pub(crate) fn previous(&self) -> u64 {
        record::word_at(self.bytes, 0) & ADDRESS_MASK
    }
}

/// Where a key's newest record is.
pub(crate) enum Newest {
    At(u64),
    /// On the device, at this address or behind it in the chain.
    Cold(u64),
    Nowhere,
}

impl Engine {
    /// Bytes of log from where compaction has come to, to its tail.
    pub(crate) fn log_extent(&self) -> u64 {
        self.log.tail().saturating_sub(self.log.bounds.compacted.load(Relaxed))
    }

    /// Bytes of the files that a line would let go.
    fn freeable_bytes(&self) -> u64 {
        let bounds = &self.log.bounds;
        let files = |address: u64| device_offset(address).checked_div(self.segment_bytes).unwrap_or(0);
        let (begin, compacted) = (files(bounds.begin.load(Relaxed)), files(bounds.compacted.load(Relaxed)));
        compacted.saturating_sub(begin) * self.segment_bytes
    }

    /// Bytes of the stretches that wait for a line.
    fn waiting_bytes(&self) -> u64 {
        let bounds = &self.log.bounds;
        bounds.compacted.load(Relaxed).saturating_sub(bounds.begin.load(Relaxed))
    }

    /// Bytes of records that are superseded, deleted or expired, as far as was noticed.
    pub(crate) fn dead_bytes(&self) -> u64 {
        (self.superseded_bytes() + self.expiry.expired_bytes()).min(self.log_extent())
    }

    /// Bytes of records that are superseded or deleted, as far as was noticed.
    pub(crate) fn superseded_bytes(&self) -> u64 {
        let counted = self.counted_dead_bytes() + self.passed_bytes();
        counted.saturating_sub(self.compaction.given_back.load(Relaxed)).min(self.log_extent())
    }

    /// Bytes that threads took and did not fill, and that were given back: they count them when they come back.
    fn passed_bytes(&self) -> u64 {
        self.unfilled_bytes(..self.log.bounds.compacted.load(Relaxed))
    }

    /// What threads have not filled of the pieces of which they have come so far.
    fn unfilled_bytes(&self, cursors: impl RangeBounds<u64>) -> u64 {
        self.epochs.slots().filter(|slot| cursors.contains(&slot.cursor.load(Relaxed))).map(|slot| slot.unfilled_bytes()).sum()
    }

    /// The same for a line, which still has what was copied and is held.
    pub(crate) fn superseded_bytes_of_line(&self) -> u64 {
        (self.superseded_bytes() + self.held_back().moved).min(self.log_extent())
    }

    /// What is to be given back when nobody holds it any more.
    fn held_back(&self) -> Copied {
        let sum = |sum: Copied, one: &Copied| Copied {
            reached: one.reached,
            moved: sum.moved + one.moved,
            dead: sum.dead + one.dead,
            left: sum.left + one.left,
        };
        lock(&self.compaction.copied).iter().fold(Copied::default(), sum)
    }

    /// Those given back included.
    fn counted_dead_bytes(&self) -> u64 {
        self.compaction.known.load(Relaxed) + self.log.left_bytes.load(Relaxed) + self.epochs.counted(Counter::DeadByte)
    }

    fn begin_pass(&self) -> Pass {
        let (from, until) = (self.log.bounds.compacted.load(Relaxed), block_floor(self.log.tail()));
        Pass { from, until, moved: 0, counted: self.counted_dead_bytes() }
    }

    /// Notes what a stretch gives back, by and by.
    fn note_stretch(&self, stretch: Copied) {
        let Compaction { given_back, pass, done, .. } = &self.compaction;
        let mut done = lock(done);
        done.stretches += 1;
        done.moved_bytes += stretch.moved;
        let given = given_back.fetch_add(stretch.dead, Relaxed) + stretch.dead;
        let mut pass = lock(pass);
        if let Some(pass) = &mut *pass {
            pass.moved += stretch.moved;
            pass.counted += stretch.left;
        }
        if let Some(pass) = pass.take_if(|pass| stretch.reached >= pass.until) {
            // With what threads have not filled of their pieces yet: it went, and they count it when they take others.
            given_back.store(given.max(pass.counted).min(self.counted_dead_bytes() + self.unfilled_bytes(..)), Relaxed);
            // Should the count be wrong, and most of the log live: as much of what came meanwhile as of what was before.
            let part = pass.moved as f64 / (pass.until - pass.from).max(1) as f64;
            let living = (part * self.log_extent() as f64) as u64;
            self.compaction.rested_at.fetch_max(living, Relaxed);
        }
    }

    pub(crate) fn start_dead_bytes(&self, known: u64) {
        self.compaction.known.store(known, Relaxed);
    }

    pub(crate) fn space_stats(&self) -> SpaceStats {
        let (waiting, dead) = (self.waiting_bytes(), self.dead_bytes() + self.held_back().moved);
        let live_bytes = self.log_extent().saturating_sub(dead);
        let (log_bytes, dead_bytes) = (live_bytes + dead + waiting, dead + waiting);
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
        let (extent, budget) = (self.log_extent(), self.log.budget.load(Relaxed));
        let is_nearly_full = self.is_in_memory() && extent + self.spare_bytes() > budget && !self.is_compaction_hopeless();
        is_nearly_full || extent > LOG_BYTES_MIN && self.taken_to_allowed() > 1.0
    }

    /// True if the oldest part of the log may be dead, though it was not counted: where values have one length, all that died was.
    fn is_glance_due(&self) -> bool {
        if self.value_width.is_some() {
            return false;
        }
        let Compaction { glanced_at, guesses, .. } = &self.compaction;
        let is_longer =
            self.log_extent() as f64 > (GLANCE * glanced_at.load(Relaxed) as f64).max((LOG_BYTES_MIN + slack(self.segment_bytes)) as f64);
        !self.is_in_memory() && is_longer && self.epochs.counted(Counter::Guess) > guesses.load(Relaxed)
    }

    /// How much of the oldest part lived. What was due because it was counted says nothing of what was not: else each burst of
    /// that went on below the target.
    fn note_glance(&self, stretch: Stretch, moved: u64, bytes: u64) {
        let Compaction { glanced_at, guesses, dead_glances, .. } = &self.compaction;
        if moved as f64 * self.space_amplification >= bytes as f64 {
            glanced_at.store(self.log_extent(), Relaxed);
            guesses.store(self.epochs.counted(Counter::Guess), Relaxed);
            dead_glances.store(0, Relaxed);
        } else if let Stretch::Glance = stretch {
            glanced_at.store(0, Relaxed);
            dead_glances.fetch_add(1, Relaxed);
        } else {
            // Nobody else is at it: who compacts is one.
            glanced_at.store(glanced_at.load(Relaxed).min(self.log_extent()), Relaxed);
        }
    }

    /// True if next to nothing would come of it.
    fn is_compaction_hopeless(&self) -> bool {
        let dead = self.dead_bytes() + self.idle_bytes();
        dead < self.log_extent() / HOPELESS_PART && !self.log.is_longest_in_doubt() && !self.log.is_overdrawn(dead)
    }

    /// Bytes of a log in memory that threads took and have not come back to: no record will be there when compaction has passed. Those of who writes now, which he
    /// would only take anew, lie in the log's newer half.
    fn idle_bytes(&self) -> u64 {
        if !self.is_in_memory() {
            return 0;
        }
        let copied = self.log.bounds.copied.load(Relaxed);
        self.unfilled_bytes(copied..copied + self.log_extent() / 2)
    }

    fn finds_expired(&self) -> bool {
        self.sample_expired();
        !self.is_compaction_hopeless()
    }

    /// The space that is taken, to what the target allows. What has been copied and is held is not compaction's to give.
    fn taken_to_allowed(&self) -> f64 {
        let extent = self.log.tail().saturating_sub(self.log.bounds.copied.load(Relaxed));
        // The log may have become longer since, and more of it dead.
        let dead = self.dead_bytes().saturating_sub(self.held_back().dead).min(extent);
        let allowed = self.space_amplification * (extent - dead) as f64 + slack(self.segment_bytes) as f64;
        (extent + self.freeable_bytes()) as f64 / allowed.max(1.0)
    }

    /// The driver's share: one stretch, if that is due.
    pub(crate) fn compact_if_due(&self) -> Result<bool> {
        if self.check_writable().is_err() {
            return Ok(false);
        }
        match self.try_running()? {
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
        }
        moved
    }

    /// Nothing is due now.
    pub(crate) fn rest_compaction(&self) {
        self.compaction.rested_at.store(self.log_extent(), Relaxed);
    }

    /// True if the background cannot keep up with those who write.
    pub(crate) fn is_compaction_late(&self) -> bool {
        let rested_at = self.compaction.rested_at.load(Relaxed);
        let can_be = rested_at > 0 && self.in_background && !self.is_in_memory() && self.caching.is_none();
        can_be && self.log_extent() > LATE * rested_at + LOG_BYTES_MIN + slack(self.segment_bytes)
    }

    /// For those who write then: a stretch, or a wait while others do one. Not for long, for it may be an image or a backup that holds compaction.
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

    /// The same, due or not.
    pub(crate) fn compact_once(&self) -> Result<bool> {
        drop(self.epochs.pin()?);
        let one = self.running()?;
        self.begin_if_told(&one)?;
        self.move_stretch_now(&one, None, Stretch::Short)
    }

    fn begin_if_told(&self, one: &MutexGuard<'_, ()>) -> Result<()> {
        if self.is_told() {
            self.begin_at_compacted(one)?;
        }
        Ok(())
    }

    /// One at a time compacts, and none when the store is closed: then there is no line that could tell of the copies, and the files may be another's.
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
        *lock(&self.compaction.pass) = Some(self.begin_pass());
        while self.log.bounds.copied.load(Acquire) < until && self.move_stretch_now(&self.running()?, None, Stretch::UpTo(until))? {}
        self.give_back(&self.running()?)?;
        if self.waiting_bytes() > 0 {
            self.begin_at_compacted(&self.running()?)?;
        }
        while self.shrink_index(&self.running()?)? {}
        let given_back = self.log.bounds.begin.load(Acquire) - begin;
        Ok(given_back.saturating_sub(self.moved_bytes().saturating_sub(copied)))
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
        self.sample_expired();
        while !fits() {
            // Not at all when next to nothing would come of it, as far as a closer look can tell.
            let is_through = self.log.bounds.begin.load(Relaxed) >= until;
            let would_fit =
                || (self.log_bytes() + bytes).saturating_sub(self.dead_bytes() + self.idle_bytes()) <= self.log.budget.load(Relaxed);
            let is_hopeless = || !would_fit() && self.is_compaction_hopeless() && !(0..CLOSE_LOOKS).any(|_| self.finds_expired());
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
                self.sample_expired();
            }
            if !self.move_stretch_for_room(None, || !fits())? {
                // A read-only transaction ends soon, a scan may not.
                let is_held = !lock(&self.compaction.copied).is_empty();
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

    /// Waits until the stretch that somebody else moves now is given back; false if there is none.
    fn await_stretch(&self) -> bool {
        let turn = || self.compaction.turn.load(Acquire);
        let seen = turn();
        while seen % 2 == 1 && turn() == seen {
            std::thread::sleep(STRETCH_PAUSE);
        }
        seen % 2 == 1
    }

    /// The driver's share where a cache drops what nobody asked for, if that still `is_due`. False if there is nothing to give back, or somebody else is
    /// at it: a backup may be for long, and lines must not wait for that.
    pub(crate) fn try_move_stretch(&self, caching: &Caching, is_due: impl Fn() -> bool) -> Result<bool> {
        match self.try_running()? {
            Some(one) if is_due() => self.move_stretch_now(&one, Some(caching), Stretch::Long),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// The oldest stretch for who needs room, if that still `is_due`, and who looks again whether there is some: while others are at it he waits a little. Not at the lock: the driver, who does
    /// one stretch after the other, has it again and again before somebody who sleeps there wakes up.
    pub(crate) fn move_stretch_for_room(&self, caching: Option<&Caching>, is_due: impl Fn() -> bool) -> Result<bool> {
        match self.try_running()? {
            Some(one) if is_due() => self.move_stretch_now(&one, caching, Stretch::Short),
            Some(_) => Ok(true),
            None => {
                std::thread::sleep(STRETCH_PAUSE);
                Ok(true)
            }
        }
    }

    fn move_stretch_now(&self, one: &MutexGuard<'_, ()>, caching: Option<&Caching>, stretch: Stretch) -> Result<bool> {
        let moved = self.try_stretch(one, caching, stretch);
        *lock(&self.compaction.failure) = moved.as_ref().err().filter(|error| !matches!(error, Error::Closed)).cloned();
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
        lock(&self.compaction.pass).get_or_insert_with(|| self.begin_pass());
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
                (Err(Error::Corruption(_) | Error::Io(_)), Some(caching)) if !self.is_in_memory() && mover.ended_at.is_none() => {
                    match self.pass_unread(caching, to) {
                        Ok(Some(reached)) => reached,
                        passed => {
                            self.note_unfinished(&mover);
                            return passed.map(|_| false);
                        }
                    }
                }
                (Err(error), _) => {
                    self.note_unfinished(&mover);
                    return Err(error);
                }
            };
            if reached > from {
                match caching {
                    Some(caching) => caching.adapt(reached - from),
                    None => self.note_glance(kind, mover.moved, reached - from),
                }
                let dead = (reached - from).saturating_sub(mover.moved + mover.expired) + mover.taken_back.get();
                if caching.is_some() {
                    self.let_nobody_build_below(reached);
                    mover.tell_aside()?;
                }
                self.log.bounds.copied.store(reached, SeqCst);
                lock(&self.compaction.copied).push_back(Copied { reached, moved: mover.moved, dead, left: mover.left });
                let given = self.give_back(one);
                // What could not be read is told when it is asked for.
                let _ = self.shrink_index(one);
                return Ok(given? || self.copies_what_is_held());
            }
            // A record longer than the stretch, unless it is the log's last or there is no room for its copy.
            if from + stretch >= self.log.tail() || mover.ended_at.is_some() {
                return Ok(false);
            }
            stretch *= 2;
        }
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
                let doublings = self.compaction.dead_glances.load(Relaxed).min(u64::from(STRETCH_BYTES_MAX.ilog2()));
                (first << doublings).min(of_log(SHORT_STRETCH_LOG_PART))
            }
            (reserve, ..) => stretch_in_memory(reserve),
        };
        match kind {
            Stretch::UpTo(until) => stretch.min(block_ceil(until).saturating_sub(from)).max(BLOCK_BYTES),
            _ => stretch,
        }
    }

    /// A stretch that will be gone through again: its copies stand, and what was taken back of guesses is not taken back once more.
    fn note_unfinished(&self, mover: &Mover<'_>) {
        self.compaction.known.fetch_add(mover.moved + mover.expired, Relaxed);
        self.compaction.given_back.fetch_add(mover.taken_back.get(), Relaxed);
    }

    /// Where a stretch may end: what lies below does not change any more, and on a device it is there.
    fn stretch_end(&self, wanted: u64) -> Result<u64> {
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

    /// A cache drops a stretch of the device that cannot be read as a whole, and on to where a record begins that the index knows of: the stretch may end in
    /// the midst of one. Where that is; `None` if somebody holds what is there.
    fn pass_unread(&self, caching: &Caching, to: u64) -> Result<Option<u64>> {
        let next = self.lowest_indexed(to)?;
        // A block further: up to the record all is frozen then, and written.
        let reached = self.stretch_end(next.saturating_add(BLOCK_BYTES))?.min(next);
        // Whose values were there nobody knows.
        caching.flights.outdate_all();
        self.let_nobody_build_below(reached);
        let _pin = self.epochs.pin_anyway()?;
        // A snapshot that begins later waits for our pin: it does not have what we drop.
        if self.log.bounds.held.load(Acquire) != 0 {
            self.log.bounds.dropping.store(self.log.bounds.copied.load(Relaxed), Release);
            return Ok(None);
        }
        self.log.bounds.copied.store(reached, SeqCst);
        Ok(Some(reached))
    }

    /// Of what a cache drops from the midst of a chain the entry does not tell: it leads where it led. So whoever would build on it must not find it
    /// any more before somebody else finds it gone, and need write nothing to delete it. When this returns, what was built on it is published.
    fn let_nobody_build_below(&self, reached: u64) {
        if self.gives_up_by_lines() {
            self.log.bounds.doomed.fetch_max(reached, SeqCst);
        }
        self.log.bounds.dropping.store(reached, SeqCst);
        // Reads that take the short way do not ask what was copied, and an entry may lead there still.
        self.log.bounds.near.fetch_max(reached, SeqCst);
        self.epochs.drain();
    }

    /// True if what is not there needs no deletion to be so after a crash, too. Not while a cache drops what no line has given up yet.
    pub(crate) fn stays_absent(&self) -> bool {
        // Acquire: who found that an entry has gone finds this as well.
        self.log.bounds.doomed.load(Acquire) <= self.told_begin()
    }

    /// True if a crash brings back what a cache dropped and no line has given up: not in a store that goes with the process. Not under a pin.
    fn gives_up_by_lines(&self) -> bool {
        !self.is_in_memory() && !self.is_temporary()
    }

    /// The lowest address from there on that an entry of the index leads to; [`NOWHERE`] if there is none. A pass over the whole index.
    fn lowest_indexed(&self, from: u64) -> Result<u64> {
        let mut lowest = NOWHERE;
        for at in 0..self.index.buckets() {
            let _pin = self.epochs.pin_anyway()?;
            lowest = self.index.addresses(at).into_iter().filter(|address| *address >= from).fold(lowest, u64::min);
        }
        Ok(lowest)
    }

    /// Visits the records that begin in `[from, to)` and end there; where the next one begins.
    fn visit_stretch(&self, from: u64, to: u64, mover: &mut Mover<'_>) -> Result<u64> {
        let scars = lock(&self.compaction.scars).clone();
        let span = Span::open_ended(from..to, &scars);
        if self.is_in_memory() {
            self.scan_memory(&span, mover)?
        } else {
            self.scan(&span, mover)?
        }
        Ok(span.reached())
    }

    /// Gives the stretches back that have been copied and that nobody holds, or lets them wait for a line. False if there are none, or the store was
    /// closed meanwhile.
    fn give_back(&self, one: &MutexGuard<'_, ()>) -> Result<bool> {
        let mut is_any = false;
        loop {
            let oldest = lock(&self.compaction.copied).front().copied();
            let Some(stretch) = oldest else { break };
            if !self.holds.let_go(stretch.reached, || self.log.bounds.compacted.store(stretch.reached, SeqCst)) {
                break;
            }
            lock(&self.compaction.copied).pop_front();
            self.note_stretch(stretch);
            is_any = true;
        }
        Ok(is_any && (self.is_line_worth_it() == Some(false) || self.begin_at_compacted(one)?))
    }

    /// True if there is more to copy for when the first of those who hold lets go: what was there when it began. The rest would not go then, and whoever
    /// holds for long would have his chains lead through copy after copy. In memory all those copies must fit the reserve.
    fn copies_what_is_held(&self) -> bool {
        let reserve = self.log.reserve_for_short();
        let has_room = || reserve == 0 || self.held_back().moved + stretch_in_memory(reserve) <= reserve;
        self.caching.is_none() && self.log.bounds.copied.load(Relaxed) < self.holds.first_tail() && has_room()
    }

    /// Whether a line for the stretches that wait would let a file go, and spare a fair part of the log; `None` where nothing waits for lines.
    fn is_line_worth_it(&self) -> Option<bool> {
        // What is dropped from a cache must make room.
        if self.segment_bytes == 0 || self.caching.is_some() || self.is_temporary() {
            return None;
        }
        Some(self.freeable_bytes() > 0 && self.waiting_bytes() >= (self.log_extent() / LINE_PART).max(STRETCH_BYTES_MIN))
    }

    /// True if stretches wait for a line, and a durable one has said by now that the log begins behind them.
    fn is_told(&self) -> bool {
        self.waiting_bytes() > 0 && self.told_begin() >= self.log.bounds.compacted.load(Relaxed)
    }

    /// Nothing below `compacted` is needed any more. False if the store was closed meanwhile.
    fn begin_at_compacted(&self, _: &MutexGuard<'_, ()>) -> Result<bool> {
        let bounds = &self.log.bounds;
        let (from, to) = (bounds.begin.load(Relaxed), bounds.compacted.load(Relaxed));
        let given_back = || lock(&self.compaction.done).given_back_bytes += to - from;
        if self.is_in_memory() {
            let guard = lock(&self.boundaries);
            bounds.begin.store(to, SeqCst);
            self.evict(to);
            drop(guard);
            given_back();
            self.sweep_index(to - from);
            return Ok(true);
        }
        // What goes with the store needs no line.
        if !self.is_temporary() && !self.is_told() && !self.draw_line_now()? {
            return Ok(false);
        }
        bounds.begin.store(to, SeqCst);
        if let Some(device) = &self.log.device {
            device.discard(device_offset(from), device_offset(to)).map_err(|error| self.latch(error))?;
        }
        bounds.discarded.store(to, Relaxed);
        given_back();
        self.sweep_index(to - from);
        Ok(true)
    }

    /// The entries of what is deleted often outlive it (`Index::remove`): while the log's beginning goes once through the log, this goes once through
    /// the index. And at once where there are more entries than the log can have records.
    fn sweep_index(&self, given_back: u64) {
        let (buckets, extent) = (self.index.buckets(), self.log_extent());
        let part = (u128::from(buckets) * u128::from(given_back) / u128::from(extent + given_back).max(1)) as u64;
        let count = if self.index.entries() > extent / RECORD_BYTES_MIN { buckets } else { part + 1 };
        let first = self.compaction.swept.fetch_add(count, Relaxed);
        let begin = self.log.bounds.begin.load(Relaxed);
        for from in (0..count).step_by(SWEPT_AT_ONCE) {
            let Ok(_pin) = self.epochs.pin_anyway() else { return };
            let to = count.min(from + SWEPT_AT_ONCE as u64);
            (from..to).for_each(|n| self.index.drop_below((first + n) % buckets, begin));
        }
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

    /// Under a pin.
    pub(crate) fn newest(&self, seen: &Seen, key: &[u8]) -> Newest {
        let bounds = &self.log.bounds;
        let (head, copied) = (bounds.head.load(Acquire), bounds.copied.load(Acquire));
        let mut at = seen.address();
        while at >= copied && at != 0 {
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

    /// Makes the copy of a record in the place `to`, and publishes it over the entry that was `seen` when the record was found to be its key's newest. `keys`
    /// tells by where the copy leads what is known of that chain. Whether there is an entry more; `None`, and no copy, if the entry has changed. Under the pin
    /// under which all that was.
    pub(crate) fn publish_copy(
        &self,
        pin: &Pin<'_>,
        of: &Original<'_>,
        to: u64,
        seen: &Seen,
        keys: impl FnOnce(u64) -> Keys,
    ) -> Option<bool> {
        let lives = record::lives_after(record::word_at(of.bytes, 0));
        // SAFETY: just allocated under the pin: ours alone, in memory, with room for these bytes.
        let copy = unsafe { Record::new(self.log.pointer(to)) };
        // A key that shares the entry may lie behind the record: the copy leads there too. And a snapshot may need the record itself.
        let passes_by = seen.address() == of.at && of.at >= self.log.bounds.held.load(Acquire);
        let previous = if passes_by { of.previous() } else { seen.address() };
        self.mark_superseded(of.at);
        copy.write_copy(self.layout, of.bytes, previous, self.log.line_flag() | lives);
        let (mut added, link_to) = (false, |previous| copy.lead_to(previous, self.log.line_flag()));
        if let Published::Done = self.index.publish(of.hash, seen, to, keys(previous), &mut added, link_to) {
            return Some(added);
        }
        self.give_up(pin, copy);
        None
    }

    /// Only what is in memory has a window: of a cold record the mark would be another address's, some laps later, and would take
    /// memory that nobody counts. Under a pin.
    pub(crate) fn mark_superseded(&self, at: u64) {
        if at >= self.log.bounds.head.load(Acquire) {
            self.log.windows.mark_superseded(at);
        }
    }
}
