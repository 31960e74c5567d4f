//! Power cuts at every call, checked against an oracle.
//!
//! The theory: after a cut a store must open, and its contents must be the contents after some first part of the operations, a
//! part that holds everything that had returned when the last successful commit was called. So one run of a small random program
//! ([`program`]) on a [`SimStorage`] gives a film of its disk and, for each moment of it, a first and a last allowed state
//! ([`life`]). For each moment the disk comes back in many ways; each is opened and compared ([`explore`]). Some of those
//! openings go on to live, write and be cut in their turn, three deep: recovery itself is cut, and what it left behind must
//! not come back from the dead later. [`faults`] does the same with calls that fail, [`rot`] with bytes that change.
//!
//! A disk image seen before is not opened again (recovery is a function of the image), only judged again.

pub mod explore;
pub mod faults;
pub mod life;
pub mod program;
pub mod rot;
pub mod store;

pub use explore::{Figures, Limits, Violation, check, shrink};
pub use program::{Program, Step};

use crate::model::{Bytes, Layout, Operation, Outcome};
use crate::storage::SimStorage;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A kind of store.
pub trait Subject: Sync {
    /// An open store.
    type Live: Live;

    /// Whether each operation is durable when it returns, without a commit.
    fn commits_each(&self) -> bool {
        false
    }

    /// Whether there are images, which make durable all that returned before them.
    fn takes_images(&self) -> bool {
        false
    }

    /// The program of a seed, made of what such a store can do.
    fn program(&self, seed: u64) -> Program {
        Program::random(seed)
    }

    /// Opens what is there, or begins.
    ///
    /// # Errors
    /// The store's, in words.
    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<Self::Live, String>;

    /// Whether a look at the files at rest tells of damage; `None` if such a store has no such look.
    fn tells_damage(&self, _storage: &SimStorage) -> Option<bool> {
        None
    }

    /// What a new store holds for these keys that took over what is whole of this one; `None` if there is no such way.
    ///
    /// # Errors
    /// The store's, in words.
    fn salvaged(&self, _layout: Layout, _storage: &SimStorage, _keys: &[Bytes]) -> Option<Result<State, String>> {
        None
    }
}

/// An open store.
pub trait Live {
    /// Carries out an operation on one key.
    ///
    /// # Errors
    /// The store's, in words.
    fn apply(&mut self, operation: &Operation) -> Result<Outcome, String>;

    /// Makes all that returned durable.
    ///
    /// # Errors
    /// The store's, in words.
    fn commit(&mut self) -> Result<(), String>;

