//! Which combinations of levels are run, and what cannot be told apart when not all of them are.
//!
//! All combinations, unless a budget allows fewer. Then: for factors of two levels a regular fraction (the last factors
//! are products of the first ones, chosen for the longest shortest word of the defining relation); otherwise a subset in
//! which levels, and pairs of levels, come as evenly as can be, picked one cell after the other without any chance.
//! What is confounded is computed from the cells themselves: effects are coded as whole numbers that sum to zero, and
//! ranks are taken over a prime field, so no rounding decides.

use serde::{Deserialize, Serialize};

use super::IsolateError;
use super::factors::Factor;

/// Most combinations of a design.
const MOST_CELLS: usize = 1 << 16;

/// How the cells were chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Every combination.
    Full,
    /// A regular fraction; each entry says which factors a later factor is the product of.
    Fraction {
        /// Index of the factor and of those it is the product of.
        generators: Vec<(usize, Vec<usize>)>,
    },
    /// An even subset.
    Subset,
}

/// Two effects that the cells do not tell apart, in whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confounded {
    /// Factors of the one: one for a main effect, two for an interaction.
    pub effect: Vec<usize>,
    /// Factors of the other.
    pub with: Vec<usize>,
    /// `aliased`: one of them is wholly contained in the other; `partly`: they overlap.
    pub kind: Overlap,
}

/// How much two effects overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// What is said of one is said of the other.
    Aliased,
    /// They are correlated.
    Partly,
}

/// The cells of a design.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Levels of each factor.
    pub sizes: Vec<usize>,
    /// Level of each factor, cell by cell; the first cell has level 0 of each.
    pub cells: Vec<Vec<usize>>,
    /// How they were chosen.
    pub choice: Choice,
    /// Main effects and two-way interactions that cannot be told apart.
    pub confounded: Vec<Confounded>,
    /// Effects that a model with all others of their order and below cannot estimate.
    pub not_estimable: Vec<Vec<usize>>,
}

impl Design {
    /// Chooses the cells.
    ///
    /// # Errors
    /// [`IsolateError::Design`]: more combinations than can be held, or a budget too small for the main effects.
    pub fn new(factors: &[Factor], budget: Option<usize>) -> Result<Self, IsolateError> {
        let sizes: Vec<usize> = factors.iter().map(|f| f.levels.len()).collect();
        Self::of_sizes(&sizes, budget)
    }

    /// As [`new`](Self::new), from the number of levels of each factor.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_sizes(sizes: &[usize], budget: Option<usize>) -> Result<Self, IsolateError> {
        let total = sizes
            .iter()
            .try_fold(1usize, |n, s| n.checked_mul(*s))
            .filter(|n| *n <= MOST_CELLS)
            .ok_or_else(|| {
                IsolateError::Design(format!("more than {MOST_CELLS} combinations; vary fewer values"))
            })?;
        let all = combinations(sizes);
        let budget = budget.unwrap_or(total);
        let needed = main_effects(sizes);
        if budget < needed.min(total) {
            return Err(IsolateError::Design(format!(
                "a budget of {budget} run(s) is too small for these factors: their main effects alone need {needed} \
                 runs; vary fewer values or raise --budget"
            )));
        }
        let (cells, choice) = if budget >= total {
            (all, Choice::Full)
        } else if sizes.iter().all(|s| *s == 2) && 1 << budget.ilog2() >= needed {
            fraction(sizes.len(), budget)
        } else {
            (subset(&all, sizes, budget), Choice::Subset)
        };
        let (confounded, not_estimable) = match choice {
            Choice::Full => (Vec::new(), Vec::new()),
            _ => confounding(&cells, sizes),
        };
        Ok(Design {
            sizes: sizes.to_vec(),
            cells,
            choice,
            confounded,
            not_estimable,
        })
    }

    /// All combinations are there.
    pub fn is_full(&self) -> bool {
        self.choice == Choice::Full
    }

    /// Index of the cell with these levels.
    pub fn cell(&self, levels: &[usize]) -> Option<usize> {
        self.cells.iter().position(|c| c == levels)
    }

    /// What is confounded, in sentences; `names` are the factors'.
    pub fn confounding_in_words(&self, names: &[&str]) -> Vec<String> {
        let name = |effect: &[usize]| effect.iter().map(|f| names[*f]).collect::<Vec<_>>().join(" x ");
        let mut out: Vec<String> = self
            .confounded
            .iter()
            .map(|c| match c.kind {
                Overlap::Aliased => format!(
                    "{} is confounded with {}: what is said of one may be the other",
                    name(&c.effect),
                    name(&c.with)
                ),
                Overlap::Partly => {
                    format!("{} and {} overlap in these runs", name(&c.effect), name(&c.with))
                }
            })
            .collect();
        let lost: Vec<String> = self.not_estimable.iter().map(|e| name(e)).collect();
        if !lost.is_empty() {
            out.push(format!(
                "not estimable beside all others from these runs: {}",
                lost.join(", ")
            ));
        }
        out
    }
}

