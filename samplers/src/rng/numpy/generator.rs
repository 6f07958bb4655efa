//! `numpy.random.Generator` over PCG64, as `default_rng(seed)` makes it.
//!
//! Reproduces numpy 2.4 (`_generator.pyx`): `random`, `integers`, `choice`, `shuffle`, `permutation`. Bias: none worth
//! naming, both its methods reject. Memory: 100 bytes, and four bytes an entry for a permutation (eight from 2^32 on).

use std::collections::HashSet;

use super::bounded::{self, Method, NumpyInt, Words};
use super::pcg64::Pcg64;
use super::seed_sequence::SeedSequence;
use crate::permute::Permutation;
use crate::rng::RngError;

/// A `numpy.random.Generator`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generator {
    bits: Pcg64,
}

impl Words for Generator {
    #[inline]
    fn word32(&mut self) -> u32 {
        self.bits.next_u32()
    }
    #[inline]
    fn word64(&mut self) -> u64 {
        self.bits.next_u64()
    }
    fn words32(&mut self, out: &mut [u32]) {
        self.bits.fill_u32(out);
    }
}

impl Generator {
    /// `default_rng(seed)`. No cut to 32 bits: 2^32 + 5 is not 5.
    pub fn default_rng(seed: u64) -> Self {
        Generator::new(Pcg64::new(&SeedSequence::new(u128::from(seed))))
    }

    /// `Generator(bit_generator)`.
    pub fn new(bits: Pcg64) -> Self {
        Generator { bits }
    }

    /// The bit generator (`Generator.bit_generator`), for its state.
    pub fn bits(&self) -> &Pcg64 {
        &self.bits
    }

    /// The bit generator, to draw raw words or to seek.
    pub fn bits_mut(&mut self) -> &mut Pcg64 {
        &mut self.bits
    }

