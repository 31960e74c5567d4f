//! Transactions of many threads: sums stay, rules over two keys hold, nothing is lost and nobody sees a half; while plain calls,
//! lines, compaction, eviction and growth go on, and across crashes.

use crate::raise::Raise;
use crate::random::Random;
use crate::traffic::maintain;
use esker::{Durability, Error, MemoryStorage, Options, Store, Transaction};
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

fn words() -> Store<u64, u64> {
    Options::new().memory("16MiB").in_memory().unwrap()
}

fn is_conflict<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Conflict { .. }))
}

/// What a bank of accounts is made of.
trait Bank: Sync {
    fn read(tx: &mut Transaction<'_, u64, Self::Money>, account: u64) -> Result<u64, Error>;
    fn write(tx: &mut Transaction<'_, u64, Self::Money>, account: u64, to: u64) -> Result<(), Error>;
    type Money: esker::Value + ?Sized;
}

/// Balances in words.
struct Words;

impl Bank for Words {
    type Money = u64;
    fn read(tx: &mut Transaction<'_, u64, u64>, account: u64) -> Result<u64, Error> {
        Ok(tx.get(&account)?.unwrap_or(0))
    }
    fn write(tx: &mut Transaction<'_, u64, u64>, account: u64, to: u64) -> Result<(), Error> {
        // Nothing is an account that does not exist.
        if to == 0 { tx.delete(&account).map(|_| ()) } else { tx.put(&account, &to) }
    }
}

/// Balances as so many bytes: each transfer makes other lengths.
struct Lengths;

impl Bank for Lengths {
    type Money = [u8];
    fn read(tx: &mut Transaction<'_, u64, [u8]>, account: u64) -> Result<u64, Error> {
        Ok(tx.get_with(&account, |money| money.len() as u64)?.unwrap_or(0))
    }
    fn write(tx: &mut Transaction<'_, u64, [u8]>, account: u64, to: u64) -> Result<(), Error> {
        if to == 0 { tx.delete(&account).map(|_| ()) } else { tx.put(&account, &vec![account as u8; to as usize]) }
    }
}

const START: u64 = 50;

fn open_accounts<B: Bank>(store: &Store<u64, B::Money>, accounts: u64) {
    store.transaction(|tx| (0..accounts).try_for_each(|account| B::write(tx, account, START))).unwrap();
}

fn sum<B: Bank>(store: &Store<u64, B::Money>, accounts: u64) -> u64 {
    store.transaction(|tx| (0..accounts).try_fold(0, |sum, account| Ok(sum + B::read(tx, account)?))).unwrap()
}

/// One transfer; false if there was not enough.
fn transfer<B: Bank>(store: &Store<u64, B::Money>, from: u64, to: u64, amount: u64) -> Result<bool, Error> {
    store.transaction(|tx| {
        let held = B::read(tx, from)?;
        if held < amount || from == to {
            return Ok(false);
        }
        B::write(tx, from, held - amount)?;
        let other = B::read(tx, to)?;
        B::write(tx, to, other + amount)?;
        Ok(true)
    })
}

/// Transfers between accounts, while auditors sum them up, a compactor compacts and commits, and others fill the store.
fn bank<B: Bank>(store: &Store<u64, B::Money>, threads: u64, accounts: u64, transfers: u64, meanwhile: impl Fn(u64) + Sync) {
    open_accounts::<B>(store, accounts);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let over = Raise(&stop);
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random::of_thread(number);
                    for _ in 0..transfers {
                        let (from, to) = (random.below(accounts), random.below(accounts));
                        match transfer::<B>(store, from, to, random.below(9)) {
                            Ok(_) => _ = done.fetch_add(1, Relaxed),
                            Err(Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        let (stop, meanwhile) = (&stop, &meanwhile);
        let auditor = scope.spawn(move || {
            while !stop.load(Relaxed) {
                let seen = store.transaction(|tx| (0..accounts).try_fold(0, |sum, account| Ok(sum + B::read(tx, account)?)));
                match seen {
                    Ok(sum) => assert_eq!(sum, accounts * START),
                    Err(error) => assert!(is_conflict::<()>(Err(error))),
                }
            }
        });
        let other = scope.spawn(move || {
            let mut round = 0;
            while !stop.load(Relaxed) {
                meanwhile(round);
                round += 1;
            }
        });
        let worked: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        drop(over);
        auditor.join().unwrap();
        other.join().unwrap();
        worked.into_iter().for_each(|worked| worked.unwrap());
    });
    assert_eq!(sum::<B>(store, accounts), accounts * START);
    assert!(done.load(Relaxed) > threads * transfers / 2, "few transfers got through: {done:?}");
}

#[test]
fn a_bank_of_words_in_memory_keeps_its_sum() {
    let store: Store<u64, u64> = Options::new().memory("32MiB").in_memory().unwrap();
    // Plain puts of other keys make the index grow under the transactions, and share their latches.
    bank::<Words>(&store, 8, 24, 4_000, |round| store.put(&(1000 + round % 300_000), &round).unwrap());
}

#[test]
fn a_bank_of_bytes_in_memory_keeps_its_sum() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
    bank::<Lengths>(&store, 8, 24, 2_000, |round| store.put(&(1000 + round % 1000), &[1; 100]).unwrap());
}

#[test]
fn a_bank_of_words_on_a_disk_keeps_its_sum_while_lines_are_drawn_and_the_log_is_compacted() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    bank::<Words>(&store, 8, 24, 2_000, |round| {
        let pairs: Vec<(u64, u64)> = (0..2000).map(|n| (1000 + n + round % 100 * 2000, round)).collect();
        store.put_many(&pairs).unwrap();
        maintain(&store, round);
    });
}

#[test]
fn a_bank_of_bytes_on_a_disk_keeps_its_sum_while_lines_are_drawn_and_the_log_is_compacted() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    bank::<Lengths>(&store, 8, 24, 1_000, |round| {
        for n in 0..200 {
            store.put(&(1000 + n + round % 100 * 200), &[3; 300]).unwrap();
        }
        maintain(&store, round);
    });
}

