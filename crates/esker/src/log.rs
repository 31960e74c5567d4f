//! The hybrid log: one address space, three regions.
//!
//! ```text
//! 0 ..... begin ........ head ........ read_only ........ tail
//! |       | on the device | in memory, frozen | in memory, mutable |
//! ```
//! `near` lies at `head`, in a cache above it. On a device head <= flushed_until <= safe_read_only <= read_only, and each only grows;
//! `begin` may pass `head` where compaction went on in memory; `read_only` is [`NOWHERE`] while a line is drawn (`commit.rs`): then nothing
//! at all is changed in place. What begins below `head` is on the device to its end ([`Log::overlap_bytes`]).
//!
//! * **Memory** is one region; the byte of address `a` is at `a mod region`. Only from `evicted` to `tail`, or to `populated` if that is
//!   more, is it backed, so the budget can be any number and can change: it is a matter of where `head` goes. The log goes round in it
//!   every 64 GiB to 4 TiB, by the machine (`memory.rs`).
//! * **Allocation**: a thread takes a piece of the tail (up to 64 KiB, whole blocks) and fills it alone. What it leaves is zero, and
//!   a zero header means: nothing more up to the next block. A thread leaves its piece when `floor` has passed its cursor.
//! * **The first records after that** a thread claims one by one, of just their length, behind those of others: no gap is left
//!   between them, so threads that each commit one record share a block, where a block for each of 64 threads was written before.
//!   Whoever claims a place there writes a header, come what may, or what lies behind would seem to be a gap.
//! * **Boundaries** between the regions are moved by whoever holds their lock (`engine/room.rs`; mostly the driver), those of what was
//!   copied by the one who compacts, each in two steps: move it, drain the epoch, then act. So a pinned thread may write what it saw at or
//!   above `read_only` and read what it saw at or above `head`.
//! * **On the device** a block of 4080 payload bytes has a 16-byte trailer: its number and a checksum keyed by the store,
//!   so that stale and misdirected sectors show. 4080 = 170 x 24: no pair of u64 straddles two blocks.

use crate::FUZZED;
use crate::bell::Bell;
use crate::device::{AlignedBuffer, Device, DeviceRead, LOG, SECTOR_BYTES};
use crate::epoch::{Counter, Slot};
use crate::error::{Error, Result};
use crate::memory::{Region, ahead, prefetch};
use crate::record::ODD_LINE;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, Rule, broken, lock};
use crate::windows::{WINDOW_BYTES, Windows};
use crate::words;
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) mod chain;
pub(crate) mod holes;
mod reserve;

use holes::Holes;
use reserve::Longest;

/// Payload bytes of a block. In models a record without key bytes.
pub(crate) const BLOCK_BYTES: u64 = if cfg!(loom) { 16 } else { 4080 };
const TRAILER_BYTES: usize = 16;
/// With the number of a block that ends with a line record (`lines.rs`).
pub(crate) const LINE_END: u64 = 1 << 63;
const _: () = assert!(cfg!(loom) || BLOCK_BYTES as usize + TRAILER_BYTES == SECTOR_BYTES);

pub(crate) const PIECE_BYTES: u64 = if cfg!(loom) { 4 } else { 16 } * BLOCK_BYTES;
/// So many bytes of records a thread claims one by one before it takes a piece. In models it takes one of several records at
/// once, or there would be nothing to leave.
const SINGLY_BYTES: u64 = if cfg!(loom) { 0 } else { BLOCK_BYTES / 4 };
const FIRST_PIECE_BYTES: u64 = if cfg!(loom) { PIECE_BYTES } else { BLOCK_BYTES };
/// Records above this get an extent of their own: at most a quarter of a piece is left unused.
const PIECE_RECORD_MAX: u64 = PIECE_BYTES / 4;
/// The log begins in small pages.
const SMALL_PAGE_BYTES: usize = 4 << 20;
/// Above every address.
pub(crate) const NOWHERE: u64 = u64::MAX;
/// Blocks written by one call.
const FLUSH_BLOCKS: u64 = 128;

/// The first address: block 0 stays empty, so that 0 can mean "none".
pub(crate) const FIRST_ADDRESS: u64 = BLOCK_BYTES;
/// Records end here: an entry has 48 bits for an address. Behind it there are blocks for the ends of lines, as many as anybody will draw,
/// and room for those who can neither wait nor go back.
pub(crate) const LAST_ADDRESS: u64 = (1 << 48) - (1 << 30);
/// No line ends beyond.
pub(crate) const LAST_CUT: u64 = 1 << 48;
/// Of a log whose device is as large as need be.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

