//! Promotion: what is read again and again on the device comes back into memory.
//!
//! A cold record that a get has just read is appended once more, exactly as compaction would move it: a copy, without room to grow if it
//! had some, published over the very entry that led to the record. So a copy changes nothing, resurrects nothing, is an ordinary record for
//! lines, recovery and compaction, and needs no second place to look in; the record it stands for is dead from then on. It is evicted like
//! any other record when the log has moved on by the budget.
//!
//! **Admission.** Each copy pushes another record out and is written again one day, so it must pay. Only the *second* cold read of a
//! key within a while copies it: a table remembers a cold key by 31 hash bits in one slot, and whoever takes the slot next
//! forgets it. With one slot for [`KEYS_PER_SLOT`] keys, reads without any preference copy one record in as many; a key that is
//! read a hundred times as often as most is copied at its second or third read.
//!
//! Nobody waits for a copy: where the log has no room at once, there is none. Only gets promote: updates append
//! anyway, and scans and compaction walk by.

use crate::copies::{Newest, Original};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::index::Keys;
use crate::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::OnceLock;

/// Reads without preference copy one record in this many.
const KEYS_PER_SLOT: u64 = 64;
const SLOTS_MIN: u64 = 64;
/// Half a mebibyte.
const SLOTS_MAX: u64 = 1 << 17;

/// The keys that were cold when they were read last.
#[derive(Default)]
pub(crate) struct Lately {
    slots: OnceLock<Box<[AtomicU32]>>,
}

impl Lately {
    /// True if this key was here before and not forgotten since; it is forgotten then. Of a store of so many keys.
    fn again(&self, hash: u64, keys: u64) -> bool {
        let slots = self.slots.get_or_init(|| (0..SLOTS_MAX).map(|_| AtomicU32::new(0)).collect());
        let used = (keys / KEYS_PER_SLOT).clamp(SLOTS_MIN, SLOTS_MAX);
        // The index has used the hash's lower bits, but all keys with the same ones are few.
        let at = (u128::from(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * u128::from(used)) >> 64;
        let (slot, name) = (&slots[at as usize], (hash >> 32) as u32 | 1);
        let is_again = slot.load(Relaxed) == name;
        slot.store(if is_again { 0 } else { name }, Relaxed);
        is_again
    }
}

/// A key's record on the device.
pub(crate) struct ColdFind<'a> {
    /// Where its chain begins to be cold.
    pub(crate) start: u64,
    pub(crate) of: Original<'a>,
    /// So much of the log it takes there.
    pub(crate) room: u64,
}

impl Engine {
    /// Copies the record `found`, which a get has read, into memory if that is worth it. Not under a pin.
    pub(crate) fn promote(&self, found: &ColdFind<'_>) {
        // A cache copies at the first read: what it does not, it drops.
        let is_worth = self.is_promoting && (self.caching.is_some() || self.lately.again(found.of.hash, self.index.entries()));
        if is_worth && self.check_writable().is_ok() && self.admits_more(found.of.bytes.len() as u64) {
            self.copy_to_tail(found);
        }
    }

    /// False in a cache that would write more to its device by these bytes of log than it may for now.
    pub(crate) fn admits_more(&self, bytes: u64) -> bool {
        self.caching.as_ref().is_none_or(|caching| caching.admits(bytes, || (self.log.tail(), self.expiry.now())))
    }

    #[cold]
    fn copy_to_tail(&self, &ColdFind { start, ref of, room }: &ColdFind<'_>) {
        let Ok(pin) = self.epochs.pin() else { return };
        let seen = self.index.lookup(of.hash);
        // Cold chains do not change: if the entry still leads to the same one, and nothing newer is in memory, the record is the key's
        // newest. Else it was superseded, moved, or promoted by another thread. Unless a cache drops it, which the entry need not tell; nor
        // that it had ended and went, where a clock was set back.
        let leads_there_still = matches!(self.newest(&seen, of.key(self.layout)), Newest::Cold(first) if first == start);
        let gone = self.log.bounds.dropping.load(Acquire).max(self.log.bounds.copied.load(Acquire));
        if !leads_there_still || of.at < gone {
            return;
        }
        let Some(to) = self.log.allocate(pin.slot, of.bytes.len() as u64) else { return };
        if self.publish_copy(&pin, of, to, &seen, |_| Keys::OwnIsThere).is_some() {
            pin.slot.count(Counter::DeadByte, room);
            pin.slot.count(Counter::Promotion, 1);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn promoted(keys: u64, reads: u64, key_of: impl Fn(u64) -> u64) -> u64 {
        let lately = Lately::default();
        (0..reads).filter(|read| lately.again(key_of(*read).wrapping_mul(0xd6e8_feb8_6659_fd93), keys)).count() as u64
    }

    #[test]
    fn reads_without_preference_copy_next_to_nothing() {
        let mut random = 88_172_645_463_325_252u64;
        let mut draws = Vec::new();
        for _ in 0..400_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            draws.push(random % 100_000);
        }
        let uniform = promoted(100_000, 400_000, |read| draws[read as usize]);
        assert!(uniform < 400_000 / 50, "{uniform} of 400,000");
        let in_order = promoted(100_000, 400_000, |read| read % 100_000);
        assert_eq!(in_order, 0);
    }

    #[test]
    fn what_is_read_again_soon_is_copied_at_once() {
        assert_eq!(promoted(100_000, 100, |read| read / 2 * 7919), 50);
    }
}
