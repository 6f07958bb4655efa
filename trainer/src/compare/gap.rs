//! What the gap between two curves does: where they cross, how wide it is on average, when it closes, whether it stays
//! within a tolerance.

use serde::Serialize;

use super::align::{Axis, Pair};
use super::curve::Curve;
use super::summary;

/// Relative differences below this count as equal where crossings are looked for: they print as 0.00 %.
pub const EQUAL: f64 = 5e-5;

/// Where B first comes to lie on the other side of A.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Crossover {
    /// The first place.
    pub first_at: u64,
    /// Whether B lies below A from there.
    pub b_falls_below: bool,
    /// Crossings in all.
    pub count: usize,
}

/// The first crossing and how many there are.
pub fn crossover(pairs: &[Pair]) -> Option<Crossover> {
    let mut side = None;
    let mut found: Option<Crossover> = None;
    for pair in pairs.iter().filter(|pair| pair.is_finite()) {
        let relative = pair.relative();
        if relative.abs() < EQUAL {
            continue;
        }
        let below = relative < 0.0;
        if side.is_some_and(|before| before != below) {
            match &mut found {
                Some(found) => found.count += 1,
                None => {
                    found = Some(Crossover {
                        first_at: pair.at,
                        b_falls_below: below,
                        count: 1,
                    });
                }
            }
        }
        side = Some(below);
    }
    found
}

/// Which places are averaged over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSpec {
    /// One window after the other of so many steps (or tokens).
    Every(u64),
    /// From one place to another, both included.
    Range(u64, u64),
}

/// Means over a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// First place of the window.
    pub from: u64,
    /// Last place of it.
    pub to: u64,
    /// Places where both losses are finite.
    pub places: usize,
    /// Mean loss of A.
    pub a: f64,
    /// Mean loss of B.
    pub b: f64,
    /// (b − a) / a in percent.
    pub delta_percent: f64,
    /// Mean of the places' absolute differences, in percent.
    pub mean_abs_delta_percent: f64,
}

/// Means over the windows asked for; without any, over quarters of what both curves have.
pub fn windows(pairs: &[Pair], specs: &[WindowSpec]) -> Vec<Window> {
    let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else {
        return Vec::new();
    };
    let quarter = [WindowSpec::Every((last.at / 4).max(1))];
    let specs = if specs.is_empty() { &quarter[..] } else { specs };
    let mut all = Vec::new();
    for spec in specs {
        match *spec {
            WindowSpec::Range(from, to) => all.extend(window(pairs, from, to)),
            WindowSpec::Every(length) => {
                let length = length.max(1);
                // Windows of nothing between two far places are stepped over.
                let mut k = first.at.saturating_sub(1) / length;
                while let Some(from) = k.checked_mul(length).and_then(|from| from.checked_add(1))
                    && from <= last.at
                {
                    let to = from.saturating_add(length - 1).min(last.at);
                    all.extend(
                        window(pairs, if k == 0 { 0 } else { from }, to).map(|w| Window { from, ..w }),
                    );
                    let next = pairs.partition_point(|pair| pair.at <= to);
                    k = match pairs.get(next) {
                        Some(pair) => (pair.at.saturating_sub(1) / length).max(k + 1),
                        None => break,
                    };
                }
            }
        }
    }
    all
}

fn window(pairs: &[Pair], from: u64, to: u64) -> Option<Window> {
    let inside: Vec<&Pair> = pairs
        .iter()
        .filter(|pair| (from..=to).contains(&pair.at) && pair.is_finite())
        .collect();
    let of = |value: &dyn Fn(&Pair) -> f64| {
        let values: Vec<f64> = inside.iter().map(|pair| value(pair)).collect();
        summary::mean(&values)
    };
    let (a, b) = (of(&|pair| pair.a.value)?, of(&|pair| pair.b.value)?);
    Some(Window {
        from,
        to,
        places: inside.len(),
        a,
        b,
        delta_percent: 100.0 * (b - a) / a,
        mean_abs_delta_percent: 100.0 * of(&|pair| pair.relative().abs())?,
    })
}

