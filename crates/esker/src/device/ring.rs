//! A stream of reads through io_uring.
//!
//! Each thread has a ring of its own (no lock, no hand-over) and keeps it for its next streams, unless very many do. A stream takes the
//! ring out of its place, so that a source which reads again from inside `done` gets another one instead of this one's completions.
//!
//! The rule: a [`DeviceRead`] stays in its slot from before its submission until its completion was seen, because the kernel writes into
//! its buffer meanwhile, and with it the file it is read from. [`Lease`] keeps the rule when the source panics, too: its drop waits. If the
//! kernel refuses even to wait, the buffers are leaked rather than freed.
//!
//! **All streams of the process share the depth** ([`All`]): what is under way of 48 threads need not be 48 times what keeps the device
//! busy. A stream whose source keeps its thread waiting has nothing under way, and the others have what it leaves.

use super::{Device, DeviceRead, ReadSource, hand_back};
use io_uring::{IoUring, opcode, types};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Reads under way of a stream, if it is one of few.
const DEPTH: usize = 128;
/// Of all streams together, or so: what keeps any device busy. Two mebibytes, where each is of one sector.
const DEPTH_OF_ALL: usize = 512;
/// A stream of many has so many at least.
const DEPTH_MIN: usize = 8;
/// Rings that threads keep: each is a file handle, of which a process may have no more than a thousand.
const KEPT_MAX: usize = 128;
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
    Idle(Kept),
}

/// A ring that its thread keeps for the next stream.
struct Kept(Option<Box<Ring>>);

static KEPT: AtomicUsize = AtomicUsize::new(0);

impl Kept {
    /// `None`, and the ring ends, if there are enough.
    fn of(ring: Box<Ring>) -> Option<Self> {
        let kept = Self(Some(ring));
        (KEPT.fetch_add(1, Relaxed) < KEPT_MAX).then_some(kept)
    }

    fn take(mut self) -> Option<Box<Ring>> {
        self.0.take()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        less(&KEPT, 1);
    }
}

static ALL: All = All { process: AtomicU32::new(0), streams: AtomicUsize::new(0), reads: AtomicUsize::new(0) };

/// What the streams of a process have under way.
struct All {
    /// Whose they are. In one that was forked from it there are none.
    process: AtomicU32,
    streams: AtomicUsize,
    reads: AtomicUsize,
}

impl All {
    fn begin(&self, process: u32) {
        let owner = self.process.load(Relaxed);
        if owner != process && self.process.compare_exchange(owner, process, Relaxed, Relaxed).is_ok() && owner != 0 {
            self.streams.store(0, Relaxed);
            self.reads.store(0, Relaxed);
        }
        self.streams.fetch_add(1, Relaxed);
    }

    /// True if a stream that has so many reads may have one more.
    fn has_room(&self, own: usize) -> bool {
        let share = (DEPTH_OF_ALL / self.streams.load(Relaxed).max(1)).max(DEPTH_MIN);
        own < DEPTH && (own < share || self.reads.load(Relaxed) < DEPTH_OF_ALL)
    }
}

/// Not below zero: it was begun in the process from which this one was forked.
fn less(count: &AtomicUsize, by: usize) {
    let _ = count.fetch_update(Relaxed, Relaxed, |count| Some(count.saturating_sub(by)));
}

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
        let kept = match PLACE.try_with(|place| place.replace(Place::Empty)).ok()? {
            Place::Idle(kept) => kept.take().filter(|ring| ring.process == process::id()),
            Place::Forbidden => {
                PLACE.set(Place::Forbidden);
                return None;
            }
            Place::Untried | Place::Empty => None,
        };
        let ring = match kept {
            Some(ring) => ring,
            None => match set_up() {
                Ok(io) => Box::new(Ring::new(io)),
                Err(error) => {
                    // For want of handles or memory it may be granted the next time.
                    let passes = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN));
                    PLACE.set(if passes { Place::Untried } else { Place::Forbidden });
                    return None;
                }
            },
        };
        ALL.begin(ring.process);
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
        less(&ALL.reads, failed.len());
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
        less(&ALL.streams, 1);
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
            let _ = PLACE.try_with(|place| place.set(Kept::of(ring).map_or(Place::Empty, Place::Idle)));
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
        while ALL.has_room(self.under_way())
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
        ALL.reads.fetch_add(1, Relaxed);
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
                less(&ALL.reads, 1);
                ended(read, done.result());
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::{FileDevice, SECTOR_BYTES, read_stream};

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

    /// 48 threads had 128 buffers each under way, and kept them: 24 MiB beside a budget of 64, and twice as much of heap.
    #[test]
    fn many_streams_share_what_is_under_way() {
        let most = |streams: usize, reads_of_all: usize| {
            let all = All { process: AtomicU32::new(1), streams: AtomicUsize::new(streams), reads: AtomicUsize::new(reads_of_all) };
            (0..).find(|own| !all.has_room(*own)).unwrap()
        };
        for (streams, of_each) in [(1, 128), (4, 128), (8, 64), (48, 10), (64, 8), (1000, 8)] {
            assert_eq!(most(streams, DEPTH_OF_ALL), of_each, "{streams} streams");
            assert_eq!(most(streams, DEPTH_OF_ALL - 1), DEPTH, "{streams} streams, of which most wait for their sources");
        }
    }

    #[test]
    fn a_forked_process_begins_with_nothing_under_way() {
        let all = All { process: AtomicU32::new(0), streams: AtomicUsize::new(0), reads: AtomicUsize::new(0) };
        (0..3).for_each(|_| all.begin(7));
        all.reads.fetch_add(5, Relaxed);
        assert_eq!(all.streams.load(Relaxed), 3);
        all.begin(8);
        assert_eq!((all.streams.load(Relaxed), all.reads.load(Relaxed)), (1, 0));
        // What was begun in the first one ends here.
        less(&all.streams, 2);
        assert_eq!(all.streams.load(Relaxed), 0);
    }

    /// Whatever ends a stream, what it had under way is nobody's any more.
    #[test]
    fn a_ring_without_reads_counts_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; SECTORS * SECTOR_BYTES]).unwrap();
        let device = FileDevice::open(&path, false, false).unwrap();
        let Some(lease) = Lease::take() else { return };
        assert!(ALL.streams.load(Relaxed) > 0);
        let own = lease.ring.as_ref().unwrap();
        assert_eq!((own.under_way(), own.free.len()), (0, DEPTH));
        drop(lease);
        for _ in 0..20 {
            let mut chain = Chain::default();
            read_stream(&device, true, &mut chain);
            assert_eq!(chain.read, 100);
        }
        // Of 2,000 that were counted; other tests have less under way.
        assert!(ALL.reads.load(Relaxed) < 1_000);
    }
}
