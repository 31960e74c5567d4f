//! One store through many lives, and its backups.
//!
//! The theory: the crash lanes cut one short life, or two. Here a store is opened, used and ended again and again: closed, killed, without
//! power, within its close, within its opening; its device fails, and now and then a sector of its files is damaged. Backups are made
//! meanwhile, added to, cut short, looked into and made from one another. After each step it must hold just what it should; after each
//! end one of the states that were possible since the last durable one; after damage nothing that no key ever held. What is sound is
//! verified as sound, and salvaged as it is.
//!
//! `ESKER_SEED` replays a seed, `ESKER_SEQUENCES` sets the number of seeds.

use esker::{Durability, Error, Options, Store, salvage_in, verify_in};
use esker_sim::disk::Failure;
use esker_sim::seeds::seeds;
use esker_sim::storage::{Breadth, Film, SECTOR, SimStorage, StorageFault};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Bytes = Store<u64, [u8]>;
type Contents = BTreeMap<u64, Vec<u8>>;

const SEEDS: u64 = 400;
const KEYS: u64 = 10;
/// Fates of what was not synced, of which one is drawn.
const FATES: Breadth = Breadth { every_up_to: 0, drawn: 14 };

fn contents(store: &Bytes) -> Result<Contents, Error> {
    (0..KEYS).filter_map(|key| store.get(&key).map(|value| Some((key, value?))).transpose()).collect()
}

/// Values by their first byte and length.
fn show(contents: &Contents) -> String {
    contents.iter().map(|(key, value)| format!("{key}:{}x{} ", value[0], value.len())).collect()
}

/// How a store is used in all its lives.
#[derive(Clone, Copy)]
struct Ways(u64);

impl Ways {
    fn is_durable(self) -> bool {
        self.0 / 4 % 2 == 1
    }

    fn promotes(self) -> bool {
        (self.0 / 8).is_multiple_of(2)
    }

    fn open(self, storage: &SimStorage, accepts_loss: bool) -> Result<Bytes, Error> {
        let durability = if self.is_durable() { Durability::Always } else { Durability::None };
        let segment_bytes = [4096, 16384, 65536, 4 << 20][(self.0 % 4) as usize];
        let options = Options::new().memory("16MiB").background(false).segment_bytes(segment_bytes);
        options.accept_loss(accepts_loss).durability(durability).promotion(self.promotes()).open_in(Arc::new(storage.clone()))
    }
}

/// A store through its lives.
struct Lives {
    ways: Ways,
    random: ChaCha8Rng,
    disk: SimStorage,
    backup: Option<(SimStorage, Contents)>,
    now: Contents,
    /// What may be there after a crash: what was durable, and all since.
    possible: Vec<Contents>,
    /// What each key ever held.
    ever: BTreeMap<u64, Vec<Vec<u8>>>,
    is_damaged: bool,
    /// The device fails, or has, in this life.
    is_faulty: bool,
    /// It has given up what the backup may hold.
    has_given_up: bool,
    number: u8,
    story: Vec<String>,
}

impl Lives {
    fn new(seed: u64) -> Self {
        Self {
            ways: Ways(seed),
            random: ChaCha8Rng::seed_from_u64(seed),
            disk: SimStorage::new(),
            backup: None,
            now: Contents::new(),
            possible: vec![Contents::new()],
            ever: BTreeMap::new(),
            is_damaged: false,
            is_faulty: false,
            has_given_up: false,
            number: 0,
            story: Vec::new(),
        }
    }

    fn tell(&mut self, what: impl Into<String>) {
        self.story.push(what.into());
    }

    fn run(&mut self) {
        for _ in 0..self.random.random_range(3..9) {
            while self.random.random_bool(0.3) {
                self.open_in_part();
            }
            let Some(store) = self.begin() else { return };
            self.is_faulty = false;
            let has_failed = self.live(&store).is_err();
            self.end(store, has_failed);
            if self.random.random_bool(0.35) {
                self.damage();
            }
        }
    }

