//! The index by itself.

use super::*;

fn mix(n: u64) -> u64 {
    let x = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (x as u64) ^ (x >> 64) as u64
}

fn insert(index: &Index, hash: u64, at: u64) -> Option<u64> {
    let seen = index.lookup(hash);
    let mut linked = None;
    let mut added = false;
    assert!(matches!(index.publish(hash, &seen, at, Keys::Unknown, &mut added, |to| linked = Some(to)), Published::Done));
    index.add_to_count(u64::from(added));
    linked.or((seen.entry != 0).then_some(seen.address()))
}

struct Cold;

impl Records for Cold {
    fn prefetch(&self, _: u64) {}
    fn chain(&self, _: u64) -> Chain {
        Chain::Unknown
    }
}

fn insert_growing(index: &Index, numbers: std::ops::Range<u64>, previous: &mut std::collections::HashMap<u64, Option<u64>>) {
    for n in numbers {
        previous.insert(n * 8, insert(index, mix(n), n * 8));
        index.grow(0, &Cold);
    }
}

fn all_reachable(index: &Index, numbers: std::ops::Range<u64>, previous: &std::collections::HashMap<u64, Option<u64>>) {
    for n in numbers {
        let mut at = Some(index.lookup(mix(n)).address());
        while at != Some(n * 8) {
            at = previous[&at.expect("the chain ends too early")];
        }
    }
}

#[test]
fn entries_stay_reachable_while_the_table_grows() {
    let index = Index::new(1 << 30).unwrap();
    let mut previous = std::collections::HashMap::new();
    insert_growing(&index, 1..60_000, &mut previous);
    assert!(index.buckets() > 60_000 / 10, "{} buckets", index.buckets());
    all_reachable(&index, 1..60_000, &previous);
}

/// As many come as go: overflow buckets are those that this many entries need, however long it goes on.
#[test]
fn where_as_many_go_as_come_overflow_stays_small() {
    let index = Index::new(1 << 30).unwrap();
    let mut previous = std::collections::HashMap::new();
    const LIVE: u64 = 20_000;
    insert_growing(&index, 1..LIVE, &mut previous);
    let first = index.overflow_buckets();
    for n in LIVE..40 * LIVE {
        insert(&index, mix(n), n * 8);
        let gone = mix(n - LIVE + 1);
        let seen = index.lookup(gone);
        // Two that share an entry went with the first.
        assert!(seen.entry == 0 || index.remove(gone, &seen).is_some());
    }
    let (last, buckets) = (index.overflow_buckets(), index.buckets());
    assert!(last < first + buckets / 4, "{first} overflow buckets, then {last}, of {buckets} buckets");
}

/// Whoever saw that there is no entry would not know that one was there since, and what it led to.
#[test]
fn an_entry_that_came_and_went_is_noticed() {
    let index = Index::new(1 << 30).unwrap();
    let seen = index.lookup(mix(1));
    insert(&index, mix(1), 8);
    assert!(index.remove_leading_to(mix(1), 8) && !index.remove_leading_to(mix(1), 8));
    let publish = |seen: &Seen| index.publish(mix(1), seen, 16, Keys::OwnAlone, &mut false, |_| {});
    assert!(matches!(publish(&seen), Published::Changed));
    assert!(matches!(publish(&index.lookup(mix(1))), Published::Done));
}

/// What others do in its bucket does not keep a key from it.
#[test]
fn an_entry_comes_beside_others() {
    let index = Index::new(1 << 30).unwrap();
    let bucket = |hash| index.locate(hash).offset;
    let (one, other) = (mix(1), (2..).map(mix).find(|hash| bucket(*hash) == bucket(mix(1))).unwrap());
    let seen = index.lookup(one);
    insert(&index, other, 8);
    assert!(matches!(index.publish(one, &seen, 16, Keys::OwnAlone, &mut false, |_| {}), Published::Done));
}

/// A thread that has ended left buckets on its shelf, the pool's last ones.
#[test]
fn what_lies_on_shelves_does_not_keep_the_pool_from_shrinking() {
    let index = Index::new(1 << 30).unwrap();
    let take = |count: u64| (0..count).map(|owner| index.overflow.take(owner, u64::MAX).unwrap()).collect::<Vec<u64>>();
    let give_back = |numbers: Vec<u64>| numbers.into_iter().for_each(|number| index.overflow.give_back(number));
    let first = take(500);
    std::thread::scope(|scope| scope.spawn(|| give_back(take(500))).join().unwrap());
    assert!(index.overflow.buckets() > 1000);
    give_back(first);
    index.tidy(1);
    assert!(index.overflow.buckets() < 200, "{} buckets, none in use", index.overflow.buckets());
}

