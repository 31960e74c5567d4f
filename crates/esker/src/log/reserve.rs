//! What of a log in memory is left to compaction, which needs room before it makes room.
//!
//! That is a part of the log's share for a stretch of short records, and besides as much as a copy of the longest record takes: nothing of
//! that goes before its copy is there. So the length of the longest record is known, to within the longest of all that are in memory or
//! were a while ago: it is noted before a place for it is taken, when whoever asks must leave the reserve that it makes larger, and
//! forgotten some time after it has gone. On a device there is always room to be made, and no reserve.
//!
//! **The overdraft** is a part of it for those who put something in the place of as much, or delete. What a line has frozen does not change
//! in place, so in a full store all of them would need room, and what they kill is what makes some.

use super::{BLOCK_BYTES, Log, PIECE_BYTES, PIECE_RECORD_MAX};
use crate::sync::atomic::{AtomicU64, Ordering::*};
use std::ops::Range;

/// So much at least, and this part of the log's share.
const RESERVE_BYTES_MIN: u64 = 512 << 10;
const RESERVE_PART: u64 = 32;
/// Of a longer one what threads need for a stretch together suffices, or a smaller part: dead records never lie there, and the more of them
/// there are the less is copied.
const RESERVE_BYTES: u64 = 3 << 19;
const RESERVE_PART_OF_LONG: u64 = 128;
const DOUBTS: u64 = 2;
/// What compaction needs for a stretch is half of it.
const OVERDRAFT_PART: u64 = 4;
/// Some pieces that are not filled yet, and as much as is worth a way through the log.
const OVERDRAFT_BYTES_MIN: u64 = 256 << 10;
/// So much of it there is in any case.
const REPLACED_BYTES_LEAST: u64 = 16 << 10;

/// No record in memory has more bytes: of those below `until`, and of those above it. When all below are gone the upper ones become the
/// lower ones.
///
/// Whoever makes a long record notes it before it has a place, and again under the same pin when it has: should `until` have moved to below
/// that place in between, then it does not move again before a drain, and that waits for the second note.
pub(super) struct Longest {
    until: AtomicU64,
    below: AtomicU64,
    above: AtomicU64,
    /// So many times `until` must move before a record that went is forgotten.
    doubts: AtomicU64,
}

impl Longest {
    pub(super) fn new(tail: u64) -> Self {
        let none = || AtomicU64::new(PIECE_RECORD_MAX);
        Self { until: AtomicU64::new(tail), below: none(), above: none(), doubts: AtomicU64::new(0) }
    }

    pub(super) fn bytes(&self) -> u64 {
        // Acquire, and in this order: who finds it gone above finds it below.
        let above = self.above.load(Acquire);
        above.max(self.below.load(Relaxed))
    }

    pub(super) fn note(&self, bytes: u64) {
        self.above.fetch_max(bytes, Relaxed);
    }

