//! Reads from data larger than memory, beside raw reads of the same device.
//!
//! A device has a speed of its own, and reads of a store can only be judged against it. So the same
//! run, in the same directory, measures plain random reads of 4 KiB: one at a time, to compare with
//! single gets, and 64 at a time, to compare with batches. A ratio above the share of keys on the
//! device means that the store asks the device better than 64 waiting threads do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::{Options, Store};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::probe::Probe;
use crate::report::{self, Latency, Row, Spread};
use crate::run::{self, MILLION};
use crate::{Outputs, chart, keys, memory, progress, size};

/// Pairs per `put_many` of the load.
const LOAD_BATCH: u64 = 1024;
/// The depths of the probe.
const DEPTHS: [usize; 2] = [1, 64];

/// The options of `hybrid-reads`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 50_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Memory of the store
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = size::parse)]
    memory: u64,
    /// Keys per call
    #[arg(long, value_delimiter = ',', default_value = "1,1024")]
    batch: Vec<usize>,
    /// Measured seconds per batch size and per depth of the probe
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Size of the file of the probe
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = size::parse)]
    probe_bytes: u64,
    /// Directory on the device to measure; the system's for temporary files if not given
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Read with `pread` even where `io_uring` works
    #[arg(long)]
    no_io_uring: bool,
    #[command(flatten)]
    outputs: Outputs,
}

/// What the runs of one batch size gave.
struct Results {
    batch: usize,
    rates: Vec<f64>,
    device_reads_per_get: Vec<f64>,
    latency: Histogram<u64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    validate(arguments)?;
    let parent = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::tempdir_in(parent)?;
    let bar = progress::bar(steps(arguments));
    let base = memory::settled_bytes();
    let options = Options::new().memory(arguments.memory).io_uring(!arguments.no_io_uring);
    let store: Store<u64, u64> = options.open(directory.path().join("store"))?;
    let load_rate = load(&store, arguments.keys, &bar)?;
    let bytes_per_entry = memory::per_entry(base, arguments.keys);
    bar.set_message("filling the file of the probe");
    let probe = Probe::create(directory.path(), arguments.probe_bytes)?;
    let (results, depths) = measure(arguments, &store, &probe, &bar)?;
    bar.finish_and_clear();
    store.close()?;
    let probes = depths.map(|rates| Spread::of(&rates));
    let mut rows = vec![load_row(arguments, load_rate, bytes_per_entry)];
    rows.extend(results.iter().map(|r| read_row(arguments, r, &probes, bytes_per_entry)));
    rows.extend(DEPTHS.iter().zip(probes).map(|(&depth, rate)| probe_row(arguments, depth, rate)));
    finish(arguments, &rows, probe.direct)
}

fn validate(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.runs > 0, "there must be a run");
    ensure!(arguments.seconds > 0.0, "a measurement must last some time");
    ensure!(arguments.probe_bytes > 0, "the file of the probe must have a size");
    ensure!(arguments.batch.iter().all(|&batch| batch > 0), "a batch has at least one key");
    Ok(())
}

/// The steps of the progress: millions of keys, then measurements.
fn steps(arguments: &Arguments) -> u64 {
    arguments.keys.div_ceil(MILLION) + (arguments.runs * (arguments.batch.len() + DEPTHS.len())) as u64
}

/// Puts all keys and gives the rate.
fn load(store: &Store<u64, u64>, keys: u64, bar: &ProgressBar) -> Result<f64> {
    bar.set_message("load");
    let start = Instant::now();
    let mut pairs = Vec::with_capacity(LOAD_BATCH as usize);
    for from in (0..keys).step_by(LOAD_BATCH as usize) {
        let keys = (from..(from + LOAD_BATCH).min(keys)).map(keys::key);
        pairs.clear();
        pairs.extend(keys.map(|key| (key, keys::value(key, 0))));
        store.put_many(&pairs)?;
        bar.set_position(from / MILLION);
    }
    Ok(keys as f64 / start.elapsed().as_secs_f64())
}

/// All runs: each batch size, then each depth of the probe.
fn measure(arguments: &Arguments, store: &Store<u64, u64>, probe: &Probe, bar: &ProgressBar) -> Result<(Vec<Results>, [Vec<f64>; 2])> {
    let mut results = arguments.batch.iter().map(|&batch| Results::new(batch)).collect::<Result<Vec<_>>>()?;
    let mut depths = [Vec::new(), Vec::new()];
    for run in 0..arguments.runs {
        for results in &mut results {
            bar.set_message(format!("reads, batch {}", results.batch));
            results.run(arguments, store, run as u64)?;
            bar.inc(1);
        }
        for (rates, depth) in depths.iter_mut().zip(DEPTHS) {
            bar.set_message(format!("probe, depth {depth}"));
            rates.push(probe.measure(depth, arguments.seconds)?);
            bar.inc(1);
        }
    }
    Ok((results, depths))
}

