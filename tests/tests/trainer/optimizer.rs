//! Learning rates and weight-decay groups against transformers.

use ceteris_trainer::optim::DecayPreset;
use ceteris_trainer::schedule::ScheduleConfig;

use super::{cases, float_of_hex};

#[test]
fn every_learning_rate_is_the_one_transformers_gives() {
    for case in cases("learning_rates.json") {
        let mut options = case["options"].as_object().unwrap().clone();
        options.insert("name".into(), case["name"].clone());
        if case["name"] != "constant" {
            options.insert("warmup_steps".into(), case["warmup_steps"].clone());
        }
        let config: ScheduleConfig = serde_json::from_value(options.into()).unwrap();
        let total = case["total_steps"].as_u64().unwrap();
        let schedule = config.build(case["lr"].as_f64().unwrap(), total).unwrap();
        let steps = case["steps"].as_array().unwrap();
        let rates = case["rates"].as_array().unwrap();
        assert_eq!(steps.len(), rates.len());
        for (step, want) in steps.iter().zip(rates) {
            let step = step.as_u64().unwrap();
            let want = float_of_hex(want.as_str().unwrap());
            let got = schedule.learning_rate(step);
            // The C library's cosine and Python's are the same; products are formed in the same order.
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{} step {step}: {got:e} against {want:e}",
                case["name"]
            );
        }
    }
}

#[test]
fn the_trainer_preset_decays_what_the_trainer_decays() {
    for case in cases("weight_decay.json") {
        let marked = case["marked_no_weight_decay"].as_array().unwrap();
        for (name, decays) in case["decay"].as_object().unwrap() {
            let decays = decays.as_bool().unwrap();
            assert_eq!(DecayPreset::HfTrainer.decays(name, &[2, 2]), decays, "{name}");
            let marked = marked.iter().any(|m| m == name);
            assert_eq!(
                DecayPreset::Fla.decays(name, &[2, 2]),
                decays && !marked,
                "{name}"
            );
            assert!(DecayPreset::All.decays(name, &[2]), "{name}");
        }
    }
}
