//! Verification at rest: every byte that the last line made durable is read and checked; nothing is changed.

use crate::ahead::of_reading;
use crate::commit::Durability;
use crate::device::{AlignedBuffer, SECTOR_BYTES, Segments, Storage};
use crate::directory::{Directory, holds_log};
use crate::engine::{BUDGET_BYTES_MIN, Engine, Parts};
use crate::error::{Error, Result, is_unreadable};
use crate::expiry::SystemClock;
use crate::image;
use crate::lines;
use crate::log::BLOCK_BYTES;
use crate::manifest::has_lived;
use crate::manifest::{LOG, Manifest, State};
use crate::options::no_manifest;
use crate::recovery::Manner;
use crate::scars;
use crate::traverse::{Scanned, Span, Visitor};
use std::path::Path;
use std::sync::Arc;

/// Damaged places that are named; more are only counted.
const NAMED: usize = 100;

/// What a store's files hold.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Verification {
    /// The number of the last durable line.
    pub line: u64,
    /// Bytes of log that were read.
    pub log_bytes: u64,
    /// Records in it, superseded ones and deletions included.
    pub records: u64,
    /// Crashes that left something in the log which is no part of the store.
    pub scars: u64,
    /// What is wrong, by file and address; at most 100 places.
    pub damage: Vec<String>,
    /// How many places are damaged.
    pub damaged: u64,
}

impl Verification {
    /// True if nothing is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damaged == 0
    }

    fn note(&mut self, error: &Error) {
        self.damaged += 1;
        if self.damage.len() < NAMED {
            self.damage.push(error.to_string());
        }
    }
}

/// Checks the store in the directory `path`, which nobody may have open, and changes nothing; the medium may be one that can only be read. `progress` is told the bytes
/// of log read so far, and all.
///
/// # Errors
/// `Locked`, `Invalid` if there is no store, `Io`. Damage is no error here: it is in the result.
pub fn verify(path: impl AsRef<Path>, progress: impl FnMut(u64, u64)) -> Result<Verification> {
    if !path.as_ref().join(crate::manifest::MANIFEST).exists() {
        if holds_log(path.as_ref()) {
            let mut found = Verification::default();
            found.note(&no_manifest());
            return Ok(found);
        }
        return Err(Error::invalid(format!("there is no store path={}", path.as_ref().display())));
    }
    verify_in(Arc::new(Directory::to_read(path.as_ref())?), progress)
}

/// [`verify`] for a place of your own.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(storage: Arc<dyn Storage>, mut progress: impl FnMut(u64, u64)) -> Result<Verification> {
    let mut found = Verification::default();
    let manifest = match Manifest::open(&*storage, None, false) {
        Ok(Some(manifest)) => manifest,
        Ok(None) if has_lived(&*storage)? => {
            found.note(&no_manifest());
            return Ok(found);
        }
        Ok(None) => return Err(Error::invalid("there is no store")),
        Err(error) if error.is_damage() => {
            found.note(&error);
            match Manifest::open(&*storage, None, true) {
                Ok(Some(manifest)) => manifest,
                _ => return Ok(found),
            }
        }
        Err(error) => return Err(error),
    };
    manifest.spoiled.iter().for_each(|damage| found.note(damage));
    let mut state = manifest.state.clone();
    let engine = resting_engine(&storage, &state)?;
    let advanced = lines::advance(&*storage, engine.log.cold_device()?, &mut state, false);
    if or_note(advanced, &mut found)?.is_none() {
        lines::advance(&*storage, engine.log.cold_device()?, &mut state, true)?;
    }
    let scars = or_note(scars::read(&*storage, state.cut, state.scars, false), &mut found)?.unwrap_or_default();
    (found.line, found.scars) = (state.line, scars.len() as u64);
    if state.image != 0 {
        or_note(image::check(&*storage, state.image, state.identity.store_id), &mut found)?;
    }
    let span = Span::new(state.begin, &state, &scars);
    let total = span.parts().iter().map(|part| part.end - part.start).sum();
    // First every block by itself: a scan ends at the first damage, this does not.
    for part in span.parts() {
        check_blocks(&engine, part, &mut found, &mut |done| progress(done, total))?;
    }
    if found.is_sound() {
        let mut count = Count(0);
        or_note(engine.scan(&span, &mut count), &mut found)?;
        found.records = count.0;
    }
    Ok(found)
}

/// An engine that is never opened: it knows layout, checksums and how to walk the log.
pub(crate) fn resting_engine(storage: &Arc<dyn Storage>, state: &State) -> Result<Engine> {
    Engine::new(Parts {
        layout: state.layout,
        value_width: None,
        budget: BUDGET_BYTES_MIN,
        device: Some(Arc::new(Segments::open(storage, state.segment_bytes, state.begin / BLOCK_BYTES * SECTOR_BYTES as u64)?)),
        home: None,
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
    })
}

/// The result, or `None` if it is damage, which is noted.
fn or_note<T>(result: Result<T>, found: &mut Verification) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => {
            found.note(&error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn check_blocks(engine: &Engine, part: std::ops::Range<u64>, found: &mut Verification, progress: &mut impl FnMut(u64)) -> Result<()> {
    const PIECE: u64 = 256;
    let Some(device) = &engine.log.device else { return Ok(()) };
    let (mut block, end) = (part.start / BLOCK_BYTES, part.end / BLOCK_BYTES);
    let mut buffer = AlignedBuffer::new(PIECE.min(end - block) as usize);
    let mut one = AlignedBuffer::new(1);
    let mut payload = Vec::new();
    while block < end {
        let count = PIECE.min(end - block);
        payload.clear();
        let read = device.read(block * SECTOR_BYTES as u64, &mut buffer.bytes_mut()[..count as usize * SECTOR_BYTES]);
        if read.is_err() || engine.log.append_payloads(block, &buffer, count as usize, &mut payload).is_err() {
            for number in block..block + count {
                payload.clear();
                let read = device.read(number * SECTOR_BYTES as u64, one.bytes_mut()).map_err(|error| match is_unreadable(&error) {
                    true => {
                        Error::corruption(format!("the block cannot be read file={LOG} address={} error={error}", number * BLOCK_BYTES))
                    }
                    false => of_reading(error, number),
                });
                or_note(read.and_then(|()| engine.log.append_payloads(number, &one, 1, &mut payload)), found)?;
            }
        }
        block += count;
        found.log_bytes += count * SECTOR_BYTES as u64;
        progress(found.log_bytes / SECTOR_BYTES as u64 * BLOCK_BYTES);
    }
    Ok(())
}

/// Counts records.
struct Count(u64);

impl Visitor for Count {
    fn visit(&mut self, _: &Scanned, _: &[u8]) -> Result<()> {
        self.0 += 1;
        Ok(())
    }
}
