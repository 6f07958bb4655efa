//! Fills of CPU tensors by torch: `uniform_`, `normal_`, `exponential_` and the `nn.init` rules built on them.
//!
//! Reproduces torch 2.15 on the CPU (`uniform_kernel`, `normal_kernel`, `exponential_kernel`,
//! `torch.nn.init.*`) bit for bit, with the generator left where torch leaves it. The kernels differ between the
//! builds torch dispatches to ([`CpuCapability`]): the AVX2 and AVX-512 builds fuse a multiply and an add where the
//! default build rounds twice, and from 16 float32 values on they take logarithm, sine and cosine from single
//! precision polynomials (the Cephes ones) where the default build calls the C library.
//!
//! What is the same on every machine: all of AVX2/AVX-512 float32, float16 and bfloat16 from 16 values on, and every
//! `uniform_`. The default build and fills below 16 values use the C library's `logf`, `sin`, … of the host, which
//! is what torch does too (recorded with glibc 2.36; older than 2.28 may differ in the last bit).
//! Memory: no temporary beyond one block of words, but for 16-bit types (four bytes a value).

use half::{bf16, f16};
use rayon::prelude::*;

use super::torch::TorchGenerator;

/// Values from which a large fill is transformed by several threads (the draws themselves stay in sequence).
const PARALLEL_FROM: usize = 1 << 16;
/// Values of one parallel task, a multiple of 16.
const TASK: usize = 1 << 14;
/// Words drawn at once.
const WORDS: usize = 2048;

/// Which build of torch's CPU kernels is reproduced (`ATEN_CPU_CAPABILITY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CpuCapability {
    /// No vector extension: `default`.
    Default,
    /// `avx2`; equal to `avx512` in every fill.
    #[default]
    Avx2,
    /// `avx512`; equal to `avx2` in every fill.
    Avx512,
}

impl CpuCapability {
    /// The capability by its name in `ATEN_CPU_CAPABILITY` (`default`, `avx2`, `avx512`).
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "default" => CpuCapability::Default,
            "avx2" => CpuCapability::Avx2,
            "avx512" => CpuCapability::Avx512,
            _ => return None,
        })
    }

    /// Multiply and add round once in the templated kernels.
    fn fused(self) -> bool {
        self != CpuCapability::Default
    }
}

/// An element type torch fills: how it is drawn and rounded.
pub trait FillElement: Copy + Send + Sync + PartialOrd + 'static {
    /// `uniform_(from, to)`.
    fn uniform(fill: &mut TorchFill<'_>, out: &mut [Self], from: f64, to: f64);
    /// `normal_(mean, std)` of 16 values and more.
    fn normal_blocks(fill: &mut TorchFill<'_>, out: &mut [Self], mean: f64, std: f64);
    /// Rounds a double the way torch casts to this type.
    fn from_f64(value: f64) -> Self;
    /// The value as a double, exactly.
    fn to_f64(self) -> f64;
}

/// Draws of one generator under one capability.
#[derive(Debug)]
pub struct TorchFill<'a> {
    generator: &'a mut TorchGenerator,
    capability: CpuCapability,
}

impl<'a> TorchFill<'a> {
    /// Fills that consume `generator` as the given build would.
    pub fn new(generator: &'a mut TorchGenerator, capability: CpuCapability) -> Self {
        TorchFill {
            generator,
            capability,
        }
    }

    /// The generator, for draws between fills.
    pub fn generator(&mut self) -> &mut TorchGenerator {
        self.generator
    }

    /// `tensor.uniform_(from, to)`. A value that rounds up to `to` becomes `from`, as in torch.
    pub fn uniform<T: FillElement>(&mut self, out: &mut [T], from: f64, to: f64) {
        T::uniform(self, out, from, to);
    }

    /// `tensor.normal_(mean, std)`.
    pub fn normal<T: FillElement>(&mut self, out: &mut [T], mean: f64, std: f64) {
        if out.len() >= 16 {
            return T::normal_blocks(self, out, mean, std);
        }
        for x in out {
            let z = self.next_normal();
            *x = T::from_f64(mul_add(z, std, mean, self.capability.fused()));
        }
    }

