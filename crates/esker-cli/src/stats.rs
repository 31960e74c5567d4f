//! `esker stats`: a store at a glance.
//!
//! The picture follows the log from its oldest address to its newest: what is only on disk, what is in memory
//! and frozen, what is in memory and still changed in place. Counts of operations, and their rates, begin anew with
//! every opening: here they show what opening the store itself took; at the end of the demo, and of `load --stats`, what these did.
//! A program that embeds a store sees its own through `Store::stats`, those of a cache among them.

use std::fmt::Write;
use std::path::Path;

use esker::{ExpiryStats, IndexStats, LogStats, MemoryStats, SpaceStats, Stats};

use crate::args::Opening;
use crate::bytes::{count, rate, size};
use crate::failure::{Failure, Outcome};
use crate::figure::{filled, percent, shares};
use crate::{out, store};

const WIDTH: usize = 60;
const NARROW: usize = 40;
/// What an index is that had no room for more buckets.
pub(crate) const SHARED: &str =
    "keys share entries, which makes reads and compaction slow: compact --rebuild-index --memory MORE, 20 bytes a key at least";

/// Shows the store in `dir`.
pub(crate) fn run(dir: &Path, json: bool, opening: Opening) -> Outcome {
    let stats = store::look_at(dir, opening, |store| Ok(store.stats()))?;
    if json {
        let text = serde_json::to_string_pretty(&stats);
        return out::line(text.map_err(|error| Failure::new(error.to_string()))?);
    }
    out::line(describe(&dir.display().to_string(), &stats).trim_end())
}

/// The figures as text, under a title.
pub(crate) fn describe(title: &str, stats: &Stats) -> String {
    let kind = if stats.in_memory { "in memory only" } else { "memory and disk" };
    let keeps = if stats.lossy { ", a cache: what it had no room for was dropped" } else { "" };
    let mut text = format!("{title}  ({kind}{keeps})\n\n");
    text += &log(&stats.log);
    text += &memory(&stats.memory);
    text += &space(&stats.space);
    text += &index(&stats.index);
    text += &operations(stats);
    text += &expiry(&stats.expiry);
    if let Some(failure) = &stats.latched {
        row(&mut text, "FAILED", failure);
    }
    for warning in &stats.warnings {
        row(&mut text, "WARNING", &warning.to_string());
    }
    text
}

/// The regions of the log as one bar, with the addresses at its borders below.
fn log(log: &LogStats) -> String {
    let disk = log.head.saturating_sub(log.begin);
    let frozen = log.read_only.saturating_sub(log.head);
    let mutable = log.tail.saturating_sub(log.read_only);
    let mut text = String::new();
    row(&mut text, "log", &format!("[{}]", shares(&[(disk, '░'), (frozen, '▒'), (mutable, '█')], WIDTH)));
    row(&mut text, "", &format!("░ on disk {}   ▒ in memory, frozen {}", size(disk), size(frozen)));
    row(&mut text, "", &format!("█ in memory, changed in place {}", size(mutable)));
    let borders = [("begin", log.begin), ("head", log.head), ("read only", log.read_only), ("tail", log.tail)];
    for (name, address) in borders {
        row(&mut text, "", &format!("{name:<10} {:>18}", count(address)));
    }
    row(&mut text, "", &format!("{:<10} {:>18}", "flushed", count(log.flushed_until)));
    text + "\n"
}

/// How much of the budget is used, and by what.
fn memory(memory: &MemoryStats) -> String {
    let (used, budget) = (memory.total_bytes, memory.budget_bytes);
    let mut text = String::new();
    row(&mut text, "memory", &format!("[{}] {}", filled(used, budget, NARROW), percent(used, budget)));
    row(&mut text, "", &format!("{} of {}", size(used), size(budget)));
    let parts = [("log", memory.log_bytes), ("index", memory.index_bytes), ("fixed", memory.fixed_bytes)];
    let lent = [("lent to scans", memory.lent_bytes)].into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<_> = parts.into_iter().chain(lent).map(|(name, bytes)| format!("{name} {}", size(bytes))).collect();
    row(&mut text, "", &parts.join(", "));
    text + "\n"
}

