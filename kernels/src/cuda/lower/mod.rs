//! Lowering: each operator of a plan becomes launches and products with all their arguments fixed.

mod activation;
mod conv;
mod delta_fused;
pub(super) mod delta_rule;
mod delta_separate;
mod loss;
mod norm;
mod operands;
mod optimizer;
mod product;

use std::collections::{BTreeMap, BTreeSet};

use super::call::{Address, Arg, Call, Kernel, Launch, Meta, Modules};
use super::error::CudaError;
use super::product::{Product, Products, Type};
use super::source::Source;
use super::{CudaOptions, Precision};
use crate::ops::Op;
use crate::plan::{BufferId, Columns, Plan, Role, Section};

/// Alignment of everything in device memory, bytes.
pub(super) const ALIGN: u64 = 256;

/// Device addresses of what belongs to one `cu_seqlens` buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct DocumentAddresses {
    pub(super) chunks: u64,
    pub(super) docs: u64,
    pub(super) counts: u64,
    pub(super) start: u64,
}

/// Where everything lies.
#[derive(Debug)]
pub(super) struct Places {
    /// Per buffer.
    pub(super) buffers: Vec<u64>,
    /// bf16 copies of weights that products read.
    pub(super) copies: BTreeMap<BufferId, u64>,
    /// Per `cu_seqlens` buffer.
    pub(super) documents: BTreeMap<BufferId, DocumentAddresses>,
    /// Per token buffer: rows sorted by token.
    pub(super) row_orders: BTreeMap<BufferId, u64>,
    /// Per buffer of chunk states, by position: the solutions of the chunk-local systems, kept for the backward pass.
    pub(super) saved: BTreeMap<usize, u64>,
}

impl Places {
    /// The block of tables starts at `base`; so far it started at 0.
    pub(super) fn move_side(&mut self, base: u64) {
        for d in self.documents.values_mut() {
            d.chunks += base;
            d.docs += base;
            d.counts += base;
            d.start += base;
        }
        self.row_orders.values_mut().for_each(|p| *p += base);
        self.copies.values_mut().for_each(|p| *p += base);
    }
}

/// See [`Lowering::overwritten`]. Only of what `Begin` clears: without it the host decides what gradients begin with.
fn overwritten(plan: &Plan) -> BTreeSet<BufferId> {
    let cleared: BTreeSet<BufferId> = plan
        .ops(Section::Begin)
        .iter()
        .filter_map(|op| match op {
            Op::Zero(o) => Some(o.buffers.iter().copied()),
            _ => None,
        })
        .flatten()
        .collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    for op in [Section::Forward, Section::Backward]
        .iter()
        .flat_map(|&s| plan.ops(s))
    {
        let product = match op {
            Op::LinearBackwardWeight(o) => Some(o.dweight),
            Op::LinearCrossEntropy(o) => o.gradients.as_ref().map(|g| g.dweight),
            _ => None,
        };
        if let Some(id) = product.filter(|id| cleared.contains(id) && !seen.contains(id)) {
            found.insert(id);
        }
        op.clone().visit_mut(&mut |&mut id, _| {
            seen.insert(id);
        });
    }
    found
}

