//! What it costs to check everything: a checksum for each block of 4 KiB that is written, and again for each that is read.
//!
//! **Reads** can do without (`Options::verify_reads`): the same store, larger than its memory, is opened with checks and without, in
//! turns, and uniformly chosen keys are read from it, one by one and in batches. Nothing is copied back into memory meanwhile. A single
//! read waits for the device; many at once keep the processor busy, so there the checks show.
//!
//! **Loading and recovery** cannot: what they pay is computed, from the length of the log and the rate at which one core checksums blocks
//! of such a log in memory, and told beside the time that they take (recovery: the experiment `recovery`).

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use esker::{Options, Store};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::report::{self, Row, Spread};
use crate::{Place, Rows, keys, number, progress, size};

/// Pairs per `put_many` of the load.
const LOAD_BATCH: u64 = 1024;
/// What a block of the log holds, and what it takes.
const PAYLOAD_BYTES: usize = 4080;
const BLOCK_BYTES: u64 = 4096;
/// Blocks that are checksummed for the rate: more than a core's own caches hold, as what comes from a device is.
const BLOCKS: usize = 1 << 14;
/// Reads between two looks at the clock.
const LOOK: usize = 64;

/// The options of `integrity`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// Memory of the store: less than the log of the keys, 24 bytes each
    #[arg(long, value_name = "BYTES", default_value = "512MiB", value_parser = size::parse)]
    memory: u64,
    /// Numbers of keys per call
    #[arg(long, value_delimiter = ',', default_value = "1,1024", value_parser = number::count)]
    batch: Vec<usize>,
    /// Measured seconds per setting
    #[arg(long, default_value_t = 5.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 5, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    rows: Rows,
}

/// The rates of one batch size: checked, and not.
struct Reads {
    batch: usize,
    rates: [Vec<f64>; 2],
    device_reads: Vec<f64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let directory = arguments.place.temporary()?;
    let path = directory.path().join("store");
    let bar = progress::bar(1 + 2 * (arguments.runs * arguments.batch.len()) as u64);
    bar.set_message("loading");
    let (load_seconds, log_bytes) = load(arguments, &path)?;
    bar.inc(1);
    let mut all: Vec<_> =
        arguments.batch.iter().map(|&batch| Reads { batch, rates: [Vec::new(), Vec::new()], device_reads: Vec::new() }).collect();
    for run in 0..arguments.runs {
        // The one that is first has the colder device: so they take turns in that, too.
        for checked in if run % 2 == 0 { [true, false] } else { [false, true] } {
            let store: Store<u64, u64> = options(arguments).verify_reads(checked).open(&path)?;
            for reads in &mut all {
                bar.set_message(format!("reads, batch {}, {}", reads.batch, name(checked)));
                reads.run(arguments, &store, checked, run as u64)?;
                bar.inc(1);
            }
            store.close()?;
        }
    }
    bar.finish_and_clear();
    let rows: Vec<Row> =
        std::iter::once(load_row(arguments, load_seconds, log_bytes)).chain(all.iter().flat_map(|reads| reads.rows(arguments))).collect();
    print(&rows);
    report::write_json(arguments.rows.json.as_deref(), &rows)
}

/// The seconds that one core takes to checksum the blocks of a log of so many bytes, once.
pub(crate) fn checksum_seconds(log_bytes: u64) -> f64 {
    let mut random = SmallRng::seed_from_u64(1);
    let bytes: Vec<u8> = (0..BLOCKS * PAYLOAD_BYTES / 8).flat_map(|_| random.random::<u64>().to_ne_bytes()).collect();
    let pass = || {
        let begun = Instant::now();
        let sum = (0u64..).zip(bytes.chunks_exact(PAYLOAD_BYTES)).fold(0, |sum, (block, payload)| sum ^ xxh3_64_with_seed(payload, block));
        black_box(sum);
        begun.elapsed().as_secs_f64()
    };
    let seconds = Spread::of(&(0..5).map(|_| pass()).collect::<Vec<_>>()).median;
    seconds * (log_bytes / BLOCK_BYTES) as f64 / BLOCKS as f64
}

fn options(arguments: &Arguments) -> Options {
    Options::new().memory(arguments.memory).promotion(false)
}

fn name(checked: bool) -> &'static str {
    if checked { "checked" } else { "not checked" }
}

