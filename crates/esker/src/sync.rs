//! The one door to atomics, fences, mutexes and waiting, so that loom or shuttle can stand behind it.
//!
//! Normally these are the standard library's own items, re-exported: no wrapper, no cost. Under `--cfg loom` they are loom's,
//! which tries every interleaving and every stale value that the memory model allows, of small pieces (`loom_models`). Under
//! `--cfg shuttle` they let shuttle run the whole store in orders drawn from a seed (`schedules.rs`). What no model reads or stops
//! at (device code, a word that is only a hint) may use the standard library's directly, and says so where it does.
//!
//! A model that cannot fail proves nothing. So each has a *weakened twin* that breaks one [`Rule`] of the real code, at the
//! one place that keeps it, and must fail. Outside of both [`broken`] is the constant `false`.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    hint,
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint,
    sync::{Mutex, MutexGuard},
    thread, thread_local,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::TryLockError;
use std::task::Waker;

/// Waiting that no loom model reaches.
pub(crate) mod waiting {
    #[cfg(shuttle)]
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(not(shuttle))]
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    use std::time::{Duration, Instant};

    /// The time; with shuttle it stands still, so that nothing but the schedule decides what happens.
    pub(crate) fn now() -> Instant {
        #[cfg(shuttle)]
        {
            static ALWAYS: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
            *ALWAYS
        }
        #[cfg(not(shuttle))]
        Instant::now()
    }

    /// Waits to be notified, for so long at most; true if it was so long. Shuttle knows no time: there it is over when others have run.
    pub(crate) fn for_long<'m, T>(
        mutex: &'m Mutex<T>,
        condition: &Condvar,
        held: MutexGuard<'m, T>,
        most: Duration,
    ) -> (MutexGuard<'m, T>, bool) {
        #[cfg(shuttle)]
        {
            _ = (condition, most);
            drop(held);
            // Most often soon, or when much has happened.
            let looks = 1 << shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..10);
            (0..looks).for_each(|_| super::thread::yield_now());
            (mutex.lock().unwrap_or_else(|e| e.into_inner()), true)
        }
        #[cfg(not(shuttle))]
        {
            _ = mutex;
            let (held, end) = condition.wait_timeout(held, most).unwrap_or_else(|e| e.into_inner());
            (held, end.timed_out())
        }
    }
}

#[cfg(loom)]
pub(crate) use loom::{
    hint,
    sync::{Mutex, MutexGuard},
    thread,
};
#[cfg(loom)]
pub(crate) use loom_local as thread_local;

/// How often something was waited for, as long as somebody's closure goes on, perhaps.
#[derive(Default)]
pub(crate) struct Spins(u32);

impl Spins {
    /// Soon the processor is left to others.
    pub(crate) fn pause(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 < 64 { hint::spin_loop() } else { thread::yield_now() }
    }

    pub(crate) fn count(&self) -> u32 {
        self.0
    }
}

/// What a panic left behind a mutex is as whole as anywhere: nothing is torn under one by foreign code.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The same if nobody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Wakers are foreign code: without a lock held, and a panic is the executor's matter: others wait to be woken.
pub(crate) fn wake(waker: Waker) {
    let _ = swallow(|| waker.wake());
}

/// Runs foreign code, whose panic ends here. What it was thrown with may panic as well, when it is dropped, and so on: once is borne.
pub(crate) fn swallow<T>(work: impl FnOnce() -> T) -> Option<T> {
    let mut thrown = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => return Some(done),
        Err(thrown) => thrown,
    };
    for _ in 0..2 {
        match catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
            Ok(()) => return None,
            Err(next) => thrown = next,
        }
    }
    std::mem::forget(thrown);
    None
}

/// Statics with a constant value; under loom and shuttle each execution gets fresh ones.
#[cfg(not(any(loom, shuttle)))]
macro_rules! statics {
    ($(static $name:ident: $type:ty = $value:expr;)*) => { $(static $name: $type = $value;)* };
}
#[cfg(loom)]
macro_rules! statics {
    ($(static $name:ident: $type:ty = $value:expr;)*) => { loom::lazy_static! { $(static ref $name: $type = $value;)* } };
}
#[cfg(shuttle)]
macro_rules! statics {
    ($(static $name:ident: $type:ty = $value:expr;)*) => { shuttle::lazy_static! { $(static ref $name: $type = $value;)* } };
}
pub(crate) use statics;

/// Loom's thread locals, which know no `const`.
#[cfg(loom)]
macro_rules! loom_local {
    ($(static $name:ident: $type:ty = const { $value:expr };)*) => { loom::thread_local! { $(static $name: $type = $value;)* } };
}
#[cfg(loom)]
pub(crate) use loom_local;

#[cfg(shuttle)]
#[path = "shuttle_atomic.rs"]
pub(crate) mod atomic;

#[cfg(loom)]
#[path = "loom_atomic.rs"]
pub(crate) mod atomic;

