//! Openings after crashes: what counts, what does not, and damage.

use super::*;
use crate::device::{AlignedBuffer, Device};
use crate::manifest;
use crate::record::Record;
use crate::rehearse::Crowding;
use crate::scars::SCARS;
use crate::{Durability, MemoryStorage, Options, Storage, Store};
use std::ops::ControlFlow;
use std::sync::Mutex;

/// The store is left as a crash leaves it: never closed. It is kept: what nobody can reach any more is a leak to a sanitizer.
fn crash(store: impl Send + 'static) {
    static CRASHED: Mutex<Vec<Box<dyn std::any::Any + Send>>> = Mutex::new(Vec::new());
    CRASHED.lock().unwrap().push(Box::new(store));
}

/// Something was being written behind the line.
fn write_behind(files: &MemoryStorage) {
    let (log, mut written) = (files.open("esker.log.00000000").unwrap(), AlignedBuffer::new(3));
    written.sector_mut(1)[99] = 1;
    log.write(log.bytes().unwrap(), written.bytes()).unwrap();
}

/// A bit of a block below the line.
fn damage(files: &MemoryStorage) {
    damage_at(&*files.open("esker.log.00000000").unwrap(), 40960);
}

fn damage_at(log: &dyn Device, offset: u64) {
    let mut sector = AlignedBuffer::new(1);
    log.read(offset, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[77] ^= 4;
    log.write(offset, sector.bytes()).unwrap();
}

#[test]
fn a_commit_survives_and_what_came_later_does_not_hurt() {
    let files = Arc::new(MemoryStorage::new());
    for round in 0..5u64 {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for n in 0..round * 10_000 {
            assert_eq!(store.get(&n).unwrap(), Some(n + round - 1), "key {n} in round {round}");
        }
        for n in 0..(round + 1) * 10_000 {
            store.put(&n, &(n + round)).unwrap();
        }
        store.commit().unwrap();
        for n in 0..1000 {
            store.put(&n, &u64::MAX).unwrap();
            store.delete(&(n + 1000)).unwrap();
        }
        crash(store);
    }
}

/// The scan once filled the image's table without growing it first: of two keys that met in one entry there, but not in
/// the table they were written in, one was lost.
#[test]
fn a_small_image_and_a_long_log_lose_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let open = || Options::new().memory("16MiB").background(false).open_in::<u64, u64>(files.clone()).unwrap();
    open().put(&0, &0).unwrap();
    let store = open();
    for n in 0..60_000u64 {
        store.put(&n, &n).unwrap();
    }
    store.commit().unwrap();
    crash(store);
    let store = open();
    for n in 0..60_000u64 {
        assert_eq!(store.get(&n).unwrap(), Some(n));
    }
}

/// Growth gave records in memory fresh full tags; the image knew them by fewer bits of the hash once its table was made as
/// fine. Another key's record, found by the scan, took the place of the one it seemed to succeed.
#[test]
fn a_table_that_grew_behind_its_image_loses_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let open = || Options::new().memory("32MiB").background(false).open_in::<u64, u64>(files.clone()).unwrap();
    let store = open();
    (0..3000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.save_index().unwrap();
    (3000..120_000u64).for_each(|n| store.put(&n, &n).unwrap());
    (0..300u64).for_each(|n| assert!(store.delete(&(n * 10)).unwrap()));
    store.commit().unwrap();
    crash(store);
    for round in 0..2 {
        let store = open();
        for n in 0..120_000u64 {
            let want = (n >= 3000 || n % 10 != 0).then_some(n);
            assert_eq!(store.get(&n).unwrap(), want, "key {n} in round {round}");
        }
        store.compact().unwrap();
        let deleted = (0..300u64).filter_map(|n| store.get(&(n * 10)).unwrap());
        assert_eq!(deleted.count(), 0, "a deleted key came back");
        store.close().unwrap();
    }
}

