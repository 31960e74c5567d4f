//! Bytes that change behind the store's back.
//!
//! The theory: whatever becomes of its bytes, a store says that they are damaged or says what was written; never anything else. Four
//! verdicts: refused (an error, at the opening or at a read), right (the damage lay where nothing is), shorter (an older state: damage
//! taken for a torn tail, which loses what was acknowledged), wrong (a state that never was, a panic, or refused where a look at rest finds
//! nothing).
//!
//! Of some that are refused what is whole is carried over into a new store: each key of that must hold what it held at some time, or
//! nothing.

use super::life::{Past, live};
use super::program::Program;
use super::{Held, State, Subject, guarded, left_of, recovered, show};
use crate::model::Bytes;
use crate::storage::{SECTOR, SimStorage};
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// One in so many that are refused is carried over.
const CARRIED_OVER: u64 = 4;

/// The verdicts counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// An error.
    pub refused: u64,
    /// Nothing lost.
    pub right: u64,
    /// An older state, without a word.
    pub shorter: u64,
    /// Anything else.
    pub wrong: u64,
    /// The first of the shorter and of the wrong.
    pub examples: Vec<String>,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.refused += other.refused;
        self.right += other.right;
        self.shorter += other.shorter;
        self.wrong += other.wrong;
        self.examples.extend(other.examples);
        self.examples.sort_by_key(|text| !text.starts_with("wrong"));
        self.examples.truncate(6);
    }
}

/// Damages what a program left, in every way; of the bits of a file one in `stride`.
///
/// # Errors
/// If the program does not even run.
pub fn check<S: Subject>(subject: &S, program: &Program, stride: u64) -> Result<Report, String> {
    let storage = SimStorage::new();
    // All of it is to be closed in the end.
    let program = &Program { is_scarce: false, ..program.clone() };
    let life = live(subject, &storage, program, Past::none(program))?;
    let mut earlier = Vec::new();
    life.film.play(|moment| {
        earlier.push(moment.storage(&moment.all_kept()));
        None::<()>
    });
    let (state, rest) = life.states().split_last().ok_or("no states")?;
    // What is not committed may be missing even without damage.
    let before = recovered(subject, program.layout, &storage.restarted(), &program.keys)?;
    let state = if before == *state { state } else { &before };
    let older = rest.iter().map(|state| left_of(state, storage.now())).collect();
    let keys = program.keys.clone();
    let held = (0..keys.len()).map(|key| life.states().iter().filter_map(|state| state[key].clone()).collect()).collect();
    let mut lane = Lane { subject, program, keys, storage: storage.restarted(), state, older, held, report: Report::default() };
    for (name, bytes) in lane.storage.files() {
        lane.file(&name, bytes, stride, &earlier);
    }
    Ok(lane.report)
}

struct Lane<'s, S> {
    subject: &'s S,
    program: &'s Program,
    keys: Vec<Bytes>,
    storage: SimStorage,
    state: &'s State,
    older: Vec<State>,
    /// What each key ever held.
    held: Vec<Vec<Held>>,
    report: Report,
}

impl<S: Subject> Lane<'_, S> {
    fn file(&mut self, name: &str, bytes: u64, stride: u64, earlier: &[SimStorage]) {
        let sectors = bytes.div_ceil(SECTOR as u64);
        let first = self.program.seed % stride;
        for bit in (first..bytes * 8).step_by(stride as usize) {
            self.try_one(|s| s.flip_bit(name, bit), || format!("bit {} of byte {} of {name}", bit % 8, bit / 8));
        }
        for sector in 0..sectors {
            self.try_one(|s| s.zero_sector(name, sector), || format!("sector {sector} of {name} blank"));
            self.try_one(|s| s.spoil_sector(name, sector), || format!("sector {sector} of {name} unreadable"));
            for other in sector + 1..sectors.min(sector + 9) {
                self.try_one(|s| s.swap_sectors(name, sector, other), || format!("sectors {sector} and {other} of {name} exchanged"));
                let copy = self.storage.sector(name, sector);
                self.try_one(|s| s.set_sector(name, other, copy), || format!("sector {sector} of {name} also at {other}"));
            }
            let mut versions: Vec<[u8; SECTOR]> = earlier.iter().map(|s| s.sector(name, sector)).collect();
            versions.dedup();
            for version in versions {
                self.try_one(|s| s.set_sector(name, sector, version), || format!("sector {sector} of {name} stale"));
            }
        }
        for length in (0..bytes).step_by(SECTOR / 2) {
            self.try_one(|s| s.truncate(name, length), || format!("{name} cut to {length} bytes"));
        }
    }

    fn try_one(&mut self, damage: impl FnOnce(&SimStorage), what: impl FnOnce() -> String) {
        let storage = self.storage.restarted();
        damage(&storage);
        let at_rest = storage.restarted();
        if storage.print() == self.storage.print() {
            return;
        }
        let print =
            |words: &str, found: &str| format!("{words}: {} found {found} for {}\n  program: {}", what(), show(self.state), self.program);
        match recovered(self.subject, self.program.layout, &storage, &self.keys) {
            Ok(state) if state == *self.state => self.report.right += 1,
            Ok(state) if self.older.contains(&state) => {
                self.report.shorter += 1;
                self.report.examples.push(print("shorter", &show(&state)));
            }
            Ok(state) => {
                self.report.wrong += 1;
                self.report.examples.push(print("wrong", &show(&state)));
            }
            Err(panic) if panic.starts_with("PANIC") => {
                self.report.wrong += 1;
                self.report.examples.push(print("wrong", &panic));
            }
            // Whoever verifies must hear of it, too.
            Err(refusal) if self.subject.tells_damage(&at_rest) == Some(false) => {
                self.report.wrong += 1;
                self.report.examples.push(print("wrong", &format!("verified as sound, then {refusal}")));
            }
            Err(_) => {
                self.report.refused += 1;
                if self.report.refused.is_multiple_of(CARRIED_OVER)
                    && let Some(found) = self.carried_over_wrong(&at_rest)
                {
                    self.report.wrong += 1;
                    self.report.examples.push(print("wrong", &format!("salvaged {found}")));
                }
            }
        }
        if self.report.examples.len() > 64 {
            self.report += Report::default();
        }
    }

    /// What a store that took over what is whole says that never was.
    fn carried_over_wrong(&self, damaged: &SimStorage) -> Option<String> {
        let salvaged = || self.subject.salvaged(self.program.layout, damaged, &self.keys).unwrap_or_else(|| Err("no such way".into()));
        match guarded(salvaged) {
            Ok(state) => {
                let was = |(held, ever): (&Option<Held>, &Vec<Held>)| held.as_ref().is_none_or(|held| ever.contains(held));
                (!state.iter().zip(&self.held).all(was)).then(|| show(&state))
            }
            Err(panic) => panic.starts_with("PANIC").then_some(panic),
        }
    }
}
