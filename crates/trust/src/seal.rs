//! Seals secrets at rest that the gateway stores for workspaces and has to read again ([`Seal`]).
//!
//! AES-256-GCM with a random nonce of 96 bits, which is safe for 2^32 secrets under one key. The
//! owner of the secret is authenticated with it, so that one sealed for a workspace cannot be moved
//! to another's row. The form is `v1.<key id>.<base64url of nonce, ciphertext and tag>`.

use std::fmt;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::{KeyError, file};

/// The key file in `keys.dir`, if `keys.seal_key` is not set.
const FILE_NAME: &str = "seal.key";

/// Length of the key, in bytes.
const KEY_LEN: usize = 32;

/// The version of the sealed form. A later form gets another one.
const VERSION: &str = "v1";

/// Length of the key id, in characters: enough to distinguish an operator's keys.
const KID_LEN: usize = 8;

/// A sealed secret, as it is stored. It is safe to store, and is not shown anywhere.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SealedSecret(String);

impl SealedSecret {
    /// Wraps a stored text.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the text to store.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealedSecret(…)")
    }
}

/// The reason that a secret cannot be sealed or opened. Contains nothing of the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Written by a later version, or by another program.
    #[error("it is not of the form that this version seals in")]
    Form,
    /// SealedSecret with another key.
    #[error(
        "it was sealed with key {sealed_with}, and this gateway has key {own}: restore that key (keys.seal_key, or seal.key in keys.dir), or set the secret again"
    )]
    OtherKey {
        /// The id of the key that it needs.
        sealed_with: String,
        /// The id of this gateway's key.
        own: String,
    },
    /// Changed since, or sealed for another owner.
    #[error("it was changed, or was sealed for another: set the secret again")]
    Broken,
    /// Encryption failed: the system gives no randomness.
    #[error("it cannot be sealed: the system gives no randomness")]
    Randomness,
}

/// The sealing key.
pub struct Seal {
    key: RandomizedNonceKey,
    kid: String,
}

impl Seal {
    /// Reads the key from the file `mounted`, which must exist, else from `dir`, where it is
    /// created at the first start. Processes that start at the same time get the same key. Blocks;
    /// called before the runtime serves requests.
    ///
    /// # Errors
    /// [`KeyError`] names the file and the next step.
    pub fn load_or_create(dir: &Path, mounted: Option<&Path>) -> Result<Self, KeyError> {
        let path = match mounted {
            Some(path) => path.to_owned(),
            None => {
                file::create_folder(dir)?;
                let path = dir.join(FILE_NAME);
                file::create(&path, new_key)?;
                path
            }
        };
        let not_a_key = || KeyError::NotASealKey(path.clone());
        let key = parse_key(file::read(&path)?.expose_secret()).map(Zeroizing::new);
        let key = key.ok_or_else(not_a_key)?;
        Self::from_key(&key).ok_or_else(not_a_key)
    }

    fn from_key(key: &[u8; KEY_LEN]) -> Option<Self> {
        let digest = Sha256::new_with_prefix(b"a2a-gateway seal key id").chain_update(key);
        let mut kid = URL_SAFE_NO_PAD.encode(digest.finalize());
        kid.truncate(KID_LEN);
        Some(Self {
            key: RandomizedNonceKey::new(&AES_256_GCM, key).ok()?,
            kid,
        })
    }

    /// Returns the id of the key.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Seals `secret` for `owner`.
    ///
    /// # Errors
    /// [`SealError::Randomness`].
    pub fn seal(&self, owner: &str, secret: &SecretString) -> Result<SealedSecret, SealError> {
        let mut text = secret.expose_secret().as_bytes().to_vec();
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(owner), &mut text)
            .map_err(|_| SealError::Randomness)?;
        let mut bytes = nonce.as_ref().to_vec();
        bytes.append(&mut text);
        let encoded = URL_SAFE_NO_PAD.encode(bytes);
        Ok(SealedSecret(format!("{VERSION}.{}.{encoded}", self.kid)))
    }

    /// Opens a secret that was sealed for `owner`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn open(&self, owner: &str, sealed: &SealedSecret) -> Result<SecretString, SealError> {
        let mut parts = sealed.0.splitn(3, '.');
        let (Some(VERSION), Some(kid), Some(encoded)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(SealError::Form);
        };
        if kid != self.kid {
            return Err(SealError::OtherKey {
                // It comes from a table: repeat no more than a key id has.
                sealed_with: kid
                    .chars()
                    .filter(char::is_ascii_graphic)
                    .take(KID_LEN)
                    .collect(),
                own: self.kid.clone(),
            });
        }
        let decoded = URL_SAFE_NO_PAD.decode(encoded);
        let mut bytes = Zeroizing::new(decoded.map_err(|_| SealError::Form)?);
        let (nonce, text) = bytes
            .split_at_mut_checked(NONCE_LEN)
            .ok_or(SealError::Form)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Form)?;
        let text = self.key.open_in_place(nonce, Aad::from(owner), text);
        let text = text.map_err(|_| SealError::Broken)?;
        let text = std::str::from_utf8(text).map_err(|_| SealError::Broken)?;
        Ok(SecretString::from(text))
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

