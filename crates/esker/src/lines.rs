//! Short lines tell of themselves: one write and one sync make them durable.
//!
//! ```text
//! slot of the manifest          told            told          torn
//! |......................... cut |..., record | |..., record | |....
//!                            from ^----'    from ^----'         ^ recovery ends here
//! ```
//! A slot of the manifest takes a write and a sync after those of the log. So a line of few bytes puts what the slot would say into
//! the last bytes of its last block, whose trailer has [`LINE_END`]: it counts once all its blocks are on the device. A line that
//! was asked for waits for one sync, and the device may write the blocks in any order before that.
//!
//! * **Recovery** goes on from the newest slot ([`advance`]): as long as all blocks up to the next such record are whole, and it says
//!   that its line begins where the last one ended, that line counts. What was torn was never acknowledged.
//! * **Damage or torn?** A line is written after the one before it is durable. So where a record behind a damaged block tells of a line
//!   that begins above the last cut, the damaged one had been durable: that is refused. Of the last line nobody can tell, nor of several
//!   of which nothing whole is left, until a slot speaks of them: within a second, by the driver, or when the store is closed.
//! * **A backup** ends where its slot says. Lines behind that are part of the next one, which was cut short.
//! * **Through the manifest go** the first line of an opening (a scar may lie before it), long ones, those that move the log's beginning,
//!   and one every [`TOLD_BYTES_MAX`], so that recovery need not look far.

use crate::device::{AlignedBuffer, Device, LOG, SECTOR_BYTES, Storage};
use crate::error::{Error, Result, is_unreadable};
use crate::log::{BLOCK_BYTES, LINE_END, open_block};
use crate::manifest::State;
use crate::scars;
use std::io::ErrorKind;

/// Bytes of a line that tells of itself, at most about.
pub(crate) const SHORT_BYTES: u64 = 1 << 20;
/// Bytes of log that lie behind what a slot speaks of, at most about.
pub(crate) const TOLD_BYTES_MAX: u64 = 16 << 20;
/// Of a line's record.
pub(crate) const WORDS: usize = 7;
/// In the last bytes of a block's payload.
pub(crate) const RECORD_BYTES: u64 = WORDS as u64 * 8;
/// Bytes of such a line when its cut is known: a longer one recovery would not find.
pub(crate) const FOUND_BYTES: u64 = 2 * SHORT_BYTES;
const BLOCKS_MAX: u64 = FOUND_BYTES / BLOCK_BYTES;
/// Blocks read together.
const PIECE_BLOCKS: u64 = 64;

/// What a line tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineRecord {
    /// Where the durable line before it ended.
    pub(crate) from: u64,
    pub(crate) number: u64,
    pub(crate) window: u64,
    pub(crate) dead: u64,
    pub(crate) shape: u64,
    pub(crate) entries: u64,
    pub(crate) shared: bool,
}

impl LineRecord {
    pub(crate) fn words(&self) -> [u64; WORDS] {
        [self.from, self.number, self.window, self.dead, self.shape, self.entries, u64::from(self.shared)]
    }

    /// At the end of a block's payload.
    fn read(payload: &[u8]) -> Self {
        let bytes = &payload[payload.len() - RECORD_BYTES as usize..];
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap_or_default());
        let (from, number, window, dead) = (word(0), word(1), word(2), word(3));
        Self { from, number, window, dead, shape: word(4), entries: word(5), shared: word(6) != 0 }
    }

    /// Brings a state to this line, which ends at `cut`.
    pub(crate) fn apply(&self, state: &mut State, cut: u64) {
        (state.line, state.window, state.cut) = (self.number, self.window, cut);
        (state.dead, state.shape, state.entries, state.shared) = (self.dead, self.shape, self.entries, self.shared);
    }
}

