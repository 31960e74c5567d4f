//! Expiry: keys that end by themselves.
//!
//! A record may say until when it holds (`record.rs`). From that instant on every operation takes its key for absent; nothing
//! need happen for it, and nobody is told. The record itself is a tombstone by then: compaction drops it as one.
//!
//! **Whether enough has expired for compaction to be due** is estimated, not counted: a count would have to know what each
//! superseded record would have become, and drift. The driver looks at some of the index's entries now and then, and infers
//! from them. That needs no memory, forgets nothing over a restart and corrects itself. Who writes no expiring record pays nothing:
//! the driver looks only while it has reason to believe that there are some.
//!
//! A sample goes by entries, and a few of them may be a thousand times as long as the others. So the estimate goes as far back as it takes
//! to have met some hundred expired records, and once round the table at most: where much expires that is the last moment, and where what
//! expires is rare and long it is nearly a count.

use crate::descent;
use crate::engine::Engine;
use crate::epoch::{Barred, Pin};
use crate::error::Result;
use crate::index::{SOLE, address_of};
use crate::record::{self, ABSENT, NEVER, Record};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Mutex, lock, swallow};
use crate::types::Layout;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What tells a store the time. Expiry goes by the wall clock, so that it means the same after a restart.
pub trait Clock: Send + Sync + Debug {
    /// The time now. Should it step back, what had expired and was not yet dropped is there again. Asked in the midst of calls: using a
    /// store from inside is [`Error::Invalid`](crate::Error::Invalid), and a clock that panics is taken to say what it said before.
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
fn instant(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// A time span in milliseconds; a part of one counts as one.
pub(crate) fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER)
}

/// Whole milliseconds to an end.
pub(crate) fn left_millis(now: SystemTime, end: u64) -> u64 {
    instant(end).duration_since(now).map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(NEVER))
}

fn end_of(begin: SystemTime, span: Duration) -> u64 {
    if span.is_zero() {
        return millis(begin);
    }
    let begin = begin.duration_since(UNIX_EPOCH).unwrap_or_default();
    whole_millis(begin.saturating_add(span))
}

/// Entries that the driver looks at in a round; and those that whoever waits for it looks at, or that may be read from the device: an
/// eighth of a second's worth of reads.
pub(crate) const SAMPLE: u64 = 1024;
pub(crate) const SMALL_SAMPLE: u64 = 128;
/// Expired records that tell enough: with twice as many, the older looks count half.
const TELLING: f64 = 128.0;
/// Entries without any expiring record until it is believed that there are none, and the same where one may be as long as thousands of
/// others.
const ENTRIES_IN_VAIN: u64 = 2048;
const ENTRIES_IN_VAIN_OF_ANY_LENGTH: u64 = 1 << 17;

/// So many records of a chain that several keys share are looked at: those on top are not like the others.
const CHAIN_RECORDS_MAX: usize = 16;

/// What an engine knows of time.
pub(crate) struct Expiry {
    clock: Arc<dyn Clock>,
    /// What the clock said last, [`NEVER`] before it was asked. On a line that others read: it is written once a millisecond. Not one of
    /// `sync.rs`: when that is, models must not see, for it is another time each time.
    said: std::sync::atomic::AtomicU64,
    /// Some record expires, or may.
    is_watched: AtomicBool,
    /// One came since the last look.
    is_news: AtomicBool,
    /// The same, and never taken back.
    has_ends: AtomicBool,
    /// Said to nobody but compaction: no model need see it.
    has_met_ends: std::sync::atomic::AtomicBool,
    looks: Mutex<Looks>,
    /// Buckets that were looked at.
    hand: AtomicU64,
    /// Bytes of expired records that the index leads to, as estimated.
    expired: AtomicU64,
    /// What compaction dropped of those since the last look.
    gone: AtomicU64,
    /// Expired records that compaction dropped.
    pub(crate) dropped: AtomicU64,
}

/// When a record ends, how long it is, of which key, and where its chain goes on. A deletion was counted then: it never ends, and has no
/// bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ends {
    pub(crate) hash: u64,
    pub(crate) expires: u64,
    pub(crate) bytes: u64,
    pub(crate) previous: u64,
}

