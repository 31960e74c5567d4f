//! How many buckets the table has, and which of them is a hash's.

use super::bucket::Base;
use super::{Index, full_tag};
use crate::sync::atomic::{AtomicU64, Ordering::*, fence};
use crate::sync::{Rule, broken};
use std::hint::select_unpredictable;

/// The table's shape in one word: the byte offset of the last bucket and, above, what goes on. Between two doublings it is
/// nothing but the mask that makes a hash the offset of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape(pub(super) u64);

/// Some buckets of this level are split, some are not.
pub(super) const DOUBLING: u64 = 1 << 63;
/// The level is about to change: what `Geometry` says may belong to the old or the new one.
pub(super) const TURNING: u64 = 1 << 62;
/// The number of a hash's bucket begins at this bit: a bucket has 64 bytes.
pub(super) const BUCKET_BITS: u32 = 6;

impl Shape {
    pub(super) fn new(level: u32, split: u64) -> Self {
        let last = ((1 << level) + split - 1) << BUCKET_BITS;
        Self(if split == 0 { last } else { last | DOUBLING })
    }
    pub(super) fn buckets(self) -> u64 {
        ((self.0 & !(DOUBLING | TURNING)) >> BUCKET_BITS) + 1
    }
    /// While it turns, all buckets of the old level are split: the same as the new level with none.
    pub(super) fn level(self) -> u32 {
        self.buckets().ilog2()
    }
    pub(super) fn split(self) -> u64 {
        self.buckets() - (1 << self.level())
    }
    #[inline(always)]
    pub(super) fn is_turning(self) -> bool {
        self.0 & TURNING != 0
    }
}

/// What follows from the level, worked out beforehand: `locate` runs in every operation.
#[derive(Default)]
pub(super) struct Geometry {
    pub(super) low_mask: AtomicU64,
    pub(super) high_mask: AtomicU64,
    /// The first hash bit of tags in buckets that wait for their split, and in those that had it.
    pub(super) unsplit_base: Base,
    pub(super) split_base: Base,
}

impl Geometry {
    pub(super) fn set(&self, level: u32) {
        self.low_mask.store(((1 << level) - 1) << BUCKET_BITS, Relaxed);
        self.high_mask.store(((2 << level) - 1) << BUCKET_BITS, Relaxed);
        self.unsplit_base.set(base(level) + BUCKET_BITS);
        self.split_base.set(base(level + 1) + BUCKET_BITS);
    }
}

/// Where a hash belongs.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The bucket's offset in the table, in bytes.
    pub(super) offset: u64,
    /// The hash from the first bit on that tags in this bucket hold.
    pub(super) bits: u64,
    pub(super) shape: Shape,
}

impl Place {
    pub(super) fn tag(&self) -> u64 {
        full_tag(self.bits)
    }
    pub(super) fn number(&self) -> u64 {
        self.offset >> BUCKET_BITS
    }
}

/// The first bit, of the hash above `BUCKET_BITS`, that tags at this level hold. Constant for six doublings, so that at least nine bits tell.
pub(super) fn base(level: u32) -> u32 {
    if level <= 14 { level } else { 14 + (level - 14) / 6 * 6 }
}

/// Says to the compiler that the common case should be the straight line, without a jump.
#[cold]
#[inline(always)]
pub(super) fn out_of_line() {}

impl Index {
    #[inline(always)]
    pub(super) fn shape(&self) -> Shape {
        // Acquire: pairs with the Release in `growth.rs`; the new bucket's entries are visible.
        Shape(self.shape.load(Acquire))
    }

    /// True if this shape, read before, stood still until now: what was worked out from it held all the time.
    #[inline(always)]
    pub(super) fn stands(&self, shape: Shape) -> bool {
        // Acquire fence: whoever read the geometry of another level, or a bucket after its split, sees the shape that came
        // before that.
        if !broken(Rule::GeometryShowsTurn) {
            fence(Acquire);
        }
        !shape.is_turning() && self.shape.load(Relaxed) == shape.0
    }

    #[inline(always)]
    pub(super) fn locate(&self, hash: u64) -> Place {
        let shape = self.shape();
        if shape.0 & DOUBLING != 0 {
            out_of_line();
            return self.locate_doubling(hash, shape);
        }
        Place { offset: hash & shape.0, bits: hash >> self.geometry.unsplit_base.get(), shape }
    }

    /// While the level turns the answer may mix old and new: a wrong bucket, whose "not found" does not settle.
    #[inline(always)]
    pub(super) fn locate_doubling(&self, hash: u64, shape: Shape) -> Place {
        let low_mask = self.geometry.low_mask.load(Relaxed);
        let (low, high) = (hash & low_mask, hash & self.geometry.high_mask.load(Relaxed));
        // The last bucket's number is N + p - 1, and N - 1 the mask: what is left is p.
        let is_split = low < (shape.0 & !(DOUBLING | TURNING)).wrapping_sub(low_mask);
        let offset = select_unpredictable(is_split, high, low);
        let base = select_unpredictable(is_split, self.geometry.split_base.get(), self.geometry.unsplit_base.get());
        Place { offset, bits: hash >> base, shape }
    }
}
