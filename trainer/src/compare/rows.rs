//! The rows of the table of losses.

use super::align::{self, Loss};
use super::comparison::{Against, CompareError, Options, Run};

/// A row of the table of losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The place.
    pub at: u64,
    /// The loss of each run, in their order.
    pub losses: Vec<Option<Loss>>,
}

/// Rows at the places asked for, or at chosen ones.
pub(super) fn table(
    runs: &[Run],
    against: &[Against],
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>, CompareError> {
    let mut places: Vec<u64> = against
        .iter()
        .flat_map(|one| one.pairs.iter().map(|pair| pair.at))
        .collect();
    places.sort_unstable();
    places.dedup();
    let chosen = if options.at.is_empty() {
        automatic(&places)
    } else {
        let mut asked = options.at.clone();
        asked.sort_unstable();
        asked.dedup();
        let (found, missing): (Vec<u64>, Vec<u64>) = asked.into_iter().partition(|&at| {
            let there = |run: &&Run| align::loss_at(&run.curve, options.axis, at).is_some();
            runs.iter().filter(there).count() >= 2
        });
        if found.is_empty() {
            return Err(CompareError::NoRow(list(&missing)));
        }
        for at in missing {
            let next = places.partition_point(|place| *place < at);
            let near: Vec<String> = [next.checked_sub(1), Some(next)]
                .into_iter()
                .flatten()
                .filter_map(|i| places.get(i))
                .map(u64::to_string)
                .collect();
            notes.push(format!(
                "no record of two runs at {at}; the nearest are at {}",
                near.join(" and ")
            ));
        }
        found
    };
    Ok(chosen
        .into_iter()
        .map(|at| Row {
            at,
            losses: runs
                .iter()
                .map(|run| align::loss_at(&run.curve, options.axis, at))
                .collect(),
        })
        .collect())
}

fn list(places: &[u64]) -> String {
    places.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// About a dozen places: the first, powers of ten, round steps, the last; each the nearest there is.
fn automatic(places: &[u64]) -> Vec<u64> {
    let (Some(&first), Some(&last)) = (places.first(), places.last()) else {
        return Vec::new();
    };
    if places.len() <= 12 {
        return places.to_vec();
    }
    let rough = (last - first) as f64 / 8.0;
    let power = 10f64.powf(rough.max(1.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
        .max(1.0) as u64;
    let powers = (0..20).map(|k| 10_u64.saturating_pow(k)).filter(|p| *p < step);
    let rounds = (1..=10_u64).map(|k| (first / step).saturating_add(k).saturating_mul(step));
    let mut chosen: Vec<u64> = powers
        .chain(rounds)
        .filter(|at| (first..=last).contains(at))
        .map(|at| nearest(places, at))
        .chain([first, last])
        .collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn nearest(places: &[u64], at: u64) -> u64 {
    let next = places.partition_point(|place| *place < at);
    let above = places.get(next).copied();
    let below = next.checked_sub(1).and_then(|i| places.get(i)).copied();
    match (below, above) {
        (Some(below), Some(above)) if at - below < above - at => below,
        (_, Some(above)) => above,
        (Some(below), None) => below,
        (None, None) => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_few_round_and_there() {
        let every: Vec<u64> = (1..=4768).collect();
        let chosen = automatic(&every);
        assert_eq!(chosen, [1, 10, 100, 1000, 2000, 3000, 4000, 4768]);
        let hundreds: Vec<u64> = std::iter::once(1).chain((1..=47).map(|k| k * 100)).collect();
        assert!(automatic(&hundreds).iter().all(|at| hundreds.contains(at)));
        assert_eq!(automatic(&[5, 6]), [5, 6]);
        assert_eq!(automatic(&[]), [0; 0]);
        let wide: Vec<u64> = (0..20).map(|k| k * (u64::MAX / 20)).collect();
        assert!(automatic(&wide).len() >= 2);
        assert_eq!(nearest(&[1, 10], 5), 1);
    }
}
