//! Entries change: under their bucket's latch.

use super::bucket::{Bucket, GUESSED, MARKS, SOLE, VERSION_MASK, address_of, entry_word, tag_of};
use super::shape::Place;
use super::{Index, Seen, TAG_BITS, match_bits, valid_bits};
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Rule, broken};

/// What is known of the chain that a record to be published heads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Nothing.
    Unknown,
    /// Nothing, and it was counted as if there were another record of the key.
    Guessed,
    /// There is another record of the key in it.
    OwnIsThere,
    /// The record is alone in it.
    OwnAlone,
}

/// What became of a record that [`Index::add`] was given a place for.
pub(crate) enum Added {
    /// There is an entry more, which is its own.
    Entry,
    /// For want of room it shares one of other keys.
    Shared,
    /// It heads the chain of an entry that stood for its hash.
    Over,
}

/// How a publication ended.
pub(crate) enum Published {
    Done,
    /// Someone else changed the entry: look again.
    Changed,
    /// The new address is below the entry's; chains must descend. Allocate again.
    TooLow,
}

impl Index {
    /// Adds an entry for a hash that none stands for, or heads the chain of the one that does, if `may_head` says so of the address that it
    /// leads to: then it is guessed that another record of the key is in it. `make` makes the record once that is sure, after `may_head`
    /// has looked, so that a chain on the device lies below it; `link_to` makes it lead to the record of an entry that it has to share.
    /// `None` if nothing was done, because the entry may not be headed, or `make` made nothing, or the record lies too low.
    #[inline(never)]
    pub(crate) fn add(
        &self,
        hash: u64,
        may_head: impl FnOnce(u64) -> bool,
        make: impl FnOnce() -> Option<u64>,
        link_to: impl FnOnce(u64, u64),
    ) -> Option<Added> {
        let early = broken(Rule::LookLatched).then(|| {
            let place = self.locate(hash);
            self.find(self.bucket_at(place.offset), place.tag())
        });
        let place = self.latch(hash);
        let found = early.unwrap_or_else(|| self.find(self.bucket_at(place.offset), place.tag()));
        let added = self.add_latched(place, found, may_head, make, link_to);
        self.bucket_at(place.offset).unlatch();
        added
    }

    fn add_latched(
        &self,
        place: Place,
        found: Option<(&AtomicU64, u64)>,
        may_head: impl FnOnce(u64) -> bool,
        make: impl FnOnce() -> Option<u64>,
        link_to: impl FnOnce(u64, u64),
    ) -> Option<Added> {
        if let Some((slot, word)) = found {
            let before = address_of(word);
            if !may_head(before) {
                return None;
            }
            let at = make()?;
            debug_assert!(before < at, "what is made now lies above what was written to the device");
            link_to(at, before);
            slot.store(entry_word(tag_of(word), at) | GUESSED, Release);
            return Some(Added::Over);
        }
        let at = make()?;
        let mut added = false;
        match self.add_entry(place, at, Keys::OwnAlone, &mut added, |previous| link_to(at, previous)) {
            Published::Done => Some(if added { Added::Entry } else { Added::Shared }),
            _ => None,
        }
    }

    /// Points the entry of `hash` at the new record `at`, if it is still what `seen` saw.
    /// `link_to` is called before publication when the record must also lead to an entry that it will share.
    pub(crate) fn publish(&self, hash: u64, seen: &Seen, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        let place = self.latch(hash);
        let outcome = self.publish_latched(place, seen, at, keys, added, link_to);
        let bucket = self.bucket_at(place.offset);
        // Those who fail must not make each other fail.
        if let Published::Done = outcome {
            bucket.unlatch()
        } else {
            bucket.unlatch_unchanged()
        }
        outcome
    }

    /// Removes the entry of `hash`, which nobody needs any more, if it is still what `seen` saw; `None` if it is not. It stays, and this is
    /// false, if a shorter one would stand for the hash then: that may lead to what this one superseded.
    pub(crate) fn remove(&self, hash: u64, seen: &Seen) -> Option<bool> {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let found = self.find(bucket, place.tag()).filter(|(_, word)| *word == seen.entry);
        let is_last = self.matches(bucket, place.tag()) == 1;
        if let (Some((slot, _)), true) = (found, is_last) {
            slot.store(0, Release);
            self.have_gone(place.number(), 1);
        }
        bucket.unlatch();
        found.map(|_| is_last)
    }

