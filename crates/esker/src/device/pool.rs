//! A stream of reads by waiting threads, for where the kernel grants no io_uring.
//!
//! The threads live as long as the stream and are started as its depth needs them, as far as the system grants them; if it grants none, the
//! reads are done here. Reads travel to them and back with
//! their buffers, so nothing is shared; a panic of the source drops the channel, and the threads end with their last read.

use super::{DeviceRead, ReadSource};
use std::io;
use std::sync::{Mutex, mpsc};

/// Reads under way, each by a thread of its own: a stream of a handful of reads must not pay for more.
const THREADS: usize = 32;

pub(super) fn read_stream(read: impl Fn(&mut DeviceRead) -> io::Result<()> + Sync, source: &mut dyn ReadSource) {
    let (jobs, waiting) = mpsc::channel::<DeviceRead>();
    let (ended, results) = mpsc::channel();
    let waiting = Mutex::new(waiting);
    let work = |ended: mpsc::Sender<_>| {
        // The lock is held while waiting: the next thread waits for the lock instead.
        while let Ok(mut job) = { waiting.lock().unwrap_or_else(|e| e.into_inner()).recv() } {
            let result = read(&mut job);
            if ended.send((job, result)).is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let (jobs, mut threads, mut under_way) = (jobs, 0, 0);
        loop {
            while under_way < THREADS
                && let Some(mut job) = source.next()
            {
                if threads <= under_way {
                    let (ended, work) = (ended.clone(), &work);
                    threads += usize::from(std::thread::Builder::new().spawn_scoped(scope, move || work(ended)).is_ok());
                }
                if threads == 0 {
                    let result = read(&mut job);
                    source.done(job, result);
                    continue;
                }
                under_way += 1;
                let _ = jobs.send(job);
            }
            if under_way == 0 {
                return;
            }
            // We hold a sender ourselves, and each thread answers each job.
            let Ok((job, result)) = results.recv() else { return };
            under_way -= 1;
            source.done(job, result);
        }
    });
}
