//! Buffers aligned for direct I/O.
//!
//! A long one is a mapping of its own. The heap keeps what comes back to it, and cannot join aligned pieces well: a store that
//! compacted had 20 MiB of them resident beyond a budget of 64 MiB. A mapping goes back to the system whole.

use super::SECTOR_BYTES;
use crate::memory::Region;
use std::fmt;

/// From this length on: below, a system call costs more than a heap that keeps some pages.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// So many sectors, zero at first.
pub(crate) struct AlignedBuffer(Memory);

enum Memory {
    Heap(Vec<Sector>),
    Mapped(Region),
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
pub(super) struct Sector(pub(super) [u8; SECTOR_BYTES]);

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors", self.bytes().len() / SECTOR_BYTES)
    }
}

impl AlignedBuffer {
    pub(crate) fn new(sectors: usize) -> Self {
        if sectors * SECTOR_BYTES < MAPPED_BYTES_MIN { Self::in_heap(sectors) } else { Self::mapped(sectors) }
    }

    /// A mapping, however short: for what is used again and again, and then gone.
    pub(super) fn mapped(sectors: usize) -> Self {
        // A model's regions are a few words; and a system that gives no mapping may have room in the heap.
        let mapped = (!cfg!(loom)).then(|| Region::exactly(sectors * SECTOR_BYTES).ok()).flatten();
        mapped.map_or_else(|| Self::in_heap(sectors), |region| Self(Memory::Mapped(region)))
    }

    fn in_heap(sectors: usize) -> Self {
        Self(Memory::Heap(vec![Sector([0; SECTOR_BYTES]); sectors]))
    }

    pub(crate) fn sector_mut(&mut self, at: usize) -> &mut [u8; SECTOR_BYTES] {
        &mut self.bytes_mut().as_chunks_mut().0[at]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let (base, len) = match &mut self.0 {
            Memory::Heap(sectors) => (sectors.as_mut_ptr().cast(), sectors.len() * SECTOR_BYTES),
            Memory::Mapped(region) => (region.base(), region.bytes()),
        };
        // SAFETY: plain bytes that are ours alone: `Sector` is a byte array without padding (size 4096 = align 4096), and nobody else
        // knows the region, whose pages are zero until they are written.
        unsafe { std::slice::from_raw_parts_mut(base, len) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(sectors) => sector_bytes(sectors),
            // SAFETY: as in `bytes_mut`.
            Memory::Mapped(region) => unsafe { std::slice::from_raw_parts(region.base(), region.bytes()) },
        }
    }
}

pub(super) fn sector_bytes(sectors: &[Sector]) -> &[u8] {
    // SAFETY: as in `bytes_mut`.
    unsafe { std::slice::from_raw_parts(sectors.as_ptr().cast(), size_of_val(sectors)) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_length_are_aligned_zero_and_ones_own() {
        for sectors in [0, 1, 31, 32, 33, 300] {
            let (mut one, other) = (AlignedBuffer::new(sectors), AlignedBuffer::new(sectors));
            assert!(one.bytes().len() == sectors * SECTOR_BYTES && one.bytes().iter().all(|&byte| byte == 0));
            assert_eq!(one.bytes().as_ptr() as usize % SECTOR_BYTES, 0);
            one.bytes_mut().fill(7);
            if sectors > 0 {
                one.sector_mut(sectors - 1).fill(9);
            }
            assert!(other.bytes().iter().all(|&byte| byte == 0));
            assert!(one.bytes().iter().rev().enumerate().all(|(at, &byte)| byte == if at < SECTOR_BYTES { 9 } else { 7 }));
        }
    }
}
