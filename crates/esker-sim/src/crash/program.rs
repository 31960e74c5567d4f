//! Small programs: what is done to a store before its power goes.
//!
//! The theory: bugs of durability need few operations and few keys, but every order of them. [`Program::random`] draws programs
//! of up to a dozen steps from a seed; [`all`] enumerates all short ones. In these the keys appear in the order of their first
//! use: programs that differ only in the names of keys are one program.
//!
//! **Crowds.** What an index does when it is short of entries takes a real store millions of keys. In a crowd all keys have one bucket,
//! which has fewer entries than they are; some have one tag, until the table doubles; and others are near it: so keys share entries, have
//! entries of their own again, and chains are joined, within a few steps.

use crate::model::{Bytes, Layout, Operation};
use esker::rehearse;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

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
    /// A doubling of the index.
    Double,
    /// Takes it back, as a compaction does at its end.
    Shrink,
    /// What is in memory is written out, as by a store that is short of it, and let go of if this is true.
    Spill(bool),
    /// A store that may drop something drops the oldest so many eighths of what it holds.
    Drop(u64),
    /// One of the steps above that call the storage, and an operation that happens within its call of this number.
    During(Box<Step>, u64, Operation),
    /// What is there now is held, for somebody who reads it; or let go again.
    Hold,
}

impl Step {
    /// True if it is on several keys, which change one by one.
    pub fn is_batch(&self) -> bool {
        let Step::Do(operation) = self else { return false };
        matches!(operation, Operation::PutMany(_) | Operation::RmwMany(_) | Operation::AppendMany(_) | Operation::DeleteMany(_))
    }
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
    /// Whether the store may drop keys.
    pub is_lossy: bool,
    /// Whether it keeps what each change replaces.
    pub keeps_versions: bool,
    /// What it uses.
    pub keys: Vec<Bytes>,
}

/// The number of keys, but in crowds.
const KEYS: u64 = 3;

/// The keys that programs use which are no crowd's.
fn few(layout: Layout) -> Vec<Bytes> {
    (0..KEYS).map(|id| layout.key(id)).collect()
}

/// What stores of programs hash by, and how small their index is: one without a bucket more than it begins with.
pub const CROWDING: rehearse::Crowding =
    rehearse::Crowding { hash_seed: [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344], index_bytes: 256 * 64 };

/// The first bit of a tag in a table of 256 buckets, and the first behind it.
const TAG: u32 = 8;
const BEYOND: u32 = TAG + 15;
/// Crowds that there are.
const CROWDS: u64 = 64;

type Crowds = HashMap<(Layout, u64), Vec<Bytes>>;

/// The keys of a crowd: two pairs whose tags differ in a table of 512 only, three keys near the first pair, three others.
fn crowd(layout: Layout, number: u64) -> Vec<Bytes> {
    static KNOWN: Mutex<Option<Crowds>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().entry((layout, number)).or_insert_with(|| gather(layout, number)).clone()
}

fn gather(layout: Layout, number: u64) -> Vec<Bytes> {
    let width = layout.width().map(|_| 8);
    let hash = |id: &u64| rehearse::hash(CROWDING.hash_seed, &layout.key(*id), width);
    let tag = |id: &u64| hash(id) >> TAG & ((1 << (BEYOND - TAG)) - 1);
    let in_bucket = |id: &u64| hash(id) & ((1 << TAG) - 1) == number;
    let (mut met, mut pairs, mut all) = (HashMap::new(), Vec::new(), Vec::new());
    for id in (0..).filter(in_bucket) {
        all.push(id);
        if let Some(other) = met.insert(tag(&id), id)
            && (hash(&other) ^ hash(&id)) >> BEYOND & 1 == 1
        {
            pairs.extend([other, id]);
        }
        if pairs.len() == 4 {
            break;
        }
    }
    let is_near = |id: &&u64| (tag(id) ^ tag(&pairs[0])).trailing_zeros() >= 4;
    let (near, far): (Vec<&u64>, Vec<&u64>) = all.iter().filter(|id| !pairs.contains(id)).partition(is_near);
    let others = near.into_iter().take(3).chain(far.into_iter().take(3));
    pairs.iter().chain(others).map(|id| layout.key(*id)).collect()
}

