//! Many keys at once: first all buckets are fetched, then all records, each twice, then the work is done on lines that are there.
//! What is on the device is read in a stream, many keys at a time.

use super::Store;
use super::cold::Cold;
use super::conditional::{Doomed, Version};
use super::find::Found;
use super::read::with_scratch;
use super::step::{Known, Step};
use super::waiting::{Waits, brought_here, give_way};
use crate::ahead::of_stream;
use crate::cache::Ending;
use crate::descent::{Places, Walk, Walked};
use crate::device::{DeviceRead, ReadSource};
use crate::engine::Engine;
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::Seen;
use crate::log::NOWHERE;
use crate::memory::prefetch;
use crate::record::Record;
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::io;

/// Keys whose misses overlap.
pub(super) const GROUP: usize = 64;
/// Keys of a batch that another look is put off for.
const UNSETTLED_MAX: usize = 1024;
/// So many keys before its turn a key's value is fetched,
const AHEAD: usize = 2;
/// but not more of it than this: the rest comes by itself when its beginning is read in order.
const VALUE_AHEAD_MAX: usize = 2 << 10;
const CACHE_LINE: usize = 64;
/// Keys that are looked up before what they lack is read: many times the device's depth.
pub(super) const PART: usize = 64 * GROUP;

/// A group's hashes, and the first record of each key's entry (below the log where there is none).
pub(super) struct Group {
    pub(super) hashes: [u64; GROUP],
    firsts: [u64; GROUP],
    looks_again: bool,
    /// [`Holes::ripened`](crate::log::holes::Holes::ripened) before they were looked up.
    ripened: u64,
}

impl Group {
    /// The first record of the key's entry, as far as whoever changes it may go by it. Under a pin.
    #[inline(always)]
    pub(super) fn first(&self, i: usize, engine: &Engine) -> u64 {
        let may_lead_there = !self.looks_again && self.stands(engine) || self.firsts[i] == 0;
        if may_lead_there { self.firsts[i] } else { engine.index.first_match(self.hashes[i]) }
    }

    /// True if the places that were found are no other keys' by now. Under a pin, and as long as that lasts.
    #[inline(always)]
    fn stands(&self, engine: &Engine) -> bool {
        engine.log.holes.ripened() == self.ripened
    }

    /// A change was not made to the first record, and may have superseded it: while a line's cut is being looked for, say, when that record
    /// lies above the cut and is mutable again as soon as that is known. For another change of the same key it is not the newest any more.
    #[inline(always)]
    fn look_again(&mut self) {
        self.looks_again = true;
    }
}

/// A key of a batch that waits for the device.
pub(super) struct ColdGet {
    pub(super) key: usize,
    pub(super) hash: u64,
    seen: Seen,
    walk: Walk,
}

