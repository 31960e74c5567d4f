//! Numbers that look drawn, the same everywhere.

/// A generator of test data.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    pub(crate) fn of_thread(number: u64) -> Self {
        Self((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
