//! The index: hash -> newest address, in cache-line buckets, growing a few buckets at a time.
//!
//! ```text
//! table:     bucket 0 ... p ... N ... N + p       N = 2^level; buckets below p are split into i and i + N
//! bucket:    seven entries [address 48 | tag 16] and a link (`bucket.rs`); full buckets lead into a pool (`overflow.rs`)
//! tag:       1 followed by v hash bits, v = 15 for a full tag:  1bbb bbbb bbbb bbbb,  v = 3:  0000 0000 0000 1bbb
//! ```
//! **Growth** is linear hashing (Litwin 1980), paid for by those who insert (`growth.rs`). No second table, no copy of what
//! stays, and it can stop at any bucket when the memory share is spent.
//!
//! **A split never reads the device**: a tag holds the hash bits from `base(level)` up, so the bit that decides the side
//! is in the tag. Every few doublings the base moves up; records in memory get a fresh full tag from their key, the
//! others keep a *shorter* tag: the bits still known. **Shrinking** is the same backwards (`shrink.rs`).
//!
//! **A tag may be short**, then it stands for all hashes that agree on its bits. A lookup takes the longest match. An
//! entry is added only when nothing matches; a full bucket without overflow room shortens its closest entry until it
//! matches. Both keep a key's chain at its longest match (shortening to the common prefix with an unmatched tag cannot
//! touch another tag's longest match when, of equally close entries, the shortest is taken).
//!
//! **One key a chain**: an entry says so if that is known. Then a record of the hash that the chain does not begin with is dead, and compaction need
//! not read what superseded it. Who publishes over an entry without having seen a record of his key in the chain takes that back; who begins a chain says it anew.
//!
//! **A guess**: who puts over a cold chain without reading it counts an older version as dead. If there was none, for the key is new there or had been deleted,
//! the store believes that it is emptier than it is. The entry says that somebody guessed, until compaction finds out.
//!
//! **Who may do what**: readers take no latch; whoever changes an entry holds the bucket's latch. A change that *moves*
//! entries makes the version odd first and even after; "not found" counts only if version and shape stood still.

mod bucket;
mod growth;
#[cfg(all(loom, test))]
mod loom_models;
mod overflow;
mod shrink;
#[cfg(all(test, not(loom)))]
mod shrink_tests;
mod walk;

use crate::error::Result;
use crate::memory::{Region, prefetch};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{Mutex, Rule, broken, hint, thread};
pub(crate) use bucket::address_of;
use bucket::{Base, Bucket, GUESSED, MARKS, SOLE, VERSION, VERSION_MASK, Wanted, entry_word, near_address_of, next_of, tag_of};
use overflow::Overflow;
use std::hint::select_unpredictable;

const TAG_BITS: u32 = 15;
const FULL: u64 = 1 << TAG_BITS;
const FIRST_LEVEL: u32 = if cfg!(loom) { 1 } else { 8 };

/// The table begins in small pages.
const SMALL_PAGE_BYTES: usize = 2 << 20;

/// The table's shape in one word: the byte offset of the last bucket and, above, what goes on. Between two doublings it is
/// nothing but the mask that makes a hash the offset of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Shape(u64);

/// Some buckets of this level are split, some are not.
const DOUBLING: u64 = 1 << 63;
/// The level is about to change: what `Geometry` says may belong to the old or the new one.
const TURNING: u64 = 1 << 62;
/// The number of a hash's bucket begins at this bit: a bucket has 64 bytes.
const BUCKET_BITS: u32 = 6;

impl Shape {
    fn new(level: u32, split: u64) -> Self {
        let last = ((1 << level) + split - 1) << BUCKET_BITS;
        Self(if split == 0 { last } else { last | DOUBLING })
    }
    fn buckets(self) -> u64 {
        ((self.0 & !(DOUBLING | TURNING)) >> BUCKET_BITS) + 1
    }
    /// While it turns, all buckets of the old level are split: the same as the new level with none.
    fn level(self) -> u32 {
        self.buckets().ilog2()
    }
    fn split(self) -> u64 {
        self.buckets() - (1 << self.level())
    }
    #[inline(always)]
    fn is_turning(self) -> bool {
        self.0 & TURNING != 0
    }
}

