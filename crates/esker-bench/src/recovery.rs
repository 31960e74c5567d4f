//! How long opening takes after a crash, beside what the device gives when the same files are simply read.
//!
//! A child process loads a store, commits and ends without closing it: that is the crash. Here it is opened, and timed.
//! Two stores: one without images of the index, so that opening reads all its log (`the log`), and one that took them by itself while it
//! was loaded (`image and log`). The device's rate is that of reading the log itself, a mebibyte at a time and past the page
//! cache where the system allows it, with one thread and with four; the faster counts. Afterwards a sample of the pairs is read back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use esker::{Options, Store};

use crate::report::{self, Row, Spread};
use crate::{Place, Rows, integrity, keys, number, probe, progress, size};

/// Pairs per `put_many` of the load.
const LOAD_BATCH: u64 = 1024;
/// Bytes per read of the log.
const READ_BYTES: usize = 1 << 20;
/// One pair in so many is read back.
const SAMPLE: usize = 1009;

/// The options of `recovery`.
#[derive(clap::Args, Clone)]
pub(crate) struct Arguments {
    /// Number of pairs
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..number::KEYS))]
    pairs: u64,
    /// Memory of the store, its index included
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = size::parse)]
    memory: u64,
    /// Number of openings of each store
    #[arg(long, default_value_t = 3, value_parser = number::count)]
    runs: usize,
    #[command(flatten)]
    place: Place,
    /// Load the store here and end without closing it: what the experiment does in a process of its own
    #[arg(long, hide = true)]
    load: Option<PathBuf>,
    /// Take images of the index meanwhile
    #[arg(long, hide = true)]
    images: bool,
    #[command(flatten)]
    rows: Rows,
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(directory) = &arguments.load {
        let _store = load(arguments, directory)?;
        // As a crash does, while the store is open: to drop it would close it, with an image of all of its index.
        std::process::exit(0);
    }
    let bar = progress::bar(2 * arguments.runs as u64);
    let mut rows = Vec::new();
    for images in [false, true] {
        let directory = arguments.place.temporary()?;
        rows.push(measure(arguments, images, directory.path(), &bar)?);
    }
    bar.finish_and_clear();
    print(&rows);
    report::write_json(arguments.rows.json.as_deref(), &rows)
}

fn options(arguments: &Arguments) -> Options {
    Options::new().memory(arguments.memory)
}

fn load(arguments: &Arguments, directory: &Path) -> Result<Store<u64, u64>> {
    let store: Store<u64, u64> = options(arguments).background(arguments.images).open(directory)?;
    let mut pairs = Vec::new();
    for from in (0..arguments.pairs).step_by(LOAD_BATCH as usize) {
        pairs.clear();
        pairs.extend((from..arguments.pairs.min(from + LOAD_BATCH)).map(|n| (keys::key(n), n)));
        store.put_many(&pairs)?;
        // Lines, without which there is nothing that an image could stand for.
        if from % (1 << 20) == 0 {
            store.commit()?;
        }
    }
    store.commit()?;
    Ok(store)
}

fn measure(arguments: &Arguments, images: bool, directory: &Path, bar: &indicatif::ProgressBar) -> Result<Row> {
    let (mut seconds, mut ratios) = (Vec::new(), Vec::new());
    let (mut log_bytes, mut is_direct) = (0, true);
    for _ in 0..arguments.runs {
        let path = directory.join("store");
        crashed_store(arguments, images, &path)?;
        ensure!(images || files_of(&path, "index.")?.is_empty(), "an image of the index was taken: the store was closed");
        let files = files_of(&path, "esker.log")?;
        log_bytes = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<Result<u64>>()?;
        let mut read = 0.0f64;
        for threads in [1, 4] {
            let (rate, direct) = read_rate(&files, threads)?;
            (read, is_direct) = (read.max(rate), is_direct && direct);
        }
        let begun = Instant::now();
        let store: Store<u64, u64> = options(arguments).open(&path)?;
        let took = begun.elapsed().as_secs_f64();
        seconds.push(took);
        ratios.push(log_bytes as f64 / took / read);
        check(&store, arguments.pairs)?;
        drop(store);
        std::fs::remove_dir_all(&path)?;
        bar.inc(1);
    }
    let rates: Vec<f64> = seconds.iter().map(|seconds| arguments.pairs as f64 / seconds).collect();
    Ok(Row {
        experiment: "recovery",
        engine: "esker".to_owned(),
        operation: if images { "image and log" } else { "the log" }.to_owned(),
        distribution: "scattered",
        threads: 1,
        keys: arguments.pairs,
        value_bytes: 8,
        batch: 1,
        runs: arguments.runs,
        ops_per_second: Spread::of(&rates),
        memory_bytes: Some(arguments.memory),
        seconds: Some(Spread::of(&seconds)),
        log_bytes: Some(log_bytes),
        checksum_seconds: Some(integrity::checksum_seconds(log_bytes)),
        ratio_to_raw_read: Some(Spread::of(&ratios)),
        probe_is_direct: Some(is_direct),
        ..Row::default()
    })
}

