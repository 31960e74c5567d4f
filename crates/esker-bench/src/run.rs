//! The measured loops.
//!
//! Each loop works in blocks: the first call of a block is timed for the latency histogram, the
//! others run without a look at the clock, and the stop flag is read once per block. A mix first
//! runs unmeasured, then counts until the time is over. Every value read is checked; a check is a
//! XOR and a branch never taken.
//!
//! Reads of a device are slow enough to time every call, and then only calls are timed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use esker::Durability;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::answers::Answers;
use crate::engines::{Engine, Session};
use crate::keys::{self, Sequence};

/// Below this wait a thread spins: waking up takes longer.
const SPIN: Duration = Duration::from_micros(200);
/// The longest latency that is told apart, in nanoseconds: a day, for who is behind in an open loop stays so.
const LONGEST: u64 = 24 * 3600 * 1_000_000_000;
/// Share of the measured time that is spent in warming up.
const WARM_UP: f64 = 0.1;
/// Entries per sample of a growth curve.
pub(crate) const MILLION: u64 = 1_000_000;
/// Keys that are asked for where not all are, and by one call.
const GETS_OF_SOME: u64 = 500_000;
const GETS_AT_ONCE: usize = 1024;

/// The phases of a timed run.
pub(crate) const WARMING: u8 = 0;
pub(crate) const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// What the writing part of a mix does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Operation {
    /// Blind writes.
    Put,
    /// Increments.
    Rmw,
}

impl Operation {
    /// The name used in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Rmw => "rmw",
        }
    }
}

/// A timed mix of reads and writes over a loaded engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// The writes.
    pub(crate) operation: Operation,
    /// The share of reads, in percent.
    pub(crate) reads_percent: u8,
    /// Keys per call; a call only reads or only writes.
    pub(crate) batch: usize,
    /// Time measured.
    pub(crate) seconds: f64,
    /// One call is timed per so many operations.
    pub(crate) sample_every: usize,
}

/// Timed reads by one thread of uniformly chosen keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// The number of keys to choose from.
    pub(crate) keys: u64,
    /// Keys per call.
    pub(crate) batch: usize,
    /// Time measured.
    pub(crate) seconds: f64,
    /// Begins the choice of keys.
    pub(crate) seed: u64,
}

/// What was measured.
pub(crate) struct Measured {
    /// Keys read or written within the measured time.
    pub(crate) operations: u64,
    /// The time they took.
    pub(crate) elapsed: Duration,
    /// The times of sampled calls, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Increments ever made, the warm-up's as well.
    pub(crate) increments: u64,
}

impl Measured {
    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }
}

/// The course of a growing map.
pub(crate) struct Growth {
    /// The rate of each million of inserts, per second.
    pub(crate) rates: Vec<f64>,
    /// What the inserts took, where each was timed.
    pub(crate) pauses: Pauses,
    pub(crate) latency: Histogram<u64>,
}

/// What took long between one look at the clock and the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    pub(crate) longest: Duration,
    /// How many were longer than [`LONG_PAUSE`].
    long: u64,
    all: Duration,
}

/// Longer than an insert should ever take.
const LONG_PAUSE: Duration = Duration::from_millis(10);
/// So long a machine is looked at, at least and at most.
const LOOKS: std::ops::Range<Duration> = Duration::from_secs(10)..Duration::from_secs(60);

impl Pauses {
    fn note(&mut self, pause: Duration) {
        self.longest = self.longest.max(pause);
        self.long += u64::from(pause > LONG_PAUSE);
        self.all += pause;
    }

    /// Those of a thread that does nothing but look at the clock: the machine's own. For about as long as these took.
    pub(crate) fn of_the_machine(&self) -> Self {
        let mut pauses = Self::default();
        let mut last = Instant::now();
        while pauses.all < self.all.clamp(LOOKS.start, LOOKS.end) {
            let now = Instant::now();
            pauses.note(now - last);
            last = now;
        }
        pauses
    }

    pub(crate) fn long_per_minute(&self) -> f64 {
        self.long as f64 * 60.0 / self.all.as_secs_f64()
    }
}

