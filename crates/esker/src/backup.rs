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
//! **From an earlier backup into a new place** ([`backup_from`]): what lies below the earlier cut is taken from there, checked like
//! everything else. A segment file that is full below it gets a second name instead of a copy where the file system can do that: such
//! files are never written again, in the new place or in the old one, only removed. The earlier backup stays as it is.
//!
//! **Only what is new** is right as long as the source's log continues the backup's. Two stores with one past must not be mixed: a
//! backup that is opened and written becomes a store of a lineage of its own (`manifest.rs`), and neither is
//! then a backup of the other.

use crate::ahead::of_reading;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, Segments, Storage, segment_name};
use crate::directory::{self, Directory};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::image;
use crate::lines;
use crate::log::{BLOCK_BYTES, device_offset, device_range};
use crate::manifest::has_lived;
use crate::manifest::{Manifest, State};
use crate::resting::{Control, existing, missing, resting_engine};
use crate::scars::{self, Known, Scar};
use crate::store::Store;
use crate::sync::atomic::Ordering::Acquire;
use crate::sync::lock;
use crate::traverse::Span;
use crate::types::{Key, Value};
use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
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
    /// Bytes of log that the backup had already, or that it shares with an earlier one.
    pub kept_bytes: u64,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Makes a backup in the directory `to` while operations go on. All that had returned before the call is in it. `to` is new, or an
    /// earlier backup of this store; then only what is new is written. The backup opens like any store. Once it has been written to, it is
    /// an independent store, and cannot be added to any more.
    ///
    /// # Errors
    /// As [`Store::commit`]; `Invalid` if `to` is something else; `Locked` if the backup is open; `Corruption` for damage in what is
    /// copied, by address. An earlier backup is what it was then.
    ///
    /// # Cost
    /// Reads and writes the log, or what is new of it. Compaction waits.
    ///
    /// # Examples
    /// ```
    /// # let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    /// # let (directory, copy) = (folder.path(), other.path());
    /// use esker::{Options, Store};
    ///
    /// let store: Store<u64, u64> = Options::new().memory("16MiB").open(directory)?;
    /// store.put(&1, &7)?;
    /// store.snapshot_to(copy)?;
    /// store.put(&1, &8)?;
    /// let as_it_was: Store<u64, u64> = Options::new().memory("16MiB").open(copy)?;
    /// assert_eq!(as_it_was.get(&1)?, Some(7));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn snapshot_to(&self, to: impl AsRef<Path>) -> Result<Backup> {
        into_directory(to.as_ref(), |to| self.engine.snapshot_in(None, to))
    }

    /// As [`Store::snapshot_to`], to a new directory `to`; what has not changed since is taken from an `earlier` backup of this
    /// store, which stays as it is and is not needed afterwards. Where both are in one file system with hard links, full files of log
    /// are shared.
    ///
    /// # Errors
    /// As [`Store::snapshot_to`]; `Invalid` if `to` is a backup already, or `earlier` none of this store or newer than it;
    /// `Corruption` also for damage in `earlier`. What is in `to` is no store then.
    ///
    /// # Cost
    /// Reads all of the log, most of it from `earlier`; writes what is not shared. Compaction waits.
    pub fn snapshot_from(&self, earlier: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Backup> {
        let earlier = existing(earlier.as_ref())?;
        into_directory(to.as_ref(), |to| self.engine.snapshot_in(Some(earlier), to))
    }

    /// [`Store::snapshot_to`] for a place of your own.
    ///
    /// # Errors
    /// As [`Store::snapshot_to`].
    pub fn snapshot_in(&self, to: Arc<dyn Storage>) -> Result<Backup> {
        self.engine.snapshot_in(None, to)
    }

    /// [`Store::snapshot_from`] for places of your own.
    ///
    /// # Errors
    /// As [`Store::snapshot_from`].
    pub fn snapshot_from_in(&self, earlier: Arc<dyn Storage>, to: Arc<dyn Storage>) -> Result<Backup> {
        self.engine.snapshot_in(Some(earlier), to)
    }
}

/// Copies the store in the directory `from`, which nobody may have open, to `to`: a new directory, or an earlier backup of the same store,
/// to which what is new is added. It is as of the store's last durable line. `progress` is told the bytes of log gone through, copied or
/// shared, and all; `Break` ends the call. To copy a store that is open: [`Store::snapshot_to`]. To restore a backup is the same, the other
/// way round.
///
/// # Errors
/// `Locked`; `Invalid` if `from` is no store, or `to` is something other than a backup of it; `Corruption` for damage in what is copied,
/// by address; `Io`; `Cancelled`. A backup in `to` is what it was then; the beginning of a new one is no store.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>, progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<Backup> {
    backup_resting(from.as_ref(), None, to.as_ref(), progress)
}

