//! Stores whose index shrinks.

use crate::engine::Engine;
use crate::index::{Collision, Shrunk};
use crate::joining::InVain;
use crate::rehearse::Crowding;
use crate::sync::lock;
use crate::{MemoryStorage, Options, Store};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

const MANY: u64 = 2_000_000;
const FEW: u64 = MANY / 10_000;

/// The store is left as a crash leaves it.
fn crash(store: impl Send + 'static) {
    static CRASHED: Mutex<Vec<Box<dyn std::any::Any + Send>>> = Mutex::new(Vec::new());
    CRASHED.lock().unwrap().push(Box::new(store));
}

fn options(memory: u64) -> Options {
    Options::new().memory(memory).background(false)
}

fn shrink_wholly(store: &Store<u64, u64>) {
    let engine = store.engine_for_test();
    while engine.shrink_index(&engine.hold_compaction()).unwrap() {}
}

/// Buckets that a walk meets, those behind full ones included.
fn buckets_walked(store: &Store<u64, u64>) -> u64 {
    let index = &store.engine_for_test().index;
    let (mut at, mut count) = (Some(0), index.overflow_buckets());
    while let Some(position) = at {
        at = index.prefetch_position(position);
        count += 1;
    }
    count
}

fn holds_only_few(store: &Store<u64, u64>) {
    for n in 0..MANY {
        if n % FEW == 0 || n % 997 == 0 {
            assert_eq!(store.get(&n).unwrap(), (n % FEW == 0).then_some(n), "key {n}");
        }
    }
}

#[test]
fn after_mass_deletion_the_index_is_small_and_holds_everything() {
    let files = Arc::new(MemoryStorage::new());
    // By some seeds a hundred of the keys that are kept share their entries.
    let seed = Crowding { hash_seed: [1, 2], index_bytes: u64::MAX };
    let store: Store<u64, u64> = options(128 << 20).crowding(seed).open_in(files.clone()).unwrap();
    (0..MANY).for_each(|n| store.put(&n, &n).unwrap());
    let (index, log) = (store.stats().memory.index_bytes, store.engine_for_test().log.budget.load(std::sync::atomic::Ordering::Relaxed));
    assert!(index > 20 << 20);
    for n in (0..MANY).filter(|n| n % FEW != 0) {
        assert!(store.delete(&n).unwrap());
    }
    store.compact().unwrap();
    let kept = MANY.div_ceil(FEW);
    let stats = store.stats();
    // Some keys may have met in one entry, and some entries lead to nothing.
    assert!((kept - kept / 500..kept + kept / 50).contains(&stats.index.entries), "{} entries", stats.index.entries);
    assert!(buckets_walked(&store) < kept, "a walk meets {} buckets for {kept} keys", buckets_walked(&store));
    assert!(stats.memory.index_bytes < 64 * kept, "the index has {} bytes", stats.memory.index_bytes);
    let log_now = store.engine_for_test().log.budget.load(std::sync::atomic::Ordering::Relaxed);
    assert!(log_now > log + index / 10 * 9, "the log has {log_now} bytes of the budget, and had {log}");
    holds_only_few(&store);
    // What is left fits a store with much less memory, after a crash, too.
    store.commit().unwrap();
    crash(store);
    let store: Store<u64, u64> = options(16 << 20).open_in(files.clone()).unwrap();
    holds_only_few(&store);
    store.close().unwrap();
    // And it grows again.
    let store: Store<u64, u64> = options(128 << 20).open_in(files).unwrap();
    (MANY..2 * MANY).for_each(|n| store.put(&n, &n).unwrap());
    holds_only_few(&store);
    (MANY..2 * MANY).step_by(101).for_each(|n| assert_eq!(store.get(&n).unwrap(), Some(n)));
    assert!(store.stats().memory.index_bytes > index / 2);
}

