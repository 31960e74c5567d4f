//! Models of the index: insertions into one bucket, lookups while it splits or merges, while the level turns, while an overflow
//! bucket moves. Buckets have two entries and the table begins with two buckets (`ENTRIES`, `FIRST_LEVEL`).

use super::growth::Chain;
use super::{Added, BUCKET_BITS, Index, Keys, Looked, Published, Records, address_of};
use crate::loom_models::{Model, Shared, sound, spawn, without};
use crate::sync::Rule;

/// The hash whose bits above `BUCKET_BITS` are these: the lowest is the bucket's number.
const fn hash(bits: u64) -> u64 {
    bits << BUCKET_BITS
}

/// A record's address says its hash: `address_for`.
struct Known;

impl Records for Known {
    fn prefetch(&self, _: u64) {}

    fn chain(&self, address: u64) -> Chain {
        Chain::Alone(hash(address / 8 - 1))
    }
}

const fn address_for(bits: u64) -> u64 {
    (bits + 1) * 8
}

/// Inserts as the store does: by a claim where that is plain, else under the latch. False if there is an entry.
fn insert(index: &Index, bits: u64) -> bool {
    let probe = index.probe(hash(bits));
    let claim = match probe.search() {
        Looked::Entry(_, at) if at == address_for(bits) => return false,
        // Another record's address: its key says that the entry is not this hash's.
        Looked::Entry(..) | Looked::Unclear => None,
        Looked::Free(entry) => probe.claim(entry),
    };
    match claim {
        Some(claim) => {
            claim.fill(address_for(bits));
            true
        }
        None => index.add(hash(bits), |_| false, || Some(address_for(bits)), |_, _| panic!("no entry is shared here")).is_some(),
    }
}

/// Looks for an entry that is there.
fn find(index: &Index, bits: u64) {
    let seen = index.lookup(hash(bits));
    // Another entry may turn up, its tag read from the wrong bit. The key in its record will tell: absent, if that settles.
    assert!(seen.address() == address_for(bits) || !index.is_settled(&seen), "a present entry was found absent");
}

fn with_entries(entries: &[u64]) -> Shared<Index> {
    let index = Index::new(0).expect("a modelled region");
    for bits in entries {
        assert!(insert(&index, *bits));
    }
    Shared::new(index)
}

fn split(index: &Index) {
    split_some(index, 1);
}

fn split_some(index: &Index, count: u64) {
    let mut workspace = index.growing.lock().expect("nobody panics here");
    assert_eq!(index.split_some(count, &mut workspace, &Known), count);
}

// ---- insertions ----------------------------------------------------------------------------------------------------

/// Two threads insert into one bucket, which has one entry to spare or none.
fn two_insertions(model: Model, before: &'static [u64], bits: [u64; 2]) {
    model.check(move || {
        let index = with_entries(before);
        let other = spawn(1, {
            let index = index.clone();
            move || insert(&index, bits[0])
        });
        let inserted = u32::from(insert(&index, bits[1])) + u32::from(other.join());
        let mut expected: Vec<u64> = before.iter().chain(&bits).map(|bits| address_for(*bits)).collect();
        expected.sort_unstable();
        expected.dedup();
        let mut found: Vec<u64> = index.words(0).into_iter().map(address_of).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "the bucket does not hold exactly what was inserted");
        assert_eq!(inserted as usize, expected.len() - before.len(), "an insertion is told wrongly");
        bits.iter().for_each(|bits| find(&index, *bits));
    });
}

#[test]
fn the_same_hash_gets_one_entry() {
    two_insertions(sound(), &[], [0b10, 0b10]);
}

#[test]
fn two_hashes_get_two_entries() {
    two_insertions(sound(), &[], [0b10, 0b100]);
}

#[test]
fn the_same_hash_gets_one_entry_in_a_full_bucket() {
    two_insertions(sound(), &[0b110, 0b1000], [0b10, 0b10]);
}

#[test]
fn two_hashes_get_two_entries_in_an_almost_full_bucket() {
    two_insertions(sound(), &[0b110], [0b10, 0b100]);
}

#[test]
#[should_panic(expected = "an insertion is told wrongly")]
fn twin_claim_latches_a_changed_bucket_with_the_same_hash() {
    two_insertions(without(Rule::ClaimUnchanged), &[], [0b10, 0b10]);
}

