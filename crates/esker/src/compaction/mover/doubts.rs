//! Doubts: records whose entry leads to another cold record. One of a newer key's, perhaps, or of another one's.
//!
//! They are gathered for a stretch, or until they take their part of the log's memory, and settled in the order of the records that are
//! read for them, run by run of blocks, some reads at a time.

use super::{Mover, is_deletion};
use crate::ahead::{joins_run, of_stream};
use crate::copies::{Newest, Original};
use crate::descent;
use crate::device::{DeviceRead, ReadSource, Runs, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::index::Seen;
use crate::list::List;
use crate::log::BLOCK_BYTES;
use crate::record::{self, ABSENT, ADDRESS_MASK, VALID};
use crate::sync::atomic::Ordering::*;
use crate::types::Layout;
use std::io;
use std::mem::{replace, take};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The part of the log's budget that doubts may take besides it.
const DOUBT_PART: u64 = 128;
/// Reads at a time that settle doubts. Others read from the device, too; but if it cannot do both, the log must not grow without end:
/// from a quarter beyond what is allowed there are more, and four times as many at the double.
const DOUBT_READS: f64 = 16.0;
const DOUBT_READS_MAX: f64 = 64.0;
/// The longest run of blocks that are read by one.
const RUN_BLOCKS_MAX: u64 = 8;
/// Blocks under way, whatever the runs: a quarter of a mebibyte.
const UNDER_WAY_BLOCKS_MAX: usize = 64;

/// Those of a stretch, and their keys.
pub(super) struct Doubts {
    list: List<Doubt>,
    keys: List<u8>,
    buffers: Runs,
}

/// Small, for there are many.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Doubt {
    /// The cold record that the entry leads to.
    other: u64,
    /// From the beginning of the stretch.
    at: u32,
    /// In `keys`.
    key_start: u32,
    key_bytes: u32,
    what: u32,
}

/// Nothing is behind it.
const ENDS_CHAIN: u32 = 1;
const IS_DELETION: u32 = 2;
/// The other one's entry says that somebody guessed.
const IS_GUESSED: u32 = 4;

impl Doubt {
    /// The one that is read for it.
    fn block(&self) -> u64 {
        self.other / BLOCK_BYTES
    }

    fn is(&self, what: u32) -> bool {
        self.what & what != 0
    }
}

impl Doubts {
    pub(super) fn new() -> Self {
        Self { list: List::new(), keys: List::new(), buffers: Runs::default() }
    }

    fn key_of(&self, doubt: &Doubt) -> &[u8] {
        &self.keys[doubt.key_start as usize..(doubt.key_start + doubt.key_bytes) as usize]
    }

    /// Memory that they take.
    fn bytes(&self) -> u64 {
        (self.list.len() * size_of::<Doubt>() + self.keys.len()) as u64
    }
}

impl Mover<'_> {
    pub(super) fn doubt(&mut self, of: &Original<'_>, seen: &Seen, other: u64) {
        let key = of.key(self.engine.layout);
        // A stretch and the keys of its doubts are far shorter than 4 GiB.
        let (key_start, key_bytes) = (self.doubts.keys.len() as u32, key.len() as u32);
        self.doubts.keys.extend(key);
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let is_guessed = seen.is_guessed() && seen.address() == other;
        let what = flag(self.is_gone(of.previous()), ENDS_CHAIN) | flag(is_deletion(of.bytes), IS_DELETION) | flag(is_guessed, IS_GUESSED);
        self.doubts.list.extend(&[Doubt { other, at: (of.at - self.from) as u32, key_start, key_bytes, what }]);
    }

    /// Where most entries are shared nearly every record is in doubt; the doubts of a stretch may be as long as it is.
    pub(super) fn settle_if_many(&mut self) -> Result<()> {
        if self.doubts.bytes() > self.engine.log.budget.load(Relaxed) / DOUBT_PART { self.settle_all() } else { Ok(()) }
    }

    /// Leaves no doubt.
    pub(in crate::compaction) fn settle_all(&mut self) -> Result<()> {
        while !self.doubts.list.is_empty() {
            self.settle()?;
        }
        self.doubts.keys.clear();
        Ok(())
    }

    /// Reads, in the order of their addresses, the records that doubtful ones may have been superseded by. Few are doubtful again
    /// afterwards.
    fn settle(&mut self) -> Result<()> {
        let mut doubtful = replace(&mut self.doubts.list, List::new());
        doubtful.sort_unstable_by_key(|doubt| doubt.other);
        let Some(device) = &self.engine.log.device else { return Ok(()) };
        let buffers = take(&mut self.doubts.buffers);
        let late = self.engine.taken_to_allowed() - 1.25;
        let at_a_time = (DOUBT_READS * (1.0 + 4.0 * late)).clamp(DOUBT_READS, DOUBT_READS_MAX) as usize;
        let mut settling = Settling {
            mover: self,
            doubtful: &doubtful,
            next: 0,
            under_way: 0,
            blocks_under_way: 0,
            at_a_time,
            buffers,
            slow: Vec::new(),
            result: Ok(()),
        };
        device.read_stream(&mut settling);
        let Settling { buffers, slow, result, .. } = settling;
        self.doubts.buffers = buffers;
        result?;
        for doubt in slow {
            if self.engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            // Read by read, and they may be many.
            self.engine.keep_up();
            self.settle_slowly(doubt)?;
        }
        Ok(())
    }

    /// Another key's record, or one that reaches into the next block: walk the chain.
    fn settle_slowly(&mut self, doubt: &Doubt) -> Result<()> {
        let key = self.doubts.key_of(doubt).to_vec();
        let (at, hash) = (self.from + u64::from(doubt.at), self.engine.hash_of(&key));
        // From where the entry leads now: a newer record may have come and gone cold since the doubt arose.
        let Some(first) = self.cold_part(hash, &key)? else { return Ok(()) };
        if let Some(bytes) = descent::newest_bytes(self.engine, first, &key, at)? {
            // Should something newer have gone cold since, it is doubtful again, or dead.
            self.consider(&Original { at, hash, bytes: &bytes }, Some(first))?;
        }
        Ok(())
    }

    /// The first cold record of the key's chain; `None` if memory knows the key, or nobody does.
    fn cold_part(&self, hash: u64, key: &[u8]) -> Result<Option<u64>> {
        let engine = self.engine;
        loop {
            let _pin = engine.epochs.pin_anyway()?;
            let seen = engine.index.lookup(hash);
            match engine.newest(&seen, key) {
                Newest::At(_) => return Ok(None),
                _ if !engine.index.is_settled(&seen) => {}
                Newest::Cold(first) => return Ok(Some(first)),
                Newest::Nowhere => return Ok(None),
            }
        }
    }
}

