//! `load`: formats, packing, modes and rows that do not parse.

#![allow(missing_docs)]

mod common;

use common::{Place, Run, answer_signals, end, esker, show, signal, sorted, terminal};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::Duration;

const FRUIT: &str = "id,name,price,stock\n1,apple,30,5\n2,\"pear, ripe\",40,7\n1,\"the \"\"apple\"\"\",35,-2\n";

#[test]
fn csv_rows_are_put_whole() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    let said = place.ok("load store fruit.csv --key id");
    assert!(said.starts_with("loaded 3 rows"), "{said}");
    assert_eq!(place.ok("get store 1"), "1,\"the \"\"apple\"\"\",35,-2\n");
    assert_eq!(place.ok("get store 2"), "2,\"pear, ripe\",40,7\n");
}

#[test]
fn columns_make_keys_and_values() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    place.ok("load store fruit.csv --key id,price --value name");
    assert_eq!(place.ok("get store 1,30"), "apple\n");
    assert_eq!(place.ok("get store 1,35"), "the \"apple\"\n");
    place.ok("load pairs fruit.csv --key id --value stock,name");
    assert_eq!(place.ok("get pairs 2"), "7,\"pear, ripe\"\n");
}

#[test]
fn appended_rows_follow_each_other() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    place.ok("load store fruit.csv --key id --value price --mode append");
    assert_eq!(place.ok("get store 1"), "30\n35\n\n");
    place.ok("load store fruit.csv --key id --value price --mode append");
    assert_eq!(place.ok("get store 1"), "30\n35\n30\n35\n\n");
}

#[test]
fn counts_are_added_up() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    place.ok("load store fruit.csv --key id --value stock --mode count");
    assert_eq!(place.ok("get store 1"), "3\n");
    place.ok("load rows fruit.csv --key id --mode count");
    assert_eq!(place.ok("get rows 1"), "2\n");
}

#[test]
fn a_count_goes_on_from_what_is_stored() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    place.ok("put store 1 100");
    place.ok("put store 2 many");
    place.fails("load store fruit.csv --key id --value stock --mode count", "line 3: ");
    assert_eq!(place.ok("get store 1"), "105\n");
    assert_eq!(place.ok("get store 2"), "many\n");
}

#[test]
fn a_sum_too_large_is_an_error() {
    let place = Place::new();
    place.write("a.csv", format!("k,v\na,{}\na,1\n", i64::MAX));
    place.fails("load store a.csv --key k --value v --mode count", "a.csv: line 3: the sum is too large");
    assert_eq!(place.ok("get store a"), format!("{}\n", i64::MAX));
}

#[test]
fn a_load_goes_on_where_an_earlier_one_ended() {
    let place = Place::new();
    place.write("a.csv", "k,v\na,1\nb,2\na,x\na,4\n");
    place.fails("load store a.csv --key k --value v --mode count", "line 4: `x` is not a whole decimal number (rows loaded before it: 2)");
    place.write("a.csv", "k,v\na,1\nb,2\na,3\na,4\n");
    let done = place.ok("load store a.csv --key k --value v --mode count --skip-rows 2 --acknowledge");
    assert!(done.starts_with("4\nloaded 2 rows"), "{done}");
    assert_eq!((place.ok("get store a"), place.ok("get store b")), ("8\n".into(), "2\n".into()));
    place.fails("load store a.csv --key k --value v --mode count --skip-rows 5", "a.csv: it has 4 rows, and is to be loaded behind 5");
    assert!(place.ok("load store a.csv --key k --mode count --skip-rows 4").starts_with("loaded 0 rows"));
    assert_eq!(place.ok("get store a"), "8\n");
    place.write("a.jsonl", "{\"k\":\"a\"}\n{\"k\":\"b\"}\n");
    place.ok("load store a.jsonl --key k --mode count --skip-rows 1");
    place.write("b.jsonl", "{\"k\":\"a\"}\n{\"l\":\"b\"}\n");
    place.fails("load store b.jsonl --key k --mode count --skip-rows 5", "line 2: the object has no `k` (rows passed over before it: 1)");
    assert_eq!((place.ok("get store a"), place.ok("get store b")), ("8\n".into(), "3\n".into()));
}

