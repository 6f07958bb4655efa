//! The loss and the gradient of a global batch, however it is split.

use ceteris_trainer::config::{Precision, RunConfig};
use ceteris_trainer::run::engine::{EngineError, StepResult};

use crate::common::{device, engine, first_batch, small, split};

/// Rows with this many targets each: tokens 1..=63 in turn.
fn rows_with_targets(targets: &[usize]) -> Vec<Vec<i32>> {
    let row = |r: usize, n: usize| (0..=n).map(|i| 1 + ((r * 7 + i * 5) % 63) as i32).collect();
    targets.iter().enumerate().map(|(r, &n)| row(r, n)).collect()
}

/// Loss, gradient norm and the weights after one step.
fn step(config: &RunConfig, rows: &[Vec<i32>]) -> (StepResult, Vec<(String, String)>) {
    let batch = first_batch(config, rows);
    let mut engine = engine(config);
    let result = engine.step(&batch, 1, 1e-2).unwrap();
    (result, engine.weights_sha256().unwrap())
}

#[test]
fn v57_the_split_into_accumulation_steps_changes_no_bit_on_cuda() {
    let Some(_turn) = device() else {
        return;
    };
    let mut config = small(208);
    config.train.precision = Precision::F32;
    let rows = rows_with_targets(&[3, 200, 17, 64, 199, 5, 128, 40]);
    let splits = [(1, 8, 1), (1, 4, 2), (1, 1, 8), (2, 2, 2), (8, 1, 1)];
    // The device computes two rows at a time, whatever the split: one order of sums.
    let mut fixed = config.clone();
    fixed.batch.device_micro_batch_size = Some(2);
    let whole = step(&split(&fixed, 1, 8, 1), &rows);
    for (world, micro, accumulation) in splits {
        let parts = step(&split(&fixed, world, micro, accumulation), &rows);
        let what = format!("{world} x {micro} x {accumulation}");
        assert_eq!(parts.0.loss.to_bits(), whole.0.loss.to_bits(), "{what}");
        assert_eq!(parts.0.grad_norm.to_bits(), whole.0.grad_norm.to_bits(), "{what}");
        assert_eq!(parts.1, whole.1, "{what}");
    }
    // Other numbers of rows at a time: other orders of sums, the same values.
    for (world, micro, accumulation) in splits {
        let parts = step(&split(&config, world, micro, accumulation), &rows).0;
        for (got, want) in [(parts.loss, whole.0.loss), (parts.grad_norm, whole.0.grad_norm)] {
            let off = (got / want - 1.0).abs();
            println!("{world} x {micro} x {accumulation}: off by {off:.1e}");
            assert!(off <= 1e-6, "{world} x {micro} x {accumulation}: {got} {want}");
        }
    }
}

#[test]
fn v58_the_loss_is_the_mean_over_the_tokens_of_all_ranks_on_cuda() {
    let Some(_turn) = device() else {
        return;
    };
    let mut config = small(16);
    config.train.precision = Precision::F32;
    config.batch.device_micro_batch_size = Some(1);
    // The third rank has a row of one token, which has no target.
    let rows = rows_with_targets(&[1, 7, 0]);
    let ranks = split(&config, 3, 1, 1);
    let batch = first_batch(&ranks, &rows);
    assert_eq!(batch.counted_tokens(), 8);
    let together = step(&split(&config, 1, 3, 1), &rows);
    let apart = step(&ranks, &rows);
    assert_eq!(apart.0.loss.to_bits(), together.0.loss.to_bits());
    assert_eq!(apart.0.grad_norm.to_bits(), together.0.grad_norm.to_bits());
    assert_eq!(apart.1, together.1);
    assert!(apart.0.loss.is_finite() && apart.0.grad_norm > 0.0);
    // Sum over 8, not the mean of the ranks' means.
    let alone = |row: usize| {
        let one = split(&config, 1, 1, 1);
        step(&one, &rows[row..=row]).0.loss
    };
    let mean = (alone(0) + 7.0 * alone(1)) / 8.0;
    assert!((apart.0.loss - mean).abs() < 1e-6, "{} {mean}", apart.0.loss);
    assert!((apart.0.loss - (alone(0) + alone(1)) / 2.0).abs() > 1e-6);
    // A global batch without any target is an error, not NaN.
    let nothing = rows_with_targets(&[0]);
    let one = split(&config, 1, 1, 1);
    let error = engine(&one)
        .step(&first_batch(&one, &nothing), 1, 1e-2)
        .unwrap_err();
    assert!(matches!(error, EngineError::NothingCounts { step: 1 }), "{error}");
}
