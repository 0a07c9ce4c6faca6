//! The trust keys of this gateway (contract §7.1): one signs, those that did and the one that will
//! verify. Read from `keys.dir`, which replicas share, and read again when it changes.

mod folder;
mod signing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::folder::{Folder, Held, Look};
pub use self::signing::SigningAlgorithm;
use self::signing::SigningKey;
use super::jwks::{KeySet, PublicKey};
use super::token::{TokenError, TokenHead};

/// The key could not be had. The start ends with it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The folder or the file cannot be read or written.
    #[error("cannot {verb} {}: check keys.dir and its owner", path.display())]
    File {
        /// `create`, `lock`, `read`, `remove` or `write`.
        verb: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a key.
    #[error("{} is not an Ed25519 or P-256 key in PKCS#8 PEM form: restore it, or remove it (tokens signed with it end; a new active.pem is made at the next start)", path.display())]
    NotAKey {
        /// Which.
        path: PathBuf,
    },
    /// The file is not a key for sealing.
    #[error("{} is not a key for sealing, which is 32 random bytes in base64 or hexadecimal (openssl rand -base64 32): restore it, or remove it to have a new one made (each upstream_auth has to be set again then)", path.display())]
    NotASealKey {
        /// Which.
        path: PathBuf,
    },
    /// The system gave no randomness.
    #[error("cannot make a key: the system gives no randomness")]
    Generation,
}

/// The claims could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// They are no JSON. A bug of the caller.
    #[error("the claims are no JSON")]
    Claims(#[from] serde_json::Error),
    /// ECDSA needs a random number for each signature.
    #[error("the system gives no randomness")]
    Randomness,
}

/// Where a key is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It signs.
    Active,
    /// It will sign after the next rotation, and is published for verifiers to know it by then.
    Next,
    /// It signed, and verifies until the last token that it may have signed is over.
    Retired {
        /// When it signed last.
        at: SystemTime,
        /// When it verifies no more.
        until: SystemTime,
    },
}

impl State {
    /// The contract's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Next => "next",
            Self::Retired { .. } => "retired",
        }
    }
}

/// A key, for those who look after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its name, as `kid` has it.
    pub kid: String,
    /// What it signs by.
    pub algorithm: SigningAlgorithm,
    /// Where it is in its life.
    pub state: State,
}

/// The keys as they were at one time.
struct Ring {
    signing: SigningKey,
    known: Vec<KeyInfo>,
    public: KeySet,
    jwks: Arc<str>,
    /// `None`: the folder could not be looked at.
    look: Option<Look>,
}

impl Ring {
    fn read(folder: &Folder) -> Result<Self, KeyError> {
        // Before the keys: what changes meanwhile is seen at the next look.
        let look = folder.look().ok();
        let held = folder.read(SystemTime::now())?;
        let known = held.iter().map(info).collect();
        let jwks: Vec<_> = held.iter().map(|one| one.key.jwk()).collect();
        let jwks = json!({ "keys": jwks }).to_string();
        // Verified by what is published, and by nothing else.
        let public = KeySet::parse(jwks.as_bytes()).unwrap_or_default();
        let signing = held.into_iter().next().map(|one| one.key);
        Ok(Self {
            signing: signing.ok_or(KeyError::Generation)?,
            known,
            public,
            jwks: jwks.into(),
            look,
        })
    }

    /// Whether a retired key's time is over, so that it must go.
    fn has_outlived(&self, now: SystemTime) -> bool {
        let over =
            |key: &KeyInfo| matches!(key.state, State::Retired { until, .. } if now >= until);
        self.known.iter().any(over)
    }
}

fn info(held: &Held) -> KeyInfo {
    KeyInfo {
        kid: held.key.kid().to_owned(),
        algorithm: held.key.algorithm(),
        state: held.state,
    }
}

/// What a token proves, and by which key.
pub struct Verified<C> {
    /// What it says.
    pub claims: C,
    /// What it says of its key.
    pub head: TokenHead,
    /// The key, which may be withdrawn later.
    pub key: Arc<PublicKey>,
}

/// The gateway's own keys.
pub struct Keys {
    folder: Folder,
    ring: ArcSwap<Ring>,
    reading: Mutex<()>,
}

