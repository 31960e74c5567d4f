//! Sums over many objects, four ways, as in the work on aggregation inside RAMCloud: gathered by a client that gets one object at a
//! time, by a list of keys, by a walk of the index, and by reading the log.
//!
//! The client talks through a pair of Unix sockets to a thread that answers from the store: a request of 36 bytes, a reply of 16,
//! the sizes of a `GET` in the Redis protocol. Above a million objects it gathers a part that way, for the time, and the rest
//! directly, for the sum. All sums of a run must be equal.
//!
//! *Selectivity* is the part of the objects that is asked for: client and keys have a list of them, index and log ask each key
//! whether it is one. Times are per object asked for. With `--dead`, half of the objects have been superseded once.
//! With `--memory` the store is larger than memory, and the log's rate stands beside that of plain sequential reads.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use esker::aggregate::Sum;
use esker::{Options, Store, Strategy};
use serde::Serialize;

use crate::probe::Probe;
use crate::{Outputs, chart, keys, memory, report, size};

/// Objects that the client gets through the socket.
const CLIENT_OBJECTS: usize = 1_000_000;
const REQUEST_BYTES: usize = 36;
const REPLY_BYTES: usize = 16;
const LOAD_BATCH: usize = 1024;

/// The options of `aggregate`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of objects
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000,10000000")]
    keys: Vec<u64>,
    /// Parts of the objects that are asked for
    #[arg(long, value_delimiter = ',', default_value = "1,0.1")]
    selectivity: Vec<f64>,
    /// Threads of a scan
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Supersede half of the objects first
    #[arg(long)]
    dead: bool,
    /// Memory of a store in a temporary directory; in memory if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Directory on the device to measure; the system's for temporary files if not given
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Number of runs; the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Leave the client out
    #[arg(long)]
    no_client: bool,
    #[command(flatten)]
    outputs: Outputs,
}

/// One sum.
#[derive(Debug, Serialize)]
struct Row {
    experiment: &'static str,
    strategy: String,
    selectivity: f64,
    keys: u64,
    threads: usize,
    /// Half of the objects were superseded once.
    half_dead: bool,
    nanoseconds_per_object: f64,
    sum: i128,
    /// Of the log, where it is read; and of plain reads of the same device.
    bytes_per_second: Option<f64>,
    device_bytes_per_second: Option<f64>,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.runs > 0 && arguments.threads.iter().all(|threads| *threads > 0), "there must be a run and a thread");
    ensure!(arguments.selectivity.iter().all(|part| *part > 0.0 && *part <= 1.0), "a selectivity is above 0 and at most 1");
    let mut rows = Vec::new();
    for &count in &arguments.keys {
        measure(arguments, count, &mut rows)?;
    }
    print(&rows);
    report::write_json(arguments.outputs.json.as_deref(), &rows)?;
    report::write_svg(arguments.outputs.svg.as_deref(), || draw(arguments, &rows))
}

/// True for the objects asked for: every n-th, by the scattered key itself.
fn is_asked(key: u64, selectivity: f64) -> bool {
    selectivity >= 1.0 || (key as f64) < selectivity * u64::MAX as f64
}

fn measure(arguments: &Arguments, count: u64, rows: &mut Vec<Row>) -> Result<()> {
    let parent = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::tempdir_in(parent)?;
    let store: Store<u64, u64> = match arguments.memory {
        Some(bytes) => Options::new().memory(bytes).open(directory.path().join("store"))?,
        None => Options::new().memory(memory::physical_bytes() / 4 * 3).in_memory()?,
    };
    load(&store, count, arguments.dead)?;
    let device = match arguments.memory {
        Some(_) => Some(Probe::create(directory.path(), (count * 24).clamp(256 << 20, 4 << 30))?.measure_sequential()?),
        None => None,
    };
    for &selectivity in &arguments.selectivity {
        let listed: Vec<u64> = (0..count).map(keys::key).filter(|key| is_asked(*key, selectivity)).collect();
        let mut sums = Vec::new();
        let row = |strategy: &str, threads, seconds: f64, sum| Row {
            experiment: "aggregate",
            strategy: strategy.to_owned(),
            selectivity,
            keys: count,
            threads,
            half_dead: arguments.dead,
            nanoseconds_per_object: seconds * 1e9 / listed.len().max(1) as f64,
            sum,
            bytes_per_second: None,
            device_bytes_per_second: None,
        };
        if !arguments.no_client {
            let (seconds, sum) = by_client(&store, &listed)?;
            sums.push(sum);
            rows.push(row("client", 1, seconds, sum));
        }
        for &threads in &arguments.threads {
            for (name, strategy) in
                [("keys", Some(Strategy::ByKeys)), ("index", Some(Strategy::ByIndex)), ("log", Some(Strategy::ByLog)), ("auto", None)]
            {
                let log = store.stats().log;
                let (seconds, sum) = median(arguments.runs, || on_server(&store, strategy, threads, selectivity, &listed))?;
                sums.push(sum);
                let mut row = row(name, threads, seconds, sum);
                if strategy == Some(Strategy::ByLog) {
                    (row.bytes_per_second, row.device_bytes_per_second) = (Some((log.tail - log.begin) as f64 / seconds), device);
                }
                rows.push(row);
            }
        }
        ensure!(sums.windows(2).all(|pair| pair[0] == pair[1]), "the sums differ: {sums:?}");
    }
    store.close()?;
    Ok(())
}

