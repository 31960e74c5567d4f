//! Chains on the device, many at a time: each is followed down until whoever asked has seen enough.
//!
//! ```text
//! all chains, one record further down:  [sorted by address] -> runs of near blocks -> one read each -> decided, or on the list of the next round
//! ```
//! **A round** reads the next record of each chain. Where chains are many each block is read once a round, whatever it holds, and blocks that are
//! near each other by one read: a round is a sweep over the log then, and not a read for each record.

use crate::ahead::{GAP_BLOCKS_MAX, of_stream};
use crate::device::{DeviceRead, ReadSource, SECTOR_BYTES};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::log::{BLOCK_BYTES, ColdBytes, Log};
use crate::record::{ADDRESS_MASK, ColdRecord, first_bytes};
use crate::store::chain::{Parsed, Places, parse};
use std::io;

/// A run ends here: 64 KiB.
const RUN_BLOCKS_MAX: u64 = 16;
/// Blocks under way, whatever the runs: a mebibyte.
const UNDER_WAY_BLOCKS_MAX: usize = 256;

/// A chain that is followed: its next record, how much of it is to be read, and what for.
struct Job<T> {
    at: u64,
    bytes: u32,
    /// It was read with others, and that failed: what lies between them may be nobody's.
    is_alone: bool,
    what: T,
}

impl<T> Job<T> {
    fn new(engine: &Engine, at: u64, what: T) -> Self {
        Self { at, bytes: first_bytes(engine.layout) as u32, is_alone: false, what }
    }

    fn block(&self) -> u64 {
        self.at / BLOCK_BYTES
    }

    /// The last one that is needed.
    fn last_block(&self) -> u64 {
        (self.at + u64::from(self.bytes) - 1) / BLOCK_BYTES
    }

    /// One of several that a read is for.
    fn joins(&self) -> bool {
        !self.is_alone && self.last_block() == self.block()
    }
}

/// A round.
struct Chains<'a, T, D> {
    engine: &'a Engine,
    begin: u64,
    /// The last one first.
    waiting: Vec<Job<T>>,
    /// Those that go on.
    further: Vec<Job<T>>,
    reading: Places<Vec<Job<T>>>,
    blocks_under_way: usize,
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
    let further: Vec<_> = chains.map(|(at, what)| Job::new(engine, at, what)).collect();
    if further.is_empty() {
        return Ok(());
    }
    let (waiting, reading) = (Vec::new(), Places::default());
    let mut chains = Chains { engine, begin, waiting, further, reading, blocks_under_way: 0, decide, reads: 0, result: Ok(()) };
    while !chains.further.is_empty() && chains.result.is_ok() {
        std::mem::swap(&mut chains.waiting, &mut chains.further);
        chains.waiting.sort_unstable_by_key(|job| std::cmp::Reverse(job.at));
        engine.log.cold_device()?.read_stream(&mut chains);
    }
    engine.epochs.slot()?.count(Counter::DeviceRead, chains.reads);
    chains.result
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> Chains<'_, T, D> {
    /// The jobs of the next read: one, or those of a run.
    fn run(&mut self) -> Option<Vec<Job<T>>> {
        let first = self.waiting.pop()?;
        let (from, mut last) = (first.block(), first.last_block());
        let joins = first.joins();
        let mut jobs = vec![first];
        while joins
            && let Some(job) =
                self.waiting.pop_if(|job| job.joins() && job.block() <= last + GAP_BLOCKS_MAX && job.block() < from + RUN_BLOCKS_MAX)
        {
            last = job.block();
            jobs.push(job);
        }
        Some(jobs)
    }

    /// Takes what a read brought for its jobs.
    fn take(&mut self, mut jobs: Vec<Job<T>>, mut read: DeviceRead, result: io::Result<()>) -> Result<()> {
        let count = read.bytes().len() / SECTOR_BYTES;
        if result.is_err() && jobs.len() > 1 {
            jobs.iter_mut().for_each(|job| job.is_alone = true);
            self.waiting.append(&mut jobs);
            return Ok(());
        }
        of_stream(&read, result)?;
        let engine = self.engine;
        let log = &engine.log;
        if jobs.len() == 1 {
            let cold = log.open_blocks(&mut read)?;
            return jobs.drain(..).try_for_each(|job| self.advance(job, &cold));
        }
        let first = jobs[0].block();
        debug_assert!(jobs.iter().all(|job| ((job.block() - first) as usize) < count));
        let mut opened: Option<ColdBytes<'_>> = None;
        for job in jobs {
            let cold = match opened.take().filter(|cold| cold.get(job.at, 1).is_some()) {
                Some(cold) => cold,
                None => log.open_one(job.block(), &read.bytes()[(job.block() - first) as usize * SECTOR_BYTES..][..SECTOR_BYTES])?,
            };
            self.advance(job, &cold)?;
            opened = Some(cold);
        }
        Ok(())
    }

    fn advance(&mut self, mut job: Job<T>, cold: &ColdBytes<'_>) -> Result<()> {
        match parse(self.engine.layout, job.at, cold)? {
            Parsed::Short(bytes) if bytes > u64::from(job.bytes) => job.bytes = bytes as u32,
            Parsed::Short(_) => return Err(Error::corruption(format!("a record is longer than it says address={}", job.at))),
            Parsed::Record(record) => {
                let next = record.header & ADDRESS_MASK;
                if !(self.decide)(&mut job.what, job.at, &record) || next < self.begin {
                    return Ok(());
                }
                job = Job::new(self.engine, next, job.what);
            }
        }
        self.further.push(job);
        Ok(())
    }
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> ReadSource for Chains<'_, T, D> {
    fn next(&mut self) -> Option<DeviceRead> {
        // After an error the rest is only waited for.
        if self.result.is_err() || self.blocks_under_way + RUN_BLOCKS_MAX as usize > UNDER_WAY_BLOCKS_MAX {
            return None;
        }
        let jobs = self.run()?;
        let (first, last) = (&jobs[0], &jobs[jobs.len() - 1]);
        let (at, bytes) = (first.at, last.at + u64::from(last.bytes) - first.at);
        let read = Log::cold_read(at, bytes, self.reading.put(jobs));
        self.reads += 1;
        self.blocks_under_way += read.bytes().len() / SECTOR_BYTES;
        Some(read)
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        self.blocks_under_way -= read.bytes().len() / SECTOR_BYTES;
        let jobs = self.reading.take(read.token());
        if self.result.is_ok() {
            self.result = self.take(jobs, read, result);
        }
    }
}
