//! Steps: an operation as attempts under a pin, with the waiting in between.
//!
//! An attempt never waits. It completes, or says what it is missing; whoever runs it waits for that without a pin and
//! attempts again. So the same attempt serves blocking calls ([`Store::run`]), asynchronous ones (`waiting.rs`) and batches, which
//! wait for the device together (`cold.rs`).

use super::Store;
use crate::descent::{self, Held};
use crate::error::{Error, Result};
use crate::sync::{hint, thread};
use crate::types::{Key, Value};

/// Attempts in vain before the processor is left to others.
pub(super) const SPINS: u32 = 16;

/// Lets another thread go on before the next attempt.
#[inline]
pub(super) fn pause(attempts: &mut u32) {
    *attempts = attempts.saturating_add(1);
    if *attempts < SPINS { hint::spin_loop() } else { thread::yield_now() }
}

/// How an attempt ended.
pub(super) enum Step<T> {
    Done(T),
    /// Somebody was quicker, a bucket was moving, or the record is in the fuzzy region: at once again.
    Again,
    /// The chain that begins at this address, on the device, must be read first.
    Read(u64),
    /// The log needs room for this many bytes first.
    Room(u64),
    /// Those who are inside the store must have left it first.
    Drain,
}

impl<T> Step<T> {
    /// The same step towards another result.
    pub(super) fn then<U>(self, result: impl FnOnce() -> U) -> Step<U> {
        match self {
            Self::Done(_) => Step::Done(result()),
            Self::Again => Step::Again,
            Self::Read(at) => Step::Read(at),
            Self::Room(bytes) => Step::Room(bytes),
            Self::Drain => Step::Drain,
        }
    }
}

/// What the attempts so far have brought.
#[derive(Default)]
pub(super) struct Known {
    /// A chain's address, and what the key holds there, on the device.
    chain: Option<(u64, Option<Held>)>,
    get: Option<u64>,
    /// No room could be made: what there is may do for what takes the place of as much, or has no room to grow.
    pub(super) is_full: bool,
}

impl Known {
    /// For a get of a key with this hash: what it reads may come back into memory.
    pub(super) fn of_get(hash: u64) -> Self {
        Self { get: Some(hash), ..Self::default() }
    }

    /// The hash of the key that a get asks for.
    pub(super) fn get(&self) -> Option<u64> {
        self.get
    }

    /// What is known of the chain at `at`: nothing, no value, a value. That may have ended since.
    pub(super) fn at(&self, at: u64) -> Option<Option<&Held>> {
        self.chain.as_ref().filter(|(known, _)| *known == at).map(|(_, held)| held.as_ref())
    }

    /// The same, given away.
    pub(super) fn take(&mut self, at: u64) -> Option<Option<Held>> {
        self.chain.take_if(|(known, _)| *known == at).map(|(_, held)| held)
    }

    pub(super) fn set(&mut self, at: u64, held: Option<Held>) {
        self.chain = Some((at, held));
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Attempts until done, waiting on this thread.
    pub(super) fn run<T>(&self, key: &[u8], attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        self.run_from(Known::default(), key, attempt)
    }

    /// The same with something known already.
    pub(super) fn run_from<T>(&self, mut known: Known, key: &[u8], mut attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        loop {
            match self.run_in_memory(&mut known, &mut attempt)? {
                Ok(result) => return Ok(result),
                Err(at) => known.set(at, descent::read(&self.engine, at, key, known.get())?),
            }
        }
    }

    /// Attempts until done, or until the chain at an address must be read from the device first.
    #[inline(always)]
    pub(super) fn run_in_memory<T>(
        &self,
        known: &mut Known,
        mut attempt: impl FnMut(&mut Known) -> Result<Step<T>>,
    ) -> Result<std::result::Result<T, u64>> {
        let mut again = 0u32;
        known.is_full = false;
        loop {
            match attempt(known)? {
                Step::Done(result) => return Ok(Ok(result)),
                Step::Again => pause(&mut again),
                Step::Read(at) => return Ok(Err(at)),
                Step::Room(bytes) => match self.engine.make_room(bytes) {
                    Err(Error::Full) if !known.is_full => known.is_full = true,
                    made => made?,
                },
                Step::Drain => self.engine.epochs.drain(),
            }
        }
    }

    /// Attempts until done, or until it would have to wait: for the chain at an address, or for others (0).
    pub(super) fn run_at_once<T>(&self, mut attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<std::result::Result<T, u64>> {
        for _ in 0..SPINS {
            match attempt(&mut Known::default())? {
                Step::Done(result) => return Ok(Ok(result)),
                Step::Again => hint::spin_loop(),
                Step::Read(at) => return Ok(Err(at)),
                Step::Room(_) | Step::Drain => break,
            }
        }
        Ok(Err(0))
    }
}
