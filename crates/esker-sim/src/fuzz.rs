//! What a fuzzer drives, and every build runs over the kept corpora.
//!
//! The theory: bytes are choices. [`operations`] makes a program of them and compares each answer with the model's.
//! [`files`] makes damage of them, in the files of a small store that was closed, or lost its power: whatever lies there, the
//! store opens or is refused with an error, reads a value that was put or an error, and goes on.
//!
//! Checksums would refuse all damage at the door. Built for a fuzzer (`cfg(fuzzing)`) the engine takes them as right, so that
//! what they guard is driven too; then only a panic, a hang or memory without bound is wrong, since a changed value cannot show.

use crate::crash::program::Step;
use crate::model::{Bytes, Layout, Model, Operation};
use crate::storage::{SECTOR, SimStorage};
use crate::subject::{self, Place, Subject};
use arbitrary::{Result, Unstructured};
use esker::{Durability, Options};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

const BUDGET_BYTES: u64 = 16 << 20;
const KEYS: u64 = 12;
/// A table is not doubled beyond.
const BUCKETS_MAX: u64 = 4096;
const STEPS_MAX: usize = 200;
const PATCHES_MAX: usize = 12;
/// Longer than a block, so that records straddle.
const VALUE_BYTES_MAX: usize = 9000;

/// Runs the program that these bytes are, against the model.
///
/// # Panics
/// If a store answers otherwise than the model.
pub fn operations(data: &[u8]) {
    let mut choices = Unstructured::new(data);
    // Bytes that end early end the program.
    let _ = run_program(&mut choices);
}

fn run_program(choices: &mut Unstructured<'_>) -> Result<()> {
    let layout = *choices.choose(&Layout::ALL)?;
    let storage = SimStorage::new();
    let place = if choices.arbitrary()? { Place::Memory } else { Place::Storage(Arc::new(storage), Durability::None) };
    let is_kept = matches!(place, Place::Storage(..));
    let mut store = subject::open(layout, BUDGET_BYTES, &place).expect("a new store opens");
    let mut model = Model::new(layout);
    for number in 0..STEPS_MAX {
        match step(choices, layout)? {
            Step::Do(operation) => {
                let gave = subject::apply(&*store, layout, &operation).unwrap_or_else(|e| panic!("step {number}: {operation:?}: {e}"));
                assert_eq!(gave, model.apply(&operation), "step {number}: {operation:?}");
            }
            Step::Compact => store.compact().expect("a healthy store compacts"),
            Step::Stretch => store.compact_stretch().expect("a healthy store compacts a stretch"),
            Step::Commit if is_kept => store.commit().expect("a healthy store commits"),
            Step::Reopen if is_kept => {
                store.close().expect("a healthy store closes");
                drop(store);
                store = subject::open(layout, BUDGET_BYTES, &place).expect("a closed store opens");
            }
            Step::Image if is_kept => store.save_index().expect("a healthy store saves an image"),
            Step::Double if store.stats().index.buckets < BUCKETS_MAX => store.double_index().expect("an index doubles"),
            Step::Commit
            | Step::Reopen
            | Step::Image
            | Step::Double
            | Step::Shrink
            | Step::Spill(_)
            | Step::Hold
            | Step::During(..)
            | Step::Drop(_) => {}
        }
    }
    let all = Operation::GetMany((0..KEYS).map(|id| layout.key(id)).collect());
    let mut must_agree = |store: &dyn Subject, when: &str| {
        let gave = subject::apply(store, layout, &all).unwrap_or_else(|e| panic!("{when}: {e}"));
        assert_eq!(gave, model.apply(&all), "{when}");
    };
    must_agree(&*store, "in the end");
    if is_kept {
        store.close().expect("a healthy store closes");
        drop(store);
        must_agree(&*subject::open(layout, BUDGET_BYTES, &place).expect("a closed store opens"), "opened again");
    }
    Ok(())
}

fn step(choices: &mut Unstructured<'_>, layout: Layout) -> Result<Step> {
    let key = layout.key(choices.int_in_range(0..=KEYS - 1)?);
    let kind = choices.int_in_range(0..=13)?;
    let is_blob = layout.width().is_none();
    Ok(Step::Do(match kind {
        0 | 1 => Operation::Put(key, value(choices, layout)?),
        2 => Operation::Get(key),
        3 => Operation::Delete(key),
        4 | 5 if is_blob => Operation::Append(key, value(choices, layout)?),
        4 | 5 => Operation::Rmw(key, choices.arbitrary()?),
        6 => Operation::Rmw(key, choices.arbitrary()?),
        7 => Operation::GetMany((0..KEYS).map(|id| layout.key(id)).collect()),
        8 => return Ok(Step::Commit),
        9 => return Ok(Step::Compact),
        10 => return Ok(Step::Image),
        11 => return Ok(Step::Stretch),
        12 => return Ok(Step::Double),
        _ => return Ok(Step::Reopen),
    }))
}

fn value(choices: &mut Unstructured<'_>, layout: Layout) -> Result<Bytes> {
    let bytes = match layout.width() {
        Some(width) => width,
        None => choices.int_in_range(0..=VALUE_BYTES_MAX)?,
    };
    let filler: u8 = choices.arbitrary()?;
    Ok((0..bytes).map(|at| filler.wrapping_add(at as u8)).collect())
}

