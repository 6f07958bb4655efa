//! What a plan needs, found by lowering it without a device.

use std::collections::BTreeSet;

use super::call::{HOPPER_SHARED, Modules};
use super::error::CudaError;
use super::lower::{ALIGN, Lowering};
use super::placement::{layout, place, saved_solutions, solutions, tables};
use super::product::{Products, Shape};
use super::{CudaOptions, Precision, Source, Unit};
use crate::plan::{Plan, Section};

/// The units of kernels that a plan needs on a device of compute capability 9.0. Lowers it without a device, so it also
/// refuses what the device would refuse.
///
/// # Errors
/// [`CudaError::Unsupported`]: sizes the kernels do not cover, with the allowed values.
pub fn units(plan: &Plan, precision: Precision) -> Result<BTreeSet<Unit>, CudaError> {
    Ok(list(plan, precision.into(), HOPPER_SHARED)?.0)
}

/// Units, and the products whose rows do not depend on their number, for a device whose blocks may use `shared` bytes of
/// shared memory.
pub(super) fn list(
    plan: &Plan,
    options: CudaOptions,
    shared: u32,
) -> Result<(BTreeSet<Unit>, BTreeSet<Shape>), CudaError> {
    let precision = options.precision;
    let layout = layout(plan, precision);
    // Addresses that no one reads, apart from one another and from 0.
    let (persistent, arena) = (ALIGN, ALIGN + layout.persistent as u64);
    let (mut places, _) = place(plan, &layout, &tables(plan, precision), persistent, arena);
    places.move_side(arena + layout.arena as u64);
    let saved = saved_solutions(plan, precision);
    places.saved = solutions(plan, precision, &saved, &places.buffers);
    let (mut modules, mut products) = (Modules::listing(shared), Products::listing());
    let mut lowering = Lowering::new(plan, options, &places, &mut modules, &mut products);
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        lowering.lower(op)?;
    }
    // Copies of weights and the measuring of products.
    modules.kernel(Source::Reduce, &precision.defines(), "copy_bf16", 0)?;
    Ok((modules.units(), products.batch_invariant_shapes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{DeltaCase, delta_rule};
    use crate::ops::DeltaRuleShape;
    use crate::plan::Geometry;

    /// Which recurrence is chosen for heads of `dim` on a device with so much shared memory, or why none.
    fn recurrence(dim: usize, shared: u32) -> String {
        let geometry = Geometry::unpacked(1, 128);
        let case = DeltaCase {
            geometry,
            documents: geometry.unpacked_cu_seqlens(),
            shape: DeltaRuleShape {
                key_heads: 1,
                value_heads: 1,
                key_dim: dim,
                value_dim: dim,
            },
            states: false,
            recompute: false,
            decay: 0.5,
            beta: 1.0,
        };
        let plan = delta_rule(&case, 1).unwrap().plan;
        match list(&plan, Precision::Amp.into(), shared) {
            Ok((units, _)) => units
                .iter()
                .find(|u| u.source == Source::DeltaFused)
                .map_or("separate".into(), |u| u.defines.last().cloned().unwrap()),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn kernels_are_chosen_by_the_shared_memory_of_the_device() {
        // Compute capability 9.0, 8.0, 8.9, and less than any has.
        let (h, a, l, few) = (HOPPER_SHARED, 163 * 1024, 99 * 1024, 64 * 1024);
        assert_eq!(
            [h, a, l, few].map(|s| recurrence(64, s)),
            ["STAGES=2", "STAGES=2", "STAGES=2", "separate"]
        );
        assert_eq!(
            [h, a, l, few].map(|s| recurrence(128, s)),
            ["STAGES=2", "STAGES=2", "STAGES=1", "separate"]
        );
        let why = recurrence(256, l);
        assert!(
            why.contains("bytes of shared memory a block, the device gives 101376: use smaller heads"),
            "{why}"
        );
    }
}
