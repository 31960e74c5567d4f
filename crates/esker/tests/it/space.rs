//! Space comes back: on disk, in memory, and with it everything that lives.

use crate::raise::Raise;
use esker::aggregate::Count;
use esker::{Error, MemoryDevice, MemoryStorage, Options, SECTOR_BYTES, SpaceStats, Storage, Store, Ttl, Value, Warning};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// What the files of a directory have, in bytes: what `ls` shows and `du` too, for no file has holes.
fn disk_bytes(directory: &Path) -> u64 {
    std::fs::read_dir(directory).unwrap().filter_map(|entry| Some(entry.unwrap().metadata().ok()?.len())).sum()
}

fn segments(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("esker.log.")).count()
}

#[test]
fn overwriting_ten_times_keeps_the_disk_within_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").open(folder.path()).unwrap();
    let keys = 400_000u64;
    for round in 0..10 {
        let pairs: Vec<(u64, u64)> = (0..keys).map(|n| (n, n + round)).collect();
        store.put_many(&pairs).unwrap();
    }
    store.compact().unwrap();
    let live = keys * 24;
    let disk = disk_bytes(folder.path());
    assert!(disk < live * 2 + (4 << 20), "{disk} bytes on disk for {live} that live");
    for n in (0..keys).step_by(7) {
        assert_eq!(store.get(&n).unwrap(), Some(n + 9));
    }
    store.close().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").open(folder.path()).unwrap();
    for n in (0..keys).step_by(11) {
        assert_eq!(store.get(&n).unwrap(), Some(n + 9));
    }
}

/// The log's files go as soon as a line allows it; what a crash brought back goes at the next opening.
#[test]
fn the_directory_shrinks_file_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().memory("16MiB").background(false).segment_bytes(256 << 10);
    let store: Store<u64, [u8]> = options.clone().open(folder.path()).unwrap();
    for n in 0..20_000u64 {
        store.put(&(n % 100), &[n as u8; 1000]).unwrap();
        if n % 1000 == 0 {
            store.commit().unwrap();
        }
    }
    store.commit().unwrap();
    let before = segments(folder.path());
    store.compact().unwrap();
    let after = segments(folder.path());
    assert!(after < 8 && before > 2 * after, "{before} files, then {after}");
    store.close().unwrap();
    let gone = folder.path().join("esker.log.00000000");
    assert!(!gone.exists());
    std::fs::write(&gone, b"what a power cut brought back").unwrap();
    let store: Store<u64, [u8]> = options.open(folder.path()).unwrap();
    assert!(!gone.exists());
    for n in 0..100u64 {
        assert_eq!(store.get(&n).unwrap().unwrap(), [(19_900 + n) as u8; 1000]);
    }
}

#[test]
fn the_background_alone_keeps_up() {
    let folder = tempfile::tempdir().unwrap();
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").open(folder.path()).unwrap();
    let value = [7u8; 1000];
    for round in 0..12u32 {
        for n in 0..20_000u32 {
            store.put(&n.to_le_bytes()[..], &[&round.to_le_bytes()[..], &value].concat()).unwrap();
        }
    }
    let live = 20_000 * 1040u64;
    // The driver works beside us; give it the time to end what is due.
    for _ in 0..6000 {
        if disk_bytes(folder.path()) < live * 5 / 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let disk = disk_bytes(folder.path());
    assert!(disk < live * 5 / 2 + (8 << 20), "{disk} bytes on disk for {live} that live");
    for n in 0..20_000u32 {
        let found = store.get(&n.to_le_bytes()[..]).unwrap().unwrap();
        assert_eq!((found.len(), &found[..4]), (1004, &11u32.to_le_bytes()[..]));
    }
}

/// A page holds space for one call: who needs room waits for its end, though it takes its time.
#[test]
fn a_full_store_takes_puts_beside_a_slow_page() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let keys = (0..).take_while(|key| store.put(key, &[7; 1000]).is_ok()).count() as u64;
    (0..keys).step_by(2).for_each(|key| assert!(store.delete(&key).unwrap()));
    let (is_slow, begun) = (std::sync::atomic::AtomicBool::new(true), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let slowly = |_: u64, _: &[u8]| {
                if is_slow.swap(false, Relaxed) {
                    begun.wait();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                true
            };
            store.scan().filter(slowly).page(esker::Cursor::START, 1).unwrap();
        });
        begun.wait();
        (keys..keys + keys / 4).for_each(|key| store.put(&key, &[8; 1000]).unwrap_or_else(|error| panic!("{key}: {error}")));
    });
}

#[test]
fn deletions_do_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().memory("16MiB").background(false);
    let store: Store<u64, [u8]> = options.clone().open(folder.path()).unwrap();
    for n in 0..60_000u64 {
        store.put(&n, format!("first value of {n}").as_bytes()).unwrap();
    }
    store.commit().unwrap();
    for n in (0..60_000u64).filter(|n| n % 3 != 0) {
        assert!(store.delete(&n).unwrap());
    }
    store.commit().unwrap();
    let freed = store.compact().unwrap();
    assert!(freed > 60_000 * 30, "{freed}");
    let check = |store: &Store<u64, [u8]>| {
        for n in 0..60_000u64 {
            let want = (n % 3 == 0).then(|| format!("first value of {n}").into_bytes());
            assert_eq!(store.get(&n).unwrap(), want, "key {n}");
        }
    };
    check(&store);
    store.compact().unwrap();
    check(&store);
    store.close().unwrap();
    check(&options.open(folder.path()).unwrap());
    let found = esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn memory_comes_back_too() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    // Far more insertions and deletions than fit at once, at a constant size.
    for n in 0..4_000_000u64 {
        store.put(&n, &n).unwrap();
        if n >= 100_000 {
            assert!(store.delete(&(n - 100_000)).unwrap());
        }
    }
    for n in 3_900_000..4_000_000 {
        assert_eq!(store.get(&n).unwrap(), Some(n));
    }
    assert_eq!(store.get(&1).unwrap(), None);
    assert!(store.stats().memory.total_bytes <= 16 << 20);
    // What lives does not go away, however full it is.
    let mut n = 10_000_000u64;
    let refused = loop {
        match store.put(&n, &n) {
            Ok(()) => n += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full), "{refused}");
    // All of the log's share holds what lives, whatever the index grew to while deletions waited for compaction.
    let memory = store.stats().memory;
    let (share, living) = (memory.budget_bytes - memory.index_bytes - memory.fixed_bytes, 24 * (100_000 + n - 10_000_000));
    assert!(living * 10 > share * 7, "{living} of {share}: {memory:?}");
    for n in 10_000_000..n {
        assert_eq!(store.get(&n).unwrap(), Some(n));
    }
}

