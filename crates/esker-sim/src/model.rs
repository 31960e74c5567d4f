//! The reference model and the operations it is driven with.
//!
//! The theory: a store is a map from bytes to bytes. [`Model`] is that map, written so that it is right
//! at a glance; [`Operation`] is everything a caller may do; [`Generator`] draws operations from a seed,
//! on a few hot keys (so that the same record is updated in place, copied and deleted again and again)
//! and many cold ones (so that the log and the index grow). When a device fails, an operation that gave
//! an error may or may not have happened: [`Uncertain`] keeps every state a key may be in.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashMap};

/// A key or a value, as bytes.
pub type Bytes = Vec<u8>;

/// The types of keys and values of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `u64` to `u64`.
    Pairs,
    /// `u64` to `[u8; 24]`.
    Records,
    /// `[u8]` to `[u8]`.
    Blobs,
    /// `str` to `[u8]`.
    Named,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 4] = [Layout::Pairs, Layout::Records, Layout::Blobs, Layout::Named];

    /// The size of a value, where it is fixed.
    pub fn width(self) -> Option<usize> {
        match self {
            Layout::Pairs => Some(8),
            Layout::Records => Some(24),
            Layout::Blobs | Layout::Named => None,
        }
    }

    /// The key number `id`; different numbers give different keys.
    pub fn key(self, id: u64) -> Bytes {
        match self {
            Layout::Pairs | Layout::Records => id.to_le_bytes().to_vec(),
            Layout::Blobs => {
                let mut key = id.to_le_bytes().to_vec();
                key.resize(8 + (id % 41) as usize, id as u8);
                key
            }
            Layout::Named => format!("{id}-{}", "é".repeat((id % 37) as usize)).into_bytes(),
        }
    }
}

/// Something done to a store.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// Reads a value.
    Get(Bytes),
    /// Reads a value through a view.
    View(Bytes),
    /// Stores a value.
    Put(Bytes, Bytes),
    /// Changes a value with [`change`] and this operand.
    Rmw(Bytes, u8),
    /// Appends bytes to a value.
    Append(Bytes, Bytes),
    /// Deletes a key.
    Delete(Bytes),
    /// Stores a value where there is none.
    PutIfAbsent(Bytes, Bytes),
    /// Stores a value where there is one, by its version.
    PutIfSame(Bytes, Bytes),
    /// Makes one value, or none, of another.
    Swap(Bytes, Option<Bytes>, Option<Bytes>),
    /// Takes the value that is there away, if it is still there.
    Take(Bytes),
    /// Asks whether a key is there.
    Contains(Bytes),
    /// Reads several values.
    GetMany(Vec<Bytes>),
    /// Stores several values, the last of a key winning.
    PutMany(Vec<(Bytes, Bytes)>),
    /// Changes several values with [`change`], each with the [`operand`] of its key.
    RmwMany(Vec<Bytes>),
    /// Appends to several values, in order.
    AppendMany(Vec<(Bytes, Bytes)>),
    /// Deletes several keys.
    DeleteMany(Vec<Bytes>),
    /// Stores a value for so many milliseconds.
    PutTtl(Bytes, Bytes, u64),
    /// Ends a key so many milliseconds from now.
    EndAfter(Bytes, u64),
    /// Reads a value, and puts its end off until so many milliseconds from now.
    Renew(Bytes, u64),
    /// Takes the end of a key back.
    Persist(Bytes),
    /// Asks how long a key stays.
    Ttl(Bytes),
    /// So many milliseconds pass.
    Pass(u64),
    /// Does operations on single keys in one transaction.
    Transaction(Vec<Operation>),
    /// Sets the budget, in bytes.
    SetMemory(u64),
    /// Closes the store and opens it again.
    Reopen,
}

