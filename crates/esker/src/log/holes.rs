//! Holes: places in a log in memory whose records were deleted, for new records that are as long.
//!
//! ```text
//! deleted, and its entry taken away --> rests --> a drain --> ripe --> filled by a record that leads nowhere
//! ```
//! Compaction wins room back by copying what lives between the dead: the fuller a store, the more copies for each. A new record may as well
//! take the place of one that went, as FASTER's successor Tsavorite revives records. What finds no hole is made at the tail, and dead
//! records that become none are compaction's, as ever.
//!
//! * **Only where it was alone.** A record leaves its place if its entry leads to it, and it nowhere. Of such a record a split knows the
//!   hash, so no second entry leads there: when its own has gone nothing does, nor is anything older of its key to be found. (But where a
//!   split could not tell, or chains were joined: then no place is left until compaction has been there.) What fills a hole heads no chain,
//!   so chains descend as before.
//! * **It rests** until everybody has gone who may have found it: a drain. Who looks entries up before he pins, as batches do, asks under
//!   the pin whether holes have begun to ripen meanwhile ([`Holes::ripened`]), which is told before the drain.
//! * **Only what is mutable** is filled: under a pin that has seen the place at or above `in_place`, as a value changes in place. What a
//!   line, a snapshot or compaction has frozen stays a dead record, and addresses do not come back: a place that somebody kept too long is
//!   seen to be frozen.
//! * **Only in a full store.** Where much is dead compaction copies less than holes cost in cache misses (`compaction/due.rs`).
//! * **As long**, to the byte: whoever goes through the log later goes from record to record. So there are kinds, by length.
//! * **It is dead** until it is filled, in every count.

use super::{Log, NOWHERE};
use crate::epoch::{Counter, Slot};
use crate::memory::prefetch_to_write;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, Rule, broken, lock};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64 as PlainU64};

/// Of longer records few share a length, and a copy of one costs less for each byte.
const BYTES_MAX: u64 = 1 << 10;
const KINDS: usize = kind_of(BYTES_MAX) + 1;
/// All together take this part of the log's share: what has no length that is asked for waits for compaction.
const PART_OF_SHARE: u64 = 16;
/// Each is told of by 8 bytes.
const ALL_MAX: u64 = 64 << 10;
/// The driver is rung for where so many of them rest.
const RUNG: usize = 4096;

/// Kinds that a thread has ripe holes of, and so many of each: a line of the processor's caches.
const SETS: usize = 16;
const IN_SET: usize = 7;
/// Holes that a thread has left and nobody knows of yet: one where threads are scheduled.
const LEFT: usize = if cfg!(shuttle) { 1 } else { 31 };
/// So many holes before its turn one is fetched.
const AHEAD: usize = 4;
const CACHE_LINE: usize = 64;

const KIND_SHIFT: u32 = 48;
const AT: u64 = (1 << KIND_SHIFT) - 1;

const fn kind_of(bytes: u64) -> usize {
    (bytes / 8) as usize
}

/// A place and its kind in one word.
fn place_of(at: u64, bytes: u64) -> u64 {
    at | (kind_of(bytes) as u64) << KIND_SHIFT
}

fn bytes_of(place: u64) -> u64 {
    (place >> KIND_SHIFT) * 8
}

/// A thread's holes: only that changes them. It has its place in memory when the first is taken or left.
#[derive(Default)]
pub(crate) struct Hand {
    ripe: [Set; SETS],
    left: Left,
}

/// Ripe holes of one kind.
#[derive(Default)]
#[repr(C, align(64))]
struct Set {
    /// The kind, above eight bits for how many.
    kind_and_count: PlainU64,
    places: [PlainU64; IN_SET],
}

impl Set {
    fn kind(&self) -> usize {
        (self.kind_and_count.load(Relaxed) >> 8) as usize
    }

    fn count(&self) -> usize {
        self.kind_and_count.load(Relaxed) as u8 as usize
    }

    fn count_of(&self, kind: usize) -> usize {
        if self.kind() == kind { self.count() } else { 0 }
    }

    fn is_of(&self, kind: usize, count: usize) {
        self.kind_and_count.store((kind << 8 | count) as u64, Relaxed);
    }

    fn push(&self, at: u64) {
        let count = self.count();
        self.places[count].store(at, Relaxed);
        self.is_of(self.kind(), count + 1);
    }

    fn places(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.places[..self.count()].iter().map(|place| place.load(Relaxed))
    }
}

#[derive(Default)]
struct Left {
    count: PlainU64,
    places: [PlainU64; LEFT],
}

/// What threads hand each other.
#[derive(Default)]
struct Shelf {
    /// Places with their kinds.
    resting: Vec<u64>,
    /// By kind.
    ripe: Vec<Vec<u64>>,
    /// No ripe one lay below when it was last looked.
    mutable_from: u64,
}

