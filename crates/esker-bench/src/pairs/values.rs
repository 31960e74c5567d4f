//! Pairs that tell whether they are right.
//!
//! ```text
//! key     index, big-endian | scrambled index            so that ascending indices are ascending keys
//! value   mark ............ | mark ............ | ...    a mark opens each 64 bytes: the scrambled index plus their number
//!         ................. | ......... | check          the last eight bytes: the mark of the key, or a checksum of all before
//! ```
//! A fetch looks at every mark and at the check, so a value of another key, of another length, or torn, has nowhere to hide at a
//! price of some nanoseconds. With integrity the check is a checksum that is computed at each insert and compared at each fetch,
//! whatever the engine does itself: then a flipped bit anywhere in the value shows.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::keys;

/// 128 bits.
pub(crate) type Key = [u8; 16];

/// Bytes from mark to mark.
const LINE: usize = 64;
/// A value has a multiple of so many bytes: room for a mark and the check.
pub(crate) const UNIT: usize = 16;

/// The key of an index.
fn key(index: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..].copy_from_slice(&keys::key(index).to_be_bytes());
    key
}

fn mark(key: &Key) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *key;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The order in which keys are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Order {
    /// Ascending.
    InOrder,
    /// Shuffled.
    Random,
}

impl Order {
    /// The name used in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in order",
            Self::Random => "random",
        }
    }

    /// So many keys; another seed shuffles otherwise.
    pub(crate) fn keys(self, count: u64, seed: u64) -> Vec<Key> {
        let mut keys: Vec<_> = (0..count).map(key).collect();
        if self == Self::Random {
            keys.shuffle(&mut SmallRng::seed_from_u64(seed));
        }
        keys
    }
}

/// The values of keys, made one at a time.
#[derive(Clone)]
pub(crate) struct Values {
    value: Vec<u8>,
    checksummed: bool,
}

impl Values {
    /// Values of so many bytes.
    pub(crate) fn new(bytes: usize, checksummed: bool) -> Self {
        Self { value: (0..bytes).map(|at| (at * 131 + 7) as u8).collect(), checksummed }
    }

    /// The value of a key.
    pub(crate) fn of(&mut self, key: &Key) -> &[u8] {
        let mark = mark(key);
        for (number, line) in self.value.chunks_mut(LINE).enumerate() {
            line[..8].copy_from_slice(&(mark + number as u64).to_ne_bytes());
        }
        let body_bytes = self.value.len() - 8;
        let (body, check) = self.value.split_at_mut(body_bytes);
        check.copy_from_slice(&check_of(self.checksummed, body, mark).to_ne_bytes());
        &self.value
    }

    /// Whether this is the value of the key, as far as a fetch looks.
    pub(crate) fn belongs(&self, key: &Key, value: &[u8]) -> bool {
        if value.len() != self.value.len() {
            return false;
        }
        let mark = mark(key);
        let (body, check) = value.split_at(value.len() - 8);
        let marked = |(number, line): (usize, &[u8])| line[..8] == (mark + number as u64).to_ne_bytes();
        value.chunks(LINE).enumerate().all(marked) && *check == check_of(self.checksummed, body, mark).to_ne_bytes()
    }

    /// Whether this is the value of the key, byte for byte.
    pub(crate) fn is(&mut self, key: &Key, value: &[u8]) -> bool {
        self.of(key) == value
    }
}

fn check_of(checksummed: bool, body: &[u8], mark: u64) -> u64 {
    if checksummed { xxh3_64_with_seed(body, mark) } else { mark }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 5] = [16, 64, 80, 1024, 1040];

    #[test]
    fn a_checksum_shows_every_flipped_bit() {
        for bytes in SIZES {
            let mut values = Values::new(bytes, true);
            let mut value = values.of(&key(7)).to_vec();
            assert!(values.belongs(&key(7), &value) && values.is(&key(7), &value));
            for bit in 0..bytes * 8 {
                value[bit / 8] ^= 1 << (bit % 8);
                assert!(!values.belongs(&key(7), &value), "{bytes} bytes, bit {bit}");
                value[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn values_of_other_keys_and_lengths_and_mixtures_do_not_belong() {
        for bytes in SIZES {
            let mut values = Values::new(bytes, false);
            let (one, other) = (values.of(&key(7)).to_vec(), values.of(&key(8)).to_vec());
            assert!(values.belongs(&key(7), &one) && !values.belongs(&key(7), &other) && !values.belongs(&key(7), &one[1..]));
            let torn = [&one[..bytes - 8], &other[bytes - 8..]].concat();
            assert!(!values.belongs(&key(7), &torn), "{bytes} bytes");
        }
    }

    #[test]
    fn keys_in_order_ascend_and_random_ones_are_the_same() {
        let in_order = Order::InOrder.keys(1000, 1);
        let mut random = Order::Random.keys(1000, 1);
        assert!(in_order.is_sorted() && in_order != random && random != Order::Random.keys(1000, 2));
        random.sort_unstable();
        assert_eq!(in_order, random);
    }
}
