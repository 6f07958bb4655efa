//! Exact remainders of whole chunks of 32-bit words, as torch's `randperm` takes them.

/// Turns word `k` of a chunk into `first + k + word % (n - first - k)`.
///
/// Needs `first + words.len() < n` and `n < 2^31`.
pub(super) fn targets_up(words: &mut [u32], first: u32, n: u32) {
    debug_assert!(n < 1 << 31 && first as usize + words.len() < n as usize);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { targets_up_avx2(words, first, n) };
        return;
    }
    targets_up_plain(words, first, n);
}

fn targets_up_plain(words: &mut [u32], first: u32, n: u32) {
    for (word, entry) in words.iter_mut().zip(first..) {
        *word = entry + *word % (n - entry);
    }
}

/// Division in double precision. The quotient of two 32-bit integers that is not whole lies at least 2^-32 of its
/// size below the next whole number, so rounding to 53 bits never reaches that, and cutting off gives the exact
/// integer quotient. It fits 31 bits when the divisor is at least 2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn targets_up_avx2(words: &mut [u32], first: u32, n: u32) {
    use std::arch::x86_64::*;
    // Divisors run down to `n - first - len`, at least 1.
    let (lanes, rest) = words.as_chunks_mut::<4>();
    let steps = _mm_set_epi32(3, 2, 1, 0);
    let exponent = _mm256_set1_epi64x(0x4330_0000_0000_0000);
    let mut entry = first;
    for four in lanes {
        if n - entry < 5 {
            targets_up_plain(four, entry, n);
            entry += 4;
            continue;
        }
        // SAFETY: `four` is 16 bytes, and the load needs no alignment.
        let word = unsafe { _mm_loadu_si128(four.as_ptr().cast()) };
        // 2^52 + word by setting the bits below the exponent, then minus 2^52: the exact double of a u32.
        let bits = _mm256_or_si256(_mm256_cvtepu32_epi64(word), exponent);
        let dividend = _mm256_sub_pd(_mm256_castsi256_pd(bits), _mm256_castsi256_pd(exponent));
        let entries = _mm_add_epi32(_mm_set1_epi32(entry as i32), steps);
        let divisor = _mm_sub_epi32(_mm_set1_epi32(n as i32), entries);
        let quotient = _mm256_cvttpd_epi32(_mm256_div_pd(dividend, _mm256_cvtepi32_pd(divisor)));
        let remainder = _mm_sub_epi32(word, _mm_mullo_epi32(quotient, divisor));
        let target = _mm_add_epi32(entries, remainder);
        // SAFETY: as for the load.
        unsafe { _mm_storeu_si128(four.as_mut_ptr().cast(), target) };
        entry += 4;
    }
    targets_up_plain(rest, entry, n);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_division(
            words in proptest::collection::vec(prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)], 0..70),
            first in 0u32..1 << 30,
            more in prop_oneof![1u32..70, 1u32..1 << 30],
        ) {
            let n = first + words.len() as u32 + more;
            let mut fast = words.clone();
            targets_up(&mut fast, first, n);
            let mut plain = words;
            targets_up_plain(&mut plain, first, n);
            prop_assert_eq!(fast, plain);
        }

        /// Words next to a multiple of the divisor are where a rounded quotient would go wrong.
        #[test]
        fn exact_next_to_multiples(divisor in 8u32..i32::MAX as u32, factor in any::<u32>(), off in -1i64..2) {
            let (first, n) = (i32::MAX as u32 - divisor, i32::MAX as u32);
            let mut fast: Vec<u32> = (0..4)
                .map(|lane| {
                    let divisor = divisor - lane;
                    let multiple = i64::from((u32::MAX / divisor).min(factor)) * i64::from(divisor);
                    (multiple + off).clamp(0, i64::from(u32::MAX)) as u32
                })
                .collect();
            let mut plain = fast.clone();
            targets_up(&mut fast, first, n);
            targets_up_plain(&mut plain, first, n);
            prop_assert_eq!(fast, plain);
        }
    }
}
