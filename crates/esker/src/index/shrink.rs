//! Shrinking: linear hashing backwards. The bucket that was split last is merged with its sibling.
//!
//! ```text
//! shape (L, p):      0 .. p-1 .. N .. N+p-1          N = 2^L; bucket p-1 and its sibling N+p-1 become bucket p-1,
//! shape (L, p - 1):  0 .. p-1 .. N .. N+p-2          and at p = 0 the level turns back first
//! ```
//! **When**: below [`FEWEST`] entries a bucket, until there are [`ENOUGH`] again. Growth begins at five: the two do not fight.
//! One at a time, by whoever takes entries away (compaction) and by the driver; it holds `growing`, so nothing splits meanwhile, and no
//! pin. It touches no record, so it never reads the device.
//!
//! **Tags**: what a bucket's number said about its hashes and will say no more is added to each tag at its lower end. A short tag grows by
//! that, and nothing is lost; tags of the two siblings differ in the bit that told them apart. A full tag loses as many bits at its other
//! end where the base moves, and then stands for hashes that it did not stand for. That is nothing new if no entry stood for them. Else two
//! entries meet (once in thousands of merges): they need one chain, and the bucket stays as it is ([`Collision`]) until whoever knows
//! records has made one lead to the other (`joining.rs`).
//!
//! **Invariants**
//! * Both buckets are latched, and their versions odd, from before the first entry moves until the last one has. The lower bucket is
//!   filled before the shape leads to it, the upper one is emptied after: whoever finds an entry finds one that counts.
//! * **The shape may come back**: that it is the one seen before does not mean that it stood still. Who concludes an absence asks for the
//!   shape first and for the bucket's version after that. Every split and every merge changes the versions of both buckets before it
//!   changes the shape, so whoever finds shape and version as they were has looked at a bucket of that shape all the time.
//! * **The level comes back only after a drain**, and moves on only after one: nobody who is pinned sees it turn there and back, so
//!   geometry needs no version (an absence that is concluded later asks how often it turned back; and compaction, which latches buckets
//!   without a pin, holds what shrinking needs). Memory behind the table's end, which holds versions, goes back after a drain, too.
//! * **A line is described by the finest shape since the last image** ([`Index::finest_shape`]), not by the present one: recovery
//!   raises records by their full tags, which say enough only in a table as fine as every one that they were published in.

use super::bucket::{address_of, entry_word, tag_of};
use super::growth::Workspace;
use super::{Bucket, DOUBLING, FIRST_LEVEL, FULL, Index, Shape, TAG_BITS, TURNING, base, full_tag, match_bits, valid_bits};
use crate::memory::prefetch_to_write;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{MutexGuard, Rule, broken, try_lock};

/// Merges done at once, at most: some microseconds.
const MERGES_PER_TURN: u64 = 64;
/// Entries a bucket below which the table begins to shrink, and at which it stops.
const FEWEST: u64 = 2;
const ENOUGH: u64 = 3;
/// Bytes behind the table's end that may stay backed while it shrinks: each release costs a drain.
const RELEASE_BYTES: u64 = 256 << 10;

/// What shrinking remembers.
#[derive(Default)]
pub(super) struct Shrinking {
    is_under_way: AtomicBool,
    /// Buckets of the finest table since the last image.
    finest: AtomicU64,
    /// Bytes of the table that may be backed.
    touched: AtomicU64,
    /// How often the level turned back, or buckets lost their versions.
    turns_back: AtomicU64,
}

/// Two entries that would get the same tag: keys of one chain must be made to lead to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    /// The head of the chain whose keys are to be copied.
    pub(crate) chain: u64,
    /// The head of the chain that the copies shall lead to.
    pub(crate) onto: u64,
}

/// "Who has this entry needs no other one for what the chain that begins there holds."
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covers {
    pub(crate) head: u64,
    pub(crate) covered: u64,
}

