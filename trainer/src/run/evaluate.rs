//! Evaluation: mean negative log-likelihood of held-out rows, in the order they are stored.

use std::time::Instant;

use ceteris_loader::source::{HfSource, Source};

use super::engine::Engine;
use super::metrics::EvalMetrics;
use super::{RunError, engine::EngineError};
use crate::config::RunConfig;
use crate::data::{self, DataError, Documents, HeldOut};

/// Held-out rows of a run.
#[derive(Debug)]
pub struct Evaluation {
    source: HfSource,
    rows: u64,
    documents: Documents,
    pad: Option<i32>,
    seq_length: usize,
}

impl Evaluation {
    /// Opens the held-out rows, `None` when the settings name none.
    ///
    /// # Errors
    /// [`RunError::Data`].
    pub fn open(config: &RunConfig) -> Result<Option<Self>, RunError> {
        let Some(folder) = &config.eval.cache_dir else {
            return Ok(None);
        };
        let source = data::open_held_out(config, folder)?;
        Ok(Some(Evaluation {
            rows: config.eval.samples.unwrap_or(u64::MAX).min(source.num_samples()),
            source,
            documents: data::documents(config),
            pad: config.data.pad_token_id.and_then(|t| i32::try_from(t).ok()),
            seq_length: config.data.seq_length,
        }))
    }

    /// Rows that are evaluated.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Evaluates the weights as they are, after `step` steps.
    ///
    /// # Errors
    /// [`RunError`]; rows in which nothing counts have no mean.
    pub fn run(&self, engine: &mut Engine, step: u64) -> Result<EvalMetrics, RunError> {
        let started = Instant::now();
        let rows = engine.micro_batch_size();
        let mut held_out = HeldOut::new(&self.source, self.rows, self.seq_length, self.documents, self.pad);
        let sum = engine.evaluate(|input| held_out.fill(rows, input))?;
        let counted = held_out.counted_tokens();
        if counted == 0 {
            return Err(EngineError::from(DataError::NothingHeldOut).into());
        }
        Ok(EvalMetrics {
            step,
            eval_loss: sum / counted as f64,
            eval_tokens: counted,
            eval_s: started.elapsed().as_secs_f64(),
        })
    }
}
