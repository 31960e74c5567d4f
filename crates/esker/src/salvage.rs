//! Salvage: what is whole of a damaged store, carried over into another one.
//!
//! ```text
//! log, in order   | records        | damaged |??| records                       | damaged |??| records ...
//!                   begin at a       block       begin where the index image
//!                   known place                  says so, or by their look
//! ```
//! Gets of a damaged store go on, one by one; but whoever must read all of its log, as scans and compaction do, ends at the first block
//! that is not what was written. Here it ends nobody: the log is read in order, whole records are written to the other store as they come,
//! and the newer one of a key is the later one. Neither an index nor a chain is needed.
//!
//! **What is lost** are the records that touch a damaged block, and the few behind it up to the first whose beginning is known. Records say
//! how long they are, so one leads to the next; behind damage nothing leads on. The image of the index knows where records begin: the
//! lowest of its addresses behind the damage is one. Where it knows of none (it is damaged itself, or older than the records) the first
//! place is taken from which on all looks like records: headers whose bits fit, lengths that do, zeros where zeros belong. A value that was
//! made to look like records could pass there for some; that is counted ([`Salvage::guessed`]).
//!
//! **Where the list of scars is damaged** a record of a torn line may seem to reach into what was written behind the scar. The image knows
//! of records there: one that reaches across another's beginning is none, and the walk goes on where that begins.

use crate::ahead::read_at_once;
use crate::device::{LOG, Storage};
use crate::error::{Error, Result};
use crate::image;
use crate::lines::RECORD_BYTES as LINE_BYTES;
use crate::log::{BLOCK_BYTES, Log, device_offset};
use crate::manifest::types;
use crate::record::{self, ABANDONED, ABSENT, ADDRESS_MASK, ColdRecord};
use crate::resting::{Control, PIECE_BYTES, Resting, Run, existing, note};
use crate::store::Store;
use crate::traverse::{Scanned, Span, Visitor};
use crate::types::{Key, Layout, Value};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

/// Log that is looked through for a first record: so much at first, and then as much as the longest could hide.
const LOOK_BLOCKS: u64 = 64;
const LOOK_BLOCKS_MAX: u64 = 2 * record::RECORD_BYTES_MAX / BLOCK_BYTES;
/// So many records that follow each other are no accident.
const ENOUGH: usize = 256;

/// What was carried over, and what was not.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Salvage {
    /// The number of the last durable line that is whole: the store is carried over as of then.
    pub line: u64,
    /// Bytes of log that were read.
    pub log_bytes: u64,
    /// Records that were carried over, superseded ones and deletions included.
    pub records: u64,
    /// Bytes of log whose records could not be. With those behind `line`, where a part of the manifest that may have told of a later one is
    /// lost: of these some may never have been durable.
    pub lost_bytes: u64,
    /// What was found damaged, by file and address; at most 100 places. Blocks one behind the other, damaged in the same way, are one, and
    /// `blocks=` at its end says how many.
    pub damage: Vec<String>,
    /// How many places are damaged.
    pub damaged: u64,
    /// How many times the first record behind damage was known by its look alone.
    pub guessed: u64,
}

impl Salvage {
    fn note(&mut self, error: &Error) {
        note(&mut self.damage, &mut self.damaged, error);
    }
}

