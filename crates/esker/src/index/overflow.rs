//! The overflow pool: buckets behind full buckets, kept dense.
//!
//! Numbers `1 .. next` exist; each is in use (its link names its owner, a bucket of the table) or free (a list through
//! the free buckets' first two entries, so that any of them can be taken out). Whoever splits buckets also moves the last
//! buckets in use into free ones (`growth.rs`), so the pool shrinks with its use and its pages go back to the system. Anybody who removes an entry may
//! give a bucket back meanwhile: under the list's lock a bucket is either owned or listed.
//! A reader may still be in a bucket that was freed: it finds no tag there (list numbers have none), and the moved
//! version of its own bucket tells it to look again.

use super::bucket::{Bucket, TAG_FIELD_BITS};
use crate::error::Result;
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, Rule, broken, lock};

/// Free buckets that may stay between those in use.
const SLACK: u64 = 64;
/// Buckets taken from the system, and given back to it, together.
const RELEASE_BUCKETS: u64 = 1024;
/// The pool has small pages up to here: it is read seldom, and a huge page touched for sixteen buckets is 2 MiB.
const SMALL_PAGE_BYTES: usize = 32 << 20;
const SPACE_BYTES_MIN: usize = 1 << 24;
const NUMBERS: u64 = 1 << 30;
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
        Ok(Self { region, list: Mutex::new(list), next: AtomicU64::new(1), free: AtomicU64::new(0) })
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
        (self.next.load(Relaxed) - 1).saturating_sub(self.free.load(Relaxed))
    }

    /// True if a bucket can be taken without a new one.
    pub(super) fn has_free(&self) -> bool {
        self.free.load(Relaxed) > 0
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    fn show(&self, list: &List) {
        self.next.store(list.next, Relaxed);
        self.free.store(list.count, Relaxed);
    }

    /// An empty bucket for bucket `owner` of the table; a new one only if `may_grow`.
    pub(super) fn take(&self, owner: u64, may_grow: bool) -> Option<u64> {
        let mut list = self.lock();
        let number = if list.count > 0 {
            let number = list.first;
            self.unlist(&mut list, number);
            number
        } else {
            if !may_grow || list.next >= NUMBERS.min(self.region.bytes() as u64 / 64) {
                return None;
            }
            list.next += 1;
            if list.next > list.backed {
                // Otherwise each page is met twice: read as a page of zeros, then copied for the first write.
                self.region.populate(list.backed as usize * 64, (list.backed + RELEASE_BUCKETS) as usize * 64);
                list.backed += RELEASE_BUCKETS;
            }
            list.next - 1
        };
        self.bucket(number).set_owner(owner + 1);
        self.show(&list);
        Some(number)
    }

    /// Takes buckets back that no chain leads to any more: `number` and those behind it.
    pub(super) fn give_back(&self, mut number: u64) {
        let mut list = (!broken(Rule::FreeIsListed)).then(|| self.lock());
        while number != 0 {
            let bucket = self.bucket(number);
            let next = bucket.next();
            bucket.entries().iter().for_each(|entry| entry.store(0, Release));
            bucket.set_next(0);
            // Under the lock: who has it takes a bucket without an owner for one of the list.
            bucket.set_owner(0);
            let list = list.get_or_insert_with(|| self.lock());
            self.enlist(list, number);
            self.show(list);
            number = next;
        }
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
        if self.free.load(Relaxed) <= slack {
            return None;
        }
        let mut list = self.lock();
        self.trim(&mut list);
        let last = list.next - 1;
        (list.count > slack && last > 0).then(|| (last, self.bucket(last).owner() - 1))
    }

    /// Gives back what is free at the end.
    pub(super) fn shorten(&self) {
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
