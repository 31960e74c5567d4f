//! What was measured in 2017: "a toy transactional key-value store with AFIO", by Niall Douglas, and the notes of its program.
//!
//! One thread; batches of 1,024; keys in order, fetched in the same order. The first figures are the document's, on Linux with ext4 and
//! memory maps; the others its program's own, the better of maps and of files that are read and appended to. A fetch there gave a
//! pointer; nothing looked at what it points to unless integrity was on.

/// What the document quotes of others.
pub(crate) const OTHERS: &str = "The document quotes besides: LMDB, 1.4 M fetches/s with four threads; sharedhashfile, 10 M fetches/s with \
                                 eight; NuDB, 330 k fetches or inserts/s with each. Windows with NTFS: 518 k inserts, 2.19 M fetches/s.";

struct Figure {
    value_bytes: u64,
    integrity: bool,
    durability: bool,
    insert: f64,
    fetch: f64,
}

const FIGURES: [Figure; 4] = [
    Figure { value_bytes: 1024, integrity: false, durability: false, insert: 695_894.0, fetch: 5_988_023.0 },
    Figure { value_bytes: 1024, integrity: true, durability: false, insert: 660_501.0, fetch: 1_934_235.0 },
    Figure { value_bytes: 1024, integrity: true, durability: true, insert: 85_397.0, fetch: 781_250.0 },
    Figure { value_bytes: 16, integrity: false, durability: false, insert: 1_663_893.0, fetch: 26_315_789.0 },
];

/// The document's rates of inserts and of fetches, where it has them.
pub(crate) fn rates(value_bytes: u64, integrity: bool, durability: bool) -> Option<(f64, f64)> {
    let same = |figure: &&Figure| (figure.value_bytes, figure.integrity, figure.durability) == (value_bytes, integrity, durability);
    FIGURES.iter().find(same).map(|figure| (figure.insert, figure.fetch))
}
