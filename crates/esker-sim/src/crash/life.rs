//! One run of a program, with what may be left of it at each moment.
//!
//! The theory: a store's history is a list of states, one more after each operation. A floor says which of them the last commit
//! promised; the ceiling is the operation begun last. At each moment of the film the states from the floor to the ceiling are
//! allowed. A store that lived before begins with that range of an older history; once its opening has returned, it is known which
//! state it chose: later ones of the old history may never be seen again, nor earlier ones, for what it was opened from is durable.
//!
//! Where the medium has little room a call may be refused. An operation that was is done or not, which a look tells at once, and promises
//! nothing; a close that was is the end of the run.

use super::program::{Program, Step};
use super::{Found, Happened, Held, Live, NEVER, State, Subject, Versions, guarded, left_of, show};
use crate::model::{Bytes, Layout, Model, Operation, Outcome};
use crate::storage::{Film, Scarcity, SimStorage};

/// A history and the first of its states that may be found.
#[derive(Clone, Debug)]
pub struct Past {
    /// The states, oldest first; the last is the ceiling.
    pub states: Vec<State>,
    /// The position of the first allowed.
    pub floor: usize,
    /// The time, in milliseconds since the beginning: what has ended is in no state any more.
    pub now: u64,
    /// Whether any key may be missing.
    pub is_lossy: bool,
    /// Whether keys share entries of the index: then openings make copies, and of versions some may be missing.
    pub is_crowded: bool,
}

impl Past {
    /// Of a store that never was.
    pub fn none(program: &Program) -> Past {
        Past {
            states: vec![vec![None; program.keys.len()]],
            floor: 0,
            now: 0,
            is_lossy: program.is_lossy,
            is_crowded: program.is_crowded(),
        }
    }

    /// The position of a state, the latest where several are the same.
    ///
    /// # Errors
    /// Says what is allowed if the state is not.
    pub fn find(&self, state: &State) -> Result<usize, String> {
        let allowed = &self.states[self.floor..];
        allowed.iter().rposition(|s| self.is_of(state, s)).map(|at| at + self.floor).ok_or_else(|| {
            let what = match self.states[..self.floor].iter().rposition(|s| self.is_of(state, s)) {
                Some(at) => format!("LOST: found state {at}, but state {} was acknowledged", self.floor),
                None => "found a state that never was".into(),
            };
            let allowed: Vec<String> = allowed.iter().map(|s| show(&left_of(s, self.now))).collect();
            format!("{what}\n  found   {}\n  allowed {}", show(state), allowed.join("\n          "))
        })
    }
}

impl Past {
    /// True if it is what may be left of one of these.
    fn is_of(&self, state: &State, of: &State) -> bool {
        is_of(state, &left_of(of, self.now), self.is_lossy)
    }

    /// Sees to it that what was found is of one allowed state, and that each key has its newest versions up to there.
    ///
    /// # Errors
    /// Says what is allowed if not.
    pub(super) fn judge(&self, Found { state, versions }: &Found) -> Result<(), String> {
        let last = self.find(state)?;
        let mut candidates = (self.floor..=last).rev().filter(|at| self.is_of(state, &self.states[*at]));
        if versions.is_empty() || candidates.any(|at| self.has_versions(at, versions)) {
            return Ok(());
        }
        Err(format!("versions that never were, or not the newest\n  found   {versions:?}\n  newest  {}", show(state)))
    }

    /// True if these are versions of each key, of all until one of these states: the newest ones, or, in a crowd, the newest and some.
    fn has_versions(&self, at: usize, versions: &[Versions]) -> bool {
        (0..).zip(versions).all(|(key, versions): (usize, _)| {
            let mut ever: Versions = self.states[..=at].iter().rev().map(|state| Some(state[key].as_ref()?.value.clone())).collect();
            ever.dedup();
            let mut rest = ever.iter();
            let are_there =
                if self.is_crowded { versions.iter().all(|version| rest.any(|one| one == version)) } else { ever.starts_with(versions) };
            are_there && versions.first().map_or(ever[0].is_none(), |newest| *newest == ever[0])
        })
    }
}

