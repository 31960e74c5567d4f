//! Reads from data larger than memory, beside raw reads of the same device.
//!
//! A device has a speed of its own, and reads of a store can only be judged against it. So the same
//! run, in the same directory, measures plain random reads of 4 KiB: one at a time, to compare with
//! single gets, and 64 at a time, to compare with batches. A ratio above the share of keys on the
//! device means that the store asks the device better than 64 waiting threads do.
//!
//! Disk engines can stand in for Esker or beside it, one after another, each next to its own probes. LMDB, redb and fjall read
//! through the page cache: what they show is the device only where the page cache is bounded from outside.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use crate::engines::{Name, Settings};
use crate::probe::Probe;
use crate::report::{self, Latency, Row, Spread};
use crate::run::{self, Contestant, MILLION, Reads};
use crate::{Outputs, Place, chart, keys, memory, number, progress, size};

/// Pairs per `put_many` of the load.
const LOAD_BATCH: usize = 1024;
/// The depths of the probe.
const DEPTHS: [usize; 2] = [1, 64];

/// The options of `hybrid-reads`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 50_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// The stores, of those that keep data on disk
    #[arg(long, value_delimiter = ',', default_value = "esker")]
    engines: Vec<Name>,
    /// Memory of a store
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = size::parse)]
    memory: u64,
    /// Keys per call
    #[arg(long, value_delimiter = ',', default_value = "1,1024", value_parser = number::count)]
    batch: Vec<usize>,
    /// Measured seconds per batch size and per depth of the probe
    #[arg(long, default_value_t = 5.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    /// Size of the file of the probe
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = size::parse)]
    probe_bytes: u64,
    #[command(flatten)]
    place: Place,
    /// Esker reads with `pread` even where `io_uring` works
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

/// What the runs of one engine gave.
struct Measurement {
    name: Name,
    load_rate: f64,
    bytes_per_entry: f64,
    results: Vec<Results>,
    depths: [Vec<f64>; 2],
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    validate(arguments)?;
    let directory = arguments.place.temporary()?;
    let bar = progress::bar(steps(arguments));
    let settings = Settings {
        hybrid_bytes: Some(arguments.memory),
        place: Place { directory: Some(directory.path().to_owned()) },
        no_io_uring: arguments.no_io_uring,
        ..Settings::default()
    };
    bar.set_message("filling the file of the probe");
    let probe = Probe::create(directory.path(), arguments.probe_bytes)?;
    let each = |&name: &Name| measure(arguments, name, &settings, &probe, &bar).with_context(|| name.text());
    let measurements = arguments.engines.iter().map(each).collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let mut rows: Vec<_> = measurements.iter().flat_map(|m| engine_rows(arguments, m)).collect();
    rows.extend(probe_rows(arguments, &measurements));
    finish(arguments, &rows, probe.direct)
}

fn validate(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.probe_bytes > 0, "the file of the probe must have a size");
    ensure!(arguments.engines.iter().all(|engine| engine.keeps_on_disk()), "maps in memory have nothing to read from a device");
    Name::all_are_built(&arguments.engines)
}

/// The steps of the progress: millions of keys, then measurements.
fn steps(arguments: &Arguments) -> u64 {
    let measurements = arguments.runs * (arguments.batch.len() + DEPTHS.len());
    (arguments.keys.div_ceil(MILLION) + measurements as u64) * arguments.engines.len() as u64
}

/// One engine: the load, then all runs, in each of which come the batch sizes and the depths of the probe.
fn measure(arguments: &Arguments, name: Name, settings: &Settings, probe: &Probe, bar: &ProgressBar) -> Result<Measurement> {
    let base = memory::settled_bytes();
    let contestant = name.open(settings)?;
    let load_rate = load(&*contestant, name, arguments.keys, bar)?;
    let bytes_per_entry = memory::per_entry(base, arguments.keys);
    let mut results: Vec<_> = arguments.batch.iter().map(|&batch| Results::new(batch)).collect();
    let mut depths = [Vec::new(), Vec::new()];
    for run in 0..arguments.runs {
        for results in &mut results {
            bar.set_message(format!("{} reads, batch {}", name.text(), results.batch));
            results.run(arguments, &*contestant, run as u64)?;
            bar.inc(1);
        }
        for (rates, depth) in depths.iter_mut().zip(DEPTHS) {
            bar.set_message(format!("probe, depth {depth}"));
            rates.push(probe.measure(depth, arguments.seconds)?);
            bar.inc(1);
        }
    }
    Ok(Measurement { name, load_rate, bytes_per_entry, results, depths })
}

