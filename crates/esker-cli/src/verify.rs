//! `esker verify`: every durable byte of a store, read and checked.
//!
//! Checking changes nothing and knows any layout of records. Accepting a loss first tells what is damaged, then opens the store as it was
//! before the damage, closes it, and checks again: what opening does not read (the log that an index image stands for) is not given up and
//! stays damaged, and whoever reads such a record is told so. A new store without it is what `salvage` makes.
//!
//! The exit code tells what was found, even if nobody reads what is printed.

use std::path::Path;

use esker::Verification;

use crate::args::Opening;
use crate::bytes::{count, size};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::stats::row;
use crate::store::{self, Bytes};
use crate::{out, progress};

/// Checks the store in `dir`.
pub(crate) fn run(dir: &Path, json: bool) -> Outcome {
    let found = check(dir, &Interrupt::catch_for_reader()?)?;
    let printed = out::line(if json { as_json(&found)? } else { describe(dir, &found) });
    must_be_sound(dir, &found, "damaged").and(printed)
}

/// Tells what is damaged, gives it up, and checks what is left.
pub(crate) fn accept_loss(dir: &Path, opening: Opening) -> Outcome {
    let interrupt = Interrupt::catch()?;
    let found = check(dir, &interrupt)?;
    let mut printed = out::line(describe(dir, &found));
    if found.is_sound() {
        return printed.and_then(|()| out::line("Nothing is damaged: nothing was changed."));
    }
    if let Err(Failure::Failed(_)) = printed {
        // A full disk, say: what would be given up is told nowhere. Whoever closed the output did so himself.
        return printed;
    }
    printed =
        printed.and_then(|()| out::line("\nIf opening meets damage in the log, what was written behind the first is given up now.\n"));
    interrupt.check()?;
    let opened: Result<Bytes, _> = store::options(opening).accept_loss(true).open(dir);
    opened.and_then(|store| store.close()).map_err(|error| Failure::about(dir.display(), error))?;
    let left =
        check(dir, &interrupt).map_err(|why| why.map(|why| format!("{why}: the loss was accepted, and what is left was not checked")))?;
    printed = printed.and_then(|()| out::line(describe(dir, &left)));
    must_be_sound(dir, &left, "still damaged, where opening does not read: records there are refused when they are read").and(printed)
}

fn check(dir: &Path, interrupt: &Interrupt) -> Result<Verification, Failure> {
    let bar = progress::of_bytes(0);
    let found = esker::verify(dir, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        progress::say(&bar, format!("{} of {} read", size(done), size(total)));
        interrupt.answer()
    });
    bar.finish_and_clear();
    found.map_err(|error| Failure::of(dir.display(), error))
}

fn as_json(found: &Verification) -> Result<String, Failure> {
    serde_json::to_string_pretty(found).map_err(|error| Failure::new(error.to_string()))
}

fn describe(dir: &Path, found: &Verification) -> String {
    let verdict = if found.is_sound() { "sound" } else { "DAMAGED" };
    let mut text = format!("{}  ({verdict})\n\n", dir.display());
    row(&mut text, "line", &format!("{} is the last that is durable", count(found.line)));
    row(&mut text, "log", &format!("{} read", size(found.log_bytes)));
    if found.is_sound() {
        row(&mut text, "records", &format!("{} in the log, older versions and deletions among them", count(found.records)));
    }
    row(&mut text, "scars", &format!("{} of crashes and accepted losses", count(found.scars)));
    damage_rows(&mut text, &found.damage, found.damaged);
    text.trim_end().to_owned()
}

/// The places that are named, and how many are not.
pub(crate) fn damage_rows(text: &mut String, named: &[String], damaged: u64) {
    for (at, damage) in named.iter().enumerate() {
        row(text, if at == 0 { "damage" } else { "" }, damage);
    }
    let more = damaged - named.len() as u64;
    if more > 0 {
        row(text, "", &format!("and {} places more", count(more)));
    }
}

fn must_be_sound(dir: &Path, found: &Verification, verdict: &str) -> Outcome {
    if found.is_sound() {
        return Ok(());
    }
    let is_made_up_for = |damage: &String| damage.contains("file=index.") || damage.contains("its other copy is whole");
    let advice = if found.line == 0 {
        // There is no store to carry anything over from.
        "nothing else of it can be read: a backup may be"
    } else if found.damaged == found.damage.len() as u64 && found.damage.iter().all(is_made_up_for) {
        "`esker verify --accept-loss` makes it anew, and nothing is lost (the library's `accept_loss` for a store of other types)"
    } else {
        "`esker salvage` carries over what is not (the library's for a store of other types)"
    };
    let verdict = format!("{verdict}; {advice}");
    let places = if found.damaged == 1 { "place is" } else { "places are" };
    Err(Failure::about(dir.display(), format!("{} {places} {verdict}", count(found.damaged))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_a_verification() {
        let place = tempfile::tempdir().unwrap();
        let store: Bytes = esker::Options::new().memory("16MiB").open(place.path()).unwrap();
        store.put(b"key", b"value").unwrap();
        store.close().unwrap();
        assert_eq!(check(place.path(), &Interrupt::default()).unwrap().records, 1);
        let why = check(place.path(), &Interrupt::raised()).unwrap_err();
        assert!(matches!(&why, Failure::Failed(why) if why.ends_with(": interrupted")), "{why:?}");
    }
}
