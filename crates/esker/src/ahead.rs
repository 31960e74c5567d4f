//! Blocks of the log, read ahead of their use.
//!
//! ```text
//! device -> [4 reads under way] -> verified, put in order -> [3 pieces wait] -> `take`
//! ```
//! A thread of its own keeps reads under way and verifies what they bring, so the device never waits for `take`, which gets
//! the pieces in the order of the log. Eight pieces of memory at most. Less than a piece is read at once, without a thread.

use crate::device::{Device, DeviceRead, LOG, ReadSource, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::log::{BLOCK_BYTES, Log};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Reads under way, and pieces that wait for whoever takes them.
const READS: usize = 4;
const PIECES_WAITING: usize = 3;
/// Blocks that are near each other are read by one, and with them what lies between, if it is no more than this: a read costs about as
/// much as five blocks more of a longer one.
const GAP_BLOCKS_MAX: u64 = 4;

/// True if one read of `longest` blocks at most may be for this block, too, which lies no lower than the last of the `run` that it is for.
pub(crate) fn joins_run(run: &Range<u64>, block: u64, longest: u64) -> bool {
    block < run.end + GAP_BLOCKS_MAX && block < run.start + longest
}

/// Hands what these blocks hold to `take(address, bytes)`, in order, `piece_blocks` blocks at once.
///
/// # Errors
/// Those of `take`, which end it; `Io` and `Corruption` of the blocks, when all before them was taken.
pub(crate) fn read_ahead(log: &Log, blocks: Range<u64>, piece_blocks: u64, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut take = |piece: Piece| {
        take(piece.first * BLOCK_BYTES, &piece.read.bytes()[..piece.bytes])?;
        piece.ended.map(|()| piece.read)
    };
    if blocks.is_empty() { Ok(()) } else { read_pieces(log, blocks, piece_blocks, &mut take) }
}

/// Whoever takes a piece gives back its memory. One for all who take: there are many.
type Take<'a> = &'a mut dyn FnMut(Piece) -> Result<DeviceRead>;

fn read_pieces(log: &Log, blocks: Range<u64>, piece_blocks: u64, take: Take<'_>) -> Result<()> {
    let device = log.cold_device()?;
    if blocks.end - blocks.start <= piece_blocks {
        return read_in_turn(log, device, blocks, piece_blocks, take);
    }
    let (send, pieces) = sync_channel(PIECES_WAITING);
    let (give_back, spare): (Sender<DeviceRead>, _) = channel();
    std::thread::scope(|scope| {
        let pending = VecDeque::new();
        let mut ahead =
            Ahead { log, device, blocks: blocks.clone(), piece_blocks, pieces: pending, first: 0, send, spare, is_stopped: false };
        if std::thread::Builder::new().spawn_scoped(scope, move || device.read_stream(&mut ahead)).is_err() {
            return read_in_turn(log, device, blocks, piece_blocks, take);
        }
        for piece in pieces {
            let _ = give_back.send(take(piece)?);
        }
        Ok(())
    })
}

/// A piece after the other, without a thread: where there is only one, or the system grants none.
fn read_in_turn(log: &Log, device: &dyn Device, blocks: Range<u64>, piece_blocks: u64, take: Take<'_>) -> Result<()> {
    for first in blocks.clone().step_by(piece_blocks as usize) {
        let mut read = new_read(&(first..blocks.end.min(first + piece_blocks)), 0);
        let result = device.read(read.offset(), read.bytes_mut());
        take(Piece::open(log, device, read, result))?;
    }
    Ok(())
}

/// What a read brought: so many bytes of log, verified, and why there are not more.
struct Piece {
    read: DeviceRead,
    first: u64,
    bytes: usize,
    ended: Result<()>,
}

impl Piece {
    /// What a block's payload holds is moved together, in place. Where the read as a whole failed each block is read by itself, up to the
    /// one to blame.
    fn open(log: &Log, device: &dyn Device, mut read: DeviceRead, result: io::Result<()>) -> Self {
        let (first, offset) = (read.offset() / SECTOR_BYTES as u64, read.offset());
        let (mut bytes, mut ended) = (0, Ok(()));
        let sectors = read.bytes_mut();
        for at in 0..sectors.len() / SECTOR_BYTES {
            let (block, from) = (first + at as u64, at * SECTOR_BYTES);
            let sector = &mut sectors[from..from + SECTOR_BYTES];
            let there = if result.is_ok() { Ok(()) } else { device.read(offset + from as u64, sector) };
            if let Err(error) = there.map_err(|error| of_reading(error, block)).and_then(|()| log.verify_block(block, sector).map(drop)) {
                ended = Err(error);
                break;
            }
            sectors.copy_within(from..from + BLOCK_BYTES as usize, bytes);
            bytes += BLOCK_BYTES as usize;
        }
        Self { read, first, bytes, ended }
    }
}

/// A file that ends too early is damage like any other.
pub(crate) fn of_reading(error: io::Error, block: u64) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::corruption(format!("the log ends too early file={LOG} address={}", block * BLOCK_BYTES)),
        _ => error.into(),
    }
}

/// What became of a read of a stream.
pub(crate) fn of_stream(read: &DeviceRead, result: io::Result<()>) -> Result<()> {
    result.map_err(|error| of_reading(error, read.offset() / SECTOR_BYTES as u64))
}

/// A read that is done at once, on this thread.
pub(crate) fn read_at_once(log: &Log, mut read: DeviceRead) -> Result<DeviceRead> {
    let result = log.cold_device()?.read(read.offset(), read.bytes_mut());
    of_stream(&read, result)?;
    Ok(read)
}

fn new_read(blocks: &Range<u64>, token: u64) -> DeviceRead {
    DeviceRead::new(blocks.start * SECTOR_BYTES as u64, (blocks.end - blocks.start) as usize, token)
}

/// The reads, handed on in order, however they end.
struct Ahead<'a> {
    log: &'a Log,
    device: &'a dyn Device,
    /// What is still to be read.
    blocks: Range<u64>,
    piece_blocks: u64,
    /// Reads not handed on yet, from token `first` on; `None` while they are under way.
    pieces: VecDeque<Option<Piece>>,
    first: u64,
    send: SyncSender<Piece>,
    /// Buffers that come back.
    spare: Receiver<DeviceRead>,
    is_stopped: bool,
}

impl ReadSource for Ahead<'_> {
    fn next(&mut self) -> Option<DeviceRead> {
        if self.is_stopped || self.blocks.is_empty() || self.pieces.len() == READS {
            return None;
        }
        let blocks = self.blocks.start..self.blocks.end.min(self.blocks.start + self.piece_blocks);
        self.blocks.start = blocks.end;
        let token = self.first + self.pieces.len() as u64;
        self.pieces.push_back(None);
        let spare = self.spare.try_recv().ok().filter(|_| blocks.end - blocks.start == self.piece_blocks);
        Some(spare.map_or_else(|| new_read(&blocks, token), |read| read.again(blocks.start * SECTOR_BYTES as u64, token)))
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        let place = (read.token() - self.first) as usize;
        self.pieces[place] = Some(Piece::open(self.log, self.device, read, result));
        while let Some(Some(_)) = self.pieces.front()
            && let Some(Some(piece)) = self.pieces.pop_front()
        {
            self.first += 1;
            // Behind a failure, or when nobody listens any more, there is nothing to read.
            let is_last = piece.ended.is_err();
            if !self.is_stopped {
                self.is_stopped = self.send.send(piece).is_err() || is_last;
            }
        }
    }
}
