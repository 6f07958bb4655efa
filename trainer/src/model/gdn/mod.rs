//! The gated delta network as a plan: blocks of a gated delta rule mixer and a SwiGLU MLP around a residual stream.
//!
//! Source: `GatedDeltaNetForCausalLM`, `GatedDeltaNetBlock` and `GatedDeltaNet` of flash-linear-attention 0.6.0
//! (structure, parameter names and shapes). Storage is fused: one matrix for `[q k v g b a]`, one for the taps of
//! the three convolutions, one for `[gate up]`; the checkpoint's tensors are views of them.
//!
//! Per block, with x the residual stream:
//!
//! ```text
//! x ← x + W_o (norm(delta_rule(conv(W_q y), conv(W_k y), conv(W_v y), gates(y))) · act(W_g y)),   y = norm(x)
//! x ← x + W_down swiglu(W_gate z, W_up z),                                                       z = norm(x)
//! ```
//!
//! Each addition is fused with the norm after it. The stream is written once a block: the sum in its middle is taken
//! again by whoever needs it, from the stream before the block and the mixer's branch, so a block hands on that stream
//! and two branches that are still to be added.

mod backward;
mod forward;
mod storage;

use ceteris_kernels::ops::{
    self, AdamW, AdamWTensor, AddInto, AddRmsNorm, AddRmsNormBackward, Decay, DeltaRule, DeltaRuleBackward,
    DeltaRuleShape, Embedding, EmbeddingBackward, GatedRmsNorm, GatedRmsNormBackward, Gates, GatesBackward,
    GlobalNorm, Linear, LinearBackwardInput, LinearBackwardWeight, LinearCrossEntropy, LossGradients,
    ShortConv, ShortConvBackward, SwiGlu, SwiGluBackward, Zero,
};
use ceteris_kernels::plan::{
    BufferId, Columns, Geometry, Parameter, Plan, PlanBuilder, PlanError, Role, Section,
};
use ceteris_kernels::recompute::{Recompute, recompute};

use self::storage::{Block, InProj};
use super::config::{GateActivation, ModelConfig};
use super::parameters::named_parameters;

/// AdamW and clipping, as far as the plan has to know them.
pub struct Optimizer<'a> {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Largest global gradient norm.
    pub max_grad_norm: Option<f64>,
    /// Weight decay of a named tensor.
    pub weight_decay: &'a dyn Fn(&str) -> f64,
}

/// What a plan is made for besides the model.
pub struct PlanOptions<'a> {
    /// Sizes of a micro-batch.
    pub geometry: Geometry,
    /// The update; without it the plan has gradients but no `Update`.
    pub optimizer: Option<Optimizer<'a>>,
    /// Rows of logits that exist at a time; by default as many as make about 4 million values, at least 64.
    pub logits_chunk_rows: Option<usize>,
    /// The gradients of branches are stored a second time in the type of activations, for executors whose residual
    /// stream is wider than their products' inputs.
    pub branch_gradient_copies: bool,
    /// The parts of a tied table's gradient, of the embedding and of the head, are summed into one buffer as they come,
    /// instead of once a step: half the memory, but the order of the sum then depends on the split into micro-batches.
    pub shared_tied_gradient: bool,
    /// Keeps the residual stream after every block and the final norm of `Forward` readable.
    pub keep_hidden_states: bool,
    /// What the backward pass computes again instead of keeping it.
    pub recompute: Recompute,
    /// `Evaluate` also writes the logits of all rows, readable: for scoring and tests of small models.
    pub evaluate_logits: bool,
}

impl PlanOptions<'_> {
    /// Gradients only, nothing kept.
    pub fn new(geometry: Geometry) -> Self {
        PlanOptions {
            geometry,
            optimizer: None,
            logits_chunk_rows: None,
            branch_gradient_copies: false,
            shared_tied_gradient: false,
            keep_hidden_states: false,
            recompute: Recompute::None,
            evaluate_logits: false,
        }
    }
}

