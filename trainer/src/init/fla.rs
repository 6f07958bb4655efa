//! The weights of `torch.manual_seed(seed)` + `AutoModelForCausalLM.from_config(config)`, bit for bit.
//!
//! Reproduces flash-linear-attention 0.6.0 under transformers 5.24.0 and torch 2.15 on a CPU. Every module first draws
//! the defaults of its constructor; when the body is built, `_init_weights` draws each tensor anew; then the head is
//! built and drawn anew. All of these consume the one generator, also where the values are overwritten or, for a head
//! that is tied, thrown away: those draws are skipped here by count.
//! Memory: one tensor.

use ceteris_samplers::rng::torch::TorchGenerator;
use ceteris_samplers::rng::torch_fill::{CpuCapability, TorchFill};

use super::{InitError, Sink, gates};
use crate::model::ModelConfig;
use crate::model::parameters::{Kind, NamedTensor, named_parameters};

pub(super) fn initialise(
    config: &ModelConfig,
    seed: u64,
    capability: CpuCapability,
    sink: &mut Sink<'_>,
) -> Result<(), InitError> {
    let mut generator = TorchGenerator::new(seed);
    let mut fill = TorchFill::new(&mut generator, capability);
    let tensors = named_parameters(config);
    let (head, body): (Vec<NamedTensor>, Vec<NamedTensor>) =
        tensors.into_iter().partition(|t| t.name == "lm_head.weight");

    // Constructors, in the order the modules are made.
    for tensor in &constructor_order(&body) {
        match tensor.kind {
            Kind::Table => fill.skip_normal_f32(tensor.len()),
            Kind::Norm => {}
            _ => fill.skip_uniform(tensor.len()),
        }
    }
    // `_init_weights`: a mixer's own two vectors come after its sub-modules.
    let std = config.initializer_range;
    let mut values = Vec::new();
    for tensor in &visit_order(&body) {
        values.clear();
        values.resize(tensor.len(), 1.0);
        match tensor.kind {
            Kind::Norm => {}
            Kind::DecayRate => {
                fill.uniform(&mut values, 0.0, 16.0);
                gates::decay_rate(&mut values);
            }
            Kind::TimeStep => {
                fill.uniform(&mut values, 0.0, 1.0);
                gates::time_step_bias(&mut values, capability);
            }
            _ => fill.normal(&mut values, 0.0, std),
        }
        sink(&tensor.name, 0, &values).map_err(InitError::Sink)?;
    }
    // The head; when it is tied nothing sees its draws any more.
    if let Some(head) = head.first() {
        fill.skip_uniform(head.len());
        values.clear();
        values.resize(head.len(), 0.0);
        fill.normal(&mut values, 0.0, std);
        sink(&head.name, 0, &values).map_err(InitError::Sink)?;
    }
    Ok(())
}

/// Constructors run in the order of `named_parameters`, but for a mixer's two vectors, which come after its five
/// projections.
fn constructor_order(body: &[NamedTensor]) -> Vec<NamedTensor> {
    reorder(body, |name| name.ends_with("attn.b_proj.weight"))
}

/// Modules are visited children first, so that a mixer's two vectors come last in it.
fn visit_order(body: &[NamedTensor]) -> Vec<NamedTensor> {
    reorder(body, |name| name.ends_with("attn.o_proj.weight"))
}

/// Moves each layer's `A_log` and `dt_bias` behind the tensor that `after` picks.
fn reorder(body: &[NamedTensor], after: impl Fn(&str) -> bool) -> Vec<NamedTensor> {
    let mut out = Vec::with_capacity(body.len());
    let mut held = Vec::new();
    for tensor in body {
        if matches!(tensor.kind, Kind::DecayRate | Kind::TimeStep) {
            held.push(tensor.clone());
        } else {
            out.push(tensor.clone());
            if after(&tensor.name) {
                out.append(&mut held);
            }
        }
    }
    out
}
