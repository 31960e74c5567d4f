//! By log: the log is read from its beginning to the cut, and what lives is told from what does not.
//!
//! ```text
//! begin ............ head ...... first start ..... start ..... start ..... cut
//! |  device, read ahead, one thread  | stretch   | stretch   | stretch     |   in memory: any thread takes the next
//! ```
//! **Memory** is divided where pieces of the log begin (`windows.rs`). A stretch is copied under a short pin and read outside
//! it; should it have been evicted meanwhile, it is read from the device. **The cold part** comes in large reads, one
//! thread reading ahead, and passes by what is hot: nothing is brought into the log's memory.
//!
//! **A record lives** in a view if it counts, holds a value, and the newest record of its key that counts is itself. In a
//! stretch where nothing was superseded that needs no asking. Else it is asked in groups: all buckets are fetched, then the
//! records of those entries that lead elsewhere, then the chains are walked. Where a chain leads to another cold record the
//! question stays open ([`Doubt`]); those are gathered, and their chains read from the device together.

use super::{Frame, Visit, chains};
use crate::ahead::{read_ahead, read_at_once};
use crate::engine::{Engine, Layout};
use crate::error::{Error, Result};
use crate::index::Seen;
use crate::log::{BLOCK_BYTES, Log};
use crate::manifest::LOG;
use crate::memory::prefetch;
use crate::options::layout;
use crate::record::{self, ADDRESS_MASK, VALID};
use crate::scars::{self, Scar};
use crate::snapshot::{Newest, View};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::hint;
use crate::types::{Key, Value};
use crate::windows::WINDOW_BYTES;
use std::ops::Range;

/// Records whose cache misses overlap.
const GROUP: usize = 64;
/// Blocks read together: half a mebibyte, four with all that are read ahead.
const PIECE_BLOCKS: u64 = 128;
/// What doubtful records may take before their chains are read: a part of the budget. The more there are, the more of them each block that is read for
/// them tells of. (Of several threads one has nearly all: who reads the cold part.)
const DOUBT_PART: u64 = 32;
const DOUBT_BYTES: Range<u64> = 8 << 20..1 << 30;
/// Besides the record: when chains are followed, doubts move to another list.
const DOUBT_ITSELF: usize = 2 * size_of::<(u64, Doubt)>();

/// A scan by log that several threads share.
pub(super) struct ByLog<'a, K: Key + ?Sized, V: Value + ?Sized> {
    frame: &'a Frame<'a, K, V>,
    /// Where records begin, in memory; then the cut.
    starts: Vec<u64>,
    next: AtomicU64,
    is_cold_taken: AtomicBool,
    doubt_bytes_max: usize,
}

/// A record that counts, in a stretch's bytes.
struct Candidate {
    at: u64,
    hash: u64,
    bytes: Range<usize>,
}

/// A record that may have been superseded by a cold one.
struct Doubt {
    at: u64,
    /// In `Work::kept`.
    start: u32,
    bytes: u32,
}

/// What became of a question.
enum Verdict {
    Lives,
    Dead,
    /// The chain from this address on must be read.
    Doubtful(u64),
    /// A bucket was moving.
    Again,
}

/// A thread's buffers.
#[derive(Default)]
struct Work {
    bytes: Vec<u8>,
    group: Vec<Candidate>,
    doubts: Vec<(u64, Doubt)>,
    /// The doubtful records themselves.
    kept: Vec<u8>,
}

