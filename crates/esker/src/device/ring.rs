//! A stream of reads through io_uring.
//!
//! Each thread has a ring of its own (no lock, no hand-over) and keeps it for its next streams. A stream takes the ring out
//! of its place, so that a source which reads again from inside `done` gets another one instead of this one's completions.
//!
//! The rule: a [`DeviceRead`] stays in its slot from before its submission until its completion was seen, because the kernel writes into
//! its buffer meanwhile, and with it the file it is read from. [`Lease`] keeps the rule when the source panics, too: its drop waits. If the
//! kernel refuses even to wait, the buffers are leaked rather than freed.

use super::{Device, DeviceRead, ReadSource, hand_back};
use io_uring::{IoUring, opcode, types};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Reads under way of a stream, if it is one of few.
const DEPTH: usize = 128;
/// Of all streams together, or so: what keeps any device busy, and two mebibytes of buffers.
const DEPTH_OF_ALL: usize = 512;
/// A stream of many has so many at least.
const DEPTH_MIN: usize = 8;
/// Reads collected before the kernel hears of them, so that the device starts while the source still looks for more.
const SUBMISSION: usize = 32;

struct Ring {
    io: IoUring,
    /// Whose it is: a process that was forked from that one shares the ring's memory, and must let it alone.
    process: u32,
    slots: Vec<Option<UnderWay>>,
    /// The slots without a read.
    free: Vec<u16>,
}

/// A read that the kernel knows of, or will.
struct UnderWay {
    read: DeviceRead,
    _file: Arc<File>,
}

enum Place {
    Untried,
    Forbidden,
    /// Also while a stream has the ring: the next one makes its own.
    Empty,
    Idle(Box<Ring>),
}

/// Streams of this process that are reading.
static STREAMS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Untried) };
}

/// Does the reads of `source`. False if it may have more, for the caller: this thread cannot have a ring (nothing was read then), or the
/// ring failed, and with it what was under way.
pub(super) fn read_stream(device: &dyn Device, source: &mut dyn ReadSource) -> bool {
    let Some(mut lease) = Lease::take() else { return false };
    let Err(error) = lease.run(device, source) else { return true };
    lease.abandon(Some((source, error)));
    false
}

/// The newest kernels run completions only when we ask for them, which spares interrupts; older ones do without.
fn set_up() -> io::Result<IoUring> {
    let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32);
    deferred.or_else(|_| IoUring::new(DEPTH as u32))
}

/// A ring that is in use; its slots are empty before and after.
struct Lease {
    ring: Option<Box<Ring>>,
}

impl Lease {
    fn take() -> Option<Self> {
        // None: the thread is ending, and reads in a destructor.
        let ring = match PLACE.try_with(|place| place.replace(Place::Empty)).ok()? {
            Place::Idle(ring) if ring.process == process::id() => ring,
            Place::Forbidden => {
                PLACE.set(Place::Forbidden);
                return None;
            }
            Place::Untried | Place::Empty | Place::Idle(..) => match set_up() {
                Ok(io) => Box::new(Ring::new(io)),
                Err(_) => {
                    PLACE.set(Place::Forbidden);
                    return None;
                }
            },
        };
        STREAMS.fetch_add(1, Relaxed);
        Some(Self { ring: Some(ring) })
    }

