//! Keys that end by themselves: in every layout, wherever their records lie, and without one sleep.

use crate::raise::Raise;
use esker::aggregate::Count;
use esker::{Cache, Clock, Cursor, Error, Key, Loading, ManualClock, MemoryStorage, Options, Store, Ttl, Value};
use std::borrow::Borrow;
use std::cell::RefCell;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Scope, ScopedJoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

const SECOND: Duration = Duration::from_secs(1);
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);
const PAIRS: usize = 200;

/// Pairs of a layout.
trait Kind {
    type K: Key + ?Sized;
    type V: Value + ?Sized;
    fn key(n: usize) -> <Self::K as Value>::Owned;
    fn value(n: usize) -> <Self::V as Value>::Owned;
}

/// Words.
struct Words;
impl Kind for Words {
    type K = u64;
    type V = u64;
    fn key(n: usize) -> u64 {
        n as u64
    }
    fn value(n: usize) -> u64 {
        !(n as u64)
    }
}

/// Words with odd widths.
struct Narrow;
impl Kind for Narrow {
    type K = [u8; 13];
    type V = u32;
    fn key(n: usize) -> [u8; 13] {
        std::array::from_fn(|i| (n >> (i % 3 * 8)) as u8)
    }
    fn value(n: usize) -> u32 {
        n as u32 + 7
    }
}

/// Records of fixed width above a word.
struct Wide;
impl Kind for Wide {
    type K = u64;
    type V = [u8; 24];
    fn key(n: usize) -> u64 {
        n as u64
    }
    fn value(n: usize) -> [u8; 24] {
        [n as u8; 24]
    }
}

/// Bytes.
struct Bytes;
impl Kind for Bytes {
    type K = [u8];
    type V = [u8];
    fn key(n: usize) -> Vec<u8> {
        format!("key {n}{}", "-".repeat(n % 9)).into_bytes()
    }
    fn value(n: usize) -> Vec<u8> {
        vec![n as u8; n * 7 % 500]
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

type StoreOf<T> = Store<<T as Kind>::K, <T as Kind>::V>;

/// Every place where a record may be when its key ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Memory,
    Mutable,
    Frozen,
    Cold,
}

const PLACES: [Place; 4] = [Place::Memory, Place::Mutable, Place::Frozen, Place::Cold];

struct Trial<T: Kind> {
    clock: Arc<ManualClock>,
    store: StoreOf<T>,
    place: Place,
    folder: tempfile::TempDir,
}

impl<T: Kind> Trial<T> {
    fn new(place: Place) -> Self {
        let (clock, folder) = (Arc::new(ManualClock::default()), tempfile::tempdir().unwrap());
        let store = Self::open(place, &clock, &folder);
        Self { clock, store, place, folder }
    }

    fn open(place: Place, clock: &Arc<ManualClock>, folder: &tempfile::TempDir) -> StoreOf<T> {
        let options = Options::new().memory("16MiB").clock(clock.clone()).background(false);
        if place == Place::Memory { options.in_memory() } else { options.open(folder.path()) }.unwrap()
    }

    fn put(&self, n: usize, ttl: Duration) {
        self.store.put_with_ttl(T::key(n).borrow(), T::value(n).borrow(), ttl).unwrap();
    }

    fn get(&self, n: usize) -> Option<Vec<u8>> {
        self.store.get(T::key(n).borrow()).unwrap().map(|value| value.borrow().bytes().to_vec())
    }

    fn ttl(&self, n: usize) -> Option<Ttl> {
        self.store.ttl(T::key(n).borrow()).unwrap()
    }

