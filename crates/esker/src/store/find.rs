//! Finding a key's newest record, in memory or knowing that it is not there (`chain.rs` goes on).

use super::Store;
use super::step::Known;
use crate::cache::Caching;
use crate::descent::Held;
use crate::engine::Engine;
use crate::epoch::Pin;
use crate::index::{Looked, Seen};
use crate::log::chain::Link;
use crate::record::{ABSENT, Record};
use crate::sync::atomic::Ordering::*;
use crate::sync::{Rule, broken};
use crate::types::{Key, Value};

/// Where a key's newest record is.
pub(super) enum Found {
    Memory {
        at: u64,
        record: Record,
    },
    /// The chain goes on on the device.
    Cold {
        at: u64,
        own: Own,
    },
    Absent,
}

/// What is known of the key in a chain on the device.
#[derive(Clone, Copy)]
pub(super) enum Own {
    /// Nobody has looked there.
    Unknown,
    /// It has no value.
    None,
    /// It has one, in a record of so many bytes.
    Bytes(u64),
}

impl Found {
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory { .. })
    }

    /// The same with what was read where it leads. A value that has ended is one, too: it dies now, unless compaction has dropped it since.
    /// Under the pin under which a record is published over it.
    pub(super) fn with(self, engine: &Engine, known: &Known) -> Self {
        match self {
            Self::Cold { at, .. } => {
                // Acquire: what is above is not dropped before this pin ends.
                let copied = engine.log.bounds.copied.load(Acquire);
                let own = |held: Option<&Held>| held.filter(|held| held.at >= copied).map_or(Own::None, |held| Own::Bytes(held.bytes));
                Self::Cold { at, own: known.at(at).map_or(Own::Unknown, own) }
            }
            found => found,
        }
    }
}

/// The regions an update tells apart.
pub(super) enum Region {
    Mutable,
    Fuzzy,
    Frozen,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The record at `at`, if it is near and this key's. Under a pin; `at` came from the index or a chain.
    #[inline(always)]
    pub(super) fn record_of(&self, at: u64, key: &[u8]) -> Option<Record> {
        self.near_record(at).filter(|record| self.is_of(*record, key))
    }

    /// The same of whatever key.
    #[inline(always)]
    fn near_record(&self, at: u64) -> Option<Record> {
        self.record_above(self.engine.log.bounds.near(), at)
    }

    /// The same, if it lies at or above `bound`, which is `near` or a higher one.
    #[inline(always)]
    fn record_above(&self, bound: u64, at: u64) -> Option<Record> {
        if at < bound {
            return None;
        }
        // SAFETY: `at >= near >= head` under the caller's pin; entries and chains hold published addresses only.
        Some(unsafe { Record::new(self.engine.log.pointer(at)) })
    }

    /// The value of the word record at `at`, if that is near, plain and this key's. Under a pin; `at` as above.
    #[inline(always)]
    pub(super) fn near_word(&self, at: u64, key: &[u8]) -> Option<u64> {
        if Self::KEY_WIDTH != 8 {
            let record = self.record_of(at, key).filter(Record::is_plain)?;
            return Some(record.word_value(Self::KEY_WIDTH).load(Acquire));
        }
        let record = self.near_record(at)?;
        let (held, value) = record.word_pair();
        // By jumps, each to where the call goes on.
        if held != super::to_word(key) || !record.is_plain() {
            return None;
        }
        Some(value)
    }

    /// The record at `at`, if it is near, this key's, plain, and may change in place.
    #[inline(always)]
    pub(super) fn mutable_record_of(&self, at: u64, key: &[u8]) -> Option<Record> {
        let record = self.record_above(self.engine.log.bounds.in_place(), at)?;
        (self.is_of(record, key) && record.is_plain()).then_some(record)
    }

    /// True if what [`Self::mutable_record_of`] found may change in place. To be asked once more after a user's closure: what that knows
    /// may be of a line that began meanwhile, and must not get below its cut.
    #[inline(always)]
    pub(super) fn is_in_place_still(&self, at: u64) -> bool {
        at >= self.engine.log.bounds.in_place()
    }

    /// The same of what was found in [`Region::Mutable`], which in a cache reaches below what is near.
    #[inline(always)]
    pub(super) fn is_mutable_still(&self, at: u64) -> bool {
        at >= self.engine.log.bounds.read_only()
    }

