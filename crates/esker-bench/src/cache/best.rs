//! The best that any cache could do, knowing what comes.
//!
//! Belady's rule: of the pairs held, the one that is asked for last of all goes, the new one included. The requests of several
//! threads are taken in turns. A heap finds the pair; what it says of a pair that was asked for since is passed by.

use std::collections::{BinaryHeap, HashMap};

use super::requests::{Requests, first_counted};

/// Asked for no more.
const NEVER: u32 = u32::MAX;

/// The share of the counted requests that a cache of so many pairs can answer.
pub(super) fn hit_rate(requests: &Requests, pairs: usize) -> f64 {
    let (order, counts) = interleaved(requests);
    let next = next_uses(&order);
    let mut held =
        Held { until: vec![NEVER; order.iter().max().map_or(0, |last| *last as usize + 1)], latest: BinaryHeap::new(), count: 0 };
    let (mut hits, mut counted) = (0u64, 0u64);
    for (at, &name) in order.iter().enumerate() {
        let is_hit = held.ask(name, next[at]);
        hits += u64::from(is_hit && counts[at]);
        counted += u64::from(counts[at]);
        held.shrink_to(pairs);
    }
    hits as f64 / counted.max(1) as f64
}

/// The keys as small numbers, the threads' in turns, and whether each request counts.
fn interleaved(requests: &Requests) -> (Vec<u32>, Vec<bool>) {
    let mut names = HashMap::new();
    let (mut order, mut counts) = (Vec::with_capacity(requests.count()), Vec::with_capacity(requests.count()));
    let longest = requests.threads().map(<[u64]>::len).max().unwrap_or(0);
    for at in 0..longest {
        for keys in requests.threads() {
            if let Some(key) = keys.get(at) {
                let fresh = names.len() as u32;
                order.push(*names.entry(*key).or_insert(fresh));
                counts.push(at >= first_counted(keys));
            }
        }
    }
    (order, counts)
}

/// Where each request's key is asked for next.
fn next_uses(order: &[u32]) -> Vec<u32> {
    let mut last = HashMap::new();
    let mut next: Vec<_> = order.iter().enumerate().rev().map(|(at, name)| last.insert(*name, at as u32).unwrap_or(NEVER)).collect();
    next.reverse();
    next
}

struct Held {
    /// When a pair that is held is asked for next; [`NEVER`] for those that are not held.
    until: Vec<u32>,
    latest: BinaryHeap<(u32, u32)>,
    count: usize,
}

impl Held {
    /// True if the pair is here. It is afterwards, unless nobody asks for it again.
    fn ask(&mut self, name: u32, next: u32) -> bool {
        let until = &mut self.until[name as usize];
        let is_hit = *until != NEVER;
        self.count = self.count + usize::from(next != NEVER) - usize::from(is_hit);
        *until = next;
        if next != NEVER {
            self.latest.push((next, name));
        }
        is_hit
    }

    fn shrink_to(&mut self, pairs: usize) {
        while self.count > pairs {
            let Some((until, name)) = self.latest.pop() else { return };
            if self.until[name as usize] == until {
                self.until[name as usize] = NEVER;
                self.count -= 1;
            }
        }
        // What is out of date lies at the bottom.
        if self.latest.len() > 4 * pairs + 1024 {
            let until = &self.until;
            self.latest.retain(|(at, name)| until[*name as usize] == *at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_keeps_all_but_what_does_not_fit() {
        // Of 100 keys in turn, a cache of 51 that knows keeps 50 and lets the others pass through its last place.
        let requests = Requests::looped(100, 100_000);
        let best = hit_rate(&requests, 51);
        assert!((best - 50.0 / 99.0).abs() < 0.01, "{best}");
        assert!(hit_rate(&requests, 100) > 0.999);
    }

    #[test]
    fn nobody_keeps_what_comes_once() {
        assert!(hit_rate(&Requests::looped(200_000, 100_000), 1000).abs() < 1e-9);
    }
}
