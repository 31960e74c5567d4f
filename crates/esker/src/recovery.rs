//! Recovery: from the last durable line to an open store. It is what opening does, always; after an orderly close it finds
//! nothing to read.
//!
//! 1. The index image, if there is one, is the index as of `image_until`.
//! 2. The log from there to the cut is read once, in order, one thread reading and verifying ahead. Each record becomes the
//!    head of its entry if it lies above it: the later address is the later version. Records that were never published
//!    do not count, nor do those above `window` that belong to the next line.
//! 3. The log goes on behind everything that may have been written after the line. What lies between is a scar (`scars.rs`).
//!    An image is saved, so that the next opening need not read all this again.
//!
//! **Shared entries.** Where the index had run out of its share, keys share entries, and a record found by the scan leads to
//! what shared its entry *then*. If the entry holds something else now, the record is appended once more, leading to that:
//! so everything stays reachable, at the price of some copies.
//!
//! **Fails closed**: a damaged block below the cut was acknowledged once. It is named and nothing is changed, unless the
//! caller accepts the loss of what lies behind it.

use crate::device::{AlignedBuffer, SECTOR_BYTES};
use crate::engine::{Engine, Layout, block_ceil, lock};
use crate::error::{Error, Result};
use crate::image;
use crate::index::{Chain, Published, Records};
use crate::log::{BLOCK_BYTES, line_flag};
use crate::manifest::{LOG, State};
use crate::record::{self, ABANDONED, ADDRESS_MASK, ODD_LINE, Record, VALID};
use crate::scars::{self, Scar};
use std::cell::Cell;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Blocks read together: a mebibyte.
const PIECE_BLOCKS: u64 = 256;
/// Pieces read and verified ahead.
const PIECES_AHEAD: usize = 4;
/// Records whose buckets are fetched together.
const GROUP: usize = 64;

/// A record of the log, as the scan meets it.
pub(crate) struct Scanned {
    pub(crate) at: u64,
    pub(crate) hash: u64,
    /// Where it lies in the scan's bytes.
    offset: usize,
    bytes: usize,
}

impl Engine {
    /// Brings the engine to the last durable line. Before the store is shared.
    pub(crate) fn recover(&self, accept_loss: bool) -> Result<()> {
        let state = lock(&self.home).as_ref().map(|home| home.manifest.state.clone());
        let Some(state) = state else { return Ok(()) };
        let Some(storage) = lock(&self.home).as_ref().map(|home| home.storage.clone()) else { return Ok(()) };
        let scars = scars::read(&*storage, state.cut)?;
        self.log.begin_at(state.begin);
        self.start_dead_bytes(state.dead);
        let file_bytes = self.log.device.as_ref().map_or(Ok(0), |device| device.bytes())?;
        let behind = block_ceil(file_bytes.div_ceil(SECTOR_BYTES as u64) * BLOCK_BYTES).max(state.cut);
        self.log.start_at(behind, state.line + 1, state.cut);
        let (from, is_image_lost) = self.restore_index(&state, accept_loss)?;
        let span = Span::new(from, &state, &scars);
        let end = if state.shared {
            self.scan(&span, &mut Joining { engine: self, first_copy: behind })
        } else {
            self.index.set_limit(u64::MAX);
            self.scan(&span, &mut Raising { engine: self })
        };
        let cut = match end {
            // What lies behind the damage is given up: a scar from there on.
            Err(Error::Corruption(_)) if accept_loss => block_ceil(span.reached.get()),
            end => end.map(|()| state.cut)?,
        };
        self.share_budget();
        self.check_index_fits()?;
        if behind > cut || scars::has_stale(&*storage, scars.len())? {
            let kept: Vec<&Scar> = scars.iter().filter(|scar| scar.cut < cut).collect();
            let scar = Scar { window: state.window.min(cut), cut, behind, line: state.line };
            scars::add(&*storage, kept.len(), scar)?;
            *lock(&self.compaction.scars) = kept.into_iter().copied().chain([scar]).collect();
        } else {
            *lock(&self.compaction.scars) = scars.clone();
        }
        // Without an image the next opening would read all this again.
        if from == cut && behind == cut { Ok(()) } else { self.save_image(is_image_lost) }
    }

