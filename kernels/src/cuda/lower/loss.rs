//! Head and cross entropy, chunk of rows by chunk of rows.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::product::Block;
use super::{Lowering, refuse};
use crate::ops::LinearCrossEntropy;

/// Blocks that hold a row of logits together.
const CLUSTER: u64 = 4;
/// Most shared memory of such a block: three fit on a multiprocessor.
const CLUSTER_SHARED: u64 = 72 * 1024;

impl Lowering<'_> {
    pub(super) fn linear_cross_entropy(&mut self, o: &LinearCrossEntropy) -> Result<(), CudaError> {
        let (vocab, k) = self.weight_shape(o.weight)?;
        let (rows, seq, elem) = (
            self.rows() as u64,
            self.plan.geometry.seq_length as u64,
            self.elem(),
        );
        let most = self.plan.buffer(o.logits).shape[0] as u64;
        if most == 0 {
            return refuse("the chunk of logits has no rows".into());
        }
        // Whole sequences as long as they fit, else equal parts of one: chunks never straddle a sequence.
        let step = if most >= seq { most / seq * seq } else { most };
        let logits = Block {
            at: self.at(o.logits),
            ld: vocab,
        };
        // A quarter of a row in the shared memory of each of four blocks, three of them on a multiprocessor.
        let slice = vocab.div_ceil(8 * CLUSTER) * 8;
        let shared = slice * elem;
        let clusters = self.modules.has_clusters() && elem == 2 && shared <= CLUSTER_SHARED;
        let kernel = if clusters {
            self.kernel(Source::CrossEntropy, &[], "cross_entropy_cluster", shared)?
        } else {
            self.kernel(Source::CrossEntropy, &[], "cross_entropy", 0)?
        };
        let mut first = 0;
        while first < rows {
            let end = if most >= seq {
                (first + step).min(rows)
            } else {
                (first + step).min((first / seq + 1) * seq)
            };
            let n = end - first;
            let x = Block {
                at: self.at(o.x).plus(first * k * elem),
                ld: k,
            };
            self.forward_product(n, x, o.weight, logits)?;
            let mut args = vec![
                Arg::At(logits.at),
                Arg::I64(vocab as i64),
                Arg::At(self.at(o.labels).plus(first * 4)),
                Arg::I32(vocab as i32),
            ];
            if clusters {
                args.push(Arg::I32(slice as i32));
            }
            let scale = o.gradients.as_ref().map(|g| self.at(g.grad_scale));
            args.extend([
                Arg::At(scale.unwrap_or(Address::NULL)),
                Arg::At(self.at(o.nll).plus(first * 4)),
            ]);
            let (blocks, shared) = if clusters { (n * CLUSTER, shared) } else { (n, 0) };
            self.launch(kernel, (blocks, 1, 1), 512, shared, args);
            if let Some(g) = &o.gradients {
                let dx = Block {
                    at: self.at(g.dx).plus(first * k * elem),
                    ld: k,
                };
                self.input_product(n, logits, o.weight, dx)?;
                self.weight_product(n, logits, x, g.dweight)?;
            }
            first = end;
        }
        let kernel = self.kernel(Source::CrossEntropy, &[], "sum_losses", 0)?;
        let args = vec![
            Arg::At(self.at(o.nll)),
            Arg::I32(rows as i32),
            Arg::At(self.at(o.loss_sum)),
        ];
        self.launch(kernel, (1, 1, 1), 256, 0, args);
        Ok(())
    }
}
