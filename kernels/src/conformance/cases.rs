//! Builders of [`Case`]s, one per operator. Operands that are columns of fused buffers get neighbours on both sides,
//! so that a wrong stride or an overrun shows.

use super::{Case, Rng};
use crate::ops::*;
use crate::plan::{BufferId, Columns, Geometry, PlanBuilder, PlanError, Role, Section};

/// Builds a plan and the values of its buffers together.
struct Builder {
    plan: PlanBuilder,
    rng: Rng,
    values: Vec<(BufferId, Vec<f64>)>,
    ids: Vec<(BufferId, Vec<i32>)>,
    outputs: Vec<Columns>,
    cotangents: Vec<(Columns, Columns)>,
    gradients: Vec<(Columns, Columns)>,
}

impl Builder {
    fn new(geometry: Geometry, seed: u64) -> Self {
        Builder {
            plan: PlanBuilder::new(geometry),
            rng: Rng::new(seed),
            values: Vec::new(),
            ids: Vec::new(),
            outputs: Vec::new(),
            cotangents: Vec::new(),
            gradients: Vec::new(),
        }
    }

    fn rows(&self) -> usize {
        self.plan.geometry().rows()
    }

    /// An operand with the given values.
    fn given(&mut self, name: &str, shape: &[usize], role: Role, values: Vec<f64>) -> BufferId {
        let id = self.plan.buffer(name, shape, role);
        if !role.persistent() {
            self.plan.input(id);
        }
        self.values.push((id, values));
        id
    }

    /// An operand with normal values.
    fn normal(&mut self, name: &str, shape: &[usize], role: Role, scale: f64) -> BufferId {
        let values = self.rng.normals(shape.iter().product(), scale);
        self.given(name, shape, role, values)
    }

    /// Columns of a wider buffer of normal values, see [`neighbours`].
    fn normal_columns(&mut self, name: &str, width: usize, scale: f64) -> Columns {
        let rows = self.rows();
        let (before, after) = neighbours(width);
        let buffer = self.normal(name, &[rows, before + width + after], Role::Activation, scale);
        Columns {
            buffer,
            first: before,
            width,
        }
    }

    /// Columns that an operator writes, with neighbours.
    fn out_columns(&mut self, name: &str, width: usize) -> Columns {
        let rows = self.rows();
        let (before, after) = neighbours(width);
        let buffer = self
            .plan
            .buffer(name, &[rows, before + width + after], Role::Activation);
        self.plan.keep(buffer);
        let columns = Columns {
            buffer,
            first: before,
            width,
        };
        self.outputs.push(columns);
        columns
    }

    /// A buffer that an operator writes.
    fn out(&mut self, name: &str, shape: &[usize], role: Role) -> BufferId {
        let id = self.plan.buffer(name, shape, role);
        self.plan.keep(id);
        let columns = self.plan.columns(id);
        self.outputs.push(columns);
        id
    }

    /// A parameter gradient, holding something already.
    fn parameter_gradient(&mut self, name: &str, of: BufferId) -> BufferId {
        let shape = self.plan.get(of).shape.clone();
        let id = self.normal(name, &shape, Role::Gradient, 0.3);
        let (x, dx) = (self.plan.columns(of), self.plan.columns(id));
        self.outputs.push(dx);
        self.gradients.push((x, dx));
        id
    }

    /// Where the gradient of a whole buffer goes.
    fn gradient(&mut self, name: &str, of: BufferId, role: Role) -> BufferId {
        let shape = self.plan.get(of).shape.clone();
        let id = self.out(name, &shape, role);
        self.gradients
            .push((self.plan.columns(of), self.plan.columns(id)));
        id
    }

    /// Where the gradient of columns goes.
    fn gradient_columns(&mut self, name: &str, of: Columns) -> Columns {
        let to = self.out_columns(name, of.width);
        self.gradients.push((of, to));
        to
    }

