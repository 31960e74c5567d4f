//! Quantities as people write and read them.
//!
//! A size given on the command line is read as the library reads it; a size or a count that is shown is binary (`MiB` is 2^20 bytes)
//! and rounded to three or four digits, or grouped.

use std::time::Duration;

use esker::{ByteCount, Durability};

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Reads what [`ByteCount`] does: `256MiB`, `256M`, `1.5 GiB`, `1GB` or a plain number of bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    text.byte_count().map_err(|_| format!("`{text}` is not a size such as 256MiB or 1GiB"))
}

/// The least budget of a store.
const MEMORY_MIN: u64 = 16 << 20;

/// Reads a size that a store can have as its budget.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < MEMORY_MIN { Err(format!("a store takes at least {}", size(MEMORY_MIN))) } else { Ok(bytes) }
}

/// Reads `none`, `always`, or the seconds between two lines.
pub(crate) fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "none" => Ok(Durability::None),
        "always" => Ok(Durability::Always),
        seconds => parse_seconds(seconds).map(Durability::Every),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let interval = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    interval.filter(|interval| !interval.is_zero()).ok_or_else(|| format!("`{text}` is not none, always or a number of seconds"))
}

/// Shows a size with its unit: `64.0 MiB`, `512 B`.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, shift) = UNITS.into_iter().find(|&(_, shift)| bytes >> shift > 0).unwrap_or(("B", 0));
    if shift == 0 {
        return format!("{bytes} B");
    }
    format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64)
}

/// Shows a count with its thousands apart: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Shows how many of something happened in a second.
pub(crate) fn rate(number: u64, seconds: f64) -> String {
    count((number as f64 / seconds.max(1e-9)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size(" 1 gib "), Ok(1 << 30));
        assert_eq!(parse_size("16m"), Ok(16 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "MiB", "12 parsecs", "-1", "1.2.3MiB", ".", "99999999999TiB"] {
            assert!(parse_size(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn a_budget_is_one_that_a_store_takes() {
        assert_eq!(parse_memory("16MiB"), Ok(16 << 20));
        assert!(parse_memory("16777215").is_err_and(|why| why.contains("at least 16.0 MiB")));
    }

    #[test]
    fn durability_is_a_word_or_seconds() {
        assert_eq!(parse_durability("none"), Ok(Durability::None));
        assert_eq!(parse_durability("always"), Ok(Durability::Always));
        assert_eq!(parse_durability("0.5"), Ok(Durability::Every(Duration::from_millis(500))));
        for bad in ["", "0", "-1", "inf", "1s", "sometimes"] {
            assert!(parse_durability(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn quantities_are_shown_short() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(0), "0 B");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
    }
}
