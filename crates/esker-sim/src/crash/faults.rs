//! Each call fails once, and for ever.
//!
//! The theory: an operation that failed happened or did not, and nobody knows which; so the oracle keeps both histories until something
//! seen tells them apart. An operation that was refused without a call to the storage did not happen. Whatever the store says after a
//! failure must fit one history; and once the fault is gone, the store opens, whether the process was merely started again or the power
//! went too, and holds what was acknowledged. Where a write had no room once, the store may go on by itself: what it acknowledges then
//! counts.

use super::explore::mix;
use super::life::{Past, live, model_of, state_of};
use super::program::{Program, Step};
use super::{Live, State, Subject, guarded, left_of, scanned, show};
use crate::disk::Failure;
use crate::model::{Bytes, Layout, Operation};
use crate::storage::{Breadth, KINDS, Kind, SimStorage, StorageFault};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// What was done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Runs with a fault.
    pub runs: u64,
    /// Runs by the kind of call that failed.
    pub kinds: BTreeMap<Kind, u64>,
    /// Openings after the fault.
    pub openings: u64,
    /// Commits that succeeded after a write that had no room.
    pub went_on: u64,
}

/// Fails each call of a program in each way.
///
/// # Errors
/// The first broken promise.
pub fn check<S: Subject>(subject: &S, program: &Program, report: &mut Report) -> Result<(), String> {
    let begun = Beginning { storage: &SimStorage::new, past: Past::none(program), ways_back: KINDS.len() as u64 };
    each_call(subject, program, &begun, report)
        .map_err(|e| format!("{e}\n  program: {program}\n  replay: --seed {} --programs 1", program.seed))
}

/// Fails each call of an opening of what power cuts of a program left, and of what is done next; of some of all cuts.
///
/// # Errors
/// The first broken promise.
pub fn check_after_cuts<S: Subject>(subject: &S, program: &Program, report: &mut Report) -> Result<(), String> {
    let life = live(subject, &SimStorage::new(), program, Past::none(program))?;
    let broken = life.film.play(|moment| {
        let drawn = mix(program.seed, moment.calls as u64);
        if !drawn.is_multiple_of(CUTS_EVERY) {
            return None;
        }
        let survivals = moment.survivals(Breadth { every_up_to: 0, drawn: KINDS.len() as u64 }, drawn);
        let survival = &survivals[(drawn / CUTS_EVERY) as usize % survivals.len()];
        let past = life.allowed(moment.calls);
        let now = past.now;
        let sequel = Program::sequel(drawn >> 8, program);
        let begun = Beginning { storage: &|| moment.storage(survival).at(now), past, ways_back: 3 };
        let found = each_call(subject, &sequel, &begun, report);
        found.err().map(|e| {
            let cut = format!("cut after call {} ({}): {survival}", moment.calls, moment.describe());
            format!("{e}\n  sequel: {sequel}\n  {cut}\n  program: {program}\n  replay: --after-cuts --seed {} --programs 1", program.seed)
        })
    });
    broken.map_or(Ok(()), Err)
}

/// One moment in so many is one of a cut.
const CUTS_EVERY: u64 = 4;

/// Where a program begins.
struct Beginning<'s> {
    /// The disk there, made anew each time.
    storage: &'s dyn Fn() -> SimStorage,
    /// What may be on it.
    past: Past,
    /// In how many ways the disk comes back after the fault, should the power go.
    ways_back: u64,
}

fn each_call<S: Subject>(subject: &S, program: &Program, begun: &Beginning<'_>, report: &mut Report) -> Result<(), String> {
    let storage = (begun.storage)();
    let mut clean = Run::new(subject, &storage, program, &begun.past);
    guarded(|| clean.all(program)).map_err(|e| format!("without a fault: {e}"))?;
    for (nth, kind) in (1..).zip(storage.calls()) {
        for fault in faults(nth, kind) {
            report.runs += 1;
            *report.kinds.entry(kind).or_default() += 1;
            one(subject, program, begun, fault, report).map_err(|e| format!("call {nth} ({kind:?}) {fault:?}: {e}"))?;
        }
    }
    Ok(())
}

fn faults(nth: u64, kind: Kind) -> Vec<StorageFault> {
    let fault = |failure, lasting, kept| StorageFault { nth, lasting, failure, kept };
    let mut faults = vec![fault(Failure::Io, false, 0), fault(Failure::Io, true, 0), fault(Failure::Interrupted, false, 0)];
    if matches!(kind, Kind::Write | Kind::Create | Kind::Sync | Kind::SyncNames) {
        faults.extend([fault(Failure::NoSpace, false, 0), fault(Failure::NoSpace, true, 0)]);
    }
    if kind == Kind::Write {
        faults.extend([
            fault(Failure::Io, false, 1),
            fault(Failure::NoSpace, true, 1),
            fault(Failure::NoSpace, false, 1),
            fault(Failure::NoSpace, false, usize::MAX / crate::storage::SECTOR),
            fault(Failure::Io, false, usize::MAX / crate::storage::SECTOR),
        ]);
    }
    faults
}

