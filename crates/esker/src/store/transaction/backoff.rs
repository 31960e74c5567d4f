//! Pauses between the attempts at a transaction, so that those who met do not meet again.

use crate::sync::thread;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// Attempts before a conflict is the caller's.
const ATTEMPTS: u32 = 100;
/// Attempts that only give way to others.
const YIELDS: u32 = 4;
const PAUSE_MICROS_MAX: u64 = 2000;

#[derive(Default)]
pub(super) struct Backoff {
    attempts: u32,
    random: Option<RandomState>,
}

/// What is due before the next attempt.
pub(super) enum Pause {
    GiveWay,
    Rest(Duration),
}

impl Backoff {
    /// A random time, longer with each attempt; `None` when that was the last one.
    pub(super) fn next(&mut self) -> Option<Pause> {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS {
            return None;
        }
        if self.attempts <= YIELDS {
            return Some(Pause::GiveWay);
        }
        let most = (1 << (self.attempts - YIELDS).min(20)).min(PAUSE_MICROS_MAX);
        let drawn = self.random.get_or_insert_with(RandomState::new).hash_one(self.attempts);
        Some(Pause::Rest(Duration::from_micros(drawn % most)))
    }

    /// Waits on this thread; false when that was the last attempt.
    pub(super) fn wait(&mut self) -> bool {
        match self.next() {
            Some(Pause::GiveWay) => thread::yield_now(),
            Some(Pause::Rest(span)) => std::thread::sleep(span),
            None => return false,
        }
        true
    }
}