#[test]
fn gzip_is_found_by_its_first_bytes() {
    let place = Place::new();
    place.write_gzip("fruit.csv.gz", FRUIT);
    place.ok("load store fruit.csv.gz --key name --value price");
    assert_eq!(place.ok("get store apple"), "30\n");
    place.write_gzip("named-plain.csv", FRUIT);
    place.ok("load other named-plain.csv --key name --value price");
    assert_eq!(place.ok("get other apple"), "30\n");
}

#[test]
fn gzip_has_members_and_zeros_behind_them() {
    let place = Place::new();
    let (first, second) = FRUIT.split_at(FRUIT.len() / 2);
    place.write_gzip("first.gz", first);
    place.write_gzip("second.gz", second);
    let read = |name| std::fs::read(place.path(name)).unwrap();
    // More of them than are read at once.
    let whole = [read("first.gz"), read("second.gz"), vec![0; 1 << 20]].concat();
    place.write("fruit.csv.gz", &whole);
    place.ok("load store fruit.csv.gz --key name --value price");
    assert_eq!(place.ok("get store apple"), "30\n");
    place.write("more.csv.gz", [&whole[..], b"more"].concat());
    place.fails("load more more.csv.gz --key name --value price", "that is not gzip");
    place.write("cut.csv.gz", &read("first.gz")[..read("first.gz").len() - 5]);
    place.fails("load cut cut.csv.gz --key name --value price", "cut.csv.gz: ");
}

#[test]
fn broken_gzip_is_an_error() {
    let place = Place::new();
    place.write("fruit.csv.gz", b"\x1f\x8b and then nothing that unpacks");
    place.fails("load store fruit.csv.gz --key id", "fruit.csv.gz: ");
    assert!(!place.path("store").exists());
}

#[test]
fn tsv_takes_quotes_as_they_are() {
    let place = Place::new();
    place.write("sizes.tsv", "name\tsize\n3\" pipe\t7\n\"bolt\t8\n");
    place.ok("load store sizes.tsv --key size");
    assert_eq!(place.ok("get store 7"), "3\" pipe\t7\n");
    assert_eq!(place.ok("get store 8"), "\"bolt\t8\n");
}

#[test]
fn json_lines_keep_what_is_written() {
    let place = Place::new();
    place.write("a.jsonl", "{\"id\": \"x\", \"price\": 1.50, \"tags\": [1, 2]}\n\n{\"id\": 7, \"price\": 2, \"tags\": \"\\u00e9\"}");
    place.ok("load rows a.jsonl --key id");
    assert_eq!(place.ok("get rows x"), "{\"id\": \"x\", \"price\": 1.50, \"tags\": [1, 2]}\n");
    place.ok("load tags a.jsonl --key id --value tags");
    assert_eq!(place.ok("get tags x"), "[1, 2]\n");
    assert_eq!(place.ok("get tags 7"), "é\n");
    place.ok("load pairs a.jsonl --key price,id --value id,price");
    assert_eq!(place.ok("get pairs 1.50,x"), "{\"id\":\"x\",\"price\":1.50}\n");
}

#[test]
fn standard_input_needs_a_format() {
    let place = Place::new();
    let run = place.run_with("load store - --format csv --key id --value name".split(' '), FRUIT);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(place.ok("get store 1"), "the \"apple\"\n");
    assert_eq!(place.run("load store - --key id").code, 2);
}

#[test]
fn a_bad_csv_row_ends_the_load_where_it_stands() {
    let place = Place::new();
    place.write("bad.csv", "id,name\n1,\"one\nand more\"\n2,two,too many\n3,three\n");
    place.fails("load store bad.csv --key id", "bad.csv: line 4: 3 fields, but the header has 2");
    assert_eq!(place.ok("get store 1"), "1,\"one\nand more\"\n");
    place.fails("get store 2", "no such key");
    place.fails("get store 3", "no such key");
}

