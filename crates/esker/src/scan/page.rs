//! What outlives a call: cursors and iterators. Both walk the index, by position.

use super::index::Walker;
use super::rows::Rows;
use super::{Filter, Frame, Scan, Visit};
use crate::error::{Error, Result};
use crate::snapshot::Snapshot;
use crate::store::{Doomed, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{Key, Value};
use std::collections::VecDeque;

/// So many keys that [`Scan::delete`] has found are deleted together: calls that are durable by themselves share a line.
const DELETED_AT_ONCE: usize = 1024;
/// Or so many bytes of keys.
const DELETED_BYTES: usize = 1 << 20;
/// Buckets at a time: what is cold of them is read together.
const BUCKETS: usize = 32;
/// An iterator takes fewer buckets at a time where their pairs are longer than this.
const HELD_BYTES: usize = 1 << 20;
/// How finely it tells how far it is.
const PARTS_IN_ALL: u64 = 1 << 32;

/// Where a walk through the keys is between two calls. It stays valid as long as the store, whatever happens to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(u64);

impl Cursor {
    /// The beginning.
    pub const START: Self = Self(0);

    /// The cursor as a number: 0 is the beginning, and no other cursor.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The cursor with this number. Any number is one.
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

/// Some pairs, and where to go on.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page<K: Key + ?Sized, V: Value + ?Sized> {
    /// Pairs, in no order that means anything.
    pub pairs: Vec<(K::Owned, V::Owned)>,
    /// The next page's cursor; `None` behind the last page.
    pub next: Option<Cursor>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// About `limit` pairs from a cursor on; [`Scan::page`] without conditions.
    ///
    /// # Errors
    /// As [`Scan::page`].
    ///
    /// # Examples
    /// ```
    /// # let store: esker::Store<u64, u64> = esker::Options::new().memory("64MiB").in_memory()?;
    /// # for n in 0..1000 { store.put(&n, &n)?; }
    /// let (mut cursor, mut keys) = (Some(esker::Cursor::START), Vec::new());
    /// while let Some(at) = cursor {
    ///     let page = store.scan_page(at, 100)?;
    ///     keys.extend(page.pairs.into_iter().map(|(key, _)| key));
    ///     cursor = page.next;
    /// }
    /// keys.sort();
    /// assert!(keys.into_iter().eq(0..1000));
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn scan_page(&self, cursor: Cursor, limit: usize) -> Result<Page<K, V>> {
        self.scan().page(cursor, limit)
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Scan<'a, K, V> {
    /// About `limit` pairs from a cursor on (the pairs of one bucket, five to ten as a rule, are not divided), as they are at some time
    /// during this call, or in a transaction that only reads as of its beginning. Strategy and threads mean nothing here; progress is that
    /// of the walk through all pages.
    ///
    /// From the first page to the last, a key that is there all the time is returned exactly once, whatever comes, changes,
    /// goes or grows meanwhile; one that comes or goes may be returned or not.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Cancelled`].
    ///
    /// # Cost
    /// That of a `get_many` of its pairs and of those that its conditions leave out; more pairs where keys share index entries. It draws no
    /// snapshot. In a store with transactions it first waits, as a commit does, for the calls that are under way. While it runs it holds
    /// space back, as a scan does: keep a filter short.
    pub fn page(mut self, cursor: Cursor, limit: usize) -> Result<Page<K, V>> {
        let filter = self.filter.take();
        let (hold, index) = (self.store.engine.hold_space()?, &self.store.engine.index);
        if self.as_of.is_none() {
            self.store.engine.await_commits();
        }
        // Entries of a bucket in the mean: pairs, where keys share none.
        let in_bucket = index.entries().div_ceil(index.buckets()).max(1) as usize;
        let as_of = self.as_of;
        let mut frame = self.frame(as_of.unwrap_or_else(|| hold.view()), PARTS_IN_ALL);
        frame.control.done.store(parts(0, Some(cursor.0)), Relaxed);
        let (mut walker, mut rows) = (Walker::default(), Rows::default());
        let (mut pairs, mut next) = (Vec::new(), Some(cursor.0));
        while let Some(from) = next
            && pairs.len() < limit.max(1)
        {
            let buckets = limit.saturating_sub(pairs.len()).div_ceil(in_bucket).clamp(1, BUCKETS);
            // What has been written since the last ones, by its own time.
            frame.view = as_of.unwrap_or_else(|| hold.view());
            next = frame.walk(&mut walker, from, u64::MAX, buckets, &mut rows)?;
            take(&frame, filter.as_deref(), &mut walker, &mut rows, &mut |key, value| pairs.push((K::own(key), V::own(value))))?;
            frame.control.advance(parts(from, next))?;
        }
        Ok(Page { pairs, next: next.map(Cursor) })
    }

    /// Deletes the pairs of the scan, page by page; how many. Not atomic: a pair that is there all the time is deleted, and one that is
    /// added or changed meanwhile may be deleted or not. With a `filter` a pair is deleted only if it still has the value that the filter
    /// saw.
    ///
    /// That is how a group of keys is deleted: those with a prefix, or those whose values say that they belong to it.
    ///
    /// # Errors
    /// As [`Store::delete_many`], [`Error::Cancelled`], and `Invalid` in a transaction that only reads. Some pairs may be gone then.
    ///
    /// # Cost
    /// That of [`Scan::page`] over the whole store, and of [`Store::delete_many`]; with a `filter` of [`Store::compare_and_swap`] for each,
    /// whose cache misses, device reads and lines are shared all the same. Space is held for some buckets at a time.
    ///
    /// # Examples
    /// ```
    /// # let pages: esker::Store<str, u64> = esker::Options::new().memory("64MiB").in_memory()?;
    /// for (page, visits) in [("ada/1", 3), ("ada/2", 4), ("ben/1", 5)] {
    ///     pages.put(page, &visits)?;
    /// }
    /// assert_eq!(pages.scan().prefix(b"ada/").delete()?, 2);
    /// assert_eq!(pages.scan().filter(|_, visits| visits < 9).delete()?, 1);
    /// # Ok::<(), esker::Error>(())
    /// ```
    pub fn delete(mut self) -> Result<u64> {
        if self.as_of.is_some() {
            return Err(Error::invalid("a transaction that only reads deletes nothing"));
        }
        let (store, filter) = (self.store, self.filter.take());
        let mut frame = self.frame(store.engine.hold_space()?.view(), PARTS_IN_ALL);
        let (mut walker, mut rows) = (Walker::default(), Rows::default());
        let (mut found, mut found_bytes, mut count, mut next) = (Vec::new(), 0, 0, Some(0));
        while let Some(from) = next {
            let hold = store.engine.hold_space()?;
            frame.view = hold.view();
            let visit: &mut dyn Visit<K, V> = &mut |key: &[u8], value: &[u8]| {
                if filter.as_ref().is_none_or(|wanted| wanted(K::view(key), V::view(value))) {
                    found.push(Doomed { key: key.into(), version: filter.is_some().then(|| store.version_of(value)) });
                    found_bytes += key.len();
                }
            };
            next = frame.walk(&mut walker, from, u64::MAX, BUCKETS, &mut rows)?;
            visit.rows(&mut rows);
            frame.follow_cold(&mut walker, None, visit)?;
            // What is deleted may need room that nobody makes while space is held.
            drop(hold);
            if found.len() >= DELETED_AT_ONCE || found_bytes >= DELETED_BYTES || next.is_none() && !found.is_empty() {
                count += store.delete_found(&found)? as u64;
                (found_bytes, found) = (0, Vec::new());
            }
            frame.control.advance(parts(from, next))?;
        }
        Ok(count)
    }

    /// All pairs, each by itself, as of this moment. Until the iterator is dropped no space is given back.
    ///
    /// It always goes by the index, on this thread: strategy and threads mean nothing here.
    ///
    /// # Errors
    /// As [`Scan::for_each`]. An error while iterating is the last item.
    pub fn iter(mut self) -> Result<Iter<'a, K, V>> {
        let filter = self.filter.take();
        let (view, snapshot) = self.snapshot()?;
        let frame = self.frame(view, PARTS_IN_ALL);
        Ok(Iter {
            frame,
            filter,
            next: Some(0),
            pairs: VecDeque::new(),
            buckets: 1,
            walker: Walker::default(),
            rows: Rows::default(),
            _snapshot: snapshot,
        })
    }
}

/// How far it is from one position to the next.
fn parts(from: u64, next: Option<u64>) -> u64 {
    (next.unwrap_or(u64::MAX) - from) / (u64::MAX / PARTS_IN_ALL)
}

/// Shows what a walk has taken.
fn take<'a, K: Key + ?Sized + 'a, V: Value + ?Sized + 'a>(
    frame: &Frame<'_, K, V>,
    filter: Option<&Filter<'a, K, V>>,
    walker: &mut Walker,
    rows: &mut Rows,
    show: &mut impl FnMut(&[u8], &[u8]),
) -> Result<()> {
    let visit: &mut dyn Visit<K, V> = &mut |key: &[u8], value: &[u8]| {
        if filter.is_none_or(|wanted| wanted(K::view(key), V::view(value))) {
            show(key, value);
        }
    };
    visit.rows(rows);
    frame.follow_cold(walker, None, visit)
}

