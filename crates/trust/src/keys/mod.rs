//! The trust keys of this gateway ([`Keys`]): the active key signs; retired keys and the next key verify. Read from
//! `keys.dir`, which replicas share, and reloaded when it changes. See `docs/reference/maintenance.md`, "Trust keys".

mod folder;
mod rotation;
mod signing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use self::folder::{Folder, FolderSnapshot, StoredKey};
pub use self::rotation::{PUBLISHED_FIRST, RotateError, RotationOutcome, next_age, rotate};
pub use self::signing::SigningAlgorithm;
use self::signing::SigningKey;
use super::jwks::{KeySet, PublicKey};
use super::token::{LEEWAY_SECONDS, TokenError, TokenHead};
use kernel::closed_set::words;
use kernel::metrics::{KeyMetrics, set_count};

/// Most reads of the folder that concurrent rotations may invalidate before the last one is used.
const READS_MAX: u32 = 5;

/// Least time between two reloads for an unknown key, which bounds the cost of made-up key ids.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for a reload: the disk may be remote.
const RELOAD_WAIT_MAX: Duration = Duration::from_secs(1);

/// A key cannot be loaded or written. It ends the start of the gateway.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The folder or the file cannot be read or written.
    #[error("cannot {verb} {}: check keys.dir and its owner", path.display())]
    File {
        /// `create`, `lock`, `read`, `remove` or `write`.
        verb: &'static str,
        /// The path of the folder or file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is not a key.
    #[error("{} is not an Ed25519 or P-256 key in PKCS#8 PEM form: restore it, or remove it (tokens signed with it end; a new active.pem is made at the next start)", .0.display())]
    NotAKey(PathBuf),
    /// More keys than verifiers accept.
    #[error("{} holds more than {} keys: rotate less often, or delete the oldest retired ones (tokens signed with them end)", .0.display(), super::KEYS_MAX)]
    TooMany(PathBuf),
    /// The file is not a key for sealing.
    #[error("{} is not a key for sealing, which is 32 random bytes in base64 or hexadecimal (openssl rand -base64 32): restore it, or remove it to have a new one made (each upstream_auth has to be set again then)", .0.display())]
    NotASealKey(PathBuf),
    /// A key that cannot be published, so that its signatures could not be verified. A bug: each key form that is
    /// read can be published.
    #[error("{} holds a key that cannot be published, so its signatures could not be verified: rotate the keys, and remove it", .0.display())]
    NotPublished(PathBuf),
    /// The system gave no randomness.
    #[error("cannot make a key: the system gives no randomness")]
    Generation,
    /// The keys are rotated, but a later step failed. Must not be retried: that would be another rotation.
    #[error(
        "the keys were rotated, and the next key signs now, but the rotation did not come to its end"
    )]
    Unfinished(#[source] Box<KeyError>),
}

impl KeyError {
    fn into_unfinished(self) -> Self {
        Self::Unfinished(Box::new(self))
    }
}

words! {
    /// The source of a time in the life of a key.
    KeyTimeSource {
        /// The rotation, which recorded it.
        Rotation => "rotation",
        /// The time of its file: when it was created or placed there.
        File => "file",
    }
}

/// The claims could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// They are not JSON. A bug of the caller.
    #[error("the claims are no JSON")]
    Claims(#[from] serde_json::Error),
    /// ECDSA needs a random number for each signature.
    #[error("the system gives no randomness")]
    Randomness,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// It signs.
    Active,
    /// It will sign after the next rotation, and is published so that verifiers have it by then.
    Next,
    /// It signed, and verifies until the last token that it may have signed has expired.
    Retired {
        /// End of signing.
        at: SystemTime,
        /// End of verification.
        until: SystemTime,
    },
}

impl KeyState {
    /// Returns the word used by the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Next => "next",
            Self::Retired { .. } => "retired",
        }
    }
}

