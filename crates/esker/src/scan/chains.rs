//! Chains on the device, many at a time: each is followed down until whoever asked has seen enough.
//!
//! ```text
//! list:  [ go on in the next round | free | under way | wait, sorted by address ]
//!        0                       kept          taken                          len
//! waiting -> runs of near blocks -> one read each -> decided: over, or back on the list
//! ```
//! **A round** reads the next record of each chain. Where chains are many each block is read once a round, whatever it holds, and blocks
//! that are near each other by one read: a round is a sweep over the log then, and not a read for each record. What goes on takes the place
//! of what was read before it, so that all a round needs is the list, and what is under way.

use crate::ahead::{joins_run, of_stream};
use crate::descent::{Descent, Places};
use crate::device::{DeviceRead, ReadSource, Runs, SECTOR_BYTES};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::Result;
use crate::log::ColdBytes;
use crate::record::ColdRecord;
use std::io;
use std::mem::take;
use std::ops::Range;

/// A run ends here: 64 KiB, and the rest of its last record.
const RUN_BLOCKS_MAX: u64 = 16;
/// Blocks under way, whatever the runs: a mebibyte.
const UNDER_WAY_BLOCKS_MAX: usize = 256;

/// A chain of which a record is read, and what for.
struct Job<T> {
    down: Descent,
    what: T,
}

/// Whether a chain is followed further. One for all who ask: there are many.
type Decide<'a, T> = &'a mut dyn FnMut(&mut T, u64, &ColdRecord<'_>) -> Result<bool>;

/// A round.
struct Chains<'a, T> {
    engine: &'a Engine,
    begin: u64,
    list: &'a mut Vec<(u64, T)>,
    taken: usize,
    kept: usize,
    /// Those that are read one by one: more than their first bytes are needed, or they were read with others, and that failed: what lies
    /// between them may be nobody's.
    apart: Vec<Job<T>>,
    reading: Places<Vec<Job<T>>>,
    buffers: Runs,
    blocks_under_way: usize,
    /// Of a record that lies in several blocks.
    joined: Vec<u8>,
    decide: Decide<'a, T>,
    reads: u64,
    result: Result<()>,
}

