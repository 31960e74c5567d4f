//! Places in memory that deletions have left, under a scheduler: two or three threads come and go with three keys, while another lets holes
//! ripen, freezes and compacts, or makes the index grow or shrink.

use super::*;
use crate::sync::atomic::is_scheduled;

/// More than others are worked on: one takes the place of another.
const MANY: u64 = 3;
const PATIENCE: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// The holes that rest ripen.
    Ripen,
    Do(Chore),
}

#[derive(Clone, Debug)]
struct Coming {
    #[expect(dead_code, reason = "shown where a program fails")]
    seed: u64,
    before: Vec<Act>,
    threads: Vec<Vec<Act>>,
    meanwhile: Vec<Meanwhile>,
    /// Keys that are there before.
    crowd: u64,
    is_warm: bool,
}

impl Coming {
    fn of(seed: u64, can_append: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (has_transactions, has_readings) = (random.random_range(0..4) == 0, random.random_range(0..3) == 0);
        let mut acts = |least, most| -> Vec<Act> {
            let count = random.random_range(least..=most);
            (0..count).map(|_| come_or_go(&mut random, can_append, has_transactions, has_readings)).collect()
        };
        let before = acts(1, 4);
        let threads = [acts(1, 4), acts(1, 4), acts(0, 3)].into_iter().filter(|acts| !acts.is_empty()).collect();
        let grows = random.random_range(0..8) == 0;
        let all = [Chore::Freeze, Chore::Compact, Chore::Grow, Chore::Shrink];
        let chores = if grows { &all[..] } else { &all[..2] };
        let meanwhile = |random: &mut ChaCha8Rng| match random.random_range(0..8) {
            chosen if chosen < chores.len() => Meanwhile::Do(chores[chosen]),
            _ => Meanwhile::Ripen,
        };
        let meanwhile = (0..random.random_range(1..=4)).map(|_| meanwhile(&mut random)).collect();
        Self { seed, before, threads, meanwhile, crowd: if grows { CROWD } else { 0 }, is_warm: seed % 4 < 2 }
    }
}

fn come_or_go(random: &mut ChaCha8Rng, can_append: bool, has_transactions: bool, has_readings: bool) -> Act {
    let mut one = || {
        let deed = match random.random_range(0..6) {
            0 | 1 => Deed::Delete,
            2 => Deed::DeleteMany,
            // Of one length: they fit each other's places.
            3 => Deed::Put(24 * random.random_range(1..9) + 1),
            _ => deed(random, can_append),
        };
        (random.random_range(0..MANY), deed)
    };
    let (first, second) = (one(), one());
    match random.random_range(0..6) {
        0 if has_transactions => Act::Transaction(vec![first, second]),
        1 if has_readings => Act::Reading((0..MANY).collect()),
        _ => Act::Plain(first.0, first.1),
    }
}

fn come_and_go<S: Kind>(coming: &Coming) {
    set_scheduled(false);
    let store = S::in_memory();
    let engine = store.engine();
    (0..coming.crowd).for_each(|n| _ = store.act(1000 + n, Deed::Put(n)));
    let clock = Arc::new(Clock::default());
    let mut events = run_all(&store, &clock, &coming.before);
    engine.log.holes.want(true);
    set_scheduled(true);
    let threads: Vec<_> = coming.threads.iter().map(|acts| spawn(store.clone(), clock.clone(), coming.is_warm, acts.clone())).collect();
    let mut fresh = 1_000_000;
    for what in &coming.meanwhile {
        match what {
            Meanwhile::Ripen => ripen(engine),
            Meanwhile::Do(chore) => do_chore(&store, *chore, &mut fresh),
        }
    }
    threads.into_iter().for_each(|thread| events.extend(thread.join().expect("no panic")));
    set_scheduled(false);
    do_chore(&store, Chore::Compact, &mut fresh);
    for n in 0..coming.crowd {
        assert!(matches!(store.act(1000 + n, Deed::Contains), Action::Contains(true)), "a key was lost while the index grew");
    }
    let all: Vec<_> = (0..MANY).map(|key| Act::Plain(key, Deed::Get)).collect();
    events.extend(run_all(&store, &clock, &all));
    store.close();
    if let Err(stuck) = check(&events) {
        panic!("no order explains: {stuck:#?}\nof {events:#?}\nprogram {coming:#?}");
    }
}

