//! Recovery: from the last durable line to an open store. It is what opening does, always; after an orderly close it finds
//! nothing to read.
//!
//! 1. The index image, if there is one, is the index as of `image_until`.
//! 2. The log from there to the cut is read once, in order (`traverse.rs`). Each record becomes the head of its entry if it lies
//!    above it: the later address is the later version, so threads may do that in any order. Records that were never
//!    published do not count, nor do those above `window` that belong to the next line.
//! 3. The log goes on behind everything that may have been written after the line. What lies between is a scar (`scars.rs`). It is written
//!    down as one sector, with a sector of zeros behind it for the next (which is made up for if it is missing). Besides, only a slot's
//!    copy that is missing is written, and the other slot where that was never written or its log begins lower (`manifest.rs`), and a line
//!    with an image where something was given up or had to be copied, or where a store without a driver is due for one: else a store that
//!    was not used after this opens the same way once more.
//!
//! **Shared entries.** Where the index had run out of its share, keys share entries, and a record found by the scan leads to
//! what shared its entry *then*. If the entry holds something else now, the record is appended once more, leading to that:
//! so everything stays reachable, at the price of some copies. Of what was superseded, too: so that no later recovery, which may have to
//! give up what lies behind damage, finds a copy and not what superseded it, an image is taken that has all of them.
//!
//! **Fails closed**: a damaged block below the cut was acknowledged once. It is named and nothing is changed, unless the
//! caller accepts the loss of what lies behind it.

use crate::copies::Original;
use crate::device::{AlignedBuffer, SECTOR_BYTES, Storage, ZEROS_BYTES_MAX};
use crate::engine::{Engine, Home};
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result, is_unreadable};
use crate::image;
use crate::index::{Chain, Index, Keys, Records};
use crate::log::{BLOCK_BYTES, block_ceil, block_floor, device_offset};
use crate::manifest::State;
use crate::record::{self, ADDRESS_MASK};
use crate::scars::{self, Scar};
use crate::sync::lock;
use crate::traverse::{Scanned, Span, Visitor};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Records that a thread raises together.
const BATCH: usize = 1024;
/// So many records before its turn a record's bucket is fetched.
const AHEAD: usize = 32;
/// Batches that wait.
const BATCHES_AHEAD: usize = 64;
/// A log of fewer bytes is not worth threads.
const ALONE_BYTES: u64 = 2 << 20;

/// What is told how far opening is: bytes of log read, and all.
pub(crate) type Progress = dyn Fn(u64, u64) + Send + Sync;

/// How to recover.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    /// Damage in the log or its image is not refused: what lies before it is taken for all there was.
    pub(crate) accept_loss: bool,
    /// The log makes the index anew where keys share entries: an image has them share for good.
    pub(crate) rebuilds_index: bool,
    pub(crate) progress: Option<Arc<Progress>>,
}

impl std::fmt::Debug for Manner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manner").field("accept_loss", &self.accept_loss).finish_non_exhaustive()
    }
}

impl Engine {
    /// Brings the engine to the last durable line. Before the store is shared.
    pub(crate) fn recover(&self, manner: &Manner) -> Result<()> {
        let home = lock(&self.home).as_ref().map(|home| (home.manifest.state.clone(), home.storage.clone()));
        let Some((mut state, storage)) = home else { return Ok(()) };
        let has_shrunk = self.fit(&mut state)?;
        let listed = scars::list(&*storage, state.cut, state.scars, manner.accept_loss)?;
        let begun = if manner.accept_loss { listed.loss_begun(&state) } else { None };
        let mut scars = listed.scars;
        self.log.begin_at(state.begin);
        self.image_stands_for(state.image_until);
        // What the log holds was not read: perhaps.
        self.expiry.watch_perhaps();
        let behind = self.end_for(&*storage, &state, scars.len(), manner)?;
        self.log.start_at(behind, state.line + 1, state.cut);
        let image = self.restore_index(&state, manner, has_shrunk)?;
        scars.extend(begun);
        let (image, cut) = if manner.accept_loss {
            self.accept_loss(&state, &scars, image, begun.map_or(state.cut, |scar| scar.cut))?
        } else {
            (image, state.cut)
        };
        if image.is_lost {
            // What it had may have been published in a finer table than any since.
            state.shared = true;
            self.index.set_shared(true);
        }
        // What is given up lives no more than what was superseded.
        self.start_dead_bytes(state.dead + behind.saturating_sub(cut));
        self.replay_all(&state, &image, &scars, cut..behind, manner)?;
        // Removals that a crash cut short, or took back. Not before image and log were seen to be those that the slot speaks of: beside a
        // manifest that is not theirs the files are all there is.
        if let Some(device) = self.log.device.as_ref().filter(|device| device.bytes().is_ok_and(|bytes| bytes >= device_offset(cut))) {
            device.discard(0, device_offset(state.begin))?;
        }
        // In the window of the line may lie what belonged to the next one: a line of its number is drawn again.
        let below = scars.iter().filter(|scar| scar.cut < cut).count() as u64;
        self.note_lag();
        self.keep_scars(if behind > cut { self.add_scar(&*storage, &state, scars, cut, behind)? } else { scars });
        self.end_scars(&*storage)?;
        self.index.note_finest(state.shape);
        self.write_what_is_owed(&state, cut < state.cut || image.is_lost, behind)?;
        if manner.accept_loss { self.mend_manifest(below) } else { Ok(()) }
    }