#[test]
fn a_bad_json_row_ends_the_load_where_it_stands() {
    let place = Place::new();
    place.write("bad.jsonl", "{\"id\": 1}\n\n{\"id\": 2\n{\"id\": 3}\n");
    place.fails("load store bad.jsonl --key id", "bad.jsonl: line 3: ");
    assert_eq!(place.ok("get store 1"), "{\"id\": 1}\n");
    place.fails("get store 3", "no such key");
    place.write("other.jsonl", "{\"id\": 1}\n{\"di\": 2}\n");
    place.fails("load store other.jsonl --key id", "line 2: the object has no `id`");
    place.write("list.jsonl", "[1, 2]\n");
    place.fails("load store list.jsonl --key id", "line 1: ");
}

#[test]
fn a_number_that_is_none_ends_the_count() {
    let place = Place::new();
    place.write("a.csv", "k,v\na,1\na,1.5\na,1\n");
    place.fails("load store a.csv --key k --value v --mode count", "line 3: `1.5` is not a whole decimal");
    assert_eq!(place.ok("get store a"), "1\n");
}

#[test]
fn a_wrong_column_or_file_makes_no_store() {
    let place = Place::new();
    place.write("fruit.csv", FRUIT);
    place.fails("load store fruit.csv --key colour", "no column `colour`; the columns are id, name, price, stock");
    place.fails("load store fruit.csv --key id --value colour", "no column `colour`");
    place.fails("load store absent.csv --key id", "absent.csv: ");
    place.fails("load store . --format csv --key id", ".: ");
    place.write("empty.csv", "");
    place.fails("load store empty.csv --key id", "empty.csv: the file is empty");
    assert!(!place.path("store").exists());
}

#[test]
fn many_rows_go_through_a_small_store() {
    let place = Place::new();
    let rows: String = (0..200_000).map(|row| format!("{row},{:0>150}\n", row * 7)).collect();
    place.write_gzip("many.csv.gz", &format!("id,value\n{rows}"));
    place.ok("load store many.csv.gz --key id --value value --memory 16MiB");
    for id in [0, 77_777, 199_999] {
        let value = place.ok(&format!("get store {id} --memory 16MiB"));
        assert_eq!(value, format!("{:0>150}\n", id * 7));
    }
}