    /// The cotangent of a whole buffer, stored as the buffer is.
    fn cotangent(&mut self, name: &str, of: BufferId) -> BufferId {
        let (shape, role) = (self.plan.get(of).shape.clone(), self.plan.get(of).role);
        let id = self.normal(name, &shape, role, 1.0);
        self.cotangents
            .push((self.plan.columns(of), self.plan.columns(id)));
        id
    }

    fn ids(&mut self, name: &str, values: Vec<i32>) -> BufferId {
        let id = self.plan.buffer(name, &[values.len()], Role::Ids);
        self.ids.push((id, values));
        id
    }

    fn forward(&mut self, op: impl Into<Op>) {
        self.plan.push(Section::Forward, op);
    }

    fn backward(&mut self, op: impl Into<Op>) {
        self.plan.push(Section::Backward, op);
    }

    fn finish(self, name: String) -> Result<Case, PlanError> {
        let Builder {
            plan,
            values,
            ids,
            outputs,
            cotangents,
            gradients,
            ..
        } = self;
        Ok(Case {
            name,
            plan: plan.finish()?,
            values,
            ids,
            outputs,
            cotangents,
            gradients,
        })
    }
}

/// Columns before and after an operand. Widths in multiples of 8 keep the alignment that devices need; others get an odd
/// place.
fn neighbours(width: usize) -> (usize, usize) {
    if width.is_multiple_of(8) { (8, 16) } else { (3, 2) }
}

/// A geometry and `cu_seqlens` for documents of these lengths in one sequence.
pub fn documents_of(lengths: &[usize]) -> (Geometry, Vec<i32>) {
    let total = lengths.iter().sum();
    let geometry = Geometry {
        micro_batch_size: 1,
        seq_length: total,
        max_documents: lengths.len(),
    };
    let mut offsets = vec![0];
    for &len in lengths {
        offsets.push(offsets[offsets.len() - 1] + len as i32);
    }
    (geometry, offsets)
}

/// Embedding; few enough tokens that some repeat.
///
/// # Errors
/// A plan the operator refuses.
pub fn embedding(geometry: Geometry, vocab: usize, hidden: usize, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    let tokens = (0..rows).map(|_| b.rng.below(vocab) as i32).collect();
    let tokens = b.ids("tokens", tokens);
    let table = b.normal("table", &[vocab, hidden], Role::Parameter, 1.0);
    let out = b.out("out", &[rows, hidden], Role::Residual);
    let dout = b.cotangent("dout", out);
    let dtable = b.parameter_gradient("dtable", table);
    b.forward(Embedding { tokens, table, out });
    b.backward(EmbeddingBackward { tokens, dout, dtable });
    b.finish(format!("embedding {geometry:?} {vocab}x{hidden}"))
}

/// Linear between columns.
///
/// # Errors
/// A plan the operator refuses.
pub fn linear(geometry: Geometry, k: usize, n: usize, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let x = b.normal_columns("x", k, 1.0);
    let weight = b.normal("weight", &[n, k], Role::Parameter, 0.5);
    let out = b.out_columns("out", n);
    let dout = b.normal_columns("dout", n, 1.0);
    b.cotangents.push((out, dout));
    let dx = b.gradient_columns("dx", x);
    let dweight = b.parameter_gradient("dweight", weight);
    b.forward(Linear { x, weight, out });
    b.backward(LinearBackwardInput { dout, weight, dx });
    b.backward(LinearBackwardWeight { dout, x, dweight });
    b.finish(format!("linear {geometry:?} {k} -> {n}"))
}