impl std::fmt::Debug for Operation {
    /// Values may be long: what is shown is their length and beginning.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Operation::Get(k) => write!(f, "Get({})", brief(k)),
            Operation::View(k) => write!(f, "View({})", brief(k)),
            Operation::Put(k, v) => write!(f, "Put({}, {})", brief(k), brief(v)),
            Operation::Rmw(k, by) => write!(f, "Rmw({}, {by})", brief(k)),
            Operation::Append(k, v) => write!(f, "Append({}, {})", brief(k), brief(v)),
            Operation::Delete(k) => write!(f, "Delete({})", brief(k)),
            Operation::PutIfAbsent(k, v) => write!(f, "PutIfAbsent({}, {})", brief(k), brief(v)),
            Operation::PutIfSame(k, v) => write!(f, "PutIfSame({}, {})", brief(k), brief(v)),
            Operation::Swap(k, old, new) => {
                let [old, new] = [old, new].map(|value| value.as_deref().map_or("nothing".to_owned(), brief));
                write!(f, "Swap({}, {old}, {new})", brief(k))
            }
            Operation::Take(k) => write!(f, "Take({})", brief(k)),
            Operation::Contains(k) => write!(f, "Contains({})", brief(k)),
            Operation::GetMany(k) => write!(f, "GetMany(of {})", k.len()),
            Operation::PutMany(p) => write!(f, "PutMany(of {})", p.len()),
            Operation::RmwMany(k) => write!(f, "RmwMany(of {})", k.len()),
            Operation::AppendMany(p) => write!(f, "AppendMany(of {})", p.len()),
            Operation::DeleteMany(k) => write!(f, "DeleteMany(of {})", k.len()),
            Operation::PutTtl(k, v, ms) => write!(f, "PutTtl({}, {}, {ms})", brief(k), brief(v)),
            Operation::EndAfter(k, ms) => write!(f, "EndAfter({}, {ms})", brief(k)),
            Operation::Renew(k, ms) => write!(f, "Renew({}, {ms})", brief(k)),
            Operation::Persist(k) => write!(f, "Persist({})", brief(k)),
            Operation::Ttl(k) => write!(f, "Ttl({})", brief(k)),
            Operation::Pass(ms) => write!(f, "Pass({ms})"),
            Operation::Transaction(operations) => write!(f, "Transaction({operations:?})"),
            Operation::SetMemory(bytes) => write!(f, "SetMemory({bytes})"),
            Operation::Reopen => write!(f, "Reopen"),
        }
    }
}

/// Bytes for a message: their length and how they begin.
pub fn brief(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(12).map(|b| format!("{b:02x}")).collect();
    format!("{}:{shown}{}", bytes.len(), if bytes.len() > 12 { ".." } else { "" })
}

/// What a conditional write asks, and what it makes of the key if that is so.
struct Condition<'a> {
    key: &'a Bytes,
    expected: Expected<'a>,
    new: Option<&'a Bytes>,
}

enum Expected<'a> {
    Nothing,
    Something,
    Just(&'a [u8]),
}

impl Operation {
    /// True if afterwards a key is gone that was there before, or not.
    pub fn deletes(&self, key: &Bytes) -> bool {
        match self {
            Operation::Delete(of) => of == key,
            Operation::DeleteMany(of) => of.contains(key),
            Operation::Transaction(operations) => operations.iter().any(|operation| operation.deletes(key)),
            _ => false,
        }
    }

    /// True for one on this single key.
    pub fn is_on(&self, key: &Bytes) -> bool {
        matches!(self, Operation::Delete(of) | Operation::Put(of, _) | Operation::Rmw(of, _) if of == key)
    }

    /// The conditional write that this is.
    fn condition(&self) -> Option<Condition<'_>> {
        let (key, expected, new) = match self {
            Operation::PutIfAbsent(key, new) => (key, Expected::Nothing, Some(new)),
            Operation::PutIfSame(key, new) => (key, Expected::Something, Some(new)),
            Operation::Swap(key, expected, new) => (key, expected.as_deref().map_or(Expected::Nothing, Expected::Just), new.as_ref()),
            Operation::Take(key) => (key, Expected::Something, None),
            _ => return None,
        };
        Some(Condition { key, expected, new })
    }
}

impl Condition<'_> {
    fn holds(&self, value: Option<&[u8]>) -> bool {
        match self.expected {
            Expected::Nothing => value.is_none(),
            Expected::Something => value.is_some(),
            Expected::Just(expected) => value == Some(expected),
        }
    }

    fn after(&self, value: Option<&[u8]>) -> Option<Bytes> {
        if self.holds(value) { self.new.cloned() } else { value.map(<[u8]>::to_vec) }
    }
}

