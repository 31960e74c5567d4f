//! Slots: what each thread tells of itself, in each store.
//!
//! A store has slots for all threads that may come, in address space of which memory is taken where somebody was. So a thread's slot is at
//! the same place behind the first one in every store: a thread remembers that once, and it is never wrong.

use crate::error::Result;
#[cfg(not(loom))]
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Rule, Spins, broken};
use crate::watch::Watch;

/// Threads that can use a store at a time. Models have a handful, and pay for every atomic.
const COUNT: usize = if cfg!(loom) { 4 } else { 65_536 };
/// A drain that has looked this often in vain says for whom it waits.
const NOTED_SPINS: u32 = 1024;

/// What a pin raises that counts one operation.
pub(super) const COUNTED: u64 = 1;

/// One thread's state in one store: cache lines that only this thread writes (others read `inside` and the counters). What
/// operations at once need comes first.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Slot {
    /// 0: not inside the store. [`COUNTED`], or a number for this pin alone: inside.
    pub(super) inside: AtomicU64,
    /// The unused rest of this thread's piece of the log: `[cursor, end)`.
    pub(crate) cursor: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) piece_bytes: AtomicU64,
    /// Index entries added since they were last counted globally.
    pub(crate) entries: AtomicU64,
    counters: [AtomicU64; Counter::COUNT],
    /// Pins that got numbers.
    numbered: AtomicU64,
    /// What the log keeps for this thread, which looks there alone (`log/holes.rs`); and whether it has sought a hole in vain.
    pub(crate) in_hand: std::sync::atomic::AtomicPtr<()>,
    pub(crate) has_sought_hole: std::sync::atomic::AtomicBool,
    /// Stands for the two halves of `membarrier` (see [`Slot::light_fence`]).
    #[cfg(loom)]
    pub(super) barrier: AtomicU64,
}

/// What each slot counts.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    Get,
    Put,
    Rmw,
    Append,
    Delete,
    DeviceRead,
    /// Bytes of records superseded or deleted.
    DeadByte,
    /// Cold records copied into memory because they were read.
    Promotion,
    /// Gets that found nothing.
    Miss,
    /// Transactions that committed, and those that met another and did not.
    Transaction,
    Conflict,
    /// Puts over a cold record that nobody read, and the bytes that were counted as dead for them.
    Guess,
    GuessedByte,
    /// Reads of the device for what does not count as a call: scans, histories.
    ScanRead,
    /// Of [`Counter::DeadByte`]: holes that were filled.
    FilledByte,
}

impl Counter {
    pub(crate) const COUNT: usize = 15;
    /// The first so many count what may be done at once. Models count gets alone.
    const AT_ONCE: usize = if cfg!(loom) { 1 } else { Self::DeviceRead as usize };

    fn is_at_once(self) -> bool {
        (self as usize) < Self::AT_ONCE
    }
}

impl Slot {
    /// The owner's half of the fence whose other half is `membarrier` in `drain`.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn light_fence(&self) {
        std::sync::atomic::compiler_fence(SeqCst);
    }

    /// As loom sees it: the two halves meet in one atomic, so what came before the earlier of them is visible after the
    /// later. That is all `membarrier` promises; towards everybody else the light half orders nothing.
    #[cfg(loom)]
    pub(super) fn light_fence(&self) {
        if !broken(Rule::PinFences) {
            self.barrier.fetch_add(1, AcqRel);
        }
    }

    /// A flag that was never raised before.
    pub(super) fn next_number(&self) -> u64 {
        let number = self.numbered.load(Relaxed) + 1;
        self.numbered.store(number, Relaxed);
        COUNTED + number
    }

    pub(super) fn is_inside(&self) -> bool {
        self.inside.load(Relaxed) != 0
    }

    /// What is left of the piece.
    pub(crate) fn unfilled_bytes(&self) -> u64 {
        self.end.load(Relaxed).saturating_sub(self.cursor.load(Relaxed))
    }

    /// The next record goes above all there is. What is left of the piece is dead; and the next piece is a short one, or two
    /// threads that write one key by turns would fill the log with what they leave.
    pub(crate) fn leave_piece(&self) {
        self.count(Counter::DeadByte, self.unfilled_bytes());
        self.end.store(0, Relaxed);
        self.piece_bytes.store(0, Relaxed);
    }

    /// Counts, outside of any pin or under a numbered one: see [`Slot::has_ended`].
    #[inline(always)]
    pub(crate) fn count(&self, what: Counter, by: u64) {
        debug_assert!(!what.is_at_once() || self.inside.load(Relaxed) != COUNTED, "an operation at once counts by itself alone");
        self.add(what, by);
    }

    /// What this thread, whose slot it is, has counted.
    pub(crate) fn counted(&self, what: Counter) -> u64 {
        self.counters[what as usize].load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn add(&self, what: Counter, by: u64) {
        // Only the owner writes: a load and a store, no locked instruction.
        let counter = &self.counters[what as usize];
        // Release: pairs with the Acquire in `operations`; what was done under earlier pins happened before.
        let order = if broken(Rule::CountReleases) { Relaxed } else { Release };
        counter.store(counter.load(Relaxed) + by, order);
    }

    /// Returns once a pin that is held now has ended.
    pub(super) fn wait_until_outside(&self, watch: &Watch, number: usize) {
        let (mut spins, mut waiting) = (Spins::default(), None);
        // Acquire, here and in `has_ended`: pairs with the Release in `Pin::drop`, or in the pin that came after it.
        let seen = self.inside.load(Acquire);
        if seen == 0 {
            return;
        }
        let counted = self.operations();
        while !self.has_ended(seen, counted) {
            spins.pause();
            if spins.count() == NOTED_SPINS && !cfg!(loom) {
                waiting = Some(watch.waiting(number));
            }
        }
        drop(waiting);
    }

    /// True if the pin is over whose flag was `seen`, and then so many operations `counted`: what came before it was among them,
    /// and it counts one more at most.
    fn has_ended(&self, seen: u64, counted: u64) -> bool {
        let counts_once = seen == COUNTED;
        self.inside.load(Acquire) != seen || counts_once && self.operations() - counted > 1
    }

    fn operations(&self) -> u64 {
        self.counters[..Counter::AT_ONCE].iter().map(|counter| counter.load(Acquire)).sum()
    }
}

/// A store's slots, by the numbers of their threads.
pub(super) struct Slots {
    #[cfg(not(loom))]
    region: Region,
    #[cfg(loom)]
    slots: Box<[Slot; COUNT]>,
}

#[cfg(not(loom))]
impl Slots {
    pub(super) fn new() -> Result<Self> {
        let region = Region::exactly(COUNT * size_of::<Slot>())?;
        region.refuse_huge_pages();
        Ok(Self { region })
    }

    #[inline(always)]
    pub(super) fn first(&self) -> *mut Slot {
        self.region.base().cast()
    }
}

#[cfg(loom)]
impl Slots {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { slots: Box::new(std::array::from_fn(|_| Slot::default())) })
    }

    pub(super) fn first(&self) -> *mut Slot {
        self.slots.as_ptr().cast_mut()
    }
}

impl Slots {
    pub(super) fn get(&self, number: usize) -> Option<&Slot> {
        // SAFETY: inside the region, whose fresh memory is slots that nobody has used: zeros. They live as long as `self`.
        (number < COUNT).then(|| unsafe { &*self.first().add(number) })
    }

    /// The first so many.
    pub(super) fn up_to(&self, count: usize) -> impl Iterator<Item = &Slot> {
        (0..count).map_while(|number| self.get(number))
    }
}
