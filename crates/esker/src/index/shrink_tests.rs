//! Shrinking, as the index alone sees it.

use super::{BUCKET_BITS, Chain, Collision, Covers, Index, Keys, Published, Records, Shrunk};
use std::collections::HashMap;

struct Cold;

impl Records for Cold {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, _: u64) -> Chain {
        Chain::Unknown
    }
}

/// Records in memory: the address says the number.
struct Warm;

impl Records for Warm {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, address: u64) -> Chain {
        Chain::Alone(mix(address / 8))
    }
}

/// One record alone in memory, whatever leads there.
struct One;

impl Records for One {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, _: u64) -> Chain {
        Chain::Alone(0)
    }
}

/// A tag that tells nothing goes to both sides of a split, and the record to one of them: the other side took it for its own.
#[test]
fn a_record_that_leads_into_another_bucket_is_not_this_buckets_own() {
    let index = Index::new(1 << 30).unwrap();
    index.grow_to_for_test(14);
    index.bucket(0).entry(0).store(super::bucket::entry_word(1, 8), crate::sync::atomic::Ordering::Release);
    index.grow_to(super::Shape::new(20, 0).0, &One);
    assert_eq!(index.lookup(0).address(), 8);
}

/// An entry of another tag that leads to a record of the key, out of date, was taken for the key's own.
#[test]
fn a_record_that_another_tag_leads_to_is_not_its_keys_own() {
    let index = Index::new(1 << 30).unwrap();
    index.grow_to_for_test(19);
    let entry = |slot, tag: u64, at| {
        index.bucket(0).entry(slot).store(super::bucket::entry_word(tag, at), crate::sync::atomic::Ordering::Release);
    };
    entry(0, super::full_tag(5), 8);
    entry(1, super::full_tag(0), 16);
    assert_eq!(index.lookup(0).address(), 16);
    index.grow_to(super::Shape::new(20, 0).0, &One);
    assert_eq!(index.lookup(0).address(), 16);
}

fn mix(n: u64) -> u64 {
    let x = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (x as u64) ^ (x >> 64) as u64
}

/// Publishes number `n` at address `8 n`; what its record leads to.
fn insert(index: &Index, hash: u64, at: u64) -> u64 {
    let seen = index.lookup(hash);
    let (mut linked, mut added) = (None, false);
    assert!(matches!(index.publish(hash, &seen, at, Keys::Unknown, &mut added, |to| linked = Some(to)), Published::Done));
    index.add_to_count(u64::from(added));
    linked.unwrap_or(seen.address())
}

/// Numbers, and what their records lead to.
fn fill(index: &Index, numbers: std::ops::Range<u64>, records: &impl Records) -> HashMap<u64, u64> {
    let mut previous = HashMap::new();
    for n in numbers {
        previous.insert(n * 8, insert(index, mix(n), n * 8));
        index.grow(0, records);
    }
    previous
}

fn is_reachable(index: &Index, n: u64, previous: &HashMap<u64, u64>) -> bool {
    let mut at = index.lookup(mix(n)).address();
    while at != 0 && at != n * 8 {
        at = previous[&at];
    }
    at != 0
}

/// Takes the entry of a number away, if it is its own.
fn remove(index: &Index, n: u64, previous: &HashMap<u64, u64>) {
    let seen = index.lookup(mix(n));
    if seen.address() == n * 8 && previous[&(n * 8)] == 0 {
        assert!(index.remove(mix(n), &seen).is_some());
    }
}

