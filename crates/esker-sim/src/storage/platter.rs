//! What is on the disk: files as maps of sectors, what of them is durable, and what still hangs in the air.
//!
//! The theory: a disk is a function of the calls made on it, so one function, [`Disk::play`], carries out a call, whether an
//! engine makes it now or it is played again from a log. A program's log is then a film: every power cut of it can be looked
//! at without running the engine again. Sectors are shared and never changed, so copying a disk copies pointers, and each
//! image carries a print (a sum over its sectors), so two disks that look the same are known to in O(1).

use super::fate::Survival;
use crate::disk::Failure;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes in a sector: the unit of every offset and length.
pub const SECTOR: usize = 4096;
/// Bytes in a piece: what never tears.
pub const PIECE: usize = 512;

/// The contents of a sector; its print is 0 if it is blank.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) bytes: [u8; SECTOR],
    print: u64,
    /// False where the medium fails, until it is written again.
    is_readable: bool,
}

impl Block {
    pub(super) fn new(bytes: [u8; SECTOR]) -> Arc<Block> {
        let blank = bytes.iter().all(|b| *b == 0);
        Arc::new(Block { print: if blank { 0 } else { xxh3_64(&bytes) | 1 }, bytes, is_readable: true })
    }

    pub(super) fn unreadable() -> Arc<Block> {
        Arc::new(Block { print: 2, bytes: [0; SECTOR], is_readable: false })
    }
}

/// The contents of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) length: u64,
    sectors: BTreeMap<u64, Arc<Block>>,
    print: u64,
}

impl Image {
    pub(super) fn get(&self, sector: u64) -> [u8; SECTOR] {
        self.sectors.get(&sector).map_or([0; SECTOR], |block| block.bytes)
    }

    pub(super) fn set(&mut self, sector: u64, block: Arc<Block>) {
        self.print = self.print.wrapping_add(place(sector, block.print));
        if let Some(old) = self.sectors.insert(sector, block) {
            self.print = self.print.wrapping_sub(place(sector, old.print));
        }
        self.length = self.length.max((sector + 1) * SECTOR as u64);
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset + into.len() as u64 > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (sector, part) in (offset / SECTOR as u64..).zip(into.chunks_exact_mut(SECTOR)) {
            match self.sectors.get(&sector) {
                Some(block) if block.is_readable => part.copy_from_slice(&block.bytes),
                Some(_) => return Err(Failure::Io.error()),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    /// Sets the pieces of a sector that `mask` names (bit 0: the first); a ragged file ends with the last piece kept.
    fn patch(&mut self, sector: u64, block: &Arc<Block>, mask: u8, ragged: bool) {
        match mask {
            0 => {}
            u8::MAX => self.set(sector, block.clone()),
            _ => {
                let length = self.length;
                let mut bytes = self.get(sector);
                for piece in (0..SECTOR / PIECE).filter(|piece| mask >> piece & 1 == 1) {
                    bytes[piece * PIECE..][..PIECE].copy_from_slice(&block.bytes[piece * PIECE..][..PIECE]);
                }
                self.set(sector, Block::new(bytes));
                if ragged {
                    let end = sector * SECTOR as u64 + PIECE as u64 * (8 - u64::from(mask.leading_zeros()));
                    self.length = length.max(end);
                }
            }
        }
    }

    fn lay(&mut self, write: &Write) {
        for (sector, block) in (write.sector..).zip(write.blocks.iter()) {
            self.set(sector, block.clone());
        }
    }

    pub(super) fn cut(&mut self, length: u64) {
        let gone = self.sectors.split_off(&length.div_ceil(SECTOR as u64));
        for (sector, block) in gone {
            self.print = self.print.wrapping_sub(place(sector, block.print));
        }
        self.length = length;
    }
}

fn place(sector: u64, print: u64) -> u64 {
    if print == 0 {
        return 0;
    }
    let mixed = print.wrapping_add(sector.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Sectors written by one call.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) sector: u64,
    pub(super) blocks: Arc<[Arc<Block>]>,
}

impl Write {
    pub(super) fn new(offset: u64, bytes: &[u8]) -> Write {
        let blocks = bytes.chunks_exact(SECTOR).map(|part| Block::new(part.try_into().expect("a sector")));
        Write { sector: offset / SECTOR as u64, blocks: blocks.collect() }
    }
}

/// A call that changes the disk.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Create {
        name: Arc<str>,
    },
    Remove {
        name: Arc<str>,
    },
    SyncNames,
    Write {
        file: usize,
        write: Write,
    },
    Sync {
        file: usize,
    },
    /// A file with writes adrift opened again: a new handle's sync settles them (a device's cache flushed at last).
    Reopened {
        file: usize,
    },
    /// A sync that failed: what was unsynced stays so for ever (the kernel calls the pages clean).
    SyncFailed {
        file: usize,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) durable: Arc<Image>,
    pub(super) current: Arc<Image>,
}

/// A write not made durable; one that is adrift never will be by a sync.
#[derive(Clone, Debug)]
pub(super) struct Loose {
    pub(super) file: usize,
    pub(super) write: Write,
    adrift: bool,
}

/// A disk: names, files, and what is loose.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) files: Vec<File>,
    pub(super) names: BTreeMap<Arc<str>, usize>,
    durable_names: BTreeMap<Arc<str>, usize>,
    /// The changes of names not made durable, by name.
    pub(super) loose_names: BTreeMap<Arc<str>, Vec<Option<usize>>>,
    pub(super) loose: Vec<Loose>,
}

