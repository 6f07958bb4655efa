//! The gated delta rule and its gradient: what each form of the kernels shares, and which form runs.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::placement::solution_bytes;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{CHUNK, DeltaRule, DeltaRuleBackward, DeltaRuleShape};
use crate::plan::{BufferId, Columns};

/// Threads of a block: the four warps of a warpgroup.
pub(super) const THREADS: u32 = 128;
pub(super) const TILE: u64 = 64;

/// Key and value head sizes the kernels cover.
pub const KEY_DIMS: [usize; 3] = [64, 128, 256];
/// Value head sizes the kernels cover.
pub const VALUE_DIMS: [usize; 4] = [64, 128, 256, 512];

/// What forward and backward share: operands, sizes and the scratch of the chunk-local part.
pub(super) struct Chunked {
    pub(super) meta: Arg,
    pub(super) q: [Arg; 2],
    pub(super) k: [Arg; 2],
    pub(super) v: [Arg; 2],
    pub(super) g: Address,
    pub(super) beta: Address,
    /// The inverse of the chunk's system; null where nobody wants it.
    pub(super) t: Address,
    pub(super) gc: Address,
    pub(super) w: Address,
    pub(super) u: Address,
    pub(super) rows: u64,
    pub(super) chunks: u64,
    pub(super) documents: u64,
    pub(super) shape: DeltaRuleShape,
    pub(super) key_tiles: u64,
    pub(super) value_tiles: u64,
    pub(super) heads: u64,
    /// Bytes of a tile in shared memory.
    tile: u64,
}

impl Chunked {
    /// Shared memory of a block with this many tiles, which begin at a multiple of 1024 bytes, and floats.
    pub(super) fn shared(&self, tiles: u64, floats: u64) -> u64 {
        1024 + tiles * self.tile + 4 * floats
    }
}

