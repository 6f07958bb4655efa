//! Labels, masks, positions and document boundaries in the batches.

use std::sync::Arc;

use ceteris_loader::collate::{
    Collated, Collator, EodMask, HfCollator, LabelShift, Outputs, RowOut, ShimCollator, TokenBlock,
};
use ceteris_loader::pipeline::{DocumentRule, Loader, LoaderOptions, Marker};
use ceteris_loader::source::{Source, SourceError};
use ceteris_samplers::SampleId;

use crate::toy::{ToyOrder, ToySource, token};

fn batches(source: impl Source + 'static, options: LoaderOptions) -> Loader {
    let n = source.num_samples();
    let options = LoaderOptions {
        epochs: Some(1),
        workers: 2,
        ..options
    };
    Loader::new(Arc::new(source), Arc::new(ToyOrder::new(n, 2, 3, 1)), options).unwrap()
}

#[test]
fn collators_give_in_the_loader_what_they_give_on_a_block() {
    let collators: [Arc<dyn Collator>; 2] = [
        Arc::new(HfCollator {
            pad_token_id: Some(5001),
        }),
        Arc::new(ShimCollator {
            pad_token_id: 0,
            eod_mask: EodMask::PerRow { eod_token_id: 7002 },
        }),
    ];
    for collator in collators {
        let options = LoaderOptions {
            collator: Arc::clone(&collator),
            ..LoaderOptions::new(4)
        };
        for batch in batches(ToySource::new(20, 4), options) {
            let batch = batch.unwrap();
            for m in batch.micro_batches() {
                let mut stored = vec![0; 12];
                for slot in 0..m.valid_rows {
                    for (j, t) in stored[slot * 4..slot * 4 + 4].iter_mut().enumerate() {
                        *t = token(m.rows[slot], j);
                    }
                }
                let block = TokenBlock {
                    tokens: &stored,
                    width: 4,
                    valid_rows: m.valid_rows,
                };
                let mut expected = Collated::default();
                collator.collate(&block, &mut expected).unwrap();
                assert_eq!(m.labels.unwrap(), expected.labels);
                assert_eq!(m.loss_mask.unwrap(), expected.loss_mask);
                assert_eq!(m.position_ids.unwrap(), expected.position_ids);
                let valid = m.valid_rows * 4;
                assert_eq!(m.tokens[..valid], expected.tokens[..valid]);
                assert!(m.cu_seqlens.is_none());
            }
        }
    }
}

#[test]
fn only_the_arrays_asked_for_are_made() {
    let options = LoaderOptions {
        collator: Arc::new(HfCollator { pad_token_id: None }),
        outputs: Outputs {
            labels: true,
            ..Outputs::default()
        },
        ..LoaderOptions::new(4)
    };
    let batch = batches(ToySource::new(20, 4), options).next().unwrap().unwrap();
    let m = batch.rank(1).unwrap();
    assert_eq!(m.labels.unwrap(), m.tokens);
    assert!(m.loss_mask.is_none() && m.position_ids.is_none());
}

/// Labels are the next token of the sample, which is one token longer than the row.
#[derive(Debug)]
struct NextToken;

impl Collator for NextToken {
    fn name(&self) -> &'static str {
        "next-token"
    }

    fn label_shift(&self) -> LabelShift {
        LabelShift::InData
    }

    fn width(&self, seq_length: usize) -> usize {
        seq_length + 1
    }

    fn outputs(&self) -> Outputs {
        Outputs {
            labels: true,
            ..Outputs::default()
        }
    }

    fn collate_row(&self, row: &mut RowOut<'_>) {
        let labels = row.labels.as_deref_mut().unwrap();
        labels.fill(-100);
        if row.len > 0 {
            labels[..row.len - 1].copy_from_slice(&row.tokens[1..row.len]);
            if let Some(&last) = row.extra.first() {
                labels[row.len - 1] = last;
            }
        }
    }
}

/// Tokens beyond T come from the sample, not from the row that lies behind it in the buffer.
#[test]
fn samples_longer_than_their_row_give_their_last_label() {
    let mut source = ToySource::new(20, 5);
    source.lens.insert(3, 4);
    source.lens.insert(4, 2);
    let options = LoaderOptions {
        collator: Arc::new(NextToken),
        pad_token: -1,
        ..LoaderOptions::new(4)
    };
    let mut rows = 0;
    for batch in batches(source, options) {
        let batch = batch.unwrap();
        for m in batch.micro_batches() {
            for slot in 0..m.valid_rows {
                let id = m.rows[slot];
                let len = match id {
                    3 => 4,
                    4 => 2,
                    _ => 5,
                };
                let at = slot * 4..slot * 4 + 4;
                let token_at = |j| if j < len { token(id, j) } else { -1 };
                let label_at = |j: usize| if j + 1 < len { token(id, j + 1) } else { -100 };
                assert_eq!(m.tokens[at.clone()], [0, 1, 2, 3].map(token_at), "sample {id}");
                assert_eq!(m.labels.unwrap()[at], [0, 1, 2, 3].map(label_at), "sample {id}");
                rows += 1;
            }
        }
    }
    assert_eq!(rows, 20);
}

