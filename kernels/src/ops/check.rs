//! Shape and role checks shared by the operators.

use crate::plan::{BufferId, Columns, Plan, PlanError, Role};

/// A plan together with the operator that is being checked.
pub(super) struct Checker<'a> {
    pub plan: &'a Plan,
    pub op: &'static str,
}

/// Roles of real-valued data that is not a parameter.
pub(super) const DATA: &[Role] = &[Role::Residual, Role::Activation, Role::Statistic];

impl<'a> Checker<'a> {
    pub fn new(plan: &'a Plan, op: &'static str) -> Self {
        Checker { plan, op }
    }

    pub fn rows(&self) -> usize {
        self.plan.geometry.rows()
    }

    pub fn shape(&self, id: BufferId, shape: &[usize]) -> Result<(), PlanError> {
        self.holds(id, self.plan.buffer(id).shape == shape, || format!("{shape:?}"))
    }

    /// First extent `rows`, product of the others `width`.
    pub fn matrix(&self, id: BufferId, rows: usize, width: usize) -> Result<(), PlanError> {
        let b = self.plan.buffer(id);
        let fits = !b.shape.is_empty() && b.shape[0] == rows && b.width() == width;
        self.holds(id, fits, || format!("{rows} rows of {width} values"))
    }

    /// `rows` rows, and the columns lie inside.
    pub fn columns(&self, c: Columns, rows: usize) -> Result<(), PlanError> {
        let b = self.plan.buffer(c.buffer);
        let inside = c.first.checked_add(c.width).is_some_and(|end| end <= b.width());
        self.holds(
            c.buffer,
            !b.shape.is_empty() && b.shape[0] == rows && c.width > 0 && inside,
            || format!("{rows} rows with columns {}..{}", c.first, c.first + c.width),
        )
    }

    pub fn elements(&self, id: BufferId, n: usize) -> Result<(), PlanError> {
        self.holds(id, self.plan.buffer(id).len() == n, || format!("{n} elements"))
    }

    pub fn holds(
        &self,
        id: BufferId,
        condition: bool,
        expected: impl FnOnce() -> String,
    ) -> Result<(), PlanError> {
        if condition {
            return Ok(());
        }
        let b = self.plan.buffer(id);
        Err(PlanError::Shape {
            op: self.op,
            buffer: b.name.clone(),
            found: b.shape.clone(),
            expected: expected(),
        })
    }

    pub fn role(&self, id: BufferId, roles: &[Role], expected: &'static str) -> Result<(), PlanError> {
        let b = self.plan.buffer(id);
        if roles.contains(&b.role) {
            return Ok(());
        }
        Err(PlanError::Role {
            op: self.op,
            buffer: b.name.clone(),
            found: b.role,
            expected,
        })
    }

    pub fn data(&self, ids: &[BufferId]) -> Result<(), PlanError> {
        ids.iter()
            .try_for_each(|&id| self.role(id, DATA, "Residual, Activation or Statistic"))
    }

    pub fn parameter(&self, id: BufferId) -> Result<(), PlanError> {
        self.role(id, &[Role::Parameter], "Parameter")
    }

    pub fn gradient(&self, id: BufferId) -> Result<(), PlanError> {
        self.role(id, &[Role::Gradient], "Gradient")
    }

    pub fn ids(&self, id: BufferId, n: usize) -> Result<(), PlanError> {
        self.role(id, &[Role::Ids], "Ids")?;
        self.elements(id, n)
    }

    /// `cu_seqlens`.
    pub fn documents(&self, id: BufferId) -> Result<(), PlanError> {
        self.ids(id, self.plan.geometry.max_documents + 1)
    }

    pub fn scalar(&self, id: BufferId, n: usize) -> Result<(), PlanError> {
        self.role(id, &[Role::Scalar], "Scalar")?;
        self.elements(id, n)
    }

    pub fn require(&self, condition: bool, reason: impl FnOnce() -> String) -> Result<(), PlanError> {
        if condition {
            Ok(())
        } else {
            Err(PlanError::Unsupported {
                op: self.op,
                reason: reason(),
            })
        }
    }
}