/// What a round saw.
#[derive(Default)]
struct Sample {
    entries: u64,
    /// Records, of which an entry may lead to several.
    looked_at: u64,
    reads: u64,
    expiring: u64,
    expired: u64,
    expired_bytes: u64,
    /// Of all records that were not deleted.
    bytes: u64,
}

/// What the rounds saw, the older ones the less.
#[derive(Default)]
struct Looks {
    entries: f64,
    expired: f64,
    expired_bytes: f64,
    bytes: f64,
    /// Entries since the last expiring one.
    in_vain: u64,
}

impl Looks {
    /// Adds a round over a table of so many entries.
    fn add(&mut self, sample: &Sample, entries: u64) {
        self.entries += sample.entries as f64;
        self.expired += sample.expired as f64;
        self.expired_bytes += sample.expired_bytes as f64;
        self.bytes += sample.bytes as f64;
        while self.expired > 2.0 * TELLING || self.entries > 2.0 * (entries as f64).max(TELLING) {
            self.scale(0.5);
        }
        self.in_vain = if sample.expiring > 0 { 0 } else { self.in_vain + sample.looked_at.max(sample.entries) };
    }

    fn scale(&mut self, by: f64) {
        self.entries *= by;
        self.expired *= by;
        self.expired_bytes *= by;
        self.bytes *= by;
    }

    /// So many bytes of `of` are gone.
    fn take_off(&mut self, bytes: u64, of: u64) {
        let left = 1.0 - (bytes as f64 / of.max(1) as f64).min(1.0);
        self.bytes -= self.expired_bytes * (1.0 - left);
        self.expired *= left;
        self.expired_bytes *= left;
    }
}