#[test]
fn opening_tells_how_far_it_is() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
    (0..200_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    crash(store);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = {
        let told = told.clone();
        move |done, all| told.lock().unwrap().push((done, all))
    };
    let store: Store<u64, u64> = Options::new().memory("16MiB").progress(tell).open_in(files).unwrap();
    assert_eq!(store.get(&199_999).unwrap(), Some(199_999));
    let told = told.lock().unwrap();
    assert!(told.len() > 3 && told.is_sorted() && told.iter().all(|(done, all)| done <= all && *all > 4_000_000), "{told:?}");
    assert!(told.last().is_some_and(|(done, all)| done == all));
}

/// Off, the switch hides damage in a value from whoever reads it; on, as ever, it does not.
#[test]
fn reads_are_verified_unless_told_otherwise() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
    store.put(&1, &[7; 100]).unwrap();
    store.close().unwrap();
    let log = files.open("esker.log.00000000").unwrap();
    let mut sector = AlignedBuffer::new(1);
    log.read(4096, sector.bytes_mut()).unwrap();
    let at = sector.bytes().windows(100).position(|bytes| bytes == [7; 100]).unwrap();
    sector.bytes_mut()[at + 50] = 8;
    log.write(4096, sector.bytes()).unwrap();
    for verified in [true, false] {
        let options = Options::new().memory("16MiB").background(false).verify_reads(verified);
        let store: Store<u64, [u8]> = options.open_in(Arc::new(files.copy())).unwrap();
        match store.get(&1) {
            Err(Error::Corruption(_)) => assert!(verified),
            found => assert!(!verified && found.unwrap().unwrap()[50] == 8),
        }
    }
}

/// A durable line's window once began where the last durable one ended: records of the snapshot's line, between, were
/// taken for later ones, by their parity.
#[test]
fn a_line_after_a_snapshot_holds_what_came_before_it() {
    let files = Arc::new(MemoryStorage::new());
    for snapshots in 0..3 {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for n in 0..=snapshots {
            store.put(&n, &n).unwrap();
            drop(store.engine_for_test().snapshot().unwrap());
            store.put(&(n + 10), &n).unwrap();
        }
        store.commit().unwrap();
        crash(store);
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for n in 0..=snapshots {
            assert_eq!((store.get(&n).unwrap(), store.get(&(n + 10)).unwrap()), (Some(n), Some(n)), "{snapshots} snapshots");
        }
        crash(store);
    }
}

#[test]
fn a_shared_index_loses_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let count = 900_000u64;
    for round in 0..3u64 {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        if round > 0 {
            for n in (0..count).step_by(89) {
                assert_eq!(store.get(&n).unwrap(), Some(n + round - 1), "key {n} in round {round}");
            }
        }
        for n in 0..count {
            store.put(&n, &(n + round)).unwrap();
        }
        store.commit().unwrap();
        let home = lock(&store.engine_for_test().home);
        assert!(home.as_ref().unwrap().manifest.state.shared);
        drop(home);
        crash(store);
    }
}

#[test]
fn always_durable_writes_survive_without_a_commit() {
    let files = Arc::new(MemoryStorage::new());
    let options = Options::new().memory("16MiB").durability(Durability::Always).background(false);
    let store: Store<str, [u8]> = options.clone().open_in(files.clone()).unwrap();
    for n in 0..100 {
        store.append(&format!("key {}", n % 7), format!("{n};").as_bytes()).unwrap();
    }
    assert!(store.delete("key 3").unwrap());
    crash(store);
    let store: Store<str, [u8]> = options.open_in(files).unwrap();
    assert_eq!(store.get("key 3").unwrap(), None);
    assert!(store.get("key 2").unwrap().unwrap().starts_with(b"2;9;16;"));
}

#[test]
fn a_damaged_block_stops_the_opening_by_name() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
    for n in 0..100_000 {
        store.put(&n, &n).unwrap();
    }
    store.commit().unwrap();
    crash(store);
    damage(&files);
    let error = Options::new().memory("16MiB").open_in::<u64, u64>(files.clone()).unwrap_err().to_string();
    assert!(error.contains("esker.log") && error.contains("address=40800"), "{error}");
    let store: Store<u64, u64> = Options::new().memory("16MiB").accept_loss(true).open_in(files.clone()).unwrap();
    assert_eq!((store.get(&0).unwrap(), store.get(&99_999).unwrap()), (Some(0), None));
    store.put(&99_999, &7).unwrap();
    store.close().unwrap();
    let found = crate::verify::verified(files.clone());
    assert!(found.is_sound() && found.scars == 1 && found.records > 500, "{found:?}");
    let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(files).unwrap();
    assert_eq!((store.get(&0).unwrap(), store.get(&99_999).unwrap()), (Some(0), Some(7)));
}