#[test]
#[should_panic(expected = "the bucket does not hold exactly what was inserted")]
fn twin_claim_latches_a_changed_bucket_with_another_hash() {
    two_insertions(without(Rule::ClaimUnchanged), &[], [0b10, 0b100]);
}

#[test]
#[should_panic(expected = "the bucket does not hold exactly what was inserted")]
fn twin_addition_does_not_look_again() {
    two_insertions(without(Rule::LookLatched), &[0b110, 0b1000], [0b10, 0b10]);
}

/// Two threads each let the same entry lead on from what they found it to lead to.
fn two_replacements(model: Model) {
    model.check(|| {
        let index = with_entries(&[0]);
        let replace = |index: &Index| {
            let probe = index.probe(hash(0));
            let Looked::Entry(entry, at) = probe.search() else { panic!("the entry is there") };
            probe.claim(entry).map(|claim| claim.refill(at + 8)).is_some()
        };
        let other = spawn(1, {
            let index = index.clone();
            move || replace(&index)
        });
        let replaced = u64::from(replace(&index)) + u64::from(other.join());
        assert!(replaced > 0, "nobody was quicker");
        let found = index.lookup(hash(0)).address();
        assert_eq!(found, address_for(0) + 8 * replaced, "what one of them superseded was superseded before");
    });
}

#[test]
fn a_replacement_supersedes_what_was_found() {
    two_replacements(sound());
}

#[test]
#[should_panic(expected = "what one of them superseded was superseded before")]
fn twin_claim_latches_a_changed_bucket_and_a_replacement_is_lost() {
    two_replacements(without(Rule::ClaimUnchanged));
}

/// Two threads put a record before the one of the same entry; one of them without having looked, if that one is on the device.
fn two_publications(model: Model, is_cold: bool) {
    model.check(move || {
        let index = with_entries(&[0]);
        let publish = |index: &Index, at: u64| loop {
            let seen = index.lookup(hash(0));
            match index.publish(hash(0), &seen, at, Keys::Unknown, &mut false, |_| panic!("the entry is there")) {
                Published::Done => return seen.address(),
                Published::Changed => {}
                // The later address was first: this one would have to be allocated again.
                Published::TooLow => return u64::MAX,
            }
        };
        let other = spawn(1, {
            let index = index.clone();
            move || publish(&index, 800)
        });
        let mut before = 0;
        let added = index.add(hash(0), |at| is_cold && at == address_for(0), || Some(808), |_, at| before = at);
        let mine = if let Some(Added::Over) = added { before } else { publish(&index, 808) };
        let theirs = other.join();
        let chains = [(800, address_for(0)), (address_for(0), u64::MAX)];
        assert!(chains.contains(&(mine, theirs)), "a record fell out of the chain: {mine} {theirs}");
        assert_eq!(index.lookup(hash(0)).address(), 808);
    });
}

#[test]
fn a_chain_keeps_every_record() {
    two_publications(sound(), false);
}

#[test]
fn a_chain_on_the_device_keeps_every_record() {
    two_publications(sound(), true);
}

#[test]
#[should_panic(expected = "a record fell out of the chain")]
fn twin_publication_does_not_compare() {
    two_publications(without(Rule::LookLatched), false);
}

#[test]
#[should_panic(expected = "a record fell out of the chain")]
fn twin_chain_is_headed_as_it_was() {
    two_publications(without(Rule::LookLatched), true);
}

// ---- short tags ------------------------------------------------------------------------------------------------------

/// A full bucket without overflow room: its closest entry gets a shorter tag, and stands for the hash it stood for before.
fn a_lookup_and_a_shortened_tag(model: Model) {
    model.check(|| {
        let index = with_entries(&[0b110, 0b1000]);
        index.set_limit(0);
        let other = spawn(1, {
            let index = index.clone();
            move || matches!(index.add(hash(0b10), |_| false, || Some(800), |_, _| ()), Some(Added::Shared))
        });
        let seen = index.lookup(hash(0b110));
        assert!([address_for(0b110), 800].contains(&seen.address()) || !index.is_settled(&seen), "a present entry was found absent");
        assert!(other.join());
        assert_eq!(index.lookup(hash(0b110)).address(), 800);
    });
}

#[test]
fn a_lookup_finds_an_entry_whose_tag_is_shortened() {
    a_lookup_and_a_shortened_tag(sound());
}

