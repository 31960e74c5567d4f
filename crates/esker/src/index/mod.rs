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
//! **One key a chain**: an entry says so if that is known. Then a record of the hash that the chain does not begin with is dead, and
//! compaction need not read what superseded it. Who publishes over an entry without having seen a record of his key in the chain takes that
//! back; who begins a chain says it anew.
//!
//! **A guess**: who puts over a cold chain without reading it counts an older version as dead. If there was none, for the key is new there
//! or had been deleted, the store believes that it is emptier than it is. The entry says that somebody guessed, until compaction finds out.
//!
//! **Who may do what**: readers take no latch; whoever changes an entry holds the bucket's latch. A change that *moves*
//! entries makes the version odd first and even after; "not found" counts only if version and shape stood still.

mod bucket;
mod growth;
#[cfg(all(loom, test))]
mod loom_models;
mod overflow;
mod probe;
mod publish;
mod restore;
mod shape;
mod shrink;
#[cfg(all(test, not(any(loom, shuttle))))]
mod shrink_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod walk;

use crate::error::Result;
use crate::memory::Region;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};
use crate::sync::{Mutex, Rule, Spins, broken, thread};
use bucket::{Bucket, GUESSED, MARKS, VERSION, VERSION_MASK, next_of, tag_of};
pub(crate) use bucket::{SOLE, address_of};
pub(crate) use growth::{Chain, Records};
use overflow::Overflow;
pub(crate) use probe::{Looked, Probe};
pub(crate) use publish::{Added, Keys, Published};
pub(crate) use shape::BUCKET_BITS;
use shape::{DOUBLING, Geometry, Place, Shape, TURNING, base};
pub(crate) use shrink::{Collision, Covers, Shrunk};
pub(crate) use walk::{Bucketful, position};

/// Consecutive looks of a sample lie this part of the table apart, of 2^64: the golden ratio spreads them evenly, and leaves none out,
/// however many buckets there are.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
const TAG_BITS: u32 = 15;
const FULL: u64 = 1 << TAG_BITS;
const FIRST_LEVEL: u32 = if cfg!(loom) { 1 } else { 8 };
/// A table of 2^31 buckets is not split any more.
const LAST_LEVEL: u32 = 31;

const SPACE_BYTES_MIN: usize = 1 << 26;
/// The table begins in small pages.
const SMALL_PAGE_BYTES: usize = 2 << 20;

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
    /// How many entries had been taken away that nothing stands for any more.
    gone: u64,
}

impl Seen {
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        address_of(self.entry)
    }

    /// True if both saw one entry, and it was the same.
    pub(crate) fn is_same_entry(&self, other: &Self) -> bool {
        (self.entry, self.offset) == (other.entry, other.offset)
    }

    /// True if the entry has a full tag. One that is shorter may match where the key's own was missed, while a bucket moves, and lead to
    /// what the key held before: a crash leaves such tags (`Index::raise`), and keys that were joined have two ways to their records.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.entry & FULL != 0
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
    /// The thread that took the last turn of growth.
    grower: Grower,
    populated: AtomicU64,
    shrinking: shrink::Shrinking,
    /// Some entry was shared for want of room: keys depend on what their records lead to.
    shared: AtomicBool,
    /// So often a split could not tell on which side a chain's keys are. (None of `sync.rs`: it only grows, and tells of what a latch shows.)
    twins: std::sync::atomic::AtomicU64,
    /// Entries that [`Index::remove_leading_to`] took away.
    gone: Gone,
    /// Entries that lead below are of no use, and go by a sweep (`compaction.rs`).
    dead_below: AtomicU64,
}

#[repr(align(128))]
struct Counted(AtomicU64);

/// (None of `sync.rs`: it changes under a bucket's latch.)
#[repr(align(128))]
#[derive(Default)]
struct Gone(std::sync::atomic::AtomicU64);

#[repr(align(128))]
#[derive(Default)]
struct Grower(AtomicUsize);

impl Index {
    /// `space`: the address space that its table should have, in bytes, a power of two.
    pub(crate) fn new(space: usize) -> Result<Self> {
        let table = Region::reserve(space, SPACE_BYTES_MIN)?;
        table.prefer_huge_pages(SMALL_PAGE_BYTES);
        let geometry = Geometry::new(table.base().cast(), FIRST_LEVEL);
        Ok(Self {
            shape: AtomicU64::new(Shape::new(FIRST_LEVEL, 0).0),
            geometry,
            table,
            overflow: Overflow::new(space / 4)?,
            entries: Counted(AtomicU64::new(0)),
            limit: AtomicU64::new(u64::MAX),
            growing: Mutex::default(),
            grower: Grower::default(),
            populated: AtomicU64::new(0),
            shrinking: shrink::Shrinking::default(),
            shared: AtomicBool::new(false),
            twins: std::sync::atomic::AtomicU64::new(0),
            gone: Gone::default(),
            dead_below: AtomicU64::new(0),
        })
    }

