//! What nearly every operation writes to its slot: the flag it raises, its count, the flag it lowers.
//!
//! How many operations a processor has under way, and with them how many cache misses at once, is bounded by its general registers. On
//! some (AMD's Zen 5, measured) a store from one, or of a constant, takes such a register as well, for 1.8 ns of an operation's 55;
//! one from a vector register 0.15, for of these there are more than enough. So where there are vectors, these three come from there.

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
mod portable {
    use super::super::{COUNTED, Counter, Slot, raising};
    use crate::sync::atomic::Ordering::Release;

    impl Slot {
        /// Raises the flag of an operation at once.
        #[inline(always)]
        pub(in super::super) fn raise(&self) {
            self.inside.store(COUNTED, raising());
        }

        /// Ends a pin.
        #[inline(always)]
        pub(in super::super) fn lower(&self) {
            // Release: pairs with the Acquire in `drain`; all that was done under the pin happened before.
            self.inside.store(0, Release);
        }

        /// Counts the operation whose flag was raised.
        #[inline(always)]
        pub(in super::super) fn count_own(&self, what: Counter) {
            self.add(what, 1);
        }
    }
}

/// Stores of aligned words, which processors of this kind make atomic and, as all of theirs, Release; partners are those of the portable ones. For the
/// compiler an asm block is no racing Rust access, and it moves no other access to memory across one.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
mod vector {
    use super::super::{COUNTED, Counter, Slot};
    use std::arch::asm;
    use std::mem::offset_of;

    /// These bits.
    const ONE: f64 = f64::from_bits(COUNTED);

    impl Slot {
        /// Raises the flag of an operation at once.
        #[inline(always)]
        pub(in super::super) fn raise(&self) {
            // SAFETY: the flag is an atomic word of this slot.
            unsafe { asm!("movq [{flag}], {one}", flag = in(reg) &self.inside, one = in(xmm_reg) ONE, options(nostack, preserves_flags)) };
        }

        /// Ends a pin.
        #[inline(always)]
        pub(in super::super) fn lower(&self) {
            // SAFETY: as above.
            unsafe {
                asm!("movq [{flag}], {zero}", flag = in(reg) &self.inside, zero = in(xmm_reg) 0.0f64, options(nostack, preserves_flags))
            };
        }

        /// Counts the operation whose flag was raised.
        #[inline(always)]
        pub(in super::super) fn count_own(&self, what: Counter) {
            // Known where this is inlined: one of them is left.
            match what {
                Counter::Get => self.count_at::<{ Counter::Get as usize }>(),
                Counter::Put => self.count_at::<{ Counter::Put as usize }>(),
                Counter::Rmw => self.count_at::<{ Counter::Rmw as usize }>(),
                other => self.add(other, 1),
            }
        }

        #[inline(always)]
        fn count_at<const AT: usize>(&self) {
            const { assert!(AT < Counter::COUNT) };
            // SAFETY: an atomic word of this slot, which only its owner writes.
            unsafe {
                asm!(
                    "movq {count}, [{slot} + {at}]",
                    "paddq {count}, {one}",
                    "movq [{slot} + {at}], {count}",
                    slot = in(reg) self,
                    at = const offset_of!(Slot, counters) + AT * size_of::<u64>(),
                    count = out(xmm_reg) _,
                    one = in(xmm_reg) ONE,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{COUNTED, Counter, Slot};
    use crate::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_flag_and_a_count_are_where_others_look() {
        let slot = Slot::default();
        for what in [Counter::Get, Counter::Put, Counter::Rmw, Counter::Append, Counter::Delete] {
            slot.raise();
            assert_eq!(slot.inside.load(Relaxed), COUNTED);
            (0..what as u64 + 2).for_each(|_| slot.count_own(what));
            slot.lower();
            assert_eq!(slot.inside.load(Relaxed), 0);
        }
        let counted: Vec<u64> = slot.counters.iter().map(|counter| counter.load(Relaxed)).collect();
        assert_eq!(counted[..5], [2, 3, 4, 5, 6]);
        assert!(counted[5..].iter().all(|count| *count == 0) && slot.unfilled_bytes() == 0);
    }
}
