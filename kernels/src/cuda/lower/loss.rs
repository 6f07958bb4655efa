//! Head and cross entropy, chunk of rows by chunk of rows.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::product::Block;
use super::{Lowering, refuse};
use crate::ops::LinearCrossEntropy;

/// Blocks that hold a row of logits together.
const CLUSTER: u64 = 4;
/// Rows of which such a block holds its part at a time.
const SLOTS: u64 = 3;
/// Most bytes of one row in such a block: [`SLOTS`] of them and what else the kernel keeps fit in a block's shared memory.
const CLUSTER_SLICE: u64 = 75 * 1024;
/// Threads of a block without clusters, and of one of a cluster: a warp more, which fetches rows and adds sums.
const THREADS: (u32, u32) = (512, 544);

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
        // A quarter of a row in the shared memory of each of four blocks, and as many clusters as run at once: each
        // stays for its share of the rows. Their number is for speed only.
        let slice = vocab.div_ceil(8 * CLUSTER) * 8;
        let clustered = self.modules.has_clusters() && elem == 2 && slice * elem <= CLUSTER_SLICE;
        let (kernel, threads, shared, clusters) = if clustered {
            let shared = SLOTS * slice * elem;
            let kernel = self.kernel(Source::CrossEntropy, &[], "cross_entropy_cluster", shared)?;
            let clusters =
                self.modules
                    .resident_clusters(kernel, CLUSTER as u32, THREADS.1, shared as u32)?;
            (kernel, THREADS.1, shared, Some(clusters))
        } else {
            let kernel = self.kernel(Source::CrossEntropy, &[], "cross_entropy", 0)?;
            (kernel, THREADS.0, 0, None)
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
            ];
            if clustered {
                args.push(Arg::I32(n as i32));
            }
            args.push(Arg::I32(vocab as i32));
            if clustered {
                args.push(Arg::I32(slice as i32));
            }
            let scale = o.gradients.as_ref().map(|g| self.at(g.grad_scale));
            args.extend([
                Arg::At(scale.unwrap_or(Address::NULL)),
                Arg::At(self.at(o.nll).plus(first * 4)),
            ]);
            let blocks = clusters.map_or(n, |c| n.min(c) * CLUSTER);
            self.launch(kernel, (blocks, 1, 1), threads, shared, args);
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
