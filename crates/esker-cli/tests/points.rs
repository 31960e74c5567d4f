//! `get`, `put`, `append`, `delete` and `stats`, each as a program run of its own: what one run stores, the next
//! must find.

#![allow(missing_docs)]

mod common;

use common::{Place, esker};
use esker::{Cache, Options, Store};

#[test]
fn a_value_is_found_by_the_next_run() {
    let place = Place::new();
    assert_eq!(place.ok("put store colour blue"), "");
    assert_eq!(place.ok("get store colour"), "blue\n");
    place.ok("put store colour green");
    assert_eq!(place.ok("get store colour"), "green\n");
}

#[test]
fn appends_add_up() {
    let place = Place::new();
    place.ok("append store log one");
    place.ok("append store log ,two");
    assert_eq!(place.ok("get store log"), "one,two\n");
}

#[test]
fn a_deleted_key_is_absent() {
    let place = Place::new();
    place.ok("put store a 1");
    place.ok("put store b 2");
    assert_eq!(place.ok("delete store a"), "");
    place.fails("get store a", "no such key: a");
    place.fails("delete store a", "no such key: a");
    assert_eq!(place.ok("get store b"), "2\n");
}

#[test]
fn reading_makes_no_store() {
    let place = Place::new();
    for command in ["get none key", "delete none key", "stats none", "stats none --json"] {
        place.fails(command, "none: ");
        assert!(!place.path("none").exists(), "{command} made a directory");
    }
}

#[test]
fn reading_leaves_an_empty_directory_empty() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    place.fails("get empty key", "no store");
    assert_eq!(std::fs::read_dir(place.path("empty")).unwrap().count(), 0);
}

#[test]
fn a_file_is_no_store() {
    let place = Place::new();
    place.write("file", "not a store");
    place.fails("get file key", "file: ");
    place.fails("put file key value", "file: ");
}

#[test]
fn keys_and_values_may_be_empty_negative_or_long() {
    let place = Place::new();
    place.ok("put store -1 -2");
    assert_eq!(place.ok("get store -1"), "-2\n");
    assert_eq!(place.run_with(["put", "store", "empty", ""], "").code, 0);
    assert_eq!(place.ok("get store empty"), "\n");
    let long = "x".repeat(100_000);
    place.ok(&format!("put store long {long}"));
    assert_eq!(place.ok("get store long").trim_end(), long);
}

#[cfg(unix)]
#[test]
fn bytes_that_are_no_text_are_kept() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let place = Place::new();
    let key = OsStr::from_bytes(b"\xff\xfe");
    let arguments = |last: &[&'static str]| {
        let words = last.iter().map(|&word| OsStr::new(word));
        words.collect::<Vec<_>>()
    };
    let mut put = arguments(&["put", "store"]);
    put.extend([key, OsStr::new("found")]);
    assert_eq!(place.run_with(put, "").code, 0);
    let mut get = arguments(&["get", "store"]);
    get.push(key);
    assert_eq!(place.run_with(get, "").stdout, "found\n");
}