impl Disk {
    pub(super) fn play(&mut self, event: &Event) {
        match event {
            Event::Create { name } => {
                self.files.push(File::default());
                self.rename(name, Some(self.files.len() - 1));
            }
            Event::Remove { name } => self.rename(name, None),
            Event::SyncNames => {
                self.durable_names = self.names.clone();
                self.loose_names.clear();
            }
            Event::Write { file, write } => self.write(*file, write),
            Event::Reopened { file } => self.loose.iter_mut().filter(|l| l.file == *file).for_each(|l| l.adrift = false),
            Event::Sync { file } => self.sync(*file),
            Event::SyncFailed { file } => self.cast_adrift(*file),
        }
    }

    fn rename(&mut self, name: &Arc<str>, file: Option<usize>) {
        match file {
            Some(file) => self.names.insert(name.clone(), file),
            None => self.names.remove(name),
        };
        self.loose_names.entry(name.clone()).or_default().push(file);
    }

    pub(super) fn is_adrift(&self, file: usize) -> bool {
        self.loose.iter().any(|l| l.file == file && l.adrift)
    }

    fn write(&mut self, file: usize, write: &Write) {
        Arc::make_mut(&mut self.files[file].current).lay(write);
        self.loose.push(Loose { file, write: write.clone(), adrift: false });
    }

    fn sync(&mut self, file: usize) {
        if !self.is_adrift(file) {
            self.loose.retain(|l| l.file != file);
            self.files[file].durable = self.files[file].current.clone();
            return;
        }
        let (mine, others) = std::mem::take(&mut self.loose).into_iter().partition::<Vec<_>, _>(|l| l.file == file);
        self.loose = others;
        for loose in mine {
            if loose.adrift {
                self.loose.push(loose);
                continue;
            }
            // A sector written again after it went adrift is a dirty page again: this sync settles it.
            let sectors = loose.write.sector..loose.write.sector + loose.write.blocks.len() as u64;
            self.loose.retain(|l| l.file != file || !sectors.contains(&l.write.sector));
            Arc::make_mut(&mut self.files[file].durable).lay(&loose.write);
        }
    }

    /// Every unsynced sector of the file becomes a loose write of its own that no sync will settle.
    fn cast_adrift(&mut self, file: usize) {
        for loose in std::mem::take(&mut self.loose) {
            if loose.file != file {
                self.loose.push(loose);
                continue;
            }
            for (sector, block) in (loose.write.sector..).zip(loose.write.blocks.iter()) {
                self.loose.push(Loose { file, write: Write { sector, blocks: [block.clone()].into() }, adrift: true });
            }
        }
    }

    /// The disk as it comes back when these of its loose changes survived.
    pub(super) fn survive(&self, survival: &Survival) -> Disk {
        let mut names = self.durable_names.clone();
        for ((name, changes), kept) in self.loose_names.iter().zip(&survival.names) {
            match kept.checked_sub(1).and_then(|last| changes[last]) {
                Some(file) => names.insert(name.clone(), file),
                None if *kept > 0 => names.remove(name),
                None => None,
            };
        }
        let mut images: Vec<Arc<Image>> = self.files.iter().map(|f| f.durable.clone()).collect();
        for (index, masks) in survival.in_order(self.loose.iter().map(|l| l.write.blocks.len())) {
            let Loose { file, write, .. } = &self.loose[index];
            let end = (write.sector + write.blocks.len() as u64) * SECTOR as u64;
            if survival.stretched && images[*file].length < end {
                Arc::make_mut(&mut images[*file]).length = end;
            }
            for ((sector, block), mask) in (write.sector..).zip(write.blocks.iter()).zip(masks).filter(|(_, mask)| **mask != 0) {
                Arc::make_mut(&mut images[*file]).patch(sector, block, *mask, survival.ragged);
            }
        }
        let files = images.into_iter().map(|image| File { durable: image.clone(), current: image }).collect();
        Disk { files, durable_names: names.clone(), names, ..Disk::default() }
    }

    /// Everything is durable as it stands.
    pub(super) fn settle(&mut self) {
        for file in &mut self.files {
            file.durable = file.current.clone();
        }
        self.loose.clear();
        self.loose_names.clear();
        self.durable_names = self.names.clone();
    }

    /// A number that two disks share only if they look the same.
    pub(super) fn print(&self) -> u64 {
        let one = |(name, file): (&Arc<str>, &usize)| {
            let image = &self.files[*file].current;
            xxh3_64_with_seed(name.as_bytes(), place(image.length + 1, image.print | 1))
        };
        self.names.iter().map(one).fold(0, u64::wrapping_add)
    }
}
