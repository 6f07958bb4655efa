//! Which documents a sample is made of: what the source says, what markers in the tokens say, or rows as documents.
//!
//! With a marker (an end or a begin id) documents run on from row to row in stored sequence, as a packing tokenizer lays
//! them; they are numbered from 0. Memory then: 16 bytes a row, after one pass over all tokens.

use std::sync::Arc;

use ceteris_samplers::SampleId;
use rayon::prelude::*;

use super::digests::read_sample;
use crate::source::{DocumentSpan, Source, SourceError};

/// What parts documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// This id is the last token of a document.
    End(i32),
    /// This id is the first token of a document.
    Begin(i32),
}

/// The documents of a dataset.
#[derive(Debug)]
pub struct Documents {
    source: Arc<dyn Source>,
    seq_length: Option<usize>,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    /// The source knows.
    Source,
    /// A row is a document.
    Rows,
    /// Markers part them.
    Marked {
        mark: Mark,
        /// For each row: the document it starts in, and how many tokens of that lie before it.
        rows: Vec<(u64, u64)>,
        /// Documents and tokens of the last one.
        end: (u64, u64),
    },
}

impl Documents {
    /// Documents of a source; with a mark, its tokens are read once (`done` hears of rows).
    ///
    /// # Errors
    /// Samples that cannot be read.
    pub fn new(
        source: Arc<dyn Source>,
        seq_length: Option<usize>,
        mark: Option<Mark>,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, SourceError> {
        let rule = match mark {
            Some(mark) => marked(&*source, seq_length, mark, done)?,
            None if source.num_samples() > 0 && source.document_spans(0, &mut Vec::new())? => Rule::Source,
            None => Rule::Rows,
        };
        Ok(Self {
            source,
            seq_length,
            rule,
        })
    }

    /// How documents are known, as a sentence.
    pub fn in_words(&self) -> String {
        match &self.rule {
            Rule::Source => "documents are those of the dataset's index".to_owned(),
            Rule::Rows => {
                "each stored row counts as one document; what lies inside is told by --eos-id or --bos-id"
                    .to_owned()
            }
            Rule::Marked { mark, end, .. } => format!(
                "{} documents, parted {}, running on from row to row in stored sequence",
                end.0,
                match mark {
                    Mark::End(id) => format!("behind each {id}"),
                    Mark::Begin(id) => format!("before each {id}"),
                }
            ),
        }
    }

    /// Documents of a sample, in the sequence they stand in it.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn of_sample(&self, id: SampleId) -> Result<Vec<DocumentSpan>, SourceError> {
        let mut spans = Vec::new();
        match &self.rule {
            Rule::Source => {
                self.source.document_spans(id, &mut spans)?;
            }
            Rule::Rows => {
                let stored = self.source.sample_len(id)? as u64;
                let length = stored.min(self.seq_length.unwrap_or(usize::MAX) as u64);
                let row = self.source.stored_row(id);
                spans.push(DocumentSpan {
                    part: self.source.part_of(id),
                    document: row,
                    sequence: row,
                    start: 0,
                    end: length,
                    sequence_len: stored,
                    at: 0,
                });
            }
            Rule::Marked { mark, rows, .. } => {
                let mut tokens = Vec::new();
                read_sample(&*self.source, id, self.seq_length, &mut tokens)?;
                let at = usize::try_from(id).unwrap_or(usize::MAX);
                let (mut document, mut start) = rows.get(at).copied().unwrap_or((0, 0));
                let mut open = 0;
                let mut close = |end: usize, open: &mut usize, document: &mut u64, start: &mut u64| {
                    if end > *open {
                        let length = (end - *open) as u64;
                        spans.push(DocumentSpan {
                            part: 0,
                            document: *document,
                            sequence: *document,
                            start: *start,
                            end: *start + length,
                            // Filled in below, where it is asked for.
                            sequence_len: 0,
                            at: *open as u64,
                        });
                        *start += length;
                    }
                    *open = end;
                };
                for (i, &token) in tokens.iter().enumerate() {
                    match mark {
                        Mark::End(id) if token == *id => {
                            close(i + 1, &mut open, &mut document, &mut start);
                            document += 1;
                            start = 0;
                        }
                        Mark::Begin(id) if token == *id && (i > 0 || start > 0) => {
                            close(i, &mut open, &mut document, &mut start);
                            if start > 0 {
                                document += 1;
                                start = 0;
                            }
                        }
                        _ => {}
                    }
                }
                close(tokens.len(), &mut open, &mut document, &mut start);
                for span in &mut spans {
                    span.sequence_len = self.marked_len(span.document)?;
                }
            }
        }
        Ok(spans)
    }

    /// Tokens of a marked document: up to where the next one starts.
    ///
    /// # Errors
    /// As [`Source::read`].
    fn marked_len(&self, document: u64) -> Result<u64, SourceError> {
        let Rule::Marked { rows, end, mark, .. } = &self.rule else {
            return Ok(0);
        };
        // The first row that starts in a later document: the document ends in the row before it.
        let after = rows.partition_point(|(first, _)| *first <= document);
        let last_row = after.saturating_sub(1);
        let id = last_row as SampleId;
        let mut tokens = Vec::new();
        read_sample(&*self.source, id, self.seq_length, &mut tokens)?;
        let (mut current, mut length) = rows.get(last_row).copied().unwrap_or(*end);
        for (i, &token) in tokens.iter().enumerate() {
            if let Mark::Begin(id) = mark
                && token == *id
                && (i > 0 || length > 0)
            {
                if current == document {
                    return Ok(length);
                }
                current += u64::from(length > 0);
                length = 0;
            }
            length += 1;
            if matches!(mark, Mark::End(id) if token == *id) {
                if current == document {
                    return Ok(length);
                }
                current += 1;
                length = 0;
            }
        }
        Ok(length)
    }

