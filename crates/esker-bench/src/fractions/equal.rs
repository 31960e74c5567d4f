//! Rates at equal bytes: what Esker does with as much memory as another really took.
//!
//! Budgets mean different things: a cache that is given the bytes of keys and values takes several times as many. So each row of a peer is
//! also compared with the fastest of Esker's rows of the same work that took no more resident bytes than it did. The more fractions are
//! measured, the closer these come to the peer's bytes; they never pass them. What is in memory alone is compared with what is; bytes are
//! those at the end of a row's work.

use super::memory_text;
use crate::report::{self, Row, Spread};

/// A peer's row and Esker's.
type Pair<'r> = (&'r Row, &'r Row);

/// Each row of a peer, and the fastest of Esker that took no more, if any.
fn pairs(rows: &[Row]) -> Vec<Pair<'_>> {
    let is_own = |row: &&Row| row.engine.starts_with("esker");
    let best = |peer: &Row| {
        let same = |own: &&Row| work_of(own) == work_of(peer);
        let no_more = |own: &&Row| own.resident_bytes.zip(peer.resident_bytes).is_some_and(|(own, peer)| own <= peer);
        rows.iter().filter(is_own).filter(same).filter(no_more).max_by(|one, other| rate(one).total_cmp(&rate(other)))
    };
    rows.iter().filter(|row| !is_own(row)).filter_map(|peer| Some((peer, best(peer)?))).collect()
}

/// What was done, and whether there was less memory than all.
fn work_of(row: &Row) -> (u8, &str, usize, bool) {
    (row.reads_percent, row.distribution, row.threads, row.memory_bytes.is_some())
}

fn rate(row: &Row) -> f64 {
    row.ops_per_second.median
}

fn ratio((peer, own): Pair<'_>) -> f64 {
    rate(own) / rate(peer).max(1.0)
}

/// Notes the ratios in the peers' rows.
pub(super) fn compare(rows: &mut [Row]) {
    let known = rows.to_vec();
    let mut pairs = pairs(&known).into_iter().peekable();
    for (row, known) in rows.iter_mut().zip(&known) {
        row.esker_at_its_bytes = pairs.next_if(|(peer, _)| std::ptr::eq(*peer, known)).map(ratio);
    }
}

/// A line for each pair, then the median beside each peer.
pub(super) fn print(rows: &[Row]) {
    let pairs = pairs(rows);
    if pairs.is_empty() {
        return;
    }
    report::say!("\nAt the bytes that each of the others took, or fewer:");
    let head =
        ["engine", "operation", "keys", "memory", "threads", "MiB", "median", "lost/get", "esker with", "MiB", "median", "times as fast"];
    report::print_table(&head, &pairs.iter().map(|pair| cells(*pair)).collect::<Vec<_>>());
    let mut peers: Vec<_> = pairs.iter().map(|(peer, _)| peer.engine.as_str()).collect();
    peers.sort_unstable();
    peers.dedup();
    for peer in peers {
        let ratios: Vec<_> = pairs.iter().filter(|(row, _)| row.engine == peer).map(|pair| ratio(*pair)).collect();
        let Spread { median, min, max } = Spread::of(&ratios);
        report::say!("esker to {peer} at its bytes: {median:.2} times as fast ({min:.2} - {max:.2}), {} settings", ratios.len());
    }
}

fn cells((peer, own): Pair<'_>) -> Vec<String> {
    vec![
        peer.engine.clone(),
        peer.operation.clone(),
        peer.distribution.to_owned(),
        memory_text(peer),
        peer.threads.to_string(),
        report::mebibytes(peer.resident_bytes),
        report::rate(rate(peer)),
        peer.lost_per_get.map_or_else(|| "-".to_owned(), |lost| format!("{lost:.3}")),
        memory_text(own),
        report::mebibytes(own.resident_bytes),
        report::rate(rate(own)),
        format!("{:.2}", ratio((peer, own))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &str, resident: u64, median: f64) -> Row {
        let ops_per_second = Spread { median, ..Spread::default() };
        Row { engine: engine.to_owned(), resident_bytes: Some(resident), ops_per_second, ..Row::default() }
    }

    #[test]
    fn each_is_compared_with_the_fastest_that_took_no_more() {
        let mut rows =
            [row("esker", 10, 100.0), row("esker", 20, 300.0), row("foyer", 15, 50.0), row("moka", 20, 100.0), row("moka", 9, 7.0)];
        compare(&mut rows);
        assert_eq!(rows.map(|row| row.esker_at_its_bytes), [None, None, Some(2.0), Some(3.0), None]);
    }

    #[test]
    fn other_work_is_not_compared() {
        let over_a_device = Row { memory_bytes: Some(15), ..row("foyer", 15, 50.0) };
        let mut rows = [row("esker", 10, 100.0), Row { threads: 6, ..row("foyer", 15, 50.0) }, over_a_device];
        compare(&mut rows);
        assert_eq!(rows.map(|row| row.esker_at_its_bytes), [None, None, None]);
    }
}
