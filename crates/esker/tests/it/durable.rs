//! What a commit promises, with threads at work: copies of the files, taken at any moment after a commit returned, open as
//! an exact cut. Each thread's part of it is a prefix of what that thread did, and holds all that had returned when the
//! commit was asked for.

use crate::minded::{Call, Minded};
use crate::raise::Raise;
use esker::{Durability, Error, MemoryDevice, MemoryStorage, Options, Storage, Store, Warning};
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEYS: u64 = 8;
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// What operation `i` of a thread makes of its key `i % KEYS`: a value, or nothing.
fn outcome(i: u64) -> Option<u64> {
    (i % 7 != 3).then_some(i)
}

fn key(thread: u64, i: u64) -> u64 {
    (thread << 32) | (i % KEYS)
}

/// Operation `i` of a thread, by another kind of call each time.
fn operate(store: &Store<u64, u64>, thread: u64, i: u64) {
    let key = key(thread, i);
    match outcome(i) {
        None => assert!(store.delete(&key).is_ok()),
        Some(value) if i.is_multiple_of(3) => assert_eq!(store.rmw(&key, |_| value).unwrap(), value),
        Some(value) if i.is_multiple_of(5) => store.put_many(&[(key, value)]).unwrap(),
        Some(value) => store.put(&key, &value).unwrap(),
    }
}

/// The number of operations after which a thread's keys look as they do; none if there is no such number.
fn prefix(store: &Store<u64, u64>, thread: u64, most: u64) -> Option<u64> {
    let seen: Vec<Option<u64>> = (0..KEYS).map(|j| store.get(&key(thread, j)).unwrap()).collect();
    let newest = seen.iter().flatten().max().copied().unwrap_or(0);
    let fits = |done: u64| {
        (0..KEYS).all(|j| {
            let last = (0..done).rev().take(KEYS as usize).find(|i| i % KEYS == j);
            seen[j as usize] == last.and_then(outcome)
        })
    };
    // A delete leaves no number behind: up to two operations beyond the newest one seen.
    (newest..=(newest + 4).min(most)).find(|&done| fits(done))
}

/// How lines come about.
#[derive(Clone, Copy, PartialEq)]
enum Lines {
    ByThemselves,
    ByHand,
    /// And with images of the index.
    Images,
}

fn cut_while_threads_work(options: Options, lines: Lines) {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options.clone().open_in(files.clone()).unwrap();
    let done: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for (thread, done) in done.iter().enumerate() {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut i = 0;
                while !stop.load(Relaxed) {
                    operate(store, thread as u64, i);
                    i += 1;
                    done.store(i, Release);
                    if i.is_multiple_of(64) {
                        // Each round reads the whole log again: it must not grow too fast.
                        std::thread::sleep(Duration::from_micros(10));
                    }
                }
            });
        }
        for round in 0..30 {
            std::thread::sleep(Duration::from_millis(round % 5));
            let returned: Vec<u64> = done.iter().map(|done| done.load(Acquire)).collect();
            match lines {
                Lines::ByThemselves => {}
                Lines::Images if round % 2 == 0 => store.save_index().unwrap(),
                Lines::ByHand | Lines::Images => store.commit().unwrap(),
            }
            let copy = Arc::new(files.copy());
            let most: Vec<u64> = done.iter().map(|done| done.load(Acquire) + 1).collect();
            let reopened: Store<u64, u64> = Options::new().memory("16MiB").open_in(copy).unwrap();
            for thread in 0..4 {
                let seen = prefix(&reopened, thread as u64, most[thread]);
                let least = if lines == Lines::ByThemselves { 0 } else { returned[thread] };
                assert!(seen.is_some_and(|seen| seen >= least), "thread {thread} round {round}: {seen:?} of at least {least}");
            }
        }
    });
}

#[test]
fn a_commit_is_an_exact_cut_while_threads_write() {
    cut_while_threads_work(Options::new().memory("16MiB"), Lines::ByHand);
}

#[test]
fn an_image_taken_while_threads_write_leads_to_an_exact_cut() {
    cut_while_threads_work(Options::new().memory("16MiB"), Lines::Images);
}

/// The same with more keys than the index has room for, and with new ones all the time.
#[test]
fn an_image_of_a_shared_index_loses_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(files.clone()).unwrap();
    let (done, stop) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
    let key = |thread: u64, i: u64| (i % 700_000) << 1 | thread;
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for thread in 0..2 {
            let (store, stop, done) = (&store, &stop, &done);
            scope.spawn(move || {
                for i in (0..).take_while(|_| !stop.load(Relaxed)) {
                    store.put(&key(thread, i), &i).unwrap();
                    done[thread as usize].store(i + 1, Release);
                }
            });
        }
        for round in 0..5 {
            // Beyond what the index holds, then over and over.
            while done.iter().any(|done| done.load(Acquire) < 500_000 * (round + 1)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            store.save_index().unwrap();
            std::thread::sleep(Duration::from_millis(3));
            let returned: Vec<u64> = done.iter().map(|done| done.load(Acquire)).collect();
            store.commit().unwrap();
            let reopened: Store<u64, u64> = Options::new().memory("24MiB").open_in(Arc::new(files.copy())).unwrap();
            for thread in 0..2 {
                let returned = returned[thread as usize];
                for i in (returned.saturating_sub(700_000)..returned).step_by(61) {
                    let found = reopened.get(&key(thread, i)).unwrap();
                    assert!(found.is_some_and(|found| found >= i && (found - i) % 700_000 == 0), "{found:?}, not {i} in round {round}");
                }
            }
        }
    });
}

