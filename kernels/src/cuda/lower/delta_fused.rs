//! The gated delta rule's fused kernels: the recurrences with the chunk's products in them, and all chunk-local gradients
//! in one.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::Lowering;
use super::delta_rule::{Chunked, THREADS};
use crate::ops::DeltaRuleBackward;

impl Lowering<'_> {
    /// Stages of the fused recurrences (2 where shared memory has room, else 1) and their shared memory; `None` where the
    /// tiles of one chunk do not fit at all and the separate kernels run.
    pub(super) fn fused(&self, c: &Chunked) -> Option<(usize, u64)> {
        let bytes = |stages: u64| c.shared(c.key_tiles + 3 + stages * (3 * c.key_tiles + 1), 2 * 64);
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

    /// `outputs`: states before each chunk, corrected values, outputs, last states; each may be null.
    pub(super) fn fused_forward(
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
            2 * THREADS,
            shared,
            args,
        );
        Ok(())
    }

    /// The reverse recurrence with the chunk's own part fused in: `dv` (gradient of the corrected values) and `dh`.
    pub(super) fn fused_backward(
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
            2 * THREADS,
            shared,
            args,
        );
        Ok(())
    }

    /// Whether the one kernel for all chunk-local gradients serves: heads of 64, and room for a chunk's tiles.
    pub(super) fn has_local(&self, c: &Chunked) -> bool {
        c.key_tiles == 1 && c.value_tiles == 1 && Self::local_shared(c) <= self.modules.shared_memory()
    }

    fn local_shared(c: &Chunked) -> u64 {
        c.shared(13, 4 * 64 + 4 * 64 + 4)
    }

    /// All chunk-local gradients in one kernel, for key and value heads of 64.
    pub(super) fn local_backward_64(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        dv: Address,
        dh: Address,
        dgc: Address,
    ) -> Result<(), CudaError> {
        let shared = Self::local_shared(c);
        let sizes = [("KD", c.shape.key_dim), ("VD", c.shape.value_dim)];
        let kernel = self.kernel(Source::DeltaLocal, &sizes, "delta_local_backward", shared)?;
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
            Arg::At(c.t),
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
}
