//! MT19937, the engine that torch's CPU generator and numpy's `RandomState` share.
//!
//! Reproduces Matsumoto and Nishimura's 32-bit Mersenne Twister as torch 2.15 (`at::mt19937`) and numpy 2.4
//! (`MT19937`) run it: same seeding by one word, same block of 624 words made at once when the old one is used up.
//! Memory: 2.5 kB.

use super::RngError;

/// Words of one block.
pub const STATE_WORDS: usize = 624;
const SHIFT: usize = 397;
const MATRIX_A: u32 = 0x9908_b0df;

/// The engine: a block of raw words and how many of them were given out.
#[derive(Clone, PartialEq, Eq)]
pub struct Mt19937 {
    words: [u32; STATE_WORDS],
    /// Next word to give out; `STATE_WORDS` when the block is used up.
    position: usize,
    /// Blocks made since seeding; 0 means that `words` are the seeded ones, of which none is ever given out.
    blocks: u64,
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Mt19937 {{ position: {}, blocks: {}, .. }}",
            self.position, self.blocks
        )
    }
}

impl Mt19937 {
    /// Seeds with one word (`init_genrand`; torch `manual_seed`, numpy `RandomState(int)`).
    pub fn new(seed: u32) -> Self {
        let mut words = [0u32; STATE_WORDS];
        words[0] = seed;
        for i in 1..STATE_WORDS {
            let previous = words[i - 1];
            words[i] = 1_812_433_253u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(i as u32);
        }
        Mt19937 {
            words,
            position: STATE_WORDS,
            blocks: 0,
        }
    }

    /// Seeds with several words (`init_by_array`; numpy `RandomState(list)`). An empty key acts as `[0]`.
    pub fn from_key(key: &[u32]) -> Self {
        let key = if key.is_empty() { &[0][..] } else { key };
        let mut engine = Mt19937::new(19_650_218);
        let words = &mut engine.words;
        let (mut i, mut j) = (1, 0);
        for _ in 0..STATE_WORDS.max(key.len()) {
            let previous = words[i - 1];
            let mixed = (previous ^ (previous >> 30)).wrapping_mul(1_664_525);
            words[i] = (words[i] ^ mixed).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            j = (j + 1) % key.len();
            if i == STATE_WORDS {
                words[0] = words[STATE_WORDS - 1];
                i = 1;
            }
        }
        for _ in 0..STATE_WORDS - 1 {
            let previous = words[i - 1];
            let mixed = (previous ^ (previous >> 30)).wrapping_mul(1_566_083_941);
            words[i] = (words[i] ^ mixed).wrapping_sub(i as u32);
            i += 1;
            if i == STATE_WORDS {
                words[0] = words[STATE_WORDS - 1];
                i = 1;
            }
        }
        words[0] = 0x8000_0000;
        engine
    }

    /// Rebuilds an engine from its raw words and position.
    ///
    /// `never_drawn` says that the words are freshly seeded ones (position must then be 624).
    ///
    /// # Errors
    /// [`RngError::BadState`] when there are not 624 words or the position is out of range.
    pub fn from_state(words: &[u32], position: usize, never_drawn: bool) -> Result<Self, RngError> {
        let words: [u32; STATE_WORDS] = words.try_into().map_err(|_| RngError::BadState {
            problem: format!("{} words of MT19937 state, {STATE_WORDS} expected", words.len()),
        })?;
        if position > STATE_WORDS || (never_drawn && position != STATE_WORDS) {
            return Err(RngError::BadState {
                problem: format!("MT19937 position {position} of {STATE_WORDS}"),
            });
        }
        Ok(Mt19937 {
            words,
            position,
            blocks: u64::from(!never_drawn),
        })
    }

    /// The raw (untempered) words of the current block, as numpy's `get_state()[1]` shows them.
    pub fn words(&self) -> &[u32; STATE_WORDS] {
        &self.words
    }

    /// Words of the current block already given out, 624 right after seeding (numpy's `get_state()[2]`).
    pub fn position(&self) -> usize {
        self.position
    }

    /// True until the first draw after seeding.
    pub fn never_drawn(&self) -> bool {
        self.blocks == 0
    }

    /// The next 32 bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.position == STATE_WORDS {
            self.refill();
        }
        let word = self.words[self.position];
        self.position += 1;
        temper(word)
    }

    /// The next 64 bits: two words, the first one is the high half (both torch `random64` and numpy `next_uint64`).
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let high = u64::from(self.next_u32());
        (high << 32) | u64::from(self.next_u32())
    }

    /// Fills `out` with the next `out.len()` words, a block at a time.
    pub fn fill(&mut self, mut out: &mut [u32]) {
        while !out.is_empty() {
            if self.position == STATE_WORDS {
                self.refill();
            }
            let take = out.len().min(STATE_WORDS - self.position);
            let (now, rest) = out.split_at_mut(take);
            temper_all(&self.words[self.position..], now);
            self.position += take;
            out = rest;
        }
    }

    fn refill(&mut self) {
        twist(&mut self.words);
        self.position = 0;
        self.blocks += 1;
    }
}

