//! Many keys at once, as futures: the batches of `batch.rs`, awaiting what they lack.
//!
//! A batch goes through memory inside one `poll`, group by group as the blocking one, and puts the keys aside that lack anything. Each of
//! those is a future of its own then, as if it had been asked for alone; [`FUTURES`] of them are under way together. Puts keep their order,
//! and await one at a time.

use super::Store;
use super::batch::{GROUP, PART};
use super::cold::FUTURES;
use super::waiting::{Waits, give_way};
use crate::descent::Held;
use crate::error::Result;
use crate::record::NEVER;
use crate::types::{Key, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::borrow::Borrow;

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// The values of many keys, as [`Store::get_many`], without waiting here for device, room or lines. `visit(i, value)` is called once
    /// for each key, in any order, inside a poll.
    ///
    /// # Errors
    /// As [`Store::get_async`], the first one met; some keys may not have been visited then.
    ///
    /// # Cost
    /// One poll looks up 4,096 keys at most; their cache misses overlap. Up to 128 of those that are cold are read at a time, each as by
    /// [`Store::get_async`].
    ///
    /// # Examples
    /// ```
    /// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake}, thread};
    /// # struct Unpark(thread::Thread);
    /// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let (mut future, waker) = (pin!(future), Arc::new(Unpark(thread::current())).into());
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(output) => return output,
    /// #             Poll::Pending => thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// use esker::{Options, Store};
    ///
    /// let squares: Store<u64, u64> = Options::new().memory("16MiB").open_temporary()?;
    /// let mut sum = 0;
    /// block_on(async {
    ///     squares.put_many_async(&[(1, 1), (2, 4), (3, 9)]).await?;
    ///     squares.get_many_async(&[1, 3, 5], |_, square| sum += square.unwrap_or(0)).await
    /// })?;
    /// assert_eq!(sum, 10);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub async fn get_many_async<Q: Borrow<K>>(&self, keys: &[Q], mut visit: impl FnMut(usize, Option<V::View<'_>>)) -> Result<()> {
        for from in (0..keys.len()).step_by(PART) {
            if from > 0 {
                give_way().await;
            }
            let until = keys.len().min(from + PART);
            let mut waiting = Vec::new();
            for first in (from..until).step_by(GROUP) {
                self.get_group(first, &keys[first..until.min(first + GROUP)], &mut visit, &mut waiting)?;
            }
            let mut waiting = waiting.into_iter();
            let mut under_way = FuturesUnordered::new();
            loop {
                let more = waiting.by_ref().take(FUTURES - under_way.len());
                under_way.extend(more.map(|get| self.numbered(get.key, keys[get.key].borrow().bytes(), get.hash)));
                let Some(read) = under_way.next().await else { break };
                let (number, held) = read?;
                visit(number, held.as_ref().map(|held| V::view(&held.value)));
            }
        }
        Ok(())
    }

    async fn numbered(&self, number: usize, key: &[u8], hash: u64) -> Result<(usize, Option<Held>)> {
        Ok((number, self.value_async(key, hash).await?))
    }

    /// Many puts, as [`Store::put_many`], without waiting here for device, room or lines. In order, also for others: they may see the first
    /// n pairs, for any n.
    ///
    /// A future that is dropped before it was ready has put the first n pairs.
    ///
    /// # Errors
    /// As [`Store::put_async`], the first one met; the pairs before it are in.
    ///
    /// # Cost
    /// One poll puts 4,096 pairs at most; the cache misses of 64 overlap.
    pub async fn put_many_async<Q: Borrow<K>, U: Borrow<V>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        for (number, part) in (1..).zip(pairs.chunks(GROUP)) {
            if number % (PART / GROUP) == 0 {
                give_way().await;
            }
            let mut group = self.fetch_group(part.iter().map(|(key, _)| key.borrow().bytes()));
            let mut next = 0;
            while let Some(i) = self.put_group(part, &mut next, &mut group)? {
                let (key, hash, value) = (part[i].0.borrow().bytes(), group.hashes[i], part[i].1.borrow().bytes());
                if Self::WORD {
                    let value = super::to_word(value);
                    self.run_async(key, |_| self.put_word_step(key, hash, value, NEVER)).await?;
                } else {
                    self.run_async(key, |known| self.put_bytes_step(key, hash, known, value, NEVER)).await?;
                }
            }
        }
        self.written_async(()).await
    }

    /// Many read-modify-writes, as [`Store::rmw_many`], without waiting here for device, room or lines. `update(i, old)` runs inside a
    /// poll, and may run again; it must not use this store.
    ///
    /// A future that is dropped before it was ready has changed any part of the values, each of them wholly or not.
    ///
    /// # Errors
    /// As [`Store::rmw_async`], that of the first key that failed; the keys before it are done, and some behind it may be.
    ///
    /// # Cost
    /// As [`Store::get_many_async`].
    pub async fn rmw_many_async<Q: Borrow<K>>(&self, keys: &[Q], update: impl FnMut(usize, Option<V::View<'_>>) -> V::Owned) -> Result<()> {
        self.rmw_many_by(Waits::Later, keys, update).await
    }

    /// Many deletes, as [`Store::delete_many`], without waiting here for device, room or lines. Returns how many keys had a value.
    ///
    /// # Errors
    /// As [`Store::delete_async`], that of the first key that failed; the keys before it are gone, and some behind it may be.
    ///
    /// # Cost
    /// As [`Store::get_many_async`].
    pub async fn delete_many_async<Q: Borrow<K>>(&self, keys: &[Q]) -> Result<usize> {
        self.delete_many_by(Waits::Later, keys).await
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Many appends, as [`Store::append_many`], without waiting here for device, room or lines. In order for equal keys.
    ///
    /// A future that is dropped before it was ready has made any part of the appends, each of them wholly or not.
    ///
    /// # Errors
    /// As [`Store::append_async`], that of the first pair that failed; the pairs before it are in, and some behind it may be.
    ///
    /// # Cost
    /// As [`Store::get_many_async`].
    pub async fn append_many_async<Q: Borrow<K>, U: AsRef<[u8]>>(&self, pairs: &[(Q, U)]) -> Result<()> {
        self.append_many_by(Waits::Later, pairs).await
    }
}
