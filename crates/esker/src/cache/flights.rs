//! Loads under way: one for each key, however many ask.
//!
//! Whoever asks first *leads*: it loads, puts, and lands. Who asks meanwhile *waits*, on a condition variable or as a future, and gets a
//! copy of what landed, value or failure. A leader that is gone without landing (a panic, a future dropped) lands `Lost`: who waited asks
//! again, and one of them leads. So does who asks when the key was deleted since the load began: what it brings may be older than his own
//! deletion. What a load brings that begins while its key is being deleted, or given an end, is shared by those who ask meanwhile, and not
//! kept. What a cache drops while its key is loaded may be newer than what that brings, as a deletion is. The table is striped by hash;
//! nothing is held while anybody loads.
//!
//! **Rests**: nobody loads a key for a while, because it was found to have no value, or because to load it anew failed. A hint, of which
//! there is room for a mebibyte in all; a clock that is set back to before it began ends it. When a stripe's part is full, those that are
//! over go, and if that is not enough half of the others.

use super::Duty;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Mutex, MutexGuard, lock, wake};
use crate::types::Value;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex as Waited, MutexGuard as WaitedGuard};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};

const STRIPES: usize = 64;

/// What the rests of a stripe may take, and what one does besides its key: a place of 41 bytes in a table that may be half empty.
const RESTS_BYTES_MAX: usize = (1 << 20) / STRIPES;
const REST_BYTES: usize = 96;

#[derive(Default)]
struct Board {
    flights: HashMap<Box<[u8]>, Arc<Flight>>,
    /// Hashes of keys that are being deleted, or given an end, each as often as that goes on.
    ending: Vec<u64>,
    /// From when until when.
    rests: HashMap<Box<[u8]>, (Rest, Range<u64>)>,
    rests_bytes: usize,
    /// Nobody begins to load any more.
    is_closed: bool,
}

type Stripe = Mutex<Board>;

/// The table of loads.
pub(crate) struct Flights {
    stripes: Box<[Stripe]>,
    /// Something was loaded, or is.
    is_used: AtomicBool,
    /// So many loads.
    under_way: AtomicU64,
    /// Some key rests, or did.
    has_rests: AtomicBool,
}

/// Why nobody loads a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// There is no value.
    Absent,
    /// There is one still, and to load it anew failed.
    Failed,
}

/// What a flight brought.
#[derive(Clone)]
pub(crate) enum Landed {
    Value(Arc<[u8]>),
    Absent,
    Failed(Error),
    /// Nobody knows: ask again.
    Lost,
}

#[derive(Default)]
struct State {
    landed: Option<Landed>,
    /// The thread on which the loader is at work.
    loads_on: Option<ThreadId>,
    /// Of those who wait, by number.
    wakers: Vec<(u64, Waker)>,
    waiters: u64,
}

pub(crate) struct Flight {
    state: Waited<State>,
    came: Condvar,
    hash: u64,
    /// The key was deleted meanwhile, or dropped: what is brought may be no longer so.
    is_outdated: AtomicBool,
    /// It began while the key was being deleted: who asks meanwhile shares what is brought, but it is not kept.
    keeps_nothing: bool,
    /// Held during an attempt to keep what was loaded. Not the board's lock: an attempt may have to wait for a record's latch.
    keeping: Mutex<()>,
}

/// How a caller takes part.
pub(crate) enum Joined<'f> {
    Leads(Lead<'f>),
    Waits(Arc<Flight>),
}

/// A key is being deleted, or given an end: what loads bring that begin before this is dropped is not kept.
#[must_use]
pub(crate) struct Ending<'f> {
    stripe: &'f Stripe,
    hash: u64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut board = lock(self.stripe);
        if let Some(at) = board.ending.iter().position(|hash| *hash == self.hash) {
            board.ending.swap_remove(at);
        }
        // Who asks from now on may have made the deletion himself.
        let begun_meanwhile = board.flights.values().filter(|flight| flight.hash == self.hash);
        begun_meanwhile.for_each(|flight| flight.is_outdated.store(true, Relaxed));
    }
}

/// The leader's duty to land.
pub(crate) struct Lead<'f> {
    stripe: &'f Stripe,
    flights: &'f Flights,
    key: Box<[u8]>,
    flight: Arc<Flight>,
    /// What it lands with.
    brings: Landed,
}

