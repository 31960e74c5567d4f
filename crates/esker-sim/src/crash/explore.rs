//! All cuts of a life, and the lives after them.
//!
//! The theory: a tree. A life has moments, a moment has states of the disk, and some of those states are lived on in. The whole tree
//! of a program is determined by its seed and the [`Limits`], so a violation replays from them; its [`Violation::path`] says
//! where in the tree it lies. To reduce a program is to leave out steps as long as some violation is still found.

use super::life::{Life, Past, live};
use super::program::Program;
use super::{Found, Subject, given_back, scanned};
use crate::model::Bytes;
use crate::storage::{Breadth, KINDS, Moment, SimStorage, Survival};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// How much of the tree to visit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The states of the disk per moment.
    pub breadth: Breadth,
    /// How many lives may follow the first.
    pub depth: usize,
    /// One in so many new disk images is lived on in.
    pub nest_every: u64,
    /// And in none after so many images of a program: a few whose lives had many lives took half of all cuts.
    pub nest_until: u64,
}

impl Limits {
    /// For random programs: at least all kinds of states at every call, three lives after the first.
    pub const RANDOM: Limits = Limits::of(32, 3, 8, 500);
    /// For crowds, whose programs differ more than the states of the disk.
    pub const CROWDED: Limits = Limits::of(4, 2, 32, 500);
    /// For short programs: all subsets of unsynced sectors.
    pub const EXHAUSTIVE: Limits = Limits::of(1 << 12, 1, 4, u64::MAX);

    const fn of(every_up_to: u64, depth: usize, nest_every: u64, nest_until: u64) -> Self {
        Limits { breadth: Breadth { every_up_to, drawn: KINDS.len() as u64 }, depth, nest_every, nest_until }
    }
}

/// What was visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Programs run.
    pub programs: u64,
    /// Calls after which the power went.
    pub places: u64,
    /// Power cuts: a place and one state of the disk, judged.
    pub cuts: u64,
    /// Those in a second or later life.
    pub nested: u64,
    /// Different disk images opened and read.
    pub images: u64,
    /// Lives after the first.
    pub lives: u64,
    /// Calls that found no room on the medium.
    pub refused: u64,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.programs += other.programs;
        self.places += other.places;
        self.cuts += other.cuts;
        self.nested += other.nested;
        self.images += other.images;
        self.lives += other.lives;
        self.refused += other.refused;
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The program, whose seed replays it.
    pub program: Program,
    /// The way there: each life's program and the cut that ended it.
    pub path: Vec<String>,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violation: {}", self.what)?;
        for (number, hop) in self.path.iter().enumerate() {
            writeln!(f, "  life {}: {hop}", number + 1)?;
        }
        let crowds = if self.program.is_crowded() { " --crowds" } else { "" };
        write!(f, "  program: {}\n  replay: --seed {} --programs 1{crowds}", self.program, self.program.seed)
    }
}

/// Visits the tree of a program.
///
/// # Errors
/// The first violation.
pub fn check<S: Subject>(subject: &S, program: &Program, limits: Limits) -> Result<Figures, Box<Violation>> {
    let mut explorer = Explorer {
        subject,
        limits,
        keys: program.keys.clone(),
        root: program,
        seen: HashMap::new(),
        figures: Figures { programs: 1, ..Figures::default() },
        path: Vec::new(),
    };
    let life = live(subject, &SimStorage::new(), program, Past::none(program)).map_err(|what| explorer.violation(what))?;
    explorer.explore(&life)?;
    Ok(explorer.figures)
}

/// The smallest program found by leaving out steps for so long, and its violation.
pub fn shrink<S: Subject>(subject: &S, violation: Violation, limits: Limits, patience: Duration) -> Violation {
    let begun = Instant::now();
    let mut smallest = violation;
    // As few lives as will do, then as few steps. More lives go on, lest a shorter program escape by the luck of the draw.
    let mut limits =
        Limits { depth: smallest.path.len().saturating_sub(1), nest_every: limits.nest_every.min(2), nest_until: u64::MAX, ..limits };
    for depth in 0..limits.depth {
        if begun.elapsed() < patience
            && let Err(simpler) = check(subject, &smallest.program, Limits { depth, ..limits })
        {
            smallest = *simpler;
            limits.depth = depth;
            break;
        }
    }
    let mut step = 0;
    while step < smallest.program.steps.len() && begun.elapsed() < patience {
        match check(subject, &smallest.program.without(step), limits) {
            Err(smaller) => smallest = *smaller,
            Ok(_) => step += 1,
        }
    }
    smallest
}

