//! `a2a-gateway serve`: runs the gateway.

use std::path::PathBuf;
use std::process::ExitCode;

use assembly::gateway::OpenError;
use ctl::{OrFail as _, USAGE};
use kernel::config::Live;
use kernel::config::load::{Layers, LoadedConfig, load};
use kernel::telemetry::{self, Chain};
use server::ServeError;

/// `a2a-gateway [serve]`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    /// Read settings from this TOML file; it is reloaded when it changes, and at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Set one setting, such as --set server.listen=0.0.0.0:8080; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    let layers = Layers::of_this_process(arguments.config, arguments.set);
    match load(&layers).or_usage() {
        Ok(loaded) => start(loaded, Some(layers)),
        Err(failure) => failure.report(),
    }
}

/// Starts the log and serves until the process is asked to end. `layers` are the sources of a
/// reload.
pub fn start(loaded: LoadedConfig, layers: Option<Layers>) -> ExitCode {
    let _log = match telemetry::start(&loaded.config.telemetry).or_usage() {
        Ok(log) => log,
        Err(failure) => return failure.report(),
    };
    for note in &loaded.notes {
        tracing::warn!("{note}");
    }
    let Err(error) = server::run(Live::new(loaded), layers) else {
        return ExitCode::SUCCESS;
    };
    tracing::error!(error = %Chain(&error), "the gateway cannot serve");
    match error {
        ServeError::Open(OpenError::Store(_)) | ServeError::Traces(_) => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}