impl Work {
    /// Memory that doubts take.
    fn doubt_bytes(&self) -> usize {
        self.kept.len() + self.doubts.len() * DOUBT_ITSELF
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> ByLog<'a, K, V> {
    pub(super) fn new(frame: &'a Frame<'a, K, V>) -> Result<Self> {
        let engine = frame.engine();
        let starts = starts(engine, &frame.view)?;
        let doubt_bytes_max = doubt_bytes_max(engine);
        Ok(Self { frame, starts, next: AtomicU64::new(0), is_cold_taken: AtomicBool::new(false), doubt_bytes_max })
    }

    /// One thread's share.
    pub(super) fn work(&self, visit: &mut impl Visit) -> Result<()> {
        let mut work = Work::default();
        if !self.is_cold_taken.swap(true, Relaxed) {
            self.cold(&mut work, visit)?;
        }
        loop {
            let number = self.next.fetch_add(1, Relaxed) as usize;
            let Some(&[from, until]) = self.starts.get(number..number + 2) else { break };
            self.stretch(from..until, &mut work, visit)?;
            self.frame.control.advance(until - from)?;
        }
        self.settle(&mut work, visit)
    }

    fn stretch(&self, stretch: Range<u64>, work: &mut Work, visit: &mut impl Visit) -> Result<()> {
        let mut bytes = std::mem::take(&mut work.bytes);
        bytes.clear();
        let is_asked = fetch(self.frame.engine(), stretch.clone(), &mut bytes)?;
        let read = self.read(stretch.start, &bytes, is_asked, &[], work, visit);
        work.bytes = bytes;
        if read? as u64 + stretch.start < stretch.end {
            return Err(no_record(stretch.start));
        }
        Ok(())
    }

    /// The part that ends where the first stretch begins.
    fn cold(&self, work: &mut Work, visit: &mut impl Visit) -> Result<()> {
        let engine = self.frame.engine();
        let (begin, end) = (self.frame.view.begin, self.starts[0]);
        let scars = crate::engine::lock(&engine.compaction.scars).clone();
        for part in scars::parts(&scars, begin, end) {
            let scars = scars::of_part(&scars, &part);
            let head = engine.log.bounds.head.load(Acquire).clamp(part.start, part.end);
            let mut bytes = Vec::new();
            let mut at = part.start;
            let mut take = |piece: &mut Vec<u8>, at: &mut u64, work: &mut Work| -> Result<()> {
                let read = self.read(*at, piece, true, &scars, work, visit)?;
                // Beyond the end, if a block's rest was skipped there.
                *at += read as u64;
                piece.drain(..read.min(piece.len()));
                self.frame.control.advance(read as u64)
            };
            // The first record may begin within its block.
            let mut skip = part.start % BLOCK_BYTES;
            read_ahead(&engine.log, part.start / BLOCK_BYTES..head / BLOCK_BYTES, PIECE_BLOCKS, |_, piece| {
                bytes.extend_from_slice(piece);
                // A piece that ends with damage may be shorter.
                let skipped = skip.min(bytes.len() as u64);
                skip -= skipped;
                bytes.drain(..skipped as usize);
                take(&mut bytes, &mut at, work)
            })?;
            let from = at + bytes.len() as u64;
            if from < part.end {
                fetch(engine, from..part.end, &mut bytes)?;
                take(&mut bytes, &mut at, work)?;
            }
            // A scar may begin in the middle of a record that was given up.
            if at < part.end && part.end == end {
                return Err(no_record(at));
            }
        }
        Ok(())
    }

    /// Visits what lives in these bytes, which begin at `base`; returns how many bytes whole records take.
    #[inline(always)]
    fn read(&self, base: u64, bytes: &[u8], is_asked: bool, scars: &[Scar], work: &mut Work, visit: &mut impl Visit) -> Result<usize> {
        let frame = self.frame;
        let (engine, view) = (frame.engine(), &frame.view);
        if !is_asked && let Some(plain) = view.plain(base, base + bytes.len() as u64) {
            let selects = frame.selects();
            return walk(layout::<K, V>(), base, bytes, |at, header, record| {
                if plain.is_lasting(header) || view.counts(at, header) && frame.view.is_value(header, record::expiry_of(record)) {
                    let (key, value) = frame.pair(record);
                    if !selects || frame.wants(key) {
                        visit(key, value);
                    }
                }
                Ok(())
            });
        }
        let read = walk(layout::<K, V>(), base, bytes, |at, header, record| {
            let counts = view.counts(at, header) && !scars.iter().any(|scar| scar.excludes(at, header));
            if !counts || !frame.view.is_value(header, record::expiry_of(record)) {
                return Ok(());
            }
            let (key, value) = frame.pair(record);
            if !frame.wants(key) {
                return Ok(());
            }
            if !is_asked {
                visit(key, value);
                return Ok(());
            }
            let hash = frame.hash(key);
            engine.index.prefetch(hash);
            let offset = (at - base) as usize;
            work.group.push(Candidate { at, hash, bytes: offset..offset + record.len() });
            if work.group.len() == GROUP { self.ask(bytes, work, visit) } else { Ok(()) }
        })?;
        self.ask(bytes, work, visit)?;
        Ok(read)
    }

    /// Visits those of a group that live.
    fn ask(&self, bytes: &[u8], work: &mut Work, visit: &mut impl Visit) -> Result<()> {
        let engine = self.frame.engine();
        let group = &work.group;
        let (mut lives, mut elsewhere, mut count) = (0u64, [0; GROUP], 0);
        for (number, candidate) in group.iter().enumerate() {
            // Should the entry lie behind the first bucket, that is fetched as well.
            let (first, _) = engine.index.first_match_in_front(candidate.hash);
            let is_head = first == candidate.at;
            lives |= u64::from(is_head) << number;
            elsewhere[count] = number;
            count += usize::from(!is_head);
            prefetch(engine.log.pointer(first));
        }
        if count > 0 {
            let pin = engine.epochs.pin()?;
            for number in &elsewhere[..count] {
                let candidate = &group[*number];
                match self.verdict(candidate, &bytes[candidate.bytes.clone()]) {
                    Verdict::Lives => lives |= 1 << number,
                    Verdict::Doubtful(other) => {
                        let record = &bytes[candidate.bytes.clone()];
                        // Far shorter than 4 GiB.
                        let (start, bytes) = (work.kept.len() as u32, record.len() as u32);
                        work.kept.extend_from_slice(record);
                        work.doubts.push((other, Doubt { at: candidate.at, start, bytes }));
                    }
                    Verdict::Dead | Verdict::Again => {}
                }
            }
            drop(pin);
        }
        while lives != 0 {
            let (key, value) = self.frame.pair(&bytes[group[lives.trailing_zeros() as usize].bytes.clone()]);
            visit(key, value);
            lives &= lives - 1;
        }
        work.group.clear();
        if work.doubt_bytes() > self.doubt_bytes_max { self.settle(work, visit) } else { Ok(()) }
    }

    /// Under a pin.
    #[inline(always)]
    fn verdict(&self, candidate: &Candidate, record: &[u8]) -> Verdict {
        loop {
            let seen = self.frame.engine().index.lookup(candidate.hash);
            match self.verdict_once(candidate, &seen, record) {
                Verdict::Again => hint::spin_loop(),
                verdict => return verdict,
            }
        }
    }

    #[inline(always)]
    fn verdict_once(&self, candidate: &Candidate, seen: &Seen, record: &[u8]) -> Verdict {
        let frame = self.frame;
        let (key, _) = frame.pair(record);
        match frame.engine().newest_in(&frame.view, seen.address(), candidate.at, |found| frame.key_of(found) == key) {
            Newest::Memory(_) => Verdict::Dead,
            // The wrong bucket, or a shorter tag, if it was moving.
            Newest::Nowhere { at } if at == candidate.at && !frame.engine().index.leads_surely(seen) => Verdict::Again,
            Newest::Nowhere { at } if at == candidate.at => Verdict::Lives,
            _ if !frame.engine().index.is_settled(seen) => Verdict::Again,
            Newest::Nowhere { .. } => Verdict::Dead,
            // Newer, and of this key, or all of the chain is of another.
            Newest::Cold(other) if seen.is_sole() && frame.view.surely_counts(other) && frame.sees_what_sole_means() => Verdict::Dead,
            Newest::Cold(other) => Verdict::Doubtful(other),
        }
    }

    /// Reads the chains of all doubtful records, and visits those that live.
    fn settle(&self, work: &mut Work, visit: &mut impl Visit) -> Result<()> {
        let frame = self.frame;
        let Work { doubts, kept, .. } = work;
        let followed = chains::follow(frame.engine(), frame.view.begin, doubts.drain(..), |doubt, at, other| {
            let (key, value) = frame.pair(&kept[doubt.start as usize..][..doubt.bytes as usize]);
            if frame.view.counts(at, other.header) && other.key == key {
                return false;
            }
            let next = other.header & ADDRESS_MASK;
            if next == doubt.at {
                visit(key, value);
            }
            next > doubt.at
        });
        kept.clear();
        followed
    }
}

fn doubt_bytes_max(engine: &Engine) -> usize {
    (engine.budget.load(Relaxed) / DOUBT_PART).clamp(DOUBT_BYTES.start, DOUBT_BYTES.end) as usize
}

/// How many records of so many bytes are in doubt before their chains are read.
pub(super) fn doubts_at_a_time(engine: &Engine, record_bytes: f64) -> f64 {
    doubt_bytes_max(engine) as f64 / (record_bytes + DOUBT_ITSELF as f64)
}

fn no_record(at: u64) -> Error {
    Error::corruption(format!("no record where one should be file={LOG} address={at}"))
}

/// Where memory can be divided: addresses at which records begin, the first of them where the cold part ends, then the cut.
fn starts(engine: &Engine, view: &View) -> Result<Vec<u64>> {
    let _pin = engine.epochs.pin()?;
    let head = engine.log.bounds.head.load(Acquire);
    let mut starts = Vec::new();
    if view.begin >= head {
        starts.push(view.begin);
    }
    let first = starts.first().copied().unwrap_or(head);
    let mut window = first / WINDOW_BYTES * WINDOW_BYTES;
    while window < view.cut {
        // Under the pin nothing at or above `head` is evicted, nor forgotten.
        starts.extend(engine.log.windows.start(window).filter(|start| *start > first && *start < view.cut));
        window += WINDOW_BYTES;
    }
    starts.push(view.cut);
    Ok(starts)
}

/// Appends the bytes of a frozen stretch, from memory or from the device; true unless all its records are known to have no
/// successor.
fn fetch(engine: &Engine, stretch: Range<u64>, bytes: &mut Vec<u8>) -> Result<bool> {
    let pin = engine.epochs.pin()?;
    if stretch.start >= engine.log.bounds.head.load(Acquire) {
        let mut windows = (stretch.start / WINDOW_BYTES..=(stretch.end - 1) / WINDOW_BYTES).map(|number| number * WINDOW_BYTES);
        let is_superseded = windows.any(|window| engine.log.windows.is_superseded(window));
        engine.log.append_frozen(stretch, bytes);
        return Ok(is_superseded);
    }
    drop(pin);
    let (from, length) = (stretch.start, stretch.end - stretch.start);
    let mut read = read_at_once(&engine.log, Log::cold_read(from, length, 0))?;
    let cold = engine.log.open_blocks(&mut read)?;
    bytes.extend_from_slice(cold.get(from, length).ok_or_else(|| no_record(from))?);
    Ok(true)
}

/// Shows the whole records in these bytes, which begin at `base` with one; returns how many bytes they take, with what is left
/// unused behind them.
#[inline(always)]
fn walk(layout: Layout, base: u64, bytes: &[u8], mut show: impl FnMut(u64, u64, &[u8]) -> Result<()>) -> Result<usize> {
    let mut offset = 0;
    while let Some(rest) = bytes.get(offset..).filter(|rest| rest.len() >= 8) {
        let header = record::word_at(rest, 0);
        if header & VALID == 0 {
            if header != 0 {
                return Err(no_record(base + offset as u64));
            }
            // Nothing more up to the next block.
            let at = base + offset as u64;
            offset = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES - base) as usize;
            continue;
        }
        if rest.len() < record::first_bytes(layout) as usize {
            break;
        }
        let length = record::scanned_record_bytes(layout, rest).ok_or_else(|| no_record(base + offset as u64))? as usize;
        let Some(record) = rest.get(..length) else { break };
        show(base + offset as u64, header, record)?;
        offset += length;
    }
    Ok(offset.min(bytes.len()))
}
