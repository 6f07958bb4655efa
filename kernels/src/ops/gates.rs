//! The two gates of the delta rule: log decay and writing strength.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Columns, Plan, PlanError};

/// `g = -exp(a_log) · softplus(a + dt_bias)` (log decay, `<= 0`), `beta = beta_scale · sigmoid(b)`.
///
/// Source: flash-linear-attention 0.6.0 `GatedDeltaNet.forward`; `beta_scale` is 2 under `allow_neg_eigval`, else 1.
/// `softplus(x) = ln(1 + eˣ)`, and `x` itself above 20 as `torch.nn.functional.softplus` has it.
/// Shapes: a, b, g, beta `[rows, value_heads]`; a_log, dt_bias `[value_heads]`.
/// g is not summed here: the delta rule sums it inside its chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Gates {
    /// Decay logits.
    pub a: Columns,
    /// Writing-strength logits.
    pub b: Columns,
    /// Logarithm of the decay rates.
    pub a_log: BufferId,
    /// Bias of the decay logits.
    pub dt_bias: BufferId,
    /// Log decays.
    pub g: BufferId,
    /// Writing strengths.
    pub beta: BufferId,
    /// 1 or 2.
    pub beta_scale: f64,
}

/// Gradient of [`Gates`]: `da = dg · (-exp(a_log)) · softplus'(a + dt_bias)`, `ddt_bias += Σ_rows da`,
/// `da_log += Σ_rows dg · g`, `db = dbeta · beta · (1 - beta / beta_scale)`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatesBackward {
    /// Decay logits.
    pub a: Columns,
    /// Logarithm of the decay rates.
    pub a_log: BufferId,
    /// Bias of the decay logits.
    pub dt_bias: BufferId,
    /// Log decays from the forward operator.
    pub g: BufferId,
    /// Writing strengths from the forward operator.
    pub beta: BufferId,
    /// Gradient of `g`.
    pub dg: BufferId,
    /// Gradient of `beta`.
    pub dbeta: BufferId,
    /// Gradient of `a`.
    pub da: Columns,
    /// Gradient of `b`; another part of the same buffer as `da`.
    pub db: Columns,
    /// Gradient of `a_log`, accumulated.
    pub da_log: BufferId,
    /// Gradient of `dt_bias`, accumulated.
    pub ddt_bias: BufferId,
    /// As in the forward operator.
    pub beta_scale: f64,
}

operands!(Gates { Read: a, b, a_log, dt_bias; Write: g, beta });
operands!(GatesBackward {
    Read: a, a_log, dt_bias, g, beta, dg, dbeta; WriteColumns: da, db; Update: da_log, ddt_bias
});

fn check(c: &Checker, columns: &[Columns], a_log: BufferId, dt_bias: BufferId) -> Result<usize, PlanError> {
    c.parameter(a_log)?;
    c.parameter(dt_bias)?;
    let heads = c.plan.buffer(a_log).len();
    c.elements(dt_bias, heads)?;
    for &x in columns {
        c.columns(x, c.rows())?;
        c.data(&[x.buffer])?;
        c.require(x.width == heads, || {
            format!("{} columns for {heads} heads", x.width)
        })?;
    }
    Ok(heads)
}

impl Gates {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "Gates");
        let heads = check(&c, &[self.a, self.b], self.a_log, self.dt_bias)?;
        c.data(&[self.g, self.beta])?;
        c.matrix(self.g, c.rows(), heads)?;
        c.matrix(self.beta, c.rows(), heads)
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl GatesBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "GatesBackward");
        let heads = check(&c, &[self.a, self.da, self.db], self.a_log, self.dt_bias)?;
        for id in [self.g, self.beta, self.dg, self.dbeta] {
            c.data(&[id])?;
            c.matrix(id, c.rows(), heads)?;
        }
        for id in [self.da_log, self.ddt_bias] {
            c.gradient(id)?;
            c.elements(id, heads)?;
        }
        Ok(())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
