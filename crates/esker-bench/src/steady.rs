//! Updates at a steady rate, for as long as one likes, over more data than memory: does each second keep up, and do calls take as long at
//! the end as at the beginning?
//!
//! The shape of a large index that is kept up to date. A key has a list of 16-byte pieces; how many it may have is drawn once for each key,
//! from one to 1,024, where a list of four times the length is an eighth as likely (32 in the mean). An update appends a piece. A list that
//! is full is begun anew; and list after list, in turn, is pruned: deleted, as so many in a hundred each minute. Lines are drawn meanwhile,
//! and what dies is compacted.
//!
//! Open loop: a batch is due at its time whether the one before has ended or not, and each of its updates counts from then to the batch's
//! end. A key comes once in a batch. Afterwards each list is read back: so many pieces as were appended to it, in order, all of them its
//! own.

use std::ops::{AddAssign, Range};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use esker::{Options, Store};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::answers::Answers;
use crate::append::{RECORD, check, record};
use crate::keys::{self, Distribution, Popular};
use crate::report::{self, Latency, Spread};
use crate::{Outputs, Place, chart, progress, run, size};

/// The pieces of the longest list: 16 KiB.
const PIECES_MAX: f64 = 1024.0;
/// Parts of the run whose percentiles are kept apart.
const PARTS: usize = 10;
/// Keys of a call that loads or reads back.
const PART_KEYS: u64 = 4096;

/// The options of `steady`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of keys
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    keys: u64,
    /// Memory of the store [default: a quarter of the lists' bytes]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Updates a second of all threads
    #[arg(long, default_value_t = 200_000.0)]
    rate: f64,
    /// Updates in a call
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch: u64,
    /// Which keys are updated
    #[arg(long, value_enum, default_value = "zipf")]
    distribution: Distribution,
    /// Lists in a hundred that are pruned each minute
    #[arg(long, default_value_t = 1.0)]
    prune_percent: f64,
    /// Seconds from line to line; 0: no lines but those that give back space
    #[arg(long, default_value_t = 10.0)]
    line_seconds: f64,
    /// Threads that update
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Measured seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Do not read all lists back at the end: many of them take minutes
    #[arg(long)]
    no_audit: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

impl Arguments {
    /// From one batch of a thread to its next, in seconds.
    fn pause(&self) -> f64 {
        (self.batch * self.threads) as f64 / self.rate
    }

    /// Of each thread.
    fn batches(&self) -> u64 {
        (self.seconds / self.pause()).ceil() as u64
    }
}

/// How it went.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    common: report::Row,
    list_bytes: u64,
    rate: f64,
    slowest_second: f64,
    /// The standard deviation of a second's updates to their mean.
    variation: f64,
    /// Of the first tenth of the time, and of the last.
    p99_first_ns: u64,
    p99_last_ns: u64,
    /// Of each tenth, in turn.
    p99_by_tenth_ns: [u64; PARTS],
    device_reads_per_update: f64,
    pruned: u64,
    file_bytes: u64,
    amplification: f64,
    second_ops: Vec<f64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rate > 0.0 && arguments.rate <= 1e9, "the rate must be above 0 and at most 10^9");
    ensure!(arguments.seconds > 0.0 && Duration::try_from_secs_f64(arguments.seconds).is_ok(), "there must be some seconds");
    ensure!(arguments.threads <= arguments.keys, "each thread must have a key of its own");
    ensure!((0.0..=6000.0).contains(&arguments.prune_percent), "between no list and all lists each second are pruned");
    let row = measure(arguments)?;
    print(&row);
    let svg = || chart::lines("Updates per second", "seconds", &[("esker".to_owned(), row.second_ops.clone())]);
    report::write_svg(arguments.outputs.svg.as_deref(), svg)?;
    report::write_json(arguments.outputs.rows.json.as_deref(), &[row])
}

/// What was seen of the updates.
struct Seen {
    seconds: Vec<u64>,
    parts: [Histogram<u64>; PARTS],
    pruned: u64,
}

impl Seen {
    fn new() -> Self {
        Self { seconds: Vec::new(), parts: std::array::from_fn(|_| run::histogram()), pruned: 0 }
    }

    fn note(&mut self, since: Duration, of: f64, updates: u64, took: Duration) {
        let second = since.as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += updates;
        let part = (since.as_secs_f64() / of * PARTS as f64) as usize;
        self.parts[part.min(PARTS - 1)].saturating_record_n(took.as_nanos() as u64, updates);
    }
}

