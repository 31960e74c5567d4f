//! `esker export`: every pair of a store, as of one moment, in a format that other programs read; in no order.
//!
//! ```text
//! scan -> PairWriter (csv, jsonl; columns.rs: arrow, parquet) -> standard output, or a file that appears when it is whole
//! ```
//! A pipe, a device or a link cannot appear: it is there, and is written to.
//! Keys and values are bytes. CSV quotes what needs it (RFC 4180). JSON knows only text: bytes that are no UTF-8 become
//! `{"hex":"..."}`. Arrow and Parquet have bytes, and numbers and text for those who say that theirs are.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::args::{ExportArgs, ExportFormat, Opening};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::store::{look_at, refuse_inside};
use crate::watch::until;

/// Where bytes go; columns are made by whoever may be on another thread.
pub(crate) type Output = Box<dyn Write + Send>;

/// A format.
pub(crate) trait PairWriter {
    /// One pair more.
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Outcome;
    /// Writes what is still held.
    fn finish(&mut self) -> Outcome;
}

/// Writes all pairs.
pub(crate) fn run(args: &ExportArgs, opening: Opening) -> Outcome {
    let output = output(args);
    check(args, output)?;
    output.map_or(Ok(()), |output| refuse_inside(&args.dir, output))?;
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    let file = look_at(&args.dir, opening, |store| {
        let replaced = output.filter(|path| is_replaced(path));
        // Before there is a file, which would stay.
        let interrupt = if replaced.is_some() { Interrupt::catch() } else { Interrupt::catch_for_reader() }?;
        let file = replaced.map(beside).transpose()?;
        let (to, is_terminal) = match (&file, output) {
            (Some(file), _) => writes_to(file.reopen()?),
            (None, Some(path)) => writes_to(there(path)?),
            (None, None) => writes_to(io::stdout()),
        };
        let scan = until(store.scan().prefix(prefix), interrupt, is_terminal);
        let name = output.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
        let mut writer = writer(args, Box::new(BufWriter::new(Named { name, to })))?;
        let broke = scan.try_for_each(|key, value| match writer.pair(key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => ControlFlow::Break(failure),
        })?;
        broke.map_or(Ok(()), Err)?;
        writer.finish()?;
        Ok(file)
    })
    .map_err(|why| in_output(output, why))?;
    match (file, output) {
        (Some(file), Some(path)) => put_in_place(file, path).map_err(|error| Failure::about(path.display(), error)),
        _ => Ok(()),
    }
}

/// The file; none for standard output.
fn output(args: &ExportArgs) -> Option<&Path> {
    args.output.as_deref().filter(|path| *path != Path::new("-"))
}

/// Whoever reads standard output and closes it has seen enough; a pipe that was named is to get everything.
fn in_output(output: Option<&Path>, why: Failure) -> Failure {
    match (why, output) {
        (Failure::OutputClosed, Some(path)) => Failure::about(path.display(), "nobody reads it any more"),
        (why, _) => why,
    }
}

/// Whoever could not read what was there cannot read what takes its place.
fn put_in_place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(about) => file.as_file().set_permissions(about.permissions())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn check(args: &ExportArgs, output: Option<&Path>) -> Outcome {
    if let Some(output) = output.map(Path::as_os_str).filter(|output| output.as_bytes().ends_with(b"/")) {
        return Err(Failure::Usage(format!("`{}` is no name of a file", output.display())));
    }
    let has_types = matches!(args.format, ExportFormat::Arrow | ExportFormat::Parquet);
    if !has_types && (args.key_type.is_some() || args.value_type.is_some()) {
        return Err(Failure::Usage("--key-type and --value-type are for --format arrow and parquet".to_owned()));
    }
    if has_types && !cfg!(feature = "arrow") {
        // Before anything is opened for writing.
        return Err(not_built(args));
    }
    if has_types && output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::Usage("this format is not for terminals: give --output FILE".to_owned()));
    }
    Ok(())
}

/// An output whose errors say what it is.
struct Named {
    name: String,
    to: Output,
}

impl Named {
    fn named(&self, why: &io::Error) -> io::Error {
        io::Error::new(why.kind(), format!("{}: {why}", self.name))
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes).map_err(|why| self.named(&why))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(|why| self.named(&why))
    }
}

/// True for a file, and where nothing is.
fn is_replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |about| about.is_file())
}

/// The output, and whether it is a terminal.
fn writes_to(to: impl Write + IsTerminal + Send + 'static) -> (Output, bool) {
    let is_terminal = to.is_terminal();
    (Box::new(to), is_terminal)
}

