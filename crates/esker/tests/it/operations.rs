//! Every operation, in memory and spilling to a device, on both layouts; reopening keeps all.

use esker::rehearse::Crowding;
use esker::{Durability, Error, MemoryDevice, MemoryStorage, Options, Storage, Store, Strategy, Warning};
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const KEYS: u64 = 400_000;

fn everything(store: &Store<u64, u64>) {
    for key in 0..KEYS {
        store.put(&key, &(key + 1)).unwrap();
    }
    for key in 0..KEYS {
        assert_eq!(store.get(&key).unwrap(), Some(key + 1), "key {key}");
    }
    assert_eq!(store.get(&KEYS).unwrap(), None);
    for key in (0..KEYS).step_by(2) {
        assert_eq!(store.rmw(&key, |old| old.unwrap() * 2).unwrap(), (key + 1) * 2);
    }
    for key in (0..KEYS).step_by(5) {
        assert!(store.delete(&key).unwrap());
        assert!(!store.delete(&key).unwrap());
    }
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut visited = 0;
    store
        .get_many(&keys, |i, value| {
            visited += 1;
            let key = i as u64;
            let want = if key.is_multiple_of(5) {
                None
            } else if key.is_multiple_of(2) {
                Some((key + 1) * 2)
            } else {
                Some(key + 1)
            };
            assert_eq!(value, want, "key {key}");
        })
        .unwrap();
    assert_eq!(visited, KEYS);
}

#[test]
fn words_in_memory() {
    everything(&Options::new().memory("64MiB").in_memory().unwrap());
}

#[test]
fn words_larger_than_memory() {
    let store = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    everything(&store);
    for key in KEYS..2 * KEYS {
        store.put(&key, &key).unwrap();
    }
    assert!(store.stats().log.head > store.stats().log.begin, "the data must have spilled");
    for key in KEYS..2 * KEYS {
        assert_eq!(store.get(&key).unwrap(), Some(key));
    }
}

/// More keys than entries: a put goes before what it does not know, its own or another's, and reads none of it.
#[test]
fn puts_go_before_what_is_on_the_device() {
    const KEYS: u64 = 1_600_000;
    let options = Options::new().memory("16MiB").background(false);
    let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    // Each key once, far from the one before; the second time as a batch puts them, too.
    let key = |n: u64| n * 999_983 % KEYS;
    (0..KEYS).for_each(|n| store.put(&key(n), &n).unwrap());
    (0..KEYS / 2).for_each(|n| store.put(&key(n), &(n + 1)).unwrap());
    let rest: Vec<(u64, u64)> = (KEYS / 2..KEYS).map(|n| (key(n), n + 1)).collect();
    store.put_many(&rest).unwrap();
    let stats = store.stats();
    assert!(stats.index.entries < KEYS, "keys must share entries");
    assert_eq!(stats.operations.device_reads, 0);
    assert_eq!(stats.operations.puts, 2 * KEYS);
    let mut visited = 0;
    let keys: Vec<u64> = (0..KEYS).map(key).collect();
    let check = |n: usize, value: Option<u64>| {
        visited += 1;
        assert_eq!(value, Some(n as u64 + 1), "key {}", keys[n]);
    };
    store.get_many(&keys, check).unwrap();
    assert_eq!(visited, KEYS);
}

/// It was found too much when its files were there already, of a length that comes from it.
#[test]
fn a_budget_beyond_all_address_space_leaves_no_store_behind() {
    let place = tempfile::tempdir().unwrap();
    let refused = Options::new().memory("100TiB").open::<u64, u64>(place.path().join("store"));
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(!place.path().join("store").exists());
}

/// What a batch borrows its keys from is the caller's code: from some time on it lends a longer one.
#[test]
fn a_key_that_becomes_too_long_is_refused() {
    struct Longer {
        asked: Cell<u32>,
        from: u32,
        short: [u8; 100],
        long: Vec<u8>,
    }
    impl Borrow<[u8]> for Longer {
        fn borrow(&self) -> &[u8] {
            self.asked.set(self.asked.get() + 1);
            if self.asked.get() > self.from { &self.long } else { &self.short }
        }
    }
    let options = || Options::new().memory("16MiB").background(false).durability(Durability::Always);
    let files = Arc::new(MemoryStorage::new());
    let store: Store<[u8], [u8]> = options().open_in(files.clone()).unwrap();
    let key = |from| Longer { asked: Cell::new(0), from, short: [7; 100], long: vec![7; 131_172] };
    let is_refused = |done: Result<(), Error>| match done {
        Err(Error::Invalid(_)) => true,
        done => done.map(|()| false).unwrap(),
    };
    let mut refused = 0;
    for from in 0..6 {
        let value = b"value".to_vec();
        refused += u32::from(is_refused(store.put_many(&[(key(from), value.clone())])));
        refused += u32::from(is_refused(store.rmw_many(&[key(from)], |_, _| value.clone())));
        refused += u32::from(is_refused(store.append_many(&[(key(from), value.clone())])));
    }
    assert!(refused > 3, "{refused}");
    store.close().unwrap();
    let store: Store<[u8], [u8]> = options().open_in(files).unwrap();
    store.scan().for_each(|key, _| assert_eq!(key, [7; 100])).unwrap();
    assert!(store.get(&[7; 100][..]).unwrap().is_some());
}

