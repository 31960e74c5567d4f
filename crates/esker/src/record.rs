//! Records: what lies in the log.
//!
//! ```text
//! header:  [ flags 16 | previous address 48 ]            the next record of the same index entry, older
//! word:    [ header ][ key, padded to 8 ][ value 8 ]     key of fixed width, value of at most 8 bytes: an atomic
//! bytes:   [ header ][ version 46 | latch 1 | key length 17 ][ capacity 32 | length 32 ][ key, padded ][ value room ]
//! expiry:  one more word at the end of a record with `EXPIRES`: milliseconds since 1970, `NEVER` if it was taken back
//! ```
//! Keys never change once a record is published. A word value is one atomic. A bytes value changes in place only under the record's latch;
//! readers copy it word by word with atomic loads and accept the copy if the version stood still (46 bits do not wrap during one read).
//! `SEALED` is set when the record was superseded, under its latch or by who need not look at what it holds; a word record that is sealed
//! is about to be (`store/expire.rs`). An expiry is one atomic; it stands last, so that no other offset depends on it. A bytes record that
//! is left with little of its room in use is divided: the part behind the value becomes a record of nobody's.

use crate::sync::atomic::{AtomicU64, Ordering::*, fence};
use crate::sync::{Rule, Spins, broken};
use crate::types::Layout;
use crate::words;
use std::ops::Range;

/// No record is shorter.
pub(crate) const RECORD_BYTES_MIN: u64 = 16;
/// The previous record's address in a header.
pub(crate) const ADDRESS_MASK: u64 = (1 << 48) - 1;
/// Never zero, so that a zero header means "no record".
pub(crate) const VALID: u64 = 1 << 48;
/// Made for a line of odd number.
pub(crate) const ODD_LINE: u64 = 1 << 50;
/// Made, but never published: no part of the store.
pub(crate) const ABANDONED: u64 = 1 << 51;
/// Superseded by a newer record; writers look again.
pub(crate) const SEALED: u64 = 1 << 49;
/// There is more to say about the record than its value. The sign, because every read asks for it: what is plain needs no
/// second look.
pub(crate) const SPECIAL: u64 = 1 << 63;
/// The record says: this key is absent.
pub(crate) const ABSENT: u64 = 1 << 62;
/// A special record that says so.
pub(crate) const TOMBSTONE: u64 = SPECIAL | ABSENT;
/// The record has a last word more: the instant from which on its key is absent.
pub(crate) const EXPIRES: u64 = 1 << 60;
/// A special record that has one.
pub(crate) const EXPIRING: u64 = SPECIAL | EXPIRES;
/// A word record that nobody changes in place any more: its value is on its way to a new record.
pub(crate) const LEAVING: u64 = SPECIAL | SEALED;

/// How many more rounds through the log a record may make: a cache counts there, in memory only. Elsewhere it means nothing.
pub(crate) const LIFE: u64 = 1 << 52;
pub(crate) const LIVES_MAX: u64 = 31;
/// What a read while it is old gives a record.
const LIVES_OF_READ: u64 = 16;

/// How many lives the record with this header has.
pub(crate) fn lives_of(header: u64) -> u64 {
    (header / LIFE) & LIVES_MAX
}

/// The flags of a record's copy that has one life less.
pub(crate) fn lives_after(header: u64) -> u64 {
    lives_of(header).saturating_sub(1) * LIFE
}

/// Bits of a header that are never set.
const UNUSED: u64 = 0b1_0111 << 57;

/// The instant of what does not expire, in milliseconds since 1970.
pub(crate) const NEVER: u64 = u64::MAX;

const HEADER_BYTES: u64 = 8;
pub(crate) const BYTES_HEADER_BYTES: u64 = 24;
const KEY_BITS: u64 = (1 << 17) - 1;
const LATCH: u64 = 1 << 17;
const VERSION: u64 = 1 << 18;

