//! Rows of JSON Lines files: one object a line.
//!
//! Members are kept as they are written, so that a number loses no digit. Of a string the content is taken,
//! without quotes and escapes; anything else stays JSON, but for `{"hex":".."}` with `--hex`: those bytes, as an export has what is
//! no text. Several columns make an object for a value, and fields joined by commas for a key. Blank lines are passed over. A
//! wanted member that is there twice is an error, not a guess.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::rows::{self, Pair, Rows, Wanted};

/// The members by name; of a name that is there twice, none.
struct Object<'a>(BTreeMap<String, Option<&'a RawValue>>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Object<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = from.next_entry::<String, &RawValue>()? {
                    members.entry(name).and_modify(|there| *there = None).or_insert(Some(value));
                }
                Ok(Object(members))
            }
        }

        from.deserialize_map(Members)
    }
}

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
        self.take_key(&object, &mut pair.key)?;
        self.take_value(&object, row, &mut pair.value)?;
        Ok(true)
    }

    fn line(&self) -> u64 {
        self.line
    }
}

impl Jsonl {
    fn take_key(&self, object: &Object<'_>, to: &mut Vec<u8>) -> Result<(), Failure> {
        let fields = self.wanted.key.iter().map(|column| self.content(object, column)).collect::<Result<Vec<_>, _>>()?;
        match &fields[..] {
            [only] => to.extend_from_slice(only),
            several => rows::join(to, several.iter().map(Vec::as_slice), b',', true),
        }
        Ok(())
    }

    fn take_value(&self, object: &Object<'_>, row: &[u8], to: &mut Vec<u8>) -> Result<(), Failure> {
        match self.wanted.value.as_deref() {
            None => {}
            Some([]) => to.extend_from_slice(row),
            Some([only]) => to.extend_from_slice(&self.content(object, only)?),
            Some(several) => {
                let members = several.iter().map(|column| Ok((column, member(object, column)?)));
                let part = members.collect::<Result<Vec<_>, Failure>>()?;
                write_object(&part, to)?;
            }
        }
        Ok(())
    }

    fn content(&self, object: &Object<'_>, column: &str) -> Result<Vec<u8>, Failure> {
        let json = member(object, column)?.get();
        if json.starts_with('"') {
            return serde_json::from_str(json).map(String::into_bytes).map_err(|error| explain(&error));
        }
        match json.starts_with('{') && self.wanted.hex {
            true => no_text(json),
            false => Ok(json.as_bytes().to_vec()),
        }
    }
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

/// The bytes that an export writes in hexadecimal; of any other object its text.
fn no_text(json: &str) -> Result<Vec<u8>, Failure> {
    let object: Object = serde_json::from_str(json).map_err(|error| explain(&error))?;
    let digits = match (object.0.len(), object.0.get("hex")) {
        (1, Some(Some(digits))) => serde_json::from_str::<String>(digits.get()).ok(),
        _ => None,
    };
    let Some(digits) = digits else { return Ok(json.as_bytes().to_vec()) };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes = digits.as_bytes().chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8));
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes.ok_or_else(|| Failure::new("what is `hex` is not bytes in hexadecimal"))
}

fn member<'a>(object: &Object<'a>, column: &str) -> Result<&'a RawValue, Failure> {
    match object.0.get(column) {
        Some(Some(value)) => Ok(value),
        Some(None) => Err(Failure::new(format!("the object has more than one `{column}`"))),
        None => Err(Failure::new(format!("the object has no `{column}`"))),
    }
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
