//! Index images: the index as a file, so that opening a store does not read its whole log.
//!
//! ```text
//! [ shape ][ bucket 0: count, entries ] [ bucket 1: ... ] ...   u64 words, little-endian
//! [ zeros up to the last sector ][ words in all ][ checksum of everything before, keyed by the store ]
//! ```
//! Written and read in pieces of a megabyte: an image takes no memory besides the index itself.

use crate::FUZZED;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, Storage};
use crate::error::{Error, Result};
use crate::index::Index;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

const PIECE_SECTORS: usize = 256;
const TRAILER_WORDS: usize = 2;
const WORD: usize = 8;

pub(crate) fn name(number: u64) -> String {
    format!("index.{number}")
}

pub(crate) fn is_image(name: &str) -> bool {
    name.starts_with("index.")
}

/// Writes the image `number` of an index that nobody changes meanwhile; durable when this returns.
pub(crate) fn write(storage: &dyn Storage, number: u64, store_id: u64, index: &Index) -> Result<()> {
    let mut writer = Writer::new(storage.open(&name(number))?, store_id);
    writer.word(index.shape_word())?;
    for at in 0..index.buckets() {
        let words = index.words(at);
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

/// Fills an empty index from the image `number`.
pub(crate) fn read(storage: &dyn Storage, number: u64, store_id: u64, index: &Index) -> Result<()> {
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
    let mut entries = Vec::new();
    for at in 0..index.buckets() {
        entries.clear();
        for _ in 0..next(&mut reader)? {
            entries.push(next(&mut reader)?);
        }
        index.restore(at, &entries);
    }
    Ok(())
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
    fn new(device: Arc<dyn Device>, store_id: u64) -> Self {
        let piece = AlignedBuffer::new(PIECE_SECTORS);
        Self { device, piece, filled: 0, offset: 0, words: 0, checksum: Xxh3::with_seed(store_id) }
    }

    fn word(&mut self, word: u64) -> Result<()> {
        self.words += 1;
        self.push(word)
    }

    fn push(&mut self, word: u64) -> Result<()> {
        self.piece.bytes_mut()[self.filled..self.filled + WORD].copy_from_slice(&word.to_le_bytes());
        self.filled += WORD;
        if self.filled == PIECE_SECTORS * SECTOR_BYTES { self.write_piece() } else { Ok(()) }
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
        Ok(Self { device, piece: AlignedBuffer::new(PIECE_SECTORS), bytes, offset: 0, filled: 0, at: 0 })
    }

    fn next_piece(&mut self) -> Result<&[u8]> {
        self.filled = (self.bytes - self.offset).min((PIECE_SECTORS * SECTOR_BYTES) as u64) as usize;
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
            let is_last = total - self.offset <= (PIECE_SECTORS * SECTOR_BYTES) as u64;
            let piece = self.next_piece()?;
            let end = if is_last { piece.len() - WORD } else { piece.len() };
            checksum.update(&piece[..end]);
            trailer = is_last.then(|| (word_at(piece, end - WORD), word_at(piece, piece.len() - WORD)));
        }
        Ok(trailer.filter(|(_, want)| checksum.digest() == *want || FUZZED).map(|(words, _)| words))
    }
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().unwrap_or_default())
}
