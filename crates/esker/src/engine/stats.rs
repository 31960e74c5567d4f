//! What `stats` shows.

use super::Engine;
use super::room::FIXED_BYTES;
use crate::cache::Caching;
use crate::epoch::Counter;
use crate::stats::{ExpiryStats, IndexStats, LoadStats, LogStats, MemoryStats, OperationStats, Stats};
use crate::sync::atomic::Ordering::*;

/// Buckets that a sample looks at, or up to twice as many.
const SAMPLED_BUCKETS: u64 = 256;
/// Records of a chain that a sample counts.
const CHAIN_RECORDS_MAX: usize = 256;
/// Records that are looked at in all, or a few more.
const SAMPLED_RECORDS_MAX: usize = 1 << 14;

impl Engine {
    pub(crate) fn stats(&self) -> Stats {
        let bounds = &self.log.bounds;
        let count = |what: Counter| self.epochs.counted(what);
        let (log_bytes, index_bytes, lent_bytes) = (self.log_bytes(), self.index.bytes(), self.lent_bytes());
        let waiting: u64 = self.epochs.slots().map(|slot| slot.entries.load(Relaxed)).sum();
        let (chain_lengths, keys_per_entry) = self.sample_chains();
        let scan_reads = count(Counter::ScanRead);
        let mut stats = Stats {
            in_memory: self.is_in_memory(),
            lossy: self.is_lossy,
            open_seconds: self.opened.elapsed().as_secs_f64(),
            memory: MemoryStats {
                budget_bytes: self.budget.load(Relaxed),
                total_bytes: log_bytes + index_bytes + FIXED_BYTES + lent_bytes,
                log_bytes,
                index_bytes,
                fixed_bytes: FIXED_BYTES,
                lent_bytes,
            },
            log: LogStats {
                begin: bounds.begin.load(Relaxed),
                head: bounds.head.load(Relaxed),
                flushed_until: bounds.flushed_until.load(Relaxed),
                safe_read_only: bounds.safe_read_only.load(Relaxed),
                read_only: bounds.read_only().min(self.log.tail()),
                tail: self.log.tail(),
            },
            space: self.space_stats(),
            index: IndexStats {
                buckets: self.index.buckets(),
                entries: self.index.entries_with(waiting),
                overflow_buckets: self.index.overflow_buckets(),
                shared: self.index.is_shared(),
                chain_lengths,
            },
            operations: OperationStats {
                gets: count(Counter::Get),
                misses: count(Counter::Miss),
                puts: count(Counter::Put),
                rmws: count(Counter::Rmw),
                appends: count(Counter::Append),
                deletes: count(Counter::Delete),
                transactions: count(Counter::Transaction),
                conflicts: count(Counter::Conflict),
                device_reads: count(Counter::DeviceRead) + scan_reads,
                scan_reads,
                promotions: count(Counter::Promotion),
            },
            expiry: ExpiryStats { expired_bytes: self.expiry.expired_bytes(), dropped_records: self.expiry.dropped.load(Relaxed) },
            loads: LoadStats {
                loads: self.loads.count.load(Relaxed),
                failures: self.loads.failures.load(Relaxed),
                nanoseconds: self.loads.nanoseconds.load(Relaxed),
            },
            cache: self.caching.as_ref().map(Caching::stats),
            latched: self.known_failure().map(|failure| failure.to_string()),
            warnings: Vec::new(),
        };
        let failures = [self.compaction_failure(), self.image_failure()];
        stats.warn(keys_per_entry, self.epochs.watch.long_pin(), failures);
        stats
    }

    /// How many of some entries have a chain of one, two, ... records in memory; and the keys there for each entry.
    fn sample_chains(&self) -> (Vec<u64>, f64) {
        let (mut lengths, mut keys, mut records) = (Vec::new(), 0, 0);
        let buckets = self.index.buckets();
        for at in (0..buckets).step_by((buckets / SAMPLED_BUCKETS).max(1) as usize) {
            let Ok(_pin) = self.epochs.pin() else { break };
            for address in self.index.addresses(at) {
                let (length, on_chain) = self.chain_in_memory(address);
                keys += on_chain;
                records += length;
                if length > 0 {
                    lengths.resize(lengths.len().max(length), 0);
                    lengths[length - 1] += 1;
                }
            }
            // Where versions are kept chains are long: some are as good a sample.
            if records > SAMPLED_RECORDS_MAX {
                break;
            }
        }
        let sampled = lengths.iter().sum::<u64>().max(1);
        (lengths, keys as f64 / sampled as f64)
    }

    /// How many records a chain has in memory, up to so many, and of how many keys: a lookup ends at the first of its own. Under a pin.
    fn chain_in_memory(&self, first: u64) -> (usize, usize) {
        let (mut length, mut keys) = (0, Vec::new());
        for link in self.log.chain(first, 0).take(CHAIN_RECORDS_MAX) {
            let hash = self.hash_of(link.record.key(self.layout));
            if !keys.contains(&hash) {
                keys.push(hash);
            }
            length += 1;
        }
        (length, keys.len())
    }
}
