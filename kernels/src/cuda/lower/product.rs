//! The three products of a linear layer.

use super::super::batch_invariant::{ALIGN, ROWS};
use super::super::call::{Address, Call, RowCopy};
use super::super::error::CudaError;
use super::super::product::{Product, Shape, Type};
use super::{Lowering, refuse};
use crate::ops::{Linear, LinearBackwardInput, LinearBackwardWeight};
use crate::plan::{BufferId, Columns};

/// A row-major block: first element, row stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) at: Address,
    pub(super) ld: u64,
}

impl Lowering<'_> {
    fn block(&self, c: Columns) -> Block {
        Block {
            at: self.columns(c).0,
            ld: self.plan.buffer(c.buffer).width() as u64,
        }
    }

    /// `[n, k]` of a weight.
    pub(super) fn weight_shape(&self, id: BufferId) -> Result<(u64, u64), CudaError> {
        let buffer = self.plan.buffer(id);
        let (n, k) = (buffer.shape[0] as u64, buffer.width() as u64);
        if n % 8 != 0 || k % 8 != 0 {
            return refuse(format!(
                "a linear layer of shape [{n}, {k}] ('{}') is not supported on CUDA, allowed: multiples of 8",
                buffer.name
            ));
        }
        Ok((n, k))
    }

    pub(super) fn product(&mut self, mut shape: Shape, product: Product) -> Result<(), CudaError> {
        shape.align = [product.a, product.b, product.d]
            .map(Address::alignment)
            .into_iter()
            .fold(256, u32::min);
        let index = self.products.prepare(shape)?;
        self.operands.entry(index).or_insert(product);
        self.calls.push(Call::Product { index, product });
        Ok(())
    }

    /// `out [rows, n] = x [rows, k] · weight [n, k]ᵀ`.
    pub(super) fn forward_product(
        &mut self,
        rows: u64,
        x: Block,
        weight: BufferId,
        out: Block,
    ) -> Result<(), CudaError> {
        let (n, k) = self.weight_shape(weight)?;
        let shape = Shape {
            m: n,
            n: rows,
            k,
            transpose_a: true,
            transpose_b: false,
            lda: k,
            ldb: x.ld,
            ldd: out.ld,
            input: self.elem_type(),
            output: self.elem_type(),
            accumulate: false,
            align: 0,
        };
        let product = Product {
            a: self.weight(weight),
            b: x.at,
            d: out.at,
        };
        if self.batch_invariant {
            self.batch_invariant_product(shape, product)
        } else {
            self.product(shape, product)
        }
    }

    /// A forward product in calls of whole multiples of [`ROWS`] rows, which one algorithm computes whatever their number:
    /// the rows that are left over go through scratch memory, among rows that nobody reads.
    fn batch_invariant_product(&mut self, shape: Shape, product: Product) -> Result<(), CudaError> {
        let elem = self.elem();
        let (from, to) = (shape.ldb * elem, shape.ldd * elem);
        let (whole, rest) = (shape.n / ROWS * ROWS, shape.n % ROWS);
        if whole > 0 {
            self.pinned_product(Shape { n: whole, ..shape }, product)?;
        }
        if rest == 0 {
            return Ok(());
        }
        let used = self.used;
        let (x, out) = (self.temporary(ROWS * from), self.temporary(ROWS * to));
        self.calls.push(Call::Copy(RowCopy {
            from: (product.b.plus(whole * from), from),
            to: (x, from),
            width: shape.k * elem,
            rows: rest,
        }));
        let padded = Product {
            a: product.a,
            b: x,
            d: out,
        };
        self.pinned_product(Shape { n: ROWS, ..shape }, padded)?;
        self.calls.push(Call::Copy(RowCopy {
            from: (out, to),
            to: (product.d.plus(whole * to), to),
            width: shape.m * elem,
            rows: rest,
        }));
        // Whatever comes next on the stream may use the same memory.
        self.used = used;
        Ok(())
    }

    fn pinned_product(&mut self, mut shape: Shape, product: Product) -> Result<(), CudaError> {
        let addresses = [product.a, product.b, product.d].map(Address::alignment);
        if !shape.ldb.is_multiple_of(8)
            || !shape.ldd.is_multiple_of(8)
            || addresses.iter().any(|&a| a < ALIGN)
        {
            return refuse(format!(
                "batch_invariant: a product of operands that are not aligned to {ALIGN} bytes is not supported: {shape:?}"
            ));
        }
        shape.align = ALIGN;
        let index = self.products.prepare_batch_invariant(shape)?;
        self.calls.push(Call::Product { index, product });
        Ok(())
    }

    /// `dx [rows, k] = dout [rows, n] · weight [n, k]`.
    pub(super) fn input_product(
        &mut self,
        rows: u64,
        dout: Block,
        weight: BufferId,
        dx: Block,
    ) -> Result<(), CudaError> {
        let (n, k) = self.weight_shape(weight)?;
        let shape = Shape {
            m: k,
            n: rows,
            k: n,
            transpose_a: false,
            transpose_b: false,
            lda: k,
            ldb: dout.ld,
            ldd: dx.ld,
            input: self.elem_type(),
            output: self.elem_type(),
            accumulate: false,
            align: 0,
        };
        self.product(
            shape,
            Product {
                a: self.weight(weight),
                b: dout.at,
                d: dx.at,
            },
        )
    }

    /// `dweight [n, k] += dout [rows, n]ᵀ · x [rows, k]`, in fp32; `=` where it is the step's first on this gradient.
    pub(super) fn weight_product(
        &mut self,
        rows: u64,
        dout: Block,
        x: Block,
        dweight: BufferId,
    ) -> Result<(), CudaError> {
        let (n, k) = self.weight_shape(dweight)?;
        let shape = Shape {
            m: k,
            n,
            k: rows,
            transpose_a: false,
            transpose_b: true,
            lda: x.ld,
            ldb: dout.ld,
            ldd: k,
            input: self.elem_type(),
            output: Type::F32,
            accumulate: !self.fresh.remove(&dweight),
            align: 0,
        };
        self.product(
            shape,
            Product {
                a: x.at,
                b: dout.at,
                d: self.at(dweight),
            },
        )
    }

    pub(super) fn linear(&mut self, o: &Linear) -> Result<(), CudaError> {
        let (x, out) = (self.block(o.x), self.block(o.out));
        self.forward_product(self.rows() as u64, x, o.weight, out)
    }

    pub(super) fn linear_backward_input(&mut self, o: &LinearBackwardInput) -> Result<(), CudaError> {
        let (dout, dx) = (self.block(o.dout), self.block(o.dx));
        self.input_product(self.rows() as u64, dout, o.weight, dx)
    }

    pub(super) fn linear_backward_weight(&mut self, o: &LinearBackwardWeight) -> Result<(), CudaError> {
        let (dout, x) = (self.block(o.dout), self.block(o.x));
        self.weight_product(self.rows() as u64, dout, x, o.dweight)
    }
}
