//! `trainer config`.

use std::process::ExitCode;

use clap::Subcommand;

use super::settings::Settings;

/// Shows settings.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints every setting with its value and where it came from.
    #[command(after_help = "Examples:
  trainer config show --config configs/gdn-300m.yaml
  trainer config show --config configs/tiny.yaml --set seeds.data=3 --format yaml")]
    Show {
        #[command(flatten)]
        settings: Settings,
        /// table: with origins; yaml: the settings alone, as a file that gives them again; json: both.
        #[arg(long, default_value = "table")]
        format: Format,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Table,
    Yaml,
    Json,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Command::Show { settings, format } = &args.command;
    let composed = settings.load()?;
    let text = match format {
        Format::Table => {
            let mut text = composed.table();
            for note in &composed.notes {
                text.push_str(&format!("{note}\n"));
            }
            text
        }
        Format::Yaml => composed.config.to_yaml()?,
        Format::Json => {
            let origins: serde_json::Map<String, serde_json::Value> = composed
                .origins
                .iter()
                .map(|(key, origin)| (key.clone(), origin.to_string().into()))
                .collect();
            let value = serde_json::json!({
                "settings": composed.config,
                "origins": origins,
                "notes": composed.notes,
            });
            format!("{}\n", serde_json::to_string_pretty(&value)?)
        }
    };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
