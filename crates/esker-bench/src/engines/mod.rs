//! The contestants behind one interface.
//!
//! The interface is generic, not dynamic: each engine gets its own copy of the measured loops, and
//! no call through a pointer stands between the loop and the map. A [`Session`] is what one thread
//! holds while it works; maps with epoch-based reclamation keep their guard in it and renew it once
//! per block of operations, which is their best setting. Every map hashes with the fastest hasher
//! that suits it.

#[cfg(feature = "peers")]
mod dashmap;
#[cfg(feature = "peers-disk")]
pub(crate) mod disk;
pub(crate) mod esker;
#[cfg(feature = "peers-disk")]
mod fjall;
#[cfg(feature = "peers")]
mod hashbrown;
#[cfg(feature = "peers-disk")]
pub(crate) mod lmdb;
#[cfg(feature = "peers-disk")]
pub(crate) mod mdbx;
#[cfg(feature = "peers")]
mod papaya;
#[cfg(feature = "peers")]
mod papaya_atomic;
#[cfg(feature = "peers-disk")]
pub(crate) mod redb;
#[cfg(feature = "peers-disk")]
pub(crate) mod rocksdb;
#[cfg(feature = "peers")]
mod scc;

#[cfg(feature = "peers")]
pub(crate) use dashmap::DashVectors;
#[cfg(feature = "peers")]
pub(crate) use hashbrown::HashbrownVectors;

use crate::pairs::values::{Key, Values};
use crate::run::Contestant;
use crate::{Place, memory};

/// A store or map from `u64` to `u64`. Engine failures panic: a benchmark has no use for them.
pub(crate) trait Engine: Send + Sync {
    /// What one thread holds while it works.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Begins the work of one thread.
    fn session(&self) -> Self::Session<'_>;

    /// Reads of the device so far, where the engine counts them.
    fn device_reads(&self) -> Option<u64> {
        None
    }

    /// Shows all pairs, in any order; false if this engine is to be asked for each key instead.
    fn scan(&self, _see: &mut dyn FnMut(u64, u64)) -> bool {
        false
    }
}

/// The operations of one thread.
pub(crate) trait Session {
    /// The value of a key.
    fn get(&mut self, key: u64) -> Option<u64>;
    /// Sets a key's value.
    fn put(&mut self, key: u64, value: u64);
    /// Adds one to a key's value, or puts `first` where there is none, and gives the new value.
    fn increment(&mut self, key: u64, first: u64) -> u64;

    /// Reads many keys.
    fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        for (index, &key) in keys.iter().enumerate() {
            seen(index, self.get(key));
        }
    }

    /// Puts many pairs.
    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        for &(key, value) in pairs {
            self.put(key, value);
        }
    }

    /// Increments many keys; `seen` gets the values from before.
    fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        for (index, &key) in keys.iter().enumerate() {
            seen(index, Some(self.increment(key, 0).wrapping_sub(1)));
        }
    }

    /// Called between blocks of operations: lets go of what should not be held for long.
    fn refresh(&mut self) {}
}

/// A store of growing byte strings under `u64` keys.
pub(crate) trait Appender {
    /// Adds bytes to the end of a key's value.
    fn append(&mut self, key: u64, bytes: &[u8]);
    /// Gives a key's value to `f`, an empty one where there is none.
    fn read(&self, key: u64, f: &mut dyn FnMut(&[u8]));
}

/// An engine on disk that keeps byte strings.
pub(crate) trait Pairs: Send + Sync {
    /// Puts the value of each key: in one transaction, where the engine has them, and durable on return if it was opened so.
    fn insert(&self, keys: &[Key], values: &mut Values);
    /// Gives the value of each key to `seen`, by the key's place.
    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>));
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Name {
    /// This project's store.
    Esker,
    /// `papaya`, values replaced by new nodes.
    Papaya,
    /// `papaya` over atomic integers, updated in place.
    PapayaAtomic,
    /// `dashmap`.
    Dashmap,
    /// `scc::HashMap`.
    Scc,
    /// 64 `parking_lot` mutexes over `hashbrown` tables.
    HashbrownMutex,
    /// RocksDB, an LSM tree on disk.
    Rocksdb,
    /// LMDB, a B-tree in a memory map.
    Lmdb,
    /// libmdbx, a B-tree in a memory map.
    Mdbx,
    /// `redb`, a B-tree on disk.
    Redb,
    /// `fjall`, an LSM tree on disk.
    Fjall,
}

