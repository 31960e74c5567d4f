//! Small programs: what is done to a store before its power goes.
//!
//! The theory: bugs of durability need few operations and few keys, but every order of them. [`Program::random`] draws programs
//! of up to a dozen steps from a seed; [`all`] enumerates all short ones. In these the keys appear in the order of their first
//! use: programs that differ only in the names of keys are one program.

use crate::model::{Bytes, Layout, Operation};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operation on one key.
    Do(Operation),
    /// A commit.
    Commit,
    /// A compaction of the log.
    Compact,
    /// A compaction of a stretch, which may wait for the next line.
    Stretch,
    /// An image of the index, of a store in use.
    Image,
    /// A close in order and an opening.
    Reopen,
}

/// Steps on a store of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it came from; it also chooses the states of the disk.
    pub seed: u64,
    /// The types of the store.
    pub layout: Layout,
    /// What is done.
    pub steps: Vec<Step>,
    /// Whether keys end by themselves in it.
    pub ends: bool,
    /// Whether the log finds no room on the medium now and then.
    pub is_scarce: bool,
}

/// The number of keys.
const KEYS: u64 = 3;

/// The keys that programs use.
pub fn keys(layout: Layout) -> Vec<Bytes> {
    (0..KEYS).map(|id| layout.key(id)).collect()
}

impl Program {
    /// The program of a seed: even seeds are `u64` to `u64`, odd ones bytes to bytes.
    pub fn random(seed: u64) -> Program {
        let layout = if seed.is_multiple_of(2) { Layout::Pairs } else { Layout::Blobs };
        Program::of_length(seed, layout, false, 3, 12)
    }

    /// The same with keys that end.
    pub fn ending(seed: u64) -> Program {
        Program::of_length(seed, Program::random(seed).layout, true, 3, 16)
    }

    /// The same over a medium with little room.
    pub fn scarce(seed: u64) -> Program {
        Program { is_scarce: true, ..Program::random(seed) }
    }

    /// A shorter one of the kind of another, for a store that has lived before. Every fourth begins with a compaction: of what a crash has
    /// left, before anything new is there.
    pub fn sequel(seed: u64, first: &Program) -> Program {
        let mut program = Program { is_scarce: first.is_scarce, ..Program::of_length(seed, first.layout, first.ends, 1, 5) };
        if seed % 4 == 1 {
            program.steps.insert(0, Step::Compact);
        }
        program
    }

    fn of_length(seed: u64, layout: Layout, ends: bool, least: usize, most: usize) -> Program {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let length = random.random_range(least..=most);
        let mut draw = |number: u64| {
            let ending = ends && random.random_ratio(2, 5);
            if ending { end_step(&mut random, layout, number) } else { step(&mut random, layout, number) }
        };
        let mut steps: Vec<Step> = (0..length as u64).map(&mut draw).collect();
        // Or something would nearly always live.
        if random.random_ratio(1, 12) {
            steps.extend(keys(layout).into_iter().map(|key| Step::Do(Operation::Delete(key))).chain([Step::Commit]));
        }
        Program { seed, layout, steps, ends, is_scarce: false }
    }

    /// The same without one step.
    pub fn without(&self, step: usize) -> Program {
        let mut program = self.clone();
        program.steps.remove(step);
        program
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}:", self.layout, if self.is_scarce { ", little room" } else { "" })?;
        for step in &self.steps {
            match step {
                Step::Do(operation) => write!(f, " {operation:?};")?,
                other => write!(f, " {other:?};")?,
            }
        }
        Ok(())
    }
}

fn step(random: &mut ChaCha8Rng, layout: Layout, number: u64) -> Step {
    let key = layout.key(random.random_range(0..KEYS));
    if random.random_ratio(1, 8) {
        return Step::Do(transaction(random, layout, number));
    }
    Step::Do(match random.random_range(0..26) {
        0..6 => return Step::Commit,
        6 => return Step::Reopen,
        20 => return Step::Compact,
        21 => return Step::Stretch,
        22..24 => return Step::Image,
        // After an opening all is cold: a second read brings a record back into memory, which writes it again.
        24.. => Operation::Get(key),
        7..10 => Operation::Put(key, value(random, layout, number)),
        10 => Operation::PutIfAbsent(key, value(random, layout, number)),
        11 => Operation::PutIfSame(key, value(random, layout, number)),
        12 => Operation::Take(key),
        13..15 => Operation::Delete(key),
        15..18 => Operation::Rmw(key, random.random_range(1..=255)),
        _ if layout.width().is_none() => Operation::Append(key, value(random, layout, number)),
        _ => Operation::Rmw(key, 7),
    })
}