/// An engine with the loops compiled for it.
pub(crate) trait Contestant: Send + Sync {
    /// Puts all keys, divided among threads, `batch` at a time.
    fn load(&self, keys: &[u64], threads: usize, batch: usize) -> Result<Measured>;
    /// Runs a mix, one thread for each sequence.
    fn mix(&self, mix: &Mix, sequences: &[Sequence]) -> Result<Measured>;
    /// Reads keys; every call is timed, and only calls are.
    fn reads(&self, reads: &Reads) -> Result<Measured>;
    /// Reads of the device so far, where the engine counts them.
    fn device_reads(&self) -> Option<u64>;
    /// Reads all keys, checks the values, and sums the counts.
    fn audit(&self, keys: &[u64], threads: usize) -> Result<u64>;
    /// Inserts so many keys from one thread and samples the rate. Timing each insert costs speed.
    fn grow(&self, keys: u64, time_each: bool, progress: &dyn Fn(u64)) -> Growth;
    /// Checks that all of so many keys that were inserted are there, once each and with their values, and nothing else. Gives the time that
    /// it took to see them all.
    fn check_grown(&self, keys: u64, progress: &dyn Fn(u64)) -> Result<Duration>;
    /// Checks that some of them are, all over.
    fn check_some_grown(&self, keys: u64) -> Result<()>;
}

impl<E: Engine> Contestant for E {
    fn load(&self, keys: &[u64], threads: usize, batch: usize) -> Result<Measured> {
        let share = keys.len().div_ceil(threads).max(1);
        let shares: Vec<&[u64]> = keys.chunks(share).collect();
        let barrier = Barrier::new(shares.len());
        let lanes = on_threads(&shares, |share| {
            barrier.wait();
            let mut lane = Lane::new();
            load_share(self, share, batch, &mut lane);
            lane
        })?;
        merge(lanes)
    }

    fn mix(&self, mix: &Mix, sequences: &[Sequence]) -> Result<Measured> {
        let phase = AtomicU8::new(WARMING);
        let barrier = Barrier::new(sequences.len() + 1);
        let lanes = std::thread::scope(|scope| {
            scope.spawn(|| conduct(&phase, &barrier, mix.seconds));
            on_threads(sequences, |sequence| {
                barrier.wait();
                Driver::new(self, mix, sequence).run(&phase)
            })
        })?;
        merge(lanes)
    }

    fn reads(&self, reads: &Reads) -> Result<Measured> {
        let mut session = self.session();
        let mut random = SmallRng::seed_from_u64(reads.seed << 32 | reads.batch as u64);
        let (mut lane, mut elapsed) = (Lane::new(), Duration::ZERO);
        let mut batch = vec![0; reads.batch];
        while elapsed.as_secs_f64() < reads.seconds {
            batch.fill_with(|| keys::key(random.random_range(0..reads.keys)));
            let start = Instant::now();
            read_checked(&mut session, &batch, &mut lane);
            let call = start.elapsed();
            lane.record(call);
            elapsed += call;
            session.refresh();
        }
        Ok(Measured { elapsed, ..merge(vec![lane])? })
    }

    fn device_reads(&self) -> Option<u64> {
        Engine::device_reads(self)
    }

    fn audit(&self, keys: &[u64], threads: usize) -> Result<u64> {
        let shares: Vec<&[u64]> = keys.chunks(keys.len().div_ceil(threads).max(1)).collect();
        let sums = on_threads(&shares, |share| audit_share(self, share))?;
        sums.into_iter().sum()
    }

    fn grow(&self, keys: u64, time_each: bool, progress: &dyn Fn(u64)) -> Growth {
        let mut growth = Growth { rates: Vec::new(), pauses: Pauses::default(), latency: histogram() };
        let mut session = self.session();
        for from in (0..keys).step_by(MILLION as usize) {
            let range = from..(from + MILLION).min(keys);
            let (inserts, start) = (range.end - range.start, Instant::now());
            if time_each {
                insert_timed(&mut session, range, &mut growth);
            } else {
                insert(&mut session, range);
            }
            growth.rates.push(inserts as f64 / start.elapsed().as_secs_f64());
            progress(inserts);
        }
        growth
    }

    fn check_grown(&self, keys: u64, progress: &dyn Fn(u64)) -> Result<Duration> {
        let (start, mut seen) = (Instant::now(), Seen::none_of(keys)?);
        let is_scanned = self.scan(&mut |key, value| {
            seen.note(key, value);
            if seen.number.is_multiple_of(MILLION) {
                progress(MILLION);
            }
        });
        if !is_scanned {
            ask(self, keys, 1, &mut seen, progress);
            seen.are_all_of(keys)?;
            return Ok(start.elapsed());
        }
        let elapsed = start.elapsed();
        seen.are_all_of(keys)?;
        // A scan goes other ways than a get, so some are asked for all the same.
        self.check_some_grown(keys)?;
        Ok(elapsed)
    }

