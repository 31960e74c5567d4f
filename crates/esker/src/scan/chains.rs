//! Chains on the device, many at a time: each is followed down until whoever asked has seen enough.

use crate::ahead::of_stream;
use crate::device::{DeviceRead, ReadSource};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::Result;
use crate::record::ColdRecord;
use crate::store::chain::{Descent, Places};
use std::io;

/// A chain that is followed, and what for.
struct Job<T> {
    down: Descent,
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
    let mut waiting: Vec<_> = chains.map(|(at, what)| Job { down: Descent::new(engine.layout, at), what }).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    // In the order of their addresses: neighbours are read together by the device, if not by us.
    waiting.sort_unstable_by_key(|job| std::cmp::Reverse(job.down.at));
    let mut chains = Chains { engine, begin, waiting, reading: Places::default(), decide, reads: 0, result: Ok(()) };
    engine.log.cold_device()?.read_stream(&mut chains);
    engine.epochs.slot()?.count(Counter::DeviceRead, chains.reads);
    chains.result
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> Chains<'_, T, D> {
    fn advance(&mut self, mut job: Job<T>, mut read: DeviceRead, result: io::Result<()>) -> Result<()> {
        of_stream(&read, result)?;
        let at = job.down.at;
        let record = job.down.advance(self.engine.layout, &self.engine.log.open_blocks(&mut read)?)?;
        let goes_on = record.is_none_or(|record| (self.decide)(&mut job.what, at, &record) && job.down.at >= self.begin);
        if goes_on {
            self.waiting.push(job);
        }
        Ok(())
    }
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> ReadSource for Chains<'_, T, D> {
    fn next(&mut self) -> Option<DeviceRead> {
        // After an error the rest is only waited for.
        let job = if self.result.is_ok() { self.waiting.pop()? } else { return None };
        let down = job.down;
        self.reads += 1;
        Some(down.read(self.reading.put(job)))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        let job = self.reading.take(read.token());
        if self.result.is_ok() {
            self.result = self.advance(job, read, result);
        }
    }
}
