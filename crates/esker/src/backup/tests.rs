//! Copies that are right, and those that are refused.

#[path = "../../tests/common/raise.rs"]
mod raise;

use super::*;
use crate::minded::{Call, Minded};
use crate::{MemoryStorage, Options, Store};
use raise::Raise;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

fn open(files: &Arc<MemoryStorage>) -> Store<u64, u64> {
    Options::new().memory("16MiB").open_in(files.clone()).unwrap()
}

/// Each pair of keys is written by one thread, the second after the first: in a consistent copy the second is never ahead.
#[test]
fn a_copy_taken_while_threads_write_is_a_cut_and_grows_by_what_is_new() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let (store, stop) = (open(&files), AtomicBool::new(false));
    (0..300_000u64).for_each(|n| store.put(&(n | 1 << 40), &n).unwrap());
    std::thread::scope(|scope| {
        let _over = Raise(&stop);
        for thread in 0..2u64 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                for n in (0u64..).take_while(|_| !stop.load(Relaxed)) {
                    (0..2).for_each(|half| store.put(&((n % 5000) << 8 | thread << 1 | half), &n).unwrap());
                }
            });
        }
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            if round == 3 {
                store.save_index().unwrap();
                store.compact().unwrap();
            }
            let done = store.snapshot_in(copy.clone()).unwrap();
            assert!(round == 0 || round >= 3 || done.kept_bytes > done.copied_bytes, "{done:?} in round {round}");
            let found = crate::verify::verified(copy.clone());
            assert!(found.is_sound() && found.line == done.line, "{found:?}");
            // A copy of the copy: opened, it would be a store of its own.
            let opened = open(&Arc::new(copy.copy()));
            (0..300_000u64).step_by(77).for_each(|n| assert_eq!(opened.get(&(n | 1 << 40)).unwrap(), Some(n)));
            for key in (0..5000u64).flat_map(|n| [n << 8, n << 8 | 2]) {
                let (first, second) = (opened.get(&key).unwrap(), opened.get(&(key | 1)).unwrap());
                assert!(second <= first && first.unwrap_or(0) - second.unwrap_or(0) <= 5000, "{first:?} {second:?}");
            }
        }
    });
}

#[test]
fn what_is_no_backup_of_this_store_is_refused() {
    let (files, other, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let (store, stranger) = (open(&files), open(&other));
    store.put(&1, &1).unwrap();
    let snapshot = |store: &Store<u64, u64>, to: &Arc<MemoryStorage>| store.snapshot_in(to.clone());
    snapshot(&store, &copy).unwrap();
    assert!(matches!(snapshot(&stranger, &copy), Err(Error::Invalid(_))));
    assert!(matches!(snapshot(&store, &other), Err(Error::Invalid(_))));
    // Looking changes nothing; writing makes it a store of its own.
    drop(open(&Arc::new(copy.copy())));
    snapshot(&store, &copy).unwrap();
    let restored = open(&copy);
    restored.put(&2, &2).unwrap();
    restored.close().unwrap();
    store.put(&3, &3).unwrap();
    let refused = snapshot(&store, &copy).unwrap_err().to_string();
    assert!(refused.contains("no backup of this one"), "{refused}");
    assert_eq!(open(&copy).get(&2).unwrap(), Some(2));
}

/// A copy that was refused left an empty directory, and one of another store did.
#[test]
fn a_refused_copy_leaves_no_directory_that_it_made() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let options = || Options::new().memory("16MiB");
    let store: Store<u64, u64> = options().open(place("store")).unwrap();
    let stranger: Store<u64, u64> = options().open(place("stranger")).unwrap();
    store.put(&1, &1).unwrap();
    store.snapshot_to(place("first")).unwrap();
    assert!(matches!(stranger.snapshot_from(place("first"), place("second")), Err(Error::Invalid(_))));
    assert!(!place("second").exists());
    store.close().unwrap();
    assert!(matches!(store.snapshot_to(place("third")), Err(Error::Closed)));
    assert!(!place("third").exists());
    stranger.close().unwrap();
    let refused = crate::backup_from(place("stranger"), place("first"), place("fourth"), |_, _| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::Invalid(_))) && !place("fourth").exists(), "{refused:?}");
    // One that was there stays.
    std::fs::create_dir(place("fifth")).unwrap();
    let refused = crate::backup_from(place("stranger"), place("first"), place("fifth"), |_, _| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::Invalid(_))) && place("fifth").exists(), "{refused:?}");
}

