//! The asynchronous calls of transactions: the same steps as the blocking ones, awaiting what they lack (`store/waiting.rs`).
//!
//! Nothing is held between two polls: reads note what they saw, writes stay in the transaction, and a commit is one attempt within one
//! poll. So a future may be dropped at any time. The pauses between attempts are had from a helper thread, for there is no runtime to
//! ask for a timer.

use super::super::Store;
use super::super::waiting::give_way;
use super::Transaction;
use super::backoff::{Backoff, Pause};
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::types::{Key, Value};
use std::borrow::Borrow;

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Runs `body` in a transaction and commits it, as [`Store::transaction`], without waiting here for device, room or lines, if `body`
    /// uses the asynchronous calls; a blocking one waits for what is cold.
    ///
    /// A future that is dropped before it was ready has made all the changes or none.
    ///
    /// Under an executor that requires futures to be `Send`, the compiler (1.95) refuses async closures that borrow. There use
    /// [`Store::begin`], the asynchronous calls and [`Transaction::commit_async`]: their futures are `Send`.
    ///
    /// # Errors
    /// As [`Store::transaction`]. `Closed` also when the store is closed while the future waits.
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
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").open_temporary()?;
    /// accounts.put("ada", &100)?;
    /// block_on(accounts.transaction_async(async |tx| {
    ///     let ada = tx.get_async("ada").await?.unwrap_or(0);
    ///     tx.put("ada", &(ada - 30))?;
    ///     tx.rmw_async("ben", |old| old.unwrap_or(0) + 30).await
    /// }))?;
    /// assert_eq!((accounts.get("ada")?, accounts.get("ben")?), (Some(70), Some(30)));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub async fn transaction_async<R>(&self, mut body: impl AsyncFnMut(&mut Transaction<'_, K, V>) -> Result<R>) -> Result<R> {
        let mut backoff = Backoff::default();
        loop {
            let mut transaction = self.begin()?;
            let result = match body(&mut transaction).await {
                Ok(result) => transaction.commit_async().await.map(|()| result),
                // What made the closure fail may never have been true.
                Err(error) => Err(transaction.validate_async().await.err().unwrap_or(error)),
            };
            if !matches!(result, Err(Error::Conflict { .. })) {
                return result;
            }
            match backoff.next() {
                Some(Pause::GiveWay) => give_way().await,
                Some(Pause::Rest(span)) => match self.closer.helpers.pause(&self.engine, span) {
                    Ok(rest) => rest.await?,
                    // Without a thread there is no rest; nothing has failed.
                    Err(Error::Io(_)) => give_way().await,
                    Err(error) => return Err(error),
                },
                None => return result,
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// The value of `key`, as [`Transaction::get`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Transaction::get`]. `Closed` also when the store is closed while the future waits.
    pub async fn get_async(&mut self, key: &K) -> Result<Option<V::Owned>> {
        self.read_bytes_async(key, V::own).await
    }

    /// True if `key` has a value; as [`Transaction::contains`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Transaction::get_async`].
    pub async fn contains_async(&mut self, key: &K) -> Result<bool> {
        Ok(self.read_bytes_async(key, |_| ()).await?.is_some())
    }

    /// Sets the value of `key` to what `update` makes of the old one; as [`Transaction::rmw`], without waiting here for device, room or
    /// lines.
    ///
    /// # Errors
    /// As [`Transaction::rmw`] and [`Transaction::get_async`].
    pub async fn rmw_async(&mut self, key: &K, update: impl FnOnce(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        let old = self.get_async(key).await?;
        let new = update(old.as_ref().map(|old| V::view(old.borrow().bytes())));
        let bytes = new.borrow().bytes();
        self.set(key, V::own(bytes), bytes.len(), |touched| touched.expires_if(old.is_some()))?;
        Ok(new)
    }

    /// Removes `key` when the transaction commits, true if it has a value now; as [`Transaction::delete`], without ever blocking
    /// this thread.
    ///
    /// # Errors
    /// As [`Transaction::get_async`].
    pub async fn delete_async(&mut self, key: &K) -> Result<bool> {
        let is_there = self.contains_async(key).await?;
        self.set_deleted(key, is_there)?;
        Ok(is_there)
    }

    /// Makes all changes at one moment; as [`Transaction::commit`], without waiting here for device, room or lines.
    ///
    /// A future that is dropped before it was ready has made all the changes or none.
    ///
    /// # Errors
    /// As [`Transaction::commit`]. `Closed` also when the store is closed while the future waits.
    pub async fn commit_async(self) -> Result<()> {
        self.store.change_together_async(&self.touched).await?;
        self.store.count_end(Counter::Transaction);
        Ok(())
    }

    async fn validate_async(&mut self) -> Result<()> {
        self.forget_writes();
        self.store.change_together_async(&self.touched).await
    }

    async fn read_bytes_async<R>(&mut self, key: &K, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let at = self.touch(key)?;
        let touched = &self.touched[at];
        if let Some(write) = &touched.write {
            return Ok(write.bytes(|| self.store.engine.expiry.now()).map(read));
        }
        let mut buffer = Vec::new();
        let (now, is_there) = self.store.read_witnessed_async(touched.key(), touched.hash, &mut buffer).await?;
        self.note(at, now)?;
        Ok(is_there.then(|| read(&buffer)))
    }
}

impl<K: Key + ?Sized> Transaction<'_, K, [u8]> {
    /// Appends `bytes` to the value of `key`; as [`Transaction::append`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Transaction::append`] and [`Transaction::get_async`].
    pub async fn append_async(&mut self, key: &K, bytes: &[u8]) -> Result<usize> {
        let old = self.get_async(key).await?;
        self.set_appended(key, old.as_deref(), bytes)
    }
}
