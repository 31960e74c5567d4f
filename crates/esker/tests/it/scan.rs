//! Scans: every key once, as of one moment, whatever goes on; on all layouts, in memory and larger than it, by each way.

use crate::minded::{Call, Minded};
use crate::raise::Raise;
use esker::aggregate::{Count, Sum};
use esker::{
    Cache, Cursor, Device, Durability, Error, Key, ManualClock, MemoryDevice, MemoryStorage, Options, SECTOR_BYTES, Scan, Store, Strategy,
    Value,
};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A generator that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0xd129_0d3d_4b2f_2c8d).wrapping_add(1);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) % bound
    }
}

/// What a page had shown of a transaction a later page did not know of: it was read between two of its writes.
#[test]
fn a_page_knows_what_an_earlier_one_has_shown_of_a_transaction() {
    const KEYS: u64 = 4_000;
    const PASSES: u64 = 20;
    let words: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    let put_all = |n: u64| words.transaction(|tx| (0..KEYS).try_for_each(|key| tx.put(&key, &n))).unwrap();
    put_all(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        scope.spawn(|| (1..).take_while(|_| !stop.load(Relaxed)).for_each(put_all));
        for _ in 0..PASSES {
            let (mut next, mut known) = (Some(Cursor::START), 0);
            while let Some(at) = next {
                let page = words.scan_page(at, 50).unwrap();
                let (least, most) = page.pairs.iter().fold((u64::MAX, known), |(least, most), (_, n)| (least.min(*n), most.max(*n)));
                assert!(least >= known, "{least} behind {known}");
                (next, known) = (page.next, most);
            }
        }
    });
}

/// Two stores of the same types: one in memory, one whose log is mostly on a device.
fn both<K: esker::Key + ?Sized, V: esker::Value + ?Sized>() -> [Store<K, V>; 2] {
    let cold = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new()));
    [Options::new().memory("256MiB").in_memory().unwrap(), cold.unwrap()]
}

type Pairs<K, V> = Vec<(<K as esker::Value>::Owned, <V as esker::Value>::Owned)>;

/// All pairs, by each way there is, in the order of keys.
fn all_ways<K, V>(store: &Store<K, V>) -> Vec<(String, Pairs<K, V>)>
where
    K: esker::Key + ?Sized,
    V: esker::Value + ?Sized,
    K::Owned: Ord + Send,
    V::Owned: Ord + Send,
{
    let by = |scan: Scan<'_, K, V>| scan.collect::<Vec<_>>().unwrap();
    let parallel = |scan: Scan<'_, K, V>| scan.parallel(3).collect::<Vec<_>>().unwrap();
    let (mut pages, mut cursor) = (Vec::new(), Some(Cursor::START));
    while let Some(at) = cursor {
        let page = store.scan_page(at, 100).unwrap();
        pages.extend(page.pairs);
        cursor = page.next;
    }
    let mut found = vec![
        ("by log", by(store.scan().by_log())),
        ("by index", by(store.scan().by_index())),
        ("as planned", by(store.scan())),
        ("by log, parallel", parallel(store.scan().by_log())),
        ("by index, parallel", parallel(store.scan().by_index())),
        ("pages", pages),
        ("iterator", store.scan().iter().unwrap().map(Result::unwrap).collect()),
    ];
    found.iter_mut().for_each(|(_, pairs)| pairs.sort());
    found.into_iter().map(|(way, pairs)| (way.to_owned(), pairs)).collect()
}

/// Random puts, updates and deletes, then each way against a map.
fn agrees_with_a_map<K, V>(store: &Store<K, V>, keys: u64, key: impl Fn(u64) -> K::Owned, value: impl Fn(u64) -> V::Owned)
where
    K: esker::Key + ?Sized,
    V: esker::Value + ?Sized,
    K::Owned: Ord + Send + Sync + Clone + std::fmt::Debug,
    V::Owned: Ord + Send + Clone + std::fmt::Debug,
{
    use std::borrow::Borrow;
    let mut random = Random(keys);
    let mut model = BTreeMap::new();
    for round in 0..3 {
        for step in 0..keys {
            let (k, v) = (key(random.below(keys)), value(step + round * keys));
            match random.below(8) {
                0 | 1 => {
                    assert_eq!(store.delete(k.borrow()).unwrap(), model.remove(&k).is_some());
                }
                2 => {
                    store.rmw(k.borrow(), |_| v.clone()).unwrap();
                    model.insert(k, v);
                }
                _ => {
                    store.put(k.borrow(), v.borrow()).unwrap();
                    model.insert(k, v);
                }
            }
        }
        let want: Vec<_> = model.clone().into_iter().collect();
        for (way, found) in all_ways(store) {
            assert_eq!(found.len(), want.len(), "{way}, round {round}");
            assert!(found == want, "{way}, round {round}");
        }
        let listed: Vec<K::Owned> = (0..keys).step_by(3).map(&key).collect();
        let mut listed_want: Vec<_> = listed.iter().filter_map(|k| Some((k.clone(), model.get::<K::Owned>(k)?.clone()))).collect();
        listed_want.sort();
        for strategy in [Strategy::ByKeys, Strategy::ByIndex, Strategy::ByLog] {
            let mut found: Vec<_> = store.scan().keys(&listed).by(strategy).collect().unwrap();
            found.sort();
            assert!(found == listed_want, "{strategy:?}, listed keys, round {round}");
        }
        if round == 1 {
            store.compact().unwrap();
        }
    }
}

#[test]
fn words() {
    for store in both::<u64, u64>() {
        agrees_with_a_map(&store, 300_000, |n| n, |n| n);
    }
}

#[test]
fn short_words_under_long_keys() {
    for store in both::<[u8; 19], u32>() {
        let key = |n: u64| std::array::from_fn(|i| (n >> (i % 8 * 8)) as u8 ^ i as u8);
        agrees_with_a_map(&store, 100_000, key, |n| n as u32);
    }
}

#[test]
fn fixed_values_longer_than_a_word() {
    for store in both::<u64, [u8; 100]>() {
        agrees_with_a_map(&store, 50_000, |n| n, |n| [n as u8; 100]);
    }
}

#[test]
fn bytes_of_any_length() {
    for store in both::<[u8], [u8]>() {
        let key = |n: u64| format!("{}:{n}", "k".repeat((n % 40) as usize)).into_bytes();
        agrees_with_a_map(&store, 20_000, key, |n| vec![n as u8; (n % 1500) as usize]);
    }
}

#[test]
fn text_to_numbers() {
    for store in both::<str, f64>() {
        for n in 0..50_000 {
            store.put(&format!("key {n}"), &f64::from(n)).unwrap();
        }
        let mut sum = 0.0;
        store.scan().filter(|key, _| key.ends_with('7')).for_each(|_, value| sum += value).unwrap();
        let want: f64 = (0..50_000).filter(|n| n % 10 == 7).map(f64::from).sum();
        assert!((sum - want).abs() < 1e-6);
        let mut count = 0;
        store.scan().prefix("key 12").for_each(|_, _| count += 1).unwrap();
        assert_eq!(count, 1 + 10 + 100 + 1000);
    }
}

