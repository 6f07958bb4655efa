//! Short convolution and the gates of the delta rule.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{Gates, GatesBackward, ShortConv, ShortConvBackward};
use crate::plan::BufferId;

/// Channels of a block of the convolution's kernels, and of a thread of the forward one.
const BLOCK: u64 = 512;
const FORWARD: u64 = 8;
/// Blocks that a large GPU has at once: ten and five on each of its 132 multiprocessors, less a few; others would have to
/// wait for them to end. A number of the code, not of the device: a weight's gradient is summed block by block, and its
/// bits must not depend on where it is computed.
const FORWARD_BLOCKS: u64 = 1312;
const BACKWARD_BLOCKS: u64 = 656;
/// Rows whose gate gradients one block sums.
const GATE_RUN: u64 = 512;

impl Lowering<'_> {
    fn conv_sizes(
        &self,
        weight: Option<BufferId>,
        channels: usize,
        head_dim: usize,
        silu: bool,
    ) -> Result<Vec<(&'static str, usize)>, CudaError> {
        if !(8..=256).contains(&head_dim) || !head_dim.is_power_of_two() || !channels.is_multiple_of(8) {
            return refuse(format!(
                "a convolution over {channels} channels with heads of {head_dim} is not supported on CUDA, \
                 allowed: heads of 8, 16, 32, 64, 128, 256 and channels in multiples of 8"
            ));
        }
        let mut sizes = match weight {
            Some(w) => vec![("KD", head_dim), ("W", self.plan.buffer(w).width())],
            None => vec![("KD", head_dim), ("W", 1), ("NO_WEIGHT", 1)],
        };
        if !silu {
            sizes.push(("NO_SILU", 1));
        }
        Ok(sizes)
    }

    pub(super) fn short_conv(&mut self, o: &ShortConv) -> Result<(), CudaError> {
        let (rows, channels) = (self.rows() as u64, o.x.width);
        let sizes = self.conv_sizes(o.weight, channels, o.head_dim, o.silu)?;
        let kernel = self.kernel(Source::Conv, &sizes, "short_conv", 0)?;
        let (x, ld) = self.columns(o.x);
        let run = rows_of_a_run(rows, channels as u64, FORWARD_BLOCKS);
        let args = vec![
            Arg::At(x),
            ld,
            Arg::At(self.maybe(o.weight)),
            Arg::At(Address::Device(self.documents(o.documents).start)),
            Arg::At(self.at(o.out)),
            Arg::I32(rows as i32),
            Arg::I32(channels as i32),
            Arg::I32((o.norm_heads * o.head_dim) as i32),
            Arg::I32(run as i32),
        ];
        self.launch(
            kernel,
            (rows.div_ceil(run), (channels as u64).div_ceil(BLOCK), 1),
            (BLOCK / FORWARD) as u32,
            0,
            args,
        );
        Ok(())
    }

    pub(super) fn short_conv_backward(&mut self, o: &ShortConvBackward) -> Result<(), CudaError> {
        let (rows, channels) = (self.rows() as u64, o.x.width);
        let sizes = self.conv_sizes(o.weight, channels, o.head_dim, o.silu)?;
        let taps = o.weight.map_or(1, |w| self.plan.buffer(w).width()) as u64;
        let run = rows_of_a_run(rows, channels as u64, BACKWARD_BLOCKS);
        let blocks = rows.div_ceil(run);
        let part = self.temporary(blocks * channels as u64 * taps * 4);
        let kernel = self.kernel(Source::Conv, &sizes, "short_conv_backward", 0)?;
        let ((x, ld), (dx, ldd)) = (self.columns(o.x), self.columns(o.dx));
        let args = vec![
            Arg::At(x),
            ld,
            Arg::At(self.maybe(o.weight)),
            Arg::At(Address::Device(self.documents(o.documents).start)),
            Arg::At(self.at(o.dout)),
            Arg::At(dx),
            ldd,
            Arg::At(part),
            Arg::I32(rows as i32),
            Arg::I32(channels as i32),
            Arg::I32((o.norm_heads * o.head_dim) as i32),
            Arg::I32(run as i32),
        ];
        self.launch(
            kernel,
            (blocks, (channels as u64).div_ceil(BLOCK), 1),
            (BLOCK / backward(o.head_dim)) as u32,
            0,
            args,
        );
        match o.dweight {
            Some(d) => {
                let out = self.at(d);
                self.sum_partials(part, blocks, channels as u64 * taps, out)
            }
            None => Ok(()),
        }
    }

    pub(super) fn gates(&mut self, o: &Gates) -> Result<(), CudaError> {
        let heads = o.a.width as u64;
        let n = self.rows() as u64 * heads;
        let kernel = self.kernel(Source::Gates, &[], "gates", 0)?;
        let ((a, lda), (b, ldb)) = (self.columns(o.a), self.columns(o.b));
        let args = vec![
            Arg::At(a),
            Arg::At(b),
            lda,
            ldb,
            Arg::At(self.at(o.a_log)),
            Arg::At(self.at(o.dt_bias)),
            Arg::At(self.at(o.g)),
            Arg::At(self.at(o.beta)),
            Arg::F32(o.beta_scale as f32),
            Arg::I64(n as i64),
            Arg::I32(heads as i32),
        ];
        self.launch(kernel, (n.div_ceil(256), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn gates_backward(&mut self, o: &GatesBackward) -> Result<(), CudaError> {
        let (rows, heads) = (self.rows() as u64, o.a.width as u64);
        let blocks = rows.div_ceil(GATE_RUN);
        // [blocks, 2, heads]: both sums of a block are one row of partial sums, added to a pair first.
        let part = self.temporary(blocks * 2 * heads * 4);
        let pair = self.temporary(2 * heads * 4);
        let kernel = self.kernel(Source::Gates, &[], "gates_backward", 0)?;
        let (a, lda) = self.columns(o.a);
        let ((da, ldda), (db, lddb)) = (self.columns(o.da), self.columns(o.db));
        let args = vec![
            Arg::At(a),
            lda,
            Arg::At(self.at(o.a_log)),
            Arg::At(self.at(o.dt_bias)),
            Arg::At(self.at(o.g)),
            Arg::At(self.at(o.beta)),
            Arg::At(self.at(o.dg)),
            Arg::At(self.at(o.dbeta)),
            Arg::At(da),
            ldda,
            Arg::At(db),
            lddb,
            Arg::At(part),
            Arg::F32(o.beta_scale as f32),
            Arg::I32(rows as i32),
            Arg::I32(heads as i32),
            Arg::I32(GATE_RUN as i32),
        ];
        self.launch(kernel, (blocks, 1, 1), 256, 0, args);
        self.calls.push(super::Call::Clear {
            at: pair,
            bytes: 2 * heads * 4,
        });
        self.sum_partials(part, blocks, 2 * heads, pair)?;
        for (source, target) in [(pair, o.da_log), (pair.plus(heads * 4), o.ddt_bias)] {
            let target = self.at(target);
            self.add(source, target, heads)?;
        }
        Ok(())
    }
}

/// Channels of a thread of the backward kernel.
fn backward(head_dim: usize) -> u64 {
    if head_dim >= 256 { 8 } else { 4 }
}

/// Rows a thread slides over: about `blocks` blocks in all, runs neither so short that the rows before and after them weigh
/// much, nor so long that a few are left to the end.
fn rows_of_a_run(rows: u64, channels: u64, blocks: u64) -> u64 {
    (rows * channels.div_ceil(BLOCK))
        .div_ceil(blocks)
        .next_multiple_of(4)
        .clamp(32, 256)
}
