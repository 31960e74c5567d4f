//! What the system forbids: calls that the kernel refuses to a process, as it does by the filters of containers.
#![cfg(target_os = "linux")]

use std::process::Command;

use esker::aggregate::Count;
use esker::{Cache, Options, Store};

const CHILD: &str = "ESKER_TEST_FORBIDDEN";

/// Runs a part of the test of this name in a process of its own, for no filter is taken back.
fn alone(test: &str, part: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return part();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("forbidden::{test}"), "--test-threads=1"]).env(CHILD, "1");
    let output = child.output().unwrap();
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Whoever has no test of the name is content, too.
    assert!(output.status.success() && told.contains("1 passed"), "{told}{failed}");
}

/// The kernel refuses these calls from now on, to this thread and to those that it begins.
fn forbid(calls: &[libc::c_long]) {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let answer = |k: u32| step(libc::BPF_RET | libc::BPF_K, k, 0);
    // The number of a call is the first word of what a filter sees.
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for call in calls {
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 1));
        program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers; this thread gains no rights by what it executes.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the filter and its steps outlive the call, which copies them.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) }, 0);
}

fn is_refused(answer: libc::c_long) -> bool {
    answer == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Cold reads of every kind are made by threads then, and nobody need say so.
#[test]
fn where_io_uring_is_refused_threads_read() {
    const KEYS: u64 = 12_000;
    alone("where_io_uring_is_refused_threads_read", || {
        forbid(&[libc::SYS_io_uring_setup]);
        // SAFETY: refused before it looks at its arguments.
        assert!(is_refused(unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, 0) }));
        let folder = tempfile::tempdir().unwrap();
        let value = |key: u64| vec![key as u8; 3000];
        let open = || -> Store<u64, [u8]> { Options::new().memory("16MiB").background(false).open(folder.path()).unwrap() };
        let store = open();
        (0..KEYS).for_each(|key| store.put(&key, &value(key)).unwrap());
        store.close().unwrap();
        drop(store);
        let store = open();
        let keys: Vec<u64> = (0..KEYS).step_by(7).collect();
        let mut found = 0;
        store.get_many(&keys, |at, bytes| found += usize::from(bytes == Some(&value(keys[at])[..]))).unwrap();
        assert_eq!(found, keys.len());
        assert_eq!(store.get(&1).unwrap().unwrap(), value(1));
        assert!(store.stats().operations.device_reads > KEYS / 20);
        for scan in [store.scan().by_log(), store.scan().by_index()] {
            assert_eq!(scan.aggregate(Count).unwrap(), KEYS);
        }
    });
}

/// A process may be allowed no file at all: a store in memory does without, and a cache.
#[test]
fn a_store_in_memory_needs_no_file() {
    alone("a_store_in_memory_needs_no_file", || {
        forbid(&[
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_mkdirat,
            libc::SYS_memfd_create,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir,
        ]);
        let refused = std::fs::File::open("/dev/null").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let store: Store<u64, [u8]> = Options::new().memory("32MiB").in_memory().unwrap();
        for round in 0..4u8 {
            (0..10_000).for_each(|key| store.put(&key, &[round; 1000]).unwrap());
        }
        (0..5_000).for_each(|key| assert!(store.delete(&key).unwrap()));
        store.append(&7_000, b"more").unwrap();
        store.set_memory("64MiB").unwrap();
        assert_eq!(store.scan().parallel(2).aggregate(Count).unwrap(), 5_000);
        store.transaction(|t| t.put(&1, b"one")).unwrap();
        assert_eq!(store.get(&7_000).unwrap().unwrap().len(), 1004);
        let cache: Store<u64, [u8]> = Options::new().memory("16MiB").cache(Cache::new()).in_memory().unwrap();
        (0..40_000).for_each(|key| cache.put(&key, &[1; 1000]).unwrap());
        assert!(cache.stats().cache.unwrap().evictions > 10_000 && cache.get(&39_999).unwrap().is_some());
        for store in [store, cache] {
            store.close().unwrap();
        }
    });
}