/// Brings the state of a slot to the last line that is whole. None begins where a recovery left a scar: the line after that goes through
/// the manifest, and what lies there is what was given up.
///
/// # Errors
/// `Corruption` for damage in a line that another one was built on, unless its loss is accepted.
pub(crate) fn advance(storage: &dyn Storage, device: &dyn Device, state: &mut State, accept_loss: bool) -> Result<()> {
    // Its last step is a slot: what lies behind is the beginning of the next one, written in any order.
    if state.is_backup {
        return Ok(());
    }
    let ends = scars::cuts(storage)?;
    let mut blocks = Blocks::new(device, state.identity.store_id, accept_loss)?;
    while !ends.contains(&state.cut) {
        match blocks.line_at(state.cut)? {
            Found::Whole(record, cut) => record.apply(state, cut),
            Found::None => return Ok(()),
            Found::Damaged { .. } if accept_loss => return Ok(()),
            Found::Damaged { address } => {
                let cut = state.cut;
                return Err(Error::corruption(format!("a line is damaged that was durable file={LOG} address={address} line_from={cut}")));
            }
        }
    }
    Ok(())
}

/// What lies behind a cut.
enum Found {
    Whole(LineRecord, u64),
    None,
    Damaged { address: u64 },
}

/// The log's blocks, read some at a time.
struct Blocks<'a> {
    device: &'a dyn Device,
    store_id: u64,
    end: u64,
    /// What cannot be read is damage. Else it is an error: a line that was cut short can be read.
    accept_loss: bool,
    buffer: AlignedBuffer,
    first: u64,
    count: u64,
}

impl<'a> Blocks<'a> {
    fn new(device: &'a dyn Device, store_id: u64, accept_loss: bool) -> Result<Self> {
        let end = device.bytes()? / SECTOR_BYTES as u64;
        Ok(Self { device, store_id, end, accept_loss, buffer: AlignedBuffer::new(PIECE_BLOCKS as usize), first: 0, count: 0 })
    }

    /// The line that begins at `from`.
    fn line_at(&mut self, from: u64) -> Result<Found> {
        let first = from / BLOCK_BYTES;
        let mut damaged = None;
        for number in first..(first + 2 * BLOCKS_MAX).min(self.end) {
            match self.line_end(number)? {
                // Another one would have to begin there.
                Block::Ends(record) if record.from == from && damaged.is_none() => {
                    return Ok(Found::Whole(record, (number + 1) * BLOCK_BYTES));
                }
                Block::Ends(record) if record.from > from => {
                    return Ok(Found::Damaged { address: damaged.unwrap_or(number) * BLOCK_BYTES });
                }
                Block::Damaged => _ = damaged.get_or_insert(number),
                Block::Ends(_) | Block::Whole => {}
            }
        }
        Ok(Found::None)
    }

    fn line_end(&mut self, number: u64) -> Result<Block> {
        let store_id = self.store_id;
        let Some(sector) = self.sector(number)? else { return Ok(Block::Damaged) };
        Ok(match open_block(store_id, number, sector) {
            Ok((payload, LINE_END)) => Block::Ends(LineRecord::read(payload)),
            Ok(_) => Block::Whole,
            Err(_) => Block::Damaged,
        })
    }

    /// A block's sector; `None` where a file ends too early, or its loss is accepted.
    fn sector(&mut self, number: u64) -> Result<Option<&[u8]>> {
        if !(self.first..self.first + self.count).contains(&number) {
            // One by one where a file ends among them, or one cannot be read.
            let many = PIECE_BLOCKS.min(self.end - number);
            if !self.fill(number, many)? && !self.fill(number, 1)? {
                return Ok(None);
            }
        }
        let at = (number - self.first) as usize * SECTOR_BYTES;
        Ok(Some(&self.buffer.bytes()[at..at + SECTOR_BYTES]))
    }

    fn fill(&mut self, first: u64, count: u64) -> Result<bool> {
        self.count = 0;
        match self.device.read(first * SECTOR_BYTES as u64, &mut self.buffer.bytes_mut()[..count as usize * SECTOR_BYTES]) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) if is_unreadable(&error) && (self.accept_loss || count > 1) => return Ok(false),
            read => read?,
        }
        (self.first, self.count) = (first, count);
        Ok(true)
    }
}

enum Block {
    /// The last one of a line.
    Ends(LineRecord),
    Whole,
    Damaged,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::segment_name;
    use crate::latches::LatchNumber;
    use crate::{Durability, MemoryStorage, Options, Storage, Store};
    use std::sync::Arc;

    fn options() -> Options {
        Options::new().memory("16MiB").background(false)
    }

    fn open(files: &Arc<MemoryStorage>) -> Result<Store<u64, u64>> {
        options().open_in(files.clone())
    }