pub(crate) struct Holes {
    /// Of longer records there are none; 0: of no record.
    bytes_max: u64,
    are_wanted: AtomicBool,
    /// As long as something below is not copied no place is left: keys may hang in chains of others there, for chains were joined, or a
    /// split could not tell.
    joined_below: AtomicU64,
    twins_below: AtomicU64,
    /// So often a split could not tell when that was seen to last.
    twins: PlainU64,
    /// Bytes that were filled of late, for the driver.
    filled_lately: PlainU64,
    #[expect(clippy::vec_box, reason = "slots lead to them")]
    hands: Mutex<Vec<Box<Hand>>>,
    shelf: Mutex<Shelf>,
    // For those who ask in passing, of what lies on the shelf: (none of `sync.rs`, for nothing is decided by them)
    count: PlainU64,
    bytes: PlainU64,
    resting: PlainU64,
    ripe: Box<[PlainU64]>,
    /// How often some have begun to ripen.
    ripened: AtomicU64,
}

impl Holes {
    pub(super) fn new(are_filled: bool) -> Self {
        let kinds = if are_filled { KINDS } else { 0 };
        Self {
            bytes_max: if are_filled { BYTES_MAX } else { 0 },
            are_wanted: AtomicBool::new(false),
            joined_below: AtomicU64::new(0),
            twins_below: AtomicU64::new(0),
            twins: PlainU64::new(0),
            filled_lately: PlainU64::new(0),
            hands: Mutex::default(),
            shelf: Mutex::new(Shelf { ripe: vec![Vec::new(); kinds], ..Shelf::default() }),
            count: PlainU64::new(0),
            bytes: PlainU64::new(0),
            resting: PlainU64::new(0),
            ripe: (0..kinds).map(|_| PlainU64::new(0)).collect(),
            ripened: AtomicU64::new(0),
        }
    }

    /// True if this log may have any.
    pub(crate) fn are_possible(&self) -> bool {
        self.bytes_max > 0
    }

