//! The first bucket of a hash, looked at and claimed without a search: the way of nearly every operation.

use super::bucket::{self, Bucket, MARKS, SOLE, address_of, entry_word, near_address_of, next_of, tag_of};
use super::shape::Shape;
use super::{Index, full_tag};
use crate::memory::prefetch;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Rule, broken};

/// A hash's first bucket at a glance.
pub(crate) struct Probe<'a> {
    index: &'a Index,
    shape: Shape,
    bucket: &'a Bucket,
    /// As it was while the bucket was surely the hash's; latched, which nobody can claim, if that is not sure.
    link: u64,
    tags: bucket::Tags,
    bits: u64,
}

impl Probe<'_> {
    /// Looks for the hash's full tag, here and in the buckets behind, and for a free entry.
    #[inline(always)]
    pub(crate) fn search(&self) -> Looked<'_> {
        let (equal, empty) = (self.tags.equal(self.bits), self.tags.empty());
        if equal != 0 {
            return Looked::entry(self.bucket.entry_of(equal));
        }
        if !self.tags.has_none_short(empty) {
            return Looked::Unclear;
        }
        let free = (empty != 0).then(|| self.bucket.entry_of(empty));
        if next_of(self.link) != 0 {
            // By its link as it was seen: if that stood still when the claim is made, so did all that it leads to.
            return self.index.search_behind(self.link, self.bits, free);
        }
        free.map_or(Looked::Unclear, Looked::Free)
    }

    /// The hash's entry that [`Probe::search`] found, or the free one for a hash that had none. The bucket stays latched until the claim
    /// is dropped. `None` if something changed since.
    #[inline(always)]
    pub(crate) fn claim<'a>(&'a self, entry: &'a AtomicU64) -> Option<Claim<'a>> {
        // The shape stood still until the link was read, so no split of this bucket had ended by then; one that ends later
        // changes the version. If the latch is ours, this is still the hash's place.
        let latched =
            bucket::is_quiet(self.link) && (broken(Rule::ClaimAsksShape) || self.index.stands(self.shape)) && self.latch_unchanged();
        latched.then(|| Claim { bucket: self.bucket, link: self.link, entry, bits: self.bits })
    }

    #[inline(always)]
    fn latch_unchanged(&self) -> bool {
        if broken(Rule::ClaimUnchanged) {
            self.bucket.latch();
            return true;
        }
        self.bucket.latch_quiet(self.link)
    }
}

/// What a [`Probe`] found for its hash.
pub(crate) enum Looked<'a> {
    /// This entry has the full tag and leads to this address (which may be 0 when the entry is being removed).
    Entry(&'a AtomicU64, u64),
    /// No entry stands for the hash, and this one is free.
    Free(&'a AtomicU64),
    /// There are short tags, or there is no free entry.
    Unclear,
}

impl<'a> Looked<'a> {
    #[inline(always)]
    fn entry(entry: &'a AtomicU64) -> Self {
        // Acquire: as in [`Index::first_match`].
        Self::Entry(entry, address_of(entry.load(Acquire)))
    }
}

/// An entry of the hash's own, or a free one, in a latched bucket or in one behind it.
pub(crate) struct Claim<'a> {
    bucket: &'a Bucket,
    link: u64,
    entry: &'a AtomicU64,
    bits: u64,
}

impl Claim<'_> {
    /// Makes a free one the entry of the record `at`, which leads nowhere.
    #[inline(always)]
    pub(crate) fn fill(self, at: u64) {
        // Release: the record's bytes are visible to whoever finds the address.
        self.entry.store(entry_word(full_tag(self.bits), at) | SOLE, Release);
    }

    /// Makes it the entry of the record `at`, of the same key as the one it led to.
    #[inline(always)]
    pub(crate) fn refill(self, at: u64) {
        let marks = self.entry.load(Relaxed) & MARKS;
        // Release: as above.
        self.entry.store(entry_word(full_tag(self.bits), at) | marks, Release);
    }
}

