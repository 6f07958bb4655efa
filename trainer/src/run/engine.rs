//! One device that computes: a plan, its executor, and the acts of a training loop on them.

mod score;

use ceteris_kernels::backend::{ExecError, Executor};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_LEN, HYPER_STEP};

use std::collections::BTreeMap;

use ceteris_kernels::backend::Memory;
use ceteris_kernels::cuda::{AlgorithmRecord, CudaError};
use ceteris_kernels::plan::{BufferId, Geometry, ParameterView, PlanError, Role, Section};

use crate::checkpoint::Part;
use crate::config::{RunConfig, SettingError};
use crate::data::{self, DataError, GlobalBatch, ModelInput};
use crate::device::{DeviceError, OpenDevice, Target};
use crate::init::InitError;
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
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Settings.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A sequence that fits no row.
    #[error("a sequence of {found} tokens does not fit a row of {limit}; raise data.seq_length")]
    TooLong {
        /// Tokens of the sequence.
        found: usize,
        /// Tokens of a row.
        limit: usize,
    },
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

/// A step that a device may still be computing.
#[derive(Debug)]
#[must_use = "a started step is finished before the next one starts"]
pub struct StartedStep {
    update: u64,
    counted: u64,
}

/// A plan on a device.
pub struct Engine {
    device: OpenDevice,
    model: LanguageModel,
    input: ModelInput,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The plan of a run's step on a device.
fn plan(config: &RunConfig, target: Target) -> Result<LanguageModel, PlanError> {
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
    let choices = target.choices(config.train.recompute, geometry, config.model.vocab_size);
    let options = PlanOptions {
        optimizer: Some(Optimizer {
            beta1: optimizer.beta1,
            beta2: optimizer.beta2,
            eps: optimizer.eps,
            max_grad_norm: optimizer.max_grad_norm,
            weight_decay: &weight_decay,
        }),
        logits_chunk_rows: config
            .loss
            .chunks
            .map(|n| geometry.rows().div_ceil(n))
            .or(choices.logits_chunk_rows),
        branch_gradient_copies: choices.branch_gradient_copies,
        shared_tied_gradient: choices.shared_tied_gradient,
        recompute: choices.recompute,
        ..PlanOptions::new(geometry)
    };
    gdn::emit(&config.model, &options)
}

impl Engine {
    /// Plans the step of a run and makes an executor for it on the run's device.
    ///
    /// # Errors
    /// [`EngineError`]: sizes that are not supported, or a machine that cannot run the plan.
    pub fn build(config: &RunConfig) -> Result<Self, EngineError> {
        Self::build_again(config, AlgorithmRecord::new())
    }

    /// As [`build`](Self::build), with the products' algorithms of an earlier process of the run: the same bits.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn build_again(config: &RunConfig, products: AlgorithmRecord) -> Result<Self, EngineError> {
        let mut target = config.train.target()?;
        let mut model = plan(config, target)?;
        let mut note = None;
        // A device that was not asked for by name and lacks the model's sizes leaves them to the CPU.
        if config.train.chooses_device() && target != Target::Cpu {
            let arithmetic = target.arithmetic(config.train.precision);
            let refused = match arithmetic {
                Ok(arithmetic) => target.refuses(&model.plan, arithmetic),
                Err(why) => Some(why.to_string()),
            };
            if let Some(why) = refused {
                target = Target::Cpu;
                model = plan(config, target)?;
                note = Some(why);
            }
        }
        let train = &config.train;
        // Known before a device is opened: sizes that its kernels do not cover.
        if target != Target::Cpu
            && let Some(why) = target.refuses(&model.plan, target.arithmetic(train.precision)?)
        {
            return Err(DeviceError::Cuda(CudaError::Unsupported(why)).into());
        }
        let plan = model.plan.clone();
        let mut device = target.executor(plan, train.compute(), products)?;
        if train.batch_invariant {
            device.notes.push(target.batch_invariance().to_owned());
        }
        if let Some(note) = note {
            device.name = format!("{} (not on CUDA: {note})", device.name);
        }
        Ok(Engine {
            device,
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
        &mut *self.device.executor
    }

    /// Device and arithmetic, for messages.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// What a user should be told about how the run is computed.
    pub fn notes(&self) -> &[String] {
        &self.device.notes
    }

    /// The device.
    pub fn target(&self) -> Target {
        self.device.target
    }

    /// Bytes the executor holds.
    pub fn memory(&self) -> Memory {
        self.device.memory
    }

    /// Bytes of an element of a role, for counting what operators move.
    pub fn element_bytes(&self) -> fn(Role) -> usize {
        self.device.element_bytes
    }

    /// Algorithms of the matrix products, to be kept with the run; none on the CPU.
    pub fn products(&self) -> Option<&AlgorithmRecord> {
        self.device.products.as_ref()
    }

    fn view(&self, name: &str) -> Result<ParameterView, EngineError> {
        let view = self.model.plan.view(name).cloned();
        view.ok_or_else(|| EngineError::NoTensor(name.to_owned()))
    }

    /// Writes the initial weights of the run's settings.
    ///
    /// # Errors
    /// [`InitError`]: an initial checkpoint that cannot be read or does not fit, or the device failed.
    pub fn initialise(&mut self, config: &RunConfig) -> Result<(), InitError> {
        let mut write = |name: &str, first: usize, values: &[f32]| {
            self.write_weights(name, first, values).map_err(|e| e.to_string())
        };
        config.init.run(&config.model, config.seeds.init, &mut write)
    }

    /// Writes weights of a tensor from an index on.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn write_weights(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), EngineError> {
        let view = self.view(name)?;
        let buffer = self.model.plan.parameters[view.parameter].value;
        Ok(self
            .device
            .executor
            .write_f32(buffer, view.offset + first, values)?)
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
        Ok(self
            .device
            .executor
            .write_f64(buffer, view.offset + first, values)?)
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
        self.device.executor.read_f64(buffer, offset + first, out)
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
        self.device.executor.read_f64(buffer, 0, &mut out)?;
        Ok(out[0])
    }

