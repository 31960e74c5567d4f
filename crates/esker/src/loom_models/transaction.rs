//! Transactions: beside plain writers, plain readers and each other. The keys' hashes are chosen so that each has a latch.

use super::{Model, Shared, sound, spawn, without};
use crate::engine::Engine;
use crate::latches::LatchNumber;
use crate::log::line_flag;
use crate::store::Store;
use crate::sync::Rule;
use crate::sync::atomic::Ordering::*;
use std::sync::Arc;

type Words = Shared<Store<(), u64>>;

/// A store of one key that has a value and a latch.
fn with_latches() -> Words {
    let store = Shared::new(Store::<(), u64>::for_model(Arc::new(Engine::for_model())));
    store.put(&(), &0).expect("room");
    store.engine_for_test().begin_latching().expect("open");
    store
}

fn add_in_a_transaction(store: &Words) -> bool {
    let mut tx = store.begin().expect("open");
    tx.rmw(&(), |old| old.unwrap_or(100) + 1).expect("a value");
    tx.commit().is_ok()
}

/// A transaction reads and writes a key; meanwhile a plain call changes it.
fn transaction_beside_a_plain_update(model: Model) {
    model.check(|| {
        let store = with_latches();
        let plain = spawn(1, {
            let store = store.clone();
            move || {
                store.engine_for_test().epochs.idle_slot().expect("no pin yet");
                store.rmw(&(), |old| old.unwrap_or(100) + 1).expect("room");
            }
        });
        let committed = add_in_a_transaction(&store);
        plain.join();
        assert_eq!(store.get(&()).expect("in memory"), Some(1 + u64::from(committed)), "an update was lost");
    });
}

#[test]
fn a_transaction_and_a_plain_update_are_one_after_the_other() {
    transaction_beside_a_plain_update(sound().preemptions(2));
}

#[test]
#[should_panic(expected = "an update was lost")]
fn twin_plain_writer_does_not_latch() {
    transaction_beside_a_plain_update(without(Rule::WritersLatch).preemptions(2));
}

#[test]
#[should_panic(expected = "an update was lost")]
fn twin_reads_are_not_validated() {
    transaction_beside_a_plain_update(without(Rule::ReadsAreValidated).preemptions(2));
}

/// Two latches, held by one thread while it changes both values, and a reader of one value and then the other.
fn reader_of_both(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        engine.begin_latching().expect("open");
        let values = Shared::new([0; 2].map(crate::sync::atomic::AtomicU64::new));
        let hashes = [0, u64::MAX];
        assert_ne!(LatchNumber::of(hashes[0]), LatchNumber::of(hashes[1]));
        let writer = spawn(1, {
            let (engine, values) = (engine.clone(), values.clone());
            move || {
                let held = hashes.map(|hash| engine.hold(hash).expect("nobody else holds it"));
                values[0].store(1, Release);
                values[1].store(1, Release);
                drop(held);
            }
        });
        let read = |key: usize| (!engine.is_held(hashes[key])).then(|| values[key].load(Acquire));
        let (first, second) = (read(0), read(1));
        writer.join();
        assert!((first, second) != (Some(1), Some(0)), "half a transaction was seen");
    });
}

#[test]
fn a_reader_sees_all_or_nothing() {
    reader_of_both(sound());
}

#[test]
#[should_panic(expected = "half a transaction was seen")]
fn twin_reader_does_not_look() {
    reader_of_both(without(Rule::ReadersLook));
}

/// The same reader while keys get their latches: it may look at the door before, and come late.
fn late_reader_of_both(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        let values = Shared::new([0; 2].map(crate::sync::atomic::AtomicU64::new));
        let hashes = [0, u64::MAX];
        let reader = spawn(1, {
            let (engine, values) = (engine.clone(), values.clone());
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                let read = |key: usize| match engine.epochs.pin_to_read() {
                    Some(_pin) => Some(values[key].load(Acquire)),
                    None => {
                        let _pin = engine.epochs.pin().expect("open");
                        (!engine.is_held(hashes[key])).then(|| values[key].load(Acquire))
                    }
                };
                (read(0), read(1))
            }
        });
        engine.begin_latching().expect("open");
        let held = hashes.map(|hash| engine.hold(hash).expect("nobody else holds it"));
        values[0].store(1, Release);
        values[1].store(1, Release);
        drop(held);
        assert!(reader.join() != (Some(1), Some(0)), "half a transaction was seen");
    });
}

#[test]
fn a_late_reader_sees_all_or_nothing() {
    late_reader_of_both(sound());
}

#[test]
#[should_panic(expected = "half a transaction was seen")]
fn twin_late_reader_does_not_look() {
    late_reader_of_both(without(Rule::ReadersLook));
}

/// Two threads, each of which writes what the other one read: the core of a commit, over two latches.
fn crosswise(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        engine.begin_latching().expect("open");
        let commit = |engine: &Engine, read: u64, write: u64| {
            let read = LatchNumber::of(read);
            let Some(version) = engine.latches.version(read) else { return false };
            let Some(held) = engine.hold(write) else { return false };
            let stands = engine.latches.stands(read, version);
            if stands {
                drop(held)
            } else {
                held.unchanged()
            }
            // Nothing had been written when both began.
            stands && version == 0
        };
        let other = spawn(1, {
            let engine = engine.clone();
            move || commit(&engine, 0, u64::MAX)
        });
        // Joined in any case: what loads announce themselves to goes with the model's first thread.
        let (mine, theirs) = (commit(&engine, u64::MAX, 0), other.join());
        assert!(!(mine && theirs), "a write skew");
    });
}

#[test]
fn of_two_who_write_what_the_other_read_one_sees_the_other() {
    crosswise(sound());
}

#[test]
#[should_panic(expected = "a write skew")]
fn twin_holds_are_not_seen_before_the_looks() {
    crosswise(without(Rule::HeldBeforeLook));
}

/// Two records of one commit, while a line is cut.
fn commit_beside_a_line(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        engine.begin_latching().expect("open");
        // Lest there be nothing to cut.
        let make = |engine: &Engine| {
            let at = engine.log.allocate(engine.epochs.slot().expect("few threads"), 16).expect("room");
            (at, engine.log.line_flag())
        };
        make(&engine);
        let committing = spawn(1, {
            let engine = engine.clone();
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                let _pin = engine.epochs.pin().expect("open");
                (!engine.is_cutting()).then(|| [make(&engine), make(&engine)])
            }
        });
        let (line, _) = engine.cut_log(true).expect("no device").expect("a record");
        let is_in = |(at, flag): (u64, u64)| at < line.cut && flag == line_flag(line.number);
        if let Some([one, other]) = committing.join() {
            assert_eq!(is_in(one), is_in(other), "a transaction was torn");
        }
    });
}

#[test]
fn a_commit_is_on_one_side_of_a_line() {
    commit_beside_a_line(sound());
}

#[test]
#[should_panic(expected = "a transaction was torn")]
fn twin_line_does_not_wait_for_transactions() {
    commit_beside_a_line(without(Rule::LinesWaitForTransactions));
}
