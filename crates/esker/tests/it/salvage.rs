//! Salvage: damage anywhere costs what it hit, and nothing else.

use esker::{
    Device, Durability, Error, ManualClock, MemoryStorage, Options, Result, SECTOR_BYTES, Salvage, Storage, Store, Value, salvage,
    salvage_in, verify_in,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

type Bytes = Store<[u8], [u8]>;

const LOG: &str = "esker.log.00000000";
/// What a block holds of the log.
const BLOCK_BYTES: u64 = 4080;

fn options() -> Options {
    Options::new().memory("16MiB").background(false)
}

/// A copy of the files, with damage in a sector of one.
fn damaged(files: &MemoryStorage, file: &str, sector: u64) -> Arc<MemoryStorage> {
    let files = Arc::new(files.copy());
    damage(&files, file, sector);
    files
}

fn damage(files: &MemoryStorage, file: &str, sector: u64) {
    let device = files.open(file).unwrap();
    let mut bytes = [0; SECTOR_BYTES];
    device.read(sector * SECTOR_BYTES as u64, &mut bytes).unwrap();
    bytes[1234] ^= 4;
    device.write(sector * SECTOR_BYTES as u64, &bytes).unwrap();
}

fn sectors(files: &MemoryStorage, file: &str) -> u64 {
    files.open(file).unwrap().bytes().unwrap() / SECTOR_BYTES as u64
}

fn image_of(files: &MemoryStorage) -> String {
    files.list().unwrap().into_iter().find(|name| name.starts_with("index.")).unwrap()
}

fn carry<K: Value + ?Sized, V: Value + ?Sized>(files: &Arc<MemoryStorage>) -> (Store<K, V>, Salvage) {
    let store = options().in_memory().unwrap();
    let done = salvage_in(files.clone(), &store, |_, _| ControlFlow::Continue(())).unwrap();
    (store, done)
}

fn pairs(store: &Store<u64, u64>) -> BTreeMap<u64, u64> {
    let mut pairs = BTreeMap::new();
    store.scan().for_each(|key, value| assert!(pairs.insert(key, value).is_none())).unwrap();
    pairs
}

/// It once said that nothing was lost, though all behind the line before was.
#[test]
fn what_a_lost_slot_told_of_is_lost() {
    let files = Arc::new(MemoryStorage::new());
    for round in 0..4u64 {
        let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
        (0..1000).for_each(|n| store.put(&(round * 1000 + n), &n).unwrap());
        store.close().unwrap();
    }
    let whole = carry::<u64, u64>(&files).1;
    assert_eq!((whole.records, whole.lost_bytes, whole.damaged), (4000, 0, 0));
    // Both copies of either slot: of the newest, and of the one before it.
    let lost: Vec<_> = (0..2)
        .map(|slot| {
            let files = damaged(&files, "esker.manifest", slot);
            damage(&files, "esker.manifest", slot + 2);
            let (store, done) = carry::<u64, u64>(&files);
            assert_eq!(pairs(&store).len() as u64, done.records);
            (done.records, done.lost_bytes >= (4000 - done.records) * 24)
        })
        .collect();
    assert!(lost.iter().all(|(_, is_told)| *is_told) && lost.iter().any(|(records, _)| *records == 3000), "{lost:?}");
    let sound = lost.iter().position(|(records, _)| *records == 4000).unwrap();
    let whole_files = files;
    let files = damaged(&whole_files, "esker.manifest", sound as u64);
    damage(&files, "esker.manifest", sound as u64 + 2);
    assert_eq!(carry::<u64, u64>(&files).1.lost_bytes, 0);
    // A look at what lies behind ends when it is told to, however far that reaches.
    let files = damaged(&whole_files, "esker.manifest", 1 - sound as u64);
    damage(&files, "esker.manifest", 3 - sound as u64);
    files.open("esker.log.00900000").unwrap();
    let ended = salvage_in(files, &options().in_memory::<u64, u64>().unwrap(), |_, _| ControlFlow::Break(()));
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
}

#[test]
fn a_sound_store_comes_over_whole() {
    let files = Arc::new(MemoryStorage::new());
    let store: Bytes = options().open_in(files.clone()).unwrap();
    (0..3000u64).for_each(|n| store.put(&n.to_le_bytes(), &vec![n as u8; n as usize % 300]).unwrap());
    (0..3000u64).step_by(3).for_each(|n| assert!(store.delete(&n.to_le_bytes()).unwrap()));
    store.commit().unwrap();
    (0..3000u64).step_by(7).for_each(|n| store.put(&n.to_le_bytes(), b"again").unwrap());
    store.put(b"long", &vec![7; 200_000]).unwrap();
    store.close().unwrap();
    let before: Vec<_> = sorted(&store_of(&files));
    let (carried, done) = carry::<[u8], [u8]>(&files);
    assert_eq!(sorted(&carried), before);
    assert_eq!((done.damaged, done.lost_bytes, done.guessed), (0, 0, 0));
    assert!(done.records >= before.len() as u64 && done.log_bytes > 500_000, "{done:?}");
}

fn store_of(files: &Arc<MemoryStorage>) -> Bytes {
    options().open_in(Arc::new(files.copy())).unwrap()
}

fn sorted(store: &Bytes) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    store.scan().for_each(|key, value| pairs.push((key.to_vec(), value.to_vec()))).unwrap();
    pairs.sort();
    pairs
}

