//! Snapshots: the store as of one moment, while everything goes on.
//!
//! ```text
//! begin ........ window ............... cut ........ tail        a snapshot = a line without the device (`commit.rs`)
//! |  all counts    | counts if of this line  | later  |
//! chain of a key:   newer -> ... -> first above the cut -> the version as of the cut -> ...
//! ```
//! A line already divides what had returned before it from what began after it, and leaves everything below its cut as it is.
//! Two things more keep that readable:
//!
//! * **Links are held**: a record that supersedes one below the newest cut held leads to it, not past it (`previous_for`).
//!   So from the entry down, the key's first record that counts is its version as of the cut. Records above the cut go past
//!   each other as always: a chain has one version more for each snapshot that could need it.
//! * **The beginning is held** ([`Holds`]): compaction may copy what lives in a stretch meanwhile, for a copy leads to what it was
//!   made of; but a stretch is given back only when all holds began behind its copying ([`Holds::let_go`]). Those find the
//!   copies below their cut, and begin there themselves. So snapshots that follow each other closely stop nothing.
//! * **The time is held**: what ends after the cut is there in the snapshot. Compaction drops what had ended for all who hold.
//!
//! **Drawing one**: say that links are held (`held` is [`NOWHERE`]: all of them), drain, draw the line, lower `held` to its
//! cut. Who passed a record by before the drain ended published what supersedes it before the cut was drawn: it is below the
//! cut and counts. If after that drain the last line holds all there is, that line serves once more.
//!
//! **Which records count** needs no more than their parity: below the cut, all were made before the drain of its line ended, so
//! for this line, for the next one, or for earlier ones; and those of earlier ones lie below the window or are of the next
//! parity there. In `[window, cut)`, made after the line before was drawn, there are those of this line and of the next, no
//! others: the line after the next is drawn only when this drawing is over. Below the window, which ended a line too, all are of
//! this line or earlier ones, and count.
//!
//! Deletions in place happen at or above `read_only`, and hence above the cut. Nothing else writes to a published record, but
//! for values and ends in place, there too, and the lives that a cache counts in a header, which say nothing to a view.
//!
//! What a snapshot costs: each record below the cut is copied once when it changes next, and no space comes back while it is
//! held but that of stretches whose copying came before it; a store in memory that is full answers `Full` meanwhile.
//!
//! A [`Hold`] alone keeps what is reachable now from being given back; it draws nothing, and what it reads is of no one moment.

use crate::commit::Line;
use crate::engine::Engine;
use crate::error::Result;
use crate::log::{NOWHERE, line_flag};
use crate::record::{ABANDONED, ABSENT, ADDRESS_MASK, EXPIRES, ODD_LINE, Record, VALID};
use crate::sync::atomic::Ordering::*;
use crate::sync::{Mutex, Rule, broken, lock};
use std::sync::Arc;

/// Which records are part of a view of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Below it is nothing that a chain needs to be followed to.
    pub(crate) begin: u64,
    window: u64,
    pub(crate) cut: u64,
    flag: u64,
    /// What has ended by then is absent, in milliseconds since 1970.
    pub(crate) now: u64,
}

impl View {
    fn of(line: Line, begin: u64) -> Self {
        Self { begin, window: line.window, cut: line.cut, flag: line_flag(line.number), now: line.now }
    }

    /// True if a record is part of the view.
    #[inline(always)]
    pub(crate) fn counts(&self, at: u64, header: u64) -> bool {
        (at < self.window || at < self.cut && header & ODD_LINE == self.flag) && header & ABANDONED == 0
    }

    /// True if a record of a chain is known to be part of the view by its address alone.
    #[inline(always)]
    pub(crate) fn surely_counts(&self, at: u64) -> bool {
        at < self.window
    }

    /// True if a record with this header, which ends then, holds a value.
    #[inline(always)]
    pub(crate) fn is_value(&self, header: u64, expires: u64) -> bool {
        header & ABSENT == 0 && expires > self.now
    }
}

impl View {
    /// The question whether a record counts and holds a value without an end, where it is the same for all that begin in
    /// `[from, until)`.
    pub(crate) fn plain(&self, from: u64, until: u64) -> Option<Plain> {
        let mask = VALID | ABANDONED | ABSENT | EXPIRES;
        if until <= self.window {
            return Some(Plain { mask, want: VALID });
        }
        (from >= self.window && until <= self.cut).then_some(Plain { mask: mask | ODD_LINE, want: VALID | self.flag })
    }
}

/// Bits that a header must have, of some.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    mask: u64,
    want: u64,
}

impl Plain {
    #[inline(always)]
    pub(crate) fn is_lasting(self, header: u64) -> bool {
        header & self.mask == self.want
    }
}

const CALL_PAUSES: u32 = 250;

/// What somebody holds.
#[derive(Clone, Copy, PartialEq)]
struct Held {
    /// The snapshot's; 0 of a mere hold.
    cut: u64,
    begin: u64,
    /// The log's tail when it began.
    tail: u64,
    /// The time of the cut, or one before it.
    now: u64,
}

