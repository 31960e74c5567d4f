//! Processor time: what a run took of the machine, whoever else was using it.

/// Seconds of processor time of this process, all threads together; 0 where the system does not tell.
pub(crate) fn seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes one `timespec`, which `time` is.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    if told == 0 { time.tv_sec as f64 + time.tv_nsec as f64 / 1e9 } else { 0.0 }
}
