//! A cache is bounded, makes room, keeps what is asked for, loads once, and tells what it drops.

use crate::common::block_on;
use crate::minded::{Call, Minded};
use crate::raise::Raise;
use esker::{Cache, Durability, Error, Eviction, Loading, ManualClock, MemoryStorage, Options, Storage, Store, Ttl, Value};
use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const BUDGET: u64 = 16 << 20;
const DISK: u64 = 64 << 20;

/// Small numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn options() -> Options {
    Options::new().memory(BUDGET).cache(Cache::new())
}

fn value_of(n: u64) -> Vec<u8> {
    vec![n as u8; 64 + (n * 37 % 400) as usize]
}

type Pages = Store<u64, [u8]>;
/// What a listener was told of each key.
type Heard = Mutex<HashMap<Vec<u8>, Vec<(Vec<u8>, Eviction)>>>;

fn pages(background: bool) -> Pages {
    options().background(background).in_memory().unwrap()
}

#[test]
fn words_five_times_the_budget_are_put_and_never_refused() {
    for background in [true, false] {
        let store: Store<u64, u64> = options().background(background).in_memory().unwrap();
        let count = BUDGET * 5 / 24;
        for n in 0..count {
            store.put(&n, &(n * 3)).unwrap();
            if n % 20_000 == 0 {
                let memory = store.stats().memory;
                assert!(memory.total_bytes <= BUDGET + BUDGET / 32, "{memory:?}");
            }
        }
        let found: Vec<u64> = (0..count).filter(|n| store.get(n).unwrap().is_some_and(|value| value == n * 3)).collect();
        // The newest are all there, the oldest are not.
        let held = found.len() as u64;
        assert!(found[0] > count / 2 && found.ends_with(&[count - 2, count - 1]), "{held} from {}", found[0]);
        assert!(held * 24 > BUDGET / 4, "only {held} pairs of a full cache: {:?}", store.stats());
        let cache = store.stats().cache.unwrap();
        assert_eq!(cache.evictions + held, count, "{cache:?}");
    }
}

#[test]
fn bytes_of_any_length_never_fill_it_from_any_number_of_threads() {
    let store = pages(true);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for n in 0..40_000u64 {
                    let key = random.below(100_000);
                    match n % 1000 {
                        0 => store.put(&key, &vec![key as u8; 1 << 20]).unwrap(),
                        1 => _ = store.append(&key, &value_of(key)).unwrap(),
                        2 => _ = store.delete(&key).unwrap(),
                        _ => store.put(&key, &value_of(key)).unwrap(),
                    }
                    if let Some(value) = store.get(&key).unwrap() {
                        assert!(value.iter().all(|byte| *byte == key as u8), "another key's value");
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.memory.total_bytes <= BUDGET + BUDGET / 32, "{stats:?}");
    // What does not fit at all is an error of the caller's, not of the moment's.
    assert!(matches!(store.put(&1, &vec![0; 5 << 20]), Err(Error::Invalid(_))));
}

#[test]
fn a_smaller_budget_drops_what_no_longer_fits() {
    let store: Store<u64, [u8]> = options().memory("48MiB").in_memory().unwrap();
    (0..200_000).for_each(|n| store.put(&n, &value_of(n)).unwrap());
    store.set_memory(BUDGET).unwrap();
    assert!(store.stats().memory.total_bytes <= BUDGET + BUDGET / 32, "{:?}", store.stats().memory);
    assert_eq!(store.get(&199_999).unwrap(), Some(value_of(199_999)));
}

/// Twenty thousand keys are asked for again and again while a scan of a million passes by once.
#[test]
fn a_second_chance_keeps_a_hot_set_through_a_scan() {
    let store = pages(false);
    let (hot, mut random) = (20_000, Random(7));
    let mut misses = 0;
    for n in 0..1_000_000 {
        store.put(&(hot + n), &[1; 100]).unwrap();
        let key = random.below(hot);
        if store.get(&key).unwrap().is_none() {
            misses += u64::from(n > 200_000);
            store.put(&key, &[2; 100]).unwrap();
        }
    }
    // A queue alone would hold a hot key for the 120,000 records that fit, and miss it every sixth time at best.
    let rate = misses as f64 / 800_000.0;
    assert!(rate < 0.01, "missed {rate:.4}: {:?}", store.stats().cache);
    assert!(store.stats().operations.hit_rate() > 0.9);
}

/// The same with nothing that deserves it: no record is copied, so no put pays for a second chance.
#[test]
fn what_nobody_reads_gets_no_second_chance() {
    let store = pages(false);
    (0..400_000).for_each(|n| store.put(&n, &[1; 100]).unwrap());
    let cache = store.stats().cache.unwrap();
    assert!(cache.kept == 0 && cache.evictions > 200_000, "{cache:?}");
}

#[test]
fn the_listener_hears_of_each_pair_once() {
    let heard: Arc<Heard> = Arc::default();
    let clock = Arc::new(ManualClock::default());
    let cache = {
        let heard = heard.clone();
        Cache::new().on_eviction(move |key, value, why| {
            let mut heard = heard.lock().unwrap();
            heard.entry(key.to_vec()).or_default().push((value.to_vec(), why));
            let count = heard.len();
            drop(heard);
            // What a listener does to itself is not the store's end.
            assert!(!count.is_multiple_of(50_000), "a listener's own panic");
        })
    };
    // Without a driver, which would drop something while we count.
    let options = Options::new().memory(BUDGET).cache(cache).clock(clock.clone()).background(false);
    let store: Store<str, [u8]> = options.in_memory().unwrap();
    let key = |n: u64| format!("key {n}");
    let count = 300_000u64;
    for n in 0..count {
        if n == 1000 {
            clock.advance(Duration::from_secs(1));
        }
        if n < 500 {
            store.put_with_ttl(&key(n), &value_of(n), Duration::from_secs(1)).unwrap();
        } else {
            store.put(&key(n), &value_of(n)).unwrap();
        }
        // Replaced and deleted values are nobody's loss.
        if n % 10 == 0 {
            store.put(&key(n), &value_of(n + 1)).unwrap();
        }
        if n % 10 == 1 {
            store.delete(&key(n)).unwrap();
        }
    }
    let heard = heard.lock().unwrap();
    for n in 0..count {
        let told = heard.get(key(n).as_bytes()).map_or(&[][..], Vec::as_slice);
        let held = store.get(&key(n)).unwrap();
        match (n % 10, told, held) {
            (1, [], None) => {}
            (0, [], Some(value)) => assert_eq!(value, value_of(n + 1)),
            (0, [(value, why)], None) => assert!(*value == value_of(n + 1) && *why == Eviction::Full),
            (_, [], Some(value)) => assert_eq!(value, value_of(n)),
            (_, [(value, why)], None) => assert!(*value == value_of(n) && (*why == Eviction::Expired) == (n < 500), "{n} {why:?}"),
            (_, told, held) => panic!("key {n}: told {} times, held {}", told.len(), held.is_some()),
        }
    }
    assert!(heard.len() > 100_000);
}

/// A listener that puts makes the cache evict, which calls the listener.
#[test]
fn a_listener_may_use_the_cache() {
    let held: Arc<Mutex<Option<Pages>>> = Arc::default();
    let cache = {
        let held = held.clone();
        Cache::new().on_eviction(move |key, _, _| {
            let key = u64::from_le_bytes(key.try_into().unwrap());
            if let (Some(store), true) = (&*held.lock().unwrap(), key < 1 << 40) {
                store.put(&(key | 1 << 40), &[9; 200]).unwrap();
            }
        })
    };
    let store: Store<u64, [u8]> = Options::new().memory(BUDGET).cache(cache).background(false).in_memory().unwrap();
    *held.lock().unwrap() = Some(store.clone());
    (0..200_000).for_each(|n| store.put(&n, &[1; 200]).unwrap());
    assert!((0..200_000).any(|n| store.get(&(n | 1 << 40)).unwrap().is_some()));
    held.lock().unwrap().take();
}

/// On a thread of its own: it must end.
fn ends(what: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        what();
        done.send(()).unwrap();
    });
    assert_ne!(is_done.recv_timeout(SECOND * 60), Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// What a listener has of a store.
type Held<V> = Arc<Mutex<Option<Store<u64, V>>>>;

/// A store until it is let go, also by its listener.
struct Listening<V: Value + ?Sized + 'static>(Store<u64, V>, Held<V>);

impl<V: Value + ?Sized> Deref for Listening<V> {
    type Target = Store<u64, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V: Value + ?Sized> Drop for Listening<V> {
    fn drop(&mut self) {
        let store = self.1.lock().unwrap().take();
        drop(store);
    }
}

/// A cache without a background whose listener has it.
fn listening<V: Value + ?Sized + 'static>(listener: impl Fn(&Store<u64, V>, u64) + Send + Sync + 'static) -> Listening<V> {
    let held: Held<V> = Arc::default();
    let inner = held.clone();
    let cache = Cache::new().on_eviction(move |key, _, _| {
        let store = inner.lock().unwrap().clone();
        if let Some(store) = store {
            listener(&store, u64::from_le_bytes(key.try_into().unwrap()));
        }
    });
    let store = Options::new().memory(BUDGET).cache(cache).background(false).in_memory().unwrap();
    *held.lock().unwrap() = Some(store.clone());
    Listening(store, held)
}

/// The loader's put needs room, which another thread makes; its listener waits for that very load.
#[test]
fn a_listener_may_load_what_is_being_loaded() {
    ends(|| {
        let (ask, asked) = mpsc::channel::<()>();
        let ask = Mutex::new(ask);
        let store = listening(move |store: &Pages, key| {
            if key == 0 && ask.lock().unwrap().send(()).is_ok() {
                thread::sleep(Duration::from_millis(200));
                let value = store.get_or_insert_with(&0, || Ok::<_, Error>(vec![1; 200]));
                assert_eq!(value.unwrap().len(), 3 << 20);
            }
        });
        let other = Store::clone(&store);
        let loading = thread::spawn(move || {
            asked.recv().unwrap();
            drop(asked);
            let load = || {
                thread::sleep(Duration::from_millis(400));
                Ok::<_, Error>(vec![2; 3 << 20])
            };
            other.get_or_insert_with(&0, load).unwrap();
        });
        (0..100_000u64).for_each(|key| store.put(&key, &[1; 200]).unwrap());
        loading.join().unwrap();
    });
}

/// Room is made while a word leaves its record to get an end; the listener is at the same key.
#[test]
fn a_listener_may_change_a_key_that_gets_an_end() {
    ends(|| {
        let at = Arc::new(AtomicU64::new(0));
        let key_now = at.clone();
        let store = listening(move |store: &Store<u64, u64>, _| {
            store.rmw(&key_now.load(SeqCst), |old| old.unwrap_or(0) + 1).unwrap();
        });
        let end = std::time::SystemTime::now() + SECOND * 1000;
        for key in 0..400_000u64 {
            at.store(key, SeqCst);
            store.put(&key, &1).unwrap();
            store.expire_at(&key, end).unwrap();
        }
    });
}

/// It ran on the thread that had to do what it waited for.
#[test]
fn a_listener_may_use_the_asynchronous_calls() {
    ends(|| {
        let told = Arc::new(AtomicU64::new(0));
        let count = told.clone();
        let store = listening(move |store: &Pages, key| {
            // In memory: `Invalid`, at once.
            block_on(store.commit_async()).unwrap_err();
            if key % 64 == 0 {
                block_on(store.put_async(&(key | 1 << 40), &[2; 200])).unwrap();
            }
            count.fetch_add(1, SeqCst);
        });
        (0..100_000u64).for_each(|key| block_on(store.put_async(&key, &[1; 200])).unwrap());
        let untold = || store.stats().cache.unwrap().evictions - told.load(SeqCst);
        assert!((0..5000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            untold() == 0
        }));
    });
}

/// A cache behind a cache.
#[test]
fn a_listener_that_puts_into_another_cache_lets_that_one_tell() {
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    let second = listening(move |_: &Pages, _| _ = count.fetch_add(1, SeqCst));
    let behind = Store::clone(&second);
    let first = listening(move |_: &Pages, key| behind.put(&key, &[1; 200]).unwrap());
    (0..200_000u64).for_each(|key| first.put(&key, &[1; 200]).unwrap());
    let gone = second.stats().cache.unwrap().evictions;
    assert!(gone > 10_000 && told.load(SeqCst) == gone, "{gone}");
}

