//! The asynchronous calls: the same attempts as the blocking ones, awaiting what they lack.
//!
//! An attempt runs inside one `poll`, on whatever thread that is, and takes its pin and gives it back there. What it lacks
//! (a record on the device, room in the log) is brought by the store's helper threads (`helpers.rs`), so no executor
//! thread waits for a device. No runtime is needed.

use super::Store;
use super::step::{Known, SPINS, Step};
use crate::descent::Held;
use crate::epoch::Counter;
use crate::error::{Error, Result};
use crate::record::NEVER;
use crate::types::{Key, Value};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Where a flow that blocking and asynchronous calls share waits.
#[derive(Clone, Copy)]
pub(super) enum Waits {
    /// On its thread: its future is ready when it is first polled.
    Here,
    /// As a future.
    Later,
}

/// What a flow brings that waits on this thread.
pub(super) fn brought_here<T>(flow: impl Future<Output = T>) -> T {
    match pin!(flow).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("who waits on the thread is never pending"),
    }
}

/// Lets the executor run others once.
pub(super) async fn give_way() {
    let mut came_back = false;
    poll_fn(|context| {
        if came_back {
            return Poll::Ready(());
        }
        came_back = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Attempts until done.
    pub(super) async fn run_by<T>(&self, waits: Waits, key: &[u8], attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        match waits {
            Waits::Here => self.run(key, attempt),
            Waits::Later => self.run_async(key, attempt).await,
        }
    }

    /// Has the listener told of what left while room was made where others wait for it.
    pub(super) fn tell_departed_by(&self, waits: Waits) {
        let Some(caching) = self.engine.caching.as_ref().filter(|caching| caching.has_departed()) else { return };
        match waits {
            Waits::Here => caching.tell(),
            // Where there is no thread for it, whoever makes room next does it.
            Waits::Later => _ = self.closer.helpers.tell(&self.engine),
        }
    }

    /// The end of every writing call.
    pub(super) async fn written_by<T>(&self, waits: Waits, result: T) -> Result<T> {
        match waits {
            Waits::Here => self.written(result),
            Waits::Later => self.written_async(result).await,
        }
    }

    /// Attempts until done, as [`Store::run`] does, but never waits on this thread.
    pub(super) async fn run_async<T>(&self, key: &[u8], attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        self.run_async_from(Known::default(), key, attempt).await
    }

    /// The same with something known already. Each call of a program is a future of its own: what they wait for is not made anew for each.
    async fn run_async_from<T>(&self, mut known: Known, key: &[u8], mut attempt: impl FnMut(&mut Known) -> Result<Step<T>>) -> Result<T> {
        let mut again = 0;
        loop {
            match attempt(&mut known)? {
                Step::Done(result) => return Ok(result),
                step => self.bring_async(step.then(|| ()), key, &mut known, &mut again).await?,
            }
        }
    }

    /// Awaits what an attempt lacked, after so many in vain.
    async fn bring_async(&self, step: Step<()>, key: &[u8], known: &mut Known, again: &mut u32) -> Result<()> {
        let (engine, helpers) = (&self.engine, &self.closer.helpers);
        match step {
            Step::Done(()) => unreachable!("who is done lacks nothing"),
            Step::Again => {
                *again = again.saturating_add(1);
                if *again < SPINS { std::hint::spin_loop() } else { give_way().await }
            }
            Step::Read(at) => {
                let reply = helpers.read(engine, at, key, known.get())?;
                known.set(at, reply.await?);
            }
            Step::Room(bytes) => {
                let reply = helpers.make_room(engine, bytes)?;
                let made = reply.await;
                self.tell_departed_by(Waits::Later);
                match made {
                    Err(Error::Full) if !known.is_full => known.is_full = true,
                    made => made?,
                }
            }
            // Microseconds, or as long as the slowest closure of an `rmw`.
            Step::Drain => engine.epochs.drain(),
        }
        Ok(())
    }

    /// The end of every writing call, as [`Store::written`].
    pub(super) async fn written_async<T>(&self, result: T) -> Result<T> {
        if self.engine.is_always_durable {
            self.commit_async().await?;
        }
        Ok(result)
    }

    /// Ready when everything that had returned before this call is durable; as [`Store::commit`], without waiting here for device, room or
    /// lines. Futures that wait at the same time share the work.
    ///
    /// # Errors
    /// As [`Store::commit`]. `Closed` also when the store is closed while the future waits.
    pub async fn commit_async(&self) -> Result<()> {
        // As `commit`: the line would wait for the closure that awaits it.
        drop(self.engine.epochs.pin()?);
        let reply = self.closer.helpers.commit(&self.engine)?;
        reply.await
    }

    pub(super) async fn value_async(&self, key: &[u8], hash: u64) -> Result<Option<Held>> {
        let held = self.run_async_from(Known::of_get(hash), key, |known| self.get_step(key, hash, known)).await?;
        if held.is_none() {
            self.count(Counter::Miss)?;
        }
        Ok(held)
    }

    /// The value of `key`, as [`Store::get`], without waiting here for device, room or lines.
    ///
    /// Works under any executor. The first call that finds its key cold starts the store's reader thread, which has up to
    /// 128 reads under way together; a future that is dropped early is forgotten there.
    ///
    /// # Errors
    /// As [`Store::get`]. `Closed` also when the store is closed while the future waits.
    ///
    /// # Cost
    /// In memory as [`Store::get`]: the first poll is ready. A cold key costs its device reads and two hand-overs between
    /// threads.
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
    /// let visits: Store<str, u64> = Options::new().memory("16MiB").open_temporary()?;
    /// block_on(async {
    ///     visits.put_async("ada", &1).await?;
    ///     let now = visits.rmw_async("ada", |old| old.unwrap_or(0) + 1).await?;
    ///     assert_eq!((now, visits.get_async("ada").await?), (2, Some(2)));
    ///     assert!(visits.delete_async("ada").await?);
    ///     assert!(!visits.contains_async("ada").await?);
    ///     Ok::<(), esker::Error>(())
    /// })?;
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub async fn get_async(&self, key: &K) -> Result<Option<V::Owned>> {
        self.get_bytes_async(key.bytes(), V::own).await
    }

    /// What `read` makes of the value of `key`; as [`Store::get_with`], without waiting here for device, room or lines. It runs inside a
    /// poll, on a copy.
    ///
    /// # Errors
    /// As [`Store::get_async`].
    pub async fn get_with_async<R>(&self, key: &K, read: impl FnOnce(V::View<'_>) -> R) -> Result<Option<R>> {
        self.get_bytes_async(key.bytes(), |bytes| read(V::view(bytes))).await
    }

    async fn get_bytes_async<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        if !Self::WORD {
            Self::check_key(key)?;
        }
        let hash = self.hash(key);
        if Self::WORD
            && let Some(word) = self.get_word_at_once(key, hash)
        {
            return Ok(Some(read(&word.to_ne_bytes()[..Self::VALUE_WIDTH])));
        }
        if !Self::WORD {
            self.count(Counter::Get)?;
        }
        Ok(self.value_async(key, hash).await?.map(|held| read(&held.value)))
    }

    /// True if `key` has a value; as [`Store::contains`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Store::get_async`].
    pub async fn contains_async(&self, key: &K) -> Result<bool> {
        Ok(self.get_async(key).await?.is_some())
    }

    /// Sets the value of `key`, as [`Store::put`], without waiting here for device, room or lines: where the log needs room, a helper
    /// thread of the store makes it.
    ///
    /// A future that is dropped before it was ready has put the value or not.
    ///
    /// # Errors
    /// As [`Store::put`]. `Closed` also when the store is closed while the future waits.
    pub async fn put_async(&self, key: &K, value: &V) -> Result<()> {
        let (key, value) = (key.bytes(), value.bytes());
        if !Self::WORD {
            self.check_put(key, value)?;
            let hash = self.hash(key);
            if !self.put_hashed(key, hash, value) {
                self.run_async(key, |known| self.put_bytes_step(key, hash, known, value, NEVER)).await?;
            }
            return self.written_async(()).await;
        }
        let (hash, value) = (self.hash(key), super::to_word(value));
        if !self.put_hashed(key, hash, value) {
            self.run_async(key, |_| self.put_word_step(key, hash, value, NEVER)).await?;
        }
        self.written_async(()).await
    }

    /// Sets the value of `key` to what `update` makes of the old one, as [`Store::rmw`], without waiting here for device, room or lines.
    ///
    /// `update` runs inside a poll, again when another thread was quicker; it must not use this store. A future that is
    /// dropped before it was ready has changed the value or not.
    ///
    /// # Errors
    /// As [`Store::rmw`]. `Closed` also when the store is closed while the future waits.
    pub async fn rmw_async(&self, key: &K, mut update: impl FnMut(Option<V::View<'_>>) -> V::Owned) -> Result<V::Owned> {
        let key = key.bytes();
        if !Self::WORD {
            Self::check_key(key)?;
            let hash = self.hash(key);
            if let Some(new) = self.rmw_bytes_at_once(|| self.engine.index.first_match(hash), key, &mut update) {
                return self.written_async(new).await;
            }
            let mut last = None;
            self.run_async(key, |known| self.rmw_bytes_step(key, hash, known, &mut last, &mut update)).await?;
            let new = last.unwrap_or_else(|| unreachable!("a successful update ran the closure"));
            return self.written_async(new).await;
        }
        let hash = self.hash(key);
        let mut update = |old| Self::updated_word(old, &mut update);
        let word = match self.rmw_word_at_once(key, hash, &mut update) {
            Some(word) => word,
            None => self.run_async(key, |known| self.rmw_word_step(key, hash, known, &mut update)).await?,
        };
        self.written_async(V::own(&word.to_ne_bytes()[..Self::VALUE_WIDTH])).await
    }

    /// Removes `key`, true if it had a value; as [`Store::delete`], without waiting here for device, room or lines.
    ///
    /// # Errors
    /// As [`Store::rmw_async`].
    pub async fn delete_async(&self, key: &K) -> Result<bool> {
        let key = key.bytes();
        let mut ending = self.outdate_load(key, true, || self.hash(key))?;
        if !Self::WORD {
            Self::check_key(key)?;
        }
        let hash = self.hash(key);
        if self.delete_now(hash, || self.engine.index.first_match(hash), key) {
            return Ok(true);
        }
        let was_there = self.run_async(key, |known| self.delete_attempt(key, hash, known, None, &mut ending)).await?;
        self.written_async(was_there).await
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Appends `bytes` to the value of `key` and returns the new length in bytes; as [`Store::append`], without waiting here for device,
    /// room or lines.
    ///
    /// # Errors
    /// As [`Store::append`]. `Closed` also when the store is closed while the future waits.
    pub async fn append_async(&self, key: &K, bytes: &[u8]) -> Result<usize> {
        let key = key.bytes();
        Self::check_key(key)?;
        let hash = self.hash(key);
        if let Some(length) = self.append_at_once(|| self.engine.index.first_match(hash), key, bytes) {
            return self.written_async(length).await;
        }
        let mut length = 0;
        self.run_async(key, |known| self.append_step(key, hash, known, bytes, &mut length)).await?;
        self.written_async(length).await
    }
}
