//! The static plan of a training step: a list of fused operators over buffers whose shapes and roles are fixed at
//! start. A model is a function that emits a plan once; executors ([`crate::cpu`], later CUDA) only walk it. There
//! is no tensor type and no graph at run time: memory planning ([`crate::arena`]), recomputation
//! ([`crate::recompute`]) and profiling are passes over the same list.
//!
//! # Rows, sequences, documents
//! A micro-batch is `micro_batch_size` sequences of `seq_length` tokens, stored as
//! `rows = micro_batch_size * seq_length` rows, one token a row. Operators that mix positions (the short
//! convolution, the delta rule) never cross a *document* boundary. Documents are given by `cu_seqlens`, an id buffer
//! of `max_documents + 1` ascending row offsets that starts with 0 and ends with `rows`; unused entries at the end
//! repeat `rows` (documents of length 0). Without packing the documents are the sequences. A document lies inside
//! one sequence.
//!
//! # Order of sums
//! Gradients of parameters are sums over rows. Executors must form them sequence by sequence in ascending order,
//! adding each sequence's part to the gradient buffer, so that splitting a global batch into micro-batches at
//! sequence boundaries does not change a single bit, and never in an order that depends on the number of threads.

use std::collections::BTreeMap;
use std::fmt;

use crate::ops::{Access, Op};

/// A buffer of a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub(crate) u32);

impl BufferId {
    /// Position of the buffer in [`Plan::buffers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a buffer holds. A precision mode maps roles to storage types; the CPU stores every float role in one type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Integers (`i32`): token ids, labels (`-100` is ignored), document offsets. Written by the host, persistent.
    Ids,
    /// A few `f64` values in every precision mode: learning rate, loss sums, norms. Persistent.
    Scalar,
    /// The residual stream and its gradient.
    Residual,
    /// Branch activations and their gradients.
    Activation,
    /// Master weights. Persistent.
    Parameter,
    /// Parameter gradients, accumulated with `+=`. Persistent.
    Gradient,
    /// Optimizer state, the size of its parameter. Persistent.
    Moment,
    /// Values that need full single precision in every mode: reciprocal norms, log decays, recurrent states.
    Statistic,
}

impl Role {
    /// Whether the contents survive from one step to the next.
    pub fn persistent(self) -> bool {
        matches!(
            self,
            Role::Ids | Role::Scalar | Role::Parameter | Role::Gradient | Role::Moment
        )
    }
}

/// A buffer: row-major, densely stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name for messages and profiles, unique in the plan.
    pub name: String,
    /// Extents, outermost first. A matrix of `rows` rows has them as its first extent.
    pub shape: Vec<usize>,
    /// What it holds.
    pub role: Role,
    /// Kept until the end of the step although its role is not persistent, so that the host can read it.
    pub keep: bool,
    /// Written by the host before the step although its role is not persistent.
    pub input: bool,
}

impl Buffer {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements per row: the product of all extents but the first.
    pub fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// A block of columns of a matrix buffer `[rows, width]`: all rows, columns `first .. first + width`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    /// The matrix.
    pub buffer: BufferId,
    /// First column.
    pub first: usize,
    /// Number of columns.
    pub width: usize,
}

/// The four lists of a plan, and the order in which a training step runs them:
/// `Begin`, then `Forward` and `Backward` for each micro-batch, then `Update`. `Evaluate` stands alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Section {
    /// Once a step: zeroes gradients and loss sums.
    Begin,
    /// Once a micro-batch, up to and including the loss.
    Forward,
    /// Once a micro-batch, after `Forward`.
    Backward,
    /// Once a step: global norm, clipping, AdamW.
    Update,
    /// Forward pass and loss without gradients, for evaluation. Uses the inputs of `Forward`.
    Evaluate,
}

impl Section {
    /// All sections in order of execution.
    pub const ALL: [Section; 5] = [
        Section::Begin,
        Section::Forward,
        Section::Backward,
        Section::Update,
        Section::Evaluate,
    ];
}