/// What an operation gave.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to say.
    Done,
    /// A value or its absence.
    Value(Option<Bytes>),
    /// Several of them.
    Values(Vec<Option<Bytes>>),
    /// Whether the key was there.
    Flag(bool),
    /// A length or a number of keys.
    Count(usize),
    /// How many milliseconds a key stays: no key, no end, so many.
    Left(Option<Option<u64>>),
    /// What each operation of a transaction gave.
    All(Vec<Outcome>),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => write!(f, "Done"),
            Outcome::Value(None) => write!(f, "Absent"),
            Outcome::Value(Some(v)) => write!(f, "Value({})", brief(v)),
            Outcome::Values(v) => write!(f, "Values(of {})", v.len()),
            Outcome::Flag(b) => write!(f, "{b}"),
            Outcome::Count(n) => write!(f, "{n}"),
            Outcome::Left(left) => write!(f, "{left:?}"),
            Outcome::All(outcomes) => write!(f, "{outcomes:?}"),
        }
    }
}

/// Longer values are cut by [`change`], lest a hot key grow without end.
const LONGEST: usize = 100_000;

/// The change an rmw makes: of a fixed width, adds to the number in the first eight bytes; otherwise
/// appends a byte, keeping only the tail of what has grown too long.
pub fn change(old: Option<&[u8]>, by: u8, width: Option<usize>) -> Bytes {
    let mut value = old.unwrap_or_default().to_vec();
    let Some(width) = width else {
        if value.len() >= LONGEST {
            value.drain(..LONGEST - 100);
        }
        value.push(by);
        return value;
    };
    value.resize(width, 0);
    let mut number = [0; 8];
    number.copy_from_slice(&value[..8]);
    value[..8].copy_from_slice(&u64::from_le_bytes(number).wrapping_add(u64::from(by)).to_le_bytes());
    value
}

/// The operand of a key in [`Operation::RmwMany`]: it depends on the key, so that mixing up keys shows,
/// and on nothing else, so that the order of repeated keys does not matter.
pub fn operand(key: &[u8]) -> u8 {
    key.iter().fold(1, |sum: u8, b| sum.wrapping_mul(31).wrapping_add(*b))
}

/// A map: what a store is supposed to be.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// What is in it.
    pub map: BTreeMap<Bytes, Bytes>,
    /// When those keys end that do, in milliseconds since the beginning. All in the future.
    pub ends: BTreeMap<Bytes, u64>,
    /// Milliseconds since the beginning.
    pub now: u64,
    width: Option<usize>,
}

impl Model {
    /// An empty one.
    pub fn new(layout: Layout) -> Model {
        Model { width: layout.width(), ..Model::default() }
    }