    fn check_some_grown(&self, keys: u64) -> Result<()> {
        let (step, mut seen) = ((keys / GETS_OF_SOME).max(1), Seen::none_of(keys)?);
        ask(self, keys, step, &mut seen, &|_| {});
        seen.are_all_of(keys.div_ceil(step))
    }
}

/// Asks for each `step`th key.
fn ask<E: Engine>(engine: &E, keys: u64, step: u64, seen: &mut Seen, progress: &dyn Fn(u64)) {
    let mut session = engine.session();
    for from in (0..keys).step_by(GETS_AT_ONCE * step as usize) {
        let block: Vec<u64> = (from..keys).step_by(step as usize).take(GETS_AT_ONCE).map(keys::key).collect();
        session.get_many(&block, |place, value| match value {
            Some(value) => seen.note(block[place], value),
            None => seen.faults += 1,
        });
        session.refresh();
        progress(block.len() as u64);
    }
}

/// Which of some keys were seen.
struct Seen {
    indices: Vec<u64>,
    keys: u64,
    number: u64,
    /// Keys that were never inserted, seen twice or not there, and wrong values.
    faults: u64,
}

impl Seen {
    fn none_of(keys: u64) -> Result<Self> {
        Ok(Self { indices: vec![0; usize::try_from(keys.div_ceil(64))?], keys, number: 0, faults: 0 })
    }

    fn note(&mut self, key: u64, value: u64) {
        let index = keys::index(key);
        self.number += 1;
        if index >= self.keys || value != keys::value(key, 0) {
            self.faults += 1;
            return;
        }
        let (word, bit) = (&mut self.indices[(index / 64) as usize], 1 << (index % 64));
        self.faults += u64::from(*word & bit != 0);
        *word |= bit;
    }

    fn are_all_of(&self, keys: u64) -> Result<()> {
        let (number, faults) = (self.number, self.faults);
        ensure!(
            number == keys && faults == 0,
            "of {keys} keys {number} were seen, and {faults} were lost, foreign, seen twice or had wrong values"
        );
        Ok(())
    }
}

/// Runs one thread for each item and collects the results; a panic of one becomes an error.
fn on_threads<I: Sync, R: Send>(items: &[I], work: impl Fn(&I) -> R + Sync) -> Result<Vec<R>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.ok().context("a thread of the benchmark failed")).collect()
    })
}

/// Leads threads through the phases, once all of them wait at the barrier.
pub(crate) fn conduct(phase: &AtomicU8, barrier: &Barrier, seconds: f64) {
    barrier.wait();
    std::thread::sleep(Duration::from_secs_f64(seconds * WARM_UP));
    phase.store(MEASURED, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    phase.store(OVER, Ordering::Relaxed);
}

/// Lines that are drawn each so many seconds; 0: none but those that give back space.
pub(crate) fn lines(seconds: f64) -> Result<Durability> {
    let interval = Duration::try_from_secs_f64(seconds).context("from line to line there must be some seconds, or 0")?;
    Ok(if interval.is_zero() { Durability::None } else { Durability::Every(interval) })
}

/// Sleeps, and spins at the end, until then.
pub(crate) fn wait_until(due: Instant) {
    loop {
        match due.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => return,
            Some(rest) if rest > SPIN => std::thread::sleep(rest - SPIN),
            Some(_) => std::hint::spin_loop(),
        }
    }
}

/// An empty histogram of latencies; longer ones than a day count as a day.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are valid")
}

/// The measurements of one thread.
struct Lane {
    operations: u64,
    increments: u64,
    faults: u64,
    latency: Histogram<u64>,
    start: Instant,
    end: Instant,
}

impl Lane {
    fn new() -> Self {
        let latency = histogram();
        let now = Instant::now();
        Self { operations: 0, increments: 0, faults: 0, latency, start: now, end: now }
    }

    fn restart(&mut self) {
        self.operations = 0;
        self.latency.reset();
        self.start = Instant::now();
    }

    fn finish(&mut self) {
        self.end = Instant::now();
    }

    #[inline]
    fn check(&mut self, key: u64, value: Option<u64>) {
        if !value.is_some_and(|value| keys::belongs(key, value)) {
            self.fault();
        }
    }

    #[inline]
    fn check_count(&mut self, questions: usize, answers: usize) {
        if answers != questions {
            self.fault();
        }
    }

    #[cold]
    fn fault(&mut self) {
        self.faults += 1;
    }

