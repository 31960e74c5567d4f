//! The threads that wait in place of asynchronous calls: one reads chains from the device, one
//! makes room in the log, one draws lines, one lets time pass, and one tells a cache's listener.
//!
//! Each is started by the first call that needs it, so a store that is used by blocking calls alone has none. A call
//! leaves a job and gets a [`Reply`] to await. The job owns all it needs (a copy of the key, its buffers), so a reply
//! may be dropped at any time; a job whose reply is gone is skipped. A job that is dropped unanswered answers `Closed`:
//! that is how closing the store ends every wait.
//!
//! The reader is one [`ReadSource`] over all its jobs: whatever was asked since the last read ended is under way together. Room and lines
//! are made by threads of their own, because writing the log out would hold up the reads, and room in a cache waits for a backup, for which
//! lines do not.
//!
//! Wakers are foreign code: they run without a lock held, and may panic or close the store. Who closes it on a thread of its own
//! ([`is_own`]) waits for none of these: two that did would wait for each other.

use crate::ahead::of_stream;
use crate::cache::Duty;
use crate::descent::Held;
use crate::descent::{Places, Walk, Walked};
use crate::device::{DeviceRead, ReadSource};
use crate::engine::Engine;
use crate::epoch::Counter;
use crate::error::{Error, Result, about};
use crate::sync::{swallow, wake};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// This thread is a store's own from here on.
pub(super) fn belong_to_store() {
    IS_OWN.set(true);
}

pub(super) fn is_own() -> bool {
    IS_OWN.get()
}

/// While `work` goes on, in which foreign code is called that may come back: that must not wait for it.
pub(super) fn as_own<T>(work: impl FnOnce() -> T) -> T {
    let _before = Before(IS_OWN.replace(true));
    work()
}

struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        IS_OWN.set(self.0);
    }
}

/// The helper threads of one store, started or not.
#[derive(Default)]
pub(super) struct Helpers {
    reads: Arc<Queue<ReadJob>>,
    rooms: Arc<Queue<RoomJob>>,
    lines: Arc<Queue<LineJob>>,
    pauses: Arc<Queue<PauseJob>>,
    tells: Arc<Queue<TellJob>>,
}

impl Helpers {
    /// What the key holds at the end of the chain that begins at `at`, `None` if nothing. `get`: as in `descent::read`.
    pub(super) fn read(&self, engine: &Arc<Engine>, at: u64, key: &[u8], get: Option<u64>) -> Result<Reply<Option<Held>>> {
        let (answer, reply) = ticket();
        let job = ReadJob { walk: Walk::new(engine, at).of_get(get), key: key.into(), answer };
        if job.walk.is_over() {
            job.answer.send(Ok(None));
            return Ok(reply);
        }
        self.reads.push(job, "esker-reader", engine, run_reads)?;
        Ok(reply)
    }

    /// [`Engine::make_room`] elsewhere.
    pub(super) fn make_room(&self, engine: &Arc<Engine>, bytes: u64) -> Result<Reply<()>> {
        let has_sought_hole = engine.leave_holes()?;
        let (answer, reply) = ticket();
        self.rooms.push(RoomJob { bytes, has_sought_hole, answer }, "esker-writer", engine, run_rooms)?;
        Ok(reply)
    }

    /// [`Engine::commit`] elsewhere. Calls that wait together share a line: the first one's holds what the others wrote.
    pub(super) fn commit(&self, engine: &Arc<Engine>) -> Result<Reply<()>> {
        let (answer, reply) = ticket();
        self.lines.push(LineJob(answer), "esker-liner", engine, run_lines)?;
        Ok(reply)
    }

    /// Some time passes, a few milliseconds at most. A longer pause that was asked for before may make it longer.
    pub(super) fn pause(&self, engine: &Arc<Engine>, span: Duration) -> Result<Reply<()>> {
        let (answer, reply) = ticket();
        self.pauses.push(PauseJob { until: Instant::now() + span, answer }, "esker-pauser", engine, run_pauses)?;
        Ok(reply)
    }

