//! The Ed25519 key of this gateway: made at first start, kept as a PKCS#8 PEM file that only its
//! owner can read, used to sign and to verify compact JWTs. One algorithm, an exact `typ`, no header
//! member that could choose the key.

use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file;

/// Longest token that is looked at. Refused before any cryptography.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Clock difference between two replicas that is forgiven, in seconds.
pub const LEEWAY_SECONDS: u64 = 5;

/// Characters of the key id: 96 bits of the thumbprint tell a handful of keys apart.
const KID_LEN: usize = 16;

/// The key that signs. Others get names of their own when keys rotate.
const FILE_NAME: &str = "active.pem";

const PEM_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_END: &str = "-----END PRIVATE KEY-----";

/// The key could not be had. The start ends with it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The folder or the file cannot be read or written.
    #[error("cannot {verb} {}: check keys.dir and its owner", path.display())]
    File {
        /// `create`, `read` or `write`.
        verb: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a key.
    #[error("{} is not an Ed25519 key in PKCS#8 PEM form: restore it, or remove it to have a new one made (tokens signed with the old one end)", path.display())]
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

/// Why a token proves nothing. Says nothing of the token's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("the token has more than 8192 bytes")]
    TooLong,
    /// Not a compact JWT, or a header other than `alg`, `typ` and `kid` as we write them.
    #[error("the token is not one that this gateway makes, nor of an issuer in auth.issuers")]
    Malformed,
    /// Signed by no key of ours.
    #[error("the token is signed by a key that this gateway does not know")]
    UnknownKey,
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// It was good once.
    #[error("the token has expired")]
    Expired,
    /// It is not good yet.
    #[error("the token is not valid yet")]
    Immature,
    /// Another issuer, another audience, or a claim missing or of the wrong type.
    #[error(
        "the token was made for another gateway, or lacks a claim: gateways that share tokens share keys.dir and tokens.issuer, which is server.public_url where it is not set"
    )]
    Claims,
}

/// The header of every token we sign. Anything else in it (`jku`, `jwk`, `x5u`, `crit`) is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenHead {
    alg: Algorithm,
    typ: String,
    kid: String,
}

/// The gateway's own keys.
pub struct Keys {
    kid: String,
    signing: EncodingKey,
    verifying: DecodingKey,
}

impl Keys {
    /// Reads the key in `dir`, or makes folder and key at first start. Processes that start at the
    /// same time end up with the same key. Blocks; called before the runtime serves anyone.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what to do.
    pub fn load_or_create(dir: &Path) -> Result<Self, KeyError> {
        file::create_folder(dir)?;
        let path = dir.join(FILE_NAME);
        file::create(&path, new_pem)?;
        Self::from_pkcs8(&read_der(&path)?).ok_or(KeyError::NotAKey { path })
    }

    fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_pkcs8(der).ok()?;
        let public = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Some(Self {
            kid: thumbprint(&public),
            signing: EncodingKey::from_ed_der(der),
            verifying: DecodingKey::from_ed_components(&public).ok()?,
        })
    }

    /// The id of the key that signs.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Signs `claims` as a compact JWT of type `typ`.
    ///
    /// # Errors
    /// When the claims are not JSON. A bug of the caller.
    pub fn sign(
        &self,
        typ: &str,
        claims: &impl Serialize,
    ) -> Result<String, jsonwebtoken::errors::Error> {
        let head = Header {
            typ: Some(typ.to_owned()),
            kid: Some(self.kid.clone()),
            ..Header::new(Algorithm::EdDSA)
        };
        jsonwebtoken::encode(&head, claims, &self.signing)
    }

    /// The claims of `token`, if it was signed here, is of type `typ`, from `issuer`, for `audience`,
    /// and within its time.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::Expired`] only when all before it was right.
    pub fn verify<C: DeserializeOwned>(
        &self,
        token: &str,
        typ: &str,
        issuer: &str,
        audience: &str,
    ) -> Result<C, TokenError> {
        let [head, ..] = parts(token)?;
        let head = token_head(head).ok_or(TokenError::Malformed)?;
        if head.alg != Algorithm::EdDSA || head.typ != typ {
            return Err(TokenError::Malformed);
        }
        if head.kid != self.kid {
            return Err(TokenError::UnknownKey);
        }
        verified_claims(token, &self.verifying, head.alg, issuer, audience)
    }
}