/// The last clone goes on the store's own thread, which waited for itself.
#[test]
fn a_listener_may_drop_the_last_store() {
    let slot: Held<u64> = Arc::default();
    // Whether somebody else has it too: changed under the lock.
    let is_used = Arc::new(AtomicBool::new(false));
    let (held, is_held) = (slot.clone(), is_used.clone());
    let cache = Cache::new().on_eviction(move |_, _, _| {
        let mut held = held.lock().unwrap();
        if thread::current().name() == Some("esker-driver") && !is_held.load(SeqCst) {
            *held = None;
        }
    });
    let store = Options::new().memory(BUDGET).cache(cache).in_memory().unwrap();
    *slot.lock().unwrap() = Some(store);
    let mut keys = 0u64..;
    loop {
        let store = {
            let held = slot.lock().unwrap();
            is_used.store(true, SeqCst);
            held.clone()
        };
        let Some(store) = store else { break };
        keys.by_ref().take(500).for_each(|key| store.put(&key, &1).unwrap());
        drop(store);
        is_used.store(false, SeqCst);
        // The driver makes room.
        thread::sleep(Duration::from_micros(200));
    }
}

/// One that closed let go of the store's threads: a close behind it, which may wait for them, did not.
#[test]
fn a_close_waits_for_a_listener_that_has_closed() {
    let slot: Held<u64> = Arc::default();
    let (is_closed, is_done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (held, closes, ends) = (slot.clone(), is_closed.clone(), is_done.clone());
    let cache = Cache::new().on_eviction(move |_, _, _| {
        if thread::current().name() == Some("esker-driver")
            && let Some(store) = held.lock().unwrap().take()
        {
            store.close().unwrap();
            closes.store(true, SeqCst);
            thread::sleep(SECOND / 5);
            ends.store(true, SeqCst);
        }
    });
    let store: Store<u64, u64> = Options::new().memory(BUDGET).cache(cache).in_memory().unwrap();
    *slot.lock().unwrap() = Some(store.clone());
    for key in 0.. {
        if is_closed.load(SeqCst) {
            break;
        }
        // Closed, in the end.
        let _ = store.put(&key, &1);
        if key % 500 == 0 {
            // The driver makes room.
            thread::sleep(Duration::from_micros(200));
        }
    }
    store.close().unwrap();
    assert!(is_done.load(SeqCst));
}

/// What is to be told is in memory beside the budget.
#[test]
fn a_cache_on_disk_tells_before_much_has_gathered() {
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    let cache = Cache::new().disk(256 << 20).on_eviction(move |_, _, _| _ = count.fetch_add(1, SeqCst));
    let options = Options::new().memory(BUDGET).cache(cache).background(false);
    let store: Pages = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let (mut told_before, mut key) = (0, 0);
    while told_before < 20_000 {
        store.put(&key, &[1; 8000]).unwrap();
        key += 1;
        let told = told.load(SeqCst);
        assert!((told - told_before) * 8000 <= 4 << 20, "{told} {told_before}");
        told_before = told;
    }
}

/// All that a lower budget dropped was kept for the listener at once, and took more memory than the budget had given.
#[test]
fn a_smaller_budget_is_told_before_much_has_gathered() {
    let held: Arc<Mutex<Option<Pages>>> = Arc::default();
    let (store, told, most) = (held.clone(), AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let gathered = most.clone();
    let cache = Cache::new().on_eviction(move |_, _, _| {
        let told = told.fetch_add(1, SeqCst);
        if told % 100 == 0
            && let Some(store) = &*store.lock().unwrap()
        {
            gathered.fetch_max(store.stats().cache.unwrap().evictions - told, SeqCst);
        }
    });
    let store: Pages = Options::new().memory("128MiB").cache(cache).background(false).in_memory().unwrap();
    (0..100_000).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    assert_eq!(store.stats().cache.unwrap().evictions, 0);
    *held.lock().unwrap() = Some(store.clone());
    store.set_memory(BUDGET).unwrap();
    assert!(store.stats().cache.unwrap().evictions > 80_000);
    let bytes = 1000 * most.load(SeqCst);
    // Or the two would keep each other for ever.
    let own = held.lock().unwrap().take();
    drop(own);
    assert!((1..16 << 20).contains(&bytes), "{bytes} bytes of records wait to be told of");
}

#[test]
fn reads_alone_write_no_more_than_they_may() {
    let cache = Cache::new().disk(256 << 20).disk_writes(1000);
    let (clock, storage) = (Arc::new(ManualClock::default()), Arc::new(MemoryStorage::new()));
    let store: Pages = Options::new().memory(BUDGET).cache(cache).clock(clock).open_in(storage).unwrap();
    // Nearly all of the memory: reads of the oldest part of it are noticed, when the driver has come by.
    let count = 85_000u64;
    (0..count).for_each(|key| store.put(&key, &[1; 100]).unwrap());
    store.commit().unwrap();
    let before = store.stats().log.tail;
    let read_all = || {
        (0..2 * count).for_each(|n| _ = store.get(&(n % count)).unwrap());
        store.stats().log.tail - before
    };
    let begun = Instant::now();
    while read_all() == 0 {
        assert!(begun.elapsed() < SECOND * 300, "reads write nothing");
    }
    let written = read_all();
    assert!((1..=60_000 + (128 << 10)).contains(&written), "{written}");
}

/// A cache copied what was read in the oldest part of its memory, whatever it had been told.
#[test]
fn reads_that_shall_not_copy_write_nothing() {
    let open = |promotion| -> Pages {
        let options = Options::new().memory(BUDGET).cache(Cache::new().disk(256 << 20)).promotion(promotion);
        options.open_in(Arc::new(MemoryStorage::new())).unwrap()
    };
    let (copies, copies_not) = (open(true), open(false));
    let count = 85_000u64;
    let tails = [&copies, &copies_not].map(|store| {
        (0..count).for_each(|key| store.put(&key, &[1; 100]).unwrap());
        store.commit().unwrap();
        store.stats().log.tail
    });
    let begun = Instant::now();
    while copies.stats().log.tail == tails[0] {
        assert!(begun.elapsed() < SECOND * 300, "reads write nothing");
        for store in [&copies_not, &copies] {
            (0..count).for_each(|key| _ = store.get(&key).unwrap());
        }
    }
    assert_eq!((copies_not.stats().log.tail, copies_not.stats().operations.promotions), (tails[1], 0));
    // With less room its oldest part is nearer, whatever its driver has done so far.
    (count..count + 20_000).for_each(|key| copies_not.put(&key, &[1; 100]).unwrap());
    (0..count + 20_000).for_each(|key| _ = copies_not.get(&key).unwrap());
    assert_eq!(copies_not.stats().operations.promotions, 0);
}

#[test]
fn eight_threads_load_once() {
    let store = pages(true);
    for round in 0..50u64 {
        let (loads, all) = (AtomicUsize::new(0), Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    all.wait();
                    let value = store.get_or_insert_with(&round, || {
                        loads.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_millis(2));
                        Ok::<_, std::io::Error>(value_of(round))
                    });
                    assert_eq!(value.unwrap(), value_of(round));
                });
            }
        });
        assert_eq!(loads.load(SeqCst), 1);
    }
    let loads = store.stats().loads;
    assert!(loads.loads == 50 && loads.failures == 0 && loads.nanoseconds >= 50 * 2_000_000, "{loads:?}");
}

#[test]
fn a_failure_reaches_all_and_the_next_call_loads_again() {
    let store = pages(true);
    let (loads, asking, failures) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                asking.fetch_add(1, SeqCst);
                let result = store.get_or_insert_with(&1, || {
                    loads.fetch_add(1, SeqCst);
                    // Until all others wait.
                    while asking.load(SeqCst) < 8 {
                        thread::yield_now();
                    }
                    thread::sleep(Duration::from_millis(300));
                    Err::<Vec<u8>, _>("the origin is down")
                });
                match result {
                    Err(Error::Load(error)) if error.to_string() == "the origin is down" => failures.fetch_add(1, SeqCst),
                    other => panic!("{other:?}"),
                };
            });
        }
    });
    // Whoever was kept from joining for so long loads anew.
    assert!(failures.load(SeqCst) == 8 && loads.load(SeqCst) <= 2, "{loads:?} loads");
    assert_eq!(store.get_or_insert_with(&1, || Ok::<_, Error>(vec![5])).unwrap(), [5]);
}

/// The same for futures: those that wait are told why the load failed that they waited for.
#[test]
fn a_failure_reaches_all_futures_and_the_next_loads_again() {
    let store = pages(true);
    let (loads, fails) = (AtomicUsize::new(0), AtomicBool::new(false));
    let load = || {
        loads.fetch_add(1, SeqCst);
        std::future::poll_fn(|_| if fails.load(SeqCst) { Poll::Ready(Err::<Vec<u8>, _>("the origin is down")) } else { Poll::Pending })
    };
    let mut futures: Vec<_> = (0..8).map(|_| Box::pin(store.get_or_insert_with_async(&1, load))).collect();
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(loads.load(SeqCst), 1);
    fails.store(true, SeqCst);
    for future in futures {
        assert!(matches!(block_on(future), Err(Error::Load(error)) if error.to_string() == "the origin is down"));
    }
    assert_eq!(loads.load(SeqCst), 1);
    assert_eq!(block_on(store.get_or_insert_with_async(&1, || std::future::ready(Ok::<_, Error>(vec![5])))).unwrap(), [5]);
}

#[test]
fn a_loader_that_panics_leaves_it_to_another() {
    let store = pages(true);
    let (loads, all) = (AtomicUsize::new(0), Barrier::new(8));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let load = || {
            all.wait();
            catch_unwind(AssertUnwindSafe(|| {
                store.get_or_insert_with(&1, || {
                    thread::sleep(Duration::from_millis(50));
                    assert!(loads.fetch_add(1, SeqCst) > 0, "the first loader panics");
                    Ok::<_, Error>(vec![7])
                })
            }))
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1);
    assert!(outcomes.into_iter().flatten().all(|value| value.unwrap() == [7]));
    assert_eq!(loads.load(SeqCst), 2);
}

#[test]
fn a_loader_that_asks_for_its_own_key_is_refused() {
    let store = pages(false);
    let result = store.get_or_insert_with(&1, || store.get_or_insert_with(&1, || Ok::<_, Error>(vec![1])));
    assert!(matches!(result, Err(Error::Load(error)) if error.to_string().contains("invalid")));
    // For another key it may.
    assert_eq!(store.get_or_insert_with(&1, || store.get_or_insert_with(&2, || Ok::<_, Error>(vec![3]))).unwrap(), [3]);
}

/// Ready at the second poll.
#[derive(Default)]
struct Later(bool);

impl Future for Later {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn futures_load_once_and_a_dropped_one_leaves_it_to_another() {
    let store = pages(true);
    let loads = AtomicUsize::new(0);
    let load = || async {
        loads.fetch_add(1, SeqCst);
        Later::default().await;
        Ok::<_, Error>(vec![7])
    };
    let mut first = Box::pin(store.get_or_insert_with_async(&1, load));
    let mut second = Box::pin(store.get_or_insert_with_async(&1, load));
    let mut nobody = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut nobody).is_pending() && second.as_mut().poll(&mut nobody).is_pending());
    assert_eq!(loads.load(SeqCst), 1);
    // A thread waits along with the futures.
    thread::scope(|scope| {
        let blocked = scope.spawn(|| store.get_or_insert_with(&1, || Ok::<_, Error>(vec![7])).unwrap());
        thread::sleep(Duration::from_millis(20));
        drop(first);
        assert_eq!((block_on(second).unwrap(), blocked.join().unwrap()), (vec![7], vec![7]));
    });
    assert!(loads.load(SeqCst) <= 2);
    assert_eq!(block_on(store.get_or_insert_with_async(&1, load)).unwrap(), [7]);
}

const SECOND: Duration = Duration::from_secs(1);

fn timed() -> (Arc<ManualClock>, Store<u64, u64>) {
    let clock = Arc::new(ManualClock::default());
    (clock.clone(), options().clock(clock).background(false).in_memory().unwrap())
}

/// By both faces.
fn load_by(
    is_async: bool,
    store: &Store<u64, u64>,
    key: u64,
    loading: &Loading,
    brings: Result<Option<u64>, &'static str>,
) -> Result<Option<u64>, Error> {
    if is_async {
        block_on(store.get_or_load_async(&key, loading, || async { brings }))
    } else {
        store.get_or_load(&key, loading, || brings)
    }
}

