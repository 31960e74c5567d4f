//! Values that are loaded when they are missed, or when they are about to end, once for each key at a time.
//!
//! ```text
//! put ............................ ahead ........ end
//!      everybody gets the value   | one loads it anew, the others get the value | all wait for one who loads
//! ```
//! One who is to load *leads* (`cache/flights.rs`). A load that finds no value, or fails where there is one still, lets the key rest.
//!
//! **Others write meanwhile.** What was loaded may be older than what they put, so it takes the place only of what was there when the load
//! began. A deletion leaves nothing to compare with: it marks the flight before it deletes, and waits for an attempt at the put that is
//! under way. So either that finds the mark and leaves it, or the deletion finds what was put. A cache that drops the key's value meanwhile
//! does the same: what had come in between may have been newer.

use super::Store;
use super::bytes::Old;
use super::waiting::{Waits, brought_here};
use crate::cache::{Duty, Flight, Joined, Landed, Lead, Rest};
use crate::error::{Error, Result};
use crate::expiry::whole_millis;
use crate::record::NEVER;
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a value could not be loaded anew it is left alone for this part of the time in which it should be.
const REST_PART: u64 = 16;

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// How long what is loaded stays, for [`Store::get_or_load`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loading {
    ttl: Option<Duration>,
    jitter: f64,
    ahead: Duration,
    absent: Duration,
}

impl Loading {
    /// What is loaded stays until it is changed (or a cache drops it); what has no value is asked for each time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A value that was loaded expires after this time, as by [`Store::put_with_ttl`].
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Values expire up to this part of the `ttl` (0 to 1) earlier, at random, so that what was loaded together does not expire together.
    #[must_use]
    pub fn jitter(mut self, part: f64) -> Self {
        self.jitter = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// From `span` before its expiry on a value is loaded anew: one caller does so, and the others get the present value without waiting
    /// (refresh ahead, stale while revalidate). If that load fails, or what it brings cannot be kept, its caller, too, gets the present
    /// value; until the expiry at most sixteen attempts are made in `span`. It is to be shorter than [`Loading::ttl`], or each call is
    /// within it.
    #[must_use]
    pub fn renew_ahead(mut self, span: Duration) -> Self {
        self.ahead = span;
        self
    }

    /// For this time the store remembers that the loader found no value (negative caching), for some ten thousand keys in a mebibyte of
    /// memory. A deletion of the key ([`Store::delete`], [`Store::delete_many`], in a transaction, by [`Store::compare_and_swap`]) ends
    /// that at once, also for a load that is under way: call one of them after a value was made at the source. So does a cache that drops
    /// what was put since.
    #[must_use]
    pub fn absent_ttl(mut self, ttl: Duration) -> Self {
        self.absent = ttl;
        self
    }

    /// How long the `count`th value to be loaded stays.
    fn ttl_of(&self, hash: u64, count: u64) -> Option<Duration> {
        let random = (hash ^ count).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let part = (random >> 11) as f64 / (1u64 << 53) as f64;
        self.ttl.map(|ttl| ttl.saturating_sub(ttl.mul_f64(self.jitter * part)))
    }
}

/// One call that asks for a value.
struct Asking<'a, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'a Store<K, V>,
    key: &'a K,
    loading: Loading,
    /// Whether there may be none.
    takes_absent: bool,
    waits: Waits,
}

/// What the caller found.
enum Looked<O> {
    /// It is the answer.
    Answer(Option<O>),
    /// It is to be loaded, anew if there is a value.
    Due(Option<O>),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The value of `key`; if it has none, what `load` returns, which is put. Of all callers that ask for the same key at the same time
    /// one loads, and the others wait for it. Works in every store; most useful in a cache.
    ///
    /// A failure reaches all callers that wait, and the next call loads again. If `load` panics the panic propagates to its caller, and one
    /// of those that wait loads instead. `load` runs outside the store and may use it, but must not ask it for the same key. **Two loaders
    /// that ask for each other's keys wait for ever.**
    ///
    /// # Errors
    /// `Load` with what `load` failed with; as [`Store::get`] and [`Store::put`]. (What cannot fail returns
    /// `Ok::<_, std::convert::Infallible>(value)`.)
    ///
    /// # Cost
    /// A hit costs a `get`. A miss takes a lock of its key's stripe, five times.
    pub fn get_or_insert_with<E: Into<BoxedError>>(
        &self,
        key: &K,
        load: impl FnOnce() -> std::result::Result<V::Owned, E>,
    ) -> Result<V::Owned> {
        let asking = self.asking(key, &Loading::new(), false, Waits::Here);
        let value = self.ask_here(&asking, || load().map(Some))?;
        Ok(value.unwrap_or_else(|| unreachable!("who takes no absence loads a value")))
    }

