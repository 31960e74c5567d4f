//! Places of the medium that cannot be read: the common way in which a disk loses bytes.
//!
//! The theory: such a place is damage like any other. A store that needs it refuses to open and says so; `verify` tells of it and goes on;
//! who accepts the loss gets what lies before it, and a store that is sound from then on.

use esker::{Error, Options, Result, Storage, Store, verify_in};
use esker_sim::storage::{SECTOR, SimStorage};
use std::ops::ControlFlow;
use std::sync::Arc;

const KEYS: u64 = 3000;

fn open(storage: &SimStorage, accept_loss: bool) -> Result<Store<u64, u64>> {
    let options = Options::new().memory("16MiB").background(false).accept_loss(accept_loss);
    options.open_in(Arc::new(storage.clone()))
}

/// A store of [`KEYS`] keys, put in order, in some lines; with an image of the index for the first half, or none.
fn disk(with_image: bool) -> SimStorage {
    let storage = SimStorage::new();
    let store = open(&storage, false).unwrap();
    for n in 0..KEYS {
        store.put(&n, &!n).unwrap();
        if n % 500 == 499 {
            store.commit().unwrap();
        }
        if with_image && n == KEYS / 2 {
            store.save_index().unwrap();
        }
    }
    // Lines that tell of themselves.
    for n in KEYS..KEYS + 5 {
        store.put(&n, &!n).unwrap();
        store.commit().unwrap();
    }
    // Killed, not closed.
    storage.restarted()
}

/// So many keys are there, the first ones. Reads that fail count as there: what an image stands for was not read by the opening.
fn held(store: &Store<u64, u64>) -> u64 {
    let is_there = |n: &u64| match store.get(n) {
        Ok(value) => {
            assert!(value.is_none_or(|value| value == !*n));
            value.is_some()
        }
        Err(error) => {
            assert!(matches!(error, Error::Io(_) | Error::Corruption(_)), "{error}");
            true
        }
    };
    let there = (0..KEYS + 5).take_while(is_there).count() as u64;
    assert!(!(there..KEYS + 5).any(|n| is_there(&n)), "what lies behind a loss is lost, too");
    there
}

fn every_sector(disk: &SimStorage, mut check: impl FnMut(&SimStorage, &str)) {
    for (name, bytes) in disk.files() {
        for sector in 0..bytes.div_ceil(SECTOR as u64) {
            let spoiled = disk.restarted();
            spoiled.spoil_sector(&name, sector);
            check(&spoiled, &format!("sector {sector} of {name}"));
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused_told_and_given_up() {
    let (mut refused, mut lost) = (0, 0);
    every_sector(&disk(false), |disk, what| {
        let told =
            verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap_or_else(|error| panic!("{what}: {error}"));
        match open(&disk.restarted(), false) {
            Ok(store) => assert_eq!(held(&store), KEYS + 5, "{what}"),
            Err(Error::Io(_) | Error::Corruption(_)) => {
                assert!(!told.is_sound(), "{what}");
                refused += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
        let store = open(disk, true).unwrap_or_else(|error| panic!("{what}: {error}"));
        let left = held(&store);
        lost += u64::from(left < KEYS);
        store.put(&(1 << 40), &7).unwrap();
        store.close().unwrap();
        drop(store);
        let found = verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap();
        assert!(found.is_sound(), "{what}: {found:?}");
        let store = open(disk, false).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((held(&store), store.get(&(1 << 40)).unwrap()), (left, Some(7)), "{what}");
    });
    assert!(refused > 10 && lost > 10, "{refused} {lost}");
}

/// What lies before the place that cannot be read is whole, in whatever pieces the log is read: hundreds of blocks went with one.
#[test]
fn nothing_before_the_place_is_given_up() {
    const PER_BLOCK: u64 = 170;
    let storage = SimStorage::new();
    let store = open(&storage, false).unwrap();
    let keys = PER_BLOCK * 700;
    (0..keys).for_each(|n| store.put(&n, &!n).unwrap());
    store.commit().unwrap();
    let disk = storage.restarted();
    let log = "esker.log.00000000";
    for sector in [3, 200, 255, 256, 257, 300, 511, 600, 690] {
        for is_cut in [false, true] {
            let damaged = disk.restarted();
            match is_cut {
                true => damaged.truncate(log, sector * SECTOR as u64),
                false => damaged.spoil_sector(log, sector),
            }
            let refused = open(&damaged.restarted(), false).unwrap_err();
            assert!(matches!(refused, Error::Io(_) | Error::Corruption(_)), "{refused}");
            let store = open(&damaged, true).unwrap();
            let there = (0..keys).filter(|n| store.get(n).unwrap() == Some(!n)).count() as u64;
            // The first block is the log's beginning, where nothing is.
            let whole = (sector - 1) * PER_BLOCK;
            assert!(there + PER_BLOCK >= whole && there <= whole, "sector {sector}, cut {is_cut}: {there} of {whole}");
        }
    }
}

/// The log has everything that an image has, and of a manifest's slot there are two.
#[test]
fn nothing_is_lost_with_an_image_or_a_copy_of_a_slot() {
    let mut images = 0;
    every_sector(&disk(true), |disk, what| {
        if what.contains("esker.log") {
            return;
        }
        images += u64::from(what.contains("image") || what.contains("index"));
        let told =
            verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!told.is_sound() || what.contains("scars"), "{what}");
        let store = open(disk, true).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(held(&store), KEYS + 5, "{what}");
        store.put(&(1 << 40), &7).unwrap();
        store.close().unwrap();
        assert!(verify_in(Arc::new(disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound(), "{what}");
    });
    assert!(images > 0);
}

/// A device that fails for good is no damage: nothing is given up for it.
#[test]
fn a_device_that_is_gone_is_not_given_up() {
    let disk = disk(false);
    disk.cut_at(disk.calls().len() as u64 + 1);
    assert!(disk.list().is_err() && open(&disk, true).is_err());
    assert_eq!(held(&open(&disk.restarted(), false).unwrap()), KEYS + 5);
}