/// Fixed sizes of a micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Sequences per micro-batch.
    pub micro_batch_size: usize,
    /// Tokens per sequence.
    pub seq_length: usize,
    /// Most documents in a micro-batch; at least `micro_batch_size`.
    pub max_documents: usize,
}

impl Geometry {
    /// `micro_batch_size` unpacked sequences.
    pub fn unpacked(micro_batch_size: usize, seq_length: usize) -> Self {
        Geometry {
            micro_batch_size,
            seq_length,
            max_documents: micro_batch_size,
        }
    }

    /// Rows of a micro-batch.
    pub fn rows(&self) -> usize {
        self.micro_batch_size * self.seq_length
    }

    /// Most delta-rule chunks (see [`crate::ops::CHUNK`]) a micro-batch can have, whatever its documents:
    /// `floor(rows / chunk) + max_documents`.
    pub fn max_chunks(&self) -> usize {
        self.rows() / crate::ops::CHUNK + self.max_documents
    }

    /// The contents of `cu_seqlens` when every sequence is one document.
    pub fn unpacked_cu_seqlens(&self) -> Vec<i32> {
        (0..=self.max_documents)
            .map(|i| (i.min(self.micro_batch_size) * self.seq_length) as i32)
            .collect()
    }
}

/// A parameter's storage: the fused weight with its gradient and optimizer state, all of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Master weights.
    pub value: BufferId,
    /// Gradient.
    pub gradient: BufferId,
    /// AdamW's first moment.
    pub first_moment: BufferId,
    /// AdamW's second moment.
    pub second_moment: BufferId,
}

/// A named tensor of the checkpoint format: a contiguous range of a fused parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParameterView {
    /// Full name, e.g. `model.layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Shape under that name, e.g. `[256, 1024]`.
    pub shape: Vec<usize>,
    /// Index into [`Plan::parameters`].
    pub parameter: usize,
    /// First element in the parameter's buffers.
    pub offset: usize,
}

impl ParameterView {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the view has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A step as data. Made by [`PlanBuilder::finish`], which checks it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sizes of a micro-batch.
    pub geometry: Geometry,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// Fused parameters in order of creation; the order of the global norm's sum.
    pub parameters: Vec<Parameter>,
    /// Named tensors, in checkpoint order.
    pub views: Vec<ParameterView>,
    sections: [Vec<Op>; 5],
    by_name: BTreeMap<String, BufferId>,
    blocks: Vec<usize>,
    blocks_end: Option<usize>,
}

impl Plan {
    /// The buffer behind an id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The operators of a section, in order.
    pub fn ops(&self, section: Section) -> &[Op] {
        &self.sections[section as usize]
    }

    /// The buffer of this name.
    pub fn find(&self, name: &str) -> Option<BufferId> {
        self.by_name.get(name).copied()
    }

    /// The named tensor.
    pub fn view(&self, name: &str) -> Option<&ParameterView> {
        self.views.iter().find(|v| v.name == name)
    }

    /// Number of trained values.
    pub fn parameter_count(&self) -> usize {
        self.parameters.iter().map(|p| self.buffer(p.value).len()).sum()
    }

    /// Takes the plan apart so that a pass can rewrite it; [`PlanBuilder::finish`] checks it again.
    pub fn into_builder(self) -> PlanBuilder {
        PlanBuilder {
            geometry: self.geometry,
            buffers: self.buffers,
            parameters: self.parameters,
            views: self.views,
            sections: self.sections,
            blocks: self.blocks,
            blocks_end: self.blocks_end,
        }
    }
}

