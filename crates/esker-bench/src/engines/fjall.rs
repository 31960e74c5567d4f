//! `fjall`: an LSM tree in Rust.
//!
//! Settings for point reads of keys that exist: a filter in all levels but the last, no compression. It always writes a journal, here
//! through a buffer of its own, synced by batches that are to be durable. The memory holds the block cache and two memtables; below
//! that its reads go through the page cache, which only reads the device for real where something else bounds it. Increments take a
//! lock of the benchmark, a get and a put. There is a batch of writes but none of reads: many keys are read one by one.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use tempfile::TempDir;

use super::disk::{Shares, Stripes, integer, must};
use super::{Engine, Pairs, Session, Settings};
use crate::pairs::values::{Key, Values};

/// The database and its directory.
pub(crate) struct Fjall {
    database: Database,
    entries: Keyspace,
    stripes: Stripes,
    durable: bool,
    _directory: TempDir,
}

impl Fjall {
    /// An empty database.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let directory = settings.place.temporary()?;
        let shares = Shares::of(settings.memory_bytes());
        let database = Database::builder(directory.path()).cache_size(shares.cache).manual_journal_persist(true).open()?;
        let entries = database.keyspace("entries", || {
            let options = KeyspaceCreateOptions::default().expect_point_read_hits(true);
            options.manual_journal_persist(true).max_memtable_size(shares.buffer)
        })?;
        Ok(Self { database, entries, stripes: Stripes::new(), durable: settings.durable, _directory: directory })
    }
}

impl Engine for Fjall {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl Session for &Fjall {
    fn get(&mut self, key: u64) -> Option<u64> {
        must(self.entries.get(key.to_ne_bytes())).map(|value| integer(&value))
    }

    fn put(&mut self, key: u64, value: u64) {
        must(self.entries.insert(key.to_ne_bytes(), value.to_ne_bytes()));
    }

    fn increment(&mut self, key: u64, first: u64) -> u64 {
        let _lock = self.stripes.lock(key);
        let value = self.get(key).map_or(first, |value| value + 1);
        self.put(key, value);
        value
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.entries, key.to_ne_bytes(), value.to_ne_bytes());
        }
        must(batch.commit());
    }
}

impl Pairs for Fjall {
    fn insert(&self, keys: &[Key], values: &mut Values) {
        let mut batch = self.database.batch().durability(self.durable.then_some(PersistMode::SyncData));
        for key in keys {
            batch.insert(&self.entries, key, values.of(key));
        }
        must(batch.commit());
    }

    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        for (index, key) in keys.iter().enumerate() {
            seen(index, must(self.entries.get(key)).as_deref());
        }
    }
}