/// An end that is asked for leaves what an error does.
#[test]
fn a_backup_that_is_ended_is_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let fill = |from: u64| {
        let store: Store<u64, u64> = Options::new().memory("16MiB").open(path("store")).unwrap();
        (from..from + 100_000).for_each(|n| store.put(&n, &n).unwrap());
        store.close().unwrap();
    };
    let records = |name: &str| crate::verify(path(name), |_, _| ControlFlow::Continue(())).map(|found| found.records);
    // At the second word about progress, in the midst of what is to be copied.
    let ended = |to: &str| {
        let mut calls = 0;
        let answer = |done, total| {
            calls += 1;
            assert!(calls < 2 || done < total);
            if calls < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        backup(path("store"), path(to), answer)
    };
    fill(0);
    assert!(matches!(ended("first"), Err(Error::Cancelled)));
    let opened: Result<Store<u64, u64>> = Options::new().memory("16MiB").open(path("first"));
    assert!(opened.is_err_and(|error| error.to_string().contains("a backup that was cut short")));
    backup(path("store"), path("second"), |_, _| ControlFlow::Continue(())).unwrap();
    fill(100_000);
    assert!(matches!(ended("second"), Err(Error::Cancelled)));
    assert_eq!(records("second").unwrap(), 100_000);
    backup(path("store"), path("second"), |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(records("second").unwrap(), 200_000);
}

#[test]
fn damage_is_not_copied() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    let log = files.open("esker.log.00000000").unwrap();
    let mut sector = AlignedBuffer::new(1);
    log.read(8192, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[9] ^= 1;
    log.write(8192, sector.bytes()).unwrap();
    assert!(matches!(store.snapshot_in(copy.clone()), Err(Error::Corruption(_))));
    assert!(!copy.list().unwrap().iter().any(|name| name == crate::manifest::MANIFEST));
}

fn is_sound(copy: &Arc<MemoryStorage>) -> bool {
    crate::verify::verified(copy.clone()).is_sound()
}

/// A store with an image, and a backup that has it.
fn saved() -> (Arc<MemoryStorage>, Arc<MemoryStorage>, Store<u64, u64>) {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    (files, copy, store)
}

/// Of a copy it is known only at its end whether it is whole: one that the backup has already is not written again.
#[test]
fn a_damaged_image_does_not_take_the_place_of_a_sound_one() {
    let damage = |files: &MemoryStorage| {
        let name = files.list().unwrap().into_iter().find(|name| name.starts_with("index.")).unwrap();
        let (image, mut sector) = (files.open(&name).unwrap(), AlignedBuffer::new(1));
        image.read(0, sector.bytes_mut()).unwrap();
        sector.bytes_mut()[77] ^= 4;
        image.write(0, sector.bytes()).unwrap();
    };
    let (files, copy, store) = saved();
    damage(&files);
    store.put(&1, &7).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    assert!(is_sound(&copy));
    assert_eq!(open(&copy).get(&1).unwrap(), Some(7));
    // The other way round a sound one takes the place of what is damaged.
    let (_files, copy, store) = saved();
    damage(&copy);
    assert!(!is_sound(&copy));
    store.snapshot_in(copy.clone()).unwrap();
    assert!(is_sound(&copy));
}

/// What was left of it behind the sound one's end was taken for the end of that, by each backup anew.
#[test]
fn a_longer_damaged_image_is_replaced() {
    let (_files, copy, store) = saved();
    let name = copy.list().unwrap().into_iter().find(|name| name.starts_with("index.")).unwrap();
    let (image, mut sector) = (copy.open(&name).unwrap(), AlignedBuffer::new(1));
    sector.bytes_mut().fill(7);
    image.write(image.bytes().unwrap(), sector.bytes()).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    assert!(is_sound(&copy));
    assert_eq!(open(&copy).get(&1).unwrap(), Some(1));
}

fn is_store(files: &MemoryStorage) -> bool {
    files.list().unwrap().iter().any(|name| name == crate::manifest::MANIFEST)
}

/// All files, byte by byte.
fn contents(files: &MemoryStorage) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let file = files.open(&name).unwrap();
        let mut bytes = vec![0; file.bytes().unwrap() as usize];
        file.read(0, &mut bytes).unwrap();
        (name, bytes)
    };
    files.list().unwrap().into_iter().map(read).collect()
}

