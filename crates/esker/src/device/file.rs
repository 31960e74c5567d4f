//! A file as a device: direct I/O where the file system allows it, io_uring for batches where the kernel allows it.
//!
//! Each thread that reads a batch has a ring of its own (no lock, no hand-over), kept for its next batches. Where
//! io_uring is forbidden (containers often do) or switched off, the batch is read by a few scoped threads with `pread`.

use super::{Device, ReadRequest};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const POOL_THREADS: usize = 16;

pub(crate) struct FileDevice {
    file: File,
    io_uring: bool,
}

impl FileDevice {
    pub(crate) fn open(path: &Path, direct: bool, io_uring: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(target_os = "linux")]
        if direct {
            // EINVAL: the file system knows no direct I/O (tmpfs before Linux 6.6); the page cache serves then.
            if let Ok(file) = options.clone().custom_flags(libc::O_DIRECT).open(path) {
                return Ok(Self { file, io_uring });
            }
        }
        Ok(Self { file: options.open(path)?, io_uring })
    }

    fn read_by_pool(&self, requests: &mut [ReadRequest<'_>]) {
        let share = requests.len().div_ceil(POOL_THREADS).max(1);
        std::thread::scope(|scope| {
            for part in requests.chunks_mut(share) {
                scope.spawn(move || {
                    for request in part {
                        request.result = self.read(request.offset, request.into);
                    }
                });
            }
        });
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
        self.file.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        match requests {
            [] => {}
            [one] => one.result = self.read(one.offset, one.into),
            #[cfg(target_os = "linux")]
            many if self.io_uring => {
                if !ring::read(&self.file, many) {
                    self.read_by_pool(many);
                }
            }
            many => self.read_by_pool(many),
        }
    }
}

#[cfg(target_os = "linux")]
mod ring {
    use super::{File, FileExt, ReadRequest, io};
    use io_uring::{IoUring, opcode, types};
    use std::cell::RefCell;
    use std::os::fd::AsRawFd;

    const DEPTH: usize = 128;

    enum Ring {
        Untried,
        Forbidden,
        Ready(Box<IoUring>),
    }

    thread_local! {
        static RING: RefCell<Ring> = const { RefCell::new(Ring::Untried) };
    }

    /// Reads all requests; false when this thread cannot have a ring (nothing was read then).
    pub(super) fn read(file: &File, requests: &mut [ReadRequest<'_>]) -> bool {
        RING.with_borrow_mut(|ring| {
            if matches!(ring, Ring::Untried) {
                *ring = IoUring::new(DEPTH as u32).map_or(Ring::Forbidden, |ring| Ring::Ready(Box::new(ring)));
            }
            let Ring::Ready(io) = ring else { return false };
            run(io, file, requests);
            true
        })
    }

    /// Keeps up to `DEPTH` reads under way until all have ended. Never returns earlier: the kernel writes into the
    /// requests' buffers until their completions are seen.
    fn run(ring: &mut IoUring, file: &File, requests: &mut [ReadRequest<'_>]) {
        let (mut next, mut under_way) = (0, 0);
        while next < requests.len() || under_way > 0 {
            while next < requests.len() && under_way < DEPTH {
                let request = &mut requests[next];
                let read = opcode::Read::new(types::Fd(file.as_raw_fd()), request.into.as_mut_ptr(), request.into.len() as u32)
                    .offset(request.offset)
                    .build()
                    .user_data(next as u64);
                // SAFETY: the buffer is borrowed by `requests` until this function returns, which is after its completion.
                if unsafe { ring.submission().push(&read) }.is_err() {
                    break;
                }
                next += 1;
                under_way += 1;
            }
            // EINTR and EAGAIN leave the submissions queued; the loop submits them again.
            let _ = ring.submit_and_wait(1);
            for done in ring.completion() {
                let request = &mut requests[done.user_data() as usize];
                request.result = finish(file, request, done.result());
                under_way -= 1;
            }
        }
    }

    /// A short read is completed, an interrupted one repeated, synchronously: both are rare.
    fn finish(file: &File, request: &mut ReadRequest<'_>, result: i32) -> io::Result<()> {
        match result {
            n if n >= 0 && n as usize == request.into.len() => Ok(()),
            n if n >= 0 || n == -libc::EINTR || n == -libc::EAGAIN => file.read_exact_at(request.into, request.offset),
            n => Err(io::Error::from_raw_os_error(-n)),
        }
    }
}
