//! One numbering for the samples of two sides: equal numbers mean equal samples.
//!
//! Two orders over one dataset keep their sample ids. Otherwise samples are told apart by their fingerprints: the ones
//! consumed are read and hashed once, in parallel. Memory of that: about 48 bytes for each different sample.

use std::collections::HashMap;

use rayon::prelude::*;

use super::layout::At;
use super::side::{Samples, Side};
use crate::fingerprint::Fingerprint;
use crate::provenance::digests::read_sample;
use crate::source::SourceError;

/// What equal numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyKind {
    /// Ids of the same dataset.
    Ids,
    /// The same tokens.
    Tokens,
    /// Micro-batches of the same tokens.
    MicroBatches,
}

/// The keys of two sides.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Of the first.
    pub a: Vec<u32>,
    /// Of the second.
    pub b: Vec<u32>,
    /// All keys are below this.
    pub bound: u32,
    /// What they mean.
    pub kind: KeyKind,
    /// The sample id of each key, ascending, where keys are not the ids themselves.
    pub names: Option<Vec<u32>>,
}

impl Keys {
    /// The sample id that a key stands for.
    pub fn name(&self, key: u32) -> u32 {
        let names = self.names.as_ref();
        names
            .and_then(|names| names.get(key as usize).copied())
            .unwrap_or(key)
    }

    /// Ids as keys. Tables are as long as the largest key, so ids that lie far apart are numbered anew.
    fn of_ids(mut a: Vec<u32>, mut b: Vec<u32>) -> Self {
        let most = a.iter().chain(&b).max().copied();
        let samples = (a.len() + b.len()) as u64;
        let mut names = None;
        let mut bound = most.map_or(0, |most| most.saturating_add(1));
        if u64::from(bound) > samples.saturating_mul(4).max(1 << 20) {
            let mut ids: Vec<u32> = a.iter().chain(&b).copied().collect();
            ids.sort_unstable();
            ids.dedup();
            for key in a.iter_mut().chain(&mut b) {
                *key = ids.partition_point(|id| id < key) as u32;
            }
            bound = ids.len() as u32;
            names = Some(ids);
        }
        Self {
            a,
            b,
            bound,
            kind: KeyKind::Ids,
            names,
        }
    }
}

/// Why two sides cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Samples cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// One side has tokens or fingerprints and the other only ids.
    #[error("{ids} names samples by number only, and {other} does not number the same dataset")]
    Numbers {
        /// The side with numbers.
        ids: String,
        /// The other one.
        other: String,
    },
    /// A log names a sample that the dataset does not have.
    #[error(
        "{log}: sample {id} at epoch {} micro_step {} rank {} slot {}, and {other} has {num_samples} samples, numbered from 0: \
         the log is of a run over other data, or the line is damaged",
        at.epoch, at.micro_step, at.rank, at.slot
    )]
    Beyond {
        /// The log.
        log: String,
        /// The sample.
        id: u32,
        /// Its place.
        at: At,
        /// The side that says how many there are.
        other: String,
        /// How many.
        num_samples: u64,
    },
    /// One fingerprint a micro-batch, of micro-batches that were divided otherwise.
    #[error(
        "{a} and {b} cannot be compared: at least one of them holds one fingerprint for each whole micro-batch, and their \
         micro-batches are divided otherwise ({of_a} against {of_b}), so that equal samples have unequal fingerprints"
    )]
    Divided {
        /// The first side.
        a: String,
        /// The second.
        b: String,
        /// Ranks and rows of the first.
        of_a: String,
        /// Of the second.
        of_b: String,
    },
}

/// A part of a sample.
pub type Cut = fn(&[i32]) -> &[i32];

/// The whole sample.
pub fn whole(tokens: &[i32]) -> &[i32] {
    tokens
}

