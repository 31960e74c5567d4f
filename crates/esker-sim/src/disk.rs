//! A simulated disk.
//!
//! The theory: an engine sees of a disk only the order in which calls finish, how long they take,
//! whether they fail, and the bytes they bring. So each of these is under the control of a seed or of
//! the test: [`SimDisk`] spins and yields instead of waiting, finishes the reads of a stream in a
//! random order, fails the n-th call of a kind (once or from then on) and lets a test flip bits.
//! Contents live in memory by sectors; a sector never written reads as zeros. A write that fails may
//! leave a prefix of its sectors behind, as a real one may.

use esker::{Device, ReadSource};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Bytes in a sector: the unit of every offset and length.
pub const SECTOR: usize = 4096;

/// Reads of a stream under way.
const DEPTH: usize = 32;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EINTR: i32 = 4;

/// What a call asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read (each of a stream counts as one).
    Read,
    /// A write.
    Write,
    /// A sync.
    Sync,
}

/// The error a fault gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device failed (EIO).
    Io,
    /// No space left (ENOSPC).
    NoSpace,
    /// A signal came in between (EINTR).
    Interrupted,
}

impl Failure {
    pub(crate) fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Failure::Io => EIO,
            Failure::NoSpace => ENOSPC,
            Failure::Interrupted => EINTR,
        })
    }
}

/// A planned failure.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The kind of call that fails.
    pub call: Call,
    /// Which call of that kind fails, the first being 1.
    pub nth: u64,
    /// Whether every later call of the kind fails too.
    pub lasting: bool,
    /// The error given.
    pub failure: Failure,
}

impl Fault {
    fn strikes(&self, call: Call, number: u64) -> bool {
        self.call == call && (number == self.nth || self.lasting && number > self.nth)
    }
}

/// How many calls of each kind were made, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Calls of any kind that a fault struck.
    pub failed: u64,
}

/// A disk in memory that does what its seed and its faults say.
pub struct SimDisk {
    sectors: RwLock<HashMap<u64, Box<[u8; SECTOR]>>>,
    faults: Mutex<Vec<Fault>>,
    random: Mutex<ChaCha8Rng>,
    delay: u32,
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    failed: AtomicU64,
}

