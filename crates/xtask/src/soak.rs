//! The soak: a store of constant size that is overwritten, filled and emptied for as long as one likes.
//!
//! The theory: what leaks or rots slowly shows as a slope. So memory, disk and throughput are looked at each second, and each is held to a
//! bound that does not grow: resident bytes to the budget, the log's files to the space target and two segments, and the rate of the last
//! third to that of the first: by processor time, which neighbours on the machine do not take; in a soak of ten minutes or more by the
//! clock, too. First a data set is overwritten ten times, and read; then records come and go, the oldest deleted for each that is added.
//! Every read is judged, of values in memory and of values that have aged; in the end every durable byte is checked.

use esker::{Durability, Options, Result, Store, verify};
use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const BUDGET: u64 = 64 << 20;
const SEGMENT: u64 = 4 << 20;
const TARGET: f64 = 2.0;
const THREADS: u64 = 2;
/// Of each thread, at any time.
const LIVE: u64 = 300_000;
/// Header, key, value: what a record takes of the log. A deletion takes less.
const RECORD_BYTES: u64 = 24 + 8 + 104;
/// What is promised beyond the budget.
const SLACK: u64 = BUDGET / 20 + (8 << 20);
/// The last third against the first; neighbours on the machine, and in its caches, are why it is not higher.
const FLAT: f64 = 0.7;
/// Seconds from which on the clock may be asked, too.
const LONG: usize = 600;
/// What the overwritten data set may take to come down to the target.
const PATIENCE: Duration = Duration::from_secs(600);

/// Seconds of processors that this process has taken.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the struct, which lives on.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn value(key: u64, round: u64) -> [u8; 104] {
    let mut value = [(key ^ round) as u8; 104];
    value[..8].copy_from_slice(&(key ^ round << 48).to_le_bytes());
    value
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// What the log's files may take: the target over what lives, two segments, and what is appended while compaction catches up.
fn disk_bound() -> u64 {
    (TARGET * (THREADS * LIVE * RECORD_BYTES) as f64) as u64 + 2 * SEGMENT + BUDGET / 4
}

/// Runs for so many minutes; true if all bounds were kept.
pub(crate) fn run(minutes: u64) -> bool {
    let passed = tempfile::tempdir().map_err(|error| error.to_string()).and_then(|folder| {
        let base = resident();
        let options = Options::new().memory(BUDGET).segment_bytes(SEGMENT).space_amplification(TARGET);
        let store = options.durability(Durability::Every(Duration::from_secs(1))).open(folder.path()).map_err(|error| error.to_string())?;
        let told = overwrite(&store).and_then(|()| turn_over(&store, base, Duration::from_secs(60 * minutes)))?;
        store.close().map_err(|error| error.to_string())?;
        let found = verify(folder.path(), |_, _| ControlFlow::Continue(())).map_err(|error| error.to_string())?;
        if found.is_sound() { Ok(told) } else { Err(format!("it is damaged: {found:?}")) }
    });
    passed.as_ref().map_or_else(|wrong| println!("soak: {wrong}"), |told| println!("soak: {told} violations=0"));
    passed.is_ok()
}

type Soaked = Store<u64, [u8; 104]>;

