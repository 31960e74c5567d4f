//! Rows of CSV and TSV files.
//!
//! CSV follows RFC 4180, quotes included; in TSV a quote is a character like any other. The header names the
//! columns, and a row with more or fewer fields than the header is an error, not a guess.

use std::io::BufRead;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use crate::args::Format;
use crate::failure::Failure;
use crate::rows::{self, Pair, Rows, Wanted};

/// The rows of a file whose fields stand between delimiters.
pub(crate) struct Separated {
    reader: Reader<Box<dyn BufRead>>,
    record: ByteRecord,
    line: u64,
    key: Vec<usize>,
    value: Vec<usize>,
    delimiter: u8,
    quotes: bool,
}

impl Separated {
    /// Reads the header and finds the wanted columns in it.
    pub(crate) fn new(text: Box<dyn BufRead>, format: Format, wanted: &Wanted) -> Result<Self, Failure> {
        let quotes = format == Format::Csv;
        let delimiter = if quotes { b',' } else { b'\t' };
        let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(quotes).from_reader(text);
        let header = reader.byte_headers().map_err(|error| explain(&error))?.clone();
        if header.is_empty() {
            return Err(Failure::new("the file is empty, there is no header row in it"));
        }
        let key = find_all(&header, &wanted.key)?;
        let value = find_all(&header, &wanted.value)?;
        Ok(Self { reader, record: ByteRecord::new(), line: 1, key, value, delimiter, quotes })
    }

    fn take(&self, columns: &[usize], to: &mut Vec<u8>) {
        match columns {
            [] => rows::join(to, self.record.iter(), self.delimiter, self.quotes),
            &[only] => to.extend_from_slice(&self.record[only]),
            several => {
                let fields = several.iter().map(|&column| &self.record[column]);
                rows::join(to, fields, self.delimiter, self.quotes);
            }
        }
    }
}

impl Rows for Separated {
    fn next(&mut self, pair: &mut Pair) -> Result<bool, Failure> {
        let read = self.reader.read_byte_record(&mut self.record);
        let at = read.as_ref().map_or_else(|error| error.position(), |_| self.record.position());
        self.line = at.unwrap_or(self.reader.position()).line();
        if !read.map_err(|error| explain(&error))? {
            return Ok(false);
        }
        pair.key.clear();
        pair.value.clear();
        self.take(&self.key, &mut pair.key);
        self.take(&self.value, &mut pair.value);
        Ok(true)
    }

    fn line(&self) -> u64 {
        self.line
    }
}

fn find_all(header: &ByteRecord, names: &[String]) -> Result<Vec<usize>, Failure> {
    names.iter().map(|name| find(header, name)).collect()
}

fn find(header: &ByteRecord, name: &str) -> Result<usize, Failure> {
    header.iter().position(|column| column == name.as_bytes()).ok_or_else(|| {
        let columns: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
        Failure::new(format!("there is no column `{name}`; the columns are {}", columns.join(", ")))
    })
}

fn explain(error: &csv::Error) -> Failure {
    Failure::new(match error.kind() {
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header has {expected_len}")
        }
        ErrorKind::Io(why) => why.to_string(),
        _ => error.to_string(),
    })
}
