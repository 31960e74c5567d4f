//! What a power cut leaves of the calls that no sync had settled.
//!
//! The theory: each unsynced sector of each write is lost, kept, or kept in some of its 512-byte pieces, whatever became of the
//! others, and overlapping writes may land in any order; each name keeps some first part of its changes. A [`Survival`] is one
//! choice of all that. [`Survival::draw`] makes a choice from a number, whose remainder picks one of the [`KINDS`] (the ends
//! of the scale first, for most bugs live there); [`every`] makes all choices of whole sectors where they are few.

use super::platter::Disk;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// The kinds of states that `Survival::draw` cycles through.
pub const KINDS: [&str; 14] = [
    "nothing unsynced kept",
    "all kept",
    "only the last write kept",
    "only the first write lost",
    "only the last write lost",
    "random writes kept",
    "random sectors kept",
    "all torn",
    "all kept but the last, torn",
    "a first part kept, the next torn",
    "nothing kept but the lengths",
    "all kept, in any order",
    "random pieces, in any order, ragged ends",
    "first pieces only, ragged ends",
];

/// One choice of what survives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survival {
    /// For each unsynced sector of each write in order: the pieces that are kept.
    pub(super) masks: Vec<u8>,
    /// For each name with unsynced changes: how many of them are kept.
    pub(super) names: Vec<usize>,
    /// Files grow to the ends of lost writes, with zeros.
    pub(super) stretched: bool,
    /// Files end with the last piece kept, in the middle of a sector.
    pub(super) ragged: bool,
    /// A seed that shuffles the writes; 0 leaves them in order.
    order: u64,
}

impl Survival {
    /// The choice that this number makes for this disk.
    pub(super) fn draw(number: u64, disk: &Disk) -> Survival {
        let mut random = ChaCha8Rng::seed_from_u64(number);
        let kind = number % KINDS.len() as u64;
        let sizes: Vec<usize> = disk.loose.iter().map(|l| l.write.blocks.len()).collect();
        let split = random.random_range(0..=sizes.len());
        let mut masks = Vec::with_capacity(sizes.iter().sum());
        for (index, size) in sizes.iter().enumerate() {
            let (first, last) = (index == 0, index + 1 == sizes.len());
            let whole = random.random_bool(0.5);
            masks.extend((0..*size).map(|_| match kind {
                0 | 10 => 0,
                1 | 11 => u8::MAX,
                2 => all_if(last),
                3 => all_if(!first),
                4 => all_if(!last),
                5 => all_if(whole),
                6 => all_if(random.random()),
                8 if !last => u8::MAX,
                9 if index != split => all_if(index < split),
                13 => u8::MAX >> random.random_range(0..=8u32).min(7),
                _ => random.random(),
            }));
        }
        let names = disk.loose_names.values().map(|changes| match kind {
            0 | 2 => 0,
            1 | 3 | 4 | 8 | 10 | 11 => changes.len(),
            _ => random.random_range(0..=changes.len()),
        });
        let names = names.collect();
        let order = if kind == 11 || kind == 12 { number } else { 0 };
        Survival { masks, names, stretched: kind == 10, ragged: kind >= 12, order }
    }

    /// The writes in the order in which they land, each with the masks of its sectors.
    pub(super) fn in_order(&self, sizes: impl Iterator<Item = usize>) -> Vec<(usize, &[u8])> {
        let mut rest = &self.masks[..];
        let mut writes: Vec<(usize, &[u8])> = Vec::new();
        for (index, size) in sizes.enumerate() {
            let (mine, others) = rest.split_at(size);
            rest = others;
            writes.push((index, mine));
        }
        if self.order != 0 {
            writes.shuffle(&mut ChaCha8Rng::seed_from_u64(self.order));
        }
        writes
    }
}

impl fmt::Display for Survival {
    /// The masks of the sectors in hexadecimal, and how many changes of each name are kept.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors kept [")?;
        for (index, mask) in self.masks.iter().enumerate() {
            write!(f, "{}{mask:02x}", if index > 0 { " " } else { "" })?;
        }
        write!(f, "] names {:?}", self.names)?;
        let marks = [(self.stretched, " stretched"), (self.ragged, " ragged"), (self.order != 0, " shuffled")];
        marks.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| f.write_str(word))
    }
}

fn all_if(kept: bool) -> u8 {
    if kept { u8::MAX } else { 0 }
}

/// Every choice of whole sectors and of names, if there are at most `limit`.
pub(super) fn every(disk: &Disk, limit: u64) -> Option<impl Iterator<Item = Survival> + use<>> {
    let sectors: usize = disk.loose.iter().map(|l| l.write.blocks.len()).sum();
    let names: Vec<u64> = disk.loose_names.values().map(|changes| changes.len() as u64 + 1).collect();
    let of_names = names.iter().try_fold(1u64, |total, n| total.checked_mul(*n))?;
    let total = of_names.checked_mul(1u64.checked_shl(sectors as u32)?).filter(|total| *total <= limit)?;
    Some((0..total).map(move |number| {
        let masks = (0..sectors).map(|bit| all_if(number >> bit & 1 == 1)).collect();
        let mut rest = number >> sectors;
        let digits = names.iter().map(|n| {
            let digit = rest % n;
            rest /= n;
            digit as usize
        });
        Survival { masks, names: digits.collect(), stretched: false, ragged: false, order: 0 }
    }))
}
