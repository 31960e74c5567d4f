//! The watchdog: it names the thread that keeps a drain waiting.
//!
//! A pin lasts as long as its operation, and what of one is not the store's own is short foreign code: the closure of an `rmw` above all.
//! One that sleeps holds up everything that drains: eviction, commit lines, closing. So a drain that waits notes for whom and since when,
//! and `Stats::warnings` says it.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Waits below this are an operation's usual length, or a thread that had to give way to another.
const LONG: Duration = Duration::from_millis(100);

/// The names of threads, by their numbers.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes the calling thread's name.
pub(crate) fn register(number: usize) {
    let thread = std::thread::current();
    let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), ToOwned::to_owned);
    let mut names = NAMES.lock().unwrap_or_else(|e| e.into_inner());
    let length = names.len().max(number + 1);
    names.resize(length, String::new());
    names[number] = name;
}

/// For whom drains wait.
#[derive(Default)]
pub(crate) struct Watch(Mutex<Vec<Wait>>);

/// For the thread of that number, and since when.
type Wait = (usize, Instant);

impl Watch {
    /// A drain waits for this thread.
    pub(crate) fn waiting(&self, number: usize) -> Waiting<'_> {
        let wait = (number, Instant::now());
        self.waits().push(wait);
        Waiting(self, wait)
    }

    fn waits(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The thread that a drain has been waiting for longest, and how long, if that is long.
    pub(crate) fn long_pin(&self) -> Option<(String, Duration)> {
        let (number, since) = *self.waits().iter().min_by_key(|(_, since)| *since)?;
        let name = NAMES.lock().unwrap_or_else(|e| e.into_inner()).get(number).cloned().unwrap_or_default();
        Some((name, since.elapsed())).filter(|(_, waited)| *waited >= LONG)
    }
}

/// While this lives, a drain waits.
pub(crate) struct Waiting<'a>(&'a Watch, Wait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.waits();
        if let Some(ours) = waits.iter().position(|wait| *wait == self.1) {
            waits.swap_remove(ours);
        }
    }
}