#[test]
fn lines_drawn_by_themselves_are_exact_cuts() {
    cut_while_threads_work(Options::new().memory("16MiB").durability(Durability::Every(Duration::from_millis(2))), Lines::ByThemselves);
}

/// Else a store that never closes in order would have to read all its log when it opens.
#[test]
fn images_come_by_themselves() {
    let files = Arc::new(MemoryStorage::new());
    let images = || files.list().unwrap().into_iter().filter(|name| name.starts_with("index.")).collect::<Vec<_>>();
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_in(files.clone()).unwrap();
    for turn in 0..3 {
        (0..70_000u64).for_each(|n| store.put(&n, &[turn; 1000]).unwrap());
        store.commit().unwrap();
        let begun = Instant::now();
        while images() != [format!("index.{}", turn + 1)] {
            assert!(begun.elapsed() < PATIENCE, "no image: {:?}", images());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let copy: Store<u64, [u8]> = Options::new().memory("16MiB").open_in(Arc::new(files.copy())).unwrap();
    (0..70_000u64).step_by(97).for_each(|n| assert_eq!(copy.get(&n).unwrap(), Some(vec![2; 1000])));
}

#[test]
fn with_always_every_returned_call_is_durable() {
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("16MiB").durability(Durability::Always);
    let store: Store<u64, u64> = options.open_in(files.clone()).unwrap();
    for i in 0..200 {
        operate(&store, 0, i);
        if i % 10 == 9 {
            let reopened: Store<u64, u64> = Options::new().memory("16MiB").open_in(Arc::new(files.copy())).unwrap();
            let last = (0..=i).rev().take(KEYS as usize);
            last.for_each(|i| assert_eq!(reopened.get(&key(0, i)).unwrap(), outcome(i), "operation {i}"));
        }
    }
}

#[test]
fn many_threads_share_lines() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").durability(Durability::Always).open_in(files.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let store = &store;
            scope.spawn(move || (0..50).for_each(|i| assert!(store.rmw(&(i % 5), |old| old.unwrap_or(0) + thread).is_ok())));
        }
    });
    let reopened: Store<u64, u64> = Options::new().memory("16MiB").open_in(Arc::new(files.copy())).unwrap();
    let sum: u64 = (0..5).map(|key| reopened.get(&key).unwrap().unwrap()).sum();
    assert_eq!(sum, 50 * (0..16).sum::<u64>());
}

#[test]
fn a_commit_from_inside_a_closure_is_refused() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_temporary().unwrap();
    let mut refused = false;
    store.put(&1, &1).unwrap();
    store
        .rmw(&1, |old| {
            refused = store.commit().is_err();
            old.unwrap() + 1
        })
        .unwrap();
    assert!(refused && store.commit().is_ok());
}

/// A closure that takes its time began below a line's cut: what it makes of the value must not be written there once the line
/// has flushed the record, for no later line would look at it again.
#[test]
fn a_slow_update_is_in_this_line_or_in_the_next() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(files.clone()).unwrap();
    store.put(&1, &1).unwrap();
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store
                .rmw(&1, |old| {
                    started.store(true, Release);
                    std::thread::sleep(Duration::from_millis(30));
                    old.unwrap() + 1
                })
                .unwrap();
        });
        while !started.load(Acquire) {
            std::thread::yield_now();
        }
        store.commit().unwrap();
    });
    store.commit().unwrap();
    let reopened: Store<u64, u64> = Options::new().memory("16MiB").open_in(Arc::new(files.copy())).unwrap();
    assert_eq!(reopened.get(&1).unwrap(), Some(2));
}

/// Who began to write in place before a line goes on below its cut: one that did not wait for him would flush half a value,
/// and no later line would look at it again.
#[test]
fn a_value_that_is_being_replaced_is_whole_in_a_line() {
    const LENGTH: usize = 256 << 10;
    let files = Arc::new(MemoryStorage::new());
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").open_in(files.clone()).unwrap();
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    store.put(b"key", &[0; LENGTH]).unwrap();
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        scope.spawn(|| {
            // Of one length, so that it takes the old one's place where that is mutable.
            for i in (1..).take_while(|_| !stop.load(Relaxed)) {
                store.put(b"key", &[i as u8; LENGTH]).unwrap();
                done.store(i, Release);
            }
        });
        for round in 0..100 {
            let before = done.load(Acquire);
            while done.load(Acquire) < before + 2 {
                std::thread::yield_now();
            }
            let returned = done.load(Acquire);
            store.commit().unwrap();
            let most = done.load(Acquire) + 1;
            let reopened: Store<[u8], [u8]> = Options::new().memory("16MiB").open_in(Arc::new(files.copy())).unwrap();
            let value = reopened.get(b"key").unwrap().unwrap();
            assert_eq!(value.len(), LENGTH);
            assert!(value.iter().all(|&byte| byte == value[0]), "half a value in round {round}");
            assert!((returned..=most).any(|i| i as u8 == value[0]), "{} in round {round}, {returned} had returned", value[0]);
        }
    });
}

/// Writers that wait for a line when the store closes once waited for ever.
#[test]
fn closing_wakes_those_who_wait_for_a_line() {
    for _ in 0..20 {
        let files = Arc::new(MemoryStorage::new());
        let store: Store<u64, u64> = Options::new().memory("16MiB").durability(Durability::Always).open_in(files).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let store = &store;
                scope.spawn(move || (0..).take_while(|i| store.put(&thread, i).is_ok()).count());
            }
            std::thread::sleep(Duration::from_millis(2));
            store.close().unwrap();
        });
    }
}