/// Records of bytes that were deleted while they were cold once counted as dead only as long as their deletions are.
#[test]
fn what_deletions_leave_is_counted() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    (0..100_000u64).for_each(|key| store.put(&key, &[key as u8; 200]).unwrap());
    let before = store.stats().space;
    (0..30_000u64).for_each(|key| assert!(store.delete(&key).unwrap()));
    let after = store.stats().space;
    // Header, key, value; and as much again without the value for the deletion.
    let dead = 30_000 * (232 + 32);
    assert!(after.dead_bytes - before.dead_bytes >= dead, "{before:?}, {after:?}");
    assert!(after.dead_bytes - before.dead_bytes < dead + dead / 10, "{before:?}, {after:?}");
    store.compact().unwrap();
    let compacted = store.stats().space;
    assert!(compacted.dead_bytes < dead / 100 && compacted.given_back_bytes > dead, "{compacted:?}");
}

/// At 85 % of the log's share live, overwriting, growing and deleting go on for ever, and no call waits for more than some milliseconds'
/// work.
#[test]
fn memory_nearly_full_of_what_lives_goes_on() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").in_memory().unwrap();
    let value = |key: u64, round: u64| vec![(key + round) as u8; 100 + (key * 7 + round * 31) as usize % 100];
    // Values of 100 to 199 bytes in rooms of whole words.
    let mut keys = 0u64;
    let share = |store: &Store<u64, [u8]>| {
        let memory = store.stats().memory;
        memory.budget_bytes - memory.index_bytes - memory.fixed_bytes
    };
    while keys * 184 < share(&store) / 100 * 85 {
        store.put(&keys, &value(keys, 0)).unwrap();
        keys += 1;
    }
    let mut most = 0;
    for round in 1..8 {
        for key in 0..keys {
            let before = (key % 16 == 0).then(|| store.stats().space.stretches);
            if (key + round).is_multiple_of(9) {
                store.delete(&key).unwrap();
            } else {
                store.put(&key, &value(key, round)).unwrap_or_else(|error| panic!("{error}, {:?}", store.stats()));
            }
            most = most.max(before.map_or(0, |before| store.stats().space.stretches - before));
        }
        for key in (0..keys).step_by(7) {
            assert_eq!(store.get(&key).unwrap(), (!(key + round).is_multiple_of(9)).then(|| value(key, round)), "key {key}, round {round}");
        }
    }
    assert!(store.stats().memory.total_bytes <= 16 << 20);
    // A stretch is half a mebibyte at most. Those of the driver count, too: 4 have been seen.
    assert!((1..=16).contains(&most), "{most} stretches within one call");
}

/// An index that grew into compaction's reserve once left no room for the copies of a stretch, and a log of dead bytes was full. At the end
/// of each way through the log all that had died meanwhile counted as dead once more, though it had been given back: a store whose oldest
/// records went believed that it was all dead, and copied everything that lived.
#[test]
fn where_the_oldest_go_what_lives_is_known_to() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").background(false).in_memory().unwrap();
    // Too long to take each other's places.
    let value = [7; 1100];
    let mut live = 0;
    while store.stats().space.live_bytes < 20 << 20 {
        (live..live + 100).for_each(|n| store.put(&n, &value).unwrap());
        live += 100;
    }
    for n in live..live * 5 {
        store.put(&n, &value).unwrap();
        assert!(store.delete(&(n - live)).unwrap());
        if n % 100 == 0 {
            let space = store.stats().space;
            assert!(space.live_bytes > live * value.len() as u64, "{live} records live: {space:?}");
        }
    }
    let space = store.stats().space;
    assert!(space.given_back_bytes > 60 << 20, "four turnovers were not given back: {space:?}");
    assert!(space.moved_bytes < space.given_back_bytes / 20, "what lives was copied: {space:?}");
    assert!((live * 4..live * 5).all(|n| store.contains(&n).unwrap()));
}

#[test]
fn what_is_left_of_the_reserve_suffices() {
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let value = |key: u64| vec![key as u8; 100 + key as usize % 50];
    let keys = 0..150_000u64;
    keys.clone().for_each(|key| store.put(&key, &value(key)).unwrap());
    let total = store.stats().memory.total_bytes;
    store.set_memory(total + (160 << 10)).unwrap();
    assert!(keys.clone().step_by(3).all(|key| store.delete(&key).unwrap()));
    for key in keys.clone().step_by(6) {
        store.put(&(key + keys.end), &value(key)).unwrap_or_else(|error| panic!("{error}, key {key}, {:?}", store.stats()));
    }
    for key in keys.clone() {
        assert_eq!(store.get(&key).unwrap(), (key % 3 != 0).then(|| value(key)), "key {key}");
        assert_eq!(store.get(&(key + keys.end)).unwrap(), (key % 6 == 0).then(|| value(key)), "key {key}");
    }
    assert!(store.stats().memory.total_bytes <= total + (160 << 10), "{total}, {:?}", store.stats().memory);
}

#[test]
fn compaction_beside_eight_threads_loses_nothing() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    let stop = AtomicBool::new(false);
    let sums: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for (thread, sum) in sums.iter().enumerate() {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut x = thread as u64 + 1;
                while !stop.load(Relaxed) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    store.rmw(&(x % 300_000), |old| old.unwrap_or(0) + 1).unwrap();
                    sum.fetch_add(1, Relaxed);
                }
            });
        }
        for _ in 0..6 {
            store.compact().unwrap();
        }
    });
    let keys: Vec<u64> = (0..300_000).collect();
    let mut total = 0;
    store.get_many(&keys, |_, value| total += value.unwrap_or(0)).unwrap();
    assert_eq!(total, sums.iter().map(|sum| sum.load(Relaxed)).sum::<u64>());
}

/// A key behind another one in the same entry was once cut off when the copy of the one in front led nowhere.
#[test]
fn keys_that_share_entries_survive() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    let keys: Vec<u64> = (0..600_000).collect();
    let pairs: Vec<(u64, u64)> = keys.iter().map(|key| (*key, key + 1)).collect();
    store.put_many(&pairs).unwrap();
    let gone: Vec<u64> = keys.iter().copied().filter(|key| key % 5 == 0).collect();
    assert_eq!(store.delete_many(&gone).unwrap(), gone.len());
    for _ in 0..2 {
        store.compact().unwrap();
        store.get_many(&keys, |i, value| assert_eq!(value, (i % 5 != 0).then_some(i as u64 + 1), "key {i}")).unwrap();
    }
}

/// A record is its key's newest if it is the first cold one of its chain, too: what leads to it from memory may be another key's.
#[test]
fn a_cold_key_behind_another_ones_in_memory_survives() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    let keys: Vec<u64> = (0..600_000).collect();
    let put = |keys: &[u64], add: u64| store.put_many(&keys.iter().map(|key| (*key, key + add)).collect::<Vec<_>>()).unwrap();
    put(&keys, 1);
    for round in 2..4 {
        let again: Vec<u64> = keys.iter().copied().filter(|key| key % 16 == round).collect();
        put(&again, round);
        store.compact().unwrap();
        let want = |key: u64| key + if (2..=round).contains(&(key % 16)) { key % 16 } else { 1 };
        store.get_many(&keys, |i, value| assert_eq!(value, Some(want(i as u64)), "key {i}, round {round}")).unwrap();
    }
}

