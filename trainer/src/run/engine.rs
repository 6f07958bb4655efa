//! One device that computes: a plan, its executor, and the acts of a training loop on them.

use ceteris_kernels::backend::{ExecError, Executor};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_LEN, HYPER_STEP};

use std::collections::BTreeMap;

use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::{BufferId, Geometry, ParameterView, PlanError, Section};

use crate::checkpoint::Part;
use crate::config::{Precision, RunConfig};
use crate::data::{self, DataError, GlobalBatch, ModelInput};
use crate::init::tensor_sha256;
use crate::model::gdn::{self, LanguageModel, Optimizer, PlanOptions};
use crate::model::parameters::named_parameters;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The executor.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Sizes that an operator does not support.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A tensor the plan does not have.
    #[error("the plan has no tensor '{0}'")]
    NoTensor(String),
    /// A batch in which nothing counts.
    #[error(
        "step {step}: no token of the global batch counts in the loss (every label is ignored), so there is no mean to take"
    )]
    NothingCounts {
        /// The step, from 1.
        step: u64,
    },
    /// The loss or the gradient is not a number.
    #[error(
        "step {step}: loss {loss}, grad_norm {grad_norm}: not finite, the weights would be lost; the run stops here"
    )]
    NotFinite {
        /// The step, from 1.
        step: u64,
        /// The loss.
        loss: f64,
        /// The gradient norm.
        grad_norm: f64,
    },
}

/// What a step gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean negative log-likelihood over the counted tokens of the global batch.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
}

/// A plan on a device.
pub struct Engine {
    executor: Box<dyn Executor>,
    model: LanguageModel,
    input: ModelInput,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Plans the step of a run and makes a CPU executor for it.
    ///
    /// # Errors
    /// [`EngineError`]: sizes that are not supported, or a machine that cannot run the plan.
    pub fn build(config: &RunConfig) -> Result<Self, EngineError> {
        let rows = config.device_rows();
        let geometry = Geometry {
            micro_batch_size: rows,
            seq_length: config.data.seq_length,
            max_documents: rows * data::documents(config).per_row(),
        };
        let shapes: BTreeMap<String, Vec<usize>> = named_parameters(&config.model)
            .into_iter()
            .map(|t| (t.name, t.shape))
            .collect();
        let optimizer = &config.optimizer;
        let weight_decay = |name: &str| {
            let shape = shapes.get(name).map_or(&[][..], Vec::as_slice);
            if optimizer.decay.decays(name, shape) {
                optimizer.weight_decay
            } else {
                0.0
            }
        };
        let options = PlanOptions {
            optimizer: Some(Optimizer {
                beta1: optimizer.beta1,
                beta2: optimizer.beta2,
                eps: optimizer.eps,
                max_grad_norm: optimizer.max_grad_norm,
                weight_decay: &weight_decay,
            }),
            logits_chunk_rows: config.loss.chunks.map(|n| geometry.rows().div_ceil(n)),
            recompute: config.train.recompute.into(),
            ..PlanOptions::new(geometry)
        };
        let model = gdn::emit(&config.model, &options)?;
        let float = match config.train.precision {
            Precision::F32 => Float::F32,
            Precision::F64 => Float::F64,
        };
        let executor = cpu::executor(model.plan.clone(), float, config.train.threads.unwrap_or(0))?;
        Ok(Engine {
            executor,
            model,
            input: ModelInput::default(),
        })
    }

    /// Rows of one device micro-batch.
    pub fn micro_batch_size(&self) -> usize {
        self.model.plan.geometry.micro_batch_size
    }

