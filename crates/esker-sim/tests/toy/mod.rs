//! A log store small enough to be right, and ways to get it wrong.
//!
//! The theory: all operations since the last commit form a batch: header (magic, number, length, the checksum of the batch before, own
//! checksum), then the records, padded to whole sectors. A commit writes the batch behind the last one and syncs. Opening reads batches as
//! long as each is whole and follows the one before. Because a batch names the one before, what a torn commit left beyond the end can never
//! be taken for a continuation. Two records make a batch that is written before any commit asks. Each [`Bug`] leaves out one of these
//! thoughts.

use esker::{Device, Storage};
use esker_sim::crash::{Live, Subject};
use esker_sim::model::{Layout, Model, Operation, Outcome};
use esker_sim::storage::{SECTOR, SimStorage};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// Every third commit is not synced.
    SkippedSync,
    /// Small batches are merged into the last one, whose sector is written again in place.
    RewritesTail,
    /// A commit returns before its sync, which the next operation does.
    AcksBeforeSync,
    /// Checksums are not compared.
    AcceptsTornTail,
    /// The name of a new log is never made durable.
    ForgetsNames,
    /// A batch need not name the one before it.
    RevivesTheDead,
    /// Opening writes the log anew, in place.
    RecoversInPlace,
    /// A sync that failed is tried again and believed.
    RetriesSync,
}

pub(crate) struct Toy(pub(crate) Bug);

pub(crate) struct LiveToy {
    bug: Bug,
    device: Arc<dyn Device>,
    model: Model,
    batch: Vec<u8>,
    /// The records of the batch written last, and the checksum of the one before it.
    last: (Vec<u8>, u64),
    chain: u64,
    number: u64,
    start: u64,
    end: u64,
    records: usize,
    dirty: bool,
    latched: bool,
}

const MAGIC: u64 = 0x746f_795f_6261_7463;
const HEADER: usize = 40;

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..][..8].try_into().unwrap()))
}

fn part<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = bytes.split_at_checked(4)?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(length.try_into().unwrap()) as usize)?;
    *bytes = rest;
    Some(part)
}