/// Makes calls out of operators.
pub(super) struct Lowering<'a> {
    pub(super) plan: &'a Plan,
    pub(super) precision: Precision,
    pub(super) places: &'a Places,
    pub(super) modules: &'a mut Modules,
    pub(super) products: &'a mut Products,
    /// What was lowered so far.
    pub(super) calls: Vec<Call>,
    /// One set of operands per product shape, for the choice of its algorithm.
    pub(super) operands: BTreeMap<usize, Product>,
    /// Most scratch bytes an operator uses.
    pub(super) scratch: u64,
    used: u64,
    /// Gradients that a product of `Forward` or `Backward` writes whole before anything adds to them: not cleared, the
    /// first micro-batch of a step overwrites them.
    overwritten: BTreeSet<BufferId>,
    /// Those that the next product on them overwrites.
    fresh: BTreeSet<BufferId>,
    /// Forward products whose rows do not depend on one another nor on their number.
    pub(super) batch_invariant: bool,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        options: CudaOptions,
        places: &'a Places,
        modules: &'a mut Modules,
        products: &'a mut Products,
    ) -> Self {
        Lowering {
            plan,
            precision: options.precision,
            batch_invariant: options.batch_invariant,
            places,
            modules,
            products,
            calls: Vec::new(),
            operands: BTreeMap::new(),
            scratch: 0,
            used: 0,
            overwritten: overwritten(plan),
            fresh: BTreeSet::new(),
        }
    }

    /// What is lowered from here on is the first micro-batch of a step.
    pub(super) fn begin_step(&mut self) {
        self.fresh.clone_from(&self.overwritten);
    }

    /// Whether the first micro-batch of a step differs from the others.
    pub(super) fn has_first(&self) -> bool {
        !self.overwritten.is_empty()
    }

    /// Appends the calls of one operator.
    pub(super) fn lower(&mut self, op: &Op) -> Result<(), CudaError> {
        self.used = 0;
        operands::check(self.plan, self.precision, op)?;
        match op {
            Op::Zero(o) => self.zero(o),
            Op::AddInto(o) => self.add_into(o),
            Op::Embedding(o) => self.embedding(o),
            Op::EmbeddingBackward(o) => self.embedding_backward(o),
            Op::Linear(o) => self.linear(o),
            Op::LinearBackwardInput(o) => self.linear_backward_input(o),
            Op::LinearBackwardWeight(o) => self.linear_backward_weight(o),
            Op::AddRmsNorm(o) => self.add_rms_norm(o),
            Op::AddRmsNormBackward(o) => self.add_rms_norm_backward(o),
            Op::ShortConv(o) => self.short_conv(o),
            Op::ShortConvBackward(o) => self.short_conv_backward(o),
            Op::Gates(o) => self.gates(o),
            Op::GatesBackward(o) => self.gates_backward(o),
            Op::DeltaRule(o) => self.delta_rule(o),
            Op::DeltaRuleBackward(o) => self.delta_rule_backward(o),
            Op::GatedRmsNorm(o) => self.gated_rms_norm(o),
            Op::GatedRmsNormBackward(o) => self.gated_rms_norm_backward(o),
            Op::SwiGlu(o) => self.swiglu(o),
            Op::SwiGluBackward(o) => self.swiglu_backward(o),
            Op::LinearCrossEntropy(o) => self.linear_cross_entropy(o),
            Op::GlobalNorm(o) => self.global_norm(o),
            Op::AdamW(o) => self.adamw(o),
        }
    }

    fn rows(&self) -> usize {
        self.plan.geometry.rows()
    }

    /// Address of a buffer.
    fn at(&self, id: BufferId) -> Address {
        Address::Device(self.places.buffers[id.index()])
    }

    fn maybe(&self, id: Option<BufferId>) -> Address {
        id.map_or(Address::NULL, |id| self.at(id))
    }

    /// Bytes of an element of a buffer.
    fn element(&self, id: BufferId) -> u64 {
        self.precision.bytes(self.plan.buffer(id).role)
    }

    /// Bytes of an activation.
    fn elem(&self) -> u64 {
        self.precision.bytes(Role::Activation)
    }

    fn elem_type(&self) -> Type {
        if self.elem() == 2 { Type::Bf16 } else { Type::F32 }
    }

    /// First element and row stride (in elements) of a block of columns.
    fn columns(&self, c: Columns) -> (Address, Arg) {
        let at = self.at(c.buffer).plus(c.first as u64 * self.element(c.buffer));
        (at, Arg::I64(self.plan.buffer(c.buffer).width() as i64))
    }

    /// A weight as products read it.
    fn weight(&self, id: BufferId) -> Address {
        self.places
            .copies
            .get(&id)
            .map_or_else(|| self.at(id), |&p| Address::Device(p))
    }

    /// Scratch memory of the operator being lowered.
    fn temporary(&mut self, bytes: u64) -> Address {
        let at = self.used;
        self.used += bytes.next_multiple_of(ALIGN);
        self.scratch = self.scratch.max(self.used);
        Address::Scratch(at)
    }

    fn documents(&self, id: BufferId) -> DocumentAddresses {
        self.places.documents[&id]
    }

    fn meta(&self, id: BufferId, key_heads: usize, value_heads: usize) -> Arg {
        let d = self.documents(id);
        Arg::Meta(Meta {
            chunks: d.chunks,
            docs: d.docs,
            counts: d.counts,
            key_heads: key_heads as i32,
            value_heads: value_heads as i32,
        })
    }

    /// A kernel under this precision's element type and the given sizes.
    fn kernel(
        &mut self,
        source: Source,
        sizes: &[(&str, usize)],
        name: &'static str,
        shared: u64,
    ) -> Result<Kernel, CudaError> {
        let most = self.modules.shared_memory();
        if shared > most {
            return refuse(format!(
                "{name} needs {shared} bytes of shared memory a block, the device gives {most}: use smaller heads"
            ));
        }
        let mut defines = self.precision.defines();
        defines.extend(sizes.iter().map(|(n, v)| format!("{n}={v}")));
        self.modules.kernel(source, &defines, name, shared as u32)
    }

    fn launch(&mut self, kernel: Kernel, grid: (u64, u64, u64), threads: u32, shared: u64, args: Vec<Arg>) {
        self.calls.push(Call::Launch(Launch {
            kernel,
            grid: (grid.0 as u32, grid.1 as u32, grid.2 as u32),
            threads,
            shared: shared as u32,
            table: Vec::new(),
            args,
        }));
    }

    /// `out[c] += Σ_p part[p, c]`.
    fn sum_partials(
        &mut self,
        part: Address,
        parts: u64,
        columns: u64,
        out: Address,
    ) -> Result<(), CudaError> {
        let kernel = self.kernel(Source::Reduce, &[], "sum_partials", 0)?;
        let args = vec![
            Arg::At(part),
            Arg::I32(parts as i32),
            Arg::I32(columns as i32),
            Arg::At(out),
        ];
        self.launch(kernel, (columns.div_ceil(32), 1, 1), 128, 0, args);
        Ok(())
    }
}

/// A refusal that names the allowed values.
fn refuse<T>(why: String) -> Result<T, CudaError> {
    Err(CudaError::Unsupported(why))
}
