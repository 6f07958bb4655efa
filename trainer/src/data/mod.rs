//! From settings to global batches: source, order and loader of a run.

mod global_batch;
mod held_out;
mod page_locked;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ceteris_loader::collate::{
    Collator, EodMask, HfCollator, LabelShift, Outputs, ShimCollator, check_label_shift,
};
use ceteris_loader::order_file::{self, OrderFileError};
use ceteris_loader::pipeline::{
    BufferAllocator, Loader, LoaderError, LoaderOptions, LoaderState, PlainMemory, StopSignal,
};
use ceteris_loader::source::{FingerprintMode, HfSource, Source, SourceError, SourceOptions};
use ceteris_samplers::orders::file::FileOrder;
use ceteris_samplers::spec::{OrderError, OrderInput, OrderSpec};
use ceteris_samplers::{Geometry, Order, Place};

use crate::config::{Collate, DocumentMarker, RunConfig, SettingError};

pub use global_batch::{Documents, GlobalBatch, GlobalBatches, IGNORE, ModelInput};
pub use held_out::HeldOut;
pub use page_locked::{Notice, batch_memory};

/// Why data cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Settings.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The dataset.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The order.
    #[error("order: {0}")]
    Order(#[from] OrderError),
    /// Reading.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The list of an order given as a file.
    #[error(transparent)]
    OrderFile(#[from] OrderFileError),
    /// Nothing to take a mean over.
    #[error("no token of the held-out rows counts in the loss")]
    NothingHeldOut,
    /// A row holds more documents than there is room for.
    #[error(
        "row {row} holds {found} documents, more than data.max_documents_per_row {limit}; raise that setting"
    )]
    Documents {
        /// Row of the stored table.
        row: u64,
        /// Documents found.
        found: usize,
        /// Room.
        limit: usize,
    },
}

/// A dataset and the order it is read in.
#[derive(Debug)]
pub struct TrainData {
    /// The rows.
    pub source: Arc<dyn Source>,
    /// Their order.
    pub order: Arc<dyn Order>,
    /// Layout of a global batch as the user gave it.
    pub geometry: Geometry,
    /// Fingerprint of the dataset's files.
    pub fingerprint: String,
    /// Memory that batches are read into; plain unless replaced, see [`batch_memory`].
    pub memory: Arc<dyn BufferAllocator>,
}

impl TrainData {
    /// Opens the dataset and builds the order of a run. `notice` hears what a user should be told.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn open(config: &RunConfig, notice: &mut dyn FnMut(&str)) -> Result<Self, DataError> {
        let (source, fingerprint) = open_rows(config, notice)?;
        Self::over(config, source, fingerprint)
    }

    /// Builds the order of a run over a source.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn over(config: &RunConfig, source: Arc<dyn Source>, fingerprint: String) -> Result<Self, DataError> {
        let geometry = config.geometry()?;
        let mut spec = config.order_spec()?;
        let mut input = OrderInput::new(source.num_samples(), geometry);
        if let Some(file) = spec.downcast::<FileOrder>() {
            let (list, digest) = order_file::read(file, source.num_samples())?;
            spec = OrderSpec::new(file.with_digest(digest));
            input.list = Some(Arc::new(list));
        }
        let order = spec.build(&input)?;
        Ok(TrainData {
            source,
            order,
            geometry,
            fingerprint,
            memory: Arc::new(PlainMemory),
        })
    }

    /// Optimizer steps of the run: `train.steps`, or what `train.epochs` holds, whichever is fewer.
    pub fn steps(&self, config: &RunConfig) -> u64 {
        let epochs = config
            .train
            .epochs
            .map(|e| e.saturating_mul(self.order.steps_per_epoch()));
        match (config.train.steps, epochs) {
            (Some(steps), Some(epochs)) => steps.min(epochs),
            (Some(steps), None) => steps,
            (None, Some(epochs)) => epochs,
            (None, None) => 0,
        }
    }

    /// Digest of every row that `steps` steps consume, in deal position order: what the order decides, and nothing else.
    ///
    /// # Errors
    /// [`DataError::Order`].
    pub fn order_hash(&self, steps: u64) -> Result<String, DataError> {
        let mut hasher = OrderHasher::default();
        hasher.add(self, 0..steps)?;
        Ok(hasher.finish())
    }

    /// Epoch and micro-step within it at which optimizer step `step` of the run starts, counted from 0.
    ///
    /// # Errors
    /// [`DataError::Order`].
    pub fn place_of_step(&self, step: u64) -> Result<(u64, u64), DataError> {
        let per_epoch = self.order.steps_per_epoch().max(1);
        let (epoch, within) = (step / per_epoch, step % per_epoch);
        if within == 0 {
            return Ok((epoch, 0));
        }
        let built = self.order.epoch(epoch)?;
        // Steps ascend with micro-steps.
        let (mut low, mut high) = (0, built.micro_steps());
        while low < high {
            let middle = low + (high - low) / 2;
            if built.step_of(middle) < within {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok((epoch, low))
    }

    /// Starts reading, from the beginning or where a state stands.
    ///
    /// # Errors
    /// [`DataError`]; a state of other data, another order or another layout is refused with what differs.
    pub fn batches(
        &self,
        config: &RunConfig,
        state: Option<&LoaderState>,
        stop: Option<StopSignal>,
    ) -> Result<GlobalBatches, DataError> {
        self.read(config, state, (0, 0), stop)
    }

    /// Starts reading at optimizer step `step` of the order, counted from 0, as a run that has come there would.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn batches_from(
        &self,
        config: &RunConfig,
        step: u64,
        stop: Option<StopSignal>,
    ) -> Result<GlobalBatches, DataError> {
        self.read(config, None, self.place_of_step(step)?, stop)
    }

    fn read(
        &self,
        config: &RunConfig,
        state: Option<&LoaderState>,
        start: (u64, u64),
        stop: Option<StopSignal>,
    ) -> Result<GlobalBatches, DataError> {
        let collator = collator(config);
        let shifts_in_model = config
            .loss
            .shift_in_model
            .unwrap_or(collator.label_shift() == LabelShift::InModel);
        check_label_shift(&*collator, shifts_in_model)
            .map_err(|problem| SettingError::new("loss.shift_in_model", problem))?;
        let options = LoaderOptions {
            workers: config.loader.workers,
            prefetch: config.loader.prefetch,
            pad_token: config
                .data
                .pad_token_id
                .and_then(|t| i32::try_from(t).ok())
                .unwrap_or(0),
            collator: Arc::clone(&collator),
            outputs: Outputs {
                labels: true,
                loss_mask: true,
                ..Outputs::default()
            },
            fingerprints: true,
            epochs: config.train.epochs,
            start,
            stop,
            allocator: Arc::clone(&self.memory),
            dataset_fingerprint: self.fingerprint.clone(),
            allow_global_batch_change: config.checkpoint.allow_global_batch_change,
            ..LoaderOptions::new(config.data.seq_length)
        };
        let source = Arc::clone(&self.source);
        let loader = match state {
            None => Loader::new(source, Arc::clone(&self.order), options)?,
            Some(state) => Loader::resume(source, Arc::clone(&self.order), options, state)?,
        };
        GlobalBatches::new(loader, documents(config), shifts_in_model)
    }
}

