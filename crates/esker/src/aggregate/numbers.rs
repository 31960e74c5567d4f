//! Sums, means, spreads, quantiles.

use super::Aggregate;
use crate::types::{Key, Value};
use sketches_ddsketch::{Config, DDSketch};

/// A number that a closure found in a pair, or did not: integers to 64 bits, floats, and options of them.
pub trait Number {
    /// How such numbers are summed.
    type Total: Total<Self::Of>;
    /// The number itself.
    type Of: Copy;

    /// The number, if there is one.
    fn number(self) -> Option<Self::Of>;
    /// The nearest float.
    fn float(of: Self::Of) -> f64;
}

/// A sum under way.
pub trait Total<N>: Default + Send {
    /// What it ends as.
    type Sum;

    /// One number more.
    fn add(&mut self, number: N);
    /// Another sum.
    fn merge(&mut self, other: Self);
    /// The sum.
    fn sum(self) -> Self::Sum;
}

impl<N: Into<i128>> Total<N> for i128 {
    type Sum = i128;

    #[inline(always)]
    fn add(&mut self, number: N) {
        *self += number.into();
    }
    fn merge(&mut self, other: Self) {
        *self += other;
    }
    fn sum(self) -> i128 {
        self
    }
}

/// A float sum, and what rounding took from it (Neumaier 1974).
#[derive(Clone, Copy, Debug, Default)]
pub struct Compensated {
    sum: f64,
    lost: f64,
}

impl<N: Into<f64>> Total<N> for Compensated {
    type Sum = f64;

    #[inline(always)]
    fn add(&mut self, number: N) {
        let number = number.into();
        let sum = self.sum + number;
        self.lost += if self.sum.abs() >= number.abs() { (self.sum - sum) + number } else { (number - sum) + self.sum };
        self.sum = sum;
    }
    fn merge(&mut self, other: Self) {
        Total::<f64>::add(self, other.sum);
        self.lost += other.lost;
    }
    fn sum(self) -> f64 {
        // Once the sum is infinite, what was lost is not a number.
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

macro_rules! numbers {
    ($total:ty: $($number:ty as $of:ty),*) => {
        $(
            impl Number for $number {
                type Total = $total;
                type Of = $of;

                #[inline(always)]
                fn number(self) -> Option<$of> {
                    #[allow(clippy::eq_op, reason = "a number that differs from itself is NaN")]
                    (self == self).then_some(self as $of)
                }
                #[inline(always)]
                fn float(of: $of) -> f64 {
                    of as f64
                }
            }
        )*
    };
}

numbers!(i128: u8 as u8, u16 as u16, u32 as u32, u64 as u64, usize as u64, i8 as i8, i16 as i16, i32 as i32, i64 as i64, isize as i64);
numbers!(Compensated: f32 as f32, f64 as f64);

impl<N: Number> Number for Option<N> {
    type Total = N::Total;
    type Of = N::Of;

    #[inline(always)]
    fn number(self) -> Option<N::Of> {
        self.and_then(N::number)
    }
    #[inline(always)]
    fn float(of: N::Of) -> f64 {
        N::float(of)
    }
}

/// The number that these bytes spell in decimal, as `1`, `-2.5` or `6.02e23`, rounded to the nearest float; `inf` and `NaN` are some, too,
/// and what is too large is infinite.
#[must_use]
pub fn decimal(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim_ascii().parse().ok()
}

/// The integer that these bytes spell in decimal.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim_ascii().parse().ok()
}

/// The sum: `i128` of integers, `f64` of floats, 0 of nothing. Floats are summed in any order with the rounding made up for; where a sum on
/// the way is beyond what a float holds, the end is infinite or no number.
#[derive(Clone, Copy, Debug)]
pub struct Sum<P>(pub P);

impl<K: Key + ?Sized, V: Value + ?Sized, P, N: Number> Aggregate<K, V> for Sum<P>
where
    P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> N + Sync,
{
    type State = N::Total;
    type Output = <N::Total as Total<N::Of>>::Sum;

    fn init(&self) -> N::Total {
        N::Total::default()
    }
    #[inline(always)]
    fn add(&self, state: &mut N::Total, key: K::View<'_>, value: V::View<'_>) {
        if let Some(number) = self.0(key, value).number() {
            state.add(number);
        }
    }
    fn merge(&self, into: &mut N::Total, other: N::Total) {
        into.merge(other);
    }
    fn finish(&self, state: N::Total) -> Self::Output {
        state.sum()
    }
}

/// Mean and spread of some numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// How many there were; at least one.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Moments {
    /// The variance of these numbers, if they are all there are.
    #[must_use]
    pub fn variance(&self) -> f64 {
        self.squares / self.count as f64
    }

