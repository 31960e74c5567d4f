//! Many keys at once: first all buckets are fetched, then all records, then the work is done on lines that are there.
//! What is on the device is read together.

use super::Store;
use super::find::{Examined, Found, longer_than_it_says};
use super::read::with_scratch;
use crate::epoch::Counter;
use crate::error::Result;
use crate::index::Seen;
use crate::memory::prefetch;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::*;

/// Keys whose misses overlap.
const GROUP: usize = 64;
/// Cold reads handed to the device together.
const COLD_BATCH: usize = 1024;

/// A group's hashes, and the first record of each key's entry (below the log where there is none).
struct Group {
    hashes: [u64; GROUP],
    firsts: [u64; GROUP],
}

/// A key of a batch that waits for the device.
struct ColdGet {
    key: usize,
    hash: u64,
    seen: Seen,
    at: u64,
    bytes: u64,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The values of many keys; their cache misses and device reads overlap. `visit(i, value)` is called once for each
    /// key, in any order, outside the store.
    ///
    /// # Errors
    /// As [`Store::get`], the first one met; some keys may not have been visited then.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], mut visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        let mut cold = Vec::new();
        for (group, part) in keys.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            if Self::WORD {
                self.get_group_word(first, part, &mut visit, &mut cold)?;
            } else {
                self.get_group_bytes(first, part, &mut visit, &mut cold)?;
            }
            if cold.len() >= COLD_BATCH {
                self.get_cold(keys, &mut cold, &mut visit)?;
            }
        }
        self.get_cold(keys, &mut cold, &mut visit)
    }

    /// Many puts; their cache misses overlap. In order for equal keys.
    ///
    /// # Errors
    /// As [`Store::put`], the first one met; the pairs before it are in.
    pub fn put_many<Q: Borrow<K>, U: Borrow<V>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        for part in pairs.chunks(GROUP) {
            let group = self.fetch_group(part.iter().map(|(key, _)| key.borrow()))?;
            if !Self::WORD {
                for ((key, value), hash) in part.iter().zip(group.hashes) {
                    self.put_bytes_hashed(key.borrow().bytes(), hash, value.borrow().bytes())?;
                }
                continue;
            }
            self.engine.check_writable()?;
            let mut pin = self.engine.epochs.pin()?;
            pin.slot.count(Counter::Put, part.len() as u64);
            for (i, (key, value)) in part.iter().enumerate() {
                let (key, value) = (key.borrow().bytes(), super::to_word(value.borrow().bytes()));
                let (hash, first) = (group.hashes[i], group.firsts[i]);
                // Looked up before the pin; a live record above `read_only` is still the newest one.
                let done = match first {
                    0 => self.put_word_fast(&pin, key, hash, value),
                    at => self.put_word_at(at, key, value),
                };
                if done {
                    continue;
                }
                drop(pin);
                self.put_word_slowly(key, hash, value)?;
                pin = self.engine.epochs.pin()?;
            }
        }
        self.written(())
    }

    /// Many read-modify-writes; their cache misses overlap. `update(i, old)` may run again, as in [`Store::rmw`].
    ///
    /// # Errors
    /// As [`Store::rmw`], the first one met; the keys before it are done.
    pub fn rmw_many<Q: Borrow<K>>(&self, keys: &[Q], mut update: impl FnMut(usize, Option<V::View<'_>>) -> V::Owned) -> Result<()> {
        for (number, part) in keys.chunks(GROUP).enumerate() {
            let group = self.fetch_group(part.iter().map(Borrow::borrow))?;
            self.engine.check_writable()?;
            let mut pin = if Self::WORD { Some(self.engine.epochs.pin()?) } else { None };
            for (i, key) in part.iter().enumerate() {
                let (key, hash) = (key.borrow().bytes(), group.hashes[i]);
                let mut update = |old: Option<V::View<'_>>| update(number * GROUP + i, old);
                let Some(held) = &pin else {
                    self.rmw_bytes_hashed(key, hash, update)?;
                    continue;
                };
                let mut update = |old| Self::updated_word(old, &mut update);
                held.slot.count(Counter::Rmw, 1);
                if self.rmw_word_at(held, group.firsts[i], key, &mut update).is_none() {
                    drop(pin.take());
                    self.rmw_word_slowly(key, hash, &mut update)?;
                    pin = Some(self.engine.epochs.pin()?);
                }
            }
        }
        self.written(())
    }

    /// Many deletes; their cache misses overlap. Returns how many keys had a value.
    ///
    /// # Errors
    /// As [`Store::delete`], the first one met; the keys before it are gone.
    pub fn delete_many<Q: Borrow<K>>(&self, keys: &[Q]) -> Result<usize> {
        let mut count = 0;
        for part in keys.chunks(GROUP) {
            let group = self.fetch_group(part.iter().map(Borrow::borrow))?;
            for (key, hash) in part.iter().zip(group.hashes) {
                let key = key.borrow().bytes();
                let was_there = if Self::WORD { self.delete_word_hashed(key, hash) } else { self.delete_bytes_hashed(key, hash) }?;
                count += usize::from(was_there);
            }
            if Self::WORD {
                self.engine.epochs.slot()?.count(Counter::Delete, part.len() as u64);
            }
        }
        self.written(count)
    }

    /// Hashes up to [`GROUP`] keys and brings their buckets, then their first records.
    #[inline(always)]
    fn fetch_group<'k>(&self, keys: impl Iterator<Item = &'k K>) -> Result<Group>
    where
        K: 'k,
    {
        let mut group = Group { hashes: [0; GROUP], firsts: [0; GROUP] };
        let mut count = 0;
        for (hash, key) in group.hashes.iter_mut().zip(keys) {
            if !Self::WORD {
                Self::check_key(key.bytes())?;
            }
            *hash = self.hash(key.bytes());
            self.engine.index.prefetch(*hash);
            count += 1;
        }
        let index = &self.engine.index;
        let mut further = 0u64;
        for (i, (first, hash)) in group.firsts.iter_mut().zip(&group.hashes[..count]).enumerate() {
            let (at, is_further) = index.first_match_in_front(*hash);
            *first = at;
            self.prefetch_record(at);
            further |= u64::from(is_further) << i;
        }
        // Entries in overflow buckets: those were fetched meanwhile.
        while further != 0 {
            let i = further.trailing_zeros() as usize;
            group.firsts[i] = index.lookup(group.hashes[i]).address();
            self.prefetch_record(group.firsts[i]);
            further &= further - 1;
        }
        Ok(group)
    }

    #[inline(always)]
    fn prefetch_record(&self, at: u64) {
        let at = self.engine.log.pointer(at);
        prefetch(at);
        // A record of three words may lie across two lines.
        prefetch(at.wrapping_add(23));
    }

    #[inline(always)]
    fn get_group_word<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let group = self.fetch_group(keys.iter().map(Borrow::borrow))?;
        let mut words = [0u64; GROUP];
        let (mut live, mut waiting) = (0u64, 0u64);
        let pin = self.engine.epochs.pin()?;
        pin.slot.count(Counter::Get, keys.len() as u64);
        for (i, key) in keys.iter().enumerate() {
            let key = key.borrow().bytes();
            match self.record_of(group.firsts[i], key) {
                // Looked up before the pin: it may be superseded by now, and then this get came first.
                Some(record) if record.is_live() => {
                    words[i] = record.word_value(Self::KEY_WIDTH).load(Acquire);
                    live |= 1 << i;
                }
                _ => match self.get_again(key, group.hashes[i], first + i) {
                    Ok(Some(word)) => {
                        words[i] = word;
                        live |= 1 << i;
                    }
                    Ok(None) => {}
                    Err(get) => {
                        waiting |= 1 << i;
                        cold.push(get);
                    }
                },
            }
        }
        drop(pin);
        for (i, word) in words[..keys.len()].iter().enumerate() {
            if waiting >> i & 1 == 0 {
                let bytes = word.to_ne_bytes();
                visit(first + i, (live >> i & 1 == 1).then(|| V::view(&bytes[..Self::VALUE_WIDTH])));
            }
        }
        Ok(())
    }

    /// What a glance at the key's first record did not show. Under a pin.
    #[inline(never)]
    fn get_again(&self, key: &[u8], hash: u64, number: usize) -> std::result::Result<Option<u64>, ColdGet> {
        let (seen, found) = self.locate(key, hash);
        match found {
            Found::Memory { record, .. } => Ok(record.is_live().then(|| record.word_value(Self::KEY_WIDTH).load(Acquire))),
            Found::Absent if self.engine.index.is_settled(&seen) => Ok(None),
            found => Err(ColdGet::new(number, hash, seen, &found)),
        }
    }

    fn get_group_bytes<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let group = self.fetch_group(keys.iter().map(Borrow::borrow))?;
        for (i, key) in keys.iter().enumerate() {
            let bytes = key.borrow().bytes();
            let pin = self.engine.epochs.pin()?;
            pin.slot.count(Counter::Get, 1);
            let (seen, found) = self.locate(bytes, group.hashes[i]);
            match found {
                Found::Memory { record, .. } => {
                    let live = record.is_live();
                    with_scratch(|buffer| {
                        record.read_value(buffer);
                        drop(pin);
                        visit(first + i, live.then(|| V::view(buffer)));
                    });
                }
                Found::Absent if self.engine.index.is_settled(&seen) => {
                    drop(pin);
                    visit(first + i, None);
                }
                found => cold.push(ColdGet::new(first + i, group.hashes[i], seen, &found)),
            }
        }
        Ok(())
    }

    /// Reads all waiting keys from the device, a hop of every chain at a time.
    fn get_cold<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        cold: &mut Vec<ColdGet>,
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
    ) -> Result<()> {
        while !cold.is_empty() {
            let places: Vec<(u64, u64)> =
                cold.iter().filter(|one| one.at != 0).map(|one| (one.at, one.bytes.max(self.first_read_bytes()))).collect();
            self.engine.epochs.slot()?.count(Counter::DeviceRead, places.len() as u64);
            let mut reads = self.engine.log.read_cold(&places).into_iter();
            let mut waiting = Vec::new();
            for mut one in cold.drain(..) {
                let key = keys[one.key].borrow().bytes();
                if one.at != 0 {
                    let bytes = reads.next().unwrap_or_else(|| unreachable!("one read, one answer"))?;
                    match self.examine(one.at, &bytes, key)? {
                        Examined::Value(value) => {
                            visit(one.key, Some(V::view(&value)));
                            continue;
                        }
                        Examined::Tombstone => (one.at, one.bytes) = (0, 0),
                        Examined::Next(previous) => (one.at, one.bytes) = (previous, 0),
                        Examined::Short(bytes) if bytes > one.bytes => one.bytes = bytes,
                        Examined::Short(_) => return Err(longer_than_it_says(one.at)),
                    }
                }
                if one.at != 0 {
                    waiting.push(one);
                } else if self.engine.index.is_settled(&one.seen) {
                    visit(one.key, None);
                } else {
                    let value = self.get_slowly(key, one.hash)?;
                    visit(one.key, value.as_deref().map(V::view));
                }
            }
            *cold = waiting;
        }
        Ok(())
    }
}

impl ColdGet {
    fn new(key: usize, hash: u64, seen: Seen, found: &Found) -> Self {
        let at = if let Found::Cold { at } = found { *at } else { 0 };
        Self { key, hash, seen, at, bytes: 0 }
    }
}
