//! What a batch knows may be out of date.

use crate::epoch::Counter;
use crate::log::NOWHERE;
use crate::sync::atomic::Ordering::*;
use crate::{ManualClock, MemoryDevice, Options, Store, Value};
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// A key that does something when it is asked for the second time: the first is when the batch is looked up.
struct Hooked<'a> {
    key: u64,
    asked: Cell<u32>,
    then: &'a dyn Fn(),
}

impl Borrow<u64> for Hooked<'_> {
    fn borrow(&self) -> &u64 {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == 2 {
            (self.then)();
        }
        &self.key
    }
}

fn the_later_put_counts<V: Value + ?Sized>(values: [&V; 3], is_last: impl Fn(V::Owned) -> bool) {
    let store: Store<u64, V> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let bounds = &store.engine_for_test().log.bounds;
    store.put(&1, values[0]).unwrap();
    // A line's cut is being looked for, and found between the two puts.
    let cut = bounds.read_only();
    bounds.set_read_only(NOWHERE);
    let (nothing, found) = (|| (), || bounds.set_read_only(cut));
    let hooked = |then| Hooked { key: 1, asked: Cell::new(0), then };
    store.put_many(&[(hooked(&nothing), values[1]), (hooked(&found), values[2])]).unwrap();
    assert!(is_last(store.get(&1).unwrap().unwrap()), "the later put was lost");
}

#[test]
fn of_equal_keys_the_later_put_counts_though_a_line_is_drawn() {
    the_later_put_counts::<u64>([&1, &2, &3], |value| value == 3);
    the_later_put_counts::<[u64; 4]>([&[1; 4], &[2; 4], &[3; 4]], |value| value == [3; 4]);
    the_later_put_counts::<[u8]>([b"one", b"two", b"six"], |value| value == b"six");
}

/// A store in which key 1 has a record; in a batch of two changes of it, between the look-up and the first one, a line's cut begins to be
/// looked for, another thread puts `later`, and the cut is found some time after.
fn in_a_cut<V: Value + ?Sized + Sync>(first: &V, later: &V, run: impl FnOnce(&Store<u64, V>, [Hooked<'_>; 2])) -> Option<V::Owned> {
    let store: Store<u64, V> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let bounds = &store.engine_for_test().log.bounds;
    store.put(&1, first).unwrap();
    std::thread::scope(|scope| {
        let begin = || {
            let cut = bounds.read_only();
            bounds.set_read_only(NOWHERE);
            scope.spawn(|| store.put(&1, later).unwrap()).join().unwrap();
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                bounds.set_read_only(cut);
            });
        };
        let nothing = || ();
        run(&store, [Hooked { key: 1, asked: Cell::new(0), then: &begin }, Hooked { key: 1, asked: Cell::new(0), then: &nothing }]);
    });
    store.get(&1).unwrap()
}

#[test]
fn of_equal_keys_both_updates_count_words() {
    let seen = std::cell::RefCell::new(Vec::new());
    let last = in_a_cut::<u64>(&1, &100, |store, keys| {
        store
            .rmw_many(&keys, |_, old| {
                seen.borrow_mut().push(old);
                old.unwrap() + 1
            })
            .unwrap();
    });
    assert_eq!(last, Some(102), "{seen:?}");
}

#[test]
fn of_equal_keys_both_updates_count_short() {
    let last = in_a_cut::<[u64; 4]>(&[1; 4], &[100; 4], |store, keys| {
        store.rmw_many(&keys, |_, old| old.unwrap().map(|n| n + 1)).unwrap();
    });
    assert_eq!(last, Some([102; 4]));
}

#[test]
fn of_equal_keys_both_appends_count() {
    // Four bytes take eight: both appends have room in either record.
    let last = in_a_cut::<[u8]>(b"1234", b"8765", |store, [one, two]| {
        store.append_many(&[(one, "a"), (two, "b")]).unwrap();
    });
    assert_eq!(last.as_deref(), Some(&b"8765ab"[..]));
}

#[test]
fn of_equal_keys_one_deletion_counts() {
    let last = in_a_cut::<u64>(&1, &100, |store, keys| assert_eq!(store.delete_many(&keys).unwrap(), 1, "one value, deleted twice"));
    assert_eq!(last, None);
}

