//! Records that come and go at a constant number: what it costs to win back the room, the fuller the store is.
//!
//! A step puts new records, 64 in a call, and deletes as many, the oldest or any; or it gives records that stay another value as long as
//! the old one, which takes no room where it may change in place; or any 64 values grow by 16 bytes, one by one, until they are too long
//! and go, to begin anew with the next piece. As many as there are records are a *turnover*. The room is the memory
//! budget of a store in memory, and on a device what the space target allows: so the `live` part of it holds records, in memory with their
//! index, and the rest is what was deleted and not won back yet. A store in memory that has no room left says so: its row tells after how
//! many turnovers.
//!
//! The later turnovers' rate against the earlier ones' says whether anything piles up; the rate against the row with the smallest live
//! part, what a full store costs. Afterwards each record is read back, and as many that were deleted are asked for in vain.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use esker::{Error, Options, Store};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::keys::{Distribution, Sequence};
use crate::report::{self, Latency, Spread};
use crate::{Outputs, Place, chart, keys, progress, run, size};

/// Live data on a device, in memories.
const MEMORIES: f64 = 4.0;
/// A bucket of the index.
const BUCKET_BYTES: u64 = 64;
/// Records in a call.
const BATCH: usize = 64;
/// By so much a value grows.
const PIECE: usize = 16;

/// Where the records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Home {
    /// In memory, which is the room
    Memory,
    /// On a device, of which memory holds a quarter
    Device,
}

/// Which record is deleted, or gets another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Order {
    /// The one that was put first
    Oldest,
    /// Any
    Random,
    /// None: any gets another value
    Uniform,
    /// None: some get another value far more often than others (exponent 0.99)
    Zipf,
    /// One whose value has grown too long: any grow by 16 bytes
    Grown,
}

/// The options of `turnover`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where the records are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "memory")]
    homes: Vec<Home>,
    /// Which record goes, or gets another value
    #[arg(long, value_enum, value_delimiter = ',', default_value = "oldest,random")]
    orders: Vec<Order>,
    /// Parts of the room that live, in hundredths
    #[arg(long, value_delimiter = ',', default_value = "50,80,85,90", value_parser = clap::value_parser!(u64).range(1..=99))]
    live: Vec<u64>,
    /// How often all records are replaced
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    turnovers: u64,
    /// The size of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(8..=4096))]
    value_bytes: u64,
    /// Memory of the store
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = size::parse)]
    memory: u64,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    outputs: Outputs,
}

/// What a setting did.
#[derive(Debug, Serialize)]
struct Row {
    /// Its rate is that of whole turnovers, its calls are batches that are replaced.
    #[serde(flatten)]
    common: report::Row,
    home: &'static str,
    order: &'static str,
    live_percent: u64,
    /// Records replaced a second, turnover by turnover.
    turnover_per_second: Vec<f64>,
    /// The median rate of the later half of the turnovers to that of the earlier; the first, which finds a store with room to spare, is of
    /// neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    late_to_early: Option<f64>,
    /// The rate of all against that at the smallest live part.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_emptiest: Option<f64>,
    /// There was no room left, though not before so many turnovers.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_after: Option<f64>,
}

impl Home {
    fn name(self) -> &'static str {
        ["memory", "device"][self as usize]
    }
}

impl Order {
    /// How those are chosen that stay.
    fn distribution(self) -> Option<Distribution> {
        match self {
            Self::Oldest | Self::Random | Self::Grown => None,
            Self::Uniform => Some(Distribution::Uniform),
            Self::Zipf => Some(Distribution::Zipf),
        }
    }

    fn name(self) -> &'static str {
        ["oldest", "random", "none, uniform", "none, zipf", "grown"][self as usize]
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Oldest | Self::Random => "replace",
            Self::Uniform | Self::Zipf => "put",
            Self::Grown => "append",
        }
    }
}

