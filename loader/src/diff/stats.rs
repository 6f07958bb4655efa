//! Counts over two sequences: overlap over time, displacement, rank correlation, who gets whose samples, repeats.
//!
//! One pass over the samples of the first sequence, in parallel; sums of integers only, so that the number of threads
//! changes nothing. A sample that comes several times counts where it comes first. Memory: what is reported.

use rayon::prelude::*;
use serde::Serialize;

use super::correlation::{Correlation, EXACT, correlate};
use super::edits::Positions;
use super::layout::Layout;

/// Stretches of time that curves are drawn over, at most.
pub const BINS: usize = 512;
/// Rows and columns of the displacement map.
pub const MAP: usize = 48;
/// Ranks up to which the agreement of each pair is counted.
pub const RANKS: usize = 64;
/// Samples that quantiles are taken over.
const QUANTILE_SAMPLES: usize = 1 << 18;
/// Samples of one parallel task.
const TASK: usize = 1 << 16;

/// A stretch of an epoch: keys with their layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Keys of the stretch.
    pub keys: &'a [u32],
    /// Layout of the whole stream.
    pub layout: &'a Layout,
    /// Index of the stretch's first sample in the stream.
    pub base: usize,
    /// First step of the stretch in the stream, and their number.
    pub steps: (usize, usize),
    /// First micro-step of the stretch in the stream, and their number.
    pub micros: (usize, usize),
}

impl View<'_> {
    /// Step of a sample of the stretch, from 0.
    #[inline]
    fn step(&self, index: usize) -> usize {
        self.layout.steps().find(self.base + index) - self.steps.0
    }

    #[inline]
    fn micro(&self, index: usize) -> usize {
        self.layout.micros().find(self.base + index) - self.micros.0
    }
}

/// Overlap in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// First step of the stretch.
    pub step: u64,
    /// Samples of the first sequence here.
    pub samples: u64,
    /// Of those, the ones the second sequence has in the same step.
    pub same_step: u64,
    /// Samples of the first sequence up to the end of the stretch.
    pub samples_so_far: u64,
    /// Of those, the ones the second sequence has seen by then.
    pub seen_so_far: u64,
}

/// How far apart a sample's two positions are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Displacement {
    /// Mean distance in samples.
    pub mean: f64,
    /// Largest distance.
    pub max: u64,
    /// Quantiles of the distance in samples: 50, 90 and 99 %.
    pub quantiles: [u64; 3],
    /// Samples with distance 0, then 1, 2 to 3, 4 to 7, …: counts by powers of two.
    pub by_power_of_two: Vec<u64>,
    /// Counts over (part of the first sequence, part of the second), row by row, 48 x 48.
    pub map: Vec<u64>,
}

/// Repeats in one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repeats {
    /// Different samples.
    pub distinct: u64,
    /// Places that repeat a sample of an earlier place.
    pub repeated: u64,
    /// Different samples that the other sequence never has.
    pub not_in_the_other: u64,
}

/// Everything counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Samples of the first sequence.
    pub samples_a: u64,
    /// Samples of the second.
    pub samples_b: u64,
    /// Samples that both have, each counted once.
    pub common: u64,
    /// Of those: at the same micro-step, rank and slot.
    pub same_place: u64,
    /// In the same optimizer step.
    pub same_step: u64,
    /// On the same rank, in whichever step.
    pub same_rank: u64,
    /// Repeats of the first sequence.
    pub a: Repeats,
    /// Repeats of the second.
    pub b: Repeats,
    /// Steps of a bin of `overlap`.
    pub steps_per_bin: u64,
    /// Overlap over time.
    pub overlap: Vec<Overlap>,
    /// Distances, where there are common samples.
    pub displacement: Option<Displacement>,
    /// Rank correlation, where there are two common samples.
    pub correlation: Option<Correlation>,
    /// Samples that rank `r` of the first and rank `s` of the second consume, `[r][s]`; empty beyond 64 ranks.
    pub ranks: Vec<Vec<u64>>,
}

