//! In a cache on disk: what is read in the oldest part of the memory, from where it would soon leave for the device, is appended
//! once more. Its reads would come to `promotion.rs` otherwise, after one read of the device.
//!
//! A copy made by a read is an update that changes nothing, and is published like one. Where that fails, for want of room or because
//! somebody was quicker, nothing is lost: it was only a kindness.

use super::Store;
use super::find::{Found, Region};
use super::step::Step;
use crate::descent::Held;
use crate::epoch::{Counter, Pin};
use crate::index::Seen;
use crate::types::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    #[inline(always)]
    pub(super) fn count_miss(&self, pin: &Pin<'_>, is_miss: bool) {
        pin.slot.count(Counter::Miss, u64::from(is_miss));
    }

    /// A record in the oldest part of the memory was read. Only a frozen one: another thread may still write any other.
    #[inline(always)]
    pub(super) fn promote_in_memory(&self, pin: &Pin<'_>, key: &[u8], hash: u64, seen: Seen, found: Found) {
        let Some(caching) = &self.engine.caching else { return };
        let Found::Memory { at, record } = found else { return };
        let is_old = !caching.is_in_memory() && at < self.engine.log.bounds.near();
        if !is_old
            || !self.engine.is_promoting
            || !self.is_live(record)
            || !matches!(self.region(at), Region::Frozen)
            || self.is_dropped_soon(at)
            || self.engine.check_writable().is_err()
            || !self.engine.admits_more(record.bytes(self.engine.layout))
        {
            return;
        }
        let Some(hold) = self.engine.hold(hash) else { return };
        let (value, expires) = (self.value_of(record), self.engine.expiry_of(record));
        let held = Held { at, value, expires, bytes: record.bytes(self.engine.layout) };
        let step = if Self::WORD {
            self.add_word(pin, &hold, key, hash, &seen, &found, super::to_word(&held.value), held.expires, 0)
        } else {
            self.add_bytes(pin, &hold, key, hash, seen, found, &held)
        };
        // The key holds what it held.
        hold.unchanged();
        pin.slot.count(Counter::Promotion, u64::from(matches!(step, Step::Done(()))));
    }
}
