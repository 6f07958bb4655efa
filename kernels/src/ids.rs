//! What a plan's operators demand of the ids that the host writes.

use crate::backend::ExecError;
use crate::cpu::documents::Documents;
use crate::ops::{IGNORE_INDEX, Op};
use crate::plan::{BufferId, Plan, Role, Section};

/// Checks ids before they go to a device, where a wrong one would be an access out of bounds.
///
/// # Errors
/// [`ExecError::Kind`], [`ExecError::Range`], [`ExecError::Id`], [`ExecError::Documents`].
pub(crate) fn check(plan: &Plan, buffer: BufferId, values: &[i32]) -> Result<(), ExecError> {
    let b = plan.buffer(buffer);
    let name = || b.name.clone();
    if b.role != Role::Ids {
        return Err(ExecError::Kind {
            buffer: name(),
            holds: "reals",
            moves: "ids",
        });
    }
    if values.len() != b.len() {
        return Err(ExecError::Range {
            buffer: name(),
            len: b.len(),
            offset: 0,
            count: values.len(),
        });
    }
    let table = |limit: usize, ignored: Option<i32>| match values
        .iter()
        .position(|&v| Some(v) != ignored && (v < 0 || v as usize >= limit))
    {
        Some(position) => Err(ExecError::Id {
            buffer: name(),
            position,
            value: values[position],
            limit,
        }),
        None => Ok(()),
    };
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        match op {
            Op::Embedding(o) if o.tokens == buffer => table(plan.buffer(o.table).shape[0], None)?,
            Op::LinearCrossEntropy(o) if o.labels == buffer => {
                table(plan.buffer(o.weight).shape[0], Some(IGNORE_INDEX))?;
            }
            Op::ShortConv(o) if o.documents == buffer => {
                Documents::check(&b.name, values, plan.geometry)?;
            }
            Op::DeltaRule(o) if o.documents == buffer => {
                Documents::check(&b.name, values, plan.geometry)?;
            }
            _ => {}
        }
    }
    Ok(())
}