    fn run(&mut self, device: &dyn Device, source: &mut dyn ReadSource) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        loop {
            ring.fill(device, source)?;
            if ring.under_way() == 0 {
                return Ok(());
            }
            ring.submit_and_wait(1)?;
            ring.reap(|read, result| {
                let is_whole = usize::try_from(result) == Ok(read.bytes().len());
                hand_back(device, source, read, is_whole);
            });
        }
    }

    /// Ends the ring, which failed: closing it does not stop the kernel at once, so the buffers are lost.
    fn abandon(&mut self, mut report: Option<(&mut dyn ReadSource, io::Error)>) {
        let Some(mut ring) = self.ring.take() else { return };
        let mut failed: Vec<UnderWay> = ring.slots.iter_mut().filter_map(Option::take).collect();
        // All of them before the source, which may panic, hears of one.
        failed.iter_mut().for_each(|under_way| under_way.read.leak_buffer());
        for UnderWay { read, .. } in failed {
            if let Some((source, error)) = &mut report {
                source.done(read, Err(io::Error::new(error.kind(), format!("io_uring failed: {error}"))));
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        STREAMS.fetch_sub(1, Relaxed);
        while let Some(ring) = &mut self.ring
            && ring.under_way() > 0
        {
            // Only after a panic of the source.
            match ring.submit_and_wait(1) {
                Ok(()) => ring.reap(|_, _| ()),
                Err(_) => self.abandon(None),
            }
        }
        if let Some(ring) = self.ring.take() {
            // An error: the thread is ending.
            let _ = PLACE.try_with(|place| place.set(Place::Idle(ring)));
        }
    }
}

impl Ring {
    fn new(io: IoUring) -> Self {
        let (slots, free) = ((0..DEPTH).map(|_| None).collect(), (0..DEPTH as u16).rev().collect());
        Self { io, process: process::id(), slots, free }
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn fill(&mut self, device: &dyn Device, source: &mut dyn ReadSource) -> io::Result<()> {
        let mut queued = 0;
        let depth = (DEPTH_OF_ALL / STREAMS.load(Relaxed).max(1)).clamp(DEPTH_MIN, DEPTH);
        while self.under_way() < depth
            && let Some(read) = source.next()
        {
            let Some((file, offset)) = device.file_at(read.offset(), read.bytes().len()) else {
                // Across two files, or where none is: rare.
                hand_back(device, source, read, false);
                continue;
            };
            self.push(file, offset, read);
            queued += 1;
            if queued % SUBMISSION == 0 {
                self.submit_and_wait(0)?;
            }
        }
        Ok(())
    }

    /// Queues a read; there is a free slot.
    fn push(&mut self, file: Arc<File>, offset: u64, read: DeviceRead) {
        let Some(slot) = self.free.pop() else { unreachable!("a read was asked for without a free slot") };
        let fd = types::Fd(file.as_raw_fd());
        let UnderWay { read, .. } = self.slots[usize::from(slot)].insert(UnderWay { read, _file: file });
        let bytes = read.bytes_mut();
        let entry = opcode::Read::new(fd, bytes.as_mut_ptr(), bytes.len() as u32).offset(offset).build().user_data(slot.into());
        // SAFETY: buffer and file stay in their slot until `reap` saw the completion; `Lease` is not dropped earlier.
        // The queue has `DEPTH` entries and never holds more than one for each slot.
        let queued = unsafe { self.io.submission().push(&entry) };
        assert!(queued.is_ok(), "the submission queue has an entry for each slot");
    }

    fn submit_and_wait(&self, want: usize) -> io::Result<()> {
        match self.io.submit_and_wait(want) {
            // What was not submitted stays queued; the caller comes again.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the reads that have ended out of their slots.
    fn reap(&mut self, mut ended: impl FnMut(DeviceRead, i32)) {
        for done in self.io.completion() {
            let slot = done.user_data() as u16;
            if let Some(UnderWay { read, .. }) = self.slots[usize::from(slot)].take() {
                self.free.push(slot);
                ended(read, done.result());
            }
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::device::{FileDevice, SECTOR_BYTES, read_stream};
    use std::sync::Barrier;

    /// Buffers so long are mappings: one that is lost is no leak to a sanitizer.
    const SECTORS: usize = 32;

    /// A hundred reads, one after the other's end.
    #[derive(Default)]
    struct Chain {
        asked: u64,
        is_under_way: bool,
        read: u64,
    }

    impl ReadSource for Chain {
        fn next(&mut self) -> Option<DeviceRead> {
            let next = (!self.is_under_way && self.asked < 100).then(|| DeviceRead::new(0, SECTORS, self.asked))?;
            self.asked += 1;
            self.is_under_way = true;
            Some(next)
        }

        fn done(&mut self, _: DeviceRead, result: io::Result<()>) {
            self.is_under_way = false;
            self.read += u64::from(result.is_ok());
        }
    }

    /// Only what was under way is lost. Nobody asked for the rest, and whoever waited for it waited on.
    #[test]
    fn where_the_ring_fails_threads_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; SECTORS * SECTOR_BYTES]).unwrap();
        let device = FileDevice::open(&path, false, false).unwrap();
        let Some(lease) = Lease::take() else { return };
        let nothing = File::open("/dev/null").unwrap();
        let ring = lease.ring.as_ref().unwrap().io.as_raw_fd();
        // SAFETY: both are open, and the first is this thread's ring, which nobody else uses; it is closed once, with the ring.
        assert!(unsafe { libc::dup2(nothing.as_raw_fd(), ring) } == ring);
        drop(lease);
        let mut chain = Chain::default();
        read_stream(&device, true, &mut chain);
        assert_eq!((chain.asked, chain.read), (100, 99));
    }

    /// First one read, then as many as it may have: the most at once is told.
    struct Deep<'a> {
        all_have_begun: &'a Barrier,
        asked: usize,
        under_way: usize,
        most: usize,
    }

    impl ReadSource for Deep<'_> {
        fn next(&mut self) -> Option<DeviceRead> {
            if self.asked == 3 * DEPTH || self.asked == 1 && self.under_way == 1 {
                return None;
            }
            self.asked += 1;
            self.under_way += 1;
            self.most = self.most.max(self.under_way);
            Some(DeviceRead::new(0, 1, 0))
        }

        fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
            assert!(result.is_ok() && read.bytes().iter().all(|byte| *byte == 7));
            self.under_way -= 1;
            if self.asked == 1 || self.asked == 3 * DEPTH && self.under_way == 0 {
                self.all_have_begun.wait();
            }
        }
    }

    /// 48 threads had 128 buffers each under way, and kept them: 24 MiB beside a budget of 64, and twice as much of heap.
    #[test]
    fn many_streams_share_what_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; SECTOR_BYTES]).unwrap();
        let device = FileDevice::open(&path, false, false).unwrap();
        if Lease::take().is_none() {
            return;
        }
        let most_of_each = |streams: usize| {
            let all_have_begun = Barrier::new(streams);
            let read = || {
                let mut deep = Deep { all_have_begun: &all_have_begun, asked: 0, under_way: 0, most: 0 };
                assert!(super::read_stream(&device, &mut deep));
                assert_eq!(deep.asked, 3 * DEPTH);
                deep.most
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..streams).map(|_| scope.spawn(read)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
            })
        };
        // Other tests read, too.
        assert!(most_of_each(1) > DEPTH_OF_ALL / 32);
        let most = most_of_each(32);
        assert!((DEPTH_MIN..=DEPTH_OF_ALL / 32).contains(&most), "{most}");
    }
}
