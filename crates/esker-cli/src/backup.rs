//! `esker backup` and `esker restore`: copies of a store at rest. A program that has a store open copies it itself (`snapshot_to`).
//!
//! Both directions are the same: a backup is a store. But a backup adds what is new to an earlier one, or is made in a new place from
//! an earlier one, and a restore does not touch a directory in which something is.

use std::path::Path;

use esker::Backup;

use crate::bytes::{count, size};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::{out, progress, store};

/// Copies the store in `dir`, or what is new of it, to `to`; what an `earlier` backup has is taken from there.
pub(crate) fn run(dir: &Path, earlier: Option<&Path>, to: &Path) -> Outcome {
    store::refuse_inside(dir, to)?;
    earlier.map_or(Ok(()), |earlier| store::refuse_inside(earlier, to))?;
    let done = copy(dir, earlier, to, &Interrupt::catch()?)?;
    let whence = if earlier.is_some() { "are shared with the earlier one" } else { "were there already" };
    let kept = if done.kept_bytes > 0 { format!(", {} {whence}", size(done.kept_bytes)) } else { String::new() };
    let told = out::line(format!("{}: as of line {}, {} of log copied{kept}", to.display(), count(done.line), size(done.copied_bytes)));
    // All is there: a second attempt would do it again, or find it in its way.
    told.map_err(|why| why.map(|why| format!("{why} ({} is complete)", to.display())))
}

/// Does that. Of a first copy that fails nothing stays: it would be in the way of the next attempt.
fn copy(dir: &Path, earlier: Option<&Path>, to: &Path, interrupt: &Interrupt) -> Result<Backup, Failure> {
    let bar = progress::of_bytes(0);
    let (was_there, mut has_begun) = (to.exists(), false);
    let tell = |done, total| {
        has_begun = true;
        bar.set_length(total);
        bar.set_position(done);
        progress::say(&bar, format!("{} of {} copied", size(done), size(total)));
        interrupt.answer()
    };
    let done = match earlier {
        Some(earlier) => esker::backup_from(dir, earlier, to, tell),
        None => esker::backup(dir, to, tell),
    };
    bar.finish_and_clear();
    if done.is_err() && has_begun {
        store::forget_beginning(to, was_there);
    }
    done.map_err(|error| Failure::of(format!("{} to {}", dir.display(), to.display()), error))
}

/// Copies the backup in `from` to `dir`, where nothing may be.
pub(crate) fn restore(from: &Path, dir: &Path) -> Outcome {
    if store::holds_something(dir).is_ok_and(|something| something) {
        return Err(Failure::about(dir.display(), "something is there already; a store is restored to a new directory"));
    }
    run(from, None, dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_leaves_what_was_there_before() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let put = |key: &[u8]| {
            let store: store::Bytes = esker::Options::new().memory("16MiB").open(path("store")).unwrap();
            store.put(key, b"value").unwrap();
            store.close().unwrap();
        };
        let copy = |to: &str, interrupt| copy(&path("store"), None, &path(to), &interrupt);
        let interrupted = |to: &str| {
            let why = copy(to, Interrupt::raised()).unwrap_err();
            assert!(matches!(&why, Failure::Failed(why) if why.ends_with(": interrupted")), "{why:?}");
        };
        put(b"a");
        interrupted("copy");
        assert!(!path("copy").exists());
        std::fs::create_dir(path("copy")).unwrap();
        interrupted("copy");
        assert_eq!(std::fs::read_dir(path("copy")).unwrap().count(), 0);
        copy("copy", Interrupt::default()).unwrap();
        put(b"b");
        interrupted("copy");
        let records = || esker::verify(path("copy"), |_, _| Interrupt::default().answer()).unwrap().records;
        assert_eq!(records(), 1);
        copy("copy", Interrupt::default()).unwrap();
        assert_eq!(records(), 2);
    }
}