pub(crate) struct Log {
    region: Region,
    mask: u64,
    /// The same for records, all of which begin at a word.
    word_mask: u64,
    pub(crate) windows: Windows,
    pub(crate) bounds: Bounds,
    /// Bytes of `[evicted, tail)` that may be backed.
    pub(crate) budget: AtomicU64,
    /// A cache's tail goes no further: its device has room for no more.
    pub(crate) limit: AtomicU64,
    /// Bytes that were left unused at the ends of blocks: dead, like the rest of a piece.
    pub(crate) left_bytes: AtomicU64,
    longest: Longest,
    pub(crate) holes: Holes,
    /// What was left empty last at the region's end, in memory: it ends here, and is so long. Nobody touches it: it takes no memory. (None of
    /// `sync.rs`: models do not go round, and each look would be one more place at which they change threads.)
    skipped_until: std::sync::atomic::AtomicU64,
    skipped_bytes: std::sync::atomic::AtomicU64,
    /// Bytes above the budget that compaction may take: it needs room before it makes room.
    pub(crate) reserve: AtomicU64,
    /// What was held when the budget was lowered, if that was more than it leaves; else 0. (None of `sync.rs`: a number that others go by.)
    lowered: std::sync::atomic::AtomicU64,
    /// A cache, which drops a record that there is no room to copy.
    is_lossy: bool,
    pub(crate) bell: Bell,
    pub(crate) device: Option<Arc<dyn Device>>,
    /// Whether records that calls read from there are checked.
    pub(crate) verifies_reads: bool,
    store_id: u64,
    /// What blocks are made ready for the device in, by whoever moves the boundaries: kept, for its pages cost more than what is done with
    /// them.
    sealed: Mutex<Option<AlignedBuffer>>,
}

/// What a place in the log is for.
#[derive(Clone, Copy)]
enum Purpose {
    Call,
    /// In the place of as much, which dies.
    Replacement,
    /// A copy of compaction's: from the reserve, if need be.
    Copy,
    /// A piece for short copies: of what the copy of the longest record needs it takes nothing, for the thread keeps what is left of it.
    Copies,
    /// Whatever the budget.
    Anyway,
}

/// The boundaries, on lines of their own: what every operation reads lies on the first one.
#[repr(align(128))]
pub(crate) struct Bounds {
    pub(crate) begin: AtomicU64,
    /// What lives below was copied above, and what is still there is dead, whatever leads to it. `compacted` follows when nobody
    /// holds what lies below.
    pub(crate) copied: AtomicU64,
    /// In a cache: what lives below goes, for all at once when `copied` follows, and nothing is built on it any more.
    pub(crate) dropping: AtomicU64,
    /// In a cache on a device: of what lies below some may be gone from the index. A crash brings it back, until a line says that the log
    /// begins there.
    pub(crate) doomed: AtomicU64,
    pub(crate) head: AtomicU64,
    /// Fast reads end here: at `head`, but in a cache further up, where reads begin to count (`cache/`).
    near: AtomicU64,
    /// Fast changes end here: at the higher one of `near` and `read_only`, so that one look tells of both.
    in_place: AtomicU64,
    read_only: AtomicU64,
    pub(crate) safe_read_only: AtomicU64,
    pub(crate) flushed_until: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) populated: AtomicU64,
    /// Records are made at or above it: what lies below is on its way to the device.
    pub(crate) floor: AtomicU64,
    /// The number of the line that records belong to.
    pub(crate) line: AtomicU64,
    /// Nobody needs what lies below: `begin` moves here with the next durable line.
    pub(crate) compacted: AtomicU64,
    /// What lies below has been given back to the device: a little after `begin` moved.
    pub(crate) discarded: AtomicU64,
    /// Where the last durable line ended, and where the last one of any kind did.
    pub(crate) cut: AtomicU64,
    pub(crate) drawn: AtomicU64,
    /// All records below that count are part of the last durable line.
    pub(crate) durable: AtomicU64,
    /// Records below are kept reachable for a snapshot (`snapshot.rs`): 0 without one, [`NOWHERE`] while one is drawn.
    pub(crate) held: AtomicU64,
    /// Held while what `in_place` is made of moves. Of the two only `near` always grows: made of what they were a while ago, it could lie
    /// below `near`.
    moving: Mutex<()>,
    pub(crate) tail: Tail,
}

