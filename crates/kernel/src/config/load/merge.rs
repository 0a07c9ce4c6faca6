//! Merges the layers value by value, and keeps the source of each value.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::{ConfigError, LoadedConfig, Problem, Setting, Source};
use crate::config::value::Sha256Hex;
use crate::config::{Config, check, exposure, layer};

/// Environment variable of the operator's token.
pub const ADMIN_TOKEN: &str = "A2A_GATEWAY_ADMIN_TOKEN";

/// Largest configuration file, in bytes. `config/default.toml`, which explains every key, has some
/// 26 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Largest file that is read as the value of one key, in bytes. A certificate chain in PEM, the
/// largest of the usual mounted secrets, has a few KiB.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The layers merged so far.
pub(super) struct Merge {
    /// Every known key, with an example of its value.
    known: Table,
    default: Table,
    /// Values above the default, by dotted key.
    values: BTreeMap<String, (Value, Source)>,
    admin_token: Option<SecretString>,
    problems: Vec<Problem>,
}

impl Merge {
    pub(super) fn new(default: Table) -> Self {
        Self {
            known: layer::known_keys(),
            default,
            values: BTreeMap::new(),
            admin_token: None,
            problems: Vec::new(),
        }
    }

    fn add_problem(&mut self, key: Option<&str>, source: &Source, reason: impl Into<String>) {
        self.problems.push(Problem {
            key: key.map(str::to_owned),
            source: Some(source.clone()),
            reason: reason.into(),
        });
    }

    pub(super) fn add_file(&mut self, path: &Path) {
        let source = Source::File(path.to_owned());
        let text = match read_file(path, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(error) => {
                return self.add_problem(None, &source, format!("cannot read it: {error}"));
            }
        };
        match text.parse::<Table>() {
            Ok(table) => {
                let known = self.known.clone();
                self.add_section(table, &known, "", &source);
            }
            Err(error) => {
                // The parser's own text quotes the line, which may hold a password.
                let before = error.span().map_or("", |span| &text[..span.start]);
                let line = 1 + before.matches('\n').count();
                let mut reason = format!("line {line} is not TOML: {}", error.message());
                if error.message() == "duplicate key" {
                    reason.push_str(
                        "; a name stands once: as a section, as `name = …`, or as [[name]] tables",
                    );
                }
                self.add_problem(None, &source, reason.replace('\n', ", "));
            }
        }
    }

    /// Sets the values of a section, of which `known` are the keys. `above` is its name with a dot.
    fn add_section(&mut self, table: Table, known: &Table, above: &str, source: &Source) {
        for (key, value) in table {
            let dotted = format!("{above}{key}");
            let reason = match (known.get(&key), value) {
                (Some(Value::Table(known)), Value::Table(inner)) => {
                    self.add_section(inner, known, &format!("{dotted}."), source);
                    continue;
                }
                (Some(Value::Table(_)), _) => {
                    format!("is a section: write [{dotted}] and its keys below it")
                }
                (Some(_), value) => {
                    self.values.insert(dotted, (value, source.clone()));
                    continue;
                }
                (None, Value::Table(_)) => layer::unknown_section(&self.known, &dotted),
                (None, _) => layer::unknown_key(&self.known, &dotted),
            };
            self.add_problem(Some(&dotted), source, reason);
        }
    }

    pub(super) fn add_variable(&mut self, name: &str, raw: &str) {
        let source = Source::Environment(name.to_owned());
        match name.strip_prefix(ADMIN_TOKEN) {
            Some("") => return self.set_admin_token(Ok(raw.to_owned()), &source),
            Some("_FILE") => return self.set_admin_token(read_secret(raw), &source),
            _ => {}
        }
        // Other names with one underscore are ignored: Kubernetes sets A2A_GATEWAY_PORT and
        // A2A_GATEWAY_SERVICE_HOST in every pod of the namespace of a service named `a2a-gateway`.
        let Some(rest) = name.strip_prefix("A2A_GATEWAY__") else {
            return;
        };
        let dotted = rest.to_ascii_lowercase().replace("__", ".");
        let is_key = |dotted: &str| layer::find(&self.known, dotted).is_some_and(|v| !v.is_table());
        match dotted.strip_suffix("_file") {
            Some(key) if layer::find(&self.known, &dotted).is_none() && is_key(key) => {
                let read = if layer::is_secret(key) {
                    read_secret
                } else {
                    read_value
                };
                match read(raw) {
                    Ok(value) => self.set_text(key, &value, source),
                    Err(reason) => self.add_problem(Some(key), &source, reason),
                }
            }
            _ => self.set_text(&dotted, raw, source),
        }
    }

