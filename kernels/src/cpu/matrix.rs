//! Row-major matrix views with a row stride, and their disjoint parts for parallel work.

use std::marker::PhantomData;

use rayon::prelude::*;

/// A read-only view: `rows` rows of `width` values, `stride` apart.
#[derive(Debug)]
pub struct Mat<'a, T> {
    data: *const T,
    /// Number of rows.
    pub rows: usize,
    /// Values per row.
    pub width: usize,
    /// Distance of rows in elements.
    pub stride: usize,
    life: PhantomData<&'a [T]>,
}

impl<T> Clone for Mat<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mat<'_, T> {}

// SAFETY: a `Mat` gives shared access only, like `&[T]`.
unsafe impl<T: Sync> Send for Mat<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mat<'_, T> {}

/// A writable view. Two live views never share an element.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    data: *mut T,
    /// Number of rows.
    pub rows: usize,
    /// Values per row.
    pub width: usize,
    /// Distance of rows in elements.
    pub stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `MatMut` gives exclusive access to its elements, like `&mut [T]`.
unsafe impl<T: Send> Send for MatMut<'_, T> {}
// SAFETY: through `&MatMut` only reading is possible.
unsafe impl<T: Sync> Sync for MatMut<'_, T> {}

fn check_extent(len: usize, rows: usize, width: usize, stride: usize) {
    assert!(
        width <= stride || rows <= 1,
        "rows of {width} values overlap at stride {stride}"
    );
    assert!(
        rows == 0 || (rows - 1) * stride + width <= len,
        "matrix of {rows} x {width} exceeds {len} values"
    );
}

impl<'a, T> Mat<'a, T> {
    /// The first `rows` rows of `width` values of a slice, `stride` apart.
    pub fn new(data: &'a [T], rows: usize, width: usize, stride: usize) -> Self {
        check_extent(data.len(), rows, width, stride);
        Mat {
            data: data.as_ptr(),
            rows,
            width,
            stride,
            life: PhantomData,
        }
    }

    /// A dense matrix.
    pub fn dense(data: &'a [T], width: usize) -> Self {
        let rows = data.len().checked_div(width).unwrap_or(0);
        Self::new(data, rows, width, width)
    }

    /// A view from a raw pointer.
    ///
    /// # Safety
    /// The elements are readable for `'a` and nothing writes them meanwhile.
    pub unsafe fn from_raw(data: *const T, rows: usize, width: usize, stride: usize) -> Self {
        Mat {
            data,
            rows,
            width,
            stride,
            life: PhantomData,
        }
    }

    /// First element.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.data
    }

    /// One row.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &'a [T] {
        assert!(r < self.rows);
        // SAFETY: the row is inside the view, whose elements are readable for 'a.
        unsafe { std::slice::from_raw_parts(self.data.add(r * self.stride), self.width) }
    }

    /// Rows `first .. first + rows`.
    #[inline(always)]
    pub fn rows_at(&self, first: usize, rows: usize) -> Mat<'a, T> {
        assert!(first + rows <= self.rows);
        // SAFETY: inside the view (the pointer is only used for rows that exist).
        let data = unsafe { self.data.add(first * self.stride) };
        Mat { data, rows, ..*self }
    }

    /// Columns `first .. first + width`.
    #[inline(always)]
    pub fn columns_at(&self, first: usize, width: usize) -> Mat<'a, T> {
        assert!(first + width <= self.width);
        // SAFETY: inside the view.
        let data = unsafe { self.data.add(first) };
        Mat { data, width, ..*self }
    }
}

impl<'a, T> MatMut<'a, T> {
    /// The first `rows` rows of `width` values of a slice, `stride` apart.
    pub fn new(data: &'a mut [T], rows: usize, width: usize, stride: usize) -> Self {
        check_extent(data.len(), rows, width, stride);
        MatMut {
            data: data.as_mut_ptr(),
            rows,
            width,
            stride,
            life: PhantomData,
        }
    }

    /// A dense matrix.
    pub fn dense(data: &'a mut [T], width: usize) -> Self {
        let rows = data.len().checked_div(width).unwrap_or(0);
        Self::new(data, rows, width, width)
    }

    /// A view from a raw pointer.
    ///
    /// # Safety
    /// The elements are writable for `'a`, and nothing else accesses them meanwhile.
    pub unsafe fn from_raw(data: *mut T, rows: usize, width: usize, stride: usize) -> Self {
        MatMut {
            data,
            rows,
            width,
            stride,
            life: PhantomData,
        }
    }

    /// First element.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }

