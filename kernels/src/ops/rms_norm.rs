//! RMSNorm, fused with the residual addition before it.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError};

/// `s = (x + branches[0]) + branches[1]` as far as there are branches, `rstd = 1 / sqrt(mean(s²) + eps)`, `out = s · rstd · weight`.
///
/// Source: flash-linear-attention 0.6.0 `RMSNorm` (`fla/modules/layernorm.py`) and the block's residual additions.
/// Shapes: x, branches, sum, out `[rows, n]`; weight `[n]`; rstd `[rows]`. The mean runs over the `n` values of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNorm {
    /// Residual stream.
    pub x: BufferId,
    /// What the branches before add to it, in this order: none, the first, or both.
    pub branches: [Option<BufferId>; 2],
    /// The new residual stream, where it is to be kept; only with a branch.
    pub sum: Option<BufferId>,
    /// Scale.
    pub weight: BufferId,
    /// Normalised rows.
    pub out: BufferId,
    /// Reciprocal root mean square per row.
    pub rstd: BufferId,
    /// Added to the mean square.
    pub eps: f64,
}

/// Gradient of [`AddRmsNorm`]: with `s = x + branch` (or `s = x`), `x̂ = s · rstd`, `w = dout · weight`,
/// `dsum = rstd · (w - x̂ · mean(w · x̂)) + dresidual`, `dweight += Σ_rows dout · x̂`.
///
/// `dsum` is the gradient of the stream before and of its branches alike.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNormBackward {
    /// The normalised residual stream, `[rows, n]`, or the stream before `branch`.
    pub x: BufferId,
    /// What was added to `x`, where the sum was not kept, `[rows, n]`.
    pub branch: Option<BufferId>,
    /// From the forward operator, `[rows]`.
    pub rstd: BufferId,
    /// Scale, `[n]`.
    pub weight: BufferId,
    /// Gradient of `out`, `[rows, n]`.
    pub dout: BufferId,
    /// Gradient that reaches `s` by other ways (the residual connection past this norm), `[rows, n]`.
    pub dresidual: Option<BufferId>,
    /// Gradient of `s`, `[rows, n]`.
    pub dsum: BufferId,
    /// The forward operator's `out` once more, for a backward product that needs it after this, `[rows, n]`.
    pub out: Option<BufferId>,
    /// A second copy of `dsum` in the storage type of activations, for the branch's backward products.
    pub dbranch: Option<BufferId>,
    /// Gradient of the scale, `[n]`, accumulated.
    pub dweight: BufferId,
}

operands!(AddRmsNorm { Read: x, branches, weight; Write: sum, out, rstd });
operands!(AddRmsNormBackward {
    Read: x, branch, rstd, weight, dout, dresidual; Write: dsum, dbranch, out; Update: dweight
});

impl AddRmsNorm {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "AddRmsNorm");
        c.parameter(self.weight)?;
        let n = plan.buffer(self.weight).len();
        let [first, second] = self.branches;
        let matrices = [Some(self.x), first, second, self.sum, Some(self.out)];
        for id in matrices.into_iter().flatten() {
            c.data(&[id])?;
            c.matrix(id, c.rows(), n)?;
        }
        c.elements(self.rstd, c.rows())?;
        c.data(&[self.rstd])?;
        c.require(
            first.is_some() || (second.is_none() && self.sum.is_none()),
            || "a sum or a second branch without a first".into(),
        )
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl AddRmsNormBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "AddRmsNormBackward");
        c.parameter(self.weight)?;
        c.gradient(self.dweight)?;
        let n = plan.buffer(self.weight).len();
        c.elements(self.dweight, n)?;
        let matrices = [
            Some(self.x),
            self.branch,
            Some(self.dout),
            self.dresidual,
            Some(self.dsum),
            self.dbranch,
            self.out,
        ];
        for id in matrices.into_iter().flatten() {
            c.data(&[id])?;
            c.matrix(id, c.rows(), n)?;
        }
        c.elements(self.rstd, c.rows())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
