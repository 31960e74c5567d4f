//! What several threads see of a key could have come from one map.
//!
//! The theory: eight threads work on few hot keys, recording when each operation was called and
//! returned and what it gave, while another inserts fresh keys, so that the index grows under them and,
//! on a device, pages are evicted and hot records copied. The workers keep pace with the inserting
//! thread, so the whole growth happens under their operations. Each key's history is then judged alone.
//!
//! In some runs keys end, while one more thread lets the time pass. An end that is put off just when it comes counts from when that
//! call began, though others may have found the key absent meanwhile: what only looked during such a call is not judged. Who made
//! something of nothing then is.
//! `ESKER_SEED` replays a seed's operations (not its schedule).

use esker::{Clock as _, ManualClock};
use esker_sim::disk::SimDisk;
use esker_sim::history::{Action, Clock, Event, Lasting, Recorder, add, by_key, check, without_late_looks};
use esker_sim::model::Layout;
use esker_sim::seeds::seed;
use esker_sim::subject::{self, Place, Subject};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

const THREADS: u64 = 8;
const HOT: u64 = 4;
const OPERATIONS: u64 = 2500;

/// One run: a store under workers and an inserting thread.
struct Run {
    store: Box<dyn Subject>,
    layout: Layout,
    fresh: u64,
    fresh_value: Vec<u8>,
    clock: Clock,
    /// What time it is where keys end.
    time: Option<RwLock<u64>>,
    inserted: AtomicU64,
    stopped: AtomicBool,
}

/// What happened to keys, and to all of them.
struct Histories {
    events: Vec<Event<Lasting>>,
    passes: Vec<Event<Lasting>>,
}

impl Run {
    fn new(layout: Layout, budget: u64, place: &Place, fresh: u64, fresh_bytes: usize) -> Run {
        Run {
            store: subject::open(layout, budget, place).unwrap(),
            layout,
            fresh,
            fresh_value: vec![7; fresh_bytes],
            clock: Clock::default(),
            time: None,
            inserted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// The same with keys that end.
    fn with_ends(self) -> Run {
        Run { time: Some(RwLock::new(0)), ..self }
    }

    fn histories(&self, seed: u64) -> Histories {
        std::thread::scope(|scope| {
            let pass = scope.spawn(|| Stop(&self.stopped).during(|| self.pass(seed)));
            let insert = scope.spawn(|| Stop(&self.stopped).during(|| self.insert()));
            let work = |t| Stop(&self.stopped).during(|| self.work(seed * 100 + t));
            let workers: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || work(t))).collect();
            let events = workers.into_iter().flat_map(|w| w.join().expect("a worker panicked")).collect();
            insert.join().expect("the inserting thread panicked");
            self.stopped.store(true, Ordering::Relaxed);
            Histories { events, passes: pass.join().expect("the thread of time panicked") }
        })
    }

    /// Lets time pass, as often as a worker does something: each time is part of each key's history.
    fn pass(&self, seed: u64) -> Vec<Event<Lasting>> {
        let (mut random, mut recorder) = (ChaCha8Rng::seed_from_u64(seed * 100 + THREADS), Recorder::new(&self.clock));
        let Some(time) = &self.time else { return Vec::new() };
        for passed in 0..OPERATIONS {
            while !self.is_as_far(passed) && !self.stopped.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let mut now = time.write().unwrap();
            let by = random.random_range(1..4);
            recorder.record(0, || {
                self.store.clock().advance(Duration::from_millis(by));
                *now += by;
                Lasting::Pass(*now)
            });
        }
        recorder.finish()
    }

    fn insert(&self) {
        for id in 0..self.fresh {
            self.store.put(&self.layout.key(1000 + id), &self.fresh_value).expect("an insert");
            self.inserted.store(id + 1, Ordering::Relaxed);
        }
    }