/// Shrinks as far as it goes. Where chains must be joined it does what the engine does: the one's record is published anew, leading
/// to the other's.
fn shrink_wholly(index: &Index, previous: &mut HashMap<u64, u64>, hashes: &mut HashMap<u64, u64>, top: &mut u64) -> usize {
    let (mut facts, mut joined) = (Vec::new(), 0);
    loop {
        match index.shrink(&facts, || {}) {
            Shrunk::Enough => return joined,
            Shrunk::Some => facts.clear(),
            Shrunk::Held(Collision { chain, onto }) => {
                let hash = *hashes.get(&chain).unwrap_or(&mix(chain / 8));
                let seen = index.lookup(hash);
                assert_eq!((seen.address(), previous[&chain]), (chain, 0), "a test's chains have one record");
                *top += 8;
                assert!(matches!(index.publish(hash, &seen, *top, Keys::Unknown, &mut false, |_| {}), Published::Done));
                previous.insert(*top, onto);
                hashes.insert(*top, hash);
                // The copy stands for what it was copied of.
                facts.push(Covers { head: *top, covered: onto });
                joined += 1;
            }
        }
    }
}

/// Buckets that a walk meets.
fn buckets_walked(index: &Index) -> u64 {
    let (mut at, mut count) = (Some(0), 0);
    while let Some(position) = at {
        at = index.prefetch_position(position);
        count += 1;
    }
    count + index.overflow_buckets()
}

#[test]
fn a_table_grows_and_shrinks_and_keeps_its_entries() {
    let index = Index::new(1 << 30).unwrap();
    let previous = fill(&index, 1..200_000, &Warm);
    let grown = index.buckets();
    for n in (1..200_000).filter(|n| n % 100 != 0) {
        remove(&index, n, &previous);
    }
    let (mut previous, mut hashes, mut top) = (previous, HashMap::new(), 10_000_000);
    let joined = shrink_wholly(&index, &mut previous, &mut hashes, &mut top);
    let small = index.buckets();
    assert!(small <= index.entries() / 2 && small < grown / 20, "{small} buckets for {} entries", index.entries());
    assert_eq!(buckets_walked(&index), small + index.overflow_buckets());
    let copied: Vec<u64> = hashes.values().copied().collect();
    for n in (100..200_000).step_by(100) {
        assert!(is_reachable(&index, n, &previous) || copied.contains(&mix(n)), "number {n} was lost, {joined} joined");
    }
    // And grow again.
    previous.extend(fill(&index, 2_000_000..2_200_000, &Cold));
    assert!(index.buckets() > small * 8);
    assert!((2_000_000..2_200_000).all(|n| is_reachable(&index, n, &previous)), "a number was lost when it grew again");
    assert!((100..200_000).step_by(100).all(|n| is_reachable(&index, n, &previous) || copied.contains(&mix(n))));
    // A finer shape is remembered until an image is taken.
    assert!(Index::buckets_of_shape(index.finest_shape()) >= grown);
    index.forget_finest();
    assert_eq!(index.finest_shape(), index.shape_word());
}

/// Hash bits above `BUCKET_BITS`: the bucket's number and the tag.
const fn hash(bits: u64) -> u64 {
    bits << BUCKET_BITS
}

/// Sixteen buckets more than at first, then back: with tags that tell the siblings' entries apart, and some that say little.
#[test]
fn tags_of_cold_entries_grow_back() {
    let index = Index::new(1 << 30).unwrap();
    // All in bucket 0 of 256: told apart by the bits from 8 on.
    let all: Vec<u64> = (0..12u64).map(|n| hash(n << 8)).collect();
    for (n, hash) in (1..).zip(&all) {
        assert_eq!(insert(&index, *hash, n * 8), 0);
    }
    let before = index.words(0).len();
    // Twice as fine and twice back, with records that are cold: each tag says two bits less, and then as many as before.
    for doublings in 1..=3 {
        index.grow_to_for_test(8 + doublings);
        index.shrink_by(u64::MAX, || {}).unwrap();
        assert_eq!((index.buckets(), index.words(0).len()), (256, before), "after {doublings} doublings");
        for (n, hash) in (1..).zip(&all) {
            assert_eq!(index.lookup(*hash).address(), n * 8);
        }
    }
}

