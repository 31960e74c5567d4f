//! What compaction concludes from an entry, where two keys share one.

use super::Copied;
use super::mover::Mover;
use crate::copies::Original;
use crate::device::{AlignedBuffer, SECTOR_BYTES};
use crate::epoch::Counter;
use crate::index::{Looked, Seen};
use crate::log::BLOCK_BYTES;
use crate::minded::{Call, Minded};
use crate::record::{bytes_record_bytes, word_record_bytes};
use crate::rehearse::Crowding;
use crate::sync::atomic::Ordering::*;
use crate::{Cache, Device, Error, ManualClock, MemoryDevice, MemoryStorage, Options, ReadSource, Result, Storage, Store, Value};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

const FILLERS: u64 = 500;
static FILLER: [u8; 64 << 10] = [7; 64 << 10];

struct Shared {
    files: Arc<MemoryStorage>,
    options: Options,
    store: Store<u64, [u8]>,
    /// Keys that nothing in the index tells apart: of one bucket and one tag.
    one: u64,
    other: u64,
}

impl Shared {
    fn new() -> Self {
        Self::of(Options::new())
    }

    fn of(options: Options) -> Self {
        let options = options.memory(16 << 20).background(false).promotion(false);
        let files = Arc::new(MemoryStorage::default());
        let store: Store<u64, [u8]> = options.clone().open_in(files.clone()).unwrap();
        let mut known = HashMap::new();
        let told_by = |key: u64| store.engine_for_test().hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
        let fillers: HashSet<u64> = (0..FILLERS).map(told_by).collect();
        let mut others = (FILLERS..1_000_000).filter(|key| !fillers.contains(&told_by(*key)));
        let pair = others.find_map(|key| known.insert(told_by(key), key).map(|first| (first, key)));
        let (one, other) = pair.unwrap();
        Self { files, options, store, one, other }
    }

    /// The same keys in a store that was closed, or in one that a crash left.
    fn reopened(self, crash: bool) -> Self {
        let files = if crash { Arc::new(self.files.copy()) } else { self.files };
        self.store.close().unwrap();
        let store = self.options.clone().open_in(files.clone()).unwrap();
        Self { files, store, ..self }
    }

    /// Whatever was written before is on the device then.
    fn make_cold(&self) {
        (0..FILLERS).for_each(|key| self.store.put(&key, &FILLER).unwrap());
        assert_eq!(self.store.engine_for_test().index.buckets(), 256, "the keys would be told apart");
    }

    fn seen(&self) -> Seen {
        let engine = self.store.engine_for_test();
        engine.index.lookup(engine.hash_of(&self.one.to_le_bytes()))
    }

    fn address(&self) -> u64 {
        self.seen().address()
    }

    fn is_sole(&self) -> bool {
        assert_ne!(self.address(), 0);
        self.seen().is_sole()
    }

    fn check(&self, one: Option<&[u8]>, other: Option<&[u8]>) {
        assert_eq!(self.store.get(&self.one).unwrap().as_deref(), one);
        assert_eq!(self.store.get(&self.other).unwrap().as_deref(), other);
    }
}

/// After an orderly close nearly every record that was superseded was in doubt.
#[test]
fn an_image_says_that_a_chain_is_of_one_key() {
    let shared = Shared::new();
    shared.store.put(&shared.one, b"one").unwrap();
    shared.make_cold();
    let shared = shared.reopened(false);
    assert!(shared.is_sole());
    // And only where that is so.
    shared.store.put(&shared.other, b"other").unwrap();
    shared.make_cold();
    let shared = shared.reopened(false);
    assert!(!shared.is_sole());
    shared.store.compact().unwrap();
    shared.check(Some(b"one"), Some(b"other"));
}

/// It was so when the image was taken, and is no more.
#[test]
fn what_joined_a_chain_behind_its_image_lives() {
    for is_in_line in [true, false] {
        let shared = Shared::new();
        shared.store.put(&shared.one, b"one").unwrap();
        shared.make_cold();
        shared.store.save_index().unwrap();
        shared.store.put(&shared.other, b"other").unwrap();
        if is_in_line {
            shared.store.commit().unwrap();
        }
        let shared = shared.reopened(true);
        assert_eq!(shared.is_sole(), !is_in_line);
        let other = is_in_line.then_some(&b"other"[..]);
        shared.check(Some(b"one"), other);
        shared.make_cold();
        let scanned = |key| shared.store.scan().collect::<Vec<_>>().unwrap().into_iter().any(|(found, _)| found == key);
        assert_eq!((scanned(shared.one), scanned(shared.other)), (true, is_in_line));
        shared.store.compact().unwrap();
        shared.check(Some(b"one"), other);
    }
}

/// What a cache dropped lives again after a crash.
#[test]
fn the_image_of_a_cache_does_not_say_it() {
    let shared = Shared::of(Options::new().cache(Cache::new().disk(256 << 20)));
    shared.store.put(&shared.one, b"one").unwrap();
    shared.make_cold();
    assert!(shared.is_sole());
    let shared = shared.reopened(false);
    assert!(!shared.is_sole());
    shared.check(Some(b"one"), None);
}

/// `other` has expired, and lies behind two records of `one` that are cold.
fn one_over_what_has_expired() -> Shared {
    let clock = Arc::new(ManualClock::new(std::time::UNIX_EPOCH));
    let shared = Shared::of(Options::new().clock(clock.clone()));
    shared.store.put_with_ttl(&shared.other, b"other", Duration::from_secs(1)).unwrap();
    shared.make_cold();
    for value in [b"one.", b"one!"] {
        shared.store.put(&shared.one, value).unwrap();
        shared.make_cold();
    }
    clock.advance(Duration::from_secs(10));
    assert!(!shared.is_sole());
    shared
}

fn copy_until_sole(shared: &Shared) {
    let engine = shared.store.engine_for_test();
    let tail = engine.log.tail();
    while !shared.is_sole() && engine.log.bounds.copied.load(Relaxed) < tail {
        assert!(engine.compact_once().unwrap());
    }
    assert!(shared.is_sole());
}

/// Who held what had expired kept it in the log: after a crash the chain led there again, and who found it took the entry at its word.
#[test]
fn an_image_does_not_say_it_while_what_was_copied_is_held() {
    for (crash, is_deleted, late) in [true, false].into_iter().flat_map(|c| [(c, true, false), (c, false, false), (c, false, true)]) {
        let shared = one_over_what_has_expired();
        let snapshot = shared.store.engine_for_test().snapshot().unwrap();
        copy_until_sole(&shared);
        // Let go, and nothing given back yet: the same.
        let snapshot = Some(snapshot).filter(|_| !late);
        if crash {
            shared.store.save_index().unwrap();
        }
        let shared = shared.reopened(crash);
        drop(snapshot);
        if is_deleted {
            shared.store.delete(&shared.other).unwrap();
        } else {
            shared.store.rmw(&shared.other, |_| b"again".to_vec()).unwrap();
        }
        let other = (!is_deleted).then_some(&b"again"[..]);
        shared.make_cold();
        shared.check(Some(b"one!"), other);
        shared.store.compact().unwrap();
        shared.check(Some(b"one!"), other);
    }
}

/// An update of a cold key, in which `act` comes when the key was read, and before anybody goes by that. `None` if the reader was so quick
/// that the update was done at once.
fn behind_its_read<F: Future>(update: F, act: impl FnOnce()) -> Option<F::Output> {
    struct Told(mpsc::Sender<()>);
    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    let (tell, told) = mpsc::channel();
    let (mut update, waker) = (pin!(update), Waker::from(Arc::new(Told(tell))));
    let mut context = Context::from_waker(&waker);
    if update.as_mut().poll(&mut context).is_ready() {
        return None;
    }
    told.recv().unwrap();
    // Whoever read it lets go of the log a moment after that.
    thread::sleep(Duration::from_millis(100));
    act();
    loop {
        if let Poll::Ready(done) = update.as_mut().poll(&mut context) {
            return Some(done);
        }
        thread::yield_now();
    }
}

