//! Older versions of a key: what its chain leads to, below its newest record.
//!
//! Which versions there are is a matter of how changes are made. Ordinarily a change in place leaves nothing of what was before, and a
//! record that supersedes one in memory leads past it, so that chains stay short: then history has the newest version, and of
//! older ones those that were on the device when they were replaced, or that a snapshot held. With `Options::history` nothing
//! changes in place and each record leads to the one before. Either way compaction takes what was superseded, from the log's
//! beginning on, and with it the older versions: a chain descends, so what is left of it are always the newest.
//!
//! A copy (by compaction, or of a cold record that is read again) holds what its original held: neighbours that are the same are one
//! version. So is a change to the same value, for a version is of a value and not of a write.

use super::step::pause;
use super::{Store, Version};
use crate::descent;
use crate::epoch::Counter;
use crate::error::Result;
use crate::record::{ABSENT, Record};
use crate::snapshot::{Newest, View};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};

/// Versions copied under one pin.
const VERSIONS_AT_ONCE: usize = 256;

/// Where a chain goes on.
enum Next {
    Memory(u64),
    /// On the device, or 0.
    Cold(u64),
}

/// The versions found so far, the newest first; `None`: the key was absent.
struct Found {
    versions: Vec<Option<Vec<u8>>>,
    most: usize,
}

impl Found {
    /// Takes the version of a record, if it is another than the one after; true if more are wanted.
    fn add(&mut self, view: &View, header: u64, expires: u64, value: impl FnOnce() -> Vec<u8>) -> bool {
        let has_value = header & ABSENT == 0;
        // What the newest record held has ended; of older ones nobody knows whether they had when they were replaced.
        if has_value && self.versions.is_empty() && !view.is_value(header, expires) {
            self.push(None);
        }
        self.push(has_value.then(value));
        self.versions.len() < self.most
    }

    fn push(&mut self, version: Option<Vec<u8>>) {
        if self.versions.len() < self.most && self.versions.last() != Some(&version) {
            self.versions.push(version);
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The versions of `key` that still lie in the log, the newest first and at most `most` of them, each as
    /// [`Store::get_versioned`] gives it: the first is what that would answer, `None` is a deletion (or the end of what comes
    /// next), and no two neighbours are the same. Nothing at all if nothing of the key is left.
    ///
    /// With [`Options::history`](crate::Options::history) each change of the value has its version here, until compaction takes
    /// it. Without, only the newest is sure: a change in place leaves nothing behind, and what was in memory when it was replaced
    /// is not found. Versions go from the oldest on; [`Options::space_amplification`](crate::Options::space_amplification) and
    /// [`Options::background`](crate::Options::background) govern when.
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Cost
    /// A step for each version, and for each of another key whose entry is the same; on the device a read each. Holds so many
    /// values in memory.
    ///
    /// # Examples
    /// ```
    /// use esker::{Options, Store};
    ///
    /// let pages: Store<str, [u8]> = Options::new().memory("16MiB").history(true).in_memory()?;
    /// pages.put("home", b"hello")?;
    /// pages.append("home", b", world")?;
    /// pages.delete("home")?;
    /// let values: Vec<_> = pages.history("home", 4)?.into_iter().map(|version| version.map(|(value, _)| value)).collect();
    /// assert_eq!(values, [None, Some(b"hello, world".to_vec()), Some(b"hello".to_vec())]);
    /// # Ok::<(), esker::Error>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "a list of what `get_versioned` gives")]
    pub fn history(&self, key: &K, most: usize) -> Result<Vec<Option<(V::Owned, Version)>>> {
        let key = key.bytes();
        Self::check_key(key)?;
        // What is reachable now stays so until the end of this call.
        let hold = self.engine.hold_space()?;
        let mut view = hold.view();
        let mut found = Found { versions: Vec::new(), most };
        let mut attempts = 0;
        let mut from = None;
        let cold = loop {
            match self.history_in_memory(key, &view, from, &mut found)? {
                Some(Next::Memory(at)) => from = Some(at),
                Some(Next::Cold(at)) => break at,
                None => {
                    pause(&mut attempts);
                    view = hold.view();
                }
            }
        };
        if cold != 0 && found.versions.len() < most {
            descent::visit_in(&self.engine, &view, cold, key, Counter::ScanRead, |record| {
                found.add(&view, record.header, record.expires, || record.value.to_vec())
            })?;
        }
        let versioned = |value: Vec<u8>| (V::own(&value), self.version_of(&value));
        Ok(found.versions.into_iter().map(|value| value.map(versioned)).collect())
    }

    /// Some versions, from the beginning of the chain or from where it went on: who holds space finds it there. Others wait for the pin.
    /// `None` if a transaction holds the key, its bucket was moving, or its value has ended meanwhile.
    fn history_in_memory(&self, key: &[u8], view: &View, from: Option<u64>, found: &mut Found) -> Result<Option<Next>> {
        let hash = self.hash(key);
        let _pin = self.engine.epochs.pin()?;
        if from.is_none() {
            if self.engine.is_held(hash) {
                return Ok(None);
            }
            found.versions.clear();
        }
        let seen = self.engine.index.lookup(hash);
        let is_sure = || from.is_some() || self.engine.index.is_settled(&seen);
        let mut at = from.unwrap_or(seen.address());
        for _ in 0..VERSIONS_AT_ONCE {
            let end = match self.engine.newest_in(view, at, 0, |record: &Record| self.is_of(*record, key)) {
                Newest::Memory(record) => {
                    let Some(wants_more) = self.add_version(&record, view, found) else { return Ok(None) };
                    at = record.previous();
                    if wants_more {
                        continue;
                    }
                    0
                }
                Newest::Cold(at) => at,
                Newest::Nowhere { .. } => 0,
            };
            return Ok(is_sure().then_some(Next::Cold(end)));
        }
        Ok(is_sure().then_some(Next::Memory(at)))
    }

    /// The version of a record in memory: a value with its own end, as it was at one moment. `None` if the newest has ended since the call
    /// began, where another may have taken its place before. Under a pin.
    fn add_version(&self, record: &Record, view: &View, found: &mut Found) -> Option<bool> {
        loop {
            let as_found = if Self::WORD { None } else { record.as_found() };
            let (header, expires) = (record.header().load(Acquire), self.engine.expiry_of(*record));
            let value = if header & ABSENT == 0 { self.value_of(*record) } else { Vec::new() };
            if record.is_as_found(as_found) {
                let ended_meanwhile = found.versions.is_empty() && view.is_value(header, expires) && self.engine.has_passed(expires);
                return (!ended_meanwhile).then(|| found.add(view, header, expires, || value));
            }
            // Whoever changes it may run a caller's closure.
            std::thread::yield_now();
        }
    }
}
