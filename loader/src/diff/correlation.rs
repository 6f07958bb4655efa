//! Rank correlation of two orders: Kendall's tau by merge sort, Spearman's rho by ranks.
//!
//! Exact up to [`EXACT`] samples in common; beyond that over an evenly spread, fixed subset, with the standard error over
//! ten disjoint parts of it. Memory: 16 bytes a sample used.

use serde::Serialize;

/// Samples up to which everything is used.
pub const EXACT: usize = 1 << 20;
/// Parts of the subset that the error is taken over.
const PARTS: usize = 10;

/// A coefficient with its standard error, 0 where it is exact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// From -1 (reversed) over 0 (unrelated) to 1 (the same order).
    pub value: f64,
    /// Standard error of the estimate.
    pub standard_error: f64,
}

/// Both coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// Samples used.
    pub samples: u64,
    /// All samples in common were used.
    pub exact: bool,
    /// Kendall's tau.
    pub kendall_tau: Estimate,
    /// Spearman's rho.
    pub spearman_rho: Estimate,
}

/// Correlates positions: `pairs` in the sequence of the first order, each with its position in the second; `total` is how
/// many there are when these are a subset. `None` for fewer than two.
pub fn correlate(positions: &[u32], total: u64) -> Option<Correlation> {
    let exact = positions.len() as u64 == total;
    let tau = tau(positions)?;
    let rho = rho(positions)?;
    let (mut tau_error, mut rho_error) = (0.0, 0.0);
    if !exact {
        // Every tenth sample, so that each part spans the whole order.
        let parts: Vec<Vec<u32>> = (0..PARTS)
            .map(|part| positions.iter().skip(part).step_by(PARTS).copied().collect())
            .collect();
        tau_error = standard_error(parts.iter().filter_map(|part| self::tau(part)));
        rho_error = standard_error(parts.iter().filter_map(|part| self::rho(part)));
    }
    let estimate = |value, standard_error| Estimate {
        value,
        standard_error,
    };
    Some(Correlation {
        samples: positions.len() as u64,
        exact,
        kendall_tau: estimate(tau, tau_error),
        spearman_rho: estimate(rho, rho_error),
    })
}

/// Standard error of the mean over parts.
fn standard_error(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (variance / n).sqrt()
}

/// 1 - 4 · inversions / (n (n - 1)), positions being distinct.
fn tau(positions: &[u32]) -> Option<f64> {
    let n = positions.len() as f64;
    if positions.len() < 2 {
        return None;
    }
    let (mut list, mut scratch) = (positions.to_vec(), vec![0; positions.len()]);
    let inversions = sort_counting(&mut list, &mut scratch);
    Some(1.0 - 4.0 * inversions as f64 / (n * (n - 1.0)))
}

/// Sorts, and counts the pairs that stood the other way round.
fn sort_counting(list: &mut [u32], scratch: &mut [u32]) -> u64 {
    let n = list.len();
    let mut inversions = 0;
    let mut width = 1;
    while width < n {
        for start in (0..n).step_by(2 * width) {
            let (middle, end) = ((start + width).min(n), (start + 2 * width).min(n));
            let (mut i, mut j) = (start, middle);
            for slot in &mut scratch[start..end] {
                let left = j >= end || (i < middle && list[i] <= list[j]);
                if left {
                    *slot = list[i];
                    i += 1;
                } else {
                    *slot = list[j];
                    j += 1;
                    inversions += (middle - i) as u64;
                }
            }
        }
        list.copy_from_slice(scratch);
        width *= 2;
    }
    inversions
}

/// 1 - 6 · Σ d² / (n (n² - 1)) over ranks, positions being distinct.
fn rho(positions: &[u32]) -> Option<f64> {
    let n = positions.len() as f64;
    if positions.len() < 2 {
        return None;
    }
    let mut by_position: Vec<u32> = (0..positions.len() as u32).collect();
    by_position.sort_unstable_by_key(|&i| positions[i as usize]);
    let squares: u128 = by_position
        .iter()
        .enumerate()
        .map(|(rank, &i)| u128::from((rank as u64).abs_diff(u64::from(i))).pow(2))
        .sum();
    Some(1.0 - 6.0 * squares as f64 / (n * (n * n - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_those_of_the_definitions() {
        let same: Vec<u32> = (0..50).collect();
        let reversed: Vec<u32> = (0..50).rev().collect();
        for (list, value) in [(&same, 1.0), (&reversed, -1.0)] {
            let found = correlate(list, 50).expect("two or more");
            assert!(found.exact);
            assert!((found.kendall_tau.value - value).abs() < 1e-12);
            assert!((found.spearman_rho.value - value).abs() < 1e-12);
        }
        // By hand: 3 1 2 has two inversions of three pairs, Σ d² = 6.
        let found = correlate(&[30, 10, 20], 3).expect("three");
        assert!((found.kendall_tau.value - (1.0 - 4.0 * 2.0 / 6.0)).abs() < 1e-12);
        assert!((found.spearman_rho.value - (1.0 - 6.0 * 6.0 / 24.0)).abs() < 1e-12);
        assert_eq!(correlate(&[4], 1), None);
    }

    #[test]
    fn a_subset_has_an_error() {
        let list: Vec<u32> = (0..10_000u32)
            .map(|i| i.wrapping_mul(2_654_435_761) >> 8)
            .collect();
        let found = correlate(&list, 1 << 30).expect("many");
        assert!(!found.exact && found.kendall_tau.standard_error > 0.0);
        assert!(found.kendall_tau.value.abs() < 0.1, "{found:?}");
    }
}