impl Program {
    /// The program of a seed: even seeds are `u64` to `u64`, odd ones bytes to bytes.
    pub fn random(seed: u64) -> Program {
        let layout = layout_of(seed);
        Program::of_length(seed, layout, few(layout), false, 3, 12)
    }

    /// One of a crowd: its store begins with some of it, or all. In some the table has doubled since an image, so that what was put
    /// behind that has entries of its own beside shorter ones.
    pub fn crowded(seed: u64) -> Program {
        let layout = layout_of(seed);
        let (mut keys, mut random) = (crowd(layout, seed / 2 % CROWDS), ChaCha8Rng::seed_from_u64(!seed));
        // So few have entries enough.
        if random.random() {
            keys.shuffle(&mut random);
            keys.truncate(4);
        }
        let grows = random.random_ratio(1, 3);
        let mut program = Program::of_length(seed, layout, keys, false, if grows { 0 } else { 3 }, if grows { 4 } else { 12 });
        let mut some = |number: u64| {
            let some: Vec<_> = program.keys.iter().filter(|_| random.random_ratio(2, 3)).cloned().collect();
            let puts = some.into_iter().map(|key| Operation::Put(key, value(&mut random, layout, number)));
            Step::Do(Operation::Transaction(puts.collect()))
        };
        let first = some(99);
        let behind = if grows { vec![Step::Reopen, Step::Double, some(98), Step::Commit] } else { Vec::new() };
        program.steps.splice(..0, [first].into_iter().chain(behind));
        program
    }

    /// The same with keys that end.
    pub fn ending(seed: u64) -> Program {
        Program::of_length(seed, layout_of(seed), few(layout_of(seed)), true, 3, 16)
    }

    /// One for a store that may drop keys: with steps at which it does, and operations within some of them.
    pub fn dropping(seed: u64) -> Program {
        let program = match seed % 8 {
            0..3 => Program::random(seed),
            3..6 => Program::ending(seed),
            _ => Program::crowded(seed),
        };
        program.with_drops()
    }

    fn with_drops(mut self) -> Program {
        let mut random = ChaCha8Rng::seed_from_u64(!self.seed);
        for number in 90..90 + random.random_range(1..=4) {
            let key = one_of(&mut random, &self.keys);
            let operation = match random.random_range(0..6) {
                0 | 1 => Some(Operation::Delete(key)),
                2 => Some(Operation::Put(key, value(&mut random, self.layout, number))),
                3 => Some(Operation::Rmw(key, random.random_range(1..=255))),
                _ => None,
            };
            let drop = Step::Drop(random.random_range(1..=8));
            let step = match operation {
                Some(operation) => Step::During(Box::new(drop), random.random_range(1..=8), operation),
                None => drop,
            };
            self.steps.insert(random.random_range(0..=self.steps.len() as u64) as usize, step);
        }
        Program { is_lossy: true, ..self }
    }

    /// One for a store that keeps versions: each step makes one of a key at most, and none ends by itself.
    pub fn versioned(seed: u64) -> Program {
        let program = if seed % 4 < 2 { Program::random(seed) } else { Program::crowded(seed) };
        program.with_versions()
    }

    fn with_versions(mut self) -> Program {
        self.steps.retain(|step| !step.is_batch());
        Program { keeps_versions: true, ..self }
    }

    /// The same over a medium with little room.
    pub fn scarce(seed: u64) -> Program {
        Program::random(seed).in_little_room()
    }

    /// Where a batch is refused a part of it may have been done.
    fn in_little_room(mut self) -> Program {
        self.steps.retain(|step| !step.is_batch());
        Program { is_scarce: true, ..self }
    }

    /// True if its keys are a crowd's.
    pub fn is_crowded(&self) -> bool {
        are_a_crowd(&self.keys)
    }

