//! Dropping the oldest stretch: by the driver ahead of need, by whoever needs room when the driver is late.

use super::Caching;
use crate::compaction::HELD_PAUSE;
use crate::device::{SECTOR_BYTES, ZEROS_BYTES_MAX};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image;
use crate::log::{BLOCK_BYTES, NO_LIMIT, device_offset};
use crate::sync::atomic::Ordering::*;
use std::cell::Cell;
use std::time::Instant;

const STRETCH_PART_OF_DISK: u64 = 16;
/// With a listener.
const STRETCH_PART_OF_MEMORY: u64 = 16;
/// The driver keeps this part free, within bounds.
const SPARE_PART: u64 = 32;
const SPARE_BYTES_MAX: u64 = 16 << 20;
/// Reads of this newest part of the memory are free: a sixteenth (the less, the fewer reads go unnoticed; the more, the fewer take the
/// longer way), or all but the oldest quarter where a read is promoted at once.
const NEAR_SIXTEENTHS: u64 = 1;
const NEAR_SIXTEENTHS_ON_DISK: u64 = 12;
/// A store that is opened with less disk than it was made for has files and an index that are not made for it; still the log gets some.
const DEAD_PART_MAX: u64 = 8;
const IMAGES_PART_MAX: u64 = 2;
/// Who does not ask again gets this part of what is free. The shortest record takes 24 bytes, and 20 of two images: a word each, and some
/// buckets.
const FOR_LOG_PART: u64 = 2;
/// The first and the last of the log, images, manifest, scars.
const OTHER_FILES: u64 = 8;

/// While there is a snapshot each who needs room waits so often.
const SNAPSHOT_PAUSES: u32 = 2;
/// So often he tries anew because there was one, and is none any more.
const ANEW: u32 = 16;

/// What the driver keeps free of so much room.
pub(crate) fn spare_of(room: u64) -> u64 {
    (room / SPARE_PART).min(SPARE_BYTES_MAX)
}

impl Engine {
    /// Drops what is oldest until `bytes` more fit. Not under a pin nor with a lock held.
    pub(crate) fn evict_for(&self, caching: &Caching, bytes: u64) -> Result<()> {
        if bytes > self.room_when_empty(caching) {
            return Err(Error::invalid(format!("it is larger than the cache's disk has room for bytes={bytes}")));
        }
        self.move_near(caching);
        let has_room = || self.has_room(caching, bytes);
        let (mut result, mut pauses, mut anew) = (Ok(()), 0, 0);
        let round = self.log.tail();
        while !has_room() && result.is_ok() {
            // Nothing that goes would make room for it: the budget is lower than when it was found to fit.
            if caching.is_in_memory() && bytes > self.log.budget.load(Relaxed) {
                result = Err(Error::Full);
                break;
            }
            // Once through the log what is kept has left too little room.
            if self.log.bounds.compacted.load(Relaxed) >= round {
                caching.unpin(true);
            }
            // Before: who held something may let go as soon as it was in the way.
            let was_held = self.holds.is_any();
            result = match self.move_stretch_for_room(Some(caching), || !has_room()) {
                Ok(true) => Ok(()),
                Ok(false) if self.epochs.is_closed() => Err(Error::Closed),
                Ok(false) if self.holds.is_any() && pauses < self.hold_pauses(SNAPSHOT_PAUSES) => {
                    std::thread::sleep(HELD_PAUSE);
                    pauses += 1;
                    Ok(())
                }
                // Nobody holds it any more; or who did came after that question, and has let go.
                Ok(false) if anew == 0 || was_held && anew < ANEW && !self.holds.is_any() => {
                    anew += 1;
                    Ok(())
                }
                Ok(false) => Err(Error::Full),
                Err(error) => Err(error),
            };
            // Each time: all together they may be more than the budget.
            caching.tell();
        }
        caching.unpin(false);
        self.limit_log(caching, bytes);
        caching.tell();
        result
    }

    /// The driver's share: one stretch if there is little room. True if one was dropped.
    pub(crate) fn evict_if_due(&self, caching: &Caching) -> Result<bool> {
        self.move_near(caching);
        if caching.has_departed() {
            caching.tell_unless_told(self.due_lines_between());
            // Still: somebody else is at it. Who needs room meanwhile drops something himself, and waits for that.
            if caching.has_departed() {
                return Ok(false);
            }
        }
        let spare = spare_of(self.room_bytes(caching));
        if self.has_room(caching, spare) || self.check_writable().is_err() {
            self.limit_log(caching, 0);
            return Ok(false);
        }
        let dropped = self.try_move_stretch(caching, || !self.has_room(caching, spare));
        self.limit_log(caching, 0);
        caching.tell_unless_told(self.due_lines_between());
        dropped
    }

