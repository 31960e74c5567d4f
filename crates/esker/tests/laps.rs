//! A log goes round in its address space, which is far larger than its memory: hundreds of gibibytes, days of work. Where a limit leaves
//! little it is a quarter of a gibibyte, and a test sees it go round.

// What limits the address space is not the same everywhere.
#![cfg(target_os = "linux")]

#[path = "common/raise.rs"]
mod raise;

use esker::{Cache, Error, Options, Store};
use raise::Raise;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const CHILD: &str = "ESKER_TEST_DIRECTORY";
/// Enough for a log of 256 MiB, its index, and what a test needs besides.
const ADDRESS_SPACE_KIB: u64 = 1_000 << 10;
const BUDGET: u64 = 32 << 20;
const THREADS: u64 = 2;
/// Of each thread.
const KEYS: u64 = 2_000;
const KEY_SHIFT: u32 = 48;
/// Between two scans.
const PAUSE: Duration = Duration::from_millis(200);

/// What a key holds: a value is made of its length and a number, and the number's first part of the key.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Held {
    length: usize,
    number: u64,
}

impl Held {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length.next_multiple_of(8));
        (0..self.length.div_ceil(8) as u64).for_each(|at| bytes.extend_from_slice(&(self.number ^ at).to_le_bytes()));
        bytes.truncate(self.length);
        bytes
    }

    /// What these bytes were made of, if they are some key's.
    fn of(key: u64, bytes: &[u8]) -> Self {
        let number = bytes.first_chunk().map_or(key << KEY_SHIFT, |first| u64::from_le_bytes(*first));
        let held = Self { length: bytes.len(), number };
        assert!(number >> KEY_SHIFT == key && held.bytes() == bytes, "key {key} holds what nobody put there: {held:?}");
        held
    }
}

/// In memory a scan keeps what is superseded meanwhile.
fn when_there_is_room(mut change: impl FnMut() -> esker::Result<()>) {
    while let Err(error) = change() {
        assert!(matches!(error, Error::Full), "{error}");
        thread::yield_now();
    }
}

/// What one thread does, with the keys that are its own.
struct Traffic {
    thread: u64,
    random: u64,
    held: HashMap<u64, Held>,
}

impl Traffic {
    fn new(thread: u64) -> Self {
        Self { thread, random: 0x9e37_79b9_7f4a_7c15 + thread, held: HashMap::new() }
    }