/// A public description of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The id of the key, as in `kid`.
    pub kid: String,
    /// The algorithm by which it signs.
    pub algorithm: SigningAlgorithm,
    /// The state of the key.
    pub state: KeyState,
}

/// The keys at one time.
struct KeyRing {
    signing: SigningKey,
    known: Vec<KeyInfo>,
    public: KeySet,
    jwks: Arc<str>,
    /// `None`: the folder could not be read.
    snapshot: Option<FolderSnapshot>,
    /// Time of the read. A clock that goes back may make a retired key valid again.
    read_at: SystemTime,
}

impl KeyRing {
    fn read(folder: &Folder) -> Result<Self, KeyError> {
        let read_at = SystemTime::now();
        let mut tries = 0;
        let (snapshot, held) = loop {
            let snapshot = folder.take_snapshot().ok();
            let held = folder.read(read_at)?;
            tries += 1;
            // A rotation during the read could leave a key out. One that is still in progress is seen by the next
            // read.
            if folder.take_snapshot().ok() == snapshot || tries == READS_MAX {
                break (snapshot, held);
            }
        };
        let known = held.iter().map(key_info).collect();
        let jwks: Vec<_> = held.iter().map(|one| one.key.jwk()).collect();
        let jwks = json!({ "keys": jwks }).to_string();
        // Verifies with the published keys only.
        let public = KeySet::parse(jwks.as_bytes()).unwrap_or_default();
        let whole = public.len() == held.len();
        let signing = held.into_iter().next().map(|one| one.key);
        Ok(Self {
            signing: signing
                .filter(|_| whole)
                .ok_or_else(|| KeyError::NotPublished(folder.path.clone()))?,
            known,
            public,
            jwks: jwks.into(),
            snapshot,
            read_at,
        })
    }

    /// Returns true if the time alone changes the keys: a retired key has expired, or the clock went back.
    fn is_outdated(&self, now: SystemTime) -> bool {
        now < self.read_at || self.known.iter().any(|key| key.has_expired(now))
    }
}

impl KeyInfo {
    fn has_expired(&self, now: SystemTime) -> bool {
        matches!(self.state, KeyState::Retired { until, .. } if now >= until)
    }
}

fn key_info(held: &StoredKey) -> KeyInfo {
    KeyInfo {
        kid: held.key.kid().to_owned(),
        algorithm: held.key.algorithm(),
        state: held.state,
    }
}

/// The verified claims of a token, and the key that verified them.
pub struct VerifiedClaims<C> {
    /// The claims.
    pub claims: C,
    /// The header of the token.
    pub head: TokenHead,
    /// The key, which may be withdrawn later.
    pub key: Arc<PublicKey>,
}

/// The gateway's own keys.
pub struct Keys {
    folder: Folder,
    ring: ArcSwap<KeyRing>,
    reading: Mutex<()>,
    /// The last reload for an unknown key.
    last_reload: tokio::sync::Mutex<Option<KeyReload>>,
}

/// A reload of the folder for a token with an unknown key.
#[derive(Clone, Copy)]
struct KeyReload {
    began: Instant,
    succeeded: bool,
}

impl Keys {
    /// Reads the keys in `dir`, or creates folder and keys at the first start. Processes that start at the same
    /// time get the same keys. Blocks; called before the runtime serves requests.
    ///
    /// # Errors
    /// [`KeyError`] names the file and the next step.
    pub fn load_or_create(dir: &Path) -> Result<Self, KeyError> {
        let folder = Folder::new(dir.to_owned());
        folder.prepare(SigningAlgorithm::default())?;
        Ok(Self {
            ring: ArcSwap::from_pointee(KeyRing::read(&folder)?),
            reading: Mutex::new(()),
            last_reload: tokio::sync::Mutex::new(None),
            folder,
        })
    }

