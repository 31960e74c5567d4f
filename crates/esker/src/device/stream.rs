//! Streams of reads: many under way at once, each with a buffer of its own, finishing in any order.
//!
//! A [`ReadSource`] has the work, a [`Device`](super::Device) has the depth. The device asks for reads until the source has
//! none or the device has enough, and hands each back when it ended; what the source learns from it (the next record of a
//! chain, the rest of a long one) is its next read. So no read waits for the slowest of a batch.
//!
//! A buffer belongs to its read: whoever lets the kernel write into it keeps the whole [`DeviceRead`] until the kernel is
//! done. Buffers of one sector, nearly all of them, come from a pool and go back there when the read is dropped: in the
//! steady state nothing is allocated. Each thread has some at hand; the rest are all threads' together, for who read much
//! once would keep for ever what others need now. Who reads runs of some sectors has a pool of his own ([`Runs`]) for as
//! long as he reads.

use super::{AlignedBuffer, SECTOR_BYTES};
use std::cell::RefCell;
use std::io;
use std::sync::Mutex;

/// One-sector buffers that go from a thread to the others at once, and back. It keeps less than two times as many: 128 KiB.
const AT_ONCE: usize = 16;
/// Those of all threads: two mebibytes.
const SHARED_MAX: usize = 512;

/// A thread's own.
struct Pool(Vec<AlignedBuffer>);

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool(Vec::new())) };
}

/// Nobody waits for it, so that a process which was forked while it was locked goes on.
static SHARED: Mutex<Vec<AlignedBuffer>> = Mutex::new(Vec::new());

impl Pool {
    fn take(&mut self) -> Option<AlignedBuffer> {
        if self.0.is_empty()
            && let Ok(mut shared) = SHARED.try_lock()
        {
            let from = shared.len().saturating_sub(AT_ONCE);
            self.0.extend(shared.drain(from..));
        }
        self.0.pop()
    }

    fn put(&mut self, buffer: AlignedBuffer) {
        self.0.push(buffer);
        if self.0.len() == 2 * AT_ONCE {
            self.share(AT_ONCE);
        }
    }

    /// Gives all but so many to the others, as far as these have room.
    fn share(&mut self, kept: usize) {
        let surplus = self.0.drain(kept..);
        if let Ok(mut shared) = SHARED.try_lock() {
            let room = SHARED_MAX - shared.len();
            shared.extend(surplus.take(room));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.share(0);
    }
}

/// A read with the buffer it fills.
#[derive(Debug)]
pub struct DeviceRead {
    offset: u64,
    /// To be read; the buffer may be longer.
    bytes: usize,
    token: u64,
    buffer: AlignedBuffer,
}

impl DeviceRead {
    /// A read of so many sectors from `offset`, in bytes from the device's start. `token` is the source's own.
    #[must_use]
    pub fn new(offset: u64, sectors: usize, token: u64) -> Self {
        let buffer = if sectors == 1 {
            POOL.try_with(|pool| pool.borrow_mut().take()).ok().flatten().unwrap_or_else(|| AlignedBuffer::mapped(1))
        } else {
            AlignedBuffer::new(sectors)
        };
        Self::within(buffer, offset, sectors, token)
    }

    /// The buffer is as long as the read, or longer.
    fn within(buffer: AlignedBuffer, offset: u64, sectors: usize, token: u64) -> Self {
        Self { offset, bytes: sectors * SECTOR_BYTES, token, buffer }
    }

    /// Where to read, in bytes from the device's start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What the source knows this read by.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// What was read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.bytes]
    }

    /// What to fill; all of it. Its address is a multiple of [`SECTOR_BYTES`] and stays the same while the read moves.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[..self.bytes]
    }

    /// Another read of as many bytes, into the same buffer.
    #[must_use]
    pub(crate) fn again(mut self, offset: u64, token: u64) -> Self {
        (self.offset, self.token) = (offset, token);
        self
    }

    /// Gives up the buffer for good and takes another: the kernel may write into the old one at any time.
    pub(super) fn leak_buffer(&mut self) {
        let sectors = self.buffer.bytes().len() / SECTOR_BYTES;
        std::mem::forget(std::mem::replace(&mut self.buffer, AlignedBuffer::new(sectors)));
    }
}

