//! The comparison: numbers the samples of both sides, finds the first difference, says of what kind it is, counts.
//!
//! Time is linear in the samples but for the rank correlation of a bounded subset. Memory for two orders over one dataset
//! of n samples: 16 n bytes.

use std::ops::Range;

use super::decide::{classify, limit};
use super::edits::{Positions, REPLACED, edits};
use super::keys::{Keys, KeysError, keys};
use super::outcome::{About, Comparison, EpochSummary, First, GridCell, MixOverTime};
use super::places::numbered;
use super::side::Side;
use super::stats::{View, stats};
use super::steps::{StepSets, first_difference, same_samples};
use super::stretch::{Stretch, id_at};
use super::tokens::TokenDifference;
use crate::source::SourceError;

/// Steps of the dealing grid.
pub const GRID_STEPS: u64 = 8;
/// Places of the dealing grid, at most.
const GRID_CELLS: usize = 4096;

/// Why a comparison fails.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// Samples cannot be numbered.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Samples cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Hears of the work: what is done, and how many samples more.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64) + Sync);

/// Compares.
///
/// # Errors
/// [`CompareError`].
pub fn compare(mut a: Side, mut b: Side, progress: Progress<'_>) -> Result<Comparison, CompareError> {
    let logs = a.law_unknown && b.law_unknown && !a.stored && !b.stored;
    if a.law_unknown != b.law_unknown {
        let (unknown, known) = if a.law_unknown { (&mut a, &b) } else { (&mut b, &a) };
        unknown.take_seats_of(&known.layout);
    } else if a.law_unknown && a.layout.micro_batch_size() > 1 && a.layout.world_size() > 1 {
        // Neither says how samples were dealt: take the law under which one is a few edits of the other.
        let (mut strided_a, mut strided_b) = (a.clone(), b.clone());
        strided_a.deal_strided();
        strided_b.deal_strided();
        let simple = |a: &Side, b: &Side| -> Result<Option<usize>, CompareError> {
            let (mut a, mut b) = (a.clone(), b.clone());
            let keys = keys(&mut a, &mut b, &|_| {})?;
            let (in_a, in_b) = (
                Positions::of(&keys.a, keys.bound),
                Positions::of(&keys.b, keys.bound),
            );
            let found = edits(&keys.a, &keys.b, &in_a, &in_b, limit(keys.a.len()), REPLACED);
            Ok(found.map(|found| found.len()))
        };
        let (blocked, strided) = (simple(&a, &b)?, simple(&strided_a, &strided_b)?);
        if strided.is_some_and(|strided| blocked.is_none_or(|blocked| strided < blocked)) {
            (a, b) = (strided_a, strided_b);
        }
    }
    let keys = keys(&mut a, &mut b, &|more| progress("fingerprinting samples", more))?;
    if a.layout.epochs().len() != b.layout.epochs().len() {
        a.layout.merge_epochs();
        b.layout.merge_epochs();
    }
    let (mut epochs, mut counted) = (Vec::new(), None);
    for which in 0..a.layout.epochs().len() {
        let stretch = Stretch::new(&a, &b, &keys, which);
        let different = first_difference(&stretch.a, &stretch.b);
        let at = different.map(|(i, j)| match (i, j) {
            (Some(i), _) => stretch.at_a(i),
            (None, j) => stretch.at_b(j.unwrap_or(0)),
        });
        epochs.push(EpochSummary {
            a: a.layout.epochs()[which].epoch,
            b: b.layout.epochs()[which].epoch,
            equal: different.is_none(),
            same_samples: different.is_none()
                || same_samples(stretch.a.keys, stretch.b.keys, &stretch.in_a, &stretch.in_b),
            first_difference: at,
        });
        progress("comparing", stretch.a.keys.len() as u64);
        if different.is_some() && counted.is_none() {
            counted = Some((which, different, stretch));
        }
    }
    let (counted_epoch, different, stretch) = match counted {
        Some((which, different, stretch)) => (which, different, stretch),
        None => (0, None, Stretch::new(&a, &b, &keys, 0)),
    };
    let step_sets = StepSets::of(&stretch.a, &stretch.b);
    let counts = stats(&stretch.a, &stretch.b, &stretch.in_a, &stretch.in_b, &|more| {
        progress("counting", more)
    });
    let mut found = classify(&a, &b, &keys, &stretch, &step_sets, &counts, different)?;
    if logs
        && a.layout.epochs().len() == b.layout.epochs().len()
        && let Some(class) = numbered(&a.layout, &b.layout, &keys, different.is_none())
    {
        found = (class, None);
    }
    let first = match different {
        Some((i, j)) => Some(first_of(&a, &b, &keys, &stretch, i, j)?),
        None => None,
    };
    let grid = grid(&stretch);
    let per_bin = counts.steps_per_bin as usize;
    let mix_a = mix_over_time(&a, &keys.a, &stretch.a, &keys, per_bin);
    let mix_b = mix_over_time(&b, &keys.b, &stretch.b, &keys, per_bin);
    let (listed, total) = found
        .1
        .map_or((Vec::new(), 0), |pairs| (pairs.listed, pairs.total));
    Ok(Comparison {
        a: About::of(&a),
        b: About::of(&b),
        compared_by: keys.kind,
        class: found.0,
        first,
        epochs,
        step_sets,
        counted_epoch,
        stats: counts,
        mix_a,
        mix_b,
        grid,
        documents: listed,
        documents_different: total,
    })
}

