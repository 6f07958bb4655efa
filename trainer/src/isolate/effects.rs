//! Effects with intervals: how much a level changes a response, against how much the seeds do.
//!
//! An effect is the mean difference between a level of a factor and its first level. Seeds are what repeats it: for each
//! combination of the seeds that are varied (other than the factor itself) the difference is taken between runs with the
//! same seeds, over the mean of the other factors. Pairing by seed takes out of the error whatever a seed does to both
//! sides.
//!
//! One seed varied: the differences are `n` independent ones, and the interval is Student's with `n - 1` degrees of
//! freedom. Two seeds varied, crossed (`m` data seeds by `n` init seeds): differences that share a seed are not
//! independent, and treating them as `m n` of them would make intervals too narrow. The variance of the mean is then
//! `(MS_data + MS_init) / (m n)` from the mean squares of rows and columns, with Satterthwaite's degrees of freedom: right
//! where seeds matter, and too large by the mean square of the remainder where they do not, so intervals cover at least
//! at the stated rate. A factor of L levels has L - 1 intervals that hold together (Bonferroni).
//!
//! Where not all combinations were run, differences are those of a model of main effects, fitted by least squares, with
//! its residual as the error.
//!
//! An effect is claimed (`shown`) only when its interval excludes 0 and it is larger than the spread: the standard
//! deviation of the paired differences.

use serde::{Deserialize, Serialize};

use super::design::{Design, combinations};
use super::fit::MainEffects;
use super::student;

/// A difference with its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// One factor: a main effect; two: an interaction, the difference of differences.
    pub factors: Vec<usize>,
    /// The level of each that is held against its first level.
    pub levels: Vec<usize>,
    /// Mean difference.
    pub difference: f64,
    /// Ends of the interval; none without replicates.
    pub interval: Option<(f64, f64)>,
    /// Standard deviation of the differences over the replicates; none without replicates.
    pub spread: Option<f64>,
    /// Replicates.
    pub replicates: usize,
    /// Degrees of freedom of the interval.
    pub degrees_of_freedom: Option<f64>,
    /// Every single difference is exactly 0.
    pub exactly_zero: bool,
    /// The interval excludes 0 and the difference is larger than the spread.
    pub shown: bool,
}

impl Effect {
    /// The largest size that the interval allows.
    pub fn bound(&self) -> Option<f64> {
        self.interval.map(|(low, high)| low.abs().max(high.abs()))
    }
}

/// Mean, interval and spread of differences that `rows x columns` replicates gave, row by row. One row or one column:
/// independent replicates; more: crossed seeds.
fn summary(values: &[f64], rows: usize, columns: usize, alpha: f64) -> Summary {
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n.max(1) as f64;
    let exactly_zero = n > 0 && values.iter().all(|v| *v == 0.0);
    if n < 2 {
        return Summary {
            mean,
            exactly_zero,
            ..Summary::default()
        };
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let spread = (squares / (n - 1) as f64).sqrt();
    let (variance, freedom) = if rows.min(columns) < 2 {
        (squares / (n - 1) as f64 / n as f64, (n - 1) as f64)
    } else {
        let square = |count: usize, each: usize, line: &dyn Fn(usize, usize) -> f64| {
            let sum: f64 = (0..count)
                .map(|i| {
                    let own = (0..each).map(|j| line(i, j)).sum::<f64>() / each as f64;
                    (own - mean).powi(2)
                })
                .sum();
            sum * each as f64 / (count - 1) as f64
        };
        let of_rows = square(rows, columns, &|i, j| values[i * columns + j]);
        let of_columns = square(columns, rows, &|j, i| values[i * columns + j]);
        let together = of_rows + of_columns;
        let freedom = together * together
            / (of_rows * of_rows / (rows - 1) as f64 + of_columns * of_columns / (columns - 1) as f64);
        (
            together / n as f64,
            if freedom.is_finite() { freedom } else { 1.0 },
        )
    };
    let half = student::two_sided(alpha, freedom) * variance.sqrt();
    Summary {
        mean,
        exactly_zero,
        interval: Some((mean - half, mean + half)),
        spread: Some(spread),
        freedom: Some(freedom),
    }
}

#[derive(Default)]
struct Summary {
    mean: f64,
    exactly_zero: bool,
    interval: Option<(f64, f64)>,
    spread: Option<f64>,
    freedom: Option<f64>,
}

impl Summary {
    fn effect(self, factors: Vec<usize>, levels: Vec<usize>, replicates: usize) -> Effect {
        let excludes = self.interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        let larger = self.spread.is_some_and(|s| self.mean.abs() > s);
        Effect {
            factors,
            levels,
            difference: self.mean,
            interval: self.interval,
            spread: self.spread,
            replicates,
            degrees_of_freedom: self.freedom,
            exactly_zero: self.exactly_zero,
            shown: excludes && larger,
        }
    }
}

/// What the effects of a design are computed with.
#[derive(Debug)]
pub struct Effects<'a> {
    design: &'a Design,
    seeds: &'a [bool],
    confidence: f64,
    fit: Option<MainEffects>,
}