#[test]
fn what_is_loaded_stays_as_long_as_it_is_to() {
    for is_async in [false, true] {
        let (clock, store) = timed();
        let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4).absent_ttl(SECOND * 2);
        let load = |key, brings| load_by(is_async, &store, key, &loading, brings);
        assert_eq!(load(1, Ok(Some(7))).unwrap(), Some(7));
        assert_eq!(load(1, Err("is there")).unwrap(), Some(7));
        clock.advance(SECOND * 6 - Duration::from_millis(1));
        assert_eq!(load(1, Err("not due yet")).unwrap(), Some(7));
        // Due: a failure lets it rest for a sixteenth of what is left to be ahead, and reaches nobody.
        clock.advance(Duration::from_millis(1));
        assert_eq!(load(1, Err("no connection")).unwrap(), Some(7));
        assert_eq!(load(1, Ok(Some(0))).unwrap(), Some(7));
        assert_eq!((store.stats().loads.loads, store.stats().loads.failures), (2, 1));
        clock.advance(Duration::from_millis(251));
        assert_eq!(load(1, Ok(Some(8))).unwrap(), Some(8));
        assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Left(SECOND * 10)));
        // What is over is missed, whatever rests.
        clock.advance(SECOND * 10 - Duration::from_millis(1));
        assert_eq!(load(1, Err("no connection")).unwrap(), Some(8));
        clock.advance(Duration::from_millis(1));
        assert!(matches!(load(1, Err("no connection")), Err(Error::Load(_))));
        assert_eq!(load(1, Ok(None)).unwrap(), None);
        // Absence is known for a while; who must have a value loads it all the same, and then there is one.
        clock.advance(SECOND * 2 - Duration::from_millis(1));
        assert_eq!(load(1, Ok(Some(9))).unwrap(), None);
        assert_eq!(store.get_or_insert_with(&1, || Ok::<_, Error>(9)).unwrap(), 9);
        assert_eq!(load(1, Ok(Some(0))).unwrap(), Some(9));
        assert!(store.delete(&1).unwrap());
        clock.advance(Duration::from_millis(1));
        assert_eq!(load(1, Ok(Some(10))).unwrap(), Some(10));
        // What is gone at its source goes when it is due.
        clock.advance(SECOND * 7);
        assert_eq!(load(1, Ok(None)).unwrap(), None);
        assert!(!store.contains(&1).unwrap());
        assert_eq!(load(1, Ok(Some(11))).unwrap(), None, "that deletion forgets nothing");
        // Without a time to be absent it is asked for each time.
        let plain = Loading::new();
        assert_eq!(load_by(is_async, &store, 2, &plain, Ok(None)).unwrap(), None);
        assert_eq!(load_by(is_async, &store, 2, &plain, Ok(Some(3))).unwrap(), Some(3));
        assert_eq!(store.ttl(&2).unwrap(), Some(Ttl::Forever));
    }
}

/// What had been put since, and was dropped, is not known to be absent at the source.
#[test]
fn a_drop_ends_an_absence() {
    let store: Pages = options().background(false).in_memory().unwrap();
    let loading = Loading::new().absent_ttl(SECOND * 60);
    let load = |value: Option<Vec<u8>>| store.get_or_load(&1, &loading, || Ok::<_, Error>(value)).unwrap();
    assert_eq!(load(None), None);
    assert_eq!(load(Some(vec![1])), None);
    store.put(&1, &[2]).unwrap();
    (0..100_000).for_each(|n| store.put(&(100 + n), &[7; 250]).unwrap());
    assert_eq!(store.get(&1).unwrap(), None);
    assert_eq!(load(Some(vec![3])), Some(vec![3]));
}

/// Whoever makes a value at the source deletes the key here; also while it is being loaded.
#[test]
fn a_deletion_ends_an_absence() {
    let (_, store) = timed();
    let loading = Loading::new().absent_ttl(SECOND * 60);
    let load = |brings| store.get_or_load(&1, &loading, || Ok::<_, Error>(brings)).unwrap();
    let deletions: [&dyn Fn() -> bool; 5] = [
        &|| store.delete(&1).unwrap(),
        &|| block_on(store.delete_async(&1)).unwrap(),
        &|| store.delete_many(&[1]).unwrap() > 0,
        &|| store.scan().delete().unwrap() > 0,
        &|| store.scan().filter(|_, _| true).delete().unwrap() > 0,
    ];
    for (n, delete) in deletions.into_iter().enumerate() {
        assert_eq!((load(None), load(Some(7))), (None, None), "{n}");
        // A scan deletes what is there.
        if n > 2 {
            store.put(&1, &5).unwrap();
            assert_eq!(load(None), Some(5));
        }
        assert_eq!(delete(), n > 2);
        assert_eq!(load(Some(8)), Some(8), "{n}");
        assert!(delete());
    }
    let late = store.get_or_load(&2, &loading, || {
        assert!(!store.delete(&2).unwrap());
        Ok::<_, Error>(None)
    });
    assert_eq!(late.unwrap(), None);
    assert_eq!(store.get_or_load(&2, &loading, || Ok::<_, Error>(Some(9))).unwrap(), Some(9));
    // These, which give keys latches, last.
    let by_transaction = || !store.transaction(|tx| tx.delete(&3)).unwrap();
    let by_test = || store.compare_and_swap(&3, None, None).unwrap();
    let later: [&dyn Fn() -> bool; 2] = [&by_transaction, &by_test];
    for delete in later {
        let load = |brings| store.get_or_load(&3, &loading, || Ok::<_, Error>(brings)).unwrap();
        assert_eq!((load(None), load(Some(7))), (None, None));
        assert!(delete());
        assert_eq!(load(Some(8)), Some(8));
        assert!(store.delete(&3).unwrap());
    }
}

/// A transaction deletes when it commits, not when it says so.
#[test]
fn what_was_loaded_before_a_transaction_deleted_it_is_not_kept() {
    let (clock, store) = timed();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    assert_eq!(store.get_or_load(&1, &loading, || Ok::<_, Error>(Some(1))).unwrap(), Some(1));
    clock.advance(SECOND * 7);
    let mut deleting = store.begin().unwrap();
    assert!(deleting.delete(&1).unwrap());
    let load = || {
        deleting.commit().unwrap();
        Ok::<_, Error>(Some(2))
    };
    assert_eq!(store.get_or_load(&1, &loading, load).unwrap(), Some(2));
    assert_eq!(store.get(&1).unwrap(), None);
}

/// What was loaded may be older than what came meanwhile.
fn others_write_while_it_is_loaded<V: Value + ?Sized>(is_async: bool, value: impl Fn(u64) -> V::Owned)
where
    V::Owned: PartialEq + std::fmt::Debug + Clone,
{
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, V> = options().clock(clock.clone()).background(false).in_memory().unwrap();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    let load = |key: u64, meanwhile: &dyn Fn(), brings: Option<u64>| {
        let brings = || {
            meanwhile();
            Ok::<_, Error>(brings.map(&value))
        };
        match is_async {
            true => block_on(store.get_or_load_async(&key, &loading, || std::future::ready(brings()))).unwrap(),
            false => store.get_or_load(&key, &loading, brings).unwrap(),
        }
    };
    let put = |key: u64, n: u64| store.put(&key, value(n).borrow()).unwrap();
    let get = |key: u64| store.get(&key).unwrap();
    let (seven, eight) = (Some(value(7)), Some(value(8)));
    let due = |key: u64| {
        assert_eq!(load(key, &|| (), Some(1)), Some(value(1)));
        clock.advance(SECOND * 7);
    };
    // Nothing there, then a value: it stays, as long as it was to.
    assert_eq!((load(1, &|| put(1, 8), Some(7)), get(1)), (eight.clone(), eight.clone()));
    assert_eq!(store.ttl(&1).unwrap(), Some(Ttl::Forever));
    // A value that is due, then another one.
    due(2);
    assert_eq!((load(2, &|| put(2, 8), Some(7)), get(2)), (eight.clone(), eight.clone()));
    assert_eq!(store.ttl(&2).unwrap(), Some(Ttl::Forever));
    // The same, to which the source says that there is none.
    due(3);
    assert_eq!((load(3, &|| put(3, 8), None), get(3)), (None, eight.clone()));
    // A deletion: what was loaded is handed out, not kept.
    let delete = |key: u64| _ = store.delete(&key).unwrap();
    assert_eq!((load(4, &|| delete(4), Some(7)), get(4)), (seven.clone(), None));
    due(5);
    assert_eq!((load(5, &|| delete(5), Some(7)), get(5)), (seven.clone(), None));
    // A deletion and another value.
    due(6);
    let deleted_and_put = || {
        delete(6);
        put(6, 8);
    };
    assert_eq!((load(6, &deleted_and_put, Some(7)), get(6)), (seven.clone(), eight.clone()));
    // What ended meanwhile is loaded as if it had been missed.
    due(7);
    assert_eq!((load(7, &|| clock.advance(SECOND * 4), Some(7)), get(7)), (seven.clone(), seven.clone()));
    assert_eq!(store.ttl(&7).unwrap(), Some(Ttl::Left(SECOND * 10)));
    // Nobody wrote: it is anew.
    due(8);
    assert_eq!((load(8, &|| (), Some(7)), get(8)), (seven.clone(), seven));
    assert_eq!(store.ttl(&8).unwrap(), Some(Ttl::Left(SECOND * 10)));
    due(9);
    assert_eq!((load(9, &|| (), None), get(9)), (None, None));
}

#[test]
fn what_others_write_while_it_is_loaded_stands() {
    for is_async in [false, true] {
        others_write_while_it_is_loaded::<u64>(is_async, |n| n);
        others_write_while_it_is_loaded::<[u8]>(is_async, |n| vec![n as u8; 100 * n as usize]);
    }
}

/// It was once handed out though others had put another one meanwhile, or it had gone.
#[test]
fn a_failed_reload_hands_out_what_is_there_by_then() {
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, u64> = Options::new().memory("16MiB").clock(clock.clone()).background(false).in_memory().unwrap();
    let loading = Loading::new().ttl(SECOND * 60).renew_ahead(SECOND * 30);
    let reload = |key: u64, meanwhile: &dyn Fn()| {
        store.put_with_ttl(&key, &5, SECOND * 20).unwrap();
        let fails = || {
            meanwhile();
            Err(io::Error::other("down"))
        };
        store.get_or_load(&key, &loading, fails)
    };
    assert_eq!(reload(1, &|| ()).unwrap(), Some(5));
    assert_eq!(reload(2, &|| store.put(&2, &99).unwrap()).unwrap(), Some(99));
    assert!(matches!(reload(3, &|| assert!(store.delete(&3).unwrap())), Err(Error::Load(_))));
    assert!(matches!(reload(4, &|| clock.advance(SECOND * 30)), Err(Error::Load(_))));
    assert_eq!(store.stats().loads.failures, 4);
}

/// An update keeps the end of a value: what the source no longer has is not all that is there.
/// It went through the cache and left; what is loaded is older nevertheless.
#[test]
fn what_others_put_and_the_cache_dropped_while_it_is_loaded_is_the_newest() {
    let clock = Arc::new(ManualClock::default());
    let store: Pages = options().clock(clock.clone()).background(false).in_memory().unwrap();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    let load = |key: u64, meanwhile: &dyn Fn()| {
        let brings = || {
            meanwhile();
            Ok::<_, Error>(Some(vec![1]))
        };
        assert_eq!(store.get_or_load(&key, &loading, brings).unwrap(), Some(vec![1]));
        store.get(&key).unwrap()
    };
    let put_and_drop = |key: u64| {
        store.put(&key, &[2]).unwrap();
        (0..100_000).for_each(|n| store.put(&(100 + n), &[7; 250]).unwrap());
        assert_eq!(store.get(&key).unwrap(), None);
    };
    // What others leave, and drop, is none of its business.
    assert_eq!(load(1, &|| put_and_drop(2)), Some(vec![1]));
    assert_eq!(load(3, &|| put_and_drop(3)), None);
    assert_eq!(load(4, &|| ()), Some(vec![1]));
    clock.advance(SECOND * 7);
    assert_eq!(load(4, &|| put_and_drop(4)), None);
}

fn updates_stand_though_the_source_has_none<V: Value + ?Sized>(value: impl Fn(u64) -> V::Owned, update: impl Fn(&Store<u64, V>))
where
    V::Owned: PartialEq + std::fmt::Debug,
{
    let clock = Arc::new(ManualClock::default());
    let store: Store<u64, V> = options().clock(clock.clone()).background(false).in_memory().unwrap();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    store.get_or_load(&1, &loading, || Ok::<_, Error>(Some(value(1)))).unwrap();
    clock.advance(SECOND * 7);
    let load = || {
        update(&store);
        Ok::<_, Error>(None)
    };
    assert_eq!(store.get_or_load(&1, &loading, load).unwrap(), None);
    assert_eq!(store.get(&1).unwrap(), Some(value(8)));
}

#[test]
fn an_update_meanwhile_stands_though_the_source_has_none() {
    updates_stand_though_the_source_has_none::<u64>(|n| n, |store| assert_eq!(store.rmw(&1, |old| old.unwrap() + 7).unwrap(), 8));
    let bytes = |n: u64| vec![n as u8; 100 * n as usize];
    updates_stand_though_the_source_has_none::<[u8]>(bytes, |store| {
        assert!(store.compare_and_swap(&1, Some(&bytes(1)), Some(&bytes(8))).unwrap());
    });
}

