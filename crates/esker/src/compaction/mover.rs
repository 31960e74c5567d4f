//! The mover: what becomes of each record of a stretch.
//!
//! ```text
//! visit -> consider -+-> the newest of its key: a copy at the tail, published over the entry seen
//!                    +-> dead, deleted or expired: dropped
//!                    +-> in doubt: put on the list, and considered again when the list is settled
//! ```
//! * **Nothing is resurrected**: a copy is published only over the very entry under which the record was found to be the newest.
//! * **Deletions end here.** Older versions lie lower and went before, so a tombstone has no copy. A record that has expired is a
//!   tombstone. Its entry stays until the log begins above it (`Engine::sweep_index`): should the stretch end early, or a crash come, it
//!   says that the key is gone, whatever another key's chain leads to. Not so in a cache, which takes away the entries of what it drops.
//! * **Whether a cold record is the newest** is known at once if its entry leads to it. If the entry leads to another cold
//!   record, that one is read: those reads are gathered for the stretch and done in the order of their addresses, neighbours
//!   by one read and some reads at a time. If the entry says that its chain is of one key, none is needed.
//! * **A guess** (`index/mod.rs`) is of the record that heads the chain, and is judged where that is sure: it was wrong if that is seen to
//!   supersede a deletion, or to lead to a record of another key that lives (what lies lower was seen before, so there is no older one of
//!   its own): then what was counted is taken back. It was right if the record that it supersedes is seen. Before a copy of another key's
//!   record heads the chain it counts as right. So errors are of one kind, too many dead, which ends with each pass; taken back in doubt
//!   where keys share entries, each pass left fewer dead than there were, and compaction came later and later.

mod doubts;

use crate::cache::{Caching, Departed, Kept, Unheard};
use crate::copies::{Newest, Original};
use crate::engine::Engine;
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result};
use crate::index::{Keys, Seen};
use crate::memory::prefetch;
use crate::record::{self, ABSENT, NEVER, Record};
use crate::sync::atomic::Ordering::*;
use crate::sync::thread;
use crate::traverse::{Scanned, Visitor};
use crate::types::Layout;
use doubts::Doubts;
use std::cell::Cell;
use std::ops::Range;

/// Records between two looks whether the store closes, and at what the driver would do meanwhile.
const VISITS_AHEAD: u64 = 256;

/// Moves what lives in a stretch.
pub(super) struct Mover<'a> {
    engine: &'a Engine,
    visited: u64,
    pub(super) tally: Tally,
    /// Bytes that were counted as dead where nothing had died.
    pub(super) taken_back: Cell<u64>,
    /// Records that are no deletions, and their bytes.
    values: u64,
    value_bytes: u64,
    /// Where the stretch begins; whatever lived below has a copy above. And the log's tail by then.
    from: u64,
    tail: u64,
    doubts: Doubts,
    /// A cache, which drops what is not worth another round.
    caching: Option<&'a Caching>,
    stretch: u64,
    /// In memory the first record whose copy did not fit: the stretch ends before it.
    pub(super) ended_at: Option<u64>,
    /// Others move pieces of the stretch, and the room may end in one of theirs (`pieces.rs`).
    pub(super) shares: bool,
    /// A record without the room that it does not need.
    lean: Vec<u8>,
    /// Dropped, where and of which hash, though an entry still leads there: until all of the stretch goes others may find it, and build on
    /// it or keep it.
    aside: Vec<(u64, u64, Departed)>,
}

/// What was done, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    /// Of copies made.
    pub(super) moved: u64,
    /// Of expired records dropped: nobody counted them. And how many there were.
    pub(super) expired: u64,
    pub(super) expired_records: u64,
    /// Those that nobody finds any more though the stretch may end early: a cache takes their entries away. And how many.
    pub(super) expired_gone: u64,
    pub(super) expired_gone_records: u64,
    /// Of what lived, and a cache dropped: nobody counted it either. And of that, what nobody finds any more.
    pub(super) dropped: u64,
    pub(super) dropped_gone: u64,
    /// What goes with the stretch.
    pub(super) unheard: Unheard,
    /// Counted as dead by the copies: what they left of their pieces and last blocks.
    pub(super) left: u64,
    /// Entries, not bytes, that lead to what has no copy.
    pub(super) idle_entries: u64,
}

