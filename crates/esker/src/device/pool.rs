//! A stream of reads by waiting threads, for where the kernel grants no io_uring.
//!
//! The threads are a crew that all streams of the process share: started as reads come for which none is free, as far as the system grants
//! them, and ended when there was nothing to do for a while. A stream of a handful of reads finds them there; where none is free or granted
//! it reads by itself. Reads travel to them and back with their buffers and their file, so nothing is shared; a stream that ends by a panic
//! drops its channel, and what was under way goes with its thread's next word.

use super::{Device, DeviceRead, ReadSource, hand_back};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

/// Reads under way of a stream.
const DEPTH: usize = 32;
/// Of all streams: as many as two of them have use for.
const THREADS_MAX: usize = 64;
const IDLE: Duration = Duration::from_secs(2);

/// A read on its way, and back to its stream: whether all of it was read.
struct Job {
    read: DeviceRead,
    file: Arc<File>,
    offset: u64,
    ended: mpsc::Sender<(DeviceRead, bool)>,
}

struct Crew {
    /// The process that used it first, or 0. In one that was forked from that there are none of its threads, and its lock may be held for
    /// ever.
    owner: AtomicU32,
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Of these, who wait for a job.
    idle: usize,
    /// So many there may be: [`THREADS_MAX`], or where the system granted no more as many as it did, until one of those ends.
    most: usize,
}

/// Does the reads of `source`.
pub(super) fn read_stream(device: &dyn Device, source: &mut dyn ReadSource) {
    let (ended, results) = mpsc::channel();
    let mut under_way = 0;
    loop {
        while under_way < DEPTH
            && let Some(read) = source.next()
        {
            // None: across two files, or where none is.
            let refused = match device.file_at(read.offset(), read.bytes().len()) {
                Some((file, offset)) => CREW.take(Job { read, file, offset, ended: ended.clone() }).map(|job| job.read),
                None => Some(read),
            };
            match refused {
                None => under_way += 1,
                // What has ended meanwhile does not wait for the next one.
                Some(read) => {
                    hand_back(device, source, read, false);
                    while let Ok((read, is_whole)) = results.try_recv() {
                        under_way -= 1;
                        hand_back(device, source, read, is_whole);
                    }
                }
            }
        }
        if under_way == 0 {
            return;
        }
        // We hold a sender ourselves, and each thread answers each job.
        let Ok((read, is_whole)) = results.recv() else { return };
        under_way -= 1;
        hand_back(device, source, read, is_whole);
    }
}

static CREW: Crew = Crew::new();

impl Crew {
    const fn new() -> Self {
        let state = State { jobs: VecDeque::new(), threads: 0, idle: 0, most: THREADS_MAX };
        Self { owner: AtomicU32::new(0), state: Mutex::new(state), work: Condvar::new() }
    }

