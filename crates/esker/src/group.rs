//! Group commit: who waits for which line, and who draws it.
//!
//! One line is drawn at a time; whoever asks meanwhile waits for the next one, and all who wait share it. So there are two gates
//! (`gate.rs`), for lines of even and of odd number: at a line's end one of those who wait for the next is woken, who sees to it, and then
//! all whose line it was, together.
//!
//! **Company** (`company.rs`): a line may wait a little for those who came right back the last time. Whoever makes it complete draws it.
//! One of the others, the *herald*, sleeps with an end: the line is drawn by him if nobody comes for some time.

use crate::company::Company;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::waiting::{self, Condvar, Mutex, MutexGuard};
use crate::sync::{Rule, broken, thread_local};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    // The store that this thread waited for last, and the line.
    static LAST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[derive(Default)]
pub(crate) struct Group {
    progress: Mutex<Progress>,
    /// Where those sleep who wait for a line of even number, and of odd.
    gates: [Gate; 2],
    /// `Progress::ended`, for those who were woken.
    ended: AtomicU64,
    /// Where the herald sleeps.
    herald: Condvar,
    /// For the one who closes.
    at_rest: Condvar,
}

#[derive(Default)]
struct Progress {
    started: u64,
    ended: u64,
    is_drawing: bool,
    /// The last line that failed, and why.
    failed: Option<(u64, Error)>,
    /// At each gate, and the herald: at least as many as there are.
    sleepers: [u32; 2],
    has_herald: bool,
    company: Company,
    /// The store closes: no more lines but its last one.
    is_closing: bool,
}

impl Progress {
    /// Why the line failed, if it did: where the store goes on by itself, at its gate are those of another by now.
    fn failure_of(&self, line: u64) -> Option<&Error> {
        self.failed.as_ref().filter(|(last, _)| *last >= line && !broken(Rule::FailedLinesAreTold)).map(|(_, error)| error)
    }

    fn is_over(&self, line: u64) -> bool {
        self.ended >= line || self.failure_of(line).is_some()
    }
}

/// Of those who wait for this line.
fn gate_of(line: u64) -> usize {
    (line % 2) as usize
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn wake_everybody(&self, progress: MutexGuard<'_, Progress>) {
        self.gates.iter().for_each(Gate::change);
        drop(progress);
        self.gates.iter().for_each(Gate::wake_all);
        self.herald.notify_all();
    }

    /// Sleeps until the line `wanted` has ended, or for so long that no more company need be waited for: then true.
    fn wait_as_herald<'g>(&'g self, mut progress: MutexGuard<'g, Progress>, wanted: u64) -> (MutexGuard<'g, Progress>, bool) {
        let side = gate_of(wanted);
        progress.has_herald = true;
        let (others, patience) = (progress.sleepers[side], progress.company.patience());
        let (mut progress, is_late) = match broken(Rule::HeraldGoesOn) {
            false => waiting::for_long(&self.progress, &self.herald, progress, patience),
            true => (self.herald.wait(progress).unwrap_or_else(|e| e.into_inner()), false),
        };
        if progress.is_over(wanted) {
            // The next line may have another one by now.
            return (progress, false);
        }
        progress.has_herald = false;
        let is_alone = is_late && !progress.is_drawing && progress.sleepers[side] <= others;
        if is_alone {
            progress.company.waited_in_vain();
        }
        (progress, is_alone)
    }
}

