//! A failing disk makes operations fail, never lie.
//!
//! The theory: whatever call fails, each operation gives the right answer or `Error::Io` or
//! `Error::Corruption`. An operation that failed may or may not have happened, so the model keeps every
//! state a key may be in. The first failed write latches the store: what needs room is refused from then
//! on, what is in memory can still be read. A flipped bit is found by whoever reads it. Each run has a
//! watchdog, for a store that waits for ever is as wrong as one that lies.

use esker::{Error, Options, Result, Store};
use esker_sim::disk::{Call, Failure, Fault, SECTOR, SimDisk};
use esker_sim::model::{Generator, Layout, Operation, Outcome, Shape, Uncertain};
use esker_sim::seeds::seed;
use esker_sim::subject::{self, Place, Subject};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

const BUDGET: u64 = 16 << 20;

/// As long as a machine may take that has much else to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs `body` in its own thread and gives up on it in the end.
fn watched(name: String, body: impl FnOnce(&str) + Send + 'static) {
    let (sender, receiver) = channel();
    let title = name.clone();
    let thread = std::thread::spawn(move || {
        body(&title);
        let _ = sender.send(());
    });
    match receiver.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => panic!("{name}: still running after {PATIENCE:?}"),
        _ => {
            if let Err(panic) = thread.join() {
                eprintln!("{name}: panicked");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The outcome, `None` for an error that a bad disk excuses.
fn excused(name: &str, operation: &dyn std::fmt::Debug, result: Result<Outcome>) -> Option<Outcome> {
    match result {
        Ok(outcome) => Some(outcome),
        Err(Error::Io(_) | Error::Corruption(_)) => None,
        Err(other) => panic!("{name}: {operation:?}: an error that is not the disk's: {other}"),
    }
}

/// Does an operation and checks it; true if it succeeded.
fn step(name: &str, store: &dyn Subject, layout: Layout, known: &mut Uncertain, operation: &Operation) -> bool {
    let outcome = excused(name, operation, subject::apply(store, layout, operation));
    known.observe(operation, outcome.as_ref()).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    outcome.is_some()
}

/// Enough operations that some 30 MB are written under a 16 MiB budget.
fn shape(layout: Layout) -> (Shape, usize) {
    let shape = Shape { layout, hot: 6, cold: 4000, typical: 10_000, huge_every: 150, batch: 48, filling: 15, reopens: false, ends: false };
    match layout.width() {
        Some(_) => (Shape { cold: 500_000, batch: 2048, filling: 60, ..shape }, 500),
        None => (shape, 800),
    }
}

fn operations(seed: u64, layout: Layout) -> Vec<Operation> {
    let (shape, steps) = shape(layout);
    let mut generator = Generator::new(seed, shape);
    (0..steps).map(|_| generator.operation()).filter(|o| !matches!(o, Operation::SetMemory(_))).collect()
}

/// One sequence over a disk with one fault; says whether the fault struck.
fn survive(name: &str, layout: Layout, fault: Fault) -> bool {
    let disk = Arc::new(SimDisk::with_delay(seed(), 20));
    disk.fail(fault);
    let store = match subject::open(layout, BUDGET, &Place::Disk(disk.clone())) {
        Ok(store) => store,
        Err(Error::Io(_) | Error::Corruption(_)) => return disk.calls().failed > 0,
        Err(other) => panic!("{name}: open: {other}"),
    };
    let mut known = Uncertain::new(layout);
    for (number, operation) in operations(seed(), layout).into_iter().enumerate() {
        step(name, store.as_ref(), layout, &mut known, &operation);
        // Nothing else asks for one here.
        if fault.call == Call::Sync && number % 40 == 39 {
            let committed = store.commit();
            // A second one might say of what the first one lost that it is there.
            let is_right = committed.is_ok() == (disk.calls().failed == 0);
            assert!(is_right, "{name}: {committed:?} with {} failures", disk.calls().failed);
        }
    }
    for key in known.keys().into_iter().step_by(if layout.width().is_some() { 97 } else { 3 }) {
        step(name, store.as_ref(), layout, &mut known, &Operation::Get(key));
    }
    let struck = disk.calls().failed > 0;
    if struck && [Call::Write, Call::Sync].contains(&fault.call) {
        assert!(store.stats().latched.is_some(), "{name}: a write or a sync failed and nothing is latched");
    }
    let _ = excused(name, &"close", store.close().map(|()| Outcome::Done));
    disk.calls().failed > 0
}

/// Every n of a range, once and for ever; the first must strike, or the test tests nothing.
fn survive_all(call: Call, layout: Layout, numbers: &'static [u64]) {
    for &nth in numbers {
        for (lasting, failure) in [(false, Failure::Io), (true, Failure::NoSpace)] {
            let fault = Fault { call, nth, lasting, failure };
            let name = format!("ESKER_SEED={} {layout:?} {fault:?}", seed());
            watched(name, move |name| {
                let struck = survive(name, layout, fault);
                assert!(struck || nth > 1, "{name}: the fault never struck");
            });
        }
    }
}

#[test]
fn reads_that_fail() {
    survive_all(Call::Read, Layout::Blobs, &[1, 2, 3, 7, 40, 300]);
    survive_all(Call::Read, Layout::Pairs, &[1, 5]);
}

#[test]
fn writes_that_fail() {
    survive_all(Call::Write, Layout::Blobs, &[1, 2, 3, 5, 9]);
    survive_all(Call::Write, Layout::Pairs, &[1, 4]);
}

#[test]
fn syncs_that_fail() {
    survive_all(Call::Sync, Layout::Named, &[1, 2]);
}

/// Puts values of one size until one is refused; gives the numbers of those that were stored.
fn fill_until_refused(name: &str, store: &dyn Subject) -> Vec<u64> {
    for id in 0..20_000 {
        match store.put(&Layout::Blobs.key(id), &value(id)) {
            Ok(()) => {}
            Err(Error::Io(_)) => return (0..id).collect(),
            Err(other) => panic!("{name}: put {id}: {other}"),
        }
    }
    panic!("{name}: 160 MB fit although no write succeeds");
}

fn value(id: u64) -> Vec<u8> {
    (0..8192u64).map(|i| (id * 31 + i) as u8).collect()
}

#[test]
fn a_failed_write_latches_the_store() {
    for lasting in [false, true] {
        watched(format!("latch, lasting {lasting}"), move |name| {
            let disk = Arc::new(SimDisk::new(seed()));
            let store = subject::open(Layout::Blobs, BUDGET, &Place::Disk(disk.clone())).unwrap();
            disk.fail(Fault { call: Call::Write, nth: disk.calls().writes + 1, lasting, failure: Failure::Io });
            assert!(store.stats().latched.is_none());
            let stored = fill_until_refused(name, store.as_ref());
            assert!(store.stats().latched.is_some(), "{name}: refused, but nothing is latched");
            for id in 0..200 {
                let refused = store.put(&Layout::Blobs.key(1_000_000 + id), &value(id));
                assert!(matches!(refused, Err(Error::Io(_))), "{name}: put {id} after the latch: {refused:?}");
            }
            for id in stored.iter().rev().take(100) {
                let seen = store.get(&Layout::Blobs.key(*id));
                let seen = seen.unwrap_or_else(|e| panic!("{name}: get {id} in memory: {e}"));
                assert!(seen == Some(value(*id)), "{name}: get {id} in memory: a wrong value");
            }
        });
    }
}

/// One read of a batch fails: the keys before the one that needed it are done all the same, and none is done twice.
#[test]
fn a_batch_is_done_up_to_the_key_that_failed() {
    watched("a batch of changes".to_owned(), |name| {
        let disk = Arc::new(SimDisk::with_delay(seed(), 20));
        // Without a driver, whose compaction may read, too, and be the one whose read fails.
        let store: Store<u64, [u8]> = Options::new().memory(BUDGET).background(false).open_on(disk.clone()).unwrap();
        for key in 0..60_000u64 {
            store.put(&key, &[0; 500]).unwrap();
        }
        for (from, nth) in [(0u64, 1), (2_000, 700), (4_000, 1_999)] {
            // Equal keys: the second of each pair is put off, and must not be done if the first was not.
            let keys: Vec<u64> = (from..from + 2_000).flat_map(|key| [key, key]).collect();
            disk.fail(Fault { call: Call::Read, nth: disk.calls().reads + nth, lasting: false, failure: Failure::Io });
            let failed = store.rmw_many(&keys, |_, old| vec![old.map_or(0, |old| old[0] + 1); 500]);
            assert!(matches!(failed, Err(Error::Io(_))), "{name}: {failed:?}, though a read failed");
            disk.heal();
            let times: Vec<u8> = (from..from + 2_000).map(|key| store.get(&key).unwrap().unwrap()[0]).collect();
            let undone = times.iter().position(|times| *times < 2).unwrap();
            assert_eq!(times[undone], 0, "{name}: key {undone} was done once and not twice");
            assert!(times[undone..].iter().all(|times| *times <= 1), "{name}: what was put off behind a failure is not done");
            // The last are read first.
            assert!(undone + nth as usize + 200 > 2_000, "{name}: only {undone} keys before the failure are done");
        }
    });
}

/// Fills a store past its budget, flips bits, reads everything; gives how many reads found corruption.
fn corrupted_reads(name: &str, layout: Layout, seed: u64, flips: usize) -> usize {
    let disk = Arc::new(SimDisk::with_delay(seed, 20));
    let store = subject::open(layout, BUDGET, &Place::Disk(disk.clone())).unwrap();
    let mut known = Uncertain::new(layout);
    for operation in operations(seed, layout) {
        assert!(step(name, store.as_ref(), layout, &mut known, &operation), "{name}: failed on a good disk");
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let written = disk.written();
    assert!(!written.is_empty(), "{name}: nothing was written");
    for _ in 0..flips {
        let sector = written[random.random_range(0..written.len())];
        disk.corrupt(sector + random.random_range(0..SECTOR as u64), random.random_range(0..8));
    }
    let keys = known.keys().into_iter().step_by(if layout.width().is_some() { 29 } else { 1 });
    keys.filter(|k| !step(name, store.as_ref(), layout, &mut known, &Operation::Get(k.clone()))).count()
}

#[test]
fn flipped_bits_are_found() {
    for layout in [Layout::Blobs, Layout::Records] {
        for (turn, flips) in [1, 30, 2000].into_iter().enumerate() {
            let seed = seed() + turn as u64;
            watched(format!("ESKER_SEED={seed} {layout:?} {flips} flipped bits"), move |name| {
                let found = corrupted_reads(name, layout, seed, flips);
                assert!(found > 0 || flips < 2000, "{name}: no read noticed");
            });
        }
    }
}