/// A step about the end of a key; the spans are such that they meet.
fn end_step(random: &mut ChaCha8Rng, layout: Layout, number: u64) -> Step {
    let key = layout.key(random.random_range(0..KEYS));
    let ms = 10 * random.random_range(0..4);
    Step::Do(match random.random_range(0..10) {
        0..4 => Operation::PutTtl(key, value(random, layout, number), ms),
        4..6 => Operation::EndAfter(key, ms),
        6 => Operation::Persist(key),
        7 => Operation::Renew(key, ms),
        _ => Operation::Pass(ms),
    })
}

/// One of two to five operations, which must be there all or not at all.
fn transaction(random: &mut ChaCha8Rng, layout: Layout, number: u64) -> Operation {
    let count = random.random_range(2..=5);
    let mut one = || {
        let key = layout.key(random.random_range(0..KEYS));
        match random.random_range(0..5) {
            0 => Operation::Delete(key),
            1 => Operation::Rmw(key, random.random_range(1..=255)),
            2 if layout.width().is_none() => Operation::Append(key, value(random, layout, number)),
            _ => Operation::Put(key, value(random, layout, number)),
        }
    };
    Operation::Transaction((0..count).map(|_| one()).collect())
}

/// A value that names its step, of a length that may cross pieces and sectors.
fn value(random: &mut ChaCha8Rng, layout: Layout, number: u64) -> Bytes {
    if layout.width().is_some() {
        return (random.random::<u64>() << 8 | number).to_le_bytes().to_vec();
    }
    let length = match random.random_range(0..12) {
        0 => 0,
        1..6 => random.random_range(1..40),
        6..9 => random.random_range(40..400),
        9..11 => random.random_range(400..3000),
        _ => random.random_range(3000..12_000),
    };
    let first: u8 = random.random();
    (0..length).map(|at: usize| first.wrapping_add(number as u8).wrapping_add((at / 7) as u8)).collect()
}

/// The steps that short programs are made of, for key number `key`.
fn on_key(layout: Layout, key: u64, number: u64) -> Vec<Step> {
    let name = layout.key(key);
    let mut random = ChaCha8Rng::seed_from_u64(number * 31 + key);
    let value = match layout.width() {
        Some(_) => value(&mut random, layout, number),
        None => vec![b'a' + number as u8; 300 + 400 * number as usize],
    };
    let mut steps = vec![
        Step::Do(Operation::Put(name.clone(), value.clone())),
        Step::Do(Operation::Delete(name.clone())),
        Step::Do(Operation::Rmw(name.clone(), number as u8 + 1)),
    ];
    if layout.width().is_none() {
        steps.push(Step::Do(Operation::Append(name, value)));
    }
    steps
}

/// Every program of exactly `length` steps.
pub fn all(layout: Layout, length: usize) -> Vec<Program> {
    let mut programs = vec![(0, Vec::new())];
    for number in 0..length as u64 {
        let mut longer = Vec::new();
        for (used, steps) in programs {
            let mut add = |used: u64, step: Step| longer.push((used, [&steps[..], &[step]].concat()));
            add(used, Step::Commit);
            add(used, Step::Compact);
            add(used, Step::Stretch);
            add(used, Step::Image);
            add(used, Step::Reopen);
            for key in 0..KEYS.min(used + 1) {
                for step in on_key(layout, key, number) {
                    add(used.max(key + 1), step);
                }
            }
        }
        programs = longer;
    }
    (0..).zip(programs).map(|(seed, (_, steps))| Program { seed, layout, steps, ends: false, is_scarce: false }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_program() {
        assert!((0..100).all(|seed| Program::random(seed) == Program::random(seed)));
        assert_ne!(Program::random(3).steps, Program::random(5).steps);
    }

    #[test]
    fn short_programs_are_all_there_and_differ() {
        // One key or none: 5 + 4 programs of one step; then 5 + 4 or 5 + 8 continuations.
        assert_eq!(all(Layout::Blobs, 1).len(), 9);
        assert_eq!(all(Layout::Blobs, 2).len(), 5 * 9 + 4 * 13);
        let programs = all(Layout::Pairs, 3);
        assert!(programs.iter().enumerate().all(|(i, p)| programs[..i].iter().all(|q| p.steps != q.steps)));
    }
}
