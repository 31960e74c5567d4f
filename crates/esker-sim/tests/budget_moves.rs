//! The budget goes down and up again while eight threads work, and the operating system sees it.
//!
//! The theory: what the budget promises is resident memory (`budget.rs` says how it is counted), within 5 % and 8 MiB, from the
//! moment at which `set_memory` returns, whatever other threads do meanwhile. Each thread has keys of its own, so it knows what each of
//! them holds, at every moment. There is one test in this binary, for another would be counted with it.
//! `ESKER_BUDGET_MIB` sets the larger budget, 128 unless told; 1024 goes down to 128, within 5 % alone, and takes a minute.

#![cfg(target_os = "linux")]

#[path = "../../esker/tests/common/raise.rs"]
mod raise;

use esker::{Options, Store};
use raise::Raise;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const SMALL_MIN: u64 = 32 << 20;
const THREADS: u64 = 8;
/// For flushing and evicting three quarters of the memory on a busy machine.
const SECONDS_MAX: u64 = 20;

type Value = [u8; 1000];

fn large() -> u64 {
    std::env::var("ESKER_BUDGET_MIB").ok().and_then(|v| v.parse().ok()).unwrap_or(128) << 20
}

fn small() -> u64 {
    (large() / 8).max(SMALL_MIN)
}

/// What is promised beyond the 5 %; a large budget does without.
fn slack() -> u64 {
    if large() < 1 << 30 { 8 << 20 } else { 0 }
}

/// A thread's keys: some kilobyte each, more than the large budget in all.
fn keys_each() -> u64 {
    large() / 1000 / THREADS
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn value(key: u64, round: u64) -> Value {
    let mut value = [round as u8; 1000];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

/// Puts and gets of the thread's own keys, one after the other in a scattered order, until told to stop.
fn work(store: &Store<u64, Value>, first: u64, rounds: &mut [u64], stop: &AtomicBool, done: &AtomicU64) {
    let mut at = 0;
    while !stop.load(Relaxed) {
        at = (at + 77_773) % rounds.len() as u64;
        let (key, round) = (first + at, &mut rounds[at as usize]);
        assert_eq!(store.get(&key).unwrap(), Some(value(key, *round)), "key {key}");
        *round += 1;
        store.put(&key, &value(key, *round)).unwrap();
        done.fetch_add(1, Relaxed);
    }
}

/// What was seen of a budget in the second after it was set.
struct Seen {
    budget: u64,
    took: Duration,
    highest: u64,
    operations: u64,
}

fn watch(store: &Store<u64, Value>, budget: u64, baseline: u64, done: &AtomicU64) -> Seen {
    let begun = Instant::now();
    store.set_memory(budget).unwrap();
    let (took, before, mut highest) = (begun.elapsed(), done.load(Relaxed), 0);
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(25));
        highest = highest.max(resident().saturating_sub(baseline));
    }
    Seen { budget, took, highest, operations: done.load(Relaxed) - before }
}

#[test]
fn a_budget_that_moves_is_kept_and_loses_nothing() {
    // Ours, so before the baseline.
    let (large, small, keys_each) = (large(), small(), keys_each());
    let mut rounds = vec![1; (THREADS * keys_each) as usize];
    let baseline = resident();
    let store: Store<u64, Value> = Options::new().memory(large).open_temporary().unwrap();
    for key in 0..THREADS * keys_each {
        store.put(&key, &value(key, 1)).unwrap();
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let (store, stop, done) = (&store, &stop, &done);
        let _over = Raise(stop);
        for (first, rounds) in (0..).step_by(keys_each as usize).zip(rounds.chunks_mut(keys_each as usize)) {
            scope.spawn(move || work(store, first, rounds, stop, done));
        }
        let budgets = [small, large, small + (5 << 20) + 12_345, large];
        budgets.map(|budget| watch(store, budget, baseline, done)).into()
    });
    for Seen { budget, took, highest, operations } in seen {
        println!("budget {budget} after {took:?}: at most {highest} resident, {operations} operations");
        assert!(highest <= budget + budget / 20 + slack(), "{highest} resident bytes of a budget of {budget}");
        assert!(took < Duration::from_secs(SECONDS_MAX) && operations > 0, "{took:?} until {budget}, then {operations} operations");
    }
    let keys: Vec<u64> = (0..THREADS * keys_each).collect();
    store.get_many(&keys, |i, found| assert_eq!(found, Some(value(keys[i], rounds[i])), "key {i}")).unwrap();
}
