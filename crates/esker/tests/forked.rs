//! A process that is forked from one that has a store open, and goes on without `exec`: it leaves the store alone.

#![cfg(unix)]

use esker::{Error, Options, Store};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

const VALUE: [u8; 4096] = [7; 4096];
/// Many times the budget.
const KEYS: u64 = 16 << 10;

/// One test at a time: a child has the locks that other threads held when it was forked.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs `act` in a forked process, which must come to its end.
fn in_child(act: impl FnOnce()) {
    // SAFETY: what the child does needs no thread of the parent's, and no lock of the test's that one might hold; it leaves without running
    // what is to run at an exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process");
    if child == 0 {
        // SAFETY: neither takes memory. What takes so long hangs.
        unsafe { libc::alarm(60) };
        let ended = catch_unwind(AssertUnwindSafe(act));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is ours to be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was killed, or panicked");
}

fn contents(of: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(of).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

/// The drop once wrote the child's state over what the parent had committed since.
#[test]
fn a_store_that_goes_in_a_forked_process_writes_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().memory("16MiB").background(false);
    let mut store: Option<Store<u64, u64>> = Some(options.clone().open(folder.path()).unwrap());
    let parent = store.clone().unwrap();
    (0..1000).for_each(|key| parent.put(&key, &1).unwrap());
    parent.commit().unwrap();
    (0..1000).for_each(|key| parent.put(&key, &2).unwrap());
    let before = contents(folder.path());
    let mut parent = Some(parent);
    in_child(|| {
        assert!(matches!(store.as_ref().unwrap().close(), Err(Error::Invalid(_))));
        drop((store.take(), parent.take()));
    });
    assert!(contents(folder.path()) == before, "the files changed");
    let (store, parent) = (store.unwrap(), parent.unwrap());
    store.commit().unwrap();
    drop((store, parent));
    let again: Store<u64, u64> = options.open(folder.path()).unwrap();
    assert!((0..1000).all(|key| again.get(&key).unwrap() == Some(2)));
}

/// It once removed the directory under the parent.
#[test]
fn a_temporary_store_outlives_a_forked_process() {
    let _alone = alone();
    let options = Options::new().memory("16MiB").segment_bytes(1 << 20);
    let mut store: Option<Store<u64, [u8]>> = Some(options.open_temporary().unwrap());
    store.as_ref().unwrap().put(&0, &VALUE).unwrap();
    in_child(|| drop(store.take()));
    let store = store.unwrap();
    (0..KEYS).for_each(|key| store.put(&key, &VALUE).unwrap());
    assert_eq!(store.get(&0).unwrap().as_deref(), Some(&VALUE[..]));
}

/// What a thread keeps for its reads through io_uring is memory that both processes share. Threads that read are the parent's alone.
#[test]
fn reads_in_a_forked_process_do_not_disturb_the_parents() {
    let _alone = alone();
    [true, false].into_iter().for_each(reads_here_and_in_a_forked_process);
}

fn reads_here_and_in_a_forked_process(io_uring: bool) {
    let options = Options::new().memory("16MiB").promotion(false).io_uring(io_uring);
    let store: Store<u64, [u8]> = options.open_temporary().unwrap();
    (0..KEYS).for_each(|key| store.put(&key, &VALUE).unwrap());
    let keys: Vec<u64> = (0..128).collect();
    let read = || {
        let mut values = 0;
        store.get_many(&keys, |_, value| values += usize::from(value == Some(&VALUE[..]))).unwrap();
        values
    };
    for _ in 0..3 {
        assert_eq!(read(), keys.len());
        in_child(|| assert_eq!(read(), keys.len()));
    }
    assert_eq!(read(), keys.len());
}

/// A process that locks what it maps was given all of a store's address space at once, and killed for it.
#[test]
fn a_process_that_locks_its_memory_opens_a_store() {
    let _alone = alone();
    in_child(|| {
        // SAFETY: it takes no memory of ours.
        let locks = unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0;
        let options = Options::new().memory("16MiB").background(false);
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
        };
        let before = resident();
        let store: Store<u64, u64> = match options.in_memory() {
            Ok(store) if locks => store,
            // Not everybody may lock, or as much as that.
            opened => return assert!(matches!(opened, Ok(_) | Err(Error::Io(_)))),
        };
        (0..100_000).for_each(|key| store.put(&key, &key).unwrap());
        let grown = resident() - before;
        assert!(grown < 32 << 20, "{grown}");
        assert!((0..100_000).all(|key| store.get(&key).unwrap() == Some(key)));
    });
}
