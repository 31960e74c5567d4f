//! The in-process hybrid cache: one data set in memory of a fraction of it, beside maps that hold all of it and caches that do not.
//!
//! Adds of 40-byte records (8 of key, 32 of value), then reads of keys chosen in several ways, by some threads that share
//! the work. Engines with the same memory and number of threads take turns (`turns.rs`), each time in a process of its own: what
//! another one left in this one's heap would be counted. Resident bytes are the kernel's count, less what the process had before. Reads
//! are done in passes over sequences of the same choice; the last one counts, so that what reading
//! itself brings into memory shows. Few calls are timed one by one. For the Zipf choice the share of reads that had to wait for the
//! device is printed beside that of the best static choice: as many of the most popular records as the log has room for in memory. What
//! each of the others does with little memory: `engines.rs`; what Esker does with the bytes that each of them took: `equal.rs`.

mod engines;
mod equal;

use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::keys::{self, Distribution};
use crate::report::{self, Latency, Row, Spread};
use crate::{Outputs, Place, chart, memory, number, progress, run, turns};
use engines::{Cache, Name};

const VALUE_BYTES: usize = 32;
const PAIR_BYTES: u64 = 8 + VALUE_BYTES as u64;
/// A record of Esker's log: three words of header, key, value; and with what the index has for it.
const RECORD_BYTES: u64 = 24 + PAIR_BYTES;
const STORED_BYTES: u64 = RECORD_BYTES + 14;

type Value = [u8; VALUE_BYTES];

/// The options of `hybrid`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Records added
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(10..number::KEYS))]
    adds: u64,
    /// Reads in a pass, by all threads together
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    reads: u64,
    /// Passes of reads, of which the last is measured
    #[arg(long, default_value_t = 4, value_parser = number::count)]
    passes: usize,
    /// Memory in hundredths of what the data take; 0: a store without a device
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,90,100,0", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    percent: Vec<u64>,
    /// Threads
    #[arg(long, value_delimiter = ',', default_value = "1,6", value_parser = number::threads)]
    threads: Vec<usize>,
    /// Which keys are read
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipf,oldest-tenth")]
    choices: Vec<Choice>,
    /// The stores, maps and caches; all that this build has if not given
    #[arg(long, value_delimiter = ',')]
    engines: Option<Vec<Name>>,
    /// Esker once more, leaving what is cold on the device
    #[arg(long)]
    without_promotion: bool,
    /// Esker once more, with half of the memory for a cache of what was read instead
    #[arg(long)]
    with_read_cache: bool,
    /// Number of runs
    #[arg(long, default_value_t = 1, value_parser = number::count)]
    runs: usize,
    /// Measure this setting only, once, and print figures for the process that asked
    #[arg(long, hide = true)]
    part: Option<usize>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// Which keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Choice {
    /// All alike.
    Uniform,
    /// Few most of the time, exponent 0.99.
    Zipf,
    /// A thousand of the tenth that was added first.
    OldestTenth,
    /// A thousand of the tenth that was added last.
    NewestTenth,
}

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::OldestTenth => "oldest tenth",
            Self::NewestTenth => "newest tenth",
        }
    }

    /// The keys that one thread reads.
    fn draw(self, adds: u64, count: usize, thread: u64) -> Vec<u64> {
        let tenth = adds / 10;
        let distribution = if self == Self::Zipf { Distribution::Zipf } else { Distribution::Uniform };
        let drawn = keys::draw(distribution, adds, thread, count);
        let thousand = |drawn: u64, from: u64| keys::key(from + drawn % 1000 * tenth / 1000);
        match self {
            Self::Uniform | Self::Zipf => drawn,
            Self::OldestTenth => drawn.into_iter().map(|key| thousand(key, 0)).collect(),
            Self::NewestTenth => drawn.into_iter().map(|key| thousand(key, adds - tenth)).collect(),
        }
    }
}

/// The keys that are read, drawn before memory is counted: they are no engine's bytes.
struct Draws {
    /// Reads of a thread in a pass.
    count: usize,
    keys: Vec<(Choice, Vec<Vec<u64>>)>,
}

