//! A store agrees with a map, operation by operation.
//!
//! The theory: a sequence of operations drawn from a seed runs on a store and on the model, and every
//! answer is compared; at the end, and after each reopening, every key is. The sequences go over every
//! layout, two budgets and three places (memory, a simulated disk, a directory that is closed and opened
//! again); some hold more than the budget, so that most of the data is on the device. The seed of a
//! failure is in its message. `ESKER_SEED` replays one seed, `ESKER_SEQUENCES` sets the number of seeds.

use esker::{ManualClock, Options};
use esker_sim::disk::SimDisk;
use esker_sim::model::{Generator, Layout, Model, Operation, Outcome, Shape};
use esker_sim::seeds::{seed, seeds};
use esker_sim::subject::{self, Place, Subject};
use std::sync::Arc;

const SEEDS: u64 = 2;
const BUDGETS: [u64; 2] = [16 << 20, 24 << 20];

/// How two outcomes differ; of a batch, the first position that does.
fn difference(operation: &Operation, gave: &Outcome, expected: &Outcome) -> String {
    if let (Operation::GetMany(keys), Outcome::Values(left), Outcome::Values(right)) = (operation, gave, expected) {
        let Some(at) = (0..keys.len()).find(|i| left[*i] != right[*i]) else { return "lengths differ".into() };
        let one = Operation::Get(keys[at].clone());
        let (left, right) = (Outcome::Value(left[at].clone()), Outcome::Value(right[at].clone()));
        return format!("{operation:?}: position {at}: {one:?} gave {left:?}, not {right:?}");
    }
    format!("{operation:?} gave {gave:?}, not {expected:?}")
}

/// A store under comparison.
struct Trial {
    name: String,
    layout: Layout,
    budget: u64,
    place: Place,
    clock: Arc<ManualClock>,
    store: Box<dyn Subject>,
    model: Model,
}

impl Trial {
    fn new(name: String, layout: Layout, budget: u64, place: Place) -> Trial {
        let clock = Arc::new(ManualClock::default());
        let store =
            subject::open_by(layout, Options::new().memory(budget), &place, clock.clone()).unwrap_or_else(|e| panic!("{name}: open: {e}"));
        Trial { name, layout, budget, place, clock, store, model: Model::new(layout) }
    }

    fn run(&mut self, seed: u64, shape: Shape, steps: usize) {
        let mut generator = Generator::new(seed, shape);
        for step in 0..steps {
            let operation = generator.operation();
            if operation == Operation::Reopen {
                self.reopen(step);
            } else {
                self.compare(step, &operation);
            }
        }
        self.compare_all(steps);
    }

    fn compare(&mut self, step: usize, operation: &Operation) {
        let gave = subject::apply(self.store.as_ref(), self.layout, operation)
            .unwrap_or_else(|e| panic!("{}: step {step}: {operation:?}: {e}", self.name));
        let expected = self.model.apply(operation);
        assert!(gave == expected, "{}: step {step}: {}", self.name, difference(operation, &gave, &expected));
    }

    fn reopen(&mut self, step: usize) {
        self.store.close().unwrap_or_else(|e| panic!("{}: step {step}: close: {e}", self.name));
        let after = self.store.get(&self.layout.key(0));
        assert!(matches!(after, Err(esker::Error::Closed)), "{}: step {step}: a get after close", self.name);
        self.store = subject::open_by(self.layout, Options::new().memory(self.budget), &self.place, self.clock.clone())
            .unwrap_or_else(|e| panic!("{}: step {step}: reopen: {e}", self.name));
        self.compare_all(step);
    }

    /// Every key of the model, in batches, and some that are in neither.
    fn compare_all(&mut self, step: usize) {
        let keys: Vec<Vec<u8>> = self.model.map.keys().cloned().collect();
        for batch in keys.chunks(256) {
            self.compare(step, &Operation::GetMany(batch.to_vec()));
        }
        for id in u64::MAX - 20..u64::MAX {
            self.compare(step, &Operation::Get(self.layout.key(id)));
        }
    }
}

