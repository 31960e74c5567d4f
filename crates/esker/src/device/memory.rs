//! A device, and a place for files, in memory: for tests and experiments.

use super::{Device, Storage};
use crate::manifest::MANIFEST;
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
        // The manifest first: what it speaks of was written before it.
        let mut names: Vec<&String> = files.keys().collect();
        names.sort_by_key(|name| *name != MANIFEST);
        let copies = names.into_iter().map(|name| {
            let bytes = files[name].bytes.read().unwrap_or_else(|e| e.into_inner()).clone();
            (name.clone(), Arc::new(MemoryDevice { bytes: RwLock::new(bytes) }))
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