impl Flights {
    pub(crate) fn new() -> Self {
        let (is_used, under_way, has_rests) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
        Self { stripes: (0..STRIPES).map(|_| Mutex::default()).collect(), is_used, under_way, has_rests }
    }

    fn stripe(&self, hash: u64) -> &Stripe {
        &self.stripes[(hash >> 48) as usize % STRIPES]
    }

    /// Those who wait are told, for whoever loads may never end; and nobody begins any more.
    pub(crate) fn close(&self) {
        for stripe in &self.stripes {
            let mut board = lock(stripe);
            board.is_closed = true;
            let flights: Vec<Arc<Flight>> = board.flights.values().cloned().collect();
            drop(board);
            flights.iter().for_each(|flight| flight.land(Landed::Failed(Error::Closed)));
        }
    }

    /// Takes part in the load of a key.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn join(&self, key: &[u8], hash: u64) -> Result<Joined<'_>> {
        // Deletions look at the board from here on; and before, if they had to wait.
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, SeqCst);
        }
        let stripe = self.stripe(hash);
        let mut board = lock(stripe);
        if let Some(flight) = board.flights.get(key) {
            return Ok(Joined::Waits(flight.clone()));
        }
        if board.is_closed {
            return Err(Error::Closed);
        }
        let (is_outdated, keeping, keeps_nothing) = (AtomicBool::new(false), Mutex::new(()), board.ending.contains(&hash));
        let flight = Arc::new(Flight { state: Waited::default(), came: Condvar::new(), hash, is_outdated, keeps_nothing, keeping });
        board.flights.insert(key.into(), flight.clone());
        self.under_way.fetch_add(1, SeqCst);
        Ok(Joined::Leads(Lead { stripe, flights: self, key: key.into(), flight, brings: Landed::Lost }))
    }

    /// True from the first load on.
    #[inline(always)]
    pub(crate) fn are_used(&self) -> bool {
        self.is_used.load(SeqCst)
    }

    /// True if a load of this key is under way whose value would be kept. Next to nothing where nothing is loaded.
    pub(crate) fn may_keep(&self, key: &[u8], hash: u64) -> bool {
        // SeqCst: pairs with the one in `join`. A load that is counted later looks for the value later, too.
        self.under_way.load(SeqCst) > 0 && lock(self.stripe(hash)).flights.get(key).is_some_and(|flight| flight.may_keep())
    }

    /// A key is about to be dropped by a cache: it need not rest, and what a load brings that began before is not kept, or has been when
    /// this returns. Not under a pin.
    pub(crate) fn outdate(&self, key: &[u8], hash: u64) {
        let mut board = lock(self.stripe(hash));
        board.rest_no_more(key);
        Self::outdate_on(board, key);
    }

    /// The same of one that is about to be deleted (`deletes`), or given an end, and of loads that begin until that is done.
    pub(crate) fn begin_ending(&self, key: &[u8], hash: u64, deletes: bool) -> Ending<'_> {
        let stripe = self.stripe(hash);
        let mut board = lock(stripe);
        board.ending.push(hash);
        if deletes {
            board.rest_no_more(key);
        }
        let ending = Ending { stripe, hash };
        Self::outdate_on(board, key);
        ending
    }

    /// The same where only the rest is at an end. Next to nothing where no key rests.
    pub(crate) fn rest_no_more(&self, key: &[u8], hash: u64) {
        if self.has_rests.load(SeqCst) {
            lock(self.stripe(hash)).rest_no_more(key);
        }
    }

    fn outdate_on(board: MutexGuard<'_, Board>, key: &[u8]) {
        if let Some(flight) = board.flights.get(key).cloned() {
            flight.is_outdated.store(true, Relaxed);
            drop(board);
            drop(lock(&flight.keeping));
        }
    }

    /// The same of all keys: some of them are dropped.
    pub(crate) fn outdate_all(&self) {
        for stripe in &self.stripes {
            let mut board = lock(stripe);
            board.rests.clear();
            board.rests_bytes = 0;
            let flights: Vec<Arc<Flight>> = board.flights.values().cloned().collect();
            flights.iter().for_each(|flight| flight.is_outdated.store(true, Relaxed));
            drop(board);
            flights.iter().for_each(|flight| drop(lock(&flight.keeping)));
        }
    }

    /// True if nobody loads this key now, for this reason.
    pub(crate) fn rests(&self, key: &[u8], hash: u64, why: Rest, now: u64) -> bool {
        lock(self.stripe(hash)).rests.get(key).is_some_and(|(rest, span)| *rest == why && span.contains(&now))
    }
}