impl Draws {
    fn of(arguments: &Arguments, threads: usize) -> Self {
        let count = (arguments.reads as usize / threads).clamp(1, keys::SEQUENCE_LENGTH / arguments.passes);
        let of_thread = |choice: Choice, thread| choice.draw(arguments.adds, count * arguments.passes, thread);
        let of_choice = |choice: Choice| (choice, (0..threads as u64).map(|thread| of_thread(choice, thread)).collect());
        Self { count, keys: arguments.choices.iter().copied().map(of_choice).collect() }
    }
}

/// One engine in one setting.
struct Setting {
    engine: Name,
    percent: u64,
    threads: usize,
    cold: Cold,
}

/// What becomes of cold records of Esker's that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cold {
    Promoted,
    Left,
    /// A second store, in memory, has the values that were read lately.
    Cached,
}

impl Setting {
    fn name(&self) -> String {
        let how = match self.cold {
            Cold::Promoted => "",
            Cold::Left => " without promotion",
            Cold::Cached => " with a read cache",
        };
        format!("{}{how}", self.engine.text())
    }

    fn text(&self) -> String {
        format!("{}, {}, {} threads", self.name(), percent_text(self.percent), self.threads)
    }

    /// All but the engine, and what it does with cold records, is the same.
    fn is_rival(&self, other: &Self) -> bool {
        (self.percent, self.threads) == (other.percent, other.threads)
    }

    /// One call of so many is timed, a power of two: a look at the clock is dear where calls are cheap.
    fn timed_of(&self) -> usize {
        if self.percent == 0 { 256 } else { 64 }
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(part) = arguments.part {
        let setting = settings(arguments).into_iter().nth(part).context("no such setting")?;
        println!("{}", serde_json::to_string(&measure(arguments, &setting)?)?);
        return Ok(());
    }
    let numbered = settings(arguments).into_iter().enumerate();
    let mut measured: Vec<(usize, Setting, Vec<Vec<Figures>>)> = numbered.map(|(part, setting)| (part, setting, Vec::new())).collect();
    let bar = progress::bar((measured.len() * arguments.runs) as u64);
    for run in 0..arguments.runs {
        for (part, setting, runs) in turns::of_run_in_groups(&mut measured, run, |one, other| one.1.is_rival(&other.1)) {
            bar.set_message(setting.text());
            runs.push(measured_apart(arguments, setting, *part).with_context(|| setting.text())?);
            bar.inc(1);
        }
    }
    let mut rows: Vec<_> = measured.into_iter().flat_map(|(_, setting, runs)| joined(arguments, &setting, runs)).collect();
    bar.finish_and_clear();
    report::compare(&mut rows);
    compare_with_maps(&mut rows);
    equal::compare(&mut rows);
    finish(arguments, &rows)
}

fn finish(arguments: &Arguments, rows: &[Row]) -> Result<()> {
    let head = [
        "engine",
        "operation",
        "keys",
        "memory",
        "told MiB",
        "threads",
        "median",
        "min",
        "max",
        "p99",
        "to best",
        "to best map",
        "resident MiB",
        "to map's",
        "lost/get",
        "device reads/get",
        "static top-k",
        "promoted/get",
    ];
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    report::print_ratios(rows);
    equal::print(rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), rows)?;
    let title = format!("{} records of 40 bytes, by the memory given", arguments.adds);
    report::write_svg(arguments.outputs.svg.as_deref(), || drawing(&title, rows))
}

