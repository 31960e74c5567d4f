//! One run of a program, with what may be left of it at each moment.
//!
//! The theory: a store's history is a list of states, one more after each operation. A floor says which of them the last commit
//! promised; the ceiling is the operation begun last. At each moment of the film the states from the floor to the ceiling are
//! allowed. A store that lived before begins with that range of an older history; once its opening has returned, it is known which
//! state it chose, and later ones of the old history may never be seen again.

use super::program::{Program, Step, keys};
use super::{Held, Live, NEVER, State, Subject, guarded, left_of, show};
use crate::model::{Bytes, Layout, Model};
use crate::storage::{Film, SimStorage};

/// A history and the first of its states that may be found.
#[derive(Clone, Debug)]
pub struct Past {
    /// The states, oldest first; the last is the ceiling.
    pub states: Vec<State>,
    /// The position of the first allowed.
    pub floor: usize,
    /// The time, in milliseconds since the beginning: what has ended is in no state any more.
    pub now: u64,
}

impl Past {
    /// Of a store that never was.
    pub fn none(layout: Layout) -> Past {
        Past { states: vec![vec![None; keys(layout).len()]], floor: 0, now: 0 }
    }

    /// The position of a state, the latest where several are the same.
    ///
    /// # Errors
    /// Says what is allowed if the state is not.
    pub fn find(&self, state: &State) -> Result<usize, String> {
        let allowed = &self.states[self.floor..];
        allowed.iter().rposition(|s| left_of(s, self.now) == *state).map(|at| at + self.floor).ok_or_else(|| {
            let what = match self.states[..self.floor].iter().rposition(|s| left_of(s, self.now) == *state) {
                Some(at) => format!("LOST: found state {at}, but state {} was acknowledged", self.floor),
                None => "found a state that never was".into(),
            };
            let allowed: Vec<String> = allowed.iter().map(|s| show(&left_of(s, self.now))).collect();
            format!("{what}\n  found   {}\n  allowed {}", show(state), allowed.join("\n          "))
        })
    }
}

/// From this moment of the film on.
struct Mark {
    calls: usize,
    floor: usize,
    ceiling: usize,
    now: u64,
}

/// A run.
pub struct Life {
    /// What was done.
    pub program: Program,
    /// The disk all through it.
    pub film: Film,
    past: Past,
    states: Vec<State>,
    /// The moment at which the opening returned.
    opened: usize,
    marks: Vec<Mark>,
}

impl Life {
    /// What may be found after a cut when this many calls were made.
    pub fn allowed(&self, calls: usize) -> Past {
        if calls < self.opened {
            return self.past.clone();
        }
        let mark = self.marks.iter().rev().find(|m| m.calls <= calls).expect("the first mark is where the opening returned");
        Past { states: self.states[..=mark.ceiling].to_vec(), floor: mark.floor, now: mark.now }
    }

    /// Every state it was in, the last one last.
    pub fn states(&self) -> &[State] {
        &self.states
    }
}

/// The contents of a model.
pub fn state_of(model: &Model, keys: &[Bytes]) -> State {
    let end = |key| model.ends.get(key).copied().unwrap_or(NEVER);
    keys.iter().map(|key| Some(Held { value: model.map.get(key)?.clone(), end: end(key) })).collect()
}

/// A model that holds what is left of these contents by now.
pub fn model_of(layout: Layout, keys: &[Bytes], state: &State, now: u64) -> Model {
    let mut model = Model::new(layout);
    model.now = now;
    for (key, held) in keys.iter().zip(left_of(state, now)) {
        let Some(Held { value, end }) = held else { continue };
        model.map.insert(key.clone(), value);
        if end != NEVER {
            model.ends.insert(key.clone(), end);
        }
    }
    model
}

/// Runs a program on a healthy storage.
///
/// # Errors
/// What the store did wrong.
pub fn live<S: Subject>(subject: &S, storage: &SimStorage, program: &Program, past: Past) -> Result<Life, String> {
    guarded(|| {
        let keys = keys(program.layout);
        let mut store = subject.open(program.layout, storage).map_err(|e| format!("does not open: {e}"))?;
        let found = store.state(&keys).map_err(|e| format!("does not read: {e}"))?;
        let at = past.find(&found)?;
        let opened = storage.position();
        let mut run = Run {
            storage,
            model: model_of(program.layout, &keys, &found, past.now),
            states: past.states[..=at].to_vec(),
            floor: past.floor,
            marks: vec![Mark { calls: opened, floor: past.floor, ceiling: at, now: past.now }],
            keys,
        };
        for step in &program.steps {
            store = run.step(subject, program.layout, store, step)?;
        }
        drop(store);
        Ok(Life { program: program.clone(), film: storage.film(), past, states: run.states, opened, marks: run.marks })
    })
}

struct Run<'s> {
    storage: &'s SimStorage,
    keys: Vec<Bytes>,
    model: Model,
    states: Vec<State>,
    floor: usize,
    marks: Vec<Mark>,
}

impl Run<'_> {
    fn mark(&mut self) {
        self.marks.push(Mark { calls: self.storage.position(), floor: self.floor, ceiling: self.states.len() - 1, now: self.model.now });
    }

    fn promised(&mut self) {
        self.floor = self.states.len() - 1;
        self.mark();
    }

    fn step<S: Subject>(&mut self, subject: &S, layout: Layout, mut store: S::Live, step: &Step) -> Result<S::Live, String> {
        match step {
            Step::Do(operation) => {
                let expected = self.model.apply(operation);
                self.states.push(state_of(&self.model, &self.keys));
                self.mark();
                let outcome = store.apply(operation).map_err(|e| format!("{operation:?} failed: {e}"))?;
                if outcome != expected {
                    return Err(format!("{operation:?} gave {outcome:?}, not {expected:?}"));
                }
                if subject.commits_each() {
                    self.promised();
                }
                Ok(store)
            }
            Step::Commit => {
                store.commit().map_err(|e| format!("commit failed: {e}"))?;
                self.promised();
                Ok(store)
            }
            Step::Compact => {
                store.compact().map_err(|e| format!("compaction failed: {e}"))?;
                self.mark();
                Ok(store)
            }
            Step::Stretch => {
                store.compact_stretch().map_err(|e| format!("compaction of a stretch failed: {e}"))?;
                self.mark();
                Ok(store)
            }
            Step::Image => {
                let before = self.states.len() - 1;
                store.image().map_err(|e| format!("an image failed: {e}"))?;
                // It draws lines, if the store knows of images at all.
                self.floor = if subject.takes_images() { before } else { self.floor };
                self.mark();
                Ok(store)
            }
            Step::Reopen => {
                store.close().map_err(|e| format!("close failed: {e}"))?;
                self.promised();
                let mut store = subject.open(layout, self.storage).map_err(|e| format!("does not reopen: {e}"))?;
                let found = store.state(&self.keys).map_err(|e| format!("does not read after reopening: {e}"))?;
                match self.states.last() {
                    // A state of an earlier life may have ended in part.
                    Some(last) if left_of(last, self.model.now) == found => Ok(store),
                    _ => Err(format!("reopened in order, found {}", show(&found))),
                }
            }
        }
    }
}
