//! Transactions, one at a time: what they read, change, refuse and leave behind. (`bank.rs` has many at once.)

use crate::minded::{Call, Minded};
use crate::raise::Raise;
use esker::rehearse::Crowding;
use esker::{Clock, Error, ManualClock, MemoryStorage, Options, Store, Transaction, Ttl};
use std::borrow::Borrow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

const MIB: usize = 1 << 20;

fn words() -> Store<u64, u64> {
    Options::new().memory("16MiB").in_memory().unwrap()
}

fn texts() -> Store<str, [u8]> {
    Options::new().memory("16MiB").in_memory().unwrap()
}

fn is_conflict<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Conflict { .. }))
}

#[test]
fn a_transaction_reads_what_it_wrote_and_nobody_else_does_before_its_commit() {
    let store = texts();
    store.put("a", b"old").unwrap();
    let mut tx = store.begin().unwrap();
    tx.put("a", b"new").unwrap();
    tx.put("b", b"b").unwrap();
    assert_eq!(tx.append("b", b"cd").unwrap(), 3);
    assert_eq!(tx.rmw("a", |old| [old.unwrap(), b"er"].concat()).unwrap(), b"newer");
    assert!(tx.delete("b").unwrap() && !tx.delete("b").unwrap());
    assert_eq!((tx.get("a").unwrap().as_deref(), tx.contains("b").unwrap()), (Some(&b"newer"[..]), false));
    assert_eq!((store.get("a").unwrap().as_deref(), store.get("b").unwrap()), (Some(&b"old"[..]), None));
    tx.put("c", b"").unwrap();
    tx.commit().unwrap();
    let held = ["a", "b", "c"].map(|key| store.get(key).unwrap());
    assert_eq!(held, [Some(b"newer".to_vec()), None, Some(vec![])]);
    assert_eq!(store.stats().operations.transactions, 1);
}

#[test]
fn an_aborted_a_dropped_and_a_failed_transaction_leave_nothing() {
    let store = words();
    store.put(&1, &1).unwrap();
    let fill = |tx: &mut Transaction<'_, u64, u64>| {
        tx.put(&1, &2)?;
        tx.put(&2, &2)?;
        tx.delete(&1)
    };
    let before = store.stats().log.tail;
    let mut tx = store.begin().unwrap();
    fill(&mut tx).unwrap();
    tx.abort();
    fill(&mut store.begin().unwrap()).unwrap();
    let failed = store.transaction(|tx| {
        fill(tx)?;
        Err::<(), _>(Error::Invalid("enough".into()))
    });
    assert!(matches!(failed, Err(Error::Invalid(what)) if what == "enough"));
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap()), (Some(1), None));
    assert_eq!(store.stats().log.tail, before);
}

#[test]
fn what_was_read_and_changed_since_is_a_conflict_that_names_the_key() {
    let store = texts();
    store.put("read", b"1").unwrap();
    let changes: [&dyn Fn(); 5] = [
        &|| store.put("read", b"2").unwrap(),
        &|| _ = store.append("read", b"3").unwrap(),
        &|| assert!(store.delete("read").unwrap()),
        &|| _ = store.rmw("read", |_| b"4".to_vec()).unwrap(),
        &|| assert!(store.compare_and_swap("read", Some(b"4"), Some(b"5")).unwrap()),
    ];
    for change in changes {
        let mut tx = store.begin().unwrap();
        tx.get("read").unwrap();
        tx.put("written", b"1").unwrap();
        change();
        match tx.commit() {
            Err(Error::Conflict { key }) => assert_eq!(&*key, b"read"),
            other => panic!("{other:?}"),
        }
        assert!(!store.contains("written").unwrap());
    }
    assert_eq!(store.stats().operations.conflicts, 5);
}