fn first_of(
    a: &Side,
    b: &Side,
    keys: &Keys,
    stretch: &Stretch<'_>,
    i: Option<usize>,
    j: Option<usize>,
) -> Result<First, CompareError> {
    let sample_a = i.and_then(|i| id_at(a, &keys.a, keys, stretch.a.base + i));
    let sample_b = j.and_then(|j| id_at(b, &keys.b, keys, stretch.b.base + j));
    let mut tokens = None;
    if let (Some(id_a), Some(id_b), Some(source_a), Some(source_b)) =
        (sample_a, sample_b, a.source.as_deref(), b.source.as_deref())
    {
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        crate::provenance::digests::read_sample(source_a, id_a, a.seq_length, &mut of_a)?;
        crate::provenance::digests::read_sample(source_b, id_b, b.seq_length, &mut of_b)?;
        tokens = TokenDifference::between(&of_a, &of_b);
    }
    let elsewhere = i.and_then(|i| stretch.in_b.get(*stretch.a.keys.get(i)?));
    Ok(First {
        a: i.map(|i| stretch.at_a(i)),
        b: j.map(|j| stretch.at_b(j)),
        sample_a,
        sample_b,
        sample_a_in_b: elsewhere.map(|at| stretch.at_b(at)),
        tokens,
    })
}

/// What a side takes of each dataset, in stretches of steps.
fn mix_over_time(
    side: &Side,
    of: &[u32],
    view: &View<'_>,
    keys: &Keys,
    per_bin: usize,
) -> Option<MixOverTime> {
    let mix = side.mix.as_ref()?;
    let bins = view.steps.1.div_ceil(per_bin.max(1));
    let mut samples = vec![vec![0; mix.names().len()]; bins];
    for (bin, counts) in samples.iter_mut().enumerate() {
        for step in bin * per_bin..((bin + 1) * per_bin).min(view.steps.1) {
            for index in view.layout.steps().range(view.steps.0 + step) {
                if let Some(id) = id_at(side, of, keys, index) {
                    counts[mix.part_of(id)] += 1;
                }
            }
        }
    }
    Some(MixOverTime {
        datasets: mix.names().to_vec(),
        samples,
    })
}

fn grid(stretch: &Stretch<'_>) -> Vec<GridCell> {
    let steps = stretch.a.layout.steps();
    let last = (GRID_STEPS as usize).min(stretch.a.steps.1);
    if last == 0 {
        return Vec::new();
    }
    let shown: Range<usize> = 0..steps.range(stretch.a.steps.0 + last - 1).end - stretch.a.base;
    shown
        .take(GRID_CELLS)
        .map(|i| GridCell {
            a: stretch.at_a(i),
            b: stretch.in_b.get(stretch.a.keys[i]).map(|at| stretch.at_b(at)),
        })
        .collect()
}