impl Engine {
    /// Returns when everything that had returned before the call is durable.
    pub(crate) fn commit(&self) -> Result<()> {
        // Refuses closed stores and calls from inside a closure, which the drain would wait for.
        drop(self.epochs.pin()?);
        if self.is_in_memory() {
            return Err(Error::invalid("a store in memory has no device that could keep it"));
        }
        self.guarded(|| self.go_on())?;
        let group = &self.commits.group;
        let mut progress = group.lock();
        let wanted = progress.started + 1;
        let side = gate_of(wanted);
        let (store, last) = LAST.with(Cell::get);
        let came_right_back = store == self.epochs.id() && last + 1 >= progress.started;
        progress.company.asks(side, came_right_back, waiting::now());
        let mut is_alone = false;
        loop {
            if let Err(error) = self.check_writable() {
                // Nobody may draw a line any more, and end the others' sleep.
                group.wake_everybody(progress);
                return Err(error);
            }
            if progress.ended >= wanted {
                break;
            }
            if let Some(error) = progress.failure_of(wanted) {
                return Err(error.clone());
            }
            if progress.is_closing {
                return Err(Error::Closed);
            }
            let others = progress.sleepers[side];
            if !progress.is_drawing && (is_alone || progress.company.is_enough(others + 1)) {
                progress.is_drawing = true;
                progress.started += 1;
                drop(progress);
                let begun = waiting::now();
                // If the device panics those who wait are told.
                let result = self.guarded(|| self.draw_line());
                self.line_ended(&result, waiting::now().duration_since(begun));
                result?;
                progress = group.lock();
                continue;
            }
            progress.sleepers[side] += 1;
            if progress.is_drawing || progress.has_herald {
                let (gate, value) = (&group.gates[side], group.gates[side].value());
                drop(progress);
                gate.sleep(value);
                is_alone = false;
                // Acquire: pairs with the Release in `line_ended`; the line is durable.
                if group.ended.load(Acquire) >= wanted {
                    break;
                }
                progress = group.lock();
            } else {
                (progress, is_alone) = group.wait_as_herald(progress, wanted);
            }
            // Once its line has ended, the gate counts those of another.
            if !progress.is_over(wanted) {
                progress.sleepers[side] = progress.sleepers[side].saturating_sub(1);
            }
        }
        LAST.with(|last| last.set((self.epochs.id(), wanted)));
        Ok(())
    }

    fn line_ended(&self, result: &Result<()>, took: Duration) {
        let group = &self.commits.group;
        let mut progress = group.lock();
        progress.is_drawing = false;
        let (own, next) = (gate_of(progress.started), gate_of(progress.started + 1));
        match result {
            Ok(()) => {
                progress.ended = progress.started;
                group.ended.store(progress.ended, Release);
            }
            Err(error) => progress.failed = Some((progress.started, error.clone())),
        }
        let (are_own, next_sleepers) = (std::mem::take(&mut progress.sleepers[own]) > 0, progress.sleepers[next]);
        progress.company.line_ended(own, next_sleepers, took, waiting::now());
        // The herald waits for this line, if there is one, and may sleep for some time yet.
        let has_herald = progress.has_herald;
        progress.has_herald &= broken(Rule::HeraldEndsWithLine);
        let is_closing = progress.is_closing;
        if !broken(Rule::GatesChange) {
            group.gates.iter().for_each(Gate::change);
        }
        drop(progress);
        match result {
            // First who sees to the next line.
            Ok(()) if next_sleepers > 0 => group.gates[next].wake_one(),
            Ok(()) => {}
            // All are told.
            Err(_) => group.gates[next].wake_all(),
        }
        if are_own {
            group.gates[own].wake_all();
        }
        if has_herald {
            group.herald.notify_all();
        }
        if is_closing {
            group.at_rest.notify_all();
        }
    }

    /// A line for what compaction moved; false if the store was closed meanwhile.
    pub(crate) fn draw_line_now(&self) -> Result<bool> {
        match self.commit() {
            Ok(()) => Ok(true),
            Err(Error::Closed) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for a line that is being drawn, and lets nobody begin another.
    pub(crate) fn end_commits(&self) {
        let group = &self.commits.group;
        let mut progress = group.lock();
        progress.is_closing = true;
        while progress.is_drawing {
            progress = group.at_rest.wait(progress).unwrap_or_else(|e| e.into_inner());
        }
        group.wake_everybody(progress);
    }
}