/// Of a block that is whole, with something in it that can be no record, all went from where the piece before it had ended: here
/// everything.
#[test]
fn an_impossible_record_is_given_up_from_its_block_on() {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").background(false);
    let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
    // Records reach from block to block.
    (0..2000u64).for_each(|n| store.put(&n, &[7; 50]).unwrap());
    let engine = store.engine_for_test();
    // SAFETY: they are in memory, and nobody writes there.
    let record = |at: u64| unsafe { Record::new(engine.log.pointer(at)) };
    // Keys of one tag share an entry: its chain leads to each.
    let at = |n: u64| {
        let mut at = engine.index.lookup(engine.hash_of(&n.to_le_bytes())).address();
        while record(at).key(engine.layout) != n.to_le_bytes() {
            at = record(at).previous();
        }
        at
    };
    let damaged = (0..2000).find(|n| at(*n) > block_floor(at(1000)) + BLOCK_BYTES / 2).unwrap();
    let block = block_floor(at(damaged));
    let ends: Vec<u64> = (0..2000).map(|n| at(n) + record(at(n)).bytes(engine.layout)).collect();
    record(at(damaged)).header().fetch_and(!crate::record::VALID, Relaxed);
    store.commit().unwrap();
    let files = Arc::new(files.copy());
    assert!(matches!(options().open_in::<u64, [u8]>(files.clone()), Err(Error::Corruption(what)) if what.contains("no record")));
    let again: Store<u64, [u8]> = options().accept_loss(true).open_in(files).unwrap();
    let kept = (0..2000u64).take_while(|n| again.contains(n).unwrap()).count();
    assert_eq!(kept, ends.iter().take_while(|end| **end <= block).count());
    assert!((kept as u64..2000).all(|n| !again.contains(&n).unwrap()) && kept > 900, "{kept}");
}

#[test]
fn verification_names_what_is_damaged_and_changes_nothing() {
    let files = Arc::new(MemoryStorage::new());
    for round in 0..3 {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for n in 0..50_000 {
            store.put(&n, &(n + round)).unwrap();
        }
        store.commit().unwrap();
        crash(store);
        // Something was being written.
        let log = files.open("esker.log.00000000").unwrap();
        let mut written = AlignedBuffer::new(3);
        written.sector_mut(1)[99] = 1;
        log.write(log.bytes().unwrap(), written.bytes()).unwrap();
        let check = |done, all| {
            assert!(done <= all);
            ControlFlow::Continue(())
        };
        let found = crate::verify_in(files.clone(), check).unwrap();
        assert!(found.is_sound() && found.scars == round && found.records >= 50_000, "{found:?}");
    }
    let log = files.open("esker.log.00000000").unwrap();
    let mut sector = AlignedBuffer::new(1);
    for number in [3, 700] {
        log.read(number * 4096, sector.bytes_mut()).unwrap();
        sector.bytes_mut()[4095] ^= 128;
        log.write(number * 4096, sector.bytes()).unwrap();
    }
    let found = crate::verify::verified(files.clone());
    assert_eq!(found.damaged, 2, "{found:?}");
    assert!(found.damage[1].contains(&format!("address={}", 700 * 4080)), "{found:?}");
    // A file that was missing once hid all else: each of its blocks was a place.
    log.write(100 * 4096, AlignedBuffer::new(50).bytes()).unwrap();
    let found = crate::verify::verified(files);
    assert_eq!((found.damaged, found.damage.len()), (3, 3), "{found:?}");
    let at = |number: u64| format!("address={} ", number * 4080);
    assert!(found.damage[1].contains(&at(100)) && found.damage[1].ends_with("blocks=50"), "{found:?}");
    assert!(found.damage[2].contains(&at(700)) && !found.damage[2].contains("blocks="), "{found:?}");
}