    /// Does an operation.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Get(key) | Operation::View(key) => Outcome::Value(self.map.get(key).cloned()),
            Operation::Contains(key) => Outcome::Flag(self.map.contains_key(key)),
            Operation::Put(key, value) => self.put(key, value),
            Operation::Rmw(key, by) => Outcome::Value(Some(self.rmw(key, *by))),
            Operation::Append(key, bytes) => Outcome::Count(self.append(key, bytes)),
            Operation::Delete(key) => Outcome::Flag(self.remove(key)),
            Operation::PutIfAbsent(..) | Operation::PutIfSame(..) | Operation::Swap(..) | Operation::Take(..) => {
                Outcome::Flag(operation.condition().is_some_and(|condition| self.swap(&condition)))
            }
            Operation::GetMany(keys) => Outcome::Values(keys.iter().map(|k| self.map.get(k).cloned()).collect()),
            Operation::PutMany(pairs) => {
                for (key, value) in pairs {
                    self.put(key, value);
                }
                Outcome::Done
            }
            Operation::RmwMany(keys) => {
                for key in keys {
                    self.rmw(key, operand(key));
                }
                Outcome::Done
            }
            Operation::AppendMany(pairs) => {
                for (key, bytes) in pairs {
                    self.append(key, bytes);
                }
                Outcome::Done
            }
            Operation::DeleteMany(keys) => Outcome::Count(keys.iter().filter(|k| self.remove(k)).count()),
            Operation::PutTtl(key, value, ms) => {
                self.put(key, value);
                self.end(key, *ms);
                Outcome::Done
            }
            Operation::EndAfter(key, ms) => {
                let was_there = self.map.contains_key(key);
                if was_there {
                    self.end(key, *ms);
                }
                Outcome::Flag(was_there)
            }
            Operation::Renew(key, ms) => {
                if let Some(end) = self.ends.get_mut(key).filter(|end| **end < self.now + ms) {
                    // An eighth of the time too late, and no oftener than that.
                    *end = self.now + ms + ms / 8;
                }
                Outcome::Value(self.map.get(key).cloned())
            }
            Operation::Persist(key) => Outcome::Flag(self.ends.remove(key).is_some()),
            Operation::Ttl(key) => Outcome::Left(self.map.get(key).map(|_| self.ends.get(key).map(|end| end - self.now))),
            Operation::Pass(ms) => {
                self.now += ms;
                let ended: Vec<Bytes> = self.ends.iter().filter(|(_, end)| **end <= self.now).map(|(key, _)| key.clone()).collect();
                ended.iter().for_each(|key| _ = self.remove(key));
                Outcome::Done
            }
            Operation::Transaction(operations) => Outcome::All(operations.iter().map(|operation| self.apply(operation)).collect()),
            Operation::SetMemory(_) | Operation::Reopen => Outcome::Done,
        }
    }

    /// A key is gone that nobody deleted.
    pub fn drop(&mut self, key: &Bytes) {
        self.remove(key);
    }

    fn put(&mut self, key: &Bytes, value: &Bytes) -> Outcome {
        self.map.insert(key.clone(), value.clone());
        self.ends.remove(key);
        Outcome::Done
    }

    fn swap(&mut self, condition: &Condition<'_>) -> bool {
        let holds = condition.holds(self.map.get(condition.key).map(Vec::as_slice));
        match condition.new {
            // It keeps its end.
            Some(new) if holds => _ = self.map.insert(condition.key.clone(), new.clone()),
            None if holds => _ = self.remove(condition.key),
            _ => {}
        }
        holds
    }

    fn append(&mut self, key: &Bytes, bytes: &[u8]) -> usize {
        let value = self.map.entry(key.clone()).or_default();
        value.extend_from_slice(bytes);
        value.len()
    }

    fn remove(&mut self, key: &Bytes) -> bool {
        self.ends.remove(key);
        self.map.remove(key).is_some()
    }

    /// A key that is there ends so many milliseconds from now.
    fn end(&mut self, key: &Bytes, ms: u64) {
        if ms == 0 {
            self.remove(key);
        } else {
            self.ends.insert(key.clone(), self.now + ms);
        }
    }

    fn rmw(&mut self, key: &Bytes, by: u8) -> Bytes {
        let value = change(self.map.get(key).map(Vec::as_slice), by, self.width);
        self.map.insert(key.clone(), value.clone());
        value
    }
}

/// Every state each key may be in when operations may have failed half-way.
#[derive(Debug)]
pub struct Uncertain {
    states: HashMap<Bytes, Vec<Option<Bytes>>>,
    width: Option<usize>,
}

impl Uncertain {
    /// One in which every key is surely absent.
    pub fn new(layout: Layout) -> Uncertain {
        Uncertain { states: HashMap::new(), width: layout.width() }
    }

    /// The keys ever written.
    pub fn keys(&self) -> Vec<Bytes> {
        self.states.keys().cloned().collect()
    }

    /// Takes note of an operation and what it gave (`None`: an error); says what is wrong if the outcome
    /// fits no state the keys may have been in.
    pub fn observe(&mut self, operation: &Operation, outcome: Option<&Outcome>) -> Result<(), String> {
        if let (Operation::Transaction(operations), Some(Outcome::All(outcomes))) = (operation, outcome) {
            return operations.iter().zip(outcomes).try_for_each(|(operation, outcome)| self.observe(operation, Some(outcome)));
        }
        let fine = match (operation, outcome) {
            (Operation::Get(key) | Operation::View(key), Some(Outcome::Value(seen))) => self.narrow(key, |s| s == seen),
            (Operation::Contains(key), Some(Outcome::Flag(there))) => self.narrow(key, |s| s.is_some() == *there),
            (Operation::GetMany(keys), Some(Outcome::Values(seen))) => {
                keys.len() == seen.len() && keys.iter().zip(seen).all(|(k, v)| self.narrow(k, |s| s == v))
            }
            (Operation::Rmw(key, by), Some(Outcome::Value(new))) => {
                self.transform(key, true, |s, w| Some(change(s, *by, w)));
                self.narrow(key, |s| s == new)
            }
            (Operation::Append(key, bytes), Some(Outcome::Count(length))) => {
                self.transform(key, true, |s, _| Some(appended(s, bytes)));
                self.narrow(key, |s| s.as_ref().is_some_and(|v| v.len() == *length))
            }
            (Operation::Delete(key), Some(Outcome::Flag(there))) => {
                let fits = self.narrow(key, |s| s.is_some() == *there);
                self.transform(key, true, |_, _| None);
                fits
            }
            (operation, outcome) => {
                let fits = match (operation.condition(), outcome) {
                    (Some(condition), Some(Outcome::Flag(done))) => self.narrow(condition.key, |s| condition.holds(s.as_deref()) == *done),
                    _ => true,
                };
                self.write(operation, outcome.is_some());
                fits
            }
        };
        if fine { Ok(()) } else { Err(format!("{operation:?} gave {outcome:?}, which no history explains")) }
    }