impl Bounds {
    /// True while compaction has left something behind that was not given back: the log may begin below it for all who open it.
    pub(crate) fn is_held_back(&self) -> bool {
        self.copied.load(Acquire) != self.compacted.load(Acquire)
    }

    #[inline(always)]
    pub(crate) fn near(&self) -> u64 {
        self.near.load(Acquire)
    }

    #[inline(always)]
    pub(crate) fn in_place(&self) -> u64 {
        self.in_place.load(Acquire)
    }

    #[inline(always)]
    pub(crate) fn read_only(&self) -> u64 {
        self.read_only.load(Acquire)
    }

    /// Nobody who comes after this reads below `to` without a second look, nor changes anything there.
    pub(crate) fn raise_near(&self, to: u64) {
        let _moving = self.move_in_place();
        self.near.fetch_max(to, SeqCst);
        self.in_place.fetch_max(to, SeqCst);
    }

    /// Nobody who comes after this changes anything in place below `to`, which may be [`NOWHERE`].
    pub(crate) fn set_read_only(&self, to: u64) {
        let _moving = self.move_in_place();
        self.read_only.store(to, SeqCst);
        self.in_place.store(to.max(self.near()), SeqCst);
    }

    fn move_in_place(&self) -> Option<MutexGuard<'_, ()>> {
        (!broken(Rule::OneMovesInPlace)).then(|| lock(&self.moving))
    }
}

#[repr(align(128))]
pub(crate) struct Tail(pub(crate) AtomicU64);

/// The least address space of a log, in bytes.
const SPACE_BYTES_MIN: usize = 1 << 28;

impl Log {
    /// `space`: the address space that it should have, in bytes, a power of two.
    pub(crate) fn new(device: Option<Arc<dyn Device>>, store_id: u64, space: usize, huge_pages: bool) -> Result<Self> {
        let region = Region::reserve(space, SPACE_BYTES_MIN)?;
        if huge_pages {
            region.prefer_huge_pages(SMALL_PAGE_BYTES);
        }
        let at = || AtomicU64::new(FIRST_ADDRESS);
        Ok(Self {
            mask: region.bytes() as u64 - 1,
            word_mask: region.bytes() as u64 - 8,
            windows: Windows::new(region.bytes() as u64)?,
            region,
            bounds: Bounds {
                begin: at(),
                copied: at(),
                dropping: at(),
                doomed: AtomicU64::new(0),
                discarded: at(),
                head: at(),
                near: at(),
                in_place: at(),
                read_only: at(),
                safe_read_only: at(),
                flushed_until: at(),
                evicted: at(),
                populated: at(),
                floor: at(),
                line: AtomicU64::new(0),
                compacted: at(),
                cut: at(),
                drawn: at(),
                durable: at(),
                held: AtomicU64::new(0),
                moving: Mutex::new(()),
                tail: Tail(at()),
            },
            budget: AtomicU64::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            left_bytes: AtomicU64::new(0),
            longest: Longest::new(FIRST_ADDRESS),
            holes: Holes::new(false),
            skipped_until: std::sync::atomic::AtomicU64::new(0),
            skipped_bytes: std::sync::atomic::AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            lowered: std::sync::atomic::AtomicU64::new(0),
            is_lossy: false,
            bell: Bell::default(),
            device,
            verifies_reads: true,
            store_id,
            sealed: Mutex::new(None),
        })
    }

    pub(crate) fn verifying_reads(self, verifies_reads: bool) -> Self {
        Self { verifies_reads, ..self }
    }

    pub(crate) fn dropping(self, is_lossy: bool) -> Self {
        Self { is_lossy, ..self }
    }

    /// Whether new records take the places of deleted ones: in a log in memory that nothing drops from.
    pub(crate) fn filling_holes(self, are_filled: bool) -> Self {
        Self { holes: Holes::new(are_filled), ..self }
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        self.mask + 1
    }

    /// Goes on at `tail`, with everything below on the device. Before anyone else knows the log.
    pub(crate) fn start_at(&self, tail: u64, line: u64, cut: u64) {
        let bounds = &self.bounds;
        let all = [
            &bounds.head,
            &bounds.near,
            &bounds.in_place,
            &bounds.read_only,
            &bounds.safe_read_only,
            &bounds.flushed_until,
            &bounds.evicted,
            &bounds.populated,
        ];
        all.into_iter().chain([&bounds.floor, &bounds.tail.0]).for_each(|bound| bound.store(tail, Relaxed));
        bounds.line.store(line, Relaxed);
        bounds.cut.store(cut, Relaxed);
        bounds.drawn.store(cut, Relaxed);
        bounds.durable.store(cut, Relaxed);
    }

