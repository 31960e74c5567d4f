//! `esker demo`: a year of flights through a store with far less memory than data.
//!
//! Every flight is appended to its aircraft's history of the month and counted for the airport it went to, so each row
//! is one append and one read-modify-write, on histories that come back all month long and on counts that always do. The
//! year is replayed as several, until the data is four times the memory. Then some histories are read back. Whether one
//! came from memory or from disk is not guessed: the store counts its device reads, and the demo shows by how much that
//! count moved.
//!
//! The demo keeps its own books in a [`Ledger`], in plain maps beside the store, and at the end compares what
//! the store holds with them.

use std::collections::HashMap;
use std::time::Instant;

use esker::Options;
use indicatif::ProgressBar;

use crate::args::Opening;
use crate::bytes::{count, rate, size};
use crate::failure::{Failure, Outcome};
use crate::flights::{self, Flight};
use crate::interrupt::Interrupt;
use crate::store::Bytes;
use crate::{out, progress, stats};

/// The budget where none is given, the least that a store takes.
const MEMORY: u64 = 16 << 20;
const FIRST_YEAR: u64 = 2013;
/// How many times the budget the stored rows are.
const TIMES_MEMORY: u64 = 4;
/// Some ten tebibytes of rows. Nobody waits for more.
const YEARS_MAX: u64 = 1_000_000;
const ROWS_A_MESSAGE: u64 = 32_768;
/// How many histories of each kind are read back.
const SHOWN: usize = 3;
/// Histories between two looks whether to stop.
const READ_AT_ONCE: usize = 8192;

/// What the demo knows of an aircraft's month, apart from the store.
#[derive(Default)]
struct History {
    flights: u64,
    bytes: u64,
    /// The number of the row that was its last.
    last: u64,
}

/// What went into the store, written down beside it.
#[derive(Default)]
struct Ledger {
    rows: u64,
    bytes: u64,
    histories: HashMap<String, History>,
    airports: HashMap<String, u64>,
}

/// Runs the demo.
pub(crate) fn run(opening: Opening) -> Outcome {
    let memory = opening.memory.unwrap_or(MEMORY);
    let years = memory.saturating_mul(TIMES_MEMORY).div_ceil(flights::BYTES);
    if years > YEARS_MAX {
        return Err(Failure::Usage(format!("the demo's data is {TIMES_MEMORY} times its memory: give it less than {}", size(memory))));
    }
    // Before there is a directory, which would stay.
    let interrupt = Interrupt::catch()?;
    let store: Bytes = Options::new().memory(memory).durability(opening.durability).open_temporary()?;
    introduce(memory, years)?;
    let ledger = fill(&store, years, &interrupt)?;
    show_regions(&store)?;
    read_back(&store, &ledger, &interrupt)?;
    check(&store, &ledger, &interrupt)?;
    store.close()?;
    out::line(format!("\nThe store was temporary, in {}, and is gone. Next: esker load --help", std::env::temp_dir().display()))
}

fn introduce(memory: u64, years: u64) -> Outcome {
    out::line(format!(
        "The {} flights that left New York City in 2013, replayed as {years} years: {} of rows\n\
         through a temporary store in {} that may use {} of memory. Each flight is appended to its aircraft's\n\
         history of the month (append, key such as N725MQ.2013-06) and counted for the airport it went to (rmw).\n",
        count(flights::ROWS),
        size(years * flights::BYTES),
        std::env::temp_dir().display(),
        size(memory),
    ))
}

/// Stores the years and tells how fast that went.
fn fill(store: &Bytes, years: u64, interrupt: &Interrupt) -> Result<Ledger, Failure> {
    let bar = progress::of_bytes(years * flights::BYTES);
    let mut ledger = Ledger::default();
    let start = Instant::now();
    for year in FIRST_YEAR..FIRST_YEAR + years {
        flights::each(|flight| {
            let key = format!("{}.{year}-{}", flight.tailnum, flight.month);
            add(store, &key, flight)?;
            ledger.note(&key, flight);
            if ledger.rows.is_multiple_of(ROWS_A_MESSAGE) {
                show_progress(&bar, store, &ledger, start);
            }
            interrupt.check()
        })?;
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let (rows, bytes) = (count(ledger.rows), size(ledger.bytes));
    let operations = rate(2 * ledger.rows, seconds);
    out::line(format!("stored     {rows} flights, {bytes}, in {seconds:.2} s"))?;
    out::line(format!("           {operations} operations/s on one thread, unpacking included\n"))?;
    Ok(ledger)
}

fn add(store: &Bytes, key: &str, flight: Flight<'_>) -> Outcome {
    store.append(key.as_bytes(), flight.row.as_bytes())?;
    store.rmw(&airport_key(flight.dest)[..], |old| (decimal(old) + 1).to_string().into_bytes())?;
    Ok(())
}

impl Ledger {
    fn note(&mut self, key: &str, flight: Flight<'_>) {
        self.rows += 1;
        self.bytes += flight.row.len() as u64;
        let history = entry(&mut self.histories, key);
        history.flights += 1;
        history.bytes += flight.row.len() as u64;
        history.last = self.rows;
        *entry(&mut self.airports, flight.dest) += 1;
    }

    /// The histories of known aircraft, ordered by a measure.
    fn ordered<T: Ord>(&self, measure: impl Fn(&History) -> T) -> Vec<(&str, &History)> {
        let known = self.histories.iter().filter(|(key, _)| !key.starts_with(flights::UNKNOWN));
        let mut known: Vec<_> = known.map(|(key, history)| (&key[..], history)).collect();
        known.sort_by_key(|(key, history)| (measure(history), *key));
        known
    }
}

/// The entry of a name, which becomes a string only the first time.
fn entry<'a, T: Default>(map: &'a mut HashMap<String, T>, name: &str) -> &'a mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name).expect("the name was put in just before")
}