#[test]
fn bytes_larger_than_memory() {
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    let key = |n: u32| format!("user:{n}").into_bytes();
    for n in 0..100_000 {
        store.put(&key(n), &vec![n as u8; n as usize % 300]).unwrap();
    }
    for n in 0..100_000 {
        assert_eq!(store.append(&key(n), b"tail").unwrap(), n as usize % 300 + 4);
    }
    for n in 0..100_000 {
        let want = [vec![n as u8; n as usize % 300], b"tail".to_vec()].concat();
        assert_eq!(store.get(&key(n)).unwrap(), Some(want), "key {n}");
    }
    assert!(store.stats().operations.device_reads > 0);
}

#[test]
fn reopening_keeps_everything() {
    const NAMES: u64 = 6_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let value = |n: u64, round: u64| [vec![n as u8; 2_000], round.to_le_bytes().to_vec()].concat();
    {
        let store: Store<str, [u8]> = Options::new().memory("16MiB").open(&path).unwrap();
        for n in 0..NAMES {
            store.put(&format!("key {n}"), &value(n, 0)).unwrap();
        }
        assert!(matches!(Options::new().open::<str, [u8]>(&path), Err(Error::Locked(_))));
        store.close().unwrap();
        assert!(matches!(store.get("key 1"), Err(Error::Closed)));
    }
    for round in 0..3 {
        let store: Store<str, [u8]> = Options::new().memory("16MiB").open(&path).unwrap();
        for n in 0..NAMES {
            assert_eq!(store.get(&format!("key {n}")).unwrap(), Some(value(n, round)), "key {n}");
            store.rmw(&format!("key {n}"), |_| value(n, round + 1)).unwrap();
        }
    }
    assert!(matches!(Options::new().open::<u64, u64>(&path), Err(Error::Invalid(_))));
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    assert!(matches!(Options::new().open::<u64, u64>(folder.path()), Err(Error::Invalid(_))));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_full_memory_store_says_so_and_goes_on_in_place() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let mut stored = 0;
    while store.put(&stored, &stored).is_ok() {
        stored += 1;
    }
    assert!(matches!(store.put(&stored, &0), Err(Error::Full)));
    assert!(stored > 300_000, "only {stored} pairs fit");
    for key in 0..stored {
        assert_eq!(store.get(&key).unwrap(), Some(key));
        store.put(&key, &(key + 1)).unwrap();
    }
}

#[test]
fn closures_may_not_come_back_into_the_store() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    store.put(&1, &1).unwrap();
    store
        .rmw(&1, |old| {
            assert!(matches!(store.put(&2, &2), Err(Error::Invalid(_))));
            assert!(matches!(store.get(&1), Err(Error::Invalid(_))));
            assert!(matches!(store.rmw(&2, |_| 2), Err(Error::Invalid(_))));
            assert!(matches!(store.delete(&1), Err(Error::Invalid(_))));
            assert!(matches!(store.close(), Err(Error::Invalid(_))));
            old.unwrap()
        })
        .unwrap();
    // Who counts under another operation's pin makes that pin look as if it were over.
    let counted = store.stats().operations;
    assert_eq!((counted.puts, counted.gets, counted.rmws, counted.deletes), (1, 0, 1, 0), "a refused call was counted");
}

