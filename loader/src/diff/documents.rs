//! Documents that two token files encode otherwise, one by one.

use serde::Serialize;

use super::side::Side;
use super::tokens::{Relation, TokenDifference};
use crate::source::SourceError;

/// Documents listed, at most; all are counted.
pub const LISTED: usize = 1000;
/// Pairs that are looked at to say what kind of difference it is.
const LOOKED_AT: usize = 4096;

/// A document (or sample) that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DocumentDifference {
    /// Its number in the first.
    pub a: u64,
    /// Its number in the second.
    pub b: u64,
    /// The first token that differs.
    #[serde(flatten)]
    pub difference: TokenDifference,
}

/// What the pairs of samples that differ have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Pairs there are.
    pub total: u64,
    /// The first of them.
    pub listed: Vec<DocumentDifference>,
    /// Most of those looked at are the same text encoded otherwise, or differ by a convention.
    pub same_text: bool,
    /// The relation that all those looked at have, if there is one.
    pub common_relation: Option<Relation>,
}

/// Looks at pairs of positions whose samples differ; `None` where tokens are missing.
///
/// # Errors
/// Samples that cannot be read.
pub fn pairs(
    a: &Side,
    id_a: &dyn Fn(usize) -> Option<u64>,
    b: &Side,
    id_b: &dyn Fn(usize) -> Option<u64>,
    positions: &[(usize, usize)],
) -> Result<Option<Pairs>, SourceError> {
    let (Some(source_a), Some(source_b)) = (a.source.as_deref(), b.source.as_deref()) else {
        return Ok(None);
    };
    let (mut tokens_a, mut tokens_b) = (Vec::new(), Vec::new());
    let mut found = Pairs {
        total: positions.len() as u64,
        listed: Vec::new(),
        same_text: false,
        common_relation: None,
    };
    let (mut alike, mut looked_at, mut relations) = (0, 0, Vec::new());
    for &(i, j) in positions.iter().take(LOOKED_AT) {
        let (Some(row_a), Some(row_b)) = (id_a(i), id_b(j)) else {
            continue;
        };
        crate::provenance::digests::read_sample(source_a, row_a, a.seq_length, &mut tokens_a)?;
        crate::provenance::digests::read_sample(source_b, row_b, b.seq_length, &mut tokens_b)?;
        let Some(difference) = TokenDifference::between(&tokens_a, &tokens_b) else {
            continue;
        };
        looked_at += 1;
        alike += usize::from(difference.relation != Relation::Unrelated);
        if !relations.contains(&difference.relation) {
            relations.push(difference.relation);
        }
        if found.listed.len() < LISTED {
            found.listed.push(DocumentDifference {
                a: row_a,
                b: row_b,
                difference,
            });
        }
    }
    found.same_text = looked_at > 0 && 2 * alike > looked_at;
    if let [relation] = relations[..] {
        found.common_relation = Some(relation);
    }
    Ok(Some(found))
}
