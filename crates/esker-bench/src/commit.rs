//! What durability costs: updates while lines are drawn, and commits beside the device's own.
//!
//! A line ends the changes in place of everything below it, so that each record is copied once more after each line: uniform
//! updates pay most. The same updates run without lines and with one at every interval, in turns, in a store in a
//! directory whose budget holds everything, so that the difference is the lines. A worker looks at the clock once per block of
//! 64 operations, for the first of which it is timed, and counts the block for the tenth of a second in which it began: a pause
//! shows as an interval with few operations. The sum of all values is compared with the number of increments.
//!
//! With `Always` each call waits for a line, and calls at the same time share one. A line is two writes and two syncs, one
//! after the other, so it is compared with a plain file in the same directory that is written 4 KiB at a time with an
//! fdatasync behind each. Afterwards, untimed, what was put last is read back.
//!
//! **Other engines** (`--engines`) do the same work: puts of 16 bytes, each durable when it returns, and then puts of uniformly chosen
//! keys by one thread which are made durable every so many seconds (`contestants.rs`).

mod contestants;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::{Durability, Options, Store};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use crate::answers::Sum;
use crate::engines::Name;
use crate::keys::{self, Distribution, Sequence};
use crate::report::{self, Latency, Row, Spread};
use crate::{Outputs, Place, chart, number, progress, run, size, turns};
use contestants::{Contestant, Promise};

/// The rate of each so many seconds is looked at.
const INTERVAL_SECONDS: f64 = 0.1;
/// Operations between two looks at the clock.
const BLOCK: usize = 64;
/// Share of the measured time that is spent in warming up.
const WARM_UP: f64 = 0.1;
/// Pairs per `put_many` of the load.
const LOAD_BATCH: usize = 1024;
/// Keys of each thread that commits.
const COMMIT_KEYS: u64 = 1000;
/// Blocks of puts whose values are read back, the last ones.
const AUDITED_BLOCKS: u64 = 4096;

/// The options of `commit`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: u64,
    /// How the keys of updates are chosen
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf")]
    distribution: Vec<Distribution>,
    /// Threads that update
    #[arg(long, default_value_t = 1, value_parser = number::threads)]
    threads: usize,
    /// Seconds from line to line
    #[arg(long, default_value_t = 1.0, value_parser = number::seconds)]
    line_seconds: f64,
    /// Numbers of threads that make each update durable
    #[arg(long, value_delimiter = ',', default_value = "1,8,64", value_parser = number::threads)]
    commit_threads: Vec<usize>,
    /// Who makes calls durable; all but esker need `--features peers-disk`
    #[arg(long, value_delimiter = ',', default_value = "esker")]
    engines: Vec<Name>,
    /// Memory of the store: to hold the keys, and what the lines add to them
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = size::parse)]
    memory: u64,
    /// Measured seconds per setting
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

/// One setting of the updates.
struct Updates {
    distribution: Distribution,
    durability: Durability,
    results: Vec<Run>,
}

/// What one run gave.
struct Run {
    /// Operations per second in each interval.
    course: Vec<f64>,
    /// Bytes that the log grew by, per operation.
    log_bytes: f64,
    latency: Histogram<u64>,
}

/// The puts of an engine by so many threads.
struct Commits {
    engine: Name,
    promise: Promise,
    threads: usize,
    rates: Vec<f64>,
    latency: Histogram<u64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    validate(arguments)?;
    let directory = arguments.place.temporary()?;
    let commits = arguments.engines.len() * (arguments.commit_threads.len() + 1) + 1;
    let bar = progress::bar((arguments.runs * (2 * arguments.distribution.len() + commits)) as u64);
    let updates = measure_updates(arguments, directory.path(), &bar)?;
    let (commits, syncs) = measure_commits(arguments, directory.path(), &bar)?;
    bar.finish_and_clear();
    let update_rows = update_rows(arguments, &updates);
    let commit_rows = commit_rows(arguments, &commits, &syncs);
    print_updates(&update_rows);
    report::say!("");
    print_commits(&commit_rows);
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(&updates))?;
    report::write_json(arguments.outputs.rows.json.as_deref(), &[update_rows, commit_rows].concat())
}

fn validate(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.seconds >= 10.0 * INTERVAL_SECONDS, "a measurement lasts a second at least");
    ensure!(arguments.engines.iter().all(|engine| engine.keeps_on_disk()), "maps in memory make nothing durable");
    ensure!(!arguments.engines.contains(&Name::Mdbx), "mdbx is none of those that make calls durable here");
    Name::all_are_built(&arguments.engines)
}