/// A language model's plan with the buffers its user talks to.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// The plan.
    pub plan: Plan,
    /// Token ids, `[rows]`.
    pub tokens: BufferId,
    /// Targets of each row, already shifted, `-100` where none, `[rows]`.
    pub labels: BufferId,
    /// Document offsets, `[max_documents + 1]`.
    pub documents: BufferId,
    /// Scalar: the factor of the summed loss whose gradient is taken, one over the global batch's counted tokens.
    pub grad_scale: BufferId,
    /// Scalar: summed negative log-likelihood since `Begin` (training), or since the host cleared it (evaluation).
    pub loss_sum: BufferId,
    /// Negative log-likelihood of each row, of the last `Forward`.
    pub nll: BufferId,
    /// Negative log-likelihood of each row, of the last `Evaluate`.
    pub evaluate_nll: BufferId,
    /// Scalars of AdamW, see [`ops::HYPER_LEARNING_RATE`] and [`ops::HYPER_STEP`].
    pub hyper: BufferId,
    /// Scalar: global gradient norm before clipping, of the last `Update`.
    pub grad_norm: BufferId,
    /// `embeddings`, `layers.<i>`, `norm` of `Forward`, when they are kept.
    pub hidden_states: Vec<(String, BufferId)>,
    /// Logits of `Evaluate`, when asked for, `[rows, vocab]`.
    pub logits: Option<BufferId>,
}

/// What a block's forward pass leaves for its backward pass.
struct Saved {
    attn_input: BufferId,
    attn_normed: BufferId,
    attn_rstd: BufferId,
    projected: BufferId,
    qkv: BufferId,
    g: BufferId,
    beta: BufferId,
    chunk_states: BufferId,
    u: BufferId,
    o: BufferId,
    o_normed: BufferId,
    o_rstd: BufferId,
    mixed: BufferId,
    mlp_normed: BufferId,
    mlp_rstd: BufferId,
    gate_up: BufferId,
    activated: BufferId,
}

/// The residual stream as a block hands it on: x and the branches to be added to it, in their order.
struct Stream {
    x: BufferId,
    branches: [Option<BufferId>; 2],
}

/// Emits one model; holds what all its parts need.
struct Emitter<'a> {
    b: PlanBuilder,
    config: &'a ModelConfig,
    rows: usize,
    tokens: BufferId,
    labels: BufferId,
    documents: BufferId,
    grad_scale: BufferId,
    loss_sum: BufferId,
    embeddings: Parameter,
    blocks: Vec<Block>,
    norm: Parameter,
    /// Weight and gradient of the head.
    head: (BufferId, BufferId),
    chunk_rows: usize,
}

/// Emits the plan of a model.
///
/// # Errors
/// [`PlanError`] for sizes that an operator does not support.
pub fn emit(config: &ModelConfig, options: &PlanOptions) -> Result<LanguageModel, PlanError> {
    let mut e = Emitter::new(config, options);
    e.begin();
    let mut hidden_states = Vec::new();
    let (saved, last) = e.forward(Section::Forward, "", &mut hidden_states);
    let dnormed = e.activation("norm.dout".to_owned(), config.hidden_size);
    let nll = e.loss(Section::Forward, "", last.normed, Some(dnormed));
    e.backward(&saved, &last, dnormed, options.branch_gradient_copies);
    let (_, evaluated) = e.forward(Section::Evaluate, "evaluate.", &mut Vec::new());
    let evaluate_nll = e.loss(Section::Evaluate, "evaluate.", evaluated.normed, None);
    let logits = options.evaluate_logits.then(|| e.logits(evaluated.normed));
    let hyper = e.b.buffer("hyper", &[ops::HYPER_LEN], Role::Scalar);
    let grad_norm = e.b.buffer("grad_norm", &[1], Role::Scalar);
    if let Some(optimizer) = &options.optimizer {
        e.update(optimizer, hyper, grad_norm);
    }
    if options.keep_hidden_states {
        hidden_states.iter().for_each(|&(_, id)| e.b.keep(id));
    } else {
        hidden_states.clear();
    }
    e.b.keep(nll);
    e.b.keep(evaluate_nll);
    let names: Vec<String> = named_parameters(config).into_iter().map(|t| t.name).collect();
    e.b.order_views(&names);
    let Emitter {
        b,
        tokens,
        labels,
        documents,
        grad_scale,
        loss_sum,
        ..
    } = e;
    Ok(LanguageModel {
        plan: recompute(b.finish()?, options.recompute)?,
        tokens,
        labels,
        documents,
        grad_scale,
        loss_sum,
        nll,
        evaluate_nll,
        hyper,
        grad_norm,
        hidden_states,
        logits,
    })
}

/// The end of a forward pass: what the final norm read and wrote.
struct Last {
    input: BufferId,
    rstd: BufferId,
    normed: BufferId,
}

