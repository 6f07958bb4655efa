//! Checkpoints and Hugging Face: what its classes saved is read, what is written is what they load.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ceteris_trainer::checkpoint::safetensors::{self, SafetensorsError};
use ceteris_trainer::config;
use ceteris_trainer::init::{InitConfig, InitFrom};
use ceteris_trainer::model::ModelConfig;
use ceteris_trainer::model::parameters::named_parameters;
use tempfile::TempDir;

use super::repository;

/// The network and the weights of `golden/training/hf_saved`, as transformers 5.24.0 `save_pretrained` wrote them.
fn saved() -> (ModelConfig, std::path::PathBuf) {
    let folder = repository().join("tests/golden/training/hf_saved");
    let keys = config::read_model_json(&folder.join("config.json")).unwrap();
    (serde_json::from_value(keys.into()).unwrap(), folder)
}

fn weights(model: &ModelConfig, folder: &Path) -> BTreeMap<String, Vec<u32>> {
    let init = InitConfig {
        from: InitFrom::Checkpoint,
        path: Some(folder.to_owned()),
        ..Default::default()
    };
    let mut out: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    init.run(model, 0, &mut |name, first, values| {
        let tensor = out.entry(name.to_owned()).or_default();
        assert_eq!(tensor.len(), first);
        tensor.extend(values.iter().map(|v| v.to_bits()));
        Ok(())
    })
    .unwrap();
    out
}

#[test]
fn what_transformers_saved_is_read_and_written_again_bit_for_bit() {
    let (model, folder) = saved();
    model.validate().unwrap();
    let read = weights(&model, &folder);
    let tensors = named_parameters(&model);
    assert_eq!(read.len(), tensors.len());
    let out = TempDir::new().unwrap();
    let values: Vec<Vec<f32>> = tensors
        .iter()
        .map(|t| read[&t.name].iter().map(|b| f32::from_bits(*b)).collect())
        .collect();
    let json = ceteris_trainer::checkpoint::config_json(&model, safetensors::Stored::F32);
    safetensors::write_model(out.path(), &tensors, &values, &json).unwrap();
    assert_eq!(weights(&model, out.path()), read);
    // The same bytes but for what the header's JSON may order otherwise.
    let ours = std::fs::read(out.path().join("model.safetensors")).unwrap();
    let theirs = std::fs::read(folder.join("model.safetensors")).unwrap();
    let data = |bytes: &[u8]| {
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    };
    assert_eq!(data(&ours), data(&theirs), "tensors in the same sequence");
    // And the settings are the ones that were saved.
    let again = config::read_model_json(&out.path().join("config.json")).unwrap();
    assert_eq!(
        serde_json::from_value::<ModelConfig>(again.into()).unwrap(),
        model
    );
}

#[test]
fn weights_of_another_network_are_refused_by_name() {
    let (model, folder) = saved();
    let refused = |change: &dyn Fn(&mut ModelConfig)| {
        let mut model = model.clone();
        change(&mut model);
        match safetensors::read_f32(&folder, &named_parameters(&model), &mut |_, _, _| Ok(())) {
            Err(error @ SafetensorsError::Mismatch { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&|m| m.num_hidden_layers += 1).contains("missing: model.layers.2."));
    assert!(refused(&|m| m.num_hidden_layers -= 1).contains("not of this model: model.layers.1."));
    assert!(refused(&|m| m.hidden_size *= 2).contains("model.embeddings.weight has shape"));
    assert!(refused(&|m| m.tie_word_embeddings = false).contains("missing: lm_head.weight"));
    let empty = TempDir::new().unwrap();
    let error =
        safetensors::read_f32(empty.path(), &named_parameters(&model), &mut |_, _, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    // A file that is cut short, or is no such file.
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    for cut in [0, 5, 100, bytes.len() - 1] {
        std::fs::write(empty.path().join("model.safetensors"), &bytes[..cut]).unwrap();
        let error = safetensors::read_f32(empty.path(), &named_parameters(&model), &mut |_, _, _| Ok(()));
        assert!(error.is_err(), "{cut}");
    }
}

/// Needs a Python with torch, transformers and flash-linear-attention, named by `CETERIS_PYTHON`.
#[test]
#[ignore = "needs CETERIS_PYTHON: a Python with flash-linear-attention"]
fn our_checkpoint_goes_through_the_real_classes_and_back() {
    let python = std::env::var("CETERIS_PYTHON").expect("CETERIS_PYTHON names a Python");
    let folder = TempDir::new().unwrap();
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let made = Command::new(env!("CARGO_BIN_EXE_trainer-under-test"))
        .current_dir(repository())
        .args(["init", "--config", "configs/tiny.yaml", "--output"])
        .arg(&ours)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let script = repository().join("tests/golden/generate/hf_round_trip.py");
    let ran = Command::new(python)
        .arg(script)
        .args([&ours, &theirs])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let keys = config::read_model_json(&theirs.join("config.json")).unwrap();
    let model: ModelConfig = serde_json::from_value(keys.into()).unwrap();
    assert_eq!(weights(&model, &theirs), weights(&model, &ours));
}
