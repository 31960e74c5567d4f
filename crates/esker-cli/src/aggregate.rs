//! `esker aggregate`: figures about the values of a store, computed where they are, in one pass.
//!
//! Values are numbers in decimal text; others are counted and otherwise left out. Sums of whole numbers are exact.

use std::collections::{BTreeMap, HashMap};

use esker::aggregate::{Count, GroupByKey, KeyPart, Max, Min, Moments, Quantiles, Sketch, Sum, Variance, decimal, integer};
use serde_json::{Map, Value, json};

use crate::args::{AggregateArgs, Opening};
use crate::failure::{Failure, Outcome};
use crate::out;
use crate::store::with_existing;
use crate::watch::watched;

/// What one pass finds: pairs, whole numbers and others summed, and the distribution.
type Found = (u64, i128, f64, (Option<f64>, Option<f64>), Option<Moments>, Sketch);

/// Prints the figures asked for, one line for each group.
pub(crate) fn run(args: &AggregateArgs, opening: Opening) -> Outcome {
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    let number = |_: &[u8], value: &[u8]| decimal(value);
    let fraction = |_: &[u8], value: &[u8]| if integer(value).is_some() { None } else { decimal(value) };
    let least = |_: &[u8], value: &[u8]| decimal(value).unwrap_or(f64::NAN);
    let asked =
        (Count, Sum(|_: &[u8], value: &[u8]| integer(value)), Sum(fraction), (Min(least), Max(least)), Variance(number), Quantiles(number));
    // Without groups all keys are one: those that begin with nothing.
    let groups: HashMap<Vec<u8>, Found> = with_existing(&args.dir, opening, |store| {
        let scan = watched(store.scan().prefix(prefix).parallel(args.threads))?;
        Ok(scan.aggregate(GroupByKey(args.by.unwrap_or(KeyPart::Prefix(0)), asked))?)
    })?;
    let mut groups: BTreeMap<_, _> = groups.into_iter().collect();
    if groups.is_empty() && args.by.is_none() {
        groups.insert(Vec::new(), (0, 0, 0.0, (None, None), None, Sketch::default()));
    }
    for (group, found) in &groups {
        let name = args.by.map(|_| String::from_utf8_lossy(group).into_owned());
        out::line(line(args, name, found)?)?;
    }
    Ok(())
}

fn line(args: &AggregateArgs, group: Option<String>, found: &Found) -> Result<String, Failure> {
    let figures = figures(args, found);
    if args.json {
        let named = group.map(|name| ("group".to_owned(), Value::from(name)));
        let object: Map<String, Value> =
            named.into_iter().chain(figures.into_iter().map(|(name, value)| (name.to_owned(), value))).collect();
        return serde_json::to_string(&object).map_err(|error| Failure::new(error.to_string()));
    }
    let figures = figures.into_iter().map(|(name, value)| match value {
        Value::Null => format!("{name} -"),
        value => format!("{name} {value}"),
    });
    Ok(group.into_iter().chain(figures).collect::<Vec<_>>().join("\t"))
}

fn figures(args: &AggregateArgs, found: &Found) -> Vec<(&'static str, Value)> {
    let (count, whole, fractions, (least, greatest), moments, sketch) = found;
    let nothing_asked = !(args.sum || args.min || args.max || args.mean || args.median);
    // Whole numbers are exact as long as JSON's are; all else is a float.
    let sum = match i64::try_from(*whole) {
        Ok(whole) if *fractions == 0.0 => json!(whole),
        _ => json!(*whole as f64 + fractions),
    };
    let all = [
        (args.count || nothing_asked, "count", json!(count)),
        (args.sum, "sum", sum),
        (args.min, "min", json!(least)),
        (args.max, "max", json!(greatest)),
        (args.mean, "mean", json!(moments.map(|moments| moments.mean))),
        (args.median, "median", json!(sketch.quantile(0.5))),
    ];
    all.into_iter().filter_map(|(asked, name, value)| asked.then_some((name, value))).collect()
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
