//! Where the time of a step goes: every operator of a run's plan on its device, beside what the device can do.
//!
//! Ceilings are measured in the same call: memory by adding one large buffer to another, products by one large square
//! product. Bytes are the least an operator has to move (each operand once), so shares of the memory ceiling above 100 %
//! mean that the cache served something.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use ceteris_kernels::backend::{ExecError, Executor};
use ceteris_kernels::conformance::Rng;
use ceteris_kernels::ops::{AddInto, HYPER_LEARNING_RATE, HYPER_STEP, Linear, Op};
use ceteris_kernels::plan::{Columns, Geometry, Plan, PlanBuilder, Role, Section};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use super::engine::Engine;
use super::made_up::next_token_ids;
use super::{RunError, write_atomic};
use crate::config::{Precision, RunConfig};
use crate::device::{Compute, Target};

/// Steps before the timed ones: the first runs call by call, the second is captured.
const WARM_UP: usize = 3;

/// Time, bytes and operations of the operators of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Section and operator; products with their weight's shape.
    pub operator: String,
    /// Milliseconds of a step.
    pub ms: f64,
    /// Share of the operators' time.
    pub share: f64,
    /// Operators of that name.
    pub calls: usize,
    /// Least bytes moved, in 10^12 per second.
    pub tb_per_s: f64,
    /// The same over the memory ceiling.
    pub of_memory: f64,
    /// Operations of matrix products, in 10^12 per second.
    pub tflop_per_s: f64,
    /// The same over the product ceiling.
    pub of_products: f64,
}

/// What a profile shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Device and arithmetic.
    pub device: String,
    /// Rows and tokens of a micro-batch.
    pub micro_batch: (usize, usize),
    /// Bytes held: weights and optimizer, step.
    pub memory: (usize, usize),
    /// Milliseconds of a step of one micro-batch: median, least, most.
    pub step_ms: (f64, f64, f64),
    /// Tokens per second at the median.
    pub tokens_per_s: f64,
    /// Median milliseconds of the same step without `train.batch_invariant`, where it is on and costs anything.
    pub step_ms_without_batch_invariant: Option<f64>,
    /// Memory ceiling, 10^12 bytes per second.
    pub memory_ceiling: f64,
    /// Product ceiling, 10^12 operations per second.
    pub product_ceiling: f64,
    /// Operators, most expensive first.
    pub operators: Vec<Line>,
}

impl Report {
    /// The table.
    pub fn text(&self) -> String {
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let mut out = format!(
            "{}: micro-batch {} x {}, {:.2} GiB for weights and optimizer, {:.2} GiB for the step\n\
             step {:.2} ms ({:.2}..{:.2}), {:.0} tokens/s; ceilings {:.2} TB/s, {:.1} TFLOP/s\n",
            self.device,
            self.micro_batch.0,
            self.micro_batch.1,
            gib(self.memory.0),
            gib(self.memory.1),
            self.step_ms.0,
            self.step_ms.1,
            self.step_ms.2,
            self.tokens_per_s,
            self.memory_ceiling,
            self.product_ceiling,
        );
        if let Some(without) = self.step_ms_without_batch_invariant {
            out.push_str(&format!(
                "batch_invariant: {:+.2} ms a step, {:+.1}% of the {without:.2} ms without it\n",
                self.step_ms.0 - without,
                100.0 * (self.step_ms.0 / without - 1.0)
            ));
        }
        let wide = self
            .operators
            .iter()
            .map(|l| l.operator.len())
            .max()
            .unwrap_or(0)
            .max(8);
        out.push_str(&format!(
            "{:wide$} {:>9} {:>6} {:>6} {:>9} {:>7} {:>7} {:>8} {:>7}\n",
            "operator", "ms", "share", "calls", "ms each", "TB/s", "of mem", "TFLOP/s", "of prod"
        ));
        for l in &self.operators {
            out.push_str(&format!(
                "{:wide$} {:9.3} {:5.1}% {:6} {:9.4} {:7.3} {:6.0}% {:8.2} {:6.0}%\n",
                l.operator,
                l.ms,
                100.0 * l.share,
                l.calls,
                l.ms / l.calls as f64,
                l.tb_per_s,
                100.0 * l.of_memory,
                l.tflop_per_s,
                100.0 * l.of_products
            ));
        }
        out
    }
}

