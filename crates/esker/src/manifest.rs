//! The manifest: what a store is, and the last line that is durable, but for short ones behind it (`lines.rs`).
//!
//! ```text
//! esker.manifest:  [ slot 0 ][ slot 1 ][ slot 0 again ][ slot 1 again ]      slots are written in turn, each followed by a sync
//! slot:            4096 bytes: text of at most 512, `name=value` by the line, the last line its checksum; zeros
//! ```
//! A slot is written only after everything that it speaks of is durable, and only over the older one of the two. The
//! device does not tear aligned 512 bytes (`docs/format.md`), so a slot is what it was or what it should become.
//!
//! **Each slot is there twice**, for without the last line nothing of the log counts. The newer whole one of its copies holds: they differ
//! after damage, or a cut between them. A slot of which no copy is whole, or both were never written, was damaged, and with it perhaps the
//! last line: that is refused by name. Reading mends nothing. An opening writes the newest slot's other copy, if that is not the same: what
//! was shown must not depend on one sector; and the other slot, where that was never written or its log begins lower. The next two lines
//! write all four, and so does an opening that accepts the loss.

use crate::FUZZED;
use crate::device::{AlignedBuffer, Device, SECTOR_BYTES, SEGMENT_PREFIX, Storage};
use crate::error::{Error, Result};
use crate::image;
use crate::index::Index;
use crate::log::{BLOCK_BYTES, FIRST_ADDRESS, LAST_CUT, block_floor};
use crate::scars::{Known, SCARS};
use crate::types::{Key, Layout, Value, WORD_KEY_BYTES_MAX, layout};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const MANIFEST: &str = "esker.manifest";
/// How each slot begins.
const FORMATS: &str = "esker format ";
const FORMAT: &str = "esker format 4";
/// Lines did not tell of themselves yet.
const FORMAT_BEFORE: &str = "esker format 3";
const TEXT_BYTES_MAX: usize = 512;

/// What distinguishes this store's bytes from any other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store_id: u64,
    pub(crate) hash_seed: [u64; 2],
}

impl Identity {
    pub(crate) fn random() -> Result<Self> {
        if FUZZED {
            return Ok(Self { store_id: 1, hash_seed: [2, 3] });
        }
        let word = || getrandom::u64().map_err(|error| Error::from(std::io::Error::other(error.to_string())));
        Ok(Self { store_id: word()?, hash_seed: [word()?, word()?] })
    }
}

/// The width of what has none.
const ANY_WIDTH: u64 = u64::MAX;

/// The state that a slot describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) identity: Identity,
    pub(crate) layout: Layout,
    /// The widths of keys and values, [`ANY_WIDTH`] for those of any length.
    pub(crate) widths: [u64; 2],
    /// The length of each of the log's files.
    pub(crate) segment_bytes: u64,
    /// Goes up by one with each slot written.
    pub(crate) sequence: u64,
    /// The line: all records below `cut` count, but those of the line after it (by parity) from `window` on.
    pub(crate) line: u64,
    pub(crate) cut: u64,
    pub(crate) window: u64,
    /// Where the log begins: nothing below is needed. And how many bytes above are dead, as far as is known.
    pub(crate) begin: u64,
    pub(crate) dead: u64,
    /// The index image, 0 for none, and the address from which on the log must be read besides.
    pub(crate) image: u64,
    pub(crate) image_until: u64,
    /// The index as it was, so that recovery need not grow it: its shape, its entries, and whether keys had to share some.
    pub(crate) shape: u64,
    pub(crate) entries: u64,
    pub(crate) shared: bool,
    /// A backup, which was not written since. And what it is one of: a store's own id, or, of a backup that was opened and
    /// written, a random number, for it is another store from then on, however alike their logs begin.
    pub(crate) is_backup: bool,
    pub(crate) lineage: u64,
    /// What is known of the scars; `None` in slots that were written without.
    pub(crate) scars: Option<Known>,
    /// A cache's: what is old may be dropped.
    pub(crate) is_cache: bool,
}

