//! Cases of the loss, the norm of the gradients and the optimizer.

use super::builder::Builder;
use crate::conformance::Case;
use crate::ops::*;
use crate::plan::{Geometry, PlanError, Role, Section};

/// Sizes of a loss.
#[derive(Clone, Debug)]
pub struct LossCase {
    /// Sizes of the micro-batch.
    pub geometry: Geometry,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Rows per chunk of logits.
    pub chunk_rows: usize,
    /// Share of labels that are ignored.
    pub ignored: f64,
    /// Size of the weights: large ones give extreme logits.
    pub scale: f64,
}

/// Head and cross entropy. The cotangent of the loss sum is `grad_scale`.
///
/// # Errors
/// A plan the operator refuses.
pub fn cross_entropy(case: &LossCase, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(case.geometry, seed);
    let rows = b.rows();
    let label = |b: &mut Builder| {
        if b.rng.uniform() < case.ignored {
            IGNORE_INDEX
        } else {
            b.rng.below(case.vocab) as i32
        }
    };
    let labels = (0..rows).map(|_| label(&mut b)).collect();
    let labels = b.ids("labels", labels);
    let x = b.normal("x", &[rows, case.hidden], Role::Activation, 1.0);
    let weight = b.normal("weight", &[case.vocab, case.hidden], Role::Parameter, case.scale);
    let nll = b.out("nll", &[rows], Role::Statistic);
    let loss_sum = b.given("loss_sum", &[1], Role::Scalar, vec![0.0]);
    let loss = b.plan.columns(loss_sum);
    b.outputs.push(loss);
    let logits = b
        .plan
        .buffer("logits", &[case.chunk_rows, case.vocab], Role::Activation);
    let grad_scale = b.given("grad_scale", &[1], Role::Scalar, vec![0.37]);
    let cotangent = b.plan.columns(grad_scale);
    b.cotangents.push((loss, cotangent));
    let dx = b.gradient("dx", x, Role::Activation);
    let dweight = b.parameter_gradient("dweight", weight);
    let gradients = Some(LossGradients {
        grad_scale,
        dx,
        dweight,
    });
    b.forward(LinearCrossEntropy {
        x,
        weight,
        labels,
        nll,
        loss_sum,
        logits,
        gradients,
    });
    b.finish(format!("cross entropy {case:?}"))
}

/// Global norm with its clipping coefficient.
///
/// # Errors
/// A plan the operator refuses.
pub fn global_norm(sizes: &[usize], max_norm: Option<f64>, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(Geometry::unpacked(1, 1), seed);
    let gradients = (0..sizes.len())
        .map(|i| b.normal(&format!("gradient {i}"), &[sizes[i]], Role::Gradient, 1.0))
        .collect();
    let (norm, coefficient) = (
        b.out("norm", &[1], Role::Scalar),
        b.out("coefficient", &[1], Role::Scalar),
    );
    b.plan.push(
        Section::Update,
        GlobalNorm {
            gradients,
            norm,
            coefficient,
            max_norm,
        },
    );
    b.finish(format!("global norm {sizes:?} {max_norm:?}"))
}

/// One AdamW update of a parameter with two weight decays.
///
/// # Errors
/// A plan the operator refuses.
pub fn adamw(size: usize, lr: f64, step: u32, seed: u64) -> Result<Case, PlanError> {
    let mut b = Builder::new(Geometry::unpacked(1, 1), seed);
    let parameter = b.plan.parameter("p", &[size], &[("p".into(), vec![size])]);
    let mut fill = |id, scale: f64, square: bool| {
        let mut values = b.rng.normals(size, scale);
        if square {
            values.iter_mut().for_each(|x| *x *= *x);
        }
        b.values.push((id, values));
    };
    fill(parameter.value, 1.0, false);
    fill(parameter.gradient, 0.1, false);
    fill(parameter.first_moment, 0.1, false);
    fill(parameter.second_moment, 0.1, true);
    for id in [parameter.value, parameter.first_moment, parameter.second_moment] {
        let all = b.plan.columns(id);
        b.outputs.push(all);
    }
    let hyper = b.given("hyper", &[HYPER_LEN], Role::Scalar, vec![lr, f64::from(step)]);
    let coefficient = b.given("coefficient", &[1], Role::Scalar, vec![0.8]);
    let cut = size / 3;
    let decay = vec![
        Decay {
            range: 0..cut,
            weight_decay: 0.1,
        },
        Decay {
            range: cut..size,
            weight_decay: 0.0,
        },
    ];
    b.plan.push(
        Section::Update,
        AdamW {
            tensors: vec![AdamWTensor { parameter, decay }],
            hyper,
            coefficient,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
        },
    );
    b.finish(format!("adamw {size} lr {lr} step {step}"))
}
