//! The run that is replayed and the order that it is replayed with.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ReplayError, folder};
use crate::config::{self, RunConfig};
use crate::data::TrainData;
use crate::run::folder::RunFolder;
use crate::run::manifest::Manifest;

/// The run, the run with the other order, and their data.
#[derive(Debug)]
pub struct Sides {
    /// Folder of the run.
    pub from: PathBuf,
    /// Folder of the run whose order is taken, where it is one.
    pub other: Option<PathBuf>,
    /// Settings of the run.
    pub a: RunConfig,
    /// The same with the other order.
    pub b: RunConfig,
    /// Data of the run.
    pub data_a: TrainData,
    /// The same rows in the other order.
    pub data_b: TrainData,
    /// The run's manifest.
    pub manifest: Manifest,
    /// What the reader should know.
    pub notes: Vec<String>,
}

fn resolved(run: &Path, sets: &[String]) -> Result<RunConfig, ReplayError> {
    let settings = RunFolder::new(run).settings();
    if !settings.is_file() {
        return folder(run, "is no run: it holds no config.resolved.yaml");
    }
    // The settings of a run are whole: the environment has had its say.
    Ok(config::load(Some(&settings), sets, &|_| None)?.config)
}

impl Sides {
    /// Opens the run at `from`. `with` is `order=RUN` (a run's folder: its order and data seed) or `order=NAME` or
    /// `order={name: NAME, …}` (an order; the data seed stays the run's). `device` computes in place of the run's.
    ///
    /// # Errors
    /// [`ReplayError`]: no run, another dataset than the run had, an order that does not exist.
    pub fn open(from: &Path, with: &str, device: Option<&str>) -> Result<Self, ReplayError> {
        let bad = |problem: String| ReplayError::With {
            text: with.to_owned(),
            problem,
        };
        let value = with
            .split_once('=')
            .filter(|(key, value)| *key == "order" && !value.is_empty())
            .map(|(_, value)| value)
            .ok_or_else(|| bad("expected order=RUN (a run's folder) or order=NAME".into()))?;
        let on: Vec<String> = device.map(|d| format!("train.device={d}")).into_iter().collect();
        let a = resolved(from, &on)?;
        let manifest = Manifest::load(&RunFolder::new(from).manifest())?;
        let (other, sets) = if Path::new(value).is_dir() {
            let theirs = resolved(Path::new(value), &[])?;
            let order = Value::Object(theirs.order.clone()).to_string();
            let sets = vec![
                format!("order={order}"),
                format!("seeds.data={}", theirs.seeds.data),
            ];
            (Some(PathBuf::from(value)), sets)
        } else {
            (None, vec![format!("order={value}")])
        };
        let b = resolved(from, &[on, sets].concat())?;
        let mut notes = Vec::new();
        let data_a = TrainData::open(&a, &mut |n| notes.push(n.to_owned()))?;
        let data_b = TrainData::over(&b, data_a.source.clone(), data_a.fingerprint.clone())?;
        if data_a.fingerprint != manifest.dataset_fingerprint {
            return folder(
                from,
                format!(
                    "its dataset had fingerprint {}, {} now has {}: the rows are not those of the run",
                    manifest.dataset_fingerprint,
                    a.data.cache_dir.display(),
                    data_a.fingerprint
                ),
            );
        }
        if let Some(other) = &other {
            let theirs = Manifest::load(&RunFolder::new(other).manifest())?;
            if theirs.dataset_fingerprint != manifest.dataset_fingerprint {
                return folder(
                    other,
                    "deals the rows of another dataset; an order can only be taken over the same rows",
                );
            }
            if theirs.geometry != manifest.geometry {
                notes.push(format!(
                    "the other run's layout is not taken: its order is dealt to {} rank(s) x micro-batch {} x accumulation {}",
                    manifest.geometry.world_size,
                    manifest.geometry.micro_batch_size,
                    manifest.geometry.gradient_accumulation_steps
                ));
            }
        }
        Ok(Sides {
            from: from.to_owned(),
            other,
            a,
            b,
            data_a,
            data_b,
            manifest,
            notes,
        })
    }
}
