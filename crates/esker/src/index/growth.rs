//! Growth: whoever adds entries splits buckets, in proportion.
//!
//! A doubling from N buckets begins at 5.2 entries a bucket and spreads over the next 4.2 N insertions, so it ends at 4.7 a bucket: 15.4
//! bytes an entry at the worst point, 14.2 at the best. (The later a doubling begins, the quicker it must be, and the more entries lie
//! behind full buckets meanwhile; the earlier, the more bytes: 15.7 from 5.0.) Insertions go at nearly the same rate all the time, and none
//! waits for more than [`SPLITS_PER_TURN`] splits. Buckets split in the order of their numbers: the memory is read and written in sequence,
//! and each split starts fetching what later ones will need.
//!
//! **Several threads.** One splits at a time (`growing`), and it is the same one (`grower`) as long as it keeps up with what all add: it
//! has fetched what the next splits need, and their memory is in its cache. A thread that finds a whole turn left undone takes its place,
//! and one that finds another at it goes on with its own work. But where threads are many more than processors, whoever splits is often
//! asleep, for as long as all others take their turns, and they would fill buckets that nobody splits: so who finds a whole turn left
//! undone, and another at it, lets others run first. Everybody reads the shape, so up to [`TOGETHER`] buckets are split under their latches
//! at once, and one change of the shape shows them all. Only who holds `growing` holds more than one latch; and who holds a latch never
//! waits for `growing`, nor for a drain.

use super::bucket::{Bucket, ENTRIES, MARKS, address_of, entry_word, tag_of};
use super::{BUCKET_BITS, DOUBLING, FULL, Index, LAST_LEVEL, Shape, TURNING, base, full_tag, match_bits, valid_bits};
use crate::epoch::thread_index;
use crate::memory::{ahead, prefetch_to_write};
use crate::sync::atomic::{Ordering::*, fence};
use crate::sync::{MutexGuard, Rule, broken, lock, thread, try_lock};

/// Splits done at once, at most: some microseconds.
const SPLITS_PER_TURN: u64 = 32;
/// Splits shown by one change of the shape: whoever reads it meanwhile fetches its line anew.
const TOGETHER: usize = 8;
/// Splits between fetching one thing and the next that it leads to.
const AHEAD_SPLITS: u64 = 8;
/// Buckets that must be left of the share for a turn to begin: each split may need one more.
const RESERVE: u64 = 2 * SPLITS_PER_TURN;
// What is fetched ahead of a split lies in the region.
const _: () = assert!(3 * AHEAD_SPLITS + TOGETHER as u64 <= RESERVE);
/// Free entries that a bucket must have before one behind it is given back.
const CLOSED_UP_SPARE: usize = if cfg!(loom) { 0 } else { 2 };

/// A record as a split sees it.
pub(crate) enum Chain {
    /// One record alone, in memory, with this hash.
    Alone(u64),
    /// Several records, or on the device: only the tag's own bits are known.
    Unknown,
}

/// Entries that a workspace holds: chains are far shorter unless growth was held up for long.
const WORK_ENTRIES: usize = 16 * ENTRIES;

/// Buffers of the thread that splits.
#[derive(Default)]
pub(super) struct Workspace {
    splits: [Split; TOGETHER],
    go: Words,
    /// For what needs care: all entries, and those that go.
    lists: [Vec<u64>; 2],
}

/// What a bucket keeps.
#[derive(Default)]
struct Split {
    way: Way,
    stay: Words,
    /// For what needs care.
    list: Vec<u64>,
}

/// How a bucket is split.
#[derive(Clone, Copy, Default)]
enum Way {
    /// Its entries are all there is, their tags are full and go on holding the same bits: each keeps its place, on one side or the other.
    #[default]
    InPlace,
    /// There are buckets behind it.
    Divided,
    /// Its chain is long, tags are short, or begin at another bit from now on.
    WithCare,
}

/// A list of entries without a branch on its length when one is added.
struct Words {
    words: Box<[u64; WORK_ENTRIES]>,
    count: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self { words: Box::new([0; WORK_ENTRIES]), count: 0 }
    }
}

impl Words {
    /// True if a bucket's entries can be added.
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.count + ENTRIES <= WORK_ENTRIES
    }

    /// Adds a word if `wanted` is 1, not if it is 0.
    ///
    /// # Safety
    /// At most [`ENTRIES`] calls since there was room.
    #[inline(always)]
    unsafe fn push_if(&mut self, word: u64, wanted: u64) {
        debug_assert!(self.count < WORK_ENTRIES);
        // SAFETY: as the caller says.
        unsafe { *self.words.get_unchecked_mut(self.count) = word };
        self.count += wanted as usize;
    }

    fn as_slice(&self) -> &[u64] {
        &self.words[..self.count]
    }
}