impl Row {
    fn rate(&self) -> f64 {
        self.common.ops_per_second.median
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.live.is_sorted(), "the live parts must ascend");
    let grows = arguments.orders.contains(&Order::Grown);
    ensure!(!grows || arguments.value_bytes >= 2 * PIECE as u64, "values that grow need two pieces of {PIECE} bytes at least");
    let settings = arguments.homes.len() * arguments.orders.len() * arguments.live.len();
    let bar = progress::bar(settings as u64 * arguments.turnovers);
    let mut rows: Vec<Row> = Vec::new();
    for &home in &arguments.homes {
        for &order in &arguments.orders {
            let first = rows.len();
            for &live in &arguments.live {
                bar.set_message(format!("{}, {} goes, {live} % live", home.name(), order.name()));
                let mut row = measure(arguments, home, order, live, &bar)?;
                let emptiest = rows.get(first).unwrap_or(&row).rate();
                row.ratio_to_emptiest = Some(row.rate() / emptiest).filter(|ratio| ratio.is_normal());
                rows.push(row);
            }
        }
    }
    bar.finish_and_clear();
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(&rows))
}

fn measure(arguments: &Arguments, home: Home, order: Order, live: u64, bar: &ProgressBar) -> Result<Row> {
    let directory = arguments.place.temporary()?;
    let room = match home {
        Home::Memory => arguments.memory as f64 * live as f64 / 100.0,
        Home::Device => arguments.memory as f64 * MEMORIES,
    };
    let mut records = Records::new(open(arguments, home, live, directory.path())?, order, arguments.value_bytes);
    let (mut rates, mut latency) = (Vec::new(), run::histogram());
    let mut done = 0;
    let mut turn = || -> Result<(), Error> {
        records.fill(home, room)?;
        let chosen = order.distribution().map(|how| Sequence::draw(how, records.live.len() as u64, 0).keys);
        let mut chosen = chosen.as_ref().map(|keys| keys.iter().copied().cycle());
        for _ in 0..arguments.turnovers {
            let begun = Instant::now();
            for _ in 0..records.live.len() / BATCH {
                let batch_begun = Instant::now();
                match &mut chosen {
                    Some(keys) => records.put(keys.take(BATCH))?,
                    None if order == Order::Grown => records.grow()?,
                    None => records.replace(order)?,
                }
                latency.saturating_record(batch_begun.elapsed().as_nanos() as u64);
                done += BATCH;
            }
            rates.push((records.live.len() / BATCH * BATCH) as f64 / begun.elapsed().as_secs_f64());
            bar.inc(1);
        }
        Ok(())
    };
    let full_after = match turn() {
        Ok(()) => None,
        Err(Error::Full) => Some(done as f64 / records.live.len().max(1) as f64),
        Err(error) => return Err(error.into()),
    };
    records.check()?;
    bar.inc(arguments.turnovers - rates.len() as u64);
    let common = report::Row {
        experiment: "turnover",
        engine: "esker".to_owned(),
        operation: order.operation().to_owned(),
        distribution: order.distribution().map_or(order.name(), Distribution::name),
        threads: 1,
        keys: records.live.len() as u64,
        value_bytes: arguments.value_bytes,
        batch: BATCH,
        runs: 1,
        ops_per_second: Spread::of(rate(&rates).as_slice()),
        latency_ns: Some(Latency::of(&latency)),
        memory_bytes: Some(arguments.memory),
        records: Some(records.live.len() as u64),
        ..report::Row::default()
    };
    let row = Row {
        common,
        home: home.name(),
        order: order.name(),
        live_percent: live,
        late_to_early: late_to_early(&rates),
        turnover_per_second: rates,
        ratio_to_emptiest: None,
        full_after,
    };
    records.store.close()?;
    Ok(row)
}

fn open(arguments: &Arguments, home: Home, live: u64, directory: &Path) -> Result<Store<u64, [u8]>> {
    let options = Options::new().memory(arguments.memory);
    Ok(match home {
        Home::Memory => options.in_memory()?,
        Home::Device => options.space_amplification(100.0 / live as f64).open(directory.join("store"))?,
    })
}

/// The records of a store.
struct Records {
    store: Store<u64, [u8]>,
    /// What is put together.
    batch: Vec<(u64, Vec<u8>)>,
    /// A value's length, or where they grow the greatest.
    value_bytes: usize,
    /// How long each value is, where they grow; 0 for none.
    lengths: Option<Vec<usize>>,
    /// The numbers of those that live, and of the next one.
    live: Vec<u64>,
    next: u64,
    steps: u64,
}

