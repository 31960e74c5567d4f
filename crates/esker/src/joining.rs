//! Shrinking the index, and making one chain of two where that asks for it (`index/shrink.rs`).
//!
//! ```text
//! before:   entry -> a -> a' -> ...          merged:   entry -> copy of a's keys -> b -> ...
//!           entry -> b -> ...
//! ```
//! Two entries that would get one tag must get one chain. The newest record of each key that the one entry stands for is appended
//! once more, and the last of these copies leads to the other entry's record: published over the entry, like an update. When the index
//! merges the two, it keeps the copies' entry. If anybody changed one of the entries meanwhile, it says so again.
//!
//! * **Nothing is lost or resurrected**: only frozen records are copied, all at once, and only over the very entry they were read from.
//!   Keys for which another entry stands are left out: what the chain knows of them is out of date, or that entry leads to the chain as
//!   well, and has its own turn.
//! * **A line has all of the copies or none**: they are made for one line, under one pin.
//! * **A full tag finds all of a chain's keys**, as recovery needs it: each of them has a copy, of which the highest leads to the others.
//! * **A snapshot** needs what was linked, and so does an image where the log may begin: while either is held nothing is joined.
//!
//! It is rare, so it may cost device reads and freeze what is mutable. It is done where space comes back (`compaction.rs`), which stands
//! still meanwhile; what cannot be done now is tried again when something was compacted, or written: more each time ([`InVain`]).

use crate::descent;
use crate::engine::Engine;
use crate::epoch::{Counter, Pin};
use crate::error::Result;
use crate::index::{Collision, Covers, Keys, Published, Seen, Shrunk};
use crate::log::NOWHERE;
use crate::record::{self, ADDRESS_MASK, Record};
use crate::sync::atomic::Ordering::*;
use crate::sync::{MutexGuard, lock};

/// Records that a chain may have to be worth joining.
const CHAIN_RECORDS_MAX: usize = 256;
/// Turns of shrinking between two other things that their thread has to do: below a millisecond.
const TURNS: usize = 32;

/// Bytes of log between two attempts in vain, at most.
const WAIT_BYTES_MAX: u64 = 64 << 20;

/// What to wait for after attempts in vain: each freezes what is mutable, for which whoever updates pays.
#[derive(Default)]
pub(crate) struct InVain {
    /// The log's tail then; 0 if the last attempt was not in vain.
    tail: u64,
    /// What had been compacted then.
    copied: u64,
    wait_bytes: u64,
}

impl InVain {
    pub(crate) fn is_due(&self, tail: u64, copied: u64) -> bool {
        tail >= self.tail + self.wait_bytes || copied != self.copied && tail != self.tail
    }

    pub(crate) fn note(&mut self, tail: u64, copied: u64) {
        *self = Self { tail, copied, wait_bytes: (2 * self.wait_bytes).clamp(1, WAIT_BYTES_MAX) };
    }
}

/// The newest record of a key in a chain.
struct Newest {
    at: u64,
    hash: u64,
    bytes: Vec<u8>,
}

/// A record that was appended, and is not published yet.
struct Appended<'a> {
    to: u64,
    record: Record,
    of: &'a Newest,
}

impl Engine {
    /// Shrinks the index, if there are too few entries for its size. Not under a pin. True if there is more to do.
    ///
    /// # Errors
    /// Those of reading chains that have to be joined; the index stays as large as it is then.
    pub(crate) fn shrink_index(&self, _compaction: &MutexGuard<'_, ()>) -> Result<bool> {
        let (mut facts, mut has_shrunk) = (Vec::new(), false);
        let more = self.shrink_turns(&mut facts, &mut has_shrunk);
        if has_shrunk {
            self.share_budget();
        }
        more
    }

    fn shrink_turns(&self, facts: &mut Vec<Covers>, has_shrunk: &mut bool) -> Result<bool> {
        for _ in 0..TURNS {
            match self.index.shrink(facts, || self.epochs.drain()) {
                Shrunk::Enough => return Ok(false),
                Shrunk::Some => facts.clear(),
                Shrunk::Held(collision) => match self.join_once(collision)? {
                    Some(fact) => facts.push(fact),
                    None => return Ok(false),
                },
            }
            *has_shrunk = true;
        }
        Ok(true)
    }