impl Drop for DeviceRead {
    fn drop(&mut self) {
        if self.buffer.bytes().len() != SECTOR_BYTES {
            return;
        }
        let buffer = std::mem::replace(&mut self.buffer, AlignedBuffer::new(0));
        // An error: the thread is ending, and the buffer goes to the allocator.
        let _ = POOL.try_with(|pool| pool.borrow_mut().put(buffer));
    }
}

/// Buffers for runs of some sectors, of those who read many: a new one is zeroed, and what the heap keeps of them is long.
#[derive(Default)]
pub(crate) struct Runs(Vec<AlignedBuffer>);

impl Runs {
    /// The longest run that is kept a buffer for.
    const SECTORS: usize = 16;
    /// As many are kept: a mebibyte.
    const KEPT: usize = 16;

    /// As [`DeviceRead::new`].
    pub(crate) fn read(&mut self, offset: u64, sectors: usize, token: u64) -> DeviceRead {
        if sectors == 1 || sectors > Self::SECTORS {
            return DeviceRead::new(offset, sectors, token);
        }
        DeviceRead::within(self.0.pop().unwrap_or_else(|| AlignedBuffer::mapped(Self::SECTORS)), offset, sectors, token)
    }

    /// Takes back the buffer of a read that is over.
    pub(crate) fn take_back(&mut self, mut read: DeviceRead) {
        if read.buffer.bytes().len() == Self::SECTORS * SECTOR_BYTES && self.0.len() < Self::KEPT {
            self.0.push(std::mem::replace(&mut read.buffer, AlignedBuffer::new(0)));
        }
    }
}

/// Where the reads of a stream come from and go to. Called by one thread, which may be kept waiting by it.
pub trait ReadSource {
    /// The next read, if there is one now. After each [`ReadSource::done`] there may be more.
    fn next(&mut self) -> Option<DeviceRead>;

    /// Takes back a read of this source that ended; unless `result` is an error, all of its bytes are there.
    fn done(&mut self, read: DeviceRead, result: io::Result<()>);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A thread that had read much kept all of it for as long as it lived.
    #[test]
    fn a_thread_keeps_few_buffers_and_leaves_the_rest_to_others() {
        let own = || POOL.with_borrow(|pool| pool.0.len());
        let few = std::thread::spawn(move || {
            let reads: Vec<DeviceRead> = (0..128).map(|token| DeviceRead::new(0, 1, token)).collect();
            assert!(own() < AT_ONCE);
            drop(reads);
            let kept = own();
            drop(DeviceRead::new(0, 1, 0));
            (kept, own())
        });
        let (kept, after) = few.join().unwrap();
        assert!((AT_ONCE..2 * AT_ONCE).contains(&kept) && after == kept, "{kept}, then {after}");
        assert!(SHARED.lock().unwrap().len() <= SHARED_MAX);
    }

    #[test]
    fn buffers_of_runs_are_used_again_and_only_some_are_kept() {
        let mut runs = Runs::default();
        let mut first = runs.read(4096, 3, 7);
        assert_eq!((first.offset(), first.token(), first.bytes().len()), (4096, 7, 3 * SECTOR_BYTES));
        first.bytes_mut().fill(9);
        let at = first.bytes().as_ptr();
        runs.take_back(first);
        let longer = runs.read(0, Runs::SECTORS, 8);
        assert_eq!((longer.bytes().as_ptr(), longer.bytes().len()), (at, Runs::SECTORS * SECTOR_BYTES));
        assert!(longer.bytes()[..3 * SECTOR_BYTES].iter().all(|byte| *byte == 9), "what was read before may be there");
        // One sector has another pool, and what is longer has none.
        for sectors in [1, Runs::SECTORS + 1] {
            let other = runs.read(0, sectors, 0);
            assert_eq!(other.bytes().len(), sectors * SECTOR_BYTES);
            runs.take_back(other);
        }
        assert!(runs.0.is_empty());
        let many: Vec<DeviceRead> = (0..2 * Runs::KEPT as u64).map(|token| runs.read(0, 2, token)).collect();
        many.into_iter().for_each(|read| runs.take_back(read));
        assert_eq!(runs.0.len(), Runs::KEPT);
    }
}