    /// Reloads the keys if the folder has changed, or a retired key has expired. Returns true if the keys were
    /// replaced. Otherwise costs one listing of the folder. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`KeyError`]; the previous keys stay in force.
    pub fn refresh(&self) -> Result<bool, KeyError> {
        let _one_reads = self.reading.lock();
        let ring = self.ring.load();
        let unchanged = self.folder.take_snapshot().ok() == ring.snapshot;
        if unchanged && !ring.is_outdated(SystemTime::now()) {
            return Ok(false);
        }
        let mut new = KeyRing::read(&self.folder)?;
        new.public = new.public.supersede(&ring.public);
        self.ring.store(Arc::new(new));
        Ok(true)
    }

    /// Sets the metrics of the keys. Blocks for as long as the disk does.
    pub fn record_ages(&self, metrics: &KeyMetrics) {
        let now = SystemTime::now();
        let retired = |key: &&KeyInfo| matches!(key.state, KeyState::Retired { .. });
        let retired = self.ring.load().known.iter().filter(retired).count();
        let (active, next) = (self.folder.active_age(now), self.folder.next_age(now));
        let counts = [
            ("active", 1),
            ("next", usize::from(next.is_some())),
            ("retired", retired),
        ];
        for (state, count) in counts {
            set_count(&metrics.count.with_label_values(&[state]), count);
        }
        for (state, age) in [("active", active), ("next", next)] {
            let seconds = age.map_or(0.0, |age| age.as_secs_f64());
            metrics.age.with_label_values(&[state]).set(seconds);
        }
    }

    /// Returns the times since when the active and the next key have been that, and their sources; `None`: unknown.
    /// Blocks for as long as the disk does.
    pub fn start_times(&self) -> [Option<(SystemTime, KeyTimeSource)>; 2] {
        [self.folder.active_since(), self.folder.next_since()]
    }

    /// Returns the id of the active key.
    pub fn kid(&self) -> String {
        self.ring.load().signing.kid().to_owned()
    }

