//! Language-model head and cross entropy, in chunks of rows, so that the logits of all rows never exist at once.

use super::check::Checker;
use crate::plan::{BufferId, Plan, PlanError};

/// Label of a position that does not count.
pub const IGNORE_INDEX: i32 = -100;

/// With `logits = x · weightᵀ`, for every row whose label is not [`IGNORE_INDEX`]:
/// `nll = ln Σ_v exp(logits_v) - logits_label` (0 elsewhere), `loss_sum += Σ_rows nll`.
///
/// `labels[r]` is the target *of row r*: the host has shifted already, nothing is shifted here.
/// With `gradients`, the same pass gives those of `grad_scale · Σ_rows nll`; a trainer sets `grad_scale` to one over
/// the number of counted tokens of the global batch, which makes the loss a token mean however the batch is split.
///
/// Source: `torch.nn.functional.cross_entropy` on `lm_head(x)`; the chunking is that of flash-linear-attention's
/// `FusedLinearCrossEntropyLoss` in idea. Shapes: x `[rows, k]`, weight `[vocab, k]`, labels `[rows]`, nll `[rows]`,
/// logits `[chunk_rows, vocab]`. Chunks start anew at each sequence, so results do not depend on the batch around it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCrossEntropy {
    /// Normalised hidden states.
    pub x: BufferId,
    /// Output embedding.
    pub weight: BufferId,
    /// Targets, `IGNORE_INDEX` or a token id (executors refuse others when the ids are written).
    pub labels: BufferId,
    /// Negative log-likelihood per row.
    pub nll: BufferId,
    /// One scalar, accumulated.
    pub loss_sum: BufferId,
    /// Working memory for one chunk of logits.
    pub logits: BufferId,
    /// What training needs besides.
    pub gradients: Option<LossGradients>,
}

/// Gradient operands of [`LinearCrossEntropy`].
#[derive(Clone, Debug, PartialEq)]
pub struct LossGradients {
    /// One scalar, set by the host.
    pub grad_scale: BufferId,
    /// Gradient of `x`, `[rows, k]`.
    pub dx: BufferId,
    /// Gradient of the weight, `[vocab, k]`, accumulated.
    pub dweight: BufferId,
}

impl LinearCrossEntropy {
    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut BufferId, super::Access)) {
        use super::Access;
        f(&mut self.x, Access::Read);
        f(&mut self.weight, Access::Read);
        f(&mut self.labels, Access::Read);
        f(&mut self.nll, Access::Write);
        f(&mut self.loss_sum, Access::Update);
        f(&mut self.logits, Access::Scratch);
        if let Some(g) = &mut self.gradients {
            f(&mut g.grad_scale, Access::Read);
            f(&mut g.dx, Access::Write);
            f(&mut g.dweight, Access::Update);
        }
    }

    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "LinearCrossEntropy");
        c.parameter(self.weight)?;
        let (vocab, k) = (
            plan.buffer(self.weight).shape[0],
            plan.buffer(self.weight).width(),
        );
        c.data(&[self.x, self.nll, self.logits])?;
        c.matrix(self.x, c.rows(), k)?;
        c.ids(self.labels, c.rows())?;
        c.elements(self.nll, c.rows())?;
        c.scalar(self.loss_sum, 1)?;
        let chunk = plan.buffer(self.logits).shape[0];
        c.require(chunk > 0, || "a chunk of logits needs at least one row".into())?;
        c.matrix(self.logits, chunk, vocab)?;
        if let Some(g) = &self.gradients {
            c.scalar(g.grad_scale, 1)?;
            c.data(&[g.dx])?;
            c.matrix(g.dx, c.rows(), k)?;
            c.gradient(g.dweight)?;
            c.shape(g.dweight, &[vocab, k])?;
        }
        Ok(())
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        let product = 2 * plan.geometry.rows() as u64 * plan.buffer(self.weight).len() as u64;
        if self.gradients.is_some() {
            3 * product
        } else {
            product
        }
    }
}