/// Every block of the log in turn: what is lost lay in it, or began in it or before and ended behind; and where no image knows where
/// records begin, the same is found by their look.
#[test]
fn a_damaged_block_costs_its_own_records() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    let all: BTreeMap<u64, u64> = (0..2000).map(|n| (n, n << 40 | 1)).collect();
    all.iter().for_each(|(key, value)| store.put(key, value).unwrap());
    store.close().unwrap();
    let image = image_of(&files);
    let (mut lost, mut guesses) = (0, 0);
    for block in 1..sectors(&files, LOG) {
        for guessed in [0, 1] {
            let files = damaged(&files, LOG, block);
            if guessed == 1 {
                damage(&files, &image, 0);
            }
            let (carried, done) = carry::<u64, u64>(&files);
            let kept = pairs(&carried);
            assert!(kept.iter().all(|(key, value)| all.get(key) == Some(value)), "block {block}");
            // 170 of 24 bytes, one before and one behind.
            assert!(kept.len() >= all.len() - 172, "{} at {block}", kept.len());
            assert!((BLOCK_BYTES..BLOCK_BYTES + 2 * 24).contains(&done.lost_bytes), "{done:?}");
            assert!((1..=1 + guessed).contains(&done.damaged) && done.guessed <= guessed, "{done:?}");
            guesses += done.guessed;
            assert!(done.damage[0].contains(&format!("address={}", block * BLOCK_BYTES)), "{:?}", done.damage);
            lost += all.len() - kept.len();
        }
    }
    assert!(lost >= 2 * all.len(), "each record was lost once: {lost}");
    // Behind the last there is nothing to guess.
    assert!(guesses > 10, "{guesses}");
}

/// Values of many lengths, over the ends of many blocks, in versions: what comes over is always one of them, and all that lies elsewhere is
/// the newest.
#[test]
fn what_comes_over_was_there() {
    let files = Arc::new(MemoryStorage::new());
    let store: Bytes = options().open_in(files.clone()).unwrap();
    let value = |key: u64, version: u64| vec![(key + version) as u8; (key * 37 % 9000 + version) as usize];
    for version in 0..3 {
        for key in 0..60u64 {
            store.put(&key.to_le_bytes(), &value(key, version)).unwrap();
        }
        store.commit().unwrap();
    }
    store.close().unwrap();
    for (first, second) in [(3, 9), (20, 21), (30, 90), (60, 40), (2, 80)] {
        let files = damaged(&files, LOG, first);
        damage(&files, LOG, second);
        let (carried, done) = carry::<[u8], [u8]>(&files);
        let mut newest = 0;
        for key in 0..60u64 {
            let found = carried.get(&key.to_le_bytes()).unwrap();
            newest += u64::from(found == Some(value(key, 2)));
            assert!(found.is_none() || (0..3).any(|version| found == Some(value(key, version))), "{key}");
        }
        // Neighbours are one place.
        let places = if second == first + 1 { 1 } else { 2 };
        assert!(newest >= 56 && done.damaged == places, "{newest} {done:?}");
    }
}

