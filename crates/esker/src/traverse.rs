//! Reading the log from end to end: what recovery, compaction and verification have in common.
//!
//! ```text
//! device -> pieces, read ahead (`ahead.rs`) -> records that count -> visitor
//! ```
//! A piece is walked through where it was read: only a record that reaches into the next piece is put together elsewhere.

use crate::ahead::read_ahead;
use crate::device::LOG;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::log::{BLOCK_BYTES, NOWHERE, block_end, line_flag};
use crate::manifest::State;
use crate::record::{self, ABANDONED, ODD_LINE, VALID};
use crate::recovery::Progress;
use crate::scars::{self, Scar};
use crate::sync::atomic::Ordering::*;
use crate::types::Layout;
use std::cell::Cell;
use std::ops::Range;

/// Blocks read together: a mebibyte, or this part of a small budget.
const PIECE_BLOCKS: u64 = 256;
const PIECE_BLOCKS_MIN: u64 = 32;
const PIECE_PART: u64 = 256;
/// Records that are announced before the first of them is visited.
const GROUP: usize = 64;

/// A record of the log, as the scan meets it.
pub(crate) struct Scanned {
    pub(crate) at: u64,
    pub(crate) hash: u64,
    /// Where it lies in the scan's bytes.
    offset: usize,
    bytes: usize,
}

impl Scanned {
    #[inline(always)]
    fn new(engine: &Engine, at: u64, offset: usize, bytes: &[u8]) -> Self {
        let hash = engine.hash_of(&bytes[record::key_range(engine.layout, bytes)]);
        Self { at, hash, offset, bytes: bytes.len() }
    }

    /// The same of a record in memory, if it was not given up.
    #[inline(always)]
    pub(crate) fn counting(engine: &Engine, at: u64, offset: usize, bytes: &[u8]) -> Option<Self> {
        (record::word_at(bytes, 0) & ABANDONED == 0).then(|| Self::new(engine, at, offset, bytes))
    }

    /// Its own of the scan's bytes.
    #[inline(always)]
    pub(crate) fn of<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.offset..self.offset + self.bytes]
    }
}

/// What is done with the records.
pub(crate) trait Visitor {
    /// A record with this hash will be visited soon.
    fn expect(&mut self, _hash: u64) {}

    /// So will this one, and it was expected some records before.
    fn expect_soon(&mut self, _record: &Scanned) {}

    fn visit(&mut self, record: &Scanned, bytes: &[u8]) -> Result<()>;
}

/// A part of the log: from an address to the cut of the last line, around the scars.
pub(crate) struct Span<'a> {
    from: u64,
    until: u64,
    /// The last line's: from here on what is not of its parity belongs to the next one.
    window: u64,
    line_flag: u64,
    scars: &'a [Scar],
    /// Everything below was visited.
    reached: Cell<u64>,
    /// What lies there is no record, though its block is whole.
    is_record_impossible: Cell<bool>,
    /// The last record may reach beyond the end: it is not visited then.
    is_open_ended: bool,
    progress: Option<&'a Progress>,
}

impl<'a> Span<'a> {
    pub(crate) fn new(from: u64, state: &State, scars: &'a [Scar]) -> Self {
        let (until, window, line_flag) = (state.cut, state.window, line_flag(state.line));
        Self {
            from,
            until,
            window,
            line_flag,
            scars,
            reached: Cell::new(from),
            is_record_impossible: Cell::new(false),
            is_open_ended: false,
            progress: None,
        }
    }

    /// As [`Span::new`], or less: behind `until` all is given up.
    pub(crate) fn up_to(until: u64, from: u64, state: &State, scars: &'a [Scar]) -> Self {
        Self { until, is_open_ended: until < state.cut, ..Self::new(from, state, scars) }
    }

    /// A part of a running store's log, all of which counts, that ends anywhere.
    pub(crate) fn open_ended(Range { start: from, end: until }: Range<u64>, scars: &'a [Scar]) -> Self {
        Self {
            from,
            until,
            window: NOWHERE,
            line_flag: 0,
            scars,
            reached: Cell::new(from),
            is_record_impossible: Cell::new(false),
            is_open_ended: true,
            progress: None,
        }
    }