/// What of the log lives, and what compaction gave back.
fn space(space: &SpaceStats) -> String {
    let mut text = String::new();
    let bar = shares(&[(space.live_bytes, '█'), (space.dead_bytes, '·')], NARROW);
    row(&mut text, "space", &format!("[{bar}] {} live at most, {} dead", size(space.live_bytes), size(space.dead_bytes)));
    row(&mut text, "", &format!("amplification {}, target {:.2}", amplification(space), space.amplification_target));
    row(&mut text, "", &format!("files {}", size(space.file_bytes)));
    let SpaceStats { stretches, given_back_bytes, moved_bytes, .. } = *space;
    row(&mut text, "", &format!("given back {} in {stretches} stretches, moved {}", size(given_back_bytes), size(moved_bytes)));
    text + "\n"
}

/// How many times as long the log is as what lives in it. The count of what is dead is an estimate, and may be all there is.
pub(crate) fn amplification(space: &SpaceStats) -> String {
    if space.amplification.is_finite() { format!("{:.2}", space.amplification) } else { "unknown".to_owned() }
}

fn index(index: &IndexStats) -> String {
    let load = index.entries as f64 / index.buckets.max(1) as f64;
    let mut text = String::new();
    row(&mut text, "index", &format!("{} entries in {} buckets", count(index.entries), count(index.buckets)));
    row(&mut text, "", &format!("load {load:.2} entries a bucket"));
    let overflow = percent(index.overflow_buckets, index.buckets);
    row(&mut text, "", &format!("{} overflow buckets ({overflow})", count(index.overflow_buckets)));
    if index.shared {
        row(&mut text, "", SHARED);
    }
    text + "\n" + &chains(&index.chain_lengths)
}

/// The sampled lengths of chains in memory, as a histogram.
fn chains(lengths: &[u64]) -> String {
    let all: u64 = lengths.iter().sum();
    let mut text = String::new();
    if all == 0 {
        row(&mut text, "chains", "no records in memory, as after every opening");
        return text + "\n";
    }
    let sample = format!("records in memory on one chain, of {} sampled entries", count(all));
    row(&mut text, "chains", &sample);
    for (at, &number) in lengths.iter().enumerate().filter(|&(_, &number)| number > 0) {
        let bar = shares(&[(number, '█'), (all - number, ' ')], NARROW);
        row(&mut text, "", &format!("{:>4}  {bar} {:>7}", at + 1, percent(number, all)));
    }
    text + "\n"
}

/// What was done since the store was opened, and how much of it in a second; nothing of what was not.
fn operations(stats: &Stats) -> String {
    let done = &stats.operations;
    let counts = [
        ("gets", done.gets),
        ("puts", done.puts),
        ("rmws", done.rmws),
        ("appends", done.appends),
        ("deletes", done.deletes),
        ("transactions", done.transactions),
        ("conflicts", done.conflicts),
        ("device reads", done.device_reads),
        ("scan reads", done.scan_reads),
        ("promotions", done.promotions),
    ];
    let mut text = String::new();
    for (name, number) in counts.into_iter().filter(|(_, number)| *number > 0) {
        let label = if text.is_empty() { "since open" } else { "" };
        row(&mut text, label, &format!("{name:<12} {:>16} {:>12}/s", count(number), rate(number, stats.open_seconds)));
    }
    text
}

/// What ended by itself; nothing where nothing did.
fn expiry(expiry: &ExpiryStats) -> String {
    let mut text = String::new();
    if expiry.expired_bytes + expiry.dropped_records > 0 {
        let (waiting, dropped) = (size(expiry.expired_bytes), count(expiry.dropped_records));
        row(&mut text, "expired", &format!("about {waiting} to drop, {dropped} records dropped since open"));
    }
    text
}

/// A line of a picture, behind its name.
pub(crate) fn row(text: &mut String, name: &str, content: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<11}{content}");
}
