//! Who is measured, behind one trait, and what each does where memory is less than the data.
//!
//! | | with a fraction of the memory |
//! |---|---|
//! | esker | the whole store keeps to the budget, index and buffers included; the rest of the records is on the device, none is lost |
//! | dashmap, papaya | no such setting: they hold everything, whatever that takes |
//! | moka | so many bytes of keys and values (what it needs besides is not counted); the rest is dropped |
//! | foyer | so many bytes of keys and values in memory, the rest in its cache on the device, which has room for all of it, but leaves out what comes faster than it writes |
//! | rocksdb | block cache and write buffers of that size; everything is on the device, none is lost |
//!
//! A cache that lost what is asked for is given it again, as a program would that has it from elsewhere, at no cost but that of the
//! call; how often that was is told. Without a device (`memory`) moka and foyer may hold everything.

use anyhow::Result;
use esker::{Options, Store};
use tempfile::TempDir;

use super::{Cold, PAIR_BYTES, RECORD_BYTES, STORED_BYTES, Setting, Value};
use crate::engines::esker::open_hybrid;
use crate::{Place, memory, size};

/// The stores, maps and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Name {
    Esker,
    #[cfg(feature = "peers")]
    Dashmap,
    #[cfg(feature = "peers")]
    Papaya,
    #[cfg(feature = "peers")]
    Moka,
    /// In memory without a device, else its cache of two levels.
    #[cfg(feature = "peers")]
    Foyer,
    #[cfg(feature = "peers-disk")]
    Rocksdb,
}

impl Name {
    /// All of them.
    pub(super) fn all() -> Vec<Self> {
        <Self as clap::ValueEnum>::value_variants().to_vec()
    }

    /// The name in reports.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Esker => "esker",
            #[cfg(feature = "peers")]
            Self::Dashmap => "dashmap",
            #[cfg(feature = "peers")]
            Self::Papaya => "papaya",
            #[cfg(feature = "peers")]
            Self::Moka => "moka",
            #[cfg(feature = "peers")]
            Self::Foyer => "foyer",
            #[cfg(feature = "peers-disk")]
            Self::Rocksdb => "rocksdb",
        }
    }

    /// A map holds everything, and all of it in memory.
    pub(super) fn is_map(self) -> bool {
        #[cfg(feature = "peers")]
        return matches!(self, Self::Dashmap | Self::Papaya);
        #[cfg(not(feature = "peers"))]
        return false;
    }

    /// A cache of so many bytes of keys and values.
    fn counts_payload(self) -> bool {
        #[cfg(feature = "peers")]
        return matches!(self, Self::Moka | Self::Foyer);
        #[cfg(not(feature = "peers"))]
        return false;
    }

    /// True if there is such a setting: RocksDB is nowhere without a device.
    pub(super) fn can(self, percent: u64) -> bool {
        #[cfg(feature = "peers-disk")]
        if self == Self::Rocksdb {
            return percent > 0;
        }
        !self.is_map() || percent == 0
    }

    /// An empty one.
    pub(super) fn open(self, setting: &Setting, adds: u64, place: &Place) -> Result<Box<dyn Cache>> {
        Ok(match self {
            Self::Esker => open_esker(setting, adds, place)?,
            #[cfg(feature = "peers")]
            Self::Dashmap => Box::new(dashmap::DashMap::with_hasher(foldhash::fast::FixedState::default())),
            #[cfg(feature = "peers")]
            Self::Papaya => Box::new(papaya::HashMap::with_hasher(foldhash::fast::FixedState::default())),
            #[cfg(feature = "peers")]
            Self::Moka => Box::new(peers::open_moka(setting, adds)),
            #[cfg(feature = "peers")]
            Self::Foyer => Box::new(peers::Foyer::open(setting, adds, place)?),
            #[cfg(feature = "peers-disk")]
            Self::Rocksdb => Box::new(disk::Rocksdb::open(setting, adds, place)?),
        })
    }
}

/// What is measured: adds and finds, from many threads.
pub(super) trait Cache: Sync {
    fn add(&self, key: u64, value: Value);
    fn find(&self, key: u64) -> Option<Value>;
    /// Whether it may have dropped what was added.
    fn is_lossy(&self) -> bool {
        false
    }
    /// Device reads so far, promotions, and records of the log in memory; of Esker.
    fn counts(&self) -> Option<[u64; 3]> {
        None
    }
}

fn open_esker(setting: &Setting, adds: u64, place: &Place) -> Result<Box<dyn Cache>> {
    let options = Options::new().promotion(setting.cold == Cold::Promoted);
    Ok(match setting.percent {
        _ if setting.cold == Cold::Cached => Box::new(ReadCached::open(options, setting.half(adds), place)?),
        0 => Box::new(options.memory(memory::physical_bytes() / 2).in_memory::<u64, Value>()?),
        _ => Box::new(open_hybrid::<u64, Value>(options.memory(setting.budget(adds)), place)?),
    })
}