// ---- updates while lines are drawn -----------------------------------------------------------------------------------

/// All settings, in turns.
fn measure_updates(arguments: &Arguments, directory: &Path, bar: &ProgressBar) -> Result<Vec<Updates>> {
    let lines = Durability::Every(Duration::from_secs_f64(arguments.line_seconds));
    let settings = arguments
        .distribution
        .iter()
        .flat_map(|&distribution| [Durability::None, lines].map(|durability| Updates { distribution, durability, results: Vec::new() }));
    let mut settings: Vec<_> = settings.collect();
    for run in 0..arguments.runs {
        for setting in turns::of_run_in_groups(&mut settings, run, |one, other| one.distribution == other.distribution) {
            bar.set_message(format!("updates, {}, {}", setting.distribution.name(), setting.name(arguments)));
            let result = update_run(arguments, setting, directory)?;
            setting.results.push(result);
            bar.inc(1);
        }
    }
    Ok(settings)
}

impl Updates {
    fn name(&self, arguments: &Arguments) -> String {
        match self.durability {
            Durability::None => "no lines".to_owned(),
            _ => format!("a line every {} s", arguments.line_seconds),
        }
    }

    fn rates(&self) -> Vec<f64> {
        self.results.iter().map(|run| run.course.iter().sum::<f64>() / run.course.len() as f64).collect()
    }

    /// Run by run, for these were neighbours in time.
    fn ratio_to(&self, other: &Self) -> Spread {
        Spread::of(&self.rates().iter().zip(other.rates()).map(|(rate, other)| rate / other).collect::<Vec<_>>())
    }

    /// The lowest interval against the median one, of each run.
    fn lowest_interval(&self) -> Spread {
        let courses = self.results.iter().map(|run| Spread::of(&run.course));
        Spread::of(&courses.map(|course| course.min / course.median).collect::<Vec<_>>())
    }

    fn log_bytes(&self) -> f64 {
        Spread::of(&self.results.iter().map(|run| run.log_bytes).collect::<Vec<_>>()).median
    }

    fn latency(&self) -> Latency {
        let mut all = run::histogram();
        self.results.iter().for_each(|run| all += &run.latency);
        Latency::of(&all)
    }
}

/// A fresh store, loaded, updated for the time given, and read back.
fn update_run(arguments: &Arguments, setting: &Updates, directory: &Path) -> Result<Run> {
    let folder = tempfile::tempdir_in(directory)?;
    let options = Options::new().memory(arguments.memory).durability(setting.durability);
    let store: Store<u64, u64> = options.open(folder.path().join("store"))?;
    load(&store, arguments.keys)?;
    let sequences = keys::sequences(setting.distribution, arguments.keys, arguments.threads);
    let warm = drive(&store, &sequences, arguments.seconds * WARM_UP)?;
    let before = store.stats().log.tail;
    let mut measured = drive(&store, &sequences, arguments.seconds)?;
    let log_bytes = (store.stats().log.tail - before) as f64 / measured.operations as f64;
    ensure!(sum(&store, arguments.keys)? == warm.operations + measured.operations, "the sum is not the number of increments");
    // The interval that the end cut short says nothing.
    measured.intervals.truncate((arguments.seconds / INTERVAL_SECONDS) as usize);
    let course = measured.intervals.iter().map(|&operations| operations as f64 / INTERVAL_SECONDS).collect();
    store.close()?;
    Ok(Run { course, log_bytes, latency: measured.latency })
}

fn load(store: &Store<u64, u64>, count: u64) -> Result<()> {
    let mut pairs = Vec::with_capacity(LOAD_BATCH);
    for from in (0..count).step_by(LOAD_BATCH) {
        pairs.clear();
        pairs.extend((from..(from + LOAD_BATCH as u64).min(count)).map(|index| (keys::key(index), 0)));
        store.put_many(&pairs)?;
    }
    Ok(())
}

fn sum(store: &Store<u64, u64>, count: u64) -> Result<u64> {
    let mut all = 0;
    for from in (0..count).step_by(LOAD_BATCH) {
        let batch: Vec<_> = (from..(from + LOAD_BATCH as u64).min(count)).map(keys::key).collect();
        let mut sum = Sum::of(&batch);
        store.get_many(&batch, |at, value| sum.add(at, value))?;
        all += sum.get()?;
    }
    Ok(all)
}

