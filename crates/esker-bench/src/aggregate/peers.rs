//! Others that compute the same sums, of fresh stores, on one thread.
//!
//! * **Arrow**: keys and values as two columns of integers, in memory, in the order of loading: no store, but the limit to look up to.
//! * **RocksDB**: an iterator over all, compacted once after loading, cache for all of it, no checksums verified.
//! * **LMDB**: a cursor over all, loaded in the order of keys.
//! * **Redis**: a script in Lua that gets keys which it is sent, a thousand at a time through a Unix socket; where `redis-server` is
//!   installed. What it reads is text.
//!
//! DuckDB is left out: its build takes longer than all others together, and it sums a column at the speed of Arrow's.

use anyhow::Result;

use super::stores::Setting;

mod redis;

/// Who computes the same sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Peer {
    /// A column in memory; needs `--features peers`.
    Arrow,
    /// An iterator; needs `--features peers-disk`.
    Rocksdb,
    /// A cursor; needs `--features peers-disk`.
    Lmdb,
    /// A Lua script; needs an installed `redis-server`.
    Redis,
}

/// A peer that holds the objects of a setting.
pub(super) trait Loaded {
    fn name(&self) -> &'static str;
    fn sum(&mut self, selectivity: f64, listed: &[u64]) -> Result<i128>;
}

impl Peer {
    /// An error names the first that this build does not have.
    pub(super) fn all_are_built(peers: &[Self]) -> Result<()> {
        for peer in peers {
            let (name, feature, is_built) = match peer {
                Self::Arrow => ("arrow", "peers", cfg!(feature = "peers")),
                Self::Rocksdb => ("rocksdb", "peers-disk", cfg!(feature = "peers-disk")),
                Self::Lmdb => ("lmdb", "peers-disk", cfg!(feature = "peers-disk")),
                Self::Redis => continue,
            };
            anyhow::ensure!(is_built, "{name} needs a build with `--features {feature}`");
        }
        Ok(())
    }

    /// The peer with the objects of a setting; `None` where the machine does not have it.
    pub(super) fn load(self, setting: &Setting) -> Result<Option<Box<dyn Loaded>>> {
        match self {
            #[cfg(feature = "peers")]
            Self::Arrow => columns::arrow(setting).map(Some),
            #[cfg(feature = "peers-disk")]
            Self::Rocksdb => disk::rocksdb(setting).map(Some),
            #[cfg(feature = "peers-disk")]
            Self::Lmdb => disk::lmdb(setting).map(Some),
            Self::Redis => Ok(redis::Redis::load(setting)?.map(|redis| Box::new(redis) as Box<dyn Loaded>)),
            #[cfg(not(all(feature = "peers", feature = "peers-disk")))]
            _ => unreachable!("refused before"),
        }
    }
}

#[cfg(feature = "peers")]
mod columns {
    use anyhow::{Context, ensure};
    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt64Type;
    use arrow_array::{Scalar, UInt64Array};

    use super::{Loaded, Result, Setting};

    struct Columns {
        keys: UInt64Array,
        values: UInt64Array,
    }

    pub(super) fn arrow(setting: &Setting) -> Result<Box<dyn Loaded>> {
        ensure!(setting.value_bytes == 8, "a column has the integers alone: give arrow values of 8 bytes");
        Ok(Box::new(Columns { keys: setting.all().collect(), values: (0..setting.keys).collect() }))
    }

    impl Loaded for Columns {
        fn name(&self) -> &'static str {
            "arrow column"
        }

        fn sum(&mut self, selectivity: f64, _: &[u64]) -> Result<i128> {
            if selectivity >= 1.0 {
                return Ok(arrow_arith::aggregate::sum(&self.values).unwrap_or(0).into());
            }
            // The keys that `is_asked` is true for are those below a bound.
            let bound = Scalar::new(UInt64Array::from(vec![(selectivity * u64::MAX as f64).ceil() as u64]));
            let asked = arrow_ord::cmp::lt(&self.keys, &bound)?;
            let values = arrow_select::filter::filter(&self.values, &asked)?;
            let values = values.as_primitive_opt::<UInt64Type>().context("a filter keeps the type")?;
            Ok(arrow_arith::aggregate::sum(values).unwrap_or(0).into())
        }
    }
}

