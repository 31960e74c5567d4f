//! Loads under way: one for each key, however many ask.
//!
//! Whoever asks first *leads*: it loads, puts, and lands. Who asks meanwhile *waits*, on a condition variable or as a future, and
//! gets a copy of what landed, value or failure. A leader that is gone without landing (a panic, a future dropped) lands `Lost`:
//! who waited asks again, and one of them leads. The table is striped by hash; nothing is held while anybody loads.

use crate::engine::lock;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::types::Value;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex as Waited};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};

const STRIPES: usize = 64;

type Stripe = Mutex<HashMap<Box<[u8]>, Arc<Flight>>>;

/// The table of loads.
pub(crate) struct Flights {
    stripes: Box<[Stripe]>,
}

/// What a flight brought.
#[derive(Clone)]
pub(crate) enum Landed {
    Value(Arc<[u8]>),
    Failed(Error),
    /// Nobody knows: ask again.
    Lost,
}

#[derive(Default)]
struct State {
    landed: Option<Landed>,
    wakers: Vec<Waker>,
}

pub(crate) struct Flight {
    state: Waited<State>,
    came: Condvar,
    leader: ThreadId,
}

/// How a caller takes part.
pub(crate) enum Joined<'f> {
    Leads(Lead<'f>),
    Waits(Arc<Flight>),
}

/// The leader's duty to land.
pub(crate) struct Lead<'f> {
    stripe: &'f Stripe,
    key: Box<[u8]>,
    flight: Arc<Flight>,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Mutex::new(HashMap::new())).collect() }
    }

    /// Takes part in the load of a key.
    pub(crate) fn join(&self, key: &[u8], hash: u64) -> Joined<'_> {
        let stripe = &self.stripes[(hash >> 48) as usize % STRIPES];
        let mut flights = lock(stripe);
        if let Some(flight) = flights.get(key) {
            return Joined::Waits(flight.clone());
        }
        let flight = Arc::new(Flight { state: Waited::default(), came: Condvar::new(), leader: thread::current().id() });
        flights.insert(key.into(), flight.clone());
        Joined::Leads(Lead { stripe, key: key.into(), flight })
    }
}

impl Lead<'_> {
    /// Brings everybody the value, or the failure, and gives it back.
    pub(crate) fn finish<V: Value + ?Sized, O: Borrow<V>>(self, result: Result<O>) -> Result<O> {
        self.flight.land(match &result {
            Ok(value) => Landed::Value(value.borrow().bytes().into()),
            Err(error) => Landed::Failed(error.clone()),
        });
        result
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        lock(self.stripe).remove(&self.key);
        self.flight.land(Landed::Lost);
    }
}

impl Flight {
    /// The first one counts.
    fn land(&self, landed: Landed) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.landed.get_or_insert(landed);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.came.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for what lands.
    ///
    /// # Errors
    /// `Invalid` for the leader itself, whose loader asks for what it is to load.
    pub(crate) fn wait(&self) -> Result<Landed> {
        if self.leader == thread::current().id() {
            return Err(Error::invalid("a loader asks for the key that it is to load"));
        }
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let state = self.came.wait_while(state, |state| state.landed.is_none()).unwrap_or_else(|e| e.into_inner());
        Ok(state.landed.clone().unwrap_or(Landed::Lost))
    }

    /// The same as a future.
    pub(crate) async fn wait_async(&self) -> Landed {
        poll_fn(|context| {
            let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(landed) = &state.landed {
                return Poll::Ready(landed.clone());
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