    /// Removes the entry of `hash` if it leads to `at`, and no other stands for the hash: true if it did. The caller counts it.
    pub(crate) fn remove_leading_to(&self, hash: u64, at: u64) -> bool {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let only = self.only_match(bucket, place.tag()).filter(|slot| address_of(slot.load(Relaxed)) == at);
        if let Some(slot) = only {
            self.gone.0.fetch_add(1, Release);
            slot.store(0, Release);
            self.close_up_behind(place.number());
        }
        bucket.unlatch();
        only.is_some()
    }

    /// So many entries have gone.
    pub(crate) fn uncount(&self, entries: u64) {
        self.entries.0.fetch_add(entries.wrapping_neg(), Relaxed);
    }

    /// Empties the entries of bucket `at` that lead below `begin`, where nothing lives nor comes back after a crash. Whatever a shorter
    /// tag leads to, what it has of their keys is older, and lies there too. How many went. Under a pin.
    pub(crate) fn drop_below(&self, at: u64, begin: u64) -> u64 {
        let bucket = self.bucket(at);
        let leads_below = |slot: &&AtomicU64| leads_below(slot, begin);
        // Without the latch first: nearly always there is none.
        if !self.chain(bucket).flat_map(Bucket::entries).any(|slot| leads_below(&slot)) {
            return 0;
        }
        bucket.latch();
        let mut dropped = 0;
        for slot in self.chain(bucket).flat_map(Bucket::entries).filter(leads_below) {
            slot.store(0, Release);
            dropped += 1;
        }
        self.have_gone(at, dropped);
        bucket.unlatch();
        dropped
    }

    /// Nothing lives below `begin`, nor comes back after a crash.
    pub(crate) fn is_dead_below(&self, begin: u64) {
        self.dead_below.fetch_max(begin, Relaxed);
    }

    /// An entry of latched bucket `at`, which is full, that a sweep would empty.
    fn dead_entry(&self, at: u64) -> Option<&AtomicU64> {
        let begin = self.dead_below.load(Relaxed);
        let slot = self.chain(self.bucket(at)).flat_map(Bucket::entries).find(|slot| leads_below(slot, begin))?;
        slot.store(0, Release);
        self.uncount(1);
        Some(slot)
    }

    /// So many entries went out of latched bucket `at`.
    fn have_gone(&self, at: u64, count: u64) {
        self.uncount(count);
        if count > 0 {
            self.close_up_behind(at);
        }
    }

    fn close_up_behind(&self, at: u64) {
        if self.bucket(at).next() != 0 {
            self.close_up(at);
        }
    }

    /// Runs `act` on where the hash's entry leads, 0 if there is none, while nobody makes it lead elsewhere.
    pub(crate) fn while_it_stands(&self, hash: u64, act: impl FnOnce(u64)) {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        act(self.find(bucket, place.tag()).map_or(0, |(_, word)| address_of(word)));
        bucket.unlatch();
    }

    /// All records of the chain that begins at `head` were seen to be of one key.
    pub(crate) fn confirm_sole(&self, hash: u64, head: u64) {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        if let Some((slot, word)) = self.find(bucket, place.tag()).filter(|(_, word)| address_of(*word) == head) {
            // And where somebody guessed, he was right.
            slot.store((word | SOLE) & !GUESSED, Release);
        }
        bucket.unlatch();
    }

    /// Whether it was right or wrong is known of a guess in the chain that begins at `head`. False if there is none any more.
    pub(crate) fn settle_guess(&self, hash: u64, head: u64) -> bool {
        let place = self.latch(hash);
        let bucket = self.bucket_at(place.offset);
        let guessed = self.find(bucket, place.tag()).filter(|(_, word)| address_of(*word) == head && word & GUESSED != 0);
        if let Some((slot, word)) = guessed {
            slot.store(word & !GUESSED, Release);
        }
        bucket.unlatch();
        guessed.is_some()
    }

