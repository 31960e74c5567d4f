//! The stores that sums are asked of: how many objects of what size, and what became of them before.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use esker::{Options, Store, Value};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use crate::probe::Probe;
use crate::{Place, keys, memory, size};

const LOAD_BATCH: usize = 1024;
/// What an object takes besides its value: header, key and lengths in the log, its part of the index, its key in lists.
const OBJECT_BYTES: u64 = 32 + 14 + 24;
/// The part of the machine's memory that a store may fill.
const MEMORY_PART: f64 = 0.75;

/// What became of a store before sums are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum State {
    /// Loaded, in memory.
    Fresh,
    /// Half of the objects were superseded once.
    HalfDead,
    /// Once held many more, which were deleted; compacted since.
    Emptied,
    /// On the device, with memory for half of it.
    HalfCold,
    /// On the device, with memory for a tenth.
    Cold,
    /// One thread moves amounts between objects all the time.
    Writer,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::HalfDead => "half dead",
            Self::Emptied => "emptied",
            Self::HalfCold => "half cold",
            Self::Cold => "cold",
            Self::Writer => "writer",
        }
    }

    /// The part of the data that memory is for, of a store on the device.
    fn memory_part(self) -> Option<f64> {
        match self {
            Self::HalfCold => Some(0.5),
            Self::Cold => Some(0.1),
            _ => None,
        }
    }
}

/// A value with an integer in front.
pub(super) trait Amount: Value {
    fn amount(view: Self::View<'_>) -> u64;
    /// A value of so many bytes.
    fn pack(amount: u64, bytes: usize) -> Self::Owned;
}

impl Amount for u64 {
    #[inline(always)]
    fn amount(view: u64) -> u64 {
        view
    }

    fn pack(amount: u64, _: usize) -> u64 {
        amount
    }
}

impl Amount for u32 {
    #[inline(always)]
    fn amount(view: u32) -> u64 {
        u64::from(view)
    }

    fn pack(amount: u64, _: usize) -> u32 {
        u32::try_from(amount).expect("at most as many objects")
    }
}

impl Amount for [u8] {
    #[inline(always)]
    fn amount(view: &[u8]) -> u64 {
        view.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    }

    fn pack(amount: u64, bytes: usize) -> Vec<u8> {
        let mut value = vec![0x5a; bytes];
        value[..8].copy_from_slice(&amount.to_le_bytes());
        value
    }
}

/// One store.
pub(super) struct Setting {
    pub(super) state: State,
    pub(super) value_bytes: usize,
    pub(super) keys: u64,
    pub(super) emptied_from: u64,
    pub(super) memory: Option<u64>,
    pub(super) place: Place,
}

/// A store that is filled.
pub(super) struct Filled<V: Value + ?Sized> {
    pub(super) store: Store<u64, V>,
    /// The budget of a store on a device, and what that device gives without a store.
    pub(super) memory: Option<u64>,
    pub(super) probe: Option<Probe>,
    /// Resident bytes before there was a store.
    pub(super) base: u64,
    value_bytes: usize,
    has_writer: bool,
    _directory: Option<TempDir>,
}

impl Setting {
    /// All keys.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        (0..self.keys).map(keys::key)
    }

    fn data_bytes(&self) -> u64 {
        self.keys * (OBJECT_BYTES + self.value_bytes as u64)
    }

    /// Why this store cannot be, or would not be what it is called.
    pub(super) fn obstacle(&self) -> Option<String> {
        let held = if self.state == State::Emptied { self.emptied_from.max(self.keys) } else { self.keys };
        let bytes = match self.state {
            State::HalfDead => self.data_bytes() * 3 / 2,
            _ => held * (OBJECT_BYTES + self.value_bytes as u64),
        };
        let room = (memory::physical_bytes() as f64 * MEMORY_PART) as u64;
        match self.state {
            State::HalfCold | State::Cold if self.budget() <= size::LEAST => Some("all of it would fit into the least memory".to_owned()),
            State::HalfCold | State::Cold => None,
            State::Emptied if self.keys >= self.emptied_from => Some("nothing would be deleted".to_owned()),
            _ if bytes > room => Some(format!("about {} MiB, and a store may have {}", bytes >> 20, room >> 20)),
            _ => None,
        }
    }

