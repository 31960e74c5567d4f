//! One operation on one key, and batches of them.
//!
//! Each operation is a loop: pin, locate the key's newest record, act by its region, publish; or unpin, wait for what is
//! missing (room, the device, the fuzzy region), and begin again.
//!
//! | record is          | get            | blind put           | rmw, append, delete                      |
//! |--------------------|----------------|---------------------|------------------------------------------|
//! | mutable            | read           | in place            | in place                                 |
//! | fuzzy (`safe_read_only <= a < read_only`) | read | copy to the tail | wait until it is safe: another thread may still write it |
//! | frozen in memory   | read           | copy to the tail    | copy to the tail                         |
//! | on the device      | read it        | append to the tail  | read it, then append to the tail         |

use crate::engine::{Engine, Layout};
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result};
use crate::index::{ADDRESS_MASK, Published, Seen, prefetch};
use crate::log::ColdBytes;
use crate::record::{self, BYTES_HEADER_BYTES, KEY_BYTES_MAX, Record, SEALED, TOMBSTONE};
use crate::stats::Stats;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread::{JoinHandle, Thread};

/// Keys of a batch whose misses overlap.
const GROUP: usize = 64;
/// Cold reads handed to the device together.
const COLD_BATCH: usize = 1024;

/// A key-value store. Cloning it is cheap and gives the same store; it closes with its last clone.
pub struct Store<K: Key + ?Sized, V: Value + ?Sized> {
    shared: Arc<Shared>,
    types: PhantomData<fn(&K, &V)>,
}

struct Shared {
    engine: Arc<Engine>,
    driver: std::sync::Mutex<Option<JoinHandle<()>>>,
    driver_thread: Thread,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A failure to flush was latched and told to every writer; a drop cannot return it. `close` can.
        let _ = self.close();
    }
}

impl Shared {
    fn close(&self) -> Result<()> {
        let result = self.engine.close();
        self.driver_thread.unpark();
        if let Some(driver) = self.driver.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let _ = driver.join();
        }
        result
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Store<K, V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), types: PhantomData }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Store<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("layout", &self.engine().layout).finish_non_exhaustive()
    }
}

/// Where a key's newest record is.
enum Found {
    Memory { at: u64, record: Record },
    Cold { at: u64 },
    Absent,
}

/// The regions an update tells apart.
enum Region {
    Mutable,
    Fuzzy,
    Frozen,
}

/// What the device said about a key.
enum ColdFound {
    Live(Vec<u8>),
    Absent,
}

