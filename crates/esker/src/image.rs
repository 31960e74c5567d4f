//! Index images: the index as a file, so that opening a store does not read its whole log.
//!
//! ```text
//! [ shape ][ bucket 0: count, entries ] [ bucket 1: ... ] ...   u64 words, little-endian
//! [ zeros up to the last sector ][ words in all ][ checksum of everything before, keyed by the store ]
//! ```
//! Written and read in pieces of a megabyte: an image takes no memory besides the index itself. A thread reads and checks ahead of
//! the one that fills the index; where the checksum tells of damage in the end, the index is emptied.
//!
//! **While the store runs** ([`Engine::take_image`]) the index changes under the copy, so an image says less than "the index
//! as of an address", and enough. A line is drawn, its cut is `until`; each bucket is copied as it is at some moment after
//! that; another line is drawn; then a slot of the manifest names the image, and `until`.
//! * *Nothing is missed.* Below `until` every record was published, or given up, before the copy began (the line's drain).
//!   What is published behind the copy's back lies above `until`: recovery reads the log from there.
//! * *Nothing is too new.* All that the copy may have seen lies below the second line's cut and belongs to it. No manifest
//!   names the image without that line or a later one.
//! * *The higher address wins*, whether it comes from the image or from the log. Where keys share an entry, a record that the
//!   image's entry lies above was published before its bucket was copied, so the entry leads to it: after that it could not have
//!   been, for chains descend. Its own entry, that is: so one that leads below the log's beginning stays where another of its bucket
//!   lies above `until`.
//!
//! **What an entry says of its chain**, that it is of one key, it says here as well: of a guess it does not, for the count of what is dead
//! is of another moment.
//!
//! Two things stand still meanwhile: compaction, which would remove entries, and growth (and shrinking), which would move them. Insertions
//! go on in fuller buckets and catch up; an index of a gigabyte takes about a second.
//!
//! **When**: images take at most a third of what is written. One is due when the log behind the last one is twice as long as
//! the index, and at least 64 MiB; reading so much more is what a recovery may cost. And when the index has shrunk to less than half:
//! what was published before asks for a table as fine as it was then (`index/shrink.rs`).

use crate::FUZZED;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, Storage};
use crate::engine::{Engine, Retries};
use crate::error::{Error, Result};
use crate::index::{Index, SOLE, address_of};
use crate::manifest::State;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::sync::mpsc::channel;
use xxhash_rust::xxh3::Xxh3;

const PIECE_SECTORS: usize = 256;
/// Buckets between two looks at whether the store closes.
const LOOK_BUCKETS: u64 = 1 << 14;
/// The log behind an image may always be so long, in bytes.
const LAG_BYTES_MIN: u64 = 64 << 20;
/// And so many times as long as the index.
const LAG_INDEX_TIMES: u64 = 2;
const TRAILER_WORDS: usize = 2;
const WORD: usize = 8;
/// The words of a piece: a shorter image is read without a thread.
const PIECE_WORDS: u64 = (PIECE_SECTORS * SECTOR_BYTES / WORD) as u64;
/// In one bucket no two entries have the same tag, of 16 bits.
const BUCKET_WORDS_MAX: u64 = 1 << 16;
/// Pieces that are being read, checked, or taken.
const BUFFERS: usize = 4;

pub(crate) fn name(number: u64) -> String {
    format!("index.{number}")
}

/// Anything else of a name that begins alike is somebody else's.
pub(crate) fn is_image(file: &str) -> bool {
    let number = file.strip_prefix("index.").and_then(|number| number.parse().ok());
    number.is_some_and(|number| name(number) == file)
}

/// What is known about the last image.
#[derive(Default)]
pub(crate) struct Images {
    /// The address from which on the log must be read besides.
    until: AtomicU64,
    is_under_way: AtomicBool,
    /// Recovery has made copies, and there is none yet that has them.
    is_owed: AtomicBool,
    retries: Mutex<Retries>,
    /// Why the last one failed.
    failure: Mutex<Option<Error>>,
}

