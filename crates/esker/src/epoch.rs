//! Epochs: who may still be looking at what.
//!
//! Each thread owns one [`Slot`] per store (`epoch/slots.rs`). An operation raises a flag in it (a *pin*: one plain store, no fence) and
//! lowers it at its end. Whoever moves a boundary calls [`Epochs::drain`]: it makes every running thread's stores visible with
//! `membarrier(2)`, and waits until each flag that is raised then was lowered once. From then on nobody can act on the boundary's old
//! value. Pins last one operation, or a group of 64 of a batch, or some buckets of a walk, and never span a device access, so a drain takes
//! microseconds. The scheme is FASTER's (SIGMOD 2018), with the heavy fence moved to the rare side, and without its common epoch:
//!
//! * **who came in after the fence** sees the boundary that was moved before it, and need not be waited for;
//! * **who is inside whenever we look** is told from who is inside still. Most pins raise a flag never raised before. Those of one
//!   read or write at once raise a constant, which takes no register from the operations that overlap; but each of them counts its
//!   one operation, and nothing else is counted under it. Two more operations counted: it has ended.
//!
//! **Doors.** A pin at once needs an open door: a word that holds where the store's slots are, or a negative number when it is shut. A
//! thread adds where its slot is among them, or a negative number while it must look closely. So the sum's sign tells that nothing is in
//! the way, and the sum is the slot.
//!
//! | shut when                                  | `door` | `read_door` | `write_door` |
//! |--------------------------------------------|--------|-------------|--------------|
//! | the store is closed, or its device failed, | x      | x           | x            |
//! | or has no room now (`engine/failure.rs`)   |        |             |              |
//! | pins must fence (no `membarrier`)          | x      | x           | x            |
//! | keys have latches (`latches.rs`)           |        | x           | x            |
//! | each write is to be durable at its return  |        |             | x            |
//!
//! Who writes looks at the door under the pin, so that a drain after the shutting waits for all who found it open. Who reads one
//! key looks before, and may come late:
//! 1. what it may touch does not depend on the door: the flag, the fence and then `head` tell;
//! 2. late for a close, it changes nothing and finds what the last flush found, which was true when it looked;
//! 3. late for latches, it reads what was true before a transaction or what one has written; and who has seen the latter, and
//!    whoever hears of it, sees the door shut, for it was shut before.
//!
//! Where `membarrier` is missing, the pin itself fences (SeqCst).

mod slots;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*, fence};
use crate::sync::{Mutex, Rule, broken, statics, thread_local};
use crate::watch::{self, Watch};
use slots::{COUNTED, Slots};
pub(crate) use slots::{Counter, Slot};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::marker::PhantomData;
use std::ptr;

/// What a shut door holds, and what a thread adds that must look closely. No address is negative; a sum with one of them is, and that of
/// both.
const SHUT: isize = isize::MIN / 2;
const AWAY: isize = SHUT;
/// The same for a thread that has a slot at hand again by itself, when what runs meanwhile is over.
const WITHDRAWN: isize = SHUT + 1;

pub(crate) struct Epochs {
    /// Never reused within the process, never 0.
    id: u64,
    slots: Slots,
    door: Door,
    read_door: Door,
    write_door: Door,
    /// Keys have latches.
    latching: AtomicBool,
    closed: AtomicBool,
    fence_on_pin: bool,
    /// Who moves a door has them locked.
    reasons: Mutex<u8>,
    pub(crate) watch: Watch,
}

/// Why doors are shut, a bit each.
const CLOSED: u8 = 1;
const FAILED: u8 = 2;
const LATCHING: u8 = 4;
const DURABLE: u8 = 8;

/// Where the store's slots are, while it is open, or [`SHUT`].
struct Door(AtomicPtr<Slot>);

impl Door {
    /// Where it leads, or null to shut it.
    fn lead(&self, to: *mut Slot) {
        if self.is_open() == to.is_null() {
            let holds = if to.is_null() { ptr::without_provenance_mut(SHUT as usize) } else { to };
            self.0.store(holds, SeqCst);
        }
    }