    /// What was put so far goes where this trial wants it.
    fn settle(&self) {
        match self.place {
            Place::Memory | Place::Mutable => {}
            Place::Frozen => self.store.commit().unwrap(),
            Place::Cold => {
                let head = self.store.stats().log.tail;
                let mut n = 1 << 20;
                while self.store.stats().log.head < head {
                    (n..n + 1000).for_each(|n| self.store.put(T::key(n).borrow(), T::value(n).borrow()).unwrap());
                    n += 1000;
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.store.close().unwrap();
        self.store = Self::open(self.place, &self.clock, &self.folder);
    }
}

/// Every call takes the keys for absent from one instant on, and not before.
fn every_call_sees_the_end<T: Kind>() {
    for place in PLACES {
        let trial = Trial::<T>::new(place);
        (0..PAIRS).for_each(|n| trial.put(n, SECOND));
        trial.settle();
        trial.clock.advance(SECOND - Duration::from_millis(1));
        for n in 0..PAIRS {
            assert_eq!(trial.get(n).as_deref(), Some(T::value(n).borrow().bytes()), "{place:?}");
            assert_eq!(trial.ttl(n), Some(Ttl::Left(Duration::from_millis(1))), "{place:?}");
        }
        trial.clock.advance(Duration::from_millis(1));
        let (store, keys): (_, Vec<_>) = (&trial.store, (0..PAIRS).map(T::key).collect());
        let mut visited = 0;
        let visit = |_, value: Option<<T::V as Value>::View<'_>>| {
            visited += 1;
            assert!(value.is_none(), "{place:?}");
        };
        store.get_many(&keys, visit).unwrap();
        assert_eq!(visited, PAIRS);
        for (n, key) in keys.iter().enumerate() {
            let key = key.borrow();
            assert!(trial.get(n).is_none() && trial.ttl(n).is_none(), "{place:?} {n}");
            assert!(block_on(store.get_async(key)).unwrap().is_none() && !block_on(store.contains_async(key)).unwrap());
            match n % 4 {
                0 => assert!(!store.delete(key).unwrap()),
                1 => assert!(!store.persist(key).unwrap()),
                2 => assert!(!store.expire_at(key, SystemTime::now() + SECOND * 1_000_000_000).unwrap()),
                _ => {
                    let saw = store.rmw(key, |old| {
                        assert!(old.is_none(), "{place:?}");
                        T::value(n)
                    });
                    assert_eq!(saw.unwrap().borrow().bytes(), T::value(n).borrow().bytes());
                    // Made anew, it stays.
                    assert_eq!(trial.ttl(n), Some(Ttl::Forever));
                }
            }
        }
        assert_eq!(store.delete_many(&keys).unwrap(), PAIRS / 4, "{place:?}");
    }
}

/// What each call does to an end that has not come.
fn every_call_keeps_or_takes_the_end<T: Kind>() {
    for place in PLACES {
        let trial = Trial::<T>::new(place);
        (0..PAIRS).for_each(|n| trial.put(n, SECOND * 10));
        trial.settle();
        let later = esker::Clock::now(&*trial.clock) + SECOND * 20;
        for n in 0..PAIRS {
            let (key, value) = (T::key(n), T::value(n));
            let (key, store) = (key.borrow(), &trial.store);
            let want = match n % 6 {
                0 => {
                    store.put(key, value.borrow()).unwrap();
                    Ttl::Forever
                }
                1 => {
                    store.rmw(key, |old| old.map(|_| T::value(n)).unwrap()).unwrap();
                    Ttl::Left(SECOND * 10)
                }
                2 => {
                    assert!(store.persist(key).unwrap() && !store.persist(key).unwrap());
                    Ttl::Forever
                }
                3 => {
                    assert!(store.expire_at(key, later).unwrap());
                    Ttl::Left(SECOND * 20)
                }
                4 => {
                    trial.put(n, SECOND * 30);
                    Ttl::Left(SECOND * 30)
                }
                // From none to one again: what had none needs another record.
                _ => {
                    store.put(key, value.borrow()).unwrap();
                    assert!(store.expire_at(key, later).unwrap());
                    Ttl::Left(SECOND * 20)
                }
            };
            assert_eq!(trial.ttl(n), Some(want), "{place:?} {n}");
            assert_eq!(trial.get(n).as_deref(), Some(T::value(n).borrow().bytes()), "{place:?} {n}");
        }
        // An end that has passed is a deletion.
        assert!(trial.store.expire_at(T::key(0).borrow(), SystemTime::UNIX_EPOCH).unwrap());
        assert!(trial.get(0).is_none() && !trial.store.expire_at(T::key(0).borrow(), later).unwrap());
        trial.put(6, Duration::MAX);
        trial.put(12, Duration::ZERO);
        assert_eq!((trial.ttl(6), trial.ttl(12)), (Some(Ttl::Forever), None));
        trial.clock.advance(SECOND * 20);
        let alive: Vec<usize> = (0..PAIRS).filter(|n| trial.get(*n).is_some()).collect();
        let want: Vec<usize> = (0..PAIRS).filter(|n| matches!(n % 6, 0 | 2 | 4) && ![0, 12].contains(n)).collect();
        assert_eq!(alive, want, "{place:?}");
    }
}

/// What is read stays, what is not read goes, wherever it lies; and what has no end, or a later one, keeps it.
fn reads_put_an_end_off<T: Kind>() {
    for place in PLACES {
        let trial = Trial::<T>::new(place);
        for n in 0..PAIRS {
            match n % 4 {
                3 => trial.store.put(T::key(n).borrow(), T::value(n).borrow()).unwrap(),
                2 => trial.put(n, SECOND * 100),
                _ => trial.put(n, SECOND * 8),
            }
        }
        trial.settle();
        let renew =
            |n: usize| trial.store.get_and_renew(T::key(n).borrow(), SECOND * 8).unwrap().map(|value| value.borrow().bytes().to_vec());
        for _ in 0..3 {
            trial.clock.advance(SECOND * 6);
            for n in (0..PAIRS).filter(|n| n % 4 != 1) {
                assert_eq!(renew(n).as_deref(), Some(T::value(n).borrow().bytes()), "{place:?} {n}");
            }
        }
        for n in 0..PAIRS {
            let want = match n % 4 {
                3 => Some(Ttl::Forever),
                2 => Some(Ttl::Left(SECOND * 82)),
                1 => None,
                _ => Some(Ttl::Left(SECOND * 9)),
            };
            assert_eq!((trial.ttl(n), renew(n).is_some()), (want, want.is_some()), "{place:?} {n}");
        }
        // Not written again before it is nearer than that.
        trial.clock.advance(SECOND);
        assert!(renew(0).is_some());
        assert_eq!(trial.ttl(0), Some(Ttl::Left(SECOND * 8)));
        trial.clock.advance(Duration::from_millis(1));
        assert!(renew(0).is_some());
        assert_eq!(trial.ttl(0), Some(Ttl::Left(SECOND * 9)));
        trial.clock.advance(SECOND * 9);
        assert_eq!(renew(0), None);
    }
}

/// A clock that at one of its calls lets another thread do something first.
#[derive(Debug)]
struct Intruder {
    now: SystemTime,
    calls_left: AtomicU64,
    at: Barrier,
}

impl Clock for Intruder {
    fn now(&self) -> SystemTime {
        if self.calls_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
            self.at.wait();
            self.at.wait();
        }
        self.now
    }
}

/// A value that came meanwhile keeps its end, or that it has none, when that of the one before is put off; unless it is the one that was
/// read.
#[test]
fn what_is_put_meanwhile_keeps_its_end() {
    let clock = Arc::new(Intruder { now: SystemTime::UNIX_EPOCH + SECOND, calls_left: AtomicU64::new(0), at: Barrier::new(2) });
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    let (read_old, read_new) = (AtomicU64::new(0), AtomicU64::new(0));
    for ttl in [None, Some(SECOND)] {
        for call in 1.. {
            store.put_with_ttl(&1, &1, SECOND * 10).unwrap();
            clock.calls_left.store(call, SeqCst);
            let has_come = AtomicBool::new(true);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    clock.at.wait();
                    if has_come.load(SeqCst) {
                        match ttl {
                            None => store.put(&1, &2).unwrap(),
                            Some(ttl) => store.put_with_ttl(&1, &2, ttl).unwrap(),
                        }
                    }
                    clock.at.wait();
                });
                let read = store.get_and_renew(&1, SECOND * 20).unwrap();
                if clock.calls_left.swap(0, SeqCst) > 0 {
                    // No call so late.
                    has_come.store(false, SeqCst);
                    clock.at.wait();
                    clock.at.wait();
                    return assert_eq!((read, store.ttl(&1).unwrap()), (Some(1), Some(Ttl::Left(SECOND * 45 / 2))));
                }
                let want = match (read, ttl) {
                    (_, None) => Ttl::Forever,
                    (Some(1), Some(ttl)) => Ttl::Left(ttl),
                    (_, Some(_)) => Ttl::Left(SECOND * 45 / 2),
                };
                assert_eq!((store.get(&1).unwrap(), store.ttl(&1).unwrap()), (Some(2), Some(want)), "{ttl:?} at call {call}, {read:?}");
                if read == Some(1) { &read_old } else { &read_new }.fetch_add(1, SeqCst);
            });
            if !has_come.into_inner() {
                break;
            }
        }
    }
    assert!(read_old.load(SeqCst) > 1 && read_new.load(SeqCst) > 1, "{read_old:?} {read_new:?}");
}

/// A clock that at one of its calls lets another thread do something, which takes a second, before it tells the time that it was.
#[derive(Debug)]
struct Slow {
    now: AtomicU64,
    calls_left: AtomicU64,
    at: Barrier,
}

impl Clock for Slow {
    fn now(&self) -> SystemTime {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.now.load(SeqCst));
        if self.calls_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1) {
            self.at.wait();
            self.at.wait();
        }
        now
    }
}

/// Who is told that he put off an end did so of what is there: not of what another one found ended, and replaced.
#[test]
fn an_end_is_put_off_before_it_is_found_passed_or_not_at_all() {
    let (begin, ttl, other_ttl) = (1_000_000, SECOND, SECOND * 100);
    let clock = Arc::new(Slow { now: AtomicU64::new(begin), calls_left: AtomicU64::new(0), at: Barrier::new(2) });
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    type Update = fn(&Store<u64, u64>) -> bool;
    let updates: [(Update, Option<Ttl>); 3] = [
        (|store| store.rmw(&1, |old| old.map_or(7, |old| old + 10)).unwrap() == 7, Some(Ttl::Forever)),
        (|store| store.put_if_absent(&1, &7).unwrap(), Some(Ttl::Forever)),
        (|store| !store.delete(&1).unwrap(), None),
    ];
    for (update, left_behind) in updates {
        let (mut came, mut put_off) = (0, 0);
        for call in 1.. {
            clock.now.store(begin, SeqCst);
            store.put_with_ttl(&1, &1, ttl).unwrap();
            clock.calls_left.store(call, SeqCst);
            let (has_come, found_none) = (AtomicBool::new(true), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    clock.at.wait();
                    if has_come.load(SeqCst) {
                        clock.now.store(begin + 1000, SeqCst);
                        found_none.store(update(&store), SeqCst);
                    }
                    clock.at.wait();
                });
                let has_end = store.expire_at(&1, SystemTime::UNIX_EPOCH + Duration::from_millis(begin) + other_ttl).unwrap();
                if clock.calls_left.swap(0, SeqCst) > 0 {
                    has_come.store(false, SeqCst);
                    clock.at.wait();
                    clock.at.wait();
                    return;
                }
                came += 1;
                put_off += u32::from(has_end);
                let want = if has_end { Some(Ttl::Left(other_ttl - ttl)) } else { left_behind };
                assert_eq!(store.ttl(&1).unwrap(), want, "at call {call}: {has_end}, {found_none:?}");
                assert!(has_end || found_none.load(SeqCst), "at call {call}");
            });
            if !has_come.into_inner() {
                break;
            }
        }
        // Of what was deleted no end is put off.
        assert!(came > 1 && (put_off > 0) == left_behind.is_some(), "{came} {put_off}");
    }
}