    /// Whoever waits is told how far the walk is.
    pub(crate) fn telling(self, progress: Option<&'a Progress>) -> Self {
        Self { progress, ..self }
    }

    /// Everything below was visited.
    pub(crate) fn reached_whole(&self) -> u64 {
        self.reached.get()
    }

    /// True if the walk ended where a record should be and none can be.
    pub(crate) fn is_record_impossible(&self) -> bool {
        self.is_record_impossible.get()
    }

    /// Everything below needs no further visit: it was visited, or lies in a scar at the end.
    pub(crate) fn reached(&self) -> u64 {
        let end = self.until;
        let ends_in_scar = self.scars.iter().any(|scar| scar.cut < end && end <= scar.behind);
        if ends_in_scar { end } else { self.reached.get() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.until.saturating_sub(self.from)
    }

    /// The stretches between the scars.
    pub(crate) fn parts(&self) -> Vec<Range<u64>> {
        scars::parts(self.scars, self.from, self.until)
    }

    fn note_reached(&self, at: u64) {
        self.reached.set(at);
        if let Some(progress) = self.progress {
            progress(at - self.from, self.bytes());
        }
    }
}

impl Engine {
    /// Visits the records that count in a part of the log, in order.
    pub(crate) fn scan(&self, span: &Span<'_>, visitor: &mut impl Visitor) -> Result<()> {
        span.parts().iter().try_for_each(|part| self.scan_stretch(span, part, visitor)?.end())
    }

    /// The same for a stretch of one of its parts: from where a record begins to the end of a block.
    pub(crate) fn scan_stretch<'a>(&'a self, span: &'a Span<'_>, stretch: &Range<u64>, visitor: &mut impl Visitor) -> Result<Scan<'a>> {
        let piece_blocks = (self.budget.load(Relaxed) / PIECE_PART / BLOCK_BYTES).clamp(PIECE_BLOCKS_MIN, PIECE_BLOCKS);
        let mut scan = Scan::new(self, span, stretch);
        let blocks = stretch.start / BLOCK_BYTES..stretch.end / BLOCK_BYTES;
        read_ahead(&self.log, blocks, piece_blocks, |base, piece| scan.take(base, piece, visitor))?;
        Ok(scan)
    }
}

// ---- from record to record -----------------------------------------------------------------------------------------

/// A walk through a part's bytes.
pub(crate) struct Scan<'a> {
    engine: &'a Engine,
    span: &'a Span<'a>,
    until: u64,
    scars: Vec<Scar>,
    /// The next record's address.
    at: u64,
    /// Its first bytes, if the rest lies in the next piece.
    begun: Vec<u8>,
    group: Vec<Scanned>,
}

/// What lies at the beginning of some bytes.
pub(crate) enum Next {
    /// Nothing more in this block.
    Gap,
    /// A record of so many bytes.
    Record(usize),
    /// At least so many bytes are needed to tell, or to have it whole.
    More(usize),
}

impl<'a> Scan<'a> {
    fn new(engine: &'a Engine, span: &'a Span<'a>, part: &Range<u64>) -> Self {
        let scars = scars::of_part(span.scars, part);
        Self { engine, span, until: part.end, scars, at: part.start, begun: Vec::new(), group: Vec::with_capacity(GROUP) }
    }

    /// True if a record is part of the store, or was.
    fn counts(&self, at: u64, header: u64) -> bool {
        let is_later = at >= self.span.window && header & ODD_LINE != self.span.line_flag;
        header & ABANDONED == 0 && !is_later && !self.scars.iter().any(|scar| scar.excludes(at, header))
    }

    fn end(&self) -> Result<()> {
        // A scar may begin in the middle of a record that was given up; the last line may not.
        if self.at < self.until && self.until == self.span.until && !self.span.is_open_ended {
            return Err(Error::corruption(format!("a record reaches beyond its line file={LOG} address={}", self.at)));
        }
        Ok(())
    }

    /// How much was seen of a record that does not end.
    pub(crate) fn begun_bytes(&self) -> u64 {
        self.begun.len() as u64
    }

