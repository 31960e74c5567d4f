//! Chains on the device: one record after another, until the key's own or the end.
//!
//! A [`Walk`] says what to read next and is told what came; who reads (this thread, a stream of many walks, the store's
//! reader thread) is the caller's matter. It knows the layout at run time only: beside a device read that costs nothing,
//! and the reader thread need not know the store's types.

use crate::device::DeviceRead;
use crate::engine::{Engine, Layout};
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::log::{ColdBytes, Log};
use crate::record::{self, ADDRESS_MASK, BYTES_HEADER_BYTES, ColdRecord, TOMBSTONE};

/// Where a walk is: the record at `at`, of which the first `bytes` are to be read. At 0 it is over.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    at: u64,
    bytes: u64,
}

/// What one read told a walk.
pub(super) enum Walked<'r> {
    /// The key's value.
    Value(&'r [u8]),
    /// The key has no value on the device.
    Absent,
    /// There is more to read.
    On,
}

impl Walk {
    /// Down the chain that begins at `at`, not under a pin.
    pub(super) fn new(engine: &Engine, at: u64) -> Self {
        Self { at, bytes: first_read_bytes(engine.layout) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.at == 0
    }

    /// What to read next. Not when the walk is over.
    pub(super) fn read(&self, token: u64) -> DeviceRead {
        Log::cold_read(self.at, self.bytes, token)
    }

    /// Goes on with what was read.
    pub(super) fn advance<'r>(&mut self, engine: &Engine, read: &'r mut DeviceRead, key: &[u8]) -> Result<Walked<'r>> {
        let at = self.at;
        let record = match parse(engine.layout, at, &engine.log.open_blocks(read)?)? {
            Parsed::Record(record) => record,
            Parsed::Short(bytes) if bytes > self.bytes => {
                self.bytes = bytes;
                return Ok(Walked::On);
            }
            Parsed::Short(_) => return Err(Error::corruption(format!("a record is longer than it says address={at}"))),
        };
        if record.key == key {
            self.at = 0;
            return Ok(if record.header & TOMBSTONE == 0 { Walked::Value(record.value) } else { Walked::Absent });
        }
        *self = Self::new(engine, record.header & ADDRESS_MASK);
        Ok(if self.is_over() { Walked::Absent } else { Walked::On })
    }
}

/// What the bytes at an address turned out to be.
enum Parsed<'r> {
    Record(ColdRecord<'r>),
    /// The record has this many bytes, more than were read.
    Short(u64),
}

fn first_read_bytes(layout: Layout) -> u64 {
    match layout {
        Layout::Word { key_bytes, .. } => record::word_record_bytes(key_bytes),
        Layout::Bytes => BYTES_HEADER_BYTES,
    }
}

fn parse<'r>(layout: Layout, at: u64, cold: &ColdBytes<'r>) -> Result<Parsed<'r>> {
    let damaged = || Error::corruption(format!("no record where the index says address={at}"));
    let first = cold.get(at, first_read_bytes(layout));
    let record = match layout {
        Layout::Word { key_bytes, value_bytes } => {
            let record = record::parse_word(first.ok_or_else(damaged)?, key_bytes);
            ColdRecord { value: &record.value[..value_bytes], ..record }
        }
        Layout::Bytes => {
            let bytes = record::cold_bytes_record_bytes(first.ok_or_else(damaged)?);
            if bytes > record::RECORD_BYTES_MAX {
                return Err(damaged());
            }
            match cold.get(at, bytes).and_then(record::parse_bytes) {
                Some(record) => record,
                None => return Ok(Parsed::Short(bytes)),
            }
        }
    };
    if record.header & record::VALID == 0 { Err(damaged()) } else { Ok(Parsed::Record(record)) }
}

/// The value at the end of the chain that begins at `at`, `None` if the key has none there. Not under a pin.
pub(super) fn read(engine: &Engine, at: u64, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let device = engine.log.cold_device()?;
    let mut walk = Walk::new(engine, at);
    loop {
        engine.epochs.slot()?.count(Counter::DeviceRead, 1);
        let mut read = walk.read(0);
        device.read(read.offset(), read.bytes_mut())?;
        match walk.advance(engine, &mut read, key)? {
            Walked::Value(value) => return Ok(Some(value.to_vec())),
            Walked::Absent => return Ok(None),
            Walked::On => {}
        }
    }
}
