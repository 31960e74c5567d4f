//! Putting, in either layout, where one attempt does it: nearly always. As few instructions as can be, for as many calls as fit a
//! processor's window have their misses at the same time.
//!
//! | the key's entry leads to                | a put                                                        |
//! |-----------------------------------------|--------------------------------------------------------------|
//! | the key's mutable record, with room     | changes it: a word by a store, bytes under the record's latch |
//! | the key's frozen record                 | makes a record; claims the entry, if that stood still        |
//! | the device                              | makes a record that leads there, under the bucket's latch    |
//! | there is none                           | makes a record, in a hole if one is ripe; claims a free one, |
//! |                                         | if the bucket stood still                                    |
//!
//! For all else there are steps (`word.rs`, `bytes.rs`), which publish here too.

use super::Store;
use super::find::{Found, Own};
use crate::epoch::{Counter, Pin};
use crate::index::{Added, Keys, Looked, Probe, Published, Seen};
use crate::latches::Hold;
use crate::record::{self, ABSENT, ADDRESS_MASK, EXPIRES, NEVER, Record, SEALED};
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Rule, broken};
use crate::types::{Key, Value};

/// Longer records are not written under a bucket's latch.
const WRITTEN_LATCHED_MAX: u64 = 4096;
/// Entries a thread adds before it counts them for all, and pays for the index's growth.
const ENTRIES_UNCOUNTED: u64 = 16;

/// A value as a put brings it: a word, or bytes. Keys have the length that the layout says.
pub(super) trait Fresh: Copy {
    fn record_bytes(self, key: &[u8]) -> u64;
    /// Fills a fresh record.
    fn write(self, record: Record, key: &[u8], previous: u64, flags: u64);
    /// Takes the place of the value of a record that was seen plain and mutable under the caller's pin. False if that cannot be.
    fn replace(self, record: Record, key: &[u8]) -> bool;
}

impl Fresh for u64 {
    #[inline(always)]
    fn record_bytes(self, key: &[u8]) -> u64 {
        record::word_record_bytes(key.len())
    }

    #[inline(always)]
    fn write(self, record: Record, key: &[u8], previous: u64, flags: u64) {
        record.write_word(key, self, previous, flags);
    }

    #[inline(always)]
    fn replace(self, record: Record, key: &[u8]) -> bool {
        record.word_value(key.len()).store(self, Release);
        true
    }
}

impl Fresh for &[u8] {
    #[inline(always)]
    fn record_bytes(self, key: &[u8]) -> u64 {
        record::bytes_record_bytes(key.len(), self.len())
    }

    #[inline(always)]
    fn write(self, record: Record, key: &[u8], previous: u64, flags: u64) {
        record.write_bytes(key, self, self.len(), NEVER, previous, flags);
    }