/// An `expire_at` makes the key's record leave, finds no room and takes that back; another thread put the key meanwhile.
#[test]
fn of_equal_keys_the_later_put_counts_though_an_end_found_no_room() {
    let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    store.put(&1, &1).unwrap();
    let engine = store.engine_for_test();
    let at = engine.index.lookup(store.hash(&1u64.to_ne_bytes())).address();
    // SAFETY: nothing is evicted here.
    let record = || unsafe { crate::record::Record::new(engine.log.pointer(at)) };
    let leaves = || {
        assert!(record().leave());
        std::thread::scope(|scope| scope.spawn(|| store.put(&1, &100).unwrap()).join().unwrap());
    };
    let taken_back = || record().stay();
    let hooked = |then| Hooked { key: 1, asked: Cell::new(0), then };
    store.put_many(&[(hooked(&leaves as &dyn Fn()), 2), (hooked(&taken_back), 3)]).unwrap();
    assert_eq!(store.get(&1).unwrap(), Some(3), "the later put was lost");
}

/// After a crash a key's full tag stands beside a shorter one that leads to what it held before (`Index::raise`). While a bucket moves a
/// reader may find the one and not the other: here for the moment at which the batch looks the key up.
#[test]
fn many_gets_show_nothing_superseded_while_a_bucket_moves() {
    let files = std::sync::Arc::new(crate::MemoryStorage::new());
    let open = || Options::new().memory("32MiB").background(false).open_in::<u64, u64>(files.clone()).unwrap();
    let store = open();
    (0..3000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    (3000..120_000u64).for_each(|n| store.put(&n, &n).unwrap());
    (0..3000u64).for_each(|n| store.put(&n, &(n + 1_000_000)).unwrap());
    store.commit().unwrap();
    // Kept, never closed: what nobody can reach any more is a leak to a sanitizer.
    static CRASHED: std::sync::Mutex<Vec<Store<u64, u64>>> = std::sync::Mutex::new(Vec::new());
    CRASHED.lock().unwrap().push(store);
    let store = open();
    let index = &store.engine_for_test().index;
    let (mut both, mut wrong, mut wrong_single) = (0, 0, 0);
    for n in 0..100u64 {
        let hash = store.hash(&n.to_ne_bytes());
        let newest = index.lookup(hash).address();
        let mut words = Vec::new();
        let Some(at) = (0..index.buckets()).find(|at| {
            index.words_at_once(*at, 0, &mut words);
            words.iter().any(|word| crate::index::address_of(*word) == newest)
        }) else {
            continue;
        };
        let without: Vec<u64> = words.iter().copied().filter(|word| crate::index::address_of(*word) != newest).collect();
        index.begin_move_for_test(at, &without);
        let shorter = index.lookup(hash).address();
        index.end_move_for_test(at, &words);
        if shorter == 0 {
            continue;
        }
        both += 1;
        let (begins, ends) = (|| index.begin_move_for_test(at, &without), || index.end_move_for_test(at, &words));
        let keys = [Hooked { key: n, asked: Cell::new(0), then: &begins }, Hooked { key: n + 1, asked: Cell::new(0), then: &ends }];
        store.get_many(&keys, |i, value| wrong += usize::from(i == 0 && value != Some(n + 1_000_000))).unwrap();
        // A get waits for the bucket.
        begins();
        wrong_single += std::thread::scope(|scope| {
            let got = scope.spawn(|| store.get(&n).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(1));
            ends();
            usize::from(got.join().unwrap() != Some(n + 1_000_000))
        });
    }
    assert!(both > 0);
    assert_eq!((wrong, wrong_single), (0, 0), "of {both} keys with a shorter entry");
}

/// A store whose key 1 has a record at the address, which was superseded since, and perhaps by `supersede`.
fn superseded(supersede: impl FnOnce(&Store<u64, u64>)) -> (Store<u64, u64>, u64) {
    let files = std::sync::Arc::new(crate::MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files).unwrap();
    store.put(&1, &1).unwrap();
    let old = store.engine_for_test().index.lookup(hash_of_one(&store)).address();
    supersede(&store);
    (store, old)
}

fn hash_of_one(store: &Store<u64, u64>) -> u64 {
    store.hash(&1u64.to_ne_bytes())
}

/// Keys that were joined have two ways to their records, one by a shorter tag: what that leads to in memory may be superseded, too.
#[test]
fn gets_by_a_shorter_tag_wait_while_a_bucket_moves() {
    let (store, old) = superseded(|store| {
        store.commit().unwrap();
        store.put_with_ttl(&1, &2, std::time::Duration::from_secs(3600)).unwrap();
    });
    let while_it_moves =
        |act: &(dyn Fn() -> Option<u64> + Sync)| store.engine_for_test().index.while_it_moves_for_test(hash_of_one(&store), old, act);
    assert_eq!(while_it_moves(&|| store.get(&1).unwrap()), Some(2));
    let many = || {
        let mut got = None;
        store.get_many(&[1], |_, value| got = value).unwrap();
        got
    };
    assert_eq!(while_it_moves(&many), Some(2));
    assert_eq!(while_it_moves(&|| store.scan().by_log().collect::<Vec<_>>().unwrap().first().map(|pair| pair.1)), Some(2));
    let left = || matches!(store.ttl(&1).unwrap(), Some(crate::Ttl::Left(_))).then_some(2);
    assert_eq!(while_it_moves(&left), Some(2));
}

#[test]
fn deletes_by_a_shorter_tag_wait_while_a_bucket_moves() {
    for is_transaction in [false, true] {
        let (store, old) = superseded(|store| {
            assert!(store.delete(&1).unwrap());
            store.put(&1, &2).unwrap();
        });
        let delete = || {
            if !is_transaction {
                return store.delete(&1).unwrap();
            }
            let mut tx = store.begin().unwrap();
            let was_there = tx.delete(&1).unwrap();
            tx.commit().unwrap();
            was_there
        };
        assert!(store.engine_for_test().index.while_it_moves_for_test(hash_of_one(&store), old, delete));
        assert_eq!(store.get(&1).unwrap(), None);
    }
}

/// A key that calls the store it is borrowed for gets an answer, under whatever pin the batch is.
#[test]
fn a_batch_may_be_called_from_inside_itself_and_is_told_so() {
    let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    store.put(&1, &1).unwrap();
    let told = Cell::new(0);
    let calls = || {
        assert!(matches!(store.get(&1), Err(crate::Error::Invalid(_))));
        told.set(told.get() + 1);
    };
    let keys = || [Hooked { key: 1, asked: Cell::new(0), then: &calls }, Hooked { key: 2, asked: Cell::new(0), then: &calls }];
    store.put_many(&keys().map(|key| (key, 7))).unwrap();
    store.rmw_many(&keys(), |_, old| old.unwrap() + 1).unwrap();
    store.get_many(&keys(), |_, value| assert_eq!(value, Some(8))).unwrap();
    assert_eq!((told.get(), store.get(&1).unwrap()), (6, Some(8)));
}

/// A word whose place a record with an end has taken, while the batch was under way: the rest of the batch comes after that.
#[test]
fn a_batch_changes_no_word_that_was_superseded_meanwhile() {
    let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let ends = || {
        std::thread::scope(|scope| {
            scope.spawn(|| store.put_with_ttl(&1, &100, std::time::Duration::from_secs(3600)).unwrap()).join().unwrap()
        })
    };
    let keys = || [Hooked { key: 0, asked: Cell::new(0), then: &ends }, Hooked { key: 1, asked: Cell::new(0), then: &|| () }];
    store.put_many(&[(0, 0), (1, 0)]).unwrap();
    store.rmw_many(&keys(), |_, old| old.unwrap() + 1).unwrap();
    assert_eq!(store.get(&1).unwrap(), Some(101));
    store.put_many(&[(0, 0), (1, 0)]).unwrap();
    store.put_many(&keys().map(|key| (key, 7))).unwrap();
    assert_eq!(store.get(&1).unwrap(), Some(7));
}

/// The closure of an update waits for what another thread writes after a line began: the line must not have the one without the other.
fn an_update_knows_of_no_later_line<V: crate::Value + ?Sized>(of: fn(u64) -> V::Owned, number: fn(V::Owned) -> u64) {
    use std::borrow::Borrow;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let files = std::sync::Arc::new(crate::MemoryStorage::new());
    let open = |files| -> Store<u64, V> { Options::new().memory("16MiB").background(false).open_in(files).unwrap() };
    let store = open(files.clone());
    let line = || store.engine_for_test().log.bounds.line.load(SeqCst);
    [1, 2].iter().for_each(|key| store.put(key, of(0).borrow()).unwrap());
    let (told, before) = (AtomicU64::new(0), line());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let update = |_: Option<V::View<'_>>| {
                told.fetch_max(1, SeqCst);
                while told.load(SeqCst) != 7 {
                    std::thread::yield_now();
                }
                of(7)
            };
            store.rmw(&1, update).unwrap();
        });
        scope.spawn(|| {
            while told.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            store.commit().unwrap();
        });
        while line() == before {
            std::thread::yield_now();
        }
        store.put(&2, of(7).borrow()).unwrap();
        told.store(7, SeqCst);
    });
    let crashed = open(std::sync::Arc::new(files.copy()));
    let [knows, known] = [1, 2].map(|key| number(crashed.get(&key).unwrap().unwrap()));
    assert!(knows <= known, "{knows} was written by who knew of {known}");
    assert_eq!(number(store.get(&1).unwrap().unwrap()), 7);
}

