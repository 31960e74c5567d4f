//! Chains on the device: one record after another, until the key's own or the end.
//!
//! A [`Descent`] says what to read next and is told what came; who reads (this thread, a stream of many, the store's reader
//! thread) is the caller's matter, and how far it goes. A [`Walk`] is one for a key's value. They know the layout at run time only:
//! beside a device read that costs nothing, and the reader thread need not know the store's types.

use crate::ahead::read_at_once;
use crate::copies::Original;
use crate::device::DeviceRead;
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::expiry::Ends;
use crate::log::{BLOCK_BYTES, ColdBytes, Log};
use crate::promotion::ColdFind;
use crate::record::{self, ABSENT, ADDRESS_MASK, ColdRecord};
use crate::snapshot::View;
use crate::sync::atomic::Ordering::*;
use crate::types::Layout;
use std::ops::Range;

/// What a key holds.
pub(crate) struct Held {
    /// Where its record is.
    pub(crate) at: u64,
    pub(crate) value: Vec<u8>,
    /// Until when, in milliseconds since 1970.
    pub(crate) expires: u64,
    /// All of its record, room to grow included.
    pub(crate) bytes: u64,
}

/// Where a way down a chain is: at the record at `at`, of which the first `bytes` are to be read.
#[derive(Clone, Copy)]
pub(crate) struct Descent {
    pub(crate) at: u64,
    bytes: u64,
}

impl Descent {
    pub(crate) fn new(layout: Layout, at: u64) -> Self {
        Self { at, bytes: record::first_bytes(layout) }
    }

    /// Those that hold it.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.at / BLOCK_BYTES..(self.at + self.bytes).div_ceil(BLOCK_BYTES)
    }

    /// What to read next.
    pub(crate) fn read(&self, token: u64) -> DeviceRead {
        Log::cold_read(self.at, self.bytes, token)
    }

    /// The record, if this is all of it: next comes the one that it leads to. Else more of it is to be read.
    pub(crate) fn advance<'r>(&mut self, layout: Layout, cold: &ColdBytes<'r>) -> Result<Option<ColdRecord<'r>>> {
        let at = self.at;
        let damaged = || no_record(at);
        let first = cold.get(at, record::first_bytes(layout)).ok_or_else(damaged)?;
        let bytes = match layout {
            Layout::Word { .. } => record::scanned_record_bytes(layout, first),
            Layout::Bytes => record::cold_bytes_record_bytes(first),
        };
        let bytes = bytes.ok_or_else(damaged)?;
        let Some(whole) = cold.get(at, bytes) else {
            // More than were asked for, or all would be there.
            self.bytes = bytes;
            return Ok(None);
        };
        let record = record::parse(layout, whole).ok_or_else(damaged)?;
        let previous = record.header & ADDRESS_MASK;
        // Chains descend.
        if record.header & record::VALID == 0 || previous >= at {
            return Err(damaged());
        }
        *self = Self::new(layout, previous);
        Ok(Some(record))
    }
}

/// A way to a key's value. At 0 it is over.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    down: Descent,
    /// Of a get: the key's hash and where the walk began, for what it finds may come back into memory (`promotion.rs`).
    get: Option<(u64, u64)>,
}

/// What one read told a walk.
pub(crate) enum Walked<'r> {
    /// The key's value, where its record is, when it ends, and all bytes of it.
    Value { at: u64, value: &'r [u8], expires: u64, bytes: u64 },
    /// The key has no value on the device.
    Absent,
    /// There is more to read.
    On,
}

impl Walked<'_> {
    /// What the key holds on the device, once that is known.
    pub(crate) fn held(self) -> Option<Option<Held>> {
        match self {
            Self::Value { at, value, expires, bytes } => Some(Some(Held { at, value: value.to_vec(), expires, bytes })),
            Self::Absent => Some(None),
            Self::On => None,
        }
    }
}

impl Walk {
    /// Down the chain that begins at `at`, not under a pin.
    pub(crate) fn new(engine: &Engine, at: u64) -> Self {
        // What lives below has a copy above, and the rest is dead, though an entry of other keys may lead to it. A walk that ends there
        // because compaction was quicker is not believed: the entry has another head by then.
        let at = if at < engine.log.bounds.copied.load(Acquire) { 0 } else { at };
        Self { down: Descent::new(engine.layout, at), get: None }
    }

    /// For a get of a key with this hash.
    pub(crate) fn of_get(self, hash: Option<u64>) -> Self {
        Self { get: hash.map(|hash| (hash, self.down.at)), ..self }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.down.at == 0
    }

    /// What to read next. Not when the walk is over.
    pub(crate) fn read(&self, token: u64) -> DeviceRead {
        self.down.read(token)
    }

    /// Goes on with what was read.
    pub(crate) fn advance<'r>(&mut self, engine: &Engine, read: &'r mut DeviceRead, key: &[u8]) -> Result<Walked<'r>> {
        let at = self.down.at;
        let record = engine.log.open_record(read).and_then(|cold| self.down.advance(engine.layout, &cold));
        // Its space was given back while it was read: what seems whole may end in zeros.
        if at < engine.log.bounds.begin.load(Acquire) {
            self.down.at = 0;
            return Ok(Walked::Absent);
        }
        let Some(record) = record? else { return Ok(Walked::On) };
        if record.key != key {
            *self = Self { get: self.get, ..Self::new(engine, self.down.at) };
            return Ok(if self.is_over() { Walked::Absent } else { Walked::On });
        }
        self.down.at = 0;
        if record.header & ABSENT != 0 {
            return Ok(Walked::Absent);
        }
        let bytes = record::scanned_record_bytes(engine.layout, record.bytes).unwrap_or(0);
        if let Some((hash, start)) = self.get
            && !engine.has_passed(record.expires)
        {
            engine.promote(&ColdFind { start, of: Original { at, hash, bytes: record.bytes }, room: bytes });
        }
        Ok(Walked::Value { at, value: record.value, expires: record.expires, bytes })
    }
}