impl Board {
    fn rest(&mut self, key: &[u8], why: Rest, now: u64, until: u64) {
        let bytes = |key: &[u8]| key.len() + REST_BYTES;
        if self.rests_bytes + bytes(key) > RESTS_BYTES_MAX {
            self.rests.retain(|_, (_, span)| span.contains(&now));
            let mut count = 0;
            self.rests_bytes = self.rests.keys().map(|key| bytes(key)).sum();
            if self.rests_bytes + bytes(key) > RESTS_BYTES_MAX / 2 {
                self.rests.retain(|_, _| {
                    count += 1;
                    count % 2 == 0
                });
                self.rests_bytes = self.rests.keys().map(|key| bytes(key)).sum();
            }
        }
        // A key of 64 KiB does without.
        if self.rests_bytes + bytes(key) <= RESTS_BYTES_MAX && self.rests.insert(key.into(), (why, now..until)).is_none() {
            self.rests_bytes += bytes(key);
        }
    }

    fn rest_no_more(&mut self, key: &[u8]) {
        if self.rests.remove(key).is_some() {
            self.rests_bytes -= key.len() + REST_BYTES;
        }
    }
}

impl Lead<'_> {
    /// Has the loader do its work. While it is at it on a thread, nobody there can wait for it.
    pub(crate) async fn load<F: Future>(&self, load: impl FnOnce() -> F) -> F::Output {
        let mut load = pin!(async { load().await });
        poll_fn(|context| {
            let _at_work = AtWork::on(&self.flight);
            load.as_mut().poll(context)
        })
        .await
    }

    /// Brings everybody the value, that there is none, or the failure, and gives it back.
    pub(crate) fn finish<V: Value + ?Sized, O: Borrow<V>>(mut self, result: Result<Option<O>>) -> Result<Option<O>> {
        self.brings = match &result {
            Ok(Some(value)) => Landed::Value(value.borrow().bytes().into()),
            Ok(None) => Landed::Absent,
            Err(error) => Landed::Failed(error.clone()),
        };
        result
    }

    /// False if the key was deleted, or dropped, since the load began, or was being deleted then.
    pub(crate) fn may_keep(&self) -> bool {
        self.flight.may_keep()
    }

    /// What an attempt to keep what was loaded holds, unless the key was deleted: who deletes it from now on waits, and then finds what was
    /// put. Not under a pin.
    pub(crate) fn keep(&self) -> Option<MutexGuard<'_, ()>> {
        let keeping = lock(&self.flight.keeping);
        self.may_keep().then_some(keeping)
    }

    /// What was loaded is no longer so.
    pub(crate) fn outdate(&self) {
        self.flight.is_outdated.store(true, Relaxed);
    }

    /// Nobody loads the key until then, from now on; or anybody does again.
    pub(crate) fn set_rest(&self, rest: Option<(Rest, u64)>, now: u64) {
        if rest.is_some() {
            self.flights.has_rests.store(true, SeqCst);
        }
        let mut board = lock(self.stripe);
        match rest {
            Some((Rest::Absent, _)) if !self.may_keep() => {}
            Some((why, until)) => board.rest(&self.key, why, now, until),
            None => board.rest_no_more(&self.key),
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // First: nobody joins what has landed.
        lock(self.stripe).flights.remove(&self.key);
        self.flights.under_way.fetch_add(1u64.wrapping_neg(), SeqCst);
        self.flight.land(std::mem::replace(&mut self.brings, Landed::Lost));
    }
}