/// Follows each chain of the list from its address down to `begin`; the list is empty then. `decide(what, address, record)` is true if the
/// chain is to be followed further. Not under a pin, but while what lies above `begin` is held.
pub(super) fn follow<T: Default>(
    engine: &Engine,
    begin: u64,
    list: &mut Vec<(u64, T)>,
    mut decide: impl FnMut(&mut T, u64, &ColdRecord<'_>) -> Result<bool>,
) -> Result<()> {
    if list.is_empty() { Ok(()) } else { follow_all(engine, begin, list, &mut decide) }
}

fn follow_all<T: Default>(engine: &Engine, begin: u64, list: &mut Vec<(u64, T)>, decide: Decide<'_, T>) -> Result<()> {
    let (apart, reading, buffers, joined) = (Vec::new(), Places::default(), Runs::default(), Vec::new());
    let (taken, kept, blocks_under_way, reads) = (0, 0, 0, 0);
    let result = Ok(());
    let mut chains = Chains { engine, begin, list, taken, kept, apart, reading, buffers, blocks_under_way, joined, decide, reads, result };
    while !chains.list.is_empty() && chains.result.is_ok() {
        chains.list.sort_unstable_by_key(|(at, _)| *at);
        (chains.taken, chains.kept) = (0, 0);
        engine.log.cold_device()?.read_stream(&mut chains);
        chains.list.truncate(chains.kept);
    }
    chains.list.clear();
    engine.epochs.slot()?.count(Counter::ScanRead, chains.reads);
    chains.result
}

impl<T: Default> Chains<'_, T> {
    /// The jobs of the next read, and its blocks: one, or those of a run.
    fn run(&mut self) -> Option<(Vec<Job<T>>, Range<u64>)> {
        if let Some(job) = self.apart.pop() {
            let blocks = job.down.blocks();
            return Some((vec![job], blocks));
        }
        let first = self.next_job()?;
        let mut blocks = first.down.blocks();
        let mut jobs = vec![first];
        while let Some((at, _)) = self.list.get(self.taken)
            && let next = self.descent(*at).blocks()
            && joins_run(&blocks, next.start, RUN_BLOCKS_MAX)
        {
            blocks.end = blocks.end.max(next.end);
            jobs.extend(self.next_job());
        }
        Some((jobs, blocks))
    }

    fn descent(&self, at: u64) -> Descent {
        Descent::new(self.engine.layout, at)
    }

    fn next_job(&mut self) -> Option<Job<T>> {
        let (at, what) = take(self.list.get_mut(self.taken)?);
        self.taken += 1;
        Some(Job { down: self.descent(at), what })
    }

    /// Takes what a read brought for its jobs.
    fn take(&mut self, mut jobs: Vec<Job<T>>, read: &mut DeviceRead, result: io::Result<()>) -> Result<()> {
        if result.is_err() && jobs.len() > 1 {
            self.apart.append(&mut jobs);
            return Ok(());
        }
        of_stream(read, result)?;
        let engine = self.engine;
        if let [_] = jobs[..] {
            let cold = engine.log.open_blocks(read)?;
            return jobs.drain(..).try_for_each(|job| self.advance(job, &cold).map(|rest| self.apart.extend(rest)));
        }
        let first = read.offset() / SECTOR_BYTES as u64;
        let sectors = |blocks: &Range<u64>| {
            let at = |block: u64| (block - first) as usize * SECTOR_BYTES;
            read.bytes().get(at(blocks.start)..at(blocks.end))
        };
        let mut joined = take(&mut self.joined);
        let mut opened: Option<(u64, ColdBytes<'_>)> = None;
        for mut job in jobs {
            // Of a record whose rest lies in the next blocks, which may be there as well.
            let rest = loop {
                let blocks = job.down.blocks();
                let Some(sectors) = sectors(&blocks) else { break Some(job) };
                let rest = if blocks.end == blocks.start + 1 {
                    let cold = match opened.take().filter(|(block, _)| *block == blocks.start) {
                        Some((_, cold)) => cold,
                        None => engine.log.open_one(blocks.start, sectors)?,
                    };
                    let rest = self.advance(job, &cold)?;
                    opened = Some((blocks.start, cold));
                    rest
                } else {
                    self.advance(job, &engine.log.open_joined(blocks.start, sectors, &mut joined)?)?
                };
                match rest {
                    Some(rest) => job = rest,
                    None => break None,
                }
            };
            self.apart.extend(rest);
        }
        self.joined = joined;
        Ok(())
    }

    /// Goes on with what was read. Given back if more of the record is needed.
    fn advance(&mut self, mut job: Job<T>, cold: &ColdBytes<'_>) -> Result<Option<Job<T>>> {
        let at = job.down.at;
        let Some(record) = job.down.advance(self.engine.layout, cold)? else { return Ok(Some(job)) };
        if (self.decide)(&mut job.what, at, &record)? && job.down.at >= self.begin {
            // It was taken from behind this place.
            self.list[self.kept] = (job.down.at, job.what);
            self.kept += 1;
        }
        Ok(None)
    }
}

impl<T: Default> ReadSource for Chains<'_, T> {
    fn next(&mut self) -> Option<DeviceRead> {
        // After an error the rest is only waited for.
        if self.result.is_err() || self.blocks_under_way + RUN_BLOCKS_MAX as usize > UNDER_WAY_BLOCKS_MAX {
            return None;
        }
        let (jobs, blocks) = self.run()?;
        let count = (blocks.end - blocks.start) as usize;
        self.reads += 1;
        self.blocks_under_way += count;
        Some(self.buffers.read(blocks.start * SECTOR_BYTES as u64, count, self.reading.put(jobs)))
    }

    fn done(&mut self, mut read: DeviceRead, result: io::Result<()>) {
        self.blocks_under_way -= read.bytes().len() / SECTOR_BYTES;
        let jobs = self.reading.take(read.token());
        if self.result.is_ok() {
            self.result = self.take(jobs, &mut read, result);
        }
        self.buffers.take_back(read);
    }
}
