//! Types come in through two small traits (the idea is redb's).
//!
//! Every `Copy` type without padding is fixed-width through `zerocopy`: integers, floats, arrays, derived structs.
//! `[u8]` and `str` have any length. A type is its bytes: two keys are equal when their bytes are.

use std::borrow::Borrow;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How this store's records look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Keys of this width, values of at most eight bytes.
    Word {
        key_bytes: usize,
        value_bytes: usize,
    },
    Bytes,
}

/// Keys of the word layout, in bytes.
pub(crate) const WORD_KEY_BYTES_MAX: usize = 256;

/// How records of these types look.
pub(crate) const fn layout<K: Key + ?Sized, V: Value + ?Sized>() -> Layout {
    match (K::WIDTH, V::WIDTH) {
        (Some(key_bytes), Some(value_bytes)) if value_bytes <= 8 && key_bytes <= WORD_KEY_BYTES_MAX => {
            Layout::Word { key_bytes, value_bytes }
        }
        _ => Layout::Bytes,
    }
}

/// What a value can be. A value is its bytes: two are equal when these are (so `0.0` and `-0.0` differ), and a store holds them in the byte
/// order of the machine. A `str` that is read where other bytes were put, by a store that was opened as one of `[u8]`, reads as `U+FFFD`.
///
/// Bytes and text are `[u8]` and `str` (`Store<str, [u8]>`, not `Store<String, Vec<u8>>`). All else has one width: integers, floats, arrays
/// of them, and `Copy` structs without padding that derive four traits of the crate `zerocopy` 0.8. (`bool`, `char`, tuples, `Option` and
/// enums are none, for not all bytes are one of them.)
///
/// ```
/// use esker::{Options, Store};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
/// #[repr(C)]
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// let places: Store<str, Point> = Options::new().memory("64MiB").in_memory()?;
/// places.put("here", &Point { x: 1, y: -1 })?;
/// places.rmw("here", |old| Point { y: 2, ..old.unwrap_or(Point { x: 0, y: 0 }) })?;
/// assert_eq!(places.get("here")?, Some(Point { x: 1, y: 2 }));
/// # Ok::<(), esker::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    note = "implemented for `[u8]` (instead of `Vec<u8>`), `str` (instead of `String`), integers, floats, arrays of them",
    note = "and every `Copy` type that derives FromBytes, IntoBytes, Immutable and KnownLayout of zerocopy 0.8"
)]
pub trait Value: sealed::Sealed {
    /// The value by itself: `u64` for `u64`, `Vec<u8>` for `[u8]`.
    type Owned: Borrow<Self>;
    /// The value as a reader sees it: `u64` for `u64`, `&[u8]` for `[u8]`.
    type View<'a>: Copy;
    /// Its width in bytes where all have the same.
    const WIDTH: Option<usize>;

    /// Its bytes.
    fn bytes(&self) -> &[u8];
    /// The view of bytes that came from [`Value::bytes`].
    fn view(bytes: &[u8]) -> Self::View<'_>;
    /// An own copy of the same.
    fn own(bytes: &[u8]) -> Self::Owned;
    /// A value of the one length that all have, if `fill` has filled it.
    #[doc(hidden)]
    fn filled(_fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Self::Owned> {
        None
    }
}

/// What a key can be: any [`Value`]. Two keys are one when their bytes are equal.
pub trait Key: Value {}

impl<T: Value + ?Sized> Key for T {}

/// The bytes of a value are asked for more than once: here are all types whose are the same each time.
mod sealed {
    pub trait Sealed {}
}

impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout> sealed::Sealed for T {}
impl sealed::Sealed for [u8] {}
impl sealed::Sealed for str {}

// The note above says it better than the bounds that are missed.
#[diagnostic::do_not_recommend]
impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout> Value for T {
    type Owned = T;
    type View<'a> = T;
    const WIDTH: Option<usize> = Some(size_of::<T>());

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline(always)]
    fn view(bytes: &[u8]) -> T {
        Self::own(bytes)
    }

    #[inline(always)]
    fn own(bytes: &[u8]) -> T {
        T::read_from_bytes(bytes).unwrap_or_else(|_| of_another_width(bytes))
    }

    #[inline(always)]
    fn filled(fill: impl FnOnce(&mut [u8]) -> bool) -> Option<T> {
        let mut value = T::new_zeroed();
        fill(value.as_mut_bytes()).then_some(value)
    }
}

/// Only damage that nobody checked for has another width.
#[cold]
fn of_another_width<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    value.as_mut_bytes().iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    value
}

impl Value for [u8] {
    type Owned = Vec<u8>;
    type View<'a> = &'a [u8];
    const WIDTH: Option<usize> = None;

    fn bytes(&self) -> &[u8] {
        self
    }

    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn own(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }
}

impl Value for str {
    type Owned = String;
    type View<'a> = &'a str;
    const WIDTH: Option<usize> = None;

    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn view(bytes: &[u8]) -> &str {
        // What a store of `str` was given; but a directory of `[u8]` may be opened as one, too.
        std::str::from_utf8(bytes).unwrap_or("\u{fffd}")
    }

    fn own(bytes: &[u8]) -> String {
        Self::view(bytes).to_owned()
    }
}