#[cfg(feature = "peers-disk")]
mod disk {
    use heed::EnvFlags;
    use rocksdb::{DB, ReadOptions, WriteBatch, WriteOptions};
    use tempfile::TempDir;

    use super::super::is_asked;
    use super::super::stores::Amount;
    use super::{Loaded, Result, Setting};
    use crate::engines::{lmdb as engine, rocksdb as rocks};
    use crate::{keys, memory};

    const BATCH: usize = 1024;

    /// Every object, in the order of the keys' own bytes or of their numbers.
    fn objects(setting: &Setting) -> Vec<(u64, u64)> {
        (0..setting.keys).map(|index| (keys::key(index), index)).collect()
    }

    fn add(sum: &mut i128, selectivity: f64, key: &[u8], value: &[u8], number: fn([u8; 8]) -> u64) -> Result<()> {
        if is_asked(number(key.try_into()?), selectivity) {
            *sum += i128::from(<[u8]>::amount(value));
        }
        Ok(())
    }

    struct Rocksdb {
        database: DB,
        _directory: TempDir,
    }

    pub(super) fn rocksdb(setting: &Setting) -> Result<Box<dyn Loaded>> {
        let directory = setting.place.temporary()?;
        let database = DB::open(&rocks::options(memory::physical_bytes() / 4, false)?, directory.path())?;
        let mut writes = WriteOptions::default();
        writes.disable_wal(true);
        for part in objects(setting).chunks(BATCH) {
            let mut batch = WriteBatch::default();
            part.iter().for_each(|(key, index)| batch.put(key.to_be_bytes(), <[u8]>::pack(*index, setting.value_bytes)));
            database.write_opt(batch, &writes)?;
        }
        database.flush()?;
        database.compact_range::<&[u8], &[u8]>(None, None);
        Ok(Box::new(Rocksdb { database, _directory: directory }))
    }

    impl Loaded for Rocksdb {
        fn name(&self) -> &'static str {
            "rocksdb iterator"
        }

        fn sum(&mut self, selectivity: f64, _: &[u64]) -> Result<i128> {
            let mut reads = ReadOptions::default();
            reads.set_verify_checksums(false);
            reads.set_readahead_size(2 << 20);
            let mut sum = 0;
            // Its other iterator copies each pair to the heap.
            let mut pairs = self.database.raw_iterator_opt(reads);
            pairs.seek_to_first();
            while let Some((key, value)) = pairs.item() {
                add(&mut sum, selectivity, key, value, u64::from_be_bytes)?;
                pairs.next();
            }
            pairs.status()?;
            Ok(sum)
        }
    }

    struct Lmdb {
        environment: heed::Env,
        table: engine::Table<engine::Integers>,
        _directory: TempDir,
    }

    pub(super) fn lmdb(setting: &Setting) -> Result<Box<dyn Loaded>> {
        let directory = setting.place.temporary()?;
        let (environment, table) = engine::open(directory.path(), EnvFlags::NO_SYNC)?;
        let mut objects = objects(setting);
        objects.sort_unstable();
        let mut transaction = environment.write_txn()?;
        for (key, index) in objects {
            table.put(&mut transaction, &key.to_ne_bytes(), &<[u8]>::pack(index, setting.value_bytes))?;
        }
        transaction.commit()?;
        Ok(Box::new(Lmdb { environment, table, _directory: directory }))
    }

    impl Loaded for Lmdb {
        fn name(&self) -> &'static str {
            "lmdb cursor"
        }

        fn sum(&mut self, selectivity: f64, _: &[u64]) -> Result<i128> {
            let transaction = self.environment.read_txn()?;
            let mut sum = 0;
            for pair in self.table.iter(&transaction)? {
                let (key, value) = pair?;
                add(&mut sum, selectivity, key, value, u64::from_ne_bytes)?;
            }
            Ok(sum)
        }
    }
}
