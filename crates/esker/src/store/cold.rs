//! Changes of many keys, where the device is asked for what several of them lack at once.
//!
//! ```text
//! attempt --> done
//!   | Read        ^
//!   v             |
//! waits --> read, with others --> attempt again
//! ```
//! Where the calling thread must not wait ([`Waits::Later`]), the keys that wait become futures of their own, which a helper thread reads
//! for; a key that lacks room waits like one that lacks its record.
//!
//! **Equal keys stay in order.** A key that comes while its hash waits is put off, and so is whatever follows of that hash; they
//! have their turn, one by one, when all that waits is done. **After an error** no more is read together: what waits and comes
//! before the key that failed has its turn then.

use super::Store;
use super::step::{Known, Step};
use super::waiting::Waits;
use crate::ahead::of_stream;
use crate::descent::Held;
use crate::descent::{Places, Walk, Walked};
use crate::device::{DeviceRead, ReadSource};
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::types::{Key, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashTable;
use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

/// Keys that a batch has under way as futures: as many as the device has reads.
pub(super) const FUTURES: usize = 128;

/// The keys of a batch that are not done yet.
pub(super) struct Cold {
    waits: Waits,
    /// Those whose chains are to be read; the last one first.
    waiting: Vec<Waiting>,
    /// The hashes of all that waited, or were put off.
    hashes: HashTable<u64>,
    /// Numbers and hashes.
    put_off: Vec<(usize, u64)>,
}

struct Waiting {
    number: usize,
    hash: u64,
    /// Where its chain begins on the device, and how far that was read.
    from: u64,
    walk: Walk,
}

/// The first key, by number, that failed.
#[derive(Default)]
struct Failed(Option<(usize, Error)>);

impl Failed {
    /// True if what failed, if anything, comes behind this one.
    fn comes_behind(&self, number: usize) -> bool {
        self.0.as_ref().is_none_or(|(first, _)| number < *first)
    }

    fn note(&mut self, number: usize, error: Error) {
        if self.comes_behind(number) {
            self.0 = Some((number, error));
        }
    }

    fn or(self, count: usize) -> Result<usize> {
        self.0.map_or(Ok(count), |(_, error)| Err(error))
    }
}

impl Cold {
    pub(super) fn new(waits: Waits) -> Self {
        Self { waits, waiting: Vec::new(), hashes: HashTable::new(), put_off: Vec::new() }
    }

    /// True if the key must have its turn later, which is noted.
    #[inline(always)]
    pub(super) fn puts_off(&mut self, number: usize, hash: u64) -> bool {
        let is_late = !self.hashes.is_empty() && self.hashes.find(hash, |waits| *waits == hash).is_some();
        if is_late {
            self.put_off.push((number, hash));
        }
        is_late
    }

    /// Attempts the change of a key; should it lack what is on the device, it waits, in a batch of futures for whatever it lacks. The
    /// change's result if it is done.
    #[inline(always)]
    pub(super) fn attempt<K: Key + ?Sized, V: Value + ?Sized, T>(
        &mut self,
        store: &Store<K, V>,
        number: usize,
        hash: u64,
        attempt: impl FnMut(&mut Known) -> Result<Step<T>>,
    ) -> Result<Option<T>> {
        let attempted = match self.waits {
            Waits::Here => store.run_in_memory(&mut Known::default(), attempt)?,
            Waits::Later => store.run_at_once(attempt)?,
        };
        let from = match attempted {
            Ok(result) => return Ok(Some(result)),
            Err(from) => from,
        };
        // It was not there, or the key had been put off.
        self.hashes.insert_unique(hash, hash, |waits| *waits);
        self.waiting.push(Waiting { number, hash, from, walk: Walk::new(&store.engine, from) });
        Ok(None)
    }

    /// Goes on with all that wait until they are done. `key(number)`, `attempt(number, hash, known)`; the number of those that said yes.
    ///
    /// # Errors
    /// That of the first key, by number, that failed: all before it are done.
    pub(super) fn finish<'k, K, V, F, A>(self, store: &Store<K, V>, key: F, attempt: A) -> Result<usize>
    where
        K: Key + ?Sized,
        V: Value + ?Sized,
        F: Fn(usize) -> &'k [u8],
        A: FnMut(usize, u64, &Known) -> Result<Step<bool>>,
    {
        if self.waiting.is_empty() {
            return Ok(0);
        }
        let mut together =
            Together { store, key, attempt, cold: self, reading: Places::default(), reads: 0, failed: Failed::default(), count: 0 };
        store.engine.log.cold_device()?.read_stream(&mut together);
        store.engine.epochs.count(Counter::DeviceRead, together.reads)?;
        let Together { cold, key, mut attempt, failed, mut count, .. } = together;
        let rest = cold.waiting.iter().map(|waiting| (waiting.number, waiting.hash)).chain(cold.put_off);
        let mut rest: Vec<_> = rest.filter(|(number, _)| failed.comes_behind(*number)).collect();
        rest.sort_unstable();
        for (number, hash) in rest {
            count += usize::from(store.run(key(number), |known| attempt(number, hash, known))?);
        }
        failed.or(count)
    }
}

impl Cold {
    /// [`Cold::finish`] for futures.
    pub(super) async fn finish_async<'k, K, V, F, A>(self, store: &Store<K, V>, key: F, attempt: A) -> Result<usize>
    where
        K: Key + ?Sized,
        V: Value + ?Sized,
        F: Fn(usize) -> &'k [u8],
        A: FnMut(usize, u64, &Known) -> Result<Step<bool>>,
    {
        // One future is polled at a time: nobody waits for this.
        let attempt = Mutex::new(attempt);
        let change = async |number, hash| {
            let attempt = |known: &mut Known| attempt.lock().unwrap_or_else(|e| e.into_inner())(number, hash, known);
            (number, store.run_async(key(number), attempt).await)
        };
        let (mut count, mut failed) = (0, Failed::default());
        // In order: what comes before a key that failed is under way.
        let mut waiting = self.waiting.iter();
        let (mut under_way, mut numbers) = (FuturesUnordered::new(), BTreeSet::new());
        // What comes behind a key that failed is not waited for.
        while numbers.first().is_none_or(|first| failed.comes_behind(*first)) {
            while under_way.len() < FUTURES
                && let Some(next) = waiting.next().filter(|next| failed.comes_behind(next.number))
            {
                numbers.insert(next.number);
                under_way.push(change(next.number, next.hash));
            }
            let Some((number, said)) = under_way.next().await else { break };
            numbers.remove(&number);
            match said {
                Ok(said) => count += usize::from(said),
                Err(error) => failed.note(number, error),
            }
        }
        drop(under_way);
        for (number, hash) in self.put_off {
            if failed.comes_behind(number) {
                count += usize::from(change(number, hash).await.1?);
            }
        }
        failed.or(count)
    }
}

/// A source of device reads.
struct Together<'a, K: Key + ?Sized, V: Value + ?Sized, F, A> {
    store: &'a Store<K, V>,
    key: F,
    attempt: A,
    cold: Cold,
    reading: Places<Waiting>,
    reads: u64,
    failed: Failed,
    count: usize,
}

