//! Operator files: `in.*`, `out.*`, `cot.*` (cotangents) and `grad.*` (gradients of `Σ out · cot`).

use std::collections::BTreeMap;
use std::path::Path;

use ceteris_kernels::backend::Executor;
use ceteris_kernels::conformance::{read, relative_error};
use ceteris_kernels::ops::*;
use ceteris_kernels::plan::{BufferId, Columns, Geometry, PlanBuilder, Role, Section};
use safetensors::{Dtype, SafeTensors};

use crate::{PRECISIONS, Precision, entries, model_golden_dir, report};

/// Makes the plan of a file.
type Build = fn(&Tensors) -> Operator;

/// Operators by the start of their file's name, the longest match first.
const OPERATORS: &[(&str, Build)] = &[
    ("causal_lm_loss", causal_lm_loss),
    ("gated_delta_rule", gated_delta_rule),
    ("gated_rms_norm", gated_rms_norm),
    ("gdn_core_raw_gates", gdn_core),
    ("l2norm", l2norm),
    ("rms_norm", rms_norm),
    ("short_conv_silu", short_conv_silu),
    ("swiglu", swiglu),
];

/// Operators of attention layers, which are not built.
const SKIPPED: &[&str] = &["rotary", "causal_attention_gqa"];

/// Epsilon of all recorded norms.
const EPS: f64 = 1e-6;

#[test]
fn every_recorded_operator_matches() {
    let mut results = Vec::new();
    for path in entries(&model_golden_dir().join("ops")) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if SKIPPED.iter().any(|skip| name.starts_with(skip)) {
            println!("golden operator {name}: skipped, attention layers are not built");
            continue;
        }
        let known = OPERATORS.iter().find(|(start, _)| name.starts_with(start));
        let result = match known {
            Some((_, build)) => check(&path, *build),
            None => Err("no operator of this name is known".to_owned()),
        };
        results.push((name, result));
    }
    report("operator", results);
}

fn check(path: &Path, build: Build) -> Result<String, String> {
    let tensors = Tensors::load(path);
    let mut said = Vec::new();
    for precision in &PRECISIONS {
        let worst = run(&tensors, build(&tensors), precision)?;
        said.push(format!("{} {worst:.1e}", precision.name));
    }
    Ok(said.join(", "))
}

/// Runs the operator and returns its largest error.
fn run(tensors: &Tensors, operator: Operator, precision: &Precision) -> Result<f64, String> {
    let mut executor = precision.executor(operator.plan.finish().map_err(|e| e.to_string())?);
    let executor: &mut dyn Executor = executor.as_mut();
    for (id, values) in &operator.ids {
        executor.write_ids(*id, values).map_err(|e| e.to_string())?;
    }
    for (id, values) in &operator.values {
        executor.write_f64(*id, 0, values).map_err(|e| e.to_string())?;
    }
    executor.run(Section::Forward).map_err(|e| e.to_string())?;
    executor.run(Section::Backward).map_err(|e| e.to_string())?;
    let mut worst = 0.0f64;
    let recorded = |name: &str| name.starts_with("out.") || name.starts_with("grad.");
    for name in tensors.0.keys().filter(|name| recorded(name)) {
        let Some((_, columns, factor)) = operator.compare.iter().find(|(n, ..)| n == name) else {
            return Err(format!("{name} is recorded but not compared"));
        };
        let got: Vec<f64> = read(executor, *columns)
            .map_err(|e| e.to_string())?
            .iter()
            .map(|x| x * factor)
            .collect();
        let error = relative_error(&got, &tensors.get(name).1);
        if error.is_nan() || error > precision.operators {
            return Err(format!("{} {name} is off by {error:e}", precision.name));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

/// Named f64 tensors with their shapes.
struct Tensors(BTreeMap<String, (Vec<usize>, Vec<f64>)>);

impl Tensors {
    fn load(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tensor = |(name, view): (String, safetensors::tensor::TensorView)| {
            assert_eq!(view.dtype(), Dtype::F64, "{}: {name}", path.display());
            let values = view
                .data()
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()));
            (name, (view.shape().to_vec(), values.collect()))
        };
        Tensors(file.tensors().into_iter().map(tensor).collect())
    }

    fn get(&self, name: &str) -> &(Vec<usize>, Vec<f64>) {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("the file has no tensor {name}"))
    }

    fn shape(&self, name: &str) -> &[usize] {
        &self.get(name).0
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.get(name).1.clone()
    }
}