    fn work(&self, seed: u64) -> Vec<Event<Lasting>> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut recorder = Recorder::new(&self.clock);
        for done in 0..OPERATIONS {
            if done % 50 == 0 {
                self.keep_pace(done);
            }
            let key = random.random_range(0..HOT);
            match &self.time {
                Some(time) if random.random_ratio(1, 3) => self.end(key, time, &mut recorder, &mut random),
                _ => recorder.record(key, || Lasting::Action(self.operate(key, &mut random))),
            }
        }
        recorder.finish()
    }

    /// Waits until the insertions are as far along as this worker.
    fn keep_pace(&self, done: u64) {
        while !self.is_as_far(done) {
            assert!(!self.stopped.load(Ordering::Relaxed), "another thread panicked");
            std::thread::yield_now();
        }
    }

    fn is_as_far(&self, done: u64) -> bool {
        self.inserted.load(Ordering::Relaxed) >= self.fresh * done / OPERATIONS
    }

    fn operate(&self, id: u64, random: &mut ChaCha8Rng) -> Action {
        let key = self.layout.key(id);
        match random.random_range(0..24) {
            20..24 => self.swap(&key, random),
            0..6 => Action::Get(self.store.get(&key).expect("get")),
            6 => Action::Contains(self.store.contains(&key).expect("contains")),
            7..10 => self.put(&key, random),
            10 => Action::Delete(self.store.delete(&key).expect("delete")),
            11..15 if self.layout == Layout::Blobs => self.append(&key, random),
            _ => self.add(&key, random.random_range(1..1000)),
        }
    }

    /// Something about the end of a key. No time passes while a value is put for some of it, or nobody could say when it ends.
    fn end(&self, id: u64, time: &RwLock<u64>, recorder: &mut Recorder<'_, Lasting>, random: &mut ChaCha8Rng) {
        let (key, ms) = (self.layout.key(id), random.random_range(1..6));
        let now = time.read().unwrap();
        let until = *now + ms;
        if random.random_ratio(2, 5) {
            let value = self.value(random);
            return recorder.record(id, || {
                self.store.put_ttl(&key, &value, Duration::from_millis(ms)).expect("put_with_ttl");
                Lasting::PutUntil(value, until)
            });
        }
        drop(now);
        let until = random.random_ratio(2, 3).then_some(until);
        recorder.record(id, || {
            let answer = match until {
                Some(until) => self.store.end_at(&key, ManualClock::default().now() + Duration::from_millis(until)).expect("expire_at"),
                None => self.store.persist(&key).expect("persist"),
            };
            Lasting::Until(until, answer)
        });
    }

    /// A write on a condition: that there is nothing, or that there is what was there a moment ago.
    fn swap(&self, key: &[u8], random: &mut ChaCha8Rng) -> Action {
        let new = self.value(random);
        match random.random_range(0..4) {
            0 => {
                let done = self.store.put_if_absent(key, &new).expect("put_if_absent");
                Action::Swap(None, Some(new), done)
            }
            chosen => {
                let seen = self.store.get(key).expect("get");
                let new = (chosen > 1).then_some(new);
                let done = self.store.swap(key, seen.as_deref(), new.as_deref()).expect("compare_and_swap");
                Action::Swap(seen, new, done)
            }
        }
    }

    fn value(&self, random: &mut ChaCha8Rng) -> Vec<u8> {
        let length = if self.layout == Layout::Blobs { random.random_range(8..120) } else { 8 };
        (0..length).map(|_| random.random()).collect()
    }

    fn put(&self, key: &[u8], random: &mut ChaCha8Rng) -> Action {
        let value = self.value(random);
        self.store.put(key, &value).expect("put");
        Action::Put(value)
    }

    fn add(&self, key: &[u8], by: u64) -> Action {
        Action::Add(by, self.store.rmw(key, &mut |_, old| add(old, by)).expect("rmw"))
    }

    fn append(&self, key: &[u8], random: &mut ChaCha8Rng) -> Action {
        let bytes: Vec<u8> = (0..random.random_range(1..12)).map(|_| random.random()).collect();
        let length = self.store.append(key, &bytes).expect("append");
        Action::Append(bytes, length)
    }
}

/// Tells the others when its thread panics, so that nobody waits for it.
struct Stop<'a>(&'a AtomicBool);

impl Stop<'_> {
    fn during<T>(self, body: impl FnOnce() -> T) -> T {
        body()
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn judge(name: &str, histories: Histories) {
    assert_eq!(histories.events.len() as u64, THREADS * OPERATIONS);
    for (key, history) in by_key(histories.events) {
        let mut history = without_late_looks(history);
        history.extend_from_slice(&histories.passes);
        if let Err(around) = check(&history) {
            let lines: Vec<String> = around.iter().map(|e| format!("{e:?}")).collect();
            panic!("{name}: ESKER_SEED={}: key {key} is not linearizable near\n{}", seed(), lines.join("\n"));
        }
    }
}

/// On a device: the fresh keys are more than the budget.
fn on_a_disk(layout: Layout, fresh: u64, bytes: usize) {
    cold(Run::new(layout, 16 << 20, &disk(), fresh, bytes));
}

fn disk() -> Place {
    Place::Disk(Arc::new(SimDisk::with_delay(seed(), 50)))
}

fn cold(run: Run) {
    let layout = run.layout;
    judge(&format!("{layout:?} on a disk"), run.histories(seed()));
    let stats = run.store.stats();
    assert!(stats.log.head > stats.log.begin, "nothing left memory: {:?}", stats.log);
}

fn in_memory(layout: Layout, fresh: u64, bytes: usize) {
    growing(Run::new(layout, 128 << 20, &Place::Memory, fresh, bytes));
}

fn growing(run: Run) {
    let layout = run.layout;
    let before = run.store.stats().index.buckets;
    judge(&format!("{layout:?} in memory"), run.histories(seed()));
    let after = run.store.stats().index.buckets;
    assert!(after > before, "the index did not grow: {before} buckets, then {after}");
}

#[test]
fn pairs_in_memory() {
    in_memory(Layout::Pairs, 600_000, 8);
}

#[test]
fn blobs_in_memory() {
    in_memory(Layout::Blobs, 400_000, 40);
}

#[test]
fn pairs_on_a_disk() {
    on_a_disk(Layout::Pairs, 900_000, 8);
}

#[test]
fn blobs_on_a_disk() {
    on_a_disk(Layout::Blobs, 80_000, 600);
}

#[test]
fn pairs_that_end_in_memory() {
    growing(Run::new(Layout::Pairs, 128 << 20, &Place::Memory, 600_000, 8).with_ends());
}

#[test]
fn blobs_that_end_in_memory() {
    growing(Run::new(Layout::Blobs, 128 << 20, &Place::Memory, 400_000, 40).with_ends());
}

#[test]
fn pairs_that_end_on_a_disk() {
    cold(Run::new(Layout::Pairs, 16 << 20, &disk(), 900_000, 8).with_ends());
}

#[test]
fn blobs_that_end_on_a_disk() {
    cold(Run::new(Layout::Blobs, 16 << 20, &disk(), 80_000, 600).with_ends());
}
