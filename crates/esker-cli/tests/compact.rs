//! `compact` and the space that `stats` shows: files go, values stay.

#![allow(missing_docs)]

mod common;

use common::Place;

fn space(text: &str) -> (u64, f64) {
    let found: serde_json::Value = serde_json::from_str(text).unwrap();
    let space = found.get("space").unwrap_or(&found);
    (space["file_bytes"].as_u64().unwrap(), space["amplification"].as_f64().unwrap())
}

#[test]
fn a_compacted_store_is_smaller_and_holds_the_same() {
    let place = Place::new();
    // Twice what lives: all that is allowed, so that nothing is compacted by itself.
    for round in 0..2 {
        let rows: String = (0..20_000).map(|row| format!("{row},{:0>100}\n", row * round)).collect();
        place.write("rows.csv", format!("id,value\n{rows}"));
        place.ok("load store rows.csv --key id --value value --memory 16MiB");
    }
    let (before, allowed) = space(&place.ok("stats store --json --memory 16MiB"));
    let (after, amplification) = space(&place.ok("compact store --json --memory 16MiB"));
    assert!(allowed > 1.8 && amplification < 1.2, "{allowed}, then {amplification}");
    // A file of 4 MiB goes, and what of it lived, and lies behind now, comes.
    assert!(after + before / 20 < before, "{before} bytes, then {after}");
    let text = place.ok("stats store --memory 16MiB");
    assert!(text.contains("space") && text.contains("target 2.00"), "{text}");
    assert_eq!(place.ok("get store 19999"), format!("{:0>100}\n", 19_999));
    let told = place.ok("compact store --rebuild-index");
    assert!(told.contains("files") && told.contains("amplification 1.0"), "{told}");
    assert_eq!(place.ok("get store 19999"), format!("{:0>100}\n", 19_999));
    place.fails("compact none", "none: ");
}
