//! Scars: what crashes left in the log that is no part of the store.
//!
//! ```text
//! ... window ............ cut ................ behind ...
//!     | records of the    | whatever was        | the log as it
//!     | other parity do   | being written;      | goes on
//!     | not count         | nothing counts      |
//! esker.scars: one sector for each crash, in the order of their cuts, and one of zeros
//! ```
//! Recovery adds one before the manifest moves beyond it, in a sector that was made when there was room: a store whose medium is full can
//! be opened. The index never leads into a scar; whoever reads the log from end to end goes around it.

use crate::FUZZED;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, Storage};
use crate::engine::Engine;
use crate::error::{Error, Result, for_good, is_full};
use crate::log::{BLOCK_BYTES, block_floor, line_flag};
use crate::manifest::State;
use crate::record::ODD_LINE;
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::sync::{Mutex, lock};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const SCARS: &str = "esker.scars";
const WORDS: usize = 5;

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scar {
    pub(crate) window: u64,
    pub(crate) cut: u64,
    pub(crate) behind: u64,
    /// The line that ended at the cut.
    pub(crate) line: u64,
}

impl Scar {
    /// True for a record made after the line, by its address and header.
    pub(crate) fn excludes(&self, at: u64, header: u64) -> bool {
        (self.window..self.cut).contains(&at) && header & ODD_LINE != line_flag(self.line)
    }

    /// True if it lies behind these, and below `cut`.
    fn goes_on(&self, scars: &[Self], cut: u64) -> bool {
        let behind = scars.last().map_or(0, |scar| scar.behind);
        behind <= self.cut && self.cut < cut && self.behind <= cut
    }

    fn words(&self) -> [u64; WORDS - 1] {
        [self.window, self.cut, self.behind, self.line]
    }
}

/// What a slot says of the scars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// There are at least so many, the one at the slot's cut included.
    pub(crate) count: u64,
    /// The checksum of those below the cut, which nobody writes again; 0 in slots that were written without.
    sum: u64,
}

impl Known {
    /// By a slot with this cut.
    pub(crate) fn of(scars: &[Scar], cut: u64) -> Self {
        Self { count: scars.len() as u64, sum: sum_of(scars.iter().filter(|scar| scar.cut < cut)) }
    }

    pub(crate) fn counting(self, count: u64) -> Self {
        Self { count, ..self }
    }

    pub(crate) fn word(self) -> u64 {
        self.sum << 32 | self.count
    }

    pub(crate) fn of_word(word: u64) -> Self {
        Self { count: word & u64::from(u32::MAX), sum: word >> 32 }
    }

    fn are(&self, scars: &[Scar]) -> bool {
        self.sum == 0 || self.sum == sum_of(scars.iter())
    }
}

/// Half of a checksum; never 0.
fn sum_of<'a>(scars: impl Iterator<Item = &'a Scar>) -> u64 {
    let bytes: Vec<u8> = scars.flat_map(|scar| scar.words().map(u64::to_le_bytes)).flatten().collect();
    (xxh3_64(&bytes) & u64::from(u32::MAX)).max(1)
}

/// Those of an open store.
#[derive(Default)]
pub(crate) struct Scars {
    all: Mutex<Vec<Scar>>,
    /// Behind them there is no room for another one.
    lacks_room: AtomicBool,
}

impl Scars {
    pub(crate) fn all(&self) -> Vec<Scar> {
        lock(&self.all).clone()
    }

    /// What a slot with this cut says of them.
    pub(crate) fn known(&self, cut: u64) -> Known {
        Known::of(&lock(&self.all), cut)
    }
}

impl Engine {
    /// The scars that recovery found; the next slot tells of them.
    pub(crate) fn keep_scars(&self, scars: Vec<Scar>) {
        *lock(&self.scars.all) = scars;
        if let Some(home) = &mut *lock(&self.home) {
            home.manifest.state.scars = Some(self.scars.known(home.manifest.state.cut));
        }
    }

