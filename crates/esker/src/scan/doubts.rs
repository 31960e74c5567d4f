//! Doubts: cold records of which memory does not say whether they are the newest of their keys.
//!
//! ```text
//! begin ......... first ............ until ................... memory begins
//!                 | doubts of a part |
//!                 |                  |------ asked: newer? ---->|      one sweep: each record strikes out what is older of its key
//!                 |---- visited ---->|                                 another: those that are left
//! ```
//! **A few** are settled by their chains, which are read together (`chains.rs`). **Many** would have most blocks of the log read, and again
//! for each step down their chains. So from one doubt for four blocks on the log itself settles them: all records that are newer pass by,
//! in order, and the last that counts of a key is its newest, as recovery has it, too. No chain is followed then. (A cache drops what no
//! chain leads to any more, and leaves it in the log for a moment: its doubts are few.)
//!
//! **A table** holds many doubts, some 22 bytes each whatever their records, and the log lends half of its memory for it; when it is full
//! those that it holds are settled, and what follows is the next part.

use crate::engine::{Engine, Loan};
use crate::error::Result;
use crate::log::BLOCK_BYTES;
use crate::memory::{Region, prefetch};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// What doubts take before the log is asked for memory.
const DOUBT_BYTES: u64 = 8 << 20;
/// With one doubt for so many blocks of the log they are many.
const BLOCKS_A_DOUBT: u64 = 4;
/// Few are 3 MiB at most, a group more included.
const FEW_MAX: u64 = (1 << 17) - 64;
const PAGE_BYTES: usize = 4096;
/// Of the table: three quarters of its slots are taken at most.
const LOAD: u64 = 3;
const LOAD_OF: u64 = 4;
/// How many more doubts are expected than were met in the same part of the log: what is older is in doubt more often, and met first.
const MORE: f64 = 1.1;

/// A record that may have been superseded by a cold one.
#[derive(Clone, Copy, Default)]
pub(super) struct Doubt {
    pub(super) at: u64,
    pub(super) mark: u64,
}

/// Tells keys apart in eight bytes: by themselves, if they are short and of one length; else by a hash under a secret of this scan's own,
/// for which nobody can have made keys that agree. It has as many bits as the checksum of a block.
pub(super) struct Marks {
    secret: RandomState,
    is_key: bool,
}

impl Marks {
    pub(super) fn new(key_width: Option<usize>) -> Self {
        Self { secret: RandomState::new(), is_key: key_width.is_some_and(|width| width <= 8) }
    }

    #[inline(always)]
    pub(super) fn of(&self, key: &[u8]) -> u64 {
        if !self.is_key {
            return self.secret.hash_one(key);
        }
        let mut word = [0; 8];
        word[..key.len()].copy_from_slice(key);
        u64::from_ne_bytes(word)
    }
}

/// The doubts of one thread.
pub(super) struct Doubts<'a> {
    engine: &'a Engine,
    /// With where their chains are to be read next.
    pub(super) few: Vec<(u64, Doubt)>,
    /// The part of the log of which all is shown in order, so that they may become many there; and from where on the few are.
    shown: Option<Range<u64>>,
    since: u64,
    pub(super) many: Option<Many>,
    loan: Loan<'a>,
}

impl<'a> Doubts<'a> {
    pub(super) fn of(engine: &'a Engine) -> Self {
        Self { engine, few: Vec::new(), shown: None, since: 0, many: None, loan: Loan::of(engine) }
    }

    /// All records of this part of the log are shown from here on, in order.
    pub(super) fn begin_part(&mut self, part: Range<u64>) {
        self.since = part.start;
        self.shown = Some(part).filter(|_| self.engine.caching.is_none());
    }

    /// The part is over, and so is what took of the log's memory.
    pub(super) fn end_part(&mut self) {
        (self.shown, self.many, self.loan) = (None, None, Loan::of(self.engine));
    }

    /// True if they are too many for what they are in, or `more` might be.
    pub(super) fn are_full(&self, more: usize) -> bool {
        if let Some(many) = &self.many {
            return many.count + more > many.most;
        }
        let blocks = self.shown.as_ref().map_or(u64::MAX, blocks);
        self.few.len() as u64 > FEW_MAX.min(blocks / BLOCKS_A_DOUBT)
    }