    /// The variance that they are a sample of; `None` for one number.
    #[must_use]
    pub fn sample_variance(&self) -> Option<f64> {
        (self.count > 1).then(|| self.squares / (self.count - 1) as f64)
    }

    /// Welford's update.
    #[inline(always)]
    fn add(&mut self, number: f64) {
        self.count += 1;
        let (before, count) = (number - self.mean, self.count as f64);
        // A way that is infinite may lead to where numbers are.
        self.mean = if before.is_finite() { self.mean + before / count } else { self.mean / count * (count - 1.0) + number / count };
        self.squares += before * (number - self.mean);
    }

    fn merge(&mut self, other: Self) {
        if other.count == 0 {
            return;
        }
        // Nothing has no distance: the square of one from zero may be infinite, and none of that is no number.
        if self.count == 0 {
            *self = other;
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let (apart, part) = (other.mean - self.mean, b / (a + b));
        self.count += other.count;
        // Parts first: as many times the distance may be infinite where the mean is not; and so may the distance.
        self.mean = if apart.is_finite() { self.mean + apart * part } else { self.mean * (1.0 - part) + other.mean * part };
        self.squares += other.squares + apart * apart * (a * part);
    }
}

/// Mean and variance, in one pass without cancellation. An infinite number makes the variance no number (NaN), and so may numbers whose
/// distance is; the mean is right where it is a number.
#[derive(Clone, Copy, Debug)]
pub struct Variance<P>(pub P);

/// The mean.
#[derive(Clone, Copy, Debug)]
pub struct Mean<P>(pub P);

/// How many numbers lie below the first of some ascending bounds, from each to the next, and from the last on.
#[derive(Clone, Debug)]
pub struct Histogram<P>(pub Vec<f64>, pub P);

/// Quantiles, each to within one percent of its value; what is no normal float, for its magnitude is below 2.3e-308, counts as 0. Infinite
/// numbers are left out.
///
/// Takes eight bytes for each two percent between the least and the greatest number, of either sign: 18 KiB from 1 to 2^64.
#[derive(Clone, Copy, Debug)]
pub struct Quantiles<P>(pub P);

/// Aggregates of floats: their states, and what is done with each number.
macro_rules! of_floats {
    ($name:ident, $state:ty => $output:ty, init $init:expr, add $add:expr, merge $merge:expr, finish $finish:expr) => {
        impl<K: Key + ?Sized, V: Value + ?Sized, P, N: Number> Aggregate<K, V> for $name<P>
        where
            P: for<'k, 'v> Fn(K::View<'k>, V::View<'v>) -> N + Sync,
        {
            type State = $state;
            type Output = $output;

            fn init(&self) -> $state {
                $init(self)
            }
            #[inline(always)]
            fn add(&self, state: &mut $state, key: K::View<'_>, value: V::View<'_>) {
                if let Some(number) = (projection(self))(key, value).number() {
                    $add(self, state, N::float(number));
                }
            }
            fn merge(&self, into: &mut $state, other: $state) {
                $merge(into, other);
            }
            fn finish(&self, state: $state) -> $output {
                $finish(state)
            }
        }
    };
}

/// Where an aggregate keeps its closure.
trait Projecting {
    type Projection;
    fn projection(&self) -> &Self::Projection;
}

fn projection<A: Projecting>(aggregate: &A) -> &A::Projection {
    aggregate.projection()
}

macro_rules! projecting {
    ($($name:ident $at:tt),*) => {
        $(impl<P> Projecting for $name<P> {
            type Projection = P;
            fn projection(&self) -> &P {
                &self.$at
            }
        })*
    };
}

projecting!(Variance 0, Mean 0, Quantiles 0, Histogram 1);

fn known(moments: Moments) -> Option<Moments> {
    (moments.count > 0).then_some(moments)
}

of_floats!(Variance, Moments => Option<Moments>, init |_| Moments::default(), add |_, moments: &mut Moments, number| moments.add(number),
    merge Moments::merge, finish known);
of_floats!(Mean, Moments => Option<f64>, init |_| Moments::default(), add |_, moments: &mut Moments, number| moments.add(number),
    merge Moments::merge, finish |moments| known(moments).map(|moments| moments.mean));
of_floats!(Histogram, Vec<u64> => Vec<u64>, init |own: &Self| vec![0; own.0.len() + 1],
    add |own: &Self, counts: &mut Vec<u64>, number| counts[own.0.partition_point(|bound| *bound <= number)] += 1,
    merge |into: &mut Vec<u64>, other: Vec<u64>| into.iter_mut().zip(other).for_each(|(into, other)| *into += other), finish |counts| counts);
of_floats!(Quantiles, Sketch => Sketch, init |_| Sketch::default(), add |_, sketch: &mut Sketch, number: f64| sketch.add(number),
    merge Sketch::merge, finish |sketch| sketch);

/// To within this part of the value are quantiles told.
const ERROR: f64 = 0.01;
/// More than all floats need.
const BINS_MAX: u32 = 1 << 17;

/// The distribution of some numbers, to within one percent.
#[derive(Clone)]
pub struct Sketch(DDSketch);

impl std::fmt::Debug for Sketch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sketch of {} numbers", self.count())
    }
}