    /// The next scar has its room before the medium is full. If that is full now: the last one had a place, and no line is built on it
    /// before the next one has.
    pub(crate) fn end_scars(&self, storage: &dyn Storage) -> Result<()> {
        if self.is_temporary {
            return Ok(());
        }
        match end(storage, self.scars.all().len(), false) {
            Err(Error::Io(error)) if is_full(&error) => {
                self.scars.lacks_room.store(true, Relaxed);
                Ok(())
            }
            ended => ended,
        }
    }

    /// Before a line: should this process crash as well, there is room for its scar.
    pub(crate) fn make_room_for_a_scar(&self) -> Result<()> {
        if !self.scars.lacks_room.load(Relaxed) {
            return Ok(());
        }
        let Some(storage) = lock(&self.home).as_ref().map(|home| home.storage.clone()) else { return Ok(()) };
        end(&*storage, self.scars.all().len(), true).map_err(|error| self.latch_for_now(error))?;
        self.scars.lacks_room.store(false, Relaxed);
        Ok(())
    }
}

/// The stretches of `[from, until)` between scars.
pub(crate) fn parts(scars: &[Scar], from: u64, until: u64) -> Vec<Range<u64>> {
    let scars = || scars.iter().filter(|scar| scar.cut < until);
    let starts = std::iter::once(from).chain(scars().map(|scar| scar.behind.max(from)));
    let ends = scars().map(|scar| scar.cut).chain([until]);
    starts.zip(ends).map(|(from, to)| from..to).filter(|part| part.start < part.end).collect()
}

/// Those that may exclude records of a part: one as a rule, however many crashes there were.
pub(crate) fn of_part(scars: &[Scar], part: &Range<u64>) -> Vec<Scar> {
    scars.iter().filter(|scar| scar.window < part.end && part.start < scar.cut).copied().collect()
}

/// What the list says.
pub(crate) struct Listed {
    pub(crate) scars: Vec<Scar>,
    /// One behind them that does not count.
    ended_by: Option<Scar>,
}

impl Listed {
    /// The scar of a loss that was being accepted when that was cut short. It lies where one was that it hides, and that excluded more than
    /// it: what was to be given up then is given up, and what it excludes stays excluded.
    pub(crate) fn loss_begun(&self, state: &State) -> Option<Scar> {
        let is_one_hidden = state.scars.is_some_and(|known| known.count > self.scars.len() as u64);
        // A loss in the log's first block, in which that may begin, leaves nothing of it.
        let lies_around = |scar: &Scar| (block_floor(state.begin)..state.cut).contains(&scar.cut) && state.cut < scar.behind;
        self.ended_by.filter(|scar| is_one_hidden && lies_around(scar) && scar.cut.is_multiple_of(BLOCK_BYTES))
    }
}

/// The scars below `cut`, as [`list`] has them.
pub(crate) fn read(storage: &dyn Storage, cut: u64, known: Option<Known>) -> Result<Vec<Scar>> {
    list(storage, cut, known, false).map(|listed| listed.scars)
}

/// The scars below `cut`. There are at least as many as are `known`, or one less and one at the cut. Where a loss is accepted an acceptance
/// that was cut short may have hidden some, by a scar of its own in the place of the first of them.
pub(crate) fn list(storage: &dyn Storage, cut: u64, known: Option<Known>, accept_loss: bool) -> Result<Listed> {
    let (mut scars, mut ended_by) = (Vec::new(), None);
    if let Some(device) = open_list(storage)? {
        for number in 0..device.bytes()? / SECTOR_BYTES as u64 {
            let read = match read_one(&*device, number) {
                // What no slot knows of was never built on.
                Err(error) if error.is_damage() && known.is_some_and(|known| number >= known.count) => None,
                read => read?,
            };
            match read {
                Some(scar) if scar.goes_on(&scars, cut) => scars.push(scar),
                // Written by a recovery that was cut short, and this one writes it again (one that accepted a loss may have left it around
                // the line); or older than the loss before it, which hides it.
                other => {
                    ended_by = other;
                    break;
                }
            }
        }
    }
    // A sector of zeros ends the list: that nothing is missing the manifest must say.
    let is_one_at_cut = ended_by.is_some_and(|scar| scar.cut == cut);
    let (found, least) = (scars.len() as u64 + u64::from(is_one_at_cut), known.map_or(0, |known| known.count));
    let hides_others = || accept_loss && ended_by.is_some_and(|scar| scar.cut < cut && cut < scar.behind);
    if found < least && !hides_others() && !FUZZED {
        return Err(Error::corruption(format!("scars are missing file={SCARS} found={found} known={least}")));
    }
    // Lines are built on those that a slot knows: what else lies below the cut is of another store.
    if known.is_some_and(|known| scars.len() as u64 > known.count) && !FUZZED {
        return Err(Error::corruption(format!("there are too many scars file={SCARS} found={} known={least}", scars.len())));
    }
    if found >= least && known.is_some_and(|known| !known.are(&scars)) && !FUZZED {
        return Err(Error::corruption(format!("a scar is not the one that was written last file={SCARS}")));
    }
    Ok(Listed { scars, ended_by })
}