    /// Returns all keys that verify: the active one, the next one, the retired ones from new to old.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.ring.load().known.clone()
    }

    /// Returns the public keys as a JWKS (RFC 7517).
    pub fn jwks(&self) -> Arc<str> {
        Arc::clone(&self.ring.load().jwks)
    }

    /// Signs `claims` as a compact JWT of type `typ`.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign(&self, typ: &str, claims: &impl Serialize) -> Result<String, SignError> {
        self.ring.load().signing.sign_token("", typ, claims)
    }

    /// Returns the keys in force, to sign several tokens with the same one.
    pub fn signer(&self) -> Signer {
        Signer(self.ring.load_full())
    }

    /// Returns true until the keys are read anew after `signer` was taken.
    pub fn is_current(&self, signer: &Signer) -> bool {
        Arc::ptr_eq(&self.ring.load(), &signer.0)
    }

    /// Signs `payload` as a JWS with detached content (RFC 7515, appendix F). Returns header and signature,
    /// encoded. The header has `jku`, the address at which the key is published.
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
        let (alg, kid) = (ring.signing.algorithm().as_str(), ring.signing.kid());
        let head = json!({"alg": alg, "typ": typ, "kid": kid, "jku": jku});
        let head = URL_SAFE_NO_PAD.encode(head.to_string());
        let mut input = format!("{head}.");
        URL_SAFE_NO_PAD.encode_string(payload, &mut input);
        let signature = ring.signing.sign(input.as_bytes());
        Ok((head, signature.ok_or(SignError::Randomness)?))
    }

    /// Returns true if signatures are deterministic.
    pub fn is_deterministic(&self) -> bool {
        self.ring.load().signing.algorithm() == SigningAlgorithm::EdDsa
    }

    /// Verifies `token`: signed here, of type `typ`, from `issuer`, for `audience`, within its time.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::Expired`] only if all checks before it passed.
    pub fn verify<C: DeserializeOwned>(
        &self,
        token: &str,
        typ: &str,
        issuer: &str,
        audience: &str,
    ) -> Result<VerifiedClaims<C>, TokenError> {
        let head = TokenHead::parse_own(token, typ)?;
        let key = self.find(&head).ok_or(TokenError::UnknownKey)?;
        let claims = key.verify(token, &head, LEEWAY_SECONDS, issuer, audience)?;
        Ok(VerifiedClaims { claims, head, key })
    }

    /// Returns the payload of a statement of type `typ` if one of these keys signed it, including retired ones.
    ///
    /// # Errors
    /// As for [`KeySet::verify_statement`].
    pub fn verify_statement<C: DeserializeOwned>(
        &self,
        statement: &str,
        typ: &str,
    ) -> Result<C, TokenError> {
        self.ring.load().public.verify_statement(statement, typ)
    }

    /// Returns the key that a header names, if it is known and not expired. Reads from memory: a key that another
    /// replica created just now is known after [`Keys::reload_for_unknown_key`].
    pub fn find(&self, head: &TokenHead) -> Option<Arc<PublicKey>> {
        let ring = self.ring.load();
        let key = ring.public.find(head)?;
        let now = SystemTime::now();
        let over = |info: &KeyInfo| Some(&info.kid) == head.kid.as_ref() && info.has_expired(now);
        (!ring.known.iter().any(over)).then(|| Arc::clone(key))
    }

    /// Reloads the keys after a token named an unknown one: at most every [`RELOAD_PAUSE`], once for all waiting
    /// callers.
    ///
    /// # Errors
    /// If they cannot be read, or not within [`RELOAD_WAIT_MAX`].
    pub async fn reload_for_unknown_key(self: &Arc<Self>) -> Result<(), ReloadError> {
        let requested_at = Instant::now();
        let reload = async {
            let mut last = self.last_reload.lock().await;
            match *last {
                // It began after this call, so it has seen the key if there is one.
                Some(reload) if reload.succeeded && reload.began > requested_at => return Ok(()),
                Some(reload) => sleep_until(reload.began + RELOAD_PAUSE).await,
                None => {}
            }
            let began = Instant::now();
            // Stored before the reload, so that the pause holds even if this caller is cancelled; the next one
            // reloads itself.
            let reload = last.insert(KeyReload {
                began,
                succeeded: false,
            });
            let keys = Arc::clone(self);
            match spawn_blocking(move || keys.refresh()).await {
                Ok(Ok(_)) => {
                    reload.succeeded = true;
                    Ok(())
                }
                Ok(Err(error)) => Err(ReloadError(Some(error))),
                Err(_) => Err(ReloadError(None)),
            }
        };
        let reloaded = timeout(RELOAD_WAIT_MAX, reload).await;
        reloaded.unwrap_or(Err(ReloadError(None)))
    }
}

/// The keys that were in force at one time. They sign on after a rotation: [`Keys::is_current`] tells of it.
pub struct Signer(Arc<KeyRing>);

impl Signer {
    /// Signs `claims` as a compact JWT of type `typ`. Returns it after `prefix`.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign_after(
        &self,
        prefix: &str,
        typ: &str,
        claims: &impl Serialize,
    ) -> Result<String, SignError> {
        self.0.signing.sign_token(prefix, typ, claims)
    }
}

/// The keys could not be reloaded, so it is unknown if a key is the gateway's.
#[derive(Debug, thiserror::Error)]
#[error("keys.dir cannot be read again in time")]
pub struct ReloadError(#[source] Option<KeyError>);

/// Returns the keys in `dir`, like [`Keys::list`]. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and the next step.
pub fn list(dir: &Path) -> Result<Vec<KeyInfo>, KeyError> {
    let held = Folder::new(dir.to_owned()).read(SystemTime::now())?;
    Ok(held.iter().map(key_info).collect())
}

/// Returns the public keys in `dir`, as they are published. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and the next step.
pub fn read_published_keys(dir: &Path) -> Result<KeySet, KeyError> {
    Ok(KeyRing::read(&Folder::new(dir.to_owned()))?.public)
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