/// Why a plan is not well formed. Always a fault of the emitting code or of a configuration that it did not refuse.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// Two buffers have one name.
    #[error("plan: two buffers are named '{0}'")]
    DuplicateName(String),
    /// An operand's shape does not fit.
    #[error("plan: {op}: '{buffer}' has shape {found:?}, expected {expected}")]
    Shape {
        /// The operator.
        op: &'static str,
        /// The operand's buffer.
        buffer: String,
        /// Its shape.
        found: Vec<usize>,
        /// What the operator needs, in words.
        expected: String,
    },
    /// A size that the operator does not support.
    #[error("plan: {op}: {reason}")]
    Unsupported {
        /// The operator.
        op: &'static str,
        /// Why, with the allowed values.
        reason: String,
    },
    /// An operand has a role the operator can't use.
    #[error("plan: {op}: '{buffer}' has role {found:?}, expected {expected}")]
    Role {
        /// The operator.
        op: &'static str,
        /// The operand's buffer.
        buffer: String,
        /// Its role.
        found: Role,
        /// Roles it may have, in words.
        expected: &'static str,
    },
    /// A buffer is read before anything writes it.
    #[error("plan: {op} reads '{buffer}' before any operator writes it")]
    ReadBeforeWrite {
        /// The operator.
        op: &'static str,
        /// The buffer.
        buffer: String,
    },
    /// A buffer appears twice among the operands and is written.
    #[error("plan: {op} writes '{buffer}', which is also another of its operands")]
    Alias {
        /// The operator.
        op: &'static str,
        /// The buffer.
        buffer: String,
    },
}

/// Builds a [`Plan`].
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    geometry: Geometry,
    pub(crate) buffers: Vec<Buffer>,
    parameters: Vec<Parameter>,
    views: Vec<ParameterView>,
    pub(crate) sections: [Vec<Op>; 5],
    /// Positions in `Forward` where blocks start, and where the last one ends.
    pub(crate) blocks: Vec<usize>,
    pub(crate) blocks_end: Option<usize>,
}

impl PlanBuilder {
    /// An empty plan.
    pub fn new(geometry: Geometry) -> Self {
        PlanBuilder {
            geometry,
            buffers: Vec::new(),
            parameters: Vec::new(),
            views: Vec::new(),
            sections: Default::default(),
            blocks: Vec::new(),
            blocks_end: None,
        }
    }

    /// Sizes of a micro-batch.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Adds a buffer.
    pub fn buffer(&mut self, name: impl Into<String>, shape: &[usize], role: Role) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        self.buffers.push(Buffer {
            name: name.into(),
            shape: shape.to_vec(),
            role,
            keep: false,
            input: false,
        });
        id
    }

    /// Marks a buffer to be kept until the end of the step, so that the host can read it.
    pub fn keep(&mut self, id: BufferId) {
        self.buffers[id.index()].keep = true;
    }

    /// Marks a buffer to be written by the host before a step: recurrent states, or an operator's operands in a test.
    /// It has memory of its own for the whole step.
    pub fn input(&mut self, id: BufferId) {
        self.buffers[id.index()].input = true;
    }

    /// The buffer behind an id.
    pub fn get(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// All columns of a matrix buffer.
    pub fn columns(&self, id: BufferId) -> Columns {
        Columns {
            buffer: id,
            first: 0,
            width: self.get(id).width(),
        }
    }

    /// Adds a fused parameter with its gradient and moments, and the named tensors it consists of, one after the
    /// other from its first element. The shapes of `tensors` add up to `shape`'s number of elements (checked by
    /// [`finish`](Self::finish)).
    pub fn parameter(&mut self, name: &str, shape: &[usize], tensors: &[(String, Vec<usize>)]) -> Parameter {
        let parameter = Parameter {
            value: self.buffer(name, shape, Role::Parameter),
            gradient: self.buffer(format!("{name}.grad"), shape, Role::Gradient),
            first_moment: self.buffer(format!("{name}.exp_avg"), shape, Role::Moment),
            second_moment: self.buffer(format!("{name}.exp_avg_sq"), shape, Role::Moment),
        };
        let index = self.parameters.len();
        self.parameters.push(parameter);
        let mut offset = 0;
        for (name, shape) in tensors {
            let view = ParameterView {
                name: name.clone(),
                shape: shape.clone(),
                parameter: index,
                offset,
            };
            offset += view.len();
            self.views.push(view);
        }
        parameter
    }

    /// Puts the named tensors in this order (checkpoint order); names not listed keep their order at the end.
    pub fn order_views(&mut self, names: &[String]) {
        let rank: BTreeMap<&String, usize> = names.iter().enumerate().map(|(i, n)| (n, i)).collect();
        self.views
            .sort_by_key(|v| rank.get(&v.name).copied().unwrap_or(usize::MAX));
    }

    /// Fused parameters so far.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Named tensors so far.
    pub fn views(&self) -> &[ParameterView] {
        &self.views
    }

    /// Appends an operator to a section.
    pub fn push(&mut self, section: Section, op: impl Into<Op>) {
        self.sections[section as usize].push(op.into());
    }

    /// A block of the model starts with the next operator of `Forward`; the first operator of a block is a norm.
    /// Blocks are the unit of [`crate::recompute::Recompute::Block`].
    pub fn start_block(&mut self) {
        self.blocks.push(self.sections[Section::Forward as usize].len());
    }

    /// The last block ends before the next operator of `Forward`.
    pub fn end_blocks(&mut self) {
        self.blocks_end = Some(self.sections[Section::Forward as usize].len());
    }

    /// Checks every operator and returns the plan.
    ///
    /// # Errors
    /// See [`PlanError`]: names, shapes, roles, reads before writes, and aliasing of written operands.
    pub fn finish(self) -> Result<Plan, PlanError> {
        let mut by_name = BTreeMap::new();
        for (i, buffer) in self.buffers.iter().enumerate() {
            if by_name.insert(buffer.name.clone(), BufferId(i as u32)).is_some() {
                return Err(PlanError::DuplicateName(buffer.name.clone()));
            }
        }
        let plan = Plan {
            geometry: self.geometry,
            buffers: self.buffers,
            parameters: self.parameters,
            views: self.views,
            sections: self.sections,
            by_name,
            blocks: self.blocks,
            blocks_end: self.blocks_end,
        };
        plan.check()?;
        Ok(plan)
    }
}