/// All combinations, the last factor fastest.
pub fn combinations(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new()];
    for &size in sizes {
        out = out
            .iter()
            .flat_map(|cell: &Vec<usize>| {
                (0..size).map(move |level| {
                    let mut cell = cell.clone();
                    cell.push(level);
                    cell
                })
            })
            .collect();
    }
    out
}

/// The largest regular fraction of `factors` two-level factors within `budget` runs.
fn fraction(factors: usize, budget: usize) -> (Vec<Vec<usize>>, Choice) {
    let base = (budget.ilog2() as usize).min(factors);
    // A generated factor is the product of a set of base factors, as a mask; two or more, or it would be one of them.
    let mut masks: Vec<usize> = (0..base).map(|f| 1 << f).collect();
    for _ in base..factors {
        let best = (1..1usize << base)
            .filter(|m| m.count_ones() >= 2 && !masks[base..].contains(m))
            .min_by_key(|m| {
                let mut with = masks.clone();
                with.push(*m);
                let words = word_lengths(&with, base);
                let shortest = words.first().copied().unwrap_or(usize::MAX);
                let count = words.iter().filter(|w| **w == shortest).count();
                (
                    std::cmp::Reverse(shortest),
                    count,
                    std::cmp::Reverse(m.count_ones()),
                    *m,
                )
            });
        masks.push(best.unwrap_or((1 << base) - 1));
    }
    // Level 0 of every factor must be one of the cells: level = parity of the levels of what it is the product of.
    let cells = combinations(&vec![2; base])
        .into_iter()
        .map(|levels| {
            masks
                .iter()
                .map(|mask| {
                    levels
                        .iter()
                        .enumerate()
                        .filter(|(f, level)| mask >> f & 1 == 1 && **level == 1)
                        .count()
                        % 2
                })
                .collect()
        })
        .collect();
    let generators = (base..factors)
        .map(|f| (f, (0..base).filter(|b| masks[f] >> b & 1 == 1).collect()))
        .collect();
    (cells, Choice::Fraction { generators })
}

/// Lengths of the words of the defining relation, ascending.
fn word_lengths(masks: &[usize], base: usize) -> Vec<usize> {
    let generated = &masks[base..];
    let mut out: Vec<usize> = (1..1usize << generated.len())
        .map(|pick| {
            let chosen = generated.iter().enumerate().filter(|(i, _)| pick >> i & 1 == 1);
            let (count, product) = chosen.fold((0, 0), |(n, p), (_, m)| (n + 1, p ^ m));
            count + product.count_ones() as usize
        })
        .collect();
    out.sort_unstable();
    out
}

/// Numbers that the mean and the main effects are.
fn main_effects(sizes: &[usize]) -> usize {
    1 + sizes.iter().map(|s| s - 1).sum::<usize>()
}

