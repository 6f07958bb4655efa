//! The kernel sources, embedded in the binary, and the compile-time sizes each is specialised for.

/// Header files every source may include.
pub const HEADERS: [(&str, &str); 4] = [
    ("common.cuh", include_str!("../../cuda/common.cuh")),
    ("vec.cuh", include_str!("../../cuda/vec.cuh")),
    ("tile.cuh", include_str!("../../cuda/tile.cuh")),
    ("delta.cuh", include_str!("../../cuda/delta.cuh")),
];

/// A kernel source file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// Residual add + RMSNorm. Sizes: `D`.
    Norm,
    /// Second passes of reductions, global norm, copies.
    Reduce,
    /// Short convolution. Sizes: `KD`, `W`, `NO_WEIGHT`, `NO_SILU`.
    Conv,
    /// Gates of the delta rule.
    Gates,
    /// The delta rule within a chunk: cumulative decays, T, W and U. Sizes: `KD`, `VD`.
    DeltaChunk,
    /// The delta rule's recurrences with the chunk's products fused in. Sizes: `KD`, `VD`, `STAGES`.
    DeltaFused,
    /// All chunk-local gradients of the delta rule in one kernel, heads of 64. Sizes: `KD`, `VD`.
    DeltaLocal,
    /// The delta rule's other parts as separate kernels, for heads of any size. Sizes: `KD`, `VD`.
    DeltaRule,
    /// Gated RMSNorm. Sizes: `VD`, `SIGMOID_GATE`.
    GatedNorm,
    /// SwiGLU.
    SwiGlu,
    /// Cross entropy over logits.
    CrossEntropy,
    /// Embedding and its gradient.
    Embedding,
    /// AdamW.
    AdamW,
}

impl Source {
    /// All sources.
    pub const ALL: [Source; 13] = [
        Source::Norm,
        Source::Reduce,
        Source::Conv,
        Source::Gates,
        Source::DeltaChunk,
        Source::DeltaFused,
        Source::DeltaLocal,
        Source::DeltaRule,
        Source::GatedNorm,
        Source::SwiGlu,
        Source::CrossEntropy,
        Source::Embedding,
        Source::AdamW,
    ];

    /// File name, for messages.
    pub fn file(self) -> &'static str {
        self.entry().0
    }

    /// Text of the file.
    pub fn text(self) -> &'static str {
        self.entry().1
    }

    /// Kernels of the file.
    pub fn kernels(self) -> &'static [&'static str] {
        self.entry().2
    }

    fn entry(self) -> (&'static str, &'static str, &'static [&'static str]) {
        macro_rules! file {
            ($name:literal, $kernels:expr) => {
                ($name, include_str!(concat!("../../cuda/", $name)), $kernels)
            };
        }
        match self {
            Source::Norm => file!("norm.cu", &["add_rms_norm", "rms_norm_backward"]),
            Source::Reduce => file!(
                "reduce.cu",
                &[
                    "sum_partials",
                    "square_sums",
                    "norm_of_partials",
                    "clear_words",
                    "add_into",
                    "copy_bf16",
                    "fill_random",
                    "digest_words",
                ]
            ),
            Source::Conv => file!("conv.cu", &["short_conv", "short_conv_backward"]),
            Source::Gates => file!("gates.cu", &["gates", "gates_backward"]),
            Source::DeltaChunk => file!("delta_chunk.cu", &["chunk_cumsum_backward", "delta_wy"]),
            Source::DeltaFused => file!("delta_fused.cu", &["delta_forward", "delta_backward"]),
            Source::DeltaLocal => file!("delta_local.cu", &["delta_local_backward"]),
            Source::DeltaRule => file!(
                "delta_rule.cu",
                &[
                    "sum_group",
                    "delta_state",
                    "delta_output",
                    "delta_dv_local",
                    "delta_state_backward",
                    "delta_dqkw",
                    "delta_wy_backward",
                ]
            ),
            Source::GatedNorm => file!("gated_norm.cu", &["gated_rms_norm", "gated_rms_norm_backward"]),
            Source::SwiGlu => file!("swiglu.cu", &["swiglu", "swiglu_backward"]),
            Source::CrossEntropy => file!(
                "cross_entropy.cu",
                &["cross_entropy", "cross_entropy_cluster", "sum_losses"]
            ),
            Source::Embedding => file!(
                "embedding.cu",
                &["embed", "embed_backward", "embed_backward_runs"]
            ),
            Source::AdamW => file!("adamw.cu", &["adamw_factors", "adamw"]),
        }
    }
}

/// A source with its compile-time definitions: what is compiled, cached and loaded as one module.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Unit {
    /// The file.
    pub source: Source,
    /// `NAME=value` or `NAME`, in a fixed order.
    pub defines: Vec<String>,
}
