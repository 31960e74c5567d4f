//! What a batch knows may be out of date.

use crate::log::NOWHERE;
use crate::sync::atomic::Ordering::*;
use crate::{Options, Store, Value};
use std::borrow::Borrow;
use std::cell::Cell;

/// A key that does something when it is asked for the second time: the first is when the batch is looked up.
struct Hooked<'a> {
    key: u64,
    asked: Cell<u32>,
    then: &'a dyn Fn(),
}

impl Borrow<u64> for Hooked<'_> {
    fn borrow(&self) -> &u64 {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == 2 {
            (self.then)();
        }
        &self.key
    }
}

fn the_later_put_counts<V: Value + ?Sized>(values: [&V; 3], is_last: impl Fn(V::Owned) -> bool) {
    let store: Store<u64, V> = Options::new().memory(16 << 20).background(false).in_memory().unwrap();
    let read_only = &store.engine_for_test().log.bounds.read_only;
    store.put(&1, values[0]).unwrap();
    // A line's cut is being looked for, and found between the two puts.
    let cut = read_only.swap(NOWHERE, SeqCst);
    let (nothing, found) = (|| (), || read_only.store(cut, SeqCst));
    let hooked = |then| Hooked { key: 1, asked: Cell::new(0), then };
    store.put_many(&[(hooked(&nothing), values[1]), (hooked(&found), values[2])]).unwrap();
    assert!(is_last(store.get(&1).unwrap().unwrap()), "the later put was lost");
}

#[test]
fn of_equal_keys_the_later_put_counts_though_a_line_is_drawn() {
    the_later_put_counts::<u64>([&1, &2, &3], |value| value == 3);
    the_later_put_counts::<[u64; 4]>([&[1; 4], &[2; 4], &[3; 4]], |value| value == [3; 4]);
    the_later_put_counts::<[u8]>([b"one", b"two", b"six"], |value| value == b"six");
}