/// What the threads did.
struct Lane {
    operations: u64,
    intervals: Vec<u64>,
    latency: Histogram<u64>,
}

impl Lane {
    fn new(seconds: f64) -> Self {
        let intervals = vec![0; (seconds / INTERVAL_SECONDS).ceil() as usize];
        Self { operations: 0, intervals, latency: run::histogram() }
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.intervals.iter_mut().zip(&other.intervals).for_each(|(sum, count)| *sum += count);
        self.latency += &other.latency;
    }
}

/// One thread for each sequence, for so long.
fn drive(store: &Store<u64, u64>, sequences: &[Sequence], seconds: f64) -> Result<Lane> {
    let mut all = Lane::new(seconds);
    let barrier = Barrier::new(sequences.len());
    let lanes: Vec<esker::Result<Lane>> = std::thread::scope(|scope| {
        let worker = |sequence| {
            barrier.wait();
            update(store, sequence, seconds)
        };
        let threads: Vec<_> = sequences.iter().map(|sequence| scope.spawn(move || worker(sequence))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    for lane in lanes {
        all.add(&lane?);
    }
    Ok(all)
}

fn update(store: &Store<u64, u64>, sequence: &Sequence, seconds: f64) -> esker::Result<Lane> {
    let mut lane = Lane::new(seconds);
    let start = Instant::now();
    for block in sequence.keys.chunks_exact(BLOCK).cycle() {
        let begun = Instant::now();
        let Some(interval) = lane.intervals.get_mut(((begun - start).as_secs_f64() / INTERVAL_SECONDS) as usize) else { break };
        *interval += BLOCK as u64;
        lane.operations += BLOCK as u64;
        increment(store, block[0])?;
        lane.latency.saturating_record(begun.elapsed().as_nanos() as u64);
        block[1..].iter().try_for_each(|&key| increment(store, key))?;
    }
    Ok(lane)
}

#[inline(always)]
fn increment(store: &Store<u64, u64>, key: u64) -> esker::Result<()> {
    store.rmw(&key, |old| old.unwrap_or(0) + 1).map(drop)
}

// ---- each call durable -----------------------------------------------------------------------------------------------

/// The commits of all engines and numbers of threads and the device's own syncs, in turns.
fn measure_commits(arguments: &Arguments, directory: &Path, bar: &ProgressBar) -> Result<(Vec<Commits>, Vec<f64>)> {
    let mut commits = commits(arguments);
    let mut syncs = Vec::new();
    for run in 0..arguments.runs {
        bar.set_message("fdatasync of a plain file");
        syncs.push(sync_rate(&directory.join("plain"), arguments.seconds / 2.0)?);
        bar.inc(1);
        for commits in turns::of_run_in_groups(&mut commits, run, Commits::is_rival) {
            bar.set_message(format!("{}, {}, {} threads", commits.engine.text(), commits.operation(), commits.threads));
            commits.run(arguments, directory)?;
            bar.inc(1);
        }
    }
    Ok((commits, syncs))
}

/// Those that are compared side by side.
fn commits(arguments: &Arguments) -> Vec<Commits> {
    let at_once = arguments.commit_threads.iter().map(|&threads| (Promise::AtOnce, threads));
    let every = Promise::Every(Duration::from_secs_f64(arguments.line_seconds));
    let rivals = |(promise, threads)| arguments.engines.iter().map(move |&engine| Commits::new(engine, promise, threads));
    at_once.chain([(every, 1)]).flat_map(rivals).collect()
}

/// Writes of 4 KiB to the end of a file, each followed by fdatasync, per second.
fn sync_rate(path: &Path, seconds: f64) -> Result<f64> {
    let mut file = File::create(path)?;
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed().as_secs_f64() < seconds {
        file.write_all(&[count as u8; 4096])?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

impl Commits {
    fn new(engine: Name, promise: Promise, threads: usize) -> Self {
        Self { engine, promise, threads, rates: Vec::new(), latency: run::histogram() }
    }

    /// All but the engine is the same.
    fn is_rival(&self, other: &Self) -> bool {
        (self.promise, self.threads) == (other.promise, other.threads)
    }

    fn operation(&self) -> String {
        match self.promise {
            Promise::AtOnce => "durable put".to_owned(),
            Promise::Every(pause) => format!("put, durable every {} s", pause.as_secs_f64()),
        }
    }

    /// How keys are chosen.
    fn distribution(&self) -> &'static str {
        if self.promise == Promise::AtOnce { "in turn" } else { Distribution::Uniform.name() }
    }

    fn keys(&self, arguments: &Arguments) -> u64 {
        if self.promise == Promise::AtOnce { COMMIT_KEYS * self.threads as u64 } else { arguments.keys }
    }

    /// Each thread puts keys of its own, one durable call after the other; or one thread puts any, while another syncs.
    fn run(&mut self, arguments: &Arguments, directory: &Path) -> Result<()> {
        let folder = tempfile::tempdir_in(directory)?;
        let contestant = contestants::open(self.engine, self.promise, arguments.memory, folder.path())?;
        // One thread puts any, and none where each has keys of its own.
        let any = if self.promise == Promise::AtOnce { 0 } else { self.threads };
        let sequences = keys::sequences(Distribution::Uniform, arguments.keys, any);
        let (start, is_over) = (Instant::now(), AtomicBool::new(false));
        let (calls, seconds): (Vec<(u64, Histogram<u64>)>, f64) = std::thread::scope(|scope| {
            let (contestant, sequences, seconds) = (&*contestant, &sequences, arguments.seconds);
            let promise = self.promise;
            let worker = move |thread| match promise {
                Promise::AtOnce => put_until_over(contestant, thread, start, seconds),
                Promise::Every(_) => put_anywhere(contestant, &sequences[thread as usize], start, seconds),
            };
            let threads: Vec<_> = (0..self.threads as u64).map(|thread| scope.spawn(move || worker(thread))).collect();
            if let Promise::Every(pause) = self.promise {
                let is_over = &is_over;
                scope.spawn(move || sync_meanwhile(contestant, pause, is_over));
            }
            let calls = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
            // Before a sync ends that is still under way: nobody puts meanwhile.
            let seconds = start.elapsed().as_secs_f64();
            is_over.store(true, Ordering::Relaxed);
            (calls, seconds)
        });
        let mut count = 0;
        for (thread, (done, latency)) in (0..).zip(calls) {
            match self.promise {
                Promise::AtOnce => self.audit(&*contestant, (done.saturating_sub(COMMIT_KEYS)..done).map(|n| own_put(thread, n)))?,
                Promise::Every(_) => self.audit(&*contestant, last_puts(&sequences[thread as usize], done))?,
            }
            count += done;
            self.latency += &latency;
        }
        self.rates.push(count as f64 / seconds);
        Ok(())
    }

    /// Of these puts the last one of each key is there.
    fn audit(&self, contestant: &dyn Contestant, puts: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let last: HashMap<u64, u64> = puts.collect();
        for (key, value) in last {
            let found = contestant.get(key);
            ensure!(found == Some(value), "{}: key {key} has {found:?}, and {value} was put last", self.engine.text());
        }
        Ok(())
    }
}

/// Put number n of a thread that has keys of its own.
fn own_put(thread: u64, n: u64) -> (u64, u64) {
    (thread << 32 | (n % COMMIT_KEYS), n)
}

/// The last of so many puts of a thread that puts any: blocks, with one value each.
fn last_puts(sequence: &Sequence, done: u64) -> impl Iterator<Item = (u64, u64)> {
    let (keys, blocks) = (&sequence.keys, done / BLOCK as u64);
    let in_a_round = (keys.len() / BLOCK) as u64;
    (blocks.saturating_sub(AUDITED_BLOCKS)..blocks).flat_map(move |block| {
        let from = (block % in_a_round) as usize * BLOCK;
        keys[from..from + BLOCK].iter().map(move |&key| (key, block * BLOCK as u64))
    })
}

/// Each call is timed.
fn put_until_over(contestant: &dyn Contestant, thread: u64, start: Instant, seconds: f64) -> (u64, Histogram<u64>) {
    let (mut count, mut latency) = (0, run::histogram());
    while start.elapsed().as_secs_f64() < seconds {
        let begun = Instant::now();
        let (key, value) = own_put(thread, count);
        contestant.put(key, value);
        latency.saturating_record(begun.elapsed().as_nanos() as u64);
        count += 1;
    }
    (count, latency)
}

/// The first call of each block is timed.
fn put_anywhere(contestant: &dyn Contestant, sequence: &Sequence, start: Instant, seconds: f64) -> (u64, Histogram<u64>) {
    let (mut count, mut latency) = (0, run::histogram());
    for block in sequence.keys.chunks_exact(BLOCK).cycle() {
        let begun = Instant::now();
        if (begun - start).as_secs_f64() >= seconds {
            break;
        }
        contestant.put(block[0], count);
        latency.saturating_record(begun.elapsed().as_nanos() as u64);
        block[1..].iter().for_each(|&key| contestant.put(key, count));
        count += BLOCK as u64;
    }
    (count, latency)
}

fn sync_meanwhile(contestant: &dyn Contestant, pause: Duration, is_over: &AtomicBool) {
    let mut last = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        if last.elapsed() >= pause {
            last = Instant::now();
            contestant.sync();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- results ---------------------------------------------------------------------------------------------------------

fn base_row(arguments: &Arguments, engine: &str, operation: &str, threads: usize, rate: Spread) -> Row {
    Row {
        experiment: "commit",
        engine: engine.to_owned(),
        operation: operation.to_owned(),
        threads,
        keys: arguments.keys,
        value_bytes: 8,
        batch: 1,
        runs: arguments.runs,
        ops_per_second: rate,
        memory_bytes: Some(arguments.memory),
        ..Row::default()
    }
}

fn update_rows(arguments: &Arguments, updates: &[Updates]) -> Vec<Row> {
    // Settings come in pairs: without lines, with lines.
    let pairs = updates.chunks(2).flat_map(|pair| pair.iter().map(|setting| (setting, &pair[0])));
    let row = |(setting, without): (&Updates, &Updates)| Row {
        distribution: setting.distribution.name(),
        line_seconds: (setting.durability != Durability::None).then_some(arguments.line_seconds),
        ratio_to_no_lines: Some(setting.ratio_to(without)),
        lowest_interval_to_median: Some(setting.lowest_interval()),
        log_bytes_per_update: Some(setting.log_bytes()),
        latency_ns: Some(setting.latency()),
        interval_ops_per_second: setting.results.iter().map(|run| run.course.clone()).collect(),
        ..base_row(arguments, "esker", &setting.name(arguments), arguments.threads, Spread::of(&setting.rates()))
    };
    pairs.map(row).collect()
}

fn commit_rows(arguments: &Arguments, commits: &[Commits], syncs: &[f64]) -> Vec<Row> {
    let sync = Spread::of(syncs);
    let plain = base_row(arguments, "plain file", "fdatasync", 1, sync);
    let plain = Row { distribution: "in order", value_bytes: 4096, keys: 0, memory_bytes: None, ..plain };
    let row = |commits: &Commits| {
        let rate = Spread::of(&commits.rates);
        let is_at_once = commits.promise == Promise::AtOnce;
        Row {
            distribution: commits.distribution(),
            keys: commits.keys(arguments),
            ratio_to_fdatasync: is_at_once.then(|| rate.median / sync.median),
            line_seconds: (!is_at_once).then_some(arguments.line_seconds),
            memory_bytes: commits.engine.takes_memory().then_some(arguments.memory),
            latency_ns: Some(Latency::of(&commits.latency)),
            ..base_row(arguments, commits.engine.text(), &commits.operation(), commits.threads, rate)
        }
    };
    std::iter::once(plain).chain(commits.iter().map(row)).collect()
}

fn print_updates(rows: &[Row]) {
    let head = ["updates", "lines", "median", "min", "max", "to no lines", "lowest 0.1 s", "log B/update", "p50", "p99", "p99.9", "max"];
    report::print_table(&head, &rows.iter().map(update_cells).collect::<Vec<_>>());
    report::say!("A write-ahead log would write 16 bytes and a header for each update.");
}

fn update_cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.distribution.to_owned(), row.operation.clone()];
    cells.extend(rates(row));
    cells.push(row.ratio_to_no_lines.map_or_else(|| "-".to_owned(), spread));
    cells.push(row.lowest_interval_to_median.map_or_else(|| "-".to_owned(), spread));
    cells.push(report::optional(row.log_bytes_per_update));
    cells.extend(report::latencies(row));
    cells
}

fn print_commits(rows: &[Row]) {
    let head = ["durable calls", "threads", "median", "min", "max", "to fdatasync", "p50", "p99", "p99.9", "max"];
    report::print_table(&head, &rows.iter().map(commit_cells).collect::<Vec<_>>());
}

fn commit_cells(row: &Row) -> Vec<String> {
    let mut cells = vec![format!("{}, {}", row.engine, row.operation), row.threads.to_string()];
    cells.extend(rates(row));
    cells.push(report::optional(row.ratio_to_fdatasync));
    cells.extend(report::latencies(row));
    cells
}

fn rates(row: &Row) -> [String; 3] {
    [row.ops_per_second.median, row.ops_per_second.min, row.ops_per_second.max].map(report::rate)
}

fn spread(values: Spread) -> String {
    format!("{:.2} ({:.2}-{:.2})", values.median, values.min, values.max)
}

/// The course of the first run of each setting.
fn draw(updates: &[Updates]) -> String {
    let line = |setting: &Updates| {
        let name = if setting.durability == Durability::None { "no lines" } else { "lines" };
        (format!("{}, {name}", setting.distribution.name()), setting.results[0].course.clone())
    };
    chart::lines("Updates per second, each tenth of a second", "tenths of a second", &updates.iter().map(line).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Contestant for Nothing {
        fn put(&self, _: u64, _: u64) {}

        fn get(&self, _: u64) -> Option<u64> {
            None
        }
    }

    #[derive(Default)]
    struct Map(std::sync::Mutex<HashMap<u64, u64>>);

    impl Contestant for Map {
        fn put(&self, key: u64, value: u64) {
            self.0.lock().unwrap().insert(key, value);
        }

        fn get(&self, key: u64) -> Option<u64> {
            self.0.lock().unwrap().get(&key).copied()
        }
    }

    /// What is done in so little time, unless somebody else has the processor all of it.
    fn something(mut attempt: impl FnMut() -> u64) -> u64 {
        (0..100).map(|_| attempt()).find(|done| *done > 0).expect("nothing is done")
    }

    /// One put that is lost, or came too late, ends the benchmark.
    #[test]
    fn what_was_put_last_is_looked_for() {
        let commits = Commits::new(Name::Esker, Promise::AtOnce, 1);
        let sequence = Sequence::draw(Distribution::Uniform, 1000, 0);
        let (anywhere, own) = (Map::default(), Map::default());
        let done = something(|| put_anywhere(&anywhere, &sequence, Instant::now(), 0.02).0);
        let count = something(|| put_until_over(&own, 3, Instant::now(), 0.02).0);
        let own_puts = || (count.saturating_sub(COMMIT_KEYS)..count).map(|n| own_put(3, n));
        commits.audit(&anywhere, last_puts(&sequence, done)).unwrap();
        commits.audit(&own, own_puts()).unwrap();
        let (key, value) = last_puts(&sequence, done).last().unwrap();
        anywhere.put(key, value - 1);
        own.0.lock().unwrap().remove(&own_put(3, count - 1).0);
        assert!(commits.audit(&anywhere, last_puts(&sequence, done)).is_err() && commits.audit(&own, own_puts()).is_err());
    }

    /// Before anything is measured.
    #[test]
    fn who_cannot_take_part_is_refused() {
        let refused = |engine: &str| {
            let line = format!("esker-bench commit --engines {engine}");
            let crate::Experiment::Commit(arguments) = crate::parsed(&line) else { unreachable!() };
            validate(&arguments).is_err()
        };
        assert!(refused("esker,mdbx") && refused("esker,dashmap") && !refused("esker"));
        assert_eq!(refused("esker,rocksdb"), !cfg!(feature = "peers-disk"));
    }

    #[test]
    fn each_engine_is_first_in_one_of_so_many_runs() {
        let line = "esker-bench commit --engines esker,rocksdb,lmdb --commit-threads 1,8";
        let crate::Experiment::Commit(arguments) = crate::parsed(line) else { unreachable!() };
        let mut all = commits(&arguments);
        for run in 0..3 {
            let order: Vec<_> = turns::of_run_in_groups(&mut all, run, Commits::is_rival).map(|commits| commits.engine).collect();
            let first = [Name::Esker, Name::Rocksdb, Name::Lmdb][run];
            assert!(order.len() == 9 && order.iter().step_by(3).all(|engine| *engine == first), "{order:?}");
        }
    }

    #[test]
    fn rows_of_durable_calls_say_where_they_go() {
        let crate::Experiment::Commit(arguments) = crate::parsed("esker-bench commit --commit-threads 1,8") else { unreachable!() };
        let rows = commit_rows(&arguments, &commits(&arguments), &[1.0]);
        assert!(rows.iter().map(|row| row.distribution).eq(["in order", "in turn", "in turn", "uniform"]));
    }

    /// Keys are drawn before the clock starts: who has 50 ms and nothing to do makes many puts.
    #[test]
    fn the_clock_does_not_run_while_keys_are_drawn() {
        let sequence = Sequence::draw(Distribution::Uniform, 1000, 0);
        something(|| put_anywhere(&Nothing, &sequence, Instant::now(), 0.05).0);
    }
}
