//! Short causal convolution, SiLU and the l2 norm of queries and keys, as one operator.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Columns, Plan, PlanError};

/// Added to the sum of squares under the root of the l2 norm.
pub const L2_EPS: f64 = 1e-6;

/// For each channel `c` and position `t` of a document:
/// `z[t, c] = Σ_j weight[c, j] · x[t - (W - 1) + j, c]` (zero before the document's first position),
/// `s = silu(z)` (or `s = z` without `silu`); then the first `norm_heads` groups of `head_dim` channels are normalised,
/// `out = s / sqrt(Σ_group s² + 1e-6)`, and the other channels are `out = s`.
///
/// Source: flash-linear-attention 0.6.0 `ShortConvolution` (depthwise, causal, no bias, SiLU) of q, k and v and
/// `l2norm` (epsilon inside the root, on the sum of squares) of q and k. Shapes: x `[rows, d]` (columns of the fused
/// projection, q then k then v), weight `[d, W]` or `[d, 1, W]` (the three convolutions one after the other), out `[rows, d]`.
/// Without a weight (`use_short_conv: false`) `z = x`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// q, k and v before the convolution.
    pub x: Columns,
    /// Convolution taps; the last one meets the current position.
    pub weight: Option<BufferId>,
    /// q, k (normalised) and v.
    pub out: BufferId,
    /// Whether SiLU is applied, as the model does.
    pub silu: bool,
    /// Document offsets.
    pub documents: BufferId,
    /// Number of groups that are normalised: query heads plus key heads.
    pub norm_heads: usize,
    /// Channels per group.
    pub head_dim: usize,
}

/// Gradient of [`ShortConv`]. Recomputes `z` and `s`, so nothing but the inputs is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvBackward {
    /// Input of the forward operator.
    pub x: Columns,
    /// Convolution taps.
    pub weight: Option<BufferId>,
    /// Gradient of `out`, `[rows, d]`.
    pub dout: BufferId,
    /// Gradient of `x`.
    pub dx: Columns,
    /// Gradient of the taps, accumulated; given exactly when `weight` is.
    pub dweight: Option<BufferId>,
    /// As in the forward operator.
    pub silu: bool,
    /// Document offsets.
    pub documents: BufferId,
    /// As in the forward operator.
    pub norm_heads: usize,
    /// As in the forward operator.
    pub head_dim: usize,
}

operands!(ShortConv { Read: x, weight, documents; Write: out });
operands!(ShortConvBackward { Read: x, weight, dout, documents; WriteColumns: dx; Update: dweight });

/// Widest convolution.
const MAX_WIDTH: usize = 8;

fn check(
    c: &Checker,
    x: Columns,
    weight: Option<BufferId>,
    documents: BufferId,
    norm_heads: usize,
    head_dim: usize,
) -> Result<(), PlanError> {
    c.columns(x, c.rows())?;
    c.data(&[x.buffer])?;
    c.documents(documents)?;
    c.require(head_dim > 0 && norm_heads * head_dim <= x.width, || {
        format!(
            "{norm_heads} heads of {head_dim} channels do not fit into {} channels",
            x.width
        )
    })?;
    if let Some(weight) = weight {
        c.parameter(weight)?;
        let width = c.plan.buffer(weight).width();
        c.matrix(weight, x.width, width)?;
        c.require((1..=MAX_WIDTH).contains(&width), || {
            format!("conv_size {width} is not supported, allowed: 1 to {MAX_WIDTH}")
        })?;
    }
    Ok(())
}

impl ShortConv {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "ShortConv");
        check(
            &c,
            self.x,
            self.weight,
            self.documents,
            self.norm_heads,
            self.head_dim,
        )?;
        c.data(&[self.out])?;
        c.matrix(self.out, c.rows(), self.x.width)?;
        c.require(self.out != self.x.buffer, || {
            "input and output must be different buffers".into()
        })
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl ShortConvBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "ShortConvBackward");
        check(
            &c,
            self.x,
            self.weight,
            self.documents,
            self.norm_heads,
            self.head_dim,
        )?;
        c.data(&[self.dout, self.dx.buffer])?;
        c.matrix(self.dout, c.rows(), self.x.width)?;
        c.columns(self.dx, c.rows())?;
        c.require(self.dx.width == self.x.width, || "dx must have x's width".into())?;
        c.require(self.dx.buffer != self.x.buffer, || {
            "input and output must be different buffers".into()
        })?;
        c.require(self.weight.is_some() == self.dweight.is_some(), || {
            "weight and dweight go together".into()
        })?;
        if let (Some(w), Some(dw)) = (self.weight, self.dweight) {
            c.gradient(dw)?;
            c.elements(dw, plan.buffer(w).len())?;
        }
        Ok(())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