#[derive(Clone, Default)]
struct Sums {
    common: u64,
    same_place: u64,
    same_step: u64,
    same_rank: u64,
    distance: u128,
    max: u64,
    powers: Vec<u64>,
    map: Vec<u64>,
    ranks: Vec<u64>,
    same_step_of: Vec<u64>,
    seen_at: Vec<u64>,
}

impl Sums {
    fn new(bins: usize, ranks: usize) -> Self {
        Self {
            powers: vec![0; 34],
            map: vec![0; MAP * MAP],
            ranks: vec![0; ranks],
            same_step_of: vec![0; bins],
            seen_at: vec![0; bins + 1],
            ..Self::default()
        }
    }

    fn add(mut self, other: Self) -> Self {
        self.common += other.common;
        self.same_place += other.same_place;
        self.same_step += other.same_step;
        self.same_rank += other.same_rank;
        self.distance += other.distance;
        self.max = self.max.max(other.max);
        for (mine, theirs) in [
            (&mut self.powers, other.powers),
            (&mut self.map, other.map),
            (&mut self.ranks, other.ranks),
            (&mut self.same_step_of, other.same_step_of),
            (&mut self.seen_at, other.seen_at),
        ] {
            for (sum, more) in mine.iter_mut().zip(theirs) {
                *sum += more;
            }
        }
        self
    }
}

/// Counts. `done` hears how many samples more were looked at.
pub fn stats(
    a: &View<'_>,
    b: &View<'_>,
    in_a: &Positions,
    in_b: &Positions,
    done: &(dyn Fn(u64) + Sync),
) -> Stats {
    let steps = a.steps.1.max(1);
    let steps_per_bin = steps.div_ceil(BINS);
    let bins = steps.div_ceil(steps_per_bin);
    let world = (a.layout.world_size() as usize, b.layout.world_size() as usize);
    let counted_ranks = if world.0 <= RANKS && world.1 <= RANKS {
        world.0 * world.1
    } else {
        0
    };
    // One scale for both axes, so that an unmoved sample lies on the diagonal.
    let longest = a.keys.len().max(b.keys.len()).max(1);
    let cell = |index: usize| index * MAP / longest;
    let one = |sums: &mut Sums, i: usize, key: u32| {
        if in_a.get(key) != Some(i) {
            return;
        }
        let Some(j) = in_b.get(key) else { return };
        sums.common += 1;
        let (step_a, step_b) = (a.step(i), b.step(j));
        let (seat_a, seat_b) = (a.layout.seat(a.base + i), b.layout.seat(b.base + j));
        sums.same_place += u64::from(seat_a == seat_b && a.micro(i) == b.micro(j));
        sums.same_rank += u64::from(seat_a.rank == seat_b.rank);
        sums.same_step += u64::from(step_a == step_b);
        sums.same_step_of[step_a / steps_per_bin] += u64::from(step_a == step_b);
        // The step by which both have had it; beyond the first sequence's end it counts for none.
        sums.seen_at[(step_a.max(step_b) / steps_per_bin).min(bins)] += 1;
        let distance = i.abs_diff(j) as u64;
        sums.distance += u128::from(distance);
        sums.max = sums.max.max(distance);
        sums.powers[(64 - distance.leading_zeros()) as usize] += 1;
        sums.map[cell(i) * MAP + cell(j)] += 1;
        if counted_ranks > 0 {
            sums.ranks[seat_a.rank as usize * world.1 + seat_b.rank as usize] += 1;
        }
    };
    let sums = a
        .keys
        .par_chunks(TASK)
        .enumerate()
        .map(|(task, keys)| {
            let mut sums = Sums::new(bins, counted_ranks);
            for (k, &key) in keys.iter().enumerate() {
                one(&mut sums, task * TASK + k, key);
            }
            done(keys.len() as u64);
            sums
        })
        .reduce(|| Sums::new(bins, counted_ranks), Sums::add);
    let repeats = |keys: &[u32], own: &Positions, other: &Positions| {
        let (distinct, missing) = keys
            .par_iter()
            .enumerate()
            .map(|(i, &key)| {
                let first = own.get(key) == Some(i);
                (u64::from(first), u64::from(first && other.get(key).is_none()))
            })
            .reduce(|| (0, 0), |x, y| (x.0 + y.0, x.1 + y.1));
        Repeats {
            distinct,
            repeated: keys.len() as u64 - distinct,
            not_in_the_other: missing,
        }
    };
    Stats {
        samples_a: a.keys.len() as u64,
        samples_b: b.keys.len() as u64,
        common: sums.common,
        same_place: sums.same_place,
        same_step: sums.same_step,
        same_rank: sums.same_rank,
        a: repeats(a.keys, in_a, in_b),
        b: repeats(b.keys, in_b, in_a),
        steps_per_bin: steps_per_bin as u64,
        overlap: overlap(a, &sums, bins, steps_per_bin),
        displacement: displacement(a, &sums, in_a, in_b),
        correlation: {
            let positions = spread(a, in_a, in_b, sums.common, EXACT);
            correlate(&positions, sums.common)
        },
        ranks: sums.ranks.chunks(world.1.max(1)).map(<[u64]>::to_vec).collect(),
    }
}

