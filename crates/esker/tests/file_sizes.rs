//! A process whose files may not grow beyond a length. A limit is the process's own, so this is the only test here.
#![cfg(target_os = "linux")]

use esker::{Options, Store};

fn limit_files_to(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: plain numbers, of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
}

/// Where a limit is no multiple of what direct I/O can write, the system calls a write across it invalid: the store had failed for good.
#[test]
fn a_limit_of_any_length_passes() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for bytes in [1_000_000, 1_000_448, 999_999] {
        let folder = tempfile::tempdir().unwrap();
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).open(folder.path()).unwrap();
        limit_files_to(bytes);
        // Some find no place in the end: what was put is there.
        let put = (0..2000u64).take_while(|key| store.put(key, &[*key as u8; 1000]).is_ok()).count() as u64;
        let refused = store.commit();
        limit_files_to(libc::RLIM_INFINITY);
        assert!(refused.is_err(), "{bytes}");
        store.commit().unwrap();
        store.close().unwrap();
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").open(folder.path()).unwrap();
        assert!(put > 900 && (0..put).all(|key| store.get(&key).unwrap().as_deref() == Some(&[key as u8; 1000][..])), "{bytes}");
    }
}
