//! `trainer init`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::checkpoint::{config_json, safetensors};
use crate::init::tensor_sha256;
use crate::model::parameters::named_parameters;

use super::settings::Settings;

/// Makes initial weights: prints the SHA-256 of each tensor (float32, little endian), or writes them as safetensors.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer init --config configs/gdn-300m.yaml
  trainer init --config configs/tiny.yaml --set seeds.init=7 --output init-7")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Folder to write config.json and model.safetensors to; it must not hold them yet.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings.load()?.config;
    let tensors = named_parameters(&config.model);
    let mut weights: Vec<Vec<f32>> = tensors.iter().map(|t| vec![0.0; t.len()]).collect();
    config
        .init
        .run(&config.model, config.seeds.init, &mut |name, first, values| {
            let at = tensors.iter().position(|t| t.name == name);
            let at = at.ok_or_else(|| format!("no tensor is named {name}"))?;
            weights[at][first..first + values.len()].copy_from_slice(values);
            Ok(())
        })?;
    if let Some(folder) = &args.output {
        safetensors::write_model(
            folder,
            &tensors,
            &weights,
            &config_json(&config.model, safetensors::Stored::F32),
        )?;
    }
    let mut out = String::new();
    for (tensor, values) in tensors.iter().zip(&weights) {
        out.push_str(&format!("{}  {}\n", tensor_sha256(values), tensor.name));
    }
    super::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
