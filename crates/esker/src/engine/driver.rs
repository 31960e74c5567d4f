//! The driver: a thread of the store's that does early what others would have to wait for.

use super::Engine;
use crate::commit::Durability;
use crate::epoch::Counter;
use crate::error::Result;
use crate::expiry::SAMPLE;
use crate::sync::Mutex;
use crate::sync::{lock, try_lock};
use std::time::{Duration, Instant};

const DRIVER_PAUSE: Duration = Duration::from_millis(1);
/// After which a slot of the manifest speaks of lines that told of themselves.
const SLOT_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at how much has expired.
const SAMPLE_PAUSE: Duration = Duration::from_millis(250);
/// Between two looks whether there is room again for what could not be written.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Until compaction is tried again where it failed, and so many times as long when it fails again and again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSES_MAX: u32 = 64;

/// When a line was last drawn in the background, and a slot written for those that told of themselves.
pub(super) struct Drawn {
    line: Instant,
    slot: Instant,
}

impl Drawn {
    pub(super) fn now() -> Mutex<Self> {
        Mutex::new(Self { line: Instant::now(), slot: Instant::now() })
    }
}

/// What cannot be read now will hardly be in a millisecond: what failed is tried again more and more rarely.
#[derive(Default)]
pub(crate) struct Retries {
    pauses: u32,
    last: Option<Instant>,
}

impl Retries {
    pub(crate) fn are_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= RETRY_PAUSE * self.pauses)
    }

    pub(crate) fn note(&mut self, has_failed: bool) {
        *self = match has_failed {
            true => Self { pauses: (self.pauses * 2).clamp(1, RETRY_PAUSES_MAX), last: Some(Instant::now()) },
            false => Self::default(),
        };
    }
}

impl Engine {
    /// The driver thread's loop.
    pub(crate) fn run_driver(&self) {
        std::thread::scope(|scope| {
            let named = || std::thread::Builder::new().name("esker-image".into());
            // A failure is latched; without a thread there is no image, until one is due again.
            let take_image = || named().spawn_scoped(scope, || _ = self.take_image()).is_ok();
            while !self.epochs.is_closed() {
                let driven = self.guarded(|| {
                    self.drive(take_image);
                    Ok(())
                });
                if driven.is_err() {
                    std::thread::park_timeout(DRIVER_PAUSE);
                }
            }
        });
    }

    /// `take_image` takes one elsewhere: lines must not wait for it.
    fn drive(&self, take_image: impl Fn() -> bool) {
        let (mut last_sample, mut last_try, mut retries) = (Instant::now(), Instant::now(), Retries::default());
        let mut filled = 0;
        while !self.epochs.is_closed() {
            self.log.bell.answer();
            self.share_budget();
            if self.may_go_on() && last_try.elapsed() >= ROOM_PAUSE {
                let _ = self.go_on();
                last_try = Instant::now();
            }
            if !self.is_in_memory() {
                let guard = lock(&self.boundaries);
                // A failure is latched; whoever writes hears of it.
                let _ = self.shift_unless_closed(&guard, 0);
            }
            self.weigh_holes();
            self.ripen_holes();
            self.draw_due_line();
            if last_sample.elapsed() >= SAMPLE_PAUSE {
                last_sample = Instant::now();
                self.sample_expired(SAMPLE);
                self.note_filled(&mut filled);
            }
            // A backup may hold it: lines must not wait for that.
            let busy = !self.is_compaction_held() && self.reclaim_again(&mut retries) | self.shrink_index_if_due();
            if self.is_image_due() && !self.is_temporary && self.check_writable().is_ok() {
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

    /// How much of holes was filled since it was so much.
    fn note_filled(&self, before: &mut u64) {
        let filled = self.epochs.counted(Counter::FilledByte);
        self.log.holes.were_filled(filled - std::mem::replace(before, filled));
    }

    /// A line, if durability asks for one by now, and a slot that speaks of those that told of themselves.
    pub(crate) fn draw_due_line(&self) {
        // Whoever is at it does it for all.
        let Some(mut drawn) = try_lock(&self.drawn) else { return };
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

    /// The driver's share of making space come back, unless that has just failed. What failed in writing is latched, the rest is told in
    /// `Stats`.
    fn reclaim_again(&self, retries: &mut Retries) -> bool {
        if !retries.are_due() {
            return false;
        }
        let reclaimed = self.reclaim_if_due();
        retries.note(reclaimed.is_err());
        reclaimed.unwrap_or(false)
    }

    /// The driver's share of making space come back.
    fn reclaim_if_due(&self) -> Result<bool> {
        match &self.caching {
            Some(caching) => self.evict_if_due(caching),
            None => self.compact_if_due(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_more_and_more_rarely() {
        let mut retries = Retries::default();
        assert!(retries.are_due());
        for pauses in [1, 2, 4, 8, 16, 32, 64, 64] {
            retries.note(true);
            assert_eq!(retries.pauses, pauses);
            assert!(!retries.are_due());
        }
        retries.note(false);
        assert!(retries.are_due() && retries.pauses == 0);
    }
}