    /// Samples that hold a part of a document, ascending.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn samples_of(&self, document: u64) -> Result<Vec<SampleId>, SourceError> {
        let samples = self.source.num_samples();
        let range = match &self.rule {
            Rule::Source | Rule::Rows => 0..samples,
            Rule::Marked { rows, .. } => {
                let first = rows
                    .partition_point(|(first, _)| *first < document)
                    .saturating_sub(1);
                let last = rows.partition_point(|(first, _)| *first <= document);
                first as u64..last as u64
            }
        };
        let found: Vec<Result<Option<SampleId>, SourceError>> = range
            .into_par_iter()
            .map(|id| {
                let holds = match &self.rule {
                    Rule::Rows => self.source.stored_row(id) == document,
                    _ => self.of_sample(id)?.iter().any(|span| span.document == document),
                };
                Ok(holds.then_some(id))
            })
            .collect();
        found.into_iter().filter_map(Result::transpose).collect()
    }
}

/// One pass over all rows.
fn marked(
    source: &dyn Source,
    seq_length: Option<usize>,
    mark: Mark,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Rule, SourceError> {
    const TASK: u64 = 1024;
    // Of each row: documents that end in it (begin, for begin marks), tokens behind the last mark, all tokens, and
    // whether it starts with a begin mark.
    type RowMarks = (u64, u64, u64, bool);
    let samples = source.num_samples();
    let tasks: Vec<Result<Vec<RowMarks>, SourceError>> = (0..samples.div_ceil(TASK))
        .into_par_iter()
        .map(|task| {
            let (mut out, mut tokens) = (Vec::new(), Vec::new());
            for id in task * TASK..((task + 1) * TASK).min(samples) {
                read_sample(source, id, seq_length, &mut tokens)?;
                let marker = match mark {
                    Mark::End(id) | Mark::Begin(id) => id,
                };
                let count = tokens.iter().filter(|token| **token == marker).count() as u64;
                let last = tokens.iter().rposition(|token| *token == marker);
                let behind = match (mark, last) {
                    (_, None) => tokens.len(),
                    (Mark::End(_), Some(at)) => tokens.len() - at - 1,
                    (Mark::Begin(_), Some(at)) => tokens.len() - at,
                };
                out.push((
                    count,
                    behind as u64,
                    tokens.len() as u64,
                    tokens.first() == Some(&marker),
                ));
            }
            done(out.len() as u64);
            Ok(out)
        })
        .collect();
    let mut rows = Vec::with_capacity(samples as usize);
    let (mut document, mut before) = (0u64, 0u64);
    for task in tasks {
        for (count, behind, length, starts) in task? {
            rows.push((document, before));
            match mark {
                Mark::End(_) if count > 0 => {
                    document += count;
                    before = behind;
                }
                Mark::Begin(_) if count > 0 => {
                    // The very first document starts without closing one.
                    let closes = count - u64::from(starts && before == 0);
                    document += closes;
                    before = behind;
                }
                _ => before += length,
            }
        }
    }
    let documents = document + u64::from(before > 0);
    Ok(Rule::Marked {
        mark,
        rows,
        end: (documents, before),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::side::TokenRows;

    fn documents(rows: &[&[i32]], mark: Mark) -> Documents {
        let rows = rows.iter().map(|row| row.to_vec()).collect();
        let source = Arc::new(TokenRows {
            path: "rows".into(),
            rows,
        });
        Documents::new(source, None, Some(mark), &|_| {}).expect("readable")
    }

    fn spans(documents: &Documents, id: u64) -> Vec<(u64, u64, u64, u64)> {
        let spans = documents.of_sample(id).expect("readable");
        spans
            .iter()
            .map(|s| (s.document, s.start, s.end, s.sequence_len))
            .collect()
    }

    #[test]
    fn documents_run_on_from_row_to_row() {
        // End id 0: documents 5 6 0, 7 8 9 1 0 over two rows, 2 3 without an end.
        let ended = documents(&[&[5, 6, 0, 7], &[8, 9, 1, 0], &[2, 3]], Mark::End(0));
        assert_eq!(spans(&ended, 0), [(0, 0, 3, 3), (1, 0, 1, 5)]);
        assert_eq!(spans(&ended, 1), [(1, 1, 5, 5)]);
        assert_eq!(spans(&ended, 2), [(2, 0, 2, 2)]);
        assert_eq!(ended.samples_of(1).expect("readable"), [0, 1]);
        assert!(ended.in_words().starts_with("3 documents"));
        // Begin id 0: documents 0 5 6, 0 7 8 9 over two rows, 0 2.
        let begun = documents(&[&[0, 5, 6, 0], &[7, 8, 9], &[0, 2]], Mark::Begin(0));
        assert_eq!(spans(&begun, 0), [(0, 0, 3, 3), (1, 0, 1, 4)]);
        assert_eq!(spans(&begun, 1), [(1, 1, 4, 4)]);
        assert_eq!(spans(&begun, 2), [(2, 0, 2, 2)]);
        assert_eq!(begun.samples_of(1).expect("readable"), [0, 1]);
    }
}
