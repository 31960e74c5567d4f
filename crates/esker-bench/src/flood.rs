//! A flood: more records than there is memory for, as fast as they are taken or so many a second. Who promises to lose nothing must slow
//! the writer down or refuse; who may drop must say how much it dropped.
//!
//! * A **store** over a device takes all, and waits for the device when its memory is full: the back-pressure is in the latencies.
//! * A **store in memory** refuses what it has no room for, by name; what it took stays.
//! * A **cache** takes all and drops what is old. What is missing afterwards is compared with what it counted.
//!
//! Open loop where a rate is given: a put's latency counts from the time it was due. Afterwards all keys are asked for, and each value
//! found is compared with what was put.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::{Cache, Error, Options, Store};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::answers::Answers;
use crate::report::{self, Latency, Spread};
use crate::{Place, Rows, keys, number, progress, run, size};

/// Of the records a cache's disk holds one in so many.
const DISK_PART: u64 = 2;
const DISK_MIN: u64 = 64 << 20;
/// Keys asked for in one call.
const BATCH: u64 = 1024;
/// What a stretch that is being dropped takes at most, on a busy machine.
const SETTLING: Duration = Duration::from_millis(20);

/// Who is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A store over a device
    Store,
    /// A store in memory
    Memory,
    /// A cache in memory
    Cache,
    /// A cache over a device that holds half of the records
    DiskCache,
}

impl Kind {
    fn name(self) -> &'static str {
        ["store", "store in memory", "cache", "cache on disk"][self as usize]
    }

    fn open(self, arguments: &Arguments, directory: &Path) -> Result<Store<u64, [u8]>> {
        let options = Options::new().memory(arguments.memory());
        let on_device = options.clone().durability(run::lines(arguments.line_seconds)?);
        let disk = (arguments.bytes() / DISK_PART).max(DISK_MIN);
        Ok(match self {
            Self::Store => on_device.open(directory.join("store"))?,
            Self::Memory => options.in_memory()?,
            Self::Cache => options.cache(Cache::new()).in_memory()?,
            Self::DiskCache => on_device.cache(Cache::new().disk(disk)).open(directory.join("store"))?,
        })
    }
}

/// The options of `flood`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Who is flooded
    #[arg(long, value_enum, value_delimiter = ',', default_value = "store,memory,cache,disk-cache")]
    kinds: Vec<Kind>,
    /// Number of records
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    records: u64,
    /// The size of a value
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(8..=4096))]
    value_bytes: u64,
    /// Memory of the store [default: half of the records' bytes]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Seconds from line to line of those over a device; 0: no lines but those that give back space
    #[arg(long, default_value_t = 0.0)]
    line_seconds: f64,
    /// Records a second; 0: as fast as they are taken
    #[arg(long, value_delimiter = ',', default_value = "0,100000,50000,20000")]
    rates: Vec<u64>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    rows: Rows,
}

impl Arguments {
    fn bytes(&self) -> u64 {
        self.records * self.value_bytes
    }

    fn memory(&self) -> u64 {
        self.memory.unwrap_or_else(|| (self.bytes() / 2).max(size::LEAST))
    }
}

