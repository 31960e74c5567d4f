//! Figures about a running store; taking them costs microseconds and stops nobody.

use crate::error::Error;

/// What a store is doing and what it holds.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// True without a device.
    pub in_memory: bool,
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
    /// What a cache dropped and kept; none for a store that loses nothing.
    pub cache: Option<CacheStats>,
    /// The first device failure, after which nothing is written any more.
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
    /// Lookups in memory pass this many records on average: too few index entries for the keys. A larger budget mends it.
    LongChains {
        /// Records on a chain, on average over a sample.
        average: f64,
    },
    /// Keys share entries, because the index has all of its share of the budget: cold reads may take several device reads.
    SharedEntries {
        /// Device reads for each get so far.
        reads_per_get: f64,
    },
    /// Most gets go to the device: the keys in use do not fit the budget.
    DiskBound {
        /// Device reads for each get so far.
        reads_per_get: f64,
    },
    /// A thread has been inside one operation for long, in the closure of an `rmw`: meanwhile nothing is evicted or committed.
    LongPin {
        /// The thread's name, or its id.
        thread: String,
        /// How long the store has been waiting for it.
        seconds: f64,
    },
    /// The last stretch of the log that compaction tried failed, most likely at a block that cannot be read: until one succeeds the log grows.
    /// `verify` tells what is damaged.
    CompactionFails {
        /// Why, with file and address.
        error: String,
    },
    /// The last image of the index could not be written, for want of room perhaps: nothing is lost, but the next opening reads more of the log. It is tried again
    /// more and more rarely.
    ImageFails {
        /// Why.
        error: String,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LongChains { average } => {
                write!(f, "long chains: {average:.1} records on average; a larger budget gives the index more entries")
            }
            Self::SharedEntries { reads_per_get } => {
                write!(
                    f,
                    "shared entries: the index has all of its share ({reads_per_get:.2} device reads a get); a larger budget mends it"
                )
            }
            Self::DiskBound { reads_per_get } => {
                write!(f, "disk bound: {reads_per_get:.2} device reads a get; the keys in use do not fit the budget")
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
/// Above this share of gets that read the device a store is bound by it.
const READS_PER_GET_MAX: f64 = 0.5;
/// So few gets say nothing.
const GETS_MIN: u64 = 10_000;

impl Stats {
    /// Judges the figures; what they do not show is given.
    pub(crate) fn warn(&mut self, is_shared: bool, long_pin: Option<(String, std::time::Duration)>, failures: [Option<Error>; 2]) {
        let [of_compaction, of_image] = failures;
        let (sampled, records) =
            (1..).zip(&self.index.chain_lengths).fold((0, 0), |(n, sum), (length, count)| (n + count, sum + length * count));
        let average = records as f64 / sampled.max(1) as f64;
        let reads_per_get = self.operations.device_reads as f64 / self.operations.gets.max(1) as f64;
        let is_reading = self.operations.gets >= GETS_MIN;
        let found = [
            (average > CHAIN_MAX).then_some(Warning::LongChains { average }),
            (is_shared && is_reading && reads_per_get > 1.0).then_some(Warning::SharedEntries { reads_per_get }),
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
}

/// Addresses in the log, in bytes of payload.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[allow(missing_docs, reason = "the log's own terms, explained in ARCHITECTURE.md")]
pub struct LogStats {
    pub begin: u64,
    pub head: u64,
    pub flushed_until: u64,
    pub safe_read_only: u64,
    pub read_only: u64,
    pub tail: u64,
}

/// What the log takes on the device (or in memory, without one), and what compaction did about it.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    /// Above this amplification the store compacts by itself.
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
pub struct IndexStats {
    /// 64-byte buckets of seven entries.
    pub buckets: u64,
    /// Entries in use.
    pub entries: u64,
    /// Buckets behind full ones.
    pub overflow_buckets: u64,
    /// Of a sample of entries: how many have a chain of one record in memory, of two, and so on.
    pub chain_lengths: Vec<u64>,
}

/// Records with an end.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ExpiryStats {
    /// Bytes of records that have expired and were not dropped yet, as estimated from a sample.
    pub expired_bytes: u64,
    /// Expired records that compaction has dropped since the store was opened.
    pub dropped_records: u64,
}

/// Loads by `get_or_insert_with` and `get_or_load` since the store was opened.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LoadStats {
    /// Loads that ended, failed ones included.
    pub loads: u64,
    /// Loads that failed.
    pub failures: u64,
    /// All the time they took together.
    pub nanoseconds: u64,
}

/// A cache's account since it was opened.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CacheStats {
    /// Bytes of a disk that the directory may take, images included; 0 in memory.
    pub disk_bytes_max: u64,
    /// Living pairs that were dropped for want of room.
    pub evictions: u64,
    /// Bytes of records that were dropped, living or expired.
    pub evicted_bytes: u64,
    /// Pairs that had expired when they were dropped.
    pub expired: u64,
    /// Second chances: records kept when their stretch went.
    pub kept: u64,
    /// Loaded values that were not put, and cold ones that were not copied, lest more be written than `Cache::disk_writes` allows.
    pub refused: u64,
    /// How many lives (a read while it is old gives sixteen, a round through the log takes one) keep a record in memory; between
    /// two numbers, some are kept.
    pub lives_to_stay: f64,
}

impl OperationStats {
    /// The share of gets that found something, from 0 to 1; 0 where nothing was asked.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.gets.saturating_sub(self.misses) as f64 / self.gets as f64 }
    }
}

/// Calls since the store was opened; each key of a batch counts.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[allow(missing_docs, reason = "the operations' names")]
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
    /// Attempts at a transaction that ended in a conflict.
    pub conflicts: u64,
    /// Reads of cold records from the device.
    pub device_reads: u64,
    /// Cold records copied into memory because gets asked for them repeatedly.
    pub promotions: u64,
}
