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

    /// Opens what is there, or begins.
    ///
    /// # Errors
    /// The store's, in words.
    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<Self::Live, String>;
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

    /// Takes an image, if the store does. Changes nothing that can be read.
    ///
    /// # Errors
    /// The store's, in words.
    fn image(&mut self) -> Result<(), String> {
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
            Outcome::Value(value) => Ok(value),
            other => Err(format!("a read gave {other:?}")),
        };
        keys.iter().map(read).collect()
    }
}

/// What each key of a program holds.
pub type State = Vec<Option<Bytes>>;

/// What a call gives, a panic being an error.
fn guarded<R>(call: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("PANIC: {}", text.unwrap_or("without words")))
    })
}

/// Opens a storage and reads all keys.
fn recovered<S: Subject>(subject: &S, layout: Layout, storage: &SimStorage, keys: &[Bytes]) -> Result<State, String> {
    guarded(|| {
        subject.open(layout, storage).map_err(|e| format!("does not open: {e}"))?.state(keys).map_err(|e| format!("does not read: {e}"))
    })
}

/// A state, for people.
fn show(state: &State) -> String {
    let keys: Vec<String> = state.iter().map(|value| value.as_ref().map_or("-".into(), |v| crate::model::brief(v))).collect();
    format!("[{}]", keys.join(" "))
}
