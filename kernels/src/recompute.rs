//! Recomputation: a pass over a plan that keeps fewer activations between the forward and the backward pass and runs
//! some forward operators again where their results are needed. The same operators on the same inputs give the same
//! bits, so a plan computes the same numbers under every policy; only memory and time differ.

use std::collections::BTreeMap;

use crate::ops::{Access, AddRmsNorm, Op};
use crate::plan::{BufferId, Plan, PlanBuilder, PlanError, Role, Section};

/// What is computed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// Outputs of norms, convolutions and SwiGLU activations: operators bound by memory.
    Cheap,
    /// Whole blocks, from the residual stream before them (blocks are marked by [`PlanBuilder::start_block`]).
    Block,
}

/// Applies a policy.
///
/// # Errors
/// Those of [`PlanBuilder::finish`]: a plan whose backward pass can't be rewritten.
pub fn recompute(plan: Plan, policy: Recompute) -> Result<Plan, PlanError> {
    if policy == Recompute::None {
        return Ok(plan);
    }
    let mut b = plan.into_builder();
    let groups = match policy {
        Recompute::Cheap => cheap_groups(&b),
        Recompute::Block | Recompute::None => block_groups(&b),
    };
    let mut backward = std::mem::take(&mut b.sections[Section::Backward as usize]);
    for group in groups {
        backward = match with_gradient(&mut b, &backward, &group) {
            Some(fused) => fused,
            None => insert(&mut b, backward, &group),
        };
    }
    b.sections[Section::Backward as usize] = backward;
    b.finish()
}

/// Forward operators, by position, that are run again together.
type Group = Vec<usize>;

fn cheap_groups(b: &PlanBuilder) -> Vec<Group> {
    let forward = &b.sections[Section::Forward as usize];
    let backward = &b.sections[Section::Backward as usize];
    // A norm whose backward pass needs the reciprocal norms only is not worth running again.
    let needed = |op: &Op| {
        let activations = written(op)
            .into_iter()
            .filter(|&id| b.get(id).role == Role::Activation);
        activations
            .into_iter()
            .any(|id| backward.iter().any(|op| reads(op, id)))
    };
    let cheap = |op: &Op| {
        let bound_by_memory = matches!(
            op,
            Op::AddRmsNorm(_) | Op::GatedRmsNorm(_) | Op::ShortConv(_) | Op::SwiGlu(_)
        );
        bound_by_memory && needed(op)
    };
    forward
        .iter()
        .enumerate()
        .filter(|(_, op)| cheap(op))
        .map(|(i, _)| vec![i])
        .collect()
}

fn block_groups(b: &PlanBuilder) -> Vec<Group> {
    let ends = b.blocks.iter().skip(1).copied().chain(b.blocks_end);
    b.blocks
        .iter()
        .zip(ends)
        .map(|(&start, end)| (start..end).collect())
        .collect()
}

/// Whether `op` touches `buffer` other than to overwrite it.
fn reads(op: &Op, buffer: BufferId) -> bool {
    let mut found = false;
    op.visit(&mut |id, access| {
        found |= id == buffer && matches!(access, Access::Read | Access::Update);
    });
    found
}

fn written(op: &Op) -> Vec<BufferId> {
    let mut ids = Vec::new();
    op.visit(&mut |id, access| {
        if matches!(access, Access::Write | Access::WriteColumns) {
            ids.push(id);
        }
    });
    ids
}

/// A norm or SwiGLU alone whose result is needed only after its gradient: the gradient writes it on its way.
fn with_gradient(b: &mut PlanBuilder, backward: &[Op], group: &Group) -> Option<Vec<Op>> {
    let [at] = group[..] else { return None };
    let forward = &b.sections[Section::Forward as usize][at];
    let written = match forward {
        Op::AddRmsNorm(o) => o.out,
        Op::GatedRmsNorm(o) => o.out,
        Op::SwiGlu(o) => o.out,
        _ => return None,
    };
    let gradient = backward.iter().position(|op| match (forward, op) {
        (Op::AddRmsNorm(f), Op::AddRmsNormBackward(o)) => o.rstd == f.rstd && o.out.is_none(),
        (Op::GatedRmsNorm(f), Op::GatedRmsNormBackward(o)) => o.rstd == f.rstd && o.out.is_none(),
        (Op::SwiGlu(f), Op::SwiGluBackward(o)) => o.gate_up == f.gate_up && o.out.is_none(),
        _ => false,
    })?;
    if backward[..gradient].iter().any(|op| reads(op, written)) {
        return None;
    }
    let old = b.get(written).clone();
    let fresh = b.buffer(format!("{}.again", old.name), &old.shape, old.role);
    let mut fused = backward.to_vec();
    for (i, op) in fused.iter_mut().enumerate() {
        match op {
            Op::AddRmsNormBackward(o) if i == gradient => o.out = Some(fresh),
            Op::GatedRmsNormBackward(o) if i == gradient => o.out = Some(fresh),
            Op::SwiGluBackward(o) if i == gradient => o.out = Some(fresh),
            op => op.visit_mut(&mut |id, _| {
                if *id == written {
                    *id = fresh;
                }
            }),
        }
    }
    Some(fused)
}

/// Runs the group again before the first backward operator that needs one of its results.
fn insert(b: &mut PlanBuilder, backward: Vec<Op>, group: &Group) -> Vec<Op> {
    let forward = &b.sections[Section::Forward as usize];
    let ops: Vec<Op> = group
        .iter()
        .enumerate()
        .map(|(i, &at)| again(&forward[at], i == 0))
        .collect();
    let ops = needed(ops, &backward);
    let results: Vec<BufferId> = ops.iter().flat_map(written).collect();
    let Some(first) = backward
        .iter()
        .position(|op| results.iter().any(|&id| reads(op, id)))
    else {
        return backward;
    };
    let mut fresh: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    for &id in &results {
        fresh.entry(id).or_insert_with(|| {
            let old = b.get(id).clone();
            b.buffer(format!("{}.again", old.name), &old.shape, old.role)
        });
    }
    let renamed = |mut op: Op| {
        op.visit_mut(&mut |id, _| {
            if let Some(&new) = fresh.get(id) {
                *id = new;
            }
        });
        op
    };
    // The first run no longer has to save what only the backward pass reads.
    for &at in group {
        if let Op::DeltaRule(op) = &mut b.sections[Section::Forward as usize][at] {
            (op.chunk_states, op.u) = (None, None);
        }
    }
    let (before, after) = backward.split_at(first);
    let again = ops.into_iter().map(renamed);
    before
        .iter()
        .cloned()
        .chain(again)
        .chain(after.iter().cloned().map(renamed))
        .collect()
}

/// Those whose results the backward pass needs, directly or through one another.
fn needed(ops: Vec<Op>, backward: &[Op]) -> Vec<Op> {
    let mut kept: Vec<Op> = Vec::new();
    for op in ops.into_iter().rev() {
        let used = |id: BufferId| backward.iter().chain(&kept).any(|other| reads(other, id));
        if written(&op).into_iter().any(used) {
            kept.push(op);
        }
    }
    kept.reverse();
    kept
}

/// The operator as it is run again. The norm that starts a group reads the residual stream it wrote the first time,
/// so that neither the stream before it nor its branches have to be kept.
fn again(op: &Op, first: bool) -> Op {
    match op {
        Op::AddRmsNorm(norm) if first => match norm.sum {
            Some(sum) => AddRmsNorm {
                x: sum,
                branches: [None; 2],
                sum: None,
                ..norm.clone()
            }
            .into(),
            None => op.clone(),
        },
        op => op.clone(),
    }
}
