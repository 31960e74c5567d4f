//! A place whose devices are slow, answer out of order, fail and panic, at random.
//!
//! The theory: nothing is lost by what they do, so an engine that is asked again must give the right answer. Only a write or a sync that is
//! broken is so for ever.

use esker::{Device, DeviceRead, MemoryStorage, ReadSource, Storage};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What the devices do wrong.
#[derive(Debug, Default)]
pub struct Faults {
    slow: u64,
    failing: u64,
    panicking: u64,
    calls: AtomicU64,
    /// Nothing more goes wrong of what goes wrong at random.
    pub are_off: AtomicBool,
    /// Every write fails.
    pub are_writes_broken: AtomicBool,
    /// Every sync fails.
    pub are_syncs_broken: AtomicBool,
}

impl Faults {
    /// One in so many calls takes its time, one in so many reads fails, and one of those that are done for futures panics (a blocking call
    /// would pass it on to its caller); 0 is never.
    #[must_use]
    pub fn new(slow: u64, failing: u64, panicking: u64) -> Faults {
        Faults { slow, failing, panicking, ..Faults::default() }
    }

    fn strike(&self, one_in: u64) -> bool {
        let call = xxh3_64(&self.calls.fetch_add(1, SeqCst).to_ne_bytes());
        !self.are_off.load(SeqCst) && one_in > 0 && call.is_multiple_of(one_in)
    }

    fn call(&self, fails: bool) -> io::Result<()> {
        if self.strike(self.slow) {
            thread::sleep(Duration::from_micros(200));
        }
        if fails { Err(io::Error::other("the device's own")) } else { Ok(()) }
    }
}

struct Faulty(Arc<Faults>, Arc<dyn Device>);

impl Device for Faulty {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.call(self.0.strike(self.0.failing))?;
        if thread::current().name() == Some("esker-reader") && self.0.strike(self.0.panicking) {
            std::panic::resume_unwind(Box::new("the device's own"));
        }
        self.1.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.call(self.0.are_writes_broken.load(SeqCst))?;
        self.1.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.call(self.0.are_syncs_broken.load(SeqCst))?;
        self.1.sync()
    }

    fn discard(&self, from: u64, to: u64) -> io::Result<()> {
        self.1.discard(from, to)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.1.bytes()
    }
}

/// Files in memory behind devices with faults.
pub struct Unsteady(pub Arc<Faults>, pub Arc<MemoryStorage>);

impl Storage for Unsteady {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(Faulty(self.0.clone(), self.1.open(name)?)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.1.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.1.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.sync()
    }

    /// All that are asked for are under way together, and answered in any order.
    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        let mut under_way: Vec<DeviceRead> = Vec::new();
        loop {
            under_way.extend(std::iter::from_fn(|| source.next()));
            let Some(last) = under_way.len().checked_sub(1) else { return };
            let mut read = under_way.swap_remove(self.0.calls.load(SeqCst) as usize % (last + 1));
            let result = device.read(read.offset(), read.bytes_mut());
            source.done(read, result);
        }
    }
}