    /// Makes them many, if there is more than one for four blocks up to here; else they are to be settled, and gathered anew. Not under a
    /// pin.
    pub(super) fn become_many(&mut self, until: u64) -> Result<bool> {
        let passed = std::mem::replace(&mut self.since, until)..until;
        let Some(shown) = self.shown.as_ref().filter(|_| self.few.len() as u64 * BLOCKS_A_DOUBT > blocks(&passed)) else {
            return Ok(false);
        };
        let part = blocks(&passed).max(1) as f64 / blocks(&(passed.start..shown.end)).max(1) as f64;
        let expected = (self.few.len() as f64 / part * MORE) as u64;
        self.loan.add(expected.saturating_mul(BYTES_A_DOUBT).saturating_sub(DOUBT_BYTES));
        let mut many = Many::of(DOUBT_BYTES + self.loan.bytes())?;
        for (_, doubt) in std::mem::take(&mut self.few) {
            many.add(doubt, many.place(doubt.mark));
        }
        // What is newer and was passed by was not asked.
        many.unasked = Some(many.first);
        self.many = Some(many);
        Ok(true)
    }

    /// How many there may be at a time.
    pub(super) fn most(engine: &Engine) -> u64 {
        (DOUBT_BYTES + Loan::most(engine)) / BYTES_A_DOUBT
    }
}

fn blocks(part: &Range<u64>) -> u64 {
    (part.end - part.start) / BLOCK_BYTES
}

/// A mark and an address; a free one has no address.
type Slot = [u64; 2];
/// A slot, at that load, and a byte of the filter.
const BYTES_A_DOUBT: u64 = size_of::<Slot>() as u64 * LOAD_OF / LOAD + 1;

/// Doubts by mark: a table with open addressing, to which records are shown in the order of the log, so that the last one of a key decides.
/// Nearly all that passes by is not there, which a filter (two bits a doubt, of eight) says from a twentieth of the memory, most often from
/// the processor's own.
pub(super) struct Many {
    slots: Zeroed<Slot>,
    filter: Zeroed<u64>,
    count: usize,
    most: usize,
    secret: u64,
    /// The oldest one.
    pub(super) first: u64,
    /// From here on the newer ones were not asked yet.
    pub(super) unasked: Option<u64>,
}

/// Where a mark belongs, scattered over 64 bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Place(u64);

impl Many {
    /// The address of what is not the newest: below that of any record.
    const DEAD: u64 = 1;

    fn of(bytes: u64) -> Result<Self> {
        let most = (bytes / BYTES_A_DOUBT) as usize;
        let slots = Zeroed::of(most * LOAD_OF as usize / LOAD as usize)?;
        let filter = Zeroed::of(most.div_ceil(8))?;
        Ok(Self { slots, filter, count: 0, most, secret: RandomState::new().hash_one(0), first: 0, unasked: None })
    }

    /// Where a mark belongs; what of the filter tells of it is fetched.
    #[inline(always)]
    pub(super) fn place(&self, mark: u64) -> Place {
        let product = u128::from(mark ^ self.secret) * 0x9e37_79b9_7f4a_7c15;
        let place = Place((product >> 64) as u64 ^ product as u64);
        prefetch(&raw const self.filter[self.word(place)]);
        place
    }

    /// True if it may be there; then its slot is fetched.
    #[inline(always)]
    pub(super) fn may_have(&self, place: Place) -> bool {
        let bits = bits(place);
        let may_have = self.filter[self.word(place)] & bits == bits;
        if may_have {
            prefetch(&raw const self.slots[scaled(place.0, self.slots.len())]);
        }
        may_have
    }

    #[inline(always)]
    fn word(&self, place: Place) -> usize {
        scaled(place.0.rotate_left(32), self.filter.len())
    }

    /// That of this mark, or the free one where it would be.
    #[inline(always)]
    fn find(&self, mark: u64, place: Place) -> usize {
        let mut at = scaled(place.0, self.slots.len());
        while self.slots[at][1] != 0 && self.slots[at][0] != mark {
            at += 1;
            if at == self.slots.len() {
                at = 0;
            }
        }
        at
    }

    /// A doubt that is newer than all that are there.
    #[inline(always)]
    pub(super) fn add(&mut self, doubt: Doubt, place: Place) {
        let at = self.find(doubt.mark, place);
        self.count += usize::from(self.slots[at][1] == 0);
        self.slots[at] = [doubt.mark, doubt.at];
        let word = self.word(place);
        self.filter[word] |= bits(place);
        if self.first == 0 {
            self.first = doubt.at;
        }
    }

    /// A record passes by, which may be there: what is older of its key is not the newest.
    #[inline(always)]
    pub(super) fn pass(&mut self, newer: Doubt, place: Place) {
        let slot = self.find(newer.mark, place);
        let at = &mut self.slots[slot][1];
        if *at != 0 && *at < newer.at {
            *at = Self::DEAD;
        }
    }

