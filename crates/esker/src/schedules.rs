//! The whole store under a scheduler: small programs, in orders of execution drawn from a seed.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p esker --release --lib schedules`
//!
//! Loom tries every order of a small piece of the store; here two or three threads run operations and transactions on two keys through all
//! of it, while another freezes, evicts, commits, compacts, saves the index or makes it grow or shrink. Each access to an atomic is a point
//! where another thread may go on ([`crate::sync::atomic`]). What the threads saw must fit one order of all they did, and so must what is
//! there after closing and opening again, and what a crash leaves behind each commit. Memory is sequentially consistent here.
//!
//! A scheduler that cannot find a planted bug proves nothing: the twins break one [`Rule`] each and must be found.
//! `ESKER_SCHEDULES` sets the number of schedules, `ESKER_SEED` replays a program.

mod ends;
mod holes;

use crate::engine::Engine;
use crate::sync::atomic::set_scheduled;
use crate::sync::{Rule, Weakness, lock};
use crate::{Device, Durability, Error, MemoryStorage, Options, Storage, Store, Transaction, Value};
use esker_sim::history::{Action, Clock, Event, Recorder, Together, add, check};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const KEYS: u64 = 2;
/// Keys that are there before, where the index shall grow: one more and buckets are split.
const CROWD: u64 = 256 * 13 / 2;
const SCHEDULES_OF_A_PROGRAM: usize = 50;

/// What a thread does: an operation on a key, or several at one moment.
#[derive(Clone, Debug)]
enum Act {
    Plain(u64, Deed),
    Transaction(Vec<(u64, Deed)>),
    Reading(Vec<u64>),
}

/// An operation on a key. In a transaction a batch is a single one.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Get,
    Contains,
    Put(u64),
    Add(u64),
    Delete,
    Append(u64),
    /// The same as batches of one.
    GetMany,
    PutMany(u64),
    AddMany(u64),
    DeleteMany,
    /// On conditions: that there is nothing, or still what was read just before.
    PutIfAbsent(u64),
    Replace(u64),
    Take,
}

/// What the store's own threads do in time.
#[derive(Clone, Copy, Debug)]
enum Chore {
    Freeze,
    Evict,
    Commit,
    Compact,
    Image,
    Grow,
    Shrink,
}

/// What each thread does, and the chores beside them.
#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    before: Vec<Act>,
    threads: Vec<Vec<Act>>,
    /// A thread's first call takes the long way, for it does not know its slot yet: here that call is one that does not count.
    is_warm: bool,
    chores: Vec<Chore>,
}

impl Program {
    fn of(seed: u64, can_append: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let has_transactions = random.random_range(0..2) == 0;
        let acts = |random: &mut ChaCha8Rng, least, most| {
            let count = random.random_range(least..=most);
            (0..count).map(|_| act(random, can_append, has_transactions)).collect()
        };
        let before = acts(&mut random, 0, 3);
        let threads = (0..random.random_range(2..=3)).map(|_| acts(&mut random, 1, 3)).collect();
        let chores = (0..random.random_range(0..=3)).map(|_| chore(&mut random)).collect();
        Self { seed, before, threads, is_warm: seed % 4 < 2, chores }
    }

    fn grows(&self) -> bool {
        self.chores.iter().any(|chore| matches!(chore, Chore::Grow | Chore::Shrink))
    }
}

fn act(random: &mut ChaCha8Rng, can_append: bool, has_transactions: bool) -> Act {
    let mut one = || (random.random_range(0..KEYS), deed(random, can_append));
    let (first, second) = (one(), one());
    match random.random_range(0..6) {
        0..3 if has_transactions => Act::Transaction(vec![first, second]),
        3 if has_transactions => Act::Reading((0..KEYS).collect()),
        _ => Act::Plain(first.0, first.1),
    }
}