/// The scars below `cut` that can be read, of a list that is damaged. What lies behind its end, a sector of zeros, was another list's,
/// unless that sector is damage, too.
pub(crate) fn readable(storage: &dyn Storage, cut: u64, behind_zeros: bool) -> Result<Vec<Scar>> {
    let mut scars = Vec::new();
    let opened = open_list(storage).and_then(|device| device.map(|device| Ok((device.bytes()?, device))).transpose());
    let (bytes, device) = match opened {
        Ok(Some(opened)) => opened,
        Ok(None) => return Ok(scars),
        Err(error) if error.is_damage() => return Ok(scars),
        Err(error) => return Err(error),
    };
    for number in 0..bytes / SECTOR_BYTES as u64 {
        let scar = match read_one(&*device, number) {
            Ok(None) if !behind_zeros => break,
            Err(error) if error.is_damage() => None,
            read => read?,
        };
        scars.extend(scar.filter(|scar| scar.goes_on(&scars, cut)));
    }
    Ok(scars)
}

/// The cuts of all scars, as far as the list can be read: who reads it for what they leave out tells of damage. Those that leave nothing
/// out, as they were once written, are where the log went on.
pub(crate) fn cuts(storage: &dyn Storage) -> Result<Vec<u64>> {
    readable(storage, u64::MAX, false).map(|scars| scars.iter().filter(|scar| scar.behind > scar.cut).map(|scar| scar.cut).collect())
}

/// True if a recovery that was cut short left a scar behind the `known` ones. It must be written over: the log may go on
/// where it lies.
pub(crate) fn has_stale(storage: &dyn Storage, known: usize) -> Result<bool> {
    open_list(storage)?.map_or(Ok(false), |device| Ok(is_any_at(&*device, known)?.unwrap_or(false)))
}

/// Whether there is a scar behind the `known` ones; `None` if there is no room for one: a crash may leave a part of a sector.
fn is_any_at(device: &dyn Device, known: usize) -> Result<Option<bool>> {
    if device.bytes()? < ((known + 1) * SECTOR_BYTES) as u64 {
        return Ok(None);
    }
    match read_one(device, known as u64) {
        // To be written over all the more.
        Err(error) if error.is_damage() => Ok(Some(true)),
        read => Ok(Some(read?.is_some())),
    }
}

/// The list, if a crash ever left something.
fn open_list(storage: &dyn Storage) -> Result<Option<Arc<dyn Device>>> {
    let is_there = storage.list()?.iter().any(|name| name == SCARS);
    Ok(if is_there { Some(storage.open(SCARS)?) } else { None })
}

fn read_one(device: &dyn Device, number: u64) -> Result<Option<Scar>> {
    let mut buffer = AlignedBuffer::new(1);
    device.read(number * SECTOR_BYTES as u64, buffer.bytes_mut())?;
    let bytes = buffer.bytes();
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap_or_default());
    let whole = word(WORDS - 1) == xxh3_64(&bytes[..(WORDS - 1) * 8]) && bytes[WORDS * 8..].iter().all(|byte| *byte == 0);
    if !whole && !FUZZED {
        return Err(Error::corruption(format!("the checksum differs file={SCARS} sector={number}")));
    }
    Ok(Some(Scar { window: word(0), cut: word(1), behind: word(2), line: word(3) }))
}

