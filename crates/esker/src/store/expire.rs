//! Keys with an end: how it is set, changed, taken back and asked for.
//!
//! | record is                     | its end changes                                                        |
//! |-------------------------------|------------------------------------------------------------------------|
//! | mutable, with room for an end | in place: a word by one atomic, bytes with their value, under its latch |
//! | mutable, without, bytes       | under its latch, by a new record                                       |
//! | mutable, without, a word      | it *leaves*, those who were at it are waited for, then by a new record |
//! | frozen, or on the device      | by a new record                                                        |
//!
//! A word's value changes in place without a latch, so a copy of it would lose what another thread is about to write. A record
//! that leaves (`LEAVING`: special and sealed) is changed by nobody who looks from then on; after a drain nobody is left who looked
//! before. Reads go on, puts supersede it, everybody else looks again.

use super::Store;
use super::find::{Found, Region};
use super::step::{Known, Step};
use super::waiting::{Waits, brought_here};
use crate::descent::Held;
use crate::epoch::Counter;
use crate::error::Result;
use crate::expiry::{left_millis, millis, whole_millis};
use crate::record::{ABSENT, EXPIRES, NEVER, Record};
use crate::sync::atomic::Ordering::*;
use crate::sync::{Rule, broken};
use crate::types::{Key, Value};
use std::time::{Duration, SystemTime};

/// How long a key's value stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Until it is changed.
    Forever,
    /// So long from now on, in whole milliseconds.
    Left(Duration),
}

/// A change of a key's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NewEnd {
    /// Then, in milliseconds since 1970.
    At(u64),
    /// Then, if it still has this other end.
    InsteadOf(u64, u64),
    /// Never any more.
    Never,
}

impl NewEnd {
    pub(super) fn expires(self) -> u64 {
        match self {
            Self::At(expires) | Self::InsteadOf(_, expires) => expires,
            Self::Never => NEVER,
        }
    }

    /// Whether something that ends then is changed by it.
    pub(super) fn changes(self, expires: u64) -> bool {
        match self {
            Self::At(_) => true,
            Self::InsteadOf(other, _) => expires == other,
            Self::Never => expires != NEVER,
        }
    }
}

