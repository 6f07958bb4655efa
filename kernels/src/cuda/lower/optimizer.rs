//! Clearing, global norm and AdamW: few launches over lists of tensors, which travel as kernel arguments.

use super::super::call::{Address, Arg, Call, Launch};
use super::super::error::CudaError;
use super::super::source::Source;
use super::{Lowering, refuse};
use crate::ops::{AdamW, GlobalNorm, Zero};

/// Gradient elements one block squares and sums.
const NORM_BLOCK: u64 = 1 << 15;
/// Words one block clears.
const CLEAR_BLOCK: u64 = 1 << 14;
/// Tensors of one launch of the norm and of clearing, as in `reduce.cu`.
const TENSORS: usize = 64;
/// Elements one block updates.
const UPDATE_BLOCK: u64 = 2048;
/// Ranges of one launch of the update, as in `adamw.cu`.
const RANGES: usize = 32;

/// One entry of a list: the words of its columns before the last, and the blocks it needs.
struct Entry<const N: usize> {
    words: [u64; N],
    blocks: u64,
}

/// Columns of `length` words each, the last one the first block of every entry, for at most `length` entries.
fn table<const N: usize>(entries: &[Entry<N>], length: usize) -> Vec<u64> {
    let mut words = Vec::with_capacity((N + 1) * length);
    for column in 0..N {
        words.extend((0..length).map(|i| entries.get(i).map_or(0, |e| e.words[column])));
    }
    let mut first = 0;
    for i in 0..length {
        words.push(if i < entries.len() { first } else { i64::MAX as u64 });
        first += entries.get(i).map_or(0, |e| e.blocks);
    }
    words
}

impl Lowering<'_> {
    /// A device address that is known now: persistent buffers and weights' copies are.
    fn word(&self, at: Address) -> u64 {
        at.resolve(0)
    }

    pub(super) fn zero(&mut self, o: &Zero) -> Result<(), CudaError> {
        let entries: Vec<Entry<2>> = o
            .buffers
            .iter()
            .filter(|id| !self.overwritten.contains(id))
            .map(|&id| {
                let words = self.plan.buffer(id).len() as u64 * self.element(id) / 4;
                Entry {
                    words: [self.word(self.at(id)), words],
                    blocks: words.div_ceil(CLEAR_BLOCK),
                }
            })
            .filter(|e| e.blocks > 0)
            .collect();
        let kernel = self.kernel(Source::Reduce, &[], "clear_words", 0)?;
        for list in entries.chunks(TENSORS) {
            let blocks: u64 = list.iter().map(|e| e.blocks).sum();
            self.calls.push(Call::Launch(Launch {
                kernel,
                grid: (blocks as u32, 1, 1),
                threads: 256,
                shared: 0,
                table: table(list, TENSORS),
                args: vec![Arg::I64(CLEAR_BLOCK as i64)],
            }));
        }
        Ok(())
    }

    pub(super) fn global_norm(&mut self, o: &GlobalNorm) -> Result<(), CudaError> {
        let entries: Vec<Entry<2>> = o
            .gradients
            .iter()
            .map(|&g| {
                let n = self.plan.buffer(g).len() as u64;
                Entry {
                    words: [self.word(self.at(g)), n],
                    blocks: n.div_ceil(NORM_BLOCK),
                }
            })
            .filter(|e| e.blocks > 0)
            .collect();
        let parts: u64 = entries.iter().map(|e| e.blocks).sum();
        let part = self.temporary(parts * 8);
        let kernel = self.kernel(Source::Reduce, &[], "square_sums", 0)?;
        let mut at = part;
        for list in entries.chunks(TENSORS) {
            let blocks: u64 = list.iter().map(|e| e.blocks).sum();
            self.calls.push(Call::Launch(Launch {
                kernel,
                grid: (blocks as u32, 1, 1),
                threads: 256,
                shared: 0,
                table: table(list, TENSORS),
                args: vec![Arg::I64(NORM_BLOCK as i64), Arg::At(at)],
            }));
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
        let mut entries: Vec<Entry<7>> = Vec::new();
        for tensor in &o.tensors {
            let p = tensor.parameter;
            let copy = self.places.copies.get(&p.value).copied();
            // Neighbouring ranges of one decay are one range.
            let mut ranges: Vec<(u64, u64, f64)> = Vec::new();
            for d in tensor.decay.iter().filter(|d| !d.range.is_empty()) {
                let (first, end) = (d.range.start as u64, d.range.end as u64);
                match ranges.last_mut() {
                    Some(last) if last.1 == first && last.2 == d.weight_decay => last.1 = end,
                    _ => ranges.push((first, end, d.weight_decay)),
                }
            }
            for (first, end, decay) in ranges {
                if first % 8 != 0 {
                    let name = &self.plan.buffer(p.value).name;
                    return refuse(format!(
                        "a weight-decay range of '{name}' starts at element {first}, on CUDA allowed: multiples of 8"
                    ));
                }
                let [value, gradient, m, v] = [p.value, p.gradient, p.first_moment, p.second_moment]
                    .map(|id| self.word(self.at(id)) + first * 4);
                let copy = copy.map_or(0, |c| c + first * 2);
                entries.push(Entry {
                    words: [value, gradient, m, v, copy, decay.to_bits(), end - first],
                    blocks: (end - first).div_ceil(UPDATE_BLOCK),
                });
            }
        }
        let factors = self.temporary(8);
        let kernel = self.kernel(Source::AdamW, &[], "adamw_factors", 0)?;
        let hyper = self.at(o.hyper);
        let args = vec![
            Arg::At(hyper),
            Arg::F64(o.beta1),
            Arg::F64(o.beta2),
            Arg::At(factors),
        ];
        self.launch(kernel, (1, 1, 1), 1, 0, args);
        let kernel = self.kernel(Source::AdamW, &[], "adamw", 0)?;
        for list in entries.chunks(RANGES) {
            let blocks: u64 = list.iter().map(|e| e.blocks).sum();
            self.calls.push(Call::Launch(Launch {
                kernel,
                grid: (blocks as u32, 1, 1),
                threads: 256,
                shared: 0,
                table: table(list, RANGES),
                args: vec![
                    Arg::At(hyper),
                    Arg::At(self.at(o.coefficient)),
                    Arg::At(factors),
                    Arg::F64(o.beta1),
                    Arg::F64(o.beta2),
                    Arg::F32(o.eps as f32),
                ],
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_columns_with_ascending_first_blocks() {
        let entry = |at, blocks| Entry { words: [at], blocks };
        let last = i64::MAX as u64;
        assert_eq!(
            table(&[entry(7, 2), entry(8, 3)], 4),
            [7, 8, 0, 0, 0, 2, last, last]
        );
    }
}