#[test]
fn durability_means_nothing_in_memory() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").durability(Durability::Always).in_memory().unwrap();
    store.put(&1, &2).unwrap();
    assert_eq!(store.rmw(&1, |old| old.unwrap() + 1).unwrap(), 3);
    assert!(store.commit().is_err());
}

/// Values of a width of their own were once read as others of the same layout, and the read panicked.
#[test]
fn a_store_of_other_types_is_refused() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<[u8], [u8]> = Options::new().memory("16MiB").open_in(files.clone()).unwrap();
    store.put(b"12345678", b"short").unwrap();
    store.close().unwrap();
    let refused = Options::new().memory("16MiB").open_in::<u64, [u8; 16]>(files).unwrap_err().to_string();
    assert!(refused.contains("value any"), "{refused}");
}

/// What is to happen when the log is synced, the last of the list first.
type Hooks = Arc<Mutex<Vec<Box<dyn FnOnce() + Send>>>>;

/// A line that was cut before compaction made its copies once said that the log begins behind what was copied: a crash before the next
/// line lost it all.
#[test]
fn the_log_does_not_begin_behind_records_whose_copies_are_of_the_next_line() {
    const COUNT: u64 = 60_000;
    let (files, hooks) = (Arc::new(MemoryStorage::new()), Hooks::default());
    // One file, so that a line syncs the log once.
    let options = || Options::new().memory("16MiB").background(false).segment_bytes(64 << 20);
    let run_hook = {
        let hooks = hooks.clone();
        move |name: &str, call| {
            if name.starts_with("esker.log") && call == Call::Sync {
                let hook = hooks.lock().unwrap().pop();
                hook.into_iter().for_each(|hook| hook());
            }
            Ok(())
        }
    };
    let store: Store<u64, u64> = options().open_in(Arc::new(Minded::new(files.clone(), run_hook))).unwrap();
    (0..2 * COUNT).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    // Long enough for the manifest to speak of it.
    (COUNT..2 * COUNT).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    let (copy, compacting) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let compact_meanwhile = {
        let (store, compacting) = (store.clone(), compacting.clone());
        move || {
            let before = store.stats().space.given_back_bytes;
            let mover = store.clone();
            *compacting.lock().unwrap() = Some(std::thread::spawn(move || mover.compact().map(drop)));
            // Until it waits for the line after this one.
            let mut tail = 0;
            while store.stats().log.tail != tail {
                tail = store.stats().log.tail;
                std::thread::sleep(Duration::from_millis(100));
            }
            assert_eq!(store.stats().space.given_back_bytes, before, "it gave something back without a line");
        }
    };
    let copy_files = {
        let (files, copy) = (files.clone(), copy.clone());
        move || *copy.lock().unwrap() = Some(files.copy())
    };
    hooks.lock().unwrap().extend([Box::new(copy_files) as Box<dyn FnOnce() + Send>, Box::new(compact_meanwhile)]);
    store.commit().unwrap();
    compacting.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    assert!(store.stats().space.given_back_bytes > 0 && hooks.lock().unwrap().is_empty());
    let copy: MemoryStorage = copy.lock().unwrap().take().unwrap();
    let reopened: Store<u64, u64> = options().open_in(Arc::new(copy)).unwrap();
    for n in 0..2 * COUNT {
        assert_eq!(reopened.get(&n).unwrap(), Some(n + u64::from(n >= COUNT)), "key {n}");
    }
}

/// Whoever drew the line is told, and those who commit later: what the panic left is not durable, and nobody waits for ever.
#[test]
fn a_device_that_panics_in_a_line_leaves_nobody_waiting() {
    let panics = Arc::new(AtomicBool::new(false));
    let storage = {
        let panics = panics.clone();
        Minded::new(Arc::new(MemoryStorage::new()), move |_, call| {
            assert!(call != Call::Sync || !panics.swap(false, SeqCst), "the device panics");
            Ok(())
        })
    };
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(storage)).unwrap();
    store.put(&1, &1).unwrap();
    panics.store(true, SeqCst);
    assert!(matches!(store.commit(), Err(esker::Error::Io(_))));
    let (send, told) = std::sync::mpsc::channel();
    let other = store.clone();
    std::thread::spawn(move || send.send((other.commit().is_err(), other.close().is_err())));
    assert_eq!(told.recv_timeout(PATIENCE), Ok((true, true)));
    assert!(!panics.load(SeqCst));
}

/// The index is only a shortcut, but a store whose image found no room was latched; what was written since its last line was lost by a
/// close, and the image's beginning kept the room that the next opening needed.
#[test]
fn an_image_that_finds_no_room_is_no_harm() {
    let (files, is_full) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicBool::new(true)));
    let open = || -> Store<u64, u64> {
        let is_full = is_full.clone();
        let place = Minded::new(files.clone(), move |name, call| {
            let is_short = name.starts_with("index.") && matches!(call, Call::Write { .. }) && is_full.load(SeqCst);
            if is_short { Err(no_room()) } else { Ok(()) }
        });
        Options::new().memory("16MiB").background(false).open_in(Arc::new(place)).unwrap()
    };
    let store = open();
    (0..10_000).for_each(|n| store.put(&n, &n).unwrap());
    assert!(matches!(store.save_index(), Err(esker::Error::Io(_))));
    let stats = store.stats();
    assert!(stats.latched.is_none() && matches!(&stats.warnings[..], [esker::Warning::ImageFails { .. }]), "{:?}", stats.warnings);
    store.put(&10_000, &10_000).unwrap();
    store.close().unwrap();
    assert!(!files.list().unwrap().iter().any(|name| name.starts_with("index.")));
    let store = open();
    assert!((0..=10_000).all(|n| store.get(&n).unwrap() == Some(n)));
    is_full.store(false, SeqCst);
    store.save_index().unwrap();
    assert!(!store.stats().warnings.iter().any(|warning| matches!(warning, esker::Warning::ImageFails { .. })));
    store.put(&10_001, &10_001).unwrap();
    // With an earlier one.
    is_full.store(true, SeqCst);
    store.close().unwrap();
    let store = open();
    assert!((0..=10_001).all(|n| store.get(&n).unwrap() == Some(n)));
}

