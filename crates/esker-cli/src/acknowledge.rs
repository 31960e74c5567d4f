//! Telling whoever feeds a load how much of it can be forgotten.
//!
//! A number is printed only when that many rows are durable: with `always` each call of the store returns so; with an interval
//! the store draws lines by itself, but does not tell when, so a thread beside the load asks for one of its own, which costs next to
//! nothing where the store was quicker, and goes on while the input is silent; and a store that was closed keeps everything. Where that
//! thread fails it ends the load as an interrupt does: whoever waits for a number before he sends more would wait for good.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use esker::Durability;

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out;
use crate::store::Bytes;

/// Shorter intervals would only keep a processor busy.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// When to print, and what was printed last.
pub(crate) struct Acknowledgements {
    wanted: bool,
    durability: Durability,
    interrupt: Interrupt,
    printed: Option<u64>,
}

/// What a load calls with the number of rows stored so far, after each.
pub(crate) type Tell<'a> = dyn FnMut(u64) -> Outcome + 'a;

impl Acknowledgements {
    /// Silent unless `wanted`. `interrupt` is what ends the load.
    pub(crate) fn new(wanted: bool, durability: Durability, interrupt: &Interrupt) -> Self {
        Self { wanted, durability, interrupt: interrupt.clone(), printed: None }
    }

    /// Does `load`, and prints meanwhile.
    pub(crate) fn during<T>(&mut self, store: &Bytes, load: impl FnOnce(&mut Tell<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
        match self.durability {
            Durability::Every(interval) if self.wanted => self.now_and_then(store, interval.max(INTERVAL_MIN), load),
            Durability::Always if self.wanted => load(&mut |rows| self.print(rows).map_err(unheard)),
            _ => load(&mut |_| Ok(())),
        }
    }

    fn now_and_then<T>(
        &mut self,
        store: &Bytes,
        interval: Duration,
        load: impl FnOnce(&mut Tell<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (stored, printed, interrupt) = (&AtomicU64::new(0), &AtomicU64::new(0), &self.interrupt);
        let (loaded, told) = thread::scope(|scope| {
            let (end, ended) = mpsc::channel();
            let beside = scope.spawn(move || tell(store, interval, stored, printed, &ended).inspect_err(|_| interrupt.raise()));
            let loaded = load(&mut |rows| {
                // Release: what is committed for this number has these rows.
                stored.store(rows, Ordering::Release);
                Ok(())
            });
            drop(end);
            (loaded, beside.join().unwrap_or_else(|_| Err(Failure::new("what tells of durable rows panicked"))))
        });
        // Also where it failed later.
        self.printed = Some(printed.load(Ordering::Acquire)).filter(|rows| *rows > 0);
        match (loaded, told) {
            (Err(ended), Err(why)) if ended.is_interrupt() => Err(why),
            (loaded, told) => loaded.and_then(|loaded| told.map(|()| loaded)),
        }
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

/// Each interval, until the other side is dropped. `printed`: so many rows are known to be durable.
fn tell(store: &Bytes, interval: Duration, stored: &AtomicU64, printed: &AtomicU64, ended: &Receiver<()>) -> Outcome {
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let rows = stored.load(Ordering::Acquire);
        if rows > printed.load(Ordering::Relaxed) {
            store.commit()?;
            printed.store(rows, Ordering::Release);
            out::line(rows.to_string()).map_err(unheard)?;
        }
    }
    Ok(())
}

/// Whoever feeds a load and no longer listens has not seen enough: the rest is missing.
fn unheard(why: Failure) -> Failure {
    match why {
        Failure::OutputClosed => Failure::new("nobody reads the acknowledgements"),
        why => why,
    }
}
