//! What is asked of the caches, drawn before a clock starts.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

use crate::keys;

/// Keys that a scan passes in one go.
const SCAN_LENGTH: u64 = 20_000;
/// The largest share of scans, of a hundred: every other request is one while a scan goes on.
pub(super) const SCANS_MAX: u8 = 49;
/// One request in so many begins to count: the caches have filled by then.
const WARM_UP: usize = 4;

/// The requests of each thread.
pub(crate) struct Requests(Vec<Vec<u64>>);

impl Requests {
    /// `scans` of a hundred belong to scans; the hot set moves by a key every `drift` requests.
    pub(crate) fn draw(keys: u64, exponent: f64, scans: u8, drift: u64, requests: usize, threads: usize) -> Self {
        let draw = |thread| one(keys, exponent, scans, drift, requests, thread);
        Self(std::thread::scope(|scope| {
            let draws: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(move || draw(thread))).collect();
            draws.into_iter().map(|draw| draw.join().expect("drawing does not fail")).collect()
        }))
    }

    /// `length` keys in turn, over and over, by one thread.
    pub(crate) fn looped(length: u64, requests: usize) -> Self {
        Self(vec![(0..requests as u64).map(|at| keys::key(at % length.max(1))).collect()])
    }

    pub(crate) fn threads(&self) -> impl Iterator<Item = &[u64]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// All requests.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Those that come after the warm-up.
    pub(crate) fn counted(&self) -> usize {
        self.0.iter().map(|keys| keys.len() - first_counted(keys)).sum()
    }
}

/// Where the warm-up of a thread ends.
pub(crate) fn first_counted(keys: &[u64]) -> usize {
    keys.len() / WARM_UP
}

fn one(keys: u64, exponent: f64, scans: u8, drift: u64, requests: usize, thread: u64) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(0x00ca_c4e5 + thread);
    let zipf = Zipf::new(keys as f64, exponent).expect("there is at least one key");
    // Scans have a range of their own, ten times as long, of which each thread walks its part.
    let mut scan = keys + thread * (1 << 40);
    let mut left = 0;
    let scans = u64::from(scans.min(SCANS_MAX));
    let steps = (0..requests as u64).map(|number| {
        // A scan goes on for a while, as every other request. Between two of them there are so many that scans have their share of all.
        if left == 0 && random.random_range(0..SCAN_LENGTH * (100 - 2 * scans)) < scans {
            left = 2 * SCAN_LENGTH;
        }
        if left > 0 {
            left -= 1;
            if random.random_range(0..2) == 0 {
                scan += 1;
                return keys::key(scan % (10 * keys) + keys);
            }
        }
        let rank = (zipf.sample(&mut random) as u64 - 1).min(keys - 1);
        let moved = number.checked_div(drift).unwrap_or(0);
        keys::key((rank + keys - moved % keys) % keys)
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_have_their_share_and_keys_their_favourites() {
        let popular = keys::key(0);
        let own: std::collections::HashSet<u64> = (0..10_000).map(keys::key).collect();
        for share in [0, 10, 25, 40] {
            let requests = Requests::draw(10_000, 0.99, share, 0, 16_000_000, 1);
            let all = &requests.0[0];
            let hits = all.iter().filter(|key| **key == popular).count();
            assert!(hits > all.len() / 25 && hits < all.len() / 5, "{hits}");
            let scanned = 100.0 * all.iter().filter(|key| !own.contains(key)).count() as f64 / all.len() as f64;
            assert!((scanned - f64::from(share)).abs() <= f64::from(share) / 6.0, "{scanned} of a hundred instead of {share}");
            assert_eq!((requests.count(), requests.counted()), (16_000_000, 12_000_000));
        }
    }
}
