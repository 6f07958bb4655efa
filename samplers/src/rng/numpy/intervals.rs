//! Targets of a shuffle drawn ahead: `random_interval` for one bound after the other, downwards.
//!
//! Masked rejection keeps a word when its low bits do not exceed the bound. Over a run of bounds with one mask almost
//! every word is either at most the lowest bound or above the highest one, whatever was kept before it: such words are
//! kept or dropped eight at a time. No word is drawn too many, because a word fills at most one place.

use super::bounded::{Words, mask_of};

/// Words drawn at once.
const BLOCK: usize = 2048;

/// Fills `out` with `random_interval(top)`, `random_interval(top - 1)`, …; no bound may be below 1.
pub(super) fn down(words: &mut impl Words, top: u32, out: &mut [u32]) {
    let mut block = [0u32; BLOCK];
    let mut done = 0;
    while done < out.len() {
        let max = top - done as u32;
        let mask = mask_of(u64::from(max)) as u32;
        // The mask is the same down to the bound just above half of it.
        let same = ((max - (mask >> 1)) as usize).min(out.len() - done);
        let run = &mut out[done..done + same];
        let mut filled = 0;
        while filled < same {
            let drawn = &mut block[..(same - filled).min(BLOCK)];
            words.words32(drawn);
            filled += keep(drawn, mask, max - filled as u32, &mut run[filled..]);
        }
        done += same;
    }
}

/// Keeps the words whose masked value does not exceed its bound: `max` less the words kept before it. Returns how many.
/// `out` is at least as long as `words`.
fn keep(words: &[u32], mask: u32, max: u32, out: &mut [u32]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { keep_avx2(words, mask, max, out) };
    }
    keep_plain(words, mask, max, 0, out)
}

/// Without a branch on the words: a rejected value is written too, and the next one overwrites it.
fn keep_plain(words: &[u32], mask: u32, max: u32, mut kept: usize, out: &mut [u32]) -> usize {
    for &word in words {
        let value = word & mask;
        out[kept] = value;
        kept += usize::from(value <= max - kept as u32);
    }
    kept
}

/// For each set of lanes to keep: which lanes move to the front.
#[cfg(target_arch = "x86_64")]
static FRONT: [[u32; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut to) = (0, 0);
        while lane < 8 {
            if set >> lane & 1 == 1 {
                table[set][to] = lane as u32;
                to += 1;
            }
            lane += 1;
        }
        set += 1;
    }
    table
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn keep_avx2(words: &[u32], mask: u32, max: u32, out: &mut [u32]) -> usize {
    use std::arch::x86_64::*;
    // Every bound of this call lies in (lowest, max].
    let lowest = max.saturating_sub(words.len() as u32);
    let masks = _mm256_set1_epi32(mask as i32);
    let at_most = |value, bound: u32| {
        // Unsigned: value <= bound where the smaller of both is the value.
        _mm256_cmpeq_epi32(_mm256_min_epu32(value, _mm256_set1_epi32(bound as i32)), value)
    };
    let (lanes, rest) = words.as_chunks::<8>();
    let mut kept = 0;
    for eight in lanes {
        // SAFETY: `eight` is 32 bytes, and the load needs no alignment.
        let value = _mm256_and_si256(unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) }, masks);
        let sure = _mm256_movemask_ps(_mm256_castsi256_ps(at_most(value, lowest))) as usize;
        let possible = _mm256_movemask_ps(_mm256_castsi256_ps(at_most(value, max))) as usize;
        if sure != possible {
            kept = keep_plain(eight, mask, max, kept, out);
            continue;
        }
        // SAFETY: a row of the table is 32 bytes, and the load needs no alignment.
        let order = unsafe { _mm256_loadu_si256(FRONT[sure].as_ptr().cast()) };
        let front = _mm256_permutevar8x32_epi32(value, order);
        let room = &mut out[kept..kept + 8];
        // SAFETY: `room` is 32 bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(room.as_mut_ptr().cast(), front) };
        kept += sure.count_ones() as usize;
    }
    keep_plain(rest, mask, max, kept, out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vector_form_equals_the_plain_one(
            words in proptest::collection::vec(any::<u32>(), 0..300),
            max in prop_oneof![300u32..3000, 300u32..u32::MAX],
            near in proptest::collection::vec((0usize..300, -3i64..3), 0..20),
        ) {
            let mask = mask_of(u64::from(max)) as u32;
            let mut words = words;
            // Values next to the bounds, which only the sequence decides.
            for (at, off) in near {
                if let Some(word) = words.get_mut(at) {
                    *word = (i64::from(max) + off - at as i64 / 2).clamp(0, i64::from(u32::MAX)) as u32;
                }
            }
            let (mut fast, mut plain) = (vec![0; words.len()], vec![0; words.len()]);
            let kept = keep(&words, mask, max, &mut fast);
            prop_assert_eq!(kept, keep_plain(&words, mask, max, 0, &mut plain));
            prop_assert_eq!(&fast[..kept], &plain[..kept]);
        }
    }
}