    fn is_ours(&self) -> bool {
        let own = process::id();
        match self.owner.compare_exchange(0, own, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(owner) => owner == own,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives the job to a thread that is free for it, an own one if need be. Back if there is none: what others wait for, on a device that
    /// hangs, holds up nobody else.
    fn take(&'static self, job: Job) -> Option<Job> {
        if !self.is_ours() {
            return Some(job);
        }
        let mut state = self.lock();
        if state.jobs.len() >= state.idle {
            if state.threads >= state.most.max(1) {
                return Some(job);
            }
            if thread::Builder::new().name("esker-read".into()).spawn(|| self.work()).is_err() {
                state.most = state.threads;
                return Some(job);
            }
            state.threads += 1;
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        None
    }

    /// A thread's life.
    fn work(&self) {
        while let Some(Job { mut read, file, offset, ended }) = self.next() {
            let is_whole = file.read_exact_at(read.bytes_mut(), offset).is_ok();
            // Before anybody hears of it: with the last one a store lets go of its files.
            drop(file);
            let _ = ended.send((read, is_whole));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let (waited, end) = self.work.wait_timeout(state, IDLE).unwrap_or_else(|e| e.into_inner());
            state = waited;
            state.idle -= 1;
            if end.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                state.most = THREADS_MAX;
                return None;
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::{FileDevice, SECTOR_BYTES};
    use std::io;

    /// So many reads of one sector each, some of them beyond the file's end.
    struct Sectors {
        next: u64,
        count: u64,
        told: Vec<bool>,
        panics: bool,
    }

    impl ReadSource for Sectors {
        fn next(&mut self) -> Option<DeviceRead> {
            let next = (self.next < self.count).then(|| DeviceRead::new(self.next * SECTOR_BYTES as u64, 1, self.next))?;
            self.next += 1;
            Some(next)
        }

        fn done(&mut self, read: DeviceRead, result: io::Result<()>) {
            assert!(!self.panics, "the source panics");
            let is_right = read.bytes().iter().all(|byte| *byte == read.token() as u8);
            self.told[read.token() as usize] = result.is_ok() && is_right;
        }
    }

    #[test]
    fn streams_share_a_crew_and_a_panic_of_one_is_its_own() {
        const SECTORS: u64 = 200;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..SECTORS).flat_map(|sector| [sector as u8; SECTOR_BYTES]).collect();
        std::fs::write(&path, bytes).unwrap();
        let device = FileDevice::open(&path, false, false).unwrap();
        let stream = |count: u64, panics: bool| {
            let mut source = Sectors { next: 0, count, told: vec![false; count as usize], panics };
            read_stream(&device, &mut source);
            source.told
        };
        thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for round in 0..50 {
                        if (thread + round) % 10 == 0 {
                            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream(100, true)));
                            assert!(panicked.is_err());
                        }
                        let told = stream(SECTORS + 3, false);
                        assert!(told.iter().enumerate().all(|(n, is_right)| *is_right == (n < SECTORS as usize)));
                    }
                });
            }
        });
        assert!(CREW.lock().threads <= THREADS_MAX);
        // Those of the streams that panicked are read, too.
        while !CREW.lock().jobs.is_empty() {
            thread::yield_now();
        }
    }

    fn of_zeros(ended: &mpsc::Sender<(DeviceRead, bool)>) -> Job {
        let file = Arc::new(File::open("/dev/zero").unwrap());
        Job { read: DeviceRead::new(0, 1, 0), file, offset: 0, ended: ended.clone() }
    }

    #[test]
    fn a_crew_without_work_ends() {
        static CREW: Crew = Crew::new();
        let (ended, results) = mpsc::channel();
        let job = || of_zeros(&ended);
        assert!((0..10).all(|_| CREW.take(job()).is_none()));
        assert!((0..10).all(|_| results.recv().unwrap().1));
        assert!((1..=10).contains(&CREW.lock().threads));
        while CREW.lock().threads > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(CREW.take(job()).is_none() && results.recv().unwrap().1);
    }

    /// A device that hangs has them all.
    #[test]
    fn where_no_thread_is_free_nobody_waits_for_one() {
        static CREW: Crew = Crew::new();
        let (ended, results) = mpsc::channel();
        let job = || of_zeros(&ended);
        CREW.lock().threads = THREADS_MAX;
        assert!(CREW.take(job()).is_some() && CREW.lock().jobs.is_empty());
        CREW.lock().threads = THREADS_MAX - 1;
        assert!(CREW.take(job()).is_none() && results.recv().unwrap().1);
        // Nor of another process's threads.
        CREW.owner.store(process::id() + 1, Relaxed);
        assert!(CREW.take(job()).is_some());
    }

    /// The next read does not ask again at once.
    #[test]
    fn where_the_system_grants_no_more_threads_none_is_asked_for() {
        static CREW: Crew = Crew::new();
        let (ended, results) = mpsc::channel();
        let job = || of_zeros(&ended);
        (CREW.lock().threads, CREW.lock().most) = (3, 3);
        assert!(CREW.take(job()).is_some());
        // But where there is none at all.
        (CREW.lock().threads, CREW.lock().most) = (0, 0);
        assert!(CREW.take(job()).is_none() && results.recv().unwrap().1);
        while CREW.lock().threads > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(CREW.lock().most, THREADS_MAX);
    }
}