/// The same without a crash: what was read had expired, and was compacted before it was built on.
#[test]
fn what_was_read_and_is_gone_says_nothing_of_its_chain() {
    let shared = loop {
        let shared = one_over_what_has_expired();
        let update = shared.store.rmw_async(&shared.other, |_| b"again".to_vec());
        if let Some(done) = behind_its_read(update, || copy_until_sole(&shared)) {
            done.unwrap();
            break shared;
        }
    };
    shared.make_cold();
    shared.store.compact().unwrap();
    shared.check(Some(b"one!"), Some(b"again"));
}

/// The oldest is dropped, which is `one`; what its entry leads to is another key's record.
fn cache_that_drops_the_one(act: impl FnOnce(&Shared, &dyn Fn())) {
    let shared = Shared::of(Options::new().cache(Cache::new().disk(256 << 20)));
    shared.store.put(&shared.one, b"one").unwrap();
    shared.make_cold();
    shared.store.put(&shared.other, b"other").unwrap();
    shared.make_cold();
    let engine = shared.store.engine_for_test();
    let entry = shared.address();
    act(&shared, &|| {
        assert!(engine.try_move_stretch(engine.caching.as_ref().unwrap(), || true).unwrap());
        assert_eq!(shared.address(), entry, "the entry tells of it");
        shared.check(None, Some(b"other"));
        assert!(!shared.store.delete(&shared.one).unwrap());
    });
    shared.check(None, Some(b"other"));
}

/// Who had read it before wrote it back over what others had found deleted.
#[test]
fn a_transaction_does_not_bring_back_what_a_cache_dropped() {
    cache_that_drops_the_one(|Shared { store, one, .. }, drop_it| {
        let mut tx = store.begin().unwrap();
        assert_eq!(tx.get(one).unwrap().as_deref(), Some(&b"one"[..]));
        drop_it();
        tx.put(one, b"one!").unwrap();
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    });
}

#[test]
fn an_update_does_not_see_what_a_cache_dropped() {
    let mut was_behind = false;
    while !was_behind {
        cache_that_drops_the_one(|Shared { store, one, .. }, drop_it| {
            let seen = Cell::new(None);
            let update = store.rmw_async(one, |old| {
                seen.set(Some(old.is_some()));
                b"one!".to_vec()
            });
            let done = behind_its_read(update, drop_it);
            was_behind = done.is_some();
            if let Some(done) = done {
                done.unwrap();
                assert_eq!(seen.get(), Some(false), "it was gone");
            }
            assert_eq!(store.get(one).unwrap().as_deref(), Some(&b"one!"[..]));
            assert!(store.delete(one).unwrap());
        });
    }
}

/// The entry goes long before a line says that the log begins behind the record: a crash in between brought it back, though it had been
/// deleted and that committed.
#[test]
fn what_was_deleted_while_a_cache_dropped_it_stays_deleted() {
    fn check<V: crate::Value + ?Sized>(put: impl Fn(&Store<u64, V>, u64), delete: impl Fn(&Store<u64, V>) -> bool) {
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("16MiB").background(false).promotion(false).cache(Cache::new().disk(256 << 20));
        let store: Store<u64, V> = options().open_in(files.clone()).unwrap();
        put(&store, 1);
        store.commit().unwrap();
        let engine = store.engine_for_test();
        let hash = engine.hash_of(&1u64.to_ne_bytes());
        let at = engine.index.lookup(hash).address();
        let bytes = crate::descent::record_bytes(engine, at).unwrap();
        let mut mover = Mover::new(engine, at..at + bytes.len() as u64, engine.caching.as_ref());
        mover.consider(&Original { at, hash, bytes: &bytes }, None).unwrap();
        assert_eq!(engine.index.lookup(hash).address(), 0, "it has gone");
        assert!(!delete(&store));
        put(&store, 2);
        store.commit().unwrap();
        let again: Store<u64, V> = options().open_in(Arc::new(files.copy())).unwrap();
        assert_eq!((again.contains(&1).unwrap(), again.contains(&2).unwrap()), (false, true));
    }
    let put_word = |store: &Store<u64, u64>, key| store.put(&key, &7).unwrap();
    let put_bytes = |store: &Store<u64, [u8]>, key| store.put(&key, b"seven").unwrap();
    check(put_word, |store| store.delete(&1).unwrap());
    check(put_bytes, |store| store.delete(&1).unwrap());
    check(put_word, |store| store.compare_and_swap(&1, None, None).map(|_| false).unwrap());
    check(put_word, |store| store.transaction(|tx| tx.delete(&1)).map(|_| false).unwrap());
    check(put_bytes, |store| store.transaction(|tx| tx.delete(&1)).map(|_| false).unwrap());
}

