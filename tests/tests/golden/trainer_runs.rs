//! transformers: sample ids that reached `forward()` in real `Trainer` runs, also after a resume.

use std::sync::Arc;

use ceteris_samplers::{Geometry, Order};
use ceteris_tests::golden::run_family;
use ceteris_tests::orders::{batches, epoch, order};
use serde_json::{Map, Value, json};

use crate::case::{list, number, same};

#[test]
fn trainer_runs() {
    run_family("trainer_runs.json", check);
}

#[test]
fn trainer_runs_more() {
    run_family("trainer_runs_more.json", check);
}

/// What a run's `TrainingArguments` say about its order.
#[derive(Default)]
struct Arguments {
    spec: Map<String, Value>,
    accumulation: u64,
    ignore_data_skip: bool,
    /// `max_steps` may cut the last epoch short.
    cut: bool,
}

fn arguments(case: &Value) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        accumulation: 1,
        ..Arguments::default()
    };
    let spec = &mut parsed.spec;
    spec.insert("seed".to_string(), 42.into());
    let given = case["arguments"].as_object().ok_or("`arguments` is no object")?;
    for (key, value) in given {
        let number = || value.as_u64().ok_or_else(|| format!("argument {key} is {value}"));
        let flag = || {
            value
                .as_bool()
                .ok_or_else(|| format!("argument {key} is {value}"))
        };
        match key.as_str() {
            "num_train_epochs" | "dataloader_num_workers" => {
                number()?;
            }
            "max_steps" => {
                number()?;
                parsed.cut = true;
            }
            "seed" | "data_seed" => {
                spec.insert(key.clone(), value.clone());
            }
            "dataloader_drop_last" => {
                spec.insert("drop_last".to_string(), flag()?.into());
            }
            "gradient_accumulation_steps" => parsed.accumulation = number()?,
            "ignore_data_skip" => parsed.ignore_data_skip = flag()?,
            "train_sampling_strategy" => match value.as_str() {
                Some("sequential") => drop(spec.insert("shuffle".to_string(), false.into())),
                Some("random") => {}
                _ => return Err(format!("unknown sampling strategy {value}")),
            },
            "accelerator_config" => {
                for (key, value) in value.as_object().ok_or("`accelerator_config` is no object")? {
                    match key.as_str() {
                        "use_seedable_sampler" | "split_batches" | "even_batches" => {
                            spec.insert(key.clone(), value.clone());
                        }
                        _ => return Err(format!("unknown accelerator_config {key}")),
                    }
                }
            }
            _ => return Err(format!("unknown argument {key}")),
        }
    }
    // accelerate takes data_seed and does not look at it in these cases; a spec refuses what has no effect.
    if spec.get("use_seedable_sampler") == Some(&false.into()) || spec.get("shuffle") == Some(&false.into()) {
        spec.remove("data_seed");
    }
    Ok(parsed)
}