fn no_room() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

/// The opening had to write down where the crash was, and there was no room for that: nothing could be read until some was made.
#[test]
fn a_store_whose_medium_is_full_can_be_opened_and_read() {
    let is_full = Arc::new(AtomicBool::new(false));
    let open = |files: &Arc<MemoryStorage>| {
        let is_full = is_full.clone();
        // Then nothing gets longer, and no file is made.
        let place = Minded::new(files.clone(), move |_, call| {
            let takes_room = matches!(call, Call::Make | Call::Write { grows: true });
            if takes_room && is_full.load(SeqCst) { Err(no_room()) } else { Ok(()) }
        });
        Options::new().memory("16MiB").open_in::<u64, u64>(Arc::new(place))
    };
    let (mut files, mut known) = (Arc::new(MemoryStorage::new()), 0);
    // The first crash, and one after it.
    for _ in 0..2 {
        let store = open(&files).unwrap();
        (known..known + 1000).for_each(|n| store.put(&n, &n).unwrap());
        store.commit().unwrap();
        known += 1000;
        is_full.store(true, SeqCst);
        let failed = (known..10_000_000).find_map(|n| store.put(&n, &n).err()).unwrap();
        assert!(failed.to_string().contains("full") || failed.to_string().contains("space"), "{failed}");
        // Killed.
        files = Arc::new(files.copy());
        // A line that found room where zeros had been written ahead left none for the next crash.
        for is_written in [false, true, true, false] {
            let store = open(&files).unwrap();
            assert!((0..known).all(|n| store.get(&n).unwrap() == Some(n)));
            assert_eq!(store.scan().iter().unwrap().map(|pair| pair.unwrap().0).filter(|n| *n < known).count() as u64, known);
            if is_written {
                store.put(&u64::MAX, &1).unwrap();
                let failed = store.commit().unwrap_err();
                assert!(failed.to_string().contains("full") || failed.to_string().contains("space"), "{failed}");
            } else {
                store.close().unwrap();
            }
            files = Arc::new(files.copy());
        }
        is_full.store(false, SeqCst);
    }
}

/// A process out of file handles cannot list a directory, and some names cannot be removed: an image is not made then, and what was put is
/// kept.
#[test]
fn a_close_that_cannot_tidy_loses_nothing() {
    for call in [Call::List, Call::Remove] {
        let fails = Arc::new(AtomicBool::new(false));
        let files = {
            let fails = fails.clone();
            Minded::new(Arc::new(MemoryStorage::new()), move |_, now| {
                if now == call && fails.load(SeqCst) { Err(io::Error::from_raw_os_error(24)) } else { Ok(()) }
            })
        };
        let open = || Options::new().memory("16MiB").background(false).open_in::<u64, u64>(Arc::new(files.clone())).unwrap();
        let store = open();
        (0..1000).for_each(|n| store.put(&n, &n).unwrap());
        // What an earlier one has left.
        drop(files.open("index.9").unwrap());
        fails.store(true, SeqCst);
        assert!(matches!(store.save_index(), Err(esker::Error::Io(_))));
        (1000..2000).for_each(|n| store.put(&n, &n).unwrap());
        store.commit().unwrap();
        (2000..3000).for_each(|n| store.put(&n, &n).unwrap());
        store.close().unwrap();
        fails.store(false, SeqCst);
        let store = open();
        assert!((0..3000).all(|n| store.get(&n).unwrap() == Some(n)), "{call:?}");
    }
}

/// Whoever removes the lock lets another process in: both were told that what they wrote was durable, and the store was ruined.
#[test]
fn a_store_whose_lock_was_removed_writes_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let open = || -> Store<u64, u64> { Options::new().memory("16MiB").background(false).open(folder.path()).unwrap() };
    let old = open();
    (0..100).for_each(|n| old.put(&n, &1).unwrap());
    old.commit().unwrap();
    std::fs::remove_file(folder.path().join("esker.lock")).unwrap();
    let new = open();
    for n in 0..100 {
        new.put(&n, &2).unwrap();
        old.put(&(n + 1000), &3).unwrap();
    }
    new.commit().unwrap();
    assert!(old.commit().is_err() && old.stats().latched.is_some() && old.close().is_err());
    new.put(&5, &5).unwrap();
    new.close().unwrap();
    drop((old, new));
    assert!(esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    let again = open();
    assert!((0..100).all(|n| again.get(&n).unwrap() == Some(if n == 5 { 5 } else { 2 }) && again.get(&(n + 1000)).unwrap().is_none()));
}

