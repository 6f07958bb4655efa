//! A plan and the values of its buffers, built together.

use crate::conformance::{Case, Rng};
use crate::ops::Op;
use crate::plan::{BufferId, Columns, Geometry, PlanBuilder, PlanError, Role, Section};

/// Builds a plan and the values of its buffers together.
pub(super) struct Builder {
    pub(super) plan: PlanBuilder,
    pub(super) rng: Rng,
    pub(super) values: Vec<(BufferId, Vec<f64>)>,
    pub(super) ids: Vec<(BufferId, Vec<i32>)>,
    pub(super) outputs: Vec<Columns>,
    pub(super) cotangents: Vec<(Columns, Columns)>,
    pub(super) gradients: Vec<(Columns, Columns)>,
}

impl Builder {
    pub(super) fn new(geometry: Geometry, seed: u64) -> Self {
        Builder {
            plan: PlanBuilder::new(geometry),
            rng: Rng::new(seed),
            values: Vec::new(),
            ids: Vec::new(),
            outputs: Vec::new(),
            cotangents: Vec::new(),
            gradients: Vec::new(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.plan.geometry().rows()
    }

    /// An operand with the given values.
    pub(super) fn given(&mut self, name: &str, shape: &[usize], role: Role, values: Vec<f64>) -> BufferId {
        let id = self.plan.buffer(name, shape, role);
        if !role.persistent() {
            self.plan.input(id);
        }
        self.values.push((id, values));
        id
    }

    /// An operand with normal values.
    pub(super) fn normal(&mut self, name: &str, shape: &[usize], role: Role, scale: f64) -> BufferId {
        let values = self.rng.normals(shape.iter().product(), scale);
        self.given(name, shape, role, values)
    }

    /// Columns of a wider buffer of normal values, see [`neighbours`].
    pub(super) fn normal_columns(&mut self, name: &str, width: usize, scale: f64) -> Columns {
        let rows = self.rows();
        let (before, after) = neighbours(width);
        let buffer = self.normal(name, &[rows, before + width + after], Role::Activation, scale);
        Columns {
            buffer,
            first: before,
            width,
        }
    }

    /// Columns that an operator writes, with neighbours.
    pub(super) fn out_columns(&mut self, name: &str, width: usize) -> Columns {
        let rows = self.rows();
        let (before, after) = neighbours(width);
        let buffer = self
            .plan
            .buffer(name, &[rows, before + width + after], Role::Activation);
        self.plan.keep(buffer);
        let columns = Columns {
            buffer,
            first: before,
            width,
        };
        self.outputs.push(columns);
        columns
    }

    /// A buffer that an operator writes.
    pub(super) fn out(&mut self, name: &str, shape: &[usize], role: Role) -> BufferId {
        let id = self.plan.buffer(name, shape, role);
        self.plan.keep(id);
        let columns = self.plan.columns(id);
        self.outputs.push(columns);
        id
    }

    /// A parameter gradient, holding something already.
    pub(super) fn parameter_gradient(&mut self, name: &str, of: BufferId) -> BufferId {
        let shape = self.plan.get(of).shape.clone();
        let id = self.normal(name, &shape, Role::Gradient, 0.3);
        let (x, dx) = (self.plan.columns(of), self.plan.columns(id));
        self.outputs.push(dx);
        self.gradients.push((x, dx));
        id
    }

    /// Where the gradient of a whole buffer goes.
    pub(super) fn gradient(&mut self, name: &str, of: BufferId, role: Role) -> BufferId {
        let shape = self.plan.get(of).shape.clone();
        let id = self.out(name, &shape, role);
        self.gradients
            .push((self.plan.columns(of), self.plan.columns(id)));
        id
    }

    /// Where the gradient of columns goes.
    pub(super) fn gradient_columns(&mut self, name: &str, of: Columns) -> Columns {
        let to = self.out_columns(name, of.width);
        self.gradients.push((of, to));
        to
    }

    /// The cotangent of a whole buffer, stored as the buffer is.
    pub(super) fn cotangent(&mut self, name: &str, of: BufferId) -> BufferId {
        let (shape, role) = (self.plan.get(of).shape.clone(), self.plan.get(of).role);
        let id = self.normal(name, &shape, role, 1.0);
        self.cotangents
            .push((self.plan.columns(of), self.plan.columns(id)));
        id
    }

    pub(super) fn ids(&mut self, name: &str, values: Vec<i32>) -> BufferId {
        let id = self.plan.buffer(name, &[values.len()], Role::Ids);
        self.ids.push((id, values));
        id
    }

    pub(super) fn forward(&mut self, op: impl Into<Op>) {
        self.plan.push(Section::Forward, op);
    }

    pub(super) fn backward(&mut self, op: impl Into<Op>) {
        self.plan.push(Section::Backward, op);
    }

    pub(super) fn finish(self, name: String) -> Result<Case, PlanError> {
        let Builder {
            plan,
            values,
            ids,
            outputs,
            cotangents,
            gradients,
            ..
        } = self;
        Ok(Case {
            name,
            plan: plan.finish()?,
            values,
            ids,
            outputs,
            cotangents,
            gradients,
        })
    }
}

/// Columns before and after an operand. Widths in multiples of 8 keep the alignment that devices need; others get an odd
/// place.
pub(super) fn neighbours(width: usize) -> (usize, usize) {
    if width.is_multiple_of(8) { (8, 16) } else { (3, 2) }
}

/// A geometry and `cu_seqlens` for documents of these lengths in one sequence.
pub fn documents_of(lengths: &[usize]) -> (Geometry, Vec<i32>) {
    let total = lengths.iter().sum();
    let geometry = Geometry {
        micro_batch_size: 1,
        seq_length: total,
        max_documents: lengths.len(),
    };
    let mut offsets = vec![0];
    for &len in lengths {
        offsets.push(offsets[offsets.len() - 1] + len as i32);
    }
    (geometry, offsets)
}
