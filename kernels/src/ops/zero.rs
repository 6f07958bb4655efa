//! Clearing and adding whole buffers.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError, Role};

/// Sets buffers to zero: gradients and loss sums at the start of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Zero {
    /// What is cleared.
    pub buffers: Vec<BufferId>,
}

/// `target += source`, elementwise: brings the two parts of a tied table's gradient together, once a step, so that
/// neither part's order of sums depends on the split into micro-batches.
#[derive(Clone, Debug, PartialEq)]
pub struct AddInto {
    /// What is added.
    pub source: BufferId,
    /// Accumulated.
    pub target: BufferId,
}

operands!(Zero { Write: buffers });
operands!(AddInto { Read: source; Update: target });

impl Zero {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "Zero");
        self.buffers
            .iter()
            .try_for_each(|&id| c.role(id, &[Role::Gradient, Role::Scalar], "Gradient or Scalar"))
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl AddInto {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "AddInto");
        c.gradient(self.source)?;
        c.gradient(self.target)?;
        c.elements(self.source, plan.buffer(self.target).len())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
