//! Copies: records that are appended once more, and say what they said before.
//!
//! Compaction makes one of what lives, promotion of what is read again, recovery of what must lead elsewhere. A copy is published over the
//! very entry under which its original was found to be the newest of its key, as an update would be: if anything has changed there, there
//! is no copy.

use crate::engine::Engine;
use crate::epoch::Pin;
use crate::index::{Keys, Published, Seen};
use crate::record::{self, ADDRESS_MASK, Record};
use crate::sync::atomic::Ordering::*;
use crate::types::Layout;

/// A record that is appended once more.
pub(crate) struct Original<'a> {
    pub(crate) at: u64,
    pub(crate) hash: u64,
    /// All of it, perhaps without the room behind its value.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Original<'a> {
    pub(crate) fn key(&self, layout: Layout) -> &'a [u8] {
        &self.bytes[record::key_range(layout, self.bytes)]
    }

    /// The record that it leads to.
    pub(crate) fn previous(&self) -> u64 {
        record::word_at(self.bytes, 0) & ADDRESS_MASK
    }
}

/// Where a key's newest record is.
pub(crate) enum Newest {
    At(u64),
    /// On the device, at this address or behind it in the chain.
    Cold(u64),
    Nowhere,
}

impl Engine {
    /// Under a pin.
    pub(crate) fn newest(&self, seen: &Seen, key: &[u8]) -> Newest {
        let mut chain = self.log.chain(seen.address(), self.log.bounds.copied.load(Acquire));
        match chain.find(|link| link.record.key(self.layout) == key) {
            Some(link) => Newest::At(link.at),
            None => chain.cold().map_or(Newest::Nowhere, Newest::Cold),
        }
    }

    /// Makes the copy of a record in the place `to`, and publishes it over the entry that was `seen` when the record was found to be its
    /// key's newest. `keys` tells by where the copy leads what is known of that chain. Whether there is an entry more; `None`, and no copy,
    /// if the entry has changed. Under the pin under which all that was.
    pub(crate) fn publish_copy(
        &self,
        pin: &Pin<'_>,
        of: &Original<'_>,
        to: u64,
        seen: &Seen,
        keys: impl FnOnce(u64) -> Keys,
    ) -> Option<bool> {
        let lives = record::lives_after(record::word_at(of.bytes, 0));
        // SAFETY: just allocated under the pin: ours alone, in memory, with room for these bytes.
        let copy = unsafe { Record::new(self.log.pointer(to)) };
        // A key that shares the entry may lie behind the record: the copy leads there too. And a snapshot may need the record itself.
        let passes_by = seen.address() == of.at && of.at >= self.log.bounds.held.load(Acquire);
        let previous = if passes_by { of.previous() } else { seen.address() };
        self.mark_superseded(of.at);
        copy.write_copy(self.layout, of.bytes, previous, self.log.line_flag() | lives);
        let (mut added, link_to) = (false, |previous| copy.lead_to(previous, self.log.line_flag()));
        if let Published::Done = self.index.publish(of.hash, seen, to, keys(previous), &mut added, link_to) {
            return Some(added);
        }
        self.give_up(pin, copy);
        None
    }

    /// Only what is in memory has a window: of a cold record the mark would be another address's, some laps later, and would take
    /// memory that nobody counts. Under a pin.
    pub(crate) fn mark_superseded(&self, at: u64) {
        if at >= self.log.bounds.head.load(Acquire) {
            self.log.windows.mark_superseded(at);
        }
    }
}