    /// The index as the image has it; where the log must be read from, and whether there was an image that is lost.
    fn restore_index(&self, state: &State, accept_loss: bool) -> Result<(u64, bool)> {
        self.index.set_shared(state.shared);
        if state.image != 0 {
            let home = lock(&self.home);
            let read = home.as_ref().map_or(Ok(()), |home| image::read(&*home.storage, state.image, state.identity.store_id, &self.index));
            match read {
                Ok(()) => {
                    if !state.shared {
                        // In a coarser table two keys might meet in one entry that had one each when they were written.
                        self.index.grow_to(state.shape, &Cold);
                    }
                    return Ok((state.image_until.max(state.begin), false));
                }
                // The log itself has everything.
                Err(Error::Corruption(_)) if accept_loss => self.index.clear(),
                Err(error) => return Err(error),
            }
        }
        if !self.index.restore_shape(state.shape) {
            return Err(Error::corruption("the manifest has an impossible index shape"));
        }
        Ok((state.begin, state.image != 0))
    }

    /// Visits the records that count in a part of the log, in order.
    pub(crate) fn scan(&self, span: &Span<'_>, visitor: &mut impl Visitor) -> Result<()> {
        for part in span.parts() {
            let (send, pieces) = sync_channel(PIECES_AHEAD);
            std::thread::scope(|scope| {
                let until = part.end;
                let from = part.start;
                scope.spawn(move || self.read_ahead(from, until, &send));
                Scan::new(self, span, from, until).run(&pieces, visitor)
            })?;
        }
        Ok(())
    }

    /// The same for a log in memory, whose records up to the end do not change any more.
    pub(crate) fn scan_memory(&self, span: &Span<'_>, visitor: &mut impl Visitor) -> Result<()> {
        let (from, until) = (span.from, span.state.cut);
        let mut scan = Scan::new(self, span, from, until);
        let mut at = scan.base;
        while at < until {
            let bytes = (PIECE_BLOCKS * BLOCK_BYTES).min(until - at);
            scan.take(&self.log.copy_frozen(at, bytes), visitor)?;
            at += bytes;
        }
        Ok(())
    }

    fn read_ahead(&self, from: u64, to: u64, send: &SyncSender<Result<Vec<u8>>>) {
        let Some(device) = &self.log.device else { return };
        let mut buffer = AlignedBuffer::new(PIECE_BLOCKS as usize);
        let (mut block, end) = (from / BLOCK_BYTES, to / BLOCK_BYTES);
        while block < end {
            let count = PIECE_BLOCKS.min(end - block) as usize;
            let mut payload = Vec::new();
            let read = device.read(block * SECTOR_BYTES as u64, &mut buffer.bytes_mut()[..count * SECTOR_BYTES]);
            // A file that ends too early is damage like any other.
            let read = read.map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    Error::corruption(format!("the log ends too early file={LOG} address={}", block * BLOCK_BYTES))
                }
                _ => Error::from(error),
            });
            let verified = read.and_then(|()| self.log.append_payloads(block, &buffer, count, &mut payload));
            let failed = verified.is_err();
            // Before a failure go the blocks before it: they are whole.
            if failed && !payload.is_empty() && send.send(Ok(std::mem::take(&mut payload))).is_err() {
                return;
            }
            if send.send(verified.map(|()| payload)).is_err() || failed {
                return;
            }
            block += count as u64;
        }
    }
}

/// All records are on the device.
struct Cold;

impl Records for Cold {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, _: u64) -> Chain {
        Chain::Unknown
    }
}

/// A part of the log: from an address to the cut of the last line, around the scars.
pub(crate) struct Span<'a> {
    pub(crate) from: u64,
    pub(crate) state: &'a State,
    pub(crate) scars: &'a [Scar],
    /// Everything below was visited.
    reached: Cell<u64>,
    /// The last record may reach beyond the end: it is not visited then.
    is_open_ended: bool,
}

impl<'a> Span<'a> {
    pub(crate) fn new(from: u64, state: &'a State, scars: &'a [Scar]) -> Self {
        Self { from, state, scars, reached: Cell::new(from), is_open_ended: false }
    }

    /// A part that ends anywhere.
    pub(crate) fn open_ended(from: u64, state: &'a State, scars: &'a [Scar]) -> Self {
        Self { is_open_ended: true, ..Self::new(from, state, scars) }
    }

    /// Everything below needs no further visit: it was visited, or lies in a scar at the end.
    pub(crate) fn reached(&self) -> u64 {
        let end = self.state.cut;
        let ends_in_scar = self.scars.iter().any(|scar| scar.cut < end && end <= scar.behind);
        if ends_in_scar { end } else { self.reached.get() }
    }

