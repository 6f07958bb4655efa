//! `torch-random`: torch's `RandomSampler`, alone or inside `DataLoader(shuffle=True)`, in one process.
//!
//! Reproduces torch 2.15.0 `RandomSampler` and `DataLoader`. Epoch `e` is the `e+1`-th pass over the same object.
//! A pass without replacement takes `num_samples / n` permutations and always one more, cut to the remainder even
//! when that is nothing. Without a generator of its own the sampler draws a seed from torch's global generator in
//! each pass; a DataLoader draws its base seed before it, from its generator or the global one.
//!
//! The sampler knows no ranks. Over W ranks a micro-step deals out the batch of W x micro_batch_size samples that a
//! single process would have taken.
//!
//! Bias: plain modulo draws, and 2^32 seeds at most. Memory: 4 bytes a sample for each epoch in use. Time: a pass
//! with a generator of its own goes through the draws of all passes before it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fla::seeds_in_effect;
use super::{Needs, OptionHelp, OrderEntry, options, to_json};
use crate::composed::{ComposedOrder, Parts};
use crate::dataset::{self, DatasetStep};
use crate::deal::{Law, Tail};
use crate::order::Order;
use crate::permute::Permutation;
use crate::rng::torch::TorchGenerator;
use crate::sampler::{Sampler, skip_randperms};
use crate::spec::{Fields, OrderError, OrderInput, OrderOptions, OrderSpec, Seed, SpecError};

/// The registry's line.
pub static ENTRY: OrderEntry = OrderEntry {
    name: "torch-random",
    summary: "torch's RandomSampler or DataLoader(shuffle=True) in one process",
    source: "torch 2.15.0 torch.utils.data.RandomSampler, DataLoader",
    for_whom: "Your single-process training loop says DataLoader(shuffle=True). It holds as long as nothing else draws from \
               the generator it uses. With several processes take `torch-distributed` or `hf-trainer`.",
    options: &[
        options::SEED,
        OptionHelp {
            key: "generator",
            values: "global, own",
            default: "global",
            help: "global: torch.manual_seed(seed) and no generator is passed; own: generator=torch.Generator().manual_seed(seed)",
        },
        OptionHelp {
            key: "data_loader",
            values: "true, false",
            default: "true",
            help: "the sampler sits in a DataLoader, which draws a base seed first; false: the RandomSampler is iterated alone",
        },
        OptionHelp {
            key: "replacement",
            values: "true, false",
            default: "false",
            help: "draw with replacement",
        },
        OptionHelp {
            key: "num_samples",
            values: "integer, 1 or more",
            default: "the dataset's size",
            help: "samples of one pass; more than the dataset holds goes through it several times",
        },
        options::DROP_LAST,
        options::DATASET,
    ],
    needs: Needs::Rows,
    parse: |fields| Ok(OrderSpec::new(TorchRandom::parse(fields)?)),
    examples: &[
        r#"{"name":"torch-random","seed":42}"#,
        r#"{"name":"torch-random","seed":42,"generator":"own","drop_last":true}"#,
        r#"{"name":"torch-random","seed":-3,"generator":"own","data_loader":false}"#,
    ],
};

/// Options of `torch-random`.
#[derive(Clone, Debug, Serialize)]
pub struct TorchRandom {
    seed: Seed,
    generator: GeneratorKind,
    data_loader: bool,
    replacement: bool,
    num_samples: Option<u64>,
    drop_last: bool,
    dataset: Vec<DatasetStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GeneratorKind {
    Global,
    Own,
}

impl TorchRandom {
    fn parse(fields: &mut Fields) -> Result<Self, SpecError> {
        let options = TorchRandom {
            seed: fields.take("seed")?.ok_or_else(|| fields.no_seed())?,
            generator: fields.or("generator", GeneratorKind::Global)?,
            data_loader: fields.or("data_loader", true)?,
            replacement: fields.or("replacement", false)?,
            num_samples: fields.take("num_samples")?,
            drop_last: fields.or("drop_last", false)?,
            dataset: fields.or("dataset", Vec::new())?,
        };
        if options.num_samples == Some(0) {
            return Err(fields.refuse("num_samples", "torch's RandomSampler refuses 0"));
        }
        dataset::check(&options.dataset).map_err(|e| fields.refuse("dataset", e.to_string()))?;
        Ok(options)
    }
}

impl OrderOptions for TorchRandom {
    fn entry(&self) -> &'static OrderEntry {
        &ENTRY
    }

