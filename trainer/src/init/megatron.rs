//! Megatron-Core's initialisation as a rule, drawn from a CPU generator.
//!
//! Source: Megatron-Core `init_method_normal`, `scaled_init_method_normal` and `GatedDeltaNet.reset_parameters`
//! (`A_init_range` 1 to 16, `dt_bias` 1, convolutions with torch's default). Megatron draws on its GPUs, each tensor
//! parallel rank from a stream of its own, so its values depend on the machine; these have its distributions, the same
//! on every machine, and tensors in the order of `named_parameters`.
//! Memory: one tensor.

use ceteris_samplers::rng::torch::TorchGenerator;
use ceteris_samplers::rng::torch_fill::{CpuCapability, TorchFill};
use ceteris_samplers::rng::torch_math;

use super::{InitError, Sink};
use crate::model::ModelConfig;
use crate::model::parameters::{Kind, named_parameters};

pub(super) fn initialise(config: &ModelConfig, seed: u64, sink: &mut Sink<'_>) -> Result<(), InitError> {
    let mut generator = TorchGenerator::new(seed);
    let mut fill = TorchFill::new(&mut generator, CpuCapability::Avx2);
    let std = config.initializer_range;
    let scaled = std / (2.0 * config.num_hidden_layers as f64).sqrt();
    let mut values = Vec::new();
    for tensor in named_parameters(config) {
        values.clear();
        values.resize(tensor.len(), 1.0);
        match tensor.kind {
            Kind::Norm | Kind::TimeStep => {}
            Kind::Table | Kind::Linear => fill.normal(&mut values, 0.0, std),
            Kind::Output => fill.normal(&mut values, 0.0, scaled),
            Kind::Convolution => fill.kaiming_uniform_sqrt5(&mut values, config.conv_size),
            Kind::DecayRate => {
                fill.uniform(&mut values, 1.0, 16.0);
                torch_math::log(&mut values);
            }
        }
        sink(&tensor.name, 0, &values).map_err(InitError::Sink)?;
    }
    Ok(())
}