    /// The stretches between the scars.
    pub(crate) fn parts(&self) -> Vec<Range<u64>> {
        let scars = || self.scars.iter().filter(|scar| scar.cut < self.state.cut);
        let starts = std::iter::once(self.from).chain(scars().map(|scar| scar.behind.max(self.from)));
        let ends = scars().map(|scar| scar.cut).chain([self.state.cut]);
        starts.zip(ends).map(|(from, to)| from..to).filter(|part| part.start < part.end).collect()
    }

    /// True if a record is part of the store, or was.
    fn counts(&self, at: u64, header: u64) -> bool {
        let is_later = at >= self.state.window && header & ODD_LINE != line_flag(self.state.line);
        header & ABANDONED == 0 && !is_later && !self.scars.iter().any(|scar| scar.excludes(at, header))
    }
}

/// What is done with the records.
pub(crate) trait Visitor {
    fn visit(&mut self, record: &Scanned, bytes: &[u8]) -> Result<()>;
}

/// A walk through the log's bytes.
struct Scan<'a> {
    engine: &'a Engine,
    span: &'a Span<'a>,
    until: u64,
    /// The next record's address, and that of the first byte held.
    at: u64,
    base: u64,
    bytes: Vec<u8>,
    group: Vec<Scanned>,
}

impl<'a> Scan<'a> {
    fn new(engine: &'a Engine, span: &'a Span<'a>, from: u64, until: u64) -> Self {
        let base = from / BLOCK_BYTES * BLOCK_BYTES;
        Self { engine, span, until, at: from, base, bytes: Vec::new(), group: Vec::with_capacity(GROUP) }
    }
    fn run(&mut self, pieces: &Receiver<Result<Vec<u8>>>, visitor: &mut impl Visitor) -> Result<()> {
        for piece in pieces {
            self.take(&piece?, visitor)?;
        }
        // A scar may begin in the middle of a record that was given up; the last line may not.
        if self.at < self.until && self.until == self.span.state.cut && !self.span.is_open_ended {
            return Err(Error::corruption(format!("a record reaches beyond its line file={LOG} address={}", self.at)));
        }
        Ok(())
    }

    /// Visits what is whole with these further bytes.
    fn take(&mut self, piece: &[u8], visitor: &mut impl Visitor) -> Result<()> {
        self.bytes.extend_from_slice(piece);
        while self.step()? {
            if self.group.len() == GROUP {
                self.visit_group(visitor)?;
            }
        }
        self.visit_group(visitor)?;
        self.span.reached.set(self.at.min(self.until));
        let done = ((self.at - self.base) as usize).min(self.bytes.len());
        self.bytes.drain(..done);
        self.base += done as u64;
        Ok(())
    }

    /// Goes past one record, or to the next block; false when more bytes are needed.
    fn step(&mut self) -> Result<bool> {
        let offset = (self.at - self.base) as usize;
        let Some(rest) = self.bytes.get(offset..).filter(|rest| rest.len() >= 8) else { return Ok(false) };
        let header = record::word_at(rest, 0);
        if header == 0 {
            self.at = (self.at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            return Ok(true);
        }
        if header & VALID == 0 {
            return Err(Error::corruption(format!("no record where one should be file={LOG} address={}", self.at)));
        }
        if self.engine.layout == Layout::Bytes && rest.len() < record::BYTES_HEADER_BYTES as usize {
            return Ok(false);
        }
        let key = record::key_range(self.engine.layout, rest);
        let bytes = match self.engine.layout {
            Layout::Word { key_bytes, .. } => record::word_record_bytes(key_bytes) as usize,
            Layout::Bytes => record::scanned_bytes_record_bytes(rest)
                .ok_or_else(|| Error::corruption(format!("a record of impossible length file={LOG} address={}", self.at)))?
                as usize,
        };
        if rest.len() < bytes {
            return Ok(false);
        }
        if self.span.counts(self.at, header) {
            let hash = self.engine.hash_of(&rest[key]);
            self.engine.index.prefetch(hash);
            self.group.push(Scanned { at: self.at, hash, offset, bytes });
        }
        self.at += bytes as u64;
        Ok(true)
    }

    fn visit_group(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        for record in self.group.drain(..) {
            visitor.visit(&record, &self.bytes[record.offset..record.offset + record.bytes])?;
        }
        Ok(())
    }
}

/// Each key has, or had room for, an entry of its own: the highest address is the head.
struct Raising<'a> {
    engine: &'a Engine,
}