    #[inline(always)]
    fn bucket(&self, at: u64) -> &Bucket {
        debug_assert!((at as usize + 1) * 64 <= self.table.bytes());
        // SAFETY: `at` lies in the table, or where it ended a moment ago, or less than `RESERVE` buckets behind it: the region has those,
        // too, before the table grows (`growth.rs`). Fresh memory is all empty entries.
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

    /// The entry for `hash`, without a latch.
    #[inline(always)]
    pub(crate) fn lookup(&self, hash: u64) -> Seen {
        let (turns_back, gone) = (self.turns_back(), self.gone.0.load(Acquire));
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
        // A tag that was there when the tags were read, and is not, was shortened: or the entry has gone.
        let has_changed = equal != 0 && !broken(Rule::ShortenedIsFound);
        if entry == 0 && (has_changed || next_of(link) != 0 || tags.has_short()) {
            entry = self.lookup_further(bucket, place.tag());
        }
        Seen { entry, offset: place.offset, version: link & VERSION_MASK, shape: place.shape, turns_back, gone }
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

    /// Where the longest entry leads that matches and is not full.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn shorter_match_for_test(&self, hash: u64) -> Option<u64> {
        let place = self.locate(hash);
        let words = self.chain(self.bucket_at(place.offset)).flat_map(Bucket::entries).map(|slot| slot.load(Acquire));
        let bits = |word: &u64| if tag_of(*word) & FULL == 0 { match_bits(tag_of(*word), place.tag()) } else { None };
        words.filter(|word| bits(word).is_some()).max_by_key(bits).map(address_of)
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

    /// True if what `seen` leads to in memory is the key's newest.
    #[inline(always)]
    pub(crate) fn leads_surely(&self, seen: &Seen) -> bool {
        seen.is_full() || self.is_settled(seen)
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

    /// Latches the bucket that holds `hash`, whatever splits go on.
    #[inline(always)]
    fn latch(&self, hash: u64) -> Place {
        let mut spins = Spins::default();
        loop {
            let place = self.locate(hash);
            self.bucket_at(place.offset).latch();
            // A split of this bucket changes the shape under its latch, which we hold now.
            if self.stands(place.shape) || broken(Rule::LatchLooksAgain) {
                return place;
            }
            let now = self.locate(hash);
            let stands = self.stands(now.shape) || broken(Rule::LatchedLookStands) && !now.shape.is_turning();
            if (now.offset, now.bits) == (place.offset, place.bits) && stands {
                return now;
            }
            self.bucket_at(place.offset).unlatch();
            // Who turns the level may have lost its processor to us.
            spins.pause();
        }
    }

    /// So often a split could not tell: then two entries lead to one chain.
    pub(crate) fn twins(&self) -> u64 {
        self.twins.load(Acquire)
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

    /// The next bucket of a sample: consecutive looks are spread evenly over the table.
    pub(crate) fn sampled_bucket(&self, looks: &AtomicU64) -> u64 {
        let part = looks.fetch_add(1, Relaxed).wrapping_mul(STRIDE);
        ((u128::from(part) * u128::from(self.buckets())) >> 64) as u64
    }

    /// All addresses in one bucket: a moment's look, unless it is latched.
    pub(crate) fn addresses(&self, at: u64) -> Vec<u64> {
        self.words(at).into_iter().map(address_of).collect()
    }

    /// All entries of one bucket, in the same way.
    pub(crate) fn words(&self, at: u64) -> Vec<u64> {
        let all = self.chain(self.bucket(at)).flat_map(Bucket::entries);
        // Without a latch the bucket behind may have become free just now: then it has numbers of the free list, which have no tag.
        all.map(|slot| slot.load(Acquire)).filter(|word| tag_of(*word) != 0).collect()
    }

    /// All entries of one bucket at one moment, for images, with such marks; nothing may split meanwhile. Others go on: no latch is taken,
    /// so that an image does not write to a line that it only reads.
    pub(crate) fn words_at_once(&self, at: u64, marks: u64, words: &mut Vec<u64>) {
        let bucket = self.bucket(at);
        loop {
            words.clear();
            let before = bucket.link(Acquire);
            let all = self.chain(bucket).flat_map(Bucket::entries);
            words.extend(all.map(|slot| slot.load(Acquire) & (marks | !MARKS)).filter(|word| *word != 0));
            // Acquire fence: the entries were loaded before the link is looked at again. Whoever changes one holds the latch, and
            // leaves another version.
            fence(Acquire);
            if before & bucket::LATCH == 0 && bucket.link(Relaxed) == before {
                return;
            }
            thread::yield_now();
        }
    }

    /// The shape, for images and manifests, of an index that nothing was put into yet.
    pub(crate) fn first_shape() -> u64 {
        Shape::new(FIRST_LEVEL, 0).0
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

    /// Buckets that there may be more.
    fn room(&self) -> u64 {
        self.limit.load(Relaxed).saturating_sub(self.buckets_in_all())
    }
}
