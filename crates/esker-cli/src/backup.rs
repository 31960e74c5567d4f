//! `esker backup` and `esker restore`: copies of a store at rest. A program that has a store open copies it itself (`snapshot_to`).
//!
//! Both directions are the same: a backup is a store. But a backup adds what is new to an earlier one, or is made in a new place from
//! an earlier one, and a restore does not touch a directory in which something is.

use std::path::Path;

use crate::bytes::{count, size};
use crate::failure::{Failure, Outcome};
use crate::{out, progress, store};

/// Copies the store in `dir`, or what is new of it, to `to`; what an `earlier` backup has is taken from there.
pub(crate) fn run(dir: &Path, earlier: Option<&Path>, to: &Path) -> Outcome {
    store::refuse_inside(dir, to)?;
    earlier.map_or(Ok(()), |earlier| store::refuse_inside(earlier, to))?;
    let bar = progress::of_bytes(0);
    let tell = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        progress::say(&bar, format!("{} of {} copied", size(done), size(total)));
    };
    let done = match earlier {
        Some(earlier) => esker::backup_from(dir, earlier, to, tell),
        None => esker::backup(dir, to, tell),
    };
    bar.finish_and_clear();
    let done = done.map_err(|error| Failure::about(format!("{} to {}", dir.display(), to.display()), error))?;
    let whence = if earlier.is_some() { "are shared with the earlier one" } else { "were there already" };
    let kept = if done.kept_bytes > 0 { format!(", {} {whence}", size(done.kept_bytes)) } else { String::new() };
    out::line(format!("{}: as of line {}, {} of log copied{kept}", to.display(), count(done.line), size(done.copied_bytes)))
}

/// Copies the backup in `from` to `dir`, where nothing may be.
pub(crate) fn restore(from: &Path, dir: &Path) -> Outcome {
    if store::holds_something(dir).is_ok_and(|something| something) {
        return Err(Failure::about(dir.display(), "something is there already; a store is restored to a new directory"));
    }
    run(from, None, dir)
}