    /// The value of `key`; if it has none, or is about to expire, what `load` returns, as [`Store::get_or_insert_with`], for as long as
    /// `loading` says. `None` if `load` finds none.
    ///
    /// What happens to the key while `load` runs:
    /// * It is written: the written value stays, and is returned to all; `None` is if `load` returns that. (That the very value is written
    ///   that was there before is not noticed.)
    /// * It is deleted or given an end, or a cache drops what was put: what `load` returns is not stored, and goes to the callers that had
    ///   asked before (where an end was given they may get what is there instead).
    /// * Nothing, and `load` returns `None`: an old value is deleted.
    ///
    /// # Errors
    /// As [`Store::get_or_insert_with`]. What fails for a value that is still there is returned to nobody, be it `load`, which
    /// `Stats::loads` counts, or the store, which has no room for what was loaded, or whose disk fails: the value is, and for a while
    /// nobody tries again. That the loaded value is too long is told, and with [`Durability::Always`](crate::Durability::Always) that the
    /// disk fails.
    ///
    /// # Cost
    /// A hit costs a `get`; two with [`Loading::renew_ahead`]. A miss takes a lock of its key's stripe, five times. The first value of at
    /// most eight bytes that goes because `load` finds none makes the plain calls of the store somewhat slower, as by
    /// [`Store::compare_and_swap`].
    ///
    /// # Examples
    /// ```
    /// use esker::{Cache, Loading, Options, Store};
    /// use std::time::Duration;
    ///
    /// let users: Store<u64, str> = Options::new().memory("16MiB").cache(Cache::new()).in_memory()?;
    /// let minute = Duration::from_secs(60);
    /// let loading = Loading::new().ttl(10 * minute).jitter(0.1).renew_ahead(minute).absent_ttl(minute);
    /// let from_database = |id: u64| Ok::<_, std::io::Error>((id == 7).then(|| "Ada".to_owned()));
    /// assert_eq!(users.get_or_load(&7, &loading, || from_database(7))?.as_deref(), Some("Ada"));
    /// assert_eq!(users.get_or_load(&8, &loading, || from_database(8))?, None);
    /// assert_eq!(users.get_or_load(&8, &loading, || -> std::io::Result<_> { unreachable!("it is known") })?, None);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn get_or_load<E: Into<BoxedError>>(
        &self,
        key: &K,
        loading: &Loading,
        load: impl FnOnce() -> std::result::Result<Option<V::Owned>, E>,
    ) -> Result<Option<V::Owned>> {
        self.ask_here(&self.asking(key, loading, true, Waits::Here), load)
    }

    fn asking<'a>(&'a self, key: &'a K, loading: &Loading, takes_absent: bool, waits: Waits) -> Asking<'a, K, V> {
        Asking { store: self, key, loading: *loading, takes_absent, waits }
    }

    /// A hit goes without the flow: through that it takes twice as long.
    #[inline(always)]
    fn ask_here<E: Into<BoxedError>>(
        &self,
        asking: &Asking<'_, K, V>,
        load: impl FnOnce() -> std::result::Result<Option<V::Owned>, E>,
    ) -> Result<Option<V::Owned>> {
        let value = self.get(asking.key)?;
        if value.is_some() && asking.loading.ahead.is_zero() {
            return Ok(value);
        }
        brought_here(self.ask(asking, Some(value), || ready(load())))
    }

    /// The one flow of all of them. `seen`: what there was a moment ago, if the caller has looked.
    async fn ask<E: Into<BoxedError>, F: Future<Output = std::result::Result<Option<V::Owned>, E>>>(
        &self,
        asking: &Asking<'_, K, V>,
        mut seen: Option<Option<V::Owned>>,
        load: impl FnOnce() -> F,
    ) -> Result<Option<V::Owned>> {
        let mut load = Some(load);
        loop {
            let old = match asking.look(seen.take()).await?.0 {
                Looked::Answer(value) => return Ok(value),
                Looked::Due(old) => old,
            };
            match self.closer.flights.join(asking.key.bytes(), asking.hash())? {
                Joined::Waits(_) if old.is_some() => return Ok(old),
                Joined::Waits(flight) => {
                    // Whoever asks behind a deletion may have made it himself.
                    let is_outdated = flight.is_outdated();
                    if let (false, Some(result)) = (is_outdated, asking.landed(asking.wait(&flight).await?)) {
                        return result;
                    }
                }
                Joined::Leads(lead) => {
                    let duty = matches!(asking.waits, Waits::Here).then(Duty::begin);
                    // Another flight may have landed since we looked.
                    let (old, ends) = match asking.look(Some(asking.again().await?)).await? {
                        (Looked::Answer(value), _) => return lead.finish::<V, _>(Ok(value)),
                        (Looked::Due(old), ends) => (old, ends),
                    };
                    let load = load.take().unwrap_or_else(|| unreachable!("who leads returns"));
                    let begun = Instant::now();
                    let result = match asking.loaded(begun, lead.load(load).await) {
                        Ok(new) => asking.keep(&lead, new, old.as_ref(), ends).await,
                        Err(error) => Err(error),
                    };
                    let result = asking.finish(lead, result, old, ends).await;
                    drop(duty);
                    asking.store.tell_departed_by(asking.waits);
                    return result;
                }
            }
        }
    }

    /// [`Store::get_or_insert_with`] without waiting here for device, room or lines.
    ///
    /// The future of the one that loads may be dropped: another one that waits loads instead. Whoever awaits, inside `load`, the
    /// same key, or one whose loader awaits this one, waits for ever.
    ///
    /// # Errors
    /// As [`Store::get_or_insert_with`].
    pub async fn get_or_insert_with_async<E: Into<BoxedError>, F: Future<Output = std::result::Result<V::Owned, E>>>(
        &self,
        key: &K,
        load: impl FnOnce() -> F,
    ) -> Result<V::Owned> {
        let asking = self.asking(key, &Loading::new(), false, Waits::Later);
        let value = self.ask(&asking, None, || async { load().await.map(Some) }).await?;
        Ok(value.unwrap_or_else(|| unreachable!("who takes no absence loads a value")))
    }

    /// [`Store::get_or_load`] without waiting here for device, room or lines, as [`Store::get_or_insert_with_async`].
    ///
    /// # Errors
    /// As [`Store::get_or_load`].
    pub async fn get_or_load_async<E: Into<BoxedError>, F: Future<Output = std::result::Result<Option<V::Owned>, E>>>(
        &self,
        key: &K,
        loading: &Loading,
        load: impl FnOnce() -> F,
    ) -> Result<Option<V::Owned>> {
        self.ask(&self.asking(key, loading, true, Waits::Later), None, load).await
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Asking<'_, K, V> {
    fn hash(&self) -> u64 {
        self.store.hash(self.key.bytes())
    }

    fn now(&self) -> u64 {
        self.store.engine.expiry.now()
    }

    /// True if nobody need hear why a value was not renewed, as long as it is there. That a call is not durable is told where it is to be.
    fn is_no_news(&self, error: &Error) -> bool {
        match error {
            Error::Load(_) | Error::Full => true,
            Error::Io(_) => !self.store.engine.is_always_durable,
            _ => false,
        }
    }

    /// What there is, and when it ends, if that matters.
    async fn look(&self, seen: Option<Option<V::Owned>>) -> Result<(Looked<V::Owned>, u64)> {
        let value = match (seen, self.waits) {
            (Some(value), _) => value,
            (None, Waits::Here) => self.store.get(self.key)?,
            (None, Waits::Later) => self.store.get_async(self.key).await?,
        };
        let wants_end = value.is_some() && !self.loading.ahead.is_zero();
        let ends = if wants_end { self.store.ends_by(self.waits, self.key).await?.unwrap_or(NEVER) } else { NEVER };
        Ok((self.judge(value, ends), ends))
    }

    /// What there is by now; the get was counted.
    async fn again(&self) -> Result<Option<V::Owned>> {
        let (key, hash) = (self.key.bytes(), self.hash());
        let held = self.store.run_by(self.waits, key, |known| self.store.get_step(key, hash, known)).await?;
        Ok(held.map(|held| V::own(&held.value)))
    }

    async fn wait(&self, flight: &Flight) -> Result<Landed> {
        match self.waits {
            Waits::Here => flight.wait(),
            Waits::Later => Ok(flight.wait_async().await),
        }
    }

    /// Puts what was loaded, to stay for so long, where there still is what was there when the load began; what everybody gets. What others
    /// put meanwhile stands, and what they deleted was deleted after it.
    async fn keep(
        &self,
        lead: &Lead<'_>,
        (new, ttl): (Option<V::Owned>, Option<Duration>),
        old: Option<&V::Owned>,
        ends: u64,
    ) -> Result<Option<V::Owned>> {
        let (store, key, waits) = (self.store, self.key, self.waits);
        let Some(new) = new else {
            let Some(old) = old else { return Ok(None) };
            // It may have ended meanwhile.
            let is_unchanged = |now: Old<'_>| now.is_none_or(|now| now == (old.borrow().bytes(), ends));
            if !store.change_if_by(waits, key, None, |_| NEVER, Some(lead), is_unchanged).await? {
                lead.outdate();
            }
            return Ok(None);
        };
        // What is there must not stay older than what was just handed out.
        let expires = ttl.map_or(NEVER, |ttl| store.end_after(ttl));
        let bytes = Store::<K, V>::record_bytes_of(key.bytes(), new.borrow().bytes().len(), expires);
        if !lead.may_keep() {
            return Ok(Some(new));
        }
        if old.is_none() && !store.engine.admits_more(bytes) {
            // What was loaded is there, whatever becomes of the look.
            return Ok(self.again().await.unwrap_or(None).or(Some(new)));
        }
        // As above. Another end than it had is others' by now, and stays.
        let is_unchanged = |now: Old<'_>| now.is_none_or(|(now, _)| old.is_some_and(|old| now == old.borrow().bytes()));
        let end = |now: Option<u64>| now.filter(|now| *now != ends).unwrap_or(expires);
        if !store.change_if_by(waits, key, Some(new.borrow()), end, Some(lead), is_unchanged).await? {
            return Ok(self.again().await?.or(Some(new)));
        }
        Ok(Some(new))
    }

    fn rests(&self, why: Rest) -> bool {
        self.store.closer.flights.rests(self.key.bytes(), self.hash(), why, self.now())
    }

    fn judge(&self, value: Option<V::Owned>, ends: u64) -> Looked<V::Owned> {
        let ahead = whole_millis(self.loading.ahead);
        let is_answer = match value {
            // Most hits are one, and need not know the time.
            Some(_) => ends == NEVER || ends.saturating_sub(ahead) > self.now() || self.rests(Rest::Failed),
            None => !self.loading.absent.is_zero() && self.rests(Rest::Absent),
        };
        if is_answer { Looked::Answer(value) } else { Looked::Due(value) }
    }

    /// What came, if it is an answer.
    fn landed(&self, landed: Landed) -> Option<Result<Option<V::Owned>>> {
        match landed {
            Landed::Value(value) => Some(Ok(Some(V::own(&value)))),
            Landed::Failed(error) => Some(Err(error)),
            Landed::Absent if self.takes_absent => Some(Ok(None)),
            Landed::Absent | Landed::Lost => None,
        }
    }

    /// Counts a load; how long its value stays.
    fn loaded<E: Into<BoxedError>>(
        &self,
        begun: Instant,
        loaded: std::result::Result<Option<V::Owned>, E>,
    ) -> Result<(Option<V::Owned>, Option<Duration>)> {
        let loads = &self.store.engine.loads;
        loads.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        let ttl = self.loading.ttl_of(self.hash(), loads.count.fetch_add(1, Relaxed));
        loaded.map(|value| (value, ttl)).map_err(|error| {
            loads.failures.fetch_add(1, Relaxed);
            Error::Load(Arc::from(error.into()))
        })
    }

    /// Brings everybody what came; where there is a value still, nobody need hear that another one did not, or could not be kept. It may
    /// have gone meanwhile, or be another's.
    async fn finish(&self, lead: Lead<'_>, result: Result<Option<V::Owned>>, old: Option<V::Owned>, ends: u64) -> Result<Option<V::Owned>> {
        let now = self.now();
        let rest = match &result {
            Ok(None) if !self.loading.absent.is_zero() => Some((Rest::Absent, now.saturating_add(whole_millis(self.loading.absent)))),
            Err(error) if old.is_some() && self.is_no_news(error) => {
                Some((Rest::Failed, ends.min(now.saturating_add(whole_millis(self.loading.ahead) / REST_PART + 1))))
            }
            _ => None,
        };
        lead.set_rest(rest, now);
        match lead.finish::<V, _>(result) {
            Err(error) if old.is_some() && self.is_no_news(&error) => self.again().await?.map(Some).ok_or(error),
            result => result,
        }
    }
}
