//! The store's own threads: what calls share by them, and how they end, whatever foreign code is at work there: wakers, listeners, a
//! device that panics.

use crate::common::block_on;
use esker::{Cache, Device, Durability, Error, MemoryStorage, Options, ReadSource, Storage, Store, Value};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

type Pages = Store<u64, [u8]>;

/// On a thread of its own: it must end.
fn ends(what: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        what();
        done.send(()).unwrap();
    });
    assert_ne!(is_done.recv_timeout(Duration::from_secs(60)), Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// Until calls are refused: one that needs no room, and whose reads nobody holds.
fn await_close<V: Value + ?Sized>(store: &Store<u64, V>) {
    while store.contains(&u64::MAX).is_ok() {
        thread::yield_now();
    }
}

/// What the device of a [`Place`] does.
#[derive(Default)]
struct Conduct {
    /// Reads by the store's reader wait.
    holds_reads: Mutex<bool>,
    lets_go: Condvar,
    held: AtomicU64,
    streams: AtomicU64,
    syncs: AtomicU64,
    syncs_slowly: AtomicBool,
    panics_on_the_driver: AtomicBool,
    panics_on_callers: AtomicBool,
}

impl Conduct {
    fn hold_reads(&self, holds: bool) {
        *self.holds_reads.lock().unwrap() = holds;
        self.lets_go.notify_all();
    }

    fn await_held(&self) {
        while self.held.load(SeqCst) == 0 {
            thread::yield_now();
        }
    }
}

fn is_on(name: &str) -> bool {
    thread::current().name() == Some(name)
}

struct Place(Arc<Conduct>, Arc<MemoryStorage>);

struct File(Arc<Conduct>, Arc<dyn Device>);

impl Device for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if is_on("esker-reader") {
            self.0.held.fetch_add(1, SeqCst);
            drop(self.0.lets_go.wait_while(self.0.holds_reads.lock().unwrap(), |holds| *holds).unwrap());
        }
        self.1.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(!self.0.panics_on_callers.swap(false, SeqCst), "the device panics, once");
        if is_on("esker-driver") && bytes.len() > 100 << 10 && self.0.panics_on_the_driver.swap(false, SeqCst) {
            panic!("the device panics, once");
        }
        self.1.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.syncs.fetch_add(1, SeqCst);
        if self.0.syncs_slowly.load(SeqCst) {
            thread::sleep(Duration::from_millis(100));
        }
        self.1.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.1.bytes()
    }
}

impl Storage for Place {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(File(self.0.clone(), self.1.open(name)?)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.1.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.1.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.sync()
    }

    fn read_stream(&self, device: &dyn Device, source: &mut dyn ReadSource) {
        self.0.streams.fetch_add(1, SeqCst);
        while let Some(mut read) = source.next() {
            let result = device.read(read.offset(), read.bytes_mut());
            source.done(read, result);
        }
    }
}

