//! Asynchronous calls: they agree with a model, overlap on the device, survive being dropped, and never wait for ever.
//!
//! The executor is as poor as can be: it polls everything again whenever anything woke it. What works here needs no runtime.

use crate::common::{Unpark, block_on};
use esker::{Device, DeviceRead, Error, MemoryDevice, MemoryStorage, Options, ReadSource, Store, Transaction, Ttl};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime};

/// Polls all futures once.
fn poll_all<F: Future>(futures: &mut [Pin<Box<F>>], context: &mut Context<'_>, outputs: &mut [Option<F::Output>]) -> bool {
    for (future, output) in futures.iter_mut().zip(&mut *outputs) {
        if output.is_none()
            && let Poll::Ready(ready) = future.as_mut().poll(context)
        {
            *output = Some(ready);
        }
    }
    outputs.iter().all(Option::is_some)
}

fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<_> = futures.iter().map(|_| None).collect();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !poll_all(&mut futures, &mut Context::from_waker(&waker), &mut outputs) {
        thread::park();
    }
    outputs.into_iter().flatten().collect()
}

fn polled_once<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the key must be cold");
    future
}

/// A device that has as many reads under way as it can get, fails them, or holds them back; it counts.
#[derive(Default)]
struct Watched {
    device: MemoryDevice,
    most: AtomicUsize,
    fails: AtomicBool,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Watched {
    fn set_gate(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

impl Device for Watched {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        drop(self.opened.wait_while(self.closed.lock().unwrap(), |closed| *closed).unwrap());
        if self.fails.load(SeqCst) { Err(io::Error::from_raw_os_error(5)) } else { self.device.read(offset, into) }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.device.bytes()
    }

    fn read_stream(&self, source: &mut dyn ReadSource) {
        let mut under_way: Vec<DeviceRead> = Vec::new();
        loop {
            under_way.extend(std::iter::from_fn(|| source.next()));
            self.most.fetch_max(under_way.len(), SeqCst);
            let Some(mut read) = under_way.pop() else { return };
            let result = self.read(read.offset(), read.bytes_mut());
            source.done(read, result);
        }
    }
}

const KEYS: u64 = 1_000_000;

/// A store whose first keys are cold.
fn spilled(device: Arc<dyn Device>) -> Store<u64, u64> {
    // What is cold stays cold.
    let store = Options::new().memory("16MiB").promotion(false).open_on(device).unwrap();
    for key in 0..KEYS {
        store.put(&key, &(key * 3)).unwrap();
    }
    assert!(store.stats().log.head > 4 * KEYS, "the first keys must have spilled");
    store
}

fn watched() -> (Arc<Watched>, Store<u64, u64>) {
    let device = Arc::new(Watched::default());
    (device.clone(), spilled(device))
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn futures_can_move_between_threads() {
    let words: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let blobs: Store<[u8], [u8]> = Options::new().memory("16MiB").in_memory().unwrap();
    drop(assert_send(words.get_async(&1)));
    drop(assert_send(words.contains_async(&1)));
    drop(assert_send(words.put_async(&1, &1)));
    drop(assert_send(words.delete_async(&1)));
    drop(assert_send(words.rmw_async(&1, |old| old.unwrap_or(0))));
    drop(assert_send(blobs.rmw_async(b"", |_| vec![])));
    drop(assert_send(blobs.append_async(b"", b"")));
    drop(assert_send(words.get_with_async(&1, |value| value + 1)));
    drop(assert_send(words.get_many_async(&[1], |_, _| ())));
    drop(assert_send(words.put_many_async(&[(1, 1)])));
    drop(assert_send(words.rmw_many_async(&[1], |_, old| old.unwrap_or(0))));
    drop(assert_send(words.delete_many_async(&[1])));
    drop(assert_send(words.compare_and_swap_async(&1, None, Some(&1))));
    drop(assert_send(words.put_if_absent_async(&1, &1)));
    drop(assert_send(words.get_versioned_async(&1)));
    drop(assert_send(words.expire_at_async(&1, SystemTime::now())));
    drop(assert_send(words.persist_async(&1)));
    drop(assert_send(words.ttl_async(&1)));
    drop(assert_send(words.get_and_renew_async(&1, Duration::from_secs(1))));
    drop(assert_send(blobs.get_many_async::<&[u8]>(&[b""], |_, _| ())));
    drop(assert_send(blobs.append_many_async::<&[u8], &[u8]>(&[(b"", b"")])));
    drop(assert_send(count_by_hand(&words)));
    drop(assert_send(words.begin().unwrap().get_many_async(&[1], |_, _| ())));
}

async fn count_by_hand(store: &Store<u64, u64>) -> esker::Result<()> {
    let mut tx = store.begin()?;
    tx.rmw_async(&1, |old| old.unwrap_or(0) + 1).await?;
    tx.commit_async().await
}

#[test]
fn words_agree_with_a_model() {
    let store = Options::new().memory("16MiB").open_temporary::<u64, u64>().unwrap();
    let waves = |from: u64| (from..from + 1_000).map(|key| key * 7_919 % KEYS);
    for key in 0..KEYS {
        block_on(store.put_async(&key, &key)).unwrap();
    }
    for from in (0..20_000).step_by(1_000) {
        let keys: Vec<u64> = waves(from).collect();
        for (key, value) in keys.iter().zip(join_all(keys.iter().map(|key| store.get_async(key)))) {
            assert_eq!(value.unwrap(), Some(*key));
        }
        for (key, value) in keys.iter().zip(join_all(keys.iter().map(|key| store.rmw_async(key, |old| old.unwrap() + 1)))) {
            assert_eq!(value.unwrap(), key + 1);
        }
    }
    for from in (0..20_000).step_by(1_000) {
        let keys: Vec<u64> = waves(from).collect();
        assert!(join_all(keys.iter().map(|key| store.delete_async(key))).into_iter().all(|was_there| was_there.unwrap()));
        assert!(join_all(keys.iter().map(|key| store.contains_async(key))).into_iter().all(|is_there| !is_there.unwrap()));
    }
    assert!(store.stats().operations.device_reads > 10_000);
}

#[test]
fn conditions_and_ends_hold_for_cold_keys_too() {
    let store = spilled(Arc::new(MemoryDevice::default()));
    block_on(async {
        for key in (0..KEYS).step_by(10_007) {
            let (value, version) = store.get_versioned_async(&key).await?.unwrap();
            assert_eq!(value, key * 3);
            assert!(!store.put_if_absent_async(&key, &1).await?);
            assert!(!store.compare_and_swap_async(&key, None, Some(&1)).await?);
            assert!(store.put_if_version_async(&key, version, &7).await?);
            assert!(!store.put_if_version_async(&key, version, &8).await?);
            assert!(store.compare_and_swap_async(&key, Some(&7), None).await?);
            assert!(store.put_if_absent_async(&key, &9).await?);
            assert_eq!(store.get_async(&key).await?, Some(9));

            let other = key + 1;
            assert_eq!(store.ttl_async(&other).await?, Some(Ttl::Forever));
            assert!(store.expire_at_async(&other, SystemTime::now() + Duration::from_secs(1_000)).await?);
            assert!(matches!(store.ttl_async(&other).await?, Some(Ttl::Left(left)) if left < Duration::from_secs(1_001)));
            assert_eq!(store.get_and_renew_async(&other, Duration::from_secs(5_000)).await?, Some(other * 3));
            assert!(matches!(store.ttl_async(&other).await?, Some(Ttl::Left(left)) if left > Duration::from_secs(4_000)));
            assert!(store.persist_async(&other).await? && !store.persist_async(&other).await?);
            assert!(store.expire_at_async(&other, SystemTime::UNIX_EPOCH).await?);
            assert_eq!((store.get_async(&other).await?, store.ttl_async(&other).await?), (None, None));
        }
        Ok::<(), Error>(())
    })
    .unwrap();
}

#[test]
fn bytes_agree_with_a_model() {
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut random = 0x5eed_u64;
    for turn in 0..60_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key {}", (random >> 33) % 8_000).into_bytes();
        let bytes = vec![turn as u8; (random >> 50) as usize % 5_000];
        match (random >> 20) % 5 {
            0 | 1 => {
                block_on(store.put_async(&key, &bytes)).unwrap();
                model.insert(key, bytes);
            }
            2 => {
                let old = model.entry(key.clone()).or_default();
                old.extend_from_slice(&bytes[..bytes.len() / 10]);
                assert_eq!(block_on(store.append_async(&key, &bytes[..bytes.len() / 10])).unwrap(), old.len());
            }
            3 => assert_eq!(block_on(store.delete_async(&key)).unwrap(), model.remove(&key).is_some(), "turn {turn}"),
            _ => assert_eq!(block_on(store.get_async(&key)).unwrap(), model.get(&key).cloned(), "turn {turn}"),
        }
    }
    for (key, value) in &model {
        assert_eq!(block_on(store.rmw_async(key, |old| old.unwrap().to_vec())).unwrap(), *value);
    }
    assert!(store.stats().operations.device_reads > 1_000);
}

/// Scattered, most of them cold.
fn scattered(count: u64) -> Vec<u64> {
    (0..count).map(|i| i * 7_919 % KEYS).collect()
}

#[test]
fn batches_of_words_agree_with_a_model() {
    let store = spilled(Arc::new(MemoryDevice::default()));
    let mut keys = scattered(20_000);
    keys.push(KEYS + 1);
    let mut seen = vec![None; keys.len()];
    block_on(store.get_many_async(&keys, |i, value| assert!(seen[i].replace(value).is_none(), "visited twice"))).unwrap();
    let expected = |key: &u64| Some((*key < KEYS).then_some(key * 3));
    assert!(keys.iter().map(expected).eq(seen), "a batch of gets");

    // Each key twice, far apart and near; each time it is told what the time before made of it.
    let twice: Vec<u64> = keys.iter().chain(&keys).chain(&keys[..100]).chain(&keys[..100]).copied().collect();
    let mut turns: HashMap<u64, u64> = HashMap::new();
    let update = |i: usize, old: Option<u64>| {
        let turn = turns.entry(twice[i]).or_default();
        let base = if twice[i] < KEYS { twice[i] * 3 } else { 0 };
        assert_eq!(old.unwrap_or(0), base + *turn, "key {} at its turn {turn}", twice[i]);
        *turn += 1;
        old.unwrap_or(0) + 1
    };
    block_on(store.rmw_many_async(&twice, update)).unwrap();
    assert_eq!(turns.values().sum::<u64>(), twice.len() as u64, "no one else was at it: each closure runs once");

    assert_eq!(block_on(store.delete_many_async(&twice)).unwrap(), keys.len());
    assert_eq!(block_on(store.delete_many_async(&keys)).unwrap(), 0);
    block_on(store.get_many_async(&keys, |i, value| assert_eq!(value, None, "key {}", keys[i]))).unwrap();

    let pairs: Vec<(u64, u64)> = keys.iter().chain(&keys).zip(0..).map(|(key, value)| (*key, value)).collect();
    block_on(store.put_many_async(&pairs)).unwrap();
    let second = keys.len() as u64..;
    for (key, value) in keys.iter().zip(second) {
        assert_eq!(store.get(key).unwrap(), Some(value), "of equal keys the later one counts");
    }
    assert!(store.stats().operations.device_reads > 10_000);
}

#[test]
fn batches_of_bytes_agree_with_a_model() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").promotion(false).open_temporary().unwrap();
    let value = |key: u64| vec![key as u8; 100 + key as usize % 900];
    let pairs: Vec<(u64, Vec<u8>)> = (0..100_000).map(|key| (key, value(key))).collect();
    // The log turns many times: each time the future waits for room.
    block_on(store.put_many_async(&pairs)).unwrap();
    let keys: Vec<u64> = (0..5_000).map(|i| i * 17).collect();
    let appended: Vec<(u64, &[u8])> =
        keys.iter().map(|key| (*key, &b"one"[..])).chain(keys.iter().map(|key| (*key, &b"two"[..]))).collect();
    block_on(store.append_many_async(&appended)).unwrap();
    let mut visited = 0;
    let check = |i: usize, now: Option<&[u8]>| {
        assert_eq!(now, Some(&[&value(keys[i])[..], b"onetwo"].concat()[..]), "key {}", keys[i]);
        visited += 1;
    };
    block_on(store.get_many_async(&keys, check)).unwrap();
    assert_eq!(visited, keys.len());
    block_on(store.rmw_many_async(&keys, |i, old| old.unwrap()[..i % 50].to_vec())).unwrap();
    assert_eq!(block_on(store.get_with_async(&keys[7], <[u8]>::len)).unwrap(), Some(7));
    assert_eq!(block_on(store.delete_many_async(&keys)).unwrap(), keys.len());
    assert_eq!(block_on(store.get_with_async(&keys[7], <[u8]>::len)).unwrap(), None);
    assert!(store.stats().operations.device_reads > 5_000);
}

#[test]
fn the_reads_of_a_batch_overlap() {
    let (device, store) = watched();
    device.set_gate(true);
    let keys = scattered(500);
    let mut sum = 0;
    let mut future = polled_once(store.get_many_async(&keys, |_, value| sum += value.unwrap()));
    device.set_gate(false);
    block_on(future.as_mut()).unwrap();
    drop(future);
    assert_eq!(sum, keys.iter().map(|key| key * 3).sum::<u64>());
    device.set_gate(true);
    let mut future = polled_once(store.rmw_many_async(&keys, |_, old| old.unwrap() + 1));
    device.set_gate(false);
    block_on(future.as_mut()).unwrap();
    let most = device.most.load(SeqCst);
    assert!(most > 50, "only {most} of 500 reads were under way together");
}

#[test]
fn a_failing_read_ends_a_batch_of_futures() {
    let (device, store) = watched();
    let mut keys = scattered(300);
    // In memory, before and behind what is cold.
    keys.insert(0, KEYS - 1);
    keys.push(KEYS - 2);
    device.fails.store(true, SeqCst);
    let mut visited = 0;
    let ended = block_on(store.get_many_async(&keys, |_, value| visited += usize::from(value.is_some())));
    assert!(matches!(ended, Err(Error::Io(_))), "{ended:?}");
    assert!(visited < keys.len());
    let ended = block_on(store.rmw_many_async(&keys, |_, old| old.unwrap() + 1));
    assert!(matches!(ended, Err(Error::Io(_))), "{ended:?}");
    assert_eq!(block_on(store.get_async(&keys[0])).unwrap(), Some(keys[0] * 3 + 1), "what comes before the key that failed is done");
    let ended = block_on(store.delete_many_async(&keys));
    assert!(matches!(ended, Err(Error::Io(_))), "{ended:?}");
    assert_eq!(block_on(store.get_async(&keys[0])).unwrap(), None);
    device.fails.store(false, SeqCst);
    let of_first_cold = block_on(store.get_async(&keys[1])).unwrap();
    assert_eq!(of_first_cold, Some(keys[1] * 3), "what failed is as it was");
}

#[test]
fn a_batch_waits_for_room_as_a_future() {
    let store = spilled(Arc::new(MemoryDevice::default()));
    let pairs: Vec<(u64, u64)> = (KEYS..2 * KEYS).map(|key| (key, key * 3)).collect();
    let mut future = polled_once(store.put_many_async(&pairs));
    block_on(future.as_mut()).unwrap();
    drop(future);
    let cold: Vec<u64> = (0..20_000).map(|key| key * 90).collect();
    block_on(store.get_many_async(&cold, |i, value| assert_eq!(value, Some(cold[i] * 3)))).unwrap();
}

#[test]
fn cold_gets_overlap() {
    let (device, store) = watched();
    // The first read holds the reader; whatever is asked meanwhile is under way together after it.
    device.set_gate(true);
    let futures: Vec<_> = (0..100).map(|key| polled_once(get(&store, key))).collect();
    device.set_gate(false);
    for (key, future) in (0..100).zip(futures) {
        assert_eq!(block_on(future).unwrap(), Some(key * 3));
    }
    let most = device.most.load(SeqCst);
    assert!(most > 50, "only {most} of 100 reads were under way together");
}

/// A get that owns its key.
async fn get(store: &Store<u64, u64>, key: u64) -> esker::Result<Option<u64>> {
    store.get_async(&key).await
}

#[test]
fn a_dropped_future_is_forgotten() {
    let (device, store) = watched();
    for _ in 0..20 {
        device.set_gate(true);
        let futures: Vec<_> = (0..100).map(|key| polled_once(get(&store, key))).collect();
        drop(futures);
        device.set_gate(false);
        assert_eq!(block_on(store.get_async(&5)).unwrap(), Some(15));
    }
    assert!(store.stats().operations.device_reads < 1_000, "reads that nobody wants are skipped");
}

#[test]
fn a_failing_read_reaches_its_future() {
    let (device, store) = watched();
    device.fails.store(true, SeqCst);
    assert!(join_all((0..100).map(|key| get(&store, key))).iter().all(|result| matches!(result, Err(Error::Io(_)))));
    device.fails.store(false, SeqCst);
    assert_eq!(block_on(store.get_async(&5)).unwrap(), Some(15));
}

#[test]
fn closing_ends_every_wait() {
    let (device, store) = watched();
    device.set_gate(true);
    let futures: Vec<_> = (0..100).map(|key| polled_once(get(&store, key))).collect();
    thread::scope(|scope| {
        let closing = scope.spawn(|| store.close());
        while store.put(&u64::MAX, &0).is_ok() {
            thread::yield_now();
        }
        device.set_gate(false);
        for future in futures {
            assert!(matches!(block_on(future), Err(Error::Closed)));
        }
        closing.join().unwrap().unwrap();
    });
    assert!(matches!(block_on(store.get_async(&1)), Err(Error::Closed)));
}

/// A close from inside a waker runs on the reader thread, which cannot wait for itself.
#[test]
fn a_waker_may_close_the_store() {
    struct Closes(Mutex<Option<Store<u64, u64>>>, Thread);
    impl Wake for Closes {
        fn wake(self: Arc<Self>) {
            let store = self.0.lock().unwrap().take();
            if let Some(store) = store {
                store.close().unwrap();
            }
            self.1.unpark();
        }
    }
    let (device, store) = watched();
    device.set_gate(true);
    let waker = Waker::from(Arc::new(Closes(Mutex::new(Some(store.clone())), thread::current())));
    let mut future = Box::pin(get(&store, 1));
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    device.set_gate(false);
    while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park();
    }
    assert!(matches!(store.get(&1), Err(Error::Closed)));
}