/// All pairs, durable; the seconds it took, and the bytes of log.
fn load(arguments: &Arguments, path: &Path) -> Result<(f64, u64)> {
    let store: Store<u64, u64> = options(arguments).open(path)?;
    let (begun, mut pairs) = (Instant::now(), Vec::new());
    for from in (0..arguments.keys).step_by(LOAD_BATCH as usize) {
        pairs.clear();
        pairs.extend((from..arguments.keys.min(from + LOAD_BATCH)).map(|n| (keys::key(n), n)));
        store.put_many(&pairs)?;
    }
    store.commit()?;
    let seconds = begun.elapsed().as_secs_f64();
    let log_bytes = store.stats().space.file_bytes;
    store.close()?;
    Ok((seconds, log_bytes))
}

impl Reads {
    /// Reads uniformly chosen keys for the time given; each must have its value.
    fn run(&mut self, arguments: &Arguments, store: &Store<u64, u64>, checked: bool, seed: u64) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut draw = || random.random_range(0..arguments.keys);
        let before = store.stats().operations.device_reads;
        let (begun, mut count) = (Instant::now(), 0u64);
        while begun.elapsed().as_secs_f64() < arguments.seconds {
            let chosen: Vec<u64> = (0..self.batch.max(LOOK)).map(|_| draw()).collect();
            for batch in chosen.chunks(self.batch) {
                read(store, batch)?;
            }
            count += chosen.len() as u64;
        }
        self.rates[usize::from(!checked)].push(count as f64 / begun.elapsed().as_secs_f64());
        self.device_reads.push((store.stats().operations.device_reads - before) as f64 / count as f64);
        Ok(())
    }

    /// Checked first.
    fn rows(&self, arguments: &Arguments) -> [Row; 2] {
        // Run by run, for these were neighbours in time.
        let ratios: Vec<f64> = self.rates[0].iter().zip(&self.rates[1]).map(|(checked, not)| checked / not).collect();
        [true, false].map(|checked| Row {
            operation: format!("get, {}", name(checked)),
            reads_percent: 100,
            distribution: "uniform",
            batch: self.batch,
            ops_per_second: Spread::of(&self.rates[usize::from(!checked)]),
            device_reads_per_get: Some(Spread::of(&self.device_reads).median),
            ratio_to_unchecked: checked.then(|| Spread::of(&ratios)),
            ..base_row(arguments)
        })
    }
}

fn read(store: &Store<u64, u64>, numbers: &[u64]) -> Result<()> {
    if let [number] = numbers {
        ensure!(store.get(&keys::key(*number))? == Some(*number), "pair {number} is not what was put");
        return Ok(());
    }
    let names: Vec<u64> = numbers.iter().map(|&number| keys::key(number)).collect();
    let mut right = 0;
    store.get_many(&names, |index, value: Option<u64>| right += usize::from(value == Some(numbers[index])))?;
    ensure!(right == numbers.len(), "of {} pairs {right} are what was put", numbers.len());
    Ok(())
}

fn base_row(arguments: &Arguments) -> Row {
    Row {
        experiment: "integrity",
        engine: "esker".to_owned(),
        threads: 1,
        keys: arguments.keys,
        value_bytes: 8,
        runs: arguments.runs,
        memory_bytes: Some(arguments.memory),
        ..Row::default()
    }
}

fn load_row(arguments: &Arguments, seconds: f64, log_bytes: u64) -> Row {
    Row {
        operation: "load and commit".to_owned(),
        distribution: "scattered",
        batch: LOAD_BATCH as usize,
        runs: 1,
        ops_per_second: Spread::of(&[arguments.keys as f64 / seconds]),
        seconds: Some(Spread::of(&[seconds])),
        log_bytes: Some(log_bytes),
        checksum_seconds: Some(checksum_seconds(log_bytes)),
        ..base_row(arguments)
    }
}

fn print(rows: &[Row]) {
    let head = ["operation", "batch", "median", "min", "max", "device reads/get", "to not checked"];
    let cells = |row: &Row| {
        vec![
            row.operation.clone(),
            row.batch.to_string(),
            report::rate(row.ops_per_second.median),
            report::rate(row.ops_per_second.min),
            report::rate(row.ops_per_second.max),
            report::optional(row.device_reads_per_get),
            row.ratio_to_unchecked
                .map_or_else(|| "-".to_owned(), |ratio| format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max)),
        ]
    };
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    if let [Row { seconds: Some(took), log_bytes: Some(bytes), checksum_seconds: Some(checksums), .. }, ..] = rows {
        let log = *bytes as f64 / f64::from(1 << 20);
        report::say!("Loading took {:.2} s and wrote {log:.0} MiB of log, whose checksums are {checksums:.3} s of one core.", took.median);
    }
}