#[test]
fn updates_know_of_no_later_line() {
    an_update_knows_of_no_later_line::<u64>(|n| n, |n| n);
    an_update_knows_of_no_later_line::<[u64; 2]>(|n| [n; 2], |n| n[0]);
    an_update_knows_of_no_later_line::<[u8]>(|n| vec![n as u8; 9], |n| u64::from(n[0]));
}

/// Key 1 is asked for twice, with a new key and others before it; `then` runs between the look-up of the second and the change of what
/// comes first.
fn twice_after_a_new_key(then: impl Fn(&Store<u64, u64>)) -> Option<u64> {
    let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    (2..40).for_each(|key| store.put(&key, &0).unwrap());
    store.put(&1, &1).unwrap();
    let (nothing, then) = (|| (), || then(&store));
    let mut keys =
        [1_000, 2, 3, 4, 5, 1, 7, 8, 9, 10, 11, 12, 13, 1, 14, 15].map(|key| Hooked { key, asked: Cell::new(0), then: &nothing });
    keys[1].then = &then;
    store.rmw_many(&keys, |_, old| old.unwrap_or(0) + 1).unwrap();
    store.get(&1).unwrap()
}

fn put_elsewhere(store: &Store<u64, u64>) {
    std::thread::scope(|scope| scope.spawn(|| store.put(&1, &100).unwrap()).join().unwrap());
}