impl AddAssign<&Self> for Seen {
    fn add_assign(&mut self, other: &Self) {
        self.seconds.resize(self.seconds.len().max(other.seconds.len()), 0);
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(own, updates)| *own += updates);
        self.parts.iter_mut().zip(&other.parts).for_each(|(own, part)| *own += part);
        self.pruned += other.pruned;
    }
}

/// The keys of one thread: each so many-th number.
struct Lane<'a> {
    arguments: &'a Arguments,
    store: &'a Store<u64, [u8]>,
    own: u64,
    /// The pieces of each list, and how many there may be.
    lists: Vec<(u16, u16)>,
    random: SmallRng,
    popular: Popular,
    next_piece: u64,
    /// Lists pruned so far; in turn.
    pruned: u64,
    /// The batch: places in `lists`, and whether they were drawn for it.
    places: Vec<usize>,
    is_drawn: Vec<bool>,
}

impl<'a> Lane<'a> {
    fn new(arguments: &'a Arguments, store: &'a Store<u64, [u8]>, own: u64, lists: Vec<(u16, u16)>) -> Self {
        let random = SmallRng::seed_from_u64(0x73_7465_6164 + own);
        let popular = Popular::new(lists.len() as u64);
        let (places, is_drawn) = (Vec::new(), vec![false; lists.len()]);
        Self { arguments, store, own, lists, random, popular, next_piece: PIECES_MAX as u64, pruned: 0, places, is_drawn }
    }

