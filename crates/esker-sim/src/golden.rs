//! Golden stores: small stores of a format, kept for ever, that every later version opens or refuses by name.
//!
//! The theory: a reader and a writer that change together agree however wrong they are; files that were written once do not
//! change. Each layout is kept as it is after a close, and as two crashes leave it: a scar in the log, records of another
//! line below the cut, an image that stands for less than all. [`make`] writes them (`cargo xtask golden`), [`check`] is told what
//! was found.

use esker::{Error, Key, MemoryStorage, Options, Result, SECTOR_BYTES, Storage, Store, Value};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The stores, by the names of their directories.
pub const STORES: [&str; 4] = ["words-closed", "words-crashed", "bytes-closed", "bytes-crashed"];

const KEYS: u64 = 400;

/// The types of a golden store.
trait Golden {
    type Key: Key + ?Sized;
    type Value: Value + ?Sized;
    fn put(store: &Store<Self::Key, Self::Value>, n: u64, turn: u64) -> Result<()>;
    fn delete(store: &Store<Self::Key, Self::Value>, n: u64) -> Result<bool>;
    /// The turn of the value that is there.
    fn turn(store: &Store<Self::Key, Self::Value>, n: u64) -> Result<Option<u64>>;
}

struct Words;

impl Golden for Words {
    type Key = u64;
    type Value = u64;

    fn put(store: &Store<u64, u64>, n: u64, turn: u64) -> Result<()> {
        store.put(&n, &(n * n * 10 + turn))
    }

    fn delete(store: &Store<u64, u64>, n: u64) -> Result<bool> {
        store.delete(&n)
    }

    fn turn(store: &Store<u64, u64>, n: u64) -> Result<Option<u64>> {
        Ok(store.get(&n)?.map(|value| value.wrapping_sub(n * n * 10)))
    }
}

struct Bytes;

fn text(n: u64) -> String {
    format!("key {n}")
}

impl Golden for Bytes {
    type Key = str;
    type Value = [u8];

    fn put(store: &Store<str, [u8]>, n: u64, turn: u64) -> Result<()> {
        store.put(&text(n), &vec![turn as u8; (n % 90) as usize])?;
        store.append(&text(n), &[turn as u8; 3]).map(|_| ())
    }

    fn delete(store: &Store<str, [u8]>, n: u64) -> Result<bool> {
        store.delete(&text(n))
    }

    fn turn(store: &Store<str, [u8]>, n: u64) -> Result<Option<u64>> {
        let value = store.get(&text(n))?;
        let turn = |value: &Vec<u8>| value.iter().all(|byte| *byte == value[0]) && value.len() as u64 == n % 90 + 3;
        Ok(value.map(|value| if turn(&value) { u64::from(value[0]) } else { u64::MAX }))
    }
}

/// What key `n` holds after `turn` turns: the last one that changed it, or nothing.
fn expected(n: u64, turn: u64) -> Option<u64> {
    let last = (1..=turn).rev().find(|turn| n.is_multiple_of(*turn))?;
    (n % 7 != last).then_some(last)
}

fn change<G: Golden>(store: &Store<G::Key, G::Value>, turn: u64) -> Result<()> {
    for n in (0..KEYS).filter(|n| n.is_multiple_of(turn)) {
        if n % 7 == turn { G::delete(store, n).map(|_| ())? } else { G::put(store, n, turn)? }
    }
    Ok(())
}

fn options() -> Options {
    Options::new().memory("16MiB").background(false)
}

/// Three turns, the first of them in an image; the third is a life of its own, after a crash, if `crashed`.
fn live<G: Golden>(crashed: bool) -> Result<MemoryStorage> {
    let mut files = Arc::new(MemoryStorage::new());
    let mut store: Store<G::Key, G::Value> = options().open_in(files.clone())?;
    for turn in 1..=3 {
        change::<G>(&store, turn)?;
        if turn == 1 {
            store.save_index()?;
        }
        store.commit()?;
        if crashed {
            // Not in any line; some of it is on the device.
            change::<G>(&store, 4)?;
            files = Arc::new(with_something_behind(&files.copy())?);
            store = options().open_in(files.clone())?;
        }
    }
    if crashed {
        // As the last crash left it, before anybody opened it again.
        change::<G>(&store, 4)?;
        return Ok(files.copy());
    }
    store.close()?;
    Ok(files.copy())
}

/// A block that was being written when the power went.
fn with_something_behind(files: &MemoryStorage) -> Result<MemoryStorage> {
    let last = files.list()?.into_iter().filter(|name| name.starts_with("esker.log.")).max();
    let log = files.open(&last.ok_or_else(|| Error::Invalid("there is no log".into()))?)?;
    let mut sector = vec![0; 2 * SECTOR_BYTES];
    sector[..SECTOR_BYTES].fill(0xee);
    log.write(log.bytes()?, &sector)?;
    Ok(files.copy())
}

/// Writes the golden stores of this version to a directory.
///
/// # Errors
/// The store's, or the system's.
pub fn make(directory: &Path) -> Result<()> {
    for name in STORES {
        let crashed = name.ends_with("crashed");
        let files = if name.starts_with("words") { live::<Words>(crashed)? } else { live::<Bytes>(crashed)? };
        let to = directory.join(name);
        fs::create_dir_all(&to)?;
        for file in files.list()? {
            let device = files.open(&file)?;
            let mut bytes = vec![0; device.bytes()? as usize];
            device.read(0, &mut bytes)?;
            fs::write(to.join(file), bytes)?;
        }
    }
    Ok(())
}

/// Opens a golden store, checks all that it holds, and closes it; what is wrong, in words.
///
/// # Errors
/// The store's, if it does not open.
pub fn check(name: &str, directory: &Path) -> Result<Option<String>> {
    if name.starts_with("words") { check_one::<Words>(directory) } else { check_one::<Bytes>(directory) }
}

fn check_one<G: Golden>(directory: &Path) -> Result<Option<String>> {
    let store: Store<G::Key, G::Value> = options().open(directory)?;
    let mut wrong = None;
    for n in 0..KEYS {
        let (found, want) = (G::turn(&store, n)?, expected(n, 3));
        if found != want {
            wrong = wrong.or_else(|| Some(format!("key {n} is of turn {found:?}, not {want:?}")));
        }
    }
    change::<G>(&store, 5)?;
    store.close()?;
    Ok(wrong)
}

/// Copies a store's files, so that what is kept stays as it is.
///
/// # Errors
/// The system's.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
