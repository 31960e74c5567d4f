//! What a transaction's read has seen, and whether it is still so.
//!
//! A read notes the version of its key's latch. Nothing changed what the key holds as long as that stands: most reads need no
//! more. But another key may share the latch, and in a long transaction surely some do. So a read also notes a *witness*: where the
//! value was and in what state. When the version has moved, the commit takes the latch and looks whether the witness still
//! speaks true. Only under the latch: a value may change and come back between two looks, a record's address may not.
//!
//! | the key held              | witness                  | the same still, if the key's newest record                   |
//! |---------------------------|--------------------------|--------------------------------------------------------------|
//! | a word, in memory         | the word, and its end    | is in memory and holds it, until then                        |
//! | bytes, in memory          | address, record version  | is that record, in memory, in that version (its end as well) |
//! | anything, on the device   | where its chain begins   | is behind the same address: cold records never change, and a |
//! |                           | and its record           | cache has not dropped it                                     |
//! | nothing                   | that                     | does not exist, or says so                                   |
//!
//! **An end** passes without anybody's hand, so no version tells of it: a read notes when what it saw ends, and holds until then; or since
//! when it was over, for a clock may be set back. A commit asks the clock once, before it looks at anything: by a later look what was
//! there all the time would have been absent.
//!
//! What was moved meanwhile (by compaction, or to the device) may be taken for changed: a conflict too many, never one too few.

use super::super::Store;
use super::super::find::Found;
use super::super::step::{Known, Step};
use crate::epoch::Counter;
use crate::error::Result;
use crate::latches::LatchNumber;
use crate::log::NOWHERE;
use crate::record::{ABSENT, NEVER, Record};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};

/// A read.
#[derive(Clone, Copy)]
pub(super) struct Read {
    /// Of the key's latch.
    pub(super) version: u64,
    pub(super) witness: Witness,
    /// When what it saw ends.
    pub(super) expires: u64,
    /// When what had ended did; 0 where nothing had.
    pub(super) since: u64,
}

impl Read {
    /// False if time has made another of it.
    pub(super) fn holds_at(&self, now: u64) -> bool {
        self.since <= now && now < self.expires
    }
}

/// What there is to see.
struct Look {
    witness: Witness,
    /// When it ends, if it is a value.
    expires: Option<u64>,
    /// As in a [`Read`].
    since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Witness {
    Word {
        word: u64,
        expires: u64,
    },
    Bytes {
        at: u64,
        version: u64,
    },
    /// `own`: where the key's record is.
    Cold {
        at: u64,
        own: u64,
    },
    Absent,
}

impl Read {
    /// True if a later read of the same key saw the same.
    pub(super) fn agrees_with(&self, later: &Self, is_cached: bool) -> bool {
        // What ended between them was there for the one and absent for the other; so was what a cache dropped, which moves no version.
        (!is_cached && self.version == later.version || self.witness == later.witness) && self.expires == later.expires
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Reads a key's value into `into` and notes what it saw; true if there is a value.
    pub(super) fn read_witnessed(&self, key: &[u8], hash: u64, into: &mut Vec<u8>) -> Result<(Read, bool)> {
        self.count(Counter::Get)?;
        self.run(key, |known| self.witness_step(key, hash, known, into))
    }

    /// The same without blocking this thread.
    pub(super) async fn read_witnessed_async(&self, key: &[u8], hash: u64, into: &mut Vec<u8>) -> Result<(Read, bool)> {
        self.count(Counter::Get)?;
        self.run_async(key, |known| self.witness_step(key, hash, known, into)).await
    }

    /// One attempt at that. Between two reads of the device nothing is held.
    pub(super) fn witness_step(&self, key: &[u8], hash: u64, known: &Known, into: &mut Vec<u8>) -> Result<Step<(Read, bool)>> {
        let pin = self.engine.epochs.pin()?;
        let (latches, number) = (&self.engine.latches, LatchNumber::of(hash));
        let Some(version) = latches.version(number) else { return Ok(Step::Again) };
        let step = self.look(key, hash, known, into);
        if !latches.stands(number, version) {
            return Ok(Step::Again);
        }
        Ok(match step {
            Step::Done(Look { witness, expires, since }) => {
                let is_there = expires.is_some();
                self.count_miss(&pin, !is_there);
                Step::Done((Read { version, witness, expires: expires.unwrap_or(NEVER), since }, is_there))
            }
            missing => missing.then(|| unreachable!("not done")),
        })
    }

    /// Under a pin.
    fn look(&self, key: &[u8], hash: u64, known: &Known, into: &mut Vec<u8>) -> Step<Look> {
        let (seen, found) = self.locate(key, hash);
        into.clear();
        let nothing_since = |since: Option<u64>| Look { witness: Witness::Absent, expires: None, since: since.unwrap_or(0) };
        let look = match found {
            Found::Memory { record, .. } if !self.is_live(record) => {
                let had_value = record.header().load(Acquire) & ABSENT == 0;
                nothing_since(had_value.then(|| self.engine.expiry_of(record)))
            }
            Found::Memory { at, record } => {
                let expires = self.engine.expiry_of(record);
                Look { witness: self.read_record(at, record, expires, into), expires: Some(expires), since: 0 }
            }
            Found::Cold { at, .. } => match self.still(known, at) {
                Step::Done(held) => {
                    into.extend_from_slice(held.map(|held| &*held.value).unwrap_or_default());
                    let ended = if held.is_none() { known.at(at).flatten() } else { None };
                    Look {
                        witness: Witness::Cold { at, own: held.map_or(NOWHERE, |held| held.at) },
                        expires: held.map(|held| held.expires),
                        since: ended.map_or(0, |ended| ended.expires),
                    }
                }
                missing => return missing.then(|| unreachable!("not done")),
            },
            Found::Absent => nothing_since(None),
        };
        if self.is_sure(&seen, &found) { Step::Done(look) } else { Step::Again }
    }

    fn read_record(&self, at: u64, record: Record, expires: u64, into: &mut Vec<u8>) -> Witness {
        if Self::WORD {
            let word = record.word_value(Self::KEY_WIDTH).load(Acquire);
            into.extend_from_slice(&word.to_ne_bytes()[..Self::VALUE_WIDTH]);
            return Witness::Word { word, expires };
        }
        record.read_value(into);
        // The caller asks whether the key's latch stood still: then this is the version that was read.
        Witness::Bytes { at, version: record.version() }
    }

    /// True if a key still holds what was seen, at the time `now`. Under a pin and the key's latch.
    pub(super) fn is_still(&self, key: &[u8], hash: u64, then: Witness, now: u64) -> bool {
        let (seen, found) = self.locate(key, hash);
        if !self.is_sure(&seen, &found) {
            return false;
        }
        if let Found::Memory { at, .. } = found
            && self.is_dropped_soon(at)
        {
            return false;
        }
        let is_live = |record: Record| record.header().load(Acquire) & ABSENT == 0 && self.engine.expiry_of(record) > now;
        match (found, then) {
            (Found::Memory { record, .. }, Witness::Absent) => !is_live(record),
            (Found::Memory { record, .. }, Witness::Word { word, expires }) => self.held_word(record) == Some((word, expires)),
            (Found::Memory { at: there, record }, Witness::Bytes { at, version }) => {
                is_live(record) && there == at && record.version() == version
            }
            (Found::Cold { at: there, .. }, Witness::Cold { at, own }) => there == at && !self.is_dropped_soon(own),
            (Found::Absent, Witness::Absent) => true,
            _ => false,
        }
    }
}