/// A plan with the recorded inputs, and which of its columns hold what the file records, times a factor.
struct Operator {
    plan: PlanBuilder,
    values: Vec<(BufferId, Vec<f64>)>,
    ids: Vec<(BufferId, Vec<i32>)>,
    compare: Vec<(String, Columns, f64)>,
}

impl Operator {
    fn new(geometry: Geometry) -> Self {
        Operator {
            plan: PlanBuilder::new(geometry),
            values: Vec::new(),
            ids: Vec::new(),
            compare: Vec::new(),
        }
    }

    fn given(&mut self, name: &str, shape: &[usize], role: Role, values: Vec<f64>) -> BufferId {
        let id = self.plan.buffer(name, shape, role);
        if !role.persistent() {
            self.plan.input(id);
        }
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
        self.values.push((id, values));
        id
    }

    /// Matrices side by side in one buffer of activations.
    fn side_by_side(&mut self, name: &str, rows: usize, parts: &[Vec<f64>]) -> (BufferId, Vec<Columns>) {
        let widths: Vec<usize> = parts.iter().map(|p| p.len() / rows).collect();
        let mut values = Vec::new();
        for r in 0..rows {
            parts
                .iter()
                .zip(&widths)
                .for_each(|(p, w)| values.extend(&p[r * w..(r + 1) * w]));
        }
        let total = widths.iter().sum();
        let buffer = self.given(name, &[rows, total], Role::Activation, values);
        (buffer, split(buffer, &widths))
    }

    /// What the operator writes, compared with a recorded tensor.
    fn out(&mut self, recorded: &str, shape: &[usize], role: Role) -> BufferId {
        let id = self.plan.buffer(recorded, shape, role);
        self.plan.keep(id);
        let columns = self.plan.columns(id);
        self.compare.push((recorded.to_owned(), columns, 1.0));
        id
    }

    /// What the operator writes side by side.
    fn out_side_by_side(&mut self, rows: usize, parts: &[(&str, usize)]) -> (BufferId, Vec<Columns>) {
        let widths: Vec<usize> = parts.iter().map(|p| p.1).collect();
        let name = parts.iter().map(|p| p.0).collect::<Vec<_>>().join(" ");
        let buffer = self
            .plan
            .buffer(name, &[rows, widths.iter().sum()], Role::Activation);
        self.plan.keep(buffer);
        let columns = split(buffer, &widths);
        for ((name, _), columns) in parts.iter().zip(&columns) {
            self.compare.push(((*name).to_owned(), *columns, 1.0));
        }
        (buffer, columns)
    }

    fn hidden(&mut self, name: &str, shape: &[usize], role: Role) -> BufferId {
        self.plan.buffer(name, shape, role)
    }

    fn documents(&mut self) -> BufferId {
        let offsets = self.plan.geometry().unpacked_cu_seqlens();
        let id = self.plan.buffer("cu_seqlens", &[offsets.len()], Role::Ids);
        self.ids.push((id, offsets));
        id
    }

    fn both(&mut self, forward: impl Into<Op>, backward: impl Into<Op>) {
        self.plan.push(Section::Forward, forward);
        self.plan.push(Section::Backward, backward);
    }
}

fn split(buffer: BufferId, widths: &[usize]) -> Vec<Columns> {
    let mut first = 0;
    let column = |&width: &usize| {
        first += width;
        Columns {
            buffer,
            first: first - width,
            width,
        }
    };
    widths.iter().map(column).collect()
}

