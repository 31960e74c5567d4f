//! A stretch of a log in memory, piece by piece: by who compacts, and by those who wait for its room.
//!
//! ```text
//! | piece | piece | piece | ...        who compacts goes from record to record, and copies a piece to where it is near him
//!     |       `---> a thread that waits for room moves what lives in it
//!     `-----------> he does it himself, where nobody waits
//! ```
//! Each copy is published as an update would be, so it does not matter who makes it, nor in what order pieces end.
//!
//! Who compacts waits for all pieces before the stretch is given back. Should the room for copies end in one of them the stretch ends
//! there, and what was copied of the pieces behind it stands; but pieces are given away only where all of the stretch has room
//! (`Log::suffices_for`).

use super::STRETCH_PAUSE;
use super::mover::{Mover, Tally};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::log::{BLOCK_BYTES, block_end};
use crate::sync::thread;
use crate::sync::waiting::{self, Condvar, Mutex, MutexGuard};
use crate::traverse::{self, Next, Scanned, Visitor};
use std::collections::VecDeque;
use std::ops::Range;
use thread::ThreadId;

/// A piece's bytes, but for a longer record: some ten microseconds of work, which stay near the processor. A record each where threads are
/// scheduled.
const PIECE_BYTES: u64 = if cfg!(shuttle) { 8 } else { 8 * BLOCK_BYTES };
/// Threads besides him who compacts, for one stretch: he goes from record to record some four times as fast as one moves them.
const HELPERS_MAX: usize = 3;
/// So many records before its turn a record's bucket is fetched, and so many what that leads to.
const EXPECTED: usize = 12;
const EXPECTED_SOON: usize = 6;

/// Records of a stretch, whole and in order.
#[derive(Default)]
pub(super) struct Piece {
    first: u64,
    bytes: Vec<u8>,
    records: Vec<Scanned>,
}

/// What became of a piece.
struct Part {
    first: u64,
    tally: Tally,
    ended_at: Option<u64>,
}

impl Part {
    /// Of which nothing was moved.
    fn ended(first: u64) -> Self {
        Self { first, tally: Tally::default(), ended_at: Some(first) }
    }
}

/// Pieces of the stretch under way.
#[derive(Default)]
pub(crate) struct Pieces {
    state: Mutex<State>,
    /// For those who wait: there is a piece to be moved, or there may be room.
    change: Condvar,
    /// For who compacts: one was moved.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    stretch: Range<u64>,
    /// Threads that would move one, and may.
    waiting: usize,
    /// Threads that have moved some of the stretch.
    helpers: Vec<ThreadId>,
    offered: VecDeque<Piece>,
    /// Those that others move now.
    under_way: usize,
    /// Those that others have moved.
    parts: Vec<Part>,
    failure: Option<Error>,
    /// As many as that, ever.
    #[cfg(test)]
    helped: u64,
    #[cfg(test)]
    is_shared_anyway: bool,
}

impl Pieces {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives a piece away, if somebody waits for one, or will when he has moved his.
    fn offer(&self, piece: &mut Piece, stretch: &Range<u64>) -> bool {
        let mut state = self.lock();
        let is_wanted = state.waiting + state.under_way > state.offered.len() && state.offered.len() < HELPERS_MAX;
        if is_wanted {
            state.stretch = stretch.clone();
            state.offered.push_back(std::mem::take(piece));
            drop(state);
            self.change.notify_one();
        }
        is_wanted
    }

    /// One that nobody has come for.
    fn take_back(&self) -> Option<Piece> {
        self.lock().offered.pop_front()
    }

    /// True if others found that the stretch cannot go on.
    fn has_ended(&self) -> bool {
        let state = self.lock();
        state.failure.is_some() || state.parts.iter().any(|part| part.ended_at.is_some())
    }

    /// What became of those that were given away, when all are moved.
    fn join(&self) -> (Vec<Part>, Option<Error>) {
        let mut state = self.lock();
        state.offered.clear();
        while state.under_way > 0 {
            state = waiting::for_long(&self.state, &self.moved, state, STRETCH_PAUSE).0;
        }
        state.helpers.clear();
        (std::mem::take(&mut state.parts), state.failure.take())
    }

    /// Those who wait are to look whether there is room.
    pub(super) fn tell(&self) {
        self.change.notify_all();
    }