    /// A shorter borrow of the same view.
    #[inline(always)]
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut {
            life: PhantomData,
            ..*self
        }
    }

    /// One row.
    #[inline(always)]
    pub fn row(&mut self, r: usize) -> &mut [T] {
        assert!(r < self.rows);
        // SAFETY: the row is inside the view, to which `self` has exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(r * self.stride), self.width) }
    }

    /// Rows `first .. first + rows`.
    #[inline(always)]
    pub fn rows_at(&mut self, first: usize, rows: usize) -> MatMut<'_, T> {
        assert!(first + rows <= self.rows);
        // SAFETY: inside the view, borrowed exclusively through `self`.
        let data = unsafe { self.data.add(first * self.stride) };
        MatMut {
            data,
            rows,
            life: PhantomData,
            ..*self
        }
    }

    /// Columns `first .. first + width`.
    #[inline(always)]
    pub fn columns_at(&mut self, first: usize, width: usize) -> MatMut<'_, T> {
        assert!(first + width <= self.width);
        // SAFETY: inside the view, borrowed exclusively through `self`.
        let data = unsafe { self.data.add(first) };
        MatMut {
            data,
            width,
            life: PhantomData,
            ..*self
        }
    }

    /// A part by raw coordinates, for work that is split in ways the borrow checker can't follow.
    ///
    /// # Safety
    /// While the result lives, no other access to the same elements happens.
    #[inline(always)]
    pub unsafe fn part(&self, row: usize, rows: usize, column: usize, width: usize) -> MatMut<'a, T> {
        assert!(row + rows <= self.rows && column + width <= self.width);
        // SAFETY: inside the view; exclusiveness is the caller's duty.
        let data = unsafe { self.data.add(row * self.stride + column) };
        MatMut {
            data,
            rows,
            width,
            life: PhantomData,
            ..*self
        }
    }
}

impl<'a, T: Send + Sync> MatMut<'a, T> {
    /// Blocks of rows that start at the given rows and end where the next one starts.
    pub fn par_row_blocks(
        self,
        blocks: &'a [RowBlock],
    ) -> impl IndexedParallelIterator<Item = MatMut<'a, T>> {
        let disjoint = blocks.windows(2).all(|w| w[0].end() <= w[1].first);
        assert!(
            disjoint && blocks.last().is_none_or(|b| b.end() <= self.rows),
            "row blocks overlap"
        );
        // SAFETY: the blocks are disjoint, each is given out once, and `self` is consumed.
        blocks
            .par_iter()
            .map(move |b| unsafe { self.part(b.first, b.rows, 0, self.width) })
    }

    /// All rows, one by one.
    pub fn par_rows(self) -> impl IndexedParallelIterator<Item = &'a mut [T]> {
        let all = self;
        (0..all.rows).into_par_iter().map(move |r| {
            // SAFETY: rows are disjoint, each is given out once, and the whole view is consumed.
            let mut row = unsafe { all.part(r, 1, 0, all.width) };
            // SAFETY: as above; the part's elements are exclusive for 'a.
            unsafe { std::slice::from_raw_parts_mut(row.as_mut_ptr(), row.width) }
        })
    }

    /// Blocks of `width` columns; the last may be narrower.
    pub fn par_column_blocks(self, width: usize) -> impl IndexedParallelIterator<Item = MatMut<'a, T>> {
        let n = self.width.div_ceil(width);
        (0..n).into_par_iter().map(move |i| {
            let first = i * width;
            // SAFETY: the blocks are disjoint, each is given out once, and `self` is consumed.
            unsafe { self.part(0, self.rows, first, width.min(self.width - first)) }
        })
    }
}

/// A block of rows that lies inside one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowBlock {
    /// First row.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// Index of the sequence.
    pub sequence: usize,
}

impl RowBlock {
    /// First row after the block.
    pub fn end(&self) -> usize {
        self.first + self.rows
    }
}

/// Rows per [`RowBlock`]; the unit in which gradients of parameters are summed.
pub const BLOCK_ROWS: usize = 64;

/// All row blocks of a micro-batch: each sequence cut into blocks of at most [`BLOCK_ROWS`].
pub fn row_blocks(sequences: usize, seq_length: usize) -> Vec<RowBlock> {
    (0..sequences)
        .flat_map(|sequence| {
            (0..seq_length).step_by(BLOCK_ROWS).map(move |at| RowBlock {
                first: sequence * seq_length + at,
                rows: BLOCK_ROWS.min(seq_length - at),
                sequence,
            })
        })
        .collect()
}
