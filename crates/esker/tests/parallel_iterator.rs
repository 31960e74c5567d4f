//! Scans as parallel iterators of rayon.

use esker::{Error, MemoryDevice, Options, Result, Store, Strategy};
use rayon::prelude::*;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const KEYS: u64 = 300_000;

fn stores() -> [Store<u64, u64>; 2] {
    let cold = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    let stores = [Options::new().memory("256MiB").in_memory().unwrap(), cold];
    for store in &stores {
        (0..KEYS).for_each(|n| store.put(&n, &(n + 1)).unwrap());
        (0..KEYS).step_by(3).for_each(|n| store.put(&n, &n).unwrap());
        (0..KEYS).step_by(7).for_each(|n| assert!(store.delete(&n).unwrap()));
    }
    stores
}

#[test]
fn sums_are_equal() {
    let want: u64 = (0..KEYS).filter(|n| n % 7 != 0).map(|n| n + u64::from(n % 3 != 0)).sum();
    let keys: Vec<u64> = (0..KEYS + 10).collect();
    let value = |pair: Result<(u64, u64)>| pair.map(|(_, value)| value);
    for store in stores() {
        for threads in [1, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for strategy in [Strategy::ByLog, Strategy::ByIndex, Strategy::ByKeys] {
                let sum: Result<u64> = pool.install(|| store.scan().keys(&keys).by(strategy).into_par_iter().map(value).sum());
                assert_eq!(sum.unwrap(), want, "{strategy:?} on {threads} threads");
            }
            let even = store.scan().filter(|_, value| value % 2 == 0);
            let found: Vec<(u64, u64)> = pool.install(|| even.into_par_iter().collect::<Result<_>>().unwrap());
            assert_eq!(found.len(), store.scan().filter(|_, value| value % 2 == 0).collect::<Vec<_>>().unwrap().len());
        }
    }
}

/// What rayon does inside an item may take up another share of the same scan on the same stack.
#[test]
fn items_may_be_divided_further_and_use_the_store() {
    for store in stores() {
        let wrong = store.scan().into_par_iter().map(Result::unwrap).filter(|(key, value)| {
            let (a, b) = rayon::join(|| store.get(key).unwrap(), || (0..10u64).into_par_iter().sum::<u64>());
            a != Some(*value) || b != 45
        });
        assert_eq!(wrong.count(), 0);
    }
}

#[test]
fn it_ends_when_nothing_more_is_wanted() {
    let [store, _] = stores();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let reports = AtomicUsize::new(0);
    let count = |_| {
        reports.fetch_add(1, Relaxed);
        std::ops::ControlFlow::Continue(())
    };
    assert!(pool.install(|| store.scan().by_log().progress(count).into_par_iter().find_any(|_| true)).is_some());
    assert_eq!(reports.load(Relaxed), 0, "the first pair was enough");
}

#[test]
fn an_error_is_an_item() {
    let [store, _] = stores();
    let cancelled = store.scan().progress(|_| std::ops::ControlFlow::Break(()));
    assert!(matches!(cancelled.into_par_iter().collect::<Result<Vec<_>>>(), Err(Error::Cancelled)));
    store.close().unwrap();
    let pairs: Vec<Result<(u64, u64)>> = store.scan().into_par_iter().collect();
    assert!(matches!(pairs[..], [Err(Error::Closed)]));
}

/// A progress that breaks once ended one share only, and behind its error all pairs of the others came.
#[test]
fn behind_an_error_few_more_come() {
    const MANY: u64 = 1_000_000;
    let store: Store<u64, u64> = Options::new().memory("256MiB").in_memory().unwrap();
    (0..MANY).for_each(|n| store.put(&n, &n).unwrap());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let has_ended = AtomicBool::new(false);
    let once = |_| if has_ended.swap(true, Relaxed) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let items = store.scan().progress(once).into_par_iter();
    let (pairs, errors) = pool.install(|| {
        let late = AtomicUsize::new(0);
        // The others let the one that ends come to its end.
        let slowed = items.inspect(|_| {
            if has_ended.load(Relaxed) && late.fetch_add(1, Relaxed) < 300 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        slowed.map(|item| if item.is_ok() { (1, 0) } else { (0, 1) }).reduce(|| (0, 0), |one, other| (one.0 + other.0, one.1 + other.1))
    });
    assert!(pairs < MANY / 2 && errors > 0, "{pairs} pairs and {errors} errors");
}
