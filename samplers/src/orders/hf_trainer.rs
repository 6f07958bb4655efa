//! `hf-trainer`: what transformers' Trainer feeds its ranks today.
//!
//! Reproduces transformers 5.24.0 `Trainer` over accelerate 1.15.0 `prepare_data_loader`: `SeedableRandomSampler`
//! (torch 2.15.0 `randperm`, seed + epoch), `BatchSampler`, and with more than one rank `BatchSamplerShard`: the
//! blocked deal. Before it, datasets 5.2.0 `Dataset.shuffle(seed)`, as flash-linear-attention's run script does.
//!
//! With `use_seedable_sampler: false` the sampler draws from generators that run on from epoch to epoch, so epoch
//! `e` costs `e` times its draws, and a resumed process gives other orders (`resumed_at`).
//!
//! Bias: see [`crate::sampler::TorchEpochSeed`]; the samples at the start of an epoch come twice when the last
//! micro-batches are filled up. Memory: 4 bytes a sample for each epoch in use.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fla::{dataset_or_shuffle, seeds_in_effect};
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::DatasetStep;
use crate::deal::{Law, Tail};
use crate::order::Order;
use crate::permute::Permutation;
use crate::place::Geometry;
use crate::rng::torch::TorchGenerator;
use crate::sampler::{Sampler, Sequential, TorchEpochSeed, skip_randperms};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "hf-trainer",
    summary: "HF dataset shuffle, then what transformers' Trainer does today: micro-batch by micro-batch round the ranks (blocked)",
    source: "datasets 5.2.0 Dataset.shuffle over numpy 2.4.6 default_rng; transformers 5.24.0 Trainer over accelerate 1.15.0 \
             prepare_data_loader, SeedableRandomSampler, BatchSamplerShard",
    for_whom: "You replay a run of today's transformers Trainer (or of accelerate). Current Trainers do not use \
               DistributedSampler: for older ones and for the FLA-order shim take `fla`. A script that does not shuffle \
               the dataset before the Trainer needs `dataset: []`.",
    options: &[
        OptionHelp {
            help: "TrainingArguments.seed: seeds the dataset shuffle, and the sampler unless data_seed is given",
            ..options::SEED
        },
        OptionHelp {
            key: "data_seed",
            values: "integer, -2^63 to 2^64-1",
            default: "the seed",
            help: "TrainingArguments.data_seed: seed of the sampler alone",
        },
        OptionHelp {
            help: "false: train_sampling_strategy=\"sequential\" (dataset-level steps still apply)",
            ..options::SHUFFLE
        },
        OptionHelp {
            help: "TrainingArguments.dataloader_drop_last: leave out what does not fill a micro-batch on every rank",
            ..options::DROP_LAST
        },
        OptionHelp {
            default: "true",
            help: "accelerator_config.even_batches: fill the last micro-batches from the start of the epoch; false: some \
                   ranks end with a short micro-batch, or one fewer",
            ..options::EVEN_BATCHES
        },
        OptionHelp {
            key: "split_batches",
            values: "true, false",
            default: "false",
            help: "accelerator_config.split_batches: micro_batch_size is the batch of all ranks together, each takes its \
                   world_size-th part",
        },
        OptionHelp {
            key: "use_seedable_sampler",
            values: "true, false",
            default: "true",
            help: "accelerator_config.use_seedable_sampler; false holds as long as nothing else in the script draws from \
                   torch's CPU generator after the seed is set",
        },
        OptionHelp {
            key: "resumed_at",
            values: "a map, as in {epoch: 1, micro_step: 40} or {epoch: 1, micro_step: 40, ignore_data_skip: true}",
            default: "not resumed",
            help: "with use_seedable_sampler: false, where the process was restarted from a checkpoint: its generator starts \
                   anew, so orders from that epoch on differ from those of an uninterrupted run",
        },
        OptionHelp {
            key: "single_process_wraps",
            values: "true, false",
            default: "false",
            help: "with world_size 1, fill up the last micro-batch as BatchSamplerShard(num_processes=1) does when a script \
                   uses it directly; the Trainer leaves it short",
        },
        OptionHelp {
            default: "one shuffle with the seed",
            ..options::DATASET
        },
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(HfTrainer::parse(fields)?)),
    examples: &[
        r#"{"name":"hf-trainer","seed":42}"#,
        r#"{"name":"hf-trainer","seed":42,"data_seed":99,"dataset":[]}"#,
        r#"{"name":"hf-trainer","seed":42,"drop_last":true}"#,
        r#"{"name":"hf-trainer","seed":42,"even_batches":false,"dataset":[{"train_test_split":{"take":"train","test_size":0.25,"seed":1}}]}"#,
        r#"{"name":"hf-trainer","seed":42,"use_seedable_sampler":false}"#,
        r#"{"name":"hf-trainer","seed":42,"use_seedable_sampler":false,"resumed_at":{"epoch":1,"micro_step":2}}"#,
        r#"{"name":"hf-trainer","seed":42,"single_process_wraps":true}"#,
        r#"{"name":"hf-trainer","shuffle":false,"dataset":[]}"#,
    ],
};