/// A level's last splits are fewer than a turn: they once waited for the thread that had taken the turn before, for ever if it had ended.
#[test]
fn the_table_grows_on_without_the_thread_that_grew_it() {
    let index = Index::new(1 << 30).unwrap();
    index.add_to_count(2389);
    std::thread::scope(|scope| scope.spawn(|| while index.grow(0, &Cold) {}).join().unwrap());
    let left = 512 - index.buckets();
    assert!((1..32).contains(&left), "{left} splits are left of the level");
    let another = || (0..10_000).for_each(|_| _ = index.grow(16, &Cold));
    another();
    assert!(index.buckets() > 162_000 / 6, "{} buckets", index.buckets());
}

/// What other threads have at hand serves where nothing else is left.
#[test]
fn at_the_limit_threads_take_from_each_other() {
    let index = Index::new(1 << 30).unwrap();
    let take = |room| index.overflow.take(0, room);
    std::thread::scope(|scope| scope.spawn(|| take(8).map(|number| index.overflow.give_back(number)).unwrap()).join().unwrap());
    assert_eq!((index.overflow.buckets(), index.overflow_buckets()), (9, 0));
    assert!(index.overflow.has_free());
    let mut taken: Vec<u64> = std::iter::from_fn(|| take(0)).collect();
    taken.sort_unstable();
    assert_eq!(taken, (1..9).collect::<Vec<u64>>());
    assert!(!index.overflow.has_free());
}

#[test]
fn a_full_share_shortens_tags_and_loses_nothing() {
    let index = Index::new(1 << 30).unwrap();
    index.set_limit(1 << 15);
    let mut previous = std::collections::HashMap::new();
    insert_growing(&index, 1..20_000, &mut previous);
    assert!(index.bytes() <= 1 << 15);
    index.set_limit(u64::MAX);
    while index.grow(0, &Cold) {}
    all_reachable(&index, 1..20_000, &previous);
}

#[test]
fn an_entry_costs_at_most_fifteen_and_a_half_bytes_at_any_size() {
    let index = Index::new(1 << 30).unwrap();
    let mut worst = (0.0, 0);
    for n in 1..2_400_000u64 {
        insert(&index, mix(n), n * 8);
        index.grow(0, &Cold);
        // In small tables the overflow pool's slack counts.
        if n > 600_000 && index.bytes() as f64 / n as f64 > worst.0 {
            worst = (index.bytes() as f64 / n as f64, n);
        }
    }
    assert!(worst.0 < 15.5, "{} bytes an entry for {} entries", worst.0, worst.1);
}

/// One that had grown as far as it goes was once refused at the next opening.
#[test]
fn the_largest_table_can_be_restored() {
    let index = Index::new(1 << 38).unwrap();
    let word = |buckets: u64| (buckets - 1) << 6;
    assert!(index.has_space_for((1 << LAST_LEVEL) - 1), "this machine grants no 128 GiB of addresses");
    assert!(index.restore_shape(word(1 << LAST_LEVEL)));
    assert_eq!(index.buckets(), 1 << LAST_LEVEL);
    assert!(!index.restore_shape(1 << 63 | word((1 << LAST_LEVEL) + 1)));
}

/// A key that came to a full bucket shared an entry for good, beside one that led nowhere any more.
#[test]
fn an_entry_that_leads_nowhere_is_taken_before_one_is_shared() {
    let index = Index::new(1 << 30).unwrap();
    index.set_limit(0);
    // Of one bucket, with tags of their own.
    let hash = |n: u64| 5 << 6 | n << 14;
    let full = (1..).find(|n| insert(&index, hash(*n), 800 * n).is_some() || index.is_shared()).unwrap();
    let entries = index.entries();
    let other = Index::new(1 << 30).unwrap();
    other.set_limit(0);
    (1..full).for_each(|n| assert_eq!(insert(&other, hash(n), 800 * n), None));
    other.is_dead_below(1601);
    for n in [full, full + 1] {
        assert_eq!(insert(&other, hash(n), 800 * n), None);
        assert!(!other.is_shared());
        assert_eq!(other.lookup(hash(n)).address(), 800 * n);
        assert_eq!(other.entries(), entries);
    }
    assert!((3..full).all(|n| other.lookup(hash(n)).address() == 800 * n));
    insert(&other, hash(full + 2), 800 * (full + 2));
    assert!(other.is_shared());
}