/// Who holds what.
#[derive(Default)]
pub(crate) struct Holds(Mutex<Vec<Held>>);

impl Holds {
    pub(crate) fn is_any(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// True if what ends then had ended for all who hold. Who begins to after this call looks at the clock after it.
    pub(crate) fn have_seen(&self, end: u64) -> bool {
        lock(&self.0).iter().all(|held| held.now >= end)
    }

    /// Where the log's tail was when the first of those who hold began; 0 if nobody does.
    pub(crate) fn first_tail(&self) -> u64 {
        lock(&self.0).iter().map(|held| held.tail).min().unwrap_or(0)
    }

    /// Runs `act` unless there is a snapshot; who begins one from now on finds it done.
    pub(crate) fn without_snapshot(&self, act: impl FnOnce()) -> bool {
        let held = lock(&self.0);
        let is_free = held.iter().all(|held| held.cut == 0);
        if is_free {
            act();
        }
        is_free
    }

    /// Runs `act` if nobody needs what lies below `to`, all of which has been copied: who begins to hold from now on does not.
    pub(crate) fn let_go(&self, to: u64, act: impl FnOnce()) -> bool {
        let held = lock(&self.0);
        let is_free = held.iter().all(|held| held.begin >= to);
        if is_free {
            act();
        }
        is_free
    }
}

/// Keeps what is reachable where it is, until it is dropped.
pub(crate) struct Hold {
    engine: Arc<Engine>,
    held: Held,
}

impl Hold {
    fn new(engine: &Arc<Engine>, cut: u64) -> Self {
        let mut holding = lock(&engine.holds.0);
        // Under the same lock as what lets go: what compaction gives back it has copied before.
        let begin = engine.log.bounds.copied.load(SeqCst);
        // As of no time yet: the clock is foreign code, which may drop what holds, and is asked without the lock.
        let held = Held { cut, begin, tail: engine.log.tail(), now: 0 };
        holding.push(held);
        engine.publish_holds(&holding);
        drop(holding);
        Self { engine: engine.clone(), held }
    }

    fn set_line(&mut self, line: Line) {
        self.set(Held { cut: line.cut, now: line.now, ..self.held });
    }

    fn set(&mut self, now: Held) {
        let mut holding = lock(&self.engine.holds.0);
        if let Some(held) = holding.iter_mut().find(|held| **held == self.held) {
            *held = now;
        }
        self.held = now;
        self.engine.publish_holds(&holding);
    }

    /// The store as it is whenever one looks.
    pub(crate) fn view(&self) -> View {
        View { begin: self.held.begin, window: NOWHERE, cut: NOWHERE, flag: 0, now: self.engine.expiry.now() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holding = lock(&self.engine.holds.0);
        if let Some(at) = holding.iter().position(|held| *held == self.held) {
            holding.swap_remove(at);
        }
        self.engine.publish_holds(&holding);
    }
}

/// The store as of its cut, until it is dropped.
pub(crate) struct Snapshot {
    _hold: Hold,
    pub(crate) view: View,
}

/// Where a key's newest record of a view is.
pub(crate) enum Newest {
    Memory(Record),
    /// In the part of the chain that begins here, on the device, or nowhere.
    Cold(u64),
    /// In the part looked at: the first address that was not.
    Nowhere {
        at: u64,
    },
}

impl Engine {
    /// The store as of now: all operations that had returned before the call, and no part of any that begins after it.
    ///
    /// # Errors
    /// `Closed`, and `Invalid` inside a closure that the store runs.
    ///
    /// # Cost
    /// Two drains, some microseconds; it may wait for the flush of a line that is being drawn.
    pub(crate) fn snapshot(self: &Arc<Self>) -> Result<Snapshot> {
        drop(self.epochs.pin()?);
        let mut hold = Hold::new(self, NOWHERE);
        if !broken(Rule::HoldDrains) {
            self.epochs.drain();
        }
        let mut boundaries = lock(&self.boundaries);
        let mut line = self.last_line_again(&boundaries).unwrap_or_else(|| self.draw(&mut boundaries, false).0);
        if line.window < self.log.bounds.head.load(Relaxed) {
            // One more, right behind it: what is cold is known to count then, without a look at its header.
            line = self.draw(&mut boundaries, false).0;
        }
        drop(boundaries);
        hold.set_line(line);
        let view = View::of(line, hold.held.begin);
        Ok(Snapshot { _hold: hold, view })
    }

    /// Keeps what is reachable where it is.
    ///
    /// # Errors
    /// As [`Engine::snapshot`].
    pub(crate) fn hold_space(self: &Arc<Self>) -> Result<Hold> {
        drop(self.epochs.pin()?);
        let mut hold = Hold::new(self, 0);
        hold.set(Held { now: self.expiry.now(), ..hold.held });
        Ok(hold)
    }

