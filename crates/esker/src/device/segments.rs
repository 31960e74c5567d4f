//! The log as segment files: one range of bytes over files of a fixed length.
//!
//! ```text
//! esker.log.00000007   esker.log.00000008   esker.log.00000009        byte b lies in file b / length, at b mod length
//! | begin somewhere    | ...                | the last one ends anywhere
//! ```
//! * **Made** by the first write that reaches them. A sync makes names durable before it returns, if any is new: a line never
//!   speaks of a file that a power cut could take away whole.
//! * **Removed** whole, once nothing in them is needed (`discard`), the oldest first. Nobody syncs that: a file that
//!   comes back after a power cut lies below the log's beginning, and the next opening removes it again.
//! * **Below the first file that is kept are zeros**, as in a hole: a reader that was on its way there finds no valid block,
//!   and looks whether the log has begun to begin later. Above it, what is missing is an error.
//! * **Zeros ahead.** A file that grows by a sector with each sync makes its file system write what it knows of the file each time;
//!   that took longer than the sector. So behind short writes that follow each other zeros are written, as many as were written so
//!   far, and the next ones lie within the file. Zeros at the end of the last file mean nothing (`recovery.rs`).
//! * **Handles** are opened when they are needed and at most [`HANDLES_MAX`] are kept, the newest segments' first; besides, those of files
//!   that a sync is owed, and where these become [`OWED_MAX`] all but the newest are synced at once, and all where the system grants no
//!   more files. So however long the log, and whoever writes it without a line, the process does not run out of them. A read that is under
//!   way holds its file itself. A handle for reading only is nothing that is written or synced by; it can be had where the file system
//!   refuses to be written any more.

use super::buffer::{Sector, sector_bytes};
use super::{Device, ReadSource, SECTOR_BYTES, Storage, read_one_by_one};
use crate::error::{about, for_good, is_for_now, is_out_of_files, is_unreadable, store_closed};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// The log, as errors name it.
pub(crate) const LOG: &str = "esker.log";
/// The names of the files, before their numbers.
pub(crate) const PREFIX: &str = "esker.log.";
/// A quarter of what a process may open where nobody raised the limit.
const HANDLES_MAX: usize = 256;
/// Files written and not synced.
const OWED_MAX: usize = 128;
/// Writes up to this length, in bytes, are short.
const SHORT_BYTES: usize = 64 << 10;
/// Zeros written ahead at most.
pub(crate) const ZEROS_BYTES_MAX: u64 = 256 << 10;
/// In the program itself: a buffer made each time would be memory beyond the budget.
static ZEROS: [Sector; SHORT_BYTES / SECTOR_BYTES] = [Sector([0; SECTOR_BYTES]); SHORT_BYTES / SECTOR_BYTES];

/// What a file's number makes its name.
pub(crate) fn name(number: u64) -> String {
    format!("{PREFIX}{number:08}")
}

fn number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(PREFIX)?.parse().ok()?;
    (self::name(number) == name).then_some(number)
}

/// The numbers of the segments in a place.
fn numbers(storage: &dyn Storage) -> io::Result<Vec<u64>> {
    Ok(storage.list()?.iter().filter_map(|name| number(name)).collect())
}

pub(crate) struct Segments {
    /// Whoever closes the store lets go of its directory: we do not hold it.
    storage: Weak<dyn Storage>,
    segment_bytes: u64,
    files: RwLock<Files>,
    zeros: Mutex<Zeros>,
    has_zeros: bool,
    /// What the next sync settles.
    owed: Mutex<Owed>,
    /// Held while one goes on, so that no later one returns earlier. True once one has failed: the system tells of a failure once, and what
    /// was asked again would seem to be settled.
    syncing: Mutex<bool>,
}

struct Files {
    /// All below were given back.
    first: u64,
    known: BTreeSet<u64>,
    open: BTreeMap<u64, Handle>,
}

struct Handle {
    device: Arc<dyn Device>,
    is_to_write: bool,
}

/// Where the last short write's file ends, and how much short writes have come to that follow each other.
#[derive(Default)]
struct Zeros {
    number: u64,
    until: u64,
    short_bytes: u64,
    was_short: bool,
}

#[derive(Default)]
struct Owed {
    written: BTreeMap<u64, Arc<dyn Device>>,
    is_name_new: bool,
}

