//! Expiry: keys that end by themselves.
//!
//! A record may say until when it holds (`record.rs`). From that instant on every operation takes its key for absent; nothing
//! need happen for it, and nobody is told. The record itself is a tombstone by then: compaction drops it as one.
//!
//! **Whether enough has expired for compaction to be due** is estimated, not counted: a count would have to know what each
//! superseded record would have become, and drift. The driver looks at some of the index's entries now and then, and infers
//! from them. That needs no memory, forgets nothing over a restart and corrects itself. Who writes no expiring record pays nothing:
//! the driver looks only while it has reason to believe that there are some.

use crate::engine::Engine;
use crate::epoch::Barred;
use crate::error::Result;
use crate::record::{self, NEVER, Record};
use crate::store::chain;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::types::Layout;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What tells a store the time. Expiry goes by the wall clock, so that it means the same after a restart.
pub trait Clock: Send + Sync + Debug {
    /// The time now. Should it step back, what had expired and was not yet dropped is there again. Asked in the midst of calls: using a store from inside
    /// is [`Error::Invalid`](crate::Error::Invalid), and a clock that panics is taken to say what it said before.
    fn now(&self) -> SystemTime;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A clock that stands still until it is moved: tests of expiry need not sleep.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `now`, to the millisecond.
    #[must_use]
    pub fn new(now: SystemTime) -> Self {
        Self(AtomicU64::new(millis(now)))
    }

    /// Moves it forward, by whole milliseconds, to the end of time at most.
    pub fn advance(&self, by: Duration) {
        let later = |now: u64| Some(now.saturating_add(whole_millis(by)));
        // It always gives one.
        let _ = self.0.fetch_update(SeqCst, SeqCst, later);
    }
}

impl Default for ManualClock {
    /// A clock that stands somewhere in the year 2001.
    fn default() -> Self {
        Self::new(UNIX_EPOCH + Duration::from_secs(1_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        instant(self.0.load(SeqCst))
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(NEVER).min(NEVER - 1))
}

/// The same as a time.
pub(crate) fn instant(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// A time span in milliseconds; a part of one counts as one.
pub(crate) fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER)
}

/// What the clock says is written down when it is so much later: others look at that.
const SAID_MILLIS: u64 = 1000;
/// Entries looked at in a round, and what a round weighs against those before it: an eighth of a second's worth of reads at most.
const SAMPLE: u64 = 128;
const ROUND_SHARE: u64 = 4;
/// Rounds without any expiring record until it is believed that there are none.
const ROUNDS_IN_VAIN: u64 = 16;
/// Consecutive looks lie this part of the table apart: the golden ratio spreads them evenly.
const STRIDE: f64 = 0.618_033_988_749_895;

/// What an engine knows of time.
pub(crate) struct Expiry {
    clock: Arc<dyn Clock>,
    /// What the clock said, to within [`SAID_MILLIS`].
    said: AtomicU64,
    /// Some record expires, or may.
    is_watched: AtomicBool,
    /// The same, and never taken back.
    has_ends: AtomicBool,
    rounds_in_vain: AtomicU64,
    /// The next bucket to look at.
    hand: AtomicU64,
    /// Bytes of expired records that the index leads to, as estimated.
    expired: AtomicU64,
    /// Expired records that compaction dropped.
    pub(crate) dropped: AtomicU64,
}

/// What a round saw.
#[derive(Default)]
struct Sample {
    entries: u64,
    expiring: u64,
    expired_bytes: u64,
}

impl Expiry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            clock,
            said: zero(),
            is_watched: AtomicBool::new(false),
            has_ends: AtomicBool::new(false),
            rounds_in_vain: zero(),
            hand: zero(),
            expired: zero(),
            dropped: zero(),
        }
    }

    /// The clock is a foreign one, perhaps, and asked under pins and locks: it must not get in the way of what goes on there, nor tear anybody from it.
    pub(crate) fn now(&self) -> u64 {
        let _barred = Barred::thread();
        let said = self.said.load(Relaxed);
        let now = catch_unwind(AssertUnwindSafe(|| millis(self.clock.now())));
        // At its very first word there is only the system's.
        let now = now.unwrap_or_else(|_| if said == 0 { millis(SystemTime::now()) } else { said });
        if now.abs_diff(said) >= SAID_MILLIS {
            self.said.store(now, Relaxed);
        }
        now
    }

    /// There is an expiring record, or may be one.
    pub(crate) fn watch(&self) {
        // Acquire, Release: who goes on because it is watched may publish an end, and who finds that finds this.
        if !self.is_watched.load(Acquire) {
            self.rounds_in_vain.store(0, Relaxed);
            self.has_ends.store(true, Relaxed);
            self.is_watched.store(true, Release);
        }
    }

    /// The same of a record that ends then, or never.
    pub(crate) fn watch_for(&self, expires: u64) {
        if expires != NEVER {
            self.watch();
        }
    }

    /// True if there ever was an expiring record, or may have been.
    pub(crate) fn has_ends(&self) -> bool {
        self.has_ends.load(Relaxed)
    }

    pub(crate) fn expired_bytes(&self) -> u64 {
        self.expired.load(Relaxed)
    }

    /// Compaction dropped an expired record.
    pub(crate) fn drop_record(&self, bytes: u64) {
        self.dropped.fetch_add(1, Relaxed);
        // One compaction at a time, and beside it a sample, which may be lost: it is an estimate.
        self.expired.store(self.expired.load(Relaxed).saturating_sub(bytes), Relaxed);
    }

    /// Compaction has been through the whole log: what had expired when it began is gone.
    pub(crate) fn forget(&self) {
        self.expired.store(0, Relaxed);
    }

    fn learn(&self, sample: &Sample, entries: u64) {
        if sample.entries == 0 {
            return;
        }
        let now = (u128::from(sample.expired_bytes) * u128::from(entries) / u128::from(sample.entries)) as u64;
        let before = self.expired.load(Relaxed);
        self.expired.store(before - before / ROUND_SHARE + now / ROUND_SHARE, Relaxed);
        let in_vain = if sample.expiring > 0 { 0 } else { self.rounds_in_vain.load(Relaxed) + 1 };
        self.rounds_in_vain.store(in_vain, Relaxed);
        if in_vain >= ROUNDS_IN_VAIN {
            self.is_watched.store(false, Relaxed);
            self.expired.store(0, Relaxed);
        }
    }
}