/// What follows from the level, worked out beforehand: `locate` runs in every operation.
#[derive(Default)]
struct Geometry {
    low_mask: AtomicU64,
    high_mask: AtomicU64,
    /// The first hash bit of tags in buckets that wait for their split, and in those that had it.
    unsplit_base: Base,
    split_base: Base,
}

impl Geometry {
    fn set(&self, level: u32) {
        self.low_mask.store(((1 << level) - 1) << BUCKET_BITS, Relaxed);
        self.high_mask.store(((2 << level) - 1) << BUCKET_BITS, Relaxed);
        self.unsplit_base.set(base(level) + BUCKET_BITS);
        self.split_base.set(base(level + 1) + BUCKET_BITS);
    }
}

/// Where a hash belongs.
#[derive(Clone, Copy)]
struct Place {
    /// The bucket's offset in the table, in bytes.
    offset: u64,
    /// The hash from the first bit on that tags in this bucket hold.
    bits: u64,
    shape: Shape,
}

impl Place {
    fn tag(&self) -> u64 {
        full_tag(self.bits)
    }
    fn number(&self) -> u64 {
        self.offset >> BUCKET_BITS
    }
}

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

/// Says to the compiler that the common case should be the straight line, without a jump.
#[cold]
#[inline(always)]
fn out_of_line() {}

/// The first bit, of the hash above `BUCKET_BITS`, that tags at this level hold. Constant for six doublings, so that at least nine bits tell.
fn base(level: u32) -> u32 {
    if level <= 14 { level } else { 14 + (level - 14) / 6 * 6 }
}

#[inline(always)]
fn full_tag(bits: u64) -> u64 {
    (bits & (FULL - 1)) | FULL
}

fn valid_bits(tag: u64) -> u32 {
    63 - tag.leading_zeros()
}

/// How many bits `tag` has if it stands for the full tag `full`.
fn match_bits(tag: u64, full: u64) -> Option<u32> {
    if tag == 0 {
        return None;
    }
    let bits = valid_bits(tag);
    (tag & !(1 << bits) == full & ((1 << bits) - 1)).then_some(bits)
}

/// What a lookup saw, and what makes "not found" true: the same bucket, unmoved.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The matching entry's word, 0 if there was none.
    pub(crate) entry: u64,
    offset: u64,
    version: u64,
    shape: Shape,
    /// How often the level had turned back.
    turns_back: u64,
}

impl Seen {
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        address_of(self.entry)
    }

    /// True if all records of the entry's chain are known to be of one key.
    pub(crate) fn is_sole(&self) -> bool {
        self.entry & SOLE != 0
    }

    /// True if somebody guessed that he superseded a record of the chain.
    pub(crate) fn is_guessed(&self) -> bool {
        self.entry & GUESSED != 0
    }
}

/// What is known of the chain that a record to be published heads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Nothing.
    Unknown,
    /// Nothing, and it was counted as if there were another record of the key.
    Guessed,
    /// There is another record of the key in it.
    OwnIsThere,
    /// The record is alone in it.
    OwnAlone,
}

/// How a publication ended.
pub(crate) enum Published {
    Done,
    /// Someone else changed the entry: look again.
    Changed,
    /// The new address is below the entry's; chains must descend. Allocate again.
    TooLow,
}

pub(crate) use growth::{Chain, Records};
pub(crate) use shrink::{Collision, Covers, Shrunk};
pub(crate) use walk::{Bucketful, position};

pub(crate) struct Index {
    shape: AtomicU64,
    geometry: Geometry,
    table: Region,
    overflow: Overflow,
    /// Entries there are, counted now and then by those who add them; on a line of its own.
    entries: Counted,
    /// Buckets plus overflow buckets that may exist.
    limit: AtomicU64,
    growing: Mutex<growth::Workspace>,
    populated: AtomicU64,
    shrinking: shrink::Shrinking,
    /// Some entry was shared for want of room: keys depend on what their records lead to.
    shared: AtomicBool,
}

