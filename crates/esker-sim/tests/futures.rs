//! Futures agree with a model whenever they are polled, moved or dropped, and whatever the device does meanwhile.
//!
//! The theory: what a future lacks other threads bring, so what goes wrong lies between them: an answer for a future that is gone, a waker
//! that nobody calls, half a transaction, an acknowledged change that no line holds. So there are many lanes, each with keys of its own and
//! one future at a time. Worker threads poll them in any order, each time with a new waker, of which only the newest counts, and drop some
//! under way. A lane knows what its keys hold and judges each answer; after a future that failed or was dropped it looks what became of it:
//! all or nothing. Keys that lanes share count updates. The log is filled meanwhile, so that lanes ask for what is cold; the device is
//! slow, answers out of order, fails and panics; at last it breaks, or the store is closed under way. What a power cut would leave at any
//! time must hold what was durable by then, and a store that is gone has no waker.
//!
//! `ESKER_SEED` replays one seed's programs (not their schedule), `ESKER_SEQUENCES` sets the number of seeds.

use esker::{Durability, Error, MemoryStorage, Options, Result, Store, Ttl, Value};
use esker_sim::polling::{Task, rest};
use esker_sim::seeds::seeds;
use esker_sim::unsteady::{Faults, Unsteady};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::borrow::Borrow;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

const SEEDS: u64 = 4;
const LANES: u64 = 100;
const LANE_KEYS: usize = 40;
/// Keys of a batch.
const BATCH_KEYS: usize = 8;
/// Futures that a lane begins.
const CALLS: u64 = 80;
/// Keys that all lanes count.
const COUNTED: u64 = 1 << 40;
const COUNTED_KEYS: usize = 8;
const FILLING: u64 = 2 << 40;

// ---- values --------------------------------------------------------------------------------------------------------

type State = Option<Vec<u8>>;

/// Values that begin with a number.
trait Held: Value<Owned: Send + Sync> + Send + Sync + 'static {
    /// So many keys fill the log, so many of them at once.
    const FILLING: (u64, u64);
    fn of(number: u64) -> Vec<u8>;
    fn seen(view: Self::View<'_>) -> Vec<u8>;
    /// Where values grow.
    fn append(store: &Store<u64, Self>, key: u64, part: &[u8]) -> impl Future<Output = Result<usize>> + Send;
}

impl Held for u64 {
    const FILLING: (u64, u64) = (200_000, 6_000);

    fn of(number: u64) -> Vec<u8> {
        number.to_ne_bytes().to_vec()
    }

    fn seen(view: u64) -> Vec<u8> {
        Self::of(view)
    }

    async fn append(_: &Store<u64, u64>, _: u64, _: &[u8]) -> Result<usize> {
        unreachable!("words do not grow")
    }
}

impl Held for [u8] {
    const FILLING: (u64, u64) = (10_000, 300);

    fn of(number: u64) -> Vec<u8> {
        let length = 8 + xxh3_64(&number.to_ne_bytes()) as usize % 3000;
        number.to_ne_bytes().into_iter().cycle().take(length).collect()
    }

    fn seen(view: &[u8]) -> Vec<u8> {
        view.to_vec()
    }

    async fn append(store: &Store<u64, [u8]>, key: u64, part: &[u8]) -> Result<usize> {
        store.append_async(&key, part).await
    }
}

fn number_of(value: &[u8]) -> u64 {
    u64::from_ne_bytes(value[..8].try_into().unwrap())
}

fn bytes_of<V: Held + ?Sized>(owned: &V::Owned) -> Vec<u8> {
    Borrow::<V>::borrow(owned).bytes().to_vec()
}

// ---- what lanes share ----------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Drop,
    CloseUnderWay,
    WritesBreak,
    SyncsBreak,
}

struct World<V: Held + ?Sized> {
    store: Store<u64, V>,
    faults: Arc<Faults>,
    is_always_durable: bool,
    one_is_dropped_in: u32,
    /// Some are polled though nobody woke them; that hides who should have.
    is_hasty: bool,
    end: End,
    is_closed: AtomicBool,
    lanes_left: AtomicU64,
    /// Updates of each key that returned, and that began.
    counted: [(AtomicU64, AtomicU64); COUNTED_KEYS],
    /// Every waker has one.
    wakers: Arc<()>,
}

