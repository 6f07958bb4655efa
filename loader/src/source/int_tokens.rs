//! Copies stored integers of any width into i32 token buffers, checking the range as it goes.
//!
//! One pass over the source; i32 and u32 are a plain copy with a comparison beside it. All loops vectorise;
//! on x86-64 an AVX2 build of the same code is chosen at run time. Sources need no alignment.

use std::fmt;

/// Stored integer types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum IntType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
}

impl IntType {
    /// From Arrow's bit width and sign, `None` for widths that do not exist.
    pub(crate) fn new(bits: i32, signed: bool) -> Option<Self> {
        Some(match (bits, signed) {
            (8, true) => Self::I8,
            (8, false) => Self::U8,
            (16, true) => Self::I16,
            (16, false) => Self::U16,
            (32, true) => Self::I32,
            (32, false) => Self::U32,
            (64, true) => Self::I64,
            (64, false) => Self::U64,
            _ => return None,
        })
    }

    /// Bytes per value.
    pub(crate) fn width(self) -> u64 {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// Arrow's name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::U16 => "uint16",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
        }
    }
}

impl fmt::Display for IntType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A little-endian integer as it lies in a file.
pub(super) trait Stored: Copy {
    /// The value modulo 2^32; with [`Self::beyond`] enough to check and to deliver it.
    fn low(self) -> u32;
    /// Non-zero when the value needs more than 32 bits (negative 64-bit values do).
    fn beyond(self) -> u32;
    fn exact(self) -> i128;
}

macro_rules! stored {
    ($($t:ty => |$v:ident| $beyond:expr;)*) => {$(
        impl Stored for $t {
            #[inline(always)]
            fn low(self) -> u32 { <$t>::from_le(self) as u32 }
            #[inline(always)]
            fn beyond(self) -> u32 { let $v = <$t>::from_le(self); $beyond }
            #[inline(always)]
            fn exact(self) -> i128 { i128::from(<$t>::from_le(self)) }
        }
    )*};
}

// A negative value of up to 32 bits becomes more than `i32::MAX` by sign extension: the comparison catches
// it.
stored! {
    i8 => |_v| 0;
    u8 => |_v| 0;
    i16 => |_v| 0;
    u16 => |_v| 0;
    i32 => |_v| 0;
    u32 => |_v| 0;
    i64 => |v| (v >> 32) as u32;
    u64 => |v| (v >> 32) as u32;
}

/// Copies `out.len()` values of type `int` from `from` and tells whether all are in `0..=max`.
///
/// # Safety
/// `from` must be valid for reads of `out.len() * int.width()` bytes and must not overlap `out`.
#[inline]
pub(crate) unsafe fn copy_tokens(int: IntType, from: *const u8, out: &mut [i32], max: u32) -> bool {
    debug_assert!(max <= i32::MAX as u32);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there; the caller's promise covers the reads.
        return unsafe { copy_avx2(int, from, out, max) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_any(int, from, out, max) }
}

/// # Safety
/// As [`copy_tokens`], and the machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(int: IntType, from: *const u8, out: &mut [i32], max: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_any(int, from, out, max) }
}

/// # Safety
/// As [`copy_tokens`].
#[inline(always)]
unsafe fn copy_any(int: IntType, from: *const u8, out: &mut [i32], max: u32) -> bool {
    // SAFETY: the caller's promise, for each width.
    unsafe {
        match int {
            IntType::I8 => copy_typed::<i8>(from.cast(), out, max),
            IntType::U8 => copy_typed::<u8>(from.cast(), out, max),
            IntType::I16 => copy_typed::<i16>(from.cast(), out, max),
            IntType::U16 => copy_typed::<u16>(from.cast(), out, max),
            IntType::I32 => copy_typed::<i32>(from.cast(), out, max),
            IntType::U32 => copy_typed::<u32>(from.cast(), out, max),
            IntType::I64 => copy_typed::<i64>(from.cast(), out, max),
            IntType::U64 => copy_typed::<u64>(from.cast(), out, max),
        }
    }
}

/// # Safety
/// `from` must be valid for reads of `out.len()` values, aligned or not, and must not overlap `out`.
#[inline(always)]
pub(super) unsafe fn copy_typed<T: Stored>(from: *const T, out: &mut [i32], max: u32) -> bool {
    let mut bad = 0u32;
    for (i, slot) in out.iter_mut().enumerate() {
        // SAFETY: `i` is below `out.len()`.
        let value = unsafe { from.add(i).read_unaligned() };
        let low = value.low();
        bad |= u32::from(low > max) | value.beyond();
        *slot = low as i32;
    }
    bad == 0
}

