//! The gated delta rule, chunked.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Columns, Plan, PlanError};

/// Tokens per chunk. Chunks start at the first token of each document; a document's last chunk may be shorter.
pub const CHUNK: usize = 64;

/// Head counts and sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeltaRuleShape {
    /// Query and key heads, H.
    pub key_heads: usize,
    /// Value heads, HV, a multiple of H; value head j uses query/key head `j / (HV / H)`.
    pub value_heads: usize,
    /// Size K of a query or key.
    pub key_dim: usize,
    /// Size V of a value.
    pub value_dim: usize,
}

/// For each document and value head, from `S_0 = initial_state` (or 0), at every position t:
///
/// ```text
/// S_t = exp(g_t) S_{t-1} + k_t u_tᵀ,   u_t = beta_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)        S in R^{K x V}
/// o_t = scale · S_tᵀ q_t
/// ```
///
/// Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024); flash-linear-attention 0.6.0
/// `chunk_gated_delta_rule` (head grouping, argument meaning). Executors compute the chunked form. With G the
/// cumulative sum of g in a chunk (inclusive) and S its first state,
///
/// ```text
/// A[t, s] = beta_t exp(G_t - G_s) k_t·k_s   (s < t)          U = (I + A)^-1 diag(beta) (V - diag(exp G) K S)
/// o       = scale (diag(exp G) Q S + P U),                    P[t, s] = exp(G_t - G_s) q_t·k_s   (s <= t)
/// S_next  = exp(G_L) S + Kᵀ diag(exp(G_L - G)) U
/// ```
///
/// Shapes: q, k `[rows, H, K]` and v `[rows, HV, V]` as columns of one or several buffers; g, beta `[rows, HV]`;
/// o `[rows, HV, V]`; states `[max_documents, HV, K, V]`; chunk_states `[max_chunks, HV, K, V]`, the state before
/// each chunk, chunks in document order; u `[rows, HV, V]`. Each executor states which K and V it supports.
/// Rows that belong to no document do not exist: `cu_seqlens` covers all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaRule {
    /// Queries.
    pub q: Columns,
    /// Keys.
    pub k: Columns,
    /// Values.
    pub v: Columns,
    /// Log decays.
    pub g: BufferId,
    /// Writing strengths.
    pub beta: BufferId,
    /// Document offsets.
    pub documents: BufferId,
    /// State before each document's first token.
    pub initial_state: Option<BufferId>,
    /// Outputs.
    pub o: BufferId,
    /// State after each document's last token; documents of length 0 keep their initial state.
    pub final_state: Option<BufferId>,
    /// Saved for the backward operator, which recomputes it when not given.
    pub chunk_states: Option<BufferId>,
    /// Saved for the backward operator, which recomputes it when not given; given exactly when `chunk_states` is.
    pub u: Option<BufferId>,
    /// Factor of the output, `K^-1/2`.
    pub scale: f64,
    /// Head counts and sizes.
    pub shape: DeltaRuleShape,
}

/// Gradient of [`DeltaRule`] with respect to q, k, v, g, beta and the initial state, given those of the outputs and
/// of the final state. dq and dk are sums over the value heads of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaRuleBackward {
    /// Queries.
    pub q: Columns,
    /// Keys.
    pub k: Columns,
    /// Values.
    pub v: Columns,
    /// Log decays.
    pub g: BufferId,
    /// Writing strengths.
    pub beta: BufferId,
    /// Document offsets.
    pub documents: BufferId,
    /// As in the forward operator.
    pub initial_state: Option<BufferId>,
    /// From the forward operator, unless `recompute`.
    pub chunk_states: BufferId,
    /// From the forward operator, unless `recompute`.
    pub u: BufferId,
    /// `chunk_states` and `u` were not saved: they are filled here first, and overwritten.
    pub recompute: bool,
    /// Gradient of `o`.
    pub dout: BufferId,
    /// Gradient of the final state.
    pub dfinal_state: Option<BufferId>,
    /// Gradient of `q`.
    pub dq: Columns,
    /// Gradient of `k`.
    pub dk: Columns,
    /// Gradient of `v`.
    pub dv: Columns,
    /// Gradient of `g`.
    pub dg: BufferId,
    /// Gradient of `beta`.
    pub dbeta: BufferId,
    /// Gradient of the initial state.
    pub dinitial_state: Option<BufferId>,
    /// Factor of the output.
    pub scale: f64,
    /// Head counts and sizes.
    pub shape: DeltaRuleShape,
}

operands!(DeltaRule {
    Read: q, k, v, g, beta, documents, initial_state; Write: o, final_state, chunk_states, u
});

