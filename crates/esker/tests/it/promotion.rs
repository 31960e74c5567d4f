//! Cold records that are read again and again come back into memory, change nothing by it, and survive like any other.

use crate::raise::Raise;
use esker::{Options, Store};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

const KEYS: u64 = 600_000;

fn value(key: u64, round: u64) -> u64 {
    key << 20 | round
}

/// Twice what fits; in memory are the keys put last.
fn spilled(options: Options) -> Store<u64, u64> {
    let store: Store<u64, u64> = options.memory("16MiB").background(false).open_temporary().unwrap();
    let pairs: Vec<(u64, u64)> = (0..KEYS).map(|key| (key, value(key, 0))).collect();
    store.put_many(&pairs).unwrap();
    store
}

fn device_reads(store: &Store<u64, u64>, work: impl FnOnce()) -> u64 {
    let before = store.stats().operations.device_reads;
    work();
    store.stats().operations.device_reads - before
}

#[test]
fn what_is_read_again_and_again_is_read_from_the_device_twice() {
    let hot: Vec<u64> = (0..1000).map(|n| n * 7).collect();
    for is_batch in [false, true] {
        let store = spilled(Options::new());
        let read = || match is_batch {
            true => store.get_many(&hot, |i, found| assert_eq!(found, Some(value(hot[i], 0)))).unwrap(),
            false => hot.iter().for_each(|key| assert_eq!(store.get(key).unwrap(), Some(value(*key, 0)))),
        };
        let first = device_reads(&store, read);
        read();
        let third = device_reads(&store, read);
        let stats = store.stats();
        // But for some keys that meet in the table that remembers them.
        assert!(third < first / 4, "a batch: {is_batch}, {first} device reads, then {third}, {stats:?}");
        assert!(stats.operations.promotions > 800 && stats.space.dead_bytes >= 800 * 24, "{stats:?}");
        // A copy is a record like others: it changes, and it goes.
        store.put(&7, &1).unwrap();
        assert!(store.delete(&14).unwrap());
        assert_eq!((store.get(&7).unwrap(), store.get(&14).unwrap()), (Some(1), None));
        store.compact().unwrap();
        assert_eq!((store.get(&7).unwrap(), store.get(&14).unwrap(), store.get(&21).unwrap()), (Some(1), None, Some(value(21, 0))));
    }
}

#[test]
fn records_of_bytes_come_back_too() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    let value = |key: u64| vec![key as u8; (key % 9000) as usize];
    (0..10_000u64).for_each(|key| store.put(&key, &value(key)).unwrap());
    for key in [3u64, 500, 2_000, 5_000, 6_000] {
        (0..3).for_each(|_| assert_eq!(store.get(&key).unwrap().unwrap(), value(key)));
    }
    assert_eq!(store.stats().operations.promotions, 5);
    assert_eq!(store.append(&500, b"more").unwrap(), 504);
}

/// What had been appended to was never copied: of its room to grow only a part had been read.
#[test]
fn records_with_room_to_grow_come_back_too() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    for key in 0..4_000u64 {
        store.append(&key, &[1; 3000]).unwrap();
        store.append(&key, &[2; 3000]).unwrap();
    }
    let value = [[1; 3000], [2; 3000]].concat();
    let dead = store.stats().space.dead_bytes;
    for key in [3u64, 500, 700] {
        (0..3).for_each(|_| assert_eq!(store.get(&key).unwrap().unwrap(), value));
    }
    let stats = store.stats();
    assert_eq!(stats.operations.promotions, 3);
    // With their room.
    assert!(stats.space.dead_bytes >= dead + 3 * 6500, "{dead}, then {:?}", stats.space);
    assert_eq!(store.append(&500, b"more").unwrap(), 6004);
    assert_eq!(store.get(&500).unwrap().unwrap(), [&value[..], b"more"].concat());
}

#[test]
fn nothing_is_copied_without_reason() {
    let store = spilled(Options::new().promotion(false));
    (0..9).for_each(|_| assert_eq!(store.get(&5).unwrap(), Some(value(5, 0))));
    assert_eq!(store.stats().operations.promotions, 0);
    // Once through, twice over: each key is read again long after.
    let store = spilled(Options::new());
    let keys: Vec<u64> = (0..KEYS).collect();
    let tail = store.stats().log.tail;
    for _ in 0..2 {
        store.get_many(&keys, |_, found| assert!(found.is_some())).unwrap();
    }
    // What was read lately is known by 31 bits of a hash.
    let promotions = store.stats().operations.promotions;
    assert!(promotions < KEYS / 1000 && (promotions > 0 || store.stats().log.tail == tail), "{promotions} promotions");
}

/// Compaction once moved a cold record that had been deleted since it was found doubtful, if the deletion had gone cold as well.
#[test]
fn compaction_resurrects_nothing() {
    nobody_sees_what_is_gone(false);
}

/// Readers promote what writers change and delete and compaction moves.
#[test]
fn a_copy_resurrects_nothing() {
    nobody_sees_what_is_gone(true);
}

fn nobody_sees_what_is_gone(promotion: bool) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().promotion(promotion).memory("16MiB");
    let store: Store<u64, u64> = options.clone().open(folder.path()).unwrap();
    let pairs: Vec<(u64, u64)> = (0..KEYS).map(|key| (key, value(key, 1))).collect();
    store.put_many(&pairs).unwrap();
    const HOT: u64 = 2_000;
    // Of each key the round that is over, and the one that has begun.
    let [rounds, begun]: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| (0..HOT).map(|_| AtomicU64::new(1)).collect());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for reader in 0..3u64 {
            let (store, rounds, begun, stop) = (&store, &rounds, &begun, &stop);
            scope.spawn(move || {
                let mut key = reader;
                while !stop.load(Relaxed) {
                    key = (key * 31 + 7) % HOT;
                    // Even rounds are deletions.
                    let before = rounds[key as usize].load(Acquire);
                    match store.get(&key).unwrap() {
                        Some(found) => assert!(found & 0xf_ffff >= before && found >> 20 == key, "key {key}: {found:x}, before {before}"),
                        None => {
                            assert!(
                                before.is_multiple_of(2) || begun[key as usize].load(SeqCst) > before,
                                "key {key} is gone in round {before}"
                            )
                        }
                    }
                }
            });
        }
        for round in 2..8u64 {
            // Cold again.
            let others: Vec<(u64, u64)> = (HOT..KEYS).map(|key| (key, value(key, round))).collect();
            store.put_many(&others).unwrap();
            for key in (0..HOT).filter(|key| (key + round) % 3 == 0) {
                let next = rounds[key as usize].load(Relaxed) + 1;
                begun[key as usize].store(next, SeqCst);
                if next.is_multiple_of(2) {
                    assert!(store.delete(&key).unwrap())
                } else {
                    store.put(&key, &value(key, next)).unwrap()
                }
                rounds[key as usize].store(next, Release);
            }
            if round % 2 == 0 {
                store.commit().unwrap();
            }
        }
    });
    assert_eq!(store.stats().operations.promotions > 100, promotion, "{:?}", store.stats().operations);
    let check = |store: &Store<u64, u64>| {
        for key in 0..HOT {
            let round = rounds[key as usize].load(Relaxed);
            assert_eq!(store.get(&key).unwrap(), (round % 2 == 1).then_some(value(key, round)), "key {key}");
        }
    };
    check(&store);
    store.close().unwrap();
    check(&options.open(folder.path()).unwrap());
    assert!(esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
}
