//! Scans, read transactions, pages, histories and backups agree with a map.
//!
//! The theory: one thread does operations drawn from a seed on a store and on the model, and now and then puts a copy of the model
//! aside with something that shows the store as of that moment: a scan, a read transaction, an iterator, a backup, a line.
//! Whatever happens meanwhile (changes, ends of keys, compaction, a smaller budget), it must show that copy: each key once,
//! with its value then. All ways of scanning must agree; pages return what is there all the time exactly once; a history is
//! what the key was, backwards; a backup whose copying was cut short by a power cut is what it was before, or new and whole. A
//! store lives several times: it is closed, or killed, and then it is as of its last line.
//!
//! The background is off, so a seed does the same each time. `ESKER_SEED` replays one seed, `ESKER_SEQUENCES` sets the
//! number of seeds.

use esker::{Cursor, Iter, ManualClock, MemoryStorage, Options, ReadTransaction, Scan, Store, Strategy, Value, verify_in};
use esker_sim::model::{Bytes, Generator, Layout, Model, Operation, Outcome, Shape, brief, operand};
use esker_sim::seeds::seeds;
use esker_sim::storage::SimStorage;
use esker_sim::subject::{self, Subject, Typed};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;

const SEEDS: u64 = 20;
const LIVES: usize = 3;
const STEPS: usize = 120;
const HOT: u64 = 20;

/// Keys and values as the model has them.
trait Held: Value<Owned: Send + Sync> {
    fn seen(view: Self::View<'_>) -> Bytes;
}

impl Held for u64 {
    fn seen(view: u64) -> Bytes {
        view.bytes().to_vec()
    }
}

impl Held for [u8; 24] {
    fn seen(view: [u8; 24]) -> Bytes {
        view.to_vec()
    }
}

impl Held for [u8] {
    fn seen(view: &[u8]) -> Bytes {
        view.to_vec()
    }
}

impl Held for str {
    fn seen(view: &str) -> Bytes {
        view.as_bytes().to_vec()
    }
}

type Pairs = Vec<(Bytes, Bytes)>;

fn pair_bytes<K: Held + ?Sized, V: Held + ?Sized>((key, value): (K::Owned, V::Owned)) -> (Bytes, Bytes) {
    (key.borrow().bytes().to_vec(), value.borrow().bytes().to_vec())
}

/// What the store is at a moment, and, where it keeps history, all that each key has been. Every key begins as absent.
#[derive(Clone)]
struct State {
    model: Model,
    versions: Option<BTreeMap<Bytes, Vec<Option<Arc<Bytes>>>>>,
}

impl State {
    /// Does an operation; a batch key by key, since each is a version.
    fn apply(&mut self, operation: &Operation) -> Outcome {
        let parts: Vec<Operation> = match operation {
            Operation::PutMany(pairs) => pairs.iter().map(|(key, value)| Operation::Put(key.clone(), value.clone())).collect(),
            Operation::AppendMany(pairs) => pairs.iter().map(|(key, bytes)| Operation::Append(key.clone(), bytes.clone())).collect(),
            Operation::RmwMany(keys) => keys.iter().map(|key| Operation::Rmw(key.clone(), operand(key))).collect(),
            Operation::DeleteMany(keys) => {
                let was_there = |key: &Bytes| self.apply(&Operation::Delete(key.clone())) == Outcome::Flag(true);
                return Outcome::Count(keys.iter().map(was_there).filter(|was_there| *was_there).count());
            }
            _ => {
                let outcome = self.model.apply(operation);
                keys_changed(operation).into_iter().for_each(|key| self.note(key));
                return outcome;
            }
        };
        parts.iter().for_each(|part| _ = self.apply(part));
        Outcome::Done
    }