/// How a split learns about records: where to fetch them from, and what they are.
pub(crate) trait Records {
    /// Starts fetching the record at this address.
    fn prefetch(&self, address: u64);
    /// What the chain that begins there is.
    fn chain(&self, address: u64) -> Chain;
}

impl Index {
    /// How many splits the number of entries calls for, as far as the memory share allows.
    #[inline]
    fn splits_due(&self) -> u64 {
        let shape = self.shape();
        let (level, split) = (shape.level(), shape.split());
        let buckets = 1u64 << level;
        let beyond = self.entries().saturating_sub(buckets * 52 / 10);
        let target = beyond * 10 / 42;
        let due = target.min(buckets).saturating_sub(split);
        let fits = self.buckets_in_all() + RESERVE < self.limit.load(Relaxed) && self.has_space_for(shape.buckets());
        if fits && level < LAST_LEVEL { due.min(SPLITS_PER_TURN) } else { 0 }
    }

    /// Counts `added` new entries and does the share of growth that comes with them. Under a pin; true if the index grew.
    pub(crate) fn grow(&self, added: u64, records: &impl Records) -> bool {
        self.add_to_count(added);
        let due = self.splits_due();
        if due == 0 {
            return false;
        }
        let (shape, grower) = (self.shape(), thread_index());
        // The level's last ones are a turn, too, however few they are.
        let is_whole_turn = due >= SPLITS_PER_TURN.min((1 << shape.level()) - shape.split());
        if !is_whole_turn && self.grower.0.load(Relaxed) != grower {
            return false;
        }
        let Some(mut workspace) = try_lock(&self.growing) else {
            if is_whole_turn {
                thread::yield_now();
            }
            return false;
        };
        self.grower.0.store(grower, Relaxed);
        // Another thread may have done it just now.
        let due = self.splits_due();
        let ahead = self.shape().split();
        let mut left = due;
        while left > 0 {
            let some = left.min(TOGETHER as u64);
            self.fetch_ahead(some, records);
            left -= self.split_some(some, &mut workspace, records);
        }
        self.tidy(due);
        debug_assert!(due == 0 || self.shape().split() != ahead);
        true
    }

    /// True if the table's address space has room for so many buckets: the system may have granted less than was asked for.
    pub(crate) fn may_double(&self) -> bool {
        let level = self.shape().level();
        level < LAST_LEVEL && self.has_space_for(2 << level)
    }

    pub(crate) fn has_space_for(&self, buckets: u64) -> bool {
        (buckets + RESERVE) as usize * 64 < self.table.bytes()
    }

    /// Splits until the table has the shape of `word`, however few its entries are. Before the store is shared.
    pub(crate) fn grow_to(&self, word: u64, records: &impl Records) {
        self.grow_to_by(&mut lock(&self.growing), word, records);
    }

    fn grow_to_by(&self, workspace: &mut Workspace, word: u64, records: &impl Records) {
        let left = || Shape(word).buckets().saturating_sub(self.shape().buckets());
        while left() > 0 {
            self.split_some(left().min(TOGETHER as u64), workspace, records);
        }
    }

    /// Splits all buckets that have not been split since the last doubling. False if somebody else splits or merges: who has a pin must not
    /// wait for him.
    pub(crate) fn double(&self, records: &impl Records) -> bool {
        let Some(mut workspace) = try_lock(&self.growing) else { return false };
        self.grow_to_by(&mut workspace, Shape::new(self.shape().level() + 1, 0).0, records);
        true
    }