/// Damages a small store as these bytes say, and uses it.
///
/// # Panics
/// If the store panics, or gives a value that was never put.
pub fn files(data: &[u8]) {
    let mut choices = Unstructured::new(data);
    let bases = BASES.get_or_init(Base::all);
    let Ok(base) = choices.choose(bases) else { return };
    let damaged = base.storage.restarted();
    for _ in 0..PATCHES_MAX {
        if patch(&mut choices, &damaged).is_err() {
            break;
        }
    }
    let copy = damaged.restarted();
    let _ = esker::verify_in(Arc::new(copy), |_, _| ControlFlow::Continue(()));
    // Nothing tells such a directory from one in which a store was about to be made.
    if damaged.files().iter().all(|(name, bytes)| *bytes == 0 || (name == "esker.manifest" && *bytes < 2 * SECTOR as u64)) {
        return;
    }
    for accept_loss in [false, true] {
        base.use_copy(&damaged.restarted(), accept_loss);
    }
}

static BASES: OnceLock<Vec<Base>> = OnceLock::new();

/// A healthy store, at rest.
struct Base {
    layout: Layout,
    storage: SimStorage,
    holds: Vec<(Bytes, Bytes)>,
    /// So many of them the manifest speaks of; the others are in lines that tell of themselves, the last of which may be taken for torn.
    sure: usize,
}

impl Base {
    fn all() -> Vec<Base> {
        let kinds = [Layout::Pairs, Layout::Blobs].into_iter().flat_map(|layout| [(layout, false), (layout, true)]);
        kinds.map(|(layout, is_closed)| Base::new(layout, is_closed)).collect()
    }

    fn new(layout: Layout, is_closed: bool) -> Base {
        let storage = SimStorage::new();
        let place = Place::Storage(Arc::new(storage.clone()), Durability::None);
        let store = subject::open(layout, BUDGET_BYTES, &place).expect("a new store opens");
        let value = |id: u64| vec![id as u8; layout.width().unwrap_or(id as usize * 700)];
        for (id, round) in (0..KEYS).flat_map(|id| [(id, 0), (id, 1)]) {
            store.put(&layout.key(id), &value(id)).expect("a healthy store takes a value");
            if id % 4 == 3 && round == 0 {
                store.commit().expect("a healthy store commits");
            }
        }
        store.commit().expect("a healthy store commits");
        if is_closed {
            store.close().expect("a healthy store closes");
        }
        let holds: Vec<_> = (0..KEYS).map(|id| (layout.key(id), value(id))).collect();
        let at_rest = storage.restarted();
        drop(store);
        let sure = if is_closed { holds.len() } else { 4 };
        Base { layout, storage: at_rest, holds, sure }
    }

    /// Opens a damaged copy and uses it as one does.
    fn use_copy(&self, storage: &SimStorage, accept_loss: bool) {
        let opened: Option<Box<dyn Subject>> = {
            let options = Options::new().memory(BUDGET_BYTES).accept_loss(accept_loss);
            subject::open_with(self.layout, options, &Place::Storage(Arc::new(storage.clone()), Durability::None)).ok()
        };
        let Some(store) = opened else { return };
        let mut is_shorter = false;
        for (n, (key, put)) in self.holds.iter().enumerate() {
            let got = store.get(key);
            let is_right = match &got {
                // What was put behind something that is gone is gone, too.
                Ok(Some(value)) => value == put && (!is_shorter || accept_loss),
                Ok(None) => accept_loss || n >= self.sure,
                Err(_) => true,
            };
            is_shorter |= matches!(got, Ok(None));
            assert!(is_right || cfg!(fuzzing), "wrong value: {got:?}");
        }
        let keys: Vec<Bytes> = self.holds.iter().map(|(key, _)| key.clone()).collect();
        let _ = store.get_many(&keys);
        let _ = store.put(&keys[0], &self.holds[1].1);
        let _ = store.delete(&keys[1]);
        let _ = store.commit();
        let _ = store.compact();
        let _ = store.get_many(&keys);
        let _ = store.close();
    }
}

fn patch(choices: &mut Unstructured<'_>, storage: &SimStorage) -> Result<()> {
    let files = storage.files();
    let (name, length) = choices.choose(&files)?;
    let sectors = length / SECTOR as u64;
    if sectors == 0 {
        return Ok(());
    }
    let at = choices.int_in_range(0..=sectors * SECTOR as u64 - 1)?;
    let (sector, within) = (at / SECTOR as u64, at as usize % SECTOR);
    let mut bytes = storage.sector(name, sector);
    match choices.int_in_range(0..=3)? {
        0 => bytes[within] ^= 1 << choices.int_in_range(0..=7)?,
        1 => {
            let word: [u8; 8] = choices.arbitrary()?;
            let from = within / 8 * 8;
            bytes[from..from + 8].copy_from_slice(&word);
        }
        2 => {
            let length = choices.int_in_range(1..=24)?.min(SECTOR - within);
            bytes[within..within + length].copy_from_slice(choices.bytes(length)?);
        }
        _ => {
            storage.truncate(name, at);
            return Ok(());
        }
    }
    storage.set_sector(name, sector, bytes);
    Ok(())
}