/// Threads count the entries they add some at a time, compaction what it removes at once: a key put, deleted and compacted away
/// made the count less than nothing, which the index took for a reason to grow.
/// Found by the fuzzer; reduced to this.
#[test]
fn fewer_entries_than_none_are_none() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    let buckets = store.stats().index.buckets;
    for round in 0..50u64 {
        store.put(&round, &round).unwrap();
        store.delete(&round).unwrap();
        store.compact().unwrap();
    }
    let index = store.stats().index;
    assert!(index.entries <= 1, "{} entries", index.entries);
    assert_eq!(index.buckets, buckets);
}

/// Each insertion over the other thread's deletion once cost a whole piece of the log: sixty-four kilobytes that nobody counted.
#[test]
fn two_threads_that_insert_one_key_by_turns_do_not_fill_the_log() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    const FAILED: u64 = u64::MAX;
    let turn = AtomicU64::new(0);
    let insert_and_remove = |me| {
        for round in 0..2_000 {
            while turn.load(Acquire) != 2 * round + me {
                if turn.load(Relaxed) == FAILED {
                    return Ok(());
                }
                std::thread::yield_now();
            }
            let done = store.put(&1, &me).and_then(|()| store.delete(&1));
            turn.store(if done.is_ok() { 2 * round + me + 1 } else { FAILED }, Release);
            done?;
        }
        Ok::<(), Error>(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| insert_and_remove(1));
        insert_and_remove(0).unwrap();
        other.join().unwrap().unwrap();
    });
}

/// Far below its budget, too: what was deleted is given back, of the log and of the index, without being asked for.
#[test]
fn a_store_in_memory_is_small_again_after_mass_deletion() {
    let store: Store<u64, u64> = Options::new().memory("1GiB").in_memory().unwrap();
    let keys = 1_000_000u64;
    (0..keys).for_each(|n| store.put(&n, &n).unwrap());
    let (before, begun) = (store.stats().memory, std::time::Instant::now());
    (0..keys).filter(|n| n % 100 != 0).for_each(|n| assert!(store.delete(&n).unwrap()));
    loop {
        let now = store.stats().memory;
        if now.log_bytes < before.log_bytes / 4 && now.index_bytes < before.index_bytes / 4 {
            break;
        }
        assert!(begun.elapsed().as_secs() < 300, "{now:?} after {before:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!((0..keys).all(|n| store.get(&n).unwrap() == (n % 100 == 0).then_some(n)));
}

#[test]
fn amplification_has_a_meaning_where_nothing_lives() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    assert_eq!(store.stats().space.amplification, 1.0);
    store.put(&1, &1).unwrap();
    assert_eq!(store.stats().space.amplification, 1.0);
    store.delete(&1).unwrap();
    assert_eq!(store.stats().space.amplification, f64::INFINITY);
}

/// Deletes half and puts it again in each way there is, three times: what the counts say lives is what lives, of records of this length.
fn counts_are_true<V: esker::Value + ?Sized>(name: &str, store: &Store<u64, V>, record_bytes: u64, value: &V, own: impl Fn() -> V::Owned) {
    const KEYS: u64 = 20_000;
    let check = |what: &str, keys: u64| {
        let (space, live) = (store.stats().space, keys * record_bytes);
        // A piece of the log is begun, and what is left at its end will be dead.
        assert!(space.live_bytes.abs_diff(live) < live / 50 + (64 << 10), "{name}, {what}: {live} bytes live, {space:?}");
    };
    let again = |round: u64, keys: &[u64]| match round {
        0 => keys.iter().for_each(|key| store.put(key, value).unwrap()),
        1 => keys.iter().for_each(|key| _ = store.rmw(key, |old| if old.is_none() { own() } else { panic!("deleted") }).unwrap()),
        _ => store.put_many(&keys.iter().map(|key| (*key, own())).collect::<Vec<_>>()).unwrap(),
    };
    let keys: Vec<u64> = (0..KEYS).collect();
    again(0, &keys);
    check("filled", KEYS);
    for round in 0..3 {
        let gone = &keys[..keys.len() / 2];
        assert_eq!(store.delete_many(gone).unwrap(), gone.len());
        check("half deleted", KEYS / 2);
        assert_eq!(store.delete_many(gone).unwrap(), 0);
        check("deleted again", KEYS / 2);
        again(round, gone);
        check("put again", KEYS);
        keys.iter().for_each(|key| store.put(key, value).unwrap());
        check("overwritten", KEYS);
        if !store.stats().in_memory {
            // Freezes all.
            store.commit().unwrap();
        }
    }
}

#[test]
fn what_is_deleted_and_put_again_is_counted_once() {
    let options = || Options::new().memory("16MiB").background(false);
    counts_are_true::<u64>("words in memory", &options().in_memory().unwrap(), 24, &7, || 8);
    counts_are_true::<u64>("words in files", &options().open_temporary().unwrap(), 24, &7, || 8);
    counts_are_true::<[u64; 4]>("short values in memory", &options().in_memory().unwrap(), 64, &[7; 4], || [8; 4]);
    counts_are_true::<[u64; 4]>("short values in files", &options().open_temporary().unwrap(), 64, &[7; 4], || [8; 4]);
    counts_are_true::<[u8]>("bytes in memory", &options().in_memory().unwrap(), 24 + 8 + 96, &[7; 96], || vec![8; 96]);
    counts_are_true::<[u8]>("bytes in files", &options().open_temporary().unwrap(), 24 + 8 + 96, &[7; 96], || vec![8; 96]);
}

/// As many records come as go, the oldest first, so many times over. The figures after it, and how many bytes live.
fn turn_over(live: u64, turnovers: u64) -> (esker::Stats, u64) {
    let store: Store<u64, [u64; 13]> = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..live).for_each(|key| store.put(&key, &[key; 13]).unwrap());
    for first in (0..turnovers * live).step_by(64) {
        for key in first..first + 64 {
            store.put(&(key + live), &[key; 13]).unwrap();
        }
        assert_eq!(store.delete_many(&(first..first + 64).collect::<Vec<_>>()).unwrap(), 64);
    }
    (store.stats(), live * (24 + 8 + 104))
}

#[test]
fn a_store_turned_over_many_times_knows_what_lives() {
    let (stats, live) = turn_over(128_000, 24);
    assert!(stats.space.live_bytes.abs_diff(live) < live / 50, "{live} bytes live, {:?}", stats.space);
    assert!(stats.index.overflow_buckets < stats.index.buckets * 2 / 5, "{:?}", stats.index);
}

/// Three keys share an entry, so compaction finds most records in doubt, the more the longer the log is: those who write must wait for it.
#[test]
fn the_log_does_not_run_away_from_compaction() {
    let (stats, live) = turn_over(384_000, 8);
    assert!(stats.space.log_bytes < 6 * live, "{live} bytes live, {:?}", stats.space);
}

