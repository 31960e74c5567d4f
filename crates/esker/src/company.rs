//! Whether a line is drawn now, or waits for more calls to share it.
//!
//! Threads that write one durable value after the other come right back when their line has ended. Drawn at once, the next line would leave
//! without them: they would be two halves, each waiting for the other's line. So it waits for those who came right back the last time, that
//! is, asked again before the line after theirs had ended. n threads that need z between two calls then have n calls in each d + z, if a
//! line takes d, instead of n in each 2 d: more, and sooner, as long as z < d.
//!
//! **When it is enough.** Once all are there; or when one more would come later than is worth waiting for: calls per time are most if a
//! line is drawn as soon as the rate at which they come falls below the rate so far, `count / (waited + took)`. If nobody comes at all for
//! half of what the last line took, whoever waits with an end to his sleep (`group.rs`) does not go on.
//!
//! **Who waits in vain is hasty**: after a line that was drawn without all of its company the next one does not wait, and each time it
//! happens again twice as many do not. So threads whose pauses are long, or of any length, lose a few hundredths at most.

use std::time::{Duration, Instant};

/// The longest that a line waits for the next call.
const PATIENCE_MAX: Duration = Duration::from_micros(500);
/// Lines that do not wait after others waited in vain, at most.
const HASTE_MAX: u32 = 32;
/// Of the times between calls, each new one counts for so much of their mean.
const GAP_PART: u32 = 8;

#[derive(Default)]
pub(crate) struct Company {
    /// Those who came right back, by the parity of the line they wait for.
    returned: [u32; 2],
    /// So many calls are waited for with the next line.
    expected: u32,
    ended_at: Option<Instant>,
    took: Duration,
    /// When somebody asked last since a line ended, and the mean time from one to the next.
    asked_at: Option<Instant>,
    gap: Duration,
    /// Lines that will not wait, and how many it will be the next time.
    hasty: u32,
    haste: u32,
}

impl Company {
    /// A call comes that waits for a line of this parity.
    pub(crate) fn asks(&mut self, side: usize, came_right_back: bool, now: Instant) {
        self.returned[side] += u32::from(came_right_back);
        if let Some(before) = self.asked_at {
            self.gap = (self.gap * (GAP_PART - 1) + now.saturating_duration_since(before)) / GAP_PART;
        }
        self.asked_at = Some(now);
    }

    /// True if a line of so many calls is better drawn now. It is then.
    pub(crate) fn is_enough(&mut self, count: u32) -> bool {
        if count >= self.expected {
            if self.expected > 1 {
                self.haste = self.haste.saturating_sub(1);
            }
            return true;
        }
        let waited = self.asked_at.zip(self.ended_at).map_or(Duration::ZERO, |(asked, ended)| asked.saturating_duration_since(ended));
        let is_enough = self.gap * count > waited + self.took;
        if is_enough {
            self.waited_in_vain();
        }
        is_enough
    }

    /// How long to wait for one more.
    pub(crate) fn patience(&self) -> Duration {
        (self.took / 2).min(PATIENCE_MAX)
    }

    pub(crate) fn waited_in_vain(&mut self) {
        self.haste = (self.haste * 2).clamp(1, HASTE_MAX);
        self.hasty = self.haste;
    }

    /// A line of this parity has ended, and so many wait for the next one.
    pub(crate) fn line_ended(&mut self, side: usize, waiting: u32, took: Duration, now: Instant) {
        let returned = std::mem::take(&mut self.returned[side]);
        self.expected = if self.hasty == 0 { waiting + returned } else { 0 };
        self.hasty = self.hasty.saturating_sub(1);
        (self.ended_at, self.took) = (Some(now), took);
        (self.asked_at, self.gap) = (None, Duration::ZERO);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(100);

    /// A company after a line of calls that had come right back.
    fn of(returned: u32, now: Instant) -> Company {
        let mut company = Company::default();
        (0..returned).for_each(|_| company.asks(0, true, now));
        company.line_ended(0, 0, TOOK, now);
        company
    }

    /// How many calls the next line has if they come at these microseconds after the end of the last one; `None` if it waits for more.
    fn drawn_with(company: &mut Company, ended: Instant, coming: impl IntoIterator<Item = u64>) -> Option<u32> {
        coming.into_iter().zip(1..).find_map(|(micros, count)| {
            company.asks(1, true, ended + Duration::from_micros(micros));
            company.is_enough(count).then_some(count)
        })
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let now = Instant::now();
        assert!(Company::default().is_enough(1));
        assert_eq!(drawn_with(&mut of(1, now), now, [5]), Some(1));
    }

    #[test]
    fn all_who_come_right_back_share_a_line() {
        let now = Instant::now();
        assert_eq!(drawn_with(&mut of(64, now), now, (0..64).map(|n| 20 + 3 * n)), Some(64));
        assert_eq!(drawn_with(&mut of(8, now), now, [40, 41, 42, 43, 44, 45, 46]), None);
    }

    #[test]
    fn a_line_leaves_when_the_next_call_is_too_far() {
        let now = Instant::now();
        // Twenty at once, then one in each 50 us: one more would make all wait longer than a line takes.
        let coming = (0..20).chain((1..30).map(|n| 20 + 50 * n));
        let drawn = drawn_with(&mut of(64, now), now, coming).expect("not all are waited for");
        assert!((20..25).contains(&drawn), "{drawn}");
    }

    #[test]
    fn in_vain_once_or_more_often() {
        let now = Instant::now();
        let mut company = of(2, now);
        let mut hasty_lines = || {
            company.waited_in_vain();
            (0..100).find(|_| {
                (0..2).for_each(|_| company.asks(0, true, now));
                company.line_ended(0, 0, TOOK, now);
                !company.is_enough(1)
            })
        };
        assert_eq!([(); 8].map(|()| hasty_lines()), [1, 2, 4, 8, 16, 32, 32, 32].map(Some));
        // Each company that is complete makes the next time shorter by a line.
        (0..31).for_each(|_| assert!(company.is_enough(2)));
        company.waited_in_vain();
        assert_eq!(company.hasty, 2);
    }
}
