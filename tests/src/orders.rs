//! Building orders in tests, and reading them back the way packages list them.

use std::sync::Arc;

use ceteris_samplers::{Epoch, Geometry, Order, OrderInput, OrderSpec, Permutation, Place};
use serde_json::Value;

/// Ranks, micro-batch, and no accumulation.
pub fn geometry(world_size: u64, micro_batch_size: u64) -> Geometry {
    Geometry {
        world_size,
        micro_batch_size,
        gradient_accumulation_steps: 1,
    }
}

/// An order from its spec as JSON.
///
/// # Errors
/// What is wrong with spec or input, as text.
pub fn order(spec: Value, num_samples: u64, geometry: Geometry) -> Result<Arc<dyn Order>, String> {
    let spec: OrderSpec = serde_json::from_value(spec).map_err(|e| e.to_string())?;
    spec.build(&OrderInput::new(num_samples, geometry))
        .map_err(|e| e.to_string())
}

/// As [`order`], for orders that take a list.
///
/// # Errors
/// What is wrong with spec or input, as text.
pub fn order_of_list(
    spec: Value,
    num_samples: u64,
    geometry: Geometry,
    list: Vec<u64>,
) -> Result<Arc<dyn Order>, String> {
    let spec: OrderSpec = serde_json::from_value(spec).map_err(|e| e.to_string())?;
    let input = OrderInput {
        list: Some(Arc::new(Permutation::from_indices(list))),
        ..OrderInput::new(num_samples, geometry)
    };
    spec.build(&input).map_err(|e| e.to_string())
}

/// An epoch of an order, errors as text.
///
/// # Errors
/// Why there is no such epoch.
pub fn epoch(order: &Arc<dyn Order>, epoch: u64) -> Result<Arc<dyn Epoch>, String> {
    order.epoch(epoch).map_err(|e| e.to_string())
}

/// Positions of one rank, micro-step by micro-step; micro-steps without a sample for the rank are left out.
pub fn batches(order: &Arc<dyn Order>, epoch: &Arc<dyn Epoch>, rank: u64) -> Vec<Vec<u64>> {
    (0..epoch.micro_steps())
        .map(|micro_step| {
            (0..order.geometry().micro_batch_size)
                .filter_map(|slot| {
                    epoch.position(Place {
                        micro_step,
                        rank,
                        slot,
                    })
                })
                .collect()
        })
        .filter(|batch: &Vec<u64>| !batch.is_empty())
        .collect()
}

/// Positions of one rank in a row.
pub fn stream(order: &Arc<dyn Order>, epoch: &Arc<dyn Epoch>, rank: u64) -> Vec<u64> {
    batches(order, epoch, rank).concat()
}

/// Positions of all ranks in deal order.
pub fn dealt(epoch: &Arc<dyn Epoch>) -> Vec<u64> {
    (0..).map_while(|k| epoch.position(epoch.place_of(k)?)).collect()
}