thread_local! {
    /// What a [`Staged`] clock says to this thread, and where it stops.
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

struct Stage {
    millis: u64,
    calls_left: u64,
    arrived: Sender<()>,
    opens: Receiver<()>,
}

/// A clock that tells each thread its own time, and holds one up at one of its calls.
#[derive(Debug)]
struct Staged(u64);

impl Clock for Staged {
    fn now(&self) -> SystemTime {
        let millis = STAGE.with_borrow_mut(|stage| match stage {
            None => self.0,
            Some(stage) => {
                stage.calls_left = stage.calls_left.saturating_sub(1);
                if stage.calls_left == 0 {
                    // Dropped once it may go on; and later calls find that it is.
                    let _ = stage.arrived.send(());
                    let _ = stage.opens.recv();
                }
                stage.millis
            }
        });
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }
}

/// Runs `act` on a stage of its own; returns once it has stopped there or has ended, with what lets it go on.
fn staged<'s, R: Send + 's>(
    scope: &'s Scope<'s, '_>,
    (millis, calls_left): (u64, u64),
    act: impl FnOnce() -> R + Send + 's,
) -> (ScopedJoinHandle<'s, R>, Sender<()>) {
    let ((arrived, has_arrived), (open, opens)) = (channel(), channel());
    let thread = scope.spawn(move || {
        STAGE.set(Some(Stage { millis, calls_left, arrived, opens }));
        let done = act();
        STAGE.set(None);
        done
    });
    // An error: it has ended.
    let _ = has_arrived.recv();
    (thread, open)
}

/// The same while a line is drawn, and so the record freezes.
#[test]
fn an_end_is_put_off_before_it_is_found_passed_or_not_at_all_beside_a_line() {
    const BEGIN: u64 = 1_000_000;
    let options = Options::new().memory("16MiB").clock(Arc::new(Staged(BEGIN))).background(false);
    let store: Store<u64, u64> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let later = SystemTime::UNIX_EPOCH + Duration::from_millis(BEGIN) + SECOND * 100;
    let mut put_off = 0;
    for (call, other_call) in (1..5).flat_map(|call| (1..5).map(move |other| (call, other))) {
        store.put_with_ttl(&1, &1, SECOND).unwrap();
        let (has_end, found_none) = thread::scope(|scope| {
            let (renewal, let_renew) = staged(scope, (BEGIN + 999, call), || store.expire_at(&1, later).unwrap());
            let update = || store.rmw(&1, |old| old.map_or(7, |old| old + 10)).unwrap() == 7;
            let (update, let_update) = staged(scope, (BEGIN + 1000, other_call), update);
            let line = scope.spawn(|| store.commit().unwrap());
            // Nothing hangs on how far each comes meanwhile.
            thread::sleep(Duration::from_millis(10));
            drop(let_update);
            thread::sleep(Duration::from_millis(10));
            drop(let_renew);
            line.join().unwrap();
            (renewal.join().unwrap(), update.join().unwrap())
        });
        let want = if has_end { Ttl::Left(SECOND * 100) } else { Ttl::Forever };
        assert_eq!(store.ttl(&1).unwrap(), Some(want), "at calls {call} and {other_call}: {has_end}, {found_none}");
        put_off += u32::from(has_end);
    }
    assert!(put_off > 0);
}

/// `compact` told the listener of a cache that a pair had ended, which a call that had begun before put off: it lived on.
#[test]
fn what_is_put_off_while_compaction_finds_it_ended_is_not_told() {
    const BEGIN: u64 = 1_000_000;
    for call in 1..5 {
        let heard = Arc::new(AtomicU64::new(0));
        let counts = heard.clone();
        let cache = Cache::new().on_eviction(move |_, _, _| _ = counts.fetch_add(1, SeqCst));
        let options = Options::new().memory("16MiB").clock(Arc::new(Staged(BEGIN))).background(false).cache(cache);
        let store: Store<u64, [u8]> = options.in_memory().unwrap();
        store.put_with_ttl(&1, b"one", SECOND).unwrap();
        // Frozen, so that compaction has nobody to wait for.
        assert_eq!(store.scan().aggregate(Count).unwrap(), 1);
        let is_put_off = thread::scope(|scope| {
            let (renewal, let_renew) = staged(scope, (BEGIN + 500, call), || store.persist(&1).unwrap());
            let compaction = scope.spawn(|| {
                let ((arrived, _), (_open, opens)) = (channel(), channel());
                STAGE.set(Some(Stage { millis: BEGIN + 2000, calls_left: u64::MAX, arrived, opens }));
                store.compact().unwrap();
            });
            // Nothing hangs on how far it comes meanwhile.
            thread::sleep(Duration::from_millis(50));
            drop(let_renew);
            compaction.join().unwrap();
            renewal.join().unwrap()
        });
        assert!(is_put_off, "at call {call}");
        assert_eq!((store.get(&1).unwrap().as_deref(), heard.load(SeqCst)), (Some(&b"one"[..]), 0), "at call {call}");
    }
}

/// What expired is gone for good, and with it its space; what lies behind it does not come back.
fn compaction_drops_what_expired<T: Kind>() {
    for place in PLACES {
        let mut trial = Trial::<T>::new(place);
        // Older versions, without an end.
        (0..PAIRS).for_each(|n| trial.store.put(T::key(n).borrow(), T::value(n + 1).borrow()).unwrap());
        trial.settle();
        (0..PAIRS).for_each(|n| trial.put(n, SECOND * (1 + n as u32 % 2)));
        trial.settle();
        trial.clock.advance(SECOND);
        let lives = |trial: &Trial<T>, n: usize| trial.get(n).as_deref() == Some(T::value(n).borrow().bytes());
        for round in 0..3 {
            trial.store.compact().unwrap();
            assert!((0..PAIRS).all(|n| if n % 2 == 1 { lives(&trial, n) } else { trial.get(n).is_none() }), "{place:?} {round}");
            if place != Place::Memory {
                trial.reopen();
            }
        }
        let left = trial.ttl(1);
        assert_eq!(left, Some(Ttl::Left(SECOND)), "a copy keeps its end");
        trial.clock.advance(SECOND);
        let before = trial.store.stats().log;
        trial.store.compact().unwrap();
        let (after, expiry) = (trial.store.stats().log, trial.store.stats().expiry);
        assert!(after.begin > before.begin && expiry.dropped_records >= PAIRS as u64 / 2, "{place:?} {expiry:?}");
        assert!((0..PAIRS).all(|n| trial.get(n).is_none()), "{place:?}");
    }
}

fn a_reopened_store_knows_every_end<T: Kind>() {
    let mut trial = Trial::<T>::new(Place::Cold);
    (0..PAIRS).for_each(|n| trial.put(n, SECOND * (1 + n as u32)));
    for round in 0..4u32 {
        if round == 2 {
            trial.settle();
        }
        for n in (0..PAIRS).step_by(7) {
            let left = (SECOND * (1 + n as u32)).checked_sub(SECOND * 50 * round).filter(|left| !left.is_zero());
            assert_eq!(trial.ttl(n), left.map(Ttl::Left), "round {round}, key {n}");
        }
        trial.clock.advance(SECOND * 50);
        trial.reopen();
    }
}

macro_rules! in_every_layout {
    ($($story:ident),*) => { $(mod $story {
        use super::*;
        #[test]
        fn words() { super::$story::<Words>(); }
        #[test]
        fn narrow() { super::$story::<Narrow>(); }
        #[test]
        fn wide() { super::$story::<Wide>(); }
        #[test]
        fn bytes() { super::$story::<Bytes>(); }
    })* };
}

in_every_layout!(
    every_call_sees_the_end,
    every_call_keeps_or_takes_the_end,
    reads_put_an_end_off,
    compaction_drops_what_expired,
    a_reopened_store_knows_every_end
);

#[test]
fn an_append_keeps_the_end_and_starts_anew_after_it() {
    for place in PLACES {
        let trial = Trial::<Bytes>::new(place);
        let store = &trial.store;
        store.put_with_ttl(b"log", b"one", SECOND).unwrap();
        trial.settle();
        assert_eq!(store.append(b"log", b",two").unwrap(), 7);
        // In place now: the append before made room.
        assert_eq!(store.append(b"log", b",3").unwrap(), 9);
        assert_eq!(store.ttl(b"log").unwrap(), Some(Ttl::Left(SECOND)), "{place:?}");
        trial.clock.advance(SECOND);
        assert_eq!(store.append(b"log", b"anew").unwrap(), 4, "{place:?}");
        assert_eq!((store.get(b"log").unwrap(), store.ttl(b"log").unwrap()), (Some(b"anew".to_vec()), Some(Ttl::Forever)));
    }
}

/// A word changes in place without a latch; its way to a record with an end must not lose what is added meanwhile.
#[test]
fn no_update_is_lost_while_ends_come_and_go() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    let (done, rounds) = (AtomicBool::new(false), 60_000u64);
    let far = SystemTime::now() + SECOND * 1_000_000;
    std::thread::scope(|scope| {
        let _over = Raise(&done);
        let adding: Vec<_> = (0..4u64)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    for n in 0..rounds {
                        store.rmw(&(n % 3), |old| old.unwrap_or(0) + 1).unwrap();
                        if n % 1000 == 0 && thread == 0 {
                            store.commit().unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Relaxed) {
                for key in 0..3 {
                    store.expire_at(&key, far).unwrap();
                    store.persist(&key).unwrap();
                    // A copy of the whole value by another way: from now on it has no room for an end again.
                    store.rmw(&key, |old| old.unwrap_or(0)).unwrap();
                }
                for key in 10..20 {
                    store.put(&key, &key).unwrap();
                    assert!(store.expire_at(&key, far).unwrap());
                    assert_eq!(store.get(&key).unwrap(), Some(key));
                }
            }
        });
        adding.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let sum: u64 = (0..3).map(|key| store.get(&key).unwrap().unwrap()).sum();
    assert_eq!(sum, 4 * rounds);
}

/// Nobody reads, deletes or compacts: the driver finds out.
#[test]
fn expired_space_comes_back_by_itself() {
    let (clock, folder) = (Arc::new(ManualClock::default()), tempfile::tempdir().unwrap());
    let open = || Options::new().memory("16MiB").clock(clock.clone()).open::<u64, [u8; 100]>(folder.path()).unwrap();
    let store = open();
    for n in 0..200_000 {
        store.put_with_ttl(&n, &[7; 100], SECOND).unwrap();
    }
    (0..1000).for_each(|n| store.put(&(1 << 40 | n), &[8; 100]).unwrap());
    // What was known of it does not go with the process.
    store.close().unwrap();
    clock.advance(SECOND);
    let store = open();
    let extent = || store.stats().log.tail - store.stats().log.begin;
    let (begun, before) = (Instant::now(), extent());
    while extent() > before / 4 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", store.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((0..1000).all(|n| store.get(&(1 << 40 | n)).unwrap() == Some([8; 100])));
}

/// What had ended and was compacted needed no deletion, though somebody held it still: a crash brought it back, for a clock that was set
/// back.
#[test]
fn what_is_deleted_behind_its_end_stays_so_for_a_clock_that_is_set_back() {
    let (clock, files) = (Arc::new(ManualClock::default()), Arc::new(MemoryStorage::new()));
    let open = |clock: ManualClock, files: &Arc<MemoryStorage>| -> Store<u64, u64> {
        Options::new().memory("16MiB").background(false).clock(Arc::new(clock)).open_in(files.clone()).unwrap()
    };
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).clock(clock.clone()).open_in(files.clone()).unwrap();
    for key in 0..3 {
        store.put_with_ttl(&key, &1, SECOND).unwrap();
    }
    store.commit().unwrap();
    clock.advance(SECOND * 2);
    let scan = store.scan().iter().unwrap();
    store.compact().unwrap();
    assert!(!store.delete(&0).unwrap());
    store.transaction(|tx| tx.delete(&1).map(drop)).unwrap();
    store.commit().unwrap();
    let crashed = Arc::new(files.copy());
    drop(scan);
    let store = open(ManualClock::default(), &crashed);
    // What nobody deleted is there again, as is told.
    assert_eq!([0, 1, 2].map(|key| store.get(&key).unwrap()), [None, None, Some(1)]);
}