    /// Behind a drain.
    pub(super) fn forget_below(&self, evicted: u64, tail: u64) {
        if evicted >= self.until.load(Relaxed) {
            // First: who looks meanwhile finds it in one of them.
            self.below.fetch_max(self.above.load(Relaxed), AcqRel);
            let above = self.above.swap(PIECE_RECORD_MAX, AcqRel);
            self.below.store(above, Release);
            self.until.store(tail, Relaxed);
            self.doubts.store(self.doubts.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }
}

impl Log {
    /// Of the log's share of memory this is left to compaction: for a stretch of short records, and for the longest, of which nothing goes
    /// before its copy is there. On a device there is always room to be made.
    pub(crate) fn reserve_of(&self, share: u64) -> u64 {
        if self.device.is_some() { 0 } else { self.reserve_with(share, self.longest.bytes()) }
    }

    fn reserve_with(&self, share: u64, longest: u64) -> u64 {
        let of_share = (share / RESERVE_PART).min(RESERVE_BYTES.max(share / RESERVE_PART_OF_LONG));
        (of_share.max(RESERVE_BYTES_MIN) + self.copy_bytes(share, longest)).min(share).max(RESERVE_BYTES_MIN)
    }

    /// What a copy of the longest record takes, if that does not come in pieces.
    fn copy_bytes(&self, share: u64, longest: u64) -> u64 {
        if longest <= PIECE_RECORD_MAX {
            return 0;
        }
        let copy = Self::room_of(longest);
        // A cache whose index has left it little holds a long value until that is old, or it could not hold it at all.
        if self.is_lossy { copy.min(share.saturating_sub(RESERVE_BYTES_MIN + 2 * copy)) } else { copy }
    }

    /// So much more must be left to compaction than is, with the records that have come since it was set and with one of so many bytes.
    pub(super) fn reserve_lacking(&self, bytes: u64) -> u64 {
        let reserve = self.reserve.load(Relaxed);
        if reserve == 0 {
            return 0;
        }
        let share = self.budget.load(Relaxed) + reserve;
        self.reserve_with(share, self.longest.bytes().max(bytes)).saturating_sub(reserve)
    }

    /// So many bytes fit the log's memory if none of their records is longer than that.
    pub(crate) fn most_of(&self, longest: u64) -> u64 {
        self.budget.load(Relaxed).saturating_sub(self.reserve_lacking(longest))
    }

    /// The room to ask for where a record found none: with what is left to compaction if it will be the longest.
    pub(crate) fn room_for(&self, bytes: u64) -> u64 {
        if bytes > PIECE_RECORD_MAX { bytes.next_multiple_of(BLOCK_BYTES) + self.reserve_for_longest(bytes) } else { bytes }
    }

    /// What must be left to compaction besides if the longest record has so many bytes.
    pub(crate) fn reserve_for_longest(&self, bytes: u64) -> u64 {
        let (reserve, longest) = (self.reserve.load(Relaxed), self.longest.bytes());
        if reserve == 0 || bytes <= longest {
            return 0;
        }
        let share = self.budget.load(Relaxed) + reserve;
        self.reserve_with(share, bytes).saturating_sub(self.reserve_with(share, longest))
    }

    /// A record of so many bytes has gone: if it was the longest there is more room.
    pub(crate) fn note_gone(&self, bytes: u64) {
        if bytes > PIECE_RECORD_MAX {
            self.longest.doubts.store(DOUBTS, Relaxed);
        }
    }

    /// True if all records may be shorter than what is left to compaction for the longest. Once or twice through the log, and it is known.
    pub(crate) fn is_longest_in_doubt(&self) -> bool {
        let reserve = self.reserve.load(Relaxed);
        self.longest.doubts.load(Relaxed) > 0 && self.reserve_with(self.budget.load(Relaxed) + reserve, 0) < reserve
    }

    /// So much of it is for those who make room by what they kill.
    fn overdraft(&self) -> u64 {
        let reserve = self.reserve_for_short();
        (reserve / OVERDRAFT_PART).max(OVERDRAFT_BYTES_MIN.min(reserve / 2))
    }

    /// The same by where it begins and ends. Where a lowered budget has left less than the reserve it begins with what was held.
    pub(super) fn overdrawn(&self) -> Range<u64> {
        let (budget, overdraft) = (self.budget.load(Relaxed), self.overdraft());
        let most = (budget + self.reserve.load(Relaxed)).saturating_sub(self.reserve_least());
        // Copies that were under way may have counted.
        let lowered = self.lowered.load(Relaxed).min(most.saturating_sub(REPLACED_BYTES_LEAST));
        if lowered <= budget {
            return budget..budget + overdraft;
        }
        lowered..(lowered + overdraft).min(most).max(budget + overdraft)
    }

    /// True if they have had half of that, and some of what they killed is still there: worth a way through the log, however little that is
    /// of it. (Not all of what was had need be theirs: copies leave some of their pieces unused.)
    pub(crate) fn is_overdrawn(&self, dead: u64) -> bool {
        let overdrawn = self.overdrawn();
        let half = overdrawn.end.saturating_sub(overdrawn.start) / 2;
        self.device.is_none() && dead > half / 4 && self.held_with(0) > overdrawn.start + half
    }

    /// The least share of the memory with which a log that holds so much can be compacted, and something in it be deleted.
    pub(crate) fn share_least(&self, held: u64) -> u64 {
        held + self.reserve_least() + REPLACED_BYTES_LEAST
    }

    /// With less above it than this the log cannot be compacted.
    fn reserve_least(&self) -> u64 {
        2 * (PIECE_BYTES + BLOCK_BYTES) + self.copy_bytes(u64::MAX, self.longest.bytes())
    }

    /// A budget was granted by which this is held: of the reserve, too, perhaps.
    pub(crate) fn note_lowered(&self, held: u64) {
        self.lowered.store(held, Relaxed);
    }

    /// What there is fits the budget again.
    pub(crate) fn forget_lowered(&self) {
        if self.lowered.load(Relaxed) != 0 && self.held_with(0) <= self.budget.load(Relaxed) {
            self.lowered.store(0, Relaxed);
        }
    }

    /// True if so many threads may copy a stretch of so many bytes in any order: there is room for all of it, whatever those who write take
    /// meanwhile, and for what each thread leaves of a piece. Where the room ended in the midst, what was copied behind that would have
    /// been copied in vain, and never come back.
    pub(crate) fn suffices_for(&self, stretch: u64, threads: u64) -> bool {
        let budget = self.budget.load(Relaxed);
        let taken = self.held_with(0).max(budget + self.overdraft());
        // A quarter of a piece at most is left by records that do not fit.
        let copies = stretch + stretch / 3 + threads * (PIECE_BYTES + BLOCK_BYTES);
        taken + copies <= budget + self.reserve_for_short()
    }

    /// What the short records of a stretch may take of the reserve.
    pub(crate) fn reserve_for_short(&self) -> u64 {
        let reserve = self.reserve.load(Relaxed);
        let copy = self.copy_bytes(self.budget.load(Relaxed) + reserve, self.longest.bytes());
        reserve.saturating_sub(copy).max(RESERVE_BYTES_MIN.min(reserve))
    }
}