/// The manifest of an open store.
pub(crate) struct Manifest {
    device: Arc<dyn Device>,
    pub(crate) state: State,
    /// The damage of copies whose other one is whole.
    pub(crate) spoiled: Vec<Error>,
    /// Something of the slots was damaged, and is until it is written again.
    is_damaged: bool,
    /// Where a copy of the newest slot should be, and is not.
    lacking: Option<u64>,
    /// Where the log begins as the older slot has it; 0 if that was never written.
    older_begin: u64,
}

impl Manifest {
    /// The manifest in `storage`, or `None` if no store was ever made there. It must be of this layout, if one is given.
    /// `accept_loss`: a damaged slot may stand for lines that will be forgotten.
    pub(crate) fn open(storage: &dyn Storage, types: Option<(Layout, [u64; 2])>, accept_loss: bool) -> Result<Option<Self>> {
        if !storage.list()?.iter().any(|name| name == MANIFEST) {
            return Ok(None);
        }
        let device = storage.open(MANIFEST)?;
        let mut slots = [Slot::default(), Slot::default()];
        let (mut damage, mut spoiled) = (None, Vec::new());
        for (slot, found) in (0..).zip(&mut slots) {
            match read_slot(&*device, slot) {
                Ok(slot) => *found = slot,
                Err(error) if error.is_damage() => damage = Some(error),
                Err(error) => return Err(error),
            }
            spoiled.extend(found.spoiled.take());
        }
        let [even, odd] = slots;
        let (Slot { state: newest, lacking, .. }, Slot { state: other, .. }) =
            if even.state.as_ref().map(sequence) > odd.state.as_ref().map(sequence) { (even, odd) } else { (odd, even) };
        // Slots are written in turn: beside one is the one before it.
        if damage.is_none() && newest.as_ref().is_some_and(|newest| other.as_ref().map_or(0, sequence) + 1 != newest.sequence) {
            damage = Some(Error::corruption(format!("a slot is missing or out of date file={MANIFEST}")));
        }
        let is_lost = damage.is_some();
        let is_damaged = is_lost || !spoiled.is_empty();
        if let Some(error) = damage
            && !(accept_loss && newest.is_some())
        {
            return Err(if is_foreign(&*device)? && !has_lived(storage)? { foreign() } else { error });
        }
        let Some(state) = newest else { return if is_short_and_foreign(&*device)? { Err(foreign()) } else { Ok(None) } };
        device.sync()?;
        if let Some((layout, widths)) = types
            && (state.layout, state.widths) != (layout, widths)
        {
            let (want, found) = (types_name(layout, widths), types_name(state.layout, state.widths));
            return Err(Error::invalid(format!("the store has another layout want=`{want}` found=`{found}`")));
        }
        // One that was lost is damage until all of the opening is done (`mend`).
        let older_begin = other.map_or(if is_lost { state.begin } else { 0 }, |other| other.begin);
        Ok(Some(Self { device, state, spoiled, is_damaged, lacking, older_begin }))
    }

    /// The manifest of a new store, durable when this returns.
    pub(crate) fn create(
        storage: &dyn Storage,
        identity: Identity,
        (layout, widths): (Layout, [u64; 2]),
        segment_bytes: u64,
        start: u64,
        shape: u64,
        is_cache: bool,
    ) -> Result<Self> {
        let state = State {
            identity,
            layout,
            widths,
            segment_bytes,
            sequence: 0,
            line: 0,
            cut: start,
            window: start,
            begin: start,
            dead: 0,
            image: 0,
            image_until: start,
            shape,
            entries: 0,
            shared: false,
            is_backup: false,
            lineage: identity.store_id,
            scars: Some(Known::of(&[], start)),
            is_cache,
        };
        let mut manifest = Self::unwritten(storage, state)?;
        manifest.write(|_| {})?;
        storage.sync()?;
        Ok(manifest)
    }