/// A value that changed and came back did change: what was read beside it may be of the moment between.
#[test]
fn a_word_that_changed_and_came_back_is_the_same_only_by_itself() {
    let store = words();
    store.put_many(&[(1, 1), (2, 2)]).unwrap();
    let mut tx = store.begin().unwrap();
    assert_eq!((tx.get(&1).unwrap(), tx.get(&2).unwrap()), (Some(1), Some(2)));
    store.put(&1, &7).unwrap();
    store.put(&1, &1).unwrap();
    tx.put(&3, &3).unwrap();
    // Under its latch it holds what was read, and so does the other one: there is a moment at which all was true.
    tx.commit().unwrap();
    let mut tx = store.begin().unwrap();
    assert_eq!((tx.get(&1).unwrap(), tx.get(&2).unwrap()), (Some(1), Some(2)));
    store.put(&1, &7).unwrap();
    store.put(&2, &7).unwrap();
    store.put(&1, &1).unwrap();
    tx.put(&3, &4).unwrap();
    assert!(is_conflict(tx.commit()));
    assert_eq!(store.get(&3).unwrap(), Some(3));
}

#[test]
fn an_absence_that_ended_is_a_conflict_and_one_that_came_back_is_none() {
    let store = words();
    let read_absent = || {
        let mut tx = store.begin().unwrap();
        assert!(!tx.contains(&1).unwrap());
        tx.put(&2, &2).unwrap();
        tx
    };
    let tx = read_absent();
    store.put(&1, &1).unwrap();
    assert!(is_conflict(tx.commit()));
    store.delete(&1).unwrap();
    let tx = read_absent();
    store.put(&1, &1).unwrap();
    store.delete(&1).unwrap();
    tx.commit().unwrap();
}

#[test]
fn a_key_read_twice_with_a_change_between_is_a_conflict_at_once() {
    let store = texts();
    let mut tx = store.begin().unwrap();
    assert_eq!(tx.get("a").unwrap(), None);
    store.put("a", b"1").unwrap();
    assert!(is_conflict(tx.get("a")));
}

/// Other keys share the latches of a transaction that reads many, and do not disturb it.
#[test]
fn many_keys_and_a_writer_of_others_do_not_conflict() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    let keys = 65_535u64;
    let mut tx = store.begin().unwrap();
    for key in 0..keys {
        tx.rmw(&key, |old| old.unwrap_or(0) + key).unwrap();
    }
    for other in keys..3 * keys {
        store.put(&other, &1).unwrap();
    }
    tx.commit().unwrap();
    for key in 0..keys {
        assert_eq!(store.get(&key).unwrap(), Some(key));
    }
    assert_eq!(store.stats().operations.conflicts, 0);
}

/// Not even while its commit looks at all that it has read: then it takes the latches of all.
#[test]
fn many_keys_and_busy_writers_of_others_do_not_conflict() {
    const READS: u64 = 20_000;
    let store: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    (0..READS).for_each(|key| store.put(&key, &1).unwrap());
    let (stop, written, mut tries) = (AtomicBool::new(false), AtomicU64::new(0), 0);
    std::thread::scope(|scope| {
        for thread in 1..3 {
            let (store, stop, written) = (&store, &stop, &written);
            scope.spawn(move || {
                for key in (0..100_000).cycle().take_while(|_| !stop.load(Relaxed)) {
                    store.put(&((thread << 32) + key), &7).unwrap();
                    written.fetch_add(1, Relaxed);
                }
            });
        }
        let _raise = Raise(&stop);
        while written.load(Relaxed) < 10_000 {
            std::thread::yield_now();
        }
        for number in 1..21 {
            let read = store.transaction(|tx| {
                tries += 1;
                let sum = (0..READS).try_fold(0, |sum, key| Ok::<_, Error>(sum + tx.get(&key)?.unwrap()))?;
                tx.put(&(3 << 32), &number)?;
                Ok(sum)
            });
            assert_eq!(read.unwrap(), READS);
        }
    });
    // One more where a writer slept while he held a latch. Was it any change of others, hardly one would commit.
    assert!(tries < 60, "{tries} times for 20");
    assert_eq!(store.get(&(3 << 32)).unwrap(), Some(20));
}

