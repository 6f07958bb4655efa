//! Mixing map-style datasets: `interleave_datasets` of Hugging Face `Dataset`s.
//!
//! Reproduces datasets 5.2.0 (`_interleave_map_style_datasets`). Sources of an `IterableDataset` stop elsewhere in some
//! cases: that is [`crate::iterable`]. Bias: with probabilities, the sequence of sources is numpy's weighted `choice`
//! in blocks of 1000; within a source the rows keep their order, and under `all_exhausted` they start over.
//! Memory: none besides the list the caller makes.

use serde::{Deserialize, Serialize};

use crate::rng::numpy::Generator;
use crate::spec::Seed;

/// Draws of one call of `Generator.choice`, in both kinds of mix.
pub(crate) const DRAWS_AT_ONCE: usize = 1000;

/// When a mix ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppingStrategy {
    /// As soon as one source has given all its rows.
    #[default]
    FirstExhausted,
    /// As soon as every source has given all its rows at least once; sources start over until then.
    AllExhausted,
    /// When every row of every source has been given exactly once.
    AllExhaustedWithoutReplacement,
}

/// How sources alternate, and when the mix ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interleave {
    /// Chance of each source at every row; without it the sources take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probabilities: Option<Vec<f64>>,
    /// Seed of the draws; belongs to `probabilities`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// When the mix ends.
    #[serde(default)]
    pub stopping_strategy: StoppingStrategy,
}

impl Interleave {
    /// Checks what can be seen without the sources' lengths.
    ///
    /// # Errors
    /// Says what is wrong, as the end of a sentence.
    pub fn check(&self, sources: usize) -> Result<(), String> {
        if sources == 0 {
            return Err("there is no source to interleave".to_string());
        }
        let Some(p) = &self.probabilities else {
            return match self.seed {
                None => Ok(()),
                Some(_) => Err("`seed` has no effect without `probabilities`: leave it out".to_string()),
            };
        };
        if p.len() != sources {
            return Err(format!("{} `probabilities` for {sources} sources", p.len()));
        }
        match self.seed {
            None => {
                return Err(
                    "`probabilities` need a `seed`: without one the package draws another mix each time"
                        .to_string(),
                );
            }
            Some(seed) => seed.numpy().map_err(|e| e.to_string())?,
        };
        Generator::check_probabilities(p).map_err(|e| e.to_string())?;
        if self.stopping_strategy != StoppingStrategy::FirstExhausted
            && let Some(i) = p.iter().position(|x| *x == 0.0)
        {
            return Err(format!(
                "source {i} has probability 0, so it is never exhausted and `{}` would never end",
                self.stopping_strategy.name()
            ));
        }
        Ok(())
    }

