//! Begin, end and padding ids and the vocabulary's size, from a tokenizer's files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::audit::SpecialIds;

/// Why a tokenizer's files tell nothing.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TokenizerFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub problem: String,
}

/// Reads `tokenizer.json` and, beside it, `tokenizer_config.json`; `path` is the folder or the first of them.
///
/// # Errors
/// [`TokenizerFileError`] for a file that is missing or no JSON.
pub fn read(path: &Path) -> Result<SpecialIds, TokenizerFileError> {
    let tokenizer = if path.is_dir() {
        path.join("tokenizer.json")
    } else {
        path.to_owned()
    };
    let json = |path: &Path| -> Result<Value, TokenizerFileError> {
        let wrong = |problem: String| TokenizerFileError {
            path: path.to_owned(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
    };
    let whole = json(&tokenizer)?;
    let config = tokenizer.with_file_name("tokenizer_config.json");
    let config = if config.is_file() {
        json(&config)?
    } else {
        Value::Null
    };
    let id_of = |token: &str| -> Option<i32> {
        let added = whole["added_tokens"].as_array()?;
        let id = added
            .iter()
            .find(|entry| entry["content"] == token)
            .map(|entry| &entry["id"])
            .or_else(|| whole["model"]["vocab"].get(token))?;
        i32::try_from(id.as_i64()?).ok()
    };
    // A special token is a string, or a map with its content.
    let named = |key: &str| -> Option<i32> {
        let token = &config[key];
        id_of(token.as_str().or_else(|| token["content"].as_str())?)
    };
    let largest = |ids: &mut dyn Iterator<Item = &Value>| ids.filter_map(Value::as_u64).max();
    let of_model = match &whole["model"]["vocab"] {
        Value::Object(vocab) => largest(&mut vocab.values()),
        Value::Array(vocab) => (vocab.len() as u64).checked_sub(1),
        _ => None,
    };
    let added = whole["added_tokens"].as_array();
    let of_added = added.and_then(|added| largest(&mut added.iter().map(|entry| &entry["id"])));
    Ok(SpecialIds {
        bos: named("bos_token"),
        eos: named("eos_token"),
        pad: named("pad_token"),
        vocab_size: of_model
            .max(of_added)
            .and_then(|largest| largest.checked_add(1))
            .and_then(|size| u32::try_from(size).ok()),
    })
}