#[repr(align(128))]
struct Counted(AtomicU64);

impl Index {
    pub(crate) fn new() -> Result<Self> {
        let table = Region::reserve(1 << 38, 1 << 28)?;
        table.prefer_huge_pages(SMALL_PAGE_BYTES);
        let geometry = Geometry::default();
        geometry.set(FIRST_LEVEL);
        Ok(Self {
            shape: AtomicU64::new(Shape::new(FIRST_LEVEL, 0).0),
            geometry,
            table,
            overflow: Overflow::new()?,
            entries: Counted(AtomicU64::new(0)),
            limit: AtomicU64::new(u64::MAX),
            growing: Mutex::default(),
            populated: AtomicU64::new(0),
            shrinking: shrink::Shrinking::default(),
            shared: AtomicBool::new(false),
        })
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        // Acquire: pairs with the Release in `growth.rs`; the new bucket's entries are visible.
        Shape(self.shape.load(Acquire))
    }

    /// True if this shape, read before, stood still until now: what was worked out from it held all the time.
    #[inline(always)]
    fn stands(&self, shape: Shape) -> bool {
        // Acquire fence: whoever read the geometry of another level, or a bucket after its split, sees the shape that came
        // before that.
        if !broken(Rule::GeometryShowsTurn) {
            fence(Acquire);
        }
        !shape.is_turning() && self.shape.load(Relaxed) == shape.0
    }

    #[inline(always)]
    fn bucket(&self, at: u64) -> &Bucket {
        debug_assert!((at as usize + 1) * 64 <= self.table.bytes());
        // SAFETY: `at` is below twice the level's buckets, which the region holds; fresh memory is all empty entries.
        unsafe { &*self.table.base().cast::<Bucket>().add(at as usize) }
    }

    #[inline(always)]
    fn bucket_at(&self, offset: u64) -> &Bucket {
        debug_assert!(offset.is_multiple_of(64) && (offset as usize) < self.table.bytes());
        // SAFETY: as in `bucket`; offsets come from `locate`, whose masks leave multiples of 64.
        unsafe { &*self.table.base().add(offset as usize).cast::<Bucket>() }
    }

    /// The bucket and those behind it.
    fn chain<'a>(&'a self, bucket: &'a Bucket) -> impl Iterator<Item = &'a Bucket> {
        std::iter::successors(Some(bucket), |at| {
            let next = at.next();
            (next != 0).then(|| self.overflow.bucket(next))
        })
    }

    #[inline(always)]
    fn locate(&self, hash: u64) -> Place {
        let shape = self.shape();
        if shape.0 & DOUBLING != 0 {
            out_of_line();
            return self.locate_doubling(hash, shape);
        }
        Place { offset: hash & shape.0, bits: hash >> self.geometry.unsplit_base.get(), shape }
    }

