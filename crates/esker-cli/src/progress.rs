//! Progress on standard error.
//!
//! The bars hide themselves where standard error is no terminal, so scripts and logs see nothing of them.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

const KNOWN: &str = "{bar:20} {percent:>3} %  {wide_msg}";
const UNKNOWN: &str = "{spinner} {bytes}  {wide_msg}";

/// A bar over a known number of bytes.
pub(crate) fn of_bytes(total: u64) -> ProgressBar {
    styled(ProgressBar::new(total), KNOWN)
}

/// A spinner that counts bytes.
pub(crate) fn of_unknown_length() -> ProgressBar {
    let bar = styled(ProgressBar::new_spinner(), UNKNOWN);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

/// Says something behind the bar.
pub(crate) fn say(bar: &ProgressBar, message: impl Into<Cow<'static, str>>) {
    bar.set_message(message);
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("█▉▊▋▌▍▎▏ ")).with_finish(ProgressFinish::AndClear)
}