#[test]
fn values_from_nothing_to_a_mebibyte_and_too_much_is_invalid_before_anything_changes() {
    let store: Store<str, [u8]> = Options::new().memory("32MiB").open_temporary().unwrap();
    let sizes = [0, 1, 7, 8, 9, 4080, 16_321, 65_536, MIB];
    for fill in 0..3u8 {
        let put = |tx: &mut Transaction<'_, str, [u8]>| sizes.iter().try_for_each(|size| tx.put(&format!("{size}"), &vec![fill; *size]));
        store.transaction(put).unwrap();
        for size in sizes {
            assert!(store.get(&format!("{size}")).unwrap().unwrap() == vec![fill; size], "size {size}");
        }
    }
    let mut tx = store.begin().unwrap();
    for number in 0..40 {
        tx.put(&format!("{number}"), &vec![9; MIB]).unwrap();
    }
    match tx.commit() {
        Err(Error::Invalid(what)) => assert!(what.contains("larger than the log's memory"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert!(!store.contains("2").unwrap());
    let mut tx = store.begin().unwrap();
    assert!(matches!(tx.put("x", &vec![0; 17 * MIB]), Err(Error::Invalid(_))));
    assert!(matches!(tx.put(&"k".repeat(70_000), b""), Err(Error::Invalid(_))));
}

#[test]
fn a_transaction_cannot_begin_inside_a_closure_of_the_store_nor_in_a_closed_one() {
    let store = words();
    let other = store.clone();
    store
        .rmw(&1, |_| {
            assert!(matches!(other.begin(), Err(Error::Invalid(_))));
            1
        })
        .unwrap();
    let mut tx = store.begin().unwrap();
    tx.put(&1, &2).unwrap();
    store.close().unwrap();
    assert!(matches!(tx.commit(), Err(Error::Closed)));
    assert!(matches!(words().transaction(|_| { store.begin().map(|_| ()) }), Err(Error::Closed)));
}

/// It took all that was left, and gave nothing back while a scan held it.
#[test]
fn a_transaction_without_room_leaves_that_of_others() {
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    (0..20_000).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    let held = store.scan().iter().unwrap();
    let mut tx = store.begin().unwrap();
    (0..45).for_each(|n| tx.put(&(1 << 32 | n), &[2; MIB]).unwrap());
    assert!(matches!(tx.commit(), Err(Error::Full)));
    (0..20).for_each(|n| store.put(&(2 << 32 | n), &[3; MIB]).unwrap());
    drop(held);
    assert_eq!(store.get(&0).unwrap().unwrap(), [1; 1000]);
}

/// Ten times what fits: what a transaction touches is on the device, nearly always.
#[test]
fn cold_keys_take_part() {
    let store: Store<u64, [u8; 1000]> = Options::new().memory("16MiB").open_temporary().unwrap();
    let keys = 100_000;
    for key in 0..keys {
        store.put(&key, &[1; 1000]).unwrap();
    }
    for round in 0..300 {
        let (from, to) = (round * 7919 % keys, round * 104_729 % keys);
        store
            .transaction(|tx| {
                tx.rmw(&from, |old| old.unwrap().map(|byte| byte.wrapping_sub(1)))?;
                tx.rmw(&to, |old| old.unwrap().map(|byte| byte.wrapping_add(1)))
            })
            .unwrap();
    }
    assert!(store.stats().operations.device_reads > 300);
    let mut sum = 0u64;
    let all: Vec<u64> = (0..keys).collect();
    store.get_many(&all, |_, value| sum = sum.wrapping_add(value.unwrap()[999].into())).unwrap();
    assert_eq!(sum & 255, keys & 255);
    // A cold key that is read, changed by another, and conflicts.
    let mut tx = store.begin().unwrap();
    tx.get(&17).unwrap();
    tx.put(&18, &[0; 1000]).unwrap();
    store.put(&17, &[2; 1000]).unwrap();
    assert!(is_conflict(tx.commit()));
}

/// A transaction sees no key that has ended, and what it puts stays.
#[test]
fn keys_that_end_are_gone_for_transactions_too() {
    fn check<V: esker::Value + ?Sized>(values: [&V; 2])
    where
        V::Owned: PartialEq + std::fmt::Debug,
    {
        let clock = Arc::new(ManualClock::default());
        let store: Store<u64, V> = Options::new().memory("16MiB").clock(clock.clone()).in_memory().unwrap();
        for key in 0..3 {
            store.put_with_ttl(&key, values[0], Duration::from_millis(100)).unwrap();
        }
        store.transaction(|tx| tx.put(&1, values[1])).unwrap();
        assert!(store.compare_and_swap(&2, Some(values[0]), Some(values[1])).unwrap());
        clock.advance(Duration::from_millis(200));
        let seen = store.transaction(|tx| Ok([tx.contains(&0)?, tx.contains(&1)?, tx.contains(&2)?])).unwrap();
        // A put takes the end away; a conditional write keeps it.
        assert_eq!(seen, [false, true, false]);
        assert!(!store.transaction(|tx| tx.delete(&0)).unwrap());
        assert!(store.put_if_absent(&0, values[1]).unwrap());
        assert!(store.transaction(|tx| tx.delete(&1)).unwrap());
        assert!(!store.contains(&1).unwrap());
    }
    check::<u64>([&1, &2]);
    check::<[u8]>([b"one", b"two, which is longer"]);
}

const END: Duration = Duration::from_millis(100);

/// Runs `check` on stores whose key 1 ends after [`END`]: its record is mutable, or frozen, or on the device.
fn with_an_ending_key<V: esker::Value + ?Sized>(value: &V, check: impl Fn(&Store<u64, V>, &ManualClock)) {
    for state in ["mutable", "frozen", "cold"] {
        println!("{state}");
        let clock = Arc::new(ManualClock::default());
        let options = Options::new().memory("16MiB").clock(clock.clone()).promotion(false);
        let store: Store<u64, V> = options.open_temporary().unwrap();
        store.put_with_ttl(&1, value, END).unwrap();
        match state {
            "frozen" => store.commit().unwrap(),
            // Once more where it came back into memory with another key of its entry.
            "cold" => {
                _ = (1u64..).find(|n| {
                    (n * 800_000..(n + 1) * 800_000).for_each(|key| store.put(&key, value).unwrap());
                    store.contains(&1).unwrap() && store.stats().operations.device_reads > 0
                })
            }
            _ => {}
        }
        check(&store, &clock);
        assert_eq!(store.stats().operations.device_reads > 0, state == "cold");
    }
}

/// An update as [`Store::rmw`] is one: the end stays, however often, wherever the record is.
#[test]
fn an_update_in_a_transaction_keeps_the_end_and_a_put_takes_it_away() {
    fn check<V: esker::Value + ?Sized>(values: [&V; 2]) {
        with_an_ending_key(values[0], |store, clock| {
            for value in [values[1], values[0], values[1]] {
                let update = |old: Option<V::View<'_>>| {
                    assert!(old.is_some());
                    V::own(value.bytes())
                };
                store.transaction(|tx| tx.rmw(&1, update).and_then(|_| tx.rmw(&1, update))).unwrap();
                assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(END)));
            }
            clock.advance(END);
            assert!(!store.contains(&1).unwrap());
            // What an update makes of nothing stays.
            store.transaction(|tx| tx.rmw(&1, |old| V::own(if old.is_none() { values[0].bytes() } else { &[] }))).unwrap();
            assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Forever));
        });
        with_an_ending_key(values[0], |store, _| {
            store.transaction(|tx| tx.rmw(&1, |_| V::own(values[1].bytes())).and_then(|_| tx.put(&1, values[1]))).unwrap();
            assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Forever));
        });
    }
    check::<u64>([&1, &2]);
    check::<[u8]>([b"one", b"two, which is longer"]);
}

