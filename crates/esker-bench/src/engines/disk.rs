//! What the disk engines share: the division of their memory, the locks of increments, and the end at a failure.
//!
//! Every engine lives in a temporary directory of its own and syncs only where an experiment asks each call to be durable: otherwise what
//! is compared is the work of the engine and of the device, not the time to make a write durable. Memory is `--memory` where that is given,
//! otherwise three quarters of the machine's.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard};

/// The number of locks.
const STRIPES: usize = 64;
/// Write buffers of an LSM tree beyond this size gain nothing.
const LARGEST_BUFFER: u64 = 64 << 20;

/// Memory divided between the cache of an LSM tree and its two write buffers, one in use and one on its way to disk.
pub(crate) struct Shares {
    /// Bytes of the cache.
    pub(crate) cache: u64,
    /// Bytes of each write buffer.
    pub(crate) buffer: u64,
}

impl Shares {
    /// Up to an eighth for each buffer, the rest for the cache.
    pub(crate) fn of(memory: u64) -> Self {
        let buffer = (memory / 8).min(LARGEST_BUFFER);
        Self { cache: memory - 2 * buffer, buffer }
    }
}

/// Locks that make a read and a following write of a key one step, for engines which cannot.
pub(crate) struct Stripes([Mutex<()>; STRIPES]);

impl Stripes {
    /// All unlocked.
    pub(crate) fn new() -> Self {
        Self([const { Mutex::new(()) }; STRIPES])
    }

    /// Locks the stripe of a key; keys are scattered already.
    pub(crate) fn lock(&self, key: u64) -> MutexGuard<'_, ()> {
        must(self.0[key as usize % STRIPES].lock())
    }
}

/// The integer in eight bytes of a record.
pub(crate) fn integer(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(must(bytes.try_into()))
}

/// Gives up on an engine's failure.
pub(crate) fn must<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("the engine failed: {error}"))
}
