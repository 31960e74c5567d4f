//! The command line: what can be said, and its help.
//!
//! Keys and values are arbitrary bytes, so they are taken as the operating system gives them and never forced
//! through UTF-8.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use esker::Durability;
use esker::aggregate::KeyPart;

use crate::bytes::{parse_durability, parse_memory};
use crate::rows::Columns;

/// What holds for all commands.
const AFTER: &str =
    "Stores of this program map bytes to bytes; verify without --accept-loss, backup and restore take any store, open none, and need
neither --memory nor --durability. Given before and behind the command, the latter counts.
Exit codes: 0 done; 1 failed, or the key is absent, or the store is damaged; 2 a command line that makes no sense;
130 interrupted. (Single-key commands and stats, and read-only commands while the store is opening, are killed by the signal.)";

/// Load, look into and try an Esker store: keys and values larger than memory, at the speed of memory
#[derive(Debug, Parser)]
#[command(name = "esker", version, after_help = AFTER)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) opening: Opening,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Help of commands that take keys and values: a key may be `-h`, which is not to print this and be a success.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LongHelp {
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// How a store is opened, whatever is done with it.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Opening {
    /// Memory budget of the store, such as 64MiB or 1GiB, at least 16MiB and what the index takes. From some 13 million keys on
    /// 256MiB make keys share entries of the index, and all slower: give 20 bytes a key [default: 256MiB; 16MiB for the demo]
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// When writes become durable: none (when the command ends), always (each before the next), or every so many seconds, such as 0.5
    #[arg(long, global = true, value_name = "none|always|SECONDS", default_value = "none", value_parser = parse_durability)]
    pub(crate) durability: Durability,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load the rows of a CSV, TSV or JSON Lines file, plain or gzip
    Load(LoadArgs),
    /// Print the value of a key; exit code 1 if it is absent
    #[command(disable_help_flag = true)]
    Get {
        #[command(flatten)]
        help: LongHelp,
        /// The store's directory, which must exist
        dir: PathBuf,
        /// The key; one that begins with a dash comes behind --
        #[arg(allow_negative_numbers = true)]
        key: OsString,
    },
    /// Set the value of a key
    #[command(disable_help_flag = true)]
    Put {
        #[command(flatten)]
        help: LongHelp,
        /// The store's directory, made if absent
        dir: PathBuf,
        /// The key; one that begins with a dash comes behind --
        #[arg(allow_negative_numbers = true)]
        key: OsString,
        /// The value; likewise
        #[arg(allow_negative_numbers = true)]
        value: OsString,
    },
    /// Add bytes to the end of a key's value, which is made if absent
    #[command(disable_help_flag = true)]
    Append {
        #[command(flatten)]
        help: LongHelp,
        /// The store's directory, made if absent
        dir: PathBuf,
        /// The key; one that begins with a dash comes behind --
        #[arg(allow_negative_numbers = true)]
        key: OsString,
        /// The bytes to add; likewise
        #[arg(allow_negative_numbers = true)]
        value: OsString,
    },
    /// Remove a key; exit code 1 if it is absent
    #[command(disable_help_flag = true)]
    Delete {
        #[command(flatten)]
        help: LongHelp,
        /// The store's directory, which must exist
        dir: PathBuf,
        /// The key; one that begins with a dash comes behind --
        #[arg(allow_negative_numbers = true)]
        key: OsString,
    },
    /// Go once through a store's log and give back the space of all that is dead in it
    Compact {
        /// The store's directory, which must exist
        dir: PathBuf,
        /// Make the index anew from the log first. Keys share its entries where --memory was too little for them, which makes compaction
        /// and reads slow; with more memory each has its own again
        #[arg(long)]
        rebuild_index: bool,
        /// Print the figures afterwards as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a store's regions, memory, space, index and operations, as of this command's own opening with --memory
    Stats {
        /// The store's directory, which must exist
        dir: PathBuf,
        /// Print the figures as JSON
        #[arg(long)]
        json: bool,
    },
    /// Read and check every durable byte of a store; exit code 1 if it is damaged
    Verify {
        /// The store's directory, which nobody may have open
        dir: PathBuf,
        /// Print what was found as JSON
        #[arg(long)]
        json: bool,
        /// Tell what is damaged, then give up what lies behind the damage, so that the store opens again; stores of this program alone
        #[arg(long, conflicts_with = "json")]
        accept_loss: bool,
    },
    /// Copy a store that nobody has open to a new directory, or what is new of it to an earlier copy; the copy is a store
    ///
    /// Of a first copy that fails nothing stays; one that is killed leaves a beginning, which is no store: remove it.
    Backup {
        /// The store's directory
        dir: PathBuf,
        /// The copy's directory, made if absent
        to: PathBuf,
        /// Take what has not changed from this earlier copy, which stays as it is; the new one goes to a new directory
        #[arg(long, value_name = "EARLIER")]
        from: Option<PathBuf>,
    },
    /// Make a store from a backup, which stays as it is
    Restore {
        /// The backup's directory
        backup: PathBuf,
        /// The store's directory, which must be absent or empty
        dir: PathBuf,
    },
    /// Carry what is whole of a damaged store of this program over to a new one, around all damage; the damaged one stays as it is
    ///
    /// It prints what is lost, however much that is: the exit code is 0 then as well.
    Salvage {
        /// The damaged store's directory, which nobody may have open
        dir: PathBuf,
        /// The new store's directory, which must be absent or empty. A salvage that is killed leaves a store with a part: remove it
        to: PathBuf,
        /// Print what was done as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print every key and value, a pair on a line, in no order
    ///
    /// All pairs are of one moment. Bytes are printed as they are: where they hold tabs or line breaks, use export.
    Scan(ScanArgs),
    /// Print figures about the values that are decimal numbers; others are only counted, and told of
    Aggregate(AggregateArgs),
    /// Write every key and value in a format that other programs read
    ///
    /// What csv and jsonl have comes back with `esker load NEW FILE --key key --value value`, for jsonl with `--hex` too.
    Export(ExportArgs),
    /// Try the engine: the flights of a year through a store smaller than its data
    Demo,
}

/// What `scan` is told.
#[derive(Args, Debug)]
pub(crate) struct ScanArgs {
    /// The store's directory, which must exist
    pub(crate) dir: PathBuf,
    /// Only keys that begin so (--prefix=-x where it begins with a dash)
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) prefix: Option<OsString>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Leave the values out
    #[arg(long)]
    pub(crate) keys_only: bool,
}