/// One that had nothing to write removed the other one's index image when it was closed, before it wrote its manifest and noticed.
#[test]
fn a_store_whose_lock_was_removed_takes_no_image_away() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new().memory("16MiB").background(false).open::<u64, u64>(folder.path());
    for close in [Store::save_index, Store::close] {
        let old = open().unwrap();
        old.put(&1, &1).unwrap();
        old.commit().unwrap();
        std::fs::remove_file(folder.path().join("esker.lock")).unwrap();
        let new = open().unwrap();
        new.put(&2, &2).unwrap();
        new.close().unwrap();
        assert!(close(&old).is_err());
        drop((old, new));
        assert!(esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
        assert_eq!(open().unwrap().get(&2).unwrap(), Some(2));
    }
}

/// It was called a store without a manifest, or a backup that was cut short.
#[test]
fn a_store_that_is_open_is_locked_whatever_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Options::new().memory("16MiB").segment_bytes(4 << 20).open::<u64, u64>(folder.path());
    let store = open().unwrap();
    store.put(&1, &1).unwrap();
    store.commit().unwrap();
    std::fs::remove_file(folder.path().join("esker.manifest")).unwrap();
    assert!(matches!(open(), Err(Error::Locked(_))));
    drop(store);
    assert!(matches!(open(), Err(Error::Invalid(_))));
}

/// The product of its number and a file's length was too much for a number, or the log found no address behind it.
#[test]
fn a_file_that_no_log_reaches_is_refused_by_name() {
    // The last is the first behind the last address.
    for name in ["esker.log.18446744073709551615", "esker.log.99999999", "esker.log.67372037"] {
        let folder = tempfile::tempdir().unwrap();
        let open = || Options::new().memory("16MiB").segment_bytes(4 << 20).open::<u64, u64>(folder.path());
        let store = open().unwrap();
        store.put(&1, &1).unwrap();
        store.close().unwrap();
        drop(store);
        std::fs::write(folder.path().join(name), b"").unwrap();
        let refused = open().unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
        std::fs::remove_file(folder.path().join(name)).unwrap();
        assert_eq!(open().unwrap().get(&1).unwrap(), Some(1));
    }
}

/// Who closed a store beside another thread was told that all was written before anything was.
#[test]
fn who_closes_beside_another_is_told_what_that_one_is() {
    for fails in [false, true] {
        let (files, holds, waits) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let minded = Minded::new(files.clone(), {
            let (holds, waits) = (holds.clone(), waits.clone());
            move |_, call| {
                while holds.load(SeqCst) && matches!(call, Call::Write { .. }) {
                    waits.store(true, SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                }
                let is_refused = fails && waits.load(SeqCst) && matches!(call, Call::Write { .. });
                if is_refused { Err(io::Error::other("no")) } else { Ok(()) }
            }
        });
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(minded)).unwrap();
        store.put(&1, &1).unwrap();
        store.commit().unwrap();
        store.put(&2, &2).unwrap();
        holds.store(true, SeqCst);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| store.close());
            while !waits.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The power goes when he has been told.
            let second = scope.spawn(|| (store.close(), files.copy()));
            std::thread::sleep(Duration::from_millis(100));
            holds.store(false, SeqCst);
            let (closed, left) = second.join().unwrap();
            assert_eq!((first.join().unwrap().is_err(), closed.is_err()), (fails, fails));
            let again: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(Arc::new(left)).unwrap();
            assert!(fails || again.get(&2).unwrap() == Some(2));
        });
        assert_eq!(store.close().is_err(), fails);
    }
}

/// The lock is of the directory, not of its name. A store whose directory had gone wrote on into the next one of that name, and destroyed
/// it.
#[test]
fn a_directory_that_is_renamed_or_removed_stays_its_stores() {
    for is_removed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let open = || -> Store<u64, u64> { Options::new().memory("16MiB").segment_bytes(256 << 10).background(false).open(&path).unwrap() };
        let old = open();
        (0..1000).for_each(|n| old.put(&n, &n).unwrap());
        old.commit().unwrap();
        if is_removed {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::rename(&path, folder.path().join("other")).unwrap();
        }
        let new = open();
        (0..30_000).for_each(|n| new.put(&n, &(n + 1)).unwrap());
        new.commit().unwrap();
        // At once: what a removed directory is told goes to nobody.
        let wrote = old.put(&1, &7).and_then(|()| old.commit());
        assert_eq!(wrote.is_err(), is_removed, "{wrote:?}");
        let wrote = (0..90_000).try_for_each(|n| old.put(&n, &7)).and_then(|()| old.commit());
        assert_eq!(wrote.is_err(), is_removed, "{wrote:?}");
        assert_eq!(old.close().is_err(), is_removed);
        drop(old);
        new.close().unwrap();
        drop(new);
        let new = open();
        assert!((0..30_000).all(|n| new.get(&n).unwrap() == Some(n + 1)));
    }
}

/// The disk was full before the first line: a store in which nothing was lost could not even be looked at.
#[test]
fn a_store_whose_medium_was_full_from_the_beginning_can_be_opened() {
    let (files, is_full) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicBool::new(false)));
    let minded = || {
        let is_full = is_full.clone();
        let mind = move |_: &str, call: Call| match call {
            Call::Make | Call::Write { grows: true } if is_full.load(SeqCst) => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        };
        Arc::new(Minded::new(files.clone(), mind))
    };
    let open = || -> esker::Result<Store<u64, u64>> { Options::new().memory("16MiB").background(false).open_in(minded()) };
    let store = open().unwrap();
    is_full.store(true, SeqCst);
    store.put(&1, &1).unwrap();
    assert!(store.close().is_err());
    drop(store);
    let store = open().unwrap();
    assert_eq!(store.get(&1).unwrap(), None);
    let _ = store.close();
    drop(store);
    is_full.store(false, SeqCst);
    let store = open().unwrap();
    store.put(&1, &1).unwrap();
    store.close().unwrap();
}