/// How a turn of shrinking ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shrunk {
    /// As small as it should be, or somebody else is at it.
    Enough,
    Some,
    Held(Collision),
}

/// An entry as the merged bucket would have it, with more bits than a tag may have.
#[derive(Clone, Copy)]
struct Known {
    tag: u64,
    address: u64,
}

impl Index {
    /// How many merges the number of entries calls for.
    fn merges_due(&self) -> u64 {
        let (buckets, entries) = (self.shape().buckets(), self.entries());
        let is_under_way = self.shrinking.is_under_way.load(Relaxed);
        let due = buckets.saturating_sub((entries / ENOUGH).max(1 << FIRST_LEVEL));
        let goes_on = due > 0 && entries < buckets * if is_under_way { ENOUGH } else { FEWEST };
        if is_under_way != goes_on {
            self.shrinking.is_under_way.store(goes_on, Relaxed);
        }
        if goes_on { due } else { 0 }
    }

    /// One turn of what is due. Not under a pin; `drain` waits for all that are.
    pub(crate) fn shrink(&self, facts: &[Covers], drain: impl Fn()) -> Shrunk {
        if self.merges_due() == 0 && !self.is_end_backed(1) && !self.overflow.is_loose() {
            return Shrunk::Enough;
        }
        let Some(growing) = self.try_hold() else { return Shrunk::Enough };
        let due = self.merges_due().min(MERGES_PER_TURN);
        self.fetch_merges(due);
        let merged = (0..due).try_for_each(|_| self.merge_or_turn_back(facts, &drain));
        let overflow = self.overflow.buckets();
        self.tidy(due.max(1));
        self.release_end(&growing, if merged.is_ok() && due == MERGES_PER_TURN { RELEASE_BYTES } else { 1 }, &drain);
        match merged {
            Ok(()) if due > 0 || self.overflow.buckets() < overflow => Shrunk::Some,
            Ok(()) => Shrunk::Enough,
            Err(collision) => Shrunk::Held(collision),
        }
    }

