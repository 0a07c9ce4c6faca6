//! Compact JWTs (RFC 7519, RFC 7515): what is looked at before any cryptography, and what is asked of
//! the claims after it (RFC 8725).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::metrics::CredentialFlaw;

/// Longest token that is looked at. Refused before any cryptography.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Clock difference between signer and verifier that is forgiven, in seconds.
pub const LEEWAY_SECONDS: u64 = 5;

/// The `typ` of a foreign header that says "a JWT for use here": others (`logout+jwt`, `secevent+jwt`,
/// our own) mean something else.
const FOREIGN_TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// Why a token proves nothing. Says nothing of the token's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("the token has more than 8192 bytes")]
    TooLong,
    /// Not a compact JWT, or a header other than `alg`, `typ` and `kid` as we write them.
    #[error("the token is not one that this gateway makes, nor of an issuer in auth.issuers")]
    Malformed,
    /// Signed by no key of its issuer.
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

impl TokenError {
    /// The label of requests with such a token.
    pub const fn flaw(self) -> CredentialFlaw {
        match self {
            Self::TooLong | Self::Malformed => CredentialFlaw::Malformed,
            Self::UnknownKey => CredentialFlaw::UnknownKey,
            Self::Signature => CredentialFlaw::Signature,
            Self::Expired => CredentialFlaw::Expired,
            Self::Immature => CredentialFlaw::Immature,
            Self::Claims => CredentialFlaw::Claims,
        }
    }
}

/// What must be known of a token to find its key. Nothing of it is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHead {
    #[serde(rename = "alg")]
    algorithm: Algorithm,
    kid: String,
}

impl TokenHead {
    /// Reads the header of a token that a gateway made, of exactly the type `typ`. A member other than
    /// `alg`, `typ` and `kid` (`jku`, `jwk`, `x5u`, `crit`) is refused.
    ///
    /// # Errors
    /// [`TokenError::TooLong`] or [`TokenError::Malformed`].
    pub fn own(token: &str, typ: &str) -> Result<Self, TokenError> {
        let head = OwnHead::read(token)?;
        let alike = head.typ == typ && matches!(head.alg, Algorithm::EdDSA | Algorithm::ES256);
        alike
            .then_some(Self {
                algorithm: head.alg,
                kid: head.kid,
            })
            .ok_or(TokenError::Malformed)
    }

    /// Reads the header of a foreign token. Members by which a token would choose its own key or rules
    /// (`jwk`, `jku`, `x5c`, `x5u`, `crit`, `b64`, `zip`), the algorithms `none` and `HS…`, and a `typ` of
    /// another use are refused.
    ///
    /// # Errors
    /// [`TokenError::TooLong`] or [`TokenError::Malformed`].
    pub fn foreign(token: &str) -> Result<Self, TokenError> {
        let [head, ..] = parts(token)?;
        let head: ForeignHead = decoded(head).ok_or(TokenError::Malformed)?;
        let symmetric = matches!(
            head.alg,
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512
        );
        let typ = head.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        let typ = typ.strip_prefix("application/").unwrap_or(&typ);
        if symmetric || head.chooses() || !FOREIGN_TYPES.contains(&typ) {
            return Err(TokenError::Malformed);
        }
        Ok(Self {
            algorithm: head.alg,
            kid: head.kid,
        })
    }

    /// The algorithm that it says it is signed by.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The key that it says it is signed with.
    pub fn kid(&self) -> &str {
        &self.kid
    }
}

/// The `typ` of a token that has a header as a gateway makes it.
pub fn own_type(token: &str) -> Option<String> {
    OwnHead::read(token).ok().map(|head| head.typ)
}

/// `iss` of a token as it says itself, to see whose key to try. `None`: it says none, or is no JWT.
pub fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claimed {
        iss: String,
    }
    let [_, claims, _] = parts(token).ok()?;
    decoded::<Claimed>(claims).map(|claims| claims.iss)
}

/// `aud` of a token as it says itself, to see what it wants to be verified for. `None`: it is not one
/// text.
pub fn claimed_audience(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Claimed {
        aud: String,
    }
    let [_, claims, _] = parts(token).ok()?;
    decoded::<Claimed>(claims).map(|claims| claims.aud)
}

/// Header and claims of a token as JSON text, unproven; for people to look at.
///
/// # Errors
/// [`TokenError::TooLong`], or [`TokenError::Malformed`] when it is no compact JWT.
pub fn unproven(token: &str) -> Result<[serde_json::Value; 2], TokenError> {
    let [head, claims, _] = parts(token)?;
    match (decoded(head), decoded(claims)) {
        (Some(head), Some(claims)) => Ok([head, claims]),
        _ => Err(TokenError::Malformed),
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

/// What `token` says, if `key` signed it by `algorithm`. For what is no token and has no time of its own.
pub(super) fn signed_payload<C: DeserializeOwned>(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
) -> Result<C, TokenError> {
    let mut rules = Validation::new(algorithm);
    rules.validate_exp = false;
    rules.validate_aud = false;
    rules.set_required_spec_claims::<&str>(&[]);
    let read = jsonwebtoken::decode::<C>(token, key, &rules);
    read.map(|token| token.claims)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::Base64(_) => TokenError::Signature,
            _ => TokenError::Claims,
        })
}

/// Head, claims and signature as they are encoded.
fn parts(token: &str) -> Result<[&str; 3], TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLong);
    }
    let mut parts = token.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(head), Some(claims), Some(signature), None) => Ok([head, claims, signature]),
        _ => Err(TokenError::Malformed),
    }
}

fn decoded<T: DeserializeOwned>(part: &str) -> Option<T> {
    object(&URL_SAFE_NO_PAD.decode(part).ok()?)
}

/// Reads a JSON object. Without this look a list of the values, in our order of the members, would do.
pub(super) fn object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with(b"{");
    is_object.then(|| serde_json::from_slice(json).ok())?
}

/// The header of every token that a gateway signs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnHead {
    alg: Algorithm,
    typ: String,
    kid: String,
}

impl OwnHead {
    fn read(token: &str) -> Result<Self, TokenError> {
        let [head, ..] = parts(token)?;
        decoded(head).ok_or(TokenError::Malformed)
    }
}

#[derive(Deserialize)]
struct ForeignHead {
    alg: Algorithm,
    kid: String,
    typ: Option<String>,
    jwk: Option<IgnoredAny>,
    jku: Option<IgnoredAny>,
    x5c: Option<IgnoredAny>,
    x5u: Option<IgnoredAny>,
    crit: Option<IgnoredAny>,
    b64: Option<IgnoredAny>,
    zip: Option<IgnoredAny>,
}

impl ForeignHead {
    fn chooses(&self) -> bool {
        [
            &self.jwk, &self.jku, &self.x5c, &self.x5u, &self.crit, &self.b64, &self.zip,
        ]
        .iter()
        .any(|member| member.is_some())
    }
}
