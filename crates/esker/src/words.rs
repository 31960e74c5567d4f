//! Copies of memory that another thread may be changing: word by word, each as it is at some moment.
//!
//! Who needs a whole value as it was at one moment looks at a version before and after. What must not be is a racing access of the
//! language's own, so words are atomics. But a compiler makes five instructions of each and joins no two: a kibibyte fills the
//! window in which a processor looks ahead, and the next record's misses wait. Hence four vectors a turn where it has them.

use crate::sync::atomic::{AtomicU64, Ordering::*};

/// Appends words.
pub(crate) fn append(words: &[AtomicU64], bytes: &mut Vec<u8>) {
    bytes.reserve(words.len() * 8);
    // SAFETY: there is room for all words, and all are written before the length says so.
    unsafe {
        read_to(words, bytes.as_mut_ptr().add(bytes.len()));
        bytes.set_len(bytes.len() + words.len() * 8);
    }
}

/// Copies a value that is short and read back at once, as many bytes as there is room for: by two words where there are two, as its reader
/// will load them, for a load that meets two stores must wait until both are done.
#[inline(always)]
pub(crate) fn read_short(words: &[AtomicU64], bytes: &mut [u8]) {
    let (length, mut at) = (bytes.len(), 0);
    while at + 16 <= length {
        // SAFETY: two words, and room for as many.
        unsafe { read_pair(words[at / 8..][..2].as_ptr().cast(), bytes[at..][..16].as_mut_ptr()) };
        at += 16;
    }
    if at + 8 <= length {
        bytes[at..at + 8].copy_from_slice(&words[at / 8].load(Relaxed).to_ne_bytes());
        at += 8;
    }
    if at < length {
        bytes[at..].copy_from_slice(&words[at / 8].load(Relaxed).to_ne_bytes()[..length - at]);
    }
}