    /// A shorter one of the kind of another, for a store that has lived before. Every fourth begins with a compaction: of what a crash has
    /// left, before anything new is there.
    pub fn sequel(seed: u64, first: &Program) -> Program {
        let mut program = Program::of_length(seed, first.layout, first.keys.clone(), first.ends, 1, 5);
        if first.is_scarce {
            program = program.in_little_room();
        }
        if seed % 4 == 1 {
            program.steps.insert(0, Step::Compact);
        }
        // Of what was compacted while somebody held it deletions have no copies, and it is not given back.
        if first.is_crowded() && seed % 4 == 2 {
            let mut random = ChaCha8Rng::seed_from_u64(!seed);
            let some = program.keys.iter().filter(|_| random.random()).cloned().map(Operation::Delete).collect();
            let deletions = [Step::Do(Operation::Transaction(some)), Step::Commit];
            program.steps.splice(..0, deletions.into_iter().chain([Step::Hold, Step::Compact, Step::Hold, Step::Shrink, Step::Image]));
        }
        if first.is_lossy {
            program = program.with_drops();
        }
        if first.keeps_versions {
            program = program.with_versions();
        }
        program
    }

    fn of_length(seed: u64, layout: Layout, keys: Vec<Bytes>, ends: bool, least: usize, most: usize) -> Program {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let length = random.random_range(least..=most);
        let mut draw = |number: u64| {
            let ending = ends && random.random_ratio(2, 5);
            if ending { end_step(&mut random, layout, &keys, number) } else { step(&mut random, layout, &keys, number) }
        };
        let mut steps: Vec<Step> = (0..length as u64).map(&mut draw).collect();
        // Or something would nearly always live.
        if random.random_ratio(1, 12) {
            steps.extend(keys.iter().map(|key| Step::Do(Operation::Delete(key.clone()))).chain([Step::Commit]));
        }
        Program { seed, layout, steps, ends, is_scarce: false, is_lossy: false, keeps_versions: false, keys }
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
        write!(f, "{:?}", self.layout)?;
        let kinds = [(self.is_scarce, ", little room"), (self.is_lossy, ", may drop keys"), (self.keeps_versions, ", keeps versions")];
        kinds.iter().filter(|(is, _)| *is).try_for_each(|(_, words)| f.write_str(words))?;
        f.write_str(":")?;
        for step in &self.steps {
            match step {
                Step::Do(operation) => write!(f, " {operation:?};")?,
                other => write!(f, " {other:?};")?,
            }
        }
        Ok(())
    }
}

fn layout_of(seed: u64) -> Layout {
    if seed.is_multiple_of(2) { Layout::Pairs } else { Layout::Blobs }
}

fn are_a_crowd(keys: &[Bytes]) -> bool {
    keys.len() as u64 > KEYS
}

fn one_of(random: &mut ChaCha8Rng, keys: &[Bytes]) -> Bytes {
    keys[random.random_range(0..keys.len() as u64) as usize].clone()
}