/// A value that looks like records, behind a block that is lost, is no records where the image knows better.
#[test]
fn a_value_that_looks_like_records_is_none() {
    let files = Arc::new(MemoryStorage::new());
    let store: Bytes = options().open_in(files.clone()).unwrap();
    // Header, lengths, key, value.
    let forged: Vec<u8> =
        [1u64 << 48, 4, 8 << 32 | 8, u64::from_le_bytes(*b"evil\0\0\0\0"), 666].iter().flat_map(|word| word.to_le_bytes()).collect();
    store.put(b"long", &forged.repeat(500)).unwrap();
    (0..100u64).for_each(|n| store.put(&n.to_le_bytes(), &[1; 50]).unwrap());
    store.close().unwrap();
    let files = damaged(&files, LOG, 1);
    let (carried, done) = carry::<[u8], [u8]>(&files);
    assert_eq!((carried.get(b"evil").unwrap(), done.guessed), (None, 0));
    assert_eq!(sorted(&carried).len(), 100);
    damage(&files, &image_of(&files), 0);
    // This is what a guess is.
    let (carried, done) = carry::<[u8], [u8]>(&files);
    assert_eq!((carried.get(b"evil").unwrap().map(|value| value[0]), done.guessed), (Some(666u16 as u8), 1));
    assert_eq!(sorted(&carried).len(), 101);
}

/// Ends, deletions and what a crash had left out.
#[test]
fn what_is_gone_stays_gone() {
    let files = Arc::new(MemoryStorage::new());
    let clock = Arc::new(ManualClock::default());
    let options = || options().clock(clock.clone());
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..4000).for_each(|n| store.put(&n, &n).unwrap());
    store.commit().unwrap();
    (0..1000).for_each(|n| assert!(store.delete(&n).unwrap()));
    (1000..2000).for_each(|n| store.put_with_ttl(&n, &7, Duration::from_secs(60)).unwrap());
    store.commit().unwrap();
    (2000..3000).for_each(|n| store.put(&n, &666).unwrap());
    let crashed = Arc::new(files.copy());
    drop(store);
    let store: Store<u64, u64> = options().open_in(crashed.clone()).unwrap();
    (3000..3010).for_each(|n| store.put(&n, &8).unwrap());
    store.close().unwrap();
    // The first block: what lies in it is older than all that is asked.
    let crashed = damaged(&crashed, LOG, 1);
    let carried: Store<u64, u64> = options().in_memory().unwrap();
    let done = salvage_in(crashed, &carried, |_, _| ControlFlow::Continue(())).unwrap();
    assert!(done.damaged == 1 && done.guessed == 0, "{done:?}");
    assert!((0..1000).all(|n| carried.get(&n).unwrap().is_none()));
    assert!((1000..2000).all(|n| carried.get(&n).unwrap() == Some(7)));
    assert!((2000..4000).all(|n| carried.get(&n).unwrap() == Some(if (3000..3010).contains(&n) { 8 } else { n })));
    clock.advance(Duration::from_secs(60));
    assert!((1000..2000).all(|n| carried.get(&n).unwrap().is_none()));
}

/// A whole file of the log, and a slot of the manifest.
#[test]
fn files_may_be_missing() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options().segment_bytes(1 << 20).open_in(files.clone()).unwrap();
    (0..200_000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    let files = Arc::new(files.copy());
    files.remove("esker.log.00000002").unwrap();
    damage(&files, "esker.manifest", 0);
    let (carried, done) = carry::<u64, u64>(&files);
    let kept = pairs(&carried);
    assert!(kept.iter().all(|(key, value)| key == value));
    let a_file = (1 << 20) / SECTOR_BYTES as u64 * BLOCK_BYTES;
    assert!((a_file..a_file + 100).contains(&done.lost_bytes), "{done:?}");
    assert!(kept.len() as u64 >= 200_000 - a_file / 24 - 2, "{}", kept.len());
    assert!(done.damage.len() == 2 && done.damage[1].ends_with("blocks=256"), "{done:?}");
    assert_eq!(verify_in(files, |_, _| ControlFlow::Continue(())).unwrap().damaged, done.damaged);
}

