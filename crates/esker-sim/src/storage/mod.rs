//! A simulated directory of files whose machine can lose its power at any call.
//!
//! The theory: what an engine may rely on is little. A write that no sync followed may be lost, kept, or kept in part (never
//! less than an aligned 512-byte piece), whatever became of the others; a name made or removed may come or go until the
//! storage itself is synced; a sync that failed promises nothing ever again for what it should have settled. [`SimStorage`] keeps exactly
//! that much: what is durable, what is loose, and the log of the calls. [`SimStorage::survive`] draws one way the disk may come
//! back; [`SimStorage::film`] is the log, from which every cut of a run is played without running it again (`crash`).
//!
//! Calls are numbered from 1. From the call of [`SimStorage::cut_at`] on every call fails: the machine is dead.

mod fate;
mod film;
mod platter;
mod scarcity;

pub use fate::{KINDS, Survival};
pub use film::{Breadth, Film, Moment};
pub use platter::{PIECE, SECTOR};
pub use scarcity::Scarcity;

use crate::disk::Failure;
use esker::{Clock, Device, ManualClock, Storage};
use platter::{Block, Disk, Event, Write};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a call asks of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Opening a file that is there.
    Open,
    /// Opening a file that is not.
    Create,
    /// Listing the names.
    List,
    /// Removing a file.
    Remove,
    /// Making names durable.
    SyncNames,
    /// Reading (each request of a batch counts).
    Read,
    /// Writing.
    Write,
    /// Making a file durable.
    Sync,
    /// Asking for a length.
    Bytes,
}

impl Kind {
    /// True if it asks for a change of the disk.
    pub fn is_change(self) -> bool {
        !matches!(self, Kind::Open | Kind::List | Kind::Read | Kind::Bytes)
    }
}

/// A planned failure.
#[derive(Clone, Copy, Debug)]
pub struct StorageFault {
    /// The call that fails, the first being 1.
    pub nth: u64,
    /// Whether every later call that changes the disk fails too.
    pub lasting: bool,
    /// The error.
    pub failure: Failure,
    /// How many sectors of a failed write are there all the same.
    pub kept: usize,
}

#[derive(Default)]
struct Machine {
    disk: Disk,
    start: Disk,
    events: Vec<Event>,
    calls: Vec<Kind>,
    cut: Option<u64>,
    faults: Vec<StorageFault>,
    struck: Vec<Kind>,
    scarcity: Option<Scarcity>,
    refused: u64,
    interruption: Option<(u64, Interruption)>,
}

/// What happens within a call.
type Interruption = Box<dyn FnOnce() + Send>;

/// Does what is to happen within this call, before it does anything itself.
fn interrupt(machine: &Mutex<Machine>) {
    let lock = || machine.lock().unwrap_or_else(PoisonError::into_inner);
    let due = {
        let interruption = &mut lock().interruption;
        interruption.as_mut().is_some_and(|(left, _)| {
            *left -= 1;
            *left == 0
        })
    };
    let interruption = if due { lock().interruption.take() } else { None };
    if let Some((_, act)) = interruption {
        act();
    }
}

enum Verdict {
    Fine,
    /// The machine dies in this call.
    Dies,
    Dead,
    Fails(StorageFault),
}

impl Machine {
    fn verdict(&mut self, kind: Kind) -> Verdict {
        self.calls.push(kind);
        let number = self.calls.len() as u64;
        match self.cut {
            Some(cut) if number == cut => return Verdict::Dies,
            Some(cut) if number > cut => return Verdict::Dead,
            _ => {}
        }
        let struck = self.faults.iter().find(|f| f.nth == number || f.lasting && f.nth < number && kind.is_change());
        let Some(fault) = struck else { return Verdict::Fine };
        self.struck.push(kind);
        Verdict::Fails(*fault)
    }

    /// A call that is done or fails.
    fn ask(&mut self, kind: Kind) -> io::Result<()> {
        match self.verdict(kind) {
            Verdict::Fine => Ok(()),
            Verdict::Fails(fault) => Err(fault.failure.error()),
            Verdict::Dies | Verdict::Dead => Err(dead()),
        }
    }

    /// A change of names: in the call in which the machine dies it may or may not happen.
    fn change(&mut self, kind: Kind, event: Event) -> io::Result<()> {
        match self.verdict(kind) {
            Verdict::Fine => self.play(event),
            Verdict::Dies if kind != Kind::SyncNames => self.play(event).and(Err(dead())),
            Verdict::Fails(fault) => Err(fault.failure.error()),
            Verdict::Dies | Verdict::Dead => Err(dead()),
        }
    }

    /// What is done all the same of a call that finds no room.
    fn finds_no_room(&mut self, name: &str) -> Option<usize> {
        let kept = self.scarcity.as_mut()?.refuses(name)?;
        self.refused += 1;
        Some(kept)
    }