    /// One `random()`: a double in [0, 1) of 53 bits.
    pub fn random(&mut self) -> f64 {
        (self.bits.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// One value of `random(size, dtype=np.float32)`: 24 bits of a 32-bit half.
    pub fn random_f32(&mut self) -> f32 {
        (self.bits.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// `integers(low, high, dtype=T)`, a single value.
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when the interval is empty or leaves `T`.
    pub fn integer<T: NumpyInt>(&mut self, low: i128, high: i128) -> Result<T, RngError> {
        let mut out = [T::from_bits(0)];
        bounded::fill(self, Method::Lemire, low, high, &mut out)?;
        Ok(out[0])
    }

    /// `integers(low, high, size=size, dtype=T)`. For 8- and 16-bit types and bool this is another stream than
    /// `size` single calls, because a call shares words among its values.
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when the interval is empty or leaves `T`.
    pub fn integers<T: NumpyInt>(&mut self, low: i128, high: i128, size: usize) -> Result<Vec<T>, RngError> {
        let mut out = vec![T::from_bits(0); size];
        bounded::fill(self, Method::Lemire, low, high, &mut out)?;
        Ok(out)
    }

    /// `choice(n, size=size)`: with replacement, all equally likely.
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when `n` is 0 and `size` is not.
    pub fn choice(&mut self, n: u64, size: usize) -> Result<Vec<u64>, RngError> {
        if size == 0 {
            return Ok(Vec::new());
        }
        let drawn: Vec<i64> = self.integers(0, i128::from(n), size)?;
        Ok(drawn.into_iter().map(|x| x as u64).collect())
    }

    /// `choice(len(p), size=size, p=p)`: with replacement.
    ///
    /// # Errors
    /// [`RngError::BadProbabilities`] where numpy raises on `p`.
    pub fn choice_weighted(&mut self, p: &[f64], size: usize) -> Result<Vec<u64>, RngError> {
        Self::check_probabilities(p)?;
        let cdf = cumulative(p);
        Ok((0..size).map(|_| search_right(&cdf, self.random())).collect())
    }

    /// `choice(n, size=size, replace=False)`.
    ///
    /// # Errors
    /// [`RngError::SampleTooLarge`] when `size > n`, [`RngError::OutOfMemory`] when it cannot be held.
    pub fn choice_distinct(&mut self, n: u64, size: u64) -> Result<Vec<u64>, RngError> {
        if size > n {
            return Err(RngError::SampleTooLarge { size, available: n });
        }
        let len = usize::try_from(size).map_err(|_| RngError::OutOfMemory {
            n: size,
            bytes: u128::from(size) * 8,
        })?;
        // numpy shuffles the tail of 0..n where that is worth it, and otherwise samples by Floyd's method.
        if n > 10_000 && size > n / 50 {
            let mut all = Permutation::identity_list(n)?;
            let first = (n - size).max(1);
            for i in (first..n).rev() {
                all.swap(i, bounded::lemire(self, i));
            }
            return Ok((n - size..n).map_while(|i| all.get(i)).collect());
        }
        let mut seen = HashSet::with_capacity(len);
        let mut out = Vec::with_capacity(len);
        for j in n - size..n {
            let value = bounded::lemire(self, j);
            let value = if seen.insert(value) { value } else { j };
            seen.insert(value);
            out.push(value);
        }
        for i in (1..len).rev() {
            out.swap(i, bounded::lemire(self, i as u64) as usize);
        }
        Ok(out)
    }

    /// `choice(len(p), size=size, p=p, replace=False)`.
    ///
    /// # Errors
    /// [`RngError::BadProbabilities`] where numpy raises on `p`, [`RngError::SampleTooLarge`] when fewer than `size`
    /// entries have a probability above zero.
    pub fn choice_weighted_distinct(&mut self, p: &[f64], size: usize) -> Result<Vec<u64>, RngError> {
        Self::check_probabilities(p)?;
        let available = p.iter().filter(|&&x| x > 0.0).count();
        if size > available {
            return Err(RngError::SampleTooLarge {
                size: size as u64,
                available: available as u64,
            });
        }
        let mut left = p.to_vec();
        let mut found: Vec<u64> = Vec::with_capacity(size);
        let mut taken = vec![false; p.len()];
        while found.len() < size {
            let draws: Vec<f64> = (0..size - found.len()).map(|_| self.random()).collect();
            for &i in &found {
                left[i as usize] = 0.0;
            }
            let cdf = cumulative(&left);
            for x in draws {
                let i = search_right(&cdf, x);
                if !std::mem::replace(&mut taken[i as usize], true) {
                    found.push(i);
                }
            }
        }
        Ok(found)
    }

    /// The checks of `choice(p=…)`: no NaN, none negative, a sum of 1 within the square root of double precision.
    ///
    /// # Errors
    /// [`RngError::BadProbabilities`] naming the entry.
    pub fn check_probabilities(p: &[f64]) -> Result<(), RngError> {
        let bad = |problem: String| Err(RngError::BadProbabilities { problem });
        if p.is_empty() {
            return bad("are empty".to_string());
        }
        // Kahan's sum, as numpy forms it: plain addition would refuse long lists that numpy takes.
        let (mut sum, mut lost) = (p[0], 0.0);
        for &x in &p[1..] {
            let y = x - lost;
            let t = sum + y;
            lost = (t - sum) - y;
            sum = t;
        }
        if sum.is_nan() {
            return bad("contain NaN".to_string());
        }
        if let Some((i, x)) = p.iter().enumerate().find(|(_, x)| **x < 0.0) {
            return bad(format!("must not be negative, entry {i} is {x}"));
        }
        if (sum - 1.0).abs() > f64::EPSILON.sqrt() {
            return bad(format!("must sum to 1, they sum to {sum}"));
        }
        Ok(())
    }

    /// `shuffle(x)` of a list or along the first axis of an array: masked rejection from the last index down.
    pub fn shuffle<T>(&mut self, x: &mut [T]) {
        bounded::shuffle(self, x);
    }

    /// `permutation(n)`.
    ///
    /// # Errors
    /// [`RngError::OutOfMemory`] when the permutation cannot be allocated.
    pub fn permutation(&mut self, n: u64) -> Result<Permutation, RngError> {
        let mut out = Permutation::identity_list(n)?;
        match &mut out {
            Permutation::Narrow(v) => self.shuffle(v),
            Permutation::Wide(v) => self.shuffle(v),
            Permutation::Identity(_) => {}
        }
        Ok(out)
    }
}

/// `cumsum(p)` divided by its last entry.
fn cumulative(p: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cdf: Vec<f64> = p
        .iter()
        .map(|x| {
            sum += x;
            sum
        })
        .collect();
    cdf.iter_mut().for_each(|x| *x /= sum);
    cdf
}

/// `cdf.searchsorted(x, side="right")`.
fn search_right(cdf: &[f64], x: f64) -> u64 {
    cdf.partition_point(|&c| c <= x) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rng(seed: u64) -> Generator {
        Generator::default_rng(seed)
    }

    /// `default_rng(seed).choice(len(p), size=size, p=p, replace=False)`, numpy 2.4.6.
    #[test]
    fn weighted_choice_without_replacement() {
        let p = [0.1, 0.0, 0.4, 0.2, 0.3];
        for (seed, want) in [
            (0, [3, 2, 0, 4]),
            (1, [3, 4, 2, 0]),
            (2, [2, 4, 0, 3]),
            (3, [0, 2, 4, 3]),
        ] {
            assert_eq!(
                rng(seed).choice_weighted_distinct(&p, 4).unwrap(),
                want,
                "seed {seed}"
            );
        }
        let p: Vec<f64> = (1..=20).map(|i| f64::from(i) / 210.0).collect();
        let mut generator = rng(5);
        let want = [17, 14, 10, 4, 12, 3, 19, 16, 9, 13, 18, 15, 7, 8, 11];
        assert_eq!(generator.choice_weighted_distinct(&p, 15).unwrap(), want);
        assert_eq!(generator.bits.next_u64(), 1_121_612_084_924_484_404);
        assert!(matches!(
            rng(0).choice_weighted_distinct(&[0.5, 0.5, 0.0], 3),
            Err(RngError::SampleTooLarge {
                size: 3,
                available: 2
            })
        ));
    }

    /// Both methods of `choice(n, size=k, replace=False)` around the switch between them, numpy 2.4.6: first and last
    /// values, and the word that comes next.
    #[test]
    fn choice_without_replacement_by_both_methods() {
        for (n, k, seed, first, last, next) in [
            (
                10_001,
                200,
                7,
                [3649, 416, 303, 4100],
                [2976, 550, 8702],
                14_971_145_111_915_952_302,
            ),
            (
                10_001,
                201,
                7,
                [4075, 1204, 8893, 297],
                [6841, 6250, 9449],
                12_133_543_848_756_836_169,
            ),
            (
                10_001,
                10_001,
                7,
                [778, 2883, 8813, 8465],
                [6841, 6250, 9449],
                10_080_491_664_234_054_215,
            ),
            (
                20_000,
                5000,
                1,
                [3660, 19468, 8507, 5900],
                [15101, 10235, 9463],
                863_448_872_452_020_242,
            ),
            (
                50_000,
                1001,
                3,
                [3416, 36920, 34270, 32784],
                [8971, 4282, 40575],
                7_192_450_383_256_844_773_u64,
            ),
        ] {
            let mut generator = rng(seed);
            let drawn = generator.choice_distinct(n, k).unwrap();
            assert_eq!(
                (&drawn[..4], &drawn[drawn.len() - 3..]),
                (&first[..], &last[..]),
                "{k} of {n}"
            );
            assert_eq!(generator.bits.next_u64(), next, "{k} of {n}");
        }
        assert!(rng(0).choice_distinct(3, 4).is_err());
        assert!(rng(0).choice(0, 0).unwrap().is_empty());
        assert!(rng(0).choice(0, 1).is_err());
    }

    /// `integers(low, high, size=9, dtype=T)` of seed 42 and the word that comes next, numpy 2.4.6.
    #[test]
    fn integers_of_every_type() {
        fn check<T: NumpyInt + PartialEq + std::fmt::Debug>(low: i128, high: i128, want: [T; 9], next: u64) {
            let mut generator = rng(42);
            assert_eq!(
                generator.integers::<T>(low, high, 9).unwrap(),
                want,
                "{}",
                T::DTYPE
            );
            assert_eq!(generator.bits.next_u64(), next, "{}", T::DTYPE);
        }
        let f = false;
        check(0, 2, [f, f, f, true, f, f, f, true, f], 8_095_878_257_575_067_585);
        check::<i8>(
            -5,
            100,
            [50, 10, 97, 8, 76, 99, 54, 63, 34],
            15_838_336_090_824_644_132,
        );
        check::<u8>(
            0,
            256,
            [136, 38, 217, 22, 205, 251, 33, 198, 193],
            15_838_336_090_824_644_132,
        );
        check::<i16>(
            -300,
            300,
            [-210, -247, 290, 164, 299, 92, -98, -37, -249],
            12_864_169_557_245_331_597,
        );
        check::<u16>(
            0,
            1 << 16,
            [9864, 5849, 64461, 50721, 65473, 42897, 22113, 28762, 5668],
            12_864_169_557_245_331_597,
        );
        check::<u32>(
            5,
            (1 << 32) - 3,
            [
                383329932, 3324115915, 2811363264, 1884968546, 1859786277, 3687649984, 369133713, 2995172877,
                865305070,
            ],
            17_997_055_833_233_904_524,
        );
        check::<u64>(
            3,
            1 << 63,
            [
                7138484576005690180,
                4047939128787533794,
                7919168045412322066,
                6432084778622665799,
                868632717012091128,
                8998527916616952262,
                7020274643477799481,
                7250163532461132704,
                1181639697159514252,
            ],
            8_308_154_130_757_172_590,
        );
        check::<i64>(
            -(1 << 63),
            (1 << 63) - 1,
            [
                5053597115156604551,
                -1127493779279708224,
                6614964053969868323,
                3640797520390555788,
                -7486106602830593558,
                8773683796379128715,
                4817177250100823152,
                5276955028067489599,
                -6860092642535747310,
            ],
            8_308_154_130_757_172_590,
        );
        assert!(rng(0).integers::<u8>(0, 257, 1).is_err());
        assert!(rng(0).integers::<i8>(-129, 0, 1).is_err());
        assert!(rng(0).integer::<i64>(4, 4).is_err());
    }

    /// What numpy refuses in `p`, and a sum that it still takes.
    #[test]
    fn probabilities_as_numpy_checks_them() {
        for p in [
            &[0.5, 0.4][..],
            &[0.5, 0.6, -0.1],
            &[f64::NAN, 1.0],
            &[0.5, 0.5 + 1e-7],
            &[f64::INFINITY, 0.5],
            &[],
        ] {
            assert!(rng(0).choice_weighted(p, 1).is_err(), "{p:?}");
        }
        assert!(rng(0).choice_weighted(&[0.5, 0.5 + 1e-9], 1).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn permutation_equals_the_plain_loop(
            n in prop_oneof![0usize..300, 8100usize..8300, 16300usize..16500, 0usize..200_000],
            seed: u64,
            halves in 0u32..4,
        ) {
            let mut plain = Generator::default_rng(seed);
            for _ in 0..halves {
                plain.bits.next_u32();
            }
            let mut fast = plain.clone();
            let mut expected: Vec<u32> = (0..n as u32).collect();
            for i in (1..n).rev() {
                expected.swap(i, bounded::interval(&mut plain, i as u64) as usize);
            }
            prop_assert_eq!(fast.permutation(n as u64).unwrap(), Permutation::Narrow(expected));
            prop_assert_eq!(fast, plain);
        }
    }
}
