//! Steps: an operation as attempts under a pin, with the waiting in between.
//!
//! An attempt never waits. It completes, or says what it is missing; whoever runs it waits for that without a pin and
//! attempts again. So the same attempt serves blocking calls ([`Store::run`]) and asynchronous ones.

use super::{Store, chain};
use crate::error::Result;
use crate::types::{Key, Value};

/// Attempts in vain before the processor is left to others.
const SPINS: u32 = 16;

/// How an attempt ended.
pub(super) enum Step<T> {
    Done(T),
    /// Somebody was quicker, a bucket was moving, or the record is in the fuzzy region: at once again.
    Again,
    /// The chain that begins at this address, on the device, must be read first.
    Read(u64),
    /// The log needs room for this many bytes first.
    Room(u64),
}

impl<T> Step<T> {
    /// The same step towards another result.
    pub(super) fn then<U>(self, result: impl FnOnce() -> U) -> Step<U> {
        match self {
            Self::Done(_) => Step::Done(result()),
            Self::Again => Step::Again,
            Self::Read(at) => Step::Read(at),
            Self::Room(bytes) => Step::Room(bytes),
        }
    }
}

/// What was read from the device: the chain's address, and the key's value there if it has one.
#[derive(Default)]
pub(super) struct Known(Option<(u64, Option<Vec<u8>>)>);

impl Known {
    /// What is known of the chain at `at`: nothing, no value, a value.
    pub(super) fn at(&self, at: u64) -> Option<Option<&[u8]>> {
        self.0.as_ref().filter(|(known, _)| *known == at).map(|(_, value)| value.as_deref())
    }

    /// The same, given away.
    pub(super) fn take(&mut self, at: u64) -> Option<Option<Vec<u8>>> {
        self.0.take_if(|(known, _)| *known == at).map(|(_, value)| value)
    }

    pub(super) fn set(&mut self, at: u64, value: Option<Vec<u8>>) {
        self.0 = Some((at, value));
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Attempts until done, waiting on this thread.
    pub(super) fn run<T>(&self, key: &[u8], mut attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        let mut known = Known::default();
        let mut again = 0u32;
        loop {
            match attempt(&mut known)? {
                Step::Done(result) => return Ok(result),
                Step::Again => {
                    again += 1;
                    if again < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
                Step::Read(at) => known.set(at, chain::read(&self.engine, at, key)?),
                Step::Room(bytes) => self.engine.make_room(bytes)?,
            }
        }
    }
}
