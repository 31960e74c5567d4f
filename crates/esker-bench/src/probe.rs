//! What the device itself gives: random reads of 4 KiB from a file, by threads of our own.
//!
//! The file is opened past the page cache where the system allows it (`O_DIRECT`); where it does
//! not, the result says so, for it may then be the speed of memory. A depth of n is n threads that
//! each wait for one read at a time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// The size of a read.
const BLOCK: usize = 4096;
/// Blocks per write while the file is filled.
const FILL_BLOCKS: usize = 256;

/// Memory at the alignment that reads past the page cache ask for.
#[repr(C, align(4096))]
pub(crate) struct Aligned([u8; BLOCK]);

/// A file of random bytes; deleted with the probe.
pub(crate) struct Probe {
    path: PathBuf,
    file: File,
    blocks: u64,
    /// Whether reads go past the page cache.
    pub(crate) direct: bool,
}

impl Probe {
    /// Fills a file in a directory.
    pub(crate) fn create(directory: &Path, bytes: u64) -> Result<Self> {
        let path = directory.join("probe");
        let blocks = bytes.div_ceil((BLOCK * FILL_BLOCKS) as u64) * FILL_BLOCKS as u64;
        fill(&path, blocks).with_context(|| format!("writing {}", path.display()))?;
        let (file, direct) = open(&path)?;
        Ok(Self { path, file, blocks, direct })
    }

    /// Reads per second with so many threads.
    pub(crate) fn measure(&self, depth: usize, seconds: f64) -> Result<f64> {
        let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let barrier = Barrier::new(depth + 1);
        let elapsed = std::thread::scope(|scope| -> Result<Duration> {
            let reader = |seed| {
                barrier.wait();
                self.read_until(&over, &reads, seed)
            };
            let threads: Vec<_> = (0..depth as u64).map(|seed| scope.spawn(move || reader(seed))).collect();
            barrier.wait();
            let start = Instant::now();
            std::thread::sleep(Duration::from_secs_f64(seconds));
            over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a thread of the probe failed")??;
            }
            Ok(start.elapsed())
        })?;
        Ok(reads.into_inner() as f64 / elapsed.as_secs_f64())
    }

    /// Bytes per second of one thread that reads from the beginning to the end, a mebibyte at a time.
    pub(crate) fn measure_sequential(&self) -> Result<f64> {
        let mut piece: Vec<Aligned> = (0..FILL_BLOCKS).map(|_| Aligned([0; BLOCK])).collect();
        // SAFETY: `Aligned` is bytes without padding (its size is its alignment).
        let bytes = unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast::<u8>(), FILL_BLOCKS * BLOCK) };
        let start = Instant::now();
        for number in 0..self.blocks / FILL_BLOCKS as u64 {
            self.file.read_exact_at(bytes, number * bytes.len() as u64)?;
        }
        Ok((self.blocks * BLOCK as u64) as f64 / start.elapsed().as_secs_f64())
    }

    fn read_until(&self, over: &AtomicBool, reads: &AtomicU64, seed: u64) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut block = Box::new(Aligned([0; BLOCK]));
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            let offset = random.random_range(0..self.blocks) * BLOCK as u64;
            self.file.read_exact_at(&mut block.0, offset)?;
            count += 1;
        }
        reads.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // The directory is a temporary one and takes the file along if this fails.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn fill(path: &Path, blocks: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut bytes = vec![0; BLOCK * FILL_BLOCKS];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    for number in 0..blocks / FILL_BLOCKS as u64 {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

/// Memory at the alignment that reads past the page cache ask for.
pub(crate) fn aligned(bytes: usize) -> Vec<Aligned> {
    std::iter::repeat_with(|| Aligned([0; BLOCK])).take(bytes.div_ceil(BLOCK)).collect()
}

pub(crate) fn bytes_of(memory: &mut [Aligned]) -> &mut [u8] {
    // SAFETY: `Aligned` is a byte array without padding (size 4096 = align 4096), so the slice is that many plain bytes.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), std::mem::size_of_val(memory)) }
}

/// A file to read past the page cache, and whether that is so.
#[cfg(target_os = "linux")]
pub(crate) fn open(path: &Path) -> Result<(File, bool)> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let readable = |file: &File| {
        let mut block = Box::new(Aligned([0; BLOCK]));
        file.read_exact_at(&mut block.0, 0).is_ok()
    };
    match direct {
        Ok(file) if readable(&file) => Ok((file, true)),
        _ => Ok((File::open(path)?, false)),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(path: &Path) -> Result<(File, bool)> {
    Ok((File::open(path)?, false))
}
