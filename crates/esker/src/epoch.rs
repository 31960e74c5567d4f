//! Epochs: who may still be looking at what.
//!
//! Each thread owns one [`Slot`] per store. An operation raises a flag in it (a *pin*: one plain store, no fence) and lowers it
//! at its end. Whoever moves a boundary calls [`Epochs::drain`]: it makes every running thread's stores visible with
//! `membarrier(2)`, and waits until each flag that is raised then was lowered once. From then on nobody can act on the boundary's
//! old value. Pins last one operation and never span a device access, so a drain takes microseconds. The scheme is FASTER's
//! (SIGMOD 2018), with the heavy fence moved to the rare side, and without its common epoch:
//!
//! * **who came in after the fence** sees the boundary that was moved before it, and need not be waited for;
//! * **who is inside whenever we look** is told from who is inside still. Most pins raise a flag never raised before. Those of one
//!   read or write at once raise a constant, which takes no register from the operations that overlap; but each of them counts its
//!   one operation, and nothing else is counted under it. Two more operations counted: it has ended.
//!
//! **Doors.** A pin at once needs an open door: a word that holds the store's id, or another number when it is shut. So one
//! comparison with what the thread remembers tells whose slot it is and that nothing is in the way.
//!
//! | shut when                                  | `door` | `read_door` | `write_door` |
//! |--------------------------------------------|--------|-------------|--------------|
//! | the store is closed, or its device failed  | x      | x           | x            |
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

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*, fence};
use crate::sync::{Mutex, Rule, broken, hint, statics, thread, thread_local};
use crate::watch::{self, Watch};
use std::cell::Cell;
use std::ptr;

// Models have a handful of threads, and pay for every atomic.
const SLOTS_PER_CHUNK: usize = if cfg!(loom) { 4 } else { 64 };
/// A drain that has looked this often in vain says for whom it waits.
const NOTED_SPINS: u32 = 1024;
const CHUNKS: usize = if cfg!(loom) { 1 } else { 1024 };

/// What a pin raises that counts one operation.
const COUNTED: u64 = 1;

/// No store's id, and not what a thread remembers that was in none (0).
const SHUT: u64 = u64::MAX;

/// One thread's state in one store: cache lines that only this thread writes (others read `inside` and the counters). What
/// operations at once need comes first.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Slot {
    /// 0: not inside the store. [`COUNTED`], or a number for this pin alone: inside.
    inside: AtomicU64,
    /// The unused rest of this thread's piece of the log: `[cursor, end)`.
    pub(crate) cursor: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) piece_bytes: AtomicU64,
    /// Index entries added since they were last counted globally.
    pub(crate) entries: AtomicU64,
    pub(crate) counters: [AtomicU64; Counter::COUNT],
    /// Pins that got numbers.
    numbered: AtomicU64,
    /// Stands for the two halves of `membarrier` (see [`Slot::light_fence`]).
    #[cfg(loom)]
    barrier: AtomicU64,
}

/// What each slot counts.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    Get,
    Put,
    Rmw,
    Append,
    Delete,
    DeviceRead,
    /// Bytes of records superseded or deleted.
    DeadByte,
    /// Cold records copied into memory because they were read.
    Promotion,
    /// Gets that found nothing.
    Miss,
    /// Transactions that committed, and those that met another and did not.
    Transaction,
    Conflict,
    /// Puts over a cold record that nobody read.
    Guess,
}

impl Counter {
    pub(crate) const COUNT: usize = 12;
    /// The first so many count what may be done at once. Models count gets alone.
    const AT_ONCE: usize = if cfg!(loom) { 1 } else { Self::DeviceRead as usize };

    fn is_at_once(self) -> bool {
        (self as usize) < Self::AT_ONCE
    }
}

impl Slot {
    /// The owner's half of the fence whose other half is `membarrier` in `drain`.
    #[cfg(not(loom))]
    #[inline(always)]
    fn light_fence(&self) {
        std::sync::atomic::compiler_fence(SeqCst);
    }

    /// As loom sees it: the two halves meet in one atomic, so what came before the earlier of them is visible after the
    /// later. That is all `membarrier` promises; towards everybody else the light half orders nothing.
    #[cfg(loom)]
    fn light_fence(&self) {
        if !broken(Rule::PinFences) {
            self.barrier.fetch_add(1, AcqRel);
        }
    }