    /// That of a first backup, not written yet.
    pub(crate) fn of_backup(storage: &dyn Storage, state: &State) -> Result<Self> {
        Self::unwritten(storage, State { sequence: 0, ..state.clone() })
    }

    fn unwritten(storage: &dyn Storage, state: State) -> Result<Self> {
        Ok(Self { device: storage.open(MANIFEST)?, state, spoiled: Vec::new(), is_damaged: false, lacking: None, older_begin: 0 })
    }

    /// Changes the state and makes it durable.
    pub(crate) fn write(&mut self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut next = self.state.clone();
        if next.is_backup {
            (next.is_backup, next.lineage) = (false, Identity::random()?.store_id);
        }
        change(&mut next);
        self.write_slot(next)
    }

    /// Has the newest slot there twice, durably, before anybody is shown what it stands for.
    pub(crate) fn complete(&mut self) -> Result<()> {
        if let Some(offset) = self.lacking {
            self.device.write(offset, slot_of(&self.state).bytes())?;
            self.device.sync()?;
            self.lacking = None;
        }
        Ok(())
    }

    /// Has the older slot speak of no log below the beginning either, durably: that is about to go, and whoever finds the newer one damaged
    /// goes by the older. And has one there: while the first slot stands alone, zeros in the other's place cannot be told from a slot that
    /// was lost.
    pub(crate) fn settle_begin(&mut self) -> Result<()> {
        if self.older_begin < self.state.begin { self.write_slot(self.state.clone()) } else { Ok(()) }
    }

    /// Writes all slots anew, if any was damaged; what they say stays, that they are a backup's, too.
    pub(crate) fn mend(&mut self, below: u64) -> Result<()> {
        if self.is_damaged {
            let known = self.state.scars;
            if self.state.is_backup {
                // What a look leaves at its cut the backup's next step takes away before its slot.
                self.state.scars = known.map(|known| known.counting(below));
            }
            self.write_slot(self.state.clone())?;
            self.write_slot(self.state.clone())?;
            self.state.scars = known;
            self.is_damaged = false;
        }
        Ok(())
    }

    fn write_slot(&mut self, mut next: State) -> Result<()> {
        next.sequence += 1;
        let is_first = self.state.sequence == 0;
        if is_first {
            // The other slot has its room, too: what the first opening of a full disk must write.
            offsets(0).into_iter().try_for_each(|offset| self.device.write(offset, AlignedBuffer::new(1).bytes()))?;
        }
        let buffer = slot_of(&next);
        for offset in offsets(next.sequence % 2) {
            self.device.write(offset, buffer.bytes())?;
        }
        self.device.sync()?;
        self.older_begin = if is_first { 0 } else { self.state.begin };
        self.state = next;
        Ok(())
    }
}

/// Where the copies of a slot begin.
fn offsets(slot: u64) -> [u64; 2] {
    [slot, slot + 2].map(|sector| sector * SECTOR_BYTES as u64)
}

fn sequence(state: &State) -> u64 {
    state.sequence
}

fn slot_of(state: &State) -> AlignedBuffer {
    let text = encode(state);
    assert!(text.len() <= TEXT_BYTES_MAX, "a slot's text fits the piece that does not tear");
    let mut buffer = AlignedBuffer::new(1);
    buffer.sector_mut(0)[..text.len()].copy_from_slice(text.as_bytes());
    buffer
}

/// What a manifest says of a store's types.
pub(crate) fn types<K: Key + ?Sized, V: Value + ?Sized>() -> (Layout, [u64; 2]) {
    let width = |width: Option<usize>| width.map_or(ANY_WIDTH, |width| width as u64);
    (layout::<K, V>(), [width(K::WIDTH), width(V::WIDTH)])
}

/// Where [`has_lived`] is true, and this is missing.
pub(crate) fn no_manifest() -> Error {
    Error::corruption("there is a store but no manifest")
}