/// Another end than the key has, or the first one it gets; an update behind it keeps that.
#[test]
fn a_transaction_gives_keys_their_ends() {
    fn check<V: esker::Value + ?Sized>(values: [&V; 2]) {
        with_an_ending_key(values[0], |store, clock| {
            let update = |old: Option<V::View<'_>>| V::own(if old.is_some() { values[1].bytes() } else { &[] });
            let given = store.transaction(|tx| {
                assert!(tx.contains(&1)?);
                tx.put_with_ttl(&1, values[1], END * 3)?;
                tx.put_with_ttl(&2, values[0], END * 2)?;
                assert!(tx.contains(&1)? && tx.contains(&2)?);
                tx.rmw(&2, update)
            });
            assert!(given.unwrap().borrow().bytes() == values[1].bytes());
            assert_eq!([1, 2].map(|key| store.ttl(&key).unwrap()), [Some(Ttl::Left(END * 3)), Some(Ttl::Left(END * 2))]);
            clock.advance(END * 2);
            assert_eq!([1, 2].map(|key| store.contains(&key).unwrap()), [true, false]);
            clock.advance(END);
            assert!(!store.contains(&1).unwrap());
            // An end that passes before the commit: the key was never there.
            let late = store.transaction(|tx| tx.put_with_ttl(&3, values[0], END).map(|()| clock.advance(END)));
            assert!(late.is_ok() && !store.contains(&3).unwrap());
        });
    }
    check::<u64>([&1, &2]);
    check::<[u8]>([b"one", b"two, which is longer"]);
}

