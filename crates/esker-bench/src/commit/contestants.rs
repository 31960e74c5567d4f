//! Who makes puts durable: Esker, and engines whose syncs are on.
//!
//! * **At once**: a put is durable when it returns. RocksDB writes its log with `sync`, and its writers form groups by themselves. LMDB
//!   and redb have one writer at a time and a commit of their own for each put. fjall writes its journal, then syncs it.
//! * **Every so many seconds**: puts return when they are done, and a thread of the benchmark asks for a sync, which makes
//!   durable what came before: RocksDB's and fjall's logs, whose records gather in memory until then, are written and synced, LMDB's map is
//!   synced, redb commits once durably. Esker does it by itself, and for it that thread does nothing.
//!
//! None of them flushes or compacts more than it wants to. Settings are else those of the other experiments (`engines/`).

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use esker::{Durability, Options, Store};

use crate::engines::Name;

/// When puts are durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Promise {
    /// When they return.
    AtOnce,
    /// When the next sync has ended; there is one every so often.
    Every(Duration),
}

/// An engine that was opened with a promise. Failures end the benchmark.
pub(super) trait Contestant: Send + Sync {
    /// Sets a key's value.
    fn put(&self, key: u64, value: u64);

    /// A key's value.
    fn get(&self, key: u64) -> Option<u64>;

    /// Makes durable what was put before, if the promise is not kept by itself.
    fn sync(&self) {}
}

/// An empty one in a fresh directory.
pub(super) fn open(name: Name, promise: Promise, memory: u64, directory: &Path) -> Result<Box<dyn Contestant>> {
    if name != Name::Esker {
        return peer(name, promise, memory, directory);
    }
    let durability = match promise {
        Promise::AtOnce => Durability::Always,
        Promise::Every(pause) => Durability::Every(pause),
    };
    let store: Store<u64, u64> = Options::new().memory(memory).durability(durability).open(directory.join("store"))?;
    Ok(Box::new(store))
}

impl Contestant for Store<u64, u64> {
    fn put(&self, key: u64, value: u64) {
        Store::put(self, &key, &value).unwrap_or_else(|error| panic!("esker failed: {error}"));
    }

    fn get(&self, key: u64) -> Option<u64> {
        Store::get(self, &key).unwrap_or_else(|error| panic!("esker failed: {error}"))
    }
}

#[cfg(not(feature = "peers-disk"))]
fn peer(name: Name, _: Promise, _: u64, _: &Path) -> Result<Box<dyn Contestant>> {
    anyhow::bail!("{} needs a build with `--features peers-disk`", name.text())
}

#[cfg(feature = "peers-disk")]
use peers::open as peer;

#[cfg(feature = "peers-disk")]
mod peers {
    use std::path::Path;

