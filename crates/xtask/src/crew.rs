//! Processes that share a list of tasks, and a watchdog.
//!
//! The theory: tasks are numbered and independent, so a counter deals them out. Each thread here has this program run once more as its
//! worker (`--worker`), which reads numbers and answers each with a line of JSON. They are processes because stores map memory, give it
//! back and ask all threads to pass a barrier: within one process each of those calls interrupts every processor. And a worker that dies is
//! a wrong like any other. A task that takes longer than [`PATIENCE`] hangs, which no lane excuses; its number is printed and the lane
//! ends.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Child, ChildStdout, Command, Stdio, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);
/// The argument that makes a worker.
pub(crate) const WORKER: &str = "--worker";

/// What tasks have brought together.
pub(crate) struct Tally<F> {
    pub(crate) figures: F,
    pub(crate) wrongs: Vec<String>,
    /// The workers' processor time.
    pub(crate) processor_seconds: f64,
}

impl<F> Tally<F> {
    fn wrong(&mut self, wrong: String) {
        eprintln!("\n{wrong}\n");
        self.wrongs.push(wrong);
    }
}

/// What one task brings: figures, or words about what is wrong.
pub(crate) type Brought<F> = Result<F, String>;

/// A worker's line.
#[derive(Serialize, Deserialize)]
struct Answer<F> {
    brought: Brought<F>,
    processor_seconds: f64,
}

/// Answers until the questions end.
pub(crate) fn be_worker<F: Serialize>(task: impl Fn(u64) -> Brought<F>) -> ! {
    let mut busy = processor_seconds();
    let mut answer = |question: io::Result<String>| -> io::Result<()> {
        let brought = task(question?.parse().map_err(io::Error::other)?);
        let before = std::mem::replace(&mut busy, processor_seconds());
        println!("{}", serde_json::to_string(&Answer { brought, processor_seconds: busy - before })?);
        Ok(())
    };
    match io::stdin().lines().try_for_each(&mut answer) {
        Ok(()) => exit(0),
        Err(error) => {
            eprintln!("a worker: {error}");
            exit(1)
        }
    }
}

/// This program once more, with the same arguments.
struct Worker {
    process: Child,
    answers: io::Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start() -> io::Result<Worker> {
        let mut command = Command::new(env::current_exe()?);
        let mut process = command.args(env::args().skip(1)).arg(WORKER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        Ok(Worker { process, answers })
    }

    fn ask<F: DeserializeOwned>(&mut self, number: u64) -> io::Result<Answer<F>> {
        writeln!(self.process.stdin.as_mut().expect("piped"), "{number}")?;
        let answer = self.answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It ends with its input; one that died before has told so by its silence.
        _ = self.process.wait();
    }
}

/// A task that a worker is at.
#[derive(Clone, Copy)]
struct Asked {
    number: u64,
    since: Instant,
    worker: u32,
}

/// Deals out tasks from 0 on until `enough` says so (given the figures and the number of the next task) or there are too many wrongs.
pub(crate) fn work<F: AddAssign + Default + Send + DeserializeOwned>(
    jobs: usize,
    wrongs_most: usize,
    enough: impl Fn(&F, u64) -> bool + Sync,
    tell: impl Fn(&Tally<F>) -> String + Sync,
) -> Tally<F> {
    let tally = Mutex::new(Tally { figures: F::default(), wrongs: Vec::new(), processor_seconds: 0.0 });
    let (next, working) = (AtomicU64::new(0), AtomicU64::new(jobs as u64));
    let stop = AtomicBool::new(false);
    let current: Vec<Mutex<Option<Asked>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let lock = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for mine in &current {
            let (lock, next, working, stop, enough) = (&lock, &next, &working, &stop, &enough);
            scope.spawn(move || {
                let mut worker = Worker::start().map_err(|error| lock().wrong(format!("no worker: {error}"))).ok();
                while let Some(asked) = worker.as_mut().filter(|_| !stop.load(Ordering::Relaxed)) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if enough(&lock().figures, number) {
                        break;
                    }
                    let now = Asked { number, since: Instant::now(), worker: asked.process.id() };
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
                    let answer = asked.ask::<F>(number);
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    let mut tally = lock();
                    match answer {
                        Ok(Answer { brought, processor_seconds }) => {
                            tally.processor_seconds += processor_seconds;
                            match brought {
                                Ok(figures) => tally.figures += figures,
                                Err(wrong) => tally.wrong(wrong),
                            }
                        }
                        Err(error) => {
                            tally.wrong(format!("the worker died of task {number}: {error}"));
                            worker = None;
                        }
                    }
                    stop.fetch_or(tally.wrongs.len() >= wrongs_most, Ordering::Relaxed);
                }
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut told = Instant::now();
        while working.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(20));
            current.iter().for_each(watch);
            if told.elapsed() > Duration::from_secs(5) {
                eprintln!("  {}", tell(&lock()));
                told = Instant::now();
            }
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn watch(current: &Mutex<Option<Asked>>) {
    let current = *current.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Asked { number, since, worker }) = current.filter(|asked| asked.since.elapsed() > PATIENCE) {
        eprintln!("HANG: task {number} has taken {:?}", since.elapsed());
        // SAFETY: a signal to our own child, which nobody has waited for yet: its thread waits for its answer.
        unsafe { libc::kill(worker as libc::pid_t, libc::SIGKILL) };
        exit(3);
    }
}

/// The processor time this process has used, in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Fields 14 and 15 of proc(5), user and system time in hundredths of a second; the first after the name is the third.
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}
