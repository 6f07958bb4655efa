//! The section `data`: what is read.

use std::path::PathBuf;

use ceteris_loader::source::OnRagged;
use serde::{Deserialize, Serialize};

use super::SettingError;
use super::sections::refuse;

/// Where documents start inside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentMarker {
    /// A row is one document.
    #[default]
    None,
    /// At each `bos_token_id` of the model.
    Bos,
    /// Behind each `eos_token_id` of the model.
    Eos,
}

/// Who makes the labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collate {
    /// Labels are the inputs, padding is ignored, the model shifts.
    #[default]
    Hf,
    /// Labels are shifted in the data: the FLA-order shim.
    Shim,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// `save_to_disk` folder, Hugging Face cache folder, `.arrow` or parquet files with one row a sample.
    pub cache_dir: PathBuf,
    /// Split of a folder with several.
    pub split: Option<String>,
    /// Token column.
    pub column: String,
    /// Indices table to apply.
    pub indices: Option<PathBuf>,
    /// Tokens of a row.
    pub seq_length: usize,
    /// Rows of another length: `error`, `drop`, `pad`.
    pub on_ragged: OnRagged,
    /// Cut longer rows.
    pub truncate: bool,
    /// Token that fills short rows and that no loss is taken for.
    pub pad_token_id: Option<u32>,
    /// Who makes the labels: `hf` or `shim`.
    pub collator: Collate,
    /// Isolate documents inside rows: `none`, `bos`, `eos`.
    pub documents: DocumentMarker,
    /// Room for documents in a row, where they are isolated.
    pub max_documents_per_row: usize,
}

impl Default for DataConfig {
    fn default() -> Self {
        DataConfig {
            cache_dir: PathBuf::new(),
            split: None,
            column: "input_ids".into(),
            indices: None,
            seq_length: 2048,
            on_ragged: OnRagged::Error,
            truncate: false,
            pad_token_id: None,
            collator: Collate::Hf,
            documents: DocumentMarker::None,
            max_documents_per_row: 64,
        }
    }
}

impl DataConfig {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.cache_dir.as_os_str().is_empty() {
            return refuse(
                "data.cache_dir",
                "is not given; name the folder of the tokenized dataset",
            );
        }
        if self.seq_length < 2 {
            return refuse(
                "data.seq_length",
                format!("{}; allowed: 2 or more", self.seq_length),
            );
        }
        if self.on_ragged == OnRagged::Pad && self.pad_token_id.is_none() {
            return refuse(
                "data.pad_token_id",
                "on_ragged: pad needs the token that fills short rows",
            );
        }
        if self.max_documents_per_row == 0 {
            return refuse("data.max_documents_per_row", "allowed: 1 or more");
        }
        if self.collator == Collate::Shim && self.pad_token_id.is_none() {
            return refuse(
                "data.pad_token_id",
                "collator: shim needs the token its last label is set to",
            );
        }
        Ok(())
    }
}
