//! A store at rest: nobody has it open, and nothing in it is changed. Verification, backups and salvage look at it so.

use crate::ahead::of_reading;
use crate::commit::Durability;
use crate::device::{AlignedBuffer, LOG, SECTOR_BYTES, Segments, Storage};
use crate::directory::{Directory, holds_log, holds_manifest};
use crate::engine::{BUDGET_BYTES_MIN, Engine, Parts};
use crate::error::{Error, Result, is_unreadable};
use crate::expiry::SystemClock;
use crate::lines;
use crate::log::{BLOCK_BYTES, block_ceil, device_range};
use crate::manifest::{Manifest, State, has_lived, no_manifest};
use crate::recovery::Manner;
use crate::scars::{self, Scar};
use crate::types::Layout;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

/// Blocks read together.
const PIECE_BLOCKS: u64 = 256;
/// Of log, between two words about progress.
pub(crate) const PIECE_BYTES: u64 = PIECE_BLOCKS * BLOCK_BYTES;
/// Damaged places that are named; more are only counted.
const NAMED: usize = 100;

pub(crate) struct Resting {
    pub(crate) engine: Engine,
    /// As of the last line that is whole.
    pub(crate) state: State,
    pub(crate) scars: Vec<Scar>,
    /// Of their list some cannot be read: what lies around those is not known to be left out.
    pub(crate) lacks_scars: bool,
    /// A slot of the manifest is lost: it may have told of a later line.
    pub(crate) lacks_slot: bool,
}

/// How far work is, in bytes of log, and whether it is to go on.
pub(crate) struct Control<'a> {
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    done: u64,
    total: u64,
}

impl<'a> Control<'a> {
    pub(crate) fn new(progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>, total: u64) -> Self {
        Self { progress, done: 0, total }
    }

