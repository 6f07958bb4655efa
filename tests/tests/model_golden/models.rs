//! Model cases: `config.json`, `init.safetensors` (f32), `tokens.json` and `expected.json` (f64: loss, logits, hidden
//! states, gradients, and 20 steps of AdamW).
//!
//! Scalars and norms are compared by relative error; single values of a tensor by their difference over the larger
//! of the value and the tensor's root mean square, since a value near 0 has no relative precision of its own.

use std::path::Path;

use ceteris_kernels::backend::{Executor, read_all};
use ceteris_kernels::ops::{HYPER_LEARNING_RATE, HYPER_STEP, IGNORE_INDEX};
use ceteris_kernels::plan::{Geometry, ParameterView, Section};
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::model::gdn::{LanguageModel, Optimizer, PlanOptions, emit};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::{PRECISIONS, Precision, entries, model_golden_dir, report};

#[test]
fn every_recorded_model_matches() {
    let mut results = Vec::new();
    for dir in entries(&model_golden_dir()) {
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        if !dir.join("config.json").is_file() {
            continue;
        }
        if name.starts_with("hybrid_") {
            println!("golden model {name}: skipped, attention layers are not built");
            continue;
        }
        let said: Result<Vec<String>, String> = PRECISIONS.iter().map(|p| check(&dir, p)).collect();
        results.push((name, said.map(|s| s.join(", "))));
    }
    report("model", results);
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn f64s(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

/// `[B][T]` integers, flat.
fn ids(value: &Value) -> Vec<i32> {
    let rows = value.as_array().unwrap();
    rows.iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|x| x.as_i64().unwrap() as i32)
        .collect()
}

/// Targets of each row from HF-style labels (aligned with the tokens): the next position's, none at the end.
fn targets(labels: &[i32], len: usize) -> Vec<i32> {
    let shifted = |r: usize| {
        if (r + 1).is_multiple_of(len) {
            IGNORE_INDEX
        } else {
            labels[r + 1]
        }
    };
    (0..labels.len()).map(shifted).collect()
}

/// Largest error so far, with a bound.
struct Bound {
    limit: f64,
    values: f64,
    worst: f64,
}

impl Bound {
    fn check(&mut self, what: &str, error: f64) -> Result<(), String> {
        self.worst = self.worst.max(error);
        within(what, error, self.limit)
    }

    /// Relative error of a scalar.
    fn scalar(&mut self, what: &str, got: f64, want: &Value) -> Result<(), String> {
        let want = want.as_f64().unwrap_or_else(|| panic!("{what} is not recorded"));
        self.check(what, (got - want).abs() / want.abs().max(f64::MIN_POSITIVE))
    }

    /// Recorded values against the start of `got`, in units of a value or of `size`.
    fn values(&mut self, what: &str, got: &[f64], want: &Value, size: f64) -> Result<(), String> {
        for (i, want) in f64s(want).into_iter().enumerate() {
            let error = (got[i] - want).abs() / want.abs().max(size).max(f64::MIN_POSITIVE);
            within(&format!("{what}[{i}]"), error, self.values)?;
        }
        Ok(())
    }

    /// Norm and first values of a tensor.
    fn tensor(&mut self, what: &str, got: &[f64], want: &Value) -> Result<(), String> {
        self.scalar(&format!("{what} norm"), norm(got), &want["norm"])?;
        self.values(what, got, &want["first"], rms(got))
    }
}

fn within(what: &str, error: f64, limit: f64) -> Result<(), String> {
    if error <= limit {
        Ok(())
    } else {
        Err(format!("{what} is off by {error:e}"))
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn rms(x: &[f64]) -> f64 {
    norm(x) / (x.len() as f64).sqrt()
}

/// A loaded case.
struct Case {
    config: ModelConfig,
    expected: Value,
    tokens: Value,
    init: Vec<u8>,
    geometry: Geometry,
}

impl Case {
    fn load(dir: &Path) -> Self {
        let tokens = json(&dir.join("tokens.json"));
        let rows = tokens["tokens"].as_array().unwrap();
        Case {
            config: serde_json::from_value(json(&dir.join("config.json"))).unwrap(),
            expected: json(&dir.join("expected.json")),
            geometry: Geometry::unpacked(rows.len(), rows[0].as_array().unwrap().len()),
            init: std::fs::read(dir.join("init.safetensors")).unwrap(),
            tokens,
        }
    }

    fn emit(&self) -> LanguageModel {
        self.config.validate().unwrap();
        let optimizer = &self.expected["train"]["optimizer"];
        assert_eq!(optimizer["name"], "AdamW");
        let spared: Vec<&str> = self.expected["no_weight_decay"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_str().unwrap())
            .collect();
        let weight_decay = optimizer["weight_decay"].as_f64().unwrap();
        let number = |x: &Value| x.as_f64().unwrap();
        let options = PlanOptions {
            optimizer: Some(Optimizer {
                beta1: number(&optimizer["betas"][0]),
                beta2: number(&optimizer["betas"][1]),
                eps: number(&optimizer["eps"]),
                max_grad_norm: Some(number(&optimizer["clip"])),
                weight_decay: &|name| if spared.contains(&name) { 0.0 } else { weight_decay },
            }),
            keep_hidden_states: true,
            evaluate_logits: true,
            logits_chunk_rows: Some(50),
            ..PlanOptions::new(self.geometry)
        };
        emit(&self.config, &options).unwrap()
    }

    /// An executor with the recorded initial weights.
    fn executor(&self, precision: &Precision, model: &LanguageModel) -> Box<dyn Executor> {
        let mut executor = precision.executor(model.plan.clone());
        let file = SafeTensors::deserialize(&self.init).unwrap();
        let mut names: Vec<&str> = file.names();
        for view in &model.plan.views {
            names.retain(|name| *name != view.name);
            let tensor = file
                .tensor(&view.name)
                .unwrap_or_else(|e| panic!("{}: {e}", view.name));
            assert_eq!(tensor.shape(), view.shape, "{}", view.name);
            let bytes = tensor.data().chunks_exact(4);
            let values: Vec<f32> = bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let value = model.plan.parameters[view.parameter].value;
            executor.write_f32(value, view.offset, &values).unwrap();
        }
        assert!(
            names.is_empty(),
            "the checkpoint's tensors {names:?} have no place in the model"
        );
        executor
    }

    /// Writes a batch; returns the number of counted tokens.
    fn feed(
        &self,
        executor: &mut dyn Executor,
        model: &LanguageModel,
        tokens: &[i32],
        labels: &[i32],
    ) -> f64 {
        let targets = targets(labels, self.geometry.seq_length);
        let counted = targets.iter().filter(|&&l| l != IGNORE_INDEX).count() as f64;
        executor.write_ids(model.tokens, tokens).unwrap();
        executor.write_ids(model.labels, &targets).unwrap();
        executor.write_f64(model.grad_scale, 0, &[1.0 / counted]).unwrap();
        counted
    }
}

fn scalar(executor: &mut dyn Executor, id: ceteris_kernels::plan::BufferId) -> f64 {
    read_all(executor, id).unwrap()[0]
}

fn set_hyper(executor: &mut dyn Executor, model: &LanguageModel, lr: f64, step: usize) {
    executor
        .write_f64(model.hyper, HYPER_LEARNING_RATE, &[lr])
        .unwrap();
    executor
        .write_f64(model.hyper, HYPER_STEP, &[step as f64])
        .unwrap();
}

fn run(executor: &mut dyn Executor, sections: &[Section]) {
    sections.iter().for_each(|&s| executor.run(s).unwrap());
}

const STEP: [Section; 4] = [
    Section::Begin,
    Section::Forward,
    Section::Backward,
    Section::Update,
];

fn check(dir: &Path, precision: &Precision) -> Result<String, String> {
    let case = Case::load(dir);
    let model = case.emit();
    let mut bound = Bound {
        limit: precision.models,
        values: precision.values,
        worst: 0.0,
    };
    one_step(&case, &model, precision, &mut bound).map_err(|e| format!("{}: {e}", precision.name))?;
    let step = bound.worst;
    curve(&case, &model, precision, &mut bound).map_err(|e| format!("{}: {e}", precision.name))?;
    Ok(format!(
        "{} step {step:.1e}, with curve {:.1e}",
        precision.name, bound.worst
    ))
}

/// Loss, hidden states, logits and gradients with the initial weights.
fn one_step(
    case: &Case,
    model: &LanguageModel,
    precision: &Precision,
    bound: &mut Bound,
) -> Result<(), String> {
    let mut executor = case.executor(precision, model);
    let executor = executor.as_mut();
    let expected = &case.expected;
    let counted = case.feed(
        executor,
        model,
        &ids(&case.tokens["tokens"]),
        &ids(&case.tokens["labels"]),
    );
    assert_eq!(counted, expected["valid_tokens"].as_f64().unwrap());
    set_hyper(executor, model, 0.0, 1);
    run(executor, &STEP);
    bound.scalar(
        "loss",
        scalar(executor, model.loss_sum) / counted,
        &expected["loss"],
    )?;
    bound.scalar(
        "grad_total_norm",
        scalar(executor, model.grad_norm),
        &expected["grad_total_norm"],
    )?;
    let hidden = expected["hidden"].as_object().unwrap();
    assert_eq!(hidden.len(), model.hidden_states.len(), "recorded hidden states");
    let width = case.config.hidden_size;
    for (name, id) in &model.hidden_states {
        let values = read_all(executor, *id).unwrap();
        let want = hidden
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not recorded"));
        bound.tensor(name, &values, want)?;
        let last = &values[values.len() - width..];
        bound.values(
            &format!("{name} last"),
            last,
            &want["last_position_first"],
            rms(&values),
        )?;
    }
    let grads = expected["grads"].as_object().unwrap();
    assert_eq!(grads.len(), model.plan.views.len(), "recorded gradients");
    for view in &model.plan.views {
        let gradient = read_view(executor, model, view, true);
        let want = &grads
            .get(&view.name)
            .unwrap_or_else(|| panic!("{} is not recorded", view.name));
        bound.tensor(&format!("gradient of {}", view.name), &gradient, want)?;
    }
    run(executor, &[Section::Evaluate]);
    let values = read_all(executor, model.logits.unwrap()).unwrap();
    let want = &expected["logits"];
    let (size, squares) = (rms(&values), values.iter().map(|x| x * x).sum::<f64>());
    bound.scalar("sum of squared logits", squares, &want["sum_squares"])?;
    let sum = values.iter().sum::<f64>() - want["sum"].as_f64().unwrap();
    bound.check("sum of logits", sum.abs() / (size * values.len() as f64))?;
    bound.values("logits", &values, &want["first"], size)?;
    let last = &values[values.len() - case.config.vocab_size..];
    bound.values("last logits", last, &want["last_position_first"], size)
}

/// The recorded training steps from the initial weights.
fn curve(case: &Case, model: &LanguageModel, precision: &Precision, bound: &mut Bound) -> Result<(), String> {
    let mut executor = case.executor(precision, model);
    let executor = executor.as_mut();
    let train = &case.expected["train"];
    for (i, step) in train["steps"].as_array().unwrap().iter().enumerate() {
        let tokens = ids(&case.tokens["train_tokens"][i]);
        let counted = case.feed(executor, model, &tokens, &tokens);
        set_hyper(executor, model, step["lr"].as_f64().unwrap(), i + 1);
        run(executor, &STEP);
        let loss = scalar(executor, model.loss_sum) / counted;
        bound.scalar(&format!("step {i} loss"), loss, &step["loss"])?;
        let norm = scalar(executor, model.grad_norm);
        // In f32 the norm of a late gradient carries the rounding of every update before it; the losses hold the
        // tighter bound.
        let want = serde_json::json!([step["grad_norm_before_clip"]]);
        bound.values(&format!("step {i} grad_norm"), &[norm], &want, 0.0)?;
    }
    let parameters = train["final_params"].as_object().unwrap();
    assert_eq!(
        parameters.len(),
        model.plan.views.len(),
        "recorded final parameters"
    );
    for view in &model.plan.views {
        let values = read_view(executor, model, view, false);
        bound.tensor(&format!("final {}", view.name), &values, &parameters[&view.name])?;
    }
    Ok(())
}

fn read_view(
    executor: &mut dyn Executor,
    model: &LanguageModel,
    view: &ParameterView,
    gradient: bool,
) -> Vec<f64> {
    let parameter = model.plan.parameters[view.parameter];
    let mut values = vec![0.0; view.len()];
    let id = if gradient {
        parameter.gradient
    } else {
        parameter.value
    };
    executor.read_f64(id, view.offset, &mut values).unwrap();
    values
}