/// The pairs of a store as of the moment when the iterator was made; [`Scan::iter`].
pub struct Iter<'a, K: Key + ?Sized, V: Value + ?Sized> {
    frame: Frame<'a, K, V>,
    filter: Option<Box<Filter<'a, K, V>>>,
    next: Option<u64>,
    pairs: VecDeque<(K::Owned, V::Owned)>,
    /// So many at a time.
    buckets: usize,
    walker: Walker,
    rows: Rows,
    _snapshot: Option<Snapshot>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iter<'_, K, V> {
    fn fill(&mut self, from: u64) -> Result<()> {
        let next = self.frame.walk(&mut self.walker, from, u64::MAX, self.buckets, &mut self.rows)?;
        let (pairs, mut bytes) = (&mut self.pairs, 0);
        take(&self.frame, self.filter.as_deref(), &mut self.walker, &mut self.rows, &mut |key, value| {
            bytes += key.len() + value.len();
            pairs.push_back((K::own(key), V::own(value)));
        })?;
        self.buckets = if bytes > HELD_BYTES { self.buckets.div_ceil(2) } else { (2 * self.buckets).min(BUCKETS) };
        // Last: behind a filter that panicked there is nothing more, for its rows were taken in part.
        self.next = next;
        self.frame.control.advance(parts(from, next))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Iter<'_, K, V> {
    type Item = Result<(K::Owned, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pairs.is_empty() {
            let from = self.next.take()?;
            if let Err(error) = self.fill(from) {
                self.next = None;
                self.pairs.clear();
                return Some(Err(error));
            }
        }
        self.pairs.pop_front().map(Ok)
    }
}
