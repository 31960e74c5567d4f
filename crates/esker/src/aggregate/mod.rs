//! Aggregates: what is asked of many values, computed where they are.
//!
//! An [`Aggregate`] is a fold that can be divided: each thread of a scan has a state of its own, and states are merged. What
//! it looks at is said by a closure from key and value, so that a field of a struct, a decimal text or the key itself will do.
//!
//! ```
//! use esker::aggregate::{Count, GroupByKey, KeyPart, Max, Mean, Sum};
//!
//! let visits: esker::Store<str, u64> = esker::Options::new().memory("64MiB").in_memory()?;
//! for (page, count) in [("docs/a", 3), ("docs/b", 4), ("blog/a", 5)] {
//!     visits.put(page, &count)?;
//! }
//! let (count, sum, max) = visits.aggregate((Count, Sum(|_: &str, n| n), Max(|_: &str, n: u64| n)))?;
//! assert_eq!((count, sum, max), (3, 12, Some(5)));
//!
//! let groups = visits.aggregate(GroupByKey(KeyPart::Before(b'/'), (Count, Mean(|_: &str, n| n))))?;
//! assert_eq!(groups[&b"docs"[..]], (2, Some(3.5)));
//! # Ok::<(), esker::Error>(())
//! ```
//!
//! **Of nothing**, counts and sums are 0, a histogram is all zeros, groups and the top are none, a sketch is of no numbers; all else is
//! `None`.
//!
//! **Integers** are summed as `i128`, which no store can make overflow; floats with a compensation for what rounding loses. A number that
//! is not there (a closure may answer `None`) is left out, and so is NaN. (`Min` and `Max` are of anything that can be compared, and there
//! `None` is less than all else: answer NaN, or leave the pair out by [`Scan::filter`](crate::Scan::filter).)

mod distinct;
mod groups;
mod numbers;
mod order;

pub use distinct::Distinct;
pub use groups::{GroupBy, GroupByKey, KeyPart};
pub use numbers::{Histogram, Mean, Moments, Number, Quantiles, Sketch, Sum, Total, Variance, decimal, integer};
pub use order::{Max, Min, TopK};

use crate::error::Result;
use crate::scan::Scan;
use crate::store::Store;
use crate::types::{Key, Value};

/// A question about many pairs, answered in parts. Tuples of up to six are aggregates too: one pass answers all.
///
/// # Examples
/// ```
/// /// The longest value, by its length.
/// struct Longest;
///
/// impl esker::Aggregate<str, [u8]> for Longest {
///     type State = usize;
///     type Output = usize;
///     fn init(&self) -> usize {
///         0
///     }
///     fn add(&self, state: &mut usize, _: &str, value: &[u8]) {
///         *state = (*state).max(value.len());
///     }
///     fn merge(&self, into: &mut usize, other: usize) {
///         *into = (*into).max(other);
///     }
///     fn finish(&self, state: usize) -> usize {
///         state
///     }
/// }
///
/// let store: esker::Store<str, [u8]> = esker::Options::new().memory("64MiB").in_memory()?;
/// store.put("a", b"four")?;
/// assert_eq!(store.aggregate(Longest)?, 4);
/// # Ok::<(), esker::Error>(())
/// ```
pub trait Aggregate<K: Key + ?Sized, V: Value + ?Sized>: Sync {
    /// What one thread has seen.
    type State: Send;
    /// The answer.
    type Output;

    /// Of nothing.
    fn init(&self) -> Self::State;
    /// One pair more.
    fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>);
    /// What another thread has seen, too.
    fn merge(&self, into: &mut Self::State, other: Self::State);
    /// The answer.
    fn finish(&self, state: Self::State) -> Self::Output;
}

/// How many pairs.
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl<K: Key + ?Sized, V: Value + ?Sized> Aggregate<K, V> for Count {
    type State = u64;
    type Output = u64;

    fn init(&self) -> u64 {
        0
    }
    #[inline(always)]
    fn add(&self, state: &mut u64, _: K::View<'_>, _: V::View<'_>) {
        *state += 1;
    }
    fn merge(&self, into: &mut u64, other: u64) {
        *into += other;
    }
    fn finish(&self, state: u64) -> u64 {
        state
    }
}

macro_rules! tuple {
    ($($name:ident $at:tt),*) => {
        impl<K: Key + ?Sized, V: Value + ?Sized, $($name: Aggregate<K, V>),*> Aggregate<K, V> for ($($name,)*) {
            type State = ($($name::State,)*);
            type Output = ($($name::Output,)*);

            fn init(&self) -> Self::State {
                ($(self.$at.init(),)*)
            }
            #[inline(always)]
            fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>) {
                $(self.$at.add(&mut state.$at, key, value);)*
            }
            fn merge(&self, into: &mut Self::State, other: Self::State) {
                $(self.$at.merge(&mut into.$at, other.$at);)*
            }
            fn finish(&self, state: Self::State) -> Self::Output {
                ($(self.$at.finish(state.$at),)*)
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The answer of an aggregate over all pairs, as of one moment: [`Scan::aggregate`] without conditions.
    ///
    /// # Errors
    /// As [`Scan::for_each`].
    pub fn aggregate<A: Aggregate<K, V>>(&self, aggregate: A) -> Result<A::Output> {
        self.scan().aggregate(aggregate)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Scan<'_, K, V> {
    /// The answer of an aggregate over the pairs of this scan, as of one moment.
    ///
    /// # Errors
    /// As [`Scan::for_each`].
    #[inline]
    pub fn aggregate<A: Aggregate<K, V>>(self, aggregate: A) -> Result<A::Output> {
        let state = self.fold(
            || aggregate.init(),
            |state, key, value| aggregate.add(state, key, value),
            |into, other| aggregate.merge(into, other),
        )?;
        Ok(aggregate.finish(state))
    }
}
