//! Global gradient norm and the clipping coefficient.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError};

/// `norm = sqrt(Σ over all gradients of their squares)`; `coefficient = min(1, max_norm / (norm + 1e-6))`, or 1
/// without `max_norm`. AdamW multiplies the gradients by the coefficient.
///
/// Source: `torch.nn.utils.clip_grad_norm_` (2.15.0). The sum runs over the buffers in the given order, each in
/// ascending order by fixed blocks. A norm that is not finite gives the coefficient torch gives: NaN for NaN, 0 for
/// infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalNorm {
    /// Gradients.
    pub gradients: Vec<BufferId>,
    /// One scalar.
    pub norm: BufferId,
    /// One scalar.
    pub coefficient: BufferId,
    /// Largest norm that is left alone.
    pub max_norm: Option<f64>,
}

operands!(GlobalNorm { Read: gradients; Write: norm, coefficient });

impl GlobalNorm {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "GlobalNorm");
        self.gradients.iter().try_for_each(|&g| c.gradient(g))?;
        c.scalar(self.norm, 1)?;
        c.scalar(self.coefficient, 1)?;
        c.require(self.max_norm.is_none_or(|m| m > 0.0), || {
            "max_norm must be positive".into()
        })
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
