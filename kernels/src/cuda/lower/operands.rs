//! Storage types and alignment that the kernels take for granted, checked before an operator is lowered.

use super::super::Precision;
use super::super::error::CudaError;
use super::refuse;
use crate::ops::Op;
use crate::plan::{BufferId, Columns, Plan, Role};

/// What an operand has to be.
enum Need {
    /// An activation's type.
    Elem(BufferId),
    /// Columns of activations that are read eight at a time.
    Eight(Columns),
    /// fp32.
    F32(BufferId),
}

/// Refuses operands of another storage type than the operator's kernels read.
///
/// # Errors
/// [`CudaError::Unsupported`] with the operand's name.
pub(super) fn check(plan: &Plan, precision: Precision, op: &Op) -> Result<(), CudaError> {
    let elem = precision.bytes(Role::Activation);
    for need in needs(op) {
        let (id, wanted) = match need {
            Need::Elem(id) => (id, elem),
            Need::Eight(c) => (c.buffer, elem),
            Need::F32(id) => (id, 4),
        };
        let buffer = plan.buffer(id);
        if precision.bytes(buffer.role) != wanted {
            return refuse(format!(
                "{}: '{}' is stored in {} bytes a value under {precision:?}, the kernel reads {wanted}",
                op.name(),
                buffer.name,
                precision.bytes(buffer.role)
            ));
        }
        if let Need::Eight(c) = need
            && (!c.first.is_multiple_of(8) || !buffer.width().is_multiple_of(8))
        {
            return refuse(format!(
                "{}: columns {}..{} of '{}' ({} wide) are not supported on CUDA, allowed: a first column and a width in \
                 multiples of 8",
                op.name(),
                c.first,
                c.first + c.width,
                buffer.name,
                buffer.width()
            ));
        }
    }
    Ok(())
}

fn needs(op: &Op) -> Vec<Need> {
    let elem = |ids: &[BufferId]| -> Vec<Need> { ids.iter().map(|&id| Need::Elem(id)).collect() };
    let eight = |columns: &[Columns]| -> Vec<Need> { columns.iter().map(|&c| Need::Eight(c)).collect() };
    let f32s =
        |ids: &[Option<BufferId>]| -> Vec<Need> { ids.iter().flatten().map(|&id| Need::F32(id)).collect() };
    let lists = match op {
        Op::Zero(_) | Op::AddInto(_) | Op::GlobalNorm(_) | Op::AdamW(_) => vec![],
        Op::Embedding(o) => vec![f32s(&[Some(o.out)])],
        Op::EmbeddingBackward(o) => vec![f32s(&[Some(o.dout)])],
        Op::Linear(o) => vec![eight(&[o.x, o.out])],
        Op::LinearBackwardInput(o) => vec![eight(&[o.dout, o.dx])],
        Op::LinearBackwardWeight(o) => vec![eight(&[o.dout, o.x])],
        Op::AddRmsNorm(o) => vec![
            f32s(&[Some(o.x), o.sum, Some(o.rstd)]),
            elem(&[o.out]),
            o.branches.iter().flatten().map(|&id| Need::Elem(id)).collect(),
        ],
        Op::AddRmsNormBackward(o) => vec![
            f32s(&[Some(o.x), Some(o.rstd), o.dresidual, Some(o.dsum)]),
            elem(&[o.dout]),
            [o.branch, o.dbranch, o.out]
                .iter()
                .flatten()
                .map(|&id| Need::Elem(id))
                .collect(),
        ],
        Op::ShortConv(o) => vec![eight(&[o.x]), elem(&[o.out])],
        Op::ShortConvBackward(o) => vec![eight(&[o.x, o.dx]), elem(&[o.dout])],
        Op::Gates(o) => vec![elem(&[o.a.buffer, o.b.buffer]), f32s(&[Some(o.g), Some(o.beta)])],
        Op::GatesBackward(o) => vec![
            elem(&[o.a.buffer, o.da.buffer, o.db.buffer]),
            f32s(&[Some(o.g), Some(o.beta), Some(o.dg), Some(o.dbeta)]),
        ],
        Op::DeltaRule(o) => vec![
            eight(&[o.q, o.k, o.v]),
            f32s(&[Some(o.g), Some(o.beta), o.initial_state, o.final_state]),
            elem(&[o.o]),
            o.u.map_or(vec![], |id| elem(&[id])),
        ],
        Op::DeltaRuleBackward(o) => vec![
            eight(&[o.q, o.k, o.v, o.dq, o.dk, o.dv]),
            f32s(&[Some(o.g), Some(o.beta), Some(o.dg), Some(o.dbeta)]),
            f32s(&[o.initial_state, o.dfinal_state, o.dinitial_state]),
            elem(&[o.u, o.dout]),
        ],
        Op::GatedRmsNorm(o) => vec![
            elem(&[o.x, o.out]),
            f32s(&[Some(o.rstd)]),
            o.gate.map_or(vec![], |c| eight(&[c])),
        ],
        Op::GatedRmsNormBackward(o) => vec![
            elem(&[o.x, o.dout, o.dx]),
            o.out.map_or(vec![], |id| elem(&[id])),
            f32s(&[Some(o.rstd)]),
            o.gate.map_or(vec![], |c| eight(&[c])),
            o.dgate.map_or(vec![], |c| eight(&[c])),
        ],
        Op::SwiGlu(o) => vec![elem(&[o.gate_up, o.out])],
        Op::SwiGluBackward(o) => vec![
            elem(&[o.gate_up, o.dout, o.dgate_up]),
            o.out.map_or(vec![], |id| elem(&[id])),
        ],
        Op::LinearCrossEntropy(o) => vec![
            elem(&[o.x, o.logits]),
            f32s(&[Some(o.nll)]),
            o.gradients.as_ref().map_or(vec![], |g| elem(&[g.dx])),
        ],
    };
    lists.into_iter().flatten().collect()
}
