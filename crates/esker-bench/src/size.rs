//! Sizes on the command line: plain bytes, or a number with a unit such as `512MiB`.

/// The least memory a store may have.
pub(crate) const LEAST: u64 = 16 << 20;

/// Reads a size.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim().replace('_', "");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        unit => return Err(format!("`{unit}` is no unit: use KiB, MiB or GiB")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("1 gb"), Ok(1_000_000_000));
        assert!(parse("much").is_err() && parse("1 acre").is_err());
    }
}
