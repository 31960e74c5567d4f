//! Errors tell the caller what to do next; a kind exists only if the caller would act differently.

use std::{fmt, io, path::PathBuf, sync::Arc};

/// What went wrong, named for what the caller should do about it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// Bytes on the device are not what was written; which, by file and address. (`file=esker.log` are the log's files as one: block
    /// `address / 4080`, rounded down, is their 4 KiB sector of that number.) Other records can still be read. Restore a backup, carry
    /// what is whole over with [`crate::salvage`], or open with [`crate::Options::accept_loss`].
    Corruption(String),
    /// The device failed, or the system refused a file, a thread or memory; which and where, in the text. What the system said, with its
    /// number, is the source of that. After a failed write or sync the store is latched: writes refuse, reads go on; reopen it. If it was
    /// for want of room, or of file handles, writes go on as soon as there is some.
    Io(Arc<io::Error>),
    /// The memory budget has no room for a new record. Delete something or raise the budget. A scan, an iterator or a read transaction that
    /// is alive holds space back, and so does a page or a look at a history that takes long: in a cache these are the only causes.
    Full,
    /// The call cannot be right, here and so: a value that is too long, a directory with something else in it, another layout or format, a
    /// call from inside a closure that the store runs under a pin: the update of `rmw`, the test of `Scan::keys_where`, `Cache::worth`,
    /// `Clock::now`, the `Borrow` of a batch's keys. Nothing was changed, where the call does not say otherwise; of a batch, the items
    /// before this one were, and perhaps some behind it.
    Invalid(String),
    /// The directory is open, in this or another process.
    Locked(PathBuf),
    /// A loader given to `get_or_insert_with` or `get_or_load` failed; what it failed with.
    Load(Arc<dyn std::error::Error + Send + Sync>),
    /// What a transaction was given to do decided against it, and why ([`Error::aborted`]): nothing was changed.
    Aborted(Arc<dyn std::error::Error + Send + Sync>),
    /// What the transaction had read is not so any more: another writer changed this key, or it expired, or a cache dropped it; or its
    /// record was moved, by compaction or to the device, while another key that shares its latch was written; in a cache that it was moved
    /// is enough. The transaction changed nothing. Do it again.
    Conflict {
        /// The key's bytes.
        key: Box<[u8]>,
    },
    /// The store was closed.
    Closed,
    /// A scan, a verification, a backup or a salvage ended, because what is told of its progress answered `Break`. It leaves what any other
    /// error in its midst would leave.
    Cancelled,
}

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For a transaction's body that decides against it: any error of the caller's, or a message.
    ///
    /// # Examples
    /// ```
    /// use esker::{Error, Options, Store};
    ///
    /// let accounts: Store<str, u64> = Options::new().memory("16MiB").in_memory()?;
    /// accounts.put("ada", &20)?;
    /// let paid = accounts.transaction(|tx| {
    ///     let ada = tx.get("ada")?.unwrap_or(0);
    ///     tx.put("ada", &ada.checked_sub(30).ok_or_else(|| Error::aborted("ada has not enough"))?)
    /// });
    /// assert!(matches!(paid, Err(Error::Aborted(why)) if why.to_string() == "ada has not enough"));
    /// assert_eq!(accounts.get("ada")?, Some(20));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn aborted(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Aborted(Arc::from(why.into()))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn corruption(message: impl Into<String>) -> Self {
        Self::Corruption(message.into())
    }

    /// True if bytes on the device are lost: they are not what was written, or this place cannot be read. A device that fails otherwise may
    /// do better another time.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Corruption(_) => true,
            Self::Io(error) => is_unreadable(error),
            _ => false,
        }
    }

    /// True for what fails for want of files or memory, which there may be again: it says nothing about the medium.
    pub(crate) fn is_for_want(&self) -> bool {
        matches!(self, Self::Io(error) if is_out_of_files(error) || error.kind() == io::ErrorKind::OutOfMemory)
    }

    /// A device is foreign code, and what it has done is not known.
    pub(crate) fn device_panicked() -> Self {
        io::Error::other("the device panicked").into()
    }
}