/// A store whose first keys are cold.
fn spilled() -> (Arc<Conduct>, Store<u64, u64>) {
    let conduct = Arc::new(Conduct::default());
    let options = Options::new().memory("16MiB").promotion(false);
    let store: Store<u64, u64> = options.open_in(Arc::new(Place(conduct.clone(), Arc::default()))).unwrap();
    (0..1_000_000).for_each(|key| store.put(&key, &key).unwrap());
    (conduct, store)
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Those that ask while a line is under way get the next one together.
#[test]
fn futures_share_lines() {
    const LANES: u64 = 64;
    const PUTS: u64 = 20;
    let conduct = Arc::new(Conduct::default());
    let options = Options::new().memory("16MiB").durability(Durability::Always);
    let store: Store<u64, u64> = options.open_in(Arc::new(Place(conduct.clone(), Arc::default()))).unwrap();
    let store = &store;
    let before = conduct.syncs.load(SeqCst);
    let puts = |lane| async move {
        for count in 0..PUTS {
            store.put_async(&lane, &count).await.unwrap();
        }
    };
    let mut lanes: Vec<_> = (0..LANES).map(|lane| Box::pin(puts(lane))).collect();
    block_on(poll_fn(|context| {
        lanes.retain_mut(|lane| lane.as_mut().poll(context).is_pending());
        if lanes.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    let syncs = conduct.syncs.load(SeqCst) - before;
    assert!(syncs < LANES * PUTS / 4, "{syncs} syncs for {} puts", LANES * PUTS);
}

/// A storage to which nothing is written before its gate opens.
#[derive(Default)]
struct Gated {
    is_open: Mutex<bool>,
    opens: Condvar,
    comers: AtomicU64,
    files: MemoryStorage,
}

impl Gated {
    fn open_gate(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opens.notify_all();
    }
}

struct GatedFile(Arc<Gated>, Arc<dyn Device>);

impl Device for GatedFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.1.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.comers.fetch_add(1, SeqCst);
        drop(self.0.opens.wait_while(self.0.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        self.1.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.1.bytes()
    }
}

struct Gate(Arc<Gated>);

impl Storage for Gate {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(GatedFile(self.0.clone(), self.0.files.open(name)?)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.files.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.files.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.files.sync()
    }
}

/// While a cache is copied who needs room waits for the copy. A line once waited behind him.
#[test]
fn a_line_does_not_wait_for_room_that_waits_for_a_backup() {
    const BOUND: u64 = 64 << 20;
    static VALUE: [u8; 32 << 10] = [7; 32 << 10];
    ends(|| {
        let options = Options::new().memory("16MiB").cache(Cache::new().disk(BOUND));
        let store: Pages = options.open_in(Arc::new(MemoryStorage::new())).unwrap();
        store.put(&0, &VALUE).unwrap();
        let (gated, puts, done) = (Arc::new(Gated::default()), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| store.snapshot_in(Arc::new(Gate(gated.clone()))).unwrap());
            while gated.comers.load(SeqCst) == 0 {
                thread::yield_now();
            }
            scope.spawn(|| {
                block_on(async {
                    for key in 0..4 * BOUND / VALUE.len() as u64 {
                        store.put_async(&key, &VALUE).await.unwrap();
                        puts.fetch_add(1, SeqCst);
                    }
                });
                done.store(true, SeqCst);
            });
            // Until the putter goes on no more: it waits for room.
            let (mut before, mut looks) = (0, 0);
            while looks < 5 {
                block_on(store.commit_async()).unwrap();
                thread::sleep(Duration::from_millis(20));
                let now = puts.load(SeqCst);
                (before, looks) = (now, if now == before { looks + 1 } else { 0 });
            }
            assert!(!done.load(SeqCst), "the putter must wait");
            block_on(store.commit_async()).unwrap();
            gated.open_gate();
        });
        assert!(done.load(SeqCst));
    });
}

/// Each would wait for the other's thread.
#[test]
fn two_wakers_may_close_the_store() {
    struct Closes {
        store: Store<u64, u64>,
        met: Arc<Barrier>,
        after: Duration,
        done: mpsc::Sender<()>,
    }
    impl Wake for Closes {
        fn wake(self: Arc<Self>) {
            self.met.wait();
            thread::sleep(self.after);
            // Who is not to wait for the other one does not know.
            assert!(matches!(self.store.close(), Ok(()) | Err(Error::Closed)));
            self.done.send(()).unwrap();
        }
    }
    ends(|| {
        let (conduct, store) = spilled();
        let (met, (done, is_done)) = (Arc::new(Barrier::new(2)), mpsc::channel());
        let closes = |millis| {
            let (store, met, done) = (store.clone(), met.clone(), done.clone());
            Waker::from(Arc::new(Closes { store, met, after: Duration::from_millis(millis), done }))
        };
        let (on_reader, on_writer) = (closes(200), closes(0));
        conduct.hold_reads(true);
        let mut read = Box::pin(store.get_async(&1));
        assert!(poll(read.as_mut(), &on_reader).is_pending());
        // A line may have ended before it is awaited.
        let mut commit = Box::pin(store.commit_async());
        while poll(commit.as_mut(), &on_writer).is_ready() {
            store.put(&1, &1).unwrap();
            commit = Box::pin(store.commit_async());
        }
        conduct.hold_reads(false);
        (0..2).for_each(|_| is_done.recv().unwrap());
    });
}

/// It is on the driver, for which who closes waits.
#[test]
fn a_listener_may_await_a_read_while_the_store_is_closed() {
    ends(|| {
        let conduct = Arc::new(Conduct::default());
        let slot: Arc<Mutex<Option<Pages>>> = Arc::default();
        let newest = Arc::new(AtomicU64::new(0));
        let (ready, is_ready) = mpsc::channel();
        let (at_device, held, near, ready) = (conduct.clone(), slot.clone(), newest.clone(), Mutex::new(Some(ready)));
        let cache = Cache::new().disk(64 << 20).on_eviction(move |_, _, _| {
            if !is_on("esker-driver") {
                return;
            }
            let Some(ready) = ready.lock().unwrap().take() else { return };
            let store = held.lock().unwrap().clone().unwrap();
            let cold = near.load(SeqCst) - 3000;
            at_device.hold_reads(true);
            let before = cold + 7;
            let (mut under_way, mut behind) = (Box::pin(store.get_async(&before)), Box::pin(store.get_async(&cold)));
            assert!(poll(under_way.as_mut(), Waker::noop()).is_pending());
            at_device.await_held();
            assert!(poll(behind.as_mut(), Waker::noop()).is_pending());
            ready.send(()).unwrap();
            assert!(matches!(block_on(behind), Err(Error::Closed)));
        });
        let options = Options::new().memory("16MiB").cache(cache);
        let store: Pages = options.open_in(Arc::new(Place(conduct.clone(), Arc::default()))).unwrap();
        *slot.lock().unwrap() = Some(store.clone());
        thread::scope(|scope| {
            // Who needs room waits for the listener, until the store is closed.
            let store = &store;
            scope.spawn(move || {
                for key in (0..).take_while(|key| store.put(key, &[1; 8000]).is_ok()) {
                    newest.store(key, SeqCst);
                    if key % 50 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            is_ready.recv().unwrap();
            scope.spawn(move || {
                await_close(store);
                conduct.hold_reads(false);
            });
            store.close().unwrap();
        });
        drop(slot.lock().unwrap().take());
    });
}

/// The reader does not ask again and again for what it cannot begin.
#[test]
fn waiting_reads_hear_of_a_close_soon() {
    ends(|| {
        let (conduct, store) = spilled();
        conduct.hold_reads(true);
        let (mut under_way, mut behind) = (Box::pin(store.get_async(&1)), Box::pin(store.get_async(&2)));
        assert!(poll(under_way.as_mut(), Waker::noop()).is_pending());
        conduct.await_held();
        assert!(poll(behind.as_mut(), Waker::noop()).is_pending());
        conduct.syncs_slowly.store(true, SeqCst);
        let before = conduct.streams.load(SeqCst);
        thread::scope(|scope| {
            let closing = scope.spawn(|| store.close().unwrap());
            await_close(&store);
            conduct.hold_reads(false);
            assert!(matches!(block_on(behind), Err(Error::Closed)));
            closing.join().unwrap();
        });
        let streams = conduct.streams.load(SeqCst) - before;
        assert!(streams < 100, "{streams} streams without a read");
    });
}

/// Whether what it wrote is there nobody knows: whoever writes is told.
#[test]
fn a_device_that_panics_on_the_driver_is_latched() {
    ends(|| {
        let conduct = Arc::new(Conduct::default());
        let options = Options::new().memory("16MiB").durability(Durability::Every(Duration::from_millis(500)));
        let store: Pages = options.open_in(Arc::new(Place(conduct.clone(), Arc::default()))).unwrap();
        conduct.panics_on_the_driver.store(true, SeqCst);
        let refused = (0u64..).find_map(|key| {
            if key % 20 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            store.put(&key, &[1; 4000]).err()
        });
        assert!(matches!(refused, Some(Error::Io(_))), "{refused:?}");
        assert!(store.close().is_err() && store.stats().latched.is_some());
    });
}

/// The same on a thread of the caller's, who went on as if nothing had been.
#[test]
fn a_device_that_panics_on_a_caller_is_latched() {
    type Call = fn(&Pages) -> Result<(), Error>;
    let calls: [Call; 4] = [
        |store| (0u64..100_000).try_for_each(|key| store.put(&key, &[1; 4000])),
        |store| store.compact().map(drop),
        |store| store.set_memory(17 << 20),
        |store| store.save_index(),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let conduct = Arc::new(Conduct::default());
        let options = Options::new().memory(if number == 2 { 64u64 << 20 } else { 16 << 20 }).background(false);
        let store: Pages = options.open_in(Arc::new(Place(conduct.clone(), Arc::default()))).unwrap();
        (0..6000u64).for_each(|key| store.put(&(key % 3000), &[1; 4000]).unwrap());
        conduct.panics_on_callers.store(true, SeqCst);
        let result = call(&store);
        assert!(matches!(result, Err(Error::Io(_))), "{number}: {result:?}");
        assert!(store.put(&7, &[2; 5000]).is_err() && store.stats().latched.is_some(), "{number}");
        assert_eq!(store.get(&7).unwrap().as_deref(), Some(&[1; 4000][..]), "{number}");
        assert!(store.close().is_err(), "{number}");
    }
}