/// True if there is what only a store that was made and used leaves.
pub(crate) fn has_lived(storage: &dyn Storage) -> Result<bool> {
    let names = storage.list()?;
    Ok(names.iter().any(|name| image::is_image(name) || name == SCARS || name.starts_with(SEGMENT_PREFIX)))
}

/// True if nothing in the file begins as a slot does.
fn is_foreign(device: &dyn Device) -> Result<bool> {
    let (mut buffer, bytes) = (AlignedBuffer::new(1), device.bytes()?);
    for offset in [0, 1].map(offsets).into_iter().flatten().filter(|offset| bytes >= offset + SECTOR_BYTES as u64) {
        device.read(offset, buffer.bytes_mut())?;
        if buffer.bytes().starts_with(FORMATS.as_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same for a file that is shorter than a slot. A cut while a store was made leaves nothing there, zeros, or all of a slot's text.
fn is_short_and_foreign(device: &dyn Device) -> Result<bool> {
    let bytes = device.bytes()? as usize;
    if !(1..SECTOR_BYTES).contains(&bytes) {
        return Ok(false);
    }
    let mut buffer = AlignedBuffer::new(1);
    // It fails behind the file's end; what lies before that it has brought then.
    let _ = device.read(0, buffer.bytes_mut());
    let found = &buffer.bytes()[..bytes];
    Ok(found.iter().any(|byte| *byte != 0) && !(bytes >= TEXT_BYTES_MAX && found.starts_with(FORMATS.as_bytes())))
}

fn foreign() -> Error {
    Error::invalid(format!("not the manifest of a store file={MANIFEST}"))
}

/// What was found of a slot.
#[derive(Default)]
struct Slot {
    /// `None` if it was never written.
    state: Option<State>,
    /// The damage of a copy that the other one makes up for.
    spoiled: Option<Error>,
    /// Where the copy is that does not say the same.
    lacking: Option<u64>,
}

fn read_slot(device: &dyn Device, slot: u64) -> Result<Slot> {
    let [first, second] = offsets(slot);
    match [first, second].map(|offset| read_copy(device, slot, offset)) {
        [Ok(one), Ok(other)] if one == other => Ok(Slot { state: one, ..Slot::default() }),
        [Ok(one), Ok(other)] if one.as_ref().map(sequence) > other.as_ref().map(sequence) => {
            Ok(Slot { state: one, spoiled: None, lacking: Some(second) })
        }
        [Ok(_), Ok(other)] => Ok(Slot { state: other, spoiled: None, lacking: Some(first) }),
        [Ok(whole @ Some(_)), Err(damage)] => Ok(Slot { state: whole, spoiled: Some(made_up_for(damage)), lacking: Some(second) }),
        [Err(damage), Ok(whole @ Some(_))] => Ok(Slot { state: whole, spoiled: Some(made_up_for(damage)), lacking: Some(first) }),
        [Err(damage), _] | [_, Err(damage)] => Err(damage),
    }
}

/// The damage of a copy whose twin is whole, so that nobody takes it for the slot's.
fn made_up_for(damage: Error) -> Error {
    match damage {
        Error::Corruption(why) => Error::Corruption(format!("{why} (its other copy is whole)")),
        other => other,
    }
}

fn read_copy(device: &dyn Device, slot: u64, offset: u64) -> Result<Option<State>> {
    // A cut while the store was made may leave any length.
    if device.bytes()? < offset + SECTOR_BYTES as u64 {
        return Ok(None);
    }
    let mut buffer = AlignedBuffer::new(1);
    device.read(offset, buffer.bytes_mut())?;
    let bytes = buffer.bytes();
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let damaged = |what: &str| Error::corruption(format!("{what} file={MANIFEST} slot={slot} offset={offset}"));
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged("the slot is not text"))?;
    if bytes[end..].iter().any(|byte| *byte != 0) {
        return Err(damaged("something follows the slot's text"));
    }
    let state = parse(text, &damaged)?;
    if !is_possible(&state) {
        return Err(damaged("the slot's numbers do not fit each other"));
    }
    if state.sequence % 2 == slot { Ok(Some(state)) } else { Err(damaged("the slot is the other one's")) }
}

fn encode(state: &State) -> String {
    let State { identity: Identity { store_id, hash_seed: [seed0, seed1] }, .. } = state;
    let mut text = format!("{FORMAT}\nlayout={}\n", layout_name(state.layout));
    let numbers = [
        ("key", state.widths[0]),
        ("value", state.widths[1]),
        ("store", *store_id),
        ("seed0", *seed0),
        ("seed1", *seed1),
        ("segment", state.segment_bytes),
        ("sequence", state.sequence),
        ("line", state.line),
        ("cut", state.cut),
        ("window", state.window),
        ("begin", state.begin),
        ("dead", state.dead),
        ("image", state.image),
        ("image_until", state.image_until),
        ("shape", state.shape),
        ("entries", state.entries),
        ("shared", u64::from(state.shared)),
        ("backup", u64::from(state.is_backup)),
        ("lineage", state.lineage),
    ];
    let others = [state.scars.map(|scars| ("scars", scars.word())), state.is_cache.then_some(("cache", 1))];
    for (name, value) in numbers.into_iter().chain(others.into_iter().flatten()) {
        let _ = writeln!(text, "{name}={value:x}");
    }
    let _ = writeln!(text, "checksum={:016x}", xxh3_64(text.as_bytes()));
    text
}

fn parse(text: &str, damaged: &dyn Fn(&str) -> Error) -> Result<State> {
    let body = text.rfind("checksum=").map_or("", |at| &text[..at]);
    let is_whole = text[body.len()..] == format!("checksum={:016x}\n", xxh3_64(body.as_bytes())) || FUZZED;
    let first = text.lines().next().unwrap_or_default();
    if !is_whole {
        return Err(damaged("the slot's checksum differs"));
    }
    if first != FORMAT && first != FORMAT_BEFORE {
        return Err(Error::invalid(format!("this version reads `{FORMAT_BEFORE}` and `{FORMAT}`, found `{first}` file={MANIFEST}")));
    }
    let fields: BTreeMap<&str, &str> = body.lines().filter_map(|line| line.split_once('=')).collect();
    let number = |name: &str| {
        let value = fields.get(name).and_then(|text| u64::from_str_radix(text, 16).ok());
        value.ok_or_else(|| damaged(&format!("the slot has no number `{name}`")))
    };
    let segment_bytes = Some(number("segment")?).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES as u64));
    Ok(State {
        identity: Identity { store_id: number("store")?, hash_seed: [number("seed0")?, number("seed1")?] },
        layout: fields.get("layout").and_then(|name| layout_of(name)).ok_or_else(|| damaged("the slot has no layout"))?,
        widths: [number("key")?, number("value")?],
        segment_bytes: segment_bytes.ok_or_else(|| damaged("the segments have an impossible length"))?,
        sequence: number("sequence")?,
        line: number("line")?,
        cut: number("cut")?,
        window: number("window")?,
        begin: number("begin")?,
        dead: number("dead")?,
        image: number("image")?,
        image_until: number("image_until")?,
        shape: number("shape")?,
        entries: number("entries")?,
        shared: number("shared")? != 0,
        is_backup: number("backup")? != 0,
        lineage: number("lineage")?,
        scars: fields.contains_key("scars").then(|| number("scars").map(Known::of_word)).transpose()?,
        is_cache: fields.contains_key("cache"),
    })
}