/// A clock that at one of its calls lets another thread do something, and waits for the end of that for a while.
#[derive(Debug)]
struct Waiting {
    calls_left: AtomicU64,
    begin: mpsc::Sender<()>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl crate::Clock for Waiting {
    fn now(&self) -> std::time::SystemTime {
        let left = self.calls_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        if left == Ok(1) {
            self.begin.send(()).unwrap();
            let _ = self.ended.lock().unwrap().recv_timeout(Duration::from_millis(50));
        }
        std::time::UNIX_EPOCH + Duration::from_secs(1)
    }
}

/// It once went between the look whether it was still there and what was made of it: the listener heard of both.
#[test]
fn a_cache_drops_nothing_that_a_transaction_builds_on_while_it_commits() {
    let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let begun = Mutex::new(begun);
    let clock = Arc::new(Waiting { calls_left: AtomicU64::new(0), begin, ended: Mutex::new(ended) });
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let cache = Cache::new().disk(256 << 20).on_eviction(move |_, value, _| hear.lock().unwrap().push(value.to_vec()));
    let options = Options::new().memory("16MiB").background(false).promotion(false).clock(clock.clone()).cache(cache);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    store.put_with_ttl(&2, b"ends", Duration::from_secs(3600)).unwrap();
    let engine = store.engine_for_test();
    let hash = engine.hash_of(&1u64.to_ne_bytes());
    let mut came = 0;
    for call in 1.. {
        store.put(&1, b"old").unwrap();
        store.commit().unwrap();
        let at = engine.index.lookup(hash).address();
        let bytes = crate::descent::record_bytes(engine, at).unwrap();
        let committed = thread::scope(|scope| {
            scope.spawn(|| {
                if begun.lock().unwrap().recv().is_ok() && clock.calls_left.load(SeqCst) == 0 {
                    let mut mover = Mover::new(engine, at..at + bytes.len() as u64, engine.caching.as_ref());
                    mover.consider(&Original { at, hash, bytes: &bytes }, None).unwrap();
                }
                let _ = end.send(());
            });
            let mut tx = store.begin().unwrap();
            assert!(tx.get(&1).unwrap().is_some() && tx.get(&2).unwrap().is_some());
            tx.put(&1, b"new").unwrap();
            clock.calls_left.store(call, SeqCst);
            let committed = tx.commit();
            if clock.calls_left.load(SeqCst) > 0 {
                // No call so late: the other thread does nothing.
                clock.begin.send(()).unwrap();
            }
            committed
        });
        engine.caching.as_ref().unwrap().tell_unless_told(|| ());
        let heard = std::mem::take(&mut *told.lock().unwrap());
        match committed {
            Ok(_) => assert!(heard.is_empty(), "at call {call}: {heard:?}"),
            Err(Error::Conflict { .. }) => assert_eq!(heard, [b"old".to_vec()], "at call {call}"),
            Err(error) => panic!("{error}"),
        }
        // A drop that came later than the wait ended tells of itself all the same.
        while clock.ended.lock().unwrap().try_recv().is_ok() {}
        if clock.calls_left.swap(0, SeqCst) > 0 {
            break;
        }
        came += 1;
    }
    assert!(came > 0);
}

/// When a line has given up what was dropped, deletions that find nothing write nothing again; in a store that goes with the process they
/// never do.
#[test]
fn what_a_line_has_given_up_needs_no_deletion() {
    fn turn_over(store: &Store<u64, [u8]>, rounds: u64) -> usize {
        let engine = store.engine_for_test();
        let mut written = 0;
        for round in 0..rounds {
            // No record ends where a stretch may.
            (0..1000u64).for_each(|key| store.put(&(round << 32 | key), &FILLER[..1500]).unwrap());
            assert!(engine.try_move_stretch(engine.caching.as_ref().unwrap(), || true).unwrap());
            store.commit().unwrap();
            let tail = engine.log.tail();
            assert!(!store.delete(&u64::MAX).unwrap());
            written += usize::from(engine.log.tail() > tail);
        }
        written
    }
    let options = || Options::new().memory("16MiB").background(false).promotion(false).cache(Cache::new().disk(64 << 20));
    assert_eq!(turn_over(&options().open_in(Arc::new(MemoryStorage::new())).unwrap(), 20), 0);
    assert_eq!(turn_over(&options().open_temporary().unwrap(), 5), 0);
    assert_eq!(turn_over(&options().open_on(Arc::new(crate::MemoryDevice::new())).unwrap(), 5), 0);
}

/// A stretch that cannot be read goes as a whole, and no entry of it was removed. What of it was in memory still was found by gets, and not
/// by deletes.
#[test]
fn what_goes_unread_is_not_found_in_memory_either() {
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("256MiB").background(false).promotion(false).cache(Cache::new().disk(64 << 20));
    let store: Store<u64, [u8]> = options.open_in(files.clone()).unwrap();
    (0..400u64).for_each(|key| store.put(&key, &FILLER[..]).unwrap());
    store.commit().unwrap();
    let log = files.list().unwrap().into_iter().filter(|name| name.starts_with("esker.log")).min().unwrap();
    files.open(&log).unwrap().write(8 * SECTOR_BYTES as u64, &[7; 4 * SECTOR_BYTES]).unwrap();
    let engine = store.engine_for_test();
    engine.try_move_stretch(engine.caching.as_ref().unwrap(), || true).unwrap();
    assert!(engine.log.bounds.copied.load(Relaxed) > engine.log.bounds.head.load(Relaxed), "some of what goes is in memory");
    let found = (0..400).filter(|key| store.contains(key).unwrap()).count();
    let deleted = (0..400).filter(|key| store.delete(key).unwrap()).count();
    assert!(found == deleted && found < 400, "{found} found, {deleted} deleted");
    assert!((0..400).all(|key| store.get(&key).unwrap().is_none()));
}

/// What is counted is compacted to the target, and a look at the oldest part is no reason to go on below it: with each burst twice as much
/// was copied.
#[test]
fn puts_over_cold_records_do_not_make_compaction_go_below_its_target() {
    let options = Options::new().memory("16MiB").background(false).promotion(false).segment_bytes(1 << 20);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..30_000u64).for_each(|key| store.put(&key, &FILLER[..2000]).unwrap());
    let mut key = 1u64;
    let mut put = |count: u64| {
        for _ in 0..count {
            key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            store.put(&((key >> 33) % 30_000), &FILLER[..2000]).unwrap();
        }
        while store.engine_for_test().compact_if_due().unwrap() {}
    };
    (0..400).for_each(|_| put(200));
    let (before, rounds) = (store.stats().space.moved_bytes, 400u64);
    (0..rounds).for_each(|_| put(200));
    let copied = (store.stats().space.moved_bytes - before) as f64 / (rounds * 200 * 2000) as f64;
    assert!((0.1..0.4).contains(&copied), "{copied} bytes copied for each that was put");
}

/// The last stretch went on into the copies that the call had made.
#[test]
fn compaction_copies_once_what_was_there() {
    let options = Options::new().memory("32MiB").background(false).promotion(false).segment_bytes(1 << 20);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..20_000u64).for_each(|key| store.put(&key, &FILLER[..1000]).unwrap());
    for _ in 0..3 {
        let before = store.stats().space;
        store.compact().unwrap();
        let moved = store.stats().space.moved_bytes - before.moved_bytes;
        assert!(moved >= 20_000 * 1000 && moved <= before.live_bytes + (1 << 16), "{moved} of {before:?}");
    }
}

/// Where keys share entries each new one may have superseded another, and a look at the oldest part finds that it lives: a read for each
/// record of it, in the driver's time. It is short.
#[test]
fn a_look_at_what_lives_copies_little() {
    let options = Options::new().memory("16MiB").background(false).promotion(false).segment_bytes(1 << 20);
    let files = || Arc::new(MemoryStorage::new());
    let (any, fixed): (Store<u64, [u8]>, Store<u64, [u8; 32]>) =
        (options.clone().open_in(files()).unwrap(), options.open_in(files()).unwrap());
    for key in 0..2_000_000u64 {
        any.put(&key, &[7; 32]).unwrap();
        fixed.put(&key, &[7; 32]).unwrap();
        if key % 50_000 == 0 {
            while any.engine_for_test().compact_if_due().unwrap() || fixed.engine_for_test().compact_if_due().unwrap() {}
        }
    }
    let (any, fixed) = (any.stats().space, fixed.stats().space);
    assert!(any.stretches > 2 && any.moved_bytes < 1 << 20, "{any:?}");
    // What died is known where all values are as long.
    assert_eq!(fixed.stretches, 0, "{fixed:?}");
}

/// A put that cannot know whose record it supersedes takes the entry's word back; without that the first key would be lost.
#[test]
fn a_cold_record_behind_another_keys_is_kept() {
    let shared = Shared::new();
    shared.store.put(&shared.one, b"one").unwrap();
    assert!(shared.is_sole());
    shared.make_cold();
    shared.store.put(&shared.other, b"other").unwrap();
    assert!(!shared.is_sole());
    shared.make_cold();
    shared.store.compact().unwrap();
    shared.check(Some(b"one"), Some(b"other"));
    // The same for who reads what is cold, and finds that it is another's.
    shared.make_cold();
    shared.store.delete(&shared.other).unwrap();
    shared.make_cold();
    shared.store.compact().unwrap();
    shared.check(Some(b"one"), None);
    shared.store.append(&shared.other, b"anew").unwrap();
    shared.make_cold();
    shared.store.compact().unwrap();
    shared.check(Some(b"one"), Some(b"anew"));
    shared.store.delete(&shared.one).unwrap();
    shared.make_cold();
    shared.store.compact().unwrap();
    shared.check(None, Some(b"anew"));
}

/// Who has read a record of his key keeps the entry's word, and a chain that begins anew has it again.
#[test]
fn an_entry_says_that_its_chain_is_of_one_key() {
    let shared = Shared::new();
    let (store, one) = (&shared.store, &shared.one);
    store.put(one, b"1").unwrap();
    for round in 0..3 {
        shared.make_cold();
        match round {
            0 => drop(store.append(one, b"2").unwrap()),
            1 => drop(store.rmw(one, |old| [old.unwrap(), b"3"].concat()).unwrap()),
            _ => store.append_many(&[(*one, b"4")]).unwrap(),
        }
        assert!(shared.is_sole(), "round {round}");
    }
    shared.make_cold();
    let at = shared.address();
    store.put(one, b"5").unwrap();
    assert!(!shared.is_sole());
    shared.make_cold();
    // The first of the two dies, and what it died of was read.
    while store.engine_for_test().log.bounds.begin.load(Relaxed) <= at {
        assert!(store.engine_for_test().compact_once().unwrap());
    }
    assert!(shared.is_sole());
    store.compact().unwrap();
    assert!(shared.is_sole());
    assert_eq!(store.get(one).unwrap().as_deref(), Some(&b"5"[..]));
}

