//! What work beside them costs the calls of others: overwrites at the space target beside compaction, reads beside sums over
//! all objects, or writes beside everything at once; and the same calls without it.
//!
//! Open loop: a call is due at its time whether the one before has ended or not, and what is measured goes from that time to its
//! end. So a pause counts for every call that it held up, not for one. The rate is the same for both, and given: at the rate of a
//! full load nothing would say whether a queue or the work beside makes a call wait.
//!
//! * **Compaction.** Keys are uniform and the data larger than the memory, so that nearly each overwrite leaves a dead record behind.
//!   Both stores are loaded and overwritten alike before the clock starts, until the one with compaction is at its target and compacts.
//! * **Sums.** One thread adds up all objects, again and again; the sum must be right each time. In the setting without, a thread
//!   computes something else as busily: that two threads want the processors of the machine is no matter of the store.
//! * **Everything.** Compaction as above; a line each second; sums; and one call in eight puts a new key that ends after some seconds, so
//!   that the index grows and space expires. Without: the same calls, a busy loop, and keys that do not end, for nothing takes them away.
//!
//! Values tell their key and which write they are of. Afterwards each key is read back: what it holds is what a thread wrote last to it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::aggregate::Sum;
use esker::{Durability, Options, Store};
use hdrhistogram::Histogram;

use crate::answers::Answers;
use crate::keys::{self, Distribution, Sequence};
use crate::report::{self, Latency, Row, Spread};
use crate::{Place, Rows, number, progress, run, size, turns};

/// One call in so many puts a new key, beside everything, and for how long.
const NEW_EVERY: u64 = 8;
const NEW_LIVE: Duration = Duration::from_secs(5);
/// From line to line.
const LINES_EVERY: Duration = Duration::from_secs(1);
/// How often all keys are overwritten before the clock starts, in parts of a hundred.
const WARM_UP_PERCENT: u64 = 150;

/// The work that calls are measured beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    /// Compaction in the background, beside overwrites
    Compaction,
    /// Sums over all objects, beside reads
    Sums,
    /// Compaction, lines, growth, expiry and sums at once, beside writes
    Everything,
}

impl Work {
    fn compacts(self) -> bool {
        self != Work::Sums
    }

    fn sums(self) -> bool {
        self != Work::Compaction
    }
}

/// The options of `pacing`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What goes on beside the calls
    #[arg(long, value_enum, default_value = "compaction")]
    beside: Work,
    /// Number of keys
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// The size of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(16..=4096))]
    value_bytes: u64,
    /// Memory of the store
    #[arg(long, value_name = "BYTES", default_value = "128MiB", value_parser = size::parse)]
    memory: u64,
    /// Calls per second of all threads
    #[arg(long, default_value_t = 100_000.0, value_parser = number::rate)]
    rate: f64,
    /// Threads that call; each takes a processor
    #[arg(long, default_value_t = 1, value_parser = number::threads)]
    threads: usize,
    /// Bytes of log for each that lives, at which compaction begins
    #[arg(long, default_value_t = 2.0, value_parser = number::factor)]
    target: f64,
    /// Measured seconds per setting
    #[arg(long, default_value_t = 20.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    rows: Rows,
}

impl Arguments {
    /// The seconds from one call of a thread to its next, and how many it makes.
    fn calls(&self) -> (f64, u64) {
        let pause = self.threads as f64 / self.rate;
        (pause, (self.seconds / pause) as u64)
    }

    /// The number of the key that is new with a thread's call.
    fn added_by(&self, call: u64, lane: u64) -> u64 {
        self.keys + call * self.threads as u64 + lane
    }
}

/// Calls with the work beside them or without.
struct Setting {
    name: &'static str,
    has_work: bool,
    rates: Vec<f64>,
    latency: Histogram<u64>,
    /// The highest percentiles of each run.
    p99: Vec<f64>,
    given_back: u64,
    amplification: f64,
    sums: u64,
    sum_seconds: f64,
}

impl Setting {
    fn new(name: &'static str, has_work: bool) -> Self {
        let (rates, latency, p99) = (Vec::new(), run::histogram(), Vec::new());
        Self { name, has_work, rates, latency, p99, given_back: 0, amplification: 0.0, sums: 0, sum_seconds: 0.0 }
    }

