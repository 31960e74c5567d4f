//! The program, killed at any moment, has kept all that it said it had.
//!
//! `esker load --acknowledge` is fed rows through a pipe, tells which of them are durable, and is killed with SIGKILL: while
//! it loads, while it recovers from the kill before, while it closes. The rows go over few keys again and again and each
//! says its number, so that what is left tells how many rows it holds. That must be a number of rows (an exact prefix:
//! each key as its last row before left it), no less than was acknowledged and no more than was sent, and `esker verify`
//! must find the files sound. What is looked into is a copy: the store itself stays as the kill left it.
//!
//! `ESKER_KILLS` says how often (20), `ESKER_SEED` replays the choices of a run (not its moments).

#![cfg(unix)]
#![allow(missing_docs)]

mod common;

use common::{Place, Random, copy, seed_and_kills};
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::ops::Range;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What the rows of a life are like.
#[derive(Clone, Copy, Debug)]
struct Rows {
    keys: u64,
    least_width: usize,
    /// A load is killed within so much time, in microseconds.
    within: u64,
}

const SHORT: Rows = Rows { keys: 997, least_width: 8, within: 160_000 };
/// More than fits the memory: they are written out, let go of and read again, and the log has many files.
const WIDE: Rows = Rows { keys: 20_011, least_width: 2_000, within: 800_000 };
const DURABILITIES: [&str; 4] = ["always", "always", "0.005", "0.02"];
/// One in so many kills ends a store's life: its log is copied each time, and must not grow for ever.
const LIFE: u64 = 8;

#[test]
fn what_was_acknowledged_outlives_kill_9() {
    let (seed, kills) = seed_and_kills();
    let acknowledged = kill_again_and_again(seed, kills);
    println!("{acknowledged} rows acknowledged and found again");
    assert!(acknowledged > 0, "nothing was ever acknowledged: the test saw nothing");
}

/// So many kills; the number of rows that were acknowledged in all.
fn kill_again_and_again(seed: u64, kills: u64) -> u64 {
    let mut random = Random(seed);
    let (mut place, mut rows, mut acknowledged, mut kind) = (Place::new(), 0, 0, SHORT);
    for kill in 0..kills {
        if random.below(LIFE) == 0 {
            kind = if random.below(3) == 0 { WIDE } else { SHORT };
            (place, rows) = (Place::new(), 0);
        }
        let durability = DURABILITIES[random.below(DURABILITIES.len() as u64) as usize];
        let moment = Duration::from_micros(random.below(kind.within));
        // However slow the machine is, some are killed among their rows.
        let from_first = kill == 0 || random.below(2) == 0;
        // One load in three comes to its end, and is killed while it closes, or too late.
        let sent = match random.below(3) {
            0 => random.below(if durability == "always" { 200 } else { 20_000 }),
            _ => u64::MAX - rows,
        };
        let told = load_and_kill(&place, kind, durability, rows..rows + sent, (from_first, moment));
        let (least, name) = (rows + told, format!("kill {kill} of seed {seed}, {kind:?}, {durability}, after {moment:?}"));
        if place.path("store/esker.manifest").exists() {
            rows = look_into(&place, kind, rows, &name);
        }
        assert!(rows >= least, "{name}: {least} rows were acknowledged, {rows} are there");
        acknowledged += told;
    }
    acknowledged
}

/// Feeds rows to a load, kills it so long after its start or its first acknowledgement, and says how many of them it acknowledged.
fn load_and_kill(place: &Place, kind: Rows, durability: &str, sent: Range<u64>, (from_first, moment): (bool, Duration)) -> u64 {
    let mut load = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args("load store - --format csv --key key --value row --memory 16MiB --acknowledge --durability".split(' '))
        .arg(durability)
        .current_dir(place.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (rows, numbers) = (load.stdin.take().unwrap(), load.stdout.take().unwrap());
    let feeder = thread::spawn(move || feed(rows, kind, sent));
    let (begun, has_begun) = mpsc::channel();
    let reader = thread::spawn(move || last_number(numbers, &begun));
    if from_first {
        // An error: the load has ended by itself.
        let _ = has_begun.recv();
    }
    thread::sleep(moment);
    load.kill().unwrap();
    let ended = load.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    reader.join().unwrap()
}

/// Rows, until nobody reads them.
fn feed(rows: ChildStdin, Rows { keys, least_width, .. }: Rows, numbers: Range<u64>) {
    let mut rows = BufWriter::with_capacity(1 << 10, rows);
    let mut sent = rows.write_all(b"key,row\n");
    for row in numbers {
        if sent.is_err() {
            break;
        }
        // A value now and then outgrows its record, so that there are new records, too, and not only changes in place.
        let width = least_width + (row / keys) as usize % 64;
        sent = writeln!(rows, "{},{row:0>width$}", row % keys);
    }
}

/// The last number on a whole line: what was printed before the kill was durable before it. Says when there is one.
fn last_number(numbers: ChildStdout, begun: &mpsc::Sender<()>) -> u64 {
    let mut last = 0;
    let mut lines = BufReader::new(numbers);
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n') {
            // The last line of a load that came to its end is a report.
            last = line.trim().parse().unwrap_or(last);
            // Nobody may be waiting.
            let _ = begun.send(());
        }
        line.clear();
    }
    last
}

/// Checks what the kill left, and says how many rows it holds: at least `before`.
fn look_into(place: &Place, Rows { keys, .. }: Rows, before: u64, name: &str) -> u64 {
    let run = place.run("verify store");
    // Killed before the store was made whole: then there is none, and nothing was acknowledged.
    if before == 0 && run.stderr.contains("there is no store") {
        return 0;
    }
    assert_eq!(run.code, 0, "{name}: {run:?}");
    copy(&place.path("store"), &place.path("copy"));
    let store: esker::Store<[u8], [u8]> = esker::Options::new().memory("16MiB").open(place.path("copy")).unwrap();
    let last_row = |key: u64| {
        let value = store.get(key.to_string().as_bytes()).unwrap()?;
        Some(String::from_utf8(value).unwrap().parse::<u64>().unwrap())
    };
    let seen: Vec<Option<u64>> = (0..keys).map(last_row).collect();
    let rows = seen.iter().flatten().max().map_or(0, |row| row + 1);
    for (key, seen) in (0..keys).zip(&seen) {
        let last = (rows + keys - 1 - key) / keys;
        let want = last.checked_sub(1).map(|turn| turn * keys + key);
        assert_eq!(*seen, want, "{name}: key {key} with {rows} rows");
    }
    store.close().unwrap();
    fs::remove_dir_all(place.path("copy")).unwrap();
    rows
}
