//! A list in a mapping of its own.
//!
//! What a heap has handed out and taken back it keeps, and each thread's part of it keeps its own: lists that grow to some hundred
//! kilobytes for a moment, on one thread after the other, left a store of 64 MiB with five more of free heap. A mapping goes back to the
//! system whole.

use crate::device::{AlignedBuffer, SECTOR_BYTES};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The least that is mapped: of no cost until it is used.
const SECTORS_MIN: usize = 32;

/// Plain items, one behind the other.
pub(crate) struct List<T> {
    buffer: AlignedBuffer,
    len: usize,
    of: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> List<T> {
    pub(crate) fn new() -> Self {
        Self { buffer: AlignedBuffer::new(0), len: 0, of: PhantomData }
    }

    /// Appends these.
    pub(crate) fn extend(&mut self, items: &[T]) {
        let (from, bytes) = (self.len * size_of::<T>(), items.as_bytes());
        let to = from + bytes.len();
        if to > self.buffer.bytes().len() {
            self.grow(to);
        }
        self.buffer.bytes_mut()[from..to].copy_from_slice(bytes);
        self.len += items.len();
    }

    fn grow(&mut self, bytes: usize) {
        let bytes = bytes.max(2 * self.buffer.bytes().len());
        let mut larger = AlignedBuffer::new(bytes.div_ceil(SECTOR_BYTES).max(SECTORS_MIN));
        let held = self.as_bytes();
        larger.bytes_mut()[..held.len()].copy_from_slice(held);
        self.buffer = larger;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = &self.buffer.bytes()[..self.len * size_of::<T>()];
        let Ok(items) = <[T]>::ref_from_bytes(bytes) else { unreachable!("sectors are aligned, and whole items were written") };
        items
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = &mut self.buffer.bytes_mut()[..self.len * size_of::<T>()];
        let Ok(items) = <[T]>::mut_from_bytes(bytes) else { unreachable!("sectors are aligned, and whole items were written") };
        items
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_what_a_vector_is() {
        let (mut list, mut vector) = (List::<[u32; 3]>::new(), Vec::new());
        assert!(list.is_empty());
        for round in 0..2 {
            for n in 0..40_000_u32 {
                let items = [[n, n + 1, round], [n; 3]];
                list.extend(&items[..n as usize % 3]);
                vector.extend_from_slice(&items[..n as usize % 3]);
            }
            assert!(*list == *vector, "round {round}");
            list.sort_unstable();
            vector.sort_unstable();
            assert!(*list == *vector && list.len() == vector.len(), "round {round}, sorted");
            list.clear();
            vector.clear();
            assert!(list.is_empty());
        }
    }
}
