//! Files of which a test minds each call.

use esker::{Device, MemoryStorage, Storage};
use std::io;
use std::sync::Arc;

/// A call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Call {
    /// Of a file that is not there.
    Make,
    Read,
    /// Whether the file gets longer by it.
    Write {
        grows: bool,
    },
    Sync,
    /// Of the names.
    SyncNames,
    List,
    Remove,
}

/// Asked before each call, with the file's name: an error is the call's.
type Mind = dyn Fn(&str, Call) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Minded {
    files: Arc<MemoryStorage>,
    mind: Arc<Mind>,
}

struct MindedFile {
    file: Arc<dyn Device>,
    name: String,
    mind: Arc<Mind>,
}

impl Minded {
    pub(crate) fn new(files: Arc<MemoryStorage>, mind: impl Fn(&str, Call) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { files, mind: Arc::new(mind) }
    }
}

impl Storage for Minded {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        if !self.files.list()?.iter().any(|there| there == name) {
            (self.mind)(name, Call::Make)?;
        }
        Ok(Arc::new(MindedFile { file: self.files.open(name)?, name: name.to_owned(), mind: self.mind.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        (self.mind)("", Call::List)?;
        self.files.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (self.mind)(name, Call::Remove)?;
        self.files.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        (self.mind)("", Call::SyncNames)?;
        self.files.sync()
    }
}

impl Device for MindedFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (self.mind)(&self.name, Call::Read)?;
        self.file.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let grows = offset + bytes.len() as u64 > self.file.bytes()?;
        (self.mind)(&self.name, Call::Write { grows })?;
        self.file.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (self.mind)(&self.name, Call::Sync)?;
        self.file.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}
