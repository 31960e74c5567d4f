//! The overflow pool: buckets behind full buckets, kept dense.
//!
//! Numbers `1 .. next` exist. The link of each names its owner:
//! ```text
//! a bucket of the table    it is in use: behind that one
//! a shelf                  it is at hand for the threads of that shelf
//! nobody                   it is free: in a list through the free buckets' first two entries, so that any of them can be taken out
//! ```
//! A tenth of all insertions takes a bucket, and as many splits give one back: by one list threads would wait for each other. So each takes
//! from its own shelf and gives back to it, and shelves are filled from the list, and cleared into it, some buckets at a time.
//!
//! Whoever splits buckets also moves the last buckets in use into free ones (`growth.rs`), so the pool shrinks with its use and its pages
//! go back to the system. Anybody who removes an entry may give a bucket back meanwhile: under the list's lock a bucket without an owner is
//! listed. A shelf's lock comes before the list's. A reader may still be in a bucket that was freed: it finds no tag there (list numbers
//! have none), and the moved version of its own bucket tells it to look again.

use super::bucket::{Bucket, TAG_FIELD_BITS};
use crate::epoch::thread_index;
use crate::error::Result;
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use crate::sync::{Mutex, MutexGuard, Rule, broken, lock};

/// Free buckets that may stay between those in use.
const SLACK: u64 = 64;
/// Buckets taken from the system, and given back to it, together.
const RELEASE_BUCKETS: u64 = 1024;
/// The pool has small pages up to here: it is read seldom, and a huge page touched for sixteen buckets is 2 MiB.
const SMALL_PAGE_BYTES: usize = 32 << 20;
const SPACE_BYTES_MIN: usize = 1 << 24;
const NUMBERS: u64 = 1 << 30;
/// Threads share shelves if they are more.
const SHELVES: usize = if cfg!(loom) { 2 } else { 32 };
/// Buckets that a shelf holds: with its lock it fills two cache lines.
const SHELF_BUCKETS: usize = if cfg!(loom) { 1 } else { 28 };
/// Buckets that go to a shelf or from it together.
const HANDFUL: usize = if cfg!(loom) { 1 } else { 14 };
/// New buckets that go to a shelf together: they take memory before anybody needs them.
const NEW_HANDFUL: u64 = if cfg!(loom) { 1 } else { 8 };
/// What names a shelf as an owner: above the number of every bucket of the table.
const SHELF_OWNER: u64 = 1 << 33;
const PREVIOUS: usize = 0;
const NEXT: usize = 1;

/// A number of the list as an entry's word: without a tag, so that a late reader takes it for an empty entry.
fn untagged(number: u64) -> u64 {
    number << TAG_FIELD_BITS
}

pub(super) struct Overflow {
    region: Region,
    list: Mutex<List>,
    /// Copies of the list's numbers, for whoever only wants to know.
    next: AtomicU64,
    free: AtomicU64,
    shelves: [Shelf; SHELVES],
}

/// Buckets at hand, empty.
#[repr(align(128))]
#[derive(Default)]
struct Shelf {
    numbers: Mutex<[u32; SHELF_BUCKETS]>,
    /// How many of them count; changed under the lock.
    count: AtomicUsize,
}

impl Shelf {
    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn push(&self, numbers: &mut [u32; SHELF_BUCKETS], number: u64) {
        // Below `NUMBERS`.
        numbers[self.count()] = number as u32;
        self.count.store(self.count() + 1, Relaxed);
    }

    fn pop(&self, numbers: &[u32; SHELF_BUCKETS]) -> Option<u64> {
        let last = self.count().checked_sub(1)?;
        self.count.store(last, Relaxed);
        Some(u64::from(numbers[last]))
    }
}

struct List {
    next: u64,
    first: u64,
    count: u64,
    /// Memory from this number on was never touched, or given back. A multiple of `RELEASE_BUCKETS`.
    backed: u64,
}

impl Overflow {
    /// `space`: the address space that it should have, in bytes, a power of two.
    pub(super) fn new(space: usize) -> Result<Self> {
        let list = List { next: 1, first: 0, count: 0, backed: 0 };
        let region = Region::reserve(space, SPACE_BYTES_MIN)?;
        region.prefer_huge_pages(SMALL_PAGE_BYTES);
        let (next, free) = (AtomicU64::new(1), AtomicU64::new(0));
        Ok(Self { region, list: Mutex::new(list), next, free, shelves: Default::default() })
    }

