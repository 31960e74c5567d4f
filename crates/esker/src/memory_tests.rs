//! Memory that was once held and not counted.

use crate::sync::atomic::Ordering::*;
use crate::windows::WINDOW_BYTES;
use crate::{Cache, MemoryStorage, Options, Store};
use std::sync::Arc;

fn store(memory: u64, keys: u64) -> Store<u64, u64> {
    let store: Store<u64, u64> = Options::new().memory(memory).background(false).open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..keys).for_each(|n| store.put(&n, &n).unwrap());
    store
}

/// The log's memory is backed some way ahead of its tail, in proportion to the budget. When the budget was lowered, what was there already
/// stayed, above it.
#[test]
fn what_is_backed_ahead_counts_when_the_budget_is_lowered() {
    let store = store(64 << 20, 1_000_000);
    let log = &store.engine_for_test().log;
    // As the driver leaves it with a large budget.
    log.bounds.populated.store(log.tail() + (8 << 20), Relaxed);
    store.set_memory(36 << 20).unwrap();
    let (backed, budget) = (log.bounds.populated.load(Relaxed).max(log.tail()), log.budget.load(Relaxed));
    let held = backed - log.bounds.evicted.load(Relaxed);
    assert!(held <= budget, "{held} bytes of log are backed, {budget} may be");
    assert_eq!(store.get(&0).unwrap(), Some(0));
}

/// The same of a cache in memory, which drops for it.
#[test]
fn what_is_backed_ahead_counts_when_the_budget_of_a_cache_is_lowered() {
    let options = Options::new().memory("64MiB").background(false).cache(Cache::new());
    let store: Store<u64, u64> = options.in_memory().unwrap();
    (0..1_000_000).for_each(|n| store.put(&n, &n).unwrap());
    let log = &store.engine_for_test().log;
    log.bounds.populated.store(log.tail() + (8 << 20), Relaxed);
    store.set_memory(44 << 20).unwrap();
    let held = log.bounds.populated.load(Relaxed) - log.bounds.evicted.load(Relaxed);
    let budget = log.budget.load(Relaxed);
    assert!(held <= budget, "{held} bytes of log are backed, {budget} may be");
    assert_eq!(store.get(&999_999).unwrap(), Some(999_999));
}

/// Compaction marked windows of cold records, whose marks had been given back when they went cold: four kilobytes for each 32 MiB of
/// log, which no budget counted and nobody gave back.
#[test]
fn compaction_marks_no_window_of_what_is_cold() {
    let store = store(16 << 20, 1_000_000);
    let log = &store.engine_for_test().log;
    let begin = log.bounds.begin.load(Relaxed);
    assert!(log.bounds.head.load(Relaxed) > begin + (8 << 20), "little is cold");
    store.compact().unwrap();
    // The head's own window may hold marks of what is in memory.
    let cold = begin..log.bounds.head.load(Relaxed) - WINDOW_BYTES;
    let marked: Vec<u64> = cold.step_by(WINDOW_BYTES as usize).filter(|at| log.windows.is_superseded(*at)).collect();
    assert_eq!(marked, []);
    (0..1_000_000).step_by(1013).for_each(|n| assert_eq!(store.get(&n).unwrap(), Some(n)));
}

/// A line wrote all that was new at once, with the log's boundaries locked: in a full store whoever sought room waited for hundreds of MiB.
#[test]
fn of_a_full_memory_little_is_left_for_the_line_to_write() {
    let unwritten = |memory| {
        let store = store(memory, 1_500_000);
        let engine = store.engine_for_test();
        let unwritten = || engine.log.tail() - engine.log.bounds.flushed_until.load(Relaxed);
        let before = unwritten();
        engine.flush_ahead().unwrap();
        assert_eq!(store.get(&0).unwrap(), Some(0));
        (before, unwritten(), engine.log.budget.load(Relaxed))
    };
    let (before, after, budget) = unwritten(64 << 20);
    assert!(before > budget / 2, "the log's memory is full of what was not written");
    assert!(after <= budget / 8, "{after} of {before} bytes are left");
    // Where there is room for all who write meanwhile, what can change in place goes on doing so.
    let (before, after, _) = unwritten(256 << 20);
    assert_eq!(after, before);
}

/// Memory was given back up to where the device had everything: a long record in the midst of that began on the device and ended where
/// nothing had been written yet, and could not be read. So could a part of a window that a scan reads.
#[test]
fn what_begins_on_the_device_is_there_to_its_end() {
    let store: Store<u64, [u8]> = Options::new().memory(16 << 20).background(false).open_in(Arc::new(MemoryStorage::new())).unwrap();
    let bounds = &store.engine_for_test().log.bounds;
    for n in 0..60 {
        store.put(&n, &vec![n as u8; (2 << 20) + 100 * n as usize]).unwrap();
        if n % 3 == 0 {
            // Freezes everything and writes nothing.
            let mut count = 0;
            store.scan().by_log().for_each(|_, _| count += 1).unwrap();
            assert_eq!(count, n + 1);
        }
        let (head, flushed) = (bounds.head.load(Relaxed), bounds.flushed_until.load(Relaxed));
        assert!(head + (2 << 20) <= flushed || flushed < (3 << 20), "the device has all to {flushed}, memory what begins at {head}");
        for key in n.saturating_sub(8)..=n {
            assert!(store.get(&key).unwrap().is_some_and(|value| value.iter().all(|byte| *byte == key as u8)));
        }
    }
}

/// One long value, once, made each later making of room leave as much above the log's head; after a lowered budget, all there was.
#[test]
fn a_long_value_is_forgotten_when_it_is_gone() {
    let options = Options::new().memory(64 << 20).background(false).promotion(false);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let log = &store.engine_for_test().log;
    let usual = log.overlap_bytes();
    store.put(&0, &vec![1; 16 << 20]).unwrap();
    assert!(log.overlap_bytes() >= 16 << 20);
    let mut next = 1..;
    let mut put = |bytes: usize| {
        for n in next.by_ref().take(bytes >> 10) {
            store.put(&n, &[2; 1000]).unwrap();
            let at_least = if log.bounds.evicted.load(Relaxed) < 16 << 20 { 16 << 20 } else { 0 };
            assert!(log.overlap_bytes() >= at_least);
        }
    };
    put(150 << 20);
    assert_eq!(log.overlap_bytes(), usual);
    store.set_memory(16 << 20).unwrap();
    put(20 << 20);
    assert_eq!(store.get(&0).unwrap().unwrap(), vec![1; 16 << 20]);
}
