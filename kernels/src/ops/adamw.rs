//! AdamW.

use std::ops::Range;

use super::check::Checker;
use super::{Access, Operand};
use crate::plan::{BufferId, Parameter, Plan, PlanError};

/// Index of the learning rate in [`AdamW::hyper`].
pub const HYPER_LEARNING_RATE: usize = 0;
/// Index in [`AdamW::hyper`] of the number of this update, counted from 1: the exponent of the bias corrections.
pub const HYPER_STEP: usize = 1;
/// Number of scalars in [`AdamW::hyper`].
pub const HYPER_LEN: usize = 2;

/// Weight decay of a range of a fused parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Decay {
    /// Elements.
    pub range: Range<usize>,
    /// Weight decay, multiplied by the learning rate.
    pub weight_decay: f64,
}

/// One fused parameter and its weight decays.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWTensor {
    /// Weights, gradient and moments.
    pub parameter: Parameter,
    /// Ranges in ascending order that together cover all elements.
    pub decay: Vec<Decay>,
}

/// For every element, with `γ = lr`, `t = step` and `g = coefficient · gradient`:
///
/// ```text
/// p ← p (1 - γ·weight_decay)
/// m ← β1 m + (1 - β1) g          v ← β2 v + (1 - β2) g²
/// p ← p - γ / (1 - β1^t) · m / (sqrt(v) / sqrt(1 - β2^t) + eps)
/// ```
///
/// Source: `torch.optim.AdamW` (2.15.0): decoupled decay, bias correction, eps outside the root. Factors that depend
/// on scalars only are formed in f64 and rounded once. Gradients are left as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// What is updated.
    pub tensors: Vec<AdamWTensor>,
    /// Scalars set by the host before each update: see [`HYPER_LEARNING_RATE`] and [`HYPER_STEP`].
    pub hyper: BufferId,
    /// One scalar: the clipping coefficient of [`super::GlobalNorm`].
    pub coefficient: BufferId,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
}

impl Operand for AdamWTensor {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        f(&mut self.parameter.value);
        f(&mut self.parameter.first_moment);
        f(&mut self.parameter.second_moment);
    }
}

impl AdamW {
    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut BufferId, Access)) {
        f(&mut self.hyper, Access::Read);
        f(&mut self.coefficient, Access::Read);
        for tensor in &mut self.tensors {
            f(&mut tensor.parameter.gradient, Access::Read);
            tensor.each(&mut |id| f(id, Access::Update));
        }
    }

    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "AdamW");
        c.scalar(self.hyper, HYPER_LEN)?;
        c.scalar(self.coefficient, 1)?;
        for tensor in &self.tensors {
            let p = tensor.parameter;
            c.parameter(p.value)?;
            let n = plan.buffer(p.value).len();
            for id in [p.gradient, p.first_moment, p.second_moment] {
                c.elements(id, n)?;
            }
            let mut at = 0;
            for d in &tensor.decay {
                c.holds(p.value, d.range.start == at && d.range.end >= at, || {
                    "weight-decay ranges that follow each other".into()
                })?;
                at = d.range.end;
            }
            c.holds(p.value, at == n, || {
                format!("{at} elements, the end of its weight-decay ranges")
            })?;
        }
        Ok(())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
