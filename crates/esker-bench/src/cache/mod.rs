//! Caches beside each other: who keeps what is asked for again, and how quickly.
//!
//! Every engine may hold the same number of bytes (for Esker that is everything, index and buffers included; the others count keys
//! and values only, so `resident` tells what they really take) and gets the same requests: a look, and where nothing is found a
//! put. Requests follow a Zipf law whose hot set moves on, new favourites coming in at the top, as the shapes of public traces
//! do; mixed with scans, a part of them walk through keys that come back no sooner than all others have passed. The hit rate
//! counts once the cache has had a quarter of the run to fill.

mod engines;
mod requests;

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::report::{self, Row, Spread};
use crate::{Outputs, chart, memory, progress, size};
use engines::{Name, Sized};
use requests::Requests;

/// The options of `cache`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys asked for besides those of scans
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Size of a value
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    value_bytes: usize,
    /// What a cache may hold
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = size::parse)]
    memory: u64,
    /// Exponents of the Zipf law
    #[arg(long, value_delimiter = ',', default_value = "0.8,0.99,1.1")]
    exponents: Vec<f64>,
    /// Of a hundred requests, how many belong to scans
    #[arg(long, value_delimiter = ',', default_value = "0,25")]
    scans: Vec<u8>,
    /// Requests between two steps of the hot set, by one key each; 0: it stays
    #[arg(long, default_value_t = 500)]
    drift: u64,
    /// Requests of each thread
    #[arg(long, default_value_t = 8_000_000)]
    requests: usize,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "2")]
    threads: Vec<usize>,
    /// The caches
    #[arg(long, value_delimiter = ',')]
    engines: Option<Vec<Name>>,
    /// Number of runs
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// What one run gave.
struct Measured {
    rate: f64,
    hit_rate: f64,
    resident: u64,
}

/// A shape of requests.
#[derive(Clone, Copy)]
struct Shape {
    exponent: f64,
    scans: u8,
    threads: usize,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.runs > 0 && arguments.requests >= 1000, "there must be a run and a thousand requests");
    ensure!(arguments.value_bytes >= 8, "a value holds its key");
    let engines = arguments.engines.clone().unwrap_or_else(Name::all);
    let shapes = shapes(arguments);
    let bar = progress::bar((shapes.len() * engines.len() * arguments.runs) as u64);
    let mut rows = Vec::new();
    for shape in shapes {
        let requests = Requests::draw(arguments.keys, shape.exponent, shape.scans, arguments.drift, arguments.requests, shape.threads);
        // Turn by turn, so that what else the machine does meets all of them.
        let mut runs: Vec<Vec<Measured>> = engines.iter().map(|_| Vec::new()).collect();
        for _ in 0..arguments.runs {
            for (name, runs) in engines.iter().zip(&mut runs) {
                bar.set_message(format!("{} {}", name.text(), shape.text()));
                runs.push(measure(*name, arguments, &requests).with_context(|| name.text())?);
                bar.inc(1);
            }
        }
        let named = engines.iter().zip(&runs);
        rows.extend(named.map(|(name, runs)| row(arguments, *name, shape, runs)));
    }
    bar.finish_and_clear();
    report::compare(&mut rows);
    compare_hits(&mut rows);
    finish(arguments, &rows)
}

fn shapes(arguments: &Arguments) -> Vec<Shape> {
    let of = |exponent, scans| arguments.threads.iter().map(move |&threads| Shape { exponent, scans, threads });
    let scans = |exponent| arguments.scans.iter().flat_map(move |&scans| of(exponent, scans));
    arguments.exponents.iter().flat_map(|&exponent| scans(exponent)).collect()
}

impl Shape {
    fn text(self) -> String {
        match self.scans {
            0 => format!("zipf {}", self.exponent),
            scans => format!("zipf {}, {scans}% scans", self.exponent),
        }
    }
}

fn measure(name: Name, arguments: &Arguments, requests: &Requests) -> Result<Measured> {
    let base = memory::settled_bytes();
    let cache = name.open(Sized { memory: arguments.memory, value_bytes: arguments.value_bytes })?;
    let begun = Instant::now();
    let hits = std::thread::scope(|scope| {
        let threads: Vec<_> = requests.threads().map(|keys| scope.spawn(|| cache.serve(keys))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a cache does not panic")).sum::<Result<u64>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let resident = memory::resident_bytes().saturating_sub(base);
    Ok(Measured { rate: requests.count() as f64 / seconds, hit_rate: hits as f64 / requests.counted() as f64, resident })
}

fn row(arguments: &Arguments, name: Name, shape: Shape, runs: &[Measured]) -> Row {
    let spread = |of: fn(&Measured) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
    Row {
        experiment: "cache",
        engine: name.text().to_owned(),
        operation: shape.text(),
        reads_percent: 100,
        distribution: "zipf, moving",
        threads: shape.threads,
        keys: arguments.keys,
        value_bytes: arguments.value_bytes as u64,
        batch: 1,
        runs: runs.len(),
        ops_per_second: spread(|run| run.rate),
        memory_bytes: Some(arguments.memory),
        hit_rate: Some(spread(|run| run.hit_rate)),
        resident_bytes: Some(spread(|run| run.resident as f64).median as u64),
        ..Row::default()
    }
}

/// Points of hit rate above or below the best other cache.
fn compare_hits(rows: &mut [Row]) {
    let hits = |row: &Row| row.hit_rate.map_or(0.0, |hits| hits.median);
    let best = |row: &Row| {
        let others = rows.iter().filter(|other| other.operation == row.operation && other.threads == row.threads);
        others.filter(|other| !other.engine.starts_with("esker") && other.engine != row.engine).map(hits).max_by(f64::total_cmp)
    };
    let points: Vec<_> = rows.iter().map(|row| best(row).map(|best| 100.0 * (hits(row) - best))).collect();
    rows.iter_mut().zip(points).for_each(|(row, points)| row.hit_points_to_best_peer = points);
}

fn finish(arguments: &Arguments, rows: &[Row]) -> Result<()> {
    let head = ["engine", "requests", "threads", "hits %", "min", "max", "points", "median", "min", "max", "to best", "resident MiB"];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    report::write_json(arguments.outputs.json.as_deref(), rows)?;
    let title =
        format!("Hits in a hundred requests, {} keys of {} bytes, {} MiB", arguments.keys, arguments.value_bytes, arguments.memory >> 20);
    let hits = rows.iter().map(|row| Row { ops_per_second: percent(row), ..row.clone() });
    report::write_svg(arguments.outputs.svg.as_deref(), || chart::rates(&title, &hits.collect::<Vec<_>>()))
}

fn percent(row: &Row) -> Spread {
    let Spread { median, min, max } = row.hit_rate.unwrap_or_default();
    Spread { median: 100.0 * median, min: 100.0 * min, max: 100.0 * max }
}

fn cells(row: &Row) -> Vec<String> {
    let hits = percent(row);
    vec![
        row.engine.clone(),
        row.operation.clone(),
        row.threads.to_string(),
        format!("{:.2}", hits.median),
        format!("{:.2}", hits.min),
        format!("{:.2}", hits.max),
        row.hit_points_to_best_peer.map_or_else(|| "-".to_owned(), |points| format!("{points:+.2}")),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        report::optional(row.ratio_to_best_peer),
        row.resident_bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string()),
    ]
}
