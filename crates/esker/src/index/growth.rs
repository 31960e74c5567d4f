//! Growth: whoever adds entries splits buckets, in proportion.
//!
//! A doubling from N buckets begins at 5.2 entries a bucket and spreads over the next 4.2 N insertions, so it ends at 4.7 a
//! bucket: 15.4 bytes an entry at the worst point, 14.2 at the best. (The later a doubling begins, the quicker it must be, and
//! the more entries lie behind full buckets meanwhile; the earlier, the more bytes: 15.7 from 5.0.) Insertions go at nearly the
//! same rate all the time, and none waits for more than [`SPLITS_PER_TURN`] splits. Buckets split in the order of their numbers: the memory is read and written in
//! sequence, and each turn starts fetching what the turns after it will need.
//!
//! One thread splits at a time (`growing`); a thread that finds another at it goes on with its own work. But where threads are many more than
//! processors, whoever splits is often asleep, for as long as all others take their turns, and they would fill buckets that nobody splits: so who
//! finds more than a turn's splits left undone lets others run first.

use super::bucket::{Bucket, ENTRIES, MARKS, address_of, entry_word, tag_of};
use super::{BUCKET_BITS, DOUBLING, FULL, Index, Shape, TURNING, base, full_tag, valid_bits};
use crate::memory::{ahead, prefetch_to_write};
use crate::sync::atomic::{Ordering::*, fence};
use crate::sync::{MutexGuard, Rule, broken, lock, thread, try_lock};

/// Splits done at once, at most: some microseconds.
const SPLITS_PER_TURN: u64 = 32;
/// Splits between fetching one thing and the next that it leads to.
const AHEAD_SPLITS: u64 = 8;
/// Buckets that must be left of the share for a turn to begin: each split may need one more.
const RESERVE: u64 = 2 * SPLITS_PER_TURN;
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
pub(super) struct Workspace {
    stay: Words,
    go: Words,
    /// For what needs care: all entries, those that stay, those that go.
    lists: [Vec<u64>; 3],
}

/// A list of entries without a branch on its length when one is added.
struct Words {
    words: Box<[u64; WORK_ENTRIES]>,
    count: usize,
}

impl Default for Workspace {
    fn default() -> Self {
        let words = || Words { words: Box::new([0; WORK_ENTRIES]), count: 0 };
        Self { stay: words(), go: words(), lists: Default::default() }
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
        if fits && level < 31 { due.min(SPLITS_PER_TURN) } else { 0 }
    }

    /// Counts `added` new entries and does the share of growth that comes with them. Under a pin; true if the index grew.
    pub(crate) fn grow(&self, added: u64, records: &impl Records) -> bool {
        self.add_to_count(added);
        let due = self.splits_due();
        if due == 0 {
            return false;
        }
        let Some(mut workspace) = try_lock(&self.growing) else {
            if due == SPLITS_PER_TURN {
                thread::yield_now();
            }
            return false;
        };
        // Another thread may have done it just now.
        let due = self.splits_due();
        let ahead = self.shape().split();
        self.fetch_ahead(due, records);
        for _ in 0..due {
            self.split_next(&mut workspace, records);
        }
        self.tidy(due);
        debug_assert!(due == 0 || self.shape().split() != ahead);
        true
    }

    /// True if the table's address space has room for so many buckets: the system may have granted less than was asked for.
    pub(crate) fn has_space_for(&self, buckets: u64) -> bool {
        (buckets + RESERVE) as usize * 64 < self.table.bytes()
    }

    /// Splits until the table has the shape of `word`, however few its entries are. Before the store is shared.
    pub(crate) fn grow_to(&self, word: u64, records: &impl Records) {
        let mut workspace = lock(&self.growing);
        while self.shape().buckets() < Shape(word).buckets() {
            self.split_next(&mut workspace, records);
        }
    }

    /// Keeps everybody else from splitting, for whoever needs the shape to stand still.
    pub(crate) fn hold(&self) -> MutexGuard<'_, impl Sized> {
        lock(&self.growing)
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

    pub(super) fn split_next(&self, workspace: &mut Workspace, records: &impl Records) {
        let shape = self.shape();
        let (level, at) = (shape.level(), shape.split());
        let (bucket, sibling) = (self.bucket(at), self.bucket(at + (1 << level)));
        bucket.latch();
        if let Some(words) = Self::words_alone(bucket, sibling, level) {
            // Each entry keeps its place, on one side or the other: nothing to list, and no branch on the bit that decides.
            let bit = level - base(level);
            let fill = |part: &Bucket, side: u64| {
                let words = words.iter().map(|word| word & (word >> bit & 1 ^ side).wrapping_sub(1));
                part.entries().iter().zip(words).for_each(|(slot, word)| slot.store(word, Release));
            };
            self.move_apart(level, at, || fill(bucket, 0), || fill(sibling, 1));
        } else if self.divide(bucket, level, workspace) {
            let Workspace { stay, go, .. } = &*workspace;
            self.move_apart(level, at, || self.refill(at, stay.as_slice()), || self.refill(at + (1 << level), go.as_slice()));
        } else {
            self.divide_carefully(bucket, at, level, &mut workspace.lists, records);
            let [_, stay, go] = &workspace.lists;
            self.move_apart(level, at, || self.refill(at, stay), || self.refill(at + (1 << level), go));
        }
        bucket.unlatch();
        if at + 1 == 1 << level {
            self.turn(level + 1);
        }
    }

