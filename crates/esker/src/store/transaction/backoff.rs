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

impl Backoff {
    /// Waits a random time, longer with each attempt; false when that was the last one.
    pub(super) fn wait(&mut self) -> bool {
        self.attempts += 1;
        if self.attempts <= YIELDS {
            thread::yield_now();
        } else {
            let most = (1 << (self.attempts - YIELDS).min(20)).min(PAUSE_MICROS_MAX);
            let drawn = self.random.get_or_insert_with(RandomState::new).hash_one(self.attempts);
            std::thread::sleep(Duration::from_micros(drawn % most));
        }
        self.attempts < ATTEMPTS
    }
}
