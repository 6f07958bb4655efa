//! Initial weights against `torch.manual_seed` + `AutoModelForCausalLM.from_config`.

use std::collections::BTreeMap;

use ceteris_trainer::init::{InitConfig, tensor_sha256};
use ceteris_trainer::model::ModelConfig;
use serde_json::Value;

use super::{cases, float_of_hex, recorded, repository};

/// Names, shapes, hashes and values of every tensor.
fn weights(config: &ModelConfig, seed: u64) -> BTreeMap<String, (String, Vec<f32>)> {
    let mut out = BTreeMap::new();
    InitConfig::default()
        .run(config, seed, &mut |name, first, values| {
            assert_eq!(first, 0);
            let kept = values[..values.len().min(8)].to_vec();
            let twice = out.insert(name.to_owned(), (tensor_sha256(values), kept));
            assert!(twice.is_none(), "{name} twice");
            Ok(())
        })
        .unwrap();
    out
}

/// All 218 tensors of gdn-300m, as recorded on two hosts with AVX-512 (torch 2.11 and 2.15). This one needs neither
/// AVX-512 nor AVX2.
#[test]
fn gdn_300m_has_the_recorded_sha256_in_every_parameter() {
    let config = std::fs::read_to_string(repository().join("tests/golden/training/gdn_300m.json")).unwrap();
    let config: ModelConfig = serde_json::from_str(&config).unwrap();
    let want = recorded("init_gdn_300m.json");
    let want = want["parameters"].as_object().unwrap();
    let got = weights(&config, 42);
    assert_eq!(got.len(), want.len());
    let wrong: Vec<&String> = want
        .iter()
        .filter(|(name, w)| got.get(*name).map(|g| g.0.as_str()) != w["sha256"].as_str())
        .map(|(name, _)| name)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} differ: {wrong:?}",
        wrong.len(),
        want.len()
    );
}

/// Small models in every variant the configuration allows. `A_log` and `dt_bias` went through the vector library of
/// the recording machine, which may round their last bit another way.
#[test]
fn every_variant_draws_as_the_real_model_does() {
    for case in cases("init.json") {
        let name = case["name"].as_str().unwrap();
        let config: ModelConfig = serde_json::from_value(case["config"].clone()).unwrap();
        let got = weights(&config, case["seed"].as_u64().unwrap());
        let want = case["parameters"].as_object().unwrap();
        let names: Vec<&String> = want.keys().collect();
        assert_eq!(got.keys().collect::<Vec<_>>(), {
            let mut sorted = names.clone();
            sorted.sort();
            sorted
        });
        for (tensor, w) in want {
            let (sha, first) = &got[tensor];
            if tensor.ends_with("A_log") || tensor.ends_with("dt_bias") {
                for (g, w) in first.iter().zip(w["first"].as_array().unwrap()) {
                    let w = float_of_hex(w.as_str().unwrap()) as f32;
                    let apart = (i64::from(g.to_bits()) - i64::from(w.to_bits())).abs();
                    assert!(apart <= 2, "{name} {tensor}: {g:e} against {w:e}");
                }
            } else {
                assert_eq!(Some(sha.as_str()), w["sha256"].as_str(), "{name} {tensor}");
            }
        }
    }
}

/// The order of names and the shapes are those of `named_parameters()`.
#[test]
fn names_and_shapes_are_those_of_the_real_model() {
    for case in cases("init.json") {
        let config: ModelConfig = serde_json::from_value(case["config"].clone()).unwrap();
        let shapes: BTreeMap<String, Vec<usize>> =
            ceteris_trainer::model::parameters::named_parameters(&config)
                .into_iter()
                .map(|t| (t.name, t.shape))
                .collect();
        let want: BTreeMap<String, Vec<usize>> = case["parameters"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, w): (&String, &Value)| {
                let shape = w["shape"].as_array().unwrap();
                (
                    name.clone(),
                    shape.iter().map(|n| n.as_u64().unwrap() as usize).collect(),
                )
            })
            .collect();
        assert_eq!(shapes, want, "{}", case["name"]);
    }
}