    /// Gives a latched bucket's entries their new places: `stay` fills the bucket and those behind it, `go` its sibling.
    #[inline(always)]
    fn move_apart(&self, level: u32, at: u64, stay: impl Fn(), go: impl Fn()) {
        let (bucket, sibling) = (self.bucket(at), self.bucket(at + (1 << level)));
        // It may have been part of the table before: its version tells whoever saw it then (`shrink.rs`).
        if !broken(Rule::SiblingChanges) {
            sibling.latch();
        }
        if !broken(Rule::SiblingFirst) {
            go();
        }
        if !broken(Rule::SiblingChanges) {
            sibling.unlatch();
        }
        // Before the shape: with it, tags may begin at another bit. A reader that looks for a new tag among the old ones
        // must find the version odd, or it takes for absent what stays here.
        if !broken(Rule::OddBeforeShape) {
            bucket.begin_move();
        }
        let next = Shape::new(level, at + 1).0 | DOUBLING;
        // Release: whoever sees the new shape sees the sibling's entries.
        self.shape.store(if at + 1 == 1 << level && !broken(Rule::TurnIsMarked) { next | TURNING } else { next }, Release);
        if broken(Rule::OddBeforeShape) {
            bucket.begin_move();
        }
        stay();
        bucket.end_move();
        if broken(Rule::SiblingFirst) {
            go();
        }
    }

    /// The entries of a latched bucket, if they are all there is, their tags are full and go on holding the same bits.
    #[inline(always)]
    fn words_alone(bucket: &Bucket, sibling: &Bucket, level: u32) -> Option<[u64; ENTRIES]> {
        let is_alone = bucket.next() == 0 && sibling.next() == 0;
        (is_alone && !is_rebase(level) && !bucket.tags().has_short()).then(|| std::array::from_fn(|at| bucket.entry(at).load(Acquire)))
    }

    /// The level's last bucket is split, the shape is turning: the same table, described by the next level.
    fn turn(&self, level: u32) {
        // Release fence: who reads new geometry finds a shape that is turning, or the new one.
        fence(Release);
        self.geometry.set(level);
        self.shape.store(Shape::new(level, 0).0, Release);
    }

    /// Splits the entries of a latched bucket and of those behind it into those that stay and those that go to its sibling, if their tags are
    /// full and go on holding the same bits.
    fn divide(&self, bucket: &Bucket, level: u32, workspace: &mut Workspace) -> bool {
        let Workspace { stay, go, .. } = workspace;
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
    fn divide_carefully(&self, bucket: &Bucket, at: u64, level: u32, lists: &mut [Vec<u64>; 3], records: &impl Records) {
        lists.iter_mut().for_each(Vec::clear);
        let [words, stay, go] = lists;
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
                // A tag of too few bits may have come here with another bucket's record.
                && (hash >> BUCKET_BITS) & ((1 << level) - 1) == at
            {
                let side = if hash >> BUCKET_BITS >> level & 1 == 1 { &mut *go } else { &mut *stay };
                push_unless_shadowed(side, entry_word(full_tag(hash >> BUCKET_BITS >> base(level + 1)), address) | marks);
                continue;
            }
            let known = valid_bits(tag) > bit;
            let short = if rebase == 0 { tag } else { (tag >> rebase).max(1) };
            let short = entry_word(short, address) | marks;
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
            let next = if next != 0 { next } else { self.overflow.take(at, true).unwrap_or_else(|| unreachable!("2^30 overflow buckets")) };
            part.set_next(next);
            part = self.overflow.bucket(next);
            (now, rest) = rest.split_at(rest.len().min(ENTRIES));
        }
    }

    /// An entry went out of latched bucket `at` or of one behind it: does without the last of these if there is room before it, and to spare: who comes
    /// next should not need it again. Where as many entries come as go nothing else gives overflow buckets back.
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
            && let Some(into) = self.overflow.take(owner, false)
        {
            let (from, to) = (self.overflow.bucket(last), self.overflow.bucket(into));
            root.begin_move();
            from.entries().iter().zip(to.entries()).for_each(|(from, to)| to.store(from.load(Relaxed), Release));
            to.set_next(from.next());
            before.set_next(into);
            root.end_move();
            from.set_next(0);
            self.overflow.give_back(last);
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