/// A batch as it lies on disk: whole sectors, its checksum in the fifth word.
fn pack(number: u64, before: u64, records: &[u8]) -> (Vec<u8>, u64) {
    let mut bytes: Vec<u8> = [MAGIC, number, records.len() as u64, before, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.extend_from_slice(records);
    let sum = xxh3_64(&bytes);
    bytes[32..40].copy_from_slice(&sum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    (bytes, sum)
}

fn whole(bytes: &[u8], length: usize) -> bool {
    let mut copy = bytes[..HEADER + length].to_vec();
    copy[32..40].fill(0);
    xxh3_64(&copy) == words::<5>(bytes)[4]
}

impl LiveToy {
    fn recover(&mut self) -> std::io::Result<()> {
        let bytes = self.device.bytes()?;
        if bytes % SECTOR as u64 != 0 {
            // A whole batch may hide in a sector that the file does not cover; a later torn write would reveal it (seed 62).
            self.device.write(bytes / SECTOR as u64 * SECTOR as u64, &[0; SECTOR])?;
        }
        // What is read may never have been synced; the next commit builds on it.
        self.device.sync()?;
        let mut log = vec![0; self.device.bytes()? as usize];
        self.device.read(0, &mut log)?;
        while log.len() - self.end as usize >= SECTOR {
            let bytes = &log[self.end as usize..];
            let [magic, number, length, before, sum] = words::<5>(bytes);
            let follows = before == self.chain || self.bug == Bug::RevivesTheDead;
            let fits = length < bytes.len() as u64 && HEADER + length as usize <= bytes.len();
            if magic != MAGIC || number != self.number || !follows || !fits {
                break;
            }
            if self.bug != Bug::AcceptsTornTail && !whole(bytes, length as usize) {
                break;
            }
            let records = &bytes[HEADER..][..length as usize];
            self.replay(records);
            self.last = (records.to_vec(), before);
            self.start = self.end;
            self.end += (HEADER + records.len()).next_multiple_of(SECTOR) as u64;
            (self.chain, self.number) = (sum, self.number + 1);
        }
        Ok(())
    }

    fn replay(&mut self, mut records: &[u8]) {
        while let (Some(key), Some(value)) = (part(&mut records), part(&mut records)) {
            match value.split_first() {
                Some((_, value)) => self.model.map.insert(key.to_vec(), value.to_vec()),
                None => self.model.map.remove(key),
            };
        }
    }

    /// One record: a key and its value after a byte; nothing at all is a delete.
    fn record(&mut self, key: &[u8]) {
        let value = self.model.map.get(key).map_or(Vec::new(), |value| [&[1], &value[..]].concat());
        self.records += 1;
        for part in [key, &value[..]] {
            self.batch.extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.batch.extend_from_slice(part);
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let merges = self.bug == Bug::RewritesTail && self.end > 0 && HEADER + self.last.0.len() + self.batch.len() < SECTOR;
        if merges {
            self.batch.splice(0..0, self.last.0.clone());
            (self.end, self.number, self.chain) = (self.start, self.number - 1, self.last.1);
        }
        let (bytes, sum) = pack(self.number, self.chain, &self.batch);
        // Last sector first: the order of unsynced writes is nobody's promise anyway.
        for (index, sector) in bytes.chunks(SECTOR).enumerate().rev() {
            self.device.write(self.end + (index * SECTOR) as u64, sector)?;
        }
        (self.records, self.dirty) = (0, true);
        self.last = (std::mem::take(&mut self.batch), self.chain);
        self.start = self.end;
        self.end += bytes.len() as u64;
        (self.chain, self.number) = (sum, self.number + 1);
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.device.sync()?;
        self.dirty = false;
        Ok(())
    }

    /// All that was applied goes to the device; nobody knows what became of a call that failed, so the store latches.
    fn save(&mut self, syncs: bool) -> Result<(), String> {
        if self.latched {
            return Err("latched".into());
        }
        self.latched = true;
        if !self.batch.is_empty() {
            self.write().map_err(words_of)?;
        }
        if syncs && self.dirty {
            self.sync().map_err(words_of)?;
        }
        self.latched = false;
        Ok(())
    }

    fn rewrite(&mut self) -> std::io::Result<()> {
        let keys: Vec<Vec<u8>> = self.model.map.keys().cloned().collect();
        keys.iter().for_each(|key| self.record(key));
        (self.end, self.chain, self.number) = (0, 0, 0);
        self.write()?;
        self.sync()
    }
}

fn words_of(error: std::io::Error) -> String {
    error.to_string()
}

impl Subject for Toy {
    type Live = LiveToy;

    fn open(&self, layout: Layout, storage: &SimStorage) -> Result<LiveToy, String> {
        let device = storage.open("log").map_err(words_of)?;
        if self.0 != Bug::ForgetsNames {
            storage.sync().map_err(words_of)?;
        }
        let (model, last) = (Model::new(layout), (Vec::new(), 0));
        let mut toy = LiveToy {
            bug: self.0,
            device,
            model,
            batch: vec![],
            last,
            chain: 0,
            number: 0,
            start: 0,
            end: 0,
            records: 0,
            dirty: false,
            latched: false,
        };
        toy.recover().map_err(words_of)?;
        if self.0 == Bug::RecoversInPlace && toy.number > 2 {
            toy.rewrite().map_err(words_of)?;
        }
        Ok(toy)
    }
}

impl Live for LiveToy {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome, String> {
        if self.bug == Bug::AcksBeforeSync && self.dirty {
            self.save(true)?;
        }
        if let Operation::Get(_) = operation {
            return Ok(self.model.apply(operation));
        }
        if self.records == 2 {
            self.save(false)?;
        }
        let outcome = self.model.apply(operation);
        // A transaction is a record of several keys in one batch, which is whole or not at all; and so is what changes several.
        let parts = if let Operation::Transaction(parts) = operation { parts } else { std::slice::from_ref(operation) };
        for part in parts {
            match part {
                Operation::Put(key, _) | Operation::Delete(key) | Operation::Rmw(key, _) | Operation::Append(key, _) => self.record(key),
                Operation::PutIfAbsent(key, _) | Operation::PutIfSame(key, _) | Operation::Take(key) => self.record(key),
                Operation::PutMany(pairs) | Operation::AppendMany(pairs) => pairs.iter().for_each(|(key, _)| self.record(key)),
                Operation::RmwMany(keys) | Operation::DeleteMany(keys) => keys.iter().for_each(|key| self.record(key)),
                _ => {}
            }
        }
        Ok(outcome)
    }

    fn commit(&mut self) -> Result<(), String> {
        if self.bug == Bug::RetriesSync {
            self.latched = false;
        }
        self.save(match self.bug {
            Bug::AcksBeforeSync => false,
            Bug::SkippedSync => self.number % 3 != 2,
            _ => true,
        })
    }

    fn close(mut self) -> Result<(), String> {
        self.save(true)
    }
}
