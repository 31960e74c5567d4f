//! Reading one key.

use super::Store;
use super::find::Found;
use super::step::{Known, Step};
use crate::descent::Held;
use crate::epoch::Counter;
use crate::error::Result;
use crate::index::Seen;
use crate::record::{ABSENT, Record};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Buffers above this go back to the allocator, in bytes.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// A buffer that outlives the call, taken out so that closures may use the store again.
pub(super) fn with_scratch<R>(run: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // An error: the thread is ending, and reads in a destructor.
    let mut buffer = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    let result = run(&mut buffer);
    if buffer.capacity() <= SCRATCH_BYTES_MAX {
        let _ = SCRATCH.try_with(|cell| cell.replace(buffer));
    }
    result
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// What `read` makes of the value, outside of the store. Of the common case itself, not of what all cases come to: their results would
    /// be told apart once more.
    #[inline(always)]
    pub(super) fn get_word<R>(&self, key: &[u8], read: impl FnOnce(u64) -> R) -> Result<Option<R>> {
        match self.get_word_at_once(key, self.hash(key)) {
            Some(word) => Ok(Some(read(word))),
            None => Ok(Self::with_copy(key, |key| self.get_word_slowly(key))?.map(read)),
        }
    }

    /// Where the key's record is live and the first of its entry, in memory.
    #[inline(always)]
    pub(super) fn get_word_at_once(&self, key: &[u8], hash: u64) -> Option<u64> {
        let _pin = self.engine.epochs.pin_to_read()?;
        self.near_word(self.engine.index.first_match(hash), key)
    }

    #[inline(never)]
    fn get_word_slowly(&self, key: &[u8]) -> Result<Option<u64>> {
        let key = Self::of_known_length(key);
        let read = |record: Record| Some(record.word_value(Self::KEY_WIDTH).load(Acquire));
        self.get_surely(key, self.hash(key), read, |held| super::to_word(&held.value))
    }

    /// A get that was counted, by `read` of a record in memory, if that can, else by `own` of what was copied from there, or read from the
    /// device.
    #[inline(always)]
    fn get_surely<R>(
        &self,
        key: &[u8],
        hash: u64,
        read: impl FnOnce(Record) -> Option<R>,
        own: impl FnOnce(Held) -> R,
    ) -> Result<Option<R>> {
        let pin = self.engine.epochs.pin()?;
        if !self.engine.is_held(hash) {
            let (seen, found) = self.locate(key, hash);
            let as_found = self.as_found(&found);
            if let Some(record) = self.record_if_known(&seen, &found) {
                let value = record.and_then(read).filter(|_| self.is_as_found(&found, as_found));
                if record.is_none() || value.is_some() {
                    self.count_miss(&pin, record.is_none());
                    self.promote_in_memory(&pin, key, hash, seen, found);
                    return Ok(value);
                }
            }
        }
        drop(pin);
        Ok(self.get_slowly(key, hash)?.map(own))
    }

    /// To be asked before what was found is judged by its end, for a value in memory whose end may change with it.
    #[inline(always)]
    pub(super) fn as_found(&self, found: &Found) -> Option<u64> {
        match found {
            Found::Memory { record, .. } if !Self::WORD => record.as_found(),
            _ => None,
        }
    }

    /// True if the value that was copied is the one whose end was judged.
    #[inline(always)]
    pub(super) fn is_as_found(&self, found: &Found, as_found: Option<u64>) -> bool {
        match found {
            Found::Memory { record, .. } if as_found.is_some() => record.is_as_found(as_found),
            _ => true,
        }
    }

    /// The record of the key's value, or that it has none, if memory alone can tell at one look: of what has ended `get_step` makes sure.
    /// Under a pin.
    #[inline(always)]
    pub(super) fn record_if_known(&self, seen: &Seen, found: &Found) -> Option<Option<Record>> {
        match found {
            Found::Memory { record, .. } if self.engine.index.leads_surely(seen) => match self.is_live(*record) {
                true => Some(Some(*record)),
                false => (record.header().load(Acquire) & ABSENT != 0).then_some(None),
            },
            Found::Absent if self.engine.index.is_settled(seen) => Some(None),
            _ => None,
        }
    }

    /// The same with the value of the record.
    pub(super) fn word_if_known(&self, seen: &Seen, found: &Found) -> Option<Option<u64>> {
        let record = self.record_if_known(seen, found)?;
        Some(record.map(|record| record.word_value(Self::KEY_WIDTH).load(Acquire)))
    }

    #[inline]
    pub(super) fn get_bytes<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        with_scratch(|buffer| {
            let is_there = self.get_bytes_at_once(key, hash, buffer) || self.get_bytes_slowly(key, hash, buffer)?;
            Ok(is_there.then(|| read(buffer)))
        })
    }

    /// Where the key's record is live, the first of its entry, and in memory.
    #[inline(always)]
    fn get_bytes_at_once(&self, key: &[u8], hash: u64, into: &mut Vec<u8>) -> bool {
        let Some(_pin) = self.engine.epochs.pin_to_read() else { return false };
        self.find_fast(key, hash).is_some_and(|record| {
            record.read_value(into);
            true
        })
    }

    #[inline(never)]
    fn get_bytes_slowly(&self, key: &[u8], hash: u64, into: &mut Vec<u8>) -> Result<bool> {
        let mut held = None;
        let read = |record: Record| {
            record.read_value(into);
            Some(())
        };
        let is_there = self.get_surely(key, hash, read, |read| held = Some(read.value))?.is_some();
        if let Some(value) = held {
            *into = value;
        }
        Ok(is_there)
    }

    /// The same for values of one short length.
    #[inline(always)]
    pub(super) fn get_short(&self, key: &[u8]) -> Result<Option<V::Owned>> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        match V::filled(|value| self.get_short_at_once(key, hash, value)) {
            Some(value) => Ok(Some(value)),
            None => Self::with_copy(key, |key| self.get_short_slowly(key, hash)),
        }
    }

    #[inline(never)]
    fn get_short_slowly(&self, key: &[u8], hash: u64) -> Result<Option<V::Owned>> {
        let read = |record: Record| V::filled(|value| record.read_short(Self::KEY_WIDTH, value));
        self.get_surely(Self::of_known_length(key), hash, read, |held| V::own(&held.value))
    }

    /// Where the key's record is live, the first of its entry, in memory, and nobody changes it.
    #[inline(always)]
    fn get_short_at_once(&self, key: &[u8], hash: u64, into: &mut [u8]) -> bool {
        let Some(_pin) = self.engine.epochs.pin_to_read() else { return false };
        self.find_fast(key, hash).is_some_and(|record| record.read_short(Self::KEY_WIDTH, into))
    }

    /// A get of any key, wherever its record is.
    #[inline(never)]
    pub(super) fn get_slowly(&self, key: &[u8], hash: u64) -> Result<Option<Held>> {
        let held = self.run_from(Known::of_get(hash), key, |known| self.get_step(key, hash, known))?;
        if held.is_none() {
            self.count(Counter::Miss)?;
        }
        Ok(held)
    }

    /// One attempt at a get.
    pub(super) fn get_step(&self, key: &[u8], hash: u64, known: &mut Known) -> Result<Step<Option<Held>>> {
        let pin = self.engine.epochs.pin()?;
        if self.engine.is_held(hash) {
            return Ok(Step::Again);
        }
        let (seen, found) = self.locate(key, hash);
        Ok(match found {
            // A bucket was moving: look again.
            _ if !self.is_sure(&seen, &found) => Step::Again,
            Found::Memory { at, record } => {
                let as_found = self.as_found(&found);
                let (expires, bytes) = (self.engine.expiry_of(record), record.bytes(self.engine.layout));
                let is_live = self.is_live(record);
                if !is_live && !self.leads_still(hash, &seen) {
                    return Ok(Step::Again);
                }
                let held = is_live.then(|| Held { at, value: self.value_of(record), expires, bytes });
                if !self.is_as_found(&found, as_found) {
                    return Ok(Step::Again);
                }
                self.promote_in_memory(&pin, key, hash, seen, found);
                Step::Done(held)
            }
            Found::Cold { at, .. } => match known.take(at) {
                Some(Some(held)) if self.engine.has_passed(held.expires) => match self.leads_still(hash, &seen) {
                    true => Step::Done(None),
                    false => Step::Again,
                },
                Some(held) => Step::Done(held),
                None => Step::Read(at),
            },
            Found::Absent => Step::Done(None),
        })
    }

    /// True if the key's entry leads where it did. Who finds that a value has ended asks so after he has asked the clock: else it may have
    /// got another end, or another value, in time.
    pub(super) fn leads_still(&self, hash: u64, seen: &Seen) -> bool {
        self.engine.index.lookup(hash).address() == seen.address()
    }

    /// The same for who changes nothing because nothing is there.
    pub(super) fn is_absent_still(&self, hash: u64, seen: &Seen, found: &Found) -> bool {
        matches!(found, Found::Absent) || self.leads_still(hash, seen)
    }

    /// Under a pin.
    pub(super) fn value_of(&self, record: Record) -> Vec<u8> {
        let mut value = Vec::new();
        self.copy_value(record, &mut value);
        value
    }

    /// Under a pin, into an empty buffer.
    pub(super) fn copy_value(&self, record: Record, into: &mut Vec<u8>) {
        if Self::WORD {
            let word = record.word_value(Self::KEY_WIDTH).load(Acquire);
            into.extend_from_slice(&word.to_ne_bytes()[..Self::VALUE_WIDTH]);
        } else {
            record.read_value(into);
        }
    }
}
