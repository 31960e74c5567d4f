//! Changes of one key that depend on what it holds.

use esker::{Options, Store};
use std::sync::atomic::{AtomicU64, Ordering::*};

fn words() -> Store<u64, u64> {
    Options::new().memory("16MiB").in_memory().unwrap()
}

fn texts() -> Store<str, [u8]> {
    Options::new().memory("16MiB").in_memory().unwrap()
}

#[test]
fn conditional_writes_change_just_what_they_expect() {
    let words = words();
    assert!(!words.compare_and_swap(&1, Some(&0), Some(&5)).unwrap());
    assert!(words.compare_and_swap(&1, None, None).unwrap() && words.put_if_absent(&1, &0).unwrap());
    assert!(!words.put_if_absent(&1, &9).unwrap() && !words.compare_and_swap(&1, None, Some(&9)).unwrap());
    assert!(words.compare_and_swap(&1, Some(&0), Some(&5)).unwrap());
    assert!(!words.compare_and_swap(&1, Some(&0), None).unwrap());
    assert!(words.compare_and_swap(&1, Some(&5), None).unwrap());
    assert_eq!(words.get(&1).unwrap(), None);
    assert!(words.put_if_absent(&1, &6).unwrap());

    let texts = texts();
    assert!(texts.put_if_absent("a", b"").unwrap() && !texts.put_if_absent("a", b"x").unwrap());
    assert!(texts.compare_and_swap("a", Some(b""), Some(&[7; 5000])).unwrap());
    assert!(!texts.compare_and_swap("a", Some(&[7; 4999]), None).unwrap());
    assert!(texts.compare_and_swap("a", Some(&[7; 5000]), None).unwrap());
    assert!(!texts.contains("a").unwrap() && texts.compare_and_swap("a", None, Some(b"b")).unwrap());
}

#[test]
fn a_version_names_a_value_hot_or_cold() {
    let store: Store<u64, [u8; 1000]> = Options::new().memory("16MiB").open_temporary().unwrap();
    assert!(store.get_versioned(&0).unwrap().is_none());
    store.put(&0, &[1; 1000]).unwrap();
    let (value, first) = store.get_versioned(&0).unwrap().unwrap();
    assert_eq!(value, [1; 1000]);
    for key in 1..40_000 {
        store.put(&key, &[0; 1000]).unwrap();
    }
    assert_eq!(store.get_versioned(&0).unwrap().unwrap().1, first);
    let first = esker::Version::from_u128(first.to_u128());
    assert!(store.put_if_version(&0, first, &[2; 1000]).unwrap());
    assert!(!store.put_if_version(&0, first, &[3; 1000]).unwrap());
    assert!(!store.put_if_version(&50_000, first, &[3; 1000]).unwrap());
    assert_eq!(store.get(&0).unwrap(), Some([2; 1000]));
}

/// Increments by compare-and-swap, insertions and removals by turns: none is lost.
#[test]
fn conditional_writes_of_many_threads_lose_nothing() {
    let store = words();
    let (threads, rounds) = (8, 2_000);
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, won) = (&store, &won);
            scope.spawn(move || {
                for _ in 0..rounds {
                    while {
                        let old = store.get(&1).unwrap();
                        !store.compare_and_swap(&1, old.as_ref(), Some(&(old.unwrap_or(0) + 1))).unwrap()
                    } {}
                    if store.put_if_absent(&2, &thread).unwrap() {
                        won.fetch_add(1, Relaxed);
                        // Nobody else may remove it.
                        assert!(store.compare_and_swap(&2, Some(&thread), None).unwrap());
                    }
                }
            });
        }
    });
    assert_eq!(store.get(&1).unwrap(), Some(threads * rounds));
    assert!(won.load(Relaxed) > 0 && store.get(&2).unwrap().is_none());
}