fn step(random: &mut ChaCha8Rng, layout: Layout, keys: &[Bytes], number: u64) -> Step {
    // Of a crowd other things are to be learnt, too.
    if are_a_crowd(keys) && random.random_ratio(1, 3) {
        return crowd_step(random, layout, keys, number);
    }
    if random.random_ratio(1, 16) {
        return Step::Spill(random.random());
    }
    let key = one_of(random, keys);
    if random.random_ratio(1, 8) {
        return Step::Do(transaction(random, layout, keys, number));
    }
    if random.random_ratio(1, 12) {
        return Step::Do(batch(random, layout, keys, number));
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

fn crowd_step(random: &mut ChaCha8Rng, layout: Layout, keys: &[Bytes], number: u64) -> Step {
    match random.random_range(0..8) {
        0 => Step::Double,
        1 => Step::Shrink,
        2 | 3 => Step::Hold,
        _ => {
            let step = [Step::Commit, Step::Image, Step::Compact, Step::Stretch][random.random_range(0..4)].clone();
            let key = one_of(random, keys);
            let operation = match random.random_range(0..4) {
                0 => Operation::Delete(key),
                1 => Operation::Rmw(key, random.random_range(1..=255)),
                _ => Operation::Put(key, value(random, layout, number)),
            };
            // Most have a few calls; a compaction has one for each record that it reads.
            Step::During(Box::new(step), random.random_range(1..=6), operation)
        }
    }
}

/// A step about the end of a key; the spans are such that they meet.
fn end_step(random: &mut ChaCha8Rng, layout: Layout, keys: &[Bytes], number: u64) -> Step {
    let key = one_of(random, keys);
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
fn transaction(random: &mut ChaCha8Rng, layout: Layout, keys: &[Bytes], number: u64) -> Operation {
    let count = random.random_range(2..=5);
    let mut one = || {
        let key = one_of(random, keys);
        match random.random_range(0..5) {
            0 => Operation::Delete(key),
            1 => Operation::Rmw(key, random.random_range(1..=255)),
            2 if layout.width().is_none() => Operation::Append(key, value(random, layout, number)),
            _ => Operation::Put(key, value(random, layout, number)),
        }
    };
    Operation::Transaction((0..count).map(|_| one()).collect())
}

/// One of two or three keys, perhaps the same, of which no line has a part: one thread is at it.
fn batch(random: &mut ChaCha8Rng, layout: Layout, keys: &[Bytes], number: u64) -> Operation {
    let some: Vec<Bytes> = (0..random.random_range(2..=3)).map(|_| one_of(random, keys)).collect();
    let kind = random.random_range(0..4);
    let mut pairs = || some.iter().map(|key| (key.clone(), value(random, layout, number))).collect();
    match kind {
        0 => Operation::RmwMany(some),
        1 => Operation::DeleteMany(some),
        2 if layout.width().is_none() => Operation::AppendMany(pairs()),
        _ => Operation::PutMany(pairs()),
    }
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
            add(used, Step::Spill(true));
            for key in 0..KEYS.min(used + 1) {
                for step in on_key(layout, key, number) {
                    add(used.max(key + 1), step);
                }
            }
        }
        programs = longer;
    }
    (0..)
        .zip(programs)
        .map(|(seed, (_, steps))| Program {
            seed,
            layout,
            steps,
            ends: false,
            is_scarce: false,
            is_lossy: false,
            keeps_versions: false,
            keys: few(layout),
        })
        .collect()
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
        // One key or none: 6 + 4 programs of one step; then 6 + 4 or 6 + 8 continuations.
        assert_eq!(all(Layout::Blobs, 1).len(), 10);
        assert_eq!(all(Layout::Blobs, 2).len(), 6 * 10 + 4 * 14);
        let programs = all(Layout::Pairs, 3);
        assert!(programs.iter().enumerate().all(|(i, p)| programs[..i].iter().all(|q| p.steps != q.steps)));
    }
    /// A table of 512 buckets tells the keys of a pair apart, and one of 256 does not.
    #[test]
    fn the_keys_of_a_crowd_meet() {
        for (layout, number) in [(Layout::Pairs, 0), (Layout::Pairs, 17), (Layout::Blobs, 0), (Layout::Blobs, CROWDS - 1)] {
            let keys = crowd(layout, number);
            let hashes: Vec<u64> =
                keys.iter().map(|key| rehearse::hash(CROWDING.hash_seed, key, layout.width().map(|_| 8)) & ((2 << BEYOND) - 1)).collect();
            assert!(hashes.len() == 10 && hashes.iter().all(|hash| hash % 256 == number));
            for pair in [0, 2] {
                assert_eq!(hashes[pair] ^ hashes[pair + 1], 1 << BEYOND);
            }
            let mut tags: Vec<u64> = hashes.iter().map(|hash| hash % (1 << BEYOND)).collect();
            tags.sort_unstable();
            tags.dedup();
            assert_eq!(tags.len(), 8, "more than a bucket has entries");
        }
        assert!((0..100).all(|seed| Program::crowded(seed) == Program::crowded(seed)));
    }
}
