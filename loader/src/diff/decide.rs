//! Decides what kind of difference there is: the plainest explanation that covers everything.

use super::amounts::{EditKind, interpret};
use super::classify::Class;
use super::compare::CompareError;
use super::content;
use super::documents::{Pairs, pairs};
use super::edits::{Edit, REPLACED, edits};
use super::keys::{KeyKind, Keys, keys_of_parts};
use super::side::Side;
use super::stats::{Stats, View, stats};
use super::steps::{StepSets, first_difference, same_list, same_samples};
use super::stretch::{Stretch, id_at};
use super::text_shift;
use super::tokens::{CONVENTIONS, Relation};
use crate::source::SourceError;

/// Edits that are looked for between two token files, where each may be a document encoded otherwise.
const DOCUMENT_EDITS: usize = 1 << 16;
/// Share of samples in common from which a convention explains a difference.
const EXPLAINS: f64 = 0.9;

/// Edits up to which a difference is a matter of a few samples.
pub(super) fn limit(samples: usize) -> usize {
    (samples / 50).clamp(2, 16)
}

/// Positions of the first difference, in each side where it has a sample there.
pub(super) type Different = Option<(Option<usize>, Option<usize>)>;

/// See the module's head. `different` is the first place that differs.
///
/// # Errors
/// Samples that cannot be read.
pub(super) fn classify(
    a: &Side,
    b: &Side,
    keys: &Keys,
    stretch: &Stretch<'_>,
    sets: &StepSets,
    counts: &Stats,
    different: Different,
) -> Result<(Class, Option<Pairs>), CompareError> {
    if different.is_none() {
        return Ok((Class::Equal, None));
    }
    let (of_a, of_b) = (stretch.a.keys, stretch.b.keys);
    let shorter = of_a.len().min(of_b.len());
    if stretch.same_law() && of_a[..shorter] == of_b[..shorter] && of_a.len() != of_b.len() {
        let class = Class::Prefix {
            samples_beyond: of_a.len().abs_diff(of_b.len()) as u64,
            second_is_shorter: of_b.len() < of_a.len(),
        };
        return Ok((class, None));
    }
    let stored = a.stored && b.stored;
    let (most, longest) = if stored {
        (DOCUMENT_EDITS, shorter)
    } else {
        (limit(shorter), REPLACED)
    };
    let mut found_pairs = None;
    if stretch.same_law()
        && let Some(found) = edits(of_a, of_b, &stretch.in_a, &stretch.in_b, most, longest)
    {
        let kind = interpret(of_a, of_b, &found, &stretch.in_a, &stretch.in_b);
        let few =
            found.len() <= limit(shorter) && found.iter().all(|edit| edit.a.1.min(edit.b.1) <= REPLACED);
        let dealt = found.is_empty() || ranks_exchanged(&kind, stretch, sets);
        if few && !dealt && !matches!(kind, EditKind::Replaced(_) | EditKind::Several) {
            let class = Class::of_edits(kind, found.len(), &|i| stretch.at_a(i), &|j| stretch.at_b(j));
            return Ok((class, None));
        }
        let looked = pairs_of(a, b, keys, stretch, &replaced_pairs(&found, of_a, of_b))?;
        if looked.is_some()
            && let Some(class) = text_shifted(a, b, stretch)?
        {
            return Ok((class, looked));
        }
        if let Some(looked) = looked {
            let everywhere = 10 * looked.total >= 9 * shorter as u64;
            if looked.same_text && !everywhere {
                let class = Class::OtherTokenizer {
                    documents: looked.total,
                    of: of_a.len().max(of_b.len()) as u64,
                    only_in_a: unpaired(&found, |edit| (edit.a.1, edit.b.1)),
                    only_in_b: unpaired(&found, |edit| (edit.b.1, edit.a.1)),
                };
                return Ok((class, Some(looked)));
            }
            found_pairs = Some(looked);
        }
        if few && !dealt {
            let class = Class::of_edits(kind, found.len(), &|i| stretch.at_a(i), &|j| stretch.at_b(j));
            return Ok((class, found_pairs));
        }
    }
    let smaller = counts.a.distinct.min(counts.b.distinct).max(1);
    let common = counts.common as f64 / smaller as f64;
    if let Some(class) = of_the_same_samples(a, b, stretch, sets, counts, common) {
        return Ok((class, found_pairs));
    }
    if let Some(convention) = convention(a, b, keys.kind, common)? {
        // Rows that run one token ahead and whole rows on top are one shift.
        if let Class::Convention { relation, beneath } = &convention
            && matches!(relation, Relation::OneAhead | Relation::OneBehind)
            && !beneath.is_equal()
            && let Some(class) = text_shifted(a, b, stretch)?
        {
            return Ok((class, found_pairs));
        }
        return Ok((convention, found_pairs));
    }
    if common < EXPLAINS
        && let Some(class) = text_shifted(a, b, stretch)?
    {
        return Ok((class, found_pairs));
    }
    // The same number of documents, most of them encoded otherwise.
    if stored && of_a.len() == of_b.len() && common < EXPLAINS {
        let positions: Vec<(usize, usize)> = (0..of_a.len())
            .filter(|&i| of_a[i] != of_b[i])
            .map(|i| (i, i))
            .collect();
        if let Some(looked) = pairs_of(a, b, keys, stretch, &positions)?
            && looked.same_text
        {
            let class = Class::OtherTokenizer {
                documents: looked.total,
                of: of_a.len() as u64,
                only_in_a: 0,
                only_in_b: 0,
            };
            return Ok((class, Some(looked)));
        }
    }
    if common < 0.5
        && let Some(share) = content::share(a, b)?
        && share >= 0.5
    {
        return Ok((Class::OtherCut { share }, found_pairs));
    }
    let class = if counts.common > 0 {
        Class::PartlyOtherSamples { common }
    } else {
        Class::OtherData
    };
    Ok((class, found_pairs))
}