#[test]
#[should_panic(expected = "found absent")]
fn twin_lookup_does_not_ask_for_a_shorter_tag() {
    a_lookup_and_a_shortened_tag(without(Rule::ShortenedIsFound));
}

// ---- splits ----------------------------------------------------------------------------------------------------------

/// In bucket 0, in this order: one that a split sends to bucket 2, one that stays and moves to the first place.
const GOES: u64 = 0b10;
const STAYS: u64 = 0b100;

/// A lookup of these bits beside what is done to an index.
fn lookup_beside(model: Model, prepare: fn() -> Shared<Index>, act: fn(&Index), bits: u64) {
    model.check(move || {
        let index = prepare();
        let other = spawn(1, {
            let index = index.clone();
            move || act(&index)
        });
        find(&index, bits);
        other.join();
        assert_eq!(index.lookup(hash(bits)).address(), address_for(bits), "a split lost an entry");
    });
}

fn lookup_while_splitting(model: Model, bits: u64) {
    lookup_beside(model, || with_entries(&[GOES, STAYS]), split, bits);
}

#[test]
fn a_lookup_finds_what_goes_to_the_sibling() {
    lookup_while_splitting(sound(), GOES);
}

#[test]
fn a_lookup_finds_what_stays() {
    lookup_while_splitting(sound(), STAYS);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_split_with_an_even_version() {
    lookup_while_splitting(without(Rule::MoveIsOdd), STAYS);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_shape_changes_before_the_version_is_odd() {
    lookup_while_splitting(without(Rule::OddBeforeShape), STAYS);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_absence_counts_though_the_shape_changed() {
    lookup_while_splitting(without(Rule::ShapeStandsStill), GOES);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_sibling_is_filled_after_the_shape_leads_to_it() {
    lookup_while_splitting(without(Rule::SiblingFirst), GOES);
}

/// In bucket 1 of four: one that a split sends to bucket 5, one that stays.
const SECOND_GOES: u64 = 0b101;
const SECOND_STAYS: u64 = 0b1001;

/// Two of four buckets are split at once, and tags go on holding the same bits: what is looked for is in the second one.
fn lookup_while_two_split(model: Model, bits: u64) {
    let four_buckets = || {
        let index = with_entries(&[]);
        split_some(&index, 2);
        for bits in [0b100, SECOND_GOES, SECOND_STAYS] {
            assert!(insert(&index, bits));
        }
        index
    };
    lookup_beside(model, four_buckets, |index| split_some(index, 2), bits);
}

#[test]
fn a_lookup_finds_what_goes_from_the_second_of_two_buckets() {
    lookup_while_two_split(sound(), SECOND_GOES);
}

#[test]
fn a_lookup_finds_what_stays_in_the_second_of_two_buckets() {
    lookup_while_two_split(sound(), SECOND_STAYS);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_second_sibling_is_filled_after_the_shape_leads_to_it() {
    lookup_while_two_split(without(Rule::SiblingFirst), SECOND_GOES);
}

/// The level's last bucket splits, and the level turns.
fn lookup_while_turning(model: Model, bits: u64) {
    let half_split = || {
        let index = with_entries(&[0b11, 0b101, 0b10]);
        split(&index);
        index
    };
    lookup_beside(model, half_split, split, bits);
}

#[test]
fn a_lookup_finds_what_goes_while_the_level_turns() {
    lookup_while_turning(sound(), 0b11);
}

#[test]
fn a_lookup_finds_what_stays_while_the_level_turns() {
    lookup_while_turning(sound(), 0b101);
}

#[test]
fn a_lookup_finds_what_was_split_before_the_level_turns() {
    lookup_while_turning(sound(), 0b10);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_turn_is_not_marked() {
    lookup_while_turning(without(Rule::TurnIsMarked), 0b10);
}

/// A thread inserts beside what is done to an index.
fn insertion_beside(model: Model, before: &'static [u64], prepare: fn(&Index), act: fn(&Index), bits: u64) {
    model.check(move || {
        let index = with_entries(before);
        prepare(&index);
        let other = spawn(1, {
            let index = index.clone();
            move || act(&index)
        });
        assert!(insert(&index, bits), "an insertion was refused");
        other.join();
        for bits in before.iter().chain([&bits]) {
            assert_eq!(index.lookup(hash(*bits)).address(), address_for(*bits), "an entry was lost");
        }
    });
}

/// Into the bucket that splits.
fn insertion_while_splitting(model: Model, before: &'static [u64], bits: u64) {
    insertion_beside(model, before, |_| (), split, bits);
}

#[test]
fn an_insertion_goes_where_the_split_sends_it() {
    insertion_while_splitting(sound(), &[STAYS], GOES);
}

#[test]
fn an_insertion_stays_where_the_split_leaves_it() {
    insertion_while_splitting(sound(), &[GOES], STAYS);
}

#[test]
fn an_insertion_into_a_full_bucket_survives_its_split() {
    insertion_while_splitting(sound(), &[STAYS, 0b1000], GOES);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_claim_latches_a_bucket_that_was_split() {
    insertion_while_splitting(without(Rule::ClaimUnchanged), &[STAYS], GOES);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_claim_does_not_ask_for_the_shape() {
    insertion_while_splitting(without(Rule::ClaimAsksShape), &[GOES], STAYS);
}

#[test]
#[should_panic(expected = "an insertion was refused")]
fn twin_latched_without_looking_where_the_hash_belongs() {
    insertion_while_splitting(without(Rule::LatchLooksAgain), &[STAYS, 0b1000], GOES);
}

/// The same with the level's last bucket: the level turns meanwhile.
fn insertion_while_turning(model: Model, before: &'static [u64], bits: u64) {
    insertion_beside(model, before, split, split, bits);
}

#[test]
fn an_insertion_goes_where_the_last_split_sends_it() {
    insertion_while_turning(sound().preemptions(2), &[0b101], 0b11);
}

#[test]
fn an_insertion_stays_where_the_last_split_leaves_it() {
    insertion_while_turning(sound().preemptions(1), &[0b11], 0b101);
}

#[test]
fn an_insertion_into_a_full_bucket_survives_the_last_split() {
    insertion_while_turning(sound().preemptions(1), &[0b101, 0b1001], 0b11);
}

#[test]
fn an_insertion_elsewhere_survives_the_turn() {
    insertion_while_turning(sound(), &[0b101], 0b10);
}

#[test]
fn an_insertion_into_what_splits_next_survives_the_turn() {
    insertion_while_turning(sound(), &[0b101], STAYS);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_claim_does_not_ask_whether_the_level_turns() {
    insertion_while_turning(without(Rule::ClaimAsksShape), &[0b101], 0b10);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_new_geometry_hides_the_turn() {
    // By the geometry of one level in part, and of the other in part, its tag would be of other bits.
    insertion_while_turning(without(Rule::GeometryShowsTurn), &[0b101], STAYS);
}

/// Into a full bucket that splits, whereupon the other one does, and the level turns.
fn insertion_while_all_split(model: Model) {
    let split_all = |index: &Index| (0..2).for_each(|_| split(index));
    insertion_beside(model, &[STAYS, 0b1000], |_| (), split_all, 0b1100);
}

#[test]
fn an_insertion_survives_the_splits_of_all_buckets() {
    insertion_while_all_split(sound().preemptions(2));
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_latched_look_mixes_two_levels() {
    insertion_while_all_split(without(Rule::LatchedLookStands).preemptions(2));
}

// ---- merges ----------------------------------------------------------------------------------------------------------

fn merge(index: &Index) {
    let _growing = index.growing.lock().expect("nobody panics here");
    index.merge_last(&[]).expect("tags differ");
}

/// Bucket 0 was split into 0 and 2.
fn split_once(entries: &[u64]) -> Shared<Index> {
    let index = with_entries(entries);
    split(&index);
    index
}

fn lookup_while_merging(model: Model, bits: u64) {
    model.check(move || {
        let index = split_once(&[STAYS, GOES]);
        let other = spawn(1, {
            let index = index.clone();
            move || merge(&index)
        });
        find(&index, bits);
        other.join();
        assert_eq!(index.lookup(hash(bits)).address(), address_for(bits), "a merge lost an entry");
        assert_eq!(index.buckets(), 2);
    });
}

#[test]
fn a_lookup_finds_what_comes_back_from_the_sibling() {
    lookup_while_merging(sound(), GOES);
}

#[test]
fn a_lookup_finds_what_stayed_when_its_sibling_comes_back() {
    lookup_while_merging(sound(), STAYS);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_merge_with_an_even_version() {
    lookup_while_merging(without(Rule::MoveIsOdd), STAYS);
}

/// The level turns back first.
fn lookup_while_turning_back(model: Model, bits: u64) {
    model.check(move || {
        let index = with_entries(&[0b11, 0b101, 0b10]);
        split(&index);
        split(&index);
        let other = spawn(1, {
            let index = index.clone();
            move || merge(&index)
        });
        find(&index, bits);
        other.join();
        assert_eq!(index.lookup(hash(bits)).address(), address_for(bits), "a merge lost an entry");
        assert_eq!(index.buckets(), 3);
    });
}

#[test]
fn a_lookup_finds_what_comes_back_while_the_level_turns_back() {
    lookup_while_turning_back(sound(), 0b11);
}

#[test]
fn a_lookup_finds_what_is_elsewhere_while_the_level_turns_back() {
    lookup_while_turning_back(sound(), 0b10);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_turn_back_is_not_marked() {
    lookup_while_turning_back(without(Rule::TurnIsMarked), 0b10);
}

/// A thread inserts into a bucket that merges.
fn insertion_while_merging(model: Model, before: &'static [u64], bits: u64) {
    model.check(move || {
        let index = split_once(before);
        let other = spawn(1, {
            let index = index.clone();
            move || merge(&index)
        });
        assert!(insert(&index, bits), "an insertion was refused");
        other.join();
        for bits in before.iter().chain([&bits]) {
            assert_eq!(index.lookup(hash(*bits)).address(), address_for(*bits), "an entry was lost");
        }
    });
}

#[test]
fn an_insertion_into_the_sibling_comes_back() {
    insertion_while_merging(sound().preemptions(2), &[STAYS], GOES);
}

#[test]
fn an_insertion_beside_what_comes_back_stays() {
    insertion_while_merging(sound(), &[GOES], STAYS);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_claim_latches_a_bucket_that_was_merged() {
    insertion_while_merging(without(Rule::ClaimUnchanged), &[STAYS], GOES);
}

#[test]
#[should_panic(expected = "an entry was lost")]
fn twin_claim_does_not_ask_for_the_shape_that_merged() {
    insertion_while_merging(without(Rule::ClaimAsksShape), &[STAYS], GOES);
}

/// The table has the shape again that a lookup saw: it was merged meanwhile, or split.
fn lookup_while_the_shape_comes_back(model: Model, begins_split: bool, bits: u64) {
    model.check(move || {
        let index = if begins_split { split_once(&[STAYS, GOES]) } else { with_entries(&[STAYS, GOES]) };
        let other = spawn(1, {
            let index = index.clone();
            move || {
                let acts: [fn(&Index); 2] = if begins_split { [merge, split] } else { [split, merge] };
                acts.iter().for_each(|act| act(&index));
            }
        });
        find(&index, bits);
        other.join();
        assert_eq!(index.lookup(hash(bits)).address(), address_for(bits), "an entry was lost");
    });
}

#[test]
fn a_lookup_finds_what_was_merged_and_split_again() {
    lookup_while_the_shape_comes_back(sound().preemptions(2), true, GOES);
}

#[test]
fn a_lookup_finds_what_was_split_and_merged_again() {
    lookup_while_the_shape_comes_back(sound().preemptions(2), false, GOES);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_split_leaves_the_siblings_version() {
    lookup_while_the_shape_comes_back(without(Rule::SiblingChanges), true, GOES);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_version_is_read_before_the_shape() {
    lookup_while_the_shape_comes_back(without(Rule::VersionIsLast), false, GOES);
}

// ---- the overflow pool -----------------------------------------------------------------------------------------------

/// Bucket 0 is full and goes on in overflow bucket 2, while 1 is free: 2 moves there.
fn lookup_while_overflow_moves(model: Model, bits: u64) {
    model.check(move || {
        let index = with_entries(&[]);
        let free = index.overflow.take(1, 1).expect("room");
        for bits in [STAYS, 0b1000, GOES, 0b1100] {
            assert!(insert(&index, bits));
        }
        index.overflow.give_back_last(free);
        let other = spawn(1, {
            let index = index.clone();
            move || index.move_overflow(2, 0)
        });
        find(&index, bits);
        other.join();
        assert_eq!(index.bucket(0).next(), free, "the overflow bucket did not move");
        assert_eq!(index.lookup(hash(bits)).address(), address_for(bits), "a move lost an entry");
    });
}

/// Bucket 0 has one entry in an overflow bucket and two before it; one of those goes, and the bucket closes up.
fn lookup_while_a_bucket_closes_up(model: Model) {
    model.check(move || {
        let index = with_entries(&[]);
        for bits in [STAYS, 0b1000, GOES] {
            assert!(insert(&index, bits));
        }
        let other = spawn(1, {
            let index = index.clone();
            move || assert!(index.remove(hash(STAYS), &index.lookup(hash(STAYS))).is_some())
        });
        find(&index, GOES);
        other.join();
        assert_eq!(index.bucket(0).next(), 0, "the overflow bucket was not given back");
        assert_eq!(index.lookup(hash(GOES)).address(), address_for(GOES), "an entry was lost");
        assert_eq!(index.lookup(hash(0b1000)).address(), address_for(0b1000), "an entry was lost");
        assert_eq!(index.lookup(hash(STAYS)).address(), 0, "an entry is still there");
    });
}

/// One overflow bucket is free and another is given back, while somebody else forgets free ones at the end.
fn give_back_while_the_pool_is_trimmed(model: Model) {
    model.check(|| {
        let index = with_entries(&[]);
        let taken = [0, 1, 2].map(|owner| index.overflow.take(owner, 1).expect("room"));
        index.overflow.give_back_last(taken[0]);
        let other = spawn(1, {
            let index = index.clone();
            move || index.overflow.give_back_last(taken[2])
        });
        index.overflow.last_beyond(0);
        other.join();
        let again = [0, 2].map(|owner| index.overflow.take(owner, 1).expect("room"));
        assert!(again[0] != again[1] && !again.contains(&taken[1]), "a bucket was handed out twice: {taken:?}, then {again:?}");
    });
}

/// One overflow bucket is free. Another comes to a thread's shelf and goes from it again, while somebody else forgets free ones at the end.
fn shelf_while_the_pool_is_trimmed(model: Model) {
    model.check(|| {
        let index = with_entries(&[]);
        let taken = [0, 1, 2].map(|owner| index.overflow.take(owner, 1).expect("room"));
        index.overflow.give_back_last(taken[0]);
        let other = spawn(1, {
            let index = index.clone();
            move || {
                index.overflow.give_back(taken[2]);
                index.overflow.take(2, 1).expect("room")
            }
        });
        index.overflow.last_beyond(0);
        let again = [index.overflow.take(0, 1).expect("room"), other.join()];
        assert!(again[0] != again[1] && !again.contains(&taken[1]), "a bucket was handed out twice: {taken:?}, then {again:?}");
    });
}

#[test]
fn a_shelved_overflow_bucket_is_handed_out_once() {
    shelf_while_the_pool_is_trimmed(sound());
}

#[test]
#[should_panic(expected = "a bucket was handed out twice")]
fn twin_shelf_does_not_own_its_buckets() {
    shelf_while_the_pool_is_trimmed(without(Rule::ShelfOwns));
}

#[test]
fn an_overflow_bucket_is_handed_out_once() {
    give_back_while_the_pool_is_trimmed(sound());
}

#[test]
#[should_panic(expected = "a bucket was handed out twice")]
fn twin_overflow_bucket_is_free_before_it_is_listed() {
    give_back_while_the_pool_is_trimmed(without(Rule::FreeIsListed));
}

#[test]
fn a_lookup_finds_what_moves_when_a_bucket_closes_up() {
    lookup_while_a_bucket_closes_up(sound().preemptions(2));
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_bucket_closes_up_with_an_even_version() {
    lookup_while_a_bucket_closes_up(without(Rule::MoveIsOdd));
}

#[test]
fn a_lookup_finds_what_moves_in_the_overflow_pool() {
    lookup_while_overflow_moves(sound().preemptions(2), GOES);
}

#[test]
fn a_lookup_finds_what_moves_second_in_the_overflow_pool() {
    lookup_while_overflow_moves(sound().preemptions(2), 0b1100);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_overflow_moves_with_an_even_version() {
    lookup_while_overflow_moves(without(Rule::MoveIsOdd), GOES);
}

#[test]
#[should_panic(expected = "a present entry was found absent")]
fn twin_version_is_read_before_the_entries() {
    lookup_while_overflow_moves(without(Rule::EntriesBeforeVersion), GOES);
}