#[test]
fn values_longer_than_a_window() {
    for store in both::<u64, [u8]>() {
        let value = |n: u64| vec![n as u8; 1 << (10 + n % 11)];
        for n in 0..60 {
            store.put(&n, &value(n)).unwrap();
            store.put(&(n / 2), &value(n / 2)).unwrap();
        }
        let want: Vec<_> = (0..60).map(|n| (n, value(n))).collect();
        for (way, found) in all_ways(&store) {
            assert!(found == want, "{way}");
        }
    }
}

#[test]
fn an_index_that_its_keys_share() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    let count = 900_000u64;
    for n in 0..count {
        store.put(&n, &n).unwrap();
    }
    for n in (0..count).step_by(2) {
        store.put(&n, &(n + 1)).unwrap();
    }
    // By index each shared chain is followed to its end: a part of the keys will do here.
    for scan in [store.scan().by_log(), store.scan().by_index().filter(|key, _| key < 1_000_000)] {
        let (mut sum, mut seen) = (0, 0u64);
        scan.for_each(|key, value| {
            assert_eq!(value, key + u64::from(key % 2 == 0));
            (sum, seen) = (sum + key, seen + 1);
        })
        .unwrap();
        assert_eq!((sum, seen), (count * (count - 1) / 2, count));
    }
}

/// Whether a record was superseded by a cold one must be read where keys share entries. It once took a read for each that was asked about,
/// and fifty times as long as the log itself.
#[test]
fn what_shares_an_entry_is_asked_about_in_sweeps() {
    const KEYS: u64 = 1_500_000;
    let options = Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..KEYS).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    let before = store.stats().operations.device_reads;
    assert_eq!(store.scan().by_log().aggregate(Sum(|key: u64, value: u64| value - key)).unwrap(), i128::from(KEYS));
    let stats = store.stats();
    let reads = stats.operations.device_reads - before;
    assert!(stats.index.entries * 5 < KEYS * 4 && reads < KEYS / 50, "{reads} reads, {:?}", stats.index);
}

/// Several parts of doubts, with all that can make an older record not count.
#[test]
fn many_doubts_are_settled_by_what_is_newer() {
    fn check<K: Key + ?Sized, V: Value + ?Sized>(
        name: &str,
        keys: u64,
        key: impl Fn(u64) -> K::Owned,
        value: impl Fn(u64) -> V::Owned,
        number: impl for<'v> Fn(K::View<'v>) -> u64 + Send + Sync,
        is: impl for<'v> Fn(V::View<'v>, &V::Owned) -> bool,
    ) {
        let clock = Arc::new(ManualClock::default());
        let options = Options::new().memory("16MiB").background(false).promotion(false).clock(clock.clone());
        let store: Store<K, V> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
        let mut model: Vec<Option<u64>> = Vec::new();
        let put = |n: u64, what: u64| store.put(key(n).borrow(), value(what).borrow()).unwrap();
        let delete = |n: u64| assert!(store.delete(key(n).borrow()).unwrap());
        for n in 0..keys {
            put(n, n);
            model.push(Some(n));
        }
        for n in 0..keys {
            model[n as usize] = match n % 20 {
                0 | 7 => {
                    put(n, n + 1);
                    Some(n + 1)
                }
                3 => {
                    delete(n);
                    None
                }
                4 => {
                    store.put_with_ttl(key(n).borrow(), value(n).borrow(), Duration::from_secs(1)).unwrap();
                    None
                }
                5 => {
                    delete(n);
                    put(n, n + 3);
                    Some(n + 3)
                }
                _ => continue,
            };
        }
        // So that most of it lies on the device.
        for n in keys..keys + keys / 4 {
            put(n, n);
            model.push(Some(n));
        }
        clock.advance(Duration::from_secs(1));
        let (entries, keys) = (store.stats().index.entries, model.len() as u64);
        assert!(entries * 5 < keys * 4, "{name}: {entries} entries of {keys} keys");
        let number = &number;
        let is_wanted = |n: u64| n % 3 != 1;
        for (way, scan) in [("all", store.scan()), ("some", store.scan().filter(|key, _| is_wanted(number(key))))] {
            let mut seen = vec![false; model.len()];
            let visit = |k: K::View<'_>, v: V::View<'_>| {
                let n = number(k);
                let want = model[n as usize].unwrap_or_else(|| panic!("{name}, {way}: {n} has no value"));
                assert!(is(v, &value(want)), "{name}, {way}: {n}");
                assert!(!std::mem::replace(&mut seen[n as usize], true), "{name}, {way}: {n} came twice");
            };
            scan.by_log().for_each(visit).unwrap();
            let is_right = |n: &usize| seen[*n] == (model[*n].is_some() && (way == "all" || is_wanted(*n as u64)));
            assert_eq!((0..model.len()).find(|n| !is_right(n)), None, "{name}, {way}");
        }
    }
    check::<u64, u64>("words", 1_500_000, |n| n, |n| n * 7, |key| key, |got, want| got == *want);
    let text = |n: u64| format!("the key of number {n}").into_bytes();
    let number = |key: &[u8]| std::str::from_utf8(&key[18..]).unwrap().parse().unwrap();
    let bytes = |n: u64| n.to_le_bytes()[..(n % 8) as usize + 1].to_vec();
    check::<[u8], [u8]>("bytes", 900_000, text, bytes, number, |got, want| got == *want);
}

/// A device with a block that cannot be read.
#[derive(Default)]
struct Holed(MemoryDevice, AtomicU64);

impl Device for Holed {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let hole = self.1.load(Relaxed);
        if (offset..offset + into.len() as u64).contains(&hole) { Err(io::Error::other("a hole")) } else { self.0.read(offset, into) }
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
}

/// Blocks that are near each other are read by one, with what lies between, which may be nobody's.
#[test]
fn what_lies_between_records_need_not_be_read() {
    const KEYS: u64 = 1_000_000;
    let device = Arc::new(Holed::default());
    let options = Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, u64> = options.open_on(device.clone()).unwrap();
    (0..KEYS).for_each(|n| store.put(&n, &n).unwrap());
    device.1.store(10 * SECTOR_BYTES as u64, Relaxed);
    let sum = |keys: &[u64]| store.scan().keys(keys).aggregate(Sum(|_, value: u64| value));
    // Those in the hole follow each other. An older key that shares its entry with one of them is behind it, and lost as well: hardly ever
    // one, but where a hash function puts two keys together it often does so with others as far apart.
    let lost: Vec<u64> = (0..8_000).filter(|key| store.get(key).is_err()).collect();
    let hole = lost.chunk_by(|a, b| a + 1 == *b).max_by_key(|run| run.len()).unwrap();
    assert!((1..=2 * 170).contains(&hole.len()), "a block holds 170, and one beside them may be lost: {}", hole.len());
    let (first, last) = (hole[0], hole[hole.len() - 1]);
    // Of blocks around the hole, some near enough to be read together; one twice, for it may be.
    let kept = |key| (0..=key).rev().find(|key| !lost.contains(key)).unwrap();
    let around = [first - 500, first - 2, first - 1, first - 1, last + 1, last + 300, last + 5_000].map(kept);
    let before = store.stats().operations.device_reads;
    assert_eq!(sum(&around).unwrap(), around.iter().map(|key| i128::from(*key)).sum());
    assert!(store.stats().operations.device_reads > before + 2);
    assert!(matches!(sum(&[around.as_slice(), &[first]].concat()), Err(Error::Io(_))));
}

