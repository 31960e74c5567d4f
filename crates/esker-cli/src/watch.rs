//! Watching over a scan: a bar on standard error once it takes long, and an end at an interrupt.

use std::time::{Duration, Instant};

use esker::Scan;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress;

/// A scan of the stores of this program.
type BytesScan<'a> = Scan<'a, [u8], [u8]>;

/// A scan over sooner than this shows no bar.
const SHORT: Duration = Duration::from_millis(500);
/// The bar's length.
const WHOLE: f64 = 1000.0;

/// The scan, watched; to be called once in a program.
pub(crate) fn watched(scan: BytesScan<'_>) -> Result<BytesScan<'_>, Failure> {
    Ok(until(scan, Interrupt::catch_for_reader()?, false))
}

/// The same where interrupts are caught already. Where the pairs themselves go by on a terminal, a bar among them would only disturb.
pub(crate) fn until(scan: BytesScan<'_>, interrupt: Interrupt, pairs_go_by: bool) -> BytesScan<'_> {
    let bar = (!pairs_go_by).then(|| progress::of_bytes(WHOLE as u64));
    let start = Instant::now();
    scan.progress(move |part| {
        if let Some(bar) = &bar
            && start.elapsed() > SHORT
        {
            bar.set_position((part * WHOLE) as u64);
        }
        interrupt.answer()
    })
}

#[cfg(test)]
mod tests {
    use esker::Options;
    use esker::aggregate::Count;

    use super::*;
    use crate::failure;

    #[test]
    fn an_interrupt_ends_a_scan() {
        let store: crate::store::Bytes = Options::new().memory(16 << 20).in_memory().unwrap();
        (0..1000u32).for_each(|n| store.put(&n.to_le_bytes(), b"value").unwrap());
        assert_eq!(until(store.scan(), Interrupt::default(), false).aggregate(Count).unwrap(), 1000);
        let failure = Failure::from(until(store.scan(), Interrupt::raised(), false).aggregate(Count).unwrap_err());
        assert!(matches!(failure, Failure::Failed(message) if message == failure::INTERRUPTED));
    }
}
