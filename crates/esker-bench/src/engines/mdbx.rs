//! libmdbx through the crate `libmdbx`: LMDB's design, developed further.
//!
//! Settings as for `lmdb`: a writable map, but where commits are to be durable they are written and synced; not read ahead. Without syncs
//! it may leave a damaged file at a crash of the system (`UtterlyNoSync`), as LMDB. The crate begins and ends each write transaction on a
//! thread of its own, and opens the table anew in every transaction.

use libmdbx::{
    Database, DatabaseKind, DatabaseOptions, Decodable, Mode, NoWriteMap, RO, RW, ReadWriteOptions, SyncMode, Table, TableFlags,
    Transaction, TransactionKind, WriteFlags, WriteMap,
};
use tempfile::TempDir;

use super::disk::must;
use super::{Engine, Pairs, Session, Settings};
use crate::pairs::values::{Key, Values};

/// Address space of the map.
const MAP_BYTES: isize = 1 << 40;
/// The file grows by so much at a time.
const GROWTH_BYTES: isize = 64 << 20;
/// The readers of a process that may be at work at once.
const READERS: u32 = 1024;

/// The environment and its directory.
pub(crate) struct Mdbx<M: DatabaseKind> {
    database: Database<M>,
    _directory: TempDir,
}

/// Commits stay in the map.
pub(crate) type Mapped = Mdbx<WriteMap>;
/// Commits are written to the file.
pub(crate) type Written = Mdbx<NoWriteMap>;

type Write<'a, M> = Transaction<'a, RW, M>;

/// Where a value lies in the map.
struct Place(*const u8, usize);

impl Decodable<'_> for Place {
    fn decode(data: &[u8]) -> libmdbx::Result<Self> {
        Ok(Self(data.as_ptr(), data.len()))
    }
}

impl<M: DatabaseKind> Mdbx<M> {
    /// An empty database whose keys are native integers.
    pub(crate) fn open_integers(settings: &Settings) -> anyhow::Result<Self> {
        Self::open(settings, TableFlags::INTEGER_KEY)
    }

    /// An empty database whose keys are byte strings.
    pub(crate) fn open_strings(settings: &Settings) -> anyhow::Result<Self> {
        Self::open(settings, TableFlags::empty())
    }

    fn open(settings: &Settings, flags: TableFlags) -> anyhow::Result<Self> {
        let directory = settings.place.temporary()?;
        let sync_mode = if settings.durable { SyncMode::Durable } else { SyncMode::UtterlyNoSync };
        let options = ReadWriteOptions { sync_mode, max_size: Some(MAP_BYTES), growth_step: Some(GROWTH_BYTES), ..Default::default() };
        let options =
            DatabaseOptions { mode: Mode::ReadWrite(options), max_readers: Some(READERS), no_rdahead: true, ..Default::default() };
        let database = Database::open_with_options(directory.path(), options)?;
        let transaction = database.begin_rw_txn()?;
        transaction.create_table(None, flags)?;
        transaction.commit()?;
        Ok(Self { database, _directory: directory })
    }

    /// Runs one write transaction.
    fn write<T>(&self, work: impl FnOnce(&Write<'_, M>, &Table<'_>) -> T) -> T {
        let transaction = must(self.database.begin_rw_txn());
        let result = work(&transaction, &must(transaction.open_table(None)));
        must(transaction.commit());
        result
    }

    /// Runs one read transaction.
    fn read<T>(&self, work: impl FnOnce(&Transaction<'_, RO, M>, &Table<'_>) -> T) -> T {
        let transaction = must(self.database.begin_ro_txn());
        let table = must(transaction.open_table(None));
        work(&transaction, &table)
    }
}

fn get<K: TransactionKind, M: DatabaseKind>(transaction: &Transaction<'_, K, M>, table: &Table<'_>, key: u64) -> Option<u64> {
    must(transaction.get::<[u8; 8]>(table, key.to_ne_bytes())).map(u64::from_ne_bytes)
}

fn put<M: DatabaseKind>(transaction: &Write<'_, M>, table: &Table<'_>, key: u64, value: u64) {
    must(transaction.put(table, key.to_ne_bytes(), value.to_ne_bytes(), WriteFlags::UPSERT));
}

/// Adds one to a key's value, or puts `first`, and gives the value from before.
fn increment<M: DatabaseKind>(transaction: &Write<'_, M>, table: &Table<'_>, key: u64, first: u64) -> Option<u64> {
    let old = get(transaction, table, key);
    put(transaction, table, key, old.map_or(first, |old| old + 1));
    old
}

impl<M: DatabaseKind + Send + Sync> Engine for Mdbx<M> {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl<M: DatabaseKind + Send + Sync> Session for &Mdbx<M> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.read(|transaction, table| get(transaction, table, key))
    }

    fn put(&mut self, key: u64, value: u64) {
        self.write(|transaction, table| put(transaction, table, key, value));
    }

    fn increment(&mut self, key: u64, first: u64) -> u64 {
        self.write(|transaction, table| increment(transaction, table, key, first)).map_or(first, |old| old + 1)
    }

    fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        self.read(|transaction, table| {
            for (index, &key) in keys.iter().enumerate() {
                seen(index, get(transaction, table, key));
            }
        });
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        self.write(|transaction, table| {
            for &(key, value) in pairs {
                put(transaction, table, key, value);
            }
        });
    }

    fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        self.write(|transaction, table| {
            for (index, &key) in keys.iter().enumerate() {
                seen(index, increment(transaction, table, key, 0));
            }
        });
    }
}

impl<M: DatabaseKind + Send + Sync> Pairs for Mdbx<M> {
    fn insert(&self, keys: &[Key], values: &mut Values) {
        self.write(|transaction, table| {
            for key in keys {
                must(transaction.put(table, key, values.of(key), WriteFlags::UPSERT));
            }
        });
    }

    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        self.read(|transaction, table| {
            for (index, key) in keys.iter().enumerate() {
                let place = must(transaction.get::<Place>(table, key));
                // SAFETY: the value lies there as long as the read transaction lasts, which is until all were seen.
                seen(index, place.map(|Place(bytes, length)| unsafe { std::slice::from_raw_parts(bytes, length) }));
            }
        });
    }
}
