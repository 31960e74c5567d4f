//! A run as the calls that changed the disk, to be looked at moment by moment.
//!
//! The theory: up to the call in which the power goes an engine cannot know that it will go. So a cut needs no run of its own:
//! the disk after the first n calls of one whole run is the disk of a machine that died before call n + 1, and the loose
//! writes of that moment hold all that may survive, the call in which it died included.

use super::fate::{Survival, every};
use super::platter::{Disk, Event};
use super::{KINDS, SimStorage};
use std::collections::HashSet;

/// The disk at the start of a run and the calls that changed it.
pub struct Film {
    pub(super) start: Disk,
    pub(super) events: Vec<Event>,
}

/// The disk after some calls.
pub struct Moment<'f> {
    /// How many calls were made.
    pub calls: usize,
    disk: Disk,
    last: &'f Event,
}

/// How many states of the disk to look at per moment.
#[derive(Clone, Copy, Debug)]
pub struct Breadth {
    /// Where no more choices of whole sectors exist, all are made.
    pub every_up_to: u64,
    /// Drawn besides.
    pub drawn: u64,
}

impl Film {
    /// The number of calls.
    pub fn calls(&self) -> usize {
        self.events.len()
    }

    /// Plays it: calls `visit` after each call until it gives something.
    pub fn play<R>(&self, mut visit: impl FnMut(&Moment<'_>) -> Option<R>) -> Option<R> {
        let mut disk = self.start.clone();
        for (index, event) in self.events.iter().enumerate() {
            disk.play(event);
            let moment = Moment { calls: index + 1, disk, last: event };
            if let Some(found) = visit(&moment) {
                return Some(found);
            }
            disk = moment.disk;
        }
        None
    }
}

impl Moment<'_> {
    /// The different ways in which a disk that loses power now may come back.
    pub fn survivals(&self, breadth: Breadth, seed: u64) -> Vec<Survival> {
        if self.disk.loose.is_empty() && self.disk.loose_names.is_empty() {
            return vec![Survival::draw(0, &self.disk)];
        }
        let every: Vec<Survival> = every(&self.disk, breadth.every_up_to).into_iter().flatten().collect();
        let first = seed / KINDS.len() as u64 * KINDS.len() as u64;
        let drawn = (0..breadth.drawn).map(|n| Survival::draw(first.wrapping_add(n), &self.disk));
        let mut seen = HashSet::new();
        every.into_iter().chain(drawn).filter(|s| seen.insert(s.clone())).collect()
    }

    /// All that was written survives.
    pub fn all_kept(&self) -> Survival {
        Survival::draw(1, &self.disk)
    }

    /// The storage that comes back.
    pub fn storage(&self, survival: &Survival) -> SimStorage {
        SimStorage::over(self.disk.survive(survival))
    }

    /// The last call made, for people.
    pub fn describe(&self) -> String {
        let name = |file: usize| self.disk.names.iter().find(|(_, f)| **f == file).map_or("a removed file", |(name, _)| name);
        match self.last {
            Event::Create { name } => format!("create {name}"),
            Event::Remove { name } => format!("remove {name}"),
            Event::SyncNames => "sync the directory".into(),
            Event::Write { file, write } => format!("write {} sectors of {} from {}", write.blocks.len(), name(*file), write.sector),
            Event::Sync { file } => format!("sync {}", name(*file)),
            Event::Reopened { file } => format!("open {} again", name(*file)),
            Event::SyncFailed { file } => format!("failed sync of {}", name(*file)),
        }
    }
}
