//! Verification at rest: every byte that the last line made durable is read and checked; nothing is changed.

use crate::device::{SECTOR_BYTES, Storage};
use crate::error::{Error, Result};
use crate::image;
use crate::log::BLOCK_BYTES;
use crate::resting::{Control, PIECE_BYTES, Resting, Run, existing, note, or_tell};
use crate::traverse::{Scanned, Span, Visitor};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// What a store's files hold.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Verification {
    /// The number of the last durable line.
    pub line: u64,
    /// Bytes of log that were read.
    pub log_bytes: u64,
    /// Records in it, superseded ones and deletions included; 0 where something is damaged, for then they are not counted.
    pub records: u64,
    /// What crashes, and openings that were told to accept losses, left in the log that is no part of the store.
    pub scars: u64,
    /// What is wrong, by file and address; at most 100 places. Blocks one behind the other, damaged in the same way, are one, and `blocks=`
    /// at its end says how many.
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

    fn note(&mut self, error: &Error) -> Result<()> {
        note(&mut self.damage, &mut self.damaged, error);
        Ok(())
    }
}

/// Checks the store in the directory `path`, which nobody may have open, and changes nothing; the medium may be one that can only be read.
/// `progress` is told the bytes of log read so far, and all, which it is told again and again while the records of a sound log are counted;
/// `Break` ends the call.
///
/// # Errors
/// `Locked`, `Invalid` if there is no store, `Io`, `Cancelled`. Damage is no error here: it is in the result.
///
/// # Cost
/// Reads the image of the index, and the log twice, or once if it is damaged.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let directory = folder.path();
/// use std::ops::ControlFlow;
///
/// # let store: esker::Store<u64, u64> = esker::Options::new().memory("16MiB").open(directory)?;
/// # store.put(&1, &7)?;
/// # store.close()?;
/// let found = esker::verify(directory, |done, all| {
///     eprintln!("{done} of {all} bytes");
///     ControlFlow::Continue(())
/// })?;
/// assert!(found.is_sound());
/// # Ok::<(), esker::Error>(())
/// ```
pub fn verify(path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<Verification> {
    match existing(path.as_ref()) {
        Err(error @ Error::Corruption(_)) => Ok(Verification { damage: vec![error.to_string()], damaged: 1, ..Verification::default() }),
        storage => check(storage?, &mut progress),
    }
}

/// [`verify`] for a place of your own.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(storage: Arc<dyn Storage>, mut progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<Verification> {
    check(storage, &mut progress)
}

/// The same to the end, for tests.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) fn verified(storage: Arc<dyn Storage>) -> Verification {
    verify_in(storage, |_, _| ControlFlow::Continue(())).unwrap()
}

fn check(storage: Arc<dyn Storage>, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Verification> {
    let mut found = Verification::default();
    let opened = Resting::open(storage.clone(), None, &mut |damage| found.note(damage));
    let Resting { engine, state, scars, .. } = match opened {
        Err(error) if error.is_damage() => {
            found.note(&error)?;
            return Ok(found);
        }
        resting => resting?,
    };
    (found.line, found.scars) = (state.line, scars.len() as u64);
    if state.image != 0 {
        or_tell(image::check(&*storage, state.image, state.identity.store_id), &mut |damage| found.note(damage))?;
    }
    let span = Span::new(state.begin, &state, &scars);
    let total = span.parts().iter().map(|part| part.end - part.start).sum();
    let mut control = Control::new(progress, total);
    // First every block by itself: a scan ends at the first damage, this does not.
    let (mut run, mut log_bytes) = (Run::default(), 0);
    for part in span.parts() {
        let mut tell = |blocks| {
            log_bytes += blocks * SECTOR_BYTES as u64;
            control.advance(blocks * BLOCK_BYTES)
        };
        engine.check_blocks(part, &mut |block, damage| run.note(&mut found.damage, &mut found.damaged, block, &damage), &mut tell)?;
    }
    found.log_bytes = log_bytes;
    if found.is_sound() {
        let mut count = Count { records: 0, told: 0, control: &mut control };
        or_tell(engine.scan(&span, &mut count), &mut |damage| found.note(damage))?;
        found.records = count.records;
    }
    Ok(found)
}

/// Counts records.
struct Count<'a, 'p> {
    records: u64,
    /// Where it was last asked whether to go on.
    told: u64,
    control: &'a mut Control<'p>,
}

impl Visitor for Count<'_, '_> {
    fn visit(&mut self, record: &Scanned, _: &[u8]) -> Result<()> {
        self.records += 1;
        if record.at < self.told + PIECE_BYTES {
            return Ok(());
        }
        self.told = record.at;
        self.control.advance(0)
    }
}