#[test]
fn an_emptied_store_shows_nothing() {
    for store in both::<u64, u64>() {
        for (way, found) in all_ways(&store) {
            assert!(found.is_empty(), "{way}, before anything was put");
        }
        for n in 0..200_000 {
            store.put(&n, &n).unwrap();
        }
        let keys: Vec<u64> = (0..200_000).collect();
        assert_eq!(store.delete_many(&keys).unwrap(), 200_000);
        for (way, found) in all_ways(&store) {
            assert!(found.is_empty(), "{way}");
        }
        store.put(&1, &1).unwrap();
        store.compact().unwrap();
        for (way, found) in all_ways(&store) {
            assert_eq!(found, [(1, 1)], "{way}");
        }
    }
}

#[test]
fn what_a_scan_finds_it_may_change() {
    for store in both::<u64, u64>() {
        for n in 0..100_000 {
            store.put(&n, &n).unwrap();
        }
        for scan in [store.scan().by_log(), store.scan().by_index()] {
            let mut seen = 0;
            scan.for_each(|key, _| {
                store.rmw(&key, |old| old.unwrap() + 1).unwrap();
                store.put(&(key + 1_000_000), &0).unwrap();
                store.delete(&(key + 1_000_000)).unwrap();
                seen += 1;
            })
            .unwrap();
            assert_eq!(seen, 100_000);
        }
        let mut sum = 0;
        store.scan().for_each(|_, value| sum += value).unwrap();
        assert_eq!(sum, (0..100_000).sum::<u64>() + 200_000);
    }
}

