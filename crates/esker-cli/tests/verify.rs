//! `verify`, `--durability` and `--acknowledge`: what is sound is said to be, what is damaged is named, and a loss happens
//! only when it is accepted.

#![allow(missing_docs)]

mod common;

use common::{Place, Run, end, esker, signal};
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const SECTOR: usize = 4096;

/// Many small rows: some hundred blocks of log.
fn load_rows(place: &Place, more: &str) -> String {
    let rows: String = (0..20_000).map(|row| format!("{row},{:0>20}\n", row * 7)).collect();
    place.write("rows.csv", format!("id,value\n{rows}"));
    place.ok(format!("load store rows.csv --key id --value value {more}").trim_end())
}

fn flip(place: &Place, file: &str, at: usize) {
    let path = place.path("store").join(file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn image_of(place: &Place) -> String {
    let mut names = fs::read_dir(place.path("store")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.find(|name| name.starts_with("index.")).unwrap()
}

#[test]
fn a_sound_store_is_said_to_be_so() {
    let place = Place::new();
    load_rows(&place, "");
    let text = place.ok("verify store");
    assert!(text.contains("(sound)") && text.contains("20,000"), "{text}");
    let found: serde_json::Value = serde_json::from_str(&place.ok("verify store --json")).unwrap();
    assert_eq!((&found["damaged"], &found["records"]), (&0.into(), &20_000.into()), "{found}");
    assert!(place.ok("verify store --accept-loss").contains("nothing was changed"));
}

#[test]
fn damage_is_named_by_file_and_address() {
    let place = Place::new();
    load_rows(&place, "");
    flip(&place, "esker.log.00000000", 7 * SECTOR + 99);
    let run = place.run("verify store");
    run.must_fail("1 place is damaged");
    assert!(run.stdout.contains("DAMAGED") && run.stdout.contains("address=28560"), "{run:?}");
    let run = place.run("verify store --json");
    run.must_fail("damaged");
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(found["damaged"], 1, "{found}");
}

#[test]
fn what_is_whole_is_carried_over_to_a_new_store() {
    let place = Place::new();
    load_rows(&place, "");
    flip(&place, "esker.log.00000000", 7 * SECTOR + 99);
    flip(&place, "esker.log.00000000", 70 * SECTOR);
    place.run("export store --format csv").must_fail("checksum differs");
    let text = place.ok("salvage store saved");
    assert!(text.contains("address=28560") && text.contains("older value"), "{text}");
    place.ok("verify saved");
    let pairs = place.ok("export saved --format csv");
    // A row takes 56 or 64 bytes.
    assert!((20_001 - 160..20_001).contains(&pairs.lines().count()), "{}", pairs.lines().count());
    assert!(
        pairs
            .lines()
            .skip(1)
            .all(|line| line.split_once(',').is_some_and(|(key, value)| value.parse() == Ok(key.parse::<u64>().unwrap() * 7)))
    );
    let done: serde_json::Value = serde_json::from_str(&place.ok("salvage store again --json")).unwrap();
    assert_eq!((&done["damaged"], &done["guessed"]), (&2.into(), &0.into()), "{done}");
    place.run("salvage store saved").must_fail("something is there already");
    place.run("salvage missing other").must_fail("missing");
    place.run("salvage store store/in").must_fail("own directory");
    // What was refused leaves nothing behind that would be in the way of the next try.
    fs::remove_file(place.path("store/esker.manifest")).unwrap();
    place.run("salvage store third").must_fail("manifest");
    // So nobody is sent there.
    let verified = place.run("verify store");
    assert!(verified.code == 1 && verified.stderr.contains("a backup") && !verified.stderr.contains("salvage"), "{verified:?}");
    assert!(!place.path("third").exists());
    assert!(!place.path("missing").exists() && !place.path("other").exists());
}

#[test]
fn a_damaged_image_is_built_anew_when_that_is_accepted() {
    let place = Place::new();
    load_rows(&place, "");
    let image = image_of(&place);
    flip(&place, &image, 40);
    place.fails("get store 7", &image);
    place.fails("verify store", "`esker verify --accept-loss` makes it anew, and nothing is lost");
    let text = place.ok("verify store --accept-loss");
    assert!(text.contains("DAMAGED") && text.contains(&image) && text.contains("(sound)"), "{text}");
    assert_eq!(place.ok("get store 19999"), format!("{:0>20}\n", 19_999 * 7));
}

/// Where the copies of the older slot begin.
fn older_slot(place: &Place) -> [usize; 2] {
    let bytes = fs::read(place.path("store/esker.manifest")).unwrap();
    let sequence = |slot: usize| {
        let text = String::from_utf8_lossy(&bytes[slot * SECTOR..][..SECTOR]);
        let number = text.lines().find_map(|line| line.strip_prefix("sequence="));
        u64::from_str_radix(number.unwrap(), 16).unwrap()
    };
    let older = usize::from(sequence(1) < sequence(0));
    [older, older + 2].map(|sector| sector * SECTOR)
}

#[test]
fn a_damaged_slot_of_the_manifest_is_mended_when_its_loss_is_accepted() {
    let place = Place::new();
    load_rows(&place, "");
    for at in older_slot(&place) {
        flip(&place, "esker.manifest", at + 99);
    }
    place.fails("get store 7", "esker.manifest");
    let text = place.ok("verify store --accept-loss");
    assert!(text.contains("DAMAGED") && text.contains("(sound)"), "{text}");
    assert_eq!(place.ok("get store 19999"), format!("{:0>20}\n", 19_999 * 7));
    place.ok("verify store");
}

/// A whole store was to be copied for a sector that is there twice.
#[test]
fn a_damaged_copy_of_a_slot_is_mended_without_a_salvage() {
    for copy in [0, 1] {
        let place = Place::new();
        load_rows(&place, "");
        flip(&place, "esker.manifest", older_slot(&place)[copy] + 99);
        let verified = place.run("verify store");
        assert!(verified.code == 1 && verified.stdout.contains("its other copy is whole"), "{verified:?}");
        assert!(verified.stderr.contains("verify --accept-loss") && !verified.stderr.contains("salvage"), "{verified:?}");
        place.ok("verify store --accept-loss");
        place.ok("verify store");
        assert_eq!(place.ok("get store 19999"), format!("{:0>20}\n", 19_999 * 7));
    }
}

/// The exit code is for whoever asks nothing else.
#[test]
fn what_nobody_reads_is_found_and_mended_all_the_same() {
    let place = Place::new();
    load_rows(&place, "");
    assert_eq!(place.run_unread("verify store").code, 0);
    flip(&place, &image_of(&place), 40);
    place.run_unread("verify store").must_fail("1 place is damaged");
    place.run_unread("verify store --json").must_fail("1 place is damaged");
    assert_eq!(place.run_unread("verify store --accept-loss").code, 0);
    place.ok("verify store");
    assert_eq!(place.ok("get store 19999"), format!("{:0>20}\n", 19_999 * 7));
}

/// It gave up what its full disk had kept it from telling of.
#[test]
fn nothing_is_given_up_that_cannot_be_told() {
    let place = Place::new();
    load_rows(&place, "");
    flip(&place, &image_of(&place), 40);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    Run::from(esker(&place, "verify store --accept-loss").stdout(full).output().unwrap()).must_fail("No space left");
    place.run("verify store").must_fail("1 place is damaged");
}

/// What a salvage had lost was told nowhere, and a second one was refused.
#[test]
fn a_salvage_that_cannot_print_tells_what_it_did_all_the_same() {
    let place = Place::new();
    load_rows(&place, "");
    flip(&place, "esker.log.00000000", SECTOR + 99);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let run = Run::from(esker(&place, "salvage store saved").stdout(full).stderr(Stdio::piped()).output().unwrap());
    assert!(
        run.code == 1 && ["No space left", "carried over", "saved is complete"].iter().all(|told| run.stderr.contains(told)),
        "{run:?}"
    );
    place.ok("verify saved");
}

#[test]
fn what_opening_does_not_read_stays_damaged() {
    let place = Place::new();
    load_rows(&place, "");
    flip(&place, "esker.log.00000000", SECTOR + 99);
    place.run("verify store --accept-loss").must_fail("still damaged");
    place.fails("get store 1", "esker.log");
    assert_eq!(place.ok("get store 19999"), format!("{:0>20}\n", 19_999 * 7));
}

#[test]
fn a_manifest_that_is_gone_is_damage_to_all_who_look() {
    let place = Place::new();
    load_rows(&place, "");
    place.write("store/esker.manifest", "");
    let missing = "there is a store but no manifest";
    let run = place.run("verify store");
    run.must_fail("1 place is damaged");
    assert!(run.stdout.contains(missing), "{run:?}");
    place.fails("get store 1", missing);
    place.fails("backup store copy", missing);
}

#[test]
fn there_must_be_a_store_that_nobody_has_open() {
    let place = Place::new();
    place.fails("verify none", "none: ");
    assert!(!place.path("none").exists());
    place.ok("put store a 1");
    let open: esker::Store<[u8], [u8]> = esker::Options::new().memory("16MiB").open(place.path("store")).unwrap();
    place.fails("verify store", "locked");
    open.close().unwrap();
    place.ok("verify store");
    assert_eq!(place.run("verify store --json --accept-loss").code, 2);
    // A log alone is no reason to remove it.
    std::fs::remove_file(place.path("store/esker.manifest")).unwrap();
    assert!(place.run("verify store").stdout.contains("no manifest"), "{:?}", place.run("verify store"));
    place.fails("get store a", "a store whose manifest is missing");
}

#[test]
fn rows_are_acknowledged_as_they_become_durable() {
    let place = Place::new();
    place.write("few.csv", "id,name\n1,one\n2,two\n3,three\n");
    let numbers = |said: String| said.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u64>>();
    let load = |durability| numbers(place.ok(&format!("load {durability} few.csv --key id --acknowledge --durability {durability}")));
    assert_eq!(load("always"), [1, 2, 3]);
    assert_eq!(load("none"), [3]);
    assert_eq!(load("3600"), [3]);
    let many = numbers(load_rows(&place, "--acknowledge --durability 0.001"));
    assert!(many.is_sorted() && many.last() == Some(&20_000), "{many:?}");
    assert_eq!(place.run("put store a 1 --durability sometimes").code, 2);
}

/// What had been carried over was in the way of the next attempt, and sound.
#[test]
fn a_salvage_that_fails_leaves_nothing() {
    let place = Place::new();
    load_rows(&place, "");
    place.write("long.csv", format!("key,value\nlong,{}\n", "x".repeat(5 << 20)));
    place.ok("load store long.csv --key key --value value");
    place.run("salvage store saved --memory 16MiB").must_fail("a value has at most");
    assert!(!place.path("saved").exists());
    // Nor where there is a directory.
    fs::create_dir(place.path("saved")).unwrap();
    place.run("salvage store saved --memory 16MiB").must_fail("a value has at most");
    assert_eq!(fs::read_dir(place.path("saved")).unwrap().count(), 0);
    place.ok("salvage store saved --memory 64MiB");
    assert!(place.ok("verify saved").contains("20,001"));
}

/// The beginning of a new store that could not be made was in the way of the next attempt.
#[test]
fn a_salvage_without_room_for_its_store_leaves_nothing() {
    let place = Place::new();
    load_rows(&place, "");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$0\" salvage store saved", env!("CARGO_BIN_EXE_esker")]);
    let run = Run::from(shell.current_dir(place.path("")).stdin(Stdio::null()).output().unwrap());
    run.must_fail("saved: ");
    assert!(!place.path("saved").exists());
    place.ok("salvage store saved");
}

/// It was killed where it stood, and what it had carried over was in the way of the next attempt.
#[test]
fn an_interrupt_ends_a_salvage_and_leaves_nothing() {
    let place = Place::new();
    let store = esker::Options::new().memory("64MiB").open::<[u8], [u8]>(place.path("store")).unwrap();
    // Half a second of work.
    (0..1_000_000u32).for_each(|n| store.put(&n.to_le_bytes(), &[7; 100]).unwrap());
    store.close().unwrap();
    let interrupted = || {
        let salvage = esker(&place, "salvage store saved --memory 16MiB").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It has begun.
        while !place.path("saved/esker.manifest").exists() {
            sleep(Duration::from_millis(1));
        }
        signal(&salvage, "-INT");
        end(salvage)
    };
    // One that was quicker than the signal had nothing to leave.
    let run = (0..5).map(|_| interrupted()).find(|run| run.code != 0 || fs::remove_dir_all(place.path("saved")).is_err());
    run.expect("an interrupt").must_be_interrupted("store to saved: interrupted");
    assert!(!place.path("saved").exists());
}
