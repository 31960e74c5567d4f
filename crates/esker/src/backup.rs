//! Backups: a consistent copy of a store, while writers run or at rest, and again only what is new since.
//!
//! ```text
//! source   begin ............ the backup's cut ............ cut (a line drawn now) ... tail
//! backup   | it has this already | blocks, verified on the way | scars | image | and last a slot of its manifest
//! ```
//! A line is an exact cut and nothing below it is ever written again, so copying what lies below is all there is to it. Compaction is
//! held meanwhile, or files would go. The backup is a directory that opens as a store.
//!
//! **Cut short**, a first backup is a directory without a manifest, which nothing opens; a later one leaves the backup as it
//! was: all that it wrote lies above the old cut.
//!
//! **Only what is new** is right as long as the source's log continues the backup's. Two stores with one past must not be mixed: a
//! backup that is opened and written becomes a store of a lineage of its own (`manifest.rs`), and neither is
//! then a backup of the other.

use crate::device::{AlignedBuffer, Device, SECTOR_BYTES};
use crate::device::{Segments, Storage};
use crate::directory::Directory;
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::image;
use crate::log::BLOCK_BYTES;
use crate::manifest::{Manifest, State};
use crate::scars::{self, Scar};
use crate::traverse::Span;
use crate::verify::resting_engine;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Sectors copied together.
const PIECE_SECTORS: u64 = 256;

/// What a backup did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Backup {
    /// The number of the durable line that the backup is as of.
    pub line: u64,
    /// Bytes of log copied.
    pub copied_bytes: u64,
    /// Bytes of log that the backup had already.
    pub kept_bytes: u64,
}

/// Copies the store in the directory `from`, which nobody may have open, to `to`: a new directory, or an earlier backup of the
/// same store, to which what is new is added. It is as of the store's last durable line. `progress` is told the bytes of log copied, and
/// all. To copy a store that is open: [`Store::snapshot_to`](crate::Store::snapshot_to). To restore a backup is the same, the other
/// way round.
///
/// # Errors
/// `Locked`; `Invalid` if `from` is no store, or `to` is something other than a backup of it; `Corruption` for damage in what is copied,
/// by address; `Io`. A backup in `to` is what it was then.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>, progress: impl FnMut(u64, u64)) -> Result<Backup> {
    let there_is_none = || Error::invalid(format!("there is no store path={}", from.as_ref().display()));
    if !from.as_ref().join(crate::manifest::MANIFEST).exists() {
        return Err(there_is_none());
    }
    let storage: Arc<dyn Storage> = Arc::new(Directory::open(from.as_ref(), true, true)?);
    let manifest = Manifest::open(&*storage, None, false)?.ok_or_else(there_is_none)?;
    let scars = scars::read(&*storage, manifest.state.cut)?;
    let engine = resting_engine(&storage, &manifest.state)?;
    let source = Source { engine: &engine, storage: &*storage, state: &manifest.state, scars: &scars };
    source.copy_to(target(to.as_ref())?, progress)
}

/// A directory to copy to.
pub(crate) fn target(to: &Path) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(Directory::open(to, true, true)?))
}

impl Engine {
    /// A backup of the running store.
    pub(crate) fn snapshot_in(&self, to: Arc<dyn Storage>) -> Result<Backup> {
        let _compaction = self.hold_compaction();
        self.commit()?;
        let home = lock(&self.home).as_ref().map(|home| (home.storage.clone(), home.manifest.state.clone()));
        let Some((storage, state)) = home else { return Err(Error::invalid("a store on a bare device cannot be copied")) };
        let scars: Vec<Scar> = lock(&self.compaction.scars).iter().copied().filter(|scar| scar.cut < state.cut).collect();
        Source { engine: self, storage: &*storage, state: &state, scars: &scars }.copy_to(to, |_, _| ())
    }
}

/// What is copied: everything below a durable line.
struct Source<'a> {
    engine: &'a Engine,
    storage: &'a dyn Storage,
    state: &'a State,
    scars: &'a [Scar],
}

