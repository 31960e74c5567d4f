//! Devices: where the cold part of the log lies. With `directory.rs` the only place that calls the operating system for files.
//!
//! The trait is small so that a simulated disk is short. Offsets and lengths are multiples of [`SECTOR_BYTES`].

mod buffer;
mod file;
mod memory;
mod names;
mod pool;
#[cfg(target_os = "linux")]
mod ring;
mod segments;
mod stream;

pub(crate) use buffer::AlignedBuffer;
pub(crate) use file::{FileDevice, check_lock, read_stream};
pub use memory::{MemoryDevice, MemoryStorage};
pub(crate) use names::Names;
pub(crate) use segments::{LOG, PREFIX as SEGMENT_PREFIX, Segments, ZEROS_BYTES_MAX, name as segment_name};
pub(crate) use stream::Runs;
pub use stream::{DeviceRead, ReadSource};

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The unit of every transfer, in bytes.
pub const SECTOR_BYTES: usize = 4096;

/// A flat range of bytes that survives what memory does not.
pub trait Device: Send + Sync {
    /// Fills `into` from `offset`. Bytes never written may be missing (an error) or zero.
    ///
    /// # Errors
    /// Whatever the device reports; a short read is an error.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`; durable only after [`Device::sync`].
    ///
    /// # Errors
    /// Whatever the device reports; part of the bytes may have been written then. After an error of kind `StorageFull`, `QuotaExceeded` or
    /// `FileTooLarge` the same bytes may be written again there, after any other nothing is written any more. So what is told of earlier
    /// writes, which had returned, must be of another kind.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// Whatever the device reports; nothing may be assumed durable then.
    fn sync(&self) -> io::Result<()>;

    /// Gives back the space of `[from, to)`. A hint. Who was on the way may still read there: any bytes serve, an error is his.
    ///
    /// # Errors
    /// Whatever the device reports.
    fn discard(&self, _from: u64, _to: u64) -> io::Result<()> {
        Ok(())
    }

    /// The length of what was written, in bytes.
    ///
    /// # Errors
    /// Whatever the device reports.
    fn bytes(&self) -> io::Result<u64>;

    /// The bytes it takes: its length without what was discarded.
    ///
    /// # Errors
    /// Whatever the device reports.
    fn held_bytes(&self) -> io::Result<u64> {
        self.bytes()
    }

    /// The file that holds `[offset, offset + bytes)` and where there, if one file does: then the kernel may be asked for
    /// these bytes directly, many at once. Stores in a directory ask; of a device of your own the reads are done by
    /// [`Device::read_stream`].
    fn file_at(&self, _offset: u64, _bytes: usize) -> Option<(Arc<File>, u64)> {
        None
    }

    /// Does the reads of `source`, many at once where the device can. Returns when [`ReadSource::next`] has no more and each read was
    /// handed to [`ReadSource::done`], with a result of its own and in any order. `source` may use the device meanwhile, from inside its
    /// own calls: to write, to sync, and for a stream of its own.
    fn read_stream(&self, source: &mut dyn ReadSource) {
        read_one_by_one(|read| self.read(read.offset(), read.bytes_mut()), source);
    }
}

fn read_one_by_one(read: impl Fn(&mut DeviceRead) -> io::Result<()>, source: &mut dyn ReadSource) {
    while let Some(mut job) = source.next() {
        let result = read(&mut job);
        source.done(job, result);
    }
}

/// Gives a read back to its source. One that was short, interrupted or failed, or was not tried, is done here, synchronously: that is rare,
/// and the device's own error tells where.
fn hand_back(device: &dyn Device, source: &mut dyn ReadSource, mut read: DeviceRead, is_whole: bool) {
    let result = if is_whole { Ok(()) } else { device.read(read.offset(), read.bytes_mut()) };
    source.done(read, result);
}

/// A place for named files: what a store's directory is made of.
pub trait Storage: Send + Sync {
    /// The file `name`; made, empty, if it is not there.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>>;

    /// The file `name`, of which nothing will be written: also where nothing can be any more. One that is not there is an error, or as for
    /// [`Storage::open`], which this is unless a place knows better.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        self.open(name)
    }

    /// The names of all files.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Removes the file `name`.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations and removals durable.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn sync(&self) -> io::Result<()>;

    /// Where the files are, if they are files of the system in one directory: then a copy may share them by a second name.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// The store is closed: another one may have the place, though reads that were under way may go on for a while.
    fn let_go(&self) {}

    /// Does the reads of `source` from `device`, which consists of files of this place, as [`Device::read_stream`] says; here
    /// one by one.
    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        read_one_by_one(|read| device.read(read.offset(), read.bytes_mut()), source);
    }
}