/// It was taken back by whoever had loaded the same value before the deletion.
#[test]
fn a_durable_put_behind_a_deletion_stands() {
    let folder = tempfile::tempdir().unwrap();
    let store: Store<u64, u64> = Options::new().memory(BUDGET).durability(Durability::Always).open(folder.path()).unwrap();
    let mut loading = pin!(store.get_or_insert_with_async(&1, || std::future::ready(Ok::<_, Error>(7))));
    assert!(loading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // It is there, and waits for its line.
    assert_eq!(store.get(&1).unwrap(), Some(7));
    assert!(store.delete(&1).unwrap());
    store.put(&1, &7).unwrap();
    assert_eq!(block_on(loading).unwrap(), 7);
    assert_eq!(store.get(&1).unwrap(), Some(7));
}

/// The key that is being loaded has no value, so the transaction deletes nothing; and still.
#[test]
fn a_transaction_that_deletes_what_is_absent_outdates_its_load() {
    let (_, store) = timed();
    for is_async in [false, true] {
        let mut deleting = store.begin().unwrap();
        assert!(!if is_async { block_on(deleting.delete_async(&1)).unwrap() } else { deleting.delete(&1).unwrap() });
        let load = || {
            if is_async {
                block_on(deleting.commit_async()).unwrap()
            } else {
                deleting.commit().unwrap()
            }
            Ok::<_, Error>(Some(2))
        };
        assert_eq!(store.get_or_load(&1, &Loading::new(), load).unwrap(), Some(2));
        assert_eq!(store.get(&1).unwrap(), None);
    }
    let loading = Loading::new().absent_ttl(SECOND * 60);
    let load = |brings| store.get_or_load(&2, &loading, || Ok::<_, Error>(brings)).unwrap();
    let delete = |tx: &mut esker::Transaction<'_, u64, u64>| {
        tx.delete(&2)?;
        assert_eq!(load(None), None);
        Ok(())
    };
    store.transaction(delete).unwrap();
    assert_eq!(load(Some(8)), Some(8));
}

/// What is being loaded may be older than the deletion that the caller made himself.
#[test]
fn who_asks_after_a_deletion_gets_nothing_older() {
    for absent in [false, true] {
        let (_, store) = timed();
        let loading = Loading::new().absent_ttl(SECOND * 60);
        let loads = AtomicUsize::new(0);
        let mut first = Box::pin(store.get_or_load_async(&1, &loading, || async {
            Later::default().await;
            Ok::<_, Error>((!absent).then_some(1))
        }));
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        store.delete(&1).unwrap();
        let mut second = Box::pin(store.get_or_load_async(&1, &loading, || async {
            loads.fetch_add(1, SeqCst);
            Ok::<_, Error>(Some(2))
        }));
        // One at a time.
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(loads.load(SeqCst), 0);
        assert_eq!(block_on(first).unwrap(), (!absent).then_some(1));
        assert_eq!(block_on(second).unwrap(), Some(2));
        assert_eq!(store.get(&1).unwrap(), Some(2));
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("an executor's own");
    }
}

#[derive(Default)]
struct Counts(AtomicU64);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_waker_that_panics_leaves_nobody_waiting() {
    let (_, store) = timed();
    let counts = Arc::new(Counts::default());
    let (first, second) = (Waker::from(Arc::new(Panics)), Waker::from(counts.clone()));
    let load = || async {
        Later::default().await;
        Ok::<_, Error>(7)
    };
    let ask = || Box::pin(store.get_or_insert_with_async(&1, load));
    let (mut leads, mut one, mut two, mut gone) = (ask(), ask(), ask(), ask());
    assert!(leads.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(one.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    assert!(two.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    // Polled by the same task, and by another one; and who is dropped leaves nothing behind.
    assert!(two.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    assert!(gone.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    let before = Arc::strong_count(&counts);
    drop(gone);
    assert_eq!(Arc::strong_count(&counts), before - 1);
    assert_eq!(block_on(leads).unwrap(), 7);
    assert_eq!(counts.0.load(SeqCst), 1);
    assert_eq!((block_on(one).unwrap(), block_on(two).unwrap()), (7, 7));
}

/// A future moves on; it is no loader of the thread on which it once was.
#[test]
fn who_began_to_load_may_have_moved_on() {
    let (_, store) = timed();
    let (polls, waits) = (AtomicUsize::new(0), Barrier::new(2));
    let load = || {
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            match polls.fetch_add(1, SeqCst) {
                0 => return Poll::Pending,
                1 => _ = waits.wait(),
                _ => {}
            }
            // Until the other one waits.
            thread::sleep(Duration::from_millis(50));
            Poll::Ready(Ok::<_, Error>(7))
        })
    };
    let mut leads = Box::pin(store.get_or_insert_with_async(&1, load));
    assert!(leads.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    thread::scope(|scope| {
        scope.spawn(move || assert_eq!(block_on(leads).unwrap(), 7));
        waits.wait();
        assert_eq!(store.get_or_insert_with(&1, || Ok::<_, Error>(8)).unwrap(), 7);
    });
}

/// What was promised to a transaction was taken back each millisecond, and it asked for it again for ever.
#[test]
fn large_transactions_find_their_place() {
    for (count, bytes) in [(20, 1 << 20), (160, 128 << 10)] {
        let storage = Arc::new(MemoryStorage::new());
        let options = Options::new().memory(8 * BUDGET).cache(Cache::new().disk(DISK));
        let store: Pages = options.clone().open_in(storage.clone()).unwrap();
        let (value, mut keys) = (vec![1; bytes], 0..);
        for _ in 0..10 {
            let put_all = |tx: &mut esker::Transaction<'_, u64, [u8]>| keys.by_ref().take(count).try_for_each(|key| tx.put(&key, &value));
            store.transaction(put_all).unwrap();
        }
        assert!(stored_bytes(&*storage) <= DISK);
    }
}

/// What cannot be put is told, though an older value is there.
#[test]
fn a_renewal_that_cannot_be_put_is_told() {
    let clock = Arc::new(ManualClock::default());
    let store: Pages = options().clock(clock.clone()).background(false).in_memory().unwrap();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 5);
    let load = |bytes| store.get_or_load(&1, &loading, || Ok::<_, Error>(Some(vec![1; bytes])));
    load(10).unwrap();
    clock.advance(SECOND * 6);
    assert!(matches!(load(5 << 20), Err(Error::Invalid(_))));
    assert_eq!(load(11).unwrap().unwrap().len(), 11);
}

/// While one loads anew the others have what is there, and do not wait.
#[test]
fn one_loads_anew_and_nobody_waits() {
    let (clock, store) = timed();
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    let get = |load: &dyn Fn() -> u64| store.get_or_load(&1, &loading, || Ok::<_, Error>(Some(load()))).unwrap();
    get(&|| 7);
    clock.advance(SECOND * 8);
    let renewed = get(&|| {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(get(&|| unreachable!("somebody does")), Some(7)));
            }
        });
        // Not even who loads, should he ask.
        assert_eq!(get(&|| unreachable!("we do")), Some(7));
        // Once the end has come there is nothing to have: the next one waits for what comes.
        clock.advance(SECOND * 2);
        assert_eq!(store.get(&1).unwrap(), None);
        8
    });
    assert_eq!((renewed, get(&|| unreachable!("it is new"))), (Some(8), Some(8)));
}

#[test]
fn ends_are_spread() {
    let (_, store) = timed();
    let loading = Loading::new().ttl(SECOND * 1000).jitter(0.5);
    let left: Vec<u64> = (0..1000)
        .map(|key| {
            store.get_or_load(&key, &loading, || Ok::<_, Error>(Some(key))).unwrap();
            let Some(Ttl::Left(left)) = store.ttl(&key).unwrap() else { panic!("no end") };
            left.as_secs()
        })
        .collect();
    assert!(left.iter().all(|left| (500..=1000).contains(left)));
    for tenth in 0..10 {
        let count = left.iter().filter(|left| ((**left - 500) / 50).min(9) == tenth).count();
        // Five standard deviations.
        assert!((52..=148).contains(&count), "{count} of 1000 in tenth {tenth}");
    }
    // What is no part is none, or all.
    for part in [f64::NAN, -1.0, f64::INFINITY] {
        let ttl = Loading::new().ttl(Duration::MAX).jitter(part);
        assert_eq!(store.get_or_load(&2000, &ttl, || Ok::<_, Error>(Some(1))).unwrap(), Some(1));
        store.delete(&2000).unwrap();
    }
}

/// What costs more to load stays longer, though it is read as often; what is pinned stays unread; what is worth nothing goes though it is
/// read.
#[test]
fn what_is_worth_more_stays_longer() {
    for background in [true, false] {
        let worth = |key: &[u8], value: &[u8]| {
            assert_eq!(value, value_of(u64::from_le_bytes(key.try_into().unwrap())));
            match key[0] {
                0 => f64::INFINITY,
                1 => 0.0,
                2 => 10.0,
                // Without a message for each.
                3 => std::panic::resume_unwind(Box::new("swallowed")),
                _ => 1.0,
            }
        };
        let store: Pages = Options::new().memory(BUDGET).cache(Cache::new().worth(worth)).background(background).in_memory().unwrap();
        let mut random = Random(7);
        // Of the first 60,000 keys, which are twice what fits, each is read as often as any other; those with a 0 never.
        let (mut hits, mut asked) = ([0; 5], [0; 5]);
        for key in 0..60_000u64 {
            store.put(&key, &value_of(key)).unwrap();
        }
        for round in 0..600_000 {
            let key = random.below(60_000);
            let class = (key % 256).min(4) as usize;
            if class == 0 {
                continue;
            }
            let is_hit = store.get(&key).unwrap().is_some();
            if !is_hit {
                store.put(&key, &value_of(key)).unwrap();
            }
            if round > 200_000 {
                (hits[class], asked[class]) = (hits[class] + u32::from(is_hit), asked[class] + 1);
            }
        }
        let part = |class: usize| f64::from(hits[class]) / f64::from(asked[class]);
        let parts: Vec<f64> = (1..5).map(part).collect();
        assert!((0..60_000).step_by(256).all(|key| store.get(&key).unwrap().is_some()), "a pinned pair is gone");
        assert!(parts[0] < parts[3] - 0.05 && parts[1] > parts[3] + 0.1 && (parts[2] - parts[3]).abs() < 0.1, "{parts:?}");
    }
}

/// Of lengths that leave much of a piece of the log, or of a block, unused: seven eighths of their bytes were more than all of the log.
#[test]
fn pinned_pairs_of_any_length_leave_room() {
    for background in [false, true] {
        for bytes in [11_000, 13_100, 16 << 10, 17_500, 1 << 20] {
            let options = Options::new().memory(BUDGET).cache(Cache::new().worth(|_, _| f64::INFINITY)).background(background);
            let store: Pages = options.in_memory().unwrap();
            let value = vec![1; bytes];
            (0..(64 << 20) / bytes as u64).for_each(|key| store.put(&key, &value).unwrap());
        }
    }
}

/// A `worth` that uses the store is refused, and does not wait for itself.
#[test]
fn what_weighs_may_not_use_the_store() {
    static STORE: OnceLock<Pages> = OnceLock::new();
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    let worth = |_: &[u8], _: &[u8]| {
        let store = STORE.get().unwrap();
        let answers = [
            store.compact().map(drop),
            store.set_memory(2 * BUDGET),
            store.put(&1, &[1]),
            store.get(&1).map(drop),
            store.commit(),
            store.save_index(),
        ];
        REFUSED.fetch_add(answers.iter().filter(|answer| matches!(answer, Err(Error::Invalid(_)))).count(), SeqCst);
        1.0
    };
    let store: Pages = Options::new().memory(BUDGET).background(false).cache(Cache::new().worth(worth)).in_memory().unwrap();
    assert!(STORE.set(store.clone()).is_ok());
    let mut weighed = 0;
    for key in 0.. {
        store.put(&key, &value_of(key)).unwrap();
        weighed = REFUSED.load(SeqCst) / 6;
        if weighed > 1000 {
            break;
        }
    }
    assert_eq!(REFUSED.load(SeqCst), weighed * 6);
}

/// More than fits cannot be pinned: it remains a cache.
#[test]
fn a_cache_of_pinned_pairs_goes_on() {
    let store: Pages = Options::new().memory(BUDGET).cache(Cache::new().worth(|_, _| f64::INFINITY)).background(false).in_memory().unwrap();
    (0..200_000).for_each(|key| store.put(&key, &value_of(key)).unwrap());
    let held = (0..200_000).filter(|key| store.get(key).unwrap().is_some()).count();
    assert!(held > 20_000 && store.stats().cache.unwrap().evictions > 100_000, "{held}");
    assert_eq!(store.get(&199_999).unwrap(), Some(value_of(199_999)));
}

