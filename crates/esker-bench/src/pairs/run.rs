//! The measured loops of `pairs`.
//!
//! Keys are divided among the threads, each of which works through its part in calls of one batch; all begin together. A thread looks at
//! the clock around one call in [`TIMED`], or around each call on more than one key, and stops when its time is over: calls that are
//! durable one by one would take minutes.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use super::values::{Key, Values};
use crate::answers::Answers;
use crate::engines::Pairs;
use crate::run;

/// Of so many calls on one key one is timed.
const TIMED: usize = 16;
/// Keys per call where nobody looks at the time.
const UNTIMED_BATCH: usize = 16 << 10;

/// How calls are made.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    /// Threads.
    pub(super) threads: usize,
    /// Keys of each call.
    pub(super) batch: usize,
    /// The time after which a thread stops.
    pub(super) seconds: f64,
}

/// What was measured.
pub(super) struct Measured {
    /// Keys per second.
    pub(super) rate: f64,
    /// Keys in all.
    pub(super) operations: u64,
    /// The times of calls, in nanoseconds.
    pub(super) latency: Histogram<u64>,
}

/// What one thread did.
struct Lane {
    done: usize,
    begun: Instant,
    ended: Instant,
    latency: Histogram<u64>,
}

impl Calls {
    fn parts<'k>(&self, keys: &'k [Key]) -> Vec<&'k [Key]> {
        keys.chunks(keys.len().div_ceil(self.threads).max(1)).collect()
    }

    /// Lets threads call a worker of their own with one batch after the other, and says how far each got.
    fn run<W: FnMut(&[Key])>(&self, keys: &[Key], worker: impl Fn() -> W + Sync) -> Result<(Measured, Vec<usize>)> {
        let parts = self.parts(keys);
        let barrier = Barrier::new(parts.len());
        let lanes: Result<Vec<Lane>> = std::thread::scope(|scope| {
            let (barrier, worker) = (&barrier, &worker);
            let lane = |part| {
                move || {
                    let work = worker();
                    barrier.wait();
                    self.lane(part, work)
                }
            };
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(lane(part))).collect();
            threads.into_iter().map(|thread| thread.join().ok().context("a thread of the benchmark failed")).collect()
        });
        let lanes = lanes?;
        let begun = lanes.iter().map(|lane| lane.begun).min().context("no threads")?;
        let ended = lanes.iter().map(|lane| lane.ended).max().context("no threads")?;
        let done: Vec<_> = lanes.iter().map(|lane| lane.done).collect();
        let operations = done.iter().sum::<usize>() as u64;
        let mut latency = run::histogram();
        lanes.iter().for_each(|lane| latency += &lane.latency);
        Ok((Measured { rate: operations as f64 / (ended - begun).as_secs_f64(), operations, latency }, done))
    }

    fn lane(&self, keys: &[Key], mut work: impl FnMut(&[Key])) -> Lane {
        let begun = Instant::now();
        let mut lane = Lane { done: 0, begun, ended: begun, latency: run::histogram() };
        for (number, batch) in keys.chunks(self.batch).enumerate() {
            let timed = (self.batch > 1 || number % TIMED == 0).then(Instant::now);
            work(batch);
            lane.done += batch.len();
            let Some(called) = timed else { continue };
            let now = Instant::now();
            lane.latency.saturating_record((now - called).as_nanos().max(1) as u64);
            if (now - begun).as_secs_f64() >= self.seconds {
                break;
            }
        }
        lane.ended = Instant::now();
        lane
    }

    /// Inserts all keys; those for which the time does not suffice come after it.
    pub(super) fn insert(&self, engine: &dyn Pairs, keys: &[Key], values: &Values) -> Result<Measured> {
        let worker = || {
            let mut values = values.clone();
            move |batch: &[Key]| engine.insert(batch, &mut values)
        };
        let (measured, done) = self.run(keys, worker)?;
        let mut values = values.clone();
        for (part, done) in self.parts(keys).into_iter().zip(done) {
            part[done..].chunks(UNTIMED_BATCH).for_each(|batch| engine.insert(batch, &mut values));
        }
        Ok(measured)
    }

    /// Fetches keys and looks at each value.
    pub(super) fn fetch(&self, engine: &dyn Pairs, keys: &[Key], values: &Values) -> Result<Measured> {
        let wrong = AtomicU64::new(0);
        let worker = || {
            |batch: &[Key]| {
                let mut right = 0;
                let mut see =
                    |index: usize, value: Option<&[u8]>| right += usize::from(value.is_some_and(|v| values.belongs(&batch[index], v)));
                engine.fetch(batch, &mut see);
                if right != batch.len() {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let (measured, _) = self.run(keys, worker)?;
        let wrong = wrong.into_inner();
        ensure!(wrong == 0, "{wrong} calls gave no value or a wrong one");
        Ok(measured)
    }
}

/// Compares the value of each key, byte for byte. All data have been read once then.
pub(super) fn audit(engine: &dyn Pairs, keys: &[Key], values: &Values) -> Result<()> {
    let mut values = values.clone();
    let mut wrong = 0;
    for batch in keys.chunks(1024) {
        let mut answers = Answers::to(batch.len());
        engine.fetch(batch, &mut |index, value| {
            answers.note(index);
            wrong += u64::from(!value.is_some_and(|value| values.is(&batch[index], value)));
        });
        wrong += answers.faults();
    }
    ensure!(wrong == 0, "{wrong} pairs are lost or wrong");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::super::values::Order;
    use super::*;

    /// Keeps what it is given, but may damage one value, or answer for the key before instead of for one.
    #[derive(Default)]
    struct Map {
        pairs: Mutex<HashMap<Key, Vec<u8>>>,
        damaged: Option<Key>,
        skipped: Option<Key>,
    }

    impl Pairs for Map {
        fn insert(&self, keys: &[Key], values: &mut Values) {
            let mut pairs = self.pairs.lock().unwrap();
            for key in keys {
                let mut value = values.of(key).to_vec();
                value[9] ^= u8::from(self.damaged == Some(*key));
                pairs.insert(*key, value);
            }
        }

        fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
            let pairs = self.pairs.lock().unwrap();
            for (mut index, mut key) in keys.iter().enumerate() {
                if self.skipped == Some(*key) {
                    (index, key) = (index - 1, &keys[index - 1]);
                }
                seen(index, pairs.get(key).map(Vec::as_slice));
            }
        }
    }

    const CALLS: Calls = Calls { threads: 3, batch: 7, seconds: 60.0 };

    #[test]
    fn every_pair_is_inserted_fetched_and_counted() {
        let (map, keys, values) = (Map::default(), Order::Random.keys(1000, 1), Values::new(80, true));
        // With no time at all each thread makes one call, and the rest comes after it.
        for (seconds, operations) in [(60.0, 1000), (0.0, 21)] {
            let calls = Calls { seconds, ..CALLS };
            assert_eq!(calls.insert(&map, &keys, &values).unwrap().operations, operations);
            assert_eq!(map.pairs.lock().unwrap().len(), 1000);
            assert_eq!(calls.fetch(&map, &keys, &values).unwrap().operations, operations);
            audit(&map, &keys, &values).unwrap();
            map.pairs.lock().unwrap().clear();
        }
    }

    #[test]
    fn a_wrong_value_and_a_missing_one_end_the_experiment() {
        let (keys, values) = (Order::InOrder.keys(100, 1), Values::new(80, true));
        let map = Map { damaged: Some(keys[50]), ..Map::default() };
        CALLS.insert(&map, &keys[..99], &values).unwrap();
        assert!(CALLS.fetch(&map, &keys[..50], &values).is_ok() && audit(&map, &keys[..50], &values).is_ok());
        assert!(CALLS.fetch(&map, &keys[..51], &values).is_err() && audit(&map, &keys[..51], &values).is_err());
        assert!(CALLS.fetch(&map, &keys[99..], &values).is_err() && audit(&map, &keys[99..], &values).is_err());
    }

    #[test]
    fn an_answer_that_comes_twice_stands_for_no_other() {
        let (keys, values) = (Order::InOrder.keys(100, 1), Values::new(80, true));
        let map = Map { skipped: Some(keys[50]), ..Map::default() };
        CALLS.insert(&map, &keys, &values).unwrap();
        assert!(audit(&map, &keys[..50], &values).is_ok() && audit(&map, &keys, &values).is_err());
    }
}
