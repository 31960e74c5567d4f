//! Windows of the log's memory: what a scan wants to know of each 64 KiB before it reads them.
//!
//! ```text
//! one word a window:  [ 0 ... | start 16 | superseded 1 ]
//! ```
//! * **superseded**: some record that begins here has a successor, or had one that was deleted. Set by whoever publishes the
//!   successor, before he does, under the same pin; so whoever drains afterwards sees it, and in a window without it each
//!   record that counts is the newest of its key. A hint in one direction only: a publication may still fail.
//! * **start**: where some thread's piece of the log begins in the window, in words, plus one. There a record begins, or
//!   nothing does: so a scan can be divided without reading what lies before. 0: no piece begins here.
//!
//! Both are known of memory only, and go with it. Of a record that was cold when it was superseded nothing is noted: it lies
//! below the head, where a scan asks for each record.

use crate::error::Result;
use crate::memory::Region;
use crate::sync::atomic::{AtomicU64, Ordering::*};

pub(crate) const WINDOW_BYTES: u64 = 1 << 16;
const SUPERSEDED: u64 = 1;
const START_SHIFT: u32 = 1;
const PAGE_BYTES: u64 = 4096;

pub(crate) struct Windows {
    words: Region,
    log_mask: u64,
}

impl Windows {
    /// For a log whose memory has so many bytes, a power of two.
    pub(crate) fn new(log_bytes: u64) -> Result<Self> {
        let bytes = (log_bytes / WINDOW_BYTES * 8).max(PAGE_BYTES) as usize;
        Ok(Self { words: Region::exactly(bytes)?, log_mask: log_bytes - 1 })
    }

    fn offset(&self, at: u64) -> u64 {
        (at & self.log_mask) / WINDOW_BYTES * 8
    }

    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: a multiple of 8 below the region's end, since the mask keeps the address inside the log's memory.
        unsafe { &*self.words.base().add(self.offset(at) as usize).cast::<AtomicU64>() }
    }

    /// The record at `at` is about to get a successor. Under a pin.
    #[inline(always)]
    pub(crate) fn mark_superseded(&self, at: u64) {
        let word = self.word(at);
        if word.load(Relaxed) & SUPERSEDED == 0 {
            word.fetch_or(SUPERSEDED, Relaxed);
        }
    }

    /// A piece of the log begins at `at`.
    pub(crate) fn note_start(&self, at: u64) {
        let start = (at % WINDOW_BYTES / 8 + 1) << START_SHIFT;
        let word = self.word(at);
        let mut seen = word.load(Relaxed);
        // Another piece that is known to begin here is as good.
        while seen >> START_SHIFT == 0
            && let Err(now) = word.compare_exchange(seen, seen | start, Relaxed, Relaxed)
        {
            seen = now;
        }
    }

    /// True unless each record that begins in the window of `at` is known to have no successor.
    pub(crate) fn is_superseded(&self, at: u64) -> bool {
        self.word(at).load(Relaxed) & SUPERSEDED != 0
    }

    /// Where a piece begins in the window of `at`, if one does.
    pub(crate) fn start(&self, at: u64) -> Option<u64> {
        let start = self.word(at).load(Relaxed) >> START_SHIFT;
        (start != 0).then(|| at / WINDOW_BYTES * WINDOW_BYTES + (start - 1) * 8)
    }

    /// The log's memory in `[from, to)` was given back: what is known of windows that lie there whole is forgotten.
    pub(crate) fn forget(&self, from: u64, to: u64) {
        let (from, to) = (from / WINDOW_BYTES * WINDOW_BYTES, to / WINDOW_BYTES * WINDOW_BYTES);
        let (a, b) = (self.offset(from), self.offset(to));
        if a > b {
            self.forget_words(a, self.words.bytes() as u64);
            self.forget_words(0, b);
        } else {
            self.forget_words(a, b);
        }
    }

    fn forget_words(&self, from: u64, to: u64) {
        // The page that holds the first word was kept by the call before.
        self.words.release((from & !(PAGE_BYTES - 1)) as usize, to as usize);
        let kept = from.max(to & !(PAGE_BYTES - 1));
        (kept..to).step_by(8).for_each(|offset| {
            // SAFETY: as in `word`.
            unsafe { &*self.words.base().add(offset as usize).cast::<AtomicU64>() }.store(0, Relaxed);
        });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn windows_are_marked_divided_and_forgotten() {
        let windows = Windows::new(1 << 30).unwrap();
        windows.note_start(4080);
        windows.note_start(8160);
        windows.mark_superseded(70_000);
        assert_eq!((windows.start(0), windows.start(70_000)), (Some(4080), None));
        assert!(!windows.is_superseded(65_535) && windows.is_superseded(65_536) && !windows.is_superseded(131_072));
        windows.forget(0, 131_071);
        assert!(windows.start(0).is_none() && windows.is_superseded(65_536));
        // The same memory, a lap later.
        windows.mark_superseded((1 << 30) - 1);
        windows.forget(131_072, (1 << 30) + 65_536);
        assert!(!windows.is_superseded((1 << 30) - 1));
    }
}
