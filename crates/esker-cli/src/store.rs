//! Opening the store that a command line names.
//!
//! A command that only reads must not bring a store into being: a mistyped path should say so rather than
//! leave an empty store behind. So reading asks for a directory that exists and holds something first, and
//! only writing creates one; and what is only looked at is neither compacted nor rearranged, so that a backup stays one.
//! Every command closes the store itself, since an error while closing, which writes what was still in memory, must be
//! told and not be lost in a drop.

use std::path::Path;
use std::{fs, io};

use esker::{Error, Options, Store};

use crate::args::Opening;
use crate::bytes::size;
use crate::failure::{Failure, Outcome};
use crate::progress;

/// The stores of this program.
pub(crate) type Bytes = Store<[u8], [u8]>;

/// The budget where none is given.
const MEMORY: u64 = 256 << 20;
/// The file by which a directory is locked.
const LOCK: &str = "esker.lock";
/// The file that makes a store of a directory, and another one of a store's.
const MANIFEST: &str = "esker.manifest";
const SCARS: &str = "esker.scars";
/// An opening that reads more of the log than this takes long enough to be watched.
const LONG: u64 = 64 << 20;

/// Does `work` on the store in `dir`, made if absent, and closes it.
pub(crate) fn with<T>(dir: &Path, opening: Opening, work: impl FnOnce(&Bytes) -> Result<T, Failure>) -> Result<T, Failure> {
    with_options(dir, options(opening), work)
}

/// The same, opened so.
pub(crate) fn with_options<T>(dir: &Path, options: Options, work: impl FnOnce(&Bytes) -> Result<T, Failure>) -> Result<T, Failure> {
    let store: Bytes = options.open(dir).map_err(|error| Failure::about(dir.display(), advised(&error)))?;
    let done = work(&store);
    match (done, store.close()) {
        (done, Ok(())) => done,
        (done, Err(error)) => {
            let lost = format!("{}: {error}: what came after its last durable line is lost", dir.display());
            Err(match done {
                Ok(_) | Err(Failure::OutputClosed) => Failure::new(lost),
                Err(failure) => failure.map(|why| format!("{why}; {lost}")),
            })
        }
    }
}

/// What the engine says of an opening, and which option has it otherwise.
fn advised(error: &Error) -> String {
    let why = error.to_string();
    let least = why.split_once(" least=").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    match least {
        // Buckets behind full ones are not among what it knows of before it has read them.
        Some(least) => format!("{why}: give more, such as --memory {}MiB", (least + least / 4).div_ceil(1 << 20)),
        None => why,
    }
}

/// Does `work` on the store in `dir`, which must be there, and closes it.
pub(crate) fn with_existing<T>(dir: &Path, opening: Opening, work: impl FnOnce(&Bytes) -> Result<T, Failure>) -> Result<T, Failure> {
    must_exist(dir)?;
    with(dir, opening, work)
}

/// Does `work`, which only reads, on the store in `dir`, which must be there.
pub(crate) fn look_at<T>(dir: &Path, opening: Opening, work: impl FnOnce(&Bytes) -> Result<T, Failure>) -> Result<T, Failure> {
    must_exist(dir)?;
    with_options(dir, options(opening).background(false).promotion(false), work)
}

/// What the command line says about a store.
pub(crate) fn options(opening: Opening) -> Options {
    let bar = progress::of_bytes(0);
    let tell = move |done, total| {
        if total > LONG {
            bar.set_length(total);
            bar.set_position(done);
            progress::say(&bar, format!("opening: {} of {} of log read", size(done), size(total)));
        }
    };
    Options::new().memory(opening.memory.unwrap_or(MEMORY)).durability(opening.durability).progress(tell)
}

pub(crate) fn must_exist(dir: &Path) -> Outcome {
    match holds_something(dir) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::about(dir.display(), "the directory is empty, there is no store in it")),
        Err(error) => Err(Failure::about(dir.display(), error)),
    }
}

