//! Log-probabilities of a sequence with the same bits in any batch: `train.batch_invariant`.

use ceteris_kernels::conformance::Rng;
use ceteris_trainer::config::{DocumentMarker, Precision, RunConfig};

use crate::common::{device, engine, first_batch, layers_of_300m, sequence, small};

const VOCAB: usize = 32_768;

/// A run that scores `rows` rows of `seq_length` tokens at a time, with up to `documents` sequences in a row.
fn scorer(precision: Precision, rows: u64, seq_length: usize, documents: usize) -> RunConfig {
    let mut config = layers_of_300m(seq_length, VOCAB);
    config.train.batch_invariant = true;
    config.train.precision = precision;
    config.batch.micro_batch_size = rows;
    if documents > 1 {
        config.data.documents = DocumentMarker::Bos;
        config.data.max_documents_per_row = documents;
    }
    config
}

/// Bits of the log-probabilities of every sequence, put into rows in the order of `order`.
fn bits(config: &RunConfig, sequences: &[Vec<i32>], order: &[usize]) -> Vec<Vec<u32>> {
    let ordered: Vec<Vec<i32>> = order.iter().map(|&i| sequences[i].clone()).collect();
    let found = engine(config).log_probs(&ordered).unwrap();
    let mut out = vec![Vec::new(); sequences.len()];
    for (&i, values) in order.iter().zip(found) {
        assert_eq!(values.len() + 1, sequences[i].len());
        assert!(values.iter().all(|v| v.is_finite() && *v < 0.0));
        out[i] = values.iter().map(|v| v.to_bits()).collect();
    }
    out
}

fn shuffled(rng: &mut Rng, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.below(i + 1));
    }
    order
}

fn assert_same(got: &[Vec<u32>], want: &[Vec<u32>], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let other = got.iter().zip(want).filter(|(a, b)| a != b).count();
        assert!(
            other == 0 && got.len() == want.len(),
            "{what}: sequence {i} of {} tokens has {other} other log-probabilities",
            want.len() + 1
        );
    }
}

#[test]
fn v73_log_probs_have_the_same_bits_in_every_layout() {
    let Some(_turn) = device() else {
        return;
    };
    let mut rng = Rng::new(73);
    let sequences: Vec<Vec<i32>> = (0..64)
        .map(|_| {
            let len = 2 + rng.below(319);
            sequence(&mut rng, len, VOCAB)
        })
        .collect();
    let given: Vec<usize> = (0..64).collect();
    let total: usize = sequences.iter().map(Vec::len).sum();
    for precision in [Precision::Amp, Precision::F32] {
        let want = bits(&scorer(precision, 1, 320, 1), &sequences, &given);
        for micro in [2, 4, 8] {
            let got = bits(&scorer(precision, micro, 320, 1), &sequences, &given);
            assert_same(&got, &want, &format!("{precision} micro-batch {micro}, padded"));
        }
        for (name, order) in [("as given", given.clone()), ("shuffled", shuffled(&mut rng, 64))] {
            let one = scorer(precision, 1, total, 64);
            assert_same(
                &bits(&one, &sequences, &order),
                &want,
                &format!("{precision} packed in one row, {name}"),
            );
            let several = scorer(precision, 2, 1024, 16);
            assert_same(
                &bits(&several, &sequences, &order),
                &want,
                &format!("{precision} packed in rows of 1024, {name}"),
            );
        }
    }
}

/// Needs no device: what a log-probability is, and that the CPU's do not depend on the layout either.
#[test]
fn log_probs_are_those_of_the_loss_in_every_layout_on_the_cpu() {
    let mut rng = Rng::new(7);
    let sequences: Vec<Vec<i32>> = [2, 40, 96, 65, 7, 1].map(|n| sequence(&mut rng, n, 64)).into();
    let given: Vec<usize> = (0..sequences.len()).collect();
    let run = |rows: u64, seq_length: usize, documents: usize| {
        let mut config = small(seq_length);
        config.train.device = "cpu".into();
        config.batch.micro_batch_size = rows;
        if documents > 1 {
            config.data.documents = DocumentMarker::Bos;
            config.data.max_documents_per_row = documents;
        }
        config
    };
    let want = bits(&run(1, 96, 1), &sequences, &given);
    for (rows, seq_length, documents) in [(4, 96, 1), (1, 211, 6), (2, 128, 3)] {
        let got = bits(&run(rows, seq_length, documents), &sequences, &given);
        assert_same(
            &got,
            &want,
            &format!("{rows} x {seq_length}, {documents} in a row"),
        );
    }
    // Their mean is the loss.
    let config = run(1, 96, 1);
    let batch = first_batch(&config, &sequences[2..3]);
    let loss = engine(&config).gradients(&batch).unwrap();
    let sum: f64 = want[2].iter().map(|b| -f64::from(f32::from_bits(*b))).sum();
    let mean = sum / want[2].len() as f64;
    assert!((loss / mean - 1.0).abs() < 1e-6, "{loss} {mean}");
    let long = engine(&config).log_probs(&[vec![1; 97]]).unwrap_err();
    assert!(
        long.to_string().contains("97 tokens does not fit a row of 96"),
        "{long}"
    );
}

#[test]
fn v76_a_sequence_scores_alone_as_among_others() {
    let Some(_turn) = device() else {
        return;
    };
    let mut rng = Rng::new(76);
    let fixed = sequence(&mut rng, 700, VOCAB);
    let alone = bits(
        &scorer(Precision::Amp, 1, 700, 1),
        std::slice::from_ref(&fixed),
        &[0],
    );
    for others in [1usize, 7, 30] {
        let mut sequences = vec![fixed.clone()];
        for _ in 0..others {
            let len = 2 + rng.below(500);
            sequences.push(sequence(&mut rng, len, VOCAB));
        }
        let total = sequences.iter().map(Vec::len).sum();
        let config = scorer(Precision::Amp, 1, total, others + 1);
        let first: Vec<usize> = (0..=others).collect();
        let last: Vec<usize> = (0..=others).rev().collect();
        for order in [
            first,
            last,
            shuffled(&mut rng, others + 1),
            shuffled(&mut rng, others + 1),
        ] {
            let got = bits(&config, &sequences, &order);
            assert_same(&got[..1], &alone, &format!("packed with {others} others"));
        }
    }
    // The third group of the report, prefill and single steps, has no mode: the run says so at its start.
    let engine = engine(&scorer(Precision::Amp, 1, 64, 1));
    let notes = engine.notes().join("\n");
    assert!(
        notes.contains("rollout") && notes.contains("not available"),
        "{notes}"
    );
}