/// Dimensions that the mean and the main effects span over some cells.
fn main_rank(cells: &[Vec<usize>], sizes: &[usize]) -> usize {
    let mut all = vec![vec![1i64; cells.len()]];
    (0..sizes.len()).for_each(|f| all.extend(columns(cells, sizes, &[f])));
    rank(&all)
}

/// Cells in which levels, then pairs of levels, come evenly; the first one has level 0 of each factor. Once no more places
/// are left than main effects are missing, only cells that tell another one apart are taken: there always is one, as all
/// cells together tell all apart.
fn subset(all: &[Vec<usize>], sizes: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let factors = sizes.len();
    let mut single: Vec<Vec<u64>> = sizes.iter().map(|s| vec![0; *s]).collect();
    let pairs: Vec<(usize, usize)> = (0..factors).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    let mut double: Vec<Vec<u64>> = pairs
        .iter()
        .map(|(a, b)| vec![0; sizes[*a] * sizes[*b]])
        .collect();
    let mut left: Vec<&Vec<usize>> = all.iter().collect();
    let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(budget);
    let needed = main_effects(sizes);
    let mut told = 0;
    while chosen.len() < budget && !left.is_empty() {
        // Adding one to a count c raises the sum of squares by 2c + 1: the smallest counts are filled first.
        let cost = |cell: &[usize]| {
            let ones: u64 = (0..factors).map(|f| single[f][cell[f]]).sum();
            let twos: u64 = pairs
                .iter()
                .zip(&double)
                .map(|((a, b), counts)| counts[cell[*a] * sizes[*b] + cell[*b]])
                .sum();
            (ones, twos)
        };
        let mut by_cost: Vec<usize> = (0..left.len()).collect();
        by_cost.sort_by_key(|i| (cost(left[*i]), *i));
        let must_tell = budget - chosen.len() <= needed - told;
        let tells = |i: &&usize| {
            let with: Vec<Vec<usize>> = chosen.iter().chain([left[**i]]).cloned().collect();
            main_rank(&with, sizes) > told
        };
        let picked = if must_tell {
            by_cost.iter().find(tells)
        } else {
            None
        };
        let Some(&at) = picked.or(by_cost.first()) else {
            break;
        };
        let cell = left.remove(at);
        for (f, level) in cell.iter().enumerate() {
            single[f][*level] += 1;
        }
        for ((a, b), counts) in pairs.iter().zip(&mut double) {
            counts[cell[*a] * sizes[*b] + cell[*b]] += 1;
        }
        chosen.push(cell.clone());
        told = main_rank(&chosen, sizes);
    }
    chosen.sort();
    chosen
}

/// Main effects and two-way interactions, as lists of factors.
pub fn effects_of(factors: usize) -> Vec<Vec<usize>> {
    let mains = (0..factors).map(|f| vec![f]);
    let twos = (0..factors).flat_map(|a| (a + 1..factors).map(move |b| vec![a, b]));
    mains.chain(twos).collect()
}

/// Columns of an effect over the cells: level `l` of a factor is the unit vector `l`, the last level is -1 throughout;
/// an interaction has the products.
pub fn columns(cells: &[Vec<usize>], sizes: &[usize], effect: &[usize]) -> Vec<Vec<i64>> {
    let coded = |factor: usize, which: usize| -> Vec<i64> {
        cells
            .iter()
            .map(|cell| match cell[factor] {
                level if level == which => 1,
                level if level + 1 == sizes[factor] => -1,
                _ => 0,
            })
            .collect()
    };
    effect.iter().fold(vec![vec![1; cells.len()]], |out, &factor| {
        out.iter()
            .flat_map(|column| {
                (0..sizes[factor] - 1).map(move |which| {
                    let other = coded(factor, which);
                    column
                        .iter()
                        .zip(&other)
                        .map(|(a, b)| a * b)
                        .collect::<Vec<i64>>()
                })
            })
            .collect()
    })
}