    fn to_json(&self) -> serde_json::Value {
        to_json(self)
    }

    fn seeds(&self) -> Vec<(&'static str, Seed)> {
        seeds_in_effect(&self.dataset, Some(self.seed))
    }

    fn build(&self, spec: &OrderSpec, input: &OrderInput) -> Result<Arc<dyn Order>, OrderError> {
        if dataset::len(&self.dataset, input.num_samples)? == 0 {
            return Err(OrderError::Empty {
                refuses: "torch's RandomSampler",
            });
        }
        let parts = Parts {
            dataset: self.dataset.clone(),
            sampler: Box::new(Passes {
                seed: self.seed,
                generator: self.generator,
                data_loader: self.data_loader,
                replacement: self.replacement,
                num_samples: self.num_samples,
            }),
            law: Law::Blocked,
            tail: if self.drop_last { Tail::Drop } else { Tail::Ragged },
            geometry: input.geometry,
        };
        Ok(Arc::new(ComposedOrder::new(spec, input, parts)?))
    }
}

/// Pass after pass over one `RandomSampler`.
#[derive(Clone, Copy, Debug)]
struct Passes {
    seed: Seed,
    generator: GeneratorKind,
    data_loader: bool,
    replacement: bool,
    num_samples: Option<u64>,
}

impl Passes {
    /// Moves the sampler's generator past one whole pass.
    fn skip_pass(&self, generator: &mut TorchGenerator, n: u64) -> Result<(), OrderError> {
        let samples = self.len(n);
        if !self.replacement {
            // `samples / n + 1` permutations: the last is drawn even when nothing of it is used.
            skip_randperms(generator, n, samples / n + 1);
            return Ok(());
        }
        let mut buffer = [0i64; 1024];
        let mut left = samples;
        while left > 0 {
            let now = left.min(buffer.len() as u64);
            generator.randint_into(0, n.into(), &mut buffer[..now as usize])?;
            left -= now;
        }
        Ok(())
    }

    fn pass(&self, generator: &mut TorchGenerator, n: u64) -> Result<Permutation, OrderError> {
        let samples = self.len(n);
        if !self.replacement && samples == n {
            return Ok(generator.randperm(n)?);
        }
        let mut list = Vec::new();
        let too_large =
            |_| OrderError::TooLarge(format!("a pass of {samples} samples does not fit in memory"));
        list.try_reserve_exact(usize::try_from(samples).unwrap_or(usize::MAX))
            .map_err(too_large)?;
        if self.replacement {
            let mut buffer = [0i64; 1024];
            while (list.len() as u64) < samples {
                let now = (samples - list.len() as u64).min(buffer.len() as u64) as usize;
                generator.randint_into(0, n.into(), &mut buffer[..now])?;
                list.extend(buffer[..now].iter().map(|x| *x as u64));
            }
        } else {
            for _ in 0..samples / n {
                list.extend(generator.randperm(n)?.iter());
            }
            let rest = usize::try_from(samples % n).unwrap_or(usize::MAX);
            list.extend(generator.randperm(n)?.iter().take(rest));
        }
        Ok(Permutation::from_indices(list))
    }
}

impl Sampler for Passes {
    fn len(&self, positions: u64) -> u64 {
        self.num_samples.unwrap_or(positions)
    }

    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        let mut generator = TorchGenerator::new(self.seed.torch(0)?);
        match self.generator {
            GeneratorKind::Own => {
                for _ in 0..epoch {
                    if self.data_loader {
                        generator.base_seed();
                    }
                    self.skip_pass(&mut generator, positions)?;
                }
                if self.data_loader {
                    generator.base_seed();
                }
                Ok(Arc::new(self.pass(&mut generator, positions)?))
            }
            GeneratorKind::Global => {
                let each = 1 + u64::from(self.data_loader);
                let mut seed = 0;
                for _ in 0..each * (epoch + 1) {
                    seed = generator.base_seed();
                }
                Ok(Arc::new(self.pass(&mut TorchGenerator::new(seed), positions)?))
            }
        }
    }
}
