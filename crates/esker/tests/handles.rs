//! A process that has no file handle left. A limit is the process's own, so this is the only test here.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::ops::ControlFlow;
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
    let patience = std::time::Duration::from_secs(300);
    let all = || -> Vec<File> { std::iter::from_fn(|| File::open("/dev/null").ok()).collect() };
    let mut refused = 0;
    let store = open().unwrap();
    (0..KEYS).for_each(|key| store.put(&key, &[0; 4000]).unwrap());
    store.close().unwrap();
    drop(store);
    let mut acknowledged = vec![Some(vec![0; 4000]); KEYS as usize];
    for life in 0..4u64 {
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
            for round in 0..60u64 {
                let value = |key: u64| vec![(life * 31 + round + key) as u8; 4000];
                let write = || (0..KEYS).try_for_each(|key| store.put(&key, &value(key))).and_then(|()| store.commit());
                let begun = std::time::Instant::now();
                // It goes on by itself where there are some again.
                while let Err(error) = write() {
                    assert!(is_out_of_files(&error) && begun.elapsed() < patience, "{error:?}");
                    // Reads go on, with what there is in memory or on the device.
                    assert!((0..KEYS).all(|key| store.get(&key).is_ok_and(|held| held.is_some()) || ends.load(Relaxed)));
                    refused += 1;
                }
                (0..KEYS).for_each(|key| acknowledged[key as usize] = Some(value(key)));
            }
            ends.store(true, Relaxed);
        });
        store.close().unwrap();
        drop(store);
        let store = open().unwrap();
        assert!((0..KEYS).all(|key| store.get(&key).unwrap() == acknowledged[key as usize]));
        store.close().unwrap();
        drop(store);
        assert!(esker::verify(folder.path(), |_, _| ControlFlow::Continue(())).unwrap().is_sound());
    }
    println!("{refused} rounds were refused for want of a handle");
}
