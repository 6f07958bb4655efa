//! Bounded integers as numpy draws them: Lemire's method for `Generator`, masked rejection for `RandomState`.
//!
//! Reproduces `numpy/random/src/distributions/distributions.c` and `_bounded_integers.pyx` of numpy 2.4. Element
//! types below 32 bits cut one 32-bit word into pieces, low end first, and throw the rest away at the end of a call.

use super::intervals;
use crate::rng::RngError;
use crate::rng::swaps::{self, Walk};

/// Source of 32- and 64-bit words.
pub(super) trait Words {
    fn word32(&mut self) -> u32;
    fn word64(&mut self) -> u64;
    /// As many 32-bit words as `out` holds, equal to as many [`Self::word32`].
    fn words32(&mut self, out: &mut [u32]);
}

/// How a word is brought below a bound.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// `Generator.integers`.
    Lemire,
    /// `RandomState.randint`.
    Masked,
}

mod sealed {
    pub trait Sealed {}
}

/// An element type of `integers` and `randint`.
pub trait NumpyInt: Copy + sealed::Sealed {
    /// The numpy name.
    const DTYPE: &'static str;
    /// Smallest value.
    const MIN: i128;
    /// Largest value.
    const MAX: i128;
    /// Width in bits (1 for bool).
    const BITS: u32;
    /// The value with these low bits.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! numpy_int {
    ($($t:ty => $name:literal),*) => {$(
        impl sealed::Sealed for $t {}
        impl NumpyInt for $t {
            const DTYPE: &'static str = $name;
            const MIN: i128 = <$t>::MIN as i128;
            const MAX: i128 = <$t>::MAX as i128;
            const BITS: u32 = <$t>::BITS;
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }
        }
    )*};
}
numpy_int!(i8 => "int8", u8 => "uint8", i16 => "int16", u16 => "uint16", i32 => "int32", u32 => "uint32",
           i64 => "int64", u64 => "uint64");

impl sealed::Sealed for bool {}
impl NumpyInt for bool {
    const DTYPE: &'static str = "bool";
    const MIN: i128 = 0;
    const MAX: i128 = 1;
    const BITS: u32 = 1;
    fn from_bits(bits: u64) -> Self {
        bits & 1 == 1
    }
}

/// Fills `out` with draws from `[low, high)`, as one call with `size=out.len()`.
pub(super) fn fill<T: NumpyInt>(
    words: &mut impl Words,
    method: Method,
    low: i128,
    high: i128,
    out: &mut [T],
) -> Result<(), RngError> {
    if low >= high || low < T::MIN || high > T::MAX + 1 {
        return Err(RngError::BadInterval {
            low,
            high,
            dtype: T::DTYPE,
        });
    }
    // At most 2^64 - 1: both ends lie within a type of 64 bits.
    let range = (high - 1 - low) as u64;
    let offset = low as u64;
    let mut pieces = Pieces {
        word: 0,
        left: 0,
        bits: T::BITS,
    };
    for value in out {
        let drawn = match T::BITS {
            _ if range == 0 => 0,
            1 => pieces.next(words),
            8 | 16 => pieces.below(words, method, range),
            _ if range <= u64::from(u32::MAX) => u64::from(below_u32(words, method, range as u32)),
            _ => below_u64(words, method, range),
        };
        *value = T::from_bits(offset.wrapping_add(drawn));
    }
    Ok(())
}

/// A 32-bit word given out in pieces of 1, 8 or 16 bits.
struct Pieces {
    word: u32,
    left: u32,
    bits: u32,
}

impl Pieces {
    fn next(&mut self, words: &mut impl Words) -> u64 {
        if self.left == 0 {
            self.word = words.word32();
            self.left = 32 / self.bits;
        } else {
            self.word >>= self.bits;
        }
        self.left -= 1;
        u64::from(self.word) & ((1 << self.bits) - 1)
    }

    fn below(&mut self, words: &mut impl Words, method: Method, range: u64) -> u64 {
        let max = (1u64 << self.bits) - 1;
        if range == max {
            return self.next(words);
        }
        if method == Method::Masked {
            let mask = mask_of(range);
            loop {
                let value = self.next(words) & mask;
                if value <= range {
                    return value;
                }
            }
        }
        let span = range + 1;
        let mut product = self.next(words) * span;
        if product & max < span {
            let threshold = (max - range) % span;
            while product & max < threshold {
                product = self.next(words) * span;
            }
        }
        product >> self.bits
    }
}

/// A value in `[0, range]` for `range >= 1`.
pub(super) fn below_u32(words: &mut impl Words, method: Method, range: u32) -> u32 {
    if range == u32::MAX {
        return words.word32();
    }
    if method == Method::Masked {
        let mask = mask_of(u64::from(range)) as u32;
        loop {
            let value = words.word32() & mask;
            if value <= range {
                return value;
            }
        }
    }
    let span = range + 1;
    let mut product = u64::from(words.word32()) * u64::from(span);
    if (product as u32) < span {
        let threshold = (u32::MAX - range) % span;
        while (product as u32) < threshold {
            product = u64::from(words.word32()) * u64::from(span);
        }
    }
    (product >> 32) as u32
}

/// A value in `[0, range]` for `range >= 2^32`.
fn below_u64(words: &mut impl Words, method: Method, range: u64) -> u64 {
    if range == u64::MAX {
        return words.word64();
    }
    if method == Method::Masked {
        let mask = mask_of(range);
        loop {
            let value = words.word64() & mask;
            if value <= range {
                return value;
            }
        }
    }
    let span = range + 1;
    let mut product = u128::from(words.word64()) * u128::from(span);
    if (product as u64) < span {
        let threshold = (u64::MAX - range) % span;
        while (product as u64) < threshold {
            product = u128::from(words.word64()) * u128::from(span);
        }
    }
    (product >> 64) as u64
}

/// `random_bounded_uint64(0, range)` of a Generator: 32-bit words whenever the range allows.
pub(super) fn lemire(words: &mut impl Words, range: u64) -> u64 {
    match u32::try_from(range) {
        Ok(0) => 0,
        Ok(range) => u64::from(below_u32(words, Method::Lemire, range)),
        Err(_) => below_u64(words, Method::Lemire, range),
    }
}

/// `random_interval(max)`: a value in `[0, max]` by masked rejection, for both generations' shuffles.
#[inline]
pub(super) fn interval(words: &mut impl Words, max: u64) -> u64 {
    if max == 0 {
        return 0;
    }
    let mask = mask_of(max);
    loop {
        let word = if max <= u64::from(u32::MAX) {
            u64::from(words.word32())
        } else {
            words.word64()
        };
        if word & mask <= max {
            return word & mask;
        }
    }
}

/// `shuffle(list)` of both generations: from the last index down, a random one at or below it.
pub(super) fn shuffle<T>(words: &mut impl Words, list: &mut [T]) {
    let last = list.len().saturating_sub(1);
    match u32::try_from(last) {
        Ok(top) => swaps::run(list, Walk::Down, last, |step, targets| {
            intervals::down(words, top - step as u32, targets);
        }),
        Err(_) => {
            for i in (1..=last).rev() {
                list.swap(i, interval(words, i as u64) as usize);
            }
        }
    }
}

/// The smallest `2^k - 1` that is at least `max`.
#[inline]
pub(super) fn mask_of(max: u64) -> u64 {
    u64::MAX.checked_shr(max.leading_zeros()).unwrap_or(0)
}