/// The claims of `token`, if `key` signed it by `algorithm`, and issuer, audience and times are right.
pub(super) fn verified_claims<C: DeserializeOwned>(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
    issuer: &str,
    audience: &str,
) -> Result<C, TokenError> {
    let mut rules = Validation::new(algorithm);
    rules.leeway = LEEWAY_SECONDS;
    rules.validate_nbf = true;
    rules.set_issuer(&[issuer]);
    rules.set_audience(&[audience]);
    rules.set_required_spec_claims(&["exp", "iss", "aud"]);
    jsonwebtoken::decode::<C>(token, key, &rules)
        .map(|token| token.claims)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::Base64(_) => TokenError::Signature,
            ErrorKind::ExpiredSignature => TokenError::Expired,
            ErrorKind::ImmatureSignature => TokenError::Immature,
            _ => TokenError::Claims,
        })
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// Head, claims and signature as they are encoded.
pub(super) fn parts(token: &str) -> Result<[&str; 3], TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLong);
    }
    let mut parts = token.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(head), Some(claims), Some(signature), None) => Ok([head, claims, signature]),
        _ => Err(TokenError::Malformed),
    }
}

fn token_head(head: &str) -> Option<TokenHead> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()
}

/// RFC 7638: the members that make the key, in this order, without spaces.
fn thumbprint(public: &str) -> String {
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{public}"}}"#);
    let mut kid = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
    kid.truncate(KID_LEN);
    kid
}