/// What `aggregate` is told.
#[derive(Args, Debug)]
pub(crate) struct AggregateArgs {
    /// The store's directory, which must exist
    pub(crate) dir: PathBuf,
    /// Only keys that begin so (--prefix=-x where it begins with a dash)
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) prefix: Option<OsString>,
    /// A line for each group of keys: those with the same first N bytes, or the same bytes before the first X. Groups are kept in memory
    /// besides the budget: some 1,500 bytes each, with --median up to some kilobytes, and by each of --threads. Of groups that may have
    /// tabs or line breaks in them ask for --json
    #[arg(long, value_name = "prefix:N|delimiter:X", value_parser = crate::aggregate::parse_part)]
    pub(crate) by: Option<KeyPart>,
    /// How many pairs; the figure if no other is asked for
    #[arg(long)]
    pub(crate) count: bool,
    /// The sum, exact for whole numbers of 64 bits with a sign
    #[arg(long)]
    pub(crate) sum: bool,
    /// The least
    #[arg(long)]
    pub(crate) min: bool,
    /// The greatest
    #[arg(long)]
    pub(crate) max: bool,
    /// The mean
    #[arg(long)]
    pub(crate) mean: bool,
    /// The median, of two in the middle the lower one, to within one percent
    #[arg(long)]
    pub(crate) median: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Threads that share the work, at most 256
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub(crate) threads: usize,
}

/// What `export` is told.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The store's directory, which must exist
    pub(crate) dir: PathBuf,
    /// What to write
    #[arg(long, value_enum)]
    pub(crate) format: ExportFormat,
    /// The file to write, replaced once all is in it; a pipe, a device or a link is written to; - is standard output [default: -]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// What keys are, for arrow and parquet [default: bytes]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) key_type: Option<ColumnType>,
    /// What values are, for arrow and parquet [default: bytes]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) value_type: Option<ColumnType>,
    /// Only keys that begin so (--prefix=-x where it begins with a dash)
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) prefix: Option<OsString>,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Two columns, key and value, with a header row
    Csv,
    /// An object a line, with key and value; bytes that are no text as {"hex":"..."}, which `load --hex` reads
    Jsonl,
    /// An Arrow IPC file (Feather), two columns; in a program that was built with `--features arrow`
    Arrow,
    /// A Parquet file, two columns, compressed with Snappy; likewise
    Parquet,
}

/// What a column of an Arrow or Parquet file is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColumnType {
    /// As they are
    #[default]
    Bytes,
    /// UTF-8
    Text,
    /// Whole numbers of 64 bits, from decimal text
    Integer,
    /// Floating point, from decimal text
    Float,
}

/// What `load` is told.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// The store's directory, made if absent
    pub(crate) dir: PathBuf,
    /// The file to load, or - for standard input
    pub(crate) file: PathBuf,
    /// What the file holds [default: by the file's name]. Rows of CSV and TSV end with LF, CRLF or CR
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// The column or columns that make the key, quoted as in CSV where a name has a comma: '"last, first",id'. In JSON the number 7 and the
    /// text "7" are one key
    #[arg(long, value_name = "COL[,COL]", required = true)]
    pub(crate) key: Vec<Columns>,
    /// The column or columns that make the value [default: the whole row; for count: one a row]
    #[arg(long, value_name = "COL[,COL]")]
    pub(crate) value: Vec<Columns>,
    /// Take {"hex":"..."} in a column of JSON Lines for those bytes, as `export` writes what is no text
    #[arg(long)]
    pub(crate) hex: bool,
    /// What a row does to its key
    #[arg(long, value_enum, default_value_t = Mode::Put)]
    pub(crate) mode: Mode,
    /// Skip the first N rows: as many as an earlier load printed when it stopped. If it was killed or failed to write, more than that may
    /// be stored already
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip_rows: u64,
    /// Print how many rows of the file are durable, a number on a line, whenever that is known: after each row with --durability always,
    /// as often as it says with SECONDS, and at the end; the report of what was loaded comes behind them
    #[arg(long)]
    pub(crate) acknowledge: bool,
    /// Show the store's figures at the end, as it was before it was closed: regions, memory, index, rates
    #[arg(long)]
    pub(crate) stats: bool,
}

/// How the rows of a file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated, with a header row
    Csv,
    /// Tab-separated, with a header row
    Tsv,
    /// One JSON object a line
    Jsonl,
}

/// What a row does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Replace the value
    Put,
    /// Add the value and a line break to the end
    Append,
    /// Add the value, a whole decimal number, to the number stored
    Count,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
