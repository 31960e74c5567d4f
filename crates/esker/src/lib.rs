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
//! **Unless [`Options::durability`] says otherwise, a crash or `kill -9` loses what came after the last [`Store::commit`] or
//! [`Store::close`]**; what had returned before one of these stays once that has returned `Ok`.
//!
//! | to | use |
//! |---|---|
//! | open or make a store | [`Options::open`], [`Options::in_memory`], [`Options::open_temporary`] |
//! | read and write one key | [`Store::get`], [`Store::put`], [`Store::rmw`], [`Store::append`], [`Store::delete`] |
//! | many keys, whose cache misses and device reads overlap | [`Store::get_many`], [`Store::put_many`], [`Store::rmw_many`], [`Store::append_many`], [`Store::delete_many`] |
//! | the same without blocking a thread, under any executor | [`Store::get_async`], [`Store::get_many_async`] and their kin, [`Store::commit_async`], [`Store::transaction_async`] |
//! | make writes durable | [`Store::commit`], [`Durability`] |
//! | change several keys at one moment | [`Store::transaction`], [`Store::begin`] (for futures that must be `Send`) |
//! | change one key on a condition | [`Store::compare_and_swap`], [`Store::put_if_absent`], [`Store::put_if_version`] |
//! | read many keys as of one moment | [`Store::read_transaction`], [`Store::scan`] |
//! | walk through all keys in as many calls as one likes | [`Store::scan_page`], [`Scan::iter`] |
//! | compute where the data lies | [`Store::aggregate`], [`Scan::aggregate`], [`mod@aggregate`] |
//! | let keys expire | [`Store::put_with_ttl`], [`Store::expire_at`], [`Store::get_and_renew`] |
//! | load what is missing, once | [`Store::get_or_insert_with`], [`Store::get_or_load`], [`Loading`] |
//! | bound a store that may forget | [`Options::cache`], [`Cache`] |
//! | read older versions | [`Options::history`], [`Store::history`] |
//! | back up, check, save what is left | [`Store::snapshot_to`], [`backup`], [`verify`], [`salvage`] |
//! | look into it | [`Store::stats`] |
//!
//! Keys and values are `str`, `[u8]`, integers, floats, arrays, and `Copy` structs with `zerocopy`'s derives ([`Key`], [`Value`]). Keys of one
//! width up to 256 bytes with values of one width up to 8 take a record of 16 bytes and the key (*word* layout); all others 24 bytes, the
//! key and the value (*bytes* layout): each rounded up to eight bytes, and eight more where there is an expiry time.
//!
//! Linux on x86-64. Features: `serde` (figures can be serialized), `rayon` (parallel iterators over scans).

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// What tests inside and outside share names the crate so.
#[cfg(test)]
extern crate self as esker;

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("only little-endian machines with 64-bit addresses are supported: the format holds words in the machine's order");

pub mod aggregate;
mod ahead;
mod backup;
mod bell;
mod cache;
mod commit;
mod compaction;
mod company;
mod copies;
mod descent;
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
#[cfg(all(test, not(any(loom, shuttle))))]
mod joining_tests;
mod latches;
mod lines;
mod list;
mod log;
#[cfg(all(loom, test))]
mod loom_models;
mod manifest;
mod memory;
#[cfg(all(test, not(any(loom, shuttle))))]
mod memory_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "../tests/common/minded.rs"]
mod minded;
mod options;
mod promotion;
mod record;
mod recovery;
#[doc(hidden)]
pub mod rehearse;
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

/// True for the bug that `ESKER_PLANTED_BUG` names, in a build that has some planted: a lane that does not find it proves nothing.
fn is_planted(bug: &str) -> bool {
    cfg!(esker_planted_bugs) && std::env::var_os("ESKER_PLANTED_BUG").is_some_and(|named| named == bug)
}

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