    /// The log begins at `begin`. Before anyone else knows it.
    pub(crate) fn begin_at(&self, begin: u64) {
        self.bounds.begin.store(begin, Relaxed);
        self.bounds.discarded.store(begin, Relaxed);
        self.bounds.copied.store(begin, Relaxed);
        self.bounds.compacted.store(begin, Relaxed);
    }

    /// Appends the bytes of a stretch of records, which nobody writes any more, but for the reads that a cache counts in headers: hence
    /// word by word. At or above `head`, under a pin or as the one who compacts a log in memory.
    pub(crate) fn append_frozen(&self, stretch: std::ops::Range<u64>, bytes: &mut Vec<u8>) {
        let mut from = stretch.start;
        while from < stretch.end {
            // At most to the region's end.
            let count = (stretch.end - from).min(self.mask + 1 - (from & self.mask));
            // SAFETY: as the caller says in memory. Records begin and end at multiples of 8.
            let words = unsafe { std::slice::from_raw_parts(self.pointer(from).cast::<AtomicU64>(), count as usize / 8) };
            words::append(words, bytes);
            from += count;
        }
    }

    /// Where the word that `address` lies in is, if it is in memory at all.
    #[inline(always)]
    pub(crate) fn pointer(&self, address: u64) -> *mut u8 {
        // SAFETY: the mask keeps the offset inside the region.
        unsafe { self.region.base().add((address & self.word_mask) as usize) }
    }

    /// Starts fetching the record at `address`, if it is in memory: three words of it, which may lie across two lines.
    #[inline(always)]
    pub(crate) fn prefetch(&self, address: u64) {
        self.prefetch_words(address, 3);
    }

    /// The same of more words, a line at most.
    #[inline(always)]
    pub(crate) fn prefetch_words(&self, address: u64, words: usize) {
        let at = self.pointer(address);
        prefetch(at);
        prefetch(at.wrapping_add(8 * words - 1));
    }

    /// True if no record is at `address` any more, or none ever was: a chain that leads there ends.
    pub(crate) fn is_gone(&self, address: u64) -> bool {
        address < self.bounds.begin.load(Acquire)
    }

    pub(crate) fn tail(&self) -> u64 {
        self.bounds.tail.0.load(Acquire)
    }

    /// `bytes` (a multiple of 8) of fresh, zeroed, mutable log for the pinned thread that owns `slot`; `None` when
    /// memory must be made first.
    #[inline(always)]
    pub(crate) fn allocate(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        let cursor = slot.cursor.load(Relaxed);
        if cursor + bytes <= slot.end.load(Relaxed) && (cursor >= self.bounds.floor.load(Acquire) || broken(Rule::PieceEndsAtReadOnly)) {
            slot.cursor.store(cursor + bytes, Relaxed);
            return Some(cursor);
        }
        self.allocate_piece(slot, bytes, Purpose::Call)
    }

    /// Where [`Log::allocate`] had none, for what kills as much, or deletes: in a full store in memory.
    pub(crate) fn allocate_replacement(&self, bytes: u64) -> Option<u64> {
        let is_single = self.device.is_none() && !self.is_lossy && bytes <= PIECE_RECORD_MAX;
        if is_single { self.claim(bytes, 1, Purpose::Replacement) } else { None }
    }

    /// As [`Log::allocate`], for a copy that compaction makes.
    pub(crate) fn allocate_from_reserve(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        let is_short = self.device.is_none() && bytes <= PIECE_RECORD_MAX;
        // Other threads may have all that is left in their pieces. One by one copies take no more than goes with their stretch.
        let claim_one = || if is_short { self.claim(bytes, 1, Purpose::Copy) } else { None };
        let purpose = if is_short { Purpose::Copies } else { Purpose::Copy };
        self.allocate(slot, bytes).or_else(|| self.allocate_piece(slot, bytes, purpose)).or_else(claim_one)
    }

    /// As [`Log::allocate`], over the budget if need be: for who can neither wait nor go back.
    #[cold]
    pub(crate) fn allocate_anyway(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        self.allocate(slot, bytes).or_else(|| self.allocate_piece(slot, bytes, Purpose::Anyway))
    }

    /// So far above `head` may end what begins below it and is read from the device at once: a record, or what a scan reads from somewhere
    /// in one window to somewhere in the next.
    pub(crate) fn overlap_bytes(&self) -> u64 {
        2 * WINDOW_BYTES + self.longest.bytes() + 2 * BLOCK_BYTES
    }