/// Doubts that are settled by what the device has: a source of its reads, run by run of blocks.
struct Settling<'m, 'e, 'd> {
    mover: &'m Mover<'e>,
    /// In the order of the blocks that are read for them.
    doubtful: &'d [Doubt],
    /// The first one whose run was not asked for yet.
    next: usize,
    under_way: usize,
    blocks_under_way: usize,
    at_a_time: usize,
    buffers: Runs,
    /// Those that another key's record, or none that is whole, was read for; or nothing.
    slow: Vec<&'d Doubt>,
    result: Result<()>,
}

impl<'d> Settling<'_, '_, 'd> {
    /// The doubts from there on that one read is for.
    fn of_run(&self, from: usize) -> &'d [Doubt] {
        let rest = &self.doubtful[from..];
        let mut run = rest[0].block()..rest[0].block() + 1;
        let is_near = |doubt: &&Doubt| {
            let is_near = joins_run(&run, doubt.block(), RUN_BLOCKS_MAX);
            run.end = doubt.block() + 1;
            is_near
        };
        &rest[..rest.iter().take_while(is_near).count()]
    }

    fn settle(&mut self, doubts: &'d [Doubt], read: &DeviceRead) -> Result<()> {
        let Mover { engine, from, .. } = self.mover;
        let first = doubts[0].block();
        for doubts in doubts.chunk_by(|one, next| one.block() == next.block()) {
            let block = doubts[0].block();
            let sector = &read.bytes()[(block - first) as usize * SECTOR_BYTES..][..SECTOR_BYTES];
            let payload = engine.log.verify_block(block, sector)?;
            for doubt in doubts {
                let other = &payload[(doubt.other % BLOCK_BYTES) as usize..];
                let key = self.mover.doubts.key_of(doubt);
                if !is_record_of(engine.layout, other, key) {
                    self.slow.push(doubt);
                    continue;
                }
                let (hash, follows) = (engine.hash_of(key), record::word_at(other, 0) & ADDRESS_MASK == from + u64::from(doubt.at));
                if doubt.is(IS_GUESSED) && (doubt.is(IS_DELETION) || follows) {
                    let is_deletion = record::word_at(other, 0) & ABSENT != 0;
                    let guessed = || {
                        let bytes = record::scanned_record_bytes(engine.layout, other).unwrap_or(0);
                        engine.guessed_bytes(bytes, is_deletion, key.len())
                    };
                    self.mover.settle_guess(hash, doubt.other, doubt.is(IS_DELETION).then(guessed));
                }
                if doubt.is(ENDS_CHAIN) && follows {
                    // These two are all of the chain, so the next one that dies need not be asked about.
                    engine.index.confirm_sole(hash, doubt.other);
                }
            }
        }
        Ok(())
    }
}

impl ReadSource for Settling<'_, '_, '_> {
    fn next(&mut self) -> Option<DeviceRead> {
        let is_busy = self.under_way == self.at_a_time || self.blocks_under_way + RUN_BLOCKS_MAX as usize > UNDER_WAY_BLOCKS_MAX;
        if self.result.is_err() || self.next == self.doubtful.len() || is_busy {
            return None;
        }
        if self.mover.engine.epochs.is_closed() {
            self.result = Err(Error::Closed);
            return None;
        }
        self.mover.engine.keep_up();
        let (token, doubts) = (self.next as u64, self.of_run(self.next));
        let (first, last) = (doubts[0].block(), doubts[doubts.len() - 1].block());
        let blocks = (last - first + 1) as usize;
        self.next += doubts.len();
        self.under_way += 1;
        self.blocks_under_way += blocks;
        Some(self.buffers.read(first * SECTOR_BYTES as u64, blocks, token))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        self.under_way -= 1;
        self.blocks_under_way -= read.bytes().len() / SECTOR_BYTES;
        let doubts = self.of_run(read.token() as usize);
        let settled = match result {
            // A gap may lead beyond the end of a file that a crash left short, or into damage that is nobody's.
            Err(_) if read.bytes().len() > SECTOR_BYTES => {
                self.slow.extend(doubts);
                Ok(())
            }
            result => of_stream(&read, result).and_then(|()| self.settle(doubts, &read)),
        };
        self.result = replace(&mut self.result, Ok(())).and(settled);
        self.buffers.take_back(read);
    }
}

/// True if these bytes begin with a whole header and key, and the key is this one.
fn is_record_of(layout: Layout, bytes: &[u8], key: &[u8]) -> bool {
    if bytes.len() < record::BYTES_HEADER_BYTES as usize || record::word_at(bytes, 0) & VALID == 0 {
        return false;
    }
    bytes.get(record::key_range(layout, bytes)) == Some(key)
}
