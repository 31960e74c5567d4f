//! What the fuzzer once found worth keeping, and bytes drawn at random, through the engine as it is built for users: here
//! checksums count, and a value read from a damaged store is a value that was put.

use esker_sim::fuzz;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;

/// Runs the corpus of a target, and `drawn` random inputs.
fn run(target: &str, drawn: u64, harness: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let kept: Vec<_> = std::fs::read_dir(&corpus).unwrap_or_else(|e| panic!("{}: {e}", corpus.display())).collect();
    assert!(!kept.is_empty(), "{} is empty", corpus.display());
    for entry in kept {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        harness(&std::fs::read(&path).unwrap());
    }
    for seed in 0..drawn {
        println!("seed {seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut bytes = vec![0; 64 + (random.next_u32() % 960) as usize];
        random.fill_bytes(&mut bytes);
        harness(&bytes);
    }
}

#[test]
fn damaged_files_never_give_a_wrong_value() {
    run("files", 500, fuzz::files);
}

#[test]
fn programs_agree_with_the_model() {
    run("operations", 100, fuzz::operations);
}