impl Visitor for Raising<'_> {
    fn visit(&mut self, record: &Scanned, _: &[u8]) -> Result<()> {
        self.engine.index.raise(record.hash, record.at);
        Ok(())
    }
}

/// Keys share entries: a record must lead to all that its entry has led to so far.
struct Joining<'a> {
    engine: &'a Engine,
    /// Copies made by this recovery lie from here on.
    first_copy: u64,
}

impl Visitor for Joining<'_> {
    fn visit(&mut self, record: &Scanned, bytes: &[u8]) -> Result<()> {
        let index = &self.engine.index;
        loop {
            let pin = self.engine.epochs.pin()?;
            let seen = index.lookup(record.hash);
            let head = seen.address();
            if head == record.at || (head > record.at && head < self.first_copy) {
                return Ok(());
            }
            let leads_on = record::word_at(bytes, 0) & ADDRESS_MASK == head;
            let mut added = false;
            if head == 0 && index.has_free_entry(record.hash) || head != 0 && head < record.at && leads_on {
                index.publish(record.hash, &seen, record.at, &mut added, |_| {});
                self.engine.entries_recovered(&pin, added);
                return Ok(());
            }
            let Some(at) = self.engine.log.allocate(pin.slot, bytes.len() as u64) else {
                drop(pin);
                self.engine.make_room(bytes.len() as u64)?;
                continue;
            };
            // SAFETY: just allocated under the pin: ours alone, in memory, with room for these bytes.
            let copy = unsafe { Record::new(self.engine.log.pointer(at)) };
            copy.write_copy(bytes, head, self.engine.log.line_flag());
            match index.publish(record.hash, &seen, at, &mut added, |previous| copy.set_previous(previous)) {
                Published::Done => {
                    self.engine.entries_recovered(&pin, added);
                    return Ok(());
                }
                _ => copy.abandon(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, MemoryDevice, Options, Storage, Store};
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// Files in memory that outlive the store.
    #[derive(Default)]
    struct Files(Mutex<BTreeMap<String, Arc<MemoryDevice>>>);

    impl Storage for Files {
        fn open(&self, name: &str) -> io::Result<Arc<dyn crate::Device>> {
            Ok(self.0.lock().unwrap().entry(name.into()).or_default().clone())
        }
        fn list(&self) -> io::Result<Vec<String>> {
            Ok(self.0.lock().unwrap().keys().cloned().collect())
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.lock().unwrap().remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The store is left as a crash leaves it: never closed.
    fn crash<T>(value: T) {
        std::mem::forget(value);
    }

    #[test]
    fn a_commit_survives_and_what_came_later_does_not_hurt() {
        let files = Arc::new(Files::default());
        for round in 0..5u64 {
            let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
            for n in 0..round * 10_000 {
                assert_eq!(store.get(&n).unwrap(), Some(n + round - 1), "key {n} in round {round}");
            }
            for n in 0..(round + 1) * 10_000 {
                store.put(&n, &(n + round)).unwrap();
            }
            store.commit().unwrap();
            for n in 0..1000 {
                store.put(&n, &u64::MAX).unwrap();
                store.delete(&(n + 1000)).unwrap();
            }
            crash(store);
        }
    }

    /// The scan once filled the image's table without growing it first: of two keys that met in one entry there, but not in
    /// the table they were written in, one was lost.
    #[test]
    fn a_small_image_and_a_long_log_lose_nothing() {
        let files = Arc::new(Files::default());
        let open = || Options::new().memory("16MiB").background(false).open_in::<u64, u64>(files.clone()).unwrap();
        open().put(&0, &0).unwrap();
        let store = open();
        for n in 0..60_000u64 {
            store.put(&n, &n).unwrap();
        }
        store.commit().unwrap();
        crash(store);
        let store = open();
        for n in 0..60_000u64 {
            assert_eq!(store.get(&n).unwrap(), Some(n));
        }
    }

    /// A durable line's window once began where the last durable one ended: records of the snapshot's line, between, were
    /// taken for later ones, by their parity.
    #[test]
    fn a_line_after_a_snapshot_holds_what_came_before_it() {
        let files = Arc::new(Files::default());
        for snapshots in 0..3 {
            let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
            for n in 0..=snapshots {
                store.put(&n, &n).unwrap();
                drop(store.engine_for_test().snapshot().unwrap());
                store.put(&(n + 10), &n).unwrap();
            }
            store.commit().unwrap();
            crash(store);
            let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
            for n in 0..=snapshots {
                assert_eq!((store.get(&n).unwrap(), store.get(&(n + 10)).unwrap()), (Some(n), Some(n)), "{snapshots} snapshots");
            }
            crash(store);
        }
    }

    #[test]
    fn a_shared_index_loses_nothing() {
        let files = Arc::new(Files::default());
        let count = 900_000u64;
        for round in 0..3u64 {
            let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
            if round > 0 {
                for n in (0..count).step_by(89) {
                    assert_eq!(store.get(&n).unwrap(), Some(n + round - 1), "key {n} in round {round}");
                }
            }
            for n in 0..count {
                store.put(&n, &(n + round)).unwrap();
            }
            store.commit().unwrap();
            let home = lock(&store.engine_for_test().home);
            assert!(home.as_ref().unwrap().manifest.state.shared);
            drop(home);
            crash(store);
        }
    }

    #[test]
    fn always_durable_writes_survive_without_a_commit() {
        let files = Arc::new(Files::default());
        let options = Options::new().memory("16MiB").durability(Durability::Always).background(false);
        let store: Store<str, [u8]> = options.clone().open_in(files.clone()).unwrap();
        for n in 0..100 {
            store.append(&format!("key {}", n % 7), format!("{n};").as_bytes()).unwrap();
        }
        assert!(store.delete("key 3").unwrap());
        crash(store);
        let store: Store<str, [u8]> = options.open_in(files).unwrap();
        assert_eq!(store.get("key 3").unwrap(), None);
        assert!(store.get("key 2").unwrap().unwrap().starts_with(b"2;9;16;"));
    }

    #[test]
    fn a_damaged_block_stops_the_opening_by_name() {
        let files = Arc::new(Files::default());
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
        for n in 0..100_000 {
            store.put(&n, &n).unwrap();
        }
        store.commit().unwrap();
        crash(store);
        let log = files.open(crate::manifest::LOG).unwrap();
        let mut sector = AlignedBuffer::new(1);
        log.read(40960, sector.bytes_mut()).unwrap();
        sector.bytes_mut()[77] ^= 4;
        log.write(40960, sector.bytes()).unwrap();
        let error = Options::new().memory("16MiB").open_in::<u64, u64>(files.clone()).unwrap_err().to_string();
        assert!(error.contains("esker.log") && error.contains("address=40800"), "{error}");
        let store: Store<u64, u64> = Options::new().memory("16MiB").accept_loss(true).open_in(files.clone()).unwrap();
        assert_eq!((store.get(&0).unwrap(), store.get(&99_999).unwrap()), (Some(0), None));
        store.put(&99_999, &7).unwrap();
        store.close().unwrap();
        let found = crate::verify_in(files.clone(), |_, _| {}).unwrap();
        assert!(found.is_sound() && found.scars == 1 && found.records > 500, "{found:?}");
        let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(files).unwrap();
        assert_eq!((store.get(&0).unwrap(), store.get(&99_999).unwrap()), (Some(0), Some(7)));
    }

    #[test]
    fn verification_names_what_is_damaged_and_changes_nothing() {
        let files = Arc::new(Files::default());
        for round in 0..3 {
            let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).open_in(files.clone()).unwrap();
            for n in 0..50_000 {
                store.put(&n, &(n + round)).unwrap();
            }
            store.commit().unwrap();
            crash(store);
            // Something was being written.
            let log = files.open(crate::manifest::LOG).unwrap();
            log.write(log.bytes().unwrap(), AlignedBuffer::new(3).bytes()).unwrap();
            let found = crate::verify_in(files.clone(), |done, all| assert!(done <= all)).unwrap();
            assert!(found.is_sound() && found.scars == round && found.records >= 50_000, "{found:?}");
        }
        let log = files.open(crate::manifest::LOG).unwrap();
        let mut sector = AlignedBuffer::new(1);
        for number in [3, 700] {
            log.read(number * 4096, sector.bytes_mut()).unwrap();
            sector.bytes_mut()[4095] ^= 128;
            log.write(number * 4096, sector.bytes()).unwrap();
        }
        let found = crate::verify_in(files, |_, _| {}).unwrap();
        assert_eq!(found.damaged, 2, "{found:?}");
        assert!(found.damage[1].contains(&format!("address={}", 700 * 4080)), "{found:?}");
    }
}