fn text_shifted(a: &Side, b: &Side, stretch: &Stretch<'_>) -> Result<Option<Class>, SourceError> {
    let found = text_shift::find(a, b, stretch)?;
    Ok(found.map(|shift| Class::TextShifted {
        by: shift.by,
        at: shift.at,
        token: shift.token,
        tokens: shift.agreeing,
    }))
}

/// Classes of two sides that consume (all but) the same samples.
fn of_the_same_samples(
    a: &Side,
    b: &Side,
    stretch: &Stretch<'_>,
    sets: &StepSets,
    counts: &Stats,
    common: f64,
) -> Option<Class> {
    let (of_a, of_b) = (stretch.a.keys, stretch.b.keys);
    let list = same_list(of_a, of_b, &stretch.in_a, &stretch.in_b);
    // What padding or dropping changes leaves one side's samples among the other's.
    let nested = counts.a.not_in_the_other == 0 || counts.b.not_in_the_other == 0;
    let dealt = sets.comparable && sets.equal > 0 && sets.first_different.is_none();
    if dealt || (nested && sets.all_but_the_end()) || (list && !stretch.same_law()) {
        let first = sets.first_different.filter(|_| sets.comparable);
        return Some(Class::OtherDealing {
            same_list: list,
            sets_differ_from: first.map(|step| {
                let view = if (step as usize) < stretch.a.steps.1 {
                    &stretch.a
                } else {
                    &stretch.b
                };
                view.layout
                    .at(view.layout.steps().range(view.steps.0 + step as usize).start)
            }),
        });
    }
    if let (Some(spec_a), Some(spec_b)) = (&a.spec, &b.spec)
        && spec_a.name() == spec_b.name()
        && common >= EXPLAINS
    {
        let differing = |mine: &ceteris_samplers::OrderSpec, other: &ceteris_samplers::OrderSpec| {
            let theirs = other.options();
            mine.options()
                .into_iter()
                .filter(|option| !theirs.contains(option))
                .map(|(key, value)| (key.to_string(), value))
                .collect::<Vec<_>>()
        };
        let (mut of_spec_a, mut of_spec_b) = (differing(spec_a, spec_b), differing(spec_b, spec_a));
        let seeds_only = of_spec_a
            .iter()
            .chain(&of_spec_b)
            .all(|(key, _)| key.contains("seed") || key == "dataset" || key == "set_epoch_called");
        let epoch = |view: &View<'_>| view.layout.at(view.base).epoch;
        let (epoch_a, epoch_b) = (epoch(&stretch.a), epoch(&stretch.b));
        if epoch_a != epoch_b {
            of_spec_a.push(("epoch".to_string(), epoch_a.into()));
            of_spec_b.push(("epoch".to_string(), epoch_b.into()));
        }
        if seeds_only && !of_spec_a.is_empty() {
            return Some(Class::OtherSeed {
                a: of_spec_a,
                b: of_spec_b,
            });
        }
    }
    // What padding and dropping at the end of an epoch change is no other set of samples.
    let batch = |view: &View<'_>| match view.steps.1 {
        0 => 0,
        _ => view.layout.steps().range(view.steps.0).len() as u64,
    };
    let slack = batch(&stretch.a).max(batch(&stretch.b));
    let same = same_samples(of_a, of_b, &stretch.in_a, &stretch.in_b);
    // Two orders that number one dataset may each drop others of its samples.
    let one_dataset = a.spec.is_some() && b.spec.is_some() && a.identity == b.identity;
    let nearly =
        (nested || one_dataset) && counts.a.not_in_the_other <= slack && counts.b.not_in_the_other <= slack;
    (same || (nearly && common >= EXPLAINS)).then_some(Class::OtherOrder)
}

