//! The band that repeats of a run span, and whether the gap lies inside it.

use serde::Serialize;

use super::align::{Axis, Pair, loss_at};
use super::curve::Curve;
use super::summary;

/// Losses of all repeats of a run at a place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// Runs that have a loss here.
    pub runs: usize,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation; `None` of a single run.
    pub std: Option<f64>,
}

/// The band of a run and its repeats at a place; runs without a finite loss there are left out.
pub fn band(run: &Curve, repeats: &[Curve], axis: Axis, at: u64) -> Option<Band> {
    let losses: Vec<f64> = std::iter::once(run)
        .chain(repeats)
        .filter_map(|curve| loss_at(curve, axis, at))
        .map(|loss| loss.value)
        .filter(|loss| loss.is_finite())
        .collect();
    Some(Band {
        runs: losses.len(),
        min: losses.iter().copied().reduce(f64::min)?,
        max: losses.iter().copied().reduce(f64::max)?,
        mean: summary::mean(&losses)?,
        std: summary::std(&losses),
    })
}

/// Both bands of a place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bands {
    /// The place.
    pub at: u64,
    /// A and its repeats.
    pub a: Band,
    /// B and its repeats.
    pub b: Band,
}

impl Bands {
    /// Whether the two ranges have a loss in common.
    pub fn overlap(&self) -> bool {
        self.a.min <= self.b.max && self.b.min <= self.a.max
    }
}

/// The gap against the spread of repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Noise {
    /// Bands, place by place.
    pub places: Vec<Bands>,
    /// Places where the bands overlap (with one run of B: where it lies inside A's).
    pub inside: usize,
    /// The share of such places that runs which differ by chance alone would have: with few repeats far below 1.
    pub inside_by_chance: f64,
    /// Median of |mean B − mean A| over the standard deviation of one run, of the sides that have repeats.
    pub gap_over_std: Option<f64>,
}

impl Noise {
    /// The share of places where the gap lies inside the band.
    pub fn share_inside(&self) -> f64 {
        self.inside as f64 / self.places.len().max(1) as f64
    }

    /// Whether the gap is no larger than what repeats of one run show.
    pub fn gap_is_inside(&self) -> bool {
        self.share_inside() >= self.inside_by_chance
    }
}

/// Holds the gap against the band; `None` where no run is repeated.
pub fn noise(a: (&Curve, &[Curve]), b: (&Curve, &[Curve]), axis: Axis, pairs: &[Pair]) -> Option<Noise> {
    if a.1.is_empty() && b.1.is_empty() {
        return None;
    }
    let places: Vec<Bands> = pairs
        .iter()
        .filter_map(|pair| {
            Some(Bands {
                at: pair.at,
                a: band(a.0, a.1, axis, pair.at)?,
                b: band(b.0, b.1, axis, pair.at)?,
            })
        })
        .filter(|bands| bands.a.runs + bands.b.runs > 2)
        .collect();
    let by_chance: Vec<f64> = places
        .iter()
        .map(|bands| by_chance(bands.a.runs, bands.b.runs))
        .collect();
    let ratios: Vec<f64> = places.iter().filter_map(ratio).collect();
    Some(Noise {
        inside: places.iter().filter(|bands| bands.overlap()).count(),
        inside_by_chance: summary::mean(&by_chance)?,
        gap_over_std: summary::median(&ratios),
        places,
    })
}

/// The chance that the ranges of n and m draws from one distribution overlap: all of one side lie above the other in 2 of
/// the (n + m choose n) ways to deal them.
fn by_chance(n: usize, m: usize) -> f64 {
    let few = n.min(m);
    let ways = (1..=few).fold(1.0, |ways, i| ways * (n + m - few + i) as f64 / i as f64);
    1.0 - 2.0 / ways
}

fn ratio(bands: &Bands) -> Option<f64> {
    let squares: Vec<f64> = [bands.a.std, bands.b.std]
        .into_iter()
        .flatten()
        .map(|std| std * std)
        .collect();
    let std = summary::mean(&squares)?.sqrt();
    (std > 0.0).then(|| (bands.b.mean - bands.a.mean).abs() / std)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_of_overlap() {
        // A fourth run lies inside the range of three in half of all cases.
        assert!((by_chance(3, 1) - 0.5).abs() < 1e-12);
        assert!((by_chance(1, 2) - 1.0 / 3.0).abs() < 1e-12);
        assert!((by_chance(3, 3) - 0.9).abs() < 1e-12);
    }
}