    /// A write whose outcome says only whether it happened, or perhaps happened.
    fn write(&mut self, operation: &Operation, surely: bool) {
        match operation {
            Operation::Put(key, value) => self.transform(key, surely, |_, _| Some(value.clone())),
            Operation::PutMany(pairs) => {
                for (key, value) in pairs {
                    self.transform(key, surely, |_, _| Some(value.clone()));
                }
            }
            Operation::Rmw(key, by) => self.transform(key, surely, |s, w| Some(change(s, *by, w))),
            Operation::RmwMany(keys) => {
                for key in keys {
                    self.transform(key, surely, |s, w| Some(change(s, operand(key), w)));
                }
            }
            Operation::Append(key, bytes) => self.transform(key, surely, |s, _| Some(appended(s, bytes))),
            Operation::AppendMany(pairs) => {
                for (key, bytes) in pairs {
                    self.transform(key, surely, |s, _| Some(appended(s, bytes)));
                }
            }
            Operation::Delete(key) => self.transform(key, surely, |_, _| None),
            Operation::DeleteMany(keys) => {
                for key in keys {
                    self.transform(key, surely, |_, _| None);
                }
            }
            // That all or none of it happened is for the crash lane to judge.
            Operation::Transaction(operations) => operations.iter().for_each(|operation| self.write(operation, surely)),
            _ => {
                if let Some(condition) = operation.condition() {
                    self.transform(condition.key, surely, |s, _| condition.after(s));
                }
            }
        }
    }

    /// Keeps the states that fit; false if none does.
    fn narrow(&mut self, key: &Bytes, fits: impl Fn(&Option<Bytes>) -> bool) -> bool {
        match self.states.get_mut(key) {
            None => fits(&None),
            Some(states) => {
                states.retain(fits);
                !states.is_empty()
            }
        }
    }

    fn transform(&mut self, key: &Bytes, surely: bool, f: impl Fn(Option<&[u8]>, Option<usize>) -> Option<Bytes>) {
        let width = self.width;
        let states = self.states.entry(key.clone()).or_insert_with(|| vec![None]);
        let mut after: Vec<Option<Bytes>> = states.iter().map(|s| f(s.as_deref(), width)).collect();
        if !surely {
            after.append(states);
        }
        after.sort_unstable();
        after.dedup();
        *states = after;
    }
}

fn appended(old: Option<&[u8]>, bytes: &[u8]) -> Bytes {
    [old.unwrap_or_default(), bytes].concat()
}

/// How a sequence looks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The types of the store.
    pub layout: Layout,
    /// The number of keys used over and over.
    pub hot: u64,
    /// The number of other keys.
    pub cold: u64,
    /// Most values of variable size are shorter than this; a few are longer.
    pub typical: usize,
    /// One value in this many is longer than 64 KiB; 0 for none.
    pub huge_every: u32,
    /// The most keys in a batch.
    pub batch: usize,
    /// Of a hundred operations, how many are batches of puts of cold keys.
    pub filling: u32,
    /// Whether the store may be closed and opened.
    pub reopens: bool,
    /// Whether keys may end by themselves.
    pub ends: bool,
}

/// Draws operations from a seed.
#[derive(Debug)]
pub struct Generator {
    random: ChaCha8Rng,
    shape: Shape,
    fresh: u64,
}

impl Generator {
    /// The sequence of this seed and shape.
    pub fn new(seed: u64, shape: Shape) -> Generator {
        Generator { random: ChaCha8Rng::seed_from_u64(seed), shape, fresh: 0 }
    }

