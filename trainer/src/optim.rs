//! The optimizer's settings and which tensors its weight decay touches.
//!
//! AdamW itself is an operator of the plan. Stacks disagree about decay, and loss gaps come from it: the presets name
//! what each of them really does, and [`decay_table`] shows it tensor by tensor.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Whose rule decides which tensors decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayPreset {
    /// transformers 5.24.0 `Trainer.get_decay_parameter_names`: exempt are names with `bias`, `layernorm`, `rmsnorm`, a
    /// part `norm`, or a part that ends in `_norm`. `dt_bias` and the norms are exempt by that; `A_log`, the
    /// convolutions and the embedding decay. The `_no_weight_decay` marks of flash-linear-attention are not read.
    #[default]
    HfTrainer,
    /// The Trainer's rule and, besides, what flash-linear-attention 0.6.0 marks `_no_weight_decay`: `A_log`, `dt_bias`.
    Fla,
    /// Megatron-Core's `get_param_groups`: exempt are names that end in `.bias` and tensors of one dimension.
    Megatron,
    /// Every tensor decays.
    All,
}

/// Names of the presets, for messages.
pub const DECAY_PRESETS: [(&str, DecayPreset); 4] = [
    ("hf-trainer", DecayPreset::HfTrainer),
    ("fla", DecayPreset::Fla),
    ("megatron", DecayPreset::Megatron),
    ("all", DecayPreset::All),
];

impl DecayPreset {
    /// Whether the tensor of this name and shape decays.
    pub fn decays(self, name: &str, shape: &[usize]) -> bool {
        match self {
            DecayPreset::HfTrainer => !exempt_in_trainer(name),
            DecayPreset::Fla => {
                let marked = matches!(name.rsplit('.').next(), Some("A_log" | "dt_bias"));
                !marked && !exempt_in_trainer(name)
            }
            DecayPreset::Megatron => !(name.ends_with(".bias") || shape.len() == 1),
            DecayPreset::All => true,
        }
    }
}

fn exempt_in_trainer(name: &str) -> bool {
    let name = name.to_lowercase();
    ["bias", "layernorm", "rmsnorm"]
        .iter()
        .any(|part| name.contains(part))
        || name
            .split('.')
            .any(|part| part == "norm" || part.ends_with("_norm"))
}

/// AdamW's settings. Defaults are those of `torch.optim.AdamW` but for `beta2` and `eps`, which the HF run scripts of
/// flash-linear-attention set to 0.95 and 1e-8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Always `adamw`.
    pub name: String,
    /// Peak learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of the tensors that decay.
    pub weight_decay: f64,
    /// Which tensors decay: `hf-trainer`, `fla`, `megatron`, `all`.
    pub decay: DecayPreset,
    /// Clip the global gradient norm to this; absent: no clipping.
    pub max_grad_norm: Option<f64>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            name: "adamw".into(),
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.01,
            decay: DecayPreset::HfTrainer,
            max_grad_norm: Some(1.0),
        }
    }
}

/// Why optimizer settings are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("optimizer.{key}: {problem}")]
pub struct OptimizerError {
    /// The key.
    pub key: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl OptimizerConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        let refuse = |key, problem: String| Err(OptimizerError { key, problem });
        if self.name != "adamw" {
            return refuse("name", format!("'{}' is not built; allowed: adamw", self.name));
        }
        for (key, value, below) in [
            ("lr", self.lr, f64::INFINITY),
            ("beta1", self.beta1, 1.0),
            ("beta2", self.beta2, 1.0),
            ("eps", self.eps, f64::INFINITY),
            ("weight_decay", self.weight_decay, f64::INFINITY),
        ] {
            if !(value >= 0.0 && value < below) {
                return refuse(key, format!("{value}; allowed: 0 or more, below {below}"));
            }
        }
        match self.max_grad_norm {
            Some(norm) if !(norm.is_finite() && norm > 0.0) => refuse(
                "max_grad_norm",
                format!("{norm}; allowed: positive, or null for no clipping"),
            ),
            _ => Ok(()),
        }
    }
}

/// A table of every tensor with its weight decay, and the totals of both groups.
pub fn decay_table<'a>(
    optimizer: &OptimizerConfig,
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>,
) -> String {
    let rows: Vec<(&str, String, usize, bool)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let text: Vec<String> = shape.iter().map(usize::to_string).collect();
            let decays = optimizer.decay.decays(name, shape);
            (name, text.join(" x "), shape.iter().product(), decays)
        })
        .collect();
    let wide = rows.iter().map(|r| r.0.len()).max().unwrap_or(0);
    let broad = rows.iter().map(|r| r.1.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, shape, _, decays) in &rows {
        let decay = if *decays { optimizer.weight_decay } else { 0.0 };
        let _ = writeln!(out, "{name:wide$}  {shape:>broad$}  {decay}");
    }
    for (group, is) in [("decayed", true), ("not decayed", false)] {
        let of = rows.iter().filter(|r| r.3 == is);
        let values: usize = of.clone().map(|r| r.2).sum();
        let _ = writeln!(out, "{group}: {} tensors, {values} values", of.count());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_decays_a_log_and_convolutions_but_not_dt_bias() {
        let decays = |name: &str| DecayPreset::HfTrainer.decays(name, &[8]);
        assert!(decays("model.layers.0.attn.A_log"));
        assert!(decays("model.layers.0.attn.q_conv1d.weight"));
        assert!(decays("model.embeddings.weight"));
        assert!(!decays("model.layers.0.attn.dt_bias"));
        assert!(!decays("model.layers.0.attn.o_norm.weight"));
        assert!(!decays("model.norm.weight"));
        assert!(decays("model.layers.0.attn.q_proj.1.weight"));
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let refused = |change: &dyn Fn(&mut OptimizerConfig)| {
            let mut config = OptimizerConfig::default();
            change(&mut config);
            config.validate().unwrap_err().key
        };
        assert_eq!(refused(&|c| c.beta2 = 1.0), "beta2");
        assert_eq!(refused(&|c| c.lr = f64::NAN), "lr");
        assert_eq!(refused(&|c| c.max_grad_norm = Some(0.0)), "max_grad_norm");
        assert_eq!(refused(&|c| c.name = "sgd".into()), "name");
    }
}
