//! Transactions that only read: each sees the store as of its beginning, whatever goes on, and none ever conflicts.

use crate::raise::Raise;
use crate::random::Random;
use crate::traffic::maintain;
use esker::{Clock, Cursor, Error, ManualClock, Options, ReadTransaction, Store, Value};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

impl Random {
    /// The numbers below `count` in some order.
    fn order(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }
}

/// A number as a value, and back.
trait Number: Value {
    fn of(number: u64) -> Self::Owned;
    fn number(view: Self::View<'_>) -> u64;
}

impl Number for u64 {
    fn of(number: u64) -> u64 {
        number
    }
    fn number(view: u64) -> u64 {
        view
    }
}

/// As so many bytes: each number has another length.
impl Number for [u8] {
    fn of(number: u64) -> Vec<u8> {
        vec![number as u8; number as usize]
    }
    fn number(view: &[u8]) -> u64 {
        assert!(view.iter().all(|byte| *byte == view.len() as u8), "a value mixes two");
        view.len() as u64
    }
}

fn read<V: Number + ?Sized>(tx: &ReadTransaction<'_, u64, V>, key: u64) -> Option<u64> {
    tx.get_with(&key, V::number).unwrap()
}

fn both<V: Number + ?Sized>(options: &Options) -> [Store<u64, V>; 2] {
    [options.clone().memory("64MiB").in_memory().unwrap(), options.clone().memory("16MiB").open_temporary().unwrap()]
}

const KEYS: u64 = 2_000;

/// Rounds of changes, a reader begun before each; each reader is asked again after every later round.
fn each_sees_its_own_moment<V: Number + ?Sized>() {
    for store in both::<V>(&Options::new().background(false)) {
        let mut random = Random::of_thread(7);
        let mut model = vec![None; KEYS as usize];
        let mut readers = Vec::new();
        for round in 0..6 {
            readers.push((store.begin_read().unwrap(), model.clone()));
            for _ in 0..KEYS {
                let (key, number) = (random.below(KEYS), random.below(200));
                let new = match random.below(4) {
                    0 => {
                        store.delete(&key).unwrap();
                        None
                    }
                    1 => {
                        store.rmw(&key, |_| V::of(number)).unwrap();
                        Some(number)
                    }
                    2 => {
                        store.transaction(|tx| tx.put(&key, V::of(number).borrow())).unwrap();
                        Some(number)
                    }
                    _ => {
                        store.put(&key, V::of(number).borrow()).unwrap();
                        Some(number)
                    }
                };
                model[key as usize] = new;
            }
            // Other keys make the index grow, and on a device the records cold.
            let filling = if V::WIDTH.is_some() { 200_000 } else { 60_000 };
            (0..filling).for_each(|n| store.put(&(1_000_000 + round * filling + n), V::of(100).borrow()).unwrap());
            store.compact().unwrap();
            for (born, (reader, then)) in readers.iter().enumerate() {
                for key in random.order(KEYS) {
                    assert_eq!(read(reader, key), then[key as usize], "key {key} as of round {born}, after round {round}");
                    assert_eq!(reader.contains(&key).unwrap(), then[key as usize].is_some());
                }
                assert_eq!(read(reader, 1_000_000 + round * filling), None);
            }
        }
    }
}

#[test]
fn each_reader_of_words_sees_its_own_moment() {
    each_sees_its_own_moment::<u64>();
}

#[test]
fn each_reader_of_bytes_sees_its_own_moment() {
    each_sees_its_own_moment::<[u8]>();
}

// ---- a bank ------------------------------------------------------------------------------------------------------------

const START: u64 = 50;
const ACCOUNTS: u64 = 60;

/// Eight threads transfer; readers sum all accounts up, in any order, until the transfers are done.
fn bank<V: Number + ?Sized>(store: &Store<u64, V>, transfers: u64, meanwhile: impl Fn(u64) + Sync) {
    (0..ACCOUNTS).for_each(|account| store.put(&account, V::of(START).borrow()).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Raise(&stop);
        let writers: Vec<_> =
            (0..8).map(|number| scope.spawn(move || transfer(store, transfers, &mut Random::of_thread(number)))).collect();
        let (stop, meanwhile) = (&stop, &meanwhile);
        for number in 0..2 {
            scope.spawn(move || {
                let mut random = Random::of_thread(100 + number);
                while !stop.load(Relaxed) {
                    audit(store, &mut random);
                }
            });
        }
        scope.spawn(move || (0..).take_while(|_| !stop.load(Relaxed)).for_each(meanwhile));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    audit(store, &mut Random::of_thread(0));
}

fn transfer<V: Number + ?Sized>(store: &Store<u64, V>, transfers: u64, random: &mut Random) {
    for _ in 0..transfers {
        let (from, to, amount) = (random.below(ACCOUNTS), random.below(ACCOUNTS), random.below(9));
        let result = store.transaction(|tx| {
            let held = tx.get_with(&from, V::number)?.unwrap_or(0);
            if held < amount || from == to {
                return Ok(());
            }
            let other = tx.get_with(&to, V::number)?.unwrap_or(0);
            // Nothing is an account that does not exist.
            if held == amount {
                tx.delete(&from).map(|_| ())?
            } else {
                tx.put(&from, V::of(held - amount).borrow())?
            }
            tx.put(&to, V::of(other + amount).borrow())
        });
        assert!(matches!(result, Ok(()) | Err(Error::Conflict { .. })), "{result:?}");
    }
}

/// The sum, twice, in two orders.
fn audit<V: Number + ?Sized>(store: &Store<u64, V>, random: &mut Random) {
    let sums = store.read_transaction(|tx| {
        let mut sum = || random.order(ACCOUNTS).into_iter().map(|account| read(tx, account).unwrap_or(0)).sum::<u64>();
        let (first, second) = (sum(), sum());
        let mut many = 0;
        tx.get_many(&random.order(ACCOUNTS), |_, value| many += V::number(value))?;
        // Another key may lie beside the accounts.
        let accounts = |key: u64, value: V::View<'_>| if key < ACCOUNTS { V::number(value) } else { 0 };
        let scanned = tx.scan().fold(|| 0, |sum, key, value| *sum += accounts(key, value), |sum, other| *sum += other)?;
        Ok([first, second, many, scanned])
    });
    assert_eq!(sums.unwrap(), [ACCOUNTS * START; 4]);
}

#[test]
fn readers_see_every_sum_of_words_in_memory() {
    let store: Store<u64, u64> = Options::new().memory("32MiB").in_memory().unwrap();
    bank(&store, 3_000, |round| store.put(&(1_000 + round % 300_000), &round).unwrap());
}

#[test]
fn readers_see_every_sum_of_bytes_in_memory() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
    bank(&store, 2_000, |round| store.put(&(1_000 + round % 1_000), &[100; 100]).unwrap());
}

#[test]
fn readers_see_every_sum_of_words_while_accounts_go_cold_and_are_compacted() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    bank(&store, 1_500, |round| {
        let pairs: Vec<(u64, u64)> = (0..5_000).map(|n| (1_000 + n + round % 100 * 5_000, round)).collect();
        store.put_many(&pairs).unwrap();
        maintain(&store, round);
    });
}

