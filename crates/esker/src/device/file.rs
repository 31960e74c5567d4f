//! A file as a device: direct I/O where the file system allows it, io_uring for streams where the kernel allows it.
//!
//! Where io_uring is forbidden (containers often do) or switched off, streams are read by threads with `pread`.

use super::{Device, ReadSource, pool};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

pub(crate) struct FileDevice {
    file: Arc<File>,
    is_writable: bool,
}

impl FileDevice {
    /// The file at `path`, made if nothing is there and it `is_writable`.
    pub(crate) fn open(path: &Path, direct: bool, is_writable: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(is_writable).create(is_writable).truncate(false);
        #[cfg(target_os = "linux")]
        if direct {
            // EINVAL: the file system knows no direct I/O (tmpfs before Linux 6.6); the page cache serves then. Any other reason meets the plain open, too.
            if let Ok(file) = options.clone().custom_flags(libc::O_DIRECT).open(path) {
                return Ok(Self { file: Arc::new(file), is_writable });
            }
        }
        Ok(Self { file: Arc::new(options.open(path)?), is_writable })
    }
}

impl Device for FileDevice {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // Some file systems that are only read do not know the call.
        if self.is_writable { self.file.sync_data() } else { Ok(()) }
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn file_at(&self, offset: u64, _: usize) -> Option<(Arc<File>, u64)> {
        Some((self.file.clone(), offset))
    }
}

/// A stream from a device that consists of files. Whatever becomes of a ring, it goes on until the source has no more.
pub(crate) fn read_stream(device: &dyn Device, io_uring: bool, source: &mut dyn ReadSource) {
    #[cfg(target_os = "linux")]
    if io_uring && super::ring::read_stream(device, source) {
        return;
    }
    pool::read_stream(|read| device.read(read.offset(), read.bytes_mut()), source);
}
