//! A Hugging Face `config.json` as settings of the network.

use std::path::Path;

use serde_json::{Map, Value};

use super::compose::ConfigError;

/// Keys of `PreTrainedConfig` (transformers 5.24.0) that say nothing about the network.
const BOOK_KEEPING: [&str; 17] = [
    "architectures",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
    "_attn_implementation_autoset",
    "_attn_implementation",
    "use_return_dict",
];

/// Keys of a Hugging Face `config.json` that describe the network.
///
/// # Errors
/// A file that is not a JSON object.
pub fn read_model_json(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let fail = |problem: String| ConfigError::File {
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(path).map_err(|e| fail(format!("cannot read: {e}")))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
    match value {
        Value::Object(mut map) => {
            map.retain(|key, _| !BOOK_KEEPING.contains(&key.as_str()));
            Ok(map)
        }
        _ => Err(fail("is not a JSON object".into())),
    }
}