    /// Refuses, before all is read in vain, a budget that is too small for the index, which has no fewer buckets afterwards. True if the
    /// index has shrunk since the line, to what fits: the state says so.
    fn fit(&self, state: &mut State) -> Result<bool> {
        let has_shrunk = Index::may_have_shrunk(state.shape, state.entries) && self.check_shape_fits(state.shape).is_err();
        if has_shrunk {
            // It has shrunk since, and the budget perhaps with it: in a table that fits, records are joined as where keys share entries.
            (state.shape, state.shared) = (self.index.shape_word(), true);
        }
        // (Where keys share entries the image's own shape stays, which may be a coarser one.)
        if !state.shared || state.image == 0 {
            self.check_shape_fits(state.shape)?;
        }
        if !self.index.has_space_for(Index::buckets_of_shape(state.shape)) {
            return Err(Error::invalid("the address space that the system grants is too little for this store's index"));
        }
        Ok(has_shrunk)
    }

    /// Behind what was ever written: there the log goes on.
    fn end_for(&self, storage: &dyn Storage, state: &State, scars: usize, manner: &Manner) -> Result<u64> {
        let behind = self.end_of_writing(state.cut)?;
        // Where there is to be a scar it has a length: no line ends where it begins, even one that only moves the log's beginning. Such a
        // line would hide it, or those behind be taken for what was given up.
        let needs_scar = || Ok::<_, Error>(manner.accept_loss || state.window < state.cut || scars::has_stale(storage, scars)?);
        Ok(if behind == state.cut && needs_scar()? { behind + BLOCK_BYTES } else { behind })
    }

    /// Replays the log behind the image, up to the cut at which `given_up` begins.
    fn replay_all(&self, state: &State, image: &Restored, scars: &[Scar], given_up: Range<u64>, manner: &Manner) -> Result<()> {
        let replay = |image: &Restored| {
            let span = Span::up_to(given_up.start, image.until, state, scars).telling(manner.progress.as_deref());
            self.replay(&span, image, state.shared.then_some(given_up.end))?;
            self.share_budget();
            self.check_index_fits()
        };
        match replay(image) {
            // Entries of the image whose tags became too short for the table, beside those of what was put since: the log as a whole has
            // one for each key.
            Err(Error::Invalid(why)) if image.top > 0 && !state.shared => match replay(&self.restore_nothing(state, false)?) {
                // Where the image would do, with a larger budget.
                Err(Error::Corruption(_)) => Err(Error::Invalid(why)),
                replayed => replayed,
            },
            // As well: nothing is lost that a larger budget would not find.
            Err(Error::Corruption(damage)) if image.is_passed_over => {
                Err(Error::invalid(format!("the memory budget is below what this store's index image needs, without which {damage}")))
            }
            replayed => replayed,
        }
    }