/// What lives is not taken for dead because a shorter tag leads to what it superseded.
#[test]
fn what_lives_is_copied_while_its_bucket_moves() {
    let options = Options::new().memory(16 << 20).background(false).promotion(false);
    let store: Store<u64, u64> = options.open_in(Arc::new(MemoryStorage::default())).unwrap();
    let engine = store.engine_for_test();
    let hash = engine.hash_of(&1u64.to_ne_bytes());
    let [old, new] = [1, 2].map(|value| {
        store.put(&1, &value).unwrap();
        store.commit().unwrap();
        engine.index.lookup(hash).address()
    });
    let bytes = crate::descent::record_bytes(engine, new).unwrap();
    let moved = engine.index.while_it_moves_for_test(hash, old, || {
        let mut mover = Mover::new(engine, old..new + bytes.len() as u64, None);
        mover.consider(&Original { at: new, hash, bytes: &bytes }, None).unwrap();
        mover.tally.moved
    });
    assert_eq!(moved, bytes.len() as u64);
    assert_eq!(store.get(&1).unwrap(), Some(2));
}

/// A stretch draws no line of its own: another's serves as well, and until then its space counts as dead.
#[test]
fn stretches_wait_for_a_line_together() {
    let options = Options::new().memory(16 << 20).background(false).promotion(false);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::default())).unwrap();
    let put_all = || (0..100).try_for_each(|key| store.put(&key, &FILLER));
    put_all().and_then(|()| put_all()).unwrap();
    (0..100).step_by(2).for_each(|key| assert!(store.delete(&key).unwrap()));
    store.commit().unwrap();
    let bounds = &store.engine_for_test().log.bounds;
    let ends = || (bounds.begin.load(Relaxed), bounds.compacted.load(Relaxed));
    let (begin, line, dead) = (ends().0, bounds.line.load(Relaxed), store.stats().space.dead_bytes);
    // Three stretches of a MiB each: of a file of four nothing can go yet.
    (0..3).for_each(|_| assert!(store.compact_stretch().unwrap()));
    assert!(ends().0 == begin && ends().1 >= begin + (2 << 20) && bounds.line.load(Relaxed) == line, "{:?}", ends());
    assert!(store.stats().space.dead_bytes >= dead);
    // Nothing was written, but the line has something to say.
    store.commit().unwrap();
    assert_eq!((ends().0, bounds.line.load(Relaxed)), (begin, line + 1));
    let waited = ends().1;
    assert!(store.compact_stretch().unwrap());
    assert_eq!((ends().0, bounds.line.load(Relaxed)), (waited, line + 1));
    // With a file that can go they draw their own.
    while ends().0 == waited {
        assert!(store.compact_stretch().unwrap());
    }
    assert_eq!((ends().0, bounds.line.load(Relaxed)), (ends().1, line + 2));
    // All at once, with what waits.
    store.compact_stretch().unwrap();
    store.compact().unwrap();
    assert_eq!(ends().0, ends().1);
    (0..100).for_each(|key| assert_eq!(store.get(&key).unwrap().is_some(), key % 2 == 1));
}

type Pages = Store<u64, [u8]>;

/// What a copy leaves of its piece, or of its last block, another copy would only leave again.
#[test]
fn compaction_rests_where_all_lives() {
    let in_memory = || Options::new().memory("64MiB").background(false);
    let on_device = Options::new().memory("16MiB").background(false).segment_bytes(1 << 20).space_amplification(1.1);
    let stores: [(&str, Result<Pages>, usize); 4] = [
        ("full", in_memory().in_memory(), 16_400),
        ("long", in_memory().space_amplification(1.1).in_memory(), 16_400),
        ("in pieces", in_memory().space_amplification(1.1).in_memory(), 13_200),
        ("on a device", on_device.open_in(Arc::new(MemoryStorage::new())), 16_400),
    ];
    for (name, store, bytes) in stores {
        let store = store.unwrap();
        let most = if name == "full" { u64::MAX } else { 2500 };
        _ = (0..most).find(|key| store.put(key, &vec![1; bytes]).is_err());
        store.compact().unwrap();
        assert!(!store.engine_for_test().is_compaction_due(), "{name}: {:?}", store.stats().space);
    }
}

/// A place where reads of some blocks, but no more than are read for doubts, fail for this thread; and how many did.
struct Gapped(MemoryStorage, AtomicU64, ThreadId);

impl Storage for Gapped {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        self.0.open(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        while let Some(mut read) = source.next() {
            // What is read ahead has a thread of its own.
            let is_run = (2..=16).contains(&(read.bytes().len() / SECTOR_BYTES)) && thread::current().id() == self.2;
            let result = if is_run { Err(io::ErrorKind::UnexpectedEof.into()) } else { device.read(read.offset(), read.bytes_mut()) };
            self.1.fetch_add(u64::from(is_run), Relaxed);
            source.done(read, result);
        }
    }
}

/// Neighbours are read together with what lies between them, which nobody may ever have written.
#[test]
fn doubts_whose_gaps_cannot_be_read_are_settled_one_by_one() {
    const COUNT: u64 = 200_000;
    let files = Arc::new(Gapped(MemoryStorage::default(), AtomicU64::default(), thread::current().id()));
    let options = Options::new().memory(16 << 20).background(false).promotion(false);
    let store: Store<u64, [u8]> = options.open_in(files.clone()).unwrap();
    let value = |key: u64, round: u64| [key + round; 12].map(u64::to_le_bytes).concat();
    for round in 0..2 {
        (0..COUNT).filter(|key| round == 0 || key.is_multiple_of(5)).for_each(|key| store.put(&key, &value(key, round)).unwrap());
    }
    (COUNT..2 * COUNT).for_each(|key| store.put(&key, &value(key, 0)).unwrap());
    store.compact().unwrap();
    assert!(files.1.load(Relaxed) > 0, "nothing was read together");
    let is_right = |key: u64| store.get(&key).unwrap().unwrap() == value(key, u64::from(key < COUNT && key.is_multiple_of(5)));
    assert_eq!((0..2 * COUNT).find(|key| !is_right(*key)), None);
    // What was dead is gone, but for the ends of blocks.
    assert!(store.stats().space.dead_bytes < COUNT, "{:?}", store.stats().space);
}