    pub(crate) fn advance(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        // A log may begin within a block, which is read whole.
        match (self.progress)(self.done.min(self.total), self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// Hears of damage; an error of its own ends the look.
pub(crate) type OnDamage<'a> = &'a mut dyn FnMut(&Error) -> Result<()>;

impl Resting {
    /// What there is in spite of damage. The layout must be this one, if one is given.
    ///
    /// # Errors
    /// As [`missing`] without a manifest; `Corruption` if nothing is left of it.
    pub(crate) fn open(storage: Arc<dyn Storage>, types: Option<(Layout, [u64; 2])>, on_damage: OnDamage<'_>) -> Result<Self> {
        let (manifest, lacks_slot) = match Manifest::open(&*storage, types, false) {
            Err(error) if error.is_damage() => {
                let Ok(manifest) = Manifest::open(&*storage, types, true) else { return Err(error) };
                on_damage(&error)?;
                (manifest, true)
            }
            opened => (opened?, false),
        };
        let manifest = manifest.ok_or_else(|| missing(&*storage))?;
        manifest.spoiled.iter().try_for_each(&mut *on_damage)?;
        let mut state = manifest.state.clone();
        let engine = resting_engine(&storage, &state)?;
        let device = engine.log.cold_device()?;
        if or_tell(lines::advance(&*storage, device, &mut state, false), on_damage)?.is_none() {
            lines::advance(&*storage, device, &mut state, true)?;
        }
        let listed = or_tell(scars::read(&*storage, state.cut, state.scars), on_damage)?;
        let lacks_scars = listed.is_none();
        let scars = listed.map_or_else(|| scars::readable(&*storage, state.cut, true), Ok)?;
        Ok(Self { engine, state, scars, lacks_scars, lacks_slot })
    }
}

impl Resting {
    /// Bytes of the log's blocks behind the line that are whole: of lines that a lost slot told of, or of none.
    pub(crate) fn whole_bytes_behind(&self, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
        let behind = block_ceil(self.state.cut)..self.engine.log.cold_device()?.bytes()? / SECTOR_BYTES as u64 * BLOCK_BYTES;
        let mut blocks = behind.end.saturating_sub(behind.start) / BLOCK_BYTES;
        if blocks > 0 {
            self.engine.check_blocks(behind, &mut |_, _| blocks -= 1, progress)?;
        }
        Ok(blocks * BLOCK_BYTES)
    }
}

/// A store's directory, which is there and is only read.
pub(crate) fn existing(path: &Path) -> Result<Arc<dyn Storage>> {
    if holds_manifest(path)? {
        return Ok(Arc::new(Directory::to_read(path)?));
    }
    Err(if holds_log(path) { no_manifest() } else { there_is_none(path) })
}

/// Why there is no manifest: it is lost, or there is no store.
pub(crate) fn missing(storage: &dyn Storage) -> Error {
    match has_lived(storage) {
        Err(error) => error,
        Ok(true) => no_manifest(),
        Ok(false) => Error::invalid("there is no store"),
    }
}

fn there_is_none(path: &Path) -> Error {
    Error::invalid(format!("there is no store path={}", path.display()))
}

/// Counts a damaged place, and names it if not too many are.
pub(crate) fn note(named: &mut Vec<String>, damaged: &mut u64, error: &Error) {
    *damaged += 1;
    if named.len() < NAMED {
        named.push(error.to_string());
    }
}

/// Damaged blocks one behind the other, of one kind: one place. A file that is missing would hide all else.
#[derive(Default)]
pub(crate) struct Run {
    first: String,
    blocks: u64,
    next: u64,
}

impl Run {
    /// [`note`] for a block of the log; in ascending order. What stands before the address tells its kind.
    pub(crate) fn note(&mut self, named: &mut Vec<String>, damaged: &mut u64, block: u64, error: &Error) {
        let told = error.to_string();
        let kind = |told: &str| told.split(" address=").next().map(str::to_owned);
        if self.blocks > 0 && block == self.next && kind(&told) == kind(&self.first) {
            self.blocks += 1;
            // The last one named is this run's, unless too many were.
            let is_ours = |named: &str| named.strip_prefix(&self.first).is_some_and(|rest| rest.is_empty() || rest.starts_with(" blocks="));
            if let Some(named) = named.last_mut().filter(|named| is_ours(named)) {
                *named = format!("{} blocks={}", self.first, self.blocks);
            }
        } else {
            note(named, damaged, error);
            (self.first, self.blocks) = (told, 1);
        }
        self.next = block + 1;
    }
}

/// The result, or `None` if it is damage, which is told.
pub(crate) fn or_tell<T>(result: Result<T>, on_damage: OnDamage<'_>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_damage() => on_damage(&error).map(|()| None),
        result => result.map(Some),
    }
}

/// An engine that is never opened: it knows layout, checksums and how to walk the log.
pub(crate) fn resting_engine(storage: &Arc<dyn Storage>, state: &State) -> Result<Engine> {
    Engine::new(Parts {
        layout: state.layout,
        value_width: None,
        budget: BUDGET_BYTES_MIN,
        device: Some(Arc::new(Segments::open(storage, state.segment_bytes, device_range(state.begin))?)),
        home: None,
        is_temporary: true,
        identity: Some(state.identity),
        durability: Durability::None,
        in_background: false,
        space_amplification: 2.0,
        verifies_reads: true,
        recovery: Manner::default(),
        promotion: false,
        keeps_versions: false,
        clock: Arc::new(SystemClock),
        cache: None,
        index_bytes_max: u64::MAX,
    })
}

impl Engine {
    /// Reads and checks every block of a part of the log by itself: damage does not end it. `on_damage` hears which block and why,
    /// `progress` how many more blocks were read; an error of its own ends the look.
    pub(crate) fn check_blocks(
        &self,
        part: Range<u64>,
        on_damage: &mut dyn FnMut(u64, Error),
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let device = self.log.cold_device()?;
        let (mut block, end) = (part.start / BLOCK_BYTES, part.end / BLOCK_BYTES);
        let mut buffer = AlignedBuffer::new(PIECE_BLOCKS.min(end - block) as usize);
        while block < end {
            let count = PIECE_BLOCKS.min(end - block);
            let sectors = &mut buffer.bytes_mut()[..count as usize * SECTOR_BYTES];
            let are_read = device.read(block * SECTOR_BYTES as u64, sectors).is_ok();
            for (number, sector) in (block..).zip(sectors.chunks_exact_mut(SECTOR_BYTES)) {
                // Where the read as a whole failed each block is read by itself.
                let read = if are_read { Ok(()) } else { device.read(number * SECTOR_BYTES as u64, sector) };
                let read = read.map_err(|error| if is_unreadable(&error) { unreadable(number, &error) } else { of_reading(error, number) });
                match read.and_then(|()| self.log.verify_block(number, sector).map(drop)) {
                    Err(error) if error.is_damage() => on_damage(number, error),
                    read => read?,
                }
            }
            block += count;
            progress(count)?;
        }
        Ok(())
    }
}

fn unreadable(block: u64, error: &std::io::Error) -> Error {
    Error::corruption(format!("the block cannot be read file={LOG} address={} error={error}", block * BLOCK_BYTES))
}