fn new_key() -> Result<SecretString, KeyError> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    aws_lc_rs::rand::fill(key.as_mut()).map_err(|_| KeyError::Generation)?;
    Ok(format!("{}\n", BASE64.encode(*key)).into())
}

/// Parses 32 bytes in base64, of either alphabet, or in hexadecimal.
fn parse_key(text: &str) -> Option<[u8; KEY_LEN]> {
    let text = text.trim();
    if text.len() == 2 * KEY_LEN {
        return hex::FromHex::from_hex(text).ok();
    }
    let alphabet = match text.contains(['-', '_']) {
        true => &URL_SAFE,
        false => &STANDARD,
    };
    let padding =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(alphabet, padding).decode(text).ok()?;
    Zeroizing::new(bytes).as_slice().try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn seal() -> Seal {
        Seal::load_or_create(tempfile::tempdir().unwrap().path(), None).unwrap()
    }

    fn secret() -> SecretString {
        SecretString::from("authorization: Bearer s3cret")
    }

    fn write(path: &Path, text: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;

        let _ = fs::remove_file(path);
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_was_sealed_is_opened_for_its_owner_and_nobody_else() {
        let seal = seal();
        let sealed = seal.seal("a", &secret()).unwrap();
        assert!(sealed.as_str().starts_with(&format!("v1.{}.", seal.kid())));
        assert!(
            !sealed.as_str().contains("s3cret") && !format!("{sealed:?}").contains(sealed.as_str())
        );
        let opened = seal.open("a", &sealed).unwrap();
        assert_eq!(opened.expose_secret(), secret().expose_secret());
        assert_eq!(seal.open("b", &sealed).unwrap_err(), SealError::Broken);
        assert_ne!(
            sealed,
            seal.seal("a", &secret()).unwrap(),
            "a nonce is used once"
        );
    }

    #[test]
    fn what_was_changed_or_is_not_ours_is_told_apart() {
        let seal = seal();
        let sealed = seal.seal("a", &secret()).unwrap();
        let (head, body) = sealed.as_str().rsplit_once('.').unwrap();
        for at in [0, body.len() / 2, body.len() - 2] {
            let mut bent = body.as_bytes().to_vec();
            bent[at] = if bent[at] == b'A' { b'B' } else { b'A' };
            let bent = format!("{head}.{}", String::from_utf8(bent).unwrap());
            let outcome = seal.open("a", &SealedSecret::from_stored(bent));
            assert_eq!(outcome.unwrap_err(), SealError::Broken, "at {at}");
        }
        for text in [
            "",
            "v1",
            "v2.x.AAAA",
            "v1..",
            "plain",
            &format!("{head}."),
            &format!("{head}.AAAA"),
        ] {
            let outcome = seal.open("a", &SealedSecret::from_stored(text.to_owned()));
            assert!(outcome.is_err(), "{text}");
        }
        let other = self::seal();
        let outcome = other.open("a", &sealed).unwrap_err();
        let said = outcome.to_string();
        assert!(
            said.contains(seal.kid()) && said.contains(other.kid()),
            "{said}"
        );
    }

    #[test]
    fn processes_that_start_at_once_agree_on_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let kids: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| Seal::load_or_create(&path, None).unwrap().kid().to_owned())
                })
                .collect();
            starts
                .into_iter()
                .map(|start| start.join().unwrap())
                .collect()
        });
        assert_eq!(kids.len(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(&path.join(FILE_NAME))), (0o700, 0o600));
        }
    }

    #[test]
    fn a_mounted_key_is_read_in_every_usual_form_and_never_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mounted");
        let load = || Seal::load_or_create(&dir.path().join("keys"), Some(&path));
        assert!(matches!(load(), Err(KeyError::File { verb: "read", .. })));
        let key = [0xfb_u8; KEY_LEN];
        let hex = hex::encode(key);
        let expected = Seal::from_key(&key).unwrap().kid;
        for text in [
            BASE64.encode(key) + "\n",
            URL_SAFE_NO_PAD.encode(key),
            hex.to_uppercase(),
            hex,
        ] {
            write(&path, &text, 0o600);
            assert_eq!(load().unwrap().kid(), expected, "{text}");
        }
        for wrong in [BASE64.encode([0; 33]), "x".repeat(64), "é".repeat(32)] {
            write(&path, &wrong, 0o600);
            let error = load().unwrap_err().to_string();
            assert!(
                error.contains("mounted") && error.contains("openssl rand"),
                "{error}"
            );
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                wrong,
                "it is not replaced"
            );
        }
        write(&path, &BASE64.encode(key), 0o644);
        let error = kernel::telemetry::Chain(&load().unwrap_err()).to_string();
        assert!(error.contains("chmod 600"), "{error}");
        write(&path, &BASE64.encode(key), 0o440);
        assert!(load().is_ok());
        assert!(!dir.path().join("keys").exists());
    }
}
