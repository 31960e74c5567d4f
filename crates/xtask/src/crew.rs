//! Threads that share a list of tasks, one that tells how far they are, and a watchdog.
//!
//! The theory: tasks are numbered and independent, so a counter deals them out. A task that takes longer than [`PATIENCE`] hangs, which no
//! lane excuses; it cannot be stopped, so its name is printed and the process ends.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// What tasks have brought together.
pub(crate) struct Tally<F> {
    pub(crate) figures: F,
    pub(crate) wrongs: Vec<String>,
}

/// What one task brings: figures, or words about what is wrong.
pub(crate) type Brought<F> = Result<F, String>;

/// Deals out tasks from 0 on until `enough` says so (given the figures and the number of the next task) or there are too many wrongs.
pub(crate) fn work<F: AddAssign + Default + Send + Clone>(
    jobs: usize,
    wrongs_most: usize,
    enough: impl Fn(&F, u64) -> bool + Sync,
    task: impl Fn(u64) -> Brought<F> + Sync,
    tell: impl Fn(&F) -> String + Sync,
) -> Tally<F> {
    let tally = Mutex::new(Tally { figures: F::default(), wrongs: Vec::new() });
    let (next, working) = (AtomicU64::new(0), AtomicU64::new(jobs as u64));
    let stop = AtomicBool::new(false);
    let current: Vec<Mutex<Option<(u64, Instant)>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let lock = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for mine in &current {
            let (lock, next, working, stop, enough, task) = (&lock, &next, &working, &stop, &enough, &task);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if enough(&lock().figures, number) {
                        break;
                    }
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, Instant::now()));
                    let brought = task(number);
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    let mut tally = lock();
                    match brought {
                        Ok(figures) => tally.figures += figures,
                        Err(wrong) => {
                            eprintln!("\n{wrong}\n");
                            tally.wrongs.push(wrong);
                            stop.fetch_or(tally.wrongs.len() >= wrongs_most, Ordering::Relaxed);
                        }
                    }
                }
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut told = Instant::now();
        while working.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(20));
            current.iter().for_each(watch);
            if told.elapsed() > Duration::from_secs(5) {
                eprintln!("  {}", tell(&lock().figures));
                told = Instant::now();
            }
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn watch(current: &Mutex<Option<(u64, Instant)>>) {
    let current = *current.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((number, begun)) = current.filter(|(_, begun)| begun.elapsed() > PATIENCE) {
        eprintln!("HANG: task {number} has taken {:?}", begun.elapsed());
        std::process::exit(3);
    }
}

/// The processor time this process has used, in seconds.
pub(crate) fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Fields 14 and 15 of proc(5), user and system time in hundredths of a second; the first after the name is the third.
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}
