//! Esker itself as the subject: the smallest budget, no driver thread, so that every call is made by the program.

use super::{Held, Live, NEVER, Program, State, Subject};
use crate::model::{Bytes, Layout, Operation, Outcome};
use crate::storage::SimStorage;
use crate::subject::{self, Place};
use esker::{Durability, Error, Options, Strategy};
use std::ops::ControlFlow;
use std::sync::Arc;

const BUDGET_BYTES: u64 = 16 << 20;

/// The store, with this promise about operations.
pub struct Esker(pub Durability);

/// An open one.
pub struct LiveEsker {
    store: Box<dyn subject::Subject>,
    layout: Layout,
    storage: SimStorage,
}

fn words(error: Error) -> String {
    format!("{error:?}")
}

impl Subject for Esker {
    type Live = LiveEsker;

    fn commits_each(&self) -> bool {
        matches!(self.0, Durability::Always)
    }

    fn takes_images(&self) -> bool {
        true
    }

    fn program(&self, seed: u64) -> Program {
        match seed % 8 {
            0 | 1 => Program::random(seed),
            4 | 5 => Program::scarce(seed),
            _ => Program::ending(seed),
        }
    }

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveEsker, String> {
        let place = Place::Storage(Arc::new(storage.clone()), self.0);
        let store = subject::open_by(layout, Options::new().memory(BUDGET_BYTES), &place, storage.clock()).map_err(words)?;
        Ok(LiveEsker { store, layout, storage: storage.clone() })
    }

    fn tells_damage(&self, storage: &SimStorage) -> Option<bool> {
        // What is no store at all any more is an error.
        Some(!esker::verify_in(Arc::new(storage.clone()), |_, _| ControlFlow::Continue(())).is_ok_and(|found| found.is_sound()))
    }

    fn salvaged(&self, layout: Layout, storage: &SimStorage, keys: &[Bytes]) -> Option<Result<State, String>> {
        let into = Options::new().memory(BUDGET_BYTES).background(false);
        let store = subject::open_by(layout, into, &Place::Memory, storage.clock()).map_err(words);
        Some(store.and_then(|store| {
            store.salvage(Arc::new(storage.clone())).map_err(words)?;
            LiveEsker { store, layout, storage: storage.clone() }.state(keys)
        }))
    }
}

impl Live for LiveEsker {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome, String> {
        subject::apply(&*self.store, self.layout, operation).map_err(words)
    }

    fn commit(&mut self) -> Result<(), String> {
        self.store.commit().map_err(words)
    }

    fn compact(&mut self) -> Result<(), String> {
        self.store.compact().map_err(words)
    }

    fn compact_stretch(&mut self) -> Result<(), String> {
        self.store.compact_stretch().map_err(words)
    }

    fn image(&mut self) -> Result<(), String> {
        self.store.save_index().map_err(words)
    }

    fn scan(&mut self, keys: &[Bytes], state: &State) -> Result<(), String> {
        let there = |(key, held): (&Bytes, &Option<Held>)| Some((key.clone(), held.as_ref()?.value.clone()));
        let mut pairs: Vec<_> = keys.iter().zip(state).filter_map(there).collect();
        pairs.sort_unstable();
        for strategy in [Strategy::ByLog, Strategy::ByIndex] {
            let shown = self.store.pairs(strategy).map_err(words)?;
            if shown != pairs {
                return Err(format!("{strategy:?} shows {} pairs, which are not the {} there", shown.len(), pairs.len()));
            }
        }
        Ok(())
    }

    fn end(&mut self, key: &Bytes) -> Result<u64, String> {
        let left = self.store.ttl(key).map_err(words)?.ok_or("a key that was just there has no end")?;
        Ok(left.map_or(NEVER, |left| self.storage.now() + left))
    }

    fn close(self) -> Result<(), String> {
        self.store.close().map_err(words)
    }
}
