//! Changes of one key that depend on what it holds: a test and a change at one moment, in one attempt.
//!
//! They are read-modify-writes that may decide to leave the key alone, and need no transaction. But one: a word cannot be tested
//! and removed at one moment, for its value and the mark of its removal are two atomics. Where that is asked for, keys
//! get latches (`latches.rs`), and nobody comes between.

use super::expire::Claim;
use super::step::{Known, Step};
use super::waiting::{Waits, brought_here};
use super::{Store, to_word};
use crate::cache::Lead;
use crate::epoch::Counter;
use crate::error::Result;
use crate::record::{NEVER, TOMBSTONE};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::{Borrow, Cow};

use super::bytes::{Change, Old};

/// Names a value that a key had: the same as long as the value is, wherever it lies and after reopening too. A value that
/// changed and came back has its old version again.
///
/// 128 bits, keyed by the store; of a value of up to eight bytes under a key of one width, of 256 bytes at most, the value itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(u128);

impl Version {
    /// The version as a number, to be kept or sent elsewhere.
    #[must_use]
    pub fn to_u128(self) -> u128 {
        self.0
    }

    /// The version with this number.
    #[must_use]
    pub fn from_u128(number: u128) -> Self {
        Self(number)
    }
}

/// A pair that is to be deleted: where a version is told, only if its value still has it.
pub(crate) struct Doomed {
    pub(crate) key: Box<[u8]>,
    pub(crate) version: Option<Version>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The value of `key`, and its version for [`Store::put_if_version`].
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Cost
    /// As [`Store::get`], and a hash of the value.
    pub fn get_versioned(&self, key: &K) -> Result<Option<(V::Owned, Version)>> {
        Ok(self.get(key)?.map(|value| self.versioned(value)))
    }

    /// [`Store::get_versioned`] without waiting here for device, room or lines, as [`Store::get_async`].
    ///
    /// # Errors
    /// As [`Store::get_async`].
    pub async fn get_versioned_async(&self, key: &K) -> Result<Option<(V::Owned, Version)>> {
        Ok(self.get_async(key).await?.map(|value| self.versioned(value)))
    }

    fn versioned(&self, value: V::Owned) -> (V::Owned, Version) {
        let version = self.version_of(value.borrow().bytes());
        (value, version)
    }

    /// Sets the value of `key` if it has one of this version; true if it did. An expiry time stays, as with [`Store::rmw`].
    ///
    /// # Errors
    /// As [`Store::rmw`].
    pub fn put_if_version(&self, key: &K, version: Version, value: &V) -> Result<bool> {
        brought_here(self.put_if_version_by(Waits::Here, key, version, value))
    }

