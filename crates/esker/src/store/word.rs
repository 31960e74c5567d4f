//! Changing records of the word layout: the value is one atomic.

use super::Store;
use super::expire::Claim;
use super::find::{Found, Region};
use super::step::{Known, Step};
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::{Looked, Seen};
use crate::latches::Hold;
use crate::record::{self, ABSENT, EXPIRES, NEVER, Record, TOMBSTONE};
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::types::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    pub(super) const RECORD_BYTES: u64 = record::word_record_bytes(Self::KEY_WIDTH);

    #[inline(always)]
    pub(super) fn put_word(&self, key: &[u8], value: u64) -> Result<()> {
        if self.put_now(key, value) {
            return Ok(());
        }
        Self::with_copy(key, |key| self.put_word_surely(key, value))
    }

    #[inline(never)]
    fn put_word_surely(&self, key: &[u8], value: u64) -> Result<()> {
        let key = Self::of_known_length(key);
        self.put_word_slowly(key, self.hash(key), value)?;
        self.written(())
    }

    pub(super) fn put_word_slowly(&self, key: &[u8], hash: u64, value: u64) -> Result<()> {
        self.run(key, |_| self.put_word_step(key, hash, value, NEVER))
    }

    /// One attempt at a put that ends then.
    pub(super) fn put_word_step(&self, key: &[u8], hash: u64, value: u64, expires: u64) -> Result<Step<()>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(held) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        // Value and end are two words: they change together by a new record only.
        if let Some(record) = self.mutable_word(&held, &found).filter(|record| expires == NEVER && record.is_plain()) {
            record.word_value(Self::KEY_WIDTH).store(value, Release);
            return Ok(Step::Done(()));
        }
        let step = self.add_word(&pin, &held, key, hash, &seen, &found, value, expires, 0);
        if let (Step::Done(()), Found::Memory { at, record }) = (&step, &found)
            && matches!(self.region(*at), Region::Mutable)
        {
            // A batch that looked it up before must not take it for the newest.
            record.leave();
        }
        Ok(step)
    }

    /// Writes and publishes a word record.
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    pub(super) fn add_word(
        &self,
        pin: &Pin<'_>,
        held: &Hold<'_>,
        key: &[u8],
        hash: u64,
        seen: &Seen,
        found: &Found,
        value: u64,
        expires: u64,
        flags: u64,
    ) -> Step<()> {
        let log = &self.engine.log;
        let flags = flags | record::expiry_flags(expires);
        let bytes = Self::RECORD_BYTES + record::expiry_bytes(flags);
        let Some(at) = self.allocate_or_fill(pin, hash, seen, found, bytes, flags) else { return Step::Room(bytes) };
        // SAFETY: taken under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        if flags & record::EXPIRES != 0 {
            record.word_expiry(Self::KEY_WIDTH).store(expires, Relaxed);
            self.engine.expiry.watch();
        }
        let previous = self.previous_for(key, seen, found);
        record.write_word(&key[..Self::KEY_WIDTH], value, previous, flags | log.line_flag());
        if self.publish(pin, held, hash, seen, found, at, record) { Step::Done(()) } else { Step::Again }
    }

    #[inline(always)]
    pub(super) fn rmw_word(&self, key: &[u8], update: &mut impl FnMut(Option<u64>) -> u64) -> Result<u64> {
        let hash = self.hash(key);
        match self.rmw_word_at_once(key, hash, update) {
            Some(new) => Ok(new),
            None => self.written(self.rmw_word_slowly(key, hash, update)?),
        }
    }

    #[inline(always)]
    pub(super) fn rmw_word_at_once(&self, key: &[u8], hash: u64, update: &mut impl FnMut(Option<u64>) -> u64) -> Option<u64> {
        let pin = self.engine.epochs.pin_to_write(Counter::Rmw)?;
        self.rmw_word_from(&pin, self.engine.index.first_match(hash), key, hash, update)
    }

    /// In place if that is where the key's mutable record is, or over a frozen one. `None` if it takes more than that.
    #[inline(always)]
    pub(super) fn rmw_word_from(
        &self,
        pin: &Pin<'_>,
        at: u64,
        key: &[u8],
        hash: u64,
        update: &mut impl FnMut(Option<u64>) -> u64,
    ) -> Option<u64> {
        let Some(record) = self.mutable_record_of(at, key) else {
            return Self::with_copy(key, |key| self.rmw_word_over(pin, key, hash, update));
        };
        let value = record.word_value(Self::KEY_WIDTH);
        self.engine.epochs.within(pin, || update_word(value, update, || self.is_in_place_still(at)))
    }

    /// Where the key's record is frozen.
    #[inline(never)]
    fn rmw_word_over(&self, pin: &Pin<'_>, key: &[u8], hash: u64, update: &mut impl FnMut(Option<u64>) -> u64) -> Option<u64> {
        let key = Self::of_known_length(key);
        let probe = self.engine.index.probe(hash);
        let Looked::Entry(entry, at) = probe.search() else { return None };
        let record = self.frozen_record_of(at, key).filter(|_| !self.is_dropped_soon(at))?;
        let old = record.word_value(Self::KEY_WIDTH).load(Acquire);
        let new = self.engine.epochs.within(pin, || update(Some(old)));
        // If the claim is ours nothing changed since the probe, and what was read is what is superseded.
        self.supersede_frozen(pin, &probe, (entry, at, record), key, new).then_some(new)
    }

    #[inline(never)]
    fn rmw_word_slowly(&self, key: &[u8], hash: u64, update: &mut impl FnMut(Option<u64>) -> u64) -> Result<u64> {
        self.run(key, |known| self.rmw_word_step(key, hash, known, update))
    }

    /// One attempt at a read-modify-write.
    pub(super) fn rmw_word_step(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        update: &mut impl FnMut(Option<u64>) -> u64,
    ) -> Result<Step<u64>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(held) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        if let (Some(record), Found::Memory { at, .. }) = (self.mutable_word(&held, &found), &found) {
            let value = record.word_value(Self::KEY_WIDTH);
            let new = self.engine.epochs.within(&pin, || update_word(value, update, || self.is_mutable_still(*at)));
            return Ok(new.map_or(Step::Again, Step::Done));
        }
        let old = match self.old_word(&found, known) {
            Step::Done(_) if !self.is_sure(&seen, &found) => return Ok(Step::Again),
            Step::Done(old) => old,
            missing => return Ok(missing.then(|| 0)),
        };
        let new = self.engine.epochs.within(&pin, || update(old.map(|(value, _)| value)));
        // Behind the closure: one that panics changes nothing.
        let claim = if old.is_none() { self.claim_ended(&found) } else { Some(Claim::default()) };
        let Some(claim) = claim else { return Ok(Step::Again) };
        let found = found.with(&self.engine, known);
        let expires = old.map_or(NEVER, |(_, expires)| expires);
        let step = self.add_word(&pin, &held, key, hash, &seen, &found, new, expires, 0);
        if !matches!(step, Step::Done(())) {
            self.give_back(claim);
        }
        Ok(step.then(|| new))
    }

    /// The record, if its value may change in place. Under a pin.
    pub(super) fn mutable_word(&self, _: &Hold<'_>, found: &Found) -> Option<Record> {
        match found {
            Found::Memory { at, record } if matches!(self.region(*at), Region::Mutable) => {
                (self.is_live(*record) && !record.is_sealed()).then_some(*record)
            }
            _ => None,
        }
    }

    /// The value that a record outside the mutable region (or a dead one in it) holds for an update, and when it ends.
    pub(super) fn old_word(&self, found: &Found, known: &Known) -> Step<Option<(u64, u64)>> {
        match found {
            Found::Absent => Step::Done(None),
            Found::Cold { at, .. } => match self.still(known, *at) {
                Step::Done(held) => Step::Done(held.map(|held| (super::to_word(&held.value), held.expires))),
                missing => missing.then(|| None),
            },
            Found::Memory { at, record } => match self.region(*at) {
                Region::Frozen => Step::Done(self.held_word(*record)),
                Region::Mutable if !self.is_live(*record) => Step::Done(None),
                // Fuzzy: a pinned thread may still write it in place. Or it leaves.
                _ => Step::Again,
            },
        }
    }

    /// One attempt at a delete. Done: whether a value was there.
    pub(super) fn delete_word_step(&self, key: &[u8], hash: u64, known: &Known) -> Result<Step<bool>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(held) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        if let Found::Memory { at, record } = &found
            && matches!(self.region(*at), Region::Mutable)
        {
            let was_live = self.is_live(*record);
            let is_ours = if was_live {
                !record.is_sealed() && self.end_now(*record)
            } else {
                self.claim_ended(&found).is_some() && self.leads_still(hash, &seen)
            };
            if !is_ours {
                return Ok(Step::Again);
            }
            let before = record.header().fetch_or(TOMBSTONE, AcqRel);
            let was_there = before & ABSENT == 0;
            if was_there {
                pin.slot.count(Counter::DeadByte, record.bytes(self.engine.layout));
                self.leave_place(&pin, hash, *at, *record);
            }
            // Who ended it deleted it, though another one who found it ended may have come first.
            return Ok(Step::Done(was_live && (was_there || before & EXPIRES != 0)));
        }
        match self.old_word(&found, known) {
            Step::Done(_) if !self.is_sure(&seen, &found) => Ok(Step::Again),
            Step::Done(None) if self.is_deleted(&found, known) => Ok(Step::Done(false)),
            Step::Done(old) => {
                let found = found.with(&self.engine, known);
                Ok(self.add_word(&pin, &held, key, hash, &seen, &found, 0, NEVER, TOMBSTONE).then(|| old.is_some()))
            }
            missing => Ok(missing.then(|| false)),
        }
    }
}

/// Changes an atomic value; `update` runs again when another thread was quicker. `None` if it may not change any more.
#[inline(always)]
fn update_word(value: &AtomicU64, update: &mut impl FnMut(Option<u64>) -> u64, is_mutable_still: impl Fn() -> bool) -> Option<u64> {
    let mut old = value.load(Acquire);
    loop {
        let new = update(Some(old));
        if !is_mutable_still() {
            return None;
        }
        match value.compare_exchange(old, new, AcqRel, Acquire) {
            Ok(_) => return Some(new),
            Err(now) => old = now,
        }
    }
}
