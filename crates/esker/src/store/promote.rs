//! In a cache on disk: what is read where it would soon be dropped is appended once more.
//!
//! A copy made by a read is an update that changes nothing, and is published like one. Where that fails, for want of room or because
//! somebody was quicker, nothing is lost: it was only a kindness.

use super::Store;
use super::find::{Found, Region};
use super::step::{Held, Step};
use crate::epoch::{Counter, Pin};
use crate::index::Seen;
use crate::sync::atomic::Ordering::*;
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
        let is_old = !caching.is_in_memory() && at < self.engine.log.bounds.near.load(Relaxed);
        if is_old && self.is_live(record) && matches!(self.region(at), Region::Frozen) {
            let held = Held { value: self.value_of(record), expires: self.engine.expiry_of(record) };
            self.promote(pin, key, hash, seen, found, &held);
        }
    }

    /// What the key was found to hold, on the device or frozen. Under a pin.
    pub(super) fn promote(&self, pin: &Pin<'_>, key: &[u8], hash: u64, seen: Seen, found: Found, held: &Held) {
        let Some(caching) = &self.engine.caching else { return };
        if self.engine.check_writable().is_err() {
            return;
        }
        let step = if Self::WORD {
            self.add_word(pin, key, hash, &seen, &found, super::to_word(&held.value), held.expires, 0)
        } else {
            self.add_bytes(pin, key, hash, seen, found, held)
        };
        if let Step::Done(()) = step {
            caching.count_promotion();
        }
    }

    /// As [`Store::promote`], for what a batch has read: the chain that began at `at` holds it.
    pub(super) fn promote_read(&self, key: &[u8], hash: u64, at: u64, held: &Held) {
        let Ok(pin) = self.engine.epochs.pin() else { return };
        let (seen, found) = self.locate(key, hash);
        if matches!(found, Found::Cold { at: now } if now == at) {
            self.promote(&pin, key, hash, seen, found, held);
        }
    }
}
