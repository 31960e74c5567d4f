//! The lane of power cuts must find what is planted, and nothing where nothing is.
//!
//! The theory: a lane that finds nothing in a right store and something in each wrong one proves something; one that only does the former
//! proves nothing.

mod toy;

use esker::Storage;
use esker_sim::crash::{Figures, Limits, Live, Program, Subject, Violation, check, faults, program, rot, shrink};
use esker_sim::model::{Layout, Operation, Outcome};
use esker_sim::storage::{Breadth, KINDS, SimStorage};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use toy::{Bug, LiveToy, Toy};

/// Far more than it takes: a violation is as small as it gets long before.
const PATIENCE: Duration = Duration::from_secs(600);

fn hunt(bug: Bug, programs: u64) -> Result<Figures, Violation> {
    let mut figures = Figures::default();
    for seed in 0..programs {
        figures += check(&Toy(bug), &Program::random(seed), Limits::RANDOM).map_err(|v| *v)?;
    }
    Ok(figures)
}

fn found(bug: Bug) -> Violation {
    let violation = hunt(bug, 2000).expect_err(&format!("{bug:?} was not found"));
    let seed = violation.program.seed;
    let smallest = shrink(&Toy(bug), violation, Limits::RANDOM, PATIENCE);
    println!("{bug:?}: seed {seed}, {} steps:\n{smallest}", smallest.program.steps.len());
    assert!(smallest.program.steps.len() <= 10, "not reduced: {smallest}");
    smallest
}

#[test]
fn a_right_store_passes() {
    let begun = Instant::now();
    let figures = hunt(Bug::None, 100).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{figures:?} {:.0} cuts/s", figures.cuts as f64 / begun.elapsed().as_secs_f64());
    assert!(figures.lives > 100 && figures.nested > figures.lives);
}