    fn try_hold(&self) -> Option<MutexGuard<'_, Workspace>> {
        try_lock(&self.growing)
    }

    fn fetch_merges(&self, merges: u64) {
        let buckets = self.shape().buckets();
        for at in buckets - merges..buckets {
            prefetch_to_write(self.bucket(at));
            prefetch_to_write(self.bucket(at - (1 << at.ilog2())));
        }
    }

    fn merge_or_turn_back(&self, facts: &[Covers], drain: &impl Fn()) -> Result<(), Collision> {
        if self.shape().split() > 0 {
            return self.merge_last(facts);
        }
        drain();
        self.merge_last(facts)?;
        drain();
        Ok(())
    }

    /// Merges the last bucket into the one it was split from.
    pub(super) fn merge_last(&self, facts: &[Covers]) -> Result<(), Collision> {
        let shape = self.shape();
        let last = shape.buckets() - 1;
        let (level, at) = (last.ilog2(), last - (1 << last.ilog2()));
        let (lower, upper) = (self.bucket(at), self.bucket(last));
        lower.latch();
        upper.latch();
        let merged = self.merged_words(level, at);
        let words = merged_without_collision(&merged.known, facts);
        if let Ok(words) = &words {
            self.move_together(shape, (level, at), (lower, upper), words);
            self.add_to_count((words.len() as u64).wrapping_sub(merged.entries));
        }
        upper.unlatch();
        lower.unlatch();
        words.map(|_| ())
    }

    fn move_together(&self, shape: Shape, (level, at): (u32, u64), (lower, upper): (&Bucket, &Bucket), words: &[u64]) {
        // Before the shape: who describes a line looks at that first.
        self.shrinking.finest.fetch_max(shape.buckets(), Relaxed);
        self.shrinking.touched.fetch_max(shape.buckets() * 64, Relaxed);
        lower.begin_move();
        upper.begin_move();
        if shape.split() == 0 {
            if !broken(Rule::TurnIsMarked) {
                self.shrinking.turns_back.fetch_add(1, Relaxed);
                // Release: who sees the turn sees that it is counted.
                self.shape.store(shape.0 | DOUBLING | TURNING, Release);
            }
            // Release fence: who reads the old level's geometry finds a shape that is turning, or the new one.
            fence(Release);
            self.geometry.set(level);
        }
        self.refill(at, words);
        // Release: whoever sees the new shape sees the entries.
        self.shape.store(Shape::new(level, at).0, Release);
        self.refill(at + (1 << level), &[]);
        upper.end_move();
        lower.end_move();
    }

    /// Gives back the memory behind the table's end, if that is so much or more. The guard: nothing grows into it meanwhile.
    fn release_end(&self, _: &MutexGuard<'_, Workspace>, least: u64, drain: &impl Fn()) {
        if self.is_end_backed(least) {
            let (end, touched) = (self.shape().buckets() * 64, self.touched_bytes());
            // Versions go, too: who looked there and asks later, unpinned, must not meet his own again.
            // Release: who sees it sees the shape that came before.
            self.shrinking.turns_back.fetch_add(1, Release);
            drain();
            // The last page has nothing else.
            self.table.release(end as usize, touched.next_multiple_of(4096) as usize);
            self.shrinking.touched.store(0, Relaxed);
            self.populated.store(end, Relaxed);
        }
    }

    fn is_end_backed(&self, least: u64) -> bool {
        let touched = self.shrinking.touched.load(Relaxed);
        touched > 0 && self.touched_bytes() >= self.shape().buckets() * 64 + least
    }

    fn touched_bytes(&self) -> u64 {
        self.shrinking.touched.load(Relaxed).max(self.populated.load(Relaxed)).min(self.table.bytes() as u64)
    }

    /// The finest shape that the table had since the last image, as a shape word: what a line's records were published in.
    pub(crate) fn finest_shape(&self) -> u64 {
        // In this order: a merge notes the finer shape before it leaves it.
        let now = self.shape().buckets();
        let finest = now.max(self.shrinking.finest.load(Relaxed));
        Shape::of_buckets(finest).0
    }

    /// The table was as fine as this when records that count were published.
    pub(crate) fn note_finest(&self, word: u64) {
        self.shrinking.finest.fetch_max(Shape(word).buckets(), Relaxed);
    }

    /// An image has all that was published before; nothing merges meanwhile.
    pub(crate) fn forget_finest(&self) {
        self.shrinking.finest.store(0, Relaxed);
    }

    /// How often the level has turned back, or versions have begun anew.
    #[inline(always)]
    pub(super) fn turns_back(&self) -> u64 {
        // Acquire: the shape is read after it.
        self.shrinking.turns_back.load(Acquire)
    }

    /// True while there is more to merge.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.is_under_way.load(Relaxed)
    }

    /// True if the table has shrunk to less than half of the finest one since the last image.
    pub(crate) fn is_less_than_half(&self) -> bool {
        Shape(self.finest_shape()).buckets() > 2 * self.shape().buckets()
    }

    /// True if a table of this shape with so many entries shrinks.
    pub(crate) fn may_have_shrunk(word: u64, entries: u64) -> bool {
        entries < Self::buckets_of_shape(word) * FEWEST
    }

    /// Buckets that a table of this shape has.
    pub(crate) fn buckets_of_shape(word: u64) -> u64 {
        Shape(word).buckets()
    }

    /// A table of 2^level buckets, as if its records were cold.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn grow_to_for_test(&self, level: u32) {
        struct Cold;
        impl super::Records for Cold {
            fn prefetch(&self, _: u64) {}
            fn chain(&self, _: u64) -> super::Chain {
                super::Chain::Unknown
            }
        }
        self.grow_to(Shape::new(level, 0).0, &Cold);
    }

    /// Merges so many buckets, however many entries there are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn shrink_by(&self, merges: u64, drain: impl Fn()) -> Result<(), Collision> {
        let Some(growing) = self.try_hold() else { return Ok(()) };
        let merges = merges.min(self.buckets() - (1 << FIRST_LEVEL));
        let merged = (0..merges).try_for_each(|_| self.merge_or_turn_back(&[], &drain));
        self.release_end(&growing, 1, &drain);
        merged
    }
}