#[test]
fn readers_see_every_sum_of_bytes_while_accounts_go_cold_and_are_compacted() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    bank(&store, 800, |round| {
        (0..500).for_each(|n| store.put(&(1_000 + n + round % 100 * 500), &[200; 200]).unwrap());
        maintain(&store, round);
    });
}

// ---- ends --------------------------------------------------------------------------------------------------------------

#[test]
fn what_ends_after_the_beginning_stays_for_the_reader_wherever_it_lies() {
    fn check<V: Number + ?Sized>() {
        let clock = Arc::new(ManualClock::default());
        for store in both::<V>(&Options::new().clock(clock.clone()).background(false)) {
            (0..KEYS)
                .for_each(|key| store.put_with_ttl(&key, V::of(key % 100).borrow(), Duration::from_millis(100 * (1 + key % 2))).unwrap());
            clock.advance(Duration::from_millis(100));
            let reader = store.begin_read().unwrap();
            clock.advance(Duration::from_millis(100));
            let as_it_was = |what: &str| {
                for key in 0..KEYS {
                    assert_eq!(read(&reader, key), (key % 2 == 1).then_some(key % 100), "{what}, key {key}");
                }
            };
            as_it_was("at once");
            (0..100_000).for_each(|key| store.put(&(1_000_000 + key), V::of(100).borrow()).unwrap());
            // A stretch is copied, and drops what had ended for the reader only.
            assert_eq!(store.compact().unwrap(), 0);
            as_it_was("behind a compaction");
            assert!((0..KEYS).all(|key| !store.contains(&key).unwrap()));
        }
    }
    check::<u64>();
    check::<[u8]>();
}

