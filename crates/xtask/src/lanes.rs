//! The lanes themselves.
//!
//! The theory: task number n of the random lanes is the program of seed `--seed` + n, and nothing else decides what happens in it, so
//! `--seed` with `--programs 1` replays it.

use crate::arguments::Arguments;
use crate::crew::{Brought, Tally, be_worker, work};
use esker::Durability;
use esker_sim::crash::store::Esker;
use esker_sim::crash::{Figures, Limits, Program, Subject, check, faults, program, rot, shrink};
use esker_sim::golden;
use esker_sim::model::Layout;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::env;
use std::ops::AddAssign;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn subject(arguments: &Arguments) -> Esker {
    let durability = if arguments.always { Durability::Always } else { Durability::None };
    Esker { durability, kind: arguments.kind }
}

fn judge(subject: &Esker, program: &Program, limits: Limits) -> Brought<Figures> {
    check(subject, program, limits).map_err(|violation| {
        eprintln!("\nas found, seed {}: {}\n  reducing it ...", program.seed, violation.what);
        shrink(subject, *violation, limits, Duration::from_secs(30)).to_string()
    })
}

/// Power cuts.
pub(crate) fn crash(arguments: &Arguments) -> bool {
    let (subject, begun) = (subject(arguments), Instant::now());
    let tell = |tally: &Tally<Figures>| {
        let (f, busy) = (tally.figures, tally.processor_seconds);
        format!(
            "crash: programs={} places={} cuts={} nested={} lives={} refused={} images={} seconds={:.0} cuts/s/core={:.0} images/s/core={:.0}",
            f.programs,
            f.places,
            f.cuts,
            f.nested,
            f.lives,
            f.refused,
            f.images,
            begun.elapsed().as_secs_f64(),
            f.cuts as f64 / busy,
            f.images as f64 / busy
        )
    };
    let tally = match arguments.exhaustive {
        Some(length) => {
            let of = |layout| (1..=length).flat_map(move |length| program::all(layout, length));
            let programs: Vec<Program> = of(Layout::Pairs).chain(of(Layout::Blobs)).collect();
            if !arguments.is_worker {
                eprintln!("crash: all {} programs of up to {length} steps", programs.len());
            }
            let all = |_: &Figures, number| number >= programs.len() as u64;
            lane(arguments, all, |n| judge(&subject, &programs[n as usize], Limits::EXHAUSTIVE), tell)
        }
        None => {
            let enough = |f: &Figures, number| arguments.programs.map_or(f.cuts >= arguments.cuts, |programs| number >= programs);
            let task = |n| {
                let seed = arguments.seed + n;
                let program = if arguments.crowds { Program::crowded(seed) } else { subject.program(seed) };
                judge(&subject, &program, if program.is_crowded() { Limits::CROWDED } else { Limits::RANDOM })
            };
            lane(arguments, enough, task, tell)
        }
    };
    tally.wrongs.is_empty()
}

/// All of a lane, with its closing line; a worker's share of it ends here.
fn lane<F: AddAssign + Default + Send + Serialize + DeserializeOwned>(
    arguments: &Arguments,
    enough: impl Fn(&F, u64) -> bool + Sync,
    task: impl Fn(u64) -> Brought<F>,
    tell: impl Fn(&Tally<F>) -> String + Sync,
) -> Tally<F> {
    if arguments.is_worker {
        be_worker(task);
    }
    let tally = work(arguments.jobs, arguments.violations, enough, &tell);
    println!("{} violations={}", tell(&tally), tally.wrongs.len());
    tally
}

#[derive(Default, Serialize, Deserialize)]
struct Faults(faults::Report);

impl AddAssign for Faults {
    fn add_assign(&mut self, other: Faults) {
        self.0.runs += other.0.runs;
        self.0.openings += other.0.openings;
        self.0.went_on += other.0.went_on;
        for (kind, count) in other.0.kinds {
            *self.0.kinds.entry(kind).or_default() += count;
        }
    }
}

/// Calls that fail.
pub(crate) fn faults(arguments: &Arguments) -> bool {
    let (subject, begun) = (subject(arguments), Instant::now());
    let programs = arguments.programs.unwrap_or(40);
    let tell = |tally: &Tally<Faults>| {
        let Faults(faults::Report { runs, kinds, openings, went_on }) = &tally.figures;
        let seconds = begun.elapsed().as_secs_f64();
        format!("faults: runs={runs} openings={openings} went_on={went_on} by_call={kinds:?} seconds={seconds:.0}")
    };
    let task = |number| {
        let mut report = faults::Report::default();
        let program = subject.program(arguments.seed + number);
        let checked = if arguments.after_cuts { faults::check_after_cuts } else { faults::check };
        checked(&subject, &program, &mut report).map(|()| Faults(report))
    };
    let tally = lane(arguments, |_: &Faults, number| number >= programs, task, tell);
    tally.wrongs.is_empty()
}

/// Bytes that change.
pub(crate) fn rot(arguments: &Arguments) -> bool {
    let (subject, begun) = (subject(arguments), Instant::now());
    let programs = arguments.programs.unwrap_or(20);
    let tell = |tally: &Tally<rot::Report>| {
        let r = &tally.figures;
        let (tried, seconds) = (r.refused + r.right + r.shorter + r.wrong, begun.elapsed().as_secs_f64());
        let rot::Report { refused, right, shorter, wrong, .. } = r;
        format!("rot: tried={tried} refused={refused} right={right} shorter={shorter} wrong={wrong} seconds={seconds:.0}")
    };
    let task = |number| rot::check(&subject, &subject.program(arguments.seed + number), arguments.stride);
    let tally = lane(arguments, |_: &rot::Report, number| number >= programs, task, tell);
    tally.figures.examples.iter().for_each(|example| eprintln!("{example}\n"));
    tally.wrongs.is_empty() && tally.figures.wrong == 0 && (tally.figures.shorter == 0 || !arguments.strict)
}

/// The program, killed under load, and threads that transfer between accounts: the loops of their tests, longer.
pub(crate) fn kill(arguments: &Arguments) -> bool {
    killing_tests(&["kill", "kill_transfers"], arguments)
}

/// Writers of one server, killed at work: as often as asked for, in each of the tests.
pub(crate) fn processes(arguments: &Arguments) -> bool {
    killing_tests(&["processes"], arguments)
}

/// Tests that are told how often to kill. Of the workspace: for one package alone others' features would fall away, and all be built anew.
fn killing_tests(tests: &[&str], arguments: &Arguments) -> bool {
    let begun = Instant::now();
    let mut test = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.args(["test", "--quiet", "--workspace"]);
    tests.iter().for_each(|name| _ = test.args(["--test", name]));
    test.args(["--", "--nocapture"]);
    test.env("ESKER_KILLS", arguments.kills.to_string());
    if arguments.seed > 0 {
        test.env("ESKER_SEED", arguments.seed.to_string());
    }
    let passed = test.status().is_ok_and(|status| status.success());
    println!("{}: kills={} seconds={:.0} passed={passed}", tests.join(", "), arguments.kills, begun.elapsed().as_secs_f64());
    passed
}

/// Writes the golden stores of this format.
pub(crate) fn golden() -> bool {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/format-4");
    let made = golden::make(&directory);
    if let Err(error) = &made {
        eprintln!("golden: {error}");
    }
    made.is_ok()
}
