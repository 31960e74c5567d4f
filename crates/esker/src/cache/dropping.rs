//! What is dropped, for those who are on their way there.
//!
//! ```text
//! begin ...... copied ............ dropping ............ tail
//! | gone, for all | nobody builds on it | built on as ever
//!                 | any more            |
//! ```
//! What an entry leads to leaves the index record by record (`compaction/mover.rs`). What lies in the midst of chains goes all at once,
//! when `copied` passes it; `dropping` has moved there before, and a drain has let those publish who had built on it. A crash brings back
//! what lies below `doomed`, until a line says that the log begins above.

use super::Caching;
use crate::engine::Engine;
use crate::error::Result;
use crate::log::{BLOCK_BYTES, NOWHERE};
use crate::sync::atomic::Ordering::*;

impl Engine {
    /// A cache drops a stretch of the device that cannot be read as a whole, and on to where a record begins that the index knows of: the
    /// stretch may end in the midst of one. Where that is; `None` if somebody holds what is there.
    pub(crate) fn pass_unread(&self, caching: &Caching, to: u64) -> Result<Option<u64>> {
        let next = self.lowest_indexed(to)?;
        // A block further: up to the record all is frozen then, and written.
        let reached = self.stretch_end(next.saturating_add(BLOCK_BYTES))?.min(next);
        // Whose values were there nobody knows.
        caching.flights.outdate_all();
        self.let_nobody_build_below(reached);
        Ok(self.drop_for_all(reached).then_some(reached))
    }

    /// What lies below goes, for all at once; false if there is a snapshot, which may have it: then it stays, for all. Snapshots that begin
    /// later do not have it.
    pub(crate) fn drop_for_all(&self, reached: u64) -> bool {
        let bounds = &self.log.bounds;
        // It may have been done already, before a snapshot began.
        let is_dropped = bounds.copied.load(Relaxed) >= reached || self.holds.without_snapshot(|| bounds.copied.store(reached, SeqCst));
        if !is_dropped {
            bounds.dropping.store(bounds.copied.load(Relaxed), Release);
        }
        is_dropped
    }

    /// Of what a cache drops from the midst of a chain the entry does not tell: it leads where it led. So whoever would build on it must
    /// not find it any more before somebody else finds it gone, and need write nothing to delete it. When this returns, what was built on
    /// it is published.
    pub(crate) fn let_nobody_build_below(&self, reached: u64) {
        if self.gives_up_by_lines() {
            self.log.bounds.doomed.fetch_max(reached, SeqCst);
        }
        self.log.bounds.dropping.store(reached, SeqCst);
        // Reads that take the short way do not ask what was copied, and an entry may lead there still.
        self.log.bounds.raise_near(reached);
        self.epochs.drain();
    }

    /// True if what is not there needs no deletion to be so after a crash, too. Not while a cache drops what no line has given up yet, nor
    /// while what had ended, and has no copy, is held: a clock may be set back.
    pub(crate) fn stays_absent(&self) -> bool {
        let bounds = &self.log.bounds;
        // Acquire: who found that an entry has gone finds this as well.
        let is_given_up = bounds.doomed.load(Acquire) <= self.told_begin();
        is_given_up && !(self.expiry.has_ends() && self.gives_up_by_lines() && bounds.is_held_back())
    }

    /// True if a crash brings back what a cache dropped and no line has given up: not in a store that goes with the process.
    pub(crate) fn gives_up_by_lines(&self) -> bool {
        !self.is_in_memory() && !self.is_temporary
    }

    /// The lowest address from there on that an entry of the index leads to; [`NOWHERE`] if there is none. A pass over the whole index.
    fn lowest_indexed(&self, from: u64) -> Result<u64> {
        let mut lowest = NOWHERE;
        // It may grow meanwhile, and what was split lies further up. (Where it shrinks what we find may be too high, and a little more is
        // dropped.)
        for at in (0..).take_while(|at| *at < self.index.buckets()) {
            let _pin = self.epochs.pin_anyway()?;
            lowest = self.index.addresses(at).into_iter().filter(|address| *address >= from).fold(lowest, u64::min);
        }
        Ok(lowest)
    }
}