/// An image of the table as it was then was read all the same, and the opening refused for want of memory.
#[test]
fn what_is_left_after_mass_deletion_fits_though_an_image_does_not() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options(64 << 20).open_in(files.clone()).unwrap();
    (0..1_200_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    assert!(store.stats().memory.index_bytes > 16 << 20);
    (0..1_200_000).filter(|n| n % 1000 != 0).for_each(|n| assert!(store.delete(&n).unwrap()));
    store.compact().unwrap();
    store.commit().unwrap();
    crash(store);
    let store: Store<u64, u64> = options(16 << 20).open_in(files).unwrap();
    let stats = store.stats();
    assert!(stats.memory.index_bytes < 1 << 20, "{} bytes", stats.memory.index_bytes);
    assert!((0..1_200_000).step_by(250).all(|n| store.get(&n).unwrap() == (n % 1000 == 0).then_some(n)));
}

/// A table that had shrunk to a half asked for its whole memory after a crash, which the budget had given to others.
#[test]
fn what_is_left_after_half_has_gone_fits_the_budget_it_had() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options(64 << 20).open_in(files.clone()).unwrap();
    (0..1_200_000u64).for_each(|n| store.put(&n, &n).unwrap());
    assert!(store.stats().memory.index_bytes > 14 << 20);
    (0..1_200_000).filter(|n| n % 4 != 0).for_each(|n| assert!(store.delete(&n).unwrap()));
    store.compact().unwrap();
    store.set_memory("16MiB").unwrap();
    store.put(&0, &0).unwrap();
    store.commit().unwrap();
    crash(store);
    let store: Store<u64, u64> = options(16 << 20).open_in(files).unwrap();
    assert!((0..1_200_000).step_by(101).all(|n| store.get(&n).unwrap() == (n % 4 == 0).then_some(n)));
}

/// Two keys of one bucket in a table of 256 whose tags there would be the same, but not in a table of 512.
fn colliding(store: &Store<u64, u64>) -> (u64, u64) {
    let engine = store.engine_for_test();
    let mut met: HashMap<u64, u64> = HashMap::new();
    for n in 0u64.. {
        let hash = engine.hash_of(&n.to_le_bytes()) >> 6;
        // Bits 0 to 22; the keys differ in bit 23.
        if let Some(other) = met.insert(hash & ((1 << 23) - 1), n)
            && (engine.hash_of(&other.to_le_bytes()) >> 6 ^ hash) >> 23 & 1 == 1
        {
            return (other, n);
        }
    }
    unreachable!()
}

/// Where the two entries must become one, in each state of their records; before and after a crash, with an image and without.
#[test]
fn chains_that_meet_are_joined() {
    for (cold, updated, image) in [(false, 0, false), (true, 0, false), (true, 3, false), (false, 2, true), (true, 1, true)] {
        let files = Arc::new(MemoryStorage::new());
        let open = || options(16 << 20).open_in::<u64, u64>(files.clone()).unwrap();
        let store = open();
        let (one, other) = colliding(&store);
        let engine = store.engine_for_test();
        // Fine enough to tell them apart.
        engine.index.grow_to_for_test(9);
        let put = |key: u64, round: u64| store.put(&key, &(key + round)).unwrap();
        (0..=updated).for_each(|round| {
            put(one, round);
            put(other, round);
            if cold {
                let _guard = lock(&engine.boundaries);
                engine.freeze(engine.log.end_block());
                engine.flush().unwrap();
                engine.evict(engine.log.tail());
            }
        });
        assert!(matches!(engine.index.shrink_by(u64::MAX, || engine.epochs.drain()), Err(Collision { .. })), "the keys do not meet");
        if image {
            store.save_index().unwrap();
        }
        shrink_wholly(&store);
        assert_eq!(store.stats().index.buckets, 256);
        let holds_both = |store: &Store<u64, u64>, more: u64| {
            assert_eq!(store.get(&one).unwrap(), Some(one + more));
            assert_eq!(store.get(&other).unwrap(), Some(other + updated));
        };
        holds_both(&store, updated);
        store.put(&one, &(one + 9)).unwrap();
        holds_both(&store, 9);
        store.commit().unwrap();
        crash(store);
        let store = open();
        holds_both(&store, 9);
        store.compact().unwrap();
        holds_both(&store, 9);
        store.close().unwrap();
        let store = open();
        holds_both(&store, 9);
        assert!(store.delete(&other).unwrap());
        store.compact().unwrap();
        assert_eq!((store.get(&one).unwrap(), store.get(&other).unwrap()), (Some(one + 9), None));
    }
}

