//! `redb`: a copy-on-write B-tree in Rust.
//!
//! Commits only sync where they are to be durable. The memory is its cache of pages; below that its reads go through the page cache, which
//! only reads the device for real where something else bounds it. A single put or increment is a write transaction, of which there is
//! one at a time, a single get a read transaction; a batch of any kind is one transaction.

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition};
use tempfile::TempDir;

use super::disk::must;
use super::{Engine, Pairs, Session, Settings};
use crate::pairs::values::{Key, Values};

const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("entries");
const PAIRS: TableDefinition<'_, &Key, &[u8]> = TableDefinition::new("pairs");

/// The database and its directory.
pub(crate) struct Redb {
    database: Database,
    durability: Durability,
    _directory: TempDir,
}

impl Redb {
    /// An empty database.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let directory = settings.place.temporary()?;
        let cache = usize::try_from(settings.memory_bytes())?;
        let database = Database::builder().set_cache_size(cache).create(directory.path().join("store"))?;
        let durability = if settings.durable { Durability::Immediate } else { Durability::None };
        let redb = Self { database, durability, _directory: directory };
        // Reads fail where no write has made the table.
        redb.write(TABLE, |_| ());
        redb.write(PAIRS, |_| ());
        Ok(redb)
    }

    /// Opens a table for one read transaction.
    fn read<K: redb::Key + 'static, V: redb::Value + 'static>(&self, table: TableDefinition<'_, K, V>) -> ReadOnlyTable<K, V> {
        must(must(self.database.begin_read()).open_table(table))
    }

    /// Runs one write transaction.
    fn write<K: redb::Key + 'static, V: redb::Value + 'static, T>(
        &self,
        table: TableDefinition<'_, K, V>,
        work: impl FnOnce(&mut Table<'_, K, V>) -> T,
    ) -> T {
        let mut transaction = must(self.database.begin_write());
        must(transaction.set_durability(self.durability));
        let result = work(&mut must(transaction.open_table(table)));
        must(transaction.commit());
        result
    }
}

fn get(table: &impl ReadableTable<u64, u64>, key: u64) -> Option<u64> {
    must(table.get(key)).map(|value| value.value())
}

fn put(table: &mut Table<'_, u64, u64>, key: u64, value: u64) {
    must(table.insert(key, value));
}

/// Adds one to a key's value, or puts `first`, and gives the value from before.
fn increment(table: &mut Table<'_, u64, u64>, key: u64, first: u64) -> Option<u64> {
    let old = get(table, key);
    put(table, key, old.map_or(first, |old| old + 1));
    old
}

impl Engine for Redb {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl Session for &Redb {
    fn get(&mut self, key: u64) -> Option<u64> {
        get(&self.read(TABLE), key)
    }

    fn put(&mut self, key: u64, value: u64) {
        self.write(TABLE, |table| put(table, key, value));
    }

    fn increment(&mut self, key: u64, first: u64) -> u64 {
        self.write(TABLE, |table| increment(table, key, first)).map_or(first, |old| old + 1)
    }

    fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        let table = self.read(TABLE);
        for (index, &key) in keys.iter().enumerate() {
            seen(index, get(&table, key));
        }
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        self.write(TABLE, |table| {
            for &(key, value) in pairs {
                put(table, key, value);
            }
        });
    }

    fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        self.write(TABLE, |table| {
            for (index, &key) in keys.iter().enumerate() {
                seen(index, increment(table, key, 0));
            }
        });
    }
}

impl Pairs for Redb {
    fn insert(&self, keys: &[Key], values: &mut Values) {
        self.write(PAIRS, |table| {
            for key in keys {
                must(table.insert(key, values.of(key)));
            }
        });
    }

    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        let table = self.read(PAIRS);
        for (index, key) in keys.iter().enumerate() {
            let value = must(table.get(key));
            seen(index, value.as_ref().map(|value| value.value()));
        }
    }
}
