//! `load`: formats, packing, modes and rows that do not parse.

#![allow(missing_docs)]

mod common;

use common::Place;

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

#[cfg(unix)]
#[test]
fn an_interrupt_closes_the_store_in_order() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let place = Place::new();
    let mut load = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["load", "store", "-", "--format", "csv", "--key", "id"])
        .current_dir(place.path("."))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = load.stdin.take().unwrap();
    rows.write_all(b"id,name\n").unwrap();
    // More than any buffer between the two programs holds, so that the loading has begun when this returns.
    for id in 0..200_000 {
        writeln!(rows, "{id},name").unwrap();
    }
    let killed = Command::new("kill").args(["-INT", &load.id().to_string()]).status().unwrap();
    assert!(killed.success());
    // The program may end before it has read this.
    let _ = rows.write_all("1,again\n".repeat(200_000).as_bytes());
    drop(rows);
    let output = load.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("esker: interrupted (rows loaded: "), "{stderr}");
    assert_eq!(place.ok("get store 7"), "7,name\n");
}