/// The first of `len` values outside `0..=max`, as (index, value): the slow look after [`copy_tokens`] said
/// no.
///
/// # Safety
/// As [`copy_tokens`] for `len` values.
pub(crate) unsafe fn first_bad(int: IntType, from: *const u8, len: usize, max: u32) -> Option<(usize, i128)> {
    (0..len).find_map(|i| {
        // SAFETY: `i` is below `len`.
        let value = unsafe { value_at(int, from, i) };
        (!(0..=i128::from(max)).contains(&value)).then_some((i, value))
    })
}

/// # Safety
/// `from` must be valid for reads of `i + 1` values.
unsafe fn value_at(int: IntType, from: *const u8, i: usize) -> i128 {
    // SAFETY: the caller's promise, for each width.
    unsafe {
        match int {
            IntType::I8 => from.cast::<i8>().add(i).read_unaligned().exact(),
            IntType::U8 => from.cast::<u8>().add(i).read_unaligned().exact(),
            IntType::I16 => from.cast::<i16>().add(i).read_unaligned().exact(),
            IntType::U16 => from.cast::<u16>().add(i).read_unaligned().exact(),
            IntType::I32 => from.cast::<i32>().add(i).read_unaligned().exact(),
            IntType::U32 => from.cast::<u32>().add(i).read_unaligned().exact(),
            IntType::I64 => from.cast::<i64>().add(i).read_unaligned().exact(),
            IntType::U64 => from.cast::<u64>().add(i).read_unaligned().exact(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(int: IntType, bytes: &[u8], n: usize, max: u32) -> (bool, Vec<i32>, Option<(usize, i128)>) {
        // One byte in front: sources are not aligned.
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(bytes);
        let mut out = vec![-1; n];
        assert_eq!(bytes.len() as u64, n as u64 * int.width());
        // SAFETY: `shifted` holds `n` values from its second byte on.
        unsafe {
            let from = shifted.as_ptr().add(1);
            let ok = copy_tokens(int, from, &mut out, max);
            let portable = copy_any(int, from, &mut out, max);
            assert_eq!(ok, portable);
            (ok, out, first_bad(int, from, n, max))
        }
    }

    macro_rules! round_trip {
        ($($t:ty => $int:expr),*) => {$(
            for n in [0usize, 1, 7, 8, 31, 33, 257] {
                let values: Vec<$t> = (0..n).map(|i| (i * 37 % 120) as $t).collect();
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                let (ok, out, bad) = check($int, &bytes, n, i32::MAX as u32);
                assert!(ok && bad.is_none());
                assert!(out.iter().zip(&values).all(|(a, b)| *a as i128 == *b as i128));
                if n > 0 {
                    let top = *values.iter().max().unwrap_or(&0) as u32;
                    assert!(check($int, &bytes, n, top).0);
                    if top > 0 {
                        let (ok, _, bad) = check($int, &bytes, n, top - 1);
                        assert!(!ok);
                        let at = values.iter().position(|v| *v as u32 == top).unwrap();
                        assert_eq!(bad, Some((at, i128::from(top))));
                    }
                    // The largest and the smallest value of the type, wherever they stand.
                    for at in [0, n / 2, n - 1] {
                        for extreme in [<$t>::MIN, <$t>::MAX] {
                            let mut values = values.clone();
                            values[at] = extreme;
                            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                            let fits = (0..=i128::from(i32::MAX)).contains(&(extreme as i128));
                            let (ok, out, bad) = check($int, &bytes, n, i32::MAX as u32);
                            assert_eq!(ok, fits, "{} {extreme}", $int);
                            assert_eq!(bad, (!fits).then_some((at, extreme as i128)));
                            if fits { assert_eq!(i128::from(out[at]), extreme as i128); }
                        }
                    }
                }
            }
        )*};
    }

    #[test]
    fn every_width_reads_the_same_and_names_the_first_bad_value() {
        round_trip!(i8 => IntType::I8, u8 => IntType::U8, i16 => IntType::I16, u16 => IntType::U16,
            i32 => IntType::I32, u32 => IntType::U32, i64 => IntType::I64, u64 => IntType::U64);
    }

    #[test]
    fn wide_values_whose_low_half_looks_fine_are_bad() {
        for value in [1i64 << 32, (5i64 << 32) | 7, -(1i64 << 32), i64::MIN, -1] {
            let (ok, _, bad) = check(IntType::I64, &value.to_le_bytes(), 1, i32::MAX as u32);
            assert!(!ok);
            assert_eq!(bad, Some((0, i128::from(value))));
        }
    }
}
