//! Loads the configuration: the embedded default, a file, the environment, `--set`. This is the one
//! place that reads the environment, and every fault found here ends the start before a port is
//! bound.
//!
//! All problems are collected before the answer, so that one run shows everything there is to mend.
//! Texts name key and source, and never the value of a key that may hold a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use toml::{Table, Value};

use super::{Config, check, layer};

/// The embedded lowest layer; also the documentation of every key.
pub const DEFAULT: &str = include_str!("../../config/default.toml");

/// The operator's token in the environment.
const ADMIN_TOKEN: &str = "A2A_GATEWAY_ADMIN_TOKEN";

/// Longest file that is read as the value of one key, in bytes. A certificate chain in PEM, the
/// largest thing that anybody mounts as a secret, has a few KiB.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// What stands above the default, lowest first.
#[derive(Default)]
pub struct Layers {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Variables of the environment, name and value. Those that are not ours are passed over.
    pub environment: Vec<(String, String)>,
    /// `section.key=value`, each from one `--set`.
    pub overrides: Vec<String>,
}

impl Layers {
    /// A file, overrides, and the environment of this process.
    pub fn of_this_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        // A name or value that is not UTF-8 cannot be ours: what it stands for is refused as text
        // that does not fit its key.
        let environment = std::env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .filter(|(name, _)| name.starts_with("A2A_GATEWAY_"))
            .collect();
        Self {
            file,
            environment,
            overrides,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--set`.
    Argument,
    /// The embedded default.
    Default,
    /// A variable of the environment.
    Environment(String),
    /// The file.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key in dotted form, when it is about one.
    pub key: Option<String>,
    /// Where the value comes from, when there is one.
    pub source: Option<Source>,
    /// Why it is refused, and what to write instead.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, &self.source) {
            (Some(key), Some(source)) => write!(f, "{key} (from {source}): {}", self.reason),
            (Some(key), None) => write!(f, "{key}: {}", self.reason),
            (None, Some(source)) => write!(f, "{source}: {}", self.reason),
            (None, None) => f.write_str(&self.reason),
        }
    }
}

/// The configuration cannot be used. The process ends with exit status 64.
#[derive(Debug)]
pub struct ConfigError {
    /// Everything that was found, at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// One value in force, for people: secrets are masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Dotted form.
    pub key: String,
    /// As TOML, masked where it may hold a secret.
    pub value: String,
    /// Which layer won.
    pub source: Source,
}

/// A configuration that can be used.
#[derive(Debug)]
pub struct Loaded {
    /// What is in force.
    pub config: Config,
    /// The operator's token from the environment.
    pub admin_token: Option<SecretString>,
    /// Every value and its source, in the order of the keys.
    pub settings: Vec<Setting>,
    /// What is allowed and probably not meant; to be logged at start.
    pub notes: Vec<String>,
}

/// Merges the layers, lowest first, and checks the result.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong: a file that cannot be read, unknown keys, bad
/// values, unsafe combinations, a malformed operator's token.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let mut merge = Merge::over(layer::defaults());
    if let Some(path) = &layers.file {
        merge.file(path);
    }
    for (name, value) in &layers.environment {
        merge.variable(name, value);
    }
    for argument in &layers.overrides {
        merge.argument(argument);
    }
    merge.finish()
}

/// The layers, as far as they are merged.
struct Merge {
    /// Every key that there is, with an example of its value.
    known: Table,
    default: Table,
    /// Values above the default, by dotted key.
    values: BTreeMap<String, (Value, Source)>,
    admin_token: Option<SecretString>,
    problems: Vec<Problem>,
}

impl Merge {
    fn over(default: Table) -> Self {
        Self {
            known: layer::known(),
            default,
            values: BTreeMap::new(),
            admin_token: None,
            problems: Vec::new(),
        }
    }

    fn refuse(&mut self, key: Option<String>, source: Option<Source>, reason: impl Into<String>) {
        self.problems.push(Problem {
            key,
            source,
            reason: reason.into(),
        });
    }

    fn file(&mut self, path: &Path) {
        let source = Source::File(path.to_owned());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                return self.refuse(None, Some(source), format!("cannot read it: {error}"));
            }
        };
        match text.parse::<Table>() {
            Ok(table) => self.section(&table, &mut Vec::new(), &source),
            Err(error) => {
                // The parser's own text quotes the line, which may hold a password.
                let line = error
                    .span()
                    .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
                let reason = format!("line {line} is not TOML: {}", error.message());
                self.refuse(None, Some(source), reason.replace('\n', ", "));
            }
        }
    }

    fn section(&mut self, table: &Table, path: &mut Vec<String>, source: &Source) {
        for (key, value) in table {
            path.push(key.clone());
            let dotted = path.join(".");
            match (layer::at(&self.known, path), value) {
                (Some(Value::Table(_)), Value::Table(inner)) => self.section(inner, path, source),
                (Some(Value::Table(_)), _) => self.refuse(
                    Some(dotted.clone()),
                    Some(source.clone()),
                    format!("is a section: write [{dotted}] and its keys below it"),
                ),
                (Some(_), value) => {
                    self.values.insert(dotted, (value.clone(), source.clone()));
                }
                (None, _) => {
                    let reason = layer::unknown(&self.known, path);
                    self.refuse(Some(dotted), Some(source.clone()), reason);
                }
            }
            path.pop();
        }
    }

    fn variable(&mut self, name: &str, raw: &str) {
        let source = Source::Environment(name.to_owned());
        if name == ADMIN_TOKEN {
            return self.admin_token(raw, source);
        }
        if name.strip_suffix("_FILE") == Some(ADMIN_TOKEN) {
            return match read_secret(raw) {
                Ok(token) => self.admin_token(&token, source),
                Err(reason) => self.refuse(None, Some(source), reason),
            };
        }
        // Other names with one underscore are not looked at: Kubernetes sets A2A_GATEWAY_PORT and
        // A2A_GATEWAY_SERVICE_HOST in every pod beside a service called `a2a-gateway`.
        let Some(rest) = name.strip_prefix("A2A_GATEWAY__") else {
            return;
        };
        let path: Vec<String> = rest
            .to_ascii_lowercase()
            .split("__")
            .map(Into::into)
            .collect();
        if layer::at(&self.known, &path).is_none()
            && path.last().is_some_and(|k| k.ends_with("_file"))
        {
            let mut named = path.clone();
            if let Some(key) = named.last_mut() {
                key.truncate(key.len() - "_file".len());
            }
            if layer::at(&self.known, &named).is_some_and(|v| !v.is_table()) {
                return match read_secret(raw) {
                    Ok(value) => self.text(&named, &value, source),
                    Err(reason) => self.refuse(Some(named.join(".")), Some(source), reason),
                };
            }
        }
        self.text(&path, raw, source);
    }

    fn argument(&mut self, argument: &str) {
        match argument.split_once('=') {
            Some((key, raw)) => {
                let path: Vec<String> = key.trim().split('.').map(Into::into).collect();
                self.text(&path, raw.trim(), Source::Argument);
            }
            // What was written is not repeated: it may be a URL with a password.
            None => self.refuse(
                None,
                Some(Source::Argument),
                "takes section.key=value, such as --set server.listen=127.0.0.1:8081",
            ),
        }
    }

    /// A value that was given as text, and takes the type that its key has.
    fn text(&mut self, path: &[String], raw: &str, source: Source) {
        let dotted = path.join(".");
        match layer::at(&self.known, path) {
            None => {
                let reason = layer::unknown(&self.known, path);
                self.refuse(Some(dotted), Some(source), reason);
            }
            Some(Value::Table(_)) => {
                self.refuse(
                    Some(dotted),
                    Some(source),
                    "is a section: name one of its keys",
                );
            }
            // Compose files pass on variables that are not set as empty ones.
            Some(_) if raw.is_empty() && layer::at(&self.default, path).is_none() => {}
            Some(example) => {
                let value = layer::read(raw, example);
                self.values.insert(dotted, (value, source));
            }
        }
    }

    fn admin_token(&mut self, raw: &str, source: Source) {
        if raw.is_empty() {
            return;
        }
        if is_admin_token(raw) {
            self.admin_token = Some(SecretString::from(raw));
        } else {
            self.refuse(
                None,
                Some(source),
                "an operator's token is `a2aa_` and 43 base64url characters; make one with \
                 `echo a2aa_$(openssl rand -base64 32 | tr '+/' '-_' | tr -d '=')`",
            );
        }
    }

    fn finish(mut self) -> Result<Loaded, ConfigError> {
        let mut effective = self.default.clone();
        for (dotted, (value, source)) in &self.values {
            // Alone on top of the default, which is known to be good: whatever fails is this value.
            let mut alone = self.default.clone();
            layer::put(&mut alone, dotted, value.clone());
            if let Err(error) = alone.try_into::<Config>() {
                self.problems.push(Problem {
                    key: Some(dotted.clone()),
                    source: Some(source.clone()),
                    reason: if layer::is_secret(dotted) {
                        "must be a string".to_owned()
                    } else {
                        error.message().trim().replace('\n', ", ")
                    },
                });
            }
            layer::put(&mut effective, dotted, value.clone());
        }
        if !self.problems.is_empty() {
            return Err(ConfigError {
                problems: self.problems,
            });
        }
        let config: Config = effective
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError {
                problems: vec![Problem {
                    key: None,
                    source: None,
                    reason: error.message().to_owned(),
                }],
            })?;
        let source_of = |key: &str| {
            self.values
                .get(key)
                .map_or(Source::Default, |(_, source)| source.clone())
        };
        let notes =
            check::check(&config, &source_of).map_err(|problems| ConfigError { problems })?;
        let settings = layer::leaves(&effective)
            .into_iter()
            .map(|(key, value)| Setting {
                value: layer::shown(&key, &value),
                source: source_of(&key),
                key,
            })
            .collect();
        Ok(Loaded {
            config,
            admin_token: self.admin_token,
            settings,
            notes,
        })
    }
}

/// The content of a file that holds one value, without the line end that editors add.
fn read_secret(path: &str) -> Result<String, String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SECRET_FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| format!("cannot read the file that it names, {path}: {error}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// `a2aa_` and 256 random bits in base64url.
fn is_admin_token(text: &str) -> bool {
    text.strip_prefix("a2aa_").is_some_and(|random| {
        random.len() == 43
            && random
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    })
}

#[cfg(test)]
mod tests;