/// Digest over the rows that steps consume, of one order or of several one after the other.
#[derive(Default)]
pub struct OrderHasher(blake3::Hasher);

impl OrderHasher {
    /// Adds the rows of optimizer steps of a run, counted from 0.
    ///
    /// # Errors
    /// [`DataError::Order`].
    pub fn add(&mut self, data: &TrainData, steps: Range<u64>) -> Result<(), DataError> {
        let geometry = data.order.geometry();
        let per_epoch = data.order.steps_per_epoch().max(1);
        for epoch in steps.start / per_epoch..steps.end.div_ceil(per_epoch) {
            let built = data.order.epoch(epoch)?;
            let mut step = (0, Vec::new());
            for micro_step in 0..built.micro_steps() {
                let now = built.step_of(micro_step);
                if epoch * per_epoch + now < steps.start {
                    continue;
                }
                if epoch * per_epoch + now >= steps.end {
                    break;
                }
                if now != step.0 {
                    self.close_step(&mut step.1);
                    step.0 = now;
                }
                for rank in 0..geometry.world_size {
                    for slot in 0..geometry.micro_batch_size {
                        let place = Place {
                            micro_step,
                            rank,
                            slot,
                        };
                        step.1.extend(built.deal_index(place).zip(built.sample(place)));
                    }
                }
            }
            self.close_step(&mut step.1);
        }
        Ok(())
    }

    fn close_step(&mut self, rows: &mut Vec<(u64, u64)>) {
        rows.sort_unstable();
        rows.drain(..).for_each(|(_, row)| {
            self.0.update(&row.to_le_bytes());
        });
    }

    /// The digest.
    pub fn finish(&self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

/// Opens the rows of a run: the source and the fingerprint of its files. `notice` hears what a user should be told.
///
/// # Errors
/// [`SourceError`].
pub fn open_rows(
    config: &RunConfig,
    notice: &mut dyn FnMut(&str),
) -> Result<(Arc<dyn Source>, String), SourceError> {
    let options = source_options(config, config.data.split.clone());
    let source = HfSource::open(&config.data.cache_dir, &options)?;
    source.warnings().iter().for_each(|w| notice(w));
    let fingerprint = source.fingerprint(FingerprintMode::Sampled, &|_| {})?.to_string();
    Ok((Arc::new(source), fingerprint))
}

/// Opens the held-out rows.
///
/// # Errors
/// [`SourceError`].
pub fn open_held_out(config: &RunConfig, folder: &Path) -> Result<HfSource, SourceError> {
    HfSource::open(folder, &source_options(config, config.eval.split.clone()))
}

fn source_options(config: &RunConfig, split: Option<String>) -> SourceOptions {
    SourceOptions {
        split,
        column: config.data.column.clone(),
        indices: config.data.indices.clone(),
        seq_length: Some(config.data.seq_length),
        on_ragged: config.data.on_ragged,
        truncate: config.data.truncate,
        pad_id: config.data.pad_token_id,
        vocab_size: u32::try_from(config.model.vocab_size).ok(),
        decode_cache: None,
    }
}

fn collator(config: &RunConfig) -> Arc<dyn Collator> {
    let pad = config.data.pad_token_id.and_then(|t| i32::try_from(t).ok());
    match config.data.collator {
        Collate::Hf => Arc::new(HfCollator { pad_token_id: pad }),
        Collate::Shim => Arc::new(ShimCollator {
            pad_token_id: pad.unwrap_or(0),
            eod_mask: EodMask::Off,
        }),
    }
}

/// How rows are cut into documents.
pub fn documents(config: &RunConfig) -> Documents {
    let id = |id: Option<u32>| id.and_then(|t| i32::try_from(t).ok());
    let limit = config.data.max_documents_per_row;
    match config.data.documents {
        DocumentMarker::None => Documents::Rows,
        DocumentMarker::Bos => {
            id(config.model.bos_token_id).map_or(Documents::Rows, |id| Documents::Bos { id, limit })
        }
        DocumentMarker::Eos => {
            id(config.model.eos_token_id).map_or(Documents::Rows, |id| Documents::Eos { id, limit })
        }
    }
}