    /// [`Engine::join`], but not again and again in vain.
    fn join_once(&self, collision: Collision) -> Result<Option<Covers>> {
        if let Some(fact) = self.covers_nothing(collision) {
            return Ok(Some(fact));
        }
        let (copied, mut in_vain) = (self.log.bounds.copied.load(Acquire), lock(&self.compaction.joined_in_vain));
        // Before anything is read for it, and once more in the end.
        if !in_vain.is_due(self.log.tail(), copied) || self.is_chain_held() {
            return Ok(None);
        }
        let joined = self.join(collision);
        match joined {
            Ok(Some(_)) => *in_vain = InVain::default(),
            _ => in_vain.note(self.log.tail(), copied),
        }
        joined
    }

    /// Where one of the two leads to nothing any more, and was not swept yet, the other stands for both.
    fn covers_nothing(&self, Collision { chain, onto, .. }: Collision) -> Option<Covers> {
        let begin = self.log.bounds.begin.load(Acquire);
        let (covered, head) = if onto < chain { (onto, chain) } else { (chain, onto) };
        (covered < begin).then_some(Covers { head, covered })
    }

    /// Makes one chain lead to another; `None` if that cannot be done now.
    pub(crate) fn join(&self, collision: Collision) -> Result<Option<Covers>> {
        let holes = &self.log.holes;
        if !holes.are_possible() {
            return self.join_held(collision);
        }
        // From here on what `onto` leads to hangs in another chain, too: an entry that went would leave it there, to be found once the two
        // are one.
        let before = holes.keep_below(NOWHERE);
        self.epochs.drain();
        let joined = self.join_held(collision);
        holes.keep_below(if let Ok(Some(_)) = joined { self.log.tail() } else { before });
        joined
    }

    fn join_held(&self, collision: Collision) -> Result<Option<Covers>> {
        self.check_writable()?;
        let read = if self.log.holes.are_possible() { collision.chain.max(collision.onto) } else { collision.chain };
        self.freeze_all_above(read);
        let Some(newest) = self.newest_of_chain(collision.chain)? else { return Ok(None) };
        let pin = self.epochs.pin()?;
        // A snapshot that begins later waits for the pin.
        if self.is_chain_held() || self.log.holes.are_possible() && !self.has_entry(collision.onto) {
            return Ok(None);
        }
        // What moves an entry, or makes another tag of it, between two of the following looks parts keys that it is of: those that were not
        // copied would be lost. Who is at it may wait for this pin.
        let Some(_growing) = self.index.hold_if_free() else { return Ok(None) };
        // Those of one entry. A split that cannot tell leaves two that lead to one chain: the other's keys have their turn when it
        // collides.
        let (mut own, mut entry): (Vec<&Newest>, Option<Seen>) = (Vec::new(), None);
        for one in &newest {
            let seen = self.index.lookup(one.hash);
            // In a bucket that moved meanwhile it may have been missed, and would be lost.
            if !self.index.is_settled(&seen) {
                return Ok(None);
            }
            if seen.address() == collision.chain && entry.get_or_insert(seen).is_same_entry(&seen) {
                own.push(one);
            }
        }
        if own.is_empty() {
            return Ok(Some(Covers { head: collision.onto, covered: collision.chain }));
        }
        let Some(copies) = self.append_copies(&pin, &own, collision) else { return Ok(None) };
        let top = &copies[copies.len() - 1];
        let seen = self.index.lookup(top.of.hash);
        Ok(self.publish_copies(&pin, &copies, &seen, collision).then_some(Covers { head: top.to, covered: collision.onto }))
    }

    /// Somebody may follow chains to what was copied, and joining leaves that out: a snapshot, or who shows the store as it is. Who begins
    /// later does not. Or the next line may say that the log begins there, or below, and an image is whole only with all that leads there.
    fn is_chain_held(&self) -> bool {
        self.log.bounds.held.load(Acquire) != 0
            || self.holds.is_any()
            || self.log.bounds.is_held_back() && !crate::is_planted("joined_while_copied")
    }

    /// True if the record at `at`, in memory and frozen, is what its key's entry leads to. Under a pin.
    fn has_entry(&self, at: u64) -> bool {
        // SAFETY: in a log in memory all that a chain leads to is, under the caller's pin; an entry has led there, and what is frozen is
        // not filled any more.
        let record = unsafe { Record::new(self.log.pointer(at)) };
        at >= self.log.bounds.head.load(Acquire) && self.index.lookup(self.hash_of(record.key(self.layout))).address() == at
    }