/// True if one state is what may be left of another.
fn is_of(state: &State, of: &State, is_lossy: bool) -> bool {
    if !is_lossy {
        return state == of;
    }
    state.iter().zip(of).all(|(held, of)| held.is_none() || held == of)
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
    /// Calls that found no room.
    pub refused: u64,
}

impl Life {
    /// What may be found after a cut when this many calls were made.
    pub fn allowed(&self, calls: usize) -> Past {
        if calls < self.opened {
            return self.past.clone();
        }
        let mark = self.marks.iter().rev().find(|m| m.calls <= calls).expect("the first mark is where the opening returned");
        Past { states: self.states[..=mark.ceiling].to_vec(), floor: mark.floor, now: mark.now, ..self.past.clone() }
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
        let keys = program.keys.clone();
        let mut store = subject.open(program.layout, storage).map_err(|e| format!("does not open: {e}"))?;
        let found = store.state(&keys).map_err(|e| format!("does not read: {e}"))?;
        let at = past.find(&found)?;
        let opened = storage.position();
        storage.set_scarcity(program.is_scarce.then(|| Scarcity::of(program.seed, LOG)));
        let mut run = Run {
            storage,
            is_scarce: program.is_scarce,
            is_lossy: program.is_lossy,
            model: model_of(program.layout, &keys, &found, past.now),
            states: past.states[..=at].to_vec(),
            // All that it was opened from is durable: no later opening goes behind what this one has shown.
            floor: at,
            marks: vec![Mark { calls: opened, floor: at, ceiling: at, now: past.now }],
            keys,
        };
        let mut store = Some(store);
        for step in &program.steps {
            store = match store {
                Some(store) => run.step(subject, program.layout, store, step)?,
                None => break,
            };
        }
        drop(store);
        let (film, refused) = (storage.film(), storage.refused());
        Ok(Life { program: program.clone(), film, past, states: run.states, opened, marks: run.marks, refused })
    })
}

/// The files that may find no room.
const LOG: &str = "esker.log.";

/// True if a call failed for want of room.
fn is_refused(why: &str) -> bool {
    why.contains("StorageFull")
}

