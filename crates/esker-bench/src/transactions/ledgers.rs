//! The engines whose transactions are compared, each with its own notion of one.
//!
//! Each in its best setting for small records that fit its memory: RocksDB and LMDB as `engines` opens them. LMDB and redb let one
//! writer in at a time, so their transactions never abort.

use std::path::Path;

use anyhow::Result;
use esker::{Durability, Error, Options, Store};

/// Counters by key.
pub(super) trait Ledger: Sync {
    /// Zero for each of these.
    fn load(&self, keys: &[u64]) -> Result<()>;
    /// Adds one to each in a transaction that reads them all; false if it was aborted, and nothing changed.
    fn add_one_to_each(&self, keys: &[u64]) -> Result<bool>;
    /// The sum of these.
    fn sum(&self, keys: &[u64]) -> Result<u64>;
}

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    Esker,
    #[cfg(feature = "peers-disk")]
    RocksdbOptimistic,
    #[cfg(feature = "peers-disk")]
    RocksdbPessimistic,
    #[cfg(feature = "peers-disk")]
    Lmdb,
    #[cfg(feature = "peers-disk")]
    Redb,
}

impl Kind {
    pub(super) fn all() -> Vec<Self> {
        <Self as clap::ValueEnum>::value_variants().to_vec()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Esker => "esker",
            #[cfg(feature = "peers-disk")]
            Self::RocksdbOptimistic => "rocksdb, optimistic",
            #[cfg(feature = "peers-disk")]
            Self::RocksdbPessimistic => "rocksdb, pessimistic",
            #[cfg(feature = "peers-disk")]
            Self::Lmdb => "lmdb",
            #[cfg(feature = "peers-disk")]
            Self::Redb => "redb",
        }
    }

    pub(super) fn open(self, directory: &Path, memory: u64, sync: bool) -> Result<Box<dyn Ledger>> {
        Ok(match self {
            Self::Esker => Box::new(open_esker(directory, memory, sync)?),
            #[cfg(feature = "peers-disk")]
            Self::RocksdbOptimistic => Box::new(peers::RocksdbOptimistic::open(directory, memory, sync)?),
            #[cfg(feature = "peers-disk")]
            Self::RocksdbPessimistic => Box::new(peers::RocksdbPessimistic::open(directory, memory, sync)?),
            #[cfg(feature = "peers-disk")]
            Self::Lmdb => Box::new(peers::Lmdb::open(directory, sync)?),
            #[cfg(feature = "peers-disk")]
            Self::Redb => Box::new(peers::Redb::open(directory, memory, sync)?),
        })
    }
}

fn open_esker(directory: &Path, memory: u64, sync: bool) -> Result<Store<u64, u64>> {
    let durability = if sync { Durability::Always } else { Durability::None };
    Ok(Options::new().memory(memory).durability(durability).open(directory.join("store"))?)
}

impl Ledger for Store<u64, u64> {
    fn load(&self, keys: &[u64]) -> Result<()> {
        Ok(self.put_many(&keys.iter().map(|&key| (key, 0)).collect::<Vec<_>>())?)
    }

    fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
        let mut tx = self.begin()?;
        let done = keys.iter().try_for_each(|key| tx.rmw(key, |old| old.unwrap_or(0) + 1).map(drop)).and_then(|()| tx.commit());
        match done {
            Ok(()) => Ok(true),
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn sum(&self, keys: &[u64]) -> Result<u64> {
        let mut sum = 0;
        self.get_many(keys, |_, value| sum += value.unwrap_or(0))?;
        Ok(sum)
    }
}

#[cfg(feature = "peers-disk")]
mod peers {
    use super::Ledger;
    use crate::engines::{lmdb, rocksdb as rocks};
    use anyhow::{Context, Result};
    use heed::EnvFlags;
    use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
    use rocksdb::{
        ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, TransactionDB, TransactionDBOptions, TransactionOptions,
        WriteOptions,
    };
    use std::path::Path;

    fn number(bytes: &[u8]) -> Result<u64> {
        Ok(u64::from_ne_bytes(bytes.try_into()?))
    }

    /// What a transaction answers when another one was quicker.
    fn is_abort(error: &rocksdb::Error) -> bool {
        matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain | ErrorKind::TimedOut | ErrorKind::Aborted)
    }

    fn writes(sync: bool) -> WriteOptions {
        let mut writes = WriteOptions::default();
        if sync {
            writes.set_sync(true);
        } else {
            writes.disable_wal(true);
        }
        writes
    }

