//! `lmdb` through `heed`: a copy-on-write B-tree in a memory map.
//!
//! The map is writable and never synced, but where commits are to be durable they are written and synced; it is not read ahead. Keys
//! that are integers are native ones. LMDB has no cache of its own and so no setting of memory: its map is the page cache, `--memory`
//! does not bound it, and it only reads the device for real where something else bounds the page cache. A single put or increment is a
//! write transaction, of which there is one at a time, a single get a read transaction; a batch of any kind is one transaction.

use heed::types::Bytes;
use heed::{
    CommitOrAbort, Comparator, Database, DefaultComparator, Env, EnvFlags, EnvOpenOptions, IntegerComparator, RoTxn, RwTxn, WithTls,
};
use std::path::Path;
use tempfile::TempDir;

use super::disk::{integer, must};
use super::{Engine, Pairs, Session, Settings};
use crate::pairs::values::{Key, Values};

/// Address space of the map; the file is sparse and takes what is written.
const MAP_BYTES: usize = 1 << 40;

/// The readers of a process that may be at work at once.
const READERS: u32 = 1024;

/// The order of keys that are native integers.
pub(crate) type Integers = IntegerComparator;
/// The order of keys that are byte strings.
pub(crate) type Strings = DefaultComparator;

/// Keys of an order, and their values.
pub(crate) type Table<C> = Database<'static, Bytes, Bytes, C>;

/// The environment and its directory.
pub(crate) struct Lmdb<C: Comparator + 'static> {
    environment: Env,
    table: Table<C>,
    _directory: TempDir,
}

/// An empty table in a fresh directory.
pub(crate) fn open<C: Comparator + Send + Sync + 'static>(directory: &Path, flags: EnvFlags) -> anyhow::Result<(Env, Table<C>)> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_readers(READERS);
    // SAFETY: without syncs a crash of the system may leave a damaged file, which nobody opens again.
    unsafe { options.flags(flags) };
    // SAFETY: the directory is fresh and only this process knows of it, so nobody else changes the file under the map.
    let environment = unsafe { options.open(directory) }?;
    let created = environment.create_databases_and_commit(environment.write_txn()?, |opener, transaction| {
        let options = opener.database_options().types::<Bytes, Bytes>().key_comparator::<C>();
        options.create(transaction).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    Ok((environment, created.unwrap_commit()))
}

impl<C: Comparator + Send + Sync + 'static> Lmdb<C> {
    /// An empty database.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let directory = settings.place.temporary()?;
        // Where commits are synced, writing the pages that changed is quicker than syncing the map.
        let writing = if settings.durable { EnvFlags::empty() } else { EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP };
        let (environment, table) = open(directory.path(), writing | EnvFlags::NO_READ_AHEAD)?;
        Ok(Self { environment, table, _directory: directory })
    }

    fn begin_read(&self) -> RoTxn<'_, WithTls> {
        must(self.environment.read_txn())
    }

    /// Runs one write transaction.
    fn write<T>(&self, work: impl FnOnce(&mut RwTxn<'_>) -> T) -> T {
        let mut transaction = must(self.environment.write_txn());
        let result = work(&mut transaction);
        must(transaction.commit());
        result
    }
}

impl Lmdb<Integers> {
    fn get(&self, transaction: &RoTxn<'_>, key: u64) -> Option<u64> {
        must(self.table.get(transaction, &key.to_ne_bytes())).map(integer)
    }

    fn put(&self, transaction: &mut RwTxn<'_>, key: u64, value: u64) {
        must(self.table.put(transaction, &key.to_ne_bytes(), &value.to_ne_bytes()));
    }

    /// Adds one to a key's value, or puts `first`, and gives the value from before.
    fn increment(&self, transaction: &mut RwTxn<'_>, key: u64, first: u64) -> Option<u64> {
        let old = self.get(transaction, key);
        self.put(transaction, key, old.map_or(first, |old| old + 1));
        old
    }
}

impl Engine for Lmdb<Integers> {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl Session for &Lmdb<Integers> {
    fn get(&mut self, key: u64) -> Option<u64> {
        Lmdb::get(self, &self.begin_read(), key)
    }

    fn put(&mut self, key: u64, value: u64) {
        self.write(|transaction| Lmdb::put(self, transaction, key, value));
    }

    fn increment(&mut self, key: u64, first: u64) -> u64 {
        let old = self.write(|transaction| Lmdb::increment(self, transaction, key, first));
        old.map_or(first, |old| old + 1)
    }

    fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        let transaction = self.begin_read();
        for (index, &key) in keys.iter().enumerate() {
            seen(index, Lmdb::get(self, &transaction, key));
        }
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        self.write(|transaction| {
            for &(key, value) in pairs {
                Lmdb::put(self, transaction, key, value);
            }
        });
    }

    fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        self.write(|transaction| {
            for (index, &key) in keys.iter().enumerate() {
                seen(index, Lmdb::increment(self, transaction, key, 0));
            }
        });
    }
}

impl Pairs for Lmdb<Strings> {
    fn insert(&self, keys: &[Key], values: &mut Values) {
        self.write(|transaction| keys.iter().for_each(|key| must(self.table.put(transaction, key, values.of(key)))));
    }

    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        let transaction = self.begin_read();
        for (index, key) in keys.iter().enumerate() {
            seen(index, must(self.table.get(&transaction, key)));
        }
    }
}
