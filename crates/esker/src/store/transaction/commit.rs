//! The commit: many keys change at one moment, on one side of a line.
//!
//! All of it under one pin, in this order:
//! 0. **Make ahead** the records of values that most likely need one: to copy a value to fresh memory takes longer than all the rest,
//!    and no other transaction has to wait for it. A step for time only: what turns out not to be needed is abandoned.
//! 1. **Latch** the keys to be written, in the order of their latches; and those read whose version has moved.
//! 2. **Validate**: of what was read, latched keys by their witness, the others by their version; and that none of it has ended by now, by
//!    one look at the clock. A version that moves between the two may mean another key, which shares the latch: then all that was touched
//!    is latched, and validated again. Who reads thousands of keys beside busy writers of others would never commit else.
//! 3. **Plan**: a value that fits its mutable record will change in place; for any other a record is made at the log's tail,
//!    if it is not made yet. Up to here everything can be given up: what was made is abandoned, the versions stay what they were.
//! 4. **Publish** the records, then **change in place**. Nothing fails any more: who finds the one or the other finds the key
//!    latched, and waits.
//! 5. **Let go**: the versions move on.
//!
//! **One moment.** Call P the moment at which the last latch was taken. What is latched changes by nobody else's hand from P on,
//! and was found as it was read: so it was at P. What is not latched had its version when it was read, before P, and has it
//! still, after P: so at P it was what was read. Hence at P all that was read was true, and from P until they are let go the written
//! keys are seen by nobody: the transaction happened at P. Two transactions that each write what the other reads both hold before they
//! look (SeqCst, `latches.rs`), so one of them sees the other.
//!
//! **One side of a line.** While a line's number changes and its cut is taken, no transaction is between pin and unpin of its
//! commit: the drawer raises a flag and drains the epoch first, and who pins and sees the flag comes back later
//! (`Engine::hold_transactions`). So a transaction that was before has made everything below the cut, under the old number; and one
//! that comes after finds the new number, and pieces and `read_only` at the cut. Nothing but that small gate is needed: without it
//! a record that had to be made anew in the middle could land beyond the cut while the others lie below.
//!
//! **Publishing cannot fail**, but it may have to be done again when compaction, or a key that shares the entry, was quicker: a key of the
//! same transaction, too. The record leads there then, if it lies above. If not, as above another thread's, a new place is needed, in the
//! middle of it: it is taken even if the budget is spent (`Log::allocate_anyway`).

use super::super::batch::GROUP;
use super::super::find::{Found, Region};
use super::super::step::Step;
use super::super::{Store, to_word};
use super::witness::Read;
use super::{Put, Touched, Write};
use crate::cache::Ending;
use crate::engine::Engine;
use crate::epoch::{Counter, Pin};
use crate::error::{Error, Result};
use crate::index::{Published, Seen};
use crate::latches::{Hold, LatchNumber};
use crate::log::{Log, PIECE_BYTES};
use crate::record::{self, ABSENT, NEVER, Record, SEALED, TOMBSTONE};
use crate::sync::atomic::Ordering::*;
use crate::sync::{Rule, broken};
use crate::types::{Key, Value};

/// The latches of a commit, in order.
struct Latches<'a> {
    held: Vec<Latch<'a>>,
    /// What is to be written was.
    changed: bool,
}

struct Latch<'a> {
    number: LatchNumber,
    hold: Hold<'a>,
    /// For the sake of a key that is to be written.
    writes: bool,
}

impl Latches<'_> {
    fn get(&self, hash: u64) -> Option<&Hold<'_>> {
        let at = self.held.binary_search_by_key(&LatchNumber::of(hash), |latch| latch.number).ok()?;
        Some(&self.held[at].hold)
    }
}

impl Drop for Latches<'_> {
    fn drop(&mut self) {
        let changed = self.changed;
        self.held.drain(..).filter(|latch| !(changed && latch.writes)).for_each(|latch| latch.hold.unchanged());
    }
}

/// A write on its way.
struct Change<'a, K: Key + ?Sized, V: Value + ?Sized> {
    touched: &'a Touched<K, V>,
    write: &'a Write<V>,
    held: &'a Hold<'a>,
    plan: Plan,
}

