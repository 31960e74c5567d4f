//! `esker aggregate`: figures about the values of a store, computed where they are, in one pass.
//!
//! Values are finite numbers in decimal text; others are counted and otherwise left out. Whole numbers of 64 bits with a sign are exact
//! where they are compared, and summed without fractions. A figure that nobody asked for is made of no values: it costs next to nothing, a
//! sketch of many groups above all.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use esker::aggregate::{Count, GroupByKey, KeyPart, Max, Min, Moments, Quantiles, Sketch, Sum, Variance, decimal, integer};
use serde_json::json;

use crate::args::{AggregateArgs, Opening};
use crate::export::text;
use crate::failure::{Outcome, say};
use crate::out;
use crate::store::look_at;
use crate::watch::watched;

/// What one pass finds: pairs and how many of them are numbers, whole numbers and others summed, and the distribution.
type Found = ((u64, i128), i128, f64, (Option<Number>, Option<Number>), Option<Moments>, Sketch);
/// What is asked for, by name, as text; none of nothing.
type Figures = Vec<(&'static str, Option<String>)>;

/// Prints the figures asked for, one line for each group.
pub(crate) fn run(args: &AggregateArgs, opening: Opening) -> Outcome {
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    let &AggregateArgs { sum, min, max, mean, median, .. } = args;
    let whole = move |_: &[u8], value: &[u8]| integer(value).filter(|_| sum);
    let fraction = move |_: &[u8], value: &[u8]| if !sum || integer(value).is_some() { None } else { finite(value) };
    let exact = move |_: &[u8], value: &[u8]| if min || max { Number::of(value) } else { Number::NONE };
    let if_asked = |asked: bool| move |_: &[u8], value: &[u8]| if asked { finite(value) } else { None };
    let is_any = sum || min || max || mean || median;
    let number = move |_: &[u8], value: &[u8]| is_any.then(|| i64::from(finite(value).is_some()));
    let asked =
        ((Count, Sum(number)), Sum(whole), Sum(fraction), (Min(exact), Max(exact)), Variance(if_asked(mean)), Quantiles(if_asked(median)));
    // Without groups all keys are one: those that begin with nothing.
    let groups: HashMap<Vec<u8>, Found> = look_at(&args.dir, opening, |store| {
        let scan = watched(store.scan().prefix(prefix).parallel(args.threads))?;
        Ok(scan.aggregate(GroupByKey(args.by.unwrap_or(KeyPart::Prefix(0)), asked))?)
    })?;
    let mut groups: BTreeMap<_, _> = groups.into_iter().collect();
    if groups.is_empty() && args.by.is_none() {
        groups.insert(Vec::new(), ((0, 0), 0, 0.0, (None, None), None, Sketch::default()));
    }
    for (group, found) in &groups {
        out::line(line(args, args.by.map(|_| &group[..]), figures(args, found)))?;
    }
    let (count, numbers) = groups.values().fold((0, 0), |(count, numbers), (found, ..)| (count + found.0, numbers + found.1));
    if is_any && numbers < i128::from(count) {
        say(&format!("esker: {} of {count} values are no numbers: they are in no figure but the count", i128::from(count) - numbers));
    }
    Ok(())
}

fn finite(text: &[u8]) -> Option<f64> {
    decimal(text).filter(|number| number.is_finite())
}

/// A number as it is written. What is no number compares with nothing.
#[derive(Clone, Copy, Debug)]
enum Number {
    Whole(i64),
    Fraction(f64),
}

impl Number {
    const NONE: Self = Self::Fraction(f64::NAN);

    fn of(text: &[u8]) -> Self {
        integer(text).map(Self::Whole).or_else(|| finite(text).map(Self::Fraction)).unwrap_or(Self::NONE)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (*self, *other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(&b)),
            (Self::Fraction(a), Self::Fraction(b)) => a.partial_cmp(&b),
            (Self::Whole(a), Self::Fraction(b)) => compare(a, b),
            (Self::Fraction(a), Self::Whole(b)) => compare(b, a).map(Ordering::reverse),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

/// Beyond 2^53 not every whole number is a float, but every float is whole.
fn compare(whole: i64, fraction: f64) -> Option<Ordering> {
    let below = fraction.floor();
    let rest = below.partial_cmp(&fraction)?;
    Some(i128::from(whole).cmp(&(below as i128)).then(rest))
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            // As JSON has it: 20.0 is no whole number.
            Self::Fraction(number) => json!(number).fmt(f),
        }
    }
}

/// A group is the part of a key, which need not be text.
fn line(args: &AggregateArgs, group: Option<&[u8]>, figures: Figures) -> Vec<u8> {
    if args.json {
        let figures = figures.into_iter().map(|(name, figure)| (name, figure.unwrap_or_else(|| "null".to_owned())));
        // By name. As text, for JSON's numbers may be of any length, and those of the library may not.
        let members: BTreeMap<_, _> = group.map(|name| ("group", text(name).to_string())).into_iter().chain(figures).collect();
        let members: Vec<_> = members.iter().map(|(name, member)| format!("\"{name}\":{member}")).collect();
        return format!("{{{}}}", members.join(",")).into_bytes();
    }
    let figures = figures.into_iter().map(|(name, figure)| format!("{name} {}", figure.as_deref().unwrap_or("-")).into_bytes());
    group.map(<[u8]>::to_vec).into_iter().chain(figures).collect::<Vec<_>>().join(&b'\t')
}

fn figures(args: &AggregateArgs, found: &Found) -> Figures {
    let ((count, _), whole, fractions, (least, greatest), moments, sketch) = found;
    let nothing_asked = !(args.sum || args.min || args.max || args.mean || args.median);
    // JSON has no number for what is too large.
    let float = |number: f64| match number.is_finite() {
        true => Some(Number::Fraction(number).to_string()),
        false => (!args.json).then(|| number.to_string()),
    };
    let sum = if *fractions == 0.0 { Some(whole.to_string()) } else { float(*whole as f64 + fractions) };
    let all = [
        (args.count || nothing_asked, "count", Some(count.to_string())),
        (args.sum, "sum", sum),
        (args.min, "min", least.map(|number| number.to_string())),
        (args.max, "max", greatest.map(|number| number.to_string())),
        (args.mean, "mean", moments.and_then(|moments| float(moments.mean))),
        (args.median, "median", sketch.quantile(0.5).and_then(float)),
    ];
    all.into_iter().filter_map(|(asked, name, figure)| asked.then_some((name, figure))).collect()
}

/// Reads `prefix:3` or `delimiter:/`.
pub(crate) fn parse_part(text: &str) -> Result<KeyPart, String> {
    let wrong = || format!("`{text}` is not prefix:N or delimiter:X, with a number of bytes and one byte");
    match text.split_once(':').ok_or_else(wrong)? {
        ("prefix", bytes) => bytes.parse().map(KeyPart::Prefix).map_err(|_| wrong()),
        ("delimiter", byte) if byte.len() == 1 => Ok(KeyPart::Before(byte.as_bytes()[0])),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_as_they_are_written() {
        let ascending = ["-1e300", "-9223372036854775808", "-2.5", "-2", "0", "0.5", "1", "9007199254740992.0", "9007199254740993"];
        let ascending: Vec<_> = ascending.iter().map(|text| Number::of(text.as_bytes())).collect();
        for (at, low) in ascending.iter().enumerate() {
            let orders = |high: &Number| (low.partial_cmp(high), high.partial_cmp(low));
            assert!(ascending[at + 1..].iter().all(|high| orders(high) == (Some(Ordering::Less), Some(Ordering::Greater))), "{low}");
        }
        assert_eq!(Number::of(b"2"), Number::of(b"2.0"));
        for none in ["inf", "nan", "1e999", "", "two"] {
            assert_eq!(Number::of(none.as_bytes()).partial_cmp(&Number::Whole(0)), None, "{none}");
        }
    }
}