    #[inline(always)]
    fn is_open(&self) -> bool {
        self.0.load(Relaxed).addr() as isize >= 0
    }
}

/// Keeps everything reachable at the time of the pin in place until it is dropped.
pub(crate) struct Pin<'a> {
    pub(crate) slot: &'a Slot,
}

/// A pin under which foreign code may run between our own: the thread's slot is withdrawn meanwhile, as in [`Epochs::within`].
pub(crate) struct WaryPin<'a> {
    // First, for it goes first.
    _withdrawn: Withdrawn,
    pin: Pin<'a>,
}

/// While it lives this thread's calls of a store in which it is pinned are `Invalid`, and find that out: those of every store take the long
/// way. The last one first, and on this thread: each gives back what it found there.
pub(crate) struct Withdrawn(isize, PhantomData<*const Slot>);

impl Withdrawn {
    #[inline(always)]
    pub(crate) fn slot() -> Self {
        Self(OFFSET.with(|offset| offset.replace(WITHDRAWN)), PhantomData)
    }
}

impl Drop for Withdrawn {
    #[inline(always)]
    fn drop(&mut self) {
        OFFSET.with(|offset| offset.set(self.0));
    }
}

/// While it lives this thread's calls of any store are `Invalid`: what runs meanwhile is foreign code in the midst of what the store does,
/// under its locks perhaps.
pub(crate) struct Barred {
    _withdrawn: Withdrawn,
    was: bool,
}

impl Barred {
    pub(crate) fn thread() -> Self {
        Self { _withdrawn: Withdrawn::slot(), was: IS_BARRED.with(|is| is.replace(true)) }
    }

    pub(crate) fn was_before(&self) -> bool {
        self.was
    }
}

impl Drop for Barred {
    fn drop(&mut self) {
        IS_BARRED.with(|is| is.set(self.was));
    }
}

impl<'a> std::ops::Deref for WaryPin<'a> {
    type Target = Pin<'a>;

    fn deref(&self) -> &Pin<'a> {
        &self.pin
    }
}

impl<'a> Pin<'a> {
    /// The same, from here on under foreign eyes.
    pub(crate) fn wary(self) -> WaryPin<'a> {
        WaryPin { _withdrawn: Withdrawn::slot(), pin: self }
    }
}

impl Drop for Pin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `drain`; all that was done under the pin happened before.
        self.slot.inside.store(0, Release);
    }
}

