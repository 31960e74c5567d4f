//! Sums over many objects, four ways, as in the work on aggregation inside RAMCloud: gathered by a client that gets one object at a
//! time, by a list of keys, by a walk of the index, and by reading the log.
//!
//! ```text
//! state x value size x number of objects        stores.rs: one store each, filled once
//!   x selectivity
//!       client                                  client.rs: through a Unix socket
//!       keys, index, log, auto  x threads       here
//!       peers                                   peers.rs: the same sums elsewhere; fresh stores only
//! ```
//! **All sums of a setting must be equal**, or the experiment ends with an error. The writer of the state `writer` moves amounts from
//! object to object in transactions, which no scan may see half of: so the sum stays, although every scan meets another store.
//!
//! *Selectivity* is the part of the objects that is asked for: client and keys have a list of them, index and log ask each key whether it
//! is one; `auto` is given both, or neither for all of them, and `best` says how much longer it took than the best of the three. Times are
//! per object asked for, snapshot included; `busy` is processor time, of all threads, which others on the machine disturb less. `document`
//! is what was published for as many objects; two threads are told in multiples of one. `log` and `device` are the bytes of log that were
//! read a second, and those of plain sequential reads of the same device, in turns with them; `evicted` is how far the scan drove what was
//! in memory out of it.

mod client;
mod drawing;
mod peers;
mod stores;

use std::time::Instant;

use anyhow::{Result, ensure};
use esker::aggregate::Sum;
use esker::{Store, Strategy};
use serde::Serialize;

use crate::report::{self, Spread};
use crate::{Outputs, Place, memory, number, processor, progress, size};
use peers::Peer;
use stores::{Amount, Setting, State};

/// The options of `aggregate`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of objects
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000,10000000", value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    keys: Vec<u64>,
    /// Bytes of a value, of which the first eight are the integer; or four, which are
    #[arg(long, value_delimiter = ',', default_value = "8")]
    value_bytes: Vec<usize>,
    /// What became of the store before
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fresh")]
    states: Vec<State>,
    /// Parts of the objects that are asked for
    #[arg(long, value_delimiter = ',', default_value = "1,0.1,0.01,0.005")]
    selectivity: Vec<f64>,
    /// Threads of a scan
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = number::threads)]
    threads: Vec<usize>,
    /// How many objects an emptied store once held
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(0..number::KEYS))]
    emptied_from: u64,
    /// Memory of stores on the device, instead of half or a tenth of their data
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    place: Place,
    /// Number of runs; the median counts
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    /// Objects that the client gets; beyond, its time is scaled up. 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    client_objects: usize,
    /// Others to compute the same sums, where this build and this machine have them
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Peer>,
    #[command(flatten)]
    outputs: Outputs,
}

/// One sum.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    /// Its keys are in the store; its rate is that of objects asked for.
    #[serde(flatten)]
    common: report::Row,
    strategy: String,
    state: &'static str,
    selectivity: f64,
    /// Asked for.
    objects: u64,
    nanoseconds_per_object: f64,
    /// Of processor time, all threads of the process together.
    busy_nanoseconds_per_object: f64,
    sum: i128,
    /// Published for as many objects by the same strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    document_nanoseconds_per_object: Option<f64>,
    /// The client's time against this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    times_the_client: Option<f64>,
    /// Of the automatic choice: its time against that of the best strategy, and what it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_best: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<String>,
    /// The time of one thread against this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    times_one_thread: Option<f64>,
    /// Of the log, where it is read; and of plain reads of the same device.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_bytes_per_second: Option<f64>,
    /// Bytes of log that left memory meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted_bytes: Option<u64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.selectivity.iter().all(|part| *part > 0.0 && *part <= 1.0), "a selectivity is above 0 and at most 1");
    let has_room = |bytes: &usize| *bytes == 4 || (8..=number::VALUE_BYTES as usize).contains(bytes);
    ensure!(arguments.value_bytes.iter().all(has_room), "a value has room for an integer, and at most 16 MiB");
    let fits = |keys: &u64| arguments.emptied_from.max(*keys) < u64::from(u32::MAX);
    ensure!(!arguments.value_bytes.contains(&4) || arguments.keys.iter().all(fits), "four bytes hold the number of an object");
    ensure!(!arguments.value_bytes.contains(&4) || arguments.peers.is_empty(), "peers hold values of eight bytes and more");
    Peer::all_are_built(&arguments.peers)?;
    let settings = settings(arguments);
    let bar = progress::bar(settings.len() as u64);
    let mut rows = Vec::new();
    for setting in &settings {
        bar.set_message(format!("{} objects of {} bytes, {}", setting.keys, setting.value_bytes, setting.state.name()));
        match setting.obstacle() {
            Some(why) => bar.suspend(|| {
                eprintln!("left out: {} objects of {} bytes, {}: {why}", setting.keys, setting.value_bytes, setting.state.name())
            }),
            None => measure_any(arguments, setting, &mut rows)?,
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    compare(&mut rows);
    print(&rows);
    report::write_json(arguments.outputs.rows.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || drawing::draw(&rows))
}

fn settings(arguments: &Arguments) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &state in &arguments.states {
        for &value_bytes in &arguments.value_bytes {
            settings.extend(arguments.keys.iter().map(|&keys| Setting {
                state,
                value_bytes,
                keys,
                emptied_from: arguments.emptied_from,
                memory: arguments.memory,
                place: arguments.place.clone(),
            }));
        }
    }
    settings
}

