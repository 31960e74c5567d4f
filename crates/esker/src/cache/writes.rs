//! What a cache may write to its device: flash wears out by what is written, so a cache that keeps whatever it is shown wears it out
//! soonest.
//!
//! The allowance grows with time; what the log's tail has gone on since was written, or will be. Up to a minute's worth may be saved up.
//! Who asks whether something more is to be kept is told no while it is overdrawn: then a loaded value is handed out and not put, and a
//! cold one that was read is not copied. Puts are always done, and overdraw it: a cache never shows an older value than the last one.

use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, lock};

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

    /// True if so many bytes more may be kept now. `look`: where the log's tail is, and what time.
    pub(super) fn admits(&self, bytes: u64, look: impl FnOnce() -> (u64, u64)) -> bool {
        let mut state = lock(&self.state);
        // Under the lock: who looked earlier and came later would take back time, which others would earn once more.
        let (tail, now) = look();
        let most = tail.saturating_add(self.bytes_per_second.saturating_mul(SAVED_SECONDS));
        let state = state.get_or_insert(State { until: most, at: now });
        let earned = u128::from(self.bytes_per_second) * u128::from(now.saturating_sub(state.at)) / 1000;
        // A clock that was set back begins there; and what is less than a byte is earned by and by.
        if earned > 0 || now < state.at {
            state.at = now;
        }
        state.until = state.until.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).min(most);
        let admits = tail.saturating_add(bytes) <= state.until;
        self.refused.fetch_add(u64::from(!admits), Relaxed);
        admits
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn admits(writes: &Writes, tail: u64, now: u64) -> bool {
        writes.admits(1, || (tail, now))
    }

    #[test]
    fn an_allowance_grows_with_time_and_is_not_saved_for_ever() {
        let writes = Writes::new(1000);
        // A minute is saved up at the beginning.
        assert!(admits(&writes, 5, 10_000) && admits(&writes, 60_004, 10_000) && !admits(&writes, 60_005, 10_000));
        // Every call earns what time has brought, were it less than a byte.
        (10_001..=10_999).for_each(|now| assert!(!admits(&writes, 61_005, now)));
        assert!(admits(&writes, 61_004, 11_000) && !admits(&writes, 61_005, 11_000));
        // Overdrawn by a minute, it takes one to be even.
        assert!(!admits(&writes, 121_005, 70_999) && admits(&writes, 121_004, 71_000));
        // A day brings no more than a minute's worth.
        assert!(admits(&writes, 121_005, 86_400_000) && admits(&writes, 181_004, 86_400_000) && !admits(&writes, 181_005, 86_400_000));
        // Set back, the clock earns nothing, and goes on.
        assert!(!admits(&writes, 181_005, 0) && admits(&writes, 181_005, 1));
        assert_eq!(writes.refused(), 999 + 5);
        // What is longer than a minute's worth never is.
        let writes = Writes::new(1000);
        assert!(writes.admits(60_000, || (7, 0)) && !writes.admits(60_001, || (7, 0)) && !writes.admits(u64::MAX, || (7, 90_000)));
        let (slow, none) = (Writes::new(1), Writes::new(u64::MAX));
        assert!(admits(&slow, 0, 0) && !admits(&slow, 60, 0) && !admits(&slow, 60, 999) && admits(&slow, 60, 1000));
        assert!(admits(&none, 1 << 47, 0) && admits(&none, 1 << 47, u64::MAX));
    }

    /// Threads that come one after the other may have looked at the clock in another order.
    #[test]
    fn time_is_earned_once() {
        const RATE: u64 = 100_000;
        let (writes, tail, clock) = (Writes::new(RATE), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        if writes.admits(1, || (tail.load(SeqCst), clock.fetch_add(1, SeqCst) / 100)) {
                            tail.fetch_add(10_000, SeqCst);
                        }
                    }
                });
            }
        });
        let (written, may) = (tail.load(SeqCst), RATE * SAVED_SECONDS + RATE * 4 + 8 * 10_000);
        assert!(written <= may, "{written} of {may}");
    }
}
