//! Benchmarks of Esker, alone and against other maps.
//!
//! Each subcommand is one experiment. All of them print a table, write machine-readable rows with
//! `--json` and most of them a drawing with `--svg`, and stop with an error if a value read is wrong: a store
//! that is fast and wrong has no rate. Build with `--features peers` for the maps compared with and with
//! `--features peers-disk` for the disk engines.

mod aggregate;
mod answers;
mod append;
mod cache;
mod chart;
mod commit;
mod engines;
mod flood;
mod fractions;
mod growth;
mod hybrid;
mod integrity;
mod keys;
mod memory;
mod number;
mod pacing;
mod pairs;
mod probe;
mod processor;
mod progress;
mod recovery;
mod report;
mod run;
mod size;
mod steady;
mod transactions;
mod turnover;
mod turns;
mod ycsb;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Benchmarks of the Esker key-value store.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Mixes of reads and writes over loaded keys, after the Yahoo cloud serving benchmark.
    Ycsb(ycsb::Arguments),
    /// The rate of inserts into a map that grows from nothing.
    Growth(growth::Arguments),
    /// Sums over many objects: gathered by a client, by keys, by index and by log.
    Aggregate(aggregate::Arguments),
    /// Appends of small records to growing values.
    Append(append::Arguments),
    /// Adds and reads in memory of a fraction of the data, beside maps that hold all of it.
    Hybrid(fractions::Arguments),
    /// Reads from data larger than memory, beside raw reads of the same device.
    HybridReads(hybrid::Arguments),
    /// Hit rates and throughput of caches, of requests whose favourites change.
    Cache(cache::Arguments),
    /// Updates while lines are drawn, and durable calls beside the device's own syncs.
    Commit(commit::Arguments),
    /// Pairs inserted, then fetched, by many writers, with integrity and durability or without.
    Pairs(pairs::Arguments),
    /// Overwrites beside compaction in the background, or reads beside sums, and without.
    Pacing(pacing::Arguments),
    /// What it costs to check each block that is read or written.
    Integrity(integrity::Arguments),
    /// Opening a store that was not closed, beside reading its log.
    Recovery(recovery::Arguments),
    /// Transactions of several keys by many threads.
    Transactions(transactions::Arguments),
    /// Records that come and go at a constant number, in stores more or less full.
    Turnover(turnover::Arguments),
    /// More records than there is memory for: what is slowed down, refused, or dropped and counted
    Flood(flood::Arguments),
    /// Updates at a steady rate for as long as one likes: each second, and the last calls beside the first
    Steady(steady::Arguments),
}

/// Where the rows go besides the standard output.
#[derive(Args, Clone, Default)]
struct Rows {
    /// Write the rows here as JSON
    #[arg(long, value_name = "FILE", value_parser = writable)]
    json: Option<PathBuf>,
}

/// Where results go besides the standard output, of an experiment that has a drawing.
#[derive(Args, Clone, Default)]
struct Outputs {
    #[command(flatten)]
    rows: Rows,
    /// Write a drawing here as SVG
    #[arg(long, value_name = "FILE", value_parser = writable)]
    svg: Option<PathBuf>,
}

/// Esker asks the system for huge pages. So that the peers' memory has them as well, this program starts itself once more with the C
/// library's allocator told to ask for them, unless its settings were given.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_peers_huge_pages() {
    use std::os::unix::process::CommandExt;
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_none()
        && let Ok(me) = std::env::current_exe()
    {
        let mut again = std::process::Command::new(me);
        let error = again.args(std::env::args_os().skip(1)).env(TUNABLES, "glibc.malloc.hugetlb=1").exec();
        eprintln!("peers that allocate have small pages: {error}");
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_peers_huge_pages() {}

/// A file that can be written: who measures for an hour should not learn afterwards that it cannot.
fn writable(path: &str) -> Result<PathBuf, String> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(|_| PathBuf::from(path)).map_err(|error| error.to_string())
}

/// Where an experiment keeps its files.
#[derive(Args, Clone, Debug, Default)]
struct Place {
    /// Directory on the device to measure; the system's for temporary files if not given
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Place {
    /// A fresh directory there.
    fn temporary(&self) -> std::io::Result<tempfile::TempDir> {
        self.directory.as_ref().map_or_else(tempfile::tempdir, tempfile::tempdir_in)
    }
}

/// A choice on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    Off,
    On,
}