impl Segments {
    /// The segments in `storage` of a log that lies within `log`: those that end below it count for nothing, and one that begins behind
    /// it is refused.
    pub(crate) fn open(storage: &Arc<dyn Storage>, segment_bytes: u64, log: Range<u64>) -> io::Result<Self> {
        let known: BTreeSet<u64> = numbers(&**storage)?.into_iter().collect();
        if let Some(last) = known.last().filter(|last| last.checked_mul(segment_bytes).is_none_or(|offset| offset >= log.end)) {
            return Err(about(io::Error::new(io::ErrorKind::InvalidData, "no log is so long"), format_args!("file={}", name(*last))));
        }
        let files = RwLock::new(Files { first: log.start / segment_bytes, known, open: BTreeMap::new() });
        let (zeros, owed, syncing) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { storage: Arc::downgrade(storage), segment_bytes, files, zeros, has_zeros: true, owed, syncing })
    }

    /// For who writes once and syncs once: no zeros ahead.
    pub(crate) fn without_zeros(self) -> Self {
        Self { has_zeros: false, ..self }
    }

    fn storage(&self) -> io::Result<Arc<dyn Storage>> {
        self.storage.upgrade().ok_or_else(store_closed)
    }

    /// Makes the next sync settle what an earlier process may have left loose from `offset` on, the names included; where a loss is
    /// accepted, but for files that cannot be opened, which are one.
    pub(crate) fn doubt_from(&self, offset: u64, accept_loss: bool) -> io::Result<()> {
        let doubted: Vec<u64> = self.read_files().known.range(offset / self.segment_bytes..).copied().collect();
        for number in doubted {
            let device = match self.with_ours(|| self.open_file(number, true)) {
                Err(error) if accept_loss && is_unreadable(&error) => continue,
                device => device?,
            };
            self.owed().written.extend(device.map(|device| (number, device)));
            self.settle_many()?;
        }
        self.owed().is_name_new = true;
        Ok(())
    }

    fn read_files(&self) -> RwLockReadGuard<'_, Files> {
        self.files.read().unwrap_or_else(|e| e.into_inner())
    }

    fn write_files(&self) -> RwLockWriteGuard<'_, Files> {
        self.files.write().unwrap_or_else(|e| e.into_inner())
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The handle of a file, `None` if it was given back.
    fn file(&self, number: u64) -> io::Result<Option<Arc<dyn Device>>> {
        let open = self.read_files().open.get(&number).map(|handle| handle.device.clone());
        if open.is_some() { Ok(open) } else { self.with_ours(|| self.open_file(number, false)) }
    }

    /// What opens a file, where need be with those given up that are only kept for a sync.
    fn with_ours<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match open() {
            Err(error) if is_out_of_files(&error) && !self.owed().written.is_empty() => {
                self.settle_all_but(None).map_err(for_good)?;
                open()
            }
            opened => opened,
        }
    }

    #[cold]
    fn open_file(&self, number: u64, is_to_write: bool) -> io::Result<Option<Arc<dyn Device>>> {
        let mut files = self.write_files();
        if number < files.first {
            return Ok(None);
        }
        // Opening would make it.
        if !files.known.contains(&number) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("there is no file {}", name(number))));
        }
        files.open(number, &*self.storage()?, is_to_write).map(Some)
    }

    /// The handle of a file to be written, made if it is not there.
    fn file_to_write(&self, number: u64) -> io::Result<Arc<dyn Device>> {
        if let Some(handle) = self.read_files().open.get(&number).filter(|handle| handle.is_to_write) {
            return Ok(handle.device.clone());
        }
        let mut files = self.write_files();
        let device = files.open(number, &*self.storage()?, true)?;
        self.owed().is_name_new |= files.known.insert(number);
        Ok(device)
    }

    /// The files that `[offset, offset + bytes)` lies in: number, offset there, and which of the bytes.
    fn parts(&self, offset: u64, bytes: usize) -> impl Iterator<Item = (u64, u64, Range<usize>)> + use<> {
        let length = self.segment_bytes;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let count = ((length - at % length) as usize).min(bytes - done);
            done += count;
            (count > 0).then(|| (at / length, at % length, done - count..done))
        })
    }

    /// Makes room in a file behind a write that ends at `end`, for those that follow, if they are likely to be short.
    fn write_zeros(&self, number: u64, device: &dyn Device, end: u64, bytes: usize) -> io::Result<()> {
        let mut zeros = self.zeros.lock().unwrap_or_else(|e| e.into_inner());
        let (was_short, is_short) = (zeros.was_short, bytes <= SHORT_BYTES);
        zeros.was_short = is_short;
        zeros.short_bytes = if was_short && is_short { zeros.short_bytes + bytes as u64 } else { 0 };
        let is_within = zeros.number == number && end <= zeros.until;
        let count = zeros.short_bytes.min(ZEROS_BYTES_MAX).min(self.segment_bytes - end);
        // A short one behind a long one is its end; and nothing that is there already is written over.
        if is_within || count == 0 || device.bytes()? > end {
            return Ok(());
        }
        (zeros.number, zeros.until) = (number, end);
        while zeros.until < end + count {
            let part = ZEROS.len().min(((end + count - zeros.until) / SECTOR_BYTES as u64) as usize);
            match device.write(zeros.until, sector_bytes(&ZEROS[..part])) {
                Ok(()) => zeros.until += (part * SECTOR_BYTES) as u64,
                // It was only to be quicker. What may be told of earlier writes must not be passed over.
                Err(error) if is_for_now(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Where many files are owed a sync, all but the newest get it now. As a sync: no later one returns earlier.
    fn settle_many(&self) -> io::Result<()> {
        let newest = {
            let owed = self.owed();
            if owed.written.len() < OWED_MAX {
                return Ok(());
            }
            owed.written.last_key_value().map(|(number, _)| *number)
        };
        self.settle_all_but(newest)
    }

    fn settle_all_but(&self, kept: Option<u64>) -> io::Result<()> {
        let mut has_failed = self.syncing();
        let written = {
            let mut owed = self.owed();
            let mut written = std::mem::take(&mut owed.written);
            owed.written.extend(kept.and_then(|number| written.remove_entry(&number)));
            written
        };
        self.settle(&mut has_failed, &Owed { written, is_name_new: false })
    }

    fn syncing(&self) -> MutexGuard<'_, bool> {
        self.syncing.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn settle(&self, has_failed: &mut bool, owed: &Owed) -> io::Result<()> {
        if *has_failed {
            return Err(io::Error::other("an earlier sync has failed"));
        }
        let sync_names = || if owed.is_name_new { self.storage()?.sync() } else { Ok(()) };
        // Until it is known: a device is foreign code, and may panic.
        *has_failed = true;
        // The bug that "all that was written, whenever that was" excludes: what was written out before a line is not synced by it.
        let skipped = if crate::is_planted("newest_synced") { owed.written.len().saturating_sub(1) } else { 0 };
        let settled = owed.written.values().skip(skipped).try_for_each(|device| device.sync()).and_then(|()| sync_names());
        *has_failed = settled.is_err();
        settled
    }
}

impl Files {
    fn open(&mut self, number: u64, storage: &dyn Storage, is_to_write: bool) -> io::Result<Arc<dyn Device>> {
        if let Some(handle) = self.open.get(&number).filter(|handle| handle.is_to_write || !is_to_write) {
            return Ok(handle.device.clone());
        }
        let name = name(number);
        let open = || if is_to_write { storage.open(&name) } else { storage.open_to_read(&name) };
        let device = match open() {
            // Others have all there are: ours come back when they are needed.
            Err(error) if is_out_of_files(&error) && !self.open.is_empty() => {
                self.open.clear();
                open()?
            }
            opened => opened?,
        };
        self.open.insert(number, Handle { device: device.clone(), is_to_write });
        if self.open.len() > HANDLES_MAX {
            self.open.pop_first();
        }
        Ok(device)
    }
}

impl Device for Segments {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        for (number, at, part) in self.parts(offset, into.len()) {
            match self.file(number)? {
                Some(device) => device.read(at, &mut into[part])?,
                None => into[part].fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (number, at, part) in self.parts(offset, bytes.len()) {
            let device = self.with_ours(|| self.file_to_write(number))?;
            let (count, end) = (part.len(), at + part.len() as u64);
            device.write(at, &bytes[part])?;
            if self.has_zeros {
                self.write_zeros(number, &*device, end, count)?;
            }
            // Only now: a sync that took note of it earlier might be over before the write was.
            self.owed().written.insert(number, device);
            self.settle_many().map_err(for_good)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut has_failed = self.syncing();
        let owed = std::mem::take(&mut *self.owed());
        self.settle(&mut has_failed, &owed)
    }

    fn discard(&self, _: u64, to: u64) -> io::Result<()> {
        let gone = {
            let mut files = self.write_files();
            let first = files.first.max(to / self.segment_bytes);
            files.first = first;
            files.open = files.open.split_off(&first);
            let kept = files.known.split_off(&first);
            std::mem::replace(&mut files.known, kept)
        };
        let mut removed = Ok(());
        for number in gone {
            self.owed().written.remove(&number);
            let name = name(number);
            if let Err(error) = self.storage().and_then(|storage| storage.remove(&name)) {
                // Somebody may have been quicker; or what is not found is the lock.
                let has_gone = || self.storage().and_then(|storage| storage.list()).is_ok_and(|names| !names.contains(&name));
                if error.kind() == io::ErrorKind::NotFound && has_gone() {
                    continue;
                }
                // It takes space until the next time.
                self.write_files().known.insert(number);
                removed = removed.and(Err(error));
            }
        }
        removed
    }

    fn bytes(&self) -> io::Result<u64> {
        let last = self.read_files().known.last().copied();
        let Some(last) = last else { return Ok(0) };
        let held = match self.file(last).and_then(|file| file.map_or(Ok(0), |device| device.bytes())) {
            // Damage, as where its bytes are: they are refused one by one when they are read.
            Err(error) if is_unreadable(&error) => self.segment_bytes,
            // What lies behind its end is nobody's.
            held => held?.min(self.segment_bytes),
        };
        Ok(last * self.segment_bytes + held)
    }

    fn held_bytes(&self) -> io::Result<u64> {
        let files = self.read_files();
        let Some(last) = files.known.last().copied() else { return Ok(0) };
        let before = files.known.len() as u64 - 1;
        drop(files);
        Ok(self.bytes()?.saturating_sub((last - before) * self.segment_bytes))
    }

    fn file_at(&self, offset: u64, bytes: usize) -> Option<(Arc<File>, u64)> {
        let (number, at, part) = self.parts(offset, bytes).next()?;
        if part.len() < bytes {
            return None;
        }
        self.file(number).ok().flatten()?.file_at(at, bytes)
    }

    fn read_stream(&self, source: &mut dyn ReadSource) {
        match self.storage() {
            Ok(storage) => storage.read_stream(self, source),
            // Each read is answered the failure.
            Err(_) => read_one_by_one(|read| self.read(read.offset(), read.bytes_mut()), source),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use std::path::Path;

    const LENGTH: u64 = 2 * SECTOR_BYTES as u64;

    fn directory(folder: &Path) -> Arc<dyn Storage> {
        // Or the directory would be somebody else's.
        std::fs::write(folder.join("esker.manifest"), b"").unwrap();
        Arc::new(Directory::open(folder, false, false).unwrap())
    }

    fn open(directory: &Arc<dyn Storage>, begin: u64) -> Segments {
        Segments::open(directory, LENGTH, begin..u64::MAX).unwrap()
    }

    fn pattern(sectors: usize) -> Vec<u8> {
        (0..sectors * SECTOR_BYTES).map(|at| (at / SECTOR_BYTES * 31 + at % 251) as u8).collect()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with(PREFIX));
        names.sort();
        names
    }

    #[test]
    fn files_are_one_range_of_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let bytes = pattern(7);
        let segments = open(&directory, 0);
        segments.write(0, &bytes[..3 * SECTOR_BYTES]).unwrap();
        segments.write(3 * SECTOR_BYTES as u64, &bytes[3 * SECTOR_BYTES..]).unwrap();
        segments.sync().unwrap();
        drop(segments);
        let segments = open(&directory, 0);
        // Zeros follow: the last file was made for more.
        assert_eq!((segments.bytes().unwrap(), names(folder.path()).len()), (4 * LENGTH, 4));
        for (from, to) in [(0, 7), (1, 3), (3, 6), (5, 6)] {
            let mut read = vec![0; (to - from) * SECTOR_BYTES];
            segments.read((from * SECTOR_BYTES) as u64, &mut read).unwrap();
            assert!(read == bytes[from * SECTOR_BYTES..to * SECTOR_BYTES], "{from} to {to}");
        }
    }

    /// One that could not be removed made the rest of them stay until the next opening.
    #[test]
    fn what_could_not_be_removed_is_removed_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let (segments, sector) = (open(&directory, 0), SECTOR_BYTES as u64);
        segments.write(0, &pattern(12)).unwrap();
        // No file any more, so it is not removed as one; and another has gone by itself.
        let stays = folder.path().join(name(1));
        std::fs::remove_file(&stays).unwrap();
        std::fs::create_dir(&stays).unwrap();
        std::fs::remove_file(folder.path().join(name(2))).unwrap();
        segments.discard(0, 8 * sector).unwrap_err();
        assert_eq!(names(folder.path()), [name(1), name(4), name(5)]);
        assert_eq!(segments.held_bytes().unwrap(), 6 * sector);
        let mut read = vec![1; 2 * SECTOR_BYTES];
        segments.read(2 * sector, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
        std::fs::remove_dir(&stays).unwrap();
        std::fs::write(&stays, b"").unwrap();
        segments.discard(0, 10 * sector).unwrap();
        assert_eq!((names(folder.path()), segments.held_bytes().unwrap()), (vec![name(5)], 2 * sector));
    }

    /// A file system that was made to be read only, as one is whose medium fails.
    struct ReadOnly(Arc<dyn Storage>);

    impl Storage for ReadOnly {
        fn open(&self, _: &str) -> io::Result<Arc<dyn Device>> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn Device>> {
            self.0.open_to_read(name)
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_can_no_more_be_written_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let (segments, bytes) = (open(&directory, 0), pattern(6));
        segments.write(0, &bytes).unwrap();
        segments.sync().unwrap();
        let read_only: Arc<dyn Storage> = Arc::new(ReadOnly(directory.clone()));
        let segments = open(&read_only, 0);
        let mut read = vec![0; bytes.len()];
        segments.read(0, &mut read).unwrap();
        assert!(read == bytes);
        // By another handle than those, which would pass a sync.
        segments.write(0, &bytes[..SECTOR_BYTES]).unwrap_err();
        segments.doubt_from(0, false).unwrap_err();
        let segments = open(&directory, 0);
        segments.read(0, &mut read).unwrap();
        segments.write(SECTOR_BYTES as u64, &bytes[..SECTOR_BYTES]).unwrap();
        segments.sync().unwrap();
    }

    /// A file that somebody removed was made anew, empty, by who read it.
    #[test]
    fn a_read_makes_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        open(&directory, 0).write(0, &pattern(6)).unwrap();
        let segments = open(&directory, 0);
        std::fs::remove_file(folder.path().join(name(1))).unwrap();
        let why = segments.read(LENGTH, &mut [0; SECTOR_BYTES]).unwrap_err();
        assert!(why.kind() == io::ErrorKind::NotFound && why.to_string().contains(&name(1)), "{why}");
        assert_eq!(names(folder.path()), [name(0), name(2)]);
    }

    #[test]
    fn what_was_given_back_is_gone_and_reads_as_zeros() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let segments = open(&directory, 0);
        segments.write(0, &pattern(8)).unwrap();
        segments.discard(0, 5 * SECTOR_BYTES as u64).unwrap();
        assert_eq!(names(folder.path()), [name(2), name(3)]);
        let mut read = vec![1; 2 * SECTOR_BYTES];
        segments.read(3 * SECTOR_BYTES as u64, &mut read).unwrap();
        assert!(
            read[..SECTOR_BYTES].iter().all(|byte| *byte == 0) && read[SECTOR_BYTES..] == pattern(8)[4 * SECTOR_BYTES..5 * SECTOR_BYTES]
        );
        // A removal that a power cut took back.
        std::fs::write(folder.path().join(name(1)), b"back").unwrap();
        drop(segments);
        open(&directory, 5 * SECTOR_BYTES as u64).discard(0, 5 * SECTOR_BYTES as u64).unwrap();
        assert_eq!(names(folder.path()), [name(2), name(3)]);
    }

    #[test]
    fn a_file_that_is_missing_is_not_made_by_reading() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let segments = open(&directory, 0);
        segments.write(2 * LENGTH, &pattern(1)).unwrap();
        let missing = segments.read(LENGTH, &mut vec![0; SECTOR_BYTES]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(names(folder.path()), [name(2)]);
    }

    #[test]
    fn more_files_than_handles() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let segments = open(&directory, 0);
        let count = HANDLES_MAX + 40;
        for number in 0..count {
            segments.write(number as u64 * LENGTH, &[number as u8; SECTOR_BYTES]).unwrap();
            assert!(segments.owed().written.len() < OWED_MAX && segments.owed().written.contains_key(&(number as u64)));
        }
        segments.sync().unwrap();
        segments.doubt_from(0, false).unwrap();
        assert!(segments.owed().written.len() < OWED_MAX);
        for number in (0..count).rev().chain(0..count) {
            let mut read = vec![0; SECTOR_BYTES];
            segments.read(number as u64 * LENGTH, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == number as u8), "file {number}");
            assert!(segments.read_files().open.len() <= HANDLES_MAX);
        }
    }

    /// A place whose process may have so many files open.
    struct Few {
        inner: Arc<dyn Storage>,
        most: usize,
        open: Mutex<Vec<Weak<dyn Device>>>,
    }

    impl Storage for Few {
        fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
            let mut open = self.open.lock().unwrap();
            open.retain(|device| device.strong_count() > 0);
            if open.len() >= self.most {
                return Err(about(io::Error::from_raw_os_error(libc::EMFILE), "opening a file"));
            }
            let device = self.inner.open(name)?;
            open.push(Arc::downgrade(&device));
            Ok(device)
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.inner.list()
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.inner.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.inner.sync()
        }
    }

    /// A new file that could not be opened latched the store, though files were open that nobody used.
    #[test]
    fn a_process_with_few_files_left_gets_ours() {
        let folder = tempfile::tempdir().unwrap();
        let few: Arc<dyn Storage> = Arc::new(Few { inner: directory(folder.path()), most: 3, open: Mutex::default() });
        let segments = open(&few, 0);
        for number in 0..20 {
            segments.write(number * LENGTH, &[number as u8; SECTOR_BYTES]).unwrap();
            segments.sync().unwrap();
        }
        for number in 0..20 {
            let mut read = vec![0; SECTOR_BYTES];
            segments.read(number * LENGTH, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == number as u8), "file {number}");
        }
        // Those that a sync is owed are ours, too: the store stayed latched, for what would have given them up came behind what needed them.
        for number in 20..40 {
            segments.write(number * LENGTH, &[number as u8; SECTOR_BYTES]).unwrap();
            let mut read = vec![0; SECTOR_BYTES];
            segments.read((number - 7) * LENGTH, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == number as u8 - 7), "file {}", number - 7);
        }
        segments.sync().unwrap();
        // But not those of others.
        let others: Vec<_> = (0..3).map_while(|number| few.open(&format!("other{number}")).ok()).collect();
        segments.write_files().open.clear();
        let others = others.into_iter().chain((3..6).map_while(|number| few.open(&format!("other{number}")).ok())).collect::<Vec<_>>();
        let error = segments.write(40 * LENGTH, &[7; SECTOR_BYTES]).unwrap_err();
        assert!(others.len() == 3 && is_out_of_files(&error), "{error}");
    }

    #[test]
    fn zeros_go_ahead_of_short_writes_and_over_nothing() {
        const LENGTH: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let segments = Segments::open(&directory, LENGTH, 0..u64::MAX).unwrap();
        let sector = SECTOR_BYTES as u64;
        // There before, behind the end of the first write.
        segments.write(2 * sector, &[9; SECTOR_BYTES]).unwrap();
        let mut lengths = vec![];
        for number in 0..40 {
            segments.write(number * sector, &[number as u8 + 1; SECTOR_BYTES]).unwrap();
            segments.sync().unwrap();
            lengths.push(segments.bytes().unwrap() / sector);
        }
        lengths.dedup();
        // As many as were written so far, each time they are used up.
        assert_eq!(lengths, [3, 6, 14, 30, 62]);
        let mut read = vec![1; 62 * SECTOR_BYTES];
        segments.read(0, &mut read).unwrap();
        for (number, bytes) in read.chunks(SECTOR_BYTES).enumerate() {
            let want = if number < 40 { number as u8 + 1 } else { 0 };
            assert!(bytes.iter().all(|byte| *byte == want), "sector {number}");
        }
        // A long write has none.
        let long = vec![5; SHORT_BYTES + SECTOR_BYTES];
        segments.write(62 * sector, &long).unwrap();
        assert_eq!(segments.bytes().unwrap(), 62 * sector + long.len() as u64);
    }
}