/// A key that shares the entry gets a new record at each read that settles a doubt: the doubt came back each time, a level deeper on the
/// stack.
#[test]
fn a_doubt_is_settled_while_the_entry_leads_elsewhere_all_the_time() {
    const READS_MAX: u64 = 2000;
    let (hot, reads) = (Arc::new(Mutex::new(None::<(Store<u64, [u8]>, u64)>)), Arc::new(AtomicU64::new(0)));
    let hearer = {
        let (hot, reads) = (hot.clone(), reads.clone());
        move |_: &str, call| {
            let hot = hot.lock().unwrap().clone().filter(|_| call == Call::Read);
            if let Some((store, key)) = hot
                && reads.fetch_add(1, Relaxed) < READS_MAX
            {
                store.put(&key, b"again").unwrap();
            }
            Ok(())
        }
    };
    let files = Arc::new(Minded::new(Arc::new(MemoryStorage::new()), hearer));
    let options = Options::new().memory(16 << 20).background(false).promotion(false).history(true);
    let store: Store<u64, [u8]> = options.open_in(files).unwrap();
    let mut alike: HashMap<u64, Vec<u64>> = HashMap::new();
    let told_by = |key: u64| store.engine_for_test().hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
    let keys = (FILLERS..).find_map(|key| {
        let keys = alike.entry(told_by(key)).or_default();
        keys.push(key);
        (keys.len() == 3).then(|| keys.clone())
    });
    let [old, cold, first] = keys.unwrap()[..] else { unreachable!("three") };
    store.put(&old, b"old").unwrap();
    store.put(&cold, b"cold").unwrap();
    (0..FILLERS).for_each(|key| store.put(&key, &FILLER).unwrap());
    store.put(&first, b"first").unwrap();
    *hot.lock().unwrap() = Some((store.clone(), first));
    assert!(store.compact_stretch().unwrap());
    assert!((2..100).contains(&reads.load(Relaxed)), "{} reads", reads.load(Relaxed));
    assert_eq!(store.get(&old).unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(store.get(&cold).unwrap().as_deref(), Some(&b"cold"[..]));
    assert_eq!(store.get(&first).unwrap().as_deref(), Some(&b"again"[..]));
    // The files hold the store, which holds the files: they would never be freed.
    *hot.lock().unwrap() = None;
}

/// A long value that a sample meets stands for many. What it had counted too much stayed when all had gone that had expired, and what lived
/// was copied again and again.
#[test]
fn what_has_expired_is_gone_when_all_of_the_log_was_compacted() {
    let clock = Arc::new(ManualClock::new(std::time::UNIX_EPOCH));
    let options = Options::new().memory("64MiB").background(false).clock(clock.clone());
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    (0..30_000u64).for_each(|n| store.put(&n, &[7; 200]).unwrap());
    (0..30u64).for_each(|n| store.put_with_ttl(&(1 << 40 | n), &vec![7; 1 << 20], Duration::from_secs(1)).unwrap());
    clock.advance(Duration::from_secs(10));
    let expiry = &store.engine_for_test().expiry;
    expiry.believe_for_test(300 << 20);
    assert_eq!(expiry.expired_bytes(), 300 << 20);
    store.compact().unwrap();
    let stats = store.stats();
    assert_eq!((stats.expiry.dropped_records, stats.expiry.expired_bytes), (30, 0));
    assert!(stats.space.live_bytes >= 30_000 * 200, "{:?}", stats.space);
}

/// Files that a line had given up already stayed where the medium was full, and nothing could be written for want of their room.
#[test]
fn a_full_medium_gets_the_files_back_that_a_line_has_given_up() {
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("16MiB").segment_bytes(1 << 20).background(false);
    let store: Store<u64, [u8]> = options.open_in(files.clone()).unwrap();
    let engine = store.engine_for_test();
    for round in 0..4u8 {
        (0..20_000u64).for_each(|key| store.put(&key, &[round; 1000]).unwrap());
    }
    let wait_for_a_line = || {
        while engine.freeable_bytes() == 0 {
            assert!(engine.compact_if_due().unwrap(), "nothing waits for a line");
        }
        store.commit().unwrap();
        assert!(engine.is_told());
    };
    wait_for_a_line();
    let segments = || files.list().unwrap().iter().filter(|name| name.starts_with("esker.log")).count();
    let before = segments();
    engine.latch_for_now(io::Error::from(io::ErrorKind::StorageFull).into());
    assert!(engine.check_writable().is_err());
    engine.compact_if_due().unwrap();
    assert!(segments() < before, "{before} files");
    engine.go_on().unwrap();
    store.put(&0, &[9; 1000]).unwrap();
    // Nothing is removed where the store has failed for good.
    wait_for_a_line();
    let before = segments();
    engine.latch(io::Error::from(io::ErrorKind::BrokenPipe));
    engine.compact_if_due().unwrap();
    assert_eq!(segments(), before);
}

/// That the process has no more files open says nothing about the medium: what it cannot read is not dropped unheard.
#[test]
fn a_cache_drops_nothing_for_want_of_files() {
    let (refuses, heard) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (left, told) = (refuses.clone(), heard.clone());
    let files = Minded::new(Arc::new(MemoryStorage::new()), move |name, call| {
        let is_refused = call == Call::Read && name.starts_with("esker.log") && left.load(SeqCst) > 0;
        if is_refused { Err(io::Error::from_raw_os_error(libc::EMFILE)) } else { Ok(()) }
    });
    let cache = Cache::new().disk(64 << 20).on_eviction(move |_, _, _| _ = told.fetch_add(1, SeqCst));
    // By some seeds thousands of these keys share their entries.
    let seed = Crowding { hash_seed: [1, 2], index_bytes: u64::MAX };
    let options = Options::new().memory("16MiB").cache(cache).background(false).crowding(seed);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(files)).unwrap();
    let mut refused = 0;
    for key in 0..200_000u64 {
        refuses.store(key / 10_000 % 2, SeqCst);
        refused += u64::from(store.put(&key, &[7; 1000]).is_err());
    }
    refuses.store(0, SeqCst);
    let there = (0..200_000u64).filter(|key| store.contains(key).unwrap()).count() as u64;
    assert!(refused > 0 && there > 0);
    // Where keys share an entry the listener hears of one of them.
    let unheard = 200_000 - there - heard.load(SeqCst) - refused;
    assert!(unheard < 1_000, "{unheard} of {refused} refused and {there} there");
}

