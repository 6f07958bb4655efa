//! The activation of the gated MLP.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError};

/// `out = silu(gate) · up`, `silu(x) = x · sigmoid(x)`.
///
/// Source: flash-linear-attention 0.6.0 `GatedMLP` (`swiglu`). Shapes: gate_up `[rows, 2n]` (gate, then up, the
/// output of the fused product), out `[rows, n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiGlu {
    /// Gate and up.
    pub gate_up: BufferId,
    /// Result.
    pub out: BufferId,
}

/// Gradient of [`SwiGlu`]: `dgate = dout · up · silu'(gate)`, `dup = dout · silu(gate)`.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiGluBackward {
    /// Gate and up.
    pub gate_up: BufferId,
    /// Gradient of `out`, `[rows, n]`.
    pub dout: BufferId,
    /// Gradient of gate and up, `[rows, 2n]`.
    pub dgate_up: BufferId,
    /// The forward operator's result once more, for a backward pass that did not keep it, `[rows, n]`.
    pub out: Option<BufferId>,
}

operands!(SwiGlu { Read: gate_up; Write: out });
operands!(SwiGluBackward { Read: gate_up, dout; Write: dgate_up, out });

impl SwiGlu {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "SwiGlu");
        c.data(&[self.gate_up, self.out])?;
        let n = plan.buffer(self.out).width();
        c.matrix(self.out, c.rows(), n)?;
        c.matrix(self.gate_up, c.rows(), 2 * n)
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl SwiGluBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "SwiGluBackward");
        c.data(&[self.gate_up, self.dout, self.dgate_up])?;
        let n = plan.buffer(self.dout).width();
        c.matrix(self.dout, c.rows(), n)?;
        c.matrix(self.gate_up, c.rows(), 2 * n)?;
        c.matrix(self.dgate_up, c.rows(), 2 * n)?;
        self.out.map_or(Ok(()), |out| {
            c.data(&[out])?;
            c.matrix(out, c.rows(), n)
        })
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
