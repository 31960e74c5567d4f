//! Caches beside each other: who keeps what is asked for again, and how quickly.
//!
//! Every engine may hold the same number of bytes (for Esker that is everything, index and buffers included; the others count keys
//! and values only, so `resident` tells what they really take) and gets the same requests: a look, and where nothing is found a
//! put. Requests follow a Zipf law whose hot set moves on, new favourites coming in at the top, as the shapes of public traces
//! do; mixed with scans, a part of them walk through keys that come back no sooner than all others have passed. Loops go through
//! somewhat more keys than fit, over and over, which is the worst for whoever keeps what is newest. Hits count, and the clock
//! of the rate runs, once the cache has had a quarter of the run to fill; beside the hits stands the best that a cache of as many pairs
//! could reach which knows what comes (`best.rs`).

mod best;
mod engines;
mod requests;

use anyhow::{Context, Result, ensure};

use crate::report::{self, Row, Spread};
use crate::{Outputs, chart, memory, number, progress, size, turns};
use engines::{Name, Sized};
use requests::Requests;

/// The options of `cache`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys asked for besides those of scans
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// Size of a value
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    value_bytes: usize,
    /// What a cache may hold
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = size::parse)]
    memory: u64,
    /// Exponents of the Zipf law
    #[arg(long, value_delimiter = ',', default_value = "0.8,0.99,1.1", value_parser = number::exponent)]
    exponents: Vec<f64>,
    /// Of a hundred requests, how many belong to scans: fewer than every other one, as they are mixed
    #[arg(long, value_delimiter = ',', default_value = "0,25", value_parser = clap::value_parser!(u8).range(0..=i64::from(requests::SCANS_MAX)))]
    scans: Vec<u8>,
    /// Loops through so many keys, in hundredths of what fits; 0: none
    #[arg(long, value_delimiter = ',', default_value = "110,150")]
    loops: Vec<u64>,
    /// Requests between two steps of the hot set, by one key each; 0: it stays
    #[arg(long, default_value_t = 500)]
    drift: u64,
    /// Requests of each thread
    #[arg(long, default_value_t = 8_000_000)]
    requests: usize,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "2", value_parser = number::threads)]
    threads: Vec<usize>,
    /// The caches
    #[arg(long, value_delimiter = ',')]
    engines: Option<Vec<Name>>,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// What one run gave.
struct Measured {
    rate: f64,
    hit_rate: f64,
    resident: u64,
    held: u64,
}

/// A shape of requests.
#[derive(Clone, Copy)]
enum Shape {
    Zipf { exponent: f64, scans: u8 },
    Loop { percent: u64 },
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!((1000..number::KEYS as usize).contains(&arguments.requests), "there must be a thousand requests, and fewer than 2^40");
    ensure!((8..=number::VALUE_BYTES as usize).contains(&arguments.value_bytes), "a value holds its key, and has at most 16 MiB");
    let engines = arguments.engines.clone().unwrap_or_else(Name::all);
    let shapes = shapes(arguments);
    let bar = progress::bar((shapes.len() * engines.len() * arguments.runs) as u64);
    let mut rows = Vec::new();
    for (shape, threads) in shapes {
        let requests = shape.draw(arguments, threads);
        let best = best::hit_rate(&requests, arguments.pairs() as usize);
        let mut caches: Vec<(Name, Vec<Measured>)> = engines.iter().map(|name| (*name, Vec::new())).collect();
        for run in 0..arguments.runs {
            for (name, runs) in turns::of_run(&mut caches, run) {
                bar.set_message(format!("{} {}", name.text(), shape.text()));
                runs.push(measure(*name, arguments, &requests).with_context(|| name.text())?);
                bar.inc(1);
            }
        }
        rows.extend(caches.iter().map(|(name, runs)| Row { best_hit_rate: Some(best), ..row(arguments, *name, shape, threads, runs) }));
    }
    bar.finish_and_clear();
    report::compare(&mut rows);
    compare_hits(&mut rows);
    finish(arguments, &rows)
}

impl Arguments {
    /// So many fit, counted as most caches do.
    fn pairs(&self) -> u64 {
        self.memory / (8 + self.value_bytes as u64)
    }
}