#[test]
fn what_values_outgrow_is_counted_with_its_room() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
    const KEYS: u64 = 100_000;
    (0..KEYS).for_each(|key| store.put(&key, &vec![1; key as usize * 7 % 400]).unwrap());
    for round in 0..2 * KEYS {
        store.append(&(round * 40_503 % KEYS), &[2; 16]).unwrap();
    }
    assert!(store.stats().log.head > 16 << 20, "most is in memory");
    let counted = store.stats().space.live_bytes;
    store.compact().unwrap();
    // Nothing else is left now.
    let live = store.stats().space.log_bytes;
    assert!(counted.abs_diff(live) < live / 50, "{counted} bytes were to live, {live} do");
}

/// A closed store took itself for a temporary one: it removed files without a line that told of the copies, which were in memory alone.
#[test]
fn a_closed_store_is_not_compacted() {
    let files = Arc::new(MemoryStorage::new());
    let open =
        || -> Store<u64, [u8]> { Options::new().memory("16MiB").segment_bytes(1 << 20).background(false).open_in(files.clone()).unwrap() };
    let store = open();
    (0..1000u64).for_each(|key| store.put(&key, &[key as u8; 8192]).unwrap());
    store.close().unwrap();
    let error = store.compact().unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    drop(store);
    let store = open();
    assert!((0..1000u64).all(|key| store.get(&key).unwrap().is_some_and(|value| value == [key as u8; 8192])));
}

/// A long value that lives at the log's beginning, and most of the rest dead: there was no room for its copy, so nothing was given back any
/// more.
#[test]
fn a_long_value_at_the_beginning_stops_no_compaction() {
    for (bytes, background) in [(700 << 10, true), (1 << 20, false), (3 << 20, true), (4 << 20, false)] {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(background).in_memory().unwrap();
        store.put(&0, &vec![1; bytes]).unwrap();
        for round in 0..8u8 {
            for key in 1..=4000u64 {
                store.delete(&key).unwrap();
                store.put(&key, &[round; 1000]).unwrap_or_else(|error| panic!("{bytes}: {error}, {:?}", store.stats()));
            }
        }
        assert_eq!(store.get(&0).unwrap().unwrap(), vec![1; bytes]);
        assert!(store.stats().memory.total_bytes <= 16 << 20);
    }
}

/// Puts values of a kilobyte, from this key on, until the store is full: the first key that did not fit.
fn fill(store: &Store<u64, [u8]>, first: u64) -> u64 {
    (first..).find(|key| store.put(key, &[7; 1000]).is_err()).unwrap()
}

/// Each thread that did a stretch kept the rest of a piece, out of the room for a copy of the longest value, until nothing could be given
/// back any more, whatever was deleted.
#[test]
fn stretches_of_many_threads_leave_room_for_the_longest() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    (1..=4100u64).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
    // Behind sixteen stretches.
    store.put(&0, &vec![1; 1 << 20]).unwrap();
    let end = fill(&store, 4101);
    let done = std::sync::Barrier::new(17);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let (told, tell) = std::sync::mpsc::channel();
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let went = store.compact_stretch();
                told.send(()).unwrap();
                // They all stay: else a thread would go on with the piece of one before.
                done.wait();
                assert!(went.unwrap());
            });
            tell.recv().unwrap();
        }
        // To the longest, and beyond if there is room for its copy.
        while store.compact_stretch().unwrap_or(false) && store.stats().space.stretches < 100 {}
        let deleted = (6500..end).filter(|key| store.delete(key).unwrap()).count();
        let (given, put) = (store.compact(), store.put(&(1 << 40), &[7; 1000]));
        done.wait();
        assert!(deleted > 3_000 && given.unwrap() > 3 << 20, "{deleted} {:?}", store.stats());
        put.unwrap();
    });
    assert_eq!(store.get(&0).unwrap(), Some(vec![1; 1 << 20]));
}

/// Room for a copy of the longest value is left free, but only while there is one.
#[test]
fn a_long_value_that_is_refused_or_gone_takes_no_room() {
    let new = || -> Store<u64, [u8]> { Options::new().memory("16MiB").background(false).in_memory().unwrap() };
    let long = vec![1; 4 << 20];
    let without = fill(&new(), 1);
    let refused = new();
    (1..9000).for_each(|key| refused.put(&key, &[7; 1000]).unwrap());
    assert!(matches!(refused.put(&0, &long), Err(Error::Full)));
    assert_eq!(fill(&refused, 9000), without);
    let gone = new();
    gone.put(&0, &long).unwrap();
    let with = fill(&gone, 1);
    assert!((4000..without - 4000).contains(&with), "{with} beside a long value and room for its copy, {without} without");
    assert!(gone.delete(&0).unwrap());
    let after = fill(&gone, with);
    assert!(after > without - without / 50, "{after} after a long value, {without} without");
    assert!((1..after).all(|key| gone.contains(&key).unwrap()));
}

/// With the budget that the error named, compaction had no room to work in, and the store was full for ever with a third of it dead.
#[test]
fn what_a_budget_can_be_lowered_to_is_enough_to_work_with() {
    for long in [0, 2 << 20] {
        let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
        store.put(&u64::MAX, &vec![1; long]).unwrap();
        (0..10_000u64).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
        for key in (10_000..20_000u64).chain(10_000..20_000) {
            store.delete(&key).unwrap();
            store.put(&key, &[2; 1000]).unwrap();
        }
        let Err(Error::Invalid(told)) = store.set_memory(16 << 20) else { panic!("lowered below what is there") };
        let held: u64 = told.rsplit('=').next().unwrap().parse().unwrap();
        store.set_memory(held).unwrap();
        for key in 10_000..20_000u64 {
            store.put(&key, &[3; 1001]).unwrap_or_else(|error| panic!("key {key}: {error}, {:?}", store.stats()));
        }
        assert!(store.stats().memory.total_bytes <= held);
    }
}

/// There was room to be compacted by, and none to delete anything.
#[test]
fn in_what_a_budget_was_lowered_to_something_can_be_deleted() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let keys = (0..).take_while(|key| store.put(key, key).is_ok()).count() as u64;
    let Err(Error::Invalid(told)) = store.set_memory(16 << 20) else { panic!("lowered below what is there") };
    let held: u64 = told.rsplit('=').next().unwrap().parse().unwrap();
    store.set_memory(held).unwrap();
    // All of it is frozen.
    assert_eq!(store.scan().aggregate(Count).unwrap(), keys);
    for key in (0..keys).step_by(3) {
        assert!(store.delete(&key).unwrap(), "{key}");
        if key + 1 < keys {
            store.put(&(key + 1), &7).unwrap();
        }
    }
    assert!((0..keys).all(|key| store.get(&key).unwrap() == [None, Some(7), Some(key)][key as usize % 3]));
    assert!(store.stats().memory.total_bytes <= held);
    // What is asked for besides is not refused because of what was lowered.
    store.set_memory(held + 1).unwrap();
    store.set_memory("64MiB").unwrap();
}

/// Each thread took what it had made of its own budget from what another had made of a lower one.
#[test]
fn a_budget_is_set_by_two_at_once() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_temporary().unwrap();
    std::thread::scope(|scope| {
        for bytes in [16u64 << 20, 4 << 30] {
            let store = &store;
            scope.spawn(move || (0..400_000).for_each(|_| store.set_memory(bytes).unwrap()));
        }
    });
}