/// Commits beside an operation, 7 for the key 2, that takes its place below the cut and its number behind it: it belongs to the next line.
fn commit_beside_one_of_the_next_line(store: &Store<u64, u64>) {
    commit_beside_one_of_the_next_line_and_many_of_this(store, 0);
}

/// The same with so many operations of the line, by another thread, that took their places behind it.
fn commit_beside_one_of_the_next_line_and_many_of_this(store: &Store<u64, u64>, many: u64) {
    use crate::index::Keys;
    use std::sync::atomic::Ordering::*;
    let engine = store.engine_for_test();
    std::thread::scope(|scope| {
        let pin = engine.epochs.pin().unwrap();
        let key = 2u64.to_le_bytes();
        let at = engine.log.allocate(pin.slot, 24).unwrap();
        scope.spawn(|| (1000..1000 + many).for_each(|n| store.put(&n, &n).unwrap())).join().unwrap();
        let drawn = scope.spawn(|| store.commit());
        while engine.log.bounds.floor.load(SeqCst) <= at {
            std::thread::yield_now();
        }
        let hash = engine.hash_of(&key);
        let seen = engine.index.lookup(hash);
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(engine.log.pointer(at)) };
        record.write_word(&key, 7, seen.address(), engine.log.line_flag());
        engine.index.publish(hash, &seen, at, Keys::Unknown, &mut false, |_| {});
        drop(pin);
        drawn.join().unwrap().unwrap();
    });
}

/// What belongs to the next line a crash loses, for good.
#[test]
fn what_a_crash_lost_does_not_come_back() {
    let files = Arc::new(MemoryStorage::new());
    let open = |files: &Arc<MemoryStorage>| -> Store<u64, u64> {
        Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap()
    };
    let store = open(&files);
    store.put(&1, &1).unwrap();
    commit_beside_one_of_the_next_line(&store);
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap()), (Some(1), Some(7)));
    // Power fails. Somebody may look before all goes on, and may be unlucky with the image that he leaves.
    let files = Arc::new(files.copy());
    for spoils in [false, true] {
        let look = open(&files);
        assert_eq!((look.get(&1).unwrap(), look.get(&2).unwrap()), (Some(1), None));
        look.close().unwrap();
        drop(look);
        let images = files.list().unwrap().into_iter().filter(|name| spoils && name.starts_with("index."));
        for name in images {
            files.open(&name).unwrap().write(0, AlignedBuffer::new(1).bytes()).unwrap();
        }
    }
    let again: Store<u64, u64> = Options::new().memory("16MiB").background(false).accept_loss(true).open_in(files.clone()).unwrap();
    assert_eq!((again.get(&1).unwrap(), again.get(&2).unwrap()), (Some(1), None));
    again.put(&3, &3).unwrap();
    again.commit().unwrap();
    assert_eq!(again.get(&2).unwrap(), None);
    let mut keys = Vec::new();
    again.scan().for_each(|key, _| keys.push(key)).unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [1, 3]);
    assert!(crate::verify::verified(Arc::new(files.copy())).is_sound());
    // And again.
    let files = Arc::new(files.copy());
    let third = open(&files);
    assert_eq!((third.get(&1).unwrap(), third.get(&2).unwrap(), third.get(&3).unwrap()), (Some(1), None, Some(3)));
}

/// Nor where the scar that says so is given up later, with what lies behind damage: what it excludes below the damage stays excluded,
/// though the acceptance be cut short when its own scar has taken that one's place.
#[test]
fn what_a_crash_lost_does_not_come_back_with_a_loss() {
    [false, true].into_iter().for_each(lose_and_accept_a_loss);
}

