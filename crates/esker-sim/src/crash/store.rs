//! Esker itself as the subject: the smallest budget, no driver thread, so that every call is made by the program.

use super::program::CROWDING;
use super::{Happened, Held, Live, NEVER, Program, State, Subject, Versions};
use crate::model::{Bytes, Layout, Operation, Outcome};
use crate::storage::SimStorage;
use crate::subject::{self, Kept, Pairs, Place};
use esker::{Cache, Durability, Error, Options, SECTOR_BYTES, Strategy};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BUDGET_BYTES: u64 = 16 << 20;
/// More than a program makes of a key.
const VERSIONS_MAX: usize = 1000;
const SECTOR: u64 = SECTOR_BYTES as u64;
/// A table is not doubled beyond.
const BUCKETS_MAX: u64 = 1024;

/// The store, with this promise about operations.
#[derive(Clone, Copy, Debug)]
pub struct Esker {
    /// When operations are durable by themselves.
    pub durability: Durability,
    /// What is special about it.
    pub kind: StoreKind,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Nothing lost, nothing kept that was replaced.
    Plain,
    /// It keeps the versions of its keys.
    History,
    /// A cache, which drops.
    Cache,
    /// Each opening makes the index anew where keys share entries.
    Rebuilt,
}

impl Esker {
    /// A plain one.
    pub const fn plain(durability: Durability) -> Esker {
        Esker { durability, kind: StoreKind::Plain }
    }

    fn options(self) -> Options {
        let options = Options::new().memory(BUDGET_BYTES).crowding(CROWDING);
        match self.kind {
            StoreKind::Plain => options,
            StoreKind::History => options.history(true),
            StoreKind::Cache => options.cache(Cache::new().disk("64MiB")),
            StoreKind::Rebuilt => options.rebuild_index(true),
        }
    }
}

/// An open one.
pub struct LiveEsker {
    kind: StoreKind,
    store: Arc<dyn subject::Subject>,
    layout: Layout,
    storage: SimStorage,
    held: Option<(Box<dyn Kept>, Pairs)>,
    happened: Arc<Mutex<Option<Happened>>>,
}

impl LiveEsker {
    fn of(kind: StoreKind, store: Box<dyn subject::Subject>, layout: Layout, storage: &SimStorage) -> LiveEsker {
        LiveEsker { kind, store: store.into(), layout, storage: storage.clone(), held: None, happened: Arc::default() }
    }
}

/// What was to happen has the store.
impl Drop for LiveEsker {
    fn drop(&mut self) {
        self.storage.let_be();
    }
}

/// What scans are to show.
fn pairs_of(keys: &[Bytes], state: &State) -> Pairs {
    let there = |(key, held): (&Bytes, &Option<Held>)| Some((key.clone(), held.as_ref()?.value.clone()));
    let mut pairs: Vec<_> = keys.iter().zip(state).filter_map(there).collect();
    pairs.sort_unstable();
    pairs
}

/// Whether they do.
fn show(pairs: &Pairs, scan: impl Fn(Strategy) -> esker::Result<Pairs>) -> Result<(), String> {
    for strategy in [Strategy::ByLog, Strategy::ByIndex] {
        let shown = scan(strategy).map_err(words)?;
        if shown != *pairs {
            return Err(format!("{strategy:?} shows {} pairs, which are not the {} there", shown.len(), pairs.len()));
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words(error: Error) -> String {
    format!("{error:?}")
}

impl Subject for Esker {
    type Live = LiveEsker;

    fn commits_each(&self) -> bool {
        matches!(self.durability, Durability::Always)
    }

    /// A cache takes none while a crash would bring back what it dropped.
    fn takes_images(&self) -> bool {
        self.kind != StoreKind::Cache
    }

    fn program(&self, seed: u64) -> Program {
        match (self.kind, seed % 8) {
            (StoreKind::History, _) => Program::versioned(seed),
            (StoreKind::Cache, _) => Program::dropping(seed),
            (StoreKind::Rebuilt, _) => Program::crowded(seed),
            (StoreKind::Plain, 0 | 1) => Program::random(seed),
            (StoreKind::Plain, 2 | 3) => Program::ending(seed),
            (StoreKind::Plain, 4 | 5) => Program::scarce(seed),
            (StoreKind::Plain, _) => Program::crowded(seed),
        }
    }

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveEsker, String> {
        let place = Place::Storage(Arc::new(storage.clone()), self.durability);
        let store = subject::open_by(layout, self.options(), &place, storage.clock()).map_err(words)?;
        Ok(LiveEsker::of(self.kind, store, layout, storage))
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
            LiveEsker::of(StoreKind::Plain, store, layout, storage).state(keys)
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

    fn give_back_all(&mut self) -> Result<(), String> {
        let tail = self.store.stats().log.tail;
        self.store.compact().and_then(|()| self.store.commit()).map_err(words)?;
        let begin = self.store.stats().log.begin;
        // To the end of the last whole block.
        if begin + SECTOR > tail { Ok(()) } else { Err(format!("the log begins at {begin} behind a compaction from {tail} on")) }
    }

    fn image(&mut self) -> Result<(), String> {
        self.store.save_index().map_err(words)
    }

    fn scan(&mut self, keys: &[Bytes], state: &State) -> Result<(), String> {
        show(&pairs_of(keys, state), |strategy| self.store.pairs(strategy))
    }

    fn double(&mut self) -> Result<(), String> {
        // An image of it would take most of the time.
        if self.store.stats().index.buckets < BUCKETS_MAX { self.store.double_index().map_err(words) } else { Ok(()) }
    }

    fn shrink(&mut self) -> Result<(), String> {
        self.store.shrink_index().map_err(words)
    }

    fn spill(&mut self, evicts: bool) -> Result<(), String> {
        self.store.spill(evicts).map_err(words)
    }

    fn drop_oldest(&mut self, eighths: u64) -> Result<(), String> {
        self.store.drop_oldest(eighths).map_err(words)
    }

    fn versions(&mut self, keys: &[Bytes]) -> Result<Vec<Versions>, String> {
        let kept = if self.kind == StoreKind::History { keys } else { &[] };
        kept.iter().map(|key| self.store.versions(key, VERSIONS_MAX).map_err(words)).collect()
    }

    fn interrupt(&mut self, nth: u64, operation: &Operation) {
        let (store, layout, storage) = (self.store.clone(), self.layout, self.storage.clone());
        let (happened, operation) = (self.happened.clone(), operation.clone());
        self.storage.interrupt(nth, move || {
            let at = storage.position();
            let outcome = subject::apply(&*store, layout, &operation).map_err(words);
            *lock(&happened) = Some(Happened { at, operation, outcome });
        });
    }

    fn interrupted(&mut self) -> Option<Happened> {
        self.storage.let_be();
        lock(&self.happened).take()
    }

    fn hold(&mut self, keys: &[Bytes], state: &State) -> Result<(), String> {
        match self.held.take() {
            Some((held, pairs)) => show(&pairs, |strategy| held.pairs(strategy)),
            None => {
                self.held = Some((self.store.hold().map_err(words)?, pairs_of(keys, state)));
                Ok(())
            }
        }
    }

    fn end(&mut self, key: &Bytes) -> Result<u64, String> {
        let left = self.store.ttl(key).map_err(words)?.ok_or("a key that was just there has no end")?;
        Ok(left.map_or(NEVER, |left| self.storage.now() + left))
    }

    fn close(mut self) -> Result<(), String> {
        self.held = None;
        self.store.close().map_err(words)
    }
}
