//! What a random test begins with. `ESKER_SEED` replays one seed; `ESKER_SEQUENCES` says how many there are.

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The one seed of a test that has one.
#[must_use]
pub fn seed() -> u64 {
    number("ESKER_SEED").unwrap_or(1)
}

/// The seeds to run: so many, unless the environment says otherwise.
#[must_use]
pub fn seeds(count: u64) -> Vec<u64> {
    match number("ESKER_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("ESKER_SEQUENCES").unwrap_or(count)).collect(),
    }
}
