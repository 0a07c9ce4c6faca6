//! The published keys of an issuer (RFC 7517), a foreign one or this gateway ([`KeySet`]), and
//! strict verification of signatures by them.
//!
//! Asymmetric algorithms only. A key verifies only the algorithms that it is published for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::token::{TokenError, TokenHead, parse_object, verify_signature};

/// Most keys of one issuer. Real issuers have two to ten.
pub const KEYS_MAX: usize = 100;

/// Length of an RSA modulus in bytes: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// The `use` of the keys of JWT-SVIDs in a SPIFFE trust bundle.
const JWT_SVID: &str = "jwt-svid";

/// The reason that the body of a JWKS is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Not a JSON object with a list `keys`.
    #[error("not a JSON Web Key Set: a JSON object with a list `keys`")]
    Malformed,
    /// More than [`KEYS_MAX`].
    #[error("more than 100 keys")]
    TooMany,
}

/// One key as published. Members that do not affect verification are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    /// The private half. A published private key is not trusted, since any reader of it can sign.
    d: Option<IgnoredAny>,
}

impl Jwk {
    /// Returns the algorithms and the key for verification. `None`: it is not for signatures, or
    /// not a key.
    fn to_decoding_key(&self) -> Option<(Vec<Algorithm>, DecodingKey)> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let usage = self.usage.as_deref();
        let for_signatures = matches!(usage, None | Some("sig" | JWT_SVID));
        let ops = self.key_ops.as_ref();
        let verifies = ops.is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !for_signatures || !verifies || self.d.is_some() {
            return None;
        }
        let (x, y) = (self.x.as_deref(), self.y.as_deref());
        let (mut algorithms, key) = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => {
                let x = x.filter(|x| decoded_len(x) == Some(32))?;
                (vec![EdDSA], DecodingKey::from_ed_components(x))
            }
            ("EC", Some(curve @ ("P-256" | "P-384"))) => {
                let (algorithm, bytes) = match curve {
                    "P-256" => (ES256, 32),
                    _ => (ES384, 48),
                };
                let x = x.filter(|x| decoded_len(x) == Some(bytes))?;
                let y = y.filter(|y| decoded_len(y) == Some(bytes))?;
                (vec![algorithm], DecodingKey::from_ec_components(x, y))
            }
            ("RSA", None) => {
                let (n, e) = (self.n.as_deref()?, self.e.as_deref()?);
                decoded_len(n).filter(|bytes| RSA_BYTES.contains(bytes))?;
                let all = vec![RS256, RS384, RS512, PS256, PS384, PS512];
                (all, DecodingKey::from_rsa_components(n, e))
            }
            _ => return None,
        };
        if let Some(name) = &self.alg {
            algorithms.retain(|algorithm| name.parse::<Algorithm>().ok() == Some(*algorithm));
        }
        Some((algorithms, key.ok()?)).filter(|(algorithms, _)| !algorithms.is_empty())
    }
}

/// Returns the number of bytes of a value in base64url, with leading zeros: those of curves have a fixed length.
fn decoded_len(text: &str) -> Option<usize> {
    URL_SAFE_NO_PAD.decode(text).ok().map(|bytes| bytes.len())
}

/// One key for verification.
pub struct PublicKey {
    /// As published, or a hash of the key, which no token names.
    kid: String,
    jwk: Jwk,
    algorithms: Vec<Algorithm>,
    verifying: DecodingKey,
    withdrawn: AtomicBool,
}

impl PublicKey {
    fn new(jwk: Jwk) -> Option<Self> {
        let (algorithms, verifying) = jwk.to_decoding_key()?;
        let kid = jwk.kid.clone();
        Some(Self {
            kid: kid.unwrap_or_else(|| {
                URL_SAFE_NO_PAD.encode(digest(&SHA256, format!("{jwk:?}").as_bytes()))
            }),
            jwk,
            algorithms,
            verifying,
            withdrawn: AtomicBool::new(false),
        })
    }

    /// Returns true if its issuer has withdrawn the key: tokens verified with it are no longer
    /// valid.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }

    /// Returns the id by which the key is found again.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// True if the key may verify a token with this header.
    fn fits(&self, head: &TokenHead) -> bool {
        head.kid.as_ref().is_none_or(|kid| self.kid == *kid)
            && self.algorithms.contains(&head.algorithm)
    }

    /// Returns the claims of `token`, which has the header `head`, if this key signed it and it is
    /// from `issuer`, for `audience`, and within its time, but for `leeway` seconds.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::Expired`] only if all checks before it passed.
    pub fn verify<C: DeserializeOwned>(
        &self,
        token: &str,
        head: &TokenHead,
        leeway: u64,
        issuer: &str,
        audience: &str,
    ) -> Result<C, TokenError> {
        if !self.fits(head) {
            return Err(TokenError::UnknownKey);
        }
        let mut rules = Validation::new(head.algorithm);
        rules.leeway = leeway;
        rules.validate_nbf = true;
        rules.set_issuer(&[issuer]);
        rules.set_audience(&[audience]);
        rules.set_required_spec_claims(&["exp", "iss", "aud"]);
        verify_signature(token, &self.verifying, &rules)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// The usable keys of one issuer.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<Arc<PublicKey>>,
}

impl KeySet {
    /// Parses a JWKS. Skips keys that are not for signatures, of an unknown kind, too short, or
    /// published with their private half. A set without keys is valid: its
    /// issuer has withdrawn them all.
    ///
    /// # Errors
    /// If it is not a JWKS, or too large.
    pub fn parse(body: &[u8]) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct JwksDocument {
            keys: Vec<Value>,
        }
        let published: JwksDocument = parse_object(body).ok_or(KeySetError::Malformed)?;
        if published.keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany);
        }
        let jwks = published.keys.into_iter();
        let keys = jwks
            .filter(Value::is_object)
            .filter_map(|jwk| serde_json::from_value(jwk).ok())
            .filter_map(PublicKey::new)
            .map(Arc::new)
            .collect();
        Ok(Self { keys })
    }

    /// Returns the union of this set and another.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.keys.extend(other.keys);
        self
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key that the header names, if it may verify by the header's algorithm. For a header that names none:
    /// the only key that may.
    pub fn find(&self, head: &TokenHead) -> Option<&Arc<PublicKey>> {
        let mut fitting = self.keys.iter().filter(|key| key.fits(head));
        let found = fitting.next()?;
        (head.kid.is_some() || fitting.next().is_none()).then_some(found)
    }

    /// Returns the payload of a statement of type `typ` if one of these keys signed it. A statement
    /// is not a token: it has no audience and does not expire.
    ///
    /// # Errors
    /// [`TokenError::UnknownKey`] if the key that it names is not in the set.
    pub fn verify_statement<C: DeserializeOwned>(
        &self,
        statement: &str,
        typ: &str,
    ) -> Result<C, TokenError> {
        let head = TokenHead::parse_own(statement, typ)?;
        let key = self.find(&head).ok_or(TokenError::UnknownKey)?;
        let mut rules = Validation::new(head.algorithm);
        rules.validate_exp = false;
        rules.validate_aud = false;
        rules.set_required_spec_claims::<&str>(&[]);
        verify_signature(statement, &key.verifying, &rules)
    }

    /// Replaces `earlier`: unchanged keys keep their identity, and removed ones are marked
    /// withdrawn.
    #[must_use]
    pub fn supersede(mut self, earlier: &Self) -> Self {
        for key in &mut self.keys {
            if let Some(same) = earlier.keys.iter().find(|old| old.jwk == key.jwk) {
                *key = Arc::clone(same);
            }
        }
        let stays = |old: &Arc<PublicKey>| self.keys.iter().any(|key| Arc::ptr_eq(key, old));
        for gone in earlier.keys.iter().filter(|old| !stays(old)) {
            gone.withdrawn.store(true, Ordering::Release);
        }
        self
    }

    /// Marks all keys as withdrawn.
    pub fn withdraw(&self) {
        for key in &self.keys {
            key.withdrawn.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