/// Records longer than any that can be written: their length is damaged.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Room that a shorter value may leave unused in any case. Under a scheduler values are short: a record of nobody's fits behind.
const UNUSED_BYTES_MIN: usize = if cfg!(shuttle) { 24 } else { 1024 };

/// Room that a copy of a shorter value keeps in any case.
const COPIED_UNUSED_BYTES_MIN: usize = 64;

/// Keys in bytes layout, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 64 << 10;

const fn padded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(8)
}

/// Bytes of a word record with keys of this width.
#[inline(always)]
pub(crate) const fn word_record_bytes(key_bytes: usize) -> u64 {
    HEADER_BYTES + padded(key_bytes) + 8
}

pub(crate) fn bytes_record_bytes(key_bytes: usize, capacity: usize) -> u64 {
    BYTES_HEADER_BYTES + padded(key_bytes) + padded(capacity)
}

/// Bytes that a record with this header has for its expiry.
#[inline(always)]
pub(crate) const fn expiry_bytes(header: u64) -> u64 {
    if header & EXPIRES == 0 { 0 } else { 8 }
}

/// The flags of a record that expires then.
pub(crate) const fn expiry_flags(expires: u64) -> u64 {
    if expires == NEVER { 0 } else { EXPIRING }
}

/// A record in memory.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    at: *mut u8,
}

