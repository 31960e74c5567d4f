//! Which way a scan takes, and why.
//!
//! The estimates are of this machine's kind: nanoseconds measured on one core with data in memory, larger than its caches
//! (`esker-bench aggregate`). They need only be right where the ways are far apart.

use super::Scan;
use super::doubts::Doubts;
use crate::error::{Error, Result};
use crate::record;
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Layout, Value, layout};
use crate::windows::WINDOW_BYTES;
use std::time::Duration;

/// A way to go through a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Each key of a list is looked up.
    ByKeys,
    /// The index is walked.
    ByIndex,
    /// The log is read.
    ByLog,
}

/// How a scan would run now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The way it takes.
    pub strategy: Strategy,
    /// What each way that can serve is estimated to take, on one thread.
    pub estimates: Vec<(Strategy, Duration)>,
    /// Why, in a sentence.
    pub reason: String,
}

/// Nanoseconds.
const BYTE_OF_LOG: f64 = 0.09;
const RECORD_OF_LOG: f64 = 2.0;
const RECORD_ASKED: f64 = 20.0;
const BYTE_OF_DEVICE: f64 = 0.8;
const RECORD_OF_DEVICE: f64 = 15.0;
const BUCKET: f64 = 10.0;
const KEY: f64 = 28.0;
/// Of a record that a key leads to, beyond the shortest.
const BYTE_OF_RECORD: f64 = 0.17;
const RECORD_BYTES_MIN: f64 = 24.0;
/// A record in bytes layout that the index leads to, by one that a listed key does.
const BYTES_WALKED: f64 = 2.5;
const DEVICE_READ: f64 = 8_000.0;
/// The record that its chain begins with, itself, and perhaps another in between.
const READS_OF_DOUBT: f64 = 2.5;
/// Of a set of listed keys: to put one in, and to ask for one.
const SET_KEY: f64 = 25.0;
const SET_ASKED: f64 = 12.0;

/// Windows of the log that are looked at.
const SAMPLE: u64 = 1024;

/// What estimates are made of.
struct Facts {
    cold_bytes: u64,
    memory_bytes: u64,
    /// The part of memory where something was superseded.
    superseded: f64,
    record_bytes: f64,
    /// An entry's record in a walk of the index, to a listed key's.
    walked: f64,
    entries: u64,
    buckets: u64,
    /// Records on the device that no entry leads to, where keys share entries: whether they live is read from the device.
    doubtful: f64,
    /// How many of them at a time.
    doubts: f64,
    /// Listed keys that another way would put in a set.
    set: u64,
}

impl Facts {
    fn cold_part(&self) -> f64 {
        self.cold_bytes as f64 / (self.cold_bytes + self.memory_bytes).max(1) as f64
    }

    fn by_log(&self) -> f64 {
        let (memory, cold) = (self.memory_bytes as f64, self.cold_bytes as f64);
        let in_memory = memory * BYTE_OF_LOG + memory / self.record_bytes * (RECORD_OF_LOG + self.superseded * RECORD_ASKED);
        let asked = self.selecting((memory + cold) / self.record_bytes);
        in_memory + cold * BYTE_OF_DEVICE + cold / self.record_bytes * RECORD_OF_DEVICE + self.settling() + asked
    }

    /// Chains of a few; else each part of the log that has as many as are settled at a time is read again, and so is what is newer.
    fn settling(&self) -> f64 {
        let sweep = self.cold_bytes as f64 * BYTE_OF_DEVICE;
        let sweeps = ((self.doubtful / self.doubts).ceil() + 3.0) / 2.0;
        (sweeps * sweep).min(self.doubtful * READS_OF_DOUBT * DEVICE_READ) + self.doubtful * RECORD_OF_DEVICE
    }

    fn by_index(&self) -> f64 {
        let walked = self.lookups(self.entries, self.walked) + self.doubtful * DEVICE_READ;
        self.buckets as f64 * BUCKET + walked + self.selecting(self.entries as f64)
    }

    /// To tell the listed keys from so many.
    fn selecting(&self, asked: f64) -> f64 {
        if self.set == 0 { 0.0 } else { self.set as f64 * SET_KEY + asked * SET_ASKED }
    }

    fn by_keys(&self, keys: u64) -> f64 {
        self.lookups(keys, 1.0)
    }

