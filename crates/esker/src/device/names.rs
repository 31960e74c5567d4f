//! A place of files whose names are made durable by one sync at a time, and never again after one failed.
//!
//! The system tells of what it could not write once: the next sync of the same directory succeeds. A line under way must not take that for
//! its own, though an image's sync was the one that failed.

use super::{Device, ReadSource, Storage};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct Names {
    place: Arc<dyn Storage>,
    has_failed: Mutex<bool>,
}

impl Names {
    pub(crate) fn of(place: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(Self { place, has_failed: Mutex::new(false) })
    }
}

impl Storage for Names {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        self.place.open(name)
    }

    fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        self.place.open_to_read(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.place.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.place.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        let mut has_failed = self.has_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_failed {
            return Err(io::Error::other("an earlier sync of the names has failed"));
        }
        // Until it is known: a place is foreign code, and may panic.
        *has_failed = true;
        let synced = self.place.sync();
        *has_failed = synced.is_err();
        synced
    }

    fn path(&self) -> Option<&Path> {
        self.place.path()
    }

    fn let_go(&self) {
        self.place.let_go();
    }

    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        self.place.read_stream(device, source);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::MemoryStorage;
    use std::io::ErrorKind;

    /// Its first sync fails, as the system's would.
    struct Once(MemoryStorage, Mutex<Option<ErrorKind>>);

    impl Storage for Once {
        fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
            self.0.open(name)
        }

        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.1.lock().unwrap().take().map_or(Ok(()), |kind| Err(kind.into()))
        }
    }

    #[test]
    fn names_are_not_synced_again_after_a_failure() {
        let synced = |kind| {
            let names = Names::of(Arc::new(Once(MemoryStorage::new(), Mutex::new(Some(kind)))));
            (names.sync().is_ok(), names.sync().is_ok(), names.sync().is_ok())
        };
        assert_eq!(synced(ErrorKind::Other), (false, false, false));
        assert_eq!(synced(ErrorKind::StorageFull), (false, false, false));
    }
}
