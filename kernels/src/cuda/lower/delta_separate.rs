//! The gated delta rule as separate kernels, for heads of any size: recurrence, output, and their gradients.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::Lowering;
use super::delta_rule::Chunked;
use crate::ops::{DeltaRule, DeltaRuleBackward};

impl Lowering<'_> {
    /// The recurrence: states before each chunk, corrected values.
    pub(super) fn recurrence(
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
        let shared = c.shared(3 * c.key_tiles + 1, 64);
        self.delta(
            c,
            Source::DeltaRule,
            "delta_state",
            (c.value_tiles, c.heads, c.documents),
            shared,
            args,
        )
    }

    /// The forward pass as a recurrence and an output kernel.
    pub(super) fn separate_forward(
        &mut self,
        o: &DeltaRule,
        c: &Chunked,
        initial: Address,
        last: Address,
        out: Address,
    ) -> Result<(), CudaError> {
        let states = match o.chunk_states {
            Some(id) => self.at(id),
            None => self.temporary(self.states_bytes(c)),
        };
        let vn = match o.u {
            Some(id) => self.at(id),
            None => self.temporary(c.rows * c.heads * c.shape.value_dim as u64 * self.elem()),
        };
        self.recurrence(c, initial, states, vn, last)?;
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
        let shared = c.shared(3, 64);
        self.delta(
            c,
            Source::DeltaRule,
            "delta_output",
            (c.chunks, c.value_tiles, c.heads),
            shared,
            args,
        )
    }

    /// The same as two kernels, for key heads whose tiles do not fit together.
    pub(super) fn separate_backward(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        dv: Address,
        dh: Address,
    ) -> Result<(), CudaError> {
        let (dout, scale) = (self.at(o.dout), Arg::F32(o.scale as f32));
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
            Source::DeltaRule,
            "delta_dv_local",
            (c.chunks, c.value_tiles, c.heads),
            c.shared(2, 64),
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
        let shared = c.shared(2 * c.key_tiles + 2, 2 * 64);
        self.delta(
            c,
            Source::DeltaRule,
            "delta_state_backward",
            (c.value_tiles, c.heads, c.documents),
            shared,
            args,
        )
    }

    /// Chunk-local gradients for any head size: one kernel per slice of the key, one through T, sums over groups.
    pub(super) fn local_backward(
        &mut self,
        o: &DeltaRuleBackward,
        c: &Chunked,
        dv: Address,
        dh: Address,
        dgc: Address,
    ) -> Result<(), CudaError> {
        let (kd, scale) = (c.shape.key_dim as u64, Arg::F32(o.scale as f32));
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
            Source::DeltaRule,
            "delta_dqkw",
            (c.chunks, c.key_tiles, c.heads),
            c.shared(5, 4 * 64),
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
            Arg::At(c.t),
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
        let shared = c.shared(4, 4 * 64 + 64 * 65);
        self.delta(
            c,
            Source::DeltaRule,
            "delta_wy_backward",
            (c.chunks, c.heads, 1),
            shared,
            args,
        )?;

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
