//! `esker scan`: every key of a store, as of one moment, in no order. Keys and values are shown as the bytes that they are.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;

use crate::args::{Opening, ScanArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::store::look_at;
use crate::watch::until;

/// Prints keys and values, a pair on a line, with a tab in between.
pub(crate) fn run(args: &ScanArgs, opening: Opening) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut out = BufWriter::new(io::stdout().lock());
    let prefix = args.prefix.clone().unwrap_or_default().into_encoded_bytes();
    look_at(&args.dir, opening, |store| {
        if left == 0 {
            return Ok(());
        }
        let scan = until(store.scan().prefix(prefix), Interrupt::catch_for_reader()?, io::stdout().is_terminal());
        let broke = scan.try_for_each(|key, value| {
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
