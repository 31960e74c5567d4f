//! A process that goes to another directory, as a daemon does. Alone: all threads of a process are in one place.

#![allow(missing_docs)]

use esker::{Options, Store};

#[test]
fn a_store_stays_where_it_was_opened() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::env::set_current_dir(here.path()).unwrap();
    let open = |path: &str| -> Store<u64, u64> { Options::new().memory("16MiB").segment_bytes(256 << 10).open(path).unwrap() };
    let store = open("store");
    std::env::set_current_dir(there.path()).unwrap();
    // One of the same name, which is another's.
    let other = open("store");
    other.put(&1, &7).unwrap();
    other.commit().unwrap();
    (0..200_000u64).for_each(|n| store.put(&n, &(n + 1)).unwrap());
    store.commit().unwrap();
    store.save_index().unwrap();
    store.close().unwrap();
    other.close().unwrap();
    let other = open("store");
    assert_eq!((other.get(&1).unwrap(), other.get(&2).unwrap()), (Some(7), None));
    std::env::set_current_dir(here.path()).unwrap();
    let store = open("store");
    assert!((0..200_000u64).step_by(997).all(|n| store.get(&n).unwrap() == Some(n + 1)));
    std::env::set_current_dir("/").unwrap();
}
