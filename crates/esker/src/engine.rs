//! The engine: epochs, index and log put together, and the driver that moves their boundaries.
//!
//! ```text
//! room.rs     one budget, and the boundaries that keep the log to its share
//! driver.rs   a thread that does early what others would wait for
//! growth.rs   the index grows with those who add entries
//! failure.rs  what stops all writing, for good or for now
//! hasher.rs   keys to hashes                     stats.rs    what `stats` shows
//! ```
//! Operations (`store/`) run under a pin and never wait while they hold it. What needs waiting (room in the log) is
//! done by whoever waits: [`Engine::make_room`] does the driver's work itself. The driver thread only does it earlier.

mod driver;
mod failure;
mod growth;
pub(crate) mod hasher;
mod room;
mod stats;

use crate::cache::{Cache, Caching};
use crate::commit::{Commits, Durability, Line};
use crate::compaction::Compaction;
use crate::device::{Device, Storage};
use crate::epoch::Epochs;
use crate::error::{Error, Result};
use crate::expiry::{Clock, Expiry};
use crate::image::Images;
use crate::index::Index;
use crate::latches::Latches;
use crate::log::Log;
use crate::manifest::{Identity, Manifest};
use crate::memory;
use crate::promotion::Lately;
use crate::recovery::Manner;
use crate::scars::Scars;
use crate::snapshot::Holds;
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::{Mutex, lock};
use crate::types::Layout;
use driver::Drawn;
pub(crate) use driver::Retries;
use failure::Failure;
pub(crate) use hasher::Hasher;
pub(crate) use room::{BUDGET_BYTES_MIN, Loan, check_budget, check_space, default_budget};
use std::sync::Arc;
use std::time::Instant;

const HUGE_PAGE_BUDGET_BYTES: u64 = 256 << 20;

pub(crate) struct Engine {
    pub(crate) epochs: Epochs,
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) latches: Latches,
    pub(crate) layout: Layout,
    /// The width of values where all have the same.
    pub(crate) value_width: Option<usize>,
    pub(crate) hasher: Hasher,
    opened: Instant,
    /// Where the store lives, until it closes; none for a store in memory or on a bare device.
    pub(crate) home: Mutex<Option<Home>>,
    /// Nothing need be kept at its close: its files, if there are any, go with it.
    pub(crate) is_temporary: bool,
    pub(crate) commits: Commits,
    pub(crate) compaction: Compaction,
    pub(crate) scars: Scars,
    /// Cold records that are read again come back into memory (`promotion.rs`).
    pub(crate) is_promoting: bool,
    pub(crate) lately: Lately,
    /// Nothing changes in place, and each record leads to the one that it supersedes (`store/history.rs`).
    pub(crate) keeps_versions: bool,
    pub(crate) images: Images,
    pub(crate) expiry: Expiry,
    /// In a cache.
    pub(crate) caching: Option<Caching>,
    /// Pairs may have been dropped for want of room: it is a cache, or was opened as one before.
    pub(crate) is_lossy: bool,
    pub(crate) loads: Loads,
    pub(crate) holds: Holds,
    /// The driver compacts when the log is this many times as long as what lives in it, and a part of a file longer.
    pub(crate) space_amplification: f64,
    /// The length of a file of the log; 0 without files.
    pub(crate) segment_bytes: u64,
    /// Those who wait for the boundaries to find room.
    seekers: AtomicU32,
    /// What moves the log's boundaries holds it. The last line of any kind.
    pub(crate) boundaries: Mutex<Option<Line>>,
    pub(crate) is_always_durable: bool,
    pub(crate) in_background: bool,
    durability: Durability,
    drawn: Mutex<Drawn>,
    pub(crate) budget: AtomicU64,
    budgets: Mutex<room::Budgets>,
    /// One at a time shares it between index and log.
    sharing: Mutex<()>,
    /// In tests it may be little.
    index_bytes_max: u64,
    /// The index's bytes when it was.
    shared_index: AtomicU64,
    /// Of the log's share, for a while.
    lent: AtomicU64,
    failure: Failure,
}

/// Loads of values that were missed (`store/load.rs`).
#[derive(Default)]
pub(crate) struct Loads {
    pub(crate) count: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) nanoseconds: AtomicU64,
}

/// The files of a store.
pub(crate) struct Home {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) manifest: Manifest,
    /// No slot spoke of the last line when the store was opened.
    pub(crate) lags: bool,
}

