//! Quantiles of Student's t distribution, for intervals from few replicates.
//!
//! The cumulative distribution is `1 - I(v / (v + t^2); v/2, 1/2) / 2` with the regularised incomplete beta function
//! `I`, which is summed as a continued fraction (Lentz's method); its inverse is found by halving an interval. Degrees of
//! freedom need not be whole. Relative error below 1e-9 for probabilities from 1e-9 on.

use std::f64::consts::PI;

/// Logarithm of the gamma function for `x > 0` (Lanczos' series, g = 7, nine terms).
fn ln_gamma(x: f64) -> f64 {
    const SERIES: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (PI / (PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let sum = SERIES
        .iter()
        .enumerate()
        .skip(1)
        .fold(SERIES[0], |sum, (i, c)| sum + c / (x + i as f64));
    let t = x + 7.5;
    0.5 * (2.0 * PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Regularised incomplete beta function `I(x; a, b)`.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast below the mean; above it the other tail is taken.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp() / a;
    const TINY: f64 = 1e-300;
    let away = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away(1.0 + even * d);
        c = away(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away(1.0 + odd * d);
        c = away(1.0 + odd / c);
        let step = d * c;
        fraction *= step;
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// Probability of a value above `t >= 0` with `freedom` degrees of freedom.
fn upper_tail(t: f64, freedom: f64) -> f64 {
    0.5 * incomplete_beta(freedom / (freedom + t * t), 0.5 * freedom, 0.5)
}

/// The `t` that `|T|` exceeds with probability `alpha`, for `freedom > 0` degrees of freedom: half the width of a
/// two-sided interval at confidence `1 - alpha`, in standard errors. Infinite where there is nothing to go by.
pub fn two_sided(alpha: f64, freedom: f64) -> f64 {
    if !(freedom > 0.0 && alpha > 0.0 && alpha < 1.0) {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while upper_tail(high, freedom) > alpha / 2.0 {
        low = high;
        high *= 2.0;
        if !high.is_finite() {
            return f64::INFINITY;
        }
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if upper_tail(middle, freedom) > alpha / 2.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_high_precision() {
        // From the incomplete beta function of mpmath at 30 digits.
        for (alpha, freedom, t) in [
            (0.05, 1.0, 12.706_204_736_174_705),
            (0.05, 2.0, 4.302_652_729_749_464),
            (0.05, 2.5, 3.574_654_842_003_683),
            (0.05, 10.0, 2.228_138_851_986_275),
            (0.05, 30.0, 2.042_272_456_301_238),
            (0.05, 1e6, 1.959_966_356_814_107),
            (0.01, 5.0, 4.032_142_983_555_228),
            (0.10, 3.0, 2.353_363_434_801_824),
            (0.32, 4.0, 1.134_396_637_974_046),
        ] {
            let found = two_sided(alpha, freedom);
            assert!((found / t - 1.0).abs() < 1e-9, "{alpha} {freedom}: {found} {t}");
        }
    }

    #[test]
    fn fractional_freedom_lies_between_whole_ones() {
        let (a, b, c) = (two_sided(0.05, 2.0), two_sided(0.05, 2.5), two_sided(0.05, 3.0));
        assert!(a > b && b > c);
        assert!(two_sided(0.05, 0.0).is_infinite());
    }
}
