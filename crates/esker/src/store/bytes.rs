//! Changing records of the bytes layout: under the record's latch, or by a new record.

use super::Store;
use super::find::{Found, Region};
use super::step::{Known, Step};
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::Seen;
use crate::record::{self, Record, SEALED, TOMBSTONE};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::{Borrow, Cow};

/// What an update makes of the value it saw.
enum Change<'v> {
    /// This value, in a record with room for so many bytes.
    Set(Cow<'v, [u8]>, usize),
    Remove,
}

impl Change<'_> {
    fn set(value: &[u8]) -> Change<'_> {
        Change::Set(Cow::Borrowed(value), value.len())
    }
}

/// The key, and what was seen of it in this attempt.
struct Sight<'a> {
    key: &'a [u8],
    hash: u64,
    seen: Seen,
    found: Found,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    pub(super) fn put_bytes(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::check_key(key)?;
        self.put_bytes_hashed(key, self.hash(key), value)
    }

    /// Whether key and value can be put at all.
    pub(super) fn check_put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::check_key(key)?;
        self.check_value(value.len())
    }

    pub(super) fn put_bytes_hashed(&self, key: &[u8], hash: u64, value: &[u8]) -> Result<()> {
        self.check_value(value.len())?;
        self.count(Counter::Put)?;
        self.run(key, |known| self.put_bytes_step(key, hash, known, value)).map(|_| ())
    }

    /// One attempt at a put.
    pub(super) fn put_bytes_step(&self, key: &[u8], hash: u64, known: &Known, value: &[u8]) -> Result<Step<bool>> {
        self.change(key, hash, known, true, &mut |_| Change::set(value))
    }

    pub(super) fn rmw_bytes(&self, key: &[u8], update: impl FnMut(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        Self::check_key(key)?;
        self.rmw_bytes_hashed(key, self.hash(key), update)
    }

    pub(super) fn rmw_bytes_hashed(
        &self,
        key: &[u8],
        hash: u64,
        mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned,
    ) -> Result<V::Owned> {
        self.count(Counter::Rmw)?;
        let mut last = None;
        self.run(key, |known| self.rmw_bytes_step(key, hash, known, &mut last, &mut update))?;
        Ok(last.unwrap_or_else(|| unreachable!("a successful update ran the closure")))
    }

    /// One attempt at a read-modify-write; `last` becomes what `update` made last.
    pub(super) fn rmw_bytes_step(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        last: &mut Option<V::Owned>,
        update: &mut impl FnMut(Option<V::View<'_>>) -> V::Owned,
    ) -> Result<Step<bool>> {
        let mut decide = |old: Option<&[u8]>| {
            let new: &V = (*last.insert(update(old.map(V::view)))).borrow();
            let bytes = new.bytes();
            Change::Set(Cow::Owned(bytes.to_vec()), bytes.len())
        };
        self.change(key, hash, known, false, &mut decide)
    }

    pub(super) fn delete_bytes(&self, key: &[u8]) -> Result<bool> {
        Self::check_key(key)?;
        self.delete_bytes_hashed(key, self.hash(key))
    }

    pub(super) fn delete_bytes_hashed(&self, key: &[u8], hash: u64) -> Result<bool> {
        self.count(Counter::Delete)?;
        self.run(key, |known| self.delete_bytes_step(key, hash, known))
    }

    /// One attempt at a delete. Done: whether a value was there.
    pub(super) fn delete_bytes_step(&self, key: &[u8], hash: u64, known: &Known) -> Result<Step<bool>> {
        self.change(key, hash, known, false, &mut |_| Change::Remove)
    }

    pub(super) fn append_bytes(&self, key: &[u8], bytes: &[u8]) -> Result<usize> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        if let Some(length) = self.append_at_once(key, hash, bytes)? {
            return Ok(length);
        }
        let mut length = 0;
        self.run(key, |known| self.append_step(key, hash, known, bytes, &mut length))?;
        Ok(length)
    }

    /// Where the key's record is mutable and has room.
    #[inline(always)]
    pub(super) fn append_at_once(&self, key: &[u8], hash: u64, bytes: &[u8]) -> Result<Option<usize>> {
        self.engine.check_writable()?;
        let pin = self.engine.epochs.pin()?;
        pin.slot.count(Counter::Append, 1);
        Ok(self.append_in_place(key, hash, bytes))
    }

    /// One attempt at an append; `length` becomes the new one.
    pub(super) fn append_step(&self, key: &[u8], hash: u64, known: &Known, bytes: &[u8], length: &mut usize) -> Result<Step<bool>> {
        let most = self.engine.value_bytes_max() as usize;
        let mut decide = |old: Option<&[u8]>| {
            let old = old.unwrap_or_default();
            *length = old.len() + bytes.len();
            // A first value gets no room to spare: most never grow.
            let room = if old.is_empty() { *length } else { (*length + *length / 2).min(most.max(*length)) };
            Change::Set(Cow::Owned([old, bytes].concat()), room)
        };
        self.change(key, hash, known, false, &mut decide)
    }

    /// Under a pin.
    #[inline(always)]
    fn append_in_place(&self, key: &[u8], hash: u64, bytes: &[u8]) -> Option<usize> {
        let (at, record) = self.find_fast(key, hash)?;
        if at < self.engine.log.bounds.read_only.load(Acquire) {
            return None;
        }
        let latched = record.latch();
        let length = latched.value().len();
        if record.is_sealed() || !record.is_live() || length + bytes.len() > record.capacity() {
            return None;
        }
        latched.set_value(length, bytes);
        Some(length + bytes.len())
    }

    /// One attempt at the one way a bytes record changes. `decide` sees the old value (never for a blind update, which may
    /// not read the device) and says what becomes of it; it may run again. Done: whether a value was there.
    fn change<'v>(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        blind: bool,
        decide: &mut impl FnMut(Option<&[u8]>) -> Change<'v>,
    ) -> Result<Step<bool>> {
        self.engine.check_writable()?;
        let pin = self.engine.epochs.pin()?;
        let (seen, found) = self.locate(key, hash);
        let mut decide = |old: Option<&[u8]>| self.engine.epochs.within(&pin, || decide(old));
        let copied;
        let old = match &found {
            Found::Memory { at, record } => match self.region(*at) {
                Region::Mutable => {
                    let record = *record;
                    return self.change_mutable(&pin, &Sight { key, hash, seen, found }, record, &mut decide);
                }
                Region::Fuzzy if !blind => return Ok(Step::Again),
                _ if blind || !record.is_live() => None,
                _ => {
                    copied = self.value_of(*record);
                    Some(&*copied)
                }
            },
            Found::Cold { .. } if blind => None,
            Found::Cold { at } => match known.at(*at) {
                Some(value) => value,
                None => return Ok(Step::Read(*at)),
            },
            Found::Absent => None,
        };
        let was_there = old.is_some();
        if !was_there && !blind && !found.is_in_memory() && !self.engine.index.is_settled(&seen) {
            // A bucket was moving: nobody must take for absent what is not.
            return Ok(Step::Again);
        }
        let change = decide(old);
        if let Change::Remove = change
            && !was_there
        {
            // Removing what is not there changes nothing.
            return Ok(Step::Done(false));
        }
        self.supersede(&pin, &Sight { key, hash, seen, found }, &change).map(|step| step.then(|| was_there))
    }

    fn change_mutable<'v>(
        &self,
        pin: &Pin<'_>,
        sight: &Sight<'_>,
        record: Record,
        decide: &mut impl FnMut(Option<&[u8]>) -> Change<'v>,
    ) -> Result<Step<bool>> {
        let latched = record.latch();
        if record.is_sealed() {
            return Ok(Step::Again);
        }
        let was_there = record.is_live();
        let change = decide(was_there.then(|| latched.value()));
        match &change {
            Change::Remove => {
                record.header().fetch_or(TOMBSTONE, Release);
                pin.slot.count(Counter::DeadByte, record::bytes_record_bytes(sight.key.len(), record.capacity()));
                Ok(Step::Done(was_there))
            }
            Change::Set(value, _) if was_there && value.len() <= record.capacity() => {
                latched.set_value(0, value);
                Ok(Step::Done(true))
            }
            Change::Set(..) => {
                let step = self.supersede(pin, sight, &change)?;
                if let Step::Done(()) = step {
                    record.header().fetch_or(SEALED, Release);
                }
                Ok(step.then(|| was_there))
            }
        }
    }

    /// Appends the changed record to the log and publishes it.
    fn supersede(&self, pin: &Pin<'_>, sight: &Sight<'_>, change: &Change<'_>) -> Result<Step<()>> {
        let (value, capacity, flags) = match change {
            Change::Set(value, capacity) => (&**value, *capacity, 0),
            Change::Remove => (&[][..], 0, TOMBSTONE),
        };
        self.check_value(value.len())?;
        let log = &self.engine.log;
        let bytes = record::bytes_record_bytes(sight.key.len(), capacity);
        let Some(at) = log.allocate(pin.slot, bytes) else { return Ok(Step::Room(bytes)) };
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        let previous = self.previous_for(sight.key, &sight.seen, &sight.found);
        record.write_bytes(sight.key, value, capacity, previous, flags | log.line_flag());
        let published = self.publish(pin, sight.hash, &sight.seen, &sight.found, at, record, bytes);
        Ok(if published { Step::Done(()) } else { Step::Again })
    }
}