#[test]
fn stats_are_a_picture() {
    let place = Place::new();
    place.ok("put store a 1");
    let text = place.ok("stats store --memory 32MiB");
    for part in ["log", "begin", "head", "read only", "tail", "memory", "of 32.0 MiB", "index", "1 entries in ", "amplification"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    // Nothing was appended: that is not told. Nor is anything in memory right after opening: that is.
    assert!(!text.contains("appends") && text.contains("chains     no records in memory"), "{text}");
}

/// The directory's own command said nothing of these: what they count goes with the process that did it.
#[test]
fn what_a_load_did_can_be_seen() {
    let place = Place::new();
    let rows: Vec<String> = (0..3000).map(|n| format!("{n},{n}")).collect();
    place.write("a.csv", format!("key,value\n{}\n", rows.join("\n")));
    let text = place.ok("load store a.csv --key key --value value --stats");
    for part in ["loaded 3,000 rows", "chains     records in memory on one chain, of ", "puts                    3,000", "/s", "█"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!place.ok("load store a.csv --key key --value value").contains("chains"));
}

/// A key that is `-h` was not put, not found and not removed, and all of that was a success: the help was printed.
#[test]
fn a_key_may_be_a_dash_and_a_letter() {
    let place = Place::new();
    place.ok("put store a 1");
    for line in ["get store -h", "put store -h 1", "put store a -h", "append store -h 1", "delete store -h"] {
        let run = place.run(line);
        assert_eq!((run.code, &run.stdout[..]), (2, ""), "{line}: {run:?}");
    }
    place.ok("put store -- -h 2");
    assert_eq!(place.ok("get store -- -h"), "2\n");
    assert!(place.ok("get --help").contains("Print the value of a key"));
}

/// Whoever opens it: this program has no caches of its own.
#[test]
fn stats_tell_a_cache() {
    let place = Place::new();
    let options = Options::new().memory("16MiB").background(false).cache(Cache::new().disk(64 << 20));
    let cache: Store<[u8], [u8]> = options.open(place.path("cache")).unwrap();
    cache.put(b"a", b"1").unwrap();
    assert!(cache.stats().lossy);
    cache.close().unwrap();
    place.ok("put store a 1");
    for (directory, is_cache) in [("cache", true), ("store", false)] {
        let text = place.ok(&format!("stats {directory}"));
        assert_eq!(text.lines().next().unwrap().contains("a cache"), is_cache, "{text}");
        let stats: serde_json::Value = serde_json::from_str(&place.ok(&format!("stats {directory} --json"))).unwrap();
        assert_eq!(stats["lossy"], is_cache);
    }
}

#[test]
fn stats_are_json() {
    let place = Place::new();
    place.ok("put store a 1");
    let stats: serde_json::Value = serde_json::from_str(&place.ok("stats store --json")).unwrap();
    assert_eq!(stats["in_memory"], false);
    assert_eq!(stats["memory"]["budget_bytes"], 256 << 20);
    assert!(stats["log"]["tail"].as_u64() > stats["log"]["begin"].as_u64(), "{stats}");
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let place = Place::new();
    for wrong in [
        "",
        "fly",
        "get",
        "get store",
        "put store key",
        "get store key --memory much",
        "load store file.csv",
        "load store file.csv --key a --mode twist",
        "load store file.txt --key a",
        "load store - --key a",
        "load store file.csv --key a --value b,c --mode count",
    ] {
        let run = place.run(wrong);
        assert_eq!(run.code, 2, "{wrong}: {run:?}");
        assert!(!place.path("store").exists(), "{wrong} made a store");
    }
}

#[test]
fn help_and_version_succeed() {
    let place = Place::new();
    let help = place.ok("--help");
    let commands = [
        "load",
        "get",
        "put",
        "append",
        "delete",
        "compact",
        "stats",
        "verify",
        "backup",
        "restore",
        "salvage",
        "scan",
        "aggregate",
        "export",
        "demo",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "no {command} in\n{help}");
        assert!(place.ok(&format!("{command} --help")).contains("Usage: esker "), "{command}");
    }
    for option in ["--memory", "--durability"] {
        assert!(help.contains(option), "no {option} in\n{help}");
    }
    assert!(place.ok("--version").starts_with("esker "));
}

#[test]
fn a_budget_below_the_least_is_refused() {
    let place = Place::new();
    let run = place.run("put store a 1 --memory 1MiB");
    assert!(run.code == 2 && run.stderr.contains("at least 16.0 MiB"), "{run:?}");
    assert!(!place.path("store").exists());
}

#[test]
fn a_closed_standard_error_leaves_the_exit_code() {
    let place = Place::new();
    for (arguments, code) in [("get absent key", 1), ("load store -  --key id", 2)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(esker(&place, arguments).stderr(writer).status().unwrap().code(), Some(code));
    }
}

/// What is asked for comes from elsewhere: it does not command the terminal, and is not told at any length.
#[test]
fn messages_show_no_more_than_they_should() {
    let place = Place::new();
    place.ok("put store a 1");
    let run = place.run_with(["get", "store", "a\u{1b}[2Jb"], "");
    run.must_fail("no such key: a\\u{1b}[2Jb");
    assert!(!run.stderr.contains('\u{1b}'));
    let long = "k".repeat(60_000);
    assert!(place.run_with(["get", "store", &long], "").stderr.len() < 300);
}
