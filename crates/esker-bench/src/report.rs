//! What is reported: rows for machines, tables for people.
//!
//! A row carries everything needed to repeat it. Rates are given as the median of the runs with the
//! lowest and the highest. A ratio compares with the fastest of the other engines in the same
//! circumstances; engines without an interface for batches stand for batches with single calls.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use serde::Serialize;

/// The median and the extremes of some runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Spread {
    /// The middle one.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) min: f64,
    /// The highest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of some values; zeros if there are none.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Self { median, min, max }
    }
}

/// Percentiles of the time of a call, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    /// Half of the calls are faster.
    pub(crate) p50: u64,
    /// 99 in 100 are faster.
    pub(crate) p99: u64,
    /// 999 in 1000 are faster.
    pub(crate) p999: u64,
    /// The slowest.
    pub(crate) max: u64,
}

impl Latency {
    /// Of sampled calls.
    pub(crate) fn of(calls: &Histogram<u64>) -> Self {
        let at = |quantile| calls.value_at_quantile(quantile);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: calls.max() }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    /// The subcommand.
    pub(crate) experiment: &'static str,
    /// Who was measured.
    pub(crate) engine: String,
    /// What was done.
    pub(crate) operation: String,
    /// The share of reads.
    pub(crate) reads_percent: u8,
    /// The choice of keys.
    pub(crate) distribution: &'static str,
    /// The number of threads.
    pub(crate) threads: usize,
    /// The number of distinct keys.
    pub(crate) keys: u64,
    /// The size of a value.
    pub(crate) value_bytes: u64,
    /// The number of keys per call.
    pub(crate) batch: usize,
    /// The number of runs.
    pub(crate) runs: usize,
    /// The rate.
    pub(crate) ops_per_second: Spread,
    /// Growth of the resident set, where it was measured.
    pub(crate) bytes_per_entry: Option<f64>,
    /// The time of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<Latency>,
    /// The memory budget of a hybrid store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    /// The rate against the fastest other engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_best_peer: Option<f64>,
    /// The rate of each million in turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) million_ops_per_second: Vec<f64>,
    /// The slowest insert, from a second pass in which each was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slowest_insert_ns: Option<u64>,
    /// Inserts of more than 10 ms there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) long_inserts_per_minute: Option<f64>,
    /// The same two of a thread that only looks at the clock: what the machine does by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_slowest_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_long_per_minute: Option<f64>,
    /// The highest growth of the resident set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_bytes: Option<u64>,
    /// The time in which all keys were seen once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verify_seconds: Option<f64>,
    /// The number of records written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) records: Option<u64>,
    /// Reads of the device for each read of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_reads_per_get: Option<f64>,
    /// Cold records copied into memory for each read of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) promotions_per_get: Option<f64>,
    /// The share of reads that the best static choice of records in memory would not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) static_misses: Option<f64>,
    /// The memory asked for, in hundredths of what the data take; 0: a store without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_percent: Option<u64>,
    /// The memory that was given, which is no less than the least a store takes, against what the data take; 1 without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_fraction: Option<f64>,
    /// Growth of the resident set in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_bytes: Option<u64>,
    /// The rate against that of the fastest map that holds everything in memory, and the resident bytes against the smallest one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_best_map: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_to_smallest_map: Option<f64>,
    /// Of a peer: the fastest rate of Esker that took no more resident bytes, to its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) esker_at_its_bytes: Option<f64>,
    /// The share of reads of what was added, and dropped since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_per_get: Option<f64>,
    /// The depth of the probe this row is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probe_depth: Option<usize>,
    /// Whether the device was read past the page cache for comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probe_is_direct: Option<bool>,
    /// The rate against that of the raw probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_probe: Option<f64>,
    /// The time from line to line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line_seconds: Option<f64>,
    /// The rate against that of the same updates without lines, run by run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_no_lines: Option<Spread>,
    /// The lowest tenth of a second against the median one of its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lowest_interval_to_median: Option<Spread>,
    /// What the log grew by for each update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_bytes_per_update: Option<f64>,
    /// The rate against that of writing a plain file with a sync behind each write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_fdatasync: Option<f64>,
    /// The time it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<Spread>,
    /// The log's length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_bytes: Option<u64>,
    /// The rate at which the log was dealt with, against that of reading its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_raw_read: Option<Spread>,
    /// The rate against that of reads that are not checked, run by run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_unchecked: Option<Spread>,
    /// The 99th percentile of calls beside the work to that without it, run by run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ratio_to_without: Option<Spread>,
    /// The seconds that one core takes to compute the checksums of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checksum_seconds: Option<f64>,
    /// The share of requests that a cache answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hit_rate: Option<Spread>,
    /// That of a cache which knows what comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) best_hit_rate: Option<f64>,
    /// Bytes of the keys and values held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_bytes: Option<u64>,
    /// The hit rate against that of the best other cache, in hundredths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hit_points_to_best_peer: Option<f64>,
    /// Whether values were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) integrity: Option<bool>,
    /// Whether each call was durable when it returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) durability: Option<bool>,
    /// What a document says of the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document_ops_per_second: Option<f64>,
    /// Attempts that another transaction was quicker than, for each commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aborts_per_commit: Option<f64>,
    /// The rate of each tenth of a second in turn, of each run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) interval_ops_per_second: Vec<Vec<f64>>,
}