impl Source<'_> {
    fn copy_to(&self, to: Arc<dyn Storage>, mut progress: impl FnMut(u64, u64)) -> Result<Backup> {
        let earlier = self.earlier(&*to)?;
        let from = earlier.as_ref().map_or(self.state.begin, |earlier| earlier.state.cut.max(self.state.begin));
        let span = Span::new(from, self.state, self.scars);
        let total = span.parts().iter().map(|part| sectors(part).end - sectors(part).start).sum::<u64>() * SECTOR_BYTES as u64;
        let log = Segments::open(&to, self.state.segment_bytes, sector(self.state.begin) * SECTOR_BYTES as u64)?;
        let mut copied_bytes = 0;
        for part in span.parts() {
            self.copy_part(&log, sectors(&part), |bytes| {
                copied_bytes += bytes;
                progress(copied_bytes, total);
            })?;
        }
        log.sync()?;
        for (known, scar) in self.scars.iter().enumerate() {
            scars::add(&*to, known, *scar)?;
        }
        if self.state.image != 0 {
            self.copy_image(&*to)?;
        }
        to.sync()?;
        let mut manifest = match earlier {
            Some(earlier) => earlier,
            None => Manifest::of_backup(&*to, self.state)?,
        };
        manifest.write(|state| *state = State { sequence: state.sequence, is_backup: true, ..self.state.clone() })?;
        to.sync()?;
        // What lies below the beginning by now, and older images.
        log.discard(0, sector(self.state.begin) * SECTOR_BYTES as u64)?;
        image::remove_all(&*to, self.state.image)?;
        let all: u64 = Span::new(self.state.begin, self.state, self.scars).parts().iter().map(|part| part.end - part.start).sum();
        let kept_bytes = (all / BLOCK_BYTES * SECTOR_BYTES as u64).saturating_sub(copied_bytes);
        Ok(Backup { line: self.state.line, copied_bytes, kept_bytes })
    }

    /// The backup that is there, if our log goes on where its own ends.
    fn earlier(&self, to: &dyn Storage) -> Result<Option<Manifest>> {
        let Some(manifest) = Manifest::open(to, None, false)? else { return Ok(None) };
        let (ours, theirs) = (self.state, &manifest.state);
        let same = theirs.is_backup && (theirs.identity, theirs.lineage) == (ours.identity, ours.lineage);
        if !same {
            return Err(Error::invalid("there is a store already, and it is no backup of this one"));
        }
        if (theirs.cut, theirs.line, theirs.begin) > (ours.cut, ours.line, ours.begin) || theirs.begin > ours.begin {
            return Err(Error::invalid("the backup is newer than the store"));
        }
        Ok(Some(manifest))
    }

    /// Copies whole blocks, each checked on the way.
    fn copy_part(&self, to: &Segments, part: Range<u64>, mut progress: impl FnMut(u64)) -> Result<()> {
        let log = &self.engine.log;
        let device = log.cold_device()?;
        let mut piece = AlignedBuffer::new(PIECE_SECTORS.min(part.end - part.start) as usize);
        let mut at = part.start;
        while at < part.end {
            if self.engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            let count = PIECE_SECTORS.min(part.end - at);
            let bytes = &mut piece.bytes_mut()[..count as usize * SECTOR_BYTES];
            device.read(at * SECTOR_BYTES as u64, bytes)?;
            for (block, sector) in (at..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                log.verify_block(block, sector)?;
            }
            to.write(at * SECTOR_BYTES as u64, bytes)?;
            at += count;
            progress(bytes.len() as u64);
        }
        Ok(())
    }

    fn copy_image(&self, to: &dyn Storage) -> Result<()> {
        image::check(self.storage, self.state.image, self.state.identity.store_id)?;
        let name = image::name(self.state.image);
        let (source, copy) = (self.storage.open(&name)?, to.open(&name)?);
        let end = source.bytes()? / SECTOR_BYTES as u64;
        let mut piece = AlignedBuffer::new(PIECE_SECTORS.min(end) as usize);
        for at in (0..end).step_by(PIECE_SECTORS as usize) {
            let bytes = &mut piece.bytes_mut()[..PIECE_SECTORS.min(end - at) as usize * SECTOR_BYTES];
            source.read(at * SECTOR_BYTES as u64, bytes)?;
            copy.write(at * SECTOR_BYTES as u64, bytes)?;
        }
        Ok(copy.sync()?)
    }
}