    /// Of so many keys, whose records in memory take so many times as long as those of listed keys.
    fn lookups(&self, keys: u64, times: f64) -> f64 {
        let in_memory = KEY + (self.record_bytes - RECORD_BYTES_MIN).max(0.0) * BYTE_OF_RECORD;
        keys as f64 * (times * in_memory + self.cold_part() * DEVICE_READ)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Scan<'_, K, V> {
    /// How the scan would run now: which way, what each is estimated to cost, and why.
    ///
    /// # Errors
    /// `Invalid` if the strategy asked for needs a list of keys and there is none.
    pub fn explain(&self) -> Result<Plan> {
        self.plan()
    }

    pub(super) fn plan(&self) -> Result<Plan> {
        let facts = self.facts();
        let mut estimates = vec![(Strategy::ByLog, facts.by_log()), (Strategy::ByIndex, facts.by_index())];
        if let Some(keys) = &self.keys {
            estimates.push((Strategy::ByKeys, facts.by_keys(keys.len() as u64)));
        }
        let best = estimates.iter().copied().reduce(|best, other| if other.1 < best.1 { other } else { best });
        let strategy = self.strategy.or(best.map(|(strategy, _)| strategy)).unwrap_or(Strategy::ByLog);
        if strategy == Strategy::ByKeys && self.keys.is_none() {
            return Err(Error::invalid("a scan by keys needs a list of keys"));
        }
        let why = if self.strategy.is_some() { "as asked for" } else { "estimated to be the cheapest" };
        let reason = format!(
            "{strategy:?}, {why}: {} bytes of log on the device and {} in memory, of which {:.0} % had something superseded, {} entries in \
             {} buckets{}",
            facts.cold_bytes,
            facts.memory_bytes,
            100.0 * facts.superseded,
            facts.entries,
            facts.buckets,
            self.keys.as_ref().map_or(String::new(), |keys| format!(", {} keys listed", keys.len())),
        );
        let estimates = estimates.into_iter().map(|(strategy, ns)| (strategy, Duration::from_nanos(ns as u64))).collect();
        Ok(Plan { strategy, estimates, reason })
    }

    fn facts(&self) -> Facts {
        let engine = &self.store.engine;
        let bounds = &engine.log.bounds;
        let (begin, tail) = (bounds.begin.load(Relaxed), engine.log.tail());
        let head = bounds.head.load(Relaxed).clamp(begin, tail);
        let waiting: u64 = engine.epochs.slots().map(|slot| slot.entries.load(Relaxed)).sum();
        let entries = engine.index.entries_with(waiting);
        let (record_bytes, walked) = match layout::<K, V>() {
            Layout::Word { key_bytes, .. } => (record::word_record_bytes(key_bytes) as f64, 1.0),
            Layout::Bytes => (((tail - begin) as f64 / entries.max(1) as f64).max(32.0), BYTES_WALKED),
        };
        let (cold_bytes, memory_bytes) = (head - begin, tail - head);
        let cold_entries = entries as f64 * cold_bytes as f64 / (cold_bytes + memory_bytes).max(1) as f64;
        let doubtful = if engine.index.is_shared() { (cold_bytes as f64 / record_bytes - cold_entries).max(0.0) } else { 0.0 };
        Facts {
            cold_bytes,
            memory_bytes,
            doubtful,
            doubts: Doubts::most(engine) as f64,
            superseded: self.superseded_part(head, tail),
            record_bytes,
            walked,
            entries,
            buckets: engine.index.buckets() + engine.index.overflow_buckets(),
            set: self.keys.as_ref().filter(|_| self.is_listed.is_none()).map_or(0, |keys| keys.len() as u64),
        }
    }

    /// Of a sample of windows: how many have something superseded.
    fn superseded_part(&self, from: u64, until: u64) -> f64 {
        let windows = &self.store.engine.log.windows;
        let step = ((until - from) / SAMPLE).max(WINDOW_BYTES);
        let sample = (from..until).step_by(step as usize);
        let (superseded, all) = sample.fold((0, 0), |(yes, all), at| (yes + u64::from(windows.is_superseded(at)), all + 1u64));
        superseded as f64 / all.max(1) as f64
    }
}