    /// Keeps everybody else from splitting, for whoever needs the shape to stand still.
    pub(crate) fn hold(&self) -> MutexGuard<'_, impl Sized> {
        lock(&self.growing)
    }

    /// The same, for who must not wait; `None` if somebody splits or merges.
    pub(crate) fn hold_if_free(&self) -> Option<MutexGuard<'_, impl Sized>> {
        try_lock(&self.growing)
    }

    /// Starts fetching what later splits will touch, each thing as many splits ahead as the thing that leads to it takes to
    /// come: their buckets, the buckets behind those, and the records where tags must be read anew.
    fn fetch_ahead(&self, splits: u64, records: &impl Records) {
        let shape = self.shape();
        let (level, from) = (shape.level(), shape.split());
        let buckets = |ahead: u64| from + ahead..(from + ahead + splits).min(1 << level);
        for at in buckets(3 * AHEAD_SPLITS) {
            prefetch_to_write(self.bucket(at));
            prefetch_to_write(self.bucket(at + (1 << level)));
        }
        for at in buckets(2 * AHEAD_SPLITS) {
            let next = self.bucket(at).next();
            if next != 0 {
                prefetch_to_write(self.overflow.bucket(next));
            }
        }
        if is_rebase(level) {
            let parts = buckets(AHEAD_SPLITS).flat_map(|at| self.chain(self.bucket(at)));
            let words = parts.flat_map(Bucket::entries).map(|slot| slot.load(Relaxed));
            words.filter(|word| *word != 0).for_each(|word| records.prefetch(address_of(word)));
        }
    }

    /// Splits the next `count` buckets, or fewer if the level has no more or somebody is in one of them; says how many.
    pub(super) fn split_some(&self, count: u64, workspace: &mut Workspace, records: &impl Records) -> u64 {
        let shape = self.shape();
        let (level, from) = (shape.level(), shape.split());
        let most = count.min((1 << level) - from);
        let Workspace { splits, go, lists } = workspace;
        let mut count = 0;
        for (at, split) in (from..from + most).zip(splits.iter_mut()) {
            let bucket = self.bucket(at);
            // Nobody waits for this one's splits while this one waits.
            if count == 0 {
                bucket.latch();
            } else if !bucket.latch_if(bucket.link(Relaxed)) {
                break;
            }
            count += 1;
            split.way = self.find_way(level, at, split, go, lists, records);
            if !broken(Rule::SiblingFirst) {
                self.fill_sibling(level, at, split.way, go, &lists[1]);
            }
        }
        let those = || from..from + count;
        // Before the shape: with it, tags may begin at another bit. A reader that looks for a new tag among the old ones
        // must find the version odd, or it takes for absent what stays here.
        if !broken(Rule::OddBeforeShape) {
            those().for_each(|at| self.bucket(at).begin_move());
        }
        let next = Shape::new(level, from + count).0 | DOUBLING;
        let is_last = from + count == 1 << level;
        // Release: whoever sees the new shape sees the siblings' entries.
        self.shape.store(if is_last && !broken(Rule::TurnIsMarked) { next | TURNING } else { next }, Release);
        for (at, split) in those().zip(splits) {
            let bucket = self.bucket(at);
            if broken(Rule::OddBeforeShape) {
                bucket.begin_move();
            }
            if broken(Rule::SiblingFirst) {
                self.fill_sibling(level, at, split.way, go, &lists[1]);
            }
            match split.way {
                Way::InPlace => Self::keep_side(bucket, bucket, level, 0),
                Way::Divided => self.refill(at, split.stay.as_slice()),
                Way::WithCare => self.refill(at, &split.list),
            }
            bucket.end_move();
            bucket.unlatch();
        }
        if is_last {
            self.turn(level + 1);
        }
        count
    }

    /// Finds out what goes from latched bucket `at` to its sibling, which is left in `go` or in the second list, and what stays.
    #[inline(always)]
    fn find_way(&self, level: u32, at: u64, split: &mut Split, go: &mut Words, lists: &mut [Vec<u64>; 2], records: &impl Records) -> Way {
        let (bucket, sibling) = (self.bucket(at), self.bucket(at + (1 << level)));
        if bucket.next() == 0 && sibling.next() == 0 && !is_rebase(level) && !bucket.tags().has_short() {
            Way::InPlace
        } else if self.divide(bucket, level, &mut split.stay, go) {
            Way::Divided
        } else {
            self.divide_carefully(bucket, at, level, &mut split.list, lists, records);
            // An entry that cannot tell goes to both sides, and one that another shadows to none.
            let [before, go] = lists;
            self.add_to_count((split.list.len() as u64 + go.len() as u64).wrapping_sub(before.len() as u64));
            Way::WithCare
        }
    }

    #[inline(always)]
    fn fill_sibling(&self, level: u32, at: u64, way: Way, go: &Words, list: &[u64]) {
        let number = at + (1 << level);
        let sibling = self.bucket(number);
        // It may have been part of the table before: its version tells whoever saw it then (`shrink.rs`).
        if !broken(Rule::SiblingChanges) {
            sibling.latch();
        }
        match way {
            Way::InPlace => Self::keep_side(self.bucket(at), sibling, level, 1),
            Way::Divided => self.refill(number, go.as_slice()),
            Way::WithCare => self.refill(number, list),
        }
        if !broken(Rule::SiblingChanges) {
            sibling.unlatch();
        }
    }

    /// Gives `to` the entries of `from` that belong to this side of a split, each at its place: nothing to list, and no branch on the bit
    /// that decides.
    #[inline(always)]
    fn keep_side(from: &Bucket, to: &Bucket, level: u32, side: u64) {
        let bit = level - base(level);
        for (from, to) in from.entries().iter().zip(to.entries()) {
            let word = from.load(Relaxed);
            to.store(word & (word >> bit & 1 ^ side).wrapping_sub(1), Release);
        }
    }

    /// The level's last bucket is split, the shape is turning: the same table, described by the next level.
    fn turn(&self, level: u32) {
        // Release fence: who reads new geometry finds a shape that is turning, or the new one.
        fence(Release);
        self.geometry.set(level);
        self.shape.store(Shape::new(level, 0).0, Release);
    }

    /// Splits the entries of a latched bucket and of those behind it into those that stay and those that go to its sibling, if their tags
    /// are full and go on holding the same bits.
    fn divide(&self, bucket: &Bucket, level: u32, stay: &mut Words, go: &mut Words) -> bool {
        (stay.count, go.count) = (0, 0);
        let bit = level - base(level);
        let mut part = bucket;
        while !is_rebase(level) && !part.tags().has_short() && stay.has_room() && go.has_room() {
            for slot in part.entries() {
                let word = slot.load(Acquire);
                let (is_there, goes) = (u64::from(word != 0), word >> bit & 1);
                // SAFETY: there is room for all of them.
                unsafe {
                    stay.push_if(word, is_there & !goes);
                    go.push_if(word, is_there & goes);
                }
            }
            let next = part.next();
            if next == 0 {
                return true;
            }
            part = self.overflow.bucket(next);
        }
        false
    }

    /// The same for short tags, long chains, and levels at which tags begin at another bit.
    fn divide_carefully(
        &self,
        bucket: &Bucket,
        at: u64,
        level: u32,
        stay: &mut Vec<u64>,
        lists: &mut [Vec<u64>; 2],
        records: &impl Records,
    ) {
        lists.iter_mut().for_each(Vec::clear);
        stay.clear();
        let [words, go] = lists;
        for part in self.chain(bucket) {
            words.extend(part.entries().iter().map(|slot| slot.load(Acquire)).filter(|word| *word != 0));
        }
        // Longest first: when tags run out, the longest of them is the one that counts.
        if words.iter().any(|word| word & FULL == 0) {
            words.sort_unstable_by_key(|word| std::cmp::Reverse(valid_bits(tag_of(*word))));
        }
        let rebase = base(level + 1) - base(level);
        let bit = level - base(level);
        for &word in words.iter() {
            // Wherever it goes, the chain stays what it is.
            let (tag, address, marks) = (tag_of(word), address_of(word), word & MARKS);
            if rebase > 0
                && let Chain::Alone(hash) = records.chain(address)
                // A tag of too few bits may have come here with another bucket's record, or beside the record's own.
                && (hash >> BUCKET_BITS) & ((1 << level) - 1) == at
                && match_bits(tag, full_tag(hash >> BUCKET_BITS >> base(level))).is_some()
            {
                let side = if hash >> BUCKET_BITS >> level & 1 == 1 { &mut *go } else { &mut *stay };
                push_unless_shadowed(side, entry_word(full_tag(hash >> BUCKET_BITS >> base(level + 1)), address) | marks);
                continue;
            }
            let known = valid_bits(tag) > bit;
            let short = if rebase == 0 { tag } else { (tag >> rebase).max(1) };
            let short = entry_word(short, address) | marks;
            if !known {
                self.twins.fetch_add(1, Release);
            }
            if !known || tag >> bit & 1 == 0 {
                push_unless_shadowed(stay, short);
            }
            if !known || tag >> bit & 1 == 1 {
                push_unless_shadowed(go, short);
            }
        }
    }

    /// Rewrites bucket `at` and those behind it to hold exactly `words`.
    pub(super) fn refill(&self, at: u64, words: &[u64]) {
        let mut part = self.bucket(at);
        let (mut now, mut rest) = words.split_at(words.len().min(ENTRIES));
        loop {
            let mut padded = [0; ENTRIES];
            padded[..now.len()].copy_from_slice(now);
            part.entries().iter().zip(padded).for_each(|(slot, word)| slot.store(word, Release));
            let next = part.next();
            if rest.is_empty() {
                if next != 0 {
                    part.set_next(0);
                    self.overflow.give_back(next);
                }
                return;
            }
            // A split makes room in all; that it may need a bucket before it frees one must not fail (`RESERVE`).
            let next =
                if next != 0 { next } else { self.overflow.take(at, u64::MAX).unwrap_or_else(|| unreachable!("2^30 overflow buckets")) };
            part.set_next(next);
            part = self.overflow.bucket(next);
            (now, rest) = rest.split_at(rest.len().min(ENTRIES));
        }
    }

    /// An entry went out of latched bucket `at` or of one behind it: does without the last of these if there is room before it, and to
    /// spare: who comes next should not need it again. Where as many entries come as go nothing else gives overflow buckets back.
    pub(super) fn close_up(&self, at: u64) {
        let root = self.bucket(at);
        let free: u32 = self.chain(root).map(|part| part.tags().empty().count_ones()).sum();
        if free as usize >= ENTRIES + CLOSED_UP_SPARE {
            let entries = self.chain(root).flat_map(Bucket::entries);
            let words: Vec<u64> = entries.map(|slot| slot.load(Relaxed)).filter(|word| *word != 0).collect();
            root.begin_move();
            self.refill(at, &words);
            root.end_move();
        }
    }

    /// Moves buckets from the end of the overflow pool into free ones: two for each split, so that it keeps up.
    pub(super) fn tidy(&self, splits: u64) {
        for _ in 0..2 * splits {
            let Some((last, owner)) = self.overflow.last_to_move() else { return };
            self.move_overflow(last, owner);
        }
    }

    pub(super) fn move_overflow(&self, last: u64, owner: u64) {
        let root = self.bucket(owner);
        root.latch();
        if let Some(before) = self.chain(root).find(|part| part.next() == last)
            && let Some(into) = self.overflow.take_listed(owner)
        {
            let (from, to) = (self.overflow.bucket(last), self.overflow.bucket(into));
            root.begin_move();
            from.entries().iter().zip(to.entries()).for_each(|(from, to)| to.store(from.load(Relaxed), Release));
            to.set_next(from.next());
            before.set_next(into);
            root.end_move();
            self.overflow.give_back_last(last);
        }
        root.unlatch();
    }

    /// Backs the memory that the next splits will use.
    pub(crate) fn populate_ahead(&self) {
        let bytes = self.buckets() * 64;
        let ahead = ahead(bytes, 1 << 20);
        let limit = self.limit.load(Relaxed).saturating_sub(self.overflow.buckets()).saturating_mul(64);
        let to = (bytes + ahead).min(limit).min(self.table.bytes() as u64);
        let from = self.populated.load(Relaxed).max(bytes);
        if from + ahead / 2 < to && self.splits_due() > 0 {
            self.table.populate(from as usize, to as usize);
            self.populated.store(to, Relaxed);
        }
    }
}