    /// A flag that was never raised before.
    fn next_number(&self) -> u64 {
        let number = self.numbered.load(Relaxed) + 1;
        self.numbered.store(number, Relaxed);
        COUNTED + number
    }

    fn is_inside(&self) -> bool {
        self.inside.load(Relaxed) != 0
    }

    /// What is left of the piece.
    pub(crate) fn unfilled_bytes(&self) -> u64 {
        self.end.load(Relaxed).saturating_sub(self.cursor.load(Relaxed))
    }

    /// The next record goes above all there is. What is left of the piece is dead; and the next piece is a short one, or two
    /// threads that write one key by turns would fill the log with what they leave.
    pub(crate) fn leave_piece(&self) {
        self.count(Counter::DeadByte, self.unfilled_bytes());
        self.end.store(0, Relaxed);
        self.piece_bytes.store(0, Relaxed);
    }

    /// Counts, outside of any pin or under a numbered one: see [`Slot::has_ended`].
    #[inline(always)]
    pub(crate) fn count(&self, what: Counter, by: u64) {
        debug_assert!(!what.is_at_once() || self.inside.load(Relaxed) != COUNTED, "an operation at once counts by itself alone");
        self.add(what, by);
    }

    /// What this thread, whose slot it is, has counted.
    pub(crate) fn counted(&self, what: Counter) -> u64 {
        self.counters[what as usize].load(Relaxed)
    }

    #[inline(always)]
    fn add(&self, what: Counter, by: u64) {
        // Only the owner writes: a load and a store, no locked instruction.
        let counter = &self.counters[what as usize];
        // Release: pairs with the Acquire in `operations`; what was done under earlier pins happened before.
        let order = if broken(Rule::CountReleases) { Relaxed } else { Release };
        counter.store(counter.load(Relaxed) + by, order);
    }

    /// Returns once a pin that is held now has ended.
    fn wait_until_outside(&self, watch: &Watch, number: usize) {
        let (mut spins, mut waiting) = (0u32, None);
        // Acquire, here and in `has_ended`: pairs with the Release in `Pin::drop`, or in the pin that came after it.
        let seen = self.inside.load(Acquire);
        if seen == 0 {
            return;
        }
        let counted = self.operations();
        while !self.has_ended(seen, counted) {
            spins += 1;
            match spins {
                0..64 => hint::spin_loop(),
                NOTED_SPINS if !cfg!(loom) => waiting = Some(watch.waiting(number)),
                _ => thread::yield_now(),
            }
        }
        drop(waiting);
    }

    /// True if the pin is over whose flag was `seen`, and then so many operations `counted`: what came before it was among them,
    /// and it counts one more at most.
    fn has_ended(&self, seen: u64, counted: u64) -> bool {
        let counts_once = seen == COUNTED;
        self.inside.load(Acquire) != seen || counts_once && self.operations() - counted > 1
    }

    fn operations(&self) -> u64 {
        self.counters[..Counter::AT_ONCE].iter().map(|counter| counter.load(Acquire)).sum()
    }
}

pub(crate) struct Epochs {
    /// Never reused within the process, never 0.
    id: u64,
    door: AtomicU64,
    read_door: AtomicU64,
    write_door: AtomicU64,
    /// Keys have latches.
    latching: AtomicBool,
    closed: AtomicBool,
    fence_on_pin: bool,
    chunks: Box<[AtomicPtr<[Slot; SLOTS_PER_CHUNK]>]>,
    pub(crate) watch: Watch,
}

/// Keeps everything reachable at the time of the pin in place until it is dropped.
pub(crate) struct Pin<'a> {
    pub(crate) slot: &'a Slot,
}

/// A pin under which foreign code may run between our own: the slot is not remembered meanwhile, as in [`Epochs::within`].
pub(crate) struct WaryPin<'a> {
    // First, for it goes first.
    _withdrawn: Withdrawn,
    pin: Pin<'a>,
}

/// While it lives this thread's calls of a store in which it is pinned are `Invalid`, and find that out.
pub(crate) struct Withdrawn((u64, *const Slot));

