//! The index: hash -> newest address, in cache-line buckets, growing one bucket at a time.
//!
//! ```text
//! bucket, 64 bytes:  [entry 0] ... [entry 6] [link: overflow 30 | version 33 | latch 1]
//! entry,   8 bytes:  [tag 16 | address 48], 0 = empty
//! tag:               1 followed by v hash bits, v = 15 for a full tag:  1bbb bbbb bbbb bbbb,  v = 3:  0000 0000 0000 1bbb
//! ```
//! **Growth** is linear hashing (Litwin 1980): the table of N = 2^L buckets extends to N + p, buckets below p are split
//! into i and i + N. No second table, no copy of what stays, and it can stop at any bucket when the memory share is spent.
//!
//! **A split never reads the device**: a tag holds the hash bits from `base(level)` up, so the bit that decides the side
//! is in the tag. Every few doublings the base moves up; records in memory get a fresh full tag from their key, the
//! others keep a *shorter* tag: the bits still known.
//!
//! **A tag may be short**, then it stands for all hashes that agree on its bits. A lookup takes the longest match. An
//! entry is added only when nothing matches; a full bucket without overflow room shortens its closest entry until it
//! matches. Both keep a key's chain at its longest match (shortening to the common prefix with an unmatched tag cannot
//! touch another tag's longest match when, of equally close entries, the shortest is taken).
//!
//! **Who may do what**: readers take no latch; whoever changes an entry holds the bucket's latch. A change that *moves*
//! entries makes the version odd first and even after; "not found" counts only if version and shape stood still.

use crate::error::Result;
use crate::memory::Region;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

pub(crate) const ENTRIES: usize = 7;
const LINK: usize = 7;
const ADDRESS_BITS: u32 = 48;
pub(crate) const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const TAG_BITS: u32 = 15;
const FULL: u64 = 1 << TAG_BITS;

const LATCH: u64 = 1;
const VERSION: u64 = 2;
const VERSION_MASK: u64 = ((1 << 34) - 1) & !LATCH;
const OVERFLOW_SHIFT: u32 = 34;

const FIRST_LEVEL: u32 = 8;
/// Entries per bucket at which the table doubles. Just after it 64 / 4.62 = 13.9 bytes an entry are bucket.
const LOAD_MAX: f64 = 9.25;

#[repr(C, align(64))]
struct Bucket([AtomicU64; 8]);
const _: () = assert!(size_of::<Bucket>() == 64);

/// The table's shape in one word: level in the top byte, the split position below.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    fn new(level: u32, split: u64) -> Self {
        Self((u64::from(level) << 56) | split)
    }
    #[inline(always)]
    fn level(self) -> u32 {
        (self.0 >> 56) as u32
    }
    #[inline(always)]
    fn split(self) -> u64 {
        self.0 & ((1 << 56) - 1)
    }
    fn buckets(self) -> u64 {
        (1 << self.level()) + self.split()
    }
    /// The bucket of a hash and that bucket's own level.
    #[inline(always)]
    fn locate(self, hash: u64) -> (u64, u32) {
        let low = (1u64 << self.level()) - 1;
        let is_split = u64::from(hash & low < self.split());
        (hash & (low | (is_split << self.level())), self.level() + is_split as u32)
    }
}

/// The first hash bit that tags at this level hold. Constant for six doublings, so that at least nine bits tell.
#[inline(always)]
fn base(level: u32) -> u32 {
    u32::from(BASES[level as usize & 63])
}

const BASES: [u8; 64] = {
    let mut bases = [0; 64];
    let mut level = 0;
    while level < 64 {
        bases[level] = if level <= 14 { level } else { 14 + (level - 14) / 6 * 6 } as u8;
        level += 1;
    }
    bases
};

#[inline(always)]
fn full_tag(hash: u64, level: u32) -> u64 {
    ((hash >> base(level)) & (FULL - 1)) | FULL
}

fn valid_bits(tag: u64) -> u32 {
    63 - tag.leading_zeros()
}

/// How many bits `tag` has if it stands for the full tag `full`.
fn match_bits(tag: u64, full: u64) -> Option<u32> {
    if tag == 0 {
        return None;
    }
    let bits = valid_bits(tag);
    (tag & !(1 << bits) == full & ((1 << bits) - 1)).then_some(bits)
}