/// What is in memory wrapped around then, and living records were overwritten.
#[test]
fn a_budget_beyond_the_address_space_is_refused() {
    let options = Options::new().background(false);
    let opened = options.clone().memory(4u64 << 40).in_memory();
    let refused: Option<Error> = opened.map(|_: Store<u64, u64>| ()).err();
    assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
    let store: Store<u64, u64> = options.memory("16MiB").in_memory().unwrap();
    assert!(matches!(store.set_memory(4u64 << 40), Err(Error::Invalid(_))));
    assert_eq!(store.stats().memory.budget_bytes, 16 << 20);
}

/// What was given back was taken by others before who needs much looked again.
#[test]
fn who_needs_much_gets_it_beside_those_who_need_little() {
    const KEYS: u64 = 4000;
    for background in [true, false] {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(background).in_memory().unwrap();
        (0..KEYS).for_each(|key| store.put(&key, &[0; 1000]).unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Raise(&done);
            for thread in 0..3 {
                let (store, done) = (&store, &done);
                scope.spawn(move || {
                    for n in (0u64..).take_while(|_| !done.load(Relaxed)) {
                        let key = 3 * (n * 7919 % (KEYS / 3)) + thread;
                        store.delete(&key).and_then(|_| store.put(&key, &[n as u8; 1000])).unwrap();
                    }
                });
            }
            for round in 0..50u64 {
                // Likelier, not sure: others may be quicker each time.
                let put = || store.delete(&KEYS).and_then(|_| store.put(&KEYS, &vec![round as u8; 1000 << 10]));
                let is_refused = |put: Result<(), Error>| match put {
                    Err(Error::Full) => true,
                    put => {
                        put.unwrap();
                        false
                    }
                };
                let refusals = (0..60).take_while(|_| is_refused(put())).count();
                assert!(refusals < 60, "background {background}, round {round}: {:?}", store.stats().space);
            }
        });
    }
}

/// What a record leaves of its last block, and what is left where the memory ends, hold nothing.
#[test]
fn what_no_record_has_is_dead() {
    for bytes in [5 * 4080 - 100, 5 * 4080 + 100, 20_000, 1000] {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        for key in 0..(64 << 20) / bytes as u64 {
            store.put(&key, &vec![1; bytes]).unwrap();
            store.delete(&key).unwrap();
        }
        let space = store.stats().space;
        let unknown = space.log_bytes - space.dead_bytes;
        assert!(space.log_bytes > 4 << 20 && unknown < 100 << 10, "{bytes}: {unknown} of {}", space.log_bytes);
    }
}

/// It copied all of it eight times for one answer.
#[test]
fn who_finds_a_store_full_of_long_values_is_told_soon() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let full = (0u64..).find(|key| store.put(key, &[1; 100_000]).is_err()).unwrap();
    let before = store.stats().space;
    assert!(matches!(store.put(&full, &[1; 100_000]), Err(Error::Full)));
    let after = store.stats().space;
    assert!(after.moved_bytes - before.moved_bytes <= after.log_bytes, "{before:?}, {after:?}");
}

/// Those of deletions often stayed when these had gone, and kept the index from shrinking.
#[test]
fn entries_go_with_what_they_led_to() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(MemoryStorage::new())).unwrap();
    for round in 0..2u64 {
        let keys: Vec<u64> = (0..1_000_000).map(|key| key + (round << 32)).collect();
        for keys in keys.chunks(10_000) {
            store.put_many(&keys.iter().map(|key| (*key, *key)).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(store.delete_many(&keys).unwrap(), keys.len());
        (0..2).for_each(|_| _ = store.compact().unwrap());
        let stats = store.stats();
        assert_eq!((stats.space.log_bytes, stats.index.entries), (0, 0));
        assert!(stats.memory.index_bytes < 1 << 20, "nothing lives, {:?}", stats.index);
    }
}

/// What a thread has not filled of its piece goes with a stretch, and the thread counts it later.
#[test]
fn what_threads_have_left_of_their_pieces_adds_up() {
    let store: Store<u64, [u64; 13]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let barrier = std::sync::Barrier::new(17);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                let put = |n: u64| store.put(&(thread << 32 | n), &[7; 13]).unwrap();
                (0..1010).for_each(put);
                barrier.wait();
                barrier.wait();
                (1010..1020).for_each(put);
            });
        }
        barrier.wait();
        store.compact().unwrap();
        barrier.wait();
    });
    let (space, live) = (store.stats().space, 16 * 1020 * (24 + 8 + 104));
    assert!(space.live_bytes >= live, "{live} live, {space:?}");
}

/// A shorter value in place of a longer one kept the longer one's room, and compaction copied it.
#[test]
fn what_shorter_values_leave_comes_back() {
    for bytes in [2_000, 16_000, 100_000] {
        for background in [false, true] {
            let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(background).in_memory().unwrap();
            let long = vec![1; bytes];
            let full = (0u64..).find(|key| store.put(key, &long).is_err()).unwrap();
            (0..full).for_each(|key| store.put(&key, &[2; 8]).unwrap());
            (0..full).for_each(|key| assert_eq!(store.get(&key).unwrap().as_deref(), Some(&[2; 8][..])));
            let again = (full..2 * full).find(|key| store.put(key, &long).is_err()).unwrap_or(2 * full) - full;
            println!("{bytes} bytes, background {background}: {again} of {full} once more");
            assert!(again >= full * 9 / 10, "{bytes} bytes, background {background}: {again} of {full}, {:?}", store.stats().space);
        }
    }
}

/// What another moves lies there twice until he is done: who needed room then was refused it, though there was as much again.
#[test]
fn who_needs_room_waits_for_a_stretch_under_way() {
    for long in [0, 4 << 20] {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        let short = vec![1; 1000];
        (1..1500).for_each(|key| store.put(&key, &short).unwrap());
        store.put(&0, &vec![7; long]).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let compacting = scope.spawn(|| {
                while !stop.load(Relaxed) {
                    store.compact().unwrap();
                }
            });
            let _raise = Raise(&stop);
            for round in 0..60_000u64 {
                let key = 1 + round % 1000;
                let put = if round % 3 == 0 { store.delete(&key).map(drop) } else { store.put(&key, &short) };
                put.unwrap_or_else(|error| panic!("{error} in round {round} beside {long} bytes, {:?}", store.stats()));
            }
            stop.store(true, Relaxed);
            compacting.join().unwrap();
        });
    }
}

