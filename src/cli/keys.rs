//! `a2a-gateway keys`: lists and rotates the trust keys in `keys.dir`, also while gateways run.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;

use super::failure::Failure;
use super::print_note;
use super::settings::ConfigFlags;
use super::table::align_columns;
use trust::{self, KeyInfo, KeyState, PUBLISHED_FIRST, SigningAlgorithm};

pub(super) const EXAMPLES: &str = "\
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
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show every key: which one signs, which one will, which ones still verify
    #[command(after_help = LIST_EXAMPLES)]
    List(ConfigFlags),
    /// Have the next key sign, retire the one that did, and make a new next one
    ///
    /// Running gateways that share the folder follow within two seconds, and no token is refused: the
    /// next key was published before, and a retired one verifies for 25 more hours. Verifiers keep the
    /// published keys for up to 5 minutes, so leave at least that between two rotations. After a key
    /// was stolen: rotate twice, then delete the files of the stolen key's id from the folder.
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate {
        #[command(flatten)]
        place: ConfigFlags,
        /// Signature algorithm of the new next key: EdDSA is Ed25519; ES256, ECDSA over P-256, is for verifiers that
        /// know no Ed25519
        #[arg(long, value_parser = ["EdDSA", "ES256"], default_value = "EdDSA")]
        algorithm: String,
    },
}

pub(super) fn run(command: Command) -> Result<String, Failure> {
    let (place, rotation) = match command {
        Command::List(place) => (place, None),
        Command::Rotate { place, algorithm } => (place, Some(algorithm)),
    };
    let dir = place.load()?.config.keys.dir;
    let keys = match rotation {
        Some(algorithm) => {
            let age = trust::next_age(&dir);
            let algorithm = match algorithm.as_str() {
                "ES256" => SigningAlgorithm::Es256,
                _ => SigningAlgorithm::EdDsa,
            };
            let keys = trust::rotate(&dir, algorithm)?;
            warn_of_haste(&dir, age);
            keys
        }
        None if !dir.join("active.pem").exists() => {
            return Err(Failure::new(format!(
                "there are no keys in {}: `serve` makes them at its first start, and `keys rotate` does; --config or --set keys.dir=… says where they are",
                dir.display()
            )));
        }
        None => trust::list(&dir)?,
    };
    Ok(format_table(&keys))
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
    let row = |key: &KeyInfo| {
        let purpose = match key.state {
            KeyState::Active => "signs".to_owned(),
            KeyState::Next => "signs after the next rotation".to_owned(),
            KeyState::Retired { at, until } => {
                let [at, until] = [at, until].map(humantime::format_rfc3339_seconds);
                format!("signed until {at}, verifies until {until}")
            }
        };
        let (algorithm, state) = (key.algorithm.as_str(), key.state.as_str());
        vec![
            key.kid.to_string(),
            algorithm.to_owned(),
            state.to_owned(),
            purpose,
        ]
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    align_columns(&["KID", "ALGORITHM", "STATE", "USE"], &rows)
}