/// Makes the next block in place.
fn twist(words: &mut [u32; STATE_WORDS]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { twist_avx2(words) };
        return;
    }
    twist_body(words);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn twist_avx2(words: &mut [u32; STATE_WORDS]) {
    twist_body(words);
}

/// Three loops without wrap-around, so that they vectorise: entry `i` needs the old `i`, `i + 1` and entry `i + 397`
/// modulo 624, which is old in the first loop and new in the others.
#[inline(always)]
fn twist_body(words: &mut [u32; STATE_WORDS]) {
    const HEAD: usize = STATE_WORDS - SHIFT;
    for i in 0..HEAD {
        words[i] = words[i + SHIFT] ^ mix(words[i], words[i + 1]);
    }
    for i in HEAD..STATE_WORDS - 1 {
        words[i] = words[i - HEAD] ^ mix(words[i], words[i + 1]);
    }
    words[STATE_WORDS - 1] = words[SHIFT - 1] ^ mix(words[STATE_WORDS - 1], words[0]);
}

/// Tempers as many raw words as `out` holds.
fn temper_all(raw: &[u32], out: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { temper_all_avx2(raw, out) };
        return;
    }
    temper_all_body(raw, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn temper_all_avx2(raw: &[u32], out: &mut [u32]) {
    temper_all_body(raw, out);
}

#[inline(always)]
fn temper_all_body(raw: &[u32], out: &mut [u32]) {
    for (to, &word) in out.iter_mut().zip(raw) {
        *to = temper(word);
    }
}

#[inline(always)]
fn mix(upper: u32, lower: u32) -> u32 {
    let joined = (upper & 0x8000_0000) | (lower & 0x7fff_ffff);
    (joined >> 1) ^ ((lower & 1).wrapping_neg() & MATRIX_A)
}

#[inline(always)]
fn temper(mut y: u32) -> u32 {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c_5680;
    y ^= (y << 15) & 0xefc6_0000;
    y ^ (y >> 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs for key {0x123, 0x234, 0x345, 0x456}, published with the generator by its authors.
    #[test]
    fn published_key_stream() {
        let mut engine = Mt19937::from_key(&[0x123, 0x234, 0x345, 0x456]);
        let got: Vec<u32> = (0..5).map(|_| engine.next_u32()).collect();
        assert_eq!(
            got,
            [
                1_067_595_299,
                955_945_823,
                477_289_528,
                4_107_218_783,
                4_228_976_476
            ]
        );
    }

    /// The C++ standard fixes the 10000th output of a default-seeded mt19937.
    #[test]
    fn ten_thousandth_word() {
        let mut engine = Mt19937::new(5489);
        let mut words = vec![0; 10_000];
        engine.fill(&mut words);
        assert_eq!(words[9_999], 4_123_659_995);
    }

    #[test]
    fn fill_equals_single_draws_at_any_split() {
        let mut single = Mt19937::new(7);
        let expected: Vec<u32> = (0..3000).map(|_| single.next_u32()).collect();
        for split in [0, 1, 623, 624, 625, 1248, 2999] {
            let mut engine = Mt19937::new(7);
            let mut got = vec![0; 3000];
            let (a, b) = got.split_at_mut(split);
            engine.fill(a);
            engine.fill(b);
            assert_eq!(got, expected, "split {split}");
            assert_eq!(engine, single);
        }
    }

    #[test]
    fn vector_forms_equal_the_plain_ones() {
        let engine = Mt19937::new(99);
        let (mut fast, mut plain) = (*engine.words(), *engine.words());
        for _ in 0..3 {
            twist(&mut fast);
            twist_body(&mut plain);
            assert_eq!(fast, plain);
            let (mut a, mut b) = ([0; 600], [0; 600]);
            temper_all(&fast[3..], &mut a);
            temper_all_body(&plain[3..], &mut b);
            assert_eq!(a, b);
        }
    }

    #[test]
    fn state_round_trip() {
        let mut engine = Mt19937::new(1);
        assert!(engine.never_drawn());
        engine.next_u64();
        let mut copy = Mt19937::from_state(engine.words(), engine.position(), engine.never_drawn()).unwrap();
        assert_eq!(copy.next_u32(), engine.next_u32());
        assert!(Mt19937::from_state(&[0; 3], 0, false).is_err());
        assert!(Mt19937::from_state(&[0; STATE_WORDS], 625, false).is_err());
    }
}