impl DeltaRuleBackward {
    pub(crate) fn visit_mut(&mut self, f: &mut dyn FnMut(&mut BufferId, super::Access)) {
        use super::{Access, Operand};
        let mut read = |x: &mut dyn Operand| x.each(&mut |id| f(id, Access::Read));
        read(&mut self.q);
        read(&mut self.k);
        read(&mut self.v);
        read(&mut self.g);
        read(&mut self.beta);
        read(&mut self.documents);
        read(&mut self.initial_state);
        read(&mut self.dout);
        read(&mut self.dfinal_state);
        let saved = if self.recompute {
            Access::Scratch
        } else {
            Access::Read
        };
        f(&mut self.chunk_states, saved);
        f(&mut self.u, saved);
        for x in [&mut self.dq, &mut self.dk, &mut self.dv] {
            f(&mut x.buffer, Access::WriteColumns);
        }
        f(&mut self.dg, Access::Write);
        f(&mut self.dbeta, Access::Write);
        self.dinitial_state.each(&mut |id| f(id, Access::Write));
    }
}

impl DeltaRuleShape {
    fn check(&self, c: &Checker, q: Columns, k: Columns, v: Columns) -> Result<(), PlanError> {
        let DeltaRuleShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        } = *self;
        c.require(
            key_heads > 0 && value_heads > 0 && value_heads.is_multiple_of(key_heads),
            || format!("num_v_heads {value_heads} must be a positive multiple of num_heads {key_heads}"),
        )?;
        c.require(key_dim > 0 && value_dim > 0, || {
            "head dimensions must be positive".into()
        })?;
        for (x, width) in [
            (q, key_heads * key_dim),
            (k, key_heads * key_dim),
            (v, value_heads * value_dim),
        ] {
            c.columns(x, c.rows())?;
            c.data(&[x.buffer])?;
            c.require(x.width == width, || {
                format!("{} columns where the heads need {width}", x.width)
            })?;
        }
        Ok(())
    }

    /// Multiply-adds of the forward pass, doubled: per chunk and value head `K S`, `Q S`, `Kᵀ U` (K·V each), the
    /// solve and `P U` (half of C·V each), and per key head `K Kᵀ` and `Q Kᵀ` (half of C·K each).
    fn forward_flops(&self, plan: &Plan) -> u64 {
        let rows = plan.geometry.rows() as u64;
        let (k, v, c) = (self.key_dim as u64, self.value_dim as u64, CHUNK as u64);
        2 * rows * (self.value_heads as u64 * (3 * k * v + c * v) + self.key_heads as u64 * c * k)
    }
}

fn check_saved(
    c: &Checker,
    shape: &DeltaRuleShape,
    chunk_states: BufferId,
    u: BufferId,
) -> Result<(), PlanError> {
    let state = shape.value_heads * shape.key_dim * shape.value_dim;
    c.data(&[chunk_states, u])?;
    c.matrix(chunk_states, c.plan.geometry.max_chunks(), state)?;
    c.matrix(u, c.rows(), shape.value_heads * shape.value_dim)
}

impl DeltaRule {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "DeltaRule");
        self.shape.check(&c, self.q, self.k, self.v)?;
        c.documents(self.documents)?;
        let s = &self.shape;
        for id in [self.g, self.beta] {
            c.matrix(id, c.rows(), s.value_heads)?;
        }
        c.matrix(self.o, c.rows(), s.value_heads * s.value_dim)?;
        c.data(&[self.g, self.beta, self.o])?;
        for id in [self.initial_state, self.final_state].into_iter().flatten() {
            c.data(&[id])?;
            c.matrix(
                id,
                plan.geometry.max_documents,
                s.value_heads * s.key_dim * s.value_dim,
            )?;
        }
        match (self.chunk_states, self.u) {
            (Some(states), Some(u)) => check_saved(&c, s, states, u),
            (None, None) => Ok(()),
            _ => c.require(false, || "chunk_states and u go together".into()),
        }
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        self.shape.forward_flops(plan)
    }
}

impl DeltaRuleBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "DeltaRuleBackward");
        self.shape.check(&c, self.q, self.k, self.v)?;
        self.shape.check(&c, self.dq, self.dk, self.dv)?;
        c.documents(self.documents)?;
        let s = &self.shape;
        for id in [self.g, self.beta, self.dg, self.dbeta] {
            c.data(&[id])?;
            c.matrix(id, c.rows(), s.value_heads)?;
        }
        c.data(&[self.dout])?;
        c.matrix(self.dout, c.rows(), s.value_heads * s.value_dim)?;
        for id in [self.initial_state, self.dfinal_state, self.dinitial_state]
            .into_iter()
            .flatten()
        {
            c.data(&[id])?;
            c.matrix(
                id,
                plan.geometry.max_documents,
                s.value_heads * s.key_dim * s.value_dim,
            )?;
        }
        check_saved(&c, s, self.chunk_states, self.u)
    }

    pub(super) fn flops(&self, plan: &Plan) -> u64 {
        let forward = self.shape.forward_flops(plan);
        2 * forward + if self.recompute { forward } else { 0 }
    }
}