    /// The next operation.
    pub fn operation(&mut self) -> Operation {
        if self.random.random_range(0..100) < self.shape.filling {
            return self.fill();
        }
        if self.shape.ends && self.random.random_ratio(1, 4) {
            return self.ending();
        }
        match self.random.random_range(0..1000) {
            0..200 => Operation::Get(self.key()),
            200..280 => Operation::View(self.key()),
            280..440 => Operation::Put(self.key(), self.value()),
            440..500 => self.conditional(),
            500..640 => Operation::Rmw(self.key(), self.random.random()),
            640..740 => self.append(),
            740..820 => Operation::Delete(self.key()),
            820..870 => Operation::Contains(self.key()),
            870..910 => Operation::GetMany(self.keys()),
            910..940 => Operation::PutMany(self.pairs()),
            940..955 => Operation::RmwMany(self.keys()),
            955..965 => self.append_many(),
            965..980 => Operation::DeleteMany(self.keys()),
            980..990 => self.transaction(),
            990..996 => Operation::SetMemory(self.random.random_range(16..=24) << 20),
            _ if self.shape.reopens => Operation::Reopen,
            _ => Operation::Get(self.key()),
        }
    }

    /// Something about the end of a key. Most ends come within some dozens of operations.
    fn ending(&mut self) -> Operation {
        let ms = self.random.random_range(0..400);
        match self.random.random_range(0..100) {
            0..35 => Operation::PutTtl(self.key(), self.value(), ms),
            35..55 => Operation::EndAfter(self.key(), ms),
            55..62 => Operation::Persist(self.key()),
            62..72 => Operation::Renew(self.key(), ms),
            72..82 => Operation::Ttl(self.key()),
            _ => Operation::Pass(self.random.random_range(0..100)),
        }
    }

    /// A write on a condition. That a value is just another one is rare, unless values are short.
    fn conditional(&mut self) -> Operation {
        let (key, new) = (self.key(), self.value());
        match self.random.random_range(0..6) {
            0..2 => Operation::PutIfAbsent(key, new),
            2 => Operation::PutIfSame(key, new),
            3 => Operation::Take(key),
            4 => Operation::Swap(key, None, Some(new)),
            _ => {
                let expected = self.value();
                Operation::Swap(key, Some(expected), self.random.random::<bool>().then_some(new))
            }
        }
    }

    fn transaction(&mut self) -> Operation {
        let count = self.random.random_range(0..8);
        let one = |generator: &mut Self| match generator.random.random_range(0..7) {
            0 => Operation::Get(generator.key()),
            6 => Operation::GetMany((0..generator.random.random_range(0..8)).map(|_| generator.key()).collect()),
            1 => Operation::Delete(generator.key()),
            2 => Operation::Contains(generator.key()),
            3 => Operation::Put(generator.key(), generator.value()),
            4 => Operation::Rmw(generator.key(), generator.random.random()),
            _ => generator.append(),
        };
        Operation::Transaction((0..count).map(|_| one(self)).collect())
    }

    fn append(&mut self) -> Operation {
        match self.shape.layout.width() {
            Some(_) => Operation::Rmw(self.key(), 1),
            None => {
                let length = self.random.random_range(0..40);
                Operation::Append(self.key(), self.bytes(length))
            }
        }
    }

    fn append_many(&mut self) -> Operation {
        let keys = self.keys();
        if self.shape.layout.width().is_some() {
            return Operation::RmwMany(keys);
        }
        let pair = |key| {
            let length = self.random.random_range(0..40);
            (key, self.bytes(length))
        };
        Operation::AppendMany(keys.into_iter().map(pair).collect())
    }

    fn key(&mut self) -> Bytes {
        let id = match self.random.random_range(0..10) {
            0..6 => self.random.random_range(0..self.shape.hot),
            _ => self.shape.hot + self.random.random_range(0..self.shape.cold),
        };
        self.shape.layout.key(id)
    }

    fn keys(&mut self) -> Vec<Bytes> {
        let count = self.random.random_range(0..=self.shape.batch.min(100));
        (0..count).map(|_| self.key()).collect()
    }

    fn pairs(&mut self) -> Vec<(Bytes, Bytes)> {
        let count = self.random.random_range(0..=self.shape.batch.min(100));
        (0..count).map(|_| (self.key(), self.value())).collect()
    }

