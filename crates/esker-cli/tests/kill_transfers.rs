//! Transactions, killed at any moment: each is there whole or not at all, and none that returned as durable is lost.
//!
//! This program runs itself: the child's threads transfer between accounts, each transfer one transaction that also counts the transfers
//! of its thread; what is durable they tell through a pipe. The child is killed with SIGKILL: among its transfers, while it recovers, while
//! it compacts. What is left must have the sum that was there at first, and of each thread no fewer transfers than it told of. What is
//! looked into is a copy: the store itself stays as the kill left it, and the next child goes on with it.
//!
//! `ESKER_KILLS` says how often (20), `ESKER_SEED` replays the choices of a run (not its moments).

#![cfg(unix)]
#![allow(missing_docs)]

mod common;

use common::{Place, Random, copy, seed_and_kills};
use esker::{Durability, Error, Options, Store, Transaction};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const ACCOUNTS: u64 = 40;
const START: u64 = 100;
const THREADS: u64 = 4;
/// How many transfers a thread of the child has made: its key.
const COUNTS: u64 = 1_000;
/// One in so many kills ends a store's life.
const LIFE: u64 = 10;
/// Where the child finds its directory, level and seed.
const DIRECTORY: &str = "ESKER_TRANSFERS_IN";
const LEVEL: &str = "ESKER_TRANSFERS_DURABILITY";
const SEED: &str = "ESKER_TRANSFERS_SEED";

type Bank = Store<u64, [u8]>;
type Counts = [u64; THREADS as usize];

fn open(directory: &Path, durability: Durability) -> Bank {
    Options::new().memory("16MiB").segment_bytes(1 << 20).durability(durability).open(directory).unwrap()
}

/// A number in as many bytes as the amount is high: values outgrow their records, and fit into them again.
fn value_of(number: u64) -> Vec<u8> {
    format!("{number:0>width$}", width = 8 + number as usize % 90).into_bytes()
}

fn number_of(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

fn read(tx: &mut Transaction<'_, u64, [u8]>, key: u64) -> Result<u64, Error> {
    Ok(tx.get_with(&key, number_of)?.unwrap_or(0))
}

// ---- the child ---------------------------------------------------------------------------------------------------------

#[test]
#[ignore = "the child of the other test"]
fn transfers_until_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let is_always = std::env::var(LEVEL).unwrap() == "always";
    let durability = if is_always { Durability::Always } else { Durability::Every(Duration::from_millis(5)) };
    let bank = open(Path::new(&directory), durability);
    if !bank.contains(&0).unwrap() {
        bank.transaction(|tx| (0..ACCOUNTS).try_for_each(|account| tx.put(&account, &value_of(START)))).unwrap();
    }
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let bank = &bank;
            scope.spawn(move || transfer_for_ever(bank, number, is_always, &mut Random(seed * THREADS + number)));
        }
    });
}

