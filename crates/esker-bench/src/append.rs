//! Appends of small records to growing values.
//!
//! The shape of an inverted index: every record goes to the end of the list of a uniformly chosen
//! key. A record carries its key and its number. Afterwards every list is read back: the records
//! must be of that key, in ascending order, and none may be missing.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::engines::{Appender, Settings, esker::EskerVectors};
use crate::report::{self, Row, Spread};
use crate::run::MILLION;
use crate::{Outputs, Place, chart, keys, memory, number, progress, size, turns};

/// The size of a record.
pub(crate) const RECORD: usize = 16;

/// The contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// This project's store.
    Esker,
    /// An unshared `hashbrown` map of vectors.
    HashbrownVec,
    /// A `dashmap` of vectors.
    DashmapVec,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::Esker => "esker",
            Self::HashbrownVec => "hashbrown-vec",
            Self::DashmapVec => "dashmap-vec",
        }
    }

    /// An error names the first that this build does not have.
    fn all_are_built(names: &[Self]) -> Result<()> {
        let is_missing = |name: &&Self| **name != Self::Esker && !cfg!(feature = "peers");
        match names.iter().find(is_missing) {
            Some(name) => anyhow::bail!("{} needs a build with `--features peers`", name.text()),
            None => Ok(()),
        }
    }

    fn open(self, settings: &Settings) -> Result<Box<dyn Contestant>> {
        match self {
            Self::Esker => Ok(Box::new(EskerVectors::open(settings)?)),
            #[cfg(feature = "peers")]
            Self::HashbrownVec => Ok(Box::new(crate::engines::HashbrownVectors::new())),
            #[cfg(feature = "peers")]
            Self::DashmapVec => Ok(Box::new(crate::engines::DashVectors::new())),
            #[cfg(not(feature = "peers"))]
            _ => unreachable!("refused before"),
        }
    }
}

/// The options of `append`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of records
    #[arg(long, default_value_t = 21_200_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    records: u64,
    /// Number of keys
    #[arg(long, default_value_t = 7_800_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// The contestants
    #[arg(long, value_delimiter = ',', default_value = "esker")]
    engines: Vec<Name>,
    /// Number of runs
    #[arg(long, default_value_t = 1, value_parser = number::count)]
    runs: usize,
    /// Memory of a hybrid store in a temporary directory; memory only if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// An appender with the loop compiled for it.
trait Contestant {
    /// Appends a record to each key of `order` and gives the rate of each million.
    fn append_all(&mut self, order: &[u64], bar: &ProgressBar) -> Vec<f64>;
    /// Reads all lists and gives the number of records.
    fn audit(&self, keys: u64) -> Result<u64>;
}

impl<A: Appender> Contestant for A {
    fn append_all(&mut self, order: &[u64], bar: &ProgressBar) -> Vec<f64> {
        let mut rates = Vec::with_capacity(order.len().div_ceil(MILLION as usize));
        let mut number = 0;
        for million in order.chunks(MILLION as usize) {
            let start = Instant::now();
            for &key in million {
                self.append(key, &record(key, number));
                number += 1;
            }
            rates.push(million.len() as f64 / start.elapsed().as_secs_f64());
            bar.inc(million.len() as u64);
        }
        rates
    }

    fn audit(&self, keys: u64) -> Result<u64> {
        let (mut records, mut wrong) = (0, 0u64);
        for key in (0..keys).map(keys::key) {
            self.read(key, &mut |list| match check(key, list) {
                Some(length) => records += length,
                None => wrong += 1,
            });
        }
        ensure!(wrong == 0, "the audit found {wrong} lists with wrong records");
        Ok(records)
    }
}

/// The record with a number.
#[inline]
pub(crate) fn record(key: u64, number: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&key.to_le_bytes());
    record[8..].copy_from_slice(&number.to_le_bytes());
    record
}