    fn key(&self, place: usize) -> u64 {
        keys::key(place as u64 * self.arguments.threads + self.own)
    }

    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let count = self.lists.len();
        (0..count).step_by(PART_KEYS as usize).map(move |from| from..(from + PART_KEYS as usize).min(count))
    }

    /// Puts all lists as they are when the clock starts.
    fn load(&self, bar: &ProgressBar) -> Result<()> {
        for part in self.parts() {
            bar.inc(part.len() as u64);
            let list = |place| {
                let key = self.key(place);
                (key, (0..u64::from(self.lists[place].0)).flat_map(|number| record(key, number)).collect::<Vec<u8>>())
            };
            self.store.put_many(&part.map(list).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn draw(&mut self) -> usize {
        match self.arguments.distribution {
            Distribution::Uniform => self.random.random_range(0..self.lists.len()),
            Distribution::Zipf => self.popular.draw(&mut self.random) as usize,
        }
    }

    /// The next batch: where the lists are to be begun anew, and the pieces to append.
    #[expect(clippy::type_complexity, reason = "the pairs of two batches")]
    fn next_batch(&mut self, updates: u64) -> (Vec<(u64, [u8; RECORD])>, Vec<(u64, [u8; RECORD])>) {
        while (self.places.len() as u64) < updates.min(self.lists.len() as u64) {
            let place = self.draw();
            if !std::mem::replace(&mut self.is_drawn[place], true) {
                self.places.push(place);
            }
        }
        let (mut anew, mut further) = (Vec::new(), Vec::new());
        for place in std::mem::take(&mut self.places) {
            self.is_drawn[place] = false;
            let piece = (self.key(place), record(self.key(place), self.next_piece));
            self.next_piece += 1;
            let (pieces, most) = &mut self.lists[place];
            if pieces < most {
                *pieces += 1;
                further.push(piece);
            } else {
                *pieces = 1;
                anew.push(piece);
            }
        }
        (anew, further)
    }

    /// Deletes the lists whose turn it is by now.
    fn prune(&mut self, since: Duration) -> Result<()> {
        let count = self.lists.len() as u64;
        let due = (since.as_secs_f64() / 60.0 * self.arguments.prune_percent / 100.0 * count as f64) as u64;
        let places = (self.pruned..due.max(self.pruned)).map(|number| (number % count) as usize);
        let keys: Vec<u64> = places.clone().map(|place| self.key(place)).collect();
        places.for_each(|place| self.lists[place].0 = 0);
        self.pruned += keys.len() as u64;
        self.store.delete_many(&keys)?;
        Ok(())
    }

    fn run(&mut self, begun: Instant, bar: &ProgressBar) -> Result<Seen> {
        let Arguments { batch, seconds, .. } = *self.arguments;
        let pause = self.arguments.pause();
        let mut seen = Seen::new();
        for number in 0..self.arguments.batches() {
            let (anew, further) = self.next_batch(batch);
            let due = begun + Duration::from_secs_f64(number as f64 * pause);
            run::wait_until(due);
            self.store.put_many(&anew)?;
            self.store.append_many(&further)?;
            let updates = (anew.len() + further.len()) as u64;
            seen.note(begun.elapsed(), seconds, updates, due.elapsed());
            bar.inc(updates);
            // It takes the time of the next batch, if it takes long.
            self.prune(due - begun)?;
        }
        seen.pruned = self.pruned;
        Ok(seen)
    }

    /// Reads all lists back.
    fn audit(&self) -> Result<()> {
        let mut wrong = 0u64;
        for part in self.parts() {
            let keys: Vec<u64> = part.clone().map(|place| self.key(place)).collect();
            let mut answers = Answers::to(keys.len());
            self.store.get_many(&keys, |at, list| {
                answers.note(at);
                let pieces = list.map_or(Some(0), |list| check(keys[at], list));
                wrong += u64::from(pieces != Some(u64::from(self.lists[part.start + at].0)));
            })?;
            wrong += answers.faults();
        }
        ensure!(wrong == 0, "{wrong} lists are not what was appended to them");
        Ok(())
    }
}

/// The lists of one thread.
fn draw_lists(arguments: &Arguments, own: u64) -> Vec<(u16, u16)> {
    let mut random = SmallRng::seed_from_u64(0x6c_6973_7473 + own);
    let count = (arguments.keys - own).div_ceil(arguments.threads);
    (0..count).map(|_| draw_list(&mut random)).collect()
}

/// How many pieces a list has at first, and at most.
fn draw_list(random: &mut SmallRng) -> (u16, u16) {
    let below: f64 = random.random();
    // The inverse of the distribution whose density falls with the length to the power of 3/2.
    let most = (1.0 - below * (1.0 - PIECES_MAX.powf(-0.5))).powi(-2).min(PIECES_MAX) as u16;
    (random.random_range(1..=most), most)
}

fn measure(arguments: &Arguments) -> Result<Row> {
    let directory = arguments.place.temporary()?;
    let lines = run::lines(arguments.line_seconds)?;
    let lists: Vec<_> = (0..arguments.threads).map(|own| draw_lists(arguments, own)).collect();
    let list_bytes = lists.iter().flatten().map(|(pieces, _)| u64::from(*pieces) * RECORD as u64).sum::<u64>();
    let memory_bytes = arguments.memory.unwrap_or(list_bytes / 4).max(size::LEAST);
    let store: Store<u64, [u8]> = Options::new().memory(memory_bytes).durability(lines).open(directory.path().join("store"))?;
    let mut lanes: Vec<_> = (0..).zip(lists).map(|(own, lists)| Lane::new(arguments, &store, own, lists)).collect();
    let bar = progress::bar(arguments.keys);
    bar.set_message("load");
    lanes.iter().try_for_each(|lane| lane.load(&bar))?;
    bar.finish_and_clear();
    let bar = progress::bar((arguments.rate * arguments.seconds) as u64);
    bar.set_message("updates");
    let reads_before = store.stats().operations.device_reads;
    let begun = Instant::now();
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(|| lane.run(begun, &bar))).collect();
        let mut seen = Seen::new();
        for thread in threads {
            seen += &thread.join().expect("a worker does not panic")?;
        }
        anyhow::Ok(seen)
    })?;
    let took = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let stats = store.stats();
    if !arguments.no_audit {
        lanes.iter().try_for_each(Lane::audit)?;
    }
    store.close()?;
    let mut all = run::histogram();
    seen.parts.iter().for_each(|part| all += part);
    // The last batch has its time, too; and the last second may not be a whole one.
    let took = took.max(arguments.batches() as f64 * arguments.pause());
    let whole = &seen.seconds[..((took + 1e-6) as usize).clamp(1, seen.seconds.len())];
    let second_ops: Vec<f64> = whole.iter().map(|updates| *updates as f64).collect();
    let p99_by_tenth_ns = seen.parts.each_ref().map(|part| part.value_at_quantile(0.99));
    let mean = second_ops.iter().sum::<f64>() / second_ops.len() as f64;
    let variance = second_ops.iter().map(|updates| (updates - mean).powi(2)).sum::<f64>() / second_ops.len() as f64;
    let common = report::Row {
        experiment: "steady",
        engine: "esker".to_owned(),
        operation: "update".to_owned(),
        distribution: arguments.distribution.name(),
        threads: arguments.threads as usize,
        keys: arguments.keys,
        value_bytes: RECORD as u64,
        batch: arguments.batch as usize,
        runs: 1,
        ops_per_second: Spread::of(&[all.len() as f64 / took]),
        latency_ns: Some(Latency::of(&all)),
        memory_bytes: Some(memory_bytes),
        ..report::Row::default()
    };
    Ok(Row {
        common,
        list_bytes,
        rate: arguments.rate,
        slowest_second: second_ops.iter().copied().fold(f64::INFINITY, f64::min),
        variation: variance.sqrt() / mean,
        p99_first_ns: p99_by_tenth_ns[0],
        p99_last_ns: p99_by_tenth_ns[PARTS - 1],
        p99_by_tenth_ns,
        device_reads_per_update: (stats.operations.device_reads - reads_before) as f64 / all.len() as f64,
        pruned: seen.pruned,
        file_bytes: stats.space.file_bytes,
        amplification: stats.space.amplification,
        second_ops,
    })
}