#[test]
fn what_cannot_be_carried_over_is_refused() {
    let files = Arc::new(MemoryStorage::new());
    let store: Bytes = options().durability(Durability::Always).open_in(files.clone()).unwrap();
    store.put(b"long", &vec![7; 5 << 20]).unwrap_err();
    store.put(b"short", b"1").unwrap();
    store.close().unwrap();
    let words: Store<u64, u64> = options().in_memory().unwrap();
    assert!(matches!(salvage_in(files.clone(), &words, |_, _| ControlFlow::Continue(())), Err(Error::Invalid(_))));
    assert!(matches!(salvage_in(Arc::new(MemoryStorage::new()), &words, |_, _| ControlFlow::Continue(())), Err(Error::Invalid(_))));
    let closed: Bytes = options().in_memory().unwrap();
    closed.close().unwrap();
    assert!(matches!(salvage_in(files.clone(), &closed, |_, _| ControlFlow::Continue(())), Err(Error::Closed)));
    files.remove("esker.manifest").unwrap();
    let into: Bytes = options().in_memory().unwrap();
    assert!(matches!(salvage_in(files, &into, |_, _| ControlFlow::Continue(())), Err(Error::Corruption(_))));
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(matches!(salvage(&missing, &into, |_, _| ControlFlow::Continue(())), Err(Error::Invalid(_))));
    assert!(!missing.exists());
    let store: Bytes = options().open(folder.path()).unwrap();
    assert!(matches!(salvage(folder.path(), &into, |_, _| ControlFlow::Continue(())), Err(Error::Locked(_))));
    store.close().unwrap();
}

/// How far it is, is told, and ends at all.
#[test]
fn it_tells_how_far_it_is() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..100_000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    let into: Store<u64, u64> = options().in_memory().unwrap();
    let mut told = vec![(0, 0)];
    let tell = |done, all| {
        told.push((done, all));
        ControlFlow::Continue(())
    };
    salvage_in(damaged(&files, LOG, 77), &into, tell).unwrap();
    assert!(told.is_sorted() && told.len() > 4, "{told:?}");
    let (done, all) = *told.last().unwrap();
    assert!(done <= all && done + 2 * BLOCK_BYTES >= all, "{done} of {all}");
}

