//! Batches of cold keys, read in a sliding window: through io_uring and without, with visitors that panic or come back.

use esker::{Options, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

const KEYS: u64 = 12_000;

/// From nothing to three blocks, so that records lie in one block, across two and across many.
fn value(key: u64) -> Vec<u8> {
    vec![key as u8; (key * 37 % 12_000) as usize]
}

fn spilled(io_uring: bool) -> Store<u64, [u8]> {
    // Short files: streams go through many of them, and some records lie across two.
    let options = Options::new().memory("16MiB").io_uring(io_uring).segment_bytes(256 << 10);
    let store: Store<u64, [u8]> = options.open_temporary().unwrap();
    for key in 0..KEYS {
        store.put(&key, &value(key)).unwrap();
    }
    store
}

fn check(store: &Store<u64, [u8]>, keys: &[u64]) {
    let mut visits = vec![0; keys.len()];
    store
        .get_many(keys, |i, seen| {
            visits[i] += 1;
            let want = (keys[i] < KEYS).then(|| value(keys[i]));
            assert!(seen == want.as_deref(), "key {}", keys[i]);
        })
        .unwrap();
    assert!(visits.iter().all(|visits| *visits == 1));
}

#[test]
fn every_key_is_visited_once() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let before = store.stats().operations.device_reads;
        check(&store, &(0..KEYS + 500).rev().collect::<Vec<_>>());
        check(&store, &[7, 7, KEYS, 7]);
        assert!(store.stats().operations.device_reads > before + KEYS / 2, "most keys must have been cold");
    }
}

/// The kernel still writes into buffers of other reads when the visitor panics: they must outlive its completions.
#[test]
fn a_visitor_may_panic() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let keys: Vec<u64> = (0..2_000).collect();
        for most in [0, 1, 100, 300] {
            let mut visits = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                store.get_many(&keys, |_, _| {
                    visits += 1;
                    assert!(visits <= most, "as planned");
                })
            }));
            assert!(panicked.is_err());
            check(&store, &keys);
        }
    }
}

#[test]
fn a_visitor_may_read_a_batch_of_its_own() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let keys: Vec<u64> = (0..1_000).collect();
        let mut visits = 0;
        store
            .get_many(&keys, |i, seen| {
                visits += 1;
                assert_eq!(seen, Some(&*value(keys[i])));
                if i % 100 == 0 {
                    check(&store, &(i as u64 + 1_000..i as u64 + 1_200).collect::<Vec<_>>());
                    store.put(&(KEYS + i as u64), b"put meanwhile").unwrap();
                }
            })
            .unwrap();
        assert_eq!(visits, 1_000);
    }
}

/// Cold keys, some of them twice in a row, again much later, or not there at all.
fn scattered() -> Vec<u64> {
    let once = (0..(KEYS + 200) / 3).map(|third| third * 3);
    once.clone().flat_map(|key| std::iter::repeat_n(key, 1 + (key % 7 == 0) as usize)).chain(once.rev().step_by(2)).collect()
}

#[test]
fn changes_of_equal_keys_come_in_order() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let keys = scattered();
        let before = store.stats().operations.device_reads;
        store.rmw_many(&keys, |i, old| [old.unwrap_or(b"new"), &(i as u32).to_le_bytes()].concat()).unwrap();
        assert!(store.stats().operations.device_reads > before + KEYS / 6, "most keys must have been cold");
        for &key in &keys {
            let first = if key < KEYS { value(key) } else { b"new".to_vec() };
            let places = keys.iter().enumerate().filter(|(_, other)| **other == key).flat_map(|(i, _)| (i as u32).to_le_bytes());
            let want: Vec<u8> = first.into_iter().chain(places).collect();
            assert!(store.get(&key).unwrap().as_deref() == Some(&*want), "key {key}");
        }
        check(&store, &(1..KEYS).step_by(3).collect::<Vec<_>>());
    }
}

