//! An audit of a corpus: begin and end tokens, empty documents, ids against the vocabulary, padding, duplicates.
//!
//! One pass over all tokens, in parallel. Memory: 20 bytes a document (for exact duplicates).

use std::collections::BTreeMap;

use ceteris_samplers::SampleId;
use rayon::prelude::*;
use serde::Serialize;

use super::digests::read_sample;
use crate::fingerprint::Fingerprint;
use crate::source::{Source, SourceError};

/// Share of documents from which a convention counts as kept.
const KEPT: f64 = 0.99;
/// Share of documents that begin (or end) alike from which an unnamed token counts as a begin (or end) token.
const LIKELY: f64 = 0.5;
/// Ids kept for the most frequent first and last tokens.
const SHOWN: usize = 3;
/// Groups of duplicates that are listed.
const LISTED: usize = 8;

/// Token ids that mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpecialIds {
    /// Begins a document.
    pub bos: Option<i32>,
    /// Ends a document.
    pub eos: Option<i32>,
    /// Fills up.
    pub pad: Option<i32>,
    /// Ids are below this.
    pub vocab_size: Option<u32>,
}

/// How documents are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Convention {
    /// Begin and end token.
    BeginAndEnd,
    /// A begin token only.
    BeginOnly,
    /// An end token only.
    EndOnly,
    /// Neither.
    None,
    /// Some documents one way and some another.
    Mixed,
}

impl Convention {
    /// For reading.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::BeginAndEnd => "both: documents start with the begin token and end with the end token",
            Self::BeginOnly => "begin only: documents start with the begin token and have no end token",
            Self::EndOnly => "end only: documents end with the end token and have no begin token",
            Self::None => "none: documents have neither a begin nor an end token",
            Self::Mixed => "mixed: some documents have the token and some do not",
        }
    }
}

/// A token id and in how many documents it stands at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// The id.
    pub id: i32,
    /// Documents.
    pub documents: u64,
}

/// Documents that are equal token by token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DuplicateGroup {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub documents: Vec<SampleId>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Audit {
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// Documents without a token.
    pub empty_documents: u64,
    /// Tokens of the shortest document.
    pub shortest: u64,
    /// Tokens of the longest.
    pub longest: u64,
    /// Largest id, and the first document that has it.
    pub largest_id: Option<(i32, SampleId)>,
    /// Tokens whose id is not below the vocabulary's size.
    pub outside_vocabulary: Option<u64>,
    /// The ids looked for; those not named are taken from what most documents start and end with.
    pub ids: SpecialIds,
    /// The begin id was not named but taken from the data.
    pub bos_inferred: bool,
    /// The end id was not named but taken from the data.
    pub eos_inferred: bool,
    /// Documents that start with the begin id.
    pub start_with_bos: u64,
    /// Documents that end with the end id (padding behind it left out).
    pub end_with_eos: u64,
    /// Documents that hold the end id before their last token.
    pub eos_inside: u64,
    /// Documents that hold the begin id behind their first token.
    pub bos_inside: u64,
    /// Tokens of padding at the ends of documents.
    pub padding: Option<u64>,
    /// Which convention the documents follow.
    pub convention: Convention,
    /// The most frequent first tokens.
    pub first_tokens: Vec<Frequency>,
    /// The most frequent last tokens.
    pub last_tokens: Vec<Frequency>,
    /// Documents that repeat an earlier one, token by token (empty ones left out).
    pub duplicate_documents: u64,
    /// The largest groups of equal documents.
    pub duplicate_groups: Vec<DuplicateGroup>,
    /// Things to know.
    pub warnings: Vec<String>,
}

#[derive(Default)]
struct Counts {
    tokens: u64,
    empty: u64,
    shortest: Option<u64>,
    longest: u64,
    largest: Option<(i32, SampleId)>,
    outside: u64,
    padding: u64,
    first: BTreeMap<i32, u64>,
    last: BTreeMap<i32, u64>,
    digests: Vec<(Fingerprint, SampleId)>,
}

