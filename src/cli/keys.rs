//! `a2a-gateway keys`: lists and rotates the trust keys in `keys.dir`, also while gateways run.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Subcommand, ValueEnum};

use super::{USAGE, print, print_error, print_note};
use crate::config::load::{Layers, load};
use crate::trust::{self, KeyError, KeyInfo, KeyState, PUBLISHED_FIRST, SigningAlgorithm};

const EXAMPLES: &str = "\
Examples:
  a2a-gateway keys list --config gateway.toml
  a2a-gateway keys rotate --config gateway.toml";

const LIST_EXAMPLES: &str = "\
Examples:
  a2a-gateway keys list
  a2a-gateway keys list --config gateway.toml";

const ROTATE_EXAMPLES: &str = "\
Examples:
  a2a-gateway keys rotate
  a2a-gateway keys rotate --algorithm ES256 --config gateway.toml";

/// `a2a-gateway keys list|rotate`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show every key: which one signs, which one will, which ones still verify
    #[command(after_help = LIST_EXAMPLES)]
    List(ConfigArguments),
    /// Have the next key sign, retire the one that did, and make a new next one
    ///
    /// Running gateways that share the folder follow within two seconds, and no token is refused: the
    /// next key was published before, and a retired one verifies for 25 more hours. Verifiers keep the
    /// published keys for up to 5 minutes, so leave at least that between two rotations. After a key
    /// was stolen: rotate twice, then delete the files of the stolen key's id from the folder.
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate {
        #[command(flatten)]
        place: ConfigArguments,
        /// Signature algorithm of the new next key
        #[arg(long, value_enum, default_value_t = Algorithm::EdDsa)]
        algorithm: Algorithm,
    },
}

/// The location of the keys.
#[derive(clap::Args, Debug)]
struct ConfigArguments {
    /// Read settings from this TOML file, as `serve --config` does; keys.dir is the folder of the
    /// keys
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one setting, such as --set keys.dir=/var/lib/a2a-gateway/keys
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Algorithm {
    /// Ed25519
    #[value(name = "EdDSA")]
    EdDsa,
    /// ECDSA over P-256, for verifiers that know no Ed25519
    #[value(name = "ES256")]
    Es256,
}

impl From<Algorithm> for SigningAlgorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::EdDsa => Self::EdDsa,
            Algorithm::Es256 => Self::Es256,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error("there are no keys in {}: `serve` makes them at its first start, and `keys rotate` does; --config or --set keys.dir=… says where they are", .0.display())]
    None(PathBuf),
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error("cannot print")]
    Output(#[from] io::Error),
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    let (place, rotation) = match arguments.command {
        Command::List(place) => (place, None),
        Command::Rotate { place, algorithm } => (place, Some(algorithm)),
    };
    let loaded = match load(&Layers::of_this_process(place.config, place.set)) {
        Ok(loaded) => loaded,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(USAGE);
        }
    };
    match print_keys(&loaded.config.keys.dir, rotation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn print_keys(dir: &Path, rotation: Option<Algorithm>) -> Result<(), KeysError> {
    let keys = match rotation {
        Some(algorithm) => {
            let age = trust::next_age(dir);
            let keys = trust::rotate(dir, algorithm.into())?;
            warn_of_haste(dir, age);
            keys
        }
        None if !dir.join("active.pem").exists() => return Err(KeysError::None(dir.to_owned())),
        None => trust::list(dir)?,
    };
    Ok(print(&format_table(&keys))?)
}

/// Warns if the new active key was published too recently: a verifier that cached the published
/// keys before then does not know it.
fn warn_of_haste(dir: &Path, age: Option<Duration>) {
    if age.is_some_and(|age| age >= PUBLISHED_FIRST) {
        return;
    }
    let since = age.map_or_else(
        || "never published before".to_owned(),
        |age| {
            format!(
                "published only {} ago",
                humantime::format_duration(Duration::from_secs(age.as_secs()))
            )
        },
    );
    print_note(&format!(
        "{}: the key that signs now was {since}. Gateways that share the folder know it; verifiers elsewhere may keep the keys for 5 minutes, and refuse it until then unless they fetch them again for a key that they do not know",
        dir.display()
    ));
}

fn format_table(keys: &[KeyInfo]) -> String {
    let mut text = format!("{:<16}  {:<9}  {:<7}  USE\n", "KID", "ALGORITHM", "STATE");
    for key in keys {
        let purpose = match key.state {
            KeyState::Active => "signs".to_owned(),
            KeyState::Next => "signs after the next rotation".to_owned(),
            KeyState::Retired { at, until } => {
                format!(
                    "signed until {}, verifies until {}",
                    format_time(at),
                    format_time(until)
                )
            }
        };
        let (algorithm, state) = (key.algorithm.as_str(), key.state.as_str());
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<16}  {algorithm:<9}  {state:<7}  {purpose}",
            key.kid
        );
    }
    text
}

fn format_time(at: SystemTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(at)
}