impl Switch {
    fn is_on(self) -> bool {
        self == Self::On
    }
}

/// The experiment of a command line.
#[cfg(test)]
fn parsed(line: &str) -> Experiment {
    Arguments::parse_from(line.split(' ')).experiment
}

fn main() -> anyhow::Result<()> {
    give_peers_huge_pages();
    let done = match Arguments::parse().experiment {
        Experiment::Ycsb(arguments) => ycsb::run(&arguments),
        Experiment::Growth(arguments) => growth::run(&arguments),
        Experiment::Aggregate(arguments) => aggregate::run(&arguments),
        Experiment::Append(arguments) => append::run(&arguments),
        Experiment::Hybrid(arguments) => fractions::run(&arguments),
        Experiment::HybridReads(arguments) => hybrid::run(&arguments),
        Experiment::Cache(arguments) => cache::run(&arguments),
        Experiment::Commit(arguments) => commit::run(&arguments),
        Experiment::Pairs(arguments) => pairs::run(&arguments),
        Experiment::Pacing(arguments) => pacing::run(&arguments),
        Experiment::Integrity(arguments) => integrity::run(&arguments),
        Experiment::Recovery(arguments) => recovery::run(&arguments),
        Experiment::Transactions(arguments) => transactions::run(&arguments),
        Experiment::Turnover(arguments) => turnover::run(&arguments),
        Experiment::Flood(arguments) => flood::run(&arguments),
        Experiment::Steady(arguments) => steady::run(&arguments),
    };
    done.and_then(|()| report::said())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What would end in a panic, without end, or with rates that are no numbers.
    #[test]
    fn numbers_without_sense_are_refused() {
        let refused = [
            "ycsb --threads 0",
            "ycsb --seconds 0",
            "ycsb --seconds inf",
            "ycsb --seconds nan",
            "ycsb --batch 16777217",
            "ycsb --keys 18446744073709551615",
            "growth --keys 18446744073709551615",
            "append --records 18446744073709551615",
            "hybrid --threads 1,0",
            "hybrid --passes 0",
            "hybrid --passes 20000000",
            "hybrid --percent 18446744073709551615",
            "hybrid-reads --seconds inf",
            "cache --threads 0",
            "cache --exponents=-1",
            "cache --exponents nan",
            "commit --line-seconds inf",
            "commit --line-seconds 1e-300",
            "commit --commit-threads 0",
            "pairs --seconds nan",
            "transactions --threads 0",
            "pacing --rate inf",
            "pacing --target nan",
            "pacing --target 0",
            "integrity --runs 0",
            "recovery --pairs 18446744073709551615",
            "turnover --turnovers 18446744073709551615",
            "flood --records 18446744073709551615",
            "aggregate --keys 18446744073709551615",
        ];
        for line in refused {
            assert!(Arguments::try_parse_from(format!("esker-bench {line}").split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn files_that_cannot_be_written_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("a directory");
        let in_folder = |name: &str| folder.path().join(name).display().to_string();
        for option in ["--json", "--svg"] {
            let parse = |path: &str| Arguments::try_parse_from(["esker-bench", "steady", option, path]);
            assert!(parse(&in_folder("rows")).is_ok(), "{option}");
            assert!(parse(&in_folder("nowhere/rows")).is_err() && parse(&in_folder("")).is_err(), "{option}");
        }
    }

    #[test]
    fn who_draws_nothing_takes_no_name_for_a_drawing() {
        let takes = |experiment| Arguments::try_parse_from(["esker-bench", experiment, "--svg", "/dev/null"]).is_ok();
        assert!(["ycsb", "steady", "turnover"].into_iter().all(takes));
        assert!(!["flood", "pacing", "integrity", "recovery"].into_iter().any(takes));
    }

    #[test]
    fn who_keeps_files_takes_a_place_for_them() {
        let takes = |experiment| Arguments::try_parse_from(["esker-bench", experiment, "--directory", "/tmp"]).is_ok();
        assert!(["ycsb", "growth", "append", "aggregate", "hybrid", "hybrid-reads", "commit", "steady"].into_iter().all(takes));
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
