//! The named tensors of a gated delta network, in the order flash-linear-attention lists them.
//!
//! Source: `GatedDeltaNetForCausalLM.named_parameters()` of flash-linear-attention 0.6.0. Checkpoints, weight decay,
//! initialisation and reports speak of these names; how they are stored is the plan's matter.

use super::ModelConfig;

/// What a tensor is, as far as initialisation tells tensors apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Embedding table, or the head when untied.
    Table,
    /// Weight of a linear map `[out, in]`.
    Linear,
    /// Weight of a linear map back into the residual stream.
    Output,
    /// Weight of a depthwise convolution `[channels, 1, width]`.
    Convolution,
    /// Weight of an RMSNorm.
    Norm,
    /// Logarithm of the decay rate per value head.
    DecayRate,
    /// Bias of the time step per value head.
    TimeStep,
}

/// A named tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Full name, e.g. `model.layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: Kind,
}

impl NamedTensor {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Every tensor of the model. A tied head is not listed: it is the embedding table.
pub fn named_parameters(config: &ModelConfig) -> Vec<NamedTensor> {
    let (d, key, value) = (config.hidden_size, config.key_dim(), config.value_dim());
    let (heads, mlp, width) = (config.value_heads(), config.mlp_size(), config.conv_size);
    let mut out = Vec::new();
    let mut add = |name: String, shape: &[usize], kind: Kind| {
        out.push(NamedTensor {
            name,
            shape: shape.to_vec(),
            kind,
        });
    };
    add(
        "model.embeddings.weight".into(),
        &[config.vocab_size, d],
        Kind::Table,
    );
    for layer in 0..config.num_hidden_layers {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        add(at("attn_norm.weight"), &[d], Kind::Norm);
        add(at("attn.A_log"), &[heads], Kind::DecayRate);
        add(at("attn.dt_bias"), &[heads], Kind::TimeStep);
        add(at("attn.q_proj.weight"), &[key, d], Kind::Linear);
        add(at("attn.k_proj.weight"), &[key, d], Kind::Linear);
        add(at("attn.v_proj.weight"), &[value, d], Kind::Linear);
        add(at("attn.a_proj.weight"), &[heads, d], Kind::Linear);
        add(at("attn.b_proj.weight"), &[heads, d], Kind::Linear);
        if config.use_short_conv {
            add(at("attn.q_conv1d.weight"), &[key, 1, width], Kind::Convolution);
            add(at("attn.k_conv1d.weight"), &[key, 1, width], Kind::Convolution);
            add(at("attn.v_conv1d.weight"), &[value, 1, width], Kind::Convolution);
        }
        if config.use_gate {
            add(at("attn.g_proj.weight"), &[value, d], Kind::Linear);
        }
        add(at("attn.o_norm.weight"), &[config.head_v_dim()], Kind::Norm);
        add(at("attn.o_proj.weight"), &[d, value], Kind::Output);
        add(at("mlp_norm.weight"), &[d], Kind::Norm);
        add(at("mlp.gate_proj.weight"), &[mlp, d], Kind::Linear);
        add(at("mlp.up_proj.weight"), &[mlp, d], Kind::Linear);
        add(at("mlp.down_proj.weight"), &[d, mlp], Kind::Output);
    }
    add("model.norm.weight".into(), &[d], Kind::Norm);
    if !config.tie_word_embeddings {
        add("lm_head.weight".into(), &[config.vocab_size, d], Kind::Table);
    }
    out
}
