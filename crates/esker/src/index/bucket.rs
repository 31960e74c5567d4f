//! One bucket: a cache line of seven entries and a link.
//!
//! ```text
//! [entry 0] ... [entry 6] [link: overflow 30 | version 33 | latch 1]     in the table
//! [entry 0] ... [entry 6] [link: overflow 30 | owner 34]                 in the overflow pool
//! entry, 8 bytes: [address 48 | tag 16], 0 = empty; records are aligned, so the address has three bits to spare
//! ```
//! A probe compares all tags at once: a data-dependent branch between the two cache misses of a lookup would be
//! mispredicted, and a misprediction throws away the overlap with the operations behind it.

use crate::sync::atomic::{AtomicU64, Ordering, Ordering::*, fence};
use crate::sync::{Rule, Spins, broken};

/// Models fill buckets with two, and leave five words alone.
pub(super) const ENTRIES: usize = if cfg!(loom) { 2 } else { 7 };
const LINK: usize = 7;
pub(super) const TAG_FIELD_BITS: u32 = 16;
/// The address's lowest bit: all records of the entry's chain are of one key (`mod.rs`).
pub(crate) const SOLE: u64 = 1 << TAG_FIELD_BITS;
/// The next one: a record of the chain was counted as if it had superseded another, and nobody knew.
pub(super) const GUESSED: u64 = SOLE << 1;
pub(super) const MARKS: u64 = SOLE | GUESSED;
const ADDRESS: u64 = !7;

pub(super) const LATCH: u64 = 1;
/// Odd versions: entries are moving.
pub(super) const VERSION: u64 = 2;
/// What every change under the latch adds to the version.
const CHANGE: u64 = 2 * VERSION;
const OVERFLOW_SHIFT: u32 = 34;
/// Version and latch in the table, owner in the pool.
const BELOW_OVERFLOW: u64 = (1 << OVERFLOW_SHIFT) - 1;
pub(super) const VERSION_MASK: u64 = BELOW_OVERFLOW & !LATCH;

#[repr(C, align(64))]
pub(super) struct Bucket([AtomicU64; 8]);
const _: () = assert!(size_of::<Bucket>() == 64);

/// A set of entries: bit 2 i stands for entry i.
const ALL: u32 = if cfg!(loom) { 0b101 } else { 0x1555 };

#[inline(always)]
pub(super) fn entry_word(tag: u64, address: u64) -> u64 {
    (address << TAG_FIELD_BITS) | tag
}

#[inline(always)]
pub(super) fn tag_of(word: u64) -> u64 {
    word & ((1 << TAG_FIELD_BITS) - 1)
}

#[inline(always)]
pub(crate) fn address_of(word: u64) -> u64 {
    near_address_of(word) & ADDRESS
}

/// An address whose three lowest bits mean nothing: an instruction less.
#[inline(always)]
pub(super) fn near_address_of(word: u64) -> u64 {
    word >> TAG_FIELD_BITS
}