    fn note(&mut self, key: &Bytes) {
        let Some(versions) = &mut self.versions else { return };
        let list = versions.entry(key.clone()).or_insert_with(|| vec![None]);
        let value = self.model.map.get(key);
        if list.last().is_none_or(|last| last.as_deref() != value) {
            list.push(value.cloned().map(Arc::new));
        }
    }
}

/// The keys that an operation may change, but for time that passes.
fn keys_changed(operation: &Operation) -> Vec<&Bytes> {
    match operation {
        Operation::Put(key, _) | Operation::Rmw(key, _) | Operation::Append(key, _) | Operation::Delete(key) => vec![key],
        Operation::PutTtl(key, ..) | Operation::EndAfter(key, _) => vec![key],
        Operation::PutIfAbsent(key, _) | Operation::PutIfSame(key, _) | Operation::Swap(key, ..) | Operation::Take(key) => vec![key],
        Operation::PutMany(pairs) | Operation::AppendMany(pairs) => pairs.iter().map(|(key, _)| key).collect(),
        Operation::RmwMany(keys) | Operation::DeleteMany(keys) => keys.iter().collect(),
        Operation::Transaction(operations) => operations.iter().flat_map(keys_changed).collect(),
        _ => Vec::new(),
    }
}

/// A backup and what is in it.
struct Backup {
    files: SimStorage,
    line: u64,
    model: Model,
}

/// A store through its lives.
struct Trial<K: ?Sized, V: ?Sized> {
    name: String,
    random: ChaCha8Rng,
    generator: Generator,
    shape: Shape,
    options: Options,
    clock: Arc<ManualClock>,
    /// `None`: in memory only.
    files: Option<Arc<MemoryStorage>>,
    state: State,
    /// What a kill may leave: the state as of the last line, and as of calls since then that may have drawn one.
    lines: Vec<State>,
    backups: Vec<Backup>,
    of: PhantomData<fn(&K, &V)>,
}

impl<K: Held + ?Sized, V: Held + ?Sized> Trial<K, V>
where
    Store<K, V>: Typed,
{
    fn new(seed: u64) -> Self {
        let layout = Store::<K, V>::LAYOUT;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let in_memory = random.random_ratio(1, 5);
        let keeps_history = random.random_ratio(1, 3);
        let (most, batch) = if layout.width().is_some() && !keeps_history { (20_000, 512) } else { (5_000, 64) };
        let cold = *[100, 2000, most, most].choose(&mut random).unwrap();
        let cold = if in_memory { cold.min(2000) } else { cold };
        // A history knows no ends.
        let ends = !keeps_history && random.random();
        let shape = Shape { layout, hot: HOT, cold, typical: 2000, huge_every: 300, batch, filling: 10, reopens: false, ends };
        let clock = Arc::new(ManualClock::default());
        let segment_bytes = [64 << 10, 256 << 10, 1 << 20][random.random_range(0..3)];
        let options = Options::new().memory(if in_memory { "128MiB" } else { "16MiB" }).clock(clock.clone()).background(false);
        let options = options.history(keeps_history).promotion(random.random()).segment_bytes(segment_bytes);
        let name = format!("ESKER_SEED={seed} {layout:?} in memory: {in_memory} history: {keeps_history} ends: {ends} keys: {cold}");
        println!("{name}");
        let state = State { model: Model::new(layout), versions: keeps_history.then(BTreeMap::new) };
        let (files, generator) = ((!in_memory).then(Arc::default), Generator::new(seed, shape));
        let (lines, backups) = (vec![state.clone()], Vec::new());
        Trial { name, random, generator, shape, options, clock, files, state, lines, backups, of: PhantomData }
    }

    fn run(mut self) {
        for _ in 0..if self.files.is_some() { LIVES } else { 1 } {
            let store = match &self.files {
                Some(files) => self.options.clone().open_in(files.clone()).unwrap(),
                None => self.options.clone().in_memory().unwrap(),
            };
            self.live(&store);
            if self.random.random() {
                self.kill();
            } else {
                store.close().unwrap();
                self.lines = vec![self.state.clone()];
            }
        }
    }

    fn live(&mut self, store: &Store<K, V>) {
        let model = self.state.model.clone();
        self.compare(&Source::Store(store), &model, "a scan after opening");
        let subject = store.subject(self.clock.clone());
        let mut life = Life { trial: self, store, subject, readings: Vec::new(), iterators: Vec::new(), walk: None };
        (0..STEPS).for_each(|_| life.step());
    }

    /// The store goes on from its files as they are. Nothing is done any more by the one that was killed.
    fn kill(&mut self) {
        let Some(files) = &self.files else { return };
        let files = Arc::new(files.copy());
        let store: Store<K, V> = self.options.clone().open_in(Arc::new(files.copy())).unwrap();
        let now = self.state.model.now;
        let mut lines = std::mem::take(&mut self.lines);
        lines.iter_mut().for_each(|line| _ = line.model.apply(&Operation::Pass(now - line.model.now)));
        let found: BTreeMap<Bytes, Bytes> = store.scan().iter().unwrap().map(|pair| pair_bytes::<K, V>(pair.unwrap())).collect();
        let subject = store.subject(self.clock.clone());
        let has_ends = |model: &mut Model| {
            let all_ttl: Vec<Operation> = found.keys().cloned().map(Operation::Ttl).collect();
            all_ttl.iter().all(|ttl| subject::apply(&*subject, self.shape.layout, ttl).unwrap() == model.apply(ttl))
        };
        let line = lines.into_iter().rev().find_map(|mut line| (line.model.map == found && has_ends(&mut line.model)).then_some(line));
        self.state = line.unwrap_or_else(|| panic!("{}: after a kill it is as of no line", self.name));
        (self.files, self.lines) = (Some(files), vec![self.state.clone()]);
    }
}

/// What scans can be of.
enum Source<'s, K: Held + ?Sized, V: Held + ?Sized> {
    Store(&'s Store<K, V>),
    Reading(&'s ReadTransaction<'s, K, V>),
}

impl<K: Held + ?Sized, V: Held + ?Sized> Source<'_, K, V> {
    fn scan(&self) -> Scan<'_, K, V> {
        match self {
            Source::Store(store) => store.scan(),
            Source::Reading(reading) => reading.scan(),
        }
    }
}