#[test]
fn an_append_in_a_transaction_keeps_the_end() {
    with_an_ending_key::<[u8]>(b"one", |store, clock| {
        for length in [6, 9, 12] {
            assert_eq!(store.transaction(|tx| tx.append(&1, b"two")).unwrap(), length);
            assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(END)));
        }
        clock.advance(END);
        assert_eq!(store.transaction(|tx| tx.append(&1, b"new")).unwrap(), 3);
        assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Forever));
    });
}

/// What was read has ended, or ends at another time: it is not so any more.
#[test]
fn an_end_that_passes_or_changes_before_the_commit_is_a_conflict() {
    type Meanwhile<'m, V> = (&'m str, &'m dyn Fn(&Store<u64, V>, &ManualClock));
    fn check<V: esker::Value + ?Sized>(value: &V) {
        let meanwhile: [Meanwhile<'_, V>; 3] = [
            ("it ends", &|_, clock| clock.advance(END)),
            ("it ends later", &|store, clock| assert!(store.expire_at(&1, clock.now() + END * 2).unwrap())),
            ("it stays", &|store, _| assert!(store.persist(&1).unwrap())),
        ];
        for (what, act) in meanwhile {
            println!("{what}");
            with_an_ending_key(value, |store, clock| {
                let mut reader = store.begin().unwrap();
                assert!(reader.contains(&1).unwrap());
                reader.put(&2, value).unwrap();
                let mut updater = store.begin().unwrap();
                updater.rmw(&1, |_| V::own(value.bytes())).unwrap();
                let mut looker = store.begin().unwrap();
                assert!(looker.contains(&1).unwrap());
                act(store, clock);
                assert!(is_conflict(looker.contains(&1)));
                assert!(is_conflict(reader.commit()));
                let ttl = store.ttl(&1).unwrap();
                assert!(is_conflict(updater.commit()));
                assert_eq!((store.contains(&2).unwrap(), store.ttl(&1).unwrap()), (false, ttl));
            });
        }
    }
    check::<u64>(&1);
    check::<[u8]>(b"one");
}

/// A clock that goes on by a millisecond each time it is asked.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.fetch_add(1, Relaxed))
    }
}

/// While it was looked at one key after the other, one that had come and was to end with another passed for what had never been there: the
/// commit was of a moment when the other one was there and this one was not.
#[test]
fn a_commit_judges_all_ends_by_one_moment() {
    fn check<V: esker::Value + ?Sized>(value: &V) {
        for (there, absent) in [(1, 2), (2, 1)] {
            let clock = Arc::new(Ticking(AtomicU64::new(1_000)));
            let store: Store<u64, V> = Options::new().memory("16MiB").background(false).clock(clock.clone()).in_memory().unwrap();
            let end = SystemTime::UNIX_EPOCH + Duration::from_millis(5_000);
            let put = |key: &u64| {
                store.put_with_ttl(key, value, Duration::from_millis(2_000)).unwrap();
                assert!(store.expire_at(key, end).unwrap());
            };
            put(&there);
            let mut tx = store.begin().unwrap();
            assert!(tx.contains(&there).unwrap() && !tx.contains(&absent).unwrap());
            put(&absent);
            tx.put(&3, value).unwrap();
            clock.0.store(4_999, Relaxed);
            assert!(is_conflict(tx.commit()));
            assert!(!store.contains(&3).unwrap());
        }
    }
    check::<u64>(&1);
    check::<[u8]>(b"one");
}