/// Entries of deletions once went as the mover came to them: had the stretch ended early then, another key's chain could have led to what
/// they had deleted.
#[test]
fn a_stretch_that_ends_early_leaves_deletions_their_entries() {
    const COUNT: u64 = 10_000;
    let files = Arc::new(MemoryStorage::default());
    let options = Options::new().memory(16 << 20).background(false).promotion(false);
    let store: Store<u64, u64> = options.open_in(files.clone()).unwrap();
    let engine = store.engine_for_test();
    (0..COUNT).for_each(|key| store.put(&key, &key).unwrap());
    (0..COUNT).step_by(2).for_each(|key| assert!(store.delete(&key).unwrap()));
    (COUNT..2 * COUNT).for_each(|key| store.put(&key, &key).unwrap());
    store.commit().unwrap();
    // Behind the deletions, and in the midst of what lives.
    let device = engine.log.device.as_ref().unwrap();
    let damaged = (COUNT * 24 * 2 / BLOCK_BYTES) * SECTOR_BYTES as u64;
    let mut sector = AlignedBuffer::new(1);
    device.read(damaged, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[100] ^= 1;
    device.write(damaged, sector.bytes()).unwrap();
    let before = store.stats().space.moved_bytes;
    assert!(matches!(store.compact(), Err(Error::Corruption(_))));
    assert!(store.stats().space.moved_bytes > before, "nothing was gone through");
    let is_told = |key: u64| engine.index.lookup(engine.hash_of(&key.to_le_bytes())).entry != 0;
    assert!((0..COUNT).all(is_told));
    assert!((0..COUNT).all(|key| store.contains(&key).unwrap() == (key % 2 == 1)));
}

/// A snapshot that began in the midst of a stretch had what it dropped, though others had seen by then that it was gone.
#[test]
fn a_cache_drops_nothing_from_the_midst_of_a_chain_beside_a_snapshot() {
    let (begin, begun) = mpsc::channel();
    let begin = Mutex::new(Some(begin));
    let cell = Arc::new(OnceLock::<Store<u64, [u8]>>::new());
    // Not the store itself, which has the closure.
    let within = Arc::downgrade(&cell);
    let cache = Cache::new().worth(move |_, _| {
        let cell = within.upgrade().unwrap();
        let engine = cell.get().unwrap().engine_for_test();
        if let Some(begin) = begin.lock().unwrap().take() {
            begin.send(()).unwrap();
            while !engine.is_snapshot_held() {
                thread::yield_now();
            }
        }
        1.0
    });
    let store = cell.get_or_init(|| Options::new().memory("16MiB").background(false).cache(cache).in_memory().unwrap());
    let engine = store.engine_for_test();
    let mut known = HashMap::new();
    let told_by = |key: u64| engine.hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
    let (one, other) = (FILLERS..1_000_000).find_map(|key| known.insert(told_by(key), key).map(|first| (first, key))).unwrap();
    store.put(&one, b"one").unwrap();
    store.put(&other, b"other").unwrap();
    (0..FILLERS).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
    let (end, ended) = mpsc::channel::<()>();
    let (there, is_there) = mpsc::channel();
    thread::scope(|scope| {
        let seen = scope.spawn(move || {
            begun.recv().unwrap();
            let tx = store.begin_read().unwrap();
            there.send(()).unwrap();
            let _ = ended.recv();
            tx.get(&one).unwrap().is_some()
        });
        assert!(!engine.try_move_stretch(engine.caching.as_ref().unwrap(), || true).unwrap());
        is_there.recv().unwrap();
        let is_known = store.contains(&one).unwrap();
        end.send(()).unwrap();
        assert_eq!((is_known, seen.join().unwrap()), (true, true));
    });
    // When there is none the stretch goes.
    assert_eq!(engine.log.bounds.copied.load(SeqCst), engine.log.bounds.begin.load(SeqCst));
    assert!(engine.try_move_stretch(engine.caching.as_ref().unwrap(), || true).unwrap());
    assert_eq!(engine.log.bounds.copied.load(SeqCst), engine.log.bounds.begin.load(SeqCst));
    assert!(engine.log.bounds.begin.load(SeqCst) > 1000);
}

/// The listener was told of what had expired as compaction came to it, and told again where the stretch ended early.
#[test]
fn a_listener_hears_once_of_what_expired_in_a_stretch_that_ended_early() {
    [false, true].into_iter().for_each(hears_once_of_what_expired);
}

/// The entry is another key's, too, and goes with that one, or stays because the stretch ends before.
fn hears_once_of_what_expired(ends_before: bool) {
    let (clock, told) = (Arc::new(ManualClock::default()), Arc::new(Mutex::new(Vec::new())));
    let (hear, cell) = (told.clone(), Arc::new(OnceLock::<Store<u64, [u8]>>::new()));
    let (within, snapshot) = (Arc::downgrade(&cell), Arc::new(Mutex::new(None)));
    let (begun, has_begun) = (snapshot.clone(), AtomicU64::new(0));
    let cache = Cache::new().on_eviction(move |key, _, _| hear.lock().unwrap().push(key.to_vec())).worth(move |_, _| {
        if has_begun.fetch_add(1, SeqCst) == 0 {
            let cell = within.upgrade().unwrap();
            let engine = cell.get().unwrap().engine_for_test().clone();
            let begins = engine.clone();
            *begun.lock().unwrap() = Some(thread::spawn(move || begins.snapshot().unwrap()));
            while !engine.is_snapshot_held() {
                thread::yield_now();
            }
        }
        1.0
    });
    let options = Options::new().memory("16MiB").background(false).clock(clock.clone()).cache(cache);
    let store = cell.get_or_init(|| options.in_memory().unwrap());
    let engine = store.engine_for_test();
    let mut known = HashMap::new();
    let told_by = |key: u64| engine.hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
    let (one, other) = (FILLERS..1_000_000).find_map(|key| known.insert(told_by(key), key).map(|first| (first, key))).unwrap();
    store.put_with_ttl(&one, b"one", Duration::from_secs(1)).unwrap();
    if ends_before {
        store.put(&0, &[7; 1000]).unwrap();
    }
    store.put(&other, b"other").unwrap();
    (0..FILLERS).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
    clock.advance(Duration::from_secs(2));
    let caching = engine.caching.as_ref().unwrap();
    let heard = || {
        caching.tell();
        told.lock().unwrap().iter().filter(|key| ***key == one.to_le_bytes()).count()
    };
    assert!(!engine.try_move_stretch(caching, || true).unwrap());
    drop(snapshot.lock().unwrap().take().unwrap().join().unwrap());
    let before = heard();
    assert!(engine.try_move_stretch(caching, || true).unwrap());
    assert_eq!((before, heard()), if ends_before { (0, 1) } else { (1, 1) });
    assert_eq!(store.stats().cache.unwrap().expired, 1);
}

/// Each time a stretch ended early what had expired in it was counted as dead once more: all of a log was dead, by and by.
#[test]
fn a_stretch_that_ends_early_counts_nothing_twice() {
    const COUNT: u64 = 10_000;
    let (files, clock) = (Arc::new(MemoryStorage::default()), Arc::new(ManualClock::default()));
    let options = Options::new().memory(16 << 20).background(false).promotion(false).clock(clock.clone());
    let store: Store<u64, u64> = options.open_in(files.clone()).unwrap();
    (0..COUNT).for_each(|key| store.put_with_ttl(&key, &key, Duration::from_secs(1)).unwrap());
    (COUNT..10 * COUNT).for_each(|key| store.put(&key, &key).unwrap());
    store.commit().unwrap();
    clock.advance(Duration::from_secs(2));
    let device = store.engine_for_test().log.device.as_ref().unwrap();
    let (damaged, mut sector) = (COUNT * 32 * 2 / BLOCK_BYTES * SECTOR_BYTES as u64, AlignedBuffer::new(1));
    device.read(damaged, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[100] ^= 1;
    device.write(damaged, sector.bytes()).unwrap();
    let compact = || {
        assert!(matches!(store.compact(), Err(Error::Corruption(_))));
        let stats = store.stats();
        (stats.space.dead_bytes, stats.expiry.dropped_records)
    };
    let first = compact();
    assert!(first.0 > 0 && first.1 == 0, "{first:?}");
    assert!((0..3).all(|_| compact() == first));
    // When it can be read it goes, and is counted.
    sector.bytes_mut()[100] ^= 1;
    device.write(damaged, sector.bytes()).unwrap();
    store.compact().unwrap();
    assert_eq!(store.stats().expiry.dropped_records, COUNT);
}

/// Puts keys and deletes them again, and compacts what is due, as a driver would that keeps up; the most entries.
fn come_and_go(store: &Store<u64, u64>, keys: std::ops::Range<u64>) -> u64 {
    const AT_ONCE: u64 = 1000;
    let keys = keys.step_by(AT_ONCE as usize).map(|from| {
        let pairs: Vec<(u64, u64)> = (from..from + AT_ONCE).map(|key| (key, key)).collect();
        store.put_many(&pairs).unwrap();
        assert_eq!(store.delete_many(&pairs.iter().map(|(key, _)| *key).collect::<Vec<_>>()).unwrap(), pairs.len());
        while store.engine_for_test().compact_if_due().unwrap() {}
        store.stats().index.entries
    });
    keys.max().unwrap_or(0)
}

fn deletions(segment_bytes: u64) -> (Arc<MemoryStorage>, Options) {
    (Arc::new(MemoryStorage::default()), Options::new().memory(64 << 20).background(false).promotion(false).segment_bytes(segment_bytes))
}

/// They wait for a line, and where files are long none is due for long.
#[test]
fn entries_of_deletions_do_not_pile_up_behind_long_files() {
    let (files, options) = deletions(1 << 30);
    let most = come_and_go(&options.open_in(files).unwrap(), 0..8_000_000);
    assert!(most < 3_000_000, "{most} entries");
}

/// They came back with the image, nobody knew of them, and so no sweep came for them.
#[test]
fn entries_of_deletions_do_not_come_back_with_an_image() {
    // No line is due for so few.
    const COUNT: u64 = 30_000;
    let (files, options) = deletions(1 << 30);
    let store: Store<u64, u64> = options.clone().open_in(files.clone()).unwrap();
    (0..COUNT).for_each(|key| store.put(&key, &key).unwrap());
    (0..COUNT).for_each(|key| assert!(store.delete(&key).unwrap()));
    store.put(&1, &2).unwrap();
    let engine = store.engine_for_test();
    while engine.log.bounds.compacted.load(Relaxed) < COUNT * 40 {
        assert!(engine.compact_once().unwrap());
    }
    let left = store.stats().index.entries;
    assert!(left > COUNT / 2, "{left} entries");
    store.close().unwrap();
    let store: Store<u64, u64> = options.open_in(files).unwrap();
    let (there, begin) = (store.stats().index.entries, store.engine_for_test().log.bounds.begin.load(Relaxed));
    assert!(begin > COUNT * 40 && there < left / 4, "{left} entries, then {there}, of a log from {begin} on");
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap()), (Some(2), None));
}