impl<V: Held + ?Sized> World<V> {
    async fn get(&self, key: u64) -> Result<State> {
        Ok(self.store.get_async(&key).await?.map(|value| bytes_of::<V>(&value)))
    }

    async fn put(&self, key: u64, new: &[u8], ends: bool) -> Result<()> {
        match ends {
            true => self.store.put_with_ttl_async(&key, V::own(new).borrow(), Duration::from_secs(100_000)).await,
            false => self.store.put_async(&key, V::own(new).borrow()).await,
        }
    }

    async fn update(&self, key: u64, old: State, new: &[u8]) -> Result<()> {
        let mut seen = None;
        let update = |old: Option<V::View<'_>>| {
            seen = old.map(V::seen);
            V::own(new)
        };
        let now = self.store.rmw_async(&key, update).await?;
        assert!(seen == old && bytes_of::<V>(&now) == new, "an update of key {key}");
        Ok(())
    }

    /// The first two keys become `new`, the third one, too, or it is deleted.
    async fn change_three(&self, keys: [u64; 3], olds: [State; 3], new: &[u8], deletes: bool) -> Result<()> {
        let mut tx = self.store.begin()?;
        let seen = tx.get_async(&keys[0]).await?.map(|value| bytes_of::<V>(&value));
        assert!(seen == olds[0], "a read of key {} in a transaction", keys[0]);
        tx.put(&keys[0], V::own(new).borrow())?;
        rest(keys[0] % 3).await;
        let mut seen = None;
        let update = |old: Option<V::View<'_>>| {
            seen = old.map(V::seen);
            V::own(new)
        };
        tx.rmw_async(&keys[1], update).await?;
        assert!(seen == olds[1], "an update of key {} in a transaction", keys[1]);
        match deletes {
            true => assert_eq!(tx.delete_async(&keys[2]).await?, olds[2].is_some(), "a deletion of key {} in a transaction", keys[2]),
            false => tx.put(&keys[2], V::own(new).borrow())?,
        }
        tx.commit_async().await
    }

    /// Puts `new` where the key holds what is thought, in one of three ways.
    async fn put_on_condition(&self, way: u64, key: u64, old: State, new: &[u8]) -> Result<()> {
        let new = V::own(new);
        let is_put = match (way, &old) {
            (0, _) => {
                let old = old.as_deref().map(V::own);
                self.store.compare_and_swap_async(&key, old.as_ref().map(Borrow::borrow), Some(new.borrow())).await?
            }
            (1, None) => self.store.put_if_absent_async(&key, new.borrow()).await?,
            _ => match self.store.get_versioned_async(&key).await? {
                Some((_, version)) => self.store.put_if_version_async(&key, version, new.borrow()).await?,
                None => self.store.put_if_absent_async(&key, new.borrow()).await?,
            },
        };
        assert!(is_put, "a put on a condition of key {key}");
        Ok(())
    }

    /// Gives a value another end, far away, or none; the value stays.
    async fn end(&self, key: u64, is_there: bool) -> Result<()> {
        let span = Duration::from_secs(100_000);
        assert_eq!(self.store.expire_at_async(&key, SystemTime::now() + span).await?, is_there, "an end for key {key}");
        assert_eq!(matches!(self.store.ttl_async(&key).await?, Some(Ttl::Left(_))), is_there, "the end of key {key}");
        assert_eq!(self.store.get_and_renew_async(&key, span * 2).await?.is_some(), is_there, "a later end for key {key}");
        assert_eq!(self.store.persist_async(&key).await?, is_there, "no end for key {key}");
        Ok(())
    }

    /// One kind of batch over these keys, to `new`, or by it.
    async fn change_many(&self, batch: Batch, keys: [u64; BATCH_KEYS], olds: [State; BATCH_KEYS], new: &[u8]) -> Result<()> {
        match batch {
            Batch::Get => {
                let mut seen: [Option<State>; BATCH_KEYS] = Default::default();
                self.store
                    .get_many_async(&keys, |i, value| assert!(seen[i].replace(value.map(V::seen)).is_none(), "visited twice"))
                    .await?;
                assert!(seen == olds.map(Some), "a batch of gets of key {} and others", keys[0]);
                Ok(())
            }
            Batch::Put => self.store.put_many_async(&keys.map(|key| (key, V::own(new)))).await,
            Batch::Update => {
                let update = |i: usize, old: Option<V::View<'_>>| {
                    assert!(old.map(V::seen) == olds[i], "an update of key {} in a batch", keys[i]);
                    V::own(new)
                };
                self.store.rmw_many_async(&keys, update).await
            }
            Batch::Delete => {
                let count = olds.iter().flatten().count();
                self.store.delete_many_async(&keys).await.map(|now| assert_eq!(now, count, "a batch of deletions of key {}", keys[0]))
            }
        }
    }

    /// Adds one to a number that others add to.
    async fn count(&self, which: usize, by_transaction: bool) -> Result<()> {
        let key = COUNTED + which as u64;
        let next = |old: Option<Vec<u8>>| V::own(&V::of(old.map_or(0, |old| number_of(&old)) + 1));
        self.counted[which].1.fetch_add(1, SeqCst);
        if !by_transaction {
            self.store.rmw_async(&key, |old| next(old.map(V::seen))).await?;
        } else {
            while !self.count_in_transaction(key, &next).await? {
                rest(1).await;
            }
        }
        self.counted[which].0.fetch_add(1, SeqCst);
        Ok(())
    }

    /// False if another was quicker.
    async fn count_in_transaction(&self, key: u64, next: &impl Fn(State) -> V::Owned) -> Result<bool> {
        let mut tx = self.store.begin()?;
        let old = tx.get_async(&key).await?.map(|value| bytes_of::<V>(&value));
        tx.put(&key, next(old).borrow())?;
        match tx.commit_async().await {
            Err(Error::Conflict { .. }) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// What is there now, however often the device fails; `None` when the store is closed.
    fn look(&self, key: u64) -> Option<State> {
        loop {
            match self.store.get(&key) {
                Ok(value) => return Some(value.map(|value| bytes_of::<V>(&value))),
                Err(Error::Io(_)) => {}
                Err(error) => return self.excuse(&error).then_some(None)?,
            }
        }
    }

    /// True if the store was closed.
    fn excuse(&self, error: &Error) -> bool {
        let is_closed = matches!(error, Error::Closed);
        assert!(matches!(error, Error::Io(_)) || is_closed && self.is_closed.load(SeqCst), "{error}");
        is_closed
    }

    /// What comes of the store while futures are under way.
    fn end_under_way(&self) {
        match self.end {
            End::Close | End::Drop => {}
            End::CloseUnderWay => {
                self.is_closed.store(true, SeqCst);
                self.store.close().unwrap();
            }
            End::WritesBreak => self.faults.are_writes_broken.store(true, SeqCst),
            End::SyncsBreak => self.faults.are_syncs_broken.store(true, SeqCst),
        }
    }

    /// What lanes ask for becomes cold.
    fn fill(&self, random: &mut ChaCha8Rng) {
        let (keys, count) = V::FILLING;
        let result = match random.random_range(0..60) {
            0 => self.store.compact().map(|_| ()),
            1 => self.store.commit(),
            2 => self.store.save_index(),
            _ => {
                let pair = |_| (FILLING + random.random_range(0..keys), V::own(&V::of(random.random())));
                self.store.put_many(&(0..count).map(pair).collect::<Vec<_>>())
            }
        };
        let _ = result.map_err(|error| self.excuse(&error));
    }
}

// ---- a lane --------------------------------------------------------------------------------------------------------

/// What a key has held.
struct Record {
    /// All of it, and what a future under way may make of it.
    states: Vec<State>,
    /// The last one that it surely had.
    known: usize,
    /// The last one that is surely durable.
    durable: usize,
}

struct Running {
    task: Task<Result<()>>,
    /// The keys of the lane that it changes.
    changes: Vec<usize>,
    is_commit: bool,
    /// All of it is made or nothing.
    is_whole: bool,
}

#[derive(Clone, Copy)]
enum Batch {
    Get,
    Put,
    Update,
    Delete,
}

struct Lane {
    number: u64,
    random: ChaCha8Rng,
    begun: u64,
    records: Vec<Record>,
    running: Option<Running>,
    is_over: bool,
}

impl Lane {
    fn new(seed: u64, number: u64) -> Lane {
        let record = || Record { states: vec![None], known: 0, durable: 0 };
        let records = std::iter::repeat_with(record).take(LANE_KEYS).collect();
        Lane { number, random: ChaCha8Rng::seed_from_u64(seed << 20 | number), begun: 0, records, running: None, is_over: false }
    }

    fn key(&self, at: usize) -> u64 {
        self.number * LANE_KEYS as u64 + at as u64
    }

    fn newest(&self, at: usize) -> State {
        self.records[at].states.last().cloned().flatten()
    }

    /// Draws a future.
    fn begin<V: Held + ?Sized>(&mut self, world: &Arc<World<V>>) -> Running {
        self.begun += 1;
        let world = world.clone();
        let at = self.random.random_range(0..LANE_KEYS);
        let (key, old, new) = (self.key(at), self.newest(at), V::of(self.number << 32 | self.begun));
        let (which, flag) = (self.random.random_range(0..COUNTED_KEYS), self.random.random());
        let mut changes = Vec::new();
        let (mut is_commit, mut is_whole) = (false, true);
        let mut change = |at, state| changes.push((at, state));
        let judge = move |is_right: bool, call: &str| assert!(is_right, "{call} of key {key}");
        let task = match self.random.random_range(0..100) {
            0..26 => Task::new(async move { world.get(key).await.map(|now| judge(now == old, "a get")) }),
            26..30 => Task::new(async move { world.store.contains_async(&key).await.map(|is| judge(is == old.is_some(), "a look")) }),
            30..33 => Task::new(async move { world.end(key, old.is_some()).await }),
            33..38 => {
                change(at, Some(new.clone()));
                let way = u64::from(flag) + which as u64 % 2;
                Task::new(async move { world.put_on_condition(way, key, old, &new).await })
            }
            38..50 => {
                change(at, Some(new.clone()));
                Task::new(async move { world.put(key, &new, flag).await })
            }
            50..62 => {
                change(at, Some(new.clone()));
                Task::new(async move { world.update(key, old, &new).await })
            }
            62..70 => {
                change(at, None);
                Task::new(async move { world.store.delete_async(&key).await.map(|was| judge(was == old.is_some(), "a deletion")) })
            }
            70..76 if V::WIDTH.is_none() => {
                let whole = [old.unwrap_or_default(), new.clone()].concat();
                let length = whole.len();
                change(at, Some(whole));
                Task::new(async move { V::append(&world.store, key, &new).await.map(|now| judge(now == length, "an appending")) })
            }
            76..84 => {
                let ats = [at, (at + 7) % LANE_KEYS, (at + 19) % LANE_KEYS];
                let (keys, olds) = (ats.map(|at| self.key(at)), ats.map(|at| self.newest(at)));
                ats.iter().for_each(|other| change(*other, (!flag || *other != ats[2]).then(|| new.clone())));
                Task::new(async move { world.change_three(keys, olds, &new, flag).await })
            }
            84..91 => {
                let batch = [Batch::Get, Batch::Put, Batch::Update, Batch::Delete][self.random.random_range(0..4)];
                // Distinct ones: 8 times 5 places on.
                let ats: [usize; BATCH_KEYS] = std::array::from_fn(|i| (at + 5 * i) % LANE_KEYS);
                let (keys, olds) = (ats.map(|at| self.key(at)), ats.map(|at| self.newest(at)));
                let becomes = match batch {
                    Batch::Get => None,
                    Batch::Put | Batch::Update => Some(Some(new.clone())),
                    Batch::Delete => Some(None),
                };
                becomes.iter().for_each(|state| ats.iter().for_each(|at| change(*at, state.clone())));
                is_whole = false;
                Task::new(async move { world.change_many(batch, keys, olds, &new).await })
            }
            91..96 => Task::new(async move { world.count(which, flag).await }),
            _ => {
                is_commit = true;
                Task::new(async move { world.store.commit_async().await })
            }
        };
        let changes = changes.into_iter().map(|(at, state)| {
            self.records[at].states.push(state);
            at
        });
        Running { task, changes: changes.collect(), is_commit, is_whole }
    }

    /// Polls the future if it was woken, or for nothing; drops it now and then. False if there was nothing to do.
    fn step<V: Held + ?Sized>(&mut self, world: &Arc<World<V>>) -> bool {
        let Some(mut running) = self.running.take().or_else(|| self.next(world)) else { return false };
        if running.task.was_polled() && self.random.random_ratio(1, world.one_is_dropped_in) {
            let Running { task, changes, is_whole, .. } = running;
            drop(task);
            self.settle(world, &changes, true, is_whole);
            return true;
        }
        if running.task.is_waiting() && !(world.is_hasty && self.random.random_ratio(1, 50)) {
            self.running = Some(running);
            return false;
        }
        match running.task.poll(&world.wakers) {
            Poll::Pending => self.running = Some(running),
            Poll::Ready(Ok(())) => self.acknowledge(world, &running),
            // Keys of two transactions may share a latch.
            Poll::Ready(Err(Error::Conflict { .. })) => self.settle(world, &running.changes, false, running.is_whole),
            Poll::Ready(Err(error)) => {
                world.excuse(&error);
                self.settle(world, &running.changes, true, running.is_whole);
            }
        }
        true
    }

    fn next<V: Held + ?Sized>(&mut self, world: &Arc<World<V>>) -> Option<Running> {
        if self.begun < CALLS && !world.is_closed.load(SeqCst) {
            if (self.number, self.begun) == (0, CALLS * 3 / 4) {
                world.end_under_way();
            }
            return Some(self.begin(world));
        }
        if !std::mem::replace(&mut self.is_over, true) {
            world.lanes_left.fetch_sub(1, SeqCst);
        }
        None
    }

    fn acknowledge<V: Held + ?Sized>(&mut self, world: &World<V>, running: &Running) {
        for &at in &running.changes {
            let record = &mut self.records[at];
            record.known = record.states.len() - 1;
            if world.is_always_durable {
                record.durable = record.known;
            }
        }
        if running.is_commit {
            self.records.iter_mut().for_each(|record| record.durable = record.known);
        }
    }

    /// What a future that failed or was dropped was to change is changed or not, but all of it or nothing; of a batch, each key.
    fn settle<V: Held + ?Sized>(&mut self, world: &World<V>, changes: &[usize], may_be_made: bool, is_whole: bool) {
        let mut was_made = None;
        for &at in changes {
            let Some(now) = world.look(self.key(at)) else { return };
            let record = &mut self.records[at];
            let [.., old, new] = &record.states[..] else { unreachable!("a change comes behind a state") };
            assert!(now == *old || may_be_made && now == *new, "key {at} of lane {} after a change that failed", self.number);
            if old != new && is_whole {
                let is_made = now == *new;
                assert_eq!(*was_made.get_or_insert(is_made), is_made, "half of a transaction of lane {}", self.number);
            }
            record.states.push(now);
            record.known = record.states.len() - 1;
        }
    }
}

// ---- a program -----------------------------------------------------------------------------------------------------

type Lanes = [Mutex<Lane>];

/// What a power cut would leave now is what was durable before, or later.
fn check_copy<V: Held + ?Sized>(options: &Options, files: &MemoryStorage, lanes: &Lanes) {
    let durable = |lane: &Mutex<Lane>| lane.lock().unwrap().records.iter().map(|record| record.durable).collect();
    let durable: Vec<Vec<usize>> = lanes.iter().map(durable).collect();
    let options = options.clone().durability(Durability::None).background(false);
    let store: Store<u64, V> = options.open_in(Arc::new(files.copy())).unwrap();
    for (lane, durable) in lanes.iter().map(|lane| lane.lock().unwrap()).zip(durable) {
        for (at, record) in lane.records.iter().enumerate() {
            let now = store.get(&lane.key(at)).unwrap().map(|value| bytes_of::<V>(&value));
            let (found, durable) = (record.states.iter().rposition(|state| *state == now), durable[at]);
            assert!(found >= Some(durable), "key {at} of lane {} after a power cut is as of {found:?}, {durable} was durable", lane.number);
        }
    }
}

fn work<V: Held + ?Sized>(world: &Arc<World<V>>, lanes: &Lanes, random: &mut ChaCha8Rng) {
    let mut idle = 0;
    while world.lanes_left.load(SeqCst) > 0 {
        if random.random_ratio(1, 60) {
            world.fill(random);
        }
        let lane = &lanes[random.random_range(0..lanes.len())];
        idle = if lane.lock().unwrap().step(world) { 0 } else { idle + 1 };
        if idle > lanes.len() {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// All is there that was acknowledged, though the device may be broken.
fn check_store<V: Held + ?Sized>(world: &World<V>, lanes: &Lanes) {
    for lane in lanes.iter().map(|lane| lane.lock().unwrap()) {
        for at in 0..LANE_KEYS {
            assert!(world.look(lane.key(at)) == Some(lane.newest(at)), "key {at} of lane {} in the end", lane.number);
        }
    }
    for (key, (returned, begun)) in (COUNTED..).zip(&world.counted) {
        let now = world.look(key).flatten().map_or(0, |value| number_of(&value));
        assert!((returned.load(SeqCst)..=begun.load(SeqCst)).contains(&now), "key {key} counts {now}, not {returned:?} to {begun:?}");
    }
}

/// How often something was cold.
fn run<V: Held + ?Sized>(seed: u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut one_of = |of: &[u64]| of[random.random_range(0..of.len())];
    let faults = Arc::new(Faults::new(one_of(&[0, 20, 100]), one_of(&[0, 0, 50, 1000]), one_of(&[0, 0, 100])));
    let durability = [Durability::None, Durability::Every(Duration::from_millis(5)), Durability::Always][one_of(&[0, 1, 2, 2]) as usize];
    let end = [End::Close, End::Drop, End::CloseUnderWay, End::WritesBreak, End::SyncsBreak][one_of(&[0, 1, 2, 2, 3, 4]) as usize];
    let (threads, one_is_dropped_in) = (one_of(&[1, 2, 3]), one_of(&[20, 200, 100_000]) as u32);
    let options = Options::new().memory("16MiB").durability(durability).segment_bytes(one_of(&[64 << 10, 1 << 20, 4 << 20]));
    let options = options.background(one_of(&[0, 1, 1]) == 1).promotion(one_of(&[0, 1]) == 1);
    println!("ESKER_SEED={seed} {threads} threads, drops one in {one_is_dropped_in}, {end:?}, {faults:?}, {options:?}");

    let files = Arc::new(MemoryStorage::new());
    let world = Arc::new(World::<V> {
        store: options.clone().open_in(Arc::new(Unsteady(faults.clone(), files.clone()))).unwrap(),
        faults: faults.clone(),
        is_always_durable: durability == Durability::Always,
        one_is_dropped_in,
        is_hasty: one_of(&[0, 1]) == 1,
        end,
        is_closed: AtomicBool::new(false),
        lanes_left: AtomicU64::new(LANES),
        counted: Default::default(),
        wakers: Arc::default(),
    });
    let lanes: Vec<Mutex<Lane>> = (0..LANES).map(|number| Mutex::new(Lane::new(seed, number))).collect();
    thread::scope(|scope| {
        (0..threads).for_each(|thread| {
            let (world, lanes) = (&world, &lanes);
            scope.spawn(move || work(world, lanes, &mut ChaCha8Rng::seed_from_u64(seed << 20 | 1 << 10 | thread)));
        });
        while world.lanes_left.load(SeqCst) > 0 {
            check_copy::<V>(&options, &files, &lanes);
            thread::sleep(Duration::from_millis(100));
        }
    });
    faults.are_off.store(true, SeqCst);
    if end != End::CloseUnderWay {
        check_store(&world, &lanes);
    }
    let device_reads = world.store.stats().operations.device_reads;
    if end == End::Close {
        world.store.close().unwrap();
    }
    let wakers = world.wakers.clone();
    assert!(Arc::into_inner(world).is_some(), "a future lives");
    assert_eq!(Arc::strong_count(&wakers), 1, "wakers live");
    if !matches!(end, End::WritesBreak | End::SyncsBreak) {
        lanes.iter().for_each(|lane| lane.lock().unwrap().records.iter_mut().for_each(|record| record.durable = record.known));
    }
    check_copy::<V>(&options, &files, &lanes);
    device_reads
}

/// A program that ends early may find all it asks for in memory; not all of them.
fn run_all<V: Held + ?Sized>() {
    let seeds = seeds(SEEDS);
    let (count, device_reads) = (seeds.len(), seeds.into_iter().map(run::<V>).sum::<u64>());
    assert!(device_reads > 0 || count == 1, "nothing was cold");
}

#[test]
fn of_words() {
    run_all::<u64>();
}

#[test]
fn of_bytes() {
    run_all::<[u8]>();
}
