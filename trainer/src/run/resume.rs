//! Going on from a checkpoint: which one, whether the settings allow it, and its weights and moments.

use serde_json::Value;

use super::engine::Engine;
use super::folder::RunFolder;
use super::{RunError, io};
use crate::checkpoint::{self, Found, Part, safetensors};
use crate::config::{Resume, RunConfig};
use crate::model::parameters::{NamedTensor, named_parameters};

/// All settings of a run, as a checkpoint keeps them.
pub(crate) fn settings(config: &RunConfig) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

/// The checkpoint a run goes on from. What a crash left half written is cleared away first.
pub(super) fn find_checkpoint(
    config: &RunConfig,
    folder: &RunFolder,
    say: &dyn Fn(&str),
) -> Result<Option<Found>, RunError> {
    let checkpoints = folder.checkpoints();
    checkpoint::clear_leftovers(&checkpoints)?;
    let problem = |problem: &str| {
        Err(RunError::Folder {
            path: folder.0.clone(),
            problem: problem.to_owned(),
        })
    };
    let (found, passed_over) = checkpoint::newest_valid(&checkpoints)?;
    match config.checkpoint.resume {
        Resume::Never if found.is_some() || !passed_over.is_empty() || folder.metrics().exists() => {
            return problem(
                "holds a run already; name another output_dir, or leave checkpoint.resume at auto to go on",
            );
        }
        Resume::Must if found.is_none() => {
            return problem("holds no valid checkpoint to go on from (checkpoint.resume: must)");
        }
        _ => {}
    }
    for reason in &passed_over {
        say(&format!("passed over: {reason}"));
    }
    if found.is_none() && !passed_over.is_empty() {
        return problem("its checkpoints are all damaged; remove them to start anew");
    }
    if found.is_none() && folder.metrics().exists() {
        // A run that ended before its first checkpoint leaves lines that this one will write again.
        std::fs::remove_file(folder.metrics()).map_err(io(&folder.metrics(), "remove"))?;
    }
    Ok(found)
}

/// Settings that may not change between two parts of a run, and those that may, which are told.
pub(super) fn check_resumable(config: &RunConfig, found: &Found, say: &dyn Fn(&str)) -> Result<(), RunError> {
    let (saved, now) = (&found.state.config, settings(config));
    let mut changed = Vec::new();
    differences("", saved, &now, &mut changed);
    for (key, saved, now) in changed {
        let fixed = ["model.", "init.", "seeds.", "train.precision"];
        if fixed.iter().any(|f| key.starts_with(f)) {
            return Err(RunError::Folder {
                path: found.path.clone(),
                problem: format!(
                    "was written with {key} = {saved}, now {now}; a run cannot change that on the way: set it back, or \
                     name another output_dir"
                ),
            });
        }
        say(&format!(
            "changed since the checkpoint: {key} = {now} (was {saved})"
        ));
    }
    Ok(())
}

fn differences(at: &str, saved: &Value, now: &Value, out: &mut Vec<(String, Value, Value)>) {
    match (saved, now) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                let (a, b) = (
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                );
                differences(&path, a, b, out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push((at.to_owned(), a.clone(), b.clone())),
    }
}

/// Puts a checkpoint's weights and moments on the device.
pub(crate) fn load(engine: &mut Engine, config: &RunConfig, found: &Found) -> Result<(), RunError> {
    let tensors = named_parameters(&config.model);
    let mut put = |part: Part, name: &str, first: usize, values: &[f64]| {
        engine
            .write_part(part, name, first, values)
            .map_err(|e| e.to_string())
    };
    safetensors::read_f64(&found.path, &tensors, &mut |name, first, values| {
        put(Part::Value, name, first, values)
    })
    .map_err(checkpoint::CheckpointError::from)?;
    let named = |suffix: &'static str| {
        tensors.iter().map(move |t| NamedTensor {
            name: format!("{}{suffix}", t.name),
            ..t.clone()
        })
    };
    let moments: Vec<NamedTensor> = named(".exp_avg").chain(named(".exp_avg_sq")).collect();
    let path = found.path.join("optimizer.safetensors");
    safetensors::read_f64(
        &path,
        &moments,
        &mut |name, first, values| match name.strip_suffix(".exp_avg_sq") {
            Some(name) => put(Part::SecondMoment, name, first, values),
            None => put(
                Part::FirstMoment,
                name.strip_suffix(".exp_avg").unwrap_or(name),
                first,
                values,
            ),
        },
    )
    .map_err(checkpoint::CheckpointError::from)?;
    Ok(())
}
