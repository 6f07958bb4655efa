//! The kinds of difference, in the sequence in which they are looked for.

use serde::Serialize;
use serde_json::Value;

use super::amounts::EditKind;
use super::layout::At;
use super::tokens::Relation;

/// What kind of difference there is. Serialises with its name under `kind`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Class {
    /// The same samples at the same places.
    Equal,
    /// The same samples in the same sequence, at micro-steps or epochs of other numbers.
    OtherPlaces {
        /// Where the first that stands elsewhere is in the first.
        a: At,
        /// And in the second.
        b: At,
    },
    /// Equal at every micro-batch that both have; one or both lack some.
    EqualWhereBoth {
        /// Micro-batches that both have.
        both: u64,
        /// Those of the first alone.
        only_a: u64,
        /// Those of the second alone.
        only_b: u64,
        /// The first one that both have.
        from: At,
    },
    /// Equal as far as the shorter one goes.
    Prefix {
        /// Samples that the longer one has beyond.
        samples_beyond: u64,
        /// The second is the shorter one.
        second_is_shorter: bool,
    },
    /// Every step consumes the same samples (but for the end of an epoch, if said), on other ranks or slots.
    OtherDealing {
        /// Both deal one and the same list of samples.
        same_list: bool,
        /// The first step whose samples differ, where the last ones of an epoch do.
        sets_differ_from: Option<At>,
    },
    /// Pairs of samples changed places.
    Swapped {
        /// The places, in pairs.
        places: Vec<[At; 2]>,
    },
    /// The second runs ahead (or behind, when negative) by so many samples.
    Shifted {
        /// Samples.
        by: i64,
    },
    /// A sample of the second comes a second time.
    Duplicated {
        /// Where the extra one stands.
        at: At,
        /// Where it stands as well.
        also_at: At,
        /// Extra samples.
        count: u64,
        /// It took the place of another sample, which is gone.
        replaces_another: bool,
    },
    /// Samples of the first are left out.
    Missing {
        /// Where the first one stands in the first.
        at: At,
        /// How many.
        count: u64,
    },
    /// Samples that the first does not have are put in.
    Inserted {
        /// Where the first one stands in the second.
        at: At,
        /// How many.
        count: u64,
    },
    /// A block of samples stands elsewhere.
    Moved {
        /// Where it stands in the first.
        from: At,
        /// Where it stands in the second.
        to: At,
        /// How many.
        count: u64,
    },
    /// A few edits of several kinds.
    Edited {
        /// How many.
        edits: u64,
    },
    /// The same law with another seed or epoch.
    OtherSeed {
        /// Options of the first that differ, with their values.
        a: Vec<(String, Value)>,
        /// The same of the second.
        b: Vec<(String, Value)>,
    },
    /// The same samples, each as often, in another order.
    OtherOrder,
    /// The same samples up to a convention on their first or last token.
    Convention {
        /// Which.
        relation: Relation,
        /// What differs beyond it.
        beneath: Box<Class>,
    },
    /// The same documents, some of them encoded otherwise.
    OtherTokenizer {
        /// Documents that differ.
        documents: u64,
        /// Documents there are.
        of: u64,
        /// Documents that the second lacks.
        only_in_a: u64,
        /// Documents that the first lacks.
        only_in_b: u64,
    },
    /// Some samples in common.
    PartlyOtherSamples {
        /// Different samples in common, as a share of the smaller side's.
        common: f64,
    },
    /// The same text, cut into samples so many tokens later or earlier.
    TextShifted {
        /// Tokens that the second runs ahead; behind, when negative.
        by: i64,
        /// The sample of the first from which on.
        at: At,
        /// The token of that sample from which on.
        token: u64,
        /// Tokens from there on that agree once shifted: all that both have.
        tokens: u64,
    },
    /// The same text, cut into other samples.
    OtherCut {
        /// Share of the smaller side's runs of tokens that the other one has.
        share: f64,
    },
    /// Nothing, or next to nothing, in common.
    OtherData,
}

impl Class {
    /// Nothing differs.
    pub fn is_equal(&self) -> bool {
        matches!(self, Self::Equal)
    }

    /// The class of a handful of edits; `at_a` and `at_b` give places of positions.
    pub fn of_edits(
        kind: EditKind,
        edits: usize,
        at_a: &dyn Fn(usize) -> At,
        at_b: &dyn Fn(usize) -> At,
    ) -> Self {
        match kind {
            EditKind::Swapped(pairs) => Self::Swapped {
                places: pairs.iter().map(|&(i, j)| [at_a(i), at_a(j)]).collect(),
            },
            EditKind::Shifted(by) => Self::Shifted { by },
            EditKind::Duplicated {
                at,
                also_at,
                count,
                instead_of,
            } => Self::Duplicated {
                at: at_b(at),
                also_at: at_b(also_at),
                count: count as u64,
                replaces_another: instead_of.is_some(),
            },
            EditKind::Missing { at, count } => Self::Missing {
                at: at_a(at),
                count: count as u64,
            },
            EditKind::Inserted { at, count } => Self::Inserted {
                at: at_b(at),
                count: count as u64,
            },
            EditKind::Moved { from, to, count } => Self::Moved {
                from: at_a(from),
                to: at_b(to),
                count: count as u64,
            },
            EditKind::Replaced(_) | EditKind::Several => Self::Edited { edits: edits as u64 },
        }
    }
}
