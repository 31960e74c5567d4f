//! The contestants behind one interface.
//!
//! The interface is generic, not dynamic: each engine gets its own copy of the measured loops, and
//! no call through a pointer stands between the loop and the map. A [`Session`] is what one thread
//! holds while it works; maps with epoch-based reclamation keep their guard in it and renew it once
//! per block of operations, which is their best setting. Every map hashes with the fastest hasher
//! that suits it.

#[cfg(feature = "peers")]
mod dashmap;
pub(crate) mod esker;
#[cfg(feature = "peers")]
mod hashbrown;
#[cfg(feature = "peers")]
mod papaya;
#[cfg(feature = "peers")]
mod papaya_atomic;
#[cfg(feature = "peers")]
mod scc;

#[cfg(feature = "peers")]
pub(crate) use dashmap::DashVectors;
#[cfg(feature = "peers")]
pub(crate) use hashbrown::HashbrownVectors;

use crate::run::Contestant;

/// A store or map from `u64` to `u64`. Engine failures panic: a benchmark has no use for them.
pub(crate) trait Engine: Send + Sync {
    /// What one thread holds while it works.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Begins the work of one thread.
    fn session(&self) -> Self::Session<'_>;
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

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
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
        }
    }

    /// Whether the engine has operations on many keys at once.
    pub(crate) fn has_batches(self) -> bool {
        self == Self::Esker
    }

    /// Makes the engine, empty and without a hint of what is to come.
    pub(crate) fn open(self, settings: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
        match self {
            Self::Esker => Ok(Box::new(esker::Esker::open(settings)?)),
            _ => peer(self, settings),
        }
    }
}

/// How to open engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Esker keeps this many bytes in memory and the rest in a temporary directory.
    pub(crate) hybrid_bytes: Option<u64>,
    /// Tell peers this many entries in advance.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "only peers take the hint"))]
    pub(crate) capacity: Option<u64>,
}

#[cfg(feature = "peers")]
fn peer(name: Name, settings: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    let capacity = usize::try_from(settings.capacity.unwrap_or(0))?;
    Ok(match name {
        Name::Papaya => Box::new(papaya::Papaya::new(capacity)),
        Name::PapayaAtomic => Box::new(papaya_atomic::PapayaAtomic::new(capacity)),
        Name::Dashmap => Box::new(dashmap::Dashmap::new(capacity)),
        Name::Scc => Box::new(scc::Scc::new(capacity)),
        Name::HashbrownMutex => Box::new(hashbrown::HashbrownMutex::new(capacity)),
        Name::Esker => unreachable!("not a peer"),
    })
}

#[cfg(not(feature = "peers"))]
fn peer(name: Name, _: &Settings) -> anyhow::Result<Box<dyn Contestant>> {
    anyhow::bail!("{} needs a build with `--features peers`", name.text())
}
