//! `numpy.random.SeedSequence`: entropy of any width mixed into a pool of four words.
//!
//! Reproduces numpy 2.4 (`numpy/random/bit_generator.pyx`), whose mixing is O'Neill's `seed_seq` design.

use crate::rng::RngError;

const POOL: usize = 4;
const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;

/// Entropy and spawn key, hashed into a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedSequence {
    entropy: Vec<u32>,
    spawn_key: Vec<u64>,
    children: u64,
    pool: [u32; POOL],
}

impl SeedSequence {
    /// `SeedSequence(entropy)` for a non-negative integer of at most 128 bits.
    pub fn new(entropy: u128) -> Self {
        SeedSequence::build(words_of(entropy), Vec::new())
    }

    /// `SeedSequence(int(text))`: a non-negative decimal integer of any width.
    ///
    /// # Errors
    /// [`RngError::EntropyNotDecimal`] when the text is something else.
    pub fn from_decimal(text: &str) -> Result<Self, RngError> {
        Ok(SeedSequence::build(decimal_words(text)?, Vec::new()))
    }

    /// `SeedSequence([int(t) for t in texts])`: the words of all entries, one after the other.
    ///
    /// # Errors
    /// [`RngError::EntropyNotDecimal`] when an entry is not a non-negative decimal integer.
    pub fn from_decimals<T: AsRef<str>>(texts: &[T]) -> Result<Self, RngError> {
        let mut words = Vec::new();
        for text in texts {
            words.extend(decimal_words(text.as_ref())?);
        }
        Ok(SeedSequence::build(words, Vec::new()))
    }

    fn build(entropy: Vec<u32>, spawn_key: Vec<u64>) -> Self {
        let mut all = entropy.clone();
        if !spawn_key.is_empty() {
            // Without this padding a spawn key could pass for entropy.
            all.resize(all.len().max(POOL), 0);
            for &key in &spawn_key {
                all.extend(words_of(u128::from(key)));
            }
        }
        SeedSequence {
            entropy,
            spawn_key,
            children: 0,
            pool: mix_entropy(&all),
        }
    }

    /// The four words everything is drawn from.
    pub fn pool(&self) -> [u32; POOL] {
        self.pool
    }

    /// The next `count` children; a later call goes on counting, as numpy's does.
    pub fn spawn(&mut self, count: u64) -> Vec<SeedSequence> {
        let first = self.children;
        self.children += count;
        (first..self.children)
            .map(|i| {
                let mut key = self.spawn_key.clone();
                key.push(i);
                SeedSequence::build(self.entropy.clone(), key)
            })
            .collect()
    }

    /// `generate_state(count)`, dtype uint32.
    pub fn generate_u32(&self, count: usize) -> Vec<u32> {
        let mut hash = INIT_B;
        (0..count)
            .map(|i| {
                let mut word = self.pool[i % POOL] ^ hash;
                hash = hash.wrapping_mul(MULT_B);
                word = word.wrapping_mul(hash);
                word ^ (word >> 16)
            })
            .collect()
    }

    /// `generate_state(count, np.uint64)`: pairs of words, the low half first.
    pub fn generate_u64(&self, count: usize) -> Vec<u64> {
        let words = self.generate_u32(2 * count);
        words
            .chunks_exact(2)
            .map(|w| u64::from(w[0]) | (u64::from(w[1]) << 32))
            .collect()
    }
}

fn mix_entropy(entropy: &[u32]) -> [u32; POOL] {
    let mut hash = INIT_A;
    let mut hashmix = |value: u32| {
        let mut value = value ^ hash;
        hash = hash.wrapping_mul(MULT_A);
        value = value.wrapping_mul(hash);
        value ^ (value >> 16)
    };
    let mix = |x: u32, y: u32| {
        let mixed = MIX_LEFT.wrapping_mul(x).wrapping_sub(MIX_RIGHT.wrapping_mul(y));
        mixed ^ (mixed >> 16)
    };
    let mut pool = [0; POOL];
    for (i, word) in pool.iter_mut().enumerate() {
        *word = hashmix(entropy.get(i).copied().unwrap_or(0));
    }
    for source in 0..POOL {
        for target in 0..POOL {
            if source != target {
                pool[target] = mix(pool[target], hashmix(pool[source]));
            }
        }
    }
    for &word in entropy.iter().skip(POOL) {
        for target in &mut pool {
            *target = mix(*target, hashmix(word));
        }
    }
    pool
}

/// Little-endian 32-bit words of an integer, at least one.
fn words_of(mut value: u128) -> Vec<u32> {
    let mut words = vec![value as u32];
    value >>= 32;
    while value > 0 {
        words.push(value as u32);
        value >>= 32;
    }
    words
}

fn decimal_words(text: &str) -> Result<Vec<u32>, RngError> {
    let bad = || RngError::EntropyNotDecimal {
        text: text.chars().take(80).collect(),
    };
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let mut words: Vec<u32> = vec![0];
    for digit in text.bytes() {
        let mut carry = u64::from(digit - b'0');
        for word in &mut words {
            let value = u64::from(*word) * 10 + carry;
            *word = value as u32;
            carry = value >> 32;
        }
        if carry > 0 {
            words.push(carry as u32);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_text_equals_integer() {
        for value in [0, 1, 42, u128::from(u32::MAX), 1 << 32, 1 << 64, u128::MAX] {
            assert_eq!(
                SeedSequence::from_decimal(&value.to_string()).unwrap(),
                SeedSequence::new(value)
            );
        }
        assert_eq!(
            SeedSequence::from_decimal("00042").unwrap(),
            SeedSequence::new(42)
        );
        for text in ["", "-1", "1.0", "0x10", " 1"] {
            assert!(SeedSequence::from_decimal(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn spawning_goes_on_counting() {
        let mut one = SeedSequence::new(42);
        let mut two = one.clone();
        let mut split = one.spawn(1);
        split.extend(one.spawn(2));
        assert_eq!(split, two.spawn(3));
    }
}