/// A `get_many` under way: a source of device reads that looks further keys up when the device could do more.
struct GetMany<'a, K: Key + ?Sized, V: Value + ?Sized, Q, F> {
    store: &'a Store<K, V>,
    keys: &'a [Q],
    visit: F,
    /// The first key that was not looked up yet.
    next: usize,
    /// To be read: the last one first, so that a chain's next record comes before another chain.
    waiting: Vec<ColdGet>,
    reading: Places<ColdGet>,
    /// Found nowhere while their buckets were moving, or held: they are looked up again at the end.
    unsettled: Vec<ColdGet>,
    reads: u64,
    result: Result<()>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The values of many keys; their cache misses and device reads overlap. `visit(i, value)` is called once for each
    /// key, in any order, outside the store.
    ///
    /// # Errors
    /// As [`Store::get`], the first one met; some keys may not have been visited then.
    ///
    /// # Cost
    /// The device has up to 128 reads under way at a time, of different keys, whatever the number of keys.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        let mut gets = GetMany {
            store: self,
            keys,
            visit,
            next: 0,
            waiting: Vec::new(),
            reading: Places::default(),
            unsettled: Vec::new(),
            reads: 0,
            result: Ok(()),
        };
        while gets.next < keys.len() {
            gets.look_up()?;
            if !gets.waiting.is_empty() {
                gets.read_cold()?;
            }
        }
        Ok(())
    }

    /// Many puts; their cache misses overlap. In order for equal keys.
    ///
    /// # Errors
    /// As [`Store::put`], the first one met; the pairs before it are in.
    pub fn put_many<Q: Borrow<K>, U: Borrow<V>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        for part in pairs.chunks(GROUP) {
            let mut group = self.fetch_group(part.iter().map(|(key, _)| key.borrow().bytes()));
            let mut next = 0;
            while let Some(i) = self.put_group(part, &mut next, &mut group)? {
                let (key, hash, value) = (part[i].0.borrow().bytes(), group.hashes[i], part[i].1.borrow().bytes());
                if Self::WORD {
                    self.put_word_slowly(key, hash, super::to_word(value))?;
                } else {
                    self.put_bytes_slowly(key, hash, value)?;
                }
            }
        }
        self.written(())
    }

    /// Puts the pairs of a group from `next` on, up to one that takes more than a look at what is there: that is to be put before this goes
    /// on.
    #[inline(always)]
    pub(super) fn put_group<Q: Borrow<K>, U: Borrow<V>>(
        &self,
        part: &[(Q, U)],
        next: &mut usize,
        group: &mut Group,
    ) -> Result<Option<usize>> {
        if !Self::WORD {
            while let Some((key, value)) = part.get(*next) {
                let (key, value) = (key.borrow().bytes(), Self::value_of_known_length(value.borrow().bytes()));
                self.check_put(key, value)?;
                let (i, hash) = (*next, group.hashes[*next]);
                *next += 1;
                let pin = self.engine.epochs.pin_to_write(Counter::Put);
                if pin.is_some() && self.put_at(group.first(i, &self.engine), key, value) {
                    continue;
                }
                group.look_again();
                if !pin.is_some_and(|pin| self.put_probing(&pin, key, hash, value)) {
                    return Ok(Some(*next - 1));
                }
            }
            return Ok(None);
        }
        self.engine.admit_write()?;
        // What a key or value borrows from is the caller's code.
        let pin = self.engine.epochs.pin()?.wary();
        if *next == 0 {
            pin.slot.count(Counter::Put, part.len() as u64);
        }
        while let Some((key, value)) = part.get(*next) {
            let (key, value) = (key.borrow().bytes(), super::to_word(value.borrow().bytes()));
            let (hash, first) = (group.hashes[*next], group.first(*next, &self.engine));
            *next += 1;
            let is_plain = !self.engine.epochs.is_latching();
            // Looked up before the pin; a live record above `in_place` is still the newest one.
            if is_plain && self.put_at(first, key, value) {
                continue;
            }
            group.look_again();
            if !(is_plain && self.put_probing(&pin, key, hash, value)) {
                return Ok(Some(*next - 1));
            }
        }
        Ok(None)
    }

    /// Many read-modify-writes; their cache misses and device reads overlap. In order for equal keys. `update(i, old)` may run
    /// again, as in [`Store::rmw`].
    ///
    /// # Errors
    /// As [`Store::rmw`], that of the first key that failed; the keys before it are done, and some behind it may be.
    pub fn rmw_many<Q: Borrow<K>>(&self, keys: &[Q], update: impl FnMut(usize, Option<V::View<'_>>) -> V::Owned) -> Result<()> {
        brought_here(self.rmw_many_by(Waits::Here, keys, update))
    }

    pub(super) async fn rmw_many_by<Q: Borrow<K>>(
        &self,
        waits: Waits,
        keys: &[Q],
        mut update: impl FnMut(usize, Option<V::View<'_>>) -> V::Owned,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.change_many(
            waits,
            keys,
            |key| key.borrow().bytes(),
            &mut update,
            |first, part, update, cold| self.rmw_group(first, part, update, cold).map(|()| 0),
            |number, hash, known, update| {
                let key = keys[number].borrow().bytes();
                self.rmw_step(key, hash, known, |old| update(number, old))
            },
        )
        .await?;
        self.written_by(waits, ()).await
    }

    fn rmw_group<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        update: &mut impl FnMut(usize, Option<V::View<'_>>) -> V::Owned,
        cold: &mut Cold,
    ) -> Result<()> {
        let mut group = self.fetch_group(keys.iter().map(|key| key.borrow().bytes()));
        self.engine.admit_write()?;
        if Self::WORD {
            self.engine.epochs.count(Counter::Rmw, keys.len() as u64)?;
        }
        let mut pin = if Self::WORD { Some(self.engine.epochs.pin()?.wary()) } else { None };
        for (i, key) in keys.iter().enumerate() {
            let (key, hash) = (key.borrow().bytes(), group.hashes[i]);
            Self::check_key(key)?;
            if cold.puts_off(first + i, hash) {
                if !Self::WORD {
                    self.count(Counter::Rmw)?;
                }
                continue;
            }
            let mut update = |old: Option<V::View<'_>>| update(first + i, old);
            if let Some(held) = &pin {
                let near = group.first(i, &self.engine);
                let is_plain = !self.engine.epochs.is_latching();
                let mut update = |old| Self::updated_word(old, &mut update);
                if is_plain && self.rmw_word_from(held, near, key, hash, &mut update).is_some() {
                    continue;
                }
            } else if self.rmw_bytes_at_once(|| group.first(i, &self.engine), key, &mut update).is_some() {
                continue;
            }
            drop(pin.take());
            group.look_again();
            cold.attempt(self, first + i, hash, |known| self.rmw_step(key, hash, known, &mut update))?;
            pin = if Self::WORD { Some(self.engine.epochs.pin()?.wary()) } else { None };
        }
        Ok(())
    }

    /// One attempt at a read-modify-write, in either layout.
    fn rmw_step(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned,
    ) -> Result<Step<bool>> {
        if Self::WORD {
            let step = self.rmw_word_step(key, hash, known, &mut |old| Self::updated_word(old, &mut update))?;
            return Ok(step.then(|| true));
        }
        self.rmw_bytes_step(key, hash, known, &mut None, &mut update)
    }

    /// Many deletes; their cache misses and device reads overlap. Returns how many keys had a value.
    ///
    /// # Errors
    /// As [`Store::delete`], that of the first key that failed; the keys before it are gone, and some behind it may be.
    pub fn delete_many<Q: Borrow<K>>(&self, keys: &[Q]) -> Result<usize> {
        brought_here(self.delete_many_by(Waits::Here, keys))
    }

    pub(super) async fn delete_many_by<Q: Borrow<K>>(&self, waits: Waits, keys: &[Q]) -> Result<usize> {
        self.delete_all(waits, keys, |key| (key.borrow().bytes(), None)).await
    }

    /// Deletes pairs that were found, some of them only if they still have the value that was seen; how many. In batches, as
    /// [`Store::delete_many`].
    pub(crate) fn delete_found(&self, found: &[Doomed]) -> Result<usize> {
        if Self::WORD && found.iter().any(|found| found.version.is_some()) {
            self.engine.begin_latching()?;
        }
        brought_here(self.delete_all(Waits::Here, found, |found| (&found.key, found.version)))
    }

    /// `what(item)`: a key, and the version it must have where one is told.
    async fn delete_all<'i, T>(&self, waits: Waits, items: &'i [T], what: impl Fn(&'i T) -> (&'i [u8], Option<Version>)) -> Result<usize> {
        if items.is_empty() {
            return Ok(0);
        }
        let count = self
            .change_many(
                waits,
                items,
                |item| what(item).0,
                &mut Vec::new(),
                |first, part, endings, cold| self.delete_group(first, part, &what, endings, cold),
                |number, hash, known, _| {
                    let (key, version) = what(&items[number]);
                    self.delete_version_step(key, hash, known, version)
                },
            )
            .await?;
        self.written_by(waits, count).await
    }

    /// `endings`: those of the part that are not deleted when this returns.
    fn delete_group<'s, 'i, T>(
        &'s self,
        first: usize,
        items: &'i [T],
        what: &impl Fn(&'i T) -> (&'i [u8], Option<Version>),
        endings: &mut Vec<Ending<'s>>,
        cold: &mut Cold,
    ) -> Result<usize> {
        if first.is_multiple_of(PART) {
            endings.clear();
        }
        let mut group = self.fetch_group(items.iter().map(|item| what(item).0));
        if self.engine.log.holes.are_wanted() {
            // Who takes an entry away walks through all of its bucket.
            group.hashes[..items.len()].iter().for_each(|hash| _ = self.engine.index.prefetch_behind(*hash));
        }
        let mut count = 0;
        for (i, (item, hash)) in items.iter().zip(group.hashes).enumerate() {
            let (key, version) = what(item);
            Self::check_key(key)?;
            let mut ending = self.outdate_load(key, true, || hash)?;
            let was_there = if cold.puts_off(first + i, hash) {
                self.count(Counter::Delete)?;
                None
            } else if version.is_none() && self.delete_now(hash, || group.first(i, &self.engine), key) {
                Some(true)
            } else {
                if version.is_some() {
                    self.count(Counter::Delete)?;
                }
                group.look_again();
                cold.attempt(self, first + i, hash, |known| self.delete_attempt(key, hash, known, version, &mut ending))?
            };
            match was_there {
                Some(was_there) => count += usize::from(was_there),
                None => endings.push(ending.map_or_else(|| self.begin_ending(key, hash, true), Ok)?),
            }
        }
        Ok(count)
    }

    /// Changes what `key` says of these items group by group (`group(number of the first, items, with, those that wait)`), and those that
    /// wait for the device by `attempt(number, hash, known, with)`. Returns how many said yes.
    pub(super) async fn change_many<'i, T, W>(
        &self,
        waits: Waits,
        items: &'i [T],
        key: impl Fn(&'i T) -> &'i [u8],
        with: &mut W,
        mut group: impl FnMut(usize, &'i [T], &mut W, &mut Cold) -> Result<usize>,
        mut attempt: impl FnMut(usize, u64, &Known, &mut W) -> Result<Step<bool>>,
    ) -> Result<usize> {
        let mut count = 0;
        for (part, from) in items.chunks(PART).zip((0..).step_by(PART)) {
            if from > 0
                && let Waits::Later = waits
            {
                give_way().await;
            }
            let mut cold = Cold::new(waits);
            let mut groups = part.chunks(GROUP).zip((from..).step_by(GROUP));
            let ended: Result<()> = groups.try_for_each(|(items, first)| {
                count += group(first, items, with, &mut cold)?;
                Ok(())
            });
            // Whatever waits comes before the key that failed.
            let key = |number: usize| key(&items[number]);
            let attempt = |number, hash, known: &Known| attempt(number, hash, known, with);
            count += match waits {
                Waits::Here => cold.finish(self, key, attempt)?,
                Waits::Later => cold.finish_async(self, key, attempt).await?,
            };
            ended?;
        }
        Ok(count)
    }

    /// Hashes up to [`GROUP`] keys and brings their buckets, then their first records.
    #[inline(always)]
    pub(super) fn fetch_group<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Group {
        let bounds = &self.engine.log.bounds;
        let (line, ripened) = (bounds.line.load(SeqCst), self.engine.log.holes.ripened());
        // What is superseded meanwhile may be mutable again as soon as the cut is known, and nothing in it says so. It is of the line whose
        // cut that is. Who looks for it from here on finds it marked, or the number changed; or it is being marked, by somebody for whom
        // the line waits.
        let is_drawn = bounds.in_place() == NOWHERE || bounds.safe_read_only.load(Acquire) < bounds.floor.load(SeqCst);
        let mut hashes = [0; GROUP];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
            self.engine.index.prefetch(*hash);
            count += 1;
        }
        // A processor drops a prefetch for which it has no miss left to give (an AMD EPYC holds 24, and dropped one of seven in a row of
        // 64), and who then needs the line waits for all of it. What is there or under way takes nothing from a second one.
        hashes[..count].iter().for_each(|hash| self.engine.index.prefetch(*hash));
        let firsts = self.fetch_firsts(&hashes[..count]);
        Group { firsts, hashes, looks_again: is_drawn || bounds.line.load(SeqCst) != line, ripened }
    }

    /// Words of a record that tell whether it is the key's, nearly always.
    const FIRST_WORDS: usize = if Self::WORD { 3 } else { 4 };

    /// Brings the first records of up to [`GROUP`] keys, whose buckets should be here by now.
    #[inline(always)]
    pub(super) fn fetch_firsts(&self, hashes: &[u64]) -> [u64; GROUP] {
        let index = &self.engine.index;
        let mut firsts = [0; GROUP];
        let mut further = 0u64;
        for (i, (first, hash)) in firsts.iter_mut().zip(hashes).enumerate() {
            let (at, is_further) = index.first_match_in_front(*hash);
            *first = at;
            self.engine.log.prefetch_words(at, Self::FIRST_WORDS);
            further |= u64::from(is_further) << i;
        }
        // Again, as the buckets.
        firsts[..hashes.len()].iter().for_each(|at| self.engine.log.prefetch_words(*at, Self::FIRST_WORDS));
        // Entries in overflow buckets: those were fetched meanwhile.
        while further != 0 {
            let i = further.trailing_zeros() as usize;
            let seen = index.lookup(hashes[i]);
            self.engine.log.prefetch_words(seen.address(), Self::FIRST_WORDS);
            firsts[i] = if index.leads_surely(&seen) { seen.address() } else { 0 };
            if hashes[i + 1..].contains(&hashes[i]) {
                tell_equal_keys(hashes, &mut firsts, i);
            }
            further &= further - 1;
        }
        firsts
    }

    /// Under a pin; the record's first lines should be here by now.
    #[inline(always)]
    fn prefetch_value(&self, at: u64) {
        let log = &self.engine.log;
        if at < log.bounds.near() {
            return;
        }
        let at = log.pointer(at);
        // SAFETY: at or above `near` under the caller's pin: a record in memory.
        let bytes = unsafe { Record::new(at) }.bytes(self.engine.layout) as usize;
        (0..bytes.min(VALUE_AHEAD_MAX)).step_by(CACHE_LINE).skip(1).for_each(|line| prefetch(at.wrapping_add(line)));
    }

    /// Visits those of up to [`GROUP`] keys whose values memory tells; the others wait.
    #[inline(always)]
    pub(super) fn get_group<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        waiting: &mut Vec<ColdGet>,
    ) -> Result<()> {
        if Self::WORD { self.get_group_word(first, keys, visit, waiting) } else { self.get_group_bytes(first, keys, visit, waiting) }
    }

    #[inline(always)]
    fn get_group_word<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let group = self.fetch_group(keys.iter().map(|key| key.borrow().bytes()));
        let mut words = [0u64; GROUP];
        let (mut live, mut waiting) = (0u64, 0u64);
        let pin = self.engine.epochs.pin()?.wary();
        pin.slot.count(Counter::Get, keys.len() as u64);
        // No transaction begins under a pin that has seen none.
        let looks_anew = self.engine.epochs.is_latching() || !group.stands(&self.engine);
        for (i, key) in keys.iter().enumerate() {
            let key = key.borrow().bytes();
            let at = match looks_anew {
                // Looked up before the pin: it may be superseded by now, and then this get came first.
                false => group.firsts[i],
                true if self.engine.is_held(group.hashes[i]) => 0,
                // Looked up anew, after the look at the latch: what was found before may be what a transaction has superseded.
                true => self.engine.index.first_match(group.hashes[i]),
            };
            match self.near_word(at, key) {
                Some(word) => {
                    words[i] = word;
                    live |= 1 << i;
                }
                _ => match self.get_again(&pin, key, group.hashes[i], first + i) {
                    Ok(Some(word)) => {
                        words[i] = word;
                        live |= 1 << i;
                    }
                    Ok(None) => self.count_miss(&pin, true),
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
    fn get_again(&self, pin: &Pin<'_>, key: &[u8], hash: u64, number: usize) -> std::result::Result<Option<u64>, ColdGet> {
        if self.engine.is_held(hash) {
            return Err(self.held_get(number, hash));
        }
        let (seen, found) = self.locate(key, hash);
        match self.word_if_known(&seen, &found) {
            Some(word) => {
                self.promote_in_memory(pin, key, hash, seen, found);
                Ok(word)
            }
            None => Err(self.cold_get(number, hash, seen, &found)),
        }
    }

    fn get_group_bytes<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let group = self.fetch_group(keys.iter().map(|key| key.borrow().bytes()));
        for (i, key) in keys.iter().enumerate() {
            let bytes = key.borrow().bytes();
            Self::check_key(bytes)?;
            let pin = self.engine.epochs.pin()?;
            pin.slot.count(Counter::Get, 1);
            if self.engine.is_held(group.hashes[i]) {
                cold.push(self.held_get(first + i, group.hashes[i]));
                continue;
            }
            if let Some(at) = group.firsts[..keys.len()].get(i + AHEAD) {
                self.prefetch_value(*at);
            }
            let (seen, found) = self.locate(bytes, group.hashes[i]);
            let as_found = self.as_found(&found);
            match self.record_if_known(&seen, &found) {
                Some(Some(record)) => with_scratch(|buffer| {
                    record.read_value(buffer);
                    if !self.is_as_found(&found, as_found) {
                        return cold.push(self.cold_get(first + i, group.hashes[i], seen, &found));
                    }
                    self.promote_in_memory(&pin, bytes, group.hashes[i], seen, found);
                    drop(pin);
                    visit(first + i, Some(V::view(buffer)));
                }),
                Some(None) => {
                    self.count_miss(&pin, true);
                    drop(pin);
                    visit(first + i, None);
                }
                None => cold.push(self.cold_get(first + i, group.hashes[i], seen, &found)),
            }
        }
        Ok(())
    }

    /// A key whose latch somebody holds: it is looked up when the others are.
    fn held_get(&self, key: usize, hash: u64) -> ColdGet {
        self.cold_get(key, hash, Seen::default(), &Found::Absent)
    }

    fn cold_get(&self, key: usize, hash: u64, seen: Seen, found: &Found) -> ColdGet {
        let at = if let Found::Cold { at, .. } = found { *at } else { 0 };
        ColdGet { key, hash, seen, walk: Walk::new(&self.engine, at).of_get(Some(hash)) }
    }
}

/// What was looked up behind its first bucket may be newer than what an equal key after it found, if the entry came to the front meanwhile:
/// for another change of the same key that is not the newest any more.
#[cold]
pub(super) fn tell_equal_keys(hashes: &[u64], firsts: &mut [u64; GROUP], of: usize) {
    for (at, hash) in hashes.iter().enumerate().skip(of + 1) {
        if *hash == hashes[of] {
            firsts[at] = firsts[of];
        }
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Many appends; their cache misses and device reads overlap. In order for equal keys.
    ///
    /// # Errors
    /// As [`Store::append`], that of the first pair that failed; the pairs before it are in, and some behind it may be.
    ///
    /// # Cost
    /// As [`Store::append`]; the device has up to 128 reads under way at a time, of different keys.
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let visits: Store<str, [u8]> = Options::new().memory("16MiB").in_memory()?;
    /// visits.append_many(&[("ann", "home;"), ("ben", "shop;"), ("ann", "cart;")])?;
    /// assert_eq!(visits.get("ann")?.as_deref(), Some(&b"home;cart;"[..]));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn append_many<Q: Borrow<K>, U: AsRef<[u8]>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        brought_here(self.append_many_by(Waits::Here, pairs))
    }

    pub(super) async fn append_many_by<Q: Borrow<K>, U: AsRef<[u8]>>(&self, waits: Waits, pairs: &[(Q, U)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        self.change_many(
            waits,
            pairs,
            |(key, _)| key.borrow().bytes(),
            &mut (),
            |first, part, (), cold| self.append_group(first, part, cold).map(|()| 0),
            |number, hash, known, ()| {
                let (key, bytes) = &pairs[number];
                self.append_step(key.borrow().bytes(), hash, known, bytes.as_ref(), &mut 0)
            },
        )
        .await?;
        self.written_by(waits, ()).await
    }

    fn append_group<Q: Borrow<K>, U: AsRef<[u8]>>(&self, first: usize, pairs: &[(Q, U)], cold: &mut Cold) -> Result<()> {
        let mut group = self.fetch_group(pairs.iter().map(|(key, _)| key.borrow().bytes()));
        self.engine.admit_write()?;
        for (i, ((key, bytes), hash)) in pairs.iter().zip(group.hashes).enumerate() {
            let (key, bytes) = (key.borrow().bytes(), bytes.as_ref());
            Self::check_key(key)?;
            if cold.puts_off(first + i, hash) {
                self.count(Counter::Append)?;
                continue;
            }
            if self.append_at_once(|| group.first(i, &self.engine), key, bytes).is_none() {
                group.look_again();
                cold.attempt(self, first + i, hash, |known| self.append_step(key, hash, known, bytes, &mut 0))?;
            }
        }
        Ok(())
    }
}

impl<K, V, Q, F> GetMany<'_, K, V, Q, F>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    Q: Borrow<K>,
    F: FnMut(usize, Option<V::View<'_>>),
{
    /// The next group: visits what is in memory.
    #[inline(always)]
    fn look_up(&mut self) -> Result<()> {
        let first = self.next;
        let group = &self.keys[first..(first + GROUP).min(self.keys.len())];
        self.next += group.len();
        self.store.get_group(first, group, &mut self.visit, &mut self.waiting)
    }

    /// Reads what waits, and looks up and reads all other keys meanwhile.
    #[cold]
    #[inline(never)]
    fn read_cold(&mut self) -> Result<()> {
        let engine = &self.store.engine;
        match engine.log.device.as_deref() {
            Some(device) => device.read_stream(self),
            // In memory nothing is cold: these keys' buckets were moving, or held.
            None => self.unsettled.append(&mut self.waiting),
        }
        engine.epochs.slot()?.count(Counter::DeviceRead, self.reads);
        std::mem::replace(&mut self.result, Ok(()))?;
        self.settle()
    }

    /// Looks once more for those of which nobody can say yet that they are not there.
    #[cold]
    fn settle(&mut self) -> Result<()> {
        for get in std::mem::take(&mut self.unsettled) {
            let value = self.store.get_slowly(self.keys[get.key].borrow().bytes(), get.hash)?;
            (self.visit)(get.key, value.as_ref().map(|held| V::view(&held.value)));
        }
        Ok(())
    }

    /// No record of the key is left to look at.
    fn absent(&mut self, get: ColdGet) {
        if !self.store.engine.index.is_settled(&get.seen) {
            self.unsettled.push(get);
            return;
        }
        let _ = self.store.count(Counter::Miss);
        (self.visit)(get.key, None);
    }

    fn advance(&mut self, mut get: ColdGet, mut read: DeviceRead, result: io::Result<()>) -> Result<()> {
        of_stream(&read, result)?;
        let key = self.keys[get.key].borrow().bytes();
        // Asked first: what the cache keeps of this read may make the index grow.
        let is_sure = self.store.engine.index.is_settled(&get.seen);
        match get.walk.advance(&self.store.engine, &mut read, key)? {
            // As in `is_sure`.
            Walked::Value { .. } if !is_sure => self.unsettled.push(get),
            Walked::Value { expires, .. } if self.store.engine.has_passed(expires) => match self.store.leads_still(get.hash, &get.seen) {
                true => self.absent(get),
                false => self.unsettled.push(get),
            },
            Walked::Value { value, .. } => (self.visit)(get.key, Some(V::view(value))),
            Walked::Absent => self.absent(get),
            Walked::On => self.waiting.push(get),
        }
        Ok(())
    }
}

impl<K, V, Q, F> ReadSource for GetMany<'_, K, V, Q, F>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    Q: Borrow<K>,
    F: FnMut(usize, Option<V::View<'_>>),
{
    fn next(&mut self) -> Option<DeviceRead> {
        while self.result.is_ok() {
            match self.waiting.pop() {
                // Its bucket was moving or held when it was looked up, or all has gone that lay there: "absent" would need another look
                // anyway.
                Some(get) if get.walk.is_over() => self.unsettled.push(get),
                Some(get) => {
                    let walk = get.walk;
                    let read = walk.read(self.reading.put(get));
                    self.reads += 1;
                    return Some(read);
                }
                // Or a batch of keys that have ended would gather all of them.
                None if self.unsettled.len() >= UNSETTLED_MAX => self.result = self.settle(),
                None if self.next < self.keys.len() => self.result = self.look_up(),
                None => return None,
            }
        }
        None
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        let get = self.reading.take(read.token());
        // After an error the rest is only waited for.
        if self.result.is_ok() {
            self.result = self.advance(get, read, result);
        }
    }
}