    /// Leaves the generator where `uniform_` of `n` values of a type up to 32 bits wide would, without the values.
    pub fn skip_uniform(&mut self, n: usize) {
        let mut words = [0; WORDS];
        let mut left = n;
        while left > 0 {
            let take = left.min(WORDS);
            self.generator.fill_u32(&mut words[..take]);
            left -= take;
        }
    }

    /// Leaves the generator where `normal_` of `n` float32 values would, without the values.
    pub fn skip_normal_f32(&mut self, n: usize) {
        if n < 16 {
            for _ in 0..n {
                self.next_normal();
            }
        } else {
            self.skip_uniform(if n.is_multiple_of(16) { n } else { n + 16 });
        }
    }

    /// `tensor.exponential_(lambda)`.
    pub fn exponential<T: FillElement>(&mut self, out: &mut [T], lambda: f64) {
        for x in out {
            let u = unit_f64(self.generator.next_u64());
            *x = T::from_f64(-1.0 / lambda * (-u).ln_1p());
        }
    }

    /// `torch.nn.init.trunc_normal_(tensor, mean, std, a, b)` where `[a, b]` holds more than 30% of the normal
    /// distribution, which is every use in practice: whole tensors are drawn again until no value is outside.
    ///
    /// # Errors
    /// [`TruncNormalUnsupported`] for the other case, where torch draws uniform proposals instead.
    pub fn trunc_normal<T: FillElement>(
        &mut self,
        out: &mut [T],
        mean: f64,
        std: f64,
        a: f64,
        b: f64,
    ) -> Result<(), TruncNormalUnsupported> {
        let inside = normal_cdf((b - mean) / std) - normal_cdf((a - mean) / std);
        if inside.is_nan() || inside <= 0.3 {
            return Err(TruncNormalUnsupported { a, b, mean, std });
        }
        let (low, high) = (T::from_f64(a), T::from_f64(b));
        let outside = |x: &T| *x < low || *x > high;
        self.normal(out, mean, std);
        if !out.iter().any(outside) {
            return Ok(());
        }
        let mut again = out.to_vec();
        while out.iter().any(outside) {
            self.normal(&mut again, mean, std);
            for (x, &y) in out.iter_mut().zip(&again) {
                if outside(x) {
                    *x = y;
                }
            }
        }
        Ok(())
    }

    /// `torch.nn.init.kaiming_uniform_(tensor, a=sqrt(5))`, the default weight of `nn.Linear` and `nn.Conv1d`.
    pub fn kaiming_uniform_sqrt5<T: FillElement>(&mut self, out: &mut [T], fan_in: usize) {
        let bound = kaiming_uniform_sqrt5_bound(fan_in);
        self.uniform(out, -bound, bound);
    }

    /// `torch.nn.init.xavier_uniform_(tensor, gain)`.
    pub fn xavier_uniform<T: FillElement>(
        &mut self,
        out: &mut [T],
        fan_in: usize,
        fan_out: usize,
        gain: f64,
    ) {
        let bound = 3f64.sqrt() * xavier_std(fan_in, fan_out, gain);
        self.uniform(out, -bound, bound);
    }

    /// `torch.nn.init.xavier_normal_(tensor, gain)`.
    pub fn xavier_normal<T: FillElement>(&mut self, out: &mut [T], fan_in: usize, fan_out: usize, gain: f64) {
        self.normal(out, 0.0, xavier_std(fan_in, fan_out, gain));
    }

    /// Standard normal double of `at::normal_distribution<double>`: one Box-Muller pair per two values, the second
    /// kept in the generator.
    fn next_normal(&mut self) -> f64 {
        if let Some(kept) = self.generator.next_f64_normal.take() {
            return kept;
        }
        let u1 = unit_f64(self.generator.next_u64());
        let u2 = unit_f64(self.generator.next_u64());
        let radius = (-2.0 * (-u2).ln_1p()).sqrt();
        let theta = 2.0 * std::f64::consts::PI * u1;
        self.generator.next_f64_normal = Some(radius * theta.sin());
        radius * theta.cos()
    }