impl Expiry {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            clock,
            said: std::sync::atomic::AtomicU64::new(NEVER),
            is_watched: AtomicBool::new(false),
            is_news: AtomicBool::new(false),
            has_ends: AtomicBool::new(false),
            has_met_ends: std::sync::atomic::AtomicBool::new(false),
            looks: Mutex::default(),
            hand: zero(),
            expired: zero(),
            gone: zero(),
            dropped: zero(),
        }
    }

    /// The clock is a foreign one, perhaps, and asked under pins and locks: it must not get in the way of what goes on there, nor tear
    /// anybody from it.
    pub(crate) fn time(&self) -> SystemTime {
        let barred = Barred::thread();
        let said = self.said.load(Relaxed);
        // At its very first word there is only the system's.
        let known = || if said == NEVER { SystemTime::now() } else { instant(said) };
        // It asks what asks it: the call from inside fails, and not for want of stack.
        if barred.was_before() {
            return known();
        }
        let time = swallow(|| self.clock.now()).unwrap_or_else(known);
        let now = millis(time);
        if now != said {
            self.said.store(now, Relaxed);
        }
        time
    }

    pub(crate) fn now(&self) -> u64 {
        millis(self.time())
    }

    /// When something ends that has this long from now: at a whole millisecond, and not before. What has no time has ended.
    pub(crate) fn end_after(&self, span: Duration) -> u64 {
        end_of(self.time(), span)
    }

    /// There is an expiring record.
    pub(crate) fn watch(&self) {
        if !self.has_met_ends.load(Relaxed) {
            self.has_met_ends.store(true, Relaxed);
        }
        self.watch_perhaps();
    }

    /// There may be one.
    pub(crate) fn watch_perhaps(&self) {
        // SeqCst: who stops watching looks at the news afterwards, and who brings some here whether it is watched.
        if !self.is_news.load(Relaxed) {
            self.is_news.store(true, SeqCst);
        }
        // And Acquire, Release: who goes on because it is watched may publish an end, and who finds that finds this.
        if !self.is_watched.load(SeqCst) {
            lock(&self.looks).in_vain = 0;
            self.has_ends.store(true, Relaxed);
            self.is_watched.store(true, SeqCst);
        }
    }

    /// The same of a record that ends then, or never.
    pub(crate) fn watch_for(&self, expires: u64) {
        if expires != NEVER {
            self.watch();
        }
    }

    /// True if an expiring record was written since the opening, or met by compaction.
    pub(crate) fn has_met_ends(&self) -> bool {
        self.has_met_ends.load(Relaxed)
    }

    /// True if there ever was an expiring record, or may have been.
    pub(crate) fn has_ends(&self) -> bool {
        self.has_ends.load(Relaxed)
    }

    pub(crate) fn expired_bytes(&self) -> u64 {
        self.expired.load(Relaxed).saturating_sub(self.gone.load(Relaxed))
    }

    /// Compaction dropped so many expired records.
    pub(crate) fn drop_records(&self, count: u64, bytes: u64) {
        self.dropped.fetch_add(count, Relaxed);
        self.gone.fetch_add(bytes, Relaxed);
    }

    /// Compaction has been through the whole log: what had expired when it began is gone.
    pub(crate) fn forget(&self) {
        let mut looks = lock(&self.looks);
        *looks = Looks { in_vain: looks.in_vain, ..Looks::default() };
        self.expired.store(0, Relaxed);
        self.gone.store(0, Relaxed);
    }

    /// As if so many bytes had been seen.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn believe_for_test(&self, bytes: u64) {
        self.learn(&Sample { entries: 1, expiring: 1, expired: 1, expired_bytes: bytes, bytes, ..Sample::default() }, 1, None, u64::MAX);
    }

    /// Infers from a round over a table of so many entries; after as many as `most_in_vain` without any that expires there is none, it is
    /// believed. Where keys share entries `shared` says how many bytes all records have that are not superseded.
    fn learn(&self, sample: &Sample, entries: u64, shared: Option<u64>, most_in_vain: u64) {
        if sample.entries == 0 {
            return;
        }
        let mut looks = lock(&self.looks);
        if self.is_news.swap(false, SeqCst) {
            looks.in_vain = 0;
        }
        // What is dropped meanwhile is taken off twice, or not at all: it is an estimate.
        looks.take_off(self.gone.swap(0, Relaxed), self.expired.load(Relaxed));
        looks.add(sample, entries);
        let is_believed = looks.in_vain < most_in_vain;
        let expired = match shared {
            Some(bytes) => looks.expired_bytes / looks.bytes.max(1.0) * bytes as f64,
            None => looks.expired_bytes / looks.entries * entries as f64,
        };
        if !is_believed {
            *looks = Looks::default();
        }
        self.expired.store(if is_believed { expired as u64 } else { 0 }, Relaxed);
        self.is_watched.store(is_believed, SeqCst);
        if self.is_news.load(SeqCst) {
            self.is_watched.store(true, SeqCst);
        }
    }
}

impl Engine {
    /// True if a record that ends then has ended.
    #[inline]
    pub(crate) fn has_passed(&self, expires: u64) -> bool {
        expires != NEVER && expires <= self.expiry.now()
    }

    /// One look at how much has expired, if anything may have, by some `entries`. Not under a pin.
    pub(crate) fn sample_expired(&self, entries: u64) {
        if !self.expiry.is_watched.load(Acquire) {
            return;
        }
        let (mut sample, is_shared) = (Sample::default(), self.index.is_shared());
        // Most buckets of a table that just grew are half full.
        for _ in 0..entries {
            if sample.entries >= entries || sample.reads >= SMALL_SAMPLE {
                break;
            }
            let Ok(pin) = self.epochs.pin_anyway() else { return };
            let words = self.index.words(self.index.sampled_bucket(&self.expiry.hand));
            let mut pin = Some(pin);
            for word in words {
                let most = if is_shared && word & SOLE == 0 { CHAIN_RECORDS_MAX } else { 1 };
                self.sample_chain(address_of(word), most, &mut pin, &mut sample);
            }
        }
        let most_in_vain = if self.value_width.is_some() { ENTRIES_IN_VAIN } else { ENTRIES_IN_VAIN_OF_ANY_LENGTH };
        let shared = is_shared.then(|| self.log_extent().saturating_sub(self.superseded_bytes()));
        self.expiry.learn(&sample, self.index.entries(), shared, most_in_vain);
    }

