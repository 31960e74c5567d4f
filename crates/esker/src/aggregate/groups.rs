//! One answer for each group.

use super::Aggregate;
use crate::types::{Key, Value};
use std::collections::HashMap;
use std::hash::Hash;

/// An answer for each group of pairs; the closure says which group a pair is of. Groups lie outside the budget, and each thread of the scan
/// has its own until the end.
#[derive(Clone, Copy, Debug)]
pub struct GroupBy<P, A>(pub P, pub A);

impl<K: Key + ?Sized, V: Value + ?Sized, P, G: Hash + Eq + Send, A: Aggregate<K, V>> Aggregate<K, V> for GroupBy<P, A>
where
    P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> G + Sync,
{
    type State = HashMap<G, A::State>;
    type Output = HashMap<G, A::Output>;

    fn init(&self) -> Self::State {
        HashMap::new()
    }
    fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>) {
        let group = state.entry(self.0(key, value)).or_insert_with(|| self.1.init());
        self.1.add(group, key, value);
    }
    fn merge(&self, into: &mut Self::State, other: Self::State) {
        merge(&self.1, into, other);
    }
    fn finish(&self, state: Self::State) -> Self::Output {
        state.into_iter().map(|(group, state)| (group, self.1.finish(state))).collect()
    }
}

fn merge<K, V, G, A>(aggregate: &A, into: &mut HashMap<G, A::State>, other: HashMap<G, A::State>)
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    G: Hash + Eq,
    A: Aggregate<K, V>,
{
    for (group, state) in other {
        aggregate.merge(into.entry(group).or_insert_with(|| aggregate.init()), state);
    }
}

/// The part of a key that names its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// Its first bytes, so many; all of a shorter key.
    Prefix(usize),
    /// All before the first such byte; all of a key without one.
    Before(u8),
}

impl KeyPart {
    /// That part of a key.
    #[must_use]
    pub fn of(self, key: &[u8]) -> &[u8] {
        let end = match self {
            Self::Prefix(bytes) => bytes.min(key.len()),
            Self::Before(delimiter) => key.iter().position(|byte| *byte == delimiter).unwrap_or(key.len()),
        };
        &key[..end]
    }
}

/// An answer for each group of keys with the same part. As [`GroupBy`], but a group's name is copied once, not for each pair.
#[derive(Clone, Copy, Debug)]
pub struct GroupByKey<A>(pub KeyPart, pub A);

impl<K: Key + ?Sized, V: Value + ?Sized, A: Aggregate<K, V>> Aggregate<K, V> for GroupByKey<A>
where
    for<'v> K::View<'v>: AsRef<[u8]>,
{
    type State = HashMap<Vec<u8>, A::State>;
    type Output = HashMap<Vec<u8>, A::Output>;

    fn init(&self) -> Self::State {
        HashMap::new()
    }
    fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>) {
        let name = self.0.of(key.as_ref());
        match state.get_mut(name) {
            Some(group) => self.1.add(group, key, value),
            None => {
                let mut group = self.1.init();
                self.1.add(&mut group, key, value);
                let name = name.to_vec();
                state.insert(name, group);
            }
        }
    }
    fn merge(&self, into: &mut Self::State, other: Self::State) {
        merge(&self.1, into, other);
    }
    fn finish(&self, state: Self::State) -> Self::Output {
        state.into_iter().map(|(group, state)| (group, self.1.finish(state))).collect()
    }
}
