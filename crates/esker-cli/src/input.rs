//! From the name of a file to its plain bytes.
//!
//! Whether a file is packed is decided by its first two bytes, never by its name, so that standard input and
//! misnamed files work as well. Its format is decided by its name, which may be wrong; then `--format` says it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use crate::args::Format;
use crate::failure::Failure;
use crate::progress;

const BUFFER: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A stream of plain text and the bar that follows how far it was read.
pub(crate) struct Input {
    /// The text, unpacked.
    pub(crate) text: Box<dyn BufRead>,
    /// Moves with every read of the file itself.
    pub(crate) bar: ProgressBar,
}

/// Opens a file, or standard input for `-`.
pub(crate) fn open(path: &Path) -> Result<Input, Failure> {
    open_plain_or_packed(path).map_err(|error| Failure::about(name(path), error))
}

/// How the file is called in messages.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// What the file's name says about its format.
pub(crate) fn guess_format(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
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

fn open_plain_or_packed(path: &Path) -> io::Result<Input> {
    if is_stdin(path) {
        let bar = progress::of_unknown_length();
        return Ok(Input { text: unpack(bar.wrap_read(io::stdin()))?, bar });
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let bar = if about.is_file() { progress::of_bytes(about.len()) } else { progress::of_unknown_length() };
    Ok(Input { text: unpack(bar.wrap_read(file))?, bar })
}

fn unpack(mut raw: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    raw.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
    let packed = start == GZIP_MAGIC;
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(raw));
    Ok(if packed { Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole))) } else { Box::new(whole) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_guessed_behind_gz() {
        let guess = |name: &str| guess_format(Path::new(name));
        assert_eq!(guess("a/b.csv"), Some(Format::Csv));
        assert_eq!(guess("b.TSV.gz"), Some(Format::Tsv));
        assert_eq!(guess("b.ndjson"), Some(Format::Jsonl));
        assert_eq!(guess("b.txt"), None);
        assert_eq!(guess("-"), None);
    }
}