impl Tally {
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            moved: self.moved + other.moved,
            expired: self.expired + other.expired,
            expired_records: self.expired_records + other.expired_records,
            expired_gone: self.expired_gone + other.expired_gone,
            expired_gone_records: self.expired_gone_records + other.expired_gone_records,
            dropped: self.dropped + other.dropped,
            dropped_gone: self.dropped_gone + other.dropped_gone,
            unheard: self.unheard.with(other.unheard),
            left: self.left + other.left,
            idle_entries: self.idle_entries + other.idle_entries,
        }
    }
}

/// What a record of the stretch is.
enum Standing {
    /// The newest of its key.
    Newest,
    /// Superseded, or of a key that has gone.
    Dead,
    /// The newest, unless its key has a record between this cold one, to which its entry leads, and itself.
    InDoubt(u64),
    /// Not in this chain, perhaps, and somebody loads its key.
    Loaded,
    /// A bucket was moving: look again.
    Unclear,
}

impl Visitor for Mover<'_> {
    fn expect(&mut self, hash: u64) {
        self.engine.index.prefetch(hash);
    }

    fn expect_soon(&mut self, record: &Scanned) {
        let newest = self.engine.index.prefetch_behind(record.hash);
        if newest != record.at {
            prefetch(self.engine.log.pointer(newest));
        }
    }

    fn visit(&mut self, scanned: &Scanned, bytes: &[u8]) -> Result<()> {
        if self.ended_at.is_some() {
            return Ok(());
        }
        self.visited += 1;
        if !is_deletion(bytes) {
            self.values += 1;
            self.value_bytes += bytes.len() as u64;
        }
        // In memory who compacts does the same piece by piece.
        if self.visited.is_multiple_of(VISITS_AHEAD) && !self.engine.is_in_memory() {
            // Who closes waits for this stretch.
            if self.engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            // The driver is here and not in its loop; without this lines wait, and those who write pay for page faults and flushes.
            self.engine.keep_up();
        }
        let moved = self.tally.moved;
        self.consider(&Original { at: scanned.at, hash: scanned.hash, bytes }, None)?;
        if self.tally.moved == moved && self.ended_at.is_none() {
            self.engine.log.note_gone(bytes.len() as u64);
        }
        self.settle_if_many()
    }
}

impl<'a> Mover<'a> {
    pub(super) fn new(engine: &'a Engine, stretch: Range<u64>, caching: Option<&'a Caching>) -> Self {
        let (from, stretch) = (stretch.start, stretch.end - stretch.start);
        Self {
            engine,
            visited: 0,
            tally: Tally::default(),
            taken_back: Cell::new(0),
            values: 0,
            value_bytes: 0,
            from,
            tail: engine.log.tail(),
            doubts: Doubts::new(),
            caching,
            stretch,
            ended_at: None,
            shares: false,
            aside: Vec::new(),
            lean: Vec::new(),
        }
    }
}