/// What a lookup saw, and what makes "not found" true: the same bucket, unmoved.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// The matching entry's word, 0 if there was none.
    pub(crate) entry: u64,
    bucket: u64,
    version: u64,
    shape: Shape,
}

impl Seen {
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.entry & ADDRESS_MASK
    }
}

/// How a publication ended.
pub(crate) enum Published {
    Done,
    /// Someone else changed the entry: look again.
    Changed,
    /// The new address is below the entry's; chains must descend. Allocate again.
    TooLow,
}

/// A record as a split sees it.
pub(crate) enum Chain {
    /// One record alone, in memory, with this hash.
    Alone(u64),
    /// Several records, or on the device: only the tag's own bits are known.
    Unknown,
}

pub(crate) struct Index {
    table: Region,
    overflow: Region,
    shape: AtomicU64,
    entries: AtomicU64,
    free: Mutex<FreeList>,
    /// Buckets plus overflow buckets that may exist.
    limit: AtomicU64,
}

#[derive(Default)]
struct FreeList {
    next: u64,
    free: Vec<u32>,
}

impl Index {
    pub(crate) fn new() -> Result<Self> {
        let table = Region::reserve(1 << 38, 1 << 28)?;
        table.prefer_huge_pages();
        Ok(Self {
            table,
            overflow: Region::reserve(1 << 36, 1 << 26)?,
            shape: AtomicU64::new(Shape::new(FIRST_LEVEL, 0).0),
            entries: AtomicU64::new(0),
            free: Mutex::new(FreeList { next: 1, free: Vec::new() }),
            limit: AtomicU64::new(u64::MAX),
        })
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        // Acquire: pairs with the Release in `split_next`; the new bucket's entries are visible.
        Shape(self.shape.load(Acquire))
    }

    #[inline(always)]
    fn bucket(&self, at: u64) -> &Bucket {
        debug_assert!((at as usize + 1) * 64 <= self.table.bytes());
        // SAFETY: `at` comes from a published shape, so the bucket lies inside the region; fresh memory is all empty entries.
        unsafe { &*self.table.base().cast::<Bucket>().add(at as usize) }
    }

    fn overflow_bucket(&self, at: u64) -> &Bucket {
        // SAFETY: overflow numbers are handed out by `take_overflow` below the region's end.
        unsafe { &*self.overflow.base().cast::<Bucket>().add(at as usize) }
    }

