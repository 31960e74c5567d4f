//! The standard library's atomics, each access a point where shuttle may run another thread.
//!
//! Shuttle's own atomics are larger than a word, and records and buckets are words in raw memory. So these are the real ones,
//! sequentially consistent under a scheduler that runs one thread at a time: what weaker orders allow is loom's to find.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
pub(crate) use std::sync::atomic::Ordering;
use std::sync::atomic::{self as real, Ordering::Relaxed};

std::thread_local! {
    /// True while this system thread runs a schedule; other system threads (those that read a device) are not part of one.
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

shuttle::lazy_static! {
    /// Touching it is what lets the scheduler choose.
    static ref CHOICE: shuttle::sync::atomic::AtomicBool = shuttle::sync::atomic::AtomicBool::new(false);
}

#[cfg_attr(not(test), expect(dead_code, reason = "set by the tests that schedule"))]
pub(crate) fn set_scheduled(to: bool) {
    IS_SCHEDULED.with(|cell| cell.set(to));
}

pub(crate) fn is_scheduled() -> bool {
    IS_SCHEDULED.with(Cell::get) && !std::thread::panicking()
}

fn choose() {
    if is_scheduled() {
        CHOICE.load(Relaxed);
    }
}

pub(crate) fn fence(order: Ordering) {
    choose();
    real::fence(order);
}

macro_rules! atomic {
    ($name:ident $(<$parameter:ident>)?, $inner:ty, $value:ty) => {
        #[repr(transparent)]
        #[derive(Default, Debug)]
        pub(crate) struct $name $(<$parameter>)? ($inner);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            #[allow(dead_code, reason = "not every kind is made")]
            pub(crate) const fn new(value: $value) -> Self {
                Self(<$inner>::new(value))
            }
        }

        /// Each access goes through here.
        impl $(<$parameter>)? Deref for $name $(<$parameter>)? {
            type Target = $inner;

            fn deref(&self) -> &$inner {
                choose();
                &self.0
            }
        }

        impl $(<$parameter>)? DerefMut for $name $(<$parameter>)? {
            fn deref_mut(&mut self) -> &mut $inner {
                &mut self.0
            }
        }
    };
}

atomic!(AtomicU64, real::AtomicU64, u64);
atomic!(AtomicU32, real::AtomicU32, u32);
atomic!(AtomicUsize, real::AtomicUsize, usize);
atomic!(AtomicBool, real::AtomicBool, bool);
atomic!(AtomicPtr<T>, real::AtomicPtr<T>, *mut T);
