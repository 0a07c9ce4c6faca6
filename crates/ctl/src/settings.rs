//! Settings of a gateway on this machine, for commands that work on its files.

use std::path::PathBuf;

use super::failure::{Failure, OrFail as _};
use kernel::config::load::{Layers, LoadedConfig, load};

/// Where settings come from, beside the environment.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConfigFlags {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one setting, such as --set keys.dir=/var/lib/a2a-gateway/keys; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigFlags {
    /// Returns the sources of the settings.
    pub fn into_layers(self) -> Layers {
        Layers::of_this_process(self.config, self.set)
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// One of them is wrong.
    pub fn load(self) -> Result<LoadedConfig, Failure> {
        load(&self.into_layers()).or_usage()
    }
}
