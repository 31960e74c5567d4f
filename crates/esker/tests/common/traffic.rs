//! What goes on beside the transactions under test: lines and compaction.

use esker::{Store, Value};

/// A line and a compaction in each eight rounds.
pub(crate) fn maintain<V: Value + ?Sized>(store: &Store<u64, V>, round: u64) {
    match round % 8 {
        3 => store.commit().unwrap(),
        7 => _ = store.compact().unwrap(),
        _ => {}
    }
}
