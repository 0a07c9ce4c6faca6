//! Compact JWTs (RFC 7519, RFC 7515): the checks before any cryptography, and the checks of the
//! claims after it (RFC 8725).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use kernel::metrics::CredentialFlaw;

/// Longest token that is accepted, in bytes. Longer ones are rejected before any cryptography.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Tolerated clock difference between signer and verifier of the gateway's own tokens, in seconds. For those of others:
/// `auth.leeway`.
pub const LEEWAY_SECONDS: u64 = 5;

/// The accepted `typ` values of a foreign header: a JWT for general use (`JOSE`: of a JWT-SVID). Others (`logout+jwt`,
/// `secevent+jwt`, the gateway's own) have another purpose.
const FOREIGN_TYPES: [&str; 3] = ["jwt", "at+jwt", "jose"];

/// The accepted `typ` values of a logout token. Older providers give it none of its own: its claims tell it apart.
const LOGOUT_TYPES: [&str; 2] = ["logout+jwt", "jwt"];

/// The reason that a token is rejected. Contains nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("the token has more than 8192 bytes")]
    TooLong,
    /// Not a compact JWT, or its header has members other than the `alg`, `typ` and `kid` of a
    /// gateway token.
    #[error(
        "the token is not one that this gateway makes, nor of an issuer in auth.issuers or auth.workspace_issuers"
    )]
    Malformed,
    /// Not signed by a key of its issuer.
    #[error("the token is signed by a key that this gateway does not know")]
    UnknownKey,
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    Immature,
    /// Another issuer, another audience, or a claim missing or of the wrong type.
    #[error(
        "the token was made for another gateway, or lacks a claim: gateways that share tokens share keys.dir and tokens.issuer, which is server.public_url where it is not set"
    )]
    Claims,
}

impl TokenError {
    /// Returns the metric label of requests with such a token.
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

/// The header fields by which the key of a token is found. They are not verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHead {
    /// The algorithm.
    #[serde(rename = "alg")]
    pub algorithm: Algorithm,
    /// The id of the key. A foreign token may have none.
    pub kid: Option<String>,
}

impl TokenHead {
    /// Parses the header of a gateway token of the type `typ`. Rejects members other than `alg`,
    /// `typ` and `kid` (`jku`, `jwk`, `x5u`, `crit`).
    ///
    /// # Errors
    /// [`TokenError::TooLong`] or [`TokenError::Malformed`].
    pub fn parse_own(token: &str, typ: &str) -> Result<Self, TokenError> {
        let head = OwnHead::parse(token)?;
        let alike = head.typ == typ && matches!(head.alg, Algorithm::EdDSA | Algorithm::ES256);
        alike
            .then_some(Self {
                algorithm: head.alg,
                kid: Some(head.kid),
            })
            .ok_or(TokenError::Malformed)
    }

    /// Parses the header of a foreign token. Rejects members by which a token would choose its own
    /// key or rules (`jwk`, `jku`, `x5c`, `x5u`, `crit`, `b64`, `zip`), the algorithms `none` and
    /// `HS…`, and a `typ` for another use.
    ///
    /// # Errors
    /// [`TokenError::TooLong`] or [`TokenError::Malformed`].
    pub fn parse_foreign(token: &str) -> Result<Self, TokenError> {
        Self::parse_typed(token, &FOREIGN_TYPES)
    }

    /// As [`TokenHead::parse_foreign`], of a logout token.
    ///
    /// # Errors
    /// [`TokenError::TooLong`] or [`TokenError::Malformed`].
    pub fn parse_logout(token: &str) -> Result<Self, TokenError> {
        Self::parse_typed(token, &LOGOUT_TYPES)
    }

    fn parse_typed(token: &str, types: &[&str]) -> Result<Self, TokenError> {
        let [head, ..] = split_token(token)?;
        let head: ForeignHead = decode_part(head).ok_or(TokenError::Malformed)?;
        let symmetric = matches!(
            head.alg,
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512
        );
        let typ = head.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        let typ = typ.strip_prefix("application/").unwrap_or(&typ);
        if symmetric || head.chooses_key() || !types.contains(&typ) {
            return Err(TokenError::Malformed);
        }
        Ok(Self {
            algorithm: head.alg,
            kid: head.kid,
        })
    }
}