impl Shape {
    fn of_buckets(buckets: u64) -> Self {
        let level = buckets.ilog2();
        Self::new(level, buckets - (1 << level))
    }
}

/// The entries of two siblings.
struct Merged {
    known: Vec<Known>,
    /// How many there were, those included that others shadow.
    entries: u64,
}

impl Index {
    fn merged_words(&self, level: u32, at: u64) -> Merged {
        let mut merged = Merged { known: Vec::with_capacity(16), entries: 0 };
        for number in [at, at + (1 << level)] {
            self.add_known(level, number, &mut merged);
        }
        merged
    }

    /// Adds the entries of a bucket with all that its number says about them.
    fn add_known(&self, level: u32, number: u64, merged: &mut Merged) {
        let (from, first) = (base(level), merged.known.len());
        let gained = base(level + 1) - from;
        let implied_bits = level + 1 - from;
        let implied = (number >> from) & ((1 << implied_bits) - 1);
        let mut words = self.words(number);
        merged.entries += words.len() as u64;
        // Longest first: of tags that say no more than the bucket's number, the longest counts and shadows the others for good.
        words.sort_by_key(|word| std::cmp::Reverse(valid_bits(tag_of(*word))));
        for word in words {
            let tag = (tag_of(word) << gained) | (implied & ((1 << gained) - 1));
            let tag = if valid_bits(tag) < implied_bits { (1 << implied_bits) | implied } else { tag };
            if merged.known[first..].iter().all(|other| other.tag != tag) {
                merged.known.push(Known { tag, address: address_of(word) });
            }
        }
    }
}

/// The merged bucket's words, if entries that meet in one tag are known to cover each other.
fn merged_without_collision(known: &[Known], facts: &[Covers]) -> Result<Vec<u64>, Collision> {
    let mut words: Vec<u64> = Vec::with_capacity(known.len());
    for Known { tag, address } in known {
        if valid_bits(*tag) < TAG_BITS {
            words.push(entry_word(*tag, *address));
        } else if words.iter().all(|word| tag_of(*word) != full_tag(*tag)) {
            words.push(entry_word(full_tag(*tag), head_for(known, full_tag(*tag), facts)?));
        }
    }
    Ok(words)
}

/// The head of the chain that an entry with this full tag must lead to.
fn head_for(known: &[Known], full: u64, facts: &[Covers]) -> Result<u64, Collision> {
    let met = || known.iter().filter(|one| one.tag >= FULL && full_tag(one.tag) == full);
    let mut heads: Vec<u64> = met().map(|one| one.address).collect();
    // A tag that is cut short takes hashes from the longest shorter one.
    if met().any(|one| one.tag >= 2 * FULL) {
        let shorter = known.iter().filter(|one| one.tag < FULL && match_bits(one.tag, full).is_some());
        heads.extend(shorter.max_by_key(|one| valid_bits(one.tag)).map(|one| one.address));
    }
    heads.sort_unstable();
    heads.dedup();
    let is_covered = |head: &u64| facts.iter().any(|fact| fact.covered == *head && heads.contains(&fact.head));
    let tops: Vec<u64> = heads.iter().copied().filter(|head| !is_covered(head)).collect();
    let covers = |head: &u64| facts.iter().any(|fact| fact.head == *head);
    match tops[..] {
        [top] => Ok(top),
        // What covers others stays as it is; the next one is put before it.
        [first, .., last] if covers(&last) => Err(Collision { chain: first, onto: last }),
        [first, .., last] => Err(Collision { chain: last, onto: first }),
        [] => unreachable!("facts come one by one, each about a head that covers nothing yet"),
    }
}