/// False of a state that no store was ever in, whatever its checksum says: all that is believed of it is addressed by its numbers.
fn is_possible(state: &State) -> bool {
    let State { begin, cut, window, image, image_until, .. } = *state;
    let has_layout = match state.layout {
        Layout::Word { key_bytes, value_bytes } => key_bytes <= WORD_KEY_BYTES_MAX && value_bytes <= 8,
        Layout::Bytes => true,
    };
    // What is accepted to be lost may begin in the first block.
    let has_order = FIRST_ADDRESS <= begin && block_floor(begin) <= cut && window <= cut && (image == 0 || image_until <= cut);
    has_layout && has_order && cut.is_multiple_of(BLOCK_BYTES) && cut <= LAST_CUT && Index::is_shape(state.shape)
}

fn layout_name(layout: Layout) -> String {
    match layout {
        Layout::Word { key_bytes, value_bytes } => format!("word {key_bytes} {value_bytes}"),
        Layout::Bytes => "bytes".into(),
    }
}

fn types_name(layout: Layout, widths: [u64; 2]) -> String {
    let width = |width: u64| if width == ANY_WIDTH { "any".into() } else { width.to_string() };
    format!("{}, key {}, value {}", layout_name(layout), width(widths[0]), width(widths[1]))
}

fn layout_of(name: &str) -> Option<Layout> {
    let parts: Vec<&str> = name.split(' ').collect();
    match *parts.as_slice() {
        ["bytes"] => Some(Layout::Bytes),
        ["word", key, value] => Some(Layout::Word { key_bytes: key.parse().ok()?, value_bytes: value.parse().ok()? }),
        _ => None,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{MemoryStorage, Options, Store};

    fn state() -> State {
        let most = u64::MAX;
        State {
            identity: Identity { store_id: most, hash_seed: [most; 2] },
            layout: Layout::Word { key_bytes: 256, value_bytes: 8 },
            widths: [most; 2],
            segment_bytes: most / SECTOR_BYTES as u64 * SECTOR_BYTES as u64,
            sequence: most,
            line: most,
            cut: most,
            window: most,
            begin: most,
            dead: most,
            image: most,
            image_until: most,
            shape: most,
            entries: most,
            shared: true,
            is_backup: true,
            lineage: most,
            scars: Some(Known::of_word(most)),
            is_cache: true,
        }
    }

    #[test]
    fn the_longest_state_fits_and_comes_back() {
        let text = encode(&state());
        assert!(text.len() <= TEXT_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(parse(&text, &|what| Error::corruption(what)).unwrap(), state());
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let text = encode(&state());
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(text) = String::from_utf8(bytes) else { continue };
            assert!(parse(&text, &|what| Error::corruption(what)).is_err(), "bit {bit}");
        }
    }

    /// They were believed: by a look at the log without end, by a key length that no memory holds, or by an opening that removed all files.
    #[test]
    fn numbers_that_no_store_was_ever_in_are_damage() {
        let spoil: [fn(&mut State); 10] = [
            |state| state.layout = Layout::Word { key_bytes: usize::MAX, value_bytes: 8 },
            |state| state.layout = Layout::Word { key_bytes: 8, value_bytes: 9 },
            |state| state.cut = LAST_CUT / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES,
            |state| state.cut = u64::MAX,
            |state| state.cut += 8,
            |state| state.begin = state.cut + BLOCK_BYTES,
            |state| state.begin = 0,
            |state| state.window = state.cut + 8,
            |state| state.image_until = state.cut + BLOCK_BYTES,
            |state| state.shape = u64::MAX,
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            let files = Arc::new(compacted());
            let mut manifest = Manifest::open(&*files, None, false).unwrap().unwrap();
            (0..2).for_each(|_| manifest.write(spoil).unwrap());
            let names = files.list().unwrap();
            assert!(matches!(open(&files), Err(Error::Corruption(what)) if what.contains("do not fit")), "spoilt {number}");
            assert!(!crate::verify::verified(files.clone()).is_sound(), "spoilt {number}");
            assert_eq!(files.list().unwrap(), names, "spoilt {number}");
        }
    }

    /// A store whose log does not begin at its beginning any more, so that an older line would have nothing to speak of.
    fn compacted() -> MemoryStorage {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        for round in 0..4 {
            (0..20_000).for_each(|n| store.put(&n, &(n + round)).unwrap());
            store.commit().unwrap();
        }
        store.compact().unwrap();
        store.close().unwrap();
        files.copy()
    }

    fn open(files: &Arc<MemoryStorage>) -> Result<Store<u64, u64>> {
        Options::new().memory("16MiB").segment_bytes(256 << 10).background(false).open_in(files.clone())
    }

    fn change(files: &MemoryStorage, offset: u64, change: impl FnOnce(&mut [u8])) {
        let (device, mut sector) = (files.open(MANIFEST).unwrap(), AlignedBuffer::new(1));
        device.read(offset, sector.bytes_mut()).unwrap();
        change(sector.bytes_mut());
        device.write(offset, sector.bytes()).unwrap();
    }

    #[test]
    fn a_damaged_copy_of_a_slot_loses_nothing() {
        let kinds: [fn(&mut [u8]); 3] = [|sector| sector[300] ^= 4, |sector| sector.fill(0x55), |sector| sector.fill(0)];
        let healthy = compacted();
        assert!(!healthy.list().unwrap().contains(&"esker.log.00000000".to_owned()));
        for (offset, kind) in (0..4).flat_map(|n| kinds.iter().map(move |kind| (n * SECTOR_BYTES as u64, kind))) {
            let files = Arc::new(healthy.copy());
            change(&files, offset, kind);
            let is_told = !crate::verify::verified(files.clone()).is_sound();
            let mut first = AlignedBuffer::new(1);
            files.open(MANIFEST).unwrap().read(offset, first.bytes_mut()).unwrap();
            assert_eq!(is_told, first.bytes().iter().any(|byte| *byte != 0), "offset {offset}");
            let store = open(&files).unwrap();
            assert!((0..20_000).all(|n| store.get(&n).unwrap() == Some(n + 3)), "offset {offset}");
            // The next two lines write all copies.
            for _ in 0..2 {
                store.put(&1, &4).unwrap();
                store.save_index().unwrap();
            }
            store.close().unwrap();
            assert!(crate::verify::verified(files.clone()).is_sound(), "offset {offset}");
        }
    }

    #[test]
    fn each_damaged_copy_is_told() {
        let files = Arc::new(compacted());
        let [[first, _], [_, last]] = [0, 1].map(offsets);
        [first, last].into_iter().for_each(|offset| change(&files, offset, |sector| sector[20] ^= 1));
        assert_eq!(crate::verify::verified(files.clone()).damaged, 2);
        assert_eq!(open(&files).unwrap().get(&1).unwrap(), Some(4));
    }

    #[test]
    fn a_slot_without_a_whole_copy_is_damage() {
        let kinds: [fn(&mut [u8]); 3] = [|sector| sector[20] ^= 1, |sector| sector.fill(0x55), |sector| sector[..8].fill(b'x')];
        let healthy = compacted();
        let newest = Manifest::open(&healthy, None, false).unwrap().unwrap().state.sequence % 2;
        for (slot, kind) in (0..2).flat_map(|slot| kinds.map(|kind| (slot, kind))) {
            let files = Arc::new(healthy.copy());
            offsets(slot).into_iter().for_each(|offset| change(&files, offset, kind));
            assert!(matches!(open(&files), Err(Error::Corruption(_))), "slot {slot}");
            assert!(!crate::verify::verified(files.clone()).is_sound());
            // Without the older one nothing is lost, and who accepts that opens it for all.
            if slot != newest {
                let lossy: Store<u64, u64> =
                    Options::new().memory("16MiB").background(false).accept_loss(true).open_in(files.clone()).unwrap();
                lossy.close().unwrap();
                assert!(crate::verify::verified(files.clone()).is_sound());
                assert_eq!(open(&files).unwrap().get(&1).unwrap(), Some(4));
            }
        }
    }

    /// Beside the first slot the other one may never have been written: zeros in its place once passed for that when it had told of all
    /// there was.
    #[test]
    fn a_slot_of_zeros_is_damage() {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        for round in 0..3 {
            for slot in 0..2 {
                let files = Arc::new(files.copy());
                offsets(slot).into_iter().for_each(|offset| change(&files, offset, |sector| sector.fill(0)));
                assert_eq!(matches!(open(&files), Err(Error::Corruption(_))), round > 0 || slot == 1, "round {round}, slot {slot}");
            }
            store.put(&1, &round).unwrap();
            store.save_index().unwrap();
        }
    }

    /// An opening that accepts the loss may still be refused, or end in a crash: nobody would know of it then.
    #[test]
    fn a_lost_slot_is_not_written_before_its_loss_is_accepted_for_good() {
        let kinds: [fn(&mut [u8]); 2] = [|sector| sector[20] ^= 1, |sector| sector.fill(0)];
        let healthy = compacted();
        for (slot, kind) in (0..2).flat_map(|slot| kinds.map(|kind| (slot, kind))) {
            let files = healthy.copy();
            offsets(slot).into_iter().for_each(|offset| change(&files, offset, kind));
            let mut manifest = Manifest::open(&files, None, true).unwrap().unwrap();
            manifest.complete().unwrap();
            manifest.settle_begin().unwrap();
            assert!(matches!(Manifest::open(&files, None, false), Err(Error::Corruption(_))), "slot {slot}");
        }
    }

    /// Nothing in it looks like a slot, but what lies beside it is a store's.
    #[test]
    fn a_manifest_that_was_overwritten_is_damage() {
        let files = Arc::new(compacted());
        (0..2).flat_map(offsets).for_each(|offset| change(&files, offset, |sector| sector.fill(0x55)));
        assert!(matches!(open(&files), Err(Error::Corruption(_))));
        assert!(!crate::verify::verified(files).is_sound());
    }

    /// A cut between the two writes of a slot, and later a damaged sector: what an opening in between has shown is still so.
    #[test]
    fn what_was_shown_does_not_depend_on_one_sector() {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        let moments = (0..3).map(|round| {
            store.put(&1, &round).unwrap();
            store.save_index().unwrap();
            files.copy()
        });
        let moments: Vec<MemoryStorage> = moments.collect();
        let newest = Manifest::open(&moments[2], None, false).unwrap().unwrap().state;
        let [first, second] = offsets(newest.sequence % 2);
        for (cut_short, flipped) in [(first, second), (second, first)] {
            let (files, mut stale) = (Arc::new(moments[2].copy()), AlignedBuffer::new(1));
            moments[0].open(MANIFEST).unwrap().read(cut_short, stale.bytes_mut()).unwrap();
            change(&files, cut_short, |sector| sector.copy_from_slice(stale.bytes()));
            let shown = open(&files).unwrap();
            assert_eq!(shown.get(&1).unwrap(), Some(2));
            let files = Arc::new(files.copy());
            change(&files, flipped, |sector| sector[20] ^= 1);
            assert_eq!(open(&files).unwrap().get(&1).unwrap(), Some(2));
        }
    }

    /// A cut between the two writes of a slot.
    #[test]
    fn the_newer_copy_counts() {
        let files = Arc::new(MemoryStorage::new());
        let store = open(&files).unwrap();
        let before = (0..4).map(|round| {
            store.put(&1, &round).unwrap();
            store.save_index().unwrap();
            files.copy()
        });
        let moments: Vec<MemoryStorage> = before.collect();
        for (old, new) in moments.iter().zip(&moments[2..]) {
            let read = |files: &MemoryStorage, offset| {
                let mut sector = AlignedBuffer::new(1);
                files.open(MANIFEST).unwrap().read(offset, sector.bytes_mut()).map(|()| sector)
            };
            let newest = Manifest::open(new, None, false).unwrap().unwrap().state;
            for offset in offsets(newest.sequence % 2) {
                let files = new.copy();
                let Ok(stale) = read(old, offset) else { continue };
                change(&files, offset, |sector| sector.copy_from_slice(stale.bytes()));
                assert_eq!(Manifest::open(&files, None, false).unwrap().unwrap().state, newest);
                assert!(crate::verify::verified(Arc::new(files)).is_sound());
            }
        }
    }
}
