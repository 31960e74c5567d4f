//! Progress on the standard error stream; silent where that is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `steps` with a message.
pub(crate) fn bar(steps: u64) -> ProgressBar {
    let style = "{elapsed_precise} [{bar:32}] {pos}/{len} {msg} (eta {eta})";
    let style = ProgressStyle::with_template(style).expect("the template is valid");
    ProgressBar::new(steps).with_style(style.progress_chars("=> "))
}
