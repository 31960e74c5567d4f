//! A file as a device: direct I/O where the file system allows it, io_uring for streams where the kernel allows it.
//!
//! Where io_uring is forbidden (containers often do) or switched off, streams are read by threads with `pread`.

use super::{Device, ReadSource, pool};
use crate::error::{about, for_good};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Weak};

pub(crate) struct FileDevice {
    file: Arc<File>,
    /// In its directory: what errors say.
    name: Box<str>,
    is_writable: bool,
    is_direct: bool,
    /// What keeps others from the directory.
    lock: Weak<File>,
}

impl FileDevice {
    /// The file at `path`, made if nothing is there and it `is_writable`.
    pub(crate) fn open(path: &Path, direct: bool, is_writable: bool) -> io::Result<Self> {
        let name: Box<str> = path.file_name().unwrap_or_default().to_string_lossy().into();
        let of = |file, name, is_direct| Self { file: Arc::new(file), name, is_writable, is_direct, lock: Weak::new() };
        let mut options = OpenOptions::new();
        options.read(true).write(is_writable).create(is_writable).truncate(false);
        #[cfg(target_os = "linux")]
        if direct {
            // EINVAL: the file system knows no direct I/O (tmpfs before Linux 6.6); the page cache serves then. Not where the reason may have
            // gone before the plain open is tried, such as want of handles.
            match options.clone().custom_flags(libc::O_DIRECT).open(path) {
                Ok(file) => return Ok(of(file, name, true)),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {}
                Err(error) => return Err(about(error, format_args!("opening file={name}"))),
            }
        }
        let file = options.open(path).map_err(|error| about(error, format_args!("opening file={name}")))?;
        Ok(of(file, name, false))
    }

    /// Nothing is written any more once that file was removed.
    pub(crate) fn while_locked_by(self, lock: Weak<File>) -> Self {
        Self { lock, ..self }
    }

    fn failed(&self, doing: &str, error: io::Error) -> io::Error {
        about(error, format_args!("{doing} file={}", self.name))
    }

    fn failed_at(&self, doing: &str, offset: u64, bytes: usize, error: io::Error) -> io::Error {
        about(error, format_args!("{doing} file={} offset={offset} bytes={bytes}", self.name))
    }
}

impl Device for FileDevice {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset).map_err(|error| self.failed_at("reading", offset, into.len(), error))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = check_lock(&self.lock).and_then(|()| self.file.write_all_at(bytes, offset));
        written.map_err(|error| {
            // Through the system's cache it may be told of earlier ones.
            let error = if self.is_direct { told_as_limit(error, offset + bytes.len() as u64) } else { for_good(error) };
            self.failed_at("writing", offset, bytes.len(), error)
        })
    }

    fn sync(&self) -> io::Result<()> {
        // Some file systems that are only read do not know the call.
        let sync = || check_lock(&self.lock).and_then(|()| self.file.sync_data());
        if self.is_writable { sync().map_err(|error| self.failed("syncing", error)) } else { Ok(()) }
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata().map_err(|error| self.failed("looking at", error))?.len())
    }

    fn file_at(&self, offset: u64, _: usize) -> Option<(Arc<File>, u64)> {
        Some((self.file.clone(), offset))
    }
}

/// Where files may not grow beyond a length that direct I/O cannot write up to, a write across it is called invalid: so it is told as a
/// shorter one is, which may be tried again.
fn told_as_limit(error: io::Error, end: u64) -> io::Error {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::EINVAL) {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call writes to what outlives it.
        let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
        if is_known && end > limit.rlim_cur {
            return io::Error::from_raw_os_error(libc::EFBIG);
        }
    }
    error
}

/// Without its lock the directory was removed, and what is written goes to nobody; or another process may have it.
pub(crate) fn check_lock(lock: &Weak<File>) -> io::Result<()> {
    match lock.upgrade() {
        Some(lock) if lock.metadata()?.nlink() == 0 => {
            Err(io::Error::new(io::ErrorKind::NotFound, "the directory or its lock was removed while the store was open"))
        }
        _ => Ok(()),
    }
}