#[test]
fn a_full_memory_takes_back_what_expired() {
    let clock = Arc::new(ManualClock::default());
    for background in [true, false] {
        let options = Options::new().memory("16MiB").clock(clock.clone()).background(background);
        let store: Store<u64, [u8; 100]> = options.in_memory().unwrap();
        let fill = |from: u64| {
            for n in from.. {
                match store.put_with_ttl(&n, &[n as u8; 100], SECOND) {
                    Ok(()) => {}
                    Err(Error::Full) => return n - from,
                    Err(error) => panic!("{error}"),
                }
            }
            0
        };
        let first = fill(0);
        clock.advance(SECOND);
        let second = fill(1 << 32);
        assert!(second > first * 8 / 10, "{second} fit where {first} had expired");
    }
}

/// Nobody had counted it: the sample looks where the index leads.
#[test]
fn what_had_ended_on_the_device_is_dead_when_its_key_gets_a_value_again() {
    fn check<V: Value + ?Sized>(name: &str, value: &V, again: impl Fn(&Store<u64, V>, u64)) {
        let keys = if V::WIDTH.is_some() { 1_000_000 } else { 150_000 };
        let clock = Arc::new(ManualClock::default());
        let options = Options::new().memory("16MiB").background(false).promotion(false).clock(clock.clone());
        let store: Store<u64, V> = options.open_temporary().unwrap();
        (0..keys).for_each(|key| store.put_with_ttl(&key, value, Duration::from_secs(10)).unwrap());
        let before = store.stats();
        let cold = keys * before.log.head / before.log.tail - 1000;
        clock.advance(Duration::from_secs(20));
        (0..cold).step_by(10).for_each(|key| again(&store, key));
        let (dead, least) = (store.stats().space.dead_bytes, cold / 10 * (before.log.tail / keys) * 9 / 10);
        assert!(dead >= before.space.dead_bytes + least, "{name}: {dead} of {least}");
    }
    let bytes: &[u8] = &[7; 200];
    check("rmw", bytes, |store, key| assert_eq!(store.rmw(&key, |old| old.map_or(vec![7; 200], <[u8]>::to_vec)).unwrap().len(), 200));
    check("put_if_absent", bytes, |store, key| assert!(store.put_if_absent(&key, bytes).unwrap()));
    let load = |store: &Store<u64, [u8]>, key| _ = store.get_or_insert_with(&key, || Ok::<_, Error>(bytes.to_vec())).unwrap();
    check("get_or_insert_with", bytes, load);
    check("rmw of words", &1u64, |store, key| assert_eq!(store.rmw(&key, |old| old.unwrap_or(0) + 1).unwrap(), 1));
    check("put_if_absent of words", &1u64, |store, key| assert!(store.put_if_absent(&key, &2).unwrap()));
}