fn one<S: Subject>(subject: &S, program: &Program, begun: &Beginning<'_>, fault: StorageFault, report: &mut Report) -> Result<(), String> {
    let storage = (begun.storage)();
    storage.fail(fault);
    let mut run = Run::new(subject, &storage, program, &begun.past);
    (run.lacks_room, run.is_lasting) = (fault.failure == Failure::NoSpace, fault.lasting);
    guarded(|| run.all(program))?;
    report.went_on += run.went_on;
    storage.heal();
    let mut reopen = |storage: SimStorage, how: &str| {
        report.openings += 1;
        let found = scanned(subject, program.layout, &storage, &run.keys).map_err(|e| format!("{how}: {e}"))?;
        run.fits(&found.state).map_err(|e| format!("{how}: {e}"))
    };
    reopen(storage.restarted(), "restarted")?;
    // Of fewer ways than there are each fault has others.
    let kinds = KINDS.len() as u64;
    (0..begun.ways_back)
        .map(|way| (fault.nth + way * kinds.div_ceil(begun.ways_back)) % kinds)
        .try_for_each(|kind| reopen(storage.survive(kind), KINDS[kind as usize]))
}

struct Run<'s, S> {
    subject: &'s S,
    storage: &'s SimStorage,
    layout: Layout,
    keys: Vec<Bytes>,
    /// Every history there may have been.
    paths: Vec<Past>,
    failed: bool,
    /// What fails does so for want of room.
    lacks_room: bool,
    /// What fails does so from then on.
    is_lasting: bool,
    /// Which of the calls that failed were an image's.
    of_images: Vec<Range<usize>>,
    went_on: u64,
}

