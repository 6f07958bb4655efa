//! Documents inside a row: `cu_seqlens` and `position_ids` from markers in the tokens or from the source.
//!
//! Reproduces the `varlen` mode of FLA's data collator (flash-linear-attention, legacy training
//! `DataCollatorForLanguageModeling`): with a BOS id a document starts at each BOS, with an EOS id behind each EOS, and
//! the start and the end of the sequence always bound one. FLA takes one row a batch there; more rows are flattened to
//! one sequence, each row starting a document of its own. `context_length` cuts longer documents into pieces, as its
//! `context_len` does.
//! Bias: none of the tokens change; a marker that also occurs inside documents splits them.
//! Memory: one i32 a token for `cu_seqlens`, as every token can be a document.

use ceteris_samplers::SampleId;

use crate::collate::{DocumentStarts, Outputs, RowOut};
use crate::source::{Source, SourceError};

/// What marks a document boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// This id starts a document.
    Bos(i32),
    /// This id ends a document.
    Eos(i32),
    /// The source knows where documents start.
    Source,
}

/// How rows are cut into documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentRule {
    /// What marks a boundary.
    pub marker: Marker,
    /// Longest document in tokens; longer ones are cut into pieces of this length.
    pub context_length: Option<usize>,
    /// Also fill `position_ids`, restarting at 0 in each document.
    pub position_ids: bool,
}

impl DocumentRule {
    /// A rule without a length limit, with position ids.
    pub fn new(marker: Marker) -> DocumentRule {
        DocumentRule {
            marker,
            context_length: None,
            position_ids: true,
        }
    }

    /// Arrays this rule fills.
    pub fn outputs(&self) -> Outputs {
        Outputs {
            cu_seqlens: true,
            position_ids: self.position_ids,
            ..Outputs::default()
        }
    }

    /// Marks the documents of one row. `starts` is scratch space.
    pub(crate) fn mark(
        &self,
        row: &mut RowOut<'_>,
        source: &dyn Source,
        sample: Option<SampleId>,
        starts: &mut Vec<usize>,
    ) -> Result<(), SourceError> {
        let Some(mut documents) = row.documents.take() else {
            return Ok(());
        };
        starts.clear();
        let tokens = &row.tokens[..row.len];
        match self.marker {
            Marker::Bos(id) => starts.extend(positions(tokens, id)),
            Marker::Eos(id) => starts.extend(positions(tokens, id).map(|at| at + 1)),
            Marker::Source => {
                if let Some(sample) = sample {
                    source.document_starts(sample, starts)?;
                }
            }
        }
        self.write(&mut documents, row.tokens.len(), starts);
        if let Some(position_ids) = row.position_ids.as_deref_mut().filter(|_| self.position_ids) {
            restart_positions(position_ids, &documents);
        }
        Ok(())
    }

    /// Pushes the starts, cutting documents longer than the limit.
    fn write(&self, documents: &mut DocumentStarts<'_>, row_tokens: usize, starts: &[usize]) {
        let mut open = 0;
        for &start in starts.iter().chain(std::iter::once(&row_tokens)) {
            let start = start.min(row_tokens);
            if start < open {
                continue;
            }
            if let Some(limit) = self.context_length {
                let mut piece = open + limit;
                while piece < start {
                    documents.push(piece);
                    piece += limit;
                }
            }
            documents.push(start);
            open = start;
        }
    }
}

fn positions(tokens: &[i32], id: i32) -> impl Iterator<Item = usize> + '_ {
    tokens
        .iter()
        .enumerate()
        .filter(move |&(_, &token)| token == id)
        .map(|(at, _)| at)
}

fn restart_positions(position_ids: &mut [i32], documents: &DocumentStarts<'_>) {
    let mut starts = documents.offsets().skip(1).peekable();
    let mut position = 0;
    for (at, slot) in position_ids.iter_mut().enumerate() {
        if starts.next_if_eq(&at).is_some() {
            position = 0;
        }
        *slot = position;
        position += 1;
    }
}