    #[inline(always)]
    fn replace(self, record: Record, _: &[u8]) -> bool {
        let early = broken(Rule::RoomIsLatched).then(|| record.suits(self.len()));
        let latched = record.latch();
        // Its room, too, is only known under the latch: who held it may have given some up.
        let stands = latched.is_whole_truth() && early.unwrap_or_else(|| record.suits(self.len()));
        if stands {
            latched.set_value(0, self);
        }
        stands
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Counts a put and does it, or nothing: then it takes more.
    #[inline(always)]
    pub(super) fn put_now(&self, key: &[u8], value: impl Fresh) -> bool {
        let Some(pin) = self.engine.epochs.pin_to_write(Counter::Put) else { return false };
        let hash = self.hash(key);
        let at = self.engine.index.first_match(hash);
        self.put_at(at, key, value) || Self::with_copy(key, |key| self.put_elsewhere(pin, key, hash, value))
    }

    /// Where the key's first bucket does not lead to a record of it that may change in place.
    #[inline(never)]
    fn put_elsewhere(&self, pin: Pin<'_>, key: &[u8], hash: u64, value: impl Fresh) -> bool {
        self.put_probing(&pin, key, hash, value)
    }

    /// The same where the hash is known.
    pub(super) fn put_hashed(&self, key: &[u8], hash: u64, value: impl Fresh) -> bool {
        self.engine.epochs.pin_to_write(Counter::Put).is_some_and(|pin| self.put_probing(&pin, key, hash, value))
    }

    /// In place.
    #[inline(always)]
    pub(super) fn put_at(&self, at: u64, key: &[u8], value: impl Fresh) -> bool {
        self.mutable_record_of(at, key).is_some_and(|record| value.replace(record, key))
    }

    /// A record for a key whose hash no entry has; in place, or over a frozen record, or before what is on the device if one has. False if
    /// nothing was done.
    #[inline(always)]
    pub(super) fn put_probing(&self, pin: &Pin<'_>, key: &[u8], hash: u64, value: impl Fresh) -> bool {
        let key = Self::of_known_length(key);
        let probe = self.engine.index.probe(hash);
        // Long ones are written before a bucket is latched.
        let is_long = !Self::WORD && value.record_bytes(key) > WRITTEN_LATCHED_MAX;
        let claim = match probe.search() {
            Looked::Entry(entry, at) => {
                let supersede =
                    || self.frozen_record_of(at, key).is_some_and(|old| self.supersede_frozen(pin, &probe, (entry, at, old), key, value));
                if self.put_at(at, key, value) || supersede() {
                    return true;
                }
                if is_long || !self.is_cold(at) {
                    return false;
                }
                None
            }
            _ if is_long => return false,
            Looked::Free(entry) => probe.claim(entry),
            Looked::Unclear => None,
        };
        let Some(claim) = claim else { return self.insert_slowly(pin, key, hash, value) };
        let Some((at, _)) = self.make_record(pin, key, value) else { return false };
        claim.fill(at);
        self.count_entry(pin);
        true
    }

    /// The record at `at` was just deleted in place: its entry goes, if it leads there and nowhere else, and the place is for another.
    pub(super) fn leave_place(&self, pin: &Pin<'_>, hash: u64, at: u64, record: Record) {
        let (log, index, bytes) = (&self.engine.log, &self.engine.index, record.bytes(self.engine.layout));
        let twins = index.twins();
        if !log.wants_hole(bytes, twins) {
            return;
        }
        let is_plain_deletion = record.header().load(Acquire) & (ADDRESS_MASK | SEALED | EXPIRES) == 0;
        if !is_plain_deletion || !index.remove_leading_to(hash, at) {
            return;
        }
        match pin.slot.entries.load(Relaxed) {
            0 => index.uncount(1),
            entries => pin.slot.entries.store(entries - 1, Relaxed),
        }
        // A split raises them under the bucket's latch: it was not one that left a second entry.
        if index.twins() == twins {
            log.rest_hole(pin.slot, at, bytes);
        }
    }

    /// Makes a record that takes the place of a frozen one: the copy that each update is after a line was drawn. `over`: the entry, and
    /// what it led to when the probe was made. False if somebody was quicker or there is no room: then nothing was done.
    #[inline(always)]
    pub(super) fn supersede_frozen(
        &self,
        pin: &Pin<'_>,
        probe: &Probe<'_>,
        over: (&AtomicU64, u64, Record),
        key: &[u8],
        value: impl Fresh,
    ) -> bool {
        let (log, (entry, at, old)) = (&self.engine.log, over);
        let Some(to) = log.allocate(pin.slot, value.record_bytes(key)) else { return false };
        debug_assert!(to > at, "what is mutable lies above what is frozen");
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(to)) };
        value.write(record, key, self.previous_over(key, at, old), log.line_flag());
        // Before it is, as in `publish`.
        log.windows.mark_superseded(at);
        let Some(claim) = probe.claim(entry) else {
            self.engine.abandon(pin, record);
            return false;
        };
        claim.refill(to);
        pin.slot.count(Counter::DeadByte, if Self::WORD { Self::RECORD_BYTES } else { old.bytes(self.engine.layout) });
        true
    }

    /// A record for a key that no entry stands for, or one that leads to the device: a put does not ask what is there.
    #[inline(never)]
    fn insert_slowly(&self, pin: &Pin<'_>, key: &[u8], hash: u64, value: impl Fresh) -> bool {
        let log = &self.engine.log;
        // SAFETY: called with the record just made, under the pin it was made under.
        let record = |at| unsafe { Record::new(log.pointer(at)) };
        let mut made = None;
        let make = || {
            made = self.make_record(pin, key, value);
            made.map(|(at, _)| at)
        };
        let added =
            self.engine.index.add(hash, |head| self.is_cold(head), make, |at, previous| record(at).lead_to(previous, log.line_flag()));
        match (&added, made) {
            (Some(Added::Entry), _) => self.count_entry(pin),
            (Some(Added::Over), _) => {
                pin.slot.count(Counter::DeadByte, value.record_bytes(key));
                Self::count_guess(pin, value.record_bytes(key));
            }
            // It would have had to share an entry that leads above it: the hole is one for the next.
            (None, Some((at, true))) => {
                self.engine.abandon(pin, record(at));
                log.put_hole_back(pin.slot, at, value.record_bytes(key));
            }
            (None, Some((at, false))) => self.engine.give_up(pin, record(at)),
            _ => {}
        }
        added.is_some()
    }

    /// A record that leads nowhere, yet; and whether it is in a hole.
    #[inline(always)]
    fn make_record(&self, pin: &Pin<'_>, key: &[u8], value: impl Fresh) -> Option<(u64, bool)> {
        let (log, key) = (&self.engine.log, Self::of_known_length(key));
        let bytes = value.record_bytes(key);
        let hole = log.take_hole(pin.slot, bytes);
        let at = hole.or_else(|| log.allocate(pin.slot, bytes))?;
        // SAFETY: taken under the pin: ours alone, in memory.
        value.write(unsafe { Record::new(log.pointer(at)) }, key, 0, log.line_flag());
        Some((at, hole.is_some()))
    }

    /// Makes the index lead to a new record; false, and it is given up, when somebody was quicker.
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    pub(super) fn publish(&self, pin: &Pin<'_>, hold: &Hold<'_>, hash: u64, seen: &Seen, found: &Found, at: u64, record: Record) -> bool {
        match self.try_to_publish(pin, hold, hash, seen, found, at, record) {
            Published::Done => return true,
            Published::Changed => self.engine.abandon(pin, record),
            Published::TooLow => self.engine.give_up(pin, record),
        }
        false
    }

    /// The same, but the record is the caller's where somebody was quicker.
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    pub(super) fn try_to_publish(
        &self,
        pin: &Pin<'_>,
        _: &Hold<'_>,
        hash: u64,
        seen: &Seen,
        found: &Found,
        at: u64,
        record: Record,
    ) -> Published {
        let mut added = false;
        // Before it is: under this pin, which a snapshot waits for. What is cold needs no mark.
        if let Found::Memory { at, .. } = found {
            self.engine.log.windows.mark_superseded(*at);
        }
        let keys = match found {
            _ if self.engine.log.is_gone(record.previous()) => Keys::OwnAlone,
            Found::Memory { .. } | Found::Cold { own: Own::Bytes(_), .. } => Keys::OwnIsThere,
            Found::Cold { own: Own::Unknown, .. } => Keys::Guessed,
            _ => Keys::Unknown,
        };
        // Before others see it: who deletes it in place then counts it himself.
        let dying = self.dying_bytes(found, record);
        let log = &self.engine.log;
        let published = self.engine.index.publish(hash, seen, at, keys, &mut added, |address| record.lead_to(address, log.line_flag()));
        if let Published::Done = published {
            if added {
                self.count_entry(pin);
            }
            pin.slot.count(Counter::DeadByte, dying);
            if let Keys::Guessed = keys {
                Self::count_guess(pin, dying);
            }
        }
        published
    }

    /// What dies when this record takes the place of what was found. A deletion is dead as soon as it is made, and so is what it stands
    /// for: what comes after it kills nothing.
    fn dying_bytes(&self, found: &Found, record: Record) -> u64 {
        let is_deletion = |record: Record| record.header().load(Relaxed) & ABSENT != 0;
        let bytes = |record: Record| record.bytes(self.engine.layout);
        let own = if is_deletion(record) { bytes(record) } else { 0 };
        own + match found {
            Found::Memory { record: old, .. } if is_deletion(*old) => 0,
            Found::Memory { record: old, .. } => bytes(*old),
            Found::Cold { own: Own::Bytes(bytes), .. } => *bytes,
            // Nearly always an older version: `Keys::Guessed`.
            Found::Cold { own: Own::Unknown, .. } => {
                let key_bytes = if Self::WORD { 0 } else { record.bytes_key().len() };
                self.engine.guessed_bytes(bytes(record), is_deletion(record), key_bytes)
            }
            Found::Cold { own: Own::None, .. } | Found::Absent => 0,
        }
    }

    fn count_guess(pin: &Pin<'_>, bytes: u64) {
        pin.slot.count(Counter::Guess, 1);
        pin.slot.count(Counter::GuessedByte, bytes);
    }

    #[inline(always)]
    fn count_entry(&self, pin: &Pin<'_>) {
        let entries = pin.slot.entries.load(Relaxed) + 1;
        pin.slot.entries.store(entries, Relaxed);
        if entries >= ENTRIES_UNCOUNTED {
            self.engine.entries_added(pin);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::lock;
    use crate::{MemoryDevice, Options};
    use std::sync::Arc;

    fn goes_before_what_is_cold<V: Value + ?Sized>(old: &V, new: impl Fresh, is_new: impl Fn(V::Owned) -> bool) {
        let options = Options::new().memory("16MiB").background(false);
        let store: Store<u64, V> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let (engine, key) = (store.engine_for_test(), 7u64.to_ne_bytes());
        store.put(&7, old).unwrap();
        let guard = lock(&engine.boundaries);
        engine.freeze(engine.log.end_block());
        engine.flush().unwrap();
        engine.evict(engine.log.tail());
        drop(guard);

        let hash = store.hash(&key);
        let before = engine.index.lookup(hash);
        assert!(before.is_sole() && store.is_cold(before.address()));
        assert!(store.put_hashed(&key, hash, new));
        let after = engine.index.lookup(hash);
        assert!(after.is_guessed() && !after.is_sole());
        // SAFETY: the address of a record in memory, which stays there.
        let record = unsafe { Record::new(engine.log.pointer(after.address())) };
        assert_eq!(record.previous(), before.address());
        let counted = [Counter::Put, Counter::Guess, Counter::DeadByte].map(|what| engine.epochs.counted(what));
        assert_eq!(counted, [2, 1, new.record_bytes(&key)]);
        assert!(is_new(store.get(&7).unwrap().unwrap()));
        assert_eq!(store.stats().operations.device_reads, 0);
    }

    #[test]
    fn a_put_goes_before_what_is_on_the_device_in_one_attempt() {
        goes_before_what_is_cold::<u64>(&1, 2, |value| value == 2);
        goes_before_what_is_cold::<[u8]>(b"old", &b"newer"[..], |value| value == b"newer");
    }

    #[test]
    fn a_long_value_is_not_written_under_a_buckets_latch() {
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        let key = 7u64.to_ne_bytes();
        assert!(!store.put_hashed(&key, store.hash(&key), &[1; WRITTEN_LATCHED_MAX as usize][..]));
        assert_eq!(store.get(&7).unwrap(), None);
        store.put(&7, &[1; WRITTEN_LATCHED_MAX as usize]).unwrap();
        assert_eq!(store.get(&7).unwrap().unwrap(), [1; WRITTEN_LATCHED_MAX as usize]);
    }

    /// What was read from a device without being verified, and copied into memory, may have any length.
    #[test]
    fn a_value_for_which_a_record_has_no_room_is_not_written_over_the_next_one() {
        let store: Store<u64, [u8; 16]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        [7, 8].into_iter().for_each(|n| store.put(&n, &[n as u8; 16]).unwrap());
        let (engine, key) = (store.engine_for_test(), 7u64.to_ne_bytes());
        let at = engine.index.lookup(store.hash(&key)).address();
        // SAFETY: the address of a record in memory, which stays there.
        unsafe { Record::new(engine.log.pointer(at)) }.write_bytes(&key, &[], 0, NEVER, 0, engine.log.line_flag());
        store.rmw(&7, |old| old.map_or([1; 16], |_| [9; 16])).unwrap();
        assert_eq!((store.get(&7).unwrap(), store.get(&8).unwrap()), (Some([9; 16]), Some([8; 16])));
    }
}