/// How the end of warm-up was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmupBy {
    /// It was given.
    Given,
    /// The learning rate stops rising there.
    LearningRate,
    /// Nothing tells: a tenth of what both curves have.
    Tenth,
}

/// The gap in warm-up and when it closes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Warmup {
    /// Last place of warm-up.
    pub ends_at: u64,
    /// How it was found.
    pub found_by: WarmupBy,
    /// Where the gap is widest in warm-up.
    pub widest_at: u64,
    /// The gap there, in percent.
    pub widest_delta_percent: f64,
    /// What counts as closed, relative.
    pub tolerance: f64,
    /// The first place from which the gap stays within the tolerance; `None` where it never does.
    pub closed_from: Option<u64>,
}

/// Where warm-up of runs that are compared from `first` to `last` ends.
pub fn warmup_end(
    curves: [&Curve; 2],
    axis: Axis,
    given: Option<u64>,
    (first, last): (u64, u64),
) -> (u64, WarmupBy) {
    let place_of = |curve: &Curve, step: u64| {
        curve
            .points
            .iter()
            .take_while(|p| p.step <= step)
            .last()
            .and_then(|p| axis.of(p))
    };
    if let Some(step) = given {
        return (place_of(curves[0], step).unwrap_or(step), WarmupBy::Given);
    }
    for curve in curves {
        let mut peak: Option<(u64, f64)> = None;
        for point in &curve.points {
            if let Some(lr) = point.lr.filter(|lr| lr.is_finite())
                && peak.is_none_or(|(_, most)| lr > most)
            {
                peak = Some((point.step, lr));
            }
        }
        let starts_at = curve.points.first().map_or(0, |p| p.step);
        if let Some((step, _)) = peak
            && step > starts_at
            && let Some(place) = place_of(curve, step)
        {
            return (place, WarmupBy::LearningRate);
        }
    }
    ((last / 10).max(first), WarmupBy::Tenth)
}

/// Looks at the gap up to `ends_at`, and for the place from which it stays within `tolerance`.
pub fn warmup(pairs: &[Pair], (ends_at, found_by): (u64, WarmupBy), tolerance: f64) -> Option<Warmup> {
    let first = pairs.first()?;
    let widest = pairs
        .iter()
        .filter(|pair| pair.is_finite() && (pair.at <= ends_at || pair.at == first.at))
        .max_by(|x, y| x.relative().abs().total_cmp(&y.relative().abs()))?;
    // NaN is not within anything.
    let outside = pairs.iter().rposition(|pair| !within(pair, tolerance));
    Some(Warmup {
        ends_at,
        found_by,
        widest_at: widest.at,
        widest_delta_percent: 100.0 * widest.relative(),
        tolerance,
        closed_from: match outside {
            None => Some(first.at),
            Some(i) => pairs.get(i + 1).map(|pair| pair.at),
        },
    })
}

fn within(pair: &Pair, tolerance: f64) -> bool {
    // Equal losses of zero are within; a NaN compares as false.
    pair.a.value == pair.b.value || pair.relative().abs() <= tolerance
}

/// The gap against a tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// Relative difference that is allowed.
    pub tolerance: f64,
    /// First place checked.
    pub from: u64,
    /// Last place checked.
    pub to: u64,
    /// Places checked.
    pub places: usize,
    /// First place beyond it, with the difference in percent (NaN where a loss is none).
    pub exceeded: Option<(u64, f64)>,
    /// Places beyond it.
    pub places_beyond: usize,
    /// The widest difference among the places checked, in percent, and its place.
    pub widest: Option<(u64, f64)>,
}