/// A thread has its slot at one place in all stores: what bars it from one store must not end because it was in another.
#[test]
fn a_closure_may_use_another_store_and_not_its_own() {
    let new = || Options::new().memory("16MiB").in_memory::<u64, u64>().unwrap();
    let (own, other) = (new(), new());
    own.put(&1, &1).unwrap();
    let refused =
        |store: &Store<u64, u64>| matches!(store.get(&1), Err(Error::Invalid(_))) && matches!(store.put(&1, &9), Err(Error::Invalid(_)));
    let use_both = || {
        own.rmw(&1, |old| {
            other.put(&1, &5).unwrap();
            let inner = other.rmw(&1, |old| old.unwrap() + u64::from(refused(&own) && refused(&other))).unwrap();
            assert_eq!((inner, other.get(&1).unwrap()), (6, Some(6)));
            assert!(refused(&own), "it was let in after another store's calls");
            old.unwrap() + 1
        })
    };
    assert_eq!(use_both().unwrap(), 2);
    // As the first thing that a thread does, too.
    assert_eq!(std::thread::scope(|scope| scope.spawn(use_both).join().unwrap()).unwrap(), 3);
    let panics = || own.rmw(&1, |_| panic!("in a closure"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!((use_both().unwrap(), own.get(&1).unwrap(), other.get(&1).unwrap()), (4, Some(4), Some(6)));
}

/// Who still reads does not keep a closed store's directory from others.
#[test]
fn a_directory_can_be_opened_when_its_store_was_closed_beside_a_scan() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new().memory("16MiB").open::<u64, [u8]>(folder.path());
    let store = open().unwrap();
    (0..64_000u64).for_each(|n| store.put(&n, &[n as u8; 1000]).unwrap());
    let mut again = None;
    let scanned = store.scan().by_log().for_each(|_, _| {
        again.get_or_insert_with(|| {
            assert!(matches!(open(), Err(Error::Locked(_))));
            store.close().unwrap();
            open().map(|again| again.get(&7).unwrap().unwrap()[0])
        });
    });
    assert_eq!(again.unwrap().unwrap(), 7);
    assert!(matches!(scanned, Ok(()) | Err(Error::Closed)), "{scanned:?}");
}

#[test]
fn sizes_at_their_limits() {
    let store: Store<[u8], [u8]> = Options::new().memory("64MiB").open_temporary().unwrap();
    store.put(b"", b"").unwrap();
    assert_eq!(store.get(b"").unwrap(), Some(vec![]));
    let key = vec![7; 64 << 10];
    for n in 0..12u8 {
        store.put(&key, &vec![n; 16 << 20]).unwrap();
        assert_eq!(store.get(&key).unwrap(), Some(vec![n; 16 << 20]));
    }
    assert!(matches!(store.put(b"k", &vec![0; (16 << 20) + 1]), Err(Error::Invalid(_))));
    assert!(matches!(store.put(&vec![0; (64 << 10) + 1], b""), Err(Error::Invalid(_))));
}

#[test]
fn threads_lose_no_update() {
    for hybrid in [false, true] {
        let options = Options::new().memory("16MiB");
        let store: Store<u64, u64> = if hybrid { options.open_temporary().unwrap() } else { options.in_memory().unwrap() };
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..40_000u64 {
                        store.rmw(&(n % 16), |old| old.unwrap_or(0) + 1).unwrap();
                        store.put(&(1_000 + thread * 40_000 + n), &n).unwrap();
                    }
                });
            }
        });
        for key in 0..16 {
            assert_eq!(store.get(&key).unwrap(), Some(20_000));
        }
    }
}

#[test]
fn a_thread_that_stays_inside_an_operation_is_named() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    store.put(&1, &1).unwrap();
    assert_eq!(store.stats().warnings, []);
    let (entered, inside) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    std::thread::scope(|scope| {
        let sleeper = std::thread::Builder::new().name("sleeper".into());
        let sleeps = || {
            store.rmw(&1, |old| {
                entered.send(()).unwrap();
                // Once the other end is gone. It may run again, for a line began meanwhile.
                let _ = left.lock().unwrap().recv();
                old.unwrap() + 1
            })
        };
        let sleeper = sleeper.spawn_scoped(scope, sleeps).unwrap();
        inside.recv().unwrap();
        let commit = scope.spawn(|| store.commit());
        let named = |warning: &Warning| matches!(warning, Warning::LongPin { thread, .. } if thread == "sleeper");
        while !store.stats().warnings.iter().any(named) {
            std::thread::yield_now();
        }
        drop(leave);
        assert_eq!(sleeper.join().unwrap().unwrap(), 2);
        commit.join().unwrap().unwrap();
    });
    assert_eq!(store.stats().warnings, []);
}