#[test]
fn a_copy_from_an_earlier_one_is_whole_and_leaves_that_as_it_was() {
    let new = || Arc::new(MemoryStorage::new());
    let (files, first) = (new(), new());
    let store = open(&files);
    (0..100_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_in(first.clone()).unwrap();
    let before = contents(&first);
    for round in 1..4 {
        (0..30_000u64).for_each(|n| store.put(&(n * 3), &(n + round)).unwrap());
        if round == 2 {
            store.compact().unwrap();
            store.save_index().unwrap();
        }
        let second = new();
        store.snapshot_from_in(first.clone(), second.clone()).unwrap();
        assert!(contents(&first) == before, "round {round}");
        assert!(is_sound(&second), "round {round}");
        // It is a backup like any other, and a store.
        store.snapshot_in(second.clone()).unwrap();
        let opened = open(&second);
        (0..30_000u64).for_each(|n| assert_eq!(opened.get(&(n * 3)).unwrap(), Some(n + round)));
        (0..30_000u64).for_each(|n| assert_eq!(opened.get(&(n * 3 + 1)).unwrap(), Some(n * 3 + 1)));
    }
}

#[test]
fn what_is_not_this_stores_past_is_no_earlier_copy() {
    let new = || Arc::new(MemoryStorage::new());
    let (files, others, copy) = (new(), new(), new());
    let (store, stranger) = (open(&files), open(&others));
    (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
    stranger.put(&1, &1).unwrap();
    stranger.commit().unwrap();
    let refused = |store: &Store<u64, u64>, earlier: Arc<MemoryStorage>, why: &str| {
        let to = new();
        let error = store.snapshot_from_in(earlier, to.clone()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(why), "{error}");
        assert!(!is_store(&to));
    };
    refused(&store, new(), "is no store");
    refused(&store, others.clone(), "no backup of this one");
    stranger.snapshot_in(copy.clone()).unwrap();
    refused(&store, copy, "no backup of this one");
    // The store goes back to what it was before the copy was taken.
    store.commit().unwrap();
    let (past, later) = (Arc::new(files.copy()), new());
    (0..1000u64).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    store.snapshot_in(later.clone()).unwrap();
    refused(&open(&past), later.clone(), "newer than the store");
    // Written, it is a store of its own.
    let restored = open(&later);
    restored.put(&7, &7).unwrap();
    restored.close().unwrap();
    refused(&store, later, "no backup of this one");
}

#[test]
fn a_new_copy_does_not_replace_one_that_is_there() {
    let new = || Arc::new(MemoryStorage::new());
    let (files, first, second) = (new(), new(), new());
    let store = open(&files);
    store.put(&1, &1).unwrap();
    store.snapshot_in(first.clone()).unwrap();
    store.snapshot_in(second.clone()).unwrap();
    let before = contents(&second);
    let refused = store.snapshot_from_in(first, second.clone()).unwrap_err().to_string();
    assert!(refused.contains("goes to a new place"), "{refused}");
    assert!(contents(&second) == before);
}

/// Any bit, anywhere in the earlier copy's log, and a log that ends too early.
#[test]
fn damage_in_the_earlier_copy_is_named() {
    let new = || Arc::new(MemoryStorage::new());
    let (files, first) = (new(), new());
    let store = open(&files);
    (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_in(first.clone()).unwrap();
    store.put(&1, &2).unwrap();
    let name = first.list().unwrap().into_iter().find(|name| name.starts_with("esker.log")).unwrap();
    let whole = contents(&first).into_iter().find(|(file, _)| *file == name).unwrap().1;
    let tried = |damaged: &[u8]| {
        let (earlier, to) = (Arc::new(first.copy()), new());
        earlier.remove(&name).unwrap();
        earlier.open(&name).unwrap().write(0, damaged).unwrap();
        let result = store.snapshot_from_in(earlier, to.clone());
        assert_eq!(result.is_ok(), is_store(&to));
        result
    };
    tried(&whole).unwrap();
    // The first sector is never written: addresses begin behind it.
    let flips = (SECTOR_BYTES..whole.len()).step_by(997).map(|at| {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        damaged
    });
    for damaged in flips.chain([whole[..whole.len() - SECTOR_BYTES].to_vec()]) {
        let error = tried(&damaged).unwrap_err();
        assert!(matches!(error, Error::Corruption(_)) && error.to_string().contains("in the earlier backup"), "{error}");
    }
}

/// Full segments get a second name: they need no room, and outlive the copy they were taken from.
#[test]
fn full_files_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store: Store<u64, u64> = Options::new().memory("16MiB").segment_bytes(1 << 18).open(path("store")).unwrap();
    (0..100_000u64).for_each(|n| store.put(&n, &n).unwrap());
    let first = store.snapshot_to(path("first")).unwrap();
    (0..1000u64).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    let second = store.snapshot_from(path("first"), path("second")).unwrap();
    assert!(second.kept_bytes > first.copied_bytes - (1 << 19) && second.copied_bytes < 1 << 20, "{first:?} {second:?}");
    // The store at rest gives the same.
    store.close().unwrap();
    let third = backup_from(path("store"), path("first"), path("third"), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(third.kept_bytes >= second.kept_bytes, "{second:?} {third:?}");
    // Written, a copy does not change what it shares; what was copied from may go.
    let opened: Store<u64, u64> = Options::new().memory("16MiB").open(path("second")).unwrap();
    (0..200_000u64).for_each(|n| opened.put(&n, &0).unwrap());
    opened.compact().unwrap();
    opened.close().unwrap();
    for copy in ["first", "third"] {
        assert!(crate::verify(path(copy), |_, _| ControlFlow::Continue(())).unwrap().is_sound(), "{copy}");
    }
    std::fs::remove_dir_all(path("first")).unwrap();
    let opened: Store<u64, u64> = Options::new().memory("16MiB").open(path("third")).unwrap();
    (0..100_000u64).for_each(|n| assert_eq!(opened.get(&n).unwrap(), Some(n + u64::from(n < 1000))));
}

/// A link was linked, and led from the new place to nothing.
#[test]
#[cfg(unix)]
fn links_are_copied_as_what_they_lead_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store: Store<u64, u64> = Options::new().memory("16MiB").segment_bytes(1 << 18).open(path("store")).unwrap();
    (0..100_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_to(path("first")).unwrap();
    let name = segment_name(0);
    std::fs::create_dir(path("other")).unwrap();
    std::fs::rename(path("first").join(&name), path("other").join(&name)).unwrap();
    std::os::unix::fs::symlink(format!("../other/{name}"), path("first").join(&name)).unwrap();
    std::fs::create_dir(path("deep")).unwrap();
    store.snapshot_from(path("first"), path("deep/second")).unwrap();
    assert!(std::fs::symlink_metadata(path("deep/second").join(&name)).unwrap().is_file());
    assert!(crate::verify(path("deep/second"), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
}

/// The store is left as a crash leaves it: kept, for what nobody can reach any more is a leak to a sanitizer.
fn crash(store: Store<u64, u64>) {
    static CRASHED: std::sync::Mutex<Vec<Store<u64, u64>>> = std::sync::Mutex::new(Vec::new());
    CRASHED.lock().unwrap().push(store);
}

/// All copies of them; those that `before` never had are zeros.
fn write_slots_of(before: &MemoryStorage, copy: &MemoryStorage) {
    let (old, mut slots) = (before.open("esker.manifest").unwrap(), AlignedBuffer::new(4));
    let count = (old.bytes().unwrap() as usize).min(4 * SECTOR_BYTES);
    old.read(0, &mut slots.bytes_mut()[..count]).unwrap();
    copy.open("esker.manifest").unwrap().write(0, slots.bytes()).unwrap();
}

/// A look into a backup whose next step was cut short, ended by a kill, leaves a scar that must not count when the backup grows.
#[test]
fn a_backup_that_was_looked_into_grows_by_all_that_is_new() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    (0..1000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_in(copy.clone()).unwrap();
    let before = copy.copy();
    (1000..2000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_in(copy.clone()).unwrap();
    // As if it had been cut short before its slot was written.
    write_slots_of(&before, &copy);
    // Somebody looks, and is killed; another one closes it.
    for ends in [crash, |look: Store<u64, u64>| look.close().unwrap()] {
        let look: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(copy.clone()).unwrap();
        assert_eq!((look.get(&999).unwrap(), look.get(&1000).unwrap()), (Some(999), None));
        ends(look);
    }
    store.snapshot_in(copy.clone()).unwrap();
    let opened = open(&copy);
    let lost = (0..2000u64).filter(|n| opened.get(n).unwrap() != Some(*n)).count();
    assert_eq!(lost, 0, "keys that the backup has lost");
}

/// A backup whose next step was cut short, with the lines of that step behind it, is opened and becomes a store of its own.
#[test]
fn a_backup_whose_next_step_was_cut_short_opens_again_and_again() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    let round = |round: u64| {
        (0..100u64).for_each(|n| store.put(&n, &round).unwrap());
        store.commit().unwrap();
    };
    round(0);
    store.snapshot_in(copy.clone()).unwrap();
    let (before, cut) = (copy.copy(), copy.open(&segment_name(0)).unwrap().bytes().unwrap());
    (1..4).for_each(round);
    store.snapshot_in(copy.clone()).unwrap();
    write_slots_of(&before, &copy);
    // The last of its lines is not whole.
    let (log, mut sector) = (copy.open(&segment_name(0)).unwrap(), AlignedBuffer::new(1));
    let last = log.bytes().unwrap() - SECTOR_BYTES as u64;
    assert!(last > cut + SECTOR_BYTES as u64, "three lines lie behind the cut");
    log.read(last, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[77] ^= 4;
    log.write(last, sector.bytes()).unwrap();
    let look = || -> Store<u64, u64> { Options::new().memory("16MiB").background(false).open_in(copy.clone()).unwrap() };
    let opened = look();
    assert_eq!(opened.get(&1).unwrap(), Some(0));
    opened.save_index().unwrap();
    opened.close().unwrap();
    for round in 7..10 {
        let opened = look();
        assert_eq!(opened.get(&1).unwrap(), Some(if round == 7 { 0 } else { round - 1 }));
        opened.put(&1, &round).unwrap();
        opened.commit().unwrap();
        opened.close().unwrap();
    }
}

/// Where keys share entries an opening makes copies; a look makes no store of a backup nevertheless.
#[test]
fn a_backup_of_shared_entries_that_was_looked_into_grows() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let options = || Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..1_500_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    // Over what is frozen and in memory: these lead past the records that they supersede.
    (1_450_000..1_500_000u64).for_each(|n| store.put(&n, &7).unwrap());
    store.snapshot_in(copy.clone()).unwrap();
    let look: Store<u64, u64> = options().open_in(copy.clone()).unwrap();
    assert_eq!((look.get(&1_460_000).unwrap(), look.get(&1_000_000).unwrap()), (Some(7), Some(1_000_000)));
    look.close().unwrap();
    store.put(&1, &8).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    let look: Store<u64, u64> = options().open_in(copy.clone()).unwrap();
    assert_eq!((look.get(&1).unwrap(), look.get(&1_499_999).unwrap()), (Some(8), Some(7)));
}

/// Opening a backup of shared entries makes copies in memory. What changed one of them was in no line, and an image that led to them in
/// front of what had never been written.
#[test]
fn what_is_written_to_an_opened_backup_of_shared_entries_stays() {
    let (files, backup) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let options = || Options::new().memory("16MiB").background(false).promotion(false);
    let store: Store<u64, u64> = options().open_in(files).unwrap();
    (0..1_500_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    (1_450_000..1_500_000u64).for_each(|n| store.put(&n, &7).unwrap());
    store.snapshot_in(backup.clone()).unwrap();
    for (has_image, closes) in [(false, false), (false, true), (true, true), (true, false)] {
        let copy = Arc::new(backup.copy());
        let written: Store<u64, u64> = options().open_in(copy.clone()).unwrap();
        if has_image {
            written.save_index().unwrap();
        } else {
            (1_450_000..1_451_000).for_each(|n| written.put(&n, &9).unwrap());
            written.put(&9_999_999, &1).unwrap();
            written.commit().unwrap();
        }
        let cut_short = Arc::new(copy.copy());
        written.close().unwrap();
        let again: Store<u64, u64> = options().open_in(if closes { copy } else { cut_short }).unwrap();
        for n in (0..1_450_000).step_by(7).chain(1_450_000..1_500_000) {
            let changed = if n < 1_450_000 { n } else { 7 };
            let value = if !has_image && (1_450_000..1_451_000).contains(&n) { 9 } else { changed };
            assert_eq!(again.get(&n).unwrap(), Some(value), "{n}, {has_image}, {closes}");
        }
        assert_eq!(again.get(&9_999_999).unwrap().is_some(), !has_image);
    }
}

#[test]
fn a_temporary_store_can_be_copied() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").segment_bytes(64 << 10).background(false).open_temporary().unwrap();
    (0..50_000u64).for_each(|n| store.put(&n, &n).unwrap());
    (0..50_000u64).for_each(|n| _ = store.delete(&n).unwrap());
    (0..3).for_each(|_| store.commit().unwrap());
    store.compact().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    store.snapshot_in(copy.clone()).unwrap();
    assert_eq!(open(&copy).get(&1).unwrap(), None);
}

/// After a loss was accepted, a next step of an earlier backup that is cut short takes nothing from what the backup was.
#[test]
fn a_step_cut_short_after_a_loss_leaves_the_backup() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let options = || Options::new().memory("16MiB").background(false);
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..20_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.snapshot_in(copy.clone()).unwrap();
    crash(store);
    let (log, mut sector) = (files.open(&segment_name(0)).unwrap(), AlignedBuffer::new(1));
    log.read(40960, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[77] ^= 4;
    log.write(40960, sector.bytes()).unwrap();
    let store: Store<u64, u64> = options().accept_loss(true).open_in(files.clone()).unwrap();
    (0..10u64).for_each(|n| store.put(&n, &7).unwrap());
    store.commit().unwrap();
    let before = copy.copy();
    assert!(matches!(store.snapshot_in(copy.clone()), Err(Error::Invalid(_))));
    write_slots_of(&before, &copy);
    let opened = open(&copy);
    let lost = (0..20_000u64).filter(|n| opened.get(n).unwrap() != Some(*n)).count();
    assert_eq!(lost, 0, "keys that the backup has lost");
}

/// Looked into, and killed (or out of space) while its close wrote an image: the backup is still one, with half an image that means
/// nothing.
#[test]
fn an_image_that_a_look_left_behind_is_not_mixed_with_the_next() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store: Store<u64, u64> = Options::new().memory("32MiB").background(false).open_in(files.clone()).unwrap();
    (0..300_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    let before = copy.copy();
    let look: Store<u64, u64> = Options::new().memory("32MiB").background(false).open_in(copy.clone()).unwrap();
    look.close().unwrap();
    // Before the slot that names it.
    for name in before.list().unwrap().into_iter().filter(|name| !name.starts_with("esker.log")) {
        let (from, to) = (before.open(&name).unwrap(), copy.open(&name).unwrap());
        let mut bytes = vec![0; from.bytes().unwrap() as usize];
        from.read(0, &mut bytes).unwrap();
        to.write(0, &bytes).unwrap();
    }
    write_slots_of(&before, &copy);
    assert!(is_sound(&copy));
    (0..299_000u64).for_each(|n| _ = store.delete(&n).unwrap());
    store.commit().unwrap();
    (0..3).for_each(|_| _ = store.compact().unwrap());
    store.save_index().unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    let found = crate::verify::verified(copy.clone());
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(open(&copy).get(&299_999).unwrap(), Some(299_999));
}

#[test]
fn a_backup_that_was_only_looked_into_is_still_one() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    store.put(&1, &1).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    let look = open(&copy);
    assert_eq!(look.get(&1).unwrap(), Some(1));
    look.close().unwrap();
    store.put(&2, &2).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    assert_eq!(open(&copy).get(&2).unwrap(), Some(2));
}

/// Where nothing can be written: nothing is, not even a lock.
#[test]
fn a_store_is_read_where_nothing_can_be_written() {
    let place = tempfile::tempdir().unwrap();
    let store: Store<u64, u64> = Options::new().memory("16MiB").open(place.path()).unwrap();
    (0..100_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    std::fs::remove_file(place.path().join("esker.lock")).unwrap();
    let names = || Directory::read_only(place.path()).unwrap().list().unwrap().len();
    let (before, source) = (names(), Arc::new(Directory::read_only(place.path()).unwrap()));
    assert!(crate::verify::verified(source.clone()).is_sound());
    assert!(source.open("new").is_err() && source.open("esker.manifest").unwrap().write(0, &[0; SECTOR_BYTES]).is_err());
    assert_eq!(names(), before);
}

/// Without it a store that was restored, and whose medium is full when it crashes, did not open again.
#[test]
fn a_copy_has_room_for_a_scar() {
    let (files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let store = open(&files);
    store.put(&1, &1).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    assert_eq!(copy.open(scars::SCARS).unwrap().bytes().unwrap(), SECTOR_BYTES as u64);
    store.put(&2, &2).unwrap();
    store.snapshot_in(copy.clone()).unwrap();
    assert_eq!(copy.open(scars::SCARS).unwrap().bytes().unwrap(), SECTOR_BYTES as u64);
}

/// Each backup wrote all scars again, each with two syncs: also those that its line spoke of.
#[test]
fn a_backup_writes_no_scar_that_it_has() {
    let (mut files, copy) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    let writes = Arc::new(AtomicU64::new(0));
    let minds = writes.clone();
    let minded = Arc::new(Minded::new(copy.clone(), move |name, call| {
        if name == scars::SCARS && matches!(call, Call::Write { .. }) {
            minds.fetch_add(1, SeqCst);
        }
        Ok(())
    }));
    for round in 1..=4u64 {
        let store = open(&files);
        (0..round).for_each(|n| store.put(&n, &round).unwrap());
        store.commit().unwrap();
        store.put(&9, &9).unwrap();
        if round > 2 {
            store.snapshot_in(minded.clone()).unwrap();
            // The new ones together, and the zeros behind them.
            assert_eq!(writes.swap(0, SeqCst), 2, "round {round}");
            store.snapshot_in(minded.clone()).unwrap();
            assert_eq!(writes.swap(0, SeqCst), 0, "round {round}");
            assert_eq!(crate::verify::verified(copy.clone()).scars, round - 1);
        }
        files = Arc::new(files.copy());
    }
}
