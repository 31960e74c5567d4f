//! How a store is opened: one budget, and where the cold part goes.

use crate::cache::{Cache, Caching};
use crate::commit::Durability;
use crate::device::{Device, Names, SECTOR_BYTES, Segments, Storage};
use crate::directory::Directory;
use crate::engine::{Engine, Home, Parts, check_budget, check_space, default_budget};
use crate::error::{Error, Result};
use crate::expiry::{Clock, SystemClock};
use crate::index::Index;
use crate::lines;
use crate::log::{FIRST_ADDRESS, device_offset, device_range};
use crate::manifest::{Identity, Manifest, has_lived, no_manifest, types};
use crate::memory;
use crate::recovery::Manner;
use crate::rehearse::Crowding;
use crate::store::Store;
use crate::types::{Key, Value, layout};
use std::path::Path;
use std::sync::Arc;

/// How to open a store. Every setting has a default; index, log and buffers size themselves within the memory budget.
///
/// | setting | default | where it has no effect |
/// |---|---|---|
/// | [`memory`](Options::memory) | a quarter of the machine's, or of the control group's | |
/// | [`durability`](Options::durability) | `None` | in memory |
/// | [`space_amplification`](Options::space_amplification) | 2.0 | in a cache, which drops what is old; without `background` on a device |
/// | [`segment_bytes`](Options::segment_bytes) | by the memory | in memory; a store that exists keeps its own |
/// | [`promotion`](Options::promotion) | on | in memory |
/// | [`verify_reads`](Options::verify_reads) | on | in memory |
/// | [`direct_io`](Options::direct_io), [`io_uring`](Options::io_uring) | on, where they exist | in memory, and in a [`Storage`] of your own |
/// | [`accept_loss`](Options::accept_loss), [`rebuild_index`](Options::rebuild_index), [`progress`](Options::progress) | off | where no store is yet |
/// | [`history`](Options::history), [`cache`](Options::cache) | off; not both | |
/// | [`clock`](Options::clock) | the system's | |
/// | [`background`](Options::background) | on | |
///
/// # Examples
/// ```
/// let hits: esker::Store<u64, u64> = esker::Options::new().memory("64MiB").in_memory()?;
/// hits.put(&7, &1)?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// A share of the machine's where it is not told.
    memory: Option<Result<u64>>,
    io_uring: bool,
    direct_io: bool,
    verifies_reads: bool,
    recovery: Manner,
    durability: Durability,
    background: bool,
    space_amplification: f64,
    segment_bytes: Option<Result<u64>>,
    promotion: bool,
    history: bool,
    clock: Arc<dyn Clock>,
    cache: Option<Cache>,
    /// In tests.
    pub(crate) crowding: Option<Crowding>,
}

/// A number of bytes: a `u64`, or text such as `"512MiB"`, `"1.5GiB"`, `"64MB"`. Units, in either case: `B`; `K`, `KiB`, `M`, `MiB`,
/// `G`, `GiB`, `T`, `TiB` (powers of 1,024); `KB`, `MB`, `GB`, `TB` (of 1,000). What is no number of bytes is refused when the store is
/// opened, or by [`Store::set_memory`].
pub trait ByteCount {
    /// In bytes.
    ///
    /// # Errors
    /// `Invalid` if the text is no number of bytes.
    fn byte_count(self) -> Result<u64>;
}

impl ByteCount for u64 {
    fn byte_count(self) -> Result<u64> {
        Ok(self)
    }
}

impl ByteCount for &str {
    fn byte_count(self) -> Result<u64> {
        let text = self.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => 0,
        };
        let number = &text[..digits];
        // A whole number exactly, of whatever length.
        let whole = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        let part = || number.parse::<f64>().ok().map(|number| number * unit as f64).filter(|bytes| *bytes < u64::MAX as f64);
        let bytes = whole.or_else(|| part().map(|bytes| bytes as u64)).filter(|_| unit > 0);
        bytes.ok_or_else(|| Error::invalid(format!("not a number of bytes: `{self}`")))
    }
}