/// Names and bytes. A file may go while they are looked at.
fn files(directory: &std::path::Path) -> Vec<(std::ffi::OsString, u64)> {
    use std::os::unix::fs::MetadataExt;
    let file = |entry: std::fs::DirEntry| Some((entry.file_name(), entry.metadata().ok()?.blocks() * 512));
    std::fs::read_dir(directory).unwrap().filter_map(|entry| file(entry.ok()?)).collect()
}

fn disk_bytes(directory: &std::path::Path) -> u64 {
    files(directory).iter().map(|(_, bytes)| bytes).sum()
}

#[test]
fn a_cache_on_disk_keeps_to_its_bounds_and_is_warm_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options::new().memory(BUDGET).cache(Cache::new().disk(DISK));
    let store = options().open::<u64, [u8]>(folder.path()).unwrap();
    let count = DISK * 5 / 300;
    let hot = 2000;
    let mut missed = 0;
    for n in 0..count {
        store.put(&(hot + n), &value_of(hot + n)).unwrap();
        if n % 8 == 0 && store.get(&(n / 8 % hot)).unwrap().is_none() {
            missed += u64::from(n > count / 10);
            store.put(&(n / 8 % hot), &value_of(n / 8 % hot)).unwrap();
        }
        if n % 4000 == 0 {
            let (disk, memory) = (disk_bytes(folder.path()), store.stats().memory);
            assert!(disk <= DISK && memory.total_bytes <= BUDGET + BUDGET / 32, "{disk} {memory:?} {:?}", files(folder.path()));
        }
    }
    // Read every 16,000 puts, of which 200,000 fit the disk and 40,000 the memory.
    assert_eq!(missed, 0, "{:?}", store.stats().cache);
    let stats = store.stats();
    let (entries, promotions, cache) = (stats.index.entries, stats.operations.promotions, stats.cache.unwrap());
    assert!(entries < DISK / 200 && promotions > 0 && cache.evictions > count / 2, "{entries} entries, {cache:?}");
    let held = (0..hot + count).step_by(7).filter(|n| store.get(n).unwrap().is_some()).count();
    assert!(held > 100_000 / 7);
    // A scan moves nothing, as a get does that finds a record on the device.
    let keys_of = |store: &Pages| {
        let mut keys = BTreeSet::new();
        store.scan().for_each(|key, value| assert!(value == value_of(key) && keys.insert(key))).unwrap();
        keys
    };
    let before = keys_of(&store);
    store.close().unwrap();
    drop(store);
    let look = || {
        // Nobody makes room then.
        let store = options().background(false).open::<u64, [u8]>(folder.path()).unwrap();
        let keys = keys_of(&store);
        store.close().unwrap();
        keys
    };
    let warm = look();
    // Each get moved what it found to the log's end: the driver may have had to drop a stretch for that until the close.
    let lost = before.difference(&warm).count() as u64;
    assert!(before.len() > 100_000 && lost * 300 < DISK / 8 && warm.is_subset(&before), "{lost} of {} after a restart", before.len());
    assert!(look() == warm);
}

/// What a line covered is there, though the process did not close it.
#[test]
fn a_cache_on_disk_is_warm_after_a_crash() {
    const KEYS: u64 = 20_000;
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory(BUDGET).background(false).cache(Cache::new().disk(DISK));
    let store: Pages = options().open_in(files.clone()).unwrap();
    (0..KEYS).for_each(|n| store.put(&n, &value_of(n)).unwrap());
    store.commit().unwrap();
    (KEYS..2 * KEYS).for_each(|n| store.put(&n, &value_of(n)).unwrap());
    assert_eq!(store.stats().cache.unwrap().evictions, 0, "all of it has room");
    let crashed = Arc::new(files.copy());
    store.close().unwrap();
    let store: Pages = options().open_in(crashed).unwrap();
    let held = (0..KEYS).filter(|n| store.get(n).unwrap().is_some_and(|value| value == value_of(*n))).count() as u64;
    assert_eq!(held, KEYS, "{:?}", store.stats().cache);
}

fn stored_bytes(storage: &dyn Storage) -> u64 {
    storage.list().unwrap().iter().map(|name| storage.open(name).unwrap().bytes().unwrap()).sum()
}

/// A file counted as gone before it was: others wrote as much meanwhile.
#[test]
fn what_is_not_removed_yet_is_counted() {
    // The most that was there when a file was about to go.
    let (files, most) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicU64::new(0)));
    let goes_slowly = {
        let (files, most) = (files.clone(), most.clone());
        move |_: &str, call| {
            if call == Call::Remove {
                thread::sleep(Duration::from_millis(20));
                most.fetch_max(stored_bytes(&*files), Relaxed);
            }
            Ok(())
        }
    };
    let place = Arc::new(Minded::new(files, goes_slowly));
    let store: Pages = Options::new().memory(BUDGET).cache(Cache::new().disk(DISK)).open_in(place).unwrap();
    for key in 0..DISK >> 18 {
        store.put(&key, &vec![1; 1 << 20]).unwrap();
        store.commit().unwrap();
    }
    let most = most.load(Relaxed);
    assert!(most > DISK / 4 * 3 && most <= DISK, "{most} bytes");
}

/// Room on the device is counted in sectors, what is asked for in bytes of the log: there was room for a long value, and no place, for
/// ever.
#[test]
fn the_longest_values_find_their_place() {
    // It took 392 of the longest to come so.
    for (background, bytes, count) in [(false, (4 << 20) - 64, 400), (true, (4 << 20) - 64, 100), (true, 1 << 20, 200)] {
        let storage = Arc::new(MemoryStorage::new());
        let options = Options::new().memory(BUDGET).background(background).cache(Cache::new().disk(DISK));
        let store: Pages = options.clone().open_in(storage.clone()).unwrap();
        let value = vec![1; bytes];
        (0..count).for_each(|key| store.put(&key, &value).unwrap());
        store.commit().unwrap();
        let stored = stored_bytes(&*storage);
        assert!(stored <= DISK, "{stored} bytes with {background} {bytes} {:?}", store.stats().space);
    }
}

/// The index grows with what is written, and its images with it, whoever asks for room or not; and files are no longer than a bound has use
/// for.
#[test]
fn images_and_files_are_within_the_bound() {
    let storage = Arc::new(MemoryStorage::new());
    let cache = || Cache::new().disk(DISK);
    let store: Store<u64, u64> = Options::new().memory(8 * BUDGET).background(false).cache(cache()).open_in(storage.clone()).unwrap();
    for key in 0..2_500_000 {
        store.put(&key, &key).unwrap();
        if key % 500_000 == 499_999 {
            store.save_index().unwrap();
            assert!(stored_bytes(&*storage) <= DISK, "{} bytes after {key}", stored_bytes(&*storage));
        }
    }
    store.close().unwrap();
    assert!(stored_bytes(&*storage) <= DISK, "{} bytes", stored_bytes(&*storage));
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().memory(BUDGET).segment_bytes(256 << 20).background(false).cache(cache());
    let store: Pages = options.clone().open_in(storage.clone()).unwrap();
    (0..200_000).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    store.commit().unwrap();
    assert!(stored_bytes(&*storage) <= DISK, "{} bytes", stored_bytes(&*storage));
}

/// What is loaded or read again writes no more than it may; what is put is there in any case.
#[test]
fn a_device_is_written_as_much_as_it_may() {
    const RATE: u64 = 100_000;
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
    let cache = Cache::new().disk(DISK).disk_writes(RATE);
    let store: Pages = Options::new().memory(BUDGET).cache(cache).clock(clock.clone()).background(false).open(folder.path()).unwrap();
    let load = |key: u64| store.get_or_insert_with(&key, || Ok::<_, Error>(value_of(key))).unwrap();
    let tail = || store.stats().log.tail;
    let (mut next, mut begun) = (0, tail());
    for round in 0..4 {
        // Twice what it may.
        let until = next + 2 * 60 * RATE / 300;
        (next..until).for_each(|key| assert_eq!(load(key), value_of(key)));
        let (written, refused) = (tail() - begun, store.stats().cache.unwrap().refused);
        // A piece of the log more.
        assert!((60 * RATE - 1000..60 * RATE + (256 << 10)).contains(&written), "{written} in round {round}");
        assert!(refused > 15_000 * (round + 1), "{refused}");
        let held = (next..until).filter(|key| store.contains(key).unwrap()).count() as u64;
        assert!(held * 2 < until - next + 2000 && held * 3 > until - next, "{held}");
        (next, begun) = (until, begun + 60 * RATE);
        // What is not to be kept was not refused.
        let before = store.stats().cache.unwrap().refused;
        for key in until..until + 100 {
            let deleted_meanwhile = || store.delete(&key).map(|_| value_of(key));
            assert_eq!(store.get_or_insert_with(&key, deleted_meanwhile).unwrap(), value_of(key));
            assert!(!store.contains(&key).unwrap());
        }
        assert_eq!(store.stats().cache.unwrap().refused, before);
        clock.advance(SECOND * 60);
    }
    // Overdrawn by puts, nothing is loaded into it or copied.
    (next..next + 60_000).for_each(|key| store.put(&key, &value_of(key)).unwrap());
    assert!((next..next + 60_000).all(|key| store.get(&key).unwrap() == Some(value_of(key))));
    let (copies, before) = (store.stats().operations.promotions, tail());
    assert!((next..next + 60_000).all(|key| store.get(&key).unwrap().is_some() && store.get(&key).unwrap().is_some()));
    (next + 60_000..next + 70_000).for_each(|key| _ = load(key));
    assert_eq!((store.stats().operations.promotions, tail()), (copies, before));
    // A value that is there is renewed all the same, or what was handed out would be followed by what is older.
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 10);
    store.put_with_ttl(&next, &[1], SECOND * 10).unwrap();
    assert_eq!(store.get_or_load(&next, &loading, || Ok::<_, Error>(Some(vec![2]))).unwrap(), Some(vec![2]));
    assert_eq!(store.get(&next).unwrap(), Some(vec![2]));
}

/// With a bound below the memory, and below what an earlier opening had.
#[test]
fn a_lower_bound_on_the_disk_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        |memory: u64, disk: u64| Options::new().memory(memory).cache(Cache::new().disk(disk)).open::<u64, [u8]>(folder.path()).unwrap();
    let mut next = 0..;
    let mut put = |store: &Pages, disk: u64, bytes: u64| {
        for n in next.by_ref().take(bytes as usize / 1000) {
            store.put(&n, &vec![n as u8; 1000]).unwrap();
            if n % 8000 == 0 {
                store.commit().unwrap();
                assert!(disk_bytes(folder.path()) <= disk, "{:?}", files(folder.path()));
            }
        }
        store.commit().unwrap();
        assert!(disk_bytes(folder.path()) <= disk, "{:?}", files(folder.path()));
        let stats = store.stats();
        let cached = stats.space.live_bytes;
        assert!(stats.cache.unwrap().evictions > 0 && cached > disk / 2, "{cached} bytes of {disk}");
    };
    let store = open(4 * DISK, DISK);
    put(&store, DISK, 3 * DISK);
    store.close().unwrap();
    let store = open(BUDGET, 3 * DISK);
    put(&store, 3 * DISK, 4 * DISK);
    store.close().unwrap();
    let store = open(BUDGET, DISK);
    // The first room that is asked for drops what is too much.
    store.put(&u64::MAX, &[1; 1000]).unwrap();
    while disk_bytes(folder.path()) > DISK {
        thread::yield_now();
    }
    put(&store, DISK, 2 * DISK);
}

#[test]
fn bounds_that_cannot_be_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = |cache: Cache| Options::new().memory(BUDGET).cache(cache).open::<u64, u64>(folder.path()).unwrap_err().to_string();
    assert!(open(Cache::new()).contains("Cache::disk"));
    assert!(open(Cache::new().disk("1MiB")).contains("64 MiB"));
    let writes = Options::new().memory(BUDGET).cache(Cache::new().disk_writes("1MiB")).in_memory::<u64, u64>();
    assert!(writes.unwrap_err().to_string().contains("disk_writes"));
    let in_memory = Options::new().memory(BUDGET).cache(Cache::new().disk("64MiB")).in_memory::<u64, u64>();
    assert!(in_memory.unwrap_err().to_string().contains("no disk"));
}

