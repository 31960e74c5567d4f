//! Figures about a running store; taking them costs some tenths of a millisecond at most and stops nobody.

use crate::error::Error;

/// What a store is doing and what it holds.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// True without a device.
    pub in_memory: bool,
    /// True if pairs may have been dropped for want of room: the store is a cache, or its directory has been one's.
    pub lossy: bool,
    /// For how long the store has been open, in seconds: with it counts are rates.
    pub open_seconds: f64,
    /// The budget and who uses it.
    pub memory: MemoryStats,
    /// The log's boundaries.
    pub log: LogStats,
    /// What the log takes, and what of it lives.
    pub space: SpaceStats,
    /// The index's size and load.
    pub index: IndexStats,
    /// Operations since opening.
    pub operations: OperationStats,
    /// What ended by itself.
    pub expiry: ExpiryStats,
    /// What was loaded on a miss.
    pub loads: LoadStats,
    /// What a cache dropped and kept; none for a store that drops nothing.
    pub cache: Option<CacheStats>,
    /// The first device failure, after which nothing is written any more; or, where a write had no room, until it has.
    pub latched: Option<String>,
    /// What is worth a change of a setting, or of the program.
    pub warnings: Vec<Warning>,
}

/// Something that makes a store slower than it need be, and what would mend it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Warning {
    /// An index entry leads to this many keys in memory, on average: there are too few entries for the keys. A larger budget with
    /// [`Options::rebuild_index`](crate::Options::rebuild_index) mends it. Reported above 2.
    LongChains {
        /// Keys an entry, on average over a sample.
        average: f64,
    },
    /// Several keys share an entry, because the index has used its share of the budget: a cold read may take several device reads. Reported
    /// above one read a call, after 10,000 calls. A larger budget with [`Options::rebuild_index`](crate::Options::rebuild_index) mends it.
    SharedEntries {
        /// Device reads for each get, `rmw`, append and delete since the store was opened.
        reads_per_get: f64,
    },
    /// Most calls read the device: the keys in use do not fit the budget. Reported above half a read a call, after 10,000 calls.
    DiskBound {
        /// Device reads for each get, `rmw`, append and delete since the store was opened.
        reads_per_get: f64,
    },
    /// A thread has been inside one call for long, most likely in the closure of an `rmw`. Until it returns nothing is evicted or
    /// committed.
    LongPin {
        /// The thread's name, or its id.
        thread: String,
        /// For how long the store has been waiting for it.
        seconds: f64,
    },
    /// The last stretch of the log that compaction tried failed, most likely at a block that cannot be read: until one succeeds the log
    /// grows. `verify` tells what is damaged.
    CompactionFails {
        /// Why, with file and address.
        error: String,
    },
    /// The last image of the index could not be written, for want of room perhaps: nothing is lost, but the next opening reads more of the
    /// log. It is tried again more and more rarely.
    ImageFails {
        /// Why.
        error: String,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LongChains { average } => {
                write!(f, "long chains: {average:.1} keys an index entry; a larger budget, and the index rebuilt, mends it")
            }
            Self::SharedEntries { reads_per_get } => {
                write!(
                    f,
                    "shared entries: the index has all of its share ({reads_per_get:.2} device reads a call); a larger budget, and the index rebuilt, \
                     mends it"
                )
            }
            Self::DiskBound { reads_per_get } => {
                write!(f, "disk bound: {reads_per_get:.2} device reads a call; the keys in use do not fit the budget")
            }
            Self::LongPin { thread, seconds } => {
                write!(
                    f,
                    "long pin: thread `{thread}` has been in one operation for {seconds:.1} s; nothing is evicted or committed meanwhile"
                )
            }
            Self::CompactionFails { error } => write!(f, "compaction fails, and the log grows: {error}"),
            Self::ImageFails { error } => write!(f, "no image of the index, and the next opening reads more of the log: {error}"),
        }
    }
}

/// Chains above this are long.
const CHAIN_MAX: f64 = 2.0;
/// Above so many reads a call the device bounds a store.
const READS_PER_GET_MAX: f64 = 0.5;
/// So few calls say nothing.
const CALLS_MIN: u64 = 10_000;

impl Stats {
    /// Judges the figures; what they do not show is given.
    pub(crate) fn warn(&mut self, keys_per_entry: f64, long_pin: Option<(String, std::time::Duration)>, failures: [Option<Error>; 2]) {
        let [of_compaction, of_image] = failures;
        let OperationStats { gets, rmws, appends, deletes, device_reads, scan_reads, .. } = self.operations;
        let calls = gets + rmws + appends + deletes;
        let reads_per_get = (device_reads - scan_reads) as f64 / calls.max(1) as f64;
        let is_reading = calls >= CALLS_MIN;
        let found = [
            (keys_per_entry > CHAIN_MAX).then_some(Warning::LongChains { average: keys_per_entry }),
            (self.index.shared && is_reading && reads_per_get > 1.0).then_some(Warning::SharedEntries { reads_per_get }),
            (is_reading && reads_per_get > READS_PER_GET_MAX).then_some(Warning::DiskBound { reads_per_get }),
            long_pin.map(|(thread, waited)| Warning::LongPin { thread, seconds: waited.as_secs_f64() }),
            of_compaction.map(|error| Warning::CompactionFails { error: error.to_string() }),
            of_image.map(|error| Warning::ImageFails { error: error.to_string() }),
        ];
        self.warnings = found.into_iter().flatten().collect();
    }
}

/// Bytes of memory.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// What was allowed, in bytes.
    pub budget_bytes: u64,
    /// The sum of the following, in bytes.
    pub total_bytes: u64,
    /// The log's part in memory.
    pub log_bytes: u64,
    /// Buckets and overflow buckets.
    pub index_bytes: u64,
    /// Buffers and per-thread state, as budgeted.
    pub fixed_bytes: u64,
    /// What scans have borrowed of the log's part for their lists.
    pub lent_bytes: u64,
}