#[test]
fn a_table_in_wide_characters_is_named() {
    let place = Place::new();
    let wide = |order: fn(u16) -> [u8; 2]| "\u{feff}id,name\n1,a\n".encode_utf16().flat_map(order).collect::<Vec<_>>();
    for text in [wide(u16::to_le_bytes), wide(u16::to_be_bytes)] {
        place.write("a.csv", text);
        place.fails("load store a.csv --key id", "a.csv: this is UTF-16");
        assert!(!place.path("store").exists());
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_column() {
    let place = Place::new();
    place.write("plain.csv", "\u{feff}k,v\na,1\n");
    place.write("plain.jsonl", "\u{feff}{\"k\": \"a\", \"v\": 1}\n");
    place.write_gzip("packed.csv.gz", "\u{feff}k,v\na,1\n");
    for file in ["plain.csv", "plain.jsonl", "packed.csv.gz"] {
        place.ok(&format!("load {file}.store {file} --key k --value v"));
        assert_eq!(place.ok(&format!("get {file}.store a")), "1\n");
    }
}

#[test]
fn an_open_quote_is_an_error() {
    let place = Place::new();
    place.write("a.csv", "k,v\n0,\"said \"\"so\"\"\"\na,\"hello\nb,2\nc,3\n");
    place.fails("load store a.csv --key k --value v", "a.csv: line 3: a quote is opened here, or later in this row, and never closed");
    assert_eq!(sorted(&place.ok("scan store")), ["0\tsaid \"so\""]);
    place.write("header.csv", "k,\"v\na,1\n");
    place.fails("load none header.csv --key k", "header.csv: a quote is opened here");
    place.write("whole.csv", "k,v\n3\" pipe,7\n4,\"8\"");
    place.ok("load store whole.csv --key k --value v");
    assert_eq!(place.ok("get store 4"), "8\n");
}

/// Two keys became one.
#[test]
fn text_behind_a_closing_quote_is_an_error() {
    let place = Place::new();
    place.write("a.csv", "k,v\n\"ab\",\"1\"\n\"a\"b,2\nc,3\n");
    place.fails(
        "load store a.csv --key k --value v",
        "a.csv: line 3: there is text behind the quote that closes a field (rows loaded before it: 1)",
    );
    assert_eq!(place.ok("scan store"), "ab\t1\n");
    place.write("header.csv", "\"k\" ,v\na,1\n");
    place.fails("load none header.csv --key k", "header.csv: there is text behind the quote");
}

#[test]
fn a_member_that_is_there_twice_is_not_guessed() {
    let place = Place::new();
    place.write("a.jsonl", "{\"k\":1,\"v\":1,\"w\":1,\"w\":2}\n{\"k\":2,\"v\":1,\"v\":2}\n");
    place.fails("load store a.jsonl --key k --value v", "a.jsonl: line 2: the object has more than one `v`");
    assert_eq!(place.ok("scan store"), "1\t1\n");
}

#[test]
fn a_column_that_is_there_twice_is_not_guessed() {
    let place = Place::new();
    place.write("a.csv", "k,v,v\na,1,2\n");
    place.fails("load none a.csv --key k --value v", "a.csv: there are 2 columns `v`");
    assert!(!place.path("none").exists());
    place.ok("load store a.csv --key k");
    assert_eq!(place.ok("get store a"), "a,1,2\n");
}

/// A hole in a file stands for what was written without line breaks.
#[test]
fn a_row_without_end_is_an_error() {
    let place = Place::new();
    for (file, start) in [("a.csv", "k,v\na,1\nb,"), ("a.jsonl", "{\"k\": \"a\"}\n")] {
        place.write(file, start);
        std::fs::File::options().write(true).open(place.path(file)).unwrap().set_len(80 << 20).unwrap();
        place.fails(&format!("load {file}.store {file} --key k"), "the row has more than 64 MiB (rows loaded before it: 1)");
    }
}

/// More than 2 MiB cannot be written, which stands for a full disk; the store keeps all of it in memory until it closes.
#[cfg(unix)]
#[test]
fn rows_that_a_failed_close_lost_are_not_only_called_loaded() {
    let place = Place::new();
    let rows: String = (0..40_000).map(|row| format!("{row},{row:0>200}\n")).collect();
    place.write("a.csv", format!("k,v\n{rows}bad\n"));
    let script = format!("trap '' XFSZ; ulimit -f 2048; exec {} load store a.csv --key k", env!("CARGO_BIN_EXE_esker"));
    let output = Command::new("bash").args(["-c", &script]).current_dir(place.path(".")).output().unwrap();
    let run = Run::from(output);
    run.must_fail("i/o failed");
    assert!(run.stderr.contains("line 40002: 1 fields") && run.stderr.contains("is lost"), "{run:?}");
}

/// The names of columns on the command line are a record of CSV.
#[test]
fn a_column_whose_name_has_a_comma_can_be_chosen() {
    let place = Place::new();
    place.write("a.csv", "\"last, first\",id,\"a\"\"b\"\n\"Lovelace, Ada\",1,x\n");
    let load = |options: &[&str]| place.run_with(["load", "store", "a.csv"].iter().chain(options), "");
    assert_eq!(load(&["--key", "\"last, first\"", "--value", "id,\"a\"\"b\""]).code, 0);
    assert_eq!(place.run_with(["get", "store", "Lovelace, Ada"], "").stdout, "1,x\n");
    assert_eq!(load(&["--key", "id", "--key", "\"last, first\"", "--value", "id"]).code, 0);
    assert_eq!(place.run_with(["get", "store", "1,\"Lovelace, Ada\""], "").stdout, "1\n");
    load(&["--key", "last, first"]).must_fail("last");
}

/// Where standard error is a terminal, a bar moves over the input and says how fast that goes.
#[test]
fn a_load_shows_its_progress_on_a_terminal() {
    let place = Place::new();
    let rows: String = (0..200_000).map(|row| format!("{row},{:0>50}\n", row)).collect();
    place.write("a.csv", format!("k,v\n{rows}"));
    let (ours, theirs) = terminal();
    let mut command = esker(&place, "load store a.csv --key k --value v --memory 16MiB");
    command.stdout(Stdio::piped()).stderr(theirs);
    let (shown, run) = show(command, ours);
    assert!(run.status.success() && String::from_utf8_lossy(&run.stdout).starts_with("loaded 200,000 rows"), "{run:?}");
    assert!(shown.contains(" rows/s") && shown.contains('%') && shown.contains('█'), "{shown:?}");
}

/// Whoever feeds a load must learn that it is not whole.
#[test]
fn a_load_whose_acknowledgements_nobody_reads_fails() {
    let place = Place::new();
    let rows: String = (0..100).map(|row| format!("{row},x\n")).collect();
    place.write("a.csv", format!("k,v\n{rows}"));
    let run = place.run_unread("load store a.csv --key k --durability always --acknowledge");
    run.must_fail("nobody reads the acknowledgements (rows loaded: 1)");
}

/// What was stored before a failure is kept; who feeds rows again from the last number on must not store some twice.
#[test]
fn a_load_that_fails_acknowledges_what_it_keeps() {
    let place = Place::new();
    place.write("a.csv", "k,v\na,1\nb,2\nc\n");
    for (durability, store) in [("none", "s"), ("60", "t"), ("always", "u")] {
        let run = place.run(&format!("load {store} a.csv --key k --value v --mode append --durability {durability} --acknowledge"));
        run.must_fail("rows loaded");
        assert_eq!(run.stdout.lines().last(), Some("2"), "{durability}: {}", run.stdout);
        assert_eq!(place.run(&format!("get {store} b")).stdout.trim_end(), "2");
    }
}

/// Whoever waits for the number before he sends more must get it.
#[test]
fn rows_are_acknowledged_while_the_input_is_silent() {
    let place = Place::new();
    let arguments = "load store - --format csv --key id --durability 0.05 --acknowledge";
    let mut load = esker(&place, arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n7,name\n").unwrap();
    let (tell, told) = mpsc::channel();
    let said = BufReader::new(load.stdout.take().unwrap());
    thread::spawn(move || said.lines().try_for_each(|line| tell.send(line.unwrap())));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)).as_deref(), Ok("1"));
    drop(rows);
    assert_eq!(end(load).code, 0);
    let rest: Vec<String> = told.iter().collect();
    assert!(rest.len() == 1 && rest[0].starts_with("loaded 1 row"), "{rest:?}");
}

