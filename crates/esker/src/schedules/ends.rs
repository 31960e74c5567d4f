//! One key that ends, under a scheduler: two or three threads read, change and replace it and put its end off, while another lets
//! the time pass and does chores. Values that are put for a time are there before: when those end that are put while time passes, only
//! the store knows.

use super::*;
use crate::ManualClock;
use esker_sim::history::{Lasting, without_late_looks};
use std::time::{Duration, SystemTime};

const KEY: u64 = 1;
/// No end is later.
const LAST_END: u64 = 9;

#[derive(Clone, Copy, Debug)]
enum Turn {
    Do(Deed),
    /// Ends so many milliseconds after the beginning.
    Until(u64),
    Persist,
}

#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// A millisecond passes.
    Pass,
    Do(Chore),
}

#[derive(Clone, Debug)]
struct Ending {
    seed: u64,
    /// When the first value ends.
    end: u64,
    threads: Vec<Vec<Turn>>,
    meanwhile: Vec<Meanwhile>,
    is_warm: bool,
}

impl Ending {
    fn of(seed: u64, can_append: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let turn = |random: &mut ChaCha8Rng| match random.random_range(0..6) {
            0 | 1 => Turn::Until(random.random_range(1..=LAST_END)),
            2 => Turn::Persist,
            _ => Turn::Do(deed(random, can_append)),
        };
        let threads =
            (0..random.random_range(2..=3)).map(|_| (0..random.random_range(1..=3)).map(|_| turn(&mut random)).collect()).collect();
        let chores = [Chore::Freeze, Chore::Evict, Chore::Commit, Chore::Compact];
        let meanwhile = |random: &mut ChaCha8Rng| match random.random_range(0..8) {
            chosen if chosen < chores.len() => Meanwhile::Do(chores[chosen]),
            _ => Meanwhile::Pass,
        };
        let meanwhile = (0..random.random_range(1..=4)).map(|_| meanwhile(&mut random)).collect();
        Self { seed, end: random.random_range(1..4), threads, meanwhile, is_warm: seed % 4 < 2 }
    }
}

/// A store and its clock.
#[derive(Clone)]
struct Timed<S> {
    store: S,
    time: Arc<ManualClock>,
    begin: SystemTime,
}

impl<S: Kind> Timed<S> {
    fn open(storage: Arc<MemoryStorage>, time: &Arc<ManualClock>) -> Self {
        let begin = crate::Clock::now(&ManualClock::default());
        Self { store: S::open_with(options().clock(time.clone()), storage), time: time.clone(), begin }
    }

    fn take(&self, turn: Turn) -> Lasting {
        let store = self.store.store();
        match turn {
            Turn::Do(deed) => Lasting::Action(self.store.act(KEY, deed)),
            Turn::Until(end) => Lasting::Until(Some(end), store.expire_at(&KEY, self.begin + Duration::from_millis(end)).expect("writes")),
            Turn::Persist => Lasting::Until(None, store.persist(&KEY).expect("writes")),
        }
    }
}

fn execute<S: Kind>(program: &Ending) {
    set_scheduled(false);
    let (storage, time) = (Arc::new(MemoryStorage::default()), Arc::new(ManualClock::default()));
    let timed = Timed::<S>::open(storage.clone(), &time);
    let clock = Arc::new(Clock::default());
    let mut own = Recorder::new(&clock);
    own.record(KEY, || {
        let value = S::value(3);
        timed.store.store().put_with_ttl(&KEY, S::owned(&value).borrow(), Duration::from_millis(program.end)).expect("writes");
        Lasting::PutUntil(value, program.end)
    });
    set_scheduled(true);
    let spawn = |turns: &Vec<Turn>| {
        let (timed, clock, turns, is_warm) = (timed.clone(), clock.clone(), turns.clone(), program.is_warm);
        shuttle::thread::spawn(move || {
            if is_warm {
                timed.store.act(KEYS, Deed::Contains);
            }
            let mut recorder = Recorder::new(&clock);
            turns.iter().for_each(|turn| recorder.record(KEY, || timed.take(*turn)));
            recorder.finish()
        })
    };
    let threads: Vec<_> = program.threads.iter().map(spawn).collect();
    let mut now = 0;
    let mut pass = |own: &mut Recorder<'_, Lasting>, by: u64| {
        own.record(KEY, || {
            timed.time.advance(Duration::from_millis(by));
            now += by;
            Lasting::Pass(now)
        });
    };
    for meanwhile in &program.meanwhile {
        match meanwhile {
            Meanwhile::Do(chore) => do_chore(&timed.store, *chore, &mut 0),
            Meanwhile::Pass => pass(&mut own, 1),
        }
    }
    let mut events: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
    let get = |own: &mut Recorder<'_, Lasting>, timed: &Timed<S>| own.record(KEY, || timed.take(Turn::Do(Deed::Get)));
    get(&mut own, &timed);
    set_scheduled(false);
    do_chore(&timed.store, Chore::Commit, &mut 0);
    let crashed = Arc::new(storage.copy());
    timed.store.close();
    for (files, is_last) in [(storage, false), (crashed, true)] {
        let timed = Timed::<S>::open(files, &time);
        get(&mut own, &timed);
        // What ends at all has ended.
        if is_last {
            pass(&mut own, LAST_END);
            get(&mut own, &timed);
        }
        timed.store.close();
    }
    events.extend(own.finish());
    if let Err(stuck) = check(&without_late_looks(events.clone())) {
        panic!("no order explains: {stuck:#?}\nof {events:#?}\nprogram {program:#?}");
    }
}

fn schedule<S: Kind>(program: Ending, orders: usize) {
    in_orders(program.seed, orders, move || execute::<S>(&program));
}

fn explore<S: Kind>(schedules: u64) {
    seeds(schedules).for_each(|seed| schedule::<S>(Ending::of(seed, S::CAN_APPEND), SCHEDULES_OF_A_PROGRAM));
}

#[test]
fn pairs_end_in_all_schedules() {
    explore::<Store<u64, u64>>(schedules());
}

#[test]
fn bytes_end_in_all_schedules() {
    explore::<Store<u64, [u8]>>(schedules());
}

/// Who found the word ended put another one in its place, just when somebody was told that its end was put off.
#[test]
fn an_end_that_is_not_claimed_is_found() {
    let threads = vec![vec![Turn::Until(LAST_END)], vec![Turn::Do(Deed::PutIfAbsent(5))]];
    // Even: one of them stands still while the other does all it has to.
    let program = Ending { seed: 2, end: 1, threads, meanwhile: vec![Meanwhile::Pass], is_warm: true };
    assert!(finds(Rule::EndsAreClaimed, || schedule::<Store<u64, u64>>(program, 20_000)), "an end that was put off was lost");
}
