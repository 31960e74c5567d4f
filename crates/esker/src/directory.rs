//! A store's directory: who holds it, what it is, and what an orderly close left.
//!
//! ```text
//! esker.lock      held (flock) while a process has the store open
//! esker.manifest  text: format, layout, store id, hash seed, tail, the image's name, checksum; replaced by rename
//! esker.log       the log's blocks
//! index.N         the index image of the Nth close: u64 words, checksum last
//! ```
//! The manifest says `closed` or `open`. A store that was not closed in order is refused by name: crash recovery is not
//! there yet, and serving less than was written must never be silent. An open manifest still names the last close's
//! image and tail (the log is only ever appended to), so an explicit `accept_loss` can go back to that state.

use crate::engine::Layout;
use crate::error::{Error, Result};
use crate::index::Index;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const FORMAT: &str = "esker format 1";
const MANIFEST: &str = "esker.manifest";
const LOCK: &str = "esker.lock";
pub(crate) const LOG: &str = "esker.log";

/// What distinguishes this store's bytes from any other's.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) store_id: u64,
    pub(crate) hash_seed: [u64; 2],
}

impl Identity {
    pub(crate) fn random() -> Result<Self> {
        let word = || getrandom::u64().map_err(|error| Error::from(std::io::Error::other(error.to_string())));
        Ok(Self { store_id: word()?, hash_seed: [word()?, word()?] })
    }
}

/// The index as a close left it.
pub(crate) struct Image {
    pub(crate) tail: u64,
    pub(crate) shape: u64,
    pub(crate) buckets: Vec<Vec<u64>>,
}

pub(crate) struct Directory {
    path: PathBuf,
    identity: Identity,
    generation: u64,
    lock: File,
    _temporary: Option<tempfile::TempDir>,
}

impl Directory {
    /// Opens the store at `path`, or makes one where nothing is yet.
    pub(crate) fn open(path: &Path, layout: Layout, accept_loss: bool) -> Result<(Self, Option<Image>)> {
        refuse_foreign(path)?;
        fs::create_dir_all(path)?;
        let lock = lock(path)?;
        let manifest = path.join(MANIFEST);
        if !manifest.exists() {
            let directory = Self { path: path.into(), identity: Identity::random()?, generation: 0, lock, _temporary: None };
            directory.write_manifest(layout, "open", 0, None)?;
            return Ok((directory, None));
        }
        let fields = parse(&fs::read_to_string(&manifest).map_err(|_| not_text(&manifest))?, &manifest)?;
        check_layout(&fields, layout)?;
        let identity = Identity { store_id: number(&fields, "store")?, hash_seed: [number(&fields, "seed0")?, number(&fields, "seed1")?] };
        let directory = Self { path: path.into(), identity, generation: number(&fields, "generation")?, lock, _temporary: None };
        let state = fields.get("state").map(String::as_str);
        let image = match (state, fields.get("image")) {
            (Some("closed"), Some(name)) => Some(directory.read_image(name, number(&fields, "tail")?)?),
            (Some("open"), Some(name)) if accept_loss => Some(directory.read_image(name, number(&fields, "tail")?)?),
            (Some("open"), None) if directory.log_is_empty() => None,
            _ => {
                return Err(Error::corruption(format!(
                    "the store was not closed in order; `Options::accept_loss` goes back to its last close path={}",
                    path.display()
                )));
            }
        };
        directory.write_manifest(layout, "open", image.as_ref().map_or(0, |image| image.tail), fields.get("image").map(String::as_str))?;
        Ok((directory, image))
    }

    pub(crate) fn temporary(layout: Layout) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-").tempdir()?;
        let (mut directory, _) = Self::open(folder.path(), layout, false)?;
        directory._temporary = Some(folder);
        Ok(directory)
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.path.join(LOG)
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Lets another opener in; what they find is the last close.
    pub(crate) fn unlock(&self) {
        // The lock goes with the file handle in any case.
        let _ = self.lock.unlock();
    }

    fn log_is_empty(&self) -> bool {
        fs::metadata(self.log_path()).map_or(true, |log| log.len() == 0)
    }

    /// After the log is durable: writes the image, then the manifest that names it.
    pub(crate) fn save(&self, layout: Layout, index: &Index, tail: u64) -> Result<()> {
        if self._temporary.is_some() {
            return Ok(());
        }
        let name = format!("index.{}", self.generation + 1);
        let mut file = File::create(self.path.join(&name))?;
        file.write_all(&encode_image(index))?;
        file.sync_all()?;
        self.write_manifest(layout, "closed", tail, Some(&name))?;
        if self.generation > 0 {
            let _ = fs::remove_file(self.path.join(format!("index.{}", self.generation)));
        }
        Ok(())
    }

