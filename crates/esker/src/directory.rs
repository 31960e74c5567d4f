//! A store's directory on a file system: who holds it, and the files in it.
//!
//! ```text
//! esker.lock      held (flock) while a process has the store open
//! esker.manifest  what the store is and how far it is durable (`manifest.rs`)
//! esker.log.N     the log's blocks, a segment a file (`device/segments.rs`)
//! esker.scars     what crashes left in the log (`scars.rs`)
//! index.N         an index image (`image.rs`)
//! ```

use crate::device::{Device, FileDevice, ReadSource, SEGMENT_PREFIX, Storage, check_lock, read_stream};
use crate::error::{Error, Result, about};
use crate::manifest::MANIFEST;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

const LOCK: &str = "esker.lock";

/// Files in a directory that this process alone may use.
pub(crate) struct Directory {
    /// Through `handle`: the process may go elsewhere, and the directory may be renamed or removed, where the same name is another's.
    path: PathBuf,
    /// The directory that was locked, wherever it is by now.
    handle: File,
    direct_io: bool,
    io_uring: bool,
    is_writable: bool,
    /// The lock goes with the file handle, or before; and the process that has it, for one that it forked has the handle, too.
    lock: Option<Arc<File>>,
    /// What files look at before they are written, where the system counts a file's names.
    guard: Weak<File>,
    process: u32,
    _temporary: Option<tempfile::TempDir>,
}

impl Directory {
    /// Takes the directory at `path`, made if nothing is there.
    pub(crate) fn open(path: &Path, direct_io: bool, io_uring: bool) -> Result<Self> {
        refuse_foreign(path).map_err(|error| if is_held(path) { Error::Locked(path.into()) } else { error })?;
        make(path, sync_above).map_err(|error| at(path, error))?;
        Self::take(path, direct_io, io_uring)
    }

    /// The same of one that is there, whose name need not be durable.
    fn take(path: &Path, direct_io: bool, io_uring: bool) -> Result<Self> {
        Self::locked(path, direct_io, io_uring, true, |inside| {
            let file = File::options().create(true).truncate(false).write(true).open(inside.join(LOCK));
            let lock = lock(file.map_err(|error| at(path, error))?, path)?;
            // Whoever had it may have removed it, with a directory that was made for nothing: the name is another's by now.
            let is_there = inside.join(LOCK).metadata().is_ok_and(|named| lock.metadata().is_ok_and(|ours| named.ino() == ours.ino()));
            if is_there { Ok(Some(lock)) } else { Err(Error::Locked(path.into())) }
        })
    }

    /// Takes the store's directory at `path` to read what is there, also where nothing can be written.
    pub(crate) fn to_read(path: &Path) -> Result<Self> {
        match Self::open(path, true, true) {
            Err(Error::Io(error)) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
                Self::read_only(path)
            }
            taken => taken,
        }
    }

    /// Nothing is made or written. Without a file to lock nobody has the store open who could write there.
    pub(crate) fn read_only(path: &Path) -> Result<Self> {
        Self::locked(path, true, true, false, |inside| match File::open(inside.join(LOCK)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // Beside others who only read; and of a file that is open to be read NFS gives no other lock.
            file => Ok(Some(locked_by(File::try_lock_shared, file.map_err(|error| at(path, error))?, path)?)),
        })
    }

    /// `take` locks what is to be locked in the directory, whose name may be another's by then.
    fn locked(
        path: &Path,
        direct_io: bool,
        io_uring: bool,
        is_writable: bool,
        take: impl FnOnce(&Path) -> Result<Option<File>>,
    ) -> Result<Self> {
        let (handle, path) = handle(path)?;
        let lock = take(&path)?.map(Arc::new);
        let guard =
            lock.as_ref().filter(|lock| lock.metadata().is_ok_and(|found| found.nlink() > 0)).map(Arc::downgrade).unwrap_or_default();
        Ok(Self { path, handle, direct_io, io_uring, is_writable, lock, guard, process: std::process::id(), _temporary: None })
    }

    /// Removes the directory if there is nothing in it, but for the lock, which is ours.
    pub(crate) fn remove_if_empty(&self) {
        if self.list().is_ok_and(|names| names == [LOCK]) && fs::remove_file(self.path.join(LOCK)).is_ok() {
            // By its name: the path may lead through the handle.
            let _ = fs::remove_dir(fs::read_link(&self.path).unwrap_or_else(|_| self.path.clone()));
        }
    }

    /// A directory that goes when this value does.
    pub(crate) fn temporary(direct_io: bool, io_uring: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-").tempdir()?;
        let mut directory = Self::take(folder.path(), direct_io, io_uring)?;
        directory._temporary = Some(folder);
        // Nobody else opens it, and who clears away what is old of temporary files may take the lock. systemd spares a directory that is
        // locked itself.
        directory.guard = Weak::new();
        let _ = directory.handle.try_lock_shared();
        Ok(directory)
    }
}

impl Storage for Directory {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        let path = self.path.join(name);
        if self.is_writable && !path.exists() {
            check_lock(&self.guard)?;
        }
        let file = FileDevice::open(&path, self.direct_io, self.is_writable)?;
        Ok(Arc::new(file.while_locked_by(self.guard.clone())))
    }

    fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(FileDevice::open(&self.path.join(name), self.direct_io, false)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect());
        names.map_err(|error| about(error, "listing the store's directory"))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = check_lock(&self.guard).and_then(|()| fs::remove_file(self.path.join(name)));
        removed.map_err(|error| about(error, format_args!("removing file={name}")))
    }

    fn sync(&self) -> io::Result<()> {
        // By the handle that we have: for want of another one a sync that was never tried would count as one that failed.
        if self.is_writable { self.handle.sync_all().map_err(|error| about(error, "syncing the store's directory")) } else { Ok(()) }
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn let_go(&self) {
        if let Some(lock) = self.lock.as_ref().filter(|_| self.process == std::process::id()) {
            // Else it goes with the handle.
            let _ = lock.unlock();
        }
    }

    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        read_stream(device, self.io_uring, source);
    }
}

