//! Address space: reserved once, backed by memory only where it is touched.
//!
//! The index and the log each live in one [`Region`], far larger than any budget. Growing is touching the next byte,
//! giving back is `madvise(MADV_DONTNEED)`; both keep pointers valid, and released bytes read as zero again.
//!
//! How far is a matter of the machine ([`log_space`]): a process has 128 TiB for all its stores and whatever else it does. Where a limit
//! leaves less, each region takes half of what is left at most.

#[cfg(not(loom))]
use crate::error::{Result, about};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[cfg(loom)]
pub(crate) use modelled::Region;

/// Of the smallest and the largest machine, in bytes.
const LOG_SPACE_MIN: u64 = 1 << 36;
pub(crate) const LOG_SPACE_MAX: u64 = 1 << 42;

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
    /// Reserves `bytes` (a power of two), or a half of it, a quarter and so on if more than half of what the process has left would go; not
    /// less than `least`.
    pub(crate) fn reserve(bytes: usize, least: usize) -> Result<Self> {
        let mut bytes = bytes;
        while bytes / 2 >= least && Self::map(2 * bytes).is_err() {
            bytes /= 2;
        }
        Self::exactly(bytes)
    }

    /// Reserves so many bytes.
    pub(crate) fn exactly(bytes: usize) -> Result<Self> {
        Ok(Self::map(bytes)?)
    }

    fn map(bytes: usize) -> std::io::Result<Self> {
        // SAFETY: sysconf takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if page != PAGE_BYTES as libc::c_long {
            return Err(std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                format!("the system has pages of {page} bytes, and {PAGE_BYTES} are needed"),
            ));
        }
        let refused = || about(std::io::Error::last_os_error(), format_args!("address space bytes={bytes}"));
        // SAFETY: a fresh anonymous mapping; no existing memory is affected.
        let base = unsafe { map_at(std::ptr::null_mut(), bytes, libc::PROT_NONE, 0) };
        if base == libc::MAP_FAILED {
            return Err(refused());
        }
        let region = Self { base: base.cast(), bytes };
        // Where a process locks all that it maps (`mlockall`) address space is not to be backed: unlocked before anything may be there.
        // SAFETY: our own mapping, which holds nothing.
        let is_granted = unsafe { libc::munlock(base, bytes) == 0 && libc::mprotect(base, bytes, libc::PROT_READ | libc::PROT_WRITE) == 0 };
        if is_granted { Ok(region) } else { Err(refused()) }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for 2 MiB pages from `from` on: fewer TLB misses, cheaper first touch. What is below stays in small ones: the last huge page of
    /// a region is half empty on the average.
    pub(crate) fn prefer_huge_pages(&self, from: usize) {
        #[cfg(target_os = "linux")]
        self.advise(from, self.bytes, libc::MADV_HUGEPAGE);
    }

    /// Asks for small pages, whatever the system prefers: of what is spread thinly.
    pub(crate) fn refuse_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        self.advise(0, self.bytes, libc::MADV_NOHUGEPAGE);
    }

    /// Backs `[from, to)` with memory ahead of its first use, where the system can.
    pub(crate) fn populate(&self, from: usize, to: usize) {
        #[cfg(target_os = "linux")]
        self.advise(page_floor(from), to.next_multiple_of(PAGE_BYTES).min(self.bytes), libc::MADV_POPULATE_WRITE);
    }

    /// Gives the whole pages inside `[from, to)` back.
    pub(crate) fn release(&self, from: usize, to: usize) {
        let (from, to) = (from.next_multiple_of(PAGE_BYTES), page_floor(to));
        // Locked memory (`mlockall`) is given back by a call of its own, since Linux 5.18.
        if !self.advise(from, to, libc::MADV_DONTNEED) && !self.advise(from, to, MADV_DONTNEED_LOCKED) {
            // Zeros there must be. If this fails as well, they are written. SAFETY: the range lies inside our own mapping. Nobody writes
            // there any more, and who reads late (`index/overflow.rs`) reads zeros, as without this.
            unsafe {
                let at = self.base.add(from);
                if map_at(at.cast(), to - from, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED) == libc::MAP_FAILED {
                    at.write_bytes(0, to - from);
                }
            }
        }
    }

    /// False if the system refuses.
    fn advise(&self, from: usize, to: usize, advice: libc::c_int) -> bool {
        if from >= to || to > self.bytes {
            return true;
        }
        // SAFETY: the range lies inside our own mapping; DONTNEED is asked only for bytes that nobody writes any more, and who reads them
        // late finds zeros.
        unsafe { libc::madvise(self.base.add(from).cast(), to - from, advice) == 0 }
    }
}