    fn slots(files: &MemoryStorage) -> Vec<u8> {
        let mut bytes = vec![0; 2 * SECTOR_BYTES];
        files.open("esker.manifest").unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    fn flip(files: &MemoryStorage, address: u64) {
        let (device, mut sector) = (files.open(&segment_name(0)).unwrap(), AlignedBuffer::new(1));
        let offset = address / BLOCK_BYTES * SECTOR_BYTES as u64;
        device.read(offset, sector.bytes_mut()).unwrap();
        sector.bytes_mut()[(address % BLOCK_BYTES) as usize] ^= 4;
        device.write(offset, sector.bytes()).unwrap();
    }

    /// The files as they are when key `n` is durable with value `n`, and the cut then, for n from 0 on.
    fn lives(count: u64) -> Vec<(Arc<MemoryStorage>, u64)> {
        let files = Arc::new(MemoryStorage::new());
        let store: Store<u64, u64> = options().durability(Durability::Always).open_in(files.clone()).unwrap();
        let now = |n| {
            store.put(&n, &n).unwrap();
            (Arc::new(files.copy()), store.engine.log.bounds.cut.load(std::sync::atomic::Ordering::Relaxed))
        };
        (0..count).map(now).collect()
    }

    fn held(files: &Arc<MemoryStorage>) -> u64 {
        let store = open(files).unwrap();
        (0..).take_while(|n| store.get(n).unwrap() == Some(*n)).count() as u64
    }

    #[test]
    fn short_lines_are_durable_without_the_manifest() {
        let lives = lives(300);
        let first = slots(&lives[0].0);
        for (n, (files, _)) in lives.iter().enumerate().step_by(7) {
            // The first one of an opening goes through the manifest, and that alone.
            assert!(slots(files) == first, "line {n}");
            assert!(crate::verify::verified(files.clone()).is_sound());
            assert_eq!(held(files), n as u64 + 1);
            // What was found is not lost by looking.
            assert_eq!(held(files), n as u64 + 1);
        }
    }

    /// What others wrote between a look at a line's length and its cut made it longer than recovery looks: acknowledged, and lost.
    #[test]
    fn a_line_that_grew_until_its_cut_is_found() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        const LONG: u64 = 6 << 20;
        let files = Arc::new(MemoryStorage::new());
        let store: Store<u64, [u8]> = options().open_in(files.clone()).unwrap();
        let put = |key: u64, bytes: u64| store.put(&key, &vec![key as u8; bytes as usize]).unwrap();
        // Whoever shares a latch with the key in the closure would wait for that.
        let latch_of = |key: u64| LatchNumber::of(store.engine.hash_of(&key.to_le_bytes()));
        let others = || (2..).filter(|key| latch_of(*key) != latch_of(1)).take((LONG / 1000) as usize);
        // A line waits for those who are in the store, if there are transactions.
        drop(store.begin().unwrap());
        put(0, 8);
        store.commit().unwrap();
        // Something for the line to hold.
        put(0, 16);
        let (is_in, may_go) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait_for = |seen: &dyn Fn() -> bool| {
            while !seen() {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let inside = || {
                let stay = |_: Option<&[u8]>| {
                    is_in.store(true, Relaxed);
                    wait_for(&|| may_go.load(Relaxed));
                    vec![1]
                };
                store.rmw(&1, stay).unwrap();
            };
            scope.spawn(inside);
            wait_for(&|| is_in.load(Relaxed));
            let committing = scope.spawn(|| store.commit().unwrap());
            wait_for(&|| store.engine.is_cutting());
            others().for_each(|key| put(key, 1000));
            may_go.store(true, Relaxed);
            committing.join().unwrap();
        });
        let again: Store<u64, [u8]> = options().open_in(Arc::new(files.copy())).unwrap();
        assert!(others().all(|key| again.contains(&key).unwrap()), "{:?}", again.stats().log);
    }