fn sector(address: u64) -> u64 {
    address / BLOCK_BYTES
}

fn sectors(part: &Range<u64>) -> Range<u64> {
    sector(part.start)..sector(part.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStorage, Options, Store};
    use std::sync::atomic::{AtomicBool, Ordering::*};

    fn open(files: &Arc<MemoryStorage>) -> Store<u64, u64> {
        Options::new().memory("16MiB").open_in(files.clone()).unwrap()
    }

    /// Each pair of keys is written by one thread, the second after the first: in a consistent copy the second is never ahead.
    #[test]
    fn a_copy_taken_while_threads_write_is_a_cut_and_grows_by_what_is_new() {
        let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
        let (store, stop) = (open(&files), AtomicBool::new(false));
        (0..300_000u64).for_each(|n| store.put(&(n | 1 << 40), &n).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    for n in (0u64..).take_while(|_| !stop.load(Relaxed)) {
                        (0..2).for_each(|half| store.put(&((n % 5000) << 8 | thread << 1 | half), &n).unwrap());
                    }
                });
            }
            for round in 0..6 {
                std::thread::sleep(std::time::Duration::from_millis(5));
                if round == 3 {
                    store.save_index().unwrap();
                    store.compact().unwrap();
                }
                let done = store.snapshot_in(copy.clone()).unwrap();
                assert!(round == 0 || round >= 3 || done.kept_bytes > done.copied_bytes, "{done:?} in round {round}");
                let found = crate::verify_in(copy.clone(), |_, _| {}).unwrap();
                assert!(found.is_sound() && found.line == done.line, "{found:?}");
                // A copy of the copy: opened, it would be a store of its own.
                let opened = open(&Arc::new(copy.copy()));
                (0..300_000u64).step_by(77).for_each(|n| assert_eq!(opened.get(&(n | 1 << 40)).unwrap(), Some(n)));
                for key in (0..5000u64).flat_map(|n| [n << 8, n << 8 | 2]) {
                    let (first, second) = (opened.get(&key).unwrap(), opened.get(&(key | 1)).unwrap());
                    assert!(second <= first && first.unwrap_or(0) - second.unwrap_or(0) <= 5000, "{first:?} {second:?}");
                }
            }
            stop.store(true, Relaxed);
        });
    }

    #[test]
    fn what_is_no_backup_of_this_store_is_refused() {
        let (files, other, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
        let (store, stranger) = (open(&files), open(&other));
        store.put(&1, &1).unwrap();
        let snapshot = |store: &Store<u64, u64>, to: &Arc<MemoryStorage>| store.snapshot_in(to.clone());
        snapshot(&store, &copy).unwrap();
        assert!(matches!(snapshot(&stranger, &copy), Err(Error::Invalid(_))));
        assert!(matches!(snapshot(&store, &other), Err(Error::Invalid(_))));
        // Looking changes nothing; writing makes it a store of its own.
        drop(open(&Arc::new(copy.copy())));
        snapshot(&store, &copy).unwrap();
        let restored = open(&copy);
        restored.put(&2, &2).unwrap();
        restored.close().unwrap();
        store.put(&3, &3).unwrap();
        let refused = snapshot(&store, &copy).unwrap_err().to_string();
        assert!(refused.contains("no backup of this one"), "{refused}");
        assert_eq!(open(&copy).get(&2).unwrap(), Some(2));
    }

    #[test]
    fn damage_is_not_copied() {
        let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
        let store = open(&files);
        (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
        store.commit().unwrap();
        let log = files.open("esker.log.00000000").unwrap();
        let mut sector = AlignedBuffer::new(1);
        log.read(8192, sector.bytes_mut()).unwrap();
        sector.bytes_mut()[9] ^= 1;
        log.write(8192, sector.bytes()).unwrap();
        assert!(matches!(store.snapshot_in(copy.clone()), Err(Error::Corruption(_))));
        assert!(!copy.list().unwrap().iter().any(|name| name == crate::manifest::MANIFEST));
    }
}
