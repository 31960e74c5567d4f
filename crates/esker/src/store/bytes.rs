//! Changing records of the bytes layout: under the record's latch, or by a new record.

use super::Store;
use super::expire::NewEnd;
use super::find::{Found, Region};
use super::step::{Known, Step};
use crate::descent::Held;
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::Seen;
use crate::latches::Hold;
use crate::record::{self, ABSENT, EXPIRES, Latched, NEVER, Record, SEALED, TOMBSTONE};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::{Borrow, Cow};

/// What an update makes of the value it saw.
pub(super) enum Change<'v> {
    /// This value, in a record with room for so many bytes, which ends then.
    Set(Cow<'v, [u8]>, usize, u64),
    /// These bytes behind the value, in place if there is room; else as `append_step` says.
    Append(&'v [u8]),
    /// The value as it is, which ends then: in place if the record has a word for that.
    End(u64),
    Remove,
    /// None at all.
    Keep,
}

/// The value that an update sees, and when it ends.
pub(super) type Old<'o> = Option<(&'o [u8], u64)>;

/// When the value ends that an update makes of this one.
fn kept_end(old: Old<'_>) -> u64 {
    old.map_or(NEVER, |(_, expires)| expires)
}

/// The key, and what was seen of it in this attempt.
struct Sight<'a> {
    key: &'a [u8],
    hash: u64,
    seen: Seen,
    found: Found,
    /// As [`Known::is_full`].
    is_full: bool,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    #[inline(always)]
    pub(super) fn put_bytes(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_put(key, value)?;
        if self.put_now(key, Self::value_of_known_length(value)) {
            return Ok(());
        }
        Self::with_copy(key, |key| self.put_bytes_surely(key, value))
    }

    #[inline(never)]
    fn put_bytes_surely(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_bytes_slowly(key, self.hash(key), value)?;
        self.written(())
    }

    /// Whether key and value can be put at all.
    #[inline(always)]
    pub(super) fn check_put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::check_key(key)?;
        self.check_value(value.len())
    }

    pub(super) fn put_bytes_slowly(&self, key: &[u8], hash: u64, value: &[u8]) -> Result<()> {
        self.run(key, |known| self.put_bytes_step(key, hash, known, value, NEVER)).map(|_| ())
    }

    /// One attempt at a put that ends then.
    pub(super) fn put_bytes_step(&self, key: &[u8], hash: u64, known: &Known, value: &[u8], expires: u64) -> Result<Step<bool>> {
        self.change(key, hash, known, true, &mut |_| Change::Set(Cow::Borrowed(value), value.len(), expires))
    }

    /// One attempt at another end. Done: whether there was a value that it changed.
    pub(super) fn end_bytes_step(&self, key: &[u8], hash: u64, known: &Known, end: NewEnd) -> Result<Step<bool>> {
        let mut changes = true;
        let mut decide = |old: Old<'_>| match old {
            Some((_, expires)) if !end.changes(expires) => {
                changes = false;
                Change::Keep
            }
            Some(_) => Change::End(end.expires()),
            // What has ended is not deleted: a clock may be set back.
            None => Change::Keep,
        };
        let step = self.change(key, hash, known, false, &mut decide)?;
        Ok(if let Step::Done(was_there) = step { Step::Done(was_there && changes) } else { step })
    }

    pub(super) fn rmw_bytes(&self, key: &[u8], mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        if let Some(new) = self.rmw_bytes_at_once(|| self.engine.index.first_match(hash), key, &mut update) {
            return Ok(new);
        }
        let mut last = None;
        self.run(key, |known| self.rmw_bytes_step(key, hash, known, &mut last, &mut update))?;
        Ok(last.unwrap_or_else(|| unreachable!("a successful update ran the closure")))
    }

    /// Counts it, and does it where the first record of the key's entry is the key's, and mutable; where values have one length, for the
    /// new one must fit: the closure should not run twice because it did not. `first` looks for that record, under the pin.
    #[inline(always)]
    pub(super) fn rmw_bytes_at_once(
        &self,
        first: impl FnOnce() -> u64,
        key: &[u8],
        update: &mut impl FnMut(Option<V::View<'_>>) -> V::Owned,
    ) -> Option<V::Owned> {
        let pin = self.engine.epochs.pin_to_write(Counter::Rmw)?;
        let (width, first) = (V::WIDTH?, first());
        let record = self.mutable_record_of(first, key)?;
        let latched = record.latch();
        // What was read from a device without being verified may have any length.
        if !latched.is_whole_truth() || width > record.capacity() {
            return None;
        }
        let new = self.engine.epochs.within(&pin, || update(Some(V::view(latched.value()))));
        if !self.is_in_place_still(first) {
            return None;
        }
        latched.set_value(0, Self::value_of_known_length(new.borrow().bytes()));
        Some(new)
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
        let mut decide = |old: Old<'_>| {
            let new: &V = (*last.insert(update(old.map(|(value, _)| V::view(value))))).borrow();
            let bytes = new.bytes();
            Change::Set(Cow::Owned(bytes.to_vec()), bytes.len(), kept_end(old))
        };
        self.change(key, hash, known, false, &mut decide)
    }

    /// One attempt at a delete. Done: whether a value was there.
    pub(super) fn delete_bytes_step(&self, key: &[u8], hash: u64, known: &Known) -> Result<Step<bool>> {
        self.change(key, hash, known, false, &mut |_| Change::Remove)
    }

    pub(super) fn append_bytes(&self, key: &[u8], bytes: &[u8]) -> Result<usize> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        if let Some(length) = self.append_at_once(|| self.engine.index.first_match(hash), key, bytes) {
            return Ok(length);
        }
        let mut length = 0;
        self.run(key, |known| self.append_step(key, hash, known, bytes, &mut length))?;
        Ok(length)
    }

    /// Room for a value that grew from `old` to this length, and may grow on.
    pub(super) fn room_to_grow(old: &[u8], length: usize, most: usize) -> usize {
        // A first value gets no room to spare: most never grow.
        if old.is_empty() { length } else { (length + length / 2).min(most.max(length)) }
    }

    /// Counts it, and does it where the first record of the key's entry is the key's, mutable, and has room. The new length. `first` as
    /// above.
    #[inline(always)]
    pub(super) fn append_at_once(&self, first: impl FnOnce() -> u64, key: &[u8], bytes: &[u8]) -> Option<usize> {
        let _pin = self.engine.epochs.pin_to_write(Counter::Append)?;
        let record = self.mutable_record_of(first(), key)?;
        let latched = record.latch();
        let length = latched.value().len();
        if !latched.is_whole_truth() || length + bytes.len() > record.capacity() {
            return None;
        }
        latched.set_value(length, bytes);
        Some(length + bytes.len())
    }

    /// One attempt at an append; `length` becomes the new one.
    pub(super) fn append_step(&self, key: &[u8], hash: u64, known: &Known, bytes: &[u8], length: &mut usize) -> Result<Step<bool>> {
        // Before it is copied.
        self.check_value(bytes.len())?;
        let mut decide = |old: Old<'_>| {
            *length = old.map_or(0, |(old, _)| old.len()) + bytes.len();
            Change::Append(bytes)
        };
        self.change(key, hash, known, false, &mut decide)
    }

    /// A change as a record of its own has it.
    fn as_a_whole<'v>(&self, change: Change<'v>, old: Old<'_>) -> Change<'v> {
        let (value, most) = (old.unwrap_or_default().0, self.engine.value_bytes_max() as usize);
        match change {
            Change::Append(bytes) => {
                let room = Self::room_to_grow(value, value.len() + bytes.len(), most);
                Change::Set(Cow::Owned([value, bytes].concat()), room, kept_end(old))
            }
            Change::End(expires) => Change::Set(Cow::Owned(value.to_vec()), value.len(), expires),
            change => change,
        }
    }

    /// One attempt at the one way a bytes record changes. `decide` sees the old value (never for a blind update, which may
    /// not read the device) and says what becomes of it; it may run again. Done: whether a value was there.
    pub(super) fn change<'v>(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        blind: bool,
        decide: &mut impl FnMut(Old<'_>) -> Change<'v>,
    ) -> Result<Step<bool>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(held) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        let mut decide = |old: Old<'_>| self.engine.epochs.within(&pin, || decide(old));
        let copied;
        let old = match &found {
            Found::Memory { at, record } => match self.region(*at) {
                Region::Mutable => {
                    let record = *record;
                    return self.change_mutable(
                        &pin,
                        &held,
                        &Sight { key, hash, seen, found, is_full: known.is_full },
                        record,
                        &mut decide,
                    );
                }
                Region::Fuzzy if !blind => return Ok(Step::Again),
                _ if blind || !self.is_live(*record) => None,
                _ => {
                    copied = self.value_of(*record);
                    Some((&*copied, self.engine.expiry_of(*record)))
                }
            },
            Found::Cold { .. } if blind => None,
            Found::Cold { at, .. } => match self.still(known, *at) {
                Step::Done(held) => held.map(|held| (&*held.value, held.expires)),
                missing => return Ok(missing.then(|| false)),
            },
            Found::Absent => None,
        };
        if !blind && !self.is_sure(&seen, &found) {
            return Ok(Step::Again);
        }
        let was_there = old.is_some();
        let change = self.as_a_whole(decide(old), old);
        if matches!(change, Change::Keep) || matches!(change, Change::Remove) && !was_there && self.is_deleted(&found, known) {
            return Ok(if was_there || self.is_absent_still(hash, &seen, &found) { Step::Done(was_there) } else { Step::Again });
        }
        let found = found.with(&self.engine, known);
        let superseded = if let Found::Memory { at, record } = found { Some((at, record)) } else { None };
        let step = self.supersede(&pin, &held, &Sight { key, hash, seen, found, is_full: known.is_full }, &change)?;
        if let (Step::Done(()), Some((at, record))) = (&step, superseded)
            && matches!(self.region(at), Region::Mutable)
        {
            // A line's cut was looked for, and is known. A batch that looked it up before must not take it for the newest.
            record.header().fetch_or(SEALED, Release);
        }
        Ok(step.then(|| was_there))
    }

    fn change_mutable<'v>(
        &self,
        pin: &Pin<'_>,
        held: &Hold<'_>,
        sight: &Sight<'_>,
        record: Record,
        decide: &mut impl FnMut(Old<'_>) -> Change<'v>,
    ) -> Result<Step<bool>> {
        let latched = record.latch();
        if record.is_sealed() {
            return Ok(Step::Again);
        }
        let was_there = self.is_live(record);
        let old = was_there.then(|| (latched.value(), self.engine.expiry_of(record)));
        let change = decide(old);
        if let Found::Memory { at, .. } = sight.found
            && !self.is_mutable_still(at)
        {
            return Ok(Step::Again);
        }
        if let (Change::Append(bytes), Some((value, _))) = (&change, old)
            && value.len() + bytes.len() <= record.capacity()
        {
            latched.set_value(value.len(), bytes);
            return Ok(Step::Done(true));
        }
        let can_end = record.header().load(Relaxed) & EXPIRES != 0;
        let end_in_place = |expires| {
            self.engine.expiry.watch_for(expires);
            record.bytes_expiry().store(expires, Release);
        };
        if let (Change::End(expires), true) = (&change, was_there && can_end) {
            end_in_place(*expires);
            return Ok(Step::Done(true));
        }
        let change = self.as_a_whole(change, old);
        match &change {
            Change::Keep if !was_there && !self.is_absent_still(sight.hash, &sight.seen, &sight.found) => Ok(Step::Again),
            Change::Keep => {
                // A transaction that has read it must not take it for changed.
                latched.leave_unchanged();
                Ok(Step::Done(was_there))
            }
            Change::Append(_) | Change::End(_) => unreachable!("made whole"),
            Change::Remove => {
                let was_dead = record.header().fetch_or(TOMBSTONE, AcqRel) & ABSENT != 0;
                if let (false, Found::Memory { at, .. }) = (was_dead, &sight.found) {
                    pin.slot.count(Counter::DeadByte, record.bytes(self.engine.layout));
                    self.leave_place(pin, sight.hash, *at, record);
                }
                Ok(Step::Done(was_there))
            }
            Change::Set(value, _, expires) if was_there && value.len() <= record.capacity() && (can_end || *expires == NEVER) => {
                self.replace_in_place(pin, &latched, value);
                if can_end {
                    end_in_place(*expires);
                }
                Ok(Step::Done(true))
            }
            Change::Set(..) => {
                let step = self.supersede(pin, held, sight, &change)?;
                if let Step::Done(()) = step {
                    record.header().fetch_or(SEALED, Release);
                }
                Ok(step.then(|| was_there))
            }
        }
    }

    /// A value that fits takes the place of a record's own, and what room it does not need is dead.
    pub(super) fn replace_in_place(&self, pin: &Pin<'_>, latched: &Latched, value: &[u8]) {
        let left = latched.replace_value(value);
        if left > 0 {
            pin.slot.count(Counter::DeadByte, left);
            // It is more than half of what the record had.
            self.engine.log.note_gone(2 * left);
        }
    }

    /// Appends what a key holds once more.
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    pub(super) fn add_bytes(
        &self,
        pin: &Pin<'_>,
        hold: &Hold<'_>,
        key: &[u8],
        hash: u64,
        seen: Seen,
        found: Found,
        held: &Held,
    ) -> Step<()> {
        let change = Change::Set(Cow::Borrowed(&held.value), held.value.len(), held.expires);
        self.supersede(pin, hold, &Sight { key, hash, seen, found, is_full: false }, &change).unwrap_or(Step::Again)
    }

    /// Appends the changed record to the log and publishes it.
    fn supersede(&self, pin: &Pin<'_>, held: &Hold<'_>, sight: &Sight<'_>, change: &Change<'_>) -> Result<Step<()>> {
        let (value, capacity, expires, flags) = match change {
            Change::Set(value, capacity, expires) => (&**value, *capacity, *expires, record::expiry_flags(*expires)),
            Change::Remove => (&[][..], 0, NEVER, TOMBSTONE),
            Change::Keep => return Ok(Step::Done(())),
            Change::Append(_) | Change::End(_) => unreachable!("made whole"),
        };
        // It is asked for anew in each attempt, and what a batch borrows it from is the caller's code.
        Self::check_key(sight.key)?;
        self.check_value(value.len())?;
        let log = &self.engine.log;
        let bytes = |capacity| record::bytes_record_bytes(sight.key.len(), capacity) + record::expiry_bytes(flags);
        let place = |bytes| self.allocate_or_fill(pin, sight.hash, &sight.seen, &sight.found, bytes, flags);
        // Room to grow is worth no refusal.
        let least = if sight.is_full || self.engine.never_has(bytes(capacity)) { value.len() } else { capacity };
        let taken = place(bytes(capacity)).map(|at| (at, capacity));
        let taken = taken.or_else(|| if least < capacity { place(bytes(least)).map(|at| (at, least)) } else { None });
        let Some((at, capacity)) = taken else { return Ok(Step::Room(log.room_for(bytes(least)))) };
        // SAFETY: taken under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        if expires != NEVER {
            self.engine.expiry.watch();
        }
        let previous = self.previous_for(sight.key, &sight.seen, &sight.found);
        record.write_bytes(sight.key, value, capacity, expires, previous, flags | log.line_flag());
        let published = self.publish(pin, held, sight.hash, &sight.seen, &sight.found, at, record);
        Ok(if published { Step::Done(()) } else { Step::Again })
    }
}