    /// The most that a record of so many bytes takes of the log, with what it leaves unused: of each piece up to a quarter, and the
    /// rest of the block before it.
    pub(crate) fn room_of(bytes: u64) -> u64 {
        if bytes > PIECE_RECORD_MAX { bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES } else { bytes + bytes / 2 }
    }

    /// What a record of so many bytes takes of the log in the mean, if all are as long: with its part of what a piece has left for no
    /// other.
    pub(crate) fn share_of(bytes: u64) -> u64 {
        if bytes > PIECE_RECORD_MAX { bytes.next_multiple_of(BLOCK_BYTES) } else { PIECE_BYTES / (PIECE_BYTES / bytes.max(8)) }
    }

    /// After a line records are claimed one by one at first, then in pieces each twice as long as what came before: a commit
    /// for every write must not fill the log with what it leaves unused.
    #[cold]
    #[inline(never)]
    fn allocate_piece(&self, slot: &Slot, bytes: u64, purpose: Purpose) -> Option<u64> {
        if bytes > PIECE_RECORD_MAX {
            return self.allocate_long(slot, bytes, purpose);
        }
        let was_full = slot.cursor.load(Relaxed) >= self.bounds.floor.load(Acquire);
        let before = if was_full { slot.piece_bytes.load(Relaxed) } else { 0 };
        let is_single = SINGLY_BYTES > 0 && (before == 0 || before + bytes <= SINGLY_BYTES);
        let longer = (before * 2).max(bytes).next_multiple_of(BLOCK_BYTES).clamp(FIRST_PIECE_BYTES, PIECE_BYTES);
        let (piece, align) = if is_single { (bytes, 1) } else { (longer, BLOCK_BYTES) };
        let at = self.claim(piece, align, purpose)?;
        // What is left of the last one is dead. With many lines that is more than all that is written.
        slot.count(Counter::DeadByte, slot.unfilled_bytes());
        slot.piece_bytes.store(if is_single { before + bytes } else { piece }, Relaxed);
        slot.cursor.store(at + bytes, Relaxed);
        slot.end.store(at + piece, Relaxed);
        Some(at)
    }

    fn allocate_long(&self, slot: &Slot, bytes: u64, purpose: Purpose) -> Option<u64> {
        let taken = bytes.next_multiple_of(BLOCK_BYTES);
        let lacking = if let Purpose::Call = purpose { self.reserve_lacking(bytes) } else { 0 };
        // Before it is noted: a record that is refused takes no room from others.
        if lacking > 0 && self.held_with(taken + BLOCK_BYTES + lacking) > self.budget.load(Relaxed) {
            return None;
        }
        let is_longest = bytes > self.longest.bytes();
        self.longest.note(bytes);
        let at = self.claim(taken, BLOCK_BYTES, purpose);
        self.longest.note(bytes);
        match at {
            Some(_) => slot.count(Counter::DeadByte, taken - bytes),
            None if is_longest => self.note_gone(bytes),
            None => {}
        }
        at
    }

    fn held_with(&self, bytes: u64) -> u64 {
        self.held_bytes() + bytes
    }