    use anyhow::{Result, bail};
    use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode};
    use heed::EnvFlags;
    use redb::{ReadableDatabase, TableDefinition};

    use super::{Contestant, Promise};
    use crate::engines::Name;
    use crate::engines::disk::{Shares, integer, must};
    use crate::engines::{lmdb, rocksdb as rocks};

    const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("entries");

    pub(super) fn open(name: Name, promise: Promise, memory: u64, directory: &Path) -> Result<Box<dyn Contestant>> {
        let at_once = promise == Promise::AtOnce;
        Ok(match name {
            Name::Rocksdb => Box::new(Rocksdb::open(at_once, memory, directory)?),
            Name::Lmdb => Box::new(Lmdb::open(at_once, directory)?),
            Name::Redb => Box::new(Redb::open(at_once, memory, directory)?),
            Name::Fjall => Box::new(Fjall::open(at_once, memory, directory)?),
            _ => bail!("{} keeps nothing on disk", name.text()),
        })
    }

    struct Rocksdb {
        database: rocksdb::DB,
        reads: rocksdb::ReadOptions,
        writes: rocksdb::WriteOptions,
    }

    impl Rocksdb {
        fn open(at_once: bool, memory: u64, directory: &Path) -> Result<Self> {
            let mut options = rocks::options(memory, true)?;
            options.set_manual_wal_flush(!at_once);
            let mut writes = rocksdb::WriteOptions::default();
            writes.set_sync(at_once);
            Ok(Self { database: rocksdb::DB::open(&options, directory)?, reads: rocksdb::ReadOptions::default(), writes })
        }
    }

    impl Contestant for Rocksdb {
        fn put(&self, key: u64, value: u64) {
            must(self.database.put_opt(key.to_ne_bytes(), value.to_ne_bytes(), &self.writes));
        }

        fn get(&self, key: u64) -> Option<u64> {
            must(self.database.get_pinned_opt(key.to_ne_bytes(), &self.reads)).map(|value| integer(&value))
        }

        fn sync(&self) {
            must(self.database.flush_wal(true));
        }
    }

    struct Lmdb {
        environment: heed::Env,
        table: lmdb::Table<lmdb::Integers>,
    }

    impl Lmdb {
        fn open(at_once: bool, directory: &Path) -> Result<Self> {
            let flags = if at_once { EnvFlags::empty() } else { EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP };
            let (environment, table) = lmdb::open(directory, flags)?;
            Ok(Self { environment, table })
        }
    }

    impl Contestant for Lmdb {
        fn put(&self, key: u64, value: u64) {
            let mut transaction = must(self.environment.write_txn());
            must(self.table.put(&mut transaction, &key.to_ne_bytes(), &value.to_ne_bytes()));
            must(transaction.commit());
        }

        fn get(&self, key: u64) -> Option<u64> {
            let transaction = must(self.environment.read_txn());
            must(self.table.get(&transaction, &key.to_ne_bytes())).map(integer)
        }

        fn sync(&self) {
            must(self.environment.force_sync());
        }
    }

    struct Redb {
        database: redb::Database,
        at_once: bool,
    }

    impl Redb {
        fn open(at_once: bool, memory: u64, directory: &Path) -> Result<Self> {
            let cache = usize::try_from(memory)?;
            Ok(Self { database: redb::Database::builder().set_cache_size(cache).create(directory.join("store"))?, at_once })
        }

        fn commit(&self, durable: bool, pair: Option<(u64, u64)>) {
            let mut transaction = must(self.database.begin_write());
            must(transaction.set_durability(if durable { redb::Durability::Immediate } else { redb::Durability::None }));
            if let Some((key, value)) = pair {
                must(must(transaction.open_table(TABLE)).insert(key, value));
            }
            must(transaction.commit());
        }
    }

    impl Contestant for Redb {
        fn put(&self, key: u64, value: u64) {
            self.commit(self.at_once, Some((key, value)));
        }

        fn get(&self, key: u64) -> Option<u64> {
            let transaction = must(self.database.begin_read());
            must(must(transaction.open_table(TABLE)).get(key)).map(|value| value.value())
        }

        fn sync(&self) {
            self.commit(true, None);
        }
    }

    struct Fjall {
        database: fjall::Database,
        entries: Keyspace,
        at_once: bool,
    }

    impl Fjall {
        fn open(at_once: bool, memory: u64, directory: &Path) -> Result<Self> {
            let shares = Shares::of(memory);
            let database = fjall::Database::builder(directory).cache_size(shares.cache).manual_journal_persist(true).open()?;
            let entries = database
                .keyspace("entries", || KeyspaceCreateOptions::default().manual_journal_persist(true).max_memtable_size(shares.buffer))?;
            Ok(Self { database, entries, at_once })
        }
    }

    impl Contestant for Fjall {
        fn put(&self, key: u64, value: u64) {
            must(self.entries.insert(key.to_ne_bytes(), value.to_ne_bytes()));
            if self.at_once {
                self.sync();
            }
        }

        fn get(&self, key: u64) -> Option<u64> {
            must(self.entries.get(key.to_ne_bytes())).map(|value| integer(&value))
        }

        fn sync(&self) {
            must(self.database.persist(PersistMode::SyncData));
        }
    }
}