/// What is there, or what it leads to.
fn there(path: &Path) -> Result<File, Failure> {
    let opened = File::create(path);
    opened.map_err(|error| Failure::about(path.display(), error))
}

/// A file in the same directory, gone unless it takes the path's place in the end.
fn beside(path: &Path) -> Result<NamedTempFile, Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // As any new file: a temporary one would be the owner's alone. But nobody reads in it what he may not read in what it replaces. Its
    // owner may in any case: it is opened once more.
    let mode = fs::metadata(path).map_or(0o666, |about| about.permissions().mode() & 0o777 | 0o600);
    builder.prefix(".esker-export").permissions(Permissions::from_mode(mode));
    builder.tempfile_in(parent).map_err(|error| Failure::about(path.display(), error))
}

fn writer(args: &ExportArgs, output: Output) -> Result<Box<dyn PairWriter>, Failure> {
    match args.format {
        ExportFormat::Csv => Ok(Box::new(Csv::new(output)?)),
        ExportFormat::Jsonl => Ok(Box::new(Jsonl(output))),
        ExportFormat::Arrow | ExportFormat::Parquet => columns(args, output),
    }
}

#[cfg(feature = "arrow")]
fn columns(args: &ExportArgs, output: Output) -> Result<Box<dyn PairWriter>, Failure> {
    crate::columns::writer(args, output)
}

#[cfg(not(feature = "arrow"))]
fn columns(args: &ExportArgs, _: Output) -> Result<Box<dyn PairWriter>, Failure> {
    Err(not_built(args))
}

fn not_built(args: &ExportArgs) -> Failure {
    let format = format!("{:?}", args.format).to_lowercase();
    Failure::new(format!("--format {format} needs a program built with the feature `arrow`: cargo build --features arrow"))
}

struct Csv(csv::Writer<Output>);

impl Csv {
    fn new(output: Output) -> Result<Self, Failure> {
        let mut writer = csv::Writer::from_writer(output);
        writer.write_record(["key", "value"]).map_err(csv_failure)?;
        Ok(Self(writer))
    }
}

fn csv_failure(error: csv::Error) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Failure::written(&error),
        other => Failure::new(format!("{other:?}")),
    }
}

impl PairWriter for Csv {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.0.write_record([key, value]).map_err(csv_failure)
    }

    fn finish(&mut self) -> Outcome {
        self.0.flush().map_err(|error| Failure::written(&error))
    }
}

struct Jsonl(Output);

impl Jsonl {
    fn line(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, &json!({ "key": text(key), "value": short(value) }))?;
        self.0.write_all(b"\n")
    }
}

impl PairWriter for Jsonl {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        self.line(key, value).map_err(|error| Failure::written(&error))
    }

    fn finish(&mut self) -> Outcome {
        self.0.flush().map_err(|error| Failure::written(&error))
    }
}

/// Text of a value whose escapes would make a row that `load` refuses: bytes are shorter.
const ESCAPED_MAX: usize = 32 << 20;

fn short(bytes: &[u8]) -> Value {
    // A control character is six bytes at most (`\u0000`).
    let long = bytes.len() * 6 > ESCAPED_MAX
        && bytes.iter().map(|byte| if *byte < 0x20 { 6 } else { 1 + usize::from(matches!(byte, b'"' | b'\\')) }).sum::<usize>()
            > ESCAPED_MAX;
    if long { hex(bytes) } else { text(bytes) }
}

fn hex(bytes: &[u8]) -> Value {
    json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
}

/// Text as itself, other bytes in hexadecimal. `load --hex` reads both.
pub(crate) fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => hex(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until it was whole, anybody read in it what is the owner's alone.
    #[test]
    fn what_replaces_a_private_file_is_private_from_the_beginning() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out.csv");
        let mode = |file: &NamedTempFile| file.as_file().metadata().unwrap().permissions().mode() & 0o777;
        let common = mode(&beside(&path).unwrap());
        fs::write(&path, "old").unwrap();
        for (private, begins) in [(0o600, 0o600), (0o440, 0o640 & common), (0o400, 0o600)] {
            fs::set_permissions(&path, Permissions::from_mode(private)).unwrap();
            let file = beside(&path).unwrap();
            assert_eq!(mode(&file), begins, "{private:o}");
            file.reopen().unwrap();
            put_in_place(file, &path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, private);
        }
    }
}
