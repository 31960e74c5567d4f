//! What goes over the socket: frames, of which a request and its reply are one each.
//!
//! ```text
//! frame     length of the body, u32 | body
//! request   1 get      | key
//!           2 put      | key | value
//!           3 transfer | from | to | amount | tally       moves, and counts itself in `tally`, at one moment
//!           4 sum      | end                              of the values of all keys below `end`, as of one moment
//! reply     1 nothing                                     no such key
//!           2 value    | value
//!           3 conflict                                    others were quicker too often; ask again
//!           4 refused  | words
//! ```
//! All numbers are little-endian, and u64 unless said. A frame that says it is longer than any can be, or is none of these, is an
//! `InvalidData`: there is no way to find the next one.

use std::io::{self, Read, Write};

/// No body is longer.
const BODY_BYTES_MAX: usize = 256;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get { key: u64 },
    Put { key: u64, value: u64 },
    Transfer { from: u64, to: u64, amount: u64, tally: u64 },
    Sum { end: u64 },
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nothing,
    Value(u64),
    Conflict,
    Refused(String),
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes one frame with one call, so that it goes out whole.
fn write_frame(to: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| invalid("the body is too long"))?;
    to.write_all(&[&length.to_le_bytes(), body].concat())
}

/// The body of the next frame; nothing at the end, where no frame begins.
fn read_frame(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > BODY_BYTES_MAX {
        return Err(invalid("the body is too long"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some(body))
}

fn body(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
    std::iter::once(kind).chain(numbers).collect()
}

/// So many numbers, and nothing else.
fn numbers<const N: usize>(bytes: &[u8]) -> io::Result<[u64; N]> {
    let (parts, rest) = bytes.as_chunks::<8>();
    let parts: &[[u8; 8]; N] = parts.try_into().map_err(|_| invalid("a frame of another length"))?;
    if rest.is_empty() { Ok(parts.map(u64::from_le_bytes)) } else { Err(invalid("a frame of another length")) }
}

impl Request {
    /// Sends it.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let body = match *self {
            Self::Get { key } => body(1, &[key]),
            Self::Put { key, value } => body(2, &[key, value]),
            Self::Transfer { from, to, amount, tally } => body(3, &[from, to, amount, tally]),
            Self::Sum { end } => body(4, &[end]),
        };
        write_frame(to, &body)
    }

    /// The next one; none when the other side is done.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let Some(body) = read_frame(from)? else { return Ok(None) };
        let request = match body.split_first() {
            Some((1, rest)) => numbers(rest).map(|[key]| Self::Get { key })?,
            Some((2, rest)) => numbers(rest).map(|[key, value]| Self::Put { key, value })?,
            Some((3, rest)) => numbers(rest).map(|[from, to, amount, tally]| Self::Transfer { from, to, amount, tally })?,
            Some((4, rest)) => numbers(rest).map(|[end]| Self::Sum { end })?,
            _ => return Err(invalid("no such request")),
        };
        Ok(Some(request))
    }
}

impl Reply {
    /// Sends it.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Nothing => write_frame(to, &body(1, &[])),
            Self::Value(value) => write_frame(to, &body(2, &[*value])),
            Self::Conflict => write_frame(to, &body(3, &[])),
            Self::Refused(words) => {
                let words = &words.as_bytes()[..words.len().min(BODY_BYTES_MAX - 1)];
                write_frame(to, &[&[4], words].concat())
            }
        }
    }

    /// The reply to the request just sent; that there is none is an `UnexpectedEof`.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let body = read_frame(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match body.split_first() {
            Some((1, rest)) => numbers(rest).map(|[]| Self::Nothing),
            Some((2, rest)) => numbers(rest).map(|[value]| Self::Value(value)),
            Some((3, rest)) => numbers(rest).map(|[]| Self::Conflict),
            Some((4, rest)) => Ok(Self::Refused(String::from_utf8_lossy(rest).into_owned())),
            _ => Err(invalid("no such reply")),
        }
    }
}
