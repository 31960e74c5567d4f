//! What a cache may write to its device: flash wears out by what is written, so a cache that keeps whatever it is shown wears it out soonest.
//!
//! The allowance grows with time; what the log's tail has gone on since was written, or will be. Up to a minute's worth may be saved up. Who asks
//! whether something more is to be kept is told no while it is overdrawn: then a loaded value is handed out and not put, and a cold one that was
//! read is not copied. Puts are always done, and overdraw it: a cache never shows an older value than the last one.

use crate::engine::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::*};

/// What is saved up lasts so long.
const SAVED_SECONDS: u64 = 60;

pub(crate) struct Writes {
    bytes_per_second: u64,
    state: Mutex<Option<State>>,
    refused: AtomicU64,
}

struct State {
    /// How far the tail may have gone.
    until: u64,
    /// In milliseconds.
    at: u64,
}

impl Writes {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, state: Mutex::new(None), refused: AtomicU64::new(0) }
    }

    /// True if more may be kept now, with the log's tail there.
    pub(super) fn admits(&self, tail: u64, now: u64) -> bool {
        let most = tail.saturating_add(self.bytes_per_second.saturating_mul(SAVED_SECONDS));
        let mut state = lock(&self.state);
        let state = state.get_or_insert(State { until: most, at: now });
        let earned = u128::from(self.bytes_per_second) * u128::from(now.saturating_sub(state.at)) / 1000;
        // A clock that was set back begins there; and what is less than a byte is earned by and by.
        if earned > 0 || now < state.at {
            state.at = now;
        }
        state.until = state.until.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).min(most);
        let admits = tail < state.until;
        self.refused.fetch_add(u64::from(!admits), Relaxed);
        admits
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_grows_with_time_and_is_not_saved_for_ever() {
        let writes = Writes::new(1000);
        // A minute is saved up at the beginning.
        assert!(writes.admits(5, 10_000) && writes.admits(60_004, 10_000) && !writes.admits(60_005, 10_000));
        // Every call earns what time has brought, were it less than a byte.
        (10_001..=10_999).for_each(|now| assert!(!writes.admits(61_005, now)));
        assert!(writes.admits(61_004, 11_000) && !writes.admits(61_005, 11_000));
        // Overdrawn by a minute, it takes one to be even.
        assert!(!writes.admits(121_005, 70_999) && writes.admits(121_004, 71_000));
        // A day brings no more than a minute's worth.
        assert!(writes.admits(121_005, 86_400_000) && writes.admits(181_004, 86_400_000) && !writes.admits(181_005, 86_400_000));
        // Set back, the clock earns nothing, and goes on.
        assert!(!writes.admits(181_005, 0) && writes.admits(181_005, 1));
        assert_eq!(writes.refused(), 999 + 5);
        let (slow, none) = (Writes::new(1), Writes::new(u64::MAX));
        assert!(slow.admits(0, 0) && !slow.admits(60, 0) && !slow.admits(60, 999) && slow.admits(60, 1000));
        assert!(none.admits(1 << 47, 0) && none.admits(1 << 47, u64::MAX));
    }
}
