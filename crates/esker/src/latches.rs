//! Latches of keys: what makes many keys change at one moment.
//!
//! ```text
//! table:  2^16 words, a key's by the highest bits of its hash:  [ version 63 | held 1 ]
//! ```
//! There are none until somebody begins a transaction, or removes a word on a condition, or asks for a history: a store where nobody does
//! pays nothing, for a fast operation learns of them from a word that it looks at anyway (`epoch.rs`). The first one makes the table, shuts
//! the doors and drains the epoch: from then on everybody sees it. Then
//!
//! * **who changes what a key holds** holds its latch meanwhile, and letting go moves the version on. One key, one latch: a plain
//!   writer never waits for a second one. Who moves a record without changing what its key holds (compaction, eviction, growth)
//!   does not care, nor is cared about;
//! * **who reads one key** looks, before it reads, that nobody holds the latch. That is enough, and no second look is needed: a transaction
//!   holds all its latches before it changes anything. So who has seen one of its changes finds the other latches held, or all of it done;
//!   and who looked before that read what was true when it looked, or something newer. (A page, which does not know its keys beforehand,
//!   waits for all commits that are under way when it begins: `Engine::await_commits`.)
//! * **a transaction's read** notes the version before it reads and finds it the same behind: it knows what the key held as long
//!   as that version stands (`store/transaction/commit.rs` tells what a commit does with it).
//!
//! **One order of all looks and holds**: they are SeqCst. A transaction holds its latches, then looks at those of what it read; a
//! plain caller puts one key and then reads another. Of two who do that crosswise at least one sees the other; on x86-64 this
//! costs nothing.
//!
//! Why a table by hash, and not a bit in each record? Records that are frozen are on their way to the device and must not be
//! touched, cold ones cannot be, absent keys have none; and a word record has no room for a version, without which a value that
//! changed and came back between two looks passes for one that stood still: a write skew. The price is that two keys may share
//! a latch. Then one waits for the other for a moment; that their versions are the same is seen through
//! (`store/transaction/witness.rs`), so it never makes a conflict by itself.

use crate::engine::Engine;
use crate::error::Result;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{Mutex, Rule, broken, hint, lock, thread};
use std::sync::OnceLock;

/// 512 KiB, out of what the budget sets aside for everything fixed. In models two.
const BITS: u32 = if cfg!(loom) { 1 } else { 16 };
const HELD: u64 = 1;
const VERSION: u64 = 2;
/// Looks at a held latch before its holder is taken to sleep.
const SPINS: u32 = 64;
/// Times that a transaction then lets others run, the holder among them.
const YIELDS: u32 = if cfg!(loom) { 1 } else { 256 };

#[derive(Default)]
pub(crate) struct Latches {
    table: OnceLock<Box<[AtomicU64]>>,
    /// Everybody asks the latches.
    is_ready: AtomicBool,
    /// Held while everybody is told to.
    telling: Mutex<()>,
}

/// The number of a latch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LatchNumber(u32);

impl LatchNumber {
    /// The index takes a hash's bits from below.
    #[inline(always)]
    pub(crate) fn of(hash: u64) -> Self {
        Self((hash >> (u64::BITS - BITS)) as u32)
    }
}

/// A latch that is ours, or nobody's because there are none. It ends with this value.
pub(crate) struct Hold<'a> {
    word: Option<&'a AtomicU64>,
    /// The version under which it was taken.
    version: u64,
}

impl Hold<'_> {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Lets go; what was read before goes on counting.
    pub(crate) fn unchanged(mut self) {
        if let Some(word) = self.word.take() {
            word.store(self.version, Release);
        }
    }
}

impl Drop for Hold<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(word) = self.word {
            // Release: what was changed is visible to whoever finds the latch free.
            word.store(self.version + VERSION, Release);
        }
    }
}

/// Loom takes SeqCst accesses for weaker ones; in models a fence is their order.
#[inline(always)]
fn in_one_order() {
    if cfg!(loom) && !broken(Rule::HeldBeforeLook) {
        fence(SeqCst);
    }
}

