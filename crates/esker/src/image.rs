//! Index images: the index as a file, so that opening a store does not read its whole log.
//!
//! ```text
//! [ shape ][ bucket 0: count, entries ] [ bucket 1: ... ] ...   u64 words, little-endian
//! [ zeros up to the last sector ][ words in all ][ checksum of everything before, keyed by the store ]
//! ```
//! Written and read in pieces of a megabyte: an image takes no memory besides the index itself.
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
//!   been, for chains descend.
//!
//! Two things stand still meanwhile: compaction, which would remove entries, and growth (and shrinking), which would move them. Insertions go on
//! in fuller buckets and catch up; an index of a gigabyte takes about a second.
//!
//! **When**: images take at most a third of what is written. One is due when the log behind the last one is twice as long as
//! the index, and at least 64 MiB; reading so much more is what a recovery may cost. And when the index has shrunk to less than half:
//! what was published before asks for a table as fine as it was then (`index/shrink.rs`).

use crate::FUZZED;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, Storage};
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::index::{Index, address_of};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;
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

pub(crate) fn name(number: u64) -> String {
    format!("index.{number}")
}

pub(crate) fn is_image(name: &str) -> bool {
    name.starts_with("index.")
}

/// What is known about the last image.
#[derive(Default)]
pub(crate) struct Images {
    /// The address from which on the log must be read besides.
    until: AtomicU64,
    is_under_way: AtomicBool,
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
    }

    /// True if a recovery now would read more of the log than it should.
    pub(crate) fn is_image_due(&self) -> bool {
        let bounds = &self.log.bounds;
        let from = self.images.until.load(Relaxed).max(bounds.begin.load(Relaxed));
        let lag = bounds.cut.load(Relaxed).saturating_sub(from);
        // A recovery without it would make the index as large as it was.
        let has_shrunk = self.index.finest_times() > 2 && !self.index.is_shrinking();
        let is_long = lag > LAG_BYTES_MIN.max(LAG_INDEX_TIMES * self.index.bytes());
        !self.is_in_memory() && (is_long || has_shrunk) && !self.images.is_under_way.load(Relaxed)
    }

    /// Takes an image of the index while operations go on.
    pub(crate) fn take_image(&self) -> Result<()> {
        let _compaction = self.hold_compaction();
        self.images.is_under_way.store(true, Relaxed);
        let taken = self.take_image_alone();
        self.images.is_under_way.store(false, Relaxed);
        taken
    }

    fn take_image_alone(&self) -> Result<()> {
        // Before the line: what is published above it is published in this shape.
        let growth = self.index.hold();
        self.commit()?;
        let until = self.log.bounds.cut.load(Acquire);
        let home = lock(&self.home).as_ref().map(|home| (home.storage.clone(), home.manifest.state.clone()));
        let Some((storage, state)) = home else { return Err(Error::invalid("a store on a bare device has no place for an image")) };
        let (number, store_id) = (state.image + 1, state.identity.store_id);
        let written = remove_all(&*storage, state.image)
            .and_then(|()| write(&*storage, number, store_id, &self.index, || self.epochs.is_closed()))
            .map_err(|error| if let Error::Closed = error { error } else { self.latch(error) });
        // Until all that the image may have seen is in a line: see above.
        let written = written.and_then(|()| self.commit());
        if let Err(Error::Closed) = written {
            // It means nothing to anybody; the next image would remove it, too.
            let _ = storage.remove(&name(number));
        }
        written?;
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return Err(Error::Closed) };
        let shape = self.index.shape_word();
        let named = home.manifest.write(|state| (state.image, state.image_until, state.shape) = (number, until, shape));
        if named.is_ok() {
            self.index.forget_finest();
        }
        drop(growth);
        named.and_then(|()| remove_all(&*storage, number)).map_err(|error| self.latch(error))?;
        self.image_stands_for(until);
        Ok(())
    }
}

/// Removes all images `but` one: what an interrupted close or recovery left, or what is out of date.
pub(crate) fn remove_all(storage: &dyn Storage, but: u64) -> Result<()> {
    let keep = name(but);
    let images = storage.list()?.into_iter().filter(|name| is_image(name) && *name != keep);
    let mut removed = false;
    for name in images {
        storage.remove(&name)?;
        removed = true;
    }
    if removed {
        storage.sync()?;
    }
    Ok(())
}