impl<'a> Effects<'a> {
    /// `seeds[f]` says that factor `f` is a seed; `confidence` lies between 0 and 1.
    pub fn new(design: &'a Design, seeds: &'a [bool], confidence: f64) -> Self {
        Effects {
            design,
            seeds,
            confidence,
            fit: (!design.is_full()).then(|| MainEffects::new(design)),
        }
    }

    /// Main effects of every level of every factor.
    pub fn main(&self, response: &[f64]) -> Vec<Effect> {
        let sizes = &self.design.sizes;
        let all = (0..sizes.len()).flat_map(|f| (1..sizes[f]).map(move |level| (f, level)));
        all.map(|(factor, level)| {
            let alpha = (1.0 - self.confidence) / (sizes[factor] - 1) as f64;
            match &self.fit {
                Some(fit) => self.fitted(fit, response, factor, level, alpha),
                None => self.contrast(response, &[factor], &[level], alpha),
            }
        })
        .collect()
    }

    /// Two-way interactions of factors that are no seeds; none where not all combinations were run.
    pub fn interactions(&self, response: &[f64]) -> Vec<Effect> {
        if self.fit.is_some() {
            return Vec::new();
        }
        let sizes = &self.design.sizes;
        let fixed: Vec<usize> = (0..sizes.len()).filter(|f| !self.seeds[*f]).collect();
        let mut out = Vec::new();
        for (i, &a) in fixed.iter().enumerate() {
            for &b in &fixed[i + 1..] {
                let alpha = (1.0 - self.confidence) / ((sizes[a] - 1) * (sizes[b] - 1)) as f64;
                for one in 1..sizes[a] {
                    for two in 1..sizes[b] {
                        out.push(self.contrast(response, &[a, b], &[one, two], alpha));
                    }
                }
            }
        }
        out
    }

    /// Paired differences, one for each combination of the other seeds, over all combinations of levels.
    fn contrast(&self, response: &[f64], factors: &[usize], levels: &[usize], alpha: f64) -> Effect {
        let sizes = &self.design.sizes;
        let others = |seed: bool| -> Vec<usize> {
            (0..sizes.len())
                .filter(|f| self.seeds[*f] == seed && !factors.contains(f))
                .collect()
        };
        let (seeds, averaged) = (others(true), others(false));
        let lengths = |of: &[usize]| of.iter().map(|f| sizes[*f]).collect::<Vec<_>>();
        let averages = combinations(&lengths(&averaged));
        // All combinations in order: the index of a cell is its levels as digits.
        let index = |cell: &[usize]| {
            cell.iter()
                .zip(sizes)
                .fold(0usize, |at, (level, size)| at * size + level)
        };
        let values: Vec<f64> = combinations(&lengths(&seeds))
            .iter()
            .map(|draw| {
                let sum: f64 = averages
                    .iter()
                    .map(|rest| {
                        let mut cell = vec![0; sizes.len()];
                        seeds.iter().zip(draw).for_each(|(f, l)| cell[*f] = *l);
                        averaged.iter().zip(rest).for_each(|(f, l)| cell[*f] = *l);
                        difference(response, &mut cell, factors, levels, &index)
                    })
                    .sum();
                sum / averages.len() as f64
            })
            .collect();
        let rows = seeds.first().map_or(1, |f| sizes[*f]);
        let columns = values.len() / rows.max(1);
        let summary = if seeds.is_empty() {
            summary(&values[..1], 1, 1, alpha)
        } else {
            summary(&values, rows, columns, alpha)
        };
        summary.effect(factors.to_vec(), levels.to_vec(), values.len())
    }