/// Samples had found nothing that ends, and nobody looked any more.
#[test]
fn ends_that_are_set_in_place_are_looked_for() {
    fn check<V: Value + ?Sized>(value: &V) {
        let clock = Arc::new(ManualClock::default());
        let store: Store<u64, V> = Options::new().memory("16MiB").background(false).clock(clock.clone()).in_memory().unwrap();
        let count = (0u64..).find(|key| store.put_with_ttl(key, value, Duration::from_secs(1000)).is_err()).unwrap();
        (0..count).for_each(|key| assert!(store.persist(&key).unwrap()));
        (0..10).for_each(|_| assert!(matches!(store.put(&count, value), Err(Error::Full))));
        let end = esker::Clock::now(&*clock) + Duration::from_secs(10);
        (0..count).for_each(|key| assert!(store.expire_at(&key, end).unwrap()));
        clock.advance(Duration::from_secs(20));
        (count..count + count / 2).for_each(|key| store.put(&key, value).unwrap());
    }
    check::<[u8]>(&[1; 200]);
    check(&1u64);
}

/// A small part of what is there suffices.
#[test]
fn a_full_store_finds_the_little_that_has_ended() {
    for part in [2, 10, 20] {
        let clock = Arc::new(ManualClock::default());
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).clock(clock.clone()).in_memory().unwrap();
        let put = |key: u64| match key % part {
            0 => store.put_with_ttl(&key, &[1; 200], Duration::from_secs(10)),
            _ => store.put(&key, &[1; 200]),
        };
        let count = (0u64..).find(|key| put(*key).is_err()).unwrap();
        clock.advance(Duration::from_secs(20));
        assert!(store.put(&count, &[1; 200]).is_ok(), "one of {part} has ended");
    }
}

/// Thousands of keys without an end for each that has one, but thousands of times as long: a sample met none, and was believed.
#[test]
fn what_has_ended_is_found_though_it_is_rare() {
    const LONG: u64 = 24;
    let clock = Arc::new(ManualClock::default());
    let options = Options::new().memory("64MiB").background(false).clock(clock.clone());
    let store: Store<u64, [u8]> = options.in_memory().unwrap();
    (0..LONG).for_each(|n| store.put_with_ttl(&(1 << 40 | n), &vec![1; 1 << 20], SECOND).unwrap());
    let fill = |from: u64| (from..).find(|key| store.put(key, &[2; 200]).is_err()).unwrap() - from;
    let count = fill(0);
    assert!(count > LONG * 2000, "{count}");
    // While nothing has ended it need not be looked for for ever.
    (0..100).for_each(|_| assert!(matches!(store.put(&(1 << 41), &[2; 200]), Err(Error::Full))));
    clock.advance(SECOND);
    let more: u64 = (1..400).map(|round| fill(round << 32)).sum();
    let fits = (LONG << 20) / 256;
    assert!(more > fits * 8 / 10, "{more} fit where {fits} would");
}

/// The same on a device, where the driver finds it.
#[test]
fn rare_long_values_that_have_ended_leave_the_device() {
    const LONG: u64 = 200;
    let clock = Arc::new(ManualClock::default());
    let options = Options::new().memory("32MiB").clock(clock.clone());
    let store: Store<u64, [u8]> = options.open_temporary().unwrap();
    (0..100_000u64).for_each(|key| store.put(&key, &[2; 200]).unwrap());
    (0..LONG).for_each(|n| store.put_with_ttl(&(1 << 40 | n), &vec![1; 1 << 20], SECOND).unwrap());
    clock.advance(SECOND);
    let extent = || store.stats().log.tail - store.stats().log.begin;
    let begun = Instant::now();
    // Live are some 25 MB, and the target is twice that, and half a file.
    while extent() > 100 << 20 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", store.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((0..100_000u64).all(|key| store.get(&key).unwrap().as_deref() == Some(&[2; 200][..])));
}

/// Plain calls do so as well.
#[test]
fn a_transaction_that_puts_and_deletes_leaves_nothing_older() {
    let clock = Arc::new(Turned::default());
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    store.put_with_ttl(&1, b"old", Duration::from_millis(1)).unwrap();
    clock.0.store(10, SeqCst);
    let change = |transaction: &mut esker::Transaction<'_, u64, [u8]>| {
        transaction.put(&1, b"new")?;
        transaction.delete(&1)
    };
    assert!(store.transaction(change).unwrap());
    clock.0.store(0, SeqCst);
    assert_eq!(store.get(&1).unwrap(), None);
}

/// A clock that can be set back.
#[derive(Debug, Default)]
struct Turned(AtomicU64);

impl Clock for Turned {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1000 + self.0.load(SeqCst))
    }
}

/// Another end for what has ended changes nothing: a clock that is set back shows it again.
#[test]
fn what_has_ended_gets_no_other_end_and_is_not_deleted() {
    let clock = Arc::new(Turned::default());
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    store.put_with_ttl(&1, b"old", Duration::from_millis(1)).unwrap();
    clock.0.store(10, SeqCst);
    assert!(!store.persist(&1).unwrap());
    clock.0.store(0, SeqCst);
    assert_eq!(store.get(&1).unwrap().as_deref(), Some(&b"old"[..]));
}

/// The end of a word went before what was to take its place was there: a closure that panics had changed what it was not to.
#[test]
fn a_panic_leaves_the_end_of_what_has_ended() {
    let clock = Arc::new(Turned::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    store.put_with_ttl(&1, &7, Duration::from_millis(1)).unwrap();
    clock.0.store(10, SeqCst);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.rmw(&1, |old| panic!("{old:?}"))));
    assert!(panicked.is_err() && store.get(&1).unwrap().is_none());
    clock.0.store(0, SeqCst);
    assert_eq!(store.get(&1).unwrap(), Some(7));
}