    /// Names and shapes of the tensors, in checkpoint order.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let views = &self.model.plan.views;
        views.iter().map(|v| (v.name.clone(), v.shape.clone())).collect()
    }

    /// Trained values.
    pub fn parameter_count(&self) -> usize {
        self.model.plan.parameter_count()
    }

    /// Operations of one device micro-batch, forward and backward, that a matrix unit would do.
    pub fn flops_per_micro_batch(&self) -> u64 {
        [Section::Forward, Section::Backward]
            .iter()
            .flat_map(|s| self.model.plan.ops(*s))
            .map(|op| op.flops(&self.model.plan))
            .sum()
    }

    /// The executor.
    pub fn executor(&mut self) -> &mut dyn Executor {
        &mut *self.executor
    }

    fn view(&self, name: &str) -> Result<ParameterView, EngineError> {
        let view = self.model.plan.view(name).cloned();
        view.ok_or_else(|| EngineError::NoTensor(name.to_owned()))
    }

    /// Writes weights of a tensor from an index on.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn write_weights(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), EngineError> {
        let view = self.view(name)?;
        let buffer = self.model.plan.parameters[view.parameter].value;
        Ok(self.executor.write_f32(buffer, view.offset + first, values)?)
    }

    /// Writes weights or moments of a tensor from an index on, exactly.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn write_part(
        &mut self,
        part: Part,
        name: &str,
        first: usize,
        values: &[f64],
    ) -> Result<(), EngineError> {
        let view = self.view(name)?;
        let buffer = self.buffer_of(part, view.parameter);
        Ok(self.executor.write_f64(buffer, view.offset + first, values)?)
    }

    /// Reads weights or moments of the tensor at `index` of [`Self::tensors`] from an index on.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn read_part(
        &mut self,
        part: Part,
        index: usize,
        first: usize,
        out: &mut [f64],
    ) -> Result<(), ExecError> {
        let (parameter, offset) = {
            let view = &self.model.plan.views[index];
            (view.parameter, view.offset)
        };
        let buffer = self.buffer_of(part, parameter);
        self.executor.read_f64(buffer, offset + first, out)
    }

    fn buffer_of(&self, part: Part, parameter: usize) -> BufferId {
        let parameter = &self.model.plan.parameters[parameter];
        match part {
            Part::Value => parameter.value,
            Part::FirstMoment => parameter.first_moment,
            Part::SecondMoment => parameter.second_moment,
        }
    }

    fn scalar(&mut self, buffer: BufferId) -> Result<f64, ExecError> {
        let mut out = [0.0];
        self.executor.read_f64(buffer, 0, &mut out)?;
        Ok(out[0])
    }

    fn put_input(&mut self) -> Result<(), ExecError> {
        self.executor.write_ids(self.model.tokens, &self.input.tokens)?;
        self.executor.write_ids(self.model.labels, &self.input.targets)?;
        self.executor
            .write_ids(self.model.documents, &self.input.cu_seqlens)
    }

    /// Forward and backward over a global batch: gradients are those of the token mean.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn gradients(&mut self, batch: &GlobalBatch) -> Result<f64, EngineError> {
        let counted = batch.counted_tokens();
        if counted == 0 {
            return Err(EngineError::NothingCounts {
                step: batch.global_step + 1,
            });
        }
        let rows = self.micro_batch_size();
        self.executor.run(Section::Begin)?;
        self.executor
            .write_f64(self.model.grad_scale, 0, &[1.0 / counted as f64])?;
        for index in 0..batch.micro_batches(rows) {
            batch.fill(index, rows, &mut self.input)?;
            self.put_input()?;
            self.executor.run(Section::Forward)?;
            self.executor.run(Section::Backward)?;
        }
        Ok(self.scalar(self.model.loss_sum)? / counted as f64)
    }

    /// One optimizer step over a global batch, the `update`-th one, counted from 1.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn step(
        &mut self,
        batch: &GlobalBatch,
        update: u64,
        learning_rate: f64,
    ) -> Result<StepResult, EngineError> {
        let loss = self.gradients(batch)?;
        let grad_norm = self.update(update, learning_rate)?;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(EngineError::NotFinite {
                step: update,
                loss,
                grad_norm,
            });
        }
        Ok(StepResult { loss, grad_norm })
    }

    /// SHA-256 of every tensor's weights as float32, by name in checkpoint order.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn weights_sha256(&mut self) -> Result<Vec<(String, String)>, ExecError> {
        let views = self.model.plan.views.clone();
        let mut out = Vec::with_capacity(views.len());
        for view in views {
            let mut values = vec![0f32; view.len()];
            let buffer = self.model.plan.parameters[view.parameter].value;
            self.executor.read_f32(buffer, view.offset, &mut values)?;
            out.push((view.name, tensor_sha256(&values)));
        }
        Ok(out)
    }

    fn update(&mut self, update: u64, learning_rate: f64) -> Result<f64, ExecError> {
        let mut hyper = [0.0; HYPER_LEN];
        hyper[HYPER_LEARNING_RATE] = learning_rate;
        hyper[HYPER_STEP] = update as f64;
        self.executor.write_f64(self.model.hyper, 0, &hyper)?;
        self.executor.run(Section::Update)?;
        self.scalar(self.model.grad_norm)
    }

    /// An update with gradients of zero: what weight decay alone does to the weights.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn update_without_gradient(&mut self, update: u64, learning_rate: f64) -> Result<(), ExecError> {
        self.executor.run(Section::Begin)?;
        self.update(update, learning_rate).map(|_| ())
    }

    /// Sum of negative log-likelihoods over inputs that `fill` gives one after the other until it returns false.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn evaluate(
        &mut self,
        mut fill: impl FnMut(&mut ModelInput) -> Result<bool, DataError>,
    ) -> Result<f64, EngineError> {
        self.executor.write_f64(self.model.loss_sum, 0, &[0.0])?;
        let mut input = std::mem::take(&mut self.input);
        while fill(&mut input)? {
            std::mem::swap(&mut self.input, &mut input);
            self.put_input()?;
            self.executor.run(Section::Evaluate)?;
            std::mem::swap(&mut self.input, &mut input);
        }
        self.input = input;
        Ok(self.scalar(self.model.loss_sum)?)
    }
}