    /// The record at `at`, if it is near, this key's, plain, and nobody writes it any more: a newer record has to take its place.
    #[inline(always)]
    pub(super) fn frozen_record_of(&self, at: u64, key: &[u8]) -> Option<Record> {
        let record = self.record_of(at, key).filter(Record::is_plain)?;
        // Acquire: pairs with the Release of `freeze`. Whoever could write it in place has gone.
        (at < self.engine.log.bounds.safe_read_only.load(Acquire)).then_some(record)
    }

    #[inline(always)]
    pub(super) fn is_of(&self, record: Record, key: &[u8]) -> bool {
        match Self::WORD {
            true if Self::KEY_WIDTH == 8 => record.word_key_as_word() == super::to_word(key),
            true => record.word_key(Self::KEY_WIDTH) == key,
            false if Self::KEY_WIDTH > 0 => record.has_key_of(Self::KEY_WIDTH, key),
            false => record.bytes_key() == key,
        }
    }

    /// The first record of the key's entry, if it is the key's, in memory and plain: most keys.
    #[inline(always)]
    pub(super) fn find_fast(&self, key: &[u8], hash: u64) -> Option<Record> {
        self.record_of(self.engine.index.first_match(hash), key).filter(Record::is_plain)
    }

    #[inline(always)]
    pub(super) fn locate(&self, key: &[u8], hash: u64) -> (Seen, Found) {
        let seen = self.engine.index.lookup(hash);
        let found = self.walk(seen.address(), key);
        if let Some(caching) = &self.engine.caching {
            self.notice(caching, &found);
        }
        (seen, found)
    }

    /// [`Self::locate`] for who goes by what is in memory, or changes it there. `None` while the key's bucket moves, and a shorter tag may
    /// lead to what is superseded, and while a cache drops what was found.
    #[inline(always)]
    pub(super) fn locate_surely(&self, key: &[u8], hash: u64) -> Option<(Seen, Found)> {
        let (seen, found) = self.locate(key, hash);
        let is_sure = match found {
            Found::Memory { at, .. } => self.engine.index.leads_surely(&seen) && !self.is_dropped_soon(at),
            _ => true,
        };
        is_sure.then_some((seen, found))
    }

    /// True for what is there yet, and must not be built on any more, for a cache is about to drop it: soon nobody finds it. Under a pin,
    /// which keeps there what is not.
    #[inline(always)]
    pub(super) fn is_dropped_soon(&self, at: u64) -> bool {
        at < self.engine.log.bounds.dropping.load(Acquire)
    }

    /// True if what was found is what there is. While a bucket moves a reader may miss its key's entry, and find nothing or, by a
    /// shorter tag, what the key held before.
    #[inline(always)]
    pub(super) fn is_sure(&self, seen: &Seen, found: &Found) -> bool {
        found.is_in_memory() && seen.is_full() || self.engine.index.is_settled(seen)
    }

    /// True if a deletion has nothing to write: there is nothing, or a deletion, and a crash does not bring back what was. What has ended
    /// is deleted once more: a clock may be set back.
    pub(super) fn is_deleted(&self, found: &Found, known: &Known) -> bool {
        let is_nothing = match found {
            Found::Absent => true,
            Found::Memory { record, .. } => record.header().load(Acquire) & ABSENT != 0,
            Found::Cold { at, .. } => known.at(*at).is_some_and(|held| held.is_none()),
        };
        is_nothing && self.engine.stays_absent()
    }

    /// A place for a record of so many bytes, with these flags, that supersedes what was found; `None` when memory must be made first.
    #[inline(always)]
    pub(super) fn allocate(&self, pin: &Pin<'_>, found: &Found, bytes: u64, flags: u64) -> Option<u64> {
        let log = &self.engine.log;
        log.allocate(pin.slot, bytes).or_else(|| if self.makes_room(found, bytes, flags) { log.allocate_replacement(bytes) } else { None })
    }