/// Numbers the samples of both sides. Where both number one dataset, their lists become the keys. A side that holds one
/// digest a micro-batch brings the other one down to that: its layout then has one sample a micro-batch. `done` hears how
/// many samples more were hashed.
///
/// # Errors
/// [`KeysError`].
pub fn keys(a: &mut Side, b: &mut Side, done: &(dyn Fn(u64) + Sync)) -> Result<Keys, KeysError> {
    // A log of ids alone means those of whatever it is held against.
    let bare = |side: &Side| side.source.is_none() && side.spec.is_none();
    let both_absent = a.source.is_none() && b.source.is_none();
    let same_dataset =
        a.identity.is_some() && (a.identity == b.identity || both_absent || bare(a) || bare(b));
    if same_dataset {
        within(a, b)?;
        within(b, a)?;
    }
    if let (Samples::Ids(ids_a), Samples::Ids(ids_b)) = (&mut a.samples, &mut b.samples)
        && same_dataset
    {
        return Ok(Keys::of_ids(std::mem::take(ids_a), std::mem::take(ids_b)));
    }
    for (side, other) in [(&*a, &*b), (&*b, &*a)] {
        if matches!(side.samples, Samples::Ids(_)) && side.source.is_none() {
            return Err(KeysError::Numbers {
                ids: side.label.clone(),
                other: other.label.clone(),
            });
        }
    }
    let coarse = [&*a, &*b]
        .iter()
        .any(|side| matches!(side.samples, Samples::MicroBatches(_)));
    let mut of_a = digests(a, whole, done)?;
    let mut of_b = digests(b, whole, done)?;
    if coarse {
        of_a = by_micro_batch(a, of_a);
        of_b = by_micro_batch(b, of_b);
    }
    let kind = if coarse {
        KeyKind::MicroBatches
    } else {
        KeyKind::Tokens
    };
    let keys = numbered(&of_a, &of_b, kind);
    if coarse {
        alike(a, b, &keys)?;
    }
    Ok(keys)
}

/// Every id of a log is one of the samples that the other side says there are.
fn within(log: &Side, other: &Side) -> Result<(), KeysError> {
    let (Samples::Ids(ids), None, Some(num_samples)) = (&log.samples, log.num_samples, other.num_samples)
    else {
        return Ok(());
    };
    match ids.iter().position(|id| u64::from(*id) >= num_samples) {
        Some(index) => Err(KeysError::Beyond {
            log: log.label.clone(),
            id: ids[index],
            at: log.layout.at(index),
            other: other.label.clone(),
            num_samples,
        }),
        None => Ok(()),
    }
}

/// Micro-batches of both sides can be held against each other: they have as many rows, and where they lie on more or fewer
/// ranks, some are the same.
fn alike(a: &Side, b: &Side, keys: &Keys) -> Result<(), KeysError> {
    let (ranks_a, ranks_b) = (a.layout.world_size(), b.layout.world_size());
    let other_rows = a.rows.zip(b.rows).is_some_and(|(of_a, of_b)| of_a != of_b);
    let common = || {
        let new = keys.a.iter().max().map_or(0, |most| most + 1);
        keys.b.iter().any(|key| *key < new)
    };
    if !other_rows && (ranks_a == ranks_b || common()) {
        return Ok(());
    }
    let division = |ranks: u64, rows: Option<u64>| {
        let rows = rows.map_or("an unknown number of".to_owned(), |rows| rows.to_string());
        format!("{ranks} rank(s) of {rows} row(s)")
    };
    Err(KeysError::Divided {
        a: a.label.clone(),
        b: b.label.clone(),
        of_a: division(ranks_a, a.rows),
        of_b: division(ranks_b, b.rows),
    })
}

/// Keys by a part of each sample's tokens; `None` where a side has no tokens.
///
/// # Errors
/// Samples that cannot be read.
pub fn keys_of_parts(a: &Side, cut_a: Cut, b: &Side, cut_b: Cut) -> Result<Option<Keys>, SourceError> {
    if a.source.is_none() || b.source.is_none() {
        return Ok(None);
    }
    let of_a = cut_digests(a, cut_a, &|_| {})?;
    let of_b = cut_digests(b, cut_b, &|_| {})?;
    Ok(Some(numbered(&of_a, &of_b, KeyKind::Tokens)))
}

