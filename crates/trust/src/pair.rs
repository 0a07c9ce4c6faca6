//! Pair tokens (`docs/reference/credentials.md`, "Pair tokens"): one caller, one target, and the relation between
//! them. Workspaces get them from discovery. A forwarded request carries one, too, which is for its
//! target only: a caller token, either of the pair or bound to this request.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::jwks::KeySet;
use super::token::{LEEWAY_SECONDS, TokenError, TokenHead, seconds_after};
use kernel::time::Timestamp;

/// The `typ` of the header of a canvas token, so that no other token of this gateway is accepted as one.
pub const CANVAS_TYP: &str = "a2a-canvas+jwt";

/// The only scope of a canvas token.
pub const CANVAS_SCOPE: &str = "a2a:canvas";

/// The `typ` of the header.
pub const PAIR_TYP: &str = "a2a-pair+jwt";

/// The only scope.
pub const PAIR_SCOPE: &str = "a2a:message";

/// The value of [`PairClaims::token_use`] in tokens on forwarded requests.
pub const CALLER_USE: &str = "caller";

/// Lifetime of the token on a forwarded request.
pub const CALLER_TTL: Duration = Duration::from_secs(60);

/// The claims of a pair token. Times are whole seconds since 1970 (RFC 7519, 4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairClaims {
    /// The gateway: `tokens.issuer`.
    pub iss: String,
    /// The caller: a workspace, or with a prefix for its kind `canvas:<user>`, `org:<org>`,
    /// `operator:`.
    pub sub: String,
    /// The workspace that the token is for.
    pub aud: String,
    /// Time of issue.
    pub iat: i64,
    /// Start of validity.
    pub nbf: i64,
    /// End of validity.
    pub exp: i64,
    /// The unique id of the token.
    pub jti: String,
    /// [`PAIR_SCOPE`].
    pub scope: String,
    /// The rule by which the caller may message the target.
    pub rel: String,
    /// The org of the caller, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The access generation: it grows with each move of the caller, the target or one of their
    /// ancestors.
    #[serde(rename = "gen")]
    pub generation: i64,
    /// [`CALLER_USE`] on a forwarded request: the target must not use it as a credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_use: Option<String>,
    /// In a token for one forwarded request, its JSON-RPC method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// In a token for one forwarded request, [`body_hash`] of its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bh: Option<String>,
    /// [`body_hash`] of the chain token beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tth: Option<String>,
}

/// A caller, a target and their relation, for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair<'a> {
    /// The value of [`PairClaims::sub`].
    pub caller: &'a str,
    /// The value of [`PairClaims::aud`].
    pub target: &'a str,
    /// The value of [`PairClaims::rel`].
    pub rule: &'static str,
    /// The value of [`PairClaims::org`].
    pub org: Option<&'a str>,
    /// The value of [`PairClaims::generation`].
    pub generation: i64,
    /// The value of [`PairClaims::tth`].
    pub chain_hash: Option<&'a str>,
}

impl PairClaims {
    /// Creates the claims of a token for `pair` that is valid from the second of `now` on, for `ttl`.
    pub fn new(issuer: String, pair: Pair<'_>, now: Timestamp, ttl: Duration) -> Self {
        let now = now.0.div_euclid(1000);
        Self {
            iss: issuer,
            sub: pair.caller.to_owned(),
            aud: pair.target.to_owned(),
            iat: now,
            nbf: now,
            exp: seconds_after(now, ttl),
            jti: uuid::Uuid::now_v7().to_string(),
            scope: PAIR_SCOPE.to_owned(),
            rel: pair.rule.to_owned(),
            org: pair.org.map(str::to_owned),
            generation: pair.generation,
            token_use: None,
            method: None,
            bh: None,
            tth: pair.chain_hash.map(str::to_owned),
        }
    }

    /// Binds the token to one request: to its JSON-RPC method, if there is one, and to exactly the body
    /// of this hash ([`body_hash`]).
    #[must_use]
    pub fn bind_to(mut self, method: Option<&str>, body_hash: String) -> Self {
        self.method = method.map(str::to_owned);
        self.bh = Some(body_hash);
        self
    }

    /// Returns the claims of `token`, which has the header `head`, if it is signed by one of
    /// `keys`, is from `issuer` and for `audience`, within its time, and has the scope.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::UnknownKey`] if the keys should be fetched again.
    pub fn verify(
        token: &str,
        head: &TokenHead,
        keys: &KeySet,
        issuer: &str,
        audience: &str,
    ) -> Result<Self, TokenError> {
        let key = keys.find(head).ok_or(TokenError::UnknownKey)?;
        let claims: Self = key.verify(token, head, LEEWAY_SECONDS, issuer, audience)?;
        claims.validate()
    }

    /// Checks the claims beyond issuer, audience and times.
    ///
    /// # Errors
    /// [`TokenError::Claims`].
    pub fn validate(self) -> Result<Self, TokenError> {
        if self.scope != PAIR_SCOPE || self.sub.is_empty() || self.jti.is_empty() {
            return Err(TokenError::Claims);
        }
        Ok(self)
    }

    /// Returns true if it was made for one request.
    pub fn is_bound(&self) -> bool {
        self.bh.is_some() || self.method.is_some()
    }

    /// Returns true if it was put on a forwarded request. It proves its caller to the target only: as a credential it
    /// would let the target act as its caller.
    pub fn is_forwarded(&self) -> bool {
        self.token_use.is_some() || self.is_bound()
    }
}

/// The `typ` of the header of a chain token.
pub const CHAIN_TYP: &str = "a2a-chain+jwt";

/// The claims of a chain token, as far as its holder needs them.
#[derive(Debug, Deserialize)]
pub struct HeldChain {
    /// The root: a name as [`PairClaims::sub`] has it, or one for this org alone.
    pub sub: String,
    scope: String,
    token_use: String,
    act: Option<Actor>,
}

#[derive(Debug, Deserialize)]
struct Actor {
    sub: String,
}

impl HeldChain {
    /// Verifies the chain token beside a caller token.
    ///
    /// # Errors
    /// [`TokenError`]; [`TokenError::Claims`] also for one that belongs to another caller token.
    pub fn verify(
        token: &str,
        caller: &PairClaims,
        keys: &KeySet,
        (issuer, audience): (&str, &str),
    ) -> Result<Self, TokenError> {
        let head = TokenHead::parse_own(token, CHAIN_TYP)?;
        let key = keys.find(&head).ok_or(TokenError::UnknownKey)?;
        let claims: Self = key.verify(token, &head, LEEWAY_SECONDS, issuer, audience)?;
        let last = claims.act.as_ref().map_or(&claims.sub, |actor| &actor.sub);
        let good = claims.scope == "a2a:chain"
            && claims.token_use == "context"
            && *last == caller.sub
            && caller.tth.as_deref() == Some(&*body_hash(token.as_bytes()));
        good.then_some(claims).ok_or(TokenError::Claims)
    }
}

/// Returns the claim `bh`: the SHA-256 of a request body in base64url, without padding.
pub fn body_hash(body: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, body))
}
