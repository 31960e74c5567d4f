//! The index grows with those who add entries; it asks here for what it cannot know, the hashes of records.

use super::Engine;
use crate::epoch::Pin;
use crate::error::{Error, Result};
use crate::index::{Chain, Records};
use crate::record::Record;
use crate::sync::atomic::Ordering::*;

/// The budget is shared anew when the index has grown by so much. (The driver does so each millisecond.)
const SHARED_ANEW_BYTES: u64 = 16 << 10;

impl Engine {
    /// A thread counted some new index entries: the index grows by as much as they ask for.
    #[cold]
    #[inline(never)]
    pub(crate) fn entries_added(&self, pin: &Pin<'_>) {
        let added = pin.slot.entries.load(Relaxed);
        pin.slot.entries.store(0, Relaxed);
        self.index.grow(added, &PinnedRecords(self));
        self.log.holes.note_twins(self.index.twins(), || self.log.tail());
        // Overflow buckets come though nothing is split.
        if self.index.bytes() > self.shared_index.load(Relaxed) + SHARED_ANEW_BYTES {
            self.share_budget();
        }
    }

    /// Counts what recovery added, as `entries_added` does for everybody else.
    pub(crate) fn entries_recovered(&self, pin: &Pin<'_>, added: bool) {
        if added {
            pin.slot.entries.store(1, Relaxed);
            self.entries_added(pin);
        }
    }

    /// As many buckets as the next power of two has, as if entries had come.
    pub(crate) fn double_index(&self) -> Result<()> {
        if !self.index.may_double() {
            return Err(Error::invalid("the index has no room for twice as many buckets"));
        }
        let is_done = || self.epochs.pin().map(|_pin| self.index.double(&PinnedRecords(self)));
        while !is_done()? {
            std::thread::yield_now();
        }
        self.share_budget();
        Ok(())
    }
}

/// The records that index entries point at, for a caller that holds a pin.
struct PinnedRecords<'a>(&'a Engine);

impl Records for PinnedRecords<'_> {
    fn prefetch(&self, address: u64) {
        crate::memory::prefetch(self.0.log.pointer(address));
    }

    fn chain(&self, address: u64) -> Chain {
        let engine = self.0;
        if address < engine.log.bounds.head.load(Acquire) {
            return Chain::Unknown;
        }
        // SAFETY: `address >= head` was read under the caller's pin, and index entries hold published addresses only.
        let record = unsafe { Record::new(engine.log.pointer(address)) };
        if record.previous() != 0 {
            return Chain::Unknown;
        }
        Chain::Alone(engine.hash_of(record.key(engine.layout)))
    }
}
