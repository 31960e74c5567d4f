//! From a hash to its record, where both keys and values are words and nothing is in the way: nearly every operation on such pairs.
//!
//! The same as [`Index::first_match`], and then what [`Store::record_of`](super::Store) asks, in thirty instructions that a compiler makes forty of. That counts, for as
//! many calls overlap as fit the processor: each instruction takes a place of its window, and each that writes a general register, or has to load one to
//! compare with it, one of those, too (docs/performance.md). Here bounds are compared with where they are, and one register leads to index and log.
//!
//! ```text
//! shape ── doubling? ──> none        what is `none` here may be there: the caller goes the longer way
//!   └ hash & shape ─> bucket ── no full tag? ──> none
//!                       └ entry ─> address ── below `near`? ──> none
//!                                     └ record ── another's key, or more to say than its value? ──> none
//! ```

use crate::engine::Engine;
use crate::index::Index;
use crate::log::Log;
use crate::record::Record;
use std::arch::asm;
use std::arch::x86_64::{_mm_set_epi64x, _mm_set1_epi32};
use std::mem::offset_of;

const INDEX: usize = offset_of!(Engine, index);
const LOG: usize = offset_of!(Engine, log);

/// The plain record of `key` that the hash's entry leads to, if that is in the hash's first bucket and in near memory; and its address, as
/// [`Index::first_match`] has it. Under a pin.
#[inline(always)]
pub(super) fn record_of(engine: &Engine, key: u64, hash: u64) -> Option<(u64, Record)> {
    let (at, record): (u64, *mut u8);
    // SAFETY: what is read lies in `engine`; in the bucket that a shape which is no doubling makes of a hash (`Index::bucket_at`); and in the record to which
    // an entry of that leads, at or above `near`, under the caller's pin (`Store::record_of`). Others write there meanwhile: processors of this kind make
    // loads of aligned words, and each half of an aligned vector, atomic and Acquire, and for the compiler an asm block is no racing access.
    unsafe {
        asm!(
            "xor {record:e}, {record:e}",
            "mov {place}, [{engine} + {shape}]",
            "test {place}, {place}",
            "js 2f",
            "and {place}, {hash}",
            // The tag that is looked for, in each lane.
            "movq {wanted}, {hash}",
            "psrlq {wanted}, [{engine} + {tag_shift}]",
            "por {wanted}, {stop}",
            "pshufd {wanted}, {wanted}, 0",
            // Those of the bucket, compared with it.
            "add {place}, [{engine} + {table}]",
            "movaps {a}, [{place}]",
            "movaps {b}, [{place} + 32]",
            "shufps {a}, [{place} + 16], 0x88",
            "shufps {b}, [{place} + 48], 0x88",
            "pcmpeqw {a}, {wanted}",
            "pcmpeqw {b}, {wanted}",
            "packsswb {a}, {b}",
            "pand {a}, {tags}",
            "pmovmskb {at:e}, {a}",
            "test {at:e}, {at:e}",
            "je 2f",
            // Of those that are equal the first one: bit 2 i is entry i, 8 i bytes from the beginning.
            "rep bsf {at:e}, {at:e}",
            "mov {at}, [{place} + {at} * 4]",
            "shr {at}, 16",
            "cmp {at}, [{engine} + {near}]",
            "jb 2f",
            "mov {place}, [{engine} + {word_mask}]",
            "and {place}, {at}",
            "add {place}, [{engine} + {base}]",
            "cmp [{place} + 8], {key}",
            "jne 2f",
            // The header's sign: `SPECIAL`.
            "cmp dword ptr [{place} + 4], 0",
            "js 2f",
            "mov {record}, {place}",
            "2:",
            engine = in(reg) engine,
            hash = in(reg) hash,
            key = in(reg) key,
            stop = in(xmm_reg) _mm_set1_epi32(0x8000),
            tags = in(xmm_reg) _mm_set_epi64x(0x00_00ff_00ff_00ff, 0x00ff_00ff_00ff_00ff),
            record = out(reg) record,
            at = out(reg) at,
            place = out(reg) _,
            wanted = out(xmm_reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            shape = const INDEX + Index::SHAPE_AT,
            tag_shift = const INDEX + Index::TAG_SHIFT_AT,
            table = const INDEX + Index::TABLE_AT,
            near = const LOG + Log::NEAR_AT,
            word_mask = const LOG + Log::WORD_MASK_AT,
            base = const LOG + Log::BASE_AT,
            options(nostack, readonly)
        );
    }
    // SAFETY: a record's address, as above.
    (!record.is_null()).then(|| (at, unsafe { Record::new(record) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, Options, Store};
    use std::sync::Arc;
    use std::time::Duration;

    /// How many keys it finds; what it says must be what the longer way says.
    fn agrees(store: &Store<u64, u64>, keys: u64) -> u64 {
        let engine = store.engine_for_test();
        let mut found = 0;
        for key in 0..keys {
            let hash = store.hash(&key.to_ne_bytes());
            let _pin = engine.epochs.pin().unwrap();
            let longer = store.find_in_front(&key.to_ne_bytes(), hash);
            let here = record_of(engine, key, hash);
            let place = |found: &Option<(u64, Record)>| found.as_ref().map(|(at, record)| (*at, record.header().as_ptr()));
            // While buckets double it leaves all to the longer way.
            assert!(here.is_none() && engine.index.is_doubling_for_test() || place(&here) == place(&longer), "{key}");
            found += u64::from(here.is_some());
        }
        found
    }

    #[test]
    fn it_finds_what_the_longer_way_finds() {
        let store: Store<u64, u64> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
        assert_eq!(agrees(&store, 100), 0);
        let (mut keys, mut steady) = (0, 0);
        for step in 1..40u64 {
            (keys..keys + step * 97).for_each(|key| store.put(&key, &key).unwrap());
            keys += step * 97;
            let found = agrees(&store, keys + 100);
            assert!(found <= keys);
            steady += u64::from(!store.engine_for_test().index.is_doubling_for_test() && found > keys / 2);
        }
        assert!(steady > 0, "it was never asked between two doublings");
        // What is gone, and what ends, has more to say.
        let before = agrees(&store, keys);
        (0..keys).step_by(3).for_each(|key| _ = store.delete(&key).unwrap());
        (1..keys).step_by(3).for_each(|key| store.put_with_ttl(&key, &1, Duration::from_secs(3600)).unwrap());
        assert!(agrees(&store, keys) <= before);
    }

    #[test]
    fn it_finds_nothing_on_the_device() {
        let options = Options::new().memory("16MiB").background(false).promotion(false);
        let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
        (0..1_200_000u64).for_each(|key| store.put(&key, &key).unwrap());
        let found = agrees(&store, 1_200_000);
        assert!(found < 600_000, "{found}");
        assert!((0..1_200_000u64).step_by(101).all(|key| store.get(&key).unwrap() == Some(key)));
    }
}
