//! A store keeps to its budget, as the operating system counts.
//!
//! The theory: what the budget promises is resident memory, so it is measured as such
//! (`/proc/self/statm`), less what the process held before the store was opened. The data grow to a
//! multiple of the budget and the resident bytes may pass it by 5 % and 8 MiB (stacks, buffers,
//! allocator). There is one test in this binary, for another would be counted with it.
//! `ESKER_GROWTH` sets the multiple: 10 unless told.

#![cfg(target_os = "linux")]

use esker::{Cache, Error, Options, Store};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BUDGET: u64 = 32 << 20;
const SLACK: u64 = BUDGET / 20 + (8 << 20);
const THREADS: u64 = 24;

/// The resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn growth() -> u64 {
    std::env::var("ESKER_GROWTH").ok().and_then(|v| v.parse().ok()).unwrap_or(10)
}

/// Puts `count` keys, looking at the resident bytes now and then.
fn grow(name: &str, baseline: u64, count: u64, put: impl Fn(u64)) {
    let mut highest = 0;
    for id in 0..count {
        put(id);
        if id % 4096 == 0 {
            highest = highest.max(resident().saturating_sub(baseline));
            assert!(highest <= BUDGET + SLACK, "{name}: {highest} resident bytes after {id} puts of a budget of {BUDGET}");
        }
    }
    println!("{name}: at most {highest} resident bytes of a budget of {BUDGET}");
    assert!(highest > BUDGET / 4, "{name}: only {highest} bytes resident: is anything measured?");
}

fn pairs() {
    let baseline = resident();
    let store: Store<u64, u64> = Options::new().memory(BUDGET).open_temporary().unwrap();
    let count = growth() * BUDGET / 24;
    grow("pairs", baseline, count, |id| store.put(&id, &(id * 3)).unwrap());
    for id in (0..count).step_by(9973) {
        assert_eq!(store.get(&id).unwrap(), Some(id * 3));
    }
    store.close().unwrap();
}

fn records() {
    let baseline = resident();
    let store: Store<u64, [u8; 100]> = Options::new().memory(BUDGET).open_temporary().unwrap();
    let count = growth() * BUDGET / 116;
    grow("records", baseline, count, |id| store.put(&id, &[id as u8; 100]).unwrap());
    for id in (0..count).step_by(9973) {
        assert_eq!(store.get(&id).unwrap(), Some([id as u8; 100]));
    }
    store.close().unwrap();
}

/// What each of many threads needs to read from the device, and keeps.
fn threads() {
    let baseline = resident();
    let store: Store<u64, [u8; 100]> = Options::new().memory(BUDGET).open_temporary().unwrap();
    let count = 4 * BUDGET / 116;
    grow("for threads", baseline, count, |id| store.put(&id, &[id as u8; 100]).unwrap());
    let highest = AtomicU64::new(0);
    let read = |thread: u64| {
        for round in 0..40 {
            let keys: Vec<u64> = (0..256).map(|n| (thread * 1_000_003 + round * 7_919 + n * 104_729) % count).collect();
            let mut found = 0;
            store
                .get_many(&keys, |at, value| {
                    assert_eq!(value, Some([keys[at] as u8; 100]));
                    found += 1;
                })
                .unwrap();
            assert_eq!(found, keys.len());
            store.put(&keys[0], &[keys[0] as u8; 100]).unwrap();
            highest.fetch_max(resident().saturating_sub(baseline), Relaxed);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || read(thread)))));
    let highest = highest.into_inner();
    println!("{THREADS} threads: at most {highest} resident bytes of a budget of {BUDGET}");
    assert!(highest <= BUDGET + SLACK, "{highest} resident bytes of a budget of {BUDGET}, {THREADS} threads");
    store.close().unwrap();
}

/// A store that has nowhere else to go is full, and not larger; what is in it can be changed then.
fn in_memory() {
    let baseline = resident();
    let store: Store<u64, [u8; 100]> = Options::new().memory(BUDGET).in_memory().unwrap();
    let held = RefCell::new(Vec::new());
    grow("in memory", baseline, 2 * BUDGET / 116, |id| match store.put(&id, &[id as u8; 100]) {
        Ok(()) => held.borrow_mut().push(id),
        Err(Error::Full) => {}
        Err(error) => panic!("{error}"),
    });
    let held = held.into_inner();
    assert!((BUDGET / 2 / 116..BUDGET / 116).contains(&(held.len() as u64)), "{} records", held.len());
    for id in held {
        assert_eq!(store.get(&id).unwrap(), Some([id as u8; 100]), "{id}");
        store.put(&id, &[!id as u8; 100]).unwrap();
        assert_eq!(store.get(&id).unwrap(), Some([!id as u8; 100]), "{id}");
    }
    store.close().unwrap();
}

/// A cache drops what it has no room for, wherever it keeps it.
fn caches() {
    for disk in [None, Some(4 * BUDGET)] {
        let baseline = resident();
        let options = Options::new().memory(BUDGET);
        let store: Store<u64, [u8; 100]> = match disk {
            None => options.cache(Cache::new()).in_memory().unwrap(),
            Some(bytes) => options.cache(Cache::new().disk(bytes)).open_temporary().unwrap(),
        };
        let name = if disk.is_none() { "a cache" } else { "a cache on a disk" };
        // More than there is room for.
        grow(name, baseline, growth().max(8) * BUDGET / 116, |id| {
            store.put(&id, &[id as u8; 100]).unwrap();
            if id % 64 == 0 {
                assert!(store.get(&(id / 2)).unwrap().is_none_or(|value| value == [(id / 2) as u8; 100]));
            }
        });
        assert!(store.stats().cache.unwrap().evictions > 0);
        store.close().unwrap();
    }
}

#[test]
fn resident_memory_keeps_to_the_budget() {
    pairs();
    records();
    threads();
    in_memory();
    caches();
}