/// Such keys, put in a table of 512, which does not shrink before their chains are joined.
fn meeting(store: &Store<u64, u64>) -> (u64, u64, Collision) {
    let (one, other) = colliding(store);
    let engine = store.engine_for_test();
    engine.index.grow_to_for_test(9);
    [one, other].iter().for_each(|key| store.put(key, key).unwrap());
    let Err(collision) = engine.index.shrink_by(u64::MAX, || engine.epochs.drain()) else { panic!("the keys do not meet") };
    (one, other, collision)
}

/// What a joined chain leads to is found by its other key when the two are one: a deletion that had taken its entry along was undone.
#[test]
fn a_deletion_beside_joining_stays() {
    let store: Store<u64, u64> = options(16 << 20).in_memory().unwrap();
    let (one, other, collision) = meeting(&store);
    let engine = store.engine_for_test();
    engine.log.holes.want(true);
    assert!(engine.join(collision).unwrap().is_some());
    let of = |key: u64| engine.index.lookup(engine.hash_of(&key.to_le_bytes())).address();
    let (going, staying) = if of(one) == collision.onto { (one, other) } else { (other, one) };
    assert_eq!(of(going), collision.onto);
    store.put(&going, &5).unwrap();
    assert!(store.delete(&going).unwrap());
    shrink_wholly(&store);
    assert_eq!((store.get(&going).unwrap(), store.get(&staying).unwrap()), (None, Some(staying)));
    // Behind compaction all of it is gone, and places are left as ever.
    store.compact().unwrap();
    assert_eq!((store.get(&going).unwrap(), store.get(&staying).unwrap()), (None, Some(staying)));
    engine.log.holes.want(true);
    store.put(&u64::MAX, &6).unwrap();
    assert!(store.delete(&u64::MAX).unwrap());
    assert_eq!(of(u64::MAX), 0);
}

/// Between two looks at keys of one entry a split made another of it: those that were looked at later had no entry any more.
#[test]
fn nothing_is_joined_while_a_bucket_may_split() {
    let store: Store<u64, u64> = options(16 << 20).in_memory().unwrap();
    let (one, other, collision) = meeting(&store);
    let engine = store.engine_for_test();
    let splits = engine.index.hold();
    assert!(engine.join(collision).unwrap().is_none());
    drop(splits);
    assert!(engine.join(collision).unwrap().is_some());
    assert!([one, other].iter().all(|key| store.get(key).unwrap() == Some(*key)));
}

/// The lowest of two heads was one that compaction had passed: a store in memory looked for its key in vain, froze all there was for that,
/// and its index stayed as large as it was.
#[test]
fn an_entry_that_leads_to_nothing_is_no_collision() {
    let store: Store<u64, u64> = options(16 << 20).in_memory().unwrap();
    let (one, other) = colliding(&store);
    let engine = store.engine_for_test();
    engine.index.grow_to_for_test(9);
    [one, other].iter().for_each(|key| store.put(key, key).unwrap());
    let of = |key: u64| engine.index.lookup(engine.hash_of(&key.to_le_bytes())).address();
    let (gone, living) = if of(one) < of(other) { (one, other) } else { (other, one) };
    // As compaction leaves a deletion until it is swept.
    engine.log.bounds.begin.store(of(living), SeqCst);
    engine.log.bounds.head.store(of(living), SeqCst);
    let read_only = engine.log.bounds.read_only();
    assert!(of(gone) > 0);
    shrink_wholly(&store);
    assert_eq!((store.stats().index.buckets, engine.log.bounds.read_only()), (256, read_only));
    assert_eq!((store.get(&gone).unwrap(), store.get(&living).unwrap()), (None, Some(living)));
}

/// A snapshot reads what would no more be linked, and so does who shows the store as it is: the index stays as it is until they are gone.
#[test]
fn nothing_is_joined_while_space_is_held() {
    nothing_is_joined_beside(|engine| engine.snapshot().unwrap());
    nothing_is_joined_beside(|engine| engine.hold_space().unwrap());
}

