//! Commit lines: the one mechanism of durability.
//!
//! ```text
//! 0 ........ window .......... cut ........ tail
//! |  earlier lines  | this line    | later       |      a durable line = everything below `cut`, synced,
//!                     ^ except records of the next line    and a manifest slot that says so
//! ```
//! **Drawing a line**, while operations go on:
//! 0. Where there are transactions: those in their commit end, and no other enters it before step 2 is done.
//! 1. `read_only` moves to [`NOWHERE`]: from now on nothing is changed in place. The line number goes up: records made from
//!    now on carry the other parity.
//! 2. The tail, moved to the end of its block, is the `cut`. `floor` and `read_only` move there: threads leave their pieces below it, and
//!    change in place what lies above.
//! 3. Drain: nobody writes below the cut any more. Flush and sync; then write the manifest's slot and sync, unless the line is
//!    short and tells of itself (`lines.rs`).
//!
//! **An exact cut.** An operation takes its record's place first and reads the line number then: at or above the cut all
//! records carry the new parity. Below it, what carries the new one does not count. A record that builds on one of the
//! next line is of the next line too (the number is read after what it builds on was found); and a thread that has made
//! one, or seen one, finds `read_only` nowhere, or at the cut, and changes nothing in place below. Hence what the line holds
//! is closed under "happened before", and holds every operation that had returned when the line was asked for. The idea
//! is CPR's (SIGMOD 2019), with the version in the record and nobody waiting but read-modify-writes of a record in flux,
//! and transactions that commit, for the microseconds of step 3.
//!
//! **A line may leave records below its cut to the next one**, and their operations may return right away: that nothing lies above the
//! cut does not say that the line holds everything. It does if nobody had taken a place since the line before.
//!
//! **Nothing below a cut is ever written again**, not even the rest of a sector: the next piece begins in the next block.
//!
//! **Snapshots** are lines without the device (`snapshot.rs`), numbered alike. So the window of a line begins where the last
//! line of any kind ended: records below that are of earlier lines or of this one, and their parity says nothing.
//!
//! One line is drawn at a time; who waits for which, and who draws it, is `group.rs`.

use crate::engine::{Engine, Home};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::lines::{self, LineRecord};
use crate::log::NOWHERE;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use crate::sync::{MutexGuard, Rule, broken, lock};
use std::time::Duration;

/// When writes become durable without being asked to (a `commit` always makes them so).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Only at `commit` and `close`: a crash loses what came after.
    #[default]
    None,
    /// A commit of its own this often while anything changes. A power cut loses at most about so much, and never something older than what
    /// it keeps.
    Every(Duration),
    /// Each writing call returns when it is durable. Calls at the same time share a commit.
    Always,
}

#[derive(Default)]
pub(crate) struct Commits {
    pub(crate) group: Group,
    /// The line's number is about to change: no transaction may begin its commit.
    is_cutting: AtomicBool,
    /// Lines that end below and begin the log there may tell of themselves. `told_begin` is 0, where no log begins, before the first line
    /// of this opening.
    told_until: AtomicU64,
    told_begin: AtomicU64,
    /// No slot speaks of the last line yet.
    is_told: AtomicBool,
}

/// The lock under which lines are drawn and the log's boundaries move; it has the last line of any kind.
pub(crate) type Boundaries<'a> = MutexGuard<'a, Option<Line>>;

/// A line as it was drawn: records in `[window, cut)` count if they are of this line, those below all do.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) window: u64,
    pub(crate) cut: u64,
    /// All records below are part of it: there is none of the next line there.
    whole: u64,
    /// Where the log begins as of this line: what lies below has its copies below the cut.
    pub(crate) begin: u64,
    /// The time of the cut, in milliseconds since 1970: no transaction before it judged by a later one, none behind it by an
    /// earlier one.
    pub(crate) now: u64,
}

