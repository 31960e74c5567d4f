//! By index: all entries are walked, some buckets at a time, in an order that growth does not disturb (`index/walk.rs`).
//!
//! An entry stands for one key, nearly always; but keys may share it, chains lead to older versions, and after a split two
//! buckets may lead to the same records. So of each chain those records are taken whose key this entry stands for, in this
//! bucket, and of each key the first that counts; behind that one a chain of one key alone is not followed. Chains that go on
//! on the device are followed there together.

use super::rows::{ROWS_BYTES, Rows};
use super::{Frame, Visit, chains};
use crate::error::Result;
use crate::index::{Bucketful, position};
use crate::record::{ADDRESS_MASK, RECORD_BYTES_MIN, Record};
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::types::{Key, Value};
use std::mem::take;

/// Buckets whose cache misses overlap.
const BUCKETS: usize = 16;
/// Chains that are kept before they are read from the device; and fewer where they are of many keys, which all are remembered until a
/// chain's end.
const COLD_CHAINS: usize = 1 << 14;
const KEYS_REMEMBERED: u64 = 1 << 17;
const COLD_CHAINS_MIN: usize = 1 << 6;
/// So many walks are made before it is asked whether to go on.
const WALKS_UNASKED: u32 = 1 << 10;
/// Parts of the index that threads take in turns.
const PARTS_BITS: u32 = 8;
pub(super) const PARTS: u64 = 1 << PARTS_BITS;

/// A scan by index that several threads share.
pub(super) struct ByIndex<'a, K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) frame: &'a Frame<'a, K, V>,
    next: AtomicU64,
}

/// A chain that goes on on the device.
struct ColdChain {
    at: u64,
    taken: Taken,
    entry: usize,
    /// All of it that the view needs is of one key.
    is_sole: bool,
    /// Fingerprints of its keys that were met: keys may be long, and chains many.
    met: Vec<u128>,
}

/// A walker's buffers.
#[derive(Default)]
pub(super) struct Walker {
    buckets: Vec<Taken>,
    met: Vec<u64>,
    cold: Vec<ColdChain>,
}

/// A bucket that was copied, and which positions are taken from it.
#[derive(Clone, Default)]
struct Taken {
    bucket: Bucketful,
    from: u64,
    last: u64,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> ByIndex<'a, K, V> {
    pub(super) fn new(frame: &'a Frame<'a, K, V>) -> Self {
        Self { frame, next: AtomicU64::new(0) }
    }