/// When one drain ended the thread that another one waited for was named no more.
#[test]
fn a_thread_that_stays_inside_is_named_though_another_has_left() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    (1..3).for_each(|key| store.put(&key, &key).unwrap());
    let pause = || std::thread::sleep(Duration::from_millis(1));
    let stay = |key: u64, inside: &AtomicBool, may_leave: &AtomicBool| {
        let update = |old: Option<u64>| {
            inside.store(true, SeqCst);
            while !may_leave.load(SeqCst) {
                pause();
            }
            old.unwrap() + 1
        };
        store.rmw(&key, update).unwrap();
    };
    let [known, begins, first_in, first_out, second_in, second_out] = &<[AtomicBool; 6]>::default();
    let until = |flag: &AtomicBool| {
        while !flag.load(SeqCst) {
            pause();
        }
    };
    let is_named = |name: &str| {
        let names = |warning: &Warning| matches!(warning, Warning::LongPin { thread, .. } if thread == name);
        store.stats().warnings.iter().any(names)
    };
    std::thread::scope(|scope| {
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        // The number of the first is the lower one: drains look at it first.
        let first = || {
            store.get(&1).unwrap();
            known.store(true, SeqCst);
            until(begins);
            stay(1, first_in, first_out);
        };
        named("first").spawn_scoped(scope, first).unwrap();
        until(known);
        named("second").spawn_scoped(scope, || stay(2, second_in, second_out)).unwrap();
        until(second_in);
        scope.spawn(|| drop(store.begin().unwrap()));
        while !is_named("second") {
            pause();
        }
        begins.store(true, SeqCst);
        until(first_in);
        scope.spawn(|| drop(store.begin_read().unwrap()));
        std::thread::sleep(Duration::from_millis(200));
        second_out.store(true, SeqCst);
        while !is_named("first") {
            pause();
        }
        first_out.store(true, SeqCst);
    });
}

#[test]
fn chains_of_many_keys_are_told() {
    let crowding = Crowding { hash_seed: [3, 4], index_bytes: 16 << 10 };
    let options = Options::new().memory("16MiB").background(false).crowding(crowding);
    let store: Store<u64, u64> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..500u64).for_each(|n| store.put(&n, &n).unwrap());
    assert!(store.stats().warnings.is_empty() && !store.stats().index.shared);
    (0..20_000u64).for_each(|n| store.put(&n, &n).unwrap());
    let (stats, expected) = (store.stats(), 20_000.0 / store.stats().index.entries as f64);
    assert!(stats.index.shared);
    let [Warning::LongChains { average }] = stats.warnings[..] else { panic!("{:?}", stats.warnings) };
    assert!(expected > 4.0 && (average / expected - 1.0).abs() < 0.2, "{average}, where {expected} are");
}

/// Versions of a key lie on its chain, and a lookup ends at the first: that was told as too few entries.
#[test]
fn many_versions_of_few_keys_are_no_long_chains() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").history(true).open_temporary().unwrap();
    (0..20_000u64).for_each(|n| store.put(&(n % 100), &n).unwrap());
    let stats = store.stats();
    assert!(stats.index.chain_lengths.len() > 50, "{:?}", stats.index.chain_lengths);
    assert_eq!(stats.warnings, []);
}

#[test]
fn a_budget_far_too_small_is_said() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    for n in 0..200_000u64 {
        store.put(&n, &[7; 300]).unwrap();
    }
    for n in 0..20_000u64 {
        assert!(store.contains(&(n * 7)).unwrap());
    }
    let is_bound = |store: &Store<u64, [u8]>| {
        let warnings = store.stats().warnings;
        warnings.iter().any(|warning| matches!(warning, Warning::DiskBound { reads_per_get } if *reads_per_get > 0.5))
    };
    assert!(is_bound(&store), "{:?}", store.stats());

    // What a scan reads says nothing about the keys in use.
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    (0..100_000u64).for_each(|n| store.put(&n, &[7; 300]).unwrap());
    (0..20_000u64).for_each(|n| assert!(store.contains(&(99_000 + n % 1_000)).unwrap()));
    while store.stats().operations.scan_reads <= 10_000 {
        assert_eq!(store.scan().by_index().aggregate(esker::aggregate::Count).unwrap(), 100_000);
    }
    let done = store.stats().operations;
    assert!(done.scan_reads <= done.device_reads, "{done:?}");
    assert!(!is_bound(&store), "{:?}", store.stats());
}

/// A key that is not there while its bucket moves must be looked up again; in a store without a device that was an error.
/// Found by the short histories of transactions.
#[test]
fn absent_keys_of_batches_stay_absent_while_the_index_grows() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..1_000_000u64 {
                store.put(&n, &n).unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let absent: Vec<u64> = (0..64).map(|n| u64::MAX - n).collect();
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            store.get_many(&absent, |_, value| assert_eq!(value, None)).unwrap();
        }
    });
}