    /// [`Store::put_if_version`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn put_if_version_async(&self, key: &K, version: Version, value: &V) -> Result<bool> {
        self.put_if_version_by(Waits::Later, key, version, value).await
    }

    async fn put_if_version_by(&self, waits: Waits, key: &K, version: Version, value: &V) -> Result<bool> {
        self.change_if(waits, key, Some(value), |old| old.is_some_and(|old| self.version_of(old) == version)).await
    }

    /// Sets the value of `key` if it has none; true if it did.
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let owners: Store<str, [u8]> = Options::new().memory("16MiB").in_memory()?;
    /// assert!(owners.put_if_absent("boat", b"ada")?);
    /// assert!(!owners.put_if_absent("boat", b"ben")?);
    /// assert!(owners.compare_and_swap("boat", Some(b"ada"), None)?);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn put_if_absent(&self, key: &K, value: &V) -> Result<bool> {
        brought_here(self.change_if(Waits::Here, key, Some(value), |old| old.is_none()))
    }

    /// [`Store::put_if_absent`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn put_if_absent_async(&self, key: &K, value: &V) -> Result<bool> {
        self.change_if(Waits::Later, key, Some(value), |old| old.is_none()).await
    }

    /// Makes `new` of `expected` (`None`: no value): true if the key held just that, and holds `new` now. A value that replaces
    /// another one keeps its expiry time, as with [`Store::rmw`].
    ///
    /// # Errors
    /// As [`Store::rmw`].
    ///
    /// # Cost
    /// As [`Store::rmw`]. The first removal (`new` is `None`) in a store whose values are words of up to eight bytes
    /// makes the plain calls of that store somewhat slower, as a transaction does.
    pub fn compare_and_swap(&self, key: &K, expected: Option<&V>, new: Option<&V>) -> Result<bool> {
        brought_here(self.compare_and_swap_by(Waits::Here, key, expected, new))
    }

    /// [`Store::compare_and_swap`] without waiting here for device, room or lines, as [`Store::rmw_async`].
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn compare_and_swap_async(&self, key: &K, expected: Option<&V>, new: Option<&V>) -> Result<bool> {
        self.compare_and_swap_by(Waits::Later, key, expected, new).await
    }

    async fn compare_and_swap_by(&self, waits: Waits, key: &K, expected: Option<&V>, new: Option<&V>) -> Result<bool> {
        let expected = expected.map(V::bytes);
        self.change_if(waits, key, new, |old| old == expected).await
    }

    /// One attempt at a delete, of this version alone if there is one: then words have to be latching. Done: whether it was there.
    pub(super) fn delete_version_step(&self, key: &[u8], hash: u64, known: &Known, version: Option<Version>) -> Result<Step<bool>> {
        let Some(version) = version else { return self.delete_step(key, hash, known) };
        let test = |old: Old<'_>| old.is_some_and(|(old, _)| self.version_of(old) == version);
        match Self::WORD {
            true => self.change_word_if_step(key, hash, known, None, &|_| NEVER, &test),
            false => self.change_bytes_if_step(key, hash, known, None, &|_| NEVER, &test),
        }
    }

    pub(crate) fn version_of(&self, value: &[u8]) -> Version {
        Version(if Self::WORD { to_word(value).into() } else { self.engine.hasher.fingerprint(value) })
    }

    async fn change_if(&self, waits: Waits, key: &K, new: Option<&V>, test: impl Fn(Option<&[u8]>) -> bool) -> Result<bool> {
        let test = |old: Old<'_>| test(old.map(|(value, _)| value));
        self.change_if_by(waits, key, new, |old| old.unwrap_or(NEVER), None, test).await
    }

    /// `end`: when the new value ends, by the end of the one in whose place it is put. `lead`: of a load, whose key nobody must have
    /// deleted.
    pub(super) async fn change_if_by(
        &self,
        waits: Waits,
        key: &K,
        new: Option<&V>,
        end: impl Fn(Option<u64>) -> u64,
        lead: Option<&Lead<'_>>,
        test: impl Fn(Old<'_>) -> bool,
    ) -> Result<bool> {
        let (key, new) = (key.bytes(), new.map(V::bytes));
        Self::check_key(key)?;
        self.check_value(new.map_or(0, <[u8]>::len))?;
        if Self::WORD && new.is_none() {
            self.engine.begin_latching()?;
        }
        let hash = self.hash(key);
        let deletes = new.is_none() && lead.is_none();
        let mut ending = if deletes { self.outdate_load(key, true, || hash)? } else { None };
        self.count(if new.is_some() { Counter::Rmw } else { Counter::Delete })?;
        let attempt = |known: &mut Known| {
            let keeping = lead.map(Lead::keep);
            let step = match Self::WORD {
                _ if matches!(keeping, Some(None)) => Step::Done(false),
                true => self.change_word_if_step(key, hash, known, new.map(to_word), &end, &test)?,
                false => self.change_bytes_if_step(key, hash, known, new, &end, &test)?,
            };
            if deletes { self.seen_by_loads(step, key, hash, true, &mut ending) } else { Ok(step) }
        };
        let changed = self.run_by(waits, key, attempt).await?;
        if changed { self.written_by(waits, true).await } else { Ok(false) }
    }

    /// One attempt. Done: whether the test passed.
    fn change_bytes_if_step(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        new: Option<&[u8]>,
        end: &impl Fn(Option<u64>) -> u64,
        test: &impl Fn(Old<'_>) -> bool,
    ) -> Result<Step<bool>> {
        let mut passed = false;
        let mut decide = |old: Old<'_>| {
            passed = test(old);
            match new {
                _ if !passed => Change::Keep,
                Some(new) => Change::Set(Cow::Borrowed(new), new.len(), end(old.map(|(_, ends)| ends))),
                None => Change::Remove,
            }
        };
        let step = self.change(key, hash, known, false, &mut decide)?;
        Ok(step.then(|| passed))
    }

    /// The same for words.
    fn change_word_if_step(
        &self,
        key: &[u8],
        hash: u64,
        known: &Known,
        new: Option<u64>,
        end: &impl Fn(Option<u64>) -> u64,
        test: &impl Fn(Old<'_>) -> bool,
    ) -> Result<Step<bool>> {
        self.engine.admit_write()?;
        let pin = self.engine.epochs.pin()?;
        let Some(held) = self.engine.hold(hash) else { return Ok(Step::Again) };
        let Some((seen, found)) = self.locate_surely(key, hash) else { return Ok(Step::Again) };
        let passes = |old: Option<(u64, u64)>| {
            let old = old.map(|(value, expires)| (value.to_ne_bytes(), expires));
            test(old.as_ref().map(|(bytes, expires)| (&bytes[..Self::VALUE_WIDTH], *expires)))
        };
        if let Some(record) = self.mutable_word(&held, &found) {
            let value = record.word_value(Self::KEY_WIDTH);
            let (old, ends) = (value.load(Acquire), self.engine.expiry_of(record));
            if !passes(Some((old, ends))) {
                return Ok(Step::Done(false));
            }
            let Some(new) = new else {
                // Whoever changes the value holds the latch, and we do.
                record.header().fetch_or(TOMBSTONE, Release);
                pin.slot.count(Counter::DeadByte, record.bytes(self.engine.layout));
                return Ok(Step::Done(true));
            };
            let swapped = value.compare_exchange(old, new, AcqRel, Relaxed).is_ok();
            let next = end(Some(ends));
            // An end that others gave it meanwhile stays.
            let has_end = || next == ends || self.move_end(record, ends, next) || self.is_live(record);
            return Ok(if swapped && has_end() { Step::Done(true) } else { Step::Again });
        }
        let old = match self.old_word(&found, known) {
            Step::Done(_) if !self.is_sure(&seen, &found) => return Ok(Step::Again),
            Step::Done(old) => old,
            missing => return Ok(missing.then(|| false)),
        };
        let expires = end(old.map(|(_, ends)| ends));
        match (passes(old), old, new) {
            (false, None, _) if !self.is_absent_still(hash, &seen, &found) => Ok(Step::Again),
            (false, ..) => Ok(Step::Done(false)),
            (true, None, None) if self.is_deleted(&found, known) => Ok(Step::Done(true)),
            (true, old, new) => {
                let claim = if old.is_none() { self.claim_ended(&found) } else { Some(Claim::default()) };
                let Some(claim) = claim else { return Ok(Step::Again) };
                let (flags, expires) = if new.is_none() { (TOMBSTONE, NEVER) } else { (0, expires) };
                let found = found.with(&self.engine, known);
                let step = self.add_word(&pin, &held, key, hash, &seen, &found, new.unwrap_or(0), expires, flags);
                if !matches!(step, Step::Done(())) {
                    self.give_back(claim);
                }
                Ok(step.then(|| true))
            }
        }
    }
}