impl Plan {
    fn check(&self) -> Result<(), PlanError> {
        for (i, parameter) in self.parameters.iter().enumerate() {
            let total: usize = self
                .views
                .iter()
                .filter(|v| v.parameter == i)
                .map(ParameterView::len)
                .sum();
            let buffer = self.buffer(parameter.value);
            if total != buffer.len() {
                return Err(PlanError::Shape {
                    op: "parameter",
                    buffer: buffer.name.clone(),
                    found: buffer.shape.clone(),
                    expected: format!("{total} elements, the sum of its named tensors"),
                });
            }
        }
        // Evaluate follows nothing; the other four follow each other.
        for run in [&Section::ALL[..4], &Section::ALL[4..]] {
            let mut written: Vec<bool> = self
                .buffers
                .iter()
                .map(|b| b.role.persistent() || b.input)
                .collect();
            for op in run.iter().flat_map(|&s| self.ops(s)) {
                op.check(self)?;
                self.check_operands(op, &mut written)?;
            }
        }
        Ok(())
    }

    fn check_operands(&self, op: &Op, written: &mut [bool]) -> Result<(), PlanError> {
        let mut operands = Vec::new();
        op.visit(&mut |id, access| operands.push((id, access)));
        for (i, &(id, access)) in operands.iter().enumerate() {
            let name = || self.buffer(id).name.clone();
            if access != Access::Read && access != Access::WriteColumns {
                let twice = operands
                    .iter()
                    .enumerate()
                    .any(|(j, &(other, _))| j != i && other == id);
                if twice {
                    return Err(PlanError::Alias {
                        op: op.name(),
                        buffer: name(),
                    });
                }
            }
            match access {
                Access::Read | Access::Update if !written[id.index()] => {
                    return Err(PlanError::ReadBeforeWrite {
                        op: op.name(),
                        buffer: name(),
                    });
                }
                Access::Write | Access::WriteColumns => written[id.index()] = true,
                Access::Read | Access::Update | Access::Scratch => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    /// One line per operator: section, operator, operands with their shapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in Section::ALL {
            for op in self.ops(section) {
                write!(f, "{section:?}: {}", op.name())?;
                let mut out = Ok(());
                op.visit(&mut |id, access| {
                    let b = self.buffer(id);
                    if out.is_ok() {
                        out = write!(f, " {}{}{:?}", access.sign(), b.name, b.shape);
                    }
                });
                out?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