    fn fitted(&self, fit: &MainEffects, response: &[f64], factor: usize, level: usize, alpha: f64) -> Effect {
        let none = Summary::default();
        let Some(found) = fit.difference(response, factor, level) else {
            return none.effect(vec![factor], vec![level], 0);
        };
        let first = response.first().copied().unwrap_or(0.0);
        let half = student::two_sided(alpha, found.freedom) * found.standard_error;
        let judged = found.freedom > 0.0 && self.seeds.iter().any(|s| *s);
        Summary {
            mean: found.difference,
            exactly_zero: response.iter().all(|y| *y == first),
            interval: judged.then_some((found.difference - half, found.difference + half)),
            spread: judged.then_some(found.residual * std::f64::consts::SQRT_2),
            freedom: judged.then_some(found.freedom),
        }
        .effect(vec![factor], vec![level], self.design.cells.len())
    }
}

/// The difference, or the difference of differences, that takes `factors` from level 0 to `levels`.
fn difference(
    response: &[f64],
    cell: &mut [usize],
    factors: &[usize],
    levels: &[usize],
    index: &dyn Fn(&[usize]) -> usize,
) -> f64 {
    let Some((&factor, rest)) = factors.split_first() else {
        return response[index(cell)];
    };
    cell[factor] = levels[0];
    let with = difference(response, cell, rest, &levels[1..], index);
    cell[factor] = 0;
    with - difference(response, cell, rest, &levels[1..], index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(sizes: &[usize]) -> Design {
        Design::of_sizes(sizes, None).unwrap()
    }

    #[test]
    fn differences_are_paired_by_seed() {
        // Seeds move the response by 10, the factor by about 1: unpaired, 1 would drown.
        let design = design(&[2, 3]);
        let response = [10.0, 20.0, 30.0, 11.0, 21.1, 30.9];
        let effects = Effects::new(&design, &[false, true], 0.95).main(&response);
        let order = &effects[0];
        assert!((order.difference - 1.0).abs() < 1e-9);
        assert_eq!(order.replicates, 3);
        assert_eq!(order.degrees_of_freedom, Some(2.0));
        // 0.1 / sqrt(3) * 4.302653
        let (low, high) = order.interval.unwrap();
        assert!((high - low - 2.0 * 0.1 / 3f64.sqrt() * 4.302_652_73).abs() < 1e-6);
        assert!(order.shown);
        // Seeds themselves have no replicate here, and nothing is claimed of them.
        assert!(effects[1..].iter().all(|e| e.interval.is_none() && !e.shown));
    }

    #[test]
    fn crossed_seeds_are_not_taken_for_independent() {
        // All of the difference comes with the data seed: four differences, but two data seeds.
        let design = design(&[2, 2, 2]);
        let response = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 3.0];
        let effect = &Effects::new(&design, &[false, true, true], 0.95).main(&response)[0];
        assert_eq!(effect.difference, 2.0);
        assert_eq!(effect.degrees_of_freedom, Some(1.0));
        let (low, high) = effect.interval.unwrap();
        assert!((high - 2.0 - 12.706_204_736).abs() < 1e-6 && (2.0 - low - 12.706_204_736).abs() < 1e-6);
        assert!(!effect.shown);
    }

    #[test]
    fn an_interaction_is_a_difference_of_differences() {
        let design = design(&[2, 2, 2]);
        let response = [0.0, 0.0, 1.0, 1.1, 2.0, 2.0, 7.0, 7.1];
        let effects = Effects::new(&design, &[false, false, true], 0.95).interactions(&response);
        assert_eq!(effects.len(), 1);
        assert!((effects[0].difference - 4.0).abs() < 1e-9);
    }

    #[test]
    fn effects_below_the_spread_are_not_claimed() {
        // 40 replicates: the interval excludes 0 long before the mean reaches the spread.
        let design = design(&[2, 40]);
        let noise = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
        let response: Vec<f64> = (0..80)
            .map(|i| if i < 40 { 0.0 } else { 0.5 + noise(i) })
            .collect();
        let effect = &Effects::new(&design, &[false, true], 0.95).main(&response)[0];
        assert!(effect.interval.is_some_and(|(low, _)| low > 0.0));
        assert!(!effect.shown);
    }

    #[test]
    fn nothing_is_claimed_without_replicates() {
        let design = design(&[2]);
        let effect = &Effects::new(&design, &[false], 0.95).main(&[1.0, 2.0])[0];
        assert_eq!(
            (effect.difference, effect.interval, effect.shown),
            (1.0, None, false)
        );
        let effect = &Effects::new(&design, &[false], 0.95).main(&[1.0, 1.0])[0];
        assert!(effect.exactly_zero);
    }
}