/// As of `commit`: the line would wait for the closure.
#[test]
fn a_commit_from_inside_a_closure_is_refused() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(Arc::new(MemoryStorage::new())).unwrap();
    let tried = store.rmw(&1, |_| {
        let mut commit = Box::pin(store.commit_async());
        let polled = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        u64::from(matches!(polled, Poll::Ready(Err(Error::Invalid(_)))))
    });
    assert_eq!(tried.unwrap(), 1);
}

#[test]
fn many_threads_and_both_kinds_of_calls_lose_no_update() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let puts = |n: u64| 1_000 + thread * 200_000 + n;
                for n in (0..100_000).step_by(50) {
                    let counts = (0..50).map(|i| async move {
                        store.put_async(&puts(n + i), &n).await?;
                        store.rmw_async(&(i % 16), |old| old.unwrap_or(0) + 1).await
                    });
                    join_all(counts).into_iter().for_each(|result| assert!(result.is_ok()));
                    store.rmw(&16, |old| old.unwrap_or(0) + 1).unwrap();
                }
            });
        }
    });
    let sum: u64 = (0..16).map(|key| block_on(store.get_async(&key)).unwrap().unwrap()).sum();
    assert_eq!((sum, store.get(&16).unwrap()), (400_000, Some(8_000)));
}

