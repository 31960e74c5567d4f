//! The least, the greatest, and the greatest few.

use super::Aggregate;
use crate::types::{Key, Value};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The least, by `PartialOrd`; what cannot be compared (NaN) is left out.
#[derive(Clone, Copy, Debug)]
pub struct Min<P>(pub P);

/// The greatest, by `PartialOrd`; what cannot be compared (NaN) is left out.
#[derive(Clone, Copy, Debug)]
pub struct Max<P>(pub P);

/// Takes the new one where it stands so to the old one.
#[inline(always)]
fn keep<R: PartialOrd>(state: &mut Option<R>, new: R, if_it_is: Ordering) {
    let takes = match state {
        Some(old) => new.partial_cmp(old) == Some(if_it_is),
        None => true,
    };
    // Some that compare with others do not with themselves: a pair of a number and no number.
    if takes && new.partial_cmp(&new).is_some() {
        *state = Some(new);
    }
}

macro_rules! extreme {
    ($name:ident, $order:expr) => {
        impl<K: Key + ?Sized, V: Value + ?Sized, P, R: PartialOrd + Send> Aggregate<K, V> for $name<P>
        where
            P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> R + Sync,
        {
            type State = Option<R>;
            type Output = Option<R>;

            fn init(&self) -> Option<R> {
                None
            }
            #[inline(always)]
            fn add(&self, state: &mut Option<R>, key: K::View<'_>, value: V::View<'_>) {
                keep(state, self.0(key, value), $order);
            }
            fn merge(&self, into: &mut Option<R>, other: Option<R>) {
                if let Some(other) = other {
                    keep(into, other, $order);
                }
            }
            fn finish(&self, state: Option<R>) -> Option<R> {
                state
            }
        }
    };
}

extreme!(Min, Ordering::Less);
extreme!(Max, Ordering::Greater);

/// The greatest few, greatest first. `rank` says by what, `item` what is kept of a pair; it is called only for what is kept.
#[derive(Clone, Copy, Debug)]
pub struct TopK<P, Q> {
    /// How many.
    pub count: usize,
    /// By what.
    pub rank: P,
    /// What of them.
    pub item: Q,
}

/// An item; the least comes first out of a heap.
#[doc(hidden)]
#[derive(Debug)]
pub struct Ranked<R, T> {
    rank: R,
    item: T,
}

impl<R: Ord, T> Ord for Ranked<R, T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank.cmp(&self.rank)
    }
}

impl<R: Ord, T> PartialOrd for Ranked<R, T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Ord, T> PartialEq for Ranked<R, T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<R: Ord, T> Eq for Ranked<R, T> {}

impl<K: Key + ?Sized, V: Value + ?Sized, P, Q, R: Ord + Send, T: Send> Aggregate<K, V> for TopK<P, Q>
where
    P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> R + Sync,
    Q: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> T + Sync,
{
    type State = BinaryHeap<Ranked<R, T>>;
    type Output = Vec<(R, T)>;

    fn init(&self) -> Self::State {
        BinaryHeap::new()
    }
    fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>) {
        let rank = (self.rank)(key, value);
        if state.len() < self.count || state.peek().is_some_and(|least| least.rank < rank) {
            state.push(Ranked { rank, item: (self.item)(key, value) });
            if state.len() > self.count {
                state.pop();
            }
        }
    }
    fn merge(&self, into: &mut Self::State, other: Self::State) {
        into.extend(other);
        while into.len() > self.count {
            into.pop();
        }
    }
    fn finish(&self, state: Self::State) -> Vec<(R, T)> {
        state.into_sorted_vec().into_iter().map(|ranked| (ranked.rank, ranked.item)).collect()
    }
}
