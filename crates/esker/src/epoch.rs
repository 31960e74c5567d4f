//! Epochs: who may still be looking at what.
//!
//! Each thread owns one [`Slot`] per store. An operation stores the current epoch into it (a *pin*: one plain store,
//! no fence) and clears it at its end. Whoever moves a boundary calls [`Epochs::drain`]: it advances the epoch, makes
//! every running thread's stores visible with `membarrier(2)`, and waits until no slot holds an older epoch. From then
//! on nobody can act on the boundary's old value. Pins last one operation and never span a device access, so a drain
//! takes microseconds. The scheme is FASTER's (SIGMOD 2018), with the heavy fence moved to the rare side.
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

/// One thread's state in one store: two cache lines that only this thread writes (others read `epoch` and the counters).
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Slot {
    /// 0: not inside the store. Otherwise the epoch that was current when the operation began.
    epoch: AtomicU64,
    /// The unused rest of this thread's piece of the log: `[cursor, end)`.
    pub(crate) cursor: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) piece_bytes: AtomicU64,
    /// Index entries added since they were last counted globally.
    pub(crate) entries: AtomicU64,
    pub(crate) counters: [AtomicU64; Counter::COUNT],
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
}

impl Counter {
    pub(crate) const COUNT: usize = 11;
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

    /// The next record goes above all there is. What is left of the piece is dead; and the next piece is a short one, or two
    /// threads that write one key by turns would fill the log with what they leave.
    pub(crate) fn leave_piece(&self) {
        self.count(Counter::DeadByte, self.end.load(Relaxed).saturating_sub(self.cursor.load(Relaxed)));
        self.end.store(0, Relaxed);
        self.piece_bytes.store(0, Relaxed);
    }

    pub(crate) fn count(&self, what: Counter, by: u64) {
        // Only the owner writes: a load and a store, no locked instruction.
        let counter = &self.counters[what as usize];
        counter.store(counter.load(Relaxed) + by, Relaxed);
    }
}

/// In `Epochs::ways`: a pin must take the long way.
const LONG_WAY: u64 = 1;
/// Whoever reads or changes a key asks its latch.
const LATCHED: u64 = 2;

pub(crate) struct Epochs {
    /// Never reused within the process, never 0.
    id: u64,
    current: AtomicU64,
    /// What a fast operation has no time for; 0 nearly always. [`LONG_WAY`]: the store is closed, or pins must fence.
    /// [`LATCHED`]: keys have latches (`latches.rs`).
    ways: AtomicU64,
    closed: AtomicBool,
    fence_on_pin: bool,
    chunks: Box<[AtomicPtr<[Slot; SLOTS_PER_CHUNK]>]>,
    pub(crate) watch: Watch,
}

/// Keeps everything reachable at the time of the pin in place until it is dropped.
pub(crate) struct Pin<'a> {
    pub(crate) slot: &'a Slot,
}

impl Drop for Pin<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `drain`; all that was done under the pin happened before.
        self.slot.epoch.store(0, Release);
    }
}

impl Epochs {
    pub(crate) fn new() -> Self {
        let fence_on_pin = !membarrier::register();
        Self {
            id: NEXT_ID.fetch_add(1, Relaxed),
            current: AtomicU64::new(1),
            ways: AtomicU64::new(if fence_on_pin { LONG_WAY } else { 0 }),
            closed: AtomicBool::new(false),
            fence_on_pin,
            chunks: (0..CHUNKS).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            watch: Watch::default(),
        }
    }