fn lose_and_accept_a_loss(cut_short: bool) {
    let files = Arc::new(MemoryStorage::new());
    let open = |files: &Arc<MemoryStorage>, accept_loss| {
        let options = Options::new().memory("16MiB").background(false).accept_loss(accept_loss);
        options.open_in::<u64, u64>(files.clone()).unwrap()
    };
    let store = open(&files, false);
    store.put(&1, &1).unwrap();
    commit_beside_one_of_the_next_line_and_many_of_this(&store, 2000);
    assert_eq!(store.get(&2).unwrap(), Some(7));
    let files = Arc::new(files.copy());
    crash(store);
    let store = open(&files, false);
    assert_eq!(store.get(&2).unwrap(), None);
    store.put(&3, &3).unwrap();
    // A slot knows of the scar.
    store.close().unwrap();
    let files = Arc::new(files.copy());
    let images = files.list().unwrap().into_iter().filter(|name| image::is_image(name));
    images.for_each(|name| files.remove(&name).unwrap());
    // Behind the record, in the same line.
    let log = files.open("esker.log.00000000").unwrap();
    let mut sector = AlignedBuffer::new(1);
    log.read(5 * SECTOR_BYTES as u64, sector.bytes_mut()).unwrap();
    sector.bytes_mut()[77] ^= 4;
    log.write(5 * SECTOR_BYTES as u64, sector.bytes()).unwrap();
    if cut_short {
        let lossy = Arc::new(files.copy());
        drop(open(&lossy, true));
        lossy.open(SCARS).unwrap().read(0, sector.bytes_mut()).unwrap();
        files.open(SCARS).unwrap().write(0, sector.bytes()).unwrap();
    }
    let store = open(&files, true);
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap()), (Some(1), None));
    store.close().unwrap();
    // The log says all that the image said.
    let image = files.list().unwrap().into_iter().find(|name| image::is_image(name)).unwrap();
    files.remove(&image).unwrap();
    let store = open(&files, true);
    assert_eq!((store.get(&1).unwrap(), store.get(&2).unwrap(), store.get(&1000).unwrap()), (Some(1), None, Some(1000)));
}

fn with_small_files(files: &Arc<MemoryStorage>) -> Store<u64, u64> {
    Options::new().memory("16MiB").segment_bytes(256 << 10).background(false).open_in(files.clone()).unwrap()
}