/// As [`backup`], to a new directory `to`, with what has not changed since taken from the `earlier` backup of the same store. That
/// stays as it is and is not needed afterwards; where both are in one file system that can, full files of log are shared.
///
/// # Errors
/// As [`backup`]; `Invalid` if `to` is a backup already, or `earlier` none of this store or newer than it; `Corruption` also for
/// damage in `earlier`. What is in `to` is no store then.
///
/// # Cost
/// Reads all of the log, most of it from `earlier`; writes what is not shared.
pub fn backup_from(
    from: impl AsRef<Path>,
    earlier: impl AsRef<Path>,
    to: impl AsRef<Path>,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Backup> {
    backup_resting(from.as_ref(), Some(earlier.as_ref()), to.as_ref(), progress)
}

fn backup_resting(from: &Path, earlier: Option<&Path>, to: &Path, progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<Backup> {
    let storage = existing(from)?;
    let mut manifest = Manifest::open(&*storage, None, false)?.ok_or_else(|| missing(&*storage))?;
    let engine = resting_engine(&storage, &manifest.state)?;
    lines::advance(&*storage, engine.log.cold_device()?, &mut manifest.state, false)?;
    let scars = scars::read(&*storage, manifest.state.cut, manifest.state.scars)?;
    let source = Source { engine: &engine, storage: &*storage, state: &manifest.state, scars: &scars };
    let earlier = earlier.map(existing).transpose()?;
    into_directory(to, |to| source.copy_to(earlier, to, progress))
}

/// Copies to the directory `to`, which does not stay if it was made for nothing.
fn into_directory(to: &Path, copy: impl FnOnce(Arc<dyn Storage>) -> Result<Backup>) -> Result<Backup> {
    let is_new = !to.exists();
    let directory = Arc::new(Directory::open(to, true, true)?);
    let copied = copy(directory.clone());
    if is_new && copied.is_err() {
        directory.remove_if_empty();
    }
    copied
}

impl Engine {
    /// A backup of the running store.
    pub(crate) fn snapshot_in(&self, earlier: Option<Arc<dyn Storage>>, to: Arc<dyn Storage>) -> Result<Backup> {
        // Not from inside a closure that compaction runs.
        drop(self.epochs.pin()?);
        let _compaction = self.hold_compaction();
        self.commit()?;
        let home = lock(&self.home).as_ref().map(|home| (home.storage.clone(), home.manifest.state.clone()));
        let Some((storage, mut state)) = home else { return Err(Error::invalid("a store on a bare device cannot be copied")) };
        // A temporary store gives space back without a line that would say so.
        state.begin = state.begin.max(self.log.bounds.begin.load(Acquire));
        let scars: Vec<Scar> = self.scars.all().into_iter().filter(|scar| scar.cut < state.cut).collect();
        Source { engine: self, storage: &*storage, state: &state, scars: &scars }.copy_to(earlier, to, |_, _| ControlFlow::Continue(()))
    }
}

/// An earlier backup, from which is taken what lies below its cut.
struct Earlier {
    storage: Arc<dyn Storage>,
    log: Segments,
    state: State,
}

impl Earlier {
    /// The first sector that it does not have.
    fn end(&self) -> u64 {
        sector(self.state.cut)
    }

    /// Gives the segments that are full below its cut a second name in `to`, those from the sector `begin` on, as far as that
    /// can be done; the sectors of those.
    fn share(&self, to: &dyn Storage, begin: u64, scars: &[Scar]) -> Range<u64> {
        let (Some(from), Some(to)) = (self.storage.path(), to.path()) else { return 0..0 };
        let length = self.state.segment_bytes / SECTOR_BYTES as u64;
        let (first, end) = (begin / length, self.end() / length);
        // Of what lies in a scar as a whole there is no file.
        let is_left_out = |number: u64| scars::parts(scars, number * length * BLOCK_BYTES, (number + 1) * length * BLOCK_BYTES).is_empty();
        let is_shared = |number: &u64| is_left_out(*number) || directory::link(from, to, &segment_name(*number)).is_ok();
        let shared = (first..end).take_while(is_shared).count() as u64;
        first * length..(first + shared) * length
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.log.read(at * SECTOR_BYTES as u64, bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::corruption(format!("its log ends too early address={}", at * BLOCK_BYTES)),
            _ => error.into(),
        })
    }
}

/// Damage is named with where it is.
fn in_earlier(error: Error) -> Error {
    match error {
        Error::Corruption(what) => Error::corruption(format!("in the earlier backup: {what}")),
        Error::Invalid(what) => Error::invalid(format!("in the earlier backup: {what}")),
        error => error,
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
    fn copy_to(
        &self,
        earlier: Option<Arc<dyn Storage>>,
        to: Arc<dyn Storage>,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Backup> {
        let grown = self.backup_in(&to)?;
        let earlier = earlier.map(|storage| self.earlier(storage)).transpose()?;
        if grown.is_some() && earlier.is_some() {
            return Err(Error::invalid("there is a backup already; one that is made from an earlier one goes to a new place"));
        }
        let from = grown.as_ref().map_or(self.state.begin, |grown| grown.state.cut.max(self.state.begin));
        let span = Span::new(from, self.state, self.scars);
        let total = span.parts().iter().map(|part| device_offset(part.end) - device_offset(part.start)).sum();
        let (mut control, mut copied_bytes) = (Control::new(&mut progress, total), 0);
        // Whoever is told can look at what is there before anything is made.
        control.advance(0)?;
        let shared = earlier.as_ref().map_or(0..0, |earlier| earlier.share(&*to, sector(self.state.begin), self.scars));
        let log = Segments::open(&to, self.state.segment_bytes, device_range(self.state.begin))?.without_zeros();
        for part in span.parts() {
            self.copy_part(earlier.as_ref(), &shared, &log, sectors(&part), |bytes, is_copied| {
                copied_bytes += if is_copied { bytes } else { 0 };
                control.advance(bytes)
            })?;
        }
        log.sync()?;
        // What the backup's own line speaks of is not written again.
        let known = grown.as_ref().map_or(0, |grown| self.scars.iter().filter(|scar| scar.cut < grown.state.cut).count());
        scars::add(&*to, known, &self.scars[known..])?;
        // Room for the next one; and somebody may have looked into the backup: what his opening and his close left means nothing.
        scars::end(&*to, self.scars.len(), false)?;
        image::remove_all(&*to, grown.as_ref().map_or(0, |grown| grown.state.image))?;
        // One that the backup has stays: of a copy it is known only behind its end whether it is whole.
        let (image, store_id) = (self.state.image, self.state.identity.store_id);
        let is_named = grown.as_ref().is_some_and(|grown| grown.state.image == image);
        let there = if is_named { Some(image::check(&*to, image, store_id)) } else { None };
        if image != 0 && !matches!(there, Some(Ok(_))) {
            // What is longer than a sound one would end it.
            if let Some(Err(Error::Corruption(_))) = there {
                image::remove_all(&*to, 0)?;
            }
            image::copy(self.storage, &*to, image, store_id)?;
        }
        to.sync()?;
        let mut manifest = match grown {
            Some(grown) => grown,
            None => Manifest::of_backup(&*to, self.state)?,
        };
        let scars = Some(Known::of(self.scars, self.state.cut));
        manifest.write(|state| *state = State { sequence: state.sequence, is_backup: true, scars, ..self.state.clone() })?;
        to.sync()?;
        // What lies below the beginning by now, and older images. The backup is made: what stays the next one removes.
        if manifest.settle_begin().is_ok() {
            let _ = log.discard(0, device_offset(self.state.begin));
        }
        let _ = image::remove_all(&*to, self.state.image);
        let all: u64 = Span::new(self.state.begin, self.state, self.scars).parts().iter().map(|part| part.end - part.start).sum();
        let kept_bytes = device_offset(all).saturating_sub(copied_bytes);
        Ok(Backup { line: self.state.line, copied_bytes, kept_bytes })
    }

    /// The backup that is there, if our log goes on where its own ends.
    fn backup_in(&self, to: &Arc<dyn Storage>) -> Result<Option<Manifest>> {
        let Some(manifest) = Manifest::open(&**to, None, false)? else {
            // What a backup that was cut short has begun may be files of an earlier one's, by a second name.
            return if has_lived(&**to)? { Err(Error::invalid("there is the beginning of a backup that was cut short")) } else { Ok(None) };
        };
        let (ours, theirs) = (self.state, &manifest.state);
        let same = theirs.is_backup && (theirs.identity, theirs.lineage) == (ours.identity, ours.lineage);
        if !same {
            return Err(Error::invalid("there is a store that is no backup of this one, or was written since it was one"));
        }
        if (theirs.cut, theirs.line, theirs.begin) > (ours.cut, ours.line, ours.begin) || theirs.begin > ours.begin {
            return Err(Error::invalid("the backup is newer than the store"));
        }
        // A scar below the cut counts before the slot is written.
        let known = self.scars.iter().filter(|scar| scar.cut < theirs.cut);
        let is_as_known = scars::read(&**to, theirs.cut, theirs.scars)?.iter().eq(known);
        // A slot that was given up may have named an image, whose number comes back.
        let is_same_image = theirs.image == 0 || theirs.image != ours.image || theirs.image_until == ours.image_until;
        if !is_as_known || !is_same_image || !self.goes_on_from(to, theirs)? {
            return Err(Error::invalid("the store has given up something that the backup holds"));
        }
        Ok(Some(manifest))
    }

    /// True if our log has the last block that the backup has: what was copied and never synced a power cut takes without a trace.
    fn goes_on_from(&self, to: &Arc<dyn Storage>, theirs: &State) -> Result<bool> {
        // What lies in a scar neither need have.
        let Some(end) = scars::parts(self.scars, self.state.begin, theirs.cut).last().map(|part| part.end) else { return Ok(true) };
        let last = sector(end) - 1;
        if last <= sector(self.state.begin) {
            return Ok(true);
        }
        let read = |device: &dyn Device| {
            let mut block = AlignedBuffer::new(1);
            device.read(last * SECTOR_BYTES as u64, block.bytes_mut()).map_err(|error| of_reading(error, last))?;
            self.check(last, block.bytes()).map(|()| block)
        };
        let held = read(&Segments::open(to, theirs.segment_bytes, device_range(theirs.begin))?)?;
        Ok(held.bytes() == read(self.engine.log.cold_device()?)?.bytes())
    }

    /// The backup to take from.
    fn earlier(&self, storage: Arc<dyn Storage>) -> Result<Earlier> {
        let manifest = self.backup_in(&storage).map_err(in_earlier)?;
        let state = manifest.ok_or_else(|| Error::invalid("the earlier backup is no store"))?.state;
        let log = Segments::open(&storage, state.segment_bytes, device_range(state.begin))?;
        Ok(Earlier { storage, log, state })
    }

    /// Checks whole blocks and copies them, but those in files that are `shared`.
    fn copy_part(
        &self,
        earlier: Option<&Earlier>,
        shared: &Range<u64>,
        to: &Segments,
        part: Range<u64>,
        mut progress: impl FnMut(u64, bool) -> Result<()>,
    ) -> Result<()> {
        let device = self.engine.log.cold_device()?;
        let earlier_end = earlier.map_or(0, Earlier::end);
        let mut piece = AlignedBuffer::new(PIECE_SECTORS.min(part.end - part.start) as usize);
        let mut at = part.start;
        while at < part.end {
            if self.engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            // A piece comes from one place.
            let end = [earlier_end, shared.start, shared.end].into_iter().filter(|edge| *edge > at).fold(part.end, u64::min);
            let count = PIECE_SECTORS.min(end - at);
            let bytes = &mut piece.bytes_mut()[..count as usize * SECTOR_BYTES];
            match earlier.filter(|_| at < earlier_end) {
                Some(earlier) => earlier.read(at, bytes).and_then(|()| self.check(at, bytes)).map_err(in_earlier)?,
                None => {
                    device.read(at * SECTOR_BYTES as u64, bytes).map_err(|error| of_reading(error, at))?;
                    self.check(at, bytes)?;
                }
            }
            let is_copied = !shared.contains(&at);
            if is_copied {
                to.write(at * SECTOR_BYTES as u64, bytes)?;
            }
            at += count;
            progress(bytes.len() as u64, is_copied)?;
        }
        Ok(())
    }

    fn check(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut blocks = (at..).zip(bytes.chunks_exact(SECTOR_BYTES));
        blocks.try_for_each(|(block, sector)| self.engine.log.verify_block(block, sector).map(drop))
    }
}

fn sector(address: u64) -> u64 {
    address / BLOCK_BYTES
}

fn sectors(part: &Range<u64>) -> Range<u64> {
    sector(part.start)..sector(part.end)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
