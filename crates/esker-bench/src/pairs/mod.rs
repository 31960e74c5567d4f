//! Pairs of 16-byte keys and values of a kibibyte, inserted and then fetched: the experiment of a document of 2017 (`document.rs`).
//!
//! A call inserts a batch: one transaction, where an engine has them (of Esker too, but for batches of one, which are puts; a row
//! "put_many" shows what its batches do that are not atomic). Four combinations:
//! * **durability**: on, each call is durable when it returns; off, nothing is made durable.
//! * **integrity**: off, nothing is checked that an engine can leave unchecked; on, engines check what they read back from the
//!   device, and besides a checksum lies in each value, made at each insert and compared at each fetch, the same for all: some engines
//!   check nothing themselves, and none what it already has in memory.
//!
//! With either, each value that was fetched is looked at (`values.rs`). Between inserts and fetches every value is compared byte for
//! byte, untimed, so that fetches find every cache warm. Engines have the same memory, but for those which map their file.

mod document;
mod run;
pub(crate) mod values;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use crate::engines::{Name, Settings};
use crate::report::{self, Latency, Row, Spread};
use crate::{Outputs, Place, Switch, chart, memory, number, progress, size, turns};
use run::{Calls, Measured};
use values::{Key, Order, Values};

/// The options of `pairs`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of pairs
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// Size of a value, a multiple of 16
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
    /// Pairs per call
    #[arg(long, value_delimiter = ',', default_value = "1024", value_parser = number::count)]
    batch: Vec<usize>,
    /// Threads that insert, and then fetch
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,48", value_parser = number::threads)]
    writers: Vec<usize>,
    /// The order of keys, which are fetched in the same order, or shuffled anew
    #[arg(long, value_delimiter = ',', default_value = "in-order,random")]
    order: Vec<Order>,
    /// Whether values are checked
    #[arg(long, value_delimiter = ',', default_value = "off,on")]
    integrity: Vec<Switch>,
    /// Whether each call is durable when it returns
    #[arg(long, value_delimiter = ',', default_value = "off,on")]
    durability: Vec<Switch>,
    /// Engines, all that were built if not given
    #[arg(long, value_delimiter = ',')]
    engines: Vec<Name>,
    /// Memory of each engine
    #[arg(long, value_name = "BYTES", default_value = "2GiB", value_parser = size::parse)]
    memory: u64,
    /// Seconds after which inserting or fetching is stopped
    #[arg(long, default_value_t = 10.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// What the two rows of one engine are about.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setting {
    engine: Name,
    /// Esker's batches as transactions; others do what they do.
    atomic: bool,
    order: Order,
    batch: usize,
    threads: usize,
    integrity: bool,
    durability: bool,
}

/// What the runs of one setting gave.
struct Results {
    setting: Setting,
    insert: Series,
    fetch: Series,
    bytes_per_entry: Vec<f64>,
}

/// The same operation in each run.
struct Series {
    rates: Vec<f64>,
    operations: u64,
    latency: Histogram<u64>,
}

impl Series {
    fn new() -> Self {
        Self { rates: Vec::new(), operations: 0, latency: crate::run::histogram() }
    }