impl Epochs {
    pub(crate) fn new() -> Result<Self> {
        let fence_on_pin = !membarrier::register();
        let slots = Slots::new()?;
        let door = || Door(AtomicPtr::new(if fence_on_pin { ptr::without_provenance_mut(SHUT as usize) } else { slots.first() }));
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Relaxed),
            door: door(),
            read_door: door(),
            write_door: door(),
            latching: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            fence_on_pin,
            reasons: Mutex::new(0),
            watch: Watch::default(),
            slots,
        })
    }

    /// Enters the store. `Invalid` inside a closure of the same store on the same thread: waiting there would deadlock.
    #[inline]
    pub(crate) fn pin(&self) -> Result<Pin<'_>> {
        match self.pin_through(&self.door, Slot::next_number) {
            Some(pin) => Ok(pin),
            None => self.pin_slowly(self.idle_slot()?),
        }
    }

    /// A pin for the store's own work, which goes on while the store is closing.
    #[inline]
    pub(crate) fn pin_anyway(&self) -> Result<Pin<'_>> {
        match self.pin_through(&self.door, Slot::next_number) {
            Some(pin) => Ok(pin),
            None => self.pin_behind_the_door(),
        }
    }

    #[cold]
    #[inline(never)]
    fn pin_behind_the_door(&self) -> Result<Pin<'_>> {
        let slot = self.idle_slot()?;
        slot.inside.store(slot.next_number(), Release);
        fence(SeqCst);
        Ok(Pin { slot })
    }

    /// Counts a get, and enters for it, if nothing is in the way: nearly always. `None` says nothing more; `pin` knows.
    #[inline(always)]
    pub(crate) fn pin_to_read(&self) -> Option<Pin<'_>> {
        let Some(slot) = slot_from(self.read_door.0.load(Relaxed)) else {
            self.count_shut_out(Counter::Get);
            return None;
        };
        // SAFETY: an open door holds where `self`'s slots are.
        let pin = self.enter(unsafe { &*slot }, |_| COUNTED);
        pin.slot.add(Counter::Get, 1);
        Some(pin)
    }

    /// The same for one write, after which nothing is left to be done.
    #[inline(always)]
    pub(crate) fn pin_to_write(&self, what: Counter) -> Option<Pin<'_>> {
        let Some(pin) = self.pin_through(&self.write_door, |_| COUNTED) else {
            self.count_shut_out(what);
            return None;
        };
        pin.slot.add(what, 1);
        Some(pin)
    }

    #[inline(always)]
    fn pin_through(&self, door: &Door, flag: impl Fn(&Slot) -> u64) -> Option<Pin<'_>> {
        let slot = slot_from(self.slots.first())?;
        let looked_early = broken(Rule::FlagAfterPin).then(|| door.is_open());
        // SAFETY: it is one of `self`'s slots.
        let pin = self.enter(unsafe { &*slot }, flag);
        // Only now: `close` shuts the door and then drains, so a pin that finds it open is one it waits for.
        // Looked at before the store, a write could be acknowledged after the last flush, and lost.
        looked_early.unwrap_or_else(|| door.is_open()).then_some(pin)
    }

    #[inline(always)]
    fn enter<'a>(&'a self, slot: &'a Slot, flag: impl Fn(&Slot) -> u64) -> Pin<'a> {
        let pin = Pin { slot };
        debug_assert!(!pin.slot.is_inside(), "the thread's slot is withdrawn while a closure runs");
        // Release: a drain that finds this pin, and need not wait for it, sees what was done under the one before: whose end
        // it may never have read.
        let release = if broken(Rule::PinReleases) { Relaxed } else { Release };
        pin.slot.inside.store(flag(pin.slot), release);
        pin.slot.light_fence();
        pin
    }

    /// A pin that fences, and looks at everything.
    #[cold]
    #[inline(never)]
    fn pin_slowly<'a>(&'a self, slot: &'a Slot) -> Result<Pin<'a>> {
        // Release: as in `enter`.
        slot.inside.store(slot.next_number(), Release);
        let pin = Pin { slot };
        if !broken(Rule::PinFences) {
            fence(SeqCst);
        }
        if self.is_closed() { Err(Error::Closed) } else { Ok(pin) }
    }

    /// Runs a user's closure under the pin. The thread's slot is withdrawn meanwhile, so that a call of this store from
    /// inside is noticed, and every other call is spared the question.
    #[inline(always)]
    pub(crate) fn within<R>(&self, _: &Pin<'_>, run: impl FnOnce() -> R) -> R {
        let _withdrawn = Withdrawn::slot();
        run()
    }

    /// This thread's own slot, which must not hold a pin; from now on it is at hand, in every store.
    #[cold]
    #[inline(never)]
    pub(crate) fn idle_slot(&self) -> Result<&Slot> {
        let slot = self.slot_outside()?;
        if OFFSET.with(Cell::get) == AWAY {
            OFFSET.with(|offset| offset.set((thread_index() * size_of::<Slot>()) as isize));
        }
        Ok(slot)
    }

    /// A number that no other store of this process has or had.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What all threads have counted.
    pub(crate) fn counted(&self, what: Counter) -> u64 {
        self.slots().map(|slot| slot.counted(what)).sum()
    }

    /// Counts what is done without a pin that could count it. Not inside: a call that a closure makes is refused, and would
    /// count under its caller's pin.
    pub(crate) fn count(&self, what: Counter, by: u64) -> Result<()> {
        self.slot_outside()?.count(what, by);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn count_shut_out(&self, what: Counter) {
        // A thread too many, or inside, is told so by the path that comes next.
        let _ = self.count(what, 1);
    }

    fn slot_outside(&self) -> Result<&Slot> {
        let slot = self.slot()?;
        if slot.is_inside() || IS_BARRED.with(Cell::get) {
            return Err(match self.is_closed() {
                true => Error::Closed,
                false => Error::invalid("the store was called from inside a closure that it runs"),
            });
        }
        Ok(slot)
    }

    /// True in a closure that the store runs under a pin of this thread, and in a clock.
    pub(crate) fn is_inside(&self) -> bool {
        IS_BARRED.with(Cell::get) || self.slot().is_ok_and(Slot::is_inside)
    }

    /// This thread's own slot.
    pub(crate) fn slot(&self) -> Result<&Slot> {
        self.slots.get(thread_index()).ok_or_else(|| Error::invalid("more than 65536 threads of the process use stores"))
    }

    /// The slots of all threads that were here, and perhaps of others. Acquire: of a thread that registered before a fence that the
    /// caller's came after.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.up_to(if cfg!(loom) { usize::MAX } else { NEXT_INDEX.load(Acquire) })
    }

    /// Returns once every operation that began before this call has ended. Must not be called under a pin.
    pub(crate) fn drain(&self) {
        fence(SeqCst);
        if !self.fence_on_pin {
            membarrier::everywhere(self);
        }
        if broken(Rule::DrainWaits) {
            return;
        }
        // Who comes in after the fence sees the boundary that was moved before it.
        self.slots().enumerate().for_each(|(number, slot)| slot.wait_until_outside(&self.watch, number));
    }

    pub(crate) fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, SeqCst);
        self.set_doors(|reasons| reasons | CLOSED);
        self.drain();
        was_open
    }

    /// From now on every pin takes the long way, where more can be asked than a fast operation has time for.
    pub(crate) fn slow_down(&self) {
        self.set_doors(|reasons| reasons | FAILED);
    }

    /// That is over, unless there is another reason.
    pub(crate) fn speed_up(&self) {
        self.set_doors(|reasons| reasons & !FAILED);
    }

    /// From now on no write is made at once.
    pub(crate) fn slow_writes_down(&self) {
        self.set_doors(|reasons| reasons | DURABLE);
    }

    fn set_doors(&self, change: impl FnOnce(u8) -> u8) {
        let mut reasons = self.reasons.lock().unwrap_or_else(|e| e.into_inner());
        *reasons = change(*reasons);
        let read_door = CLOSED | FAILED | LATCHING;
        for (door, shut_by) in [(&self.door, CLOSED | FAILED), (&self.read_door, read_door), (&self.write_door, read_door | DURABLE)] {
            let is_open = !self.fence_on_pin && *reasons & shut_by == 0;
            door.lead(if is_open { self.slots.first() } else { ptr::null_mut() });
        }
    }

    /// From now on every operation asks the latches: when this returns, those that did not have ended, but for reads of one key
    /// that are late. Not under a pin.
    pub(crate) fn begin_latching(&self) {
        self.latching.store(true, SeqCst);
        self.set_doors(|reasons| reasons | LATCHING);
        self.drain();
    }

    /// True if keys have latches. Under a pin taken before: whoever does not see it yet is waited for.
    #[inline(always)]
    pub(crate) fn is_latching(&self) -> bool {
        self.latching.load(Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

statics! {
    // The lowest first: a store has slots for numbers below a bound.
    static FREE_INDEXES: Mutex<BinaryHeap<Reverse<usize>>> = Mutex::new(BinaryHeap::new());
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    static NEXT_INDEX: AtomicUsize = AtomicUsize::new(0);
}

struct Registration(usize);

impl Drop for Registration {
    fn drop(&mut self) {
        // Under shuttle these may be gone by now, and their thread with them.
        let _ = INDEX.try_with(|index| index.set(usize::MAX));
        let _ = OFFSET.try_with(|offset| offset.set(AWAY));
        FREE_INDEXES.lock().unwrap_or_else(|e| e.into_inner()).push(Reverse(self.0));
    }
}

thread_local! {
    // Where the thread's slot is behind a store's first one, in bytes.
    static OFFSET: Cell<isize> = const { Cell::new(AWAY) };
    static INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
    static REGISTRATION: Cell<Option<Registration>> = const { Cell::new(None) };
    static IS_BARRED: Cell<bool> = const { Cell::new(false) };
}

/// This thread's slot behind a store's first one, or a door that may be shut: one question for both. It is there to be read if the door is
/// one of a living store's.
#[inline(always)]
fn slot_from(first: *const Slot) -> Option<*const Slot> {
    let slot = first.wrapping_byte_offset(OFFSET.with(Cell::get));
    (slot.addr() as isize >= 0).then_some(slot)
}

/// A small number that no other living thread has.
#[inline(always)]
pub(crate) fn thread_index() -> usize {
    let index = INDEX.with(Cell::get);
    if index != usize::MAX { index } else { register_thread() }
}

#[cold]
fn register_thread() -> usize {
    let free = FREE_INDEXES.lock().unwrap_or_else(|e| e.into_inner()).pop();
    let index = free.map_or_else(|| NEXT_INDEX.fetch_add(1, Relaxed), |Reverse(index)| index);
    INDEX.with(|cell| cell.set(index));
    watch::register(index);
    // Not in models, where each thread has its number beforehand: that threads register in any order is true and would multiply their
    // executions.
    if REGISTRATION.try_with(|cell| cell.set(Some(Registration(index)))).is_err() {
        last::give_back(index);
    }
    index
}

/// The number of a thread whose own locals are being destroyed, by one of which the store is used: the system calls what is registered here
/// after those, and once more if a number was taken again meanwhile.
#[cfg(not(any(loom, shuttle)))]
mod last {
    use super::Registration;
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::OnceLock;

    /// None where the system grants none: then such a number is not used again.
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

    /// Above null, for which nothing is called.
    pub(super) fn give_back(index: usize) {
        let new_key = || {
            let mut key = 0;
            // SAFETY: `key` is ours to be written, and `end` takes what is set below.
            (unsafe { libc::pthread_key_create(&raw mut key, Some(end)) } == 0).then_some(key)
        };
        if let Some(key) = KEY.get_or_init(new_key) {
            // SAFETY: a key that was created, and is never deleted. That there may be no room for the value is no harm.
            let _ = unsafe { libc::pthread_setspecific(*key, ptr::without_provenance::<c_void>(index + 1)) };
        }
    }

    extern "C" fn end(above: *mut c_void) {
        drop(Registration(above.addr() - 1));
    }
}

#[cfg(any(loom, shuttle))]
mod last {
    pub(super) fn give_back(_: usize) {}
}

#[cfg(all(loom, test))]
pub(crate) fn set_thread_index(to: usize) {
    INDEX.with(|index| index.set(to));
    OFFSET.with(|offset| offset.set(AWAY));
}

/// Under loom a fence between the caller and each thread, as [`Slot::light_fence`] tells.
#[cfg(loom)]
mod membarrier {
    use crate::sync::Weakness;
    use crate::sync::atomic::{Ordering::*, fence};

    pub(super) fn register() -> bool {
        !Weakness::fence_on_pin()
    }

    pub(super) fn everywhere(epochs: &super::Epochs) {
        // Towards the caller itself the system call is a full fence.
        fence(SeqCst);
        epochs.slots().for_each(|slot| _ = slot.barrier.fetch_add(1, AcqRel));
        fence(SeqCst);
    }
}

#[cfg(not(loom))]
mod membarrier {
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

    #[cfg(target_os = "linux")]
    fn call(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes no pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn call(_: libc::c_int) -> bool {
        false
    }

    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn everywhere(_: &super::Epochs) {
        assert!(call(PRIVATE_EXPEDITED), "membarrier was registered and must work");
    }
}
