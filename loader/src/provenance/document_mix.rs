//! What an order takes of the documents of each dataset, for sources that cut samples out of documents: sample ids of
//! such a run never come twice, its documents do.
//!
//! Memory: about 30 bytes a document.

use std::collections::HashMap;

use ceteris_samplers::Order;
use serde::Serialize;

use super::lookup::LookupError;
use crate::source::Source;

/// Documents of one dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DocumentShare {
    /// Tokens consumed.
    pub tokens: u64,
    /// Different stored sequences of which something was consumed.
    pub documents: u64,
    /// Tokens consumed in units of those documents' tokens.
    pub epochs: f64,
    /// The first sequence whose start is consumed a second time.
    pub first_repeat_document: Option<u64>,
    /// Sample of the run, from 0, that does.
    pub first_repeat_draw: Option<u64>,
    /// Optimizer step, from 0, of that sample.
    pub first_repeat_step: Option<u64>,
}

/// Counts over some epochs of an order; `None` where the source knows no documents. `done` hears of samples.
///
/// # Errors
/// [`LookupError`].
pub fn documents_taken(
    source: &dyn Source,
    order: &dyn Order,
    epochs: std::ops::Range<u64>,
    done: &dyn Fn(u64),
) -> Result<Option<Vec<DocumentShare>>, LookupError> {
    let mut spans = Vec::new();
    if source.num_samples() == 0 || !source.document_spans(0, &mut spans)? {
        return Ok(None);
    }
    let mut shares = vec![DocumentShare::default(); source.part_names().len().max(1)];
    let mut sizes = vec![0u64; shares.len()];
    // Per sequence: how often its start was consumed.
    let mut starts: HashMap<(usize, u64), u32> = HashMap::new();
    let mut draw = 0u64;
    for epoch in epochs {
        let index = order.epoch(epoch)?;
        for k in 0.. {
            let Some(place) = index.place_of(k) else { break };
            let Some(id) = index.sample(place) else { continue };
            spans.clear();
            source.document_spans(id, &mut spans)?;
            for span in &spans {
                let Some(share) = shares.get_mut(span.part) else {
                    continue;
                };
                share.tokens += span.end - span.start;
                let seen = starts.entry((span.part, span.sequence)).or_insert_with(|| {
                    share.documents += 1;
                    sizes[span.part] += span.sequence_len;
                    0
                });
                if span.start == 0 {
                    *seen += 1;
                    if *seen == 2 && share.first_repeat_draw.is_none() {
                        share.first_repeat_document = Some(span.document);
                        share.first_repeat_draw = Some(draw);
                        share.first_repeat_step =
                            Some(epoch * order.steps_per_epoch() + index.step_of(place.micro_step));
                    }
                }
            }
            draw += 1;
            if draw.is_multiple_of(1 << 14) {
                done(1 << 14);
            }
        }
    }
    for (share, size) in shares.iter_mut().zip(sizes) {
        share.epochs = share.tokens as f64 / size.max(1) as f64;
    }
    Ok(Some(shares))
}