/// A stream from a device that consists of files. Whatever becomes of a ring, it goes on until the source has no more.
pub(crate) fn read_stream(device: &dyn Device, io_uring: bool, source: &mut dyn ReadSource) {
    #[cfg(target_os = "linux")]
    if io_uring && super::ring::read_stream(device, source) {
        return;
    }
    pool::read_stream(device, source);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::{AlignedBuffer, DeviceRead, SECTOR_BYTES};

    /// Reads one place, and keeps what it is told.
    struct Once {
        offset: Option<u64>,
        told: Option<io::Result<()>>,
    }

    impl ReadSource for Once {
        fn next(&mut self) -> Option<DeviceRead> {
            self.offset.take().map(|offset| DeviceRead::new(offset, 1, 0))
        }

        fn done(&mut self, _: DeviceRead, result: io::Result<()>) {
            self.told = Some(result);
        }
    }

    #[test]
    fn errors_name_the_file_and_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("esker.log.00000003");
        std::fs::write(&path, [7; SECTOR_BYTES]).unwrap();
        let device = FileDevice::open(&path, false, false).unwrap();
        let far = 8 * SECTOR_BYTES as u64;
        let what = "file=esker.log.00000003 offset=32768 bytes=4096";
        let read = device.read(far, &mut [0; SECTOR_BYTES]).unwrap_err();
        assert!(read.kind() == io::ErrorKind::UnexpectedEof && read.to_string().ends_with(&format!("reading {what}")), "{read}");
        let written = device.write(far, &[0; SECTOR_BYTES]).unwrap_err();
        assert!(written.to_string().ends_with(&format!("writing {what}")), "{written}");
        for io_uring in [true, false] {
            let mut once = Once { offset: Some(far), told: None };
            read_stream(&device, io_uring, &mut once);
            let told = once.told.unwrap().unwrap_err();
            assert!(told.to_string().ends_with(&format!("reading {what}")), "{told}");
        }
        let Err(opened) = FileDevice::open(&folder.path().join("no/esker.manifest"), true, true) else { panic!("made") };
        assert!(opened.kind() == io::ErrorKind::NotFound && opened.to_string().ends_with("opening file=esker.manifest"), "{opened}");
    }

    /// As the system has it, which alone knows what the file system can do: that of the temporary files, and one in memory.
    #[cfg(target_os = "linux")]
    #[test]
    fn direct_io_is_used_where_the_file_system_has_it() {
        use std::os::fd::AsRawFd;
        // SAFETY: it only reads the flags of an open file.
        let is_direct = |file: &File| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } & libc::O_DIRECT != 0;
        let in_memory = tempfile::tempdir_in("/dev/shm").ok();
        for folder in std::iter::once(tempfile::tempdir().unwrap()).chain(in_memory) {
            let probe =
                OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(folder.path().join("probe"));
            for wanted in [true, false] {
                let device = FileDevice::open(&folder.path().join(format!("log.{wanted}")), wanted, true).unwrap();
                assert_eq!(is_direct(&device.file), wanted && probe.is_ok(), "{}", folder.path().display());
                let mut buffer = AlignedBuffer::new(1);
                buffer.bytes_mut().fill(7);
                device.write(0, buffer.bytes()).unwrap();
                buffer.bytes_mut().fill(0);
                device.read(0, buffer.bytes_mut()).unwrap();
                assert!(buffer.bytes().iter().all(|byte| *byte == 7));
            }
        }
    }

    #[test]
    fn a_full_device_is_named() {
        let Ok(device) = FileDevice::open(Path::new("/dev/full"), false, true) else { return };
        let full = device.write(0, &[0; SECTOR_BYTES]).unwrap_err();
        assert!(full.kind() == io::ErrorKind::StorageFull && full.to_string().ends_with("file=full offset=0 bytes=4096"), "{full}");
        // Not of a file that is written through the system's cache.
        assert!(!crate::error::is_for_now(&full));
    }
}
