//! Stopping when asked to.
//!
//! A store that is not closed goes back to its last durable line. So the first interrupt (Ctrl-C, or a request to terminate) only raises a
//! flag, which long work looks at between two rows, while it waits for one, or after each mebibyte of log; it then closes the store, which
//! keeps everything, or clears away the new one that it has begun, and fails like any other work. A second interrupt ends the program at
//! once, for whoever cannot wait. So does the first where there is nothing to keep or to clear away, and the program does not hear of it:
//! it may wait for a pipe that nobody empties.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{mem, process, ptr, thread};

use crate::failure::{self, Failure, Outcome};

/// What a shell reports for a program that an interrupt ended.
pub(crate) const INTERRUPTED: u8 = 130;
/// So long whoever only reads has to hear of an interrupt.
const HEARD_IN: Duration = Duration::from_secs(1);

/// One has come to this program, whoever waits for it.
static HAS_COME: AtomicBool = AtomicBool::new(false);

/// True once an interrupt has come to this program: what fails then was ended by it.
pub(crate) fn has_come() -> bool {
    HAS_COME.load(Ordering::Relaxed)
}

/// Tells whether an interrupt has come.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches interrupts from now on; to be called once in a program.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::catch_and(|| {})
    }

    /// The same for a program that only reads, or loses nothing when it is dropped where it stands: it ends soon after the first one.
    pub(crate) fn catch_for_reader() -> Result<Self, Failure> {
        // Handlers have a thread of their own.
        Self::catch_and(|| {
            thread::sleep(HEARD_IN);
            process::exit(INTERRUPTED.into());
        })
    }

    fn catch_and(and: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let interrupt = Self::default();
        let raised = Arc::clone(&interrupt.0);
        let handler = move || {
            // Of those that have come: what failed beside the work may have raised the flag before.
            if HAS_COME.swap(true, Ordering::Relaxed) {
                process::exit(INTERRUPTED.into());
            }
            raised.store(true, Ordering::Relaxed);
            and();
        };
        // Who started this program with one of them ignored (`nohup`, a script's `&`) wants it to stay so.
        let ignored: Vec<_> = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|signal| is_ignored(*signal)).collect();
        ctrlc::set_handler(handler).map_err(|error| Failure::about("interrupts", error))?;
        for signal in ignored {
            // SAFETY: no handler of ours, and no memory is passed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(interrupt)
    }

    /// Fails once an interrupt has come.
    pub(crate) fn check(&self) -> Outcome {
        if self.has_come() { Err(Failure::new(failure::INTERRUPTED)) } else { Ok(()) }
    }

    /// True once an interrupt has come.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends the work that looks at it, which something beside it has failed for. No interrupt has come to the program.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// What work does next that tells of its progress.
    pub(crate) fn answer(&self) -> ControlFlow<()> {
        if self.has_come() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// As if one had come.
    #[cfg(test)]
    pub(crate) fn raised() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: for this struct of the C library all zeros are a value.
    let mut now: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: nothing is set, and what is there is written to `now`.
    let found = unsafe { libc::sigaction(signal, ptr::null(), &mut now) };
    found == 0 && now.sa_sigaction == libc::SIG_IGN
}