#[test]
fn a_full_memory_store_says_so() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    let refused = (0..).find_map(|key| block_on(store.put_async(&key, &key)).err());
    assert!(matches!(refused, Some(Error::Full)));

    // In a batch of new keys each one asks for room: the first one's answer ends it. What is there changes.
    let there: Vec<u64> = (0..1_000).collect();
    let mixed: Vec<u64> = there.iter().copied().chain(1 << 40..(1 << 40) + 2_000).collect();
    let ended = block_on(store.rmw_many_async(&mixed, |_, old| old.map_or(0, |old| old + 1)));
    assert!(matches!(ended, Err(Error::Full)), "{ended:?}");
    block_on(store.get_many_async(&there, |i, value| assert_eq!(value, Some(there[i] + 1)))).unwrap();
    let new: Vec<(u64, u64)> = (2 << 40..(2 << 40) + 100_000).map(|key| (key, key)).collect();
    let ended = block_on(store.put_many_async(&new));
    assert!(matches!(ended, Err(Error::Full)), "{ended:?}");
    assert_eq!(block_on(store.delete_many_async(&there)).unwrap(), there.len());
    block_on(store.get_many_async(&there, |_, value| assert_eq!(value, None))).unwrap();
}

/// A batch gives way to others after 4,096 keys, however many it has.
#[test]
fn a_long_batch_lets_others_run() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    let pairs: Vec<(u64, u64)> = (0..20_000).map(|key| (key, key)).collect();
    let keys: Vec<u64> = pairs.iter().map(|(key, _)| *key).collect();
    fn polls<T>(future: impl Future<Output = esker::Result<T>>) -> usize {
        let (mut future, mut context) = (Box::pin(future), Context::from_waker(Waker::noop()));
        let ended = (1..).find_map(|count| match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => Some(result.map(|_| count)),
            Poll::Pending => None,
        });
        ended.unwrap().unwrap()
    }
    // More, where a bucket is just moving.
    let counts = [
        polls(store.put_many_async(&pairs)),
        polls(store.get_many_async(&keys, |i, value| assert_eq!(value, Some(i as u64)))),
        polls(store.rmw_many_async(&keys, |_, old| old.unwrap() + 1)),
        polls(store.delete_many_async(&keys)),
    ];
    assert!(counts.iter().all(|count| (5..5_000).contains(count)), "{counts:?}");
}

