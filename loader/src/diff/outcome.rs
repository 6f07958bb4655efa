//! What a comparison found, as reports and programs get it.

use serde::Serialize;

use super::classify::Class;
use super::documents::DocumentDifference;
use super::keys::KeyKind;
use super::layout::{At, Layout};
use super::side::Side;
use super::stats::Stats;
use super::steps::StepSets;
use super::tokens::TokenDifference;

/// What a report says of a side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// Its name.
    pub label: String,
    /// The order, where it is one.
    pub order: Option<ceteris_samplers::OrderSpec>,
    /// Samples compared.
    pub samples: u64,
    /// Optimizer steps compared.
    pub steps: u64,
    /// Ranks.
    pub world_size: u64,
    /// Rows of a micro-batch.
    pub micro_batch_size: u64,
    /// Samples of a full step.
    pub global_batch_size: u64,
    /// How samples go round the ranks: `blocked`, `strided`, or `single` where that makes no difference.
    pub deal: &'static str,
}

impl About {
    pub(super) fn of(side: &Side) -> Self {
        let layout = &side.layout;
        Self {
            label: side.label.clone(),
            order: side.spec.clone(),
            samples: layout.len() as u64,
            steps: layout.steps().len() as u64,
            world_size: layout.world_size(),
            micro_batch_size: layout.micro_batch_size(),
            global_batch_size: if layout.steps().is_empty() {
                0
            } else {
                layout.steps().range(0).len() as u64
            },
            deal: deal_of(layout),
        }
    }
}

fn deal_of(layout: &Layout) -> &'static str {
    let seats = layout.usual_seats();
    let (mut blocked, mut strided) = (seats.to_vec(), seats.to_vec());
    blocked.sort_by_key(|seat| (seat.rank, seat.slot));
    strided.sort_by_key(|seat| (seat.slot, seat.rank));
    match (seats == blocked, seats == strided) {
        (true, true) => "single",
        (true, false) => "blocked",
        (false, true) => "strided",
        (false, false) => "other",
    }
}

/// The first place that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct First {
    /// Where, in the first; `None` where it has no sample there.
    pub a: Option<At>,
    /// Where, in the second.
    pub b: Option<At>,
    /// Sample id there, where ids are known.
    pub sample_a: Option<u64>,
    /// The same of the second.
    pub sample_b: Option<u64>,
    /// Where the second has the first one's sample.
    pub sample_a_in_b: Option<At>,
    /// The tokens there, where they are known.
    pub tokens: Option<TokenDifference>,
}

/// One epoch of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochSummary {
    /// Epoch of the first.
    pub a: u64,
    /// Epoch of the second.
    pub b: u64,
    /// The same samples at the same places.
    pub equal: bool,
    /// The same samples, each as often.
    pub same_samples: bool,
    /// The first place that differs, in the first (or in the second where the first has none there).
    pub first_difference: Option<At>,
}

/// A place of the first side and where the second has its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GridCell {
    /// The place.
    pub a: At,
    /// Where the second has it, `None` when nowhere.
    pub b: Option<At>,
}

/// What one side takes of each dataset of its mix, over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MixOverTime {
    /// The datasets.
    pub datasets: Vec<String>,
    /// Samples of each, stretch by stretch: `[stretch][dataset]`, stretches of `stats.steps_per_bin` steps.
    pub samples: Vec<Vec<u64>>,
}

/// Everything found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The first side.
    pub a: About,
    /// The second.
    pub b: About,
    /// What counts as the same sample.
    pub compared_by: KeyKind,
    /// What kind of difference there is.
    pub class: Class,
    /// The first difference.
    pub first: Option<First>,
    /// Epoch by epoch.
    pub epochs: Vec<EpochSummary>,
    /// Step by step, of the epoch that the counts are of.
    pub step_sets: StepSets,
    /// Which of `epochs` the counts are of: the first that differs.
    pub counted_epoch: usize,
    /// Counts.
    pub stats: Stats,
    /// What the first takes of each dataset, where it is a mix.
    pub mix_a: Option<MixOverTime>,
    /// The same of the second.
    pub mix_b: Option<MixOverTime>,
    /// The first steps, place by place.
    pub grid: Vec<GridCell>,
    /// Pairs of samples at the same place of the sequence that differ in their tokens; all are counted in
    /// `documents_different`, up to 1000 listed.
    pub documents: Vec<DocumentDifference>,
    /// Such pairs.
    pub documents_different: u64,
}
