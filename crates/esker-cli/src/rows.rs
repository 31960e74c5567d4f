//! Rows, whatever they were written in.
//!
//! A reader of rows fills one [`Pair`] again and again, so loading allocates per file and not per row. The key
//! or value of one column is that column's bare content. Several columns make one text, in the file's own
//! notation, quoted where it needs to be, so that different columns never make the same key.

use std::str::FromStr;

use crate::failure::Failure;

/// The longest row that is read, four times the longest value: one line break too few must not fill the memory.
pub(crate) const ROW_BYTES: u64 = 64 << 20;

/// Says that a row is longer than that.
pub(crate) fn too_long() -> String {
    format!("the row has more than {} MiB", ROW_BYTES >> 20)
}

/// A row's key and value; the buffers are used again.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// From the columns of `--key`.
    pub(crate) key: Vec<u8>,
    /// From the columns of `--value`, or the whole row; empty where nobody wants it.
    pub(crate) value: Vec<u8>,
}

/// Names of columns, as the command line has them: a record of CSV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns(pub(crate) Vec<String>);

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No name has a zero byte, so this is one record whatever line breaks it has.
        let mut reader = csv::ReaderBuilder::new().has_headers(false).terminator(csv::Terminator::Any(0)).from_reader(text.as_bytes());
        let names = reader.records().next().transpose().map_err(|error| error.to_string())?;
        // An empty name is a name.
        Ok(Self(names.map_or_else(|| vec![String::new()], |names| names.iter().map(str::to_owned).collect())))
    }
}

/// Which columns to take, by name.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The columns of the key, at least one.
    pub(crate) key: Vec<String>,
    /// The columns of the value, of which none means the whole row; nothing where rows are only counted.
    pub(crate) value: Option<Vec<String>>,
    /// Whether `{"hex":".."}` of JSON stands for those bytes.
    pub(crate) hex: bool,
}

/// Where rows come from.
pub(crate) trait Rows {
    /// Reads the next row into `pair`; false at the end. The message of an error lacks file and line.
    fn next(&mut self, pair: &mut Pair) -> Result<bool, Failure>;

    /// The line, from 1, where the row read last began.
    fn line(&self) -> u64;
}

/// Adds fields to `to`, with `delimiter` between them and quotes around those that would be misread.
pub(crate) fn join<'a>(to: &mut Vec<u8>, fields: impl Iterator<Item = &'a [u8]>, delimiter: u8, quotes: bool) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            to.push(delimiter);
        }
        if quotes && field.iter().any(|&byte| byte == delimiter || matches!(byte, b'"' | b'\n' | b'\r')) {
            quote(to, field);
        } else {
            to.extend_from_slice(field);
        }
    }
}

fn quote(to: &mut Vec<u8>, field: &[u8]) {
    to.push(b'"');
    for &byte in field {
        if byte == b'"' {
            to.push(b'"');
        }
        to.push(byte);
    }
    to.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_may_have_a_comma_in_its_name() {
        let names = |text: &str| text.parse::<Columns>().unwrap().0;
        assert_eq!(names("id"), ["id"]);
        assert_eq!(names("year,month, day"), ["year", "month", " day"]);
        assert_eq!(names("\"last, first\",id"), ["last, first", "id"]);
        assert_eq!(names("\"say \"\"a\"\"\""), ["say \"a\""]);
        assert_eq!(names("two\nlines,b"), ["two\nlines", "b"]);
        assert_eq!(names(""), [""]);
        assert_eq!(names("a,"), ["a", ""]);
    }

    #[test]
    fn joined_fields_stay_apart() {
        let joined = |fields: [&str; 2]| {
            let mut to = Vec::new();
            join(&mut to, fields.iter().map(|field| field.as_bytes()), b',', true);
            String::from_utf8(to).unwrap()
        };
        assert_eq!(joined(["a", "b"]), "a,b");
        assert_eq!(joined(["a,b", ""]), "\"a,b\",");
        assert_eq!(joined(["say \"a\"", "b"]), "\"say \"\"a\"\"\",b");
    }
}