impl<K: Held + ?Sized, V: Held + ?Sized> Trial<K, V> {
    fn key(&mut self) -> Bytes {
        let most = if self.random.random() { HOT } else { HOT + self.shape.cold };
        self.shape.layout.key(self.random.random_range(0..most))
    }

    /// A scan by one of the ways, of all keys, or of some.
    fn compare(&mut self, source: &Source<'_, K, V>, model: &Model, what: &str) {
        let strategies = [None, Some(Strategy::ByLog), Some(Strategy::ByIndex)];
        let mut strategy = *strategies.choose(&mut self.random).unwrap();
        let has_list = self.random.random_ratio(1, 4);
        let ids = (0..if has_list { HOT + self.shape.cold } else { 0 }).step_by(self.random.random_range(1..5));
        let listed: BTreeSet<Bytes> = ids.map(|id| self.shape.layout.key(id)).collect();
        let keys: Vec<K::Owned> = listed.iter().map(|key| K::own(key)).collect();
        let mut scan = source.scan();
        if has_list {
            scan = scan.keys(&keys);
            strategy = if self.random.random() { Some(Strategy::ByKeys) } else { strategy };
        }
        let prefix = if self.random.random_ratio(1, 4) { self.prefix() } else { Bytes::new() };
        scan = scan.prefix(prefix.clone()).parallel(self.random.random_range(1..4));
        let scan = if let Some(strategy) = strategy { scan.by(strategy) } else { scan };
        let found: Pairs = match self.random.random_range(0..3) {
            0 if strategy.is_none() => scan.iter().unwrap().map(|pair| pair_bytes::<K, V>(pair.unwrap())).collect(),
            1 => {
                let mut found = Pairs::new();
                scan.for_each(|key, value| found.push((K::seen(key), V::seen(value)))).unwrap();
                found
            }
            _ => scan.fold(Pairs::new, |all, key, value| all.push((K::seen(key), V::seen(value))), |all, more| all.extend(more)).unwrap(),
        };
        let wanted = model.map.iter().filter(|(key, _)| key.starts_with(&prefix) && (!has_list || listed.contains(*key)));
        self.judge(found, wanted.collect(), &format!("{what}, {strategy:?}, of a list: {has_list}"));
    }

