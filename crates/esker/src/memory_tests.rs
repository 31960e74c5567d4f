//! Memory that was once held and not counted.

use crate::sync::atomic::Ordering::*;
use crate::windows::WINDOW_BYTES;
use crate::{MemoryStorage, Options, Store};
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
