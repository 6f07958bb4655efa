//! RMSNorm with the residual addition, and the gated RMSNorm per head.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{AddRmsNorm, AddRmsNormBackward, GateActivation, GatedRmsNorm, GatedRmsNormBackward};

const WARPS: u64 = 8;
const BACKWARD_WARPS: u64 = 4;
/// Blocks of the backward pass of a norm: as many as three a multiprocessor of an H200 make, so that all run at once.
const BACKWARD_BLOCKS: u64 = 396;
/// The same for the gated norm, two a multiprocessor.
const GATED_BACKWARD_BLOCKS: u64 = 264;

impl Lowering<'_> {
    pub(super) fn add_rms_norm(&mut self, o: &AddRmsNorm) -> Result<(), CudaError> {
        let (rows, d) = (self.rows() as u64, self.width_of_eight(o.x, "hidden_size")?);
        let kernel = self.kernel(Source::Norm, &[("D", d)], "add_rms_norm", 0)?;
        let args = vec![
            Arg::At(self.at(o.x)),
            Arg::At(self.maybe(o.branches[0])),
            Arg::At(self.maybe(o.branches[1])),
            Arg::At(self.at(o.weight)),
            Arg::At(self.maybe(o.sum)),
            Arg::At(self.at(o.out)),
            Arg::At(self.at(o.rstd)),
            Arg::I32(rows as i32),
            Arg::F32(o.eps as f32),
        ];
        self.launch(kernel, (rows.div_ceil(WARPS), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn add_rms_norm_backward(&mut self, o: &AddRmsNormBackward) -> Result<(), CudaError> {
        let (rows, d) = (self.rows() as u64, self.width_of_eight(o.x, "hidden_size")?);
        // Rows whose weight gradients one block sums.
        let rows_per_block = rows.div_ceil(BACKWARD_BLOCKS).next_multiple_of(BACKWARD_WARPS);
        let blocks = rows.div_ceil(rows_per_block);
        let part = self.temporary(blocks * d as u64 * 4);
        let kernel = self.kernel(Source::Norm, &[("D", d)], "rms_norm_backward", 0)?;
        let args = vec![
            Arg::At(self.at(o.dout)),
            Arg::At(self.at(o.x)),
            Arg::At(self.maybe(o.branch)),
            Arg::At(self.at(o.rstd)),
            Arg::At(self.at(o.weight)),
            Arg::At(self.maybe(o.dresidual)),
            Arg::At(self.at(o.dsum)),
            Arg::At(self.maybe(o.dbranch)),
            Arg::At(self.maybe(o.out)),
            Arg::At(part),
            Arg::I32(rows as i32),
            Arg::I32(rows_per_block as i32),
        ];
        self.launch(kernel, (blocks, 1, 1), 32 * BACKWARD_WARPS as u32, 0, args);
        let dweight = self.at(o.dweight);
        self.sum_partials(part, blocks, d as u64, dweight)
    }

    pub(super) fn gated_rms_norm(&mut self, o: &GatedRmsNorm) -> Result<(), CudaError> {
        let (v, value_heads) = self.head_split(o.x, o.weight)?;
        let heads = self.rows() as u64 * value_heads as u64;
        let kernel = self.kernel(
            Source::GatedNorm,
            &gate_sizes(v, o.activation),
            "gated_rms_norm",
            0,
        )?;
        let (gate, ld) = o.gate.map_or((Address::NULL, Arg::I64(0)), |g| self.columns(g));
        let args = vec![
            Arg::At(self.at(o.x)),
            Arg::At(gate),
            ld,
            Arg::At(self.at(o.weight)),
            Arg::At(self.at(o.out)),
            Arg::At(self.at(o.rstd)),
            Arg::I64(heads as i64),
            Arg::I32(value_heads as i32),
            Arg::F32(o.eps as f32),
        ];
        self.launch(kernel, (heads.div_ceil(256 / lanes(v)), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn gated_rms_norm_backward(&mut self, o: &GatedRmsNormBackward) -> Result<(), CudaError> {
        let (v, value_heads) = self.head_split(o.x, o.weight)?;
        let heads = self.rows() as u64 * value_heads as u64;
        // Heads whose weight gradients one block sums.
        let heads_per_block = heads
            .div_ceil(GATED_BACKWARD_BLOCKS)
            .next_multiple_of(256 / lanes(v));
        let blocks = heads.div_ceil(heads_per_block);
        let part = self.temporary(blocks * v as u64 * 4);
        let kernel = self.kernel(
            Source::GatedNorm,
            &gate_sizes(v, o.activation),
            "gated_rms_norm_backward",
            0,
        )?;
        let none = (Address::NULL, Arg::I64(0));
        let (gate, ld) = o.gate.map_or(none, |g| self.columns(g));
        let (dgate, ldd) = o.dgate.map_or(none, |g| self.columns(g));
        let args = vec![
            Arg::At(self.at(o.x)),
            Arg::At(gate),
            ld,
            Arg::At(self.at(o.weight)),
            Arg::At(self.at(o.rstd)),
            Arg::At(self.at(o.dout)),
            Arg::At(self.at(o.dx)),
            Arg::At(dgate),
            ldd,
            Arg::At(self.maybe(o.out)),
            Arg::At(part),
            Arg::I64(heads as i64),
            Arg::I32(value_heads as i32),
            Arg::I32(heads_per_block as i32),
        ];
        self.launch(kernel, (blocks, 1, 1), 256, 0, args);
        let dweight = self.at(o.dweight);
        self.sum_partials(part, blocks, v as u64, dweight)
    }

    /// Width of a matrix that kernels read eight elements at a time.
    pub(super) fn width_of_eight(&self, id: crate::plan::BufferId, what: &str) -> Result<usize, CudaError> {
        let width = self.plan.buffer(id).width();
        if !width.is_multiple_of(8) {
            return refuse(format!(
                "{what} {width} is not supported on CUDA, allowed: multiples of 8"
            ));
        }
        Ok(width)
    }

    fn head_split(
        &self,
        x: crate::plan::BufferId,
        weight: crate::plan::BufferId,
    ) -> Result<(usize, usize), CudaError> {
        let v = self.plan.buffer(weight).len();
        if ![64, 128, 256, 512].contains(&v) {
            return refuse(format!(
                "a value head of {v} is not supported on CUDA, allowed: 64, 128, 256, 512"
            ));
        }
        Ok((v, self.plan.buffer(x).width() / v))
    }
}

/// Lanes that share a head in `gated_norm.cu`.
fn lanes(v: usize) -> u64 {
    (v as u64 / 8).min(32)
}

/// Definitions of `gated_norm.cu`.
fn gate_sizes(v: usize, activation: GateActivation) -> Vec<(&'static str, usize)> {
    match activation {
        GateActivation::Swish => vec![("VD", v)],
        GateActivation::Sigmoid => vec![("VD", v), ("SIGMOID_GATE", 1)],
    }
}
