//! Figures about a running store; taking them costs microseconds and stops nobody.

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
    /// The index's size and load.
    pub index: IndexStats,
    /// Operations since opening.
    pub operations: OperationStats,
    /// The first device failure, after which nothing is written any more.
    pub latched: Option<String>,
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

/// Calls since the store was opened; each key of a batch counts.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[allow(missing_docs, reason = "the operations' names")]
pub struct OperationStats {
    pub gets: u64,
    pub puts: u64,
    pub rmws: u64,
    pub appends: u64,
    pub deletes: u64,
    /// Reads of cold records from the device.
    pub device_reads: u64,
}