/// While a scan runs nothing comes back that it may need; but what was there when it began is copied meanwhile, so that scans which follow
/// each other, each begun before the last one ended, let all of it go. It was a stretch for each scan: beside scans without a pause a store
/// of 7 MB had files of 4 GB, and each scan was longer than the last.
#[test]
fn what_scans_hold_goes_when_they_have_gone() {
    const KEYS: u64 = 20_000;
    let options = Options::new().memory("16MiB").background(false).segment_bytes(1 << 20);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let put_all = |round: u8| (0..KEYS).for_each(|key| store.put(&key, &[round; 1000]).unwrap());
    let space = || store.stats().space;
    let check = |pairs: esker::Iter<'_, u64, [u8]>, round: u8| {
        let found = pairs.map(Result::unwrap).filter(|(_, value)| *value == [round; 1000]).count();
        assert_eq!(found as u64, KEYS, "of round {round}");
    };
    put_all(0);
    put_all(1);
    let written = space().log_bytes;
    let first = store.scan().iter().unwrap();
    while store.compact_stretch().unwrap() {}
    let held = space();
    assert!(held.given_back_bytes == 0 && held.moved_bytes == 0, "{held:?}");
    // All that lives has a copy, and no second one.
    assert!(held.log_bytes > written + KEYS * 1000 && held.log_bytes < written + KEYS * 1200, "{held:?} of {written}");
    assert!(held.live_bytes < KEYS * 1200, "{held:?}");
    put_all(2);
    let second = store.scan().iter().unwrap();
    check(first, 1);
    assert!(store.compact_stretch().unwrap());
    assert!(space().given_back_bytes >= written && space().moved_bytes > KEYS * 1000, "{:?} of {written}", space());
    check(second, 2);
    store.compact().unwrap();
    check(store.scan().iter().unwrap(), 2);
    assert!(space().log_bytes < KEYS * 1200, "{:?}", space());
}

/// The same in memory, as far as copies fit what is left to compaction. A stretch for each scan was half a MiB, and the store was full in
/// the end though most of it was dead.
#[test]
fn a_store_in_memory_is_not_full_beside_scans_that_follow_each_other() {
    const KEYS: u64 = 10_000;
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let put = |n: u64| store.put(&(n % KEYS), &[(n / KEYS) as u8; 1000]);
    (0..KEYS).for_each(|n| put(n).unwrap());
    let mut scans = VecDeque::new();
    // A fifth of the keys anew beside each pair of scans: 2 MB.
    for round in 0..200u64 {
        scans.push_back(store.scan().iter().unwrap());
        (0..KEYS / 5).for_each(|n| put(KEYS + round * KEYS / 5 + n).unwrap());
        if scans.len() == 2 {
            let pairs = scans.pop_front().unwrap();
            assert_eq!(pairs.map(Result::unwrap).count() as u64, KEYS);
            while store.stats().space.amplification > 2.0 && store.compact_stretch().unwrap() {}
        }
    }
}

/// Whatever has been copied and is held, in how many stretches ever: a crash brings back what the last line held, nothing deleted and
/// nothing older.
#[test]
fn a_crash_beside_scans_loses_nothing_and_brings_nothing_back() {
    const KEYS: u64 = 5_000;
    let options = Options::new().memory("16MiB").background(false).segment_bytes(1 << 20).promotion(false);
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, [u8]> = options.clone().open_in(files.clone()).unwrap();
    let mut random = 88_172_645_463_325_252u64;
    let mut draw = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % below
    };
    let mut held: Vec<Option<u8>> = vec![None; KEYS as usize];
    let mut scans = VecDeque::new();
    let (mut most_held, mut given_back) = (0, 0);
    for round in 0..30u8 {
        for _ in 0..KEYS {
            let key = draw(KEYS);
            held[key as usize] = (draw(4) > 0).then_some(round);
            match held[key as usize] {
                Some(round) => store.put(&key, &[round; 1000]).unwrap(),
                None => _ = store.delete(&key).unwrap(),
            }
        }
        if draw(3) == 0 {
            store.save_index().unwrap();
        }
        store.commit().unwrap();
        // Two at most, of which the older one ends first.
        if draw(3) > 0 {
            scans.push_back((store.scan().iter().unwrap(), held.clone()));
        }
        for _ in 0..1 + draw(12) {
            let before = store.stats().space;
            store.compact_stretch().unwrap();
            let after = store.stats().space;
            if after.given_back_bytes == before.given_back_bytes {
                most_held += u64::from(after.log_bytes > before.log_bytes);
            }
            given_back = after.given_back_bytes;
        }
        let crashed: Store<u64, [u8]> = options.clone().open_in(Arc::new(files.copy())).unwrap();
        for key in 0..KEYS {
            assert_eq!(crashed.get(&key).unwrap(), held[key as usize].map(|round| vec![round; 1000]), "key {key} after round {round}");
        }
        let in_all = crashed.scan().aggregate(esker::aggregate::Count).unwrap();
        assert_eq!(in_all as usize, held.iter().flatten().count());
        if scans.len() > 2 || draw(3) == 0 {
            let Some((pairs, then)) = scans.pop_front() else { continue };
            let mut seen = 0;
            for (key, value) in pairs.map(Result::unwrap) {
                seen += 1;
                assert_eq!(Some(value), then[key as usize].map(|round| vec![round; 1000]), "key {key} of a scan before round {round}");
            }
            assert_eq!(seen, then.iter().flatten().count());
        }
    }
    assert!(most_held > 30 && given_back > 20 << 20, "{most_held} stretches were held, {given_back} bytes given back");
}

/// What was copied beside a scan is dead, and the next opening knows it.
#[test]
fn what_a_scan_holds_is_known_to_be_dead_after_a_crash() {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").background(false).segment_bytes(1 << 20);
    let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
    let live = 40_000 * (24 + 8 + 1000);
    (0..40_000u64).for_each(|n| store.put(&n, &[n as u8; 1000]).unwrap());
    store.commit().unwrap();
    let scan = store.scan().iter().unwrap();
    store.compact().unwrap();
    store.put(&0, &[7; 1000]).unwrap();
    store.commit().unwrap();
    let again: Store<u64, [u8]> = options().open_in(Arc::new(files.copy())).unwrap();
    drop(scan);
    let (before, after) = (store.stats().space.live_bytes, again.stats().space.live_bytes);
    assert!((live..live * 11 / 10).contains(&before), "{before} bytes live of {live}");
    assert!((live..live * 11 / 10).contains(&after), "{after} bytes live after a crash, of {live}");
}

/// A stretch that ends at damage has copied what comes before it; so often as it is tried, no more seems to live.
#[test]
fn what_a_stretch_copied_before_it_failed_is_dead() {
    let files = Arc::new(MemoryStorage::new());
    let options = |background| Options::new().memory("16MiB").background(background).segment_bytes(1 << 20);
    let store: Store<u64, [u8]> = options(false).open_in(files.clone()).unwrap();
    let live = 40_000 * (24 + 8 + 1000);
    (0..40_000u64).for_each(|n| store.put(&n, &[n as u8; 1000]).unwrap());
    store.commit().unwrap();
    let (log, mut sector) = (files.open("esker.log.00000000").unwrap(), [0; SECTOR_BYTES]);
    log.read(200 * SECTOR_BYTES as u64, &mut sector).unwrap();
    sector[77] ^= 4;
    log.write(200 * SECTOR_BYTES as u64, &sector).unwrap();
    for _ in 0..3 {
        assert!(matches!(store.compact(), Err(Error::Corruption(_))));
        let space = store.stats().space;
        assert!(space.log_bytes > live + (700 << 10), "nothing was copied: {space:?}");
        assert!(space.live_bytes < live + (100 << 10), "{space:?} where {live} live");
        let warnings = store.stats().warnings;
        assert!(matches!(&warnings[..], [Warning::CompactionFails { error }] if error.contains("esker.log")), "{warnings:?}");
    }
    // The background tells of it, too.
    store.close().unwrap();
    let store: Store<u64, [u8]> = options(true).open_in(files.clone()).unwrap();
    let is_told = (0..100).any(|_| {
        (0..40_000u64).for_each(|n| store.put(&n, &[n as u8; 1000]).unwrap());
        store.stats().warnings.iter().any(|warning| matches!(warning, Warning::CompactionFails { .. }))
    });
    assert!(is_told);
}

