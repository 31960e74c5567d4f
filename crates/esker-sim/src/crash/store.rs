//! Esker itself as the subject: the smallest budget, no driver thread, so that every call is made by the program.

use super::{Live, Subject};
use crate::model::{Layout, Operation, Outcome};
use crate::storage::SimStorage;
use crate::subject::{self, Place};
use esker::{Durability, Error};
use std::sync::Arc;

const BUDGET_BYTES: u64 = 16 << 20;

/// The store, with this promise about operations.
pub struct Esker(pub Durability);

/// An open one.
pub struct LiveEsker {
    store: Box<dyn subject::Subject>,
    layout: Layout,
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

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveEsker, String> {
        let place = Place::Storage(Arc::new(storage.clone()), self.0);
        Ok(LiveEsker { store: subject::open(layout, BUDGET_BYTES, &place).map_err(words)?, layout })
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

    fn image(&mut self) -> Result<(), String> {
        self.store.save_index().map_err(words)
    }

    fn close(self) -> Result<(), String> {
        self.store.close().map_err(words)
    }
}
