//! Log-probabilities of given tokens, sequence by sequence, from the forward pass of an evaluation.

use super::{Engine, EngineError};
use crate::data::{IGNORE, ModelInput};
use ceteris_kernels::backend::Executor;
use ceteris_kernels::plan::{Geometry, Section};

/// One device micro-batch and where the sequences lie in it.
#[derive(Debug, Default)]
struct Filled {
    input: ModelInput,
    /// Sequence and its first position in the micro-batch.
    places: Vec<(usize, usize)>,
    /// Row that is being filled, tokens and documents in it.
    row: usize,
    tokens: usize,
    documents: usize,
}

impl Filled {
    /// Puts a sequence behind those already there; false when it does not fit.
    fn push(&mut self, index: usize, sequence: &[i32], geometry: Geometry) -> bool {
        let per_row = geometry.max_documents / geometry.micro_batch_size;
        let t = geometry.seq_length;
        if self.tokens + sequence.len() > t || self.documents == per_row {
            (self.row, self.tokens, self.documents) = (self.row + 1, 0, 0);
        }
        if self.row == geometry.micro_batch_size {
            return false;
        }
        let first = self.row * t + self.tokens;
        self.pad(first);
        self.places.push((index, first));
        self.input.cu_seqlens.push(first as i32);
        self.input.tokens.extend_from_slice(sequence);
        self.input.targets.extend_from_slice(&sequence[1..]);
        self.input.targets.push(IGNORE);
        self.tokens += sequence.len();
        self.documents += 1;
        true
    }

    /// Fills with tokens that count nothing and belong to the last document.
    fn pad(&mut self, to: usize) {
        self.input.tokens.resize(to, 0);
        self.input.targets.resize(to, IGNORE);
    }

    fn close(&mut self, geometry: Geometry) {
        let rows = geometry.micro_batch_size;
        self.pad(geometry.rows());
        for row in self.row + 1..rows {
            self.input.cu_seqlens.push((row * geometry.seq_length) as i32);
        }
        let end = geometry.rows() as i32;
        self.input.cu_seqlens.resize(geometry.max_documents + 1, end);
    }
}

impl Engine {
    /// Log-probability of every token of every sequence but its first, given the tokens before it: `len - 1` values a
    /// sequence. Sequences are put into the rows of the engine in the order given, as many in a row as its length and
    /// `data.max_documents_per_row` allow (one where `data.documents` is `none`). With `train.batch_invariant` the values
    /// of a sequence have the same bits in any such layout.
    ///
    /// # Errors
    /// [`EngineError::TooLong`]; ids outside the vocabulary; a device that failed.
    pub fn log_probs(&mut self, sequences: &[Vec<i32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let geometry = self.model.plan.geometry;
        let mut out: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
        let mut filled = Filled::default();
        for (index, sequence) in sequences.iter().enumerate() {
            if sequence.len() > geometry.seq_length {
                return Err(EngineError::TooLong {
                    found: sequence.len(),
                    limit: geometry.seq_length,
                });
            }
            if sequence.is_empty() {
                continue;
            }
            if !filled.push(index, sequence, geometry) {
                self.score(std::mem::take(&mut filled), sequences, &mut out)?;
                filled.push(index, sequence, geometry);
            }
        }
        if !filled.places.is_empty() {
            self.score(filled, sequences, &mut out)?;
        }
        Ok(out)
    }

    fn score(
        &mut self,
        mut filled: Filled,
        sequences: &[Vec<i32>],
        out: &mut [Vec<f32>],
    ) -> Result<(), EngineError> {
        let geometry = self.model.plan.geometry;
        filled.close(geometry);
        self.input = filled.input;
        self.put_input()?;
        let executor: &mut dyn Executor = &mut *self.device.executor;
        executor.write_f64(self.model.loss_sum, 0, &[0.0])?;
        executor.run(Section::Evaluate)?;
        let mut nll = vec![0f32; geometry.rows()];
        executor.read_f32(self.model.evaluate_nll, 0, &mut nll)?;
        for (index, first) in filled.places {
            let values = &nll[first..first + sequences[index].len() - 1];
            out[index] = values.iter().map(|x| -x).collect();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_fill_rows_in_order() {
        let geometry = Geometry {
            micro_batch_size: 2,
            seq_length: 8,
            max_documents: 4,
        };
        let mut filled = Filled::default();
        assert!(filled.push(0, &[1, 2, 3], geometry));
        assert!(filled.push(1, &[4, 5, 6, 7], geometry));
        // Neither a third document nor five more tokens fit the first row.
        assert!(filled.push(2, &[8], geometry));
        assert!(filled.push(3, &[9, 9, 9, 9, 9], geometry));
        assert!(!filled.push(4, &[1], geometry));
        filled.close(geometry);
        assert_eq!(filled.places, [(0, 0), (1, 3), (2, 8), (3, 9)]);
        assert_eq!(filled.input.cu_seqlens, [0, 3, 8, 9, 16]);
        assert_eq!(
            filled.input.tokens,
            [1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 9, 9, 9, 9, 0, 0]
        );
        assert_eq!(filled.input.targets[..4], [2, 3, IGNORE, 5]);
        assert_eq!(filled.input.targets[6..9], [IGNORE; 3]);
    }

    #[test]
    fn rows_that_stay_empty_are_documents_of_their_own() {
        let geometry = Geometry::unpacked(3, 4);
        let mut filled = Filled::default();
        assert!(filled.push(0, &[1, 2], geometry));
        filled.close(geometry);
        assert_eq!(filled.input.cu_seqlens, [0, 4, 8, 12]);
        assert_eq!(filled.input.tokens.len(), 12);
    }
}
