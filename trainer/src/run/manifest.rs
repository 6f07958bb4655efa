//! `manifest.json`: what a run is made of, as hashes and seeds, so that two runs can be told apart knob by knob.

use std::path::Path;

use ceteris_loader::fingerprint::{DEFINITION, Fingerprint};
use ceteris_samplers::{Geometry, OrderSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::metrics::{self, Line};
use super::{RunError, io, selftest, write_atomic};
use crate::checkpoint::FORMAT;
use crate::config::RunConfig;
use crate::data::TrainData;

/// One seed in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectiveSeed {
    /// What it seeds.
    pub of: String,
    /// The seed.
    pub seed: String,
}

/// The processor and system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Cores the process may use.
    pub cores: usize,
    /// Operating system and architecture.
    pub os: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = text
            .lines()
            .find_map(|l| l.strip_prefix("model name"))
            .map_or("unknown", |l| l.trim_start_matches([' ', '\t', ':']));
        Machine {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// What a run is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of this file.
    pub format: u32,
    /// Version of the writer.
    pub ceteris_version: String,
    /// Digest of the network's settings.
    pub model_hash: String,
    /// SHA-256 over the initial weights' names and SHA-256s, sorted by name.
    pub init_hash: String,
    /// Digest of every row the run consumes, in deal position order.
    pub order_hash: String,
    /// The order.
    pub order: OrderSpec,
    /// Layout of a global batch.
    pub geometry: Geometry,
    /// Steps of the run.
    pub steps: u64,
    /// Fingerprint of the dataset's files.
    pub dataset_fingerprint: String,
    /// Samples in the dataset.
    pub num_samples: u64,
    /// Every seed in effect.
    pub seeds: Vec<EffectiveSeed>,
    /// Trained values.
    pub parameters: u64,
    /// Where it runs.
    pub machine: Machine,
    /// Device and arithmetic.
    #[serde(default)]
    pub device: String,
    /// Result of the last self-test of this version on this machine, if there was one.
    pub selftest: Option<selftest::Report>,
    /// Fingerprint over the steps' fingerprints, once the run has ended.
    pub run_fingerprint: Option<String>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn load(path: &Path) -> Result<Self, RunError> {
        let text = std::fs::read_to_string(path).map_err(super::io(path, "read"))?;
        serde_json::from_str(&text).map_err(|e| RunError::Folder {
            path: path.to_owned(),
            problem: e.to_string(),
        })
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// [`RunError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), RunError> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| super::io(path, "write")(e.into()))?;
        text.push('\n');
        write_atomic(path, &text)
    }
}

/// The format of manifests is that of checkpoints.
pub const MANIFEST_FORMAT: u32 = FORMAT;

/// One hash over the hashes of all tensors.
pub fn combined_sha256(tensors: &[(String, String)]) -> String {
    let mut sorted: Vec<&(String, String)> = tensors.iter().collect();
    sorted.sort();
    let mut hasher = Sha256::new();
    for (name, sha) in sorted {
        hasher.update(format!("{name} {sha}\n"));
    }
    crate::hex(&hasher.finalize())
}

/// Digest over the steps' fingerprints of a metrics file.
///
/// # Errors
/// [`RunError`].
pub fn run_fingerprint(path: &Path) -> Result<String, RunError> {
    let lines = metrics::read(path).map_err(io(path, "read"))?;
    let mut steps = Vec::new();
    for line in &lines {
        if let Line::Step(line) = line {
            let digest: Fingerprint = line.batch_fingerprint.parse().map_err(|_| RunError::Folder {
                path: path.to_owned(),
                problem: format!(
                    "step {}: '{}' is no fingerprint of definition {DEFINITION}",
                    line.step, line.batch_fingerprint
                ),
            })?;
            steps.push(digest);
        }
    }
    Ok(Fingerprint::combine(steps).to_string())
}

/// What a run with these settings is made of.
///
/// # Errors
/// [`RunError`].
pub fn manifest(
    config: &RunConfig,
    data: &TrainData,
    steps: u64,
    init_hash: &str,
    parameters: usize,
) -> Result<Manifest, RunError> {
    let spec = data.order.spec().clone();
    let mut seeds: Vec<EffectiveSeed> = spec
        .seeds()
        .into_iter()
        .map(|(of, seed)| EffectiveSeed {
            of: format!("order: {of}"),
            seed: seed.to_string(),
        })
        .collect();
    seeds.push(EffectiveSeed {
        of: "initial weights".into(),
        seed: config.seeds.init.to_string(),
    });
    Ok(Manifest {
        format: MANIFEST_FORMAT,
        ceteris_version: env!("CARGO_PKG_VERSION").into(),
        model_hash: config.model_hash(),
        init_hash: init_hash.to_owned(),
        order_hash: data.order_hash(steps)?,
        order: spec,
        geometry: data.geometry,
        steps,
        dataset_fingerprint: data.fingerprint.clone(),
        num_samples: data.source.num_samples(),
        seeds,
        parameters: parameters as u64,
        device: String::new(),
        machine: Machine::here(),
        selftest: selftest::recorded(),
        run_fingerprint: None,
    })
}