/// Fills in the ratios to the fastest peer, the peers being all engines but the row's own.
pub(crate) fn compare(rows: &mut [Row]) {
    let ratios: Vec<_> = rows.iter().map(|row| ratio(row, rows)).collect();
    for (row, ratio) in rows.iter_mut().zip(ratios) {
        row.ratio_to_best_peer = ratio;
    }
}

fn ratio(row: &Row, rows: &[Row]) -> Option<f64> {
    let rivals = rows.iter().filter(|other| rivals(row, other));
    let best = rivals.map(|other| other.ops_per_second.median).max_by(f64::total_cmp)?;
    (best > 0.0).then(|| row.ops_per_second.median / best)
}

/// Peers are whatever is not Esker; among themselves they are compared with the best of the others.
/// A rival makes single calls or batches of the row's size.
fn rivals(row: &Row, other: &Row) -> bool {
    let same = row.operation == other.operation
        && row.reads_percent == other.reads_percent
        && row.distribution == other.distribution
        && row.threads == other.threads
        && row.memory_percent == other.memory_percent
        && (row.integrity, row.durability) == (other.integrity, other.durability);
    let batch = other.batch == 1 || other.batch == row.batch;
    same && batch && other.engine != row.engine && !other.engine.starts_with("esker")
}

/// Of each peer, and of Esker under each of its names: how many times as fast Esker is, over all settings that both ran.
pub(crate) fn print_ratios(rows: &[Row]) {
    let mut lines: Vec<(&str, &str, Vec<f64>)> = Vec::new();
    let own = rows.iter().filter(|row| row.engine.starts_with("esker"));
    for (row, other) in own.flat_map(|row| rows.iter().filter(|other| rivals(row, other)).map(move |other| (row, other))) {
        let ratio = row.ops_per_second.median / other.ops_per_second.median.max(1.0);
        match lines.iter_mut().find(|line| (line.0, line.1) == (row.engine.as_str(), other.engine.as_str())) {
            Some(line) => line.2.push(ratio),
            None => lines.push((&row.engine, &other.engine, vec![ratio])),
        }
    }
    for (own, other, ratios) in lines {
        let Spread { median, min, max } = Spread::of(&ratios);
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let count = ratios.len();
        say!("{own} to {other}: {median:.2} times as fast ({min:.2} - {max:.2}), geometric mean {mean:.2}, {count} settings");
    }
}

/// A line on the standard output. Whoever closes that, or has no room there, loses none of the rows that go elsewhere.
macro_rules! say {
    ($($words:tt)*) => { $crate::report::say_line(format_args!($($words)*)) };
}
pub(crate) use say;

/// Why a line could not be printed.
static UNSAID: Mutex<Option<io::Error>> = Mutex::new(None);

