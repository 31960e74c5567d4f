//! The engines whose transactions are compared, each with its own notion of one.
//!
//! Each in its best setting for small records that fit its memory, as `engines` opens it. LMDB, libmdbx and redb let one writer in at a
//! time, so their transactions never abort.

use anyhow::Result;
use esker::Error;

use crate::answers::Sum;
use crate::engines::Settings;
use crate::engines::esker::Esker;
#[cfg(feature = "peers-disk")]
use crate::engines::{lmdb, mdbx, redb};

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
    Mdbx,
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
            Self::Mdbx => "mdbx",
            #[cfg(feature = "peers-disk")]
            Self::Redb => "redb",
        }
    }

    /// Others map their file, and the page cache is theirs.
    pub(super) fn takes_memory(self) -> bool {
        match self {
            #[cfg(feature = "peers-disk")]
            Self::Lmdb | Self::Mdbx => false,
            _ => true,
        }
    }

    pub(super) fn open(self, settings: &Settings) -> Result<Box<dyn Ledger>> {
        Ok(match self {
            Self::Esker => Box::new(Esker::open(settings)?),
            #[cfg(feature = "peers-disk")]
            Self::RocksdbOptimistic => Box::new(rocks::Optimistic::open(settings)?),
            #[cfg(feature = "peers-disk")]
            Self::RocksdbPessimistic => Box::new(rocks::Pessimistic::open(settings)?),
            #[cfg(feature = "peers-disk")]
            Self::Lmdb => Box::new(one_writer::OneWriter(lmdb::Lmdb::<lmdb::Integers>::open(settings)?)),
            #[cfg(feature = "peers-disk")]
            Self::Mdbx if settings.durable => Box::new(one_writer::OneWriter(mdbx::Written::open_integers(settings)?)),
            #[cfg(feature = "peers-disk")]
            Self::Mdbx => Box::new(one_writer::OneWriter(mdbx::Mapped::open_integers(settings)?)),
            #[cfg(feature = "peers-disk")]
            Self::Redb => Box::new(one_writer::OneWriter(redb::Redb::open(settings)?)),
        })
    }
}

impl Ledger for Esker {
    fn load(&self, keys: &[u64]) -> Result<()> {
        Ok(self.store().put_many(&keys.iter().map(|&key| (key, 0)).collect::<Vec<_>>())?)
    }

    fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
        let mut tx = self.store().begin()?;
        let done = keys.iter().try_for_each(|key| tx.rmw(key, |old| old.unwrap_or(0) + 1).map(drop)).and_then(|()| tx.commit());
        match done {
            Ok(()) => Ok(true),
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn sum(&self, keys: &[u64]) -> Result<u64> {
        let mut sum = Sum::of(keys);
        self.store().get_many(keys, |at, value| sum.add(at, value))?;
        sum.get()
    }
}

/// Engines whose batches are transactions, and one writer's at a time.
#[cfg(feature = "peers-disk")]
mod one_writer {
    use super::Ledger;
    use crate::answers::Sum;
    use crate::engines::{Engine, Session};
    use anyhow::Result;

    pub(super) struct OneWriter<E>(pub(super) E);

    impl<E: Engine> Ledger for OneWriter<E> {
        fn load(&self, keys: &[u64]) -> Result<()> {
            self.0.session().put_many(&keys.iter().map(|&key| (key, 0)).collect::<Vec<_>>());
            Ok(())
        }

        fn add_one_to_each(&self, keys: &[u64]) -> Result<bool> {
            self.0.session().increment_many(keys, |_, _| ());
            Ok(true)
        }

        fn sum(&self, keys: &[u64]) -> Result<u64> {
            let mut sum = Sum::of(keys);
            self.0.session().get_many(keys, |at, value| sum.add(at, value));
            sum.get()
        }
    }
}

#[cfg(feature = "peers-disk")]
mod rocks {
    use super::Ledger;
    use crate::engines::{Settings, rocksdb as engine};
    use anyhow::{Context, Result};
    use rocksdb::{
        ErrorKind, OptimisticTransactionDB, OptimisticTransactionOptions, Options, TransactionDB, TransactionDBOptions, TransactionOptions,
        WriteOptions,
    };
    use tempfile::TempDir;

    fn number(bytes: &[u8]) -> Result<u64> {
        Ok(u64::from_ne_bytes(bytes.try_into()?))
    }

    /// What a transaction answers when another one was quicker.
    fn is_abort(error: &rocksdb::Error) -> bool {
        matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain | ErrorKind::TimedOut | ErrorKind::Aborted)
    }

    macro_rules! ledger {
        ($name:ident, $database:ty, $open:expr, $begin:expr) => {
            pub(super) struct $name {
                database: $database,
                writes: WriteOptions,
                _directory: TempDir,
            }

            impl $name {
                pub(super) fn open(settings: &Settings) -> Result<Self> {
                    let directory = settings.place.temporary()?;
                    let database = $open(&engine::options(settings.memory_bytes(), settings.durable)?, &directory)?;
                    Ok(Self { database, writes: engine::write_options(settings.durable), _directory: directory })
                }

                fn try_add(&self, keys: &[u64]) -> std::result::Result<(), rocksdb::Error> {
                    let tx = $begin(&self.database, &self.writes);
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
                    let tx = $begin(&self.database, &self.writes);
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

    ledger!(
        Optimistic,
        OptimisticTransactionDB,
        |options: &Options, directory: &TempDir| OptimisticTransactionDB::open(options, directory.path()),
        begin_optimistic
    );
    ledger!(
        Pessimistic,
        TransactionDB,
        |options: &Options, directory: &TempDir| TransactionDB::open(options, &TransactionDBOptions::default(), directory.path()),
        begin_pessimistic
    );

    fn begin_optimistic<'d>(
        database: &'d OptimisticTransactionDB,
        writes: &WriteOptions,
    ) -> rocksdb::Transaction<'d, OptimisticTransactionDB> {
        database.transaction_opt(writes, &OptimisticTransactionOptions::default())
    }

    fn begin_pessimistic<'d>(database: &'d TransactionDB, writes: &WriteOptions) -> rocksdb::Transaction<'d, TransactionDB> {
        database.transaction_opt(writes, &TransactionOptions::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size;

    #[test]
    fn a_counter_that_is_lost_is_no_zero() {
        let ledger = Kind::Esker.open(&Settings { hybrid_bytes: Some(size::LEAST), ..Settings::default() }).unwrap();
        ledger.load(&[1, 2, 3]).unwrap();
        assert!(ledger.add_one_to_each(&[1, 3]).unwrap());
        assert_eq!(ledger.sum(&[1, 2, 3]).unwrap(), 2);
        assert!(ledger.sum(&[1, 2, 3, 4]).is_err());
    }
}