    /// The same, or a hole, for a record that leads nowhere: of a key that no entry stands for, and for which one is free. (Where it had to
    /// share one it would have to lie above what that leads to.)
    #[inline(always)]
    pub(super) fn allocate_or_fill(&self, pin: &Pin<'_>, hash: u64, seen: &Seen, found: &Found, bytes: u64, flags: u64) -> Option<u64> {
        let is_new = matches!(found, Found::Absent) && seen.entry == 0 && flags == 0;
        let hole = if is_new { self.fill_hole(pin, hash, bytes) } else { None };
        hole.or_else(|| self.allocate(pin, found, bytes, flags))
    }

    fn fill_hole(&self, pin: &Pin<'_>, hash: u64, bytes: u64) -> Option<u64> {
        let is_free = || matches!(self.engine.index.probe(hash).search(), Looked::Free(_));
        if self.engine.log.has_hole(pin.slot, bytes) && !is_free() { None } else { self.engine.log.take_hole(pin.slot, bytes) }
    }

    /// True if a record of so many bytes, with these flags, takes the place of a value as long, or is a deletion of one.
    fn makes_room(&self, found: &Found, bytes: u64, flags: u64) -> bool {
        let Found::Memory { record, .. } = found else { return false };
        let is_as_long = || record.bytes(self.engine.layout) >= bytes;
        record.header().load(Relaxed) & ABSENT == 0 && (flags & ABSENT != 0 || is_as_long())
    }

    /// In a cache: what is used while it is old may stay.
    #[inline(never)]
    fn notice(&self, caching: &Caching, found: &Found) {
        if let Found::Memory { at, record } = found
            && caching.is_in_memory()
            && *at < self.engine.log.bounds.near()
        {
            record.give_lives();
        }
    }

    /// True if the chain that begins at `at` is all on the device, and may have something of the key. Under a pin.
    #[inline(always)]
    pub(super) fn is_cold(&self, at: u64) -> bool {
        let bounds = &self.engine.log.bounds;
        at < bounds.head.load(Acquire) && at >= bounds.copied.load(Acquire)
    }

    /// Follows a chain through memory. Under a pin.
    #[inline(always)]
    pub(super) fn walk(&self, from: u64, key: &[u8]) -> Found {
        let log = &self.engine.log;
        // What lives below `copied` has a copy above, and the rest is dead, though an entry of other keys may lead to it.
        let mut chain = log.chain(from, log.bounds.copied.load(Acquire));
        match chain.find(|link| self.is_of(link.record, key)) {
            Some(Link { at, record }) => Found::Memory { at, record },
            None => chain.cold().map_or(Found::Absent, |at| Found::Cold { at, own: Own::Unknown }),
        }
    }

    #[inline(always)]
    pub(super) fn region(&self, at: u64) -> Region {
        let bounds = &self.engine.log.bounds;
        if self.engine.keeps_versions && !crate::is_planted("forgotten_version") {
            Region::Frozen
        } else if at >= bounds.read_only() {
            Region::Mutable
        } else if at >= bounds.safe_read_only.load(Acquire) && !broken(Rule::FuzzyWaits) {
            Region::Fuzzy
        } else {
            Region::Frozen
        }
    }

    /// Where a new record's chain goes on: past what it supersedes, if that is at the chain's head and no snapshot holds it,
    /// else at the head.
    #[inline(always)]
    pub(super) fn previous_for(&self, key: &[u8], seen: &Seen, found: &Found) -> u64 {
        match found {
            Found::Memory { at, record } if *at == seen.address() => self.previous_over(key, *at, *record),
            _ => seen.address(),
        }
    }

    /// The same for what supersedes the key's record at the chain's head.
    #[inline(always)]
    pub(super) fn previous_over(&self, key: &[u8], at: u64, record: Record) -> u64 {
        // Acquire: pairs with `Holds`. A snapshot that begins later waits for our pin, and then does not need what we pass by.
        let held = if broken(Rule::SnapshotHoldsLinks) { 0 } else { self.engine.log.bounds.held.load(Acquire) };
        if at < held {
            return at;
        }
        match record.previous() {
            0 => 0,
            previous => self.past_own(key, previous, held),
        }
    }

    /// Goes past older versions of the key that snapshots, gone by now, held.
    #[inline(never)]
    fn past_own(&self, key: &[u8], mut at: u64, held: u64) -> u64 {
        while at >= held
            && at != 0
            && let Some(record) = self.record_of(at, key)
        {
            at = record.previous();
        }
        at
    }
}