/// What an iterator will show may not be dropped. A cache refuses meanwhile, rather than wait for what its own caller may hold.
#[test]
fn a_cache_says_full_while_a_scan_holds_it_and_drops_again_afterwards() {
    for background in [true, false] {
        let store = pages(background);
        let put = |n: u64| store.put(&n, &value_of(n));
        let mut next = 0;
        while store.stats().cache.unwrap().evictions == 0 {
            (next..next + 1000).for_each(|n| put(n).unwrap());
            next += 1000;
        }
        let mut pairs = store.scan().iter().unwrap();
        let first = pairs.next().unwrap().unwrap();
        assert_eq!(first.1, value_of(first.0));
        // A value is at most 488 bytes long: more than the budget in all.
        let refused = (next..next + 200_000).find_map(|n| put(n).err());
        assert!(matches!(refused, Some(Error::Full)), "{refused:?}");
        let others: Vec<(u64, Vec<u8>)> = pairs.map(Result::unwrap).collect();
        assert!(others.len() > 10_000, "{} pairs", others.len());
        assert!(others.iter().all(|(n, value)| *n < next && *value == value_of(*n)));
        // The iterator is gone.
        (next..next + 50_000).for_each(|n| put(n).unwrap());
        assert_eq!(store.get(&(next + 49_999)).unwrap().as_deref(), Some(&value_of(next + 49_999)[..]));
    }
}

/// A budget that what is held does not fit was in force all the same, and refused every put.
#[test]
fn a_budget_that_a_scan_does_not_let_be_lowered_stays() {
    let store: Pages = options().memory(3 * BUDGET).background(false).in_memory().unwrap();
    let put = |n: u64| store.put(&n, &[7; 1000]);
    (0..30_000).for_each(|n| put(n).unwrap());
    let mut pairs = store.scan().iter().unwrap();
    assert!(pairs.next().is_some());
    assert!(matches!(store.set_memory(BUDGET), Err(Error::Full)));
    assert_eq!(store.stats().memory.budget_bytes, 3 * BUDGET);
    (30_000..35_000).for_each(|n| put(n).unwrap());
    drop(pairs);
    store.set_memory(BUDGET).unwrap();
    assert_eq!(store.stats().memory.budget_bytes, BUDGET);
}

/// What two had asked for at once, and were refused, was in force in the end.
#[test]
fn a_budget_that_two_are_refused_is_the_old_one() {
    let store: Pages = options().memory(4 * BUDGET).background(false).in_memory().unwrap();
    (0..80_000).for_each(|n| store.put(&n, &[7; 1000]).unwrap());
    let reading = store.begin_read().unwrap();
    for round in 0..200 {
        let (barrier, store) = (Barrier::new(2), &store);
        let ask = |bytes: u64| {
            barrier.wait();
            store.set_memory(bytes)
        };
        std::thread::scope(|scope| {
            let asked = [BUDGET, 2 * BUDGET].map(|bytes| scope.spawn(move || ask(bytes)));
            asked.into_iter().for_each(|asked| assert!(matches!(asked.join().unwrap(), Err(Error::Full))));
        });
        assert_eq!(store.stats().memory.budget_bytes, 4 * BUDGET, "round {round}");
    }
    drop(reading);
}

/// It was read again and again when its turn to be dropped had come, and nothing was dropped any more.
#[test]
fn a_block_that_cannot_be_read_goes_with_its_stretch() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().memory(BUDGET).cache(Cache::new().disk(DISK)).background(false);
    let store: Pages = options.clone().open_in(storage.clone()).unwrap();
    let put = |range: std::ops::Range<u64>| range.for_each(|n| store.put(&n, &[n as u8; 5000]).unwrap());
    put(0..4_800);
    store.commit().unwrap();
    let file = storage.open("esker.log.00000000").unwrap();
    file.write(file.bytes().unwrap() / 8192 * 4096, &[0xEE; 4096]).unwrap();
    put(4_800..30_000);
    assert!((29_500..30_000).all(|n| store.get(&n).unwrap() == Some(vec![n as u8; 5000])));
    let held = (0..30_000).filter(|n| store.get(n).unwrap().is_some()).count();
    assert!(held > 4_000, "{held} pairs on {DISK} bytes");
    store.close().unwrap();
    let store: Pages = options.open_in(storage).unwrap();
    assert_eq!(store.get(&29_999).unwrap(), Some(vec![29_999u64 as u8; 5000]));
}

/// Copies needed room in memory, for which a cache on a device drops its oldest: which is what the copies were made for, by the same
/// thread.
#[test]
fn a_cache_on_a_device_that_is_full_can_be_compacted() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().memory("16MiB").cache(Cache::new().disk("64MiB")).background(false);
    let store: Store<u64, [u8]> = options.open(folder.path()).unwrap();
    for round in 0..8u64 {
        (0..2_500).for_each(|key| store.put(&(round * 2_500 + key), &[round as u8; 4_000]).unwrap());
        store.compact().unwrap();
    }
    assert_eq!(store.get(&19_999).unwrap().unwrap(), [7; 4_000]);
}

/// It dropped what was beyond its bound.
#[test]
fn a_store_that_is_no_cache_is_refused_to_one() {
    const COUNT: u64 = 30_000;
    let storage = Arc::new(MemoryStorage::new());
    let plain = Options::new().memory("16MiB").background(false);
    let cache = |cache: Cache| plain.clone().cache(cache.disk("64MiB"));
    let open = |options: Options| options.open_in::<u64, [u8]>(storage.clone());
    let count = |store: &Pages| (0..COUNT).filter(|n| store.get(n).unwrap().is_some()).count() as u64;
    let store = open(plain.clone()).unwrap();
    (0..COUNT).for_each(|n| store.put(&n, &[n as u8; 4_000]).unwrap());
    store.close().unwrap();
    let files = storage.copy();
    let refusal = open(cache(Cache::new())).unwrap_err();
    assert!(matches!(&refusal, Error::Invalid(why) if why.contains("Cache::convert")), "{refusal}");
    let again: Pages = plain.clone().open_in(Arc::new(files)).unwrap();
    assert_eq!(count(&again), COUNT);
    // It is one from then on, whoever opens it; and who opens it as none drops nothing.
    let store = open(cache(Cache::new().convert())).unwrap();
    (COUNT..COUNT + 10_000).for_each(|n| store.put(&n, &[n as u8; 4_000]).unwrap());
    let left = count(&store);
    assert!(left < COUNT / 2, "{left}");
    store.close().unwrap();
    let store = open(plain.clone()).unwrap();
    (COUNT..2 * COUNT).for_each(|n| store.put(&n, &[n as u8; 4_000]).unwrap());
    assert_eq!(count(&store), left);
    store.close().unwrap();
    let store = open(cache(Cache::new())).unwrap();
    store.put(&0, &[0; 4_000]).unwrap();
    // A copy of a cache is one, too.
    let copy = Arc::new(MemoryStorage::new());
    store.snapshot_in(copy.clone()).unwrap();
    store.close().unwrap();
    cache(Cache::new()).open_in::<u64, [u8]>(copy).unwrap();
}

/// A conversion whose opening fails leaves no cache behind, whatever that opening had to write before it failed.
#[test]
fn a_conversion_that_fails_converts_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let left = Arc::new(Mutex::new(Vec::new()));
    let keep = {
        let (files, left) = (files.clone(), left.clone());
        move |name: &str, call| {
            if name == "esker.manifest" && call == Call::Sync {
                left.lock().unwrap().push(files.copy());
            }
            Ok(())
        }
    };
    let options = || Options::new().memory(BUDGET).background(false);
    let store: Pages = options().open_in(Arc::new(Minded::new(files.clone(), keep))).unwrap();
    (0..20_000).for_each(|n| store.put(&n, &value_of(n)).unwrap());
    (0..19_000).for_each(|n| assert!(store.delete(&n).unwrap()));
    // The log begins further up: in one slot first.
    store.compact().unwrap();
    store.close().unwrap();
    let left = std::mem::take(&mut *left.lock().unwrap());
    let mut failed = 0;
    for files in left {
        let files = Arc::new(files);
        let log = files.list().unwrap().into_iter().filter(|name| name.starts_with("esker.log.")).max();
        let Some(log) = log else { continue };
        let file = files.open(&log).unwrap();
        (0..file.bytes().unwrap() / 4096).for_each(|at| file.write(at * 4096, &[0xa5; 4096]).unwrap());
        let cache = |cache: Cache| options().cache(cache.disk(DISK)).open_in::<u64, [u8]>(files.clone());
        if cache(Cache::new().convert()).is_err() {
            failed += 1;
            let refused = cache(Cache::new());
            assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("Cache::convert")), "{refused:?}");
        }
    }
    assert!(failed > 1, "{failed} failed");
}

/// Not one of another length of files, either, which a correct call would go on with.
#[test]
fn options_that_cannot_be_make_no_store() {
    let cannot = [
        Options::new().memory("64XB"),
        Options::new().memory(1),
        Options::new().memory("16MiB").cache(Cache::new()),
        Options::new().memory("16MiB").cache(Cache::new().disk(1)),
        Options::new().memory("16MiB").cache(Cache::new().disk("64MiB").disk_writes("some")),
        Options::new().memory("16MiB").cache(Cache::new().disk("64MiB")).history(true),
    ];
    let both = Options::new().memory("16MiB").cache(Cache::new()).history(true).in_memory::<u64, u64>();
    assert!(matches!(both, Err(Error::Invalid(_))));
    let place = tempfile::tempdir().unwrap();
    for options in cannot {
        assert!(matches!(options.clone().open::<u64, u64>(place.path().join("store")), Err(Error::Invalid(_))));
        assert!(!place.path().join("store").exists());
        let storage = Arc::new(MemoryStorage::new());
        assert!(matches!(options.open_in::<u64, u64>(storage.clone()), Err(Error::Invalid(_))));
        assert!(storage.list().unwrap().is_empty());
    }
}

/// There was no room for its copy, and what cannot be copied is dropped.
#[test]
fn a_long_value_that_is_pinned_stays() {
    for bytes in [400 << 10, 1 << 20, 2 << 20] {
        let worth = |key: &[u8], _: &[u8]| if key == 0u64.to_ne_bytes() { f64::INFINITY } else { 1.0 };
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").cache(Cache::new().worth(worth)).in_memory().unwrap();
        store.put(&0, &vec![1; bytes]).unwrap();
        for key in 1..50_000u64 {
            store.put(&key, &[7; 1000]).unwrap();
            assert!(key % 1000 > 0 || store.contains(&0).unwrap(), "{bytes} bytes are gone at {key}");
        }
    }
}

/// Each is alone in its stretch, and was always kept: the driver copied memory round and round, and a put that found no room never
/// returned.
#[test]
fn values_that_fill_a_stretch_each_are_dropped_like_others() {
    let value = vec![1; 1 << 20];
    let store: Pages = options().cache(Cache::new().worth(|_, _| f64::INFINITY)).in_memory().unwrap();
    (0..64).for_each(|key| store.put(&key, &value).unwrap());
    // It comes to rest.
    let moved = || store.stats().space.moved_bytes;
    let mut before = u64::MAX;
    while moved() != before {
        before = moved();
        thread::sleep(Duration::from_millis(200));
    }
    for background in [false, true] {
        let store: Pages = options().background(background).cache(Cache::new().worth(|_, _| 8.0)).in_memory().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    (0..64).for_each(|key| _ = store.get_with(&key, |_| ()).unwrap());
                }
            });
            (0..64).for_each(|key| store.put(&key, &value).unwrap());
            is_over.store(true, SeqCst);
        });
        assert!(store.get_with(&63, |value| value.len()).unwrap() == Some(1 << 20));
    }
}

/// What a transaction read had gone, others had found that out, and it built on it.
#[test]
fn a_transaction_builds_on_nothing_that_was_dropped() {
    let gone = Arc::new(AtomicBool::new(false));
    let hears = gone.clone();
    let listener = move |key: &[u8], _: &[u8], _| hears.store(hears.load(SeqCst) || key == 7u64.to_ne_bytes(), SeqCst);
    let store: Pages = options().background(false).cache(Cache::new().on_eviction(listener)).in_memory().unwrap();
    store.put(&7, &[5]).unwrap();
    let mut both = [store.begin().unwrap(), store.begin().unwrap()];
    both.iter_mut().for_each(|tx| assert_eq!(tx.get(&7).unwrap(), Some(vec![5])));
    both[1].put(&7, &[6]).unwrap();
    (100..).find(|key| {
        store.put(key, &vec![1; 100_000]).unwrap();
        gone.load(SeqCst)
    });
    assert_eq!(store.get(&7).unwrap(), None);
    for tx in both {
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    }
    assert_eq!(store.get(&7).unwrap(), None);
}

/// Reads of many at once let what was hot go cold.
#[test]
fn reads_of_many_keep_in_memory_what_will_soon_be_cold() {
    let store: Pages = options().background(false).cache(Cache::new().disk(DISK)).open_temporary().unwrap();
    let hot: Vec<u64> = (0..100).collect();
    hot.iter().for_each(|key| store.put(key, &value_of(*key)).unwrap());
    let mut reads = 0;
    for key in 1000..300_000 {
        store.put(&key, &value_of(key)).unwrap();
        if key % 200 == 0 {
            let before = store.stats().operations.device_reads;
            store.get_many(&hot, |n, value| assert_eq!(value, Some(&value_of(n as u64)[..]))).unwrap();
            reads += store.stats().operations.device_reads - before;
        }
    }
    assert!(reads < 400, "{reads} device reads");
}