/// True for the objects asked for: a part of all, by the scattered key itself.
fn is_asked(key: u64, selectivity: f64) -> bool {
    selectivity >= 1.0 || (key as f64) < selectivity * u64::MAX as f64
}

/// With values of the type that has so many bytes.
fn measure_any(arguments: &Arguments, setting: &Setting, rows: &mut Vec<Row>) -> Result<()> {
    match setting.value_bytes {
        4 => measure::<u32>(arguments, setting, rows),
        8 => measure::<u64>(arguments, setting, rows),
        _ => measure::<[u8]>(arguments, setting, rows),
    }
}

fn measure<V: Amount + ?Sized>(arguments: &Arguments, setting: &Setting, rows: &mut Vec<Row>) -> Result<()> {
    let filled = setting.fill::<V>()?;
    let store = &filled.store;
    let mut peers = Vec::new();
    for peer in arguments.peers.iter().filter(|_| setting.state == State::Fresh) {
        peers.extend(peer.load(setting)?);
    }
    for &selectivity in &arguments.selectivity {
        let listed: Vec<u64> = setting.all().filter(|key| is_asked(*key, selectivity)).collect();
        if listed.is_empty() {
            continue;
        }
        let first = rows.len();
        let objects = listed.len() as f64;
        let row = |engine: &str, strategy: &str, threads, answers: &[Answer]| -> Result<Row> {
            let answer = Answer::middle(answers)?;
            let common = report::Row {
                experiment: "aggregate",
                engine: engine.to_owned(),
                operation: "sum".to_owned(),
                reads_percent: 100,
                distribution: "scattered",
                threads,
                keys: setting.keys,
                value_bytes: setting.value_bytes as u64,
                batch: 1,
                runs: answers.len(),
                ops_per_second: Spread::of(&answers.iter().map(|answer| objects / answer.seconds).collect::<Vec<_>>()),
                memory_bytes: filled.memory,
                ..report::Row::default()
            };
            Ok(Row {
                common,
                strategy: strategy.to_owned(),
                state: setting.state.name(),
                selectivity,
                objects: listed.len() as u64,
                nanoseconds_per_object: answer.seconds * 1e9 / objects,
                busy_nanoseconds_per_object: answer.busy * 1e9 / objects,
                sum: answer.sum,
                ..Row::default()
            })
        };
        // One get at a time is of no one moment: beside the writer it has no sum to agree with.
        if arguments.client_objects > 0 && setting.state != State::Writer {
            rows.push(row("esker", "client", 1, &[client::sum(store, &listed, arguments.client_objects)?])?);
        }
        let question = Question { store, selectivity, listed: &listed };
        filled.beside_writer(&listed, || -> Result<()> {
            for &threads in &arguments.threads {
                for (name, strategy) in STRATEGIES {
                    memory::reset_peak();
                    let before = store.stats().log;
                    let (mut answers, mut device) = (Vec::new(), Vec::new());
                    for _ in 0..arguments.runs {
                        if let Some(probe) = filled.probe.as_ref().filter(|_| strategy == Some(Strategy::ByLog)) {
                            device.push(probe.measure_sequential()?);
                        }
                        answers.push(Answer::time(|| question.sum(strategy, threads))?);
                    }
                    let after = store.stats().log;
                    let mut row = row("esker", name, threads, &answers)?;
                    row.choice = strategy.is_none().then(|| question.choice());
                    row.evicted_bytes = filled.memory.map(|_| after.head - before.head);
                    // Since the store was opened, the list of keys included.
                    row.common.peak_bytes = filled.memory.map(|_| memory::peak_bytes().saturating_sub(filled.base));
                    if strategy == Some(Strategy::ByLog) {
                        row.bytes_per_second = Some((before.tail - before.begin) as f64 * 1e9 / (row.nanoseconds_per_object * objects));
                        row.device_bytes_per_second = (!device.is_empty()).then(|| Spread::of(&device).median);
                    }
                    rows.push(row);
                }
            }
            Ok(())
        })?;
        for peer in &mut peers {
            let answers = (0..arguments.runs).map(|_| Answer::time(|| peer.sum(selectivity, &listed))).collect::<Result<Vec<_>>>()?;
            rows.push(row(peer.name(), peer.name(), 1, &answers)?);
        }
        let sums: Vec<_> = rows[first..].iter().map(|row| (row.strategy.as_str(), row.sum)).collect();
        ensure!(sums.windows(2).all(|pair| pair[0].1 == pair[1].1), "the sums differ: {sums:?}");
    }
    filled.store.close()?;
    Ok(())
}