/// Puts all keys and gives the rate.
fn load(contestant: &dyn Contestant, name: Name, keys: u64, bar: &ProgressBar) -> Result<f64> {
    bar.set_message(format!("{} load", name.text()));
    let mut elapsed = Duration::ZERO;
    for from in (0..keys).step_by(MILLION as usize) {
        let million: Vec<_> = (from..(from + MILLION).min(keys)).map(keys::key).collect();
        elapsed += contestant.load(&million, 1, LOAD_BATCH)?.elapsed;
        bar.inc(1);
    }
    Ok(keys as f64 / elapsed.as_secs_f64())
}

impl Results {
    fn new(batch: usize) -> Self {
        Self { batch, rates: Vec::new(), device_reads_per_get: Vec::new(), latency: run::histogram() }
    }

    /// Reads uniformly chosen keys for the time given.
    fn run(&mut self, arguments: &Arguments, contestant: &dyn Contestant, seed: u64) -> Result<()> {
        let reads = Reads { keys: arguments.keys, batch: self.batch, seconds: arguments.seconds, seed };
        let before = contestant.device_reads();
        let measured = contestant.reads(&reads)?;
        let device_reads = contestant.device_reads().zip(before).map(|(after, before)| after - before);
        self.rates.push(measured.rate());
        self.device_reads_per_get.extend(device_reads.map(|reads| reads as f64 / measured.operations as f64));
        self.latency.add(&measured.latency)?;
        Ok(())
    }
}

/// The rows of one engine: the load, then the reads beside the probes of the same runs.
fn engine_rows(arguments: &Arguments, measurement: &Measurement) -> Vec<Row> {
    let mut rows = vec![load_row(arguments, measurement)];
    rows.extend(measurement.results.iter().map(|results| read_row(arguments, measurement, results)));
    rows
}

/// The rows of the probes of all runs.
fn probe_rows(arguments: &Arguments, measurements: &[Measurement]) -> [Row; 2] {
    std::array::from_fn(|index| {
        let rates: Vec<_> = measurements.iter().flat_map(|m| m.depths[index].iter().copied()).collect();
        probe_row(arguments, DEPTHS[index], &rates)
    })
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
        ..Row::default()
    }
}

fn engine_row(arguments: &Arguments, measurement: &Measurement, operation: &str, rate: Spread) -> Row {
    Row {
        bytes_per_entry: Some(measurement.bytes_per_entry),
        memory_bytes: measurement.name.takes_memory().then_some(arguments.memory),
        ..base_row(arguments, measurement.name.text(), operation, rate)
    }
}

fn load_row(arguments: &Arguments, measurement: &Measurement) -> Row {
    let row = engine_row(arguments, measurement, "load", Spread::of(&[measurement.load_rate]));
    Row { reads_percent: 0, distribution: "scattered", runs: 1, batch: LOAD_BATCH, ..row }
}

fn read_row(arguments: &Arguments, measurement: &Measurement, results: &Results) -> Row {
    let rate = Spread::of(&results.rates);
    let probe = usize::from(results.batch > 1);
    let counted = !results.device_reads_per_get.is_empty();
    Row {
        batch: results.batch,
        latency_ns: Some(Latency::of(&results.latency)),
        device_reads_per_get: counted.then(|| Spread::of(&results.device_reads_per_get).median),
        probe_depth: Some(DEPTHS[probe]),
        ratio_to_probe: Some(rate.median / Spread::of(&measurement.depths[probe]).median),
        ..engine_row(arguments, measurement, "get", rate)
    }
}

fn probe_row(arguments: &Arguments, depth: usize, rates: &[f64]) -> Row {
    let row = base_row(arguments, "raw-4KiB", "read", Spread::of(rates));
    Row { threads: depth, value_bytes: 4096, runs: rates.len(), probe_depth: Some(depth), ..row }
}

fn finish(arguments: &Arguments, rows: &[Row], direct: bool) -> Result<()> {
    let head = ["engine", "operation", "batch", "depth", "median", "min", "max", "device reads/get", "to probe", "p50", "p99", "p99.9"];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    if !direct {
        report::say!("The probe read through the page cache: its rates may be those of memory.");
    }
    report::write_json(arguments.outputs.rows.json.as_deref(), rows)?;
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