/// The number of records in a sound list.
pub(crate) fn check(key: u64, list: &[u8]) -> Option<u64> {
    let (records, rest) = list.as_chunks::<RECORD>();
    let number = |record: &[u8; RECORD]| u64::from_le_bytes(*record.last_chunk().expect("8 bytes"));
    let own = records.iter().all(|record| record[..8] == key.to_le_bytes());
    let sound = rest.is_empty() && own && records.iter().map(number).is_sorted();
    sound.then_some(records.len() as u64)
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    Name::all_are_built(&arguments.engines)?;
    let order = draw_order(arguments);
    let steps = arguments.records * (arguments.engines.len() * arguments.runs) as u64;
    let bar = progress::bar(steps);
    let mut contestants: Vec<_> = arguments.engines.iter().map(|&name| (name, Vec::new())).collect();
    for run in 0..arguments.runs {
        for (name, runs) in turns::of_run(&mut contestants, run) {
            bar.set_message(name.text());
            runs.push(once(arguments, *name, &order, &bar).with_context(|| name.text())?);
        }
    }
    bar.finish_and_clear();
    let rows = contestants.iter().map(|(name, runs)| row(arguments, *name, runs));
    finish(arguments, rows.collect())
}

fn finish(arguments: &Arguments, mut rows: Vec<Row>) -> Result<()> {
    report::compare(&mut rows);
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(&rows))
}

fn draw_order(arguments: &Arguments) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(0x6170_7065_6e64);
    (0..arguments.records).map(|_| keys::key(random.random_range(0..arguments.keys))).collect()
}

/// What one run of one engine gave.
#[derive(Clone)]
struct Once {
    rates: Vec<f64>,
    bytes_per_entry: f64,
}

fn once(arguments: &Arguments, name: Name, order: &[u64], bar: &ProgressBar) -> Result<Once> {
    let settings = Settings { hybrid_bytes: arguments.memory, place: arguments.place.clone(), ..Settings::default() };
    let base = memory::settled_bytes();
    let mut contestant = name.open(&settings)?;
    let rates = contestant.append_all(order, bar);
    let bytes_per_entry = memory::per_entry(base, arguments.keys);
    let found = contestant.audit(arguments.keys)?;
    ensure!(found == arguments.records, "{} records appended, {found} found", arguments.records);
    Ok(Once { rates, bytes_per_entry })
}

fn row(arguments: &Arguments, name: Name, runs: &[Once]) -> Row {
    let totals: Vec<_> = runs.iter().map(|run| total(arguments.records, &run.rates)).collect();
    let bytes: Vec<_> = runs.iter().map(|run| run.bytes_per_entry).collect();
    Row {
        experiment: "append",
        engine: name.text().to_owned(),
        operation: "append".to_owned(),
        distribution: "uniform",
        threads: 1,
        keys: arguments.keys,
        value_bytes: RECORD as u64,
        batch: 1,
        runs: runs.len(),
        ops_per_second: Spread::of(&totals),
        bytes_per_entry: Some(Spread::of(&bytes).median),
        memory_bytes: arguments.memory.filter(|_| name == Name::Esker),
        million_ops_per_second: median_course(runs),
        records: Some(arguments.records),
        ..Row::default()
    }
}

/// The rate over all records from those of each million.
fn total(records: u64, rates: &[f64]) -> f64 {
    let sizes = (0..records).step_by(MILLION as usize).map(|from| (records - from).min(MILLION));
    let seconds: f64 = rates.iter().zip(sizes).map(|(rate, size)| size as f64 / rate).sum();
    records as f64 / seconds
}

/// The median over the runs of each million.
fn median_course(runs: &[Once]) -> Vec<f64> {
    let millions = runs.first().map_or(0, |run| run.rates.len());
    let at = |index: usize| runs.iter().map(|run| run.rates[index]).collect::<Vec<_>>();
    (0..millions).map(|index| Spread::of(&at(index)).median).collect()
}

fn draw(rows: &[Row]) -> String {
    let lines: Vec<_> = rows.iter().map(|row| (row.engine.clone(), row.million_ops_per_second.clone())).collect();
    chart::lines("Appends of 16 bytes per second", "million records", &lines)
}

fn print(rows: &[Row]) {
    let head = ["engine", "median", "min", "max", "first million", "last million", "bytes/key", "to best peer"];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
}

fn cells(row: &Row) -> Vec<String> {
    let course = &row.million_ops_per_second;
    vec![
        row.engine.clone(),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        report::rate(course.first().copied().unwrap_or(0.0)),
        report::rate(course.last().copied().unwrap_or(0.0)),
        report::bytes(row.bytes_per_entry),
        report::optional(row.ratio_to_best_peer),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked() {
        let list = [record(7, 1), record(7, 5)].concat();
        assert_eq!(check(7, &list), Some(2));
        assert_eq!(check(8, &list), None);
        assert_eq!(check(7, &list[1..]), None);
        assert_eq!(check(7, &[record(7, 5), record(7, 1)].concat()), None);
    }
}
