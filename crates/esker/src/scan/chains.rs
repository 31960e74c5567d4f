//! Chains on the device, many at a time: each is followed down until whoever asked has seen enough.
//!
//! ```text
//! all chains, one record further down:  [sorted by address] -> runs of near blocks -> one read each -> decided, or on the list of the next round
//! ```
//! **A round** reads the next record of each chain. Where chains are many each block is read once a round, whatever it holds, and blocks that are
//! near each other by one read: a round is a sweep over the log then, and not a read for each record.

use crate::ahead::{joins_run, of_stream};
use crate::device::{DeviceRead, ReadSource, SECTOR_BYTES};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::Result;
use crate::log::{BLOCK_BYTES, ColdBytes, device_offset};
use crate::record::ColdRecord;
use crate::store::chain::{Descent, Places};
use std::io;
use std::ops::Range;

/// A run ends here: 64 KiB.
const RUN_BLOCKS_MAX: u64 = 16;
/// Blocks under way, whatever the runs: a mebibyte.
const UNDER_WAY_BLOCKS_MAX: usize = 256;

/// A chain that is followed, and what for.
struct Job<T> {
    down: Descent,
    /// It was read with others, and that failed: what lies between them may be nobody's.
    is_alone: bool,
    what: T,
}

impl<T> Job<T> {
    /// One of several that a read may be for.
    fn joins(&self) -> bool {
        let Range { start, end } = self.down.blocks();
        !self.is_alone && end == start + 1
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
    let further: Vec<_> = chains.map(|(at, what)| Job { down: Descent::new(engine.layout, at), is_alone: false, what }).collect();
    if further.is_empty() {
        return Ok(());
    }
    let (waiting, reading) = (Vec::new(), Places::default());
    let mut chains = Chains { engine, begin, waiting, further, reading, blocks_under_way: 0, decide, reads: 0, result: Ok(()) };
    while !chains.further.is_empty() && chains.result.is_ok() {
        std::mem::swap(&mut chains.waiting, &mut chains.further);
        chains.waiting.sort_unstable_by_key(|job| std::cmp::Reverse(job.down.at));
        engine.log.cold_device()?.read_stream(&mut chains);
    }
    engine.epochs.slot()?.count(Counter::DeviceRead, chains.reads);
    chains.result
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> Chains<'_, T, D> {
    /// The jobs of the next read, and its blocks: one, or those of a run.
    fn run(&mut self) -> Option<(Vec<Job<T>>, Range<u64>)> {
        let first = self.waiting.pop()?;
        let (mut blocks, joins) = (first.down.blocks(), first.joins());
        let mut jobs = vec![first];
        let is_near = |job: &Job<T>, blocks: &Range<u64>| job.joins() && joins_run(blocks, job.down.blocks().start, RUN_BLOCKS_MAX);
        while joins && let Some(job) = self.waiting.pop_if(|job| is_near(job, &blocks)) {
            blocks.end = job.down.blocks().end;
            jobs.push(job);
        }
        Some((jobs, blocks))
    }

    /// Takes what a read brought for its jobs.
    fn take(&mut self, mut jobs: Vec<Job<T>>, mut read: DeviceRead, result: io::Result<()>) -> Result<()> {
        if result.is_err() && jobs.len() > 1 {
            jobs.iter_mut().for_each(|job| job.is_alone = true);
            self.waiting.append(&mut jobs);
            return Ok(());
        }
        of_stream(&read, result)?;
        let engine = self.engine;
        if jobs.len() == 1 {
            let cold = engine.log.open_blocks(&mut read)?;
            return jobs.drain(..).try_for_each(|job| self.advance(job, &cold));
        }
        let first = read.offset();
        let mut opened: Option<ColdBytes<'_>> = None;
        for job in jobs {
            let at = job.down.at;
            let cold = match opened.take().filter(|cold| cold.get(at, 1).is_some()) {
                Some(cold) => cold,
                None => engine.log.open_one(at / BLOCK_BYTES, &read.bytes()[(device_offset(at) - first) as usize..][..SECTOR_BYTES])?,
            };
            self.advance(job, &cold)?;
            opened = Some(cold);
        }
        Ok(())
    }

    fn advance(&mut self, mut job: Job<T>, cold: &ColdBytes<'_>) -> Result<()> {
        let at = job.down.at;
        let record = job.down.advance(self.engine.layout, cold)?;
        let goes_on = record.is_none_or(|record| (self.decide)(&mut job.what, at, &record) && job.down.at >= self.begin);
        if goes_on {
            job.is_alone = false;
            self.further.push(job);
        }
        Ok(())
    }
}

impl<T, D: FnMut(&mut T, u64, &ColdRecord<'_>) -> bool> ReadSource for Chains<'_, T, D> {
    fn next(&mut self) -> Option<DeviceRead> {
        // After an error the rest is only waited for.
        if self.result.is_err() || self.blocks_under_way + RUN_BLOCKS_MAX as usize > UNDER_WAY_BLOCKS_MAX {
            return None;
        }
        let (jobs, blocks) = self.run()?;
        let count = (blocks.end - blocks.start) as usize;
        self.reads += 1;
        self.blocks_under_way += count;
        Some(DeviceRead::new(blocks.start * SECTOR_BYTES as u64, count, self.reading.put(jobs)))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        self.blocks_under_way -= read.bytes().len() / SECTOR_BYTES;
        let jobs = self.reading.take(read.token());
        if self.result.is_ok() {
            self.result = self.take(jobs, read, result);
        }
    }
}
