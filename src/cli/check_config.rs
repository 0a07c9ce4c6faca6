//! `a2a-gateway check-config`: prints every setting in force with its source, without starting
//! anything; or the built-in defaults, which explain every key.

use std::fmt::Write as _;
use std::path::PathBuf;

use ctl::{Failure, OrFail as _};
use kernel::config::load::{DEFAULT, Layers, LoadedConfig, load};

/// `a2a-gateway check-config [FILE]`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    /// The TOML file that `serve --config` would read; without it, what is in force without a file
    file: Option<PathBuf>,
    /// Set one setting on top, as `serve` would
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the built-in defaults instead: every setting with its meaning, to copy from
    #[arg(long, conflicts_with_all = ["file", "set"])]
    defaults: bool,
}

pub(super) fn run(arguments: Arguments) -> Result<String, Failure> {
    if arguments.defaults {
        return Ok(DEFAULT.to_owned());
    }
    let file = arguments.file.as_deref();
    let name = file.map_or_else(
        || "what is set without a file".to_owned(),
        |file| file.display().to_string(),
    );
    let loaded = load(&Layers::of_this_process(arguments.file, arguments.set));
    Ok(explain_setting(&name, &loaded.or_usage()?))
}

/// Returns all settings as TOML, each with its source as a comment, then the values derived from
/// them.
fn explain_setting(name: &str, loaded: &LoadedConfig) -> String {
    let lines: Vec<(String, String)> = loaded
        .settings
        .iter()
        .map(|setting| {
            let line = format!("{} = {}", setting.key, setting.value);
            (line, setting.source.to_string())
        })
        .collect();
    // One long list must not widen the column for all lines.
    let width = lines
        .iter()
        .map(|(line, _)| line.len())
        .max()
        .unwrap_or(0)
        .min(56);
    let mut out = format!("# {name} can be used. These values are in force:\n\n");
    for (line, source) in &lines {
        let _ = writeln!(out, "{line:width$}  # {source}");
    }
    let config = &loaded.config;
    out.push_str("\n# What follows from them:\n");
    let token = match (
        &config.auth.admin_token,
        config.auth.admin_token_sha256.len(),
    ) {
        (Some(_), _) => "from the environment".to_owned(),
        (None, 0) => "none; the first start makes one and prints it once".to_owned(),
        (None, n) => format!("{n} known by hash"),
    };
    let _ = writeln!(out, "#   public URL:        {}", config.public_url());
    let _ = writeln!(out, "#   issuer of tokens:  {}", config.issuer());
    let _ = writeln!(out, "#   operator's token:  {token}");
    for note in &loaded.notes {
        let _ = writeln!(out, "#   note: {note}");
    }
    out
}