impl ByteCount for &String {
    fn byte_count(self) -> Result<u64> {
        self.as_str().byte_count()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// A quarter of the machine's memory, or of what the process's control group is given, io_uring and direct I/O where they exist.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: None,
            io_uring: true,
            direct_io: true,
            verifies_reads: true,
            recovery: Manner::default(),
            durability: Durability::None,
            background: true,
            space_amplification: 2.0,
            segment_bytes: None,
            promotion: true,
            history: false,
            clock: Arc::new(SystemClock),
            cache: None,
            crowding: None,
        }
    }

    /// The memory budget, any number of bytes from 16 MiB up: for the index, the log's part in memory, and fixed buffers. It can be changed
    /// while the store is open ([`Store::set_memory`]). The buffers of calls, scans and compaction, a backlog of an eviction listener, and
    /// while opening about 10 MiB and the longest value come on top. Memory is taken as it is used, and not locked. Default: a quarter of
    /// the machine's, or of the control group's.
    #[must_use]
    pub fn memory(mut self, budget: impl ByteCount) -> Self {
        self.memory = Some(budget.byte_count());
        self
    }

    /// Whether batches of cold reads go through io_uring, if the kernel allows it. Else threads call `pread`: up to 64, which all stores of
    /// the process share, and which end two seconds after the last read; what finds none free the caller reads. Default: true.
    #[must_use]
    pub fn io_uring(mut self, wanted: bool) -> Self {
        self.io_uring = wanted;
        self
    }

    /// Whether files are read and written around the page cache, if the file system allows it. The page cache's memory is not counted in
    /// the budget. Default: true.
    #[must_use]
    pub fn direct_io(mut self, wanted: bool) -> Self {
        self.direct_io = wanted;
        self
    }

    /// Whether a store that is damaged, or cannot be read in places, is opened with what is still whole; else opening answers `Corruption`
    /// or `Io`. Of the log behind the last index image everything from the first damaged block on is given up. A damaged image is rebuilt
    /// from the log; if one slot of the manifest is damaged the other one counts. The decision is written down: later openings do not meet
    /// that damage again. Default: false. To keep what lies behind damage, and lose no more than the damaged blocks, see
    /// [`salvage`](crate::salvage).
    #[must_use]
    pub fn accept_loss(mut self, accepted: bool) -> Self {
        self.recovery.accept_loss = accepted;
        self
    }

    /// Whether opening makes the index anew from the log where several keys share an entry, as they do once the index has used its share of
    /// the budget. They go on sharing it in a larger budget, with new keys too, and through images of the index: with this, and room for
    /// them, each has its own again. Opening reads all of the log then, and writes once more what of it was superseded under a shared
    /// entry. A store whose keys once shared entries, whose lost image was made anew, or that was once opened with a budget below its
    /// former index, is taken for one of these ever after: an opening with this reads its whole log each time, so do not leave it set. No
    /// effect on other stores. Default: false.
    #[must_use]
    pub fn rebuild_index(mut self, wanted: bool) -> Self {
        self.recovery.rebuilds_index = wanted;
        self
    }

    /// `tell` is called while opening reads the log, after each mebibyte or less, with the bytes read so far and all that will be. An
    /// orderly close leaves an image of the index, with which opening reads little or nothing of the log.
    #[must_use]
    pub fn progress(mut self, tell: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.recovery.progress = Some(Arc::new(tell));
        self
    }

    /// Whether calls compare the blocks that they read from the device with their checksums. If not, damaged bytes may be returned as a
    /// value; so that they are not written again under a right checksum, [`Options::promotion`] is off then, but in a cache. The manifest,
    /// images, and the log where opening, compaction and verification read it, are always checked. Default: true.
    #[must_use]
    pub fn verify_reads(mut self, wanted: bool) -> Self {
        self.verifies_reads = wanted;
        self
    }

    /// When writes become durable without a [`Store::commit`]. Default: [`Durability::None`]. Has no effect in memory.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The log is compacted in the background, in memory too, when it is more than this many times as long as the live data in it. Default:
    /// 2; at least 1.1. Less saves space and writes more. On a device it may be longer by half a file of the log (32 MiB at most) before it
    /// is compacted; by what is dead of the file that it begins in, for files are given back whole; and by a sixteenth of the log, because
    /// what is freed waits for a commit that is shared.
    #[must_use]
    pub fn space_amplification(mut self, target: f64) -> Self {
        self.space_amplification = target.max(1.1);
        self
    }

    /// The length of each file of the log; space goes back to the file system in such units. It is fixed when a store is made, and has no
    /// effect on one that exists. Default: a sixteenth of the memory, rounded up to a power of two, from 4 to 256 MiB. In a cache a
    /// sixteenth of its disk, rounded and bounded likewise, is the most, even if more is asked for. Rounded up to 4 KiB; at most 1 TiB.
    #[must_use]
    pub fn segment_bytes(mut self, length: impl ByteCount) -> Self {
        let in_sectors = |length: u64| length.clamp(SECTOR_BYTES as u64, 1 << 40).next_multiple_of(SECTOR_BYTES as u64);
        self.segment_bytes = Some(length.byte_count().map(in_sectors));
        self
    }

    /// Whether a cold record is copied into memory, to the log's tail, at its second read; in a cache at its first, and also when it is
    /// read where it would soon leave memory. The price: the copy is written to the device again when it leaves memory. Default: true.
    #[must_use]
    pub fn promotion(mut self, wanted: bool) -> Self {
        self.promotion = wanted;
        self
    }

    /// Whether each change keeps the version it replaces, for [`Store::history`], until compaction takes it. No change is made in place
    /// then: each one, a deletion too, is a record of its own. The log grows faster, and updates take longer. Not for a cache. Default:
    /// false.
    #[must_use]
    pub fn history(mut self, wanted: bool) -> Self {
        self.history = wanted;
        self
    }

    /// Makes the store a cache: bounded, and lossy where another store would grow or answer `Full`. A directory remembers which it is: that
    /// of a store which was made as no cache is refused (`Invalid`), unless the cache is to convert it ([`Cache::convert`]). A cache that
    /// is opened without this drops nothing meanwhile.
    #[must_use]
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The clock by which keys expire. Default: the system's. With a [`crate::ManualClock`] tests need not sleep.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Whether the store has a thread of its own, which writes, evicts, compacts and draws lines. Without one, calls that need room make it
    /// themselves, `Durability::Every` is as `Durability::None`, and a store on a device, if it is no cache, is compacted by
    /// [`Store::compact`] alone: for simulations, which must do the same each time. Default: true.
    #[must_use]
    pub fn background(mut self, wanted: bool) -> Self {
        self.background = wanted;
        self
    }

    /// A store without a device. A full budget answers [`Error::Full`], unless it is a cache; no file is touched.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB or beyond the address space, and for a cache with a disk, a bound of writes to it, or a history;
    /// `Io` if the system refuses memory.
    pub fn in_memory<K: Key + ?Sized, V: Value + ?Sized>(self) -> Result<Store<K, V>> {
        self.check(false)?;
        self.start(None, None, true)
    }

    /// The store in the directory `path`, made if nothing is there; its cold part lies in files there. After a crash it is
    /// as of its last durable commit.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB, beyond the address space, or below what the index of the store that is there needs, for a cache
    /// without a disk of 64 MiB, with a history, or over a store that is no cache, and for a text that is no number of bytes: nothing is
    /// made or changed then, but that an opening which was cut short may be completed. `Locked` if this or another process has it open,
    /// `Invalid` for a directory that is not a store or whose store has another layout (that is what is checked, not the types) or another
    /// format, `Corruption` for damage, by file and address, `Io`.
    pub fn open<K: Key + ?Sized, V: Value + ?Sized>(self, path: impl AsRef<Path>) -> Result<Store<K, V>> {
        self.check(true)?;
        let directory = Directory::open(path.as_ref(), self.direct_io, self.io_uring)?;
        self.open_home(Arc::new(directory), false)
    }

    /// A store in a temporary directory, which is removed when the store is: in [`std::env::temp_dir`] (`TMPDIR`, or `/tmp`). Where that is
    /// in memory (tmpfs), as `/tmp` on many systems, what does not fit the budget takes memory there.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB or beyond the address space, and for a cache without a disk or with a history; `Io`.
    pub fn open_temporary<K: Key + ?Sized, V: Value + ?Sized>(self) -> Result<Store<K, V>> {
        self.check(true)?;
        let directory = Directory::temporary(self.direct_io, self.io_uring)?;
        self.open_home(Arc::new(directory), true)
    }

    /// The store in a place for files of your own. Nothing locks it: see to it that one store uses it at a time, and none while it is
    /// verified, salvaged or copied as a directory would be.
    ///
    /// # Errors
    /// As [`Options::open`], but never `Locked`.
    pub fn open_in<K: Key + ?Sized, V: Value + ?Sized>(self, storage: Arc<dyn Storage>) -> Result<Store<K, V>> {
        self.check(true)?;
        self.open_home(storage, false)
    }

    /// An empty store over a device of your own, which cannot be opened again.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB or beyond the address space, and for a cache without a disk or with a history; `Io` if the
    /// system refuses memory.
    pub fn open_on<K: Key + ?Sized, V: Value + ?Sized>(self, device: Arc<dyn Device>) -> Result<Store<K, V>> {
        self.check(true)?;
        self.start(Some(device), None, true)
    }

    fn budget(&self) -> Result<u64> {
        self.memory.clone().unwrap_or_else(|| Ok(default_budget(memory::of_process())))
    }

    /// What no engine takes, told before anything is made.
    fn check(&self, has_device: bool) -> Result<()> {
        let budget = self.budget()?;
        check_budget(budget)?;
        check_space(budget)?;
        self.segment_bytes.clone().transpose()?;
        if self.cache.is_some() && self.history {
            return Err(Error::invalid("a cache keeps no history: what is old is dropped"));
        }
        self.cache.clone().map_or(Ok(()), |cache| Caching::new(cache, has_device).map(drop))
    }

    fn open_home<K: Key + ?Sized, V: Value + ?Sized>(self, storage: Arc<dyn Storage>, is_temporary: bool) -> Result<Store<K, V>> {
        let (types, storage) = (types::<K, V>(), Names::of(storage));
        let mut manifest = match Manifest::open(&*storage, Some(types), self.recovery.accept_loss)? {
            Some(manifest) => {
                self.cache.as_ref().filter(|_| !manifest.state.is_cache).map_or(Ok(()), Cache::check_converts)?;
                manifest
            }
            None if has_lived(&*storage)? => return Err(no_manifest()),
            None => {
                let memory = self.budget()?;
                // A cache drops whole files.
                let most = self.cache.as_ref().and_then(Cache::disk_bytes).map_or(u64::MAX, segment_bytes_for);
                let segment_bytes = self.segment_bytes.clone().transpose()?.unwrap_or_else(|| segment_bytes_for(memory)).min(most);
                let (mut identity, shape) = (Identity::random()?, Index::first_shape());
                identity.hash_seed = self.crowding.map_or(identity.hash_seed, |crowding| crowding.hash_seed);
                Manifest::create(&*storage, identity, types, segment_bytes, FIRST_ADDRESS, shape, self.cache.is_some())?
            }
        };
        let (log, cut) = (device_range(manifest.state.begin), device_offset(manifest.state.cut));
        manifest.complete()?;
        manifest.settle_begin()?;
        // The next slot says so, when it has been opened; what is written until then stays what it was.
        manifest.state.is_cache |= self.cache.is_some();
        let device = Arc::new(Segments::open(&storage, manifest.state.segment_bytes, log)?);
        // What was just read, the names included, may never have been synced; all that follows builds on it.
        device.doubt_from(cut, self.recovery.accept_loss)?;
        device.sync()?;
        lines::advance(&*storage, &*device, &mut manifest.state, self.recovery.accept_loss)?;
        let lags = device_offset(manifest.state.cut) > cut;
        self.start(Some(device), Some(Home { storage, manifest, lags }), is_temporary)
    }

    fn start<K: Key + ?Sized, V: Value + ?Sized>(
        self,
        device: Option<Arc<dyn Device>>,
        home: Option<Home>,
        is_temporary: bool,
    ) -> Result<Store<K, V>> {
        Store::start(Engine::new(Parts {
            layout: layout::<K, V>(),
            value_width: V::WIDTH,
            budget: self.budget()?,
            device,
            home,
            is_temporary,
            identity: None,
            durability: self.durability,
            in_background: self.background,
            space_amplification: self.space_amplification,
            verifies_reads: self.verifies_reads,
            recovery: self.recovery,
            promotion: self.promotion,
            keeps_versions: self.history,
            clock: self.clock,
            cache: self.cache,
            index_bytes_max: self.crowding.map_or(u64::MAX, |crowding| crowding.index_bytes),
        })?)
    }
}

fn segment_bytes_for(budget: u64) -> u64 {
    (budget / 16).next_power_of_two().clamp(4 << 20, 256 << 20)
}