impl SimDisk {
    /// An empty disk with a short random latency.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::with_delay(seed, 200)
    }

    /// An empty disk whose calls spin up to `delay` turns, yielding now and then.
    pub fn with_delay(seed: u64, delay: u32) -> SimDisk {
        SimDisk {
            sectors: RwLock::default(),
            faults: Mutex::default(),
            random: Mutex::new(ChaCha8Rng::seed_from_u64(seed)),
            delay,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Plans a failure.
    pub fn fail(&self, fault: Fault) {
        lock(&self.faults).push(fault);
    }

    /// Forgets every planned failure.
    pub fn heal(&self) {
        lock(&self.faults).clear();
    }

    /// The calls made so far.
    pub fn calls(&self) -> Calls {
        Calls {
            reads: self.reads.load(Ordering::SeqCst),
            writes: self.writes.load(Ordering::SeqCst),
            syncs: self.syncs.load(Ordering::SeqCst),
            failed: self.failed.load(Ordering::SeqCst),
        }
    }

    /// Flips bit `bit` of the byte at `offset`.
    pub fn corrupt(&self, offset: u64, bit: u8) {
        let (sector, within) = (offset / SECTOR as u64, (offset % SECTOR as u64) as usize);
        let mut sectors = self.sectors.write().unwrap_or_else(PoisonError::into_inner);
        sectors.entry(sector).or_insert_with(blank)[within] ^= 1 << (bit % 8);
    }

    /// The offsets of the sectors ever written, ascending.
    pub fn written(&self) -> Vec<u64> {
        let sectors = self.sectors.read().unwrap_or_else(PoisonError::into_inner);
        let mut offsets: Vec<u64> = sectors.keys().map(|s| s * SECTOR as u64).collect();
        offsets.sort_unstable();
        offsets
    }

    fn draw(&self, below: u32) -> u32 {
        lock(&self.random).random_range(0..below.max(1))
    }

    fn linger(&self) {
        let turns = self.draw(self.delay + 1);
        for turn in 0..turns {
            if turn % 64 == 63 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    /// Counts a call and says how it fails, if it does.
    fn count(&self, call: Call) -> io::Result<()> {
        let counter = match call {
            Call::Read => &self.reads,
            Call::Write => &self.writes,
            Call::Sync => &self.syncs,
        };
        let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
        let struck = lock(&self.faults).iter().find(|f| f.strikes(call, number)).copied();
        match struck {
            None => Ok(()),
            Some(fault) => {
                self.failed.fetch_add(1, Ordering::SeqCst);
                Err(fault.failure.error())
            }
        }
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        let sectors = self.sectors.read().unwrap_or_else(PoisonError::into_inner);
        for (sector, part) in (offset / SECTOR as u64..).zip(into.chunks_exact_mut(SECTOR)) {
            match sectors.get(&sector) {
                Some(bytes) => part.copy_from_slice(&bytes[..]),
                None => part.fill(0),
            }
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let mut sectors = self.sectors.write().unwrap_or_else(PoisonError::into_inner);
        for (sector, part) in (offset / SECTOR as u64..).zip(bytes.chunks_exact(SECTOR)) {
            sectors.entry(sector).or_insert_with(blank).copy_from_slice(part);
        }
    }
}

impl Device for SimDisk {
    fn bytes(&self) -> io::Result<u64> {
        let sectors = self.sectors.read().unwrap_or_else(PoisonError::into_inner);
        Ok(sectors.keys().max().map_or(0, |last| (last + 1) * SECTOR as u64))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        aligned(offset, into.len())?;
        self.linger();
        self.count(Call::Read)?;
        self.load(offset, into);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        aligned(offset, bytes.len())?;
        self.linger();
        if let Err(error) = self.count(Call::Write) {
            let kept = self.draw((bytes.len() / SECTOR) as u32 + 1) as usize;
            self.store(offset, &bytes[..kept.min(bytes.len() / SECTOR) * SECTOR]);
            return Err(error);
        }
        self.store(offset, bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.linger();
        self.count(Call::Sync)
    }

    fn read_stream(&self, source: &mut dyn ReadSource) {
        let mut under_way = Vec::new();
        loop {
            while under_way.len() < DEPTH
                && let Some(read) = source.next()
            {
                under_way.push(read);
            }
            if under_way.is_empty() {
                return;
            }
            let mut read = under_way.swap_remove(self.draw(under_way.len() as u32) as usize);
            let result = self.read(read.offset(), read.bytes_mut());
            source.done(read, result);
        }
    }
}

fn blank() -> Box<[u8; SECTOR]> {
    Box::new([0; SECTOR])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine that breaks the alignment rule is wrong: it is told so as a file with direct I/O would.
fn aligned(offset: u64, length: usize) -> io::Result<()> {
    if offset.is_multiple_of(SECTOR as u64) && length.is_multiple_of(SECTOR) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("unaligned call: {length} bytes at {offset}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker::DeviceRead;

    #[test]
    fn keeps_what_is_written_and_zeros_elsewhere() {
        let disk = SimDisk::new(1);
        disk.write(8192, &[7; SECTOR]).unwrap();
        let mut bytes = vec![1; 3 * SECTOR];
        disk.read(4096, &mut bytes).unwrap();
        assert!(bytes[..SECTOR].iter().all(|b| *b == 0));
        assert!(bytes[SECTOR..2 * SECTOR].iter().all(|b| *b == 7));
        assert!(bytes[2 * SECTOR..].iter().all(|b| *b == 0));
        assert_eq!(disk.written(), [8192]);
        assert!(disk.read(1, &mut bytes).is_err());
    }

    #[test]
    fn fails_the_call_it_was_told_to() {
        let disk = SimDisk::new(2);
        disk.fail(Fault { call: Call::Write, nth: 2, lasting: false, failure: Failure::NoSpace });
        disk.fail(Fault { call: Call::Sync, nth: 1, lasting: true, failure: Failure::Io });
        let page = [1; SECTOR];
        assert!(disk.write(0, &page).is_ok());
        assert_eq!(disk.write(0, &page).unwrap_err().raw_os_error(), Some(ENOSPC));
        assert!(disk.write(0, &page).is_ok());
        assert_eq!(disk.sync().unwrap_err().raw_os_error(), Some(EIO));
        assert!(disk.sync().is_err());
        disk.heal();
        assert!(disk.sync().is_ok());
        assert_eq!(disk.calls(), Calls { reads: 0, writes: 3, syncs: 3, failed: 3 });
    }

    #[test]
    fn flips_one_bit() {
        let disk = SimDisk::new(3);
        disk.write(0, &[0; SECTOR]).unwrap();
        disk.corrupt(17, 3);
        let mut bytes = vec![0; SECTOR];
        disk.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[17], 8);
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 1);
    }

    /// Reads pages one after another and keeps what each brought.
    struct Pages {
        next: u64,
        seen: Vec<Option<u8>>,
    }

    impl ReadSource for Pages {
        fn next(&mut self) -> Option<DeviceRead> {
            let page = self.next;
            self.next += 1;
            (page < self.seen.len() as u64).then(|| DeviceRead::new(page * SECTOR as u64, 1, page))
        }

        fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
            result.unwrap();
            assert!(read.bytes().iter().all(|byte| *byte == read.bytes()[0]));
            assert!(self.seen[read.token() as usize].replace(read.bytes()[0]).is_none(), "handed back twice");
        }
    }

    #[test]
    fn a_stream_does_every_read_once() {
        let disk = SimDisk::new(4);
        for page in 0..100u8 {
            disk.write(u64::from(page) * SECTOR as u64, &[page; SECTOR]).unwrap();
        }
        let mut pages = Pages { next: 0, seen: vec![None; 100] };
        disk.read_stream(&mut pages);
        assert!(pages.seen.iter().enumerate().all(|(page, seen)| *seen == Some(page as u8)));
    }
}