fn nothing_is_joined_beside<H>(hold: impl Fn(&Arc<Engine>) -> H) {
    let store: Store<u64, u64> = options(16 << 20).open_in(Arc::new(MemoryStorage::new())).unwrap();
    let (one, other) = colliding(&store);
    let engine = store.engine_for_test();
    engine.index.grow_to_for_test(9);
    store.put(&one, &1).unwrap();
    store.put(&other, &2).unwrap();
    let held = hold(engine);
    shrink_wholly(&store);
    assert!(matches!(engine.index.shrink(&[], || engine.epochs.drain()), Shrunk::Held(_)));
    drop(held);
    store.put(&other, &3).unwrap();
    shrink_wholly(&store);
    assert_eq!((store.stats().index.buckets, store.get(&one).unwrap(), store.get(&other).unwrap()), (256, Some(1), Some(3)));
}

/// A deletion that has no copy counts as long as the log begins below it: its entry was left out, an image had the other one alone, which
/// led to what had been deleted, and there the key was again.
#[test]
fn a_deletion_without_a_copy_keeps_its_entry_until_the_log_begins_above_it() {
    let files = Arc::new(MemoryStorage::new());
    let open = |files: &MemoryStorage| options(16 << 20).open_in::<u64, u64>(Arc::new(files.copy())).unwrap();
    let store = options(16 << 20).open_in::<u64, u64>(files.clone()).unwrap();
    store.put(&7, &1).unwrap();
    store.close().unwrap();
    let store = options(16 << 20).open_in::<u64, u64>(files.clone()).unwrap();
    store.engine_for_test().index.grow_to_for_test(9);
    store.put(&7, &2).unwrap();
    store.commit().unwrap();
    let files = Arc::new(files.copy());
    crash(store);
    // A short tag that leads to the first value, from the image, and a full one.
    let store = options(16 << 20).open_in::<u64, u64>(files.clone()).unwrap();
    assert!(store.delete(&7).unwrap());
    store.commit().unwrap();
    let scan = store.scan().iter().unwrap();
    store.compact().unwrap();
    drop(scan);
    let bounds = &store.engine_for_test().log.bounds;
    let has_no_copy =
        || bounds.copied.load(std::sync::atomic::Ordering::Relaxed) > bounds.compacted.load(std::sync::atomic::Ordering::Relaxed);
    assert!(has_no_copy());
    shrink_wholly(&store);
    assert!(has_no_copy() && store.get(&7).unwrap().is_none());
    store.save_index().unwrap();
    assert_eq!(open(&files).get(&7).unwrap(), None);
    // When it has been given back nothing is in the way.
    store.compact().unwrap();
    store.put(&8, &1).unwrap();
    shrink_wholly(&store);
    assert_eq!((store.stats().index.buckets, store.get(&7).unwrap(), store.get(&8).unwrap()), (256, None, Some(1)));
    store.close().unwrap();
    assert_eq!(open(&files).get(&7).unwrap(), None);
}

/// Each attempt froze what was mutable, and one was made whenever something had been written: who changed pairs in place copied them.
#[test]
fn what_is_joined_in_vain_is_tried_ever_less_often() {
    let mut in_vain = InVain::default();
    let mut attempts = |tails: Range<u64>, copied: u64| {
        let mut attempt = |tail: u64| {
            let is_due = in_vain.is_due(tail, copied);
            if is_due {
                in_vain.note(tail, copied);
            }
            is_due
        };
        tails.step_by(24).filter(|tail| attempt(*tail)).count()
    };
    assert_eq!(attempts(0..24, 0), 1);
    // A gigabyte of the log: as often as it doubles up to the longest wait, and then after each of those.
    let often = attempts(24..1 << 30, 0);
    assert!((16..64).contains(&often), "{often} attempts");
    // What was compacted may have shortened the chain; one attempt more, not one after each write.
    assert_eq!(attempts(1 << 30..(1 << 30) + 2400, 9), 1);
}