/// RMSNorm, with or without a branch to add.
///
/// # Errors
/// A plan the operator refuses.
pub fn add_rms_norm(geometry: Geometry, n: usize, branch: bool, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    let x = b.normal("x", &[rows, n], Role::Residual, 1.0);
    let weight = b.normal("weight", &[n], Role::Parameter, 1.0);
    let branch = branch.then(|| b.normal("branch", &[rows, n], Role::Activation, 1.0));
    let sum = branch.map(|_| b.out("sum", &[rows, n], Role::Residual));
    let out = b.out("out", &[rows, n], Role::Activation);
    let rstd = b.out("rstd", &[rows], Role::Statistic);
    let dout = b.cotangent("dout", out);
    let dresidual = sum.map(|sum| b.cotangent("dresidual", sum));
    let dsum = b.gradient("dsum", x, Role::Residual);
    let dbranch = branch.map(|branch| b.gradient("dbranch", branch, Role::Activation));
    let dweight = b.parameter_gradient("dweight", weight);
    b.forward(AddRmsNorm {
        x,
        branch,
        sum,
        weight,
        out,
        rstd,
        eps: 1e-6,
    });
    let sum = sum.unwrap_or(x);
    b.backward(AddRmsNormBackward {
        sum,
        rstd,
        weight,
        dout,
        dresidual,
        dsum,
        dbranch,
        dweight,
    });
    b.finish(format!("rms norm {geometry:?} {n} branch {}", branch.is_some()))
}

/// Sizes of a short convolution.
#[derive(Clone, Debug)]
pub struct ConvCase {
    /// Sizes of the micro-batch.
    pub geometry: Geometry,
    /// Document offsets.
    pub documents: Vec<i32>,
    /// Normalised heads.
    pub norm_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Channels that are not normalised.
    pub rest: usize,
    /// Taps; none for no convolution.
    pub taps: Option<usize>,
    /// Size of the inputs.
    pub scale: f64,
    /// With SiLU, as the model has it.
    pub silu: bool,
}

/// Short convolution.
///
/// # Errors
/// A plan the operator refuses.
pub fn short_conv(case: &ConvCase, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(case.geometry, seed);
    let rows = b.rows();
    let ConvCase {
        norm_heads,
        head_dim,
        silu,
        ..
    } = *case;
    let d = norm_heads * head_dim + case.rest;
    let documents = b.ids("cu_seqlens", case.documents.clone());
    let x = b.normal_columns("x", d, case.scale);
    let weight = case
        .taps
        .map(|w| b.normal("weight", &[d, w], Role::Parameter, 0.5));
    let out = b.out("out", &[rows, d], Role::Activation);
    let dout = b.cotangent("dout", out);
    let dx = b.gradient_columns("dx", x);
    let dweight = weight.map(|w| b.parameter_gradient("dweight", w));
    b.forward(ShortConv {
        x,
        weight,
        out,
        silu,
        documents,
        norm_heads,
        head_dim,
    });
    b.backward(ShortConvBackward {
        x,
        weight,
        dout,
        dx,
        dweight,
        silu,
        documents,
        norm_heads,
        head_dim,
    });
    b.finish(format!("short conv {case:?}"))
}

/// Gates.
///
/// # Errors
/// A plan the operator refuses.
pub fn gates(geometry: Geometry, heads: usize, beta_scale: f64, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    // Wide enough that softplus is used on both sides of its threshold.
    let a = b.normal_columns("a", heads, 9.0);
    let beta_logits = b.normal_columns("b", heads, 2.0);
    let a_log = b.normal("a_log", &[heads], Role::Parameter, 0.7);
    let dt_bias = b.normal("dt_bias", &[heads], Role::Parameter, 1.0);
    let g = b.out("g", &[rows, heads], Role::Statistic);
    let beta = b.out("beta", &[rows, heads], Role::Statistic);
    let (dg, dbeta) = (b.cotangent("dg", g), b.cotangent("dbeta", beta));
    let fused = b.plan.buffer("d", &[rows, 2 * heads + 1], Role::Activation);
    b.plan.keep(fused);
    let da = Columns {
        buffer: fused,
        first: heads + 1,
        width: heads,
    };
    let db = Columns {
        buffer: fused,
        first: 0,
        width: heads,
    };
    b.outputs.extend([da, db]);
    b.gradients.extend([(a, da), (beta_logits, db)]);
    let da_log = b.parameter_gradient("da_log", a_log);
    let ddt_bias = b.parameter_gradient("ddt_bias", dt_bias);
    b.forward(Gates {
        a,
        b: beta_logits,
        a_log,
        dt_bias,
        g,
        beta,
        beta_scale,
    });
    b.backward(GatesBackward {
        a,
        a_log,
        dt_bias,
        g,
        beta,
        dg,
        dbeta,
        da,
        db,
        da_log,
        ddt_bias,
        beta_scale,
    });
    b.finish(format!("gates {geometry:?} {heads} beta_scale {beta_scale}"))
}

