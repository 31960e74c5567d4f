//! The driver's bell: rung by whoever takes a piece of the log and finds that little room is left, or leaves many holes.
//!
//! The driver looks once in a millisecond by itself. In that time one thread may write half a mebibyte: more than a short log has to spare,
//! so whoever wrote would make room himself, and wait for the device, while the driver slept.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::OnceLock;
use std::thread::{self, Thread};

#[derive(Default)]
pub(crate) struct Bell {
    driver: OnceLock<Thread>,
    /// Rung since the driver last looked: once is enough.
    is_rung: AtomicBool,
    /// With so many bytes held there is little room.
    pub(crate) little_room: AtomicU64,
}

impl Bell {
    /// The driver is about to look. Its first call tells who it is.
    pub(crate) fn answer(&self) {
        self.driver.get_or_init(thread::current);
        self.is_rung.store(false, Relaxed);
    }

    /// Somebody holds so much.
    #[inline]
    pub(crate) fn ring_at(&self, held: u64) {
        if held > self.little_room.load(Relaxed) {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        if let Some(driver) = self.driver.get()
            && !self.is_rung.swap(true, Relaxed)
        {
            driver.unpark();
        }
    }
}
