//! Telling whoever feeds a load how much of it can be forgotten.
//!
//! A number is printed only when that many rows are durable: with `always` each call of the store returns so; with an interval
//! the store draws lines by itself, but does not tell when, so the load asks for one of its own, which costs next to
//! nothing where the store was quicker; and a store that was closed keeps everything.

use std::time::{Duration, Instant};

use esker::Durability;

use crate::failure::Outcome;
use crate::out;
use crate::store::Bytes;

/// When to print, and what was printed last.
pub(crate) struct Acknowledgements {
    wanted: bool,
    durability: Durability,
    last: Instant,
    printed: Option<u64>,
}

impl Acknowledgements {
    /// Silent unless `wanted`.
    pub(crate) fn new(wanted: bool, durability: Durability) -> Self {
        Self { wanted, durability, last: Instant::now(), printed: None }
    }

    /// So many rows were stored; now and then they are durable, too.
    pub(crate) fn stored(&mut self, store: &Bytes, rows: u64) -> Outcome {
        if !self.wanted {
            return Ok(());
        }
        match self.durability {
            Durability::None => Ok(()),
            Durability::Always => self.print(rows),
            Durability::Every(interval) => self.commit_if_due(store, rows, interval),
        }
    }

    fn commit_if_due(&mut self, store: &Bytes, rows: u64, interval: Duration) -> Outcome {
        if self.last.elapsed() < interval {
            return Ok(());
        }
        store.commit()?;
        self.last = Instant::now();
        self.print(rows)
    }

    /// The store was closed in order.
    pub(crate) fn closed(&mut self, rows: u64) -> Outcome {
        if self.wanted && self.printed != Some(rows) { self.print(rows) } else { Ok(()) }
    }

    fn print(&mut self, rows: u64) -> Outcome {
        self.printed = Some(rows);
        out::line(rows.to_string())
    }
}