    macro_rules! rocksdb_ledger {
        ($name:ident, $database:ty, $open:expr, $begin:expr) => {
            pub(in super::super) struct $name {
                database: $database,
                sync: bool,
            }

            impl $name {
                pub(in super::super) fn open(directory: &Path, memory: u64, sync: bool) -> Result<Self> {
                    Ok(Self { database: $open(&rocks::options(memory)?, directory)?, sync })
                }

                fn try_add(&self, keys: &[u64]) -> std::result::Result<(), rocksdb::Error> {
                    let tx = $begin(&self.database, writes(self.sync));
                    for key in keys {
                        let old = tx.get_for_update(key.to_ne_bytes(), true)?;
                        let old = old.map_or(0, |bytes| number(&bytes).unwrap_or(0));
                        tx.put(key.to_ne_bytes(), (old + 1).to_ne_bytes())?;
                    }
                    tx.commit()
                }
            }

            impl Ledger for $name {
                fn load(&self, keys: &[u64]) -> Result<()> {
                    let tx = $begin(&self.database, writes(false));
                    keys.iter().try_for_each(|key| tx.put(key.to_ne_bytes(), 0u64.to_ne_bytes()))?;
                    Ok(tx.commit()?)
                }

                fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
                    match self.try_add(keys) {
                        Ok(()) => Ok(true),
                        Err(error) if is_abort(&error) => Ok(false),
                        Err(error) => Err(error.into()),
                    }
                }

                fn sum(&self, keys: &[u64]) -> Result<u64> {
                    let read = |key: &u64| number(&self.database.get(key.to_ne_bytes())?.context("a key is lost")?);
                    keys.iter().map(read).sum()
                }
            }
        };
    }

    rocksdb_ledger!(
        RocksdbOptimistic,
        OptimisticTransactionDB,
        |options: &rocksdb::Options, directory: &Path| OptimisticTransactionDB::open(options, directory),
        begin_optimistic
    );
    rocksdb_ledger!(
        RocksdbPessimistic,
        TransactionDB,
        |options: &rocksdb::Options, directory: &Path| TransactionDB::open(options, &TransactionDBOptions::default(), directory),
        begin_pessimistic
    );

    fn begin_optimistic(database: &OptimisticTransactionDB, writes: WriteOptions) -> rocksdb::Transaction<'_, OptimisticTransactionDB> {
        database.transaction_opt(&writes, &OptimisticTransactionOptions::default())
    }

    fn begin_pessimistic(database: &TransactionDB, writes: WriteOptions) -> rocksdb::Transaction<'_, TransactionDB> {
        database.transaction_opt(&writes, &TransactionOptions::default())
    }

    pub(in super::super) struct Lmdb {
        environment: heed::Env,
        table: lmdb::Table,
    }

    impl Lmdb {
        pub(in super::super) fn open(directory: &Path, sync: bool) -> Result<Self> {
            let flags = if sync { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
            let (environment, table) = lmdb::open(directory, flags)?;
            Ok(Self { environment, table })
        }
    }

    impl Ledger for Lmdb {
        fn load(&self, keys: &[u64]) -> Result<()> {
            let mut tx = self.environment.write_txn()?;
            keys.iter().try_for_each(|key| self.table.put(&mut tx, &key.to_ne_bytes(), &[0; 8]))?;
            Ok(tx.commit()?)
        }

        fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
            let mut tx = self.environment.write_txn()?;
            for key in keys {
                let old = number(self.table.get(&tx, &key.to_ne_bytes())?.context("a key is lost")?)?;
                self.table.put(&mut tx, &key.to_ne_bytes(), &(old + 1).to_ne_bytes())?;
            }
            tx.commit()?;
            Ok(true)
        }

        fn sum(&self, keys: &[u64]) -> Result<u64> {
            let tx = self.environment.read_txn()?;
            keys.iter().map(|key| number(self.table.get(&tx, &key.to_ne_bytes())?.context("a key is lost")?)).sum()
        }
    }

    const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("entries");

    pub(in super::super) struct Redb {
        database: Database,
        sync: bool,
    }

    impl Redb {
        pub(in super::super) fn open(directory: &Path, memory: u64, sync: bool) -> Result<Self> {
            Ok(Self { database: Database::builder().set_cache_size(usize::try_from(memory)?).create(directory.join("store"))?, sync })
        }

        fn write(&self, durable: bool, work: impl Fn(&mut redb::Table<'_, u64, u64>) -> Result<()>) -> Result<()> {
            let mut tx = self.database.begin_write()?;
            tx.set_durability(if durable { Durability::Immediate } else { Durability::None })?;
            work(&mut tx.open_table(TABLE)?)?;
            Ok(tx.commit()?)
        }
    }

    impl Ledger for Redb {
        fn load(&self, keys: &[u64]) -> Result<()> {
            self.write(false, |table| keys.iter().try_for_each(|key| Ok(table.insert(key, 0).map(drop)?)))
        }

        fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
            self.write(self.sync, |table| {
                keys.iter().try_for_each(|key| {
                    let old = table.get(key)?.context("a key is lost")?.value();
                    Ok(table.insert(key, old + 1).map(drop)?)
                })
            })?;
            Ok(true)
        }

        fn sum(&self, keys: &[u64]) -> Result<u64> {
            let tx = self.database.begin_read()?;
            let table = tx.open_table(TABLE)?;
            keys.iter().map(|key| Ok(table.get(key)?.context("a key is lost")?.value())).sum()
        }
    }
}