    fn time(&mut self, start: Instant) {
        self.record(start.elapsed());
    }

    fn record(&mut self, call: Duration) {
        let nanoseconds = u64::try_from(call.as_nanos()).unwrap_or(LONGEST);
        self.latency.saturating_record(nanoseconds.max(1));
    }
}

/// Sums up the lanes; wrong values are an error, whatever the speed.
fn merge(lanes: Vec<Lane>) -> Result<Measured> {
    let start = lanes.iter().map(|lane| lane.start).min().context("no threads")?;
    let end = lanes.iter().map(|lane| lane.end).max().context("no threads")?;
    let mut sum = Lane::new();
    for lane in lanes {
        sum.operations += lane.operations;
        sum.increments += lane.increments;
        sum.faults += lane.faults;
        sum.latency.add(&lane.latency)?;
    }
    ensure!(sum.faults == 0, "{} reads gave no value or a wrong one", sum.faults);
    Ok(Measured { operations: sum.operations, elapsed: end - start, latency: sum.latency, increments: sum.increments })
}

/// Puts one thread's share of the keys.
fn load_share<E: Engine>(engine: &E, share: &[u64], batch: usize, lane: &mut Lane) {
    let mut session = engine.session();
    lane.restart();
    for block in share.chunks(1024.max(batch)) {
        let (first, rest) = block.split_at(batch.min(block.len()));
        let start = Instant::now();
        put_all(&mut session, first, batch);
        lane.time(start);
        put_all(&mut session, rest, batch);
        lane.operations += block.len() as u64;
        session.refresh();
    }
    lane.finish();
}

/// Puts the first values of keys.
fn put_all(session: &mut impl Session, keys: &[u64], batch: usize) {
    if batch == 1 {
        for &key in keys {
            session.put(key, keys::value(key, 0));
        }
        return;
    }
    let mut pairs = Vec::with_capacity(batch);
    for chunk in keys.chunks(batch) {
        pairs.clear();
        pairs.extend(chunk.iter().map(|&key| (key, keys::value(key, 0))));
        session.put_many(&pairs);
    }
}

/// Reads some keys in one call and checks that each is answered, and rightly.
fn read_checked(session: &mut impl Session, batch: &[u64], lane: &mut Lane) {
    match batch {
        [key] => lane.check(*key, session.get(*key)),
        keys => read_many(session, keys, lane),
    }
    lane.operations += batch.len() as u64;
}

#[inline]
fn read_many(session: &mut impl Session, keys: &[u64], lane: &mut Lane) {
    let mut seen = 0;
    session.get_many(keys, |index, value| {
        seen += 1;
        lane.check(keys[index], value);
    });
    lane.check_count(keys.len(), seen);
}

/// Checks one thread's share of the keys and sums the counts.
fn audit_share<E: Engine>(engine: &E, share: &[u64]) -> Result<u64> {
    let mut session = engine.session();
    let (mut sum, mut wrong) = (0, 0u64);
    for block in share.chunks(1024) {
        let mut answers = Answers::to(block.len());
        session.get_many(block, |index, value| {
            answers.note(index);
            match value {
                Some(value) if keys::belongs(block[index], value) => sum += keys::count(value),
                _ => wrong += 1,
            }
        });
        wrong += answers.faults();
        session.refresh();
    }
    ensure!(wrong == 0, "the audit found {wrong} keys lost or with a wrong value");
    Ok(sum)
}

/// Inserts the keys of a range of indices.
fn insert(session: &mut impl Session, range: std::ops::Range<u64>) {
    for index in range {
        let key = keys::key(index);
        session.put(key, keys::value(key, 0));
        if index % 1024 == 0 {
            session.refresh();
        }
    }
}