/// Each took four tebibytes of address space: after some forty there was none, for other stores or anything else.
#[test]
fn a_process_has_room_for_many_stores() {
    let open = |number: u64| -> Store<u64, u64> {
        let store = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        store.put(&number, &number).unwrap();
        store
    };
    let stores: Vec<_> = (0..200).map(open).collect();
    assert!((0..).zip(&stores).all(|(number, store)| store.get(&number).unwrap() == Some(number)));
    assert!(Vec::<u8>::new().try_reserve(1 << 30).is_ok());
}

/// Lists that grow, and are begun anew while they are cold by a put that does not know how long they were: it counted as much as it put,
/// compaction believed that two thirds of the log lived, and never began.
#[test]
fn what_short_values_supersede_unread_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open(folder.path()).unwrap();
    for round in 0..16 {
        (0..10_000).for_each(|key| _ = store.append(&key, &[round; 4000]).unwrap());
        (0..10_000).for_each(|key| store.put(&key, &[round; 16]).unwrap());
        // Lest they be in memory still.
        (100_000..102_000).for_each(|key| store.put(&key, &[round; 4000]).unwrap());
    }
    let files = disk_bytes(folder.path());
    assert!(files < 400 << 20, "{files}");
    assert!((0..10_000).all(|key| store.get(&key).unwrap().as_deref() == Some(&[15; 16])));
}

/// A line freezes all: then not even a deletion could be made, for there was no room to write it, and compaction saw nothing dead.
#[test]
fn a_full_store_that_was_scanned_can_be_emptied_and_overwritten() {
    fn fills<V: esker::Value<Owned = V>>(memory: &str, background: bool, value: impl Fn(u64) -> V) {
        let open = || -> Store<u64, V> { Options::new().memory(memory).background(background).in_memory().unwrap() };
        let fill = |store: &Store<u64, V>| {
            let count = (0..).find(|n| store.put(n, &value(*n)).is_err()).unwrap();
            let mut seen = 0;
            store.scan().for_each(|_, _| seen += 1).unwrap();
            assert_eq!(seen, count);
            count
        };
        let store = open();
        let count = fill(&store);
        for n in 0..count {
            let put = store.put(&n, &value(n + 1));
            assert!(put.is_ok(), "{memory}, overwriting {n} of {count}: {put:?} {:?} {:?}", store.stats().space, store.stats().memory);
            if n % 20_000 == 0 {
                store.scan().for_each(|_, _| ()).unwrap();
            }
        }
        assert!((0..count).all(|n| store.get(&n).unwrap().is_some()));
        let store = open();
        let count = fill(&store);
        for n in 0..count {
            assert!(store.delete(&n).unwrap_or_else(|error| panic!("{memory}, deleting {n} of {count}: {error}")));
        }
        (0..count / 2).for_each(|n| store.put(&(count + n), &value(n)).unwrap());
    }
    fills::<u64>("16MiB", false, |n| n);
    fills::<[u8; 100]>("24MiB", true, |n| [n as u8; 100]);
}

/// Some of it is dead, and less than a thirty-second: it was refused.
#[test]
fn what_was_deleted_makes_room_however_little_it_was() {
    let store: Store<u64, [u8; 1000]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let count = (0..).find(|n| store.put(n, &[1; 1000]).is_err()).unwrap();
    (0..200).for_each(|n| assert!(store.delete(&(n * 7)).unwrap()));
    (0..50).for_each(|n| store.put(&(count + n), &[2; 1000]).unwrap());
}

/// What took the place of as much took what a copy of the longest record needs, and nothing was ever given back.
#[test]
fn what_takes_the_place_of_as_much_leaves_room_for_the_longest() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    store.put(&0, &vec![0; 3 << 20]).unwrap();
    (1..=400).for_each(|key| store.put(&key, &[1; 15_000]).unwrap());
    for round in 0..5 {
        store.scan().for_each(|_, _| ()).unwrap();
        (1..=400).for_each(|key| store.put(&key, &[round; 15_000]).unwrap_or_else(|error| panic!("round {round}, key {key}: {error}")));
    }
    assert!(store.delete(&0).unwrap());
    assert!((1..=400).all(|key| store.get(&key).unwrap().as_deref() == Some(&[4; 15_000][..])));
}

/// What threads had taken of the log and not filled was dead for nobody: a store with many that write seldom was full when a third of it
/// held nothing.
#[test]
fn what_idle_threads_have_not_filled_is_no_loss() {
    let fill = |idle: u64| {
        let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
        let next = AtomicU64::new(0);
        let put = || store.put(&next.fetch_add(1, Relaxed), &7);
        let (filled, stop) = (Barrier::new(idle as usize + 1), Barrier::new(idle as usize + 1));
        std::thread::scope(|scope| {
            for _ in 0..idle {
                scope.spawn(|| {
                    // The last one is the first of a piece.
                    (0..2593).for_each(|_| put().unwrap());
                    filled.wait();
                    stop.wait();
                });
            }
            filled.wait();
            while put().is_ok() {}
            stop.wait();
        });
        next.load(Relaxed)
    };
    let (alone, beside) = (fill(0), fill(60));
    assert!(beside as f64 > 0.9 * alone as f64, "{beside} records, {alone} without threads");
}

/// A store was full with a hundredth of it in use: what longer values had left behind shorter ones was nobody's to give back.
#[test]
fn what_longer_values_left_comes_back_in_memory() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
    let keys = (0u64..).find(|key| matches!(store.put(key, &[7; 1000]), Err(Error::Full))).unwrap();
    for key in 0..keys {
        match key % 3 {
            0 => store.put_with_ttl(&key, &key.to_le_bytes(), Duration::from_secs(1000)).unwrap(),
            _ => store.put(&key, &key.to_le_bytes()).unwrap(),
        }
    }
    let added = (keys..).take_while(|key| store.put(key, &key.to_le_bytes()).is_ok()).count();
    assert!(added as u64 > keys * 8, "{added} beside {keys}");
    for key in 0..keys + added as u64 {
        assert_eq!(store.get(&key).unwrap().as_deref(), Some(&key.to_le_bytes()[..]), "{key}");
        assert_eq!(matches!(store.ttl(&key).unwrap(), Some(Ttl::Left(_))), key < keys && key % 3 == 0, "{key}");
    }
    // What is full says so soon, and a later look finds little more.
    let (mut found, mut refused) = (0, 0);
    while refused < 2000 {
        match store.put(&(u64::MAX - found), &[1; 100]) {
            Ok(()) => (found, refused) = (found + 1, 0),
            Err(error) => refused += if matches!(error, Error::Full) { 1 } else { panic!("{error}") },
        }
    }
    let stats = store.stats().memory;
    assert!(found * 128 < stats.log_bytes / 20, "{found} beside {stats:?}");
}