/// A value that becomes much shorter gives up the room behind it: who waited for the record meanwhile must ask again how much is left.
#[test]
fn a_put_that_waited_while_the_value_shrank_writes_over_nobody() {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").background(false);
    let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
    store.put(&1, &[1; 3000]).unwrap();
    store.put(&2, b"kept").unwrap();
    let (shrinks, puts) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A thread's first call takes the long way.
            store.put(&3, b"first").unwrap();
            shrinks.wait();
            puts.store(true, SeqCst);
            store.put(&1, &[0; 2000]).unwrap();
        });
        let mut is_first = true;
        let shorter = store.rmw(&1, |_| {
            if std::mem::take(&mut is_first) {
                shrinks.wait();
                while !puts.load(SeqCst) {
                    std::thread::yield_now();
                }
                // Until it waits for the record, most likely.
                std::thread::sleep(Duration::from_millis(30));
            }
            vec![1; 10]
        });
        shorter.unwrap();
    });
    assert_eq!(store.get(&1).unwrap().unwrap(), [0; 2000]);
    // In place, in whatever the record has room for now.
    store.put(&1, &[1]).unwrap();
    store.commit().unwrap();
    let again: Store<u64, [u8]> = options().open_in(Arc::new(files.copy())).unwrap();
    for store in [store, again] {
        let mut pairs = store.scan().by_log().collect::<Vec<_>>().unwrap();
        pairs.sort();
        assert_eq!(pairs, [(1, vec![1]), (2, b"kept".to_vec()), (3, b"first".to_vec())]);
    }
}

/// A value of some words that changes in place is read as it was at one moment, each way that a get may go.
#[test]
fn no_short_value_is_torn() {
    fn check<V: for<'a> esker::Value<Owned = V, View<'a> = V> + Copy + PartialEq + std::fmt::Debug + Send + Sync>(values: [V; 2]) {
        const ROUNDS: usize = 100_000;
        let store: Store<u64, V> = Options::new().memory("16MiB").in_memory().unwrap();
        store.put(&1, &values[0]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).for_each(|round| store.put(&1, &values[round % 2]).unwrap()));
            for round in 0..ROUNDS {
                let seen = if round % 2 == 0 { store.get(&1).unwrap() } else { store.get_with(&1, |view| view).unwrap() };
                assert!(values.map(Some).contains(&seen), "{seen:?}");
            }
        });
        assert_eq!(store.get(&1).unwrap(), Some(values[(ROUNDS - 1) % 2]));
        assert_eq!(store.get_with(&2, |view| view).unwrap(), None);
    }
    check([[1u64; 2], [2; 2]]);
    check([[1u64; 4], [2; 4]]);
    check([[1u8; 21], [2; 21]]);
    check([[1u32; 3], [2; 3]]);
    check([[1u64; 8], [2; 8]]);
    // With a buffer.
    check([[1u64; 9], [2; 9]]);
}

