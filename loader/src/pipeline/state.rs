//! Where a run stands: a few integers, and what they refer to.
//!
//! A state names the next micro-step, so resuming is a seek: nothing that was consumed is read again. It also names the
//! order, the layout and the dataset it was taken from; anything that does not match is refused with its name, as the
//! same position in another order or dataset means nothing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ceteris_samplers::{Geometry, OrderSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::atomic;

/// Format of the state; raised when a field changes its meaning.
pub const STATE_VERSION: u32 = 1;

/// Data a state belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetIdentity {
    /// Content fingerprint, empty when none was computed.
    pub fingerprint: String,
    /// Samples.
    pub num_samples: u64,
    /// Files by name, in order.
    pub files: Vec<String>,
}

/// Samples consumed from one part of the dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCount {
    /// Name of the part.
    pub source: String,
    /// Samples consumed from it over all ranks, padding included.
    pub samples: u64,
}

/// Where a run stands between two micro-steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderState {
    /// [`STATE_VERSION`] of the writer.
    pub state_version: u32,
    /// Ceteris version of the writer.
    pub ceteris_version: String,
    /// The order.
    pub order: OrderSpec,
    /// The layout over ranks.
    pub geometry: Geometry,
    /// The dataset.
    pub dataset: DatasetIdentity,
    /// Tokens of a row.
    pub seq_length: u64,
    /// Epoch of the next micro-step.
    pub epoch: u64,
    /// Next micro-step, within the epoch.
    pub micro_step: u64,
    /// Next micro-step, since the start of the run.
    pub global_micro_step: u64,
    /// Optimizer step, since the start of the run, that the next micro-step belongs to.
    pub global_step: u64,
    /// Samples consumed over all ranks, padding included.
    pub consumed_samples: u64,
    /// The same by part of the dataset.
    pub consumed_samples_per_source: Vec<SourceCount>,
}

/// One thing in which a state differs from what it is resumed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field.
    pub what: String,
    /// In the state.
    pub saved: String,
    /// Now.
    pub now: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the state has {}, now {}", self.what, self.saved, self.now)
    }
}

fn list(differences: &[Difference]) -> String {
    differences
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Why a state is refused.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("{}: cannot {action} the loader state: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// "read" or "write".
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a state.
    #[error("{}: not a loader state: {reason}; without a data position a run cannot be resumed", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Written by a version with another format.
    #[error("the loader state has format {found}, this version reads format {STATE_VERSION}")]
    Version {
        /// The format found.
        found: u32,
    },
    /// The state belongs to something else.
    #[error("the state does not fit: {}", list(differences))]
    Mismatch {
        /// Everything that differs.
        differences: Vec<Difference>,
    },
    /// The position does not exist.
    #[error(
        "the state stands at micro-step {micro_step} of epoch {epoch}, which has {micro_steps} micro-steps"
    )]
    Position {
        /// Epoch of the state.
        epoch: u64,
        /// Micro-step of the state.
        micro_step: u64,
        /// Micro-steps of that epoch.
        micro_steps: u64,
    },
    /// The counters contradict each other.
    #[error(
        "the state's counters contradict each other: micro-step {micro_step} of epoch {epoch} with {micro_steps} \
         micro-steps an epoch is not global micro-step {global}"
    )]
    Counters {
        /// Epoch of the state.
        epoch: u64,
        /// Micro-step of the state.
        micro_step: u64,
        /// Micro-steps of an epoch.
        micro_steps: u64,
        /// Global micro-step of the state.
        global: u64,
    },
    /// Another layout, and the order's samples depend on the layout.
    #[error(
        "order {order} deals other samples under another layout, so a run of {saved} cannot be resumed with {now}"
    )]
    NotElastic {
        /// The order.
        order: String,
        /// Layout of the state.
        saved: String,
        /// Layout now.
        now: String,
    },
    /// The state's epoch cannot be built.
    #[error("epoch {epoch} of the state cannot be built: {reason}")]
    Order {
        /// Epoch of the state.
        epoch: u64,
        /// Why.
        reason: String,
    },
    /// Another global batch.
    #[error(
        "the global batch changes from {saved} to {now}: the batches of the run so far would not be continued. Resume \
         with a layout of {saved} samples a step, or allow the change explicitly"
    )]
    GlobalBatch {
        /// Samples a step in the state.
        saved: u64,
        /// Samples a step now.
        now: u64,
    },
    /// The state lies within a micro-step of the new layout.
    #[error(
        "the state stands after {consumed} samples of its epoch, which is within a micro-step of the new layout ({now}); \
         save at the end of an optimizer step to change the layout"
    )]
    Unaligned {
        /// Samples of the epoch consumed.
        consumed: u64,
        /// Layout now.
        now: String,
    },
}