/// A panel for each operation and number of threads, and one for what was resident after the adds.
fn drawing(title: &str, rows: &[Row]) -> String {
    let panel_of = |row: &Row| (row.reads_percent, row.distribution, row.threads);
    let mut panels = Vec::new();
    for row in rows {
        let name = panel_of(row);
        if !panels.iter().any(|(known, _)| *known == name) {
            let operation =
                if row.reads_percent == 0 { "adds a second".to_owned() } else { format!("gets a second, {}", row.distribution) };
            let threads = if row.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", row.threads) };
            let of = rows.iter().filter(|other| panel_of(other) == name);
            let points = of.map(|row| (row.engine.clone(), memory_text(row), row.ops_per_second));
            panels.push((name, chart::Panel::of_rates(&format!("{operation}, {threads}"), points)));
        }
    }
    let threads = rows.iter().map(|row| row.threads).max();
    let adds = rows.iter().filter(|row| row.reads_percent == 0 && Some(row.threads) == threads);
    let resident = adds.map(|row| (row.engine.clone(), memory_text(row), Spread::of(&[(row.resident_bytes.unwrap_or(0) >> 20) as f64])));
    let resident = chart::Panel::new("MiB resident after the adds", "MiB", resident);
    chart::sheet(title, &panels.into_iter().map(|(_, panel)| panel).chain([resident]).collect::<Vec<_>>())
}

/// What was asked for; what was given may be more.
fn memory_text(row: &Row) -> String {
    percent_text(row.memory_percent.unwrap_or(0))
}

fn percent_text(percent: u64) -> String {
    if percent == 0 { "memory".to_owned() } else { format!("{percent} %") }
}

/// Rates against the fastest map's, and bytes against the smallest one's: maps hold all in memory, whatever the fraction.
fn compare_with_maps(rows: &mut [Row]) {
    let maps: Vec<_> = rows.iter().filter(|row| row.engine == "dashmap" || row.engine == "papaya").cloned().collect();
    for row in rows {
        let same = |map: &&Row| {
            map.engine != row.engine
                && (map.reads_percent, map.distribution, map.threads) == (row.reads_percent, row.distribution, row.threads)
        };
        let rate = maps.iter().filter(same).map(|map| map.ops_per_second.median).max_by(f64::total_cmp);
        let bytes = maps.iter().filter(same).filter_map(|map| map.resident_bytes).min().filter(|bytes| *bytes > 0);
        row.ratio_to_best_map = rate.map(|rate| row.ops_per_second.median / rate);
        row.resident_to_smallest_map = bytes.zip(row.resident_bytes).map(|(map, own)| own as f64 / map as f64);
    }
}

/// Every combination, those that are compared side by side.
fn settings(arguments: &Arguments) -> Vec<Setting> {
    let engines = arguments.engines.clone().unwrap_or_else(Name::all);
    let others = [(arguments.without_promotion, Cold::Left), (arguments.with_read_cache, Cold::Cached)];
    let is_asked = |percent: u64| arguments.percent.contains(&percent);
    let mut settings = Vec::new();
    for percent in arguments.percent.iter().copied().chain((!is_asked(0)).then_some(0)) {
        // A map is there to compare with, whatever the fractions.
        let takes_part = |engine: &&Name| engine.can(percent) && (is_asked(percent) || engine.is_map());
        for &threads in &arguments.threads {
            for &engine in engines.iter().filter(takes_part) {
                let others = others.iter().filter(|(is_asked, _)| *is_asked && engine == Name::Esker && percent > 0);
                let colds = [Cold::Promoted].into_iter().chain(others.map(|(_, cold)| *cold));
                settings.extend(colds.map(|cold| Setting { engine, percent, threads, cold }));
            }
        }
    }
    settings
}

/// What one run gave of the adds, or of the reads of a choice.
#[derive(Serialize, Deserialize)]
struct Figures {
    /// None: the adds.
    choice: Option<Choice>,
    rate: f64,
    resident: u64,
    lost_per_get: Option<f64>,
    device_reads_per_get: Option<f64>,
    promotions_per_get: Option<f64>,
    static_misses: Option<f64>,
    /// How long calls took, in nanoseconds, and how many.
    latency: Vec<(u64, u64)>,
}

impl Figures {
    fn of(choice: Option<Choice>, pass: &Pass, resident: u64) -> Self {
        let latency = pass.latency.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        let (lost_per_get, device_reads_per_get, promotions_per_get, static_misses) = (None, None, None, None);
        Self { choice, rate: pass.rate, resident, lost_per_get, device_reads_per_get, promotions_per_get, static_misses, latency }
    }
}

