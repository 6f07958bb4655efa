//! Matrix products with a weight, on columns of fused activations.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Columns, Plan, PlanError};

/// `out[r] = x[r] · weightᵀ`.
///
/// Source: `torch.nn.Linear` without bias. Shapes: x `[rows, k]`, weight `[n, k]`, out `[rows, n]`. Several linears
/// of one input are one product with a fused weight whose rows are the linears one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Input.
    pub x: Columns,
    /// Weight, row-major `[n, k]`.
    pub weight: BufferId,
    /// Output.
    pub out: Columns,
}

/// `dx[r] = dout[r] · weight`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearBackwardInput {
    /// Gradient of the output, `[rows, n]`.
    pub dout: Columns,
    /// Weight, `[n, k]`.
    pub weight: BufferId,
    /// Gradient of the input, `[rows, k]`.
    pub dx: Columns,
}

/// `dweight += doutᵀ · x`, sequence by sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearBackwardWeight {
    /// Gradient of the output, `[rows, n]`.
    pub dout: Columns,
    /// Input of the forward operator, `[rows, k]`.
    pub x: Columns,
    /// Gradient of the weight, `[n, k]`, accumulated.
    pub dweight: BufferId,
}

operands!(Linear { Read: x, weight; WriteColumns: out });
operands!(LinearBackwardInput { Read: dout, weight; WriteColumns: dx });
operands!(LinearBackwardWeight { Read: dout, x; Update: dweight });

fn check(c: &Checker, out: Columns, weight: BufferId, x: Columns) -> Result<(), PlanError> {
    c.columns(out, c.rows())?;
    c.columns(x, c.rows())?;
    c.data(&[out.buffer, x.buffer])?;
    c.shape(weight, &[out.width, x.width])?;
    c.require(out.buffer != x.buffer, || {
        "input and output must be different buffers".into()
    })
}

fn flops(plan: &Plan, weight: BufferId) -> u64 {
    2 * plan.geometry.rows() as u64 * plan.buffer(weight).len() as u64
}

impl Linear {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "Linear");
        c.parameter(self.weight)?;
        check(&c, self.out, self.weight, self.x)
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        flops(plan, self.weight)
    }
}

impl LinearBackwardInput {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "LinearBackwardInput");
        c.parameter(self.weight)?;
        check(&c, self.dout, self.weight, self.dx)
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        flops(plan, self.weight)
    }
}

impl LinearBackwardWeight {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "LinearBackwardWeight");
        c.gradient(self.dweight)?;
        check(&c, self.dout, self.dweight, self.x)
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        flops(plan, self.dweight)
    }
}