fn deed(random: &mut ChaCha8Rng, can_append: bool) -> Deed {
    let number = random.random_range(1..1000);
    match random.random_range(0..19) {
        16 => Deed::PutIfAbsent(number),
        17 => Deed::Replace(number),
        18 => Deed::Take,
        0 | 1 => Deed::Get,
        2 => Deed::Contains,
        3..6 => Deed::Put(number),
        6 | 7 if can_append => Deed::Append(number),
        6..10 => Deed::Add(number),
        10 | 11 => Deed::Delete,
        12 => Deed::GetMany,
        13 => Deed::PutMany(number),
        14 => Deed::AddMany(number),
        _ => Deed::DeleteMany,
    }
}

fn chore(random: &mut ChaCha8Rng) -> Chore {
    [Chore::Freeze, Chore::Evict, Chore::Commit, Chore::Compact, Chore::Image, Chore::Grow, Chore::Shrink][random.random_range(0..7)]
}

/// A store of either layout, as the history sees it.
trait Kind: Clone + Send + 'static {
    type Held: Value + ?Sized;
    const CAN_APPEND: bool;
    fn open_with(options: Options, storage: Arc<MemoryStorage>) -> Self;
    fn in_memory() -> Self;
    fn store(&self) -> &Store<u64, Self::Held>;
    fn act(&self, key: u64, deed: Deed) -> Action;
    fn value(number: u64) -> Vec<u8>;
    fn owned(bytes: &[u8]) -> <Self::Held as Value>::Owned;

    fn open(storage: Arc<MemoryStorage>) -> Self {
        Self::open_with(options(), storage)
    }

    fn engine(&self) -> &Engine {
        self.store().engine_for_test()
    }

    /// As the history sees it.
    fn seen(owned: <Self::Held as Value>::Owned) -> Vec<u8>;

    fn read(owned: Option<<Self::Held as Value>::Owned>) -> Option<Vec<u8>> {
        owned.map(Self::seen)
    }

    /// A write on a condition.
    fn swap(&self, key: u64, deed: Deed) -> Action {
        let store = self.store();
        let held = |bytes: &[u8]| Self::owned(bytes);
        if let Deed::PutIfAbsent(number) = deed {
            let value = Self::value(number);
            let done = store.put_if_absent(&key, held(&value).borrow()).expect("writes");
            return Action::Swap(None, Some(value), done);
        }
        let seen = Self::read(store.get(&key).expect("reads"));
        let new = deed.replacement().map(Self::value);
        let (old, put) = (seen.as_deref().map(held), new.as_deref().map(held));
        let done = store.compare_and_swap(&key, old.as_ref().map(Borrow::borrow), put.as_ref().map(Borrow::borrow)).expect("writes");
        Action::Swap(seen, new, done)
    }

    /// `None` if it conflicted.
    fn transaction(&self, deeds: &[(u64, Deed)]) -> Option<Vec<(u64, Action)>> {
        let mut tx = self.store().begin().expect("open");
        let done: Result<Vec<_>, Error> = deeds.iter().map(|(key, deed)| Ok((*key, Self::step(&mut tx, *key, *deed)?))).collect();
        match done.and_then(|done| tx.commit().map(|()| done)) {
            Ok(done) => Some(done),
            Err(Error::Conflict { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn step(tx: &mut Transaction<'_, u64, Self::Held>, key: u64, deed: Deed) -> Result<Action, Error> {
        Ok(match deed {
            Deed::Get | Deed::GetMany => Action::Get(Self::read(tx.get(&key)?)),
            Deed::Contains => Action::Contains(tx.get(&key)?.is_some()),
            Deed::Put(number) | Deed::PutMany(number) => {
                let value = Self::value(number);
                tx.put(&key, Self::owned(&value).borrow())?;
                Action::Put(value)
            }
            Deed::Add(by) | Deed::AddMany(by) | Deed::Append(by) => {
                let new = add(Self::read(tx.get(&key)?).as_deref(), by);
                tx.put(&key, Self::owned(&new).borrow())?;
                Action::Add(by, new)
            }
            Deed::Delete | Deed::DeleteMany => Action::Delete(tx.delete(&key)?),
            Deed::PutIfAbsent(_) | Deed::Replace(_) | Deed::Take => {
                let seen = Self::read(tx.get(&key)?);
                let expected = seen.clone().filter(|_| !matches!(deed, Deed::PutIfAbsent(_)));
                let new = deed.replacement().map(Self::value);
                let done = seen == expected;
                match &new {
                    Some(new) if done => tx.put(&key, Self::owned(new).borrow())?,
                    None if done => _ = tx.delete(&key)?,
                    _ => {}
                }
                Action::Swap(expected, new, done)
            }
        })
    }

    fn reading(&self, keys: &[u64]) -> Vec<(u64, Action)> {
        let tx = self.store().begin_read().expect("open");
        keys.iter().map(|key| (*key, Action::Get(Self::read(tx.get(key).expect("reads"))))).collect()
    }

    fn close(self) {
        self.store().close().expect("closes");
    }
}

impl Deed {
    /// What a write on a condition puts.
    fn replacement(self) -> Option<u64> {
        match self {
            Deed::PutIfAbsent(number) | Deed::Replace(number) => Some(number),
            _ => None,
        }
    }
}

fn options() -> Options {
    Options::new().memory(16 << 20).background(false).segment_bytes(1 << 20)
}

/// A number as a value of one width.
trait Numeral: for<'a> Value<Owned = Self, View<'a> = Self> + Copy + 'static {
    fn of(number: u64) -> Self;
    fn number(self) -> u64;
}

impl Numeral for u64 {
    fn of(number: u64) -> Self {
        number
    }

    fn number(self) -> u64 {
        self
    }
}

/// In the bytes layout, and short; its words belong together.
impl Numeral for [u64; 2] {
    fn of(number: u64) -> Self {
        [number, !number]
    }

    fn number(self) -> u64 {
        assert_eq!(self[1], !self[0], "a torn value");
        self[0]
    }
}

impl<T: Numeral> Kind for Store<u64, T> {
    type Held = T;
    const CAN_APPEND: bool = false;

    fn open_with(options: Options, storage: Arc<MemoryStorage>) -> Self {
        options.open_in(storage).expect("opens")
    }

    fn in_memory() -> Self {
        options().in_memory().expect("opens")
    }

    fn store(&self) -> &Self {
        self
    }

    fn value(number: u64) -> Vec<u8> {
        number.to_le_bytes().to_vec()
    }

    fn owned(bytes: &[u8]) -> T {
        T::of(u64::from_le_bytes(bytes.try_into().expect("eight")))
    }

    fn seen(owned: T) -> Vec<u8> {
        Self::value(owned.number())
    }

    fn act(&self, key: u64, deed: Deed) -> Action {
        let (bytes, seen) = (Self::value, Self::seen);
        let sum = |old: Option<T>, by: u64| T::of(old.map_or(0, T::number).wrapping_add(by));
        match deed {
            Deed::Get => Action::Get(self.get(&key).expect("reads").map(seen)),
            Deed::Contains => Action::Contains(self.contains(&key).expect("reads")),
            Deed::Put(number) => {
                self.put(&key, &T::of(number)).expect("writes");
                Action::Put(bytes(number))
            }
            Deed::Add(by) | Deed::Append(by) => Action::Add(by, seen(self.rmw(&key, |old| sum(old, by)).expect("writes"))),
            Deed::Delete => Action::Delete(self.delete(&key).expect("writes")),
            Deed::GetMany => {
                let mut read = None;
                self.get_many(&[key], |_, value| read = value.map(seen)).expect("reads");
                Action::Get(read)
            }
            Deed::PutMany(number) => {
                self.put_many(&[(key, T::of(number))]).expect("writes");
                Action::Put(bytes(number))
            }
            Deed::AddMany(by) => {
                let mut new = T::of(0);
                let add = |_, old: Option<T>| {
                    new = sum(old, by);
                    new
                };
                self.rmw_many(&[key], add).expect("writes");
                Action::Add(by, seen(new))
            }
            Deed::DeleteMany => Action::Delete(self.delete_many(&[key]).expect("writes") == 1),
            Deed::PutIfAbsent(_) | Deed::Replace(_) | Deed::Take => self.swap(key, deed),
        }
    }
}

impl Kind for Store<u64, [u8]> {
    type Held = [u8];
    const CAN_APPEND: bool = true;

    fn open_with(options: Options, storage: Arc<MemoryStorage>) -> Self {
        options.open_in(storage).expect("opens")
    }

    fn in_memory() -> Self {
        options().in_memory().expect("opens")
    }

    fn store(&self) -> &Self {
        self
    }

    /// Of several lengths, so that a record is outgrown at times, or gives up room that is not needed any more.
    fn value(number: u64) -> Vec<u8> {
        vec![number as u8; 8 + number as usize % if number.is_multiple_of(4) { 120 } else { 24 }]
    }

    fn owned(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn seen(owned: Vec<u8>) -> Vec<u8> {
        owned
    }

    fn act(&self, key: u64, deed: Deed) -> Action {
        let value = Self::value;
        match deed {
            Deed::Get => Action::Get(self.get(&key).expect("reads")),
            Deed::Contains => Action::Contains(self.contains(&key).expect("reads")),
            Deed::Put(number) => {
                self.put(&key, &value(number)).expect("writes");
                Action::Put(value(number))
            }
            Deed::Add(by) => Action::Add(by, self.rmw(&key, |old| add(old, by)).expect("writes")),
            Deed::Append(number) => {
                let bytes = vec![number as u8; number as usize % 12];
                let length = self.append(&key, &bytes).expect("writes");
                Action::Append(bytes, length)
            }
            Deed::Delete => Action::Delete(self.delete(&key).expect("writes")),
            Deed::GetMany => {
                let mut seen = None;
                self.get_many(&[key], |_, value| seen = value.map(<[u8]>::to_vec)).expect("reads");
                Action::Get(seen)
            }
            Deed::PutMany(number) => {
                self.put_many(&[(key, value(number))]).expect("writes");
                Action::Put(value(number))
            }
            Deed::AddMany(by) => {
                let mut new = Vec::new();
                let add = |_, old: Option<&[u8]>| {
                    new = add(old, by);
                    new.clone()
                };
                self.rmw_many(&[key], add).expect("writes");
                Action::Add(by, new)
            }
            Deed::DeleteMany => Action::Delete(self.delete_many(&[key]).expect("writes") == 1),
            Deed::PutIfAbsent(_) | Deed::Replace(_) | Deed::Take => self.swap(key, deed),
        }
    }
}

fn do_chore<S: Kind>(store: &S, chore: Chore, fresh: &mut u64) {
    let engine = store.engine();
    match chore {
        Chore::Freeze | Chore::Evict => {
            let _guard = lock(&engine.boundaries);
            let tail = engine.log.end_block();
            engine.freeze(tail);
            if matches!(chore, Chore::Evict) {
                engine.flush().expect("writes");
                engine.evict(tail);
            }
        }
        Chore::Commit => engine.commit().expect("commits"),
        Chore::Compact => _ = engine.compact_all().expect("compacts"),
        Chore::Image => engine.take_image().expect("saves"),
        // Two, as far as it has grown: from a turn of the level to the next there are too many for a schedule.
        Chore::Shrink => _ = engine.index.shrink_by(2, || engine.epochs.drain()),
        // Entries are counted some at a time.
        Chore::Grow => {
            for _ in 0..16 {
                *fresh += 1;
                store.act(*fresh, Deed::Put(*fresh));
            }
        }
    }
}

/// One execution.
fn execute<S: Kind>(program: &Program) {
    set_scheduled(false);
    let storage = Arc::new(MemoryStorage::default());
    let store = S::open(storage.clone());
    let crowd = if program.grows() { CROWD } else { 0 };
    (0..crowd).for_each(|n| _ = store.act(1000 + n, Deed::Put(n)));
    let clock = Arc::new(Clock::default());
    let mut events = run_all(&store, &clock, &program.before);
    set_scheduled(true);
    let threads: Vec<_> = program.threads.iter().map(|acts| spawn(store.clone(), clock.clone(), program.is_warm, acts.clone())).collect();
    let (mut fresh, mut cuts) = (1_000_000, Vec::new());
    for chore in &program.chores {
        let called = clock.now();
        do_chore(&store, *chore, &mut fresh);
        // As the power goes: what a line has left out the next one would bring.
        if matches!(chore, Chore::Commit | Chore::Image) {
            cuts.push((called, Arc::new(storage.copy()), clock.now()));
        }
    }
    threads.into_iter().for_each(|thread| events.extend(thread.join().expect("no panic")));
    let all: Vec<_> = (0..KEYS).map(|key| Act::Plain(key, Deed::Get)).collect();
    events.extend(run_all(&store, &clock, &all));
    set_scheduled(false);
    do_chore(&store, Chore::Commit, &mut fresh);
    let crashed = Arc::new(storage.copy());
    for n in 0..crowd {
        assert!(matches!(store.act(1000 + n, Deed::Contains), Action::Contains(true)), "a key was lost while the index grew");
    }
    store.close();
    for files in [storage, crashed] {
        let store = S::open(files);
        events.extend(run_all(&store, &clock, &all));
        store.close();
    }
    // What was there after a cut is of one moment within the call that drew the line.
    for (called, files, returned) in cuts {
        let store = S::open(files);
        let seen = run_all(&store, &clock, &all).into_iter().flat_map(|event| event.action.0).collect();
        store.close();
        events.push(Event { key: 0, called, returned, action: Together(seen) });
    }
    if let Err(stuck) = check(&events) {
        panic!("no order explains: {stuck:#?}\nof {events:#?}\nprogram {program:#?}");
    }
}

fn run_all<S: Kind>(store: &S, clock: &Clock, acts: &[Act]) -> Vec<Event<Together>> {
    let mut recorder = Recorder::new(clock);
    for act in acts {
        let done = || match act {
            Act::Plain(key, deed) => Some(vec![(*key, store.act(*key, *deed))]),
            Act::Transaction(deeds) => store.transaction(deeds),
            Act::Reading(keys) => Some(store.reading(keys)),
        };
        recorder.record_if(0, || done().map(Together));
    }
    recorder.finish()
}

fn spawn<S: Kind>(store: S, clock: Arc<Clock>, is_warm: bool, acts: Vec<Act>) -> shuttle::thread::JoinHandle<Vec<Event<Together>>> {
    shuttle::thread::spawn(move || {
        if is_warm {
            store.act(KEYS, Deed::Contains);
        }
        run_all(&store, &clock, &acts)
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the programs of all seeds until so many schedules were tried.
fn explore<S: Kind>(schedules: u64) {
    seeds(schedules).for_each(|seed| schedule::<S>(Program::of(seed, S::CAN_APPEND), SCHEDULES_OF_A_PROGRAM));
}

/// Those of the programs that make so many schedules.
fn seeds(schedules: u64) -> std::ops::Range<u64> {
    let all = schedules.div_ceil(SCHEDULES_OF_A_PROGRAM as u64);
    number("ESKER_SEED").map_or(0..all, |seed| seed..seed + 1)
}

/// Runs one program in so many orders.
fn schedule<S: Kind>(program: Program, orders: usize) {
    in_orders(program.seed, orders, move || execute::<S>(&program));
}

fn in_orders(seed: u64, orders: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 19;
    config.max_steps = shuttle::MaxSteps::FailAfter(2_000_000);
    // Few preemptions at chosen places find one kind of bug, many anywhere another.
    if seed.is_multiple_of(2) {
        Runner::new(PctScheduler::new_from_seed(seed, 3, orders), config).run(run);
    } else {
        Runner::new(RandomScheduler::new_from_seed(seed, orders), config).run(run);
    }
}

/// Operations on key 1.
fn of_one(deeds: &[Deed]) -> Vec<Act> {
    deeds.iter().map(|deed| Act::Plain(1, *deed)).collect()
}

fn schedules() -> u64 {
    number("ESKER_SCHEDULES").unwrap_or(4_000)
}

#[test]
fn pairs_are_strictly_serializable_in_all_schedules() {
    explore::<Store<u64, u64>>(schedules());
}

#[test]
fn short_values_are_strictly_serializable_in_all_schedules() {
    explore::<Store<u64, [u64; 2]>>(schedules());
}

#[test]
fn bytes_are_strictly_serializable_in_all_schedules() {
    explore::<Store<u64, [u8]>>(schedules());
}

/// True if `look` finds that the rule is broken.
fn finds(rule: Rule, look: impl FnOnce()) -> bool {
    Weakness::set(Some(rule));
    let found = catch_unwind(AssertUnwindSafe(look)).is_err();
    Weakness::set(None);
    set_scheduled(false);
    found
}

#[test]
fn twins_of_any_program_are_found() {
    for rule in [Rule::DrainWaits, Rule::LookLatched, Rule::PieceEndsAtReadOnly, Rule::ReadsAreValidated, Rule::WritersLatch] {
        assert!(finds(rule, || explore::<Store<u64, u64>>(20_000)), "{rule:?} was not found");
    }
    // An append to a record that another one outgrows.
    assert!(finds(Rule::LatchedLooksAgain, || explore::<Store<u64, [u8]>>(20_000)), "an append to what is superseded was not found");
}

#[test]
fn twins_of_one_program_are_found() {
    let program = deleted_beside_an_append();
    assert!(finds(Rule::DeletionIsLatched, || schedule::<Store<u64, [u8]>>(program, 20_000)), "a lost deletion was not found");
    // A record that is changed in place by who saw it mutable, and copied by who saw it frozen.
    let threads = vec![of_one(&[Deed::Add(2), Deed::Add(3)]), of_one(&[Deed::Add(4), Deed::Add(5)])];
    let program = Program { seed: 2, before: of_one(&[Deed::Put(1)]), threads, is_warm: true, chores: vec![Chore::Freeze] };
    assert!(finds(Rule::FuzzyWaits, || schedule::<Store<u64, u64>>(program, 20_000)), "lost increments were not found");
    // A value of four words that is read and changed in place.
    let threads = vec![of_one(&[Deed::Get, Deed::Get]), of_one(&[Deed::Put(21), Deed::Put(22)])];
    let program = Program { seed: 1, before: of_one(&[Deed::Put(23)]), threads, is_warm: false, chores: Vec::new() };
    assert!(finds(Rule::VersionStandsStill, || schedule::<Store<u64, [u8]>>(program, 20_000)), "torn values were not found");
    assert!(
        finds(Rule::RoomIsLatched, || schedule::<Store<u64, [u8]>>(shortened_beside_a_put(), 100_000)),
        "a put over nobody's room was not found"
    );
    for rule in [Rule::GatesChange, Rule::HeraldGoesOn, Rule::HeraldEndsWithLine] {
        assert!(finds(rule, || in_orders(0, 20_000, write_durably_together)), "{rule:?}: sleep without end was not found");
    }
    assert!(
        finds(Rule::FailedLinesAreTold, || in_orders(0, 20_000, write_durably_with_little_room)),
        "sleep without end behind a line that failed was not found"
    );
    for rule in [Rule::LinesLeaveRecords, Rule::LinesDrain] {
        let program = written_while_a_line_is_drawn();
        assert!(finds(rule, || schedule::<Store<u64, u64>>(program, 20_000)), "{rule:?}: a loss was not found");
    }
}

/// The second put sees room that the first one gives up.
fn shortened_beside_a_put() -> Program {
    let threads = vec![of_one(&[Deed::Put(1)]), of_one(&[Deed::Put(100)])];
    Program { seed: 1, before: of_one(&[Deed::Put(116)]), threads, is_warm: true, chores: Vec::new() }
}

#[test]
fn a_put_beside_one_that_shortens_the_value_writes_over_nobody() {
    schedule::<Store<u64, [u8]>>(shortened_beside_a_put(), 20_000);
}

/// The record has no room for what is appended.
fn deleted_beside_an_append() -> Program {
    let threads = vec![of_one(&[Deed::Delete]), of_one(&[Deed::Append(11)])];
    // Even: one of them stands still while the other does all it has to.
    Program { seed: 2, before: of_one(&[Deed::Put(23)]), threads, is_warm: true, chores: Vec::new() }
}

/// Who deleted let go of the record's latch before the deletion was there: an append in between took the value along, and both were
/// acknowledged.
#[test]
fn a_deletion_comes_before_an_append_or_behind_it() {
    schedule::<Store<u64, [u8]>>(deleted_beside_an_append(), 2_000);
}

fn written_while_a_line_is_drawn() -> Program {
    Program {
        seed: 1,
        before: of_one(&[Deed::Put(7)]),
        threads: vec![of_one(&[Deed::Put(8)])],
        is_warm: false,
        chores: vec![Chore::Commit],
    }
}

/// Below a line's cut there may be records of the next line. With nothing above the cut the next commit drew no line, and what it
/// acknowledged was lost in a crash.
#[test]
fn what_was_written_while_a_line_was_drawn_is_in_the_next() {
    schedule::<Store<u64, u64>>(written_while_a_line_is_drawn(), 2_000);
}

/// Three threads, each of whose puts waits for a line, three puts, three and one: all return, whoever draws, and nothing they wrote is
/// lost. Who slept for good would be found as a deadlock.
fn write_durably_together() {
    set_scheduled(false);
    let storage = Arc::new(MemoryStorage::default());
    let store: Store<u64, u64> = options().durability(Durability::Always).open_in(storage.clone()).expect("opens");
    set_scheduled(true);
    let puts = |key: u64| [3, 3, 1][key as usize];
    let write = |key: u64| {
        let store = store.clone();
        shuttle::thread::spawn(move || (0..puts(key)).for_each(|number| store.put(&key, &number).expect("durable")))
    };
    let threads: Vec<_> = (0..3).map(write).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    set_scheduled(false);
    let crashed = Store::<u64, u64>::open(Arc::new(storage.copy()));
    assert!((0..3).all(|key| crashed.get(&key).expect("reads") == Some(puts(key) - 1)), "a durable put was lost");
    crashed.close();
    store.close();
}

#[test]
fn everybody_who_waits_for_a_line_is_woken() {
    (0..2).for_each(|seed| in_orders(seed, schedules() as usize / 2, write_durably_together));
}

/// Files of which the log's second write finds no room.
struct Scarce {
    files: Arc<MemoryStorage>,
    writes: Arc<AtomicU64>,
}

struct ScarceFile(Arc<dyn Device>, Option<Arc<AtomicU64>>);

impl Storage for Scarce {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        let writes = name.starts_with("esker.log.").then(|| self.writes.clone());
        Ok(Arc::new(ScarceFile(self.files.open(name)?, writes)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.files.sync()
    }
}

impl Device for ScarceFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.1.as_ref().is_some_and(|writes| writes.fetch_add(1, SeqCst) == 1) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
}

/// Four threads that put durably once, where the second line finds no room, and the store goes on: who is refused puts again.
fn write_durably_with_little_room() {
    set_scheduled(false);
    let (files, writes) = (Arc::new(MemoryStorage::default()), Arc::default());
    let place = Scarce { files: files.clone(), writes };
    let store: Store<u64, u64> = options().durability(Durability::Always).open_in(Arc::new(place)).expect("opens");
    set_scheduled(true);
    let write = |key: u64| {
        let store = store.clone();
        shuttle::thread::spawn(move || while store.put(&key, &key).is_err() {})
    };
    let threads: Vec<_> = (0..4).map(write).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    set_scheduled(false);
    let crashed = Store::<u64, u64>::open(Arc::new(files.copy()));
    assert!((0..4).all(|key| crashed.get(&key).expect("reads") == Some(key)), "a durable put was lost");
    crashed.close();
    store.close();
}

/// Those who waited for the line that failed slept on at a gate where one of them was woken by the next.
#[test]
fn everybody_who_waits_for_a_line_that_finds_no_room_is_woken() {
    (0..2).for_each(|seed| in_orders(seed, schedules() as usize / 2, write_durably_with_little_room));
}

/// A walk through memory asked for `head` once for itself and again for each record: when `head` passed a record in between, the
/// record was skipped, and its key was absent. Found by the first program tried; reduced to a delete beside an eviction.
#[test]
fn a_record_that_is_evicted_under_a_walk_is_seen() {
    let program = Program {
        seed: 1,
        before: of_one(&[Deed::Put(7)]),
        threads: vec![of_one(&[Deed::Delete])],
        is_warm: false,
        chores: vec![Chore::Evict],
    };
    schedule::<Store<u64, u64>>(program, 2_000);
}

/// A transaction that read x and writes y, beside a thread that puts x and then gets y by a batch.
fn crosswise_batch(frozen: bool) {
    set_scheduled(false);
    let store: Store<u64, u64> = options().open_in(Arc::new(MemoryStorage::default())).expect("opens");
    store
        .transaction(|tx| {
            tx.put(&0, &1)?;
            tx.put(&1, &1)
        })
        .expect("commits");
    if frozen {
        do_chore(&store, Chore::Freeze, &mut 0);
    }
    set_scheduled(true);
    let writer = {
        let store = store.clone();
        shuttle::thread::spawn(move || {
            set_scheduled(false);
            let mut tx = store.begin().expect("open");
            let read = tx.get(&0).expect("reads");
            tx.put(&1, &2).expect("puts");
            set_scheduled(true);
            (read, tx.commit().is_ok())
        })
    };
    let plain = {
        let store = store.clone();
        shuttle::thread::spawn(move || {
            set_scheduled(false);
            store.put(&0, &2).expect("puts");
            set_scheduled(true);
            let mut seen = None;
            store.get_many(&[1u64], |_, value| seen = value).expect("reads");
            seen
        })
    };
    let (read, committed) = writer.join().expect("no panic");
    let seen = plain.join().expect("no panic");
    set_scheduled(false);
    store.close();
    assert!(!(committed && read == Some(1) && seen == Some(1)), "the transaction came before the put, and after the get");
}

#[test]
fn a_batch_of_gets_beside_a_transaction_comes_before_it_or_behind_it() {
    for frozen in [false, true] {
        (0..2).for_each(|seed| in_orders(seed, 20_000, move || crosswise_batch(frozen)));
    }
}

/// Two threads move the pieces of a stretch in memory, a record each, while a third one works on two keys that share an entry.
fn moved_by_two(seed: u64) {
    set_scheduled(false);
    let store: Store<u64, [u8]> = options().in_memory().expect("opens");
    let engine = store.engine_for_test();
    engine.compaction.pieces.share_anyway();
    let told_by = |key: u64| engine.hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
    let mut known = HashMap::new();
    let keys: (u64, u64) = (0..).find_map(|key| known.insert(told_by(key), key).map(|first| (first, key))).expect("there are enough");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut some = |most| -> Vec<Act> {
        let count = random.random_range(1..=most);
        let mut one = |_| Act::Plain(if random.random_range(0..2) == 0 { keys.0 } else { keys.1 }, deed(&mut random, true));
        (0..count).map(&mut one).collect()
    };
    let clock = Arc::new(Clock::default());
    let mut events = Vec::new();
    for _ in 0..3 {
        events.extend(run_all(&store, &clock, &some(3)));
        do_chore(&store, Chore::Freeze, &mut 0);
    }
    set_scheduled(true);
    let writer = spawn(store.clone(), clock.clone(), true, some(3));
    let helper = {
        let store = store.clone();
        shuttle::thread::spawn(move || (0..3).for_each(|_| store.engine_for_test().help_or_wait()))
    };
    do_chore(&store, Chore::Compact, &mut 0);
    helper.join().expect("no panic");
    events.extend(writer.join().expect("no panic"));
    set_scheduled(false);
    do_chore(&store, Chore::Compact, &mut 0);
    events.extend(run_all(&store, &clock, &[Act::Plain(keys.0, Deed::Get), Act::Plain(keys.1, Deed::Get)]));
    store.close();
    if let Err(stuck) = check(&events) {
        panic!("no order explains: {stuck:#?}\nof {events:#?}\nseed {seed}");
    }
}

#[test]
fn what_two_threads_move_in_memory_is_what_was_there() {
    seeds(schedules()).for_each(|seed| in_orders(seed, SCHEDULES_OF_A_PROGRAM, move || moved_by_two(seed)));
}