/// Measures in a process of its own.
fn measured_apart(arguments: &Arguments, setting: &Setting, part: usize) -> Result<Vec<Figures>> {
    // Tests have no program to run.
    if cfg!(test) {
        return measure(arguments, setting);
    }
    let (mut words, part) = (std::env::args_os().skip(1), part.to_string());
    // This very program, though its file may be another one by now.
    let mut process = Command::new("/proc/self/exe");
    process.args(words.next()).args(["--part", &part]).args(words);
    let done = process.stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "{}", done.status);
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// The figures of one run: the adds, then the reads of each choice.
fn measure(arguments: &Arguments, setting: &Setting) -> Result<Vec<Figures>> {
    let draws = Draws::of(arguments, setting.threads);
    let base = memory::settled_bytes();
    let cache = setting.engine.open(setting, arguments.adds, &arguments.place)?;
    let added = add(&*cache, arguments.adds, setting)?;
    let resident = || memory::resident_bytes().saturating_sub(base);
    let mut all = vec![Figures::of(None, &added, resident())];
    for (choice, drawn) in &draws.keys {
        let (choice, count) = (*choice, draws.count);
        let mut last = None;
        for pass in 0..arguments.passes {
            let drawn: Vec<_> = drawn.iter().map(|drawn| &drawn[pass * count..(pass + 1) * count]).collect();
            let before = cache.counts();
            let found = find(&*cache, &drawn, setting)?;
            let mut figures = Figures::of(Some(choice), &found, resident());
            figures.lost_per_get = cache.is_lossy().then_some(found.lost);
            if let (Some(before), Some(after)) = (before, cache.counts()) {
                let per_get = |at: usize| (after[at] - before[at]) as f64 / (count * setting.threads) as f64;
                (figures.device_reads_per_get, figures.promotions_per_get) = (Some(per_get(0)), Some(per_get(1)));
                figures.static_misses = (choice == Choice::Zipf).then(|| static_misses(arguments.adds, after[2]));
            }
            last = Some(figures);
        }
        all.extend(last);
    }
    Ok(all)
}

fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE_BYTES];
    value.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&key.to_le_bytes()));
    value
}

/// Adds all records in the order of their indices, each thread a part.
fn add(cache: &dyn Cache, adds: u64, setting: &Setting) -> Result<Pass> {
    let shares: Vec<_> = (0..setting.threads as u64).map(|thread| (thread..adds).step_by(setting.threads).map(keys::key)).collect();
    Pass::run(shares, adds, setting.timed_of(), |key| {
        cache.add(key, value_of(key));
        Ok(false)
    })
}

/// Reads the keys of each thread.
fn find(cache: &dyn Cache, drawn: &[&[u64]], setting: &Setting) -> Result<Pass> {
    let (is_lossy, count) = (cache.is_lossy(), drawn.iter().map(|drawn| drawn.len() as u64).sum());
    let shares = drawn.iter().map(|keys| keys.iter().copied()).collect();
    Pass::run(shares, count, setting.timed_of(), |key| match cache.find(key) {
        Some(value) => {
            ensure!(value == value_of(key), "a read gave what was never added");
            Ok(false)
        }
        None if is_lossy => {
            cache.add(key, value_of(key));
            Ok(true)
        }
        None => anyhow::bail!("a read gave nothing for what was added"),
    })
}

/// What all threads did together.
struct Pass {
    /// Calls a second.
    rate: f64,
    /// The part of the calls that found nothing.
    lost: f64,
    /// Of one call in so many.
    latency: Histogram<u64>,
}