/// What a write will be.
enum Plan {
    /// Nothing: the key has no value as it is.
    Nothing,
    /// This record, there, stays, and is mutable as long as we are pinned.
    InPlace(u64, Record),
    Append(Made),
}

/// A record that was made, and what it will be published over.
struct Made {
    at: u64,
    record: Record,
    seen: Seen,
    found: Found,
    /// The mutable record that it takes the place of.
    replaced: Option<Record>,
}

/// Records that were made before the latches were taken, in the order of what they are for. Those that nobody takes are abandoned.
struct Ahead<'p> {
    engine: &'p Engine,
    pin: &'p Pin<'p>,
    made: Vec<Option<(u64, Record)>>,
}

impl Ahead<'_> {
    fn take(&mut self, number: usize) -> Option<(u64, Record)> {
        self.made.get_mut(number)?.take()
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        for (_, record) in self.made.drain(..).flatten() {
            self.engine.abandon(self.pin, record);
        }
    }
}

fn writes<K: Key + ?Sized, V: Value + ?Sized>(touched: &[Touched<K, V>]) -> bool {
    touched.iter().any(|touched| touched.write.is_some())
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Makes the changes at one moment at which all that was read was true; without a change, asks whether there is one.
    pub(super) fn change_together(&self, touched: &[Touched<K, V>]) -> Result<()> {
        let room = self.room_for(touched)?;
        let mut endings = self.outdate_loads(touched)?;
        self.run(&[], |_| self.seen_commit_step(touched, room, &mut endings))?;
        if writes(touched) { self.written(()) } else { Ok(()) }
    }

    /// The same without blocking this thread.
    pub(super) async fn change_together_async(&self, touched: &[Touched<K, V>]) -> Result<()> {
        let room = self.room_for(touched)?;
        let mut endings = self.outdate_loads(touched)?;
        self.run_async(&[], |_| self.seen_commit_step(touched, room, &mut endings)).await?;
        if writes(touched) { self.written_async(()).await } else { Ok(()) }
    }

    /// What was loaded before the commit of a key that it deletes, or gives an end, is not kept, as for any deletion. `None` where nothing
    /// was loaded yet.
    fn outdate_loads(&self, touched: &[Touched<K, V>]) -> Result<Option<Vec<Ending<'_>>>> {
        if self.closer.flights.are_used() { self.begin_endings(touched).map(Some) } else { Ok(None) }
    }

    fn begin_endings(&self, touched: &[Touched<K, V>]) -> Result<Vec<Ending<'_>>> {
        let ends = |touched: &&Touched<K, V>| touched.is_deleted || matches!(&touched.write, Some(Write::Put(put)) if put.expires != NEVER);
        let begin = |touched: &Touched<K, V>| self.begin_ending(touched.key(), touched.hash, touched.is_deleted);
        touched.iter().filter(ends).map(begin).collect()
    }

    /// One attempt. One that waits is seen by the first load of all, too, as a deletion is.
    fn seen_commit_step<'s>(&'s self, touched: &[Touched<K, V>], room: u64, endings: &mut Option<Vec<Ending<'s>>>) -> Result<Step<()>> {
        let step = self.commit_step(touched, room)?;
        if endings.is_none() && !matches!(step, Step::Done(())) {
            *endings = Some(self.begin_endings(touched)?);
        }
        Ok(step)
    }

    /// The most log that the writes may take, each of which must still be short enough: the budget may be smaller since it was given.
    fn room_for(&self, touched: &[Touched<K, V>]) -> Result<u64> {
        for touched in touched {
            if let Some(Write::Put(put)) = &touched.write {
                self.check_value(put.bytes().len())?;
            }
        }
        let room = Self::written_bytes(touched).map(Log::room_of).sum::<u64>() + PIECE_BYTES;
        let longest = Self::written_bytes(touched).max().unwrap_or(0);
        let most = self.engine.log.most_of(longest) / 8 * 7;
        if room > most {
            return Err(Error::invalid(format!("a transaction is larger than the log's memory max={most} transaction={room}")));
        }
        Ok(room)
    }

    /// `room`, and what a longer record than all that are there leaves to compaction.
    fn needs_room(&self, touched: &[Touched<K, V>], room: u64) -> Step<()> {
        Step::Room(room + self.engine.log.reserve_for_longest(Self::written_bytes(touched).max().unwrap_or(0)))
    }

    /// The lengths of the records that may be made.
    fn written_bytes<'t>(touched: impl IntoIterator<Item = &'t Touched<K, V>>) -> impl Iterator<Item = u64>
    where
        K: 't,
        V: 't,
    {
        touched.into_iter().filter_map(|touched| Some(Self::written_bytes_of(touched, touched.write.as_ref()?)))
    }

    fn written_bytes_of(touched: &Touched<K, V>, write: &Write<V>) -> u64 {
        match write {
            Write::Put(put) => Self::record_bytes_of(touched.key(), put.room, put.expires),
            Write::Delete => Self::record_bytes_of(touched.key(), 0, NEVER),
        }
    }

    /// True if what the writes have to make does not fit what is left of the log's memory. An attempt in vain would leave there what did
    /// fit, dead: beside a scan, which holds it, nobody else would have room any more.
    fn lacks_room(&self, pin: &Pin<'_>, touched: &[Touched<K, V>]) -> bool {
        let left = self.engine.log.bytes_left() + pin.slot.unfilled_bytes();
        if Self::written_bytes(touched).sum::<u64>() <= left {
            return false;
        }
        let makes = |touched: &&Touched<K, V>| touched.write.as_ref().is_some_and(|write| self.makes_a_record(touched, write));
        Self::written_bytes(touched.iter().filter(makes)).sum::<u64>() > left
    }

    /// Whether a write takes effect by a record of its own, as far as a glance tells.
    fn makes_a_record(&self, touched: &Touched<K, V>, write: &Write<V>) -> bool {
        let Some((_, found)) = self.locate_surely(touched.key(), touched.hash) else { return false };
        match (write, found) {
            (Write::Delete, Found::Absent) => false,
            (Write::Delete, Found::Memory { at, record }) => {
                let is_done = record.header().load(Acquire) & ABSENT != 0 && self.engine.stays_absent();
                !is_done && !matches!(self.region(at), Region::Mutable)
            }
            (Write::Put(put), Found::Memory { at, record }) => !(matches!(self.region(at), Region::Mutable) && self.fits(record, put)),
            _ => true,
        }
    }

    fn commit_step(&self, touched: &[Touched<K, V>], room: u64) -> Result<Step<()>> {
        if writes(touched) {
            self.engine.admit_write()?;
        }
        let pin = self.engine.epochs.pin()?;
        if self.engine.is_cutting() {
            return Ok(Step::Again);
        }
        // Nothing is made where something that was read, or shares its latch, has changed: an attempt in vain would leave that in the log, dead.
        let mut ahead = Ahead { engine: &self.engine, pin: &pin, made: Vec::new() };
        if touched.iter().all(|touched| touched.read.is_none_or(|read| self.stands(touched.hash, read))) {
            if self.lacks_room(&pin, touched) {
                return Ok(self.needs_room(touched, room));
            }
            self.make_ahead(touched, &mut ahead);
        }
        let mut latches = self.latch_and_validate(touched)?;
        match self.plan_all(&pin, touched, &latches, &mut ahead) {
            Step::Done(changes) => self.carry_out(&pin, &changes),
            Step::Room(_) => return Ok(self.needs_room(touched, room)),
            missing => return Ok(missing.then(|| ())),
        }
        latches.changed = true;
        Ok(Step::Done(()))
    }

    // ---- make ahead ----------------------------------------------------------------------------------------------

    /// Makes records for values of the bytes layout that cannot change in place, as far as a glance tells and there is room.
    fn make_ahead(&self, touched: &[Touched<K, V>], ahead: &mut Ahead<'_>) {
        if Self::WORD {
            return;
        }
        ahead.made.reserve(touched.len());
        for group in touched.chunks(GROUP) {
            let firsts = self.bring(group);
            for (touched, first) in group.iter().zip(firsts) {
                let made = match &touched.write {
                    Some(write @ Write::Put(put))
                        if !self.mutable_record_of(first, touched.key()).is_some_and(|old| self.fits(old, put)) =>
                    {
                        self.make_at_tail(touched, write, |bytes| self.engine.log.allocate(ahead.pin.slot, bytes))
                    }
                    _ => None,
                };
                ahead.made.push(made);
            }
        }
    }

    /// True if nothing that shares the key's latch has changed since it was read.
    fn stands(&self, hash: u64, read: Read) -> bool {
        self.engine.latches.stands(LatchNumber::of(hash), read.version)
    }

    /// Brings the buckets and first records of up to [`GROUP`] keys into the processor's caches.
    fn bring(&self, group: &[Touched<K, V>]) -> [u64; GROUP] {
        let mut hashes = [0; GROUP];
        for (hash, touched) in hashes.iter_mut().zip(group) {
            *hash = touched.hash;
            self.engine.index.prefetch(*hash);
        }
        self.fetch_firsts(&hashes[..group.len()])
    }

    // ---- latch and validate --------------------------------------------------------------------------------------

    fn latch_and_validate(&self, touched: &[Touched<K, V>]) -> Result<Latches<'_>> {
        let latches = self.latch(touched, |touched| self.needs_latch(touched))?;
        if self.is_valid(touched, &latches)? {
            return Ok(latches);
        }
        drop(latches);
        let latches = self.latch(touched, |_| true)?;
        let is_valid = self.is_valid(touched, &latches)?;
        debug_assert!(is_valid, "what is latched is still what was read, or a conflict");
        Ok(latches)
    }

    fn latch(&self, touched: &[Touched<K, V>], needs_latch: impl Fn(&Touched<K, V>) -> bool) -> Result<Latches<'_>> {
        let needed = touched.iter().filter(|touched| needs_latch(touched));
        let mut order: Vec<_> = needed.map(|touched| (LatchNumber::of(touched.hash), touched.write.is_none(), touched)).collect();
        // Of those that share one, who writes comes first, and stays.
        order.sort_unstable_by_key(|(number, only_reads, _)| (*number, *only_reads));
        order.dedup_by_key(|(number, ..)| *number);
        let mut latches = Latches { held: Vec::with_capacity(order.len()), changed: false };
        for (number, only_reads, touched) in order {
            let hold = self.engine.latches.hold_next(number).ok_or_else(|| self.met_conflict(touched.conflict()))?;
            latches.held.push(Latch { number, hold, writes: !only_reads });
        }
        Ok(latches)
    }

    /// What is written; and what was read if its version has moved, for only a latch tells whether it means this key. In a cache all that
    /// was read: what it drops moves no version.
    fn needs_latch(&self, touched: &Touched<K, V>) -> bool {
        let has_moved = |read| self.engine.caching.is_some() || !self.stands(touched.hash, read);
        touched.write.is_some() || touched.read.is_some_and(has_moved)
    }

    /// False if only more latches can tell.
    fn is_valid(&self, touched: &[Touched<K, V>], latches: &Latches<'_>) -> Result<bool> {
        // Before any of them is looked at. An end that came since is of a value that is there.
        let now = if self.engine.expiry.has_ends() { self.engine.expiry.now() } else { 0 };
        let tells = self.engine.caching.is_none();
        for touched in touched {
            let Some(read) = touched.read else { continue };
            let stands = match latches.get(touched.hash) {
                Some(held) => tells && held.version() == read.version || self.is_still(touched.key(), touched.hash, read.witness, now),
                None if tells && self.stands(touched.hash, read) => true,
                None => return Ok(false),
            };
            if (!stands || !read.holds_at(now)) && !broken(Rule::ReadsAreValidated) {
                return Err(self.met_conflict(touched.conflict()));
            }
        }
        Ok(true)
    }

    // ---- plan ----------------------------------------------------------------------------------------------------

    fn plan_all<'a>(
        &self,
        pin: &Pin<'_>,
        all: &'a [Touched<K, V>],
        latches: &'a Latches<'a>,
        ahead: &mut Ahead<'_>,
    ) -> Step<Vec<Change<'a, K, V>>> {
        let mut changes: Vec<Change<'a, K, V>> = Vec::with_capacity(all.len());
        for (number, touched) in all.iter().enumerate() {
            if number % GROUP == 0 {
                self.bring(&all[number..(number + GROUP).min(all.len())]);
            }
            let (Some(write), Some(held)) = (&touched.write, latches.get(touched.hash)) else { continue };
            match self.plan(pin, touched, write, || ahead.take(number)) {
                Step::Done(plan) => changes.push(Change { touched, write, held, plan }),
                missing => {
                    let made = changes.iter().filter_map(|change| if let Plan::Append(made) = &change.plan { Some(made) } else { None });
                    made.for_each(|made| self.engine.abandon(pin, made.record));
                    return missing.then(|| unreachable!("not done"));
                }
            }
        }
        Step::Done(changes)
    }

    fn plan(&self, pin: &Pin<'_>, touched: &Touched<K, V>, write: &Write<V>, ahead: impl FnOnce() -> Option<(u64, Record)>) -> Step<Plan> {
        let Some((seen, found)) = self.locate_surely(touched.key(), touched.hash) else { return Step::Again };
        let mutable = match found {
            Found::Memory { at, record } if matches!(self.region(at), Region::Mutable) => Some((at, record)),
            _ => None,
        };
        let flags = if let Write::Delete = write { TOMBSTONE } else { 0 };
        let is_deletion = |found: &Found| matches!(found, Found::Memory { record, .. } if record.header().load(Acquire) & ABSENT != 0);
        let append = || {
            let made = ahead().and_then(|(at, record)| self.lead(pin, touched, at, record));
            let made = made.or_else(|| self.make(pin, touched, write, |bytes| self.allocate(pin, &found, bytes, flags)));
            made.map_or(Step::Room(0), |made| Step::Done(Plan::Append(Made { replaced: mutable.map(|(_, record)| record), ..made })))
        };
        match (write, mutable) {
            // What has ended is not deleted: a clock may be set back.
            (Write::Delete, Some((_, record))) if record.header().load(Acquire) & ABSENT != 0 => Step::Done(Plan::Nothing),
            // A word on its way to a new record: see where it goes.
            (Write::Delete, Some((_, record))) if Self::WORD && record.is_sealed() => Step::Again,
            (Write::Delete, Some((at, record))) => Step::Done(Plan::InPlace(at, record)),
            (Write::Put(put), Some((at, record))) if self.fits(record, put) => Step::Done(Plan::InPlace(at, record)),
            (Write::Delete, None) if is_deletion(&found) && self.engine.stays_absent() => Step::Done(Plan::Nothing),
            (Write::Delete, None) if !matches!(found, Found::Absent) => append(),
            (Write::Delete, None) if self.engine.index.is_settled(&seen) && !self.engine.stays_absent() => append(),
            (Write::Delete, None) if self.engine.index.is_settled(&seen) => Step::Done(Plan::Nothing),
            (Write::Delete, None) => Step::Again,
            (Write::Put(..), _) => append(),
        }
    }

    /// True if a value can take the place of the record's own, with the end that the record has. What gets another end gets a new
    /// record.
    fn fits(&self, record: Record, put: &Put<V>) -> bool {
        let ends_alike = match put.expires {
            NEVER => record.is_plain(),
            // Nearly always that of what was read, which has just been found to be there still.
            expires => self.is_live(record) && self.engine.expiry_of(record) == expires,
        };
        ends_alike && (Self::WORD || put.bytes().len() <= record.capacity())
    }

    /// A record of what is to be written, above the key's entry.
    fn make(&self, pin: &Pin<'_>, touched: &Touched<K, V>, write: &Write<V>, allocate: impl Fn(u64) -> Option<u64>) -> Option<Made> {
        loop {
            let (at, record) = self.make_at_tail(touched, write, &allocate)?;
            if let Some(made) = self.lead(pin, touched, at, record) {
                return Some(made);
            }
        }
    }

    /// A record of what is to be written, which leads nowhere yet.
    fn make_at_tail(&self, touched: &Touched<K, V>, write: &Write<V>, allocate: impl FnOnce(u64) -> Option<u64>) -> Option<(u64, Record)> {
        let log = &self.engine.log;
        let at = allocate(Self::written_bytes_of(touched, write))?;
        // SAFETY: just allocated under the pin: ours alone, in memory.
        let record = unsafe { Record::new(log.pointer(at)) };
        self.fill(record, touched.key(), write, log.line_flag());
        Some((at, record))
    }

    /// Lets a record lead to where the key's chain goes on, unless it lies below another thread's newer record: then it is given up.
    fn lead(&self, pin: &Pin<'_>, touched: &Touched<K, V>, at: u64, record: Record) -> Option<Made> {
        let (seen, found) = self.locate(touched.key(), touched.hash);
        if at <= seen.address() {
            self.engine.give_up(pin, record);
            return None;
        }
        let previous = self.previous_for(touched.key(), &seen, &found);
        // It leads nowhere as it was made, long ago perhaps: most need not be touched again.
        if previous != 0 {
            record.set_previous(previous);
        }
        Some(Made { at, record, seen, found, replaced: None })
    }

    fn fill(&self, record: Record, key: &[u8], write: &Write<V>, line_flag: u64) {
        let (value, room, expires, flags) = match write {
            Write::Put(put) => (put.bytes(), put.room, put.expires, line_flag | record::expiry_flags(put.expires)),
            Write::Delete => (&[][..], 0, NEVER, line_flag | TOMBSTONE),
        };
        if expires != NEVER {
            self.engine.expiry.watch();
        }
        if Self::WORD {
            if expires != NEVER {
                record.word_expiry(Self::KEY_WIDTH).store(expires, Relaxed);
            }
            record.write_word(&key[..Self::KEY_WIDTH], to_word(value), 0, flags);
        } else {
            record.write_bytes(key, value, room, expires, 0, flags);
        }
    }

    // ---- carry out -----------------------------------------------------------------------------------------------

    fn carry_out(&self, pin: &Pin<'_>, changes: &[Change<'_, K, V>]) {
        for change in changes {
            if let Plan::Append(made) = &change.plan {
                self.publish_made(pin, change, made);
            }
        }
        for change in changes {
            if let Plan::InPlace(at, record) = change.plan {
                self.change_in_place(pin, change, at, record);
            }
            pin.slot.count(if let Write::Delete = change.write { Counter::Delete } else { Counter::Put }, 1);
        }
    }

    fn make_anyway(&self, pin: &Pin<'_>, change: &Change<'_, K, V>) -> Made {
        let made = self.make(pin, change.touched, change.write, |bytes| self.engine.log.allocate_anyway(pin.slot, bytes));
        made.unwrap_or_else(|| unreachable!("a place is taken whatever the budget"))
    }

    /// Makes the index lead to a record, or to another one like it.
    fn publish_made(&self, pin: &Pin<'_>, change: &Change<'_, K, V>, made: &Made) {
        let publish =
            |made: &Made| self.try_to_publish(pin, change.held, change.touched.hash, &made.seen, &made.found, made.at, made.record);
        let (mut published, mut at, mut record) = (publish(made), made.at, made.record);
        while !matches!(published, Published::Done) {
            let led = if let Published::Changed = published {
                record.set_previous(0);
                self.lead(pin, change.touched, at, record)
            } else {
                self.engine.give_up(pin, record);
                None
            };
            let again = led.unwrap_or_else(|| self.make_anyway(pin, change));
            (published, at, record) = (publish(&again), again.at, again.record);
        }
        if let Some(replaced) = made.replaced
            && !Self::WORD
        {
            replaced.header().fetch_or(SEALED, Release);
        }
    }

    fn change_in_place(&self, pin: &Pin<'_>, change: &Change<'_, K, V>, at: u64, record: Record) {
        let latched = (!Self::WORD).then(|| record.latch());
        match (change.write, &latched) {
            (Write::Put(put), Some(latched)) => self.replace_in_place(pin, latched, put.bytes()),
            (Write::Put(put), None) => record.word_value(Self::KEY_WIDTH).store(to_word(put.bytes()), Release),
            (Write::Delete, _) => {
                record.header().fetch_or(TOMBSTONE, Release);
                pin.slot.count(Counter::DeadByte, record.bytes(self.engine.layout));
                self.leave_place(pin, change.touched.hash, at, record);
            }
        }
    }
}
