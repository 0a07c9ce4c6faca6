//! Loads the configuration from the embedded default, a file, the environment and `--set`. This is
//! the only module that reads the environment. An error found here ends the start before a port is
//! bound.
//!
//! All problems are collected, so that one run reports everything to fix. Messages name key and
//! source, and never the value of a key that may hold a secret.

mod merge;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};

pub use self::merge::ADMIN_TOKEN;
use self::merge::Merge;
use super::value::Sha256Hex;
use super::{Config, layer};

/// The embedded lowest layer, which also documents every key.
pub const DEFAULT: &str = include_str!("../../../../../config/default.toml");

/// The layers above the default, lowest first.
#[derive(Default)]
pub struct Layers {
    /// Defaults of a command, as dotted key and TOML value.
    pub defaults: &'static [(&'static str, &'static str)],
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Environment variables, name and value. Unrelated ones are ignored.
    pub environment: Vec<(String, SecretString)>,
    /// `section.key=value`, each from one `--set`.
    pub overrides: Vec<String>,
}

impl Layers {
    /// Returns the layers of a file, overrides and the environment of this process.
    pub fn of_this_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        // No valid name or value is outside UTF-8: the lossy text is refused as a wrong value of
        // its key.
        let lossy = |text: OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value).into()));
        let environment = variables.filter(|(name, _)| name.starts_with("A2A_GATEWAY_"));
        Self {
            defaults: &[],
            file,
            environment: environment.collect(),
            overrides,
        }
    }

    /// Returns the files that are read: the configuration file, and those named by variables.
    pub fn files(&self) -> Vec<PathBuf> {
        let named = self.environment.iter();
        let named = named.filter(|(name, _)| name.ends_with("_FILE"));
        let named = named.map(|(_, path)| PathBuf::from(path.expose_secret()));
        self.file.iter().cloned().chain(named).collect()
    }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--set`.
    Argument,
    /// The embedded default.
    Default,
    /// A variable of the environment.
    Environment(String),
    /// The configuration file.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument => f.write_str("--set"),
            Self::Default => f.write_str("default"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

/// One problem of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key in dotted form, if the problem concerns one.
    pub key: Option<String>,
    /// The source of the value, if there is one.
    pub source: Option<Source>,
    /// The reason, and the form to write instead.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = without_userinfo(&self.reason);
        match (&self.key, &self.source) {
            (Some(key), Some(source)) => write!(f, "{key} (from {source}): {reason}"),
            (Some(key), None) => write!(f, "{key}: {reason}"),
            (None, Some(source)) => write!(f, "{source}: {reason}"),
            (None, None) => f.write_str(&reason),
        }
    }
}

/// Masks user and password of URLs in a reason, which may quote a value.
fn without_userinfo(text: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((before, url)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let ends = |c: char| matches!(c, '`' | '"') || c.is_whitespace();
        let end = url.find(ends).unwrap_or(url.len());
        let host = url[..end].rfind('@');
        if host.is_some() {
            shown.push_str("***");
        }
        rest = &url[host.unwrap_or(0)..];
    }
    shown + rest
}

/// The configuration cannot be used. The process ends with exit status 64.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used{}", list_problems(.problems))]
pub struct ConfigError {
    /// All problems found, at least one.
    pub problems: Vec<Problem>,
}

fn list_problems(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| format!("\n  {problem}"));
    lines.collect()
}

/// One value in force, for display: secrets are masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key in dotted form.
    pub key: String,
    /// The value as TOML, masked if it may hold a secret.
    pub value: String,
    /// The layer that set the value.
    pub source: Source,
    /// The digest of the value, unmasked, to detect changes.
    pub(super) raw: Sha256Hex,
}

impl Setting {
    /// Returns the value as JSON, masked like [`Setting::value`].
    pub fn to_json(&self) -> serde_json::Value {
        let parsed = format!("value = {}", self.value).parse::<toml::Table>();
        let value = parsed.ok().and_then(|mut table| table.remove("value"));
        serde_json::to_value(value).unwrap_or_default()
    }
}

/// A valid configuration.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Every value and its source, in key order.
    pub settings: Vec<Setting>,
    /// Warnings about values that are allowed but probably not intended; logged at the start.
    pub notes: Vec<String>,
}

/// Merges the layers, lowest first, and checks the result.
///
/// # Errors
/// [`ConfigError`] with all problems: an unreadable file, unknown keys, bad values, unsafe
/// combinations, a malformed operator's token.
pub fn load(layers: &Layers) -> Result<LoadedConfig, ConfigError> {
    let mut defaults = layer::default_table();
    for (key, value) in layers.defaults {
        let example = layer::find(&defaults, key).cloned();
        let example = example.expect("a command's defaults are known keys, tested with it");
        layer::put_value(&mut defaults, key, layer::read(value, &example));
    }
    let mut merge = Merge::new(defaults);
    if let Some(path) = &layers.file {
        merge.add_file(path);
    }
    for (name, value) in &layers.environment {
        merge.add_variable(name, value.expose_secret());
    }
    for argument in &layers.overrides {
        merge.add_argument(argument);
    }
    merge.finish()
}

#[cfg(test)]
pub(super) mod tests;
