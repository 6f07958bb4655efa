//! Every configuration that is shipped is read.

use std::path::{Path, PathBuf};

use ceteris_trainer::config;

use super::repository;

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no file", folder.display());
    files
}

fn no_environment(_: &str) -> Option<String> {
    None
}

#[test]
fn every_run_is_read_and_reads_back() {
    for file in yaml_files(&repository().join("configs")) {
        let composed = config::load(Some(&file), &[], &no_environment).unwrap_or_else(|e| panic!("{e}"));
        composed
            .config
            .learning_rates(100)
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let folder = tempfile::tempdir().unwrap();
        let again = folder.path().join("again.yaml");
        std::fs::write(&again, composed.config.to_yaml().unwrap()).unwrap();
        let again = config::load(Some(&again), &[], &no_environment).unwrap();
        assert_eq!(composed.config, again.config, "{}", file.display());
    }
}

#[test]
fn every_fragment_goes_with_a_run() {
    let configs = repository().join("configs");
    for part in ["orders", "data"] {
        for file in yaml_files(&configs.join(part)) {
            let folder = tempfile::tempdir().unwrap();
            let run = folder.path().join("run.yaml");
            let both = [configs.join("tiny.yaml"), file.clone()].map(|p| p.canonicalize().unwrap());
            std::fs::write(
                &run,
                format!("extends: [{}, {}]\n", both[0].display(), both[1].display()),
            )
            .unwrap();
            let composed = config::load(Some(&run), &[], &no_environment).unwrap_or_else(|e| panic!("{e}"));
            if part == "orders" {
                let name = file.file_stem().unwrap().to_str().unwrap();
                assert_eq!(composed.config.order_spec().unwrap().name(), name);
            }
        }
    }
}

/// The 300M run as its recipe has it.
#[test]
fn gdn_300m_is_the_recipe() {
    let file = repository().join("configs/gdn-300m.yaml");
    let config = config::load(Some(&file), &[], &no_environment).unwrap().config;
    let geometry = config.geometry().unwrap();
    assert_eq!(geometry.global_batch_size(), 1024);
    assert_eq!((config.data.seq_length, config.train.steps), (2048, Some(4768)));
    let rates = config.learning_rates(4768).unwrap();
    assert_eq!((rates.learning_rate(0), rates.learning_rate(200)), (0.0, 2e-4));
    assert!((rates.learning_rate(4768) - 2e-5).abs() < 1e-18);
    let o = &config.optimizer;
    assert_eq!(
        (o.beta1, o.beta2, o.weight_decay, o.max_grad_norm),
        (0.9, 0.95, 0.01, Some(1.0))
    );
    assert_eq!(
        (config.seeds.data, config.seeds.init, config.model.norm_eps),
        (42, 42, 1e-6)
    );
    assert_eq!(config.model, ceteris_trainer::model::ModelConfig::gdn_300m());
    let json = std::fs::read_to_string(repository().join("tests/golden/training/gdn_300m.json")).unwrap();
    let recorded: ceteris_trainer::model::ModelConfig = serde_json::from_str(&json).unwrap();
    assert_eq!(
        config.model, recorded,
        "the network is the one the initial weights were recorded for"
    );
}