    fn is_shared_anyway(&self) -> bool {
        #[cfg(test)]
        return self.lock().is_shared_anyway;
        #[cfg(not(test))]
        false
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    fn helped(&self) -> u64 {
        self.lock().helped
    }

    /// Whatever room there is for copies.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn share_anyway(&self) {
        self.lock().is_shared_anyway = true;
    }
}

/// A piece that somebody moves who waits. Should he panic, the stretch ends before it.
struct UnderWay<'a> {
    pieces: &'a Pieces,
    first: u64,
    result: Option<Result<Part>>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.pieces.lock();
        state.under_way -= 1;
        match self.result.take() {
            Some(Ok(part)) => state.parts.push(part),
            Some(Err(error)) => state.failure = Some(error),
            None => state.parts.push(Part::ended(self.first)),
        }
        drop(state);
        self.pieces.moved.notify_one();
    }
}

/// A walk through a stretch. It does not end before those who help, even by a panic.
struct Walk<'e> {
    engine: &'e Engine,
    stretch: Range<u64>,
    /// Where the next record begins.
    at: u64,
    /// What became of the pieces so far.
    parts: Vec<Part>,
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.engine.compaction.pieces.join();
    }
}

impl Walk<'_> {
    fn go(&mut self, mover: &mut Mover<'_>) -> Result<()> {
        let (engine, pieces, mut piece) = (self.engine, &self.engine.compaction.pieces, Piece::default());
        let bytes = self.stretch.end - self.stretch.start;
        let has_room = engine.log.suffices_for(bytes, HELPERS_MAX as u64 + 1) || pieces.is_shared_anyway();
        let may_share = has_room && !mover.is_of_cache();
        while mover.ended_at.is_none() && !(mover.shares && pieces.has_ended()) {
            let next = engine.fill_piece(&mut piece, self.at, self.stretch.end)?;
            if next == self.at {
                break;
            }
            self.at = next;
            // Who closes waits for this stretch.
            if engine.epochs.is_closed() {
                return Err(Error::Closed);
            }
            // The driver is here and not in its loop; without this those who write pay for page faults.
            engine.keep_up();
            // The first one he moves himself: whatever room there is, the stretch comes to something.
            if may_share && !self.parts.is_empty() && pieces.offer(&mut piece, &self.stretch) {
                mover.shares = true;
            } else {
                self.move_piece(mover, &piece)?;
            }
        }
        while let Some(piece) = pieces.take_back() {
            match mover.ended_at {
                None => self.move_piece(mover, &piece)?,
                // It may lie before that.
                Some(_) => self.parts.push(Part::ended(piece.first)),
            }
        }
        Ok(())
    }

    fn move_piece(&mut self, mover: &mut Mover<'_>, piece: &Piece) -> Result<()> {
        let before = std::mem::take(&mut mover.tally);
        let moved = mover.move_piece(piece);
        let tally = std::mem::replace(&mut mover.tally, before);
        self.parts.push(Part { first: piece.first, tally, ended_at: mover.ended_at });
        moved
    }

    fn tally(&self, is_in: impl Fn(&Part) -> bool) -> Tally {
        self.parts.iter().filter(|part| is_in(part)).fold(Tally::default(), |sum, part| sum.with(part.tally))
    }
}

impl Engine {
    /// Moves what lives in the records that begin in a stretch in memory, and end there, with the help of those who wait; where the next
    /// one begins.
    pub(super) fn move_pieces(&self, stretch: Range<u64>, mover: &mut Mover<'_>) -> Result<u64> {
        let mut walk = Walk { engine: self, at: stretch.start, stretch, parts: Vec::new() };
        let walked = walk.go(mover);
        let (others, failure) = self.compaction.pieces.join();
        walk.parts.extend(others);
        mover.tally = walk.tally(|_| true);
        walked?;
        failure.map_or(Ok(()), Err)?;
        mover.ended_at = walk.parts.iter().filter_map(|part| part.ended_at).min();
        let reached = mover.ended_at.unwrap_or(walk.at);
        // What lies behind will be gone through again.
        self.note_unfinished(walk.tally(|part| part.first >= reached), 0);
        mover.tally = walk.tally(|part| part.first < reached);
        Ok(reached)
    }