fn load(store: &Store<u64, u64>, count: u64, dead: bool) -> Result<()> {
    let put = |every: u64, add: u64| -> Result<()> {
        let indices: Vec<u64> = (0..count).step_by(every as usize).collect();
        for part in indices.chunks(LOAD_BATCH) {
            let pairs: Vec<(u64, u64)> = part.iter().map(|index| (keys::key(*index), index + add)).collect();
            store.put_many(&pairs)?;
        }
        Ok(())
    };
    put(1, 0)?;
    if dead {
        // A scan's line freezes what is there: each put after it supersedes a record instead of changing it in place.
        store.scan().keys(&[0]).for_each(|_, _| ())?;
        put(2, 1)?;
    }
    Ok(())
}

fn median(runs: usize, mut run: impl FnMut() -> Result<(f64, i128)>) -> Result<(f64, i128)> {
    let mut results = (0..runs).map(|_| run()).collect::<Result<Vec<_>>>()?;
    results.sort_by(|a, b| a.0.total_cmp(&b.0));
    ensure!(results.iter().all(|result| result.1 == results[0].1), "sums of the same objects differ: {results:?}");
    Ok(results[runs / 2])
}

fn on_server(store: &Store<u64, u64>, strategy: Option<Strategy>, threads: usize, selectivity: f64, listed: &[u64]) -> Result<(f64, i128)> {
    let start = Instant::now();
    let scan = store.scan().parallel(threads);
    let scan = match strategy {
        Some(strategy) => scan.by(strategy),
        None => scan,
    };
    let by_keys = strategy == Some(Strategy::ByKeys) || strategy.is_none() && selectivity < 1.0;
    let sum = if by_keys {
        scan.keys(listed).aggregate(Sum(|_, value| value))?
    } else {
        scan.aggregate(Sum(|key, value| is_asked(key, selectivity).then_some(value)))?
    };
    Ok((start.elapsed().as_secs_f64(), sum))
}

/// The time for all, from the part that went through the socket, and the sum.
fn by_client(store: &Store<u64, u64>, listed: &[u64]) -> Result<(f64, i128)> {
    let (sent, rest) = listed.split_at(listed.len().min(CLIENT_OBJECTS));
    let (mut client, mut server) = UnixStream::pair()?;
    let seconds_and_sum = std::thread::scope(|scope| -> Result<(f64, i128)> {
        let serving = scope.spawn(move || -> Result<()> {
            let mut request = [0; REQUEST_BYTES];
            // Ends when the client hangs up.
            while server.read_exact(&mut request).is_ok() {
                let key = u64::from_le_bytes(request[..8].try_into()?);
                let mut reply = [0; REPLY_BYTES];
                reply[..8].copy_from_slice(&store.get(&key)?.context("a key is missing")?.to_le_bytes());
                server.write_all(&reply)?;
            }
            Ok(())
        });
        let (start, mut sum) = (Instant::now(), 0);
        let (mut request, mut reply) = ([0; REQUEST_BYTES], [0; REPLY_BYTES]);
        for key in sent {
            request[..8].copy_from_slice(&key.to_le_bytes());
            client.write_all(&request)?;
            client.read_exact(&mut reply)?;
            sum += i128::from(u64::from_le_bytes(reply[..8].try_into()?));
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(client);
        serving.join().ok().context("the server failed")??;
        Ok((seconds, sum))
    });
    let (seconds, mut sum) = seconds_and_sum?;
    store.get_many(rest, |_, value| sum += i128::from(value.unwrap_or_default()))?;
    Ok((seconds * listed.len() as f64 / sent.len().max(1) as f64, sum))
}

fn print(rows: &[Row]) {
    let per_client = |row: &Row| {
        let client = rows.iter().find(|other| other.strategy == "client" && (other.keys, other.selectivity) == (row.keys, row.selectivity));
        client.map(|client| client.nanoseconds_per_object / row.nanoseconds_per_object)
    };
    let head = ["strategy", "objects", "selectivity", "threads", "ns an object", "times the client", "log", "device"];
    let rate = |bytes: Option<f64>| bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.2} GB/s", bytes / 1e9));
    let body = rows.iter().map(|row| {
        vec![
            row.strategy.clone(),
            row.keys.to_string(),
            row.selectivity.to_string(),
            row.threads.to_string(),
            format!("{:.2}", row.nanoseconds_per_object),
            per_client(row).map_or_else(|| "-".to_owned(), |times| format!("{times:.1}")),
            rate(row.bytes_per_second),
            rate(row.device_bytes_per_second),
        ]
    });
    report::print_table(&head, &body.collect::<Vec<_>>());
}

/// Objects per second, over the numbers of objects.
fn draw(arguments: &Arguments, rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for &selectivity in &arguments.selectivity {
        for strategy in ["client", "keys", "index", "log"] {
            let own = rows.iter().filter(|row| row.strategy == strategy && row.selectivity == selectivity && row.threads == 1);
            let rates: Vec<f64> = own.map(|row| 1e9 / row.nanoseconds_per_object).collect();
            if !rates.is_empty() {
                lines.push((format!("{strategy}, {selectivity}"), rates));
            }
        }
    }
    let sizes: Vec<_> = arguments.keys.iter().map(ToString::to_string).collect();
    chart::lines("Objects summed per second", &format!("numbers of objects: {}", sizes.join(", ")), &lines)
}
