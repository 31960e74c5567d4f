//! Mixes of reads and writes over loaded keys.
//!
//! A session is one engine with one number of threads in one run: an empty engine is loaded with
//! all keys, which is measured, and then goes through all mixes. Engines take turns (`turns.rs`). After the last mix of a
//! session every key is read back; if all writes were increments, the counts must add up as well.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use crate::engines::{Name, Settings};
use crate::keys::{self, Distribution, Sequence};
use crate::report::{self, Latency, Row, Spread};
use crate::run::{Contestant, Measured, Mix, Operation};
use crate::{Outputs, Place, chart, memory, number, progress, size, turns};

/// The options of `ycsb`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = number::threads)]
    threads: Vec<usize>,
    /// Shares of reads in percent
    #[arg(long, value_delimiter = ',', default_value = "0,50,100",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: Vec<u8>,
    /// The writes
    #[arg(long, value_delimiter = ',', default_value = "rmw")]
    operation: Vec<Operation>,
    /// How keys are chosen
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf")]
    distribution: Vec<Distribution>,
    /// Keys per call; engines without batches are measured with 1 only
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = number::count)]
    batch: Vec<usize>,
    /// The contestants
    #[arg(long, value_delimiter = ',', default_value = "esker")]
    engines: Vec<Name>,
    /// Measured seconds per mix
    #[arg(long, default_value_t = 5.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    /// Memory of a hybrid store in a temporary directory and of disk engines; Esker stays in memory if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Tell the other maps the number of keys in advance (Esker takes no such hint)
    #[arg(long)]
    presize: bool,
    /// Skip reading all keys back after each session
    #[arg(long)]
    no_audit: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    Name::all_are_built(&arguments.engines)?;
    let mut experiment = Experiment::prepare(arguments);
    for run in 0..arguments.runs {
        experiment.run(run)?;
    }
    experiment.bar.finish_and_clear();
    let mut rows = experiment.rows();
    report::compare(&mut rows);
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    let title = format!("Operations per second, {} keys", arguments.keys);
    report::write_svg(arguments.outputs.svg.as_deref(), || chart::rates(&title, &rows))
}

/// What one row is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Setting {
    engine: Name,
    operation: &'static str,
    reads_percent: u8,
    distribution: &'static str,
    threads: usize,
    batch: usize,
}

/// What the runs of one setting gave.
struct Results {
    rates: Vec<f64>,
    bytes_per_entry: Vec<f64>,
    latency: Histogram<u64>,
}

/// One engine with one number of threads in one run.
struct Session<'a> {
    name: Name,
    threads: usize,
    contestant: &'a dyn Contestant,
    base: u64,
}

/// The prepared draws and the results so far.
struct Experiment<'a> {
    arguments: &'a Arguments,
    load_order: Vec<u64>,
    sequences: HashMap<&'static str, Vec<Sequence>>,
    order: Vec<Setting>,
    results: HashMap<Setting, Results>,
    bar: ProgressBar,
}

impl<'a> Experiment<'a> {
    fn prepare(arguments: &'a Arguments) -> Self {
        let bar = progress::bar(steps(arguments));
        bar.set_message("drawing keys");
        let threads = arguments.threads.iter().copied().max().unwrap_or(1);
        let draw = |&distribution: &Distribution| (distribution.name(), keys::sequences(distribution, arguments.keys, threads));
        Self {
            arguments,
            load_order: (0..arguments.keys).map(keys::key).collect(),
            sequences: arguments.distribution.iter().map(draw).collect(),
            order: Vec::new(),
            results: HashMap::new(),
            bar,
        }
    }

    /// One run of all engines.
    fn run(&mut self, run: usize) -> Result<()> {
        let mut engines = self.arguments.engines.clone();
        for &threads in &self.arguments.threads {
            for name in turns::of_run(&mut engines, run) {
                self.session(*name, threads).with_context(|| name.text())?;
            }
        }
        Ok(())
    }

    fn session(&mut self, name: Name, threads: usize) -> Result<()> {
        self.load_in_batches(name, threads)?;
        let (base, contestant) = (memory::settled_bytes(), name.open(&self.settings())?);
        let session = Session { name, threads, contestant: &*contestant, base };
        self.load(&session, 1)?;
        let mut increments = 0;
        for (mix, distribution) in mixes(self.arguments, name) {
            increments += self.mix(&session, &mix, distribution)?;
        }
        if self.arguments.no_audit { Ok(()) } else { self.audit(&session, increments) }
    }