impl Record {
    /// # Safety
    /// `at` points to a record's bytes, 8-aligned, that stay in memory while the value is used: the caller holds a pin
    /// taken before the address was compared with `head`, or allocated the record itself under a pin.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *mut u8) -> Self {
        Self { at }
    }

    #[inline(always)]
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: `offset` is a multiple of 8 inside the record (callers derive it from the record's own lengths).
        unsafe { &*self.at.add(offset as usize).cast::<AtomicU64>() }
    }

    #[inline(always)]
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        // SAFETY: as `word`, for all of them.
        unsafe { std::slice::from_raw_parts(self.at.add(offset as usize).cast::<AtomicU64>(), count) }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Makes an unpublished record lead to another one than it was made for.
    pub(crate) fn set_previous(&self, address: u64) {
        let header = self.header();
        header.store((header.load(Relaxed) & !ADDRESS_MASK) | address, Release);
    }

    /// The same to one that was found later, when the line of this number was drawn: it may be of that line, and then so is what leads to
    /// it.
    pub(crate) fn lead_to(&self, address: u64, line_flag: u64) {
        let header = self.header();
        header.store((header.load(Relaxed) & !(ADDRESS_MASK | ODD_LINE)) | address | line_flag, Release);
    }

    /// Marks a record that was not published.
    pub(crate) fn abandon(&self) {
        self.header().fetch_or(ABANDONED, Release);
    }

    #[inline(always)]
    pub(crate) fn previous(&self) -> u64 {
        self.header().load(Acquire) & ADDRESS_MASK
    }

    /// True if the record is a value and nothing else.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.header().load(Acquire) as i64 >= 0
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.header().load(Acquire) & SEALED != 0
    }

    /// The key of a word record of this key width.
    #[inline(always)]
    pub(crate) fn word_key(&self, width: usize) -> &[u8] {
        // SAFETY: the key follows the header and never changes after publication.
        unsafe { std::slice::from_raw_parts(self.at.add(HEADER_BYTES as usize), width) }
    }

    /// The key of a word record, if keys have eight bytes: comparing words leaves the key asked for in a register.
    #[inline(always)]
    pub(crate) fn word_key_as_word(&self) -> u64 {
        // SAFETY: as `word_key`; records are 8-aligned.
        unsafe { self.at.add(HEADER_BYTES as usize).cast::<u64>().read() }
    }

    /// Key and value of a word record, if keys have eight bytes: one load less.
    #[inline(always)]
    pub(crate) fn word_pair(&self) -> (u64, u64) {
        // SAFETY: key and value follow the header, and records are 8-aligned.
        unsafe { words::pair::<{ HEADER_BYTES as usize }>(self.at) }
    }

    #[inline(always)]
    pub(crate) fn word_value(&self, key_width: usize) -> &AtomicU64 {
        self.word(HEADER_BYTES + padded(key_width))
    }

    /// When a word record ends, if it has `EXPIRES`.
    pub(crate) fn word_expiry(&self, key_width: usize) -> &AtomicU64 {
        self.word(word_record_bytes(key_width))
    }

    /// When a bytes record ends, if it has `EXPIRES`.
    pub(crate) fn bytes_expiry(&self) -> &AtomicU64 {
        // Acquire: pairs with the Release in `trim`.
        let capacity = self.word(16).load(Acquire) >> 32;
        self.word(self.value_offset() + capacity)
    }

    /// A cache's record was read while it was old: it may stay longer.
    pub(crate) fn give_lives(&self) {
        let header = self.header().load(Relaxed);
        let (lives, most) = (lives_of(header), LIVES_MAX * LIFE);
        if lives < LIVES_MAX {
            // A life more or less is no matter.
            let next = (header & !most) | ((lives + LIVES_OF_READ).min(LIVES_MAX) * LIFE);
            let _ = self.header().compare_exchange(header, next, Relaxed, Relaxed);
        }
    }

    /// All bytes of the record.
    pub(crate) fn bytes(&self, layout: Layout) -> u64 {
        let own = match layout {
            Layout::Word { key_bytes, .. } => word_record_bytes(key_bytes),
            Layout::Bytes => bytes_record_bytes(self.key_len(), self.capacity()),
        };
        own + expiry_bytes(self.header().load(Relaxed))
    }

    /// Nobody changes this mutable word record in place from now on, once those who are at it have gone; false if another thread had the
    /// same idea, or it was deleted meanwhile: then another may take its place.
    pub(crate) fn leave(&self) -> bool {
        self.header().fetch_or(LEAVING, AcqRel) & (SEALED | ABSENT) == 0
    }

    /// Takes [`Record::leave`] back.
    pub(crate) fn stay(&self) {
        self.header().fetch_and(!LEAVING, Release);
    }

    /// Fills a fresh word record; it is published later.
    #[inline(always)]
    pub(crate) fn write_word(&self, key: &[u8], value: u64, previous: u64, flags: u64) {
        // SAFETY: the allocation has room for the key, and nobody else knows the record yet.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), self.at.add(HEADER_BYTES as usize), key.len()) };
        self.word_value(key.len()).store(value, Relaxed);
        self.header().store(previous | flags | VALID, Release);
    }

    /// Fills a fresh bytes record; the value room is zero and is filled by `set_value`. `expires` counts if the flags say so. The version
    /// begins at 0, or where that of the record ended whose place it takes: a transaction may remember one of its own.
    #[inline]
    pub(crate) fn write_bytes(&self, key: &[u8], value: &[u8], capacity: usize, expires: u64, previous: u64, flags: u64) {
        let version = self.word(8).load(Relaxed) & !(LATCH | KEY_BITS);
        self.word(8).store(version | key.len() as u64, Relaxed);
        self.word(16).store(((padded(capacity)) << 32) | value.len() as u64, Relaxed);
        if flags & EXPIRES != 0 {
            self.bytes_expiry().store(expires, Relaxed);
        }
        // SAFETY: the allocation has room for key and capacity >= value, and nobody else knows the record yet.
        unsafe {
            let to = self.at.add(BYTES_HEADER_BYTES as usize);
            std::ptr::copy_nonoverlapping(key.as_ptr(), to, key.len());
            std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(padded(key.len()) as usize), value.len());
        }
        self.header().store(previous | flags | VALID, Release);
    }

    /// Fills a fresh record with a copy of another one's bytes, leading to `previous`; it is published later. Nobody holds its latch,
    /// though damage that no checksum told of may say so. The bytes may lack the room behind the value: then it has none.
    pub(crate) fn write_copy(&self, layout: Layout, bytes: &[u8], previous: u64, flags: u64) {
        let kept = match word_at(bytes, 0) & (ABSENT | EXPIRES) {
            0 => 0,
            some => SPECIAL | some,
        };
        // SAFETY: the allocation has room for all the bytes, and nobody else knows the record yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes[8..].as_ptr(), self.at.add(8), bytes.len() - 8) };
        if matches!(layout, Layout::Bytes) {
            self.word(8).fetch_and(!LATCH, Relaxed);
            let key = padded((word_at(bytes, 8) & KEY_BITS) as usize);
            let capacity = bytes.len() as u64 - BYTES_HEADER_BYTES - key - expiry_bytes(kept);
            self.word(16).store(capacity << 32 | word_at(bytes, 16) & u64::from(u32::MAX), Relaxed);
        }
        self.header().store(previous | kept | flags | VALID, Release);
    }

    #[inline(always)]
    pub(crate) fn key(&self, layout: Layout) -> &[u8] {
        match layout {
            Layout::Word { key_bytes, .. } => self.word_key(key_bytes),
            Layout::Bytes => self.bytes_key(),
        }
    }

    #[inline(always)]
    fn key_len(&self) -> usize {
        (self.word(8).load(Relaxed) & KEY_BITS) as usize
    }

    pub(crate) fn bytes_key(&self) -> &[u8] {
        // SAFETY: as `word_key`; the length never changes.
        unsafe { std::slice::from_raw_parts(self.at.add(BYTES_HEADER_BYTES as usize), self.key_len()) }
    }

    /// True if the key is this one, where keys have this width: a comparison whose length the compiler knows.
    #[inline(always)]
    pub(crate) fn has_key_of(&self, width: usize, key: &[u8]) -> bool {
        // SAFETY: as `word_key`; the length was just compared.
        self.key_len() == width && unsafe { std::slice::from_raw_parts(self.at.add(BYTES_HEADER_BYTES as usize), width) } == &key[..width]
    }

    /// How often a bytes record has changed in place.
    pub(crate) fn version(&self) -> u64 {
        self.word(8).load(Acquire) / VERSION
    }

    pub(crate) fn capacity(&self) -> usize {
        (self.word(16).load(Relaxed) >> 32) as usize
    }

    /// True if a value of this length fits, and does not leave more than half of the room unused, unless that is little.
    #[inline(always)]
    pub(crate) fn suits(&self, length: usize) -> bool {
        // What is too long wraps.
        self.capacity().wrapping_sub(length) <= length + UNUSED_BYTES_MIN
    }

    /// [`wasted_bytes`] of a bytes record in memory.
    pub(crate) fn wasted_bytes(&self) -> u64 {
        wasted_of(self.word(16).load(Relaxed))
    }

    fn value_offset(&self) -> u64 {
        BYTES_HEADER_BYTES + padded(self.key_len())
    }

    /// Copies the value into `into` (cleared first); consistent whatever writers do.
    pub(crate) fn read_value(&self, into: &mut Vec<u8>) {
        let version = self.word(8);
        let mut spins = Spins::default();
        loop {
            // Acquire: pairs with the Release in `unlatch`.
            let before = version.load(Acquire);
            if before & LATCH == 0 {
                self.copy_value(into);
                fence(Acquire);
                if version.load(Relaxed) == before || broken(Rule::VersionStandsStill) {
                    return;
                }
            }
            spins.pause();
        }
    }

    /// Of a bytes record that may have an end: what to compare when its end was judged and its value copied. Each belongs to the other only
    /// if nobody changed one of them meanwhile.
    pub(crate) fn as_found(&self) -> Option<u64> {
        // Acquire: as in `read_value`.
        (!self.is_plain()).then(|| self.word(8).load(Acquire))
    }

    pub(crate) fn is_as_found(&self, found: Option<u64>) -> bool {
        fence(Acquire);
        found.is_none_or(|version| version & LATCH == 0 && self.word(8).load(Relaxed) == version)
    }

    /// Copies the value, if there is room for just all of it and the key has this width, and nobody changes it meanwhile. True if it did.
    #[inline(always)]
    pub(crate) fn read_short(&self, key_width: usize, into: &mut [u8]) -> bool {
        let version = self.word(8);
        // Acquire: as in `read_value`.
        let before = version.load(Acquire);
        if before & (LATCH | KEY_BITS) != key_width as u64 || (self.word(16).load(Relaxed) as u32) as usize != into.len() {
            return false;
        }
        let from = BYTES_HEADER_BYTES + padded(key_width);
        words::read_short(self.words(from, into.len().div_ceil(8)), into);
        fence(Acquire);
        version.load(Relaxed) == before || broken(Rule::VersionStandsStill)
    }

    fn copy_value(&self, into: &mut Vec<u8>) {
        let len = (self.word(16).load(Relaxed) as u32) as usize;
        let from = self.value_offset();
        into.clear();
        words::append(self.words(from, len.div_ceil(8)), into);
        into.truncate(len);
    }

    /// Excludes other writers of this record until the guard goes.
    pub(crate) fn latch(&self) -> Latched {
        let version = self.word(8);
        let mut spins = Spins::default();
        loop {
            let seen = version.load(Relaxed);
            if seen & LATCH == 0 && version.compare_exchange_weak(seen, seen | LATCH, Acquire, Relaxed).is_ok() {
                // Release fence: the latch is visible before any byte that changes under it.
                fence(Release);
                return Latched(*self);
            }
            spins.pause();
        }
    }
}

