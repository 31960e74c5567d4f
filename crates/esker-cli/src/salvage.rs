//! `esker salvage`: what is whole of a damaged store, in a new one.
//!
//! The damaged one stays as it is. What was lost is told on the way out, and is no failure: what can be saved was.

use std::fmt::Write as _;
use std::path::Path;

use crate::args::Opening;
use crate::bytes::{count, size};
use crate::failure::{self, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::stats::row;
use crate::store::{self, Bytes};
use crate::verify::damage_rows;
use crate::{out, progress};

/// Carries what is whole of the store in `dir` over to the new directory `to`.
pub(crate) fn run(dir: &Path, to: &Path, json: bool, opening: Opening) -> Outcome {
    store::refuse_inside(dir, to)?;
    if store::holds_something(to).is_ok_and(|something| something) {
        return Err(Failure::about(to.display(), "something is there already; what is saved goes to a new directory"));
    }
    // Who names no store makes none.
    store::must_exist(dir)?;
    let interrupt = Interrupt::catch()?;
    let was_there = to.exists();
    let into: Bytes = store::options(opening).open(to).map_err(|error| {
        if !matches!(error, esker::Error::Locked(_)) {
            store::forget_if_free(to, was_there);
        }
        Failure::about(to.display(), error)
    })?;
    let bar = progress::of_bytes(0);
    let done = esker::salvage(dir, &into, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        let doing = if done * 2 < total { "checking" } else { "carrying over" };
        progress::say(&bar, format!("{} of {}: {doing}", size(done), size(total)));
        interrupt.answer()
    });
    bar.finish_and_clear();
    let done = done
        .and_then(|done| into.close().map(|()| done))
        .map_err(|error| Failure::of(format!("{} to {}", dir.display(), to.display()), error));
    if done.is_err() {
        // A part of it would be in the way of the next attempt, and pass for all. Nobody else has it as long as it is open.
        store::forget(to, was_there);
    }
    let done = done?;
    let text =
        if json { serde_json::to_string_pretty(&done).map_err(|error| Failure::new(error.to_string()))? } else { describe(to, &done) };
    // Nobody can ask for it again, whoever had enough of it included: the new store is there, and would be in the way of a second salvage.
    out::line(&text).inspect_err(|_| failure::say(&format!("{text}\n\n{} is complete.", to.display())))
}

fn describe(to: &Path, done: &esker::Salvage) -> String {
    let mut text = format!("{}  (as of line {})\n\n", to.display(), count(done.line));
    row(&mut text, "records", &format!("{} of the log carried over, older versions and deletions among them", count(done.records)));
    row(&mut text, "log", &format!("{} read", size(done.log_bytes)));
    let lost = if done.lost_bytes == 0 { "nothing".to_owned() } else { size(done.lost_bytes) };
    row(&mut text, "lost", &format!("{lost} of log"));
    damage_rows(&mut text, &done.damage, done.damaged);
    if done.guessed > 0 {
        row(&mut text, "guesses", &format!("{} places behind damage where records were known by their look alone", count(done.guessed)));
    }
    if done.lost_bytes > 0 {
        let _ = write!(text, "\nKeys whose newest record is lost are absent, or have an older value.");
    }
    text.trim_end().to_owned()
}
