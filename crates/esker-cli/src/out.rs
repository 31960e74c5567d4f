//! Writing to standard output.
//!
//! `println!` panics when its reader has gone away; these functions return the error instead, which
//! [`Failure::output`] tells apart.

use std::io::{self, Write};

use crate::failure::{Failure, Outcome};

/// Writes the bytes and then a line break.
pub(crate) fn line(bytes: impl AsRef<[u8]>) -> Outcome {
    let mut stdout = io::stdout().lock();
    write_line(&mut stdout, bytes.as_ref()).map_err(|error| Failure::output(&error))
}

fn write_line(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.write_all(b"\n")?;
    to.flush()
}
