//! Short histories of transactions and plain calls, each judged whole: is there an order, in keeping with the clock, in which one
//! thread would have been given the same answers?
//!
//! The theory: what can go wrong between transactions shows with two or three threads and keys (write skew, long fork, lost
//! update, half a transaction seen), but only in some schedules. So: very many short histories, every round on fresh keys of one
//! store, with few enough operations that the search for an order is complete. A transaction that conflicted is no part of the
//! history: if it left anything, no order explains it. `ESKER_SEED` replays a seed's operations (not its schedule).

use esker::{Durability, Error, Options, ReadTransaction, Store, Transaction, Value};
use esker_sim::history::{Action, Clock, Event, Recorder, Together, add, check};
use esker_sim::seeds::seed;
use esker_sim::storage::SimStorage;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

const THREADS: u64 = 3;
const KEYS: u64 = 3;
const CALLS: usize = 4;

/// Values as histories have them: bytes of a number.
trait Held: Value {
    fn of(bytes: &[u8]) -> Self::Owned;
    fn bytes_of(owned: &Self::Owned) -> Vec<u8> {
        owned.borrow().bytes().to_vec()
    }
}

impl Held for u64 {
    fn of(bytes: &[u8]) -> u64 {
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }
}

impl Held for [u8] {
    fn of(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }
}

/// Where threads wait for each other, round by round. Unlike `std`'s barrier it lets nobody wait for one that panicked.
struct Meeting {
    threads: u64,
    state: Mutex<Met>,
    changed: Condvar,
}

#[derive(Default)]
struct Met {
    arrived: u64,
    round: u64,
    is_off: bool,
}

impl Meeting {
    fn new(threads: u64) -> Meeting {
        Meeting { threads, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Met> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when all are there.
    fn wait(&self) {
        let mut met = self.lock();
        let round = met.round;
        met.arrived += 1;
        if met.arrived == self.threads {
            (met.arrived, met.round) = (0, round + 1);
            self.changed.notify_all();
        }
        let met = self.changed.wait_while(met, |met| met.round == round && !met.is_off).unwrap_or_else(PoisonError::into_inner);
        let is_off = met.round == round;
        drop(met);
        assert!(!is_off, "another thread panicked");
    }
}

/// A thread at a meeting, which it calls off when it panics.
struct Attendance<'m>(&'m Meeting);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().is_off = true;
            self.0.changed.notify_all();
        }
    }
}

/// One store under rounds of threads.
struct Rounds<'s, V: Held + ?Sized> {
    store: &'s Store<u64, V>,
    clock: Clock,
    conflicts: AtomicU64,
}