impl Results {
    fn new(batch: usize) -> Result<Self> {
        let latency = run::histogram();
        Ok(Self { batch, rates: Vec::new(), device_reads_per_get: Vec::new(), latency })
    }

    /// Reads uniformly chosen keys for the time given. The draws of a call are made before it, and
    /// only calls are timed.
    fn run(&mut self, arguments: &Arguments, store: &Store<u64, u64>, seed: u64) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(seed << 32 | self.batch as u64);
        let before = store.stats().operations.device_reads;
        let (mut gets, mut elapsed) = (0u64, Duration::ZERO);
        let mut batch = vec![0; self.batch];
        while elapsed.as_secs_f64() < arguments.seconds {
            batch.fill_with(|| keys::key(random.random_range(0..arguments.keys)));
            let start = Instant::now();
            read(store, &batch)?;
            let call = start.elapsed();
            self.latency.saturating_record(u64::try_from(call.as_nanos())?);
            elapsed += call;
            gets += batch.len() as u64;
        }
        let device_reads = store.stats().operations.device_reads - before;
        self.rates.push(gets as f64 / elapsed.as_secs_f64());
        self.device_reads_per_get.push(device_reads as f64 / gets as f64);
        Ok(())
    }
}

/// Reads some keys in one call and checks the values.
fn read(store: &Store<u64, u64>, batch: &[u64]) -> Result<()> {
    let (mut seen, mut wrong) = (0, 0u64);
    let mut check = |key, value: Option<u64>| {
        seen += 1;
        wrong += u64::from(!value.is_some_and(|value| keys::belongs(key, value)));
    };
    match batch {
        [key] => check(*key, store.get(key)?),
        keys => store.get_many(keys, |index, value| check(keys[index], value))?,
    }
    ensure!(seen == batch.len(), "{seen} of {} keys were answered", batch.len());
    ensure!(wrong == 0, "{wrong} reads gave no value or a wrong one");
    Ok(())
}

fn base_row(arguments: &Arguments, engine: &str, operation: &str, rate: Spread) -> Row {
    Row {
        experiment: "hybrid-reads",
        engine: engine.to_owned(),
        operation: operation.to_owned(),
        reads_percent: 100,
        distribution: "uniform",
        threads: 1,
        keys: arguments.keys,
        value_bytes: 8,
        batch: 1,
        runs: arguments.runs,
        ops_per_second: rate,
        memory_bytes: Some(arguments.memory),
        ..Row::default()
    }
}

fn load_row(arguments: &Arguments, rate: f64, bytes_per_entry: f64) -> Row {
    let row = base_row(arguments, "esker", "load", Spread::of(&[rate]));
    let batch = LOAD_BATCH as usize;
    Row { reads_percent: 0, distribution: "scattered", runs: 1, batch, bytes_per_entry, ..row }
}

fn read_row(arguments: &Arguments, results: &Results, probes: &[Spread; 2], bytes_per_entry: f64) -> Row {
    let rate = Spread::of(&results.rates);
    let probe = usize::from(results.batch > 1);
    Row {
        batch: results.batch,
        bytes_per_entry,
        latency_ns: Some(Latency::of(&results.latency)),
        device_reads_per_get: Some(Spread::of(&results.device_reads_per_get).median),
        probe_depth: Some(DEPTHS[probe]),
        ratio_to_probe: Some(rate.median / probes[probe].median),
        ..base_row(arguments, "esker", "get", rate)
    }
}

fn probe_row(arguments: &Arguments, depth: usize, rate: Spread) -> Row {
    let row = base_row(arguments, "raw-4KiB", "read", rate);
    Row { threads: depth, value_bytes: 4096, memory_bytes: None, probe_depth: Some(depth), ..row }
}

fn finish(arguments: &Arguments, rows: &[Row], direct: bool) -> Result<()> {
    let head = ["engine", "operation", "batch", "depth", "median", "min", "max", "device reads/get", "to probe", "p50", "p99", "p99.9"];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    if !direct {
        println!("The probe read through the page cache: its rates may be those of memory.");
    }
    report::write_json(arguments.outputs.json.as_deref(), rows)?;
    let title = format!("Reads per second, {} keys, {} MiB", arguments.keys, arguments.memory >> 20);
    report::write_svg(arguments.outputs.svg.as_deref(), || chart::rates(&title, rows))
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![
        row.engine.clone(),
        row.operation.clone(),
        row.batch.to_string(),
        row.probe_depth.map_or_else(|| "-".to_owned(), |depth| depth.to_string()),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        report::optional(row.device_reads_per_get),
        report::optional(row.ratio_to_probe),
    ];
    let latency = row.latency_ns.map(|latency| [latency.p50, latency.p99, latency.p999]);
    cells.extend(match latency {
        Some(latency) => latency.map(report::nanoseconds),
        None => ["-"; 3].map(str::to_owned),
    });
    cells
}
