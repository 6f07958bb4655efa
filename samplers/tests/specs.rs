//! Order specs as users write them: seeds at the ends of their ranges, defaults, refusals, degenerate datasets.

use ceteris_samplers::{Geometry, OrderError, OrderInput, OrderSpec, Place, Seed, SpecError};
use serde_json::{Value, json};

fn spec(value: Value) -> Result<OrderSpec, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn geometry(world_size: u64, micro_batch_size: u64) -> Geometry {
    Geometry {
        world_size,
        micro_batch_size,
        gradient_accumulation_steps: 1,
    }
}

fn positions(spec: &OrderSpec, n: u64, geometry: Geometry, epoch: u64) -> Result<Vec<u64>, OrderError> {
    let epoch = spec.build(&OrderInput::new(n, geometry))?.epoch(epoch)?;
    Ok((0..).map_while(|k| epoch.position(epoch.place_of(k)?)).collect())
}

#[test]
fn seeds_read_back_over_their_whole_range() {
    for seed in [
        "-9223372036854775808",
        "-1",
        "0",
        "4294967301",
        "9223372036854775808",
        "18446744073709551615",
    ] {
        let json = format!(r#"{{"name":"torch-distributed","seed":{seed}}}"#);
        let read: OrderSpec = serde_json::from_str(&json).unwrap();
        assert_eq!(read.seeds(), [("sampler", seed.parse::<Seed>().unwrap())]);
        let again = serde_json::to_string(&read).unwrap();
        assert!(again.contains(&format!(r#""seed":{seed},"#)), "{again}");
        let yaml = serde_yaml::to_string(&read).unwrap();
        assert!(yaml.contains(&format!("seed: {seed}\n")), "{yaml}");
        assert_eq!(serde_yaml::from_str::<OrderSpec>(&yaml).unwrap(), read);
    }
    for seed in [
        "18446744073709551616",
        "-9223372036854775809",
        "1.0",
        "\"42\"",
        "true",
    ] {
        let json = format!(r#"{{"name":"torch-distributed","seed":{seed}}}"#);
        let why = serde_json::from_str::<OrderSpec>(&json).unwrap_err().to_string();
        assert!(why.contains("seed"), "{seed}: {why}");
    }
}

#[test]
fn only_the_low_32_bits_of_a_torch_seed_count_and_the_epoch_is_added_before() {
    let of = |seed: Value, epoch| {
        let spec = spec(json!({"name": "torch-distributed", "seed": seed})).unwrap();
        positions(&spec, 50, geometry(1, 1), epoch).unwrap()
    };
    assert_eq!(of(json!(4_294_967_301_u64), 0), of(json!(5), 0));
    assert_eq!(of(json!(-1), 0), of(json!(4_294_967_295_u64), 0));
    assert_eq!(of(json!(-1), 1), of(json!(0), 0));
    assert_eq!(of(json!(4_294_967_295_u64), 1), of(json!(0), 0));
    assert_ne!(of(json!(1), 0), of(json!(0), 0));
}

#[test]
fn a_seed_that_leaves_the_range_with_its_epoch_is_refused() {
    let last = spec(json!({"name": "torch-distributed", "seed": u64::MAX})).unwrap();
    assert!(positions(&last, 10, geometry(1, 1), 0).is_ok());
    let why = positions(&last, 10, geometry(1, 1), 1).unwrap_err();
    assert!(matches!(why, OrderError::SeedRange { epoch: 1, .. }), "{why}");
    // transformers asks torch.initial_seed(), which is 2^64-1 for seed -1; data_seed is taken as it is.
    let negative = |key: &str| {
        let spec = spec(json!({"name": "hf-trainer", "dataset": [], key: -1})).unwrap();
        positions(&spec, 10, geometry(1, 1), 1)
    };
    assert!(negative("seed").is_err());
    assert!(negative("data_seed").is_ok());
}

#[test]
fn numpy_takes_no_negative_seed() {
    for value in [
        json!({"name": "fla", "seed": -1}),
        json!({"name": "shuffle", "seed": -1}),
        json!({"name": "sequential", "dataset": [{"shuffle": {"seed": -1}}]}),
    ] {
        let why = spec(value).unwrap_err();
        assert!(why.contains("negative"), "{why}");
    }
    // With the dataset steps spelled out, the sampler's seed may be negative.
    assert!(spec(json!({"name": "fla", "seed": -1, "dataset": [{"shuffle": {"seed": 1}}]})).is_ok());
}

#[test]
fn defaults_are_written_out() {
    let fla = spec(json!({"name": "fla", "seed": 42})).unwrap();
    assert_eq!(
        serde_json::to_string(&fla).unwrap(),
        r#"{"name":"fla","seed":42,"shuffle":true,"drop_last":false,"set_epoch_called":true,"dataset":[{"shuffle":{"seed":42}}]}"#
    );
    assert_eq!(
        fla.to_string(),
        r#"fla seed=42 shuffle=true drop_last=false set_epoch_called=true dataset=[{"shuffle":{"seed":42}}]"#
    );
    let named: OrderSpec = serde_yaml::from_str("sequential").unwrap();
    assert_eq!(named.name(), "sequential");
}

#[test]
fn null_is_not_given() {
    let a: OrderSpec = serde_yaml::from_str("{name: fla, seed: 42, data_seed: null, dataset: ~}").unwrap();
    assert_eq!(a, spec(json!({"name": "fla", "seed": 42})).unwrap());
    assert!(serde_yaml::from_str::<OrderSpec>("{name: fla, seed: null}").is_err());
}

#[test]
fn names_and_values_are_refused_with_what_would_be_valid() {
    let why = spec(json!({"seed": 1})).unwrap_err();
    assert!(why.contains("`name`") && why.contains("hf-trainer"), "{why}");
    let why = spec(json!({"name": "hf_trainer", "seed": 1})).unwrap_err();
    assert!(why.contains("did you mean `hf-trainer`"), "{why}");
    let why = spec(json!({"name": "fla", "seed": 1, "drop_last": "yes"})).unwrap_err();
    assert!(why.contains("`drop_last`") && why.contains("boolean"), "{why}");
    let why = spec(json!({"name": "fla", "seed": 1, "dataset": [{"shufle": {"seed": 1}}]})).unwrap_err();
    assert!(why.contains("shufle") && why.contains("shuffle"), "{why}");
    let why =
        spec(json!({"name": "fla", "seed": 1, "dataset": [{"shuffle": {"seed": 1, "sed": 2}}]})).unwrap_err();
    assert!(why.contains("sed"), "{why}");
    for (value, key) in [
        (
            json!({"name": "fla", "shuffle": false, "data_seed": 1, "dataset": []}),
            "data_seed",
        ),
        (
            json!({"name": "hf-trainer", "seed": 1, "data_seed": 1, "use_seedable_sampler": false}),
            "data_seed",
        ),
        (
            json!({"name": "hf-trainer", "seed": 1, "resumed_at": {"epoch": 1, "micro_step": 0}}),
            "resumed_at",
        ),
        (
            json!({"name": "sequential", "drop_last": true, "even_batches": true}),
            "even_batches",
        ),
        (json!({"name": "file"}), "path"),
        (json!({"name": "file", "path": "x.txt", "digest": "00"}), "digest"),
        (
            json!({"name": "torch-random", "seed": 1, "num_samples": 0}),
            "num_samples",
        ),
    ] {
        let why = spec(value).unwrap_err();
        assert!(why.contains(&format!("`{key}`")), "{why}");
    }
}

#[test]
fn a_key_given_twice_is_refused_at_every_depth() {
    for json in [
        r#"{"name":"fla","name":"fla","seed":1}"#,
        r#"{"name":"fla","seed":1,"dataset":[{"shuffle":{"seed":1,"seed":1}}]}"#,
        r#"{"name":"hf-trainer","seed":1,"use_seedable_sampler":false,"resumed_at":{"epoch":1,"epoch":1,"micro_step":1}}"#,
    ] {
        let why = serde_json::from_str::<OrderSpec>(json).unwrap_err().to_string();
        assert!(why.contains("given twice"), "{why}");
    }
    let options = [("seed".to_string(), json!(1)), ("seed".to_string(), json!(2))];
    assert!(matches!(
        OrderSpec::from_options("fla", options),
        Err(SpecError::DuplicateKey { key }) if key == "seed"
    ));
}

#[test]
fn steps_that_do_not_fit_the_dataset_are_refused_by_number() {
    for (steps, step) in [
        (
            json!([{"shuffle": {"seed": 1}}, {"select": {"stop": 11}}]),
            "dataset step 1 (select)",
        ),
        (
            json!([{"select": {"indices": [3, 10]}}]),
            "index 10 is out of range",
        ),
        (
            json!([{"train_test_split": {"take": "test", "test_size": 10, "seed": 1}}]),
            "test_size",
        ),
        (
            json!([{"train_test_split": {"take": "test", "test_size": 1.5, "seed": 1}}]),
            "test_size",
        ),
        (
            json!([{"train_test_split": {"take": "train", "train_size": 6, "test_size": 5, "seed": 1}}]),
            "more than",
        ),
        (
            json!([{"concatenate": [[], [{"select": {"start": 11}}]]}]),
            "concatenate",
        ),
    ] {
        let spec = spec(json!({"name": "sequential", "dataset": steps})).unwrap();
        let why = spec
            .build(&OrderInput::new(10, geometry(1, 1)))
            .unwrap_err()
            .to_string();
        assert!(why.contains(step), "{why}");
    }
    for steps in [
        json!([{"shard": {"num_shards": 2, "index": 2}}]),
        json!([{"split_by_node": {"rank": 0, "world_size": 0}}]),
        json!([{"select": {}}]),
        json!([{"shuffle": {}}]),
        json!([{"shuffle": {"seed": 1, "call": 0}}]),
        json!([{"train_test_split": {"take": "test"}}]),
        json!([{"concatenate": []}]),
    ] {
        assert!(spec(json!({"name": "sequential", "dataset": steps})).is_err());
    }
}

#[test]
fn datasets_of_no_samples() {
    let empty = |value: Value| positions(&spec(value).unwrap(), 0, geometry(4, 2), 0);
    // DistributedSampler and Dataset.shuffle accept them, RandomSampler raises.
    assert_eq!(empty(json!({"name": "torch-distributed", "seed": 1})), Ok(vec![]));
    assert_eq!(empty(json!({"name": "fla", "seed": 1})), Ok(vec![]));
    assert_eq!(
        empty(json!({"name": "sequential", "even_batches": true})),
        Ok(vec![])
    );
    assert!(matches!(
        empty(json!({"name": "hf-trainer", "seed": 1})),
        Err(OrderError::Empty { .. })
    ));
    assert!(matches!(
        empty(json!({"name": "torch-random", "seed": 1})),
        Err(OrderError::Empty { .. })
    ));
    let order = spec(json!({"name": "fla", "seed": 1})).unwrap();
    let order = order.build(&OrderInput::new(0, geometry(4, 2))).unwrap();
    assert_eq!((order.micro_steps_per_epoch(), order.steps_per_epoch()), (0, 0));
    assert!(order.locate(0).is_err());
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let fla = spec(json!({"name": "fla", "seed": 1})).unwrap();
    for (w, b, a) in [
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
        (u64::MAX, 2, 1),
        (1 << 24, 1 << 24, 1),
    ] {
        let geometry = Geometry {
            world_size: w,
            micro_batch_size: b,
            gradient_accumulation_steps: a,
        };
        assert!(matches!(
            fla.build(&OrderInput::new(10, geometry)),
            Err(OrderError::Geometry(_))
        ));
    }
    let split = spec(json!({"name": "hf-trainer", "seed": 1, "split_batches": true})).unwrap();
    let why = split
        .build(&OrderInput::new(10, geometry(3, 4)))
        .unwrap_err()
        .to_string();
    assert!(why.contains("split_batches"), "{why}");
    let order = split.build(&OrderInput::new(10, geometry(2, 4))).unwrap();
    assert_eq!(order.geometry().micro_batch_size, 2);
}

#[test]
fn the_epoch_list_may_be_longer_than_the_dataset() {
    let spec =
        spec(json!({"name": "torch-random", "seed": 42, "generator": "own", "num_samples": 25})).unwrap();
    let order = spec.build(&OrderInput::new(10, geometry(1, 4))).unwrap();
    assert_eq!(order.micro_steps_per_epoch(), 7);
    let epoch = order.epoch(0).unwrap();
    let place = |micro_step, slot| Place {
        micro_step,
        rank: 0,
        slot,
    };
    assert!(epoch.sample(place(6, 0)).is_some());
    assert_eq!(epoch.sample(place(6, 1)), None);
}