impl Mover<'_> {
    /// `known`: the first cold record of the chain in which this one was found, by reading, to be its key's newest that is cold. Cold
    /// chains do not change.
    pub(super) fn consider(&mut self, of: &Original<'_>, known: Option<u64>) -> Result<()> {
        let engine = self.engine;
        let (is_tombstone, mut has_room) = (is_deletion(of.bytes), true);
        loop {
            let pin = engine.epochs.pin_anyway()?;
            let seen = engine.index.lookup(of.hash);
            match self.standing(of, &seen, known) {
                Standing::Newest => {}
                Standing::Dead => return Ok(()),
                Standing::InDoubt(other) => {
                    self.doubt(of, &seen, other);
                    return Ok(());
                }
                Standing::Loaded => {
                    self.outdate_load(pin, of);
                    continue;
                }
                Standing::Unclear => continue,
            }
            // A snapshot that begins later waits for our pin: it does not have what we drop.
            if self.caching.is_some() && engine.log.bounds.held.load(Acquire) != 0 {
                self.ended_at = Some(of.at);
                return Ok(());
            }
            if seen.is_guessed() && seen.address() != of.at {
                self.settle_guess(of.hash, seen.address(), self.is_next_of_old(of.at, &seen).then(|| self.guess_of(seen.address())));
                continue;
            }
            let has_expired = !is_tombstone && self.has_expired(of.bytes);
            let has_ended = is_tombstone || has_expired;
            let kept = if has_ended || !has_room { None } else { self.keeping(&pin, of) };
            let is_done = if has_ended || !has_room || self.caching.is_some() && kept.is_none() {
                // What has ended is loaded as if it had been missed.
                if !has_ended && self.is_being_loaded(of) {
                    self.outdate_load(pin, of);
                    continue;
                }
                Ok(self.leave_out(pin, of, &seen, has_expired))
            } else {
                self.copy(pin, of, &seen)
            };
            match is_done {
                Ok(true) => {
                    if let (Some(caching), Some(kept)) = (self.caching, kept) {
                        caching.have_kept(kept);
                    }
                    return Ok(());
                }
                // Somebody was quicker, or holds the key's latch: perhaps for as long as a caller's closure takes.
                Ok(false) => thread::yield_now(),
                Err(Error::Full) if self.caching.is_some() => has_room = false,
                Err(Error::Full) => {
                    self.ended_at = Some(of.at);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What a record is by the entry that was `seen`. Under a pin.
    fn standing(&self, of: &Original<'_>, seen: &Seen, known: Option<u64>) -> Standing {
        let (engine, at) = (self.engine, of.at);
        // Nearly always: whatever lives leads here.
        let newest = if seen.address() == at { Newest::At(at) } else { engine.newest(seen, of.key(engine.layout)) };
        match newest {
            // By a shorter tag, while the bucket moves.
            Newest::At(newest) if newest < at && !engine.index.is_settled(seen) => Standing::Unclear,
            Newest::At(newest) if newest != at => {
                if seen.is_guessed() && newest == seen.address() {
                    let is_wrong = is_deletion(of.bytes) && self.is_next(at, seen);
                    self.settle_guess(of.hash, newest, is_wrong.then(|| self.guess_of(newest)));
                }
                Standing::Dead
            }
            Newest::At(_) => Standing::Newest,
            Newest::Cold(other) if other == at || known == Some(other) => Standing::Newest,
            // It may be a bucket that moves: what follows says that the record is dead because it is not in this chain.
            Newest::Cold(_) | Newest::Nowhere if !engine.index.is_settled(seen) => Standing::Unclear,
            Newest::Nowhere => Standing::Dead,
            // Chains descend; or this one is another key's, or its first record is a newer one of this key.
            Newest::Cold(other) if other < at || seen.is_sole() => Standing::Dead,
            // A cache drops what is on a device anyway.
            Newest::Cold(_) if self.is_being_loaded(of) => Standing::Loaded,
            Newest::Cold(_) if self.is_dropped(of) => Standing::Dead,
            Newest::Cold(other) => Standing::InDoubt(other),
        }
    }

    /// True if the record that heads the chain that was `seen` is known to lead to the one at `at`. Under a pin.
    fn is_next(&self, at: u64, seen: &Seen) -> bool {
        let head = seen.address();
        // SAFETY: in memory under the caller's pin; entries lead to published records.
        head >= self.engine.log.bounds.head.load(Acquire) && unsafe { Record::new(self.engine.log.pointer(head)) }.previous() == at
    }

    /// The same where that record was there when the stretch began: of its key whatever lies lower was seen by now, and is in no doubt.
    fn is_next_of_old(&self, at: u64, seen: &Seen) -> bool {
        seen.address() < self.tail && self.is_next(at, seen)
    }

    /// Makes no copy of the newest record of a key, which is a deletion, has ended, or is not worth one; false to look again.
    fn leave_out(&mut self, pin: Pin<'_>, of: &Original<'_>, seen: &Seen, has_expired: bool) -> bool {
        let bytes = of.bytes.len() as u64;
        let leads_here = seen.address() == of.at;
        let done = self.caching.is_none_or(|caching| self.drop_from(caching, pin, of, seen, has_expired));
        if done && has_expired {
            self.tally.expired += bytes;
            self.tally.expired_records += 1;
        } else if done && !is_deletion(of.bytes) {
            self.tally.dropped += bytes;
        }
        if done && leads_here && self.caching.is_none() {
            self.tally.idle_entries += 1;
        }
        // Of a cache `compact` leaves out what has ended.
        if done
            && has_expired
            && self.caching.is_none()
            && let Some(caching) = &self.engine.caching
        {
            self.set_aside(caching, of, has_expired);
        }
        done
    }

    /// The same in a cache: the entry goes at once, if it leads here.
    fn drop_from(&mut self, caching: &Caching, pin: Pin<'_>, of: &Original<'_>, seen: &Seen, has_expired: bool) -> bool {
        let engine = self.engine;
        // Before anybody misses it: that there was no value once is nothing to go by.
        if !has_expired && !is_deletion(of.bytes) {
            caching.flights.rest_no_more(of.key(engine.layout), of.hash);
        }
        // Its bytes stay if the stretch is not given back, and no entry leads to them: a scan must ask.
        engine.mark_superseded(of.at);
        // Before: an image that lacks the entry comes later.
        if engine.gives_up_by_lines() {
            engine.log.bounds.doomed.fetch_max(of.at + of.bytes.len() as u64, SeqCst);
        }
        // Of what has expired, too: the stretch may end early, and have it again.
        let mut is_unreachable = false;
        if seen.address() == of.at {
            // A transaction that was seen to build on what it read publishes whatever its entries lead to by then: not on what a cache
            // drops.
            let Some(held) = engine.hold(of.hash) else { return false };
            let is_removed = engine.index.remove(of.hash, seen);
            // What was read before is asked for by its entry.
            held.unchanged();
            let Some(is_removed) = is_removed else { return false };
            is_unreachable = is_removed;
        }
        drop(pin);
        if has_expired && is_unreachable {
            self.tally.expired_gone += of.bytes.len() as u64;
            self.tally.expired_gone_records += 1;
        }
        if is_deletion(of.bytes) {
            return true;
        }
        if is_unreachable {
            self.tally.dropped_gone += if has_expired { 0 } else { of.bytes.len() as u64 };
            caching.let_go_record(engine.layout, of.bytes, has_expired);
        } else {
            self.set_aside(caching, of, has_expired);
        }
        true
    }

    /// The pair goes when the stretch does.
    fn set_aside(&mut self, caching: &Caching, of: &Original<'_>, has_expired: bool) {
        if !caching.listens() {
            // For a figure nobody looks again.
            self.tally.unheard.add(has_expired, of.bytes.len() as u64);
        } else if let Some(departed) = caching.departed(self.engine.layout, of.bytes, has_expired) {
            self.aside.push((of.at, of.hash, departed));
        }
    }

    /// Nobody builds on the stretch any more: the listener is to hear of what was dropped and still is its key's newest, or went with an
    /// entry that it shared. What took its place meanwhile lies above. (On a device it hears of what the entry leads to, and need not of
    /// others.) And whether nobody finds it even where the stretch ends early.
    pub(super) fn judge_aside(&mut self) -> Result<Vec<(Departed, bool)>> {
        let engine = self.engine;
        let mut gone = Vec::new();
        for (at, hash, departed) in self.aside.drain(..) {
            let is_unreachable = loop {
                let _pin = engine.epochs.pin_anyway()?;
                let seen = engine.index.lookup(hash);
                match engine.newest(&seen, &departed.key) {
                    Newest::At(newest) | Newest::Cold(newest) if newest == at => break Some(false),
                    newest if engine.index.is_settled(&seen) => break matches!(newest, Newest::Nowhere).then_some(true),
                    _ => {}
                }
            };
            gone.extend(is_unreachable.map(|is_unreachable| (departed, is_unreachable)));
        }
        Ok(gone)
    }

    /// It is known of a guess whether it was right; if not, what it counted is taken back, by which it is `wrong`.
    fn settle_guess(&self, hash: u64, head: u64, wrong: Option<u64>) {
        if self.engine.index.settle_guess(hash, head)
            && let Some(bytes) = wrong
        {
            self.taken_back.set(self.taken_back.get() + bytes);
        }
    }

    /// What was guessed by whoever made the record at `at`. In memory, under a pin.
    fn guess_of(&self, at: u64) -> u64 {
        // SAFETY: entries lead to published records, and this one was seen to be in memory under the caller's pin.
        let record = unsafe { Record::new(self.engine.log.pointer(at)) };
        let (layout, is_deletion) = (self.engine.layout, record.header().load(Relaxed) & ABSENT != 0);
        let key_bytes = if let Layout::Bytes = layout { record.bytes_key().len() } else { 0 };
        self.engine.guessed_bytes(record.bytes(layout), is_deletion, key_bytes)
    }

    /// The length of the records so far that are no deletions, in the mean.
    pub(super) fn mean_bytes(&self) -> u64 {
        self.value_bytes / self.values.max(1)
    }

    /// True if whatever lived there has a copy above: a chain that leads there leads to nothing.
    fn is_gone(&self, at: u64) -> bool {
        at < self.from
    }

    /// An expired record is a tombstone, unless a snapshot has it as a value: what is older lies lower and went before.
    fn has_expired(&self, bytes: &[u8]) -> bool {
        let expires = record::expiry_of(bytes);
        if expires == NEVER {
            return false;
        }
        self.engine.expiry.watch();
        self.engine.has_passed(expires) && self.engine.holds.have_seen(expires)
    }

    /// True in a cache, where it is told of what goes.
    pub(super) fn is_of_cache(&self) -> bool {
        self.engine.caching.is_some()
    }

    /// In a cache: what it takes to keep the record, if that is worth it.
    fn keeping(&self, pin: &Pin<'_>, of: &Original<'_>) -> Option<Kept> {
        let caching = self.caching?;
        self.engine.epochs.within(pin, || caching.keeps(self.engine.layout, of.bytes, of.hash, self.stretch))
    }

    /// True in a cache. It may be the newest of its key.
    fn is_dropped(&self, of: &Original<'_>) -> bool {
        self.caching.inspect(|caching| caching.flights.rest_no_more(of.key(self.engine.layout), of.hash)).is_some()
    }

    /// True if somebody loads the key of what a cache drops, and would keep a value that may be older than this one.
    fn is_being_loaded(&self, of: &Original<'_>) -> bool {
        self.caching.is_some_and(|caching| caching.flights.may_keep(of.key(self.engine.layout), of.hash))
    }

    /// He does not keep it, or has kept it: whoever drops looks again then. He is waited for, so not under the pin.
    fn outdate_load(&self, pin: Pin<'_>, of: &Original<'_>) {
        drop(pin);
        if let Some(caching) = self.caching {
            caching.flights.outdate(of.key(self.engine.layout), of.hash);
        }
    }

    /// Appends a copy of a living record; false to look again.
    fn copy(&mut self, pin: Pin<'_>, of: &Original<'_>, seen: &Seen) -> Result<bool> {
        let layout = self.engine.layout;
        // It may have been read without its room.
        let is_whole = || record::scanned_record_bytes(layout, of.bytes) == Some(of.bytes.len() as u64);
        let wasted = record::wasted_bytes(layout, of.bytes);
        if wasted == 0 || !is_whole() {
            return self.copy_as(pin, of, seen, 0);
        }
        let mut lean = std::mem::take(&mut self.lean);
        record::copy_without(wasted, of.bytes, &mut lean);
        let is_done = self.copy_as(pin, &Original { bytes: &lean, ..*of }, seen, wasted);
        self.lean = lean;
        is_done
    }

    /// The same. `wasted`: what the original has, and nobody counted.
    fn copy_as(&mut self, pin: Pin<'_>, of: &Original<'_>, seen: &Seen, wasted: u64) -> Result<bool> {
        let (engine, bytes) = (self.engine, of.bytes.len() as u64);
        let before = pin.slot.counted(Counter::DeadByte);
        let to = engine.allocate_copy(pin.slot, bytes);
        self.tally.left += pin.slot.counted(Counter::DeadByte) - before;
        let Some(to) = to else {
            drop(pin);
            engine.make_room_for_copy(bytes)?;
            return Ok(false);
        };
        let keys = |previous| if self.is_gone(previous) { Keys::OwnAlone } else { Keys::OwnIsThere };
        let is_done = engine.publish_copy(&pin, of, to, seen, keys).is_some();
        if is_done {
            self.tally.moved += bytes;
            // As if it had been counted when the value became shorter: it is given back with the stretch.
            pin.slot.count(Counter::DeadByte, wasted);
        }
        Ok(is_done)
    }
}

fn is_deletion(record: &[u8]) -> bool {
    record::word_at(record, 0) & ABSENT != 0
}