fn small(layout: Layout, reopens: bool) -> Shape {
    Shape { layout, hot: 6, cold: 1500, typical: 300, huge_every: 150, batch: 24, filling: 2, reopens, ends: true }
}

/// More data than the budget: about 30 MB of pairs or records with their headers, 60 MB of values.
fn spilling(layout: Layout, reopens: bool) -> (Shape, usize) {
    match layout.width() {
        Some(_) => {
            let shape = Shape { layout, hot: 6, cold: 700_000, typical: 0, huge_every: 0, batch: 1024, filling: 40, reopens, ends: true };
            (shape, 1800)
        }
        None => {
            let shape =
                Shape { layout, hot: 6, cold: 13_000, typical: 10_000, huge_every: 200, batch: 64, filling: 12, reopens, ends: true };
            (shape, 1800)
        }
    }
}

/// Runs `body` for every layout, budget and seed with a name that says which.
fn over_everything(place: &str, body: impl Fn(String, Layout, u64, u64)) {
    for seed in seeds(SEEDS) {
        for layout in Layout::ALL {
            for budget in BUDGETS {
                let name = format!("ESKER_SEED={seed} {layout:?} {}MiB {place}", budget >> 20);
                println!("{name}");
                body(name, layout, budget, seed);
            }
        }
    }
}

/// The same with one budget a layout, for what is long.
fn over_layouts(place: &str, body: impl Fn(String, Layout, u64, u64)) {
    let seed = seed();
    for (layout, budget) in Layout::ALL.into_iter().zip(BUDGETS.into_iter().cycle()) {
        let name = format!("ESKER_SEED={seed} {layout:?} {}MiB {place}, spilling", budget >> 20);
        println!("{name}");
        body(name, layout, budget, seed);
    }
}

/// A run that was to spill and did not proves nothing.
fn assert_spilled(trial: &Trial) {
    let stats = trial.store.stats();
    assert!(stats.log.head > stats.log.begin, "{}: nothing left memory: {:?}", trial.name, stats.log);
}

#[test]
fn in_memory() {
    over_everything("in memory", |name, layout, budget, seed| {
        // Live data must stay well within the budget here, there being nowhere else for it.
        let shape = Shape { typical: 200, huge_every: 1500, ..small(layout, false) };
        Trial::new(name, layout, budget, Place::Memory).run(seed, shape, 3000);
    });
}

#[test]
fn on_a_simulated_disk() {
    over_everything("simulated disk", |name, layout, budget, seed| {
        let place = Place::Disk(Arc::new(SimDisk::new(seed)));
        Trial::new(name, layout, budget, place).run(seed, small(layout, false), 3000);
    });
}

#[test]
fn in_a_directory() {
    over_everything("directory", |name, layout, budget, seed| {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Directory(directory.path().join("data"));
        let mut trial = Trial::new(name, layout, budget, place);
        trial.run(seed, small(layout, true), 2000);
        trial.reopen(2000);
    });
}

#[test]
fn spilling_to_a_simulated_disk() {
    over_layouts("simulated disk", |name, layout, budget, seed| {
        let (shape, steps) = spilling(layout, false);
        let mut trial = Trial::new(name, layout, budget, Place::Disk(Arc::new(SimDisk::with_delay(seed, 20))));
        trial.run(seed, shape, steps);
        assert_spilled(&trial);
    });
}

#[test]
fn spilling_to_a_directory() {
    over_layouts("directory", |name, layout, budget, seed| {
        let directory = tempfile::tempdir().unwrap();
        let (shape, steps) = spilling(layout, false);
        let mut trial = Trial::new(name, layout, budget, Place::Directory(directory.path().join("data")));
        trial.run(seed, shape, steps);
        assert_spilled(&trial);
        trial.reopen(steps);
        trial.run(seed + 1000, Shape { filling: 1, ..shape }, 300);
        trial.reopen(steps + 300);
    });
}