/// Nor does what is refused for want of room.
#[test]
fn what_is_refused_leaves_the_end_of_what_has_ended() {
    type Refused<'r> = &'r dyn Fn(&Store<u64, u64>) -> Result<(), Error>;
    let refused: [Refused<'_>; 3] =
        [&|store| store.rmw(&0, |old| old.unwrap_or(0) + 1).map(drop), &|store| store.put_if_absent(&0, &8).map(drop), &|store| {
            store.compare_and_swap(&0, None, Some(&8)).map(drop)
        }];
    for act in refused {
        let clock = Arc::new(Turned::default());
        let options = Options::new().memory("16MiB").clock(clock.clone()).background(false).cache(Cache::new());
        let store: Store<u64, u64> = options.in_memory().unwrap();
        // Nothing is dropped beside it.
        let _held = store.begin_read().unwrap();
        store.put_with_ttl(&0, &7, SECOND).unwrap();
        assert!((1..).any(|key| matches!(store.put(&key, &key), Err(Error::Full))));
        clock.0.store(2_000, SeqCst);
        assert!(matches!(act(&store), Err(Error::Full)));
        clock.0.store(0, SeqCst);
        assert_eq!(store.get(&0).unwrap(), Some(7));
    }
}

/// A value that a shorter one takes the place of gives up the room behind it, where its end was.
#[test]
fn a_shorter_value_in_place_keeps_its_end() {
    const LENGTHS: [usize; 5] = [1_500, 3_000, 5_000, 20_000, 300_000];
    let (clock, folder) = (Arc::new(ManualClock::default()), tempfile::tempdir().unwrap());
    let open =
        || -> Store<u64, [u8]> { Options::new().memory("16MiB").clock(clock.clone()).background(false).open(folder.path()).unwrap() };
    let mut store = open();
    let value = |key: u64, length: usize| vec![key as u8; length];
    let short = |key: u64| value(key, key as usize % 100);
    for (key, length) in (0u64..).zip([LENGTHS; 4].concat()) {
        match key % 2 {
            0 => store.put_with_ttl(&key, &value(key, length), SECOND * 10).unwrap(),
            _ => store.put(&key, &value(key, length)).unwrap(),
        }
    }
    let before = (store.stats().log.tail, store.stats().space.dead_bytes);
    for key in 0..20 {
        match key % 4 {
            0 | 1 => assert_eq!(store.rmw(&key, |_| short(key)).unwrap(), short(key)),
            2 => assert_eq!(store.transaction(|tx| tx.rmw(&key, |_| short(key))).unwrap(), short(key)),
            _ => store.put(&key, &short(key)).unwrap(),
        }
    }
    let after = (store.stats().log.tail, store.stats().space.dead_bytes);
    assert_eq!(after.0, before.0, "all in place");
    let given_up = 4 * LENGTHS.iter().sum::<usize>() as u64;
    // But for what the short ones have, and records that transactions made ahead.
    assert!((after.1 - before.1).abs_diff(given_up) < 20 * 150, "{before:?}, {after:?}, {given_up}");
    let check = |store: &Store<u64, [u8]>| {
        for key in 0..20 {
            assert_eq!(store.get(&key).unwrap(), Some(short(key)));
            assert_eq!(store.ttl(&key).unwrap(), Some(if key % 2 == 0 { Ttl::Left(SECOND * 10) } else { Ttl::Forever }), "{key}");
        }
        for scan in [store.scan().by_log(), store.scan().by_index()] {
            let mut count = 0;
            scan.for_each(|_, _| count += 1).unwrap();
            assert_eq!(count, 20);
        }
    };
    check(&store);
    // What grows again finds no room where it was.
    assert_eq!(store.append(&4, &[4; 5_000]).unwrap(), 5_004);
    store.put(&4, &short(4)).unwrap();
    store.expire_at(&4, esker::Clock::now(&*clock) + SECOND * 10).unwrap();
    check(&store);
    store.close().unwrap();
    assert!(esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    store = open();
    check(&store);
    store.compact().unwrap();
    check(&store);
    clock.advance(SECOND * 10);
    assert!((0..20).all(|key| store.contains(&key).unwrap() == (key % 2 == 1)));
}

/// While it does so others read it, and its end.
#[test]
fn values_that_shrink_and_grow_are_whole_for_others() {
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").clock(clock).in_memory().unwrap();
    let value = |seed: u64| vec![seed as u8; if seed.is_multiple_of(2) { 10_000 } else { 8 + seed as usize % 16 }];
    store.put_with_ttl(&1, &value(0), SECOND * 10).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let seen = store.get(&1).unwrap().unwrap();
                    assert!(
                        seen.iter().all(|byte| *byte == seen[0]) && seen.len() == value(seen[0].into()).len(),
                        "{} of {}",
                        seen[0],
                        seen.len()
                    );
                    assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(SECOND * 10)));
                }
            });
        }
        let _raise = Raise(&stop);
        (1..40_000).for_each(|seed| drop(store.rmw(&1, |_| value(seed)).unwrap()));
    });
}

/// It was deleted, and yet a clock that was set back showed it again: what had ended and could not be changed in place was left as it was.
#[test]
fn what_has_ended_is_deleted_all_the_same() {
    fn of<V: esker::Value<Owned = V> + PartialEq + std::fmt::Debug>(value: V) {
        let clock = Arc::new(Turned::default());
        let store: Store<u64, V> = Options::new().memory("16MiB").background(false).clock(clock.clone()).in_memory().unwrap();
        for delete in [|store: &Store<u64, V>| store.delete(&1).unwrap(), |store: &Store<u64, V>| store.delete_many(&[1]).unwrap() > 0] {
            clock.0.store(0, SeqCst);
            store.put_with_ttl(&1, &value, Duration::from_millis(1)).unwrap();
            // All that is there is frozen from here on.
            store.scan().for_each(|_, _| ()).unwrap();
            clock.0.store(10, SeqCst);
            assert!(!delete(&store));
            clock.0.store(0, SeqCst);
            assert_eq!(store.get(&1).unwrap(), None);
        }
    }
    of(7u64);
    of([7u8; 32]);
}

/// A clock that uses the store that asks it, and counts what it was refused.
#[derive(Default)]
struct Nosy {
    store: Mutex<Option<Store<u64, u64>>>,
    refused: AtomicU64,
    panics: AtomicBool,
}

impl std::fmt::Debug for Nosy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nosy")
    }
}

impl Clock for Nosy {
    fn now(&self) -> SystemTime {
        assert!(!self.panics.swap(false, SeqCst), "the clock panics, once");
        let store = self.store.lock().unwrap().clone();
        if let Some(store) = store {
            let calls: [&dyn Fn() -> Option<Error>; 5] = [
                &|| store.get(&1).err(),
                &|| store.rmw(&1, |_| 9).err(),
                &|| store.commit().err(),
                &|| store.scan().for_each(|_, _| ()).err(),
                &|| store.close().err(),
            ];
            for call in calls {
                assert!(matches!(call(), Some(Error::Invalid(_))));
                self.refused.fetch_add(1, SeqCst);
            }
        }
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    }
}

/// Under a lock of the store's own, and no pin, such a clock waited for itself.
#[test]
fn a_clock_that_uses_the_store_is_refused() {
    let clock = Arc::new(Nosy::default());
    let folder = tempfile::tempdir().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).open(folder.path()).unwrap();
    store.put_with_ttl(&1, &7, SECOND).unwrap();
    *clock.store.lock().unwrap() = Some(store.clone());
    assert_eq!(store.get(&1).unwrap(), Some(7));
    store.scan().for_each(|_, value| assert_eq!(value, 7)).unwrap();
    store.put(&2, &8).unwrap();
    store.commit().unwrap();
    let refused = clock.refused.load(SeqCst);
    assert!(refused >= 15, "{refused}");
    assert_eq!(store.get(&2).unwrap(), Some(8));
    store.close().unwrap();
    // A store and its clock that hold each other are never freed.
    *clock.store.lock().unwrap() = None;
}

/// A clock during whose next question another thread puts a value that stays; then a second passes.
#[derive(Debug, Default)]
struct Overtaking {
    store: Mutex<Option<Store<u64, u64>>>,
    is_armed: AtomicBool,
    seconds: AtomicU64,
}

impl Clock for Overtaking {
    fn now(&self) -> SystemTime {
        if self.is_armed.swap(false, SeqCst) {
            let store = self.store.lock().unwrap().clone().unwrap();
            thread::scope(|scope| scope.spawn(|| store.put(&7, &2).unwrap()).join().unwrap());
            self.seconds.fetch_add(1, SeqCst);
        }
        SystemTime::UNIX_EPOCH + SECOND * (1_000_000 + self.seconds.load(SeqCst) as u32)
    }
}

/// What had been found ended while its successor was put: the deletion said that there was nothing, and deleted nothing.
#[test]
fn what_takes_an_ended_values_place_in_time_is_deleted() {
    type Delete = fn(&Store<u64, u64>) -> bool;
    let deletions: [Delete; 2] = [|store| store.delete(&7).unwrap(), |store| store.delete_many(&[7]).unwrap() == 1];
    for delete in deletions {
        let clock = Arc::new(Overtaking::default());
        let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
        *clock.store.lock().unwrap() = Some(store.clone());
        store.put_with_ttl(&7, &1, SECOND / 2).unwrap();
        clock.is_armed.store(true, SeqCst);
        let was_there = delete(&store);
        assert!(!clock.is_armed.load(SeqCst));
        assert_eq!((was_there, store.get(&7).unwrap()), (true, None));
        *clock.store.lock().unwrap() = None;
    }
}

