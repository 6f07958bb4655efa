//! Configuration of a gated delta network: FLA's keys, FLA's defaults, FLA's rules for what fits together.
//!
//! Source: `GatedDeltaNetConfig` and `GatedDeltaNet.__init__` of flash-linear-attention 0.6.0. Keys that say how a
//! GPU kernel is fused change no result here and are read, kept and written back; keys that change the model to
//! something that is not built are refused when they are set.

use serde::{Deserialize, Serialize};

/// Activation of the output gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateActivation {
    /// `x * sigmoid(x)`; FLA calls it `swish` as well.
    #[default]
    #[serde(alias = "silu")]
    Swish,
    /// `sigmoid(x)`.
    Sigmoid,
}

/// Why a model configuration is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("model.{key}: {problem}")]
pub struct ModelConfigError {
    /// The key.
    pub key: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}

fn refuse<T>(key: &'static str, problem: impl Into<String>) -> Result<T, ModelConfigError> {
    Err(ModelConfigError {
        key,
        problem: problem.into(),
    })
}

/// A gated delta network as `GatedDeltaNetForCausalLM` is configured. Defaults are FLA's, but for `vocab_size` of the
/// data it is the user's task to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Always `gated_deltanet`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Query and key heads.
    pub num_heads: usize,
    /// Value heads, a multiple of `num_heads`; `num_heads` when absent.
    pub num_v_heads: Option<usize>,
    /// Dimensions of a query or key head.
    pub head_dim: usize,
    /// Dimensions of a value head over those of a key head.
    pub expand_v: f64,
    /// Width of the MLP's hidden layer; from `hidden_ratio` when absent.
    pub intermediate_size: Option<usize>,
    /// `hidden_size * hidden_ratio * 2 / 3`, rounded up to a multiple of 256, is the MLP's width.
    pub hidden_ratio: Option<usize>,
    /// Activation of the MLP's gate: `swish`.
    pub hidden_act: String,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Head and embedding are one table.
    pub tie_word_embeddings: bool,
    /// Epsilon of all RMSNorms.
    pub norm_eps: f64,
    /// Gate the mixer's output.
    pub use_gate: bool,
    /// Activation of that gate.
    pub output_gate_activation: GateActivation,
    /// Short causal convolutions on q, k and v.
    pub use_short_conv: bool,
    /// Width of the short convolutions.
    pub conv_size: usize,
    /// Beta in (0, 2) instead of (0, 1).
    pub allow_neg_eigval: bool,
    /// Standard deviation of the normal initialisation.
    pub initializer_range: f64,
    /// `chunk` or `fused_recurrent`; training is chunked in either.
    pub attn_mode: String,
    /// Standard attention layers of a hybrid; must be absent.
    pub attn: Option<serde_json::Value>,
    /// Attention-residual blocks; must be absent.
    pub attnres_block_size: Option<usize>,
    /// Penalty on large logits; must be off.
    pub use_l2warp: bool,
    /// Nominal context length; changes nothing.
    pub max_position_embeddings: usize,
    /// Inference cache; changes nothing.
    pub use_cache: bool,
    /// Padding token, kept for the checkpoint.
    pub pad_token_id: Option<u32>,
    /// Begin token, kept for the checkpoint.
    pub bos_token_id: Option<u32>,
    /// End token, kept for the checkpoint.
    pub eos_token_id: Option<u32>,
    /// GPU kernel choice of FLA; changes nothing here.
    pub fuse_norm: bool,
    /// GPU kernel choice of FLA; changes nothing here.
    pub fuse_swiglu: bool,
    /// GPU kernel choice of FLA; changes nothing here.
    pub fuse_cross_entropy: bool,
    /// GPU kernel choice of FLA; changes nothing here.
    pub fuse_linear_cross_entropy: bool,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            model_type: "gated_deltanet".into(),
            hidden_size: 2048,
            num_hidden_layers: 21,
            num_heads: 6,
            num_v_heads: None,
            head_dim: 256,
            expand_v: 2.0,
            intermediate_size: None,
            hidden_ratio: Some(4),
            hidden_act: "swish".into(),
            vocab_size: 32000,
            tie_word_embeddings: false,
            norm_eps: 1e-6,
            use_gate: true,
            output_gate_activation: GateActivation::Swish,
            use_short_conv: true,
            conv_size: 4,
            allow_neg_eigval: false,
            initializer_range: 0.02,
            attn_mode: "chunk".into(),
            attn: None,
            attnres_block_size: None,
            use_l2warp: false,
            max_position_embeddings: 2048,
            use_cache: true,
            pad_token_id: None,
            bos_token_id: Some(1),
            eos_token_id: Some(2),
            fuse_norm: true,
            fuse_swiglu: true,
            fuse_cross_entropy: true,
            fuse_linear_cross_entropy: false,
        }
    }
}

impl ModelConfig {
    /// The network of `configs/gdn-300m.yaml`, of 308 million values: what self-test and benchmarks take their sizes from.
    pub fn gdn_300m() -> Self {
        ModelConfig {
            hidden_size: 1024,
            num_hidden_layers: 12,
            intermediate_size: Some(4096),
            num_heads: 4,
            num_v_heads: Some(8),
            head_dim: 64,
            expand_v: 1.0,
            vocab_size: 128_256,
            tie_word_embeddings: true,
            use_cache: false,
            ..ModelConfig::default()
        }
    }
}

/// Largest table, layer count or width taken from a file before anything is allocated for it.
const LARGEST: usize = 1 << 24;

