//! `scan`, `aggregate` and `export` over what `load` stored, each as a program run of its own.

#![allow(missing_docs)]

mod common;

use common::{Place, end, esker, show, signal, sorted, terminal};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const ORDERS: &str = "id,amount\nde:1,10\nde:2,20\nfr:1,5\nfr:2,2.5\nfr:3,none\n";

fn orders() -> Place {
    let place = Place::new();
    place.write("orders.csv", ORDERS);
    place.ok("load store orders.csv --key id --value amount");
    place
}

#[test]
fn a_scan_prints_every_pair() {
    let place = orders();
    assert_eq!(sorted(&place.ok("scan store")), ["de:1\t10", "de:2\t20", "fr:1\t5", "fr:2\t2.5", "fr:3\tnone"]);
    assert_eq!(sorted(&place.ok("scan store --prefix fr --keys-only")), ["fr:1", "fr:2", "fr:3"]);
    assert_eq!(place.ok("scan store --limit 2").lines().count(), 2);
    place.ok("delete store de:1");
    assert_eq!(place.ok("scan store --prefix de"), "de:2\t20\n");
    place.fails("scan nowhere", "nowhere: ");
    place.fails("scan nowhere --limit 0", "nowhere: ");
    assert_eq!(place.ok("scan store --limit 0"), "");
}

#[test]
fn an_interrupt_ends_what_nobody_reads_on() {
    let place = Place::new();
    // Many times what a pipe holds.
    place.write("long.csv", format!("id,text\n1,{0}\n2,{0}\n3,{0}\n", "x".repeat(1 << 20)));
    place.ok("load store long.csv --key id --value text");
    // Groups that are as long.
    place.write("keys.csv", (0..8).fold("id\n".to_owned(), |text, n| text + &format!("{n}{}\n", "x".repeat(60_000))));
    place.ok("load keys keys.csv --key id --mode count");
    for reader in ["scan store", "export store --format csv", "aggregate keys --by prefix:65536"] {
        let mut child = esker(&place, reader).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        signal(&child, "-TERM");
        assert_eq!(end(child).code, 130, "{reader}");
        assert!(place.ok("get store 1").len() > 1 << 20, "the store is free again");
        place.ok("stats keys");
    }
}

#[test]
fn figures_of_all_and_of_groups() {
    let place = orders();
    assert_eq!(place.ok("aggregate store"), "count 5\n");
    let all = place.ok_telling("aggregate store --sum --count --min --max --mean", "1 of 5 values are no numbers");
    assert_eq!(all, "count 5\tsum 37.5\tmin 2.5\tmax 20\tmean 9.375\n");
    assert_eq!(place.ok("aggregate store --prefix de --sum --by delimiter::"), "de\tsum 30\n");
    assert_eq!(
        place.ok_telling("aggregate store --by prefix:2 --count --sum --json --threads 2", "1 of 5 values"),
        "{\"count\":2,\"group\":\"de\",\"sum\":30}\n{\"count\":3,\"group\":\"fr\",\"sum\":7.5}\n"
    );
    assert_eq!(place.ok("aggregate store --prefix nothing --sum --max"), "sum 0\tmax -\n");
    assert_eq!(place.run("aggregate store --by length:2").code, 2);
    assert_eq!(place.ok("aggregate store --threads 256"), "count 5\n");
    for threads in ["0", "257"] {
        assert_eq!(place.run(&format!("aggregate store --threads {threads}")).code, 2);
    }
}

#[test]
fn figures_of_whole_numbers_are_exact() {
    let place = Place::new();
    place.ok("put store a 9223372036854775807");
    place.ok("put store b 9223372036854775806");
    assert_eq!(
        place.ok("aggregate store --sum --min --max"),
        "sum 18446744073709551613\tmin 9223372036854775806\tmax 9223372036854775807\n"
    );
    assert_eq!(place.ok("aggregate store --sum --max --json"), "{\"max\":9223372036854775807,\"sum\":18446744073709551613}\n");
    for (key, no_number) in [("c", "inf"), ("d", "1e999"), ("e", "NaN")] {
        place.ok(&format!("put store {key} {no_number}"));
    }
    let all = place.ok_telling("aggregate store --count --sum --max", "3 of 5 values are no numbers");
    assert_eq!(all, "count 5\tsum 18446744073709551613\tmax 9223372036854775807\n");
    place.ok("put store a 0.25");
    assert_eq!(place.ok("aggregate store --min --mean --prefix a"), "min 0.25\tmean 0.25\n");
    ["x1", "x2"].into_iter().for_each(|key| drop(place.ok(&format!("put store {key} 1.5e308"))));
    assert_eq!(place.ok("aggregate store --sum --prefix x"), "sum inf\n");
    assert_eq!(place.ok("aggregate store --sum --prefix x --json"), "{\"sum\":null}\n");
    place.ok("put store -5 1");
    assert_eq!(place.ok("scan store --prefix -5"), "-5\t1\n");
}

