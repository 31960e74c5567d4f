//! The long lanes, one command each: `cargo xtask crash | faults | rot | kill | processes | soak`; `coverage`, which tells what tests run;
//! and `golden`, which writes what a test keeps reading.
//!
//! The theory: a lane is a list of programs, each judged by itself (`esker_sim::crash`); the crew here shares them among processes, says
//! how far it is, notices the one that hangs, and closes with one line of figures. It ends with 1 if a promise was broken.

mod arguments;
mod coverage;
mod crew;
mod lanes;
mod soak;

use arguments::Arguments;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask crash [--cuts N] [--exhaustive L]   power cuts at every call (N such as 300M; L: all programs of up to L steps)
            [--crowds]                          of stores whose keys share index entries, alone
            [--cache | --history | --rebuilt]   of caches, of stores with a history, of indices that openings make anew
cargo xtask faults [--all | --programs P]       each call fails, once and for ever
            [--after-cuts]                      each call of an opening after a power cut, and of what is done then
cargo xtask rot [--stride B] [--strict]         bits flipped (one in B), sectors blank, stale, exchanged, files cut
cargo xtask kill [--kills N]                    kill -9 of the program under load, and of transfers, 100 times each unless said
cargo xtask processes [--kills N]               48 processes write through a server, N of them are killed, 100 unless said
cargo xtask golden                              writes the golden stores of this format to fixtures/
cargo xtask soak [--minutes N]                  a store of constant size, overwritten, filled and emptied: all stays flat
cargo xtask coverage                            the parts of the engine that its tests run, by file
    all:  --seed S  --programs P  --jobs J  --always (each operation durable)  --keep-going V (violations to show)";

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => run(&arguments),
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> ExitCode {
    // What is resident in a soak is the store's and not this program's wish.
    if arguments.lane != "soak" {
        keep_memory();
    }
    let passed = match arguments.lane.as_str() {
        "crash" => lanes::crash(arguments),
        "faults" => lanes::faults(arguments),
        "kill" => lanes::kill(arguments),
        "processes" => lanes::processes(arguments),
        "coverage" => coverage::run(),
        "golden" => lanes::golden(),
        "soak" => soak::run(arguments.minutes),
        _ => lanes::rot(arguments),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The allocator keeps what is freed. An opening takes and gives back buffers of a mebibyte; from the kernel each time, they
/// cost nine tenths of an opening (340 instead of 3,200 openings a second and core, measured 2026-11).
fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, bytes) in [(libc::M_MMAP_THRESHOLD, 1 << 30), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_TOP_PAD, 64 << 20)] {
        // SAFETY: mallopt takes no pointers, and no other thread runs yet.
        unsafe { libc::mallopt(option, bytes) };
    }
}
