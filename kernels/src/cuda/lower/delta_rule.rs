//! The gated delta rule: chunk-local part, recurrence, output; and their gradients.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{CHUNK, DeltaRule, DeltaRuleBackward, DeltaRuleShape};
use crate::plan::{BufferId, Columns};

const THREADS: u32 = 128;
const TILE: u64 = 64;

/// Key and value head sizes the kernels cover.
pub const KEY_DIMS: [usize; 3] = [64, 128, 256];
/// Value head sizes the kernels cover.
pub const VALUE_DIMS: [usize; 4] = [64, 128, 256, 512];

/// What forward and backward share: operands, sizes and the scratch of the chunk-local part.
struct Chunked {
    meta: Arg,
    q: [Arg; 2],
    k: [Arg; 2],
    v: [Arg; 2],
    g: Address,
    beta: Address,
    gc: Address,
    w: Address,
    u: Address,
    rows: u64,
    chunks: u64,
    documents: u64,
    shape: DeltaRuleShape,
    key_tiles: u64,
    value_tiles: u64,
    heads: u64,
    /// Bytes of a tile in shared memory.
    tile: u64,
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
        Ok(Chunked {
            meta: self.meta(documents, shape.key_heads, shape.value_heads),
            q: pair(self.columns(q)),
            k: pair(self.columns(k)),
            v: pair(self.columns(v)),
            g: self.at(g),
            beta: self.at(beta),
            gc: self.temporary(rows * heads * 4),
            w: self.temporary(rows * heads * shape.key_dim as u64 * elem),
            u: self.temporary(rows * heads * shape.value_dim as u64 * elem),
            rows,
            chunks: geometry.max_chunks() as u64,
            documents: geometry.max_documents as u64,
            shape,
            key_tiles: shape.key_dim as u64 / TILE,
            value_tiles: shape.value_dim as u64 / TILE,
            heads,
            tile: TILE * if elem == 2 { 72 * 2 } else { 65 * 4 },
        })
    }

    fn delta(
        &mut self,
        c: &Chunked,
        name: &'static str,
        grid: (u64, u64, u64),
        shared: u64,
        args: Vec<Arg>,
    ) -> Result<(), CudaError> {
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(Source::DeltaRule, &sizes, name, shared)?;
        self.launch(kernel, grid, THREADS, shared, args);
        Ok(())
    }

    /// Cumulative decays, T (where wanted), W and U.
    fn chunk_local(&mut self, c: &Chunked, t: Address) -> Result<(), CudaError> {
        self.cumulative_decays(c)?;
        let shared = 4 * (2 * 64 * 68 + 768 + 3 * 64) + 2 * c.tile;
        self.through_t(c, "delta_wy", shared, t)
    }

    /// Cumulative decays, W and U from a T that the forward pass kept.
    fn chunk_local_again(&mut self, c: &Chunked, t: Address) -> Result<(), CudaError> {
        self.cumulative_decays(c)?;
        self.through_t(c, "delta_wu", 4 * 3 * 64 + 3 * c.tile, t)
    }

    fn cumulative_decays(&mut self, c: &Chunked) -> Result<(), CudaError> {
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(Source::DeltaRule, &sizes, "chunk_cumsum", 0)?;
        let args = vec![c.meta, Arg::At(c.g), Arg::At(c.gc)];
        self.launch(kernel, (c.chunks, 1, 1), 256, 0, args);
        Ok(())
    }

    fn through_t(
        &mut self,
        c: &Chunked,
        name: &'static str,
        shared: u64,
        t: Address,
    ) -> Result<(), CudaError> {
        let args = vec![
            c.meta,
            c.k[0],
            c.k[1],
            c.v[0],
            c.v[1],
            Arg::At(c.gc),
            Arg::At(c.beta),
            Arg::At(t),
            Arg::At(c.w),
            Arg::At(c.u),
        ];
        self.delta(c, name, (c.chunks, c.heads, 1), shared, args)
    }

    /// The recurrence: states before each chunk, corrected values.
    fn recurrence(
        &mut self,
        c: &Chunked,
        initial: Address,
        states: Address,
        vn: Address,
        last: Address,
    ) -> Result<(), CudaError> {
        let args = vec![
            c.meta,
            c.k[0],
            c.k[1],
            Arg::At(c.w),
            Arg::At(c.u),
            Arg::At(c.gc),
            Arg::At(initial),
            Arg::At(states),
            Arg::At(vn),
            Arg::At(last),
        ];
        let shared = 4 * 64 + (3 * c.key_tiles + 1) * c.tile;
        self.delta(
            c,
            "delta_state",
            (c.value_tiles, c.heads, c.documents),
            shared,
            args,
        )
    }

    /// Stages of the fused recurrences (2 where shared memory has room, else 1) and their shared memory; `None` where the
    /// tiles of one chunk do not fit at all and the separate kernels run.
    fn fused(&self, c: &Chunked) -> Option<(usize, u64)> {
        let bytes = |stages: u64| 512 + (c.key_tiles + 3 + stages * (3 * c.key_tiles + 1)) * c.tile;
        [2u64, 1]
            .iter()
            .find(|&&s| bytes(s) <= self.modules.shared_memory())
            .map(|&s| (s as usize, bytes(s)))
    }

    fn fused_sizes(c: &Chunked, stages: usize) -> [(&'static str, usize); 3] {
        [
            ("KD", c.shape.key_dim),
            ("VD", c.shape.value_dim),
            ("STAGES", stages),
        ]
    }

    /// The inverses that a forward pass keeps with its chunk states.
    fn kept_t(&self, states: BufferId) -> Option<Address> {
        self.places
            .saved
            .get(&states.index())
            .map(|&at| Address::Device(at))
    }

    fn states_bytes(&self, c: &Chunked) -> u64 {
        c.chunks * c.heads * (c.shape.key_dim * c.shape.value_dim) as u64 * self.elem()
    }

    pub(super) fn delta_rule(&mut self, o: &DeltaRule) -> Result<(), CudaError> {
        let c = self.chunked(o.q, o.k, o.v, o.g, o.beta, o.documents, o.shape)?;
        let (initial, last, out) = (
            self.maybe(o.initial_state),
            self.maybe(o.final_state),
            self.at(o.o),
        );
        let kept = o.chunk_states.and_then(|id| self.kept_t(id));
        self.chunk_local(&c, kept.unwrap_or(Address::NULL))?;
        if let Some((stages, shared)) = self.fused(&c) {
            let (states, vn) = (self.maybe(o.chunk_states), self.maybe(o.u));
            return self.fused_forward(&c, stages, shared, initial, o.scale, [states, vn, out, last]);
        }
        let states = match o.chunk_states {
            Some(id) => self.at(id),
            None => self.temporary(self.states_bytes(&c)),
        };
        let vn = match o.u {
            Some(id) => self.at(id),
            None => self.temporary(c.rows * c.heads * c.shape.value_dim as u64 * self.elem()),
        };
        self.recurrence(&c, initial, states, vn, last)?;
        let args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(vn),
            Arg::At(states),
            Arg::At(c.gc),
            Arg::F32(o.scale as f32),
            Arg::At(out),
        ];
        let shared = 4 * 64 + 3 * c.tile;
        self.delta(
            &c,
            "delta_output",
            (c.chunks, c.value_tiles, c.heads),
            shared,
            args,
        )
    }

    /// `outputs`: states before each chunk, corrected values, outputs, last states; each may be null.
    fn fused_forward(
        &mut self,
        c: &Chunked,
        stages: usize,
        shared: u64,
        initial: Address,
        scale: f64,
        outputs: [Address; 4],
    ) -> Result<(), CudaError> {
        let kernel = self.kernel(
            Source::DeltaFused,
            &Self::fused_sizes(c, stages),
            "delta_forward",
            shared,
        )?;
        let mut args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(c.w),
            Arg::At(c.u),
            Arg::At(c.gc),
            Arg::At(initial),
            Arg::F32(scale as f32),
        ];
        args.extend(outputs.map(Arg::At));
        self.launch(
            kernel,
            (c.value_tiles, c.heads, c.documents),
            THREADS,
            shared,
            args,
        );
        Ok(())
    }

    pub(super) fn delta_rule_backward(&mut self, o: &DeltaRuleBackward) -> Result<(), CudaError> {
        let c = self.chunked(o.q, o.k, o.v, o.g, o.beta, o.documents, o.shape)?;
        let (kd, vd, elem) = (c.shape.key_dim as u64, c.shape.value_dim as u64, self.elem());
        let kept = self.kept_t(o.chunk_states).filter(|_| !o.recompute);
        let t = match kept {
            Some(t) => t,
            None => self.temporary(c.chunks * c.heads * TILE * TILE * elem),
        };
        let dv = self.temporary(c.rows * c.heads * vd * elem);
        let dh = self.temporary(self.states_bytes(&c));
        let dgc = self.temporary(c.key_tiles * c.rows * c.heads * 4);
        let (states, vn) = (self.at(o.chunk_states), self.at(o.u));
        let fused = self.fused(&c);
        match kept {
            Some(t) => self.chunk_local_again(&c, t)?,
            None => self.chunk_local(&c, t)?,
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
        if kd == TILE && vd == TILE {
            self.local_backward_64(o, &c, t, dv, dh, dgc)?;
        } else {
            self.local_backward(o, &c, t, dv, dh, dgc)?;
        }
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(Source::DeltaRule, &sizes, "chunk_cumsum_backward", 0)?;
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

    /// The reverse recurrence with the chunk's own part fused in: `dv` (gradient of the corrected values) and `dh`.
    fn fused_backward(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        stages: usize,
        shared: u64,
        dv: Address,
        dh: Address,
    ) -> Result<(), CudaError> {
        let kernel = self.kernel(
            Source::DeltaFused,
            &Self::fused_sizes(c, stages),
            "delta_backward",
            shared,
        )?;
        let args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(c.w),
            Arg::At(self.at(o.dout)),
            Arg::At(c.gc),
            Arg::At(self.maybe(o.dfinal_state)),
            Arg::F32(o.scale as f32),
            Arg::At(dv),
            Arg::At(dh),
            Arg::At(self.maybe(o.dinitial_state)),
        ];
        self.launch(
            kernel,
            (c.value_tiles, c.heads, c.documents),
            THREADS,
            shared,
            args,
        );
        Ok(())
    }

    /// The same as two kernels, for key heads whose tiles do not fit together.
    fn separate_backward(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        dv: Address,
        dh: Address,
    ) -> Result<(), CudaError> {
        let (dout, scale, small) = (self.at(o.dout), Arg::F32(o.scale as f32), 4 * 64);
        let args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(dout),
            Arg::At(c.gc),
            scale,
            Arg::At(dv),
        ];
        self.delta(
            c,
            "delta_dv_local",
            (c.chunks, c.value_tiles, c.heads),
            small + 2 * c.tile,
            args,
        )?;
        let args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(c.w),
            Arg::At(dout),
            Arg::At(c.gc),
            Arg::At(self.maybe(o.dfinal_state)),
            scale,
            Arg::At(dv),
            Arg::At(dh),
            Arg::At(self.maybe(o.dinitial_state)),
        ];
        let shared = 2 * small + (2 * c.key_tiles + 2) * c.tile;
        self.delta(
            c,
            "delta_state_backward",
            (c.value_tiles, c.heads, c.documents),
            shared,
            args,
        )
    }

    /// All chunk-local gradients in one kernel, for key and value heads of 64.
    fn local_backward_64(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        t: Address,
        dv: Address,
        dh: Address,
        dgc: Address,
    ) -> Result<(), CudaError> {
        let shared = 2560 + 8 * c.tile;
        let stages = self.fused(c).map_or(1, |f| f.0);
        let kernel = self.kernel(
            Source::DeltaFused,
            &Self::fused_sizes(c, stages),
            "delta_local_backward",
            shared,
        )?;
        let mut args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            c.v[0],
            c.v[1],
            Arg::At(c.gc),
            Arg::At(c.beta),
            Arg::At(t),
            Arg::At(c.w),
            Arg::At(c.u),
            Arg::At(self.at(o.u)),
            Arg::At(self.at(o.chunk_states)),
            Arg::At(dh),
            Arg::At(self.at(o.dout)),
            Arg::At(dv),
            Arg::F32(o.scale as f32),
        ];
        for out in [o.dq, o.dk, o.dv] {
            let (at, ld) = self.columns(out);
            args.extend([Arg::At(at), ld]);
        }
        args.extend([Arg::At(self.at(o.dbeta)), Arg::At(dgc)]);
        self.launch(
            kernel,
            (c.chunks, c.shape.key_heads as u64, 1),
            THREADS,
            shared,
            args,
        );
        Ok(())
    }

    /// Chunk-local gradients for any head size: one kernel per slice of the key, one through T, sums over groups.
    fn local_backward(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        t: Address,
        dv: Address,
        dh: Address,
        dgc: Address,
    ) -> Result<(), CudaError> {
        let (kd, small, scale) = (c.shape.key_dim as u64, 4 * 64, Arg::F32(o.scale as f32));
        let (states, vn, dout) = (self.at(o.chunk_states), self.at(o.u), self.at(o.dout));
        let dw = self.temporary(c.rows * c.heads * kd * self.elem());
        let dq = self.temporary(c.rows * c.heads * kd * 4);
        let dk = self.temporary(c.rows * c.heads * kd * 4);
        let args = vec![
            c.meta,
            c.q[0],
            c.q[1],
            c.k[0],
            c.k[1],
            Arg::At(vn),
            Arg::At(states),
            Arg::At(dh),
            Arg::At(dout),
            Arg::At(dv),
            Arg::At(c.gc),
            scale,
            Arg::I64(c.rows as i64),
            Arg::At(dq),
            Arg::At(dk),
            Arg::At(dw),
            Arg::At(dgc),
        ];
        self.delta(
            c,
            "delta_dqkw",
            (c.chunks, c.key_tiles, c.heads),
            4 * small + 5 * c.tile,
            args,
        )?;
        let (dv_out, lddv) = self.columns(o.dv);
        let args = vec![
            c.meta,
            c.k[0],
            c.k[1],
            c.v[0],
            c.v[1],
            Arg::At(c.gc),
            Arg::At(c.beta),
            Arg::At(t),
            Arg::At(c.w),
            Arg::At(c.u),
            Arg::At(dw),
            Arg::At(dv),
            Arg::At(dk),
            Arg::At(dv_out),
            lddv,
            Arg::At(self.at(o.dbeta)),
            Arg::At(dgc),
        ];
        let shared = 4 * small + 4 * 64 * 65 + 4 * c.tile;
        self.delta(c, "delta_wy_backward", (c.chunks, c.heads, 1), shared, args)?;

        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let n = c.rows * c.shape.key_heads as u64 * kd;
        for (part, out) in [(dq, o.dq), (dk, o.dk)] {
            let kernel = self.kernel(Source::DeltaRule, &sizes, "sum_group", 0)?;
            let (at, ld) = self.columns(out);
            let args = vec![
                Arg::At(part),
                Arg::At(at),
                ld,
                Arg::I64(n as i64),
                Arg::I32(c.shape.key_heads as i32),
                Arg::I32(c.shape.value_heads as i32),
            ];
            self.launch(kernel, (n.div_ceil(256), 1, 1), 256, 0, args);
        }
        Ok(())
    }
}
