//! A model of main effects by least squares, for designs of which not all combinations were run.

use super::design::{Design, columns, rank};

/// The fitted model of a design: an orthonormal basis of its columns, and how a difference of levels is read off it.
#[derive(Debug)]
pub struct MainEffects {
    basis: Vec<Vec<f64>>,
    /// Coefficients of each orthonormal direction in the original columns (upper triangular).
    solve: Vec<Vec<f64>>,
    /// Column of a level of a factor other than the first, where it is estimable.
    column_of: Vec<Vec<Option<usize>>>,
    runs: usize,
}

/// A difference of two levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// The difference.
    pub difference: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Standard deviation of the residual.
    pub residual: f64,
    /// Degrees of freedom of the residual.
    pub freedom: f64,
}

impl MainEffects {
    /// Prepares a design. Columns are indicators of the levels other than the first.
    pub fn new(design: &Design) -> Self {
        let runs = design.cells.len();
        let mut columns: Vec<Vec<f64>> = vec![vec![1.0; runs]];
        let mut owner = vec![None];
        for (factor, &size) in design.sizes.iter().enumerate() {
            for level in 1..size {
                columns.push(
                    design
                        .cells
                        .iter()
                        .map(|c| f64::from(c[factor] == level))
                        .collect(),
                );
                owner.push(Some((factor, level)));
            }
        }
        let mut column_of: Vec<Vec<Option<usize>>> = design.sizes.iter().map(|s| vec![None; *s]).collect();
        let (mut basis, mut solve): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        for (column, owner) in columns.iter().zip(&owner) {
            let mut rest = column.clone();
            // The direction in terms of the kept columns: this column, less what the earlier directions hold of it.
            let mut terms = vec![0.0; basis.len() + 1];
            terms[basis.len()] = 1.0;
            for _ in 0..2 {
                for (direction, of) in basis.iter().zip(&solve) {
                    let along: f64 = rest.iter().zip(direction).map(|(a, b)| a * b).sum();
                    rest.iter_mut().zip(direction).for_each(|(r, d)| *r -= along * d);
                    terms.iter_mut().zip(of).for_each(|(t, o)| *t -= along * o);
                }
            }
            let length = rest.iter().map(|r| r * r).sum::<f64>().sqrt();
            if length > 1e-9 * (runs as f64).sqrt() {
                rest.iter_mut().for_each(|r| *r /= length);
                terms.iter_mut().for_each(|t| *t /= length);
                if let Some((factor, level)) = owner {
                    column_of[*factor][*level] = Some(basis.len());
                }
                basis.push(rest);
                solve.push(terms);
            }
        }
        for (factor, levels) in column_of.iter_mut().enumerate() {
            if !estimable(design, factor) {
                levels.fill(None);
            }
        }
        MainEffects {
            basis,
            solve,
            column_of,
            runs,
        }
    }

    /// Level `level` of `factor` against level 0; none where the runs cannot tell.
    pub fn difference(&self, response: &[f64], factor: usize, level: usize) -> Option<Fitted> {
        let column = self.column_of[factor][level]?;
        let along: Vec<f64> = self
            .basis
            .iter()
            .map(|d| d.iter().zip(response).map(|(d, y)| d * y).sum())
            .collect();
        let weights: Vec<f64> = self
            .solve
            .iter()
            .map(|s| s.get(column).copied().unwrap_or(0.0))
            .collect();
        let difference = weights.iter().zip(&along).map(|(w, a)| w * a).sum();
        let left: f64 = (0..self.runs)
            .map(|run| {
                let fitted: f64 = self.basis.iter().zip(&along).map(|(d, a)| d[run] * a).sum();
                (response[run] - fitted).powi(2)
            })
            .sum();
        let freedom = (self.runs - self.basis.len()) as f64;
        let residual = if freedom > 0.0 {
            (left / freedom).sqrt()
        } else {
            0.0
        };
        let length: f64 = weights.iter().map(|w| w * w).sum::<f64>().sqrt();
        Some(Fitted {
            difference,
            standard_error: residual * length,
            residual,
            freedom,
        })
    }
}

/// The other main effects leave all of this one.
fn estimable(design: &Design, factor: usize) -> bool {
    let others = |without: Option<usize>| {
        let mut all = vec![vec![1i64; design.cells.len()]];
        for f in (0..design.sizes.len()).filter(|f| Some(*f) != without) {
            all.extend(columns(&design.cells, &design.sizes, &[f]));
        }
        rank(&all)
    };
    others(None) - others(Some(factor)) == design.sizes[factor] - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_main_effects_are_read_off_a_part_of_the_combinations() {
        let design = Design::of_sizes(&[3, 2, 3], Some(9)).unwrap();
        let fit = MainEffects::new(&design);
        let (a, b, c) = ([0.0, 1.5, -2.0], [0.0, 0.25], [0.0, 10.0, 20.0]);
        let response: Vec<f64> = design
            .cells
            .iter()
            .map(|l| 3.0 + a[l[0]] + b[l[1]] + c[l[2]])
            .collect();
        for (factor, effects) in [&a[..], &b[..], &c[..]].iter().enumerate() {
            for level in 1..effects.len() {
                let found = fit.difference(&response, factor, level).unwrap();
                assert!(
                    (found.difference - effects[level]).abs() < 1e-9,
                    "{factor} {level}: {found:?}"
                );
                assert!(found.residual < 1e-9);
                assert_eq!(found.freedom, 3.0);
            }
        }
    }

    #[test]
    fn the_error_is_that_of_least_squares() {
        // Two groups of two, within-group differences of 2: s^2 = 2, standard error of the difference sqrt(2).
        let design = Design {
            sizes: vec![2, 2],
            cells: vec![vec![0, 0], vec![0, 0], vec![1, 0], vec![1, 0]],
            ..Design::of_sizes(&[2, 2], None).unwrap()
        };
        let fit = MainEffects::new(&design);
        let found = fit.difference(&[0.0, 2.0, 10.0, 12.0], 0, 1).unwrap();
        assert!((found.difference - 10.0).abs() < 1e-9);
        assert!((found.standard_error - 2f64.sqrt()).abs() < 1e-9);
        // A factor of which only one level was run.
        assert_eq!(fit.difference(&[0.0; 4], 1, 1), None);
    }
}