    /// True if the record is one of them and nothing newer of its key passed by.
    #[inline(always)]
    pub(super) fn is_left(&self, doubt: Doubt, place: Place) -> bool {
        self.slots[self.find(doubt.mark, place)] == [doubt.mark, doubt.at]
    }

    /// All are settled.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.filter.clear();
        (self.count, self.first, self.unasked) = (0, 0, None);
    }
}

/// The bits of its word of the filter.
#[inline(always)]
fn bits(place: Place) -> u64 {
    let bits = place.0.wrapping_mul(0xd6e8_feb8_6659_fd93);
    1 << (bits >> 58) | 1 << (bits >> 52 & 63)
}

/// One of `count`, in the order of the whole.
#[inline(always)]
fn scaled(whole: u64, count: usize) -> usize {
    ((u128::from(whole) * count as u128) >> 64) as usize
}

/// Words that are zeros at first, in huge pages where there are some.
struct Zeroed<T> {
    region: Region,
    count: usize,
    of: PhantomData<T>,
}

impl<T: Word> Zeroed<T> {
    fn of(count: usize) -> Result<Self> {
        let region = Region::exactly((count.max(1) * size_of::<T>()).next_multiple_of(PAGE_BYTES))?;
        debug_assert!(region.bytes() >= count * size_of::<T>(), "a region has what was asked for");
        region.prefer_huge_pages(0);
        Ok(Self { region, count, of: PhantomData })
    }

    fn clear(&mut self) {
        self.region.release(0, self.region.bytes());
    }
}

/// What zeros are a value of.
trait Word {}
impl Word for u64 {}
impl Word for Slot {}

impl<T: Word> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the region is mapped, aligned to pages, long enough and this value's alone; its bytes are zeros, or were written as such
        // words.
        unsafe { std::slice::from_raw_parts(self.region.base().cast(), self.count) }
    }
}

impl<T: Word> DerefMut for Zeroed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().cast(), self.count) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_a_key_is_left() {
        let mut many = Many::of(1 << 16).unwrap();
        let doubt = |at, mark| Doubt { at, mark };
        let add = |many: &mut Many, doubt: Doubt| many.add(doubt, many.place(doubt.mark));
        let pass = |many: &mut Many, doubt: Doubt| {
            let place = many.place(doubt.mark);
            if many.may_have(place) {
                many.pass(doubt, place);
            }
        };
        let is_left = |many: &Many, doubt: Doubt| many.may_have(many.place(doubt.mark)) && many.is_left(doubt, many.place(doubt.mark));
        let most = many.most as u64;
        (0..most).for_each(|mark| add(&mut many, doubt(10_000 + mark, mark)));
        assert_eq!((many.count as u64, many.first), (most, 10_000));
        assert!((0..most).all(|mark| is_left(&many, doubt(10_000 + mark, mark))));
        let let_by = (most..100 * most).filter(|mark| many.may_have(many.place(*mark))).count() as u64;
        assert!(let_by < 99 * most / 10, "the filter lets {let_by} by of {}", 99 * most);
        // Newer ones: of the same key, of another one, and one that is older.
        add(&mut many, doubt(90_000, 0));
        assert!(!is_left(&many, doubt(10_000, 0)) && is_left(&many, doubt(90_000, 0)) && many.count as u64 == most);
        pass(&mut many, doubt(90_001, 1));
        pass(&mut many, doubt(90_002, most));
        pass(&mut many, doubt(9_000, 2));
        let left: Vec<_> = (1..=most).filter(|mark| is_left(&many, doubt(10_000 + mark, *mark))).collect();
        assert_eq!(left, (2..most).collect::<Vec<_>>());
        // What is dead comes back only with a newer record.
        assert!(!is_left(&many, doubt(10_001, 1)));
        add(&mut many, doubt(90_003, 1));
        assert!(is_left(&many, doubt(90_003, 1)));
        many.clear();
        assert!((0..most).all(|mark| !is_left(&many, doubt(10_000 + mark, mark))) && many.first == 0);
    }

    #[test]
    fn marks_tell_keys_apart() {
        for marks in [Marks::new(Some(4)), Marks::new(Some(8)), Marks::new(Some(13)), Marks::new(None)] {
            let width = if marks.is_key { 4 } else { 13 };
            let of = |n: u32| marks.of(&[n.to_le_bytes(), n.to_le_bytes(), [7; 4], [7; 4]].concat()[..width]);
            assert!((0..1000).all(|n| of(n) == of(n) && (0..n).all(|other| of(n) != of(other))));
        }
    }
}