    /// What of the log is in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        // In this order: what is evicted while we are here lies below the tail of then.
        let evicted = self.bounds.evicted.load(Acquire);
        self.held_between(evicted, self.tail())
    }

    fn held_between(&self, evicted: u64, to: u64) -> u64 {
        let until = self.skipped_until.load(Acquire);
        let skipped = if evicted < until && until <= to { (until - evicted).min(self.skipped_bytes.load(Relaxed)) } else { 0 };
        to.saturating_sub(evicted).saturating_sub(skipped)
    }

    /// So many bytes up to there stay empty. Once in a lap, by whoever moved the tail across them: until it is known some may find no room.
    fn note_skipped(&self, bytes: u64, until: u64) {
        // What lies on a device makes room when it is evicted.
        if self.device.is_none() {
            self.skipped_bytes.store(bytes, Relaxed);
            self.skipped_until.store(until, Release);
        }
    }

    /// The flag that records of the current line carry. Ask after the record's place was taken (`commit.rs`).
    #[inline(always)]
    pub(crate) fn line_flag(&self) -> u64 {
        line_flag(self.bounds.line.load(Acquire))
    }

    /// `bytes` of the tail, from a multiple of `align` on.
    fn claim(&self, bytes: u64, align: u64, purpose: Purpose) -> Option<u64> {
        loop {
            let tail = self.tail();
            let at = tail.next_multiple_of(align);
            let to = at + bytes;
            let is_over_limit = matches!(purpose, Purpose::Call) && to > self.limit.load(Relaxed);
            let is_over_end = !matches!(purpose, Purpose::Anyway) && to > LAST_ADDRESS;
            let held = self.held_between(self.bounds.evicted.load(Acquire), to);
            if is_over_limit || is_over_end || held > self.most_for(purpose) {
                return None;
            }
            // The last block that it reaches into must lie before the region's end as a whole.
            let wraps = (at & self.mask) + (block_ceil(to) - at) > self.mask + 1;
            // At the region's end the rest of it stays empty; the next piece starts behind the block that straddles it.
            let to = if wraps { (tail | self.mask).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES } else { to };
            if broken(Rule::TailIsClaimed) {
                self.bounds.tail.0.store(to, Release);
                return Some(at);
            }
            if self.bounds.tail.0.compare_exchange(tail, to, AcqRel, Relaxed).is_ok() {
                self.leave(if wraps { to - tail } else { at - tail });
                if wraps {
                    // But for what was backed ahead.
                    self.note_skipped(to - self.bounds.populated.load(Relaxed).clamp(tail, to), to);
                    // Nothing begins there, and scans that divide the log need not read across.
                    self.windows.note_start(tail);
                    continue;
                }
                self.windows.note_start(at);
                self.bell.ring_at(held);
                return Some(at);
            }
        }
    }

    /// So much of the log may be in memory when a place for this is taken. Of whoever claims after a long record has its place all know of
    /// it.
    fn most_for(&self, purpose: Purpose) -> u64 {
        let budget = self.budget.load(Relaxed);
        match purpose {
            Purpose::Call => budget.saturating_sub(self.reserve_lacking(0)),
            Purpose::Replacement => self.overdrawn().end.saturating_sub(self.reserve_lacking(0)),
            Purpose::Copy => budget + self.reserve.load(Relaxed),
            Purpose::Copies => budget + self.reserve_for_short(),
            Purpose::Anyway => u64::MAX,
        }
    }

    /// What is left for those who put something in the place of as much: others have no more.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.most_for(Purpose::Replacement).saturating_sub(self.held_bytes())
    }

    /// As [`Log::end_block`], with room for so many words at the end and, lest they look like a record, a zero before them: where the
    /// tail was, and where it is. `None` if there is no room.
    pub(crate) fn end_line(&self, words: usize) -> Option<(u64, u64)> {
        loop {
            let tail = self.tail();
            let end = block_ceil(tail);
            let fits = end - tail >= words as u64 * 8 + 8;
            // Or in a block of its own, unless that would lie across the region's end.
            let to = if fits { end } else { end + BLOCK_BYTES };
            if cfg!(loom) || ((to - BLOCK_BYTES) & self.mask) + BLOCK_BYTES > self.mask + 1 {
                return None;
            }
            if self.bounds.tail.0.compare_exchange(tail, to, AcqRel, Acquire).is_ok() {
                self.leave(to - tail);
                return Some((tail, to));
            }
        }
    }

    /// Writes what a line tells of itself into the room before its cut.
    pub(crate) fn tell_line(&self, cut: u64, words: &[u64]) {
        let at = self.pointer(cut - words.len() as u64 * 8).cast::<AtomicU64>();
        for (i, word) in words.iter().enumerate() {
            // SAFETY: `end_line` left this room, in one block, to us alone; scans read the block word by word.
            unsafe { &*at.add(i) }.store(word.to_le(), Relaxed);
        }
    }

    /// Moves the tail to the end of its block, what is left of which stays empty, and tells where it is. A read-modify-write in
    /// any case: whoever claims a place above does it after this, and sees what we did before.
    pub(crate) fn end_block(&self) -> u64 {
        let mut tail = self.tail();
        while let Err(now) = self.bounds.tail.0.compare_exchange(tail, block_ceil(tail), AcqRel, Acquire) {
            tail = now;
        }
        self.leave(block_ceil(tail) - tail);
        block_ceil(tail)
    }

    fn leave(&self, bytes: u64) {
        if bytes > 0 {
            self.left_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Backs the memory just above the tail, so that operations do not pay the page faults.
    pub(crate) fn populate_ahead(&self) {
        let tail = self.tail();
        let held = tail.saturating_sub(self.bounds.evicted.load(Relaxed));
        let bytes = ahead(held, 2 << 20).min(self.budget.load(Relaxed) / 16);
        let from = self.bounds.populated.load(Relaxed).max(tail);
        let to = (tail + bytes).min(self.bounds.evicted.load(Acquire) + self.budget.load(Relaxed));
        if from + bytes / 2 < to && (from & self.mask) < (to & self.mask) {
            // Before: whoever lowers the budget meanwhile sees that it is spent.
            self.bounds.populated.fetch_max(to, Relaxed);
            self.region.populate((from & self.mask) as usize, (to & self.mask) as usize);
        }
    }

    /// What is backed above the tail.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.bounds.populated.load(Relaxed).saturating_sub(self.tail())
    }

    /// Gives the memory below `to` back. Only when nobody can be reading there any more.
    pub(crate) fn release_below(&self, to: u64) {
        let from = self.bounds.evicted.load(Relaxed);
        let (a, b) = ((from & self.mask) as usize, (to & self.mask) as usize);
        // The page that holds the start of `from` was kept by the call before; it goes with this one.
        if a <= b {
            self.region.release(a & !4095, b);
        } else {
            self.region.release(a & !4095, self.region.bytes());
            self.region.release(0, b);
        }
        self.windows.forget(from, to);
        self.bounds.evicted.store(to, Release);
        self.longest.forget_below(to, self.tail());
    }

    /// Writes the frozen blocks `[from, to)` to the device; the last one ends with a line record, or not. How far it came, and what stopped
    /// it: what is written another time is the same, but for that end.
    pub(crate) fn flush(&self, from: u64, to: u64, ends_line: bool) -> (u64, Result<()>) {
        let Some(device) = &self.device else { return (to, Ok(())) };
        let (mut block, end) = (from / BLOCK_BYTES, to / BLOCK_BYTES);
        let mut sealed = lock(&self.sealed);
        let buffer = sealed.get_or_insert_with(|| AlignedBuffer::new(FLUSH_BLOCKS as usize));
        while block < end {
            let count = FLUSH_BLOCKS.min(end - block);
            for i in 0..count {
                let flag = if ends_line && block + i + 1 == end { LINE_END } else { 0 };
                self.seal_block(block + i, flag, buffer.sector_mut(i as usize));
            }
            if let Err(error) = device.write(block * SECTOR_BYTES as u64, &buffer.bytes()[..count as usize * SECTOR_BYTES]) {
                return (block * BLOCK_BYTES, Err(error.into()));
            }
            block += count;
        }
        (to, Ok(()))
    }

    /// All of the sector is written.
    fn seal_block(&self, block: u64, flag: u64, sector: &mut [u8; SECTOR_BYTES]) {
        let (payload, trailer) = sector.split_at_mut(BLOCK_BYTES as usize);
        let start = block * BLOCK_BYTES;
        if (start & self.mask) + BLOCK_BYTES <= self.mask + 1 {
            // SAFETY: `[start, start + 4080)` is below `safe_read_only` and not evicted: in memory, and nobody writes it.
            let frozen = unsafe { std::slice::from_raw_parts(self.pointer(start), BLOCK_BYTES as usize) };
            payload.copy_from_slice(frozen);
        } else {
            payload.fill(0);
        }
        trailer[..8].copy_from_slice(&(block | flag).to_le_bytes());
        trailer[8..].copy_from_slice(&checksum(self.store_id, payload, block | flag).to_le_bytes());
    }

    /// Where cold bytes are. Must not be read from under a pin.
    pub(crate) fn cold_device(&self) -> Result<&dyn Device> {
        self.device.as_deref().ok_or_else(|| Error::corruption("an address below the head of a log in memory"))
    }

    /// What a block holds, if its trailer says so.
    pub(crate) fn verify_block<'s>(&self, block: u64, sector: &'s [u8]) -> Result<&'s [u8]> {
        open_block(self.store_id, block, sector).map(|(payload, _)| payload)
    }

    /// The read that brings the cold bytes `[at, at + bytes)`.
    pub(crate) fn cold_read(at: u64, bytes: u64, token: u64) -> DeviceRead {
        let (first, end) = (at / BLOCK_BYTES, (at + bytes).div_ceil(BLOCK_BYTES));
        DeviceRead::new(first * SECTOR_BYTES as u64, (end - first) as usize, token)
    }

    /// Verifies what [`Log::cold_read`] brought. In place: one block, as nearly always, is not copied.
    pub(crate) fn open_blocks<'r>(&self, read: &'r mut DeviceRead) -> Result<ColdBytes<'r>> {
        let first = read.offset() / SECTOR_BYTES as u64;
        for (block, sector) in (first..).zip(read.bytes().chunks_exact(SECTOR_BYTES)) {
            self.verify_block(block, sector)?;
        }
        Ok(Self::join_blocks(read))
    }

    /// The same for one block of a longer read.
    pub(crate) fn open_one<'r>(&self, block: u64, sector: &'r [u8]) -> Result<ColdBytes<'r>> {
        Ok(ColdBytes { start: block * BLOCK_BYTES, bytes: self.verify_block(block, sector)? })
    }

    /// The same for some of its blocks, whose payload is put together.
    pub(crate) fn open_joined<'r>(&self, first: u64, sectors: &[u8], joined: &'r mut Vec<u8>) -> Result<ColdBytes<'r>> {
        joined.clear();
        for (block, sector) in (first..).zip(sectors.chunks_exact(SECTOR_BYTES)) {
            joined.extend_from_slice(self.verify_block(block, sector)?);
        }
        Ok(ColdBytes { start: first * BLOCK_BYTES, bytes: joined })
    }

    /// The same for a call's own reads, which need not be verified if the caller said so.
    pub(crate) fn open_record<'r>(&self, read: &'r mut DeviceRead) -> Result<ColdBytes<'r>> {
        if self.verifies_reads { self.open_blocks(read) } else { Ok(Self::join_blocks(read)) }
    }

    /// Moves what the blocks hold together.
    fn join_blocks(read: &mut DeviceRead) -> ColdBytes<'_> {
        let first = read.offset() / SECTOR_BYTES as u64;
        let sectors = read.bytes_mut();
        let count = sectors.len() / SECTOR_BYTES;
        for at in 1..count {
            let payload = at * SECTOR_BYTES..at * SECTOR_BYTES + BLOCK_BYTES as usize;
            sectors.copy_within(payload, at * BLOCK_BYTES as usize);
        }
        ColdBytes { start: first * BLOCK_BYTES, bytes: &sectors[..count * BLOCK_BYTES as usize] }
    }
}