fn unsaid() -> std::sync::MutexGuard<'static, Option<io::Error>> {
    UNSAID.lock().unwrap_or_else(|e| e.into_inner())
}

pub(crate) fn say_line(words: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{words}") {
        unsaid().get_or_insert(error);
    }
}

/// Fails if something that was to be printed was not, unless nobody wanted to read it.
pub(crate) fn said() -> Result<()> {
    match unsaid().take() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => bail!("printing: {error}"),
        _ => Ok(()),
    }
}

/// Writes rows as JSON, if asked to.
pub(crate) fn write_json<T: Serialize>(path: Option<&Path>, rows: &[T]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// Writes a drawing, if asked to.
pub(crate) fn write_svg(path: Option<&Path>, draw: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, draw()).with_context(|| format!("writing {}", path.display()))
}

/// Prints cells in columns: the first is aligned to the left, the others to the right.
pub(crate) fn print_table(head: &[&str], body: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = body.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let head: Vec<_> = head.iter().map(ToString::to_string).collect();
    say!("{}", line(&head, &widths));
    say!("{}", widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>().join("  "));
    for row in body {
        say!("{}", line(row, &widths));
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).enumerate();
    let padded = cells.map(|(column, (cell, &width))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// A rate in millions or thousands.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 1e6 => format!("{:.2} M/s", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k/s", r / 1e3),
        r => format!("{r:.0} /s"),
    }
}

/// A duration from nanoseconds.
pub(crate) fn nanoseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// The times of a row's calls, or dashes.
pub(crate) fn latencies(row: &Row) -> [String; 4] {
    match row.latency_ns {
        Some(latency) => [latency.p50, latency.p99, latency.p999, latency.max].map(nanoseconds),
        None => ["-"; 4].map(str::to_owned),
    }
}

/// Whole mebibytes, or a dash.
pub(crate) fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 20).to_string())
}

/// Bytes with a digit behind the point, or a dash.
pub(crate) fn bytes(bytes: Option<f64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}"))
}

/// A number, or a dash where there is none.
pub(crate) fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &str, batch: usize, median: f64) -> Row {
        let ops_per_second = Spread { median, ..Spread::default() };
        Row { engine: engine.to_owned(), batch, ops_per_second, ..Row::default() }
    }

    #[test]
    fn batches_are_compared_with_single_calls() {
        let mut rows = [row("esker", 32, 6.0), row("scc", 1, 2.0), row("dashmap", 1, 3.0)];
        compare(&mut rows);
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio_to_best_peer.unwrap()).collect();
        assert_eq!(ratios, [2.0, 2.0 / 3.0, 1.5]);
    }

    #[test]
    fn rivals_have_the_same_memory() {
        let with = |percent, row| Row { memory_percent: Some(percent), ..row };
        let mut rows = [with(10, row("esker", 1, 6.0)), with(10, row("foyer", 1, 2.0)), with(25, row("foyer", 1, 3.0))];
        compare(&mut rows);
        assert_eq!(rows.map(|row| row.ratio_to_best_peer), [Some(3.0), None, None]);
    }

    #[test]
    fn rows_of_growth_have_the_names_that_others_read() {
        let number = Some(1);
        let rates = vec![2.0, 3.0];
        let grown = Row { million_ops_per_second: rates, slowest_insert_ns: number, peak_bytes: number, ..row("esker", 1, 6.0) };
        let written = serde_json::to_value(&grown).unwrap();
        assert_eq!(written["million_ops_per_second"], serde_json::json!([2.0, 3.0]));
        assert!(["slowest_insert_ns", "peak_bytes"].iter().all(|name| written[name] == 1), "{written}");
        assert!(written.get("bytes_per_entry").is_some() && written["ops_per_second"]["median"] == 6.0);
        // What an experiment does not measure is not there.
        assert!(written.get("resident_bytes").is_none() && written.get("hit_rate").is_none());
    }

    #[test]
    fn spreads() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert!((Spread::of(&[1.0, 2.0]).median - 1.5).abs() < 1e-9);
    }
}