impl Flight {
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Relaxed)
    }

    fn may_keep(&self) -> bool {
        !self.keeps_nothing && !self.is_outdated()
    }

    fn land(&self, landed: Landed) {
        let mut state = self.state();
        // A close may have come before.
        state.landed.get_or_insert(landed);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.came.notify_all();
        wakers.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// Waits for what lands.
    ///
    /// # Errors
    /// `Invalid` for the leader itself, whose loader asks for what it is to load.
    pub(crate) fn wait(&self) -> Result<Landed> {
        let state = self.state();
        if state.landed.is_none() && state.loads_on == Some(thread::current().id()) {
            return Err(Error::invalid("a loader asks for the key that it is to load"));
        }
        let state = self.came.wait_while(state, |state| state.landed.is_none()).unwrap_or_else(|e| e.into_inner());
        Ok(state.landed.clone().unwrap_or(Landed::Lost))
    }

    /// The same as a future.
    pub(crate) async fn wait_async(&self) -> Landed {
        let waiter = Waiter::of(self);
        poll_fn(|context| waiter.look(context.waker())).await
    }

    fn state(&self) -> WaitedGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A future that waits. Dropped, it leaves no waker behind.
struct Waiter<'f> {
    flight: &'f Flight,
    number: u64,
}

impl<'f> Waiter<'f> {
    fn of(flight: &'f Flight) -> Self {
        let mut state = flight.state();
        state.waiters += 1;
        Self { flight, number: state.waiters }
    }

    fn look(&self, waker: &Waker) -> Poll<Landed> {
        // Foreign code, as its drop is.
        let waker = waker.clone();
        let mut state = self.flight.state();
        if let Some(landed) = &state.landed {
            return Poll::Ready(landed.clone());
        }
        let replaced = state.take_waker(self.number);
        state.wakers.push((self.number, waker));
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let taken = self.flight.state().take_waker(self.number);
        drop(taken);
    }
}

impl State {
    fn take_waker(&mut self, number: u64) -> Option<(u64, Waker)> {
        let at = self.wakers.iter().position(|(of, _)| *of == number)?;
        Some(self.wakers.swap_remove(at))
    }
}

/// The loader is at work on this thread.
struct AtWork<'f> {
    flight: &'f Flight,
    _duty: Duty,
}

impl<'f> AtWork<'f> {
    fn on(flight: &'f Flight) -> Self {
        flight.state().loads_on = Some(thread::current().id());
        Self { flight, _duty: Duty::begin() }
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.flight.state().loads_on = None;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Whatever rests, it takes no more than its part; and what came last is there.
    #[test]
    fn rests_keep_to_their_room() {
        let mut board = Board::default();
        for n in 0..100_000u64 {
            let key = vec![n as u8; (n % 300) as usize].into_iter().chain(n.to_le_bytes()).collect::<Vec<u8>>();
            board.rest(&key, Rest::Absent, 0, 1);
            assert!(board.rests.contains_key(&*key) && board.rests_bytes <= RESTS_BYTES_MAX);
            assert_eq!(board.rests_bytes, board.rests.keys().map(|key| key.len() + REST_BYTES).sum::<usize>(), "{n}");
            if n % 3 == 0 {
                board.rest_no_more(&key);
                board.rest_no_more(&key);
            }
        }
        // What is over goes first.
        board.rests.clear();
        board.rests_bytes = 0;
        (0..40u64).for_each(|n| board.rest(&n.to_le_bytes(), Rest::Failed, 0, 1 + n / 20));
        (0..1000u64).for_each(|n| board.rest(&(100 + n).to_le_bytes(), Rest::Absent, 1, 1));
        let is_there = |n: u64| board.rests.contains_key(&n.to_le_bytes()[..]);
        assert!((0..20).all(|n| !is_there(n)) && (20..40).all(is_there));
        board.rest(&[0; 64 << 10], Rest::Absent, 1, 2);
        assert!(board.rests_bytes <= RESTS_BYTES_MAX);
    }

    /// An hour back, and it would have lasted an hour longer.
    #[test]
    fn a_clock_that_is_set_back_ends_a_rest() {
        let flights = Flights::new();
        let Ok(Joined::Leads(lead)) = flights.join(b"key", 0) else { panic!("nobody else loads it") };
        lead.set_rest(Some((Rest::Absent, 110)), 100);
        assert_eq!([99, 100, 109, 110].map(|now| flights.rests(b"key", 0, Rest::Absent, now)), [false, true, true, false]);
    }
}