    fn draw(&mut self, below: u64) -> u64 {
        // Xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// Mostly short; some longer than a piece of the log, or a block.
    fn value(&mut self, key: u64) -> Held {
        let length = match self.draw(2_000) {
            0 => self.draw(1 << 20),
            1..20 => self.draw(40 << 10),
            _ => self.draw(2_400),
        };
        let length = length.max(8) as usize;
        Held { length, number: key << KEY_SHIFT | self.draw(1 << KEY_SHIFT) }
    }

    fn change(&mut self, store: &Store<u64, [u8]>) {
        let key = self.draw(KEYS) * THREADS + self.thread;
        let new = self.value(key);
        match self.draw(8) {
            0 => {
                when_there_is_room(|| store.delete(&key).map(drop));
                self.held.remove(&key);
                return;
            }
            1 => when_there_is_room(|| store.rmw(&key, |_| new.bytes()).map(drop)),
            2 => {
                let pairs = [(key, self.value(key).bytes()), (key, new.bytes())];
                when_there_is_room(|| store.put_many(&pairs));
            }
            _ => when_there_is_room(|| store.put(&key, &new.bytes())),
        }
        self.held.insert(key, new);
    }

    /// Its keys hold what it put there; of a cache that or nothing.
    fn check(&self, store: &Store<u64, [u8]>, drops: bool) {
        let keys: Vec<u64> = (0..KEYS).rev().map(|number| number * THREADS + self.thread).collect();
        let same = |key: u64, found: Option<&[u8]>| {
            let (held, found) = (self.held.get(&key).copied(), found.map(|found| Held::of(key, found)));
            assert!(found == held || drops && found.is_none(), "key {key}: {found:?} for {held:?}");
        };
        keys.iter().for_each(|key| same(*key, store.get(key).unwrap().as_deref()));
        store.get_many(&keys, |at, found| same(keys[at], found)).unwrap();
    }
}

/// Goes through the store by log and by index; how many keys it has, if both say so.
fn count(store: &Store<u64, [u8]>) -> Option<usize> {
    let ways = [store.scan().by_log(), store.scan().by_index()].map(|scan| {
        let mut seen = 0;
        scan.for_each(|key, found| {
            Held::of(key, found);
            seen += 1;
        })
        .unwrap();
        seen
    });
    (ways[0] == ways[1]).then_some(ways[0])
}

/// Bytes from a place in the log to where the same memory comes again, at most.
fn lap_bytes(store: &Store<u64, [u8]>) -> u64 {
    let refused = store.set_memory(1 << 50).unwrap_err().to_string();
    let most = refused.split(" max=").nth(1).unwrap().split(' ').next().unwrap();
    most.parse::<u64>().unwrap() + (64 << 20)
}

/// Until the log has gone round so many times, while others read; opened anew in between where that can be.
fn go_round(laps: u64, mut open: impl FnMut() -> Store<u64, [u8]>, drops: bool, reopens: bool) {
    let mut traffic: Vec<Traffic> = (0..THREADS).map(Traffic::new).collect();
    let (mut given_back, mut lap) = (0, 0);
    let mut store = open();
    while given_back < laps * lap.max(1) {
        lap = lap_bytes(&store);
        assert!(lap <= 512 << 20, "a lap has {lap} bytes");
        let before = store.stats().space.given_back_bytes;
        let given = || store.stats().space.given_back_bytes - before;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for own in &mut traffic {
                scope.spawn(|| {
                    let _over = Raise(&is_over);
                    while given() < lap / 2 {
                        (0..2_000).for_each(|_| own.change(&store));
                        if reopens {
                            store.commit().unwrap();
                        }
                    }
                });
            }
            while !is_over.load(Relaxed) {
                count(&store);
                thread::sleep(PAUSE);
            }
        });
        given_back += given();
        let check = |store: &Store<u64, [u8]>| {
            traffic.iter().for_each(|own| own.check(store, drops));
            let held = traffic.iter().map(|own| own.held.len()).sum();
            assert!(drops || count(store) == Some(held), "not as many as were put there");
        };
        check(&store);
        if reopens {
            store.close().unwrap();
            // There is no address space for two.
            drop(store);
            store = open();
            check(&store);
        }
    }
    println!("{given_back} bytes given back, {lap} a lap");
}

/// Runs the test of this name, which is the caller, once more with little address space; false there.
fn is_parent(name: &str) -> bool {
    if std::env::var(CHILD).is_ok() {
        return false;
    }
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", &format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    let output = child
        .args(["--exact", name, "--test-threads=1", "--nocapture"])
        .env(CHILD, place.path())
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("given back"), "{told}{}", String::from_utf8_lossy(&output.stderr));
    true
}

fn directory() -> String {
    std::env::var(CHILD).unwrap()
}

#[test]
fn a_store_in_memory_goes_round() {
    if !is_parent("a_store_in_memory_goes_round") {
        go_round(3, || Options::new().memory(BUDGET).in_memory().unwrap(), false, false);
    }
}

#[test]
fn a_store_in_a_directory_goes_round() {
    if !is_parent("a_store_in_a_directory_goes_round") {
        go_round(1, || Options::new().memory(BUDGET / 2).open(Path::new(&directory())).unwrap(), false, true);
    }
}

#[test]
fn a_cache_goes_round() {
    if !is_parent("a_cache_goes_round") {
        go_round(3, || Options::new().memory(BUDGET / 2).cache(Cache::new()).in_memory().unwrap(), true, false);
    }
}

#[test]
fn a_cache_in_a_directory_goes_round() {
    if !is_parent("a_cache_in_a_directory_goes_round") {
        let open = || Options::new().memory(BUDGET / 2).cache(Cache::new().disk(4 * BUDGET)).open(Path::new(&directory())).unwrap();
        go_round(1, open, true, true);
    }
}