impl Images {
    /// One is about to be taken, or is not after all.
    pub(crate) fn announce(&self, is_under_way: bool) {
        self.is_under_way.store(is_under_way, Relaxed);
    }
}

impl Engine {
    pub(crate) fn image_stands_for(&self, until: u64) {
        self.images.until.store(until, Relaxed);
        self.images.is_owed.store(false, Relaxed);
    }

    /// Whether one is due however little of the log lies behind the last one.
    pub(crate) fn owe_image(&self, is_owed: bool) {
        self.images.is_owed.store(is_owed, Relaxed);
    }

    /// True if a recovery now would read more of the log than it should.
    pub(crate) fn is_image_due(&self) -> bool {
        let bounds = &self.log.bounds;
        let from = self.images.until.load(Relaxed).max(bounds.begin.load(Relaxed));
        let lag = bounds.cut.load(Relaxed).saturating_sub(from);
        // A recovery without it would make the index as large as it was.
        let has_shrunk = self.index.is_less_than_half() && !self.index.is_shrinking();
        let is_long = lag > LAG_BYTES_MIN.max(LAG_INDEX_TIMES * self.index.bytes());
        !self.is_in_memory()
            && (is_long || has_shrunk || self.is_image_owed())
            && self.lacks_nothing()
            && !self.images.is_under_way.load(Relaxed)
            && lock(&self.images.retries).are_due()
            // Last: it waits for who writes the manifest.
            && self.has_place_for_images()
    }

    /// A backup that nobody has written stays one.
    fn is_image_owed(&self) -> bool {
        self.images.is_owed.load(Relaxed) && lock(&self.home).as_ref().is_some_and(|home| !home.manifest.state.is_backup)
    }

    fn has_place_for_images(&self) -> bool {
        lock(&self.home).is_some()
    }

    /// Why the last image failed, if it did.
    pub(crate) fn image_failure(&self) -> Option<Error> {
        lock(&self.images.failure).clone()
    }

    /// Takes an image of the index while operations go on.
    pub(crate) fn take_image(&self) -> Result<()> {
        if !self.has_place_for_images() {
            // In memory, or closed, this says so.
            self.commit()?;
            return Err(Error::invalid("a store on a bare device has no place for an image"));
        }
        let _compaction = self.hold_compaction();
        self.images.is_under_way.store(true, Relaxed);
        let taken = self.guarded(|| self.take_image_alone());
        let failure = taken.as_ref().err().filter(|error| !matches!(error, Error::Closed));
        lock(&self.images.retries).note(failure.is_some());
        *lock(&self.images.failure) = failure.cloned();
        self.images.is_under_way.store(false, Relaxed);
        taken
    }

    /// Writes the image `number`, or leaves nothing; durable when names are synced. Nobody splits meanwhile. `Closed` if told to `stop`.
    /// That it cannot be written, for want of room perhaps, is no harm to the store: nothing that the log holds depends on it.
    pub(crate) fn write_image(&self, storage: &dyn Storage, number: u64, store_id: u64, stop: impl Fn() -> bool) -> Result<()> {
        // Nothing is compacted meanwhile.
        let marks = self.marks_in_images();
        let write = || {
            let mut writer = Writer::new(storage.open(&name(number))?, store_id, self.index.bytes());
            writer.word(self.index.shape_word())?;
            let mut words = Vec::new();
            for at in 0..self.index.buckets() {
                if at % LOOK_BUCKETS == 0 && stop() {
                    return Err(Error::Closed);
                }
                self.index.words_at_once(at, marks, &mut words);
                writer.word(words.len() as u64)?;
                words.iter().try_for_each(|word| writer.word(*word))?;
            }
            writer.finish()
        };
        write().inspect_err(|_| _ = storage.remove(&name(number)))
    }

    /// That a chain is of one key stays true: it does not change behind its first record, and an entry that gets another one in recovery
    /// says nothing any more. But it is true down to where compaction has come, and the next opening begins where the line says. Further
    /// down lies what somebody holds; and what a cache dropped lives again.
    fn marks_in_images(&self) -> u64 {
        let bounds = &self.log.bounds;
        let is_known = self.caching.is_none() && !bounds.is_held_back();
        if is_known { SOLE } else { 0 }
    }

