//! Numbers on the command line that an experiment can do something with.

use std::time::Duration;

/// Keys and records are fewer: the bytes of all of them, and ten times as many, still have 64 bits.
pub(crate) const KEYS: u64 = 1 << 40;
/// The longest value, in bytes.
pub(crate) const VALUE_BYTES: u64 = 16 << 20;

const THREADS: usize = 1024;
/// Eleven days.
const SECONDS: f64 = 1e6;

/// A number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    between(text, 1, THREADS)
}

/// Of runs, of passes, of keys in a batch.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    between(text, 1, crate::keys::SEQUENCE_LENGTH)
}

/// A time that passes, and is over some day.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = parse(text)?;
    let passes = seconds <= SECONDS && Duration::try_from_secs_f64(seconds).is_ok_and(|time| !time.is_zero());
    if passes { Ok(seconds) } else { Err(format!("not above 0 and at most {SECONDS}")) }
}

/// Something each second, by the clock.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let rate = parse(text)?;
    if rate > 0.0 && rate <= 1e9 { Ok(rate) } else { Err("not above 0 and at most 10^9".to_owned()) }
}

/// The exponent of a Zipf law.
pub(crate) fn exponent(text: &str) -> Result<f64, String> {
    let exponent = parse(text)?;
    if (0.0..=10.0).contains(&exponent) { Ok(exponent) } else { Err("not from 0 to 10".to_owned()) }
}

/// So many times as much, at least once.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    let factor = parse(text)?;
    if (1.0..=1e6).contains(&factor) { Ok(factor) } else { Err("not from 1 to 10^6".to_owned()) }
}

fn between(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = parse(text)?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(format!("not from {least} to {most}")) }
}

fn parse<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|why: T::Err| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_passes_and_ends() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(["0", "-1", "1e-300", "inf", "nan", "1e7", "long"].iter().all(|text| seconds(text).is_err()));
    }

    #[test]
    fn there_is_something_to_count() {
        assert_eq!((threads("48"), count("16777216")), (Ok(48), Ok(1 << 24)));
        assert!(["0", "-1", "16777217", "some"].iter().all(|text| threads(text).is_err() && count(text).is_err()));
    }

    #[test]
    fn exponents_and_rates_are_numbers() {
        assert_eq!((exponent("0"), rate("1e9")), (Ok(0.0), Ok(1e9)));
        assert!(["-1", "inf", "nan", "11e8"].iter().all(|text| exponent(text).is_err() && rate(text).is_err()));
    }
}
