//! What a user may ask of a source; the same names in the CLI, YAML and JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::SourceError;

/// Column read when none is named: what tokenizers and `datasets` call it.
pub const DEFAULT_COLUMN: &str = "input_ids";

/// What to do with rows that do not have `seq_length` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRagged {
    /// Refuse the dataset, naming the first such row.
    #[default]
    Error,
    /// Leave such rows out; the others keep their sequence and are numbered anew.
    Drop,
    /// Keep shorter rows: [`super::Source::read`] returns their own length and whoever batches fills up with
    /// `pad_id`. Longer rows are still refused, unless truncation is asked for.
    Pad,
}

/// How to read a Hugging Face dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceOptions {
    /// Split of a `DatasetDict`, a cache directory or a folder of parquet files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Token column.
    pub column: String,
    /// Indices table to apply (one u64 column `indices`, as `datasets` leaves in `cache-*.arrow`). Never
    /// applied without being named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indices: Option<PathBuf>,
    /// Tokens per sample; `None` takes rows as long as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq_length: Option<usize>,
    /// Rows of another length than `seq_length`.
    pub on_ragged: OnRagged,
    /// Cut rows longer than `seq_length` to their first tokens instead of treating them as ragged.
    pub truncate: bool,
    /// Token that fills short rows under `on_ragged: pad`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_id: Option<u32>,
    /// Vocabulary size: ids from here on are errors at the read that meets them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<u32>,
    /// Folder for the decoded copies of parquet and compressed Arrow files; by default `$CETERIS_CACHE`, else
    /// `ceteris` in the user's cache folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_cache: Option<PathBuf>,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            split: None,
            column: DEFAULT_COLUMN.to_owned(),
            indices: None,
            seq_length: None,
            on_ragged: OnRagged::default(),
            truncate: false,
            pad_id: None,
            vocab_size: None,
            decode_cache: None,
        }
    }
}

impl SourceOptions {
    /// Checks the options among themselves.
    ///
    /// # Errors
    /// [`SourceError::Options`] naming the contradiction and the way out.
    pub fn validate(&self) -> Result<(), SourceError> {
        let refuse = |text: String| Err(SourceError::Options(text));
        if self.column.is_empty() {
            return refuse("column is empty: name the token column, for example input_ids".to_owned());
        }
        if self.seq_length == Some(0) {
            return refuse("seq_length is 0: a sample needs at least one token".to_owned());
        }
        if self.vocab_size.is_some_and(|v| v == 0 || v > 1 << 31) {
            return refuse(format!(
                "vocab_size is {}; it goes from 1 to {}",
                self.vocab_size.unwrap_or(0),
                1u64 << 31
            ));
        }
        if self.seq_length.is_none() && (self.on_ragged != OnRagged::Error || self.truncate) {
            return refuse(
                "on_ragged and truncate need seq_length: without it rows have no length to differ from"
                    .to_owned(),
            );
        }
        match (self.on_ragged, self.pad_id) {
            (OnRagged::Pad, None) => {
                refuse("on_ragged: pad needs pad_id, the token that fills short rows".to_owned())
            }
            (_, Some(pad)) if i32::try_from(pad).is_err() => {
                refuse(format!("pad_id {pad} does not fit an i32"))
            }
            (_, Some(pad)) if self.vocab_size.is_some_and(|v| pad >= v) => refuse(format!(
                "pad_id {pad} is outside vocab_size {}",
                self.vocab_size.unwrap_or(0)
            )),
            _ => Ok(()),
        }
    }

    /// Largest token id a read accepts.
    pub(crate) fn max_token(&self) -> u32 {
        self.vocab_size.map_or(i32::MAX as u32, |v| v - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused_with_the_way_out() {
        let base = SourceOptions {
            seq_length: Some(8),
            ..SourceOptions::default()
        };
        base.validate().unwrap();
        let bad = [
            (
                SourceOptions {
                    seq_length: Some(0),
                    ..base.clone()
                },
                "at least one token",
            ),
            (
                SourceOptions {
                    column: String::new(),
                    ..base.clone()
                },
                "column is empty",
            ),
            (
                SourceOptions {
                    on_ragged: OnRagged::Pad,
                    ..base.clone()
                },
                "needs pad_id",
            ),
            (
                SourceOptions {
                    pad_id: Some(u32::MAX),
                    ..base.clone()
                },
                "does not fit",
            ),
            (
                SourceOptions {
                    pad_id: Some(10),
                    vocab_size: Some(10),
                    ..base.clone()
                },
                "outside vocab_size 10",
            ),
            (
                SourceOptions {
                    vocab_size: Some(0),
                    ..base.clone()
                },
                "vocab_size is 0",
            ),
            (
                SourceOptions {
                    seq_length: None,
                    truncate: true,
                    ..base.clone()
                },
                "need seq_length",
            ),
        ];
        for (options, text) in bad {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn yaml_names_are_the_field_names_and_unknown_keys_are_refused() {
        let options: SourceOptions = serde_yaml::from_str("{seq_length: 128, on_ragged: drop}").unwrap();
        assert_eq!(
            (options.seq_length, options.on_ragged),
            (Some(128), OnRagged::Drop)
        );
        assert_eq!(options.column, "input_ids");
        let error = serde_yaml::from_str::<SourceOptions>("{seqlength: 128}")
            .unwrap_err()
            .to_string();
        assert!(error.contains("seqlength"), "{error}");
    }
}