    /// Enters the store. `Invalid` inside a closure of the same store on the same thread: waiting there would deadlock.
    #[inline]
    pub(crate) fn pin(&self) -> Result<Pin<'_>> {
        match self.pin_unless(LONG_WAY) {
            Some(pin) => Ok(pin),
            None => self.pin_slowly(self.idle_slot()?),
        }
    }

    /// A pin for the store's own work, which goes on while the store is closing.
    pub(crate) fn pin_anyway(&self) -> Result<Pin<'_>> {
        let slot = self.idle_slot()?;
        slot.epoch.store(self.current.load(Acquire), Release);
        fence(SeqCst);
        Ok(Pin { slot })
    }

    /// The pin of a thread that was here last, in an open store whose keys have no latches: nearly always. `None` says
    /// nothing; `pin` knows.
    #[inline(always)]
    pub(crate) fn pin_fast(&self) -> Option<Pin<'_>> {
        self.pin_unless(LONG_WAY | LATCHED)
    }

    #[inline(always)]
    fn pin_unless(&self, ways: u64) -> Option<Pin<'_>> {
        let (owner, slot) = LAST_SLOT.with(Cell::get);
        if owner != self.id {
            return None;
        }
        let looked_early = broken(Rule::FlagAfterPin).then(|| self.ways.load(Relaxed));
        // SAFETY: ids are never reused, so `slot` is one of `self`'s, which live as long as `self`.
        let pin = Pin { slot: unsafe { &*slot } };
        debug_assert_eq!(pin.slot.epoch.load(Relaxed), 0, "the remembered slot is withdrawn while a closure runs");
        // Acquire: pairs with the increment in `drain`, which does not wait for a pin with the new epoch: that one must see
        // the boundary that was moved before. The compiler fence below does not order these loads on every processor.
        let order = if broken(Rule::PinAcquiresEpoch) { Relaxed } else { Acquire };
        // Release: a drain that finds this pin, and need not wait for it, sees what was done under the one before: whose end
        // it may never have read.
        let release = if broken(Rule::PinReleases) { Relaxed } else { Release };
        pin.slot.epoch.store(self.current.load(order), release);
        pin.slot.light_fence();
        // Only now: `close` raises the flag and then drains, so a pin that does not see the flag is one it waits for.
        // Looked at before the store, a write could be acknowledged after the last flush, and lost.
        (looked_early.unwrap_or_else(|| self.ways.load(Relaxed)) & ways == 0).then_some(pin)
    }

    /// A pin that fences, and looks at everything.
    #[cold]
    #[inline(never)]
    fn pin_slowly<'a>(&'a self, slot: &'a Slot) -> Result<Pin<'a>> {
        // Release: as above.
        slot.epoch.store(self.current.load(Acquire), Release);
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
        let slot = self.slot()?;
        if slot.epoch.load(Relaxed) != 0 {
            return Err(match self.is_closed() {
                true => Error::Closed,
                false => Error::invalid("the store was called from inside a closure that it runs"),
            });
        }
        LAST_SLOT.with(|last| last.set((self.id, slot)));
        Ok(slot)
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
        let safe = self.current.fetch_add(1, SeqCst) + 1;
        if self.fence_on_pin {
            fence(SeqCst);
        } else {
            membarrier::everywhere(self);
        }
        if broken(Rule::DrainWaits) {
            return;
        }
        for (number, slot) in self.numbered_slots() {
            let mut spins = 0u32;
            let mut waiting = None;
            // Acquire: pairs with the Release in `Pin::drop`, or in the pin that came after it.
            while (1..safe).contains(&slot.epoch.load(Acquire)) {
                spins += 1;
                match spins {
                    0..64 => hint::spin_loop(),
                    NOTED_SPINS if !cfg!(loom) => waiting = Some(self.watch.waiting(number)),
                    _ => thread::yield_now(),
                }
            }
            drop(waiting);
        }
    }

    pub(crate) fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, SeqCst);
        self.ways.fetch_or(LONG_WAY, SeqCst);
        self.drain();
        was_open
    }

    /// From now on every pin takes the long way, where more can be asked than a fast operation has time for.
    pub(crate) fn slow_down(&self) {
        self.ways.fetch_or(LONG_WAY, SeqCst);
    }

    /// From now on every operation asks the latches: when this returns, those that did not have ended. Not under a pin.
    pub(crate) fn begin_latching(&self) {
        self.ways.fetch_or(LATCHED, SeqCst);
        self.drain();
    }

    /// True if keys have latches. Under a pin taken before: whoever does not see it yet is waited for.
    #[inline(always)]
    pub(crate) fn is_latching(&self) -> bool {
        self.ways.load(Relaxed) & LATCHED != 0
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

#[cfg(loom)]
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