    fn write_manifest(&self, layout: Layout, state: &str, tail: u64, image: Option<&str>) -> Result<()> {
        let generation = self.generation + u64::from(state == "closed");
        let Identity { store_id, hash_seed: [seed0, seed1] } = self.identity;
        let mut text = format!(
            "{FORMAT}\nlayout={}\nstore={store_id}\nseed0={seed0}\nseed1={seed1}\ngeneration={generation}\nstate={state}\ntail={tail}\n",
            layout_name(layout)
        );
        if let Some(image) = image {
            text += &format!("image={image}\n");
        }
        text += &format!("checksum={:016x}\n", xxh3_64(text.as_bytes()));
        let fresh = self.path.join("esker.manifest.new");
        let mut file = File::create(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.path.join(MANIFEST))?;
        File::open(&self.path)?.sync_all()?;
        Ok(())
    }

    fn read_image(&self, name: &str, tail: u64) -> Result<Image> {
        let path = self.path.join(name);
        let damaged = || Error::corruption(format!("the index image is damaged path={}", path.display()));
        let bytes = fs::read(&path)?;
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
        let (checksum, words) = words.split_last().ok_or_else(damaged)?;
        if bytes.len() % 8 != 0 || xxh3_64(&bytes[..bytes.len() - 8]) != *checksum {
            return Err(damaged());
        }
        let (shape, mut rest) = words.split_first().ok_or_else(damaged)?;
        let mut buckets = Vec::new();
        while let Some((&count, more)) = rest.split_first() {
            let (now, later) = more.split_at_checked(count as usize).ok_or_else(damaged)?;
            buckets.push(now.to_vec());
            rest = later;
        }
        Ok(Image { tail, shape: *shape, buckets })
    }
}

fn encode_image(index: &Index) -> Vec<u8> {
    let mut bytes = index.shape_word().to_le_bytes().to_vec();
    for at in 0..index.buckets() {
        let words = index.words(at);
        bytes.extend_from_slice(&(words.len() as u64).to_le_bytes());
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    }
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A directory with other people's files in it is not touched.
fn refuse_foreign(path: &Path) -> Result<()> {
    if path.join(MANIFEST).exists() || !path.exists() {
        return Ok(());
    }
    let foreign = fs::read_dir(path)
        .map_err(|error| Error::invalid(format!("not a directory that can be read path={} error={error}", path.display())))?
        .filter_map(|entry| entry.ok())
        .find(|entry| entry.file_name() != LOCK && entry.file_name() != "esker.manifest.new");
    match foreign {
        Some(entry) => Err(Error::invalid(format!(
            "the directory is not a store: it holds {} path={}",
            entry.file_name().to_string_lossy(),
            path.display()
        ))),
        None => Ok(()),
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(path.into())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn not_text(path: &Path) -> Error {
    Error::corruption(format!("the manifest is not readable text path={}", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<BTreeMap<String, String>> {
    let named = |what: &str| format!("{what} path={}", path.display());
    let first = text.lines().next().unwrap_or_default();
    if !first.starts_with("esker format ") {
        return Err(Error::invalid(named("the manifest is not one of a store")));
    }
    if first != FORMAT {
        return Err(Error::invalid(named(&format!("this version reads `{FORMAT}` only, found `{first}`"))));
    }
    let body = text.rfind("checksum=").map_or("", |at| &text[..at]);
    if text[body.len()..].trim_end() != format!("checksum={:016x}", xxh3_64(body.as_bytes())) {
        return Err(Error::corruption(named("the manifest's checksum differs")));
    }
    Ok(body.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect())
}

fn number(fields: &BTreeMap<String, String>, name: &str) -> Result<u64> {
    let value = fields.get(name).and_then(|text| text.parse().ok());
    value.ok_or_else(|| Error::corruption(format!("the manifest has no number `{name}`")))
}

fn layout_name(layout: Layout) -> String {
    match layout {
        Layout::Word { key_bytes, value_bytes } => format!("word {key_bytes} {value_bytes}"),
        Layout::Bytes => "bytes".into(),
    }
}

fn check_layout(fields: &BTreeMap<String, String>, layout: Layout) -> Result<()> {
    let (want, found) = (layout_name(layout), fields.get("layout").cloned().unwrap_or_default());
    if want != found {
        return Err(Error::invalid(format!("the store has another layout want=`{want}` found=`{found}`")));
    }
    Ok(())
}