impl Latches {
    fn word(&self, number: LatchNumber) -> &AtomicU64 {
        let table = self.table.get_or_init(|| (0..1 << BITS).map(|_| AtomicU64::new(0)).collect());
        &table[number.0 as usize]
    }

    /// False until the first transaction is about to begin.
    pub(crate) fn exist(&self) -> bool {
        self.table.get().is_some()
    }

    /// The version of a latch that nobody holds.
    pub(crate) fn version(&self, number: LatchNumber) -> Option<u64> {
        in_one_order();
        // Also Acquire: pairs with the Release of whoever let go.
        let seen = self.word(number).load(SeqCst);
        (seen & HELD == 0).then_some(seen)
    }

    /// True if the version stood still, and nobody held the latch, from [`Latches::version`] until now.
    pub(crate) fn stands(&self, number: LatchNumber, version: u64) -> bool {
        // Acquire fence: what was read before this is older than the look.
        fence(Acquire);
        in_one_order();
        self.word(number).load(SeqCst) == version || broken(Rule::ReadsAreValidated)
    }

    /// Takes a latch, unless somebody holds it for longer than a moment.
    pub(crate) fn hold(&self, number: LatchNumber) -> Option<Hold<'_>> {
        let word = self.word(number);
        for _ in 0..if cfg!(loom) { 1 } else { SPINS } {
            let seen = word.load(Relaxed);
            // Also Acquire: pairs with the Release of the last holder.
            if seen & HELD == 0 && word.compare_exchange(seen, seen | HELD, SeqCst, Relaxed).is_ok() {
                in_one_order();
                // Release fence: it is seen to be held before anything is seen to change.
                fence(Release);
                return Some(Hold { word: Some(word), version: seen });
            }
            hint::spin_loop();
        }
        None
    }

    /// As [`Latches::hold`], but lets the holder run for a while. Only for who holds no latch of a higher number: so no two wait for each
    /// other. Without it 48 writers of a thousand keys each, on two processors, gave up after a hundred conflicts with somebody who
    /// slept in his commit.
    pub(crate) fn hold_next(&self, number: LatchNumber) -> Option<Hold<'_>> {
        (0..YIELDS).find_map(|_| {
            let held = self.hold(number);
            if held.is_none() {
                thread::yield_now();
            }
            held
        })
    }
}

impl Engine {
    /// From now on keys have latches. Must not be called under a pin.
    ///
    /// # Errors
    /// `Closed`; `Invalid` inside a closure that the store runs, which the drain would wait for.
    pub(crate) fn begin_latching(&self) -> Result<()> {
        drop(self.epochs.pin()?);
        let latches = &self.latches;
        // Acquire: pairs with the Release below.
        if !latches.is_ready.load(Acquire) {
            let _telling = lock(&latches.telling);
            if !latches.is_ready.load(Relaxed) {
                latches.word(LatchNumber(0));
                self.epochs.begin_latching();
                latches.is_ready.store(true, Release);
            }
        }
        Ok(())
    }

    /// The latch of a key that the caller is about to change; `None` if somebody holds it. Under a pin.
    #[inline(always)]
    pub(crate) fn hold(&self, hash: u64) -> Option<Hold<'_>> {
        if !self.epochs.is_latching() {
            return Some(Hold { word: None, version: 0 });
        }
        self.hold_latch(hash)
    }

    #[inline(never)]
    fn hold_latch(&self, hash: u64) -> Option<Hold<'_>> {
        if broken(Rule::WritersLatch) {
            return Some(Hold { word: None, version: 0 });
        }
        self.latches.hold(LatchNumber::of(hash))
    }

    /// True if a key must not be read now. Under a pin, before the read.
    #[inline(always)]
    pub(crate) fn is_held(&self, hash: u64) -> bool {
        self.epochs.is_latching() && self.is_latch_held(hash)
    }

    #[inline(never)]
    fn is_latch_held(&self, hash: u64) -> bool {
        self.latches.version(LatchNumber::of(hash)).is_none() && !broken(Rule::ReadersLook)
    }
}
