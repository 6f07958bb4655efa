//! Initial values of a mixer's decay rate and time step, from uniform draws.
//!
//! Source: `GatedDeltaNetPreTrainedModel._init_weights`, flash-linear-attention 0.6.0, in float32 whatever the type the
//! model trains in. There a draw of exactly 0 (one in 2^24) makes `A_log` minus infinity, a head that never learns;
//! here such a draw counts as the smallest one above it, 16 · 2^-24, so that `exp(A_log)` lies in [2^-20, 16]. Every
//! other draw gives FLA's bits. `dt_bias` is the inverse softplus of a time step in [0.001, 0.1], whose floor of 1e-4 is
//! never reached.

use ceteris_samplers::rng::torch_fill::CpuCapability;
use ceteris_samplers::rng::torch_math;

/// Smallest decay rate: the smallest draw above 0 from `uniform_(0, 16)`.
pub const SMALLEST_DECAY_RATE: f32 = 16.0 / 16_777_216.0;

/// `A_log` from draws in [0, 16).
pub(super) fn decay_rate(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = x.max(SMALLEST_DECAY_RATE));
    torch_math::log(values);
}

/// `dt_bias` from draws in [0, 1).
pub(super) fn time_step_bias(values: &mut [f32], capability: CpuCapability) {
    torch_math::time_step(values);
    torch_math::inverse_softplus(values, 1e-4, capability);
}