    /// What is given up is given up for good, and copies are told from what they were made of. Else nothing more need be written now, nor
    /// when the store is closed again: the next line speaks of the scar, and the driver takes an image if the next opening should not read
    /// all this again.
    fn write_what_is_owed(&self, state: &State, gave_up: bool, behind: u64) -> Result<()> {
        if gave_up {
            return self.save_image(true);
        }
        // Copies that were made of a backup are made again: for them nobody's look at it makes it another store.
        // They are frozen, for what changes one of them must move the tail, and be in a line.
        let written = if state.is_backup { self.frozen_tail() } else { behind };
        self.log.bounds.durable.store(written, Relaxed);
        let has_copies = self.log.tail() > behind;
        // Should there be no room for it now; of a backup there is none before it is written.
        self.owe_image(has_copies);
        if has_copies && !state.is_backup || self.is_image_due() && !self.in_background {
            match self.save_image(false) {
                // For want of room on the medium: it is opened all the same, and goes on when there is some.
                Err(_) if self.may_go_on() => {}
                saved => return saved,
            }
        }
        Ok(())
    }

    /// Writes down that what lies between the cut and `behind` does not count, nor what the line's window has of the next one; all scars
    /// from then on.
    fn add_scar(&self, storage: &dyn Storage, state: &State, mut scars: Vec<Scar>, cut: u64, behind: u64) -> Result<Vec<Scar>> {
        // Where a scar is given up with what lay behind it, what it excludes below stays excluded.
        let older = scars.iter().find(|scar| scar.window < cut && cut <= scar.cut);
        let (window, line) = older.map_or((state.window.min(cut), state.line), |older| (older.window, older.line));
        let scar = Scar { window, cut, behind, line };
        scars.retain(|scar| scar.cut < cut);
        // An image that was cut short may have taken the room that this needs.
        image::remove_all(storage, state.image)?;
        scars::add(storage, scars.len(), &[scar])?;
        scars.push(scar);
        Ok(scars)
    }

    /// Where the log ends: what was written there changes in place no more.
    fn frozen_tail(&self) -> u64 {
        let end = self.log.end_block();
        self.freeze(end);
        end
    }

    fn mend_manifest(&self, below: u64) -> Result<()> {
        lock(&self.home).as_mut().map_or(Ok(()), |home| home.manifest.mend(below))
    }

    /// Behind everything but zeros that was ever written from `cut` on.
    fn end_of_writing(&self, cut: u64) -> Result<u64> {
        let Some(device) = &self.log.device else { return Ok(cut) };
        let (from, mut end) = (cut / BLOCK_BYTES, device.bytes()?.div_ceil(SECTOR_BYTES as u64));
        let mut buffer = AlignedBuffer::new((ZEROS_BYTES_MAX / SECTOR_BYTES as u64).min(end.saturating_sub(from)) as usize);
        while end > from {
            let first = end.saturating_sub(buffer.bytes().len() as u64 / SECTOR_BYTES as u64).max(from);
            let sectors = &mut buffer.bytes_mut()[..((end - first) as usize) * SECTOR_BYTES];
            match device.read(first * SECTOR_BYTES as u64, sectors) {
                // A file that ends in a part of a sector, or before the next one begins.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(end * BLOCK_BYTES),
                // Whatever is there that cannot be read: the log goes on behind it.
                Err(error) if is_unreadable(&error) => return Ok(end * BLOCK_BYTES),
                read => read?,
            }
            match sectors.chunks(SECTOR_BYTES).rposition(|sector| sector.iter().any(|byte| *byte != 0)) {
                Some(last) => return Ok((first + last as u64 + 1) * BLOCK_BYTES),
                None => end = first,
            }
        }
        Ok(cut)
    }

    /// The index as the image has it; but one of a table that does not fit, though its entries do, would be of no use.
    fn restore_index(&self, state: &State, manner: &Manner, has_shrunk: bool) -> Result<Restored> {
        self.index.set_shared(state.shared);
        if state.image == 0 || manner.rebuilds_index && state.shared {
            return self.restore_nothing(state, false);
        }
        let home = lock(&self.home);
        // What is wrong with it is told below.
        let shape = |home: &Home| image::shape(&*home.storage, state.image, state.identity.store_id).ok();
        if has_shrunk && home.as_ref().and_then(shape).is_some_and(|shape| self.check_shape_fits(shape).is_err()) {
            // Without it more might be given up than has to be.
            if manner.accept_loss {
                return Err(Error::invalid("the memory budget is below what this store's index image needs"));
            }
            return Ok(Restored { is_passed_over: true, ..self.restore_nothing(state, false)? });
        }
        let restore = |home: &Home| image::read(&*home.storage, state, &self.index);
        let read = home.as_ref().map_or(Ok(0), restore);
        match read {
            Ok(top) => {
                if !state.shared {
                    // In a coarser table two keys might meet in one entry that had one each when they were written.
                    self.index.grow_to(state.shape, &Cold);
                }
                Ok(Restored { until: state.image_until.max(state.begin), top, is_lost: false, is_passed_over: false })
            }
            // The log itself has everything.
            Err(error) if manner.accept_loss && error.is_damage() => self.restore_nothing(state, true),
            Err(error) => Err(error),
        }
    }

