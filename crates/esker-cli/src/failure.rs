//! What can go wrong, as the person at the terminal sees it.
//!
//! A failure is one line of text and an exit code, another one where an interrupt came before it. A closed standard output (`esker stats |
//! head -1`) is no failure at all: whoever closed it had seen enough, so it ends the program quietly.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::interrupt;

/// The message of work that an interrupt ended.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// What a subcommand returns.
pub(crate) type Outcome = Result<(), Failure>;

/// Why a subcommand stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense: exit code 2.
    Usage(String),
    /// The operation failed: exit code 1, or 130 after an interrupt.
    Failed(String),
    /// Nobody reads the output any more: exit code 0.
    OutputClosed,
}

impl Failure {
    /// The failure of an operation, from its message.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// The failure of an operation, with what it was done to: `flights.csv: No such file`.
    pub(crate) fn about(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// The failure of a call of the library, with what it was done to.
    pub(crate) fn of(what: impl Display, why: esker::Error) -> Self {
        Self::from(why).map(|why| format!("{what}: {why}"))
    }

    /// True if it is that the work was interrupted, perhaps while its input was silent.
    pub(crate) fn is_interrupt(&self) -> bool {
        matches!(self, Self::Failed(why) if why == INTERRUPTED)
    }

    /// Changes the message of a failed operation.
    pub(crate) fn map(self, change: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(change(&message)),
            other => other,
        }
    }

    /// The failure to write to standard output.
    pub(crate) fn output(why: &io::Error) -> Self {
        Self::written(why).map(|why| format!("standard output: {why}"))
    }

    /// The failure to write, by an error that says where.
    pub(crate) fn written(why: &io::Error) -> Self {
        if why.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::new(why.to_string())
    }

    /// Prints the message on standard error and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                complain(message);
                say("For more information, try 'esker --help'.");
                ExitCode::from(2)
            }
            Self::Failed(message) => {
                complain(message);
                if interrupt::has_come() { ExitCode::from(interrupt::INTERRUPTED) } else { ExitCode::FAILURE }
            }
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<esker::Error> for Failure {
    fn from(error: esker::Error) -> Self {
        match error {
            // Nothing else cancels anything here.
            esker::Error::Cancelled => Self::new(INTERRUPTED),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// One line on standard error, whatever line breaks the message brings along. Names of files and columns come from elsewhere: what would
/// command the terminal is shown.
fn complain(message: &str) {
    let line = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    say(&format!("esker: {}", harmless(&line)));
}

fn harmless(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Who closed standard error wants to hear nothing; the exit code still tells.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