    /// The next cold keys in turn, so that the data grows to its full size.
    fn fill(&mut self) -> Operation {
        let pairs = (0..self.shape.batch).map(|_| {
            self.fresh = (self.fresh + 1) % self.shape.cold;
            (self.shape.layout.key(self.shape.hot + self.fresh), self.value())
        });
        Operation::PutMany(pairs.collect())
    }

    /// A value: of its width, or empty, short, typical or huge.
    pub fn value(&mut self) -> Bytes {
        if let Some(width) = self.shape.layout.width() {
            return self.bytes(width);
        }
        if self.shape.huge_every > 0 && self.random.random_ratio(1, self.shape.huge_every) {
            let length = self.random.random_range(65_000..140_000);
            return self.bytes(length);
        }
        let longest = match self.random.random_range(0..20) {
            0 => 1,
            1..5 => 32.min(self.shape.typical),
            _ => self.shape.typical,
        };
        let length = self.random.random_range(0..longest);
        self.bytes(length)
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        let mut word: u64 = self.random.random();
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&word.to_le_bytes());
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        bytes.truncate(length);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { layout: Layout::Blobs, hot: 4, cold: 50, typical: 100, huge_every: 50, batch: 10, filling: 5, reopens: true, ends: true };

    #[test]
    fn a_seed_gives_one_sequence() {
        let (mut one, mut two) = (Generator::new(9, SHAPE), Generator::new(9, SHAPE));
        assert!((0..500).all(|_| one.operation() == two.operation()));
        let mut other = Generator::new(10, SHAPE);
        assert!((0..500).any(|_| one.operation() != other.operation()));
    }

    #[test]
    fn the_model_answers_as_a_map() {
        let mut model = Model::new(Layout::Blobs);
        let key = vec![1];
        assert_eq!(model.apply(&Operation::Delete(key.clone())), Outcome::Flag(false));
        assert_eq!(model.apply(&Operation::Rmw(key.clone(), 7)), Outcome::Value(Some(vec![7])));
        assert_eq!(model.apply(&Operation::Append(key.clone(), vec![8, 9])), Outcome::Count(3));
        assert_eq!(model.apply(&Operation::Get(key.clone())), Outcome::Value(Some(vec![7, 8, 9])));
        assert_eq!(model.apply(&Operation::DeleteMany(vec![key.clone(), key])), Outcome::Count(1));
    }

    #[test]
    fn the_model_ends_keys() {
        let mut model = Model::new(Layout::Blobs);
        let key = vec![1];
        model.apply(&Operation::PutTtl(key.clone(), vec![2], 10));
        assert_eq!(model.apply(&Operation::Pass(9)), Outcome::Done);
        assert_eq!(model.apply(&Operation::Ttl(key.clone())), Outcome::Left(Some(Some(1))));
        assert_eq!(model.apply(&Operation::Append(key.clone(), vec![3])), Outcome::Count(2));
        model.apply(&Operation::Pass(1));
        assert_eq!(model.apply(&Operation::Ttl(key.clone())), Outcome::Left(None));
        assert_eq!(model.apply(&Operation::Append(key.clone(), vec![3])), Outcome::Count(1));
        assert_eq!(model.apply(&Operation::Ttl(key.clone())), Outcome::Left(Some(None)));
        assert_eq!(model.apply(&Operation::EndAfter(key.clone(), 0)), Outcome::Flag(true));
        assert_eq!(model.apply(&Operation::Persist(key)), Outcome::Flag(false));
    }

    #[test]
    fn keys_differ() {
        for layout in Layout::ALL {
            let keys: std::collections::HashSet<Bytes> = (0..5000).map(|id| layout.key(id)).collect();
            assert_eq!(keys.len(), 5000);
        }
    }

    #[test]
    fn uncertainty_grows_with_errors_and_shrinks_with_sight() {
        let mut uncertain = Uncertain::new(Layout::Pairs);
        let (key, value) = (Layout::Pairs.key(1), 5u64.to_le_bytes().to_vec());
        let get = Operation::Get(key.clone());
        uncertain.observe(&Operation::Put(key.clone(), value.clone()), None).unwrap();
        assert!(uncertain.observe(&get, Some(&Outcome::Value(Some(value)))).is_ok());
        assert!(uncertain.observe(&get, Some(&Outcome::Value(None))).is_err());
    }
}