/// Two hashes that only a finer table tells apart: they need one chain before it can be coarser, and the rest does not.
#[test]
fn entries_that_would_meet_hold_the_table_up() {
    let index = Index::new(1 << 30).unwrap();
    index.grow_to_for_test(9);
    // A tag at level 9 holds bits 9 to 23, at level 8 bits 8 to 22.
    let (one, other) = (hash(0), hash(1 << 23));
    insert(&index, one, 8);
    insert(&index, other, 16);
    assert_eq!(index.shrink_by(u64::MAX, || {}), Err(Collision { chain: 16, onto: 8 }));
    assert_eq!((index.lookup(one).address(), index.lookup(other).address()), (8, 16));
    // A copy that leads to the other.
    let seen = index.lookup(other);
    assert!(matches!(index.publish(other, &seen, 24, Keys::Unknown, &mut false, |_| {}), Published::Done));
    // Meanwhile the one changed: what was done is out of date.
    let seen = index.lookup(one);
    assert!(matches!(index.publish(one, &seen, 32, Keys::Unknown, &mut false, |_| {}), Published::Done));
    let fact = Covers { head: 24, covered: 8 };
    assert_eq!(index.merge_last(&[fact]), Err(Collision { chain: 32, onto: 24 }));
    let fact = Covers { head: 24, covered: 32 };
    assert_eq!(index.merge_last(&[fact]), Ok(()));
    assert_eq!((index.lookup(one).address(), index.lookup(other).address()), (24, 24));
}

/// A tag that is cut short takes hashes from a shorter one: these two need one chain, too.
#[test]
fn a_short_tag_keeps_its_hashes() {
    let index = Index::new(1 << 30).unwrap();
    index.grow_to_for_test(9);
    let long = hash(1 << 23);
    insert(&index, long, 8);
    // Stands for all of bucket 0 but that.
    index.bucket(0).entry(1).store(super::bucket::entry_word(0b1000, 16), super::Release);
    let taken = hash(0);
    assert_eq!(index.lookup(taken).address(), 16);
    assert_eq!(index.shrink_by(u64::MAX, || {}), Err(Collision { chain: 16, onto: 8 }));
    assert_eq!(index.merge_last(&[Covers { head: 16, covered: 8 }]), Ok(()));
    assert_eq!((index.lookup(taken).address(), index.lookup(long).address()), (16, 16));
    // What neither stood for, and what only the short one did.
    assert_eq!(index.lookup(hash(1 << 20)).address(), 16);
}

#[test]
fn memory_behind_the_table_goes_back_and_is_empty_when_it_grows_there_again() {
    let index = Index::new(1 << 30).unwrap();
    fill(&index, 1..100_000, &Warm);
    let (buckets, word) = (index.buckets(), index.shape_word());
    let drained = std::cell::Cell::new(0);
    // More than there are entries for: they meet, at the latest.
    let _ = index.shrink_by(buckets / 2, || drained.set(drained.get() + 1));
    assert!(drained.get() > 0);
    let end = index.buckets();
    let is_empty = |at: u64| index.bucket(at).entries().iter().all(|word| word.load(super::Relaxed) == 0);
    assert!((end..buckets).all(is_empty));
    // One page may be shared with what is still there.
    assert!((end + 64..buckets).all(|at| index.bucket(at).link(super::Relaxed) == 0), "the memory is still there");
    index.grow_to(word, &Warm);
    assert!((1..100_000).all(|n| index.lookup(mix(n)).address() == n * 8));
}

/// A split that cannot tell doubles an entry, and all that went later were counted: there were fewer than none.
#[test]
fn entries_are_counted_through_splits() {
    let index = Index::new(1 << 30).unwrap();
    index.set_limit(1024 * 64);
    let there = |index: &Index| (0..index.buckets()).map(|at| index.addresses(at).len() as u64).sum::<u64>();
    for n in 1..200_000 {
        insert(&index, mix(n), 8 * n);
        index.grow(0, &Cold);
    }
    index.set_limit(u64::MAX);
    let few = there(&index);
    assert_eq!(index.entries(), few);
    index.grow_to_for_test(index.buckets().ilog2() + 3);
    assert_eq!(index.entries(), there(&index));
    assert!(index.entries() > few);
}
