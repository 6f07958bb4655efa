//! SwiGLU, embedding, and elementwise additions.

use super::super::call::{Address, Arg};
use super::super::error::CudaError;
use super::super::source::Source;
use super::Lowering;
use crate::ops::{AddInto, Embedding, EmbeddingBackward, SwiGlu, SwiGluBackward};

/// Positions of the token order that one block of `embed_backward` sums.
const WINDOW: u64 = 32;

impl Lowering<'_> {
    pub(super) fn swiglu(&mut self, o: &SwiGlu) -> Result<(), CudaError> {
        let width = self.width_of_eight(o.out, "intermediate_size")?;
        let n = self.rows() as u64 * width as u64;
        let kernel = self.kernel(Source::SwiGlu, &[], "swiglu", 0)?;
        let args = vec![
            Arg::At(self.at(o.gate_up)),
            Arg::At(self.at(o.out)),
            Arg::I64(n as i64),
            Arg::I32(width as i32),
        ];
        self.launch(kernel, (n.div_ceil(2048), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn swiglu_backward(&mut self, o: &SwiGluBackward) -> Result<(), CudaError> {
        let width = self.width_of_eight(o.dout, "intermediate_size")?;
        let n = self.rows() as u64 * width as u64;
        let kernel = self.kernel(Source::SwiGlu, &[], "swiglu_backward", 0)?;
        let args = vec![
            Arg::At(self.at(o.gate_up)),
            Arg::At(self.at(o.dout)),
            Arg::At(self.at(o.dgate_up)),
            Arg::At(self.maybe(o.out)),
            Arg::I64(n as i64),
            Arg::I32(width as i32),
        ];
        self.launch(kernel, (n.div_ceil(2048), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn embedding(&mut self, o: &Embedding) -> Result<(), CudaError> {
        let width = self.width_of_eight(o.out, "hidden_size")?;
        let n = self.rows() as u64 * width as u64;
        let kernel = self.kernel(Source::Embedding, &[], "embed", 0)?;
        let args = vec![
            Arg::At(self.at(o.tokens)),
            Arg::At(self.at(o.table)),
            Arg::At(self.at(o.out)),
            Arg::I64(n as i64),
            Arg::I32(width as i32),
        ];
        self.launch(kernel, (n.div_ceil(2048), 1, 1), 256, 0, args);
        Ok(())
    }

    pub(super) fn embedding_backward(&mut self, o: &EmbeddingBackward) -> Result<(), CudaError> {
        let width = self.width_of_eight(o.dout, "hidden_size")?;
        let rows = self.rows() as u64;
        let windows = rows.div_ceil(WINDOW);
        let part = self.temporary(windows * 2 * width as u64 * 4);
        let order = Address::Device(self.places.row_orders[&o.tokens]);
        let kernel = self.kernel(Source::Embedding, &[], "embed_backward", 0)?;
        let args = vec![
            Arg::At(self.at(o.tokens)),
            Arg::At(order),
            Arg::I32(rows as i32),
            Arg::At(self.at(o.dout)),
            Arg::At(self.at(o.dtable)),
            Arg::At(part),
            Arg::I32(width as i32),
        ];
        self.launch(kernel, (windows, 1, 1), 128, 0, args);
        let kernel = self.kernel(Source::Embedding, &[], "embed_backward_runs", 0)?;
        let args = vec![
            Arg::At(self.at(o.tokens)),
            Arg::At(order),
            Arg::I32(rows as i32),
            Arg::At(part),
            Arg::At(self.at(o.dtable)),
            Arg::I32(width as i32),
        ];
        self.launch(kernel, (windows, 1, 1), 128, 0, args);
        Ok(())
    }

    pub(super) fn add_into(&mut self, o: &AddInto) -> Result<(), CudaError> {
        let (source, target) = (self.at(o.source), self.at(o.target));
        self.add(source, target, self.plan.buffer(o.target).len() as u64)
    }

    /// `target += source` over `n` fp32 values.
    pub(super) fn add(&mut self, source: Address, target: Address, n: u64) -> Result<(), CudaError> {
        let kernel = self.kernel(Source::Reduce, &[], "add_into", 0)?;
        let args = vec![Arg::At(source), Arg::At(target), Arg::I64(n as i64)];
        self.launch(kernel, (n.div_ceil(2048), 1, 1), 256, 0, args);
        Ok(())
    }
}
