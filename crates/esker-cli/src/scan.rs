//! `esker scan` and `esker export`: every key of a store, as of one moment, in no order.
//!
//! Keys and values are bytes. Lines of a scan show them as they are; CSV quotes what needs it (RFC 4180). JSON knows only text:
//! bytes that are no UTF-8 become `{"hex":"..."}`.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use serde_json::{Value, json};

use crate::args::{ExportArgs, ExportFormat, Opening, ScanArgs};
use crate::failure::{Failure, Outcome};
use crate::store::with_existing;

/// Prints keys and values, a pair on a line, with a tab in between.
pub(crate) fn run(args: &ScanArgs, opening: Opening) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut out = BufWriter::new(io::stdout().lock());
    if left == 0 {
        return Ok(());
    }
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    with_existing(&args.dir, opening, |store| {
        let broke = store.scan().prefix(prefix).try_for_each(|key, value| {
            let written = (|| {
                out.write_all(key)?;
                if !args.keys_only {
                    out.write_all(b"\t")?;
                    out.write_all(value)?;
                }
                out.write_all(b"\n")
            })();
            left -= 1;
            match written {
                Err(error) => ControlFlow::Break(Err(Failure::output(&error))),
                Ok(()) if left == 0 => ControlFlow::Break(Ok(())),
                Ok(()) => ControlFlow::Continue(()),
            }
        })?;
        broke.unwrap_or(Ok(()))?;
        out.flush().map_err(|error| Failure::output(&error))
    })
}

/// Writes all pairs in a format that other programs read.
pub(crate) fn export(args: &ExportArgs, opening: Opening) -> Outcome {
    let out = BufWriter::new(io::stdout().lock());
    let mut write: PairWriter<'_> = match args.format {
        ExportFormat::Csv => csv_writer(out)?,
        ExportFormat::Jsonl => jsonl_writer(out),
    };
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    with_existing(&args.dir, opening, |store| {
        let broke = store.scan().prefix(prefix).try_for_each(|key, value| match write(Some((key, value))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(Failure::output(&error)),
        })?;
        broke.map_or(Ok(()), Err)?;
        write(None).map_err(|error| Failure::output(&error))
    })
}

/// Writes a pair; without one, all that is still held.
type PairWriter<'a> = Box<dyn FnMut(Option<(&[u8], &[u8])>) -> io::Result<()> + 'a>;

fn csv_writer<'a>(out: impl Write + 'a) -> Result<PairWriter<'a>, Failure> {
    let mut writer = csv::Writer::from_writer(out);
    let failed = |error: csv::Error| io::Error::other(error);
    writer.write_record(["key", "value"]).map_err(|error| Failure::output(&failed(error)))?;
    Ok(Box::new(move |pair| {
        let Some((key, value)) = pair else { return writer.flush() };
        writer.write_record([key, value]).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            other => io::Error::other(format!("{other:?}")),
        })
    }))
}

fn jsonl_writer<'a>(mut out: impl Write + 'a) -> PairWriter<'a> {
    Box::new(move |pair| {
        let Some((key, value)) = pair else { return out.flush() };
        serde_json::to_writer(&mut out, &json!({ "key": text(key), "value": text(value) }))?;
        out.write_all(b"\n")
    })
}

/// Text as itself, other bytes in hexadecimal.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}