/// What the weakened twins of the models break, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// `Epochs::drain` waits for those inside.
    DrainWaits,
    /// A pin is visible to a drain before anything is done under it.
    PinFences,
    /// Who sees a thread's later pin sees what it did under the earlier ones.
    PinReleases,
    /// Who sees a thread count sees what it did under the pins before.
    CountReleases,
    /// The closed flag is looked at after the pin is stored.
    FlagAfterPin,
    /// `Probe::claim` latches only a bucket that is still what the probe saw.
    ClaimUnchanged,
    /// `Index::add` and `Index::publish` look again once they hold the latch.
    LookLatched,
    /// `Probe::claim` asks whether the shape stood still until the link was read.
    ClaimAsksShape,
    /// While entries move the version is odd.
    MoveIsOdd,
    /// The version is odd before the shape says that the bucket is split: its tags begin at another bit from then on.
    OddBeforeShape,
    /// An absence counts only if the shape stood still.
    ShapeStandsStill,
    /// A split changes the sibling's version: the table may have had it before.
    SiblingChanges,
    /// An absence asks for the bucket's version after it asked for the shape, which may have come back.
    VersionIsLast,
    /// A split fills the sibling before the shape leads to it.
    SiblingFirst,
    /// While the level turns no absence counts.
    TurnIsMarked,
    /// Who latched a bucket asks again whether it is the hash's.
    LatchLooksAgain,
    /// Who looks again asks whether the shape stood meanwhile: what he worked out may mix two levels.
    LatchedLookStands,
    /// Who read the next level's geometry is shown the turn when it asks for the shape.
    GeometryShowsTurn,
    /// An absence reads the entries before it reads the version again.
    EntriesBeforeVersion,
    /// A lookup whose full tag went away looks for a shorter one.
    ShortenedIsFound,
    /// An overflow bucket is free for others only once it is listed.
    FreeIsListed,
    /// An overflow bucket on a shelf is the shelf's: it is not taken for one of the list.
    ShelfOwns,
    /// A piece of the log is left when `read_only` has passed the cursor.
    PieceEndsAtReadOnly,
    /// Of what `in_place` is made of one moves at a time.
    OneMovesInPlace,
    /// The tail moves by compare-and-swap.
    TailIsClaimed,
    /// An update waits while its record is fuzzy.
    FuzzyWaits,
    /// What a snapshot holds stays linked to what supersedes it.
    SnapshotHoldsLinks,
    /// A snapshot's line is drawn only when everybody knows of it.
    HoldDrains,
    /// A reader of a bytes record checks the version again.
    VersionStandsStill,
    /// Who latched a bytes record that he saw plain asks again whether it is.
    LatchedLooksAgain,
    /// Who latched a bytes record asks again how much room is in it.
    RoomIsLatched,
    /// A bytes record is latched until its deletion is there.
    DeletionIsLatched,
    /// What a record has left is filled only when nobody looks there any more.
    HolesRest,
    /// A batch that looked entries up before it pinned asks whether holes have ripened since.
    BatchesAskForHoles,
    /// Where keys have latches, a plain writer holds its key's.
    WritersLatch,
    /// A plain reader looks whether its key's latch is held.
    ReadersLook,
    /// Who takes a word for ended claims its end before he acts on that.
    EndsAreClaimed,
    /// A transaction asks whether what it read stood still.
    ReadsAreValidated,
    /// A transaction's latches are seen to be held before it looks at other latches.
    HeldBeforeLook,
    /// A line's number changes while no transaction is in its commit.
    LinesWaitForTransactions,
    /// A line's cut waits for those who write below it.
    LinesDrain,
    /// A line serves once more only if it left no records below its cut to the next one.
    LinesLeaveRecords,
    /// At a line's end its gates change: who is about to sleep there does not.
    GatesChange,
    /// Who waits for company goes on without it in the end.
    HeraldGoesOn,
    /// At a line's end nobody waits for company any more, though he may still sleep.
    HeraldEndsWithLine,
    /// Who waited for a line that failed waits for no other.
    FailedLinesAreTold,
}

/// True in the twin that breaks this rule.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn broken(_: Rule) -> bool {
    false
}

#[cfg(any(loom, all(shuttle, test)))]
pub(crate) use weakness::Weakness;
#[cfg(any(loom, shuttle))]
pub(crate) use weakness::broken;

/// What the model that runs on this system thread changes. Loom and shuttle run all threads of a model on one system thread, so
/// the standard library's thread locals belong to the model.
#[cfg(any(loom, shuttle))]
mod weakness {
    use super::Rule;
    use std::cell::Cell;

    std::thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
        #[cfg(loom)]
        static FENCE_ON_PIN: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn broken(rule: Rule) -> bool {
        BROKEN.with(Cell::get) == Some(rule)
    }

    pub(crate) struct Weakness;

    #[cfg_attr(not(test), expect(dead_code, reason = "set by models"))]
    impl Weakness {
        pub(crate) fn set(rule: Option<Rule>) {
            BROKEN.with(|cell| cell.set(rule));
        }

        /// Machines without `membarrier`.
        #[cfg(loom)]
        pub(crate) fn set_fence_on_pin(to: bool) {
            FENCE_ON_PIN.with(|cell| cell.set(to));
        }

        #[cfg(loom)]
        pub(crate) fn fence_on_pin() -> bool {
            FENCE_ON_PIN.with(Cell::get)
        }
    }
}
