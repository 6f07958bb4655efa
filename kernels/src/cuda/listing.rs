//! What a plan needs, found by lowering it without a device.

use std::collections::BTreeSet;

use super::call::Modules;
use super::device::Device;
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
    Ok(list(plan, precision.into(), None)?.0)
}

/// Units, and the products whose rows do not depend on their number. Sizes are those of `device`, else of compute capability
/// 9.0.
pub(super) fn list(
    plan: &Plan,
    options: CudaOptions,
    device: Option<&Device>,
) -> Result<(BTreeSet<Unit>, BTreeSet<Shape>), CudaError> {
    let precision = options.precision;
    let layout = layout(plan, precision);
    // Addresses that no one reads, apart from one another and from 0.
    let (persistent, arena) = (ALIGN, ALIGN + layout.persistent as u64);
    let (mut places, _) = place(plan, &layout, &tables(plan, precision), persistent, arena);
    places.move_side(arena + layout.arena as u64);
    let saved = saved_solutions(plan, precision);
    places.saved = solutions(plan, precision, &saved, &places.buffers);
    let (mut modules, mut products) = (Modules::listing(device), Products::listing());
    let mut lowering = Lowering::new(plan, options, &places, &mut modules, &mut products);
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        lowering.lower(op)?;
    }
    // Copies of weights and the measuring of products.
    modules.kernel(Source::Reduce, &precision.defines(), "copy_bf16", 0)?;
    Ok((modules.units(), products.batch_invariant_shapes()))
}
