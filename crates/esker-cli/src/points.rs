//! The commands that touch one key.
//!
//! Each opens the store, does one operation and closes it again: exact, and as slow as opening a store is.

use std::ffi::OsString;
use std::path::Path;

use crate::args::Opening;
use crate::failure::{Failure, Outcome};
use crate::out;
use crate::store::{self, look_at, with_existing};

/// Of a key that is not there a message has so many bytes.
const KEY_SHOWN: usize = 200;

/// Prints the value of a key.
pub(crate) fn get(dir: &Path, key: OsString, opening: Opening) -> Outcome {
    let key = key.into_encoded_bytes();
    let value = look_at(dir, opening, |store| Ok(store.get(&key[..])?))?;
    out::line(value.ok_or_else(|| absent(&key))?)
}

/// Sets the value of a key.
pub(crate) fn put(dir: &Path, key: OsString, value: OsString, opening: Opening) -> Outcome {
    let (key, value) = (key.into_encoded_bytes(), value.into_encoded_bytes());
    store::with(dir, opening, |store| Ok(store.put(&key[..], &value[..])?))
}

/// Adds to the end of a key's value.
pub(crate) fn append(dir: &Path, key: OsString, value: OsString, opening: Opening) -> Outcome {
    let (key, value) = (key.into_encoded_bytes(), value.into_encoded_bytes());
    store::with(dir, opening, |store| {
        store.append(&key[..], &value[..])?;
        Ok(())
    })
}

/// Removes a key.
pub(crate) fn delete(dir: &Path, key: OsString, opening: Opening) -> Outcome {
    let key = key.into_encoded_bytes();
    let was_there = with_existing(dir, opening, |store| Ok(store.delete(&key[..])?))?;
    if was_there { Ok(()) } else { Err(absent(&key)) }
}

fn absent(key: &[u8]) -> Failure {
    let start = &key[..key.len().min(KEY_SHOWN)];
    let more = if key.len() > KEY_SHOWN { "..." } else { "" };
    Failure::new(format!("no such key: {}{more}", String::from_utf8_lossy(start)))
}
