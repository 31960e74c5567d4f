//! Concurrent histories and whether they are linearizable.
//!
//! The theory: each operation has a moment of calling and one of returning, read from one global clock.
//! A history is linearizable when every operation can be given one instant between its two moments so
//! that, carried out in that order by one thread, each gives what it gave. Keys are independent, so each
//! key is judged alone; but not where transactions touch several ([`Together`]): then the state is all keys, and what is
//! judged is strict serializability. The search is Wing and Gong's with Lowe's memoisation: walk the events in order,
//! try each operation that had been called before the first return not yet explained, and back up when
//! none fits; a set of (operations done, state) pairs already tried keeps it from trying twice.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of one key: its value, or nothing.
pub type State = Option<Vec<u8>>;

/// What was asked and what came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A read that gave this.
    Get(State),
    /// A question of presence and its answer.
    Contains(bool),
    /// A value stored.
    Put(Vec<u8>),
    /// A number added to the counter (little-endian in the first eight bytes, nothing being zero), and the
    /// value that came of it.
    Add(u64, Vec<u8>),
    /// A delete, and whether the key was there.
    Delete(bool),
    /// Bytes appended, and the length that came of it.
    Append(Vec<u8>, usize),
    /// A first state replaced by a second, if it was the key's: whether it was.
    Swap(State, State, bool),
}

/// What may happen to a key that ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// What does not concern its end. A value stored stays; one that is changed keeps its end.
    Action(Action),
    /// A value stored until then.
    PutUntil(Vec<u8>, u64),
    /// Its end set, to a time to come or to none, and whether there was a key; for none, whether there was an end.
    Until(Option<u64>, bool),
    /// It is that time.
    Pass(u64),
}

impl Lasting {
    /// True for what changes nothing, for it saw no value.
    fn finds_nothing(&self) -> bool {
        match self {
            Lasting::Action(Action::Get(seen)) => seen.is_none(),
            Lasting::Action(Action::Contains(there)) => !there,
            Lasting::Action(Action::Swap(expected, _, done)) => expected.is_some() && !done,
            Lasting::Until(_, answer) => !answer,
            _ => false,
        }
    }
}

/// A key that ends by itself: its value and when that ends, if it does; and what time it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lapsing {
    value: State,
    end: Option<u64>,
    now: u64,
}

/// What a history is made of.
pub trait Effect: Clone {
    /// What it acts on.
    type State: Clone + Default + Eq + std::hash::Hash;

    /// The state after this on `state`, or `None` if it could not have answered so.
    fn step(&self, state: &Self::State) -> Option<Self::State>;
}

/// Actions on several keys at one moment, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together(pub Vec<(u64, Action)>);

impl Effect for Together {
    type State = BTreeMap<u64, Vec<u8>>;

    fn step(&self, state: &Self::State) -> Option<Self::State> {
        let mut state = state.clone();
        for (key, action) in &self.0 {
            let after = action.step(&state.remove(key))?;
            state.extend(after.map(|value| (*key, value)));
        }
        Some(state)
    }
}

impl Effect for Lasting {
    type State = Lapsing;

    fn step(&self, state: &Lapsing) -> Option<Lapsing> {
        let mut after = state.clone();
        match self {
            Lasting::Action(action) => {
                after.value = action.step(&state.value)?;
                let stays = matches!(action, Action::Put(_)) || after.value.is_none();
                after.end = after.end.filter(|_| !stays);
            }
            Lasting::PutUntil(value, end) => (after.value, after.end) = (Some(value.clone()), Some(*end)),
            Lasting::Until(end, answer) => {
                if *answer != (state.value.is_some() && (end.is_some() || state.end.is_some())) {
                    return None;
                }
                after.end = end.filter(|_| state.value.is_some());
            }
            Lasting::Pass(now) => after.now = *now,
        }
        if after.end.is_some_and(|end| end <= after.now) {
            (after.value, after.end) = (None, None);
        }
        Some(after)
    }
}

impl Effect for Action {
    type State = State;

    fn step(&self, state: &State) -> Option<State> {
        match self {
            Action::Get(seen) => (seen == state).then(|| state.clone()),
            Action::Contains(there) => (*there == state.is_some()).then(|| state.clone()),
            Action::Put(value) => Some(Some(value.clone())),
            Action::Add(by, result) => (&add(state.as_deref(), *by) == result).then(|| Some(result.clone())),
            Action::Delete(there) => (*there == state.is_some()).then_some(None),
            Action::Append(bytes, length) => {
                let mut value = state.clone().unwrap_or_default();
                value.extend_from_slice(bytes);
                (value.len() == *length).then_some(Some(value))
            }
            Action::Swap(expected, new, done) => {
                let after = if *done { new } else { state };
                (*done == (expected == state)).then(|| after.clone())
            }
        }
    }
}