type Tell<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// At any of the times when it is told how far the work is, which come as long as there is work.
#[test]
fn who_is_told_of_progress_may_end_it() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, u64> = options().open_in(files.clone()).unwrap();
    (0..200_000).for_each(|n| store.put(&n, &n).unwrap());
    store.close().unwrap();
    // The result, and how often it was told.
    let ending_at = |last: u32, work: &dyn Fn(&mut Tell<'_>) -> Result<u64>| {
        let mut calls = 0;
        let result = work(&mut |_, _| {
            calls += 1;
            if calls == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (result, calls)
    };
    let carried = Cell::new(0);
    let salvage = |tell: &mut Tell<'_>| {
        let into: Store<u64, u64> = options().in_memory().unwrap();
        let done = salvage_in(files.clone(), &into, tell);
        carried.set(pairs(&into).len());
        done.map(|done| done.records)
    };
    let verify = |tell: &mut Tell<'_>| verify_in(files.clone(), tell).map(|found| found.records);
    for work in [&salvage as &dyn Fn(&mut Tell<'_>) -> Result<u64>, &verify] {
        let (whole, calls) = ending_at(0, work);
        // Each mebibyte of the log is gone through twice.
        assert!(whole.unwrap() == 200_000 && calls >= 2 * 4, "{calls}");
        for last in 1..=calls {
            let (ended, calls) = ending_at(last, work);
            assert!(matches!(ended, Err(Error::Cancelled)) && calls == last, "{ended:?} after {calls} calls of {last}");
        }
    }
    ending_at(7, &salvage).0.unwrap_err();
    assert!((1..200_000).contains(&carried.get()), "{}", carried.get());
}

/// Where the log begins, by the newest slot of the manifest.
fn begin_of(files: &MemoryStorage) -> u64 {
    let slots = (0..2).map(|slot| {
        let mut bytes = [0; SECTOR_BYTES];
        files.open("esker.manifest").unwrap().read(slot * SECTOR_BYTES as u64, &mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(0, |number| u64::from_str_radix(number, 16).unwrap())
        };
        (number("sequence="), number("begin="))
    });
    slots.max().unwrap().1
}

/// What compaction has left begins within a block: so has the log, and the block before its first record is damaged.
struct Begun {
    files: Arc<MemoryStorage>,
    begin: u64,
    newest: BTreeMap<u64, Vec<u8>>,
}

impl Begun {
    fn new(close: bool) -> Self {
        let files = Arc::new(MemoryStorage::new());
        let store: Store<u64, [u8]> = options().segment_bytes(1 << 20).open_in(files.clone()).unwrap();
        let value = |key: u64| vec![key as u8; 100 + key as usize % 37];
        (0..40_000).for_each(|key| store.put(&key, &value(key)).unwrap());
        store.commit().unwrap();
        (0..20_000).for_each(|key| assert!(store.delete(&key).unwrap()));
        while begin_of(&files) < 2 << 20 || begin_of(&files).is_multiple_of(BLOCK_BYTES) {
            assert!(store.compact_stretch().unwrap());
            store.commit().unwrap();
        }
        let crashed = Arc::new(files.copy());
        if close {
            store.close().unwrap();
        }
        let files = if close { files } else { crashed };
        let begin = begin_of(&files);
        assert!(begin > BLOCK_BYTES && !begin.is_multiple_of(BLOCK_BYTES), "{begin}");
        let newest = (20_000..40_000).map(|key| (key, value(key))).collect();
        Self { files, begin, newest }
    }

    /// With damage in the block in which the log begins.
    fn damaged(&self) -> Arc<MemoryStorage> {
        let (block, a_file) = (self.begin / BLOCK_BYTES, (1 << 20) / SECTOR_BYTES as u64);
        damaged(&self.files, &format!("esker.log.{:08}", block / a_file), block % a_file)
    }
}

#[test]
fn a_log_that_begins_within_a_block_is_carried_over() {
    for close in [false, true] {
        let begun = Begun::new(close);
        for (files, least) in [(Arc::new(begun.files.copy()), 20_000), (begun.damaged(), 20_000 - 64)] {
            let (carried, done) = carry::<u64, [u8]>(&files);
            let mut kept = 0;
            let check = |key, value: &[u8]| {
                kept += 1;
                assert_eq!(begun.newest.get(&key).map(Vec::as_slice), Some(value));
            };
            carried.scan().for_each(check).unwrap();
            assert!(kept >= least && (done.damaged > 0) == (least < 20_000), "{kept} {done:?}");
        }
    }
}

#[test]
fn damage_where_the_log_begins_is_named_and_given_up_when_told_so() {
    // An image stands for the block: the store opens, and who reads there is told.
    let store: Store<u64, [u8]> = options().open_in(Begun::new(true).damaged()).unwrap();
    let scanned = store.scan().by_log().for_each(|_, _| ());
    assert!(matches!(&scanned, Err(Error::Corruption(what)) if what.contains("address")), "{scanned:?}");
    drop(store);
    let files = Begun::new(false).damaged();
    let open = |accept_loss| options().accept_loss(accept_loss).open_in::<u64, [u8]>(files.clone());
    assert!(matches!(open(false), Err(Error::Corruption(_))));
    let store = open(true).unwrap();
    store.put(&1, b"anew").unwrap();
    store.close().unwrap();
    let found = verify_in(files.clone(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(found.is_sound(), "{found:?}");
    let store = open(false).unwrap();
    assert_eq!(store.get(&1).unwrap().as_deref(), Some(&b"anew"[..]));
    store.scan().for_each(|_, _| ()).unwrap();
}

/// A file that is too short, below what opening reads: whatever reads there says so in the same words.
#[test]
fn a_log_that_ends_too_early_is_damage_to_all_who_read() {
    let files = Arc::new(MemoryStorage::new());
    let store: Store<u64, [u8]> = options().segment_bytes(1 << 20).open_in(files.clone()).unwrap();
    (0..50_000).for_each(|key| store.put(&key, &[7; 200]).unwrap());
    store.close().unwrap();
    files.remove("esker.log.00000003").unwrap();
    let store: Store<u64, [u8]> = options().open_in(files).unwrap();
    let lost = (0..50_000).find(|key| store.get(key).is_err()).unwrap();
    let calls: [&dyn Fn() -> esker::Result<()>; 6] = [
        &|| store.get(&lost).map(drop),
        &|| store.get_many(&[lost], |_, _| ()),
        &|| store.append_many(&[(lost, b"x")]),
        &|| store.delete_many(&[lost]).map(drop),
        &|| store.scan().by_index().for_each(|_, _| ()),
        &|| store.scan().by_log().for_each(|_, _| ()),
    ];
    for (number, call) in calls.iter().enumerate() {
        let told = call();
        assert!(matches!(&told, Err(Error::Corruption(what)) if what.contains("address=")), "{number}: {told:?}");
    }
}

/// Long values are few, however much of the log is looked at: so much that follows each other is enough.
#[test]
fn long_values_behind_damage_are_found_without_an_image() {
    const VALUES: u64 = 140;
    let files = Arc::new(MemoryStorage::new());
    let store: Bytes = options().memory("32MiB").open_in(files.clone()).unwrap();
    let value = |n: u64| -> Vec<u8> { (0..1u64 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ n) >> 32) as u8 | 1).collect() };
    (0..VALUES).for_each(|n| store.put(&n.to_le_bytes(), &value(n)).unwrap());
    store.close().unwrap();
    damage(&files, LOG, 5);
    damage(&files, &image_of(&files), 0);
    let into: Bytes = options().open_temporary().unwrap();
    let done = salvage_in(files, &into, |_, _| ControlFlow::Continue(())).unwrap();
    // The one that was hit.
    assert_eq!((done.records, done.guessed), (VALUES - 1, 1), "{done:?}");
    assert!((1..VALUES).all(|n| into.get(&n.to_le_bytes()[..]).unwrap() == Some(value(n))));
}

/// Files of which one cannot be opened, as where a sector of the file system's own is lost.
struct Unopened(Arc<MemoryStorage>, String);

impl Storage for Unopened {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        if name == self.1 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { self.0.open(name) }
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
}

/// It was an error of its own, not damage: nothing was carried over, and no loss could be accepted.
#[test]
fn a_file_that_cannot_be_opened_is_damage() {
    const KEYS: u64 = 200_000;
    let files = Arc::new(MemoryStorage::new());
    let open =
        |files, accept_loss: bool| -> Result<Store<u64, u64>> { options().segment_bytes(1 << 20).accept_loss(accept_loss).open_in(files) };
    let store = open(files.clone(), false).unwrap();
    (0..KEYS).for_each(|n| store.put(&n, &!n).unwrap());
    store.commit().unwrap();
    // A crash, which leaves a scar.
    (KEYS..1_000_000).for_each(|n| store.put(&n, &!n).unwrap());
    let files = Arc::new(files.copy());
    drop(store);
    let store = open(files.clone(), false).unwrap();
    (0..1000).for_each(|n| store.put(&n, &!n).unwrap());
    store.commit().unwrap();
    let files = Arc::new(files.copy());
    let logs = || files.list().unwrap().into_iter().filter(|name| name.starts_with("esker.log."));
    let (first, last) = (logs().min().unwrap(), logs().max().unwrap());
    for (name, least) in [(&last, KEYS - 1000), (&first, 100_000), (&"esker.scars".to_owned(), KEYS)] {
        let damaged = Arc::new(Unopened(Arc::new(files.copy()), name.clone()));
        let refused = open(damaged.clone(), false).unwrap_err();
        assert!(matches!(refused, Error::Io(_)), "{name}: {refused:?}");
        let found = verify_in(damaged.clone(), |_, _| ControlFlow::Continue(())).unwrap();
        assert!(!found.is_sound(), "{name}");
        let into: Store<u64, u64> = Options::new().memory("256MiB").in_memory().unwrap();
        salvage_in(damaged.clone(), &into, |_, _| ControlFlow::Continue(())).unwrap();
        // Without the scars also what the crash had left.
        let saved = pairs(&into);
        assert!(saved.len() as u64 >= least && saved.iter().all(|(key, value)| *value == !key), "{name}: {}", saved.len());
        if *name == last {
            let store = open(damaged.clone(), true).unwrap();
            assert!((0..KEYS).all(|n| store.get(&n).unwrap().is_none_or(|value| value == !n)));
            store.put(&0, &7).unwrap();
            store.close().unwrap();
            assert_eq!(open(damaged, false).unwrap().get(&0).unwrap(), Some(7));
        }
    }
}