    /// Number of rows of the mix of sources of these lengths.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub fn len(&self, lengths: &[u64]) -> Result<u64, String> {
        self.check(lengths.len())?;
        let count = lengths.len() as u64;
        let product = |each: u64| {
            each.checked_mul(count)
                .ok_or_else(|| "the mix has more than 2^64 rows".to_string())
        };
        match (&self.probabilities, self.stopping_strategy) {
            (None, StoppingStrategy::FirstExhausted) => product(lengths.iter().copied().min().unwrap_or(0)),
            (None, StoppingStrategy::AllExhausted) => {
                refuse_empty(lengths, |_| true)?;
                product(lengths.iter().copied().max().unwrap_or(0))
            }
            (_, StoppingStrategy::AllExhaustedWithoutReplacement) => {
                if let Some(p) = &self.probabilities {
                    refuse_empty(lengths, |i| p[i] > 0.0)?;
                }
                let sum = lengths.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
                sum.ok_or_else(|| "the mix has more than 2^64 rows".to_string())
            }
            (Some(_), _) => {
                let mut rows = 0;
                self.visit(lengths, |_, _| rows += 1)?;
                Ok(rows)
            }
        }
    }

    /// Calls `row(source, row of that source)` for every row of the mix, in order.
    ///
    /// # Errors
    /// Says what is wrong, as the end of a sentence: what [`Self::check`] finds, or an empty source where the package
    /// raises or would take another source's row for its own.
    pub fn visit(&self, lengths: &[u64], mut row: impl FnMut(usize, u64)) -> Result<(), String> {
        self.check(lengths.len())?;
        match (&self.probabilities, self.seed) {
            (Some(p), Some(seed)) => {
                let seed = seed.numpy().map_err(|e| e.to_string())?;
                self.visit_drawn(lengths, p, Generator::default_rng(seed), row)
            }
            _ => {
                if self.stopping_strategy == StoppingStrategy::AllExhausted {
                    refuse_empty(lengths, |_| true)?;
                }
                let longest = lengths.iter().copied().max().unwrap_or(0);
                let rounds = match self.stopping_strategy {
                    StoppingStrategy::FirstExhausted => lengths.iter().copied().min().unwrap_or(0),
                    _ => longest,
                };
                for round in 0..rounds {
                    for (source, &len) in lengths.iter().enumerate() {
                        if round < len {
                            row(source, round);
                        } else if self.stopping_strategy == StoppingStrategy::AllExhausted {
                            row(source, round % len);
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn visit_drawn(
        &self,
        lengths: &[u64],
        p: &[f64],
        mut generator: Generator,
        mut row: impl FnMut(usize, u64),
    ) -> Result<(), String> {
        refuse_empty(lengths, |i| p[i] > 0.0)?;
        let drawable = p.iter().filter(|x| **x > 0.0).count();
        let wanted = match self.stopping_strategy {
            StoppingStrategy::FirstExhausted => 1,
            _ => drawable,
        };
        let mut next = vec![0u64; lengths.len()];
        let mut done = vec![false; lengths.len()];
        let mut exhausted = 0;
        while exhausted < wanted {
            let draws = generator
                .choice_weighted(p, DRAWS_AT_ONCE)
                .map_err(|e| e.to_string())?;
            for source in draws.into_iter().map(|s| s as usize) {
                if done[source] && self.stopping_strategy == StoppingStrategy::AllExhaustedWithoutReplacement
                {
                    continue;
                }
                row(source, next[source]);
                next[source] += 1;
                if next[source] == lengths[source] {
                    next[source] = 0;
                    exhausted += usize::from(!std::mem::replace(&mut done[source], true));
                    if exhausted == wanted {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

impl StoppingStrategy {
    /// The name in specs and in the package.
    pub fn name(self) -> &'static str {
        match self {
            StoppingStrategy::FirstExhausted => "first_exhausted",
            StoppingStrategy::AllExhausted => "all_exhausted",
            StoppingStrategy::AllExhaustedWithoutReplacement => "all_exhausted_without_replacement",
        }
    }
}

fn refuse_empty(lengths: &[u64], matters: impl Fn(usize) -> bool) -> Result<(), String> {
    match (0..lengths.len()).find(|&i| lengths[i] == 0 && matters(i)) {
        Some(i) => Err(format!(
            "source {i} is empty, and a row of it would have to be given"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lengths: &[u64], mix: &Interleave) -> Result<Vec<(usize, u64)>, String> {
        let mut out = Vec::new();
        mix.visit(lengths, |source, row| out.push((source, row)))?;
        assert_eq!(mix.len(lengths)?, out.len() as u64);
        Ok(out)
    }

    fn drawn(p: &[f64], seed: u64, stopping_strategy: StoppingStrategy) -> Interleave {
        Interleave {
            probabilities: Some(p.to_vec()),
            seed: Some(seed.into()),
            stopping_strategy,
        }
    }

    #[test]
    fn without_replacement_gives_every_row_once_and_the_others_end_where_they_say() {
        let lengths = [10, 100, 57];
        for seed in 0..20 {
            let p = [0.2, 0.3, 0.5];
            let counts = |strategy| {
                let mut counts = [0u64; 3];
                let rows = rows(&lengths, &drawn(&p, seed, strategy)).unwrap();
                let last = rows[rows.len() - 1];
                rows.iter().for_each(|(s, _)| counts[*s] += 1);
                (counts, last)
            };
            let (once, _) = counts(StoppingStrategy::AllExhaustedWithoutReplacement);
            assert_eq!(once, lengths);
            let (first, last) = counts(StoppingStrategy::FirstExhausted);
            assert_eq!(first[last.0], lengths[last.0]);
            assert!((0..3).all(|i| i == last.0 || first[i] < lengths[i]));
            let (all, last) = counts(StoppingStrategy::AllExhausted);
            assert_eq!(all[last.0], lengths[last.0]);
            assert!((0..3).all(|i| all[i] >= lengths[i]));
        }
    }

    #[test]
    fn a_source_of_probability_zero_is_never_drawn_and_never_waited_for() {
        let mix = drawn(&[0.5, 0.0, 0.5], 1, StoppingStrategy::FirstExhausted);
        assert!(rows(&[5, 0, 9], &mix).unwrap().iter().all(|(s, _)| *s != 1));
        for strategy in [
            StoppingStrategy::AllExhausted,
            StoppingStrategy::AllExhaustedWithoutReplacement,
        ] {
            let error = rows(&[5, 7, 9], &drawn(&[0.5, 0.0, 0.5], 1, strategy)).unwrap_err();
            assert!(error.contains("never end"), "{error}");
        }
    }

    #[test]
    fn what_the_package_cannot_do_is_refused() {
        let turns = |stopping_strategy| Interleave {
            stopping_strategy,
            ..Interleave::default()
        };
        assert!(rows(&[], &Interleave::default()).is_err());
        assert!(rows(&[3, 0], &turns(StoppingStrategy::AllExhausted)).is_err());
        assert_eq!(
            rows(&[3, 0], &turns(StoppingStrategy::FirstExhausted)).unwrap(),
            []
        );
        assert_eq!(
            rows(&[1, 0], &turns(StoppingStrategy::AllExhaustedWithoutReplacement)).unwrap(),
            [(0, 0)]
        );
        assert!(rows(&[3, 0], &drawn(&[0.5, 0.5], 1, StoppingStrategy::FirstExhausted)).is_err());
        assert!(rows(&[3, 4], &drawn(&[0.5, 0.4], 1, StoppingStrategy::FirstExhausted)).is_err());
        assert!(rows(&[3, 4], &drawn(&[1.0], 1, StoppingStrategy::FirstExhausted)).is_err());
        let unseeded = Interleave {
            probabilities: Some(vec![0.5, 0.5]),
            ..Interleave::default()
        };
        assert!(rows(&[3, 4], &unseeded).unwrap_err().contains("seed"));
        assert!(
            rows(
                &[3],
                &Interleave {
                    seed: Some(1u64.into()),
                    ..Interleave::default()
                }
            )
            .is_err()
        );
    }
}
