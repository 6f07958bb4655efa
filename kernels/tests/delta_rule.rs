//! The chunked gated delta rule against the token recurrence: random shapes, extreme inputs, packed documents.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod common;

use ceteris_kernels::conformance::recurrent::{Gradients, Inputs, Outputs};
use ceteris_kernels::conformance::{Case, DeltaCase, delta_rule, documents_of, relative_error};
use ceteris_kernels::cpu::Float;
use ceteris_kernels::ops::DeltaRuleShape;
use ceteris_kernels::plan::Geometry;
use common::{assert_packed_is_separate, outputs, set, value};
use proptest::prelude::*;

/// What the recurrence gives for one document of a case: outputs by name, row-major.
struct Want {
    outputs: Outputs,
    gradients: Gradients,
}

/// Rows `first .. first + rows` of columns of a `[rows, width]` list.
fn part(
    values: &[f64],
    width: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Vec<f64> {
    rows.flat_map(|r| values[r * width + columns.start..r * width + columns.end].to_vec())
        .collect()
}

fn recurrence(case: &Case, delta: &DeltaCase, document: usize) -> Want {
    let shape = delta.shape;
    let (kw, vw) = (
        shape.key_heads * shape.key_dim,
        shape.value_heads * shape.value_dim,
    );
    let width = 2 * kw + vw;
    let rows = delta.documents[document] as usize..delta.documents[document + 1] as usize;
    let qkv = value(case, "qkv");
    let columns = |range| part(qkv, width, rows.clone(), range);
    let per_head = |name: &str| {
        part(
            value(case, name),
            shape.value_heads,
            rows.clone(),
            0..shape.value_heads,
        )
    };
    let state = shape.value_heads * shape.key_dim * shape.value_dim;
    let of_document = |name: &str| value(case, name)[document * state..(document + 1) * state].to_vec();
    let initial = delta.states.then(|| of_document("initial_state"));
    let dfinal = delta.states.then(|| of_document("dfinal_state"));
    let (q, k, v) = (columns(0..kw), columns(kw..2 * kw), columns(2 * kw..width));
    let (g, beta) = (per_head("g"), per_head("beta"));
    let inputs = Inputs {
        q: &q,
        k: &k,
        v: &v,
        g: &g,
        beta: &beta,
        initial_state: initial.as_deref(),
        scale: (shape.key_dim as f64).powf(-0.5),
        shape,
    };
    let dout = part(value(case, "dout"), vw, rows.clone(), 0..vw);
    Want {
        outputs: inputs.forward(),
        gradients: inputs.backward(&dout, dfinal.as_deref()),
    }
}

/// Largest relative error of any output of any document.
fn check(case: &Case, delta: &DeltaCase, float: Float, limit: f64) -> Result<(), String> {
    let got = outputs(case, float, 2);
    let shape = delta.shape;
    let (kw, vw) = (
        shape.key_heads * shape.key_dim,
        shape.value_heads * shape.value_dim,
    );
    let state = shape.value_heads * shape.key_dim * shape.value_dim;
    for document in 0..delta.documents.len() - 1 {
        let want = recurrence(case, delta, document);
        let rows = delta.documents[document] as usize..delta.documents[document + 1] as usize;
        let g = &want.gradients;
        let compare = |name: &str, width: usize, rows: std::ops::Range<usize>, want: &[f64]| {
            let got = part(&got[name], width, rows, 0..width);
            let finite = got.iter().all(|x| x.is_finite());
            let error = relative_error(&got, want);
            if finite && error <= limit {
                return Ok(());
            }
            Err(format!(
                "document {document}: {name} is off by {error:e} (finite: {finite}); {delta:?}"
            ))
        };
        compare("o", vw, rows.clone(), &want.outputs.o)?;
        compare("dqkv.0", kw, rows.clone(), &g.dq)?;
        compare("dqkv.1", kw, rows.clone(), &g.dk)?;
        compare("dqkv.2", vw, rows.clone(), &g.dv)?;
        compare("dg", shape.value_heads, rows.clone(), &g.dg)?;
        compare("dbeta", shape.value_heads, rows.clone(), &g.dbeta)?;
        if delta.states {
            compare(
                "final_state",
                state,
                document..document + 1,
                &want.outputs.final_state,
            )?;
            compare("dinitial_state", state, document..document + 1, &g.dinitial_state)?;
        }
    }
    Ok(())
}

fn plain(batch: usize, len: usize, shape: DeltaRuleShape) -> DeltaCase {
    let geometry = Geometry::unpacked(batch, len);
    let documents = geometry.unpacked_cu_seqlens();
    DeltaCase {
        geometry,
        documents,
        shape,
        states: true,
        recompute: false,
        decay: 0.5,
        beta: 1.0,
    }
}

fn shape(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> DeltaRuleShape {
    DeltaRuleShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    }
}

#[test]
fn lengths_around_the_chunk_match_the_recurrence() {
    for len in [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200] {
        let mut delta = plain(1, len, shape(1, 2, 16, 24));
        for (states, recompute) in [(false, false), (true, true)] {
            (delta.states, delta.recompute) = (states, recompute);
            let case = delta_rule(&delta, len as u64).unwrap();
            check(&case, &delta, Float::F64, 1e-11).unwrap();
            let case = case.rounded(|x| f64::from(x as f32));
            check(&case, &delta, Float::F32, 1e-5).unwrap();
        }
    }
}

#[test]
fn v63_head_dimensions_match_the_recurrence() {
    for (key_dim, value_dim) in [
        (64, 64),
        (64, 128),
        (96, 96),
        (100, 200),
        (128, 128),
        (192, 64),
        (256, 512),
    ] {
        let delta = plain(1, 70, shape(1, 1, key_dim, value_dim));
        let case = delta_rule(&delta, key_dim as u64).unwrap();
        check(&case, &delta, Float::F64, 1e-11).unwrap();
        check(&case.rounded(|x| f64::from(x as f32)), &delta, Float::F32, 1e-5).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn random_shapes_match_the_recurrence(
        batch in 1usize..3,
        len in 1usize..150,
        heads in 1usize..3,
        group in 1usize..4,
        key_dim in 1usize..40,
        value_dim in 1usize..40,
        states: bool,
        recompute: bool,
        decay in prop_oneof![Just(0.0), 0.01f64..1.0, 5.0f64..30.0],
        beta in 0.1f64..2.0,
        seed: u64,
    ) {
        let mut delta = plain(batch, len, shape(heads, heads * group, key_dim, value_dim));
        (delta.states, delta.recompute, delta.decay, delta.beta) = (states, recompute, decay, beta);
        let case = delta_rule(&delta, seed).unwrap();
        check(&case, &delta, Float::F64, 1e-9).map_err(TestCaseError::fail)?;
    }
}

/// Keys all equal with unit norm, beta 1 and no decay; keys all zero; a decay of exp(-50).
#[test]
fn v62_extreme_inputs_are_finite_and_right() {
    for len in [64, 200, 1000] {
        let delta = plain(1, len, shape(1, 1, 32, 32));
        let width = 3 * 32;
        let base = delta_rule(&delta, 5).unwrap();
        let fill = |key: &dyn Fn(usize) -> f64, g: f64, beta: f64| {
            let mut case = base.clone();
            let mut qkv = value(&case, "qkv").to_vec();
            for row in qkv.chunks_exact_mut(width) {
                (0..32).for_each(|i| row[32 + i] = key(i));
            }
            set(&mut case, "qkv", qkv);
            set(&mut case, "g", vec![g; len]);
            set(&mut case, "beta", vec![beta; len]);
            case.rounded(|x| f64::from(x as f32))
        };
        let equal = |_: usize| 32f64.sqrt().recip();
        let unit = |i: usize| f64::from(u8::from(i == 3));
        type Key<'a> = &'a dyn Fn(usize) -> f64;
        let inputs: [(Key, f64, f64); 6] = [
            (&equal, 0.0, 1.0),
            (&unit, 0.0, 1.0),
            (&|_| 0.0, 0.0, 1.0),
            (&equal, -50.0, 1.0),
            (&|_| 0.0, -50.0, 1.0),
            (&equal, -0.01, 1.0),
        ];
        for (i, (key, g, beta)) in inputs.into_iter().enumerate() {
            let case = fill(key, g, beta);
            check(&case, &delta, Float::F64, 1e-10).unwrap_or_else(|e| panic!("input {i}: {e}"));
            check(&case, &delta, Float::F32, 1e-5).unwrap_or_else(|e| panic!("input {i}: {e}"));
        }
    }
}

/// A decay of exp(-1000) early in a chunk costs later tokens no precision.
#[test]
fn strong_decays_do_not_blur_later_tokens() {
    let delta = plain(1, 128, shape(1, 1, 16, 16));
    let mut case = delta_rule(&delta, 6).unwrap();
    let g = (0..128)
        .map(|t| if t % 40 == 3 { -1000.0 } else { -0.001 })
        .collect();
    set(&mut case, "g", g);
    check(&case.rounded(|x| f64::from(x as f32)), &delta, Float::F32, 5e-6).unwrap();
}

#[test]
fn v64_packed_documents_equal_separate_ones() {
    for (i, lengths) in [vec![1, 3, 4, 63, 64, 65, 500], vec![500, 4, 65, 1, 64, 63, 3]]
        .iter()
        .enumerate()
    {
        let (geometry, documents) = documents_of(lengths);
        let delta = DeltaCase {
            geometry,
            documents,
            shape: shape(2, 4, 16, 24),
            states: true,
            recompute: i == 1,
            decay: 0.3,
            beta: 1.0,
        };
        let single = |document: usize| {
            let (geometry, documents) = documents_of(&lengths[document..=document]);
            delta_rule(
                &DeltaCase {
                    geometry,
                    documents,
                    ..delta.clone()
                },
                0,
            )
            .unwrap()
        };
        for float in [Float::F32, Float::F64] {
            let packed = delta_rule(&delta, 3).unwrap();
            assert_packed_is_separate(&packed, lengths, &single, float);
        }
    }
}