#[test]
fn appends_to_equal_keys_come_in_order() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let pairs: Vec<(u64, Vec<u8>)> =
            (0u32..).zip(scattered()).map(|(i, key)| (key, i.to_le_bytes()[..1 + i as usize % 4].to_vec())).collect();
        let before = store.stats().operations;
        store.append_many(&pairs).unwrap();
        let after = store.stats().operations;
        assert!(after.device_reads > before.device_reads + KEYS / 6, "most keys must have been cold");
        assert_eq!(after.appends, before.appends + pairs.len() as u64);
        for (key, _) in &pairs {
            let first = if *key < KEYS { value(*key) } else { Vec::new() };
            let pieces = pairs.iter().filter(|(other, _)| other == key).flat_map(|(_, piece)| piece);
            let want: Vec<u8> = first.into_iter().chain(pieces.copied()).collect();
            assert!(store.get(key).unwrap().as_deref() == Some(&*want), "key {key}");
        }
        check(&store, &(1..KEYS).step_by(3).collect::<Vec<_>>());
    }
}

/// A key that is too long stops a batch where it stands: what comes before it is done, wherever its group begins.
#[test]
fn what_comes_before_a_refused_key_is_done() {
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").in_memory().unwrap();
    let keys: Vec<Vec<u8>> = (0..100u8).map(|number| if number == 90 { vec![0; 65_537] } else { vec![number] }).collect();
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"v"[..])).collect();
    let seen = || keys[..90].iter().map(|key| store.get(&key[..]).unwrap()).collect::<Vec<_>>();
    let all = |value: Option<&[u8]>| vec![value.map(<[u8]>::to_vec); 90];
    let refused = |result: esker::Result<()>| matches!(result, Err(esker::Error::Invalid(_)));
    assert!(refused(store.put_many(&pairs)));
    assert_eq!(seen(), all(Some(b"v")));
    assert!(refused(store.append_many(&pairs)));
    assert_eq!(seen(), all(Some(b"vv")));
    assert!(refused(store.rmw_many(&keys, |_, old| [old.unwrap_or_default(), b"!"].concat())));
    assert_eq!(seen(), all(Some(b"vv!")));
    assert!(refused(store.delete_many(&keys).map(drop)));
    assert_eq!(seen(), all(None));
}

#[test]
fn changes_of_words_come_in_order() {
    const WORDS: u64 = 2_000_000;
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    for key in 0..WORDS {
        store.put(&key, &key).unwrap();
    }
    let keys: Vec<u64> = (0..10_000).chain((0..10_000).rev()).collect();
    let before = store.stats().operations.device_reads;
    // Twice by the first number and then the second: the order shows.
    store.rmw_many(&keys, |i, old| old.unwrap_or(0) * 3 + u64::from(i >= 10_000)).unwrap();
    assert!(store.stats().operations.device_reads > before + 5_000, "most keys must have been cold");
    for key in 0..10_000 {
        assert_eq!(store.get(&key).unwrap(), Some(key * 9 + 1));
    }
}

#[test]
fn a_cold_key_is_deleted_once() {
    for io_uring in [true, false] {
        let store = spilled(io_uring);
        let keys = scattered();
        let before = store.stats().operations.device_reads;
        assert_eq!(store.delete_many(&keys).unwrap() as u64, KEYS.div_ceil(3));
        assert!(store.stats().operations.device_reads > before + KEYS / 6, "most keys must have been cold");
        assert!(keys.iter().all(|key| !store.contains(key).unwrap()));
        assert_eq!(store.delete_many(&keys).unwrap(), 0);
        check(&store, &(1..KEYS).step_by(3).collect::<Vec<_>>());
    }
}

/// Each thread kept the handle of its ring until it ended: those of a thousand threads were all that a process has.
#[test]
fn few_of_many_threads_keep_a_ring() {
    const THREADS: usize = 200;
    let store = spilled(true);
    let (have_read, may_end) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let rings = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        files.filter(|file| file.to_string_lossy().contains("[io_uring]")).count()
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (store, have_read, may_end) = (&store, &have_read, &may_end);
            scope.spawn(move || {
                check(store, &(thread * 10..thread * 10 + 40).collect::<Vec<_>>());
                have_read.wait();
                may_end.wait();
            });
        }
        have_read.wait();
        let kept = rings();
        may_end.wait();
        // Other tests have some under way.
        assert!(kept <= 128 + 16, "{kept}");
    });
    // Who comes later keeps one again.
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            check(&store, &(0..40).collect::<Vec<_>>());
            rings()
        });
        assert!(reads.join().unwrap() <= 128);
    });
}