impl Name {
    /// The name used in reports.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Esker => "esker",
            Self::Papaya => "papaya",
            Self::PapayaAtomic => "papaya-atomic",
            Self::Dashmap => "dashmap",
            Self::Scc => "scc",
            Self::HashbrownMutex => "hashbrown-mutex",
            Self::Rocksdb => "rocksdb",
            Self::Lmdb => "lmdb",
            Self::Mdbx => "mdbx",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
        }
    }

    /// Whether the engine has operations on many keys at once.
    pub(crate) fn has_batches(self) -> bool {
        self.keeps_on_disk()
    }

    /// Whether the engine can hold more than memory.
    pub(crate) fn keeps_on_disk(self) -> bool {
        self == Self::Esker || self.is_disk_peer()
    }

    /// Whether the engine keeps to a given amount of memory. A memory map leaves it to the system.
    pub(crate) fn takes_memory(self) -> bool {
        self.keeps_on_disk() && !matches!(self, Self::Lmdb | Self::Mdbx)
    }

    /// The engines on disk of this build.
    pub(crate) fn built_disk_engines() -> Vec<Self> {
        let all = <Self as clap::ValueEnum>::value_variants().iter().copied();
        all.filter(|name| *name == Self::Esker || (cfg!(feature = "peers-disk") && name.is_disk_peer())).collect()
    }

    /// An error names the first that this build does not have: who measures one for an hour should not learn then that there is no other.
    pub(crate) fn all_are_built(names: &[Self]) -> anyhow::Result<()> {
        let feature = |name: &Self| match name {
            Self::Esker => None,
            _ if name.is_disk_peer() => (!cfg!(feature = "peers-disk")).then_some("peers-disk"),
            _ => (!cfg!(feature = "peers")).then_some("peers"),
        };
        match names.iter().find_map(|name| feature(name).map(|feature| (name, feature))) {
            Some((name, feature)) => anyhow::bail!("{} needs a build with `--features {feature}`", name.text()),
            None => Ok(()),
        }
    }

    fn is_disk_peer(self) -> bool {
        matches!(self, Self::Rocksdb | Self::Lmdb | Self::Mdbx | Self::Redb | Self::Fjall)
    }

    /// Makes the engine, empty and without a hint of what is to come.
    pub(crate) fn open(self, settings: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
        match self {
            Self::Esker => Ok(Box::new(esker::Esker::open(settings)?)),
            _ if self.is_disk_peer() => disk_peer(self, settings),
            _ => map_peer(self, settings),
        }
    }

    /// Makes the engine for byte strings, empty.
    pub(crate) fn open_pairs(self, settings: &Settings) -> anyhow::Result<Box<dyn Pairs>> {
        match self {
            Self::Esker => Ok(Box::new(esker::Esker::<Key, [u8]>::open(settings)?)),
            _ if self.is_disk_peer() => disk_peer_of_pairs(self, settings),
            _ => anyhow::bail!("{} does not keep data on disk", self.text()),
        }
    }
}

/// How to open engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Esker keeps this many bytes in memory and the rest in a temporary directory; so do disk engines which can be told.
    pub(crate) hybrid_bytes: Option<u64>,
    /// Where temporary directories are made; the system's place for them if not given.
    pub(crate) place: Place,
    /// Esker reads with `pread` even where `io_uring` works.
    pub(crate) no_io_uring: bool,
    /// Each writing call, or each batch, is durable when it returns.
    pub(crate) durable: bool,
    /// What is read back from the device is not checked, where the engine can leave that out.
    pub(crate) unchecked: bool,
    /// Esker inserts a batch of pairs as one transaction; others always do.
    pub(crate) atomic_batches: bool,
    /// Tell the maps this many entries in advance.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "only maps take the hint"))]
    pub(crate) capacity: Option<u64>,
}

impl Settings {
    /// The memory of an engine: what is given, or three quarters of the machine's.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.hybrid_bytes.unwrap_or_else(|| memory::physical_bytes() / 4 * 3)
    }
}

#[cfg(feature = "peers")]
fn map_peer(name: Name, settings: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    let capacity = usize::try_from(settings.capacity.unwrap_or(0))?;
    Ok(match name {
        Name::Papaya => Box::new(papaya::Papaya::new(capacity)),
        Name::PapayaAtomic => Box::new(papaya_atomic::PapayaAtomic::new(capacity)),
        Name::Dashmap => Box::new(dashmap::Dashmap::new(capacity)),
        Name::Scc => Box::new(scc::Scc::new(capacity)),
        Name::HashbrownMutex => Box::new(hashbrown::HashbrownMutex::new(capacity)),
        _ => unreachable!("not a map"),
    })
}

#[cfg(not(feature = "peers"))]
fn map_peer(name: Name, _: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    anyhow::bail!("{} needs a build with `--features peers`", name.text())
}

#[cfg(feature = "peers-disk")]
fn disk_peer(name: Name, settings: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    Ok(match name {
        Name::Rocksdb => Box::new(rocksdb::Rocksdb::open(settings)?),
        Name::Lmdb => Box::new(lmdb::Lmdb::<lmdb::Integers>::open(settings)?),
        Name::Mdbx => Box::new(mdbx::Mapped::open_integers(settings)?),
        Name::Redb => Box::new(redb::Redb::open(settings)?),
        Name::Fjall => Box::new(fjall::Fjall::open(settings)?),
        _ => unreachable!("not a disk engine"),
    })
}

#[cfg(feature = "peers-disk")]
fn disk_peer_of_pairs(name: Name, settings: &Settings) -> anyhow::Result<Box<dyn Pairs>> {
    Ok(match name {
        Name::Rocksdb => Box::new(rocksdb::Rocksdb::open(settings)?),
        Name::Lmdb => Box::new(lmdb::Lmdb::<lmdb::Strings>::open(settings)?),
        Name::Mdbx if settings.durable => Box::new(mdbx::Written::open_strings(settings)?),
        Name::Mdbx => Box::new(mdbx::Mapped::open_strings(settings)?),
        Name::Redb => Box::new(redb::Redb::open(settings)?),
        Name::Fjall => Box::new(fjall::Fjall::open(settings)?),
        _ => unreachable!("not a disk engine"),
    })
}

#[cfg(not(feature = "peers-disk"))]
fn disk_peer(name: Name, _: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    anyhow::bail!("{} needs a build with `--features peers-disk`", name.text())
}

#[cfg(not(feature = "peers-disk"))]
fn disk_peer_of_pairs(name: Name, _: &Settings) -> anyhow::Result<Box<dyn Pairs>> {
    anyhow::bail!("{} needs a build with `--features peers-disk`", name.text())
}