impl Pass {
    /// One thread for each share, in which each key gets a call; that one says whether it found nothing.
    fn run<S>(shares: Vec<S>, calls: u64, timed_of: usize, call: impl Fn(u64) -> Result<bool> + Sync) -> Result<Self>
    where
        S: Iterator<Item = u64> + Send,
    {
        let call = &call;
        let one = |share: S| -> Result<(u64, Histogram<u64>)> {
            let (mut lost, mut latency) = (0, run::histogram());
            for (number, key) in share.enumerate() {
                let begun = (number & (timed_of - 1) == 0).then(Instant::now);
                lost += u64::from(call(key)?);
                if let Some(begun) = begun {
                    latency.saturating_record(begun.elapsed().as_nanos() as u64);
                }
            }
            Ok((lost, latency))
        };
        let begun = Instant::now();
        let lanes = thread::scope(|scope| {
            let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| one(share))).collect();
            threads.into_iter().map(|thread| thread.join().expect("calls do not panic")).collect::<Result<Vec<_>>>()
        })?;
        let elapsed = begun.elapsed().as_secs_f64();
        let (mut lost, mut all) = (0, run::histogram());
        for (count, latency) in &lanes {
            lost += count;
            all += latency;
        }
        Ok(Self { rate: calls as f64 / elapsed, lost: lost as f64 / calls as f64, latency: all })
    }
}

/// The share of Zipf reads that the `held` most popular of `keys` records do not answer.
fn static_misses(keys: u64, held: u64) -> f64 {
    let weight = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-0.99)).sum::<f64>();
    1.0 - weight(held.min(keys)) / weight(keys)
}