    /// The bucket and those behind it.
    fn chain<'a>(&'a self, bucket: &'a Bucket) -> impl Iterator<Item = &'a Bucket> {
        std::iter::successors(Some(bucket), |at| {
            let next = at.0[LINK].load(Acquire) >> OVERFLOW_SHIFT;
            (next != 0).then(|| self.overflow_bucket(next))
        })
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.bucket(self.shape().locate(hash).0));
    }

    /// The entry for `hash`, without a latch.
    #[inline(always)]
    pub(crate) fn lookup(&self, hash: u64) -> Seen {
        let shape = self.shape();
        let (at, level) = shape.locate(hash);
        let bucket = self.bucket(at);
        let tag = full_tag(hash, level);
        let link = bucket.0[LINK].load(Acquire);
        let mut entry = 0;
        if let Some(slot) = bucket.find_full(tag) {
            let word = bucket.0[slot].load(Acquire);
            if word >> ADDRESS_BITS == tag {
                entry = word;
            }
        }
        if entry == 0 && (link >> OVERFLOW_SHIFT != 0 || bucket.has_short()) {
            entry = self.lookup_further(bucket, tag);
        }
        Seen { entry, bucket: at, version: link & VERSION_MASK, shape }
    }

    #[cold]
    #[inline(never)]
    fn lookup_further(&self, bucket: &Bucket, tag: u64) -> u64 {
        self.find(bucket, tag).map_or(0, |(_, word)| word)
    }

    /// The entry for a full tag: a full match if there is one, else the longest short one.
    fn find<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<(&'a AtomicU64, u64)> {
        let mut has_short = false;
        for part in self.chain(bucket) {
            if let Some(slot) = part.find_full(tag) {
                let word = part.0[slot].load(Acquire);
                if word >> ADDRESS_BITS == tag {
                    return Some((&part.0[slot], word));
                }
            }
            has_short |= part.has_short();
        }
        if has_short { self.longest_match(bucket, tag) } else { None }
    }

    fn longest_match<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> Option<(&'a AtomicU64, u64)> {
        let mut best: Option<(u32, &AtomicU64, u64)> = None;
        for part in self.chain(bucket) {
            for slot in &part.0[..ENTRIES] {
                let word = slot.load(Acquire);
                if let Some(bits) = match_bits(word >> ADDRESS_BITS, tag)
                    && best.is_none_or(|(most, ..)| bits > most)
                {
                    best = Some((bits, slot, word));
                }
            }
        }
        best.map(|(_, slot, word)| (slot, word))
    }

    /// True if an absence concluded from `seen` holds: nothing was moving, nothing has moved.
    #[inline(always)]
    pub(crate) fn is_settled(&self, seen: &Seen) -> bool {
        // Acquire fence: the entry loads above happen before the version is read again.
        fence(Acquire);
        let link = self.bucket(seen.bucket).0[LINK].load(Relaxed);
        seen.version & VERSION == 0 && link & VERSION_MASK == seen.version && self.shape() == seen.shape
    }

    /// Points the entry of `hash` at the new record `at`, if it is still what `seen` saw.
    /// `link_to` is called before publication when the record must also lead to an entry that it will share.
    pub(crate) fn publish(&self, hash: u64, seen: &Seen, at: u64, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        let (bucket, level) = self.latch(hash);
        let tag = full_tag(hash, level);
        let outcome = match self.find(bucket, tag) {
            Some((_, word)) if word & ADDRESS_MASK != seen.address() => Published::Changed,
            Some((_, word)) if word & ADDRESS_MASK > at => Published::TooLow,
            Some((slot, word)) => {
                // Release: the record's bytes are visible to whoever finds the address.
                slot.store((word & !ADDRESS_MASK) | at, Release);
                Published::Done
            }
            None if seen.entry != 0 => Published::Changed,
            None => self.add_entry(bucket, tag, at, added, link_to),
        };
        bucket.unlatch();
        outcome
    }

    fn add_entry(&self, bucket: &Bucket, tag: u64, at: u64, added: &mut bool, link_to: impl FnOnce(u64)) -> Published {
        if let Some(slot) = self.empty_slot(bucket) {
            slot.store((tag << ADDRESS_BITS) | at, Release);
            *added = true;
            return Published::Done;
        }
        let (slot, common) = self.closest(bucket, tag);
        let word = slot.load(Relaxed);
        if word & ADDRESS_MASK > at {
            return Published::TooLow;
        }
        link_to(word & ADDRESS_MASK);
        let short = (1 << common) | (tag & ((1 << common) - 1));
        slot.store((short << ADDRESS_BITS) | at, Release);
        Published::Done
    }

    fn empty_slot<'a>(&'a self, bucket: &'a Bucket) -> Option<&'a AtomicU64> {
        let mut last = bucket;
        for part in self.chain(bucket) {
            if let Some(slot) = part.0[..ENTRIES].iter().find(|slot| slot.load(Relaxed) == 0) {
                return Some(slot);
            }
            last = part;
        }
        let fresh = self.take_overflow()?;
        let link = last.0[LINK].load(Relaxed);
        last.0[LINK].store((link & (VERSION_MASK | LATCH)) | (fresh << OVERFLOW_SHIFT), Release);
        Some(&self.overflow_bucket(fresh).0[0])
    }

    /// Of the entries with the most bits in common with `tag` the one with the shortest tag, and that number of bits.
    fn closest<'a>(&'a self, bucket: &'a Bucket, tag: u64) -> (&'a AtomicU64, u32) {
        let all = self.chain(bucket).flat_map(|part| &part.0[..ENTRIES]);
        let scored = all.map(|slot| {
            let word = slot.load(Relaxed);
            let bits = valid_bits(word >> ADDRESS_BITS);
            let common = ((word >> ADDRESS_BITS) ^ tag).trailing_zeros().min(bits);
            (common, bits, slot)
        });
        let (common, _, slot) = scored
            .reduce(|a, b| if (b.0, TAG_BITS - b.1) > (a.0, TAG_BITS - a.1) { b } else { a })
            .unwrap_or_else(|| unreachable!("a bucket has seven entries"));
        (slot, common)
    }

    /// Latches the bucket that holds `hash`, whatever splits go on.
    fn latch(&self, hash: u64) -> (&Bucket, u32) {
        loop {
            let shape = self.shape();
            let (at, level) = shape.locate(hash);
            let bucket = self.bucket(at);
            bucket.latch();
            // A split of this bucket changes the shape under its latch, which we hold now.
            if self.shape().locate(hash) == (at, level) {
                return (bucket, level);
            }
            bucket.unlatch();
        }
    }

    fn take_overflow(&self) -> Option<u64> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(number) = free.free.pop() {
            return Some(u64::from(number));
        }
        let fits =
            self.shape().buckets() + free.next < self.limit.load(Relaxed) && free.next < (1 << 30).min(self.overflow.bytes() as u64 / 64);
        fits.then(|| {
            free.next += 1;
            free.next - 1
        })
    }

    pub(crate) fn add_to_count(&self, entries: u64) {
        self.entries.fetch_add(entries, Relaxed);
    }

    /// True when a split is due and the memory for it is there.
    pub(crate) fn wants_split(&self) -> bool {
        let shape = self.shape();
        let due = shape.split() > 0 || self.entries.load(Relaxed) as f64 > LOAD_MAX * (1u64 << shape.level()) as f64;
        due && self.buckets_in_all() + 64 < self.limit.load(Relaxed) && (shape.buckets() as usize + 1) * 64 < self.table.bytes()
    }

    fn buckets_in_all(&self) -> u64 {
        let free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        self.shape().buckets() + free.next
    }

    /// Splits the next bucket. One caller at a time (the driver).
    pub(crate) fn split_next(&self, chain_of: impl Fn(u64) -> Chain) {
        let shape = self.shape();
        let (level, at) = (shape.level(), shape.split());
        let bucket = self.bucket(at);
        let sibling = self.bucket(at + (1 << level));
        bucket.latch();
        let (stay, go) = self.divide(bucket, at, level, chain_of);
        self.refill(sibling, &go);
        let next = if at + 1 == 1 << level { Shape::new(level + 1, 0) } else { Shape::new(level, at + 1) };
        // Release: whoever sees the new shape sees the sibling's entries.
        self.shape.store(next.0, Release);
        bucket.begin_move();
        self.refill(bucket, &stay);
        bucket.end_move();
        bucket.unlatch();
    }

    fn divide(&self, bucket: &Bucket, at: u64, level: u32, chain_of: impl Fn(u64) -> Chain) -> (Vec<u64>, Vec<u64>) {
        let (mut stay, mut go) = (Vec::with_capacity(16), Vec::with_capacity(16));
        let rebase = base(level + 1) - base(level);
        let all = self.chain(bucket).flat_map(|part| &part.0[..ENTRIES]);
        let mut words: Vec<u64> = all.map(|slot| slot.load(Acquire)).filter(|word| *word != 0).collect();
        // Longest first: when tags run out, the longest of them is the one that counts.
        words.sort_unstable_by_key(|word| std::cmp::Reverse(valid_bits(word >> ADDRESS_BITS)));
        for word in words {
            let (tag, address) = (word >> ADDRESS_BITS, word & ADDRESS_MASK);
            if rebase > 0
                && let Chain::Alone(hash) = chain_of(address)
            {
                debug_assert_eq!(hash & ((1 << level) - 1), at);
                let side = if hash >> level & 1 == 1 { &mut go } else { &mut stay };
                push_unless_shadowed(side, (full_tag(hash, level + 1) << ADDRESS_BITS) | address);
                continue;
            }
            let bit = level - base(level);
            let known = valid_bits(tag) > bit;
            let short = if rebase == 0 { tag } else { (tag >> rebase).max(1) };
            let short = (short << ADDRESS_BITS) | address;
            if !known || tag >> bit & 1 == 0 {
                push_unless_shadowed(&mut stay, short);
            }
            if !known || tag >> bit & 1 == 1 {
                push_unless_shadowed(&mut go, short);
            }
        }
        (stay, go)
    }

    /// Rewrites a bucket and those behind it to hold exactly `words`.
    fn refill(&self, bucket: &Bucket, words: &[u64]) {
        let mut rest = words;
        let mut part = bucket;
        loop {
            let (now, later) = rest.split_at(rest.len().min(ENTRIES));
            for (i, slot) in part.0[..ENTRIES].iter().enumerate() {
                slot.store(now.get(i).copied().unwrap_or(0), Release);
            }
            rest = later;
            let link = part.0[LINK].load(Relaxed);
            let next = link >> OVERFLOW_SHIFT;
            if rest.is_empty() {
                part.0[LINK].store(link & (VERSION_MASK | LATCH), Release);
                return self.free_chain(next);
            }
            let next = if next != 0 { next } else { self.take_overflow_for_split() };
            part.0[LINK].store((link & (VERSION_MASK | LATCH)) | (next << OVERFLOW_SHIFT), Release);
            part = self.overflow_bucket(next);
        }
    }

    /// A split makes room in all; that it may need a bucket before it frees one must not fail.
    fn take_overflow_for_split(&self) -> u64 {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        free.free.pop().map_or_else(
            || {
                free.next += 1;
                free.next - 1
            },
            u64::from,
        )
    }

    fn free_chain(&self, mut number: u64) {
        while number != 0 {
            let bucket = self.overflow_bucket(number);
            let next = bucket.0[LINK].load(Relaxed) >> OVERFLOW_SHIFT;
            for word in &bucket.0 {
                word.store(0, Release);
            }
            let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
            free.free.push(number as u32);
            number = next;
        }
    }

    /// Sets how many bytes the index may take; what it has it keeps.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes / 64, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buckets_in_all() * 64
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.shape().buckets()
    }

    pub(crate) fn overflow_buckets(&self) -> u64 {
        let free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        free.next - 1 - free.free.len() as u64
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// All entries of one bucket, for images and statistics.
    pub(crate) fn words(&self, at: u64) -> Vec<u64> {
        let all = self.chain(self.bucket(at)).flat_map(|part| &part.0[..ENTRIES]);
        all.map(|slot| slot.load(Acquire)).filter(|word| *word != 0).collect()
    }

    pub(crate) fn shape_word(&self) -> u64 {
        self.shape().0
    }

    /// Takes the shape of an image; the caller then restores each bucket. Before the store is shared.
    pub(crate) fn restore_shape(&self, word: u64) -> bool {
        let shape = Shape(word);
        let fits = (FIRST_LEVEL..40).contains(&shape.level())
            && shape.split() < 1 << shape.level()
            && shape.buckets() as usize * 64 < self.table.bytes();
        if fits {
            self.shape.store(word, Release);
        }
        fits
    }

    pub(crate) fn restore(&self, at: u64, words: &[u64]) {
        self.refill(self.bucket(at), words);
        self.add_to_count(words.len() as u64);
    }
}