/// Else whoever waits for a number waits for good.
#[test]
fn a_load_that_cannot_tell_ends_while_its_input_is_silent() {
    let place = Place::new();
    let arguments = "load store - --format csv --key id --durability 0.01 --acknowledge";
    let (reader, writer) = std::io::pipe().unwrap();
    let mut load = esker(&place, arguments).stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(reader);
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n7,name\n").unwrap();
    end(load).must_fail("nobody reads the acknowledgements (rows loaded: 1)");
    assert_eq!(place.ok("get store 7"), "7,name\n");
}

/// A column that no object has is seen in the first row alone; it left a store with nothing in it, and the folders above.
#[test]
fn a_first_row_that_cannot_be_read_makes_no_store() {
    let place = Place::new();
    place.write("a.jsonl", "{\"id\":1}\n");
    place.write("b.csv", "id,name\n1\n");
    place.write("c.csv", "id\n1\n2,3\n");
    for (file, skipped) in [("a.jsonl --key idd", 0), ("b.csv --key id", 0), ("c.csv --skip-rows 1 --key id", 1)] {
        let line = if file.starts_with('a') { 1 } else { 2 + skipped };
        place.fails(&format!("load new/store {file}"), &format!(": line {line}: "));
        place.fails(&format!("load new/store {file}"), &format!("(rows loaded before it: {skipped})"));
        assert!(!place.path("new").exists(), "{file}");
    }
}