    /// True if an image may stand for the log: not while it lacks the entries of what a cache dropped and a crash would bring back. (The
    /// entries of deletions stay until the log begins above them.)
    pub(crate) fn lacks_nothing(&self) -> bool {
        let bounds = &self.log.bounds;
        bounds.doomed.load(SeqCst) <= bounds.compacted.load(SeqCst)
    }

    /// The image of a backup leads to the copies that its opening made: they are to be in a line, though nobody wrote them.
    fn count_own_copies(&self) {
        let is_backup = lock(&self.home).as_ref().is_some_and(|home| home.manifest.state.is_backup);
        let _boundaries = lock(&self.boundaries);
        if is_backup {
            self.log.bounds.durable.store(self.log.bounds.cut.load(Relaxed), Relaxed);
        }
    }

    /// Removes all images `but` one. One that cannot be is no harm; that it has gone must become durable.
    pub(crate) fn remove_images(&self, storage: &dyn Storage, but: u64) -> Result<()> {
        if remove(storage, but)? { storage.sync().map_err(|error| self.latch(error)) } else { Ok(()) }
    }

    fn take_image_alone(&self) -> Result<()> {
        // Nothing is compacted meanwhile, and the slot's log begins no lower.
        if !self.lacks_nothing() {
            return self.commit();
        }
        // Before the line: what is published above it is published in this shape.
        let growth = self.index.hold();
        self.count_own_copies();
        self.commit()?;
        let until = self.log.bounds.cut.load(Acquire);
        let home = lock(&self.home).as_ref().map(|home| (home.storage.clone(), home.manifest.state.clone()));
        let Some((storage, state)) = home else { return Err(Error::Closed) };
        let (number, store_id) = (state.image + 1, state.identity.store_id);
        self.remove_images(&*storage, state.image)?;
        self.write_image(&*storage, number, store_id, || self.epochs.is_closed())?;
        storage.sync().map_err(|error| self.latch(error))?;
        // Until all that the image may have seen is in a line: see above.
        if let Err(error) = self.commit() {
            // It means nothing to anybody; the next image would remove it, too.
            let _ = storage.remove(&name(number));
            return Err(error);
        }
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return Err(Error::Closed) };
        // Under the lock, as for a line.
        self.check_not_failed_for_good()?;
        let shape = self.index.shape_word();
        let named = home.manifest.write(|state| (state.image, state.image_until, state.shape) = (number, until, shape));
        if named.is_ok() {
            self.index.forget_finest();
        }
        drop(growth);
        named.map_err(|error| self.latch(error))?;
        self.image_stands_for(until);
        self.remove_images(&*storage, number)
    }
}

/// Removes all images `but` one: what an interrupted close or recovery left, or what is out of date.
pub(crate) fn remove_all(storage: &dyn Storage, but: u64) -> Result<()> {
    if remove(storage, but)? { Ok(storage.sync()?) } else { Ok(()) }
}

/// The same, not durable yet; true if there were any.
fn remove(storage: &dyn Storage, but: u64) -> Result<bool> {
    let keep = name(but);
    let images = storage.list()?.into_iter().filter(|name| is_image(name) && *name != keep);
    let mut removed = false;
    for name in images {
        storage.remove(&name)?;
        removed = true;
    }
    Ok(removed)
}

/// What an image takes of the device now, about: a word for each bucket and each entry.
pub(crate) fn bytes_of(index: &Index) -> u64 {
    bytes_of_buckets(index) + index.entries() * WORD as u64
}

/// The same without the entries.
pub(crate) fn bytes_of_buckets(index: &Index) -> u64 {
    index.buckets() * WORD as u64
}

/// Refuses the image `number` unless it is whole.
pub(crate) fn check(storage: &dyn Storage, number: u64, store_id: u64) -> Result<()> {
    let mut pieces = Pieces::open(storage, number, store_id)?;
    let mut buffer = pieces.buffer();
    while let Some(piece) = pieces.next(buffer)? {
        buffer = piece.buffer;
    }
    pieces.words().map(drop).ok_or_else(|| damaged(number))
}