    #[test]
    fn a_torn_line_was_never_acknowledged_and_a_damaged_one_is_refused() {
        let lives = lives(20);
        for n in 2..19 {
            let (torn, from) = (Arc::new(lives[n].0.copy()), lives[n - 1].1);
            flip(&torn, from);
            assert_eq!(held(&torn), n as u64);
            // The next line was begun: this one had been durable.
            let damaged = Arc::new(lives[n + 1].0.copy());
            flip(&damaged, from + 8);
            let refused = open(&damaged).unwrap_err().to_string();
            assert!(refused.contains("esker.log") && refused.contains(&format!("address={from}")), "{refused}");
            let found = crate::verify::verified(damaged.clone());
            assert_eq!(found.damaged, 1, "{found:?}");
            let store: Store<u64, u64> = options().accept_loss(true).open_in(damaged.clone()).unwrap();
            let is_as_before = |store: &Store<u64, u64>| {
                assert_eq!((store.get(&(n as u64 - 1)).unwrap(), store.get(&(n as u64)).unwrap()), (Some(n as u64 - 1), None));
            };
            is_as_before(&store);
            // What was given up is given up for good.
            store.close().unwrap();
            // Whatever becomes of the sector of zeros behind the scar: all of the list was not believed then, and the opening refused.
            let mut sector = AlignedBuffer::new(1);
            sector.bytes_mut()[77] = 4;
            damaged.open("esker.scars").unwrap().write(SECTOR_BYTES as u64, sector.bytes()).unwrap();
            assert!(crate::verify::verified(damaged.clone()).is_sound());
            let store = open(&damaged).unwrap();
            is_as_before(&store);
            store.put(&(n as u64), &7).unwrap();
            store.commit().unwrap();
            drop(store);
            assert_eq!(open(&damaged).unwrap().get(&(n as u64)).unwrap(), Some(7));
        }
    }

    /// The background's share: the end of a log that the manifest speaks of cannot go unnoticed.
    #[test]
    fn a_slot_speaks_of_the_last_line_before_long() {
        let files = Arc::new(MemoryStorage::new());
        let store: Store<u64, u64> = Options::new().memory("16MiB").durability(Durability::Always).open_in(files.clone()).unwrap();
        (0..20).for_each(|n| store.put(&n, &n).unwrap());
        let told = |files: &MemoryStorage| {
            let damaged = Arc::new(files.copy());
            let end = store.engine.log.bounds.cut.load(std::sync::atomic::Ordering::Relaxed);
            flip(&damaged, end - BLOCK_BYTES);
            open(&damaged).is_ok()
        };
        let begun = std::time::Instant::now();
        while told(&files) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(300), "no slot speaks of it");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(held(&Arc::new(files.copy())), 20);
    }

    /// No slot spoke of what an opening had found behind the last one: what was damaged there later went unnoticed, for as long as nothing
    /// was written.
    #[test]
    fn a_slot_speaks_of_what_an_opening_found() {
        let (files, _) = lives(6).pop().unwrap();
        let store = open(&files).unwrap();
        store.engine.settle_line();
        let end = store.engine.log.bounds.durable.load(std::sync::atomic::Ordering::Relaxed);
        let cut = store.engine.scars.all().last().map_or(end, |scar| scar.cut);
        let damaged = Arc::new(files.copy());
        assert_eq!(held(&Arc::new(files.copy())), 6);
        flip(&damaged, cut - BLOCK_BYTES);
        assert!(matches!(open(&damaged), Err(Error::Corruption(_))));
    }

    #[test]
    fn long_lines_and_many_short_ones_go_through_the_manifest() {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        let mut sequences = vec![];
        let mut commit = |store: &Store<u64, u64>| {
            store.commit().unwrap();
            let text = String::from_utf8(slots(&files)).unwrap();
            let sequence = |slot: &str| slot.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("sequence=")?, 16).ok());
            sequences.push(text.split("esker format").filter_map(sequence).max().unwrap());
            sequences.last().copied().unwrap()
        };
        store.put(&0, &0).unwrap();
        let first = commit(&store);
        store.put(&0, &1).unwrap();
        assert_eq!(commit(&store), first);
        (0..100_000).for_each(|n| store.put(&n, &n).unwrap());
        assert_eq!(commit(&store), first + 1);
        // A block each, until so many bytes need not be looked through at an opening.
        let lines = TOLD_BYTES_MAX / BLOCK_BYTES;
        for n in 0..lines + lines / 2 {
            store.put(&n, &n).unwrap();
            let sequence = commit(&store);
            assert_eq!(sequence, first + 1 + u64::from(n > lines), "line {n} of {lines}");
        }
    }
}