impl Bucket {
    #[inline(always)]
    pub(super) fn entry(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    /// The lowest entry of a set that is not empty.
    #[inline(always)]
    pub(super) fn entry_of(&self, set: u32) -> &AtomicU64 {
        debug_assert!(set != 0 && set & !ALL == 0);
        // SAFETY: `set` has a bit of `ALL`, the lowest one 2 i with i < 7: entry i begins at byte 8 i.
        unsafe { &*self.0.as_ptr().byte_add(set.trailing_zeros() as usize * 4) }
    }

    pub(super) fn entries(&self) -> &[AtomicU64] {
        &self.0[..ENTRIES]
    }

    #[inline(always)]
    pub(super) fn link(&self, order: Ordering) -> u64 {
        self.0[LINK].load(order)
    }

    /// The number of the next bucket in the overflow pool, 0 for none.
    #[inline(always)]
    pub(super) fn next(&self) -> u64 {
        next_of(self.link(Acquire))
    }

    pub(super) fn set_next(&self, number: u64) {
        let link = self.0[LINK].load(Relaxed);
        // Release: the overflow bucket's contents are visible to whoever follows the link.
        self.0[LINK].store((link & BELOW_OVERFLOW) | (number << OVERFLOW_SHIFT), Release);
    }

    /// In the pool: the number of the table's bucket this one belongs to, plus one; 0 while it is free.
    pub(super) fn owner(&self) -> u64 {
        self.link(Relaxed) & BELOW_OVERFLOW
    }

    pub(super) fn set_owner(&self, owner: u64) {
        let link = self.0[LINK].load(Relaxed);
        self.0[LINK].store((link & !BELOW_OVERFLOW) | owner, Release);
    }

    // ---- the latch -----------------------------------------------------------------------------------------------

    #[inline(always)]
    pub(super) fn latch(&self) {
        if !self.latch_if(self.0[LINK].load(Relaxed)) {
            self.latch_slowly();
        }
    }

    /// Latches a bucket whose link is still the one seen: nothing in it has changed since.
    #[inline(always)]
    pub(super) fn latch_if(&self, seen: u64) -> bool {
        // Acquire: pairs with the Release in `unlatch`.
        seen & LATCH == 0 && self.0[LINK].compare_exchange(seen, seen | LATCH, Acquire, Relaxed).is_ok()
    }

    /// The same for a link known to be unlatched.
    #[inline(always)]
    pub(super) fn latch_quiet(&self, seen: u64) -> bool {
        self.0[LINK].compare_exchange(seen, seen | LATCH, Acquire, Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn latch_slowly(&self) {
        let link = &self.0[LINK];
        let mut spins = Spins::default();
        loop {
            let seen = link.load(Relaxed);
            if seen & LATCH == 0 && link.compare_exchange_weak(seen, seen | LATCH, Acquire, Relaxed).is_ok() {
                return;
            }
            spins.pause();
        }
    }

    /// Ends the latch. The version moves on, whether something changed or not.
    #[inline(always)]
    pub(super) fn unlatch(&self) {
        self.unlatch_to(self.0[LINK].load(Relaxed));
    }

    /// The same for who has changed nothing: what others saw stands.
    pub(super) fn unlatch_unchanged(&self) {
        self.0[LINK].store(self.0[LINK].load(Relaxed) & !LATCH, Release);
    }

    /// [`Bucket::unlatch`] for who knows the link.
    #[inline(always)]
    pub(super) fn unlatch_to(&self, link: u64) {
        // Release: what was changed under the latch is visible to its next holder.
        self.0[LINK].store(advanced(link, CHANGE) & !LATCH, Release);
    }

    /// Entries are about to move: the version is odd until `end_move`.
    pub(super) fn begin_move(&self) {
        self.bump_version();
        // Release fence: the odd version is visible before any moved entry.
        fence(Release);
    }

    pub(super) fn end_move(&self) {
        self.bump_version();
    }

    fn bump_version(&self) {
        if broken(Rule::MoveIsOdd) {
            return;
        }
        self.0[LINK].store(advanced(self.0[LINK].load(Relaxed), VERSION), Release);
    }
}

#[inline(always)]
fn advanced(link: u64, by: u64) -> u64 {
    (link & !VERSION_MASK) | ((link + by) & VERSION_MASK)
}

/// True if nobody holds the latch and nothing is moving.
#[inline(always)]
pub(super) fn is_quiet(link: u64) -> bool {
    link & (LATCH | VERSION) == 0
}

#[inline(always)]
pub(super) fn next_of(link: u64) -> u64 {
    link >> OVERFLOW_SHIFT
}

/// The lower halves of the seven entries, as they were a moment ago: a hint. Who acts on an entry loads it again.
#[derive(Clone, Copy)]
pub(super) struct Tags {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    halves: [std::arch::x86_64::__m128i; 2],
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    tags: [u16; ENTRIES],
}

impl Tags {
    /// True if an entry has a tag of fewer than 15 bits.
    #[inline(always)]
    pub(super) fn has_short(&self) -> bool {
        !self.has_none_short(self.empty())
    }

    /// The opposite, for who knows which are empty.
    #[inline(always)]
    pub(super) fn has_none_short(&self, empty: u32) -> bool {
        self.full() | empty == ALL
    }
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod vector {
    use super::super::TAG_BITS;
    use super::{ALL, Bucket, Tags};
    use std::arch::x86_64::*;

    impl Bucket {
        #[inline(always)]
        pub(in super::super) fn tags(&self) -> Tags {
            let (a, b): (__m128i, __m128i);
            // SAFETY: 64 bytes inside `self`, aligned. The loads may race with stores of single words: x86-64 makes
            // each aligned 8-byte half of such a load atomic, and for the compiler an asm block is no racing Rust read.
            unsafe {
                std::arch::asm!(
                    "movaps {a}, [{p}]",
                    "movaps {b}, [{p} + 32]",
                    "shufps {a}, [{p} + 16], 0x88",
                    "shufps {b}, [{p} + 48], 0x88",
                    p = in(reg) self,
                    a = out(xmm_reg) a,
                    b = out(xmm_reg) b,
                    options(nostack, preserves_flags, readonly, pure)
                );
            }
            Tags { halves: [a, b] }
        }
    }

    const STOP: i32 = 1 << TAG_BITS;

    impl Tags {
        /// The entries with the full tag of these hash bits (the lower fifteen count).
        #[inline(always)]
        pub(in super::super) fn equal(&self, bits: u64) -> u32 {
            // SAFETY: SSE2 is part of x86-64.
            unsafe { self.equal_lanes(_mm_set1_epi32(bits as i32 | STOP)) }
        }

        /// The entries without a tag.
        #[inline(always)]
        pub(in super::super) fn empty(&self) -> u32 {
            // SAFETY: as above.
            unsafe { self.equal_lanes(_mm_setzero_si128()) }
        }

        /// The entries with a full tag: its top bit, the stop bit, is the lane's sign.
        #[inline(always)]
        pub(in super::super) fn full(&self) -> u32 {
            // SAFETY: as above.
            unsafe { sets(_mm_packs_epi16(self.halves[0], self.halves[1])) }
        }

        #[inline(always)]
        unsafe fn equal_lanes(&self, want: __m128i) -> u32 {
            let [a, b] = self.halves;
            // SAFETY: as above.
            unsafe { sets(_mm_packs_epi16(_mm_cmpeq_epi16(a, want), _mm_cmpeq_epi16(b, want))) }
        }
    }

    /// The signs of the even bytes: of each half the lower 16 bits are the tag. The last lane is the link's.
    #[inline(always)]
    unsafe fn sets(lanes: __m128i) -> u32 {
        // SAFETY: as above.
        unsafe { _mm_movemask_epi8(lanes) as u32 & ALL }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
mod portable {
    use super::{Bucket, Tags, tag_of};
    use crate::sync::atomic::Ordering::Relaxed;

    impl Bucket {
        #[inline(always)]
        pub(in super::super) fn tags(&self) -> Tags {
            Tags { tags: std::array::from_fn(|i| tag_of(self.0[i].load(Relaxed)) as u16) }
        }
    }

    impl Tags {
        #[inline(always)]
        fn set(&self, holds: impl Fn(u16) -> bool) -> u32 {
            self.tags.iter().enumerate().fold(0, |set, (i, &tag)| set | (u32::from(holds(tag)) << (2 * i)))
        }
        #[inline(always)]
        pub(in super::super) fn equal(&self, bits: u64) -> u32 {
            self.set(|tag| tag == bits as u16 | 1 << 15)
        }
        #[inline(always)]
        pub(in super::super) fn empty(&self) -> u32 {
            self.set(|tag| tag == 0)
        }
        #[inline(always)]
        pub(in super::super) fn full(&self) -> u32 {
            self.set(|tag| tag >> 15 == 1)
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_vector_compare_finds_each_entry_and_only_it() {
        for at in 0..ENTRIES {
            let bucket = Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
            bucket.0[LINK].store(u64::MAX, Relaxed);
            assert_eq!(bucket.tags().empty(), ALL);
            bucket.0[at].store(entry_word(0x8123, 0x8123_8123_8128), Relaxed);
            let tags = bucket.tags();
            assert_eq!((tags.equal(0x0123), tags.full(), tags.empty()), (1 << (2 * at), 1 << (2 * at), ALL & !(1 << (2 * at))));
            assert_eq!((tags.equal(0x0124), tags.equal(0xffff_0123)), (0, 1 << (2 * at)));
            assert!(!bucket.tags().has_short());
            bucket.0[at].store(entry_word(0x0013, 0xffff_8123_8128), Relaxed);
            assert!(bucket.tags().has_short());
        }
    }
}