/// A latched bytes record.
pub(crate) struct Latched(pub(crate) Record);

impl Drop for Latched {
    fn drop(&mut self) {
        let version = self.0.word(8);
        let seen = version.load(Relaxed);
        // Release: the changed bytes are visible to readers that see the new version.
        version.store((seen & !LATCH).wrapping_add(VERSION), Release);
    }
}

impl Latched {
    /// Lets go of the record as it was: whoever read it meanwhile, or before, has read what it holds.
    pub(crate) fn leave_unchanged(self) {
        let version = self.0.word(8);
        version.store(version.load(Relaxed) & !LATCH, Release);
        std::mem::forget(self);
    }

    /// The value; other threads at most read it now.
    pub(crate) fn value(&self) -> &[u8] {
        let len = (self.0.word(16).load(Relaxed) as u32) as usize;
        // SAFETY: inside the record (length <= capacity); writers are excluded by the latch.
        unsafe { std::slice::from_raw_parts(self.0.at.add(self.0.value_offset() as usize), len) }
    }

    /// True if the record is a value and nothing else, and no newer one has taken its place: it may have been otherwise before the latch.
    #[inline(always)]
    pub(crate) fn is_whole_truth(&self) -> bool {
        self.0.header().load(Acquire) & (SPECIAL | SEALED) == 0 || broken(Rule::LatchedLooksAgain)
    }

