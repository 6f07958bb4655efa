//! Elementwise float32 functions of torch tensors on the CPU, as far as weight initialisation uses them.
//!
//! torch 2.15 takes `log` and `exp` of float32 tensors from the vector library of MKL (`vmsLn`, `vmsExp` in its high
//! accuracy mode), whatever `ATEN_CPU_CAPABILITY` says. That library is not published, promises less than one unit in
//! the last place, and picks a kernel by processor: torch itself gives other last bits on other machines (1.0% of `exp`
//! and 5.6% of `log` differ between an AMD host without AVX-512 and the host of the recordings). What is given here is
//! the correctly rounded value, the same on every machine. Against the recordings of a host with AVX-512:
//!
//! * `log` agrees in all recorded values;
//! * `exp` agrees within one unit in the last place, and in all but about one value in a hundred exactly. Its bits are
//!   not promised to be torch's.
//!
//! `expm1` is SLEEF's in the AVX2 and AVX-512 builds (correctly rounded but for one value in 10^4) and the C library's in
//! the default one.
//! Memory: none.

use super::torch_fill::CpuCapability;

/// `tensor.log_()`, correctly rounded.
pub fn log(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x = ln(*x));
}

/// `exp(u * (log(0.1) - log(0.001)) + log(0.001))`: a time step between 0.001 and 0.1 from a uniform value, the
/// exponential correctly rounded.
pub fn time_step(values: &mut [f32]) {
    let (low, high) = (0.001f64.ln(), 0.1f64.ln());
    let (range, low) = ((high - low) as f32, low as f32);
    values
        .iter_mut()
        .for_each(|x| *x = f64::from(*x * range + low).exp() as f32);
}

/// `dt = clamp(dt, min=floor); dt + log(-expm1(-dt))`.
pub fn inverse_softplus(values: &mut [f32], floor: f64, capability: CpuCapability) {
    let floor = floor as f32;
    for x in values {
        let dt = x.max(floor);
        *x = dt + ln(-expm1(-dt, capability));
    }
}

/// Double precision is far more than twice as wide: rounding it gives the correctly rounded value but for arguments
/// within 2^-28 of a tie, which no recorded value is.
fn ln(x: f32) -> f32 {
    f64::from(x).ln() as f32
}

fn expm1(x: f32, capability: CpuCapability) -> f32 {
    match capability {
        CpuCapability::Default => x.exp_m1(),
        CpuCapability::Avx2 | CpuCapability::Avx512 => f64::from(x).exp_m1() as f32,
    }
}