/// Rank of columns of small whole numbers, over the field of the prime 2^61 - 1. It equals the rank over the rationals
/// unless that prime divides a determinant of such numbers, which needs more columns than a design of this size has runs.
pub fn rank(columns: &[Vec<i64>]) -> usize {
    const P: u128 = (1 << 61) - 1;
    let mut rows: Vec<Vec<u128>> = columns
        .iter()
        .map(|c| {
            c.iter()
                .map(|v| (i128::from(*v).rem_euclid(P as i128)) as u128)
                .collect()
        })
        .collect();
    let power = |mut base: u128, mut exponent: u128| {
        let mut out = 1;
        while exponent > 0 {
            if exponent & 1 == 1 {
                out = out * base % P;
            }
            base = base * base % P;
            exponent >>= 1;
        }
        out
    };
    let (mut done, width) = (0, rows.first().map_or(0, Vec::len));
    for at in 0..width {
        let Some(pivot) = (done..rows.len()).find(|r| rows[*r][at] != 0) else {
            continue;
        };
        rows.swap(done, pivot);
        let inverse = power(rows[done][at], P - 2);
        let pivot_row = rows[done].clone();
        for row in rows.iter_mut().skip(done + 1).filter(|row| row[at] != 0) {
            let factor = row[at] * inverse % P;
            for (value, p) in row.iter_mut().zip(&pivot_row).skip(at) {
                *value = (*value + P - factor * p % P) % P;
            }
        }
        done += 1;
    }
    done
}

fn confounding(cells: &[Vec<usize>], sizes: &[usize]) -> (Vec<Confounded>, Vec<Vec<usize>>) {
    let effects = effects_of(sizes.len());
    let one = [vec![1i64; cells.len()]];
    let coded: Vec<Vec<Vec<i64>>> = effects.iter().map(|e| columns(cells, sizes, e)).collect();
    // What an effect adds to the mean.
    let span = |parts: &[&Vec<Vec<i64>>]| {
        let all: Vec<Vec<i64>> = one
            .iter()
            .chain(parts.iter().copied().flatten())
            .cloned()
            .collect();
        rank(&all) - 1
    };
    let alone: Vec<usize> = coded.iter().map(|c| span(&[c])).collect();
    let mut confounded = Vec::new();
    for (i, effect) in effects.iter().enumerate() {
        for (j, with) in effects.iter().enumerate().skip(i + 1) {
            let together = span(&[&coded[i], &coded[j]]);
            let shared = alone[i] + alone[j] - together;
            let kind = if shared > 0 && shared == alone[i].min(alone[j]) {
                Overlap::Aliased
            } else if shared > 0 || !orthogonal(&coded[i], &coded[j]) {
                Overlap::Partly
            } else {
                continue;
            };
            confounded.push(Confounded {
                effect: effect.clone(),
                with: with.clone(),
                kind,
            });
        }
    }
    // An effect is told from those of its order and below: main effects do not vanish for interactions that nobody fits.
    let up_to = |order: usize, without: Option<usize>| {
        let parts: Vec<&Vec<Vec<i64>>> = (0..effects.len())
            .filter(|&j| effects[j].len() <= order && Some(j) != without)
            .map(|j| &coded[j])
            .collect();
        span(&parts)
    };
    let not_estimable = effects
        .iter()
        .enumerate()
        .filter(|(i, effect)| {
            let freedom: usize = effect.iter().map(|f| sizes[*f] - 1).product();
            up_to(effect.len(), None) - up_to(effect.len(), Some(*i)) < freedom
        })
        .map(|(_, effect)| effect.clone())
        .collect();
    (confounded, not_estimable)
}

