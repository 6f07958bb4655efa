//! `hf-iterable` against what torch DataLoaders over real Hugging Face iterable datasets handed to each rank.
//!
//! `hf_iterable_loader.json` was recorded by `record_hf_iterable.py` beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ceteris_samplers::{Geometry, Order, OrderInput, OrderSpec, Place};
use serde_json::Value;

fn build(spec: &Value, n: u64, world_size: u64, micro_batch_size: u64) -> Arc<dyn Order> {
    let spec: OrderSpec = serde_json::from_value(spec.clone()).unwrap_or_else(|e| panic!("{spec}: {e}"));
    let geometry = Geometry {
        world_size,
        micro_batch_size,
        gradient_accumulation_steps: 1,
    };
    spec.build(&OrderInput::new(n, geometry))
        .unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Rows of each rank, batch by batch.
fn batches(order: &Arc<dyn Order>, number: u64) -> Vec<Vec<Vec<u64>>> {
    let epoch = order
        .epoch(number)
        .unwrap_or_else(|e| panic!("epoch {number}: {e}"));
    let geometry = order.geometry();
    let batch = |rank, micro_step| -> Vec<u64> {
        let places = (0..geometry.micro_batch_size).map(|slot| Place {
            micro_step,
            rank,
            slot,
        });
        places.map_while(|place| epoch.sample(place)).collect()
    };
    (0..geometry.world_size)
        .map(|rank| {
            (0..epoch.micro_steps())
                .map(|m| batch(rank, m))
                .filter(|b| !b.is_empty())
                .collect()
        })
        .collect()
}

#[test]
fn every_rank_gets_the_batches_the_real_loader_gave_it() {
    let recorded: Value = serde_json::from_str(include_str!("hf_iterable_loader.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    let mut covered = BTreeSet::new();
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap();
        let order = build(&case["spec"], number("n"), number("world"), number("batch_size"));
        let want: Vec<Vec<Vec<u64>>> = serde_json::from_value(case["ranks"].clone()).unwrap();
        assert_eq!(batches(&order, 0), want, "{}", case["spec"]);
        assert_eq!(order.num_epochs().is_some(), order.epoch(1).is_err());
        covered.insert((
            order.num_epochs(),
            order.is_elastic(),
            order.num_padded() > 0,
            order.num_dropped() > 0,
        ));
    }
    assert!(
        cases.len() > 100 && covered.len() > 5,
        "{} cases, {covered:?}",
        cases.len()
    );
}

#[test]
fn later_epochs_of_one_order_equal_orders_that_start_there() {
    let spec = |first_epoch: u64| serde_json::json!({"name": "hf-iterable", "seed": 9, "buffer_size": 7, "shards": 6, "num_workers": 2, "first_epoch": first_epoch});
    let order = build(&spec(0), 36, 3, 2);
    for e in [3, 0, 2, 1] {
        assert_eq!(
            batches(&order, e),
            batches(&build(&spec(e), 36, 3, 2), 0),
            "epoch {e}"
        );
    }
}

#[test]
fn epochs_of_unequal_length_are_refused_with_the_way_out() {
    // Five shards of 23 rows have unequal lengths, and two workers divide them after they were shuffled.
    let spec = serde_json::json!({"name": "hf-iterable", "seed": 9, "buffer_size": 7, "shards": 5, "num_workers": 2});
    let order = build(&spec, 23, 1, 2);
    assert_eq!(order.num_epochs(), Some(1));
    let error = order.epoch(1).unwrap_err().to_string();
    assert!(error.contains("first_epoch"), "{error}");
}

#[test]
fn bad_options_are_refused_by_name() {
    for (spec, names) in [
        (r#"{"name":"hf-iterable"}"#, "seed"),
        (r#"{"name":"hf-iterable","seed":-1}"#, "seed"),
        (r#"{"name":"hf-iterable","seed":1,"shuffle":false}"#, "seed"),
        (
            r#"{"name":"hf-iterable","seed":1,"buffer_size":0}"#,
            "buffer_size",
        ),
        (
            r#"{"name":"hf-iterable","seed":1,"split":"batches","num_workers":2}"#,
            "num_workers",
        ),
        (
            r#"{"name":"hf-iterable","seed":1,"probabilities":[1.0],"mix_seed":1}"#,
            "sources",
        ),
        (
            r#"{"name":"hf-iterable","seed":1,"sources":[1,null],"probabilities":[0.5,0.5]}"#,
            "mix_seed",
        ),
        (
            r#"{"name":"hf-iterable","seed":1,"sources":[1,null],"probabilities":[0.5,0.6],"mix_seed":1}"#,
            "sum to",
        ),
        (
            r#"{"name":"hf-iterable","seed":1,"sources":[{"row":1},null]}"#,
            "sources",
        ),
    ] {
        let error = serde_json::from_str::<OrderSpec>(spec).unwrap_err().to_string();
        assert!(error.contains(names), "{spec}: {error}");
    }
    for (spec, names) in [
        (
            r#"{"name":"hf-iterable","seed":1,"shards":12}"#,
            "12 shards of 10 rows",
        ),
        (r#"{"name":"hf-iterable","seed":1,"shards":[4,5]}"#, "9 rows"),
        (r#"{"name":"hf-iterable","seed":1,"shards":0}"#, "at least 1"),
        (r#"{"name":"hf-iterable","seed":1,"sources":[4,5]}"#, "9 rows"),
        (r#"{"name":"interleave","sources":[4,5]}"#, "9 rows"),
        (r#"{"name":"interleave","sources":[null,null]}"#, "more than one"),
    ] {
        let spec: OrderSpec = serde_json::from_str(spec).unwrap();
        let geometry = Geometry {
            world_size: 1,
            micro_batch_size: 2,
            gradient_accumulation_steps: 1,
        };
        let error = spec
            .build(&OrderInput::new(10, geometry))
            .unwrap_err()
            .to_string();
        assert!(error.contains(names), "{spec}: {error}");
    }
}
