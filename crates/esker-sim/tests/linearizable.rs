//! What several threads see of a key could have come from one map.
//!
//! The theory: eight threads work on few hot keys, recording when each operation was called and
//! returned and what it gave, while another inserts fresh keys, so that the index grows under them and,
//! on a device, pages are evicted and hot records copied. The workers keep pace with the inserting
//! thread, so the whole growth happens under their operations. Each key's history is then judged alone.
//! `ESKER_SEED` replays a seed's operations (not its schedule).

use esker_sim::disk::SimDisk;
use esker_sim::history::{Action, Clock, Event, Recorder, add, by_key, check};
use esker_sim::model::Layout;
use esker_sim::seeds::seed;
use esker_sim::subject::{self, Place, Subject};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    inserted: AtomicU64,
    stopped: AtomicBool,
}

impl Run {
    fn new(layout: Layout, budget: u64, place: &Place, fresh: u64, fresh_bytes: usize) -> Run {
        Run {
            store: subject::open(layout, budget, place).unwrap(),
            layout,
            fresh,
            fresh_value: vec![7; fresh_bytes],
            clock: Clock::default(),
            inserted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    fn histories(&self, seed: u64) -> Vec<Event> {
        std::thread::scope(|scope| {
            let insert = scope.spawn(|| Stop(&self.stopped).during(|| self.insert()));
            let work = |t| Stop(&self.stopped).during(|| self.work(seed * 100 + t));
            let workers: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || work(t))).collect();
            let events = workers.into_iter().flat_map(|w| w.join().expect("a worker panicked")).collect();
            insert.join().expect("the inserting thread panicked");
            events
        })
    }

    fn insert(&self) {
        for id in 0..self.fresh {
            self.store.put(&self.layout.key(1000 + id), &self.fresh_value).expect("an insert");
            self.inserted.store(id + 1, Ordering::Relaxed);
        }
    }

    fn work(&self, seed: u64) -> Vec<Event> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut recorder = Recorder::new(&self.clock);
        for done in 0..OPERATIONS {
            if done % 50 == 0 {
                self.keep_pace(done);
            }
            let key = random.random_range(0..HOT);
            recorder.record(key, || self.operate(key, &mut random));
        }
        recorder.finish()
    }

    /// Waits until the insertions are as far along as this worker.
    fn keep_pace(&self, done: u64) {
        while self.inserted.load(Ordering::Relaxed) < self.fresh * done / OPERATIONS {
            assert!(!self.stopped.load(Ordering::Relaxed), "another thread panicked");
            std::thread::yield_now();
        }
    }

    fn operate(&self, id: u64, random: &mut ChaCha8Rng) -> Action {
        let key = self.layout.key(id);
        match random.random_range(0..20) {
            0..6 => Action::Get(self.store.get(&key).expect("get")),
            6 => Action::Contains(self.store.contains(&key).expect("contains")),
            7..10 => self.put(&key, random),
            10 => Action::Delete(self.store.delete(&key).expect("delete")),
            11..15 if self.layout == Layout::Blobs => self.append(&key, random),
            _ => self.add(&key, random.random_range(1..1000)),
        }
    }

    fn put(&self, key: &[u8], random: &mut ChaCha8Rng) -> Action {
        let length = if self.layout == Layout::Blobs { random.random_range(8..120) } else { 8 };
        let value: Vec<u8> = (0..length).map(|_| random.random()).collect();
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

fn judge(name: &str, events: Vec<Event>) {
    assert_eq!(events.len() as u64, THREADS * OPERATIONS);
    for (key, history) in by_key(events) {
        if let Err(around) = check(&history) {
            let lines: Vec<String> = around.iter().map(|e| format!("{e:?}")).collect();
            panic!("{name}: ESKER_SEED={}: key {key} is not linearizable near\n{}", seed(), lines.join("\n"));
        }
    }
}

/// On a device: the fresh keys are more than the budget.
fn on_a_disk(layout: Layout, fresh: u64, bytes: usize) {
    let place = Place::Disk(Arc::new(SimDisk::with_delay(seed(), 50)));
    let run = Run::new(layout, 16 << 20, &place, fresh, bytes);
    judge(&format!("{layout:?} on a disk"), run.histories(seed()));
    let stats = run.store.stats();
    assert!(stats.log.head > stats.log.begin, "nothing left memory: {:?}", stats.log);
}

fn in_memory(layout: Layout, fresh: u64, bytes: usize) {
    let run = Run::new(layout, 128 << 20, &Place::Memory, fresh, bytes);
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