impl Withdrawn {
    pub(crate) fn slot() -> Self {
        Self(LAST_SLOT.with(|last| last.replace((0, ptr::null()))))
    }
}

impl Drop for Withdrawn {
    fn drop(&mut self) {
        LAST_SLOT.with(|last| last.set(self.0));
    }
}

/// While it lives this thread's calls of any store are `Invalid`: what runs meanwhile is foreign code in the midst of what the store does, under its locks perhaps.
pub(crate) struct Barred {
    _withdrawn: Withdrawn,
    was: bool,
}

impl Barred {
    pub(crate) fn thread() -> Self {
        Self { _withdrawn: Withdrawn::slot(), was: IS_BARRED.with(|is| is.replace(true)) }
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
    pub(crate) fn new() -> Self {
        let fence_on_pin = !membarrier::register();
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let door = || AtomicU64::new(if fence_on_pin { SHUT } else { id });
        Self {
            id,
            door: door(),
            read_door: door(),
            write_door: door(),
            latching: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            fence_on_pin,
            chunks: (0..CHUNKS).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            watch: Watch::default(),
        }
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

    /// Counts a get, and enters for it, if the thread was here last and nothing is in the way: nearly always. `None` says nothing
    /// more; `pin` knows.
    #[inline(always)]
    pub(crate) fn pin_to_read(&self) -> Option<Pin<'_>> {
        let (owner, slot) = LAST_SLOT.with(Cell::get);
        if owner != self.read_door.load(Relaxed) {
            self.count_shut_out(Counter::Get);
            return None;
        }
        // SAFETY: an open door bears `self`'s id.
        let pin = unsafe { self.enter(slot, |_| COUNTED) };
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
    fn pin_through(&self, door: &AtomicU64, flag: impl Fn(&Slot) -> u64) -> Option<Pin<'_>> {
        let (owner, slot) = LAST_SLOT.with(Cell::get);
        if owner != self.id {
            return None;
        }
        let looked_early = broken(Rule::FlagAfterPin).then(|| door.load(Relaxed));
        // SAFETY: `owner` is `self`'s id.
        let pin = unsafe { self.enter(slot, flag) };
        // Only now: `close` shuts the door and then drains, so a pin that finds it open is one it waits for.
        // Looked at before the store, a write could be acknowledged after the last flush, and lost.
        (looked_early.unwrap_or_else(|| door.load(Relaxed)) == owner).then_some(pin)
    }

    /// # Safety
    /// `slot` was remembered beside `self`'s id. (Ids are never reused, so it is one of `self`'s, which live as long as `self`.)
    #[inline(always)]
    unsafe fn enter(&self, slot: *const Slot, flag: impl Fn(&Slot) -> u64) -> Pin<'_> {
        // SAFETY: as the caller says.
        let pin = Pin { slot: unsafe { &*slot } };
        debug_assert!(!pin.slot.is_inside(), "the remembered slot is withdrawn while a closure runs");
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

    /// Runs a user's closure under the pin. The remembered slot is withdrawn meanwhile, so that a call of this store from
    /// inside is noticed, and every other call is spared the question.
    #[inline(always)]
    pub(crate) fn within<R>(&self, _: &Pin<'_>, run: impl FnOnce() -> R) -> R {
        let remembered = LAST_SLOT.with(|last| last.replace((0, ptr::null())));
        let result = run();
        // After a panic it stays withdrawn, which costs the next call a look-up.
        LAST_SLOT.with(|last| last.set(remembered));
        result
    }

    /// This thread's own slot, which must not hold a pin.
    #[cold]
    #[inline(never)]
    pub(crate) fn idle_slot(&self) -> Result<&Slot> {
        let slot = self.slot_outside()?;
        LAST_SLOT.with(|last| last.set((self.id, slot)));
        Ok(slot)
    }

    /// A number that no other store of this process has or had.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What all threads have counted.
    pub(crate) fn counted(&self, what: Counter) -> u64 {
        self.slots().map(|slot| slot.counters[what as usize].load(Relaxed)).sum()
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
        let thread = thread_index();
        if thread >= SLOTS_PER_CHUNK * CHUNKS {
            return Err(Error::invalid("more than 65536 threads use the store"));
        }
        let chunk = self.chunks[thread / SLOTS_PER_CHUNK].load(Acquire);
        let chunk = if chunk.is_null() { self.add_chunk(thread / SLOTS_PER_CHUNK) } else { chunk };
        // SAFETY: a chunk, once published, lives as long as `self`.
        Ok(unsafe { &(*chunk)[thread % SLOTS_PER_CHUNK] })
    }

    #[cold]
    fn add_chunk(&self, at: usize) -> *mut [Slot; SLOTS_PER_CHUNK] {
        let fresh = Box::into_raw(Box::new(std::array::from_fn(|_| Slot::default())));
        match self.chunks[at].compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire) {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: `fresh` was never published; nobody else knows it.
                drop(unsafe { Box::from_raw(fresh) });
                theirs
            }
        }
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.numbered_slots().map(|(_, slot)| slot)
    }

    /// The slots, with the numbers of their threads.
    fn numbered_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let chunks = self.chunks.iter().enumerate().filter_map(|(at, chunk)| {
            let chunk = chunk.load(Acquire);
            // SAFETY: a chunk, once published, lives as long as `self`.
            (!chunk.is_null()).then(|| (at * SLOTS_PER_CHUNK..).zip(unsafe { &*chunk }))
        });
        chunks.flatten()
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
        self.numbered_slots().for_each(|(number, slot)| slot.wait_until_outside(&self.watch, number));
    }

    pub(crate) fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, SeqCst);
        self.slow_down();
        self.drain();
        was_open
    }

    /// From now on every pin takes the long way, where more can be asked than a fast operation has time for.
    pub(crate) fn slow_down(&self) {
        for door in [&self.door, &self.read_door, &self.write_door] {
            door.store(SHUT, SeqCst);
        }
    }

    /// From now on no write is made at once.
    pub(crate) fn slow_writes_down(&self) {
        self.write_door.store(SHUT, SeqCst);
    }

    /// From now on every operation asks the latches: when this returns, those that did not have ended, but for reads of one key
    /// that are late. Not under a pin.
    pub(crate) fn begin_latching(&self) {
        self.latching.store(true, SeqCst);
        for door in [&self.read_door, &self.write_door] {
            door.store(SHUT, SeqCst);
        }
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

impl Drop for Epochs {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Relaxed);
            if !chunk.is_null() {
                // SAFETY: `&mut self`: no pin is left, and each chunk came from `Box::into_raw`.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

statics! {
    static FREE_INDEXES: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    static NEXT_INDEX: AtomicUsize = AtomicUsize::new(0);
}

struct Registration(usize);

impl Drop for Registration {
    fn drop(&mut self) {
        // Under shuttle these may be gone by now, and their thread with them.
        let _ = INDEX.try_with(|index| index.set(usize::MAX));
        let _ = LAST_SLOT.try_with(|last| last.set((0, ptr::null())));
        FREE_INDEXES.lock().unwrap_or_else(|e| e.into_inner()).push(self.0);
    }
}

thread_local! {
    static LAST_SLOT: Cell<(u64, *const Slot)> = const { Cell::new((0, ptr::null())) };
    static INDEX: Cell<usize> = const { Cell::new(usize::MAX) };
    static REGISTRATION: Cell<Option<Registration>> = const { Cell::new(None) };
    static IS_BARRED: Cell<bool> = const { Cell::new(false) };
}

/// A small number that no other living thread has.
#[inline(always)]
fn thread_index() -> usize {
    let index = INDEX.with(Cell::get);
    if index != usize::MAX { index } else { register_thread() }
}

#[cold]
fn register_thread() -> usize {
    let free = FREE_INDEXES.lock().unwrap_or_else(|e| e.into_inner()).pop();
    let index = free.unwrap_or_else(|| NEXT_INDEX.fetch_add(1, Relaxed));
    INDEX.with(|cell| cell.set(index));
    watch::register(index);
    // While the thread's own locals are being destroyed the index is simply never reused. Nor is it in models, where each
    // thread has its number beforehand: that threads register in any order is true and would multiply their executions.
    let _ = REGISTRATION.try_with(|cell| cell.set(Some(Registration(index))));
    index
}

#[cfg(all(loom, test))]
pub(crate) fn set_thread_index(to: usize) {
    INDEX.with(|index| index.set(to));
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
