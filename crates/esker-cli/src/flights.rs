//! The demo's data: every flight that left New York City in 2013.
//!
//! The packed table is part of the program, and is unpacked as a stream each time it is read, so the demo never
//! holds in memory what it claims to keep in a store. Where the data is from and its licence stand in
//! `data/README.md`. No field of the table has quotes or commas in it, so a row is split at its commas.

use std::io::{self, BufRead, BufReader};

use flate2::read::GzDecoder;

static PACKED: &[u8] = include_bytes!("../data/flights.csv.gz");

const TAILNUM: usize = 3;
const DEST: usize = 5;
/// Where a row's date, such as 2013-06-01, has its month.
const MONTH: std::ops::Range<usize> = 5..7;
const HEADER: &str = "date,carrier,flight,tailnum,origin,dest,distance,dep_delay,arr_delay";

/// How many flights the table has.
pub(crate) const ROWS: u64 = 336_776;

/// How many bytes of text their rows are.
pub(crate) const BYTES: u64 = 14_876_956;

/// The table has this for an aircraft that is not known.
pub(crate) const UNKNOWN: &str = "NA";

/// One flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight<'a> {
    /// The whole row, with its line break.
    pub(crate) row: &'a str,
    /// The month, in two digits.
    pub(crate) month: &'a str,
    /// The aircraft.
    pub(crate) tailnum: &'a str,
    /// The airport flown to.
    pub(crate) dest: &'a str,
}

/// Calls `visit` with every flight, in the table's order.
pub(crate) fn each<E: From<io::Error>>(mut visit: impl FnMut(Flight<'_>) -> Result<(), E>) -> Result<(), E> {
    let mut text = BufReader::with_capacity(64 << 10, GzDecoder::new(PACKED));
    let mut row = String::new();
    text.read_line(&mut row)?;
    if row.trim_end() != HEADER {
        return Err(malformed(&row).into());
    }
    loop {
        row.clear();
        if text.read_line(&mut row)? == 0 {
            return Ok(());
        }
        visit(parse(&row).ok_or_else(|| malformed(&row))?)?;
    }
}

fn parse(row: &str) -> Option<Flight<'_>> {
    let mut fields = row.trim_end().split(',');
    let tailnum = fields.nth(TAILNUM)?;
    let dest = fields.nth(DEST - TAILNUM - 1)?;
    Some(Flight { row, month: row.get(MONTH)?, tailnum, dest })
}

fn malformed(row: &str) -> io::Error {
    io::Error::other(format!("the flights built into this program are damaged at {row:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let (mut rows, mut bytes) = (0, 0);
        each::<io::Error>(|flight| {
            assert_eq!(flight.dest.len(), 3, "{flight:?}");
            assert!(flight.row.ends_with('\n'));
            rows += 1;
            bytes += flight.row.len() as u64;
            Ok(())
        })
        .unwrap();
        assert_eq!((rows, bytes), (ROWS, BYTES));
    }
}
