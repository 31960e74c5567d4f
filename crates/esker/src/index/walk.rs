//! Walking through all entries in an order that growth does not disturb.
//!
//! A bucket's number is the lowest bits of its hashes. Read backwards, the first of them first, they make a *position*: a bucket
//! of a table with 2^n buckets is an interval of 2^(64 - n) positions, and splitting it halves the interval.
//!
//! ```text
//! 4 buckets:   |    00    |    10    |    01    |    11    |      in the order of positions
//! 8 buckets:   | 000 | 100| 010 | 110| 001 | 101| 011 | 111|
//! ```
//! So a walk is a position that moves up. Whatever splits meanwhile, a key's position stays, and each is passed once: a walk
//! that takes from a bucket only keys whose position it has not passed takes each key once, and none is hidden. (The order
//! is that of Redis' SCAN; Pieter Noordhuis found it.) What merges meanwhile doubles an interval: a walk in the midst of it takes the rest.

use super::bucket::{SOLE, VERSION, VERSION_MASK, address_of, next_of, tag_of};
use super::{BUCKET_BITS, Bucket, DOUBLING, Index, base, full_tag, match_bits};
use crate::memory::prefetch;
use crate::sync::Spins;
use crate::sync::atomic::{Ordering::*, fence};

/// Where a walk meets keys of this hash.
#[inline(always)]
pub(crate) fn position(hash: u64) -> u64 {
    (hash >> BUCKET_BITS).reverse_bits()
}

/// What a bucket held at one moment.
#[derive(Clone, Default)]
pub(crate) struct Bucketful {
    words: Vec<u64>,
    /// The first bit of its tags in a hash.
    base: u32,
}

impl Bucketful {
    /// The addresses its entries lead to, in their order.
    pub(crate) fn addresses(&self) -> impl ExactSizeIterator<Item = u64> {
        self.words.iter().map(|word| address_of(*word))
    }

    /// True if the chain of this entry was of one key alone, down to where compaction had come.
    pub(crate) fn is_sole(&self, entry: usize) -> bool {
        self.words[entry] & SOLE != 0
    }

    /// The number of the entry that stands for a hash of this bucket: the longest match.
    #[inline(always)]
    pub(crate) fn entry_for(&self, hash: u64) -> Option<usize> {
        let tag = full_tag(hash >> self.base);
        self.words.iter().position(|word| tag_of(*word) == tag).or_else(|| self.longest_match(tag))
    }

    #[cold]
    fn longest_match(&self, tag: u64) -> Option<usize> {
        let mut best = None;
        for (number, word) in self.words.iter().enumerate() {
            if let Some(bits) = match_bits(tag_of(*word), tag)
                && best.is_none_or(|(most, _)| bits > most)
            {
                best = Some((bits, number));
            }
        }
        best.map(|(_, number)| number)
    }
}

impl Index {
    /// The bucket of a position, and how many bits its number has.
    fn bucket_of(&self, position: u64) -> (super::Place, u32) {
        let place = self.locate(position.reverse_bits() << BUCKET_BITS);
        let level = place.shape.level();
        let is_split = place.shape.0 & DOUBLING != 0 && (place.number() < place.shape.split() || place.number() >> level != 0);
        (place, level + u32::from(is_split))
    }

    /// Starts fetching a position's bucket; where the next one begins, if there is one, unless buckets split meanwhile.
    pub(crate) fn prefetch_position(&self, position: u64) -> Option<u64> {
        let (place, bits) = self.bucket_of(position);
        prefetch(self.bucket_at(place.offset));
        end_of(position, bits)
    }

    /// Takes a copy of a position's bucket; under a pin. Where the next one begins, if there is one.
    pub(crate) fn copy_bucket(&self, position: u64, into: &mut Bucketful) -> Option<u64> {
        let mut spins = Spins::default();
        loop {
            let (place, bits) = self.bucket_of(position);
            let bucket = self.bucket_at(place.offset);
            let link = bucket.link(Acquire);
            if link & VERSION == 0 {
                self.copy_entries(bucket, link, into);
                into.base = BUCKET_BITS + base(bits);
                // The shape first, as in `is_settled`.
                let stood_still = self.stands(place.shape);
                // Acquire fence: the entries were read before the version is read again.
                fence(Acquire);
                if stood_still && bucket.link(Relaxed) & VERSION_MASK == link & VERSION_MASK {
                    return end_of(position, bits);
                }
            }
            spins.pause();
        }
    }

    #[inline(always)]
    fn copy_entries(&self, bucket: &Bucket, link: u64, into: &mut Bucketful) {
        into.words.clear();
        let mut take = |part: &Bucket| into.words.extend(part.entries().iter().map(|slot| slot.load(Acquire)).filter(|word| *word != 0));
        take(bucket);
        if next_of(link) != 0 {
            self.chain(bucket).skip(1).for_each(take);
        }
    }
}

/// Where the bucket of a position ends: its number has so many bits.
fn end_of(position: u64, bits: u32) -> Option<u64> {
    let last = position | (u64::MAX >> bits);
    last.checked_add(1)
}