    /// The beginning of a key, two bytes at most.
    fn prefix(&mut self) -> Bytes {
        let (key, length) = (self.key(), self.random.random_range(0..3));
        key[..length.min(key.len())].to_vec()
    }

    /// Each key once, with its value.
    fn judge(&self, found: Pairs, mut wanted: BTreeMap<&Bytes, &Bytes>, what: &str) {
        for (key, value) in &found {
            let is_right = wanted.remove(key) == Some(value);
            assert!(is_right, "{}: {what}: key {} is there twice, wrongly, or with a wrong value", self.name, brief(key));
        }
        let missing: Vec<String> = wanted.keys().take(3).map(|key| brief(key)).collect();
        assert!(missing.is_empty(), "{}: {what}: {} keys are missing, such as {missing:?}", self.name, wanted.len());
    }

    /// It is whole, and opens. Opening it to look leaves it a backup.
    fn compare_backup(&mut self, backup: &Backup) {
        let found = verify_in(Arc::new(backup.files.clone()), |_, _| ControlFlow::Continue(())).unwrap();
        assert!(found.is_sound() && found.line == backup.line, "{}: a backup of line {}: {found:?}", self.name, backup.line);
        let store: Store<K, V> = self.options.clone().promotion(false).open_in(Arc::new(backup.files.clone())).unwrap();
        let mut model = backup.model.clone();
        model.apply(&Operation::Pass(self.state.model.now - model.now));
        self.compare(&Source::Store(&store), &model, "a backup");
    }
}

/// Pages on their way through the store.
struct Walk {
    cursor: Cursor,
    /// The keys that were there all the time.
    always: BTreeSet<Bytes>,
    seen: HashMap<Bytes, usize>,
}