/// Profiles one micro-batch step of a run's plan on random tokens, with the run's initial weights. `trace` is where a
/// trace for `chrome://tracing` goes; `progress` hears what is going on.
///
/// # Errors
/// [`RunError`].
pub fn profile(
    config: &RunConfig,
    steps: usize,
    trace: Option<&Path>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, RunError> {
    progress("planning, compiling, choosing products");
    let mut engine = Engine::build(config)?;
    progress("initial weights");
    engine.initialise(config)?;
    let (device, memory, element) = (
        engine.device().to_owned(),
        engine.memory(),
        engine.element_bytes(),
    );
    let target = engine.target();
    let executor = engine.executor();
    let plan = executor.plan().clone();
    progress("steps");
    let times = steps_of(executor, &plan, config.model.vocab_size, steps.max(1)).map_err(exec)?;
    progress("operators");
    let (operators, events) = operators(executor, &plan, element).map_err(exec)?;
    if let Some(path) = trace {
        let text = json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string();
        write_atomic(path, &text)?;
    }
    drop(engine);
    let mut without = None;
    if config.train.batch_invariant && matches!(target, Target::Cuda(_)) {
        progress("steps without batch_invariant");
        let mut plain = config.clone();
        plain.train.batch_invariant = false;
        let mut engine = Engine::build(&plain)?;
        engine.initialise(&plain)?;
        let executor = engine.executor();
        let times = steps_of(executor, &plan, config.model.vocab_size, steps.max(1)).map_err(exec)?;
        without = Some(times[times.len() / 2]);
    }
    progress("ceilings");
    let (memory_ceiling, product_ceiling) = ceilings(config, target)?;
    let g = plan.geometry;
    let median = times[times.len() / 2];
    let total: f64 = operators.values().map(|o| o.ms).sum();
    let mut lines: Vec<Line> = operators
        .into_iter()
        .map(|(operator, o)| {
            let (tb, tflop) = (o.bytes as f64 / o.ms / 1e9, o.flops as f64 / o.ms / 1e9);
            Line {
                operator,
                ms: o.ms,
                share: o.ms / total,
                calls: o.calls,
                tb_per_s: tb,
                of_memory: tb / memory_ceiling,
                tflop_per_s: tflop,
                of_products: tflop / product_ceiling,
            }
        })
        .collect();
    lines.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(Report {
        device,
        micro_batch: (g.micro_batch_size, g.seq_length),
        memory: (memory.persistent, memory.arena),
        step_ms: (median, times[0], times[times.len() - 1]),
        tokens_per_s: g.rows() as f64 / median * 1e3,
        step_ms_without_batch_invariant: without,
        memory_ceiling,
        product_ceiling,
        operators: lines,
    })
}

fn exec(e: ExecError) -> RunError {
    RunError::Engine(e.into())
}

/// Milliseconds of whole steps, sorted: inputs written, every section, the loss read.
fn steps_of(
    executor: &mut dyn Executor,
    plan: &Plan,
    vocab: usize,
    steps: usize,
) -> Result<Vec<f64>, ExecError> {
    let find = |name: &str| {
        plan.find(name)
            .ok_or_else(|| ExecError::Unsupported(format!("no buffer '{name}'")))
    };
    let (tokens, labels, hyper) = (find("tokens")?, find("labels")?, find("hyper")?);
    let (scale, loss) = (find("grad_scale")?, find("loss_sum")?);
    let g = plan.geometry;
    let mut rng = Rng::new(1);
    executor.write_f64(scale, 0, &[1.0 / g.rows() as f64])?;
    executor.write_f64(hyper, HYPER_LEARNING_RATE, &[1e-5])?;
    let mut times = Vec::new();
    for step in 0..WARM_UP + steps {
        let (ids, next) = next_token_ids(&mut rng, g.rows(), vocab);
        let start = Instant::now();
        executor.write_ids(tokens, &ids)?;
        executor.write_ids(labels, &next)?;
        executor.write_f64(hyper, HYPER_STEP, &[step as f64 + 1.0])?;
        for section in &Section::ALL[..4] {
            executor.run(*section)?;
        }
        executor.read_f64(loss, 0, &mut [0.0])?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.drain(..WARM_UP);
    times.sort_by(f64::total_cmp);
    Ok(times)
}

#[derive(Default)]
struct Sum {
    ms: f64,
    calls: usize,
    bytes: u64,
    flops: u64,
}

type Events = Vec<serde_json::Value>;

fn operators(
    executor: &mut dyn Executor,
    plan: &Plan,
    element: impl Fn(Role) -> usize,
) -> Result<(BTreeMap<String, Sum>, Events), ExecError> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    let (mut events, mut at) = (Vec::new(), 0.0);
    for section in &Section::ALL[..4] {
        // Once to warm up: an operator's first run after other work is not what a step sees.
        executor.profile(*section)?;
        for time in executor.profile(*section)? {
            let op = &plan.ops(*section)[time.index];
            let name = format!("{section:?} {}", label(op, plan));
            let ms = time.time.as_secs_f64() * 1e3;
            events.push(json!({
                "name": name, "cat": format!("{section:?}"), "ph": "X", "pid": 0, "tid": 0,
                "ts": at * 1e3, "dur": ms * 1e3, "args": {"bytes": op.bytes(plan, &element), "flop": op.flops(plan)},
            }));
            at += ms;
            let sum = sums.entry(name).or_default();
            sum.ms += ms;
            sum.calls += 1;
            sum.bytes += op.bytes(plan, &element);
            sum.flops += op.flops(plan);
        }
    }
    Ok((sums, events))
}

/// An operator's name; a product's with its weight's shape.
fn label(op: &Op, plan: &Plan) -> String {
    let weight = match op {
        Op::Linear(o) => Some(o.weight),
        Op::LinearBackwardInput(o) => Some(o.weight),
        Op::LinearBackwardWeight(o) => Some(o.dweight),
        _ => None,
    };
    match weight {
        Some(id) => format!("{} {:?}", op.name(), plan.buffer(id).shape),
        None => op.name().to_owned(),
    }
}

/// What the device can do: 10^12 bytes per second, 10^12 operations of a product per second.
fn ceilings(config: &RunConfig, device: Target) -> Result<(f64, f64), RunError> {
    let cuda = matches!(device, Target::Cuda(_));
    let (side, elements) = if cuda { (8192, 1 << 28) } else { (768, 1 << 24) };
    let mut b = PlanBuilder::new(Geometry::unpacked(1, side));
    let source = b.buffer("source", &[elements], Role::Gradient);
    let target = b.buffer("target", &[elements], Role::Gradient);
    let x = b.buffer("x", &[side, side], Role::Activation);
    b.input(x);
    let weight = b.buffer("weight", &[side, side], Role::Parameter);
    let out = b.buffer("out", &[side, side], Role::Activation);
    let columns = |buffer| Columns {
        buffer,
        first: 0,
        width: side,
    };
    b.push(Section::Forward, AddInto { source, target });
    let product = Linear {
        x: columns(x),
        weight,
        out: columns(out),
    };
    b.push(Section::Forward, product);
    let plan = b.finish().map_err(super::engine::EngineError::from)?;
    let mut open = device
        .executor(
            plan.clone(),
            Compute {
                batch_invariant: false,
                ..config.train.compute()
            },
            Default::default(),
        )
        .map_err(super::engine::EngineError::from)?;
    let executor = open.executor.as_mut();
    let mut values = vec![0f32; side * side];
    values.par_chunks_mut(1 << 14).enumerate().for_each(|(i, part)| {
        let mut rng = Rng::new(i as u64);
        part.iter_mut().for_each(|v| *v = rng.normal() as f32);
    });
    executor.write_f32(x, 0, &values).map_err(exec)?;
    executor.write_f32(weight, 0, &values).map_err(exec)?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..10 {
        for time in executor.profile(Section::Forward).map_err(exec)? {
            best[time.index] = best[time.index].min(time.time.as_secs_f64());
        }
    }
    let value = if config.train.precision == Precision::F64 {
        8.0
    } else {
        4.0
    };
    // One operand is read, the other read and written.
    let bytes = 3.0 * value * elements as f64;
    Ok((
        bytes / best[0] / 1e12,
        2.0 * (side as f64).powi(3) / best[1] / 1e12,
    ))
}