/// Tags that ran out cover the whole bucket; the first (longest before) shadows the others for good.
fn push_unless_shadowed(words: &mut Vec<u64>, word: u64) {
    if word >> ADDRESS_BITS != 1 || !words.iter().any(|other| other >> ADDRESS_BITS == 1) {
        words.push(word);
    }
}

impl Bucket {
    /// The slot whose tag is `tag`: all seven compared at once, no data-dependent branch.
    #[inline(always)]
    fn find_full(&self, tag: u64) -> Option<usize> {
        let mask = self.equal_tags(tag as u16);
        (mask != 0).then(|| mask.trailing_zeros() as usize / 2)
    }

    /// Bit 2 i + 1 is set if slot i has the tag.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn equal_tags(&self, tag: u16) -> u32 {
        use std::arch::x86_64::*;
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: 64 bytes inside `self`, aligned. The loads may race with stores of single words: x86-64 makes each
        // aligned 8-byte half of such a load atomic, and for the compiler an asm block is not a racing Rust read.
        // The answer is only a hint; the entry is loaded again as an atomic before it is used.
        unsafe {
            std::arch::asm!(
                "movdqa {a}, [{p}]",
                "movdqa {b}, [{p} + 16]",
                "movdqa {c}, [{p} + 32]",
                "movdqa {d}, [{p} + 48]",
                p = in(reg) self,
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(nostack, preserves_flags, readonly, pure)
            );
        }
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            // Lane 3 of each 64-bit word is the tag: shift the others out, pack twice, one byte a word remains.
            let want = _mm_set1_epi16(tag as i16);
            let ab = _mm_packs_epi32(_mm_srai_epi32::<16>(_mm_cmpeq_epi16(a, want)), _mm_srai_epi32::<16>(_mm_cmpeq_epi16(b, want)));
            let cd = _mm_packs_epi32(_mm_srai_epi32::<16>(_mm_cmpeq_epi16(c, want)), _mm_srai_epi32::<16>(_mm_cmpeq_epi16(d, want)));
            // 16 bits a 32-bit half now: odd lanes are the tags.
            let bytes = _mm_packs_epi16(ab, cd);
            _mm_movemask_epi8(bytes) as u32 & 0x2aaa
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn equal_tags(&self, tag: u16) -> u32 {
        (0..ENTRIES).fold(0, |mask, i| mask | (u32::from(self.0[i].load(Relaxed) >> ADDRESS_BITS == u64::from(tag)) << (2 * i + 1)))
    }