    /// For who waits for room while somebody else compacts: moves a piece, or waits a little for one, or for the room.
    pub(crate) fn help_or_wait(&self) {
        let pieces = &self.compaction.pieces;
        let me = thread::current().id();
        let may_help = |state: &State| state.helpers.contains(&me) || state.helpers.len() < HELPERS_MAX;
        let mut state = pieces.lock();
        if state.offered.is_empty() || !may_help(&state) {
            let counted = usize::from(may_help(&state));
            state.waiting += counted;
            state = waiting::for_long(&pieces.state, &pieces.change, state, STRETCH_PAUSE).0;
            state.waiting -= counted;
        }
        if !may_help(&state) {
            return;
        }
        let Some(piece) = state.offered.pop_front() else { return };
        if !state.helpers.contains(&me) {
            state.helpers.push(me);
        }
        state.under_way += 1;
        #[cfg(test)]
        (state.helped += 1);
        let stretch = state.stretch.clone();
        drop(state);
        let mut under_way = UnderWay { pieces, first: piece.first, result: None };
        let mut mover = Mover::new(self, stretch, None);
        mover.shares = true;
        let moved = mover.move_piece(&piece);
        under_way.result = Some(moved.map(|()| Part { first: piece.first, tally: mover.tally, ended_at: mover.ended_at }));
    }

    /// The records from `at` on, where one begins: as many as a piece holds, or one that is longer. Where the next one begins; there, if
    /// the stretch ends before.
    fn fill_piece(&self, piece: &mut Piece, at: u64, end: u64) -> Result<u64> {
        let Piece { first, bytes, records } = piece;
        *first = at;
        let mut length = PIECE_BYTES;
        loop {
            bytes.clear();
            records.clear();
            self.log.append_frozen(at..end.min(at + length), bytes);
            let mut next = at;
            let least = loop {
                let offset = (next - at) as usize;
                let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) else { return Ok(next) };
                match traverse::next_in(self.layout, next, rest)? {
                    Next::Gap => next = block_end(next),
                    Next::Record(whole) => {
                        records.extend(Scanned::counting(self, next, offset, &rest[..whole]));
                        next += whole as u64;
                    }
                    Next::More(least) => break least as u64,
                }
            };
            if next > at || at + least > end {
                return Ok(next);
            }
            length = least;
        }
    }
}

