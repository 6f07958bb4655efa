//! Short convolution and l2 norm: packed documents, and the norm of small vectors.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

mod common;

use ceteris_kernels::conformance::{ConvCase, documents_of, short_conv};
use ceteris_kernels::cpu::Float;
use ceteris_kernels::plan::Geometry;
use common::{assert_packed_is_separate, outputs, set, value};

#[test]
fn v64_packed_documents_equal_separate_ones() {
    for lengths in [vec![1, 3, 4, 63, 64, 65, 500], vec![2, 1, 1, 500, 3, 64]] {
        let (geometry, documents) = documents_of(&lengths);
        let conv = ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 8,
            rest: 9,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        let single = |document: usize| {
            let (geometry, documents) = documents_of(&lengths[document..=document]);
            short_conv(
                &ConvCase {
                    geometry,
                    documents,
                    ..conv.clone()
                },
                0,
            )
            .unwrap()
        };
        for float in [Float::F32, Float::F64] {
            assert_packed_is_separate(&short_conv(&conv, 1).unwrap(), &lengths, &single, float);
        }
    }
}

/// Changing the first document changes no bit of the second.
#[test]
fn v64_documents_do_not_see_each_other() {
    let (geometry, documents) = documents_of(&[5, 70]);
    let conv = ConvCase {
        geometry,
        documents,
        norm_heads: 2,
        head_dim: 8,
        rest: 8,
        taps: Some(4),
        scale: 1.0,
        silu: true,
    };
    let mut case = short_conv(&conv, 2).unwrap();
    let before = outputs(&case, Float::F32, 1);
    let mut x = value(&case, "x").to_vec();
    let row = x.len() / 75;
    x[..5 * row].iter_mut().for_each(|x| *x = 3.0 - *x);
    set(&mut case, "x", x);
    let after = outputs(&case, Float::F32, 1);
    for name in ["out", "dx"] {
        let second = |values: &[f64]| values[values.len() / 75 * 5..].to_vec();
        assert_eq!(second(&before[name]), second(&after[name]), "{name}");
        assert_ne!(before[name], after[name], "{name}");
    }
}

/// `x / sqrt(sum(x²) + 1e-6)`, epsilon inside the root and on the sum, to 1e-6 at every amplitude; 0 gives 0.
#[test]
fn v68_norm_of_small_vectors() {
    let (rows, heads, dim) = (9, 2, 64);
    let geometry = Geometry::unpacked(1, rows);
    for amplitude in [1.0, 1e-2, 1e-3, 1e-4, 0.0] {
        let conv = ConvCase {
            geometry,
            documents: geometry.unpacked_cu_seqlens(),
            norm_heads: heads,
            head_dim: dim,
            rest: 1,
            taps: None,
            scale: amplitude,
            silu: false,
        };
        let case = short_conv(&conv, 4).unwrap().rounded(|x| f64::from(x as f32));
        let got = outputs(&case, Float::F32, 1);
        let (x, dout) = (value(&case, "x"), value(&case, "dout"));
        let (wide, width) = (x.len() / rows, heads * dim + 1);
        for r in 0..rows {
            for h in 0..heads {
                let x = &x[r * wide + 3 + h * dim..][..dim];
                let d = &dout[r * width + h * dim..][..dim];
                let scale = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt().recip();
                let along: f64 = x.iter().zip(d).map(|(x, d)| x * d).sum();
                let largest = d.iter().fold(0.0f64, |m, d| m.max(d.abs()));
                for i in 0..dim {
                    let at = r * width + h * dim + i;
                    let want = x[i] * scale;
                    assert!(
                        (got["out"][at] - want).abs() <= 1e-6 * want.abs(),
                        "{amplitude} out {want}"
                    );
                    let want = scale * d[i] - x[i] * along * scale.powi(3);
                    let error = (got["dx"][at] - want).abs();
                    assert!(
                        error <= 1e-6 * scale * largest,
                        "{amplitude} dx {want} off by {error:e}"
                    );
                }
            }
        }
        if amplitude == 0.0 {
            assert!(got["out"].iter().all(|&x| x == 0.0));
        }
    }
}