/// So many links does the system follow.
const LINKS_MAX: usize = 40;

/// Refuses what would be written among a store's own files.
pub(crate) fn refuse_inside(dir: &Path, target: &Path) -> Outcome {
    // Where links lead, though nothing may be there yet.
    let mut leads_to = target.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = fs::read_link(&leads_to) else { break };
        leads_to = leads_to.with_file_name("").join(link);
    }
    let target = std::path::absolute(leads_to).map_err(|error| Failure::about(format_args!("`{}`", target.display()), error))?;
    let whereabouts = target.ancestors().find_map(|path| path.canonicalize().ok());
    match (dir.canonicalize(), whereabouts) {
        (Ok(dir), Some(place)) if place.starts_with(&dir) => Err(Failure::about(target.display(), "this is in the store's own directory")),
        _ => Ok(()),
    }
}

/// Whether something is in a directory; what a refused call locked it with is nothing.
pub(crate) fn holds_something(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        if entry?.file_name() != LOCK {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a copy left that failed before it was a store, unless somebody else has the directory by now; the directory, too, unless it
/// was there.
pub(crate) fn forget_beginning(to: &Path, was_there: bool) {
    if !to.join(MANIFEST).exists() {
        forget_if_free(to, was_there);
    }
}

/// The same of what was a store already, though nobody's yet.
pub(crate) fn forget_if_free(to: &Path, was_there: bool) {
    let Ok(lock) = fs::File::open(to.join(LOCK)) else { return };
    if lock.try_lock().is_ok() {
        forget(to, was_there);
    }
}

/// Removes the files of a store that this program has locked; the directory, too, unless it was there. What else somebody put there stays.
pub(crate) fn forget(to: &Path, was_there: bool) {
    for entry in fs::read_dir(to).into_iter().flatten().flatten() {
        if is_own(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    if !was_there {
        let _ = fs::remove_dir(to);
    }
}

/// Whether a store has a file of that name.
fn is_own(name: &str) -> bool {
    let is_numbered = |prefix| name.strip_prefix(prefix).is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    [LOCK, MANIFEST, SCARS].contains(&name) || is_numbered("esker.log.") || is_numbered("index.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_index_needs_is_told_as_an_option() {
        let place = tempfile::tempdir().unwrap();
        let store: Bytes = Options::new().memory("64MiB").open(place.path()).unwrap();
        for from in (0..2_000_000u64).step_by(10_000) {
            let pairs: Vec<_> = (from..from + 10_000).map(|n| (n.to_le_bytes(), [])).collect();
            store.put_many(&pairs).unwrap();
        }
        assert!(!store.stats().index.shared);
        store.close().unwrap();
        let opening = |memory| Opening { memory: Some(memory), durability: esker::Durability::None };
        let Err(Failure::Failed(why)) = with_existing(place.path(), opening(16 << 20), |_| Ok(())) else { panic!("it opens") };
        let enough: u64 = why.split_once("such as --memory ").unwrap().1.strip_suffix("MiB").unwrap().parse().unwrap();
        assert!((17..64).contains(&enough), "{why}");
        with_existing(place.path(), opening(enough << 20), |store| {
            assert!(store.get(&7u64.to_le_bytes()[..])?.is_some());
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn only_a_beginning_that_nobody_has_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        };
        let all = ["esker.lock", "esker.log.00000000", "esker.scars", "esker.toml", "index.3", "index.html"];
        all.iter().for_each(|name| fs::write(place.path().join(name), "").unwrap());
        let lock = fs::File::open(place.path().join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        forget_beginning(place.path(), false);
        assert_eq!(names(), all);
        lock.unlock().unwrap();
        fs::write(place.path().join(MANIFEST), "").unwrap();
        forget_beginning(place.path(), false);
        assert_eq!(names().len(), all.len() + 1);
        fs::remove_file(place.path().join(MANIFEST)).unwrap();
        forget_beginning(place.path(), false);
        assert_eq!(names(), ["esker.toml", "index.html"]);
    }
}
