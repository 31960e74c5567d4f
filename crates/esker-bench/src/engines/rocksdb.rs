//! `rocksdb`: the LSM tree in C++.
//!
//! Settings for point reads of keys that exist: a filter in all levels but the last, a hash index in data blocks, no compression, one
//! background thread per core. Writes go without a log, unless they are to be durable: then the log is synced. Reads, flushes and
//! compactions are direct, past the page cache; the directory must be on a file system which can do that. The memory holds the block cache,
//! index and filter blocks in it, and two write buffers. Increments take a lock of the benchmark, a get and a put.
//!
//! Batches are one `WriteBatch` and one batched `MultiGet`, whose reads the device sees one after another: the crate's feature
//! `io-uring` (needs liburing) only lets reads of the same file overlap, and is off. The build needs libclang (`libclang-dev`) and a C++
//! compiler, and most of an hour of one core; `ROCKSDB_LIB_DIR` and `ROCKSDB_STATIC` name a library of the same version to take instead.

use std::thread;

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, DB, DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, DataBlockIndexType, Options, ReadOptions,
    WriteBatch, WriteOptions,
};
use tempfile::TempDir;

use super::disk::{Shares, Stripes, integer, must};
use super::{Engine, Pairs, Session, Settings};
use crate::pairs::values::{Key, Values};

/// The bits of a filter for each key.
const FILTER_BITS: f64 = 10.0;

/// The database and its directory.
pub(crate) struct Rocksdb {
    database: DB,
    stripes: Stripes,
    reads: ReadOptions,
    writes: WriteOptions,
    _directory: TempDir,
}

impl Rocksdb {
    /// An empty database.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let directory = settings.place.temporary()?;
        let options = options(settings.memory_bytes(), settings.durable)?;
        // Batched reads want the handle of a family, which only families opened by name have.
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        let database = DB::open_cf_with_opts(&options, directory.path(), families)?;
        let mut reads = ReadOptions::default();
        reads.set_verify_checksums(!settings.unchecked);
        Ok(Self { database, stripes: Stripes::new(), reads, writes: write_options(settings.durable), _directory: directory })
    }

    fn family(&self) -> &ColumnFamily {
        self.database.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).expect("the family was opened by name")
    }
}

/// How RocksDB writes.
pub(crate) fn write_options(durable: bool) -> WriteOptions {
    let mut writes = WriteOptions::default();
    if durable {
        writes.set_sync(true);
    } else {
        writes.disable_wal(true);
    }
    writes
}

/// Old logs that are written over.
const LOGS_KEPT: usize = 4;

/// How RocksDB is opened, with this memory, and with a log or without.
pub(crate) fn options(memory: u64, has_log: bool) -> anyhow::Result<Options> {
    let shares = Shares::of(memory);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.increase_parallelism(i32::try_from(thread::available_parallelism()?.get())?);
    options.set_write_buffer_size(usize::try_from(shares.buffer)?);
    options.set_max_write_buffer_number(2);
    options.set_compression_type(DBCompressionType::None);
    options.set_optimize_filters_for_hits(true);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    if has_log {
        // A log that lies over an old one has its length: a sync need not write that, too. Who keeps old ones must not write without a log.
        options.set_recycle_log_file_num(LOGS_KEPT);
    }
    options.set_block_based_table_factory(&tables(usize::try_from(shares.cache)?));
    Ok(options)
}

fn tables(cache: usize) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(&Cache::new_hyper_clock_cache(cache, 0));
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    tables.set_bloom_filter(FILTER_BITS, false);
    tables.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    tables
}

impl Engine for Rocksdb {
    type Session<'a> = &'a Self;

    fn session(&self) -> &Self {
        self
    }
}

impl Session for &Rocksdb {
    fn get(&mut self, key: u64) -> Option<u64> {
        must(self.database.get_pinned_opt(key.to_ne_bytes(), &self.reads)).map(|value| integer(&value))
    }

    fn put(&mut self, key: u64, value: u64) {
        must(self.database.put_opt(key.to_ne_bytes(), value.to_ne_bytes(), &self.writes));
    }

    fn increment(&mut self, key: u64, first: u64) -> u64 {
        let _lock = self.stripes.lock(key);
        let value = self.get(key).map_or(first, |value| value + 1);
        self.put(key, value);
        value
    }

    fn get_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        let keys: Vec<_> = keys.iter().map(|key| key.to_ne_bytes()).collect();
        let values = self.database.batched_multi_get_cf_opt(self.family(), &keys, false, &self.reads);
        for (index, value) in values.into_iter().enumerate() {
            seen(index, must(value).map(|value| integer(&value)));
        }
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key.to_ne_bytes(), value.to_ne_bytes());
        }
        must(self.database.write_opt(batch, &self.writes));
    }
}

impl Pairs for Rocksdb {
    fn insert(&self, keys: &[Key], values: &mut Values) {
        let mut batch = WriteBatch::default();
        for key in keys {
            batch.put(key, values.of(key));
        }
        must(self.database.write_opt(batch, &self.writes));
    }

    fn fetch(&self, keys: &[Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        if let [key] = keys {
            return seen(0, must(self.database.get_pinned_opt(key, &self.reads)).as_deref());
        }
        let values = self.database.batched_multi_get_cf_opt(self.family(), keys, false, &self.reads);
        for (index, value) in values.into_iter().enumerate() {
            seen(index, must(value).as_deref());
        }
    }
}
