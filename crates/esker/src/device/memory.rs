//! A device, and a place for files, in memory: for tests and experiments.

use super::{Device, Storage};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// A device in memory.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Device for MemoryDevice {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(|e| e.into_inner());
        let from = offset as usize;
        let source = bytes.get(from..from + into.len());
        into.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(|e| e.into_inner());
        let from = offset as usize;
        if bytes.len() < from + source.len() {
            bytes.resize(from + source.len(), 0);
        }
        bytes[from..from + source.len()].copy_from_slice(source);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.read().unwrap_or_else(|e| e.into_inner()).len() as u64)
    }
}

/// Named files in memory, which outlive the store that was opened in them.
///
/// # Examples
/// ```
/// use esker::{MemoryStorage, Options, Store};
/// use std::sync::Arc;
///
/// let files = Arc::new(MemoryStorage::new());
/// let store: Store<u64, u64> = Options::new().memory("16MiB").open_in(files.clone())?;
/// store.put(&1, &2)?;
/// store.close()?;
/// let again: Store<u64, u64> = Options::new().memory("16MiB").open_in(files)?;
/// assert_eq!(again.get(&1)?, Some(2));
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryStorage {
    files: Mutex<BTreeMap<String, Arc<MemoryDevice>>>,
}

impl MemoryStorage {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a power cut now would leave, were every write durable at once. The store may be in use.
    #[must_use]
    pub fn copy(&self) -> Self {
        let files = self.files();
        // All at one moment: nobody writes to any while we hold them, and who writes holds one at a time.
        let held: Vec<_> = files.iter().map(|(name, file)| (name, file.bytes.read().unwrap_or_else(|e| e.into_inner()))).collect();
        let copies = held.into_iter().map(|(name, bytes)| {
            let device = MemoryDevice { bytes: RwLock::new(bytes.clone()) };
            (name.clone(), Arc::new(device))
        });
        Self { files: Mutex::new(copies.collect()) }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<MemoryDevice>>> {
        self.files.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Storage for MemoryStorage {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        Ok(self.files().entry(name.into()).or_default().clone())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// File by file it was, once: the log then spoke of lines behind a slot that had been copied before.
    #[test]
    fn a_copy_has_all_files_as_of_one_moment() {
        let files = MemoryStorage::new();
        let [first, second] = ["a", "z"].map(|name| files.open(name).unwrap());
        files.open("between").unwrap().write(0, &vec![1; 1 << 20]).unwrap();
        let write = |n: u64| [&first, &second].into_iter().for_each(|file| file.write(0, &n.to_le_bytes()).unwrap());
        let read = |files: &MemoryStorage, name: &str| {
            let mut bytes = [0; 8];
            files.open(name).unwrap().read(0, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        write(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..).take_while(|_| !stop.load(Relaxed)).for_each(write));
            let copies: Vec<_> = (0..200).map(|_| files.copy()).map(|copy| (read(&copy, "a"), read(&copy, "z"))).collect();
            stop.store(true, Relaxed);
            assert!(copies.iter().all(|(first, second)| first.wrapping_sub(*second) <= 1), "{copies:?}");
        });
    }
}
