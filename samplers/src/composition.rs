//! What a mix consists of: rows of each source, passes over it, and the first repeat, before any training.
//!
//! Memory: one bit a row of the sources, to see repeats.

use std::fmt;

use serde::Serialize;

/// The composition of the first draws of a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Composition {
    /// Rows counted.
    pub draws: u64,
    /// One entry a source, in their sequence.
    pub sources: Vec<SourceShare>,
    /// Samples of one optimizer step, which `first_repeat_step` counts in.
    pub global_batch_size: u64,
}

/// What a mix takes of one source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceShare {
    /// Rows the source has.
    pub rows: u64,
    /// Rows the mix takes of it, repeats counted.
    pub drawn: u64,
    /// Passes over the source: `drawn / rows`.
    pub epochs: f64,
    /// Share of the mix.
    pub share: f64,
    /// First draw, from 0, that gives a row of this source a second time.
    pub first_repeat_draw: Option<u64>,
    /// Optimizer step, from 0, of that draw.
    pub first_repeat_step: Option<u64>,
}

impl Composition {
    /// Counts the rows of a mix over consecutive sources of these lengths; stops after `limit` of them if given.
    ///
    /// # Errors
    /// Says which draw gives a row that no source has.
    pub fn count(
        rows: impl IntoIterator<Item = u64>,
        lengths: &[u64],
        limit: Option<u64>,
        global_batch_size: u64,
    ) -> Result<Self, String> {
        let ends: Vec<u64> = lengths
            .iter()
            .scan(0u64, |end, len| {
                *end = end.saturating_add(*len);
                Some(*end)
            })
            .collect();
        let total = ends.last().copied().unwrap_or(0);
        let mut seen = vec![0u64; usize::try_from(total.div_ceil(64)).map_err(|e| e.to_string())?];
        let mut drawn = vec![0u64; lengths.len()];
        let mut first_repeat = vec![None; lengths.len()];
        let mut draws = 0;
        for row in rows
            .into_iter()
            .take(limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX)))
        {
            let source = ends.partition_point(|end| *end <= row);
            if source == lengths.len() {
                return Err(format!(
                    "draw {draws} gives row {row}, but the sources have {total} rows"
                ));
            }
            let (word, bit) = ((row / 64) as usize, 1 << (row % 64));
            if seen[word] & bit != 0 {
                first_repeat[source].get_or_insert(draws);
            }
            seen[word] |= bit;
            drawn[source] += 1;
            draws += 1;
        }
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let sources = lengths
            .iter()
            .zip(&drawn)
            .zip(&first_repeat)
            .map(|((&rows, &drawn), &first)| SourceShare {
                rows,
                drawn,
                epochs: share(drawn, rows),
                share: share(drawn, draws),
                first_repeat_draw: first,
                first_repeat_step: first.map(|draw| draw / global_batch_size.max(1)),
            });
        Ok(Composition {
            draws,
            sources: sources.collect(),
            global_batch_size,
        })
    }
}

/// A table, one line a source.
impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>6}  {:>12}  {:>12}  {:>7}  {:>9}  first repeat",
            "source", "rows", "drawn", "share", "epochs"
        )?;
        for (i, s) in self.sources.iter().enumerate() {
            let repeat = match (s.first_repeat_draw, s.first_repeat_step) {
                (Some(draw), Some(step)) => format!("draw {draw}, step {step}"),
                _ => "none".to_string(),
            };
            let epochs = format!("{:.1}x", s.epochs);
            writeln!(
                f,
                "{i:>6}  {:>12}  {:>12}  {:>6.1}%  {epochs:>9}  {repeat}",
                s.rows,
                s.drawn,
                100.0 * s.share
            )?;
        }
        write!(
            f,
            "{:>6}  {:>12}  {:>12}",
            "all",
            self.sources.iter().map(|s| s.rows).sum::<u64>(),
            self.draws
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_repeats_and_an_empty_source() {
        let mix = Composition::count([3, 0, 4, 3, 0, 1], &[2, 0, 3], None, 2).unwrap();
        let got: Vec<_> = mix
            .sources
            .iter()
            .map(|s| (s.drawn, s.epochs, s.first_repeat_draw, s.first_repeat_step))
            .collect();
        assert_eq!(
            got,
            [
                (3, 1.5, Some(4), Some(2)),
                (0, 0.0, None, None),
                (3, 1.0, Some(3), Some(1))
            ]
        );
        assert_eq!(
            Composition::count([3, 0, 4, 3, 0, 1], &[2, 0, 3], Some(3), 2)
                .unwrap()
                .draws,
            3
        );
        assert!(Composition::count([5], &[2, 0, 3], None, 1).is_err());
        assert_eq!(mix.to_string().lines().count(), 5);
    }
}