impl Lowering<'_> {
    #[allow(clippy::too_many_arguments)] // the operands that DeltaRule and DeltaRuleBackward have in common
    fn chunked(
        &mut self,
        q: Columns,
        k: Columns,
        v: Columns,
        g: BufferId,
        beta: BufferId,
        documents: BufferId,
        shape: DeltaRuleShape,
        kept: Option<Address>,
    ) -> Result<Chunked, CudaError> {
        if !KEY_DIMS.contains(&shape.key_dim) || !VALUE_DIMS.contains(&shape.value_dim) {
            return refuse(format!(
                "head_dim {} with value heads of {} is not supported on CUDA, allowed: head_dim {KEY_DIMS:?}, value heads \
                 {VALUE_DIMS:?}",
                shape.key_dim, shape.value_dim
            ));
        }
        let (rows, heads, elem) = (self.rows() as u64, shape.value_heads as u64, self.elem());
        let pair = |(at, ld): (Address, Arg)| [Arg::At(at), ld];
        let geometry = self.plan.geometry;
        let bytes = solution_bytes(geometry, shape, elem);
        let [t, gc, w, u] = match kept {
            Some(first) => {
                let mut at = first;
                bytes.map(|n| {
                    let next = at.plus(n);
                    std::mem::replace(&mut at, next)
                })
            }
            None => bytes.map(|n| self.temporary(n)),
        };
        Ok(Chunked {
            meta: self.meta(documents, shape.key_heads, shape.value_heads),
            q: pair(self.columns(q)),
            k: pair(self.columns(k)),
            v: pair(self.columns(v)),
            g: self.at(g),
            beta: self.at(beta),
            t,
            gc,
            w,
            u,
            rows,
            chunks: geometry.max_chunks() as u64,
            documents: geometry.max_documents as u64,
            shape,
            key_tiles: shape.key_dim as u64 / TILE,
            value_tiles: shape.value_dim as u64 / TILE,
            heads,
            tile: TILE * if elem == 2 { 64 * 2 } else { 65 * 4 },
        })
    }

    pub(super) fn delta(
        &mut self,
        c: &Chunked,
        source: Source,
        name: &'static str,
        grid: (u64, u64, u64),
        shared: u64,
        args: Vec<Arg>,
    ) -> Result<(), CudaError> {
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(source, &sizes, name, shared)?;
        self.launch(kernel, grid, THREADS, shared, args);
        Ok(())
    }

    /// Cumulative decays, T, W and U.
    fn chunk_local(&mut self, c: &Chunked) -> Result<(), CudaError> {
        let args = vec![
            c.meta,
            c.k[0],
            c.k[1],
            c.v[0],
            c.v[1],
            Arg::At(c.g),
            Arg::At(c.beta),
            Arg::At(c.gc),
            Arg::At(c.t),
            Arg::At(c.w),
            Arg::At(c.u),
        ];
        let shared = c.shared(6, 3 * 64 + 64 * 24 / 2);
        let grid = (c.chunks, c.heads, 1);
        self.delta(c, Source::DeltaChunk, "delta_wy", grid, shared, args)
    }

    /// The solutions that a forward pass keeps with its chunk states.
    fn kept(&self, states: BufferId) -> Option<Address> {
        self.places
            .saved
            .get(&states.index())
            .map(|&at| Address::Device(at))
    }

    pub(super) fn states_bytes(&self, c: &Chunked) -> u64 {
        c.chunks * c.heads * (c.shape.key_dim * c.shape.value_dim) as u64 * self.elem()
    }

    pub(super) fn delta_rule(&mut self, o: &DeltaRule) -> Result<(), CudaError> {
        let kept = o.chunk_states.and_then(|id| self.kept(id));
        let mut c = self.chunked(o.q, o.k, o.v, o.g, o.beta, o.documents, o.shape, kept)?;
        if kept.is_none() {
            c.t = Address::NULL;
        }
        let (initial, last, out) = (
            self.maybe(o.initial_state),
            self.maybe(o.final_state),
            self.at(o.o),
        );
        self.chunk_local(&c)?;
        if let Some((stages, shared)) = self.fused(&c) {
            let (states, vn) = (self.maybe(o.chunk_states), self.maybe(o.u));
            return self.fused_forward(&c, stages, shared, initial, o.scale, [states, vn, out, last]);
        }
        self.separate_forward(o, &c, initial, last, out)
    }

    pub(super) fn delta_rule_backward(&mut self, o: &DeltaRuleBackward) -> Result<(), CudaError> {
        let kept = self.kept(o.chunk_states).filter(|_| !o.recompute);
        let c = self.chunked(o.q, o.k, o.v, o.g, o.beta, o.documents, o.shape, kept)?;
        let (vd, elem) = (c.shape.value_dim as u64, self.elem());
        let dv = self.temporary(c.rows * c.heads * vd * elem);
        let dh = self.temporary(self.states_bytes(&c));
        let dgc = self.temporary(c.key_tiles * c.rows * c.heads * 4);
        let (states, vn) = (self.at(o.chunk_states), self.at(o.u));
        let fused = self.fused(&c);
        if kept.is_none() {
            self.chunk_local(&c)?;
        }
        if o.recompute {
            let initial = self.maybe(o.initial_state);
            match fused {
                Some((stages, shared)) => {
                    let outputs = [states, vn, Address::NULL, Address::NULL];
                    self.fused_forward(&c, stages, shared, initial, o.scale, outputs)?;
                }
                None => self.recurrence(&c, initial, states, vn, Address::NULL)?,
            }
        }
        match fused {
            Some((stages, shared)) => self.fused_backward(o, &c, stages, shared, dv, dh)?,
            None => self.separate_backward(o, &c, dv, dh)?,
        }
        if self.has_local(&c) {
            self.local_backward_64(o, &c, dv, dh, dgc)?;
        } else {
            self.local_backward(o, &c, dv, dh, dgc)?;
        }
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(Source::DeltaChunk, &sizes, "chunk_cumsum_backward", 0)?;
        let args = vec![
            c.meta,
            Arg::At(dgc),
            Arg::I64(c.rows as i64),
            Arg::At(self.at(o.dg)),
        ];
        debug_assert_eq!(CHUNK as u64, TILE);
        self.launch(kernel, (c.chunks, 1, 1), 256, 0, args);
        Ok(())
    }
}
