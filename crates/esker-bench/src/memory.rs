//! The memory of this process, as the kernel counts it.
//!
//! What a map costs is the growth of the resident set between an empty and a full map. For that to
//! be the map's own, memory freed by an earlier contestant goes back to the kernel first.

use std::fs;

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

/// Returns freed memory to the kernel, then gives the bytes resident: the base of a measurement.
pub(crate) fn settled_bytes() -> u64 {
    trim();
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