/// Tells which of its transfers are durable: each one, or those before a commit.
fn transfer_for_ever(bank: &Bank, thread: u64, is_always: bool, random: &mut Random) {
    loop {
        let (from, to, amount) = (random.below(ACCOUNTS), random.below(ACCOUNTS), random.below(30));
        let done = bank.transaction(|tx| {
            let held = read(tx, from)?;
            if held >= amount && from != to {
                let other = read(tx, to)?;
                // Nothing is an account that does not exist.
                if held == amount {
                    tx.delete(&from).map(|_| ())?
                } else {
                    tx.put(&from, &value_of(held - amount))?
                }
                tx.put(&to, &value_of(other + amount))?;
            }
            let count = read(tx, COUNTS + thread)? + 1;
            tx.put(&(COUNTS + thread), &value_of(count)).map(|()| count)
        });
        match done {
            Ok(count) if is_always => println!("done {thread} {count}"),
            Ok(count) if random.below(50) == 0 => {
                bank.commit().unwrap();
                println!("done {thread} {count}");
            }
            Ok(_) | Err(Error::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

// ---- who kills it ------------------------------------------------------------------------------------------------------

#[test]
fn transactions_outlive_kill_9_whole() {
    let (seed, kills) = seed_and_kills();
    let mut random = Random(seed);
    let (mut place, mut counts, mut told_in_all) = (Place::new(), [0; THREADS as usize], 0);
    for kill in 0..kills {
        if random.below(LIFE) == 0 {
            (place, counts) = (Place::new(), [0; THREADS as usize]);
        }
        let level = ["always", "every"][random.below(2) as usize];
        let moment = Duration::from_micros(random.below(200_000));
        // However slow the machine is, some are killed among their transfers.
        let from_first = kill == 0 || random.below(2) == 0;
        let name = format!("kill {kill} of seed {seed}, {level}, after {moment:?}");
        let told = run_and_kill(&place, level, seed + kill, (from_first, moment), &name);
        told_in_all += told.iter().zip(counts).map(|(told, before)| told.saturating_sub(before)).sum::<u64>();
        let least: Vec<u64> = told.iter().zip(counts).map(|(told, before)| before.max(*told)).collect();
        if place.path("store/esker.manifest").exists() {
            counts = look_into(&place, &name);
        }
        assert!(least.iter().zip(counts).all(|(least, count)| *least <= count), "{name}: {least:?} were durable, {counts:?} are there");
    }
    println!("{told_in_all} transfers told of and found again");
    assert!(told_in_all > 0, "nothing was ever told: the test saw nothing");
}

/// What the child's threads told before it was killed, so long after its start or its first durable transfer.
fn run_and_kill(place: &Place, level: &str, seed: u64, (from_first, moment): (bool, Duration), name: &str) -> Counts {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transfers_until_killed", "--ignored", "--nocapture"])
        .env(DIRECTORY, place.path("store"))
        .env(LEVEL, level)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = child.stdout.take().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let reader = thread::spawn(move || last_counts(lines, &begun));
    if from_first {
        // An error: the child has ended by itself, and says why.
        let _ = has_begun.recv();
    }
    thread::sleep(moment);
    child.kill().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.stderr.is_empty(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
    reader.join().unwrap()
}

/// The last number of each thread on a whole line. Says when there is one.
fn last_counts(lines: ChildStdout, begun: &mpsc::Sender<()>) -> Counts {
    let (mut counts, mut lines, mut line) = ([0; THREADS as usize], BufReader::new(lines), String::new());
    while lines.read_line(&mut line).unwrap() > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let (["done", thread, count], true) = (&words[..], line.ends_with('\n')) {
            counts[thread.parse::<usize>().unwrap()] = count.parse().unwrap();
            // Nobody may be waiting.
            let _ = begun.send(());
        }
        line.clear();
    }
    counts
}

/// Checks what the kill left; the transfers of each thread.
fn look_into(place: &Place, name: &str) -> Counts {
    let run = place.run("verify store");
    // Killed before the store was made whole.
    if run.stderr.contains("there is no store") {
        return [0; THREADS as usize];
    }
    assert_eq!(run.code, 0, "{name}: {run:?}");
    copy(&place.path("store"), &place.path("copy"));
    let bank = open(&place.path("copy"), Durability::None);
    let (sum, counts) = bank
        .read_transaction(|tx| {
            let number = |key: u64| tx.get_with(&key, number_of).map(Option::unwrap_or_default);
            let sum = (0..ACCOUNTS).map(number).sum::<Result<u64, Error>>()?;
            let counts = (0..THREADS).map(|thread| number(COUNTS + thread)).collect::<Result<Vec<u64>, Error>>()?;
            Ok((sum, counts))
        })
        .unwrap();
    let is_empty = sum == 0 && counts.iter().all(|count| *count == 0);
    assert!(sum == ACCOUNTS * START || is_empty, "{name}: the sum is {sum} after {counts:?} transfers");
    bank.close().unwrap();
    fs::remove_dir_all(place.path("copy")).unwrap();
    counts.try_into().unwrap()
}
