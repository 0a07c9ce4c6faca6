//! `a2a-gateway keys`: lists and rotates the trust keys in `keys.dir`, also while gateways run.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use ctl::{ConfigFlags, Failure, Table, print_note};
use trust::{self, KeyInfo, KeyState, PUBLISHED_FIRST, SigningAlgorithm};

const KEYS: Table<'_> = Table {
    columns: "KID=kid ALGORITHM=algorithm STATE=state USE=use",
    made: &[],
    none: "there is no key",
};

/// `a2a-gateway keys list|rotate`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show every key: which one signs, which one will, which ones still verify
    List(ConfigFlags),
    /// Have the next key sign, retire the one that did, and make a new next one
    ///
    /// Running gateways that share the folder follow within two seconds, and no token is refused: the
    /// next key was published before, and a retired one verifies for 25 more hours. Verifiers keep the
    /// published keys for up to 5 minutes, so leave at least that between two rotations. After a key
    /// was stolen: rotate twice, then delete the files of the stolen key's id from the folder.
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
    Ok(KEYS.show(keys.iter().map(format_key).collect(), false))
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

fn format_key(key: &KeyInfo) -> Value {
    let purpose = match key.state {
        KeyState::Active => "signs".to_owned(),
        KeyState::Next => "signs after the next rotation".to_owned(),
        KeyState::Retired { at, until } => {
            let [at, until] = [at, until].map(humantime::format_rfc3339_seconds);
            format!("signed until {at}, verifies until {until}")
        }
    };
    let (algorithm, state) = (key.algorithm.as_str(), key.state.as_str());
    json!({"kid": key.kid.to_string(), "algorithm": algorithm, "state": state, "use": purpose})
}