    /// Draws lines that are due, but for no more than half of the time: between pairs that a listener is told of.
    fn due_lines_between(&self) -> impl Fn() {
        let next = Cell::new(Instant::now());
        move || {
            let begun = Instant::now();
            if begun >= next.get() {
                self.draw_due_line();
                next.set(Instant::now() + begun.elapsed());
            }
        }
    }

    /// Whoever would write more than the device has room for asks for some, and before: each record of the log may be another entry in two
    /// images. `bytes` are what was asked for. What was promised to somebody holds, as long as there is room at all: he may need it bit by
    /// bit.
    pub(crate) fn limit_log(&self, caching: &Caching, bytes: u64) {
        if !caching.is_in_memory() {
            let tail = self.log.tail();
            let room = self.disk_room(caching, tail);
            let promised = tail + (room / FOR_LOG_PART).max(bytes.min(room));
            let limit = |old: u64| Some(if old == NO_LIMIT { promised } else { old.max(promised).min(tail + room) });
            // It always gives one.
            let _ = self.log.limit.fetch_update(Relaxed, Relaxed, limit);
        }
    }

    /// How much is dropped at once: on a device it costs two syncs. What is to be told is in memory until then.
    pub(crate) fn evicted_stretch(&self, caching: &Caching) -> u64 {
        let most = if caching.listens() { self.log.budget.load(Relaxed) / STRETCH_PART_OF_MEMORY } else { u64::MAX };
        (caching.disk_bytes / STRETCH_PART_OF_DISK).min(most)
    }

    fn room_bytes(&self, caching: &Caching) -> u64 {
        if caching.is_in_memory() { self.log.budget.load(Relaxed) } else { caching.disk_bytes }
    }

    fn has_room(&self, caching: &Caching, bytes: u64) -> bool {
        if caching.is_in_memory() {
            self.log_bytes() + bytes <= self.log.budget.load(Relaxed)
        } else {
            bytes <= self.disk_room(caching, self.log.tail())
        }
    }

    /// More bytes of log may have no room on the device even where nothing else is: the log may begin at the end of a file, and the index
    /// does not get smaller at once.
    fn room_when_empty(&self, caching: &Caching) -> u64 {
        if caching.is_in_memory() {
            return u64::MAX;
        }
        let dead = self.segment_bytes.min(caching.disk_bytes / DEAD_PART_MAX);
        let images = (2 * image::bytes_of_buckets(&self.index)).min(caching.disk_bytes / IMAGES_PART_MAX);
        let others = dead + images + OTHER_FILES * SECTOR_BYTES as u64 + ZEROS_BYTES_MAX;
        caching.disk_bytes.saturating_sub(others) / SECTOR_BYTES as u64 * BLOCK_BYTES
    }

    /// So many bytes of log behind `tail` have room on the device.
    fn disk_room(&self, caching: &Caching, tail: u64) -> u64 {
        caching.disk_bytes.saturating_sub(self.disk_bytes_taken(caching, tail)) / SECTOR_BYTES as u64 * BLOCK_BYTES
    }

    /// Bytes of the device when the log is there up to `tail`: files that go as a whole, each with a sector for the file system, zeros
    /// ahead of short writes, and two images of the index while one takes the other's place.
    fn disk_bytes_taken(&self, caching: &Caching, tail: u64) -> u64 {
        let begin = device_offset(self.log.bounds.discarded.load(Relaxed));
        let log = device_offset(tail).saturating_sub(begin);
        let dead = begin.checked_rem(self.segment_bytes).unwrap_or(0).min(caching.disk_bytes / DEAD_PART_MAX);
        let files = log.checked_div(self.segment_bytes).unwrap_or(0) + OTHER_FILES;
        let images = (2 * image::bytes_of(&self.index)).min(caching.disk_bytes / IMAGES_PART_MAX);
        log + dead + files * SECTOR_BYTES as u64 + images + ZEROS_BYTES_MAX
    }

    /// Where reads begin to be noticed follows the tail.
    fn move_near(&self, caching: &Caching) {
        let sixteenths = if caching.is_in_memory() { NEAR_SIXTEENTHS } else { NEAR_SIXTEENTHS_ON_DISK };
        let free = self.log.budget.load(Relaxed) / 16 * sixteenths;
        // A store that is not full drops nothing yet.
        self.log.bounds.raise_near(self.log.tail().saturating_sub(free));
    }
}