impl Records {
    fn new(store: Store<u64, [u8]>, order: Order, value_bytes: u64) -> Self {
        let value_bytes = value_bytes as usize;
        let batch = vec![(0, vec![7; value_bytes]); BATCH];
        let lengths = (order == Order::Grown).then(Vec::new);
        Self { store, batch, value_bytes, lengths, live: Vec::new(), next: 0, steps: 0 }
    }

    /// Puts records until they, and in memory their index, take so many bytes.
    fn fill(&mut self, home: Home, bytes: f64) -> Result<(), Error> {
        let taken = |store: &Store<u64, [u8]>| {
            let stats = store.stats();
            let index = (stats.index.buckets + stats.index.overflow_buckets) * BUCKET_BYTES;
            (stats.space.live_bytes + if home == Home::Memory { index } else { 0 }) as f64
        };
        // In steps of a hundredth, for to ask costs some time.
        let step = (bytes / 100.0 / self.value_bytes as f64) as u64 / BATCH as u64 + 1;
        while taken(&self.store) < bytes {
            for _ in 0..step {
                let batch = self.put_new()?;
                self.live.extend(batch);
            }
        }
        Ok(())
    }

    /// A value tells its key.
    fn put(&mut self, keys: impl Iterator<Item = u64>) -> Result<(), Error> {
        for ((key, value), new) in self.batch.iter_mut().zip(keys) {
            *key = new;
            value[..8].copy_from_slice(&new.to_le_bytes());
        }
        self.store.put_many::<u64, Vec<u8>>(&self.batch)
    }

    fn put_new(&mut self) -> Result<Range<u64>, Error> {
        let new = self.next..self.next + BATCH as u64;
        match &mut self.lengths {
            None => self.put(new.clone().map(keys::key))?,
            // As long as any is when they have grown for a while, and with as much room to spare.
            Some(lengths) => {
                for number in new.clone() {
                    let pieces = number as usize % (self.value_bytes / PIECE);
                    lengths.push(pieces * PIECE);
                    (0..pieces).try_for_each(|_| append_piece(&self.store, keys::key(number)).map(|_| ()))?;
                }
            }
        }
        self.next = new.end;
        Ok(new)
    }

    /// Any get a piece more, and go when they are too long for another.
    fn grow(&mut self) -> Result<(), Error> {
        let lengths = self.lengths.as_mut().unwrap_or_else(|| unreachable!("asked for where values grow"));
        for _ in 0..BATCH {
            let place = (keys::key(self.steps) % lengths.len() as u64) as usize;
            self.steps += 1;
            let key = keys::key(self.live[place]);
            lengths[place] = append_piece(&self.store, key)?;
            if lengths[place] + PIECE > self.value_bytes {
                self.store.delete(&key)?;
                lengths[place] = 0;
            }
        }
        Ok(())
    }

    fn replace(&mut self, order: Order) -> Result<(), Error> {
        let records = self.live.len() as u64;
        let new = self.put_new()?;
        // The places are taken in turns, so the next ones have the oldest.
        let gone = new.map(|number| {
            let place = if order == Order::Oldest { number } else { keys::key(!number) } % records;
            keys::key(std::mem::replace(&mut self.live[place as usize], number))
        });
        let gone: Vec<u64> = gone.collect();
        self.store.delete_many(&gone)?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        for (place, number) in self.live.iter().enumerate() {
            let key = keys::key(*number);
            let bytes = self.lengths.as_ref().map_or(self.value_bytes, |lengths| lengths[place]);
            let told = self.store.get_with(&key, |value: &[u8]| keys::is_own(key, value, bytes as u64))?;
            ensure!(told == (bytes > 0).then_some(true), "record {number} is not what was put");
        }
        let mut living = self.live.clone();
        living.sort_unstable();
        let gone = (0..self.next).rev().filter(|number| living.binary_search(number).is_err());
        for number in gone.take(self.live.len()) {
            ensure!(!self.store.contains(&keys::key(number))?, "record {number} was deleted and is there");
        }
        Ok(())
    }
}

