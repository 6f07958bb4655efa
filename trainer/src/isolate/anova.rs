//! How the variance of a response over the cells of a design falls to factors and their interactions.
//!
//! Effects are taken one after the other: main effects in the order the factors were given, then two-way interactions;
//! each gets the sum of squares of what it adds to those before it (sequential sums of squares). Over all combinations
//! the effects are orthogonal, so the sequence changes nothing and every type of sum of squares is this one; over a part
//! of them, what two effects share goes to the earlier one. What is left is the interactions of three and more factors.

use serde::{Deserialize, Serialize};

use super::design::{Design, columns, effects_of};

/// A part of the variance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Factors: one for a main effect, two for an interaction, none for what is left.
    pub effect: Vec<usize>,
    /// Degrees of freedom.
    pub degrees_of_freedom: usize,
    /// Sum of squares.
    pub sum_of_squares: f64,
    /// Part of the total, 0 to 1; 0 when all runs are equal.
    pub share: f64,
    /// The part that an effect of nothing has in the mean: its degrees of freedom over those of all runs.
    pub by_chance: f64,
}

/// An orthonormal basis of the effects of a design.
#[derive(Clone, Debug)]
pub struct Anova {
    runs: usize,
    effects: Vec<(Vec<usize>, Vec<Vec<f64>>)>,
}

impl Anova {
    /// Prepares a design.
    pub fn new(design: &Design) -> Self {
        let runs = design.cells.len();
        let mut basis: Vec<Vec<f64>> = vec![vec![1.0 / (runs as f64).sqrt(); runs]];
        let effects = effects_of(design.sizes.len())
            .into_iter()
            .map(|effect| {
                let mut own = Vec::new();
                for column in columns(&design.cells, &design.sizes, &effect) {
                    let mut rest: Vec<f64> = column.iter().map(|v| *v as f64).collect();
                    let length = norm(&rest);
                    // Twice: the second pass takes away what rounding left of the first.
                    for _ in 0..2 {
                        for direction in &basis {
                            let along = dot(&rest, direction);
                            rest.iter_mut().zip(direction).for_each(|(r, d)| *r -= along * d);
                        }
                    }
                    let left = norm(&rest);
                    if left > 1e-9 * length {
                        rest.iter_mut().for_each(|r| *r /= left);
                        basis.push(rest.clone());
                        own.push(rest);
                    }
                }
                (effect, own)
            })
            .collect();
        Anova { runs, effects }
    }

    /// Shares of the effects, in the sequence they are taken in, and what is left.
    pub fn shares(&self, response: &[f64]) -> Vec<Share> {
        // Equal responses must give exactly nothing.
        let first = response.first().copied().unwrap_or(0.0);
        let shifted: Vec<f64> = response.iter().map(|y| y - first).collect();
        let mean = shifted.iter().sum::<f64>() / self.runs.max(1) as f64;
        let centred: Vec<f64> = shifted.iter().map(|y| y - mean).collect();
        let total = dot(&centred, &centred);
        let all = self.runs.saturating_sub(1);
        let (mut taken, mut freedom) = (0.0, 0);
        let part = |effect: Vec<usize>, degrees_of_freedom: usize, sum: f64| Share {
            effect,
            degrees_of_freedom,
            sum_of_squares: sum,
            share: if total > 0.0 { sum / total } else { 0.0 },
            by_chance: if all > 0 {
                degrees_of_freedom as f64 / all as f64
            } else {
                0.0
            },
        };
        let mut out: Vec<Share> = self
            .effects
            .iter()
            .map(|(effect, own)| {
                let sum: f64 = own.iter().map(|d| dot(&centred, d).powi(2)).sum();
                taken += sum;
                freedom += own.len();
                part(effect.clone(), own.len(), sum)
            })
            .collect();
        let left = all.saturating_sub(freedom);
        if left > 0 {
            out.push(part(Vec::new(), left, (total - taken).max(0.0)));
        }
        out
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_full_design_are_those_of_the_means() {
        let design = Design::of_sizes(&[2, 3], None).unwrap();
        // Rows 0 and 1 differ by 6, columns by 0, 1, 5; no interaction.
        let response = [1.0, 2.0, 6.0, 7.0, 8.0, 12.0];
        let shares = Anova::new(&design).shares(&response);
        let sums: Vec<f64> = shares.iter().map(|s| s.sum_of_squares).collect();
        assert!((sums[0] - 54.0).abs() < 1e-9, "{sums:?}");
        assert!((sums[1] - 28.0).abs() < 1e-9, "{sums:?}");
        assert!(sums[2] < 1e-9);
        assert_eq!(shares.len(), 3);
        assert!((shares.iter().map(|s| s.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(
            shares.iter().map(|s| s.degrees_of_freedom).collect::<Vec<_>>(),
            [1, 2, 2]
        );
    }

    #[test]
    fn equal_runs_have_no_variance_at_all() {
        let design = Design::of_sizes(&[2, 2, 2], None).unwrap();
        for share in Anova::new(&design).shares(&[0.1; 8]) {
            assert_eq!((share.sum_of_squares, share.share), (0.0, 0.0));
        }
    }

    #[test]
    fn a_fraction_gives_what_it_shares_to_the_earlier_effect() {
        let design = Design::of_sizes(&[2, 2, 2], Some(4)).unwrap();
        let shares = Anova::new(&design).shares(&[0.0, 1.0, 2.0, 3.0]);
        let freedom: Vec<usize> = shares.iter().map(|s| s.degrees_of_freedom).collect();
        assert_eq!(freedom, [1, 1, 1, 0, 0, 0]);
    }
}