/// Sizes and distributions of a delta rule.
#[derive(Clone, Debug)]
pub struct DeltaCase {
    /// Sizes of the micro-batch.
    pub geometry: Geometry,
    /// Document offsets.
    pub documents: Vec<i32>,
    /// Heads.
    pub shape: DeltaRuleShape,
    /// With initial and final states.
    pub states: bool,
    /// The backward operator recomputes what the forward operator did not save.
    pub recompute: bool,
    /// Log decays are uniform in `[-decay, 0]`.
    pub decay: f64,
    /// Writing strengths are uniform in `[0, beta]`.
    pub beta: f64,
}

/// Gated delta rule with l2-normalised queries and keys; q, k and v are columns of one buffer.
///
/// # Errors
/// A plan the operator refuses.
pub fn delta_rule(case: &DeltaCase, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(case.geometry, seed);
    let rows = b.rows();
    let shape = case.shape;
    let DeltaRuleShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    } = shape;
    let (kw, vw) = (key_heads * key_dim, value_heads * value_dim);
    let documents = b.ids("cu_seqlens", case.documents.clone());
    let mut qkv = b.rng.normals(rows * (2 * kw + vw), 1.0);
    for row in qkv.chunks_exact_mut(2 * kw + vw) {
        for head in row[..2 * kw].chunks_exact_mut(key_dim) {
            let norm = head.iter().map(|x| x * x).sum::<f64>().sqrt();
            head.iter_mut().for_each(|x| *x /= norm);
        }
    }
    let qkv = b.given("qkv", &[rows, 2 * kw + vw], Role::Activation, qkv);
    let part = |first, width| Columns {
        buffer: qkv,
        first,
        width,
    };
    let (q, k, v) = (part(0, kw), part(kw, kw), part(2 * kw, vw));
    let values = (0..rows * value_heads)
        .map(|_| -case.decay * b.rng.uniform())
        .collect();
    let g = b.given("g", &[rows, value_heads], Role::Statistic, values);
    let values = (0..rows * value_heads)
        .map(|_| case.beta * b.rng.uniform())
        .collect();
    let beta = b.given("beta", &[rows, value_heads], Role::Statistic, values);
    let state = [case.geometry.max_documents, value_heads, key_dim, value_dim];
    let initial_state = case
        .states
        .then(|| b.normal("initial_state", &state, Role::Statistic, 0.5));
    let o = b.out("o", &[rows, vw], Role::Activation);
    let final_state = case.states.then(|| b.out("final_state", &state, Role::Statistic));
    let dout = b.cotangent("dout", o);
    let dfinal_state = final_state.map(|s| b.cotangent("dfinal_state", s));
    let saved = [case.geometry.max_chunks(), value_heads, key_dim, value_dim];
    let chunk_states = b.plan.buffer("chunk_states", &saved, Role::Statistic);
    let u = b.plan.buffer("u", &[rows, vw], Role::Activation);
    let dqkv = b.plan.buffer("dqkv", &[rows, 2 * kw + vw], Role::Activation);
    b.plan.keep(dqkv);
    let part = |first, width| Columns {
        buffer: dqkv,
        first,
        width,
    };
    let (dq, dk, dv) = (part(0, kw), part(kw, kw), part(2 * kw, vw));
    b.outputs.extend([dq, dk, dv]);
    b.gradients.extend([(q, dq), (k, dk), (v, dv)]);
    let dg = b.gradient("dg", g, Role::Statistic);
    let dbeta = b.gradient("dbeta", beta, Role::Statistic);
    let dinitial_state = initial_state.map(|s| b.gradient("dinitial_state", s, Role::Statistic));
    let scale = (key_dim as f64).powf(-0.5);
    let recompute = case.recompute;
    b.forward(DeltaRule {
        q,
        k,
        v,
        g,
        beta,
        documents,
        initial_state,
        o,
        final_state,
        chunk_states: (!recompute).then_some(chunk_states),
        u: (!recompute).then_some(u),
        scale,
        shape,
    });
    b.backward(DeltaRuleBackward {
        q,
        k,
        v,
        g,
        beta,
        documents,
        initial_state,
        chunk_states,
        u,
        recompute,
        dout,
        dfinal_state,
        dq,
        dk,
        dv,
        dg,
        dbeta,
        dinitial_state,
        scale,
        shape,
    });
    b.finish(format!("delta rule {case:?}"))
}