/// What a block of this store holds, and [`LINE_END`] or 0, if its trailer says so.
pub(crate) fn open_block(store_id: u64, block: u64, sector: &[u8]) -> Result<(&[u8], u64)> {
    let (payload, trailer) = sector.split_at(BLOCK_BYTES as usize);
    let number = u64::from_le_bytes(trailer[..8].try_into().unwrap_or_default());
    let got = u64::from_le_bytes(trailer[8..].try_into().unwrap_or_default());
    let want = checksum(store_id, payload, number);
    if (want != got || number & !LINE_END != block) && !FUZZED {
        let address = block * BLOCK_BYTES;
        return Err(Error::corruption(format!(
            "block checksum differs file={LOG} address={address} number={number} want={want:016x} got={got:016x}"
        )));
    }
    Ok((payload, number & LINE_END))
}

fn checksum(store_id: u64, payload: &[u8], number: u64) -> u64 {
    xxh3_64_with_seed(payload, store_id ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Where the block of an address is on the device, in bytes.
pub(crate) fn device_offset(address: u64) -> u64 {
    address / BLOCK_BYTES * SECTOR_BYTES as u64
}

/// Where a log that begins at an address may lie on the device, in bytes.
pub(crate) fn device_range(begin: u64) -> Range<u64> {
    device_offset(begin)..device_offset(LAST_CUT)
}

pub(crate) fn block_ceil(address: u64) -> u64 {
    address.next_multiple_of(BLOCK_BYTES)
}

pub(crate) fn block_floor(address: u64) -> u64 {
    address / BLOCK_BYTES * BLOCK_BYTES
}

/// Where the block ends that has this address.
pub(crate) fn block_end(address: u64) -> u64 {
    block_floor(address) + BLOCK_BYTES
}

/// Lines of odd number mark their records.
pub(crate) fn line_flag(line: u64) -> u64 {
    (line & 1) * ODD_LINE
}

/// Verified bytes from the device.
pub(crate) struct ColdBytes<'r> {
    start: u64,
    bytes: &'r [u8],
}

impl<'r> ColdBytes<'r> {
    /// `bytes` bytes from address `at`, if this read brought them all.
    pub(crate) fn get(&self, at: u64, bytes: u64) -> Option<&'r [u8]> {
        let from = at.checked_sub(self.start)? as usize;
        self.bytes.get(from..from.checked_add(bytes as usize)?)
    }
}