    fn add(&mut self, measured: &Measured) {
        self.rates.push(measured.rate);
        self.operations += measured.operations;
        self.latency += &measured.latency;
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    validate(arguments)?;
    let mut results: Vec<_> = settings(arguments).into_iter().map(Results::new).collect();
    let bar = progress::bar((arguments.runs * results.len()) as u64);
    for &order in &arguments.order {
        let (inserted, fetched) = (order.keys(arguments.keys, 1), order.keys(arguments.keys, 2));
        for run in 0..arguments.runs {
            let in_turn = turns::of_run_in_groups(&mut results, run, |one, other| one.setting.is_rival(&other.setting));
            for results in in_turn.filter(|results| results.setting.order == order) {
                bar.set_message(results.setting.text());
                results.run(arguments, &inserted, &fetched).with_context(|| results.setting.text())?;
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let mut rows: Vec<_> = results.iter().flat_map(|results| results.rows(arguments)).collect();
    report::compare(&mut rows);
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(arguments, &rows))
}

fn validate(arguments: &Arguments) -> Result<()> {
    let value = arguments.value_bytes;
    ensure!(value > 0 && value.is_multiple_of(values::UNIT), "the size of a value is a multiple of {}", values::UNIT);
    ensure!(value as u64 <= number::VALUE_BYTES, "a value has at most 16 MiB");
    ensure!(arguments.engines.iter().all(|engine| engine.keeps_on_disk()), "maps in memory keep no data on disk");
    Name::all_are_built(&arguments.engines)
}

/// Every combination, those that are compared side by side.
fn settings(arguments: &Arguments) -> Vec<Setting> {
    let engines = if arguments.engines.is_empty() { Name::built_disk_engines() } else { arguments.engines.clone() };
    let mut settings = Vec::new();
    for (integrity, durability) in product(&arguments.integrity, &arguments.durability) {
        let (integrity, durability) = (integrity.is_on(), durability.is_on());
        for (order, (threads, batch)) in product(&arguments.order, &product(&arguments.writers, &arguments.batch)) {
            for &engine in &engines {
                let setting = Setting { engine, atomic: true, order, batch, threads, integrity, durability };
                settings.push(setting);
                if engine == Name::Esker && batch > 1 {
                    settings.push(Setting { atomic: false, ..setting });
                }
            }
        }
    }
    settings
}

fn product<A: Copy, B: Copy>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    left.iter().flat_map(|&a| right.iter().map(move |&b| (a, b))).collect()
}

impl Setting {
    /// All but the engine, and how it inserts, is the same.
    fn is_rival(&self, other: &Self) -> bool {
        Self { engine: self.engine, atomic: self.atomic, ..*other } == *self
    }

    fn name(&self) -> String {
        let suffix = if self.atomic { "" } else { ", put_many" };
        format!("{}{suffix}", self.engine.text())
    }

    fn text(&self) -> String {
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let (order, integrity, durability) = (self.order.name(), on(self.integrity), on(self.durability));
        format!("{}, {order}, {} threads, batch {}, integrity {integrity}, durability {durability}", self.name(), self.threads, self.batch)
    }

    fn engine(&self, arguments: &Arguments) -> Settings {
        Settings {
            hybrid_bytes: Some(arguments.memory),
            place: arguments.place.clone(),
            durable: self.durability,
            unchecked: !self.integrity,
            atomic_batches: self.atomic,
            ..Settings::default()
        }
    }
}

impl Results {
    fn new(setting: Setting) -> Self {
        Self { setting, insert: Series::new(), fetch: Series::new(), bytes_per_entry: Vec::new() }
    }

    /// A fresh engine, filled, compared with what went in, and read.
    fn run(&mut self, arguments: &Arguments, inserted: &[Key], fetched: &[Key]) -> Result<()> {
        let Setting { engine, threads, batch, integrity, .. } = self.setting;
        let base = memory::settled_bytes();
        let engine = engine.open_pairs(&self.setting.engine(arguments))?;
        let calls = Calls { threads, batch, seconds: arguments.seconds };
        let values = Values::new(arguments.value_bytes, integrity);
        self.insert.add(&calls.insert(&*engine, inserted, &values)?);
        self.bytes_per_entry.push(memory::per_entry(base, arguments.keys));
        run::audit(&*engine, inserted, &values)?;
        if self.setting.atomic {
            self.fetch.add(&calls.fetch(&*engine, fetched, &values)?);
        }
        Ok(())
    }

    fn rows(&self, arguments: &Arguments) -> Vec<Row> {
        let Setting { integrity, durability, atomic, .. } = self.setting;
        let document = document::rates(arguments.value_bytes as u64, integrity, durability).unzip();
        let mut rows = vec![self.row(arguments, "insert", &self.insert, document.0)];
        // How they were inserted makes no difference to fetches.
        if atomic {
            rows.push(self.row(arguments, "fetch", &self.fetch, document.1));
        }
        rows
    }

    fn row(&self, arguments: &Arguments, operation: &str, series: &Series, document: Option<f64>) -> Row {
        let setting = self.setting;
        Row {
            experiment: "pairs",
            engine: setting.name(),
            operation: operation.to_owned(),
            reads_percent: if operation == "fetch" { 100 } else { 0 },
            distribution: setting.order.name(),
            threads: setting.threads,
            keys: arguments.keys,
            value_bytes: arguments.value_bytes as u64,
            batch: setting.batch,
            runs: series.rates.len(),
            ops_per_second: Spread::of(&series.rates),
            bytes_per_entry: Some(Spread::of(&self.bytes_per_entry).median),
            latency_ns: Some(Latency::of(&series.latency)),
            memory_bytes: Some(arguments.memory).filter(|_| setting.engine.takes_memory()),
            records: Some(series.operations / series.rates.len().max(1) as u64),
            integrity: Some(setting.integrity),
            durability: Some(setting.durability),
            // One thread was at work there.
            document_ops_per_second: document.filter(|_| setting.threads == 1),
            ..Row::default()
        }
    }
}

fn print(rows: &[Row]) {
    let head = [
        "engine",
        "operation",
        "keys",
        "threads",
        "batch",
        "integrity",
        "durability",
        "median",
        "min",
        "max",
        "to best peer",
        "document",
        "to document",
        "p50",
        "p99",
        "p99.9",
    ];
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by_key(|row| (row.operation == "fetch", row.durability, row.integrity, row.distribution, row.threads, row.batch));
    report::print_table(&head, &sorted.into_iter().map(cells).collect::<Vec<_>>());
    report::say!("A call is a batch. {}", document::OTHERS);
}

fn cells(row: &Row) -> Vec<String> {
    let switch = |value: Option<bool>| if value == Some(true) { "on" } else { "off" }.to_owned();
    let (rates, document) = (row.ops_per_second, row.document_ops_per_second);
    let mut cells =
        vec![row.engine.clone(), row.operation.clone(), row.distribution.to_owned(), row.threads.to_string(), row.batch.to_string()];
    cells.extend([row.integrity, row.durability].map(switch));
    cells.extend([rates.median, rates.min, rates.max].map(report::rate));
    cells.push(report::optional(row.ratio_to_best_peer));
    cells.push(document.map_or_else(|| "-".to_owned(), report::rate));
    cells.push(report::optional(document.map(|document| rates.median / document)));
    cells.extend(row.latency_ns.map_or(["-"; 3].map(str::to_owned), |ns| [ns.p50, ns.p99, ns.p999].map(report::nanoseconds)));
    cells
}

/// A panel for each operation, without and with durability: their rates are far apart.
fn draw(arguments: &Arguments, rows: &[Row]) -> String {
    let rows: Vec<Row> = rows.iter().cloned().chain(rows.iter().filter_map(of_document)).collect();
    let mut panels = Vec::new();
    for (operation, durability) in [("insert", false), ("insert", true), ("fetch", false), ("fetch", true)] {
        let of_panel = |row: &&Row| row.operation == operation && row.durability == Some(durability);
        let rows: Vec<_> = rows.iter().filter(of_panel).cloned().collect();
        let with = if durability { "each call durable" } else { "nothing durable" };
        if !rows.is_empty() {
            panels.push((
                format!("{operation}, {with}: {} pairs of 16 and {} bytes, per second", arguments.keys, arguments.value_bytes),
                rows,
            ));
        }
    }
    chart::panels(&panels)
}

/// What the document has beside this row.
fn of_document(row: &Row) -> Option<Row> {
    let rate = row.document_ops_per_second?;
    let spread = Spread { median: rate, min: rate, max: rate };
    Some(Row { engine: "the document, 2017".to_owned(), batch: 1, ops_per_second: spread, ..row.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_first_in_one_of_so_many_runs() {
        let line = "esker-bench pairs --engines rocksdb,lmdb,redb --writers 1,8";
        let crate::Experiment::Pairs(arguments) = crate::parsed(line) else { unreachable!() };
        let mut all = settings(&arguments);
        for run in 0..3 {
            let order: Vec<_> = turns::of_run_in_groups(&mut all, run, Setting::is_rival).map(|setting| setting.engine).collect();
            let first = [Name::Rocksdb, Name::Lmdb, Name::Redb][run];
            assert!(order.len() == 3 * 16 && order.iter().step_by(3).all(|engine| *engine == first), "{order:?}");
        }
    }

    #[test]
    fn both_ways_in_which_esker_inserts_are_rivals() {
        let line = "esker-bench pairs --engines esker,lmdb --batch 1,64";
        let crate::Experiment::Pairs(arguments) = crate::parsed(line) else { unreachable!() };
        let groups: Vec<_> = settings(&arguments).chunk_by(Setting::is_rival).map(<[Setting]>::len).collect();
        assert!(groups.len() == 64 && groups.chunks(2).all(|pair| pair == [2, 3]), "{groups:?}");
    }
}