/// One row a sample, given token by token.
#[derive(Debug)]
struct Rows(Vec<Vec<i32>>);

impl Source for Rows {
    fn num_samples(&self) -> u64 {
        self.0.len() as u64
    }

    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError> {
        Ok(self.0[id as usize].len())
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let row = &self.0[id as usize];
        let n = row.len().min(out.len());
        out[..n].copy_from_slice(&row[..n]);
        Ok(n)
    }

    fn file_of(&self, _id: SampleId) -> Option<std::path::PathBuf> {
        None
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        Vec::new()
    }
}

/// The rows, by their own index, of a loader with one rank and one micro-step.
fn one_batch(rows: &[&[i32]], rule: DocumentRule) -> (Vec<i32>, Option<Vec<i32>>) {
    let source = Rows(rows.iter().map(|row| row.to_vec()).collect());
    let n = source.num_samples();
    let options = LoaderOptions {
        epochs: Some(1),
        documents: Some(rule),
        ..LoaderOptions::new(6)
    };
    // A single sample, or samples of equal rows: the toy order's permutation does not matter.
    let order = Arc::new(ToyOrder::new(n, 1, n, 1));
    let mut loader = Loader::new(Arc::new(source), order, options).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let m = batch.rank(0).unwrap();
    (
        m.cu_seqlens.unwrap().to_vec(),
        m.position_ids.map(<[i32]>::to_vec),
    )
}

#[test]
fn documents_start_at_bos_and_end_behind_eos() {
    let bos = DocumentRule::new(Marker::Bos(1));
    let eos = DocumentRule::new(Marker::Eos(2));
    let cases: &[(DocumentRule, &[i32], &[i32])] = &[
        // The start bounds a document with or without a marker there; markers in a row are documents of one token.
        (bos, &[1, 5, 5, 1, 5, 5], &[0, 3, 6]),
        (bos, &[5, 5, 5, 1, 1, 5], &[0, 3, 4, 6]),
        (bos, &[5, 5, 5, 5, 5, 1], &[0, 5, 6]),
        (bos, &[5, 5, 5, 5, 5, 5], &[0, 6]),
        (eos, &[5, 5, 2, 5, 5, 2], &[0, 3, 6]),
        (eos, &[2, 2, 5, 5, 5, 5], &[0, 1, 2, 6]),
        (eos, &[5, 5, 5, 5, 5, 5], &[0, 6]),
        // A limit cuts long documents from their own start.
        (
            DocumentRule {
                context_length: Some(2),
                ..bos
            },
            &[5, 5, 5, 1, 5, 5],
            &[0, 2, 3, 5, 6],
        ),
        (
            DocumentRule {
                context_length: Some(3),
                ..bos
            },
            &[5, 5, 5, 1, 5, 5],
            &[0, 3, 6],
        ),
    ];
    for (rule, tokens, expected) in cases {
        let (cu_seqlens, position_ids) = one_batch(&[tokens], *rule);
        assert_eq!(cu_seqlens, *expected, "{rule:?} over {tokens:?}");
        let expected_positions: Vec<i32> = expected.windows(2).flat_map(|w| 0..w[1] - w[0]).collect();
        assert_eq!(position_ids.unwrap(), expected_positions);
    }
    let bare = DocumentRule {
        position_ids: false,
        ..bos
    };
    assert!(one_batch(&[&[1, 5, 5, 1, 5, 5]], bare).1.is_none());
}

#[test]
fn every_row_of_a_micro_batch_starts_a_document() {
    let rows: [&[i32]; 2] = [&[5, 5, 1, 5, 5, 5], &[5, 5, 1, 5, 5, 5]];
    let (cu_seqlens, position_ids) = one_batch(&rows, DocumentRule::new(Marker::Bos(1)));
    assert_eq!(cu_seqlens, [0, 2, 6, 8, 12]);
    assert_eq!(position_ids.unwrap(), [0, 1, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3]);
}

#[test]
fn the_source_can_say_where_documents_start() {
    let source = ToySource {
        document_length: Some(3),
        ..ToySource::new(8, 8)
    };
    let options = LoaderOptions {
        documents: Some(DocumentRule::new(Marker::Source)),
        ..LoaderOptions::new(8)
    };
    let batch = batches(source, options).nth(1).unwrap().unwrap();
    // 8 samples over 2 ranks of 3: rank 0 has two rows left, its third and all of rank 1's are padding.
    let m = batch.rank(0).unwrap();
    assert_eq!(m.valid_rows, 2);
    assert_eq!(m.cu_seqlens.unwrap(), [0, 3, 6, 8, 11, 14, 16, 24]);
    assert_eq!(batch.rank(1).unwrap().cu_seqlens.unwrap(), [0, 8, 16, 24]);
}