impl ModelConfig {
    /// Value heads.
    pub fn value_heads(&self) -> usize {
        self.num_v_heads.unwrap_or(self.num_heads)
    }

    /// Dimensions of a value head: `int(head_dim * expand_v)`.
    pub fn head_v_dim(&self) -> usize {
        (self.head_dim as f64 * self.expand_v) as usize
    }

    /// Width of the query and key projections.
    pub fn key_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of the value and gate projections.
    pub fn value_dim(&self) -> usize {
        self.value_heads() * self.head_v_dim()
    }

    /// Width of the MLP.
    pub fn mlp_size(&self) -> usize {
        self.intermediate_size.unwrap_or_else(|| {
            let ratio = self.hidden_ratio.unwrap_or(4) as f64;
            let wide = (self.hidden_size as f64 * ratio * 2.0 / 3.0) as usize;
            wide.div_ceil(256) * 256
        })
    }

    /// Checks every value and every combination.
    ///
    /// # Errors
    /// The first key that is out of range, contradicts another or asks for a part that is not built, with what is
    /// allowed.
    pub fn validate(&self) -> Result<(), ModelConfigError> {
        if self.model_type != "gated_deltanet" {
            return refuse(
                "model_type",
                format!("'{}' is not built; allowed: gated_deltanet", self.model_type),
            );
        }
        for (key, value) in [
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_heads", self.num_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
            ("conv_size", self.conv_size),
            ("num_v_heads", self.value_heads()),
            ("intermediate_size", self.mlp_size()),
        ] {
            if value == 0 || value > LARGEST {
                return refuse(key, format!("{value} is out of range; allowed: 1 to {LARGEST}"));
            }
        }
        if !self.value_heads().is_multiple_of(self.num_heads) {
            return refuse(
                "num_v_heads",
                format!(
                    "{} is not a multiple of num_heads {}",
                    self.value_heads(),
                    self.num_heads
                ),
            );
        }
        let exact = self.head_dim as f64 * self.expand_v;
        if !(exact.is_finite() && exact >= 1.0 && exact <= LARGEST as f64 && exact.fract() == 0.0) {
            return refuse(
                "expand_v",
                format!(
                    "{} times head_dim {} is {exact}; allowed: products that are whole numbers from 1 on",
                    self.expand_v, self.head_dim
                ),
            );
        }
        if self.hidden_act != "swish" {
            return refuse(
                "hidden_act",
                format!("'{}' is not built; allowed: swish", self.hidden_act),
            );
        }
        if !matches!(self.attn_mode.as_str(), "chunk" | "fused_recurrent") {
            return refuse(
                "attn_mode",
                format!(
                    "'{}'; allowed: chunk, fused_recurrent (training is chunked in either)",
                    self.attn_mode
                ),
            );
        }
        if self.attn.is_some() {
            return refuse(
                "attn",
                "hybrids with attention layers are not built; remove the key",
            );
        }
        if self.attnres_block_size.is_some() {
            return refuse(
                "attnres_block_size",
                "attention residuals are not built; remove the key",
            );
        }
        if self.use_l2warp {
            return refuse("use_l2warp", "the penalty on logits is not built; allowed: false");
        }
        if self.fuse_cross_entropy && self.fuse_linear_cross_entropy {
            return refuse(
                "fuse_linear_cross_entropy",
                "cannot be true together with fuse_cross_entropy (FLA refuses it too)",
            );
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return refuse(
                "norm_eps",
                format!("{}; allowed: finite and not negative", self.norm_eps),
            );
        }
        if !(self.initializer_range.is_finite() && self.initializer_range > 0.0) {
            return refuse(
                "initializer_range",
                format!("{}; allowed: finite and positive", self.initializer_range),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_sizes_follow_fla() {
        let config = ModelConfig::default();
        assert_eq!(config.head_v_dim(), 512);
        assert_eq!(config.key_dim(), 1536);
        assert_eq!(config.value_dim(), 3072);
        // int(2048 * 4 * 2 / 3) = 5461, up to the next multiple of 256.
        assert_eq!(config.mlp_size(), 5632);
        assert!(config.validate().is_ok());
    }

    #[test]
    fn combinations_that_do_not_fit_are_refused_by_key() {
        let refused = |change: &dyn Fn(&mut ModelConfig)| {
            let mut config = ModelConfig::default();
            change(&mut config);
            config.validate().unwrap_err().key
        };
        assert_eq!(refused(&|c| c.num_v_heads = Some(7)), "num_v_heads");
        assert_eq!(refused(&|c| c.expand_v = 1.001), "expand_v");
        assert_eq!(refused(&|c| c.expand_v = f64::NAN), "expand_v");
        assert_eq!(refused(&|c| c.hidden_act = "gelu".into()), "hidden_act");
        assert_eq!(refused(&|c| c.attn = Some(serde_json::json!({}))), "attn");
        assert_eq!(refused(&|c| c.vocab_size = 0), "vocab_size");
        assert_eq!(
            refused(&|c| c.fuse_linear_cross_entropy = true),
            "fuse_linear_cross_entropy"
        );
    }

    #[test]
    fn fla_json_is_read() {
        let json = r#"{"model_type":"gated_deltanet","hidden_size":64,"num_heads":2,"num_v_heads":4,"head_dim":16,
            "expand_v":1.0,"output_gate_activation":"silu","tie_word_embeddings":true,"vocab_size":97}"#;
        let config: ModelConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config.output_gate_activation, GateActivation::Swish);
        assert_eq!(config.value_dim(), 64);
    }
}