/// The whole row was counted, of which one byte is stored.
#[test]
fn rows_that_are_counted_are_no_bytes() {
    let place = Place::new();
    place.write("a.csv", format!("id,name\n{}", "abc,a long name that nobody asked for\n".repeat(100)));
    place.write("a.jsonl", "{\"id\":\"abc\",\"name\":\"a long name\"}\n".repeat(100));
    for file in ["a.csv", "a.jsonl"] {
        assert!(place.ok(&format!("load store {file} --key id --mode count")).starts_with("loaded 100 rows, 300 B of keys and values"));
    }
    assert_eq!(place.ok("get store abc"), "200\n");
}

/// Who is not told that all is stored would load it again.
#[test]
fn a_load_that_cannot_tell_its_end_says_how_far_it_came() {
    let place = Place::new();
    place.write("a.csv", "k\na\nb\n");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    Run::from(esker(&place, "load store a.csv --key k --mode count").stdout(full).output().unwrap()).must_fail("(rows loaded: 2)");
    assert_eq!(place.ok("get store b"), "1\n");
}

#[test]
fn a_message_has_names_as_they_are() {
    let place = Place::new();
    place.run_with(["get", "my  store", "k"], "").must_fail("esker: my  store: ");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_load_whose_input_is_silent() {
    let place = Place::new();
    let arguments = "load store - --format csv --key id --durability always --acknowledge";
    let mut load = esker(&place, arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n7,name\n").unwrap();
    let mut acknowledged = String::new();
    BufReader::new(load.stdout.take().unwrap()).read_line(&mut acknowledged).unwrap();
    assert_eq!(acknowledged, "1\n");
    signal(&load, "-TERM");
    end(load).must_be_interrupted("esker: interrupted (rows loaded: 1)");
    assert_eq!(place.ok("get store 7"), "7,name\n");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_load_from_a_silent_pipe() {
    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path("pipe.csv")).status().unwrap().success());
    let load = esker(&place, "load store pipe.csv --key id").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Returns once the program has opened it.
    let pipe = std::fs::File::options().write(true).open(place.path("pipe.csv")).unwrap();
    signal(&load, "-INT");
    end(load).must_be_interrupted("pipe.csv: interrupted");
    drop(pipe);
    assert!(!place.path("store").exists());
}

/// `nohup`, and scripts with `&`, start programs that are to go on.
#[test]
fn an_interrupt_that_was_ignored_stays_so() {
    let place = Place::new();
    let mut load = esker(&place, "load store - --format csv --key id");
    answer_signals(&mut load, libc::SIG_IGN);
    let mut load = load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n1,one\n").unwrap();
    // It has begun, and taken hold of what it handles.
    while !place.path("store/esker.manifest").exists() {
        sleep(Duration::from_millis(5));
    }
    ["-INT", "-HUP", "-TERM"].into_iter().for_each(|name| signal(&load, name));
    rows.write_all(b"2,two\n").unwrap();
    drop(rows);
    assert_eq!(end(load).code, 0);
    assert_eq!(place.ok("get store 2"), "2,two\n");
}

#[cfg(unix)]
#[test]
fn an_interrupt_closes_the_store_in_order() {
    let place = Place::new();
    let mut load = esker(&place, "load store - --format csv --key id").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n").unwrap();
    // More than any buffer between the two programs holds, so that the loading has begun when this returns.
    for id in 0..200_000 {
        writeln!(rows, "{id},name").unwrap();
    }
    signal(&load, "-INT");
    // The program may end before it has read this.
    let _ = rows.write_all("1,again\n".repeat(200_000).as_bytes());
    drop(rows);
    let output = load.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.starts_with("esker: interrupted (rows loaded: "), "{stderr}");
    assert_eq!(place.ok("get store 7"), "7,name\n");
}

/// Where the row began that does not parse, however lines end and however many are empty before it.
#[test]
fn an_error_names_the_line_where_its_row_begins() {
    let place = Place::new();
    let texts = [
        ("lf", "k,v\na,1\nb,1,2\n", 3),
        ("cr", "k,v\ra,1\r\rb,1,2\r", 4),
        ("crlf", "k,v\r\na,1\r\nb,1,2\r\n", 3),
        ("empty lines", "k,v\na,1\n\n\nb,1,2\n", 5),
    ];
    for (name, text, line) in texts {
        place.write("a.csv", text);
        let run = place.run("load store a.csv --key k");
        assert!(run.stderr.contains(&format!("a.csv: line {line}: 3 fields")), "{name}: {run:?}");
    }
}