impl Counts {
    fn add(&mut self, id: SampleId, tokens: &[i32], ids: &SpecialIds) {
        let length = tokens.len() as u64;
        self.tokens += length;
        self.shortest = Some(self.shortest.map_or(length, |least| least.min(length)));
        self.longest = self.longest.max(length);
        let body = without_padding(tokens, ids.pad);
        self.padding += (tokens.len() - body.len()) as u64;
        if body.is_empty() {
            self.empty += 1;
        }
        for &token in tokens {
            if self.largest.is_none_or(|(largest, _)| token > largest) {
                self.largest = Some((token, id));
            }
            self.outside += u64::from(
                ids.vocab_size
                    .is_some_and(|size| i64::from(token) >= i64::from(size)),
            );
        }
        if let (Some(&first), Some(&last)) = (body.first(), body.last()) {
            *self.first.entry(first).or_default() += 1;
            *self.last.entry(last).or_default() += 1;
            self.digests.push((Fingerprint::of_sample(body), id));
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.tokens += other.tokens;
        self.empty += other.empty;
        self.shortest = match (self.shortest, other.shortest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.longest = self.longest.max(other.longest);
        // The earlier document keeps a tie: tasks are merged in sequence.
        if let Some((id, _)) = other.largest
            && self.largest.is_none_or(|(largest, _)| id > largest)
        {
            self.largest = other.largest;
        }
        self.outside += other.outside;
        self.padding += other.padding;
        for (mine, theirs) in [(&mut self.first, other.first), (&mut self.last, other.last)] {
            for (id, count) in theirs {
                *mine.entry(id).or_default() += count;
            }
        }
        self.digests.extend(other.digests);
        self
    }
}

/// A document without the padding at its end.
fn without_padding(tokens: &[i32], pad: Option<i32>) -> &[i32] {
    let end = tokens
        .iter()
        .rposition(|token| Some(*token) != pad)
        .map_or(0, |last| last + 1);
    if pad.is_some() { &tokens[..end] } else { tokens }
}

/// Audits the samples of a source as documents. `done` hears of documents read.
///
/// # Errors
/// The first document that cannot be read.
pub fn audit(
    source: &dyn Source,
    mut ids: SpecialIds,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Audit, SourceError> {
    let documents = source.num_samples();
    let counts = each(source, done, |counts: &mut Counts, id, tokens| {
        counts.add(id, tokens, &ids);
    })?;
    let counts = counts.into_iter().fold(Counts::default(), Counts::merge);
    let whole = documents - counts.empty;
    let (first_tokens, last_tokens) = (most_frequent(&counts.first), most_frequent(&counts.last));
    let likely = |most: &[Frequency]| {
        most.first()
            .filter(|most| whole > 1 && most.documents as f64 >= LIKELY * whole as f64)
            .map(|most| most.id)
    };
    let (bos_inferred, eos_inferred) = (ids.bos.is_none(), ids.eos.is_none());
    // A pad token that was not named may well be what most documents end with: that is still worth a look.
    ids.bos = ids.bos.or(likely(&first_tokens));
    ids.eos = ids.eos.or(likely(&last_tokens));
    let marks = each(source, &|_| {}, |marks: &mut [u64; 4], _, tokens| {
        let body = without_padding(tokens, ids.pad);
        let (first, last) = (body.first().copied(), body.last().copied());
        marks[0] += u64::from(first.is_some() && first == ids.bos);
        marks[1] += u64::from(last.is_some() && last == ids.eos);
        let inside = |range: &[i32], id: Option<i32>| u64::from(id.is_some_and(|id| range.contains(&id)));
        marks[2] += inside(&body[..body.len().saturating_sub(1)], ids.eos);
        marks[3] += inside(body.get(1..).unwrap_or(&[]), ids.bos);
    })?;
    let marks = marks.into_iter().fold([0; 4], |sum, task| {
        [0, 1, 2, 3].map(|which: usize| sum[which] + task[which])
    });
    let (duplicate_documents, duplicate_groups) = duplicates(counts.digests);
    let share = |documents: u64| {
        if whole == 0 {
            0.0
        } else {
            documents as f64 / whole as f64
        }
    };
    let convention = convention(share(marks[0]), share(marks[1]), ids);
    let mut found = Audit {
        documents,
        tokens: counts.tokens,
        empty_documents: counts.empty,
        shortest: counts.shortest.unwrap_or(0),
        longest: counts.longest,
        largest_id: counts.largest,
        outside_vocabulary: ids.vocab_size.map(|_| counts.outside),
        bos_inferred: bos_inferred && ids.bos.is_some(),
        eos_inferred: eos_inferred && ids.eos.is_some(),
        ids,
        start_with_bos: marks[0],
        end_with_eos: marks[1],
        eos_inside: marks[2],
        bos_inside: marks[3],
        padding: ids.pad.map(|_| counts.padding),
        convention,
        first_tokens,
        last_tokens,
        duplicate_documents,
        duplicate_groups,
        warnings: Vec::new(),
    };
    found.warnings = warnings(&found);
    Ok(found)
}

/// Goes through all documents in parallel; the parts come in sequence.
fn each<T: Default + Send>(
    source: &dyn Source,
    done: &(dyn Fn(u64) + Sync),
    add: impl Fn(&mut T, SampleId, &[i32]) + Sync,
) -> Result<Vec<T>, SourceError> {
    const TASK: u64 = 1024;
    let documents = source.num_samples();
    (0..documents.div_ceil(TASK))
        .into_par_iter()
        .map(|task| {
            let (mut part, mut tokens) = (T::default(), Vec::new());
            let range = task * TASK..((task + 1) * TASK).min(documents);
            let count = range.end - range.start;
            for id in range {
                read_sample(source, id, None, &mut tokens)?;
                add(&mut part, id, &tokens);
            }
            done(count);
            Ok(part)
        })
        .collect::<Vec<Result<T, SourceError>>>()
        .into_iter()
        .collect()
}

fn most_frequent(counts: &BTreeMap<i32, u64>) -> Vec<Frequency> {
    let mut all: Vec<Frequency> = counts
        .iter()
        .map(|(&id, &documents)| Frequency { id, documents })
        .collect();
    all.sort_by_key(|f| (std::cmp::Reverse(f.documents), f.id));
    all.truncate(SHOWN);
    all
}

fn convention(begins: f64, ends: f64, ids: SpecialIds) -> Convention {
    let kept = |share: f64, id: Option<i32>| id.is_some() && share >= KEPT;
    // An id that stands in a small share of documents stands there by chance.
    let absent = |share: f64, id: Option<i32>| id.is_none() || share < 0.1;
    match (kept(begins, ids.bos), kept(ends, ids.eos)) {
        (true, true) => Convention::BeginAndEnd,
        (true, false) if absent(ends, ids.eos) => Convention::BeginOnly,
        (false, true) if absent(begins, ids.bos) => Convention::EndOnly,
        (false, false) if absent(begins, ids.bos) && absent(ends, ids.eos) => Convention::None,
        _ => Convention::Mixed,
    }
}

fn duplicates(mut digests: Vec<(Fingerprint, SampleId)>) -> (u64, Vec<DuplicateGroup>) {
    digests.sort_unstable();
    let (mut repeated, mut groups) = (0, Vec::new());
    for equal in digests
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|equal| equal.len() > 1)
    {
        repeated += equal.len() as u64 - 1;
        groups.push(DuplicateGroup {
            count: equal.len() as u64,
            documents: equal.iter().take(SHOWN).map(|(_, id)| *id).collect(),
        });
    }
    groups.sort_by(|a, b| b.count.cmp(&a.count).then(a.documents.cmp(&b.documents)));
    groups.truncate(LISTED);
    (repeated, groups)
}

fn warnings(found: &Audit) -> Vec<String> {
    let mut warnings = Vec::new();
    match found.convention {
        Convention::None if 10 * found.bos_inside.max(found.eos_inside) >= found.documents => {
            warnings.push(format!(
                "rows have neither a begin nor an end token at their ends, yet {} hold one inside: they look like packed \
                 samples, not like documents",
                found.bos_inside.max(found.eos_inside)
            ));
        }
        Convention::None => warnings.push(
            "documents have neither a begin nor an end token: packed into samples, nothing tells a model where one ends"
                .to_owned(),
        ),
        Convention::Mixed => warnings.push(
            "some documents have the begin or end token and some do not: parts of the corpus may have been tokenized in \
             different ways"
                .to_owned(),
        ),
        _ => {}
    }
    if found.empty_documents > 0 {
        warnings.push(format!("{} documents are empty", found.empty_documents));
    }
    if let (Some(outside @ 1..), Some((largest, document))) = (found.outside_vocabulary, found.largest_id) {
        warnings.push(format!(
            "{outside} tokens are outside the vocabulary; the largest id is {largest}, in document {document}"
        ));
    }
    if found.eos_inside > 0 && found.convention != Convention::None {
        warnings.push(format!(
            "{} documents hold the end token inside: they may be several documents stored as one",
            found.eos_inside
        ));
    }
    warnings
}
