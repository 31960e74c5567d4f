//! The store: updates while the boundary passes their record, and values that change under a reader.

use super::{Model, Shared, sound, spawn, without};
use crate::engine::Engine;
use crate::record::{NEVER, Record};
use crate::store::Store;
use crate::sync::Rule;
use std::sync::Arc;

/// Two read-modify-writes of one key, while the boundary passes its record: one may find it mutable, the other fuzzy.
fn updates_across_the_boundary(model: Model) {
    model.check(|| {
        let engine = Arc::new(Engine::for_model());
        let store = Shared::new(Store::<(), u64>::for_model(engine.clone()));
        let engine = Shared::new(engine);
        store.put(&(), &0).expect("room");
        let in_place = spawn(1, {
            let (store, engine) = (store.clone(), engine.clone());
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                store.rmw(&(), |old| old.unwrap_or(100) + 1).expect("room");
            }
        });
        let freezing = spawn(2, {
            let engine = engine.clone();
            move || engine.freeze(engine.log.end_block())
        });
        store.rmw(&(), |old| old.unwrap_or(100) + 1).expect("room");
        in_place.join();
        freezing.join();
        assert_eq!(store.get(&()).expect("in memory"), Some(2), "an update was lost");
    });
}

#[test]
fn no_update_is_lost_in_the_fuzzy_region() {
    // With two preemptions, minutes.
    updates_across_the_boundary(sound().preemptions(1));
}

#[test]
#[should_panic(expected = "an update was lost")]
fn twin_update_copies_a_fuzzy_record() {
    updates_across_the_boundary(without(Rule::FuzzyWaits).preemptions(1));
}

#[test]
#[should_panic(expected = "an update was lost")]
fn twin_freeze_does_not_wait() {
    updates_across_the_boundary(without(Rule::DrainWaits).preemptions(1));
}

/// Two threads insert the same new key, or one inserts while the other removes it again.
fn insertions_of_one_key(model: Model) {
    model.check(|| {
        let engine = Arc::new(Engine::for_model());
        let store = Shared::new(Store::<(), u64>::for_model(engine.clone()));
        engine.epochs.slot().expect("few threads");
        let other = spawn(1, {
            let store = store.clone();
            move || store.rmw(&(), |old| old.unwrap_or(0) + 1).expect("room")
        });
        let mine = store.rmw(&(), |old| old.unwrap_or(0) + 1).expect("room");
        let theirs = other.join();
        assert_eq!((mine + theirs, store.get(&()).expect("in memory")), (3, Some(2)), "an insertion was lost");
    });
}

#[test]
fn two_updates_that_insert_are_one_after_the_other() {
    insertions_of_one_key(sound());
}

#[test]
#[should_panic(expected = "an insertion was lost")]
fn twin_publication_does_not_look_again() {
    insertions_of_one_key(without(Rule::LookLatched));
}

/// A bytes value is replaced while another thread copies it.
fn copies_of_a_changing_value(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        let at = engine.log.allocate(engine.epochs.slot().expect("few threads"), 40).expect("room");
        // SAFETY: just allocated, and nothing evicts here.
        let record = unsafe { Record::new(engine.log.pointer(at)) };
        record.write_bytes(&[], &[], 16, NEVER, 0, 0);
        record.latch().set_value(0, &[1; 16]);
        let writer = spawn(1, {
            let engine = engine.clone();
            move || {
                record.latch().set_value(0, &[2; 16]);
                drop(engine);
            }
        });
        let mut copy = Vec::new();
        record.read_value(&mut copy);
        writer.join();
        assert!(copy == [1; 16] || copy == [2; 16], "a copy mixes two values");
    });
}

#[test]
fn a_copy_is_one_value() {
    copies_of_a_changing_value(sound());
}

#[test]
#[should_panic(expected = "a copy mixes two values")]
fn twin_version_is_not_looked_at_again() {
    copies_of_a_changing_value(without(Rule::VersionStandsStill));
}