/// Heirs come after the end of what they inherit: nobody sees both, though the end comes while transactions are under way.
#[test]
fn a_reader_judges_all_ends_by_the_moment_of_its_cut() {
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, u64> = Options::new().memory("64MiB").clock(clock.clone()).in_memory().unwrap();
    let heir = |key: u64| 1_000_000 + key;
    const COUNT: u64 = 3_000;
    (0..COUNT).for_each(|key| store.put_with_ttl(&key, &key, Duration::from_millis(1 + key)).unwrap());
    let (stop, born) = (AtomicBool::new(false), clock.now());
    std::thread::scope(|scope| {
        let _stop = Raise(&stop);
        let heirs = scope.spawn(|| {
            for key in 0..COUNT {
                let inherit = || {
                    store.transaction(|tx| {
                        let is_free = !tx.contains(&key)?;
                        if is_free { tx.put(&heir(key), &key).map(|()| true) } else { Ok(false) }
                    })
                };
                while !inherit().unwrap_or(false) {
                    std::thread::yield_now();
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let reader = store.begin_read().unwrap();
                    let now = clock.now().duration_since(born).unwrap().as_millis() as u64;
                    for key in now.saturating_sub(5)..(now + 5).min(COUNT) {
                        assert!(!(reader.contains(&heir(key)).unwrap() && reader.contains(&key).unwrap()), "key {key} and its heir");
                    }
                }
            });
        }
        while !heirs.is_finished() {
            clock.advance(Duration::from_millis(1));
            std::thread::yield_now();
        }
        heirs.join().unwrap();
    });
}

// ---- space -------------------------------------------------------------------------------------------------------------

/// Readers that follow each other without a gap stop no compaction: each begins where the last stretch was copied from.
#[test]
fn space_comes_back_while_there_always_is_a_reader() {
    for store in both::<u64>(&Options::new().background(false)) {
        let put_all = |round: u64| (0..100_000).for_each(|key| store.put(&key, &(key + round)).unwrap());
        let all_of = |reader: &ReadTransaction<'_, u64, u64>, round| {
            assert!((0..100_000).step_by(77).all(|key| read(reader, key) == Some(key + round)));
        };
        put_all(0);
        let mut reader = store.begin_read().unwrap();
        for round in 1..20 {
            put_all(round);
            assert_eq!(store.compact().unwrap(), 0, "the reader holds what was copied behind its beginning");
            let next = store.begin_read().unwrap();
            all_of(&reader, round - 1);
            drop(std::mem::replace(&mut reader, next));
            assert!(store.compact().unwrap() > 0, "the next one does not");
            all_of(&reader, round);
        }
    }
}

/// A store in memory that is written many times over while there always is some reader.
#[test]
fn a_store_in_memory_is_not_full_for_readers_that_end() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let mut reader = store.begin_read().unwrap();
    let mut refused = 0;
    for n in 0..3_000_000u64 {
        let mut tries = 0;
        while let Err(error) = store.put(&(n % 50_000), &n) {
            assert!(matches!(error, Error::Full) && tries < 3, "{error}");
            (tries, refused) = (tries + 1, refused + 1);
            let next = store.begin_read().unwrap();
            drop(std::mem::replace(&mut reader, next));
        }
        if n % 10_000 == 0 {
            reader = store.begin_read().unwrap();
        }
    }
    assert!(refused < 1_000);
}

#[test]
fn a_read_transaction_answers_as_the_store_does_where_it_cannot_be() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let inside = store.rmw(&1, |_| u64::from(matches!(store.begin_read(), Err(Error::Invalid(_))))).unwrap();
    assert_eq!(inside, 1);
    let failed: Result<(), Error> = store.read_transaction(|_| Err(Error::Full));
    assert!(matches!(failed, Err(Error::Full)));
    store.close().unwrap();
    assert!(matches!(store.begin_read(), Err(Error::Closed)));
}

#[test]
fn scans_batches_pages_and_iterators_of_a_reader_see_its_moment() {
    for store in both::<u64>(&Options::new()) {
        (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
        let tx = store.begin_read().unwrap();
        (0..50_000).for_each(|n| store.put(&(n * 2), &7).unwrap());
        (0..50_000).step_by(3).for_each(|n| _ = store.delete(&n).unwrap());
        let keys: Vec<u64> = (0..100_000).collect();
        let mut seen = Vec::new();
        tx.get_many(&keys, |key, value| seen.push((key, value))).unwrap();
        let by_log: Vec<(u64, u64)> = tx.scan().by_log().collect().unwrap();
        let by_index: Vec<(u64, u64)> = tx.scan().by_index().collect().unwrap();
        let iterated: Vec<(u64, u64)> = tx.scan().iter().unwrap().map(Result::unwrap).collect();
        let page = tx.scan().page(Cursor::START, 1 << 20).unwrap();
        for mut found in [seen, by_log, by_index, iterated, page.pairs] {
            found.sort();
            assert!(found.iter().copied().eq((0..50_000).map(|n| (n, n))), "{} pairs", found.len());
        }
        assert_eq!(tx.scan().aggregate(esker::aggregate::Count).unwrap(), 50_000);
    }
}