/// The driver's work, once there is some: it comes by every millisecond.
fn ripen(engine: &Engine) {
    for _ in 0..PATIENCE {
        if engine.log.are_holes_resting() {
            return engine.ripen_holes();
        }
        shuttle::thread::yield_now();
    }
}

fn explore_holes<S: Kind>(schedules: u64) {
    seeds(schedules).for_each(|seed| {
        let coming = Coming::of(seed, S::CAN_APPEND);
        in_orders(seed, SCHEDULES_OF_A_PROGRAM, move || come_and_go::<S>(&coming));
    });
}

#[test]
fn pairs_take_the_places_of_others_in_all_schedules() {
    explore_holes::<Store<u64, u64>>(schedules() / 3);
}

#[test]
fn short_values_take_the_places_of_others_in_all_schedules() {
    explore_holes::<Store<u64, [u64; 2]>>(schedules() / 3);
}

#[test]
fn bytes_take_the_places_of_others_in_all_schedules() {
    explore_holes::<Store<u64, [u8]>>(schedules() / 3);
}

/// One thread works on a key while another deletes it, and puts a second key, which takes its place: each of this is one step, and the
/// thread has some steps of its own before the first and the second.
fn replaced_beside<S: Kind>(deed: Deed, pauses: [u64; 2]) {
    set_scheduled(false);
    let (store, clock) = (S::in_memory(), Arc::new(Clock::default()));
    let on = |key: u64, deed: Deed| [Act::Plain(key, deed)];
    let mut events = run_all(&store, &clock, &on(0, Deed::Put(49)));
    store.engine().log.holes.want(true);
    let worker = {
        let (store, clock) = (store.clone(), clock.clone());
        shuttle::thread::spawn(move || {
            store.act(KEYS, Deed::Contains);
            set_scheduled(true);
            run_all(&store, &clock, &on(0, deed))
        })
    };
    let at_once = |pauses: u64, run: &mut dyn FnMut()| {
        (0..pauses).for_each(|_| shuttle::thread::yield_now());
        let was_scheduled = is_scheduled();
        set_scheduled(false);
        run();
        set_scheduled(was_scheduled);
    };
    at_once(pauses[0], &mut || {
        events.extend(run_all(&store, &clock, &on(0, Deed::Delete)));
        store.engine().ripen_holes();
    });
    at_once(pauses[1], &mut || events.extend(run_all(&store, &clock, &on(1, Deed::Put(25)))));
    events.extend(worker.join().expect("no panic"));
    set_scheduled(false);
    events.extend(run_all(&store, &clock, &[on(0, Deed::Get), on(1, Deed::Get)].concat()));
    store.close();
    if let Err(stuck) = check(&events) {
        panic!("no order explains: {stuck:#?}\nof {events:#?}");
    }
}

/// In so many orders for each pair of pauses.
fn replace_beside(deed: Deed, orders: usize) {
    for pauses in (1..40).flat_map(|first| (1..20).map(move |second| [first, second])) {
        in_orders(2 * (pauses[0] * 20 + pauses[1]) + 1, orders, move || replaced_beside::<Store<u64, u64>>(deed, pauses));
    }
}

#[test]
fn what_was_found_before_a_hole_was_filled_is_not_taken_for_what_fills_it() {
    [Deed::Get, Deed::Add(1), Deed::GetMany, Deed::AddMany(1), Deed::DeleteMany].into_iter().for_each(|deed| replace_beside(deed, 4));
}

#[test]
fn twins_that_fill_holes_too_early_are_found() {
    assert!(finds(Rule::HolesRest, || replace_beside(Deed::Add(1), 200)), "a hole that was filled at once was not found");
    assert!(finds(Rule::BatchesAskForHoles, || replace_beside(Deed::AddMany(1), 200)), "a batch that did not look again was not found");
}
