//! Esker as a contestant.
//!
//! Without `--memory` the store is memory only and its budget a share of the machine's memory: a
//! bound, not a hint of the number of keys. With it the store is hybrid in a temporary directory.

use anyhow::Result;
use esker::{Durability, Key, Options, Store, Value};
use tempfile::TempDir;

use super::{Appender, Engine, Pairs, Session, Settings};
use crate::Place;
use crate::pairs::values::{self, Values};

/// A store, of integers unless said.
pub(crate) struct Esker<K: Key + ?Sized = u64, V: Value + ?Sized = u64> {
    store: Store<K, V>,
    atomic_batches: bool,
    _directory: Option<TempDir>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Esker<K, V> {
    /// Opens an empty store.
    pub(crate) fn open(settings: &Settings) -> Result<Self> {
        let atomic_batches = settings.atomic_batches;
        let durability = if settings.durable { Durability::Always } else { Durability::None };
        let options = Options::new().memory(settings.memory_bytes()).io_uring(!settings.no_io_uring);
        let options = options.durability(durability).verify_reads(!settings.unchecked);
        if settings.hybrid_bytes.is_none() {
            return Ok(Self { store: options.in_memory()?, atomic_batches, _directory: None });
        }
        let (store, directory) = open_hybrid(options, &settings.place)?;
        Ok(Self { store, atomic_batches, _directory: directory })
    }
}

/// An empty store on a device, and the directory that it needs at a place of ours.
pub(crate) fn open_hybrid<K: Key + ?Sized, V: Value + ?Sized>(options: Options, place: &Place) -> Result<(Store<K, V>, Option<TempDir>)> {
    if place.directory.is_none() {
        return Ok((options.open_temporary()?, None));
    }
    let directory = place.temporary()?;
    Ok((options.open(directory.path().join("store"))?, Some(directory)))
}

impl Esker {
    /// The store itself.
    pub(crate) fn store(&self) -> &Store<u64, u64> {
        &self.store
    }
}

/// Gives up on an engine's failure.
fn must<T>(result: esker::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("esker failed: {error}"))
}

impl Engine for Esker {
    type Session<'a> = &'a Store<u64, u64>;

    fn session(&self) -> Self::Session<'_> {
        &self.store
    }

    fn device_reads(&self) -> Option<u64> {
        Some(self.store.stats().operations.device_reads)
    }

    fn scan(&self, see: &mut dyn FnMut(u64, u64)) -> bool {
        must(self.store.scan().for_each(see));
        true
    }
}

impl Session for &Store<u64, u64> {
    #[inline(always)]
    fn get(&mut self, key: u64) -> Option<u64> {
        must(Store::get(self, &key))
    }

    #[inline(always)]
    fn put(&mut self, key: u64, value: u64) {
        must(Store::put(self, &key, &value));
    }

    #[inline(always)]
    fn increment(&mut self, key: u64, first: u64) -> u64 {
        must(Store::rmw(self, &key, |old| old.map_or(first, |old| old + 1)))
    }

    fn get_many(&mut self, keys: &[u64], seen: impl FnMut(usize, Option<u64>)) {
        must(Store::get_many(self, keys, seen));
    }

    fn put_many(&mut self, pairs: &[(u64, u64)]) {
        must(Store::put_many(self, pairs));
    }

    fn increment_many(&mut self, keys: &[u64], mut seen: impl FnMut(usize, Option<u64>)) {
        must(Store::rmw_many(self, keys, |index, old| {
            seen(index, old);
            old.map_or(0, |old| old + 1)
        }));
    }
}

impl Pairs for Esker<values::Key, [u8]> {
    fn insert(&self, keys: &[values::Key], values: &mut Values) {
        if let [key] = keys {
            return must(self.store.put(key, values.of(key)));
        }
        if !self.atomic_batches {
            let mut bytes = Vec::new();
            keys.iter().for_each(|key| bytes.extend_from_slice(values.of(key)));
            let pairs: Vec<_> = keys.iter().zip(bytes.chunks_exact(bytes.len() / keys.len())).collect();
            return must(self.store.put_many(&pairs));
        }
        must(self.store.transaction(|transaction| keys.iter().try_for_each(|key| transaction.put(key, values.of(key)))));
    }

    fn fetch(&self, keys: &[values::Key], seen: &mut dyn FnMut(usize, Option<&[u8]>)) {
        if let [key] = keys {
            if must(self.store.get_with(key, |value| seen(0, Some(value)))).is_none() {
                seen(0, None);
            }
            return;
        }
        must(self.store.get_many(keys, seen));
    }
}

/// A store of byte strings.
pub(crate) struct EskerVectors {
    store: Store<u64, [u8]>,
    _directory: Option<TempDir>,
}

impl EskerVectors {
    /// Opens an empty store.
    pub(crate) fn open(settings: &Settings) -> Result<Self> {
        let options = Options::new().memory(settings.memory_bytes());
        if settings.hybrid_bytes.is_none() {
            return Ok(Self { store: options.in_memory()?, _directory: None });
        }
        let (store, directory) = open_hybrid(options, &settings.place)?;
        Ok(Self { store, _directory: directory })
    }
}

impl Appender for EskerVectors {
    #[inline(always)]
    fn append(&mut self, key: u64, bytes: &[u8]) {
        must(self.store.append(&key, bytes));
    }

    fn read(&self, key: u64, f: &mut dyn FnMut(&[u8])) {
        if must(self.store.get_with(&key, |bytes| f(bytes))).is_none() {
            f(&[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size;

    #[test]
    fn files_are_where_they_were_asked_for_until_the_store_goes() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { directory: Some(folder.path().to_owned()) };
        let settings = Settings { hybrid_bytes: Some(size::LEAST), place, ..Settings::default() };
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        let stores = (Esker::<u64, u64>::open(&settings).unwrap(), EskerVectors::open(&settings).unwrap());
        assert_eq!(count(), 2);
        drop(stores);
        assert_eq!(count(), 0);
    }
}