fn new_pem() -> Result<String, KeyError> {
    let pair = Ed25519KeyPair::generate().map_err(|_| KeyError::Generation)?;
    let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> =
        pair.as_der().map_err(|_| KeyError::Generation)?;
    // 48 to 85 bytes of DER: PEM lines have 64 characters.
    let text = STANDARD.encode(der.as_ref());
    let mut pem = format!("{PEM_BEGIN}\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(PEM_END);
    pem.push('\n');
    Ok(pem)
}

fn read_der(path: &Path) -> Result<Vec<u8>, KeyError> {
    let mut rereads = 0;
    loop {
        let pem = file::read(path)?;
        if let Some(der) = der_of(&pem) {
            return Ok(der);
        }
        // The end is missing: another process has created the file and is about to fill it.
        if pem.contains(PEM_END) || rereads == file::REREADS_MAX {
            return Err(KeyError::NotAKey {
                path: path.to_owned(),
            });
        }
        rereads += 1;
        std::thread::sleep(file::REREAD_PAUSE);
    }
}

fn der_of(pem: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once(PEM_BEGIN)?;
    let (text, _) = rest.split_once(PEM_END)?;
    let text: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    const TYP: &str = "a2a-canvas+jwt";

    fn keys() -> Keys {
        Keys::load_or_create(tempfile::tempdir().unwrap().path()).unwrap()
    }

    fn now() -> u64 {
        jsonwebtoken::get_current_timestamp()
    }

    fn claims(exp: u64) -> Value {
        json!({"iss": "http://gw", "aud": "http://gw", "exp": exp, "sub": "ada"})
    }

    fn check(keys: &Keys, token: &str) -> Result<Value, TokenError> {
        keys.verify(token, TYP, "http://gw", "http://gw")
    }

    #[test]
    fn processes_that_start_at_once_agree_on_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let kids: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Keys::load_or_create(&path).unwrap().kid().to_owned()))
                .collect();
            starts.into_iter().map(|s| s.join().unwrap()).collect()
        });
        assert_eq!(kids.len(), 1);
        assert_eq!(Keys::load_or_create(&path).unwrap().kid().len(), KID_LEN);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            assert_eq!(mode(&path.join(FILE_NAME)), 0o600);
        }
    }

    #[test]
    fn a_spoiled_file_is_named_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let spoiled = format!("{PEM_BEGIN}\nAAAA\n{PEM_END}\n");
        crate::config::exposure::tests::write(&path, &spoiled, 0o600);
        let error = Keys::load_or_create(dir.path()).unwrap_err();
        assert!(error.to_string().contains("active.pem"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), spoiled);
    }

    #[test]
    fn what_was_signed_is_verified_and_nothing_else() {
        let keys = keys();
        let good = keys.sign(TYP, &claims(now() + 60)).unwrap();
        assert_eq!(check(&keys, &good).unwrap()["sub"], "ada");

        let other_typ = keys.sign("a2a-pair+jwt", &claims(now() + 60)).unwrap();
        assert_eq!(check(&keys, &other_typ), Err(TokenError::Malformed));
        let stranger = self::keys().sign(TYP, &claims(now() + 60)).unwrap();
        assert_eq!(check(&keys, &stranger), Err(TokenError::UnknownKey));
        let mut bent = good.clone().into_bytes();
        let middle = good.find('.').unwrap() + 5;
        bent[middle] = if bent[middle] == b'A' { b'B' } else { b'A' };
        assert_eq!(
            check(&keys, std::str::from_utf8(&bent).unwrap()),
            Err(TokenError::Signature)
        );
        assert_eq!(
            check(&keys, &"x".repeat(TOKEN_BYTES_MAX + 1)),
            Err(TokenError::TooLong)
        );
        for malformed in ["", "a.b", "a.b.c", "a.b.c.d", &format!("{good}.x")] {
            assert_eq!(check(&keys, malformed), Err(TokenError::Malformed));
        }
    }

    #[test]
    fn times_issuer_and_audience_are_required_and_exact() {
        let keys = keys();
        let sign = |claims: &Value| keys.sign(TYP, claims).unwrap();
        assert!(check(&keys, &sign(&claims(now() - 2))).is_ok(), "leeway");
        assert_eq!(
            check(&keys, &sign(&claims(now() - 10))),
            Err(TokenError::Expired)
        );
        let mut early = claims(now() + 60);
        early["nbf"] = (now() + 30).into();
        assert_eq!(check(&keys, &sign(&early)), Err(TokenError::Immature));
        for missing in ["exp", "iss", "aud"] {
            let mut claims = claims(now() + 60);
            claims.as_object_mut().unwrap().remove(missing);
            assert_eq!(check(&keys, &sign(&claims)), Err(TokenError::Claims));
        }
        for (name, wrong) in [("iss", "http://else"), ("aud", "http://else")] {
            let mut claims = claims(now() + 60);
            claims[name] = wrong.into();
            assert_eq!(check(&keys, &sign(&claims)), Err(TokenError::Claims));
        }
    }

    #[test]
    fn a_header_that_would_choose_the_key_or_the_algorithm_is_refused() {
        let keys = keys();
        let good = keys.sign(TYP, &claims(now() + 60)).unwrap();
        let rest = good.split_once('.').unwrap().1;
        let kid = keys.kid();
        for head in [
            json!({"alg": "none", "typ": TYP, "kid": kid}),
            json!({"alg": "HS256", "typ": TYP, "kid": kid}),
            json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "jku": "http://evil"}),
            json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "jwk": {}}),
            json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "x5u": "http://evil"}),
            json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "crit": ["b64"]}),
            json!({"alg": "EdDSA", "kid": kid}),
            json!({"alg": "EdDSA", "typ": TYP}),
        ] {
            let token = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(head.to_string()));
            assert_eq!(check(&keys, &token), Err(TokenError::Malformed), "{head}");
        }
    }

    #[test]
    fn debug_shows_the_key_id_only() {
        let keys = keys();
        assert_eq!(
            format!("{keys:?}"),
            format!("Keys {{ kid: {:?}, .. }}", keys.kid())
        );
    }
}