    /// While the level turns the answer may mix old and new: a wrong bucket, whose "not found" does not settle.
    #[inline(always)]
    fn locate_doubling(&self, hash: u64, shape: Shape) -> Place {
        let low_mask = self.geometry.low_mask.load(Relaxed);
        let (low, high) = (hash & low_mask, hash & self.geometry.high_mask.load(Relaxed));
        // The last bucket's number is N + p - 1, and N - 1 the mask: what is left is p.
        let is_split = low < (shape.0 & !(DOUBLING | TURNING)).wrapping_sub(low_mask);
        let offset = select_unpredictable(is_split, high, low);
        let base = select_unpredictable(is_split, self.geometry.split_base.get(), self.geometry.unsplit_base.get());
        Place { offset, bits: hash >> base, shape }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.bucket_at(self.locate(hash).offset));
    }

    /// Fetches the bucket behind the hash's first one, which should be here by now, for who will walk through them. The address of the first
    /// entry that matches, or 0.
    #[inline(always)]
    pub(crate) fn prefetch_behind(&self, hash: u64) -> u64 {
        let next = self.bucket_at(self.locate(hash).offset).next();
        if next != 0 {
            prefetch(self.overflow.bucket(next));
        }
        self.first_match_in_front(hash).0
    }

    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> Probe<'_> {
        let place = self.locate(hash);
        let bucket = self.bucket_at(place.offset);
        // Acquire, and before the tags: who finds the link unchanged later knows that they are.
        Probe { index: self, shape: place.shape, bucket, link: bucket.link(Acquire), tags: bucket.tags(), bits: place.bits }
    }

    /// The address of the first entry with the hash's full tag in its first bucket, or an address below every record: the whole of
    /// most lookups. No entry here says nothing; only [`Index::lookup`] can tell that there is none. The address's three lowest bits mean nothing: fit
    /// to look there, and to compare with where a record may begin.
    #[inline(always)]
    pub(crate) fn first_match(&self, hash: u64) -> u64 {
        let (offset, wanted) = self.glance(hash);
        let bucket = self.bucket_at(offset);
        let equal = bucket.tags().equal_to(wanted);
        // Acquire: pairs with the Release of its publication. Should the entry have changed since the comparison, the key
        // in the record will tell.
        if equal == 0 { 0 } else { near_address_of(bucket.entry_of(equal).load(Acquire)) }
    }

    /// [`Index::locate`] for who does not need to know later: what it finds out takes as few general registers as can be.
    #[inline(always)]
    fn glance(&self, hash: u64) -> (u64, Wanted) {
        let shape = self.shape();
        if shape.0 & DOUBLING != 0 {
            out_of_line();
            let place = self.locate_doubling(hash, shape);
            return (place.offset, Wanted::of_bits(place.bits));
        }
        (hash & shape.0, Wanted::of_hash(hash, &self.geometry.unsplit_base))
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
        let next = bucket.next();
        if next != 0 {
            prefetch(self.overflow.bucket(next));
        }
        (0, next != 0 || tags.has_short())
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
                return Looked::entry(part.entry_of(equal));
            }
            if !tags.has_none_short(empty) {
                return Looked::Unclear;
            }
            free = free.or((empty != 0).then(|| part.entry_of(empty)));
            next = part.next();
        }
        free.map_or(Looked::Unclear, Looked::Free)
    }

    /// Adds an entry for a hash that none stands for. `make` makes the record once that is sure, `link_to` makes it lead to
    /// the record of an entry that it has to share. True if there is an entry more; `None` if nothing was done, because
    /// there is an entry, or `make` made nothing, or the record lies too low.
    #[inline(never)]
    pub(crate) fn add(&self, hash: u64, make: impl FnOnce() -> Option<u64>, link_to: impl FnOnce(u64, u64)) -> Option<bool> {
        let place = self.latch(hash);
        let added = self.add_latched(place, make, link_to);
        self.bucket_at(place.offset).unlatch();
        added
    }

    fn add_latched(&self, place: Place, make: impl FnOnce() -> Option<u64>, link_to: impl FnOnce(u64, u64)) -> Option<bool> {
        if self.find(self.bucket_at(place.offset), place.tag()).is_some() && !broken(Rule::LookLatched) {
            return None;
        }
        let at = make()?;
        let mut added = false;
        match self.add_entry(place, at, Keys::OwnAlone, &mut added, |previous| link_to(at, previous)) {
            Published::Done => Some(added),
            _ => None,
        }
    }

    /// The entry for `hash`, without a latch.
    #[inline(always)]
    pub(crate) fn lookup(&self, hash: u64) -> Seen {
        let turns_back = self.turns_back();
        let place = self.locate(hash);
        let bucket = self.bucket_at(place.offset);
        let link = bucket.link(Acquire);
        let tags = bucket.tags();
        let equal = tags.equal(place.bits);
        let mut entry = 0;
        if equal != 0 {
            let word = bucket.entry_of(equal).load(Acquire);
            if tag_of(word) == place.tag() {
                entry = word;
            }
        }
        if entry == 0 && (next_of(link) != 0 || tags.has_short()) {
            entry = self.lookup_further(bucket, place.tag());
        }
        Seen { entry, offset: place.offset, version: link & VERSION_MASK, shape: place.shape, turns_back }
    }

    #[cold]
    #[inline(never)]
    fn lookup_further(&self, bucket: &Bucket, tag: u64) -> u64 {
        self.find(bucket, tag).map_or(0, |(_, word)| word)
    }

    /// The entry for a full tag: a full match if there is one, else the longest short one.
    fn find<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<(&'a AtomicU64, u64)> {
        let mut has_short = false;
        for part in self.chain(bucket) {
            let equal = part.tags().equal(tag);
            if equal != 0 {
                let word = part.entry_of(equal).load(Acquire);
                if tag_of(word) == tag {
                    return Some((part.entry_of(equal), word));
                }
            }
            has_short |= part.tags().has_short();
        }
        if has_short { self.longest_match(bucket, tag) } else { None }
    }

    fn longest_match<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<(&'a AtomicU64, u64)> {
        let mut best: Option<(u32, &AtomicU64, u64)> = None;
        for part in self.chain(bucket) {
            for slot in part.entries() {
                let word = slot.load(Acquire);
                if let Some(bits) = match_bits(tag_of(word), tag)
                    && best.is_none_or(|(most, ..)| bits > most)
                {
                    best = Some((bits, slot, word));
                }
            }
        }
        best.map(|(_, slot, word)| (slot, word))
    }

    /// True if an absence concluded from `seen` holds: nothing was moving, nothing has moved.
    #[inline(always)]
    pub(crate) fn is_settled(&self, seen: &Seen) -> bool {
        let link = || self.bucket_at(seen.offset).link(Relaxed);
        let early = broken(Rule::EntriesBeforeVersion).then(link);
        // The shape first: it may have come back, which the version would tell (`shrink.rs`). Its fence is an Acquire one: the entry
        // loads above happen before.
        if !broken(Rule::ShapeStandsStill) && !broken(Rule::VersionIsLast) && !self.stands(seen.shape) {
            return false;
        }
        // Acquire fence: the shape was loaded before the version is read again.
        fence(Acquire);
        let stood_still = seen.version & VERSION == 0 && early.unwrap_or_else(link) & VERSION_MASK == seen.version;
        // Who asks need not have been pinned all the time: the level may have turned there and back, and geometry has no version.
        stood_still && (!broken(Rule::VersionIsLast) || self.stands(seen.shape)) && self.turns_back() == seen.turns_back
    }

    /// Points the entry of `hash` at the new record `at`, if it is still what `seen` saw.
    /// `link_to` is called before publication when the record must also lead to an entry that it will share.
    pub(crate) fn publish(&self, hash: u64, seen: &Seen, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        let place = self.latch(hash);
        let outcome = self.publish_latched(place, seen, at, keys, added, link_to);
        self.bucket_at(place.offset).unlatch();
        outcome
    }

    /// Removes the entry of `hash`, which nobody needs any more, if it is still what `seen` saw; false if it is not. It stays if
    /// a shorter one would stand for the hash then: that may lead to what this one superseded.
    pub(crate) fn remove(&self, hash: u64, seen: &Seen) -> bool {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let found = self.find(bucket, place.tag()).filter(|(_, word)| *word == seen.entry);
        let is_last = self.matches(bucket, place.tag()) == 1;
        if let (Some((slot, _)), true) = (found, is_last) {
            slot.store(0, Release);
            self.entries.0.fetch_add(1u64.wrapping_neg(), Relaxed);
            if bucket.next() != 0 {
                self.close_up(place.number());
            }
        }
        bucket.unlatch();
        found.is_some()
    }

    /// All records of the chain that begins at `head` were seen to be of one key.
    pub(crate) fn confirm_sole(&self, hash: u64, head: u64) {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        if let Some((slot, word)) = self.find(bucket, place.tag()).filter(|(_, word)| address_of(*word) == head) {
            // And where somebody guessed, he was right.
            slot.store((word | SOLE) & !GUESSED, Release);
        }
        bucket.unlatch();
    }

    /// Whether it was right or wrong is known of a guess in the chain that begins at `head`. False if there is none any more.
    pub(crate) fn settle_guess(&self, hash: u64, head: u64) -> bool {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let guessed = self.find(bucket, place.tag()).filter(|(_, word)| address_of(*word) == head && word & GUESSED != 0);
        if let Some((slot, word)) = guessed {
            slot.store(word & !GUESSED, Release);
        }
        bucket.unlatch();
        guessed.is_some()
    }

    /// How many entries stand for a full tag.
    fn matches(&self, bucket: &Bucket, tag: u64) -> usize {
        let slots = self.chain(bucket).flat_map(Bucket::entries);
        slots.filter(|slot| match_bits(tag_of(slot.load(Relaxed)), tag).is_some()).count()
    }

    fn publish_latched(&self, place: Place, seen: &Seen, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        match self.find(self.bucket_at(place.offset), place.tag()) {
            Some((_, word)) if address_of(word) != seen.address() && !broken(Rule::LookLatched) => Published::Changed,
            Some((_, word)) if address_of(word) > at => Published::TooLow,
            Some((slot, word)) => {
                let marks = match keys {
                    Keys::Unknown => word & GUESSED,
                    Keys::Guessed => GUESSED,
                    Keys::OwnIsThere => word & MARKS,
                    Keys::OwnAlone => SOLE,
                };
                slot.store(entry_word(tag_of(word), at) | marks, Release);
                Published::Done
            }
            None if seen.entry != 0 => Published::Changed,
            None => self.add_entry(place, at, keys, added, link_to),
        }
    }

    fn add_entry(&self, place: Place, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        if let Some(slot) = self.empty_entry(place.number()) {
            let sole = if keys == Keys::OwnAlone { SOLE } else { 0 };
            slot.store(entry_word(place.tag(), at) | sole, Release);
            *added = true;
            return Published::Done;
        }
        let (slot, common) = self.closest(self.bucket_at(place.offset), place.tag());
        let word = slot.load(Relaxed);
        if address_of(word) > at {
            return Published::TooLow;
        }
        self.shared.store(true, Relaxed);
        link_to(address_of(word));
        let short = (1 << common) | (place.tag() & ((1 << common) - 1));
        slot.store(entry_word(short, at) | word & GUESSED, Release);
        Published::Done
    }

    fn empty_entry(&self, at: u64) -> Option<&AtomicU64> {
        let mut last = self.bucket(at);
        for part in self.chain(last) {
            let empty = part.tags().empty();
            if empty != 0 {
                return Some(part.entry_of(empty));
            }
            last = part;
        }
        let fresh = self.overflow.take(at, self.may_grow())?;
        last.set_next(fresh);
        Some(self.overflow.bucket(fresh).entry(0))
    }

    /// Of the entries with the most bits in common with `tag` the one with the shortest tag, and that number of bits.
    fn closest<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> (&'a AtomicU64, u32) {
        let scored = self.chain(bucket).flat_map(Bucket::entries).map(|slot| {
            let word = slot.load(Relaxed);
            let bits = valid_bits(tag_of(word));
            let common = (tag_of(word) ^ tag).trailing_zeros().min(bits);
            (common, bits, slot)
        });
        let (common, _, slot) = scored
            .reduce(|a, b| if (b.0, TAG_BITS - b.1) > (a.0, TAG_BITS - a.1) { b } else { a })
            .unwrap_or_else(|| unreachable!("a bucket has seven entries"));
        (slot, common)
    }

    /// Latches the bucket that holds `hash`, whatever splits go on.
    #[inline(always)]
    fn latch(&self, hash: u64) -> Place {
        loop {
            let place = self.locate(hash);
            self.bucket_at(place.offset).latch();
            // A split of this bucket changes the shape under its latch, which we hold now.
            if self.stands(place.shape) || broken(Rule::LatchLooksAgain) {
                return place;
            }
            let now = self.locate(hash);
            if (now.offset, now.bits) == (place.offset, place.bits) && !now.shape.is_turning() {
                return now;
            }
            self.bucket_at(place.offset).unlatch();
            hint::spin_loop();
        }
    }

    fn buckets_in_all(&self) -> u64 {
        self.shape().buckets() + self.overflow.buckets()
    }

    /// Sets how many bytes the index may take; what it has it keeps.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes / 64, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buckets_in_all() * 64
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.shape().buckets()
    }

    pub(crate) fn overflow_buckets(&self) -> u64 {
        self.overflow.buckets_in_use()
    }

    /// Entries that were counted: threads count theirs some at a time.
    pub(crate) fn entries(&self) -> u64 {
        self.entries_with(0)
    }

    /// The same with those that threads still hold back. Removals are counted at once: alone the counter may be below zero.
    pub(crate) fn entries_with(&self, held_back: u64) -> u64 {
        (self.entries.0.load(Relaxed).wrapping_add(held_back) as i64).max(0) as u64
    }

    pub(crate) fn add_to_count(&self, entries: u64) {
        self.entries.0.fetch_add(entries, Relaxed);
    }

    /// All addresses in one bucket, for statistics.
    pub(crate) fn addresses(&self, at: u64) -> Vec<u64> {
        self.words(at).into_iter().map(address_of).collect()
    }

    /// All entries of one bucket, for statistics.
    fn words(&self, at: u64) -> Vec<u64> {
        let all = self.chain(self.bucket(at)).flat_map(Bucket::entries);
        all.map(|slot| slot.load(Acquire)).filter(|word| *word != 0).collect()
    }

    /// All entries of one bucket at one moment, for images, as tags and addresses alone; nothing may split meanwhile. Others go on: no latch is taken, so
    /// that an image does not write to a line that it only reads.
    pub(crate) fn words_at_once(&self, at: u64, words: &mut Vec<u64>) {
        let bucket = self.bucket(at);
        loop {
            words.clear();
            let before = bucket.link(Acquire);
            let all = self.chain(bucket).flat_map(Bucket::entries);
            words.extend(all.map(|slot| slot.load(Acquire) & !MARKS).filter(|word| *word != 0));
            // Acquire fence: the entries were loaded before the link is looked at again. Whoever changes one holds the latch, and
            // leaves another version.
            fence(Acquire);
            if before & bucket::LATCH == 0 && bucket.link(Relaxed) == before {
                return;
            }
            thread::yield_now();
        }
    }

    /// The shape, for images and manifests.
    pub(crate) fn shape_word(&self) -> u64 {
        let shape = self.shape();
        Shape::new(shape.level(), shape.split()).0
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    pub(crate) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Relaxed);
    }

    fn may_grow(&self) -> bool {
        self.buckets_in_all() < self.limit.load(Relaxed)
    }

    // ---- recovery ------------------------------------------------------------------------------------------------

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
        self.chain(bucket).any(|part| part.tags().empty() != 0) || self.may_grow() || self.overflow.has_free()
    }

    /// Empties the index. Before the store is shared.
    pub(crate) fn clear(&self) {
        (0..self.buckets()).for_each(|at| self.refill(at, &[]));
        self.entries.0.store(0, Relaxed);
    }

    /// Takes the shape of an image; the caller then restores each bucket. Before the store is shared.
    pub(crate) fn restore_shape(&self, word: u64) -> bool {
        let shape = Shape(word);
        let fits = shape.buckets() as usize <= self.table.bytes() / 64
            && (FIRST_LEVEL..31).contains(&shape.level())
            && word == Shape::new(shape.level(), shape.split()).0;
        if fits {
            self.geometry.set(shape.level());
            self.shape.store(word, Release);
        }
        fits
    }

    /// Words as in an image, whose chains may lead to any keys.
    pub(crate) fn restore(&self, at: u64, words: &[u64]) {
        self.refill(at, words);
        self.add_to_count(words.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(n: u64) -> u64 {
        let x = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        (x as u64) ^ (x >> 64) as u64
    }

    fn insert(index: &Index, hash: u64, at: u64) -> Option<u64> {
        let seen = index.lookup(hash);
        let mut linked = None;
        let mut added = false;
        assert!(matches!(index.publish(hash, &seen, at, Keys::Unknown, &mut added, |to| linked = Some(to)), Published::Done));
        index.add_to_count(u64::from(added));
        linked.or((seen.entry != 0).then_some(seen.address()))
    }

    struct Cold;

    impl Records for Cold {
        fn prefetch(&self, _: u64) {}
        fn chain(&self, _: u64) -> Chain {
            Chain::Unknown
        }
    }

    fn insert_growing(index: &Index, numbers: std::ops::Range<u64>, previous: &mut std::collections::HashMap<u64, Option<u64>>) {
        for n in numbers {
            previous.insert(n * 8, insert(index, mix(n), n * 8));
            index.grow(0, &Cold);
        }
    }

    fn all_reachable(index: &Index, numbers: std::ops::Range<u64>, previous: &std::collections::HashMap<u64, Option<u64>>) {
        for n in numbers {
            let mut at = Some(index.lookup(mix(n)).address());
            while at != Some(n * 8) {
                at = previous[&at.expect("the chain ends too early")];
            }
        }
    }

    #[test]
    fn entries_stay_reachable_while_the_table_grows() {
        let index = Index::new().unwrap();
        let mut previous = std::collections::HashMap::new();
        insert_growing(&index, 1..60_000, &mut previous);
        assert!(index.buckets() > 60_000 / 10, "{} buckets", index.buckets());
        all_reachable(&index, 1..60_000, &previous);
    }

    /// As many come as go: overflow buckets are those that this many entries need, however long it goes on.
    #[test]
    fn where_as_many_go_as_come_overflow_stays_small() {
        let index = Index::new().unwrap();
        let mut previous = std::collections::HashMap::new();
        const LIVE: u64 = 20_000;
        insert_growing(&index, 1..LIVE, &mut previous);
        let first = index.overflow_buckets();
        for n in LIVE..40 * LIVE {
            insert(&index, mix(n), n * 8);
            let gone = mix(n - LIVE + 1);
            let seen = index.lookup(gone);
            // Two that share an entry went with the first.
            assert!(seen.entry == 0 || index.remove(gone, &seen));
        }
        let (last, buckets) = (index.overflow_buckets(), index.buckets());
        assert!(last < first + buckets / 4, "{first} overflow buckets, then {last}, of {buckets} buckets");
    }

    #[test]
    fn a_full_share_shortens_tags_and_loses_nothing() {
        let index = Index::new().unwrap();
        index.set_limit(1 << 15);
        let mut previous = std::collections::HashMap::new();
        insert_growing(&index, 1..20_000, &mut previous);
        assert!(index.bytes() <= 1 << 15);
        index.set_limit(u64::MAX);
        while index.grow(0, &Cold) {}
        all_reachable(&index, 1..20_000, &previous);
    }

    #[test]
    fn an_entry_costs_at_most_fifteen_and_a_half_bytes_at_any_size() {
        let index = Index::new().unwrap();
        let mut worst = (0.0, 0);
        for n in 1..2_400_000u64 {
            insert(&index, mix(n), n * 8);
            index.grow(0, &Cold);
            // In small tables the overflow pool's slack counts.
            if n > 600_000 && index.bytes() as f64 / n as f64 > worst.0 {
                worst = (index.bytes() as f64 / n as f64, n);
            }
        }
        assert!(worst.0 < 15.5, "{} bytes an entry for {} entries", worst.0, worst.1);
    }
}