/// A data set ten times over: the disk comes back to the target.
fn overwrite(store: &Soaked) -> std::result::Result<(), String> {
    let words = |error: esker::Error| error.to_string();
    let mut most = 0;
    for round in 0..10 {
        for key in 0..THREADS * LIVE {
            store.put(&key, &value(key, round)).map_err(words)?;
            if key % 4096 == 0 {
                most = most.max(store.stats().space.file_bytes);
            }
        }
    }
    let bound = (TARGET * (THREADS * LIVE * RECORD_BYTES) as f64) as u64 + 2 * SEGMENT;
    let begun = Instant::now();
    while store.stats().space.file_bytes > bound {
        if begun.elapsed() > PATIENCE {
            return Err(format!("overwritten ten times, {} bytes of files, more than {bound}", store.stats().space.file_bytes));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("soak: overwritten ten times, {most} bytes of files meanwhile, then {}, at most {bound}", store.stats().space.file_bytes);
    for key in 0..THREADS * LIVE {
        let found = if key % 8 == 0 { store.get(&key).map_err(words)? } else { Some(value(key, 9)) };
        if found != Some(value(key, 9)) || !store.delete(&key).map_err(words)? {
            return Err(format!("overwritten ten times, key {key} is wrong: {found:?}"));
        }
    }
    Ok(())
}

/// Adds and deletes of one thread's own keys until told to stop.
fn come_and_go(store: &Soaked, keys: Range<u64>, stop: &AtomicBool, done: &AtomicU64) -> Result<std::result::Result<(), String>> {
    for (number, key) in (0..).zip(keys) {
        if stop.load(Relaxed) {
            break;
        }
        store.put(&key, &value(key, 77))?;
        if number >= LIVE && !store.delete(&(key - LIVE))? {
            return Ok(Err(format!("key {} is gone before its deletion", key - LIVE)));
        }
        // One in memory, one that was just deleted.
        if number % 64 == 0 && number > LIVE {
            let found = [store.get(&key)?, store.get(&(key - LIVE))?];
            if found != [Some(value(key, 77)), None] {
                return Ok(Err(format!("key {key} or the one before it by {LIVE} is wrong: {found:?}")));
            }
        }
        // One that has aged: half of what lives is on the device.
        let aged = (key - LIVE.min(number)) + LIVE / 64;
        if number % 1024 == 0 && number > LIVE && store.get(&aged)? != Some(value(aged, 77)) {
            return Ok(Err(format!("key {aged}, which is old, is wrong")));
        }
        done.fetch_add(1, Relaxed);
    }
    Ok(Ok(()))
}

fn turn_over(store: &Soaked, base: u64, time: Duration) -> std::result::Result<String, String> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let keys = |thread: u64| (thread + 1) << 40..(thread + 2) << 40;
        let (stop, done) = (&stop, &done);
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || come_and_go(store, keys(thread), stop, done))).collect();
        let watched = watch(store, base, done, time, || threads.iter().any(|thread| thread.is_finished()));
        stop.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked".to_owned())?.map_err(|error| error.to_string())??;
        }
        watched
    })
}

/// Looks each second; the first bound that is broken ends it.
fn watch(store: &Soaked, base: u64, done: &AtomicU64, time: Duration, has_ended: impl Fn() -> bool) -> std::result::Result<String, String> {
    while done.load(Relaxed) < THREADS * LIVE && !has_ended() {
        std::thread::sleep(Duration::from_millis(100));
    }
    let (begun, mut rates, mut rates_of_work, mut worked) = (Instant::now(), Vec::new(), Vec::new(), processor_seconds());
    let (mut most_resident, mut most_disk, mut before) = (0, 0, done.load(Relaxed));
    while begun.elapsed() < time && !has_ended() {
        std::thread::sleep(Duration::from_secs(1));
        let now = done.load(Relaxed);
        rates.push((now - before) as f64);
        rates_of_work.push((now - before) as f64 / (processor_seconds() - worked));
        (before, worked) = (now, processor_seconds());
        let stats = store.stats();
        most_resident = most_resident.max(resident().saturating_sub(base));
        most_disk = most_disk.max(stats.space.file_bytes);
        if rates.len() % 10 == 0 {
            eprintln!("soak: {} s, {now} turned over, {most_resident} resident, {:?}", rates.len(), stats.space);
        }
        if most_resident > BUDGET + SLACK {
            return Err(format!("{most_resident} bytes resident, more than the budget {BUDGET}"));
        }
        if most_disk > disk_bound() {
            return Err(format!("{most_disk} bytes of files, more than {}: {:?}", disk_bound(), stats.space));
        }
    }
    let third = rates.len() / 3;
    let thirds = |rates: &[f64]| (median(&rates[..third]), median(&rates[rates.len() - third..]));
    let ((first, last), (first_of_work, last_of_work)) = (thirds(&rates), thirds(&rates_of_work));
    let told = format!(
        "seconds={} turned_over={before} per_second_first={first:.0} per_second_last={last:.0} per_processor_second_first={first_of_work:.0} \
         per_processor_second_last={last_of_work:.0} resident_max={most_resident} files_max={most_disk}",
        rates.len()
    );
    let slows_down = last_of_work < FLAT * first_of_work || rates.len() >= LONG && last < FLAT * first;
    if slows_down { Err(format!("it slows down: {told}")) } else { Ok(told) }
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