    /// Loads that only differ in the batch; each needs an empty engine.
    fn load_in_batches(&mut self, name: Name, threads: usize) -> Result<()> {
        for batch in batches(self.arguments, name).into_iter().filter(|&batch| batch > 1) {
            let (base, contestant) = (memory::settled_bytes(), name.open(&self.settings())?);
            self.load(&Session { name, threads, contestant: &*contestant, base }, batch)?;
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let capacity = self.arguments.presize.then_some(self.arguments.keys);
        let (hybrid_bytes, place) = (self.arguments.memory, self.arguments.place.clone());
        Settings { hybrid_bytes, place, capacity, ..Settings::default() }
    }

    fn load(&mut self, session: &Session, batch: usize) -> Result<()> {
        let setting = Setting {
            engine: session.name,
            operation: "load",
            reads_percent: 0,
            distribution: "scattered",
            threads: session.threads,
            batch,
        };
        self.announce(&setting);
        let measured = session.contestant.load(&self.load_order, session.threads, batch)?;
        self.record(setting, &measured, session.base)
    }

    fn mix(&mut self, session: &Session, mix: &Mix, distribution: Distribution) -> Result<u64> {
        let setting = Setting {
            engine: session.name,
            operation: mix.operation.name(),
            reads_percent: mix.reads_percent,
            distribution: distribution.name(),
            threads: session.threads,
            batch: mix.batch,
        };
        self.announce(&setting);
        let sequences = &self.sequences[distribution.name()][..session.threads];
        let measured = session.contestant.mix(mix, sequences)?;
        self.record(setting, &measured, session.base)?;
        Ok(measured.increments)
    }

    fn audit(&self, session: &Session, increments: u64) -> Result<()> {
        self.bar.set_message(format!("{} audit", session.name.text()));
        let counted = session.contestant.audit(&self.load_order, session.threads)?;
        if self.arguments.operation == [Operation::Rmw] {
            ensure!(counted == increments, "{increments} increments made, {counted} found");
        }
        Ok(())
    }

    fn announce(&self, setting: &Setting) {
        let engine = setting.engine.text();
        let Setting { operation, reads_percent, distribution, threads, batch, .. } = setting;
        self.bar.set_message(format!("{engine} {operation} {reads_percent}% {distribution} threads {threads} batch {batch}"));
    }

    fn record(&mut self, setting: Setting, measured: &Measured, base: u64) -> Result<()> {
        if !self.results.contains_key(&setting) {
            self.order.push(setting);
        }
        let results = self.results.entry(setting).or_insert_with(|| Results {
            rates: Vec::new(),
            bytes_per_entry: Vec::new(),
            latency: Histogram::new_from(&measured.latency),
        });
        results.rates.push(measured.rate());
        results.bytes_per_entry.push(memory::per_entry(base, self.arguments.keys));
        results.latency.add(&measured.latency)?;
        self.bar.inc(1);
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        self.order.iter().map(|setting| self.row(setting)).collect()
    }

    fn row(&self, setting: &Setting) -> Row {
        let results = &self.results[setting];
        Row {
            experiment: "ycsb",
            engine: setting.engine.text().to_owned(),
            operation: setting.operation.to_owned(),
            reads_percent: setting.reads_percent,
            distribution: setting.distribution,
            threads: setting.threads,
            keys: self.arguments.keys,
            value_bytes: 8,
            batch: setting.batch,
            runs: results.rates.len(),
            ops_per_second: Spread::of(&results.rates),
            bytes_per_entry: Some(Spread::of(&results.bytes_per_entry).median),
            latency_ns: Some(Latency::of(&results.latency)),
            memory_bytes: self.arguments.memory.filter(|_| setting.engine.takes_memory()),
            ..Row::default()
        }
    }
}

/// The batches an engine is measured with.
fn batches(arguments: &Arguments, name: Name) -> Vec<usize> {
    if name.has_batches() { arguments.batch.clone() } else { vec![1] }
}

/// The mixes of a session. Reads alone are the same for all operations and run for the first.
fn mixes(arguments: &Arguments, name: Name) -> Vec<(Mix, Distribution)> {
    // Calls to a device are rare enough to time more of them.
    let sample_every = if arguments.memory.is_some() { 64 } else { 1024 };
    let mut mixes = Vec::new();
    for &distribution in &arguments.distribution {
        for (index, &operation) in arguments.operation.iter().enumerate() {
            for &reads_percent in arguments.reads.iter().filter(|&&r| r < 100 || index == 0) {
                for batch in batches(arguments, name) {
                    let seconds = arguments.seconds;
                    let mix = Mix { operation, reads_percent, batch, seconds, sample_every };
                    mixes.push((mix, distribution));
                }
            }
        }
    }
    mixes
}

/// The number of measurements.
fn steps(arguments: &Arguments) -> u64 {
    let of = |&name: &Name| {
        let more = batches(arguments, name).iter().filter(|&&batch| batch > 1).count();
        1 + more + mixes(arguments, name).len()
    };
    let each: usize = arguments.engines.iter().map(of).sum();
    (each * arguments.threads.len() * arguments.runs) as u64
}

fn print(rows: &[Row]) {
    let mut sorted: Vec<_> = rows.iter().collect();
    let key = |row: &&Row| (row.threads, row.distribution, row.operation.clone(), row.reads_percent);
    sorted.sort_by_key(key);
    let body: Vec<_> = sorted.into_iter().map(cells).collect();
    let head = [
        "engine",
        "operation",
        "reads",
        "keys",
        "threads",
        "batch",
        "median",
        "min",
        "max",
        "to best peer",
        "bytes/entry",
        "p50",
        "p99",
        "p99.9",
        "slowest",
    ];
    report::print_table(&head, &body);
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![
        row.engine.clone(),
        row.operation.clone(),
        format!("{}%", row.reads_percent),
        row.distribution.to_owned(),
        row.threads.to_string(),
        row.batch.to_string(),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        report::optional(row.ratio_to_best_peer),
        report::bytes(row.bytes_per_entry),
    ];
    let latency = row.latency_ns.map(|l| [l.p50, l.p99, l.p999, l.max]).unwrap_or_default();
    cells.extend(latency.map(report::nanoseconds));
    cells
}
