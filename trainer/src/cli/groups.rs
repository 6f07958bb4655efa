//! `trainer groups`.

use std::process::ExitCode;

use crate::model::parameters::named_parameters;
use crate::optim::{DECAY_PRESETS, decay_table};

use super::settings::Settings;

/// Lists every tensor with its weight decay.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  trainer groups --config configs/gdn-300m.yaml
  trainer groups --config configs/tiny.yaml --all-presets --format json")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Show each preset (hf-trainer, fla, megatron, all) instead of the one of the settings.
    #[arg(long)]
    all_presets: bool,
    /// Output format.
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings.load()?.config;
    let tensors = named_parameters(&config.model);
    let chosen = config.optimizer.decay;
    let mut out = String::new();
    let mut rows = Vec::new();
    for (name, preset) in DECAY_PRESETS
        .iter()
        .filter(|(_, p)| args.all_presets || *p == chosen)
    {
        let optimizer = crate::optim::OptimizerConfig {
            decay: *preset,
            ..config.optimizer.clone()
        };
        match args.format {
            Format::Text => {
                out.push_str(&format!("preset {name}\n"));
                out.push_str(&decay_table(
                    &optimizer,
                    tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())),
                ));
            }
            Format::Json => rows.extend(tensors.iter().map(|t| {
                let decays = preset.decays(&t.name, &t.shape);
                serde_json::json!({
                    "preset": name,
                    "name": t.name,
                    "shape": t.shape,
                    "weight_decay": if decays { optimizer.weight_decay } else { 0.0 },
                })
            })),
        }
    }
    if let Format::Json = args.format {
        out = format!("{}\n", serde_json::to_string_pretty(&rows)?);
    }
    super::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
