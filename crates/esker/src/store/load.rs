//! Values that are loaded when they are missed, once for each key at a time.

use super::Store;
use crate::cache::{Joined, Landed};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering::*;
use crate::types::{Key, Value};
use std::borrow::Borrow;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The value of `key`; if it has none, what `load` brings, which is put. Of all who ask for the same key at the same time
    /// one loads, the others wait for it. Works in every store; most useful in a cache.
    ///
    /// A failure reaches all who wait, and the next call loads again. If `load` panics the panic goes on here, and one of those
    /// who wait loads instead. `load` runs outside the store and may use it, but not ask it for the same key.
    ///
    /// # Errors
    /// `Load` with what `load` failed with; as [`Store::get`] and [`Store::put`].
    ///
    /// # Cost
    /// A hit costs a `get`. A miss takes a lock of its key's stripe, twice.
    pub fn get_or_insert_with<E: Into<BoxedError>>(
        &self,
        key: &K,
        load: impl FnOnce() -> std::result::Result<V::Owned, E>,
    ) -> Result<V::Owned> {
        let mut load = Some(load);
        loop {
            if let Some(value) = self.get(key)? {
                return Ok(value);
            }
            match self.closer.flights.join(key.bytes(), self.hash(key.bytes())) {
                Joined::Waits(flight) => match flight.wait()? {
                    Landed::Value(value) => return Ok(V::own(&value)),
                    Landed::Failed(error) => return Err(error),
                    Landed::Lost => {}
                },
                Joined::Leads(lead) => {
                    // Another flight may have landed since we looked.
                    let found = self.get(key);
                    if let Ok(None) = found {
                        let load = load.take().unwrap_or_else(|| unreachable!("who leads returns"));
                        let begun = Instant::now();
                        let loaded = load();
                        return lead
                            .finish::<V, _>(self.loaded(begun, loaded).and_then(|value| self.put(key, value.borrow()).map(|()| value)));
                    }
                    return lead.finish::<V, _>(found.map(|value| value.unwrap_or_else(|| unreachable!("there is one"))));
                }
            }
        }
    }

    /// [`Store::get_or_insert_with`] without ever blocking this thread.
    ///
    /// The future of the one that loads may be dropped: another one that waits loads instead. Whoever awaits, inside `load`, the
    /// same key waits for ever.
    ///
    /// # Errors
    /// As [`Store::get_or_insert_with`].
    pub async fn get_or_insert_with_async<E: Into<BoxedError>, F: Future<Output = std::result::Result<V::Owned, E>>>(
        &self,
        key: &K,
        load: impl FnOnce() -> F,
    ) -> Result<V::Owned> {
        let mut load = Some(load);
        loop {
            if let Some(value) = self.get_async(key).await? {
                return Ok(value);
            }
            match self.closer.flights.join(key.bytes(), self.hash(key.bytes())) {
                Joined::Waits(flight) => match flight.wait_async().await {
                    Landed::Value(value) => return Ok(V::own(&value)),
                    Landed::Failed(error) => return Err(error),
                    Landed::Lost => {}
                },
                Joined::Leads(lead) => {
                    let found = self.get_async(key).await;
                    if let Ok(None) = found {
                        let load = load.take().unwrap_or_else(|| unreachable!("who leads returns"));
                        let begun = Instant::now();
                        let result = match self.loaded(begun, load().await) {
                            Ok(value) => self.put_async(key, value.borrow()).await.map(|()| value),
                            Err(error) => Err(error),
                        };
                        return lead.finish::<V, _>(result);
                    }
                    return lead.finish::<V, _>(found.map(|value| value.unwrap_or_else(|| unreachable!("there is one"))));
                }
            }
        }
    }

    /// Counts a load.
    fn loaded<E: Into<BoxedError>>(&self, begun: Instant, loaded: std::result::Result<V::Owned, E>) -> Result<V::Owned> {
        let loads = &self.engine.loads;
        loads.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        loads.count.fetch_add(1, Relaxed);
        loaded.map_err(|error| {
            loads.failures.fetch_add(1, Relaxed);
            Error::Load(Arc::from(error.into()))
        })
    }
}