/// A store while it is open, and what is held of it.
struct Life<'s, K: Held + ?Sized, V: Held + ?Sized> {
    trial: &'s mut Trial<K, V>,
    store: &'s Store<K, V>,
    subject: Box<dyn Subject>,
    readings: Vec<(ReadTransaction<'s, K, V>, Model)>,
    iterators: Vec<(Iter<'s, K, V>, Model, Pairs)>,
    walk: Option<Walk>,
}

impl<K: Held + ?Sized, V: Held + ?Sized> Life<'_, K, V> {
    fn step(&mut self) {
        let has_files = self.trial.files.is_some();
        match self.trial.random.random_range(0..100) {
            0..58 => (0..self.trial.random.random_range(1..60)).for_each(|_| self.operate()),
            58..66 => self.trial.compare(&Source::Store(self.store), &self.trial.state.model.clone(), "a scan"),
            66..74 => self.read(),
            74..82 => self.iterate(),
            82..89 => self.page(),
            89..93 => self.compact(),
            93 if has_files => self.store.save_index().map(|()| self.line()).unwrap(),
            94 if has_files => self.store.commit().map(|()| self.line()).unwrap(),
            95 | 96 if has_files => self.back_up(),
            97 => self.delete_some(),
            _ => self.look_back(),
        }
    }

    fn operate(&mut self) {
        let operation = self.trial.generator.operation();
        if matches!(operation, Operation::SetMemory(_)) && self.trial.files.is_none() {
            return;
        }
        let gave = subject::apply(&*self.subject, self.trial.shape.layout, &operation).unwrap();
        let expected = self.trial.state.apply(&operation);
        assert!(gave == expected, "{}: {operation:?} gave {gave:?}, not {expected:?}", self.trial.name);
        let (Some(walk), map) = (&mut self.walk, &self.trial.state.model.map) else { return };
        match operation {
            Operation::Pass(_) => walk.always.retain(|key| map.contains_key(key)),
            _ => keys_changed(&operation).into_iter().filter(|key| !map.contains_key(*key)).for_each(|key| _ = walk.always.remove(key)),
        }
    }

    /// A line was drawn.
    fn line(&mut self) {
        self.trial.lines = vec![self.trial.state.clone()];
    }

    /// A call returned that may have drawn a line. (Which line it was does not show in a history.)
    fn maybe_line(&mut self) {
        if self.trial.state.versions.is_some() || self.trial.random.random() {
            self.store.commit().unwrap();
            return self.line();
        }
        self.trial.lines.push(self.trial.state.clone());
    }

    /// Begins a read transaction, or looks again at what one shows.
    fn read(&mut self) {
        if self.readings.len() < 3 && self.trial.random.random() {
            return self.readings.push((self.store.begin_read().unwrap(), self.trial.state.model.clone()));
        }
        if self.readings.is_empty() {
            return;
        }
        let (reading, model) = self.readings.swap_remove(self.trial.random.random_range(0..self.readings.len()));
        self.trial.compare(&Source::Reading(&reading), &model, "a read transaction");
        for _ in 0..50 {
            let key = self.trial.key();
            let found = reading.get(K::own(&key).borrow()).unwrap().map(|value| value.borrow().bytes().to_vec());
            assert!(found.as_ref() == model.map.get(&key), "{}: a read transaction gets {}", self.trial.name, brief(&key));
        }
        if self.trial.random.random() {
            self.readings.push((reading, model));
        }
    }

    /// Begins an iterator, or goes on with one.
    fn iterate(&mut self) {
        if self.iterators.len() < 2 && self.trial.random.random() {
            return self.iterators.push((self.store.scan().iter().unwrap(), self.trial.state.model.clone(), Pairs::new()));
        }
        let Some((iterator, model, found)) = self.iterators.last_mut() else { return };
        let count = self.trial.random.random_range(1..=self.trial.shape.cold as usize);
        let before = found.len();
        found.extend(iterator.take(count).map(|pair| pair_bytes::<K, V>(pair.unwrap())));
        if found.len() < before + count {
            self.trial.judge(std::mem::take(found), model.map.iter().collect(), "an iterator");
            self.iterators.pop();
        }
    }

    /// The next page: what it returns is so now.
    fn page(&mut self) {
        let map = &self.trial.state.model.map;
        let begin = || Walk { cursor: Cursor::START, always: map.keys().cloned().collect(), seen: HashMap::new() };
        let mut walk = self.walk.take().unwrap_or_else(begin);
        let limit = self.trial.random.random_range(1..=self.trial.shape.cold as usize / 3);
        let page = self.store.scan_page(walk.cursor, limit).unwrap();
        for (key, value) in page.pairs.into_iter().map(pair_bytes::<K, V>) {
            assert!(map.get(&key) == Some(&value), "{}: a page has a wrong value of {}", self.trial.name, brief(&key));
            *walk.seen.entry(key).or_default() += 1;
        }
        if let Some(cursor) = page.next {
            self.walk = Some(Walk { cursor, ..walk });
            return;
        }
        for key in walk.always {
            assert_eq!(walk.seen.get(&key), Some(&1), "{}: pages return {}", self.trial.name, brief(&key));
        }
    }

    fn compact(&mut self) {
        if self.trial.random.random() {
            self.store.compact().unwrap();
        } else {
            self.store.compact_stretch().unwrap();
        }
        if self.trial.files.is_some() {
            self.maybe_line();
        }
    }

    /// Copies to a new place, there from an earlier backup or not, or adds to a backup; half of the time the power fails meanwhile.
    fn back_up(&mut self) {
        let Trial { random, backups, state, .. } = &mut *self.trial;
        let fresh = Backup { files: SimStorage::new(), line: 0, model: state.model.clone() };
        let is_new = backups.is_empty() || random.random();
        let mut backup = if is_new { fresh } else { backups.swap_remove(random.random_range(0..backups.len())) };
        let from = backups.choose(random).filter(|_| is_new).map(|earlier| Arc::new(earlier.files.clone()));
        let to = Arc::new(backup.files.clone());
        let copy = |to: &Arc<SimStorage>| match &from {
            Some(from) => self.store.snapshot_from_in(from.clone(), to.clone()),
            None => self.store.snapshot_in(to.clone()),
        };
        let may_fail = random.random();
        if may_fail {
            // Anywhere in it: a copy elsewhere tells how many calls it takes.
            let elsewhere = Arc::new(backup.files.restarted());
            let begun = elsewhere.calls().len();
            copy(&elsewhere).unwrap();
            let calls = (elsewhere.calls().len() - begun) as u64;
            to.cut_at(to.calls().len() as u64 + random.random_range(1..=calls));
        }
        let done = copy(&to);
        assert!(done.is_ok() || may_fail, "{}: {done:?}", self.trial.name);
        backup.files = if done.is_ok() { to.restarted() } else { to.survive(self.trial.random.random()) };
        self.maybe_line();
        let found = verify_in(Arc::new(backup.files.clone()), |_, _| ControlFlow::Continue(()));
        let Some(found) = found.ok().filter(|found| found.is_sound()) else {
            assert!(done.is_err() && is_new, "{}: a backup is gone", self.trial.name);
            let files = backup.files.files();
            let opened = self.trial.options.clone().open_in::<K, V>(Arc::new(backup.files.clone()));
            return assert!(opened.is_err() || files.is_empty(), "{}: half a backup opens: {files:?}", self.trial.name);
        };
        if is_new || found.line != backup.line {
            (backup.line, backup.model) = (found.line, self.trial.state.model.clone());
        }
        self.trial.compare_backup(&backup);
        self.trial.backups.push(backup);
        if self.trial.backups.len() > 3 {
            self.trial.backups.remove(0);
        }
    }

    /// Deletes by a scan, a third of what begins alike.
    fn delete_some(&mut self) {
        let prefix = self.trial.prefix();
        let is_chosen = |value: &[u8]| value.first().is_some_and(|first| first % 3 == 0);
        let map = &self.trial.state.model.map;
        let chosen = map.iter().filter(|(key, value)| key.starts_with(&prefix) && is_chosen(value));
        let deletions: Vec<Operation> = chosen.map(|(key, _)| Operation::Delete(key.clone())).collect();
        let count = self.store.scan().prefix(prefix).filter(|_, value| is_chosen(&V::seen(value))).delete().unwrap();
        assert_eq!(count, deletions.len() as u64, "{}: Scan::delete", self.trial.name);
        deletions.iter().for_each(|deletion| _ = self.trial.state.apply(deletion));
        self.walk = None;
    }

    /// Histories tell what keys were, backwards, and begin with what they are.
    fn look_back(&mut self) {
        let keys: Vec<Bytes> = (0..50).map(|_| self.trial.key()).collect();
        let Some(versions) = &self.trial.state.versions else { return };
        for key in keys {
            let most = self.trial.random.random_range(1..12);
            let history = self.store.history(K::own(&key).borrow(), most).unwrap();
            assert!(history.len() <= most && (!history.is_empty() || !self.trial.state.model.map.contains_key(&key)));
            let version = |version: Option<(V::Owned, _)>| Some(Arc::new(version?.0.borrow().bytes().to_vec()));
            let found: Vec<Option<Arc<Bytes>>> = history.into_iter().map(version).collect();
            let wanted = versions.get(&key).map_or(&[None][..], Vec::as_slice);
            let is_right = found.len() <= wanted.len() && found.iter().eq(wanted.iter().rev().take(found.len()));
            assert!(is_right, "{}: the history of {}", self.trial.name, brief(&key));
        }
    }
}

#[test]
fn scans_agree_with_the_model() {
    for seed in seeds(SEEDS) {
        match Layout::ALL[(seed % 4) as usize] {
            Layout::Pairs => Trial::<u64, u64>::new(seed).run(),
            Layout::Records => Trial::<u64, [u8; 24]>::new(seed).run(),
            Layout::Blobs => Trial::<[u8], [u8]>::new(seed).run(),
            Layout::Named => Trial::<str, [u8]>::new(seed).run(),
        }
    }
}
