//! Futures as the unkindest executor may have them: each poll has a waker of its own, of which only the newest counts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Who waits so long is told of. Nothing fails for that.
const PATIENCE: Duration = Duration::from_secs(30);

/// The waker of one poll.
struct Bell {
    is_rung: AtomicBool,
    _counted: Arc<()>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.is_rung.store(true, SeqCst);
    }
}

/// A future under way.
pub struct Task<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    /// Of the last poll.
    bell: Option<Arc<Bell>>,
    since: Instant,
}

impl<T> Task<T> {
    /// A future that nobody has polled.
    pub fn new(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task { future: Box::pin(future), bell: None, since: Instant::now() }
    }

    /// It is under way.
    #[must_use]
    pub fn was_polled(&self) -> bool {
        self.bell.is_some()
    }

    /// Nobody has woken it since it was polled.
    pub fn is_waiting(&mut self) -> bool {
        let is_waiting = self.bell.as_ref().is_some_and(|bell| !bell.is_rung.load(SeqCst));
        if is_waiting && self.since.elapsed() > PATIENCE {
            eprintln!("a future has waited for {PATIENCE:?}");
            self.since = Instant::now();
        }
        is_waiting
    }

    /// Polls it, woken or not. While its waker lives, `wakers` has another owner.
    pub fn poll(&mut self, wakers: &Arc<()>) -> Poll<T> {
        let bell = Arc::new(Bell { is_rung: AtomicBool::new(false), _counted: wakers.clone() });
        (self.bell, self.since) = (Some(bell.clone()), Instant::now());
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(bell)))
    }
}

/// Ready when it was polled so often again.
pub async fn rest(mut polls: u64) {
    let wait = |context: &mut Context<'_>| {
        context.waker().wake_by_ref();
        polls = polls.wrapping_sub(1);
        if polls == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
    };
    poll_fn(wait).await;
}
