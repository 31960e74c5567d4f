//! A chain, as far as it lies in memory: from an index entry's newest record to older and older ones.
//!
//! ```text
//! entry --> newest --> older --> ... | head | ... on the device (`descent.rs`) ... | floor | of no interest
//! ```
//! Addresses descend, so the way ends at the first one below `head`, or below the floor that the caller has: what compaction has copied.
//! Whoever pinned before `head` was read may use the records: eviction waits for him.

use super::Log;
use crate::record::Record;
use crate::sync::atomic::Ordering::*;

/// A record of a chain.
pub(crate) struct Link {
    pub(crate) at: u64,
    pub(crate) record: Record,
}

/// The records of a chain that lie in memory, at or above a floor: an iterator from the newest on.
pub(crate) struct Chain<'l> {
    log: &'l Log,
    next: u64,
    head: u64,
    floor: u64,
}

impl Log {
    /// Under a pin. `from` came from the index or a chain under it; 0 is the chain without records.
    #[inline(always)]
    pub(crate) fn chain(&self, from: u64, floor: u64) -> Chain<'_> {
        // Acquire: pairs with the Release of eviction, which drains before it gives memory back.
        Chain { log: self, next: from, head: self.bounds.head.load(Acquire), floor }
    }
}

impl Chain<'_> {
    /// Where the chain goes on on the device, at or above the floor, when it has been shown.
    #[inline(always)]
    pub(crate) fn cold(&self) -> Option<u64> {
        (self.next != 0 && self.next >= self.floor && self.next < self.head).then_some(self.next)
    }
}

impl Iterator for Chain<'_> {
    type Item = Link;

    #[inline(always)]
    fn next(&mut self) -> Option<Link> {
        let at = self.next;
        if at < self.head || at < self.floor {
            return None;
        }
        // SAFETY: `at >= head` under the caller's pin; entries and chains hold published addresses only.
        let record = unsafe { Record::new(self.log.pointer(at)) };
        self.next = record.previous();
        Some(Link { at, record })
    }
}
