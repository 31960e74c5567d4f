//! A process that has no file handle left. A limit is the process's own, so this is the only test here.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use esker::{Error, Options, Store};

const LIMIT: u64 = 96;
const KEYS: u64 = 200;

fn is_out_of_files(error: &Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.downcast_ref::<std::io::Error>().and_then(|error| error.raw_os_error()) == Some(libc::EMFILE) {
            return true;
        }
        source = error.source();
    }
    false
}

/// What was acknowledged is there, whoever had all the handles meanwhile, and nothing is told but that.
#[test]
fn nothing_is_lost_where_others_have_all_handles() {
    let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: plain numbers, of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let folder = tempfile::tempdir().unwrap();
    let open = || -> esker::Result<Store<u64, [u8]>> {
        Options::new().memory("16MiB").segment_bytes(1 << 20).space_amplification(1.3).open(folder.path())
    };
    let all = || -> Vec<File> { std::iter::from_fn(|| File::open("/dev/null").ok()).collect() };
    let mut refused = 0;
    let store = open().unwrap();
    (0..KEYS).for_each(|key| store.put(&key, &[0; 4000]).unwrap());
    store.close().unwrap();
    drop(store);
    let mut acknowledged = vec![Some(vec![0; 4000]); KEYS as usize];
    for life in 0..6u64 {
        let store = open().unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Now all of them, now none.
            scope.spawn(|| {
                while !ends.load(Relaxed) {
                    let taken = all();
                    std::thread::sleep(std::time::Duration::from_millis(3));
                    drop(taken);
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            });
            for round in 0..150u64 {
                let value = |key: u64| vec![(life * 31 + round + key) as u8; 4000];
                let written = (0..KEYS).try_for_each(|key| store.put(&key, &value(key)));
                match written.and_then(|()| store.commit()) {
                    Ok(()) => (0..KEYS).for_each(|key| acknowledged[key as usize] = Some(value(key))),
                    Err(error) => {
                        assert!(is_out_of_files(&error), "{error:?}");
                        refused += 1;
                        break;
                    }
                }
            }
            ends.store(true, Relaxed);
        });
        // Reads go on, with what there is in memory or on the device.
        assert!((0..KEYS).all(|key| store.get(&key).unwrap().is_some()));
        let _ = store.close();
        drop(store);
        let store = open().unwrap();
        let is_mixed = (0..KEYS).any(|key| store.get(&key).unwrap() != acknowledged[key as usize]);
        // What was put and not acknowledged may be there as well, or a part of it.
        assert!(!is_mixed || refused > 0);
        (0..KEYS).for_each(|key| acknowledged[key as usize] = store.get(&key).unwrap());
        assert!(acknowledged.iter().all(Option::is_some));
        store.close().unwrap();
        drop(store);
        assert!(esker::verify(folder.path(), |_, _| {}).unwrap().is_sound());
    }
    println!("{refused} of 6 lives ended for want of a handle");
}