    fn budget(&self) -> u64 {
        let part = self.state.memory_part().unwrap_or(1.0);
        self.memory.unwrap_or((self.data_bytes() as f64 * part) as u64).max(size::LEAST)
    }

    /// Makes the store.
    pub(super) fn fill<V: Amount + ?Sized>(&self) -> Result<Filled<V>> {
        let base = memory::settled_bytes();
        let mut filled = match self.state.memory_part() {
            Some(_) => self.open_on_device(base)?,
            None => {
                let options = Options::new().memory((memory::physical_bytes() as f64 * MEMORY_PART) as u64);
                Filled {
                    store: options.in_memory()?,
                    memory: None,
                    probe: None,
                    base,
                    value_bytes: self.value_bytes,
                    has_writer: self.state == State::Writer,
                    _directory: None,
                }
            }
        };
        let held = if self.state == State::Emptied { self.emptied_from } else { self.keys };
        filled.put((0..held).collect::<Vec<_>>().as_slice(), 0)?;
        match self.state {
            State::Emptied => {
                for index in self.keys..held {
                    filled.store.delete(&keys::key(index))?;
                }
                // The background does as much in time: the index is small again, too.
                filled.store.compact()?;
            }
            State::HalfDead => {
                // A scan's line freezes what is there: each put after it supersedes a record instead of changing it in place.
                filled.store.scan().keys(&[0]).for_each(|_, _| ())?;
                filled.put((0..held).step_by(2).collect::<Vec<_>>().as_slice(), 1)?;
            }
            State::HalfCold | State::Cold => {
                // So that a scan's bytes are the device's alone.
                filled.store.commit()?;
            }
            State::Fresh | State::Writer => {}
        }
        if let Some(directory) = &filled._directory {
            filled.probe = Some(Probe::create(directory.path(), self.data_bytes().clamp(size::LEAST, 2 << 30))?);
        }
        Ok(filled)
    }

    fn open_on_device<V: Amount + ?Sized>(&self, base: u64) -> Result<Filled<V>> {
        let directory = self.place.temporary()?;
        let memory = self.budget();
        Ok(Filled {
            store: Options::new().memory(memory).open(directory.path().join("store"))?,
            memory: Some(memory),
            probe: None,
            base,
            value_bytes: self.value_bytes,
            has_writer: false,
            _directory: Some(directory),
        })
    }
}

impl<V: Amount + ?Sized> Filled<V> {
    /// Puts these objects, each with its number and some more.
    fn put(&self, indices: &[u64], add: u64) -> Result<()> {
        for part in indices.chunks(LOAD_BATCH) {
            let pairs: Vec<_> = part.iter().map(|index| (keys::key(*index), V::pack(index + add, self.value_bytes))).collect();
            self.store.put_many::<u64, V::Owned>(&pairs)?;
        }
        Ok(())
    }

    /// Does something while the writer, should the state have one, moves amounts between these objects.
    pub(super) fn beside_writer(&self, objects: &[u64], act: impl FnOnce() -> Result<()>) -> Result<()> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = self.has_writer.then(|| scope.spawn(|| self.write_until(&is_over, objects)));
            let done = act();
            is_over.store(true, Ordering::Relaxed);
            match writer {
                Some(writer) => writer.join().ok().context("the writer failed")?.and(done),
                None => done,
            }
        })
    }

    fn write_until(&self, is_over: &AtomicBool, objects: &[u64]) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(objects.len() as u64);
        while !is_over.load(Ordering::Relaxed) {
            let [from, to] = [(); 2].map(|()| objects[random.random_range(0..objects.len())]);
            if from == to {
                continue;
            }
            self.store.transaction(|tx| {
                let source = tx.get_with(&from, V::amount)?.unwrap_or_default();
                let target = tx.get_with(&to, V::amount)?.unwrap_or_default();
                let moved = source.min(3);
                tx.put(&from, std::borrow::Borrow::borrow(&V::pack(source - moved, self.value_bytes)))?;
                tx.put(&to, std::borrow::Borrow::borrow(&V::pack(target + moved, self.value_bytes)))
            })?;
        }
        Ok(())
    }
}