/// Gated RMSNorm, or a plain one per head without an activation.
///
/// # Errors
/// A plan the operator refuses.
pub fn gated_rms_norm(
    geometry: Geometry,
    heads: usize,
    v: usize,
    gate: Option<GateActivation>,
    seed: u64,
) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    let x = b.normal("x", &[rows, heads, v], Role::Activation, 1.0);
    let activation = gate.unwrap_or_default();
    let gate = gate.map(|_| b.normal_columns("gate", heads * v, 2.0));
    let weight = b.normal("weight", &[v], Role::Parameter, 1.0);
    let out = b.out("out", &[rows, heads * v], Role::Activation);
    let rstd = b.out("rstd", &[rows, heads], Role::Statistic);
    let dout = b.cotangent("dout", out);
    let dx = b.gradient("dx", x, Role::Activation);
    let dgate = gate.map(|g| b.gradient_columns("dgate", g));
    let dweight = b.parameter_gradient("dweight", weight);
    b.forward(GatedRmsNorm {
        x,
        gate,
        weight,
        out,
        rstd,
        eps: 1e-6,
        activation,
    });
    b.backward(GatedRmsNormBackward {
        x,
        gate,
        weight,
        rstd,
        dout,
        dx,
        dgate,
        dweight,
        activation,
    });
    b.finish(format!(
        "gated rms norm {geometry:?} {heads}x{v} gate {gate:?} {activation:?}"
    ))
}

/// SwiGLU.
///
/// # Errors
/// A plan the operator refuses.
pub fn swiglu(geometry: Geometry, n: usize, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    let gate_up = b.normal("gate_up", &[rows, 2 * n], Role::Activation, 2.0);
    let out = b.out("out", &[rows, n], Role::Activation);
    let dout = b.cotangent("dout", out);
    let dgate_up = b.gradient("dgate_up", gate_up, Role::Activation);
    let again = seed
        .is_multiple_of(2)
        .then(|| b.out("again", &[rows, n], Role::Activation));
    b.forward(SwiGlu { gate_up, out });
    b.backward(SwiGluBackward {
        gate_up,
        dout,
        dgate_up,
        out: again,
    });
    b.finish(format!("swiglu {geometry:?} {n}"))
}

/// Sizes of a loss.
#[derive(Clone, Debug)]
pub struct LossCase {
    /// Sizes of the micro-batch.
    pub geometry: Geometry,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Rows per chunk of logits.
    pub chunk_rows: usize,
    /// Share of labels that are ignored.
    pub ignored: f64,
    /// Size of the weights: large ones give extreme logits.
    pub scale: f64,
}

