//! How much of the log is dead, and when compaction is due.
//!
//! Dead bytes are counted where records are superseded or deleted. Above the space target, and by half a file on a device, the driver
//! compacts, a stretch at a time; of a store in memory also when its budget is nearly full, and whoever finds it full does it himself. Who
//! puts over a cold record does not know how long that was, and counts as much as he puts (a guess). So where there were guesses, and the
//! log is half as long again as when its oldest part was last found to live, or much of it may be dead that was not counted, a little of it
//! is compacted, whatever the count says, and more and more from there until a part is found of which more lives than the target has. On a
//! device the driver may be too slow for those who write: where keys share entries most records are in doubt, the more the longer the log
//! is. So it must not grow without end: from twice the length on that it had when compaction had last done its work, whoever needs room
//! does a stretch first, or waits a little.

use super::mover::Tally;
use super::{Copied, Done, Stretch};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::expiry::SMALL_SAMPLE;
use crate::log::{block_floor, device_offset};
use crate::record::{self, ABSENT, Record};
use crate::stats::SpaceStats;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, lock};
use crate::types::Layout;
use std::ops::RangeBounds;
use std::time::{Duration, Instant};

/// Those who write help when the log is so many times as long as when compaction was last done with it.
const LATE: u64 = 2;
/// The oldest part is looked at when the log is so many times as long as when that was last found to live.
const GLANCE: f64 = 1.5;
/// Or, now and then, where as much as so large a part of it may be dead and was not counted by those who guessed.
const UNCOUNTED_PART: u64 = 4;
const BETWEEN_GLANCES: Duration = Duration::from_secs(1);
/// With less of the log dead compaction copies nearly all it reads.
const HOPELESS_PART: u64 = 32;
/// With more of a log in memory alive holes cost less than copies.
const HOLES_LIVE_PART: f64 = 0.6;
/// For less of the log than this unused room is not worth a pass.
const UNUSED_PART: u64 = 16;
/// A log is left alone for so much longer than the target, at most: what is given back within a file saves nothing yet.
const SLACK_BYTES_MAX: u64 = 32 << 20;
/// A log below this is left alone.
const LOG_BYTES_MIN: u64 = 4 << 20;

/// How far a log in files of this length may go beyond its target before it is compacted.
fn slack(segment_bytes: u64) -> u64 {
    (segment_bytes / 2).min(SLACK_BYTES_MAX)
}

#[derive(Default)]
pub(super) struct Due {
    /// Dead bytes counted before this opening, and those given back since.
    known: AtomicU64,
    given_back: AtomicU64,
    pass: Mutex<Option<Pass>>,
    /// The log's length when compaction was last not due, or what lived in it when compaction had been through all of it. 0: nobody has
    /// looked, as in recovery.
    rested_at: AtomicU64,
    glances: Mutex<Glances>,
    /// Room behind shorter values that copies would leave out, in memory, by a sample; and the tail by then. Looks at entries so far.
    unused: AtomicU64,
    unused_until: AtomicU64,
    looks: AtomicU64,
}

/// A way through the whole log, as it was when it began: at its end nothing is left of what was dead then, whatever was counted. So errors
/// of the count do not add up, and where all lives compaction rests after one pass. What died since may have been given back, too: of that
/// no more than was counted.
struct Pass {
    from: u64,
    until: u64,
    /// Bytes that lived, of those it went through.
    moved: u64,
    /// All dead bytes that had been counted; and since, those that its own copies leave, which it would only make again.
    counted: u64,
    /// Bytes of holes that had been filled: what is since was dead when it began, and lives.
    filled: u64,
    guessed: Guessed,
}

/// What had been taken for dead without a look by some moment.
#[derive(Clone, Copy, Default)]
struct Guessed {
    records: u64,
    bytes: u64,
}

/// What was seen of the oldest part.
#[derive(Default)]
struct Glances {
    /// The log's length when the part was last found to live, and how many had guessed by then. 0: it was found dead.
    extent: u64,
    guesses: u64,
    /// When that was.
    at: Option<Instant>,
    /// How long records were in the part that was last gone through, in the mean.
    mean: u64,
    /// What was dead by then has been given back, counted or not.
    passed: Guessed,
    /// So many glances, one behind the other, found it dead.
    dead: u32,
}

impl Engine {
    /// Bytes of log from where compaction has come to, to its tail.
    pub(crate) fn log_extent(&self) -> u64 {
        self.log.tail().saturating_sub(self.log.bounds.compacted.load(Relaxed))
    }

