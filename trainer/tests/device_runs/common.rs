//! What the tests of runs on a CUDA device share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ceteris_kernels::conformance::Rng;
use ceteris_kernels::cuda::device_count;
use ceteris_loader::source::{Source, SourceError};
use ceteris_samplers::SampleId;
use ceteris_trainer::config::RunConfig;
use ceteris_trainer::data::{GlobalBatch, GlobalBatches, TrainData};
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::run::engine::Engine;

static TURN: Mutex<()> = Mutex::new(());

/// The device, for one test at a time; where there is none, says so.
pub fn device() -> Option<MutexGuard<'static, ()>> {
    match device_count() {
        Ok(n) if n > 0 => Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)),
        Ok(_) => {
            println!("skipped: no CUDA device");
            None
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Rows of given tokens.
#[derive(Debug)]
pub struct Rows(pub Vec<Vec<i32>>);

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
    fn file_of(&self, _: SampleId) -> Option<PathBuf> {
        None
    }
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

fn on_cuda(model: ModelConfig, seq_length: usize) -> RunConfig {
    let mut config = RunConfig {
        model,
        ..RunConfig::default()
    };
    config.data.cache_dir = "rows".into();
    config.data.seq_length = seq_length;
    config.train.device = "cuda".into();
    config.train.steps = Some(1000);
    config.loader.workers = 0;
    config
}

/// A small network over rows of `seq_length` tokens below 64, in stored order, on the first device.
pub fn small(seq_length: usize) -> RunConfig {
    let model = ModelConfig {
        hidden_size: 64,
        num_hidden_layers: 1,
        vocab_size: 64,
        num_heads: 1,
        num_v_heads: Some(4),
        head_dim: 64,
        expand_v: 1.0,
        intermediate_size: Some(128),
        tie_word_embeddings: true,
        ..ModelConfig::default()
    };
    let mut config = on_cuda(model, seq_length);
    config.data.pad_token_id = Some(0);
    config
}

/// Two layers of gdn-300m with a smaller vocabulary, on the first device.
pub fn layers_of_300m(seq_length: usize, vocab_size: usize) -> RunConfig {
    let model = ModelConfig {
        num_hidden_layers: 2,
        vocab_size,
        bos_token_id: Some(1),
        ..ModelConfig::gdn_300m()
    };
    on_cuda(model, seq_length)
}

/// The engine of a run with its initial weights.
pub fn engine(config: &RunConfig) -> Engine {
    config.validate().unwrap();
    let mut engine = Engine::build(config).unwrap();
    engine.initialise(config).unwrap();
    engine
}

/// Global batches over the given rows.
pub fn batches(config: &RunConfig, rows: &[Vec<i32>]) -> GlobalBatches {
    let data = TrainData::over(config, Arc::new(Rows(rows.to_vec())), "rows".into()).unwrap();
    data.batches(config, None, None).unwrap()
}

/// The first global batch over the given rows.
pub fn first_batch(config: &RunConfig, rows: &[Vec<i32>]) -> GlobalBatch {
    batches(config, rows).next_batch().unwrap().unwrap()
}

/// The run with its global batch laid out like this.
pub fn split(config: &RunConfig, world: u64, micro: u64, accumulation: u64) -> RunConfig {
    let mut config = config.clone();
    config.batch.world_size = world;
    config.batch.micro_batch_size = micro;
    config.batch.gradient_accumulation_steps = Some(accumulation);
    config
}

/// A sequence of tokens from 2 on, below `vocab`: neither padding nor a begin token.
pub fn sequence(rng: &mut Rng, len: usize, vocab: usize) -> Vec<i32> {
    (0..len).map(|_| 2 + rng.below(vocab - 2) as i32).collect()
}
