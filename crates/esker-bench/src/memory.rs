//! The memory of this process, as the kernel counts it.
//!
//! What a map costs is the growth of the resident set between an empty and a full map. For that to
//! be the map's own, memory freed by an earlier contestant goes back to the kernel first.
//!
//! A virtual machine may hand freed memory back to its host within seconds, and whoever touches it next waits for the host: loading went at
//! a quarter of its rate where another contestant's files had been deleted before. So whoever is asked for the base of a measurement
//! touches memory first.

use std::fs;

/// Touched before each contestant, if so much is free.
const TOUCHED_BYTES: u64 = 4 << 30;
const PAGE_BYTES_MIN: usize = 4 << 10;

/// The bytes resident now, 0 where the kernel does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/statm") else {
        return 0;
    };
    let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * page_bytes()
}

/// The highest number of resident bytes since `reset_peak`.
pub(crate) fn peak_bytes() -> u64 {
    kibibytes("/proc/self/status", "VmHWM:").map_or(0, |kib| kib << 10)
}

/// Starts the peak afresh, where the kernel allows it.
pub(crate) fn reset_peak() {
    // A refusal leaves the peak of the whole process, an upper bound.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The machine's memory in bytes.
pub(crate) fn physical_bytes() -> u64 {
    kibibytes("/proc/meminfo", "MemTotal:").map_or(8 << 30, |kib| kib << 10)
}

/// Returns freed memory to the kernel, touches what will be needed, then gives the bytes resident: the base of a measurement.
pub(crate) fn settled_bytes() -> u64 {
    trim();
    // Tests run many, small ones, and compare no rates.
    if !cfg!(test) {
        touch();
    }
    resident_bytes()
}

/// The bytes per entry which the resident set grew by since `base`.
pub(crate) fn per_entry(base: u64, entries: u64) -> f64 {
    resident_bytes().saturating_sub(base) as f64 / entries.max(1) as f64
}

fn kibibytes(path: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Touches free memory, but at most half of what is there, and lets it go again.
fn touch() {
    let free = kibibytes("/proc/meminfo", "MemAvailable:").map_or(0, |kib| kib << 10);
    let bytes = TOUCHED_BYTES.min(free / 2) as usize;
    let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping, of which a byte in each page is written, and which goes again; no other memory is affected.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        if base == libc::MAP_FAILED {
            return;
        }
        #[cfg(target_os = "linux")]
        libc::madvise(base, bytes, libc::MADV_HUGEPAGE);
        (0..bytes).step_by(PAGE_BYTES_MIN).for_each(|at| base.cast::<u8>().add(at).write_volatile(1));
        libc::munmap(base, bytes);
    }
}

fn page_bytes() -> u64 {
    // SAFETY: `sysconf` only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: `malloc_trim` may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
