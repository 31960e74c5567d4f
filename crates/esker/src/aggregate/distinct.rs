//! How many different ones, about.

use super::Aggregate;
use crate::types::{Key, Value};
use hyperloglogplus::{HyperLogLog, HyperLogLogPF};
use std::hash::Hash;
use xxhash_rust::xxh3::Xxh3Builder;

/// 2^14 registers of six bits: 12 KiB, and a standard error of 0.8 %.
const PRECISION: u8 = 14;

/// About how many different ones there are; the standard error is 0.8 %.
#[derive(Clone, Copy, Debug)]
pub struct Distinct<P>(pub P);

impl<K: Key + ?Sized, V: Value + ?Sized, P, R: Hash + Send> Aggregate<K, V> for Distinct<P>
where
    P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> R + Sync,
{
    type State = HyperLogLogPF<R, Xxh3Builder>;
    type Output = u64;

    fn init(&self) -> Self::State {
        HyperLogLogPF::new(PRECISION, Xxh3Builder::new()).unwrap_or_else(|_| unreachable!("a precision from 4 to 16"))
    }
    fn add(&self, state: &mut Self::State, key: K::View<'_>, value: V::View<'_>) {
        state.insert(&self.0(key, value));
    }
    fn merge(&self, into: &mut Self::State, other: Self::State) {
        // Refused only if precisions differ.
        let merged = into.merge(&other);
        debug_assert!(merged.is_ok());
    }
    fn finish(&self, mut state: Self::State) -> u64 {
        state.count().round() as u64
    }
}
