//! `torch.Generator` on the CPU: seeding, words, `randint`, `random_`, `randperm`.
//!
//! Reproduces torch 2.15 (`at::CPUGeneratorImpl`, `randperm_cpu`, the `random_*` kernels). Bias: torch reduces by
//! plain modulo, so a draw below `range` favours small values by up to `range / 2^32` (2^64 where it takes 64 bits).
//! Memory: 2.5 kB, and four bytes an entry for a permutation (eight from 2^32 entries on).

use super::mt19937::{Mt19937, STATE_WORDS};
use super::swaps::{self, Walk};
use super::{RngError, modulo};
use crate::permute::Permutation;

/// Seed of a `torch.Generator()` nobody seeded.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// From this many entries on `randperm` uses its second algorithm (`0xffffffff / 20`).
pub const RANDPERM_SWITCH: u64 = u32::MAX as u64 / 20;

/// From this range on `randint` draws 64 bits a value. Releases before 2.10 or so switched at 2^32.
pub const RANDINT_WIDE_RANGE: u64 = 1 << 28;

/// Bytes of `Generator.get_state()`.
pub const STATE_BYTES: usize = 5056;

/// Element types of `Tensor.random_()` without bounds; torch implements it for no other type on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomDtype {
    /// `torch.bool`: 0 or 1.
    Bool,
    /// `torch.uint8`: 0 to 255.
    UInt8,
    /// `torch.int8`: 0 to 127.
    Int8,
    /// `torch.int16`: 0 to 32767.
    Int16,
    /// `torch.int32`: 0 to 2^31 - 1.
    Int32,
    /// `torch.int64`: 0 to 2^63 - 1.
    Int64,
    /// `torch.bfloat16`: 0 to 2^8.
    BFloat16,
    /// `torch.float16`: 0 to 2^11.
    Float16,
    /// `torch.float32`: 0 to 2^24.
    Float32,
    /// `torch.float64`: 0 to 2^53.
    Float64,
}

impl RandomDtype {
    /// The type by its torch name (`"int64"`), `None` for one that `random_` does not implement.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => RandomDtype::Bool,
            "uint8" => RandomDtype::UInt8,
            "int8" => RandomDtype::Int8,
            "int16" => RandomDtype::Int16,
            "int32" => RandomDtype::Int32,
            "int64" => RandomDtype::Int64,
            "bfloat16" => RandomDtype::BFloat16,
            "float16" => RandomDtype::Float16,
            "float32" => RandomDtype::Float32,
            "float64" => RandomDtype::Float64,
            _ => return None,
        })
    }
}

/// A CPU `torch.Generator`.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchGenerator {
    seed: u64,
    engine: Mt19937,
    /// Second value of a Box-Muller pair that `normal_` left behind as a double; part of torch's generator state.
    pub next_f64_normal: Option<f64>,
    /// The same for single precision (present in torch's state layout).
    pub next_f32_normal: Option<f32>,
}

impl Default for TorchGenerator {
    fn default() -> Self {
        TorchGenerator::new(DEFAULT_SEED)
    }
}

impl TorchGenerator {
    /// A generator after `manual_seed(seed)`. Only the low 32 bits reach the engine; [`Self::initial_seed`] keeps all.
    pub fn new(seed: u64) -> Self {
        TorchGenerator {
            seed,
            engine: Mt19937::new(seed as u32),
            next_f64_normal: None,
            next_f32_normal: None,
        }
    }

    /// A generator after `manual_seed(seed)` for any integer Python may hold.
    ///
    /// `seed + epoch` of torch's samplers is a Python integer too: add as i128, then call this.
    ///
    /// # Errors
    /// [`RngError::SeedOutOfRange`] outside -2^63 to 2^64 - 1, where torch raises; negative seeds wrap modulo 2^64.
    pub fn from_seed(seed: i128) -> Result<Self, RngError> {
        if seed < i128::from(i64::MIN) || seed > i128::from(u64::MAX) {
            return Err(RngError::SeedOutOfRange {
                seed: seed.to_string(),
                range: "-2^63 to 2^64 - 1",
                generator: "torch.Generator.manual_seed",
            });
        }
        Ok(TorchGenerator::new(seed as u64))
    }

    /// Seeds anew, dropping cached normals too.
    pub fn manual_seed(&mut self, seed: u64) {
        *self = TorchGenerator::new(seed);
    }