    fn restore_nothing(&self, state: &State, is_lost: bool) -> Result<Restored> {
        self.index.clear();
        if !self.index.restore_shape(state.shape) {
            return Err(Error::corruption("the manifest has an impossible index shape"));
        }
        Ok(Restored { until: state.begin, top: 0, is_lost, is_passed_over: false })
    }

    /// Where the log ends, if what lies behind damage, or behind `most`, is given up; and the index without an image that leads there.
    fn accept_loss(&self, state: &State, scars: &[Scar], image: Restored, most: u64) -> Result<(Restored, u64)> {
        let sound_until = |from| {
            let mut cut = most;
            loop {
                let span = Span::up_to(cut, from, state, scars);
                let scanned = self.scan(&span, &mut Ignoring);
                let reached = span.reached_whole();
                match scanned {
                    // Of its first block nothing is left.
                    Err(error) if error.is_damage() && reached == from => return Ok((from, block_floor(from))),
                    // Nor of the block with the impossible record. Another one may reach into that.
                    Err(error) if error.is_damage() && span.is_record_impossible() => cut = block_floor(reached).max(block_floor(from)),
                    Err(error) if error.is_damage() => return Ok((reached, block_ceil(reached))),
                    end => return end.map(|()| (if cut < most { reached } else { most }, cut)),
                }
            }
        };
        let (reached, cut) = sound_until(image.until)?;
        // The last of the records that the image leads to may lie across the end.
        if image.top < reached {
            return Ok((image, cut));
        }
        Ok((self.restore_nothing(state, true)?, sound_until(state.begin)?.1))
    }

    /// Brings the index from the image to the line. Where keys share entries copies are made, and lie from `first_copy` on.
    fn replay(&self, span: &Span<'_>, image: &Restored, first_copy: Option<u64>) -> Result<()> {
        if let Some(first_copy) = first_copy {
            return self.scan(span, &mut Joining { engine: self, first_copy, image_top: image.top });
        }
        self.index.set_limit(u64::MAX);
        if span.bytes() < ALONE_BYTES {
            return self.scan(span, &mut Raising { index: &self.index });
        }
        self.replay_in_parallel(span)
    }

    /// The higher address wins, whoever comes first: so this thread walks through the log, and others raise entries, in any order.
    fn replay_in_parallel(&self, span: &Span<'_>) -> Result<()> {
        let (send, batches) = sync_channel::<Vec<(u64, u64)>>(BATCHES_AHEAD);
        let batches = std::sync::Mutex::new(batches);
        let raise = || {
            let mut raising = Raising { index: &self.index };
            // The lock is held while waiting: the next thread waits for the lock instead.
            while let Ok(batch) = { batches.lock().unwrap_or_else(|e| e.into_inner()).recv() } {
                raising.raise_all(&batch);
            }
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let granted = (0..threads).filter(|_| std::thread::Builder::new().spawn_scoped(scope, raise).is_ok()).count();
            if granted == 0 {
                return self.scan(span, &mut Raising { index: &self.index });
            }
            let mut dealing = Dealing { batch: Vec::with_capacity(BATCH), send };
            let scanned = self.scan(span, &mut dealing);
            dealing.deal();
            scanned
        })
    }
}

/// What the index holds before the log is read.
struct Restored {
    /// The log is read from here.
    until: u64,
    /// The highest address there: an image that was taken while the store ran leads beyond `until`.
    top: u64,
    /// There was an image, which is damaged or leads nowhere.
    is_lost: bool,
    /// There is one, for which the budget is too small.
    is_passed_over: bool,
}