#[test]
fn forty_eight_threads_on_many_accounts() {
    let store = words();
    bank::<Words>(&store, 48, 2_000, 300, |_| std::thread::yield_now());
}

/// Two keys with a rule over both: of two who each break it for the other one, one must see the other.
#[test]
fn no_write_skew() {
    let store = words();
    for round in 0..2_000 {
        store.put_many(&[(0, 1), (1, 1)]).unwrap();
        // At least one stays on duty.
        let leave = |own: u64| {
            store.transaction(|tx| {
                let on_duty = tx.get(&0)?.unwrap() + tx.get(&1)?.unwrap();
                if on_duty == 2 { tx.put(&own, &0) } else { Ok(()) }
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| leave(0).unwrap());
            leave(1).unwrap();
        });
        assert_eq!(store.get(&0).unwrap().unwrap() + store.get(&1).unwrap().unwrap(), 1, "round {round}");
    }
}

/// Counters that plain calls, batches and transactions count together.
#[test]
fn no_update_is_lost_between_plain_calls_and_transactions() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    let (threads, rounds, keys) = (9, 3_000, 5u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                let all: Vec<u64> = (0..keys).collect();
                for round in 0..rounds {
                    match thread % 3 {
                        0 => all.iter().for_each(|key| _ = store.rmw(key, |old| old.unwrap_or(0) + 1).unwrap()),
                        1 => store.rmw_many(&all, |_, old| old.unwrap_or(0) + 1).unwrap(),
                        _ => loop {
                            let counted =
                                store.transaction(|tx| all.iter().try_for_each(|key| tx.rmw(key, |old| old.unwrap_or(0) + 1).map(|_| ())));
                            if !is_conflict(counted) {
                                break;
                            }
                        },
                    }
                    if thread == 0 && round % 500 == 0 {
                        store.commit().unwrap();
                    }
                }
            });
        }
    });
    for key in 0..keys {
        assert_eq!(store.get(&key).unwrap(), Some(threads * rounds));
    }
}