    fn both(beside: Work) -> [Self; 2] {
        let [without, with] = match beside {
            Work::Compaction => ["overwrites without compaction", "overwrites with compaction"],
            Work::Sums => ["reads beside a busy loop", "reads beside sums"],
            Work::Everything => ["writes beside a busy loop", "writes beside everything"],
        };
        [Self::new(without, false), Self::new(with, true)]
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let sequences = keys::sequences(Distribution::Uniform, arguments.keys, arguments.threads);
    let mut settings = Setting::both(arguments.beside);
    let bar = progress::bar((arguments.runs * settings.len()) as u64);
    for run in 0..arguments.runs {
        for setting in turns::of_run(&mut settings, run) {
            bar.set_message(setting.name);
            let directory = arguments.place.temporary()?;
            measure(arguments, setting, &sequences, directory.path())?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut rows: Vec<Row> = settings.iter().map(|setting| row(arguments, setting)).collect();
    let slower = ratios(&settings);
    rows[1].p99_ratio_to_without = Some(slower);
    print(arguments, &rows, &settings, slower);
    report::write_json(arguments.rows.json.as_deref(), &rows)
}

fn measure(arguments: &Arguments, setting: &mut Setting, sequences: &[Sequence], directory: &Path) -> Result<()> {
    let compacts = arguments.beside.compacts();
    let target = if compacts && !setting.has_work { f64::INFINITY } else { arguments.target };
    let draws = arguments.beside == Work::Everything && setting.has_work;
    let durability = if draws { Durability::Every(LINES_EVERY) } else { Durability::None };
    let options = Options::new().memory(arguments.memory).space_amplification(target).durability(durability);
    let store: Store<u64, [u8]> = options.open(directory.join("store"))?;
    let value = vec![7; arguments.value_bytes as usize];
    let mut before_all = Written::by_nobody(arguments.keys);
    for index in 0..arguments.keys {
        before_all.put_and_note(&store, keys::key(index), &value)?;
    }
    let warm_up = if compacts { (arguments.keys * WARM_UP_PERCENT / 100) as usize } else { 0 };
    sequences[0].keys.iter().cycle().take(warm_up).try_for_each(|&key| before_all.put_and_note(&store, key, &value))?;
    let writes = u64::from(before_all.writes) + arguments.threads as u64 * arguments.calls().1;
    ensure!(u32::try_from(writes).is_ok(), "{writes} writes are more than values can tell");
    let before = store.stats().space;
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let (lanes, took, sums) = std::thread::scope(|scope| {
        let (store, stop, has_work) = (&store, &stop, setting.has_work);
        let value = &value;
        let writes = before_all.writes;
        let lane = move |own| Lane { store, arguments, has_work, begun, value, warm_up, writes }.run(own);
        let work = move || if has_work { add_up(store, arguments, stop) } else { Ok(be_busy(stop)) };
        let sums = arguments.beside.sums().then(|| scope.spawn(work));
        let threads: Vec<_> = (0..).zip(sequences).map(|own| scope.spawn(move || lane(own))).collect();
        let lanes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let took = begun.elapsed().as_secs_f64();
        // Whatever became of them: else the scope would wait for ever.
        stop.store(true, Ordering::Relaxed);
        (lanes, took, sums.map_or(Ok((0, 0.0)), |thread| thread.join().expect("a worker does not panic")))
    });
    let (mut latency, mut written) = (run::histogram(), Vec::new());
    for lane in lanes {
        let (own, wrote) = lane.expect("a worker does not panic")?;
        latency += &own;
        written.push(wrote);
    }
    let after = store.stats().space;
    setting.rates.push(latency.len() as f64 / took);
    setting.p99.push(latency.value_at_quantile(0.99) as f64);
    setting.latency += &latency;
    setting.given_back += after.given_back_bytes - before.given_back_bytes;
    setting.amplification = setting.amplification.max(after.amplification);
    let (sums, seconds) = sums?;
    setting.sums += sums;
    setting.sum_seconds += seconds;
    check(&store, arguments, &before_all, &written)?;
    if arguments.beside == Work::Everything && !setting.has_work {
        check_new(&store, arguments)?;
    }
    store.close()?;
    Ok(())
}

/// Computes, without the store, until it is told to stop.
fn be_busy(stop: &AtomicBool) -> (u64, f64) {
    let mut number = 1u64;
    while !stop.load(Ordering::Relaxed) {
        number = std::hint::black_box(keys::key(number));
    }
    (0, 0.0)
}

/// Sums until it is told to stop; how many there were, and the seconds they took.
fn add_up(store: &Store<u64, [u8]>, arguments: &Arguments, stop: &AtomicBool) -> Result<(u64, f64)> {
    let amount = |_: u64, value: &[u8]| match value.first_chunk() {
        Some(first) if value[8] != NEW => u64::from_le_bytes(*first),
        _ => 0,
    };
    let expected: i128 = (0..arguments.keys).map(|index| i128::from(keys::key(index))).sum();
    let (mut sums, begun) = (0, Instant::now());
    // One at least, however short the time.
    loop {
        let sum = store.scan().aggregate(Sum(amount))?;
        ensure!(sum == expected, "the sum is {sum}, not {expected}");
        sums += 1;
        if stop.load(Ordering::Relaxed) {
            return Ok((sums, begun.elapsed().as_secs_f64()));
        }
    }
}

/// The ninth byte of a value whose key was not there when the clock started.
const NEW: u8 = 1;

/// Which of somebody's writes each key got last.
struct Written {
    last: Vec<u32>,
    writes: u32,
}

/// Where a value tells that.
const WRITE: std::ops::Range<usize> = 9..13;

impl Written {
    fn by_nobody(keys: u64) -> Self {
        Self { last: vec![0; keys as usize], writes: 0 }
    }

    /// The next of its writes, which is to be noted.
    fn put(&self, store: &Store<u64, [u8]>, key: u64, value: &[u8]) -> Result<()> {
        own_value(key, value, |own| {
            own[WRITE].copy_from_slice(&(self.writes + 1).to_le_bytes());
            Ok(store.put(&key, own)?)
        })
    }

    fn put_and_note(&mut self, store: &Store<u64, [u8]>, key: u64, value: &[u8]) -> Result<()> {
        self.put(store, key, value)?;
        self.note(key);
        Ok(())
    }

    fn note(&mut self, key: u64) {
        self.writes += 1;
        self.last[keys::index(key) as usize] = self.writes;
    }
}

/// Of a key with this number behind those that were loaded.
fn put_new(store: &Store<u64, [u8]>, number: u64, ends: bool, value: &[u8]) -> Result<()> {
    let key = keys::key(number);
    own_value(key, value, |own| {
        own[8] = NEW;
        let put = if ends { store.put_with_ttl(&key, own, NEW_LIVE) } else { store.put(&key, own) };
        Ok(put?)
    })
}

fn own_value<R>(key: u64, value: &[u8], with: impl FnOnce(&mut [u8]) -> R) -> R {
    // Nothing to allocate: what is measured is the store.
    let mut own = [0; 4096];
    let own = own.get_mut(..value.len()).unwrap_or_default();
    own.copy_from_slice(&value[..own.len()]);
    own[..8].copy_from_slice(&key.to_le_bytes());
    with(own)
}

/// What the threads that call share.
#[derive(Clone, Copy)]
struct Lane<'s> {
    store: &'s Store<u64, [u8]>,
    arguments: &'s Arguments,
    has_work: bool,
    begun: Instant,
    value: &'s [u8],
    /// So many keys of a sequence were used before, and so many writes made.
    warm_up: usize,
    writes: u32,
}

impl Lane<'_> {
    /// How long the calls of one took, and what it wrote.
    fn run(self, (lane, sequence): (u64, &Sequence)) -> Result<(Histogram<u64>, Written)> {
        let Self { store, arguments, has_work, begun, value, warm_up, writes } = self;
        let is_read = arguments.beside == Work::Sums;
        let (mut latency, mut written) = (run::histogram(), Written::by_nobody(if is_read { 0 } else { arguments.keys }));
        let (pause, count) = arguments.calls();
        // Each write of all has a number of its own.
        written.writes = writes + (lane * count) as u32;
        for (number, &key) in (0..count).zip(sequence.keys.iter().cycle().skip(warm_up)) {
            let due = begun + Duration::from_secs_f64(number as f64 * pause);
            run::wait_until(due);
            let is_new = arguments.beside == Work::Everything && number % NEW_EVERY == 0;
            if is_read {
                let is_own = store.get_with(&key, |value| value[..8] == key.to_le_bytes())?;
                ensure!(is_own == Some(true), "a value is wrong");
            } else if is_new {
                put_new(store, arguments.added_by(number, lane), has_work, value)?;
            } else {
                written.put(store, key, value)?;
            }
            latency.saturating_record(due.elapsed().as_nanos() as u64);
            if !is_read && !is_new {
                written.note(key);
            }
        }
        Ok((latency, written))
    }
}

/// Each key is there with what was written last to it: before the clock started if by no thread since, else by one of them.
fn check(store: &Store<u64, [u8]>, arguments: &Arguments, before_all: &Written, since: &[Written]) -> Result<()> {
    let batch: Vec<u64> = (0..arguments.keys).map(keys::key).collect();
    let (mut wrong, mut answers) = (0, Answers::to(batch.len()));
    store.get_many(&batch, |at, found| {
        answers.note(at);
        let is_right = found.is_some_and(|value| {
            let told = || value[WRITE].try_into().map(u32::from_le_bytes);
            keys::is_own(batch[at], value, arguments.value_bytes) && told().is_ok_and(|write| is_last(at, write, before_all, since))
        });
        wrong += u64::from(!is_right);
    })?;
    wrong += answers.faults();
    ensure!(wrong == 0, "{wrong} values are wrong, not the last ones, or were not told");
    Ok(())
}

/// New keys that do not end are there.
fn check_new(store: &Store<u64, [u8]>, arguments: &Arguments) -> Result<()> {
    let (_, count) = arguments.calls();
    for lane in 0..arguments.threads as u64 {
        for key in (0..count).step_by(NEW_EVERY as usize).map(|call| keys::key(arguments.added_by(call, lane))) {
            let is_own = store.get_with(&key, |value| keys::is_own(key, value, arguments.value_bytes) && value[8] == NEW)?;
            ensure!(is_own == Some(true), "a new key is lost or has a wrong value");
        }
    }
    Ok(())
}

fn is_last(at: usize, write: u32, before_all: &Written, since: &[Written]) -> bool {
    let mut last = since.iter().filter_map(|written| written.last.get(at).copied()).filter(|last| *last > 0).peekable();
    if last.peek().is_none() { write == before_all.last[at] } else { last.any(|last| last == write) }
}

fn row(arguments: &Arguments, setting: &Setting) -> Row {
    Row {
        experiment: "pacing",
        engine: "esker".to_owned(),
        operation: setting.name.to_owned(),
        reads_percent: if arguments.beside == Work::Sums { 100 } else { 0 },
        distribution: Distribution::Uniform.name(),
        threads: arguments.threads,
        keys: arguments.keys,
        value_bytes: arguments.value_bytes,
        batch: 1,
        runs: arguments.runs,
        ops_per_second: Spread::of(&setting.rates),
        memory_bytes: Some(arguments.memory),
        latency_ns: Some(Latency::of(&setting.latency)),
        ..Row::default()
    }
}

/// The p99 of calls beside the work to that of calls without it, run by run.
fn ratios(settings: &[Setting; 2]) -> Spread {
    let [without, with] = settings;
    Spread::of(&with.p99.iter().zip(&without.p99).map(|(with, without)| with / without).collect::<Vec<_>>())
}

fn print(arguments: &Arguments, rows: &[Row], settings: &[Setting; 2], slower: Spread) {
    let (compacts, sums) = (arguments.beside.compacts(), arguments.beside.sums());
    let told = [(compacts, "given back"), (compacts, "log / live"), (sums, "sums"), (sums, "ns an object")];
    let told = told.into_iter().filter_map(|(is_told, head)| is_told.then_some(head));
    let head: Vec<&str> = ["calls", "rate", "p50", "p99", "p99.9", "max"].into_iter().chain(told).collect();
    let body = rows.iter().zip(settings).map(|(row, setting)| {
        let latency = Latency::of(&setting.latency);
        let mut cells = vec![row.operation.clone(), report::rate(row.ops_per_second.median)];
        cells.extend([latency.p50, latency.p99, latency.p999, latency.max].map(report::nanoseconds));
        if compacts {
            cells.extend([format!("{} MiB", setting.given_back >> 20), format!("{:.2}", setting.amplification)]);
        }
        if sums {
            let pace = setting.sum_seconds * 1e9 / (setting.sums * arguments.keys) as f64;
            cells.extend([setting.sums.to_string(), report::optional((setting.sums > 0).then_some(pace))]);
        }
        cells
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
    let Spread { median, min, max, .. } = slower;
    report::say!("p99 of {} is {median:.2} ({min:.2}-{max:.2}) times that of {}.", settings[1].name, settings[0].name);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written before is told from what was written last.
    #[test]
    fn a_lost_overwrite_is_found() {
        let written = |last: [u32; 2]| Written { last: last.to_vec(), writes: 0 };
        let (before, since) = (written([5, 6]), [written([0, 9]), written([0, 11])]);
        assert!(is_last(0, 5, &before, &since) && !is_last(0, 4, &before, &since));
        assert!(is_last(1, 9, &before, &since) && is_last(1, 11, &before, &since) && !is_last(1, 6, &before, &since));
    }

    /// Every sum and every value is right: `measure` refuses anything else.
    #[test]
    fn all_kinds_of_work_are_measured() {
        for beside in [Work::Compaction, Work::Sums, Work::Everything] {
            let arguments = Arguments {
                beside,
                keys: 20_000,
                value_bytes: 100,
                memory: 16 << 20,
                rate: 20_000.0,
                threads: 2,
                target: 2.0,
                seconds: 0.1,
                runs: 1,
                place: Place::default(),
                rows: Rows::default(),
            };
            let sequences = keys::sequences(Distribution::Uniform, arguments.keys, arguments.threads);
            for mut setting in Setting::both(beside) {
                let directory = arguments.place.temporary().unwrap();
                measure(&arguments, &mut setting, &sequences, directory.path()).unwrap();
                assert_eq!((setting.latency.len(), setting.p99.len()), (2_000, 1));
                assert_eq!(setting.sums > 0, beside.sums() && setting.has_work);
            }
        }
    }
}