    /// Whether records that go leave their places, and others fill them, from now on.
    pub(crate) fn want(&self, are_wanted: bool) {
        self.are_wanted.store(are_wanted, Relaxed);
    }

    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted.load(Relaxed)
    }

    /// True if a record of this length that goes may leave its place to another.
    #[inline(always)]
    fn are_of(&self, record_bytes: u64) -> bool {
        self.are_wanted() && record_bytes <= self.bytes_max
    }

    /// Changes when some have begun to ripen: what an entry was seen to lead to before, without a pin, may be another's by then.
    #[inline(always)]
    pub(crate) fn ripened(&self) -> u64 {
        if self.bytes_max == 0 || broken(Rule::BatchesAskForHoles) { 0 } else { self.ripened.load(SeqCst) }
    }

    /// What is on the shelf and will be filled, if new records go on to come as they did of late; in bytes.
    pub(crate) fn useful_bytes(&self) -> u64 {
        self.bytes.load(Relaxed).min(self.filled_lately.load(Relaxed))
    }

    /// Chains are joined below: no place is left while something there is not copied. It was so much before. Who has looked earlier goes with
    /// the next drain.
    pub(crate) fn keep_below(&self, address: u64) -> u64 {
        self.joined_below.swap(address, SeqCst)
    }

    /// A split that cannot tell on which side the keys of a chain are leaves two entries that lead to it, as often as `twins`: until all of
    /// that was copied, which is below `tail`, an entry that goes may leave another one.
    #[inline(always)]
    pub(crate) fn note_twins(&self, twins: u64, tail: impl FnOnce() -> u64) {
        if twins != self.twins.load(Relaxed) && self.are_possible() {
            self.twins_below.fetch_max(tail(), SeqCst);
            self.twins.store(twins, Release);
        }
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn bytes_for_test(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// So many bytes were filled since this was said last.
    pub(crate) fn were_filled(&self, bytes: u64) {
        self.filled_lately.store(bytes, Relaxed);
    }

    fn hand(&self, slot: &Slot) -> Option<&Hand> {
        // SAFETY: null, or one of `hands`, which stay where they are as long as this does; a slot is of one store.
        unsafe { slot.in_hand.load(Acquire).cast::<Hand>().as_ref() }
    }

    fn hand_of(&self, slot: &Slot) -> &Hand {
        self.hand(slot).unwrap_or_else(|| self.new_hand(slot))
    }

    #[cold]
    fn new_hand(&self, slot: &Slot) -> &Hand {
        let mut hands = lock(&self.hands);
        hands.push(Box::default());
        // Of where it stays: a box that moves is another one to the compiler.
        let hand = hands.last().map_or(ptr::null(), |hand| ptr::from_ref(&**hand));
        slot.in_hand.store(hand.cast_mut().cast(), Release);
        drop(hands);
        self.hand(slot).unwrap_or_else(|| unreachable!("just made"))
    }

    fn are_on_shelf(&self, places: impl Iterator<Item = u64>) {
        let (count, bytes) = places.fold((0, 0), |(count, bytes), place| (count + 1, bytes + bytes_of(place)));
        self.count.fetch_add(count, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn have_left_shelf(&self, count: usize, bytes: u64) {
        self.count.fetch_sub(count as u64, Relaxed);
        self.bytes.fetch_sub(count as u64 * bytes, Relaxed);
    }

    /// What a thread has left is known to all. How many rest now.
    fn put_to_rest(&self, left: &Left) -> usize {
        let places = left.places[..left.count.load(Relaxed) as usize].iter().map(|place| place.load(Relaxed));
        let mut shelf = lock(&self.shelf);
        self.are_on_shelf(places.clone());
        shelf.resting.extend(places);
        let resting = shelf.resting.len();
        self.resting.fetch_add(left.count.load(Relaxed), Relaxed);
        drop(shelf);
        left.count.store(0, Relaxed);
        resting
    }

    /// What was frozen since is of no use any more.
    fn let_go_below(&self, shelf: &mut Shelf, in_place: u64) {
        if in_place <= shelf.mutable_from || in_place == NOWHERE {
            return;
        }
        for (kind, (places, ripe)) in shelf.ripe.iter_mut().zip(&self.ripe).enumerate() {
            let before = places.len();
            places.retain(|at| *at >= in_place);
            if places.len() < places.capacity() / 4 {
                places.shrink_to(2 * places.len());
            }
            ripe.store(places.len() as u64, Relaxed);
            self.have_left_shelf(before - places.len(), kind as u64 * 8);
        }
        shelf.mutable_from = in_place;
    }
}

impl Log {
    /// True if a record of so many bytes may leave its place, where splits could not tell as often as `twins`: there is use for more of them,
    /// and nothing older of any key is to be found by another's entry. Under a pin.
    #[inline(always)]
    pub(crate) fn wants_hole(&self, bytes: u64, twins: u64) -> bool {
        let holes = &self.holes;
        let is_copied = |below: &AtomicU64| below.load(SeqCst) <= self.bounds.copied.load(Acquire);
        let is_sole = || holes.twins.load(Acquire) == twins && is_copied(&holes.joined_below) && is_copied(&holes.twins_below);
        let has_room = || holes.bytes.load(Relaxed) < self.budget.load(Relaxed) / PART_OF_SHARE && holes.count.load(Relaxed) < ALL_MAX;
        holes.are_of(bytes) && is_sole() && has_room()
    }

    /// A record of so many bytes has left this place, to which nothing leads any more. Under the pin of the thread whose slot it is.
    pub(crate) fn rest_hole(&self, slot: &Slot, at: u64, bytes: u64) {
        let left = &self.holes.hand_of(slot).left;
        let count = left.count.load(Relaxed);
        left.places[count as usize].store(place_of(at, bytes), Relaxed);
        left.count.store(count + 1, Relaxed);
        if count as usize + 1 == LEFT && self.holes.put_to_rest(left) >= RUNG {
            self.bell.ring();
        }
    }

    /// A hole for a record of so many bytes, if there is one. Under the pin of the thread whose slot it is.
    #[inline(always)]
    pub(crate) fn take_hole(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        if self.holes.are_of(bytes) { self.take_hole_of(slot, bytes) } else { None }
    }

    /// True if the thread whose slot it is might take one.
    pub(crate) fn has_hole(&self, slot: &Slot, bytes: u64) -> bool {
        let (holes, kind) = (&self.holes, kind_of(bytes));
        let is_in_hand = || holes.hand(slot).is_some_and(|hand| hand.ripe[kind % SETS].count_of(kind) > 0);
        holes.are_of(bytes) && (is_in_hand() || self.has_hole_on_shelf(bytes))
    }

    /// True if any thread might.
    pub(crate) fn has_hole_on_shelf(&self, bytes: u64) -> bool {
        self.holes.are_of(bytes) && self.holes.ripe[kind_of(bytes)].load(Relaxed) > 0
    }

    /// True if it has just sought one in vain. Once.
    pub(crate) fn has_sought_hole(&self, slot: &Slot) -> bool {
        slot.has_sought_hole.swap(false, Relaxed)
    }

    #[inline(never)]
    fn take_hole_of(&self, slot: &Slot, bytes: u64) -> Option<u64> {
        // All of them are as long as a line's cut is looked for.
        let in_place = self.bounds.in_place();
        let mutable = if in_place == NOWHERE { None } else { self.next_hole(slot, bytes, in_place) };
        match mutable {
            Some(_) => slot.count(Counter::FilledByte, bytes),
            None => slot.has_sought_hole.store(true, Relaxed),
        }
        mutable
    }

    fn next_hole(&self, slot: &Slot, bytes: u64, in_place: u64) -> Option<u64> {
        let kind = kind_of(bytes);
        let set = &self.holes.hand_of(slot).ripe[kind % SETS];
        loop {
            let Some(count) = set.count_of(kind).checked_sub(1) else {
                if self.holes.ripe[kind].load(Relaxed) > 0 && self.reach_for_holes(set, kind) {
                    continue;
                }
                return None;
            };
            set.is_of(kind, count);
            if let Some(next) = set.places.get(count.wrapping_sub(AHEAD)) {
                self.prefetch_hole(next.load(Relaxed), bytes);
            }
            let at = set.places[count].load(Relaxed);
            if at >= in_place {
                return Some(at);
            }
        }
    }

    /// What was taken last, of this length, and not published.
    pub(crate) fn put_hole_back(&self, slot: &Slot, at: u64, bytes: u64) {
        self.holes.hand_of(slot).ripe[kind_of(bytes) % SETS].push(at);
    }

    fn prefetch_hole(&self, at: u64, bytes: u64) {
        let at = self.pointer(at);
        (0..bytes as usize).step_by(CACHE_LINE).for_each(|line| prefetch_to_write(at.wrapping_add(line)));
        prefetch_to_write(at.wrapping_add(bytes as usize - 1));
    }

    /// Takes some from the shelf, for what the set has had of another kind. False if there are none.
    #[cold]
    #[inline(never)]
    fn reach_for_holes(&self, set: &Set, kind: usize) -> bool {
        let holes = &self.holes;
        let mut shelf = lock(&holes.shelf);
        let left = shelf.ripe[kind].len().saturating_sub(IN_SET);
        let count = shelf.ripe[kind].len() - left;
        if count == 0 {
            return false;
        }
        let other = set.kind();
        if other != kind {
            holes.are_on_shelf(set.places().map(|at| place_of(at, other as u64 * 8)));
            shelf.ripe[other].extend(set.places());
            holes.ripe[other].store(shelf.ripe[other].len() as u64, Relaxed);
        }
        set.is_of(kind, 0);
        shelf.ripe[kind].drain(left..).for_each(|at| set.push(at));
        holes.ripe[kind].store(left as u64, Relaxed);
        holes.have_left_shelf(count, kind as u64 * 8);
        // Those that come first now, and, when they have gone, next.
        let next = shelf.ripe[kind].iter().rev().copied();
        let both = set.places().rev().take(AHEAD).chain(next.take(AHEAD));
        both.for_each(|at| self.prefetch_hole(at, kind as u64 * 8));
        true
    }

    /// True if some rest, or somebody waits until they may be filled.
    pub(crate) fn are_holes_resting(&self) -> bool {
        self.holes.resting.load(Relaxed) > 0
    }

    /// What the thread whose slot it is has left may ripen with the others.
    pub(crate) fn leave_holes(&self, slot: &Slot) {
        if let Some(hand) = self.holes.hand(slot)
            && hand.left.count.load(Relaxed) > 0
        {
            self.holes.put_to_rest(&hand.left);
        }
    }

    /// The holes that rest ripen: `drain` returns when everybody has gone who may know them. Not under a pin.
    pub(crate) fn ripen_holes(&self, drain: impl FnOnce()) {
        let holes = &self.holes;
        if holes.count.load(Relaxed) == 0 {
            return;
        }
        let mut shelf = lock(&holes.shelf);
        holes.let_go_below(&mut shelf, self.bounds.in_place());
        let resting = std::mem::take(&mut shelf.resting);
        drop(shelf);
        if resting.is_empty() {
            return;
        }
        // Before the drain: who looked without a pin, and has pinned too late for that to wait for him, finds it changed.
        holes.ripened.fetch_add(1, SeqCst);
        if !broken(Rule::HolesRest) {
            drain();
        }
        let mut shelf = lock(&holes.shelf);
        for place in &resting {
            let (at, bytes) = (place & AT, bytes_of(*place));
            if at < shelf.mutable_from {
                holes.have_left_shelf(1, bytes);
                continue;
            }
            let kind = kind_of(bytes);
            shelf.ripe[kind].push(at);
            holes.ripe[kind].store(shelf.ripe[kind].len() as u64, Relaxed);
        }
        holes.let_go_below(&mut shelf, self.bounds.in_place());
        holes.resting.fetch_sub(resting.len() as u64, Relaxed);
    }
}
