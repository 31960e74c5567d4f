//! Chains on the device: one record after another, until the key's own or the end.
//!
//! A [`Walk`] says what to read next and is told what came; who reads (this thread, a stream of many walks, the store's
//! reader thread) is the caller's matter. It knows the layout at run time only: beside a device read that costs nothing,
//! and the reader thread need not know the store's types.

use super::step::Held;
use crate::ahead::of_reading;
use crate::device::{DeviceRead, SECTOR_BYTES};
use crate::engine::{Engine, Layout};
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::log::{ColdBytes, Log};
use crate::promotion::ColdFind;
use crate::record::{self, ABSENT, ADDRESS_MASK, ColdRecord};
use crate::snapshot::View;
use crate::sync::atomic::Ordering::*;

/// Where a walk is: the record at `at`, of which the first `bytes` are to be read. At 0 it is over.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    at: u64,
    bytes: u64,
    /// Of a get: the key's hash and where the walk began, for what it finds may come back into memory (`promotion.rs`).
    get: Option<(u64, u64)>,
}

/// What one read told a walk.
pub(super) enum Walked<'r> {
    /// The key's value, where its record is, when it ends, and all bytes of it.
    Value { at: u64, value: &'r [u8], expires: u64, bytes: u64 },
    /// The key has no value on the device.
    Absent,
    /// There is more to read.
    On,
}

impl Walked<'_> {
    /// What the key holds on the device, once that is known.
    pub(super) fn held(self) -> Option<Option<Held>> {
        match self {
            Self::Value { at, value, expires, bytes } => Some(Some(Held { at, value: value.to_vec(), expires, bytes })),
            Self::Absent => Some(None),
            Self::On => None,
        }
    }
}

impl Walk {
    /// Down the chain that begins at `at`, not under a pin.
    pub(super) fn new(engine: &Engine, at: u64) -> Self {
        // What lives below has a copy above, and the rest is dead, though an entry of other keys may lead to it. A walk that ends there
        // because compaction was quicker is not believed: the entry has another head by then.
        let at = if at < engine.log.bounds.copied.load(Acquire) { 0 } else { at };
        Self { at, bytes: record::first_bytes(engine.layout), get: None }
    }

    /// For a get of a key with this hash.
    pub(super) fn of_get(self, hash: Option<u64>) -> Self {
        Self { get: hash.map(|hash| (hash, self.at)), ..self }
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
        let opened = engine.log.open_record(read).and_then(|cold| Ok((parse(engine.layout, at, &cold)?, cold)));
        let (record, cold) = match opened {
            // Its space was given back while it was read.
            Err(_) if at < engine.log.bounds.begin.load(Acquire) => {
                self.at = 0;
                return Ok(Walked::Absent);
            }
            opened => opened?,
        };
        let record = match record {
            Parsed::Record(record) => record,
            Parsed::Short(bytes) if bytes > self.bytes => {
                self.bytes = bytes;
                return Ok(Walked::On);
            }
            Parsed::Short(_) => return Err(too_long(at)),
        };
        if record.key == key {
            self.at = 0;
            if record.header & ABSENT != 0 {
                return Ok(Walked::Absent);
            }
            let first = cold.get(at, record::first_bytes(engine.layout));
            let bytes = first.and_then(|first| record::scanned_record_bytes(engine.layout, first)).unwrap_or(0);
            if let Some((hash, start)) = self.get
                && !engine.has_passed(record.expires)
            {
                engine.promote(hash, &ColdFind { start, at, bytes: record.bytes, room: bytes });
            }
            return Ok(Walked::Value { at, value: record.value, expires: record.expires, bytes });
        }
        *self = Self { get: self.get, ..Self::new(engine, record.header & ADDRESS_MASK) };
        Ok(if self.is_over() { Walked::Absent } else { Walked::On })
    }
}

/// What the bytes at an address turned out to be.
pub(crate) enum Parsed<'r> {
    Record(ColdRecord<'r>),
    /// The record has this many bytes, more than were read.
    Short(u64),
}

pub(crate) fn parse<'r>(layout: Layout, at: u64, cold: &ColdBytes<'r>) -> Result<Parsed<'r>> {
    let damaged = || no_record(at);
    let first = cold.get(at, record::first_bytes(layout)).ok_or_else(damaged)?;
    let bytes = match layout {
        Layout::Word { .. } => record::scanned_record_bytes(layout, first),
        Layout::Bytes => record::cold_bytes_record_bytes(first),
    };
    let bytes = bytes.ok_or_else(damaged)?;
    let Some(whole) = cold.get(at, bytes) else { return Ok(Parsed::Short(bytes)) };
    let record = record::parse(layout, whole).ok_or_else(damaged)?;
    // Chains descend.
    if record.header & record::VALID == 0 || record.header & ADDRESS_MASK >= at { Err(damaged()) } else { Ok(Parsed::Record(record)) }
}