impl Setting {
    /// The memory of a whole store.
    pub(super) fn budget(&self, adds: u64) -> u64 {
        self.share(adds * STORED_BYTES).max(size::LEAST)
    }

    /// Of each of two stores that have it together.
    fn half(&self, adds: u64) -> u64 {
        (self.budget(adds) / 2).max(size::LEAST)
    }

    /// The same part of the keys and values alone.
    fn payload(&self, adds: u64) -> u64 {
        self.share(adds * PAIR_BYTES)
    }

    /// What the engine is told that it may take.
    pub(super) fn told(&self, adds: u64) -> u64 {
        match self.cold {
            Cold::Cached => 2 * self.half(adds),
            _ if self.engine.counts_payload() => self.payload(adds),
            _ => self.budget(adds),
        }
    }

    /// That against what it takes to hold all.
    pub(super) fn fraction(&self, adds: u64) -> f64 {
        let all = adds * if self.engine.counts_payload() { PAIR_BYTES } else { STORED_BYTES };
        if self.percent == 0 { 1.0 } else { self.told(adds) as f64 / all as f64 }
    }

    fn share(&self, bytes: u64) -> u64 {
        bytes * self.percent / 100
    }
}

/// A store, and the directory that goes with it.
type Placed = (Store<u64, Value>, Option<TempDir>);

impl Cache for Placed {
    fn add(&self, key: u64, value: Value) {
        self.0.add(key, value);
    }

    fn find(&self, key: u64) -> Option<Value> {
        self.0.find(key)
    }

    fn counts(&self) -> Option<[u64; 3]> {
        self.0.counts()
    }
}

/// A store that leaves what is cold on the device, behind a cache of half its memory that takes whatever it does not have.
struct ReadCached {
    store: Placed,
    cache: Store<u64, Value>,
}

impl ReadCached {
    fn open(options: Options, part: u64, place: &Place) -> Result<Self> {
        let cache = Options::new().memory(part).cache(esker::Cache::new()).in_memory()?;
        Ok(Self { store: open_hybrid(options.memory(part), place)?, cache })
    }
}

impl Cache for ReadCached {
    fn add(&self, key: u64, value: Value) {
        // Were keys added twice, the cache would have to forget them.
        self.store.add(key, value);
    }

    fn find(&self, key: u64) -> Option<Value> {
        let cached = self.cache.find(key);
        if cached.is_some() {
            return cached;
        }
        let found = self.store.find(key);
        if let Some(value) = found {
            self.cache.add(key, value);
        }
        found
    }

    fn counts(&self) -> Option<[u64; 3]> {
        let cached = self.cache.counts().map_or(0, |[.., records]| records);
        self.store.counts().map(|[reads, promotions, records]| [reads, promotions, records + cached])
    }
}

impl Cache for Store<u64, Value> {
    fn add(&self, key: u64, value: Value) {
        self.put(&key, &value).expect("a put");
    }

    fn find(&self, key: u64) -> Option<Value> {
        self.get(&key).expect("a get")
    }

    fn counts(&self) -> Option<[u64; 3]> {
        let stats = self.stats();
        Some([stats.operations.device_reads, stats.operations.promotions, stats.memory.log_bytes / RECORD_BYTES])
    }
}

#[cfg(feature = "peers")]
mod peers {
    use super::super::{PAIR_BYTES, VALUE_BYTES};
    use super::{Cache, Place, Result, Setting, Value};
    use foyer::{BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder};
    use std::io::{Read, Write};
    use tempfile::TempDir;
    use tokio::runtime::Runtime;

    type Hasher = foldhash::fast::FixedState;
    type Moka = moka::sync::Cache<u64, Value, Hasher>;

    /// Foyer gives each entry pages of its own on the device, which has room for twice the data so that it never runs out of it. The file
    /// is sparse.
    const DISK_BYTES: usize = 2 * 4096;
    const DISK_BYTES_MIN: usize = 1 << 30;

    impl Cache for dashmap::DashMap<u64, Value, Hasher> {
        fn add(&self, key: u64, value: Value) {
            self.insert(key, value);
        }

        fn find(&self, key: u64) -> Option<Value> {
            self.get(&key).map(|value| *value)
        }
    }

    impl Cache for papaya::HashMap<u64, Value, Hasher> {
        fn add(&self, key: u64, value: Value) {
            self.pin().insert(key, value);
        }

