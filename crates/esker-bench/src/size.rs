//! Sizes on the command line: plain bytes, or a number with a unit such as `512MiB`, as the library reads them; digits may be grouped with
//! `_`.

use esker::ByteCount;

/// The least memory a store may have.
pub(crate) const LEAST: u64 = 16 << 20;

/// Reads a size.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    text.replace('_', "").as_str().byte_count().map_err(|_| format!("`{text}` is not a size such as 512MiB or 1GiB"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        assert_eq!(parse("4_096"), Ok(4096));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("1 gb"), Ok(1_000_000_000));
        assert!(parse("much").is_err() && parse("1 acre").is_err());
    }
}
