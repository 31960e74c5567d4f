//! Full stores in memory whose pairs come and go: new ones take the places of those that went.

use crate::raise::Raise;
use crate::random::Random;
use esker::{Cursor, Error, Options, Scan, Store};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Puts pairs with these numbers until a store in memory is so full; how many.
fn fill(store: &Store<u64, [u8]>, part: f64, value_of: impl Fn(u64) -> Vec<u8>) -> u64 {
    let taken = || {
        let stats = store.stats();
        (stats.space.live_bytes + 64 * (stats.index.buckets + stats.index.overflow_buckets)) as f64
    };
    let (bytes, mut count) = (part * store.stats().memory.budget_bytes as f64, 0);
    while taken() < bytes {
        (count..count + 256).for_each(|n| store.put(&n, &value_of(n)).unwrap());
        count += 256;
    }
    count
}

/// A value tells its key.
fn value(key: u64, length: usize) -> Vec<u8> {
    key.to_le_bytes().into_iter().cycle().take(length).collect()
}

fn is_own(key: u64, value: &[u8]) -> bool {
    let own = key.to_le_bytes();
    value.iter().zip(own.iter().cycle()).all(|(byte, own)| byte == own)
}

/// How many there are; each of them is its key's.
fn pairs_of(scan: Scan<'_, u64, [u8]>) -> u64 {
    let one = |count: &mut u64, key: u64, held: &[u8]| {
        assert!(is_own(key, held), "{key} holds {held:?}");
        *count += 1;
    };
    scan.fold(|| 0, one, |sum, other| *sum += other).unwrap()
}

#[test]
fn random_pairs_come_and_go_in_a_full_store_with_few_copies() {
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
    let count = fill(&store, 0.88, |n| value(n, 100));
    let mut random = Random::of_thread(1);
    let (mut live, mut gone): (Vec<u64>, Vec<u64>) = ((0..count).collect(), Vec::new());
    let moved = store.stats().space.moved_bytes;
    for next in (count..3 * count).step_by(64) {
        let new: Vec<_> = (next..next + 64).map(|key| (key, value(key, 100))).collect();
        store.put_many(&new).unwrap();
        let going = new.iter().map(|(key, _)| std::mem::replace(&mut live[random.below(count) as usize], *key));
        let going: Vec<_> = going.collect();
        assert_eq!(store.delete_many(&going).unwrap(), 64);
        gone.extend(going);
    }
    let moved = store.stats().space.moved_bytes - moved;
    // There were 24 copies for each that came.
    assert!(moved < 6 * 2 * count * 128, "{moved} bytes were copied for {} pairs that came", 2 * count);
    live.iter().for_each(|key| assert!(store.get(key).unwrap().is_some_and(|held| is_own(*key, &held) && held.len() == 100)));
    gone.iter().for_each(|key| assert_eq!(store.get(key).unwrap(), None));
    assert_eq!(pairs_of(store.scan()), count);
    store.close().unwrap();
}

/// Again and again while a snapshot holds what is dead.
fn patiently<R>(mut run: impl FnMut() -> Result<R, Error>) -> R {
    loop {
        match run() {
            Err(Error::Full) => std::thread::sleep(std::time::Duration::from_millis(1)),
            result => return result.unwrap(),
        }
    }
}

/// What one thread does with keys of its own, and knows.
fn work(store: &Store<u64, [u8]>, thread: u64, threads: u64, mut known: HashMap<u64, Vec<u8>>) -> HashMap<u64, Vec<u8>> {
    let mut random = Random::of_thread(thread);
    let (mut next, mut keys): (u64, Vec<u64>) = ((1 << 40) + thread, known.keys().copied().collect());
    keys.sort_unstable();
    for _ in 0..40_000 {
        let [place, other] = [(); 2].map(|()| random.below(keys.len() as u64) as usize);
        let (key, both) = (keys[place], [keys[place], keys[other]]);
        let held = known.get(&key).cloned();
        let new = value(key, 8 * (1 + random.below(23) as usize));
        match random.below(16) {
            // One goes, another comes.
            0..8 => {
                assert_eq!(patiently(|| store.delete(&key)), known.remove(&key).is_some());
                let come = value(next, new.len());
                patiently(|| store.put(&next, &come));
                known.insert(next, come);
                keys[place] = next;
                next += threads;
            }
            8 => {
                patiently(|| store.put(&key, &new));
                known.insert(key, new);
            }
            9 if held.as_ref().is_none_or(|held| held.len() < 256) => {
                let length = patiently(|| store.append(&key, &value(key, 8)));
                assert_eq!(length, held.map_or(0, |held| held.len()) + 8);
                known.insert(key, value(key, length));
            }
            10 => {
                let kept = patiently(|| store.rmw(&key, |old| old.map_or_else(|| new.clone(), <[u8]>::to_vec)));
                assert_eq!(kept, held.unwrap_or(new));
                known.insert(key, kept);
            }
            11 => store.get_many(&both, |n, held| assert_eq!(held, known.get(&both[n]).map(|held| &**held))).unwrap(),
            12 => {
                // One of both may be gone when there is no room for the other's deletion.
                patiently(|| store.delete_many(&both));
                both.iter().for_each(|key| _ = known.remove(key));
            }
            13 => {
                let pairs = both.map(|key| (key, value(key, 40)));
                patiently(|| store.put_many(&pairs));
                known.extend(pairs);
            }
            14 if both[0] != both[1] => {
                let come = value(both[1], 64);
                let gone = patiently(|| {
                    store.transaction(|tx| {
                        let gone = tx.get(&key)?;
                        tx.delete(&key)?;
                        tx.put(&both[1], &come)?;
                        Ok(gone)
                    })
                });
                assert_eq!(gone, known.remove(&key));
                known.insert(both[1], come);
            }
            _ => assert_eq!(store.get(&key).unwrap(), held),
        }
    }
    known
}

/// What others see at one moment stands still, and is whole.
fn look_until(store: &Store<u64, [u8]>, is_over: &AtomicBool) {
    let keys: Vec<u64> = (0..512).map(|n| n * 7).collect();
    for look in 0.. {
        let view = store.begin_read().unwrap();
        assert_eq!(pairs_of(view.scan()), pairs_of(view.scan()));
        drop(view);
        pairs_of(store.scan().keys(&keys));
        let page = store.scan_page(Cursor::from_u64(look << 60), 100).unwrap();
        page.pairs.iter().for_each(|(key, held)| assert!(is_own(*key, held), "{key} holds {held:?}"));
        if is_over.load(Relaxed) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn threads_with_values_of_any_length_come_and_go_in_a_full_store() {
    const THREADS: u64 = 4;
    let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
    let length = |n: u64| 8 * (n as usize % 23 + 1);
    let count = fill(&store, 0.85, |n| value(n, length(n)));
    let is_over = AtomicBool::new(false);
    let all: HashMap<u64, Vec<u8>> = std::thread::scope(|scope| {
        let _over = Raise(&is_over);
        let own = |thread| (0..count).filter(move |n| n % THREADS == thread).map(|n| (n, value(n, length(n)))).collect();
        let worker = |thread| {
            let (store, known) = (&store, own(thread));
            scope.spawn(move || work(store, thread, THREADS, known))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        scope.spawn(|| look_until(&store, &is_over));
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    all.iter().for_each(|(key, held)| assert_eq!(store.get(key).unwrap().as_ref(), Some(held)));
    assert_eq!(pairs_of(store.scan()), all.len() as u64);
    store.close().unwrap();
}
