//! Many keys on their way into the processor's caches.
//!
//! ```text
//! turns before its own:     24        18        12               6                  0
//! a key's bucket is         fetched   fetched   looked at
//! its first record is                           fetched          fetched            used
//! an entry behind its first bucket is           fetched          looked at
//! ```
//! Each turn moves one key on at each stage, so the misses of later keys go on while a key is worked on. (Batches of calls are
//! shorter, and many of their keys are in the caches: they fetch a group at a time, `store/batch.rs`.)
//!
//! **Why twice**: a processor drops a prefetch for which it has no miss left to give. **Why so far apart**: two to three misses a
//! key, and a turn lasts as long as two of those that overlap.

use crate::engine::Engine;

/// So many turns before its own a key has these done.
const BUCKET_AHEAD: usize = 24;
const BUCKET_AGAIN: usize = 18;
const RECORD_AHEAD: usize = 12;
const RECORD_AGAIN: usize = 6;
/// Places for keys under way: the lower bits of their numbers.
const PLACES: usize = 32;
const _: () = assert!(PLACES.is_power_of_two() && BUCKET_AHEAD < PLACES);

/// In place of an address: the entry may lie behind the hash's first bucket. No record begins there.
const BEHIND: u64 = 1;

/// A key under way: its hash, and the first record of its entry as it was a moment ago.
#[derive(Clone, Copy, Default)]
struct Coming {
    hash: u64,
    first: u64,
}

/// Keys under way, in the order of their `hashes`.
pub(super) struct Fetch<'a, I> {
    engine: &'a Engine,
    hashes: I,
    count: usize,
    /// The number of the key whose turn comes next.
    turn: usize,
    places: [Coming; PLACES],
}

impl<'a, I: ExactSizeIterator<Item = u64>> Fetch<'a, I> {
    #[inline(always)]
    pub(super) fn new(engine: &'a Engine, hashes: I) -> Self {
        let count = hashes.len();
        let mut fetch = Self { engine, hashes, count, turn: 0, places: [Coming::default(); PLACES] };
        (0..count.min(BUCKET_AHEAD)).for_each(|number| fetch.hash(number));
        (0..count.min(BUCKET_AGAIN)).for_each(|number| fetch.fetch_bucket(number));
        (0..count.min(RECORD_AHEAD)).for_each(|number| fetch.look_up(number));
        (0..count.min(RECORD_AGAIN)).for_each(|number| fetch.fetch_again(number));
        fetch
    }

    /// The hash of the next key, of those that there are.
    #[inline(always)]
    pub(super) fn turn(&mut self) -> u64 {
        let number = self.turn;
        debug_assert!(number < self.count, "there is no further key");
        self.turn += 1;
        let hash = self.places[number % PLACES].hash;
        if number + BUCKET_AHEAD < self.count {
            self.hash(number + BUCKET_AHEAD);
            self.fetch_bucket(number + BUCKET_AGAIN);
            self.look_up(number + RECORD_AHEAD);
            self.fetch_again(number + RECORD_AGAIN);
        } else {
            self.run_out(number);
        }
        hash
    }

    /// The last keys are on their way.
    #[inline(always)]
    fn run_out(&mut self, number: usize) {
        if number + BUCKET_AGAIN < self.count {
            self.fetch_bucket(number + BUCKET_AGAIN);
        }
        if number + RECORD_AHEAD < self.count {
            self.look_up(number + RECORD_AHEAD);
        }
        if number + RECORD_AGAIN < self.count {
            self.fetch_again(number + RECORD_AGAIN);
        }
    }

    // ---- the stages ----------------------------------------------------------------------------------------------

    #[inline(always)]
    fn hash(&mut self, number: usize) {
        if let Some(hash) = self.hashes.next() {
            self.places[number % PLACES].hash = hash;
            self.fetch_bucket(number);
        }
    }

    #[inline(always)]
    fn fetch_bucket(&self, number: usize) {
        self.engine.index.prefetch(self.places[number % PLACES].hash);
    }

    #[inline(always)]
    fn look_up(&mut self, number: usize) {
        let coming = &mut self.places[number % PLACES];
        let (first, is_behind) = self.engine.index.first_match_in_front(coming.hash);
        coming.first = if is_behind { BEHIND } else { first };
        self.engine.log.prefetch(first);
    }

    #[inline(always)]
    fn fetch_again(&self, number: usize) {
        let Coming { hash, first } = self.places[number % PLACES];
        self.engine.log.prefetch(if first == BEHIND { first_behind(self.engine, hash) } else { first });
    }
}

#[cold]
#[inline(never)]
fn first_behind(engine: &Engine, hash: u64) -> u64 {
    engine.index.lookup(hash).address()
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Options, Store};

    #[test]
    fn each_key_has_its_turn() {
        let store: Store<u64, u64> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
        (0..60_000).for_each(|key| store.put(&key, &key).unwrap());
        for count in 0..100 {
            // Some are not there.
            let hashes: Vec<_> = (0..count).map(|n| store.engine_for_test().hash_of(&(n * 797 % 80_000u64).to_ne_bytes())).collect();
            let mut fetch = Fetch::new(store.engine_for_test(), hashes.iter().copied());
            let turns: Vec<_> = hashes.iter().map(|_| fetch.turn()).collect();
            assert_eq!(turns, hashes);
        }
    }
}
