//! Rows of CSV and TSV files.
//!
//! CSV follows RFC 4180, quotes included; in TSV a quote is a character like any other. The header names the columns, and a row with more
//! or fewer fields than the header is an error, not a guess. So is a quote that nothing closes: it would make one field of all that
//! follows; and text behind a closing quote, which would make `"a"b` of what was meant as `ab`. The reader of CSV tells neither, nor the
//! line where a row begins: it counts the empty lines before a row, and the `\n` of `\r\n`, to the row. So [`Quotes`] looks over its
//! shoulder.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use memchr::memchr3_iter;

use crate::args::Format;
use crate::failure::Failure;
use crate::rows::{self, Pair, Rows, Wanted};

/// The rows of a file whose fields stand between delimiters.
pub(crate) struct Separated {
    reader: Reader<Quotes>,
    record: ByteRecord,
    line: u64,
    key: Vec<usize>,
    value: Option<Vec<usize>>,
    delimiter: u8,
    quotes: bool,
}

impl Separated {
    /// Reads the header and finds the wanted columns in it.
    pub(crate) fn new(text: Box<dyn BufRead>, format: Format, wanted: &Wanted) -> Result<Self, Failure> {
        let quotes = format == Format::Csv;
        let delimiter = if quotes { b',' } else { b'\t' };
        let text = Quotes::new(text, delimiter, quotes);
        let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(quotes).from_reader(text);
        let header = reader.byte_headers().cloned().map_err(|error| explain(&error))?;
        reader.get_ref().must_be_closed()?;
        if header.is_empty() {
            return Err(Failure::new("the file is empty, there is no header row in it"));
        }
        let row = reader.get_mut().next_row();
        row.must_be_whole()?;
        let value = wanted.value.as_ref().map(|names| find_all(&header, names)).transpose()?;
        let (line, key) = (row.line, find_all(&header, &wanted.key)?);
        Ok(Self { reader, record: ByteRecord::new(), line, key, value, delimiter, quotes })
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
        self.reader.get_mut().row_bytes = 0;
        let read = self.reader.read_byte_record(&mut self.record);
        let row = self.reader.get_mut().next_row();
        self.line = row.line;
        self.reader.get_ref().must_be_closed()?;
        if !read.map_err(|error| explain(&error))? {
            return Ok(false);
        }
        row.must_be_whole()?;
        pair.key.clear();
        pair.value.clear();
        self.take(&self.key, &mut pair.key);
        if let Some(columns) = &self.value {
            self.take(columns, &mut pair.value);
        }
        Ok(true)
    }

    fn line(&self) -> u64 {
        self.line
    }
}

/// Text on its way to the reader: whether a quote is open behind what it has read, and where its rows begin.
struct Quotes {
    text: Box<dyn BufRead>,
    delimiter: u8,
    /// Quotes mean something.
    quotes: bool,
    place: Place,
    is_over: bool,
    /// Read for this row; rows that were there already count for nothing.
    row_bytes: u64,
    /// Of what comes next, from 1.
    line: u64,
    /// The last byte was a CR: an LF that follows ends the same line.
    is_behind_cr: bool,
    /// Something of a row is read, and not its end.
    is_in_row: bool,
    /// Those that were read ahead.
    rows: VecDeque<Row>,
}

/// What the reader does not tell of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Where it begins, from 1.
    line: u64,
    /// There is text behind a closing quote.
    is_torn: bool,
}

impl Row {
    fn must_be_whole(self) -> Result<(), Failure> {
        if self.is_torn { Err(Failure::new("there is text behind the quote that closes a field")) } else { Ok(()) }
    }
}

/// Where in a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing of it is read.
    Start,
    /// It began without a quote, or its closing quote was passed: quotes mean nothing.
    Plain,
    /// Between its quotes.
    Quoted,
    /// Behind a quote that ends it, or is the first of two.
    Closing,
}

impl Quotes {
    fn new(text: Box<dyn BufRead>, delimiter: u8, quotes: bool) -> Self {
        let (is_over, row_bytes, line, is_in_row) = (false, 0, 1, false);
        let (place, rows) = (Place::Start, VecDeque::new());
        Self { text, delimiter, quotes, place, is_over, row_bytes, line, is_behind_cr: false, is_in_row, rows }
    }

    fn pass(&mut self, bytes: &[u8]) {
        // Without meaning a quote is not looked for.
        let quote = if self.quotes { b'"' } else { b'\n' };
        let mut from = 0;
        for at in memchr3_iter(quote, b'\n', b'\r', bytes) {
            self.pass_text(&bytes[from..at]);
            if bytes[at] == b'"' {
                self.pass_quote()
            } else {
                self.pass_break(bytes[at])
            }
            from = at + 1;
        }
        self.pass_text(&bytes[from..]);
    }

    /// Without quotes and line breaks.
    fn pass_text(&mut self, text: &[u8]) {
        let Some(&last) = text.last() else { return };
        self.is_behind_cr = false;
        self.begin_row();
        if self.place == Place::Closing
            && text[0] != self.delimiter
            && let Some(row) = self.rows.back_mut()
        {
            row.is_torn = true;
        }
        if self.place != Place::Quoted {
            self.place = if last == self.delimiter { Place::Start } else { Place::Plain };
        }
    }