    /// Gives back space, if the store can. Changes nothing that can be read, and promises nothing.
    ///
    /// # Errors
    /// The store's, in words.
    fn compact(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Gives back some space, if the store can, perhaps with the next line only. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words.
    fn compact_stretch(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Gives back all space that was taken by now, but for that of what lives. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words, or what is taken still.
    fn give_back_all(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Takes an image, if the store does. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words.
    fn image(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Doubles the index, if the store has one. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words.
    fn double(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Shrinks the index, if the store has one. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words.
    fn shrink(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Writes out what is in memory, and lets go of it if it `evicts`, if the store can. Changes nothing that can be read, and promises
    /// nothing.
    ///
    /// # Errors
    /// The store's, in words.
    fn spill(&mut self, _evicts: bool) -> Result<(), String> {
        Ok(())
    }

    /// Drops the oldest so many eighths of what it holds, if the store may. What was dropped is not there any more, and may be again after
    /// a crash, unless it was changed or deleted meanwhile.
    ///
    /// # Errors
    /// The store's, in words.
    fn drop_oldest(&mut self, _eighths: u64) -> Result<(), String> {
        Ok(())
    }

    /// The newest versions of each key, the newest first, or nothing at all if the store keeps none; `None` is a key's absence.
    ///
    /// # Errors
    /// The store's, in words.
    fn versions(&mut self, _keys: &[Bytes]) -> Result<Vec<Versions>, String> {
        Ok(Vec::new())
    }

    /// Has an operation happen within a call of the next step to the storage: the `nth` that reads or changes something.
    fn interrupt(&mut self, _nth: u64, _operation: &Operation) {}

    /// What became of it, if it happened; else it will not.
    fn interrupted(&mut self) -> Option<Happened> {
        None
    }

    /// Holds what is there now, if the store can; or, if something is held, sees to it that it is what was there, and lets it go.
    ///
    /// # Errors
    /// The store's, in words, or what there is that was not there, or the other way round.
    fn hold(&mut self, _keys: &[Bytes], _state: &State) -> Result<(), String> {
        Ok(())
    }

    /// Closes in order, which makes all that returned durable.
    ///
    /// # Errors
    /// The store's, in words.
    fn close(self) -> Result<(), String>;

    /// What the keys hold.
    ///
    /// # Errors
    /// The store's, in words.
    fn state(&mut self, keys: &[Bytes]) -> Result<State, String> {
        let read = |key: &Bytes| match self.apply(&Operation::Get(key.clone()))? {
            Outcome::Value(Some(value)) => Ok(Some(Held { value, end: self.end(key)? })),
            Outcome::Value(None) => Ok(None),
            other => Err(format!("a read gave {other:?}")),
        };
        keys.iter().map(read).collect()
    }

    /// What scans show, which is just what the keys hold.
    ///
    /// # Errors
    /// The store's, in words, or what they show besides, or do not.
    fn scan(&mut self, _keys: &[Bytes], _state: &State) -> Result<(), String> {
        Ok(())
    }

    /// When a key that is there ends, in milliseconds since the beginning; [`NEVER`] in a store whose keys do not.
    ///
    /// # Errors
    /// The store's, in words.
    fn end(&mut self, _key: &Bytes) -> Result<u64, String> {
        Ok(NEVER)
    }
}

/// An operation within a call to the storage.
#[derive(Debug)]
pub struct Happened {
    /// When, as a moment of the film.
    pub at: usize,
    /// Which.
    pub operation: Operation,
    /// What it gave. The store may refuse it there.
    pub outcome: Result<Outcome, String>,
}

/// The end of what does not end.
pub const NEVER: u64 = u64::MAX;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The value.
    pub value: Bytes,
    /// Until when, in milliseconds since the beginning.
    pub end: u64,
}

impl Held {
    /// A value without an end.
    pub fn forever(value: Bytes) -> Held {
        Held { value, end: NEVER }
    }
}

/// What each key of a program holds.
pub type State = Vec<Option<Held>>;

/// The versions of a key.
pub type Versions = Vec<Option<Bytes>>;

/// What is left of a state by then.
pub fn left_of(state: &State, now: u64) -> State {
    state.iter().map(|held| held.clone().filter(|held| held.end > now)).collect()
}

/// What a call gives, a panic being an error.
fn guarded<R>(call: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("PANIC: {}", text.unwrap_or("without words")))
    })
}

/// Opens a storage and reads all keys.
fn recovered<S: Subject>(subject: &S, layout: Layout, storage: &SimStorage, keys: &[Bytes]) -> Result<State, String> {
    guarded(|| read(&mut opened(subject, layout, storage)?, keys))
}

/// What the keys of a sound storage hold, and held.
struct Found {
    state: State,
    versions: Vec<Versions>,
}

/// The same of a sound storage, where scans show what keys hold.
fn scanned<S: Subject>(subject: &S, layout: Layout, storage: &SimStorage, keys: &[Bytes]) -> Result<Found, String> {
    guarded(|| {
        let mut store = opened(subject, layout, storage)?;
        let state = read(&mut store, keys)?;
        store.scan(keys, &state).map_err(|e| format!("does not scan: {e}"))?;
        let versions = store.versions(keys).map_err(|e| format!("does not tell versions: {e}"))?;
        Ok(Found { state, versions })
    })
}

/// Sees to it that a sound storage, whatever a cut has left in it, gives space back, and nothing else.
fn given_back<S: Subject>(subject: &S, layout: Layout, storage: &SimStorage, keys: &[Bytes]) -> Result<(), String> {
    guarded(|| {
        let mut store = opened(subject, layout, storage)?;
        let state = read(&mut store, keys)?;
        store.give_back_all().map_err(|e| format!("does not give back: {e}"))?;
        let left = read(&mut store, keys)?;
        if left == state { Ok(()) } else { Err(format!("gave back more than space: {} became {}", show(&state), show(&left))) }
    })
}

fn opened<S: Subject>(subject: &S, layout: Layout, storage: &SimStorage) -> Result<S::Live, String> {
    subject.open(layout, storage).map_err(|e| format!("does not open: {e}"))
}

fn read(store: &mut impl Live, keys: &[Bytes]) -> Result<State, String> {
    store.state(keys).map_err(|e| format!("does not read: {e}"))
}

/// A state, for people.
fn show(state: &State) -> String {
    let keys: Vec<String> = state
        .iter()
        .map(|held| match held {
            None => "-".into(),
            Some(Held { value, end: NEVER }) => crate::model::brief(value),
            Some(Held { value, end }) => format!("{} until {end}", crate::model::brief(value)),
        })
        .collect();
    format!("[{}]", keys.join(" "))
}