/// Options of `hf-trainer`.
#[derive(Clone, Debug, Serialize)]
pub struct HfTrainer {
    seed: Option<Seed>,
    data_seed: Option<Seed>,
    shuffle: bool,
    drop_last: bool,
    even_batches: bool,
    split_batches: bool,
    use_seedable_sampler: bool,
    resumed_at: Option<ResumedAt>,
    single_process_wraps: bool,
    dataset: Vec<DatasetStep>,
}

/// Where a process went on from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumedAt {
    /// Epoch of the first step after the restart.
    pub epoch: u64,
    /// Micro-steps of that epoch done before it.
    pub micro_step: u64,
    /// `TrainingArguments.ignore_data_skip`: the epoch is started over instead.
    #[serde(default)]
    pub ignore_data_skip: bool,
}

impl HfTrainer {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let seed: Option<Seed> = fields.take("seed")?;
        let dataset = dataset_or_shuffle(fields, seed)?;
        let options = HfTrainer {
            seed,
            data_seed: fields.take("data_seed")?,
            shuffle: fields.or("shuffle", true)?,
            drop_last: fields.or("drop_last", false)?,
            even_batches: fields.or("even_batches", true)?,
            split_batches: fields.or("split_batches", false)?,
            use_seedable_sampler: fields.or("use_seedable_sampler", true)?,
            resumed_at: fields.take("resumed_at")?,
            single_process_wraps: fields.or("single_process_wraps", false)?,
            dataset,
        };
        if options.data_seed.is_some() && !options.shuffle {
            return Err(fields.refuse(
                "data_seed",
                "it has no effect with `shuffle: false`: leave it out",
            ));
        }
        if options.data_seed.is_some() && !options.use_seedable_sampler {
            return Err(fields.refuse(
                "data_seed",
                "accelerate does not look at it with `use_seedable_sampler: false`: leave it out",
            ));
        }
        if options.resumed_at.is_some() && (options.use_seedable_sampler || !options.shuffle) {
            return Err(fields.refuse(
                "resumed_at",
                "a resumed run has the order of an uninterrupted one unless `use_seedable_sampler` is false: leave it out",
            ));
        }
        if options.shuffle && options.seed.or(options.data_seed).is_none() {
            return Err(fields.no_seed());
        }
        if options.shuffle && !options.use_seedable_sampler && options.seed.is_none() {
            return Err(fields.no_seed());
        }
        Ok(options)
    }

    fn sampler_seed(&self) -> Option<Seed> {
        // Without data_seed the sampler asks torch.initial_seed(), which is never negative.
        let seed = self.data_seed.or(self.seed.map(Seed::initial));
        seed.filter(|_| self.shuffle)
    }

    /// The layout places use: `split_batches` divides the micro-batch.
    fn geometry(&self, given: Geometry) -> Result<Geometry, OrderError> {
        if !self.split_batches || given.world_size == 1 {
            return Ok(given);
        }
        if !given.micro_batch_size.is_multiple_of(given.world_size) {
            return Err(OrderError::Geometry(format!(
                "split_batches needs a micro_batch_size that divides by world_size: {} does not divide by {}",
                given.micro_batch_size, given.world_size
            )));
        }
        Ok(Geometry {
            micro_batch_size: given.micro_batch_size / given.world_size,
            ..given
        })
    }
}

