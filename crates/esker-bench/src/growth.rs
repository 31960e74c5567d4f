//! The rate of inserts into a map that grows from nothing.
//!
//! A map that doubles by copying everything shows it here twice: as dips of the rate, and as one
//! insert that waits for the copy. Timing every insert slows all of them, so the rate and the
//! times of inserts come from two passes over fresh maps. Beside the slowest insert stands what a
//! thread sees that only looks at the clock: a machine that others use stops now and then, too.

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use crate::engines::{Name, Settings};
use crate::report::{self, Latency, Row, Spread};
use crate::run::{Growth, MILLION};
use crate::{Outputs, Place, chart, memory, number, progress, size};

/// The options of `growth`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// The contestants
    #[arg(long, value_delimiter = ',', default_value = "esker")]
    engines: Vec<Name>,
    /// Memory of a hybrid store in a temporary directory and of disk engines; Esker stays in memory if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Look once more at all keys when they are in, not at some: by a scan where the engine has one, and by gets
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    Name::all_are_built(&arguments.engines)?;
    let looks = 2 + u64::from(arguments.verify);
    let bar = progress::bar(arguments.keys * looks * arguments.engines.len() as u64);
    let rows = arguments.engines.iter().map(|&name| grow(arguments, name, &bar));
    let mut rows = rows.collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    report::compare(&mut rows);
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(&rows))
}

fn grow(arguments: &Arguments, name: Name, bar: &ProgressBar) -> Result<Row> {
    bar.set_message(name.text());
    let Pass { growth: course, bytes_per_entry, peak, seen_in } = pass(arguments, name, false, bar)?;
    let Growth { pauses: inserts, latency, .. } = pass(arguments, name, true, bar)?.growth;
    bar.set_message("the machine by itself");
    let machine = inserts.of_the_machine();
    let seconds: f64 = course.rates.iter().zip(sizes(arguments.keys)).map(|(r, n)| n / r).sum();
    let rate = arguments.keys as f64 / seconds;
    Ok(Row {
        experiment: "growth",
        engine: name.text().to_owned(),
        operation: "insert".to_owned(),
        distribution: "scattered",
        threads: 1,
        keys: arguments.keys,
        value_bytes: 8,
        batch: 1,
        runs: 1,
        ops_per_second: Spread::of(&[rate]),
        bytes_per_entry: Some(bytes_per_entry),
        latency_ns: Some(Latency::of(&latency)),
        memory_bytes: arguments.memory.filter(|_| name.takes_memory()),
        million_ops_per_second: course.rates,
        slowest_insert_ns: Some(u64::try_from(inserts.longest.as_nanos())?),
        long_inserts_per_minute: Some(inserts.long_per_minute()),
        machine_slowest_ns: Some(u64::try_from(machine.longest.as_nanos())?),
        machine_long_per_minute: Some(machine.long_per_minute()),
        peak_bytes: Some(peak),
        verify_seconds: seen_in.map(|seen_in| seen_in.as_secs_f64()),
        ..Row::default()
    })
}

/// What a pass over a fresh map showed.
struct Pass {
    growth: Growth,
    bytes_per_entry: f64,
    peak: u64,
    /// How long it took to see all keys, where that was asked for.
    seen_in: Option<Duration>,
}

fn pass(arguments: &Arguments, name: Name, time_each: bool, bar: &ProgressBar) -> Result<Pass> {
    let settings = Settings { hybrid_bytes: arguments.memory, place: arguments.place.clone(), ..Settings::default() };
    let base = memory::settled_bytes();
    memory::reset_peak();
    let contestant = name.open(&settings).with_context(|| name.text())?;
    let growth = contestant.grow(arguments.keys, time_each, &|inserts| bar.inc(inserts));
    let (bytes_per_entry, peak) = (memory::per_entry(base, arguments.keys), memory::peak_bytes().saturating_sub(base));
    let is_verified = arguments.verify && !time_each;
    let seen_in = is_verified.then(|| contestant.check_grown(arguments.keys, &|keys| bar.inc(keys))).transpose()?;
    if seen_in.is_none() {
        contestant.check_some_grown(arguments.keys)?;
    }
    Ok(Pass { growth, bytes_per_entry, peak, seen_in })
}

/// The number of inserts behind each sample.
fn sizes(keys: u64) -> impl Iterator<Item = f64> {
    (0..keys).step_by(MILLION as usize).map(move |from| (keys - from).min(MILLION) as f64)
}

fn draw(rows: &[Row]) -> String {
    let lines: Vec<_> = rows.iter().map(|row| (row.engine.clone(), row.million_ops_per_second.clone())).collect();
    chart::lines("Inserts per second into a growing map", "million keys", &lines)
}

fn print(rows: &[Row]) {
    let head = [
        "engine",
        "rate",
        "slowest million",
        "fastest million",
        "slowest insert",
        "over 10 ms/min",
        "machine alone",
        "over 10 ms/min",
        "bytes/entry",
        "peak MiB",
        "all seen in",
        "to best peer",
    ];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
}

fn cells(row: &Row) -> Vec<String> {
    let millions = Spread::of(&row.million_ops_per_second);
    vec![
        row.engine.clone(),
        report::rate(row.ops_per_second.median),
        report::rate(millions.min),
        report::rate(millions.max),
        report::nanoseconds(row.slowest_insert_ns.unwrap_or(0)),
        format!("{:.0}", row.long_inserts_per_minute.unwrap_or(0.0)),
        report::nanoseconds(row.machine_slowest_ns.unwrap_or(0)),
        format!("{:.0}", row.machine_long_per_minute.unwrap_or(0.0)),
        report::bytes(row.bytes_per_entry),
        (row.peak_bytes.unwrap_or(0) >> 20).to_string(),
        row.verify_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s")),
        report::optional(row.ratio_to_best_peer),
    ]
}
