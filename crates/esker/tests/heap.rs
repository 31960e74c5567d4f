//! What a scan takes beside the budget, counted by the allocator.

use esker::rehearse::Crowding;
use esker::{MemoryDevice, Options, Store};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that was there at once during the work, above what there was before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = NOW.load(SeqCst);
    PEAK.store(before, SeqCst);
    work();
    PEAK.load(SeqCst) - before
}

/// One test: what another one takes at the same time would count as well.
#[test]
fn scans_take_little_beside_the_budget() {
    let options = || Options::new().memory("16MiB").background(false);
    // Keys were kept until all chains of a round were at their end, and these are long and put twice unseen.
    let store: Store<[u8], u64> = options().open_on(Arc::new(MemoryDevice::new())).unwrap();
    let key = |n: u64| n.to_le_bytes().repeat(1024);
    (0..2).for_each(|round| (0..16_000).for_each(|n| store.put(&key(n), &round).unwrap()));
    for by_index in [false, true] {
        let mut count = 0;
        let scan = if by_index { store.scan().by_index() } else { store.scan().by_log() };
        let peak = peak_of(|| {
            let visit = |_: &[u8], value| {
                assert_eq!(value, 1);
                count += 1;
            };
            scan.for_each(visit).unwrap();
        });
        assert_eq!(count, 16_000);
        assert!(peak < 18 << 20, "{peak}, by index: {by_index}");
    }
    drop(store);
    // What had been met of each chain was kept for as many chains as ever, however many keys they have.
    let crowding = Crowding { hash_seed: [5, 7], index_bytes: 256 << 10 };
    let store: Store<u64, u64> = options().promotion(false).crowding(crowding).open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..2_000_000).for_each(|n| store.put(&n, &n).unwrap());
    let mut count = 0;
    let peak = peak_of(|| store.scan().by_index().for_each(|_, _| count += 1).unwrap());
    assert_eq!(count, 2_000_000);
    assert!(peak < 18 << 20, "{peak}");
    drop(store);
    // An iterator held the pairs of sixteen buckets.
    let store: Store<u64, [u8]> = options().open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..300).for_each(|n| store.put(&n, &vec![n as u8; 1 << 20]).unwrap());
    let mut count = 0;
    let peak = peak_of(|| {
        for pair in store.scan().iter().unwrap() {
            let (key, value) = pair.unwrap();
            assert!(value.iter().all(|byte| *byte == key as u8));
            count += 1;
        }
    });
    assert_eq!(count, 300);
    assert!(peak < 40 << 20, "{peak}");
}