/// What the key holds at the end of the chain that begins at `at`, `None` if nothing. Not under a pin. `get`: the hash of the key
/// that a get asks for.
pub(crate) fn read(engine: &Engine, at: u64, key: &[u8], get: Option<u64>) -> Result<Option<Held>> {
    let mut walk = Walk::new(engine, at).of_get(get);
    while !walk.is_over() {
        let mut read = read_for(Counter::DeviceRead, engine, walk.read(0))?;
        if let Some(held) = walk.advance(engine, &mut read, key)?.held() {
            return Ok(held);
        }
    }
    Ok(None)
}

/// Shows the key's records of a view in the chain that begins at `at`, the newest first, as long as `visit` wants more. Not under a
/// pin, but while the view is held. `counter`: what its reads are for.
pub(crate) fn visit_in(
    engine: &Engine,
    view: &View,
    at: u64,
    key: &[u8],
    counter: Counter,
    mut visit: impl FnMut(&ColdRecord<'_>) -> bool,
) -> Result<()> {
    let mut down = Descent::new(engine.layout, at);
    while down.at >= view.begin {
        let (at, mut read) = (down.at, read_for(counter, engine, down.read(0))?);
        let record = down.advance(engine.layout, &engine.log.open_record(&mut read)?)?;
        if record.is_some_and(|record| view.counts(at, record.header) && record.key == key && !visit(&record)) {
            break;
        }
    }
    Ok(())
}

fn read_for(counter: Counter, engine: &Engine, read: DeviceRead) -> Result<DeviceRead> {
    engine.epochs.slot()?.count(counter, 1);
    read_at_once(&engine.log, read)
}

/// All bytes of the record `own` if that is the key's newest in the chain that begins at `first`. Not under a pin.
pub(crate) fn newest_bytes(engine: &Engine, first: u64, key: &[u8], own: u64) -> Result<Option<Vec<u8>>> {
    let mut down = Descent::new(engine.layout, first);
    while down.at >= own && down.at >= engine.log.bounds.copied.load(Acquire) {
        let (at, mut read) = (down.at, read_at_once(&engine.log, down.read(0))?);
        let cold = engine.log.open_blocks(&mut read)?;
        let record = down.advance(engine.layout, &cold)?;
        if record.is_some_and(|record| record.key == key) {
            return if at == own { whole_of(engine, own, &cold).map(Some) } else { Ok(None) };
        }
    }
    Ok(None)
}

/// All bytes of the record at `at`, spare room included. Not under a pin.
pub(crate) fn record_bytes(engine: &Engine, at: u64) -> Result<Vec<u8>> {
    let mut read = read_at_once(&engine.log, Log::cold_read(at, record::first_bytes(engine.layout), 0))?;
    whole_of(engine, at, &engine.log.open_blocks(&mut read)?)
}

/// The same of a record whose beginning was read.
fn whole_of(engine: &Engine, at: u64, cold: &ColdBytes<'_>) -> Result<Vec<u8>> {
    let (_, bytes) = beginning(engine, at, cold)?;
    part(engine, at, bytes, cold)
}

/// What is known of the record at `at` for its end. Not under a pin.
pub(crate) fn ends(engine: &Engine, at: u64) -> Result<Ends> {
    let mut read = read_at_once(&engine.log, Log::cold_read(at, record::first_bytes(engine.layout), 0))?;
    let cold = engine.log.open_blocks(&mut read)?;
    let (header, bytes) = beginning(engine, at, &cold)?;
    let key = record::key_range(engine.layout, cold.get(at, record::first_bytes(engine.layout)).ok_or_else(|| no_record(at))?);
    let hash = engine.hash_of(&part(engine, at, key.end as u64, &cold)?[key]);
    let previous = header & ADDRESS_MASK;
    if header & record::ABSENT != 0 {
        return Ok(Ends { hash, expires: record::NEVER, bytes: 0, previous });
    }
    let has_end = header & record::EXPIRES != 0;
    let expires = if has_end { record::word_at(&part(engine, at + bytes - 8, 8, &cold)?, 0) } else { record::NEVER };
    Ok(Ends { hash, expires, bytes, previous })
}

/// The header of a record that was read from its beginning, and how many bytes it has.
fn beginning(engine: &Engine, at: u64, cold: &ColdBytes<'_>) -> Result<(u64, u64)> {
    let first = cold.get(at, record::first_bytes(engine.layout)).ok_or_else(|| no_record(at))?;
    let bytes = record::scanned_record_bytes(engine.layout, first).ok_or_else(|| no_record(at))?;
    Ok((record::word_at(first, 0), bytes))
}

/// Some bytes of the log: of what was read, as nearly always, or by another read. Not under a pin.
fn part(engine: &Engine, at: u64, bytes: u64, cold: &ColdBytes<'_>) -> Result<Vec<u8>> {
    if let Some(there) = cold.get(at, bytes) {
        return Ok(there.to_vec());
    }
    let mut read = read_at_once(&engine.log, Log::cold_read(at, bytes, 0))?;
    let cold = engine.log.open_blocks(&mut read)?;
    cold.get(at, bytes).map(<[u8]>::to_vec).ok_or_else(|| no_record(at))
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
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.held.drain(..).flatten()
    }
}