#[test]
fn a_right_store_passes_all_short_programs() {
    for layout in [Layout::Pairs, Layout::Blobs] {
        for program in program::all(layout, 2) {
            check(&Toy(Bug::None), &program, Limits::EXHAUSTIVE).unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
}

#[test]
fn skipped_sync_is_found() {
    assert!(found(Bug::SkippedSync).what.contains("LOST"));
}

#[test]
fn rewritten_tail_is_found() {
    found(Bug::RewritesTail);
}

#[test]
fn acknowledgement_before_the_sync_is_found() {
    assert!(found(Bug::AcksBeforeSync).what.contains("LOST"));
}

#[test]
fn accepted_torn_tail_is_found() {
    found(Bug::AcceptsTornTail);
}

#[test]
fn forgotten_directory_sync_is_found() {
    found(Bug::ForgetsNames);
}

#[test]
fn revived_batches_are_found() {
    found(Bug::RevivesTheDead);
}

#[test]
fn recovery_in_place_is_found() {
    assert!(!found(Bug::RecoversInPlace).path.is_empty());
}

/// The film is the truth: a machine that really dies in a call leaves what the film says.
#[test]
fn a_real_cut_leaves_what_the_film_shows() {
    let program = Program::random(11);
    let whole = SimStorage::new();
    let run = |storage: &SimStorage| {
        let mut store = Toy(Bug::None).open(program.layout, storage)?;
        for step in &program.steps {
            use esker_sim::crash::Step;
            match step {
                Step::Do(operation) => drop(store.apply(operation)?),
                _ => store.commit()?,
            }
        }
        Ok::<(), String>(())
    };
    run(&whole).unwrap();
    let film = whole.film();
    let mut changes = 0;
    for (call, kind) in (1..).zip(whole.calls()) {
        use esker_sim::storage::Kind;
        if !kind.is_change() {
            continue;
        }
        changes += 1;
        if !matches!(kind, Kind::Write | Kind::Create | Kind::Remove) {
            continue;
        }
        let cut = SimStorage::new();
        cut.cut_at(call);
        run(&cut).unwrap_err();
        let prints = film.play(|moment| {
            let breadth = Breadth { every_up_to: 0, drawn: KINDS.len() as u64 };
            let of = |seed| moment.survivals(breadth, seed).iter().map(|s| moment.storage(s).print()).collect::<Vec<_>>();
            (moment.calls == changes).then(|| of(0))
        });
        let prints = prints.unwrap();
        assert!((0..KINDS.len() as u64).all(|kind| prints.contains(&cut.survive(kind).print())));
    }
}

#[test]
fn faults_find_a_sync_that_is_tried_again() {
    let run = |bug| (0..60).try_for_each(|seed| faults::check(&Toy(bug), &Program::random(seed), &mut faults::Report::default()));
    run(Bug::None).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{}", run(Bug::RetriesSync).expect_err("not found"));
}

#[test]
fn faults_after_a_cut_find_it_too() {
    let run =
        |bug| (0..20).try_for_each(|seed| faults::check_after_cuts(&Toy(bug), &Program::random(seed), &mut faults::Report::default()));
    run(Bug::None).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{}", run(Bug::RetriesSync).expect_err("not found"));
}

/// A right store that lists the names before an operation, in some of its lives: its calls come in another order each time.
#[derive(Default)]
struct Restless(AtomicU64);

struct LiveRestless(LiveToy, Option<SimStorage>);

impl Subject for Restless {
    type Live = LiveRestless;

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveRestless, String> {
        let lists = self.0.fetch_add(1, Relaxed).is_multiple_of(3);
        Ok(LiveRestless(Toy(Bug::None).open(layout, storage)?, lists.then(|| storage.clone())))
    }
}

impl Live for LiveRestless {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome, String> {
        self.1.as_ref().map_or(Ok(Vec::new()), Storage::list).map_err(|e| e.to_string())?;
        self.0.apply(operation)
    }

    fn commit(&mut self) -> Result<(), String> {
        self.0.commit()
    }

    fn close(self) -> Result<(), String> {
        self.0.close()
    }
}

/// Which call failed says the run it failed in: after one that changes nothing the store may promise what it likes.
#[test]
fn a_store_whose_calls_come_in_another_order_is_not_accused() {
    let subject = Restless::default();
    for seed in 0..60 {
        faults::check(&subject, &Program::random(seed), &mut faults::Report::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

/// What a store that sulks after a failed read refuses.
#[derive(Clone, Copy, PartialEq)]
enum Refuses {
    Nothing,
    Commits,
    Reads,
}

/// A right store that reads its log before each operation, and sulks when it could not.
struct Sulky(Refuses);

struct LiveSulky {
    toy: LiveToy,
    storage: SimStorage,
    refuses: Refuses,
    has_failed: bool,
}

impl Subject for Sulky {
    type Live = LiveSulky;

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveSulky, String> {
        Ok(LiveSulky { toy: Toy(Bug::None).open(layout, storage)?, storage: storage.clone(), refuses: self.0, has_failed: false })
    }
}

impl LiveSulky {
    fn must_not_sulk(&self, what: Refuses) -> Result<(), String> {
        if self.has_failed && self.refuses == what { Err("it sulks".into()) } else { Ok(()) }
    }
}

impl Live for LiveSulky {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome, String> {
        let mut sector = vec![0; esker::SECTOR_BYTES];
        let log = self.storage.open("log").map_err(|e| e.to_string())?;
        if log.bytes().is_ok_and(|bytes| bytes >= sector.len() as u64) {
            self.has_failed |= log.read(0, &mut sector).is_err();
        }
        self.must_not_sulk(Refuses::Reads)?;
        self.toy.apply(operation)
    }

    fn commit(&mut self) -> Result<(), String> {
        self.must_not_sulk(Refuses::Commits)?;
        self.toy.commit()
    }

    fn close(self) -> Result<(), String> {
        self.toy.close()
    }
}

#[test]
fn faults_find_a_store_that_a_failed_read_stops() {
    let run = |refuses| (0..60).try_for_each(|seed| faults::check(&Sulky(refuses), &Program::random(seed), &mut faults::Report::default()));
    run(Refuses::Nothing).unwrap_or_else(|wrong| panic!("{wrong}"));
    let wrong = run(Refuses::Commits).expect_err("not found");
    assert!(wrong.contains("a commit failed"), "{wrong}");
    let wrong = run(Refuses::Reads).expect_err("not found");
    assert!(wrong.contains("reads do not go on"), "{wrong}");
}

#[test]
fn rot_finds_a_store_without_checksums() {
    let run = |bug| {
        let mut report = rot::Report::default();
        (0..12).for_each(|seed| report += rot::check(&Toy(bug), &Program::random(seed), 61).unwrap());
        report
    };
    let right = run(Bug::None);
    assert_eq!(right.wrong, 0, "{:?}", right.examples);
    assert!(right.shorter > 0, "a log without an end mark cannot tell damage from a torn tail");
    assert!(run(Bug::AcceptsTornTail).wrong > 0);
}
