//! The two float types the CPU computes in, and vector code for both.
//!
//! Vector code is of two kinds. Matrix products use [`pulp`]'s vectors explicitly. Everything else is plain loops run
//! inside [`vectorized`], which compiles them for [`Isa`]; sums over many
//! values keep [`LANES`] partial sums combined by a fixed tree. Neither kind lets the vector width into the result:
//! the order of every sum is fixed, multiplications and additions are fused only where the source says `mul_add`.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};
use std::sync::OnceLock;

use pulp::{Simd, WithSimd};

/// Partial sums of a reduction over a row.
pub const LANES: usize = 16;

/// `f32` or `f64`.
pub trait Real:
    Copy
    + Send
    + Sync
    + Default
    + Debug
    + Display
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Sum
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Rounded from f64.
    fn of(x: f64) -> Self;
    /// Exact.
    fn f64(self) -> f64;
    /// `self · a + b` with one rounding.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Exponential, at most 2 units in the last place off (f32: results below 1.2e-38 are 0). NaN stays NaN.
    fn exp(self) -> Self;
    /// Larger of two; the second if the first is NaN.
    fn max(self, other: Self) -> Self;

    /// A vector of this type.
    type Vector<S: Simd>: Copy;
    /// Values per vector.
    fn lanes<S: Simd>() -> usize;
    /// All lanes equal.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a · b + c` per lane with one rounding.
    fn fma<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// `a + b` per lane.
    fn vector_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b` per lane.
    fn vector_sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;

    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }
}

macro_rules! shared {
    ($t:ty, $vector:ident, $splat:ident, $fma:ident, $add:ident, $sub:ident, $lanes:ident) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        #[inline(always)]
        fn of(x: f64) -> Self {
            x as $t
        }
        #[inline(always)]
        fn f64(self) -> f64 {
            self as f64
        }
        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            <$t>::mul_add(self, a, b)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            <$t>::sqrt(self)
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            if self > other { self } else { other }
        }
        type Vector<S: Simd> = S::$vector;
        #[inline(always)]
        fn lanes<S: Simd>() -> usize {
            S::$lanes
        }
        #[inline(always)]
        fn splat<S: Simd>(simd: S, x: Self) -> S::$vector {
            simd.$splat(x)
        }
        #[inline(always)]
        fn fma<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
            simd.$fma(a, b, c)
        }
        #[inline(always)]
        fn vector_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$add(a, b)
        }
        #[inline(always)]
        fn vector_sub<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$sub(a, b)
        }
    };
}

impl Real for f32 {
    shared!(f32, f32s, splat_f32s, mul_add_f32s, add_f32s, sub_f32s, F32_LANES);

    /// `2^n · p(r)` with `n = round(x / ln 2)`, `r = x - n ln 2` in two parts, p of degree 7. No branches, so that
    /// loops over it become vector code.
    #[inline(always)]
    fn exp(self) -> Self {
        // Adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
        const ROUND: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        let x = self;
        let shifted = f32::mul_add(x, std::f32::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = f32::mul_add(n, -LN2_LOW, f32::mul_add(n, -LN2_HIGH, x));
        let mut p = 1.987_569_1e-4f32;
        p = f32::mul_add(p, r, 1.398_199_9e-3);
        p = f32::mul_add(p, r, 8.333_452e-3);
        p = f32::mul_add(p, r, 4.166_579_6e-2);
        p = f32::mul_add(p, r, 1.666_666_5e-1);
        p = f32::mul_add(p, r, 0.5);
        p = f32::mul_add(p * r, r, r) + 1.0;
        // 2^n in two factors, so that n = 128 does not overflow before the product does.
        let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
        let half = bits >> 1;
        let a = f32::from_bits(((half + 127) << 23) as u32);
        let b = f32::from_bits(((bits - half + 127) << 23) as u32);
        let y = p * a * b;
        let y = if x > 88.722_84 { f32::INFINITY } else { y };
        let y = if x < -87.336_54 { 0.0 } else { y };
        if x.is_nan() { x } else { y }
    }
}

impl Real for f64 {
    shared!(f64, f64s, splat_f64s, mul_add_f64s, add_f64s, sub_f64s, F64_LANES);

    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }
}

/// The instruction set that the CPU backend is compiled for: AVX2 and FMA on x86-64, the baseline elsewhere.
#[cfg(target_arch = "x86_64")]
pub type Isa = pulp::x86::V3;
/// The instruction set that the CPU backend is compiled for: AVX2 and FMA on x86-64, the baseline elsewhere.
#[cfg(not(target_arch = "x86_64"))]
pub type Isa = pulp::Scalar;

/// The instruction set, if this machine has it.
pub fn find_isa() -> Option<Isa> {
    #[cfg(target_arch = "x86_64")]
    return pulp::x86::V3::try_new();
    #[cfg(not(target_arch = "x86_64"))]
    return Some(pulp::Scalar::new());
}

/// The instruction set.
///
/// # Panics
/// On a machine that lacks it; executors refuse to be made there.
#[inline(always)]
pub fn isa() -> Isa {
    static FOUND: OnceLock<Option<Isa>> = OnceLock::new();
    match FOUND.get_or_init(find_isa) {
        Some(isa) => *isa,
        None => unreachable!("executors are not made on such a machine"),
    }
}

/// Runs `f` compiled for [`Isa`]. `f` and what it calls must be `#[inline(always)]`.
#[inline(always)]
pub fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    struct Plain<F>(F);
    impl<R, F: FnOnce() -> R> WithSimd for Plain<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    Simd::vectorize(isa(), Plain(f))
}