/// The leader of a load looks once more, and that counted as a get and a miss.
#[test]
fn a_load_is_one_get_and_one_miss() {
    let words: Store<u64, u64> = Options::new().memory("16MiB").cache(Cache::new()).in_memory().unwrap();
    let bytes: Store<u64, [u8]> = Options::new().memory("16MiB").cache(Cache::new()).in_memory().unwrap();
    for _ in 0..2 {
        (0..100).for_each(|key| assert_eq!(words.get_or_insert_with(&key, || Ok::<_, Error>(key)).unwrap(), key));
        (0..100).for_each(|key| assert_eq!(bytes.get_or_insert_with(&key, || Ok::<_, Error>(vec![7])).unwrap(), [7]));
    }
    for stats in [words.stats(), bytes.stats()] {
        assert_eq!((stats.operations.gets, stats.operations.misses), (200, 100), "{stats:?}");
    }
    // Also where somebody else has put a value meanwhile.
    let load = || words.put(&100, &8).map(|()| 7);
    assert_eq!(words.get_or_insert_with(&100, load).unwrap(), 8);
    let stats = words.stats();
    assert_eq!((stats.operations.gets, stats.operations.misses), (201, 101), "{stats:?}");
}

/// While somebody paged through a full cache nothing could be dropped, and puts were refused at once.
#[test]
fn a_full_cache_takes_puts_beside_pages() {
    let store = pages(false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut at = esker::Cursor::START;
                while !stop.load(SeqCst) {
                    at = store.scan_page(at, 64).unwrap().next.unwrap_or(esker::Cursor::START);
                }
            });
        }
        (0..400_000).for_each(|n| store.put(&n, &[1; 100]).unwrap_or_else(|error| panic!("put {n}: {error}")));
    });
    assert!(store.stats().cache.unwrap().evictions > 100_000);
}

/// A device that keeps the store's reader waiting until it is let go: what a future asks for is not there when it is polled again.
#[derive(Default)]
struct Holding {
    device: esker::MemoryDevice,
    lets_go: AtomicBool,
}

impl esker::Device for Holding {
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        while thread::current().name() == Some("esker-reader") && !self.lets_go.load(SeqCst) {
            thread::yield_now();
        }
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.device.write(offset, bytes)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }

    fn bytes(&self) -> std::io::Result<u64> {
        self.device.bytes()
    }
}

/// The deletion had marked the loads that were under way when it began, and then waited for the device.
#[test]
fn what_is_loaded_while_a_deletion_waits_is_not_kept() {
    type Deletion<'s> = Pin<Box<dyn Future<Output = bool> + 's>>;
    type Delete = for<'s> fn(&'s Store<u64, u64>) -> Deletion<'s>;
    // And what gives it an end, and leaves it.
    let deletions: [(Delete, Option<u64>); 4] = [
        (|store| Box::pin(async { store.delete_async(&7).await.unwrap() }), None),
        (|store| Box::pin(async { store.compare_and_swap_async(&7, Some(&1), None).await.unwrap() }), None),
        (|store| Box::pin(async { store.delete_many_async(&[7, 8]).await.unwrap() == 1 }), None),
        (
            |store| Box::pin(async { store.expire_at_async(&7, esker::Clock::now(&ManualClock::default()) + SECOND).await.unwrap() }),
            Some(1),
        ),
    ];
    // And where nothing was ever loaded before.
    for (number, ((delete, left), is_first)) in
        deletions.into_iter().zip([false; 4]).chain(deletions.into_iter().zip([true; 4])).enumerate()
    {
        let clock = Arc::new(ManualClock::default());
        let options = Options::new().memory(BUDGET).clock(clock).background(false);
        let device = Arc::new(Holding::default());
        let store: Store<u64, u64> = options.open_on(device.clone()).unwrap();
        if !is_first {
            store.get_or_insert_with(&0, || Ok::<_, Error>(0)).unwrap();
        }
        store.put_with_ttl(&7, &1, Duration::from_secs(100)).unwrap();
        // So that 7 is cold.
        (1000..1_500_000).for_each(|n| store.put(&n, &n).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut deletion = delete(&store);
        let mut deleted = None;
        assert!(deletion.as_mut().poll(&mut context).is_pending(), "{number}");
        device.lets_go.store(true, SeqCst);
        let loading = Loading::new().ttl(Duration::from_secs(100)).renew_ahead(Duration::from_secs(100));
        let load = || {
            while deleted.is_none() {
                if let Poll::Ready(was_there) = deletion.as_mut().poll(&mut context) {
                    deleted = Some(was_there);
                }
            }
            Ok::<_, Error>(Some(2))
        };
        assert_eq!(store.get_or_load(&7, &loading, load).unwrap(), Some(2), "{number}");
        drop(deletion);
        assert_eq!(deleted, Some(true), "{number}");
        assert_eq!(store.get(&7).unwrap(), left, "{number}");
        // Behind it all is as before.
        assert_eq!(store.get_or_load(&7, &loading, || Ok::<_, Error>(Some(3))).unwrap(), Some(3));
        assert_eq!(store.get(&7).unwrap(), Some(3), "{number}");
    }
}

/// What was loaded ahead and could not be kept was an error to who had hit, and loaded again by the next one.
#[test]
fn what_is_renewed_in_vain_stays_until_its_end() {
    let clock = Arc::new(ManualClock::default());
    let store: Pages = Options::new().memory(BUDGET).clock(clock.clone()).background(false).in_memory().unwrap();
    store.put_with_ttl(&0, b"here", SECOND * 10).unwrap();
    let full = (1..).find_map(|key| store.put(&key, &[1; 1000]).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    clock.advance(SECOND * 7);
    let loads = AtomicU64::new(0);
    let loading = Loading::new().ttl(SECOND * 10).renew_ahead(SECOND * 4);
    let ask = |length: usize| {
        let load = || {
            loads.fetch_add(1, Relaxed);
            Ok::<_, Error>(Some(vec![2; length]))
        };
        store.get_or_load(&0, &loading, load)
    };
    for tries in [1, 2] {
        for _ in 0..3 {
            assert_eq!(ask(100_000).unwrap().as_deref(), Some(&b"here"[..]));
            assert_eq!(loads.load(Relaxed), tries);
        }
        clock.advance(SECOND);
    }
    // Behind its end there is nothing to answer.
    clock.advance(SECOND);
    assert!(matches!(ask(100_000), Err(Error::Full)));
}

/// One load for all who ask while a deletion waits, though what it brings is not kept; who asks behind the deletion loads anew.
#[test]
fn who_asks_beside_a_deletion_that_waits_shares_a_load() {
    let options = Options::new().memory(BUDGET).background(false);
    let device = Arc::new(Holding::default());
    let store: Store<u64, u64> = options.open_on(device.clone()).unwrap();
    store.get_or_insert_with(&0, || Ok::<_, Error>(0)).unwrap();
    store.put_with_ttl(&7, &1, Duration::from_millis(1)).unwrap();
    (1000..1_500_000).for_each(|n| store.put(&n, &n).unwrap());
    let mut deletion: Pin<Box<dyn Future<Output = bool>>> = Box::pin(async { store.delete_async(&7).await.unwrap() });
    assert!(deletion.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    device.lets_go.store(true, SeqCst);
    let (loads, begun) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                begun.fetch_add(1, SeqCst);
                let load = || {
                    loads.fetch_add(1, SeqCst);
                    while begun.load(SeqCst) < 8 {
                        thread::yield_now();
                    }
                    // So that the others wait, nearly always.
                    thread::sleep(Duration::from_millis(100));
                    Ok::<_, Error>(Some(2))
                };
                assert_eq!(store.get_or_load(&7, &Loading::new(), load).unwrap(), Some(2));
            });
        }
    });
    assert!(loads.load(SeqCst) < 4, "{loads:?}");
    assert_eq!(store.get(&7).unwrap(), None);
    drop(deletion);
    assert_eq!(store.get_or_load(&7, &Loading::new(), || Ok::<_, Error>(Some(3))).unwrap(), Some(3));
    assert_eq!(store.get(&7).unwrap(), Some(3));
}

/// Only a deletion ends what is known of a source without a value.
#[test]
fn an_end_leaves_an_absence() {
    type Write = fn(&Store<u64, u64>);
    let writes: [Write; 2] = [
        |store| store.put_with_ttl(&7, &1, Duration::from_millis(5)).unwrap(),
        |store| store.transaction(|tx| tx.put_with_ttl(&7, &1, Duration::from_millis(5))).unwrap(),
    ];
    for write in writes {
        let (clock, store) = timed();
        let (loading, loads) = (Loading::new().absent_ttl(Duration::from_secs(100)), AtomicU64::new(0));
        let ask = || {
            let load = || {
                loads.fetch_add(1, SeqCst);
                Ok::<_, Error>(None)
            };
            assert_eq!(store.get_or_load(&7, &loading, load).unwrap(), None);
        };
        ask();
        write(&store);
        clock.advance(Duration::from_millis(10));
        ask();
        assert_eq!(loads.load(SeqCst), 1);
    }
}

/// The old value had ended by then, and was taken for changed: its source was asked once more.
#[test]
fn an_absence_is_known_though_the_value_ended_while_it_was_looked_for() {
    let (clock, store) = timed();
    let loading = Loading::new().ttl(SECOND * 60).renew_ahead(SECOND * 60).absent_ttl(SECOND * 600);
    let loads = AtomicU64::new(0);
    let ask = |passes: Duration, brings: Option<u64>| {
        let load = || {
            loads.fetch_add(1, SeqCst);
            clock.advance(passes);
            Ok::<_, Error>(brings)
        };
        store.get_or_load(&1, &loading, load).unwrap()
    };
    assert_eq!(ask(Duration::ZERO, Some(1)), Some(1));
    assert_eq!(ask(SECOND * 60, None), None);
    assert_eq!((ask(Duration::ZERO, Some(2)), loads.load(SeqCst)), (None, 2));
}

/// A value that was loaded anew had the old one's end until a line was durable, and was gone if that passed meanwhile.
fn has_its_own_end_at_once<V: Value + ?Sized>(value: impl Fn(u8) -> V::Owned)
where
    V::Owned: PartialEq + std::fmt::Debug,
{
    let (clock, passes) = (Arc::new(ManualClock::default()), Arc::new(AtomicU64::new(0)));
    let (at_sync, seconds) = (clock.clone(), passes.clone());
    let files = Minded::new(Arc::new(MemoryStorage::new()), move |name, call| {
        if call == Call::Sync && name.starts_with("esker.log") {
            at_sync.advance(SECOND * seconds.swap(0, SeqCst) as u32);
        }
        Ok(())
    });
    let options = Options::new().memory(BUDGET).clock(clock.clone()).durability(Durability::Always).background(false);
    let store: Store<u64, V> = options.open_in(Arc::new(files)).unwrap();
    let loading = Loading::new().ttl(SECOND * 60).renew_ahead(SECOND * 60);
    let load = |n| store.get_or_load(&1, &loading, || Ok::<_, Error>(Some(value(n)))).unwrap();
    assert_eq!(load(1), Some(value(1)));
    clock.advance(SECOND * 30);
    // The rest of the old value's time passes while the new one becomes durable.
    passes.store(59, SeqCst);
    assert_eq!(load(2), Some(value(2)));
    assert_eq!(passes.load(SeqCst), 0, "nothing was synced");
    assert_eq!((store.get(&1).unwrap(), store.ttl(&1).unwrap()), (Some(value(2)), Some(Ttl::Left(SECOND))));
}

#[test]
fn a_value_that_is_loaded_anew_has_its_own_end_at_once() {
    has_its_own_end_at_once::<u64>(u64::from);
    has_its_own_end_at_once::<[u8]>(|n| vec![n; 100]);
}

/// A newer value that was put for less time than the load took.
#[test]
fn what_is_loaded_beside_a_value_that_ends_is_not_kept() {
    type Write = fn(&Store<u64, u64>);
    let ms = Duration::from_millis;
    let writes: [Write; 3] = [
        |store| store.put_with_ttl(&1, &2, Duration::from_millis(5)).unwrap(),
        |store| {
            store.put(&1, &2).unwrap();
            assert!(store.expire_at(&1, esker::Clock::now(&ManualClock::default()) + Duration::from_millis(5)).unwrap());
        },
        |store| store.transaction(|tx| tx.put_with_ttl(&1, &2, Duration::from_millis(5))).unwrap(),
    ];
    for write in writes {
        let (clock, store) = timed();
        let load = || {
            write(&store);
            clock.advance(ms(5));
            Ok::<_, Error>(Some(1))
        };
        assert_eq!(store.get_or_load(&1, &Loading::new().ttl(ms(1000)), load).unwrap(), Some(1));
        assert_eq!(store.get(&1).unwrap(), None, "it is older than what was put");
    }
}