fn check(case: &Value) -> Result<(), String> {
    if case.get("failed").is_some() && case.get("ranks").is_none() {
        // The real run failed: nothing was recorded that an order could be compared with.
        return Ok(());
    }
    let n = number(case, "n")?;
    let parsed = arguments(case)?;
    let geometry = Geometry {
        world_size: number(case, "world")?,
        micro_batch_size: number(case, "per_device_train_batch_size")?,
        gradient_accumulation_steps: parsed.accumulation,
    };
    let trainer = |extra: Value| build(&parsed.spec, "hf-trainer", extra, n, geometry);
    let run = trainer(json!({"dataset": []}))?;
    let ranks = list(&case["ranks"])?;
    same("ranks", ranks.len() as u64, geometry.world_size)?;
    for (rank, want) in (0..).zip(ranks) {
        compare(&run, rank, list(want)?, 0, 0, parsed.cut).map_err(|e| format!("rank {rank} {e}"))?;
    }
    laws(case, &parsed, n, geometry)?;

    let Some(_) = case.get("resume_from_step") else {
        return Ok(());
    };
    let step = number(case, "resume_from_step")?;
    let steps = run.steps_per_epoch();
    let (first_epoch, done) = (step / steps, step % steps * parsed.accumulation);
    let resumed = if parsed.spec.get("use_seedable_sampler") == Some(&false.into()) {
        let at =
            json!({"epoch": first_epoch, "micro_step": done, "ignore_data_skip": parsed.ignore_data_skip});
        trainer(json!({"dataset": [], "resumed_at": at}))?
    } else {
        Arc::clone(&run)
    };
    let skip = if parsed.ignore_data_skip { 0 } else { done };
    let ranks = list(&case["after_resume"])?;
    same("ranks after resume", ranks.len() as u64, geometry.world_size)?;
    // A resume that ignores the position still stops at the same step, so its last epoch is cut.
    let cut = parsed.cut || parsed.ignore_data_skip;
    let mut equals_tail = true;
    for (rank, want) in (0..).zip(ranks) {
        let want = list(want)?;
        compare(&resumed, rank, want, first_epoch, skip, cut)
            .map_err(|e| format!("rank {rank} after resume, {e}"))?;
        let flat = |epochs: &[Value]| -> Result<Vec<Value>, String> {
            Ok(epochs
                .iter()
                .map(list)
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .cloned()
                .collect())
        };
        let (whole, got) = (flat(list(&case["ranks"][rank as usize])?)?, flat(want)?);
        equals_tail &= whole.ends_with(&got);
    }
    same(
        "resumed_stream_equals_the_tail_of_the_uninterrupted_run",
        &case["resumed_stream_equals_the_tail_of_the_uninterrupted_run"],
        &equals_tail.into(),
    )
}

fn build(
    options: &Map<String, Value>,
    name: &str,
    extra: Value,
    n: u64,
    geometry: Geometry,
) -> Result<Arc<dyn Order>, String> {
    let mut spec = options.clone();
    spec.insert("name".to_string(), name.into());
    spec.extend(extra.as_object().cloned().unwrap_or_default());
    order(spec.into(), n, geometry)
}

/// Compares recorded epochs of one rank with an order from epoch `first` on, whose first `skip` micro-steps are left out.
fn compare(
    order: &Arc<dyn Order>,
    rank: u64,
    want: &[Value],
    first: u64,
    skip: u64,
    cut: bool,
) -> Result<(), String> {
    for (at, want_epoch) in want.iter().enumerate() {
        let number = first + at as u64;
        let mut got = batches(order, &epoch(order, number)?, rank);
        if at == 0 {
            got.drain(..got.len().min(skip as usize));
        }
        if cut && at + 1 == want.len() {
            got.truncate(list(want_epoch)?.len());
        }
        same(&format!("epoch {number}"), want_epoch, &json!(got))?;
    }
    Ok(())
}

/// The recorded verdicts on which of two laws a run followed.
fn laws(case: &Value, parsed: &Arguments, n: u64, geometry: Geometry) -> Result<(), String> {
    let seed = parsed
        .spec
        .get("data_seed")
        .or(parsed.spec.get("seed"))
        .cloned()
        .unwrap_or_default();
    let shuffle = parsed.spec.get("shuffle").cloned().unwrap_or(true.into());
    let given = &case["arguments"];
    // The verdicts take the data_seed as given, whether or not the run looked at it.
    let seed = given.get("data_seed").cloned().unwrap_or(seed);
    let drop_last = parsed.spec.get("drop_last").cloned().unwrap_or(false.into());
    let mut shard = json!({"name": "hf-trainer", "dataset": [], "shuffle": shuffle, "drop_last": drop_last});
    for key in ["even_batches", "split_batches"] {
        if let Some(value) = parsed.spec.get(key) {
            shard[key] = value.clone();
        }
    }
    if shuffle == true {
        shard["data_seed"] = seed.clone();
    }
    let strided =
        json!({"name": "torch-distributed", "seed": seed, "shuffle": shuffle, "drop_last": drop_last});
    for (key, spec) in [
        ("equals_BatchSamplerShard_of_SeedableRandomSampler", shard),
        ("equals_DistributedSampler_strided", strided),
    ] {
        let law = order(spec, n, geometry)?;
        let mut equal = true;
        for (rank, want) in (0..).zip(list(&case["ranks"])?) {
            equal &= compare(&law, rank, list(want)?, 0, 0, parsed.cut).is_ok();
        }
        same(key, &case[key], &equal.into())?;
    }
    Ok(())
}
