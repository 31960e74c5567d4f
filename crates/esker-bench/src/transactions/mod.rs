//! Transactions of several keys by many threads, beside those of other engines.
//!
//! Each transaction reads a few keys and adds one to each. One that another was quicker than begins again, with the same keys, until
//! it commits; such attempts are reported beside the rate of commits. The keys of one transaction are in ascending order, so that
//! engines which lock as they go do not deadlock. The clock starts after a warm-up. At the end the sum of all values must be the number of
//! commits, the warm-up's as well, times the keys of each: a lost update ends the experiment.
//!
//! With `--sync off` nothing is made durable (RocksDB writes no log then); with `--sync on` each commit is durable when it returns.

mod ledgers;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use crate::engines::Settings;
use crate::keys::{self, Distribution, Sequence};
use crate::report::{self, Latency, Row, Spread};
use crate::run::{MEASURED, WARMING};
use crate::{Outputs, Place, Switch, chart, number, progress, run, size, turns};
use ledgers::{Kind, Ledger};

/// Of so many transactions that are not durable one is timed.
const TIMED: u64 = 16;
const LOAD_BATCH: usize = 1024;

/// The options of `transactions`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// Keys of each transaction
    #[arg(long, default_value_t = 4)]
    per_transaction: usize,
    /// How keys are chosen
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf")]
    distribution: Vec<Distribution>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "48", value_parser = number::threads)]
    threads: Vec<usize>,
    /// Engines, all that were built if not given
    #[arg(long, alias = "engine", value_delimiter = ',')]
    engines: Vec<Kind>,
    /// Whether each commit is durable when it returns
    #[arg(long, value_delimiter = ',', default_value = "off,on")]
    sync: Vec<Switch>,
    /// Memory of each engine
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = size::parse)]
    memory: u64,
    /// Measured seconds per setting
    #[arg(long, default_value_t = 5.0, value_parser = number::seconds)]
    seconds: f64,
    /// Number of runs
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// An engine under one load.
struct Setting {
    kind: Kind,
    distribution: Distribution,
    threads: usize,
    sync: bool,
    rates: Vec<f64>,
    tally: Tally,
}

/// What threads did.
struct Tally {
    commits: u64,
    aborts: u64,
    latency: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { commits: 0, aborts: 0, latency: run::histogram() }
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.aborts += other.aborts;
        self.latency += &other.latency;
    }
}