/// A key that is put again takes its deletion's entry, and that one was counted as one that leads nowhere for ever after: of a sweep that
/// found nothing the next one began anew.
#[test]
fn what_was_swept_holds_no_idle_entries() {
    let (files, options) = deletions(4 << 20);
    let store: Store<u64, u64> = options.open_in(files).unwrap();
    let engine = store.engine_for_test();
    (0..100_000).for_each(|key| store.put(&key, &key).unwrap());
    (0..100_000).for_each(|key| assert!(store.delete(&key).unwrap()));
    (0..100_000).for_each(|key| store.put(&key, &key).unwrap());
    let (buckets, entries) = (engine.index.buckets(), store.stats().index.entries);
    engine.compaction.idle.store(100_000, Relaxed);
    let one = engine.hold_compaction();
    engine.sweep(&one, buckets / 4, || false);
    let rest = engine.compaction.idle.load(Relaxed);
    assert!((70_000..80_000).contains(&rest), "{rest}");
    engine.sweep(&one, buckets, || false);
    assert_eq!((engine.compaction.idle.load(Relaxed), engine.compaction.swept.load(Relaxed)), (0, buckets / 4));
    assert_eq!(store.stats().index.entries, entries);
}

/// It had been counted when it was deleted, and was counted again when its end passed; words at once.
#[test]
fn what_was_deleted_before_its_end_is_dead_once() {
    fn check<V: Value + ?Sized>(value: &V) {
        const COUNT: u64 = 20_000;
        let clock = Arc::new(ManualClock::default());
        let store: Store<u64, V> = Options::new().memory(16 << 20).background(false).clock(clock.clone()).in_memory().unwrap();
        let ends = |key: u64| Duration::from_secs(if key.is_multiple_of(2) { 10 } else { 1000 });
        (0..COUNT).for_each(|key| store.put_with_ttl(&key, value, ends(key)).unwrap());
        (0..COUNT).step_by(2).for_each(|key| assert!(store.delete(&key).unwrap()));
        clock.advance(Duration::from_secs(20));
        let engine = store.engine_for_test();
        (0..50).for_each(|_| engine.sample_expired(500));
        let space = store.stats().space;
        let dead = space.dead_bytes as f64 / space.log_bytes as f64;
        assert!((0.4..0.6).contains(&dead), "{space:?}");
        // What does end is found.
        clock.advance(Duration::from_secs(2000));
        (0..50).for_each(|_| engine.sample_expired(500));
        let space = store.stats().space;
        assert!(space.dead_bytes as f64 > 0.8 * space.log_bytes as f64, "{space:?}");
    }
    check::<u64>(&7);
    check::<[u8]>(&[7; 20]);
}

/// Where several keys share an index entry, what is behind the newest of them counts as well: only the newest did, so that all could have
/// ended, and a third of it was thought to be dead.
#[test]
fn what_has_ended_behind_shared_entries_is_dead_as_well() {
    let clock = Arc::new(ManualClock::default());
    let options = Options::new().memory("16MiB").clock(clock.clone()).background(false);
    let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..2_500_000).for_each(|n| store.put_with_ttl(&n, &n, Duration::from_secs(1)).unwrap());
    let (engine, entries) = (store.engine_for_test(), store.stats().index.entries);
    assert!(entries < 1_250_000, "{entries} entries");
    (0..20).for_each(|_| engine.sample_expired(500));
    assert_eq!(engine.expiry.expired_bytes(), 0);
    clock.advance(Duration::from_secs(1));
    (0..50).for_each(|_| engine.sample_expired(500));
    let (expired, all) = (engine.expiry.expired_bytes(), engine.log_extent() - engine.superseded_bytes());
    assert!(expired > all / 10 * 9, "{expired} bytes of {all}");
}

/// What was superseded before it ended was counted then.
#[test]
fn what_was_superseded_before_its_end_is_dead_once_behind_shared_entries() {
    const COUNT: u64 = 1_500_000;
    let clock = Arc::new(ManualClock::default());
    let options = Options::new().memory("16MiB").clock(clock.clone()).background(false);
    let store: Store<u64, u64> = options.open_on(Arc::new(MemoryDevice::new())).unwrap();
    for ttl in [1, 1000] {
        (0..COUNT).for_each(|n| store.put_with_ttl(&n, &n, Duration::from_secs(ttl)).unwrap());
    }
    let engine = store.engine_for_test();
    assert!(store.stats().index.entries < COUNT / 10 * 9 && engine.index.is_shared());
    clock.advance(Duration::from_secs(2));
    (0..50).for_each(|_| engine.sample_expired(500));
    let (expired, all) = (engine.expiry.expired_bytes(), engine.log_extent() - engine.superseded_bytes());
    assert!(expired < all / 10, "{expired} bytes of {all}");
}

/// Each pass once left fewer dead bytes than there were: guesses that were right were taken back, because another key's record lived behind
/// the one that heads the chain.
#[test]
fn what_dies_behind_shared_entries_stays_counted() {
    const COUNT: u64 = 40_000;
    let crowding = Crowding { hash_seed: [5, 7], index_bytes: 128 << 10 };
    let options = Options::new().memory("16MiB").background(false).promotion(false).segment_bytes("1MiB").crowding(crowding);
    let store: Store<u64, [u8; 480]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let engine = store.engine_for_test();
    (0..COUNT).for_each(|n| store.put(&n, &[0; 480]).unwrap());
    assert!(engine.index.is_shared() && store.stats().index.entries < COUNT / 2);
    let live = COUNT * bytes_record_bytes(8, 480);
    let mut random = 1u64;
    for round in 0..8 * COUNT {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        store.put(&((random >> 33) % COUNT), &[1; 480]).unwrap();
        if round % 2_000 == 0 {
            while engine.compact_if_due().unwrap() {}
            let (all, counted) = (engine.log_extent(), engine.superseded_bytes());
            assert!(all - live < counted + (1 << 20) && all < 2 * live + (4 << 20), "round {round}: {counted} of {all}");
        }
    }
}

/// Of each guess that was wrong as much was taken back as a record of the stretch had in the mean, which one long value makes a thousand
/// times what was counted: nothing that died later was seen any more.
#[test]
fn what_is_taken_back_of_a_guess_is_what_was_counted() {
    const COUNT: u64 = 20_000;
    let options = Options::new().memory("16MiB").background(false).promotion(false).segment_bytes("1MiB");
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    let engine = store.engine_for_test();
    store.put(&u64::MAX, &vec![1; 3 << 20]).unwrap();
    (0..COUNT).for_each(|n| {
        store.put(&n, &[1; 8]).unwrap();
        store.delete(&n).unwrap();
    });
    (0..400).for_each(|n| store.put(&(COUNT + n), &FILLER).unwrap());
    // Over deletions on the device.
    (0..COUNT).for_each(|n| store.put(&n, &[2; 8]).unwrap());
    let guessed = engine.epochs.counted(Counter::GuessedByte);
    assert!(guessed > COUNT / 2 * bytes_record_bytes(8, 8), "{guessed}");
    assert!(engine.compact_once().unwrap() && store.stats().space.moved_bytes > 3 << 20);
    for round in [3, 4] {
        (0..400).for_each(|n| drop(store.rmw(&(COUNT + n), |_| vec![round; FILLER.len()]).unwrap()));
    }
    let dead = store.stats().space.dead_bytes;
    assert!(dead > 40 << 20, "{dead} bytes");
    assert!((0..COUNT).all(|n| store.get(&n).unwrap().is_some_and(|value| value == [2; 8])));
}

/// Whatever its space target a store with a history gave back what was superseded as a whole.
#[test]
fn versions_stay_as_long_as_the_space_target_says() {
    let options = Options::new().memory("16MiB").background(false).segment_bytes("1MiB").history(true).space_amplification(1000.0);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
    for round in 0..4 {
        (0..40_000).for_each(|n| store.put(&n, &[round; 1000]).unwrap());
        while store.engine_for_test().compact_if_due().unwrap() {}
    }
    assert!([0, 20_000, 39_999].iter().all(|n| store.history(n, 9).unwrap().len() == 4));
}

