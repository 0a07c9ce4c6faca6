//! The trust keys of this gateway (contract §7.1): one signs, those that did and the one that will
//! verify. Read from `keys.dir`, which replicas share, and read again when it changes.

mod folder;
mod rotation;
mod signing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use self::folder::{Folder, Held, Look};
pub use self::rotation::{PUBLISHED_FIRST, RotateError, Rotated, next_age, rotate};
pub use self::signing::SigningAlgorithm;
use self::signing::SigningKey;
use super::jwks::{KeySet, PublicKey};
use super::token::{TokenError, TokenHead};
use crate::metrics::KeyAges;

/// Readings of the folder that a rotation may spoil before one is taken as it is.
const READS_MAX: u32 = 5;

/// From one look for an unknown key to the next: whoever makes up key ids costs no more than this.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for it: the disk may be a network's.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(1);

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
    /// More than verifiers take.
    #[error("{} holds more than {} keys: rotate less often, or delete the oldest retired ones (tokens signed with them end)", path.display(), super::KEYS_MAX)]
    TooMany {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not a key for sealing.
    #[error("{} is not a key for sealing, which is 32 random bytes in base64 or hexadecimal (openssl rand -base64 32): restore it, or remove it to have a new one made (each upstream_auth has to be set again then)", path.display())]
    NotASealKey {
        /// Which.
        path: PathBuf,
    },
    /// What it signs nobody could verify. A bug: each form of a key that is read can be published.
    #[error("{} holds a key that cannot be published, so nobody could verify what it signs: rotate the keys, and remove it", path.display())]
    NotPublished {
        /// The folder.
        path: PathBuf,
    },
    /// The system gave no randomness.
    #[error("cannot make a key: the system gives no randomness")]
    Generation,
    /// The keys are rotated, but what follows upon that failed. Not to be tried again: that would be another rotation.
    #[error(
        "the keys were rotated, and the next key signs now, but the rotation did not come to its end"
    )]
    Unfinished(#[source] Box<KeyError>),
}

impl KeyError {
    fn unfinished(self) -> Self {
        Self::Unfinished(Box::new(self))
    }
}

/// How a time in the life of a key is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// By the rotation, which wrote it down.
    Rotation,
    /// By the time of its file: when it was made, or put there.
    File,
}

impl Known {
    /// The word of the console's routes.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rotation => "rotation",
            Self::File => "file",
        }
    }
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
    /// A clock that goes back may bring a retired key back.
    read_at: SystemTime,
}

impl Ring {
    fn read(folder: &Folder) -> Result<Self, KeyError> {
        let read_at = SystemTime::now();
        let mut tries = 0;
        let (look, held) = loop {
            let look = folder.look().ok();
            let held = folder.read(read_at)?;
            tries += 1;
            // A rotation in the middle of it would leave a key out. One that goes on is seen next time.
            if folder.look().ok() == look || tries == READS_MAX {
                break (look, held);
            }
        };
        let known = held.iter().map(info).collect();
        let jwks: Vec<_> = held.iter().map(|one| one.key.jwk()).collect();
        let jwks = json!({ "keys": jwks }).to_string();
        // Verified by what is published, and by nothing else.
        let public = KeySet::parse(jwks.as_bytes()).unwrap_or_default();
        let whole = public.len() == held.len();
        let signing = held.into_iter().next().map(|one| one.key);
        Ok(Self {
            signing: signing
                .filter(|_| whole)
                .ok_or_else(|| folder.not_published())?,
            known,
            public,
            jwks: jwks.into(),
            look,
            read_at,
        })
    }

    /// Whether the clock alone makes it another: a retired key's time is over, or it may not be after all.
    fn is_of_another_time(&self, now: SystemTime) -> bool {
        now < self.read_at || self.known.iter().any(|key| key.is_over(now))
    }
}

impl KeyInfo {
    fn is_over(&self, now: SystemTime) -> bool {
        matches!(self.state, State::Retired { until, .. } if now >= until)
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
    /// The last look for an unknown key.
    looked: tokio::sync::Mutex<Option<LastLook>>,
}

/// A look at the folder for whoever met a key that is not known.
#[derive(Clone, Copy)]
struct LastLook {
    began: Instant,
    succeeded: bool,
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
            looked: tokio::sync::Mutex::new(None),
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
        if unchanged && !ring.is_of_another_time(SystemTime::now()) {
            return Ok(false);
        }
        let mut new = Ring::read(&self.folder)?;
        new.public = new.public.replacing(&ring.public);
        self.ring.store(Arc::new(new));
        Ok(true)
    }

