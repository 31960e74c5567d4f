//! `backup` and `restore`: a copy that is a store, then what is new of it, then a store from it.

#![allow(missing_docs)]

mod common;

use common::{Place, Run, esker};
use esker::{Options, Store};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

fn load(place: &Place, from: u64) {
    let rows: String = (from..from + 20_000).map(|row| format!("{row},{:0>20}\n", row * 7)).collect();
    place.write("rows.csv", format!("id,value\n{rows}"));
    place.ok("load store rows.csv --key id --value value");
}

#[test]
fn a_backup_grows_by_what_is_new_and_restores() {
    let place = Place::new();
    load(&place, 0);
    let first = place.ok("backup store copy");
    assert!(first.contains("of log copied") && !first.contains("already"), "{first}");
    load(&place, 20_000);
    let second = place.ok("backup store copy");
    assert!(second.contains("were there already"), "{second}");
    assert!(place.ok("verify copy").contains("40,000"));
    place.ok("restore copy again");
    assert_eq!(place.ok("get again 39999").trim(), format!("{:0>20}", 39_999 * 7));
    place.fails("restore copy again", "something is there already");
    // Written, it is a store of its own.
    place.ok("put again 1 2");
    place.fails("backup store again", "no backup of this one");
}

#[test]
fn a_backup_from_an_earlier_one_stands_alone() {
    let place = Place::new();
    load(&place, 0);
    place.ok("backup store monday");
    load(&place, 20_000);
    assert!(place.ok("backup store tuesday --from monday").contains("of log copied"));
    assert!(place.ok("verify monday").contains("20,000"));
    place.fails("backup store tuesday --from monday", "goes to a new place");
    place.fails("backup store monday/tuesday --from monday", "the store's own directory");
    place.fails("backup monday wednesday --from tuesday", "newer than the store");
    place.fails("backup store wednesday --from nothing", "there is no store");
    load(&place, 40_000);
    place.ok("restore tuesday other");
    place.ok("put other 1 2");
    place.fails("backup store thursday --from other", "store to thursday: invalid: in the earlier backup: ");
    assert!(!place.path("thursday").exists());
    place.ok("restore tuesday thursday");
    std::fs::remove_dir_all(place.path("monday")).unwrap();
    assert!(place.ok("verify tuesday").contains("40,000"));
    assert_eq!(place.ok("get tuesday 39999").trim(), format!("{:0>20}", 39_999 * 7));
}

#[test]
fn a_copy_that_was_cut_short_is_refused() {
    let place = Place::new();
    load(&place, 0);
    place.ok("backup store copy");
    std::fs::remove_file(place.path("copy/esker.manifest")).unwrap();
    place.fails("get copy 1", "cut short");
    place.fails("backup store copy", "a backup that was cut short, which can be made anew in an empty directory");
    place.fails("backup nothing copy2", "there is no store");
}

/// The beginning of one was in the way of the next attempt.
#[test]
fn a_first_backup_that_fails_leaves_nothing() {
    let place = Place::new();
    // Files that are full, and shared before any damage is met.
    let options = Options::new().memory("16MiB").segment_bytes(1 << 20);
    let store: Store<[u8], [u8]> = options.open(place.path("store")).unwrap();
    (0..100_000u32).for_each(|n| store.put(&n.to_le_bytes(), &[7; 20]).unwrap());
    store.close().unwrap();
    place.ok("backup store whole");
    let damage = |name: &str| {
        let path = place.path(name).join("esker.log.00000002");
        let mut log = fs::read(&path).unwrap();
        log[99] ^= 4;
        fs::write(path, log).unwrap();
    };
    damage("store");
    place.fails("backup store copy", "checksum differs");
    assert!(!place.path("copy").exists());
    damage("whole");
    fs::create_dir(place.path("copy")).unwrap();
    place.fails("backup store copy --from whole", "in the earlier backup");
    assert_eq!(fs::read_dir(place.path("copy")).unwrap().count(), 0);
    // What was shared is there still.
    place.fails("verify whole", "1 place is damaged");
}

/// Overwrites one half of what lives again and again, and the other never; nothing compacts it meanwhile.
fn overwrite(place: &Place, rounds: Range<usize>) {
    let options = Options::new().memory("16MiB").background(false).space_amplification(10.0);
    let store: Store<[u8], [u8]> = options.open(place.path("store")).unwrap();
    for round in rounds {
        let first = if round == 0 { 0 } else { 250 };
        for key in first..500 {
            store.put(format!("{key}").as_bytes(), format!("{round:0>4000}").as_bytes()).unwrap();
        }
        store.commit().unwrap();
    }
    store.close().unwrap();
}

/// All files but the lock.
fn files(place: &Place, name: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(place.path(name)).unwrap().map(|file| file.unwrap());
    let files = files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()));
    files.filter(|(name, _)| name != "esker.lock").collect()
}

/// Compaction would make the copy another store, which is a backup of nothing.
#[test]
fn a_backup_that_is_looked_at_stays_one() {
    let place = Place::new();
    overwrite(&place, 0..9);
    place.ok("backup store copy");
    let before = files(&place, "copy");
    let log_bytes: usize = before.iter().filter(|(name, _)| name.starts_with("esker.log")).map(|(_, bytes)| bytes.len()).sum();
    assert!(log_bytes > 8 << 20, "{log_bytes} bytes");
    for look in ["aggregate copy", "scan copy", "stats copy", "get copy 7", "get copy 400", "export copy --format csv"] {
        place.ok(look);
        // Not by `assert_eq`, which would print them.
        assert!(files(&place, "copy") == before, "{look}");
    }
    overwrite(&place, 9..10);
    assert!(place.ok("backup store copy").contains("were there already"));
    assert_eq!(place.ok("get copy 400"), format!("{:0>4000}\n", 9));
}

#[test]
fn a_refusal_names_whose_fault_it_is() {
    let place = Place::new();
    place.ok("put store 1 2");
    place.write("file", "no directory");
    place.fails("backup store file/copy", "path=file/copy");
    place.fails("backup store store", "this is in the store's own directory");
}

/// It looked failed, and a second one found the first in its way.
#[test]
fn a_copy_that_cannot_be_told_of_is_complete() {
    let place = Place::new();
    load(&place, 0);
    for (command, to) in [("backup store copy", "copy"), ("restore copy again", "again")] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        Run::from(esker(&place, command).stdout(full).output().unwrap()).must_fail(&format!("({to} is complete)"));
        place.ok(&format!("verify {to}"));
    }
}
