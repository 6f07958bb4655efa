//! Walks a plan on the CPU.

use std::time::Instant;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::documents::Documents;
use super::real::{Real, find_isa};
use super::store::{Scope, Store};
use super::work::{Need, Work};
use super::{cross_entropy, delta_rule, elementwise, linear, norm, optimizer, short_conv};
use crate::backend::{ExecError, Executor, Memory, OpTime};
use crate::ops::{IGNORE_INDEX, Op};
use crate::plan::{BufferId, Plan, Role, Section};

/// What an id buffer is used for, and with it which values are valid.
#[derive(Clone, Debug)]
enum Ids {
    Tokens { limit: usize },
    Labels { limit: usize },
    Documents(Box<Documents>),
}

/// The float type of a CPU executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Float {
    /// Training.
    F32,
    /// The oracle.
    F64,
}

/// Makes a CPU executor with `threads` workers (0: one per core) and the memory of `plan`.
///
/// Document offsets start as unpacked sequences, labels as all ignored, everything else as zeros.
///
/// # Errors
/// [`ExecError::Unsupported`] if the plan uses an id buffer in two ways, [`ExecError::Device`] if the operating
/// system refuses to start threads.
pub fn executor(plan: Plan, float: Float, threads: usize) -> Result<Box<dyn Executor>, ExecError> {
    if find_isa().is_none() {
        let needs = "the CPU backend needs a processor with AVX2 and FMA (any x86-64 since about 2015)";
        return Err(ExecError::Unsupported(needs.to_owned()));
    }
    // Not generic, so that the operators are compiled here once and not again in every crate that uses them.
    Ok(match float {
        Float::F32 => Box::new(CpuExecutor::<f32>::new(plan, threads)?),
        Float::F64 => Box::new(CpuExecutor::<f64>::new(plan, threads)?),
    })
}

/// See the [module](super).
struct CpuExecutor<T> {
    plan: Plan,
    store: Store<T>,
    work: Work<T>,
    /// Use of each buffer that holds ids.
    ids: Vec<Option<Ids>>,
    pool: ThreadPool,
}