#[test]
fn a_row_without_end_is_named_by_its_beginning() {
    let place = Place::new();
    place.write("a.csv", format!("k,v\na,1\nb,\"{}", "y,1\n".repeat(17 << 20)));
    let run = place.run("load store a.csv --key k");
    assert!(run.stderr.contains("a.csv: line 3: "), "{run:?}");
}

/// The column is that of the line; of what is wrong within a member there is none.
#[test]
fn an_error_names_the_column_in_the_line() {
    let place = Place::new();
    place.write("a.jsonl", "\n  {\"k\":1,}\n");
    place.fails("load store a.jsonl --key k", "line 2: trailing comma (column 10) ");
    place.write("a.jsonl", "{\"v\":1,\"k\":\"\\ud800\"}\n");
    let run = place.run("load store a.jsonl --key k");
    assert!(run.stderr.contains("line 1: ") && !run.stderr.contains("column"), "{run:?}");
}

/// Rows were said to be loaded that the store had lost: who passed over them the next time never had them.
#[test]
fn what_cannot_be_written_is_not_said_to_be_loaded() {
    let place = Place::new();
    let rows = 40_000;
    let text = (0..rows).fold("k,v\n".to_owned(), |text, row| text + &format!("{row},{}\n", "x".repeat(200)));
    place.write("a.csv", &text);
    // No file of more than some megabytes: the log's first one is longer.
    let shell = |arguments: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 4000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_esker")]).args(arguments.split(' '));
        shell.current_dir(place.path("")).stdin(Stdio::null());
        shell
    };
    let limited = |arguments: &str| Run::from(shell(arguments).output().unwrap());
    let run = limited("load store a.csv --key k --memory 16MiB");
    run.must_fail("what came after its last durable line is lost (rows known to be stored: 0)");
    assert!(!run.stderr.contains("loaded"), "{run:?}");
    let run = limited("load told a.csv --key k --memory 16MiB --durability 0.01 --acknowledge");
    let last = run.stdout.lines().last().unwrap_or("0").to_owned();
    run.must_fail(&format!("(rows known to be stored: {last})"));
    // So that most often it is the thread which tells that meets the end of the medium; the rest comes once it has told of the beginning.
    let (beginning, rest) = text.split_at(text.len() / 40);
    for round in 0..6 {
        let arguments = format!("load often{round} - --format csv --key k --memory 16MiB --durability 0.002 --acknowledge");
        let mut load = shell(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = load.stdin.take().unwrap();
        input.write_all(beginning.as_bytes()).unwrap();
        let mut told = BufReader::new(load.stdout.take().unwrap()).lines().map(Result::unwrap);
        let first = told.next().unwrap();
        // It ends before it has read all.
        let _ = input.write_all(rest.as_bytes());
        drop(input);
        let last = told.last().unwrap_or(first);
        assert_ne!(last, "0");
        end(load).must_fail(&format!("(rows known to be stored: {last})"));
    }
    // Each row is stored before the next one where all are durable by themselves.
    let run = limited("load all a.csv --key k --mode count --memory 16MiB --durability always");
    let known: u64 = run.stderr.rsplit_once("stored: ").unwrap().1.trim_end().trim_end_matches(')').parse().unwrap();
    assert!(known > 0, "{run:?}");
    place.ok(&format!("load all a.csv --key k --mode count --skip-rows {known}"));
    for row in [0, known - 1, known, rows - 1] {
        assert_eq!(place.ok(&format!("get all {row}")), "1\n");
    }
    // What is there can be read, and the rest be loaded.
    place.ok(&format!("load told a.csv --key k --skip-rows {last}"));
    for row in [0, 1, rows / 2, rows - 1] {
        assert!(place.ok(&format!("get told {row}")).starts_with(&format!("{row},x")));
    }
}
