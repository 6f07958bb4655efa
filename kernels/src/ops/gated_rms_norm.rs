//! RMSNorm per head, multiplied by an activated gate.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Columns, Plan, PlanError};

/// Activation of the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GateActivation {
    /// `silu(x) = x · sigmoid(x)`.
    #[default]
    Swish,
    /// `sigmoid(x)`.
    Sigmoid,
}

/// For each row and head of V values: `rstd = 1 / sqrt(mean(x²) + eps)`,
/// `out = x · rstd · weight · activation(gate)`; without a gate (`use_gate: false`) `out = x · rstd · weight`.
///
/// Source: flash-linear-attention 0.6.0 `FusedRMSNormGated`. Shapes: x, gate, out `[rows, heads · V]`;
/// weight `[V]` (shared by the heads); rstd `[rows, heads]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedRmsNorm {
    /// Outputs of the delta rule.
    pub x: BufferId,
    /// Gate before its activation.
    pub gate: Option<Columns>,
    /// Scale.
    pub weight: BufferId,
    /// Result.
    pub out: BufferId,
    /// Reciprocal root mean square per row and head.
    pub rstd: BufferId,
    /// Added to the mean square.
    pub eps: f64,
    /// Of the gate.
    pub activation: GateActivation,
}

/// Gradient of [`GatedRmsNorm`]: with `x̂ = x · rstd`, `s = activation(gate)`, `w = dout · weight · s`,
/// `dx = rstd · (w - x̂ · mean(w · x̂))`, `dgate = dout · x̂ · weight · activation'(gate)`,
/// `dweight += Σ_{rows, heads} dout · s · x̂`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedRmsNormBackward {
    /// Input of the forward operator.
    pub x: BufferId,
    /// Gate before its activation.
    pub gate: Option<Columns>,
    /// Scale.
    pub weight: BufferId,
    /// From the forward operator.
    pub rstd: BufferId,
    /// Gradient of `out`.
    pub dout: BufferId,
    /// The forward operator's `out` once more, for a backward product that needs it after this.
    pub out: Option<BufferId>,
    /// Gradient of `x`.
    pub dx: BufferId,
    /// Gradient of the gate; given exactly when `gate` is.
    pub dgate: Option<Columns>,
    /// Gradient of the scale, accumulated.
    pub dweight: BufferId,
    /// Of the gate.
    pub activation: GateActivation,
}

operands!(GatedRmsNorm { Read: x, gate, weight; Write: out, rstd });
operands!(GatedRmsNormBackward {
    Read: x, gate, weight, rstd, dout; Write: dx, out; WriteColumns: dgate; Update: dweight
});

fn check(
    c: &Checker,
    matrices: &[BufferId],
    gates: &[Option<Columns>],
    weight: BufferId,
    rstd: BufferId,
) -> Result<(), PlanError> {
    c.parameter(weight)?;
    let (v, rows) = (c.plan.buffer(weight).len(), c.rows());
    let width = c.plan.buffer(matrices[0]).width();
    c.require(v > 0 && width.is_multiple_of(v), || {
        format!("{width} columns are not heads of {v} values")
    })?;
    for &id in matrices {
        c.data(&[id])?;
        c.matrix(id, rows, width)?;
    }
    for gate in gates.iter().flatten() {
        c.data(&[gate.buffer])?;
        c.columns(*gate, rows)?;
        c.require(gate.width == width, || {
            format!("the gate has {} columns, not {width}", gate.width)
        })?;
    }
    c.data(&[rstd])?;
    c.matrix(rstd, rows, width / v)
}

impl GatedRmsNorm {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "GatedRmsNorm");
        check(&c, &[self.x, self.out], &[self.gate], self.weight, self.rstd)
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl GatedRmsNormBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "GatedRmsNormBackward");
        let matrices = [Some(self.x), Some(self.dout), Some(self.dx), self.out];
        check(
            &c,
            &matrices.into_iter().flatten().collect::<Vec<_>>(),
            &[self.gate, self.dgate],
            self.weight,
            self.rstd,
        )?;
        c.gradient(self.dweight)?;
        c.elements(self.dweight, plan.buffer(self.weight).len())?;
        c.require(self.gate.is_some() == self.dgate.is_some(), || {
            "gate and dgate go together".into()
        })
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
