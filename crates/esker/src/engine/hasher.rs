//! Keys to hashes.

/// Keyed by the store's own random seed, so that nobody can choose colliding keys.
pub(crate) struct Hasher {
    seed: [u64; 2],
    secret: [u8; 192],
}

impl Hasher {
    pub(crate) fn new(seed: [u64; 2]) -> Self {
        let mut secret = [0; 192];
        for (i, part) in secret.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&fold(seed[0] ^ i as u64, seed[1] | 1).to_le_bytes());
        }
        Self { seed: [seed[0], fold(seed[1] ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93) | 1], secret }
    }

    /// `width` is a constant where the key type has one, so that eight bytes cost one multiplication.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8], width: Option<usize>) -> u64 {
        if width == Some(8) {
            let word = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
            return fold(word ^ self.seed[0], self.seed[1]);
        }
        xxhash_rust::xxh3::xxh3_64_with_secret(key, &self.secret)
    }

    /// Tells values apart: no two met so far have the same.
    pub(crate) fn fingerprint(&self, value: &[u8]) -> u128 {
        xxhash_rust::xxh3::xxh3_128_with_secret(value, &self.secret)
    }
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    wide as u64 ^ (wide >> 64) as u64
}
