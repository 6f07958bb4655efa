//! Legacy `numpy.random.RandomState` over MT19937.
//!
//! Reproduces numpy 2.4 (`mtrand.pyx`). Bias: none worth naming, it rejects. Memory: 2.5 kB, and four bytes an entry
//! for a permutation (eight from 2^32 on).

use super::bounded::{self, Method, NumpyInt, Words};
use crate::permute::Permutation;
use crate::rng::RngError;
use crate::rng::mt19937::{Mt19937, STATE_WORDS};

/// A `numpy.random.RandomState`; `np.random.seed(s)` gives the process-wide one the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomState {
    engine: Mt19937,
}

impl Words for RandomState {
    #[inline]
    fn word32(&mut self) -> u32 {
        self.engine.next_u32()
    }
    #[inline]
    fn word64(&mut self) -> u64 {
        self.engine.next_u64()
    }
    fn words32(&mut self, out: &mut [u32]) {
        self.engine.fill(out);
    }
}

impl RandomState {
    /// `RandomState(seed)`.
    pub fn new(seed: u32) -> Self {
        RandomState {
            engine: Mt19937::new(seed),
        }
    }

    /// `RandomState(seed)` for any integer.
    ///
    /// # Errors
    /// [`RngError::SeedOutOfRange`] outside 0 to 2^32 - 1, where numpy raises.
    pub fn from_seed(seed: i128) -> Result<Self, RngError> {
        let seed = u32::try_from(seed).map_err(|_| RngError::SeedOutOfRange {
            seed: seed.to_string(),
            range: "0 to 2^32 - 1",
            generator: "numpy.random.RandomState",
        })?;
        Ok(RandomState::new(seed))
    }

    /// `RandomState([k0, k1, …])`.
    ///
    /// # Errors
    /// [`RngError::EmptySeed`] when the list is empty, where numpy raises.
    pub fn from_key(key: &[u32]) -> Result<Self, RngError> {
        match key {
            [] => Err(RngError::EmptySeed),
            _ => Ok(RandomState {
                engine: Mt19937::from_key(key),
            }),
        }
    }

    /// `RandomState().set_state(("MT19937", words, position))`.
    ///
    /// # Errors
    /// [`RngError::BadState`] when there are not 624 words or the position is above 624.
    pub fn from_state(words: &[u32], position: usize) -> Result<Self, RngError> {
        Ok(RandomState {
            engine: Mt19937::from_state(words, position, false)?,
        })
    }

    /// `seed(seed)`: seeds anew.
    pub fn seed(&mut self, seed: u32) {
        *self = RandomState::new(seed);
    }

    /// Raw words of the block (`get_state()[1]`).
    pub fn words(&self) -> &[u32; STATE_WORDS] {
        self.engine.words()
    }

    /// Next word of the block, 624 when it is used up (`get_state()[2]`).
    pub fn position(&self) -> usize {
        self.engine.position()
    }

    /// The raw word at the current position, word 0 if the block is used up: what HF datasets seeds an unseeded
    /// `Dataset.shuffle()` with, before it advances `np.random` by one [`Self::random_sample`].
    pub fn word_at_position(&self) -> u32 {
        self.words()
            .get(self.position())
            .copied()
            .unwrap_or(self.words()[0])
    }

    /// The next raw 32 bits (`randint(0, 2**32, dtype=np.uint32)`).
    pub fn next_u32(&mut self) -> u32 {
        self.engine.next_u32()
    }

    /// The next raw 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.engine.next_u64()
    }

    /// One `random_sample()`: a double in [0, 1) from 27 and 26 bits of two words.
    pub fn random_sample(&mut self) -> f64 {
        let a = f64::from(self.engine.next_u32() >> 5);
        let b = f64::from(self.engine.next_u32() >> 6);
        (a * 67_108_864.0 + b) / 9_007_199_254_740_992.0
    }

    /// `rand(size)`.
    pub fn rand(&mut self, size: usize) -> Vec<f64> {
        (0..size).map(|_| self.random_sample()).collect()
    }

    /// `randint(low, high, size=size, dtype=T)`: masked rejection.
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when the interval is empty or leaves `T`.
    pub fn randint<T: NumpyInt>(&mut self, low: i128, high: i128, size: usize) -> Result<Vec<T>, RngError> {
        let mut out = vec![T::from_bits(0); size];
        bounded::fill(self, Method::Masked, low, high, &mut out)?;
        Ok(out)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `randint(low, high, size=9, dtype=T)` of seed 42 and the word that comes next, numpy 2.4.6.
    #[test]
    fn randint_of_every_type() {
        fn check<T: NumpyInt + PartialEq + std::fmt::Debug>(low: i128, high: i128, want: [T; 9], next: u32) {
            let mut state = RandomState::new(42);
            assert_eq!(state.randint::<T>(low, high, 9).unwrap(), want, "{}", T::DTYPE);
            assert_eq!(state.next_u32(), next, "{}", T::DTYPE);
        }
        let f = false;
        check(0, 2, [f, true, true, f, f, true, true, f, f], 3421126067);
        check::<i8>(-5, 100, [97, 87, 92, 90, 46, 56, 70, 87, -2], 787846414);
        check::<u8>(0, 256, [102, 220, 225, 95, 179, 61, 234, 203, 92], 787846414);
        check::<i16>(
            -300,
            300,
            [-198, 135, -30, -194, -229, 21, -280, -97, -179],
            669991378,
        );
        check::<u16>(
            0,
            1 << 16,
            [56422, 24545, 15795, 52202, 860, 62306, 38158, 12021, 62570],
            3348747335,
        );
        check::<u32>(
            5,
            (1 << 32) - 3,
            [
                1608637547, 3421126072, 4083286881, 787846419, 3143890031, 3348747340, 2571218625,
                2563451929, 670094955,
            ],
            1914837113,
        );
        check::<i32>(
            -(1 << 31),
            1 << 31,
            [
                -538846106,
                1273642419,
                1935803228,
                -1359637234,
                996406378,
                1201263687,
                423734972,
                415968276,
                -1477388698,
            ],
            1914837113,
        );
        check::<u64>(
            3,
            1 << 63,
            [
                6909045637428952502,
                8314211556539077905,
                4279532810384561226,
                1819927849474927639,
                2878035897379592316,
                2877591057541362905,
                1071453510346823117,
                6754757701360545143,
                1865242737500154730,
            ],
            3041148567,
        );
    }

    /// `RandomState([1, 2, 3]).randint(0, 2**32, size=4, dtype=np.uint32)`, numpy 2.4.6.
    #[test]
    fn seeds_of_several_words() {
        let mut state = RandomState::from_key(&[1, 2, 3]).unwrap();
        assert_eq!(
            state.randint::<u32>(0, 1 << 32, 4).unwrap(),
            [2619334238, 1552691353, 3808334787, 2540200029]
        );
        assert_eq!(RandomState::from_key(&[]), Err(RngError::EmptySeed));
        assert!(RandomState::from_seed(-1).is_err() && RandomState::from_seed(1 << 32).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn permutation_equals_the_plain_loop(n in prop_oneof![0usize..300, 8100usize..8300, 0usize..100_000], seed: u32) {
            let mut plain = RandomState::new(seed);
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