#[test]
fn what_one_of_two_equal_keys_sees_the_other_does() {
    let in_a_cut = twice_after_a_new_key(|store| {
        let bounds = &store.engine_for_test().log.bounds;
        let cut = bounds.read_only();
        bounds.set_read_only(NOWHERE);
        put_elsewhere(store);
        bounds.set_read_only(cut);
    });
    assert_eq!(in_a_cut, Some(102));
    let while_it_leaves = twice_after_a_new_key(|store| {
        let engine = store.engine_for_test();
        let at = engine.index.lookup(hash_of_one(store)).address();
        // SAFETY: the address of a record in memory, which stays there.
        let record = unsafe { crate::record::Record::new(engine.log.pointer(at)) };
        assert!(record.leave());
        put_elsewhere(store);
        record.stay();
    });
    assert_eq!(while_it_leaves, Some(102));
}

#[test]
fn a_get_of_many_sees_what_its_visits_did() {
    let files = std::sync::Arc::new(crate::MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files).unwrap();
    let keys: Vec<u64> = (0..200).collect();
    keys.iter().for_each(|key| store.put(key, &1).unwrap());
    store.commit().unwrap();
    let change = |key: &u64| if key.is_multiple_of(2) { store.put(key, &2).unwrap() } else { _ = store.delete(key).unwrap() };
    let mut old = 0;
    // Visits come after each 64 keys.
    let visit = |number, value| match number {
        0 => keys[64..].iter().for_each(change),
        64.. if value == Some(1) => old += 1,
        _ => {}
    };
    store.get_many(&keys, visit).unwrap();
    assert_eq!(old, 0, "values of before");
}

