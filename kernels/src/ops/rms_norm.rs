//! RMSNorm, fused with the residual addition before it.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError};

/// `s = x + branch` (or `s = x`), `rstd = 1 / sqrt(mean(s²) + eps)`, `out = s · rstd · weight`.
///
/// Source: flash-linear-attention 0.6.0 `RMSNorm` (`fla/modules/layernorm.py`) and the block's residual additions.
/// Shapes: x, branch, sum, out `[rows, n]`; weight `[n]`; rstd `[rows]`. The mean runs over the `n` values of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNorm {
    /// Residual stream.
    pub x: BufferId,
    /// What the previous branch adds to it.
    pub branch: Option<BufferId>,
    /// The new residual stream; given exactly when `branch` is.
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

/// Gradient of [`AddRmsNorm`]: with `x̂ = sum · rstd`, `w = dout · weight`,
/// `dsum = rstd · (w - x̂ · mean(w · x̂)) + dresidual`, `dweight += Σ_rows dout · x̂`.
///
/// `dsum` is the gradient of both `x` and `branch`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNormBackward {
    /// The normalised residual stream, `[rows, n]`: `sum`, or `x` where there was no branch.
    pub sum: BufferId,
    /// From the forward operator, `[rows]`.
    pub rstd: BufferId,
    /// Scale, `[n]`.
    pub weight: BufferId,
    /// Gradient of `out`, `[rows, n]`.
    pub dout: BufferId,
    /// Gradient that reaches `sum` by other ways (the residual connection past this norm), `[rows, n]`.
    pub dresidual: Option<BufferId>,
    /// Gradient of `sum`, `[rows, n]`.
    pub dsum: BufferId,
    /// A second copy of `dsum` in the storage type of activations, for the branch's backward products.
    pub dbranch: Option<BufferId>,
    /// Gradient of the scale, `[n]`, accumulated.
    pub dweight: BufferId,
}

operands!(AddRmsNorm { Read: x, branch, weight; Write: sum, out, rstd });
operands!(AddRmsNormBackward {
    Read: sum, rstd, weight, dout, dresidual; Write: dsum, dbranch; Update: dweight
});

impl AddRmsNorm {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "AddRmsNorm");
        c.parameter(self.weight)?;
        let n = plan.buffer(self.weight).len();
        let matrices = [Some(self.x), self.branch, self.sum, Some(self.out)];
        for id in matrices.into_iter().flatten() {
            c.data(&[id])?;
            c.matrix(id, c.rows(), n)?;
        }
        c.elements(self.rstd, c.rows())?;
        c.data(&[self.rstd])?;
        c.require(self.sum.is_some() == self.branch.is_some(), || {
            "sum and branch go together".into()
        })
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
            Some(self.sum),
            Some(self.dout),
            self.dresidual,
            Some(self.dsum),
            self.dbranch,
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
