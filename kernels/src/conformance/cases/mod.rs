//! Builders of [`Case`]s, one per operator. Operands that are columns of fused buffers get neighbours on both sides,
//! so that a wrong stride or an overrun shows.

mod builder;
mod delta;
mod layers;
mod training;

pub use builder::documents_of;
pub use delta::{DeltaCase, delta_rule};
pub use layers::{ConvCase, add_rms_norm, embedding, gated_rms_norm, gates, linear, short_conv, swiglu};
pub use training::{LossCase, adamw, cross_entropy, global_norm};

use super::{Case, Rng};
use crate::ops::*;
use crate::plan::{Geometry, PlanError};

/// The standard list: every operator at lengths around the chunk and block sizes, several head dimensions, grouped
/// heads, packed documents, with and without states.
///
/// # Errors
/// A plan an operator refuses.
pub fn all() -> Result<Vec<Case>, PlanError> {
    let mut cases = Vec::new();
    for (i, t) in [1, 63, 64, 65, 127].into_iter().enumerate() {
        let (g, seed) = (Geometry::unpacked(2, t), i as u64);
        cases.push(embedding(g, 11, 20, seed)?);
        cases.push(linear(g, 24, 40, seed)?);
        cases.push(linear(g, 300, 7, seed)?);
        cases.push(add_rms_norm(g, 24, i % 3, seed)?);
        cases.push(gates(g, 3, 1.0 + (i % 2) as f64, seed)?);
        let activation = [Some(GateActivation::Swish), Some(GateActivation::Sigmoid), None][i % 3];
        cases.push(gated_rms_norm(g, 3, 20, activation, seed)?);
        cases.push(swiglu(g, 33, seed)?);
        let loss = LossCase {
            geometry: g,
            hidden: 20,
            vocab: 131,
            chunk_rows: 32,
            ignored: 0.3,
            scale: 0.5,
        };
        cases.push(cross_entropy(&loss, seed)?);
        let documents = g.unpacked_cu_seqlens();
        let conv = ConvCase {
            geometry: g,
            documents: documents.clone(),
            norm_heads: 3,
            head_dim: 8,
            rest: 10,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, seed)?);
        cases.push(short_conv(
            &ConvCase {
                taps: None,
                silu: i % 2 == 0,
                ..conv
            },
            seed,
        )?);
        let heads = [(1, 1), (2, 4), (1, 3)][i % 3];
        let dims = [(16, 16), (8, 24), (33, 17), (64, 64), (128, 64)][i];
        let shape = DeltaRuleShape {
            key_heads: heads.0,
            value_heads: heads.1,
            key_dim: dims.0,
            value_dim: dims.1,
        };
        let delta = DeltaCase {
            geometry: g,
            documents,
            shape,
            states: i % 2 == 1,
            recompute: i % 3 == 1,
            decay: 0.5,
            beta: 1.0,
        };
        cases.push(delta_rule(&delta, seed)?);
    }
    let (geometry, documents) = documents_of(&[1, 3, 4, 63, 64, 65, 0, 100]);
    let shape = DeltaRuleShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 16,
    };
    cases.push(delta_rule(
        &DeltaCase {
            geometry,
            documents: documents.clone(),
            shape,
            states: true,
            recompute: false,
            decay: 2.0,
            beta: 2.0,
        },
        7,
    )?);
    cases.push(short_conv(
        &ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 16,
            rest: 16,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        },
        8,
    )?);
    cases.push(global_norm(&[1, 100, 20_000], Some(1.0), 9)?);
    cases.push(global_norm(&[5], None, 9)?);
    cases.push(adamw(1000, 1e-2, 3, 10)?);
    Ok(cases)
}

/// Lengths around the chunk and block sizes, and the two that training uses.
pub const DEVICE_LENGTHS: [usize; 7] = [1, 63, 64, 65, 127, 1000, 2048];