/// All records are on the device.
struct Cold;

impl Records for Cold {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, _: u64) -> Chain {
        Chain::Unknown
    }
}

/// Looks whether all is whole.
struct Ignoring;

impl Visitor for Ignoring {
    fn visit(&mut self, _: &Scanned, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Each key has, or had room for, an entry of its own: the highest address is the head.
struct Raising<'a> {
    index: &'a Index,
}

impl Raising<'_> {
    fn raise_all(&mut self, batch: &[(u64, u64)]) {
        batch.iter().take(AHEAD).for_each(|(hash, _)| self.index.prefetch(*hash));
        let mut added = 0;
        for (i, (hash, at)) in batch.iter().enumerate() {
            if let Some((ahead, _)) = batch.get(i + AHEAD) {
                self.index.prefetch(*ahead);
            }
            added += u64::from(self.index.raise(*hash, *at));
        }
        self.index.add_to_count(added);
    }
}

impl Visitor for Raising<'_> {
    fn expect(&mut self, hash: u64) {
        self.index.prefetch(hash);
    }

    fn visit(&mut self, record: &Scanned, _: &[u8]) -> Result<()> {
        let added = self.index.raise(record.hash, record.at);
        self.index.add_to_count(u64::from(added));
        Ok(())
    }
}

/// Deals records out to the threads that raise them.
struct Dealing {
    batch: Vec<(u64, u64)>,
    send: SyncSender<Vec<(u64, u64)>>,
}

impl Dealing {
    fn deal(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        // They end after us.
        let _ = self.send.send(batch);
    }
}

impl Visitor for Dealing {
    fn visit(&mut self, record: &Scanned, _: &[u8]) -> Result<()> {
        self.batch.push((record.hash, record.at));
        if self.batch.len() == BATCH {
            self.deal();
        }
        Ok(())
    }
}

/// Keys share entries: a record must lead to all that its entry has led to so far.
struct Joining<'a> {
    engine: &'a Engine,
    /// Copies made by this recovery lie from here on.
    first_copy: u64,
    /// Up to here an entry of the image may lie above the record.
    image_top: u64,
}

impl Joining<'_> {
    /// Counts an entry that was added. The index grows with them, but not while an entry of the image may lie above a record:
    /// a split would shorten its tag, and it would seem to stand for keys that it never led to.
    fn count(&self, pin: &Pin<'_>, record: &Scanned, added: bool) {
        if record.at > self.image_top {
            self.engine.entries_recovered(pin, added);
        } else {
            self.engine.index.add_to_count(u64::from(added));
        }
    }
}

impl Visitor for Joining<'_> {
    fn expect(&mut self, hash: u64) {
        self.engine.index.prefetch(hash);
    }

    fn visit(&mut self, record: &Scanned, bytes: &[u8]) -> Result<()> {
        let index = &self.engine.index;
        loop {
            let pin = self.engine.epochs.pin()?;
            let seen = index.lookup(record.hash);
            let head = seen.address();
            // The image saw the entry after the record was published under it: it leads to the record, or to a newer one.
            if head == record.at || (head > record.at && head < self.first_copy) {
                return Ok(());
            }
            let leads_on = record::word_at(bytes, 0) & ADDRESS_MASK == head;
            if head == 0 && index.has_free_entry(record.hash) || head != 0 && head < record.at && leads_on {
                let mut added = false;
                index.publish(record.hash, &seen, record.at, Keys::Unknown, &mut added, |_| {});
                self.count(&pin, record, added);
                return Ok(());
            }
            let Some(at) = self.engine.allocate_copy(pin.slot, bytes.len() as u64) else {
                drop(pin);
                self.engine.make_room_for_copy(bytes.len() as u64)?;
                continue;
            };
            // It may be superseded by a copy that comes later, and lie deep in a chain: who scans the log asks for all of this window.
            self.engine.log.windows.mark_superseded(at);
            let of = Original { at: record.at, hash: record.hash, bytes };
            if let Some(added) = self.engine.publish_copy(&pin, &of, at, &seen, |_| Keys::Unknown) {
                // One record more is dead: this one; or, if it was, the copy will be.
                pin.slot.count(Counter::DeadByte, bytes.len() as u64);
                self.count(&pin, record, added);
                return Ok(());
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
