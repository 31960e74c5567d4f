//! A real store driven by the model's operations.
//!
//! The theory: the model speaks bytes, a store speaks types. A [`Subject`] is a store of one
//! [`Layout`] that translates: fixed-width types to their little-endian bytes, the rest as it is. So one
//! sequence of operations drives every layout, and what it gives compares with the model's byte by byte.

use crate::disk::SimDisk;
use crate::model::{Bytes, Layout, Operation, Outcome, change, operand};
use esker::{
    Clock, Error, Key, ManualClock, Options, Result, Salvage, Scan, Stats, Storage, Store, Strategy, Transaction, Ttl, Value, rehearse,
    salvage_in,
};
use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where a store keeps its data.
#[derive(Clone)]
pub enum Place {
    /// In memory only.
    Memory,
    /// On a simulated disk.
    Disk(Arc<SimDisk>),
    /// In a directory.
    Directory(PathBuf),
    /// In a simulated directory, without a driver thread.
    Storage(Arc<dyn Storage>, esker::Durability),
}

/// A change of a value in bytes, called with the position of the key in its batch.
pub type Change<'f> = &'f mut dyn FnMut(usize, Option<&[u8]>) -> Bytes;

/// A store of any layout, in bytes.
pub trait Subject: Send + Sync {
    /// Reads a value.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    /// Reads a value through a view.
    fn view(&self, key: &[u8]) -> Result<Option<Bytes>>;
    /// Whether a key is there.
    fn contains(&self, key: &[u8]) -> Result<bool>;
    /// Stores a value.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Changes a value.
    fn rmw(&self, key: &[u8], change: Change<'_>) -> Result<Bytes>;
    /// Appends to a value.
    fn append(&self, key: &[u8], bytes: &[u8]) -> Result<usize>;
    /// Deletes a key.
    fn delete(&self, key: &[u8]) -> Result<bool>;
    /// Makes one value, or none, of another.
    fn swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool>;
    /// Stores a value where there is none.
    fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool>;
    /// Stores a value where there is one, by its version.
    fn put_if_same(&self, key: &[u8], value: &[u8]) -> Result<bool>;
    /// Reads values; each position is to be told exactly once.
    fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>>;
    /// Stores values.
    fn put_many(&self, pairs: &[(Bytes, Bytes)]) -> Result<()>;
    /// Changes values.
    fn rmw_many(&self, keys: &[Bytes], change: Change<'_>) -> Result<()>;
    /// Appends to values.
    fn append_many(&self, pairs: &[(Bytes, Bytes)]) -> Result<()>;
    /// Deletes keys.
    fn delete_many(&self, keys: &[Bytes]) -> Result<usize>;
    /// Stores a value for a time.
    fn put_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()>;
    /// Ends a key at that time.
    fn end_at(&self, key: &[u8], end: SystemTime) -> Result<bool>;
    /// Reads a value and puts its end off.
    fn renew(&self, key: &[u8], ttl: Duration) -> Result<Option<Bytes>>;
    /// Takes the end of a key back.
    fn persist(&self, key: &[u8]) -> Result<bool>;
    /// How many milliseconds a key stays.
    fn ttl(&self, key: &[u8]) -> Result<Option<Option<u64>>>;
    /// The store's clock.
    fn clock(&self) -> &ManualClock;
    /// All pairs that a scan shows, in order.
    fn pairs(&self, strategy: Strategy) -> Result<Pairs>;
    /// What is there now, for as long as it is held.
    fn hold(&self) -> Result<Box<dyn Kept>>;
    /// Doubles the index's table.
    fn double_index(&self) -> Result<()>;
    /// Shrinks it as far as it may.
    fn shrink_index(&self) -> Result<()>;
    /// As [`rehearse::spill`].
    fn spill(&self, evicts: bool) -> Result<()>;
    /// As [`rehearse::drop_oldest`].
    fn drop_oldest(&self, eighths: u64) -> Result<()>;
    /// The newest versions of a key, the newest first; `None` is its absence.
    fn versions(&self, key: &[u8], most: usize) -> Result<Vec<Option<Bytes>>>;
    /// Does operations on single keys in one transaction.
    fn transaction(&self, operations: &[Operation]) -> Result<Vec<Outcome>>;
    /// Sets the budget.
    fn set_memory(&self, bytes: u64) -> Result<()>;
    /// The store's account of itself.
    fn stats(&self) -> Stats;
    /// Makes durable what has returned.
    fn commit(&self) -> Result<()>;
    /// Compacts the log.
    fn compact(&self) -> Result<()>;
    /// Compacts a stretch, as the background does.
    fn compact_stretch(&self) -> Result<()>;
    /// Takes an image of the index.
    fn save_index(&self) -> Result<()>;
    /// Takes over what is whole of another store.
    fn salvage(&self, from: Arc<dyn Storage>) -> Result<Salvage>;
    /// Closes the store.
    fn close(&self) -> Result<()>;
}

/// Keys with their values, in order.
pub type Pairs = Vec<(Bytes, Bytes)>;

/// What a store held at one moment.
pub trait Kept {
    /// All pairs that a scan of it shows, in order.
    ///
    /// # Errors
    /// The store's.
    fn pairs(&self, strategy: Strategy) -> Result<Pairs>;
}

impl<K: Key + ?Sized, V: Value + ?Sized> Kept for rehearse::Held<K, V>
where
    for<'v> K::View<'v>: Seen,
    for<'v> V::View<'v>: Seen,
{
    fn pairs(&self, strategy: Strategy) -> Result<Pairs> {
        all_of(self.scan().by(strategy))
    }
}

fn all_of<K: Key + ?Sized, V: Value + ?Sized>(scan: Scan<'_, K, V>) -> Result<Pairs>
where
    for<'v> K::View<'v>: Seen,
    for<'v> V::View<'v>: Seen,
{
    let mut pairs = Vec::new();
    scan.for_each(|key, value| pairs.push((key.seen(), value.seen())))?;
    pairs.sort_unstable();
    Ok(pairs)
}

/// A store that speaks the types of a layout.
pub trait Typed: Clone {
    /// Its layout.
    const LAYOUT: Layout;
    /// The same store in bytes; the clock is the one that it was opened with.
    fn subject(&self, clock: Arc<ManualClock>) -> Box<dyn Subject>;
}

/// The files of a log in a storage: so short that programs of a few steps fill several, and records reach across them.
const SEGMENT_BYTES: u64 = 2 * esker::SECTOR_BYTES as u64;

/// Opens a store of a layout at a place with a budget.
pub fn open(layout: Layout, budget: u64, place: &Place) -> Result<Box<dyn Subject>> {
    open_with(layout, Options::new().memory(budget), place)
}

/// Opens a store of a layout at a place with these options.
pub fn open_with(layout: Layout, options: Options, place: &Place) -> Result<Box<dyn Subject>> {
    open_by(layout, options, place, Arc::default())
}

/// Opens a store that goes by this clock.
pub fn open_by(layout: Layout, options: Options, place: &Place, clock: Arc<ManualClock>) -> Result<Box<dyn Subject>> {
    let options = options.clock(clock.clone());
    Ok(match layout {
        Layout::Pairs => Box::new(Numbers::open(options, place, clock)?),
        Layout::Records => Box::new(Records::open(options, place, clock)?),
        Layout::Blobs => Box::new(Blobs::open(options, place, clock)?),
        Layout::Named => Box::new(Named::open(options, place, clock)?),
    })
}

/// Does an operation; reopening is the caller's, and does nothing here.
pub fn apply(subject: &dyn Subject, layout: Layout, operation: &Operation) -> Result<Outcome> {
    let width = layout.width();
    Ok(match operation {
        Operation::Get(key) => Outcome::Value(subject.get(key)?),
        Operation::View(key) => Outcome::Value(subject.view(key)?),
        Operation::Contains(key) => Outcome::Flag(subject.contains(key)?),
        Operation::Put(key, value) => done(subject.put(key, value)?),
        Operation::Rmw(key, by) => Outcome::Value(Some(subject.rmw(key, &mut |_, old| change(old, *by, width))?)),
        Operation::Append(key, bytes) => Outcome::Count(subject.append(key, bytes)?),
        Operation::Delete(key) => Outcome::Flag(subject.delete(key)?),
        Operation::PutIfAbsent(key, value) => Outcome::Flag(subject.put_if_absent(key, value)?),
        Operation::PutIfSame(key, value) => Outcome::Flag(subject.put_if_same(key, value)?),
        Operation::Swap(key, other, new) => Outcome::Flag(subject.swap(key, other.as_deref(), new.as_deref())?),
        Operation::Take(key) => match subject.get(key)? {
            Some(value) => Outcome::Flag(subject.swap(key, Some(&value), None)?),
            None => Outcome::Flag(false),
        },
        Operation::GetMany(keys) => Outcome::Values(subject.get_many(keys)?),
        Operation::PutMany(pairs) => done(subject.put_many(pairs)?),
        Operation::RmwMany(keys) => done(subject.rmw_many(keys, &mut |i, old| change(old, operand(&keys[i]), width))?),
        Operation::AppendMany(pairs) => done(subject.append_many(pairs)?),
        Operation::DeleteMany(keys) => Outcome::Count(subject.delete_many(keys)?),
        Operation::PutTtl(key, value, ms) => done(subject.put_ttl(key, value, Duration::from_millis(*ms))?),
        Operation::EndAfter(key, ms) => Outcome::Flag(subject.end_at(key, subject.clock().now() + Duration::from_millis(*ms))?),
        Operation::Renew(key, ms) => Outcome::Value(subject.renew(key, Duration::from_millis(*ms))?),
        Operation::Persist(key) => Outcome::Flag(subject.persist(key)?),
        Operation::Ttl(key) => Outcome::Left(subject.ttl(key)?),
        Operation::Pass(ms) => {
            subject.clock().advance(Duration::from_millis(*ms));
            Outcome::Done
        }
        Operation::Transaction(operations) => Outcome::All(subject.transaction(operations)?),
        Operation::SetMemory(bytes) => done(subject.set_memory(*bytes)?),
        Operation::Reopen => Outcome::Done,
    })
}

fn done((): ()) -> Outcome {
    Outcome::Done
}

/// The bytes of what a store gives.
trait Seen {
    fn seen(&self) -> Bytes;
}

impl Seen for u64 {
    fn seen(&self) -> Bytes {
        self.to_le_bytes().to_vec()
    }
}

impl Seen for [u8; 24] {
    fn seen(&self) -> Bytes {
        self.to_vec()
    }
}

impl Seen for &[u8] {
    fn seen(&self) -> Bytes {
        self.to_vec()
    }
}

impl Seen for &str {
    fn seen(&self) -> Bytes {
        self.as_bytes().to_vec()
    }
}

impl Seen for Vec<u8> {
    fn seen(&self) -> Bytes {
        self.clone()
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the width of the layout")
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(array(bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("a key of this layout is text")
}

fn no_append<S>(_: &S, _: &[u8], _: &[u8]) -> Result<usize> {
    Err(Error::Invalid("this layout cannot append".into()))
}

fn no_append_with<S>(_: &mut S, _: &[u8], _: &[u8]) -> Result<usize> {
    Err(Error::Invalid("this layout cannot append".into()))
}

fn no_append_many<S>(_: &S, _: &[(Bytes, Bytes)]) -> Result<()> {
    Err(Error::Invalid("this layout cannot append".into()))
}

fn append_blob_with(tx: &mut Transaction<'_, [u8], [u8]>, key: &[u8], bytes: &[u8]) -> Result<usize> {
    tx.append(key, bytes)
}

fn append_named_with(tx: &mut Transaction<'_, str, [u8]>, key: &[u8], bytes: &[u8]) -> Result<usize> {
    tx.append(&text(key), bytes)
}

fn append_blob(store: &Store<[u8], [u8]>, key: &[u8], bytes: &[u8]) -> Result<usize> {
    store.append(key, bytes)
}

fn append_named(store: &Store<str, [u8]>, key: &[u8], bytes: &[u8]) -> Result<usize> {
    store.append(&text(key), bytes)
}

fn append_many_blobs(store: &Store<[u8], [u8]>, pairs: &[(Bytes, Bytes)]) -> Result<()> {
    store.append_many(pairs)
}

fn append_many_named(store: &Store<str, [u8]>, pairs: &[(Bytes, Bytes)]) -> Result<()> {
    let pairs: Vec<_> = pairs.iter().map(|(key, bytes)| (text(key), bytes)).collect();
    store.append_many(&pairs)
}

/// The values told by position; a position told twice or not at all is the store's mistake.
fn told(slots: Vec<Option<Option<Bytes>>>) -> Vec<Option<Bytes>> {
    slots.into_iter().map(|slot| slot.expect("get_many told every position")).collect()
}

fn tell(slots: &mut [Option<Option<Bytes>>], position: usize, value: Option<Bytes>) {
    let before = slots[position].replace(value);
    assert!(before.is_none(), "get_many told position {position} twice");
}

macro_rules! subject {
    ($name:ident, $layout:expr, $key:ty, $value:ty, $to_key:expr, $to_value:expr, $append:expr, $append_with:expr, $append_many:expr) => {
        struct $name(Store<$key, $value>, Arc<ManualClock>);

        impl $name {
            fn open(options: Options, place: &Place, clock: Arc<ManualClock>) -> Result<$name> {
                let store = match place {
                    Place::Memory => options.in_memory()?,
                    Place::Disk(disk) => options.open_on(disk.clone())?,
                    Place::Directory(path) => options.open(path)?,
                    Place::Storage(storage, durability) => {
                        let options = options.durability(*durability).background(false).segment_bytes(SEGMENT_BYTES);
                        options.open_in(storage.clone())?
                    }
                };
                Ok($name(store, clock))
            }
        }

        impl Typed for Store<$key, $value> {
            const LAYOUT: Layout = $layout;

            fn subject(&self, clock: Arc<ManualClock>) -> Box<dyn Subject> {
                Box::new($name(self.clone(), clock))
            }
        }

        impl Subject for $name {
            fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
                Ok(self.0.get(&$to_key(key))?.map(|v| v.seen()))
            }

            fn view(&self, key: &[u8]) -> Result<Option<Bytes>> {
                self.0.get_with(&$to_key(key), |view| view.seen())
            }

            fn contains(&self, key: &[u8]) -> Result<bool> {
                self.0.contains(&$to_key(key))
            }

            fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
                self.0.put(&$to_key(key), &$to_value(value))
            }

            fn rmw(&self, key: &[u8], change: Change<'_>) -> Result<Bytes> {
                let new = self.0.rmw(&$to_key(key), |old| {
                    let old = old.map(|v| v.seen());
                    $to_value(&change(0, old.as_deref()))
                })?;
                Ok(new.seen())
            }

            fn append(&self, key: &[u8], bytes: &[u8]) -> Result<usize> {
                $append(&self.0, key, bytes)
            }

            fn delete(&self, key: &[u8]) -> Result<bool> {
                self.0.delete(&$to_key(key))
            }

            fn swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
                let (expected, new) = (expected.map($to_value), new.map($to_value));
                self.0.compare_and_swap(&$to_key(key), expected.as_ref().map(Borrow::borrow), new.as_ref().map(Borrow::borrow))
            }

            fn pairs(&self, strategy: Strategy) -> Result<Pairs> {
                all_of(self.0.scan().by(strategy))
            }

            fn hold(&self) -> Result<Box<dyn Kept>> {
                Ok(Box::new(rehearse::Held::of(&self.0)?))
            }

            fn double_index(&self) -> Result<()> {
                rehearse::double_index(&self.0)
            }

            fn shrink_index(&self) -> Result<()> {
                rehearse::shrink_index(&self.0)
            }

            fn spill(&self, evicts: bool) -> Result<()> {
                rehearse::spill(&self.0, evicts)
            }

            fn drop_oldest(&self, eighths: u64) -> Result<()> {
                rehearse::drop_oldest(&self.0, eighths)
            }

            fn versions(&self, key: &[u8], most: usize) -> Result<Vec<Option<Bytes>>> {
                let versions = self.0.history(&$to_key(key), most)?;
                Ok(versions.into_iter().map(|version| version.map(|(value, _)| value.seen())).collect())
            }

            fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<bool> {
                self.0.put_if_absent(&$to_key(key), &$to_value(value))
            }

            fn put_if_same(&self, key: &[u8], value: &[u8]) -> Result<bool> {
                let key = $to_key(key);
                let Some((_, version)) = self.0.get_versioned(&key)? else { return Ok(false) };
                self.0.put_if_version(&key, version, &$to_value(value))
            }

            fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
                let keys: Vec<_> = keys.iter().map(|k| $to_key(k)).collect();
                let mut slots = vec![None; keys.len()];
                self.0.get_many(&keys, |i, value| tell(&mut slots, i, value.map(|v| v.seen())))?;
                Ok(told(slots))
            }

            fn put_many(&self, pairs: &[(Bytes, Bytes)]) -> Result<()> {
                let pairs: Vec<_> = pairs.iter().map(|(k, v)| ($to_key(k), $to_value(v))).collect();
                self.0.put_many(&pairs)
            }

            fn rmw_many(&self, keys: &[Bytes], change: Change<'_>) -> Result<()> {
                let keys: Vec<_> = keys.iter().map(|k| $to_key(k)).collect();
                self.0.rmw_many(&keys, |i, old| {
                    let old = old.map(|v| v.seen());
                    $to_value(&change(i, old.as_deref()))
                })?;
                Ok(())
            }

            fn append_many(&self, pairs: &[(Bytes, Bytes)]) -> Result<()> {
                $append_many(&self.0, pairs)
            }

            fn delete_many(&self, keys: &[Bytes]) -> Result<usize> {
                let keys: Vec<_> = keys.iter().map(|k| $to_key(k)).collect();
                self.0.delete_many(&keys)
            }

            fn put_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
                self.0.put_with_ttl(&$to_key(key), &$to_value(value), ttl)
            }

            fn end_at(&self, key: &[u8], end: SystemTime) -> Result<bool> {
                self.0.expire_at(&$to_key(key), end)
            }

            fn renew(&self, key: &[u8], ttl: Duration) -> Result<Option<Bytes>> {
                Ok(self.0.get_and_renew(&$to_key(key), ttl)?.map(|v| v.seen()))
            }

            fn persist(&self, key: &[u8]) -> Result<bool> {
                self.0.persist(&$to_key(key))
            }

            fn ttl(&self, key: &[u8]) -> Result<Option<Option<u64>>> {
                Ok(self.0.ttl(&$to_key(key))?.map(|ttl| match ttl {
                    Ttl::Forever => None,
                    Ttl::Left(left) => Some(left.as_millis() as u64),
                }))
            }

            fn clock(&self) -> &ManualClock {
                &self.1
            }

            fn transaction(&self, operations: &[Operation]) -> Result<Vec<Outcome>> {
                let width = $layout.width();
                let one = |tx: &mut Transaction<'_, $key, $value>, operation: &Operation| {
                    Ok(match operation {
                        Operation::Get(key) => Outcome::Value(tx.get(&$to_key(key))?.map(|v| v.seen())),
                        Operation::View(key) => Outcome::Value(tx.get_with(&$to_key(key), |view| view.seen())?),
                        Operation::Contains(key) => Outcome::Flag(tx.contains(&$to_key(key))?),
                        Operation::GetMany(keys) => {
                            let keys: Vec<_> = keys.iter().map(|k| $to_key(k)).collect();
                            let mut slots = vec![None; keys.len()];
                            tx.get_many(&keys, |i, value| tell(&mut slots, i, value.map(|v| v.seen())))?;
                            Outcome::Values(told(slots))
                        }
                        Operation::Put(key, value) => done(tx.put(&$to_key(key), &$to_value(value))?),
                        Operation::Delete(key) => Outcome::Flag(tx.delete(&$to_key(key))?),
                        Operation::Append(key, bytes) => Outcome::Count($append_with(tx, key, bytes)?),
                        Operation::Rmw(key, by) => {
                            let new = tx.rmw(&$to_key(key), |old| {
                                let old = old.map(|v| v.seen());
                                $to_value(&change(old.as_deref(), *by, width))
                            })?;
                            Outcome::Value(Some(new.seen()))
                        }
                        other => return Err(Error::Invalid(format!("no part of a transaction: {other:?}"))),
                    })
                };
                self.0.transaction(|tx| operations.iter().map(|operation| one(tx, operation)).collect())
            }

            fn set_memory(&self, bytes: u64) -> Result<()> {
                self.0.set_memory(bytes)
            }

            fn stats(&self) -> Stats {
                self.0.stats()
            }

            fn commit(&self) -> Result<()> {
                self.0.commit()
            }

            fn compact(&self) -> Result<()> {
                self.0.compact().map(|_| ())
            }

            fn compact_stretch(&self) -> Result<()> {
                self.0.compact_stretch().map(|_| ())
            }

            fn save_index(&self) -> Result<()> {
                self.0.save_index()
            }

            fn salvage(&self, from: Arc<dyn Storage>) -> Result<Salvage> {
                salvage_in(from, &self.0, |_, _| ControlFlow::Continue(()))
            }

            fn close(&self) -> Result<()> {
                self.0.close()
            }
        }
    };
}

subject!(Numbers, Layout::Pairs, u64, u64, number, number, no_append, no_append_with, no_append_many);
subject!(Records, Layout::Records, u64, [u8; 24], number, array::<24>, no_append, no_append_with, no_append_many);
subject!(Blobs, Layout::Blobs, [u8], [u8], <[u8]>::to_vec, <[u8]>::to_vec, append_blob, append_blob_with, append_many_blobs);
subject!(Named, Layout::Named, str, [u8], text, <[u8]>::to_vec, append_named, append_named_with, append_many_named);