struct Run<'s> {
    storage: &'s SimStorage,
    is_scarce: bool,
    is_lossy: bool,
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

    /// What a call gave, or nothing if it found no room.
    fn unless_refused<R>(&self, what: &str, result: Result<R, String>) -> Result<Option<R>, String> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(why) if self.is_scarce && is_refused(&why) => Ok(None),
            Err(why) => Err(format!("{what} failed: {why}")),
        }
    }

    fn operation<L: Live>(&mut self, store: &mut L, operation: &Operation, commits_each: bool) -> Result<(), String> {
        let before = self.model.clone();
        let expected = self.model.apply(operation);
        self.states.push(self.state_after(operation, &before));
        self.mark();
        let result = store.apply(operation);
        let outcome: Option<Outcome> = self.unless_refused(&format!("{operation:?}"), result)?;
        let Some(outcome) = outcome else { return self.done_or_not(store, operation, before) };
        if outcome != expected {
            return Err(format!("{operation:?} gave {outcome:?}, not {expected:?}"));
        }
        // What changes nothing need not wait for what was refused before.
        let last = self.states.len() - 1;
        if commits_each && (!self.is_scarce || self.states[last] != self.states[last - 1]) {
            self.promised();
        }
        Ok(())
    }

    /// What a crash may show once an operation was done. What was dropped before and not changed since may come back as it was; what was
    /// deleted may not.
    fn state_after(&self, operation: &Operation, before: &Model) -> State {
        let (was, is) = (state_of(before, &self.keys), state_of(&self.model, &self.keys));
        if !self.is_lossy {
            return is;
        }
        let last = &self.states[self.states.len() - 1];
        let one = |at: usize| if is[at] != was[at] || operation.deletes(&self.keys[at]) { &is[at] } else { &last[at] };
        (0..self.keys.len()).map(|at| one(at).clone()).collect()
    }

    /// After some keys may have been dropped: the model goes by what is there, which must be what was.
    fn see_what_was_dropped<L: Live>(&mut self, store: &mut L) -> Result<(), String> {
        let found = store.state(&self.keys).map_err(|e| format!("does not read after something was dropped: {e}"))?;
        let was = left_of(&state_of(&self.model, &self.keys), self.model.now);
        if !is_of(&found, &was, true) {
            return Err(format!("dropping left {} of {}", show(&found), show(&was)));
        }
        for (key, _) in self.keys.iter().zip(found).filter(|(_, held)| held.is_none()) {
            self.model.drop(key);
        }
        Ok(())
    }

    /// Of an operation that was refused.
    fn done_or_not<L: Live>(&mut self, store: &mut L, operation: &Operation, before: Model) -> Result<(), String> {
        let found = store.state(&self.keys).map_err(|e| format!("does not read after {operation:?} found no room: {e}"))?;
        let now = self.model.now;
        if left_of(&state_of(&self.model, &self.keys), now) == found {
            return Ok(());
        }
        if left_of(&state_of(&before, &self.keys), now) != found {
            return Err(format!("{operation:?}, which found no room, left {}", show(&found)));
        }
        self.model = before;
        self.model.now = now;
        self.states.pop();
        self.marks.pop();
        Ok(())
    }

    /// A step that makes calls, and what happened within one of them.
    fn call<S: Subject>(&mut self, subject: &S, store: &mut S::Live, step: &Step) -> Result<(), String> {
        // What returned before is what it makes durable.
        let before = self.states.len() - 1;
        let called = match step {
            Step::Commit => store.commit(),
            Step::Compact => store.compact(),
            Step::Stretch => store.compact_stretch(),
            Step::Image => store.image(),
            Step::Drop(eighths) => store.drop_oldest(*eighths),
            other => return Err(format!("{other:?} makes no calls")),
        };
        if let Some(happened) = store.interrupted() {
            self.happened(happened)?;
        }
        let is_done = self.unless_refused(&format!("{step:?}"), called)?.is_some();
        // An image draws lines, if the store knows of images at all.
        if is_done && (matches!(step, Step::Commit) || matches!(step, Step::Image) && subject.takes_images()) {
            self.floor = before;
        }
        self.mark();
        if matches!(step, Step::Drop(_)) { self.see_what_was_dropped(store) } else { Ok(()) }
    }

    /// Of an operation that happened within a call, at that moment.
    fn happened(&mut self, Happened { at, operation, outcome }: Happened) -> Result<(), String> {
        match outcome {
            Ok(outcome) => {
                let before = self.model.clone();
                let mut expected = self.model.apply(&operation);
                // Its key may be one that is being dropped.
                if outcome != expected && self.is_lossy {
                    self.model = before.clone();
                    self.keys.iter().filter(|key| operation.is_on(key)).for_each(|key| self.model.drop(key));
                    expected = self.model.apply(&operation);
                }
                if outcome != expected {
                    return Err(format!("{operation:?} within a call gave {outcome:?}, not {expected:?}"));
                }
                self.states.push(self.state_after(&operation, &before));
                self.marks.push(Mark { calls: at, floor: self.floor, ceiling: self.states.len() - 1, now: self.model.now });
                Ok(())
            }
            // From within what the store itself runs.
            Err(why) if why.starts_with("Invalid") => Ok(()),
            Err(why) => Err(format!("{operation:?} within a call failed: {why}")),
        }
    }

    /// The store after it, if it is open still.
    fn step<S: Subject>(&mut self, subject: &S, layout: Layout, mut store: S::Live, step: &Step) -> Result<Option<S::Live>, String> {
        match step {
            Step::Do(operation) => self.operation(&mut store, operation, subject.commits_each())?,
            Step::Commit | Step::Compact | Step::Stretch | Step::Image | Step::Drop(_) => self.call(subject, &mut store, step)?,
            Step::During(step, nth, operation) => {
                // Which draws no line of its own, while one is drawn.
                if !subject.commits_each() {
                    store.interrupt(*nth, operation);
                }
                self.call(subject, &mut store, step)?;
            }
            Step::Double => store.double().map_err(|e| format!("the index does not double: {e}"))?,
            Step::Shrink => {
                self.unless_refused("shrinking the index", store.shrink())?;
                self.mark();
            }
            Step::Spill(evicts) => {
                self.unless_refused("writing out what is in memory", store.spill(*evicts))?;
                self.mark();
            }
            Step::Hold => {
                let state = state_of(&self.model, &self.keys);
                store.hold(&self.keys, &state).map_err(|e| format!("what is held does not hold: {e}"))?;
            }
            Step::Reopen => {
                if self.unless_refused("close", store.close())?.is_none() {
                    self.mark();
                    return Ok(None);
                }
                self.promised();
                // What an opening does without room is another question (`faults`).
                let scarcity = self.storage.set_scarcity(None);
                store = subject.open(layout, self.storage).map_err(|e| format!("does not reopen: {e}"))?;
                let found = store.state(&self.keys).map_err(|e| format!("does not read after reopening: {e}"))?;
                self.storage.set_scarcity(scarcity);
                // A state of an earlier life may have ended in part.
                let last = left_of(&self.states[self.states.len() - 1], self.model.now);
                if !is_of(&found, &last, self.is_lossy) {
                    return Err(format!("reopened in order, found {}", show(&found)));
                }
                self.model = model_of(layout, &self.keys, &found, self.model.now);
            }
        }
        Ok(Some(store))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(value: Option<u8>) -> State {
        vec![value.map(|value| Held::forever(vec![value]))]
    }

    fn past(values: &[Option<u8>], floor: usize, is_lossy: bool) -> Past {
        Past { states: values.iter().copied().map(state).collect(), floor, now: 0, is_lossy, is_crowded: false }
    }

    #[test]
    fn what_may_drop_keys_shows_no_older_value() {
        let past = past(&[None, Some(1), Some(2)], 2, true);
        assert_eq!((past.find(&state(None)), past.find(&state(Some(2)))), (Ok(2), Ok(2)));
        assert!(past.find(&state(Some(1))).unwrap_err().contains("LOST"));
    }

    #[test]
    fn versions_are_the_newest_without_a_gap() {
        let mut past = past(&[None, Some(1), None, Some(2), Some(3)], 3, false);
        let judged = |past: &Past, value, versions: &[Option<u8>]| {
            let versions = vec![versions.iter().map(|version| version.map(|value| vec![value])).collect()];
            past.judge(&Found { state: state(value), versions }).is_ok()
        };
        assert!(judged(&past, Some(3), &[Some(3)]) && judged(&past, Some(2), &[Some(2), None, Some(1), None]));
        assert!(judged(&past, Some(3), &[Some(3), Some(2), None, Some(1)]));
        assert!(!judged(&past, Some(3), &[]) && !judged(&past, Some(3), &[Some(2)]) && !judged(&past, Some(3), &[Some(3), None]));
        assert!(!judged(&past, Some(2), &[Some(3), Some(2)]) && !judged(&past, Some(1), &[Some(1)]));
        past.is_crowded = true;
        assert!(judged(&past, Some(3), &[Some(3), Some(1)]) && judged(&past, Some(3), &[Some(3), None]));
        assert!(
            !judged(&past, Some(3), &[Some(2)]) && !judged(&past, Some(3), &[Some(3), Some(1), Some(2)]) && !judged(&past, Some(3), &[])
        );
    }
}