fn print(row: &Row) {
    report::say!(
        "{} lists of {} MiB, memory {} MiB, {} asked for",
        row.common.keys,
        row.list_bytes >> 20,
        report::mebibytes(row.common.memory_bytes),
        report::rate(row.rate)
    );
    let head = [
        "rate",
        "slowest second",
        "variation",
        "p50",
        "p99",
        "p99.9",
        "max",
        "p99 first tenth",
        "last",
        "reads/update",
        "pruned",
        "files MiB",
    ];
    let rates = [row.common.ops_per_second.median, row.slowest_second].map(report::rate);
    let mut cells = [&rates[..], &[format!("{:.1} %", row.variation * 100.0)], &report::latencies(&row.common)].concat();
    cells.extend([row.p99_first_ns, row.p99_last_ns].map(report::nanoseconds));
    cells.extend([format!("{:.2}", row.device_reads_per_update), row.pruned.to_string(), (row.file_bytes >> 20).to_string()]);
    report::print_table(&head, &[cells]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            keys: 120_000,
            memory: None,
            rate: 50_000.0,
            batch: 64,
            distribution: Distribution::Zipf,
            prune_percent: 600.0,
            line_seconds: 0.2,
            threads: 2,
            seconds: 1.5,
            no_audit: false,
            place: Place::default(),
            outputs: Outputs::default(),
        }
    }

    /// Lists come to more than there is memory for, and each is what it should be (`measure` refuses anything else).
    #[test]
    fn lists_are_kept_up_to_date() {
        for distribution in [Distribution::Zipf, Distribution::Uniform] {
            let row = measure(&Arguments { distribution, ..arguments() }).unwrap();
            assert!((24 << 20..40 << 20).contains(&row.list_bytes) && row.common.memory_bytes == Some(size::LEAST), "{row:?}");
            let tenths = row.p99_by_tenth_ns;
            assert_eq!((tenths[0], tenths[PARTS - 1]), (row.p99_first_ns, row.p99_last_ns));
            assert!(row.device_reads_per_update > 0.0 && row.common.ops_per_second.median > 0.0 && row.pruned > 10_000, "{row:?}");
        }
    }

    /// The last batch has its time, too: two of them each half a second were told as twice the rate that was asked for.
    #[test]
    fn no_more_is_told_than_was_asked_for() {
        let few = Arguments { keys: 2_000, rate: 1000.0, batch: 500, threads: 1, seconds: 1.0, ..arguments() };
        let row = measure(&few).unwrap();
        assert!(row.common.ops_per_second.median <= 1000.1 && row.second_ops.len() <= 2, "{row:?}");
    }

    /// An hour at a tenth more than the device bears ends six minutes late.
    #[test]
    fn who_is_minutes_late_is_said_to_be_so() {
        let (mut seen, late) = (Seen::new(), Duration::from_secs(390));
        seen.note(Duration::from_secs(3990), 3600.0, 256, late);
        let told = Duration::from_nanos(seen.parts[PARTS - 1].value_at_quantile(0.99)).as_secs_f64();
        assert!((told / late.as_secs_f64() - 1.0).abs() < 0.01, "{told} s");
    }

    #[test]
    fn a_lost_piece_is_found() {
        let arguments = arguments();
        let store = Options::new().memory(size::LEAST).open_temporary().unwrap();
        let mut lane = Lane::new(&arguments, &store, 0, draw_lists(&arguments, 0));
        lane.load(&ProgressBar::hidden()).unwrap();
        lane.audit().unwrap();
        lane.lists[7].0 += 1;
        assert!(lane.audit().is_err());
    }
}