/// Gives the file `name` in the directory `from` a second name, in `to`. Not where it is itself a link: what a second name of that leads
/// to may be another file, or none.
pub(crate) fn link(from: &Path, to: &Path, name: &str) -> io::Result<()> {
    let file = from.join(name);
    if !fs::symlink_metadata(&file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a link"));
    }
    fs::hard_link(file, to.join(name))
}

/// Makes the directory, and those above it, so that a power cut does not take their names. What is there without a manifest another call
/// may have made, which was cut short before it could say so.
fn make(path: &Path, sync_above: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir_all(path)?;
    if path.join(MANIFEST).exists() {
        return Ok(());
    }
    path.ancestors().take_while(|path| path.file_name().is_some()).try_for_each(sync_above)
}

/// Makes a directory's name durable.
fn sync_above(made: &Path) -> io::Result<()> {
    let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(above) {
        // One may write into it and not read it: then nothing can be said of it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        above => match above?.sync_all() {
            // A file system that has no such call for directories.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
            synced => synced,
        },
    }
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect())
}

/// True if there is a log, as a store has one.
pub(crate) fn holds_log(path: &Path) -> bool {
    names(path).is_ok_and(|names| names.iter().any(|name| name.starts_with(SEGMENT_PREFIX)))
}

/// Whether there is a manifest. That nobody may look is no answer.
pub(crate) fn holds_manifest(path: &Path) -> Result<bool> {
    match path.join(MANIFEST).try_exists() {
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(false),
        found => found.map_err(|error| at(path, error)),
    }
}

/// A directory with other people's files in it is not touched.
fn refuse_foreign(path: &Path) -> Result<()> {
    if holds_manifest(path)? || !path.exists() {
        return Ok(());
    }
    let names =
        names(path).map_err(|error| Error::invalid(format!("not a directory that can be read path={} error={error}", path.display())))?;
    if names.iter().any(|name| name.starts_with(SEGMENT_PREFIX)) {
        return Err(Error::invalid(format!(
            "a log and no {MANIFEST}: a store whose manifest is missing, which must come back before anything else is done, or a backup that was \
             cut short, which can be made anew in an empty directory path={}",
            path.display()
        )));
    }
    match names.iter().find(|name| *name != LOCK) {
        Some(name) => Err(Error::invalid(format!("the directory is not a store: it holds {name} path={}", path.display()))),
        None => Ok(()),
    }
}

/// The directory, and a path that leads to this one whatever becomes of its name (where `/proc` is; else its name).
fn handle(path: &Path) -> Result<(File, PathBuf)> {
    let handle = File::open(path).map_err(|error| at(path, error))?;
    let through = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle)));
    let inside = if through.exists() { through } else { std::path::absolute(path).map_err(|error| at(path, error))? };
    Ok((handle, inside))
}

/// True while a process has a store open there, whatever becomes of its other files.
fn is_held(path: &Path) -> bool {
    File::open(path.join(LOCK)).is_ok_and(|file| matches!(lock(file, path), Err(Error::Locked(_))))
}

fn lock(file: File, path: &Path) -> Result<File> {
    locked_by(File::try_lock, file, path)
}

fn locked_by(try_lock: impl Fn(&File) -> std::result::Result<(), TryLockError>, file: File, path: &Path) -> Result<File> {
    match try_lock(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(path.into())),
        Err(TryLockError::Error(error)) => Err(at(path, error)),
    }
}

/// Where two directories are used, the system's words do not tell which.
fn at(path: &Path, error: io::Error) -> Error {
    about(error, format_args!("path={}", path.display())).into()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Two who only read kept each other out.
    #[test]
    fn who_only_reads_keeps_out_who_writes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        drop(Directory::open(&path, true, true).unwrap());
        let readers = [Directory::read_only(&path).unwrap(), Directory::read_only(&path).unwrap()];
        let is_locked = |opened: Result<Directory>| matches!(opened, Err(Error::Locked(_)));
        assert!(is_locked(Directory::open(&path, true, true)));
        drop(readers);
        let _writer = Directory::open(&path, true, true).unwrap();
        assert!(is_locked(Directory::read_only(&path)));
    }

    /// A call that was cut short between making a directory and syncing its name left it to nobody.
    #[test]
    fn a_name_that_may_not_be_durable_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let synced = RefCell::new(Vec::new());
        let sync = |made: &Path| {
            synced.borrow_mut().push(made.to_owned());
            Ok(())
        };
        let all: Vec<PathBuf> = path.ancestors().take_while(|path| path.file_name().is_some()).map(Path::to_owned).collect();
        assert!(make(&path, |_| Err(io::Error::from(ErrorKind::Other))).is_err() && path.exists());
        make(&path, sync).unwrap();
        assert_eq!(synced.take(), all);
        // A manifest is made when the names are durable.
        fs::write(path.join(MANIFEST), b"").unwrap();
        make(&path, sync).unwrap();
        assert!(synced.take().is_empty());
    }
}
