//! Keys and values that were copied under a pin, to be shown outside it.

/// From so many bytes on they are shown before more is copied.
pub(super) const ROWS_BYTES: usize = 1 << 20;

/// Pairs of bytes, one behind the other; nothing is allocated once it has been full.
#[derive(Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    /// Of fixed width: how many bytes are filled, and how many rows that is.
    filled: usize,
    count: usize,
    /// The length of each key and each value.
    lengths: Vec<(u32, u32)>,
    /// A value on its way.
    pub(super) value: Vec<u8>,
}

impl Rows {
    /// A pair of widths that all of this use have: copied by constant moves.
    #[inline(always)]
    pub(super) fn push_fixed(&mut self, key: &[u8], value: &[u8]) {
        let end = self.filled + key.len() + value.len();
        if self.bytes.len() < end {
            self.bytes.resize(2 * end, 0);
        }
        let (a, b) = self.bytes[self.filled..end].split_at_mut(key.len());
        a.copy_from_slice(key);
        b.copy_from_slice(value);
        (self.filled, self.count) = (end, self.count + 1);
    }

    #[inline(always)]
    pub(super) fn drain_fixed(&mut self, key: usize, value: usize, visit: &mut impl FnMut(&[u8], &[u8])) {
        let mut from = 0;
        for _ in 0..self.count {
            let row = &self.bytes[from..from + key + value];
            visit(&row[..key], &row[key..]);
            from += key + value;
        }
        (self.filled, self.count) = (0, 0);
    }

    #[inline(always)]
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lengths.push((key.len() as u32, value.len() as u32));
    }

    /// A key with the value on its way.
    pub(super) fn push_value(&mut self, key: &[u8]) {
        let value = std::mem::take(&mut self.value);
        self.push(key, &value);
        self.value = value;
    }

    pub(super) fn bytes(&self) -> usize {
        if self.count > 0 {
            self.filled
        } else if self.lengths.is_empty() {
            0
        } else {
            self.bytes.len()
        }
    }

    #[inline(always)]
    pub(super) fn drain(&mut self, mut visit: impl FnMut(&[u8], &[u8])) {
        let mut rest = self.bytes.as_slice();
        for (key, value) in self.lengths.drain(..) {
            let row;
            (row, rest) = rest.split_at((key + value) as usize);
            let (key, value) = row.split_at(key as usize);
            visit(key, value);
        }
        self.bytes.clear();
    }
}
