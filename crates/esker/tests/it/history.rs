//! Older versions of a key, by number: 0 is the newest.

use esker::{Error, ManualClock, MemoryStorage, Options, Store, Value};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The values of a key's versions.
fn values<V: Value + ?Sized>(store: &Store<u64, V>, key: u64, most: usize) -> Vec<Option<V::Owned>> {
    store.history(&key, most).unwrap().into_iter().map(|version| version.map(|(value, _)| value)).collect()
}

/// All versions of some keys while each is changed in every way there is, in memory and on a device; then compaction, then opening
/// again.
fn agrees_with_a_list<V: Value + ?Sized>(value: impl Fn(u64) -> V::Owned)
where
    V::Owned: PartialEq + std::fmt::Debug + Clone,
{
    const KEYS: u64 = 50;
    const ROUNDS: u64 = 40;
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("16MiB").history(true).background(false);
    let open = || options.clone().open_in::<u64, V>(files.clone()).unwrap();
    let mut store = open();
    let mut lists: Vec<Vec<Option<(V::Owned, _)>>> = vec![Vec::new(); KEYS as usize];
    for round in 0..ROUNDS {
        for key in 0..KEYS {
            let new = value(round * KEYS + key);
            let new: &V = new.borrow();
            match (round + key) % 8 {
                0 => _ = store.delete(&key).unwrap(),
                1 => _ = store.rmw(&key, |_| V::own(new.bytes())).unwrap(),
                2 => store.put_many(&[(key, new)]).unwrap(),
                3 => store.transaction(|tx| tx.put(&key, new)).unwrap(),
                4 => store.transaction(|tx| tx.delete(&key).map(|_| ())).unwrap(),
                5 => _ = store.compare_and_swap(&key, store.get(&key).unwrap().as_ref().map(Borrow::borrow), Some(new)).unwrap(),
                6 => store.rmw_many(&[key], |_, _| V::own(new.bytes())).unwrap(),
                _ => store.put(&key, new).unwrap(),
            }
            let now = store.get_versioned(&key).unwrap();
            let list = &mut lists[key as usize];
            // Deleting what was never there leaves nothing, and twice what once does.
            if list.last() != Some(&now) && (now.is_some() || !list.is_empty()) {
                list.push(now);
            }
        }
        // What is in memory becomes cold little by little.
        (0..20_000).for_each(|n| store.put(&(1_000 + round * 20_000 + n), value(n).borrow()).unwrap());
        match round % 10 {
            3 => store.commit().unwrap(),
            7 => drop(store.begin_read().unwrap()),
            _ => {}
        }
    }
    let check = |store: &Store<u64, V>| {
        for (key, list) in (0..).zip(&lists) {
            let newest_first: Vec<_> = list.iter().rev().cloned().collect();
            assert_eq!(store.history(&key, usize::MAX).unwrap(), newest_first, "key {key}");
            for most in 0..5 {
                assert_eq!(store.history(&key, most).unwrap(), newest_first[..most], "the newest {most} of key {key}");
            }
        }
    };
    check(&store);
    assert!(store.stats().log.head > store.stats().log.begin, "nothing is cold");
    store.close().unwrap();
    store = open();
    check(&store);
    // Compaction takes the oldest, or all but the newest.
    store.compact().unwrap();
    for (key, list) in (0..).zip(&lists) {
        let left = store.history(&key, usize::MAX).unwrap();
        let newest_first: Vec<_> = list.iter().rev().cloned().collect();
        assert_eq!(left, newest_first[..left.len()], "key {key}");
        assert_eq!(left.first().cloned().flatten(), store.get_versioned(&key).unwrap());
    }
}

#[test]
fn each_change_of_a_word_is_a_version() {
    agrees_with_a_list::<u64>(|number| number);
}

#[test]
fn each_change_of_bytes_is_a_version() {
    agrees_with_a_list::<[u8]>(|number| number.to_le_bytes().repeat(1 + number as usize % 5));
}

#[test]
fn each_append_is_a_version() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").history(true).in_memory().unwrap();
    for byte in b"abcdef" {
        store.append(&1, &[*byte]).unwrap();
    }
    assert_eq!(values(&store, 1, 4), ["abcdef", "abcde", "abcd", "abc"].map(|text| Some(text.as_bytes().to_vec())));
}

#[test]
fn an_end_is_an_absence_before_what_ended() {
    fn check<V: Value + ?Sized>(older: &V, newer: &V)
    where
        V::Owned: PartialEq + std::fmt::Debug,
    {
        let clock = Arc::new(ManualClock::default());
        let store: Store<u64, V> = Options::new().memory("16MiB").history(true).clock(clock.clone()).in_memory().unwrap();
        store.put(&1, older).unwrap();
        store.put_with_ttl(&1, newer, Duration::from_millis(10)).unwrap();
        let both = || [newer, older].map(|value| Some(V::own(value.bytes())));
        assert_eq!(values(&store, 1, 9), both());
        clock.advance(Duration::from_millis(10));
        assert_eq!(values(&store, 1, 9)[0], None);
        assert_eq!(values(&store, 1, 9)[1..], both());
        assert_eq!(values(&store, 1, 1), [None]);
        // An end by itself is no version of the value.
        store.put(&2, older).unwrap();
        assert!(store.expire_at(&2, esker::Clock::now(&*clock) + Duration::from_millis(10)).unwrap() && store.persist(&2).unwrap());
        assert_eq!(values(&store, 2, 9).len(), 1);
    }
    check::<u64>(&1, &2);
    check::<[u8]>(b"old", b"newer");
}