    /// Replaces the value from byte `from` on. `from + bytes.len() <= capacity`.
    pub(crate) fn set_value(&self, from: usize, bytes: &[u8]) {
        debug_assert!(from + bytes.len() <= self.0.capacity());
        let base = self.0.value_offset();
        let mix = |at: usize, bytes: &[u8]| {
            let (word, skip) = (self.0.word(base + (at & !7) as u64), at % 8);
            let mut mixed = word.load(Relaxed).to_ne_bytes();
            mixed[skip..skip + bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(mixed), Relaxed);
        };
        // Up to a word's beginning, whole words, what is left.
        let (first, rest) = bytes.split_at((from.wrapping_neg() % 8).min(bytes.len()));
        let (whole, last) = rest.split_at(rest.len() / 8 * 8);
        let at = from + first.len();
        if !first.is_empty() {
            mix(from, first);
        }
        if !whole.is_empty() {
            words::write(whole, self.0.words(base + at as u64, whole.len() / 8));
        }
        if !last.is_empty() {
            mix(at + whole.len(), last);
        }
        let lengths = self.0.word(16);
        lengths.store((lengths.load(Relaxed) >> 32 << 32) | (from + bytes.len()) as u64, Relaxed);
    }

    /// Sets the whole value; where it leaves much room unused that becomes a record of nobody's, of so many bytes.
    pub(crate) fn replace_value(&self, bytes: &[u8]) -> u64 {
        let leaves_little = self.0.suits(bytes.len());
        self.set_value(0, bytes);
        if leaves_little { 0 } else { self.trim(bytes.len()) }
    }

