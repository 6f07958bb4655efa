//! The memory of a plan on the CPU, and checked views of it for the operators.

use std::cell::{Cell, RefCell};

use super::matrix::{Mat, MatMut};
use super::real::Real;
use crate::arena::{Layout, Storage};
use crate::plan::{BufferId, Columns, Plan, Role};

/// Alignment of buffers in bytes: a cache line.
const ALIGN: usize = 64;

/// A zeroed, cache-line aligned block.
struct Block<T> {
    data: Vec<T>,
    skip: usize,
    len: usize,
}

impl<T: Real> Block<T> {
    fn new(len: usize) -> Self {
        let data = vec![T::ZERO; len + ALIGN / size_of::<T>()];
        let skip = data.as_ptr().align_offset(ALIGN);
        Block { data, skip, len }
    }

    fn ptr(&mut self) -> *mut T {
        self.data[self.skip..][..self.len].as_mut_ptr()
    }
}

/// Values of all buffers.
pub struct Store<T> {
    persistent: Block<T>,
    arena: Block<T>,
    ids: Vec<i32>,
    scalars: Vec<Cell<f64>>,
    /// Offset of each buffer in the block that its role belongs to, in elements.
    offsets: Vec<usize>,
    /// The memory plan.
    pub layout: Layout,
}

impl<T: Real> Store<T> {
    /// Allocates the memory of `plan`, zeroed.
    pub fn new(plan: &Plan) -> Self {
        let element = |role| match role {
            Role::Ids | Role::Scalar => 0,
            _ => size_of::<T>(),
        };
        let layout = Layout::new(
            plan,
            Storage {
                tail: &|_| 0,
                element: &element,
                align: ALIGN,
            },
        );
        let (mut ids, mut scalars) = (0, 0);
        let next = |end: &mut usize, len: usize| {
            *end += len;
            *end - len
        };
        let offsets = plan
            .buffers
            .iter()
            .zip(&layout.offsets)
            .map(|(b, &bytes)| match b.role {
                Role::Ids => next(&mut ids, b.len()),
                Role::Scalar => next(&mut scalars, b.len()),
                _ => bytes / size_of::<T>(),
            })
            .collect();
        Store {
            persistent: Block::new(layout.persistent / size_of::<T>()),
            arena: Block::new(layout.arena / size_of::<T>()),
            ids: vec![0; ids],
            scalars: vec![Cell::new(0.0); scalars],
            offsets,
            layout,
        }
    }

    /// Fills the arena with NaN, so that a test sees reads of memory that nothing wrote.
    pub fn poison(&mut self) {
        self.arena.data.fill(T::of(f64::NAN));
    }

    /// Ids of a buffer.
    pub fn ids_mut(&mut self, plan: &Plan, id: BufferId) -> &mut [i32] {
        &mut self.ids[self.offsets[id.index()]..][..plan.buffer(id).len()]
    }

    /// Values of a buffer.
    pub fn values_mut(&mut self, plan: &Plan, id: BufferId) -> &mut [T] {
        let b = plan.buffer(id);
        assert!(!matches!(b.role, Role::Ids | Role::Scalar));
        let block = if b.role.persistent() {
            &mut self.persistent
        } else {
            &mut self.arena
        };
        let at = block.skip + self.offsets[id.index()];
        &mut block.data[at..][..b.len()]
    }

    /// Scalars of a buffer.
    pub fn scalars(&self, plan: &Plan, id: BufferId) -> &[Cell<f64>] {
        &self.scalars[self.offsets[id.index()]..][..plan.buffer(id).len()]
    }

    /// Views for one operator.
    pub fn scope<'a>(&'a mut self, plan: &'a Plan) -> Scope<'a, T> {
        Scope {
            plan,
            persistent: self.persistent.ptr(),
            arena: self.arena.ptr(),
            ids: &self.ids,
            scalars: &self.scalars,
            offsets: &self.offsets,
            borrows: RefCell::new(Borrows {
                list: [Borrow::default(); MAX_BORROWS],
                len: 0,
            }),
        }
    }
}

/// Most views of one operator.
const MAX_BORROWS: usize = 24;

#[derive(Clone, Copy, Default)]
struct Borrow {
    start: usize,
    end: usize,
    columns: Option<(BufferId, usize, usize)>,
    written: bool,
}

impl Borrow {
    fn collides(&self, other: &Borrow) -> bool {
        if !(self.written || other.written) || self.end <= other.start || other.end <= self.start {
            return false;
        }
        match (self.columns, other.columns) {
            (Some((a, a0, a1)), Some((b, b0, b1))) if a == b => a0 < b1 && b0 < a1,
            _ => true,
        }
    }
}