/// Copies the image `number`, and refuses it unless it is whole: what was copied means nothing then.
pub(crate) fn copy(from: &dyn Storage, to: &dyn Storage, number: u64, store_id: u64) -> Result<()> {
    let mut pieces = Pieces::open(from, number, store_id)?;
    let (copy, mut buffer, mut offset) = (to.open(&name(number))?, pieces.buffer(), 0);
    while let Some(piece) = pieces.next(buffer)? {
        copy.write(offset, &piece.buffer.bytes()[..piece.filled])?;
        offset += piece.filled as u64;
        buffer = piece.buffer;
    }
    pieces.words().ok_or_else(|| damaged(number))?;
    Ok(copy.sync()?)
}

/// Fills an empty index from the image of this state; the highest address in it. The image is read once, and believed before all of it
/// is known to be whole: after an error the index holds anything.
pub(crate) fn read(storage: &dyn Storage, state: &State, index: &Index) -> Result<u64> {
    let (number, begin) = (state.image, state.begin);
    // Where no entry is shared each record is known by a full tag.
    let until = if index.is_shared() { state.image_until.max(begin) } else { u64::MAX };
    let mut pieces = Pieces::open(storage, number, state.identity.store_id)?;
    let most = pieces.bytes / WORD as u64;
    let (restored, words) = if most <= PIECE_WORDS {
        let first = pieces.buffer();
        let restored = Words::new(first, |buffer| pieces.next(buffer)).restore(index, begin, until, most);
        (restored, pieces.words())
    } else {
        read_ahead(pieces, |first, next| Words::new(first, next).restore(index, begin, until, most))
    };
    let (used, top) = restored?.ok_or_else(|| damaged(number))?;
    // What was used must be what was written, and a line came behind it.
    if words.is_some_and(|words| used <= words) && top < state.cut { Ok(top) } else { Err(damaged(number)) }
}

/// The shape of the image's table, before it is known to be whole.
pub(crate) fn shape(storage: &dyn Storage, number: u64, store_id: u64) -> Result<u64> {
    let mut pieces = Pieces::open(storage, number, store_id)?;
    let first = pieces.next(pieces.buffer())?;
    first.map(|piece| word_at(piece.buffer.bytes(), 0)).ok_or_else(|| damaged(number))
}

/// Shows all addresses in the image `number`, before it is known to be whole.
///
/// # Errors
/// `Corruption` if it is not: then what was shown means nothing.
pub(crate) fn addresses(storage: &dyn Storage, number: u64, store_id: u64, mut show: impl FnMut(u64)) -> Result<()> {
    let mut pieces = Pieces::open(storage, number, store_id)?;
    let (most, first) = (pieces.bytes / WORD as u64, pieces.buffer());
    let used = Words::new(first, |buffer| pieces.next(buffer)).buckets(
        most,
        |_| true,
        |_, words| words.iter().for_each(|word| show(address_of(*word))),
    )?;
    let is_whole = used.zip(pieces.words()).is_some_and(|(used, words)| used <= words);
    if is_whole { Ok(()) } else { Err(damaged(number)) }
}

fn damaged(number: u64) -> Error {
    Error::corruption(format!("the index image is damaged file={}", name(number)))
}