/// Without the option: the newest, and what was on the device when it was replaced.
#[test]
fn without_the_option_only_what_was_cold_is_found() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").promotion(false).background(false).open_temporary().unwrap();
    assert!(store.history(&1, 9).unwrap().is_empty());
    (1..=3).for_each(|value| store.put(&1, &value).unwrap());
    assert_eq!(values(&store, 1, 9), [Some(3)]);
    (1_000..1_000_000).for_each(|key| store.put(&key, &key).unwrap());
    assert_eq!(values(&store, 1, 9), [Some(3)]);
    store.put(&1, &4).unwrap();
    assert_eq!(values(&store, 1, 9), [Some(4), Some(3)]);
    store.delete(&1).unwrap();
    assert_eq!(values(&store, 1, 9), [None, Some(3)]);
}

/// Four threads change one key, one at a time by its version; the list is whole and in order.
#[test]
fn versions_of_many_writers_are_in_the_order_of_their_changes() {
    const EACH: u64 = 500;
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").history(true).in_memory().unwrap();
    let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
    let count = |old: Option<&[u8]>| (old.map_or(0, number) + 1).to_le_bytes().to_vec();
    let seen = |most| store.history(&1, most).unwrap().iter().flatten().map(|(value, _)| number(value)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|_| _ = store.rmw(&1, count).unwrap()));
        }
        // A list seen meanwhile has no gap either.
        for _ in 0..50 {
            let seen = seen(10);
            assert!(seen.windows(2).all(|pair| pair[0] == pair[1] + 1), "{seen:?}");
        }
    });
    assert_eq!(seen(usize::MAX), (1..=4 * EACH).rev().collect::<Vec<_>>());
}

#[test]
fn history_answers_as_the_store_does_where_it_cannot_be() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let inside = store.rmw(&1, |_| u64::from(matches!(store.history(&1, 1), Err(Error::Invalid(_))))).unwrap();
    assert_eq!(inside, 1);
    store.close().unwrap();
    assert!(matches!(store.history(&1, 1), Err(Error::Closed)));
}

/// They are taken some at a time, from where the last ones ended; and no figure grows as long.
#[test]
fn many_versions_are_all_found() {
    const VERSIONS: u64 = 200_000;
    let cold = Options::new().memory("16MiB").history(true).background(false).open_in(Arc::new(MemoryStorage::new())).unwrap();
    for store in [Options::new().memory("64MiB").history(true).background(false).in_memory().unwrap(), cold] {
        let store: Store<u64, [u8]> = store;
        let value = |n: u64| n.to_le_bytes().repeat(4);
        (0..VERSIONS).for_each(|n| store.put(&0, &value(n)).unwrap());
        for most in [1, 255, 256, 257, 600, usize::MAX] {
            let newest = values(&store, 0, most);
            assert_eq!(newest.len(), most.min(newest.len()));
            assert!(newest.len() > 10_000 || newest.len() == most);
            assert!(newest.iter().zip((0..VERSIONS).rev()).all(|(found, n)| *found == Some(value(n))), "{most}");
        }
        assert_eq!(store.stats().index.chain_lengths.len(), 256);
    }
}

/// It followed two and a half million versions, for as long as a tenth of a second.
#[test]
fn a_look_at_the_figures_follows_some_versions_and_not_all() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").history(true).background(false).in_memory().unwrap();
    for round in 0..300 {
        (0..1_000).for_each(|key| store.put(&key, &round).unwrap());
    }
    let entries: u64 = store.stats().index.chain_lengths.iter().sum();
    assert!((64..100).contains(&entries), "{entries} of 1,000 entries, each with 256 records or more");
}

/// A value was taken for live by the end of the one before it.
#[test]
fn the_newest_version_has_its_own_end() {
    let store: Store<str, [u8]> = Options::new().memory("64MiB").in_memory().unwrap();
    let (lasting, ended) = (vec![1; 100_000], vec![2; 100_000]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5_000 {
                store.put_with_ttl("k", &lasting, Duration::from_secs(3600)).unwrap();
                store.put_with_ttl("k", &ended, Duration::ZERO).unwrap();
            }
            is_over.store(true, Relaxed);
        });
        while !is_over.load(Relaxed) {
            let newest = store.history("k", 1).unwrap().pop().flatten();
            assert!(newest.is_none_or(|(value, _)| value == lasting));
        }
    });
}