/// One thread.
struct Lane {
    tally: Tally,
    /// Commits before the clock started.
    warm_up: u64,
    begun: Instant,
    ended: Instant,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!((1..=1024).contains(&arguments.per_transaction), "a transaction has one to 1024 keys");
    let mut settings = settings(arguments);
    let bar = progress::bar((arguments.runs * settings.len()) as u64);
    for &distribution in &arguments.distribution {
        // One for all threads, which begin in different places.
        let sequence = Sequence::draw(distribution, arguments.keys, 0);
        for run in 0..arguments.runs {
            let in_turn = turns::of_run_in_groups(&mut settings, run, Setting::is_rival);
            for setting in in_turn.filter(|setting| setting.distribution == distribution) {
                bar.set_message(setting.text());
                setting.run(arguments, &sequence).with_context(|| setting.text())?;
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let mut rows: Vec<Row> = settings.iter().map(|setting| setting.row(arguments)).collect();
    report::compare(&mut rows);
    let head = ["engine", "keys", "threads", "sync", "commits/s", "min", "max", "to best peer", "aborts", "p50", "p99", "p99.9"];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(arguments, &rows))
}

fn settings(arguments: &Arguments) -> Vec<Setting> {
    let kinds = if arguments.engines.is_empty() { Kind::all() } else { arguments.engines.clone() };
    let mut settings = Vec::new();
    for &sync in &arguments.sync {
        for &distribution in &arguments.distribution {
            for &threads in &arguments.threads {
                let of = |&kind| Setting { kind, distribution, threads, sync: sync.is_on(), rates: Vec::new(), tally: Tally::default() };
                settings.extend(kinds.iter().map(of));
            }
        }
    }
    settings
}

impl Setting {
    /// All but the engine is the same.
    fn is_rival(&self, other: &Self) -> bool {
        let load = |setting: &Self| (setting.sync, setting.distribution, setting.threads);
        load(self) == load(other)
    }

    fn text(&self) -> String {
        let sync = if self.sync { "on" } else { "off" };
        format!("{}, {}, {} threads, sync {sync}", self.kind.name(), self.distribution.name(), self.threads)
    }

    /// A fresh ledger, loaded, used for the time given, and summed up.
    fn run(&mut self, arguments: &Arguments, sequence: &Sequence) -> Result<()> {
        let (hybrid_bytes, place) = (Some(arguments.memory), arguments.place.clone());
        let ledger = self.kind.open(&Settings { hybrid_bytes, place, durable: self.sync, ..Settings::default() })?;
        let batches = || (0..arguments.keys).step_by(LOAD_BATCH);
        let batch = |from: u64| (from..(from + LOAD_BATCH as u64).min(arguments.keys)).map(keys::key).collect::<Vec<_>>();
        batches().try_for_each(|from| ledger.load(&batch(from)))?;
        let lanes = self.drive(&*ledger, arguments, sequence)?;
        let sum = batches().try_fold(0, |sum, from| Ok::<_, anyhow::Error>(sum + ledger.sum(&batch(from))?))?;
        let made = lanes.iter().map(|lane| lane.warm_up + lane.tally.commits).sum::<u64>();
        ensure!(sum == made * arguments.per_transaction as u64, "{} lost updates: {sum}", self.kind.name());
        let begun = lanes.iter().map(|lane| lane.begun).min().context("no threads")?;
        let ended = lanes.iter().map(|lane| lane.ended).max().context("no threads")?;
        let commits = lanes.iter().map(|lane| lane.tally.commits).sum::<u64>();
        self.rates.push(commits as f64 / (ended - begun).as_secs_f64());
        lanes.iter().for_each(|lane| self.tally.add(&lane.tally));
        Ok(())
    }

    /// All threads begin together, and the clock starts when they have warmed up.
    fn drive(&self, ledger: &dyn Ledger, arguments: &Arguments, sequence: &Sequence) -> Result<Vec<Lane>> {
        let (phase, barrier) = (AtomicU8::new(WARMING), Barrier::new(self.threads + 1));
        let part = sequence.keys.len() / self.threads;
        // Durable ones take long enough for a look at the clock.
        let timed_of = if self.sync { 1 } else { TIMED };
        std::thread::scope(|scope| {
            let (phase, barrier) = (&phase, &barrier);
            let work = |thread: usize| {
                let keys = &sequence.keys[thread * part..][..part];
                move || {
                    barrier.wait();
                    work(ledger, keys, arguments.per_transaction, timed_of, phase)
                }
            };
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(work(thread))).collect();
            run::conduct(phase, barrier, arguments.seconds);
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
        })
    }

    fn row(&self, arguments: &Arguments) -> Row {
        Row {
            experiment: "transactions",
            engine: self.kind.name().to_owned(),
            operation: "transaction".to_owned(),
            distribution: self.distribution.name(),
            threads: self.threads,
            keys: arguments.keys,
            value_bytes: 8,
            batch: arguments.per_transaction,
            runs: arguments.runs,
            ops_per_second: Spread::of(&self.rates),
            memory_bytes: self.kind.takes_memory().then_some(arguments.memory),
            latency_ns: Some(Latency::of(&self.tally.latency)),
            durability: Some(self.sync),
            aborts_per_commit: Some(self.tally.aborts as f64 / self.tally.commits.max(1) as f64),
            ..Row::default()
        }
    }
}

/// Commits until the run is over.
fn work(ledger: &dyn Ledger, keys: &[u64], per_transaction: usize, timed_of: u64, phase: &AtomicU8) -> Result<Lane> {
    let mut chosen = Vec::with_capacity(per_transaction);
    let mut parts = keys.chunks_exact(per_transaction).cycle();
    let mut commit_while = |own: u8| -> Result<Tally> {
        let mut tally = Tally::default();
        while phase.load(Ordering::Relaxed) == own {
            let timed = tally.commits.is_multiple_of(timed_of).then(Instant::now);
            chosen.clear();
            chosen.extend_from_slice(parts.next().context("fewer keys than a transaction has")?);
            chosen.sort_unstable();
            while !ledger.add_one_to_each(&chosen)? {
                tally.aborts += 1;
            }
            tally.commits += 1;
            if let Some(begun) = timed {
                tally.latency.saturating_record(begun.elapsed().as_nanos() as u64);
            }
        }
        Ok(tally)
    };
    let warm_up = commit_while(WARMING)?.commits;
    let begun = Instant::now();
    let tally = commit_while(MEASURED)?;
    Ok(Lane { tally, warm_up, begun, ended: Instant::now() })
}

fn cells(row: &Row) -> Vec<String> {
    let rates = row.ops_per_second;
    let sync = if row.durability == Some(true) { "on" } else { "off" };
    let mut cells = vec![row.engine.clone(), row.distribution.to_owned(), row.threads.to_string(), sync.to_owned()];
    cells.extend([rates.median, rates.min, rates.max].map(report::rate));
    cells.push(report::optional(row.ratio_to_best_peer));
    cells.push(row.aborts_per_commit.map_or_else(|| "-".to_owned(), |aborts| format!("{:.2} %", aborts * 100.0)));
    cells.extend(row.latency_ns.map_or(["-"; 3].map(str::to_owned), |ns| [ns.p50, ns.p99, ns.p999].map(report::nanoseconds)));
    cells
}

/// A panel without and one with durability: their rates are far apart.
fn draw(arguments: &Arguments, rows: &[Row]) -> String {
    let panel = |sync: &Switch| {
        let with = if sync.is_on() { "each durable" } else { "nothing durable" };
        let title = format!("Commits per second, {with}: {} of {} keys", arguments.per_transaction, arguments.keys);
        (title, rows.iter().filter(|row| row.durability == Some(sync.is_on())).cloned().collect())
    };
    chart::panels(&arguments.sync.iter().map(panel).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    struct Sum(AtomicU64);

    impl Ledger for Sum {
        fn load(&self, _: &[u64]) -> Result<()> {
            Ok(())
        }

        fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
            self.0.fetch_add(keys.len() as u64, Ordering::Relaxed);
            Ok(true)
        }

        fn sum(&self, _: &[u64]) -> Result<u64> {
            Ok(self.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn the_sum_has_the_commits_of_the_warm_up() {
        let line = "esker-bench transactions --threads 3 --seconds 0.5 --sync off";
        let crate::Experiment::Transactions(arguments) = crate::parsed(line) else { unreachable!() };
        let (ledger, sequence) = (Sum(AtomicU64::new(0)), Sequence::draw(Distribution::Uniform, 1000, 0));
        let lanes = settings(&arguments)[0].drive(&ledger, &arguments, &sequence).unwrap();
        let made: u64 = lanes.iter().map(|lane| lane.warm_up + lane.tally.commits).sum();
        assert_eq!(ledger.sum(&[]).unwrap(), made * 4);
        assert!(lanes.len() == 3 && lanes.iter().any(|lane| lane.warm_up > 0));
    }

    #[test]
    fn engines_under_one_load_stand_side_by_side() {
        let line = "esker-bench transactions --threads 1,48";
        let crate::Experiment::Transactions(arguments) = crate::parsed(line) else { unreachable!() };
        let all = settings(&arguments);
        let groups: Vec<_> = all.chunk_by(Setting::is_rival).collect();
        assert_eq!(groups.len(), 8);
        assert!(groups.iter().all(|group| group.iter().map(|setting| setting.kind).eq(Kind::all())));
    }

    #[test]
    fn engines_have_the_option_that_they_have_elsewhere() {
        for option in ["--engines", "--engine"] {
            let line = format!("esker-bench transactions {option} esker,esker");
            let crate::Experiment::Transactions(arguments) = crate::parsed(&line) else { unreachable!() };
            assert_eq!(arguments.engines, [Kind::Esker; 2]);
        }
    }
}