/// Two ranks have exchanged whole micro-batches.
fn ranks_exchanged(kind: &EditKind, stretch: &Stretch<'_>, sets: &StepSets) -> bool {
    let EditKind::Swapped(pairs) = kind else {
        return false;
    };
    let rows = stretch.a.layout.micro_batch_size() as usize;
    sets.comparable
        && sets.first_different.is_none()
        && pairs.len() > 1
        && pairs.len().is_multiple_of(rows)
        && pairs.iter().all(|&(i, j)| {
            let (one, other) = (stretch.at_a(i), stretch.at_a(j));
            (one.micro_step, one.slot) == (other.micro_step, other.slot) && one.rank != other.rank
        })
}

/// Pairs of positions whose samples replace one another; those that an edit covers and that are equal are none.
fn replaced_pairs(found: &[Edit], of_a: &[u32], of_b: &[u32]) -> Vec<(usize, usize)> {
    found
        .iter()
        .filter(|edit| edit.a.1 == edit.b.1)
        .flat_map(|edit| (0..edit.a.1).map(|k| (edit.a.0 + k, edit.b.0 + k)))
        .filter(|&(i, j)| of_a.get(i) != of_b.get(j))
        .collect()
}

/// Samples of one side that edits leave without a partner.
fn unpaired(found: &[Edit], sizes: impl Fn(&Edit) -> (usize, usize)) -> u64 {
    found
        .iter()
        .map(sizes)
        .map(|(own, other)| own.saturating_sub(other) as u64)
        .sum()
}

fn pairs_of(
    a: &Side,
    b: &Side,
    keys: &Keys,
    stretch: &Stretch<'_>,
    positions: &[(usize, usize)],
) -> Result<Option<Pairs>, SourceError> {
    if positions.is_empty() {
        return Ok(None);
    }
    let (base_a, base_b) = (stretch.a.base, stretch.b.base);
    pairs(
        a,
        &|i| id_at(a, &keys.a, keys, base_a + i),
        b,
        &|j| id_at(b, &keys.b, keys, base_b + j),
        positions,
    )
}

/// The convention under which both sides consume the same samples, if there is one, and what differs beyond it.
fn convention(a: &Side, b: &Side, kind: KeyKind, common: f64) -> Result<Option<Class>, CompareError> {
    if common >= EXPLAINS || kind != KeyKind::Tokens {
        return Ok(None);
    }
    for &(relation, cut_a, cut_b) in CONVENTIONS {
        let Some(keys) = keys_of_parts(a, cut_a, b, cut_b)? else {
            return Ok(None);
        };
        // Every epoch has to be explained; what is beneath is that of the first one that still differs.
        let (mut everywhere, mut first) = (true, Class::Equal);
        for which in 0..a.layout.epochs().len() {
            let stretch = Stretch::new(a, b, &keys, which);
            let counts = stats(&stretch.a, &stretch.b, &stretch.in_a, &stretch.in_b, &|_| {});
            let smaller = counts.a.distinct.min(counts.b.distinct).max(1);
            let explained = counts.common as f64 / smaller as f64;
            if explained < EXPLAINS {
                everywhere = false;
                break;
            }
            if first.is_equal() && first_difference(&stretch.a, &stretch.b).is_some() {
                let sets = StepSets::of(&stretch.a, &stretch.b);
                first = beneath(a, b, &stretch, &sets, &counts, explained);
            }
        }
        if !everywhere {
            continue;
        }
        let beneath = first;
        return Ok(Some(Class::Convention {
            relation,
            beneath: Box::new(beneath),
        }));
    }
    Ok(None)
}

fn beneath(a: &Side, b: &Side, stretch: &Stretch<'_>, sets: &StepSets, counts: &Stats, common: f64) -> Class {
    let (of_a, of_b) = (stretch.a.keys, stretch.b.keys);
    let few = limit(of_a.len().min(of_b.len()));
    if stretch.same_law()
        && let Some(found) = edits(of_a, of_b, &stretch.in_a, &stretch.in_b, few, REPLACED)
    {
        let kind = interpret(of_a, of_b, &found, &stretch.in_a, &stretch.in_b);
        return Class::of_edits(kind, found.len(), &|i| stretch.at_a(i), &|j| stretch.at_b(j));
    }
    of_the_same_samples(a, b, stretch, sets, counts, common).unwrap_or(Class::PartlyOtherSamples { common })
}