    /// How many entries stand for a full tag.
    fn matches(&self, bucket: &Bucket, tag: u64) -> usize {
        let slots = self.chain(bucket).flat_map(Bucket::entries);
        slots.filter(|slot| match_bits(tag_of(slot.load(Relaxed)), tag).is_some()).count()
    }

    /// The entry that stands for a full tag, if there is one, and one alone. Of a latched bucket.
    fn only_match<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<&'a AtomicU64> {
        let mut only = None;
        for part in self.chain(bucket) {
            let tags = part.tags();
            if tags.has_short() {
                let found = self.find(bucket, tag).filter(|_| self.matches(bucket, tag) == 1);
                return found.map(|(slot, _)| slot);
            }
            let equal = tags.equal(tag);
            if equal != 0 {
                only = Some(part.entry_of(equal));
            }
        }
        only
    }

    fn publish_latched(&self, place: Place, seen: &Seen, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        match self.find(self.bucket_at(place.offset), place.tag()) {
            Some((_, word)) if address_of(word) != seen.address() && !broken(Rule::LookLatched) => Published::Changed,
            Some((_, word)) if address_of(word) > at => Published::TooLow,
            Some((slot, word)) => {
                let marks = match keys {
                    Keys::Unknown => word & GUESSED,
                    Keys::Guessed => GUESSED,
                    Keys::OwnIsThere => word & MARKS,
                    Keys::OwnAlone => SOLE,
                };
                slot.store(entry_word(tag_of(word), at) | marks, Release);
                Published::Done
            }
            None if seen.entry != 0 || self.may_have_been_there(&place, seen) => Published::Changed,
            None => self.add_entry(place, at, keys, added, link_to),
        }
    }

    /// True if an entry may have come and gone in the latched bucket since it was seen. (Its version moves for whatever others do there: that
    /// by itself would let those who do much keep others from it.)
    fn may_have_been_there(&self, place: &Place, seen: &Seen) -> bool {
        let version = self.bucket_at(place.offset).link(Relaxed) & VERSION_MASK;
        self.gone.0.load(Relaxed) != seen.gone && (place.offset, version) != (seen.offset, seen.version)
    }

    fn add_entry(&self, place: Place, at: u64, keys: Keys, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        // Whoever shares an entry shares it for good.
        if let Some(slot) = self.empty_entry(place.number()).or_else(|| self.dead_entry(place.number())) {
            let sole = if keys == Keys::OwnAlone { SOLE } else { 0 };
            slot.store(entry_word(place.tag(), at) | sole, Release);
            *added = true;
            return Published::Done;
        }
        let (slot, common) = self.closest(self.bucket_at(place.offset), place.tag());
        let word = slot.load(Relaxed);
        if address_of(word) > at {
            return Published::TooLow;
        }
        self.shared.store(true, Relaxed);
        link_to(address_of(word));
        let short = (1 << common) | (place.tag() & ((1 << common) - 1));
        slot.store(entry_word(short, at) | word & GUESSED, Release);
        Published::Done
    }

    pub(super) fn empty_entry(&self, at: u64) -> Option<&AtomicU64> {
        let mut last = self.bucket(at);
        for part in self.chain(last) {
            let empty = part.tags().empty();
            if empty != 0 {
                return Some(part.entry_of(empty));
            }
            last = part;
        }
        let fresh = self.overflow.take(at, self.room())?;
        last.set_next(fresh);
        Some(self.overflow.bucket(fresh).entry(0))
    }

    /// Of the entries with the most bits in common with `tag` the one with the shortest tag, and that number of bits. Of a full chain.
    fn closest<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> (&'a AtomicU64, u32) {
        let (mut closest, mut most) = (bucket.entry(0), 0);
        for part in self.chain(bucket) {
            for slot in part.entries() {
                let other = tag_of(slot.load(Relaxed));
                let bits = valid_bits(other);
                // No more than its own; of as many those of a shorter one count for more.
                let common = ((other ^ tag) | 1 << bits).trailing_zeros();
                let score = (common << 4) + TAG_BITS - bits;
                if score >= most {
                    (closest, most) = (slot, score);
                }
            }
        }
        (closest, most >> 4)
    }
}

/// True of an entry that leads below `begin`.
fn leads_below(slot: &AtomicU64, begin: u64) -> bool {
    (1..begin).contains(&address_of(slot.load(Relaxed)))
}