impl Drop for Claim<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if broken(Rule::ClaimUnchanged) { self.bucket.unlatch() } else { self.bucket.unlatch_to(self.link) }
    }
}

impl Index {
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.bucket_at(self.locate(hash).offset));
    }

    /// Fetches the bucket behind the hash's first one, which should be here by now, for who will walk through them. The address of the
    /// first entry that matches, or 0.
    #[inline(always)]
    pub(crate) fn prefetch_behind(&self, hash: u64) -> u64 {
        self.prefetch_next(self.bucket_at(self.locate(hash).offset));
        self.first_match_in_front(hash).0
    }

    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> Probe<'_> {
        let place = self.locate(hash);
        let bucket = self.bucket_at(place.offset);
        // Acquire, and before the tags: who finds the link unchanged later knows that they are.
        Probe { index: self, shape: place.shape, bucket, link: bucket.link(Acquire), tags: bucket.tags(), bits: place.bits }
    }

    /// The address of the first entry with the hash's full tag in its first bucket, or an address below every record: the whole of most
    /// lookups. No entry here says nothing; only [`Index::lookup`] can tell that there is none. The address's three lowest bits mean
    /// nothing: fit to look there, and to compare with where a record may begin.
    #[inline(always)]
    pub(crate) fn first_match(&self, hash: u64) -> u64 {
        let (place, home) = self.locate_from_home(hash);
        // SAFETY: as in `bucket_at`, at the same table.
        let bucket = unsafe { &*home.table().byte_add(place.offset as usize) };
        let equal = bucket.tags().equal(place.bits);
        // Acquire: pairs with the Release of its publication. Should the entry have changed since the comparison, the key
        // in the record will tell.
        if equal == 0 { 0 } else { near_address_of(bucket.entry_of(equal).load(Acquire)) }
    }

    /// [`Index::first_match`] in the first bucket alone, and whether an entry may lie where it did not look; starts fetching
    /// that.
    #[inline(always)]
    pub(crate) fn first_match_in_front(&self, hash: u64) -> (u64, bool) {
        let place = self.locate(hash);
        let bucket = self.bucket_at(place.offset);
        let tags = bucket.tags();
        let equal = tags.equal(place.bits);
        if equal != 0 {
            // Acquire: as above.
            return (address_of(bucket.entry_of(equal).load(Acquire)), false);
        }
        let has_next = self.prefetch_next(bucket);
        (0, has_next || tags.has_short())
    }

    /// Fetches the bucket behind this one, if there is one.
    #[inline(always)]
    fn prefetch_next(&self, bucket: &Bucket) -> bool {
        let next = bucket.next();
        if next != 0 {
            prefetch(self.overflow.bucket(next));
        }
        next != 0
    }

    /// The same of bucket `at`, for who goes from bucket to bucket: these are fetched by themselves.
    pub(crate) fn prefetch_chain(&self, at: u64) {
        self.prefetch_next(self.bucket(at));
    }

    /// [`Probe::search`] in the buckets behind a link, with what is free before them.
    #[inline(never)]
    fn search_behind<'a>(&'a self, link: u64, bits: u64, mut free: Option<&'a AtomicU64>) -> Looked<'a> {
        let mut next = next_of(link);
        while next != 0 {
            let part = self.overflow.bucket(next);
            let tags = part.tags();
            let (equal, empty) = (tags.equal(bits), tags.empty());
            if equal != 0 {
                let entry = part.entry_of(equal);
                // Acquire: as in [`Index::first_match`].
                let word = entry.load(Acquire);
                // The bucket may have been given back since: what is there then leads to no record.
                return if tag_of(word) == full_tag(bits) { Looked::Entry(entry, address_of(word)) } else { Looked::Unclear };
            }
            if !tags.has_none_short(empty) {
                return Looked::Unclear;
            }
            free = free.or((empty != 0).then(|| part.entry_of(empty)));
            next = part.next();
        }
        free.map_or(Looked::Unclear, Looked::Free)
    }
}