fn overlap(a: &View<'_>, sums: &Sums, bins: usize, steps_per_bin: usize) -> Vec<Overlap> {
    let (mut so_far, mut seen) = (0, 0);
    (0..bins)
        .map(|bin| {
            let (first, end) = (bin * steps_per_bin, ((bin + 1) * steps_per_bin).min(a.steps.1));
            let starts = a.layout.steps();
            let samples = if first >= end {
                a.keys.len() as u64
            } else {
                (starts.range(a.steps.0 + end - 1).end - starts.range(a.steps.0 + first).start) as u64
            };
            so_far += samples;
            seen += sums.seen_at[bin];
            Overlap {
                step: first as u64,
                samples,
                same_step: sums.same_step_of[bin],
                samples_so_far: so_far,
                seen_so_far: seen,
            }
        })
        .collect()
}

fn displacement(a: &View<'_>, sums: &Sums, in_a: &Positions, in_b: &Positions) -> Option<Displacement> {
    if sums.common == 0 {
        return None;
    }
    let mut distances: Vec<u64> = common(a, in_a, in_b, sums.common, QUANTILE_SAMPLES)
        .map(|(i, j)| i.abs_diff(j) as u64)
        .collect();
    distances.sort_unstable();
    let quantile = |percent: usize| {
        let at = (distances.len() * percent / 100).min(distances.len().saturating_sub(1));
        distances.get(at).copied().unwrap_or(0)
    };
    let mut by_power_of_two = sums.powers.clone();
    while by_power_of_two.last() == Some(&0) {
        by_power_of_two.pop();
    }
    Some(Displacement {
        mean: sums.distance as f64 / sums.common as f64,
        max: sums.max,
        quantiles: [quantile(50), quantile(90), quantile(99)],
        by_power_of_two,
        map: sums.map.clone(),
    })
}

/// Positions in the second sequence of common samples, in the sequence of the first: all, or about `limit` of them,
/// chosen by a hash of their place so that no period of the order can hide in the choice.
fn spread(a: &View<'_>, in_a: &Positions, in_b: &Positions, total: u64, limit: usize) -> Vec<u32> {
    common(a, in_a, in_b, total, limit)
        .map(|(_, j)| j as u32)
        .collect()
}

fn common<'a>(
    a: &'a View<'_>,
    in_a: &'a Positions,
    in_b: &'a Positions,
    total: u64,
    limit: usize,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let threshold = if total <= limit as u64 {
        u64::MAX
    } else {
        (limit as f64 / total as f64 * u64::MAX as f64) as u64
    };
    a.keys.iter().enumerate().filter_map(move |(i, &key)| {
        if threshold != u64::MAX && mix(i as u64) > threshold {
            return None;
        }
        (in_a.get(key) == Some(i))
            .then(|| in_b.get(key))
            .flatten()
            .map(|j| (i, j))
    })
}

/// A hash of a number (the finaliser of MurmurHash3).
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}