/// No column of one, taken about its mean, goes with one of the other.
fn orthogonal(a: &[Vec<i64>], b: &[Vec<i64>]) -> bool {
    let sum = |column: &[i64]| column.iter().map(|v| i128::from(*v)).sum::<i128>();
    a.iter().all(|x| {
        b.iter().all(|y| {
            let product: i128 = x.iter().zip(y).map(|(x, y)| i128::from(x * y)).sum();
            product * x.len() as i128 == sum(x) * sum(y)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_combinations_without_a_budget() {
        let design = Design::of_sizes(&[2, 3], None).unwrap();
        assert_eq!(design.cells.len(), 6);
        assert_eq!(design.cells[0], [0, 0]);
        assert_eq!(design.cells[5], [1, 2]);
        assert!(design.is_full() && design.confounded.is_empty());
        assert_eq!(Design::of_sizes(&[], None).unwrap().cells, [Vec::<usize>::new()]);
    }

    #[test]
    fn half_of_three_two_level_factors_is_the_textbook_one() {
        // C = AB: each main effect is aliased with the interaction of the two others, and nothing else is.
        let design = Design::of_sizes(&[2, 2, 2], Some(4)).unwrap();
        assert_eq!(design.cells, [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]);
        let mut found: Vec<_> = design
            .confounded
            .iter()
            .map(|c| (c.effect.clone(), c.with.clone(), c.kind))
            .collect();
        found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let aliased = |e: &[usize], w: &[usize]| (e.to_vec(), w.to_vec(), Overlap::Aliased);
        assert_eq!(
            found,
            [
                aliased(&[0], &[1, 2]),
                aliased(&[1], &[0, 2]),
                aliased(&[2], &[0, 1])
            ]
        );
    }

    #[test]
    fn the_best_half_of_four_has_no_main_effect_in_a_pair() {
        let design = Design::of_sizes(&[2, 2, 2, 2], Some(9)).unwrap();
        assert_eq!(design.cells.len(), 8);
        // D = ABC: pairs are aliased with pairs only.
        assert!(
            design
                .confounded
                .iter()
                .all(|c| c.effect.len() == 2 && c.with.len() == 2)
        );
        assert_eq!(design.confounded.len(), 3);
        assert_eq!(design.not_estimable.len(), 6);
    }

    #[test]
    fn subsets_are_even_and_say_what_they_lose() {
        let design = Design::of_sizes(&[3, 3, 2], Some(9)).unwrap();
        assert_eq!(design.cells.len(), 9);
        for factor in 0..2 {
            for level in 0..3 {
                assert_eq!(design.cells.iter().filter(|c| c[factor] == level).count(), 3);
            }
        }
        assert!(!design.confounded.is_empty());
        assert!(
            design.not_estimable.iter().all(|e| e.len() == 2),
            "main effects stay: {:?}",
            design.not_estimable
        );
        assert_eq!(design, Design::of_sizes(&[3, 3, 2], Some(9)).unwrap());
    }

    #[test]
    fn main_effects_are_told_apart_within_every_budget() {
        for sizes in [
            &[3, 3][..],
            &[5, 5],
            &[2, 2, 4],
            &[2, 3, 3],
            &[3, 4, 4],
            &[2, 2, 2, 3],
        ] {
            let total: usize = sizes.iter().product();
            for budget in main_effects(sizes)..total {
                let design = Design::of_sizes(sizes, Some(budget)).unwrap();
                assert_eq!(design.cells.len(), budget, "{sizes:?}");
                assert_eq!(
                    main_rank(&design.cells, sizes),
                    main_effects(sizes),
                    "{sizes:?} in {budget}"
                );
                assert!(design.cells.contains(&vec![0; sizes.len()]));
            }
        }
    }

    #[test]
    fn budgets_below_the_main_effects_are_refused() {
        let error = Design::of_sizes(&[3, 3, 2], Some(5)).unwrap_err().to_string();
        assert!(error.contains("need 6 runs"), "{error}");
        assert!(Design::of_sizes(&[1000, 1000], None).is_err());
    }

    #[test]
    fn ranks_are_exact() {
        assert_eq!(rank(&[vec![1, 1, 1], vec![1, 2, 3], vec![2, 3, 4]]), 2);
        assert_eq!(rank(&[vec![1, 0], vec![0, -1]]), 2);
        assert_eq!(rank(&[]), 0);
    }
}