    /// One thread's share.
    pub(super) fn work(&self, visit: &mut dyn Visit<K, V>) -> Result<()> {
        let (mut walker, mut rows, mut walked) = (Walker::default(), Rows::default(), 0);
        let chains_max = self.frame.cold_chains_max();
        loop {
            let part = self.next.fetch_add(1, Relaxed);
            if part >= PARTS {
                return self.frame.follow_cold(&mut walker, Some(walked), visit);
            }
            let from = part << (64 - PARTS_BITS);
            let last = from | (u64::MAX >> PARTS_BITS);
            let (mut at, mut walks) = (Some(from), 0u32);
            while let Some(from) = at {
                walks += 1;
                // It may be told to end.
                if walks.is_multiple_of(WALKS_UNASKED) {
                    self.frame.control.advance(0)?;
                }
                at = self.frame.walk(&mut walker, from, last, BUCKETS, &mut rows)?;
                visit.rows(&mut rows);
                if walker.cold.len() >= chains_max {
                    self.frame.follow_cold(&mut walker, Some(take(&mut walked)), visit)?;
                }
            }
            // What goes on on the device is not done.
            walked += 1;
            let done = if walker.cold.is_empty() { take(&mut walked) } else { 0 };
            self.frame.control.advance(done)?;
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Frame<'_, K, V> {
    /// Takes the keys of some buckets, at most, from position `from` to `last`; where to go on, if there is more.
    pub(super) fn walk(&self, walker: &mut Walker, from: u64, last: u64, buckets: usize, rows: &mut Rows) -> Result<Option<u64>> {
        // Before the buckets are looked at: while somebody is pinned the level does not turn there and back (`index/shrink.rs`).
        // Wary: a list that is a test is the caller's.
        let _pin = self.engine().epochs.pin()?.wary();
        let index = &self.engine().index;
        let mut ahead = Some(from);
        for _ in 0..buckets {
            ahead = ahead.and_then(|at| index.prefetch_position(at)).filter(|at| *at <= last);
        }
        walker.buckets.resize_with(buckets, Taken::default);
        let (mut next, mut count) = (Some(from), 0);
        for taken in &mut walker.buckets {
            let Some(at) = next else { break };
            let end = index.copy_bucket(at, &mut taken.bucket);
            (taken.from, taken.last) = (at, end.map_or(u64::MAX, |end| end - 1).min(last));
            taken.bucket.addresses().for_each(|address| self.engine().log.prefetch(address));
            next = end.filter(|at| *at <= last);
            count += 1;
        }
        for taken in &walker.buckets[..count] {
            if rows.bytes() > ROWS_BYTES {
                return Ok(Some(taken.from));
            }
            for (entry, address) in taken.bucket.addresses().enumerate() {
                self.take_chain(taken, entry, address, &mut walker.met, &mut walker.cold, rows);
            }
        }
        Ok(next)
    }

    /// Takes the keys of one chain as far as it lies in memory. Under a pin.
    #[inline(always)]
    fn take_chain(&self, taken: &Taken, entry: usize, mut at: u64, met: &mut Vec<u64>, cold: &mut Vec<ColdChain>, rows: &mut Rows) {
        let engine = self.engine();
        let head = engine.log.bounds.head.load(Acquire);
        met.clear();
        // SAFETY: addresses at or above `head`, read under the caller's pin; entries and chains hold published ones only.
        let record_at = |at| unsafe { Record::new(engine.log.pointer(at)) };
        while at != 0 && at >= self.view.begin {
            if at < head {
                let met = met.iter().map(|at| engine.hasher.fingerprint(self.key_of(&record_at(*at)))).collect();
                cold.push(ColdChain { at, taken: taken.clone(), entry, is_sole: self.is_sole(taken, entry), met });
                return;
            }
            let record = record_at(at);
            let header = record.header().load(Acquire);
            let counts = self.view.counts(at, header);
            if counts {
                let key = self.key_of(&record);
                if taken.takes(entry, self.hash(key)) && !met.iter().any(|at| self.key_of(&record_at(*at)) == key) {
                    if self.wants(key) {
                        self.copy(&record, rows);
                    }
                    met.push(at);
                }
            }
            at = header & ADDRESS_MASK;
            // Nearly all chains end here anyway.
            if at >= self.view.begin && counts && self.is_sole(taken, entry) {
                return;
            }
        }
    }

    /// How many chains are followed together.
    fn cold_chains_max(&self) -> usize {
        let engine = self.engine();
        if !engine.index.is_shared() {
            return COLD_CHAINS;
        }
        let keys_an_entry = engine.log_extent() / RECORD_BYTES_MIN / engine.index.entries().max(1);
        ((KEYS_REMEMBERED / keys_an_entry.max(1)) as usize).clamp(COLD_CHAINS_MIN, COLD_CHAINS)
    }

    /// True if all that a view needs of the chain is of one key. Once the bucket was copied.
    fn is_sole(&self, taken: &Taken, entry: usize) -> bool {
        taken.bucket.is_sole(entry) && self.sees_what_sole_means()
    }

    /// Follows the chains that go on on the device; then so many parts more are done, and along the way some of them. Where none are given
    /// nobody is asked meanwhile.
    pub(super) fn follow_cold(&self, walker: &mut Walker, parts: Option<u64>, visit: &mut dyn Visit<K, V>) -> Result<()> {
        let mut chains: Vec<_> = walker.cold.drain(..).map(|chain| (chain.at, Some(chain))).collect();
        let (all, mut followed, mut told, mut read) = (chains.len().max(1) as u64, 0, 0, 0);
        chains::follow(self.engine(), self.view.begin, &mut chains, |chain, at, record| {
            if parts.is_some() {
                self.control.have_read(&mut read, record.bytes.len())?;
            }
            let (Some(chain), key) = (chain, record.key) else { return Ok(false) };
            let counts = self.view.counts(at, record.header);
            let goes_on = !(counts && chain.is_sole);
            if counts && chain.taken.takes(chain.entry, self.hash(key)) {
                let mark = if goes_on || !chain.met.is_empty() { self.engine().hasher.fingerprint(key) } else { 0 };
                if !chain.met.contains(&mark) {
                    if self.view.is_value(record.header, record.expires) && self.wants(key) {
                        visit.pair(key, record.value);
                    }
                    chain.met.push(mark);
                }
            }
            followed += u64::from(!goes_on);
            let done = parts.unwrap_or(0) * followed.min(all) / all;
            if done > told {
                self.control.advance(done - told)?;
                told = done;
            }
            Ok(goes_on)
        })?;
        parts.map_or(Ok(()), |parts| self.control.advance(parts - told))
    }
}

impl Taken {
    /// True if this entry stands for the hash, and the walk takes it from this bucket.
    #[inline(always)]
    fn takes(&self, entry: usize, hash: u64) -> bool {
        (self.from..=self.last).contains(&position(hash)) && self.bucket.entry_for(hash) == Some(entry)
    }
}