    /// How old they are, for those who watch. Blocks for as long as the disk does.
    pub fn ages(&self) -> KeyAges {
        let now = SystemTime::now();
        let retired = |key: &&KeyInfo| matches!(key.state, State::Retired { .. });
        let seconds = |age: Duration| age.as_secs_f64();
        KeyAges {
            active: self.folder.active_age(now).map_or(0.0, seconds),
            next: self.folder.next_age(now).map(seconds),
            retired: self.ring.load().known.iter().filter(retired).count(),
        }
    }

    /// Since when the active key and the next one have been that, and how that is known; `None`: nobody knows.
    /// Blocks for as long as the disk does.
    pub fn since(&self) -> [Option<(SystemTime, Known)>; 2] {
        [self.folder.active_since(), self.folder.next_since()]
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

    /// Signs `payload` as a JWS whose payload stands elsewhere (RFC 7515, appendix F): header and
    /// signature, as they are encoded. The header names `jku`, where the key is published.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign_detached(
        &self,
        typ: &str,
        jku: &str,
        payload: &[u8],
    ) -> Result<(String, String), SignError> {
        let ring = self.ring.load();
        let (alg, kid) = (ring.signing.algorithm().word(), ring.signing.kid());
        let head = json!({"alg": alg, "typ": typ, "kid": kid, "jku": jku});
        let head = URL_SAFE_NO_PAD.encode(head.to_string());
        let mut input = format!("{head}.");
        URL_SAFE_NO_PAD.encode_string(payload, &mut input);
        let signature = ring.signing.sign(input.as_bytes());
        Ok((head, signature.ok_or(SignError::Randomness)?))
    }

    /// Whether signing the same twice gives the same.
    pub fn signs_alike(&self) -> bool {
        self.ring.load().signing.algorithm() == SigningAlgorithm::EdDsa
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

    /// What a statement of type `typ` says, if one of these keys signed it, a retired one included.
    ///
    /// # Errors
    /// As [`KeySet::verify_statement`].
    pub fn verify_statement<C: DeserializeOwned>(
        &self,
        statement: &str,
        typ: &str,
    ) -> Result<C, TokenError> {
        self.ring.load().public.verify_statement(statement, typ)
    }

    /// The key that a header names, if it is known and its time is not over. From memory: one that
    /// another replica made just now is known after [`Keys::look_again`].
    pub fn find(&self, head: &TokenHead) -> Option<Arc<PublicKey>> {
        let ring = self.ring.load();
        let key = ring.public.find(head)?;
        let now = SystemTime::now();
        let over = |info: &KeyInfo| info.kid == head.kid() && info.is_over(now);
        (!ring.known.iter().any(over)).then(|| Arc::clone(key))
    }

    /// Reads the keys again, for whoever met one that is not known: at most every [`LOOK_PAUSE`], once
    /// for all who wait.
    ///
    /// # Errors
    /// When they cannot be read, or not within [`LOOK_WAIT_MAX`].
    pub async fn look_again(self: &Arc<Self>) -> Result<(), LookError> {
        let asked = Instant::now();
        let look = async {
            let mut last = self.looked.lock().await;
            match *last {
                // It began after we asked, so it has seen what we ask for.
                Some(look) if look.succeeded && look.began > asked => return Ok(()),
                Some(look) => sleep_until(look.began + LOOK_PAUSE).await,
                None => {}
            }
            let began = Instant::now();
            // Also where whoever waits for it leaves: the next one has the pause to keep, and its own look to make.
            let look = last.insert(LastLook {
                began,
                succeeded: false,
            });
            let keys = Arc::clone(self);
            match spawn_blocking(move || keys.refresh()).await {
                Ok(Ok(_)) => {
                    look.succeeded = true;
                    Ok(())
                }
                Ok(Err(error)) => Err(LookError(Some(error))),
                Err(_) => Err(LookError(None)),
            }
        };
        let looked = timeout(LOOK_WAIT_MAX, look).await;
        looked.unwrap_or(Err(LookError(None)))
    }
}

/// The keys could not be read again, so whether one is ours is not known.
#[derive(Debug, thiserror::Error)]
#[error("keys.dir cannot be read again in time")]
pub struct LookError(#[source] Option<KeyError>);

/// The keys in `dir`, as [`Keys::list`]. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and what to do.
pub fn list(dir: &Path) -> Result<Vec<KeyInfo>, KeyError> {
    let held = Folder::new(dir.to_owned()).read(SystemTime::now())?;
    Ok(held.iter().map(info).collect())
}

/// The public halves of the keys in `dir`, as they are published. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and what to do.
pub fn published(dir: &Path) -> Result<KeySet, KeyError> {
    Ok(Ring::read(&Folder::new(dir.to_owned()))?.public)
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
