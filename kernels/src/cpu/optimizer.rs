//! CPU: global norm and AdamW.

use rayon::prelude::*;

use super::real::{LANES, Real, tree, vectorized};
use super::store::Scope;
use super::work::{ELEMENTS, Work, lock};
use crate::ops;

/// See [`ops::GlobalNorm`]. Squares are summed in f64: lanes inside blocks of [`ELEMENTS`], blocks in order.
pub fn global_norm<T: Real>(op: &ops::GlobalNorm, scope: &mut Scope<T>, work: &Work<T>) {
    let mut total = 0.0f64;
    for &id in &op.gradients {
        scope.release();
        let gradient = scope.slice(id);
        let mut sums = lock(&work.sums);
        let sums = &mut sums[..gradient.len().div_ceil(ELEMENTS)];
        gradient
            .par_chunks(ELEMENTS)
            .zip(sums.par_iter_mut())
            .for_each(|(part, sum)| {
                *sum = vectorized(
                    #[inline(always)]
                    || {
                        let mut acc = [0.0f64; LANES];
                        let mut chunks = part.chunks_exact(LANES);
                        for chunk in &mut chunks {
                            for i in 0..LANES {
                                acc[i] += chunk[i].f64() * chunk[i].f64();
                            }
                        }
                        for (acc, x) in acc.iter_mut().zip(chunks.remainder()) {
                            *acc += x.f64() * x.f64();
                        }
                        tree(acc)
                    },
                );
            });
        total = sums.iter().fold(total, |total, &x| total + x);
    }
    let norm = total.sqrt();
    scope.scalars(op.norm)[0].set(norm);
    let coefficient = op.max_norm.map_or(1.0, |max| {
        let c = max / (norm + 1e-6);
        // Not `f64::min`, which would turn NaN into 1.
        if c > 1.0 { 1.0 } else { c }
    });
    scope.scalars(op.coefficient)[0].set(coefficient);
}

/// See [`ops::AdamW`].
pub fn adamw<T: Real>(op: &ops::AdamW, scope: &mut Scope<T>) {
    let hyper = scope.scalars(op.hyper);
    let (lr, step) = (
        hyper[ops::HYPER_LEARNING_RATE].get(),
        hyper[ops::HYPER_STEP].get(),
    );
    let coefficient = T::of(scope.scalars(op.coefficient)[0].get());
    let (beta1, beta2, eps) = (T::of(op.beta1), T::of(op.beta2), T::of(op.eps));
    let (rest1, rest2) = (T::of(1.0 - op.beta1), T::of(1.0 - op.beta2));
    let step_size = T::of(lr / (1.0 - op.beta1.powf(step)));
    let root_correction = T::of((1.0 - op.beta2.powf(step)).sqrt());
    for tensor in &op.tensors {
        scope.release();
        let p = tensor.parameter;
        let (value, gradient) = (scope.slice_mut(p.value), scope.slice(p.gradient));
        let (first, second) = (scope.slice_mut(p.first_moment), scope.slice_mut(p.second_moment));
        for decay in &tensor.decay {
            let keep = T::of(1.0 - lr * decay.weight_decay);
            let range = decay.range.clone();
            let parts = value[range.clone()]
                .par_chunks_mut(ELEMENTS)
                .zip(gradient[range.clone()].par_chunks(ELEMENTS))
                .zip(first[range.clone()].par_chunks_mut(ELEMENTS))
                .zip(second[range].par_chunks_mut(ELEMENTS));
            parts.for_each(|(((value, gradient), first), second)| {
                vectorized(
                    #[inline(always)]
                    || {
                        for (((p, &g), m), v) in value.iter_mut().zip(gradient).zip(first).zip(second) {
                            let g = coefficient * g;
                            *m = beta1 * *m + rest1 * g;
                            *v = beta2 * *v + rest2 * g * g;
                            let denominator = v.sqrt() / root_correction + eps;
                            *p = *p * keep - step_size * (*m / denominator);
                        }
                    },
                );
            });
        }
    }
}
