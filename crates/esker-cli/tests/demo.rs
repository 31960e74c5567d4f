//! `demo`: it checks itself against its own books, so that it ends well is most of what there is to test.

#![allow(missing_docs)]

mod common;

use common::Place;

#[test]
fn the_demo_checks_itself() {
    let place = Place::new();
    let text = place.ok("demo");
    for part in ["336,776 flights", "16.0 MiB", "N725MQ", "105 airports", "189,940 histories", "as appended"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    // Cold histories come from disk and hot ones from memory.
    let kinds = |kind: &str| text.lines().filter(|line| line.starts_with(kind)).collect::<Vec<_>>();
    assert_eq!(kinds("unseen").len(), 3, "{text}");
    assert!(kinds("latest").iter().any(|line| line.ends_with("memory")), "{text}");
    // Which history is cold depends on what compaction has moved to the log's end; that most of them are does not.
    let reads = text.lines().find_map(|line| line.split(" with ").nth(1)?.strip_suffix(" device reads"));
    let reads: u64 = reads.expect("the check tells its device reads").replace(',', "").parse().unwrap();
    assert!(reads > 189_940 / 2, "{text}");
}

#[test]
fn a_budget_whose_data_nobody_waits_for_is_refused() {
    let run = Place::new().run("demo --memory 4194304TiB");
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("give it less than 4194304.0 TiB"), "{run:?}");
}

#[test]
fn the_demo_takes_a_budget() {
    let run = Place::new().run("demo --memory 24MiB");
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("24.0 MiB"), "{run:?}");
}