    pub(super) fn bucket(&self, number: u64) -> &Bucket {
        debug_assert!((number as usize) < self.region.bytes() / 64);
        // SAFETY: numbers are handed out below the region's end; memory never touched is an empty bucket.
        unsafe { &*self.region.base().cast::<Bucket>().add(number as usize) }
    }

    /// Buckets that take memory.
    pub(super) fn buckets(&self) -> u64 {
        self.next.load(Relaxed)
    }

    pub(super) fn buckets_in_use(&self) -> u64 {
        (self.next.load(Relaxed) - 1).saturating_sub(self.free.load(Relaxed) + self.shelved())
    }

    /// True if a bucket can be taken without a new one.
    pub(super) fn has_free(&self) -> bool {
        self.free.load(Relaxed) + self.shelved() > 0
    }

    fn shelved(&self) -> u64 {
        self.shelves.iter().map(|shelf| shelf.count() as u64).sum()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    fn show(&self, list: &List) {
        self.next.store(list.next, Relaxed);
        self.free.store(list.count, Relaxed);
    }

    /// An empty bucket for bucket `owner` of the table. The pool may become larger by `room` buckets.
    pub(super) fn take(&self, owner: u64, room: u64) -> Option<u64> {
        self.take_at_hand(owner, room).or_else(|| self.take_from_others(owner))
    }

    fn take_at_hand(&self, owner: u64, room: u64) -> Option<u64> {
        let number = thread_index() % SHELVES;
        let shelf = &self.shelves[number];
        let mut numbers = lock(&shelf.numbers);
        if shelf.count() == 0 {
            self.fill(number, &mut numbers, room);
        }
        let number = shelf.pop(&numbers)?;
        self.bucket(number).set_owner(owner + 1);
        Some(number)
    }

    /// Where there is nothing else: what other threads have at hand.
    #[cold]
    fn take_from_others(&self, owner: u64) -> Option<u64> {
        if let Some(shelf) = self.shelves.iter().position(|shelf| shelf.count() > 0) {
            self.clear_shelf(shelf);
        }
        self.take_listed(owner)
    }

    /// Fills an empty shelf from the list, or with new buckets.
    fn fill(&self, number: usize, numbers: &mut [u32; SHELF_BUCKETS], room: u64) {
        let shelf = &self.shelves[number];
        let mut list = self.lock();
        if list.count > 0 {
            while shelf.count() < HANDFUL && list.count > 0 {
                let number = list.first;
                self.unlist(&mut list, number);
                shelf.push(numbers, number);
            }
        } else {
            let exist = NUMBERS.min(self.region.bytes() as u64 / 64);
            for _ in 0..room.min(NEW_HANDFUL).min(exist.saturating_sub(list.next)) {
                shelf.push(numbers, list.next);
                list.next += 1;
            }
            if list.next > list.backed {
                // Otherwise each page is met twice: read as a page of zeros, then copied for the first write.
                self.region.populate(list.backed as usize * 64, (list.backed + RELEASE_BUCKETS) as usize * 64);
                list.backed += RELEASE_BUCKETS;
            }
        }
        // Under the list's lock: without an owner they are listed.
        numbers[..shelf.count()].iter().for_each(|of| self.bucket(u64::from(*of)).set_owner(SHELF_OWNER + number as u64));
        self.show(&list);
    }

    /// [`Overflow::take`] from the list alone.
    pub(super) fn take_listed(&self, owner: u64) -> Option<u64> {
        let mut list = self.lock();
        let number = list.first;
        if number == 0 {
            return None;
        }
        self.unlist(&mut list, number);
        self.bucket(number).set_owner(owner + 1);
        self.show(&list);
        Some(number)
    }

    /// Takes buckets back that no chain leads to any more: `number` and those behind it.
    pub(super) fn give_back(&self, mut number: u64) {
        let own = thread_index() % SHELVES;
        let shelf = &self.shelves[own];
        let mut numbers = lock(&shelf.numbers);
        while number != 0 {
            let bucket = self.bucket(number);
            let next = bucket.next();
            self.empty(number);
            bucket.set_owner(if broken(Rule::ShelfOwns) { 0 } else { SHELF_OWNER + own as u64 });
            if shelf.count() == SHELF_BUCKETS {
                self.clear_some(shelf, &mut numbers, HANDFUL);
            }
            shelf.push(&mut numbers, number);
            number = next;
        }
    }

    /// Takes one bucket back, and lists it: if it is the last one the pool ends before it soon.
    pub(super) fn give_back_last(&self, number: u64) {
        self.empty(number);
        self.list([number].into_iter());
    }

    fn empty(&self, number: u64) {
        let bucket = self.bucket(number);
        bucket.entries().iter().for_each(|entry| entry.store(0, Release));
        bucket.set_next(0);
    }

    /// Lists so many of a shelf's buckets, those first that came first.
    fn clear_some(&self, shelf: &Shelf, numbers: &mut [u32; SHELF_BUCKETS], buckets: usize) {
        self.list(numbers[..buckets].iter().map(|number| u64::from(*number)));
        numbers.copy_within(buckets..shelf.count(), 0);
        shelf.count.store(shelf.count() - buckets, Relaxed);
    }

    /// Lists empty buckets.
    fn list(&self, numbers: impl Iterator<Item = u64>) {
        let mut list = (!broken(Rule::FreeIsListed)).then(|| self.lock());
        for number in numbers {
            // Under the lock: who has it takes a bucket without an owner for one of the list.
            self.bucket(number).set_owner(0);
            self.enlist(list.get_or_insert_with(|| self.lock()), number);
        }
        list.iter().for_each(|list| self.show(list));
    }

    fn clear_shelf(&self, number: usize) {
        let shelf = &self.shelves[number];
        let mut numbers = lock(&shelf.numbers);
        self.clear_some(shelf, &mut numbers, shelf.count());
    }

    fn enlist(&self, list: &mut List, number: u64) {
        let bucket = self.bucket(number);
        bucket.entry(PREVIOUS).store(0, Relaxed);
        bucket.entry(NEXT).store(untagged(list.first), Relaxed);
        if list.first != 0 {
            self.bucket(list.first).entry(PREVIOUS).store(untagged(number), Relaxed);
        }
        list.first = number;
        list.count += 1;
    }

    fn unlist(&self, list: &mut List, number: u64) {
        let bucket = self.bucket(number);
        let [previous, next] = [PREVIOUS, NEXT].map(|way| bucket.entry(way).swap(0, Relaxed) >> TAG_FIELD_BITS);
        if previous == 0 {
            list.first = next;
        } else {
            self.bucket(previous).entry(NEXT).store(untagged(next), Relaxed);
        }
        if next != 0 {
            self.bucket(next).entry(PREVIOUS).store(untagged(previous), Relaxed);
        }
        list.count -= 1;
    }

    /// True if more buckets are free than may stay between those in use.
    pub(super) fn is_loose(&self) -> bool {
        self.free.load(Relaxed) > SLACK
    }

    /// The last bucket in use and its owner, if it should move into a free one.
    pub(super) fn last_to_move(&self) -> Option<(u64, u64)> {
        self.last_beyond(SLACK)
    }

    /// The same where so many may stay free.
    pub(super) fn last_beyond(&self, slack: u64) -> Option<(u64, u64)> {
        while self.free.load(Relaxed) > slack {
            let mut list = self.lock();
            self.trim(&mut list);
            let last = list.next - 1;
            if list.count <= slack || last == 0 {
                return None;
            }
            let owner = self.bucket(last).owner();
            if owner < SHELF_OWNER {
                return Some((last, owner - 1));
            }
            drop(list);
            self.clear_shelf((owner - SHELF_OWNER) as usize);
        }
        None
    }

    /// Gives back what is free at the end, all that is on shelves included.
    pub(super) fn shorten(&self) {
        (0..SHELVES).for_each(|shelf| self.clear_shelf(shelf));
        self.trim(&mut self.lock());
    }

    /// Forgets free buckets at the end.
    fn trim(&self, list: &mut List) {
        while list.next > 1 && self.bucket(list.next - 1).owner() == 0 {
            self.unlist(list, list.next - 1);
            list.next -= 1;
        }
        if list.next + 2 * RELEASE_BUCKETS < list.backed {
            let from = list.next.next_multiple_of(RELEASE_BUCKETS) + RELEASE_BUCKETS;
            // Under the lock: nobody takes a bucket there meanwhile. Late readers see zeros.
            self.region.release(from as usize * 64, list.backed as usize * 64);
            list.backed = from;
        }
        self.show(list);
    }
}