    /// A cache's listener is told of what left while room was made here.
    pub(super) fn tell(&self, engine: &Arc<Engine>) -> Result<()> {
        self.tells.push(TellJob, "esker-teller", engine, run_tells)
    }

    /// Answers `Closed` to all that waits, and waits for the threads if it may.
    pub(super) fn close(&self, may_wait: bool) {
        self.reads.close(may_wait);
        self.rooms.close(may_wait);
        self.lines.close(may_wait);
        self.pauses.close(may_wait);
        self.tells.close(may_wait);
    }
}

// ---- a job's answer ------------------------------------------------------------------------------------------------

struct Ticket<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

/// The future of a job's result.
pub(super) struct Reply<T>(Arc<Mutex<Ticket<T>>>);

/// The job's end of a reply.
struct Answer<T>(Arc<Mutex<Ticket<T>>>);

fn ticket<T>() -> (Answer<T>, Reply<T>) {
    let ticket = Arc::new(Mutex::new(Ticket { result: None, waker: None }));
    (Answer(ticket.clone()), Reply(ticket))
}

impl<T> Answer<T> {
    /// False when the reply was dropped: nobody can ask again.
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn send(self, result: Result<T>) {
        self.set(result);
    }

    /// The first result counts.
    fn set(&self, result: Result<T>) {
        let mut ticket = lock(&self.0);
        if ticket.result.is_some() {
            return;
        }
        ticket.result = Some(result);
        let waker = ticket.waker.take();
        drop(ticket);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.set(Err(Error::Closed));
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let waker = context.waker().clone();
        let mut ticket = lock(&self.0);
        if let Some(result) = ticket.result.take() {
            // What stays says so to the `Answer`, whose end may be near, and to a poll too many.
            ticket.result = Some(Err(Error::Closed));
            return Poll::Ready(result);
        }
        let replaced = ticket.waker.replace(waker);
        drop(ticket);
        drop(replaced);
        Poll::Pending
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

// ---- a thread's jobs -----------------------------------------------------------------------------------------------

struct Queue<J> {
    state: Mutex<QueueState<J>>,
    arrived: Condvar,
}

struct QueueState<J> {
    jobs: VecDeque<J>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self { state: Mutex::new(QueueState { jobs: VecDeque::new(), closed: false, thread: None }), arrived: Condvar::new() }
    }
}

impl<J: Send + 'static> Queue<J> {
    /// Adds a job; the first one starts the thread.
    fn push(self: &Arc<Self>, job: J, name: &str, engine: &Arc<Engine>, run: fn(&Engine, &Self)) -> Result<()> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Error::Closed);
        }
        if state.thread.is_none() {
            let (engine, queue) = (engine.clone(), self.clone());
            let work = move || {
                belong_to_store();
                run(&engine, &queue);
            };
            let thread = std::thread::Builder::new().name(name.into()).spawn(work);
            state.thread = Some(thread.map_err(|error| about(error, format_args!("thread={name}")))?);
        }
        state.jobs.push_back(job);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// A job if one is there.
    fn pop(&self) -> Option<J> {
        lock(&self.state).jobs.pop_front()
    }

    /// All jobs that are there.
    fn take(&self) -> VecDeque<J> {
        std::mem::take(&mut lock(&self.state).jobs)
    }

    /// Waits for a job; false when none will come any more.
    fn wait(&self) -> bool {
        let state = lock(&self.state);
        let state = self.arrived.wait_while(state, |state| state.jobs.is_empty() && !state.closed).unwrap_or_else(|e| e.into_inner());
        !state.closed
    }

    fn close(&self, may_wait: bool) {
        let mut state = lock(&self.state);
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        // Else it is left to a later close that may.
        let thread = if may_wait { state.thread.take() } else { None };
        drop(state);
        drop(jobs);
        self.arrived.notify_all();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

// ---- who makes room --------------------------------------------------------------------------------------------------

struct RoomJob {
    bytes: u64,
    has_sought_hole: bool,
    answer: Answer<()>,
}

fn run_rooms(engine: &Engine, queue: &Queue<RoomJob>) {
    // A listener may await what is to be done here.
    let _duty = Duty::begin();
    while queue.wait() {
        while let Some(job) = queue.pop() {
            if job.answer.is_wanted() {
                job.answer.send(engine.make_room_for(job.bytes, job.has_sought_hole));
            }
        }
    }
}

// ---- who draws lines -------------------------------------------------------------------------------------------------

struct LineJob(Answer<()>);

fn run_lines(engine: &Engine, queue: &Queue<LineJob>) {
    // As above.
    let _duty = Duty::begin();
    while queue.wait() {
        // All have written what they ask for: one line holds it.
        let jobs = queue.take();
        if jobs.iter().any(|job| job.0.is_wanted()) {
            let made = engine.guarded(|| engine.commit());
            jobs.into_iter().for_each(|job| job.0.send(made.clone()));
        }
    }
}

// ---- the pauser ----------------------------------------------------------------------------------------------------

struct PauseJob {
    until: Instant,
    answer: Answer<()>,
}

fn run_pauses(_: &Engine, queue: &Queue<PauseJob>) {
    // A waker may drop pairs, and their listener await what is to be done here.
    let _duty = Duty::begin();
    while queue.wait() {
        while let Some(job) = queue.pop() {
            if job.answer.is_wanted() {
                std::thread::sleep(job.until.saturating_duration_since(Instant::now()));
            }
            job.answer.send(Ok(()));
        }
    }
}

// ---- the teller ----------------------------------------------------------------------------------------------------

/// Somebody left something to be told.
struct TellJob;

fn run_tells(engine: &Engine, queue: &Queue<TellJob>) {
    while queue.wait() {
        while queue.pop().is_some() {}
        if let Some(caching) = &engine.caching {
            caching.tell_unless_told(|| ());
        }
    }
}

// ---- the reader ----------------------------------------------------------------------------------------------------

struct ReadJob {
    walk: Walk,
    key: Box<[u8]>,
    answer: Answer<Option<Held>>,
}

/// The reader's jobs as a source of device reads.
struct Reads<'a> {
    engine: &'a Engine,
    queue: &'a Queue<ReadJob>,
    /// Walks whose next record is to be read: they come before new ones.
    waiting: Vec<ReadJob>,
    reading: Places<ReadJob>,
}