/// The line that would give a stretch back failed: that was told of compaction for good.
#[test]
fn a_failure_to_write_is_told_as_long_as_it_lasts() {
    let is_full = Arc::new(AtomicBool::new(false));
    let asked = is_full.clone();
    let files = Minded::new(Arc::new(MemoryStorage::new()), move |name, call| {
        let fails = asked.load(SeqCst) && name.starts_with("esker.log") && matches!(call, Call::Write { .. });
        if fails { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    });
    let options = Options::new().memory("16MiB").background(false).segment_bytes("1MiB");
    let store: Store<u64, [u8; 1000]> = options.open_in(Arc::new(files)).unwrap();
    for round in 0..4 {
        (0..10_000).for_each(|n| store.put(&n, &[round; 1000]).unwrap());
    }
    is_full.store(true, SeqCst);
    let failed = (0..1000).find_map(|_| store.compact_stretch().err()).unwrap();
    assert!(matches!(&failed, Error::Io(_)) && store.stats().latched.is_some(), "{failed}");
    is_full.store(false, SeqCst);
    store.commit().unwrap();
    let stats = store.stats();
    assert!(stats.latched.is_none() && stats.warnings.is_empty(), "{:?}", stats.warnings);
}

/// A store in memory with places that deletions have left, ripe.
fn with_holes(holes: u64) -> Store<u64, [u8; 100]> {
    let store: Store<u64, [u8; 100]> = Options::new().memory("32MiB").background(false).in_memory().unwrap();
    (0..40_000).for_each(|n| store.put(&n, &[1; 100]).unwrap());
    let engine = store.engine_for_test();
    engine.log.holes.want(true);
    // What a thread has left in the end is not known to all.
    (0..holes + 31).for_each(|n| assert!(store.delete(&n).unwrap()));
    engine.ripen_holes();
    store
}

/// What was dead when a pass began, and lives again, counted as given back: as much that died later was not seen.
#[test]
fn holes_that_were_filled_during_a_pass_are_not_given_back() {
    let store = with_holes(3_000);
    let engine = store.engine_for_test();
    engine.begin_pass();
    (50_000..53_000).for_each(|n| store.put(&n, &[2; 100]).unwrap());
    // Few keys share an entry with another.
    let (filled, bytes) = (engine.epochs.counted(Counter::FilledByte), 3_000 * bytes_record_bytes(8, 100));
    assert!(filled > bytes / 100 * 99);
    engine.log.holes.want(false);
    (10_000..13_000).for_each(|n| assert!(store.delete(&n).unwrap()));
    engine.note_stretch(Copied { reached: engine.log.tail(), ..Copied::default() });
    assert!(engine.superseded_bytes() >= filled, "{} of {filled} bytes", engine.superseded_bytes());
}

#[test]
fn what_transactions_delete_leaves_places_too() {
    fn check<V: Value + ?Sized>(value: &V, bytes: u64) {
        let store: Store<u64, V> = Options::new().memory("32MiB").background(false).in_memory().unwrap();
        (0..40_000).for_each(|n| store.put(&n, value).unwrap());
        let engine = store.engine_for_test();
        engine.log.holes.want(true);
        for first in (0..3_100).step_by(31) {
            store.transaction(|tx| (first..first + 31).try_for_each(|n| tx.delete(&n).map(drop))).unwrap();
        }
        engine.ripen_holes();
        (50_000..53_000).for_each(|n| store.put(&n, value).unwrap());
        // But for keys whose buckets are full.
        let filled = engine.epochs.counted(Counter::FilledByte);
        assert!(filled > 2_500 * bytes, "{filled} bytes, of records of {bytes}");
        assert!((0..3_100).all(|n| store.get(&n).unwrap().is_none()) && (50_000..53_000).all(|n| store.contains(&n).unwrap()));
    }
    check::<u64>(&1, word_record_bytes(8));
    check::<[u8]>(&[1; 100], bytes_record_bytes(8, 100));
}

/// Nobody asked for such places any more, and nobody left one: those that compaction had passed kept others from being left.
#[test]
fn holes_that_were_frozen_are_let_go_though_none_rest() {
    let store = with_holes(3_000);
    let engine = store.engine_for_test();
    assert!(engine.log.holes.bytes_for_test() >= 3_000 * bytes_record_bytes(8, 100));
    store.compact().unwrap();
    engine.ripen_holes();
    assert_eq!((engine.log.holes.bytes_for_test(), engine.log.are_holes_resting()), (0, false));
    assert!((20_000..40_000).all(|n| store.get(&n).unwrap() == Some([1; 100])));
}

/// Who came to it while another waited for those who may know the places believed that there were none.
#[test]
fn holes_rest_until_who_took_them_has_made_them_ripe() {
    let store = with_holes(0);
    let log = &store.engine_for_test().log;
    (100..131).for_each(|n| assert!(store.delete(&n).unwrap()));
    log.ripen_holes(|| {
        log.ripen_holes(|| unreachable!("there are no others"));
        assert!(log.are_holes_resting());
    });
    assert!(!log.are_holes_resting());
}

/// What was said of it while chains were being joined was forgotten when that failed.
#[test]
fn no_place_is_left_where_a_split_could_not_tell_while_chains_were_joined() {
    let store = with_holes(0);
    let log = &store.engine_for_test().log;
    let before = log.holes.keep_below(u64::MAX);
    assert!(!log.wants_hole(64, 0));
    log.holes.note_twins(1, || log.tail());
    log.holes.keep_below(before);
    assert!(!log.wants_hole(64, 0) && !log.wants_hole(64, 1));
    store.compact().unwrap();
    log.holes.want(true);
    assert!(log.wants_hole(64, 1));
}

/// Who made room for another looked whether he himself had sought a place: a store whose places were ripe was compacted, or full.
#[test]
fn whoever_makes_room_for_one_who_sought_a_hole_finds_it() {
    let store: Store<u64, [u8; 100]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let count = (0..).find(|n| store.put(n, &[1; 100]).is_err()).unwrap();
    let engine = store.engine_for_test();
    engine.log.holes.want(true);
    (0..62).for_each(|n| assert!(store.delete(&n).unwrap()));
    engine.ripen_holes();
    let (bytes, stretches) = (bytes_record_bytes(8, 100), store.stats().space.stretches);
    thread::scope(|scope| scope.spawn(|| engine.make_room_for(bytes, true).unwrap()).join().unwrap());
    let is_full = thread::scope(|scope| scope.spawn(|| engine.make_room_for(bytes, false)).join().unwrap());
    assert!(matches!(is_full, Err(Error::Full)), "{is_full:?}");
    assert_eq!(store.stats().space.stretches, stretches);
    // What would have to share an entry fills none.
    let has_entry = |n: &u64| matches!(engine.index.probe(engine.hash_of(&n.to_le_bytes())).search(), Looked::Free(_));
    (count..).filter(has_entry).take(30).for_each(|n| store.put(&n, &[2; 100]).unwrap());
}

/// It told them of what its own thread had in hand, perhaps since an earlier thread had its number: an asynchronous call came back for ever.
#[test]
fn who_makes_room_for_another_tells_of_no_hole_that_it_has_in_hand() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let count = (0..).find(|n| store.put(n, n).is_err()).unwrap();
    let (engine, bytes) = (store.engine_for_test(), word_record_bytes(8));
    engine.log.holes.want(true);
    (0..31).for_each(|n| assert!(store.delete(&n).unwrap()));
    engine.ripen_holes();
    let (tell, told) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let helper = scope.spawn(|| {
            // It takes several from the shelf, and needs one.
            store.put(&count, &1).unwrap();
            tell.wait();
            told.wait();
            engine.make_room_for(bytes, true)
        });
        tell.wait();
        // Some keys may have to share an entry, and fill none.
        for key in (count + 1..count + 200).take_while(|_| engine.log.has_hole_on_shelf(bytes)) {
            let _ = store.put(&key, &1);
        }
        assert!(!engine.log.has_hole_on_shelf(bytes));
        told.wait();
        let made = helper.join().unwrap();
        assert!(matches!(made, Err(Error::Full)), "{made:?}");
    });
}
