//! Golden data: one module per source, every case of every family.

mod accelerate;
mod case;
mod fla_order;
mod fla_prepare;
mod hf_dirs;
mod hf_iterable;
mod hf_order;
mod megatron_arithmetic;
mod megatron_data;
mod numpy_rng;
mod torch_init;
mod torch_rng;
mod torch_samplers;
mod trainer_runs;

#[test]
fn the_set_in_use_is_a_golden_set() {
    ceteris_tests::golden::assert_set_is_known();
}