    /// Divides the record behind a value of this length. Nobody goes through what is mutable, so nobody stands in the part behind.
    fn trim(&self, length: usize) -> u64 {
        let (header, lengths) = (self.0.header().load(Relaxed), self.0.word(16));
        let room = padded(length);
        let left = self.0.capacity() as u64 - room;
        let expiry = self.0.value_offset() + room;
        // SAFETY: inside the record, of which `left` bytes lie behind this; 8-aligned.
        let nobodys = unsafe { Record::new(self.0.at.add((expiry + expiry_bytes(header)) as usize)) };
        nobodys.word(8).store(0, Relaxed);
        nobodys.write_bytes(&[], &[], (left - BYTES_HEADER_BYTES) as usize, NEVER, 0, ABANDONED | header & ODD_LINE);
        if header & EXPIRES != 0 {
            // Whoever still knows the old length finds it in the old place, the last word of the other record.
            self.0.word(expiry).store(self.0.bytes_expiry().load(Relaxed), Relaxed);
        }
        // Release: the expiry is there for whoever sees the new length.
        lengths.store(room << 32 | length as u64, Release);
        left
    }
}

/// A record's facts, read from bytes that came from the device.
pub(crate) struct ColdRecord<'a> {
    /// What was read of it: all but the room behind its value.
    pub(crate) bytes: &'a [u8],
    pub(crate) header: u64,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) expires: u64,
}

/// When the record in these bytes, which are all of it, ends.
pub(crate) fn expiry_of(record: &[u8]) -> u64 {
    if word_at(record, 0) & EXPIRES == 0 { NEVER } else { word_at(record, record.len() - 8) }
}

pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// How many bytes of a bytes record must be read for its value and its expiry, from its first 24.
pub(crate) fn cold_bytes_record_bytes(record: &[u8]) -> Option<u64> {
    if word_at(record, 0) & EXPIRES != 0 {
        return scanned_bytes_record_bytes(record);
    }
    let bytes = BYTES_HEADER_BYTES + padded((word_at(record, 8) & KEY_BITS) as usize) + padded((word_at(record, 16) as u32) as usize);
    (bytes <= RECORD_BYTES_MAX).then_some(bytes)
}

/// Where a record's key lies. Of a bytes record the header must be there.
pub(crate) fn key_range(layout: Layout, record: &[u8]) -> Range<usize> {
    match layout {
        Layout::Word { key_bytes, .. } => HEADER_BYTES as usize..HEADER_BYTES as usize + key_bytes,
        Layout::Bytes => {
            let from = BYTES_HEADER_BYTES as usize;
            from..from + (word_at(record, 8) & KEY_BITS) as usize
        }
    }
}

/// How many bytes of a record a copy leaves out: room that a longer value has left behind, more than a growing one is given. From its first
/// [`first_bytes`].
pub(crate) fn wasted_bytes(layout: Layout, record: &[u8]) -> u64 {
    if let Layout::Word { .. } = layout { 0 } else { wasted_of(word_at(record, 16)) }
}

fn wasted_of(lengths: u64) -> u64 {
    let (capacity, length) = ((lengths >> 32) as usize, lengths as u32 as usize);
    let is_waste = capacity.saturating_sub(length) > length + COPIED_UNUSED_BYTES_MIN;
    if is_waste { capacity as u64 - padded(length) } else { 0 }
}

