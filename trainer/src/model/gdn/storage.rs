//! Fused parameters of a block, and the columns of its fused projection.

use ceteris_kernels::plan::{BufferId, Columns, Parameter, PlanBuilder};

use crate::model::ModelConfig;

/// Fused parameters of a block.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) attn_norm: Parameter,
    pub(super) a_log: Parameter,
    pub(super) dt_bias: Parameter,
    pub(super) in_proj: Parameter,
    pub(super) conv: Option<Parameter>,
    pub(super) o_norm: Parameter,
    pub(super) o_proj: Parameter,
    pub(super) mlp_norm: Parameter,
    pub(super) gate_up: Parameter,
    pub(super) down: Parameter,
}

impl Block {
    pub(super) fn new(b: &mut PlanBuilder, c: &ModelConfig, i: usize) -> Self {
        let prefix = format!("model.layers.{i}.");
        let (d, k, v, heads, mlp) = (
            c.hidden_size,
            c.key_dim(),
            c.value_dim(),
            c.value_heads(),
            c.mlp_size(),
        );
        // A fused parameter: its parts' rows one after the other, each row of the given extents.
        let mut fused = |name: &str, row: &[usize], parts: &[(&str, usize)]| {
            let shape = |rows: usize| [&[rows], row].concat();
            let tensors: Vec<_> = parts
                .iter()
                .map(|&(part, rows)| (format!("{prefix}{part}"), shape(rows)))
                .collect();
            let name = if parts.len() == 1 {
                tensors[0].0.clone()
            } else {
                format!("{prefix}{name}")
            };
            b.parameter(&name, &shape(parts.iter().map(|(_, rows)| rows).sum()), &tensors)
        };
        let mut in_proj = vec![
            ("attn.q_proj.weight", k),
            ("attn.k_proj.weight", k),
            ("attn.v_proj.weight", v),
        ];
        if c.use_gate {
            in_proj.push(("attn.g_proj.weight", v));
        }
        in_proj.extend([("attn.b_proj.weight", heads), ("attn.a_proj.weight", heads)]);
        Block {
            attn_norm: fused("", &[], &[("attn_norm.weight", d)]),
            a_log: fused("", &[], &[("attn.A_log", heads)]),
            dt_bias: fused("", &[], &[("attn.dt_bias", heads)]),
            in_proj: fused("attn.in_proj", &[d], &in_proj),
            conv: c.use_short_conv.then(|| {
                let parts = [
                    ("attn.q_conv1d.weight", k),
                    ("attn.k_conv1d.weight", k),
                    ("attn.v_conv1d.weight", v),
                ];
                fused("attn.conv1d", &[1, c.conv_size], &parts)
            }),
            o_norm: fused("", &[], &[("attn.o_norm.weight", c.head_v_dim())]),
            o_proj: fused("", &[v], &[("attn.o_proj.weight", d)]),
            mlp_norm: fused("", &[], &[("mlp_norm.weight", d)]),
            gate_up: fused(
                "mlp.gate_up",
                &[d],
                &[("mlp.gate_proj.weight", mlp), ("mlp.up_proj.weight", mlp)],
            ),
            down: fused("", &[mlp], &[("mlp.down_proj.weight", d)]),
        }
    }
}

/// Columns of the fused projection.
pub(super) struct InProj {
    pub(super) qkv: usize,
    pub(super) gate: usize,
    pub(super) heads: usize,
}

impl InProj {
    pub(super) fn new(c: &ModelConfig) -> Self {
        InProj {
            qkv: 2 * c.key_dim() + c.value_dim(),
            gate: if c.use_gate { c.value_dim() } else { 0 },
            heads: c.value_heads(),
        }
    }

    pub(super) fn width(&self) -> usize {
        self.qkv + self.gate + 2 * self.heads
    }

    pub(super) fn qkv(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: 0,
            width: self.qkv,
        }
    }

    pub(super) fn gate(&self, buffer: BufferId) -> Option<Columns> {
        (self.gate > 0).then_some(Columns {
            buffer,
            first: self.qkv,
            width: self.gate,
        })
    }

    pub(super) fn b(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: self.qkv + self.gate,
            width: self.heads,
        }
    }

    pub(super) fn a(&self, buffer: BufferId) -> Columns {
        Columns {
            buffer,
            first: self.qkv + self.gate + self.heads,
            width: self.heads,
        }
    }
}