fn run_reads(engine: &Engine, queue: &Queue<ReadJob>) {
    // As above.
    let _duty = Duty::begin();
    let mut reads = Reads { engine, queue, waiting: Vec::new(), reading: Places::default() };
    while queue.wait() {
        // A device is foreign code as well: it may panic, and the next calls need this thread nevertheless.
        let device = engine.log.cold_device();
        let ended = swallow(|| device.map(|device| device.read_stream(&mut reads)));
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => reads.fail(&error),
            None => reads.fail(&Error::device_panicked()),
        }
    }
}

impl Reads<'_> {
    /// Answers an error to everything.
    fn fail(&mut self, error: &Error) {
        let jobs = self.reading.drain().chain(self.waiting.drain(..)).chain(std::iter::from_fn(|| self.queue.pop()));
        jobs.for_each(|job| job.answer.send(Err(error.clone())));
    }

    fn advance(&mut self, mut job: ReadJob, mut read: DeviceRead, result: io::Result<()>) {
        let walked = of_stream(&read, result).and_then(|()| job.walk.advance(self.engine, &mut read, &job.key));
        match walked.map(Walked::held).transpose() {
            Some(held) => job.answer.send(held),
            None => self.waiting.push(job),
        }
    }
}

impl ReadSource for Reads<'_> {
    fn next(&mut self) -> Option<DeviceRead> {
        if self.engine.epochs.is_closed() {
            // Those that nobody has begun, too: who closes the store may be waiting for a listener that awaits one.
            self.waiting.clear();
            while self.queue.pop().is_some() {}
            return None;
        }
        loop {
            let job = self.waiting.pop().or_else(|| self.queue.pop())?;
            if job.answer.is_wanted() {
                if let Ok(slot) = self.engine.epochs.slot() {
                    slot.count(Counter::DeviceRead, 1);
                }
                let walk = job.walk;
                return Some(walk.read(self.reading.put(job)));
            }
        }
    }

    fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
        let job = self.reading.take(read.token());
        self.advance(job, read, result);
    }
}