    /// All 64 bits of the last seed (`Generator.initial_seed()`).
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }

    /// The next 32 bits (`CPUGeneratorImpl::random`).
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.engine.next_u32()
    }

    /// The next 64 bits (`CPUGeneratorImpl::random64`): two words, the first one is the high half.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.engine.next_u64()
    }

    /// The next `out.len()` words, equal to as many [`Self::next_u32`] but faster.
    pub fn fill_u32(&mut self, out: &mut [u32]) {
        self.engine.fill(out);
    }

    /// One value of `torch.randint(low, high, …)`, `high` exclusive and at most 2^63 (dtype int64).
    ///
    /// An interval of all 2^64 values is what `random_(-2^63, None)` draws from.
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when the interval is empty or leaves int64.
    pub fn randint(&mut self, low: i64, high: i128) -> Result<i64, RngError> {
        let mut value = [0];
        self.randint_into(low, high, &mut value)?;
        Ok(value[0])
    }

    /// `torch.randint(low, high, (out.len(),))`, dtype int64; see [`Self::randint`].
    ///
    /// # Errors
    /// [`RngError::BadInterval`] when the interval is empty or leaves int64.
    pub fn randint_into(&mut self, low: i64, high: i128, out: &mut [i64]) -> Result<(), RngError> {
        let wide_low = i128::from(low);
        if high <= wide_low || high > 1 << 63 {
            return Err(RngError::BadInterval {
                low: wide_low,
                high,
                dtype: "int64",
            });
        }
        match u64::try_from(high - wide_low) {
            Err(_) => out
                .iter_mut()
                .for_each(|x| *x = self.next_u64().wrapping_add(low as u64) as i64),
            Ok(range) if range >= RANDINT_WIDE_RANGE => {
                out.iter_mut()
                    .for_each(|x| *x = (self.next_u64() % range).wrapping_add(low as u64) as i64);
            }
            Ok(range) => {
                out.iter_mut()
                    .for_each(|x| *x = (u64::from(self.next_u32()) % range).wrapping_add(low as u64) as i64);
            }
        }
        Ok(())
    }

    /// One value of `torch.empty((), dtype=dtype).random_()`; float types hold the same integer exactly.
    pub fn random(&mut self, dtype: RandomDtype) -> u64 {
        let narrow = |generator: &mut Self, range: u64| u64::from(generator.next_u32()) % range;
        match dtype {
            RandomDtype::Bool => u64::from(self.next_u32() & 1),
            RandomDtype::UInt8 => narrow(self, 1 << 8),
            RandomDtype::Int8 => narrow(self, 1 << 7),
            RandomDtype::Int16 => narrow(self, 1 << 15),
            RandomDtype::Int32 => narrow(self, 1 << 31),
            RandomDtype::Int64 => self.next_u64() % (1 << 63),
            RandomDtype::BFloat16 => narrow(self, (1 << 8) + 1),
            RandomDtype::Float16 => narrow(self, (1 << 11) + 1),
            RandomDtype::Float32 => narrow(self, (1 << 24) + 1),
            RandomDtype::Float64 => self.next_u64() % ((1 << 53) + 1),
        }
    }

    /// The seed a torch sampler or `DataLoader` draws for itself: `int(torch.empty((), dtype=torch.int64).random_())`.
    pub fn base_seed(&mut self) -> u64 {
        self.random(RandomDtype::Int64)
    }

    /// `torch.randperm(n, generator=self)`: n - 1 words below [`RANDPERM_SWITCH`], n double words from there on.
    ///
    /// # Errors
    /// [`RngError::OutOfMemory`] when the permutation cannot be allocated.
    pub fn randperm(&mut self, n: u64) -> Result<Permutation, RngError> {
        let mut out = Permutation::identity_list(n)?;
        match &mut out {
            Permutation::Narrow(list) if n < RANDPERM_SWITCH => self.shuffle_up(list),
            Permutation::Narrow(list) => self.shuffle_inside_out(list),
            Permutation::Wide(list) => self.shuffle_inside_out_wide(list),
            Permutation::Identity(_) => {}
        }
        Ok(out)
    }

    /// The first algorithm: each entry swaps with itself or a later one.
    fn shuffle_up(&mut self, list: &mut [u32]) {
        let n = list.len() as u32;
        swaps::run(list, Walk::Up, list.len().saturating_sub(1), |step, targets| {
            self.engine.fill(targets);
            modulo::targets_up(targets, step as u32, n);
        });
    }

    /// The second algorithm. torch writes `a[i] = a[z]; a[z] = i`; on a list that starts as 0, 1, 2, … that is a swap.
    fn shuffle_inside_out(&mut self, list: &mut [u32]) {
        swaps::run(list, Walk::Up, list.len(), |step, targets| {
            for (target, bound) in targets.iter_mut().zip(step as u64 + 1..) {
                *target = (self.engine.next_u64() % bound) as u32;
            }
        });
    }

    /// The second algorithm where targets do not fit u32.
    fn shuffle_inside_out_wide(&mut self, list: &mut [u64]) {
        for i in 0..list.len() {
            let z = self.engine.next_u64() % (i as u64 + 1);
            list.swap(i, z as usize);
        }
    }

    /// `Generator.get_state()`: seed, counters, words and cached normals in torch's layout (little endian).
    pub fn state(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(STATE_BYTES);
        let position = self.engine.position() as u32;
        let (left, next) = if self.engine.never_drawn() {
            (1, 0)
        } else {
            (625 - position, position)
        };
        out.extend(self.seed.to_le_bytes());
        out.extend(left.to_le_bytes());
        out.extend(1u32.to_le_bytes()); // seeded
        out.extend(u64::from(next).to_le_bytes());
        for &word in self.engine.words() {
            out.extend(u64::from(word).to_le_bytes());
        }
        out.extend(0f64.to_le_bytes()); // normal_x, unused
        out.extend(self.next_f64_normal.unwrap_or(0.0).to_le_bytes());
        out.extend(0f64.to_le_bytes()); // normal_rho, unused
        out.extend(u64::from(self.next_f64_normal.is_some()).to_le_bytes());
        out.extend(self.next_f32_normal.unwrap_or(0.0).to_le_bytes());
        out.extend(u32::from(self.next_f32_normal.is_some()).to_le_bytes());
        debug_assert_eq!(out.len(), STATE_BYTES);
        out
    }

    /// `Generator.set_state(state)`.
    ///
    /// # Errors
    /// [`RngError::BadState`] when the bytes are not such a state.
    pub fn from_state(state: &[u8]) -> Result<Self, RngError> {
        let bad = |problem: String| RngError::BadState { problem };
        if state.len() != STATE_BYTES {
            return Err(bad(format!(
                "{} bytes of torch generator state, {STATE_BYTES} expected",
                state.len()
            )));
        }
        let u64_at = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&state[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (left, seeded, next) = (u64_at(8) & 0xffff_ffff, u64_at(8) >> 32, u64_at(16));
        let fresh = left == 1 && next == 0;
        if seeded == 0 || next > STATE_WORDS as u64 || (!fresh && left + next != 625) {
            return Err(bad(format!(
                "torch counters left {left}, next {next}, seeded {seeded}"
            )));
        }
        let mut words = Vec::with_capacity(STATE_WORDS);
        for i in 0..STATE_WORDS {
            let word = u64_at(24 + 8 * i);
            words.push(u32::try_from(word).map_err(|_| bad(format!("word {i} is {word}, above 32 bits")))?);
        }
        let position = if fresh { STATE_WORDS } else { next as usize };
        let tail = 24 + 8 * STATE_WORDS;
        let floats = u64_at(tail + 32);
        Ok(TorchGenerator {
            seed: u64_at(0),
            engine: Mt19937::from_state(&words, position, fresh)?,
            next_f64_normal: (u64_at(tail + 24) & 0xffff_ffff != 0).then(|| f64::from_bits(u64_at(tail + 8))),
            next_f32_normal: ((floats >> 32) & 0xff != 0).then(|| f32::from_bits(floats as u32)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first algorithm as one loop.
    fn plain_small(generator: &mut TorchGenerator, n: usize) -> Vec<u32> {
        let mut list: Vec<u32> = (0..n as u32).collect();
        for i in 0..n.saturating_sub(1) {
            let z = generator.next_u32() as usize % (n - i);
            list.swap(i, i + z);
        }
        list
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn randperm_equals_the_plain_loop(
            n in prop_oneof![0usize..300, 8100usize..8300, 16300usize..16500, 0usize..200_000],
            seed: u64,
            drawn in 0usize..700,
        ) {
            let mut plain = TorchGenerator::new(seed);
            plain.fill_u32(&mut vec![0; drawn]);
            let mut fast = plain.clone();
            let expected = plain_small(&mut plain, n);
            prop_assert_eq!(fast.randperm(n as u64).unwrap(), Permutation::Narrow(expected));
            prop_assert_eq!(fast, plain);
        }
    }

    /// Storage and prefetching do not change the second algorithm; what it gives is recorded for real sizes only.
    #[test]
    fn inside_out_forms_agree() {
        for n in [0, 1, 2, 100, 8191, 8192, 8193, 30_000] {
            let (mut a, mut b, mut c) = (
                TorchGenerator::new(5),
                TorchGenerator::new(5),
                TorchGenerator::new(5),
            );
            let mut plain: Vec<u64> = vec![0; n];
            for i in 0..n {
                let z = (c.next_u64() % (i as u64 + 1)) as usize;
                plain[i] = plain[z];
                plain[z] = i as u64;
            }
            let mut narrow: Vec<u32> = (0..n as u32).collect();
            a.shuffle_inside_out(&mut narrow);
            let mut wide: Vec<u64> = (0..n as u64).collect();
            b.shuffle_inside_out_wide(&mut wide);
            assert_eq!(wide, plain);
            assert!(narrow.iter().map(|&x| u64::from(x)).eq(plain));
            assert_eq!((&a, &b), (&c, &c));
        }
    }

    /// Values of `torch.empty(5, dtype=…).random_(generator=g)` after `g.manual_seed(42)`, torch 2.15.0.
    #[test]
    fn random_of_every_dtype() {
        let draws = |dtype| {
            let mut generator = TorchGenerator::new(42);
            (0..5).map(|_| generator.random(dtype)).collect::<Vec<_>>()
        };
        assert_eq!(draws(RandomDtype::Bool), [0, 1, 0, 0, 0]);
        assert_eq!(draws(RandomDtype::Int8), [102, 51, 92, 14, 106]);
        assert_eq!(draws(RandomDtype::UInt8), [102, 179, 92, 14, 106]);
        assert_eq!(draws(RandomDtype::Float16), [426, 923, 745, 1816, 729]);
        assert_eq!(draws(RandomDtype::BFloat16), [12, 149, 201, 64, 31]);
        assert_eq!(
            draws(RandomDtype::Float32),
            [14801927, 15351016, 6423145, 16094432, 6550447]
        );
        assert_eq!(
            draws(RandomDtype::Float64),
            [
                523809042610868,
                566644413140339,
                1113164382588524,
                473600017246026,
                4739335117215546
            ]
        );
    }

    #[test]
    fn seeds_as_torch_takes_them() {
        assert_eq!(TorchGenerator::from_seed(-1).unwrap().initial_seed(), u64::MAX);
        assert_eq!(
            TorchGenerator::from_seed(i128::from(i64::MIN))
                .unwrap()
                .initial_seed(),
            1 << 63
        );
        assert!(TorchGenerator::from_seed(i128::from(i64::MIN) - 1).is_err());
        assert!(TorchGenerator::from_seed(1 << 64).is_err());
        assert_eq!(TorchGenerator::default().initial_seed(), DEFAULT_SEED);
    }

    #[test]
    fn whole_int64_range_of_randint() {
        let mut a = TorchGenerator::new(42);
        let mut b = a.clone();
        assert_eq!(
            a.randint(i64::MIN, 1 << 63).unwrap(),
            (b.next_u64() ^ (1 << 63)) as i64
        );
        assert!(a.randint(5, 5).is_err());
        assert!(a.randint(0, (1 << 63) + 1).is_err());
    }

    #[test]
    fn state_round_trip_and_bad_states() {
        let mut generator = TorchGenerator::new(3);
        assert_eq!(TorchGenerator::from_state(&generator.state()).unwrap(), generator);
        generator.next_f64_normal = Some(-0.5);
        for _ in 0..1249 {
            generator.next_u32();
            let back = TorchGenerator::from_state(&generator.state()).unwrap();
            assert_eq!(back.clone().next_u64(), generator.clone().next_u64());
            assert_eq!(back.next_f64_normal, Some(-0.5));
        }
        let mut state = generator.state();
        assert!(TorchGenerator::from_state(&state[1..]).is_err());
        state[16] = 0xff;
        state[17] = 0xff;
        assert!(TorchGenerator::from_state(&state).is_err());
    }

    #[test]
    fn randperm_refuses_what_cannot_be_allocated() {
        assert!(matches!(
            TorchGenerator::new(0).randperm(u64::MAX),
            Err(RngError::OutOfMemory { .. })
        ));
    }
}