/// Single calls and batches on keys that are there, cold where the store has a device, and on absent ones; each is counted once.
fn every_call_is_counted<V: esker::Value + ?Sized>(name: &str, store: &Store<u64, V>, head: u64, value: &V, own: impl Fn() -> V::Owned)
where
    V::Owned: Clone,
{
    let mut fresh = 1_000..;
    let mut puts = 0;
    let mut put = |key: u64| {
        store.put(&key, value).unwrap();
        puts += 1;
    };
    (0..1_000).for_each(&mut put);
    // On a device what was first is cold then.
    while store.stats().log.head < head {
        fresh.by_ref().take(10_000).for_each(&mut put);
    }
    let before = store.stats().operations;
    assert_eq!(before.puts, puts, "{name}");

    let absent = 1 << 40;
    let batch: Vec<u64> = (100..300).chain(absent + 100..absent + 110).collect();
    for key in [0, 1, absent] {
        store.get(&key).unwrap();
        store.get_with(&key, |_| ()).unwrap();
        store.contains(&key).unwrap();
        // On what is cold or frozen, then on what the first one made mutable.
        for _ in 0..2 {
            store.rmw(&key, |_| own()).unwrap();
            store.put(&key, value).unwrap();
        }
        store.delete(&key).unwrap();
        store.delete(&key).unwrap();
    }
    store.get_many(&batch, |_, _| ()).unwrap();
    for _ in 0..2 {
        store.rmw_many(&batch, |_, _| own()).unwrap();
        store.put_many(&batch.iter().map(|key| (*key, own())).collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(store.delete_many(&batch).unwrap(), batch.len());
    assert_eq!(store.delete_many(&batch).unwrap(), 0);
    let (after, calls) = (store.stats().operations, batch.len() as u64);
    let counted = |count: fn(&esker::OperationStats) -> u64| count(&after) - count(&before);
    assert_eq!(counted(|count| count.gets), 9 + calls, "{name}: gets");
    assert_eq!(counted(|count| count.misses), 3 + 10, "{name}: gets that found nothing");
    assert_eq!(counted(|count| count.rmws), 6 + 2 * calls, "{name}: updates");
    assert_eq!(counted(|count| count.puts), 6 + 2 * calls, "{name}: puts");
    assert_eq!(counted(|count| count.deletes), 6 + 2 * calls, "{name}: deletes");
}

#[test]
fn every_call_is_counted_once() {
    const COLD: u64 = 4 << 20;
    let options = || Options::new().memory("16MiB");
    every_call_is_counted::<u64>("words in memory", &options().in_memory().unwrap(), 0, &7, || 8);
    every_call_is_counted::<u64>("words on a device", &options().open_on(Arc::new(MemoryDevice::new())).unwrap(), COLD, &7, || 8);
    every_call_is_counted::<[u64; 4]>("short values in memory", &options().in_memory().unwrap(), 0, &[7; 4], || [8; 4]);
    let store = options().open_on(Arc::new(MemoryDevice::new())).unwrap();
    every_call_is_counted::<[u64; 4]>("short values on a device", &store, COLD, &[7; 4], || [8; 4]);
    every_call_is_counted::<[u8]>("bytes in memory", &options().in_memory().unwrap(), 0, &[7; 300], || vec![8; 320]);
    let store = options().open_on(Arc::new(MemoryDevice::new())).unwrap();
    every_call_is_counted::<[u8]>("bytes on a device", &store, COLD, &[7; 300], || vec![8; 320]);
    // Where each call waits for a line no write is done at once.
    let always = || options().durability(Durability::Always);
    let storage = Arc::new(MemoryStorage::new());
    every_call_is_counted::<[u64; 4]>("durable calls", &always().open_in(storage).unwrap(), 0, &[7; 4], || [8; 4]);
}

#[test]
fn every_append_is_counted_once() {
    for in_memory in [true, false] {
        let options = Options::new().memory("16MiB");
        let store: Store<u64, [u8]> =
            if in_memory { options.in_memory().unwrap() } else { options.open_on(Arc::new(MemoryDevice::new())).unwrap() };
        let keys = if in_memory { 1_000 } else { 60_000 };
        for key in 0..keys {
            store.append(&key, &[1; 300]).unwrap();
        }
        for _ in 0..3 {
            store.append_many(&(0..100).map(|key| (key, [2; 10])).collect::<Vec<_>>()).unwrap();
            (0..100).for_each(|key| assert!(store.append(&key, &[3; 10]).unwrap() > 300));
        }
        assert_eq!(store.stats().operations.appends, keys + 600, "in memory: {in_memory}");
        assert_eq!(store.get(&7).unwrap().unwrap().len(), 360);
    }
}

/// A value that grows by little is copied now and then, and not each time: what its log takes is a small multiple of its length.
#[test]
fn a_value_that_grows_is_copied_seldom() {
    const LENGTH: u64 = 1 << 20;
    const BIT: u64 = 16;
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let begin = store.stats().log.tail;
    for n in 0..LENGTH / BIT {
        assert_eq!(store.append(&1, &[n as u8; BIT as usize]).unwrap() as u64, (n + 1) * BIT);
    }
    let written = store.stats().log.tail - begin;
    // Copied each time, it would take 32 GiB.
    assert!((LENGTH..8 * LENGTH).contains(&written), "{written} bytes for {LENGTH}");
    assert!(store.get(&1).unwrap().unwrap().chunks(BIT as usize).zip(0u64..).all(|(bit, n)| bit == [n as u8; BIT as usize]));
}

#[test]
fn numbers_of_bytes_may_be_text() {
    let options = || Options::new().memory("16MiB").background(false);
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options().segment_bytes("64KiB").open_in(files.clone()).unwrap();
    (0..10_000).for_each(|key| store.put(&key, &key).unwrap());
    store.commit().unwrap();
    // 24 bytes each.
    assert!(files.open("esker.log.00000002").unwrap().bytes().unwrap() > 0);
    store.set_memory("32MiB").unwrap();
    assert_eq!(store.stats().memory.budget_bytes, 32 << 20);
    store.set_memory(17 << 20).unwrap();
    assert!(matches!(store.set_memory("much"), Err(Error::Invalid(told)) if told.contains("`much`")));
    assert_eq!(store.stats().memory.budget_bytes, 17 << 20);
    let opened = options().segment_bytes("long").open_temporary::<u64, u64>();
    assert!(matches!(opened, Err(Error::Invalid(told)) if told.contains("`long`")));
}

/// What is written at once may be most of the memory that the log has: room was once never found beside the longest record so far.
#[test]
fn room_is_found_for_the_longest_values() {
    let long = vec![7; 16 << 20];
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").open_temporary().unwrap();
    for round in 0..2u64 {
        let put_three = |tx: &mut esker::Transaction<'_, u64, [u8]>| (0..3).try_for_each(|n| tx.put(&(3 * round + n), &long));
        store.transaction(put_three).unwrap();
    }
    // Less than one of them needs.
    store.set_memory(16 << 20).unwrap();
    for key in 100..20_000u64 {
        store.put(&key, &[1; 1024]).unwrap();
    }
    assert!((0..6).all(|key| store.get(&key).unwrap().as_ref() == Some(&long)));
    assert_eq!(store.get(&19_999).unwrap().unwrap(), [1; 1024]);
    let error = store.put(&0, &long).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    // What is there already is moved all the same.
    (100..10_000u64).for_each(|key| assert!(store.delete(&key).unwrap()));
    store.compact().unwrap();
    assert!((0..6).all(|key| store.get(&key).unwrap().as_ref() == Some(&long)));
}

/// Where a long value takes nearly all of the log's memory what lies before it goes to the device to its end, for gets and for a scan under
/// way.
#[test]
fn what_gives_way_to_a_long_value_can_be_read() {
    let long = vec![7; 4 << 20];
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).open_temporary().unwrap();
    // The log's memory is less than the longest record so far.
    store.put(&2_000_000, &[1; 16 << 20]).unwrap();
    store.set_memory(17 << 20).unwrap();
    let value = |key: u64| vec![key as u8; 1000 + key as usize % 37];
    let (mut keys, put_some) = (0..0, |store: &Store<u64, [u8]>, keys: &mut std::ops::Range<u64>| {
        keys.end += 300;
        (keys.end - 300..keys.end).for_each(|key| store.put(&key, &value(key)).unwrap());
    });
    for round in 0..8 {
        put_some(&store, &mut keys);
        let (mut is_first, mut met) = (true, 0);
        store
            .scan()
            .by(Strategy::ByLog)
            .for_each(|key, found: &[u8]| {
                if std::mem::take(&mut is_first) {
                    // The last one needs room that the first one has in part.
                    (0..4).for_each(|n| store.put(&(1_000_000 + n), &long[round..]).unwrap());
                }
                met += u64::from(key < 1_000_000 && found == value(key));
            })
            .unwrap();
        assert_eq!(met, keys.end);
        // The first of them begins where memory does not reach, and ends where it does.
        assert!((0..4).all(|n| store.get(&(1_000_000 + n)).unwrap().as_deref() == Some(&long[round..])), "round {round}");
        for key in keys.clone() {
            assert!(store.get(&key).unwrap() == Some(value(key)), "key {key} after round {round}");
        }
    }
}

#[test]
fn a_quarter_of_the_budget_fits_beside_an_index_of_half() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    let pairs: Vec<(u64, [u8; 1])> = (0..900_000).map(|n| (n, [n as u8])).collect();
    store.put_many(&pairs).unwrap();
    let longest = vec![3; 4 << 20];
    for key in 0..4 {
        store.put(&key, &longest).unwrap();
    }
    assert!((0..4).all(|key| store.get(&key).unwrap().as_ref() == Some(&longest)));
    assert_eq!(store.get(&899_999).unwrap().unwrap(), [899_999u32 as u8]);
}