/// Addresses that divide the log, in bytes of payload, from the oldest on. For a while after a compaction `begin` may lie above some of the
/// others.
///
/// ```text
/// begin ....... head .... flushed_until .... safe_read_only .... read_only .... tail
/// |  on the device only | in memory, frozen: copied to be changed    | in memory, |
/// |                     | and written up to `flushed_until`          | mutable    |
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LogStats {
    /// Below it nothing is part of the store any more.
    pub begin: u64,
    /// From here on the log is in memory.
    pub head: u64,
    /// Everything below is on the device.
    pub flushed_until: u64,
    /// Everything below is seen as read-only by all threads, and does not change any more.
    pub safe_read_only: u64,
    /// Records from here on are changed in place.
    pub read_only: u64,
    /// Where the next record goes.
    pub tail: u64,
}

/// What the log takes on the device (or in memory, without one), and what compaction did about it.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpaceStats {
    /// The log's files, in bytes; 0 without a device.
    pub file_bytes: u64,
    /// The log from its beginning to its tail, in bytes.
    pub log_bytes: u64,
    /// Bytes of it that are superseded or deleted, as far as was noticed.
    pub dead_bytes: u64,
    /// The rest: what lives, at most.
    pub live_bytes: u64,
    /// The log's length in multiples of what lives: infinite if nothing is known to live (in JSON `null`), 1 if there is nothing at all.
    pub amplification: f64,
    /// Above this amplification the store compacts by itself, unless it is a cache, or has no driver.
    pub amplification_target: f64,
    /// Stretches that compaction went through since opening.
    pub stretches: u64,
    /// Bytes of log that they gave back.
    pub given_back_bytes: u64,
    /// Bytes of what lived there and was moved.
    pub moved_bytes: u64,
}

/// The index.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct IndexStats {
    /// 64-byte buckets of seven entries.
    pub buckets: u64,
    /// Entries in use: about as many as there are keys. They are fewer where keys share entries, and more while deletions wait for a sweep.
    pub entries: u64,
    /// Buckets behind full ones.
    pub overflow_buckets: u64,
    /// Keys share entries, for the budget had no room for more buckets: reads and compaction are slower, until a larger budget makes the
    /// index anew ([`crate::Options::rebuild_index`]).
    pub shared: bool,
    /// Of a sample of entries: how many have a chain of one record in memory, of two, and so on; the last of 256 are
    /// those that are as long or longer. Versions of one key count, too.
    pub chain_lengths: Vec<u64>,
}

/// Records that expire.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ExpiryStats {
    /// Bytes of records that have expired and were not dropped yet, as estimated from a sample.
    pub expired_bytes: u64,
    /// Expired records that compaction has dropped since the store was opened.
    pub dropped_records: u64,
}

/// Loads by `get_or_insert_with` and `get_or_load` since the store was opened.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LoadStats {
    /// Loads that returned, failed ones included.
    pub loads: u64,
    /// Loads that failed.
    pub failures: u64,
    /// All the time they took together.
    pub nanoseconds: u64,
}

/// A cache's account since it was opened.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Bytes of a disk that the directory may take, images included; 0 in memory.
    pub disk_bytes_max: u64,
    /// Living pairs that were dropped for want of room; on a disk but for those whose index entry led to another record, which is another
    /// key's, or a newer value.
    pub evictions: u64,
    /// Bytes of records that were dropped, living or expired.
    pub evicted_bytes: u64,
    /// Pairs that had expired when they were dropped.
    pub expired: u64,
    /// Second chances: records kept when their stretch went.
    pub kept: u64,
    /// Loaded values that were not put, and cold ones that were not copied, lest more be written than `Cache::disk_writes` allows.
    pub refused: u64,
    /// The threshold of eviction, in *lives*. Reading an old record gives it 16 (it has 31 at most), each round through the log takes one;
    /// a record with at least so many is kept. Of those between two whole numbers a part is.
    pub lives_to_stay: f64,
}

impl OperationStats {
    /// The share of gets that found something, from 0 to 1; 0 where nothing was asked.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.gets.saturating_sub(self.misses) as f64 / self.gets as f64 }
    }
}

/// Calls since the store was opened, blocking and asynchronous ones; each key of a batch counts. What a transaction reads from the store
/// counts as a get, for its `rmw`, `append` and `delete`, too, and what it changed as puts and deletions when it commits. What a scan reads
/// does not count, nor a `get_many` of a transaction that only reads. A write on a condition, and what a load puts, counts as an RMW,
/// or as a deletion if it is to take a value away, as an `expire_at` does whose time has passed; what else is done with expiry times does
/// not count.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[allow(missing_docs, reason = "the operations' names")]
#[non_exhaustive]
pub struct OperationStats {
    pub gets: u64,
    /// Gets that found nothing.
    pub misses: u64,
    pub puts: u64,
    pub rmws: u64,
    pub appends: u64,
    pub deletes: u64,
    /// Transactions that committed.
    pub transactions: u64,
    /// Attempts at a transaction that ended in a conflict: at their commit, or by [`Store::transaction`](crate::Store::transaction), which
    /// runs them again.
    pub conflicts: u64,
    /// Reads of cold records from the device.
    pub device_reads: u64,
    /// Those of them that were for scans, iterators, histories, and the `get_many` of a transaction that only reads. What a scan reads in
    /// sequence does not count.
    pub scan_reads: u64,
    /// Cold records copied into memory because gets asked for them repeatedly.
    pub promotions: u64,
}