impl Engine {
    /// One line, durable. One caller at a time.
    pub(crate) fn draw_line(&self) -> Result<()> {
        let Some((line, told)) = self.cut_log(true)? else { return Ok(()) };
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return Ok(()) };
        if let Some(told) = told {
            told.apply(&mut home.manifest.state, line.cut);
            self.commits.is_told.store(true, Relaxed);
            return Ok(());
        }
        // Under the lock: nobody tries a sync again that another one saw fail.
        self.check_not_failed_for_good()?;
        let written = home.manifest.write(|state| {
            self.record_of(line.number, line.window).apply(state, line.cut);
            (state.begin, state.scars) = (line.begin, Some(self.scars.known(line.cut)));
        });
        self.slot_speaks_of(line.cut);
        written.map_err(|error| self.latch(error))?;
        // Release: who gives back what lies below finds the slot written.
        self.commits.told_begin.store(line.begin, Release);
        Ok(())
    }

    /// Where the log begins as the newest slot has it; 0 before the first line of this opening.
    pub(crate) fn told_begin(&self) -> u64 {
        self.commits.told_begin.load(Acquire)
    }

    fn slot_speaks_of(&self, cut: u64) {
        self.commits.told_until.store(cut + lines::TOLD_BYTES_MAX, Relaxed);
        self.commits.is_told.store(false, Relaxed);
    }

    /// No slot spoke of the last line when the store was opened: one is to, as if that had been drawn now.
    pub(crate) fn note_lag(&self) {
        let lags = lock(&self.home).as_ref().is_some_and(|home| home.lags);
        self.commits.is_told.store(lags, Relaxed);
    }

    /// The driver's share: a slot that speaks of the last line, if that only told of itself.
    pub(crate) fn settle_line(&self) {
        if !self.commits.is_told.load(Relaxed) {
            return;
        }
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return };
        // Under the lock: nobody tries a sync again that another one saw fail.
        if self.check_writable().is_err() {
            return;
        }
        // The state is that of the last durable line. A failure is latched.
        if let Err(error) = home.manifest.write(|_| ()) {
            self.latch(error);
        }
        self.slot_speaks_of(home.manifest.state.cut);
    }

    /// Both slots say where the log begins: what lies below may go.
    pub(crate) fn settle_begin(&self) -> Result<()> {
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return Ok(()) };
        // Where others find no room this needs none, and makes some.
        self.check_not_failed_for_good()?;
        home.manifest.settle_begin().map_err(|error| self.latch(error))
    }

    /// True if a line that is drawn now may do without the manifest.
    fn may_tell(&self) -> bool {
        let (bounds, tail) = (&self.log.bounds, self.log.tail());
        let is_short = tail - bounds.cut.load(Relaxed) <= lines::SHORT_BYTES && tail <= self.commits.told_until.load(Relaxed);
        is_short && bounds.compacted.load(Acquire) == self.commits.told_begin.load(Relaxed)
    }

    /// All but the manifest: the line, and what it tells of itself, if it `may_tell`; or `None` if nothing was written since the
    /// last one.
    pub(crate) fn cut_log(&self, may_tell: bool) -> Result<Option<(Line, Option<LineRecord>)>> {
        if self.log.device.is_some() {
            self.flush_ahead()?;
        }
        let mut boundaries = lock(&self.boundaries);
        self.check_writable()?;
        let bounds = &self.log.bounds;
        // Below the last cut nothing changes in place; above it nothing is. Nor is there a beginning to move.
        if self.log.tail() == bounds.durable.load(Relaxed) && bounds.compacted.load(Relaxed) == bounds.begin.load(Relaxed) {
            return Ok(None);
        }
        self.make_room_for_a_scar()?;
        let (line, has_room) = self.draw(&mut boundaries, may_tell && self.may_tell());
        // Others may have written much before the cut was there.
        let is_found = line.cut - bounds.cut.load(Relaxed) <= lines::FOUND_BYTES;
        let told = (has_room && is_found).then(|| self.tell(&line));
        self.flush_line(told.is_some())?;
        bounds.cut.store(line.cut, Relaxed);
        bounds.durable.store(line.whole, Relaxed);
        // Others may freeze, write and evict while the device syncs.
        drop(boundaries);
        if let Some(device) = &self.log.device
            && !crate::is_planted("skipped_sync")
        {
            device.sync().map_err(|error| self.latch(error))?;
        }
        // What another one's sync could not write, this one's need not have told.
        self.check_not_failed_for_good()?;
        Ok(Some((line, told)))
    }

    /// What is to be told of a line, by itself or by the manifest. After its drain.
    fn record_of(&self, number: u64, window: u64) -> LineRecord {
        let (from, shape) = (self.log.bounds.cut.load(Relaxed), self.index.finest_shape());
        let (dead, entries, shared) = (self.superseded_bytes_of_line(), self.index.entries(), self.index.is_shared());
        LineRecord { from, number, window, dead, shape, entries, shared }
    }

    /// Writes into a line's last block what the manifest would say.
    fn tell(&self, line: &Line) -> LineRecord {
        let record = self.record_of(line.number, line.window);
        self.log.tell_line(line.cut, &record.words());
        record
    }

    /// Ends a line at the tail: when it returns, nobody writes below its cut any more. True if it leaves room for a record of the
    /// line there, as `tells` asks for.
    pub(crate) fn draw(&self, last: &mut Boundaries<'_>, tells: bool) -> (Line, bool) {
        let bounds = &self.log.bounds;
        // Before the number and the cut: the copies that let it move are of this line, or of an earlier one. Asked for after the sync,
        // as it once was, it could have moved beyond records whose copies lay above the cut.
        let begin = bounds.compacted.load(Acquire);
        self.hold_transactions();
        bounds.set_read_only(NOWHERE);
        let number = bounds.line.fetch_add(1, SeqCst);
        // Whoever claims a place above the cut does it after this, and sees the new number.
        let told = if tells { self.log.end_line(lines::WORDS) } else { None };
        let (tail, cut) = told.unwrap_or_else(|| {
            let end = self.log.end_block();
            (end, end)
        });
        bounds.floor.store(cut, SeqCst);
        bounds.set_read_only(cut);
        let now = self.expiry.now();
        // Release: a transaction that finds it open again finds all of the above.
        self.commits.is_cutting.store(false, Release);
        if !broken(Rule::LinesDrain) {
            self.epochs.drain();
        }
        bounds.safe_read_only.store(cut, Release);
        let window = bounds.drawn.swap(cut, Relaxed);
        // Records of the next line may lie in the window, unless nobody had taken a place there.
        let whole = if tail == window || broken(Rule::LinesLeaveRecords) { cut } else { window };
        let line = Line { number, window, cut, whole, begin, now };
        **last = Some(line);
        (line, told.is_some())
    }

    /// The last line, as of now, if it holds all there is: then another one would hold the same.
    pub(crate) fn last_line_again(&self, last: &Boundaries<'_>) -> Option<Line> {
        let line = last.filter(|line| line.whole == self.log.tail())?;
        // The time is to fall between transactions, as that of a new line does.
        self.hold_transactions();
        let now = self.expiry.now();
        let is_still = self.log.tail() == line.whole;
        self.commits.is_cutting.store(false, Release);
        is_still.then_some(Line { now, ..line })
    }

    /// Returns when no transaction is in its commit, and lets none enter until `is_cutting` falls: the line's number and the
    /// boundary change between transactions, never within one. They wait for as long as a pin is held.
    fn hold_transactions(&self) {
        self.commits.is_cutting.store(true, SeqCst);
        // SeqCst fence: pairs with the one in the drain of `begin_latching`. Who begins the first transaction after we found
        // no latches sees the flag.
        fence(SeqCst);
        if self.latches.exist() && !broken(Rule::LinesWaitForTransactions) {
            self.epochs.drain();
        }
    }

    /// Returns when the transactions have ended that were in their commits when the call began: what somebody has seen of one, others see
    /// all of. Not under a pin.
    pub(crate) fn await_commits(&self) {
        if self.latches.exist() {
            self.epochs.drain();
        }
    }

    /// True if a transaction must not enter its commit now. Under a pin: who does not see it is waited for.
    pub(crate) fn is_cutting(&self) -> bool {
        self.commits.is_cutting.load(Acquire) && !broken(Rule::LinesWaitForTransactions)
    }

    /// A line, and an image of the index as of the line, so that the log below need not be read again. Nobody else is in
    /// the store. One slot of the manifest says both: what lies between an older cut and this one may be no part of the store.
    /// `anew`: even if there is an image of this moment.
    pub(crate) fn save_image(&self, anew: bool) -> Result<()> {
        let drawn = self.cut_log(false)?.map(|(line, _)| line);
        let mut home = lock(&self.home);
        let Some(home) = &mut *home else { return Ok(()) };
        let state = home.manifest.state.clone();
        let (line, cut, window) = drawn.map_or((state.line, state.cut, state.window), |line| (line.number, line.cut, line.cut));
        // With an image of its own a backup that somebody only looked into would be one no more.
        let needs_none = state.is_backup || state.image != 0 && state.image_until == cut;
        if !anew && drawn.is_none() && needs_none {
            return Ok(());
        }
        let Home { storage, manifest, .. } = home;
        let cleared = self.remove_images(&**storage, state.image);
        self.check_writable()?;
        let write = || self.write_image(&**storage, state.image + 1, state.identity.store_id, || false);
        let can_stand = anew || self.lacks_nothing();
        let written = cleared.and_then(|()| if can_stand { write() } else { Ok(()) });
        // What is given up needs one; else without it the next opening reads more of the log.
        if anew {
            written.as_ref().map_err(|error| self.latch(error.clone()))?;
        }
        let has_image = can_stand && written.is_ok();
        let named = if has_image { storage.sync().map_err(Error::from) } else { Ok(()) };
        let saved = named.and_then(|()| {
            manifest.write(|state| {
                self.record_of(line, window).apply(state, cut);
                (state.begin, state.scars) = (self.log.bounds.compacted.load(Acquire), Some(self.scars.known(cut)));
                if has_image {
                    (state.image, state.image_until) = (state.image + 1, cut);
                    // The image has all that was published in finer tables.
                    state.shape = self.index.shape_word();
                }
            })?;
            if has_image {
                self.index.forget_finest();
                self.image_stands_for(cut);
            }
            // Or the next opening would have to, before it removes what lies below.
            manifest.settle_begin()
        });
        saved.map_err(|error| self.latch(error))?;
        // What is left of older ones the next image removes.
        let _ = self.remove_images(&**storage, if has_image { state.image + 1 } else { state.image });
        self.check_writable()
    }
}