// ---- transactions ------------------------------------------------------------------------------------------------------

/// One transfer between accounts that may be cold.
async fn transfer(store: &Store<u64, u64>, from: u64, to: u64, amount: u64) -> esker::Result<()> {
    let moved = store.transaction_async(async |tx| {
        let held = tx.get_async(&from).await?.unwrap_or(0);
        if held < amount || from == to {
            return Ok(());
        }
        tx.put(&from, &(held - amount))?;
        tx.rmw_async(&to, |old| old.unwrap_or(0) + amount).await.map(|_| ())
    });
    match moved.await {
        Err(Error::Conflict { .. }) => Ok(()),
        other => other,
    }
}

#[test]
fn a_transaction_reads_what_is_cold_together() {
    let (device, store) = watched();
    let keys: Vec<u64> = (0..100).map(|n| n * 37).chain([5, 5, KEYS + 7, KEYS - 1, 37]).collect();
    let mut tx = store.begin().unwrap();
    tx.put(&74, &1).unwrap();
    tx.delete(&111).unwrap();
    let expected = |key: u64| match key {
        74 => Some(1),
        111 => None,
        key => (key < KEYS).then_some(key * 3),
    };
    for asynchronous in [false, true] {
        let mut seen = vec![None; keys.len()];
        let visit = |i: usize, value: Option<u64>| assert!(seen[i].replace(value).is_none());
        device.most.store(0, SeqCst);
        match asynchronous {
            false => tx.get_many(&keys, visit).unwrap(),
            true => block_on(tx.get_many_async(&keys, visit)).unwrap(),
        }
        assert!(keys.iter().zip(&seen).all(|(key, seen)| *seen == Some(expected(*key))), "{seen:?}");
        assert!(asynchronous || device.most.load(SeqCst) > 50, "{} reads at a time", device.most.load(SeqCst));
    }
    // What was read is asked for at the commit.
    store.put(&370, &9).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    assert_eq!(store.get(&74).unwrap(), Some(222));
}