impl<'k, K, V, F, A> Together<'_, K, V, F, A>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    F: Fn(usize) -> &'k [u8],
    A: FnMut(usize, u64, &Known) -> Result<Step<bool>>,
{
    /// The key's chain was read to its end.
    fn attempt_again(&mut self, mut waiting: Waiting, held: Option<Held>) {
        let mut known = Known::default();
        known.set(waiting.from, held);
        match self.store.run_in_memory(&mut known, |known| (self.attempt)(waiting.number, waiting.hash, known)) {
            Ok(Ok(said)) => self.count += usize::from(said),
            Ok(Err(from)) => {
                (waiting.from, waiting.walk) = (from, Walk::new(&self.store.engine, from));
                self.cold.waiting.push(waiting);
            }
            Err(error) => self.failed.note(waiting.number, error),
        }
    }
}

impl<'k, K, V, F, A> ReadSource for Together<'_, K, V, F, A>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    F: Fn(usize) -> &'k [u8],
    A: FnMut(usize, u64, &Known) -> Result<Step<bool>>,
{
    fn next(&mut self) -> Option<DeviceRead> {
        while self.failed.0.is_none() {
            let waiting = self.cold.waiting.pop()?;
            if waiting.walk.is_over() {
                self.attempt_again(waiting, None);
                continue;
            }
            self.reads += 1;
            let walk = waiting.walk;
            return Some(walk.read(self.reading.put(waiting)));
        }
        None
    }

    fn done(&mut self, mut read: DeviceRead, result: io::Result<()>) {
        let mut waiting = self.reading.take(read.token());
        let key = (self.key)(waiting.number);
        let walked = of_stream(&read, result).and_then(|()| waiting.walk.advance(&self.store.engine, &mut read, key));
        match walked.map(Walked::held) {
            Ok(Some(held)) => self.attempt_again(waiting, held),
            Ok(None) => self.cold.waiting.push(waiting),
            Err(error) => self.failed.note(waiting.number, error),
        }
    }
}