    fn has_short(&self) -> bool {
        self.0[..ENTRIES].iter().any(|slot| {
            let word = slot.load(Relaxed);
            word != 0 && word >> 63 == 0
        })
    }

    fn latch(&self) {
        let link = &self.0[LINK];
        loop {
            let seen = link.load(Relaxed);
            // Acquire: pairs with the Release in `unlatch`.
            if seen & LATCH == 0 && link.compare_exchange_weak(seen, seen | LATCH, Acquire, Relaxed).is_ok() {
                return;
            }
            let mut spins = 0;
            while link.load(Relaxed) & LATCH != 0 {
                spins += 1;
                if spins < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }

    fn unlatch(&self) {
        let link = self.0[LINK].load(Relaxed);
        self.0[LINK].store(link & !LATCH, Release);
    }

    fn begin_move(&self) {
        self.bump_version();
        // Release fence: the odd version is visible before any moved entry.
        fence(Release);
    }

    fn end_move(&self) {
        self.bump_version();
    }

    fn bump_version(&self) {
        let link = self.0[LINK].load(Relaxed);
        let version = (link + VERSION) & VERSION_MASK;
        self.0[LINK].store((link & !VERSION_MASK) | version, Release);
    }
}

#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(n: u64) -> u64 {
        let x = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        (x as u64) ^ (x >> 64) as u64
    }