/// As plain calls would have it: what has ended is absent, and what is made of an absence stays.
#[test]
fn a_value_of_its_own_may_end_within_a_transaction() {
    let clock = Arc::new(ManualClock::default());
    let options = || Options::new().memory("16MiB").background(false).clock(clock.clone());
    let words: Store<u64, u64> = options().in_memory().unwrap();
    let mut tx = words.begin().unwrap();
    tx.put_with_ttl(&1, &7, Duration::from_millis(10)).unwrap();
    assert_eq!(tx.rmw(&1, |old| old.unwrap() + 1).unwrap(), 8);
    clock.advance(Duration::from_millis(20));
    assert_eq!((tx.get(&1).unwrap(), tx.contains(&1).unwrap()), (None, false));
    assert_eq!(tx.rmw(&1, |old| old.unwrap_or(0) + 1).unwrap(), 1);
    tx.commit().unwrap();
    assert_eq!((words.get(&1).unwrap(), words.ttl(&1).unwrap()), (Some(1), Some(Ttl::Forever)));
    let texts: Store<str, [u8]> = options().in_memory().unwrap();
    let mut tx = texts.begin().unwrap();
    tx.put_with_ttl("a", b"old", Duration::ZERO).unwrap();
    assert_eq!(tx.append("a", b"new").unwrap(), 3);
    tx.commit().unwrap();
    assert_eq!(texts.get("a").unwrap().as_deref(), Some(&b"new"[..]));
}

/// As a put would be at the time of the commit.
#[test]
fn what_became_too_long_meanwhile_is_refused_by_the_commit() {
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").in_memory().unwrap();
    let long = vec![7; 8 << 20];
    let mut transaction = store.begin().unwrap();
    transaction.put(&1, &long).unwrap();
    transaction.put(&2, b"short").unwrap();
    store.set_memory(16 << 20).unwrap();
    let [refused, put] = [transaction.commit(), store.put(&1, &long)].map(Result::unwrap_err);
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("a value has at most")), "{refused}");
    assert_eq!(refused.to_string(), put.to_string());
    assert!(!store.contains(&2).unwrap());
}

#[test]
fn a_transaction_that_only_reads_goes_on_when_writing_has_failed() {
    let fails = Arc::new(AtomicBool::new(false));
    let fail = {
        let fails = fails.clone();
        move |_: &str, call| match call {
            Call::Write { .. } if fails.load(Relaxed) => Err(io::Error::other("told to")),
            _ => Ok(()),
        }
    };
    let place = Arc::new(Minded::new(Arc::new(MemoryStorage::new()), fail));
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(place).unwrap();
    store.put(&1, &1).unwrap();
    fails.store(true, Relaxed);
    store.commit().unwrap_err();
    assert_eq!(store.transaction(|tx| tx.get(&1)).unwrap(), Some(1));
    assert!(matches!(store.transaction(|tx| tx.put(&1, &2)), Err(Error::Io(_))));
}

/// Calls that change a value only if something holds, and find that it does not, moved the version of a record of bytes: who had read it
/// conflicted, though nobody had changed anything.
#[test]
fn what_changes_nothing_makes_no_conflict() {
    fn check<V: esker::Value + ?Sized>(store: &Store<u64, V>, one: &V, two: &V) {
        store.put(&1, two).unwrap();
        let version = store.get_versioned(&1).unwrap().unwrap().1;
        store.put(&1, one).unwrap();
        let idle = |number| match number {
            0 => assert!(!store.persist(&1).unwrap()),
            1 => assert!(!store.put_if_absent(&1, two).unwrap()),
            2 => assert!(!store.compare_and_swap(&1, Some(two), Some(two)).unwrap()),
            3 => assert!(!store.put_if_version(&1, version, two).unwrap()),
            _ => assert!(store.ttl(&1).unwrap().is_some()),
        };
        for number in 0..5 {
            let mut tx = store.begin().unwrap();
            let first = tx.get(&1).unwrap().is_some();
            idle(number);
            assert_eq!(tx.get(&1).unwrap().is_some(), first, "call {number}");
            idle(number);
            tx.put(&3, one).unwrap();
            tx.commit().unwrap_or_else(|error| panic!("call {number}: {error}"));
        }
        // What does change it is seen as before.
        let mut tx = store.begin().unwrap();
        tx.get(&1).unwrap();
        assert!(store.compare_and_swap(&1, Some(one), Some(two)).unwrap());
        tx.put(&3, one).unwrap();
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    }
    let options = || Options::new().memory("16MiB");
    check::<[u8]>(&options().in_memory().unwrap(), &[1; 30], &[2; 30]);
    check::<[u8; 20]>(&options().open_temporary().unwrap(), &[1; 20], &[2; 20]);
    check::<u64>(&options().in_memory().unwrap(), &1, &2);
}