/// Tags at the next level begin at another bit.
fn is_rebase(level: u32) -> bool {
    base(level + 1) != base(level)
}

/// Tags that ran out cover the whole bucket; the first (longest before) shadows the others for good.
fn push_unless_shadowed(words: &mut Vec<u64>, word: u64) {
    if tag_of(word) != 1 || !words.iter().any(|other| tag_of(*other) == 1) {
        words.push(word);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl Index {
    /// What `act` comes to while the bucket of a key moves, and only a shorter tag is there for it, that leads to `old`.
    pub(crate) fn while_it_moves_for_test<R: Send>(&self, hash: u64, old: u64, act: impl Fn() -> R + Sync) -> R {
        let newest = self.lookup(hash).entry & !MARKS;
        let mut words = Vec::new();
        let holds = |at: &u64| {
            self.words_at_once(*at, 0, &mut words);
            words.contains(&newest)
        };
        let at = (0..self.buckets()).find(holds).expect("the entry is in a bucket");
        // Three bits of the tag, and the one that ends them.
        let shorter = entry_word(newest & 7 | 8, old);
        let others: Vec<u64> = words.iter().copied().filter(|word| *word != newest).collect();
        self.begin_move_for_test(at, &[&others[..], &[shorter]].concat());
        std::thread::scope(|scope| {
            let acted = scope.spawn(&act);
            // Until it has met the bucket, most likely.
            std::thread::sleep(std::time::Duration::from_millis(5));
            self.end_move_for_test(at, &[&others[..], &[newest, shorter]].concat());
            acted.join().expect("no panic")
        })
    }

    /// A bucket that moves, stopped in the middle: `words` are there so far.
    pub(crate) fn begin_move_for_test(&self, at: u64, words: &[u64]) {
        self.bucket(at).latch();
        self.bucket(at).begin_move();
        self.refill(at, words);
    }

    pub(crate) fn end_move_for_test(&self, at: u64, words: &[u64]) {
        self.refill(at, words);
        self.bucket(at).end_move();
        self.bucket(at).unlatch();
    }
}