    pub(super) fn add_argument(&mut self, argument: &str) {
        match argument.split_once('=') {
            Some((key, raw)) => self.set_text(key.trim(), raw.trim(), Source::Argument),
            // The argument is not quoted: it may be a URL with a password.
            None => self.add_problem(
                None,
                &Source::Argument,
                "takes section.key=value, such as --set server.listen=127.0.0.1:8081",
            ),
        }
    }

    /// Sets a value given as text, converted to the type of its key.
    fn set_text(&mut self, dotted: &str, raw: &str, source: Source) {
        match layer::find(&self.known, dotted) {
            None => {
                let reason = layer::unknown_key(&self.known, dotted);
                self.add_problem(Some(dotted), &source, reason);
            }
            Some(Value::Table(_)) => {
                self.add_problem(Some(dotted), &source, "is a section: name one of its keys");
            }
            // Compose files pass unset variables as empty strings.
            Some(_) if raw.is_empty() && layer::find(&self.default, dotted).is_none() => {}
            Some(example) => {
                let value = layer::read(raw, example);
                self.values.insert(dotted.to_owned(), (value, source));
            }
        }
    }

    fn set_admin_token(&mut self, token: Result<String, String>, source: &Source) {
        match token {
            Ok(token) if token.is_empty() => {}
            Ok(token) if is_admin_token(&token) => self.admin_token = Some(token.into()),
            Ok(_) => self.add_problem(
                None,
                source,
                "an operator's token is `a2aa_` and 43 base64url characters; make one with \
                 `echo a2aa_$(openssl rand -base64 32 | tr '+/' '-_' | tr -d '=')`",
            ),
            Err(reason) => self.add_problem(None, source, reason),
        }
    }

    pub(super) fn finish(mut self) -> Result<LoadedConfig, ConfigError> {
        let mut effective = self.default.clone();
        let values = std::mem::take(&mut self.values);
        for (dotted, (value, source)) in &values {
            // Each value alone is put over the default, which is valid: an error is then caused by
            // this value.
            let mut alone = self.default.clone();
            layer::put_value(&mut alone, dotted, value.clone());
            if let Err(error) = alone.try_into::<Config>() {
                let reason = if layer::is_secret(dotted) {
                    "must be a string".to_owned()
                } else {
                    let example = layer::find(&self.known, dotted);
                    layer::describe_misfit(dotted, value, example)
                        .unwrap_or_else(|| error.message().trim().replace('\n', ", "))
                };
                self.add_problem(Some(dotted), source, reason);
            }
            layer::put_value(&mut effective, dotted, value.clone());
        }
        if !self.problems.is_empty() {
            return Err(ConfigError {
                problems: self.problems,
            });
        }
        let config = effective.clone().try_into::<Config>();
        let mut config = config.map_err(|error| ConfigError {
            problems: vec![Problem {
                key: None,
                source: None,
                reason: error.message().to_owned(),
            }],
        })?;
        config.auth.admin_token = self.admin_token;
        let source_of = |key: &str| {
            let set = values.get(key);
            set.map_or(Source::Default, |(_, source)| source.clone())
        };
        let checked = check::check(&config, &source_of);
        let (notes, serving) = checked.map_err(|problems| ConfigError { problems })?;
        config.server.tls.serving = serving;
        let settings = layer::list_leaves(&effective)
            .into_iter()
            .map(|(key, value)| Setting {
                value: layer::displayed_value(&key, &value),
                source: source_of(&key),
                raw: Sha256Hex(Sha256::digest(value.to_string()).into()),
                key,
            })
            .collect();
        Ok(LoadedConfig {
            config,
            settings,
            notes,
        })
    }
}

/// Reads the file of a secret, which other users of the machine must not read.
fn read_secret(path: &str) -> Result<String, String> {
    exposure::refuse_exposed_at(Path::new(path))?;
    read_value(path)
}

/// Reads a file that holds one value, without the line break that editors append.
fn read_value(path: &str) -> Result<String, String> {
    let text = read_file(Path::new(path), SECRET_FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read the file that it names, {path}: {error}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a whole file of at most `most` bytes.
fn read_file(path: &Path, most: u64) -> io::Result<String> {
    let bytes = exposure::read_at_most(File::open(path)?, most)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// True for `a2aa_` and 256 random bits in base64url.
fn is_admin_token(text: &str) -> bool {
    text.strip_prefix("a2aa_").is_some_and(|random| {
        random.len() == 43
            && random
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    })
}
