//! How a store is opened: one budget, and where the cold part goes.

use crate::device::{Device, FileDevice};
use crate::directory::Directory;
use crate::engine::{BUDGET_BYTES_MIN, Engine, Layout, Parts};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::types::{Key, Value};
use std::path::Path;
use std::sync::Arc;

/// How to open a store. Every setting has a default; nothing is ever sized by hand.
///
/// # Examples
/// ```
/// let hits: esker::Store<u64, u64> = esker::Options::new().memory("64MiB").in_memory()?;
/// hits.put(&7, &1)?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    memory: Result<u64>,
    io_uring: bool,
    direct_io: bool,
    accept_loss: bool,
}

/// A number of bytes: an integer, or text such as `"512MiB"`, `"1.5GiB"`, `"64MB"`.
pub trait ByteCount {
    /// In bytes.
    ///
    /// # Errors
    /// `Invalid` if the text is no number of bytes.
    fn byte_count(self) -> Result<u64>;
}

impl ByteCount for u64 {
    fn byte_count(self) -> Result<u64> {
        Ok(self)
    }
}

impl ByteCount for &str {
    fn byte_count(self) -> Result<u64> {
        let text = self.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "kib" | "k" => 1024.0,
            "mib" | "m" => 1024.0 * 1024.0,
            "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
            "tib" | "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            _ => return Err(Error::invalid(format!("not a number of bytes: `{self}`"))),
        };
        let number: f64 = text[..digits].parse().map_err(|_| Error::invalid(format!("not a number of bytes: `{self}`")))?;
        Ok((number * unit) as u64)
    }
}

impl ByteCount for &String {
    fn byte_count(self) -> Result<u64> {
        self.as_str().byte_count()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// A quarter of the machine's memory, io_uring and direct I/O where they exist.
    #[must_use]
    pub fn new() -> Self {
        Self { memory: Ok((machine_memory() / 4).max(BUDGET_BYTES_MIN)), io_uring: true, direct_io: true, accept_loss: false }
    }

    /// All the memory the store may use, any number of bytes from 16 MiB up. It can be changed later.
    #[must_use]
    pub fn memory(mut self, budget: impl ByteCount) -> Self {
        self.memory = budget.byte_count();
        self
    }

    /// False: batches of cold reads go through `pread` threads instead of io_uring.
    #[must_use]
    pub fn io_uring(mut self, wanted: bool) -> Self {
        self.io_uring = wanted;
        self
    }

    /// False: through the page cache, whose memory the budget does not see.
    #[must_use]
    pub fn direct_io(mut self, wanted: bool) -> Self {
        self.direct_io = wanted;
        self
    }

    /// True: a store that was not closed in order opens as its last orderly close left it; later writes are lost.
    #[must_use]
    pub fn accept_loss(mut self, accepted: bool) -> Self {
        self.accept_loss = accepted;
        self
    }

    /// A store without a device. A full budget answers [`Error::Full`]; no file is touched.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB, `Io` if the system refuses address space.
    pub fn in_memory<K: Key + ?Sized, V: Value + ?Sized>(self) -> Result<Store<K, V>> {
        start(self.memory?, None, None, None)
    }

    /// The store in the directory `path`, made if nothing is there; its cold part lies in a file there.
    ///
    /// # Errors
    /// `Locked` if another process has it, `Invalid` for a directory that is not a store or has other types or another
    /// format, `Corruption` for damage or a store that was not closed in order, `Io`.
    pub fn open<K: Key + ?Sized, V: Value + ?Sized>(self, path: impl AsRef<Path>) -> Result<Store<K, V>> {
        let budget = self.memory.clone()?;
        let (directory, image) = Directory::open(path.as_ref(), layout::<K, V>(), self.accept_loss)?;
        self.with_directory(budget, directory, image)
    }

    /// A store in a temporary directory that goes when the store does.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB, `Io`.
    pub fn open_temporary<K: Key + ?Sized, V: Value + ?Sized>(self) -> Result<Store<K, V>> {
        let budget = self.memory.clone()?;
        let directory = Directory::temporary(layout::<K, V>())?;
        self.with_directory(budget, directory, None)
    }

    /// An empty store over a device of your own.
    ///
    /// # Errors
    /// `Invalid` for a budget below 16 MiB, `Io` if the system refuses address space.
    pub fn open_on<K: Key + ?Sized, V: Value + ?Sized>(self, device: Arc<dyn Device>) -> Result<Store<K, V>> {
        start(self.memory?, Some(device), None, None)
    }

    fn with_directory<K: Key + ?Sized, V: Value + ?Sized>(
        self,
        budget: u64,
        directory: Directory,
        image: Option<crate::directory::Image>,
    ) -> Result<Store<K, V>> {
        let device = FileDevice::open(&directory.log_path(), self.direct_io, self.io_uring)?;
        start(budget, Some(Arc::new(device)), Some(directory), image)
    }
}

fn start<K: Key + ?Sized, V: Value + ?Sized>(
    budget: u64,
    device: Option<Arc<dyn Device>>,
    directory: Option<Directory>,
    image: Option<crate::directory::Image>,
) -> Result<Store<K, V>> {
    let layout = layout::<K, V>();
    Store::start(Engine::new(Parts { layout, budget, device, directory, image })?)
}

pub(crate) fn layout<K: Key + ?Sized, V: Value + ?Sized>() -> Layout {
    match (K::WIDTH, V::WIDTH) {
        (Some(key_bytes), Some(value_bytes)) if value_bytes <= 8 && key_bytes <= 256 => Layout::Word { key_bytes, value_bytes },
        _ => Layout::Bytes,
    }
}

fn machine_memory() -> u64 {
    // SAFETY: sysconf takes no pointers.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (pages.max(0) as u64) * (page.max(0) as u64)
}
