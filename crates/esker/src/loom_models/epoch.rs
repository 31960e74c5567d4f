//! Epochs: what a pin keeps in place, and what a close waits for.

use super::{Model, Shared, sound, spawn, without};
use crate::engine::Engine;
use crate::epoch::{Counter, Pin};
use crate::record::Record;
use crate::sync::Rule;
use crate::sync::atomic::Ordering::*;

/// A record of this value, and its address.
fn with_record(engine: &Engine, value: u64) -> (u64, Record) {
    let pin = engine.epochs.pin().expect("open");
    let at = engine.log.allocate(pin.slot, 16).expect("room");
    // SAFETY: just allocated under the pin.
    let record = unsafe { Record::new(engine.log.pointer(at)) };
    record.write_word(&[], value, 0, 0);
    (at, record)
}

/// A reader pins, compares with `head`, reads; meanwhile the record is evicted and its memory given back.
fn eviction_waits_for_readers(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        let (at, record) = with_record(&engine, 7);
        let reader = spawn(1, {
            let engine = engine.clone();
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                let pin = engine.epochs.pin_to_read().unwrap_or_else(|| engine.epochs.pin().expect("open"));
                let value = (at >= engine.log.bounds.head.load(Acquire)).then(|| record.word_value(0).load(Relaxed));
                drop(pin);
                assert_ne!(value, Some(0), "released memory was read");
            }
        });
        engine.evict(engine.log.end_block());
        reader.join();
    });
}

#[test]
fn a_pinned_reader_never_sees_released_memory() {
    eviction_waits_for_readers(sound());
}

#[test]
fn a_pinned_reader_never_sees_released_memory_without_membarrier() {
    eviction_waits_for_readers(sound().fence_on_pin());
}

#[test]
#[should_panic(expected = "released memory was read")]
fn twin_drain_does_not_wait() {
    eviction_waits_for_readers(without(Rule::DrainWaits));
}

#[test]
#[should_panic(expected = "released memory was read")]
fn twin_pin_without_its_half_of_the_fence() {
    eviction_waits_for_readers(without(Rule::PinFences));
}

#[test]
#[should_panic(expected = "released memory was read")]
fn twin_pin_without_a_fence_where_membarrier_is_missing() {
    eviction_waits_for_readers(without(Rule::PinFences).fence_on_pin());
}

/// A write in place under a pin, while the store closes and then saves what it finds.
fn close_waits_for_writers(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        let (_, record) = with_record(&engine, 0);
        let writer = spawn(1, {
            let engine = engine.clone();
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                let Ok(_pin) = engine.epochs.pin() else { return false };
                record.word_value(0).store(1, Relaxed);
                true
            }
        });
        engine.epochs.close();
        let saved = record.word_value(0).load(Relaxed);
        let acknowledged = writer.join();
        assert!(saved == 1 || !acknowledged, "an acknowledged write was not saved");
        assert!(engine.epochs.pin().is_err(), "a closed store is entered");
    });
}

#[test]
fn close_saves_what_was_acknowledged() {
    close_waits_for_writers(sound());
}

#[test]
fn close_saves_what_was_acknowledged_without_membarrier() {
    close_waits_for_writers(sound().fence_on_pin());
}

#[test]
#[should_panic(expected = "an acknowledged write was not saved")]
fn twin_flag_looked_at_before_the_pin_is_stored() {
    close_waits_for_writers(without(Rule::FlagAfterPin));
}

#[test]
#[should_panic(expected = "an acknowledged write was not saved")]
fn twin_close_does_not_wait() {
    close_waits_for_writers(without(Rule::DrainWaits));
}

/// How a thread comes in, each time.
type Enter = fn(&Engine) -> Pin<'_>;

fn numbered(engine: &Engine) -> Pin<'_> {
    engine.epochs.pin().expect("open")
}

/// Counts each time, as a get does (models count gets alone).
fn counted(engine: &Engine) -> Pin<'_> {
    engine.epochs.pin_to_write(Counter::Get).expect("the thread was here")
}

/// A thread writes under a pin if a boundary still allows it, and pins again; the boundary moves meanwhile, and who moved
/// it looks. (The model of snapshots found that a drain which met the later pin need not have seen the write.)
fn a_drain_shows_what_was_done(model: Model, enter: Enter, pins_after: usize) {
    model.check(move || {
        let engine = Shared::new(Engine::for_model());
        let (at, record) = with_record(&engine, 0);
        let writer = spawn(1, {
            let engine = engine.clone();
            move || {
                engine.epochs.idle_slot().expect("no pin yet");
                let pin = enter(&engine);
                let may_write = at >= engine.log.bounds.read_only();
                if may_write {
                    record.word_value(0).store(1, Relaxed);
                }
                drop(pin);
                (0..pins_after).for_each(|_| drop(enter(&engine)));
                may_write
            }
        });
        engine.log.bounds.set_read_only(engine.log.tail());
        engine.epochs.drain();
        let seen = record.word_value(0).load(Relaxed) == 1;
        assert_eq!(seen, writer.join(), "a write under an earlier pin is not seen");
    });
}

#[test]
fn a_drain_shows_what_was_done_under_earlier_pins() {
    a_drain_shows_what_was_done(sound(), numbered, 1);
}

#[test]
#[should_panic(expected = "a write under an earlier pin is not seen")]
fn twin_later_pin_says_nothing_of_earlier_ones() {
    a_drain_shows_what_was_done(without(Rule::PinReleases), numbered, 1);
}

#[test]
fn a_drain_shows_what_was_done_under_pins_that_look_the_same() {
    a_drain_shows_what_was_done(sound(), counted, 2);
}

#[test]
#[should_panic(expected = "a write under an earlier pin is not seen")]
fn twin_count_says_nothing_of_earlier_pins() {
    a_drain_shows_what_was_done(without(Rule::CountReleases), counted, 2);
}