impl<'a> Emitter<'a> {
    fn new(config: &'a ModelConfig, options: &PlanOptions) -> Self {
        let mut b = PlanBuilder::new(options.geometry);
        let rows = options.geometry.rows();
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let tokens = b.buffer("tokens", &[rows], Role::Ids);
        let labels = b.buffer("labels", &[rows], Role::Ids);
        let documents = b.buffer("cu_seqlens", &[options.geometry.max_documents + 1], Role::Ids);
        let grad_scale = b.buffer("grad_scale", &[1], Role::Scalar);
        let loss_sum = b.buffer("loss_sum", &[1], Role::Scalar);
        let whole = |b: &mut PlanBuilder, name: &str, shape: &[usize]| {
            b.parameter(name, shape, &[(name.to_owned(), shape.to_vec())])
        };
        let embeddings = whole(&mut b, "model.embeddings.weight", &[vocab, hidden]);
        let blocks = (0..config.num_hidden_layers)
            .map(|i| Block::new(&mut b, config, i))
            .collect();
        let norm = whole(&mut b, "model.norm.weight", &[hidden]);
        let head = if config.tie_word_embeddings && options.shared_tied_gradient {
            (embeddings.value, embeddings.gradient)
        } else if config.tie_word_embeddings {
            // A gradient of its own: summed into the table's once a step, so that neither part's order of sums
            // depends on the split into micro-batches.
            (
                embeddings.value,
                b.buffer("lm_head.grad", &[vocab, hidden], Role::Gradient),
            )
        } else {
            let head = whole(&mut b, "lm_head.weight", &[vocab, hidden]);
            (head.value, head.gradient)
        };
        let default = ((1 << 22) / vocab).max(64).min(options.geometry.seq_length);
        let chunk_rows = options.logits_chunk_rows.unwrap_or(default).clamp(1, rows);
        Emitter {
            b,
            config,
            rows,
            tokens,
            labels,
            documents,
            grad_scale,
            loss_sum,
            embeddings,
            blocks,
            norm,
            head,
            chunk_rows,
        }
    }

    fn activation(&mut self, name: String, width: usize) -> BufferId {
        self.b.buffer(name, &[self.rows, width], Role::Activation)
    }

    fn residual(&mut self, name: String) -> BufferId {
        self.b
            .buffer(name, &[self.rows, self.config.hidden_size], Role::Residual)
    }

    fn statistic(&mut self, name: String, width: usize) -> BufferId {
        self.b.buffer(name, &[self.rows, width], Role::Statistic)
    }

    /// Whether a tied head has a gradient of its own.
    fn head_sums_apart(&self) -> bool {
        self.config.tie_word_embeddings && self.head.1 != self.embeddings.gradient
    }

    fn begin(&mut self) {
        let mut buffers: Vec<BufferId> = self.b.parameters().iter().map(|p| p.gradient).collect();
        if self.head_sums_apart() {
            buffers.push(self.head.1);
        }
        buffers.push(self.loss_sum);
        self.b.push(Section::Begin, Zero { buffers });
    }

    /// `out = x Wᵀ`.
    fn linear(&mut self, section: Section, x: BufferId, weight: BufferId, name: String) -> BufferId {
        let n = self.b.get(weight).shape[0];
        let out = self.activation(name, n);
        let (x, out_columns) = (self.b.columns(x), self.b.columns(out));
        self.b.push(
            section,
            Linear {
                x,
                weight,
                out: out_columns,
            },
        );
        out
    }

    fn update(&mut self, optimizer: &Optimizer, hyper: BufferId, norm: BufferId) {
        if self.head_sums_apart() {
            let (source, target) = (self.head.1, self.embeddings.gradient);
            self.b.push(Section::Update, AddInto { source, target });
        }
        let coefficient = self.b.buffer("clip_coefficient", &[1], Role::Scalar);
        let gradients = self.b.parameters().iter().map(|p| p.gradient).collect();
        let max_norm = optimizer.max_grad_norm;
        self.b.push(
            Section::Update,
            GlobalNorm {
                gradients,
                norm,
                coefficient,
                max_norm,
            },
        );
        let tensor = |(i, &parameter): (usize, &Parameter)| {
            let decay = self.b.views().iter().filter(|v| v.parameter == i).map(|v| Decay {
                range: v.offset..v.offset + v.len(),
                weight_decay: (optimizer.weight_decay)(&v.name),
            });
            AdamWTensor {
                parameter,
                decay: decay.collect(),
            }
        };
        let tensors = self.b.parameters().iter().enumerate().map(tensor).collect();
        let Optimizer {
            beta1, beta2, eps, ..
        } = *optimizer;
        self.b.push(
            Section::Update,
            AdamW {
                tensors,
                hyper,
                coefficient,
                beta1,
                beta2,
                eps,
            },
        );
    }
}
