//! Cases of the gated delta rule.

use super::builder::Builder;
use crate::conformance::Case;
use crate::ops::*;
use crate::plan::{Columns, Geometry, PlanError, Role};

/// Sizes and distributions of a delta rule.
#[derive(Clone, Debug)]
pub struct DeltaCase {
    /// Sizes of the micro-batch.
    pub geometry: Geometry,
    /// Document offsets.
    pub documents: Vec<i32>,
    /// Heads.
    pub shape: DeltaRuleShape,
    /// With initial and final states.
    pub states: bool,
    /// The backward operator recomputes what the forward operator did not save.
    pub recompute: bool,
    /// Log decays are uniform in `[-decay, 0]`.
    pub decay: f64,
    /// Writing strengths are uniform in `[0, beta]`.
    pub beta: f64,
}

/// Gated delta rule with l2-normalised queries and keys; q, k and v are columns of one buffer.
///
/// # Errors
/// A plan the operator refuses.
pub fn delta_rule(case: &DeltaCase, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(case.geometry, seed);
    let rows = b.rows();
    let shape = case.shape;
    let DeltaRuleShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    } = shape;
    let (kw, vw) = (key_heads * key_dim, value_heads * value_dim);
    let documents = b.ids("cu_seqlens", case.documents.clone());
    let mut qkv = b.rng.normals(rows * (2 * kw + vw), 1.0);
    for row in qkv.chunks_exact_mut(2 * kw + vw) {
        for head in row[..2 * kw].chunks_exact_mut(key_dim) {
            let norm = head.iter().map(|x| x * x).sum::<f64>().sqrt();
            head.iter_mut().for_each(|x| *x /= norm);
        }
    }
    let qkv = b.given("qkv", &[rows, 2 * kw + vw], Role::Activation, qkv);
    let part = |first, width| Columns {
        buffer: qkv,
        first,
        width,
    };
    let (q, k, v) = (part(0, kw), part(kw, kw), part(2 * kw, vw));
    let values = (0..rows * value_heads)
        .map(|_| -case.decay * b.rng.uniform())
        .collect();
    let g = b.given("g", &[rows, value_heads], Role::Statistic, values);
    let values = (0..rows * value_heads)
        .map(|_| case.beta * b.rng.uniform())
        .collect();
    let beta = b.given("beta", &[rows, value_heads], Role::Statistic, values);
    let state = [case.geometry.max_documents, value_heads, key_dim, value_dim];
    let initial_state = case
        .states
        .then(|| b.normal("initial_state", &state, Role::Statistic, 0.5));
    let o = b.out("o", &[rows, vw], Role::Activation);
    let final_state = case.states.then(|| b.out("final_state", &state, Role::Statistic));
    let dout = b.cotangent("dout", o);
    let dfinal_state = final_state.map(|s| b.cotangent("dfinal_state", s));
    let saved = [case.geometry.max_chunks(), value_heads, key_dim, value_dim];
    let chunk_states = b.plan.buffer("chunk_states", &saved, Role::Statistic);
    let u = b.plan.buffer("u", &[rows, vw], Role::Activation);
    let dqkv = b.plan.buffer("dqkv", &[rows, 2 * kw + vw], Role::Activation);
    b.plan.keep(dqkv);
    let part = |first, width| Columns {
        buffer: dqkv,
        first,
        width,
    };
    let (dq, dk, dv) = (part(0, kw), part(kw, kw), part(2 * kw, vw));
    b.outputs.extend([dq, dk, dv]);
    b.gradients.extend([(q, dq), (k, dk), (v, dv)]);
    let dg = b.gradient("dg", g, Role::Statistic);
    let dbeta = b.gradient("dbeta", beta, Role::Statistic);
    let dinitial_state = initial_state.map(|s| b.gradient("dinitial_state", s, Role::Statistic));
    let scale = (key_dim as f64).powf(-0.5);
    let recompute = case.recompute;
    b.forward(DeltaRule {
        q,
        k,
        v,
        g,
        beta,
        documents,
        initial_state,
        o,
        final_state,
        chunk_states: (!recompute).then_some(chunk_states),
        u: (!recompute).then_some(u),
        scale,
        shape,
    });
    b.backward(DeltaRuleBackward {
        q,
        k,
        v,
        g,
        beta,
        documents,
        initial_state,
        chunk_states,
        u,
        recompute,
        dout,
        dfinal_state,
        dq,
        dk,
        dv,
        dg,
        dbeta,
        dinitial_state,
        scale,
        shape,
    });
    b.finish(format!("delta rule {case:?}"))
}
