//! How many buckets the table has, and which of them is a hash's.

use super::bucket::Bucket;
use super::{Index, full_tag};
use crate::sync::atomic::{AtomicU64, Ordering::*, fence};
use crate::sync::{Rule, broken};
use std::hint::select_unpredictable;
use std::ptr;

/// The table's shape in one word: the byte offset of the last bucket and, above, what goes on. Between two doublings it is
/// nothing but the mask that makes a hash the offset of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape(pub(super) u64);

/// Some buckets of this level are split, some are not.
pub(super) const DOUBLING: u64 = 1 << 63;
/// The level is about to change: what `Geometry` says may belong to the old or the new one.
pub(super) const TURNING: u64 = 1 << 62;
/// The number of a hash's bucket begins at this bit: a bucket has 64 bytes.
pub(crate) const BUCKET_BITS: u32 = 6;

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

/// What follows from the level, worked out beforehand: `locate` runs in every operation, whose loads take their places in a queue that
/// bounds how many operations overlap. Masks and addresses leave six bits free, which have the first hash bit that tags hold.
pub(super) struct Geometry {
    /// Where the table is, and the base in buckets that wait for their split.
    home: AtomicU64,
    /// The mask of twice the level's buckets, and the base in buckets that had their split.
    doubled: AtomicU64,
}

const BASE_MASK: u64 = align_of::<Bucket>() as u64 - 1;
const _: () = assert!(BASE_MASK == (1 << BUCKET_BITS) - 1 && (base(super::LAST_LEVEL) + BUCKET_BITS) as u64 <= BASE_MASK);

/// As [`Geometry`] has it.
#[derive(Clone, Copy)]
pub(super) struct Home(u64);

impl Home {
    /// The hash from the first bit on that tags hold.
    #[inline(always)]
    fn bits(self, hash: u64) -> u64 {
        // A shift takes the lowest six bits alone.
        hash.wrapping_shr(self.0 as u32)
    }

    #[inline(always)]
    pub(super) fn table(self) -> *const Bucket {
        ptr::with_exposed_provenance((self.0 & !BASE_MASK) as usize)
    }
}

impl Geometry {
    pub(super) fn new(table: *const Bucket, level: u32) -> Self {
        let geometry = Self { home: AtomicU64::new(table.expose_provenance() as u64), doubled: AtomicU64::new(0) };
        geometry.set(level);
        geometry
    }

    pub(super) fn set(&self, level: u32) {
        let base = |level| u64::from(base(level) + BUCKET_BITS);
        self.home.store(self.home().0 & !BASE_MASK | base(level), Relaxed);
        self.doubled.store(((2 << level) - 1) << BUCKET_BITS | base(level + 1), Relaxed);
    }

    #[inline(always)]
    pub(super) fn home(&self) -> Home {
        Home(self.home.load(Relaxed))
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

/// The first bit, of the hash above `BUCKET_BITS`, that tags at this level hold. Constant for six doublings, so that at least nine bits
/// tell.
pub(super) const fn base(level: u32) -> u32 {
    if level <= LAST_FINE { level } else { LAST_FINE + (level - LAST_FINE) / 6 * 6 }
}

/// Up to here tags begin at another bit with each doubling. Models have splits of both kinds.
const LAST_FINE: u32 = if cfg!(loom) { 2 } else { 14 };

/// Says to the compiler that the common case should be the straight line, without a jump.
#[cold]
#[inline(always)]
fn out_of_line() {}

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
        self.locate_from_home(hash).0
    }

    /// The same, and where the table is: known without another load.
    #[inline(always)]
    pub(super) fn locate_from_home(&self, hash: u64) -> (Place, Home) {
        // In this order: geometry that is older than its shape would seem to stand.
        let (shape, home) = (self.shape(), self.geometry.home());
        if shape.0 & DOUBLING != 0 {
            out_of_line();
            return (self.locate_doubling(hash, shape, home), home);
        }
        (Place { offset: hash & shape.0, bits: home.bits(hash), shape }, home)
    }

    /// While the level turns the answer may mix old and new: a wrong bucket, whose "not found" does not settle.
    #[inline(always)]
    fn locate_doubling(&self, hash: u64, shape: Shape, home: Home) -> Place {
        let doubled = self.geometry.doubled.load(Relaxed);
        let high = hash & doubled & !BASE_MASK;
        // Half a bucket more than the mask of the level's buckets, and less than a whole one with what is below.
        let low_mask = doubled >> 1;
        let low = high & low_mask;
        // The last bucket's number is N + p - 1, and N - 1 the mask: what is left is p, less a part of a bucket. Signed: it may be of
        // another level.
        let is_split = (low as i64) < (shape.0 & !(DOUBLING | TURNING)) as i64 - low_mask as i64;
        let offset = select_unpredictable(is_split, high, low);
        let bits = select_unpredictable(is_split, hash.wrapping_shr(doubled as u32), home.bits(hash));
        Place { offset, bits, shape }
    }
}