/// A piece tells its key.
fn append_piece(store: &Store<u64, [u8]>, key: u64) -> Result<usize, Error> {
    let mut piece = [7; PIECE];
    piece[..8].copy_from_slice(&key.to_le_bytes());
    store.append(&key, &piece)
}

/// All records replaced a second, if there was a whole turnover.
fn rate(rates: &[f64]) -> Option<f64> {
    let seconds: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
    (!rates.is_empty()).then(|| rates.len() as f64 / seconds)
}

fn late_to_early(rates: &[f64]) -> Option<f64> {
    let rates = rates.get(1..)?;
    let (early, late) = rates.split_at(rates.len() / 2);
    (!early.is_empty()).then(|| Spread::of(late).median / Spread::of(early).median)
}

fn print(rows: &[Row]) {
    let head = ["home", "goes", "live", "records", "replaced", "late/early", "to emptiest", "p50", "p99", "p99.9", "max", "full after"];
    let body = rows.iter().map(|row| {
        let mut cells = vec![row.home.to_owned(), row.order.to_owned(), format!("{} %", row.live_percent), row.common.keys.to_string()];
        cells.push(report::rate(row.rate()));
        cells.extend([row.late_to_early, row.ratio_to_emptiest].map(report::optional));
        cells.extend(report::latencies(&row.common));
        cells.push(row.full_after.map_or("-".to_owned(), |turnovers| format!("{turnovers:.1}")));
        cells
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
}

fn draw(rows: &[Row]) -> String {
    let name = |row: &Row| format!("{}, {}, {} %", row.home, row.order, row.live_percent);
    let lines: Vec<_> = rows.iter().map(|row| (name(row), row.turnover_per_second.clone())).collect();
    chart::lines("Records replaced a second", "turnovers", &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(live: Vec<u64>) -> Arguments {
        Arguments {
            homes: vec![Home::Memory, Home::Device],
            orders: vec![Order::Oldest, Order::Random],
            live,
            turnovers: 3,
            value_bytes: 2000,
            memory: 16 << 20,
            place: Place::default(),
            outputs: Outputs::default(),
        }
    }

    /// Every record is right, and what is gone is gone: `measure` refuses anything else.
    #[test]
    fn all_turnovers_are_made_where_there_is_room() {
        let arguments = arguments(vec![50]);
        for home in [Home::Memory, Home::Device] {
            // On a device values that grow piece by piece take this test most of a minute.
            let grown = (home == Home::Memory).then_some(Order::Grown);
            for order in [Order::Oldest, Order::Random, Order::Uniform, Order::Zipf].into_iter().chain(grown) {
                let row = measure(&arguments, home, order, 50, &ProgressBar::hidden()).unwrap();
                assert_eq!((row.turnover_per_second.len(), row.full_after), (3, None), "{row:?}");
            }
        }
    }

    #[test]
    fn a_rate_that_falls_is_told() {
        assert_eq!(late_to_early(&[9.0]), None);
        assert_eq!(late_to_early(&[9.0, 4.0, 2.0]), Some(0.5));
        // One slow turnover is none that stays.
        assert_eq!(late_to_early(&[9.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0]), Some(1.0));
        assert_eq!(late_to_early(&[9.0, 4.0, 4.0, 4.0, 3.0, 2.0, 3.0]), Some(0.75));
    }

    #[test]
    fn what_changes_in_place_needs_no_room() {
        for order in [Order::Uniform, Order::Zipf] {
            let row = measure(&arguments(vec![70]), Home::Memory, order, 70, &ProgressBar::hidden()).unwrap();
            assert_eq!((row.turnover_per_second.len(), row.full_after), (3, None), "{row:?}");
        }
    }

    #[test]
    fn a_full_store_is_told_and_lost_nothing() {
        let row = measure(&arguments(vec![99]), Home::Memory, Order::Random, 99, &ProgressBar::hidden()).unwrap();
        assert!(row.full_after.is_some(), "{row:?}");
    }
}