    /// The newest record of a view among those with this key in the chain that begins at `from`, as far as it lies in memory
    /// and above `down_to`. Under a pin taken after the view was.
    #[inline(always)]
    pub(crate) fn newest_in(&self, view: &View, from: u64, down_to: u64, is_own: impl Fn(&Record) -> bool) -> Newest {
        // Not by `Log::chain`: scans by keys take 4 % longer then.
        let head = self.log.bounds.head.load(Acquire);
        let mut at = from;
        while at >= view.begin && at > down_to {
            if at < head {
                return Newest::Cold(at);
            }
            // SAFETY: `at >= head` under the caller's pin; entries and chains hold published addresses only.
            let record = unsafe { Record::new(self.log.pointer(at)) };
            let header = record.header().load(Acquire);
            if view.counts(at, header) && is_own(&record) {
                return Newest::Memory(record);
            }
            at = header & ADDRESS_MASK;
        }
        Newest::Nowhere { at }
    }

    /// From now on all links are held. For a store that nobody uses yet.
    pub(crate) fn keep_versions(&self) {
        self.publish_holds(&[]);
    }

    /// How many pauses ([`HELD_PAUSE`](crate::compaction::HELD_PAUSE)) who needs room waits for those who hold some: so many for a
    /// snapshot. Else that is a page, or a look at a key's history: one call, which ends, though its thread may be without a processor for
    /// a while.
    pub(crate) fn hold_pauses(&self, for_snapshot: u32) -> u32 {
        if self.is_snapshot_held() { for_snapshot } else { CALL_PAUSES }
    }

    pub(crate) fn is_snapshot_held(&self) -> bool {
        self.log.bounds.held.load(Acquire) != 0
    }

    fn publish_holds(&self, holds: &[Held]) {
        // Release: who sees it lowered sees that the line was drawn.
        let held = if self.keeps_versions { NOWHERE } else { holds.iter().map(|held| held.cut).max().unwrap_or(0) };
        self.log.bounds.held.store(held, Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Options, Store};

    /// The value of `key` as of a snapshot, by its chain in memory.
    fn value_of(store: &Store<u64, u64>, snapshot: &Snapshot, key: u64) -> Option<u64> {
        let engine = store.engine_for_test();
        let _pin = engine.epochs.pin().unwrap();
        let seen = engine.index.lookup(engine.hash_of(&key.to_ne_bytes()));
        match engine.newest_in(&snapshot.view, seen.address(), 0, |record| record.word_key(8) == key.to_ne_bytes()) {
            Newest::Memory(record) if record.is_plain() => Some(record.word_value(8).load(Acquire)),
            _ => None,
        }
    }

    fn chain_lengths(store: &Store<u64, u64>) -> usize {
        store.stats().index.chain_lengths.len()
    }

    #[test]
    fn each_snapshot_keeps_its_own_version() {
        let store: Store<u64, u64> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
        let mut snapshots = Vec::new();
        for round in 0..5 {
            for n in 0..1000 {
                store.put(&n, &(n + round)).unwrap();
            }
            store.delete(&round).unwrap();
            snapshots.push(store.engine_for_test().snapshot().unwrap());
            store.put(&round, &77).unwrap();
            store.put(&(2000 + round), &1).unwrap();
        }
        for (round, snapshot) in (0..).zip(&snapshots) {
            for n in 0..1000 {
                let want = if n == round { None } else { Some(n + round) };
                assert_eq!(value_of(&store, snapshot, n), want, "key {n} as of {round}");
            }
            assert_eq!(value_of(&store, snapshot, 2000 + round), None);
        }
    }

    #[test]
    fn a_chain_is_short_again_when_the_snapshots_are_gone() {
        let store: Store<u64, u64> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
        // Few, so that no two share an entry: with a thousand that happened once in a hundred runs, and the chain was twice as long.
        let put_all = || (0..30).for_each(|n| store.put(&n, &n).unwrap());
        put_all();
        for held in 1..4 {
            let _snapshot = store.engine_for_test().snapshot().unwrap();
            put_all();
            put_all();
            assert_eq!(chain_lengths(&store), 1 + held);
        }
        drop(store.engine_for_test().snapshot().unwrap());
        put_all();
        assert_eq!(chain_lengths(&store), 1);
    }

    #[test]
    fn what_a_snapshot_holds_is_not_given_back() {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        let put_all = || (0..100_000).try_for_each(|n| store.put(&n, &n));
        put_all().unwrap();
        let snapshot = store.engine_for_test().snapshot().unwrap();
        put_all().unwrap();
        assert_eq!(store.compact().unwrap(), 0);
        // New keys until nothing fits: an answer, not a wait.
        let full = (100_000..10_000_000).find_map(|n| store.put(&n, &n).err());
        assert!(matches!(full, Some(crate::Error::Full)));
        assert!((0..100_000).all(|n| value_of(&store, &snapshot, n) == Some(n)));
        drop(snapshot);
        assert!(store.compact().unwrap() > 0);
    }
}