/// Numbers digests in the sequence of their first appearance.
fn numbered(a: &[Fingerprint], b: &[Fingerprint], kind: KeyKind) -> Keys {
    let mut known: HashMap<Fingerprint, u32> = HashMap::with_capacity(a.len());
    let mut number = |digests: &[Fingerprint]| -> Vec<u32> {
        digests
            .iter()
            .map(|digest| {
                let next = known.len() as u32;
                *known.entry(*digest).or_insert(next)
            })
            .collect()
    };
    let (a, b) = (number(a), number(b));
    Keys {
        a,
        b,
        bound: known.len() as u32,
        kind,
        names: None,
    }
}

/// The digest at each place of a side.
fn digests(side: &Side, cut: Cut, done: &(dyn Fn(u64) + Sync)) -> Result<Vec<Fingerprint>, SourceError> {
    match &side.samples {
        Samples::Digests(digests) | Samples::MicroBatches(digests) => Ok(digests.clone()),
        Samples::Ids(_) => cut_digests(side, cut, done),
    }
}

/// Reads every different sample of a side once, and gives the digest of its part at each place.
fn cut_digests(side: &Side, cut: Cut, done: &(dyn Fn(u64) + Sync)) -> Result<Vec<Fingerprint>, SourceError> {
    let Some(source) = side.source.as_deref() else {
        return Ok(Vec::new());
    };
    let Samples::Ids(ids) = &side.samples else {
        return Ok(Vec::new());
    };
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    const TASK: usize = 256;
    let hashed: Vec<Result<Vec<Fingerprint>, SourceError>> = distinct
        .par_chunks(TASK)
        .map(|task| {
            let mut buffer = Vec::new();
            let mut digests = Vec::with_capacity(task.len());
            for &id in task {
                read_sample(source, id.into(), side.seq_length, &mut buffer)?;
                digests.push(Fingerprint::of_sample(cut(&buffer)));
            }
            done(task.len() as u64);
            Ok(digests)
        })
        .collect();
    let mut by_rank = Vec::with_capacity(distinct.len());
    for task in hashed {
        by_rank.extend(task?);
    }
    let at = |id: u32| distinct.partition_point(|&other| other < id);
    Ok(ids.iter().map(|&id| by_rank[at(id)]).collect())
}

/// One digest for each micro-batch of each rank, over its samples in the sequence of their slots; the layout follows.
fn by_micro_batch(side: &mut Side, digests: Vec<Fingerprint>) -> Vec<Fingerprint> {
    if matches!(side.samples, Samples::MicroBatches(_)) {
        return digests;
    }
    side.rows = Some(side.layout.micro_batch_size());
    let layout = std::mem::take(&mut side.layout);
    let (mut out, mut coarse) = (Vec::new(), super::layout::Layout::default());
    let mut step = 0;
    let mut epochs = layout.epochs().iter().enumerate().peekable();
    for micro in 0..layout.micros().len() {
        let range = layout.micros().range(micro);
        let now = layout
            .steps()
            .find(range.start.min(layout.len().saturating_sub(1)));
        if micro > 0 && now != step {
            coarse.close_step();
        }
        step = now;
        if let Some((_, mark)) = epochs.next_if(|(_, mark)| mark.first_micro.0 == micro) {
            coarse.begin_epoch(mark.epoch, mark.first_micro.1, mark.first_step.1);
        }
        if let Some(jump) = layout.jump_at(micro) {
            coarse.jump(jump.first_micro.1, jump.first_step.1);
        }
        let mut seated: Vec<_> = layout
            .seats(micro)
            .iter()
            .zip(&digests[range])
            .map(|(seat, digest)| (*seat, *digest))
            .collect();
        seated.sort_by_key(|(seat, _)| *seat);
        let mut seats = Vec::new();
        for rank in seated.chunk_by(|(a, _), (b, _)| a.rank == b.rank) {
            out.push(Fingerprint::combine(rank.iter().map(|(_, digest)| *digest)));
            seats.extend(
                rank.first()
                    .map(|(seat, _)| super::layout::Seat { slot: 0, ..*seat }),
            );
        }
        coarse.push_micro_step(&seats);
    }
    coarse.close_step();
    side.layout = coarse;
    side.samples = Samples::MicroBatches(out.clone());
    side.source = None;
    side.law_unknown = false;
    out
}