/// A word record that left for another end, and stays after all where none came.
struct Leaving<'a, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'a Store<K, V>,
    key: &'a [u8],
    hash: u64,
    left: Option<u64>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Leaving<'_, K, V> {
    fn stay(&mut self) {
        if let Some(at) = self.left.take() {
            self.store.take_back(self.key, self.hash, at);
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Leaving<'_, K, V> {
    fn drop(&mut self) {
        self.stay();
    }
}

/// An end that has passed by any clock: of a word that is claimed, or deleted.
const LONG_AGO: u64 = 0;
/// As well: another one has found it claimed and goes by that, so it is not given back.
const RELIED_ON: u64 = 1;
/// A renewed end lies this part of the time further away, so that one renewal in so many rounds of it is enough.
const RENEWED_PART: u64 = 8;

/// A word that has ended, and whose end is ours to do with: the record, and when that was.
#[derive(Default)]
pub(super) struct Claim(Option<(Record, u64)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// True if the record is a value, now.
    #[inline(always)]
    pub(super) fn is_live(&self, record: Record) -> bool {
        record.is_plain() || self.is_special_live(record)
    }

    #[cold]
    fn is_special_live(&self, record: Record) -> bool {
        let mut expires = self.engine.expiry_of(record);
        loop {
            if record.header().load(Acquire) & ABSENT != 0 {
                return false;
            }
            let has_passed = self.engine.has_passed(expires);
            // It may have been put off in time, while the clock was asked.
            let now = self.engine.expiry_of(record);
            if !has_passed || now == expires {
                return !has_passed;
            }
            expires = now;
        }
    }

    /// True if a chain that leads where it led still holds what was found there on the device: it has not ended, nor gone from a cache.
    fn has_stayed(&self, held: &Held) -> bool {
        held.at >= self.engine.log.bounds.copied.load(Acquire) && !self.engine.has_passed(held.expires)
    }

    /// What a chain on the device is known to hold, for who builds on it. Under a pin.
    pub(super) fn still<'k>(&self, known: &'k Known, at: u64) -> Step<Option<&'k Held>> {
        match known.at(at) {
            None => Step::Read(at),
            Some(held) => match held.filter(|held| self.has_stayed(held)) {
                Some(held) if self.is_dropped_soon(held.at) => Step::Again,
                held => Step::Done(held),
            },
        }
    }

    pub(super) fn end_after(&self, ttl: Duration) -> u64 {
        self.engine.expiry.end_after(ttl)
    }

    /// Sets the value of `key`, whatever it was, for this long: from then on the key is absent, as if deleted, and its space comes
    /// back by itself. To the millisecond, never early; a `ttl` of zero has passed already.
    ///
    /// A later [`Store::put`] makes the value stay again; [`Store::rmw`] and [`Store::append`] leave its end as it is.
    ///
    /// # Errors
    /// As [`Store::put`].
    ///
    /// # Cost
    /// As [`Store::put`], with eight bytes more; a word (a value of at most eight bytes under a key of one width, of
    /// 256 at most) is always a new record.
    ///
    /// # Examples
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// use esker::{ManualClock, Options, Store, Ttl};
    ///
    /// let clock = Arc::new(ManualClock::default());
    /// let sessions: Store<str, u64> = Options::new().memory("16MiB").clock(clock.clone()).in_memory()?;
    /// sessions.put_with_ttl("ada", &7, Duration::from_secs(60))?;
    /// assert_eq!(sessions.ttl("ada")?, Some(Ttl::Left(Duration::from_secs(60))));
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(sessions.get("ada")?, None);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn put_with_ttl(&self, key: &K, value: &V, ttl: Duration) -> Result<()> {
        self.put_until(key.bytes(), value.bytes(), self.end_after(ttl))
    }

    /// A put that ends then, in milliseconds since 1970.
    pub(crate) fn put_until(&self, key: &[u8], value: &[u8], expires: u64) -> Result<()> {
        brought_here(self.put_until_by(Waits::Here, key, self.hash(key), value, expires))
    }

    async fn put_until_by(&self, waits: Waits, key: &[u8], hash: u64, value: &[u8], expires: u64) -> Result<()> {
        let mut ending = self.outdate_load(key, false, || hash)?;
        if !Self::WORD {
            self.check_put(key, value)?;
        }
        self.count(Counter::Put)?;
        let attempt = |known: &mut Known| {
            let step = match Self::WORD {
                true => self.put_word_step(key, hash, super::to_word(value), expires)?,
                false => self.put_bytes_step(key, hash, known, value, expires)?.then(|| ()),
            };
            self.seen_by_loads(step, key, hash, false, &mut ending)
        };
        self.run_by(waits, key, attempt).await?;
        self.written_by(waits, ()).await
    }

    /// [`Store::put_with_ttl`] without waiting here for device, room or lines, as [`Store::put_async`].
    ///
    /// # Errors
    /// As [`Store::put_async`].
    pub async fn put_with_ttl_async(&self, key: &K, value: &V, ttl: Duration) -> Result<()> {
        let (key, value, expires) = (key.bytes(), value.bytes(), self.end_after(ttl));
        self.put_until_by(Waits::Later, key, self.hash(key), value, expires).await
    }

    /// From `end` on `key` is absent, to the millisecond; true if it has a value now. An `end` that has passed deletes it.
    ///
    /// If an older expiry of the key passes while this call runs, the call may take effect as if it had happened at its start.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Cost
    /// In place if the value had an end before, else a new record with a copy of the value.
    pub fn expire_at(&self, key: &K, end: SystemTime) -> Result<bool> {
        let expires = millis(end);
        if self.engine.has_passed(expires) {
            return self.delete(key);
        }
        brought_here(self.change_end(Waits::Here, key.bytes(), NewEnd::At(expires)))
    }

    /// [`Store::expire_at`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn expire_at_async(&self, key: &K, end: SystemTime) -> Result<bool> {
        let expires = millis(end);
        if self.engine.has_passed(expires) {
            return self.delete_async(key).await;
        }
        self.change_end(Waits::Later, key.bytes(), NewEnd::At(expires)).await
    }

    /// Takes the expiry of `key` back: it stays. True if it has a value and had an expiry.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Cost
    /// As [`Store::expire_at`].
    pub fn persist(&self, key: &K) -> Result<bool> {
        brought_here(self.change_end(Waits::Here, key.bytes(), NewEnd::Never))
    }

    /// [`Store::persist`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn persist_async(&self, key: &K) -> Result<bool> {
        self.change_end(Waits::Later, key.bytes(), NewEnd::Never).await
    }

    /// The value of `key`. If it expires, its expiry is put off until `ttl` from now at least: what is read again and again stays
    /// (sliding expiration). An expiry that is later than that stays as it is, and a key that has none gets none.
    ///
    /// So that not each read is a write, the expiry is moved to 9/8 of `ttl` from now, and then left alone until less than `ttl` remains.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Cost
    /// About three gets; besides, at most eight times in `ttl`, that of [`Store::expire_at`].
    ///
    /// # Examples
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// use esker::{ManualClock, Options, Store};
    ///
    /// let clock = Arc::new(ManualClock::default());
    /// let sessions: Store<str, u64> = Options::new().memory("16MiB").clock(clock.clone()).in_memory()?;
    /// let minute = Duration::from_secs(60);
    /// sessions.put_with_ttl("ada", &7, minute)?;
    /// for _ in 0..10 {
    ///     clock.advance(minute / 2);
    ///     assert_eq!(sessions.get_and_renew("ada", minute)?, Some(7));
    /// }
    /// clock.advance(minute * 2);
    /// assert_eq!(sessions.get_and_renew("ada", minute)?, None);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn get_and_renew(&self, key: &K, ttl: Duration) -> Result<Option<V::Owned>> {
        brought_here(self.get_and_renew_by(Waits::Here, key, ttl))
    }

    /// [`Store::get_and_renew`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn get_and_renew_async(&self, key: &K, ttl: Duration) -> Result<Option<V::Owned>> {
        self.get_and_renew_by(Waits::Later, key, ttl).await
    }

    async fn get_and_renew_by(&self, waits: Waits, key: &K, ttl: Duration) -> Result<Option<V::Owned>> {
        loop {
            let ends = self.ends_by(waits, key).await?;
            let value = match waits {
                Waits::Here => self.get(key)?,
                Waits::Later => self.get_async(key).await?,
            };
            // The value is the one that has this end, or another one that was put to end at the same time.
            if self.ends_by(waits, key).await? == ends && self.renew(waits, key.bytes(), ends, ttl).await? {
                return Ok(value);
            }
        }
    }

    /// Puts the end of a key off, if it is near enough. False if it is another one by now.
    async fn renew(&self, waits: Waits, key: &[u8], ends: Option<u64>, ttl: Duration) -> Result<bool> {
        let end = self.end_after(ttl);
        match ends.filter(|ends| *ends < end) {
            Some(ends) => {
                let end = NewEnd::InsteadOf(ends, end.saturating_add(whole_millis(ttl) / RENEWED_PART));
                self.change_end(waits, key, end).await
            }
            None => Ok(true),
        }
    }

    /// When the value of `key` ends; `None` if it has none.
    pub(super) async fn ends_by(&self, waits: Waits, key: &K) -> Result<Option<u64>> {
        let (key, hash) = (key.bytes(), self.hash(key.bytes()));
        self.run_by(waits, key, |known| self.ttl_step(key, hash, known)).await
    }

    async fn change_end(&self, waits: Waits, key: &[u8], end: NewEnd) -> Result<bool> {
        if !Self::WORD {
            Self::check_key(key)?;
        }
        let hash = self.hash(key);
        let ends = matches!(end, NewEnd::At(_));
        let mut ending = if ends { self.outdate_load(key, false, || hash)? } else { None };
        let mut seen = |step| if ends { self.seen_by_loads(step, key, hash, false, &mut ending) } else { Ok(step) };
        let changed = if Self::WORD {
            let mut leaving = Leaving { store: self, key, hash, left: None };
            let attempt = |known: &mut Known| {
                let step = seen(self.end_word_step(key, hash, known, end, &mut leaving.left)?)?;
                // A future may wait for as long as it likes, and those who meet the record would wait for it.
                if matches!((waits, &step), (Waits::Later, Step::Again | Step::Read(_) | Step::Room(_))) {
                    leaving.stay();
                }
                Ok(step)
            };
            let changed = self.run_by(waits, key, attempt).await?;
            // Another one has taken its place.
            leaving.left = None;
            changed
        } else {
            self.run_by(waits, key, |known| seen(self.end_bytes_step(key, hash, known, end)?)).await?
        };
        self.written_by(waits, changed).await
    }

    /// How long the value of `key` stays; `None` if it has none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn ttl(&self, key: &K) -> Result<Option<Ttl>> {
        brought_here(self.ttl_by(Waits::Here, key))
    }

    /// [`Store::ttl`] without waiting here for device, room or lines, as [`Store::get_async`].
    ///
    /// # Errors
    /// As [`Store::get_async`].
    pub async fn ttl_async(&self, key: &K) -> Result<Option<Ttl>> {
        self.ttl_by(Waits::Later, key).await
    }

    async fn ttl_by(&self, waits: Waits, key: &K) -> Result<Option<Ttl>> {
        if !Self::WORD {
            Self::check_key(key.bytes())?;
        }
        let expires = self.ends_by(waits, key).await?;
        let now = self.engine.expiry.time();
        Ok(expires.filter(|expires| *expires > millis(now)).map(|expires| match expires {
            NEVER => Ttl::Forever,
            // No more than was asked for, though an end is at a whole millisecond.
            _ => Ttl::Left(Duration::from_millis(left_millis(now, expires).max(1))),
        }))
    }

    fn ttl_step(&self, key: &[u8], hash: u64, known: &mut Known) -> Result<Step<Option<u64>>> {
        let pin = self.engine.epochs.pin()?;
        if self.engine.is_held(hash) {
            return Ok(Step::Again);
        }
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        if let Found::Memory { record, .. } = found {
            return Ok(match self.is_live(record) {
                true => Step::Done(Some(self.engine.expiry_of(record))),
                false if self.leads_still(hash, &seen) => Step::Done(None),
                false => Step::Again,
            });
        }
        drop(pin);
        Ok(match self.get_step(key, hash, known)? {
            Step::Done(held) => Step::Done(held.map(|held| held.expires)),
            missing => missing.then(|| None),
        })
    }

    /// One attempt at another end for a word. `left`: the record that left for it. Done: whether there was a value that it changed.
    fn end_word_step(&self, key: &[u8], hash: u64, known: &Known, end: NewEnd, left: &mut Option<u64>) -> Result<Step<bool>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(hold) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        let old = match found {
            // Nobody has written it since the drain.
            Found::Memory { at, record } if *left == Some(at) => Step::Done(self.held_word(record)),
            Found::Memory { at, record } if matches!(self.region(at), Region::Mutable) && self.is_live(record) => {
                if record.header().load(Acquire) & EXPIRES != 0 {
                    let held = record.word_expiry(Self::KEY_WIDTH);
                    let expires = held.load(Acquire);
                    if self.engine.has_passed(expires) {
                        return Ok(Step::Again);
                    }
                    if !end.changes(expires) {
                        return Ok(Step::Done(false));
                    }
                    return Ok(if self.move_end(record, expires, end.expires()) { Step::Done(true) } else { Step::Again });
                }
                if !end.changes(NEVER) {
                    return Ok(Step::Done(false));
                }
                if !record.leave() {
                    return Ok(Step::Again);
                }
                *left = Some(at);
                return Ok(Step::Drain);
            }
            _ => self.old_word(&found, known),
        };
        match old {
            Step::Done(_) if !self.is_sure(&seen, &found) => Ok(Step::Again),
            Step::Done(Some((_, expires))) if !end.changes(expires) => Ok(Step::Done(false)),
            Step::Done(Some((value, _))) => {
                let found = found.with(&self.engine, known);
                let step = self.add_word(&pin, &hold, key, hash, &seen, &found, value, end.expires(), 0);
                if let (Step::Room(_), Found::Memory { at, record }) = (&step, &found) {
                    // Nobody waits while a record leaves: who makes room may tell a listener, which may wait for this key.
                    left.take_if(|left| left == at).inspect(|at| self.let_stay(key, hash, *at, *record));
                }
                Ok(step.then(|| true))
            }
            Step::Done(None) if !self.is_absent_still(hash, &seen, &found) => Ok(Step::Again),
            Step::Done(None) => Ok(Step::Done(false)),
            missing => Ok(missing.then(|| false)),
        }
    }

    /// A mutable word that has an end, this one, is to have another. False to look again: of the end that was seen not to have passed, for
    /// somebody may have claimed it since (`claim_ended`).
    pub(super) fn move_end(&self, record: Record, from: u64, to: u64) -> bool {
        self.engine.expiry.watch_for(to);
        record.word_expiry(Self::KEY_WIDTH).compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Where nothing is found because it has ended: nobody puts off its end any more, before it is deleted or what takes its place is
    /// there. `None` to look again.
    pub(super) fn claim_ended(&self, found: &Found) -> Option<Claim> {
        let Found::Memory { at, record } = found else { return Some(Claim(None)) };
        let header = record.header().load(Acquire);
        if header & EXPIRES == 0 || header & ABSENT != 0 || broken(Rule::EndsAreClaimed) {
            return Some(Claim(None));
        }
        match self.region(*at) {
            Region::Mutable => {}
            // Who found it mutable may still put off its end.
            Region::Fuzzy => return None,
            // Who puts off its end now makes a record of his own.
            Region::Frozen => return Some(Claim(None)),
        }
        let held = record.word_expiry(Self::KEY_WIDTH);
        let expires = held.load(Acquire);
        if !self.engine.has_passed(expires) {
            return None;
        }
        let claimed = match expires {
            RELIED_ON => return Some(Claim(None)),
            LONG_AGO => RELIED_ON,
            _ => LONG_AGO,
        };
        held.compare_exchange(expires, claimed, AcqRel, Relaxed).ok()?;
        Some(Claim((claimed == LONG_AGO).then_some((*record, expires))))
    }

    /// Nothing took its place, perhaps for want of room: it ended when it did, should a clock be set back. Unless somebody relies on the
    /// claim, who found nothing there either. Under the pin of the claim.
    pub(super) fn give_back(&self, Claim(taken): Claim) {
        if let Some((record, expires)) = taken {
            let _ = record.word_expiry(Self::KEY_WIDTH).compare_exchange(LONG_AGO, expires, AcqRel, Relaxed);
        }
    }

    /// A mutable word that is about to be deleted ends now, if it ends at all: of those who end it one alone is told so. False to look
    /// again.
    pub(super) fn end_now(&self, record: Record) -> bool {
        if record.header().load(Acquire) & EXPIRES == 0 {
            return true;
        }
        let held = record.word_expiry(Self::KEY_WIDTH);
        let expires = held.load(Acquire);
        !self.engine.has_passed(expires) && held.compare_exchange(expires, LONG_AGO, AcqRel, Relaxed).is_ok()
    }

    /// What a word record holds now. Under a pin.
    pub(super) fn held_word(&self, record: Record) -> Option<(u64, u64)> {
        let value = record.word_value(Self::KEY_WIDTH).load(Acquire);
        self.is_live(record).then(|| (value, self.engine.expiry_of(record)))
    }

    /// The record that left has not been replaced: it may be changed in place again. Where it is frozen that is nothing to
    /// anybody.
    #[cold]
    fn take_back(&self, key: &[u8], hash: u64, at: u64) {
        let Ok(_pin) = self.engine.epochs.pin_anyway() else { return };
        if matches!(self.region(at), Region::Mutable) {
            // SAFETY: mutable, so in memory, under the pin; the address was found in a chain.
            let record = unsafe { Record::new(self.engine.log.pointer(at)) };
            self.let_stay(key, hash, at, record);
        }
    }

    /// Under a pin. Not where another record has taken its place: a batch that looked this one up before would take it for the newest.
    /// Nobody publishes meanwhile, and who does so later has it leave once more.
    fn let_stay(&self, key: &[u8], hash: u64, at: u64, record: Record) {
        if matches!(self.region(at), Region::Mutable) && record.header().load(Acquire) & ABSENT == 0 {
            self.engine.index.while_it_stands(hash, |first| {
                if matches!(self.walk(first, key), Found::Memory { at: newest, .. } if newest == at) {
                    record.stay();
                }
            });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Options;

    /// Its place may be another record's soon, of the same key even: that was taken for the one that had left.
    #[test]
    fn what_was_deleted_does_not_leave() {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        store.put(&7, &1).unwrap();
        let key = 7u64.to_ne_bytes();
        let (_, Found::Memory { record, .. }) = store.locate(&key, store.hash(&key)) else { panic!("the key is in memory") };
        assert!(store.delete(&7).unwrap());
        assert!(!record.leave());
    }

    /// Who had found a word claimed put another in its place, though it had been given back and put off meanwhile.
    #[test]
    fn who_relies_on_a_claim_is_not_left_without_it() {
        let clock = std::sync::Arc::new(crate::ManualClock::default());
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).clock(clock.clone()).in_memory().unwrap();
        let key = 7u64.to_ne_bytes();
        for relies in [true, false] {
            store.put_with_ttl(&7, &1, Duration::from_millis(10)).unwrap();
            let pin = store.engine.epochs.pin().unwrap();
            let (_, found) = store.locate(&key, store.hash(&key));
            let Found::Memory { record, .. } = found else { panic!("the key is in memory") };
            let ends = record.word_expiry(8).load(Acquire);
            clock.advance(Duration::from_millis(10));
            let first = store.claim_ended(&found).unwrap();
            if relies {
                assert!(store.claim_ended(&found).unwrap().0.is_none());
                assert!(store.claim_ended(&found).unwrap().0.is_none());
            }
            store.give_back(first);
            // Somebody had seen that it had not ended.
            assert_eq!(store.move_end(record, ends, ends + 1000), !relies);
            drop(pin);
        }
    }

    /// One that was superseded while it left was taken back all the same, and a put of a batch was written into it.
    #[test]
    fn what_left_stays_only_as_the_newest() {
        let store: Store<u64, u64> = Options::new().memory("16MiB").background(false).in_memory().unwrap();
        let key = 7u64.to_ne_bytes();
        let hash = store.hash(&key);
        let newest = || {
            let pin = store.engine.epochs.pin().unwrap();
            let (_, found) = store.locate(&key, hash);
            drop(pin);
            let Found::Memory { at, record } = found else { panic!("the key is in memory") };
            (at, record)
        };
        store.put(&7, &1).unwrap();
        let (at, record) = newest();
        assert!(record.leave() && !record.leave());
        store.take_back(&key, hash, at);
        assert!(record.is_plain(), "it is the newest");
        assert!(record.leave());
        store.put(&7, &2).unwrap();
        assert_ne!(newest().0, at, "a put has taken its place");
        store.take_back(&key, hash, at);
        assert!(!record.is_plain(), "it is not the newest any more");
        assert_eq!(store.rmw(&7, |old| old.unwrap() + 1).unwrap(), 3);
    }
}
