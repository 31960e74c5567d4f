//! How threads that go on until they are told to stop are told so in any case.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Sets a flag when it is dropped, also by a panic: nobody waits for a thread that will not come.
pub(crate) struct Raise<'f>(pub(crate) &'f AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