/// The same record without those bytes, in `into`.
pub(crate) fn copy_without(wasted: u64, record: &[u8], into: &mut Vec<u8>) {
    let end = record.len() - expiry_bytes(word_at(record, 0)) as usize;
    into.clear();
    into.extend_from_slice(&record[..end - wasted as usize]);
    into.extend_from_slice(&record[end..]);
}

fn scanned_bytes_record_bytes(record: &[u8]) -> Option<u64> {
    let (key, capacity) = (word_at(record, 8) & KEY_BITS, word_at(record, 16) >> 32);
    let fits = key as usize <= KEY_BYTES_MAX && capacity < RECORD_BYTES_MAX && word_at(record, 16) as u32 as u64 <= capacity;
    fits.then(|| BYTES_HEADER_BYTES + padded(key as usize) + padded(capacity as usize) + expiry_bytes(word_at(record, 0)))
}

/// How much of the log a record takes, from its first [`first_bytes`]; `None` if that cannot be.
pub(crate) fn scanned_record_bytes(layout: Layout, record: &[u8]) -> Option<u64> {
    match layout {
        Layout::Word { key_bytes, .. } => Some(word_record_bytes(key_bytes) + expiry_bytes(word_at(record, 0))),
        Layout::Bytes => scanned_bytes_record_bytes(record),
    }
}

/// How much of the log a record takes if these bytes, which may go on behind it, look like one in all that its format says.
pub(crate) fn looks_whole(layout: Layout, bytes: &[u8]) -> Option<u64> {
    let is_zero = |range: Range<usize>| bytes.get(range).is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0));
    let header = word_at(bytes, 0);
    let is_special = header & (ABSENT | EXPIRES) != 0;
    let has_fitting_bits =
        header & VALID != 0 && header & UNUSED == 0 && (header & SPECIAL != 0 || !is_special) && header.is_multiple_of(8);
    if bytes.len() < first_bytes(layout) as usize || !has_fitting_bits {
        return None;
    }
    let key = key_range(layout, bytes);
    let value = key.end.next_multiple_of(8);
    let fits = match layout {
        Layout::Word { value_bytes, .. } => is_zero(value + value_bytes..value + 8),
        Layout::Bytes => word_at(bytes, 8) & LATCH == 0 && (word_at(bytes, 16) >> 32).is_multiple_of(8),
    };
    if fits && is_zero(key.end..value) { scanned_record_bytes(layout, bytes) } else { None }
}

/// How many bytes of a record tell how many it has.
pub(crate) fn first_bytes(layout: Layout) -> u64 {
    match layout {
        Layout::Word { key_bytes, .. } => word_record_bytes(key_bytes),
        Layout::Bytes => BYTES_HEADER_BYTES,
    }
}

/// What the bytes of a record say, which are all of it but, perhaps, the room behind its value; `None` if they are too few.
pub(crate) fn parse(layout: Layout, bytes: &[u8]) -> Option<ColdRecord<'_>> {
    match layout {
        Layout::Word { key_bytes, value_bytes } => {
            let record = parse_word(bytes, key_bytes);
            Some(ColdRecord { value: &record.value[..value_bytes], ..record })
        }
        Layout::Bytes => parse_bytes(bytes),
    }
}

pub(crate) fn parse_word(bytes: &[u8], key_width: usize) -> ColdRecord<'_> {
    let key = &bytes[8..8 + key_width];
    ColdRecord { bytes, header: word_at(bytes, 0), key, value: &bytes[8 + padded(key_width) as usize..], expires: expiry_of(bytes) }
}

pub(crate) fn parse_bytes(bytes: &[u8]) -> Option<ColdRecord<'_>> {
    let key_len = (word_at(bytes, 8) & KEY_BITS) as usize;
    let value_len = (word_at(bytes, 16) as u32) as usize;
    let from = BYTES_HEADER_BYTES as usize;
    let value = from + padded(key_len) as usize;
    Some(ColdRecord {
        bytes,
        header: word_at(bytes, 0),
        key: bytes.get(from..from + key_len)?,
        value: bytes.get(value..value + value_len)?,
        expires: expiry_of(bytes),
    })
}