    fn write(&mut self, name: &str, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        aligned(offset, bytes.len())?;
        if let Some(kept) = self.finds_no_room(name) {
            let kept = kept.min(bytes.len() / SECTOR) * SECTOR;
            return self.play(Event::Write { file, write: Write::new(offset, &bytes[..kept]) }).and(Err(Failure::NoSpace.error()));
        }
        match self.verdict(Kind::Write) {
            Verdict::Fine => self.play(Event::Write { file, write: Write::new(offset, bytes) }),
            Verdict::Dies => self.play(Event::Write { file, write: Write::new(offset, bytes) }).and(Err(dead())),
            Verdict::Dead => Err(dead()),
            Verdict::Fails(fault) => {
                let kept = (fault.kept * SECTOR).min(bytes.len());
                self.play(Event::Write { file, write: Write::new(offset, &bytes[..kept]) }).and(Err(fault.failure.error()))
            }
        }
    }

    fn sync(&mut self, file: usize) -> io::Result<()> {
        match self.verdict(Kind::Sync) {
            Verdict::Fine => self.play(Event::Sync { file }),
            Verdict::Fails(fault) => self.play(Event::SyncFailed { file }).and(Err(fault.failure.error())),
            Verdict::Dies | Verdict::Dead => Err(dead()),
        }
    }

    fn play(&mut self, event: Event) -> io::Result<()> {
        self.disk.play(&event);
        self.events.push(event);
        Ok(())
    }
}

fn dead() -> io::Error {
    io::Error::other("the machine has no power")
}

/// An engine that breaks the alignment rule is wrong: it is told so as a file with direct I/O would.
fn aligned(offset: u64, length: usize) -> io::Result<()> {
    if offset.is_multiple_of(SECTOR as u64) && length.is_multiple_of(SECTOR) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("unaligned call: {length} bytes at {offset}")))
}

/// A directory in memory, of a machine with a clock. Cloning gives another handle on the same one.
#[derive(Clone, Default)]
pub struct SimStorage(Arc<Mutex<Machine>>, Arc<ManualClock>);

impl SimStorage {
    /// An empty one.
    pub fn new() -> SimStorage {
        SimStorage::default()
    }

    fn over(disk: Disk) -> SimStorage {
        SimStorage(Arc::new(Mutex::new(Machine { start: disk.clone(), disk, ..Machine::default() })), Arc::default())
    }

    /// The machine's clock.
    pub fn clock(&self) -> Arc<ManualClock> {
        self.1.clone()
    }