/// What the key holds at the end of the chain that begins at `at`, `None` if nothing. Not under a pin. `get`: the hash of the key
/// that a get asks for.
pub(super) fn read(engine: &Engine, at: u64, key: &[u8], get: Option<u64>) -> Result<Option<Held>> {
    let device = engine.log.cold_device()?;
    let mut walk = Walk::new(engine, at).of_get(get);
    if walk.is_over() {
        return Ok(None);
    }
    loop {
        engine.epochs.slot()?.count(Counter::DeviceRead, 1);
        let mut read = walk.read(0);
        device.read(read.offset(), read.bytes_mut()).map_err(|error| of_reading(error, read.offset() / SECTOR_BYTES as u64))?;
        if let Some(held) = walk.advance(engine, &mut read, key)?.held() {
            return Ok(held);
        }
    }
}

/// Shows the key's records of a view in the chain that begins at `at`, the newest first, as long as `visit` wants more. Not under a
/// pin, but while the view is held.
pub(super) fn visit_in(
    engine: &Engine,
    view: &View,
    mut at: u64,
    key: &[u8],
    mut visit: impl FnMut(&ColdRecord<'_>) -> bool,
) -> Result<()> {
    let device = engine.log.cold_device()?;
    let first = record::first_bytes(engine.layout);
    let mut bytes = first;
    while at >= view.begin {
        engine.epochs.slot()?.count(Counter::DeviceRead, 1);
        let mut read = Log::cold_read(at, bytes, 0);
        device.read(read.offset(), read.bytes_mut()).map_err(|error| of_reading(error, read.offset() / SECTOR_BYTES as u64))?;
        match parse(engine.layout, at, &engine.log.open_record(&mut read)?)? {
            Parsed::Short(whole) if whole > bytes => bytes = whole,
            Parsed::Short(_) => return Err(too_long(at)),
            Parsed::Record(record) => {
                if view.counts(at, record.header) && record.key == key && !visit(&record) {
                    return Ok(());
                }
                (at, bytes) = (record.header & ADDRESS_MASK, first);
            }
        }
    }
    Ok(())
}

/// The address of the key's newest record in the chain that begins at `at`, or `None`. Not under a pin.
pub(crate) fn find(engine: &Engine, mut at: u64, key: &[u8]) -> Result<Option<u64>> {
    while at != 0 && at >= engine.log.bounds.copied.load(Acquire) {
        let bytes = record_bytes(engine, at)?;
        if bytes[record::key_range(engine.layout, &bytes)] == *key {
            return Ok(Some(at));
        }
        at = record::word_at(&bytes, 0) & ADDRESS_MASK;
    }
    Ok(None)
}

/// All bytes of the record at `at`, spare room included. Not under a pin.
pub(crate) fn record_bytes(engine: &Engine, at: u64) -> Result<Vec<u8>> {
    let first = part(engine, at, record::first_bytes(engine.layout))?;
    let whole = record::scanned_record_bytes(engine.layout, &first).ok_or_else(|| no_record(at))?;
    if whole == first.len() as u64 { Ok(first) } else { part(engine, at, whole) }
}

/// When the record at `at` ends, and how many bytes it has. Not under a pin.
pub(crate) fn expiry(engine: &Engine, at: u64) -> Result<(u64, u64)> {
    let first = part(engine, at, record::first_bytes(engine.layout))?;
    let bytes = record::scanned_record_bytes(engine.layout, &first).ok_or_else(|| no_record(at))?;
    if record::word_at(&first, 0) & record::EXPIRES == 0 {
        return Ok((record::NEVER, bytes));
    }
    Ok((record::word_at(&part(engine, at + bytes - 8, 8)?, 0), bytes))
}

/// Some bytes of the log. Not under a pin.
fn part(engine: &Engine, at: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut read = Log::cold_read(at, bytes, 0);
    engine.log.cold_device()?.read(read.offset(), read.bytes_mut())?;
    let cold = engine.log.open_blocks(&mut read)?;
    cold.get(at, bytes).map(<[u8]>::to_vec).ok_or_else(|| no_record(at))
}

fn too_long(at: u64) -> Error {
    Error::corruption(format!("a record is longer than it says address={at}"))
}

fn no_record(at: u64) -> Error {
    Error::corruption(format!("no record where the index says address={at}"))
}

/// Things that wait for their reads; a read's token is its thing's place.
pub(crate) struct Places<T> {
    held: Vec<Option<T>>,
    free: Vec<u64>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { held: Vec::new(), free: Vec::new() }
    }
}

impl<T> Places<T> {
    pub(crate) fn put(&mut self, thing: T) -> u64 {
        let Some(place) = self.free.pop() else {
            self.held.push(Some(thing));
            return self.held.len() as u64 - 1;
        };
        self.held[place as usize] = Some(thing);
        place
    }

    /// The thing at a place, once.
    pub(crate) fn take(&mut self, place: u64) -> T {
        self.free.push(place);
        self.held[place as usize].take().unwrap_or_else(|| unreachable!("a device hands each read back once"))
    }

    /// All things; no read is under way any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.held.drain(..).flatten()
    }
}