fn rms_norm(t: &Tensors) -> Operator {
    let shape = t.shape("in.x").to_vec();
    let (rows, n) = (shape[0], shape[1]);
    let mut o = Operator::new(Geometry::unpacked(1, rows));
    let x = o.given("x", &shape, Role::Residual, t.values("in.x"));
    let weight = o.given("weight", &[n], Role::Parameter, t.values("in.weight"));
    let out = o.out("out.y", &shape, Role::Activation);
    let rstd = o.hidden("rstd", &[rows], Role::Statistic);
    let dout = o.given("dout", &shape, Role::Activation, t.values("cot.y"));
    let dsum = o.out("grad.x", &shape, Role::Residual);
    let dweight = o.out("grad.weight", &[n], Role::Gradient);
    o.both(
        AddRmsNorm {
            x,
            branches: [None; 2],
            sum: None,
            weight,
            out,
            rstd,
            eps: EPS,
        },
        AddRmsNormBackward {
            x,
            branch: None,
            rstd,
            weight,
            dout,
            dresidual: None,
            dsum,
            dbranch: None,
            out: None,
            dweight,
        },
    );
    o
}

fn gated_rms_norm(t: &Tensors) -> Operator {
    let shape = t.shape("in.x").to_vec();
    let (rows, heads, v) = (shape[0], shape[1], shape[2]);
    let activation = GateActivation::Swish;
    let mut o = Operator::new(Geometry::unpacked(1, rows));
    let x = o.given("x", &shape, Role::Activation, t.values("in.x"));
    let gate = o.given("gate", &shape, Role::Activation, t.values("in.gate"));
    let gate = Some(o.plan.columns(gate));
    let weight = o.given("weight", &[v], Role::Parameter, t.values("in.weight"));
    let out = o.out("out.y", &shape, Role::Activation);
    let rstd = o.hidden("rstd", &[rows, heads], Role::Statistic);
    let dout = o.given("dout", &shape, Role::Activation, t.values("cot.y"));
    let dx = o.out("grad.x", &shape, Role::Activation);
    let dgate = o.out("grad.gate", &shape, Role::Activation);
    let dgate = Some(o.plan.columns(dgate));
    let dweight = o.out("grad.weight", &[v], Role::Gradient);
    o.both(
        GatedRmsNorm {
            x,
            gate,
            weight,
            out,
            rstd,
            eps: EPS,
            activation,
        },
        GatedRmsNormBackward {
            x,
            gate,
            weight,
            rstd,
            dout,
            out: None,
            dx,
            dgate,
            dweight,
            activation,
        },
    );
    o
}