#[cfg(not(loom))]
const MADV_DONTNEED_LOCKED: libc::c_int = 24;
/// What is given back is whole pages.
#[cfg(not(loom))]
const PAGE_BYTES: usize = 4096;

#[cfg(not(loom))]
fn page_floor(at: usize) -> usize {
    at / PAGE_BYTES * PAGE_BYTES
}

/// # Safety
/// With `MAP_FIXED` the range is the caller's own, and nobody reads there.
#[cfg(not(loom))]
unsafe fn map_at(at: *mut libc::c_void, bytes: usize, access: libc::c_int, flags: libc::c_int) -> *mut libc::c_void {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: as the caller says.
    unsafe { libc::mmap(at, bytes, access, flags, -1, 0) }
}

/// Bytes of memory that the machine has.
pub(crate) fn of_machine() -> u64 {
    // SAFETY: sysconf takes no pointers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (pages.max(0) as u64) * (page.max(0) as u64)
}

/// Bytes of memory that this process may have: the machine's, or what a container or a service is given of it.
pub(crate) fn of_process() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        limit_of("/sys/fs/cgroup", &groups).map_or_else(of_machine, |limit| limit.min(of_machine()))
    })
}

/// The lowest limit of these control groups, of either version, and of those around them.
fn limit_of(root: &str, groups: &str) -> Option<u64> {
    let limit = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let of_group = |line: &str| {
        let (kinds, group) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match kinds {
            "" => (PathBuf::from(root), "memory.max"),
            kinds if kinds.split(',').any(|kind| kind == "memory") => (Path::new(root).join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        // In a container the group's own path may be another one's: what is mounted is its root.
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        around.filter_map(|group| limit(root.join(group).join(file))).min()
    };
    groups.lines().filter_map(of_group).min()
}

/// Address space of the log of a store with this budget, in bytes: enough for any that the machine could give it later.
pub(crate) fn log_space(budget: u64) -> usize {
    (4 * of_machine()).max(budget.saturating_mul(2)).clamp(LOG_SPACE_MIN, LOG_SPACE_MAX).next_power_of_two() as usize
}

/// How much to back above what is in use: `pause`, which is filled while the driver sleeps once or twice, but of a small store an eighth,
/// and of a large one a part that hardly counts. It is part of what an entry costs.
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

        pub(crate) fn exactly(_: usize) -> Result<Self> {
            Self::reserve(0, 0)
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_and_those_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = |group: &str, file: &str, bytes: &str| {
            std::fs::create_dir_all(root.path().join(group)).unwrap();
            std::fs::write(root.path().join(group).join(file), bytes).unwrap();
        };
        let found = |groups: &str| limit_of(root.path().to_str().unwrap(), groups);
        assert_eq!(found("0::/a/b\n"), None);
        limit("a/b", "memory.max", "max\n");
        assert_eq!(found("0::/a/b\n"), None);
        limit("a", "memory.max", "3000\n");
        limit("a/b", "memory.max", "5000\n");
        assert_eq!((found("0::/a/b\n"), found("0::/a/c"), found("0::/")), (Some(3000), Some(3000), None));
        limit("memory/d", "memory.limit_in_bytes", "7000\n");
        assert_eq!(found("5:cpu,cpuacct:/d\n4:memory:/d/e\n"), Some(7000));
        // As a container sees its own.
        limit("", "memory.max", "2000\n");
        assert_eq!(found("0::/elsewhere"), Some(2000));
        assert_eq!(found("nonsense"), None);
        assert!((1 << 20..=of_machine()).contains(&of_process()));
    }

    /// Locked pages are not given back by `madvise`: what was there was there again when the log had gone round.
    #[test]
    fn what_is_released_is_zero_when_it_is_locked_too() {
        let region = Region::exactly(1 << 20).unwrap();
        for locked in [false, true] {
            let bytes = 16 * PAGE_BYTES;
            // SAFETY: all within the region, which is ours alone.
            unsafe {
                region.base().write_bytes(7, bytes);
                let refused = locked && libc::mlock(region.base().cast(), bytes) != 0;
                region.release(10, bytes - 10);
                let all = std::slice::from_raw_parts(region.base(), bytes);
                let (first, last) = (PAGE_BYTES, bytes - PAGE_BYTES);
                assert!(all[first..last].iter().all(|byte| *byte == 0), "locked {locked}, refused {refused}");
                assert!(all[..first].iter().chain(&all[last..]).all(|byte| *byte == 7));
            }
        }
    }
}