/// What became of a flood.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    common: report::Row,
    kind: &'static str,
    /// As asked for; 0: as fast as they are taken.
    rate: u64,
    /// Puts that ended with `Full`.
    refused: u64,
    /// Records that were taken and are not there.
    lost: u64,
    /// Those of them that the store says it dropped.
    counted: u64,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bar = progress::bar((arguments.kinds.len() * arguments.rates.len()) as u64);
    let mut rows = Vec::new();
    for &kind in &arguments.kinds {
        for &rate in &arguments.rates {
            bar.set_message(format!("{}, {rate} records a second", kind.name()));
            let directory = arguments.place.temporary()?;
            rows.push(measure(arguments, kind, rate, directory.path())?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    print(&rows);
    report::write_json(arguments.rows.json.as_deref(), &rows)
}

fn measure(arguments: &Arguments, kind: Kind, rate: u64, directory: &Path) -> Result<Row> {
    let store = kind.open(arguments, directory)?;
    let mut latency = run::histogram();
    let begun = Instant::now();
    let refused = flood(&store, arguments, rate, begun, &mut latency)?;
    // What was refused does not count.
    let taken_per_second = (arguments.records - refused) as f64 / begun.elapsed().as_secs_f64();
    let count = || store.stats().cache.map_or(0, |cache| cache.evictions);
    let (missing, counted) = loop {
        let before = count();
        let missing = arguments.records - found(&store, arguments)?;
        // A stretch may still be on its way out, and half of it counted. Over a device what is asked for pushes others out.
        std::thread::sleep(SETTLING);
        let counted = count();
        if counted == before || kind == Kind::DiskCache {
            break (missing, counted);
        }
    };
    store.close()?;
    ensure!(missing >= refused, "a refused record is there");
    let lost = missing - refused;
    ensure!(lost == 0 || matches!(kind, Kind::Cache | Kind::DiskCache), "a store lost {lost} records");
    let common = report::Row {
        experiment: "flood",
        engine: "esker".to_owned(),
        operation: "put".to_owned(),
        distribution: "scattered",
        threads: 1,
        keys: arguments.records,
        value_bytes: arguments.value_bytes,
        batch: 1,
        runs: 1,
        ops_per_second: Spread::of(&[taken_per_second]),
        latency_ns: Some(Latency::of(&latency)),
        memory_bytes: Some(arguments.memory()),
        records: Some(arguments.records),
        ..report::Row::default()
    };
    Ok(Row { common, kind: kind.name(), rate, refused, lost, counted })
}

/// Puts all records; how many were refused.
fn flood(store: &Store<u64, [u8]>, arguments: &Arguments, rate: u64, begun: Instant, latency: &mut Histogram<u64>) -> Result<u64> {
    let (mut value, mut refused) = (vec![0; arguments.value_bytes as usize], 0);
    for number in 0..arguments.records {
        let due = match rate {
            0 => Instant::now(),
            rate => begun + Duration::from_secs_f64(number as f64 / rate as f64),
        };
        run::wait_until(due);
        let key = keys::key(number);
        value[..8].copy_from_slice(&key.to_le_bytes());
        match store.put(&key, &value) {
            Err(Error::Full) => refused += 1,
            done => done?,
        }
        latency.saturating_record(due.elapsed().as_nanos() as u64);
    }
    Ok(refused)
}

/// How many records are there, each with its own value.
fn found(store: &Store<u64, [u8]>, arguments: &Arguments) -> Result<u64> {
    let (mut found, mut wrong) = (0, 0u64);
    for first in (0..arguments.records).step_by(BATCH as usize) {
        let batch: Vec<u64> = (first..(first + BATCH).min(arguments.records)).map(keys::key).collect();
        let mut answers = Answers::to(batch.len());
        store.get_many(&batch, |at, value| {
            answers.note(at);
            let Some(value) = value else { return };
            found += 1;
            wrong += u64::from(!keys::is_own(batch[at], value, arguments.value_bytes));
        })?;
        wrong += answers.faults();
    }
    ensure!(wrong == 0, "{wrong} values are wrong or were not told");
    Ok(found)
}

fn print(rows: &[Row]) {
    let head = ["who", "asked", "taken", "p50", "p99", "p99.9", "max", "refused", "lost", "counted"];
    let body = rows.iter().map(|row| {
        let asked = if row.rate == 0 { "all there is".to_owned() } else { report::rate(row.rate as f64) };
        let mut cells = vec![row.kind.to_owned(), asked, report::rate(row.common.ops_per_second.median)];
        cells.extend(report::latencies(&row.common));
        cells.extend([row.refused, row.lost, row.counted].map(|count| count.to_string()));
        cells
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four times what memory holds. A store loses nothing (`measure` refuses anything else); a cache counts what it drops.
    #[test]
    fn what_is_lost_is_counted() {
        let arguments = Arguments {
            kinds: Vec::new(),
            records: 60_000,
            value_bytes: 1024,
            memory: Some(size::LEAST),
            line_seconds: 0.0,
            rates: Vec::new(),
            place: Place::default(),
            rows: Rows::default(),
        };
        let of = |kind, rate| measure(&arguments, kind, rate, arguments.place.temporary().unwrap().path()).unwrap();
        assert_eq!(of(Kind::Store, 0).refused, 0);
        let memory = of(Kind::Memory, 150_000);
        assert!(memory.refused > 40_000);
        // No put begins before it is due, so less than a third of the rate is taken.
        assert!(memory.common.ops_per_second.median < 50_000.0, "{memory:?}");
        let cache = of(Kind::Cache, 0);
        assert!(cache.lost > 40_000 && cache.refused == 0);
        assert_eq!(cache.lost, cache.counted);
    }
}