impl<'s, S: Subject> Run<'s, S> {
    fn new(subject: &'s S, storage: &'s SimStorage, program: &Program, past: &Past) -> Run<'s, S> {
        let layout = program.layout;
        Run {
            subject,
            storage,
            layout,
            keys: program.keys.clone(),
            paths: vec![past.clone()],
            failed: false,
            lacks_room: false,
            is_lasting: false,
            of_images: Vec::new(),
            went_on: 0,
        }
    }

    fn fits(&self, found: &State) -> Result<(), String> {
        if self.paths.iter().any(|path| path.find(found).is_ok()) { Ok(()) } else { self.paths[0].find(found).map(|_| ()) }
    }

    /// Runs until the end or until the store can no longer be opened.
    fn all(&mut self, program: &Program) -> Result<(), String> {
        let Some(mut store) = self.open()? else { return Ok(()) };
        // Of a batch that fails a part may have been done.
        for step in program.steps.iter().filter(|step| !step.is_batch()) {
            match step {
                Step::Do(operation) => self.operation(&mut store, operation)?,
                Step::Commit => self.commit(&mut store)?,
                Step::Compact => self.failed |= store.compact().is_err(),
                Step::Stretch => self.failed |= store.compact_stretch().is_err(),
                Step::Image => {
                    let before = self.storage.struck().len();
                    match store.image() {
                        Ok(()) if self.subject.takes_images() => self.promised(),
                        // An image that cannot be written is no harm to the store, which need not say so.
                        _ => self.of_images.push(before..self.storage.struck().len()),
                    }
                }
                Step::Shrink => self.failed |= store.shrink().is_err(),
                Step::Spill(evicts) => self.failed |= store.spill(*evicts).is_err(),
                Step::Double => self.failed |= store.double().is_err(),
                // What it shows is asked for where nothing fails.
                Step::Hold | Step::During(..) | Step::Drop(_) => {}
                Step::Reopen => {
                    if store.close().is_ok() {
                        self.promised();
                    }
                    let Some(again) = self.open()? else { return Ok(()) };
                    store = again;
                }
            }
        }
        self.look(&mut store, false)?;
        if store.close().is_ok() {
            self.promised();
        }
        Ok(())
    }

    /// A store that opens shows what was there; one that does not, for a call failed, does not say that something is wrong with its files.
    fn open(&mut self) -> Result<Option<S::Live>, String> {
        match self.subject.open(self.layout, self.storage) {
            Ok(mut store) => {
                self.failed = false;
                self.look(&mut store, true)?;
                Ok(Some(store))
            }
            Err(why) if why.contains("Corruption") => Err(format!("an opening in which a call failed calls its files damaged: {why}")),
            Err(_) => Ok(None),
        }
    }

    fn operation(&mut self, store: &mut S::Live, operation: &Operation) -> Result<(), String> {
        let before = self.storage.calls().len();
        let now = self.storage.now();
        let outcome = store.apply(operation);
        let refused = outcome.is_err() && self.storage.calls().len() == before;
        self.failed |= outcome.is_err();
        if refused {
            return Ok(());
        }
        let mut after = Vec::new();
        for path in &self.paths {
            let mut model = model_of(self.layout, &self.keys, path.states.last().expect("a first state"), now);
            let expected = model.apply(operation);
            if outcome.as_ref().is_ok_and(|outcome| *outcome != expected) {
                continue;
            }
            let mut done = path.clone();
            done.states.push(state_of(&model, &self.keys));
            done.now = model.now;
            after.push(done);
            if outcome.is_err() {
                after.push(path.clone());
            }
        }
        if after.is_empty() {
            return Err(format!("{operation:?} gave {outcome:?}, which no history explains"));
        }
        self.paths = after;
        if self.subject.commits_each() && outcome.is_ok() {
            // What changed nothing has nothing to make durable, and may return where nothing can be written any more.
            for path in &mut self.paths {
                let last = path.states.len() - 1;
                if last > 0 && path.states[last] != path.states[last - 1] {
                    path.floor = last;
                }
            }
        }
        Ok(())
    }

    /// True if a call failed that changes the disk, and not for want of room: nothing may be promised before the store was opened again.
    /// Which call that is says the storage: a thread that reads ahead comes sooner in one run than in another, and the nth call of
    /// this run may ask something else than that of the run without a fault.
    fn latches(&self) -> bool {
        let is_of_image = |at: usize| self.of_images.iter().any(|calls| calls.contains(&at));
        let struck = self.storage.struck();
        struck.iter().enumerate().any(|(at, kind)| kind.is_change() && !self.had_no_room(*kind) && !is_of_image(at))
    }

    fn had_no_room(&self, kind: Kind) -> bool {
        self.lacks_room && matches!(kind, Kind::Write | Kind::Create)
    }

    /// True if only reads have failed, once: then nothing is latched. (What else changes nothing, a question for a file's length say, may
    /// have been part of a write.)
    fn has_only_read(&self) -> bool {
        let struck = self.storage.struck();
        !self.is_lasting && !struck.is_empty() && struck.iter().all(|kind| *kind == Kind::Read)
    }

    fn commit(&mut self, store: &mut S::Live) -> Result<(), String> {
        let must_go_on = self.has_only_read();
        match store.commit() {
            Err(why) if must_go_on => return Err(format!("a commit failed though only a read had failed, once: {why}")),
            Ok(()) if self.failed && self.latches() => {
                return Err("a commit succeeded after a call that changes the disk had failed".into());
            }
            Ok(()) => {
                self.went_on += u64::from(self.failed && self.storage.struck().iter().any(|kind| self.had_no_room(*kind)));
                self.promised();
            }
            Err(_) => self.failed = true,
        }
        Ok(())
    }

    fn promised(&mut self) {
        for path in &mut self.paths {
            path.floor = path.states.len() - 1;
        }
    }

    /// What can be read must fit; after an opening any allowed state does, and it is the last and the first from then on. Reads go on,
    /// whatever has failed once.
    fn look(&mut self, store: &mut S::Live, opened: bool) -> Result<(), String> {
        let found = match store.state(&self.keys).or_else(|_| store.state(&self.keys)) {
            Ok(found) => found,
            Err(why) if !self.is_lasting => return Err(format!("reads do not go on: {why}")),
            Err(_) => return Ok(()),
        };
        let paths = std::mem::take(&mut self.paths);
        for mut path in paths.iter().cloned() {
            let at = match opened {
                true => path.find(&found).ok(),
                false => path.states.last().filter(|last| left_of(last, path.now) == found).map(|_| path.states.len() - 1),
            };
            if let Some(at) = at {
                path.states.truncate(at + 1);
                // All that it was opened from is durable.
                path.floor = if opened { at } else { path.floor };
                self.paths.push(path);
            }
        }
        if self.paths.is_empty() {
            return Err(format!(
                "reads {}, which no history explains: {}",
                show(&found),
                paths.iter().map(|p| show(&p.states[p.states.len() - 1])).collect::<Vec<_>>().join(" or ")
            ));
        }
        Ok(())
    }
}