    fn insert(index: &Index, hash: u64, at: u64) -> Option<u64> {
        let seen = index.lookup(hash);
        let mut linked = None;
        let mut added = false;
        assert!(matches!(index.publish(hash, &seen, at, &mut added, |to| linked = Some(to)), Published::Done));
        index.add_to_count(u64::from(added));
        linked.or((seen.entry != 0).then_some(seen.address()))
    }

    #[test]
    fn entries_stay_reachable_while_the_table_grows() {
        let index = Index::new().unwrap();
        let mut previous = std::collections::HashMap::new();
        for n in 1..60_000u64 {
            let link = insert(&index, mix(n), n * 8);
            previous.insert(n * 8, link);
            while index.wants_split() {
                index.split_next(|_| Chain::Unknown);
            }
        }
        for n in 1..60_000u64 {
            let mut at = Some(index.lookup(mix(n)).address());
            while at != Some(n * 8) {
                at = previous[&at.expect("the chain of {n} ends too early")];
            }
        }
    }

    #[test]
    fn a_full_share_shortens_tags_and_loses_nothing() {
        let index = Index::new().unwrap();
        index.set_limit(1 << 15);
        let mut previous = std::collections::HashMap::new();
        for n in 1..20_000u64 {
            previous.insert(n * 8, insert(&index, mix(n), n * 8));
            if index.wants_split() {
                index.split_next(|_| Chain::Unknown);
            }
        }
        assert!(index.bytes() <= 1 << 15);
        index.set_limit(u64::MAX);
        while index.wants_split() {
            index.split_next(|_| Chain::Unknown);
        }
        for n in 1..20_000u64 {
            let mut at = Some(index.lookup(mix(n)).address());
            while at != Some(n * 8) {
                at = previous[&at.expect("the chain ends too early")];
            }
        }
    }

    #[test]
    fn the_vector_compare_finds_each_slot() {
        for slot in 0..ENTRIES {
            let bucket = Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
            bucket.0[slot].store(0x8123 << ADDRESS_BITS | 0x8123_8123_8128, Relaxed);
            assert_eq!(bucket.find_full(0x8123), Some(slot));
            assert_eq!(bucket.find_full(0x8124), None);
        }
    }
}