    /// What is left when the power goes after some call from `first` on; `None` if there is none.
    fn cut(&mut self, film: &Film, first: usize) -> Option<SimStorage> {
        if film.calls() <= first {
            return None;
        }
        let (at, fate, mut calls) = (self.random.random_range(first..film.calls()), self.random.random_range(0..14), 0);
        film.play(|moment| {
            calls += 1;
            (calls == at + 1).then(|| {
                let fates = moment.survivals(FATES, 0);
                moment.storage(&fates[fate % fates.len()])
            })
        })
    }

    /// An opening that is cut short.
    fn open_in_part(&mut self) {
        let trial = self.disk.restarted();
        let accepts = self.is_damaged && self.random.random_bool(0.3);
        if let Ok(store) = self.ways.open(&trial, accepts)
            && self.random.random_bool(0.3)
        {
            let _ = store.close();
        }
        if let Some(left) = self.cut(&trial.film(), 0) {
            self.disk = left;
            self.tell("an opening is cut short");
        }
    }

    /// Opens it, and looks whether it holds what it should. `None` if what is damaged cannot be opened, or read.
    fn begin(&mut self) -> Option<Bytes> {
        let before = self.disk.restarted();
        let store = match self.ways.open(&self.disk, false) {
            Ok(store) => store,
            Err(error) => {
                assert!(self.is_damaged, "refused without damage: {error}");
                self.disk = before;
                self.accept_loss()?
            }
        };
        let found = match contents(&store) {
            Ok(found) => found,
            Err(error) => {
                assert!(self.is_damaged, "{error}");
                return None;
            }
        };
        self.tell(format!("a life begins with {}", show(&found)));
        if self.is_damaged {
            for (key, value) in &found {
                assert!(self.ever.get(key).is_some_and(|ever| ever.contains(value)), "{key} never held {}x{}", value[0], value.len());
            }
            self.has_given_up = true;
            let again = self.ways.open(&self.disk.restarted(), false).expect("what was opened is opened after a crash");
            assert_eq!(show(&contents(&again).unwrap()), show(&found), "after a crash");
            self.is_damaged = !verify_in(Arc::new(self.disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap().is_sound();
        } else {
            let possible: Vec<String> = self.possible.iter().map(show).collect();
            assert!(self.possible.contains(&found), "{} of {possible:?}", show(&found));
        }
        if !self.is_damaged {
            let verified = verify_in(Arc::new(self.disk.restarted()), |_, _| ControlFlow::Continue(())).unwrap();
            assert!(verified.is_sound(), "{:?}", verified.damage);
            let into: Bytes = Options::new().memory("16MiB").background(false).in_memory().unwrap();
            let salvaged = salvage_in(Arc::new(self.disk.restarted()), &into, |_, _| ControlFlow::Continue(())).unwrap();
            assert!(contents(&into).unwrap() == found && salvaged.damaged == 0, "salvaged {}", show(&contents(&into).unwrap()));
        }
        (self.now, self.possible) = (found.clone(), vec![found]);
        Some(store)
    }

    /// Opens what is damaged, perhaps at the second attempt.
    fn accept_loss(&mut self) -> Option<Bytes> {
        if self.random.random_bool(0.5) {
            let trial = self.disk.restarted();
            drop(self.ways.open(&trial, true));
            if let Some(left) = self.cut(&trial.film(), 0) {
                self.disk = left;
                self.tell("an acceptance is cut short");
            }
        }
        match self.ways.open(&self.disk, true) {
            Ok(store) => Some(store),
            Err(error) => {
                let error = error.to_string();
                assert!(["scars", "manifest", "image"].iter().any(|file| error.contains(file)), "not accepted: {error}");
                None
            }
        }
    }

    fn live(&mut self, store: &Bytes) -> Result<(), ()> {
        for _ in 0..self.random.random_range(0..25) {
            if self.random.random_bool(0.03) {
                let fault = self.fault(self.disk.calls().len() as u64, 40);
                self.tell(format!("{fault:?}"));
                self.disk.fail(fault);
                self.is_faulty = true;
            }
            let result = self.step(store).and_then(|()| contents(store));
            match result {
                Ok(found) => assert_eq!(show(&found), show(&self.now)),
                Err(error) => {
                    assert!(self.is_damaged || self.is_faulty, "{error}");
                    self.tell(format!("{error}"));
                    return Err(());
                }
            }
        }
        Ok(())
    }

    /// One of the next calls fails.
    fn fault(&mut self, behind: u64, within: u64) -> StorageFault {
        let failure = if self.random.random_bool(0.5) { Failure::Io } else { Failure::NoSpace };
        let nth = behind + self.random.random_range(1..within);
        StorageFault { nth, lasting: self.random.random_bool(0.5), failure, kept: self.random.random_range(0..4) }
    }

    fn step(&mut self, store: &Bytes) -> Result<(), Error> {
        match self.random.random_range(0..20) {
            0..=10 => return self.write(store),
            11..=13 => {
                self.tell("commit");
                store.commit()?;
            }
            14 => {
                self.tell("image");
                store.save_index()?;
            }
            15 => {
                self.tell("compact");
                return store.compact().map(drop);
            }
            16 => {
                self.tell("stretch");
                return store.compact_stretch().map(drop);
            }
            17 => {
                self.tell("read transaction");
                return store.begin_read().map(drop);
            }
            _ => {
                self.back_up(store);
                return Ok(());
            }
        }
        self.possible = vec![self.now.clone()];
        Ok(())
    }

    fn write(&mut self, store: &Bytes) -> Result<(), Error> {
        let key = self.random.random_range(0..KEYS);
        let value = self.random.random_bool(0.8).then(|| {
            self.number = self.number.wrapping_add(1);
            vec![self.number; [1, 8, 100, 1000, 5000, 20_000][self.random.random_range(0..6)]]
        });
        self.tell(format!("{key} becomes {:?}", value.as_ref().map(|value| (value[0], value.len()))));
        match &value {
            Some(value) => {
                self.ever.entry(key).or_default().push(value.clone());
                self.now.insert(key, value.clone());
            }
            None => _ = self.now.remove(&key),
        }
        self.possible.push(self.now.clone());
        match value {
            Some(value) => store.put(&key, &value)?,
            None => _ = store.delete(&key)?,
        }
        if self.ways.is_durable() {
            self.possible = vec![self.now.clone()];
        }
        Ok(())
    }

    fn back_up(&mut self, store: &Bytes) {
        self.tell("backup");
        let old = self.backup.clone();
        let place = old.as_ref().map_or_else(SimStorage::new, |(place, _)| place.restarted());
        let fails = self.random.random_bool(0.1);
        if fails {
            place.fail(self.fault(0, 60));
        }
        if let Some((earlier, _)) = &old
            && self.random.random_bool(0.3)
        {
            self.back_up_from(store, earlier);
        }
        match store.snapshot_in(Arc::new(place.clone())) {
            Ok(_) => {
                self.possible = vec![self.now.clone()];
                let copy = self.ways.open(&place.restarted(), false).expect("a backup opens");
                assert_eq!(show(&contents(&copy).unwrap()), show(&self.now), "in the backup");
                self.has_given_up = false;
                let goes_on = old.and_then(|(_, was)| self.look_at_part(&place, &was));
                self.backup = Some(goes_on.unwrap_or_else(|| (place, self.now.clone())));
            }
            Err(error) => {
                self.tell(format!("no backup: {error}"));
                assert!(self.is_damaged || self.is_faulty || fails || self.has_given_up, "no backup: {error}");
                if let Some((_, was)) = &old {
                    let copy = self.ways.open(&place.restarted(), false).expect("the earlier backup opens");
                    let found = contents(&copy).unwrap();
                    assert!(found == *was || fails && found == self.now, "the earlier backup holds {}", show(&found));
                }
                if fails || self.random.random_bool(0.5) {
                    self.backup = None;
                }
            }
        }
    }

    fn back_up_from(&mut self, store: &Bytes, earlier: &SimStorage) {
        let fresh = SimStorage::new();
        if store.snapshot_from_in(Arc::new(earlier.restarted()), Arc::new(fresh.clone())).is_ok() {
            self.possible = vec![self.now.clone()];
            let copy = self.ways.open(&fresh.restarted(), false).expect("a backup made from another one opens");
            assert_eq!(show(&contents(&copy).unwrap()), show(&self.now), "in a backup made from another one");
        }
    }

    /// The backup when its last step is cut short: it is the earlier one or the new one, and may go on as that.
    fn look_at_part(&mut self, place: &SimStorage, was: &Contents) -> Option<(SimStorage, Contents)> {
        let left = self.cut(&place.film(), 0)?;
        let looked_into = left.restarted();
        let copy = self.ways.open(&looked_into, false).expect("a backup cut short opens");
        let found = contents(&copy).unwrap();
        assert!(found == *was || found == self.now, "cut short it holds {}", show(&found));
        if self.random.random_bool(0.3) {
            copy.close().unwrap();
        }
        drop(copy);
        // Who promotes what he reads has written into it.
        let goes_on = if self.ways.promotes() { left } else { looked_into };
        self.random.random_bool(0.3).then_some((goes_on, found))
    }

    fn end(&mut self, store: Bytes, has_failed: bool) {
        match self.random.random_range(0..4) {
            0 => {
                self.tell("close");
                match store.close() {
                    // What failed was done or not.
                    Ok(()) if !has_failed => self.possible = vec![self.now.clone()],
                    Ok(()) => {}
                    Err(error) => assert!(self.is_damaged || self.is_faulty, "{error}"),
                }
                self.disk = self.disk.restarted();
            }
            1 => {
                self.tell("kill");
                self.disk = self.disk.restarted();
            }
            2 => {
                self.tell("power cut");
                self.disk = self.disk.survive(self.random.random_range(0..14));
            }
            _ => {
                self.tell("power cut while it closes");
                let first = self.disk.position();
                let closed = store.close();
                assert!(closed.is_ok() || self.is_damaged || self.is_faulty, "{closed:?}");
                let left = self.cut(&self.disk.film(), first);
                self.disk = left.unwrap_or_else(|| self.disk.restarted());
            }
        }
    }

    fn damage(&mut self) {
        let is_long = |(name, bytes): &(String, u64)| *bytes >= SECTOR as u64 && !name.contains("scars");
        let files: Vec<(String, u64)> = self.disk.files().into_iter().filter(is_long).collect();
        if files.is_empty() {
            return;
        }
        let (name, bytes) = &files[self.random.random_range(0..files.len())];
        let sector = self.random.random_range(0..bytes / SECTOR as u64);
        match self.random.random_range(0..3) {
            0 => self.disk.flip_bit(name, (sector * SECTOR as u64 * 8) + self.random.random_range(0..SECTOR as u64 * 8)),
            1 => self.disk.zero_sector(name, sector),
            _ => self.disk.spoil_sector(name, sector),
        }
        self.tell(format!("damage in {name}, sector {sector}"));
        self.is_damaged = true;
    }
}

#[test]
fn a_store_and_its_backups_live_through_it() {
    for seed in seeds(SEEDS) {
        let mut lives = Lives::new(seed);
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| lives.run())) {
            eprintln!("ESKER_SEED={seed}:\n  {}", lives.story.join("\n  "));
            std::panic::resume_unwind(cause);
        }
    }
}