impl Mover<'_> {
    pub(super) fn move_piece(&mut self, piece: &Piece) -> Result<()> {
        let records = &piece.records;
        records.iter().take(EXPECTED).for_each(|record| self.expect(record.hash));
        records.iter().take(EXPECTED_SOON).for_each(|record| self.expect_soon(record));
        for (i, record) in records.iter().enumerate() {
            if let Some(later) = records.get(i + EXPECTED) {
                self.expect(later.hash);
            }
            if let Some(soon) = records.get(i + EXPECTED_SOON) {
                self.expect_soon(soon);
            }
            self.visit(record, record.of(&piece.bytes))?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering::*};
    use crate::sync::lock;
    use crate::{Cache, Options, Store};
    use std::collections::{HashMap, HashSet};
    use std::sync::{Mutex, mpsc};

    fn in_memory(memory: &str) -> Store<u64, [u8]> {
        Options::new().memory(memory).background(false).in_memory().unwrap()
    }

    /// Two keys that nothing in the index tells apart, and the first thousand from them.
    fn alike(store: &Store<u64, [u8]>) -> (u64, u64) {
        let told_by = |key: u64| store.engine_for_test().hash_of(&key.to_le_bytes()) >> 6 & ((1 << 23) - 1);
        let (mut known, others) = (HashMap::new(), (0..1000).map(told_by).collect::<HashSet<_>>());
        (1 << 40..)
            .filter(|key| !others.contains(&told_by(*key)))
            .find_map(|key| known.insert(told_by(key), key).map(|first| (first, key)))
            .unwrap()
    }

    /// A deletion that goes first must not take the entry that leads to what lives below it.
    #[test]
    fn pieces_may_be_moved_in_any_order() {
        let store = in_memory("16MiB");
        let engine = store.engine_for_test();
        let freeze = || {
            let _guard = lock(&engine.boundaries);
            engine.freeze(engine.log.end_block());
        };
        let (goes, stays) = alike(&store);
        store.put(&stays, b"stays").unwrap();
        (0..200).for_each(|key| store.put(&key, &[7; 1000]).unwrap());
        store.put(&goes, b"goes").unwrap();
        freeze();
        assert!(store.delete(&goes).unwrap());
        freeze();
        let (from, to) = (engine.log.bounds.copied.load(Acquire), engine.log.tail());
        let (mut pieces, mut at) = (Vec::new(), from);
        while at < to {
            let mut piece = Piece::default();
            at = engine.fill_piece(&mut piece, at, to).unwrap();
            pieces.push(piece);
        }
        assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.records.len() < 40));
        for piece in pieces.iter().rev() {
            Mover::new(engine, from..to, None).move_piece(piece).unwrap();
        }
        assert_eq!(store.get(&goes).unwrap(), None);
        assert!((0..200).all(|key| store.contains(&key).unwrap()));
        assert_eq!(store.get(&stays).unwrap().as_deref(), Some(&b"stays"[..]));
    }

    /// What was to be kept was counted, and charged to its stretch, though somebody was quicker than its copy.
    #[test]
    fn what_has_no_copy_was_not_kept() {
        let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
        let ended = Mutex::new(ended);
        let cache = Cache::new().worth(move |_, _| {
            begin.send(()).unwrap();
            ended.lock().unwrap().recv().unwrap();
            f64::INFINITY
        });
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").background(false).cache(cache).in_memory().unwrap();
        let engine = store.engine_for_test();
        store.put(&1, b"old").unwrap();
        let kept_of_the_newest = || {
            let guard = lock(&engine.boundaries);
            engine.freeze(engine.log.end_block());
            drop(guard);
            let (at, mut piece) = (engine.index.lookup(engine.hash_of(&1u64.to_ne_bytes())).address(), Piece::default());
            engine.fill_piece(&mut piece, at, engine.log.tail()).unwrap();
            Mover::new(engine, at..at + (1 << 20), engine.caching.as_ref()).move_piece(&piece).unwrap();
            store.stats().cache.unwrap().kept
        };
        let beside = store.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                begun.recv().unwrap();
                beside.put(&1, b"new").unwrap();
                end.send(()).unwrap();
                begun.recv().unwrap();
                end.send(()).unwrap();
            });
            assert_eq!(kept_of_the_newest(), 0);
            assert_eq!(kept_of_the_newest(), 1);
        });
        assert_eq!(store.get(&1).unwrap().as_deref(), Some(&b"new"[..]));
    }

    /// Of each length, so that records end everywhere in a piece, and some are longer than one.
    #[test]
    fn pieces_have_all_records_and_each_once() {
        let store = in_memory("64MiB");
        let engine = store.engine_for_test();
        for n in 0..3000u64 {
            let bytes = if n.is_multiple_of(97) { 20_000 + n as usize * 17 } else { n as usize * 31 % 700 };
            store.put(&n, &vec![n as u8; bytes]).unwrap();
        }
        let _guard = lock(&engine.boundaries);
        engine.freeze(engine.log.end_block());
        let (mut at, to, mut found) = (engine.log.bounds.copied.load(Acquire), engine.log.tail(), Vec::new());
        while at < to {
            let mut piece = Piece::default();
            let next = engine.fill_piece(&mut piece, at, to).unwrap();
            assert!(next > at && piece.records.iter().all(|record| (at..next).contains(&record.at)));
            // A stretch that ends within it has none of the record that would begin there.
            if let Some(last) = piece.records.last() {
                assert_eq!(engine.fill_piece(&mut Piece::default(), last.at, last.at + 8).unwrap(), last.at);
            }
            found.extend(piece.records.iter().map(|record| record.hash));
            at = next;
        }
        // Longer ones lie elsewhere.
        let mut put: Vec<u64> = (0..3000u64).map(|n| engine.hash_of(&n.to_le_bytes())).collect();
        put.sort_unstable();
        found.sort_unstable();
        assert!(found == put, "{} found, {} put", found.len(), put.len());
    }

    /// While others write, too.
    #[test]
    fn those_who_wait_move_pieces() {
        const KEYS: u64 = 40_000;
        let store = in_memory("64MiB");
        let engine = store.engine_for_test();
        let value = |key: u64, round: u64| [(key + round).to_le_bytes(); 13].concat();
        (0..2 * KEYS).for_each(|key| store.put(&key, &value(key, 0)).unwrap());
        let (over, mut rounds) = (AtomicBool::new(false), 0);
        let written = std::thread::scope(|scope| {
            let wait = || {
                while !over.load(Relaxed) {
                    engine.help_or_wait();
                }
            };
            (0..2).for_each(|_| _ = scope.spawn(wait));
            let writer = scope.spawn(|| {
                let mut round = 0;
                while !over.load(Relaxed) {
                    round += 1;
                    (KEYS + round % 3..2 * KEYS).step_by(3).for_each(|key| store.put(&key, &value(key, round)).unwrap());
                    (KEYS..2 * KEYS).filter(|key| key % 11 == round % 11).for_each(|key| _ = store.delete(&key).unwrap());
                }
                round
            });
            while engine.compaction.pieces.helped() < 1000 {
                rounds += 1;
                (0..KEYS).filter(|key| key % 5 == rounds % 5).for_each(|key| store.put(&key, &value(key, rounds)).unwrap());
                store.compact().unwrap();
                assert!(rounds < 10_000, "nobody helps");
            }
            over.store(true, Relaxed);
            writer.join().unwrap()
        });
        let newest = |rounds: u64, is_in: &dyn Fn(u64) -> bool| (0..=rounds).rev().find(|round| *round == 0 || is_in(*round)).unwrap();
        for key in 0..KEYS {
            let round = newest(rounds, &|round| key % 5 == round % 5);
            assert_eq!(store.get(&key).unwrap(), Some(value(key, round)), "key {key}");
        }
        for key in KEYS..2 * KEYS {
            let put = newest(written, &|round| (key - KEYS) % 3 == round % 3);
            let deleted = newest(written, &|round| key % 11 == round % 11);
            let expected = (put > deleted || deleted == 0).then(|| value(key, put));
            assert_eq!(store.get(&key).unwrap(), expected, "key {key}, put {put}, deleted {deleted}");
        }
    }

    /// Little is dead, and pieces that many copy at a time leave little room. A piece that nobody had come for was passed by when another
    /// one had ended for want of room, and given back with what lived in it.
    #[test]
    fn where_the_room_for_copies_ends_nothing_is_lost() {
        const THREADS: u64 = 4;
        let store: Store<u64, [u8]> = Options::new().memory("16MiB").in_memory().unwrap();
        store.engine_for_test().compaction.pieces.share_anyway();
        let value = |key: u64| [key.to_le_bytes(); 80].concat()[..300 + key as usize % 300].to_vec();
        let work = &|thread: u64| {
            let (mut live, mut random, keys) = (Vec::new(), thread + 1, thread << 32..(thread << 32) + 15_000);
            for key in keys.clone() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match store.put(&key, &value(key)) {
                    Ok(()) => live.push(key),
                    Err(Error::Full) => {
                        for _ in 0..live.len() / 100 {
                            let place = (random >> 33) as usize % live.len();
                            match store.delete(&live[place]) {
                                Ok(was_there) => {
                                    let key = live.swap_remove(place);
                                    assert!(was_there, "{key} was lost");
                                }
                                Err(error) => assert!(matches!(error, Error::Full), "{error}"),
                            }
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            live.sort_unstable();
            for key in keys {
                let expected = live.binary_search(&key).is_ok().then(|| value(key));
                assert!(store.get(&key).unwrap() == expected, "{key}");
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|thread| _ = scope.spawn(move || work(thread))));
        assert!(store.engine_for_test().compaction.pieces.helped() > 0);
    }

    /// More threads than there is room for pieces of: what was copied out of order took all of the reserve, the stretch could not begin,
    /// and nothing came back ever.
    #[test]
    fn a_crowded_store_gives_back_what_is_dead() {
        const THREADS: u64 = 24;
        let store: Store<u64, [u8]> = Options::new().memory("64MiB").in_memory().unwrap();
        let value = [7; 1000];
        let keys = (0..).find(|key| store.put(key, &value).is_err()).unwrap();
        (0..keys).step_by(8).for_each(|key| assert!(store.delete(&key).unwrap()));
        let fill = &|thread: u64| {
            let refused = ((thread + 1) << 40..).find_map(|key| store.put(&key, &value).err());
            assert!(matches!(refused, Some(Error::Full)), "{refused:?}");
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|thread| _ = scope.spawn(move || fill(thread))));
        (1..keys).step_by(8).for_each(|key| assert!(store.delete(&key).unwrap(), "{key}"));
        assert!(store.compact().unwrap() > keys / 8 * 900, "{:?}", store.stats().space);
        (0..keys / 10).for_each(|key| store.put(&(1 << 60 | key), &value).unwrap());
    }
}