/// Where keys share index entries an opening writes copies: want of room for them is no reason not to open.
#[test]
fn a_crashed_store_of_shared_entries_opens_on_a_full_medium() {
    let (files, is_full) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicBool::new(false)));
    let open = |files: &Arc<MemoryStorage>, background| -> Store<u64, u64> {
        let is_full = is_full.clone();
        let place = Minded::new(files.clone(), move |_, call| match call {
            Call::Make | Call::Write { grows: true } if is_full.load(SeqCst) => Err(no_room()),
            _ => Ok(()),
        });
        Options::new().memory("16MiB").background(background).open_in(Arc::new(place)).unwrap()
    };
    let store = open(&files, false);
    (0..900_000).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    for round in 1..3 {
        (0..900_000).step_by(450).for_each(|n| store.put(&n, &(n + round)).unwrap());
        store.commit().unwrap();
    }
    let crashed = Arc::new(files.copy());
    drop(store);
    let is_whole = |store: &Store<u64, u64>| {
        let expected = |n: u64| if n.is_multiple_of(450) { n + 2 } else { n };
        (0..900_000).step_by(50).all(|n| store.get(&n).unwrap() == Some(expected(n)))
    };
    is_full.store(true, SeqCst);
    let store = open(&crashed, true);
    assert!(store.stats().latched.is_some() && is_whole(&store));
    assert!(matches!(store.put(&1, &7), Err(Error::Io(_))));
    let images = || crashed.list().unwrap().into_iter().filter(|name| name.starts_with("index.")).collect::<Vec<_>>();
    let before = images();
    is_full.store(false, SeqCst);
    let begun = Instant::now();
    // By itself, and then it takes the image that it owes.
    while store.stats().latched.is_some() || images() == before {
        assert!(begun.elapsed() < PATIENCE, "{:?}, {before:?}", store.stats().latched);
        std::thread::sleep(Duration::from_millis(1));
    }
    store.put(&1, &1).unwrap();
    assert!(is_whole(&store));
    store.close().unwrap();
    assert!(is_whole(&open(&crashed, false)));
}

/// What lay behind the end of the last file was taken for log, as far as the file reached.
#[test]
fn a_file_of_the_log_ends_where_the_next_one_begins() {
    let folder = tempfile::tempdir().unwrap();
    let open = || -> esker::Result<Store<u64, u64>> { Options::new().memory("16MiB").background(false).open(folder.path()) };
    let store = open().unwrap();
    (0..1000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    drop(store);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("esker.log.00000000")).unwrap();
    file.set_len(1 << 40).unwrap();
    let store = open().unwrap();
    assert!((0..1000).all(|n| store.get(&n).unwrap() == Some(n)));
    store.put(&1, &7).unwrap();
    store.commit().unwrap();
    assert!(store.stats().log.tail < 1 << 30, "{:?}", store.stats().log);
    drop(store);
    let found = esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(found.is_sound(), "{found:?}");
}