/// What an engine is made of.
pub(crate) struct Parts {
    pub(crate) layout: Layout,
    /// The width of values where all have the same.
    pub(crate) value_width: Option<usize>,
    pub(crate) budget: u64,
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) home: Option<Home>,
    pub(crate) is_temporary: bool,
    /// Where there is no home: a random one if `None`.
    pub(crate) identity: Option<Identity>,
    pub(crate) durability: Durability,
    pub(crate) in_background: bool,
    pub(crate) space_amplification: f64,
    /// Records that come from the device are checked before they are used.
    pub(crate) verifies_reads: bool,
    pub(crate) recovery: Manner,
    pub(crate) promotion: bool,
    pub(crate) keeps_versions: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cache: Option<Cache>,
    pub(crate) index_bytes_max: u64,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let known = parts.home.as_ref().map(|home| home.manifest.state.identity).or(parts.identity);
        let identity = known.map_or_else(Identity::random, Ok)?;
        let space = memory::log_space(parts.budget);
        let huge = parts.budget >= HUGE_PAGE_BUDGET_BYTES;
        let (has_home, has_device) = (parts.home.is_some(), parts.device.is_some());
        let fills_holes = !has_device && parts.cache.is_none() && !parts.keeps_versions;
        let engine = Self {
            epochs: Epochs::new()?,
            log: Log::new(parts.device, identity.store_id, space, huge)?
                .verifying_reads(parts.verifies_reads)
                .dropping(parts.cache.is_some())
                .filling_holes(fills_holes),
            index: Index::new(space / 2)?,
            latches: Latches::default(),
            layout: parts.layout,
            value_width: parts.value_width,
            hasher: Hasher::new(identity.hash_seed),
            opened: Instant::now(),
            is_temporary: parts.is_temporary,
            commits: Commits::default(),
            compaction: Compaction::default(),
            scars: Scars::default(),
            // What nobody has checked is not written once more, under a checksum that is right; but a cache drops what it does not copy.
            is_promoting: parts.promotion && has_device && (parts.verifies_reads || parts.cache.is_some()),
            keeps_versions: parts.keeps_versions,
            lately: Lately::default(),
            images: Images::default(),
            expiry: Expiry::new(parts.clock),
            is_lossy: parts.cache.is_some() || parts.home.as_ref().is_some_and(|home| home.manifest.state.is_cache),
            caching: parts.cache.map(|cache| Caching::new(cache, has_device)).transpose()?,
            loads: Loads::default(),
            holds: Holds::default(),
            space_amplification: parts.space_amplification,
            segment_bytes: parts.home.as_ref().map_or(0, |home| home.manifest.state.segment_bytes),
            home: Mutex::new(parts.home),
            seekers: AtomicU32::new(0),
            boundaries: Mutex::new(None),
            is_always_durable: parts.durability == Durability::Always && has_device,
            in_background: parts.in_background,
            durability: parts.durability,
            drawn: Drawn::now(),
            budget: AtomicU64::new(parts.budget),
            budgets: Mutex::new(room::Budgets::of(parts.budget)),
            sharing: Mutex::new(()),
            index_bytes_max: parts.index_bytes_max,
            shared_index: AtomicU64::new(0),
            lent: AtomicU64::new(0),
            failure: Failure::default(),
        };
        engine.check_address_space(parts.budget)?;
        engine.share_budget();
        if engine.is_always_durable {
            engine.epochs.slow_writes_down();
        }
        if has_home {
            engine.recover(&parts.recovery)?;
            engine.share_budget();
            engine.rest_compaction();
        }
        if let Some(caching) = &engine.caching {
            engine.limit_log(caching, 0);
        }
        Ok(engine)
    }

    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        let width = if let Layout::Word { key_bytes, .. } = self.layout { Some(key_bytes) } else { None };
        self.hasher.hash(key, width)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.log.device.is_none()
    }

    /// Makes everything durable, with an image of the index, so that opening is quick. Once.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.epochs.close() {
            return Err(Error::Closed);
        }
        if self.is_in_memory() {
            return Ok(());
        }
        self.end_commits();
        let _compaction = self.hold_compaction();
        let _growth = self.index.hold();
        let saved = if self.is_temporary { Ok(()) } else { self.guarded(|| self.go_on_at_last().and_then(|()| self.save_image(false))) };
        // Lets go of the directory, even if clones of the store live on.
        if let Some(home) = lock(&self.home).take() {
            home.storage.let_go();
        }
        saved
    }
}

#[cfg(all(loom, test))]
impl Engine {
    /// An engine for keys without bytes and values of one word; no driver, no device, the same hashes every time.
    pub(crate) fn for_model() -> Self {
        let log = Log::new(None, 0, 0, false).expect("a modelled region");
        log.budget.store(1 << 20, crate::sync::atomic::Ordering::Relaxed);
        Self {
            epochs: Epochs::new().expect("a box"),
            index: Index::new(0).expect("a modelled region"),
            log,
            latches: Latches::default(),
            layout: Layout::Word { key_bytes: 0, value_bytes: 8 },
            value_width: Some(8),
            hasher: Hasher::new([1, 2]),
            opened: Instant::now(),
            home: Mutex::new(None),
            is_temporary: true,
            commits: Commits::default(),
            compaction: Compaction::default(),
            scars: Scars::default(),
            is_promoting: false,
            keeps_versions: false,
            lately: Lately::default(),
            images: Images::default(),
            expiry: Expiry::new(Arc::new(crate::expiry::SystemClock)),
            is_lossy: false,
            caching: None,
            loads: Loads::default(),
            holds: Holds::default(),
            seekers: AtomicU32::new(0),
            boundaries: Mutex::new(None),
            is_always_durable: false,
            in_background: false,
            space_amplification: 2.0,
            segment_bytes: 0,
            durability: Durability::None,
            drawn: Drawn::now(),
            budget: AtomicU64::new(1 << 20),
            budgets: Mutex::new(room::Budgets::of(1 << 20)),
            sharing: Mutex::new(()),
            index_bytes_max: u64::MAX,
            shared_index: AtomicU64::new(0),
            lent: AtomicU64::new(0),
            failure: Failure::default(),
        }
    }
}