/// Writes the image `number` of an index that nobody splits meanwhile; durable when this returns. `Closed` if told to `stop`.
pub(crate) fn write(storage: &dyn Storage, number: u64, store_id: u64, index: &Index, stop: impl Fn() -> bool) -> Result<()> {
    let mut writer = Writer::new(storage.open(&name(number))?, store_id, index.bytes());
    writer.word(index.shape_word())?;
    let mut words = Vec::new();
    for at in 0..index.buckets() {
        if at % LOOK_BUCKETS == 0 && stop() {
            return Err(Error::Closed);
        }
        index.words_at_once(at, &mut words);
        writer.word(words.len() as u64)?;
        words.iter().try_for_each(|word| writer.word(*word))?;
    }
    writer.finish()?;
    storage.sync()?;
    Ok(())
}

/// The number of words in the image `number`, if it is whole.
pub(crate) fn check(storage: &dyn Storage, number: u64, store_id: u64) -> Result<u64> {
    if !storage.list()?.contains(&name(number)) {
        return Err(Error::corruption(format!("the index image is missing file={}", name(number))));
    }
    let device = storage.open(&name(number))?;
    let words = Reader::new(&device)?.verify(store_id)?;
    words.ok_or_else(|| Error::corruption(format!("the index image is damaged file={}", name(number))))
}

/// Fills an empty index from the image `number`; the highest address in it.
pub(crate) fn read(storage: &dyn Storage, number: u64, store_id: u64, index: &Index) -> Result<u64> {
    let damaged = || Error::corruption(format!("the index image is damaged file={}", name(number)));
    // Twice over the file: what is not known to be whole is not believed.
    let words = check(storage, number, store_id)?;
    let device = storage.open(&name(number))?;
    let mut reader = Reader::new(&device)?;
    let mut left = words;
    let mut next = |reader: &mut Reader<'_>| -> Result<u64> {
        left = left.checked_sub(1).ok_or_else(damaged)?;
        reader.word()?.ok_or_else(damaged)
    };
    if !index.restore_shape(next(&mut reader)?) {
        return Err(damaged());
    }
    let (mut entries, mut top) = (Vec::new(), 0);
    for at in 0..index.buckets() {
        entries.clear();
        for _ in 0..next(&mut reader)? {
            entries.push(next(&mut reader)?);
        }
        top = entries.iter().fold(top, |top, word| top.max(address_of(*word)));
        index.restore(at, &entries);
    }
    Ok(top)
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

struct Reader<'a> {
    device: &'a Arc<dyn Device>,
    piece: AlignedBuffer,
    bytes: u64,
    offset: u64,
    filled: usize,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(device: &'a Arc<dyn Device>) -> Result<Self> {
        let bytes = device.bytes()? / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        Ok(Self { device, piece: AlignedBuffer::new(piece_sectors(bytes)), bytes, offset: 0, filled: 0, at: 0 })
    }

    fn next_piece(&mut self) -> Result<&[u8]> {
        self.filled = (self.bytes - self.offset).min(self.piece.bytes().len() as u64) as usize;
        self.device.read(self.offset, &mut self.piece.bytes_mut()[..self.filled])?;
        self.offset += self.filled as u64;
        self.at = 0;
        Ok(&self.piece.bytes()[..self.filled])
    }

    fn word(&mut self) -> Result<Option<u64>> {
        if self.at == self.filled && self.next_piece()?.is_empty() {
            return Ok(None);
        }
        self.at += WORD;
        Ok(Some(word_at(self.piece.bytes(), self.at - WORD)))
    }

    /// The number of words, if the file is whole.
    fn verify(mut self, store_id: u64) -> Result<Option<u64>> {
        let mut checksum = Xxh3::with_seed(store_id);
        let total = self.bytes;
        let mut trailer = None;
        while self.offset < total {
            let is_last = total - self.offset <= self.piece.bytes().len() as u64;
            let piece = self.next_piece()?;
            let end = if is_last { piece.len() - WORD } else { piece.len() };
            checksum.update(&piece[..end]);
            trailer = is_last.then(|| (word_at(piece, end - WORD), word_at(piece, piece.len() - WORD)));
        }
        Ok(trailer.filter(|(_, want)| checksum.digest() == *want || FUZZED).map(|(words, _)| words))
    }
}

/// The buffer for so many bytes: zeroing a mebibyte would be most of the opening of a tiny store.
fn piece_sectors(bytes: u64) -> usize {
    (bytes.div_ceil(SECTOR_BYTES as u64) as usize).clamp(1, PIECE_SECTORS)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().unwrap_or_default())
}