#[test]
fn transactions_of_many_futures_and_threads_keep_the_sum() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    const ACCOUNTS: u64 = 30;
    let accounts: Vec<u64> = (0..ACCOUNTS).collect();
    (0..ACCOUNTS).for_each(|account| store.put(&account, &100).unwrap());
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, accounts) = (&store, &accounts);
            scope.spawn(move || {
                for round in 0..40 {
                    let account = |n: u64| (n * 7 + round * 13 + thread) % ACCOUNTS;
                    let transfers = (0..50).map(|n| transfer(store, account(n), account(n + 3), n % 9));
                    join_all(transfers).into_iter().for_each(|done| done.unwrap());
                    // The accounts go cold.
                    let others = 1_000 + (thread * 40 + round) * 10_000;
                    (others..others + 10_000).for_each(|key| store.put(&key, &key).unwrap());
                    let audit = block_on(store.transaction_async(async |tx| {
                        let mut sum = 0;
                        match round % 2 {
                            0 => tx.get_many_async(accounts, |_, held| sum += held.unwrap_or(0)).await?,
                            _ => tx.get_many(accounts, |_, held| sum += held.unwrap_or(0))?,
                        }
                        Ok(sum)
                    }));
                    assert!(matches!(audit, Ok(sum) if sum == ACCOUNTS * 100) || matches!(audit, Err(Error::Conflict { .. })));
                }
            });
        }
    });
    let sum: u64 = (0..ACCOUNTS).map(|account| store.get(&account).unwrap().unwrap()).sum();
    assert_eq!(sum, ACCOUNTS * 100);
}

