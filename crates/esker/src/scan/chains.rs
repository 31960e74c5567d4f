//! Chains on the device, many at a time: each is followed down until whoever asked has seen enough.

use crate::ahead::of_stream;
use crate::device::{DeviceRead, ReadSource};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::record::{ADDRESS_MASK, ColdRecord, first_bytes};
use crate::store::chain::{Parsed, Places, parse};
use std::io;

/// A chain that is followed: its next record, how much of it is to be read, and what for.
struct Job<T> {
    at: u64,
    bytes: u64,
    what: T,
}

struct Chains<'a, T, D> {
    engine: &'a Engine,
    begin: u64,
    /// The last one first.
    waiting: Vec<Job<T>>,
    reading: Places<Job<T>>,
    decide: D,
    reads: u64,
    result: Result<()>,
}

/// Follows each chain from its address down to `begin`. `decide(what, address, record)` is true if the chain is to be followed
/// further. Not under a pin, but while what lies above `begin` is held.
pub(super) fn follow<T>(
    engine: &Engine,
    begin: u64,
    chains: impl Iterator<Item = (u64, T)>,
    decide: impl FnMut(&mut T, u64, &ColdRecord<'_>) -> bool,
) -> Result<()> {
    let bytes = first_bytes(engine.layout);
    let mut waiting: Vec<_> = chains.map(|(at, what)| Job { at, bytes, what }).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    // In the order of their addresses: neighbours are read together by the device, if not by us.
    waiting.sort_unstable_by_key(|job| std::cmp::Reverse(job.at));
    let mut chains = Chains { engine, begin, waiting, reading: Places::default(), decide, reads: 0, result: Ok(()) };
    engine.log.cold_device()?.read_stream(&mut chains);
    engine.epochs.slot()?.count(Counter::DeviceRead, chains.reads);
    chains.result
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> Chains<'_, T, D> {
    fn advance(&mut self, mut job: Job<T>, mut read: DeviceRead, result: io::Result<()>) -> Result<()> {
        of_stream(&read, result)?;
        let cold = self.engine.log.open_blocks(&mut read)?;
        match parse(self.engine.layout, job.at, &cold)? {
            Parsed::Short(bytes) if bytes > job.bytes => job.bytes = bytes,
            Parsed::Short(_) => return Err(Error::corruption(format!("a record is longer than it says address={}", job.at))),
            Parsed::Record(record) => {
                let next = record.header & ADDRESS_MASK;
                if !(self.decide)(&mut job.what, job.at, &record) || next < self.begin {
                    return Ok(());
                }
                (job.at, job.bytes) = (next, first_bytes(self.engine.layout));
            }
        }
        self.waiting.push(job);
        Ok(())
    }
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> ReadSource for Chains<'_, T, D> {
    fn next(&mut self) -> Option<DeviceRead> {
        // After an error the rest is only waited for.
        let job = if self.result.is_ok() { self.waiting.pop()? } else { return None };
        let (at, bytes) = (job.at, job.bytes);
        self.reads += 1;
        Some(Log::cold_read(at, bytes, self.reading.put(job)))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        let job = self.reading.take(read.token());
        if self.result.is_ok() {
            self.result = self.advance(job, read, result);
        }
    }
}