/// The counter after adding `by`: the first eight bytes are the number, the rest stays.
pub fn add(old: Option<&[u8]>, by: u64) -> Vec<u8> {
    let mut value = old.unwrap_or_default().to_vec();
    value.resize(value.len().max(8), 0);
    let mut number = [0; 8];
    number.copy_from_slice(&value[..8]);
    value[..8].copy_from_slice(&u64::from_le_bytes(number).wrapping_add(by).to_le_bytes());
    value
}

/// One finished operation.
#[derive(Clone, Debug)]
pub struct Event<E = Action> {
    /// The key it concerned.
    pub key: u64,
    /// When it was called.
    pub called: u64,
    /// When it returned.
    pub returned: u64,
    /// What it was.
    pub action: E,
}

/// The clock every thread reads; each reading is a new moment.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The next moment.
    pub fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// What one thread did.
#[derive(Debug)]
pub struct Recorder<'c, E = Action> {
    clock: &'c Clock,
    events: Vec<Event<E>>,
}

impl<'c, E> Recorder<'c, E> {
    /// An empty record on this clock.
    pub fn new(clock: &'c Clock) -> Recorder<'c, E> {
        Recorder { clock, events: Vec::new() }
    }

    /// Does an operation on a key between two readings of the clock and records what it says it did.
    pub fn record(&mut self, key: u64, operation: impl FnOnce() -> E) {
        self.record_if(key, || Some(operation()));
    }

    /// The same for an operation that may have done nothing at all, which then is no part of the history.
    pub fn record_if(&mut self, key: u64, operation: impl FnOnce() -> Option<E>) {
        let called = self.clock.now();
        let Some(action) = operation() else { return };
        let returned = self.clock.now();
        self.events.push(Event { key, called, returned, action });
    }

    /// The record.
    pub fn finish(self) -> Vec<Event<E>> {
        self.events
    }
}

/// Parts a history by keys.
pub fn by_key<E>(events: impl IntoIterator<Item = Event<E>>) -> BTreeMap<u64, Vec<Event<E>>> {
    let mut parts: BTreeMap<u64, Vec<Event<E>>> = BTreeMap::new();
    for event in events {
        parts.entry(event.key).or_default().push(event);
    }
    parts
}

/// The history of a key that ends without what only looked, and found nothing, while its end was put off. Such a call counts from when it
/// began; but if the end passed before it was done, others may have found the key absent meanwhile.
pub fn without_late_looks(mut events: Vec<Event<Lasting>>) -> Vec<Event<Lasting>> {
    let put_off: Vec<_> = events.iter().filter(|e| matches!(e.action, Lasting::Until(_, true))).map(|e| e.called..e.returned).collect();
    let is_late = |e: &Event<Lasting>| put_off.iter().any(|during| e.called < during.end && during.start < e.returned);
    events.retain(|e| !(e.action.finds_nothing() && is_late(e)));
    events
}

/// Judges a history, of one key that began absent or of several: `Err` holds the events round the place where no order fits.
///
/// # Errors
/// Those events.
pub fn check<E: Effect>(events: &[Event<E>]) -> Result<(), Vec<Event<E>>> {
    Search::new(events).run()
}

/// The moments in order as a doubly linked list, so that an operation is lifted out and put back at O(1).
/// Node 0 is the head; operation `i` has the nodes `2i + 1` (call) and `2i + 2` (return).
struct Search<'e, E: Effect> {
    events: &'e [Event<E>],
    next: Vec<usize>,
    previous: Vec<usize>,
    done: Vec<u64>,
    tried: HashSet<(Vec<u64>, E::State)>,
    trail: Vec<(usize, E::State)>,
    furthest: (usize, usize),
}

const HEAD: usize = 0;

