//! Rows of JSON Lines files: one object a line.
//!
//! Members are kept as they are written, so that a number loses no digit. Of a string the content is taken,
//! without quotes and escapes, and of `{"hex":".."}`, as an export has bytes that are no text, those bytes; anything else stays JSON. Several columns make an object for a value, and fields
//! joined by commas for a key. Blank lines are passed over.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::rows::{self, Pair, Rows, Wanted};

type Object<'a> = BTreeMap<String, &'a RawValue>;

/// The rows of a file with one JSON object a line.
pub(crate) struct Jsonl {
    text: Box<dyn BufRead>,
    wanted: Wanted,
    buffer: Vec<u8>,
    line: u64,
}

impl Jsonl {
    /// The rows of `text`.
    pub(crate) fn new(text: Box<dyn BufRead>, wanted: Wanted) -> Self {
        Self { text, wanted, buffer: Vec::new(), line: 0 }
    }

    fn next_line(&mut self) -> io::Result<bool> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = self.text.by_ref().take(rows::ROW_BYTES + 1).read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                return Ok(false);
            }
            if read as u64 > rows::ROW_BYTES {
                return Err(io::Error::other(rows::too_long()));
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }
}

impl Rows for Jsonl {
    fn next(&mut self, pair: &mut Pair) -> Result<bool, Failure> {
        if !self.next_line().map_err(|error| Failure::new(error.to_string()))? {
            return Ok(false);
        }
        let row = self.buffer.trim_ascii();
        let before = self.buffer.len() - self.buffer.trim_ascii_start().len();
        let object: Object = serde_json::from_slice(row).map_err(|error| explain_row(&error, before))?;
        pair.key.clear();
        pair.value.clear();
        take_key(&object, &self.wanted.key, &mut pair.key)?;
        take_value(&object, &self.wanted.value, row, &mut pair.value)?;
        Ok(true)
    }

    fn line(&self) -> u64 {
        self.line
    }
}

fn take_key(object: &Object, columns: &[String], to: &mut Vec<u8>) -> Result<(), Failure> {
    let fields = columns.iter().map(|column| content(object, column)).collect::<Result<Vec<_>, _>>()?;
    match &fields[..] {
        [only] => to.extend_from_slice(only),
        several => rows::join(to, several.iter().map(Vec::as_slice), b',', true),
    }
    Ok(())
}

fn take_value(object: &Object, columns: &[String], row: &[u8], to: &mut Vec<u8>) -> Result<(), Failure> {
    match columns {
        [] => to.extend_from_slice(row),
        [only] => to.extend_from_slice(&content(object, only)?),
        several => {
            let members = several.iter().map(|column| Ok((column, member(object, column)?)));
            let part = members.collect::<Result<Vec<_>, Failure>>()?;
            write_object(&part, to)?;
        }
    }
    Ok(())
}

/// Writes the members in the order they were asked for.
fn write_object(members: &[(&String, &RawValue)], to: &mut Vec<u8>) -> Result<(), Failure> {
    for (at, (name, value)) in members.iter().enumerate() {
        to.push(if at == 0 { b'{' } else { b',' });
        serde_json::to_writer(&mut *to, name).map_err(|error| explain(&error))?;
        to.push(b':');
        to.extend_from_slice(value.get().as_bytes());
    }
    to.push(b'}');
    Ok(())
}

fn content(object: &Object, column: &str) -> Result<Vec<u8>, Failure> {
    let json = member(object, column)?.get();
    if json.starts_with('"') {
        return serde_json::from_str(json).map(String::into_bytes).map_err(|error| explain(&error));
    }
    Ok(no_text(json).unwrap_or_else(|| json.as_bytes().to_vec()))
}

/// The bytes that an export writes in hexadecimal: only those that are no text.
fn no_text(json: &str) -> Option<Vec<u8>> {
    let digits = json.strip_prefix(r#"{"hex":""#)?.strip_suffix(r#""}"#)?.as_bytes();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes = digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8));
    bytes.collect::<Option<Vec<u8>>>().filter(|bytes| std::str::from_utf8(bytes).is_err())
}

fn member<'a>(object: &Object<'a>, column: &str) -> Result<&'a RawValue, Failure> {
    let found = object.get(column).copied();
    found.ok_or_else(|| Failure::new(format!("the object has no `{column}`")))
}

/// With the column in the line, of which so many bytes stand before the row.
fn explain_row(error: &serde_json::Error, before: usize) -> Failure {
    explain(error).map(|why| format!("{why} (column {})", before + error.column()))
}

/// Every line, and every member, is parsed by itself: serde's own line is always 1, and its column may be in a member.
fn explain(error: &serde_json::Error) -> Failure {
    let message = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    Failure::new(message.strip_suffix(&suffix).unwrap_or(&message))
}