const STRATEGIES: [(&str, Option<Strategy>); 4] =
    [("keys", Some(Strategy::ByKeys)), ("index", Some(Strategy::ByIndex)), ("log", Some(Strategy::ByLog)), ("auto", None)];

/// A sum that is asked for.
struct Question<'a, V: Amount + ?Sized> {
    store: &'a Store<u64, V>,
    selectivity: f64,
    listed: &'a [u64],
}

impl<V: Amount + ?Sized> Question<'_, V> {
    /// The scan: with the list where it may be walked, else with the test; all objects need neither.
    fn scan(&self, strategy: Option<Strategy>) -> esker::Scan<'_, u64, V> {
        let scan = self.store.scan();
        match strategy {
            Some(Strategy::ByKeys) => scan.by(Strategy::ByKeys).keys(self.listed),
            Some(strategy) => scan.by(strategy),
            None if self.selectivity >= 1.0 => scan,
            None => scan.keys_where(self.listed, |key| is_asked(key, self.selectivity)),
        }
    }

    fn sum(&self, strategy: Option<Strategy>, threads: usize) -> Result<i128> {
        let selectivity = self.selectivity;
        let scan = self.scan(strategy).parallel(threads);
        Ok(if matches!(strategy, None | Some(Strategy::ByKeys)) || selectivity >= 1.0 {
            scan.aggregate(Sum(|_: u64, value: V::View<'_>| V::amount(value)))?
        } else {
            scan.aggregate(Sum(|key: u64, value: V::View<'_>| is_asked(key, selectivity).then(|| V::amount(value))))?
        })
    }

    fn choice(&self) -> String {
        self.scan(None).explain().map_or_else(|error| error.to_string(), |plan| format!("{:?}", plan.strategy))
    }
}

/// A sum, and what it took: seconds, and seconds of processors.
#[derive(Clone, Copy, Debug)]
struct Answer {
    seconds: f64,
    busy: f64,
    sum: i128,
}

impl Answer {
    fn time(ask: impl FnOnce() -> Result<i128>) -> Result<Self> {
        let (busy, start) = (processor::seconds(), Instant::now());
        let sum = ask()?;
        Ok(Self { seconds: start.elapsed().as_secs_f64(), busy: processor::seconds() - busy, sum })
    }

    /// The median of some answers, whose sums must be equal, by each kind of time.
    fn middle(answers: &[Self]) -> Result<Self> {
        let sum = answers[0].sum;
        ensure!(answers.iter().all(|answer| answer.sum == sum), "sums of the same objects differ: {answers:?}");
        let middle = |time: fn(&Self) -> f64| Spread::of(&answers.iter().map(time).collect::<Vec<_>>()).median;
        Ok(Self { seconds: middle(|answer| answer.seconds), busy: middle(|answer| answer.busy), sum })
    }
}

/// What was published, in milliseconds for so many objects: client, keys, index, log.
const DOCUMENT: [(u64, [f64; 4]); 5] = [
    (10_000, [63.0, 1.0, 74.0, 6.0]),
    (100_000, [648.0, 12.0, 84.0, 9.0]),
    (1_000_000, [6_485.0, 127.0, 168.0, 21.0]),
    (10_000_000, [64_258.0, 1_378.0, 781.0, 142.0]),
    (100_000_000, [652_201.0, 19_854.0, 6_245.0, 1_422.0]),
];

/// Nanoseconds an object, as published; it had the same times where a tenth of what was stored was asked for.
fn document(strategy: &str, objects: u64, selectivity: f64) -> Option<f64> {
    if ![1.0, 0.1].contains(&selectivity) {
        return None;
    }
    let column = ["client", "keys", "index", "log"].iter().position(|name| *name == strategy)?;
    // Scattered keys: what is asked for is a part only about.
    let near = |published: u64| objects.abs_diff(published) <= published / 10;
    DOCUMENT.iter().find(|(published, _)| near(*published)).map(|(published, times)| times[column] * 1e6 / *published as f64)
}

/// Fills in what rows say of each other.
fn compare(rows: &mut [Row]) {
    let all = rows.to_vec();
    for row in rows {
        let setting = |row: &Row| (row.state, row.common.value_bytes, row.common.keys, row.selectivity);
        let own_setting = setting(row);
        let same = |other: &&Row| setting(other) == own_setting;
        let time = |strategy: &str, threads| {
            let found = all.iter().filter(same).find(|other| other.strategy == strategy && other.common.threads == threads);
            found.map(|other| other.nanoseconds_per_object)
        };
        let own = row.nanoseconds_per_object;
        row.document_nanoseconds_per_object = document(&row.strategy, row.objects, row.selectivity);
        row.times_the_client = time("client", 1).filter(|_| row.strategy != "client").map(|client| client / own);
        row.times_one_thread = time(&row.strategy, 1).filter(|_| row.common.threads > 1).map(|one| one / own);
        if row.strategy == "auto" {
            let best = ["keys", "index", "log"].iter().filter_map(|strategy| time(strategy, row.common.threads)).min_by(f64::total_cmp);
            row.ratio_to_best = best.map(|best| own / best);
        }
    }
}

fn print(rows: &[Row]) {
    let head = [
        "strategy",
        "state",
        "bytes",
        "stored",
        "selectivity",
        "threads",
        "ns an object",
        "busy",
        "document",
        "the client ×",
        "one thread ×",
        "best ×",
        "log",
        "device",
        "evicted",
    ];
    let rate = |bytes: Option<f64>| bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.2} GB/s", bytes / 1e9));
    let body = rows.iter().map(|row| {
        vec![
            row.choice.as_ref().map_or_else(|| row.strategy.clone(), |choice| format!("auto: {choice}")),
            row.state.to_owned(),
            row.common.value_bytes.to_string(),
            row.common.keys.to_string(),
            row.selectivity.to_string(),
            row.common.threads.to_string(),
            format!("{:.2}", row.nanoseconds_per_object),
            format!("{:.2}", row.busy_nanoseconds_per_object),
            report::optional(row.document_nanoseconds_per_object),
            report::optional(row.times_the_client),
            report::optional(row.times_one_thread),
            report::optional(row.ratio_to_best),
            rate(row.bytes_per_second),
            rate(row.device_bytes_per_second),
            row.evicted_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20)),
        ]
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
    if rows.iter().any(|row| row.strategy == "client") {
        report::say!("client: one get at a time through a Unix socket to a thread that answers from the store; no server, no network");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_per_object() {
        assert_eq!(document("log", 1_000_400, 0.1), Some(21.0));
        assert_eq!(document("client", 10_000, 1.0), Some(6_300.0));
        assert_eq!((document("log", 5_000, 1.0), document("auto", 10_000, 1.0), document("log", 10_000, 0.01)), (None, None, None));
    }

    #[test]
    fn rows_are_compared_with_their_own() {
        let row = |strategy: &str, threads, nanoseconds_per_object| Row {
            common: report::Row { threads, ..report::Row::default() },
            strategy: strategy.to_owned(),
            nanoseconds_per_object,
            ..Row::default()
        };
        let mut rows = [row("client", 1, 100.0), row("keys", 1, 4.0), row("log", 1, 2.0), row("log", 2, 1.0), row("auto", 1, 3.0)];
        compare(&mut rows);
        assert_eq!((rows[2].times_the_client, rows[3].times_one_thread, rows[4].ratio_to_best), (Some(50.0), Some(2.0), Some(1.5)));
        assert_eq!((rows[0].times_the_client, rows[2].times_one_thread, rows[3].ratio_to_best), (None, None, None));
    }

    /// Every state, all strategies, sums equal: `measure` refuses anything else.
    #[test]
    fn sums_agree_in_every_state() {
        let arguments = Arguments {
            keys: vec![20_000],
            value_bytes: vec![4, 8, 100],
            states: vec![State::Fresh, State::HalfDead, State::Emptied, State::HalfCold, State::Writer],
            selectivity: vec![1.0, 0.1],
            threads: vec![1, 2],
            emptied_from: 50_000,
            memory: Some(16 << 20),
            place: Place::default(),
            runs: 1,
            client_objects: 100,
            peers: Vec::new(),
            outputs: Outputs::default(),
        };
        let mut rows = Vec::new();
        for setting in settings(&arguments) {
            measure_any(&arguments, &setting, &mut rows).unwrap();
        }
        // Eight ways each, and the client but beside the writer.
        assert_eq!(rows.len(), 15 * 2 * 8 + 12 * 2);
        compare(&mut rows);
        assert!(drawing::draw(&rows).ends_with("</svg>\n"));
    }
}