    /// Visits what is whole with these further bytes, which begin at `base`.
    fn take(&mut self, base: u64, piece: &[u8], visitor: &mut impl Visitor) -> Result<()> {
        if self.finish_begun(base, piece, visitor)? {
            self.walk(base, piece, visitor)?;
        }
        self.span.note_reached(self.at.min(self.until));
        Ok(())
    }

    /// Completes the record that began in an earlier piece; false if it does not end in this one.
    fn finish_begun(&mut self, base: u64, piece: &[u8], visitor: &mut impl Visitor) -> Result<bool> {
        while !self.begun.is_empty() {
            match self.look(&self.begun)? {
                Next::More(bytes) => {
                    let from = (self.at + self.begun.len() as u64 - base) as usize;
                    let to = (from + bytes - self.begun.len()).min(piece.len());
                    self.begun.extend_from_slice(&piece[from..to]);
                    if self.begun.len() < bytes {
                        return Ok(false);
                    }
                }
                next => {
                    let begun = std::mem::take(&mut self.begun);
                    self.pass(next, 0, &begun, visitor);
                    self.visit_group(&begun, visitor)?;
                }
            }
        }
        Ok(true)
    }

    fn walk(&mut self, base: u64, piece: &[u8], visitor: &mut impl Visitor) -> Result<()> {
        while let Some(rest) = self.at.checked_sub(base).and_then(|offset| piece.get(offset as usize..)).filter(|rest| !rest.is_empty()) {
            match self.look(rest) {
                Ok(Next::More(_)) => {
                    self.begun.extend_from_slice(rest);
                    break;
                }
                Ok(next) => self.pass(next, (self.at - base) as usize, rest, visitor),
                // What lies before it is whole.
                Err(error) => return self.visit_group(piece, visitor).and(Err(error)),
            }
            if self.group.len() == GROUP {
                self.visit_group(piece, visitor)?;
            }
        }
        self.visit_group(piece, visitor)
    }

    #[inline(always)]
    fn look(&self, bytes: &[u8]) -> Result<Next> {
        next_in(self.engine.layout, self.at, bytes).inspect_err(|_| {
            self.span.reached.set(self.at);
            self.span.is_record_impossible.set(true);
        })
    }

    /// Goes past a record, which is noted if it counts, or a gap. `rest` begins there, `offset` bytes into the piece.
    #[inline(always)]
    fn pass(&mut self, next: Next, offset: usize, rest: &[u8], visitor: &mut impl Visitor) {
        let Next::Record(bytes) = next else {
            self.at = block_end(self.at);
            return;
        };
        if self.counts(self.at, record::word_at(rest, 0)) {
            let scanned = Scanned::new(self.engine, self.at, offset, &rest[..bytes]);
            visitor.expect(scanned.hash);
            self.group.push(scanned);
        }
        self.at += bytes as u64;
    }

    fn visit_group(&mut self, bytes: &[u8], visitor: &mut impl Visitor) -> Result<()> {
        self.group.iter().for_each(|record| visitor.expect_soon(record));
        for record in self.group.drain(..) {
            visitor.visit(&record, record.of(bytes))?;
        }
        Ok(())
    }
}

/// What lies at `at`, by the bytes from there on.
#[inline(always)]
pub(crate) fn next_in(layout: Layout, at: u64, bytes: &[u8]) -> Result<Next> {
    const WORD: usize = 8;
    if bytes.len() < WORD {
        return Ok(Next::More(WORD));
    }
    let header = record::word_at(bytes, 0);
    if header == 0 {
        return Ok(Next::Gap);
    }
    if header & VALID == 0 {
        return Err(Error::corruption(format!("no record where one should be file={LOG} address={at}")));
    }
    let first = record::first_bytes(layout) as usize;
    if bytes.len() < first {
        return Ok(Next::More(first));
    }
    let whole = record::scanned_record_bytes(layout, bytes)
        .ok_or_else(|| Error::corruption(format!("a record of impossible length file={LOG} address={at}")))? as usize;
    Ok(if bytes.len() < whole { Next::More(whole) } else { Next::Record(whole) })
}
