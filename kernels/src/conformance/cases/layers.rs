//! Cases of embedding, products, norms, convolution, gates and SwiGLU.

use super::builder::Builder;
use crate::conformance::Case;
use crate::ops::*;
use crate::plan::{Columns, Geometry, PlanError, Role};

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

/// RMSNorm, with none, one or two branches to add. The seed says whether the sum of one branch is
/// kept, and whether the backward pass writes the output again.
///
/// # Errors
/// A plan the operator refuses.
pub fn add_rms_norm(geometry: Geometry, n: usize, branches: usize, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(geometry, seed);
    let rows = b.rows();
    let x = b.normal("x", &[rows, n], Role::Residual, 1.0);
    let weight = b.normal("weight", &[n], Role::Parameter, 1.0);
    let added = branches;
    let mut branch =
        |i: usize, name: &str| (i < added).then(|| b.normal(name, &[rows, n], Role::Activation, 1.0));
    let branches = [branch(0, "branch"), branch(1, "second")];
    let keep = added == 2 || (added == 1 && seed.is_multiple_of(2));
    let sum = keep.then(|| b.out("sum", &[rows, n], Role::Residual));
    let out = b.out("out", &[rows, n], Role::Activation);
    let rstd = b.out("rstd", &[rows], Role::Statistic);
    let dout = b.cotangent("dout", out);
    let dresidual = sum.map(|sum| b.cotangent("dresidual", sum));
    let dsum = b.gradient("dsum", x, Role::Residual);
    let dbranch = branches[0].map(|branch| b.gradient("dbranch", branch, Role::Activation));
    let again = (seed / 2)
        .is_multiple_of(2)
        .then(|| b.out("again", &[rows, n], Role::Activation));
    let dweight = b.parameter_gradient("dweight", weight);
    b.forward(AddRmsNorm {
        x,
        branches,
        sum,
        weight,
        out,
        rstd,
        eps: 1e-6,
    });
    b.backward(AddRmsNormBackward {
        x: sum.unwrap_or(x),
        branch: if sum.is_some() { None } else { branches[0] },
        rstd,
        weight,
        dout,
        dresidual,
        dsum,
        dbranch,
        out: again,
        dweight,
    });
    b.finish(format!("rms norm {geometry:?} {n} branches {added} seed {seed}"))
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
    let again = seed
        .is_multiple_of(2)
        .then(|| b.out("again", &[rows, heads * v], Role::Activation));
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
        out: again,
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