/// Combines the partial sums of a reduction.
#[inline(always)]
pub fn tree<T: Real>(mut acc: [T; LANES]) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
        half /= 2;
    }
    acc[0]
}

/// `Σ a`.
#[inline(always)]
pub fn sum<T: Real>(a: &[T]) -> T {
    let mut acc = [T::ZERO; LANES];
    let mut x = a.chunks_exact(LANES);
    for x in &mut x {
        for i in 0..LANES {
            acc[i] += x[i];
        }
    }
    for (acc, &x) in acc.iter_mut().zip(x.remainder()) {
        *acc += x;
    }
    tree(acc)
}

/// `Σ a·b`.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let mut acc = [T::ZERO; LANES];
    let (mut x, mut y) = (a.chunks_exact(LANES), b[..a.len()].chunks_exact(LANES));
    for (x, y) in (&mut x).zip(&mut y) {
        for i in 0..LANES {
            acc[i] = x[i].mul_add(y[i], acc[i]);
        }
    }
    for (i, (&x, &y)) in x.remainder().iter().zip(y.remainder()).enumerate() {
        acc[i] = x.mul_add(y, acc[i]);
    }
    tree(acc)
}

/// `Σ a·b·c`, each term formed as `(a·b)·c`.
#[inline(always)]
pub fn dot3<T: Real>(a: &[T], b: &[T], c: &[T]) -> T {
    let n = a.len();
    let mut acc = [T::ZERO; LANES];
    let (mut x, mut y, mut z) = (
        a.chunks_exact(LANES),
        b[..n].chunks_exact(LANES),
        c[..n].chunks_exact(LANES),
    );
    for ((x, y), z) in (&mut x).zip(&mut y).zip(&mut z) {
        for i in 0..LANES {
            acc[i] = (x[i] * y[i]).mul_add(z[i], acc[i]);
        }
    }
    let rest = x.remainder().iter().zip(y.remainder()).zip(z.remainder());
    for (i, ((&x, &y), &z)) in rest.enumerate() {
        acc[i] = (x * y).mul_add(z, acc[i]);
    }
    tree(acc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_exp_is_within_two_units_of_the_last_place() {
        let mut worst = 0.0f64;
        let mut x = -87.3f32;
        while x < 88.7 {
            let want = f64::exp(x as f64);
            let got = Real::exp(x) as f64;
            let unit = (f32::from_bits((want as f32).to_bits() + 1) - want as f32) as f64;
            worst = worst.max((got - want).abs() / unit);
            x += 0.000_71;
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(Real::exp(0.0f32), 1.0);
        assert_eq!(Real::exp(-1e4f32), 0.0);
        assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(1e4f32), f32::INFINITY);
        assert!(Real::exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_do_not_depend_on_the_instruction_set() {
        let a: Vec<f32> = (0..517).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let b: Vec<f32> = (0..517).map(|i| ((i * 53 % 97) as f32 - 48.0) * 0.017).collect();
        for n in [0, 1, 15, 16, 17, 64, 517] {
            let (a, b) = (&a[..n], &b[..n]);
            let plain = (dot(a, b), dot3(a, b, a));
            assert_eq!(vectorized(|| (dot(a, b), dot3(a, b, a))), plain, "{n}");
        }
    }
}