/// Carries what is whole of the store in the directory `from`, which nobody may have open and which is not changed, over into the store
/// `into`: a new one as a rule, of the same types. What it held before it keeps, but for keys of which the damaged log has a record: a
/// deletion deletes. `progress` is told the bytes of log read so far, and all, each counted twice; `Break` ends the call.
///
/// Of a key whose newest record is lost an older value may come over, if one still lies in the log, or one that had been deleted; so may a
/// part of a transaction. If the list of what crashes had left is damaged (`damage` names it) changes that a crash had undone may come
/// over, and, if the image of the index is damaged as well (`guessed` counts it), bytes that nobody wrote in the place of a value that a
/// crash had cut short. Ends ([`Store::expire_at`]) come along, and older versions where `into` keeps history.
///
/// # Errors
/// `Locked`; `Invalid` if there is no store, or one of other types, or a value is too long for the budget of `into`; `Corruption` if its
/// manifest is lost, `Io`, `Cancelled`, and those of [`Store::put`] on `into`, which has a part then. Damage in the log is no error: it is
/// in the result.
///
/// # Cost
/// Reads the log twice; a put for each record in it. Where a block is damaged it takes two bytes of memory for each block of the log
/// (half a gibibyte for a tebibyte), beside the budget of the new store, and up to 128 MiB to find where records begin again.
///
/// # Examples
/// ```
/// # let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
/// # let (damaged, new) = (folder.path(), other.path());
/// use esker::{Options, Store, salvage};
/// use std::ops::ControlFlow;
///
/// # let store: Store<u64, u64> = Options::new().memory("16MiB").open(damaged)?;
/// # store.put(&1, &7)?;
/// # store.close()?;
/// let store: Store<u64, u64> = Options::new().memory("64MiB").open(new)?;
/// let done = salvage(damaged, &store, |done, all| {
///     eprintln!("{done} of {all} bytes");
///     ControlFlow::Continue(())
/// })?;
/// store.close()?;
/// println!("{} records, {} bytes of log lost", done.records, done.lost_bytes);
/// # assert_eq!((done.records, done.lost_bytes), (1, 0));
/// # Ok::<(), esker::Error>(())
/// ```
pub fn salvage<K: Key + ?Sized, V: Value + ?Sized>(
    from: impl AsRef<Path>,
    into: &Store<K, V>,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Salvage> {
    salvage_in(existing(from.as_ref())?, into, progress)
}

/// [`salvage`] from a place of your own.
///
/// # Errors
/// As [`salvage`].
pub fn salvage_in<K: Key + ?Sized, V: Value + ?Sized>(
    from: Arc<dyn Storage>,
    into: &Store<K, V>,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Salvage> {
    let mut done = Salvage::default();
    let opened = Resting::open(from.clone(), Some(types::<K, V>()), &mut |damage| {
        done.note(damage);
        Ok(())
    });
    let resting = opened?;
    done.line = resting.state.line;
    let span = Span::new(resting.state.begin, &resting.state, &resting.scars);
    let total = 2 * span.parts().iter().map(|part| part.end - part.start).sum::<u64>();
    let mut control = Control::new(&mut progress, total);
    // First: nothing is thrown away for a figure.
    if resting.lacks_slot {
        done.lost_bytes += resting.whole_bytes_behind(&mut |_| control.advance(0))?;
    }
    let mut stretches = resting.sound_stretches(&span, &mut done, &mut control)?;
    let landmarks = resting.find_starts(&*from, &mut stretches, &mut done)?;
    let mut carrier = Carrier { into, done: &mut done, landmarks: &landmarks, control: &mut control, failed: None, end: 0, told: 0 };
    for Stretch { log, start, skipped, is_cut } in stretches {
        let mut next = Some(start.unwrap_or(log.end));
        carrier.told = log.start;
        while let Some(start) = next.take() {
            carrier.end = start;
            let walked = resting.engine.scan_stretch(&span, &(start..log.end), &mut carrier).map(|scan| scan.begun_bytes());
            if let Some(failed) = carrier.failed.take() {
                return Err(failed);
            }
            carrier.done.lost_bytes += match walked {
                // A guess that was none, what a crash had left, or damage since the first look.
                Err(error) if error.is_damage() => {
                    carrier.done.note(&error);
                    next = landmarks.first_in(carrier.end + 8..log.end);
                    next.unwrap_or(log.end) - carrier.end
                }
                // Its other end is damaged. Where nothing is, it was given up before.
                walked => walked.map(|begun| if is_cut { begun } else { 0 })?,
            };
        }
        carrier.done.lost_bytes += skipped;
        carrier.tell(log.end)?;
    }
    Ok(done)
}

/// Where records begin: of each block the lowest address that the index image knows, in words from the block's beginning, plus one.
#[derive(Default)]
struct Landmarks {
    first: u64,
    lowest: Vec<u16>,
}

impl Landmarks {
    fn over(log: Range<u64>) -> Self {
        let first = log.start / BLOCK_BYTES;
        Self { first, lowest: vec![0; (log.end.div_ceil(BLOCK_BYTES) - first) as usize] }
    }

    fn note(&mut self, at: u64) {
        let place = (at / BLOCK_BYTES).checked_sub(self.first);
        if let Some(lowest) = place.and_then(|place| self.lowest.get_mut(place as usize)) {
            let word = (at % BLOCK_BYTES / 8 + 1) as u16;
            *lowest = if *lowest == 0 { word } else { word.min(*lowest) };
        }
    }

    fn first_in(&self, log: Range<u64>) -> Option<u64> {
        let mut blocks = log.start / BLOCK_BYTES..log.end.div_ceil(BLOCK_BYTES);
        let lowest = |block: u64| self.lowest.get(block.checked_sub(self.first)? as usize).copied().filter(|word| *word != 0);
        let known = |block: u64| lowest(block).map(|word| block * BLOCK_BYTES + u64::from(word - 1) * 8);
        blocks.find_map(|block| known(block).filter(|at| log.contains(at)))
    }
}

/// Log that is whole.
struct Stretch {
    log: Range<u64>,
    /// Where its first record begins, if that is known.
    start: Option<u64>,
    /// Bytes before it that may have held records.
    skipped: u64,
    /// Damage follows.
    is_cut: bool,
}

impl Resting {
    /// Reads all of the log; the stretches between damage. Those that follow none begin with a record.
    fn sound_stretches(&self, span: &Span<'_>, done: &mut Salvage, control: &mut Control<'_>) -> Result<Vec<Stretch>> {
        let (mut stretches, mut run, mut read) = (Vec::new(), Run::default(), 0);
        for part in span.parts() {
            let mut damaged = Vec::new();
            let mut on_damage = |block: u64, error: Error| {
                damaged.push(block);
                run.note(&mut done.damage, &mut done.damaged, block, &error);
            };
            self.engine.check_blocks(part.clone(), &mut on_damage, &mut |blocks| {
                read += blocks * BLOCK_BYTES;
                control.advance(blocks * BLOCK_BYTES)
            })?;
            done.lost_bytes += damaged.len() as u64 * BLOCK_BYTES;
            let mut from = part.start;
            for end in damaged.iter().map(|block| block * BLOCK_BYTES).chain([part.end]) {
                if from < end {
                    let start = (from == part.start).then_some(from);
                    stretches.push(Stretch { log: from..end, start, skipped: 0, is_cut: end < part.end });
                }
                from = end + BLOCK_BYTES;
            }
        }
        done.log_bytes = device_offset(read);
        Ok(stretches)
    }

    /// Where the stretches behind damage have their first records; and where others begin, if that was asked.
    fn find_starts(&self, storage: &dyn Storage, stretches: &mut [Stretch], done: &mut Salvage) -> Result<Landmarks> {
        if !self.lacks_scars && stretches.iter().all(|stretch| stretch.start.is_some()) {
            return Ok(Landmarks::default());
        }
        let mut landmarks = Landmarks::default();
        if self.state.image != 0 {
            landmarks = Landmarks::over(self.state.begin..self.state.cut);
            match image::addresses(storage, self.state.image, self.state.identity.store_id, |at| landmarks.note(at)) {
                Err(error) if error.is_damage() => {
                    done.note(&error);
                    landmarks = Landmarks::default();
                }
                told => told?,
            }
        }
        // Nothing tells then what a record is that a crash cut short.
        done.guessed += u64::from(self.lacks_scars && landmarks.lowest.is_empty());
        for stretch in stretches.iter_mut().filter(|stretch| stretch.start.is_none()) {
            let known = landmarks.first_in(stretch.log.clone());
            let (start, skipped) = match known {
                Some(known) => (known, known - stretch.log.start),
                None => self.first_by_look(&stretch.log)?,
            };
            done.guessed += u64::from(known.is_none() && start < stretch.log.end);
            stretch.skipped = skipped;
            stretch.start = Some(start);
        }
        Ok(landmarks)
    }

    /// The first place in a stretch from which on all looks like records, and the bytes before it; its end and the blocks in which there is
    /// something if there is no such place.
    fn first_by_look(&self, log: &Range<u64>) -> Result<(u64, u64)> {
        let all = (log.end - log.start) / BLOCK_BYTES;
        let (mut from, mut blocks) = (0, LOOK_BLOCKS.min(all));
        loop {
            let mut read = read_at_once(&self.engine.log, Log::cold_read(log.start, blocks * BLOCK_BYTES, 0))?;
            let cold = self.engine.log.open_blocks(&mut read)?;
            let bytes = cold.get(log.start, blocks * BLOCK_BYTES).unwrap_or_default();
            let is_all = blocks == all;
            // So much that follows each other is no accident either, however few records it is.
            let is_enough = is_all || blocks >= LOOK_BLOCKS_MAX;
            while from < bytes.len() {
                match self.looks_like_records(log.start, bytes, from, is_enough) {
                    Some(true) => return Ok((log.start + from as u64, from as u64)),
                    Some(false) => from += 8,
                    None => break,
                }
            }
            if is_enough {
                let held = bytes.chunks(BLOCK_BYTES as usize).filter(|block| block.iter().any(|byte| *byte != 0)).count() as u64;
                return Ok((log.end, (held + all - blocks) * BLOCK_BYTES));
            }
            blocks = (blocks * 4).min(all).min(LOOK_BLOCKS_MAX);
        }
    }

    /// Whether records lie in these bytes, which begin at the address `base`, from there on; `None` if more must be seen.
    fn looks_like_records(&self, base: u64, bytes: &[u8], from: usize, is_all: bool) -> Option<bool> {
        const BLOCK: usize = BLOCK_BYTES as usize;
        if record::word_at(bytes, from) == 0 {
            return Some(false);
        }
        let (mut at, mut records) = (from, 0);
        while records < ENOUGH {
            let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else { return is_all.then_some(true) };
            if record::word_at(rest, 0) == 0 {
                let end = (at / BLOCK + 1) * BLOCK;
                let zeros = at..end - LINE_BYTES as usize;
                if bytes[zeros.start.min(zeros.end)..zeros.end].iter().any(|byte| *byte != 0) {
                    return Some(false);
                }
                at = end;
                continue;
            }
            let header = record::word_at(rest, 0);
            // One that was given up may have been given up because what it was to lead to lay above it.
            let leads_back = header & ADDRESS_MASK < base + at as u64 || header & ABANDONED != 0;
            match record::looks_whole(self.engine.layout, rest) {
                Some(length) if leads_back => at += length as usize,
                // A beginning, behind others.
                None if records > 0 && rest.len() < record::first_bytes(self.engine.layout) as usize => return is_all.then_some(true),
                _ => return Some(false),
            }
            records += 1;
        }
        Some(true)
    }
}

/// Writes records to the other store.
struct Carrier<'a, 'p, K: Key + ?Sized, V: Value + ?Sized> {
    into: &'a Store<K, V>,
    done: &'a mut Salvage,
    landmarks: &'a Landmarks,
    control: &'a mut Control<'p>,
    /// What the other store said.
    failed: Option<Error>,
    /// Everything below was carried over.
    end: u64,
    /// So far it was told of.
    told: u64,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Carrier<'_, '_, K, V> {
    fn tell(&mut self, at: u64) -> Result<()> {
        self.control.advance(at.saturating_sub(std::mem::replace(&mut self.told, at)))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Visitor for Carrier<'_, '_, K, V> {
    fn visit(&mut self, record: &Scanned, bytes: &[u8]) -> Result<()> {
        let layout = self.into.engine.layout;
        if self.landmarks.first_in(record.at + 8..record.at + bytes.len() as u64).is_some() {
            return Err(Error::corruption(format!("a record reaches into another one file={LOG} address={}", record.at)));
        }
        let parsed = record::parse(layout, bytes);
        let ColdRecord { header, key, value, expires, .. } =
            parsed.ok_or_else(|| Error::corruption(format!("a record of impossible length address={}", record.at)))?;
        let has_width = |width: Option<usize>, bytes: &[u8]| width.is_none_or(|width| width == bytes.len());
        if layout == Layout::Bytes && !(has_width(K::WIDTH, key) && (header & ABSENT != 0 || has_width(V::WIDTH, value))) {
            return Err(Error::corruption(format!("a record whose key or value is of another length address={}", record.at)));
        }
        let carried = match header & ABSENT {
            0 => self.into.put_until(key, value, expires),
            _ => self.into.delete_key(key).map(drop),
        };
        if let Err(error) = carried {
            self.failed = Some(error);
            return Err(Error::Cancelled);
        }
        self.done.records += 1;
        self.end = record.at + bytes.len() as u64;
        if self.end - self.told < PIECE_BYTES { Ok(()) } else { self.tell(self.end) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::{SECTOR_BYTES, segment_name};
    use crate::record::{NEVER, Record};
    use crate::{MemoryStorage, Options};

    /// A record that was given up because a newer one lay above what it was to be in may lead up. With one of them among those that are
    /// looked at behind damage, whole records were given up.
    #[test]
    fn a_record_that_was_given_up_is_no_sign_of_damage() {
        let files = Arc::new(MemoryStorage::new());
        let options = || Options::new().memory("16MiB").background(false);
        let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
        let engine = store.engine_for_test();
        for n in 0..3000u64 {
            store.put(&n, &[n as u8 | 1; 60]).unwrap();
            if n % 100 == 0 {
                let pin = engine.epochs.pin().unwrap();
                let at = engine.log.allocate(pin.slot, record::bytes_record_bytes(8, 60)).unwrap();
                // SAFETY: just allocated under the pin: ours alone, in memory.
                let record = unsafe { Record::new(engine.log.pointer(at)) };
                record.write_bytes(&n.to_le_bytes(), &[7; 60], 60, NEVER, at + BLOCK_BYTES, engine.log.line_flag());
                engine.abandon(&pin, record);
            }
        }
        store.close().unwrap();
        let image = files.list().unwrap().into_iter().find(|name| image::is_image(name)).unwrap();
        files.remove(&image).unwrap();
        for block in (3..40).step_by(4) {
            let damaged = Arc::new(files.copy());
            let (device, mut sector) = (damaged.open(&segment_name(0)).unwrap(), [0; SECTOR_BYTES]);
            device.read(block * SECTOR_BYTES as u64, &mut sector).unwrap();
            sector[1234] ^= 4;
            device.write(block * SECTOR_BYTES as u64, &sector).unwrap();
            let into: Store<u64, [u8]> = options().open_temporary().unwrap();
            let lost = salvage_in(damaged, &into, |_, _| ControlFlow::Continue(())).unwrap().lost_bytes;
            // The block, and the records across its ends.
            assert!((1..BLOCK_BYTES + 200).contains(&lost), "block {block}: {lost}");
        }
    }
}