#[test]
fn a_scan_ends_when_it_is_told_to() {
    for store in both::<u64, u64>() {
        for n in 0..400_000 {
            store.put(&n, &n).unwrap();
        }
        for strategy in [Strategy::ByLog, Strategy::ByIndex] {
            let (mut seen, calls) = (0, AtomicU64::new(0));
            let scan = store.scan().by(strategy).progress(|part| {
                assert!((0.0..=1.0).contains(&part));
                if calls.fetch_add(1, Relaxed) == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(scan.for_each(|_, _| seen += 1), Err(Error::Cancelled)));
            assert!(seen < 400_000, "{strategy:?}: {seen}");
            let mut seen = 0;
            let broke = store.scan().by(strategy).try_for_each(|key, _| {
                seen += 1;
                if seen == 5 { ControlFlow::Break(key) } else { ControlFlow::Continue(()) }
            });
            assert!(broke.unwrap().is_some() && seen == 5);
        }
        // Nothing is held any more.
        for n in 0..400_000 {
            store.put(&n, &n).unwrap();
        }
        assert!(store.compact().unwrap() > 0);
    }
}

/// A scan through the index said that all was done before it had read anything, and then read all without asking.
#[test]
fn a_scan_of_cold_values_ends_when_it_is_told_to() {
    const VALUES: u64 = 2_000;
    let files = Arc::new(MemoryStorage::new());
    let open = || Options::new().memory("16MiB").background(false).open_in::<u64, [u8]>(files.clone()).unwrap();
    let store = open();
    (0..VALUES).for_each(|key| store.put(&key, &[key as u8; 10_000]).unwrap());
    store.close().unwrap();
    let store = open();
    let keys: Vec<u64> = (0..VALUES).collect();
    for strategy in [Strategy::ByIndex, Strategy::ByKeys] {
        let reads = || store.stats().operations.device_reads;
        let before = reads();
        let broke = store.scan().keys(&keys).by(strategy).try_for_each(|key, _| ControlFlow::Break(key)).unwrap();
        assert!(broke.is_some());
        assert!(reads() - before < VALUES / 4, "{strategy:?}: {} reads", reads() - before);
        let (parts, seen) = (Mutex::new(vec![0.0]), AtomicU64::new(0));
        let scan = store.scan().keys(&keys).by(strategy).progress(|part| {
            let mut parts = parts.lock().unwrap();
            assert!(parts.last().is_some_and(|last| part >= *last));
            assert!(part < 0.5 || seen.load(Relaxed) > VALUES / 4, "{strategy:?}: {part} is done");
            parts.push(part);
            ControlFlow::Continue(())
        });
        scan.for_each(|_, _| _ = seen.fetch_add(1, Relaxed)).unwrap();
        assert_eq!((seen.into_inner(), parts.into_inner().unwrap().last()), (VALUES, Some(&1.0)));
    }
}

#[test]
fn from_inside_a_closure_a_scan_is_refused() {
    let [store, _] = both::<u64, u64>();
    store.put(&1, &1).unwrap();
    store
        .rmw(&1, |old| {
            assert!(matches!(store.scan().for_each(|_, _| ()), Err(Error::Invalid(_))));
            old.unwrap()
        })
        .unwrap();
    assert!(matches!(store.scan().by(Strategy::ByKeys).for_each(|_, _| ()), Err(Error::Invalid(_))));
    store.close().unwrap();
    assert!(matches!(store.scan().for_each(|_, _| ()), Err(Error::Closed)));
}

#[test]
fn plans_say_what_they_do() {
    let [memory, _] = both::<u64, u64>();
    for n in 0..1_000_000 {
        memory.put(&n, &n).unwrap();
    }
    let keys: Vec<u64> = (0..100).collect();
    assert_eq!(memory.scan().keys(&keys).explain().unwrap().strategy, Strategy::ByKeys);
    let plan = memory.scan().explain().unwrap();
    assert_eq!(plan.strategy, Strategy::ByLog);
    assert!(plan.reason.contains("ByLog") && plan.estimates.len() == 2, "{plan:?}");
}

/// A byte of log was once too dear: from some 500 bytes a record on the index was walked, in six times the time.
#[test]
fn all_of_a_store_in_memory_is_read_from_its_log() {
    for bytes in [0, 100, 1024, 16 << 10] {
        let [memory, _] = both::<u64, [u8]>();
        (0..1_000).for_each(|n| memory.put(&n, &vec![7; bytes]).unwrap());
        let plan = memory.scan().explain().unwrap();
        assert_eq!(plan.strategy, Strategy::ByLog, "{bytes} bytes: {plan:?}");
    }
}

/// What died in memory and went cold since, with what it died of: the index knows, and nothing is read to find out.
#[test]
fn what_a_chain_of_one_key_superseded_is_not_asked_about() {
    const KEYS: u64 = 200_000;
    let options = Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, [u8]> = options.open_temporary().unwrap();
    for key in 0..KEYS {
        store.put(&key, &[1; 100]).unwrap();
        store.put(&key, &[2; 120]).unwrap();
    }
    let before = store.stats().operations.device_reads;
    let sum: i128 =
        store.scan().by(Strategy::ByLog).aggregate(Sum(|_: u64, value: &[u8]| u64::from(value[0]) * value.len() as u64)).unwrap();
    assert_eq!(sum, i128::from(KEYS) * 240);
    let reads = store.stats().operations.device_reads - before;
    assert!(reads < KEYS / 50, "{reads} records were read to know what is dead");
}

/// The same where a walk of the index meets them: of each key the newest record is read, whatever it superseded.
#[test]
fn a_walk_reads_one_cold_record_of_each_key() {
    const KEYS: u64 = 6_000;
    let options = Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, [u8]> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    // More than the memory each time, so nearly all are cold when their turn comes again.
    for round in 0..3 {
        (0..KEYS).for_each(|key| drop(store.rmw(&key, |_| vec![round; 3_000]).unwrap()));
    }
    let reads = |work: &dyn Fn()| {
        let before = store.stats().operations.device_reads;
        work();
        store.stats().operations.device_reads - before
    };
    let keys: Vec<u64> = (0..KEYS).collect();
    let singly = reads(&|| store.get_many(&keys, |_, value| assert_eq!(value.unwrap()[0], 2)).unwrap());
    let paged = reads(&|| {
        let (mut cursor, mut count) = (Some(Cursor::START), 0);
        while let Some(at) = cursor {
            let page = store.scan_page(at, 1_000).unwrap();
            assert!(page.pairs.iter().all(|(_, value)| value[0] == 2));
            count += page.pairs.len() as u64;
            cursor = page.next;
        }
        assert_eq!(count, KEYS);
    });
    let walked = reads(&|| assert_eq!(store.scan().by_index().aggregate(Count).unwrap(), KEYS));
    assert!(paged.max(walked) < singly * 5 / 4, "{paged} reads by pages and {walked} by a scan, {singly} by keys");
}

#[test]
fn a_list_with_a_test_is_either() {
    for store in both::<u64, u64>() {
        (0..50_000).for_each(|n| store.put(&n, &(n + 1)).unwrap());
        (0..50_000).step_by(2).for_each(|n| store.put(&n, &n).unwrap());
        let listed: Vec<u64> = (0..60_000).filter(|n| n % 5 == 0).collect();
        let want: i128 = (0..50_000).filter(|n| n % 5 == 0).map(|n| n + n % 2).sum();
        for strategy in [Strategy::ByKeys, Strategy::ByIndex, Strategy::ByLog] {
            for threads in [1, 2] {
                let sum = Sum(|_, value| value);
                let scan = store.scan().by(strategy).parallel(threads);
                assert_eq!(scan.keys_where(&listed, |key| key % 5 == 0).aggregate(sum).unwrap(), want, "{strategy:?}");
                assert_eq!(store.scan().by(strategy).parallel(threads).keys(&listed).aggregate(sum).unwrap(), want, "{strategy:?}");
            }
            // Of one kind the condition that was given last counts.
            let both_ways =
                [store.scan().keys_where(&[1, 2], |key| key < 3).keys(&[7]), store.scan().keys(&[7]).keys_where(&[1, 2], |key| key < 3)];
            let found = both_ways.map(|scan| scan.by(strategy).aggregate(Sum(|key: u64, _| key)).unwrap());
            assert_eq!(found, [7, 3], "{strategy:?}");
        }
        // Asked for three keys, no plan reads everything.
        assert_eq!(store.scan().keys(&[1, 2, 3]).explain().unwrap().strategy, Strategy::ByKeys);
    }
}

/// A walk by cursor while the table grows from some thousand buckets to many times that, and keys come, go and move.
#[test]
fn a_cursor_misses_nothing_and_repeats_nothing_while_the_table_grows() {
    for store in both::<u64, u64>() {
        let steady = 20_000u64;
        for n in 0..steady {
            store.put(&n, &n).unwrap();
        }
        let (mut next, mut seen, buckets) = (steady, vec![0u32; steady as usize], store.stats().index.buckets);
        let mut cursor = Some(Cursor::START);
        while let Some(at) = cursor {
            let page = store.scan_page(Cursor::from_u64(at.to_u64()), 50).unwrap();
            for (key, value) in page.pairs.into_iter().filter(|(key, _)| *key < steady) {
                assert_eq!(value, key);
                seen[key as usize] += 1;
            }
            for _ in 0..if next < 300_000 { 1000 } else { 0 } {
                store.put(&next, &next).unwrap();
                store.delete(&(next - 1000).max(steady)).unwrap();
                store.put(&(next % steady), &(next % steady)).unwrap();
                next += 1;
            }
            cursor = page.next;
        }
        assert!(store.stats().index.buckets > 4 * buckets);
        let wrong: Vec<_> = (0..).zip(seen).filter(|(_, count)| *count != 1).take(5).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// The count of entries once went below zero: compaction had removed some before those who added them had counted them.
#[test]
fn entries_that_go_before_they_are_counted() {
    let [store, _] = both::<u64, u64>();
    for n in 0..10 {
        store.put(&n, &n).unwrap();
        store.delete(&n).unwrap();
    }
    store.compact().unwrap();
    assert!(store.stats().index.entries <= 16);
    assert_eq!(store.scan().collect::<Vec<_>>().unwrap(), []);
}

/// A closure was once shown `None` for a key that was there, when its bucket was being split.
#[test]
fn growth_shows_no_closure_an_absence() {
    let [store, _] = both::<u64, u64>();
    let (is_over, mut rounds) = (AtomicBool::new(false), 0);
    (0..1000).for_each(|n| store.put(&n, &1).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Raise(&is_over);
            (1000..2_000_000).for_each(|n| store.put(&n, &n).unwrap());
        });
        loop {
            let ends = is_over.load(Relaxed);
            // Frozen records take the long way.
            store.scan().by(Strategy::ByKeys).keys(&[0]).for_each(|_, _| ()).unwrap();
            for n in 0..1000 {
                store.rmw(&n, |old| old.expect("it is there") + 1).unwrap();
            }
            rounds += 1;
            if ends {
                break;
            }
        }
    });
    assert!((0..1000).all(|n| store.get(&n).unwrap() == Some(1 + rounds)));
}

