//! Aggregates: each against the plain sum over a list, on one thread and on several, and of nothing.

use esker::aggregate::{
    Count, Distinct, GroupBy, GroupByKey, Histogram, KeyPart, Max, Mean, Min, Quantiles, Sum, TopK, Variance, decimal, integer,
};
use esker::{MemoryDevice, Options, Store};
use std::collections::HashMap;
use std::sync::Arc;

fn numbers(count: u64) -> [Store<u64, u64>; 2] {
    let cold = Options::new().memory("16MiB").open_on(Arc::new(MemoryDevice::new())).unwrap();
    let stores = [Options::new().memory("256MiB").in_memory().unwrap(), cold];
    for store in &stores {
        for n in 0..count {
            store.put(&n, &(n * 7 % 1000)).unwrap();
            if n % 3 == 0 {
                store.put(&(n / 2), &(n / 2 * 7 % 1000)).unwrap();
            }
        }
    }
    stores
}

#[test]
fn all_at_once_agree_with_a_list() {
    let count = 400_000u64;
    let list: Vec<u64> = (0..count).map(|n| n * 7 % 1000).collect();
    let mean = list.iter().sum::<u64>() as f64 / count as f64;
    let variance = list.iter().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / count as f64;
    for store in numbers(count) {
        for threads in [1, 3] {
            let value = |_, value: u64| value;
            let asked = (Count, Sum(value), Min(value), Max(value), Variance(value), Quantiles(value));
            let (n, sum, min, max, moments, sketch) = store.scan().parallel(threads).aggregate(asked).unwrap();
            assert_eq!((n, sum, min, max), (count, i128::from(list.iter().sum::<u64>()), Some(0), Some(999)));
            let moments = moments.unwrap();
            assert_eq!(moments.count, count);
            assert!((moments.mean - mean).abs() < 1e-9 && (moments.variance() - variance).abs() < 1e-6);
            assert!(moments.sample_variance().unwrap() > moments.variance());
            let median = sketch.quantile(0.5).unwrap();
            assert!((median - 499.0).abs() < 6.0, "{median}");
            assert_eq!((sketch.quantile(2.0), sketch.count()), (None, count));

            let histogram = Histogram(vec![10.0, 500.0], value);
            let top = TopK { count: 3, rank: |key: u64, _| key, item: |_, value| value };
            let ((low, mid, high), top, distinct) = {
                let asked = (histogram, top, Distinct(|key, _| key), Distinct(value));
                let (counts, top, keys, values) = store.scan().parallel(threads).aggregate(asked).unwrap();
                ((counts[0], counts[1], counts[2]), top, (keys, values))
            };
            assert_eq!((low, mid, high), (count / 100, count * 49 / 100, count / 2));
            assert_eq!(top, (count - 3..count).rev().map(|n| (n, n * 7 % 1000)).collect::<Vec<_>>());
            assert!(distinct.0.abs_diff(count) < count / 25 && distinct.1.abs_diff(1000) < 40, "{distinct:?}");

            let groups = store.scan().parallel(threads).aggregate(GroupBy(|key: u64, _| key % 3, (Count, Sum(value)))).unwrap();
            let want =
                |rest| (0..count).filter(|n| n % 3 == rest).map(|n| n * 7 % 1000).fold((0, 0), |(n, sum), v| (n + 1, sum + i128::from(v)));
            assert_eq!(groups, HashMap::from([(0, want(0)), (1, want(1)), (2, want(2))]));
        }
    }
}

#[test]
fn of_nothing() {
    let [store, _] = numbers(0);
    let value = |_, value: u64| value;
    assert_eq!(store.aggregate((Count, Sum(value), Min(value), Mean(value))).unwrap(), (0, 0, None, None));
    let (moments, sketch, counts) = store.aggregate((Variance(value), Quantiles(value), Histogram(vec![1.0], value))).unwrap();
    assert_eq!((moments, sketch.quantile(0.5), counts), (None, None, vec![0, 0]));
    let top = TopK { count: 2, rank: value, item: value };
    let (top, distinct, groups) = store.aggregate((top, Distinct(value), GroupBy(value, Count))).unwrap();
    assert!(top.is_empty() && distinct == 0 && groups.is_empty());
}

#[test]
fn sums_of_integers_do_not_overflow_and_floats_lose_nothing() {
    let [store, _] = numbers(0);
    (0..1000).for_each(|n| store.put(&n, &u64::MAX).unwrap());
    assert_eq!(store.aggregate(Sum(|_, value| value)).unwrap(), 1000 * i128::from(u64::MAX));
    let floats: Store<u64, f64> = Options::new().memory("64MiB").in_memory().unwrap();
    for (n, value) in [(0, 1e16), (1, 1.0), (2, -1e16), (3, f64::NAN)] {
        floats.put(&n, &value).unwrap();
    }
    let value = |_, value: f64| value;
    let (sum, min, max, mean) = floats.aggregate((Sum(value), Min(value), Max(value), Mean(value))).unwrap();
    assert_eq!((sum, min, max), (1.0, Some(-1e16), Some(1e16)));
    assert!(mean.unwrap().is_finite());
}

#[test]
fn text_fields_and_groups_of_keys() {
    let store: Store<[u8], [u8]> = Options::new().memory("64MiB").in_memory().unwrap();
    for n in 0..1000u32 {
        let value = if n % 10 == 0 { "none".to_owned() } else { format!(" {n}.5 ") };
        store.put(format!("user{}:{n}", n % 4).as_bytes(), value.as_bytes()).unwrap();
    }
    let amount = |_: &[u8], value: &[u8]| decimal(value);
    let want: f64 = (0..1000).filter(|n| n % 10 != 0).map(|n| f64::from(n) + 0.5).sum();
    assert!((store.aggregate(Sum(amount)).unwrap() - want).abs() < 1e-6);
    assert_eq!(store.aggregate(Sum(|_: &[u8], value: &[u8]| integer(value))).unwrap(), 0);
    let groups = store.scan().parallel(2).aggregate(GroupByKey(KeyPart::Before(b':'), (Count, Sum(amount)))).unwrap();
    assert_eq!(groups.len(), 4);
    assert!(groups.values().all(|(count, _)| *count == 250));
    let groups = store.scan().prefix("user1").aggregate(GroupByKey(KeyPart::Prefix(5), Count)).unwrap();
    assert_eq!(groups, HashMap::from([(b"user1".to_vec(), 250)]));
}

/// A value of several fields.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
struct Order {
    amount: f64,
    country: u32,
    items: u32,
}

#[test]
fn fields_of_a_struct() {
    let orders: Store<u64, Order> = Options::new().memory("64MiB").in_memory().unwrap();
    for n in 0..3000u32 {
        orders.put(&n.into(), &Order { amount: f64::from(n), country: n % 5, items: n % 7 }).unwrap();
    }
    let by_country = GroupBy(|_, order: Order| order.country, (Sum(|_, order: Order| order.items), Max(|_, order: Order| order.amount)));
    let found = orders.scan().filter(|_, order| order.amount >= 1000.0).aggregate(by_country).unwrap();
    let items: i128 = (1000..3000).filter(|n| n % 5 == 2).map(|n| i128::from(n % 7)).sum();
    assert_eq!(found[&2], (items, Some(2997.0)));
}
