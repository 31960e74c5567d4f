//! Threads spare time and are never needed: where the system grants none, opening, cold reads and scans do the same without, and
//! however many are asked for is no panic.

use esker::aggregate::{Count, Sum};
use esker::{Options, Store};
use std::fs;
use std::process::Command;

/// Enough for a log and an image that are otherwise read by threads, and cold for the most part.
const KEYS: u64 = 150_000;
const CHILD: &str = "ESKER_TEST_DIRECTORY";

fn open(path: &str) -> Store<u64, [u8]> {
    let options = Options::new().memory("16MiB").background(false).io_uring(false).direct_io(false);
    options.open(path).unwrap()
}

fn value(key: u64) -> Vec<u8> {
    key.to_string().repeat(16).into_bytes()
}

/// All is there, by every way of reading.
fn check(store: &Store<u64, [u8]>) {
    let number = |_: u64, value: &[u8]| value.len() as u64;
    let bytes: u64 = (0..KEYS).map(|key| value(key).len() as u64).sum();
    for scan in [store.scan().by_log(), store.scan().by_index()] {
        assert_eq!(scan.parallel(4).aggregate((Count, Sum(number))).unwrap(), (KEYS, i128::from(bytes)));
    }
    let keys: Vec<u64> = (0..KEYS).step_by(100).collect();
    let mut found = 0;
    store.get_many(&keys, |at, found_value| found += usize::from(found_value == Some(&value(keys[at])[..]))).unwrap();
    assert_eq!(found, keys.len());
}

/// Stacks that no address space holds: every thread is refused. This test's own one is there already.
#[test]
fn where_no_thread_is_granted_all_goes_on_without() {
    if let Ok(path) = std::env::var(CHILD) {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "a thread was granted");
        // From the log; then from the image that closing leaves.
        for _ in 0..2 {
            let store = open(&path);
            check(&store);
            store.close().unwrap();
        }
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let store = open(&path("store"));
    for key in 0..KEYS {
        store.put(&key, &value(key)).unwrap();
    }
    store.commit().unwrap();
    // As a crash leaves it: without an image.
    fs::create_dir(path("copy")).unwrap();
    for file in fs::read_dir(path("store")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), place.path().join("copy").join(file.file_name())).unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "where_no_thread_is_granted_all_goes_on_without", "--test-threads=1"]);
    let output = child.env(CHILD, path("copy")).env("RUST_MIN_STACK", (1u64 << 60).to_string()).output().unwrap();
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Whoever has no test of the name is content, too.
    assert!(output.status.success() && told.contains("1 passed"), "{told}{failed}");
    check(&open(&path("copy")));
}

#[test]
fn any_number_of_threads_can_be_asked_for() {
    let store: Store<u64, u64> = Options::new().memory("16MiB").in_memory().unwrap();
    store.put(&1, &1).unwrap();
    for threads in [0, 100_000, usize::MAX] {
        assert_eq!(store.scan().parallel(threads).aggregate(Count).unwrap(), 1);
    }
}

/// What a thread local of the caller's holds is dropped when the store's own are gone already: a read there aborted the process.
#[test]
fn a_thread_may_use_the_store_in_its_last_destructor() {
    struct AtEnd(Store<u64, [u8]>, std::sync::mpsc::Sender<bool>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let mut found = 0;
            self.0.put(&2, b"b").unwrap();
            self.0.get_many(&[1, 2, 3], |_, value| found += usize::from(value.is_some())).unwrap();
            let is_right = self.0.get(&1).unwrap().as_deref() == Some(b"a") && self.0.get(&5000).unwrap().is_some();
            self.1.send(is_right && found == 3).unwrap();
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }
    let store: Store<u64, [u8]> = Options::new().memory("16MiB").open_temporary().unwrap();
    store.put(&1, b"a").unwrap();
    (3..40_000).for_each(|n| store.put(&n, &[7; 1000]).unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            LAST.with(|last| *last.borrow_mut() = Some(AtEnd(store.clone(), tell)));
            // The store's own thread locals are made after it, and go before it.
            store.get_many(&[1, 3, 4], |_, value| assert!(value.is_some())).unwrap();
            assert!(store.get(&5000).unwrap().is_some());
        });
    });
    assert!(told.recv().unwrap());
}

/// A number that such a thread took was never given back: after 65,536 of them no thread could use any store.
#[test]
fn threads_may_use_the_store_in_their_last_destructors_again_and_again() {
    struct AtEnd(Store<u64, u64>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            self.0.rmw(&1, |old| old.unwrap_or(0) + 1).unwrap();
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }
    const THREADS: u64 = 66_000;
    let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
    for _ in 0..THREADS {
        let store = store.clone();
        let thread = std::thread::spawn(move || {
            LAST.with(|last| *last.borrow_mut() = Some(AtEnd(store.clone())));
            store.get(&1).unwrap();
        });
        thread.join().unwrap();
    }
    assert_eq!(store.get(&1).unwrap(), Some(THREADS));
}