/// Reads and checks pieces in a thread of its own, while `restore` takes them; what that gave, and the image's words if it is whole.
fn read_ahead<T>(mut pieces: Pieces, restore: impl FnOnce(AlignedBuffer, NextPiece<'_>) -> T) -> (T, Option<u64>) {
    let (give_back, spare) = channel();
    let (send, ready) = channel();
    let (hand, handed) = channel::<Pieces>();
    for _ in 1..BUFFERS {
        let _ = give_back.send(pieces.buffer());
    }
    std::thread::scope(|scope| {
        let first = pieces.buffer();
        let reader = std::thread::Builder::new().spawn_scoped(scope, move || {
            let mut pieces = handed.recv().ok()?;
            // Until the last piece, a failure, or nobody gives buffers any more.
            while let Ok(buffer) = spare.recv() {
                let piece = pieces.next(buffer);
                let is_last = !matches!(piece, Ok(Some(_)));
                if send.send(piece).is_err() || is_last {
                    break;
                }
            }
            pieces.words()
        });
        let Ok(reader) = reader else {
            // The system grants no thread.
            let restored = restore(first, &mut |buffer| pieces.next(buffer));
            return (restored, pieces.words());
        };
        let _ = hand.send(pieces);
        let restored = restore(first, &mut |buffer| {
            let _ = give_back.send(buffer);
            ready.recv().unwrap_or(Ok(None))
        });
        drop(give_back);
        (restored, reader.join().unwrap_or(None))
    })
}

struct Writer {
    device: Arc<dyn Device>,
    piece: AlignedBuffer,
    filled: usize,
    offset: u64,
    words: u64,
    checksum: Xxh3,
}

impl Writer {
    fn new(device: Arc<dyn Device>, store_id: u64, bytes: u64) -> Self {
        let piece = AlignedBuffer::new(piece_sectors(bytes));
        Self { device, piece, filled: 0, offset: 0, words: 0, checksum: Xxh3::with_seed(store_id) }
    }

    fn word(&mut self, word: u64) -> Result<()> {
        self.words += 1;
        self.push(word)
    }

    fn push(&mut self, word: u64) -> Result<()> {
        self.piece.bytes_mut()[self.filled..self.filled + WORD].copy_from_slice(&word.to_le_bytes());
        self.filled += WORD;
        if self.filled == self.piece.bytes().len() { self.write_piece() } else { Ok(()) }
    }

    fn write_piece(&mut self) -> Result<()> {
        self.checksum.update(&self.piece.bytes()[..self.filled]);
        self.device.write(self.offset, &self.piece.bytes()[..self.filled])?;
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let words = self.words;
        while !(self.filled + TRAILER_WORDS * WORD).is_multiple_of(SECTOR_BYTES) {
            self.push(0)?;
        }
        self.push(words)?;
        self.checksum.update(&self.piece.bytes()[..self.filled]);
        let checksum = self.checksum.digest();
        self.piece.bytes_mut()[self.filled..self.filled + WORD].copy_from_slice(&checksum.to_le_bytes());
        self.filled += WORD;
        self.device.write(self.offset, &self.piece.bytes()[..self.filled])?;
        self.device.sync()?;
        Ok(())
    }
}

/// An image's bytes in order, and in the end whether it is whole.
struct Pieces {
    device: Arc<dyn Device>,
    bytes: u64,
    offset: u64,
    checksum: Xxh3,
    /// The words in all and the checksum, as the file has them.
    trailer: Option<(u64, u64)>,
}

/// So many bytes of a buffer.
struct Piece {
    buffer: AlignedBuffer,
    filled: usize,
}

impl Pieces {
    fn open(storage: &dyn Storage, number: u64, store_id: u64) -> Result<Self> {
        if !storage.list()?.contains(&name(number)) {
            return Err(Error::corruption(format!("the index image is missing file={}", name(number))));
        }
        let device = storage.open(&name(number))?;
        let bytes = device.bytes()? / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        Ok(Self { device, bytes, offset: 0, checksum: Xxh3::with_seed(store_id), trailer: None })
    }

    /// One that each piece fits.
    fn buffer(&self) -> AlignedBuffer {
        AlignedBuffer::new(piece_sectors(self.bytes))
    }

    /// The next piece, in this buffer.
    fn next(&mut self, mut buffer: AlignedBuffer) -> Result<Option<Piece>> {
        let left = self.bytes - self.offset;
        let filled = left.min(buffer.bytes().len() as u64) as usize;
        if filled == 0 {
            return Ok(None);
        }
        let piece = &mut buffer.bytes_mut()[..filled];
        self.device.read(self.offset, piece)?;
        self.offset += filled as u64;
        let is_last = self.offset == self.bytes;
        let end = if is_last { filled - WORD } else { filled };
        self.checksum.update(&piece[..end]);
        self.trailer = is_last.then(|| (word_at(piece, end - WORD), word_at(piece, end)));
        Ok(Some(Piece { buffer, filled }))
    }

    /// The number of words, if the end was reached and all is whole.
    fn words(&self) -> Option<u64> {
        self.trailer.filter(|(_, want)| self.checksum.digest() == *want || FUZZED).map(|(words, _)| words)
    }
}

/// Takes back a buffer and gives the next piece.
type NextPiece<'a> = &'a mut dyn FnMut(AlignedBuffer) -> Result<Option<Piece>>;

/// An image's words in order.
struct Words<F> {
    next: F,
    piece: Piece,
    at: usize,
    used: u64,
}

impl<F: FnMut(AlignedBuffer) -> Result<Option<Piece>>> Words<F> {
    fn new(buffer: AlignedBuffer, next: F) -> Self {
        Self { next, piece: Piece { buffer, filled: 0 }, at: 0, used: 0 }
    }

    /// Fills the index, in which there are at most so many words, and goes on to the end; how many words that took, and the
    /// highest address. `None` if the words do not say an index. The log begins at `begin`, and is read from `until` on.
    fn restore(self, index: &Index, begin: u64, until: u64, most: u64) -> Result<Option<(u64, u64)>> {
        let mut top = 0;
        let used = self.buckets(
            most,
            |shape| index.restore_shape(shape),
            |at, words| {
                top = words.iter().fold(top, |top, word| top.max(address_of(*word)));
                // What lies below has gone, and deletions with it: their entries would come back. But where somebody published while the
                // bucket was copied, a record behind `until` is known by its own entry, wherever that leads: a shorter one may lie above
                // the record, and not lead to it.
                if words.iter().all(|word| address_of(*word) < until) {
                    words.retain(|word| address_of(*word) >= begin);
                }
                index.restore(at, words);
            },
        )?;
        Ok(used.map(|used| (used, top)))
    }

    /// Shows the shape, and if that can be the buckets, in order; how many words that took. `None` if the words do not say an index.
    fn buckets(mut self, most: u64, shape: impl FnOnce(u64) -> bool, mut bucket: impl FnMut(u64, &mut Vec<u64>)) -> Result<Option<u64>> {
        let mut words = Vec::new();
        // Each bucket takes a word: a shape that the file has no room for is damaged, and would take memory.
        if !self.take(1, &mut words)? || Index::buckets_of_shape(words[0]) > most || !shape(words[0]) {
            return Ok(None);
        }
        for at in 0..Index::buckets_of_shape(words[0]) {
            words.clear();
            if !self.take(1, &mut words)? {
                return Ok(None);
            }
            let count = words.pop().unwrap_or_default();
            if count > BUCKET_WORDS_MAX || !self.take(count, &mut words)? {
                return Ok(None);
            }
            bucket(at, &mut words);
        }
        let used = self.used;
        while self.next_piece()? {}
        Ok(Some(used))
    }

    /// Appends the next words; false if there are not so many.
    fn take(&mut self, count: u64, words: &mut Vec<u64>) -> Result<bool> {
        let mut left = count;
        while left > 0 {
            let rest = &self.piece.buffer.bytes()[self.at..self.piece.filled];
            let now = left.min((rest.len() / WORD) as u64);
            words.extend(rest.chunks_exact(WORD).take(now as usize).map(|word| word_at(word, 0)));
            (self.at, self.used, left) = (self.at + now as usize * WORD, self.used + now, left - now);
            if left > 0 && !self.next_piece()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn next_piece(&mut self) -> Result<bool> {
        let used = std::mem::replace(&mut self.piece, Piece { buffer: AlignedBuffer::new(0), filled: 0 });
        let Some(piece) = (self.next)(used.buffer)? else { return Ok(false) };
        (self.piece, self.at) = (piece, 0);
        Ok(true)
    }
}

/// The buffer for so many bytes: zeroing a mebibyte would be most of the opening of a tiny store.
fn piece_sectors(bytes: u64) -> usize {
    (bytes.div_ceil(SECTOR_BYTES as u64) as usize).clamp(1, PIECE_SECTORS)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().unwrap_or_default())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::device::SECTOR_BYTES;
    use crate::sync::atomic::Ordering::*;
    use crate::sync::lock;
    use crate::{Cache, Error, MemoryStorage, Options, Storage, Store};
    use std::collections::HashMap;
    use std::sync::Arc;

    /// An image of several pieces, so that a thread reads ahead of the one that fills the index.
    #[test]
    fn damage_anywhere_in_a_long_image_is_named_and_given_up_when_told_so() {
        const KEYS: u64 = 200_000;
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("32MiB").background(false);
        let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
        (0..KEYS).for_each(|n| store.put(&n, &n).unwrap());
        store.close().unwrap();
        let name = files.list().unwrap().into_iter().find(|name| super::is_image(name)).unwrap();
        let bytes = files.open(&name).unwrap().bytes().unwrap() as usize;
        assert!(bytes > super::PIECE_SECTORS * SECTOR_BYTES, "{bytes}");
        let whole = |files: &Arc<MemoryStorage>, options: Options| {
            let store: Store<u64, u64> = options.open_in(files.clone())?;
            (0..KEYS).step_by(7).for_each(|n| assert_eq!(store.get(&n).unwrap(), Some(n)));
            Ok(())
        };
        whole(&Arc::new(files.copy()), options()).unwrap();
        // In the shape, in counts and entries, at a piece's edge, in the zeros, in the number of words and in the checksum.
        for at in [3, 7, 8, 99, (1 << 20) - 1, 1 << 20, bytes / 2, bytes - 40, bytes - 16, bytes - 9, bytes - 1] {
            let files = Arc::new(files.copy());
            let (image, from) = (files.open(&name).unwrap(), at / SECTOR_BYTES * SECTOR_BYTES);
            let mut sector = [0; SECTOR_BYTES];
            image.read(from as u64, &mut sector).unwrap();
            sector[at - from] ^= 0x20;
            image.write(from as u64, &sector).unwrap();
            let refused: Result<(), Error> = whole(&files, options());
            assert!(matches!(&refused, Err(Error::Corruption(what)) if what.contains(&name)), "{refused:?} at {at}");
            whole(&files, options().accept_loss(true)).unwrap();
        }
    }

    /// A key's own entry led below the log's beginning and was left out; a shorter one, which others share, had got a record while the
    /// image was written, above the key's next one. That was taken for known, and lost.
    #[test]
    fn what_came_beside_an_image_is_found_by_its_own_entry() {
        const KEYS: u64 = 900_000;
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("16MiB").background(false).promotion(false);
        let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
        (0..KEYS).for_each(|n| store.put(&n, &[1; 8]).unwrap());
        store.commit().unwrap();
        let engine = store.engine_for_test();
        let hash = |n: u64| engine.hash_of(&n.to_le_bytes());
        let lookup = |n: u64| engine.index.lookup(hash(n));
        let shared: HashMap<u64, u64> = (30_000..KEYS).filter(|n| !lookup(*n).is_full()).map(|n| (lookup(n).address(), n)).collect();
        // One key of each pair has an entry of its own, to the log's first mebibyte, the other the shorter one, which matches both.
        let pairs: Vec<(u64, u64)> = (0..10_000)
            .filter(|n| lookup(*n).is_full())
            .filter_map(|n| Some((n, *shared.get(&engine.index.shorter_match_for_test(hash(n))?)?)))
            .take(20)
            .collect();
        assert!(pairs.len() >= 10, "{}", pairs.len());
        let first = pairs.iter().map(|(n, _)| lookup(*n).address()).max().unwrap();
        engine.commit().unwrap();
        let until = engine.log.bounds.cut.load(SeqCst);
        // A piece that has room; above it long records have places of their own.
        (KEYS..KEYS + 100).for_each(|n| store.put(&n, &[2; 8]).unwrap());
        pairs.iter().for_each(|(_, other)| store.put(other, &[3; 17_000]).unwrap());
        let (storage, number, id) = {
            let home = lock(&engine.home);
            let home = home.as_ref().unwrap();
            (home.storage.clone(), home.manifest.state.image + 1, home.manifest.state.identity.store_id)
        };
        engine.write_image(&*storage, number, id, || false).unwrap();
        pairs.iter().for_each(|(n, _)| store.put(n, &[4; 8]).unwrap());
        let below = pairs.iter().filter(|(n, other)| lookup(*n).address() < lookup(*other).address()).count();
        assert!(below > pairs.len() / 2, "{below} of {}", pairs.len());
        engine.commit().unwrap();
        let shape = engine.index.shape_word();
        let mut home = lock(&engine.home);
        let manifest = &mut home.as_mut().unwrap().manifest;
        manifest.write(|state| (state.image, state.image_until, state.shape) = (number, until, shape)).unwrap();
        drop(home);
        while engine.log.bounds.copied.load(SeqCst) <= first {
            assert!(engine.compact_once().unwrap());
        }
        store.put(&KEYS, &[5; 8]).unwrap();
        store.commit().unwrap();
        assert!(engine.told_begin() > first);
        let crashed = Arc::new(files.copy());
        drop(store);
        let store: Store<u64, [u8]> = options().open_in(crashed).unwrap();
        let lost: Vec<_> = pairs.iter().filter(|(n, _)| store.get(n).unwrap().as_deref() != Some(&[4; 8][..])).collect();
        assert!(lost.is_empty(), "{lost:?} of {}", pairs.len());
        assert!(pairs.iter().all(|(_, other)| store.get(other).unwrap().is_some_and(|value| value.len() == 17_000)));
    }

    fn images(files: &MemoryStorage) -> Vec<String> {
        files.list().unwrap().into_iter().filter(|name| super::is_image(name)).collect()
    }

    /// No image could be taken while a scan held a stretch with deletions: compaction had removed their entries, and only the log told of
    /// them.
    #[test]
    fn an_image_is_taken_while_somebody_holds_what_has_no_copy() {
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("16MiB").background(false);
        let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
        (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
        store.save_index().unwrap();
        (0..1000u64).step_by(2).for_each(|n| assert!(store.delete(&n).unwrap()));
        store.commit().unwrap();
        let scan = store.scan().iter().unwrap();
        store.compact().unwrap();
        let bounds = &store.engine_for_test().log.bounds;
        assert!(bounds.compacted.load(SeqCst) < bounds.copied.load(SeqCst));
        let saved = images(&files);
        store.save_index().unwrap();
        assert_ne!(images(&files), saved);
        // As if the power went now, and after all of it was given back.
        let is_right = |files: MemoryStorage| {
            let store: Store<u64, u64> = options().open_in(Arc::new(files)).unwrap();
            assert!((0..1000u64).all(|n| store.get(&n).unwrap() == (n % 2 == 1).then_some(n)));
        };
        is_right(files.copy());
        drop(scan);
        store.compact().unwrap();
        assert!(store.stats().index.entries <= 500);
        store.close().unwrap();
        is_right(files.copy());
    }

    /// What a cache dropped is out of an image, too; before the log begins above it that must not stand for the log.
    #[test]
    fn no_image_is_taken_while_a_crash_would_bring_back_what_a_cache_dropped() {
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("16MiB").background(false).cache(Cache::new().disk("64MiB"));
        let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
        (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
        store.save_index().unwrap();
        let saved = images(&files);
        assert_eq!(saved.len(), 1);
        store.put(&0, &7).unwrap();
        // As if it were in the midst of a stretch.
        let bounds = &store.engine_for_test().log.bounds;
        bounds.doomed.store(store.engine_for_test().log.tail(), SeqCst);
        store.save_index().unwrap();
        assert_eq!(images(&files), saved);
        store.put(&2, &7).unwrap();
        store.close().unwrap();
        assert_eq!(images(&files), saved);
        let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
        assert!((0..1000u64).all(|n| store.get(&n).unwrap() == Some(if n == 0 || n == 2 { 7 } else { n })));
        store.put(&4, &7).unwrap();
        store.save_index().unwrap();
        assert_ne!(images(&files), saved);
    }
}
