//! Esker: a key-value store for data larger than memory, at the speed of memory.
//!
//! ```
//! use esker::{Options, Store};
//!
//! let counts: Store<u64, u64> = Options::new().memory("64MiB").in_memory()?;
//! counts.put(&7, &1)?;
//! let seen = counts.rmw(&7, |old| old.unwrap_or(0) + 1)?;
//! assert_eq!((seen, counts.get(&7)?), (2, Some(2)));
//!
//! let logs: Store<[u8], [u8]> = Options::new().memory("64MiB").open_temporary()?; // the cold part goes to disk
//! logs.append(b"user:7", b"login;")?;
//! assert_eq!(logs.append(b"user:7", b"logout;")?, 13);
//! assert!(logs.delete(b"user:7")?);
//! # Ok::<(), esker::Error>(())
//! ```
//!
//! **Durability.** Unless [`Options::durability`] says otherwise, a crash or `kill -9` loses what came after the last [`Store::commit`] or
//! [`Store::close`]; what these returned for stays. Linux on x86-64; features `serde` (figures) and `rayon` (parallel iterators over scans).
//!
//! Layers, bottom to top; a layer knows only those below it: `memory`, `device`, `epoch` - `record`, `log` - `index` -
//! `engine` (boundaries, close) with `commit`, `recovery`, `compaction` - `store` (one operation on one key, and batches). `ARCHITECTURE.md` has the picture.

pub mod aggregate;
mod ahead;
mod backup;
mod bell;
mod cache;
mod commit;
mod compaction;
mod company;
mod device;
mod directory;
mod engine;
mod epoch;
mod error;
mod expiry;
mod gate;
mod group;
mod image;
mod index;
mod joining;
#[cfg(all(test, not(loom), not(shuttle)))]
mod joining_tests;
mod latches;
mod lines;
mod log;
#[cfg(all(loom, test))]
mod loom_models;
mod manifest;
mod memory;
#[cfg(all(test, not(loom), not(shuttle)))]
mod memory_tests;
mod options;
mod promotion;
mod record;
mod recovery;
mod resting;
mod salvage;
mod scan;
mod scars;
#[cfg(all(test, shuttle))]
mod schedules;
mod snapshot;
mod stats;
mod store;
mod sync;
mod traverse;
mod types;
mod verify;
mod watch;
mod windows;
mod words;

/// Checksums hide what they guard from a fuzzer: built for one, the engine takes them as right, and a store's identity is fixed.
const FUZZED: bool = cfg!(fuzzing);

pub use aggregate::Aggregate;
pub use backup::{Backup, backup, backup_from};
pub use cache::{Cache, Eviction};
pub use commit::Durability;
pub use device::{Device, DeviceRead, MemoryDevice, MemoryStorage, ReadSource, SECTOR_BYTES, Storage};
pub use error::{Error, Result};
pub use expiry::{Clock, ManualClock, SystemClock};
pub use options::{ByteCount, Options};
pub use salvage::{Salvage, salvage, salvage_in};
#[cfg(feature = "rayon")]
pub use scan::ParIter;
pub use scan::{Cursor, Iter, Page, Plan, Scan, Strategy};
pub use stats::{CacheStats, ExpiryStats, IndexStats, LoadStats, LogStats, MemoryStats, OperationStats, SpaceStats, Stats, Warning};
pub use store::{Loading, ReadTransaction, Store, Transaction, Ttl, Version};
pub use types::{Key, Value};
pub use verify::{Verification, verify, verify_in};
