//! `esker`: load, look into and try an Esker store from the command line.
//!
//! Every store this program opens maps bytes to bytes. Each subcommand is a function from its arguments to
//! `Result<(), Failure>`; this file alone turns a failure into a message and an exit code. The codes are 0 for
//! success, 1 for an operation that failed (an absent key or a damaged store included), 2 for a command line
//! that makes no sense, and 130 for what an interrupt ended; a second one ends the program elsewhere (`interrupt.rs`).

mod acknowledge;
mod aggregate;
mod args;
mod backup;
mod bytes;
#[cfg(feature = "arrow")]
mod columns;
mod compact;
mod demo;
mod export;
mod failure;
mod figure;
mod flights;
mod input;
mod interrupt;
mod jsonl;
mod load;
mod out;
mod points;
mod progress;
mod rows;
mod salvage;
mod scan;
mod separated;
mod stats;
mod store;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Outcome;

fn main() -> ExitCode {
    // A write beyond `ulimit -f` fails then, as one to a full disk does.
    // SAFETY: no handler, and no memory is passed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Outcome {
    let opening = cli.opening;
    match cli.command {
        Command::Load(args) => load::run(&args, opening),
        Command::Get { dir, key, .. } => points::get(&dir, key, opening),
        Command::Put { dir, key, value, .. } => points::put(&dir, key, value, opening),
        Command::Append { dir, key, value, .. } => points::append(&dir, key, value, opening),
        Command::Delete { dir, key, .. } => points::delete(&dir, key, opening),
        Command::Stats { dir, json } => stats::run(&dir, json, opening),
        Command::Compact { dir, rebuild_index, json } => compact::run(&dir, rebuild_index, json, opening),
        Command::Verify { dir, accept_loss: true, .. } => verify::accept_loss(&dir, opening),
        Command::Verify { dir, json, .. } => verify::run(&dir, json),
        Command::Backup { dir, to, from } => backup::run(&dir, from.as_deref(), &to),
        Command::Restore { backup, dir } => backup::restore(&backup, &dir),
        Command::Salvage { dir, to, json } => salvage::run(&dir, &to, json, opening),
        Command::Scan(args) => scan::run(&args, opening),
        Command::Aggregate(args) => aggregate::run(&args, opening),
        Command::Export(args) => export::run(&args, opening),
        Command::Demo => demo::run(opening),
    }
}
