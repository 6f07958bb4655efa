//! Global norm and AdamW.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{AdamW, GlobalNorm};

/// Gradient elements one block squares and sums.
const NORM_BLOCK: u64 = 1 << 16;

impl Lowering<'_> {
    pub(super) fn global_norm(&mut self, o: &GlobalNorm) -> Result<(), CudaError> {
        let lengths: Vec<u64> = o
            .gradients
            .iter()
            .map(|&g| self.plan.buffer(g).len() as u64)
            .collect();
        let parts: u64 = lengths.iter().map(|n| n.div_ceil(NORM_BLOCK)).sum();
        let part = self.temporary(parts * 8);
        let kernel = self.kernel(Source::Reduce, &[], "square_sums", 0)?;
        let mut at = part;
        for (&g, &n) in o.gradients.iter().zip(&lengths) {
            let blocks = n.div_ceil(NORM_BLOCK);
            let args = vec![
                Arg::At(self.at(g)),
                Arg::I64(n as i64),
                Arg::I64(NORM_BLOCK as i64),
                Arg::At(at),
            ];
            self.launch(kernel, (blocks, 1, 1), 256, 0, args);
            at = at.plus(blocks * 8);
        }
        let kernel = self.kernel(Source::Reduce, &[], "norm_of_partials", 0)?;
        let args = vec![
            Arg::At(part),
            Arg::I32(parts as i32),
            Arg::F64(o.max_norm.unwrap_or(0.0)),
            Arg::At(self.at(o.norm)),
            Arg::At(self.at(o.coefficient)),
        ];
        self.launch(kernel, (1, 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn adamw(&mut self, o: &AdamW) -> Result<(), CudaError> {
        let kernel = self.kernel(Source::AdamW, &[], "adamw", 0)?;
        for tensor in &o.tensors {
            let p = tensor.parameter;
            let copy = self.places.copies.get(&p.value).map(|&c| Address::Device(c));
            for d in &tensor.decay {
                let (first, n) = (d.range.start as u64, d.range.len() as u64);
                if first % 8 != 0 {
                    let name = &self.plan.buffer(p.value).name;
                    return refuse(format!(
                        "a weight-decay range of '{name}' starts at element {first}, on CUDA allowed: multiples of 8"
                    ));
                }
                let args = vec![
                    Arg::At(self.at(p.value).plus(first * 4)),
                    Arg::At(self.at(p.gradient).plus(first * 4)),
                    Arg::At(self.at(p.first_moment).plus(first * 4)),
                    Arg::At(self.at(p.second_moment).plus(first * 4)),
                    Arg::At(copy.map_or(Address::NULL, |c| c.plus(first * 2))),
                    Arg::At(self.at(o.hyper)),
                    Arg::At(self.at(o.coefficient)),
                    Arg::F64(o.beta1),
                    Arg::F64(o.beta2),
                    Arg::F32(o.eps as f32),
                    Arg::F64(d.weight_decay),
                    Arg::I64(n as i64),
                ];
                self.launch(kernel, (n.div_ceil(2048), 1, 1), 256, 0, args);
            }
        }
        Ok(())
    }
}
