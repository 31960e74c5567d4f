//! The log: pieces of the tail, and the boundary that passes them.

use super::{Model, Shared, sound, spawn, without};
use crate::engine::Engine;
use crate::log::{FIRST_ADDRESS, NOWHERE};
use crate::record::Record;
use crate::sync::Rule;
use crate::sync::atomic::{AtomicU64, Ordering::*};

/// Bytes of a record without key bytes.
const RECORD_BYTES: u64 = 16;

/// Writes some records, each under a pin of its own; returns their addresses.
fn write_records(engine: &Engine, values: &[u64]) -> Vec<u64> {
    engine.epochs.idle_slot().expect("no pin yet");
    let write = |&value: &u64| {
        let pin = engine.epochs.pin().expect("open");
        let at = engine.log.allocate(pin.slot, RECORD_BYTES).expect("room");
        // SAFETY: just allocated under the pin.
        unsafe { Record::new(engine.log.pointer(at)) }.write_word(&[], value, 0, 0);
        at
    };
    values.iter().map(write).collect()
}

fn words_below(engine: &Engine, to: u64) -> Vec<u64> {
    // SAFETY: below the tail, in a region that lives as long as the engine.
    let word = |at| unsafe { &*engine.log.pointer(at).cast::<AtomicU64>() }.load(Relaxed);
    (FIRST_ADDRESS..to).step_by(8).map(word).collect()
}

/// Two threads write records while the log up to its tail is frozen.
fn pieces_end_where_the_frozen_part_begins(model: Model, records: [&'static [u64]; 2]) {
    model.check(move || {
        let engine = Shared::new(Engine::for_model());
        let writers = [1, 2].map(|number| {
            let engine = engine.clone();
            spawn(number, move || write_records(&engine, records[number - 1]))
        });
        engine.epochs.slot().expect("few threads");
        engine.freeze(engine.log.end_block());
        let safe = engine.log.bounds.safe_read_only.load(Relaxed);
        let frozen = words_below(&engine, safe);
        let mut at: Vec<u64> = writers.into_iter().flat_map(|writer| writer.join()).collect();
        at.sort_unstable();
        assert!(at.windows(2).all(|pair| pair[0] + RECORD_BYTES <= pair[1]), "two records overlap");
        assert_eq!(words_below(&engine, safe), frozen, "a frozen record was written");
    });
}

#[test]
fn records_keep_apart_and_above_the_frozen_part() {
    pieces_end_where_the_frozen_part_begins(sound().preemptions(2), [&[1, 2], &[3]]);
}

#[test]
#[should_panic(expected = "two records overlap")]
fn twin_tail_moves_without_compare_and_swap() {
    pieces_end_where_the_frozen_part_begins(without(Rule::TailIsClaimed).preemptions(2), [&[1, 2], &[3]]);
}

#[test]
#[should_panic(expected = "a frozen record was written")]
fn twin_piece_is_kept_when_the_boundary_has_passed() {
    pieces_end_where_the_frozen_part_begins(without(Rule::PieceEndsAtReadOnly).preemptions(2), [&[1, 2], &[3]]);
}

#[test]
#[should_panic(expected = "a frozen record was written")]
fn twin_freeze_does_not_wait() {
    pieces_end_where_the_frozen_part_begins(without(Rule::DrainWaits).preemptions(2), [&[1, 2], &[3]]);
}

/// A line is drawn while what is old leaves.
fn nobody_changes_what_has_left(model: Model) {
    model.check(|| {
        let engine = Shared::new(Engine::for_model());
        let (cut, left) = (engine.log.tail() + RECORD_BYTES, engine.log.tail() + 2 * RECORD_BYTES);
        let other = spawn(1, {
            let engine = engine.clone();
            move || [NOWHERE, cut].into_iter().for_each(|to| engine.log.bounds.set_read_only(to))
        });
        let may_change = || engine.log.bounds.in_place() < left;
        engine.log.bounds.raise_near(left);
        assert!(!may_change(), "what has left may change in place");
        other.join();
        assert!(!may_change(), "what has left may change in place");
        assert_eq!(engine.log.bounds.read_only(), cut);
    });
}

#[test]
fn what_has_left_does_not_change_though_a_line_is_drawn() {
    nobody_changes_what_has_left(sound());
}

#[test]
#[should_panic(expected = "what has left may change in place")]
fn twin_boundaries_move_at_the_same_time() {
    nobody_changes_what_has_left(without(Rule::OneMovesInPlace));
}
