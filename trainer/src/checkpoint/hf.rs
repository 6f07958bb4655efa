//! `config.json` as flash-linear-attention's `GatedDeltaNetConfig` saves it.

use serde_json::Value;

use super::safetensors::Stored;
use crate::model::ModelConfig;

/// Contents of `config.json` for weights stored as `stored`.
pub fn config_json(model: &ModelConfig, stored: Stored) -> Value {
    let mut value = serde_json::to_value(model).unwrap_or_default();
    if let Value::Object(map) = &mut value {
        map.insert(
            "architectures".into(),
            serde_json::json!(["GatedDeltaNetForCausalLM"]),
        );
        let dtype = match stored {
            Stored::F32 => "float32",
            Stored::F64 => "float64",
        };
        map.insert("dtype".into(), dtype.into());
    }
    value
}