/// Head and cross entropy. The cotangent of the loss sum is `grad_scale`.
///
/// # Errors
/// A plan the operator refuses.
pub fn cross_entropy(case: &LossCase, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(case.geometry, seed);
    let rows = b.rows();
    let label = |b: &mut Builder| {
        if b.rng.uniform() < case.ignored {
            IGNORE_INDEX
        } else {
            b.rng.below(case.vocab) as i32
        }
    };
    let labels = (0..rows).map(|_| label(&mut b)).collect();
    let labels = b.ids("labels", labels);
    let x = b.normal("x", &[rows, case.hidden], Role::Activation, 1.0);
    let weight = b.normal("weight", &[case.vocab, case.hidden], Role::Parameter, case.scale);
    let nll = b.out("nll", &[rows], Role::Statistic);
    let loss_sum = b.given("loss_sum", &[1], Role::Scalar, vec![0.0]);
    let loss = b.plan.columns(loss_sum);
    b.outputs.push(loss);
    let logits = b
        .plan
        .buffer("logits", &[case.chunk_rows, case.vocab], Role::Activation);
    let grad_scale = b.given("grad_scale", &[1], Role::Scalar, vec![0.37]);
    let cotangent = b.plan.columns(grad_scale);
    b.cotangents.push((loss, cotangent));
    let dx = b.gradient("dx", x, Role::Activation);
    let dweight = b.parameter_gradient("dweight", weight);
    let gradients = Some(LossGradients {
        grad_scale,
        dx,
        dweight,
    });
    b.forward(LinearCrossEntropy {
        x,
        weight,
        labels,
        nll,
        loss_sum,
        logits,
        gradients,
    });
    b.finish(format!("cross entropy {case:?}"))
}

/// Global norm with its clipping coefficient.
///
/// # Errors
/// A plan the operator refuses.
pub fn global_norm(sizes: &[usize], max_norm: Option<f64>, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(Geometry::unpacked(1, 1), seed);
    let gradients = (0..sizes.len())
        .map(|i| b.normal(&format!("gradient {i}"), &[sizes[i]], Role::Gradient, 1.0))
        .collect();
    let (norm, coefficient) = (
        b.out("norm", &[1], Role::Scalar),
        b.out("coefficient", &[1], Role::Scalar),
    );
    b.plan.push(
        Section::Update,
        GlobalNorm {
            gradients,
            norm,
            coefficient,
            max_norm,
        },
    );
    b.finish(format!("global norm {sizes:?} {max_norm:?}"))
}

/// One AdamW update of a parameter with two weight decays.
///
/// # Errors
/// A plan the operator refuses.
pub fn adamw(size: usize, lr: f64, step: u32, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(Geometry::unpacked(1, 1), seed);
    let parameter = b.plan.parameter("p", &[size], &[("p".into(), vec![size])]);
    let mut fill = |id, scale: f64, square: bool| {
        let mut values = b.rng.normals(size, scale);
        if square {
            values.iter_mut().for_each(|x| *x *= *x);
        }
        b.values.push((id, values));
    };
    fill(parameter.value, 1.0, false);
    fill(parameter.gradient, 0.1, false);
    fill(parameter.first_moment, 0.1, false);
    fill(parameter.second_moment, 0.1, true);
    for id in [parameter.value, parameter.first_moment, parameter.second_moment] {
        let all = b.plan.columns(id);
        b.outputs.push(all);
    }
    let hyper = b.given("hyper", &[HYPER_LEN], Role::Scalar, vec![lr, f64::from(step)]);
    let coefficient = b.given("coefficient", &[1], Role::Scalar, vec![0.8]);
    let cut = size / 3;
    let decay = vec![
        Decay {
            range: 0..cut,
            weight_decay: 0.1,
        },
        Decay {
            range: cut..size,
            weight_decay: 0.0,
        },
    ];
    b.plan.push(
        Section::Update,
        AdamW {
            tensors: vec![AdamWTensor { parameter, decay }],
            hyper,
            coefficient,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
        },
    );
    b.finish(format!("adamw {size} lr {lr} step {step}"))
}