/// The rows of several runs, one each for the adds and each choice: the rates and the timed calls of all, and what else the last one gave.
fn joined(arguments: &Arguments, setting: &Setting, runs: Vec<Vec<Figures>>) -> Vec<Row> {
    let row = |(at, last): (usize, &Figures)| {
        let of_all = || runs.iter().map(|run| &run[at]);
        let mut latency = run::histogram();
        of_all().flat_map(|figures| &figures.latency).for_each(|(took, count)| latency.saturating_record_n(*took, *count));
        Row {
            experiment: "hybrid",
            engine: setting.name(),
            operation: if last.choice.is_some() { "get" } else { "add" }.to_owned(),
            reads_percent: if last.choice.is_some() { 100 } else { 0 },
            distribution: last.choice.map_or("scattered", Choice::name),
            threads: setting.threads,
            keys: arguments.adds,
            value_bytes: VALUE_BYTES as u64,
            batch: 1,
            runs: arguments.runs,
            ops_per_second: Spread::of(&of_all().map(|figures| figures.rate).collect::<Vec<_>>()),
            latency_ns: Some(Latency::of(&latency)),
            bytes_per_entry: Some(last.resident as f64 / arguments.adds as f64),
            memory_bytes: (setting.percent > 0).then(|| setting.told(arguments.adds)),
            memory_percent: Some(setting.percent),
            memory_fraction: Some(setting.fraction(arguments.adds)),
            resident_bytes: Some(last.resident),
            lost_per_get: last.lost_per_get,
            device_reads_per_get: last.device_reads_per_get,
            promotions_per_get: last.promotions_per_get,
            static_misses: last.static_misses,
            ..Row::default()
        }
    };
    runs.last().map_or(Vec::new(), |last| last.iter().enumerate().map(row).collect())
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.engine.clone(),
        row.operation.clone(),
        row.distribution.to_owned(),
        memory_text(row),
        report::mebibytes(row.memory_bytes),
        row.threads.to_string(),
        report::rate(row.ops_per_second.median),
        report::rate(row.ops_per_second.min),
        report::rate(row.ops_per_second.max),
        row.latency_ns.map_or_else(|| "-".to_owned(), |latency| report::nanoseconds(latency.p99)),
        report::optional(row.ratio_to_best_peer),
        report::optional(row.ratio_to_best_map),
        report::mebibytes(row.resident_bytes),
        report::optional(row.resident_to_smallest_map),
        row.lost_per_get.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.3}")),
        report::optional(row.device_reads_per_get),
        report::optional(row.static_misses),
        row.promotions_per_get.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.4}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size;

    #[test]
    fn a_static_choice_misses_what_it_does_not_hold() {
        assert!(static_misses(1000, 1000).abs() < 1e-9 && (static_misses(1000, 0) - 1.0).abs() < 1e-9);
        assert!(static_misses(1_000_000, 250_000) < 0.12);
    }

    fn figures(rate: f64, nanoseconds: u64) -> Figures {
        let mut latency = run::histogram();
        latency.record(nanoseconds).unwrap();
        Figures::of(None, &Pass { rate, lost: 0.0, latency }, 0)
    }

    /// Esker's budget has room for headers and index, a cache's for keys and values; and no store takes less than the least.
    #[test]
    fn rows_say_what_an_engine_was_told() {
        let crate::Experiment::Hybrid(arguments) = crate::parsed("esker-bench hybrid --adds 1000000") else { unreachable!() };
        let told = |engine, percent, cold| {
            let rows = joined(&arguments, &Setting { engine, percent, threads: 1, cold }, vec![vec![figures(1.0, 100)]]);
            (rows[0].memory_bytes, rows[0].memory_fraction.unwrap())
        };
        let (all, least) = (78e6, size::LEAST);
        assert_eq!(told(Name::Esker, 50, Cold::Promoted), (Some(39_000_000), 0.5));
        assert_eq!(told(Name::Esker, 10, Cold::Promoted), (Some(least), least as f64 / all));
        assert_eq!(told(Name::Esker, 25, Cold::Cached), (Some(2 * least), 2.0 * least as f64 / all));
        assert_eq!(told(Name::Esker, 0, Cold::Promoted), (None, 1.0));
        #[cfg(feature = "peers")]
        assert_eq!([Name::Foyer, Name::Moka].map(|engine| told(engine, 10, Cold::Promoted)), [(Some(4_000_000), 0.1); 2]);
    }

    #[test]
    fn runs_are_joined_with_all_their_calls() {
        let crate::Experiment::Hybrid(arguments) = crate::parsed("esker-bench hybrid") else { unreachable!() };
        let setting = &settings(&arguments)[0];
        let sent = |figures: Figures| serde_json::from_str(&serde_json::to_string(&vec![figures]).unwrap()).unwrap();
        let rows = joined(&arguments, setting, [figures(1.0, 900), figures(3.0, 100), figures(2.0, 500)].map(sent).into());
        let (rate, latency) = (rows[0].ops_per_second, rows[0].latency_ns.unwrap());
        assert_eq!(([rate.median, rate.min, rate.max], [latency.p50, latency.max]), ([2.0, 1.0, 3.0], [500, 900]));
    }

    /// Maps come once, where they hold everything, and nobody else does there.
    #[test]
    fn engines_with_the_same_memory_stand_side_by_side() {
        let line = "esker-bench hybrid --percent 10,25 --threads 1,6 --without-promotion";
        let crate::Experiment::Hybrid(arguments) = crate::parsed(line) else { unreachable!() };
        let all = settings(&arguments);
        let groups: Vec<_> = all.chunk_by(Setting::is_rival).collect();
        let names = |group: &[Setting]| group.iter().map(Setting::name).collect::<Vec<_>>();
        let (fractions, maps) = groups.split_at(4);
        assert!(names(fractions[0]).starts_with(&["esker".to_owned(), "esker without promotion".to_owned()]));
        assert!(fractions.iter().all(|group| names(group) == names(fractions[0])));
        assert_eq!(maps.len(), if cfg!(feature = "peers") { 2 } else { 0 });
        assert!(maps.iter().flat_map(|group| group.iter()).all(|setting| setting.engine.is_map() && setting.percent == 0));
    }

    #[test]
    fn old_and_new_are_a_thousand_keys_each() {
        for (choice, from) in [(Choice::OldestTenth, 0), (Choice::NewestTenth, 90_000)] {
            let mut drawn = choice.draw(100_000, 50_000, 0);
            drawn.sort_unstable();
            drawn.dedup();
            let tenth: std::collections::HashSet<u64> = (from..from + 10_000).map(keys::key).collect();
            assert!(drawn.len() == 1000 && drawn.iter().all(|key| tenth.contains(key)), "{} keys", drawn.len());
        }
    }
}