/// Each writer raises a, then b, of many pairs of its own; as of any moment, a is b or one more. Meanwhile the table grows,
/// lines are drawn, and space comes back.
fn no_scan_sees_half_of_it(store: &Store<u64, u64>, strategy: Strategy, scans: usize) {
    const WRITERS: u64 = 4;
    const PAIRS: u64 = 500;
    let (is_over, returned) = (AtomicBool::new(false), AtomicU64::new(0));
    let a = |writer: u64, pair: u64| writer << 32 | pair << 1;
    for (writer, pair) in (0..WRITERS).flat_map(|writer| (0..PAIRS).map(move |pair| (writer, pair))) {
        store.put(&a(writer, pair), &0).unwrap();
        store.put(&(a(writer, pair) + 1), &0).unwrap();
    }
    std::thread::scope(|scope| {
        let _over = Raise(&is_over);
        for writer in 0..WRITERS {
            let (store, is_over, returned) = (store, &is_over, &returned);
            scope.spawn(move || {
                let mut random = Random(writer);
                let mut fresh = 1 << 40 | writer << 32;
                while !is_over.load(Relaxed) {
                    let first = a(writer, random.below(PAIRS));
                    store.rmw(&first, |old| old.unwrap() + 1).unwrap();
                    store.rmw(&(first + 1), |old| old.unwrap() + 1).unwrap();
                    returned.fetch_add(1, SeqCst);
                    if random.below(4) == 0 && fresh & 0xffff_ffff < 60_000 {
                        store.put(&fresh, &1).unwrap();
                        store.delete(&(fresh - 10)).unwrap();
                        fresh += 1;
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = store.commit();
                store.compact().unwrap();
                std::thread::yield_now();
            }
        });
        for scan in 0..scans {
            let before = returned.load(SeqCst);
            let (mut found, mut sum) = (BTreeMap::new(), 0);
            let visit = |key: u64, value| {
                if key < 1 << 40 {
                    assert!(found.insert(key, value).is_none(), "{strategy:?}: key {key} twice");
                    sum += value * (key & 1);
                }
            };
            store.scan().by(strategy).for_each(visit).unwrap();
            assert_eq!(found.len() as u64, 2 * WRITERS * PAIRS, "{strategy:?}, scan {scan}");
            for (key, value) in found.iter().filter(|(key, _)| *key % 2 == 0) {
                let (first, second) = (*value, found[&(key + 1)]);
                assert!(first == second || first == second + 1, "{strategy:?}, scan {scan}: {first} and {second}");
            }
            assert!(sum >= before, "{strategy:?}, scan {scan}: {before} had returned, {sum} were seen");
            assert!(sum <= returned.load(SeqCst) + WRITERS);
        }
    });
}

#[test]
fn a_scan_by_log_is_of_one_moment() {
    for store in both::<u64, u64>() {
        no_scan_sees_half_of_it(&store, Strategy::ByLog, 15);
    }
}

#[test]
fn a_scan_by_index_is_of_one_moment() {
    for store in both::<u64, u64>() {
        no_scan_sees_half_of_it(&store, Strategy::ByIndex, 6);
    }
}

/// What is moved from key to key by transactions is neither missed nor met twice.
#[test]
fn a_scan_is_on_one_side_of_each_transaction() {
    const KEYS: u64 = 2000;
    for store in both::<u64, u64>() {
        (0..KEYS).for_each(|n| store.put(&n, &1000).unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Raise(&is_over);
            for writer in 0..3 {
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || {
                    let mut random = Random(writer);
                    while !is_over.load(Relaxed) {
                        let (from, to) = (random.below(KEYS), random.below(KEYS));
                        let moved = store.transaction(|tx| {
                            tx.rmw(&from, |old| old.unwrap().wrapping_sub(1))?;
                            tx.rmw(&to, |old| old.unwrap().wrapping_add(1))
                        });
                        moved.unwrap();
                    }
                });
            }
            let sum = |scan: Scan<'_, u64, u64>| scan.fold(|| 0u64, |sum, _, value| *sum = sum.wrapping_add(value), |a, b| *a += b);
            let sums: Vec<_> = (0..200).map(|n| sum(store.scan().by([Strategy::ByLog, Strategy::ByIndex][n % 2])).unwrap()).collect();
            assert!(sums.iter().all(|sum| *sum == KEYS * 1000), "{sums:?}");
        });
    }
}

#[test]
fn scans_of_a_durable_store_are_of_one_moment_too() {
    let folder = tempfile::tempdir().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").space_amplification(1.2).open(folder.path()).unwrap();
    for n in 0..300_000u64 {
        store.put(&(n | 1 << 50), &n).unwrap();
    }
    no_scan_sees_half_of_it(&store, Strategy::ByLog, 5);
    no_scan_sees_half_of_it(&store, Strategy::ByIndex, 1);
    store.close().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").open(folder.path()).unwrap();
    let mut count = 0;
    store.scan().by_log().for_each(|key, _| count += u64::from(key >= 1 << 50)).unwrap();
    assert_eq!(count, 300_000);
}

/// Of three keys one stays, one ends soon and one late; some had an older value that would have stayed.
fn hides_what_has_ended<V>(count: u64, value: impl Fn(u64) -> V::Owned)
where
    V: esker::Value + ?Sized,
    V::Owned: Ord + Send,
{
    use std::borrow::Borrow;
    let clock = Arc::new(ManualClock::default());
    let options = || Options::new().background(false).clock(clock.clone());
    let cold = options().memory("16MiB").open_on(Arc::new(MemoryDevice::new()));
    for store in [options().memory("256MiB").in_memory::<u64, V>().unwrap(), cold.unwrap()] {
        for n in (0..count).step_by(20) {
            store.put(&n, value(n + 1).borrow()).unwrap();
        }
        for n in 0..count {
            let (value, end) = (value(n), [None, Some(10), Some(1000)][n as usize % 3]);
            match end.map(Duration::from_secs) {
                Some(end) => store.put_with_ttl(&n, value.borrow(), end).unwrap(),
                None => store.put(&n, value.borrow()).unwrap(),
            }
        }
        for (round, kept) in [[true, true, true], [true, false, true], [true, false, false]].into_iter().enumerate() {
            let is_there = |n: &u64| kept[*n as usize % 3];
            let want: Vec<_> = (0..count).filter(is_there).map(|n| (n, value(n))).collect();
            for (way, found) in all_ways(&store) {
                assert!(found == want, "{way}, round {round}: {} pairs", found.len());
            }
            let listed: Vec<u64> = (0..count).step_by(5).collect();
            for strategy in [Strategy::ByKeys, Strategy::ByIndex, Strategy::ByLog] {
                let mut found: Vec<_> = store.scan().keys(&listed).by(strategy).collect().unwrap();
                found.sort();
                let want = listed.iter().copied().filter(is_there).map(|n| (n, value(n)));
                assert!(want.eq(found), "{strategy:?}, listed keys, round {round}");
            }
            let before = store.scan().iter().unwrap();
            clock.advance(Duration::from_secs([10, 990, 0][round]));
            assert_eq!(before.map(Result::unwrap).count(), want.len(), "as of before the ends of round {round}");
            if round == 1 {
                store.compact().unwrap();
            }
        }
    }
}