fn airport_key(airport: &str) -> Vec<u8> {
    format!("airport:{airport}").into_bytes()
}

/// A count as the store has it: decimal text, nothing for none yet.
fn decimal(text: Option<&[u8]>) -> u64 {
    text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
}

fn show_progress(bar: &ProgressBar, store: &Bytes, ledger: &Ledger, start: Instant) {
    if bar.is_hidden() {
        return;
    }
    let log = store.stats().log;
    let operations = rate(2 * ledger.rows, start.elapsed().as_secs_f64());
    let disk = size(log.head.saturating_sub(log.begin));
    bar.set_position(ledger.bytes);
    progress::say(bar, format!("{operations} operations/s, {disk} only on disk"));
}

fn show_regions(store: &Bytes) -> Outcome {
    let now = store.stats();
    out::line(stats::describe("the store", &now).trim_end())?;
    out::line("")
}

/// Reads back busy, recent and long unseen histories.
fn read_back(store: &Bytes, ledger: &Ledger, interrupt: &Interrupt) -> Outcome {
    let busiest = ledger.ordered(|history| (u64::MAX - history.flights, u64::MAX - history.last));
    let recent = ledger.ordered(|history| u64::MAX - history.last);
    let unseen = ledger.ordered(|history| history.last);
    out::line("histories  aircraft and month   flights    bytes      time  read from")?;
    for (kind, histories) in [("busiest", busiest), ("latest", recent), ("unseen", unseen)] {
        for (key, known) in histories.into_iter().take(SHOWN) {
            interrupt.check()?;
            read_one(store, kind, key, known)?;
        }
    }
    Ok(())
}

fn read_one(store: &Bytes, kind: &str, key: &str, known: &History) -> Outcome {
    let reads_before = store.stats().operations.device_reads;
    let start = Instant::now();
    let history = store.get(key.as_bytes())?.unwrap_or_default();
    let micros = start.elapsed().as_micros() as u64;
    let reads = store.stats().operations.device_reads - reads_before;
    check_history(key, known, &history)?;
    let from = match reads {
        0 => "memory".to_owned(),
        1 => "disk, 1 device read".to_owned(),
        more => format!("disk, {} device reads", count(more)),
    };
    let (flights, bytes, micros) = (count(known.flights), count(known.bytes), count(micros));
    out::line(format!("{kind:<10} {key:<18} {flights:>9} {bytes:>8} {micros:>6} µs  {from}"))
}

/// A history must have every flight of its aircraft's month and no other.
fn check_history(key: &str, known: &History, history: &[u8]) -> Outcome {
    let own = format!(",{},", key.split('.').next().unwrap_or(key));
    let text = std::str::from_utf8(history).unwrap_or_default();
    let flights = text.lines().filter(|row| row.contains(&own)).count() as u64;
    must_equal(&format!("flights in the history of {key}"), flights, known.flights)?;
    must_equal(&format!("bytes in the history of {key}"), history.len() as u64, known.bytes)
}

/// Compares everything in the store with the ledger.
fn check(store: &Bytes, ledger: &Ledger, interrupt: &Interrupt) -> Outcome {
    let start = Instant::now();
    let reads_before = store.stats().operations.device_reads;
    let flights = count_flights(store, ledger)?;
    let bytes = count_bytes(store, ledger, interrupt)?;
    must_equal("flights counted at the airports", flights, ledger.rows)?;
    must_equal("bytes in all histories", bytes, ledger.bytes)?;
    let reads = store.stats().operations.device_reads - reads_before;
    let airports = count(ledger.airports.len() as u64);
    let histories = count(ledger.histories.len() as u64);
    out::line(format!("\nchecked    {airports} airports count {} flights, as stored", count(flights)))?;
    out::line(format!("           {histories} histories have {} bytes, as appended", count(bytes)))?;
    let seconds = start.elapsed().as_secs_f64();
    out::line(format!("           in {seconds:.2} s with {} device reads", count(reads)))
}

/// The sum of the airports' counts, each of which must be right by itself too.
fn count_flights(store: &Bytes, ledger: &Ledger) -> Result<u64, Failure> {
    let mut sum = 0;
    for (airport, &flights) in &ledger.airports {
        let stored = store.get_with(&airport_key(airport)[..], |text| decimal(Some(text)))?.unwrap_or(0);
        must_equal(&format!("flights to {airport}"), stored, flights)?;
        sum += stored;
    }
    Ok(sum)
}

/// The length of all histories together, each of which must be right by itself too. Asked for many at a time, so that
/// the device has many reads under way.
fn count_bytes(store: &Bytes, ledger: &Ledger, interrupt: &Interrupt) -> Result<u64, Failure> {
    let (keys, known): (Vec<&[u8]>, Vec<&History>) = ledger.histories.iter().map(|(key, known)| (key.as_bytes(), known)).unzip();
    let mut sum = 0;
    for (keys, known) in keys.chunks(READ_AT_ONCE).zip(known.chunks(READ_AT_ONCE)) {
        interrupt.check()?;
        let mut stored = vec![0; keys.len()];
        store.get_many(keys, |i, history| stored[i] = history.map_or(0, |history| history.len() as u64))?;
        for ((key, known), &stored) in keys.iter().zip(known).zip(&stored) {
            must_equal(&format!("bytes in the history of {}", String::from_utf8_lossy(key)), stored, known.bytes)?;
        }
        sum += stored.iter().sum::<u64>();
    }
    Ok(sum)
}

fn must_equal(what: &str, stored: u64, expected: u64) -> Outcome {
    if stored == expected {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: the store has {}, not {}", count(stored), count(expected))))
}
