//! Keys, values and the order in which they are used.
//!
//! Key `i` is a bijective scrambling of `i`, so keys are distinct and scattered without a table of
//! them. The upper half of every value repeats the upper half of its key, which makes a value that
//! was read for the wrong key, or torn, visible at the price of one XOR; the lower half is a count
//! that read-modify-writes raise, so that the sum of counts must equal the number of increments.
//!
//! Sequences are drawn before a clock starts: the generator must not be a part of what is measured.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

/// The exponent of the Zipf distribution, that of YCSB.
const ZIPF_EXPONENT: f64 = 0.99;
/// Draws in a sequence; a power of two. A run that needs more starts over.
pub(crate) const SEQUENCE_LENGTH: usize = 1 << 24;
/// The bits of a value which must be those of its key.
const TAG: u64 = !0xffff_ffff;
/// Scatters Zipf ranks over the indices: a prime above any number of keys that fits in memory.
const STRIDE: u128 = 1_000_000_000_039;

/// How the keys of operations are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Distribution {
    /// Every key as often as any other.
    Uniform,
    /// A few keys most of the time (exponent 0.99).
    Zipf,
}

impl Distribution {
    /// The name used in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// The key of an index: a bijection, so that distinct indices give distinct keys.
#[inline]
pub(crate) fn key(index: u64) -> u64 {
    let mut x = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The index of a key.
pub(crate) fn index(key: u64) -> u64 {
    let mut x = key ^ (key >> 31) ^ (key >> 62);
    x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
    x = x ^ (x >> 27) ^ (x >> 54);
    x = x.wrapping_mul(0x96de_1b17_3f11_9089);
    x = x ^ (x >> 30) ^ (x >> 60);
    x.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// True if bytes are a value of this length that tells its key.
pub(crate) fn is_own(key: u64, value: &[u8], bytes: u64) -> bool {
    value.len() as u64 == bytes && value[..8] == key.to_le_bytes()
}

/// The value of a key with the given count.
#[inline]
pub(crate) fn value(key: u64, count: u64) -> u64 {
    (key & TAG) | (count & !TAG)
}

/// Whether a value is one of this key's.
#[inline]
pub(crate) fn belongs(key: u64, value: u64) -> bool {
    (key ^ value) & TAG == 0
}

/// The count within a value.
#[inline]
pub(crate) fn count(value: u64) -> u64 {
    value & !TAG
}

/// The operations of one thread, drawn in advance.
pub(crate) struct Sequence {
    /// The keys in the order of use.
    pub(crate) keys: Vec<u64>,
    /// A throw of 0..100 for each: a read if below the share of reads.
    pub(crate) dice: Vec<u8>,
}

impl Sequence {
    /// Draws a sequence for one thread over keys of indices below `keys`.
    pub(crate) fn draw(distribution: Distribution, keys: u64, thread: u64) -> Self {
        let mut random = of_thread(thread);
        let dice = (0..SEQUENCE_LENGTH).map(|_| random.random_range(0..100)).collect();
        Self { keys: some(distribution, keys, SEQUENCE_LENGTH, &mut random), dice }
    }
}

/// So many keys of indices below `keys`, drawn for one thread.
pub(crate) fn draw(distribution: Distribution, keys: u64, thread: u64, count: usize) -> Vec<u64> {
    some(distribution, keys, count, &mut of_thread(thread))
}

fn of_thread(thread: u64) -> SmallRng {
    SmallRng::seed_from_u64(0x45_534b_4552 + thread)
}

fn some(distribution: Distribution, keys: u64, count: usize, random: &mut SmallRng) -> Vec<u64> {
    let popular = (distribution == Distribution::Zipf).then(|| Popular::new(keys));
    let mut index = || match &popular {
        Some(popular) => popular.draw(random),
        None => random.random_range(0..keys),
    };
    (0..count).map(|_| key(index())).collect()
}

/// One sequence for each of `threads`.
pub(crate) fn sequences(distribution: Distribution, keys: u64, threads: usize) -> Vec<Sequence> {
    std::thread::scope(|scope| {
        let draws: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(move || Sequence::draw(distribution, keys, thread))).collect();
        draws.into_iter().map(|draw| draw.join().expect("drawing keys does not fail")).collect()
    })
}

/// Draws indices by Zipf's law, the popular ranks scattered over the order of loading.
pub(crate) struct Popular {
    zipf: Zipf<f64>,
    keys: u64,
}

impl Popular {
    /// Of so many keys, one at least.
    pub(crate) fn new(keys: u64) -> Self {
        Self { zipf: Zipf::new(keys as f64, ZIPF_EXPONENT).expect("there is at least one key"), keys }
    }

    /// The next index.
    pub(crate) fn draw(&self, random: &mut SmallRng) -> u64 {
        let rank = (self.zipf.sample(random) as u64 - 1).min(self.keys - 1);
        (u128::from(rank) * STRIDE % u128::from(self.keys)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_their_keys() {
        assert!(belongs(key(7), value(key(7), 3)));
        assert!(!belongs(key(7), value(key(8), 3)));
        assert_eq!(count(value(key(7), 3)), 3);
    }

    #[test]
    fn keys_tell_their_indices() {
        let mut random = SmallRng::seed_from_u64(7);
        let indices = (0..1000).chain((0..1000).map(|_| random.random()));
        assert!(indices.into_iter().all(|at| index(key(at)) == at));
    }

    #[test]
    fn zipf_prefers_few_keys() {
        let sequence = Sequence::draw(Distribution::Zipf, 1_000_000, 0);
        let hottest = key(0);
        let hits = sequence.keys.iter().filter(|&&k| k == hottest).count();
        assert!(hits > SEQUENCE_LENGTH / 30 && hits < SEQUENCE_LENGTH / 8, "{hits}");
    }
}
