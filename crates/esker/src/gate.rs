//! A gate: where threads sleep until they are let through, one or all of them, by one call of the system however many they are.
//!
//! It has a value. Who is to sleep reads it while what it waits for cannot change, under its caller's lock; who lets through changes
//! it under that lock, and wakes afterwards. So nobody falls asleep who has just been let through. Sleepers hold no lock when they wake.
//! They may wake for no reason.

#[cfg(not(shuttle))]
pub(crate) use system::Gate;

#[cfg(shuttle)]
pub(crate) use scheduled::Gate;

#[cfg(not(shuttle))]
mod system {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[derive(Default)]
    pub(crate) struct Gate(AtomicU32);

    // Relaxed: the caller's lock orders the value's changes, and what the sleeper waits for has an order of its own.
    impl Gate {
        pub(crate) fn value(&self) -> u32 {
            self.0.load(Relaxed)
        }

        /// Returns when it is woken, or if the value is another one by now.
        pub(crate) fn sleep(&self, value: u32) {
            atomic_wait::wait(&self.0, value);
        }

        pub(crate) fn change(&self) {
            self.0.fetch_add(1, Relaxed);
        }

        pub(crate) fn wake_one(&self) {
            atomic_wait::wake_one(&self.0);
        }

        pub(crate) fn wake_all(&self) {
            atomic_wait::wake_all(&self.0);
        }
    }
}

/// The same for shuttle, which must know who sleeps.
#[cfg(shuttle)]
mod scheduled {
    use crate::sync::waiting::{Condvar, Mutex};

    #[derive(Default)]
    pub(crate) struct Gate {
        value: Mutex<u32>,
        woken: Condvar,
    }

    impl Gate {
        pub(crate) fn value(&self) -> u32 {
            *self.value.lock().expect("no panic")
        }

        pub(crate) fn sleep(&self, value: u32) {
            let held = self.value.lock().expect("no panic");
            if *held == value {
                drop(self.woken.wait(held).expect("no panic"));
            }
        }

        pub(crate) fn change(&self) {
            *self.value.lock().expect("no panic") += 1;
        }

        pub(crate) fn wake_one(&self) {
            self.woken.notify_one();
        }

        pub(crate) fn wake_all(&self) {
            self.woken.notify_all();
        }
    }
}
