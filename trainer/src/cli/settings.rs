//! Options that name settings, the same for every command that has a run in mind.

use std::path::PathBuf;

use crate::config::{self, Composed};

/// Settings of a run.
#[derive(Debug, clap::Args)]
pub(super) struct Settings {
    /// YAML file of the run; it may extend others.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Sets one value over the file's, for example --set optimizer.lr=1e-3 --set order=megatron. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Device that computes: auto, cpu, cuda or cuda:N; the same as --set train.device=….
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
}

impl Settings {
    /// Reads the settings.
    pub(super) fn load(&self) -> anyhow::Result<Composed> {
        let environment = |name: &str| std::env::var(name).ok();
        Ok(config::load(self.config.as_deref(), &self.sets(), &environment)?)
    }

    /// Everything that is set over the file.
    pub(super) fn sets(&self) -> Vec<String> {
        let mut set = self.set.clone();
        set.extend(self.device.iter().map(|d| format!("train.device={d}")));
        set
    }
}