/// Of one in so many disk images all space is asked for.
const GIVEN_BACK_EVERY: u64 = 16;

struct Explorer<'s, S> {
    subject: &'s S,
    limits: Limits,
    keys: Vec<Bytes>,
    root: &'s Program,
    /// What each disk image opened to, at a time.
    seen: HashMap<(u64, u64), Result<Found, String>>,
    figures: Figures,
    path: Vec<String>,
}

impl<S: Subject> Explorer<'_, S> {
    fn violation(&self, what: String) -> Box<Violation> {
        Box::new(Violation { program: self.root.clone(), path: self.path.clone(), what })
    }

    fn explore(&mut self, life: &Life) -> Result<(), Box<Violation>> {
        self.figures.refused += life.refused;
        match life.film.play(|moment| self.moment(life, moment).err()) {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn moment(&mut self, life: &Life, moment: &Moment<'_>) -> Result<(), Box<Violation>> {
        self.figures.places += 1;
        let past = life.allowed(moment.calls);
        let seed = self.root.seed.wrapping_mul(1 << 20).wrapping_add((moment.calls * 64) as u64);
        for (number, survival) in moment.survivals(self.limits.breadth, seed).iter().enumerate() {
            self.cut(life, moment, &past, number, survival)?;
        }
        Ok(())
    }

    fn cut(&mut self, life: &Life, moment: &Moment<'_>, past: &Past, number: usize, survival: &Survival) -> Result<(), Box<Violation>> {
        self.figures.cuts += 1;
        self.figures.nested += u64::from(!self.path.is_empty());
        let storage = moment.storage(survival).at(past.now);
        let print = (storage.print(), past.now);
        let new = !self.seen.contains_key(&print);
        if new {
            self.figures.images += 1;
            let layout = life.program.layout;
            let gives_back = match self.figures.images.is_multiple_of(GIVEN_BACK_EVERY) {
                true => given_back(self.subject, layout, &moment.storage(survival).at(past.now), &self.keys),
                false => Ok(()),
            };
            let found = scanned(self.subject, layout, &storage, &self.keys).and_then(|found| gives_back.map(|()| found));
            self.seen.insert(print, found);
        }
        let verdict = self.seen[&print].as_ref().map_err(Clone::clone).and_then(|found| past.judge(found));
        // Drawn from the count, not from the image: a store's random identity must not decide what is visited.
        let nests = new && self.path.len() < self.limits.depth && self.figures.images <= self.limits.nest_until;
        let sequel = sequel(self.root.seed, self.figures.images, self.limits.nest_every).filter(|_| nests);
        if verdict.is_ok() && sequel.is_none() {
            return Ok(());
        }
        self.path.push(format!(
            "{}\n    cut after call {} ({}), state {number}: {survival}",
            life.program,
            moment.calls,
            moment.describe(),
        ));
        verdict.map_err(|what| self.violation(what))?;
        if let Some(seed) = sequel {
            self.live_on(moment.storage(survival).at(past.now), past.clone(), seed)?;
        }
        self.path.pop();
        Ok(())
    }

    /// The store opens, goes on for a few steps, and all that is cut in its turn.
    fn live_on(&mut self, storage: SimStorage, past: Past, seed: u64) -> Result<(), Box<Violation>> {
        self.figures.lives += 1;
        let sequel = Program::sequel(seed, self.root);
        let life =
            live(self.subject, &storage, &sequel, past).map_err(|what| self.violation(format!("{what}\n  in the sequel {sequel}")))?;
        self.explore(&life)
    }
}

/// The seed of the life that follows an image of the disk, if one does.
fn sequel(seed: u64, image: u64, every: u64) -> Option<u64> {
    let chance = mix(seed, image);
    // What is left of it: of multiples alone all would be sequels of one kind.
    chance.is_multiple_of(every).then_some(chance / every)
}

/// A number that looks random, from two.
pub(super) fn mix(one: u64, other: u64) -> u64 {
    let mixed = (one.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ other).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every fourth was to begin with a compaction, and none did: where one image in eight was lived on in, all seeds were multiples of
    /// eight.
    #[test]
    fn sequels_are_of_all_kinds() {
        for every in [4, 8, 32] {
            let seeds: Vec<u64> = (0..4000).filter_map(|image| sequel(7, image, every)).collect();
            assert!((0..4).all(|kind| seeds.iter().filter(|seed| *seed % 4 == kind).count() > seeds.len() / 8), "{every}");
            assert!((2000..6000).contains(&(seeds.len() as u64 * every)));
        }
    }
}