/// The files that the slot says have gone were removed before anything else was looked at: beside an older log, as a copy of the files that
/// was cut short leaves it, these were all there was.
#[test]
fn a_manifest_that_is_not_the_logs_removes_nothing() {
    for image_too in [false, true] {
        let files = Arc::new(MemoryStorage::new());
        let store = with_small_files(&files);
        (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
        store.close().unwrap();
        let old = Arc::new(files.copy());
        let store = with_small_files(&files);
        while device_offset(store.stats().log.begin) < old.open("esker.log.00000000").unwrap().bytes().unwrap() * 8 {
            (0..50_000).for_each(|n| store.put(&n, &(n + 1)).unwrap());
            store.compact().unwrap();
        }
        store.close().unwrap();
        let mixed = Arc::new(old.copy());
        let name_of = |storage: &MemoryStorage| storage.list().unwrap().into_iter().find(|name| image::is_image(name)).unwrap();
        let newer: Vec<_> = [Some("esker.manifest".into()), image_too.then(|| name_of(&files))].into_iter().flatten().collect();
        for name in newer {
            let (from, to) = (files.open(&name).unwrap(), mixed.open(&name).unwrap());
            let mut bytes = AlignedBuffer::new(from.bytes().unwrap() as usize / SECTOR_BYTES);
            from.read(0, bytes.bytes_mut()).unwrap();
            to.write(0, bytes.bytes()).unwrap();
        }
        let files_of_log = || mixed.list().unwrap().into_iter().filter(|name| name.starts_with("esker.log")).collect::<Vec<_>>();
        let names = files_of_log();
        let opened = Options::new().memory("16MiB").background(false).open_in::<u64, u64>(mixed.clone());
        match opened {
            // The image is all that an opening reads then.
            Ok(store) if image_too => crash(store),
            Err(Error::Corruption(_)) if !image_too => {}
            opened => panic!("{:?}", opened.err()),
        }
        assert_eq!(files_of_log(), names);
    }
}

/// It was refused when all of it had been read, twice, and took the memory of the index meanwhile.
#[test]
fn a_budget_that_is_too_small_is_refused_before_anything_is_read() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = Options::new().memory("64MiB").background(false).open_in(files.clone()).unwrap();
    (0..2_000_000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    let options = Options::new().memory("16MiB").progress(|_, _| panic!("it was read"));
    let opened = options.open_in::<u64, u64>(files);
    assert!(matches!(&opened, Err(Error::Invalid(why)) if why.contains("memory budget")), "{:?}", opened.err());
}

/// An index that leads to where no line came behind: it was believed, and keys looked for at places without a record.
#[test]
fn an_image_that_leads_beyond_the_last_line_is_damage() {
    let files = Arc::new(MemoryStorage::new());
    let store = with_small_files(&files);
    (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    let cut = manifest::Manifest::open(&*files, None, false).unwrap().unwrap().state.cut;
    assert!(with_small_files(&Arc::new(files.copy())).contains(&7).unwrap());
    let mut manifest = manifest::Manifest::open(&*files, None, false).unwrap().unwrap();
    let lower = |state: &mut manifest::State| {
        (state.cut, state.window, state.image_until) =
            (cut - 10 * BLOCK_BYTES, cut - 10 * BLOCK_BYTES, state.image_until.min(cut - 10 * BLOCK_BYTES));
    };
    (0..2).for_each(|_| manifest.write(lower).unwrap());
    let opened = Options::new().memory("16MiB").open_in::<u64, u64>(files);
    assert!(matches!(&opened, Err(Error::Corruption(what)) if what.contains("image")), "{:?}", opened.err());
}

/// The first line after a crash only moved the log's beginning: it ended where the scar began, and took its place. What the next lines told
/// of themselves was not looked for.
#[test]
fn lines_behind_one_that_wrote_nothing_count() {
    let files = Arc::new(MemoryStorage::new());
    let store = with_small_files(&files);
    (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
    (0..50_000).for_each(|n| _ = store.delete(&n).unwrap());
    store.commit().unwrap();
    let files = Arc::new(files.copy());
    let store = with_small_files(&files);
    let begin = store.stats().log.begin;
    store.compact().unwrap();
    assert!(store.stats().log.begin > begin);
    for round in 7..10 {
        store.put(&1, &round).unwrap();
        store.commit().unwrap();
        assert_eq!(with_small_files(&Arc::new(files.copy())).get(&1).unwrap(), Some(round));
    }
}

/// The same line hid what the scar knew of the one before: that something in its window did not count.
#[test]
fn what_a_crash_lost_does_not_come_back_behind_a_line_that_wrote_nothing() {
    let files = Arc::new(MemoryStorage::new());
    let store = with_small_files(&files);
    for round in 0..6u64 {
        (100..100_000).for_each(|n| store.put(&n, &(n + round)).unwrap());
        store.commit().unwrap();
    }
    store.put(&1, &1).unwrap();
    commit_beside_one_of_the_next_line(&store);
    let files = Arc::new(files.copy());
    let look = with_small_files(&files);
    let begin = look.stats().log.begin;
    (0..20).take_while(|_| look.stats().log.begin == begin).for_each(|_| _ = look.engine_for_test().compact_once().unwrap());
    assert!(look.stats().log.begin > begin);
    let again = with_small_files(&Arc::new(files.copy()));
    assert_eq!((again.get(&1).unwrap(), again.get(&2).unwrap()), (Some(1), None));
}

/// A sector of zeros ends the list of scars: that none is missing the manifest says.
#[test]
fn a_scar_that_is_missing_is_damage() {
    let open =
        |files: &Arc<MemoryStorage>| -> Result<Store<u64, u64>> { Options::new().memory("16MiB").background(false).open_in(files.clone()) };
    let spoil: [&dyn Fn(&MemoryStorage); 2] =
        [&|files| files.open("esker.scars").unwrap().write(0, AlignedBuffer::new(1).bytes()).unwrap(), &|files| {
            files.remove("esker.scars").unwrap()
        }];
    for spoil in spoil {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        (0..1000).for_each(|n| store.put(&n, &1).unwrap());
        store.commit().unwrap();
        // Never committed, and written for want of room.
        (0..700_000).for_each(|n| store.put(&n, &2).unwrap());
        let files = Arc::new(files.copy());
        crash(store);
        let store = open(&files).unwrap();
        store.put(&5000, &3).unwrap();
        // A slot, which a line alone need not be.
        store.close().unwrap();
        drop(store);
        assert_eq!(open(&files).unwrap().get(&999).unwrap(), Some(1));
        spoil(&files);
        let found = crate::verify::verified(files.clone());
        let refused = open(&files).map(|_| ()).unwrap_err();
        assert!(!found.is_sound() && matches!(refused, Error::Corruption(_)), "{found:?} {refused}");
        // Nor for who accepts a loss: it would bring back what the crash had lost. What can be saved salvage saves.
        let refused = Options::new().memory("16MiB").accept_loss(true).open_in::<u64, u64>(files.clone()).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Corruption(_)), "{refused}");
        let into: Store<u64, u64> = Options::new().memory("64MiB").in_memory().unwrap();
        crate::salvage_in(files, &into, |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(into.get(&5000).unwrap(), Some(3));
    }
}

/// Scars above the loss lie in the stretch that is given up.
#[test]
fn what_was_given_up_hides_older_scars() {
    let files = Arc::new(MemoryStorage::new());
    for round in 0..3u64 {
        let store: Store<u64, u64> =
            Options::new().memory("16MiB").segment_bytes(256 << 20).background(false).open_in(files.clone()).unwrap();
        (0..50_000).for_each(|n| store.put(&n, &(n + round)).unwrap());
        store.commit().unwrap();
        crash(store);
        write_behind(&files);
    }
    damage(&files);
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).accept_loss(true).open_in(files.clone()).unwrap();
    (0..1000).for_each(|n| store.put(&n, &77).unwrap());
    store.close().unwrap();
    drop(store);
    let found = crate::verify::verified(files.clone());
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
    let backup = store.snapshot_in(Arc::new(MemoryStorage::new()));
    let compacted = store.compact();
    assert!(found.is_sound() && found.scars == 1 && backup.is_ok() && compacted.is_ok(), "{found:?} {backup:?} {compacted:?}");
}

/// An opening that accepted a loss had told of it in the list, and was cut short. The next one went around the damage, wrote behind it, and
/// nobody opened the store any more.
#[test]
fn a_loss_whose_acceptance_was_cut_short_is_met_again() {
    [false, true].into_iter().for_each(accept_and_be_cut_short);
}

fn accept_and_be_cut_short(something_is_behind: bool) {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").segment_bytes(256 << 20).background(false);
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..50_000).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    crash(store);
    if something_is_behind {
        write_behind(&files);
    }
    damage(&files);
    let mut sector = AlignedBuffer::new(1);
    let lossy = Arc::new(files.copy());
    let open = |accepts: bool, files: &Arc<MemoryStorage>| options().accept_loss(accepts).open_in::<u64, u64>(files.clone());
    drop(open(true, &lossy).unwrap());
    lossy.open(SCARS).unwrap().read(0, sector.bytes_mut()).unwrap();
    files.open(SCARS).unwrap().write(0, sector.bytes()).unwrap();
    assert!(matches!(open(false, &files), Err(Error::Corruption(_))));
    let store = open(true, &files).unwrap();
    (0..1000).for_each(|n| store.put(&n, &77).unwrap());
    store.close().unwrap();
    drop(store);
    let store = open(false, &files).unwrap();
    assert!((0..1000).all(|n| store.get(&n).unwrap() == Some(77)) && store.get(&49_999).unwrap().is_none());
}

