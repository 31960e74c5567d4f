//! A medium that has no room now and then.
//!
//! The theory: one that is nearly full refuses some calls in a row, and then somebody has made room. A write that is refused may have
//! written a first part of its sectors, or all of them; a file may have been made.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Of the files whose names begin so.
#[derive(Clone, Debug)]
pub struct Scarcity {
    prefix: &'static str,
    random: ChaCha8Rng,
    calls_left: u64,
}

impl Scarcity {
    /// The one of a seed.
    pub fn of(seed: u64, prefix: &'static str) -> Scarcity {
        Scarcity { prefix, random: ChaCha8Rng::seed_from_u64(seed), calls_left: 0 }
    }

    /// What is written all the same of a call that is refused, in sectors.
    pub(super) fn refuses(&mut self, name: &str) -> Option<usize> {
        if !name.starts_with(self.prefix) {
            return None;
        }
        if self.calls_left == 0 && self.random.random_ratio(1, 5) {
            self.calls_left = self.random.random_range(1..=4);
        }
        self.calls_left = self.calls_left.checked_sub(1)?;
        Some(match self.random.random_range(0..4) {
            0 => 0,
            1 => 1,
            2 => self.random.random_range(1..=4),
            _ => usize::MAX,
        })
    }
}