#[test]
fn equal_keys_after_one_that_lay_behind_its_bucket_are_told() {
    let mut firsts = [0; super::batch::GROUP];
    firsts[..5].copy_from_slice(&[8, 16, 24, 32, 40]);
    super::batch::tell_equal_keys(&[1, 7, 9, 7, 7], &mut firsts, 1);
    assert_eq!(firsts[..6], [8, 16, 24, 16, 16, 0]);
}

/// While a line's cut is looked for another thread supersedes what the batch has found, and sees what the batch has not put yet: what the
/// batch puts behind that comes after what the other one put.
fn puts_are_in_order<V: Value + ?Sized + Sync>(old: &V, others: &V, new: &V) -> [Option<V::Owned>; 2]
where
    V::Owned: PartialEq + std::fmt::Debug,
{
    let store: Store<u64, V> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let bounds = &store.engine_for_test().log.bounds;
    bounds.set_read_only(NOWHERE);
    let cut = store.engine_for_test().log.end_block();
    [8, 7].iter().for_each(|key| store.put(key, old).unwrap());
    let other = || {
        store.put(&7, others).unwrap();
        assert!(store.get(&8).unwrap() == Some(V::own(old.bytes())));
    };
    let then = || {
        std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        bounds.floor.store(cut, SeqCst);
        bounds.set_read_only(cut);
    };
    let nothing = || ();
    let eight = Hooked { key: 8, asked: Cell::new(0), then: &then };
    let seven = Hooked { key: 7, asked: Cell::new(0), then: &nothing };
    store.put_many(&[(eight, new), (seven, new)]).unwrap();
    [store.get(&8).unwrap(), store.get(&7).unwrap()]
}

#[test]
fn puts_are_in_order_though_a_line_is_drawn() {
    assert_eq!(puts_are_in_order::<u64>(&1, &3, &2), [Some(2), Some(2)]);
    assert_eq!(puts_are_in_order::<[u64; 4]>(&[1; 4], &[3; 4], &[2; 4]), [Some([2; 4]), Some([2; 4])]);
    assert_eq!(puts_are_in_order::<[u8]>(b"old", b"oth", b"new"), [Some(b"new".to_vec()), Some(b"new".to_vec())]);
}

/// Where another key's record may be by now, or half of it.
#[test]
fn a_batch_looks_again_when_holes_have_ripened() {
    let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let engine = store.engine_for_test();
    engine.log.holes.want(true);
    store.put(&1, &10).unwrap();
    let group = store.fetch_group([1u64.to_ne_bytes()].iter().map(<[u8; 8]>::as_slice));
    let first = || {
        let _pin = engine.epochs.pin().unwrap();
        group.first(0, engine)
    };
    let place = first();
    // All holes of this length that there were are taken, and this one is.
    store.delete(&1).unwrap();
    (100..200).for_each(|n| store.put(&n, &n).unwrap());
    (100..200).for_each(|n| assert!(store.delete(&n).unwrap()));
    assert_eq!(first(), place);
    engine.ripen_holes();
    assert_eq!(first(), 0);
    (2..200).for_each(|n| store.put(&n, &n).unwrap());
    assert!(engine.epochs.counted(Counter::FilledByte) > 0);
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap()), (None, Some(2)));
}

/// All keys that had ended in memory waited for each other, with what is known of them.
#[test]
fn a_batch_of_ended_keys_does_not_gather_them_all() {
    const ENDED: u64 = 20_000;
    let clock = Arc::new(ManualClock::default());
    let options = Options::new().memory("16MiB").background(false).clock(clock.clone());
    let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..ENDED).for_each(|n| store.put_with_ttl(&n, &n, Duration::from_secs(1)).unwrap());
    (ENDED..2 * ENDED).for_each(|n| store.put(&n, &n).unwrap());
    clock.advance(Duration::from_secs(2));
    let keys: Vec<u64> = (0..2 * ENDED).collect();
    let (mut first, mut visited) = (None, 0);
    store
        .get_many(&keys, |i, value| {
            assert_eq!(value, (i as u64 >= ENDED).then_some(i as u64));
            first = first.or((i == 0).then_some(visited));
            visited += 1;
        })
        .unwrap();
    assert_eq!(visited, 2 * ENDED);
    assert!(first.unwrap() < ENDED, "{first:?}");
}
