//! With the feature `rayon`: a scan as a parallel iterator.
//!
//! A scan's threads take its parts in turns ([`Way::work`]), so the work need not be divided beforehand: rayon splits a *number of
//! shares*, and each share is one thread's work, whichever parts it comes by. Shares that begin late find little left.
//!
//! **Ending early** (`find_any`): a share whose consumer is full lets its pairs pass, and when all that have begun are full they
//! end. Where a share failed all end: its error is an item, and the others' ends are none.

use super::{Filter, Scan, Way};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicUsize, Ordering::*};
use crate::types::{Key, Value};
use rayon::iter::plumbing::{Folder, UnindexedConsumer, UnindexedProducer, bridge_unindexed};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::ops::ControlFlow;

/// The pairs of a scan, on the threads of the pool that it runs in; `store.scan().into_par_iter()`.
pub struct ParIter<'a, K: Key + ?Sized, V: Value + ?Sized>(Scan<'a, K, V>);

/// # Examples
/// ```
/// use rayon::prelude::*;
///
/// let store: esker::Store<u64, u64> = esker::Options::new().memory("64MiB").in_memory()?;
/// (0..1000).try_for_each(|n| store.put(&n, &n))?;
/// let odd: u64 = store.scan().into_par_iter().map(|pair| pair.map(|(_, value)| value % 2)).sum::<esker::Result<u64>>()?;
/// assert_eq!(odd, 500);
/// # Ok::<(), esker::Error>(())
/// ```
impl<'a, K: Key + ?Sized, V: Value + ?Sized> IntoParallelIterator for Scan<'a, K, V>
where
    K::Owned: Send,
    V::Owned: Send,
{
    type Item = Result<(K::Owned, V::Owned)>;
    type Iter = ParIter<'a, K, V>;

    /// All pairs as of the moment when the iterator is consumed, in no order; an error is an item, behind which few more come.
    /// The pool says how many threads work, not [`Scan::parallel`]. The cost is that of [`Scan::for_each`] and of copying each
    /// pair: [`Scan::fold`] copies none.
    fn into_par_iter(self) -> Self::Iter {
        ParIter(self)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> ParallelIterator for ParIter<'_, K, V>
where
    K::Owned: Send,
    V::Owned: Send,
{
    type Item = Result<(K::Owned, V::Owned)>;

    fn drive_unindexed<C: UnindexedConsumer<Self::Item>>(self, consumer: C) -> C::Result {
        let ParIter(mut scan) = self;
        let ends = Ends::default();
        let (ends, progress) = (&ends, scan.progress.take());
        let scan = Scan {
            progress: Some(Box::new(move |part| match &progress {
                _ if ends.are_all_full() => ControlFlow::Break(super::Ends::Own),
                Some(report) => report(part),
                None => ControlFlow::Continue(()),
            })),
            ..scan
        };
        let mut consumer = Some(consumer);
        let driven = scan.run(|way, filter| {
            let shares = Shares { way, filter, ends, count: rayon::current_num_threads() };
            Ok(consumer.take().map(|consumer| bridge_unindexed(shares, consumer)))
        });
        match (driven, consumer) {
            (Ok(Some(result)), _) => result,
            (Err(error), Some(consumer)) => consumer.into_folder().consume(Err(error)).complete(),
            _ => unreachable!("the consumer is taken by a scan that runs, which then succeeds"),
        }
    }
}

/// How many shares have begun, and how many of those want no more.
#[derive(Default)]
struct Ends {
    begun: AtomicUsize,
    full: AtomicUsize,
}

impl Ends {
    fn are_all_full(&self) -> bool {
        // A share that begins in between works on by itself.
        let full = self.full.load(Relaxed);
        full > 0 && full >= self.begun.load(Relaxed)
    }
}

/// So many shares of a scan.
struct Shares<'w, 'a, K: Key + ?Sized, V: Value + ?Sized> {
    way: &'w Way<'w, K, V>,
    filter: Option<&'w Filter<'a, K, V>>,
    ends: &'w Ends,
    count: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> UnindexedProducer for Shares<'_, '_, K, V>
where
    K::Owned: Send,
    V::Owned: Send,
{
    type Item = Result<(K::Owned, V::Owned)>;

    fn split(self) -> (Self, Option<Self>) {
        let half = self.count / 2;
        if half == 0 {
            return (self, None);
        }
        (Self { count: self.count - half, ..self }, Some(Self { count: half, ..self }))
    }

    fn fold_with<F: Folder<Self::Item>>(self, folder: F) -> F {
        self.ends.begun.fetch_add(1, Relaxed);
        let mut place = Place { folder: Some(folder), is_full: false };
        let done = self.way.work(&mut |key: &[u8], value: &[u8]| {
            if !place.is_full && self.filter.is_none_or(|wanted| wanted(K::view(key), V::view(value))) {
                place.put(Ok((K::own(key), V::own(value))), self.ends);
            }
        });
        match done {
            Err(Error::Cancelled) if place.is_full => {}
            Err(Error::Cancelled) if self.way.control().has_failed.load(Relaxed) => {}
            Err(error) => place.put(Err(error), self.ends),
            Ok(()) => {}
        }
        place.folder.unwrap_or_else(|| unreachable!("a folder that was taken is put back"))
    }
}

/// A folder, which taking an item consumes.
struct Place<F> {
    folder: Option<F>,
    is_full: bool,
}

impl<F> Place<F> {
    fn put<T>(&mut self, item: T, ends: &Ends)
    where
        F: Folder<T>,
    {
        self.folder = self.folder.take().map(|folder| folder.consume(item));
        if !self.is_full && self.folder.as_ref().is_some_and(F::full) {
            self.is_full = true;
            ends.full.fetch_add(1, Relaxed);
        }
    }
}
