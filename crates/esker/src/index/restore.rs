//! The index is made anew: from an image, and from the records behind it.

use super::bucket::{Bucket, address_of, entry_word, tag_of};
use super::shape::Shape;
use super::{FIRST_LEVEL, Index, LAST_LEVEL};
use crate::sync::atomic::{AtomicU64, Ordering::*};

impl Index {
    /// Makes `at` the head of the entry with the full tag of `hash`, unless that lies higher already; adds the entry if there is
    /// none. True if it did.
    ///
    /// An entry with a shorter tag is left alone: it may have got that only now, in a table made finer than its image, and
    /// lead to another key's record, to which the one at `at` does not lead. Hashes that agree on a full tag in this table
    /// did so in every coarser one, so they always had one chain, and the higher record leads to the lower one.
    pub(crate) fn raise(&self, hash: u64, at: u64) -> bool {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let added = match self.full_match(bucket, place.tag()) {
            Some((_, word)) if address_of(word) >= at => false,
            Some((slot, word)) => {
                slot.store(entry_word(tag_of(word), at), Release);
                false
            }
            None => {
                let free = self.empty_entry(place.number());
                let slot = free.unwrap_or_else(|| unreachable!("recovery of an index without shared entries lifts the limit"));
                slot.store(entry_word(place.tag(), at), Release);
                true
            }
        };
        bucket.unlatch();
        added
    }

    fn full_match<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<(&'a AtomicU64, u64)> {
        let equal = |part: &'a Bucket| match part.tags().equal(tag) {
            0 => None,
            set => Some(part.entry_of(set)),
        };
        self.chain(bucket).find_map(equal).map(|slot| (slot, slot.load(Acquire)))
    }

    /// True if an entry for `hash` can be added without sharing another's.
    pub(crate) fn has_free_entry(&self, hash: u64) -> bool {
        let bucket = self.bucket_at(self.locate(hash).offset);
        self.chain(bucket).any(|part| part.tags().empty() != 0) || self.room() > 0 || self.overflow.has_free()
    }

    /// Empties the index. Before the store is shared.
    pub(crate) fn clear(&self) {
        (0..self.buckets()).for_each(|at| self.refill(at, &[]));
        self.overflow.shorten();
        self.entries.0.store(0, Relaxed);
    }

    /// Takes the shape of an image; the caller then restores each bucket. Before the store is shared.
    pub(crate) fn restore_shape(&self, word: u64) -> bool {
        let shape = Shape(word);
        let fits = Self::is_shape(word) && self.has_space_for(shape.buckets());
        if fits {
            self.geometry.set(shape.level());
            self.shape.store(word, Release);
        }
        fits
    }

    /// True of a word that may be a table's shape.
    pub(crate) fn is_shape(word: u64) -> bool {
        let shape = Shape(word);
        (FIRST_LEVEL..=LAST_LEVEL).contains(&shape.level())
            && (shape.level() < LAST_LEVEL || shape.split() == 0)
            && word == Shape::new(shape.level(), shape.split()).0
    }

    /// Words as in an image.
    pub(crate) fn restore(&self, at: u64, words: &[u64]) {
        self.refill(at, words);
        self.add_to_count(words.len() as u64);
    }
}