    /// Milliseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.1.now().duration_since(ManualClock::default().now()).map_or(0, |since| since.as_millis() as u64)
    }

    /// A fresh storage, so many milliseconds after the beginning.
    pub fn at(self, now: u64) -> SimStorage {
        self.1.advance(Duration::from_millis(now.saturating_sub(self.now())));
        self
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From this call on every call fails; a write in this very call may be there in part.
    pub fn cut_at(&self, call: u64) {
        self.machine().cut = Some(call);
    }

    /// Plans a failure.
    pub fn fail(&self, fault: StorageFault) {
        self.machine().faults.push(fault);
    }

    /// From now on some calls that need room have none, or all that ask have some; what was so before.
    pub fn set_scarcity(&self, scarcity: Option<Scarcity>) -> Option<Scarcity> {
        std::mem::replace(&mut self.machine().scarcity, scarcity)
    }

    /// How many calls had no room by that.
    pub fn refused(&self) -> u64 {
        self.machine().refused
    }

    /// Lets something happen within a read, a write, a sync or a removal: the `nth` from now on, the first being 1.
    pub fn interrupt(&self, nth: u64, act: impl FnOnce() + Send + 'static) {
        self.machine().interruption = Some((nth, Box::new(act)));
    }

    /// Takes back what has not happened.
    pub fn let_be(&self) {
        self.machine().interruption = None;
    }

    /// Forgets every planned failure.
    pub fn heal(&self) {
        self.machine().faults.clear();
    }

    /// What each call so far asked, failed ones included.
    pub fn calls(&self) -> Vec<Kind> {
        self.machine().calls.clone()
    }

    /// What each call asked that failed as planned.
    pub fn struck(&self) -> Vec<Kind> {
        self.machine().struck.clone()
    }

    /// How many calls that changed the disk were made: a moment of the film.
    pub fn position(&self) -> usize {
        self.machine().events.len()
    }

    /// The run so far.
    pub fn film(&self) -> Film {
        let machine = self.machine();
        Film { start: machine.start.clone(), events: machine.events.clone() }
    }

    /// The disk as it may look after a power cut now; the number chooses among the ways (see [`KINDS`]).
    pub fn survive(&self, number: u64) -> SimStorage {
        let machine = self.machine();
        SimStorage::over(machine.disk.survive(&Survival::draw(number, &machine.disk))).at(self.now())
    }

    /// Every way the disk may look after a power cut now, sector by sector, if there are at most `limit`.
    pub fn survivals(&self, limit: u64) -> Option<impl Iterator<Item = SimStorage> + use<>> {
        let disk = self.machine().disk.clone();
        fate::every(&disk, limit).map(|all| all.map(move |survival| SimStorage::over(disk.survive(&survival))))
    }

    /// The same contents under a new machine: what a process sees that comes after one that ended without a power cut.
    pub fn restarted(&self) -> SimStorage {
        let mut disk = self.machine().disk.clone();
        disk.settle();
        SimStorage::over(disk).at(self.now())
    }

    /// A number that two storages share only if they look the same.
    pub fn print(&self) -> u64 {
        self.machine().disk.print()
    }

    /// The files and their lengths in bytes.
    pub fn files(&self) -> Vec<(String, u64)> {
        let machine = self.machine();
        machine.disk.names.iter().map(|(name, file)| (name.to_string(), machine.disk.files[*file].current.length)).collect()
    }

    /// The bytes of a sector of a file.
    pub fn sector(&self, name: &str, sector: u64) -> [u8; SECTOR] {
        let machine = self.machine();
        machine.disk.names.get(name).map_or([0; SECTOR], |file| machine.disk.files[*file].current.get(sector))
    }

    /// Puts other bytes in a sector, behind the engine's back: rot.
    pub fn set_sector(&self, name: &str, sector: u64, bytes: [u8; SECTOR]) {
        self.rot(name, |image| image.set(sector, Block::new(bytes)));
    }

    /// Flips a bit of a file.
    pub fn flip_bit(&self, name: &str, bit: u64) {
        let (sector, within) = (bit / 8 / SECTOR as u64, (bit / 8) as usize % SECTOR);
        let mut bytes = self.sector(name, sector);
        bytes[within] ^= 1 << (bit % 8);
        self.set_sector(name, sector, bytes);
    }

    /// Blanks a sector.
    pub fn zero_sector(&self, name: &str, sector: u64) {
        self.set_sector(name, sector, [0; SECTOR]);
    }

    /// Lets no read of a sector succeed (EIO) until it is written again.
    pub fn spoil_sector(&self, name: &str, sector: u64) {
        self.rot(name, |image| image.set(sector, Block::unreadable()));
    }

    /// Exchanges two sectors: two misdirected writes.
    pub fn swap_sectors(&self, name: &str, one: u64, other: u64) {
        let (a, b) = (self.sector(name, one), self.sector(name, other));
        self.set_sector(name, one, b);
        self.set_sector(name, other, a);
    }

    /// Puts back what a sector held at an earlier moment: a lost write.
    pub fn stale_sector(&self, name: &str, sector: u64, earlier: &SimStorage) {
        self.set_sector(name, sector, earlier.sector(name, sector));
    }

    /// Cuts a file to a length in bytes.
    pub fn truncate(&self, name: &str, length: u64) {
        self.rot(name, |image| image.cut(length));
    }

    fn rot(&self, name: &str, change: impl FnOnce(&mut platter::Image)) {
        let mut machine = self.machine();
        let Some(file) = machine.disk.names.get(name).copied() else { return };
        change(Arc::make_mut(&mut machine.disk.files[file].current));
        machine.disk.settle();
        machine.start = machine.disk.clone();
    }
}

impl Storage for SimStorage {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        let mut machine = self.machine();
        if machine.disk.names.contains_key(name) {
            machine.ask(Kind::Open)?;
            let file = machine.disk.names[name];
            if machine.disk.is_adrift(file) {
                machine.play(Event::Reopened { file })?;
            }
        } else if let Some(kept) = machine.finds_no_room(name) {
            if kept > 0 {
                machine.play(Event::Create { name: name.into() })?;
            }
            return Err(Failure::NoSpace.error());
        } else {
            machine.change(Kind::Create, Event::Create { name: name.into() })?;
        }
        Ok(Arc::new(SimFile { machine: self.0.clone(), name: name.into(), file: machine.disk.names[name] }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut machine = self.machine();
        machine.ask(Kind::List)?;
        Ok(machine.disk.names.keys().map(ToString::to_string).collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        interrupt(&self.0);
        let mut machine = self.machine();
        if !machine.disk.names.contains_key(name) {
            return machine.ask(Kind::Remove).and(Err(io::ErrorKind::NotFound.into()));
        }
        machine.change(Kind::Remove, Event::Remove { name: name.into() })
    }

    fn sync(&self) -> io::Result<()> {
        interrupt(&self.0);
        self.machine().change(Kind::SyncNames, Event::SyncNames)
    }
}

struct SimFile {
    machine: Arc<Mutex<Machine>>,
    name: Box<str>,
    file: usize,
}

impl SimFile {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for SimFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        aligned(offset, into.len())?;
        interrupt(&self.machine);
        let mut machine = self.machine();
        machine.ask(Kind::Read)?;
        machine.disk.files[self.file].current.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        interrupt(&self.machine);
        self.machine().write(&self.name, self.file, offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        interrupt(&self.machine);
        self.machine().sync(self.file)
    }

    fn bytes(&self) -> io::Result<u64> {
        let mut machine = self.machine();
        machine.ask(Kind::Bytes)?;
        Ok(machine.disk.files[self.file].current.length)
    }
}