/// Inserts the keys of a range of indices and notes what each took.
fn insert_timed(session: &mut impl Session, range: std::ops::Range<u64>, growth: &mut Growth) {
    let mut last = Instant::now();
    for index in range {
        let key = keys::key(index);
        session.put(key, keys::value(key, 0));
        if index % 1024 == 0 {
            session.refresh();
        }
        let now = Instant::now();
        growth.pauses.note(now - last);
        growth.latency.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
}

/// One thread of a mix.
struct Driver<'a, E: Engine + 'a> {
    session: E::Session<'a>,
    mix: Mix,
    sequence: &'a Sequence,
    position: usize,
    pairs: Vec<(u64, u64)>,
    lane: Lane,
}

impl<'a, E: Engine> Driver<'a, E> {
    fn new(engine: &'a E, mix: &Mix, sequence: &'a Sequence) -> Self {
        let pairs = Vec::with_capacity(mix.batch);
        let (session, lane) = (engine.session(), Lane::new());
        Self { session, mix: *mix, sequence, position: 0, pairs, lane }
    }

    fn run(mut self, phase: &AtomicU8) -> Lane {
        while phase.load(Ordering::Relaxed) == WARMING {
            self.block();
        }
        self.lane.restart();
        while phase.load(Ordering::Relaxed) != OVER {
            self.block();
        }
        self.lane.finish();
        self.lane
    }

    /// One timed call, then the rest of the block.
    fn block(&mut self) {
        let calls = (self.mix.sample_every / self.mix.batch).max(1);
        let start = Instant::now();
        self.calls(1);
        self.lane.time(start);
        self.calls(calls - 1);
        self.lane.operations += (calls * self.mix.batch) as u64;
        self.session.refresh();
    }

    fn calls(&mut self, calls: usize) {
        if self.mix.batch == 1 {
            self.call_each(calls);
        } else {
            (0..calls).for_each(|_| self.call_many());
        }
    }

    /// Calls one at a time. The loop does as little as it can besides: what it does takes room from calls that overlap.
    fn call_each(&mut self, calls: usize) {
        if self.position + calls > keys::SEQUENCE_LENGTH {
            self.position = 0;
        }
        let range = self.position..self.position + calls;
        self.position = range.end;
        let (keys, dice) = (&self.sequence.keys[range.clone()], &self.sequence.dice[range.clone()]);
        match (self.mix.reads_percent, self.mix.operation) {
            (100, _) => keys.iter().for_each(|&key| self.read(key)),
            (0, Operation::Put) => keys.iter().for_each(|&key| self.session.put(key, keys::value(key, range.start as u64))),
            (0, Operation::Rmw) => keys.iter().for_each(|&key| self.increment(key)),
            (reads, Operation::Put) => keys.iter().zip(dice).for_each(|(&key, &die)| match die < reads {
                true => self.read(key),
                false => self.session.put(key, keys::value(key, range.start as u64)),
            }),
            (reads, Operation::Rmw) => keys.iter().zip(dice).for_each(|(&key, &die)| match die < reads {
                true => self.read(key),
                false => self.increment(key),
            }),
        }
    }

    #[inline(always)]
    fn read(&mut self, key: u64) {
        let value = self.session.get(key);
        self.lane.check(key, value);
    }

    #[inline(always)]
    fn increment(&mut self, key: u64) {
        let value = self.session.increment(key, keys::value(key, 0));
        self.lane.increments += 1;
        self.lane.check(key, (keys::count(value) > 0).then_some(value));
    }

    fn call_many(&mut self) {
        if self.position + self.mix.batch > keys::SEQUENCE_LENGTH {
            self.position = 0;
        }
        let range = self.position..self.position + self.mix.batch;
        self.position = range.end;
        let (keys, lane) = (&self.sequence.keys[range.clone()], &mut self.lane);
        if self.sequence.dice[range.start] < self.mix.reads_percent {
            read_many(&mut self.session, keys, lane);
        } else if self.mix.operation == Operation::Put {
            self.pairs.clear();
            self.pairs.extend(keys.iter().map(|&key| (key, keys::value(key, range.start as u64))));
            self.session.put_many(&self.pairs);
        } else {
            let mut seen = 0;
            self.session.increment_many(keys, |index, value| {
                seen += 1;
                lane.check(keys[index], value);
            });
            // An engine that had to begin anew with a key gave its value from before once more.
            lane.check_count(keys.len(), seen.min(keys.len()));
            lane.increments += keys.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    /// What is wrong with an engine.
    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        /// The last answer of a batch does not come.
        Silent,
        /// Instead of it, that before comes once more.
        Repeated,
    }

    struct Map {
        pairs: Mutex<HashMap<u64, u64>>,
        fault: Fault,
    }

    struct Guarded<'a>(&'a Map);

    impl Map {
        fn filled(fault: Fault, keys: &[u64]) -> Self {
            let map = Self { pairs: Mutex::default(), fault };
            let loaded = map.load(keys, 2, 1).expect("nothing is read");
            assert_eq!(loaded.operations, keys.len() as u64);
            map
        }
    }

    impl Engine for Map {
        type Session<'a> = Guarded<'a>;

        fn session(&self) -> Guarded<'_> {
            Guarded(self)
        }
    }

    impl Guarded<'_> {
        fn pairs(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
            self.0.pairs.lock().expect("no thread panics")
        }

        fn places(&self, keys: &[u64]) -> impl Iterator<Item = usize> {
            let last = keys.len() - 1;
            let fault = self.0.fault;
            let other = move |place: usize| match fault {
                Fault::None => Some(place),
                Fault::Silent => (place < last).then_some(place),
                Fault::Repeated => Some(if place == last { last - 1 } else { place }),
            };
            (0..keys.len()).filter_map(other)
        }
    }

    impl Session for Guarded<'_> {
        fn get(&mut self, key: u64) -> Option<u64> {
            self.pairs().get(&key).copied()
        }

        fn put(&mut self, key: u64, value: u64) {
            self.pairs().insert(key, value);
        }

        fn increment(&mut self, key: u64, first: u64) -> u64 {
            *self.pairs().entry(key).and_modify(|value| *value += 1).or_insert(first)
        }

        fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
            self.places(keys).for_each(|place| seen(place, self.pairs().get(&keys[place]).copied()));
        }

        fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
            keys.iter().for_each(|key| *self.pairs().get_mut(key).expect("it was loaded") += 1);
            self.places(keys).for_each(|place| seen(place, self.pairs().get(&keys[place]).map(|value| value - 1)));
        }
    }

    fn loaded() -> Vec<u64> {
        (0..5000).map(keys::key).collect()
    }

    #[test]
    fn an_audit_misses_no_answer() {
        let keys = loaded();
        assert_eq!(Map::filled(Fault::None, &keys).audit(&keys, 3).unwrap(), 0);
        for fault in [Fault::Silent, Fault::Repeated] {
            assert!(Map::filled(fault, &keys).audit(&keys, 3).is_err());
        }
    }

    #[test]
    fn a_grown_map_has_all_keys_and_no_other() {
        let check = |keys: &[u64], fault| Map::filled(fault, keys).check_grown(5000, &|_| {});
        let keys = loaded();
        assert!(check(&keys, Fault::None).is_ok());
        assert!(check(&keys[1..], Fault::None).is_err(), "one is lost");
        assert!(Map::filled(Fault::None, &keys).check_some_grown(5000).is_ok());
        assert!(Map::filled(Fault::None, &keys[1..]).check_some_grown(5000).is_err(), "one is lost");
        assert!(check(&keys, Fault::Silent).is_err() && check(&keys, Fault::Repeated).is_err());
        let mut seen = Seen::none_of(2).unwrap();
        let note = |seen: &mut Seen, index: u64| seen.note(keys::key(index), keys::value(keys::key(index), 0));
        note(&mut seen, 0);
        note(&mut seen, 1);
        assert!(seen.are_all_of(2).is_ok());
        note(&mut seen, 1);
        assert!(seen.are_all_of(3).is_err(), "one was there twice");
        let mut seen = Seen::none_of(2).unwrap();
        note(&mut seen, 2);
        assert!(seen.are_all_of(1).is_err(), "nobody inserted it");
    }

    #[test]
    fn measured_batches_miss_no_answer() {
        let (keys, sequences) = (loaded(), keys::sequences(keys::Distribution::Uniform, 5000, 1));
        let mix = |reads_percent, operation| Mix { operation, reads_percent, batch: 8, seconds: 0.05, sample_every: 64 };
        for mix in [mix(100, Operation::Put), mix(0, Operation::Rmw)] {
            assert!(Map::filled(Fault::None, &keys).mix(&mix, &sequences).is_ok());
            assert!(Map::filled(Fault::Silent, &keys).mix(&mix, &sequences).is_err());
        }
        let reads = Reads { keys: 5000, batch: 8, seconds: 0.01, seed: 1 };
        assert!(Map::filled(Fault::None, &keys).reads(&reads).is_ok() && Map::filled(Fault::Silent, &keys).reads(&reads).is_err());
    }

    #[test]
    fn all_increments_are_counted() {
        let (keys, sequences) = (loaded(), keys::sequences(keys::Distribution::Zipf, 5000, 2));
        for batch in [1, 8] {
            let map = Map::filled(Fault::None, &keys);
            let mix = Mix { operation: Operation::Rmw, reads_percent: 50, batch, seconds: 0.05, sample_every: 64 };
            let measured = map.mix(&mix, &sequences).unwrap();
            assert_eq!(map.audit(&keys, 2).unwrap(), measured.increments);
        }
    }
}