#[test]
fn no_scan_sees_words_that_have_expired() {
    hides_what_has_ended::<u64>(600_000, |n| n);
}

#[test]
fn no_scan_sees_bytes_that_have_expired() {
    hides_what_has_ended::<[u8]>(60_000, |n| vec![n as u8; 200 + n as usize % 200]);
}

/// What a cache dropped no scan shows; what one holds stays, though the cache be full.
#[test]
fn a_cache_drops_nothing_while_it_is_scanned() {
    let options = Options::new().memory("16MiB").cache(Cache::new()).background(false);
    let store: Store<u64, u64> = options.in_memory().unwrap();
    for n in 0..2_000_000 {
        store.put(&(n % 1_500_000), &n).unwrap();
    }
    let want: Vec<_> = (0..1_500_000).filter_map(|n| Some((n, store.get(&n).unwrap()?))).collect();
    assert!(!want.is_empty() && want.len() < 1_000_000);
    for (way, found) in all_ways(&store) {
        assert!(found == want, "{way}: {} of {} pairs", found.len(), want.len());
    }
    let held = store.scan().iter().unwrap();
    let full = (2_000_000..4_000_000).find_map(|n| store.put(&n, &n).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    assert_eq!(held.map(Result::unwrap).count(), want.len());
    store.put(&4_000_000, &4_000_000).unwrap();
}

/// A snapshot that begins while a cache drops a stretch keeps what is left of it.
#[test]
fn a_cache_stops_dropping_when_a_snapshot_begins() {
    const FILLING: u64 = 0;
    const DROPPING: u64 = 1;
    const HELD: u64 = 2;
    const SEEN: u64 = 3;
    let state = Arc::new(AtomicU64::new(FILLING));
    let wait_for = |state: &AtomicU64, wanted| {
        while state.load(SeqCst) < wanted {
            std::thread::yield_now();
        }
    };
    // Asked about each record that may go, under a pin that the beginning of a snapshot waits for.
    let worth = {
        let state = state.clone();
        move |_: &[u8], _: &[u8]| {
            match state.load(SeqCst) {
                FILLING => state.store(DROPPING, SeqCst),
                DROPPING => std::thread::sleep(Duration::from_millis(1)),
                HELD => wait_for(&state, SEEN),
                _ => {}
            }
            0.0
        }
    };
    let options = Options::new().memory("16MiB").cache(Cache::new().worth(worth)).background(false);
    let store: Store<u64, u64> = options.in_memory().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            wait_for(&state, DROPPING);
            let snapshot = store.begin_read().unwrap();
            state.store(HELD, SeqCst);
            let first = snapshot.scan().by_index().aggregate(Count).unwrap();
            state.store(SEEN, SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            (first, snapshot.scan().by_index().aggregate(Count).unwrap())
        });
        let mut put = 0u64;
        while !reader.is_finished() {
            match store.put(&put, &put) {
                Ok(()) => put += 1,
                Err(error) => assert!(matches!(error, Error::Full), "{error}"),
            }
        }
        let (first, second) = reader.join().unwrap();
        assert_eq!(first, second);
    });
}

#[test]
fn an_error_is_an_iterators_last_item() {
    let fails = Arc::new(AtomicBool::new(false));
    let fail = {
        let fails = fails.clone();
        move |_: &str, call| if call == Call::Read && fails.load(Relaxed) { Err(io::Error::other("told to")) } else { Ok(()) }
    };
    let place = Arc::new(Minded::new(Arc::new(MemoryStorage::new()), fail));
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(place).unwrap();
    for n in 0..500_000u64 {
        store.put(&n, &n).unwrap();
    }
    fails.store(true, Relaxed);
    let mut iter = store.scan().iter().unwrap();
    assert!(iter.by_ref().any(|pair| pair.is_err()));
    assert!(iter.next().is_none());
}

#[test]
fn what_crashes_left_in_the_log_is_not_seen() {
    let files = Arc::new(MemoryStorage::new());
    for round in 0..4u64 {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for (way, found) in all_ways(&store) {
            let want: Vec<_> = (0..round * 50_000).map(|n| (n, n + round - 1)).collect();
            assert!(found == want, "{way}, round {round}: {} pairs", found.len());
        }
        for n in 0..(round + 1) * 50_000 {
            store.put(&n, &(n + round)).unwrap();
        }
        store.commit().unwrap();
        // Never durable; as much as spills to the device.
        for n in 0..600_000 {
            store.put(&n, &u64::MAX).unwrap();
        }
        // Kept, never closed: what nobody can reach any more is a leak to a sanitizer.
        static CRASHED: Mutex<Vec<Box<dyn std::any::Any + Send>>> = Mutex::new(Vec::new());
        CRASHED.lock().unwrap().push(Box::new(store));
    }
}

/// Parts by hash, as several machines would take them: each key is in one of them, the same in every store.
#[test]
fn ranges_of_hashes_divide_the_keys() {
    let quarters: Vec<_> = (0..4u64).map(|part| part << 62..=(part << 62) + (u64::MAX >> 2)).collect();
    let parts = both::<u64, u64>().map(|store| {
        (0..200_000).for_each(|n| store.put(&n, &n).unwrap());
        let part = |strategy, part: &std::ops::RangeInclusive<u64>| {
            let keys: Vec<u64> = (0..100_000).collect();
            let scan = store.scan().keys(&keys).by(strategy).hash_range(part.clone());
            let mut found: Vec<u64> = scan.collect::<Vec<_>>().unwrap().into_iter().map(|(key, _)| key).collect();
            found.sort();
            found
        };
        let by = |strategy| quarters.iter().map(|quarter| part(strategy, quarter)).collect::<Vec<_>>();
        let parts = by(Strategy::ByLog);
        assert!([Strategy::ByIndex, Strategy::ByKeys].into_iter().all(|strategy| by(strategy) == parts));
        parts
    });
    assert!(parts[0] == parts[1]);
    assert!(parts[0].iter().all(|part| (24_000..26_000).contains(&part.len())));
    let mut all = parts[0].concat();
    all.sort();
    assert!(all.into_iter().eq(0..100_000));
}

