//! By keys: each key of a list is looked up, in groups whose cache misses overlap; what is cold is read from the device together.

use super::rows::{ROWS_BYTES, Rows};
use super::{Frame, Visit, chains};
use crate::error::Result;
use crate::index::Seen;
use crate::snapshot::Newest;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::hint;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::marker::PhantomData;

const GROUP: usize = 64;
/// Groups that a thread takes at once, and cold keys whose reads overlap.
const KEYS_TAKEN: usize = 64 * GROUP;

/// A list of keys, whatever holds them.
pub(super) trait List: Send + Sync {
    fn len(&self) -> usize;

    fn key(&self, at: usize) -> &[u8];

    /// The keys from `from` on, as many as there are and fit; how many that is.
    fn group<'s>(&'s self, from: usize, group: &mut [&'s [u8]]) -> usize;
}

/// The list as the caller holds it: a copy of ten million keys' places took longer than the log's records.
pub(super) struct Lent<'a, K: ?Sized, Q> {
    pub(super) keys: &'a [Q],
    pub(super) of: PhantomData<fn(&K)>,
}

impl<K: Key + ?Sized, Q: Borrow<K> + Sync> List for Lent<'_, K, Q> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn key(&self, at: usize) -> &[u8] {
        self.keys[at].borrow().bytes()
    }

    fn group<'s>(&'s self, from: usize, group: &mut [&'s [u8]]) -> usize {
        let keys = self.keys.get(from..).unwrap_or_default();
        group.iter_mut().zip(keys).for_each(|(bytes, key)| *bytes = key.borrow().bytes());
        keys.len().min(group.len())
    }
}

/// A scan by keys that several threads share.
pub(super) struct ByKeys<'a, K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) frame: &'a Frame<'a, K, V>,
    keys: Option<&'a dyn List>,
    next: AtomicU64,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> ByKeys<'a, K, V> {
    pub(super) fn new(frame: &'a Frame<'a, K, V>, keys: Option<&'a dyn List>) -> Self {
        Self { frame, keys, next: AtomicU64::new(0) }
    }

    /// One thread's share.
    pub(super) fn work(&self, visit: &mut dyn Visit<K, V>) -> Result<()> {
        let mut rows = Rows::default();
        let mut cold = Vec::new();
        let Some(keys) = self.keys else { return Ok(()) };
        loop {
            let from = self.next.fetch_add(KEYS_TAKEN as u64, Relaxed) as usize;
            let taken = from..(from + KEYS_TAKEN).min(keys.len());
            if taken.is_empty() {
                return Ok(());
            }
            for at in taken.clone().step_by(GROUP) {
                let mut group = [&[][..]; GROUP];
                let count = keys.group(at, &mut group);
                self.look_up(&group[..count], &mut rows, &mut cold, visit)?;
            }
            let (engine, view, mut read) = (self.frame.engine(), &self.frame.view, 0);
            chains::follow(engine, view.begin, &mut cold, |key, at, record| {
                self.frame.control.have_read(&mut read, record.bytes.len())?;
                if !view.counts(at, record.header) || record.key != *key {
                    return Ok(true);
                }
                if self.frame.view.is_value(record.header, record.expires) {
                    visit.pair(key, record.value);
                }
                Ok(false)
            })?;
            self.frame.control.advance(taken.len() as u64)?;
        }
    }

    fn look_up(&self, group: &[&'a [u8]], rows: &mut Rows, cold: &mut Vec<(u64, &'a [u8])>, visit: &mut dyn Visit<K, V>) -> Result<()> {
        let engine = self.frame.engine();
        let ripened = engine.log.holes.ripened();
        let mut hashes = [0; GROUP];
        let mut seen = [Seen::default(); GROUP];
        for (hash, key) in hashes.iter_mut().zip(group) {
            *hash = self.frame.hash(key);
            engine.index.prefetch(*hash);
        }
        for hash in &hashes[..group.len()] {
            // Should the entry lie behind the first bucket, that is fetched as well.
            engine.log.prefetch(engine.index.first_match_in_front(*hash).0);
        }
        for (seen, hash) in seen.iter_mut().zip(&hashes[..group.len()]) {
            *seen = engine.index.lookup(*hash);
        }
        let mut rest = group.iter().copied().zip(hashes).zip(seen).peekable();
        while rest.peek().is_some() {
            let pin = engine.epochs.pin()?;
            let stands = engine.log.holes.ripened() == ripened;
            while rows.bytes() < ROWS_BYTES
                && let Some(((key, hash), seen)) = rest.next()
            {
                if self.frame.wants(key) {
                    let seen = if stands { seen } else { engine.index.lookup(hash) };
                    self.find(key, hash, seen, rows, cold);
                }
            }
            drop(pin);
            visit.rows(rows);
        }
        Ok(())
    }

    /// Under a pin.
    #[inline(always)]
    fn find(&self, key: &'a [u8], hash: u64, mut seen: Seen, rows: &mut Rows, cold: &mut Vec<(u64, &'a [u8])>) {
        let frame = self.frame;
        loop {
            match frame.engine().newest_in(&frame.view, seen.address(), 0, |record| frame.key_of(record) == key) {
                // The wrong bucket, or a shorter tag, if it was moving.
                Newest::Memory(_) if !frame.engine().index.leads_surely(&seen) => hint::spin_loop(),
                Newest::Memory(record) => return frame.copy(&record, rows),
                _ if !frame.engine().index.is_settled(&seen) => hint::spin_loop(),
                Newest::Cold(at) => return cold.push((at, key)),
                Newest::Nowhere { .. } => return,
            }
            seen = frame.engine().index.lookup(hash);
        }
    }
}