/// A clock that asks itself, by way of its store, and how deep it has gone.
#[derive(Debug, Default)]
struct Recursive {
    store: Mutex<Option<Store<u64, u64>>>,
    is_asked: AtomicBool,
    nested: AtomicU64,
    refused: AtomicU64,
}

impl Clock for Recursive {
    fn now(&self) -> SystemTime {
        let store = self.store.lock().unwrap().clone();
        if self.is_asked.load(SeqCst) {
            self.nested.fetch_add(1, SeqCst);
        } else if let Some(store) = store {
            self.is_asked.store(true, SeqCst);
            let end = SystemTime::UNIX_EPOCH + SECOND * 2_000_000;
            let results = [
                store.put_with_ttl(&1, &1, SECOND),
                store.expire_at(&1, end).map(drop),
                store.get_and_renew(&1, SECOND).map(drop),
                block_on(store.put_with_ttl_async(&1, &1, SECOND)),
                block_on(store.expire_at_async(&1, end)).map(drop),
                block_on(store.get_and_renew_async(&1, SECOND)).map(drop),
            ];
            for result in results {
                self.refused.fetch_add(u64::from(matches!(result, Err(Error::Invalid(_)))), SeqCst);
            }
            self.is_asked.store(false, SeqCst);
        }
        SystemTime::UNIX_EPOCH + SECOND * 1_000_000
    }
}

/// It went on until there was no stack left.
#[test]
fn a_clock_is_not_asked_from_inside_itself() {
    let clock = Arc::new(Recursive::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    store.put_with_ttl(&1, &7, SECOND).unwrap();
    *clock.store.lock().unwrap() = Some(store.clone());
    assert_eq!(store.get(&1).unwrap(), Some(7));
    store.put_with_ttl(&2, &7, SECOND).unwrap();
    let refused = clock.refused.load(SeqCst);
    assert!(refused >= 12 && refused.is_multiple_of(6), "{refused}");
    assert_eq!(clock.nested.load(SeqCst), 0);
    *clock.store.lock().unwrap() = None;
    assert_eq!(store.get(&1).unwrap(), Some(7));
}

/// Wherever it is asked: half a transaction was left in the log, and the driver's question latched the store.
#[test]
fn a_clock_that_panics_says_what_it_said() {
    let clock = Arc::new(Nosy::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).in_memory().unwrap();
    for _ in 0..3 {
        store.put_with_ttl(&1, &7, SECOND).unwrap();
        clock.panics.store(true, SeqCst);
        assert_eq!(store.get(&1).unwrap(), Some(7));
        assert!(!clock.panics.load(SeqCst));
        // The driver looks for what has ended.
        clock.panics.store(true, SeqCst);
        while clock.panics.load(SeqCst) {
            std::thread::yield_now();
        }
        store.put(&2, &8).unwrap();
        clock.panics.store(true, SeqCst);
        store.transaction(|tx| tx.rmw(&1, |old| old.unwrap())).unwrap();
    }
    assert!(store.stats().latched.is_none());
}

/// A clock that does something, once, when it is asked by one thread.
#[derive(Default)]
struct Sudden {
    millis: AtomicU64,
    act: Mutex<Option<(ThreadId, Act)>>,
}

type Act = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Sudden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sudden")
    }
}

impl Clock for Sudden {
    fn now(&self) -> SystemTime {
        let act = self.act.lock().unwrap().take_if(|(thread, _)| *thread == std::thread::current().id());
        if let Some((_, act)) = act {
            act();
        }
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.millis.load(SeqCst))
    }
}

/// What a clock had said counted to within a second, and zero for nothing: after a panic what had ended was there again, or all had.
#[test]
fn a_clock_that_panics_says_exactly_what_it_said() {
    let clock = Arc::new(Sudden::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    let panic_next = || *clock.act.lock().unwrap() = Some((std::thread::current().id(), Box::new(|| panic!("a clock"))));
    store.put_with_ttl(&1, &7, SECOND * 3600).unwrap();
    panic_next();
    assert_eq!(store.get(&1).unwrap(), Some(7), "at the beginning of 1970");
    clock.millis.store(5000, SeqCst);
    store.put_with_ttl(&2, &8, SECOND / 2).unwrap();
    clock.millis.store(5600, SeqCst);
    assert_eq!(store.get(&2).unwrap(), None);
    panic_next();
    assert_eq!(store.get(&2).unwrap(), None);
}

/// What a panic was thrown with panicked when it was dropped, and tore the drawing of a line: no transaction ended any more.
#[test]
fn a_clock_that_panics_with_a_bomb_tears_nothing() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb");
        }
    }
    let clock = Arc::new(Sudden::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    store.put(&1, &7).unwrap();
    *clock.act.lock().unwrap() = Some((std::thread::current().id(), Box::new(|| std::panic::panic_any(Bomb))));
    let seen = AtomicU64::new(0);
    store.scan().for_each(|_, value| _ = seen.fetch_add(value, SeqCst)).unwrap();
    assert!(seen.load(SeqCst) == 7 && clock.act.lock().unwrap().is_none());
    store.transaction(|tx| tx.rmw(&1, |old| old.unwrap() + 1)).unwrap();
    assert_eq!(store.get(&1).unwrap(), Some(8));
}

/// It waited for itself, under the lock of all who hold something.
#[test]
fn a_clock_may_end_what_holds_space() {
    static STORE: OnceLock<Store<u64, u64>> = OnceLock::new();
    let clock = Arc::new(Sudden::default());
    let options = Options::new().memory("16MiB").clock(clock.clone()).background(false);
    let store = STORE.get_or_init(|| options.in_memory().unwrap());
    store.put(&1, &7).unwrap();
    let reading = store.begin_read().unwrap();
    let (tell, told) = channel();
    let page = std::thread::spawn(move || {
        *clock.act.lock().unwrap() = Some((std::thread::current().id(), Box::new(move || drop(reading))));
        tell.send(store.scan_page(Cursor::START, 1).unwrap().pairs).unwrap();
        assert!(clock.act.lock().unwrap().is_none());
    });
    assert_eq!(told.recv_timeout(SECOND * 60).expect("it waits for itself"), [(1, 7)]);
    page.join().unwrap();
}

/// The reader has seen the old end; before that comes the key gets another end, or another value, and then the old end passes. It had a
/// value all the time.
#[test]
fn what_is_put_off_in_time_is_never_absent() {
    fn of<V: Value<Owned = V> + PartialEq + std::fmt::Debug + Copy + Send + Sync + 'static>(value: V) {
        let (clock, folder) = (Arc::new(Sudden::default()), tempfile::tempdir().unwrap());
        let instant = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let options = Options::new().memory("16MiB").background(false).promotion(false).clock(clock.clone());
        let store: Store<u64, V> = options.open(folder.path()).unwrap();
        let is_there = |read: &str| match read {
            "get" => store.get(&1).unwrap() == Some(value),
            "contains" => store.contains(&1).unwrap(),
            "ttl" => store.ttl(&1).unwrap().is_some(),
            _ => {
                let mut is_there = false;
                store.get_many(&[1], |_, found| is_there = found.is_some()).unwrap();
                is_there
            }
        };
        let make = move |store: &Store<u64, V>, change: &str, end| match change {
            "expire_at" => assert!(store.expire_at(&1, end).unwrap()),
            "persist" => assert!(store.persist(&1).unwrap()),
            _ => store.put(&1, &value).unwrap(),
        };
        for is_cold in [false, true] {
            for read in ["get", "contains", "ttl", "get_many"] {
                for change in ["expire_at", "persist", "put"] {
                    let begin = clock.millis.load(SeqCst);
                    store.put_with_ttl(&1, &value, SECOND).unwrap();
                    if is_cold {
                        store.commit().unwrap();
                        (0..300_000).for_each(|n| store.put(&(1000 + n), &value).unwrap());
                    }
                    let (other, time) = (store.clone(), clock.clone());
                    let act = move || {
                        let change = move || {
                            make(&other, change, instant(begin + 5000));
                            time.millis.store(begin + 1001, SeqCst);
                        };
                        std::thread::spawn(change).join().unwrap();
                    };
                    *clock.act.lock().unwrap() = Some((std::thread::current().id(), Box::new(act)));
                    assert!(is_there(read), "{read} beside {change}, cold: {is_cold}");
                    *clock.act.lock().unwrap() = None;
                    assert_eq!(store.get(&1).unwrap(), Some(value));
                }
            }
        }
    }
    of(7u64);
    of([7u8; 32]);
}