/// A store that was not closed.
fn crashed_store(arguments: &Arguments, images: bool, path: &Path) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("recovery").args(["--pairs", &arguments.pairs.to_string(), "--memory", &arguments.memory.to_string()]);
    child.arg("--load").arg(path);
    if images {
        child.arg("--images");
    }
    ensure!(child.status().context("loading a store")?.success(), "the store could not be loaded");
    Ok(())
}

/// The files of a store whose names begin so.
fn files_of(store: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(store)?.map(|entry| Ok(entry?.path()));
    let paths = entries.collect::<Result<Vec<PathBuf>>>()?;
    Ok(paths.into_iter().filter(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))).collect())
}

/// Bytes per second of reading files from end to end with so many threads, and whether that goes past the page cache.
fn read_rate(paths: &[PathBuf], threads: usize) -> Result<(f64, bool)> {
    let (files, direct): (Vec<File>, Vec<bool>) = paths.iter().map(|path| probe::open(path)).collect::<Result<_>>()?;
    let pieces = files.iter().map(|file| Ok((0..file.metadata()?.len()).step_by(READ_BYTES).map(move |at| (file, at))));
    let pieces: Vec<(&File, u64)> = pieces.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    let bytes = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| read_pieces(&pieces, &next))).collect();
        readers.into_iter().map(|reader| reader.join().ok().context("a reader failed")?).sum::<Result<u64>>()
    })?;
    Ok((bytes as f64 / begun.elapsed().as_secs_f64(), direct.iter().all(|direct| *direct)))
}

fn read_pieces(pieces: &[(&File, u64)], next: &AtomicUsize) -> Result<u64> {
    let (mut piece, mut done) = (probe::aligned(READ_BYTES), 0);
    while let Some((file, at)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
        let count = (file.metadata()?.len() - at).min(READ_BYTES as u64) as usize;
        file.read_exact_at(&mut probe::bytes_of(&mut piece)[..count], *at)?;
        done += count as u64;
    }
    Ok(done)
}

fn check(store: &Store<u64, u64>, pairs: u64) -> Result<()> {
    for n in (0..pairs).step_by(SAMPLE) {
        ensure!(store.get(&keys::key(n))? == Some(n), "pair {n} is not what was committed");
    }
    Ok(())
}

fn print(rows: &[Row]) {
    let head = ["opening reads", "pairs", "log MiB", "seconds", "min", "max", "MiB/s", "to raw reading", "checksums"];
    let cells = |row: &Row| {
        let (seconds, log) = (row.seconds.unwrap_or_default(), row.log_bytes.unwrap_or(0) as f64 / f64::from(1 << 20));
        let ratio = row.ratio_to_raw_read.unwrap_or_default();
        vec![
            row.operation.clone(),
            row.keys.to_string(),
            format!("{log:.0}"),
            format!("{:.2}", seconds.median),
            format!("{:.2}", seconds.min),
            format!("{:.2}", seconds.max),
            format!("{:.0}", log / seconds.median),
            format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max),
            format!("{:.3} s", row.checksum_seconds.unwrap_or_default()),
        ]
    };
    report::print_table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    report::say!("MiB/s: of the whole log, read or not. To raw reading: the same against reading the log's files from end to end.");
    if rows.iter().any(|row| row.probe_is_direct == Some(false)) {
        report::say!("The file system does not read past its cache: raw reading may be the speed of memory.");
    }
    report::say!("Checksums: what one core takes to compute those of the whole log.");
}
