//! `esker compact`: a store's log without what is dead in it.
//!
//! One pass over all that is there: what lives moves to the log's end, and the files before it go. The store looks after its
//! target by itself while a program has it open; this is for a small directory, before it is copied or kept: the log and
//! at most a file more.

use std::path::Path;
use std::thread;
use std::time::Duration;

use esker::SpaceStats;

use crate::args::Opening;
use crate::bytes::size;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::stats::{amplification, row};
use crate::store::{self, Bytes};
use crate::{out, progress};

const LOOK: Duration = Duration::from_millis(50);

/// Compacts the store in `dir`.
pub(crate) fn run(dir: &Path, rebuild_index: bool, json: bool, opening: Opening) -> Outcome {
    store::must_exist(dir)?;
    // What it has copied so far may be dropped where it stands.
    Interrupt::catch_for_reader()?;
    let (before, after) = store::with_options(dir, store::options(opening).rebuild_index(rebuild_index), |store| {
        let before = store.stats().space;
        watched(store).map_err(|error| Failure::about(dir.display(), error))?;
        Ok((before, store.stats().space))
    })?;
    if json {
        let text = serde_json::to_string_pretty(&after).map_err(|error| Failure::new(error.to_string()))?;
        return out::line(text);
    }
    out::line(describe(dir, &before, &after))
}

/// Compacts with a bar over the log that was there.
fn watched(store: &Bytes) -> esker::Result<u64> {
    let log = store.stats().log;
    let (begin, total) = (log.begin, log.tail.saturating_sub(log.begin));
    let bar = progress::of_bytes(total);
    let done = thread::scope(|scope| {
        let work = scope.spawn(|| store.compact());
        while !work.is_finished() {
            let done = store.stats().log.begin.saturating_sub(begin).min(total);
            bar.set_position(done);
            progress::say(&bar, format!("{} of {} gone through", size(done), size(total)));
            thread::park_timeout(LOOK);
        }
        work.join()
    });
    bar.finish_and_clear();
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn describe(dir: &Path, before: &SpaceStats, after: &SpaceStats) -> String {
    let mut text = format!("{}\n\n", dir.display());
    row(&mut text, "log", &format!("{}, was {}", size(after.log_bytes), size(before.log_bytes)));
    row(&mut text, "", &format!("amplification {}, was {}", amplification(after), amplification(before)));
    row(&mut text, "files", &format!("{}, were {}", size(after.file_bytes), size(before.file_bytes)));
    row(&mut text, "moved", &format!("{} in {} stretches", size(after.moved_bytes), after.stretches));
    text.trim_end().to_owned()
}