    fn pass_quote(&mut self) {
        self.is_behind_cr = false;
        self.begin_row();
        self.place = match self.place {
            Place::Start | Place::Closing => Place::Quoted,
            Place::Quoted => Place::Closing,
            Place::Plain => Place::Plain,
        };
    }

    fn pass_break(&mut self, byte: u8) {
        self.line += u64::from(byte == b'\r' || !self.is_behind_cr);
        self.is_behind_cr = byte == b'\r';
        if self.place != Place::Quoted {
            (self.place, self.is_in_row) = (Place::Start, false);
        }
    }

    fn begin_row(&mut self) {
        if !self.is_in_row {
            self.is_in_row = true;
            self.rows.push_back(Row { line: self.line, is_torn: false });
        }
    }

    /// The next row: one that the reader has taken or failed to take.
    fn next_row(&mut self) -> Row {
        self.rows.pop_front().unwrap_or(Row { line: self.line, is_torn: false })
    }

    /// Only behind the last row can that be told: before, the text is read ahead of the rows.
    fn must_be_closed(&self) -> Result<(), Failure> {
        if self.is_over && self.place == Place::Quoted {
            return Err(Failure::new("a quote is opened here, or later in this row, and never closed"));
        }
        Ok(())
    }
}

impl Read for Quotes {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.text.read(to)?;
        self.pass(&to[..read]);
        self.row_bytes += read as u64;
        if self.row_bytes > rows::ROW_BYTES {
            return Err(io::Error::other(rows::too_long()));
        }
        self.is_over = read == 0;
        Ok(read)
    }
}

fn find_all(header: &ByteRecord, names: &[String]) -> Result<Vec<usize>, Failure> {
    names.iter().map(|name| find(header, name)).collect()
}

/// Columns that a message names, and how much of each.
const COLUMNS_NAMED: usize = 20;
const NAME_CHARS: usize = 40;

fn shown(column: &[u8]) -> String {
    let start = String::from_utf8_lossy(&column[..column.len().min(4 * NAME_CHARS)]);
    start.chars().take(NAME_CHARS).flat_map(char::escape_debug).collect()
}

fn find(header: &ByteRecord, name: &str) -> Result<usize, Failure> {
    let mut places = (0..).zip(header).filter_map(|(at, column)| (column == name.as_bytes()).then_some(at));
    match (places.next(), places.count()) {
        (Some(at), 0) => Ok(at),
        (Some(_), more) => Err(Failure::new(format!("there are {} columns `{name}`", more + 1))),
        (None, _) => {
            // What is no table may have one of megabytes.
            let columns: Vec<_> = header.iter().take(COLUMNS_NAMED).map(shown).collect();
            let more = if header.len() > COLUMNS_NAMED { " and more" } else { "" };
            Err(Failure::new(format!("there is no column `{name}`; the columns are {}{more}", columns.join(", "))))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = b"a,\"\n\r";

    fn quotes() -> Quotes {
        Quotes::new(Box::new(io::empty()), b',', true)
    }

    fn texts() -> impl Iterator<Item = Vec<u8>> {
        let text = |number| (0..6).map(|digit| BYTES[number / BYTES.len().pow(digit) % BYTES.len()]).collect();
        (0..BYTES.len().pow(6)).map(text)
    }

    fn records(text: &[u8], end: &str) -> usize {
        let text = [text, end.as_bytes()].concat();
        ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&text[..]).into_byte_records().count()
    }

    /// Behind an open quote a line break is text to the reader.
    #[test]
    fn an_open_quote_is_one_where_the_reader_sees_one() {
        for text in texts() {
            let is_open = records(&text, "a\nb") == records(&text, "a");
            let (mut whole, mut pieces) = (quotes(), quotes());
            whole.pass(&text);
            text.iter().for_each(|byte| pieces.pass(&[*byte]));
            assert_eq!(whole.place == Place::Quoted, is_open, "{}", text.escape_ascii());
            assert_eq!(pieces.place == Place::Quoted, is_open, "{}", text.escape_ascii());
        }
    }

    /// The reader's own line of a row is that of the first byte behind the row before; line breaks may follow.
    #[test]
    fn a_row_begins_at_its_first_byte_that_is_no_line_break() {
        for (text, quotes) in texts().flat_map(|text| [(text.clone(), true), (text, false)]) {
            let mut builder = ReaderBuilder::new();
            let records = builder.has_headers(false).flexible(true).quoting(quotes).from_reader(&text[..]).into_byte_records();
            let begin = |from: u64| from as usize + text[from as usize..].iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            let ends_line = |at: &usize| text[*at] == b'\r' || text[*at] == b'\n' && (*at == 0 || text[at - 1] != b'\r');
            let line = |to: usize| 1 + (0..to).filter(ends_line).count() as u64;
            let mut expected = Vec::new();
            for record in records {
                expected.push(line(begin(record.unwrap().position().unwrap().byte())));
            }
            let mut pieces = Quotes::new(Box::new(io::empty()), b',', quotes);
            text.iter().for_each(|byte| pieces.pass(&[*byte]));
            let lines: Vec<_> = pieces.rows.iter().map(|row| row.line).collect();
            assert_eq!(lines, expected, "{}, quotes: {quotes}", text.escape_ascii());
        }
    }
}
