//! Stores that an earlier build wrote open, hold what they held, and are sound before and after; a format of the future is refused by name.

use esker_sim::golden::{STORES, check, copy};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// All formats that were ever written.
const FORMATS: [u32; 2] = [3, 4];

fn kept(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/format-{format}"))
}

#[test]
fn golden_stores_open_and_hold_what_they_held() {
    for (format, name) in FORMATS.into_iter().flat_map(|format| STORES.map(|name| (format, name))) {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join(name);
        copy(&kept(format).join(name), &store).unwrap();
        let found = esker::verify(&store, |_, _| ControlFlow::Continue(())).unwrap();
        assert!(found.is_sound() && found.records > 400, "{format}, {name}: {found:?}");
        assert_eq!(found.scars > 0, name.ends_with("crashed"), "{name}: {found:?}");
        assert_eq!(check(name, &store).unwrap(), None, "{name}");
        assert!(esker::verify(&store, |_, _| ControlFlow::Continue(())).unwrap().is_sound(), "{name}");
    }
}

#[test]
fn another_format_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    copy(&kept(FORMATS[1]).join(STORES[0]), &store).unwrap();
    let manifest = fs::read(store.join("esker.manifest")).unwrap();
    let reworded: Vec<u8> = manifest
        .chunks(4096)
        .flat_map(|slot| {
            let text = String::from_utf8(slot.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap();
            let body = text.split("checksum=").next().unwrap().replace("esker format 4", "esker format 9");
            let mut slot = format!("{body}checksum={:016x}\n", xxhash_rust::xxh3::xxh3_64(body.as_bytes())).into_bytes();
            slot.resize(4096, 0);
            slot
        })
        .collect();
    fs::write(store.join("esker.manifest"), reworded).unwrap();
    let refused = check(STORES[0], &store).unwrap_err().to_string();
    assert!(refused.contains("esker format 9") && refused.contains("esker format 4"), "{refused}");
}