/// The standard list: every operator at lengths around the chunk and block sizes, several head dimensions, grouped
/// heads, packed documents, with and without states.
///
/// # Errors
/// A plan an operator refuses.
pub fn all() -> Result<Vec<Case>, PlanError> {
    let mut cases = Vec::new();
    for (i, t) in [1, 63, 64, 65, 127].into_iter().enumerate() {
        let (g, seed) = (Geometry::unpacked(2, t), i as u64);
        cases.push(embedding(g, 11, 20, seed)?);
        cases.push(linear(g, 24, 40, seed)?);
        cases.push(linear(g, 300, 7, seed)?);
        cases.push(add_rms_norm(g, 24, i % 2 == 0, seed)?);
        cases.push(gates(g, 3, 1.0 + (i % 2) as f64, seed)?);
        let activation = [Some(GateActivation::Swish), Some(GateActivation::Sigmoid), None][i % 3];
        cases.push(gated_rms_norm(g, 3, 20, activation, seed)?);
        cases.push(swiglu(g, 33, seed)?);
        let loss = LossCase {
            geometry: g,
            hidden: 20,
            vocab: 131,
            chunk_rows: 32,
            ignored: 0.3,
            scale: 0.5,
        };
        cases.push(cross_entropy(&loss, seed)?);
        let documents = g.unpacked_cu_seqlens();
        let conv = ConvCase {
            geometry: g,
            documents: documents.clone(),
            norm_heads: 3,
            head_dim: 8,
            rest: 10,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, seed)?);
        cases.push(short_conv(
            &ConvCase {
                taps: None,
                silu: i % 2 == 0,
                ..conv
            },
            seed,
        )?);
        let heads = [(1, 1), (2, 4), (1, 3)][i % 3];
        let dims = [(16, 16), (8, 24), (33, 17), (64, 64), (128, 64)][i];
        let shape = DeltaRuleShape {
            key_heads: heads.0,
            value_heads: heads.1,
            key_dim: dims.0,
            value_dim: dims.1,
        };
        let delta = DeltaCase {
            geometry: g,
            documents,
            shape,
            states: i % 2 == 1,
            recompute: i % 3 == 1,
            decay: 0.5,
            beta: 1.0,
        };
        cases.push(delta_rule(&delta, seed)?);
    }
    let (geometry, documents) = documents_of(&[1, 3, 4, 63, 64, 65, 0, 100]);
    let shape = DeltaRuleShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 16,
    };
    cases.push(delta_rule(
        &DeltaCase {
            geometry,
            documents: documents.clone(),
            shape,
            states: true,
            recompute: false,
            decay: 2.0,
            beta: 2.0,
        },
        7,
    )?);
    cases.push(short_conv(
        &ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 16,
            rest: 16,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        },
        8,
    )?);
    cases.push(global_norm(&[1, 100, 20_000], Some(1.0), 9)?);
    cases.push(global_norm(&[5], None, 9)?);
    cases.push(adamw(1000, 1e-2, 3, 10)?);
    Ok(cases)
}

/// Lengths around the chunk and block sizes, and the two that training uses.
pub const DEVICE_LENGTHS: [usize; 7] = [1, 63, 64, 65, 127, 1000, 2048];