/// A store on a medium that is full for a while kept nothing of what was put since its last line, though it lay in memory, and had to be
/// opened anew.
#[test]
fn a_store_goes_on_when_its_medium_has_room_again() {
    let manners = [(false, Durability::None), (true, Durability::None), (true, Durability::Every(Duration::from_millis(5)))];
    for (in_background, durability) in manners.into_iter().chain([(false, Durability::Always), (true, Durability::Always)]) {
        let (files, is_full) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicBool::new(false)));
        let place = {
            let is_full = is_full.clone();
            Minded::new(files.clone(), move |_, call| match call {
                Call::Make | Call::Write { grows: true } if is_full.load(SeqCst) => Err(no_room()),
                _ => Ok(()),
            })
        };
        let options = || Options::new().memory("16MiB").background(in_background).durability(durability);
        let store: Store<u64, [u8]> = options().open_in(Arc::new(place)).unwrap();
        let value = |n: u64| vec![n as u8; 1000];
        let mut known = 0;
        for _ in 0..3 {
            (known..known + 1000).for_each(|n| store.put(&n, &value(n)).unwrap());
            known += 1000;
            is_full.store(true, SeqCst);
            let refused = (known..).find(|n| store.put(n, &value(*n)).is_err()).unwrap();
            assert!(refused < known + 30_000 && store.stats().latched.is_some());
            assert!(matches!(store.commit(), Err(Error::Io(error)) if error.kind() == io::ErrorKind::StorageFull));
            assert!(matches!(store.delete(&0), Err(Error::Io(_))));
            assert!((0..refused).all(|n| store.get(&n).unwrap().is_some_and(|held| *held == value(n)[..])));
            is_full.store(false, SeqCst);
            // What was refused is put again by who wants it.
            known = refused;
            if in_background {
                let begun = Instant::now();
                while store.put(&known, &value(known)).is_err() {
                    assert!(begun.elapsed() < PATIENCE, "it does not go on");
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                store.put(&known, &value(known)).unwrap();
            }
            assert!(store.stats().latched.is_none());
            store.commit().unwrap();
            let again: Store<u64, [u8]> = options().open_in(Arc::new(files.copy())).unwrap();
            assert!((0..=known).all(|n| again.get(&n).unwrap().is_some_and(|held| *held == value(n)[..])));
            known += 1;
        }
        store.close().unwrap();
        assert!(esker::verify_in(files, |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    }
}

/// Four threads put durably while there is now room and now none: whatever was acknowledged is there whenever the power goes, and nobody
/// waits for ever.
#[test]
fn what_is_acknowledged_on_a_medium_with_little_room_is_kept() {
    let (files, calls) = (Arc::new(MemoryStorage::new()), Arc::new(AtomicU64::new(0)));
    let place = {
        let calls = calls.clone();
        // Of each 64 such calls 20 in a row have none.
        Minded::new(files.clone(), move |_, call| match call {
            Call::Make | Call::Write { grows: true } if calls.fetch_add(1, SeqCst) % 64 >= 44 => Err(no_room()),
            _ => Ok(()),
        })
    };
    let options = || Options::new().memory("16MiB").segment_bytes(64 << 10).durability(Durability::Always);
    let store: Store<u64, u64> = options().open_in(Arc::new(place)).unwrap();
    let (refused, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let known: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        let (store, refused, known) = (&store, &refused, &known);
        let write = |thread: u64| {
            for n in 1..=2000 {
                let put = || match n % 3 {
                    0 => store.transaction(|tx| tx.put(&thread, &n).and_then(|()| tx.put(&(thread + 4), &n))),
                    _ => store.put(&thread, &n),
                };
                let begun = Instant::now();
                while let Err(error) = put() {
                    assert!(matches!(error, Error::Io(_)) && begun.elapsed() < PATIENCE, "{error}");
                    refused.fetch_add(1, SeqCst);
                    // Nobody waits for the driver's next look.
                    let _ = store.commit();
                }
                known[thread as usize].store(n, SeqCst);
            }
        };
        let writers: Vec<_> = (0..4).map(|thread| scope.spawn(move || write(thread))).collect();
        let cut = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let least: Vec<u64> = known.iter().map(|n| n.load(SeqCst)).collect();
                let again: Store<u64, u64> = options().background(false).open_in(Arc::new(files.copy())).unwrap();
                for (thread, least) in (0..).zip(least) {
                    let (held, twin) = (again.get(&thread).unwrap().unwrap_or(0), again.get(&(thread + 4)).unwrap().unwrap_or(0));
                    assert!(held >= least && twin <= held && twin + 3 > held, "thread {thread}: {least} {held} {twin}");
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, SeqCst);
        cut.join().unwrap();
    });
    assert!(refused.load(SeqCst) > 0 && calls.load(SeqCst) > 64);
    // Close finds no room, or does.
    let is_whole = |store: &Store<u64, u64>| (0..4).all(|thread| store.get(&thread).unwrap() == Some(2000));
    let _ = store.close();
    assert!(is_whole(&options().open_in(Arc::new(files.copy())).unwrap()));
}

