//! Token embedding.

use super::check::Checker;
use super::operands;
use crate::plan::{BufferId, Plan, PlanError};

/// `out[r] = table[tokens[r]]`.
///
/// Source: `torch.nn.Embedding`. Shapes: tokens `[rows]` (ids, `0 <= token < vocab`; executors refuse others when
/// the ids are written), table `[vocab, hidden]`, out `[rows, hidden]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Token ids.
    pub tokens: BufferId,
    /// Embedding table.
    pub table: BufferId,
    /// Embedded rows.
    pub out: BufferId,
}

/// `dtable[tokens[r]] += dout[r]`, rows in ascending order for each token.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingBackward {
    /// Token ids.
    pub tokens: BufferId,
    /// Gradient of the embedded rows, `[rows, hidden]`.
    pub dout: BufferId,
    /// Gradient of the table, `[vocab, hidden]`, accumulated.
    pub dtable: BufferId,
}

operands!(Embedding { Read: tokens, table; Write: out });
operands!(EmbeddingBackward { Read: tokens, dout; Update: dtable });

impl Embedding {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "Embedding");
        c.ids(self.tokens, c.rows())?;
        c.parameter(self.table)?;
        c.data(&[self.out])?;
        c.matrix(self.out, c.rows(), plan.buffer(self.table).width())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}

impl EmbeddingBackward {
    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let c = Checker::new(plan, "EmbeddingBackward");
        c.ids(self.tokens, c.rows())?;
        c.gradient(self.dtable)?;
        c.data(&[self.dout])?;
        c.matrix(self.dout, c.rows(), plan.buffer(self.dtable).width())
    }

    pub(super) fn flops(&self, _: &Plan) -> u64 {
        0
    }
}
