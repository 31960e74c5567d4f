//! Telling whoever feeds a load how much of it can be forgotten.
//!
//! A number is printed only when that many rows are durable: with `always` each call of the store returns so; with an interval
//! the store draws lines by itself, but does not tell when, so a thread beside the load asks for one of its own, which costs next to
//! nothing where the store was quicker, and goes on while the input is silent; and a store that was closed keeps everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use esker::Durability;

use crate::failure::{Failure, Outcome};
use crate::out;
use crate::store::Bytes;

/// Shorter intervals would only keep a processor busy.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// When to print, and what was printed last.
pub(crate) struct Acknowledgements {
    wanted: bool,
    durability: Durability,
    printed: Option<u64>,
}

/// What a load calls with the number of rows stored so far, after each.
pub(crate) type Tell<'a> = dyn FnMut(u64) -> Outcome + 'a;

impl Acknowledgements {
    /// Silent unless `wanted`.
    pub(crate) fn new(wanted: bool, durability: Durability) -> Self {
        Self { wanted, durability, printed: None }
    }

    /// Does `load`, and prints meanwhile.
    pub(crate) fn during<T>(&mut self, store: &Bytes, load: impl FnOnce(&mut Tell<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
        match self.durability {
            Durability::Every(interval) if self.wanted => self.now_and_then(store, interval.max(INTERVAL_MIN), load),
            Durability::Always if self.wanted => load(&mut |rows| self.print(rows)),
            _ => load(&mut |_| Ok(())),
        }
    }

    fn now_and_then<T>(
        &mut self,
        store: &Bytes,
        interval: Duration,
        load: impl FnOnce(&mut Tell<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let stored = &AtomicU64::new(0);
        thread::scope(|scope| {
            let (end, ended) = mpsc::channel();
            let mut beside = Some(scope.spawn(move || tell(store, interval, stored, &ended)));
            let loaded = load(&mut |rows| {
                // Release: what is committed for this number has these rows.
                stored.store(rows, Ordering::Release);
                // By itself the thread ends with a failure.
                beside.take_if(|beside| beside.is_finished()).map_or(Ok(()), |beside| join(beside).map(drop))
            });
            drop(end);
            let told = beside.map_or(Ok(None), join).map(|printed| self.printed = printed);
            // Of two failures the load's.
            let loaded = loaded?;
            told.map(|()| loaded)
        })
    }

    /// The load failed or was interrupted behind so many rows.
    pub(crate) fn ended(&mut self, store: &Bytes, rows: u64) -> Outcome {
        if self.wanted {
            store.commit()?;
        }
        self.closed(rows)
    }

    /// The last number: so many rows are durable, whatever comes after.
    pub(crate) fn printed(&self) -> Option<u64> {
        self.printed
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

/// Each interval, until the other side is dropped. The number that was printed last.
fn tell(store: &Bytes, interval: Duration, stored: &AtomicU64, ended: &Receiver<()>) -> Result<Option<u64>, Failure> {
    let mut printed = None;
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let rows = stored.load(Ordering::Acquire);
        if rows > printed.unwrap_or(0) {
            store.commit()?;
            out::line(rows.to_string())?;
            printed = Some(rows);
        }
    }
    Ok(printed)
}

fn join(beside: ScopedJoinHandle<'_, Result<Option<u64>, Failure>>) -> Result<Option<u64>, Failure> {
    beside.join().unwrap_or_else(|_| Err(Failure::new("what tells of durable rows panicked")))
}