/// What fits the disk fits, however many small pairs there are, and however large an index.
#[test]
fn a_transaction_that_fits_finds_its_place_among_small_pairs() {
    let options = Options::new().memory(256u64 << 20).cache(Cache::new().disk(DISK));
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..1_500_000).for_each(|key| store.put(&key, &[1; 8]).unwrap());
    let value = vec![1; 8 << 20];
    store.transaction(|tx| (0..6).try_for_each(|key| tx.put(&key, &value))).unwrap();
    assert!((0..6).all(|key| store.contains(&key).unwrap()));
}

/// One call that could not succeed emptied the cache, and then said that it was full.
#[test]
fn a_transaction_that_never_fits_on_the_disk_drops_nothing() {
    let options = Options::new().memory(128u64 << 20).cache(Cache::new().disk(DISK));
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..10_000).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    let value = vec![1; 8 << 20];
    let put = |count: u64| store.transaction(|tx| (100_000..100_000 + count).try_for_each(|key| tx.put(&key, &value)));
    let large = put(8);
    assert!(matches!(large, Err(Error::Invalid(_))), "{large:?}");
    assert!((0..10_000).all(|key| store.contains(&key).unwrap()));
    put(4).unwrap();
    assert!((100_000..100_004).all(|key| store.contains(&key).unwrap()));
}

/// In memory a long record leaves compaction room for its copy: what fitted without that emptied the cache, was told `Full`, and the next
/// time `Invalid`.
#[test]
fn a_transaction_that_never_fits_in_memory_drops_nothing() {
    let value = vec![1; 3_950_000];
    let put =
        |store: &Store<u64, [u8]>, count: u64| store.transaction(|tx| (0..count).try_for_each(|key| tx.put(&(100_000 + key), &value)));
    let options = || Options::new().memory(BUDGET).background(false);
    let cache: Store<u64, [u8]> = options().cache(Cache::new()).in_memory().unwrap();
    (0..10_000).for_each(|key| cache.put(&key, &[1; 1000]).unwrap());
    let large = put(&cache, 3);
    assert!(matches!(large, Err(Error::Invalid(_))), "{large:?}");
    assert!((0..10_000).all(|key| cache.contains(&key).unwrap()));
    put(&cache, 2).unwrap();
    // Nothing that could be deleted would make room.
    let store = options().in_memory().unwrap();
    assert!(matches!(put(&store, 3), Err(Error::Invalid(_))));
    put(&store, 2).unwrap();
}

/// It counted on room that dropping cannot make: the end of a file, and the index. All went, and it was told `Full`.
#[test]
fn a_transaction_that_hardly_fits_on_the_disk_drops_nothing_in_vain() {
    let options = Options::new().memory(128u64 << 20).cache(Cache::new().disk(DISK));
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..10_000).for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    let value = vec![1; 9_450_000];
    let large = store.transaction(|tx| (100_000..100_007).try_for_each(|key| tx.put(&key, &value)));
    assert!(matches!(large, Err(Error::Invalid(_))), "{large:?}");
    assert!((0..10_000).all(|key| store.contains(&key).unwrap()));
}

/// What was loaded and must not be written was handed out, though somebody had put another value meanwhile.
#[test]
fn a_load_that_may_not_be_written_answers_what_others_put() {
    let options = Options::new().memory(BUDGET).cache(Cache::new().disk(DISK).disk_writes(1)).background(false);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let load = |key: u64| {
        store.get_or_load(&key, &Loading::new(), || {
            store.put(&key, &[8; 1000])?;
            Ok::<_, Error>(Some(vec![7; 1000]))
        })
    };
    for key in 0..3 {
        assert_eq!(load(key).unwrap().as_deref(), Some(&[8; 1000][..]));
    }
    assert_eq!(store.get_or_load(&3, &Loading::new(), || Ok::<_, Error>(Some(vec![7; 1000]))).unwrap().as_deref(), Some(&[7; 1000][..]));
    assert!(!store.contains(&3).unwrap(), "it may not be written");
}

#[test]
fn a_long_value_that_is_loaded_keeps_to_what_may_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new().disk(DISK).disk_writes(1000);
    let options = Options::new().memory(BUDGET).cache(cache).clock(Arc::new(ManualClock::default())).background(false);
    let store: Store<u64, [u8]> = options.open(folder.path()).unwrap();
    let begun = store.stats().log.tail;
    for (key, length) in [(1, 4 << 20), (2, 59_000), (3, 10_000)] {
        assert_eq!(store.get_or_insert_with(&key, || Ok::<_, Error>(vec![1; length])).unwrap().len(), length);
    }
    assert_eq!([1, 2, 3].map(|key| store.contains(&key).unwrap()), [false, true, false]);
    assert!(store.stats().log.tail - begun <= 60_000 + (64 << 10));
}

/// What shared its entry, or stood behind another record, was told before it was gone.
#[test]
fn the_listener_hears_of_nothing_that_can_be_read() {
    let early = Arc::new(AtomicU64::new(0));
    let store: Arc<OnceLock<Store<u64, u64>>> = Arc::default();
    let listener = {
        let (early, store) = (early.clone(), store.clone());
        move |key: &[u8], _: &[u8], _: Eviction| {
            let key = u64::from_ne_bytes(key.try_into().unwrap());
            if let Some(store) = store.get()
                && store.get(&key).is_ok_and(|value| value.is_some())
            {
                early.fetch_add(1, Relaxed);
            }
        }
    };
    let cache = Cache::new().on_eviction(listener);
    store.set(Options::new().memory(BUDGET).cache(cache).in_memory().unwrap()).ok().unwrap();
    let puts = if cfg!(debug_assertions) { 500_000 } else { 4_000_000 };
    thread::scope(|scope| {
        for t in 0..3 {
            let store = store.get().unwrap();
            scope.spawn(move || (0..puts).for_each(|n| store.put(&(n * 3 + t), &n).unwrap()));
        }
    });
    assert_eq!(early.load(Relaxed), 0);
}

/// A listener that takes its time kept the store's thread from all else: nothing became durable meanwhile.
#[test]
fn lines_are_drawn_while_a_listener_is_told() {
    // Behind each pair the store's thread waits until it is let go.
    let (told, hears) = mpsc::channel();
    let (lets_go, goes) = mpsc::channel::<()>();
    let goes = Mutex::new(goes);
    let listener = move |_: &[u8], _: &[u8], _: Eviction| {
        if thread::current().name() == Some("esker-driver") {
            let _ = told.send(());
            // A test that has failed lets it go.
            let _ = goes.lock().unwrap().recv();
        }
    };
    let cache = Cache::new().disk(DISK).on_eviction(listener);
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory(BUDGET).durability(Durability::Every(Duration::from_millis(5)));
    let store: Pages = options.cache(cache).open_in(files.clone()).unwrap();
    let mut keys = 1..;
    let begun = Instant::now();
    // Until it tells, and has many to tell of.
    while hears.try_recv().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(300), "the driver drops nothing");
        // Futures do not wait for the listener.
        block_on(store.put_async(&keys.next().unwrap(), &[1; 1000])).unwrap();
        if keys.start.is_multiple_of(100) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    block_on(store.put_async(&0, &[7; 8])).unwrap();
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(10));
        lets_go.send(()).unwrap();
        hears.recv_timeout(Duration::from_secs(300)).unwrap();
    }
    let copy = Arc::new(files.copy());
    drop(lets_go);
    store.close().unwrap();
    let copy: Pages = Options::new().memory(BUDGET).cache(Cache::new().disk(DISK)).open_in(copy).unwrap();
    assert_eq!(copy.get(&0).unwrap().as_deref(), Some(&[7; 8][..]));
}

/// They went without a word, and were in no figure.
#[test]
fn the_listener_hears_of_what_compact_leaves_out() {
    for (on_disk, listens) in [(false, true), (true, true), (false, false)] {
        let (clock, heard) = (Arc::new(ManualClock::default()), Arc::new(Mutex::new(Vec::new())));
        let mut cache = if on_disk { Cache::new().disk(64 << 20) } else { Cache::new() };
        if listens {
            let heard = heard.clone();
            cache = cache.on_eviction(move |key, _, why| heard.lock().unwrap().push((key.to_vec(), why)));
        }
        let options = Options::new().memory("16MiB").clock(clock.clone()).background(false).cache(cache);
        let store: Store<u64, [u8]> = match on_disk {
            true => options.open_in(Arc::new(MemoryStorage::new())).unwrap(),
            false => options.in_memory().unwrap(),
        };
        for key in 0..3 {
            store.put_with_ttl(&key, b"short", Duration::from_secs(1 + 10 * key)).unwrap();
        }
        clock.advance(Duration::from_secs(5));
        for _ in 0..2 {
            store.compact().unwrap();
            let cache = store.stats().cache.unwrap();
            assert_eq!((cache.expired, cache.evictions), (1, 0), "{on_disk} {listens}");
            let want = if listens { vec![(0u64.to_ne_bytes().to_vec(), Eviction::Expired)] } else { Vec::new() };
            assert_eq!(*heard.lock().unwrap(), want, "{on_disk}");
        }
        assert_eq!([0, 1, 2].map(|key| store.contains(&key).unwrap()), [false, true, true]);
        // What lives is not told of.
        clock.advance(Duration::from_secs(10));
        store.put(&1, b"anew").unwrap();
        store.compact().unwrap();
        assert_eq!(heard.lock().unwrap().len(), usize::from(listens));
    }
}

/// Who waited for a load under way waited on, for good, where the leader's future was not polled any more.
#[test]
fn closing_ends_the_waits_for_a_load() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let load = || async {
        std::future::pending::<()>().await;
        Ok::<_, std::io::Error>(7)
    };
    let mut leads = Box::pin(store.get_or_insert_with_async(&1, load));
    let mut waits = Box::pin(store.get_or_insert_with_async(&1, load));
    let mut context = Context::from_waker(Waker::noop());
    assert!(leads.as_mut().poll(&mut context).is_pending() && waits.as_mut().poll(&mut context).is_pending());
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| store.get_or_insert_with(&1, || Ok::<_, std::io::Error>(8)));
        // So that it most probably waits by then; it is told the same if not.
        std::thread::sleep(Duration::from_millis(50));
        store.close().unwrap();
        assert!(matches!(waits.as_mut().poll(&mut context), Poll::Ready(Err(Error::Closed))));
        assert!(matches!(blocked.join().unwrap(), Err(Error::Closed)));
    });
    assert!(leads.as_mut().poll(&mut context).is_pending());
    drop(leads);
    assert!(matches!(store.get_or_insert_with(&1, || Ok::<_, std::io::Error>(8)), Err(Error::Closed)));
}

/// It dropped all there was, for a value that had fitted when it came, and did not any more.
#[test]
fn who_does_not_fit_a_lowered_budget_empties_no_cache() {
    let lowers = Arc::new(Mutex::new(None::<Store<u64, [u8]>>));
    let armed = lowers.clone();
    let lower = move |_: &[u8], _: &[u8], _| {
        if let Some(store) = armed.lock().unwrap().take() {
            store.set_memory("16MiB").unwrap();
        }
    };
    let options = Options::new().memory("64MiB").background(false).cache(Cache::new().on_eviction(lower));
    let store: Store<u64, [u8]> = options.in_memory().unwrap();
    let mut keys = 0;
    while store.stats().memory.total_bytes < 58 << 20 {
        (keys..keys + 1000).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
        keys += 1000;
    }
    *lowers.lock().unwrap() = Some(store.clone());
    let error = store.put(&keys, &vec![1; 14 << 20]).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert!(lowers.lock().unwrap().is_none(), "nothing was dropped");
    let there = (0..keys).filter(|key| store.contains(key).unwrap()).count();
    assert!(there > 8_000, "{there} of {keys}");
}

/// What lived and was dropped was taken off the bytes that are known to be dead, though it had never been among them: a full cache knew of
/// none.
#[test]
fn what_is_dead_in_a_full_cache_is_known() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).cache(Cache::new()).in_memory().unwrap();
    for key in 0..200_000u64 {
        store.put(&key, &[0; 1000]).unwrap();
        if key % 2 == 1 {
            assert!(store.delete(&key).unwrap());
        }
        if key > 50_000 && key % 1000 == 0 {
            let space = store.stats().space;
            let all = space.dead_bytes + space.live_bytes;
            assert!((all / 3..all / 3 * 2).contains(&space.dead_bytes), "key {key}: {space:?}");
        }
    }
}