/// Returns a time of a claim in whole seconds since 1970. It may have a fraction (RFC 7519, 2), which is dropped.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` ends at the bounds of i64, millions of years away"
)]
pub fn whole_seconds(at: f64) -> i64 {
    at.floor() as i64
}

/// Returns the `typ` of a token if it has a header as a gateway makes it.
pub fn own_type(token: &str) -> Option<String> {
    OwnHead::parse(token).ok().map(|head| head.typ)
}

/// Returns the unverified `iss` of a token, to choose the issuer to verify it with. `None`: it has
/// none, or is not a JWT.
pub fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct UnverifiedClaims {
        iss: String,
    }
    decode_claims(token).map(|claims: UnverifiedClaims| claims.iss)
}

/// Returns the unverified `aud` of a token, to choose the audience to verify it for. `None`: it is
/// not one string.
pub fn claimed_audience(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct UnverifiedClaims {
        aud: String,
    }
    decode_claims(token).map(|claims: UnverifiedClaims| claims.aud)
}

fn decode_claims<T: DeserializeOwned>(token: &str) -> Option<T> {
    let [_, claims, _] = split_token(token).ok()?;
    decode_part(claims)
}

/// Returns the second that is `span` after another.
pub(super) fn seconds_after(second: i64, span: Duration) -> i64 {
    second.saturating_add(i64::try_from(span.as_secs()).unwrap_or(i64::MAX))
}

/// Returns the header and claims of a token as JSON, unverified; for display.
///
/// # Errors
/// [`TokenError::TooLong`], or [`TokenError::Malformed`] if it is not a compact JWT.
pub fn decode_unverified(token: &str) -> Result<[Value; 2], TokenError> {
    let [head, claims, _] = split_token(token)?;
    match (decode_part(head), decode_part(claims)) {
        (Some(head), Some(claims)) => Ok([head, claims]),
        _ => Err(TokenError::Malformed),
    }
}

/// Returns the claims of `token` if `key` signed it, and the rules allow them.
pub(super) fn verify_signature<C: DeserializeOwned>(
    token: &str,
    key: &DecodingKey,
    rules: &Validation,
) -> Result<C, TokenError> {
    let decoded = jsonwebtoken::decode::<C>(token, key, rules);
    decoded
        .map(|token| token.claims)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::Base64(_) => TokenError::Signature,
            ErrorKind::ExpiredSignature => TokenError::Expired,
            ErrorKind::ImmatureSignature => TokenError::Immature,
            _ => TokenError::Claims,
        })
}

/// Returns the encoded head, claims and signature.
fn split_token(token: &str) -> Result<[&str; 3], TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::TooLong);
    }
    let mut parts = token.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(head), Some(claims), Some(signature), None) => Ok([head, claims, signature]),
        _ => Err(TokenError::Malformed),
    }
}

fn decode_part<T: DeserializeOwned>(part: &str) -> Option<T> {
    parse_object(&URL_SAFE_NO_PAD.decode(part).ok()?)
}

/// Parses a JSON object. Without the check for `{`, serde would also accept an array of the values
/// in the order of the fields.
pub(super) fn parse_object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with(b"{");
    is_object.then(|| serde_json::from_slice(json).ok())?
}

/// The header of each token that a gateway signs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnHead {
    alg: Algorithm,
    typ: String,
    kid: String,
}

impl OwnHead {
    fn parse(token: &str) -> Result<Self, TokenError> {
        let [head, ..] = split_token(token)?;
        decode_part(head).ok_or(TokenError::Malformed)
    }
}

/// The header of a foreign token. Typed, so that a member that is there twice is an error.
#[derive(Deserialize)]
struct ForeignHead {
    alg: Algorithm,
    kid: Option<String>,
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
    fn chooses_key(&self) -> bool {
        [
            &self.jwk, &self.jku, &self.x5c, &self.x5u, &self.crit, &self.b64, &self.zip,
        ]
        .iter()
        .any(|member| member.is_some())
    }
}