/// Adds scars behind the `known` ones; durable when this returns.
pub(crate) fn add(storage: &dyn Storage, known: usize, scars: &[Scar]) -> Result<()> {
    if scars.is_empty() {
        return Ok(());
    }
    let mut buffer = AlignedBuffer::new(scars.len());
    for (scar, sector) in scars.iter().zip(buffer.bytes_mut().chunks_exact_mut(SECTOR_BYTES)) {
        let bytes = &mut sector[..WORDS * 8];
        scar.words().iter().zip(bytes.chunks_exact_mut(8)).for_each(|(word, to)| to.copy_from_slice(&word.to_le_bytes()));
        let checksum = xxh3_64(&bytes[..(WORDS - 1) * 8]);
        bytes[(WORDS - 1) * 8..].copy_from_slice(&checksum.to_le_bytes());
    }
    let device = storage.open(SCARS)?;
    device.write((known * SECTOR_BYTES) as u64, buffer.bytes())?;
    device.sync()?;
    storage.sync()?;
    Ok(())
}

/// A sector of zeros behind the `known` ones: none follows them, and the next one has its room before the medium is full. What is there
/// already may never have been synced; `anew` if it was tried, and failed: then it is written once more.
pub(crate) fn end(storage: &dyn Storage, known: usize, anew: bool) -> Result<()> {
    let listed = open_list(storage)?;
    let is_new = listed.is_none();
    let device = listed.map_or_else(|| storage.open(SCARS), Ok)?;
    if anew || is_any_at(&*device, known)? != Some(false) {
        device.write((known * SECTOR_BYTES) as u64, AlignedBuffer::new(1).bytes())?;
    }
    device.sync().map_err(for_good)?;
    // Names are not synced again in this store's life: no want of room that may pass.
    let names = |error: io::Error| io::Error::other(format!("the names were not synced error={error}"));
    if is_new || anew { Ok(storage.sync().map_err(names)?) } else { Ok(()) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{MemoryStorage, Options, Store};

    /// They were believed, as any: what lay behind their cuts was left out, and the store was called sound.
    #[test]
    fn the_scars_of_another_store_are_refused() {
        let open = |files: &Arc<MemoryStorage>| -> Result<Store<u64, u64>> {
            Options::new().memory("16MiB").background(false).open_in(files.clone())
        };
        let lived = |lives: u64| {
            let mut files = Arc::new(MemoryStorage::new());
            for life in 0..=lives {
                let store = open(&files).unwrap();
                (0..1000).for_each(|n| store.put(&n, &life).unwrap());
                store.commit().unwrap();
                (0..300_000).for_each(|n| store.put(&n, &life).unwrap());
                store.engine_for_test().flush_ahead().unwrap();
                // A crash, behind which something was written.
                files = Arc::new(files.copy());
            }
            let store = open(&files).unwrap();
            (0..1_200_000).for_each(|n| store.put(&n, &7).unwrap());
            store.commit().unwrap();
            Arc::new(files.copy())
        };
        let (own, other) = (lived(0), lived(2));
        let sector = |files: &MemoryStorage, number: u64| {
            let mut buffer = AlignedBuffer::new(1);
            files.open(SCARS).unwrap().read(number * SECTOR_BYTES as u64, buffer.bytes_mut()).unwrap();
            buffer
        };
        assert!(crate::verify::verified(own.clone()).is_sound() && open(&Arc::new(own.copy())).is_ok());
        let device = own.open(SCARS).unwrap();
        (0..3).for_each(|number| device.write(number * SECTOR_BYTES as u64, sector(&other, number).bytes()).unwrap());
        assert!(matches!(open(&own), Err(Error::Corruption(what)) if what.contains("too many scars")));
        // Nor is what they would leave out given up as a loss.
        let accepting = Options::new().memory("16MiB").background(false).accept_loss(true);
        assert!(matches!(accepting.open_in::<u64, u64>(own.clone()), Err(Error::Corruption(what)) if what.contains("too many scars")));
        assert!(!crate::verify::verified(own.clone()).is_sound());
    }
    /// Whatever ended the list early was taken for the scar of an acceptance that was cut short, which hides others.
    #[test]
    fn exchanged_scars_are_not_accepted_as_a_loss() {
        let open = |files: &Arc<MemoryStorage>, accept_loss| -> Result<Store<u64, u64>> {
            Options::new().memory("16MiB").background(false).accept_loss(accept_loss).open_in(files.clone())
        };
        let mut files = Arc::new(MemoryStorage::new());
        for life in 0..3 {
            let store = open(&files, false).unwrap();
            store.put(&life, &life).unwrap();
            store.commit().unwrap();
            (0..1000).for_each(|n| store.put(&n, &9).unwrap());
            store.engine_for_test().flush_ahead().unwrap();
            files = Arc::new(files.copy());
        }
        let store = open(&files, false).unwrap();
        assert_eq!(store.engine_for_test().scars.all().len(), 3);
        store.put(&3, &3).unwrap();
        store.commit().unwrap();
        let files = Arc::new(files.copy());
        let is_whole = |store: &Store<u64, u64>| (0..1000).all(|n| store.get(&n).unwrap() == (n < 4).then_some(n));
        assert!(is_whole(&open(&Arc::new(files.copy()), true).unwrap()));
        let device = files.open(SCARS).unwrap();
        let mut sectors = AlignedBuffer::new(2);
        device.read(0, sectors.bytes_mut()).unwrap();
        let (first, second) = sectors.bytes().split_at(SECTOR_BYTES);
        for exchanged in [[second, first], [first, first]] {
            let mut both = AlignedBuffer::new(2);
            both.bytes_mut().copy_from_slice(&exchanged.concat());
            device.write(0, both.bytes()).unwrap();
            for accept_loss in [false, true] {
                let opened = open(&Arc::new(files.copy()), accept_loss);
                assert!(matches!(&opened, Err(Error::Corruption(what)) if what.contains("scars are missing")), "{:?}", opened.err());
            }
        }
    }
    /// A sector that a later crash at the same cut wrote again: what it had left out before was believed, and what lay there came back.
    #[test]
    fn a_scar_that_was_written_again_is_not_taken_for_the_last() {
        let open = |files: &Arc<MemoryStorage>| -> Result<Store<u64, u64>> {
            Options::new().memory("16MiB").background(false).open_in(files.clone())
        };
        let crash = |store: &Store<u64, u64>, files: &MemoryStorage, from: u64| {
            (from..from + 400_000).for_each(|n| store.put(&n, &n).unwrap());
            store.engine_for_test().flush_ahead().unwrap();
            Arc::new(files.copy())
        };
        let files = Arc::new(MemoryStorage::new());
        let first = open(&files).unwrap();
        first.put(&1, &1).unwrap();
        first.commit().unwrap();
        let files = crash(&first, &files, 1 << 32);
        let second = open(&files).unwrap();
        let mut stale = AlignedBuffer::new(1);
        files.open(SCARS).unwrap().read(0, stale.bytes_mut()).unwrap();
        let files = crash(&second, &files, 2 << 32);
        let third = open(&files).unwrap();
        third.put(&3, &3).unwrap();
        third.commit().unwrap();
        let files = Arc::new(files.copy());
        assert_eq!(open(&Arc::new(files.copy())).unwrap().get(&(2 << 32)).unwrap(), None);
        files.open(SCARS).unwrap().write(0, stale.bytes()).unwrap();
        assert!(!crate::verify::verified(files.clone()).is_sound());
        let opened = open(&files);
        assert!(matches!(&opened, Err(Error::Corruption(what)) if what.contains("written last")), "{:?}", opened.err());
    }

    /// What a longer list had there before was taken for places where the log went on: a line that begins at one was not looked for.
    #[test]
    fn the_list_of_cuts_ends_with_zeros() {
        let files = MemoryStorage::new();
        let scar = |cut| Scar { window: cut - BLOCK_BYTES, cut, behind: cut + BLOCK_BYTES, line: 1 };
        let scars: Vec<_> = [4, 8, 12].map(|block| scar(block * BLOCK_BYTES)).into();
        add(&files, 0, &scars).unwrap();
        assert_eq!(cuts(&files).unwrap().len(), 3);
        end(&files, 1, true).unwrap();
        assert_eq!(cuts(&files).unwrap(), [4 * BLOCK_BYTES]);
        // Who saves what he can looks on.
        assert_eq!(readable(&files, u64::MAX, true).unwrap().len(), 2);
    }
}
