//! From the name of a file to its plain bytes.
//!
//! Whether a file is packed is decided by its first two bytes, never by its name, so that standard input and
//! misnamed files work as well. Its format is decided by its name, which may be wrong; then `--format` says it. A byte order
//! mark is no text.
//!
//! What is no file may be silent for hours. It is read by a thread of its own, so that an interrupt is heard meanwhile.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use flate2::bufread::GzDecoder;
use indicatif::ProgressBar;

use crate::args::Format;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt::Interrupt;
use crate::progress;

const BUFFER: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// That of UTF-16, in both orders.
const WIDE_MARKS: [[u8; 2]; 2] = [[0xff, 0xfe], [0xfe, 0xff]];
/// Pieces read ahead of their use.
const PIECES: usize = 4;
/// How long an interrupt may go unheard.
const LISTENS: Duration = Duration::from_millis(200);

/// A stream of plain text and the bar that follows how far it was read.
pub(crate) struct Input {
    /// The text, unpacked.
    pub(crate) text: Box<dyn BufRead>,
    /// Moves with every read of the file itself.
    pub(crate) bar: ProgressBar,
}

/// Opens a file, or standard input for `-`.
pub(crate) fn open(path: &Path, interrupt: &Interrupt) -> Result<Input, Failure> {
    open_plain_or_packed(path, interrupt).map_err(|error| Failure::about(name(path), error))
}

/// How the file is called in messages.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// What the file's name says about its format.
pub(crate) fn guess_format(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    match plain.rsplit_once('.')?.1 {
        "csv" => Some(Format::Csv),
        "tsv" | "tab" => Some(Format::Tsv),
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        _ => None,
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open_plain_or_packed(path: &Path, interrupt: &Interrupt) -> io::Result<Input> {
    if is_stdin(path) {
        let bar = progress::of_unknown_length();
        return Ok(Input { text: unpack(bar.wrap_read(Listening::new(|| Ok(io::stdin()), interrupt)?))?, bar });
    }
    let about = fs::metadata(path)?;
    if about.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !about.is_file() {
        let (bar, path) = (progress::of_unknown_length(), path.to_owned());
        // A pipe is open when somebody writes to it.
        return Ok(Input { text: unpack(bar.wrap_read(Listening::new(move || File::open(path), interrupt)?))?, bar });
    }
    let bar = progress::of_bytes(about.len());
    Ok(Input { text: unpack(bar.wrap_read(File::open(path)?))?, bar })
}

fn unpack(mut raw: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let start = beginning(&mut raw, GZIP_MAGIC.len())?;
    let packed = start == GZIP_MAGIC;
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(raw));
    let mut text: Box<dyn Read> = if packed { Box::new(Members(Some(GzDecoder::new(whole)))) } else { Box::new(whole) };
    let mut start = beginning(&mut text, BYTE_ORDER_MARK.len())?;
    if start == BYTE_ORDER_MARK {
        start.clear();
    }
    if WIDE_MARKS.iter().any(|mark| start.starts_with(mark)) {
        return Err(io::Error::other("this is UTF-16: make it UTF-8 first, by `iconv -f UTF-16 -t UTF-8`, say"));
    }
    Ok(Box::new(BufReader::with_capacity(BUFFER, Cursor::new(start).chain(text))))
}

/// What was packed, one member of the file behind the other, up to its end, or to the zeros that fill a tape's last block. At the end there
/// is none.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let bytes = member.read(to)?;
            if bytes > 0 || to.is_empty() {
                return Ok(bytes);
            }
            let Some(member) = self.0.take() else { break };
            self.0 = behind_zeros(member.into_inner())?.map(member_of).transpose()?;
        }
        Ok(0)
    }
}

/// The next member, of what begins like one.
fn member_of<R: BufRead>(mut rest: R) -> io::Result<GzDecoder<R>> {
    if rest.fill_buf()?.first() != Some(&GZIP_MAGIC[0]) {
        return Err(io::Error::other("all that is packed is whole, but something follows it that is not gzip"));
    }
    Ok(GzDecoder::new(rest))
}

/// The rest behind the zeros that it begins with; `None` if there is nothing.
fn behind_zeros<R: BufRead>(mut rest: R) -> io::Result<Option<R>> {
    loop {
        let next = match rest.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            next => next?,
        };
        let (zeros, bytes) = (next.iter().take_while(|byte| **byte == 0).count(), next.len());
        rest.consume(zeros);
        if bytes == 0 || zeros < bytes {
            return Ok((bytes > 0).then_some(rest));
        }
    }
}

fn beginning(text: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(bytes);
    text.take(bytes as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// What a thread reads, given on; an error once an interrupt has come.
struct Listening {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Cursor<Vec<u8>>,
    interrupt: Interrupt,
}

impl Listening {
    /// The thread ends with its input, or at its next piece after this value.
    fn new<R: Read>(open: impl FnOnce() -> io::Result<R> + Send + 'static, interrupt: &Interrupt) -> io::Result<Self> {
        let (send, pieces) = sync_channel(PIECES);
        thread::Builder::new().spawn(move || {
            if let Err(error) = open().and_then(|from| pass_on(from, &send)) {
                let _ = send.send(Err(error));
            }
        })?;
        Ok(Self { pieces, piece: Cursor::default(), interrupt: interrupt.clone() })
    }
}

/// Until the end, or nobody listens any more.
fn pass_on(mut from: impl Read, to: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) if to.send(Ok(buffer[..bytes].to_vec())).is_err() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Read for Listening {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.piece.position() == self.piece.get_ref().len() as u64 {
            if self.interrupt.has_come() {
                return Err(io::Error::other(INTERRUPTED));
            }
            match self.pieces.recv_timeout(LISTENS) {
                Ok(piece) => self.piece = Cursor::new(piece?),
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.piece.read(to)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_format_is_guessed_behind_gz() {
        let guess = |name: &str| guess_format(Path::new(name));
        assert_eq!(guess("a/b.csv"), Some(Format::Csv));
        assert_eq!(guess("b.TSV.gz"), Some(Format::Tsv));
        assert_eq!(guess("b.ndjson"), Some(Format::Jsonl));
        assert_eq!(guess("b.txt"), None);
        assert_eq!(guess("-"), None);
        assert_eq!(guess_format(Path::new(OsStr::from_bytes(b"caf\xe9.csv"))), Some(Format::Csv));
    }
}