/// An index that has all of its share may be a little larger: for splits under way, and for what recovery finds.
#[test]
fn a_store_opens_with_a_little_less_memory_than_its_index_was_made_for() {
    let folder = tempfile::tempdir().unwrap();
    let open = |memory| -> Store<u64, u64> { Options::new().memory(memory).open(folder.path()).unwrap() };
    let (store, keys) = (open("17MiB"), 1_600_000u64);
    let pairs: Vec<(u64, u64)> = (0..keys).map(|key| (key, !key)).collect();
    store.put_many(&pairs).unwrap();
    assert!(store.stats().memory.index_bytes > 10 << 20, "the index has all of its share");
    store.close().unwrap();
    let store = open("16MiB");
    assert!((0..keys).step_by(1009).all(|key| store.get(&key).unwrap() == Some(!key)));
    store.put(&keys, &1).unwrap();
    assert_eq!(store.get(&keys).unwrap(), Some(1));
}

/// Keys that had come to share entries for want of memory shared them for good, and new ones, too, however large the budget was later.
#[test]
fn entries_are_shared_no_more_when_the_index_is_rebuilt() {
    const KEYS: u64 = 2_400_000;
    let files = Arc::new(MemoryStorage::new());
    let open = |memory: &str, rebuild: bool| -> Store<u64, u64> {
        Options::new().memory(memory).background(false).rebuild_index(rebuild).open_in(files.clone()).unwrap()
    };
    let value = |key: u64, round: u64| (key % 5 != 3 || round == 0).then_some(key + round);
    let check = |store: &Store<u64, u64>| (0..KEYS).step_by(7).for_each(|key| assert_eq!(store.get(&key).unwrap(), value(key, 1), "{key}"));
    let store = open("16MiB", false);
    (0..KEYS).for_each(|key| store.put(&key, &key).unwrap());
    for key in 0..KEYS {
        match value(key, 1) {
            Some(value) => store.put(&key, &value).unwrap(),
            None => assert!(store.delete(&key).unwrap()),
        }
    }
    store.close().unwrap();
    let store = open("256MiB", false);
    let shared = store.stats().index.entries;
    assert!(shared < KEYS / 2, "{shared} entries");
    let is_told = |store: &Store<u64, u64>| store.stats().warnings.iter().any(|told| matches!(told, Warning::SharedEntries { .. }));
    assert!(!is_told(&store), "before anything was read");
    check(&store);
    assert!(is_told(&store), "{:?}", store.stats());
    store.close().unwrap();
    // Nothing of it is written before the opening has succeeded, and what was written counts with the next line.
    let store = open("256MiB", true);
    let own = store.stats().index.entries;
    assert!(own > KEYS / 10 * 7, "{own} entries of {shared}");
    check(&store);
    let mut pairs = 0;
    store.scan().for_each(|_, _| pairs += 1).unwrap();
    assert_eq!(pairs, (0..KEYS).filter(|key| value(*key, 1).is_some()).count() as u64);
    let crashed = Arc::new(files.copy());
    store.close().unwrap();
    drop(store);
    let store = open("256MiB", false);
    assert!(store.stats().index.entries > KEYS / 10 * 7);
    check(&store);
    drop(store);
    let store: Store<u64, u64> = Options::new().memory("256MiB").background(false).open_in(crashed).unwrap();
    check(&store);
}

