//! What readers of the code suspected and then showed, each in its smallest case: states that need a power cut, damage or a copy at one
//! certain moment.

use esker::{Durability, Error, MemoryStorage, Options, Store, backup, salvage_in, verify_in};
use esker_sim::disk::Failure;
use esker_sim::storage::{SimStorage, StorageFault};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A backup of a store at rest is of what no sync has settled; where the line before wrote nothing, no scar tells that it is gone.
#[test]
fn a_backup_at_rest_of_what_was_not_synced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = |path: &Path| -> Store<u64, u64> {
        Options::new().memory("16MiB").background(false).segment_bytes(64 << 10).durability(Durability::Always).open(path).unwrap()
    };
    let store = open(&path("live"));
    let pairs: Vec<(u64, u64)> = (100..20_000).map(|n| (n, n)).collect();
    store.put_many(&pairs).unwrap();
    let keys: Vec<u64> = (100..20_000).collect();
    store.delete_many(&keys).unwrap();
    (0..50).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    // The last line moves the log's beginning, and writes nothing.
    let tail = store.stats().log.tail;
    assert!(store.compact_stretch().unwrap());
    store.commit().unwrap();
    assert_eq!(store.stats().log.tail, tail);
    // Killed while the line of the next put was written and not yet synced: in the page cache, or the drive's.
    copy_dir(&path("live"), &path("before"));
    store.put(&7, &1_000_007).unwrap();
    copy_dir(&path("live"), &path("killed"));
    std::mem::forget(store);
    // Somebody backs up what he finds.
    backup(path("killed"), path("backup"), |_, _| ControlFlow::Continue(())).unwrap();
    // The power goes: what was not synced is gone.
    let store = open(&path("before"));
    assert_eq!(store.get(&7).unwrap(), Some(7));
    for n in 0..10 {
        store.put(&(n + 20), &(n + 2_000_000)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let want = |n: u64| if (20..30).contains(&n) { n - 20 + 2_000_000 } else { n };
    let result = backup(path("before"), path("backup"), |_, _| ControlFlow::Continue(()));
    let copy = Options::new().memory("16MiB").background(false).promotion(false).open::<u64, u64>(path("backup"));
    let wrong: Vec<_> = match &copy {
        Ok(copy) => (0..50).map(|n| (n, copy.get(&n))).filter(|(n, v)| !matches!(v, Ok(Some(v)) if *v == want(*n))).collect(),
        Err(error) => panic!("{error}"),
    };
    assert!(result.is_err() || wrong.is_empty(), "the backup says it is as of the store's line, and holds {wrong:?}");
}

/// A backup with one damaged copy of a slot, whose next step was cut short, is looked into with `accept_loss`, which mends it. Its next
/// step, cut short.
#[test]
fn a_mended_backup_is_what_it_was_when_its_next_step_is_cut_short() {
    let files: Arc<MemoryStorage> = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
    (0..1000).for_each(|n| store.put(&n, &n).unwrap());
    let first = SimStorage::new();
    store.snapshot_in(Arc::new(first.clone())).unwrap();
    let copy = first.restarted();
    copy.flip_bit("esker.manifest", (3 * 4096 + 77) * 8);
    let look: Store<u64, u64> =
        Options::new().memory("16MiB").background(false).promotion(false).accept_loss(true).open_in(Arc::new(copy.clone())).unwrap();
    assert_eq!(look.get(&7).unwrap(), Some(7));
    look.close().unwrap();
    drop(look);
    let copy = copy.restarted();
    assert!(verify_in(Arc::new(copy.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    (0..1000).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    store.snapshot_in(Arc::new(copy.clone())).unwrap();
    let mut bad = Vec::new();
    copy.film().play(|moment| -> Option<()> {
        let there = moment.storage(&moment.all_kept());
        let opened = Options::new().memory("16MiB").background(false).promotion(false).open_in::<u64, u64>(Arc::new(there));
        match opened {
            Ok(opened) => {
                let value = opened.get(&7).unwrap();
                assert!(value == Some(7) || value == Some(8), "{value:?}");
            }
            Err(error) => bad.push(format!("after {} calls ({}): {error}", moment.calls, moment.describe())),
        }
        None
    });
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A store whose making was cut short behind its manifest never gets the room for its first scar.
#[test]
fn a_store_whose_making_was_cut_short_has_room_for_a_scar() {
    let open = |files: &SimStorage| -> Result<Store<u64, u64>, esker::Error> {
        Options::new().memory("16MiB").background(false).open_in(Arc::new(files.clone()))
    };
    let fresh = SimStorage::new();
    drop(open(&fresh).unwrap());
    let mut without = None;
    fresh.film().play(|moment| -> Option<()> {
        let there = moment.storage(&moment.all_kept());
        let names: Vec<String> = there.files().into_iter().map(|(name, _)| name).collect();
        if there.sector("esker.manifest", 1) != [0; 4096] && !names.contains(&"esker.scars".into()) && open(&there.restarted()).is_ok() {
            without = Some(there);
        }
        None
    });
    let files = without.expect("a cut between the two").restarted();
    let store = open(&files).unwrap();
    store.put(&1, &1).unwrap();
    store.commit().unwrap();
    let names: Vec<_> = files.files();
    assert!(names.iter().any(|(name, bytes)| name == "esker.scars" && *bytes >= 4096), "no room for a scar: {names:?}");
}

/// Where the list of scars is damaged, a record of a torn line is taken together with what lies behind the scar: a value that nobody wrote,
/// and what was acknowledged there is lost, which is told nowhere.
#[test]
fn salvage_without_the_list_of_scars_makes_no_values() {
    let open = |files: &SimStorage| -> Store<u64, [u8]> {
        Options::new().memory("16MiB").background(false).open_in(Arc::new(files.clone())).unwrap()
    };
    let files = SimStorage::new();
    let store = open(&files);
    store.put(&1, &[1; 50]).unwrap();
    store.commit().unwrap();
    // Of this line the first block is written, and no other, when the power goes.
    store.put(&2, &[2; 6000]).unwrap();
    store.commit().unwrap();
    let torn = files.restarted();
    drop(store);
    let log = "esker.log.00000000";
    torn.truncate(log, 3 * 4096);
    let store = open(&torn);
    assert_eq!(store.get(&2).unwrap(), None);
    (10..20).for_each(|n| store.put(&n, &[n as u8; 100]).unwrap());
    store.commit().unwrap();
    store.close().unwrap();
    drop(store);
    let damaged = torn.restarted();
    assert!(verify_in(Arc::new(torn.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    damaged.flip_bit("esker.scars", 77);
    let into: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    let done = salvage_in(Arc::new(damaged), &into, |_, _| ControlFlow::Continue(())).unwrap();
    assert!(done.damaged > 0 && done.lost_bytes > 0 && done.guessed == 0, "{done:?}");
    let two = into.get(&2).unwrap();
    let kept = (10..20).filter(|n| into.get(n).unwrap() == Some(vec![*n as u8; 100])).count();
    assert!(
        two.is_none() || two == Some(vec![2; 6000]),
        "a value that never was: {:?}",
        two.map(|two| two.iter().copied().collect::<std::collections::BTreeSet<u8>>())
    );
    assert_eq!(kept, 10);
}

/// An image number comes back after the newest slot was lost; the backup's image of that number is written over in place before the slot.
#[test]
fn a_backup_is_not_spoiled_by_an_image_whose_number_comes_back() {
    let open = |files: &SimStorage, accept: bool| -> Store<u64, u64> {
        Options::new().memory("16MiB").background(false).accept_loss(accept).open_in(Arc::new(files.clone())).unwrap()
    };
    let files = SimStorage::new();
    let store = open(&files, false);
    (0..200_000).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    // Two more, of the same moment: one slot each.
    store.save_index().unwrap();
    let copy = SimStorage::new();
    store.snapshot_in(Arc::new(copy.clone())).unwrap();
    let crashed = files.restarted();
    drop(store);
    // The newest slot is lost, both copies.
    let sequence = |sector: u64| {
        let bytes = crashed.sector("esker.manifest", sector);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("sequence=").map(|n| u64::from_str_radix(n, 16).unwrap()));
        line.unwrap()
    };
    let newest = if sequence(0) > sequence(1) { 0 } else { 1 };
    crashed.flip_bit("esker.manifest", newest * 4096 * 8 + 99);
    crashed.flip_bit("esker.manifest", (newest + 2) * 4096 * 8 + 99);
    let store = open(&crashed, true);
    assert_eq!(store.get(&199_999).unwrap(), Some(199_999));
    (0..100_000).for_each(|n| store.put(&n, &7).unwrap());
    store.commit().unwrap();
    let copy = copy.restarted();
    // It may be refused.
    let _ = store.snapshot_in(Arc::new(copy.clone()));
    let mut bad = Vec::new();
    copy.film().play(|moment| -> Option<()> {
        let there = moment.storage(&moment.all_kept());
        if let Ok(found) = verify_in(Arc::new(there), |_, _| ControlFlow::Continue(()))
            && !found.is_sound()
        {
            bad.push(format!("after {} calls ({}): {:?}", moment.calls, moment.describe(), found.damage));
        }
        None
    });
    assert!(bad.is_empty(), "{:#?}", bad);
}

/// A blank sector in the list of scars was no refusal to who accepts a loss: what the crash had undone was there again.
#[test]
fn a_blank_list_of_scars_brings_nothing_back_to_who_accepts_a_loss() {
    let open = |files: &SimStorage, accept: bool| -> Result<Store<u64, [u8]>, esker::Error> {
        Options::new().memory("16MiB").background(false).accept_loss(accept).open_in(Arc::new(files.clone()))
    };
    let files = SimStorage::new();
    let store = open(&files, false).unwrap();
    store.put(&1, &[1; 50]).unwrap();
    store.commit().unwrap();
    // A line of which the last block is missing when the power goes.
    store.put(&1, &[66; 50]).unwrap();
    (100..130).for_each(|n| store.put(&n, &[66; 100]).unwrap());
    store.put(&2, &[2; 6000]).unwrap();
    store.commit().unwrap();
    let torn = files.restarted();
    drop(store);
    let log = "esker.log.00000000";
    let blocks = torn.files().iter().find(|(name, _)| name == log).unwrap().1 / 4096;
    let last = (0..blocks).rev().find(|block| torn.sector(log, *block) != [0; 4096]).unwrap();
    torn.truncate(log, last * 4096);
    let store = open(&torn, false).unwrap();
    assert_eq!((store.get(&1).unwrap(), store.get(&100).unwrap()), (Some(vec![1; 50]), None));
    (10..20).for_each(|n| store.put(&n, &[n as u8; 100]).unwrap());
    store.commit().unwrap();
    let killed = torn.restarted();
    drop(store);
    killed.zero_sector("esker.scars", 0);
    for accept in [false, true] {
        let refused = open(&killed.restarted(), accept).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Corruption(_)), "{refused}");
    }
}

/// A store of bytes in a simulated directory, in files so short that there are many.
fn open_bytes(disk: &SimStorage, accepts_loss: bool) -> Store<u64, [u8]> {
    let options = Options::new().memory("16MiB").background(false).promotion(false).segment_bytes(1 << 16).accept_loss(accepts_loss);
    options.open_in(Arc::new(disk.clone())).unwrap()
}

/// Makes a backup, and adds to it.
fn back_up_twice(store: &Store<u64, [u8]>) {
    let place = SimStorage::new();
    store.snapshot_in(Arc::new(place.clone())).unwrap();
    store.put(&3, &[4; 8]).unwrap();
    assert!(verify_in(Arc::new(place.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    store.snapshot_in(Arc::new(place.clone())).unwrap();
    assert_eq!(open_bytes(&place.restarted(), false).get(&3).unwrap(), Some(vec![4; 8]));
}

/// The block below the backup's cut was looked for where nobody has one: in what a crash had left behind a line.
#[test]
fn a_backup_whose_line_ends_behind_a_scar_is_added_to() {
    let disk = SimStorage::new();
    let store = open_bytes(&disk, false);
    store.put(&1, &[1; 8]).unwrap();
    for round in 0..4000u64 {
        store.put(&2, &[round as u8; 1000]).unwrap();
        if round % 8 == 0 {
            store.commit().unwrap();
        }
    }
    store.put(&1, &[2; 8]).unwrap();
    store.commit().unwrap();
    // Written, and in no line.
    (10..20_000).for_each(|key| store.put(&key, &[3; 1000]).unwrap());
    let crashed = disk.restarted();
    drop(store);
    let store = open_bytes(&crashed, false);
    // The next line moves the log's beginning alone.
    assert!(store.compact_stretch().unwrap());
    back_up_twice(&store);
}

#[test]
fn a_backup_made_after_a_lost_image_is_added_to() {
    let disk = SimStorage::new();
    let store = open_bytes(&disk, false);
    store.put(&1, &[1; 8]).unwrap();
    store.close().unwrap();
    disk.flip_bit("index.1", 77);
    open_bytes(&disk, true).close().unwrap();
    assert!(verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    back_up_twice(&open_bytes(&disk, false));
}

/// Of what lies in a scar there is no file to share, and nothing behind it was shared.
#[test]
fn files_behind_a_long_scar_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let [first, crashed, one, two] = ["first", "crashed", "one", "two"].map(|name| folder.path().join(name));
    let open =
        |path: &Path| -> Store<u64, [u8]> { Options::new().memory("16MiB").background(false).segment_bytes(1 << 16).open(path).unwrap() };
    let put = |store: &Store<u64, [u8]>, keys: std::ops::Range<u64>| keys.for_each(|key| store.put(&key, &[1; 1000]).unwrap());
    let store = open(&first);
    put(&store, 0..1000);
    store.commit().unwrap();
    put(&store, 1000..20_000);
    copy_dir(&first, &crashed);
    drop(store);
    let store = open(&crashed);
    put(&store, 1000..11_000);
    store.snapshot_to(&one).unwrap();
    put(&store, 11_000..11_100);
    store.snapshot_from(&one, &two).unwrap();
    let logs = |place: &Path| -> Vec<std::fs::DirEntry> {
        let is_log = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("esker.log");
        std::fs::read_dir(place).unwrap().map(Result::unwrap).filter(is_log).collect()
    };
    let (shared, all) = (logs(&two).iter().filter(|file| file.metadata().unwrap().nlink() > 1).count(), logs(&one).len());
    assert!(shared + 5 > all, "{shared} of {all}");
}

/// What fails behind a backup's last step, which is its manifest, is no failure of the backup.
#[test]
fn a_backup_that_failed_is_what_it_was() {
    let open = |disk: &SimStorage| -> Store<u64, [u8]> {
        Options::new().memory("16MiB").background(false).promotion(false).open_in(Arc::new(disk.clone())).unwrap()
    };
    let (disk, place) = (SimStorage::new(), SimStorage::new());
    let store = open(&disk);
    for value in [1, 2] {
        store.put(&1, &[value]).unwrap();
        store.save_index().unwrap();
        if value == 1 {
            store.snapshot_in(Arc::new(place.clone())).unwrap();
        }
    }
    let trial = place.restarted();
    store.snapshot_in(Arc::new(trial.clone())).unwrap();
    let calls = trial.calls().len() as u64;
    let mut failed_and_new = Vec::new();
    for nth in 1..=calls {
        let place = place.restarted();
        place.fail(StorageFault { nth, lasting: false, failure: Failure::Io, kept: 0 });
        let result = store.snapshot_in(Arc::new(place.clone()));
        let is_new = open(&place.restarted()).get(&1).unwrap() == Some(vec![2]);
        assert!(is_new || result.is_err(), "call {nth}");
        failed_and_new.extend((is_new && result.is_err()).then_some(nth));
    }
    // One of two copies is written; it is not synced; its name is not.
    assert!(failed_and_new.len() <= 3, "{failed_and_new:?} of {calls}");
}

/// The older slot spoke of log that compaction had given back: without the newer one nothing of the store was found.
#[test]
fn either_slot_alone_leads_to_the_store_after_compaction() {
    let disk = SimStorage::new();
    let store = open_bytes(&disk, false);
    for round in 0..3u8 {
        (0..2000).for_each(|key| store.put(&key, &[round; 1000]).unwrap());
        store.commit().unwrap();
    }
    store.compact().unwrap();
    let closed = disk.restarted();
    open_bytes(&closed, false).close().unwrap();
    open_bytes(&closed, false);
    for (disk, slot) in [&disk, &closed].into_iter().flat_map(|disk| [(disk, 0), (disk, 1)]) {
        let disk = disk.restarted();
        assert!(verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
        for sector in [slot, slot + 2] {
            disk.flip_bit("esker.manifest", sector * 4096 * 8 + 800);
        }
        let into: Store<u64, [u8]> = Options::new().memory("64MiB").background(false).in_memory().unwrap();
        salvage_in(Arc::new(disk.restarted()), &into, |_, _| ControlFlow::Continue(())).unwrap();
        let carried = (0..2000).filter(|key| into.contains(key).unwrap()).count();
        let store = open_bytes(&disk, true);
        let there = (0..2000).filter(|key| store.get(key).ok().flatten() == Some(vec![2; 1000])).count();
        assert_eq!((carried, there), (2000, 2000), "without slot {slot}");
    }
}