/// Checks every place from `from` on; `None` where there is none.
pub fn gate(pairs: &[Pair], tolerance: f64, from: u64) -> Option<Gate> {
    let checked = &pairs[pairs.partition_point(|pair| pair.at < from)..];
    let mut beyond = checked.iter().filter(|pair| !within(pair, tolerance));
    let exceeded = beyond.next().map(|pair| (pair.at, 100.0 * pair.relative()));
    Some(Gate {
        tolerance,
        from: checked.first()?.at,
        to: checked.last()?.at,
        places: checked.len(),
        exceeded,
        places_beyond: usize::from(exceeded.is_some()) + beyond.count(),
        widest: checked
            .iter()
            .filter(|pair| pair.is_finite())
            .map(|pair| (pair.at, 100.0 * pair.relative()))
            .max_by(|x, y| x.1.abs().total_cmp(&y.1.abs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::align::Loss;

    fn pairs(of: &[(u64, f64, f64)]) -> Vec<Pair> {
        let loss = |value| Loss { value, decimals: 4 };
        of.iter()
            .map(|&(at, a, b)| Pair {
                at,
                a: loss(a),
                b: loss(b),
            })
            .collect()
    }

    #[test]
    fn a_difference_that_prints_as_nothing_is_no_side() {
        let all = pairs(&[
            (1, 11.9654, 11.9652),
            (100, 7.5, 9.6),
            (200, 5.0, 5.0),
            (300, 4.0, 3.9),
            (400, 3.8, 3.9),
        ]);
        assert_eq!(
            crossover(&all),
            Some(Crossover {
                first_at: 300,
                b_falls_below: true,
                count: 2
            })
        );
        assert_eq!(crossover(&all[..3]), None);
    }

    #[test]
    fn windows_average_what_lies_in_them() {
        let all = pairs(&[(1, 4.0, 5.0), (2, 2.0, 1.0), (10, 2.0, 2.2), (20, 1.0, f64::NAN)]);
        let found = windows(&all, &[WindowSpec::Every(5), WindowSpec::Range(2, 10)]);
        let ends: Vec<(u64, u64, usize)> = found.iter().map(|w| (w.from, w.to, w.places)).collect();
        assert_eq!(ends, [(1, 5, 2), (6, 10, 1), (2, 10, 2)]);
        assert_eq!((found[0].a, found[0].b, found[0].delta_percent), (3.0, 3.0, 0.0));
        assert!((found[0].mean_abs_delta_percent - 37.5).abs() < 1e-9);
        // Windows far apart are not walked one by one.
        let far = pairs(&[(1, 1.0, 1.0), (1 << 60, 1.0, 1.0)]);
        assert_eq!(windows(&far, &[WindowSpec::Every(1)]).len(), 2);
        assert_eq!(
            windows(&pairs(&[(u64::MAX, 1.0, 1.0)]), &[WindowSpec::Every(3)]).len(),
            1
        );
    }

    #[test]
    fn a_gap_is_closed_where_it_stays_closed() {
        let all = pairs(&[
            (1, 1.0, 1.5),
            (2, 1.0, 1.001),
            (3, 1.0, 1.2),
            (4, 1.0, 0.999),
            (5, 1.0, 1.0),
        ]);
        let closed = |n: usize, tolerance| {
            warmup(&all[..n], (2, WarmupBy::Given), tolerance).and_then(|w| w.closed_from)
        };
        assert_eq!(closed(5, 0.01), Some(4));
        assert_eq!(closed(3, 0.01), None);
        assert_eq!(closed(5, 0.6), Some(1));
        assert_eq!(
            warmup(&all, (2, WarmupBy::Given), 0.1).map(|w| w.widest_at),
            Some(1)
        );
    }

    #[test]
    fn nan_is_beyond_every_tolerance() {
        let all = pairs(&[(1, 1.0, 2.0), (2, 0.0, 0.0), (3, 1.0, f64::NAN), (4, 1.0, 1.0)]);
        let found = gate(&all, 0.5, 2);
        assert_eq!(found.and_then(|g| g.exceeded).map(|e| e.0), Some(3));
        assert_eq!(found.map(|g| (g.places, g.places_beyond)), Some((3, 1)));
        assert_eq!(gate(&all, 0.5, 5), None);
        assert_eq!(gate(&all, 0.5, 4).and_then(|g| g.exceeded), None);
    }
}
