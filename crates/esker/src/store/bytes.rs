//! Changing records of the bytes layout: under the record's latch, or by a new record.

use super::Store;
use super::find::{Found, Region};
use super::step::{Known, Step};
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::Seen;
use crate::record::{self, Record, SEALED, TOMBSTONE};
use crate::types::{Key, Value};
use std::borrow::{Borrow, Cow};
use std::sync::atomic::Ordering::*;

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

    pub(super) fn put_bytes_hashed(&self, key: &[u8], hash: u64, value: &[u8]) -> Result<()> {
        self.check_value(value.len())?;
        self.engine.epochs.slot()?.count(Counter::Put, 1);
        self.run(key, |known| self.change(key, hash, known, true, &mut |_| Change::set(value))).map(|_| ())
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
        self.engine.epochs.slot()?.count(Counter::Rmw, 1);
        let mut last = None;
        let mut decide = |old: Option<&[u8]>| {
            let new: &V = (*last.insert(update(old.map(V::view)))).borrow();
            let bytes = new.bytes();
            Change::Set(Cow::Owned(bytes.to_vec()), bytes.len())
        };
        self.run(key, |known| self.change(key, hash, known, false, &mut decide))?;
        Ok(last.unwrap_or_else(|| unreachable!("a successful update ran the closure")))
    }

    pub(super) fn delete_bytes(&self, key: &[u8]) -> Result<bool> {
        Self::check_key(key)?;
        self.delete_bytes_hashed(key, self.hash(key))
    }

    pub(super) fn delete_bytes_hashed(&self, key: &[u8], hash: u64) -> Result<bool> {
        self.engine.epochs.slot()?.count(Counter::Delete, 1);
        self.run(key, |known| self.change(key, hash, known, false, &mut |_| Change::Remove))
    }

    pub(super) fn append_bytes(&self, key: &[u8], bytes: &[u8]) -> Result<usize> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        if let Some(pin) = self.engine.epochs.pin_fast() {
            pin.slot.count(Counter::Append, 1);
            if let Some(length) = self.append_in_place(key, hash, bytes) {
                return Ok(length);
            }
        }
        let most = self.engine.value_bytes_max() as usize;
        let mut length = 0;
        let mut decide = |old: Option<&[u8]>| {
            let old = old.unwrap_or_default();
            length = old.len() + bytes.len();
            // A first value gets no room to spare: most never grow.
            let room = if old.is_empty() { length } else { (length + length / 2).min(most.max(length)) };
            Change::Set(Cow::Owned([old, bytes].concat()), room)
        };
        self.run(key, |known| self.change(key, hash, known, false, &mut decide))?;
        Ok(length)
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
        let change = decide(old);
        if let Change::Remove = change
            && !was_there
        {
            // Removing what is not there changes nothing, once it is sure that it is not there.
            let sure = !matches!(found, Found::Absent) || self.engine.index.is_settled(&seen);
            return Ok(if sure { Step::Done(false) } else { Step::Again });
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
        record.write_bytes(sight.key, value, capacity, Self::previous_for(&sight.seen, &sight.found), flags | log.line_flag());
        let published = self.publish(pin, sight.hash, &sight.seen, at, record);
        Ok(if published { Step::Done(()) } else { Step::Again })
    }
}