struct Borrows {
    list: [Borrow; MAX_BORROWS],
    len: usize,
}

/// Hands out views of buffers while one operator runs. Every view is recorded; a written view that shares an element
/// with another view is a bug and panics, so that the views are sound whatever the operator asks for.
pub struct Scope<'a, T> {
    plan: &'a Plan,
    persistent: *mut T,
    arena: *mut T,
    ids: &'a [i32],
    scalars: &'a [Cell<f64>],
    offsets: &'a [usize],
    borrows: RefCell<Borrows>,
}

impl<'a, T: Real> Scope<'a, T> {
    /// The plan.
    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    fn borrow(&self, columns: Columns, written: bool) -> (*mut T, usize, usize) {
        let b = self.plan.buffer(columns.buffer);
        assert!(
            !matches!(b.role, Role::Ids | Role::Scalar),
            "'{}' does not hold reals",
            b.name
        );
        let base = if b.role.persistent() {
            self.persistent
        } else {
            self.arena
        };
        // SAFETY: the memory plan puts the buffer inside its block.
        let data = unsafe { base.add(self.offsets[columns.buffer.index()]) };
        let start = data as usize;
        let new = Borrow {
            start,
            end: start + b.len() * size_of::<T>(),
            columns: Some((columns.buffer, columns.first, columns.first + columns.width)),
            written,
        };
        let mut borrows = self.borrows.borrow_mut();
        let len = borrows.len;
        if let Some(i) = borrows.list[..len].iter().position(|old| old.collides(&new)) {
            let other = borrows.list[i]
                .columns
                .map_or("", |(id, ..)| &self.plan.buffer(id).name);
            panic!(
                "operator uses '{}' while '{other}' is in use at the same place",
                b.name
            );
        }
        assert!(
            len < MAX_BORROWS,
            "an operator holds more than {MAX_BORROWS} views"
        );
        borrows.list[len] = new;
        borrows.len += 1;
        let rows = if b.shape.is_empty() { 0 } else { b.shape[0] };
        // SAFETY: the columns lie inside the buffer (checked when the plan was made).
        (unsafe { data.add(columns.first) }, rows, b.width())
    }

    /// Forgets all views; the borrow checker makes sure that none is left.
    pub fn release(&mut self) {
        self.borrows.get_mut().len = 0;
    }

    /// Columns of a matrix buffer, to read.
    pub fn columns(&self, c: Columns) -> Mat<'_, T> {
        let (data, rows, stride) = self.borrow(c, false);
        // SAFETY: inside the buffer; no view handed out by this scope writes there.
        unsafe { Mat::from_raw(data, rows, c.width, stride) }
    }

    /// Columns of a matrix buffer, to write.
    pub fn columns_mut(&self, c: Columns) -> MatMut<'_, T> {
        let (data, rows, stride) = self.borrow(c, true);
        // SAFETY: inside the buffer; no other view handed out by this scope overlaps.
        unsafe { MatMut::from_raw(data, rows, c.width, stride) }
    }

    fn all(&self, id: BufferId) -> Columns {
        Columns {
            buffer: id,
            first: 0,
            width: self.plan.buffer(id).width(),
        }
    }

    /// A buffer as a matrix of its first extent by the rest, to read.
    pub fn mat(&self, id: BufferId) -> Mat<'_, T> {
        self.columns(self.all(id))
    }

    /// A buffer as a matrix of its first extent by the rest, to write.
    pub fn mat_mut(&self, id: BufferId) -> MatMut<'_, T> {
        self.columns_mut(self.all(id))
    }

    /// A buffer as a list, to read.
    pub fn slice(&self, id: BufferId) -> &[T] {
        let (data, ..) = self.borrow(self.all(id), false);
        // SAFETY: the whole buffer; no view handed out by this scope writes there.
        unsafe { std::slice::from_raw_parts(data, self.plan.buffer(id).len()) }
    }

    /// A buffer as a list, to write.
    #[allow(clippy::mut_from_ref)]
    pub fn slice_mut(&self, id: BufferId) -> &mut [T] {
        let (data, ..) = self.borrow(self.all(id), true);
        // SAFETY: the whole buffer; no other view handed out by this scope overlaps.
        unsafe { std::slice::from_raw_parts_mut(data, self.plan.buffer(id).len()) }
    }

    /// Ids.
    pub fn ids(&self, id: BufferId) -> &'a [i32] {
        &self.ids[self.offsets[id.index()]..][..self.plan.buffer(id).len()]
    }

    /// Scalars.
    pub fn scalars(&self, id: BufferId) -> &'a [Cell<f64>] {
        &self.scalars[self.offsets[id.index()]..][..self.plan.buffer(id).len()]
    }
}
