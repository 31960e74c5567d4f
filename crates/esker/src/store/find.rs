//! Finding a key's newest record, in memory and on the device.

use super::Store;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::index::Seen;
use crate::log::ColdBytes;
use crate::record::{self, ADDRESS_MASK, BYTES_HEADER_BYTES, Record, TOMBSTONE};
use crate::types::{Key, Value};
use std::sync::atomic::Ordering::*;

/// Where a key's newest record is.
pub(super) enum Found {
    Memory { at: u64, record: Record },
    Cold { at: u64 },
    Absent,
}

/// The regions an update tells apart.
pub(super) enum Region {
    Mutable,
    Fuzzy,
    Frozen,
}

/// What the bytes at an address turned out to be.
pub(super) enum Examined {
    Value(Vec<u8>),
    Tombstone,
    /// Another key's record; the chain goes on there.
    Next(u64),
    /// The record has this many bytes, more than were read.
    Short(u64),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The record at `at`, if it is in memory and this key's. Under a pin; `at` came from the index or a chain.
    #[inline(always)]
    pub(super) fn record_of(&self, at: u64, key: &[u8]) -> Option<Record> {
        let log = &self.engine.log;
        if at < log.bounds.head.load(Acquire) {
            return None;
        }
        // SAFETY: `at >= head` under the caller's pin; entries and chains hold published addresses only.
        let record = unsafe { Record::new(log.pointer(at)) };
        let found = if Self::WORD { record.word_key(Self::KEY_WIDTH) } else { record.bytes_key() };
        (found == key).then_some(record)
    }

    /// The first record of the key's entry, if it is the key's, in memory and live: most keys.
    #[inline(always)]
    pub(super) fn find_fast(&self, key: &[u8], hash: u64) -> Option<(u64, Record)> {
        let at = self.engine.index.first_match(hash);
        self.record_of(at, key).filter(Record::is_live).map(|record| (at, record))
    }

    #[inline(always)]
    pub(super) fn locate(&self, key: &[u8], hash: u64) -> (Seen, Found) {
        let seen = self.engine.index.lookup(hash);
        (seen, self.walk(seen.address(), key))
    }

    /// Follows a chain through memory. Under a pin.
    #[inline(always)]
    fn walk(&self, from: u64, key: &[u8]) -> Found {
        let log = &self.engine.log;
        let head = log.bounds.head.load(Acquire);
        let mut at = from;
        while at != 0 {
            if at < head {
                return Found::Cold { at };
            }
            if let Some(record) = self.record_of(at, key) {
                return Found::Memory { at, record };
            }
            // SAFETY: `at >= head` under the caller's pin; chains hold published addresses only.
            at = unsafe { Record::new(log.pointer(at)) }.previous();
        }
        Found::Absent
    }

    #[inline(always)]
    pub(super) fn region(&self, at: u64) -> Region {
        let bounds = &self.engine.log.bounds;
        if at >= bounds.read_only.load(Acquire) {
            Region::Mutable
        } else if at >= bounds.safe_read_only.load(Acquire) {
            Region::Fuzzy
        } else {
            Region::Frozen
        }
    }

    /// Where a new record's chain goes on: past a superseded one at the chain's head, else at the head.
    #[inline(always)]
    pub(super) fn previous_for(seen: &Seen, found: &Found) -> u64 {
        match found {
            Found::Memory { at, record } if *at == seen.address() => record.previous(),
            _ => seen.address(),
        }
    }

    // ---- on the device -------------------------------------------------------------------------------------------

    /// The value at the end of a chain on the device, `None` if the key has none there. Not under a pin.
    pub(super) fn read_chain(&self, from: u64, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (mut at, mut bytes) = (from, self.first_read_bytes());
        while at != 0 {
            match self.examine(at, &self.read_one(at, bytes)?, key)? {
                Examined::Value(value) => return Ok(Some(value)),
                Examined::Tombstone => return Ok(None),
                Examined::Next(previous) => (at, bytes) = (previous, self.first_read_bytes()),
                Examined::Short(needed) if needed > bytes => bytes = needed,
                Examined::Short(_) => return Err(longer_than_it_says(at)),
            }
        }
        Ok(None)
    }

    pub(super) fn first_read_bytes(&self) -> u64 {
        if Self::WORD { record::word_record_bytes(Self::KEY_WIDTH) } else { BYTES_HEADER_BYTES }
    }

    fn read_one(&self, at: u64, bytes: u64) -> Result<ColdBytes> {
        if let Ok(slot) = self.engine.epochs.slot() {
            slot.count(Counter::DeviceRead, 1);
        }
        self.engine.log.read_cold(&[(at, bytes)]).pop().unwrap_or_else(|| unreachable!("one read, one answer"))
    }

    pub(super) fn examine(&self, at: u64, cold: &ColdBytes, key: &[u8]) -> Result<Examined> {
        let damaged = || Error::corruption(format!("no record where the index says address={at}"));
        let (record, bytes) = if Self::WORD {
            let bytes = self.first_read_bytes();
            (Some(record::parse_word(cold.get(at, bytes).ok_or_else(damaged)?, Self::KEY_WIDTH)), bytes)
        } else {
            let header = cold.get(at, BYTES_HEADER_BYTES).ok_or_else(damaged)?;
            let bytes = record::cold_bytes_record_bytes(header);
            if bytes > record::RECORD_BYTES_MAX {
                return Err(damaged());
            }
            (cold.get(at, bytes).and_then(record::parse_bytes), bytes)
        };
        let Some(record) = record else { return Ok(Examined::Short(bytes)) };
        if record.header & record::VALID == 0 {
            return Err(damaged());
        }
        if record.key != key {
            return Ok(Examined::Next(record.header & ADDRESS_MASK));
        }
        if record.header & TOMBSTONE != 0 {
            return Ok(Examined::Tombstone);
        }
        let value = if Self::WORD { &record.value[..Self::VALUE_WIDTH] } else { record.value };
        Ok(Examined::Value(value.to_vec()))
    }
}

pub(super) fn longer_than_it_says(at: u64) -> Error {
    Error::corruption(format!("a record is longer than it says address={at}"))
}