/// Two keys share an entry; the table grows until a split cannot tell them apart, and each side leads to both. One is deleted, its
/// deletion is compacted and its entry goes; the table shrinks again, and a third key makes the other one's entry stand for it.
#[test]
fn a_deleted_key_does_not_come_back_by_another_entry() {
    let store: Store<u64, u64> = options(64 << 20).open_in(Arc::new(MemoryStorage::new())).unwrap();
    let engine = store.engine_for_test();
    let hash = |key: u64| engine.hash_of(&key.to_ne_bytes());
    let tags = RefCell::new(HashSet::new());
    // Keys of bucket 5 of 256, by the two bits that splits will ask for: each with a tag of its own, or it had no entry of its own.
    let of_bucket = |bits: u64| (0..).filter(move |key| hash(*key) >> 6 & 0x3ff == 5 | bits << 8);
    let keys = |bits: u64| of_bucket(bits).filter(|key| tags.borrow_mut().insert(hash(*key) >> 14 & 0x7fff));
    let (kept, deleted, third) = (keys(0b00).next().unwrap(), keys(0b10).next().unwrap(), keys(0b10).next().unwrap());
    let fillers: Vec<u64> = keys(0b01).take(3).chain(keys(0b11).take(3)).collect();
    engine.index.set_limit(0);
    store.put(&kept, &1).unwrap();
    fillers.iter().for_each(|key| store.put(key, &7).unwrap());
    store.put(&deleted, &2).unwrap();
    assert!(engine.index.is_shared());
    store.commit().unwrap();
    // As if they were cold, there were more keys, and more memory.
    engine.index.grow_to_for_test(10);
    assert_eq!((store.get(&kept).unwrap(), store.get(&deleted).unwrap()), (Some(1), Some(2)));
    assert!(store.delete(&deleted).unwrap());
    store.commit().unwrap();
    // The driver's step: the stretch waits for a line, and the index shrinks.
    engine.compact_once().unwrap();
    assert_eq!(engine.index.buckets(), 256);
    assert_eq!((store.get(&kept).unwrap(), store.get(&deleted).unwrap()), (Some(1), None));
    engine.index.set_limit(0);
    store.put(&third, &3).unwrap();
    assert_eq!((store.get(&kept).unwrap(), store.get(&third).unwrap()), (Some(1), Some(3)));
    assert_eq!(store.get(&deleted).unwrap(), None, "it came back");
}

/// A split that cannot tell leaves two entries that lead to one chain. Where one of them met a third, the keys of both had copies, and only
/// one entry led there: a scan by log met the others twice, and so did who recovered.
#[test]
fn only_keys_of_the_entry_that_meets_another_are_joined() {
    let store: Store<u64, [u8]> = options(64 << 20).in_memory().unwrap();
    let engine = store.engine_for_test();
    let hash = |key: u64| engine.hash_of(&key.to_ne_bytes());
    let tags = RefCell::new(HashSet::new());
    let of_bucket = |bits: u64| (0..).filter(move |key| hash(*key) >> 6 & 0x3ff == 5 | bits << 8);
    let keys = |bits: u64| of_bucket(bits).filter(|key| tags.borrow_mut().insert(hash(*key) >> 14 & 0x7fff));
    let mut all: Vec<u64> = keys(0b00).take(2).chain(keys(0b01).take(3)).chain(keys(0b11).take(2)).collect();
    engine.index.set_limit(0);
    all.iter().for_each(|key| store.put(key, b"1").unwrap());
    // Of a full bucket: it shares the entry of one of the first two.
    all.extend(keys(0b10).take(1));
    store.put(&all[7], b"2").unwrap();
    assert!(engine.index.is_shared());
    engine.index.set_limit(u64::MAX);
    (0..2).for_each(|_| engine.double_index().unwrap());
    // The copies shall lie in a part of the log of which nothing else was superseded.
    all.push(u64::MAX);
    store.put(&u64::MAX, &[3; 200_000]).unwrap();
    while engine.shrink_index(&engine.hold_compaction()).unwrap() {}
    assert_eq!(engine.index.buckets(), 256);
    let (mut seen, by_log) = (Mutex::new(Vec::new()), store.scan().by_log());
    by_log.for_each(|key, _| seen.lock().unwrap().push(key)).unwrap();
    let seen = seen.get_mut().unwrap();
    seen.sort_unstable();
    all.sort_unstable();
    assert_eq!(*seen, all);
    assert!(all.iter().all(|key| store.contains(key).unwrap()));
}