    /// Looks at the first records of a chain, at most so many, the newest of each key. Under the pin under which it was found, until the
    /// device must be read.
    fn sample_chain<'s>(&'s self, first: u64, most: usize, pin: &mut Option<Pin<'s>>, sample: &mut Sample) {
        let (mut at, mut met) = (first, Vec::new());
        sample.entries += 1;
        for _ in 0..most {
            // Compaction has been there, and the entry waits for a sweep; or it is the chain's end.
            if at < self.log.bounds.copied.load(Acquire) || sample.reads >= 2 * SMALL_SAMPLE {
                return;
            }
            let known = match self.ends_in_memory(at, pin) {
                // Its chain may lie on the device.
                Ok(None) => {
                    sample.reads += 1;
                    descent::ends(self, at)
                }
                known => known.map(|known| known.unwrap_or_default()),
            };
            // What cannot be read (any more) is told to whoever asks for it.
            let Ok(Ends { hash, expires, bytes, previous }) = known else { return };
            at = previous;
            if met.contains(&hash) {
                // It was superseded, and counted then.
                continue;
            }
            met.push(hash);
            sample.looked_at += 1;
            sample.expiring += u64::from(expires != NEVER);
            sample.bytes += bytes;
            if self.has_passed(expires) {
                sample.expired += 1;
                sample.expired_bytes += bytes;
            }
        }
    }

    /// What is known of the record at `at`, under the pin, or another where that has ended; `None` if it is not in memory: that ends it.
    fn ends_in_memory<'s>(&'s self, at: u64, pin: &mut Option<Pin<'s>>) -> Result<Option<Ends>> {
        if pin.is_none() {
            *pin = Some(self.epochs.pin_anyway()?);
        }
        if at < self.log.bounds.head.load(Acquire) {
            *pin = None;
            return Ok(None);
        }
        // SAFETY: `at >= head` under the pin; index entries and chains hold published addresses only.
        let record = unsafe { Record::new(self.log.pointer(at)) };
        let (hash, bytes, previous) = (self.hash_of(record.key(self.layout)), record.bytes(self.layout), record.previous());
        Ok(Some(match record.header().load(Acquire) & ABSENT {
            0 if record.is_plain() => Ends { hash, expires: NEVER, bytes, previous },
            0 => Ends { hash, expires: self.expiry_of(record), bytes, previous },
            _ => Ends { hash, expires: NEVER, bytes: 0, previous },
        }))
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