/// More conflicts than are answered by giving way: the later ones wait for the pauser, and no thread of ours sleeps.
#[test]
fn a_transaction_tries_again_and_gives_up_after_a_hundred_conflicts() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    for (conflicts, gets_through) in [(0, true), (3, true), (12, true), (200, false)] {
        let mut runs = 0;
        let done = block_on(store.transaction_async(async |tx| {
            runs += 1;
            let seen = tx.get_async(&1).await?.unwrap_or(0);
            if runs <= conflicts {
                store.put(&1, &(seen + 1))?;
            }
            tx.put(&2, &seen)
        }));
        assert_eq!((done.is_ok(), runs), (gets_through, if gets_through { conflicts + 1 } else { 100 }));
        assert!(gets_through || matches!(done, Err(Error::Conflict { .. })));
    }
}

#[test]
fn a_transactions_cold_reads_overlap_with_others_and_dropping_it_changes_nothing() {
    let (device, store) = watched();
    let store = &store;
    let begun = |key: u64| async move {
        let body = async |tx: &mut Transaction<'_, u64, u64>| {
            tx.put(&(KEYS + key), &key)?;
            tx.rmw_async(&key, |old| old.unwrap() + 1).await?;
            assert!(tx.delete_async(&(key + 500)).await?);
            tx.contains_async(&(key + 500)).await
        };
        store.transaction_async(body).await
    };
    device.set_gate(true);
    let kept: Vec<_> = (0..100).map(|key| polled_once(begun(key))).collect();
    drop((100..200).map(|key| polled_once(begun(key))).collect::<Vec<_>>());
    device.set_gate(false);
    for future in kept {
        assert!(!block_on(future).unwrap());
    }
    assert!(device.most.load(SeqCst) > 50, "reads must be under way together");
    for key in 0..200 {
        let is_done = key < 100;
        assert_eq!(store.get(&key).unwrap(), Some(key * 3 + u64::from(is_done)));
        assert_eq!((store.contains(&(key + 500)).unwrap(), store.contains(&(KEYS + key)).unwrap()), (!is_done, is_done));
    }
}