impl Keys {
    /// Reads the keys in `dir`, or makes folder and keys at first start. Processes that start at the
    /// same time end up with the same keys. Blocks; called before the runtime serves anyone.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what to do.
    pub fn load_or_create(dir: &Path) -> Result<Self, KeyError> {
        let folder = Folder::new(dir.to_owned());
        folder.prepare(SigningAlgorithm::default())?;
        Ok(Self {
            ring: ArcSwap::from_pointee(Ring::read(&folder)?),
            reading: Mutex::new(()),
            folder,
        })
    }

    /// Reads the keys again if the folder has changed, or a retired key's time is over. `true`: others
    /// are in force. Costs a look at the folder when nothing has. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`KeyError`]; the keys that were known stay in force.
    pub fn refresh(&self) -> Result<bool, KeyError> {
        let _one_reads = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = self.ring.load();
        let unchanged = self.folder.look().ok() == ring.look;
        if unchanged && !ring.has_outlived(SystemTime::now()) {
            return Ok(false);
        }
        let mut new = Ring::read(&self.folder)?;
        new.public = new.public.replacing(&ring.public);
        self.ring.store(Arc::new(new));
        Ok(true)
    }

    /// The id of the key that signs.
    pub fn kid(&self) -> String {
        self.ring.load().signing.kid().to_owned()
    }

    /// All keys that verify: the active one, the next one, the retired ones from new to old.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.ring.load().known.clone()
    }

    /// Their public halves as a JWKS (RFC 7517).
    pub fn jwks(&self) -> Arc<str> {
        Arc::clone(&self.ring.load().jwks)
    }

    /// Signs `claims` as a compact JWT of type `typ`.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign(&self, typ: &str, claims: &impl Serialize) -> Result<String, SignError> {
        let ring = self.ring.load();
        let (alg, kid) = (ring.signing.algorithm().word(), ring.signing.kid());
        // `typ` is one of ours, and a kid has no character that JSON would escape.
        let head = format!(r#"{{"alg":"{alg}","typ":"{typ}","kid":"{kid}"}}"#);
        let mut token = String::with_capacity(768);
        URL_SAFE_NO_PAD.encode_string(head, &mut token);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = ring.signing.sign(token.as_bytes());
        token.push('.');
        token.push_str(&signature.ok_or(SignError::Randomness)?);
        Ok(token)
    }

    /// Verifies `token`: signed here, of type `typ`, from `issuer`, for `audience`, within its time.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::Expired`] only when all before it was right.
    pub fn verify<C: DeserializeOwned>(
        &self,
        token: &str,
        typ: &str,
        issuer: &str,
        audience: &str,
    ) -> Result<Verified<C>, TokenError> {
        let head = TokenHead::own(token, typ)?;
        let key = self.find(&head).ok_or(TokenError::UnknownKey)?;
        let claims = key.verify(token, &head, issuer, audience)?;
        Ok(Verified { claims, head, key })
    }

    /// The key that a header names, if it is known. One that is not known may have been made by another replica just
    /// now, so the folder is looked at.
    pub fn find(&self, head: &TokenHead) -> Option<Arc<PublicKey>> {
        let known = |keys: &Self| keys.ring.load().public.find(head).map(Arc::clone);
        let outlived = self.ring.load().has_outlived(SystemTime::now());
        if let Some(key) = known(self).filter(|_| !outlived) {
            return Some(key);
        }
        match self.refresh() {
            Ok(_) => known(self),
            // Said by whoever looks regularly. A key whose time is over proves nothing meanwhile.
            Err(_) => known(self).filter(|_| !outlived),
        }
    }
}

/// Rotates the keys in `dir` and answers with all that are there then. The new next key signs by
/// `algorithm`. Running gateways follow within a second or two. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and what to do.
pub fn rotate(dir: &Path, algorithm: SigningAlgorithm) -> Result<Vec<KeyInfo>, KeyError> {
    let folder = Folder::new(dir.to_owned());
    folder.rotate(algorithm, SystemTime::now())?;
    list(dir)
}

/// The keys in `dir`, as [`Keys::list`]. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and what to do.
pub fn list(dir: &Path) -> Result<Vec<KeyInfo>, KeyError> {
    let held = Folder::new(dir.to_owned()).read(SystemTime::now())?;
    Ok(held.iter().map(info).collect())
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("kid", &self.kid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
