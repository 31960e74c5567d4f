//! What compaction costs those who write meanwhile: overwrites at the space target with compaction in the background, beside the
//! same overwrites without it.
//!
//! Open loop: an overwrite is due at its time whether the one before has ended or not, and what is measured goes from that time to its
//! end. So a pause counts for every operation that it held up, not for one. The rate is the same for both, and given: at the rate of a
//! full load nothing would say whether a queue or compaction makes a call wait. Keys are uniform and the data larger than the memory, so
//! that nearly each overwrite leaves a dead record behind. Both stores are loaded and overwritten alike before the clock starts, until the one
//! with compaction is at its target and compacts. Afterwards each key is read back.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::{Options, Store};
use hdrhistogram::Histogram;

use crate::keys::{self, Distribution, Sequence};
use crate::report::{self, Latency, Row, Spread};
use crate::{Outputs, Place, progress, run, size};

/// Below this wait a thread spins: waking up takes longer.
const SPIN: Duration = Duration::from_micros(200);
/// How often all keys are overwritten before the clock starts, in parts of a hundred.
const WARM_UP_PERCENT: u64 = 150;

/// The options of `pacing`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// The size of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(16..=4096))]
    value_bytes: u64,
    /// Memory of the store
    #[arg(long, value_name = "BYTES", default_value = "128MiB", value_parser = size::parse)]
    memory: u64,
    /// Overwrites per second of all threads
    #[arg(long, default_value_t = 100_000.0)]
    rate: f64,
    /// Threads that overwrite; each takes a processor
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Bytes of log for each that lives, at which compaction begins
    #[arg(long, default_value_t = 2.0)]
    target: f64,
    /// Measured seconds per setting
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// Overwrites with compaction or without.
struct Setting {
    name: &'static str,
    target: f64,
    rates: Vec<f64>,
    latency: Histogram<u64>,
    /// The highest percentiles of each run.
    p99: Vec<f64>,
    given_back: u64,
    amplification: f64,
}

impl Setting {
    fn new(name: &'static str, target: f64) -> Self {
        Self { name, target, rates: Vec::new(), latency: run::histogram(), p99: Vec::new(), given_back: 0, amplification: 0.0 }
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.runs > 0 && arguments.threads > 0, "there must be a run and a thread");
    ensure!(arguments.rate > 0.0 && arguments.seconds > 0.0, "there must be something to do");
    let sequences = keys::sequences(Distribution::Uniform, arguments.keys, arguments.threads);
    let mut settings = [Setting::new("without compaction", f64::INFINITY), Setting::new("with compaction", arguments.target)];
    let bar = progress::bar((arguments.runs * settings.len()) as u64);
    for _ in 0..arguments.runs {
        for setting in &mut settings {
            bar.set_message(setting.name);
            let directory = arguments.place.temporary()?;
            measure(arguments, setting, &sequences, directory.path())?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows: Vec<Row> = settings.iter().map(|setting| row(arguments, setting)).collect();
    print(&rows, &settings);
    report::write_json(arguments.outputs.json.as_deref(), &rows)
}

fn measure(arguments: &Arguments, setting: &mut Setting, sequences: &[Sequence], directory: &Path) -> Result<()> {
    let options = Options::new().memory(arguments.memory).space_amplification(setting.target);
    let store: Store<u64, [u8]> = options.open(directory.join("store"))?;
    let value = vec![7; arguments.value_bytes as usize];
    for index in 0..arguments.keys {
        put(&store, keys::key(index), &value)?;
    }
    let warm_up = (arguments.keys * WARM_UP_PERCENT / 100) as usize;
    sequences[0].keys.iter().cycle().take(warm_up).try_for_each(|&key| put(&store, key, &value))?;
    let before = store.stats().space;
    let begun = Instant::now();
    let lanes: Vec<Result<Histogram<u64>>> = std::thread::scope(|scope| {
        let lane = |sequence| overwrite(&store, arguments, sequence, begun, &value);
        let threads: Vec<_> = sequences.iter().map(|sequence| scope.spawn(move || lane(sequence))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    let mut latency = run::histogram();
    for lane in lanes {
        latency += &lane?;
    }
    let took = begun.elapsed().as_secs_f64();
    let after = store.stats().space;
    setting.rates.push(latency.len() as f64 / took);
    setting.p99.push(latency.value_at_quantile(0.99) as f64);
    setting.latency += &latency;
    setting.given_back += after.given_back_bytes - before.given_back_bytes;
    setting.amplification = setting.amplification.max(after.amplification);
    check(&store, arguments)?;
    store.close()?;
    Ok(())
}

/// A value tells its key.
fn put(store: &Store<u64, [u8]>, key: u64, value: &[u8]) -> Result<()> {
    // Nothing to allocate: what is measured is the store.
    let mut own = [0; 4096];
    let own = own.get_mut(..value.len()).unwrap_or_default();
    own.copy_from_slice(&value[..own.len()]);
    own[..8].copy_from_slice(&key.to_le_bytes());
    Ok(store.put(&key, own)?)
}

fn overwrite(store: &Store<u64, [u8]>, arguments: &Arguments, sequence: &Sequence, begun: Instant, value: &[u8]) -> Result<Histogram<u64>> {
    let mut latency = run::histogram();
    let pause = arguments.threads as f64 / arguments.rate;
    let count = (arguments.seconds / pause) as u64;
    for (number, &key) in (0..count).zip(sequence.keys.iter().cycle()) {
        let due = begun + Duration::from_secs_f64(number as f64 * pause);
        wait_until(due);
        put(store, key, value)?;
        latency.saturating_record(due.elapsed().as_nanos() as u64);
    }
    Ok(latency)
}

fn wait_until(due: Instant) {
    loop {
        match due.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => return,
            Some(rest) if rest > SPIN => std::thread::sleep(rest - SPIN),
            Some(_) => std::hint::spin_loop(),
        }
    }
}

fn check(store: &Store<u64, [u8]>, arguments: &Arguments) -> Result<()> {
    let batch: Vec<u64> = (0..arguments.keys).map(keys::key).collect();
    let mut wrong = 0u64;
    store.get_many(&batch, |at, found| {
        let is_own = found.is_some_and(|value| value.len() as u64 == arguments.value_bytes && value[..8] == batch[at].to_le_bytes());
        wrong += u64::from(!is_own);
    })?;
    ensure!(wrong == 0, "{wrong} values are wrong");
    Ok(())
}

fn row(arguments: &Arguments, setting: &Setting) -> Row {
    Row {
        experiment: "pacing",
        engine: "esker".to_owned(),
        operation: setting.name.to_owned(),
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

fn print(rows: &[Row], settings: &[Setting; 2]) {
    let head = ["overwrites", "rate", "p50", "p99", "p99.9", "max", "given back", "log / live"];
    let body = rows.iter().zip(settings).map(|(row, setting)| {
        let latency = Latency::of(&setting.latency);
        let mut cells = vec![row.operation.clone(), report::rate(row.ops_per_second.median)];
        cells.extend([latency.p50, latency.p99, latency.p999, latency.max].map(report::nanoseconds));
        cells.push(format!("{} MiB", setting.given_back >> 20));
        cells.push(format!("{:.2}", setting.amplification));
        cells
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
    let ratios: Vec<f64> = settings[1].p99.iter().zip(&settings[0].p99).map(|(with, without)| with / without).collect();
    let Spread { median, min, max, .. } = Spread::of(&ratios);
    println!("p99 with compaction is {median:.2} ({min:.2}-{max:.2}) times that without.");
}