/// What is there all the time goes, whatever else comes and goes; what is asked about a value goes only with it.
#[test]
fn a_scan_deletes_what_it_finds() {
    for store in both::<u64, [u8]>() {
        const COUNT: u64 = 60_000;
        let value = |n: u64| vec![n as u8; 100 + (n % 200) as usize];
        (0..COUNT).for_each(|n| store.put(&n, &value(n)).unwrap());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _raise = Raise(&is_over);
            // Growth, and keys that come and go.
            scope.spawn(|| {
                for n in (COUNT..).take_while(|_| !is_over.load(Relaxed)) {
                    store.put(&(n * 2 + 1), &value(n)).unwrap();
                    assert!(store.delete(&(n * 2 + 1)).unwrap());
                }
            });
            let by_key = store.scan().filter(|key, _| key % 2 == 0);
            assert_eq!(by_key.delete().unwrap(), COUNT / 2);
        });
        assert!((0..COUNT).all(|n| store.get(&n).unwrap() == (n % 2 == 1).then(|| value(n))));
        // By whoever is asked about it, a value changes after it was seen.
        let changed = AtomicU64::new(0);
        let filter = |key: u64, _: &[u8]| {
            if key.is_multiple_of(1001) && key < COUNT {
                store.put(&key, b"newer").unwrap();
                changed.fetch_add(1, Relaxed);
            }
            true
        };
        let count = store.scan().filter(filter).delete().unwrap();
        let left = store.scan().collect::<Vec<_>>().unwrap();
        assert!(left.iter().all(|(_, value)| value == b"newer") && left.len() as u64 == changed.load(Relaxed), "{}", left.len());
        assert_eq!(count + left.len() as u64, COUNT / 2);
        // The rest by prefix, and by list; and told how far it is.
        let first = left[0].0;
        assert_eq!(store.scan().prefix(first.to_le_bytes().to_vec()).delete().unwrap(), 1);
        let (last, told) = (AtomicU64::new(0), AtomicU64::new(0));
        let progress = |part: f64| {
            let part = (part * 1e6) as u64;
            assert!(last.swap(part, Relaxed) <= part);
            told.fetch_add(1, Relaxed);
            ControlFlow::Continue(())
        };
        let keys: Vec<u64> = left.iter().map(|(key, _)| *key).collect();
        assert_eq!(store.scan().keys(&keys).progress(progress).delete().unwrap() + 1, left.len() as u64);
        assert!(told.into_inner() > 0 && last.into_inner() == 1_000_000);
        assert_eq!(store.scan().collect::<Vec<_>>().unwrap(), []);
    }
}

/// What ends one thread's share ends the others': each went on through all that was left.
#[test]
fn what_ends_one_thread_ends_a_scan() {
    const COUNT: u64 = 1_000_000;
    let store: Store<u64, u64> = Options::new().memory("256MiB").in_memory().unwrap();
    (0..COUNT).for_each(|n| store.put(&n, &n).unwrap());
    for strategy in [Strategy::ByIndex, Strategy::ByLog, Strategy::ByKeys] {
        let keys: Vec<u64> = (0..COUNT).collect();
        let scan = || store.scan().keys(&keys).by(strategy).parallel(4);
        let (added, has_ended, late) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        // The others let the one that ends come to its end, however few processors there are.
        let count = || {
            if has_ended.load(Relaxed) && late.fetch_add(1, Relaxed) < 300 {
                std::thread::sleep(Duration::from_millis(1));
            }
            added.fetch_add(1, Relaxed)
        };
        let once = |_: f64| if has_ended.swap(true, Relaxed) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let add = |_: &mut (), _, _| _ = count();
        let ended = scan().progress(once).fold(|| (), add, |(), ()| {});
        assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
        let by_a_break = added.swap(0, Relaxed);
        assert!(by_a_break < COUNT / 2, "{by_a_break} pairs by {strategy:?}");
        has_ended.store(false, Relaxed);
        late.store(0, Relaxed);
        let add = |_: &mut (), _, _| {
            if count() == 10 {
                has_ended.store(true, Relaxed);
                std::panic::resume_unwind(Box::new("planted"));
            }
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scan().fold(|| (), add, |(), ()| {})));
        assert!(ended.is_err());
        let by_a_panic = added.swap(0, Relaxed);
        assert!(by_a_panic < COUNT / 2, "{by_a_panic} pairs by {strategy:?}");
    }
}

/// What a thread begins with is the caller's to make, too: where that panicked the others went on to the end.
#[test]
fn a_panic_before_a_share_ends_a_scan() {
    const COUNT: u64 = 1_000_000;
    let store: Store<u64, u64> = Options::new().memory("256MiB").in_memory().unwrap();
    (0..COUNT).for_each(|n| store.put(&n, &n).unwrap());
    for strategy in [Strategy::ByIndex, Strategy::ByLog] {
        let (begun, added, has_failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let init = || {
            if begun.fetch_add(1, Relaxed) == 1 {
                has_failed.store(true, Relaxed);
                std::panic::resume_unwind(Box::new("planted"));
            }
        };
        let late = AtomicU64::new(0);
        let add = |_: &mut (), _, _| {
            while !has_failed.load(Relaxed) {
                std::thread::yield_now();
            }
            // However few processors there are.
            if late.fetch_add(1, Relaxed) < 300 {
                std::thread::sleep(Duration::from_millis(1));
            }
            added.fetch_add(1, Relaxed);
        };
        let scan = || store.scan().by(strategy).parallel(2).fold(init, add, |(), ()| {});
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(scan)).is_err());
        assert!(added.into_inner() < COUNT / 2, "{strategy:?}");
    }
}

/// Deletions that are durable when the call returns share lines, also where each asks about a value, in memory or on the device.
#[test]
fn deletions_by_a_scan_share_lines() {
    fn share<V: Value + ?Sized>(value: impl Fn(u64) -> V::Owned, is_odd: impl Fn(V::View<'_>) -> bool + Sync) {
        const COUNT: u64 = 60_000;
        let syncs = Arc::new(AtomicU64::new(0));
        let counted = {
            let syncs = syncs.clone();
            move |_: &str, call| {
                syncs.fetch_add(u64::from(call == Call::Sync), Relaxed);
                Ok(())
            }
        };
        let files = Minded::new(Arc::new(MemoryStorage::new()), counted);
        let options = Options::new().memory("16MiB").durability(Durability::Always).background(false);
        let store: Store<u64, V> = options.open_in(Arc::new(files)).unwrap();
        let pairs: Vec<_> = (0..COUNT).map(|n| (n, value(n))).collect();
        store.put_many(&pairs).unwrap();
        let before = syncs.load(Relaxed);
        assert_eq!(store.scan().filter(|_, value| is_odd(value)).delete().unwrap(), COUNT / 2);
        let each = COUNT / 2 / (syncs.load(Relaxed) - before);
        assert!(each > 100, "{each} deletions for each sync");
        assert!((0..COUNT).all(|n| store.get(&n).unwrap().is_some() == (n % 2 == 0)));
    }
    share::<u64>(|n| n, |n| n % 2 == 1);
    share::<[u8]>(|n| vec![n as u8; 500], |value| value[0] % 2 == 1);
}

/// A key is its bytes, whatever its type can say of them.
#[test]
fn a_scan_deletes_keys_that_are_no_text() {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").background(false);
    let bytes: Store<[u8], u64> = options().open_in(files.clone()).unwrap();
    let keys: [&[u8]; 4] = [b"\xff", b"\xfe", "\u{fffd}".as_bytes(), b"text"];
    (1..).zip(keys).for_each(|(n, key)| bytes.put(key, &n).unwrap());
    bytes.close().unwrap();
    let texts: Store<str, u64> = options().open_in(files.clone()).unwrap();
    assert_eq!(texts.scan().filter(|_, n| n == 1).delete().unwrap(), 1);
    assert_eq!(texts.scan().prefix(b"\xfe").delete().unwrap(), 1);
    texts.close().unwrap();
    let bytes: Store<[u8], u64> = options().open_in(files).unwrap();
    assert_eq!(keys.map(|key| bytes.get(key).unwrap()), [None, None, Some(3), Some(4)]);
}

#[test]
fn a_deletion_ends_when_it_is_told_to_and_is_refused_where_nothing_is_written() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
    let refused = store.read_transaction(|view| view.scan().delete());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let ended = store.scan().progress(|part| if part < 0.3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }).delete();
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    let left = store.scan().collect::<Vec<_>>().unwrap().len() as u64;
    assert!((10_000..40_000).contains(&left), "{left}");
    assert_eq!((store.scan().delete().unwrap(), store.scan().delete().unwrap()), (left, 0));
}