/// What an update does with the value it saw.
enum Change<'a> {
    Set(&'a [u8], usize),
    Remove,
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that outlives the call, taken out so that closures may use the store again.
fn with_scratch<R>(run: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut buffer = SCRATCH.with(RefCell::take);
    let result = run(&mut buffer);
    if buffer.capacity() <= 1 << 20 {
        SCRATCH.with(|cell| cell.replace(buffer));
    }
    result
}

#[inline(always)]
fn to_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    const WORD: bool = matches!((K::WIDTH, V::WIDTH), (Some(key), Some(value)) if value <= 8 && key <= 256);
    const KEY_WIDTH: usize = match K::WIDTH {
        Some(width) => width,
        None => 0,
    };
    const VALUE_WIDTH: usize = match V::WIDTH {
        Some(width) => width,
        None => 0,
    };

    pub(crate) fn start(engine: Engine) -> Result<Self> {
        debug_assert_eq!(Self::WORD, matches!(engine.layout, Layout::Word { .. }));
        let engine = Arc::new(engine);
        let driven = engine.clone();
        let driver = std::thread::Builder::new().name("esker-driver".into()).spawn(move || driven.run_driver())?;
        let driver_thread = driver.thread().clone();
        let shared = Shared { engine, driver: std::sync::Mutex::new(Some(driver)), driver_thread };
        Ok(Self { shared: Arc::new(shared), types: PhantomData })
    }

    #[inline(always)]
    fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        self.engine().hasher.hash(key, K::WIDTH.filter(|_| Self::WORD))
    }

    fn check_key(key: &[u8]) -> Result<()> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!("a key has at most {KEY_BYTES_MAX} bytes key={}", key.len())));
        }
        Ok(())
    }

    fn check_value(&self, bytes: usize) -> Result<()> {
        let most = self.engine().value_bytes_max();
        if bytes as u64 > most {
            return Err(Error::invalid(format!("a value has at most 16 MiB or a quarter of the budget max={most} value={bytes}")));
        }
        Ok(())
    }

    // ---- finding -------------------------------------------------------------------------------------------------

    #[inline(always)]
    fn locate(&self, key: &[u8], hash: u64) -> (Seen, Found) {
        let seen = self.engine().index.lookup(hash);
        (seen, self.walk(seen.address(), key))
    }

    /// Follows a chain through memory. Under a pin.
    #[inline(always)]
    fn walk(&self, from: u64, key: &[u8]) -> Found {
        let log = &self.engine().log;
        let head = log.bounds.head.load(Acquire);
        let mut at = from;
        while at != 0 {
            if at < head {
                return Found::Cold { at };
            }
            // SAFETY: `at >= head` under the caller's pin; entries and chains hold published addresses only.
            let record = unsafe { Record::new(log.pointer(at)) };
            let found = if Self::WORD { record.word_key(Self::KEY_WIDTH) } else { record.bytes_key() };
            if found == key {
                return Found::Memory { at, record };
            }
            at = record.previous();
        }
        Found::Absent
    }

    #[inline(always)]
    fn region(&self, at: u64) -> Region {
        let bounds = &self.engine().log.bounds;
        if at >= bounds.read_only.load(Acquire) {
            Region::Mutable
        } else if at >= bounds.safe_read_only.load(Acquire) {
            Region::Fuzzy
        } else {
            Region::Frozen
        }
    }

    /// Follows a chain on the device. Not under a pin.
    fn read_chain(&self, from: u64, key: &[u8]) -> Result<ColdFound> {
        let mut at = from;
        while at != 0 {
            let first = self.first_read_bytes();
            let cold = self.read_one(at, first)?;
            match self.examine(at, &cold, key)? {
                Examined::Value(value) => return Ok(ColdFound::Live(value)),
                Examined::Tombstone => return Ok(ColdFound::Absent),
                Examined::Next(previous) => at = previous,
                Examined::Short(bytes) => match self.examine(at, &self.read_one(at, bytes)?, key)? {
                    Examined::Value(value) => return Ok(ColdFound::Live(value)),
                    Examined::Tombstone => return Ok(ColdFound::Absent),
                    Examined::Next(previous) => at = previous,
                    Examined::Short(_) => return Err(Error::corruption(format!("a record is longer than it says address={at}"))),
                },
            }
        }
        Ok(ColdFound::Absent)
    }

    fn first_read_bytes(&self) -> u64 {
        if Self::WORD { record::word_record_bytes(Self::KEY_WIDTH) } else { BYTES_HEADER_BYTES }
    }

    fn read_one(&self, at: u64, bytes: u64) -> Result<ColdBytes> {
        if let Ok(slot) = self.engine().epochs.slot() {
            slot.count(Counter::DeviceRead, 1);
        }
        self.engine().log.read_cold(&[(at, bytes)]).pop().unwrap_or_else(|| unreachable!("one read, one answer"))
    }

    fn examine(&self, at: u64, cold: &ColdBytes, key: &[u8]) -> Result<Examined> {
        let damaged = || Error::corruption(format!("no record where the index says address={at}"));
        let (record, bytes) = if Self::WORD {
            let bytes = self.first_read_bytes();
            (Some(record::parse_word(cold.get(at, bytes).ok_or_else(damaged)?, Self::KEY_WIDTH)), bytes)
        } else {
            let header = cold.get(at, BYTES_HEADER_BYTES).ok_or_else(damaged)?;
            let bytes = record::cold_bytes_record_bytes(header);
            if bytes > (64 << 20) {
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

    // ---- reading -------------------------------------------------------------------------------------------------

    /// The value of `key`.
    ///
    /// # Errors
    /// `Corruption` or `Io` when the record is cold and cannot be read; `Closed`.
    ///
    /// # Cost
    /// Two cache misses in memory; one device read for each cold record of the chain, usually one.
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        if Self::WORD {
            let word = self.get_word(key.bytes())?;
            return Ok(word.map(|word| V::own(&word.to_ne_bytes()[..Self::VALUE_WIDTH])));
        }
        self.get_bytes(key.bytes(), V::own)
    }

    /// What `read` makes of the value of `key`. It runs on a copy, outside the store: it may take its time.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_with<R>(&self, key: &K, read: impl FnOnce(V::View<'_>) -> R) -> Result<Option<R>> {
        if Self::WORD {
            let word = self.get_word(key.bytes())?;
            return Ok(word.map(|word| read(V::view(&word.to_ne_bytes()[..Self::VALUE_WIDTH]))));
        }
        self.get_bytes(key.bytes(), |bytes| read(V::view(bytes)))
    }

    /// True if `key` has a value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn contains(&self, key: &K) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    #[inline(always)]
    fn get_word(&self, key: &[u8]) -> Result<Option<u64>> {
        let hash = self.hash(key);
        let pin = self.engine().epochs.pin()?;
        pin.slot.count(Counter::Get, 1);
        let (seen, found) = self.locate(key, hash);
        match found {
            Found::Memory { record, .. } => Ok(record.is_live().then(|| record.word_value(Self::KEY_WIDTH).load(Acquire))),
            Found::Absent if self.engine().index.is_settled(&seen) => Ok(None),
            found => {
                drop(pin);
                Ok(self.get_slow(key, hash, seen, found)?.map(|bytes| to_word(&bytes)))
            }
        }
    }

    fn get_bytes<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        Self::check_key(key)?;
        let hash = self.hash(key);
        let pin = self.engine().epochs.pin()?;
        pin.slot.count(Counter::Get, 1);
        let (seen, found) = self.locate(key, hash);
        match found {
            Found::Memory { record, .. } if !record.is_live() => Ok(None),
            Found::Memory { record, .. } => with_scratch(|buffer| {
                record.read_value(buffer);
                drop(pin);
                Ok(Some(read(buffer)))
            }),
            Found::Absent if self.engine().index.is_settled(&seen) => Ok(None),
            found => {
                drop(pin);
                Ok(self.get_slow(key, hash, seen, found)?.map(|bytes| read(&bytes)))
            }
        }
    }

    /// The rest of a get that met the device or a moving bucket.
    #[cold]
    fn get_slow(&self, key: &[u8], hash: u64, mut seen: Seen, mut found: Found) -> Result<Option<Vec<u8>>> {
        loop {
            match found {
                Found::Cold { at } => {
                    if let ColdFound::Live(value) = self.read_chain(at, key)? {
                        return Ok(Some(value));
                    }
                    if self.engine().index.is_settled(&seen) {
                        return Ok(None);
                    }
                }
                Found::Absent if self.engine().index.is_settled(&seen) => return Ok(None),
                // A bucket was moving: look again.
                _ => std::hint::spin_loop(),
            }
            let _pin = self.engine().epochs.pin()?;
            (seen, found) = self.locate(key, hash);
            if let Found::Memory { record, .. } = found {
                return Ok(record.is_live().then(|| self.value_of(record)));
            }
        }
    }

    /// Under a pin.
    fn value_of(&self, record: Record) -> Vec<u8> {
        if Self::WORD {
            return record.word_value(Self::KEY_WIDTH).load(Acquire).to_ne_bytes()[..Self::VALUE_WIDTH].to_vec();
        }
        let mut value = Vec::new();
        record.read_value(&mut value);
        value
    }

    // ---- writing -------------------------------------------------------------------------------------------------

    /// Sets the value of `key`, whatever it was. Never reads the device.
    ///
    /// # Errors
    /// `Full` in memory, `Io` when the log cannot be written any more, `Invalid` for a key or value that is too large
    /// and inside a closure that the store runs; nothing was changed then.
    ///
    /// # Cost
    /// In place: two cache misses. Otherwise a record at the log's tail.
    pub fn put(&self, key: &K, value: &V) -> Result<()> {
        if Self::WORD {
            return self.put_word(key.bytes(), to_word(value.bytes()));
        }
        self.put_bytes(key.bytes(), value.bytes())
    }

    #[inline(always)]
    fn put_word(&self, key: &[u8], value: u64) -> Result<()> {
        let hash = self.hash(key);
        loop {
            let pin = self.engine().epochs.pin()?;
            pin.slot.count(Counter::Put, 1);
            if self.put_word_pinned(&pin, key, hash, value)? {
                return Ok(());
            }
            drop(pin);
            self.engine().make_room(record::word_record_bytes(Self::KEY_WIDTH))?;
        }
    }

    /// False when room must be made.
    #[inline(always)]
    fn put_word_pinned(&self, pin: &Pin<'_>, key: &[u8], hash: u64, value: u64) -> Result<bool> {
        loop {
            let (seen, found) = self.locate(key, hash);
            if let Found::Memory { at, record } = found
                && record.is_live()
                && matches!(self.region(at), Region::Mutable)
            {
                record.word_value(Self::KEY_WIDTH).store(value, Release);
                return Ok(true);
            }
            match self.add_word(pin, key, hash, &seen, &found, value, 0) {
                Some(true) => return Ok(true),
                Some(false) => {}
                None => return Ok(false),
            }
        }
    }

    /// Where a new record's chain goes on: past a superseded one at the chain's head, else at the head.
    #[inline(always)]
    fn previous_for(seen: &Seen, found: &Found) -> u64 {
        match found {
            Found::Memory { at, record } if *at == seen.address() => record.previous(),
            _ => seen.address(),
        }
    }

    /// Writes and publishes a word record: `None` without room, `Some(false)` when somebody was quicker.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    fn add_word(&self, pin: &Pin<'_>, key: &[u8], hash: u64, seen: &Seen, found: &Found, value: u64, flags: u64) -> Option<bool> {
        let log = &self.engine().log;
        let at = log.allocate(pin.slot, record::word_record_bytes(Self::KEY_WIDTH))?;
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        record.write_word(key, value, Self::previous_for(seen, found), flags);
        Some(self.publish(pin, hash, seen, at, record, flags))
    }

    #[inline(always)]
    fn publish(&self, pin: &Pin<'_>, hash: u64, seen: &Seen, at: u64, record: Record, flags: u64) -> bool {
        let mut added = false;
        let link_to = |address| record.header().store(address | flags | record::VALID, Release);
        match self.engine().index.publish(hash, seen, at, &mut added, link_to) {
            Published::Done => {
                if added {
                    self.count_entry(pin);
                }
                true
            }
            Published::Changed => {
                record.header().fetch_or(SEALED, Release);
                false
            }
            Published::TooLow => {
                record.header().fetch_or(SEALED, Release);
                // Our piece of the log lies below another thread's newer record: leave it.
                pin.slot.end.store(0, Relaxed);
                false
            }
        }
    }

    #[inline(always)]
    fn count_entry(&self, pin: &Pin<'_>) {
        let entries = pin.slot.entries.load(Relaxed) + 1;
        pin.slot.entries.store(entries, Relaxed);
        if entries >= 64 {
            self.engine().entries_added(pin);
            if self.engine().index.wants_split() {
                self.shared.driver_thread.unpark();
            }
        }
    }

    fn put_bytes(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::check_key(key)?;
        self.check_value(value.len())?;
        self.update_bytes(key, Counter::Put, true, |_, _| Ok(Change::Set(value, value.len()))).map(|_| ())
    }

    /// The one way a bytes record changes. `decide` sees the old value (absent for a blind update) and whether it is
    /// known, and says what becomes of it; it may run again. Returns whether a value was there.
    fn update_bytes<'v>(
        &self,
        key: &[u8],
        what: Counter,
        blind: bool,
        mut decide: impl FnMut(Option<&[u8]>, bool) -> Result<Change<'v>>,
    ) -> Result<bool> {
        let hash = self.hash(key);
        let engine = self.engine();
        if let Ok(slot) = engine.epochs.slot() {
            slot.count(what, 1);
        }
        let mut cold: Option<(u64, Option<Vec<u8>>)> = None;
        loop {
            let pin = engine.epochs.pin()?;
            let (seen, found) = self.locate(key, hash);
            let wait = match &found {
                Found::Memory { at, record } => match self.region(*at) {
                    Region::Mutable => {
                        let latched = record.latch();
                        if record.is_sealed() {
                            continue;
                        }
                        let was_there = record.is_live();
                        let old = was_there.then(|| latched.value());
                        match decide(old, !blind)? {
                            Change::Remove => {
                                record.header().fetch_or(TOMBSTONE, Release);
                                return Ok(was_there);
                            }
                            Change::Set(value, _) if was_there && value.len() <= record.capacity() => {
                                latched.set_value(0, value);
                                return Ok(was_there);
                            }
                            Change::Set(value, capacity) => match self.add_bytes(&pin, key, hash, &seen, &found, Some(value), capacity) {
                                Some(true) => {
                                    record.header().fetch_or(SEALED, Release);
                                    return Ok(was_there);
                                }
                                Some(false) => continue,
                                None => record::bytes_record_bytes(key.len(), capacity),
                            },
                        }
                    }
                    Region::Fuzzy if !blind => {
                        drop(pin);
                        engine.wait_until_safe();
                        continue;
                    }
                    _ => {
                        let was_there = record.is_live();
                        let old = (was_there && !blind).then(|| self.value_of(*record));
                        match self.supersede(&pin, key, hash, &seen, &found, decide(old.as_deref(), !blind)?, was_there) {
                            Ok(()) => return Ok(was_there),
                            Err(0) => continue,
                            Err(bytes) => bytes,
                        }
                    }
                },
                Found::Cold { at } if !blind && cold.as_ref().is_none_or(|(known, _)| known != at) => {
                    let at = *at;
                    drop(pin);
                    cold = Some((
                        at,
                        match self.read_chain(at, key)? {
                            ColdFound::Live(value) => Some(value),
                            ColdFound::Absent => None,
                        },
                    ));
                    continue;
                }
                // Cold and read, cold and of no interest, or absent.
                _ => {
                    let known =
                        matches!(found, Found::Cold { .. }).then(|| cold.as_ref().and_then(|(_, value)| value.as_deref())).flatten();
                    match self.supersede(&pin, key, hash, &seen, &found, decide(known, !blind)?, known.is_some()) {
                        Ok(()) => return Ok(known.is_some()),
                        Err(0) => continue,
                        Err(bytes) => bytes,
                    }
                }
            };
            drop(pin);
            engine.make_room(wait)?;
        }
    }

    /// Appends the changed record. `Err(0)`: somebody was quicker; `Err(bytes)`: room must be made.
    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    fn supersede(
        &self,
        pin: &Pin<'_>,
        key: &[u8],
        hash: u64,
        seen: &Seen,
        found: &Found,
        change: Change<'_>,
        was_there: bool,
    ) -> std::result::Result<(), u64> {
        let (value, capacity) = match change {
            Change::Set(value, capacity) => (Some(value), capacity),
            // Removing what is not there changes nothing, once it is sure that it is not there.
            Change::Remove if !was_there => {
                return if matches!(found, Found::Absent) && !self.engine().index.is_settled(seen) { Err(0) } else { Ok(()) };
            }
            Change::Remove => (None, 0),
        };
        match self.add_bytes(pin, key, hash, seen, found, value, capacity) {
            Some(true) => Ok(()),
            Some(false) => Err(0),
            None => Err(record::bytes_record_bytes(key.len(), capacity)),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the facts of one publication")]
    fn add_bytes(
        &self,
        pin: &Pin<'_>,
        key: &[u8],
        hash: u64,
        seen: &Seen,
        found: &Found,
        value: Option<&[u8]>,
        capacity: usize,
    ) -> Option<bool> {
        let log = &self.engine().log;
        let flags = if value.is_some() { 0 } else { TOMBSTONE };
        let at = log.allocate(pin.slot, record::bytes_record_bytes(key.len(), capacity))?;
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        record.write_bytes(key, value.unwrap_or_default(), capacity, Self::previous_for(seen, found), flags);
        Some(self.publish(pin, hash, seen, at, record, flags))
    }

    /// Sets the value of `key` to what `update` makes of the old one; returns the new one.
    ///
    /// `update` may run again when another thread was quicker; the last call counts. It must not use this store.
    ///
    /// # Errors
    /// As [`Store::put`] and, for a cold key, as [`Store::get`].
    pub fn rmw(&self, key: &K, mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        if Self::WORD {
            let word = self.rmw_word(key.bytes(), &mut |old: Option<u64>| {
                let old = old.map(u64::to_ne_bytes);
                let new = update(old.as_ref().map(|bytes| V::view(&bytes[..Self::VALUE_WIDTH])));
                to_word(new.borrow().bytes())
            })?;
            return Ok(V::own(&word.to_ne_bytes()[..Self::VALUE_WIDTH]));
        }
        Self::check_key(key.bytes())?;
        let mut last = None;
        self.update_owned(key.bytes(), Counter::Rmw, |old| {
            let new = last.insert(update(old.map(V::view)));
            let bytes: &V = (*new).borrow();
            Ok((bytes.bytes().to_vec(), bytes.bytes().len()))
        })?;
        Ok(last.unwrap_or_else(|| unreachable!("a successful update ran the closure")))
    }

    #[inline(always)]
    fn rmw_word(&self, key: &[u8], update: &mut impl FnMut(Option<u64>) -> u64) -> Result<u64> {
        let hash = self.hash(key);
        loop {
            let pin = self.engine().epochs.pin()?;
            pin.slot.count(Counter::Rmw, 1);
            let (seen, found) = self.locate(key, hash);
            if let Found::Memory { at, record } = found
                && record.is_live()
                && matches!(self.region(at), Region::Mutable)
            {
                let value = record.word_value(Self::KEY_WIDTH);
                let mut old = value.load(Acquire);
                loop {
                    let new = update(Some(old));
                    match value.compare_exchange(old, new, AcqRel, Acquire) {
                        Ok(_) => return Ok(new),
                        Err(now) => old = now,
                    }
                }
            }
            drop(pin);
            if let Some(new) = self.rmw_word_slow(key, hash, seen, &found, update)? {
                return Ok(new);
            }
        }
    }

    /// One attempt at what is not in place; `None` to begin again.
    #[cold]
    #[inline(never)]
    fn rmw_word_slow(
        &self,
        key: &[u8],
        hash: u64,
        seen: Seen,
        found: &Found,
        update: &mut impl FnMut(Option<u64>) -> u64,
    ) -> Result<Option<u64>> {
        let cold = match found {
            Found::Cold { at } => Some((*at, self.read_chain(*at, key)?)),
            _ => None,
        };
        let engine = self.engine();
        let pin = engine.epochs.pin()?;
        let (now, found) = self.locate(key, hash);
        let old = match (&found, &cold) {
            (Found::Absent, _) => None,
            (Found::Memory { at, record }, _) => match self.region(*at) {
                Region::Frozen => record.is_live().then(|| record.word_value(Self::KEY_WIDTH).load(Acquire)),
                Region::Mutable if !record.is_live() => None,
                _ => {
                    drop(pin);
                    engine.wait_until_safe();
                    return Ok(None);
                }
            },
            (Found::Cold { at }, Some((read, value))) if at == read && now.address() == seen.address() => match value {
                ColdFound::Live(value) => Some(to_word(value)),
                ColdFound::Absent => None,
            },
            (Found::Cold { .. }, _) => return Ok(None),
        };
        let new = update(old);
        match self.add_word(&pin, key, hash, &now, &found, new, 0) {
            Some(true) => Ok(Some(new)),
            Some(false) => Ok(None),
            None => {
                drop(pin);
                engine.make_room(record::word_record_bytes(Self::KEY_WIDTH))?;
                Ok(None)
            }
        }
    }

    /// [`Store::update_bytes`] for changes that own their bytes.
    fn update_owned(&self, key: &[u8], what: Counter, mut update: impl FnMut(Option<&[u8]>) -> Result<(Vec<u8>, usize)>) -> Result<bool> {
        let most = self.engine().value_bytes_max();
        let hash = self.hash(key);
        let engine = self.engine();
        engine.epochs.slot()?.count(what, 1);
        let mut cold: Option<(u64, Option<Vec<u8>>)> = None;
        loop {
            let pin = engine.epochs.pin()?;
            let (seen, found) = self.locate(key, hash);
            let mut held = None;
            let old: Option<Vec<u8>> = match &found {
                Found::Memory { at, record } => match self.region(*at) {
                    Region::Mutable => {
                        let latched = record.latch();
                        if record.is_sealed() {
                            continue;
                        }
                        let old = record.is_live().then(|| latched.value().to_vec());
                        held = Some(latched);
                        old
                    }
                    Region::Fuzzy => {
                        drop(pin);
                        engine.wait_until_safe();
                        continue;
                    }
                    Region::Frozen => record.is_live().then(|| self.value_of(*record)),
                },
                Found::Cold { at } => match &cold {
                    Some((known, value)) if known == at => value.clone(),
                    _ => {
                        let at = *at;
                        drop(pin);
                        let value = match self.read_chain(at, key)? {
                            ColdFound::Live(value) => Some(value),
                            ColdFound::Absent => None,
                        };
                        cold = Some((at, value));
                        continue;
                    }
                },
                Found::Absent => None,
            };
            let (new, capacity) = update(old.as_deref())?;
            if new.len() as u64 > most {
                return Err(Error::invalid(format!(
                    "a value has at most 16 MiB or a quarter of the budget max={most} value={}",
                    new.len()
                )));
            }
            if let Some(latched) = &held
                && old.is_some()
                && new.len() <= latched.0.capacity()
            {
                latched.set_value(0, &new);
                return Ok(true);
            }
            match self.add_bytes(&pin, key, hash, &seen, &found, Some(&new), capacity) {
                Some(true) => {
                    if let Some(latched) = &held {
                        latched.0.header().fetch_or(SEALED, Release);
                    }
                    return Ok(old.is_some());
                }
                Some(false) => {}
                None => {
                    drop(held);
                    drop(pin);
                    engine.make_room(record::bytes_record_bytes(key.len(), capacity))?;
                }
            }
        }
    }

    /// Removes `key`; true if it had a value.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    pub fn delete(&self, key: &K) -> Result<bool> {
        let bytes = key.bytes();
        if !Self::WORD {
            Self::check_key(bytes)?;
            return self.update_bytes(bytes, Counter::Delete, false, |_, _| Ok(Change::Remove));
        }
        let hash = self.hash(bytes);
        let engine = self.engine();
        engine.epochs.slot()?.count(Counter::Delete, 1);
        let mut cold: Option<(u64, bool)> = None;
        loop {
            let pin = engine.epochs.pin()?;
            let (seen, found) = self.locate(bytes, hash);
            let was_there = match &found {
                Found::Memory { at, record } => match self.region(*at) {
                    Region::Mutable => return Ok(record.header().fetch_or(TOMBSTONE, AcqRel) & TOMBSTONE == 0),
                    Region::Fuzzy => {
                        drop(pin);
                        engine.wait_until_safe();
                        continue;
                    }
                    Region::Frozen => record.is_live(),
                },
                Found::Cold { at } => match cold {
                    Some((known, live)) if known == *at => live,
                    _ => {
                        let at = *at;
                        drop(pin);
                        cold = Some((at, matches!(self.read_chain(at, bytes)?, ColdFound::Live(_))));
                        continue;
                    }
                },
                Found::Absent => false,
            };
            if !was_there {
                if engine.index.is_settled(&seen) {
                    return Ok(false);
                }
                continue;
            }
            match self.add_word(&pin, bytes, hash, &seen, &found, 0, TOMBSTONE) {
                Some(true) => return Ok(true),
                Some(false) => {}
                None => {
                    drop(pin);
                    engine.make_room(record::word_record_bytes(Self::KEY_WIDTH))?;
                }
            }
        }
    }

    // ---- batches -------------------------------------------------------------------------------------------------

    /// The values of many keys; their cache misses and device reads overlap. `visit(i, value)` is called once for each
    /// key, in any order, outside the store.
    ///
    /// # Errors
    /// As [`Store::get`], the first one met; some keys may not have been visited then.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], mut visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        let mut cold = Vec::new();
        for (group, part) in keys.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            if Self::WORD {
                self.get_group_word(first, part, &mut visit, &mut cold)?;
            } else {
                self.get_group_bytes(first, part, &mut visit, &mut cold)?;
            }
            if cold.len() >= COLD_BATCH {
                self.get_cold(keys, &mut cold, &mut visit)?;
            }
        }
        self.get_cold(keys, &mut cold, &mut visit)
    }

    fn prefetch_group<Q: Borrow<K>>(&self, keys: &[Q], hashes: &mut [u64; GROUP]) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key.borrow().bytes());
            self.engine().index.prefetch(*hash);
        }
    }

    /// Looks all up and starts fetching their newest records. Under a pin.
    #[inline(always)]
    fn look_up_group(&self, hashes: &[u64], seen: &mut [Option<Seen>; GROUP]) {
        let log = &self.engine().log;
        for (slot, hash) in seen.iter_mut().zip(hashes) {
            let found = self.engine().index.lookup(*hash);
            let at = log.pointer(found.address());
            prefetch(at);
            prefetch(at.wrapping_add(23));
            *slot = Some(found);
        }
    }

    fn get_group_word<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let (mut hashes, mut seen) = ([0; GROUP], [None; GROUP]);
        let mut words = [(0u64, false); GROUP];
        let mut missing = 0u64;
        self.prefetch_group(keys, &mut hashes);
        let pin = self.engine().epochs.pin()?;
        pin.slot.count(Counter::Get, keys.len() as u64);
        self.look_up_group(&hashes[..keys.len()], &mut seen);
        for (i, key) in keys.iter().enumerate() {
            let Some(seen) = &seen[i] else { continue };
            match self.walk(seen.address(), key.borrow().bytes()) {
                Found::Memory { record, .. } => words[i] = (record.word_value(Self::KEY_WIDTH).load(Acquire), record.is_live()),
                Found::Absent if self.engine().index.is_settled(seen) => {}
                found => {
                    missing |= 1 << i;
                    cold.push(ColdGet::new(first + i, hashes[i], *seen, &found));
                }
            }
        }
        drop(pin);
        for (i, (word, live)) in words[..keys.len()].iter().enumerate() {
            if missing >> i & 1 == 0 {
                let bytes = word.to_ne_bytes();
                visit(first + i, live.then(|| V::view(&bytes[..Self::VALUE_WIDTH])));
            }
        }
        Ok(())
    }

    fn get_group_bytes<Q: Borrow<K>>(
        &self,
        first: usize,
        keys: &[Q],
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
        cold: &mut Vec<ColdGet>,
    ) -> Result<()> {
        let (mut hashes, mut seen) = ([0; GROUP], [None; GROUP]);
        for key in keys {
            Self::check_key(key.borrow().bytes())?;
        }
        self.prefetch_group(keys, &mut hashes);
        let pin = self.engine().epochs.pin()?;
        self.look_up_group(&hashes[..keys.len()], &mut seen);
        drop(pin);
        for (i, key) in keys.iter().enumerate() {
            let bytes = key.borrow().bytes();
            let pin = self.engine().epochs.pin()?;
            pin.slot.count(Counter::Get, 1);
            let (seen, found) = self.locate(bytes, hashes[i]);
            match found {
                Found::Memory { record, .. } => {
                    let live = record.is_live();
                    with_scratch(|buffer| {
                        record.read_value(buffer);
                        drop(pin);
                        visit(first + i, live.then(|| V::view(buffer)));
                    });
                }
                Found::Absent if self.engine().index.is_settled(&seen) => {
                    drop(pin);
                    visit(first + i, None);
                }
                found => cold.push(ColdGet::new(first + i, hashes[i], seen, &found)),
            }
        }
        Ok(())
    }

    /// Reads all waiting keys from the device, a hop of every chain at a time.
    fn get_cold<Q: Borrow<K>>(
        &self,
        keys: &[Q],
        cold: &mut Vec<ColdGet>,
        visit: &mut impl FnMut(usize, Option<V::View<'_>>),
    ) -> Result<()> {
        while !cold.is_empty() {
            let places: Vec<(u64, u64)> =
                cold.iter().filter(|one| one.at != 0).map(|one| (one.at, one.bytes.max(self.first_read_bytes()))).collect();
            self.engine().epochs.slot()?.count(Counter::DeviceRead, places.len() as u64);
            let mut reads = self.engine().log.read_cold(&places).into_iter();
            let mut waiting = Vec::new();
            for mut one in cold.drain(..) {
                let key = keys[one.key].borrow().bytes();
                if one.at != 0 {
                    let bytes = reads.next().unwrap_or_else(|| unreachable!("one read, one answer"))?;
                    match self.examine(one.at, &bytes, key)? {
                        Examined::Value(value) => {
                            visit(one.key, Some(V::view(&value)));
                            continue;
                        }
                        Examined::Tombstone => (one.at, one.bytes) = (0, 0),
                        Examined::Next(previous) => (one.at, one.bytes) = (previous, 0),
                        Examined::Short(bytes) if bytes > one.bytes => one.bytes = bytes,
                        Examined::Short(_) => return Err(Error::corruption(format!("a record is longer than it says address={}", one.at))),
                    }
                }
                if one.at != 0 {
                    waiting.push(one);
                } else {
                    let value = self.get_slow(key, one.hash, one.seen, Found::Absent)?;
                    visit(one.key, value.as_deref().map(V::view));
                }
            }
            *cold = waiting;
        }
        Ok(())
    }

    /// Many puts; their cache misses overlap. In order for equal keys.
    ///
    /// # Errors
    /// As [`Store::put`], the first one met; the pairs before it are in.
    pub fn put_many<Q: Borrow<K>, U: Borrow<V>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        for part in pairs.chunks(GROUP) {
            let (mut hashes, mut seen) = ([0; GROUP], [None; GROUP]);
            for (hash, (key, _)) in hashes.iter_mut().zip(part) {
                *hash = self.hash(key.borrow().bytes());
                self.engine().index.prefetch(*hash);
            }
            let mut pin = self.engine().epochs.pin()?;
            self.look_up_group(&hashes[..part.len()], &mut seen);
            if !Self::WORD {
                drop(pin);
                for (key, value) in part {
                    self.put_bytes(key.borrow().bytes(), value.borrow().bytes())?;
                }
                continue;
            }
            pin.slot.count(Counter::Put, part.len() as u64);
            for (i, (key, value)) in part.iter().enumerate() {
                let (key, value) = (key.borrow().bytes(), to_word(value.borrow().bytes()));
                while !self.put_word_pinned(&pin, key, hashes[i], value)? {
                    drop(pin);
                    self.engine().make_room(record::word_record_bytes(Self::KEY_WIDTH))?;
                    pin = self.engine().epochs.pin()?;
                }
            }
        }
        Ok(())
    }

    /// Many read-modify-writes; their cache misses overlap. `update(i, old)` may run again, as in [`Store::rmw`].
    ///
    /// # Errors
    /// As [`Store::rmw`], the first one met; the keys before it are done.
    pub fn rmw_many<Q: Borrow<K>>(&self, keys: &[Q], mut update: impl FnMut(usize, Option<V::View<'_>>) -> V::Owned) -> Result<()> {
        self.for_each_prefetched(keys, |i, key| self.rmw(key, |old| update(i, old)).map(|_| ()))
    }

    /// Many deletes; their cache misses overlap. Returns how many keys had a value.
    ///
    /// # Errors
    /// As [`Store::delete`], the first one met; the keys before it are gone.
    pub fn delete_many<Q: Borrow<K>>(&self, keys: &[Q]) -> Result<usize> {
        let mut count = 0;
        self.for_each_prefetched(keys, |_, key| {
            count += usize::from(self.delete(key)?);
            Ok(())
        })?;
        Ok(count)
    }

    fn for_each_prefetched<Q: Borrow<K>>(&self, keys: &[Q], mut run: impl FnMut(usize, &K) -> Result<()>) -> Result<()> {
        for (group, part) in keys.chunks(GROUP).enumerate() {
            let (mut hashes, mut seen) = ([0; GROUP], [None; GROUP]);
            self.prefetch_group(part, &mut hashes);
            let pin = self.engine().epochs.pin()?;
            self.look_up_group(&hashes[..part.len()], &mut seen);
            drop(pin);
            for (i, key) in part.iter().enumerate() {
                run(group * GROUP + i, key.borrow())?;
            }
        }
        Ok(())
    }

    // ---- the store itself ----------------------------------------------------------------------------------------

    /// Changes the memory budget, in bytes, while operations go on. Lowering it evicts before it returns.
    ///
    /// # Errors
    /// `Invalid` below 16 MiB or below what cannot be given back (the index; in memory, everything); `Io`.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.engine().set_budget(bytes)
    }

    /// Figures about this store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Writes everything to the device, so that opening the directory again finds it. Later calls answer `Closed`.
    ///
    /// # Errors
    /// `Io`: not all could be written.
    pub fn close(&self) -> Result<()> {
        self.shared.close()
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Appends `bytes` to the value of `key`, which is made if it does not exist; returns the new length in bytes.
    ///
    /// # Errors
    /// As [`Store::rmw`]; `Invalid` if the value would become too large.
    ///
    /// # Cost
    /// In place while the record has room, which each copy renews by half: amortised O(`bytes`).
    pub fn append(&self, key: &K, bytes: &[u8]) -> Result<usize> {
        Self::check_key(key.bytes())?;
        if let Some(length) = self.append_in_place(key.bytes(), bytes)? {
            return Ok(length);
        }
        let mut length = 0;
        let most = self.engine().value_bytes_max() as usize;
        self.update_owned(key.bytes(), Counter::Append, |old| {
            let old = old.unwrap_or_default();
            length = old.len() + bytes.len();
            let room = if old.is_empty() { length } else { (length + length / 2).min(most.max(length)) };
            Ok(([old, bytes].concat(), room))
        })?;
        Ok(length)
    }

    fn append_in_place(&self, key: &[u8], bytes: &[u8]) -> Result<Option<usize>> {
        let pin = self.engine().epochs.pin()?;
        let (_, found) = self.locate(key, self.hash(key));
        let Found::Memory { at, record } = found else { return Ok(None) };
        if !matches!(self.region(at), Region::Mutable) {
            return Ok(None);
        }
        let latched = record.latch();
        let length = latched.value().len();
        if record.is_sealed() || !record.is_live() || length + bytes.len() > record.capacity() {
            return Ok(None);
        }
        latched.set_value(length, bytes);
        pin.slot.count(Counter::Append, 1);
        Ok(Some(length + bytes.len()))
    }
}

/// What the bytes at an address turned out to be.
enum Examined {
    Value(Vec<u8>),
    Tombstone,
    /// Another key's record; the chain goes on there.
    Next(u64),
    /// The record has this many bytes, more than were read.
    Short(u64),
}

/// A key of a batch that waits for the device.
struct ColdGet {
    key: usize,
    hash: u64,
    seen: Seen,
    at: u64,
    bytes: u64,
}

impl ColdGet {
    fn new(key: usize, hash: u64, seen: Seen, found: &Found) -> Self {
        let at = if let Found::Cold { at } = found { *at } else { 0 };
        Self { key, hash, seen, at, bytes: 0 }
    }
}