impl<V: Held + ?Sized> Rounds<'_, V> {
    /// Until transactions have met: on a busy machine threads may take their turns for a while.
    fn run(&self, rounds: u64) {
        let runs = (0..50).take_while(|number| {
            self.run_from(number * rounds, rounds);
            self.conflicts.load(Relaxed) == 0
        });
        assert!(runs.count() < 50, "no two transactions met");
    }

    fn run_from(&self, first: u64, rounds: u64) {
        let meeting = Meeting::new(THREADS);
        let per_thread: Vec<Vec<Vec<Event<Together>>>> = std::thread::scope(|scope| {
            let meeting = &meeting;
            let threads = (0..THREADS).map(|thread| {
                scope.spawn(move || {
                    let _attendance = Attendance(meeting);
                    let mut random = ChaCha8Rng::seed_from_u64((seed() + first) * 1000 + thread);
                    let round = |round| {
                        meeting.wait();
                        self.work(round * KEYS, &mut random)
                    };
                    (first..first + rounds).map(round).collect()
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
        });
        for round in 0..rounds as usize {
            let history: Vec<Event<Together>> = per_thread.iter().flat_map(|rounds| rounds[round].clone()).collect();
            if check(&history).is_err() {
                let lines: Vec<String> = history.iter().map(|event| format!("{event:?}")).collect();
                panic!("ESKER_SEED={}: round {round} is not strictly serializable\n{}", seed(), lines.join("\n"));
            }
        }
    }

    fn work(&self, first_key: u64, random: &mut ChaCha8Rng) -> Vec<Event<Together>> {
        let mut recorder = Recorder::new(&self.clock);
        for _ in 0..CALLS {
            match random.random_range(0..12) {
                0..4 => {
                    let key = first_key + random.random_range(0..KEYS);
                    recorder.record(0, || Together(vec![(key, self.plain(key, random))]));
                }
                4 | 5 => recorder.record(0, || self.reading(first_key, random)),
                _ => recorder.record_if(0, || self.transaction(first_key, random)),
            }
        }
        recorder.finish()
    }

    fn plain(&self, key: u64, random: &mut ChaCha8Rng) -> Action {
        let new = random.random_range(1..1000u64).to_ne_bytes().to_vec();
        match random.random_range(0..6) {
            0 | 1 => Action::Get(self.store.get(&key).unwrap().map(|value| V::bytes_of(&value))),
            2 => {
                let mut seen = None;
                self.store.get_many(&[key], |_, value| seen = Some(value.is_some())).unwrap();
                Action::Contains(seen.unwrap())
            }
            3 => {
                self.store.put(&key, V::of(&new).borrow()).unwrap();
                Action::Put(new)
            }
            4 => Action::Delete(self.store.delete(&key).unwrap()),
            _ => {
                // Through the store's own view of the old value: a copy of it, as an update of a counter makes.
                let by = random.random_range(1..9);
                loop {
                    let old = self.store.get(&key).unwrap();
                    let new = add(old.as_ref().map(|value| V::bytes_of(value)).as_deref(), by);
                    if self.store.compare_and_swap(&key, old.as_ref().map(Borrow::borrow), Some(V::of(&new).borrow())).unwrap() {
                        return Action::Add(by, new);
                    }
                }
            }
        }
    }

    /// `None` if it conflicted.
    fn transaction(&self, first_key: u64, random: &mut ChaCha8Rng) -> Option<Together> {
        let mut tx = self.store.begin().unwrap();
        let count = random.random_range(1..=4);
        let parts = (0..count).map(|_| {
            let key = first_key + random.random_range(0..KEYS);
            Ok((key, Self::part(&mut tx, key, random)?))
        });
        let done = parts.collect::<Result<Vec<_>, Error>>().and_then(|parts| tx.commit().map(|()| parts));
        match done {
            Ok(parts) => Some(Together(parts)),
            Err(Error::Conflict { .. }) => {
                self.conflicts.fetch_add(1, Relaxed);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads alone, which never conflict.
    fn reading(&self, first_key: u64, random: &mut ChaCha8Rng) -> Together {
        let count = random.random_range(1..=5);
        let read = |tx: &ReadTransaction<'_, u64, V>| {
            let mut one = || {
                let key = first_key + random.random_range(0..KEYS);
                Ok((key, Action::Get(tx.get(&key)?.map(|value| V::bytes_of(&value)))))
            };
            (0..count).map(|_| one()).collect()
        };
        Together(self.store.read_transaction(read).unwrap())
    }

    fn part(tx: &mut Transaction<'_, u64, V>, key: u64, random: &mut ChaCha8Rng) -> Result<Action, Error> {
        Ok(match random.random_range(0..5) {
            0 | 1 => Action::Get(tx.get(&key)?.map(|value| V::bytes_of(&value))),
            2 => {
                let new = random.random_range(1..1000u64).to_ne_bytes().to_vec();
                tx.put(&key, V::of(&new).borrow())?;
                Action::Put(new)
            }
            3 => Action::Delete(tx.delete(&key)?),
            _ => {
                let by = random.random_range(1..9);
                let old = tx.get(&key)?.map(|value| V::bytes_of(&value));
                let new = add(old.as_deref(), by);
                tx.put(&key, V::of(&new).borrow())?;
                Action::Add(by, new)
            }
        })
    }
}

fn judge<V: Held + ?Sized>(store: &Store<u64, V>, rounds: u64) {
    Rounds { store, clock: Clock::default(), conflicts: AtomicU64::new(0) }.run(rounds);
}

#[test]
fn short_histories_of_words_are_strictly_serializable() {
    judge::<u64>(&Options::new().memory("16MiB").in_memory().unwrap(), 20_000);
}

#[test]
fn short_histories_of_bytes_are_strictly_serializable() {
    judge::<[u8]>(&Options::new().memory("16MiB").in_memory().unwrap(), 20_000);
}

/// A round that a thread never comes to ends for the others as well.
#[test]
fn a_panic_calls_the_meeting_off() {
    let meeting = Meeting::new(2);
    let ended = std::thread::scope(|scope| {
        let come = |rounds: u64| {
            let meeting = &meeting;
            scope.spawn(move || {
                let _attendance = Attendance(meeting);
                (0..rounds).for_each(|_| meeting.wait());
                panic!("on purpose");
            })
        };
        [come(3), come(5)].map(|thread| *thread.join().unwrap_err().downcast::<&str>().unwrap())
    });
    assert_eq!(ended, ["on purpose", "another thread panicked"]);
}

/// The boundary passes the records all the time: some are mutable, some frozen, some copied.
#[test]
fn short_histories_are_strictly_serializable_while_lines_are_drawn() {
    let storage = Arc::new(SimStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").durability(Durability::None).background(false).open_in(storage).unwrap();
    let is_running = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_running.load(Relaxed) {
                store.commit().unwrap();
                std::thread::yield_now();
            }
        });
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| judge(&store, 3_000)));
        is_running.store(false, Relaxed);
        judged.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