    /// The next float32 values in [0, 1), 24 bits each.
    fn unit_f32(&mut self, out: &mut [f32]) {
        let mut words = [0u32; WORDS];
        for chunk in out.chunks_mut(WORDS) {
            let words = &mut words[..chunk.len()];
            self.generator.fill_u32(words);
            for (x, &word) in chunk.iter_mut().zip(words.iter()) {
                *x = unit_f32(word);
            }
        }
    }

    fn affine_f32(&mut self, out: &mut [f32], from: f32, to: f32) {
        self.unit_f32(out);
        let (fused, range) = (self.capability.fused(), to - from);
        for_each_task(out, |task| scale_f32(task, range, from, fused));
    }
}

/// `torch.nn.init.trunc_normal_` with bounds that hold at most 30% of the distribution takes another algorithm.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "trunc_normal_ with mean {mean}, std {std} in [{a}, {b}]: at most 30% of the distribution lies inside, where torch \
     samples another way that is not emulated; widen the bounds"
)]
pub struct TruncNormalUnsupported {
    a: f64,
    b: f64,
    mean: f64,
    std: f64,
}

/// Bound of `kaiming_uniform_(a=sqrt(5))`, computed in torch's order of operations.
pub fn kaiming_uniform_sqrt5_bound(fan_in: usize) -> f64 {
    let slope = 5f64.sqrt();
    let gain = (2.0 / (1.0 + slope * slope)).sqrt();
    3f64.sqrt() * (gain / (fan_in as f64).sqrt())
}

/// Bound of the bias of `nn.Linear`.
pub fn linear_bias_bound(fan_in: usize) -> f64 {
    1.0 / (fan_in as f64).sqrt()
}

/// Standard deviation of the Xavier rules.
fn xavier_std(fan_in: usize, fan_out: usize, gain: f64) -> f64 {
    gain * (2.0 / (fan_in + fan_out) as f64).sqrt()
}

impl FillElement for f32 {
    fn uniform(fill: &mut TorchFill<'_>, out: &mut [f32], from: f64, to: f64) {
        let (from, to) = (from as f32, to as f32);
        fill.affine_f32(out, from, to);
        wrap_to(out, from, to);
    }

