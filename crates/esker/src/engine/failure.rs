//! What stops all writing: the latch.
//!
//! After a write or a sync that failed nobody knows what the device holds. So the first failure stops all writing for good; reads go on.
//!
//! **Want of room passes.** Where the medium is full, or the process may have no more files open, a write of the log has done no harm: what
//! was to be written lies in memory, frozen, and is written again as it was. So writing stops until that has succeeded, which the driver
//! tries now and then, and whoever commits or closes; without a driver whoever writes. A line that could not be written is one without a
//! device, as a snapshot's is: the next one has what it had. All of this holds for writes that fail at once: what a sync could not write
//! the system may have dropped, and a write through the system's cache may be told of earlier ones (NFS does that, and the sync is told no
//! more). Such errors are marked ([`crate::error::for_good`]).

use super::{Engine, lock};
use crate::error::{Error, Result, is_for_now};
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::sync::{Mutex, swallow};

#[derive(Default)]
pub(super) struct Failure {
    /// The first one, and whether it may pass.
    known: Mutex<Option<(Error, bool)>>,
    /// The same for those who write.
    stops: AtomicBool,
}

impl Engine {
    /// The device failed: what it holds now is unknown, so nothing more is written to it.
    pub(crate) fn latch(&self, error: impl Into<Error>) -> Error {
        self.stop(error.into(), false)
    }

    /// The same for a write that may be tried again, if it was for want of room.
    pub(crate) fn latch_for_now(&self, error: Error) -> Error {
        let passes = matches!(&error, Error::Io(error) if is_for_now(error));
        self.stop(error, passes)
    }

    fn stop(&self, error: Error, passes: bool) -> Error {
        if crate::is_planted("forgotten_failure") {
            return error;
        }
        let mut known = lock(&self.failure.known);
        if known.as_ref().is_none_or(|(_, passes)| *passes) {
            *known = Some((error.clone(), passes));
        }
        self.failure.stops.store(true, Release);
        // Fast paths do not ask; the slow ones do.
        self.epochs.slow_down();
        known.as_ref().map_or(error, |(first, _)| first.clone())
    }

    /// Writes what could not be written for want of room, and lets all write again. Nothing where nothing failed; the failure if it stays.
    pub(crate) fn go_on(&self) -> Result<()> {
        if !self.may_go_on() {
            return self.check_writable();
        }
        let _boundaries = lock(&self.boundaries);
        // Whoever closes has seen to it for the last time, and others may have the files.
        if self.epochs.is_closed() { self.check_writable() } else { self.try_again() }
    }

    /// The same for the one who closes.
    pub(crate) fn go_on_at_last(&self) -> Result<()> {
        let _boundaries = lock(&self.boundaries);
        self.try_again()
    }

    /// True if what stops all writing may pass.
    pub(crate) fn may_go_on(&self) -> bool {
        self.failure.stops.load(Acquire) && lock(&self.failure.known).as_ref().is_some_and(|(_, passes)| *passes)
    }

    fn try_again(&self) -> Result<()> {
        if self.may_go_on() {
            self.flush()?;
            self.make_room_for_a_scar()?;
            let mut known = lock(&self.failure.known);
            // Another one may have failed meanwhile, at what is not tried again.
            if known.take_if(|(_, passes)| *passes).is_some() {
                self.failure.stops.store(false, Release);
                self.epochs.speed_up();
            }
        }
        self.check_writable()
    }

    /// A device is foreign code: what one that panics has written is not known.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        swallow(work).unwrap_or_else(|| Err(self.latch(Error::device_panicked())))
    }

    /// The failure that stopped all writing, if one did.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.failure.stops.load(Acquire) { self.refusal() } else { Ok(()) }
    }

    /// The same before a write, under no lock and no pin.
    #[inline]
    pub(crate) fn admit_write(&self) -> Result<()> {
        if self.failure.stops.load(Acquire) { self.admit_slowly() } else { Ok(()) }
    }

    #[cold]
    fn admit_slowly(&self) -> Result<()> {
        // Refuses calls from inside a closure or a clock: whoever has the boundaries may wait for that, or run it.
        drop(self.epochs.pin()?);
        // Else the driver tries, and those who write need not wait for the device meanwhile.
        if self.in_background { self.refusal() } else { self.guarded(|| self.go_on()) }
    }

    #[cold]
    fn refusal(&self) -> Result<()> {
        self.known_failure().map_or(Ok(()), Err)
    }

    /// The failure, unless it may pass.
    pub(crate) fn check_not_failed_for_good(&self) -> Result<()> {
        if self.may_go_on() { Ok(()) } else { self.check_writable() }
    }

    pub(super) fn known_failure(&self) -> Option<Error> {
        lock(&self.failure.known).as_ref().map(|(error, _)| error.clone())
    }
}