#[test]
fn what_is_exported_can_be_loaded_again() {
    let place = orders();
    place.ok("put store odd a,\"b\"");
    for format in ["csv", "jsonl"] {
        let exported = place.ok(&format!("export store --format {format}"));
        place.write(&format!("all.{format}"), &exported);
        place.ok(&format!("load copy-{format} all.{format} --key key --value value"));
        assert_eq!(sorted(&place.ok(&format!("scan copy-{format}"))), sorted(&place.ok("scan store")), "{format}");
    }
}

/// Bytes that are no text became the text that tells of them, and took the place of the key that was that text.
#[test]
fn bytes_that_are_no_text_are_exported_and_loaded_again() {
    let place = Place::new();
    let odd = [OsStr::from_bytes(b"\xff"), OsStr::from_bytes(b"a\xfe"), OsStr::new(r#"{"hex":"ff"}"#), OsStr::new(r#"{"hex":"41"}"#)];
    for (key, value) in odd.into_iter().zip(odd.into_iter().rev()) {
        assert_eq!(place.run_with([OsStr::new("put"), OsStr::new("store"), key, value], "").code, 0);
    }
    let exported = place.ok("export store --format jsonl");
    assert_eq!(exported.lines().count(), 4);
    place.write("all.jsonl", &exported);
    place.ok("load copy all.jsonl --hex --key key --value value");
    assert_eq!(sorted(&place.ok("export copy --format jsonl")), sorted(&exported));
}

/// A colour became three bytes, and another one did not.
#[test]
fn an_object_stays_one_unless_told_otherwise() {
    let place = Place::new();
    place.write("colours.jsonl", "{\"id\":1,\"of\":{\"hex\":\"ff0000\"}}\n{\"id\":2,\"of\":{ \"hex\": \"41\" }}\n");
    place.ok("load store colours.jsonl --key id --value of");
    assert_eq!(sorted(&place.ok("scan store")), ["1\t{\"hex\":\"ff0000\"}", "2\t{ \"hex\": \"41\" }"]);
    place.ok("load bytes colours.jsonl --hex --key id --value of");
    assert_eq!(esker(&place, "get bytes 1").output().unwrap().stdout, b"\xff\0\0\n");
    assert_eq!(place.ok("get bytes 2"), "A\n");
    place.write("wrong.jsonl", "{\"id\":1,\"of\":{\"hex\":\"f\"}}\n");
    place.fails("load bytes wrong.jsonl --hex --key id --value of", "wrong.jsonl: line 1: what is `hex` is not bytes in hexadecimal");
    assert_eq!(place.run("load bytes orders.csv --hex --key id").code, 2);
}

/// Two groups that are no text had one name.
#[test]
fn groups_that_are_no_text_have_names_of_their_own() {
    let place = Place::new();
    place.ok("put store é1 1");
    place.ok("put store Ω1 2");
    let groups = place.ok("aggregate store --by prefix:1 --sum --json");
    assert_eq!(groups, "{\"group\":{\"hex\":\"c3\"},\"sum\":1}\n{\"group\":{\"hex\":\"ce\"},\"sum\":2}\n");
    let output = esker(&place, "aggregate store --by prefix:1 --sum").output().unwrap();
    assert_eq!(output.stdout, b"\xc3\tsum 1\n\xce\tsum 2\n");
}

/// As CSV: what is quoted, and what is no text.
#[test]
fn any_bytes_come_back_from_an_exported_table() {
    let place = Place::new();
    let pairs: [(&[u8], &[u8]); 5] =
        [(b"a,\"b\"", b"line\r\nline"), (b"", b"empty key"), (b"empty value", b""), (b"\xff\xfe", b"\x00\x80"), (b" x ", b"\t")];
    let open = |name: &str| esker::Options::new().memory("16MiB").open::<[u8], [u8]>(place.path(name)).unwrap();
    let store = open("store");
    pairs.iter().for_each(|(key, value)| store.put(key, value).unwrap());
    store.close().unwrap();
    place.ok("export store --format csv --output all.csv");
    place.ok("load copy all.csv --key key --value value");
    let copy = open("copy");
    for (key, value) in pairs {
        assert_eq!(copy.get(key).unwrap().as_deref(), Some(value), "{key:?}");
    }
}

#[test]
fn a_dash_is_standard_output() {
    let place = Place::new();
    place.ok("put store a 1");
    assert_eq!(place.ok("export store --format csv --output -"), "key,value\na,1\n");
    assert!(!place.path("-").exists());
}

#[test]
fn an_export_to_a_file_replaces_it_when_it_is_whole() {
    let place = orders();
    place.write("all.csv", "old");
    assert_eq!(place.ok("export store --format csv --prefix fr:1 --output all.csv"), "");
    assert_eq!(std::fs::read_to_string(place.path("all.csv")).unwrap(), "key,value\nfr:1,5\n");
    place.fails("export nowhere --format csv --output all.csv", "nowhere");
    assert_eq!(std::fs::read_to_string(place.path("all.csv")).unwrap(), "key,value\nfr:1,5\n");
    // As private as it was.
    let mode = || std::fs::metadata(place.path("all.csv")).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(place.path("all.csv"), std::fs::Permissions::from_mode(0o600)).unwrap();
    place.ok("export store --format csv --output all.csv");
    assert_eq!(mode(), 0o600);
    assert_eq!(place.run("export store --format csv --key-type text").code, 2);
    let files = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(files, 3, "orders.csv, the store and the export; nothing temporary");
}

/// Only the first of two links was followed.
#[cfg(unix)]
#[test]
fn an_export_through_links_into_the_store_is_refused() {
    let place = orders();
    std::os::unix::fs::symlink("store/new.csv", place.path("one")).unwrap();
    std::os::unix::fs::symlink("one", place.path("two")).unwrap();
    std::os::unix::fs::symlink(place.path("two"), place.path("three")).unwrap();
    std::os::unix::fs::symlink("round", place.path("round")).unwrap();
    for output in ["one", "two", "three"] {
        place.fails(&format!("export store --format csv --output {output}"), "the store's own directory");
    }
    assert!(!place.path("store/new.csv").exists());
    assert_ne!(place.run("export store --format csv --output round").code, 0);
}

/// Found out when all had been written.
#[test]
fn an_output_that_can_be_no_file_is_refused_at_once() {
    let place = Place::new();
    let run = place.run("export nowhere --format csv --output out/");
    assert!(run.code == 2 && run.stderr.contains("`out/` is no name of a file"), "{run:?}");
}

/// It took the place of the log, with exit code 0.
#[test]
fn an_export_into_the_store_is_refused() {
    let place = orders();
    for output in ["store/esker.log.00000000", "store/all.csv", "store/../store/more/all.csv"] {
        place.fails(&format!("export store --format csv --output {output}"), "the store's own directory");
    }
    place.fails("backup store store/copy", "the store's own directory");
    assert!(!place.path("store/copy").exists());
    assert_eq!(place.ok("get store fr:1"), "5\n");
}

#[test]
fn an_export_that_cannot_be_written_says_where() {
    let place = Place::new();
    place.ok("put store a 1");
    for format in ["csv", "jsonl"] {
        place.fails(&format!("export store --format {format} --output /dev/full"), "esker: /dev/full: No space left");
    }
}

/// Who closes standard output has seen enough; a pipe that was named is to get everything.
#[cfg(unix)]
#[test]
fn an_export_to_a_pipe_that_nobody_reads_on_fails() {
    let place = Place::new();
    // More than a pipe holds.
    place.write("a.csv", format!("k,v\n1,{}\n", "x".repeat(1 << 20)));
    place.ok("load store a.csv --key k");
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let export = esker(&place, "export store --format csv --output pipe").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(std::fs::File::open(place.path("pipe")).unwrap());
    end(export).must_fail("pipe: nobody reads it any more");
}

#[cfg(unix)]
#[test]
fn an_export_to_a_link_or_a_pipe_writes_where_it_leads() {
    let place = orders();
    place.write("target.csv", "old");
    std::os::unix::fs::symlink("target.csv", place.path("link.csv")).unwrap();
    place.fails("export nowhere --format csv --output link.csv", "nowhere");
    assert_eq!(std::fs::read_to_string(place.path("target.csv")).unwrap(), "old");
    place.ok("export store --format csv --prefix fr:1 --output link.csv");
    assert!(place.path("link.csv").is_symlink());
    assert_eq!(std::fs::read_to_string(place.path("target.csv")).unwrap(), "key,value\nfr:1,5\n");
    assert_eq!(place.ok("export store --format csv --prefix fr:1 --output /dev/stdout"), "key,value\nfr:1,5\n");
}

/// Where nothing goes by nobody would know that something is done. Where the pairs do, a bar would be among them.
#[test]
fn an_export_to_a_file_shows_its_progress_on_a_terminal() {
    let place = Place::new();
    let store = esker::Options::new().memory("64MiB").open::<[u8], [u8]>(place.path("store")).unwrap();
    // No text, which takes its time to be written: a bar comes after half a second.
    (0..4_000u32).for_each(|n| store.put(&n.to_le_bytes(), &[0xff; 10_000]).unwrap());
    store.close().unwrap();
    for (output, goes_by) in [("all.jsonl", false), ("-", true)] {
        let (ours, theirs) = terminal();
        let mut command = esker(&place, &format!("export store --format jsonl --output {output} --memory 64MiB"));
        command.stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let (shown, run) = show(command, ours);
        assert!(run.status.success(), "{run:?}");
        assert_eq!((shown.contains("hex"), shown.contains('█')), (goes_by, !goes_by), "{output}");
    }
}