impl Default for Sketch {
    fn default() -> Self {
        // By default what is far below the greatest number, or the least one above zero, is not told apart.
        Self(DDSketch::new(Config::new(ERROR, BINS_MAX, f64::MIN_POSITIVE)))
    }
}

impl Sketch {
    /// The number below which this part of all numbers lies, from 0 to 1; `None` of nothing, or for another part.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        // Within one percent of a number that is there, but no further out than all of them.
        let (least, greatest) = (self.0.min()?, self.0.max()?);
        self.0.quantile(part).ok().flatten().map(|number| number.clamp(least, greatest))
    }

    /// How many numbers it is of.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.count() as u64
    }

    fn add(&mut self, number: f64) {
        if number.is_finite() {
            self.0.add(number);
        }
    }

    fn merge(&mut self, other: Self) {
        // Refused only if the two were set up differently.
        let merged = self.0.merge(&other.0);
        debug_assert!(merged.is_ok());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn moments_of(numbers: &[f64]) -> Moments {
        let mut moments = Moments::default();
        numbers.iter().for_each(|number| moments.add(*number));
        moments
    }

    #[test]
    fn huge_numbers_keep_their_mean_and_variance_when_states_meet() {
        for huge in [1e200, 1e308] {
            let mut moments = Moments::default();
            moments.merge(moments_of(&[huge; 1000]));
            assert_eq!(moments, moments_of(&[huge; 1000]));
            // So many of them have no sum.
            let mut moments = moments_of(&[0.0; 1000]);
            moments.merge(moments_of(&[huge; 1000]));
            assert_eq!((moments.count, moments.mean), (2000, huge / 2.0));
        }
    }

    #[test]
    fn numbers_at_both_ends_have_a_mean() {
        let ends = [1e308, -1e308, 1e308, -1e308];
        assert_eq!(moments_of(&ends).mean, 0.0);
        let mut moments = moments_of(&[1e308; 2]);
        moments.merge(moments_of(&[-1e308; 2]));
        assert_eq!((moments.count, moments.mean), (4, 0.0));
        for endless in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(moments_of(&[5.0, endless, 7.0]).mean, endless);
            assert!(moments_of(&[5.0, endless, 7.0]).variance().is_nan());
        }
        assert!(moments_of(&[f64::INFINITY, f64::NEG_INFINITY]).mean.is_nan());
    }
}