impl LoaderState {
    /// Writes the state to `path`, whole or not at all.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let fail = |source| StateError::Io {
            path: path.to_owned(),
            action: "write",
            source,
        };
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| fail(e.into()))?;
        text.push(b'\n');
        atomic::write(path, &text).map_err(fail)
    }

    /// Reads a state.
    ///
    /// # Errors
    /// [`StateError::Io`], or [`StateError::Format`] when a field is missing, unknown or of the wrong type.
    pub fn load(path: &Path) -> Result<LoaderState, StateError> {
        let text = fs::read_to_string(path).map_err(|source| StateError::Io {
            path: path.to_owned(),
            action: "read",
            source,
        })?;
        let format = |reason: String| StateError::Format {
            path: path.to_owned(),
            reason,
        };
        let value: Value = serde_json::from_str(&text).map_err(|e| format(e.to_string()))?;
        if let Some(found) = value.get("state_version").and_then(Value::as_u64)
            && found != u64::from(STATE_VERSION)
        {
            return Err(StateError::Version {
                found: u32::try_from(found).unwrap_or(u32::MAX),
            });
        }
        serde_json::from_value(value).map_err(|e| format(e.to_string()))
    }

    /// Everything in which this state belongs to another run than the one described; the layout is compared elsewhere,
    /// as it may change.
    pub(crate) fn differences(&self, now: &LoaderState) -> Vec<Difference> {
        let mut found = Vec::new();
        let as_json = |spec: &OrderSpec| serde_json::to_value(spec).unwrap_or(Value::Null);
        if self.order != now.order {
            compare("order", &as_json(&self.order), &as_json(&now.order), &mut found);
        }
        let mut field = |what: &str, saved: String, now: String| {
            if saved != now {
                found.push(Difference {
                    what: what.to_owned(),
                    saved,
                    now,
                });
            }
        };
        field(
            "dataset size",
            self.dataset.num_samples.to_string(),
            now.dataset.num_samples.to_string(),
        );
        if !self.dataset.fingerprint.is_empty() && !now.dataset.fingerprint.is_empty() {
            field(
                "dataset fingerprint",
                self.dataset.fingerprint.clone(),
                now.dataset.fingerprint.clone(),
            );
        } else {
            // Without contents to compare, the names of the files are what there is.
            field(
                "dataset files",
                self.dataset.files.join(", "),
                now.dataset.files.join(", "),
            );
        }
        field(
            "seq_length",
            self.seq_length.to_string(),
            now.seq_length.to_string(),
        );
        found
    }
}

/// Names the leaves in which two JSON values differ.
fn compare(path: &str, saved: &Value, now: &Value, found: &mut Vec<Difference>) {
    match (saved, now) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let (a, b) = (
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                );
                compare(&format!("{path}.{key}"), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(Difference {
            what: path.to_owned(),
            saved: a.to_string(),
            now: b.to_string(),
        }),
    }
}

/// A layout in words.
pub(crate) fn layout(geometry: Geometry) -> String {
    format!(
        "{} rank(s) × micro-batch {} × accumulation {} = {} samples a step",
        geometry.world_size,
        geometry.micro_batch_size,
        geometry.gradient_accumulation_steps,
        geometry.global_batch_size()
    )
}
