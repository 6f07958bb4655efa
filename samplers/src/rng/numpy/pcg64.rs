//! `numpy.random.PCG64`: PCG XSL RR 128/64 seeded from a [`SeedSequence`], with numpy's buffered 32-bit halves.
//!
//! Reproduces numpy 2.4; the engine itself is `rand_pcg`'s.

use rand_core::Rng;
use rand_pcg::Lcg128Xsl64;

use super::seed_sequence::SeedSequence;

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// The bit generator of `default_rng`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcg64 {
    engine: Lcg128Xsl64,
    start: (u128, u128),
    words: u128,
    half: Option<u32>,
}

impl Pcg64 {
    /// `PCG64(seed_sequence)`.
    pub fn new(seed: &SeedSequence) -> Self {
        let words = seed.generate_u64(4);
        let join = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let start = (join(words[0], words[1]), join(words[2], words[3]));
        Pcg64 {
            engine: Lcg128Xsl64::new(start.0, start.1),
            start,
            words: 0,
            half: None,
        }
    }

    /// The LCG's increment (numpy: `state["state"]["inc"]`).
    pub fn increment(&self) -> u128 {
        (self.start.1 << 1) | 1
    }

    /// The LCG's state right after seeding (numpy: `state["state"]["state"]` of a new generator).
    pub fn seeded_state(&self) -> u128 {
        let increment = self.increment();
        self.start
            .0
            .wrapping_add(increment)
            .wrapping_mul(MULTIPLIER)
            .wrapping_add(increment)
    }

    /// 64-bit words drawn since seeding. With [`Self::buffered_half`] this is the whole state of a seeded generator.
    pub fn words_drawn(&self) -> u128 {
        self.words
    }

    /// The high half of the last word, when only its low half was given out so far.
    pub fn buffered_half(&self) -> Option<u32> {
        self.half
    }

    /// Moves a generator to where `words` words were drawn since seeding and `half` is buffered, in O(log words).
    pub fn seek(&mut self, words: u128, half: Option<u32>) {
        self.engine = Lcg128Xsl64::new(self.start.0, self.start.1);
        self.engine.advance(words);
        self.words = words;
        self.half = half;
    }

    /// The next 64 bits; a buffered half stays where it is.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.words += 1;
        self.engine.next_u64()
    }

    /// The next 32 bits: the low half of a new word, then its high half.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if let Some(high) = self.half.take() {
            return high;
        }
        let word = self.next_u64();
        self.half = Some((word >> 32) as u32);
        word as u32
    }

    /// As many 32-bit words as `out` holds, equal to as many [`Self::next_u32`].
    pub fn fill_u32(&mut self, out: &mut [u32]) {
        let ready = self.half.is_some().min(!out.is_empty());
        let (first, rest) = out.split_at_mut(usize::from(ready));
        let (pairs, last) = rest.as_chunks_mut::<2>();
        first.iter_mut().for_each(|word| *word = self.next_u32());
        for pair in pairs {
            let word = self.next_u64();
            *pair = [word as u32, (word >> 32) as u32];
        }
        last.iter_mut().for_each(|word| *word = self.next_u32());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_equals_single_draws() {
        for (skip, len) in [(0, 0), (0, 1), (0, 7), (1, 0), (1, 1), (1, 2), (1, 8), (2, 9)] {
            let mut single = Pcg64::new(&SeedSequence::new(42));
            for _ in 0..skip {
                single.next_u32();
            }
            let mut bulk = single.clone();
            let mut out = vec![0; len];
            bulk.fill_u32(&mut out);
            assert_eq!(out, (0..len).map(|_| single.next_u32()).collect::<Vec<_>>());
            assert_eq!(bulk, single, "{len} words after {skip}");
        }
    }

    #[test]
    fn seek_equals_drawing() {
        let mut drawn = Pcg64::new(&SeedSequence::new(42));
        for i in 0..37u32 {
            if i % 3 == 0 {
                drawn.next_u64();
            } else {
                drawn.next_u32();
            }
            let mut sought = Pcg64::new(&SeedSequence::new(42));
            sought.seek(drawn.words_drawn(), drawn.buffered_half());
            assert_eq!(sought, drawn);
        }
    }
}