    fn normal_blocks(fill: &mut TorchFill<'_>, out: &mut [f32], mean: f64, std: f64) {
        fill.unit_f32(out);
        let (mean, std, capability) = (mean as f32, std as f32, fill.capability);
        let whole = out.len() / 16 * 16;
        for_each_task(&mut out[..whole], |task| {
            box_muller_f32(task, mean, std, capability)
        });
        if whole < out.len() {
            let at = out.len() - 16;
            fill.unit_f32(&mut out[at..]);
            box_muller_f32(&mut out[at..], mean, std, capability);
        }
    }

    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl FillElement for f64 {
    fn uniform(fill: &mut TorchFill<'_>, out: &mut [f64], from: f64, to: f64) {
        let fused = fill.capability.fused();
        for x in out.iter_mut() {
            *x = mul_add(unit_f64(fill.generator.next_u64()), to - from, from, fused);
        }
        wrap_to(out, from, to);
    }

    fn normal_blocks(fill: &mut TorchFill<'_>, out: &mut [f64], mean: f64, std: f64) {
        let draw = |out: &mut [f64], generator: &mut TorchGenerator| {
            out.iter_mut().for_each(|x| *x = unit_f64(generator.next_u64()));
        };
        draw(out, fill.generator);
        let whole = out.len() / 16 * 16;
        for block in out[..whole].chunks_exact_mut(16) {
            box_muller_f64(block, mean, std);
        }
        if whole < out.len() {
            let at = out.len() - 16;
            draw(&mut out[at..], fill.generator);
            box_muller_f64(&mut out[at..], mean, std);
        }
    }

    fn from_f64(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}

/// Both 16-bit types are drawn in float32 and rounded; `normal_` redraws its last 16 values without having drawn the
/// part of them that no whole block covers.
macro_rules! sixteen_bits {
    ($t:ty) => {
        impl FillElement for $t {
            fn uniform(fill: &mut TorchFill<'_>, out: &mut [$t], from: f64, to: f64) {
                let mut wide = vec![0f32; out.len()];
                fill.affine_f32(&mut wide, from as f32, to as f32);
                for (x, &w) in out.iter_mut().zip(&wide) {
                    *x = <$t>::from_f32(w);
                }
                wrap_to(
                    out,
                    <$t as FillElement>::from_f64(from),
                    <$t as FillElement>::from_f64(to),
                );
            }

            fn normal_blocks(fill: &mut TorchFill<'_>, out: &mut [$t], mean: f64, std: f64) {
                let whole = out.len() / 16 * 16;
                let mut wide = vec![0f32; whole];
                f32::normal_blocks(fill, &mut wide, mean, std);
                for (x, &w) in out.iter_mut().zip(&wide) {
                    *x = <$t>::from_f32(w);
                }
                if whole < out.len() {
                    let mut tail = [0f32; 16];
                    f32::normal_blocks(fill, &mut tail, mean, std);
                    let at = out.len() - 16;
                    for (x, &w) in out[at..].iter_mut().zip(&tail) {
                        *x = <$t>::from_f32(w);
                    }
                }
            }

            /// Through float32, as torch's constructors of these types do.
            fn from_f64(value: f64) -> $t {
                <$t>::from_f32(value as f32)
            }

            fn to_f64(self) -> f64 {
                f64::from(self.to_f32())
            }
        }
    };
}

sixteen_bits!(f16);
sixteen_bits!(bf16);

#[inline(always)]
fn unit_f32(word: u32) -> f32 {
    (word & 0x00ff_ffff) as f32 * (1.0 / 16_777_216.0)
}

#[inline(always)]
fn unit_f64(word: u64) -> f64 {
    (word & ((1 << 53) - 1)) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

#[inline(always)]
fn mul_add(x: f64, factor: f64, term: f64, fused: bool) -> f64 {
    if fused {
        x.mul_add(factor, term)
    } else {
        x * factor + term
    }
}

/// Values that came out as `to` become `from`; an empty interval is left alone.
fn wrap_to<T: FillElement>(out: &mut [T], from: T, to: T) {
    if from < to {
        out.iter_mut().filter(|x| **x >= to).for_each(|x| *x = from);
    }
}

fn for_each_task(out: &mut [f32], work: impl Fn(&mut [f32]) + Sync + Send) {
    if out.len() < PARALLEL_FROM {
        work(out);
    } else {
        out.par_chunks_mut(TASK).for_each(work);
    }
}

/// Cumulative distribution of the standard normal, enough for a comparison against 0.3.
fn normal_cdf(x: f64) -> f64 {
    // Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8.
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

fn scale_f32(out: &mut [f32], range: f32, from: f32, fused: bool) {
    if !fused {
        out.iter_mut().for_each(|x| *x = *x * range + from);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2 and FMA, checked just above.
        unsafe { scale_f32_x86(out, range, from) };
        return;
    }
    out.iter_mut().for_each(|x| *x = x.mul_add(range, from));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn scale_f32_x86(out: &mut [f32], range: f32, from: f32) {
    out.iter_mut().for_each(|x| *x = x.mul_add(range, from));
}

/// Turns blocks of 16 uniforms into normals: value `j` and `j + 8` of a block make one pair.
fn box_muller_f32(values: &mut [f32], mean: f32, std: f32, capability: CpuCapability) {
    if capability == CpuCapability::Default {
        for block in values.chunks_exact_mut(16) {
            for j in 0..8 {
                let radius = (-2.0 * (1.0 - block[j]).ln()).sqrt();
                let theta = (2.0 * std::f64::consts::PI * f64::from(block[j + 8])) as f32;
                block[j] = (radius * theta.cos()).mul_add(std, mean);
                block[j + 8] = (radius * theta.sin()).mul_add(std, mean);
            }
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2 and FMA, checked just above.
        unsafe { box_muller_x86(values, mean, std) };
        return;
    }
    box_muller_polynomial(values, mean, std);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn box_muller_x86(values: &mut [f32], mean: f32, std: f32) {
    box_muller_polynomial(values, mean, std);
}

#[inline(always)]
fn box_muller_polynomial(values: &mut [f32], mean: f32, std: f32) {
    for block in values.chunks_exact_mut(16) {
        let (first, second) = block.split_at_mut(8);
        for (a, b) in first.iter_mut().zip(second) {
            let radius = (-2.0 * ln_polynomial(1.0 - *a)).sqrt();
            let (sin, cos) = sin_cos_polynomial(2.0 * std::f32::consts::PI * *b);
            *a = (radius * cos).mul_add(std, mean);
            *b = (radius * sin).mul_add(std, mean);
        }
    }
}

/// Natural logarithm of a positive normal number: Cephes `logf` with products fused into the sums that follow.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the constants as published")]
fn ln_polynomial(x: f32) -> f32 {
    const P: [f32; 8] = [
        -1.151_461_031_0e-1,
        1.167_699_874_0e-1,
        -1.242_014_084_6e-1,
        1.424_932_278_7e-1,
        -1.666_805_766_5e-1,
        2.000_071_476_5e-1,
        -2.499_999_399_3e-1,
        3.333_333_117_4e-1,
    ];
    let bits = x.to_bits();
    let mut exponent = ((bits >> 23) as i32 - 126) as f32;
    // Mantissa in [0.5, 1), then moved to [sqrt(1/2), sqrt(2)) with 1 taken off.
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let low = mantissa < std::f32::consts::FRAC_1_SQRT_2;
    exponent -= if low { 1.0 } else { 0.0 };
    let x = (mantissa - 1.0) + if low { mantissa } else { 0.0 };
    let z = x * x;
    let mut y = 7.037_683_629_2e-2f32;
    for p in P {
        y = y.mul_add(x, p);
    }
    y = (y * x).mul_add(z, exponent * -2.121_944_40e-4);
    y = (-z).mul_add(0.5, y);
    exponent.mul_add(0.693_359_375, x + y)
}

/// Sine and cosine of a number in [0, 8): Cephes `sinf`/`cosf` with products fused into the sums that follow.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the constants as published")]
fn sin_cos_polynomial(x: f32) -> (f32, f32) {
    // Octant, made even.
    let octant = ((x * std::f32::consts::FRAC_2_PI * 2.0) as u32 + 1) & !1;
    let y = octant as f32;
    let x = y.mul_add(-0.785_156_25, x);
    let x = y.mul_add(-2.418_756_484_985_351_562_5e-4, x);
    let x = y.mul_add(-3.774_894_977_445_941_08e-8, x);
    let z = x * x;
    let mut c = 2.443_315_711_809_948e-5f32;
    c = c.mul_add(z, -1.388_731_625_493_765e-3);
    c = c.mul_add(z, 4.166_664_568_298_827e-2);
    c = (c * z).mul_add(z, -(z * 0.5)) + 1.0;
    let mut s = -1.951_529_589_1e-4f32;
    s = s.mul_add(z, 8.332_160_873_6e-3);
    s = s.mul_add(z, -1.666_665_461_1e-1);
    s = (s * z).mul_add(x, x);
    let swap = octant & 2 != 0;
    let (sin, cos) = if swap { (c, s) } else { (s, c) };
    let sin_sign = (octant & 4) << 29;
    let cos_sign = (!octant.wrapping_sub(2) & 4) << 29;
    (
        f32::from_bits(sin.to_bits() ^ sin_sign),
        f32::from_bits(cos.to_bits() ^ cos_sign),
    )
}

fn box_muller_f64(block: &mut [f64], mean: f64, std: f64) {
    for j in 0..8 {
        let radius = (-2.0 * (1.0 - block[j]).ln()).sqrt();
        let theta = 2.0 * std::f64::consts::PI * block[j + 8];
        block[j] = (radius * theta.cos()).mul_add(std, mean);
        block[j + 8] = (radius * theta.sin()).mul_add(std, mean);
    }
}