/// A store in memory that is full has room to be emptied.
#[test]
fn a_full_store_can_be_emptied() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let count = (0..).find(|n| store.put(n, &[7; 100]).is_err()).unwrap();
    assert_eq!(store.scan().filter(|key, _| key % 10 != 0).delete().unwrap(), count - count.div_ceil(10));
    (0..count / 2).for_each(|n| store.put(&(count + n), &[8; 100]).unwrap());
}

/// Between some buckets and the next a deletion holds nothing back, however little it finds.
#[test]
fn a_deletion_that_finds_nothing_lets_others_write() {
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").cache(Cache::new()).background(false).in_memory().unwrap();
    let mut next = 0..;
    let mut put = |count: usize| next.by_ref().take(count).try_for_each(|key| store.put(&key, &[1; 1000]));
    put(20_000).unwrap();
    let results = Mutex::new((0, put));
    let progress = |_: f64| {
        let (told, put) = &mut *results.lock().unwrap();
        *told += 1;
        put(500).unwrap();
        ControlFlow::Continue(())
    };
    assert_eq!(store.scan().filter(|_, _| false).progress(progress).delete().unwrap(), 0);
    let told = results.into_inner().unwrap().0;
    assert!(told > 20, "told {told} times");
}

/// An opening that joins what shares an entry appends copies, of which later ones supersede earlier ones.
#[test]
fn a_scan_by_log_shows_nothing_superseded_after_chains_were_joined() {
    const KEYS: u64 = 900_000;
    const AGAIN: u64 = 20_000;
    let files = Arc::new(MemoryStorage::new());
    let open = |files| -> Store<u64, u64> { Options::new().memory("16MiB").background(false).open_in(files).unwrap() };
    let store = open(files.clone());
    (0..KEYS).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    for round in 1..4 {
        (0..AGAIN).for_each(|n| store.put(&n, &(n + round)).unwrap());
        store.commit().unwrap();
    }
    (AGAIN / 2..AGAIN).for_each(|n| assert!(store.delete(&n).unwrap()));
    store.commit().unwrap();
    let store = open(Arc::new(files.copy()));
    for scan in [store.scan().by_log(), store.scan().by_index()] {
        let mut seen = vec![0u8; KEYS as usize];
        scan.for_each(|key, value| {
            seen[key as usize] += 1;
            assert_eq!(value, key + if key < AGAIN { 3 } else { 0 });
        })
        .unwrap();
        let wrong = seen.iter().zip(0..).find(|(times, key)| **times != u8::from(!(AGAIN / 2..AGAIN).contains(key)));
        assert_eq!(wrong, None);
    }
}

/// It is asked under a pin, which its own call took away.
#[test]
fn a_test_of_keys_may_not_use_the_store() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    (0..1000).for_each(|n| store.put(&n, &n).unwrap());
    let (keys, refused) = ([3, 5], AtomicU64::new(0));
    let is_listed = |key: u64| {
        refused.fetch_add(u64::from(matches!(store.get(&key), Err(Error::Invalid(_)))), SeqCst);
        keys.contains(&key)
    };
    let mut found = Vec::new();
    store.scan().by(Strategy::ByIndex).keys_where(&keys, is_listed).for_each(|key, _| found.push(key)).unwrap();
    found.sort_unstable();
    assert_eq!((found, refused.load(SeqCst)), (vec![3, 5], 1000));
    assert_eq!(store.get(&3).unwrap(), Some(3));
}

/// Neither asked once.
#[test]
fn iterators_and_pages_tell_how_far_they_are_and_can_be_ended() {
    let store: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
    (0..100_000).for_each(|n| store.put(&n, &n).unwrap());
    let told = Mutex::new(Vec::new());
    let note = |part: f64| {
        told.lock().unwrap().push(part);
        ControlFlow::Continue(())
    };
    let check = |way: &str| {
        let told = std::mem::take(&mut *told.lock().unwrap());
        let rises = told.windows(2).all(|two| two[0] <= two[1]);
        assert!(told.len() > 100 && rises && told[0] < 0.1 && *told.last().unwrap() > 0.999, "{way}: {told:?}");
    };
    assert_eq!(store.scan().progress(note).iter().unwrap().map(Result::unwrap).count(), 100_000);
    check("iterator");
    let (mut cursor, mut count, mut pages) = (Some(Cursor::START), 0, 0);
    while let Some(at) = cursor {
        let page = store.scan().progress(note).page(at, 60).unwrap();
        cursor = page.next;
        count += page.pairs.len();
        pages += 1;
    }
    check("pages");
    // And a page has hardly more than was asked for: it was 80 in the mean.
    assert!(count == 100_000 && (60..=70).contains(&(count / (pages - 1))), "{pages} pages");

    let half = |part: f64| if part < 0.5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let (mut pairs, mut end) = (0, None);
    for pair in store.scan().progress(half).iter().unwrap() {
        match pair {
            Ok(_) => pairs += 1,
            Err(error) => end = Some(error),
        }
    }
    assert!(matches!(end, Some(Error::Cancelled)) && (40_000..60_000).contains(&pairs), "{pairs} pairs, then {end:?}");
    assert!(matches!(store.scan().progress(half).page(Cursor::START, 90_000), Err(Error::Cancelled)));
}

/// All keys were gathered first, as long as they were less than a thousand.
#[test]
fn long_keys_are_deleted_a_mebibyte_at_a_time() {
    let store: Store<[u8], u64> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
    let key = |n: u64| [n.to_le_bytes().as_slice(), &[7; 60_000]].concat();
    (0..500).for_each(|n| store.put(&key(n), &n).unwrap());
    let before = AtomicU64::new(0);
    let deleted = store.scan().filter(|_, _| before.fetch_max(store.stats().operations.deletes, SeqCst) < u64::MAX).delete().unwrap();
    assert!(deleted == 500 && before.load(SeqCst) > 0, "{deleted}, {before:?} of them while others were looked for");
}
