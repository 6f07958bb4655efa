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
//! Each addition is fused with the norm after it, so a block hands on its stream and the branch that is still to be
//! added.

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

use super::config::{GateActivation, ModelConfig};

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

/// Fused parameters of a block.
#[derive(Clone, Copy)]
struct Block {
    attn_norm: Parameter,
    a_log: Parameter,
    dt_bias: Parameter,
    in_proj: Parameter,
    conv: Option<Parameter>,
    o_norm: Parameter,
    o_proj: Parameter,
    mlp_norm: Parameter,
    gate_up: Parameter,
    down: Parameter,
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
    mlp_input: BufferId,
    mlp_normed: BufferId,
    mlp_rstd: BufferId,
    gate_up: BufferId,
    activated: BufferId,
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

/// Columns of the fused projection.
struct InProj {
    qkv: usize,
    gate: usize,
    heads: usize,
}

impl InProj {
    fn new(c: &ModelConfig) -> Self {
        InProj {
            qkv: 2 * c.key_dim() + c.value_dim(),
            gate: if c.use_gate { c.value_dim() } else { 0 },
            heads: c.value_heads(),
        }
    }

    fn width(&self) -> usize {
        self.qkv + self.gate + 2 * self.heads
    }

    fn qkv(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: 0,
            width: self.qkv,
        }
    }

    fn gate(&self, buffer: BufferId) -> Option<Columns> {
        (self.gate > 0).then_some(Columns {
            buffer,
            first: self.qkv,
            width: self.gate,
        })
    }

    fn b(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: self.qkv + self.gate,
            width: self.heads,
        }
    }

    fn a(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: self.qkv + self.gate + self.heads,
            width: self.heads,
        }
    }
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
    let names = tensor_names(config);
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

