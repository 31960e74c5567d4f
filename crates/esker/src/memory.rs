//! Address space: reserved once, backed by memory only where it is touched.
//!
//! The index and the log each live in one [`Region`], far larger than any budget. Growing is touching the next byte,
//! giving back is `madvise(MADV_DONTNEED)`; both keep pointers valid, and released bytes read as zero again.

#[cfg(not(loom))]
use crate::error::Result;

#[cfg(loom)]
pub(crate) use modelled::Region;

#[cfg(not(loom))]
pub(crate) struct Region {
    base: *mut u8,
    bytes: usize,
}

#[cfg(not(loom))]
// SAFETY: a `Region` is plain address space; what may be read or written where is its users' protocol.
unsafe impl Send for Region {}
#[cfg(not(loom))]
// SAFETY: as above.
unsafe impl Sync for Region {}

#[cfg(not(loom))]
impl Region {
    /// Reserves `bytes` (a power of two), or as much as half of it at a time allows, but not less than `least`.
    pub(crate) fn reserve(bytes: usize, least: usize) -> Result<Self> {
        let mut bytes = bytes;
        loop {
            match Self::map(bytes) {
                Ok(region) => return Ok(region),
                Err(_) if bytes / 2 >= least => bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn map(bytes: usize) -> std::io::Result<Self> {
        // SAFETY: a fresh anonymous mapping; no existing memory is affected.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), bytes })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for 2 MiB pages from `from` on: fewer TLB misses, cheaper first touch. What is below stays in small ones: the last huge page of a region is
    /// half empty on the average.
    pub(crate) fn prefer_huge_pages(&self, from: usize) {
        #[cfg(target_os = "linux")]
        self.advise(from, self.bytes, libc::MADV_HUGEPAGE);
    }

    /// Backs `[from, to)` with memory ahead of its first use, where the system can.
    pub(crate) fn populate(&self, from: usize, to: usize) {
        #[cfg(target_os = "linux")]
        self.advise(from & !4095, to.next_multiple_of(4096).min(self.bytes), libc::MADV_POPULATE_WRITE);
    }

    /// Gives the whole 4 KiB pages inside `[from, to)` back.
    pub(crate) fn release(&self, from: usize, to: usize) {
        self.advise(from.next_multiple_of(4096), to & !4095, libc::MADV_DONTNEED);
    }

    fn advise(&self, from: usize, to: usize, advice: libc::c_int) {
        if from < to && to <= self.bytes {
            // SAFETY: the range lies inside our own mapping; DONTNEED is asked only for bytes nobody may read any more.
            unsafe { libc::madvise(self.base.add(from).cast(), to - from, advice) };
        }
    }
}

/// How much to back above what is in use: `pause`, which is filled while the driver sleeps once or twice, but of a small store an eighth, and of a large one
/// a part that hardly counts. It is part of what an entry costs.
pub(crate) fn ahead(used: u64, pause: u64) -> u64 {
    (used / 8).clamp(pause / 8, pause).max(used / 128).min(8 * pause)
}

/// Starts fetching the cache line at `at`; a hint, for any address.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same for a line that will be written.
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(not(loom))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can hold a pointer into it without a reference to `self`.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// A few lines of loom's atomics behind the same face: a word is eight bytes there too, so offsets mean the same. Only words
/// may be touched, never single bytes: models use keys without bytes and values of one word.
#[cfg(loom)]
mod modelled {
    use crate::error::Result;
    use crate::sync::atomic::{AtomicU64, Ordering::Release};

    /// Each iteration of a model makes every word anew.
    const LINES: usize = 8;
    const LINE_BYTES: usize = 64;

    #[repr(align(64))]
    struct Line([AtomicU64; LINE_BYTES / 8]);
    const _: () = assert!(size_of::<Line>() == LINE_BYTES);

    pub(crate) struct Region {
        lines: Box<[Line]>,
    }

    impl Region {
        pub(crate) fn reserve(_: usize, _: usize) -> Result<Self> {
            Ok(Self { lines: (0..LINES).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect() })
        }

        pub(crate) fn base(&self) -> *mut u8 {
            self.lines.as_ptr().cast_mut().cast()
        }

        pub(crate) fn bytes(&self) -> usize {
            LINES * LINE_BYTES
        }

        pub(crate) fn prefer_huge_pages(&self, _: usize) {}

        pub(crate) fn populate(&self, _: usize, _: usize) {}

        /// Zeros, as the real one shows them: but here a late reader is caught at the first byte, not at the first page.
        pub(crate) fn release(&self, from: usize, to: usize) {
            let words = self.lines.iter().flat_map(|line| &line.0);
            words.take(to / 8).skip(from / 8).for_each(|word| word.store(0, Release));
        }
    }
}