/// The shapes, each with the numbers of threads. A loop is one thread's: of two, the one behind would find what the other one has
/// just put.
fn shapes(arguments: &Arguments) -> Vec<(Shape, usize)> {
    let zipf = |exponent| arguments.scans.iter().map(move |&scans| Shape::Zipf { exponent, scans });
    let with_threads = |shape| arguments.threads.iter().map(move |&threads| (shape, threads));
    let all = arguments.exponents.iter().flat_map(|&exponent| zipf(exponent)).flat_map(with_threads);
    let loops = arguments.loops.iter().copied().filter(|&percent| percent > 0);
    all.chain(loops.map(|percent| (Shape::Loop { percent }, 1))).collect()
}

impl Shape {
    fn text(self) -> String {
        match self {
            Self::Zipf { exponent, scans: 0 } => format!("zipf {exponent}"),
            Self::Zipf { exponent, scans } => format!("zipf {exponent}, {scans}% scans"),
            Self::Loop { percent } => format!("loop, {percent}% of what fits"),
        }
    }

    fn draw(self, arguments: &Arguments, threads: usize) -> Requests {
        let Arguments { keys, drift, requests, .. } = *arguments;
        match self {
            Self::Zipf { exponent, scans } => Requests::draw(keys, exponent, scans, drift, requests, threads),
            Self::Loop { percent } => Requests::looped(arguments.pairs().saturating_mul(percent) / 100, requests),
        }
    }
}

fn measure(name: Name, arguments: &Arguments, requests: &Requests) -> Result<Measured> {
    let base = memory::settled_bytes();
    let cache = name.open(Sized { memory: arguments.memory, value_bytes: arguments.value_bytes })?;
    let served = std::thread::scope(|scope| {
        let threads: Vec<_> = requests.threads().map(|keys| scope.spawn(|| cache.serve(keys))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a cache does not panic")).collect::<Result<Vec<_>>>()
    })?;
    let begun = served.iter().map(|served| served.begun).min().context("no threads")?;
    let ended = served.iter().map(|served| served.ended).max().context("no threads")?;
    let resident = memory::resident_bytes().saturating_sub(base);
    let (hits, counted) = (served.iter().map(|served| served.hits).sum::<u64>(), requests.counted() as f64);
    let rate = counted / (ended - begun).as_secs_f64();
    Ok(Measured { rate, hit_rate: hits as f64 / counted, resident, held: cache.held_bytes() })
}

fn row(arguments: &Arguments, name: Name, shape: Shape, threads: usize, runs: &[Measured]) -> Row {
    let spread = |of: fn(&Measured) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
    Row {
        experiment: "cache",
        engine: name.text().to_owned(),
        operation: shape.text(),
        reads_percent: 100,
        distribution: if matches!(shape, Shape::Loop { .. }) { "loop" } else { "zipf, moving" },
        threads,
        keys: arguments.keys,
        value_bytes: arguments.value_bytes as u64,
        batch: 1,
        runs: runs.len(),
        ops_per_second: spread(|run| run.rate),
        memory_bytes: Some(arguments.memory),
        hit_rate: Some(spread(|run| run.hit_rate)),
        resident_bytes: Some(spread(|run| run.resident as f64).median as u64),
        payload_bytes: Some(spread(|run| run.held as f64).median as u64),
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
    let head = [
        "engine",
        "requests",
        "threads",
        "hits %",
        "min",
        "max",
        "points",
        "best %",
        "median",
        "min",
        "max",
        "to best",
        "payload MiB",
        "resident MiB",
    ];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    report::print_ratios(rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), rows)?;
    let title =
        format!("Hits in a hundred requests, {} keys of {} bytes, {} MiB", arguments.keys, arguments.value_bytes, arguments.memory >> 20);
    let hits = rows.iter().map(|row| Row { ops_per_second: percent(row), ..row.clone() });
    report::write_svg(arguments.outputs.svg.as_deref(), || chart::percents(&title, &hits.collect::<Vec<_>>()))
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
        row.best_hit_rate.map_or_else(|| "-".to_owned(), |best| format!("{:.2}", 100.0 * best)),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        report::optional(row.ratio_to_best_peer),
        row.payload_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20))),
        report::mebibytes(row.resident_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_loops_of_no_keys() {
        let loops = |text: &str| {
            let line = format!("esker-bench cache --loops {text}");
            let crate::Experiment::Cache(arguments) = crate::parsed(&line) else { unreachable!() };
            shapes(&arguments).into_iter().filter(|(shape, _)| matches!(shape, Shape::Loop { .. })).count()
        };
        assert_eq!(["0", "0,110", "110,150"].map(loops), [0, 1, 2]);
    }
}