    /// Bytes of the files that a line would let go.
    pub(super) fn freeable_bytes(&self) -> u64 {
        let bounds = &self.log.bounds;
        let files = |address: u64| device_offset(address).checked_div(self.segment_bytes).unwrap_or(0);
        let (begin, compacted) = (files(bounds.begin.load(Relaxed)), files(bounds.compacted.load(Relaxed)));
        compacted.saturating_sub(begin) * self.segment_bytes
    }

    /// Bytes of the stretches that wait for a line.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let bounds = &self.log.bounds;
        bounds.compacted.load(Relaxed).saturating_sub(bounds.begin.load(Relaxed))
    }

    /// Bytes of records that are superseded, deleted or expired, as far as was noticed.
    pub(crate) fn dead_bytes(&self) -> u64 {
        self.superseded_bytes().saturating_add(self.expiry.expired_bytes()).min(self.log_extent())
    }

    /// Bytes of records that are superseded or deleted, as far as was noticed.
    pub(crate) fn superseded_bytes(&self) -> u64 {
        let counted = self.counted_dead_bytes() + self.passed_bytes();
        counted.saturating_sub(self.compaction.due.given_back.load(Relaxed)).min(self.log_extent())
    }

    /// Bytes that threads took and did not fill, and that were given back: they count them when they come back.
    fn passed_bytes(&self) -> u64 {
        self.unfilled_bytes(..self.log.bounds.compacted.load(Relaxed))
    }

    /// What threads have not filled of the pieces of which they have come so far.
    fn unfilled_bytes(&self, cursors: impl RangeBounds<u64>) -> u64 {
        self.epochs.slots().filter(|slot| cursors.contains(&slot.cursor.load(Relaxed))).map(|slot| slot.unfilled_bytes()).sum()
    }

    /// The superseded bytes of which a line tells, which still has what was copied and is held; and the last one what threads have not
    /// filled of their pieces, for they will not come back to count it.
    pub(crate) fn superseded_bytes_of_line(&self) -> u64 {
        let is_last = self.epochs.is_closed();
        let unfilled = if is_last { self.unfilled_bytes(self.log.bounds.compacted.load(Relaxed)..) } else { 0 };
        (self.superseded_bytes() + unfilled + self.held_back().moved).min(self.log_extent())
    }

    /// What is to be given back when nobody holds it any more.
    pub(super) fn held_back(&self) -> Copied {
        let sum = |sum: Copied, one: &Copied| Copied {
            reached: one.reached,
            moved: sum.moved + one.moved,
            dead: sum.dead + one.dead,
            left: sum.left + one.left,
            idle_entries: sum.idle_entries + one.idle_entries,
        };
        lock(&self.compaction.copied).iter().fold(Copied::default(), sum)
    }

    /// All dead bytes that were counted, those given back included, but for what is alive again.
    fn counted_dead_bytes(&self) -> u64 {
        // In this order: what is filled meanwhile was counted.
        let filled = self.epochs.counted(Counter::FilledByte);
        let dead = self.compaction.due.known.load(Relaxed) + self.log.left_bytes.load(Relaxed) + self.epochs.counted(Counter::DeadByte);
        dead.saturating_sub(filled)
    }

    /// A pass begins here, whatever one there was.
    pub(super) fn begin_pass(&self) {
        *lock(&self.compaction.due.pass) = Some(self.pass_from_here());
    }

    /// One begins here if there is none.
    pub(super) fn be_on_a_pass(&self) {
        lock(&self.compaction.due.pass).get_or_insert_with(|| self.pass_from_here());
    }

    fn guessed(&self) -> Guessed {
        Guessed { records: self.epochs.counted(Counter::Guess), bytes: self.epochs.counted(Counter::GuessedByte) }
    }

    fn pass_from_here(&self) -> Pass {
        let (from, until) = (self.log.bounds.compacted.load(Relaxed), block_floor(self.log.tail()));
        let filled = self.epochs.counted(Counter::FilledByte);
        Pass { from, until, moved: 0, counted: self.counted_dead_bytes(), filled, guessed: self.guessed() }
    }

    /// A stretch that will be gone through again: its copies stand, and what was taken back of guesses is not taken back once more. What
    /// has expired is found once more, but for those whose entries a cache has taken away.
    pub(super) fn note_unfinished(&self, tally: Tally, taken_back: u64) {
        let Due { known, given_back, pass, .. } = &self.compaction.due;
        known.fetch_add(tally.moved + tally.expired_gone + tally.dropped_gone, Relaxed);
        // Their bytes are no estimate any more: they count as known, above.
        self.expiry.drop_records(tally.expired_gone_records, 0);
        given_back.fetch_add(taken_back, Relaxed);
        lock(&self.compaction.done).moved_bytes += tally.moved;
        if let Some(pass) = &mut *lock(pass) {
            pass.counted += tally.left;
        }
    }

    /// Notes what a stretch gives back, by and by.
    pub(super) fn note_stretch(&self, stretch: Copied) {
        let Due { given_back, pass, rested_at, unused, unused_until, .. } = &self.compaction.due;
        let mut done = lock(&self.compaction.done);
        done.stretches += 1;
        done.moved_bytes += stretch.moved;
        let given = given_back.fetch_add(stretch.dead, Relaxed) + stretch.dead;
        // Once through it: what is there still is not to be had.
        if stretch.reached >= unused_until.load(Relaxed) {
            unused.store(0, Relaxed);
        }
        let mut pass = lock(pass);
        if let Some(pass) = &mut *pass {
            pass.moved += stretch.moved;
            pass.counted += stretch.left;
        }
        if let Some(pass) = pass.take_if(|pass| stretch.reached >= pass.until) {
            self.expiry.forget();
            // With what threads have not filled of their pieces yet: it went, and they count it when they take others.
            let filled = self.epochs.counted(Counter::FilledByte) - pass.filled;
            let least = pass.counted.saturating_sub(filled);
            given_back.store(given.max(least).min(self.counted_dead_bytes() + self.unfilled_bytes(..)), Relaxed);
            // Should the count be wrong, and most of the log live: as much of what came meanwhile as of what was before.
            let part = pass.moved as f64 / (pass.until - pass.from).max(1) as f64;
            let living = (part * self.log_extent() as f64) as u64;
            rested_at.fetch_max(living, Relaxed);
            lock(&self.compaction.due.glances).passed = pass.guessed;
        }
    }

    pub(crate) fn start_dead_bytes(&self, known: u64) {
        self.compaction.due.known.store(known, Relaxed);
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

    /// Whether new records shall take the places of deleted ones. Compaction copies as many records for each as live for one that is dead, in
    /// the order of their addresses; to leave a place and fill it costs as much as one and a half such copies.
    pub(crate) fn weigh_holes(&self) {
        if self.log.holes.are_possible() {
            let live = self.log_extent().saturating_sub(self.reclaimable_bytes());
            self.log.holes.want(live as f64 >= HOLES_LIVE_PART * self.log.budget.load(Relaxed) as f64);
        }
    }

    /// True if more space is taken than the target allows.
    pub(super) fn is_compaction_due(&self) -> bool {
        let (extent, budget) = (self.log_extent(), self.log.budget.load(Relaxed));
        // New records fill holes without it.
        let is_hopeless = || self.is_hopeless_for(self.reclaimable_bytes().saturating_sub(self.log.holes.useful_bytes()));
        let is_nearly_full = self.is_in_memory() && self.log_bytes() + self.spare_bytes() > budget && !is_hopeless();
        is_nearly_full || extent > LOG_BYTES_MIN && self.taken_to_allowed() > 1.0
    }

    /// What whoever makes a record of so many bytes over what is on the device counts as dying with it, without a look: nearly always an older
    /// version, and as long. (Where values have one length a deletion is shorter.)
    pub(crate) fn guessed_bytes(&self, bytes: u64, is_deletion: bool, key_bytes: usize) -> u64 {
        match (self.layout, self.value_width) {
            (Layout::Bytes, Some(width)) if is_deletion => record::bytes_record_bytes(key_bytes, width),
            _ => bytes,
        }
    }

    /// True if the oldest part of the log may be dead, though it was not counted: where values have one length, and none ends, all that
    /// died was. And where older versions are kept a part of which nothing lives is not there to be given back.
    pub(super) fn is_glance_due(&self) -> bool {
        if self.value_width.is_some() && !self.expiry.has_met_ends() || self.keeps_versions {
            return false;
        }
        let (extent, guessed) = (self.log_extent(), self.guessed());
        let last = lock(&self.compaction.due.glances);
        let is_longer = || extent as f64 > GLANCE * last.extent as f64;
        // Short records, deletions above all, that take the place of long ones make the log no longer.
        let may_be_uncounted = || {
            let records = guessed.records.saturating_sub(last.passed.records);
            let counted = guessed.bytes.saturating_sub(last.passed.bytes);
            let uncounted = records.saturating_mul(last.mean).saturating_sub(counted);
            uncounted > extent / UNCOUNTED_PART && last.at.is_none_or(|at| at.elapsed() > BETWEEN_GLANCES)
        };
        let is_long = extent > LOG_BYTES_MIN + slack(self.segment_bytes);
        !self.is_in_memory() && is_long && guessed.records > last.guesses && (is_longer() || may_be_uncounted())
    }

    /// So many glances, one behind the other, found the oldest part dead.
    pub(super) fn dead_glances(&self) -> u32 {
        lock(&self.compaction.due.glances).dead
    }

    /// How much of the oldest part lived. What was due because it was counted says nothing of what was not: else each burst of
    /// that went on below the target.
    pub(super) fn note_glance(&self, stretch: Stretch, moved: u64, bytes: u64, mean: u64) {
        let (extent, mut last) = (self.log_extent(), lock(&self.compaction.due.glances));
        last.mean = mean;
        if moved as f64 * self.space_amplification >= bytes as f64 {
            *last = Glances { extent, guesses: self.guessed().records, at: Some(Instant::now()), mean, dead: 0, passed: last.passed };
        } else if let Stretch::Glance = stretch {
            last.extent = 0;
            last.dead += 1;
        } else {
            last.extent = last.extent.min(extent);
        }
    }

    /// True if next to nothing would come of it.
    pub(super) fn is_compaction_hopeless(&self) -> bool {
        self.is_hopeless_for(self.reclaimable_bytes())
    }

    fn is_hopeless_for(&self, dead: u64) -> bool {
        dead < self.log_extent() / HOPELESS_PART && !self.log.is_longest_in_doubt() && !self.log.is_overdrawn(dead)
    }

    /// Bytes of a log in memory that threads took and have not come back to: no record will be there when compaction has passed. Those of
    /// who writes now, which he would only take anew, lie in the log's newer half.
    fn idle_bytes(&self) -> u64 {
        if !self.is_in_memory() {
            return 0;
        }
        let copied = self.log.bounds.copied.load(Relaxed);
        self.unfilled_bytes(copied..copied + self.log_extent() / 2)
    }

    pub(super) fn finds_expired(&self) -> bool {
        self.sample_expired(SMALL_SAMPLE);
        !self.is_compaction_hopeless()
    }

    /// What compaction would give back, as far as is known.
    pub(crate) fn reclaimable_bytes(&self) -> u64 {
        self.dead_bytes() + self.idle_bytes() + self.compaction.due.unused.load(Relaxed)
    }

    /// Looks at some records whether shorter values have left room behind that copies leave out; true if there is enough of it for a pass.
    pub(super) fn finds_unused(&self) -> bool {
        if self.value_width.is_some() || !self.is_in_memory() {
            return false;
        }
        let (mut bytes, mut wasted) = (0, 0);
        for _ in 0..SMALL_SAMPLE {
            let Ok(_pin) = self.epochs.pin_anyway() else { return false };
            let begin = self.log.bounds.begin.load(Acquire).max(self.log.bounds.head.load(Acquire));
            let addresses = self.index.addresses(self.index.sampled_bucket(&self.compaction.due.looks));
            for address in addresses.into_iter().filter(|at| *at >= begin) {
                // SAFETY: in memory under the pin; index entries hold published addresses only.
                let record = unsafe { Record::new(self.log.pointer(address)) };
                bytes += record.bytes(self.layout);
                // What is deleted was counted.
                wasted += if record.header().load(Acquire) & ABSENT == 0 { record.wasted_bytes() } else { 0 };
            }
        }
        let extent = self.log_extent();
        let found = (u128::from(extent) * u128::from(wasted) / u128::from(bytes).max(1)) as u64;
        let Due { unused, unused_until, .. } = &self.compaction.due;
        unused_until.store(self.log.tail(), Relaxed);
        unused.store(if found > extent / UNUSED_PART { found } else { 0 }, Relaxed);
        !self.is_compaction_hopeless()
    }

    /// The space that is taken, to what the target allows. What has been copied and is held is not compaction's to give.
    pub(super) fn taken_to_allowed(&self) -> f64 {
        let extent = self.log.tail().saturating_sub(self.log.bounds.copied.load(Relaxed));
        // The log may have become longer since, and more of it dead.
        let dead = self.dead_bytes().saturating_sub(self.held_back().dead).min(extent);
        let allowed = self.space_amplification * (extent - dead) as f64 + slack(self.segment_bytes) as f64;
        (extent + self.freeable_bytes()) as f64 / allowed.max(1.0)
    }

    /// Nothing is due now.
    pub(crate) fn rest_compaction(&self) {
        self.compaction.due.rested_at.store(self.log_extent(), Relaxed);
    }

    /// True if the background cannot keep up with those who write.
    pub(crate) fn is_compaction_late(&self) -> bool {
        let rested_at = self.compaction.due.rested_at.load(Relaxed);
        let can_be = rested_at > 0 && self.in_background && !self.is_in_memory() && self.caching.is_none();
        can_be && self.log_extent() > LATE * rested_at + LOG_BYTES_MIN + slack(self.segment_bytes)
    }
}