    /// Nobody changes a record at or above `at` in place any more.
    fn freeze_all_above(&self, at: u64) {
        let _boundaries = lock(&self.boundaries);
        if at >= self.log.bounds.safe_read_only.load(Relaxed) {
            self.freeze(self.log.end_block());
        }
    }

    /// The newest record of each key in the chain that begins at `at`; `None` if it is too long. Not under a pin.
    fn newest_of_chain(&self, mut at: u64) -> Result<Option<Vec<Newest>>> {
        let mut newest: Vec<Newest> = Vec::new();
        for _ in 0..CHAIN_RECORDS_MAX {
            if at == 0 || at < self.log.bounds.copied.load(Acquire) {
                return Ok(Some(newest));
            }
            let bytes = self.record_bytes(at)?;
            let previous = record::word_at(&bytes, 0) & ADDRESS_MASK;
            let key = record::key_range(self.layout, &bytes);
            if newest.iter().all(|one| one.bytes[record::key_range(self.layout, &one.bytes)] != bytes[key.clone()]) {
                newest.push(Newest { at, hash: self.hash_of(&bytes[key]), bytes });
            }
            at = previous;
        }
        Ok(None)
    }

    /// All bytes of a frozen record, wherever it is.
    fn record_bytes(&self, at: u64) -> Result<Vec<u8>> {
        let pin = self.epochs.pin()?;
        if at < self.log.bounds.head.load(Acquire) {
            drop(pin);
            return descent::record_bytes(self, at);
        }
        // SAFETY: `at >= head` under the pin; entries and chains hold published addresses only.
        let record = unsafe { Record::new(self.log.pointer(at)) };
        let mut bytes = Vec::new();
        self.log.append_frozen(at..at + record.bytes(self.layout), &mut bytes);
        Ok(bytes)
    }

    /// Appends copies, in the order of their addresses, each leading to the one before and the first to `onto`.
    fn append_copies<'a>(&self, pin: &Pin<'_>, own: &[&'a Newest], collision: Collision) -> Option<Vec<Appended<'a>>> {
        let mut copies: Vec<Appended<'a>> = own.iter().map_while(|one| self.append_room(pin, one)).collect();
        copies.sort_unstable_by_key(|copy| copy.to);
        // After the last place was taken: all are of one line.
        let line = self.log.line_flag();
        let mut previous = collision.onto;
        for copy in &copies {
            let flags = line | record::lives_after(record::word_at(&copy.of.bytes, 0));
            copy.record.write_copy(self.layout, &copy.of.bytes, previous, flags);
            previous = copy.to;
        }
        let is_above = copies.first().is_some_and(|lowest| lowest.to > collision.onto.max(collision.chain));
        if copies.len() == own.len() && is_above {
            return Some(copies);
        }
        self.give_up_all(pin, &copies);
        None
    }

    fn append_room<'a>(&self, pin: &Pin<'_>, of: &'a Newest) -> Option<Appended<'a>> {
        let to = self.log.allocate_from_reserve(pin.slot, of.bytes.len() as u64)?;
        // SAFETY: just allocated under the pin: ours alone, in memory, with room for these bytes.
        Some(Appended { to, record: unsafe { Record::new(self.log.pointer(to)) }, of })
    }

    fn publish_copies(&self, pin: &Pin<'_>, copies: &[Appended<'_>], seen: &Seen, collision: Collision) -> bool {
        let top = &copies[copies.len() - 1];
        copies.iter().for_each(|copy| self.mark_superseded(copy.of.at));
        let is_same = seen.address() == collision.chain;
        if is_same && matches!(self.index.publish(top.of.hash, seen, top.to, Keys::Unknown, &mut false, |_| {}), Published::Done) {
            copies.iter().for_each(|copy| pin.slot.count(Counter::DeadByte, copy.of.bytes.len() as u64));
            return true;
        }
        self.give_up_all(pin, copies);
        false
    }

    fn give_up_all(&self, pin: &Pin<'_>, copies: &[Appended<'_>]) {
        copies.iter().for_each(|copy| self.give_up(pin, copy.record));
    }
}