/// The list for devices: sizes their kernels cover (widths in multiples of 8, heads of 64 and more), at
/// [`DEVICE_LENGTHS`] and at drawn ones, packed documents with and without states.
///
/// # Errors
/// A plan an operator refuses.
pub fn device() -> Result<Vec<Case>, PlanError> {
    let mut cases = Vec::new();
    for (i, t) in DEVICE_LENGTHS.into_iter().enumerate() {
        let (g, seed) = (Geometry::unpacked(if t > 128 { 1 } else { 2 }, t), 20 + i as u64);
        cases.push(embedding(g, 37, [64, 1024][i % 2], seed)?);
        cases.push(linear(g, 128, 344, seed)?);
        cases.push(add_rms_norm(g, [1024, 264][i % 2], 1, seed)?);
        cases.push(add_rms_norm(g, [64, 1024][i % 2], 2 * (i % 2), seed)?);
        cases.push(gates(g, [8, 3, 16][i % 3], 1.0 + (i % 2) as f64, seed)?);
        let activation = [Some(GateActivation::Swish), Some(GateActivation::Sigmoid), None][i % 3];
        cases.push(gated_rms_norm(
            g,
            8,
            [64, 128, 256, 512][i % 4],
            activation,
            seed,
        )?);
        cases.push(gated_rms_norm(g, 3, 64, Some(GateActivation::Swish), seed)?);
        cases.push(swiglu(g, 520, seed)?);
        let loss = LossCase {
            geometry: g,
            hidden: 64,
            vocab: [1000, 4104][i % 2],
            chunk_rows: [32, 4096, 100][i % 3],
            ignored: 0.2,
            // Larger ones make logits whose rounding to bf16 alone moves the gradient by a percent.
            scale: [0.05, 0.5][i % 2],
        };
        cases.push(cross_entropy(&loss, seed)?);
        let documents = g.unpacked_cu_seqlens();
        let conv = ConvCase {
            geometry: g,
            documents: documents.clone(),
            norm_heads: 4,
            head_dim: [64, 128, 256][i % 3],
            rest: 192,
            taps: Some(4),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, seed)?);
        let plain = ConvCase {
            taps: None,
            silu: i % 2 == 0,
            head_dim: 64,
            ..conv
        };
        cases.push(short_conv(&plain, seed)?);
        let heads = [(2, 4), (1, 1), (1, 3)][i % 3];
        for (key_dim, value_dim) in [(64, 64), [(128, 128), (64, 128), (256, 256), (128, 128)][i % 4]] {
            let shape = DeltaRuleShape {
                key_heads: heads.0,
                value_heads: heads.1,
                key_dim,
                value_dim,
            };
            let delta = DeltaCase {
                geometry: g,
                documents: documents.clone(),
                shape,
                states: i % 2 == 1,
                recompute: i % 3 == 1,
                decay: 0.5,
                beta: 1.0,
            };
            cases.push(delta_rule(&delta, seed)?);
        }
    }
    cases.extend(device_packed()?);
    cases.push(global_norm(&[8, 104, 70_000], Some(1.0), 9)?);
    cases.push(global_norm(&[5], None, 9)?);
    cases.push(adamw(3000, 1e-2, 3, 10)?);
    Ok(cases)
}

/// Packed documents: awkward lengths, empty ones, and drawn ones.
fn device_packed() -> Result<Vec<Case>, PlanError> {
    let mut rng = Rng::new(77);
    let drawn: Vec<usize> = (0..9).map(|_| 1 + rng.below(200)).collect();
    let mut cases = Vec::new();
    for (i, lengths) in [vec![1, 3, 4, 63, 64, 65, 0, 100], drawn, vec![0, 200, 0]]
        .iter()
        .enumerate()
    {
        let (geometry, documents) = documents_of(lengths);
        for (j, dim) in [64, 128].into_iter().enumerate() {
            let delta = DeltaCase {
                geometry,
                documents: documents.clone(),
                shape: DeltaRuleShape {
                    key_heads: 2,
                    value_heads: 4,
                    key_dim: dim,
                    value_dim: dim,
                },
                states: (i + j).is_multiple_of(2),
                recompute: j == 1,
                decay: 2.0,
                beta: 2.0,
            };
            cases.push(delta_rule(&delta, 30 + i as u64)?);
        }
        let conv = ConvCase {
            geometry,
            documents,
            norm_heads: 2,
            head_dim: 64,
            rest: 64,
            taps: Some([4, 3, 2][i]),
            scale: 1.0,
            silu: true,
        };
        cases.push(short_conv(&conv, 40 + i as u64)?);
    }
    Ok(cases)
}