/// The room to grow that comes with it found no place where the value itself had one.
#[test]
fn an_append_is_not_refused_for_want_of_room_to_grow() {
    const LONG: usize = 2 << 20;
    // In memory there is room for the value once more, and not for half as much again.
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    (0..3).for_each(|key| store.put(&key, &[1; LONG]).unwrap());
    let mut fillers = 10..;
    while store.put(&99, &vec![1; LONG + LONG / 4]).is_ok() {
        assert!(store.delete(&99).unwrap());
        store.put(&fillers.next().unwrap(), &vec![1; 100 << 10]).unwrap();
    }
    let refused = store.append(&0, &[2; 10]);
    assert!(refused.is_ok() || store.put(&1, &[1; LONG + 10]).is_err(), "{refused:?}");
}

/// The room behind a value, up to the next word, took more bytes than a value may have; and what was so long could not be written again.
#[test]
fn no_value_is_longer_than_the_longest() {
    let store: Store<u64, [u8]> = Options::new().memory((16u64 << 20) + 4).background(false).in_memory().unwrap();
    let most = (4 << 20) as usize;
    let longest = (most - 8..=most + 8).rfind(|length| store.put(&1, &vec![1; *length]).is_ok()).unwrap();
    assert!(longest >= most);
    assert!(matches!(store.append(&1, &[1; 1]), Err(Error::Invalid(_))));
    assert!(matches!(store.rmw(&1, |old| [old.unwrap(), &[1; 7]].concat()), Err(Error::Invalid(_))));
    store.put(&1, &vec![1; longest]).unwrap();
}