/// Another end is one word in the record, however long the value is.
#[test]
fn another_end_needs_no_new_record() {
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).clock(clock.clone()).in_memory().unwrap();
    let value = vec![7; 4 << 20];
    store.put_with_ttl(&1, &value, SECOND).unwrap();
    let before = store.stats();
    for n in 1..1000 {
        assert!(store.expire_at(&1, clock.now() + n * SECOND).unwrap());
    }
    assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(999 * SECOND)));
    assert!(store.persist(&1).unwrap());
    assert_eq!((store.ttl(&1).unwrap(), store.get(&1).unwrap()), (Some(Ttl::Forever), Some(value)));
    assert_eq!((store.stats().log.tail, store.stats().space.dead_bytes), (before.log.tail, before.space.dead_bytes));
}

/// Drops the last clone of the store, in the midst of what the store's own thread does.
#[derive(Debug, Default)]
struct Last(Mutex<Option<Store<u64, [u8]>>>);

impl Clock for Last {
    fn now(&self) -> SystemTime {
        if std::thread::current().name() == Some("esker-driver") {
            drop(self.0.lock().unwrap().take());
        }
        SystemTime::now()
    }
}

/// The close would have to wait for itself.
#[test]
fn the_last_clone_may_go_in_a_clock() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(Last::default()));
    let options = Options::new().memory("16MiB");
    let store: Store<u64, [u8]> = options.clone().clock(clock.clone()).open(folder.path()).unwrap();
    store.put(&1, b"two").unwrap();
    // So that the clock is asked.
    store.put_with_ttl(&3, b"four", Duration::from_secs(3600)).unwrap();
    *clock.0.lock().unwrap() = Some(store);
    let again: Store<u64, [u8]> = loop {
        match options.clone().open(folder.path()) {
            Err(Error::Locked(_)) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    assert_eq!([1, 3].map(|key| again.get(&key).unwrap()), [Some(b"two".to_vec()), Some(b"four".to_vec())]);
}

/// A clock that says more than whole milliseconds.
#[derive(Clone, Default, Debug)]
struct Fine(Arc<AtomicU64>);

impl Clock for Fine {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0.load(SeqCst))
    }
}

#[test]
fn nothing_ends_a_part_of_a_millisecond_early() {
    let clock = Fine::default();
    let set = |micros: u64| clock.0.store(1_000_000_000_000 + micros, SeqCst);
    set(900);
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(Arc::new(clock.clone())).background(false).in_memory().unwrap();
    let millisecond = Duration::from_millis(1);
    store.put_with_ttl(&1, &1, millisecond).unwrap();
    store.transaction(|tx| tx.put_with_ttl(&2, &2, millisecond)).unwrap();
    store.get_or_load(&3, &Loading::new().ttl(millisecond), || Ok::<_, Error>(Some(3))).unwrap();
    store.put_with_ttl(&4, &4, Duration::ZERO).unwrap();
    let held = || [1, 2, 3, 4].map(|key| store.get(&key).unwrap());
    assert_eq!(held(), [Some(1), Some(2), Some(3), None]);
    assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(millisecond)));
    set(1_900);
    assert_eq!(held(), [Some(1), Some(2), Some(3), None]);
    set(2_000);
    assert_eq!(held(), [None; 4]);
}

/// The old value's end was judged, and the new value copied, which had ended when it was put.
#[test]
fn a_value_is_read_with_its_own_end() {
    const BEGIN: u64 = 1_000_000;
    let options = || Options::new().memory("16MiB").clock(Arc::new(Staged(BEGIN))).background(false);
    let store: Store<u64, [u8]> = options().in_memory().unwrap();
    type Way = fn(&Store<u64, [u8]>) -> Option<Vec<u8>>;
    let ways: [Way; 4] = [
        |store| store.get(&1).unwrap(),
        |store| {
            let mut found = None;
            store.get_many(&[1], |_, value| found = value.map(<[u8]>::to_vec)).unwrap();
            found
        },
        |store| store.scan_page(Cursor::START, 10).unwrap().pairs.pop().map(|(_, value)| value),
        |store| store.get_or_load(&1, &Loading::new(), || Ok::<_, Error>(None)).unwrap(),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let mut has_waited = false;
        for call in 1..5 {
            store.put_with_ttl(&1, b"old", SECOND * 100).unwrap();
            let found = thread::scope(|scope| {
                let (reader, let_read) = staged(scope, (BEGIN, call), || way(&store));
                has_waited |= !reader.is_finished();
                store.put_with_ttl(&1, b"new", Duration::ZERO).unwrap();
                drop(let_read);
                reader.join().unwrap()
            });
            assert!(found.is_none_or(|found| found == b"old"), "by way {number} at call {call}");
        }
        assert!(has_waited, "way {number} asks no clock");
    }
}

/// What had ended was absent to the transaction, and there again when it committed: its update was lost.
#[test]
fn a_transaction_that_saw_an_end_conflicts_with_a_clock_that_is_set_back() {
    for (is_cold, sets_back) in [(false, true), (true, true), (false, false), (true, false)] {
        let clock = Arc::new(Turned::default());
        let options = Options::new().memory("16MiB").clock(clock.clone()).background(false);
        let store: Store<u64, u64> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
        store.put_with_ttl(&1, &41, Duration::from_millis(10)).unwrap();
        if is_cold {
            esker::rehearse::spill(&store, true).unwrap();
        }
        clock.0.store(20, SeqCst);
        let mut tx = store.begin().unwrap();
        assert_eq!(tx.rmw(&1, |old| old.unwrap_or(0) + 1).unwrap(), 1);
        if sets_back {
            clock.0.store(0, SeqCst);
            assert_eq!(store.get(&1).unwrap(), Some(41));
        }
        assert_eq!(matches!(tx.commit(), Err(Error::Conflict { .. })), sets_back, "cold: {is_cold}");
        assert_eq!(store.get(&1).unwrap(), Some(if sets_back { 41 } else { 1 }));
    }
}

/// A page judged what was written while it ran by the time at which it had begun.
#[test]
fn a_page_shows_nothing_that_had_ended_before_it_was_there() {
    let clock = Arc::new(Turned::default());
    let store: Store<u64, u64> = Options::new().memory("64MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    (0..10_000).for_each(|key| store.put(&key, &0).unwrap());
    let is_first = AtomicBool::new(true);
    let ends = |_, _| {
        if is_first.swap(false, SeqCst) {
            clock.0.store(1, SeqCst);
            (0..10_000).for_each(|key| store.put_with_ttl(&key, &7, Duration::ZERO).unwrap());
            assert_eq!(store.get(&5).unwrap(), None);
        }
        true
    };
    let page = store.scan().filter(ends).page(esker::Cursor::START, usize::MAX).unwrap();
    assert!(!page.pairs.is_empty() && page.pairs.iter().all(|(_, value)| *value != 7));
}