/// An image of a coarser table leaves tags too short for what it has become, so that each key that was put since has two entries. Where
/// these do not fit the log is read as a whole.
#[test]
fn a_store_opens_with_its_own_budget_after_it_grew_and_crashed() {
    let files = Arc::new(MemoryStorage::new());
    let open = |files: &Arc<MemoryStorage>| -> Store<u64, u64> {
        Options::new().memory("95MiB").background(false).promotion(false).open_in(files.clone()).unwrap()
    };
    let mut from = 0u64;
    for to in [2_700_000, 3_400_000, 4_100_000, 4_950_000] {
        let store = open(&files);
        (from..to).for_each(|n| store.put(&n, &n).unwrap());
        from = to;
        store.close().unwrap();
    }
    let store = open(&files);
    (0..from).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    store.commit().unwrap();
    let crashed = files.copy();
    // Where all that the image leads to has gone its entries are there as well.
    store.compact().unwrap();
    store.commit().unwrap();
    crash(store);
    for files in [crashed, files.copy()] {
        let store = open(&Arc::new(files));
        for n in (0..from).step_by(101) {
            assert_eq!(store.get(&n).unwrap(), Some(n + 1));
        }
    }
}

/// Recovery made copies of what was superseded, too: and where a second one found no image it made copies of those, or gave up what
/// superseded them with the damage behind which that lay.
#[test]
fn a_copy_that_recovery_made_outlives_nothing_that_superseded_it() -> Result<()> {
    let files = Arc::new(MemoryStorage::new());
    let options = || Options::new().memory("16MiB").background(false).promotion(false);
    // By a few seeds the key of which a copy is looked for shares its entry with another one that was deleted.
    let seed = Crowding { hash_seed: [1, 2], index_bytes: u64::MAX };
    let store: Store<u64, u64> = options().crowding(seed).open_in(files.clone())?;
    (0..900_000u64).for_each(|n| store.put(&n, &n).unwrap());
    store.close()?;
    let store: Store<u64, u64> = options().open_in(files.clone())?;
    let keys = || (0..900_000u64).step_by(450);
    for value in [1, 2] {
        keys().for_each(|n| store.put(&n, &value).unwrap());
        store.commit()?;
    }
    keys().for_each(|n| assert!(store.delete(&n).unwrap()));
    store.commit()?;
    assert!(store.engine_for_test().index.is_shared());
    crash(store);
    let store: Store<u64, u64> = options().open_in(files.clone())?;
    let engine = store.engine_for_test();
    let (first, end) = (engine.scars.all().pop().unwrap().behind, engine.log.tail());
    let copy = engine.index.lookup(engine.hash_of(&(450 * 1500u64).to_le_bytes())).address();
    assert!((first + 2000 * 24..end).contains(&copy), "of a deletion, behind those of values");
    store.put(&0, &3)?;
    store.commit()?;
    damage_at(&**engine.log.device.as_ref().unwrap(), copy / BLOCK_BYTES * SECTOR_BYTES as u64);
    crash(store);
    let store: Store<u64, u64> = options().accept_loss(true).open_in(files.clone())?;
    let read: Vec<_> = keys().skip(1).map(|n| store.get(&n)).collect();
    let outlived = read.iter().filter(|read| matches!(read, Ok(Some(_)))).count();
    let damaged = read.iter().filter(|read| matches!(read, Err(Error::Corruption(_)))).count();
    assert_eq!((outlived, damaged > 0, store.get(&0)?), (0, true, Some(3)), "{damaged} damaged");
    // Nor are there copies of copies.
    crash(store);
    let store: Store<u64, u64> = options().open_in(files)?;
    assert!(store.engine_for_test().log.tail() < end + (1 << 20));
    Ok(())
}

/// They were not: after each crash compaction came later.
#[test]
fn what_dies_of_the_copies_that_a_recovery_makes_is_counted() -> Result<()> {
    const COUNT: u64 = 20_000;
    let crowding = Crowding { hash_seed: [5, 7], index_bytes: 64 << 10 };
    let options = || Options::new().memory("16MiB").background(false).promotion(false).crowding(crowding);
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, [u8; 480]> = options().open_in(files.clone())?;
    for value in 0..3 {
        (0..COUNT).for_each(|n| store.put(&n, &[value; 480]).unwrap());
        store.commit()?;
    }
    assert!(store.engine_for_test().index.is_shared());
    crash(store);
    let store: Store<u64, [u8; 480]> = options().open_in(files)?;
    let engine = store.engine_for_test();
    assert!(engine.log.tail() - engine.scars.all().pop().unwrap().behind > 4 << 20, "copies were made");
    let dead = engine.log_extent() - COUNT * record::bytes_record_bytes(8, 480);
    let counted = engine.superseded_bytes();
    assert!(counted.abs_diff(dead) < 1 << 20, "{counted} of {dead}");
    assert!((0..COUNT).all(|n| store.get(&n).unwrap() == Some([2; 480])));
    Ok(())
}