/// All parameter names in the order of FLA's `named_parameters()`.
pub fn tensor_names(config: &ModelConfig) -> Vec<String> {
    let mut names = vec!["model.embeddings.weight".to_owned()];
    for i in 0..config.num_hidden_layers {
        let mut push = |name: &str| names.push(format!("model.layers.{i}.{name}"));
        push("attn_norm.weight");
        for name in [
            "A_log",
            "dt_bias",
            "q_proj.weight",
            "k_proj.weight",
            "v_proj.weight",
            "a_proj.weight",
        ] {
            push(&format!("attn.{name}"));
        }
        push("attn.b_proj.weight");
        if config.use_short_conv {
            ["q", "k", "v"]
                .iter()
                .for_each(|x| push(&format!("attn.{x}_conv1d.weight")));
        }
        if config.use_gate {
            push("attn.g_proj.weight");
        }
        for name in [
            "attn.o_norm",
            "attn.o_proj",
            "mlp_norm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        ] {
            push(&format!("{name}.weight"));
        }
    }
    names.push("model.norm.weight".to_owned());
    if !config.tie_word_embeddings {
        names.push("lm_head.weight".to_owned());
    }
    names
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
        let head = if config.tie_word_embeddings {
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
        let longest = options.geometry.seq_length;
        let chunk_rows = options
            .logits_chunk_rows
            .unwrap_or_else(|| ((1 << 22) / vocab).max(64))
            .clamp(1, longest);
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

    fn begin(&mut self) {
        let mut buffers: Vec<BufferId> = self.b.parameters().iter().map(|p| p.gradient).collect();
        if self.config.tie_word_embeddings {
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

    /// Both gradients of a linear; returns that of its input.
    fn linear_backward(&mut self, dout: BufferId, x: BufferId, p: Parameter, name: String) -> BufferId {
        let width = self.b.get(x).width();
        let dx = self.activation(name, width);
        let (dout, x, dx_columns) = (self.b.columns(dout), self.b.columns(x), self.b.columns(dx));
        self.b.push(
            Section::Backward,
            LinearBackwardInput {
                dout,
                weight: p.value,
                dx: dx_columns,
            },
        );
        self.b.push(
            Section::Backward,
            LinearBackwardWeight {
                dout,
                x,
                dweight: p.gradient,
            },
        );
        dx
    }

    /// Adds the branch and normalises. Returns (stream, normed, rstd).
    fn add_norm(
        &mut self,
        section: Section,
        x: BufferId,
        branch: Option<BufferId>,
        weight: BufferId,
        name: &str,
    ) -> (BufferId, BufferId, BufferId) {
        let sum = branch.map(|_| self.residual(format!("{name}.sum")));
        let out = self.activation(format!("{name}.out"), self.config.hidden_size);
        let rstd = self.statistic(format!("{name}.rstd"), 1);
        let eps = self.config.norm_eps;
        self.b.push(
            section,
            AddRmsNorm {
                x,
                branch,
                sum,
                weight,
                out,
                rstd,
                eps,
            },
        );
        (sum.unwrap_or(x), out, rstd)
    }

    /// From the tokens to the final norm.
    fn forward(
        &mut self,
        section: Section,
        prefix: &str,
        hidden_states: &mut Vec<(String, BufferId)>,
    ) -> (Vec<Saved>, Last) {
        let mut x = self.residual(format!("{prefix}embeddings"));
        let (tokens, table) = (self.tokens, self.embeddings.value);
        self.b.push(
            section,
            Embedding {
                tokens,
                table,
                out: x,
            },
        );
        hidden_states.push(("embeddings".to_owned(), x));
        let mut branch = None;
        let mut saved = Vec::new();
        for i in 0..self.blocks.len() {
            if section == Section::Forward {
                self.b.start_block();
            }
            let (block, next) = self.block(section, prefix, i, x, branch);
            if i > 0 {
                hidden_states.push((format!("layers.{}", i - 1), block.attn_input));
            }
            (x, branch) = (block.mlp_input, Some(next));
            saved.push(block);
        }
        if section == Section::Forward {
            self.b.end_blocks();
        }
        let name = format!("{prefix}norm");
        let (input, normed, rstd) = self.add_norm(section, x, branch, self.norm.value, &name);
        hidden_states.push((format!("layers.{}", self.blocks.len() - 1), input));
        hidden_states.push(("norm".to_owned(), normed));
        (saved, Last { input, rstd, normed })
    }

    fn delta_shape(&self) -> DeltaRuleShape {
        DeltaRuleShape {
            key_heads: self.config.num_heads,
            value_heads: self.config.value_heads(),
            key_dim: self.config.head_dim,
            value_dim: self.config.head_v_dim(),
        }
    }

    /// Queries, keys and values in a buffer that holds them side by side.
    fn split_qkv(&self, buffer: BufferId) -> [Columns; 3] {
        let (k, v) = (self.config.key_dim(), self.config.value_dim());
        [(0, k), (k, k), (2 * k, v)].map(|(first, width)| Columns { buffer, first, width })
    }

    fn beta_scale(&self) -> f64 {
        if self.config.allow_neg_eigval { 2.0 } else { 1.0 }
    }

    fn gate_activation(&self) -> ops::GateActivation {
        match self.config.output_gate_activation {
            GateActivation::Swish => ops::GateActivation::Swish,
            GateActivation::Sigmoid => ops::GateActivation::Sigmoid,
        }
    }

    /// One block; returns what it saves and the MLP's branch.
    fn block(
        &mut self,
        section: Section,
        prefix: &str,
        i: usize,
        x: BufferId,
        branch: Option<BufferId>,
    ) -> (Saved, BufferId) {
        let c = self.config;
        let name = |part: &str| format!("{prefix}layers.{i}.{part}");
        let Block {
            attn_norm,
            a_log,
            dt_bias,
            in_proj,
            conv,
            o_norm,
            o_proj,
            mlp_norm,
            gate_up,
            down,
        } = self.blocks[i];
        let columns = InProj::new(c);
        let (documents, shape) = (self.documents, self.delta_shape());
        let (attn_input, attn_normed, attn_rstd) =
            self.add_norm(section, x, branch, attn_norm.value, &name("attn_norm"));
        let projected = self.linear(section, attn_normed, in_proj.value, name("in_proj"));
        let qkv = self.activation(name("qkv"), columns.qkv);
        self.b.push(
            section,
            ShortConv {
                x: columns.qkv(projected),
                weight: conv.map(|p| p.value),
                out: qkv,
                silu: true,
                documents,
                norm_heads: 2 * c.num_heads,
                head_dim: c.head_dim,
            },
        );
        let g = self.statistic(name("g"), columns.heads);
        let beta = self.statistic(name("beta"), columns.heads);
        self.b.push(
            section,
            Gates {
                a: columns.a(projected),
                b: columns.b(projected),
                a_log: a_log.value,
                dt_bias: dt_bias.value,
                g,
                beta,
                beta_scale: self.beta_scale(),
            },
        );
        let o = self.activation(name("o"), c.value_dim());
        let state = [
            self.b.geometry().max_chunks(),
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
        ];
        let saves = section == Section::Forward;
        let chunk_states = self.b.buffer(name("chunk_states"), &state, Role::Statistic);
        let u = self.activation(name("u"), c.value_dim());
        let [q, k, v] = self.split_qkv(qkv);
        self.b.push(
            section,
            DeltaRule {
                q,
                k,
                v,
                g,
                beta,
                documents,
                initial_state: None,
                o,
                final_state: None,
                chunk_states: saves.then_some(chunk_states),
                u: saves.then_some(u),
                scale: (shape.key_dim as f64).powf(-0.5),
                shape,
            },
        );
        let o_normed = self.activation(name("o_norm"), c.value_dim());
        let o_rstd = self.statistic(name("o_norm.rstd"), columns.heads);
        self.b.push(
            section,
            GatedRmsNorm {
                x: o,
                gate: columns.gate(projected),
                weight: o_norm.value,
                out: o_normed,
                rstd: o_rstd,
                eps: c.norm_eps,
                activation: self.gate_activation(),
            },
        );
        let mixed = self.linear(section, o_normed, o_proj.value, name("o_proj"));
        let (mlp_input, mlp_normed, mlp_rstd) = self.add_norm(
            section,
            attn_input,
            Some(mixed),
            mlp_norm.value,
            &name("mlp_norm"),
        );
        let gate_up_out = self.linear(section, mlp_normed, gate_up.value, name("gate_up"));
        let activated = self.activation(name("swiglu"), c.mlp_size());
        self.b.push(
            section,
            SwiGlu {
                gate_up: gate_up_out,
                out: activated,
            },
        );
        let out = self.linear(section, activated, down.value, name("down"));
        let saved = Saved {
            attn_input,
            attn_normed,
            attn_rstd,
            projected,
            qkv,
            g,
            beta,
            chunk_states,
            u,
            o,
            o_normed,
            o_rstd,
            mlp_input,
            mlp_normed,
            mlp_rstd,
            gate_up: gate_up_out,
            activated,
        };
        (saved, out)
    }

    /// The loss and, when asked for, the gradients of x and the head; returns the buffer of per-row values.
    fn loss(&mut self, section: Section, prefix: &str, x: BufferId, dx: Option<BufferId>) -> BufferId {
        let nll = self
            .b
            .buffer(format!("{prefix}nll"), &[self.rows], Role::Statistic);
        let shape = [self.chunk_rows, self.config.vocab_size];
        let logits = self
            .b
            .buffer(format!("{prefix}logits_chunk"), &shape, Role::Activation);
        let (grad_scale, dweight) = (self.grad_scale, self.head.1);
        let gradients = dx.map(|dx| LossGradients {
            grad_scale,
            dx,
            dweight,
        });
        let (labels, loss_sum, weight) = (self.labels, self.loss_sum, self.head.0);
        self.b.push(
            section,
            LinearCrossEntropy {
                x,
                weight,
                labels,
                nll,
                loss_sum,
                logits,
                gradients,
            },
        );
        nll
    }

    fn logits(&mut self, x: BufferId) -> BufferId {
        let logits = self.linear(Section::Evaluate, x, self.head.0, "logits".to_owned());
        self.b.keep(logits);
        logits
    }

    /// Gradient of [`Self::add_norm`]: returns those of the stream and of the branch.
    #[allow(clippy::too_many_arguments)]
    fn add_norm_backward(
        &mut self,
        sum: BufferId,
        rstd: BufferId,
        p: Parameter,
        dout: BufferId,
        dresidual: Option<BufferId>,
        copy: bool,
        name: &str,
    ) -> (BufferId, BufferId) {
        let dsum = self.residual(format!("{name}.dsum"));
        let dbranch = copy.then(|| self.activation(format!("{name}.dbranch"), self.config.hidden_size));
        let (weight, dweight) = (p.value, p.gradient);
        let op = AddRmsNormBackward {
            sum,
            rstd,
            weight,
            dout,
            dresidual,
            dsum,
            dbranch,
            dweight,
        };
        self.b.push(Section::Backward, op);
        (dsum, dbranch.unwrap_or(dsum))
    }

    fn backward(&mut self, saved: &[Saved], last: &Last, dout: BufferId, copies: bool) {
        let (mut dx, mut dbranch) =
            self.add_norm_backward(last.input, last.rstd, self.norm, dout, None, copies, "norm");
        for (i, saved) in saved.iter().enumerate().rev() {
            (dx, dbranch) = self.block_backward(i, saved, dx, dbranch, copies);
        }
        let (tokens, dtable) = (self.tokens, self.embeddings.gradient);
        self.b.push(
            Section::Backward,
            EmbeddingBackward {
                tokens,
                dout: dx,
                dtable,
            },
        );
    }

    /// From the gradients of the stream and of the MLP's branch to those before the block.
    fn block_backward(
        &mut self,
        i: usize,
        s: &Saved,
        dx: BufferId,
        dbranch: BufferId,
        copies: bool,
    ) -> (BufferId, BufferId) {
        let c = self.config;
        let name = |part: &str| format!("layers.{i}.{part}");
        let Block {
            attn_norm,
            a_log,
            dt_bias,
            in_proj,
            conv,
            o_norm,
            o_proj,
            mlp_norm,
            gate_up,
            down,
        } = self.blocks[i];
        let columns = InProj::new(c);
        let (documents, shape) = (self.documents, self.delta_shape());
        let dactivated = self.linear_backward(dbranch, s.activated, down, name("swiglu.dout"));
        let dgate_up = self.activation(name("gate_up.dout"), 2 * c.mlp_size());
        self.b.push(
            Section::Backward,
            SwiGluBackward {
                gate_up: s.gate_up,
                dout: dactivated,
                dgate_up,
            },
        );
        let dnormed = self.linear_backward(dgate_up, s.mlp_normed, gate_up, name("mlp_norm.dout"));
        let (dx, dmixed) = self.add_norm_backward(
            s.mlp_input,
            s.mlp_rstd,
            mlp_norm,
            dnormed,
            Some(dx),
            copies,
            &name("mlp_norm"),
        );
        let dnormed = self.linear_backward(dmixed, s.o_normed, o_proj, name("o_norm.dout"));
        let dprojected = self.activation(name("in_proj.dout"), columns.width());
        let dout = self.activation(name("o.dout"), c.value_dim());
        self.b.push(
            Section::Backward,
            GatedRmsNormBackward {
                x: s.o,
                gate: columns.gate(s.projected),
                weight: o_norm.value,
                rstd: s.o_rstd,
                dout: dnormed,
                dx: dout,
                dgate: columns.gate(dprojected),
                dweight: o_norm.gradient,
                activation: self.gate_activation(),
            },
        );
        let dqkv = self.activation(name("qkv.dout"), columns.qkv);
        let dg = self.statistic(name("g.dout"), columns.heads);
        let dbeta = self.statistic(name("beta.dout"), columns.heads);
        let ([q, k, v], [dq, dk, dv]) = (self.split_qkv(s.qkv), self.split_qkv(dqkv));
        self.b.push(
            Section::Backward,
            DeltaRuleBackward {
                q,
                k,
                v,
                g: s.g,
                beta: s.beta,
                documents,
                initial_state: None,
                chunk_states: s.chunk_states,
                u: s.u,
                recompute: false,
                dout,
                dfinal_state: None,
                dq,
                dk,
                dv,
                dg,
                dbeta,
                dinitial_state: None,
                scale: (shape.key_dim as f64).powf(-0.5),
                shape,
            },
        );
        self.b.push(
            Section::Backward,
            GatesBackward {
                a: columns.a(s.projected),
                a_log: a_log.value,
                dt_bias: dt_bias.value,
                g: s.g,
                beta: s.beta,
                dg,
                dbeta,
                da: columns.a(dprojected),
                db: columns.b(dprojected),
                da_log: a_log.gradient,
                ddt_bias: dt_bias.gradient,
                beta_scale: self.beta_scale(),
            },
        );
        self.b.push(
            Section::Backward,
            ShortConvBackward {
                x: columns.qkv(s.projected),
                weight: conv.map(|p| p.value),
                dout: dqkv,
                dx: columns.qkv(dprojected),
                dweight: conv.map(|p| p.gradient),
                silu: true,
                documents,
                norm_heads: 2 * c.num_heads,
                head_dim: c.head_dim,
            },
        );
        let dnormed = self.linear_backward(dprojected, s.attn_normed, in_proj, name("attn_norm.dout"));
        let name = name("attn_norm");
        // The first block's norm has no branch to hand a gradient to.
        let copies = copies && i > 0;
        self.add_norm_backward(
            s.attn_input,
            s.attn_rstd,
            attn_norm,
            dnormed,
            Some(dx),
            copies,
            &name,
        )
    }

    fn update(&mut self, optimizer: &Optimizer, hyper: BufferId, norm: BufferId) {
        if self.config.tie_word_embeddings {
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

impl Block {
    fn new(b: &mut PlanBuilder, c: &ModelConfig, i: usize) -> Self {
        let prefix = format!("model.layers.{i}.");
        let (d, k, v, heads, mlp) = (
            c.hidden_size,
            c.key_dim(),
            c.value_dim(),
            c.value_heads(),
            c.mlp_size(),
        );
        // A fused parameter: its parts' rows one after the other, each row of the given extents.
        let mut fused = |name: &str, row: &[usize], parts: &[(&str, usize)]| {
            let shape = |rows: usize| [&[rows], row].concat();
            let tensors: Vec<_> = parts
                .iter()
                .map(|&(part, rows)| (format!("{prefix}{part}"), shape(rows)))
                .collect();
            let name = if parts.len() == 1 {
                tensors[0].0.clone()
            } else {
                format!("{prefix}{name}")
            };
            b.parameter(&name, &shape(parts.iter().map(|(_, rows)| rows).sum()), &tensors)
        };
        let mut in_proj = vec![
            ("attn.q_proj.weight", k),
            ("attn.k_proj.weight", k),
            ("attn.v_proj.weight", v),
        ];
        if c.use_gate {
            in_proj.push(("attn.g_proj.weight", v));
        }
        in_proj.extend([("attn.b_proj.weight", heads), ("attn.a_proj.weight", heads)]);
        Block {
            attn_norm: fused("", &[], &[("attn_norm.weight", d)]),
            a_log: fused("", &[], &[("attn.A_log", heads)]),
            dt_bias: fused("", &[], &[("attn.dt_bias", heads)]),
            in_proj: fused("attn.in_proj", &[d], &in_proj),
            conv: c.use_short_conv.then(|| {
                let parts = [
                    ("attn.q_conv1d.weight", k),
                    ("attn.k_conv1d.weight", k),
                    ("attn.v_conv1d.weight", v),
                ];
                fused("attn.conv1d", &[1, c.conv_size], &parts)
            }),
            o_norm: fused("", &[], &[("attn.o_norm.weight", c.head_v_dim())]),
            o_proj: fused("", &[v], &[("attn.o_proj.weight", d)]),
            mlp_norm: fused("", &[], &[("mlp_norm.weight", d)]),
            gate_up: fused(
                "mlp.gate_up",
                &[d],
                &[("mlp.gate_proj.weight", mlp), ("mlp.up_proj.weight", mlp)],
            ),
            down: fused("", &[mlp], &[("mlp.down_proj.weight", d)]),
        }
    }
}