#[cfg(all(test, not(any(loom, shuttle))))]
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

    /// A clock that says more than milliseconds was rounded down before the span was added: the end came up to one too early.
    #[test]
    fn an_end_is_the_first_millisecond_that_is_late_enough() {
        let at = |micros: u64| UNIX_EPOCH + Duration::from_micros(micros);
        let span = Duration::from_micros;
        assert_eq!([1000, 1001, 1100, 100].map(|micros| end_of(at(1_000_900), span(micros))), [1002, 1002, 1002, 1001]);
        assert_eq!([0, 1, 1000].map(|micros| end_of(at(1_000_000), span(micros))), [1000, 1001, 1001]);
        assert_eq!(end_of(at(1_000_900), Duration::ZERO), 1000);
        assert_eq!(end_of(UNIX_EPOCH - span(7), span(1000)), 1);
        assert_eq!([end_of(at(1), Duration::MAX), end_of(instant(NEVER - 1), span(1000))], [NEVER, NEVER]);
        // What is left is never more than was asked for.
        assert_eq!([1_000_900, 1_001_000, 1_001_999, 1_002_000, 1_003_000].map(|now| left_millis(at(now), 1002)), [1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_clock_that_is_moved_to_the_end_of_time_does_not_go_back() {
        let clock = ManualClock::default();
        clock.advance(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        // The last instant that is one: what never ends has not ended then.
        assert_eq!(millis(clock.now()), NEVER - 1);
    }

    fn estimate(rounds: impl IntoIterator<Item = Sample>, entries: u64) -> Expiry {
        let expiry = Expiry::new(Arc::new(SystemClock));
        expiry.watch();
        rounds.into_iter().for_each(|sample| expiry.learn(&sample, entries, None, ENTRIES_IN_VAIN));
        expiry
    }

    fn sample(expired: u64, expired_bytes: u64) -> Sample {
        Sample { entries: 100, expiring: expired, expired, expired_bytes, bytes: 100 * 32, ..Sample::default() }
    }

    #[test]
    fn an_estimate_follows_what_is_seen_and_gives_up_in_vain() {
        let expiry = estimate((0..40).map(|_| sample(50, 50 * 32)), 10_000);
        let (want, got) = (10_000 / 2 * 32, expiry.expired_bytes());
        assert!(got.abs_diff(want) < want / 50, "{got} for {want}");
        // Much that is found in a moment makes what was before forgotten soon.
        (0..20).for_each(|_| expiry.learn(&sample(25, 25 * 32), 10_000, None, ENTRIES_IN_VAIN));
        let got = expiry.expired_bytes();
        assert!(got.abs_diff(want / 2) < want / 20, "{got} for {}", want / 2);
        for _ in 0..ENTRIES_IN_VAIN.div_ceil(100) {
            assert!(expiry.is_watched.load(Relaxed));
            expiry.learn(&Sample { entries: 100, ..Sample::default() }, 10_000, None, ENTRIES_IN_VAIN);
        }
        assert!(!expiry.is_watched.load(Relaxed) && expiry.expired_bytes() == 0);
    }

    /// One in two has ended of those that were seen, and so of those behind them.
    #[test]
    fn where_keys_share_entries_what_is_behind_them_counts() {
        let expiry = Expiry::new(Arc::new(SystemClock));
        expiry.watch();
        (0..40).for_each(|_| expiry.learn(&sample(50, 50 * 32), 10_000, Some(1 << 20), ENTRIES_IN_VAIN));
        assert!(expiry.expired_bytes().abs_diff(1 << 19) < 1 << 12, "{}", expiry.expired_bytes());
        // What is gone of them is gone of all.
        expiry.drop_records(1, 1 << 18);
        expiry.learn(&Sample { entries: 1, ..Sample::default() }, 10_000, Some(3 << 18), ENTRIES_IN_VAIN);
        assert!(expiry.expired_bytes().abs_diff(1 << 18) < 1 << 13, "{}", expiry.expired_bytes());
    }

    /// Who came when it was nearly believed that there was none was forgotten: it counted as one of those looked for in vain.
    #[test]
    fn news_are_looked_for_anew() {
        let none = Sample { entries: 100, ..Sample::default() };
        let expiry = estimate((0..20).map(|_| Sample { ..none }), 10_000);
        assert!(expiry.is_watched.load(Relaxed));
        for _ in 0..20 {
            expiry.watch();
            expiry.learn(&none, 10_000, None, ENTRIES_IN_VAIN);
            assert!(expiry.is_watched.load(Relaxed));
        }
        (0..20).for_each(|_| expiry.learn(&none, 10_000, None, ENTRIES_IN_VAIN));
        assert!(!expiry.is_watched.load(Relaxed));
    }

    #[test]
    fn what_is_rare_and_long_is_counted_over_the_whole_table() {
        // One in a thousand has a million bytes, and every tenth round meets one.
        let round = |n: u64| if n.is_multiple_of(10) { sample(1, 1_000_000) } else { sample(0, 0) };
        let expiry = estimate((0..1000).map(round), 100_000);
        let (want, got) = (100 * 1_000_000, expiry.expired_bytes());
        assert!(got.abs_diff(want) < want / 20, "{got} for {want}");
        expiry.drop_records(1, want / 2);
        assert!(expiry.expired_bytes().abs_diff(want / 2) < want / 20);
        // What is gone is not inferred once more from what was seen before.
        expiry.learn(&sample(0, 0), 100_000, None, ENTRIES_IN_VAIN);
        assert!(expiry.expired_bytes().abs_diff(want / 2) < want / 20);
    }
}