/// What the system says, and what of: it names no files itself.
#[derive(Debug)]
struct Named {
    error: io::Error,
    what: String,
    is_final: bool,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.what.is_empty() { "" } else { " " };
        write!(f, "{}{space}{}", self.error, self.what)
    }
}

impl std::error::Error for Named {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The same error with the words that tell what it is about.
pub(crate) fn about(error: io::Error, what: impl fmt::Display) -> io::Error {
    io::Error::new(error.kind(), Named { error, what: what.to_string(), is_final: false })
}

/// The same error, of something that must not be tried again.
pub(crate) fn for_good(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Named { error, what: String::new(), is_final: true })
}

fn named(error: &io::Error) -> Option<&Named> {
    error.get_ref()?.downcast_ref()
}

fn is_for_good(error: &io::Error) -> bool {
    named(error).is_some_and(|Named { error, is_final, .. }| *is_final || is_for_good(error))
}

fn system_number(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| system_number(&named(error)?.error))
}

/// Says of a device that its store is closed: an [`Error::Closed`] among those of the system.
#[derive(Debug)]
struct StoreClosed;

impl fmt::Display for StoreClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::Closed.fmt(f)
    }
}

impl std::error::Error for StoreClosed {}

/// What a device answers when its store is closed.
pub(crate) fn store_closed() -> io::Error {
    io::Error::other(StoreClosed)
}

fn is_store_closed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<StoreClosed>()) || named(error).is_some_and(|named| is_store_closed(&named.error))
}

/// True where the process, or the machine, may have no more files open.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(system_number(error), Some(libc::EMFILE | libc::ENFILE))
}

/// True where there is no room, as far as this process may have it.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// True where a write failed for want of something that there may be again, and did nothing else: then the same may be written once more.
pub(crate) fn is_for_now(error: &io::Error) -> bool {
    (is_full(error) || is_out_of_files(error)) && !is_for_good(error)
}

/// True for a place of the medium that cannot be read: block devices answer `EIO` or `ENODATA`, file systems with checksums of their own
/// also the others.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    matches!(system_number(error), Some(libc::EIO | libc::ENODATA | libc::EBADMSG | libc::EILSEQ | libc::EUCLEAN))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corruption(what) => write!(f, "corruption: {what}"),
            Self::Io(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                write!(f, "the system refuses: {error}")
            }
            Self::Io(error) => write!(f, "i/o failed: {error}"),
            Self::Full => f.write_str("the memory budget is full"),
            Self::Invalid(what) => write!(f, "invalid: {what}"),
            Self::Locked(path) => write!(f, "locked: open in this or another process path={}", path.display()),
            Self::Load(error) => write!(f, "the loader failed: {error}"),
            Self::Aborted(why) => write!(f, "aborted: {why}"),
            Self::Conflict { key } => write!(f, "conflict with another writer key={}", key.escape_ascii()),
            Self::Closed => f.write_str("the store is closed"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error.as_ref()),
            Self::Load(error) | Self::Aborted(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if is_store_closed(&error) { Self::Closed } else { Self::Io(Arc::new(error)) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_names_its_file_is_the_error_it_was() {
        let is_lost = |number| {
            let plain = || io::Error::from_raw_os_error(number);
            let named = about(about(plain(), "file=a"), "path=b");
            assert_eq!((named.kind(), named.to_string()), (plain().kind(), format!("{} file=a path=b", plain())));
            Error::from(named).is_damage()
        };
        assert!(is_lost(libc::EIO) && is_lost(libc::ENODATA) && !is_lost(libc::ENOSPC));
    }

    #[test]
    fn a_closed_store_is_no_failed_device() {
        assert!(matches!(Error::from(about(store_closed(), "file=a")), Error::Closed));
        assert!(matches!(Error::from(about(io::Error::other("the store is closed"), "file=a")), Error::Io(_)));
    }
}