/// The list for devices: sizes their kernels cover (widths in multiples of 8, heads of 64 and more), at
/// [`DEVICE_LENGTHS`] and at drawn ones, packed documents with and without states.
///
/// # Errors
/// A plan an operator refuses.
pub fn device() -> Result<Vec<Case>, PlanError> {
    let mut cases = Vec::new();
    for (i, t) in DEVICE_LENGTHS.into_iter().enumerate() {
        let (g, seed) = (Geometry::unpacked(if t > 128 { 1 } else { 2 }, t), 20 + i as u64);
        cases.push(embedding(g, 37, [64, 1024][i % 2], seed)?);
        cases.push(linear(g, 128, 344, seed)?);
        cases.push(add_rms_norm(g, [1024, 264][i % 2], true, seed)?);
        cases.push(add_rms_norm(g, [64, 1024][i % 2], false, seed)?);
        cases.push(gates(g, [8, 3, 16][i % 3], 1.0 + (i % 2) as f64, seed)?);
        let activation = [Some(GateActivation::Swish), Some(GateActivation::Sigmoid), None][i % 3];
        cases.push(gated_rms_norm(
            g,
            8,
            [64, 128, 256, 512][i % 4],
            activation,
            seed,
        )?);
        cases.push(gated_rms_norm(g, 3, 64, Some(GateActivation::Swish), seed)?);
        cases.push(swiglu(g, 520, seed)?);
        let loss = LossCase {
            geometry: g,
            hidden: 64,
            vocab: [1000, 4104][i % 2],
            chunk_rows: [32, 4096, 100][i % 3],
            ignored: 0.2,
            // Larger ones make logits whose rounding to bf16 alone moves the gradient by a percent.
            scale: [0.05, 0.5][i % 2],
        };
        cases.push(cross_entropy(&loss, seed)?);
        let documents = g.unpacked_cu_seqlens();
        let conv = ConvCase {
            geometry: g,
            documents: documents.clone(),
            norm_heads: 4,
            head_dim: [64, 128, 256][i % 3],
            rest: 192,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, seed)?);
        let plain = ConvCase {
            taps: None,
            silu: i % 2 == 0,
            head_dim: 64,
            ..conv
        };
        cases.push(short_conv(&plain, seed)?);
        let heads = [(2, 4), (1, 1), (1, 3)][i % 3];
        for (key_dim, value_dim) in [(64, 64), [(128, 128), (64, 128), (256, 256), (128, 128)][i % 4]] {
            let shape = DeltaRuleShape {
                key_heads: heads.0,
                value_heads: heads.1,
                key_dim,
                value_dim,
            };
            let delta = DeltaCase {
                geometry: g,
                documents: documents.clone(),
                shape,
                states: i % 2 == 1,
                recompute: i % 3 == 1,
                decay: 0.5,
                beta: 1.0,
            };
            cases.push(delta_rule(&delta, seed)?);
        }
    }
    cases.extend(device_packed()?);
    cases.push(global_norm(&[8, 104, 70_000], Some(1.0), 9)?);
    cases.push(global_norm(&[5], None, 9)?);
    cases.push(adamw(3000, 1e-2, 3, 10)?);
    Ok(cases)
}

/// Packed documents: awkward lengths, empty ones, and drawn ones.
fn device_packed() -> Result<Vec<Case>, PlanError> {
    let mut rng = Rng::new(77);
    let drawn: Vec<usize> = (0..9).map(|_| 1 + rng.below(200)).collect();
    let mut cases = Vec::new();
    for (i, lengths) in [vec![1, 3, 4, 63, 64, 65, 0, 100], drawn, vec![0, 200, 0]]
        .iter()
        .enumerate()
    {
        let (geometry, documents) = documents_of(lengths);
        for (j, dim) in [64, 128].into_iter().enumerate() {
            let delta = DeltaCase {
                geometry,
                documents: documents.clone(),
                shape: DeltaRuleShape {
                    key_heads: 2,
                    value_heads: 4,
                    key_dim: dim,
                    value_dim: dim,
                },
                states: (i + j).is_multiple_of(2),
                recompute: j == 1,
                decay: 2.0,
                beta: 2.0,
            };
            cases.push(delta_rule(&delta, 30 + i as u64)?);
        }
        let conv = ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 64,
            rest: 64,
            taps: Some([4, 3, 2][i]),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, 40 + i as u64)?);
    }
    Ok(cases)
}