/// They were left out without a word.
#[test]
fn a_key_that_is_too_long_is_refused_in_a_batch_of_the_past() {
    let store: Store<[u8], u64> = Options::new().memory("16MiB").in_memory().unwrap();
    store.put(b"here", &1).unwrap();
    let tx = store.begin_read().unwrap();
    let long = vec![0; (64 << 10) + 1];
    assert!(matches!(tx.get_many(&[&b"here"[..], &long], |_, _| ()), Err(Error::Invalid(_))));
    let mut seen = 0;
    tx.get_many(&[&b"here"[..], &long[1..]], |_, value| seen += value).unwrap();
    assert_eq!(seen, 1);
}

#[test]
fn a_store_in_memory_that_is_closed_says_so() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    assert!(matches!(store.commit(), Err(Error::Invalid(_))));
    store.close().unwrap();
    assert!(matches!(store.commit(), Err(Error::Closed)));
}

/// Each attempt wrote its values before it asked whether it was one in vain.
#[test]
fn attempts_in_vain_leave_no_values_in_the_log() {
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    store.put(&1, b"read").unwrap();
    let value = vec![7; 256 << 10];
    let before = store.stats().log.tail;
    let committed = store.transaction(|tx| {
        tx.get(&1)?;
        tx.put(&2, &value)?;
        store.put(&1, b"changed")
    });
    assert!(is_conflict(committed));
    let written = store.stats().log.tail - before;
    assert!(written < 4 * value.len() as u64, "{written} bytes of log for nothing");
}

/// A caller's own reason, and none that an attempt had which nobody believes.
#[test]
fn a_transaction_that_is_aborted_says_why_and_changes_nothing() {
    let store: Store<str, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    store.put("ada", &10).unwrap();
    let mut attempts = 0;
    let aborted = store.transaction(|tx| {
        attempts += 1;
        let ada = tx.get("ada")?.unwrap();
        if attempts == 1 {
            store.put("ada", &20).unwrap();
        }
        tx.put("ben", &ada)?;
        Err::<(), _>(Error::aborted(std::io::Error::other(format!("ada has {ada}"))))
    });
    let Err(Error::Aborted(why)) = aborted else { panic!("{aborted:?}") };
    assert!(why.downcast_ref::<std::io::Error>().is_some_and(|why| why.to_string() == "ada has 20"), "{why}");
    assert_eq!((attempts, store.get("ben").unwrap()), (2, None));
}

/// All but the first of the keys that share an entry were written twice, whatever the budget.
#[test]
fn what_a_transaction_writes_is_written_once_though_keys_share_entries() {
    const WRITTEN: u64 = 1000;
    let crowding = Crowding { hash_seed: [3, 4], index_bytes: 16 << 10 };
    let options = Options::new().memory("64MiB").background(false).crowding(crowding);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..5000).for_each(|n| store.put(&n, b"old").unwrap());
    assert!(store.stats().index.entries < 2500);
    let (value, tail) = (vec![7; 10_000], store.stats().log.tail);
    store.transaction(|tx| (0..WRITTEN).try_for_each(|n| tx.put(&(n * 5), &value))).unwrap();
    let bytes = store.stats().log.tail - tail;
    assert!((WRITTEN * 10_000..WRITTEN * 10_000 / 4 * 5).contains(&bytes), "{bytes}");
    for n in 0..5000 {
        let is_new = n % 5 == 0;
        assert_eq!(store.get(&n).unwrap().unwrap(), if is_new { &value[..] } else { b"old" }, "{n}");
    }
}