impl Engine {
    /// True if a record that ends then has ended.
    #[inline]
    pub(crate) fn has_passed(&self, expires: u64) -> bool {
        expires != NEVER && expires <= self.expiry.now()
    }

    /// One look at how much has expired, if anything may have. Not under a pin.
    pub(crate) fn sample_expired(&self) {
        if !self.expiry.is_watched.load(Relaxed) {
            return;
        }
        let mut sample = Sample::default();
        let buckets = self.index.buckets();
        let stride = ((buckets as f64 * STRIDE) as u64) | 1;
        // Most buckets of a table that just grew are half full.
        for _ in 0..SAMPLE {
            if sample.entries >= SAMPLE {
                break;
            }
            let at = self.expiry.hand.fetch_add(stride, Relaxed) % buckets;
            let Ok(pin) = self.epochs.pin_anyway() else { return };
            let addresses = self.index.addresses(at);
            drop(pin);
            addresses.into_iter().for_each(|address| self.sample_record(address, &mut sample));
        }
        self.expiry.learn(&sample, self.index.entries());
    }

    fn sample_record(&self, at: u64, sample: &mut Sample) {
        if at < self.log.bounds.begin.load(Acquire) {
            return;
        }
        let known = match self.expiry_in_memory(at) {
            // Its chain may lie on the device.
            Ok(None) => chain::expiry(self, at),
            known => known.map(|known| known.unwrap_or_default()),
        };
        // What cannot be read (any more) is told to whoever asks for it.
        let Ok((expires, bytes)) = known else { return };
        sample.entries += 1;
        sample.expiring += u64::from(expires != NEVER);
        sample.expired_bytes += if self.has_passed(expires) { bytes } else { 0 };
    }

    /// When the record at `at` ends, and how long it is; `None` if it is not in memory.
    fn expiry_in_memory(&self, at: u64) -> Result<Option<(u64, u64)>> {
        let _pin = self.epochs.pin_anyway()?;
        if at < self.log.bounds.head.load(Acquire) {
            return Ok(None);
        }
        // SAFETY: `at >= head` under the pin; index entries hold published addresses only.
        let record = unsafe { Record::new(self.log.pointer(at)) };
        if record.is_plain() {
            return Ok(Some((NEVER, 0)));
        }
        Ok(Some((self.expiry_of(record), record.bytes(self.layout))))
    }

    /// When a record in memory ends.
    pub(crate) fn expiry_of(&self, record: Record) -> u64 {
        if record.header().load(Acquire) & record::EXPIRES == 0 {
            return NEVER;
        }
        // Acquire: pairs with the Release that changes an expiry in place; the value that it was given for is there.
        match self.layout {
            Layout::Word { key_bytes, .. } => record.word_expiry(key_bytes).load(Acquire),
            Layout::Bytes => record.bytes_expiry().load(Acquire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spans_end_late_rather_than_early() {
        assert_eq!(whole_millis(Duration::ZERO), 0);
        assert_eq!(whole_millis(Duration::from_nanos(1)), 1);
        assert_eq!(whole_millis(Duration::from_millis(7)), 7);
        assert_eq!(whole_millis(Duration::MAX), NEVER);
        assert_eq!(millis(instant(1234)), 1234);
        assert_eq!(millis(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }

    #[test]
    fn a_clock_that_is_moved_to_the_end_of_time_does_not_go_back() {
        let clock = ManualClock::default();
        clock.advance(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        // The last instant that is one: what never ends has not ended then.
        assert_eq!(millis(clock.now()), NEVER - 1);
    }

    #[test]
    fn an_estimate_follows_what_is_seen_and_gives_up_in_vain() {
        let expiry = Expiry::new(Arc::new(SystemClock));
        expiry.watch();
        for _ in 0..40 {
            expiry.learn(&Sample { entries: 100, expiring: 50, expired_bytes: 50 * 32 }, 10_000);
        }
        let (want, got) = (10_000 / 2 * 32, expiry.expired_bytes());
        assert!(got.abs_diff(want) < want / 50, "{got} for {want}");
        for _ in 0..ROUNDS_IN_VAIN {
            assert!(expiry.is_watched.load(Relaxed));
            expiry.learn(&Sample { entries: 100, expiring: 0, expired_bytes: 0 }, 10_000);
        }
        assert!(!expiry.is_watched.load(Relaxed) && expiry.expired_bytes() == 0);
    }
}