    fn put_input(&mut self) -> Result<(), ExecError> {
        self.device
            .executor
            .write_ids(self.model.tokens, &self.input.tokens)?;
        self.device
            .executor
            .write_ids(self.model.labels, &self.input.targets)?;
        self.device
            .executor
            .write_ids(self.model.documents, &self.input.cu_seqlens)
    }

    /// Forward and backward over a global batch: gradients are those of the token mean. Returns the loss.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn gradients(&mut self, batch: &GlobalBatch) -> Result<f64, EngineError> {
        let counted = self.start_gradients(batch)?;
        Ok(self.scalar(self.model.loss_sum)? / counted as f64)
    }

    fn start_gradients(&mut self, batch: &GlobalBatch) -> Result<u64, EngineError> {
        let counted = batch.counted_tokens();
        if counted == 0 {
            return Err(EngineError::NothingCounts {
                step: batch.global_step + 1,
            });
        }
        let rows = self.micro_batch_size();
        let grad_scale = self.model.grad_scale;
        self.executor().run(Section::Begin)?;
        self.executor()
            .write_f64(grad_scale, 0, &[1.0 / counted as f64])?;
        for index in 0..batch.micro_batches(rows) {
            batch.fill(index, rows, &mut self.input)?;
            self.put_input()?;
            self.executor().run(Section::Forward)?;
            self.executor().run(Section::Backward)?;
        }
        Ok(counted)
    }

    /// Starts one optimizer step over a global batch, the `update`-th one, counted from 1. A device computes on while
    /// the caller prepares the next batch; [`finish`](Self::finish) waits for it.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn start(
        &mut self,
        batch: &GlobalBatch,
        update: u64,
        learning_rate: f64,
    ) -> Result<StartedStep, EngineError> {
        let counted = self.start_gradients(batch)?;
        self.start_update(update, learning_rate)?;
        Ok(StartedStep { update, counted })
    }

    /// What a started step gave.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn finish(&mut self, started: StartedStep) -> Result<StepResult, EngineError> {
        let loss = self.scalar(self.model.loss_sum)? / started.counted as f64;
        let grad_norm = self.scalar(self.model.grad_norm)?;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(EngineError::NotFinite {
                step: started.update,
                loss,
                grad_norm,
            });
        }
        Ok(StepResult { loss, grad_norm })
    }

    /// One optimizer step, started and finished.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn step(
        &mut self,
        batch: &GlobalBatch,
        update: u64,
        learning_rate: f64,
    ) -> Result<StepResult, EngineError> {
        let started = self.start(batch, update, learning_rate)?;
        self.finish(started)
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
            self.device.executor.read_f32(buffer, view.offset, &mut values)?;
            out.push((view.name, tensor_sha256(&values)));
        }
        Ok(out)
    }

    fn start_update(&mut self, update: u64, learning_rate: f64) -> Result<(), ExecError> {
        let mut hyper = [0.0; HYPER_LEN];
        hyper[HYPER_LEARNING_RATE] = learning_rate;
        hyper[HYPER_STEP] = update as f64;
        let buffer = self.model.hyper;
        self.executor().write_f64(buffer, 0, &hyper)?;
        self.executor().run(Section::Update)
    }

    /// An update with gradients of zero: what weight decay alone does to the weights.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn update_without_gradient(&mut self, update: u64, learning_rate: f64) -> Result<(), ExecError> {
        self.executor().run(Section::Begin)?;
        self.start_update(update, learning_rate)
    }

    /// Sum of negative log-likelihoods over inputs that `fill` gives one after the other until it returns false.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn evaluate(
        &mut self,
        mut fill: impl FnMut(&mut ModelInput) -> Result<bool, DataError>,
    ) -> Result<f64, EngineError> {
        self.device.executor.write_f64(self.model.loss_sum, 0, &[0.0])?;
        let mut input = std::mem::take(&mut self.input);
        while fill(&mut input)? {
            std::mem::swap(&mut self.input, &mut input);
            self.put_input()?;
            self.device.executor.run(Section::Evaluate)?;
            std::mem::swap(&mut self.input, &mut input);
        }
        self.input = input;
        Ok(self.scalar(self.model.loss_sum)?)
    }
}