impl OrderOptions for HfTrainer {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, self.sampler_seed())
    }

    fn warnings(&self) -> Vec<String> {
        let draws = self.shuffle && !self.use_seedable_sampler;
        draws
            .then(|| {
                "use_seedable_sampler is false: the emulation holds as long as nothing else in the script drew from \
                 torch's CPU generator after the seed was set, and a resumed run needs resumed_at"
                    .to_string()
            })
            .into_iter()
            .collect()
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        let one_process = input.geometry.world_size == 1;
        let sampler: Box<dyn Sampler> = match self.sampler_seed() {
            None => Box::new(Sequential),
            Some(_) if input.num_samples == 0 => {
                return Err(OrderError::Empty {
                    refuses: "torch's RandomSampler",
                });
            }
            Some(seed) if self.use_seedable_sampler => Box::new(TorchEpochSeed {
                seed,
                epoch_is_set: true,
            }),
            Some(seed) if one_process => Box::new(SeedOfEachPass {
                seed,
                resumed_at: self.resumed_at,
            }),
            Some(seed) => Box::new(OneGenerator {
                seed,
                resumed_at: self.resumed_at,
            }),
        };
        let tail = if self.drop_last {
            Tail::Drop
        } else if one_process && !self.single_process_wraps {
            // `prepare_data_loader` wraps nothing for one process: the BatchSampler's short last batch stays.
            Tail::Ragged
        } else if self.even_batches {
            Tail::Pad
        } else {
            Tail::Ragged
        };
        let parts = Parts {
            dataset: self.dataset.clone(),
            sampler,
            law: Law::Blocked,
            tail,
            geometry: self.geometry(input.geometry)?,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}

/// `use_seedable_sampler=False` with several ranks: accelerate draws one seed from torch's global generator, gives
/// the `RandomSampler` a generator with it, and that generator runs on. Each pass takes two permutations from it
/// and uses the first ([`crate::orders::torch_random`] says why). A restarted process begins anew at the first.
#[derive(Clone, Copy, Debug)]
struct OneGenerator {
    seed: Seed,
    resumed_at: Option<ResumedAt>,
}

impl Sampler for OneGenerator {
    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        let pass = match self.resumed_at {
            Some(at) if epoch >= at.epoch => epoch - at.epoch,
            _ => epoch,
        };
        let seed = TorchGenerator::new(self.seed.torch(0)?).base_seed();
        let mut generator = TorchGenerator::new(seed);
        skip_randperms(&mut generator, positions, pass.saturating_mul(2));
        Ok(Arc::new(generator.randperm(positions)?))
    }

    fn is_elastic(&self) -> bool {
        false
    }
}

/// `use_seedable_sampler=False` with one rank: at the start of a pass the DataLoader draws its base seed from
/// torch's global generator, then the `RandomSampler` its seed.
///
/// A process resumed in mid-epoch `e` runs that epoch on the first draws after `set_seed`, then restores the
/// generator's state from the checkpoint, so later epochs are those of an uninterrupted run. Resumed at the start of
/// an epoch the state is restored first. With `ignore_data_skip` it is restored first too, but a state saved in
/// mid-epoch already has that epoch's draws behind it: each epoch gets the order of the next one.
#[derive(Clone, Copy, Debug)]
struct SeedOfEachPass {
    seed: Seed,
    resumed_at: Option<ResumedAt>,
}

impl Sampler for SeedOfEachPass {
    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        let pass = match self.resumed_at {
            Some(at) if epoch >= at.epoch && at.micro_step > 0 => {
                if at.ignore_data_skip {
                    epoch.saturating_add(1)
                } else if epoch == at.epoch {
                    0
                } else {
                    epoch
                }
            }
            _ => epoch,
        };
        let mut global = TorchGenerator::new(self.seed.torch(0)?);
        for _ in 0..pass {
            global.base_seed();
            global.base_seed();
        }
        global.base_seed();
        let seed = global.base_seed();
        Ok(Arc::new(TorchGenerator::new(seed).randperm(positions)?))
    }

    fn is_elastic(&self) -> bool {
        false
    }
}