/// A short file of a manifest's name was taken for a store that was being made, and written over; files that begin as an image's name does
/// were removed.
#[test]
fn files_that_are_somebody_elses_stay() {
    let options = || Options::new().memory("16MiB").background(false);
    for text in ["hello", "esker format 2\n", &"a manifest of goods. ".repeat(150)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("esker.manifest");
        std::fs::write(&path, text).unwrap();
        let refused = options().open::<u64, u64>(folder.path());
        assert!(matches!(&refused, Err(Error::Invalid(_))), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    // A cut while the store was made.
    for left in [vec![], vec![0; 700]] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("esker.manifest"), left).unwrap();
        options().open::<u64, u64>(folder.path()).unwrap().close().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let others = ["index.html", "index.07", "index.+7", "index."];
    for _ in 0..3 {
        let store: Store<u64, u64> = options().open(folder.path()).unwrap();
        others.iter().for_each(|name| std::fs::write(folder.path().join(name), "mine").unwrap());
        store.put(&1, &1).unwrap();
        store.save_index().unwrap();
        store.close().unwrap();
        assert!(others.iter().all(|name| std::fs::read_to_string(folder.path().join(name)).is_ok_and(|text| text == "mine")));
    }
}

/// Files of the log, of which the calls that are told so find no room.
fn scarce_log(is_short: impl Fn(Call) -> bool + Send + Sync + 'static) -> Arc<Minded> {
    let mind = move |name: &str, call: Call| if name.starts_with("esker.log.") && is_short(call) { Err(no_room()) } else { Ok(()) };
    Arc::new(Minded::new(Arc::new(MemoryStorage::new()), mind))
}

/// Where many files are owed a sync a write syncs some. What a sync could not write is lost: that it was a write that failed was believed.
#[test]
fn a_sync_that_finds_no_room_within_a_write_is_final() {
    let fails = Arc::new(AtomicBool::new(true));
    let is_short = {
        let fails = fails.clone();
        move |call| call == Call::Sync && fails.load(SeqCst)
    };
    let options = Options::new().memory("16MiB").segment_bytes(64 << 10).background(false);
    let store: Store<u64, [u8]> = options.open_in(scarce_log(is_short)).unwrap();
    let refused = (0..20_000).find(|n| store.put(n, &[1; 4000]).is_err()).unwrap();
    fails.store(false, SeqCst);
    assert!(store.put(&refused, &[1; 4000]).is_err() && store.commit().is_err() && store.close().is_err());
}

/// A clock that uses the store is refused; where the medium had been full it waited for its own thread.
#[test]
fn a_clock_that_puts_into_a_full_store_is_refused() {
    #[derive(Debug, Default)]
    struct Putting(Mutex<Option<Store<u64, u64>>>, AtomicU64);
    impl esker::Clock for Putting {
        fn now(&self) -> std::time::SystemTime {
            let store = self.0.lock().unwrap().clone();
            if let Some(store) = store {
                assert!(store.put(&9, &9).is_err());
                self.1.fetch_add(1, SeqCst);
            }
            std::time::SystemTime::now()
        }
    }
    let (is_full, clock) = (Arc::new(AtomicBool::new(false)), Arc::new(Putting::default()));
    let is_short = {
        let is_full = is_full.clone();
        move |call| matches!(call, Call::Make | Call::Write { .. }) && is_full.load(SeqCst)
    };
    let options = Options::new().memory("16MiB").background(false).clock(clock.clone());
    let store: Store<u64, u64> = options.open_in(scarce_log(is_short)).unwrap();
    store.put(&1, &1).unwrap();
    is_full.store(true, SeqCst);
    assert!(store.commit().is_err());
    *clock.0.lock().unwrap() = Some(store.clone());
    let (send, done) = std::sync::mpsc::channel();
    std::thread::spawn({
        let store = store.clone();
        move || send.send(store.scan().for_each(|_, _| ()).is_ok())
    });
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    *clock.0.lock().unwrap() = None;
    assert!(clock.1.load(SeqCst) > 0);
    is_full.store(false, SeqCst);
    store.put(&2, &2).unwrap();
    store.commit().unwrap();
}

/// Where there is no place for an image there is none to warn of, and the driver does not try.
#[test]
fn a_store_without_files_takes_no_images() {
    let stores: [Store<u64, u64>; 2] = [
        Options::new().memory("16MiB").in_memory().unwrap(),
        Options::new().memory("16MiB").background(false).open_on(Arc::new(MemoryDevice::new())).unwrap(),
    ];
    for store in stores {
        store.put(&1, &1).unwrap();
        assert!(matches!(store.save_index(), Err(Error::Invalid(_))));
        assert!(store.stats().warnings.is_empty(), "{:?}", store.stats().warnings);
        store.close().unwrap();
        assert!(matches!(store.save_index(), Err(Error::Closed)));
    }
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    (0..5_000_000).for_each(|n| store.put(&n, &n).unwrap());
    assert!(store.stats().warnings.iter().all(|warning| !matches!(warning, Warning::ImageFails { .. })), "{:?}", store.stats().warnings);
}

/// What a crash gives up counts as dead: it counted as alive, and files grew by it until as much had died again.
#[test]
fn what_a_crash_gives_up_is_dead() {
    let mut files = Arc::new(MemoryStorage::new());
    let open = |files: &Arc<MemoryStorage>| -> Store<u64, u64> {
        Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap()
    };
    let store = open(&files);
    (0..1000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    // Lives that end before their first line.
    for _ in 0..3 {
        let store = open(&files);
        (0..1_000_000).for_each(|n| store.put(&(1 << 40 | n), &n).unwrap());
        // As a crash leaves them; what the store writes when it is dropped is in the others.
        files = Arc::new(files.copy());
    }
    let store = open(&files);
    let space = store.stats().space;
    assert!(space.live_bytes < 100_000 && space.file_bytes > 16 << 20, "{space:?}");
    assert!((0..1000).all(|n| store.get(&n).unwrap() == Some(n)));
    store.compact().unwrap();
    assert!(store.stats().space.file_bytes < space.file_bytes / 4, "{:?}", store.stats().space);
}

/// The system tells once that it could not write names. It told an image, and the line beside it took the next sync for its own: what was
/// acknowledged lay in a file that might have no name after a power cut.
#[test]
fn a_line_beside_a_failed_sync_of_names_is_not_acknowledged() {
    #[derive(Default)]
    struct Seen {
        image_is_written: AtomicBool,
        line_is_synced: AtomicBool,
        names_have_failed: AtomicBool,
    }
    let (files, seen) = (Arc::new(MemoryStorage::new()), Arc::new(Seen::default()));
    let place = {
        let seen = seen.clone();
        Minded::new(files, move |name, call| match call {
            Call::Write { .. } if name.starts_with("index.") => {
                seen.image_is_written.store(true, SeqCst);
                wait_for(&seen.line_is_synced);
                Ok(())
            }
            Call::Sync if name.starts_with("esker.log.") && seen.image_is_written.load(SeqCst) => {
                seen.line_is_synced.store(true, SeqCst);
                wait_for(&seen.names_have_failed);
                Ok(())
            }
            Call::SyncNames if seen.line_is_synced.load(SeqCst) && !seen.names_have_failed.swap(true, SeqCst) => {
                // The line goes on before the image knows.
                std::thread::sleep(Duration::from_millis(50));
                Err(io::Error::other("the device is sick"))
            }
            _ => Ok(()),
        })
    };
    let options = Options::new().memory("16MiB").background(false).segment_bytes(256 << 10);
    let store: Store<u64, [u8]> = options.open_in(Arc::new(place)).unwrap();
    store.put(&0, &[0; 100]).unwrap();
    std::thread::scope(|scope| {
        let image = scope.spawn(|| store.save_index());
        wait_for(&seen.image_is_written);
        // It needs a file more.
        (1..4000).for_each(|n| store.put(&n, &[1; 100]).unwrap());
        assert!(store.commit().is_err());
        assert!(image.join().unwrap().is_err());
    });
    assert!(store.stats().latched.is_some() && store.commit().is_err());
}

fn wait_for(seen: &AtomicBool) {
    let begun = Instant::now();
    while !seen.load(SeqCst) {
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}