        fn find(&self, key: u64) -> Option<Value> {
            self.pin().get(&key).copied()
        }
    }

    /// What keys and values may take in memory.
    fn payload(setting: &Setting, adds: u64) -> usize {
        // Twice the data where everything should stay: shards fill unevenly.
        (if setting.percent == 0 { 2 * adds * PAIR_BYTES } else { setting.payload(adds) }) as usize
    }

    pub(super) fn open_moka(setting: &Setting, adds: u64) -> Moka {
        let builder = moka::sync::Cache::builder().max_capacity(payload(setting, adds) as u64);
        builder.weigher(|_, _| PAIR_BYTES as u32).build_with_hasher(Hasher::default())
    }

    impl Cache for Moka {
        fn add(&self, key: u64, value: Value) {
            self.insert(key, value);
        }

        fn find(&self, key: u64) -> Option<Value> {
            self.get(&key)
        }

        fn is_lossy(&self) -> bool {
            true
        }
    }

    /// A value that foyer can write.
    #[derive(Clone, Copy)]
    struct Written(Value);

    impl Code for Written {
        fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
            writer.write_all(&self.0).map_err(foyer::Error::io_error)
        }

        fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
            let mut value = [0; VALUE_BYTES];
            reader.read_exact(&mut value).map_err(foyer::Error::io_error)?;
            Ok(Self(value))
        }

        fn estimated_size(&self) -> usize {
            VALUE_BYTES
        }
    }

    /// Foyer is asked from threads of ours: what is in memory is there at once, and for the device the thread waits.
    pub(super) struct Foyer {
        cache: HybridCache<u64, Written, Hasher>,
        runtime: Runtime,
        _directory: TempDir,
    }

    impl Foyer {
        pub(super) fn open(setting: &Setting, adds: u64, place: &Place) -> Result<Self> {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let directory = place.temporary()?;
            let memory = HybridCacheBuilder::new().memory(payload(setting, adds)).with_hash_builder(Hasher::default());
            let builder = memory.with_weighter(|_, _| PAIR_BYTES as usize).storage();
            let cache = if setting.percent == 0 {
                runtime.block_on(builder.build())?
            } else {
                let bytes = (adds as usize * DISK_BYTES).max(DISK_BYTES_MIN);
                let device = FsDeviceBuilder::new(directory.path()).with_capacity(bytes);
                // Past the page cache, as Esker and RocksDB: it would be memory that nobody gave.
                #[cfg(target_os = "linux")]
                let device = device.with_direct(true);
                runtime.block_on(builder.with_engine_config(BlockEngineConfig::new(device.build()?)).build())?
            };
            Ok(Self { cache, runtime, _directory: directory })
        }
    }

    impl Cache for Foyer {
        fn add(&self, key: u64, value: Value) {
            self.cache.insert(key, Written(value));
        }

        fn find(&self, key: u64) -> Option<Value> {
            // What is in memory needs no future, which is made of several allocations.
            if let Some(entry) = self.cache.memory().get(&key) {
                return Some(entry.value().0);
            }
            // The future wants the runtime from its beginning.
            let _context = self.runtime.enter();
            let found = match self.cache.get(&key).try_unwrap() {
                Ok(entry) => Some(entry),
                Err(waiting) => self.runtime.block_on(waiting).expect("a get"),
            };
            found.map(|entry| entry.value().0)
        }

        fn is_lossy(&self) -> bool {
            true
        }
    }
}

#[cfg(feature = "peers-disk")]
mod disk {
    use super::{Cache, Place, Result, Setting, Value};
    use crate::engines::rocksdb::{options, write_options};
    use rocksdb::{DB, ReadOptions, WriteOptions};
    use tempfile::TempDir;

    /// With the settings of the other experiments, but the memory, and without a log.
    pub(super) struct Rocksdb {
        database: DB,
        reads: ReadOptions,
        writes: WriteOptions,
        _directory: TempDir,
    }

    impl Rocksdb {
        pub(super) fn open(setting: &Setting, adds: u64, place: &Place) -> Result<Self> {
            let directory = place.temporary()?;
            let database = DB::open(&options(setting.budget(adds), false)?, directory.path())?;
            Ok(Self { database, reads: ReadOptions::default(), writes: write_options(false), _directory: directory })
        }
    }

    impl Cache for Rocksdb {
        fn add(&self, key: u64, value: Value) {
            self.database.put_opt(key.to_ne_bytes(), value, &self.writes).expect("a put");
        }

        fn find(&self, key: u64) -> Option<Value> {
            let found = self.database.get_pinned_opt(key.to_ne_bytes(), &self.reads).expect("a get")?;
            Value::try_from(&found[..]).ok()
        }
    }
}