impl<'e, E: Effect> Search<'e, E> {
    fn new(events: &'e [Event<E>]) -> Search<'e, E> {
        let mut moments: Vec<(u64, usize)> = Vec::with_capacity(events.len() * 2);
        for (i, event) in events.iter().enumerate() {
            moments.push((event.called, 2 * i + 1));
            moments.push((event.returned, 2 * i + 2));
        }
        moments.sort_unstable();
        let mut search = Search {
            events,
            next: vec![HEAD; events.len() * 2 + 1],
            previous: vec![HEAD; events.len() * 2 + 1],
            done: vec![0; events.len().div_ceil(64)],
            tried: HashSet::new(),
            trail: Vec::new(),
            furthest: (0, 0),
        };
        let mut last = HEAD;
        for (_, node) in moments {
            search.next[last] = node;
            search.previous[node] = last;
            last = node;
        }
        search
    }

    fn run(mut self) -> Result<(), Vec<Event<E>>> {
        let mut state = E::State::default();
        let mut node = self.next[HEAD];
        while self.next[HEAD] != HEAD {
            let is_call = node % 2 == 1;
            if is_call {
                let operation = (node - 1) / 2;
                match self.advance(operation, &state) {
                    Some(after) => {
                        self.trail.push((operation, std::mem::replace(&mut state, after)));
                        self.lift(operation);
                        node = self.next[HEAD];
                    }
                    None => node = self.next[node],
                }
                continue;
            }
            // A return not explained (or the end): back up and try the next one in place of the last.
            if node != HEAD && self.trail.len() >= self.furthest.0 {
                self.furthest = (self.trail.len(), (node - 1) / 2);
            }
            let Some((operation, before)) = self.trail.pop() else { return Err(self.blame()) };
            self.put_back(operation);
            state = before;
            node = self.next[2 * operation + 1];
        }
        Ok(())
    }

    /// The state after `operation` if it fits and the pair was not tried yet.
    fn advance(&mut self, operation: usize, state: &E::State) -> Option<E::State> {
        let after = self.events[operation].action.step(state)?;
        let mut done = self.done.clone();
        done[operation / 64] |= 1 << (operation % 64);
        self.tried.insert((done, after.clone())).then_some(after)
    }

    fn lift(&mut self, operation: usize) {
        self.done[operation / 64] |= 1 << (operation % 64);
        for node in [2 * operation + 1, 2 * operation + 2] {
            let (before, after) = (self.previous[node], self.next[node]);
            self.next[before] = after;
            if after != HEAD {
                self.previous[after] = before;
            }
        }
    }

    fn put_back(&mut self, operation: usize) {
        self.done[operation / 64] &= !(1 << (operation % 64));
        for node in [2 * operation + 2, 2 * operation + 1] {
            let (before, after) = (self.previous[node], self.next[node]);
            self.next[before] = node;
            if after != HEAD {
                self.previous[after] = node;
            }
        }
    }

    /// The events overlapping the one that could not be explained, and a few before it, in order of calling.
    fn blame(&self) -> Vec<Event<E>> {
        let culprit = &self.events[self.furthest.1];
        let from = culprit.called.saturating_sub(40);
        let near = |e: &&Event<E>| e.returned >= from && e.called <= culprit.returned;
        let mut events: Vec<Event<E>> = self.events.iter().filter(near).cloned().collect();
        events.sort_by_key(|e| e.called);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(called: u64, returned: u64, action: Action) -> Event {
        Event { key: 0, called, returned, action }
    }

    fn number(n: u64) -> Vec<u8> {
        n.to_le_bytes().to_vec()
    }

    #[test]
    fn accepts_a_sequence() {
        let history = [
            event(0, 1, Action::Get(None)),
            event(2, 3, Action::Put(number(5))),
            event(4, 5, Action::Add(2, number(7))),
            event(6, 7, Action::Get(Some(number(7)))),
            event(8, 9, Action::Delete(true)),
            event(10, 11, Action::Delete(false)),
            event(12, 13, Action::Append(vec![1, 2], 2)),
            event(14, 15, Action::Contains(true)),
        ];
        assert!(check(&history).is_ok());
        assert!(check::<Action>(&[]).is_ok());
    }

    #[test]
    fn accepts_overlapping_operations_in_any_order_that_fits() {
        let history = [
            event(0, 9, Action::Put(number(1))),
            event(1, 8, Action::Put(number(2))),
            event(2, 3, Action::Get(Some(number(2)))),
            event(4, 5, Action::Get(Some(number(1)))),
            event(10, 11, Action::Get(Some(number(1)))),
        ];
        assert!(check(&history).is_ok());
    }

    #[test]
    fn rejects_a_stale_read() {
        let history = [event(0, 1, Action::Put(number(1))), event(2, 3, Action::Put(number(2))), event(4, 5, Action::Get(Some(number(1))))];
        assert!(!check(&history).unwrap_err().is_empty());
    }

    #[test]
    fn rejects_reads_that_go_back() {
        let history = [
            event(0, 1, Action::Put(number(1))),
            event(2, 20, Action::Put(number(2))),
            event(3, 4, Action::Get(Some(number(2)))),
            event(5, 6, Action::Get(Some(number(1)))),
        ];
        assert!(check(&history).is_err());
    }

    #[test]
    fn rejects_a_lost_update() {
        let history = [event(0, 1, Action::Put(number(0))), event(2, 5, Action::Add(1, number(1))), event(3, 6, Action::Add(1, number(1)))];
        assert!(check(&history).is_err());
    }

    #[test]
    fn rejects_a_delete_twice_and_a_lost_append() {
        let twice = [event(0, 1, Action::Put(number(0))), event(2, 5, Action::Delete(true)), event(3, 6, Action::Delete(true))];
        assert!(check(&twice).is_err());
        let lost = [event(0, 5, Action::Append(vec![1], 1)), event(1, 6, Action::Append(vec![2], 1))];
        assert!(check(&lost).is_err());
    }

    #[test]
    fn rejects_two_swaps_of_one_value() {
        let swap = |called, returned, new| event(called, returned, Action::Swap(None, Some(number(new)), true));
        assert!(check(&[swap(0, 5, 1), event(6, 7, Action::Get(Some(number(1))))]).is_ok());
        assert!(check(&[swap(0, 5, 1), swap(1, 6, 2)]).is_err());
        assert!(check(&[event(0, 1, Action::Swap(None, None, false))]).is_err());
    }

    #[test]
    fn accepts_and_rejects_ends() {
        let event = |called, action| Event { key: 0, called, returned: called + 1, action };
        let get = |called, seen: Option<u64>| event(called, Lasting::Action(Action::Get(seen.map(number))));
        let ends = [event(0, Lasting::PutUntil(number(1), 5)), event(2, Lasting::Pass(4)), get(4, Some(1)), event(6, Lasting::Pass(5))];
        let and = |more: &[Event<Lasting>]| check(&[&ends[..], more].concat()).is_ok();
        assert!(and(&[get(8, None)]) && !and(&[get(8, Some(1))]));
        assert!(and(&[event(8, Lasting::Until(None, false))]) && !and(&[event(8, Lasting::Until(Some(9), true))]));
        let put_off = [event(0, Lasting::PutUntil(number(1), 5)), event(2, Lasting::Until(None, true)), event(4, Lasting::Pass(5))];
        assert!(check(&[&put_off[..], &[get(8, Some(1))]].concat()).is_ok());
        // While time passes both may be seen, but not first the later.
        let mut passing = ends.clone();
        passing[3].returned = 20;
        assert!(check(&[&passing[..], &[get(8, Some(1)), get(10, None)]].concat()).is_ok());
        assert!(check(&[&passing[..], &[get(8, None), get(10, Some(1))]].concat()).is_err());
    }

    /// Each reads what the other writes and writes something else: whoever is first, the other would have seen it.
    #[test]
    fn rejects_a_write_skew_and_a_long_fork() {
        let together = |called, returned, actions: &[(u64, Action)]| Event { key: 0, called, returned, action: Together(actions.to_vec()) };
        let (get, put) = (|seen: Option<u64>| Action::Get(seen.map(number)), |n| Action::Put(number(n)));
        let skew = [together(0, 9, &[(1, get(None)), (2, put(1))]), together(1, 8, &[(2, get(None)), (1, put(1))])];
        assert!(check(&skew).is_err());
        let seen = [together(0, 9, &[(1, get(None)), (2, put(1))]), together(1, 8, &[(2, get(Some(1))), (1, put(1))])];
        assert!(check(&seen).is_ok());
        let (one, other) = (together(0, 90, &[(1, put(1))]), together(1, 91, &[(2, put(1))]));
        let fork = [
            one.clone(),
            other.clone(),
            together(2, 80, &[(1, get(Some(1))), (2, get(None))]),
            together(3, 81, &[(2, get(Some(1))), (1, get(None))]),
        ];
        assert!(check(&fork).is_err() && check(&fork[..3]).is_ok());
    }

    /// A long history made by a real register, then the same with one read spoiled.
    #[test]
    fn judges_a_recorded_history_of_threads() {
        let clock = Clock::default();
        let cell = std::sync::Mutex::new(None);
        let mut events = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| exercise(&clock, &cell))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(check(&events).is_ok());
        let spoiled = events.iter().position(|e| matches!(e.action, Action::Get(Some(_)))).unwrap();
        events[spoiled].action = Action::Get(Some(number(u64::MAX)));
        assert!(check(&events).is_err());
    }

    fn exercise(clock: &Clock, cell: &std::sync::Mutex<State>) -> Vec<Event> {
        let mut recorder = Recorder::new(clock);
        for _ in 0..500 {
            recorder.record(0, || {
                let mut state = cell.lock().unwrap();
                let result = add(state.as_deref(), 1);
                *state = Some(result.clone());
                Action::Add(1, result)
            });
            recorder.record(0, || Action::Get(cell.lock().unwrap().clone()));
        }
        recorder.finish()
    }
}