fn l2norm(t: &Tensors) -> Operator {
    let shape = t.shape("in.x").to_vec();
    let (rows, heads, head_dim) = (shape[0], shape[1], shape[2]);
    let mut o = Operator::new(Geometry::unpacked(1, rows));
    let documents = o.documents();
    let x = o.given("x", &shape, Role::Activation, t.values("in.x"));
    let x = o.plan.columns(x);
    let out = o.out("out.y", &shape, Role::Activation);
    let dout = o.given("dout", &shape, Role::Activation, t.values("cot.y"));
    let dx = o.out("grad.x", &shape, Role::Activation);
    let dx = o.plan.columns(dx);
    let (weight, dweight, silu, norm_heads) = (None, None, false, heads);
    o.both(
        ShortConv {
            x,
            weight,
            out,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
        ShortConvBackward {
            x,
            weight,
            dout,
            dx,
            dweight,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
    );
    o
}

fn short_conv_silu(t: &Tensors) -> Operator {
    let shape = t.shape("in.x").to_vec();
    let (batch, len, d) = (shape[0], shape[1], shape[2]);
    let rows = batch * len;
    let mut o = Operator::new(Geometry::unpacked(batch, len));
    let documents = o.documents();
    let x = o.given("x", &[rows, d], Role::Activation, t.values("in.x"));
    let x = o.plan.columns(x);
    let taps = t.shape("in.weight").to_vec();
    let weight = Some(o.given("weight", &taps, Role::Parameter, t.values("in.weight")));
    let out = o.out("out.y", &[rows, d], Role::Activation);
    let dout = o.given("dout", &[rows, d], Role::Activation, t.values("cot.y"));
    let dx = o.out("grad.x", &[rows, d], Role::Activation);
    let dx = o.plan.columns(dx);
    let dweight = Some(o.out("grad.weight", &taps, Role::Gradient));
    let (silu, norm_heads, head_dim) = (true, 0, 1);
    o.both(
        ShortConv {
            x,
            weight,
            out,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
        ShortConvBackward {
            x,
            weight,
            dout,
            dx,
            dweight,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
    );
    o
}

fn swiglu(t: &Tensors) -> Operator {
    let shape = t.shape("in.gate").to_vec();
    let (rows, n) = (shape[0], shape[1]);
    let mut o = Operator::new(Geometry::unpacked(1, rows));
    let (gate_up, _) = o.side_by_side("gate_up", rows, &[t.values("in.gate"), t.values("in.up")]);
    let out = o.out("out.y", &shape, Role::Activation);
    let dout = o.given("dout", &shape, Role::Activation, t.values("cot.y"));
    let (dgate_up, _) = o.out_side_by_side(rows, &[("grad.gate", n), ("grad.up", n)]);
    o.both(
        SwiGlu { gate_up, out },
        SwiGluBackward {
            gate_up,
            dout,
            dgate_up,
            out: None,
        },
    );
    o
}

/// Recorded on logits: the hidden states are the logits and the head is the identity. The recorded loss shifts the
/// labels and takes the mean.
fn causal_lm_loss(t: &Tensors) -> Operator {
    let shape = t.shape("in.logits").to_vec();
    let (batch, len, vocab) = (shape[0], shape[1], shape[2]);
    let rows = batch * len;
    let recorded = t.values("in.labels");
    let labels: Vec<i32> = (0..rows)
        .map(|r| {
            if (r + 1) % len == 0 {
                IGNORE_INDEX
            } else {
                recorded[r + 1] as i32
            }
        })
        .collect();
    let counted = labels.iter().filter(|&&l| l != IGNORE_INDEX).count() as f64;
    let mut o = Operator::new(Geometry::unpacked(batch, len));
    let id = o.plan.buffer("labels", &[rows], Role::Ids);
    o.ids.push((id, labels));
    let labels = id;
    let x = o.given("x", &[rows, vocab], Role::Activation, t.values("in.logits"));
    let identity = (0..vocab * vocab)
        .map(|i| f64::from(u8::from(i % (vocab + 1) == 0)))
        .collect();
    let weight = o.given("head", &[vocab, vocab], Role::Parameter, identity);
    let nll = o.hidden("nll", &[rows], Role::Statistic);
    let loss_sum = o.given("loss_sum", &[1], Role::Scalar, vec![0.0]);
    let columns = o.plan.columns(loss_sum);
    o.compare.push(("out.y".to_owned(), columns, 1.0 / counted));
    let logits = o.hidden("logits", &[8, vocab], Role::Activation);
    let scale = t.values("cot.y")[0] / counted;
    let grad_scale = o.given("grad_scale", &[1], Role::Scalar, vec![scale]);
    let dx = o.out("grad.logits", &[rows, vocab], Role::Activation);
    let dweight = o.hidden("dweight", &[vocab, vocab], Role::Gradient);
    let gradients = Some(LossGradients {
        grad_scale,
        dx,
        dweight,
    });
    o.plan.push(
        Section::Forward,
        LinearCrossEntropy {
            x,
            weight,
            labels,
            nll,
            loss_sum,
            logits,
            gradients,
        },
    );
    o
}

/// Sizes of a recorded delta rule.
fn delta_sizes(t: &Tensors) -> (Geometry, DeltaRuleShape, f64) {
    let (q, v) = (t.shape("in.q"), t.shape("in.v"));
    let shape = DeltaRuleShape {
        key_heads: q[2],
        value_heads: v[2],
        key_dim: q[3],
        value_dim: v[3],
    };
    (Geometry::unpacked(q[0], q[1]), shape, (q[3] as f64).powf(-0.5))
}

/// The delta rule's operands that both recordings of it share.
struct DeltaOperands {
    q: Columns,
    k: Columns,
    v: Columns,
    g: BufferId,
    beta: BufferId,
    dq: Columns,
    dk: Columns,
    dv: Columns,
    dg: BufferId,
    dbeta: BufferId,
}

fn push_delta_rule(o: &mut Operator, t: &Tensors, documents: BufferId, d: DeltaOperands) {
    let (geometry, shape, scale) = delta_sizes(t);
    let (rows, vw) = (geometry.rows(), shape.value_heads * shape.value_dim);
    let state = [
        geometry.max_documents,
        shape.value_heads,
        shape.key_dim,
        shape.value_dim,
    ];
    let initial = t.0.contains_key("in.initial_state");
    let initial_state = initial.then(|| {
        o.given(
            "initial_state",
            &state,
            Role::Statistic,
            t.values("in.initial_state"),
        )
    });
    let out = o.out("out.o", &[rows, vw], Role::Activation);
    let final_state = Some(o.out("out.final_state", &state, Role::Statistic));
    let saved = [
        geometry.max_chunks(),
        shape.value_heads,
        shape.key_dim,
        shape.value_dim,
    ];
    let chunk_states = o.hidden("chunk_states", &saved, Role::Statistic);
    let u = o.hidden("u", &[rows, vw], Role::Activation);
    let dout = o.given("dout", &[rows, vw], Role::Activation, t.values("cot.o"));
    let dfinal_state = Some(o.given(
        "dfinal_state",
        &state,
        Role::Statistic,
        t.values("cot.final_state"),
    ));
    let dinitial_state = initial.then(|| o.out("grad.initial_state", &state, Role::Statistic));
    let DeltaOperands {
        q,
        k,
        v,
        g,
        beta,
        dq,
        dk,
        dv,
        dg,
        dbeta,
    } = d;
    o.both(
        DeltaRule {
            q,
            k,
            v,
            g,
            beta,
            documents,
            initial_state,
            o: out,
            final_state,
            chunk_states: Some(chunk_states),
            u: Some(u),
            scale,
            shape,
        },
        DeltaRuleBackward {
            q,
            k,
            v,
            g,
            beta,
            documents,
            initial_state,
            chunk_states,
            u,
            recompute: false,
            dout,
            dfinal_state,
            dq,
            dk,
            dv,
            dg,
            dbeta,
            dinitial_state,
            scale,
            shape,
        },
    );
}

fn gated_delta_rule(t: &Tensors) -> Operator {
    let (geometry, shape, _) = delta_sizes(t);
    let (rows, heads) = (geometry.rows(), shape.value_heads);
    let (kw, vw) = (shape.key_heads * shape.key_dim, heads * shape.value_dim);
    let mut o = Operator::new(geometry);
    let documents = o.documents();
    let parts = ["in.q", "in.k", "in.v"].map(|name| t.values(name));
    let (_, qkv) = o.side_by_side("qkv", rows, &parts);
    let g = o.given("g", &[rows, heads], Role::Statistic, t.values("in.g"));
    let beta = o.given("beta", &[rows, heads], Role::Statistic, t.values("in.beta"));
    let (_, dqkv) = o.out_side_by_side(rows, &[("grad.q", kw), ("grad.k", kw), ("grad.v", vw)]);
    let dg = o.out("grad.g", &[rows, heads], Role::Statistic);
    let dbeta = o.out("grad.beta", &[rows, heads], Role::Statistic);
    let (q, k, v, dq, dk, dv) = (qkv[0], qkv[1], qkv[2], dqkv[0], dqkv[1], dqkv[2]);
    push_delta_rule(
        &mut o,
        t,
        documents,
        DeltaOperands {
            q,
            k,
            v,
            g,
            beta,
            dq,
            dk,
            dv,
            dg,
            dbeta,
        },
    );
    o
}

/// l2 norm, gates and delta rule in a chain.
fn gdn_core(t: &Tensors) -> Operator {
    let (geometry, shape, _) = delta_sizes(t);
    let (rows, heads) = (geometry.rows(), shape.value_heads);
    let (kw, vw) = (shape.key_heads * shape.key_dim, heads * shape.value_dim);
    let (norm_heads, head_dim, beta_scale) = (2 * shape.key_heads, shape.key_dim, 1.0);
    let mut o = Operator::new(geometry);
    let documents = o.documents();
    let parts = ["in.q", "in.k", "in.v"].map(|name| t.values(name));
    let (raw, _) = o.side_by_side("raw", rows, &parts);
    let (_, ab) = o.side_by_side("ab", rows, &[t.values("in.a"), t.values("in.b")]);
    let a_log = o.given("a_log", &[heads], Role::Parameter, t.values("in.A_log"));
    let dt_bias = o.given("dt_bias", &[heads], Role::Parameter, t.values("in.dt_bias"));
    let qkv = o.hidden("qkv", &[rows, 2 * kw + vw], Role::Activation);
    let dqkv = o.hidden("dqkv", &[rows, 2 * kw + vw], Role::Activation);
    let statistic = |o: &mut Operator, name: &str| o.hidden(name, &[rows, heads], Role::Statistic);
    let (g, beta) = (statistic(&mut o, "g"), statistic(&mut o, "beta"));
    let (dg, dbeta) = (statistic(&mut o, "dg"), statistic(&mut o, "dbeta"));
    let x = o.plan.columns(raw);
    let (a, b) = (ab[0], ab[1]);
    let silu = false;
    o.plan.push(
        Section::Forward,
        ShortConv {
            x,
            weight: None,
            out: qkv,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
    );
    o.plan.push(
        Section::Forward,
        Gates {
            a,
            b,
            a_log,
            dt_bias,
            g,
            beta,
            beta_scale,
        },
    );
    let (columns, gradients) = (split(qkv, &[kw, kw, vw]), split(dqkv, &[kw, kw, vw]));
    let (q, k, v) = (columns[0], columns[1], columns[2]);
    let (dq, dk, dv) = (gradients[0], gradients[1], gradients[2]);
    push_delta_rule(
        &mut o,
        t,
        documents,
        DeltaOperands {
            q,
            k,
            v,
            g,
            beta,
            dq,
            dk,
            dv,
            dg,
            dbeta,
        },
    );
    let (draw, _) = o.out_side_by_side(rows, &[("grad.q", kw), ("grad.k", kw), ("grad.v", vw)]);
    let (_, dab) = o.out_side_by_side(rows, &[("grad.a", heads), ("grad.b", heads)]);
    let (da, db) = (dab[0], dab[1]);
    let da_log = o.out("grad.A_log", &[heads], Role::Gradient);
    let ddt_bias = o.out("grad.dt_bias", &[heads], Role::Gradient);
    o.plan.push(
        Section::Backward,
        GatesBackward {
            a,
            a_log,
            dt_bias,
            g,
            beta,
            dg,
            dbeta,
            da,
            db,
            da_log,
            ddt_bias,
            beta_scale,
        },
    );
    let dx = o.plan.columns(draw);
    o.plan.push(
        Section::Backward,
        ShortConvBackward {
            x,
            weight: None,
            dout: dqkv,
            dx,
            dweight: None,
            silu,
            documents,
            norm_heads,
            head_dim,
        },
    );
    o
}