/// A plain reader that sees one of a transaction's changes sees the others from then on.
fn readers_see_all_or_nothing<V: esker::Value + ?Sized>(
    store: &Store<u64, V>,
    value: impl Fn(u64) -> V::Owned,
    number: impl Fn(V::View<'_>) -> u64 + Sync,
) {
    const KEYS: u64 = 100;
    let write = |round| store.transaction(|tx| (0..KEYS).try_for_each(|key| tx.put(&key, value(round).borrow()))).unwrap();
    write(0);
    let stop = AtomicBool::new(false);
    let read = |key: u64, batched: bool| {
        let mut seen = 0;
        if batched {
            store.get_many(&[key], |_, value| seen = number(value.unwrap())).unwrap();
        } else {
            seen = store.get_with(&key, &number).unwrap().unwrap();
        }
        seen
    };
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for reader in 0..2 {
            let (stop, read) = (&stop, &read);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    // A commit goes from the first key to the last.
                    let first = read(0, reader == 0);
                    let last = read(KEYS - 1, reader == 0);
                    assert!(first <= last, "{last} after {first}");
                }
            });
        }
        (1..10_000).for_each(write);
    });
}

#[test]
fn plain_readers_never_see_half_a_transaction_of_words() {
    readers_see_all_or_nothing(&words(), |round| round, |word| word);
}

#[test]
fn plain_readers_never_see_half_a_transaction_of_bytes() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").in_memory().unwrap();
    let number = |bytes: &[u8]| {
        assert_eq!(bytes[..8], bytes[8..], "a value mixes two");
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    };
    readers_see_all_or_nothing(&store, |round| round.to_le_bytes().repeat(2), number);
}

// ---- crashes -----------------------------------------------------------------------------------------------------------

/// Lines are drawn as fast as they can while transfers go on; the store is left as a crash leaves it, without a last line.
fn bank_and_crash<B: Bank>(lives: u64, transfers: u64) {
    let mut files = Arc::new(MemoryStorage::new());
    let accounts = 40;
    for life in 0..lives {
        let store: Store<u64, B::Money> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        if life == 0 {
            open_accounts::<B>(&store, accounts);
            store.commit().unwrap();
        }
        assert_eq!(sum::<B>(&store, accounts), accounts * START, "after {life} crashes");
        let running = AtomicU64::new(3);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (store, running) = (&store, &running);
                scope.spawn(move || {
                    let mut random = Random::of_thread(life * 8 + number);
                    for _ in 0..transfers {
                        let (from, to) = (random.below(accounts), random.below(accounts));
                        let result = transfer::<B>(store, from, to, random.below(9));
                        assert!(result.is_ok() || is_conflict(result));
                    }
                    running.fetch_sub(1, Relaxed);
                });
            }
            // The last line falls among the last transfers, not behind them.
            while running.load(Relaxed) == 3 {
                store.commit().unwrap();
            }
        });
        files = Arc::new(files.copy());
    }
}

#[test]
fn after_a_crash_each_transfer_of_words_is_there_whole_or_not_at_all() {
    bank_and_crash::<Words>(30, 1_000);
}

#[test]
fn after_a_crash_each_transfer_of_bytes_is_there_whole_or_not_at_all() {
    bank_and_crash::<Lengths>(30, 600);
}

#[test]
fn always_durable_transactions_survive_without_a_commit() {
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("16MiB").durability(Durability::Always).background(false);
    let store: Store<u64, u64> = options.clone().open_in(files.clone()).unwrap();
    for round in 0..20 {
        store.transaction(|tx| (0..5).try_for_each(|key| tx.put(&key, &round))).unwrap();
    }
    assert!(store.put_if_absent(&5, &19).unwrap());
    let store: Store<u64, u64> = options.open_in(Arc::new(files.copy())).unwrap();
    for key in 0..6 {
        assert_eq!(store.get(&key).unwrap(), Some(19));
    }
}
