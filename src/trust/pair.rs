//! Pair tokens (contract §7.2): one caller, one target, one relation between them. Discovery gives
//! them to workspaces, and each forwarded request carries a fresh one that is bound to its body.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::jwks::KeySet;
use super::token::{TokenError, TokenHead};

/// The `typ` of the header.
pub const PAIR_TYP: &str = "a2a-pair+jwt";

/// The one scope.
pub const PAIR_SCOPE: &str = "a2a:message";

/// How long the token on a forwarded request lasts.
pub const CALLER_TTL: Duration = Duration::from_secs(60);

/// What a pair token says. Times are whole seconds since 1970 (RFC 7519, 4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairClaims {
    /// The gateway: `tokens.issuer`.
    pub iss: String,
    /// Who calls: a workspace, or with its kind in front `canvas:<user>`, `org:<org>`, `operator:`.
    pub sub: String,
    /// The one workspace that it is for.
    pub aud: String,
    /// When it was made.
    pub iat: i64,
    /// From when on it counts.
    pub nbf: i64,
    /// Until when.
    pub exp: i64,
    /// Its name, unique.
    pub jti: String,
    /// [`PAIR_SCOPE`].
    pub scope: String,
    /// The rule by which the caller may message the target.
    pub rel: String,
    /// Of the caller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The access generation: it grows with each move of either, or of anyone above them.
    #[serde(rename = "gen")]
    pub generation: i64,
    /// On a forwarded request, the JSON-RPC method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// On a forwarded request, [`body_hash`] of its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bh: Option<String>,
}

/// Who is to whom what, for a token about it.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// As [`PairClaims::sub`].
    pub caller: &'a str,
    /// As [`PairClaims::aud`].
    pub target: &'a str,
    /// As [`PairClaims::rel`].
    pub rule: &'static str,
    /// As [`PairClaims::org`].
    pub org: Option<&'a str>,
    /// As [`PairClaims::generation`].
    pub generation: i64,
}

impl PairClaims {
    /// A token about `pair` that counts from now on, for `ttl`.
    pub fn new(issuer: String, pair: Pair<'_>, ttl: Duration) -> Self {
        let now = seconds_now();
        Self {
            iss: issuer,
            sub: pair.caller.to_owned(),
            aud: pair.target.to_owned(),
            iat: now,
            nbf: now,
            exp: now.saturating_add(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)),
            jti: uuid::Uuid::now_v7().to_string(),
            scope: PAIR_SCOPE.to_owned(),
            rel: pair.rule.to_owned(),
            org: pair.org.map(str::to_owned),
            generation: pair.generation,
            method: None,
            bh: None,
        }
    }

    /// The same, for one request: of this JSON-RPC method, if it has one to tell of, with exactly this
    /// body.
    #[must_use]
    pub fn bound_to(mut self, method: Option<&str>, body: &[u8]) -> Self {
        self.method = method.map(str::to_owned);
        self.bh = Some(body_hash(body));
        self
    }

    /// The claims of `token`, whose header is `head`, if one of `keys` signed it, it is from `issuer`,
    /// for `audience`, within its time and of the scope.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::UnknownKey`] when the keys should be fetched again.
    pub fn verify(
        token: &str,
        head: &TokenHead,
        keys: &KeySet,
        issuer: &str,
        audience: &str,
    ) -> Result<Self, TokenError> {
        let key = keys.find(head).ok_or(TokenError::UnknownKey)?;
        let claims: Self = key.verify(token, head, issuer, audience)?;
        claims.checked()
    }

    /// What is asked of the claims beyond issuer, audience and times.
    ///
    /// # Errors
    /// [`TokenError::Claims`].
    pub fn checked(self) -> Result<Self, TokenError> {
        if self.scope != PAIR_SCOPE || self.sub.is_empty() || self.jti.is_empty() {
            return Err(TokenError::Claims);
        }
        Ok(self)
    }

    /// Whether it was made for one request, and proves its caller to the target only.
    pub fn is_bound(&self) -> bool {
        self.bh.is_some() || self.method.is_some()
    }
}

/// base64url, without padding, of the SHA-256 of a request body: the claim `bh`.
pub fn body_hash(body: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, body))
}

fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