#[test]
fn what_longer_values_left_comes_back_on_a_device() {
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..20_000u64).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
    (0..20_000u64).for_each(|key| store.put(&key, &key.to_le_bytes()).unwrap());
    let given_back = store.compact().unwrap();
    let space = store.stats().space;
    assert!(given_back > 18_000_000 && space.log_bytes < 20_000 * 60 + (4 << 20), "{given_back} {space:?}");
    assert!(space.dead_bytes < 4 << 20, "{space:?}");
    assert!((0..20_000u64).all(|key| store.get(&key).unwrap().as_deref() == Some(&key.to_le_bytes()[..])));
}

/// The share of the index was not taken off the log's while nothing was split, though overflow buckets came.
#[test]
fn the_budget_is_kept_between_two_doublings() {
    let memory = 64 << 20;
    let store: Store<u64, u64> = Options::new().memory(memory).background(false).open_on(Arc::new(MemoryDevice::new())).unwrap();
    for n in 0..3_000_000u64 {
        store.put(&n, &n).unwrap();
        if n % 64 == 0 {
            let stats = store.stats().memory;
            assert!(stats.total_bytes <= stats.budget_bytes + (128 << 10), "{n}: {stats:?}");
        }
    }
}

/// Until the driver, who looks once a second, has given it back: the last one to go may be what it looked at, so somebody guesses on.
fn await_space<V: Value + ?Sized>(store: &Store<u64, V>, what: &str, is_back: impl Fn(&SpaceStats) -> bool, guess: impl Fn(u64)) {
    for looks in 0.. {
        let space = store.stats().space;
        if is_back(&space) {
            break;
        }
        assert!(looks < 6000, "{what}: {space:?}");
        std::thread::sleep(Duration::from_millis(10));
        guess(looks);
    }
}

/// Who shortens or deletes cold values without reading them does not know how long they were: nothing of them came back.
#[test]
fn space_of_what_transactions_delete_comes_back() {
    let keys = 3000u64;
    for by in ["delete", "transaction", "transaction that has read", "rmw in a transaction", "put"] {
        let store: Store<u64, [u8]> = Options::new().memory("32MiB").open_in(Arc::new(MemoryStorage::new())).unwrap();
        (0..keys).for_each(|key| store.put(&key, &[7; 20_000]).unwrap());
        store.commit().unwrap();
        for key in (0..keys).rev() {
            match by {
                "delete" => assert!(store.delete(&key).unwrap()),
                "transaction" => drop(store.transaction(|tx| tx.delete(&key)).unwrap()),
                "transaction that has read" => store
                    .transaction(|tx| {
                        assert!(tx.contains(&key)?);
                        tx.delete(&key).map(drop)
                    })
                    .unwrap(),
                "rmw in a transaction" => drop(store.transaction(|tx| tx.rmw(&key, |_| vec![1])).unwrap()),
                _ => store.put(&key, &[1]).unwrap(),
            }
        }
        store.commit().unwrap();
        await_space(&store, by, |space| space.log_bytes < 24 << 20, |looks| store.put(&(looks % keys), &[2]).unwrap());
    }
}

/// A budget was refused for what was dead already, until the driver had seen to that, or somebody called `compact`.
#[test]
fn what_is_dead_is_no_reason_to_refuse_a_budget() {
    for in_background in [false, true] {
        let store: Store<u64, [u8]> = Options::new().memory("48MiB").background(in_background).in_memory().unwrap();
        (0..300_000).for_each(|key| store.put(&key, &[key as u8; 90]).unwrap());
        (0..300_000).filter(|key| key % 10 != 0).for_each(|key| assert!(store.delete(&key).unwrap()));
        store.set_memory(20 << 20).unwrap();
        assert!((0..300_000).all(|key| store.get(&key).unwrap().is_some_and(|value| value == [key as u8; 90]) == (key % 10 == 0)));
        assert!(store.stats().memory.total_bytes <= 21 << 20);
        // What lives is one.
        store.set_memory(48 << 20).unwrap();
        (0..250_000).for_each(|key| store.put(&key, &[1; 90]).unwrap());
        assert!(matches!(store.set_memory(20 << 20), Err(Error::Invalid(_))));
        assert_eq!(store.get(&249_999).unwrap().as_deref(), Some(&[1; 90][..]));
    }
}

/// What had been guessed of long values in a former life of the store hid all that died uncounted since.
#[test]
fn what_was_guessed_before_hides_nothing_that_dies_later() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").open_in(Arc::new(MemoryStorage::new())).unwrap();
    let long = |key| key + (1 << 32);
    for _ in 0..3 {
        (0..3000u64).for_each(|key| store.put(&long(key), &[1; 40_000]).unwrap());
    }
    (0..3000u64).for_each(|key| assert!(store.delete(&long(key)).unwrap()));
    store.commit().unwrap();
    store.compact().unwrap();
    (0..3000u64).for_each(|key| store.put(&key, &[7; 20_000]).unwrap());
    store.commit().unwrap();
    (0..3000u64).rev().for_each(|key| assert!(store.transaction(|tx| tx.delete(&key)).unwrap()));
    store.commit().unwrap();
    await_space(&store, "later", |space| space.log_bytes < 24 << 20, |looks| store.put(&(looks % 3000), &[2]).unwrap());
}

/// A word that ends is longer than one that does not: what took its place unread counted too little, and the log grew with each round.
#[test]
fn ends_of_words_do_not_make_the_log_grow() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(Arc::new(MemoryStorage::new())).unwrap();
    for round in 0..20 {
        for key in 0..200_000u64 {
            store.put(&key, &round).unwrap();
            store.put_with_ttl(&key, &round, Duration::from_secs(86_400)).unwrap();
        }
    }
    let is_back = |space: &SpaceStats| space.live_bytes < 16 << 20 && space.log_bytes < 36 << 20;
    await_space(&store, "words", is_back, |looks| store.put(&(looks % 200_000), &2).unwrap());
}

/// What threads had not filled of their pieces when the store was closed counted as alive ever after.
#[test]
fn what_pieces_left_is_known_after_reopening() {
    let files = Arc::new(MemoryStorage::new());
    let open = || -> Store<u64, u64> { Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap() };
    for life in 0..200u64 {
        let store = open();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let store = &store;
                scope.spawn(move || (0..50).for_each(|key| store.put(&(thread << 32 | key), &life).unwrap()));
            }
        });
        store.close().unwrap();
    }
    // 9.6 KB are alive, and the last pieces.
    let space = open().stats().space;
    assert!(space.live_bytes < 256 << 10, "{space:?}");
}