#[test]
fn closing_ends_a_transactions_wait_and_an_error_reaches_its_future() {
    let (device, store) = watched();
    device.fails.store(true, SeqCst);
    let read = || block_on(store.transaction_async(async |tx| tx.get_async(&1).await));
    assert!(matches!(read(), Err(Error::Io(_))));
    device.fails.store(false, SeqCst);
    assert_eq!(read().unwrap(), Some(3));
    device.set_gate(true);
    let future = polled_once(store.transaction_async(async |tx| tx.get_async(&2).await));
    thread::scope(|scope| {
        let closing = scope.spawn(|| store.close());
        // The newest key is in memory; another could wait behind the gate.
        while !matches!(store.get(&(KEYS - 1)), Err(Error::Closed)) {
            thread::yield_now();
        }
        device.set_gate(false);
        assert!(matches!(block_on(future), Err(Error::Closed)));
        closing.join().unwrap().unwrap();
    });
}

#[test]
fn transactions_of_bytes_append_and_are_durable_when_they_say_so() {
    let files = Arc::new(esker::MemoryStorage::new());
    let options = Options::new().memory("16MiB").durability(esker::Durability::Always).background(false);
    let store: Store<str, [u8]> = options.clone().open_in(files.clone()).unwrap();
    let done = block_on(store.transaction_async(async |tx| {
        tx.put("a", b"1")?;
        assert_eq!(tx.append_async("a", b"23").await?, 3);
        tx.append_async("b", b"4").await
    }));
    assert_eq!(done.unwrap(), 1);
    let mut by_hand = store.begin().unwrap();
    block_on(by_hand.append_async("b", b"5")).unwrap();
    block_on(by_hand.commit_async()).unwrap();
    let copy: Store<str, [u8]> = options.open_in(Arc::new(files.copy())).unwrap();
    assert_eq!((copy.get("a").unwrap().as_deref(), copy.get("b").unwrap().as_deref()), (Some(&b"123"[..]), Some(&b"45"[..])));
}

/// Where calls are durable, batches of nothing waited for what others had written, and failed behind a close.
#[test]
fn a_batch_of_nothing_is_done() {
    let options = Options::new().memory("16MiB").durability(esker::Durability::Always).background(false);
    let store: Store<u64, [u8]> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    store.close().unwrap();
    let (none, pairs): ([u64; 0], [(u64, &[u8]); 0]) = ([], []);
    store.put_many(&pairs).unwrap();
    store.append_many(&pairs).unwrap();
    store.rmw_many(&none, |_, _| Vec::new()).unwrap();
    assert_eq!(store.delete_many(&none).unwrap(), 0);
    block_on(async {
        store.put_many_async(&pairs).await.unwrap();
        store.append_many_async(&pairs).await.unwrap();
        store.rmw_many_async(&none, |_, _| Vec::new()).await.unwrap();
        assert_eq!(store.delete_many_async(&none).await.unwrap(), 0);
    });
}