impl<T: Real> CpuExecutor<T> {
    fn new(plan: Plan, threads: usize) -> Result<Self, ExecError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("ceteris-cpu-{i}"))
            .build()
            .map_err(|e| ExecError::Device(format!("can't start worker threads: {e}")))?;
        let mut ids = vec![None; plan.buffers.len()];
        for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
            note_ids(op, &plan, &mut ids)?;
        }
        let blocks =
            super::matrix::row_blocks(plan.geometry.micro_batch_size, plan.geometry.seq_length).len();
        let need = Section::ALL
            .iter()
            .flat_map(|&s| plan.ops(s))
            .fold(Need::default(), |need, op| {
                need.max(op_need::<T>(op, &plan, blocks))
            });
        let largest = plan
            .buffers
            .iter()
            .filter(|b| b.role == Role::Gradient)
            .map(|b| b.len())
            .max();
        let work = Work::new(
            pool.current_num_threads(),
            need,
            plan.geometry,
            largest.unwrap_or(0),
        );
        let mut store = Store::new(&plan);
        for (i, kind) in ids.iter().enumerate() {
            match kind {
                Some(Ids::Labels { .. }) => store.ids_mut(&plan, BufferId(i as u32)).fill(IGNORE_INDEX),
                Some(Ids::Documents(_)) => store
                    .ids_mut(&plan, BufferId(i as u32))
                    .copy_from_slice(&plan.geometry.unpacked_cu_seqlens()),
                _ => {}
            }
        }
        Ok(CpuExecutor {
            plan,
            store,
            work,
            ids,
            pool,
        })
    }

    fn run_op(plan: &Plan, store: &mut Store<T>, work: &Work<T>, ids: &[Option<Ids>], op: &Op) {
        let mut scope = store.scope(plan);
        let s: &mut Scope<T> = &mut scope;
        let documents = |id: BufferId| match &ids[id.index()] {
            Some(Ids::Documents(d)) => &**d,
            _ => unreachable!("noted when the executor was made"),
        };
        match op {
            Op::Zero(op) => elementwise::zero(op, s),
            Op::AddInto(op) => elementwise::add_into(op, s),
            Op::Embedding(op) => elementwise::embedding(op, s, work),
            Op::EmbeddingBackward(op) => elementwise::embedding_backward(op, s),
            Op::Linear(op) => linear::linear(op, s, work),
            Op::LinearBackwardInput(op) => linear::linear_backward_input(op, s, work),
            Op::LinearBackwardWeight(op) => linear::linear_backward_weight(op, s, work),
            Op::AddRmsNorm(op) => norm::add_rms_norm(op, s, work),
            Op::AddRmsNormBackward(op) => norm::add_rms_norm_backward(op, s, work),
            Op::ShortConv(op) => short_conv::short_conv(op, s, work, &documents(op.documents).position),
            Op::ShortConvBackward(op) => {
                short_conv::short_conv_backward(op, s, work, &documents(op.documents).position);
            }
            Op::Gates(op) => elementwise::gates(op, s, work),
            Op::GatesBackward(op) => elementwise::gates_backward(op, s, work),
            Op::DeltaRule(op) => delta_rule::delta_rule(op, s, work, documents(op.documents)),
            Op::DeltaRuleBackward(op) => {
                delta_rule::delta_rule_backward(op, s, work, documents(op.documents));
            }
            Op::GatedRmsNorm(op) => norm::gated_rms_norm(op, s, work),
            Op::GatedRmsNormBackward(op) => norm::gated_rms_norm_backward(op, s, work),
            Op::SwiGlu(op) => elementwise::swiglu(op, s, work),
            Op::SwiGluBackward(op) => elementwise::swiglu_backward(op, s, work),
            Op::LinearCrossEntropy(op) => cross_entropy::linear_cross_entropy(op, s, work),
            Op::GlobalNorm(op) => optimizer::global_norm(op, s, work),
            Op::AdamW(op) => optimizer::adamw(op, s),
        }
    }

    fn range(&self, buffer: BufferId, offset: usize, count: usize) -> Result<(), ExecError> {
        let b = self.plan.buffer(buffer);
        if offset.checked_add(count).is_some_and(|end| end <= b.len()) {
            return Ok(());
        }
        Err(ExecError::Range {
            buffer: b.name.clone(),
            len: b.len(),
            offset,
            count,
        })
    }

    fn readable(&self, buffer: BufferId) -> Result<(), ExecError> {
        let b = self.plan.buffer(buffer);
        match b.role {
            Role::Ids => Err(ExecError::Kind {
                buffer: b.name.clone(),
                holds: "ids",
                moves: "reals",
            }),
            role if role.persistent() || b.keep || b.input => Ok(()),
            _ => Err(ExecError::NotKept {
                buffer: b.name.clone(),
            }),
        }
    }

    fn write(
        &mut self,
        buffer: BufferId,
        offset: usize,
        values: impl ExactSizeIterator<Item = f64>,
    ) -> Result<(), ExecError> {
        self.range(buffer, offset, values.len())?;
        let b = self.plan.buffer(buffer);
        match b.role {
            Role::Ids => {
                return Err(ExecError::Kind {
                    buffer: b.name.clone(),
                    holds: "ids",
                    moves: "reals",
                });
            }
            Role::Scalar => {
                let to = &self.store.scalars(&self.plan, buffer)[offset..];
                to.iter().zip(values).for_each(|(to, x)| to.set(x));
            }
            _ => {
                let to = &mut self.store.values_mut(&self.plan, buffer)[offset..];
                to.iter_mut().zip(values).for_each(|(to, x)| *to = T::of(x));
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        buffer: BufferId,
        offset: usize,
        count: usize,
        mut put: impl FnMut(usize, f64),
    ) -> Result<(), ExecError> {
        self.range(buffer, offset, count)?;
        self.readable(buffer)?;
        if self.plan.buffer(buffer).role == Role::Scalar {
            let from = &self.store.scalars(&self.plan, buffer)[offset..][..count];
            from.iter().enumerate().for_each(|(i, x)| put(i, x.get()));
        } else {
            let from = &self.store.values_mut(&self.plan, buffer)[offset..][..count];
            from.iter().enumerate().for_each(|(i, x)| put(i, x.f64()));
        }
        Ok(())
    }
}

/// Working memory of one operator.
fn op_need<T: Real>(op: &Op, plan: &Plan, blocks: usize) -> Need {
    match op {
        Op::Linear(op) => linear::linear_need::<T>(op),
        Op::LinearBackwardInput(op) => linear::linear_backward_input_need::<T>(op),
        Op::LinearBackwardWeight(op) => linear::linear_backward_weight_need::<T>(op, plan),
        Op::AddRmsNormBackward(op) => norm::add_rms_norm_backward_need(op, plan, blocks),
        Op::GatedRmsNormBackward(op) => norm::gated_rms_norm_backward_need(op, plan, blocks),
        Op::ShortConv(op) => short_conv::short_conv_need(op, plan),
        Op::ShortConvBackward(op) => short_conv::short_conv_backward_need(op, plan, blocks),
        Op::GatesBackward(op) => elementwise::gates_backward_need(op, plan, blocks),
        Op::DeltaRule(op) => delta_rule::need(&op.shape),
        Op::DeltaRuleBackward(op) => delta_rule::backward_need(&op.shape),
        Op::LinearCrossEntropy(op) => cross_entropy::need::<T>(op, plan),
        Op::Zero(_)
        | Op::AddInto(_)
        | Op::Embedding(_)
        | Op::EmbeddingBackward(_)
        | Op::AddRmsNorm(_)
        | Op::Gates(_)
        | Op::GatedRmsNorm(_)
        | Op::SwiGlu(_)
        | Op::SwiGluBackward(_)
        | Op::GlobalNorm(_)
        | Op::AdamW(_) => Need::default(),
    }
}

/// Records how an operator uses id buffers.
fn note_ids(op: &Op, plan: &Plan, ids: &mut [Option<Ids>]) -> Result<(), ExecError> {
    let (buffer, new) = match op {
        Op::Embedding(op) => (
            op.tokens,
            Ids::Tokens {
                limit: plan.buffer(op.table).shape[0],
            },
        ),
        Op::EmbeddingBackward(op) => (
            op.tokens,
            Ids::Tokens {
                limit: plan.buffer(op.dtable).shape[0],
            },
        ),
        Op::LinearCrossEntropy(op) => (
            op.labels,
            Ids::Labels {
                limit: plan.buffer(op.weight).shape[0],
            },
        ),
        Op::ShortConv(ops_) => (ops_.documents, documents(plan)),
        Op::ShortConvBackward(op) => (op.documents, documents(plan)),
        Op::DeltaRule(op) => (op.documents, documents(plan)),
        Op::DeltaRuleBackward(op) => (op.documents, documents(plan)),
        _ => return Ok(()),
    };
    let slot = &mut ids[buffer.index()];
    let conflict = match (&*slot, &new) {
        (None, _) | (Some(Ids::Documents(_)), Ids::Documents(_)) => false,
        (Some(Ids::Tokens { limit: a }), Ids::Tokens { limit: b })
        | (Some(Ids::Labels { limit: a }), Ids::Labels { limit: b }) => a != b,
        _ => true,
    };
    if conflict {
        let name = &plan.buffer(buffer).name;
        return Err(ExecError::Unsupported(format!(
            "plan: '{name}' is used as two kinds of ids"
        )));
    }
    if slot.is_none() {
        *slot = Some(new);
    }
    Ok(())
}

fn documents(plan: &Plan) -> Ids {
    Ids::Documents(Box::new(Documents::unpacked(plan.geometry)))
}

fn check_ids(buffer: &str, values: &[i32], limit: usize, ignore: Option<i32>) -> Result<(), ExecError> {
    let bad = values
        .iter()
        .position(|&v| Some(v) != ignore && !(v >= 0 && (v as usize) < limit));
    match bad {
        None => Ok(()),
        Some(position) => Err(ExecError::Id {
            buffer: buffer.to_owned(),
            position,
            value: values[position],
            limit,
        }),
    }
}

impl<T: Real> Executor for CpuExecutor<T> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn write_ids(&mut self, buffer: BufferId, values: &[i32]) -> Result<(), ExecError> {
        let b = self.plan.buffer(buffer);
        if b.role != Role::Ids {
            return Err(ExecError::Kind {
                buffer: b.name.clone(),
                holds: "reals",
                moves: "ids",
            });
        }
        if values.len() != b.len() {
            let (buffer, len, count) = (b.name.clone(), b.len(), values.len());
            return Err(ExecError::Range {
                buffer,
                len,
                offset: 0,
                count,
            });
        }
        match &mut self.ids[buffer.index()] {
            Some(Ids::Tokens { limit }) => check_ids(&b.name, values, *limit, None)?,
            Some(Ids::Labels { limit }) => check_ids(&b.name, values, *limit, Some(IGNORE_INDEX))?,
            Some(Ids::Documents(documents)) => {
                Documents::check(&b.name, values, self.plan.geometry)?;
                documents.fill(values);
            }
            None => {}
        }
        self.store.ids_mut(&self.plan, buffer).copy_from_slice(values);
        Ok(())
    }

    fn write_f32(&mut self, buffer: BufferId, offset: usize, values: &[f32]) -> Result<(), ExecError> {
        self.write(buffer, offset, values.iter().map(|&x| f64::from(x)))
    }

    fn write_f64(&mut self, buffer: BufferId, offset: usize, values: &[f64]) -> Result<(), ExecError> {
        self.write(buffer, offset, values.iter().copied())
    }

    fn read_f32(&mut self, buffer: BufferId, offset: usize, out: &mut [f32]) -> Result<(), ExecError> {
        self.read(buffer, offset, out.len(), |i, x| out[i] = x as f32)
    }

    fn read_f64(&mut self, buffer: BufferId, offset: usize, out: &mut [f64]) -> Result<(), ExecError> {
        self.read(buffer, offset, out.len(), |i, x| out[i] = x)
    }

    fn run(&mut self, section: Section) -> Result<(), ExecError> {
        let CpuExecutor {
            plan,
            store,
            work,
            ids,
            pool,
        } = self;
        // The scope's cells stay on one worker thread; only slices reach the others.
        pool.install(|| {
            plan.ops(section)
                .iter()
                .for_each(|op| Self::run_op(plan, store, work, ids, op))
        });
        Ok(())
    }

    fn profile(&mut self, section: Section) -> Result<Vec<OpTime>, ExecError> {
        let CpuExecutor {
            plan,
            store,
            work,
            ids,
            pool,
        } = self;
        Ok(pool.install(|| {
            let time = |(index, op)| {
                let start = Instant::now();
                Self::run_op(plan, store, work, ids, op);
                OpTime {
                    section,
                    index,
                    time: start.elapsed(),
                }
            };
            plan.ops(section).iter().enumerate().map(time).collect()
        }))
    }

    fn memory(&self) -> Memory {
        let layout = &self.store.layout;
        Memory {
            persistent: layout.persistent,
            arena: layout.arena,
            arena_without_reuse: layout.arena_without_reuse,
        }
    }

    fn poison(&mut self) {
        self.store.poison();
    }
}