/// # Safety
/// Two words may be read at `from`, where they are aligned and others may be at work meanwhile, and written at `to`.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
#[inline(always)]
unsafe fn read_pair(from: *const u8, to: *mut u8) {
    // SAFETY: as the caller says; for the race, as `in_turns`.
    unsafe {
        std::arch::asm!(
            "movups {pair}, [{from}]",
            "movups [{to}], {pair}",
            from = in(reg) from,
            to = in(reg) to,
            pair = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
#[inline(always)]
unsafe fn read_pair(from: *const u8, to: *mut u8) {
    let from = from.cast::<AtomicU64>();
    for i in 0..2 {
        // SAFETY: as the caller says; of no alignment at `to`.
        unsafe { to.add(8 * i).cast::<[u8; 8]>().write((*from.add(i)).load(Relaxed).to_ne_bytes()) };
    }
}

/// The two words `AT` bytes behind `from`, each as it is at some moment, by one load where there is one for both. Of `from` other words are
/// read besides: so there is one address, and no register for a second one.
///
/// # Safety
/// Two words may be read there, where they are aligned and others may be at work meanwhile.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
#[inline(always)]
pub(crate) unsafe fn pair<const AT: usize>(from: *const u8) -> (u64, u64) {
    let (first, second): (u64, u64);
    // SAFETY: as the caller says; for the race, as `in_turns`.
    unsafe {
        std::arch::asm!(
            "movups {pair}, [{from} + {at}]",
            "movq {first}, {pair}",
            "punpckhqdq {pair}, {pair}",
            "movq {second}, {pair}",
            from = in(reg) from,
            at = const AT,
            pair = out(xmm_reg) _,
            first = out(reg) first,
            second = lateout(reg) second,
            options(nostack, preserves_flags, readonly, pure)
        );
    }
    (first, second)
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
#[inline(always)]
pub(crate) unsafe fn pair<const AT: usize>(from: *const u8) -> (u64, u64) {
    // SAFETY: as the caller says. Acquire: what a vector's load is here.
    unsafe {
        let word = from.add(AT).cast::<AtomicU64>();
        ((*word).load(Acquire), (*word.add(1)).load(Acquire))
    }
}

/// Copies `bytes`, a multiple of eight, into as many words. Who else writes them is kept out; readers are not.
pub(crate) fn write(bytes: &[u8], words: &[AtomicU64]) {
    let words = &words[..bytes.len() / 8];
    // SAFETY: both have that many bytes, and `AtomicU64` may be written through a shared reference.
    let done = unsafe { in_turns(bytes.as_ptr(), words.as_ptr().cast_mut().cast(), words.len()) };
    for (word, from) in words.iter().zip(bytes.chunks_exact(8)).skip(done) {
        word.store(u64::from_ne_bytes(from.try_into().unwrap_or_default()), Relaxed);
    }
}

/// # Safety
/// `to` has room for all the words.
#[inline]
unsafe fn read_to(words: &[AtomicU64], to: *mut u8) {
    // SAFETY: as the caller says.
    let done = unsafe { in_turns(words.as_ptr().cast(), to, words.len()) };
    for (i, word) in words.iter().enumerate().skip(done) {
        // SAFETY: as the caller says; of no alignment.
        unsafe { to.add(8 * i).cast::<[u8; 8]>().write(word.load(Relaxed).to_ne_bytes()) };
    }
}

/// Copies from the beginning as many whole turns as there are, and says how many words these were.
///
/// # Safety
/// As many words may be read at `from`, and written at `to`; at one of them others may be at work meanwhile, if words are aligned there.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
#[inline]
unsafe fn in_turns(from: *const u8, to: *mut u8, words: usize) -> usize {
    let bytes = words * 8 / 64 * 64;
    if bytes > 0 {
        // SAFETY: `bytes` bytes, as the caller says. The accesses may race: processors of this kind make each aligned half of such a
        // vector atomic, and for the compiler an asm block is no racing Rust access.
        unsafe {
            std::arch::asm!(
                "2:",
                "movups {a}, [{from} + {at}]",
                "movups {b}, [{from} + {at} + 16]",
                "movups {c}, [{from} + {at} + 32]",
                "movups {d}, [{from} + {at} + 48]",
                "movups [{to} + {at}], {a}",
                "movups [{to} + {at} + 16], {b}",
                "movups [{to} + {at} + 32], {c}",
                "movups [{to} + {at} + 48], {d}",
                "add {at}, 64",
                "cmp {at}, {bytes}",
                "jb 2b",
                from = in(reg) from,
                to = in(reg) to,
                bytes = in(reg) bytes,
                at = inout(reg) 0usize => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
    }
    bytes / 8
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
unsafe fn in_turns(_: *const u8, _: *mut u8, _: usize) -> usize {
    0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicBool, fence};

    #[test]
    fn every_length_of_a_short_value_is_copied() {
        let words: Vec<AtomicU64> = (1..10).map(|i| AtomicU64::new(0x0102_0304_0506_0708_u64.wrapping_mul(i))).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        for length in 0..=72_usize {
            let mut room = [9; 80];
            read_short(&words[..length.div_ceil(8)], &mut room[1..=length]);
            assert_eq!(room[1..=length], bytes[..length], "{length}");
            assert!(room[0] == 9 && room[length + 1..].iter().all(|byte| *byte == 9), "{length}");
        }
    }

    #[test]
    fn a_pair_is_the_two_words_there() {
        let words = [1, 0x0102_0304_0506_0708, u64::MAX - 1, 7].map(AtomicU64::new);
        for at in 0..3 {
            let expected = (words[at].load(Relaxed), words[at + 1].load(Relaxed));
            // SAFETY: two words of the array.
            assert_eq!(unsafe { pair::<0>(words.as_ptr().add(at).cast()) }, expected);
            if at > 0 {
                // SAFETY: the same two.
                assert_eq!(unsafe { pair::<8>(words.as_ptr().add(at - 1).cast()) }, expected);
            }
        }
    }

    #[test]
    fn every_number_of_words_is_copied_and_no_byte_beyond() {
        for count in (0..70).chain([127, 128, 129, 1000]) {
            let words: Vec<AtomicU64> =
                (0..count + 2).map(|i| AtomicU64::new(0x0102_0304_0506_0708_u64.wrapping_mul(i as u64 + 1))).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
            for skip in 0..2 {
                let (part, expected) = (&words[skip..skip + count], &bytes[8 * skip..][..8 * count]);
                // Bytes have no alignment.
                let mut appended = vec![9; skip];
                append(part, &mut appended);
                assert_eq!((&appended[..skip], &appended[skip..]), (&[9; 2][..skip], expected), "{count}");
                let written: Vec<AtomicU64> = (0..count + 2).map(|_| AtomicU64::new(9)).collect();
                write(expected, &written[skip..]);
                let shown = |words: &[AtomicU64]| words.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
                assert_eq!(shown(&written[skip..skip + count]), shown(part), "{count}");
                assert!(shown(&written[..skip]).into_iter().chain(shown(&written[skip + count..])).all(|word| word == 9));
            }
        }
    }

    #[test]
    fn a_reader_whose_version_stood_still_has_one_value() {
        const WORDS: usize = 129;
        let words: Vec<AtomicU64> = (0..WORDS + 1).map(|_| AtomicU64::new(0)).collect();
        let (version, values) = words.split_first().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..20_000u64 {
                    version.store(2 * value - 1, Relaxed);
                    fence(Release);
                    write(&value.to_ne_bytes().repeat(WORDS), values);
                    version.store(2 * value, Release);
                }
                over.store(true, Release);
            });
            let mut bytes = Vec::new();
            while !over.load(Acquire) {
                let before = version.load(Acquire);
                bytes.clear();
                append(values, &mut bytes);
                fence(Acquire);
                if before % 2 == 0 && version.load(Relaxed) == before {
                    assert_eq!(bytes, (before / 2).to_ne_bytes().repeat(WORDS));
                }
            }
        });
    }
}
